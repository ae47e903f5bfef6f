//! Buffers that begin on a cache line, so that no vector load straddles two.
//!
//! They are anonymous mappings: zero without being written, so that a large cache costs nothing until it is used.

use bytemuck::Pod;
use memmap2::{Advice, MmapMut};
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;
/// From this many bytes on, large pages are asked for.
const LARGE: usize = 4 << 20;

/// Numbers that begin on a cache line.
pub struct Lines<E> {
    /// Absent where there is nothing to hold.
    memory: Option<MmapMut>,
    len: usize,
    element: PhantomData<E>,
}

impl<E: Pod> Lines<E> {
    /// `len` zeros; `None` when memory is short.
    pub fn zeroed(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<E>())?;
        Some(Self { memory: if bytes == 0 { None } else { Some(map(bytes)?) }, len, element: PhantomData })
    }

    /// Makes it hold `len` numbers, their values unspecified. Memory is kept when it shrinks.
    pub fn resize(&mut self, len: usize) -> Option<()> {
        let bytes = len.checked_mul(size_of::<E>())?;
        if bytes > self.memory.as_ref().map_or(0, |memory| memory.len()) {
            self.memory = Some(map(bytes)?);
        }
        self.len = len;
        Some(())
    }
}

/// A value that begins on a cache line.
#[repr(C, align(64))]
pub struct OnLine<T>(pub T);

/// Room for `len` numbers from a cache line on, their values unspecified; it lasts from one use to the next.
pub fn room<E: Pod>(buffer: &mut Vec<E>, len: usize) -> &mut [E] {
    let place = place(buffer, len);
    &mut buffer[place]
}

/// Where that room is within the buffer, which must not grow meanwhile.
pub fn place<E: Pod>(buffer: &mut Vec<E>, len: usize) -> Range<usize> {
    let slack = LINE / size_of::<E>();
    buffer.resize(buffer.len().max(len + slack), E::zeroed());
    let first = buffer.as_ptr().align_offset(LINE).min(slack);
    first..first + len
}

fn map(bytes: usize) -> Option<MmapMut> {
    let memory = MmapMut::map_anon(bytes).ok()?;
    if bytes >= LARGE {
        // A hint; without it there are more pages and nothing else.
        let _ = memory.advise(Advice::HugePage);
    }
    Some(memory)
}

impl<E: Pod> std::ops::Deref for Lines<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // An empty slice of bytes need not be aligned for numbers.
        let Some(memory) = &self.memory else { return &[] };
        bytemuck::cast_slice(&memory[..self.len * size_of::<E>()])
    }
}

impl<E: Pod> std::ops::DerefMut for Lines<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        let Some(memory) = &mut self.memory else { return &mut [] };
        bytemuck::cast_slice_mut(&mut memory[..self.len * size_of::<E>()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_and_values_begin_on_a_line() {
        let mut buffer = Vec::<u32>::new();
        for len in [5, 0, 100, 7] {
            let room = room(&mut buffer, len);
            assert_eq!((room.len(), room.as_ptr() as usize % 64), (len, 0));
        }
        let value = OnLine([0_u8; 3]);
        assert_eq!(&raw const value.0 as usize % 64, 0);
    }

    #[test]
    fn buffers_begin_on_a_line_whether_empty_or_not() {
        let mut lines = Lines::<f32>::zeroed(0).unwrap();
        assert!(lines.is_empty());
        lines.fill(1.0);
        for len in [1, 5000, 3, 0, 2_000_000] {
            lines.resize(len).unwrap();
            assert_eq!((lines.len(), lines.as_ptr() as usize % 64), (len, 0));
            lines.fill(1.0);
        }
        assert!(Lines::<u32>::zeroed(70).unwrap().iter().all(|&word| word == 0));
        assert!(Lines::<u32>::zeroed(usize::MAX / 2).is_none() && lines.resize(usize::MAX / 2).is_none());
        assert_eq!(lines.len(), 2_000_000);
    }
}
