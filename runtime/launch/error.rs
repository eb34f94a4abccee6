//! Why a job could not be started or watched.

use std::io;
use std::sync::Arc;

use super::outcome::LAUNCHER_FAILED;
use crate::bootstrap::BootstrapError;
use crate::config::MAX_NPES;

/// Why a job could not be started or watched.
///
/// ```
/// use oxshmem::launch::{LaunchError, LaunchOptions, run};
///
/// let refused = run(&LaunchOptions::new(2, "/no/such/program"));
/// assert!(matches!(refused, Err(LaunchError::Program { .. })));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The program cannot be executed.
    #[error("cannot start '{program}': {source}; give the path of an executable file, or the name of one on PATH")]
    Program {
        /// The value as it was given.
        program: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// A number of PEs that a job cannot have.
    #[error("a job cannot have {0} PEs; give a number from 1 to {MAX_NPES} (oxrun -n)")]
    Npes(u32),
    /// More nodes than PEs.
    #[error("{npes} PEs cannot be on {nodes} nodes; give at most as many nodes as PEs (oxrun --nodes)")]
    Nodes {
        /// Nodes that were requested.
        nodes: u32,
        /// PEs of the job.
        npes: u32,
    },
    /// Hosts that are none.
    #[error(
        "'{0}' names no hosts: expected names with or without a number of PEs, like a,b:4 or [fe80::1]:2 (oxrun --hosts)"
    )]
    Hosts(String),
    /// More PEs than the hosts take.
    #[error("the hosts take {slots} PEs, and the job has {npes} PEs; give a host a larger number, or all of them none")]
    Slots {
        /// PEs of the job.
        npes: u32,
        /// PEs that the hosts take.
        slots: u32,
    },
    /// A remote shell without a name.
    #[error(
        "the remote shell is an empty command; name one that runs a command on a host, like ssh (oxrun --launcher)"
    )]
    RemoteShell,
    /// The launcher on another machine and the one on a host do not understand each other.
    #[error(
        "oxrun of this host cannot start its PEs: {0}; run the same version of oxrun on all hosts (oxrun --node is for oxrun --hosts alone)"
    )]
    Node(String),
    /// The rendezvous did not start.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The operating system refused something that the launcher needs.
    #[error("{what}: {source}{}", crate::limits::remedy(source))]
    System {
        /// What was attempted.
        what: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
}

impl LaunchError {
    pub(super) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: Arc::new(source.into()) }
    }

    /// Returns what a shell's status for it would be: 127 for a program that does not exist, 126
    /// for one that cannot be executed, 2 for a number of PEs or nodes or for hosts that a job
    /// cannot have, and otherwise 125.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// assert_eq!(run(&LaunchOptions::new(2, "/no/such/program")).unwrap_err().exit_code(), 127);
    /// ```
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            Self::Npes(_) | Self::Nodes { .. } | Self::Hosts(_) | Self::Slots { .. } | Self::RemoteShell => 2,
            _ => LAUNCHER_FAILED,
        }
    }
}
