//! The formats that an mlx5 HCA reads and writes in memory: segments of a work queue element (WQE),
//! completion queue elements (CQE), doorbell records and the doorbell register.
//!
//! One file per format. Each has field offsets, a view over bytes (`Segment<T>`) with one getter
//! and one setter per field, and a `Repr` that holds the decoded values. Byte order is big-endian
//! on the wire and exists only in this module.
//!
//! `Segment::new_checked` verifies the length; after it no accessor panics.
//! `Segment::new_unchecked` leaves that to the caller: accessors then panic if the slice is too
//! short. `Repr::parse` also refuses reserved bits and values that the format does not define, and
//! `Repr::emit` writes every byte of the segment, so `emit(parse(b)) == b` for each accepted `b`.
//!
//! Layouts come from rdma-core's `providers/mlx5/mlx5dv.h` (structures are named in each file) and
//! from `wqe.h` beside it for the masked atomics.

pub mod atomic;
pub mod cqe;
pub mod ctrl;
pub mod data;
pub mod dbr;
pub mod doorbell;
pub mod inline;
pub mod masked_atomic;
pub mod raddr;
pub mod wqe;

pub use wqe::{Op, Wqe};

/// A basic block of a send queue, in bytes (`MLX5_SEND_WQE_BB`).
pub const BLOCK_BYTES: usize = 64;

/// The unit of a WQE's size field `ds`, in bytes.
pub const OCTOWORD_BYTES: usize = 16;

/// The longest WQE, in blocks: `ds` has six bits and counts units of 16 bytes.
pub const MAX_WQE_BLOCKS: usize = 16;

/// The longest WQE, in bytes.
pub const MAX_WQE_BYTES: usize = MAX_WQE_BLOCKS * BLOCK_BYTES;

/// Why bytes are not what the format allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value:#x}: {rule}")]
pub struct Error {
    /// The field as mlx5dv.h names it, with its segment in front.
    pub field: &'static str,
    /// What the field holds.
    pub value: u64,
    /// What it must hold.
    pub rule: &'static str,
}

/// The result of parsing.
pub type Result<T> = core::result::Result<T, Error>;

pub(crate) fn check_len(field: &'static str, have: usize, need: usize) -> Result<()> {
    if have < need {
        return Err(Error { field, value: have as u64, rule: "the slice is shorter than the segment" });
    }
    Ok(())
}

pub(crate) fn check_zero(field: &'static str, value: u64) -> Result<()> {
    if value != 0 {
        return Err(Error { field, value, rule: "reserved, must be zero" });
    }
    Ok(())
}

#[inline]
pub(crate) fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
pub(crate) fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get32(bytes, at)) << 32 | u64::from(get32(bytes, at + 4))
}

#[inline]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Defines the view type of a segment of fixed length.
macro_rules! segment {
    ($name:literal, $len:expr) => {
        /// The length of the segment in bytes.
        pub const LEN: usize = $len;

        /// A view of the segment's bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Segment<T: AsRef<[u8]>> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> Segment<T> {
            /// Wraps a buffer without a length check; accessors panic if it is too short.
            pub const fn new_unchecked(buffer: T) -> Self {
                Self { buffer }
            }

            /// Wraps a buffer that is long enough for every accessor.
            pub fn new_checked(buffer: T) -> $crate::wire::Result<Self> {
                $crate::wire::check_len($name, buffer.as_ref().len(), LEN)?;
                Ok(Self { buffer })
            }

            /// Returns the buffer.
            pub fn into_inner(self) -> T {
                self.buffer
            }

            #[inline]
            fn bytes(&self) -> &[u8] {
                self.buffer.as_ref()
            }
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
            #[inline]
            fn bytes_mut(&mut self) -> &mut [u8] {
                self.buffer.as_mut()
            }
        }
    };
}
pub(crate) use segment;
