//! Words cut on purpose, and sizes of this machine.

const _: () = assert!(usize::BITS == u64::BITS, "OxSHMEM runs on machines of 64 bits");

/// Returns bits 31:0 of `value`.
#[must_use]
#[inline(always)]
pub const fn low32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

/// Returns bits 15:0 of `value`: of a count, what the HCA's counters of 16 bits show.
#[must_use]
#[inline(always)]
pub const fn low16(value: u64) -> u16 {
    (value & 0xffff) as u16
}

/// Returns bits 7:0 of `value`.
#[must_use]
#[inline(always)]
pub const fn low8(value: u64) -> u8 {
    (value & 0xff) as u8
}

/// Returns a number of 64 bits as a size, an index or an address of this machine, without loss.
#[must_use]
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "both have 64 bits, as the assertion above says")]
pub const fn native(value: u64) -> usize {
    value as usize
}

/// Returns a number of objects, or an index among them, of which there are never 2^32.
#[must_use]
#[inline(always)]
pub fn count32(value: usize) -> u32 {
    debug_assert!(u32::try_from(value).is_ok(), "{value} objects of a kind that 32 bits count");
    low32(value as u64)
}

/// Returns a constant in 32 bits. The compiler, which is to evaluate this, refuses one that does
/// not fit.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "asserted")]
pub const fn const32(value: usize) -> u32 {
    assert!(value <= u32::MAX as usize, "the constant does not fit into 32 bits");
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_to_their_low_bits() {
        let value = 0x0123_4567_89ab_cdef;
        assert_eq!((low32(value), low16(value), low8(value)), (0x89ab_cdef, 0xcdef, 0xef));
        assert_eq!(native(u64::MAX), usize::MAX);
        assert_eq!((count32(7), const { const32(u32::MAX as usize) }), (7, u32::MAX));
    }
}
