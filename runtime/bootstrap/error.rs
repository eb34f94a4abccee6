//! Why PEs could not meet, or stopped working together.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::failure::Failure;
use super::text::Seconds;
use crate::config::Launcher;

/// Why PEs could not meet, or stopped working together.
///
/// ```
/// use oxshmem::bootstrap::BootstrapError;
///
/// /// Returns whether it is of use to try again.
/// fn is_passing(error: &BootstrapError) -> bool {
///     !matches!(error, BootstrapError::Failed(_))
/// }
/// # let _ = is_passing;
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The job has failed; every PE gets this, and so does every later call.
    #[error("{0}")]
    Failed(Failure),
    /// A gather among some PEs has failed; each of its members gets this, and the job goes on.
    /// [`Failure::ranks`] are the numbers in the gather of those that did not arrive
    /// ([`FailureKind::Missing`](super::FailureKind::Missing)), or the PEs that contradict each
    /// other ([`FailureKind::Mismatch`](super::FailureKind::Mismatch)).
    #[error("{0}")]
    Disbanded(Failure),
    /// No connection to the hub before the deadline.
    #[error("PE {rank}: no rendezvous at {address} within {}: {reason}; check that the launcher runs and that this address is \
        reachable from here, or raise OXSHMEM_BOOTSTRAP_TIMEOUT", Seconds(*timeout))]
    Unreachable {
        /// The rank that tried.
        rank: u32,
        /// The addresses tried.
        address: String,
        /// How long.
        timeout: Duration,
        /// What happened at the last attempt.
        reason: String,
    },
    /// The launcher that started this process cannot be used.
    #[error("launcher {launcher}: {reason}")]
    Launcher {
        /// The launcher.
        launcher: Launcher,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The program's broadcast brought no unique id.
    #[error("PE {rank}: the broadcast of the job's id failed: {reason}")]
    Broadcast {
        /// The rank that broadcast, or received.
        rank: u32,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The hub does not let this PE in.
    #[error("PE {rank}: refused by the rendezvous at {address}: {reason}")]
    Refused {
        /// The rank that was refused.
        rank: u32,
        /// The hub's address.
        address: String,
        /// The hub's words.
        reason: String,
    },
    /// An argument above its limit.
    #[error("{what} of {length} bytes, the limit is {limit}")]
    TooLong {
        /// The argument.
        what: String,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A call after [`Bootstrap::finalize`](super::Bootstrap::finalize).
    #[error("{0} was called after finalize; call it before, or join the job again")]
    Finalized(&'static str),
    /// The operating system refused something that the bootstrap needs.
    #[error("{what}: {source}{}", crate::limits::remedy(source))]
    System {
        /// What was attempted.
        what: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
}

impl BootstrapError {
    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: Arc::new(source) }
    }
}
