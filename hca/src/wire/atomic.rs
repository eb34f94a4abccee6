//! Atomic segment of the 8-byte FETCH_ADD and COMPARE_SWAP (`struct mlx5_wqe_atomic_seg`).

use super::{Result, check_zero, get64, put64, segment};
use core::fmt;

mod field {
    pub const SWAP_ADD: usize = 0;
    pub const COMPARE: usize = 8;
}

segment!("atomic", 16);

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the value to add or to store.
    #[inline]
    pub fn swap_add(&self) -> u64 {
        get64(self.bytes(), field::SWAP_ADD)
    }

    /// Returns the value to compare with.
    #[inline]
    pub fn compare(&self) -> u64 {
        get64(self.bytes(), field::COMPARE)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets the value to add or to store.
    pub fn set_swap_add(&mut self, value: u64) {
        put64(self.bytes_mut(), field::SWAP_ADD, value);
    }

    /// Sets the value to compare with.
    pub fn set_compare(&mut self, value: u64) {
        put64(self.bytes_mut(), field::COMPARE, value);
    }
}

/// A decoded atomic segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr {
    /// `*remote += add`.
    FetchAdd {
        /// The addend.
        add: u64,
    },
    /// `if *remote == compare { *remote = swap }`.
    CompareSwap {
        /// What to store.
        swap: u64,
        /// What must be there.
        compare: u64,
    },
}

impl Repr {
    /// Decodes the segment of an ATOMIC_FA. rdma-core sets `compare` to 0 there, so anything else
    /// is refused.
    #[inline]
    pub fn parse_fetch_add<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        check_zero("atomic.compare", segment.compare())?;
        Ok(Self::FetchAdd { add: segment.swap_add() })
    }

    /// Decodes the segment of an ATOMIC_CS.
    #[inline]
    pub fn parse_compare_swap<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        Ok(Self::CompareSwap { swap: segment.swap_add(), compare: segment.compare() })
    }

    /// Encodes into `segment`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        let (swap_add, compare) = match *self {
            Self::FetchAdd { add } => (add, 0),
            Self::CompareSwap { swap, compare } => (swap, compare),
        };
        segment.set_swap_add(swap_add);
        segment.set_compare(compare);
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FetchAdd { add } => write!(f, "add={add:#x}"),
            Self::CompareSwap { swap, compare } => write!(f, "compare={compare:#x} swap={swap:#x}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways(bytes in any::<[u8; LEN]>(), clean in any::<bool>()) {
            let mut bytes = bytes;
            if clean {
                bytes[8..].fill(0);
            }
            let segment = Segment::new_checked(&bytes[..]).unwrap();
            for repr in [Repr::parse_fetch_add(&segment), Repr::parse_compare_swap(&segment)] {
                match repr {
                    Ok(repr) => {
                        let mut again = [0xaau8; LEN];
                        repr.emit(&mut Segment::new_unchecked(&mut again[..]));
                        prop_assert_eq!(again, bytes);
                    }
                    Err(error) => prop_assert_eq!(error.field, "atomic.compare"),
                }
            }
        }
    }
}
