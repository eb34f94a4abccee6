//! What can go wrong between this process and the kernel or another process.

use std::fmt;
use std::time::Duration;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a socket, or of the peer at its other end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, with the values.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// This process may not open any more files, and descriptors of memory and sockets count as
    /// such.
    #[error("{what}: {NoDescriptor}")]
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
    /// A peer or a socket did not respond in time.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// Bytes from a peer, or the peer itself, are not what they should be.
    #[error("{what}: {detail}")]
    Protocol {
        /// Where they came from.
        what: String,
        /// What is wrong with them.
        detail: String,
    },
}

impl Error {
    /// Returns the error of a call that the operating system refused.
    pub fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        if source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) {
            Self::FileLimit { what }
        } else {
            Self::Os { what, source }
        }
    }

    /// Returns the error of an argument that is out of range.
    pub fn argument(name: &'static str, value: impl ToString, rule: impl Into<String>) -> Self {
        Self::Argument { name, value: value.to_string(), rule: rule.into() }
    }
}

/// Says that this process has no free file descriptor, and what to do.
#[derive(Debug, Clone, Copy)]
pub struct NoDescriptor;

impl fmt::Display for NoDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = limit.current.map_or_else(String::new, |limit| format!(" of the {limit} that it may have"));
        write!(
            f,
            "this process has no free file descriptor{limit}; raise the limit (ulimit -n, LimitNOFILE= of a service, --ulimit nofile= of a \
             container)"
        )
    }
}
