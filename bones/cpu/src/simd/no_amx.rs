//! Where nothing can speak to a matrix unit, there is none.

use super::{LANES, Words};

/// Kept private: what others can see to be never made, the compiler would not let them write code for.
#[derive(Clone, Copy)]
enum Never {}

/// Never made.
#[derive(Clone, Copy)]
pub struct Amx(Never);
/// Never made.
pub struct Unit(Never);
/// Never made.
pub struct Shaped(Never);

impl Amx {
    /// None.
    pub fn detect() -> Option<Self> {
        None
    }

    /// There is none to take.
    pub fn unit(self) -> Unit {
        match self.0 {}
    }
}

impl Unit {
    /// There is none to shape.
    pub fn of_rows(&mut self, _: usize) -> &mut Shaped {
        match self.0 {}
    }
}

impl Shaped {
    /// There is none to use.
    pub fn spin(&mut self, _: usize) {
        match self.0 {}
    }

    /// There is none to use.
    pub fn pairs<const TILES: usize>(&mut self, _: [&[u32]; TILES], _: &[Words], _: &mut [[f32; LANES]]) {
        match self.0 {}
    }

    /// There is none to use.
    pub fn scores(&mut self, _: &[u32], _: &[&[Words]], _: &mut [[f32; LANES]], _: usize) {
        match self.0 {}
    }

    /// There is none to use.
    pub fn weigh(&mut self, _: &[u32], _: &[&[Words]], _: usize, _: &mut [[f32; LANES]], _: usize) {
        match self.0 {}
    }
}
