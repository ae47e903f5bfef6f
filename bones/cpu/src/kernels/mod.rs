//! What the operations compute, written once over [`crate::simd::Simd`].
// What is not inlined into a function with the target features cannot use them.
#![allow(clippy::inline_always)]
// Loops count through registers; iterators would be closures, of which the same may be said.
#![allow(clippy::needless_range_loop)]

mod attention;
mod attention_state;
mod attention_tiles;
mod embed;
mod linear;
mod prepare;
mod product;
mod rows;
mod stored;
mod tiles;

pub use attention::{CHUNK, ROWS, SeeChunk};
pub use attention_state::{Merge, State, state_len};
pub use attention_tiles::{most_rows, tile_height};
pub use embed::embed;
pub use linear::{Finish, LinearTile, Part};
pub use prepare::PrepareTile;
pub use rows::{AddNormed, Gate, SoftCap, TurnHeads};

#[cfg(test)]
mod tests;
