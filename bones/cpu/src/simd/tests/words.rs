//! Words of packed weights and their products.

use super::*;

/// Bytes that differ in every place and take every value as `seed` goes from 0 to 255.
fn pattern(seed: usize) -> Words {
    std::array::from_fn(|i| (i * 37 + seed) as u8)
}

/// Adds up the products of a word's bytes, plainly.
fn dot(words: &Words, lane: usize, x: [i8; 4]) -> i32 {
    (0..4).map(|j| i32::from(words[4 * lane + j]) * i32::from(x[j])).sum()
}

#[test]
fn whole_numbers_keep_their_value() {
    on_every_set!(s => {
        for n in [0, 1, -1, 1 << 23, -(1 << 24), i32::MAX, i32::MIN, 16_777_217] {
            assert_eq!(stored(s, s.floats(s.ints(n))), [n as f32; LANES]);
        }
        let sums = s.add_ints(s.dot_i8(s.ints(5), s.words(&pattern(0)), 1), s.ints(-7));
        assert_eq!(numbers(s, sums), std::array::from_fn(|lane| i32::from(pattern(0)[4 * lane]) - 2));
        let mut pinned = [s.ints(3), sums];
        s.pin(&mut pinned);
        assert_eq!(numbers(s, pinned[0]), [3; LANES]);
        assert_eq!(numbers(s, pinned[1]), numbers(s, sums));
    });
}

#[test]
fn nibbles_of_every_byte_are_taken_apart() {
    on_every_set!(s => {
        for seed in 0..256 {
            let bytes = pattern(seed);
            let words = s.words(&bytes);
            for (nibbles, shift) in [(s.low_nibbles(words), 0), (s.high_nibbles(words), 4)] {
                for place in 0..4 {
                    let got = numbers(s, s.dot_i8(s.ints(0), nibbles, 1 << (8 * place)));
                    assert_eq!(got, std::array::from_fn(|lane| i32::from(bytes[4 * lane + place] >> shift & 15)));
                }
            }
        }
    });
}

#[test]
fn products_of_bytes_are_exact_at_the_extremes() {
    const WEIGHTS: [u8; 5] = [0, 1, 127, 128, 255];
    const INPUTS: [i8; 5] = [-128, -127, -1, 0, 127];
    on_every_set!(s => {
        for code in 0..5_usize.pow(4) {
            let digit = |place: usize| code / 5_usize.pow(place as u32) % 5;
            let x: [i8; 4] = std::array::from_fn(|place| INPUTS[digit(place)]);
            let word = u32::from_le_bytes(x.map(|x| x as u8));
            let weights = words_of::<4>(std::array::from_fn(|lane| {
                std::array::from_fn(|place| WEIGHTS[(digit(place) + lane * (place + 1)) % 5])
            }));
            for start in [0, 1_000_000, -1_000_000] {
                let got = numbers(s, s.dot_i8(s.ints(start), s.words(&weights), word));
                assert_eq!(got, std::array::from_fn(|lane| start + dot(&weights, lane, x)));
            }
        }
        // All four products at their largest: 16-bit sums would saturate.
        for x in [-128, 127] {
            let word = u32::from_le_bytes([x as u8; 4]);
            let got = numbers(s, s.dot_i8(s.ints(0), s.words(&[255; 64]), word));
            assert_eq!(got, [4 * 255 * x; LANES]);
        }
    });
}

#[test]
fn products_of_floats_are_added() {
    on_every_set!(s => {
        let (w, acc) = (ramp(-4.0, 0.5), ramp(100.0, 1.0));
        let words = s.words(&words_of(w.map(f32::to_le_bytes)));
        let got = stored(s, s.dot_f32(s.load(&acc), words, 2.5_f32.to_bits()));
        assert_eq!(got, std::array::from_fn(|i| acc[i] + w[i] * 2.5));
        // A product is not rounded by more than the sum is.
        let (w, x) = (ramp(0.1, 0.37), 1.7_f32);
        let words = s.words(&words_of(w.map(f32::to_le_bytes)));
        for (got, w) in stored(s, s.dot_f32(s.splat(-0.3), words, x.to_bits())).into_iter().zip(w) {
            let want = f64::from(w) * f64::from(x) - f64::from(0.3_f32);
            assert!((f64::from(got) - want).abs() < 1.2e-7 * (f64::from(w * x) + want.abs()));
        }
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(stored(s, s.dot_f32(s.splat(0.0), words, bad.to_bits())).iter().all(|x| !x.is_finite()));
        }
    });
}

#[test]
fn products_of_bfloat16_pairs_are_added() {
    on_every_set!(s => {
        let bits = |x: f32| to_bf16(x).to_le_bytes();
        let word = |pair: [f32; 2]| u32::from(to_bf16(pair[0])) | u32::from(to_bf16(pair[1])) << 16;
        let (low, high, acc) = (ramp(-4.0, 0.5), ramp(3.0, -0.25), ramp(64.0, 1.0));
        let pairs = std::array::from_fn(|i| [bits(low[i])[0], bits(low[i])[1], bits(high[i])[0], bits(high[i])[1]]);
        let words = s.words(&words_of::<4>(pairs));
        for x in [[1.0, 0.0], [0.0, 1.0], [2.0, -0.5], [-1.5, 3.0]] {
            let got = stored(s, s.dot_bf16(s.load(&acc), words, word(x)));
            assert_eq!(got, std::array::from_fn(|i| acc[i] + low[i] * x[0] + high[i] * x[1]));
        }
        // Products that do not fit a float's fraction exactly: rounded once or twice.
        let x = [0.710_937_5, -1.304_687_5];
        for (i, got) in stored(s, s.dot_bf16(s.splat(1e-3), words, word(x))).into_iter().enumerate() {
            let terms = [f64::from(low[i] * x[0]), f64::from(high[i] * x[1]), f64::from(1e-3_f32)];
            let size: f64 = terms.iter().map(|term| term.abs()).sum();
            assert!((f64::from(got) - terms.iter().sum::<f64>()).abs() < 1.2e-7 * size);
        }
        for x in [[f32::NAN, 0.0], [0.0, f32::NAN], [f32::INFINITY, 0.0], [0.0, f32::NEG_INFINITY]] {
            assert!(stored(s, s.dot_bf16(s.splat(0.0), words, word(x))).iter().all(|x| !x.is_finite()));
        }
    });
}
