//! Contexts as programs have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::ContextError;
use super::options::ContextOptions;
use crate::Result;
use crate::abi;
use crate::heap::error::HeapError;
use crate::identity::PeId;
use crate::kernel::args::KernelArg;

/// Contexts that one call has created: queue pairs of a team's members apart from those that all
/// threads share ([`Team::create_contexts`](crate::Team::create_contexts)). Kernels take one of
/// them ([`get`](Self::get)), or all ([`array`](Self::array)), and pass it to operations, which
/// then neither wait for nor order what other contexts do; see `docs/contexts.md`.
///
/// # Errors
/// Contexts that were destroyed, or of a PE that has been finalized, are refused by every launch.
///
/// # Threads and drop
/// `Send` and `Sync`: it is a name. Contexts that are dropped stay until finalize, since destroying
/// them is collective.
///
/// ```
/// use oxshmem::{ContextOptions, Sharing};
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Block).count(4))?;
/// assert_eq!(contexts.len(), 4);
/// contexts.destroy(&pe)?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct Contexts(pub(super) Arc<Set>);

/// A set of contexts in the table.
#[derive(Debug)]
pub(crate) struct Set {
    pub pe: PeId,
    /// Its number among the PE's sets.
    pub number: u32,
    /// The handle of its team.
    pub team: i32,
    pub options: ContextOptions,
    pub described: Vec<abi::Context>,
    /// Where the device has them.
    pub array: u64,
    pub queue_pairs: u64,
    pub bytes: u64,
    pub ended: AtomicBool,
}

impl Set {
    /// Refuses a set that cannot be used by the PE `pe`.
    pub(super) fn check(&self, pe: PeId) -> Result<(), ContextError> {
        if pe != self.pe {
            Err(ContextError::EarlierPe)
        } else if self.ended.load(Ordering::Relaxed) {
            Err(ContextError::Destroyed { count: self.options.count, sharing: self.options.sharing })
        } else {
            Ok(())
        }
    }
}

impl Contexts {
    /// Returns how many contexts there are.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Warp))?;
    /// assert_eq!(contexts.len(), 1);
    /// # pe.finalize()
    /// # }
    /// ```
    #[allow(clippy::len_without_is_empty)] // There is at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.options.count
    }

    /// Returns one of them, for a kernel that declares `oxshmem::Context`.
    ///
    /// # Errors
    /// There is no context of this number.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Warp))?;
    /// assert!(contexts.get(0).is_ok());
    /// assert!(contexts.get(1).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn get(&self, index: usize) -> Result<Context> {
        let count = self.len();
        let described = *self.0.described.get(index).ok_or(ContextError::OutOfRange { index, count })?;
        Ok(Context { set: Arc::clone(&self.0), described })
    }

    /// Returns all of them, for a kernel that declares `const oxshmem::Context *`.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Warp).count(2))?;
    /// let _argument = contexts.array();
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn array(&self) -> ContextArray {
        ContextArray(Arc::clone(&self.0))
    }

    /// Returns the number of the set, by which [`Pe::contexts_of`](crate::Pe::contexts_of) finds
    /// it. Another PE may have another number for it.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Warp))?;
    /// assert_eq!(pe.contexts_of(contexts.number())?.number(), contexts.number());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the queue pairs of all of them at this PE.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Warp))?;
    /// println!("{} queue pairs, {} bytes", contexts.queue_pairs(), contexts.bytes());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn queue_pairs(&self) -> u64 {
        self.0.queue_pairs
    }

    /// Returns the bytes that they take in the memory of the device.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Warp))?;
    /// assert!(contexts.bytes() > 0);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl Contexts {
    /// Returns what kernels of programs in other languages are given: each context as device code
    /// has it, and where the device has them all.
    #[doc(hidden)]
    #[must_use]
    pub fn as_device_has_them(&self) -> (&[abi::Context], u64) {
        (&self.0.described, self.0.array)
    }
}

/// One context, as an argument of a kernel: `oxshmem::Context` of device code.
///
/// ```
/// use oxshmem::{Context, ContextOptions, Sharing};
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Thread))?;
/// let context: Context = contexts.get(0)?;
/// # drop(context);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Context {
    set: Arc<Set>,
    described: abi::Context,
}

impl KernelArg for Context {
    type Bytes = [u8; size_of::<abi::Context>()];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        self.set.check(pe)?;
        Ok(bytemuck::cast(self.described))
    }
}

impl KernelArg for &Context {
    type Bytes = [u8; size_of::<abi::Context>()];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        (*self).bytes(pe)
    }
}

/// All contexts of a set, as an argument of a kernel: `const oxshmem::Context *` of device code.
///
/// ```
/// use oxshmem::{ContextArray, ContextOptions, Sharing};
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Block).count(8))?;
/// let array: ContextArray = contexts.array();
/// # drop(array);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ContextArray(Arc<Set>);

impl KernelArg for ContextArray {
    type Bytes = [u8; 8];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        self.0.check(pe)?;
        Ok(self.0.array.to_ne_bytes())
    }
}
