//! Identities of PEs: what belongs to a PE carries its identity, so that a later PE of the process
//! can refuse it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of a PE among all PEs that this process has had and will have. Implementations of
/// [`KernelArg`](crate::KernelArg) are given it and pass it on.
///
/// ```
/// use oxshmem::{HeapError, KernelArg, PeId};
///
/// struct Length(u64);
///
/// impl KernelArg for Length {
///     type Bytes = [u8; 8];
///     fn bytes(&self, pe: PeId) -> Result<[u8; 8], HeapError> {
///         self.0.bytes(pe)
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeId(u64);

impl PeId {
    /// No PE's: for arguments without symmetric memory, where device code is run without a PE.
    #[doc(hidden)]
    pub const NONE: Self = Self(0);

    /// Returns an identity that no other PE of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Refuses what belongs to another PE than this one. `what` names the thing, and `remedy` says
    /// how to make a new one.
    pub(crate) fn admit(self, owner: Self, what: &str, remedy: &'static str) -> Result<(), StaleError> {
        if self == owner { Ok(()) } else { Err(StaleError { what: what.to_owned(), remedy }) }
    }
}

/// A stream, team, module or kernel of a PE that has been finalized or dropped. Nothing was done.
///
/// ```
/// use oxshmem::{Error, StaleError};
///
/// # fn main() -> oxshmem::Result<()> {
/// let first = oxshmem::init()?;
/// let stream = first.create_stream()?;
/// first.finalize()?;
///
/// let pe = oxshmem::init()?;
/// let Err(Error::Stale(stale)) = pe.on(&stream).synchronize() else { panic!() };
/// let stale: StaleError = stale;
/// assert!(stale.to_string().starts_with("a stream belongs to a PE that has been finalized"));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} belongs to a PE that has been finalized; {remedy}")]
pub struct StaleError {
    what: String,
    remedy: &'static str,
}
