//! What can go wrong on the control path.

use crate::port::Gid;
use crate::prm::CommandStatus;
use std::time::Duration;

/// The result of a control-path call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the control path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The HCA refused a command.
    #[error("{command} failed: {} (status {:#04x}), syndrome {syndrome:#x}: {detail}", status.text(), *status as u8)]
    Command {
        /// The PRM's name of the command.
        command: &'static str,
        /// Status of the output.
        status: CommandStatus,
        /// Syndrome of the output.
        syndrome: u32,
        /// What exactly was wrong, as far as the provider knows.
        detail: String,
    },
    /// No HCA has this GID.
    #[error("no HCA with GID {gid} on this machine: {detail}; is the peer's process alive, and its HCA open?")]
    UnknownGid {
        /// The GID.
        gid: Gid,
        /// What happened on the way to it.
        detail: String,
    },
    /// The accelerator of a software HCA failed.
    #[error("cannot {what}: {source}")]
    Accelerator {
        /// What was tried.
        what: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A provider failed below its commands: its device, its library, the way to a peer, or the
    /// choice of a device. This is the provider's own error.
    #[error(transparent)]
    Provider(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system refused a call, an argument is out of range, or a socket or peer
    /// failed.
    #[error(transparent)]
    System(#[from] oxshmem_system::Error),
    /// The HCA is gone.
    #[error("HCA {device} is dead: {reason}")]
    Dead {
        /// The device's name.
        device: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// Returns an error of the operating system.
    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        oxshmem_system::Error::os(what, source).into()
    }

    /// Returns the error of a thread that the operating system did not start.
    pub(crate) fn thread(which: &str, source: std::io::Error) -> Self {
        let remedy = "raise the limit of threads (ulimit -u, or pids.max of the control group)";
        Self::os(format!("start {which}; {remedy}"), source)
    }

    /// Returns the error of a wrong argument.
    pub(crate) fn argument(name: &'static str, value: impl ToString, rule: impl Into<String>) -> Self {
        oxshmem_system::Error::argument(name, value, rule).into()
    }

    /// Returns the error of a peer that did not answer in time.
    pub(crate) fn timeout(what: impl Into<String>, limit: Duration) -> Self {
        oxshmem_system::Error::Timeout { what: what.into(), limit }.into()
    }

    /// Returns the error of bytes from a peer that are not what they should be.
    pub(crate) fn protocol(what: impl Into<String>, detail: impl Into<String>) -> Self {
        oxshmem_system::Error::Protocol { what: what.into(), detail: detail.into() }.into()
    }

    /// Wraps an error of a provider.
    pub(crate) fn provider(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Provider(Box::new(source))
    }
}
