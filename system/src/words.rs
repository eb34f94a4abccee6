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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_to_their_low_bits() {
        let value = 0x0123_4567_89ab_cdef;
        assert_eq!((low32(value), low16(value), low8(value)), (0x89ab_cdef, 0xcdef, 0xef));
        assert_eq!(native(u64::MAX), usize::MAX);
    }
}
