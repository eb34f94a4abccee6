//! The error of the public API.

use crate::bootstrap::BootstrapError;
use crate::config::ConfigError;
use crate::device::DeviceError;
use crate::fault::DeviceFault;
use crate::heap::HeapError;
use crate::last_error;
use crate::launch::LaunchError;
use crate::team::TeamError;
use crate::transport::TransportError;

/// Anything that can go wrong in a call of this library; each variant is the error of one area, unchanged.
#[derive(Debug, thiserror::Error)]
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
    /// An HCA refused something or could not do it.
    #[error(transparent)]
    Hca(oxshmem_hca::Error),
    /// A transport that was asked for is not to be had.
    #[error(transparent)]
    Transport(TransportError),
    /// A team that is none, or that cannot be had.
    #[error(transparent)]
    Team(TeamError),
    /// A process has one PE at a time.
    #[error("this process has a PE already; finalize it before the next init")]
    Occupied,
    /// PEs were configured differently where they must agree.
    #[error("PEs are configured differently: PE {me} has {mine}, PE {pe} has {theirs}")]
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
}

impl From<DeviceFault> for Error {
    fn from(fault: DeviceFault) -> Self {
        // Boxed so that results stay small: this error is the rarest and by far the largest.
        Self::Fault(Box::new(fault)).noted()
    }
}

impl Error {
    /// Remembers the error, so that the other PEs learn of it if this process ends without finalize because of it. That the job has
    /// failed they know already.
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
    Config: ConfigError,
    Bootstrap: BootstrapError,
    Device: DeviceError,
    Heap: HeapError,
    Hca: oxshmem_hca::Error,
    Transport: TransportError,
    Team: TeamError,
    Launch: LaunchError,
}

/// A result with this library's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
