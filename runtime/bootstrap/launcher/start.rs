//! What is found out about a process's start, and the place that follows from it.

use std::fmt;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::job::{JobId, Rendezvous};
use crate::config::{Launcher, Munge};

/// A process's number on its node, and how many there are on it, as the launcher says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The number on the node.
    pub rank: u32,
    /// Processes of the job on the node.
    pub size: u32,
}

/// A process's place in a job of several PEs.
#[derive(Debug, Clone)]
pub struct Place {
    /// This PE's number.
    pub rank: u32,
    /// PEs in the job.
    pub npes: u32,
    /// The job's identity.
    pub job: JobId,
    /// Where its PEs meet.
    pub rendezvous: Rendezvous,
    /// The rendezvous lists ports of which one is the hub's: others may serve other jobs.
    pub searching: bool,
    /// Why this PE has no secret, if it has none.
    pub bare: Option<String>,
}

/// What the settings say of the way into a job.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// `OXSHMEM_BOOTSTRAP_TIMEOUT`, for messages.
    pub timeout: Duration,
    /// When it has passed.
    pub deadline: Instant,
    /// `OXSHMEM_SECRET_FILE`.
    pub secret_file: Option<&'a Path>,
    /// `OXSHMEM_MUNGE`.
    pub munge: Munge,
}

/// How this process was started.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The launcher; [`Launcher::None`] if there is none.
    pub launcher: Launcher,
    /// How the PEs meet.
    pub start: Start,
    /// The place on the node, as the launcher says it.
    pub local: Option<Local>,
    /// Why this launcher was chosen.
    pub why: String,
    /// Variables that look like a launcher's and are not believed, with the reason.
    pub ignored: Vec<String>,
}

/// How the PEs of a job meet.
#[derive(Debug, Clone)]
pub enum Start {
    /// A job of one PE.
    Alone,
    /// Through PMIx's library.
    Pmix(PmixStart),
    /// Through PMI-2 or PMI-1 on the descriptor `PMI_FD`.
    Pmi(PmiStart),
    /// On a port that follows from public facts.
    Ports(PortStart),
}

impl Finding {
    /// Returns the finding of a launcher; a job of one PE needs no rendezvous.
    pub(super) fn new(launcher: Launcher, npes: u32, start: Start, local: Option<Local>, why: String) -> Self {
        let start = if npes == 1 { Start::Alone } else { start };
        Self { launcher, start, local, why, ignored: Vec::new() }
    }

    /// Logs what was found.
    pub(super) fn log(&self) {
        self.ignored.iter().for_each(|ignored| tracing::info!("{ignored}"));
        let local = self.local.map(|local| format!(", {local} on this node")).unwrap_or_default();
        tracing::debug!("launcher {}: {}{local}", self.launcher, self.why);
    }
}

/// What the variables of PMIx say.
#[derive(Debug, Clone)]
pub struct PmixStart {
    /// The job's name.
    pub namespace: String,
    /// This PE's number.
    pub rank: u32,
    /// How the PEs meet without the library, where Open MPI's variables suffice.
    pub without: Option<Without>,
}

/// How PEs meet without PMIx's library.
#[derive(Debug, Clone)]
pub enum Without {
    /// There is one PE.
    Alone,
    /// On a port.
    Ports(PortStart),
}

/// What the variables of a PMI say.
#[derive(Debug, Clone)]
pub struct PmiStart {
    /// The descriptor.
    pub fd: RawFd,
    /// This PE's number.
    pub rank: u32,
    /// PEs in the job.
    pub npes: u32,
    /// The job's name, if the launcher gives one.
    pub job: String,
    /// All PEs are on one node.
    pub one_node: bool,
}

/// What a launcher without a key-value space says.
#[derive(Debug, Clone)]
pub struct PortStart {
    /// The launcher.
    pub launcher: Launcher,
    /// This PE's number.
    pub rank: u32,
    /// PEs in the job.
    pub npes: u32,
    /// Rank 0's node.
    pub host: String,
    /// All PEs are on it.
    pub one_node: bool,
    /// The nodes of the job, if the launcher says.
    pub nodes: Option<Vec<String>>,
    /// What all PEs of the job know, and what no other job has.
    pub facts: String,
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.rank, self.size)
    }
}
