//! Inline data segment: a 4-byte header, then the payload (`struct mlx5_wqe_inl_data_seg`).

use super::{Error, OCTOWORD_BYTES, Result, check_len, get32, put32};
use core::fmt;
use oxshmem_system::words::{const32, count32};

mod field {
    pub const BYTE_COUNT: usize = 0;
    pub const PAYLOAD: usize = 4;
}

/// The length of the header in bytes.
pub const HEADER_LEN: usize = field::PAYLOAD;

/// `MLX5_INLINE_SEG`: bit 31 of the first word tells inline data from a data segment.
pub const MARKER: u32 = 0x8000_0000;

/// The byte count has ten bits (PRM, inline data segment).
pub const MAX_PAYLOAD: usize = 0x3ff;

const COUNT_MASK: u32 = const32(MAX_PAYLOAD);

/// A view of the segment: header and payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Segment<T> {
    /// Wraps a buffer without a length check; accessors panic if it is too short.
    pub const fn new_unchecked(buffer: T) -> Self {
        Self { buffer }
    }

    /// Wraps a buffer that holds the header and the payload that the header announces.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self> {
        check_len("inline", buffer.as_ref().len(), HEADER_LEN)?;
        let segment = Self { buffer };
        if segment.buffer.as_ref().len() < HEADER_LEN + segment.payload_len() {
            return Err(Error {
                field: "inline.byte_count",
                value: segment.payload_len() as u64,
                rule: "more bytes than the WQE has after the inline header",
            });
        }
        Ok(segment)
    }

    /// Returns the first word: marker and byte count.
    #[inline]
    pub fn byte_count(&self) -> u32 {
        get32(self.buffer.as_ref(), field::BYTE_COUNT)
    }

    /// Returns the payload's length in bytes.
    #[inline]
    pub fn payload_len(&self) -> usize {
        (self.byte_count() & COUNT_MASK) as usize
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Segment<&'a T> {
    /// Returns the payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.buffer.as_ref()[field::PAYLOAD..field::PAYLOAD + self.payload_len()]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets the first word.
    pub fn set_byte_count(&mut self, value: u32) {
        put32(self.buffer.as_mut(), field::BYTE_COUNT, value);
    }

    /// Returns the bytes after the header.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut()[field::PAYLOAD..]
    }
}

/// A decoded inline data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr<'a> {
    /// What is sent, at most [`MAX_PAYLOAD`] bytes.
    pub payload: &'a [u8],
}

impl<'a> Repr<'a> {
    /// Decodes, refusing a missing marker and reserved bits.
    #[inline]
    pub fn parse<T: AsRef<[u8]> + ?Sized>(segment: &Segment<&'a T>) -> Result<Self> {
        let word = segment.byte_count();
        if word & MARKER == 0 || word & !(MARKER | COUNT_MASK) != 0 {
            return Err(Error {
                field: "inline.byte_count",
                value: u64::from(word),
                rule: "must be bit 31 and a count below 1024",
            });
        }
        Ok(Self { payload: segment.payload() })
    }

    /// Returns the segment's size in 16-byte units, rounded up.
    pub const fn octowords(&self) -> usize {
        (HEADER_LEN + self.payload.len()).div_ceil(OCTOWORD_BYTES)
    }

    /// Encodes into `segment`, with zeros up to the end of the last unit.
    ///
    /// # Panics
    /// If the buffer is shorter than [`octowords`](Self::octowords) units or the payload longer
    /// than [`MAX_PAYLOAD`].
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        let len = self.payload.len();
        assert!(len <= MAX_PAYLOAD, "{len} bytes of inline payload, the limit is {MAX_PAYLOAD}");
        segment.set_byte_count(MARKER | count32(len));
        let padded = self.octowords() * OCTOWORD_BYTES - HEADER_LEN;
        let room = &mut segment.payload_mut()[..padded];
        // The padding is in the last unit, of which the first has twelve bytes here.
        match room.last_chunk_mut::<OCTOWORD_BYTES>() {
            Some(last) => *last = [0; OCTOWORD_BYTES],
            None => room.fill(0),
        }
        room[..len].copy_from_slice(self.payload);
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        write!(f, "len={} inline=", self.payload.len())?;
        for byte in self.payload.iter().take(SHOWN) {
            write!(f, "{byte:02x}")?;
        }
        if self.payload.len() > SHOWN { f.write_str("..") } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_inverts_emit(payload in proptest::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD)) {
            let repr = Repr { payload: &payload };
            let mut bytes = vec![0xaau8; repr.octowords() * OCTOWORD_BYTES];
            repr.emit(&mut Segment::new_unchecked(&mut bytes[..]));
            let parsed = Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()).unwrap();
            prop_assert_eq!(parsed, repr);
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..1100), mark in any::<bool>()) {
            let mut bytes = bytes;
            if mark && bytes.len() >= 4 {
                bytes[0] = 0x80;
                bytes[1] = 0;
                bytes[2] &= 3;
            }
            if let Ok(segment) = Segment::new_checked(&bytes[..])
                && let Ok(repr) = Repr::parse(&segment)
            {
                prop_assert_eq!(repr.payload, &bytes[4..4 + segment.payload_len()]);
            }
        }
    }

    #[test]
    fn reserved_bits_are_refused() {
        let bytes = [0x80, 0x10, 0, 0];
        assert!(Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()).is_err());
        let short = [0x80, 0, 0, 1];
        assert_eq!(Segment::new_checked(&short[..]).unwrap_err().field, "inline.byte_count");
    }
}
