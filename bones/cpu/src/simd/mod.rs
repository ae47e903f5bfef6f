//! Sixteen floats at a time, for whichever instruction set the machine has.
//!
//! A kernel is written once over [`Simd`] and compiled for each set. The value of a [`Simd`] type is a proof that its
//! instructions exist: only detection makes one. Every set adds the lanes of a vector in the same order, so AVX2 and
//! AVX-512 agree bit for bit; the portable one rounds products before it adds them and may differ.
// What is not inlined into a function with the target features cannot use them.
#![allow(clippy::inline_always)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(bones_avx512)]
mod avx512;
mod math;
mod portable;

pub use math::{exp, sigmoid};

/// Names the instruction set to use: `avx512`, `avx2` or `portable`.
pub const ISA_VARIABLE: &str = "BONES_ISA";

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Two vectors: the unit in which rows are multiplied, and the block of quantised rows.
pub type Pair<E> = [[E; LANES]; 2];

/// Why an instruction set was refused.
#[derive(Debug, thiserror::Error)]
pub enum IsaError {
    /// Not one of the names.
    #[error("instruction set must be avx512, avx2 or portable")]
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
    /// The same number in each lane.
    fn splat(self, x: f32) -> Self::V;
    /// Reads.
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Asks for a cache line that will be read.
    fn prefetch(self, line: &[u8; 64]);
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
    /// 2ⁿ for whole n of −126 to 127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Sum of the lanes.
    fn sum(self, v: Self::V) -> f32;
    /// Sums of four vectors' lanes.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// Largest lane.
    fn highest(self, v: Self::V) -> f32;
    /// From upper halves of floats.
    fn widen_bf16(self, x: &[u16; LANES]) -> Self::V;
    /// From 16-bit floats.
    fn widen_f16(self, x: &[u16; LANES]) -> Self::V;
    /// From signed bytes.
    fn widen_i8(self, x: &[i8; LANES]) -> Self::V;
    /// scale · q + base of 32 nibbles: the low ones, then the high ones.
    fn nibbles(self, x: &[u8; LANES], scale: f32, base: f32) -> [Self::V; 2];
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
        ["avx512", "avx2", "portable"].into_iter().filter_map(|name| Self::named(name).ok()).collect()
    }

    /// A set by name.
    pub fn named(name: &str) -> Result<Self, IsaError> {
        let (name, set) = match name {
            "portable" => ("portable", Some(Set::Portable(portable::Portable))),
            #[cfg(target_arch = "x86_64")]
            "avx2" => ("avx2", avx2::Avx2::detect().map(Set::Avx2)),
            #[cfg(bones_avx512)]
            "avx512" => ("avx512", avx512::Avx512::detect().map(Set::Avx512)),
            #[cfg(not(target_arch = "x86_64"))]
            "avx2" => ("avx2", None),
            #[cfg(not(bones_avx512))]
            "avx512" => ("avx512", None),
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
            Set::Avx512(_) => "avx512",
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

/// An element type of weights or of the cache.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Reads sixteen of them.
    fn widen<S: Simd>(s: S, x: &[Self; LANES]) -> S::V;
}

impl Element for f32 {
    #[inline(always)]
    fn widen<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.load(x)
    }
}

/// bfloat16.
impl Element for u16 {
    #[inline(always)]
    fn widen<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.widen_bf16(x)
    }
}

#[cfg(test)]
mod tests;
