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
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, with the values.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// This process may not open any more files, and descriptors of memory and sockets count as such.
    #[error("{what}: {}", oxshmem_system::fdpass::NoDescriptor)]
    FileLimit {
        /// What was tried.
        what: String,
    },
    /// An argument is out of range.
    #[error("{name} is {value}: {rule}")]
    Argument {
        /// Name of the argument.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed, and what to do.
        rule: String,
    },
    /// No HCA has this GID.
    #[error("no HCA with GID {gid} on this machine: {detail}; is the peer's process alive, and its HCA open?")]
    UnknownGid {
        /// The GID.
        gid: Gid,
        /// What happened on the way to it.
        detail: String,
    },
    /// A peer or a socket did not answer in time.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// Bytes from a peer are not what they should be.
    #[error("{what}: {detail}")]
    Protocol {
        /// Where they came from.
        what: String,
        /// What is wrong with them.
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
    /// A provider failed below its commands: its device, its library, the way to a peer, or the choice of a device. This is the provider's own
    /// error.
    #[error(transparent)]
    Provider(Box<dyn std::error::Error + Send + Sync>),
    /// A socket to another process failed.
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
    /// An error of the operating system.
    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        match source.raw_os_error() {
            Some(libc::EMFILE) => Self::FileLimit { what },
            _ => Self::Os { what, source },
        }
    }

    /// A wrong argument.
    pub(crate) fn argument(name: &'static str, value: impl ToString, rule: impl Into<String>) -> Self {
        Self::Argument { name, value: value.to_string(), rule: rule.into() }
    }

    /// Wraps an error of a provider.
    pub(crate) fn provider(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Provider(Box::new(source))
    }
}
