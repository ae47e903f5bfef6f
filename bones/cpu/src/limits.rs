//! What the machine can do at most, for benchmarks to be held against: how fast threads read memory, and how fast they
//! multiply when the operands never leave the registers.
//!
//! Both take the best of many passes: a limit is what the machine gives when nobody disturbs it.
// Half of the intrinsics that there are.
#![allow(clippy::wildcard_imports)]
// AVX-512 is built only by compilers that have its instructions: see build.rs.
#![allow(clippy::incompatible_msrv)]

use crate::simd::Amx;
use memmap2::MmapMut;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// How long passes are repeated.
const PATIENCE: Duration = Duration::from_millis(600);
const FEWEST_PASSES: usize = 9;
const MOST_PASSES: usize = 400;
/// Rounds of products in one pass: about a millisecond, which a busy machine grants undisturbed now and then.
const ROUNDS: usize = 1 << 18;
const LINE: usize = 64;
/// Cache lines that are read together.
const GROUP: usize = 8 * LINE;
/// How far ahead of reading a line is asked for.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 4096;

/// The arithmetic of matrix products, by the type of what is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fused multiply-add.
    F32,
    /// Pairs of bf16 summed in f32, on the matrix unit where there is one; f32 where the processor cannot.
    Bf16,
    /// Fours of bytes summed in 32 bits, on the vector unit: see `kernels::tiles`.
    Int8,
}

impl Arithmetic {
    /// By name: `f32`, `bf16` or `int8`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "f32" => Some(Self::F32),
            "bf16" => Some(Self::Bf16),
            "int8" => Some(Self::Int8),
            _ => None,
        }
    }
}

/// Bytes a second that `threads` threads read together, each its own part of `bytes` of memory.
pub fn read_bandwidth(bytes: usize, threads: usize) -> std::io::Result<f64> {
    let threads = threads.max(1);
    let part = bytes.div_ceil(threads).max(1).next_multiple_of(GROUP);
    let mut memory = MmapMut::map_anon(part * threads)?;
    // A hint: without large pages the sweep is a little slower, as it is for weights in a file.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory.fill(1);
    let parts: Vec<&[u8]> = memory.chunks_exact(part).collect();
    let best = fastest_pass(threads, |thread| {
        sweep(parts[thread]);
    });
    Ok((part * threads) as f64 / best.as_secs_f64())
}

/// Operations a second (a multiplication and an addition are two) of `threads` threads together.
pub fn gemm_peak(kind: Arithmetic, threads: usize) -> f64 {
    let threads = threads.max(1);
    let multiplier = multiplier(kind);
    let best = fastest_pass(threads, |_| (multiplier.run)(ROUNDS));
    (threads * ROUNDS * multiplier.operations) as f64 / best.as_secs_f64()
}

/// All threads do the work at once, again and again; the slowest thread's time in the fastest pass.
fn fastest_pass(threads: usize, work: impl Fn(usize) + Sync) -> Duration {
    let timed = |thread: usize| {
        let begin = Instant::now();
        work(thread);
        begin.elapsed()
    };
    let once = timed(0).max(Duration::from_micros(1));
    let passes = ((PATIENCE.as_secs_f64() / once.as_secs_f64()) as usize).clamp(FEWEST_PASSES, MOST_PASSES);
    let start = Barrier::new(threads);
    let run = |thread: usize| -> Vec<Duration> {
        let pass = |_| {
            start.wait();
            timed(thread)
        };
        (0..passes).map(pass).collect()
    };
    let run = &run;
    let times: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let own = run(0);
        others.into_iter().map(|other| other.join().expect("the work does not panic")).chain([own]).collect()
    });
    let slowest = (0..passes).map(|pass| times.iter().map(|times| times[pass]).max().unwrap_or_default());
    slowest.min().unwrap_or_default()
}

/// Reads every line once.
fn sweep(memory: &[u8]) {
    #[cfg(bones_avx512)]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512.
        return unsafe { sweep_512(memory) };
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { sweep_256(memory) };
    }
    let mut sums = [0_u64; GROUP / 8];
    for group in memory.chunks_exact(GROUP) {
        for (sum, word) in sums.iter_mut().zip(group.chunks_exact(8)) {
            *sum ^= u64::from_ne_bytes(word.try_into().expect("chunks of eight"));
        }
    }
    black_box(sums);
}

/// A sweep with vectors of one kind, a group of lines at a time.
#[cfg(target_arch = "x86_64")]
macro_rules! sweep {
    ($name:ident, $features:literal, $zero:ident, $load:ident, $xor:ident, $vectors:literal) => {
        #[target_feature(enable = $features)]
        fn $name(memory: &[u8]) {
            let mut sums = [$zero(); $vectors];
            for group in memory.chunks_exact(GROUP) {
                for line in group.chunks_exact(LINE) {
                    // A hint: nothing is read beyond the end.
                    _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast());
                }
                for (sum, vector) in sums.iter_mut().zip(group.chunks_exact(GROUP / $vectors)) {
                    // SAFETY: the chunk is as long as a vector; the load needs no alignment.
                    *sum = $xor(*sum, unsafe { $load(vector.as_ptr().cast()) });
                }
            }
            black_box(sums);
        }
    };
}

#[cfg(bones_avx512)]
sweep!(sweep_512, "avx512f", _mm512_setzero_si512, _mm512_loadu_si512, _mm512_xor_si512, 8);
#[cfg(target_arch = "x86_64")]
sweep!(sweep_256, "avx2", _mm256_setzero_si256, _mm256_loadu_si256, _mm256_xor_si256, 16);

/// Rounds of products, and the operations of one round.
struct Multiplier {
    run: fn(usize),
    operations: usize,
}

fn multiplier(kind: Arithmetic) -> Multiplier {
    let of = |run: fn(usize), lanes: usize| Multiplier { run, operations: 2 * lanes };
    if kind == Arithmetic::Bf16 && Amx::detect().is_some() {
        return of(tiles, TILE_LANES);
    }
    #[cfg(bones_avx512)]
    if is_x86_feature_detected!("avx512f") {
        match kind {
            Arithmetic::Bf16 if is_x86_feature_detected!("avx512bf16") => return of(bf16_512, 32 * 16),
            Arithmetic::Int8 if is_x86_feature_detected!("avx512vnni") => return of(int8_512, 64 * 16),
            Arithmetic::F32 | Arithmetic::Bf16 => return of(f32_512, 16 * 16),
            Arithmetic::Int8 => {}
        }
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        match kind {
            Arithmetic::F32 | Arithmetic::Bf16 => return of(f32_256, 8 * 12),
            Arithmetic::Int8 => return of(int8_256, 32 * 12),
        }
    }
    let _ = kind;
    of(f32_portable, 16)
}

/// Products of a round on the matrix unit: four tiles of sixteen rows, sixteen lanes and sixteen pairs.
const TILE_LANES: usize = 4 * 16 * 16 * 32;

fn tiles(rounds: usize) {
    if let Some(amx) = Amx::detect() {
        amx.unit().of_rows(16).spin(rounds);
    }
}

fn f32_portable(rounds: usize) {
    let (a, b) = black_box((1.0_f32, 1.0_f32));
    let mut sums = [0.0_f32; 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum += a * b;
        }
        sums = black_box(sums);
    }
}

/// A function of a number of rounds, each a step of all chains: more than latency times multipliers, few enough for the
/// registers.
#[cfg(target_arch = "x86_64")]
macro_rules! multiply {
    ($name:ident, $features:literal, $chains:literal, $zero:ident, $one:expr, |$sum:ident, $a:ident, $b:ident| $step:expr) => {
        fn $name(rounds: usize) {
            #[target_feature(enable = $features)]
            fn inner(rounds: usize) {
                let ($a, $b) = black_box(($one, $one));
                let mut sums = [$zero(); $chains];
                for _ in 0..rounds {
                    for $sum in &mut sums {
                        *$sum = $step;
                    }
                }
                black_box(sums);
            }
            // SAFETY: `multiplier` hands this out only where the processor has the features.
            unsafe { inner(rounds) }
        }
    };
}

#[cfg(bones_avx512)]
multiply!(f32_512, "avx512f", 16, _mm512_setzero_ps, _mm512_set1_ps(1.0), |sum, a, b| _mm512_fmadd_ps(a, b, *sum));

#[cfg(bones_avx512)]
multiply!(bf16_512, "avx512f,avx512bf16", 16, _mm512_setzero_ps, bf16_ones(), |sum, a, b| {
    _mm512_dpbf16_ps(*sum, a, b)
});

#[cfg(bones_avx512)]
#[target_feature(enable = "avx512f")]
fn bf16_ones() -> __m512bh {
    // SAFETY: both are 64 bytes for which every pattern is a value.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(0x3f80_3f80)) }
}

#[cfg(bones_avx512)]
multiply!(int8_512, "avx512f,avx512vnni", 16, _mm512_setzero_si512, _mm512_set1_epi32(0x0101_0101), |sum, a, b| {
    _mm512_dpbusd_epi32(*sum, a, b)
});

#[cfg(target_arch = "x86_64")]
multiply!(f32_256, "avx2,fma", 12, _mm256_setzero_ps, _mm256_set1_ps(1.0), |sum, a, b| _mm256_fmadd_ps(a, b, *sum));

#[cfg(target_arch = "x86_64")]
multiply!(int8_256, "avx2", 12, _mm256_setzero_si256, _mm256_set1_epi8(1), |sum, a, b| {
    let mut fresh = a;
    // SAFETY: no instruction at all; it hides that the product is the same every time.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) fresh, options(nomem, nostack, preserves_flags)) };
    let pairs = _mm256_maddubs_epi16(fresh, b);
    _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_positive_for_odd_sizes_and_every_arithmetic() {
        assert!(read_bandwidth(0, 0).unwrap() > 0.0);
        assert!(read_bandwidth(12_345, 3).unwrap() > 0.0);
        for name in ["f32", "bf16", "int8"] {
            assert!(gemm_peak(Arithmetic::named(name).unwrap(), 1) > 0.0);
        }
        assert_eq!(Arithmetic::named("f64"), None);
    }

    #[test]
    fn fallbacks_run() {
        f32_portable(3);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            f32_256(3);
            int8_256(3);
            // SAFETY: AVX2 was detected.
            unsafe { sweep_256(&[1; 3 * GROUP + 1]) };
        }
    }
}
