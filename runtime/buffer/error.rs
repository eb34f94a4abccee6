//! Ranges of the program's memory, and why one cannot be registered.

use std::fmt;

use crate::abi;

/// Ranges that a PE can have registered; one more is the library's own.
pub(super) const MOST: usize = abi::MAX_LOCAL_REGIONS - 1;

/// A range of the program's memory that is registered ([`Pe::register_buffer`]).
///
/// [`Pe::register_buffer`]: crate::Pe::register_buffer
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let mut data = vec![0u8; 1 << 16];
/// // SAFETY: `data` is there until it is unregistered.
/// unsafe { pe.register_buffer(data.as_mut_ptr().cast(), data.len())? };
/// assert_eq!(pe.registered_buffers()[0].bytes, 1 << 16);
/// pe.unregister_buffer(data.as_mut_ptr().cast())?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferInfo {
    /// Where it begins.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl BufferInfo {
    /// Refuses a range without memory.
    pub(crate) fn check(self) -> Result<(), BufferError> {
        let end = self.address.checked_add(self.bytes);
        // Whole pages are still addresses.
        if self.bytes == 0 || self.address == 0 || end.is_none_or(|end| end > u64::MAX - (1 << 30)) {
            return Err(BufferError::Empty { buffer: self });
        }
        Ok(())
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.address < other.address + other.bytes && other.address < self.address + self.bytes
    }
}

impl fmt::Display for BufferInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

/// Why memory of the program cannot be registered, or unregistered.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{BufferError, Error};
///
/// let error = pe.unregister_buffer(std::ptr::null_mut()).unwrap_err();
/// assert!(matches!(error, Error::Buffer(BufferError::Unknown { address: 0, .. })));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// No memory, or a range that goes around the end of the address space.
    #[error("{buffer} cannot be registered: it has no bytes, or begins at null, or ends beyond all addresses")]
    Empty {
        /// The range.
        buffer: BufferInfo,
    },
    /// Memory of a symmetric heap.
    #[error("{buffer} are memory of the symmetric heap, which is registered already; use it as it is")]
    Symmetric {
        /// The range.
        buffer: BufferInfo,
    },
    /// Memory that is registered already, or a part of it.
    #[error("{buffer} overlap the registered {registered}; unregister those first")]
    Overlap {
        /// The range.
        buffer: BufferInfo,
        /// What is registered.
        registered: BufferInfo,
    },
    /// Every place for a registered range is taken.
    #[error("{buffer} would be registered range {}; a PE has at most {MOST}: unregister some, or register ranges that lie together as one", MOST + 1)]
    TooMany {
        /// The range.
        buffer: BufferInfo,
    },
    /// Memory that a card cannot be given.
    #[error("{buffer} cannot be registered: {reason}")]
    Refused {
        /// The range.
        buffer: BufferInfo,
        /// Why, and what to do about it.
        reason: String,
    },
    /// Another PE could not register its memory, so no PE has.
    #[error("PE {pe} cannot register its memory, so no PE has registered any: {reason}")]
    Peer {
        /// The first PE that could not.
        pe: usize,
        /// Why.
        reason: String,
    },
    /// An address where no registered range begins.
    #[error("no registered buffer begins at {address:#x}; {}", nearest.map_or_else(|| "none is registered".to_owned(), |nearest| format!("the nearest is {nearest}")))]
    Unknown {
        /// The address.
        address: u64,
        /// The nearest registered range.
        nearest: Option<BufferInfo>,
    },
}
