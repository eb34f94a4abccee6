//! Doorbell record of a QP: where software says how far the send queue is filled.
//!
//! Eight bytes: the receive counter, then the send counter, each big-endian (rdma-core:
//! `MLX5_RCV_DBR`, `MLX5_SND_DBR`). A QP context's `dbr_addr` names the first byte; the send
//! counter is [`SEND_OFFSET`] further. The send counter is the number of blocks ever filled, modulo
//! 2^16, in the low half of the word.

use super::{Result, check_zero, get32, put32, segment};
use core::fmt;
use oxshmem_system::words::low16;

mod field {
    pub const RECEIVE: usize = 0;
    pub const SEND: usize = 4;
}

/// Offset of the send counter from the start of the record, in bytes.
pub const SEND_OFFSET: usize = field::SEND;

segment!("dbr", 8);

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the receive counter.
    pub fn receive(&self) -> u32 {
        get32(self.bytes(), field::RECEIVE)
    }

    /// Returns the send counter's word.
    pub fn send(&self) -> u32 {
        get32(self.bytes(), field::SEND)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets the receive counter.
    pub fn set_receive(&mut self, value: u32) {
        put32(self.bytes_mut(), field::RECEIVE, value);
    }

    /// Sets the send counter's word.
    pub fn set_send(&mut self, value: u32) {
        put32(self.bytes_mut(), field::SEND, value);
    }
}

/// The decoded send half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Blocks filled since the queue was reset, modulo 2^16.
    pub send: u16,
}

impl Repr {
    /// Decodes the send half, refusing set bits above the counter.
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        Self::from_word(segment.send())
    }

    /// Decodes the send word, already in host order.
    #[inline]
    pub fn from_word(word: u32) -> Result<Self> {
        check_zero("dbr.send[31:16]", u64::from(word >> 16))?;
        Ok(Self { send: low16(u64::from(word)) })
    }

    /// Encodes; the receive counter becomes 0.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        segment.set_receive(0);
        segment.set_send(u32::from(self.send));
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dbr={}", self.send)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways(word in any::<u32>(), clean in any::<bool>()) {
            let word = if clean { word & 0xffff } else { word };
            let mut bytes = [0u8; LEN];
            Segment::new_unchecked(&mut bytes[..]).set_send(word);
            match Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()) {
                Ok(repr) => {
                    let mut again = [0xaau8; LEN];
                    repr.emit(&mut Segment::new_unchecked(&mut again[..]));
                    prop_assert_eq!(again, bytes);
                }
                Err(_) => prop_assert!(word > 0xffff),
            }
        }
    }
}
