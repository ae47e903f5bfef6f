//! Where nothing can speak to a matrix unit, there is none.

use super::{LANES, Words};

/// Words of a row of a whole tile.
pub const WHOLE: usize = 16;
/// Sums that a product of bfloat16 keeps in flight.
pub const CHAINS: usize = 2;

/// Never made.
#[derive(Clone, Copy)]
pub enum Amx {}
/// Never made.
pub enum Unit {}
/// Never made.
pub enum Shaped {}

impl Amx {
    /// None.
    pub fn detect() -> Option<Self> {
        None
    }

    /// There is none to take.
    pub fn unit(self) -> Unit {
        match self {}
    }
}

impl Unit {
    /// There is none to shape.
    pub fn of_rows(&mut self, _: usize) -> &mut Shaped {
        match *self {}
    }
}

#[allow(clippy::unused_self)]
impl Shaped {
    /// There is none to use.
    pub fn spin(&mut self, _: usize) {
        match *self {}
    }

    /// There is none to use.
    pub fn pairs<const TILES: usize>(&mut self, _: [&[u32]; TILES], _: &[Words], _: &mut [[f32; LANES]]) {
        match *self {}
    }

    /// There is none to use.
    pub fn scores(&mut self, _: &[u32], _: &[&[Words]], _: &mut [[f32; LANES]], _: usize) {
        match *self {}
    }

    /// There is none to use.
    pub fn weigh(&mut self, _: &[u32], _: &[&[Words]], _: usize, _: &mut [[f32; LANES]], _: usize) {
        match *self {}
    }
}
