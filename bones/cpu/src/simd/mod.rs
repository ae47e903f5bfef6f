//! Sixteen floats at a time, for whichever instruction set the machine has.
//!
//! A kernel is written once over [`Simd`] and compiled for each set. The value of a [`Simd`] type is a proof that its
//! instructions exist: only detection makes one. Lanes are added in the same order by every set, and products of bytes are
//! exact; still sets may differ in the last bit: the portable one rounds products before it adds them, and the processor's
//! own product of bfloat16 pairs rounds once where the others round twice.
// What is not inlined into a function with the target features cannot use them.
#![allow(clippy::inline_always)]

#[cfg_attr(not(bones_avx512), path = "no_amx.rs")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(bones_avx512)]
mod avx512;
mod math;
mod portable;

pub use amx::{Amx, Shaped, Unit};
pub use math::{exp, sigmoid, tanh};
pub use portable::{f16_to_f32, to_bf16};

/// Names the instruction set to use: `amx` (which is `avx512` and a matrix unit), `avx512`, `avx2` or `portable`.
pub const ISA_VARIABLE: &str = "BONES_ISA";

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Words of a row of a matrix unit's whole tile.
pub const WHOLE: usize = 16;
/// Sums that a matrix unit's product of bfloat16 keeps in flight.
pub const CHAINS: usize = 2;

/// A word of four bytes for each lane, as packed weights and the cache store them: one f32, two bf16 or four bytes.
pub type Words = [u8; 4 * LANES];

/// Why an instruction set was refused.
#[derive(Debug, thiserror::Error)]
pub enum IsaError {
    /// Not one of the names.
    #[error("instruction set must be amx, avx512, avx2 or portable")]
    Unknown,
    /// This machine, or the compiler that built this library, lacks it.
    #[error("instruction set {0} is not available here")]
    Unavailable(&'static str),
}

/// Work on vectors. Implement `run` as `#[inline(always)]`.
pub trait Kernel {
    /// What it gives.
    type Output;
    /// Does it.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Vectors of sixteen floats. Sums over lanes add halves: i to i + 8, then + 4, + 2, + 1.
pub trait Simd: Copy {
    /// A vector.
    type V: Copy;
    /// Runs a kernel compiled for this set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;
    /// The matrix unit, where kernels shall use it.
    fn matrix_unit(self) -> Option<Amx> {
        None
    }
    /// The same number in each lane.
    fn splat(self, x: f32) -> Self::V;
    /// Reads.
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Asks for what lies `ahead` bytes beyond, which may be anything.
    fn prefetch<T>(self, here: &T, ahead: usize);
    /// Writes.
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// a where a > b, otherwise b: a NaN in b passes.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// a where a < b, otherwise b.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// value where x > bound or x is NaN, otherwise 0.
    fn above(self, x: Self::V, bound: Self::V, value: Self::V) -> Self::V;
    /// 2ⁿ for whole n of −126 to 127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Sum of the lanes.
    fn sum(self, v: Self::V) -> f32;
    /// Largest lane.
    fn highest(self, v: Self::V) -> f32;
    /// Largest magnitude in two vectors; NaN where there is one.
    fn magnitude(self, a: Self::V, b: Self::V) -> f32;
    /// From 16-bit floats.
    fn widen_f16(self, x: &[u16; LANES]) -> Self::V;
    /// Rounded to bfloat16, ties to even; NaN stays NaN, a denormal may become zero.
    fn narrow_bf16(self, v: Self::V) -> [u16; LANES];
    /// Rounded to whole numbers, ties to even; lanes are within ±127.
    fn narrow_i8(self, v: Self::V) -> [i8; LANES];

    /// Sixteen words.
    type W: Copy;
    /// Sixteen whole numbers.
    type I: Copy;
    /// Reads.
    fn words(self, x: &Words) -> Self::W;
    /// The lower four bits of each byte.
    fn low_nibbles(self, w: Self::W) -> Self::W;
    /// The upper four bits of each byte.
    fn high_nibbles(self, w: Self::W) -> Self::W;
    /// The same number in each lane.
    fn ints(self, x: i32) -> Self::I;
    /// a + b
    fn add_ints(self, a: Self::I, b: Self::I) -> Self::I;
    /// Does nothing, but the compiler may not move what computes these numbers past it: it would line up the products
    /// of one sum behind each other, each waiting for the last.
    fn pin<const N: usize>(self, v: &mut [Self::I; N]);
    /// As floats.
    fn floats(self, v: Self::I) -> Self::V;
    /// acc + w · x, a word being one float.
    fn dot_f32(self, acc: Self::V, w: Self::W, x: u32) -> Self::V;
    /// acc + w · x, a word being two bfloat16.
    fn dot_bf16(self, acc: Self::V, w: Self::W, x: u32) -> Self::V;
    /// acc + w · x, a word of w being four unsigned bytes and x four signed ones. Exact.
    fn dot_i8(self, acc: Self::I, w: Self::W, x: u32) -> Self::I;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy)]
pub struct Isa(Set);

#[derive(Clone, Copy)]
enum Set {
    Portable(portable::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(bones_avx512)]
    Avx512(avx512::Avx512),
}

impl Isa {
    /// Every set that this machine has, the best first.
    pub fn available() -> Vec<Self> {
        ["amx", "avx512", "avx2", "portable"].into_iter().filter_map(|name| Self::named(name).ok()).collect()
    }

    /// A set by name.
    pub fn named(name: &str) -> Result<Self, IsaError> {
        let (name, set) = match name {
            "portable" => ("portable", Some(Set::Portable(portable::Portable))),
            #[cfg(target_arch = "x86_64")]
            "avx2" => ("avx2", avx2::Avx2::detect().map(Set::Avx2)),
            #[cfg(bones_avx512)]
            "avx512" => ("avx512", avx512::Avx512::detect().map(Set::Avx512)),
            #[cfg(bones_avx512)]
            "amx" => ("amx", avx512::Avx512::detect_with_matrix_unit().map(Set::Avx512)),
            #[cfg(not(target_arch = "x86_64"))]
            "avx2" => ("avx2", None),
            #[cfg(not(bones_avx512))]
            "avx512" => ("avx512", None),
            #[cfg(not(bones_avx512))]
            "amx" => ("amx", None),
            _ => return Err(IsaError::Unknown),
        };
        set.map(Self).ok_or(IsaError::Unavailable(name))
    }

    /// The set that the environment names, else the best.
    pub fn from_environment() -> Result<Self, IsaError> {
        match std::env::var_os(ISA_VARIABLE) {
            Some(name) => Self::named(name.to_str().ok_or(IsaError::Unknown)?),
            None => Ok(Self::available()[0]),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(bones_avx512)]
            Set::Avx512(_) if self.has_matrix_unit() => "amx",
            #[cfg(bones_avx512)]
            Set::Avx512(_) => "avx512",
        }
    }

    /// Whether kernels use a matrix unit.
    pub fn has_matrix_unit(self) -> bool {
        match self.0 {
            #[cfg(bones_avx512)]
            Set::Avx512(set) => set.matrix_unit().is_some(),
            _ => false,
        }
    }

    /// Runs a kernel.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Set::Portable(set) => set.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.run(kernel),
            #[cfg(bones_avx512)]
            Set::Avx512(set) => set.run(kernel),
        }
    }
}

#[cfg(test)]
mod tests;
