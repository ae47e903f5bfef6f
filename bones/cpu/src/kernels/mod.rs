//! What the operations compute, written once over [`crate::simd::Simd`].
// What is not inlined into a function with the target features cannot use them.
#![allow(clippy::inline_always)]

mod attention;
mod linear;
mod rows;
mod stored;

pub use attention::AttendTile;
pub use linear::LinearTile;
pub use rows::{Gate, NormRow};
pub use stored::WidenRow;

#[cfg(test)]
mod tests;
