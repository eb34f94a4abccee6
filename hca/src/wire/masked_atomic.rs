//! Segments of the masked atomics, 4 and 8 bytes wide.
//!
//! The 8-byte compare and swap has 32 bytes (`struct mlx5_wqe_masked_atomic_seg` in rdma-core's
//! wqe.h): swap, compare, swap mask, compare mask. All others have 16. The width is in the control
//! segment's opcode modifier: bit 3 marks an extended atomic, the low bits are log2(bytes) - 2 (as
//! UCX forms it: `UCT_IB_MLX5_OPMOD_EXT_ATOMIC` in src/uct/ib/mlx5).

use super::{Error, Result, check_len, check_zero, get32, get64, put32, put64};
use core::fmt;

/// The opcode modifier of a 4-byte masked atomic.
pub const OPMOD_4_BYTES: u8 = 0x08;
/// The opcode modifier of an 8-byte masked atomic.
pub const OPMOD_8_BYTES: u8 = 0x09;

/// The length of all segments but [`CS_8_LEN`], in bytes.
pub const LEN: usize = 16;
/// The length of the 8-byte compare and swap, in bytes.
pub const CS_8_LEN: usize = 32;

mod fa4 {
    pub const ADD: usize = 0;
    pub const BOUNDARY: usize = 4;
    pub const RESERVED: usize = 8;
}

mod cs4 {
    pub const SWAP: usize = 0;
    pub const COMPARE: usize = 4;
    pub const SWAP_MASK: usize = 8;
    pub const COMPARE_MASK: usize = 12;
}

mod fa8 {
    pub const ADD: usize = 0;
    pub const BOUNDARY: usize = 8;
}

mod cs8 {
    pub const SWAP: usize = 0;
    pub const COMPARE: usize = 8;
    pub const SWAP_MASK: usize = 16;
    pub const COMPARE_MASK: usize = 24;
}

/// A decoded masked atomic.
///
/// `FetchAdd`: `*remote += add`, where a carry does not leave a bit that is set in `boundary`. So
/// `boundary` 0 is an ordinary add and all ones is exclusive or.
///
/// `CompareSwap`: `if (*remote ^ compare) & compare_mask == 0 { *remote = *remote & !swap_mask |
/// swap & swap_mask }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr {
    /// 4-byte fetch and add.
    FetchAdd4 {
        /// The addend.
        add: u32,
        /// Bits that no carry leaves.
        boundary: u32,
    },
    /// 8-byte fetch and add.
    FetchAdd8 {
        /// The addend.
        add: u64,
        /// Bits that no carry leaves.
        boundary: u64,
    },
    /// 4-byte compare and swap.
    CompareSwap4 {
        /// New value of the bits in `swap_mask`.
        swap: u32,
        /// Expected value of the bits in `compare_mask`.
        compare: u32,
        /// Bits to replace.
        swap_mask: u32,
        /// Bits to compare.
        compare_mask: u32,
    },
    /// 8-byte compare and swap.
    CompareSwap8 {
        /// New value of the bits in `swap_mask`.
        swap: u64,
        /// Expected value of the bits in `compare_mask`.
        compare: u64,
        /// Bits to replace.
        swap_mask: u64,
        /// Bits to compare.
        compare_mask: u64,
    },
}

impl Repr {
    /// Decodes the segment of a MASKED_FA whose control segment has this `opmod`.
    pub fn parse_fetch_add(opmod: u8, bytes: &[u8]) -> Result<Self> {
        check_len("masked_atomic", bytes.len(), LEN)?;
        match opmod {
            OPMOD_4_BYTES => {
                check_zero("masked_atomic.reserved", get64(bytes, fa4::RESERVED))?;
                Ok(Self::FetchAdd4 { add: get32(bytes, fa4::ADD), boundary: get32(bytes, fa4::BOUNDARY) })
            }
            OPMOD_8_BYTES => Ok(Self::FetchAdd8 { add: get64(bytes, fa8::ADD), boundary: get64(bytes, fa8::BOUNDARY) }),
            _ => Err(unknown_width(opmod)),
        }
    }

    /// Decodes the segment of a MASKED_CS whose control segment has this `opmod`.
    pub fn parse_compare_swap(opmod: u8, bytes: &[u8]) -> Result<Self> {
        match opmod {
            OPMOD_4_BYTES => {
                check_len("masked_atomic", bytes.len(), LEN)?;
                Ok(Self::CompareSwap4 {
                    swap: get32(bytes, cs4::SWAP),
                    compare: get32(bytes, cs4::COMPARE),
                    swap_mask: get32(bytes, cs4::SWAP_MASK),
                    compare_mask: get32(bytes, cs4::COMPARE_MASK),
                })
            }
            OPMOD_8_BYTES => {
                check_len("masked_atomic", bytes.len(), CS_8_LEN)?;
                Ok(Self::CompareSwap8 {
                    swap: get64(bytes, cs8::SWAP),
                    compare: get64(bytes, cs8::COMPARE),
                    swap_mask: get64(bytes, cs8::SWAP_MASK),
                    compare_mask: get64(bytes, cs8::COMPARE_MASK),
                })
            }
            _ => Err(unknown_width(opmod)),
        }
    }

    /// Returns the segment's length in bytes.
    #[allow(clippy::len_without_is_empty)] // a segment is never empty
    pub const fn len(&self) -> usize {
        match self {
            Self::CompareSwap8 { .. } => CS_8_LEN,
            _ => LEN,
        }
    }

    /// Returns the width of the operand in bytes, 4 or 8.
    pub const fn width(&self) -> usize {
        match self {
            Self::FetchAdd4 { .. } | Self::CompareSwap4 { .. } => 4,
            Self::FetchAdd8 { .. } | Self::CompareSwap8 { .. } => 8,
        }
    }

    /// Returns the control segment's opcode modifier.
    pub const fn opmod(&self) -> u8 {
        if self.width() == 4 { OPMOD_4_BYTES } else { OPMOD_8_BYTES }
    }

    /// Returns whether this is a fetch and add.
    pub const fn is_fetch_add(&self) -> bool {
        matches!(self, Self::FetchAdd4 { .. } | Self::FetchAdd8 { .. })
    }

    /// Encodes into `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`len`](Self::len).
    pub fn emit(&self, bytes: &mut [u8]) {
        match *self {
            Self::FetchAdd4 { add, boundary } => {
                put32(bytes, fa4::ADD, add);
                put32(bytes, fa4::BOUNDARY, boundary);
                put64(bytes, fa4::RESERVED, 0);
            }
            Self::FetchAdd8 { add, boundary } => {
                put64(bytes, fa8::ADD, add);
                put64(bytes, fa8::BOUNDARY, boundary);
            }
            Self::CompareSwap4 { swap, compare, swap_mask, compare_mask } => {
                put32(bytes, cs4::SWAP, swap);
                put32(bytes, cs4::COMPARE, compare);
                put32(bytes, cs4::SWAP_MASK, swap_mask);
                put32(bytes, cs4::COMPARE_MASK, compare_mask);
            }
            Self::CompareSwap8 { swap, compare, swap_mask, compare_mask } => {
                put64(bytes, cs8::SWAP, swap);
                put64(bytes, cs8::COMPARE, compare);
                put64(bytes, cs8::SWAP_MASK, swap_mask);
                put64(bytes, cs8::COMPARE_MASK, compare_mask);
            }
        }
    }
}

fn unknown_width(opmod: u8) -> Error {
    Error {
        field: "ctrl.opmod_idx_opcode.opmod",
        value: u64::from(opmod),
        rule: "a masked atomic is 0x08 (4 bytes) or 0x09 (8 bytes)",
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FetchAdd4 { add, boundary } => write!(f, "width=4 add={add:#x} boundary={boundary:#x}"),
            Self::FetchAdd8 { add, boundary } => write!(f, "width=8 add={add:#x} boundary={boundary:#x}"),
            Self::CompareSwap4 { swap, compare, swap_mask, compare_mask } => {
                write!(f, "width=4 compare={compare:#x}/{compare_mask:#x} swap={swap:#x}/{swap_mask:#x}")
            }
            Self::CompareSwap8 { swap, compare, swap_mask, compare_mask } => {
                write!(f, "width=8 compare={compare:#x}/{compare_mask:#x} swap={swap:#x}/{swap_mask:#x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways(bytes in any::<[u8; CS_8_LEN]>(), opmod in 7u8..=10, clean in any::<bool>()) {
            let mut bytes = bytes;
            if clean {
                bytes[8..16].fill(0);
            }
            for repr in [Repr::parse_fetch_add(opmod, &bytes), Repr::parse_compare_swap(opmod, &bytes)] {
                match repr {
                    Ok(repr) => {
                        prop_assert_eq!(repr.opmod(), opmod);
                        let mut again = [0xaau8; CS_8_LEN];
                        repr.emit(&mut again);
                        prop_assert_eq!(&again[..repr.len()], &bytes[..repr.len()]);
                    }
                    Err(error) if error.field == "masked_atomic.reserved" => prop_assert!(!clean && opmod == 8),
                    Err(_) => prop_assert!(opmod != 8 && opmod != 9),
                }
            }
        }
    }
}
