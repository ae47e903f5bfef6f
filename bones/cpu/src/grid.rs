//! Splits a matrix into disjoint tiles, one a task.

use crate::pool::Pool;
use std::marker::PhantomData;
use std::ops::Range;

/// A part of a matrix that one task alone may write.
pub struct Tile<'a> {
    base: *mut f32,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    matrix: PhantomData<&'a mut [f32]>,
}

struct Base(*mut f32);
// SAFETY: tasks derive from it only slices that are disjoint between tasks.
unsafe impl Sync for Base {}

impl Tile<'_> {
    /// Rows of the matrix that the tile covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the matrix that the tile covers.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The tile's part of a row of the matrix.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(self.rows.contains(&row), "row {row} of a tile of rows {:?}", self.rows);
        // SAFETY: `grid` checked that the rows and columns lie in the matrix, which it borrows mutably while tasks run;
        // tiles do not overlap, each is handed to one task, and the slice borrows the tile.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.base.add(row * self.width + self.columns.start),
                self.columns.end - self.columns.start,
            )
        }
    }
}

/// Runs `task` once for each tile of `matrix`, whose rows have `width` columns. `down` and `over` are the ascending borders
/// of rows and columns, first and last included.
pub fn grid(
    pool: &Pool,
    matrix: &mut [f32],
    width: usize,
    [down, over]: [&[usize]; 2],
    task: &(dyn Fn(&mut Tile<'_>) + Sync),
) {
    let ascend = |cuts: &[usize]| cuts.windows(2).all(|pair| pair[0] <= pair[1]);
    assert!(ascend(down) && ascend(over), "borders ascend");
    let last = |cuts: &[usize]| cuts.last().copied().unwrap_or(0);
    let needed = last(down).checked_mul(width);
    assert!(needed.is_some_and(|len| len <= matrix.len()) && last(over) <= width, "tiles lie in the matrix");
    let (rows, columns) = (down.len().saturating_sub(1), over.len().saturating_sub(1));
    let base = Base(matrix.as_mut_ptr());
    let base = &base;
    pool.run(rows * columns, &|index| {
        let (row, column) = (index / columns, index % columns);
        let (rows, columns) = (down[row]..down[row + 1], over[column]..over[column + 1]);
        task(&mut Tile { base: base.0, width, rows, columns, matrix: PhantomData });
    });
}

/// Borders of `len` rows or columns, every `step`.
pub fn every(len: usize, step: usize) -> Vec<usize> {
    (0..len).step_by(step.max(1)).chain([len]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tiles_cover_every_element_once(rows in 0_usize..9, width in 1_usize..9, down in 1_usize..5, over in 1_usize..5) {
            let pool = Pool::new(2).unwrap();
            let mut matrix = vec![0.0; rows * width];
            grid(&pool, &mut matrix, width, [&every(rows, down), &every(width, over)], &|tile| {
                for row in tile.rows() {
                    for value in tile.row(row) {
                        *value += 1.0;
                    }
                }
            });
            prop_assert!(matrix.iter().all(|&v| v == 1.0));
        }
    }

    #[test]
    #[should_panic(expected = "tiles lie in the matrix")]
    fn a_matrix_too_small_is_refused() {
        grid(&Pool::new(1).unwrap(), &mut [0.0; 5], 2, [&[0, 3], &[0, 2]], &|_| ());
    }

    #[test]
    #[should_panic(expected = "tiles lie in the matrix")]
    fn a_size_that_wraps_is_refused() {
        grid(&Pool::new(1).unwrap(), &mut [0.0; 5], usize::MAX / 2 + 1, [&[0, 2], &[0, 1]], &|_| ());
    }
}
