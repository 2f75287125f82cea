//! Products whose intermediate values need more than 128 bits.

/// Returns `a * b * slope`, divided by the divisors and by `2^shift`, rounded up. Returns `u128::MAX / 2` if the result
/// is more.
///
/// No divisor is 0, and `shift` is below 128.
pub(super) fn mul_div_ceil(a: u128, b: u128, slope: u64, divisors: &[u64], shift: u32) -> u128 {
    let mut limbs = [0_u64; 5];
    for (i, x) in words(a).into_iter().enumerate() {
        let mut carry = 0;
        for (j, y) in words(b).into_iter().enumerate() {
            // This sum does not overflow, because (2^64 - 1)^2 + 2 (2^64 - 1) is 2^128 - 1.
            let sum = x * y + u128::from(limbs[i + j]) + carry;
            (limbs[i + j], carry) = (sum as u64, sum >> 64);
        }
        limbs[i + 2] = carry as u64;
    }
    let mut carry = 0;
    for limb in &mut limbs {
        let sum = u128::from(*limb) * u128::from(slope) + carry;
        (*limb, carry) = (sum as u64, sum >> 64);
    }
    let mut cut = false;
    for divisor in divisors.iter().map(|divisor| u128::from(*divisor)) {
        let mut rest = 0_u128;
        for limb in limbs.iter_mut().rev() {
            let part = (rest << 64) | u128::from(*limb);
            *limb = (part / divisor) as u64;
            rest = part % divisor;
        }
        cut |= rest > 0;
    }
    shifted(limbs, shift, cut)
}

/// Returns `whole * part / of`, rounded up. `part` is at most `of`, and `of` is above 0 and below 2^127.
pub(super) fn scale_ceil(whole: u128, part: u128, of: u128) -> u128 {
    let (mut quotient, mut rest) = (0, 0);
    // The loop is a long multiplication and a long division at once, one bit of `whole` at a time. `rest` stays below
    // `of`.
    for bit in (0..u128::BITS).rev() {
        quotient *= 2;
        for summand in [rest, part * (whole >> bit & 1)] {
            rest += summand;
            if rest >= of {
                rest -= of;
                quotient += 1;
            }
        }
    }
    quotient + u128::from(rest > 0)
}

/// Returns the number with these `limbs`, lowest first, shifted to the right by `shift` bits. The result is rounded up
/// if bits are cut off, or if `before` is true, which means that bits were cut off earlier. Returns `u128::MAX / 2` if
/// the result is more.
fn shifted(limbs: [u64; 5], shift: u32, before: bool) -> u128 {
    const MAX: u128 = u128::MAX / 2;
    let (whole, bits) = ((shift / 64) as usize, shift % 64);
    let limb = |at: usize| u128::from(limbs.get(at).copied().unwrap_or(0));
    let word = |at: usize| ((limb(at) | (limb(at + 1) << 64)) >> bits) as u64;
    let cut = limbs[..whole].iter().any(|limb| *limb > 0) || limb(whole) & ((1 << bits) - 1) > 0;
    if (whole + 2..5).any(|at| word(at) > 0) {
        return MAX;
    }
    let number = u128::from(word(whole)) | (u128::from(word(whole + 1)) << 64);
    number.saturating_add(u128::from(cut || before)).min(MAX)
}

fn words(number: u128) -> [u128; 2] {
    [number & u128::from(u64::MAX), number >> 64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_are_those_of_plain_arithmetic() {
        for a in [0, 1, 7, 1 << 20, (1 << 40) - 1] {
            for b in [0, 3, 1 << 33, (1 << 41) + 9] {
                for slope in [0, 1, 1_000_003] {
                    for divisor in [1, 3, 1 << 30] {
                        for shift in [0, 1, 17] {
                            let exact = (a * b * u128::from(slope)).div_ceil(u128::from(divisor) << shift);
                            assert_eq!(mul_div_ceil(a, b, slope, &[divisor], shift), exact);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_part_of_the_whole() {
        for (whole, part, of, exact) in [
            (0, 1, 2, 0),
            (10, 0, 3, 0),
            (10, 3, 3, 10),
            (10, 1, 3, 4),
            (10, 2, 3, 7),
            (1 << 100, 1 << 96, 1 << 97, 1 << 99),
            ((1 << 100) + 1, 1 << 96, 1 << 97, (1 << 99) + 1),
            (u128::MAX, (1 << 127) - 2, (1 << 127) - 1, u128::MAX - 2),
        ] {
            assert_eq!(scale_ceil(whole, part, of), exact, "{whole} * {part} / {of}");
        }
    }

    #[test]
    fn large_products_are_right_too() {
        // 2^100 * 2^90 * 2^20 / (2^50 * 2^60) = 2^100
        assert_eq!(mul_div_ceil(1 << 100, 1 << 90, 1 << 20, &[1 << 50], 60), 1 << 100);
        // Anything that is cut off, by a division or by the shift, rounds up.
        assert_eq!(mul_div_ceil((1 << 100) + 1, 1 << 90, 1 << 20, &[1 << 50], 60), (1 << 100) + 1);
        assert_eq!(mul_div_ceil(1 << 100, 1 << 90, 1 << 20, &[(1 << 50) + 1], 60) >> 60, (1 << 40) - 1);
        assert_eq!(mul_div_ceil(u128::MAX, u128::MAX, u64::MAX, &[1], 0), u128::MAX / 2);
        assert_eq!(mul_div_ceil(u128::MAX, 1, 1, &[u64::MAX], 64), 2);
    }
}
