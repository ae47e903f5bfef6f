//! Every operation of every instruction set against plain arithmetic.

use super::*;

/// Runs a block on every set that this machine has.
macro_rules! on_every_set {
    ($s:ident => $body:expr) => {
        for isa in Isa::available() {
            struct Check;
            impl Kernel for Check {
                type Output = ();
                #[inline(always)]
                fn run<S: Simd>(self, $s: S) {
                    $body
                }
            }
            isa.run(Check);
        }
    };
}

mod floats;
mod functions;
mod narrowing;
mod words;

fn stored<S: Simd>(s: S, v: S::V) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    s.store(v, &mut out);
    out
}

/// The numbers of sixteen lanes, by way of floats: below 2²⁴ nothing is lost.
fn numbers<S: Simd>(s: S, v: S::I) -> [i32; LANES] {
    stored(s, s.floats(v)).map(|x| x as i32)
}

fn ramp(from: f32, step: f32) -> [f32; LANES] {
    std::array::from_fn(|i| from + step * i as f32)
}

/// Words of two bytes or more, lane after lane.
fn words_of<const N: usize>(lanes: [[u8; N]; LANES]) -> Words {
    std::array::from_fn(|i| lanes[i / N][i % N])
}

#[test]
fn unknown_sets_are_refused() {
    for name in ["avx9000", "", "AVX2", "portable "] {
        assert!(matches!(Isa::named(name), Err(IsaError::Unknown)), "{name}");
    }
    assert_eq!(Isa::named("portable").unwrap().name(), "portable");
}

#[test]
fn the_best_set_comes_first_and_the_portable_one_last() {
    let names: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let order = ["amx", "avx512", "avx2", "portable"];
    let places: Vec<_> = names.iter().map(|name| order.iter().position(|known| known == name).unwrap()).collect();
    assert!(places.is_sorted());
    assert_eq!(names.last(), Some(&"portable"));
}

#[test]
fn a_thread_lends_its_tile_registers_to_one_kernel_at_a_time() {
    let Some(amx) = crate::simd::Amx::detect() else { return };
    let taken = std::panic::catch_unwind(|| {
        let _first = amx.unit();
        let _second = amx.unit();
    });
    assert!(taken.is_err());
    // Given back, also by what panicked.
    drop(amx.unit());
    for rows in [0, 17] {
        assert!(std::panic::catch_unwind(|| amx.unit().of_rows(rows).spin(1)).is_err());
    }
}
