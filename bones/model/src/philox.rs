//! Philox 4×32-10: a counter-based generator, so that a draw depends on what it is for and on nothing drawn before.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds over one counter.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

/// The uniform number in [0, 1) that belongs to one token of one choice of one seed; 53 bits.
pub fn uniform(seed: u64, choice_index: u32, position: u32) -> f64 {
    let words = philox4x32([position, choice_index, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = (u64::from(words[1]) << 32 | u64::from(words[0])) >> 11;
    bits as f64 * (1.0 / (1_u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox4x32(pi, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let base = uniform(7, 0, 5);
        for other in [uniform(8, 0, 5), uniform(7 + (1 << 32), 0, 5), uniform(7, 1, 5), uniform(7, 0, 6)] {
            assert_ne!(base.to_bits(), other.to_bits());
        }
    }

    #[test]
    fn draws_are_even() {
        let mut bins = [0; 10];
        for position in 0..10_000 {
            bins[(uniform(1, 0, position) * 10.0) as usize] += 1;
        }
        assert!(bins.iter().all(|&n| (880..1120).contains(&n)), "{bins:?}");
    }
}
