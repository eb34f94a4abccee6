//! Remote address segment (`struct mlx5_wqe_raddr_seg`).

use super::{Result, check_zero, get32, get64, put32, put64, segment};
use core::fmt;

mod field {
    pub const RADDR: usize = 0;
    pub const RKEY: usize = 8;
    pub const RESERVED: usize = 12;
}

segment!("raddr", 16);

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the remote address.
    #[inline]
    pub fn raddr(&self) -> u64 {
        get64(self.bytes(), field::RADDR)
    }

    /// Returns the remote key.
    #[inline]
    pub fn rkey(&self) -> u32 {
        get32(self.bytes(), field::RKEY)
    }

    /// Returns the reserved word.
    #[inline]
    pub fn reserved(&self) -> u32 {
        get32(self.bytes(), field::RESERVED)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets the remote address.
    pub fn set_raddr(&mut self, value: u64) {
        put64(self.bytes_mut(), field::RADDR, value);
    }

    /// Sets the remote key.
    pub fn set_rkey(&mut self, value: u32) {
        put32(self.bytes_mut(), field::RKEY, value);
    }

    /// Sets the reserved word.
    pub fn set_reserved(&mut self, value: u32) {
        put32(self.bytes_mut(), field::RESERVED, value);
    }
}

/// A decoded remote address segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Address in the space of `rkey`: between the key's `start_addr` and `start_addr + len`.
    pub raddr: u64,
    /// Key of the memory, as its owner announced it.
    pub rkey: u32,
}

impl Repr {
    /// Decodes, refusing reserved bits.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        check_zero("raddr.reserved", u64::from(segment.reserved()))?;
        Ok(Self { raddr: segment.raddr(), rkey: segment.rkey() })
    }

    /// Encodes into `segment`.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        segment.set_raddr(self.raddr);
        segment.set_rkey(self.rkey);
        segment.set_reserved(0);
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raddr={:#x} rkey={:#x}", self.raddr, self.rkey)
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
                bytes[12..].fill(0);
            }
            match Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()) {
                Ok(repr) => {
                    let mut again = [0xaau8; LEN];
                    repr.emit(&mut Segment::new_unchecked(&mut again[..]));
                    prop_assert_eq!(again, bytes);
                }
                Err(error) => prop_assert_eq!(error.field, "raddr.reserved"),
            }
        }
    }
}
