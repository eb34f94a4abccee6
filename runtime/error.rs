//! The error of the public API.

use std::fmt;

use crate::aggregate::AggregateError;
use crate::bootstrap::BootstrapError;
use crate::buffer::BufferError;
use crate::config::ConfigError;
use crate::context::ContextError;
use crate::device::DeviceError;
use crate::fault::DeviceFault;
use crate::heap::error::HeapError;
use crate::identity::StaleError;
use crate::last_error;
use crate::launch::LaunchError;
use crate::team::error::TeamError;
use crate::transport::TransportError;

/// Anything that can go wrong in a call of this library; each variant is the error of one area,
/// unchanged.
///
/// `Debug` writes what `Display` writes, so that a `main` that returns [`Result`] ends with a text
/// for people.
///
/// # Threads
/// `Send` and `Sync`.
///
/// ```
/// let error = oxshmem::Error::Occupied;
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration was refused.
    #[error(transparent)]
    Config(ConfigError),
    /// The job's PEs could not meet, or the job failed.
    #[error(transparent)]
    Bootstrap(BootstrapError),
    /// A device refused something or could not do it, or a kernel ended with an error.
    #[error(transparent)]
    Device(DeviceError),
    /// Device code reported an error.
    #[error(transparent)]
    Fault(Box<DeviceFault>),
    /// The symmetric heap refused something or could not do it.
    #[error(transparent)]
    Heap(HeapError),
    /// Memory of the program that cannot be registered, or is not.
    #[error(transparent)]
    Buffer(BufferError),
    /// An HCA refused something or could not do it.
    #[error(transparent)]
    Hca(oxshmem_hca::Error),
    /// The requested transport is not available.
    #[error(transparent)]
    Transport(TransportError),
    /// A team that does not exist or cannot be created.
    #[error(transparent)]
    Team(TeamError),
    /// Contexts that do not exist or cannot be created.
    #[error(transparent)]
    Context(ContextError),
    /// Aggregating contexts that do not exist or cannot be created, or whose operations are lost.
    #[error(transparent)]
    Aggregate(AggregateError),
    /// A process has one PE at a time.
    #[error("this process already has a PE; finalize it before the next init")]
    Occupied,
    /// PEs were configured differently where they must agree.
    #[error(
        "PEs are configured differently: PE {me} has {mine}, PE {pe} has {theirs}; give all PEs the same variables, and run one build"
    )]
    Mismatch {
        /// This PE.
        me: usize,
        /// Its values.
        mine: String,
        /// A PE with others.
        pe: usize,
        /// Its values.
        theirs: String,
    },
    /// PEs could not be started.
    #[error(transparent)]
    Launch(LaunchError),
    /// A stream, team, module or kernel of a PE that has been finalized.
    #[error(transparent)]
    Stale(StaleError),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<DeviceFault> for Error {
    fn from(fault: DeviceFault) -> Self {
        // Boxed so that results stay small: this error is the rarest and by far the largest.
        Self::Fault(Box::new(fault)).noted()
    }
}

impl Error {
    /// Remembers the error, so that the other PEs learn of it if this process ends without finalize
    /// because of it. They know already when the job has failed.
    fn noted(self) -> Self {
        if !matches!(self, Self::Bootstrap(BootstrapError::Failed(_))) {
            last_error::note(&self);
        }
        self
    }
}

macro_rules! from {
    ($($area:ident: $error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$area(error).noted()
            }
        }
    )*};
}
from! {
    Aggregate: AggregateError,
    Config: ConfigError,
    Context: ContextError,
    Bootstrap: BootstrapError,
    Buffer: BufferError,
    Device: DeviceError,
    Heap: HeapError,
    Hca: oxshmem_hca::Error,
    Transport: TransportError,
    Team: TeamError,
    Launch: LaunchError,
    Stale: StaleError,
}

/// A result with this library's [`enum@Error`].
///
/// ```
/// fn main() -> oxshmem::Result<()> {
///     oxshmem::init()?.finalize()
/// }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;
