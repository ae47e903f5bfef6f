//! Bones on a CPU.
//!
//! [`backend::Cpu`] implements the model crate's operations over mapped weights ([`regions`]), a paged cache
//! ([`cache`]), vector kernels for whichever instruction set is there ([`simd`], [`kernels`]) and a pool of threads
//! ([`pool`]). Every sum runs in one order, whatever the number of rows, chunks or threads.

pub mod attention;
pub mod backend;
pub mod cache;
pub mod grid;
pub mod kernels;
pub mod limits;
pub mod linear;
pub mod lines;
pub mod matrix;
pub mod operand;
pub mod pool;
pub mod regions;
pub mod simd;
pub mod step;
mod sync;
pub mod tensor;
