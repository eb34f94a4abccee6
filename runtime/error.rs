//! The error of the public API.

use crate::bootstrap::BootstrapError;
use crate::config::ConfigError;
use crate::launch::LaunchError;

/// Anything that can go wrong in a call of this library; each variant is the error of one area, unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The job's PEs could not meet, or the job failed.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// PEs could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// A result with this library's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
