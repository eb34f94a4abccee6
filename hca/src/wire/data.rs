//! Data segment: local memory to read from or write to (`struct mlx5_wqe_data_seg`).

use super::{Error, Result, get32, get64, inline, put32, put64, segment};
use core::fmt;

mod field {
    pub const BYTE_COUNT: usize = 0;
    pub const LKEY: usize = 4;
    pub const ADDR: usize = 8;
}

segment!("data", 16);

/// What a byte count of 0 stands for: a data segment cannot be empty, and its length field has 31
/// bits.
pub const ZERO_MEANS: u64 = 1 << 31;

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the length field; bit 31 marks inline data.
    #[inline]
    pub fn byte_count(&self) -> u32 {
        get32(self.bytes(), field::BYTE_COUNT)
    }

    /// Returns the local key.
    #[inline]
    pub fn lkey(&self) -> u32 {
        get32(self.bytes(), field::LKEY)
    }

    /// Returns the local address.
    #[inline]
    pub fn addr(&self) -> u64 {
        get64(self.bytes(), field::ADDR)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets the length field.
    pub fn set_byte_count(&mut self, value: u32) {
        put32(self.bytes_mut(), field::BYTE_COUNT, value);
    }

    /// Sets the local key.
    pub fn set_lkey(&mut self, value: u32) {
        put32(self.bytes_mut(), field::LKEY, value);
    }

    /// Sets the local address.
    pub fn set_addr(&mut self, value: u64) {
        put64(self.bytes_mut(), field::ADDR, value);
    }
}

/// A decoded data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// The length field, bit 31 clear. 0 stands for [`ZERO_MEANS`] bytes; see [`Repr::len`].
    pub byte_count: u32,
    /// Key of the local memory.
    pub lkey: u32,
    /// Address in the space of `lkey`.
    pub addr: u64,
}

impl Repr {
    /// Decodes, refusing an inline marker.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        let byte_count = segment.byte_count();
        if byte_count & inline::MARKER != 0 {
            return Err(Error {
                field: "data.byte_count[31]",
                value: u64::from(byte_count),
                rule: "inline data is not allowed in this position of this opcode",
            });
        }
        Ok(Self { byte_count, lkey: segment.lkey(), addr: segment.addr() })
    }

    /// Returns the length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a data segment is never empty
    pub const fn len(&self) -> u64 {
        if self.byte_count == 0 { ZERO_MEANS } else { self.byte_count as u64 }
    }

    /// Encodes into `segment`.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        segment.set_byte_count(self.byte_count);
        segment.set_lkey(self.lkey);
        segment.set_addr(self.addr);
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "len={} laddr={:#x} lkey={:#x}", self.len(), self.addr, self.lkey)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways(bytes in any::<[u8; LEN]>()) {
            match Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()) {
                Ok(repr) => {
                    let mut again = [0xaau8; LEN];
                    repr.emit(&mut Segment::new_unchecked(&mut again[..]));
                    prop_assert_eq!(again, bytes);
                }
                Err(error) => {
                    prop_assert!(bytes[0] & 0x80 != 0);
                    prop_assert_eq!(error.field, "data.byte_count[31]");
                }
            }
        }
    }

    #[test]
    fn zero_is_two_gibibytes() {
        assert_eq!(Repr { byte_count: 0, lkey: 0, addr: 0 }.len(), 1 << 31);
        assert_eq!(Repr { byte_count: 5, lkey: 0, addr: 0 }.len(), 5);
    }
}
