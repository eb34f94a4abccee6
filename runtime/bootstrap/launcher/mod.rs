//! How this process was started, and where the PEs of its job meet.
//!
//! Without variables of OxSHMEM the launchers are looked for in this order: torchrun (if it has
//! named its run), PMIx, PMI-2 and PMI-1 on `PMI_FD`, torchrun, Open MPI's variables, Slurm's. The
//! first whose variables are there is the one; if they cannot be used, that is an error. A process
//! without any is a job of one PE.
//!
//! A launcher with a key-value space (PMIx, PMI) carries one value: rank 0 creates the job's
//! identity, starts the hub and publishes both. The others have no such space: there rank 0 starts
//! the hub on one of a few ports that follow from the job's public facts, and the other ranks look
//! for it there.

mod environment;
mod find;
mod nodelist;
mod openmpi;
mod pmi;
mod pmix;
mod ports;
mod slurm;
#[cfg(test)]
mod tests;
mod torchrun;

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::error::BootstrapError;
use super::failure::lock;
use super::job::{JobId, Rendezvous};
use super::unique_id::UniqueId;
use crate::config::{Config, Launcher};
pub use environment::Environment;
pub use find::{Finding, Start, find};

/// The key under which rank 0 publishes where the PEs meet.
const KEY: &str = "oxshmem.rendezvous";
/// What a published value starts with when rank 0 has failed; its error follows.
const FAILED: char = '!';

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
}

/// The place that a launcher gave this process: PMI initialises once, and the hub of rank 0 serves
/// every generation of the job.
static PLACE: Mutex<Option<(Launcher, Place)>> = Mutex::new(None);

/// Returns this process's place, or `None` for a job of one PE.
///
/// # Errors
/// A launcher's variables are there and cannot be used, or the launcher does not do its part before
/// the deadline.
pub fn place(config: &Config) -> Result<Option<Place>, BootstrapError> {
    if let (Some(rendezvous), Some(rank), Some(npes), Some(job)) =
        (config.rendezvous().as_ref(), config.rank(), config.npes(), config.job())
    {
        return Ok(Some(Place { rank, npes, job, rendezvous: rendezvous.clone(), searching: false }));
    }
    let finding = find(&Environment::of_process(), config.launcher())?;
    finding.log();
    let mut kept = lock(&PLACE);
    if let Some((_, place)) = kept.as_ref().filter(|(launcher, _)| *launcher == finding.launcher) {
        return Ok(Some(place.clone()));
    }
    let launcher = finding.launcher;
    let deadline = Instant::now() + config.bootstrap_timeout();
    let place = match finding.start {
        Start::Alone => None,
        Start::Pmix(start) => pmix::place(&start, deadline, config.secret_file().as_deref())?,
        Start::Pmi(start) => pmi::place(&start, deadline)?,
        Start::Ports(start) => ports::place(&start, config.secret_file().as_deref())?,
    };
    if let Some(place) = &place {
        tracing::info!("{launcher}: PE {} of {}, the job meets at {}", place.rank, place.npes, place.rendezvous);
        *kept = Some((launcher, place.clone()));
    }
    Ok(place)
}

/// What this process knows of the job before it has a rendezvous.
#[derive(Debug, Clone, Copy)]
struct Seat {
    launcher: Launcher,
    rank: u32,
    npes: u32,
    /// All PEs are on one node.
    one_node: bool,
}

/// Returns the place that follows from one exchange of a text: `exchange` publishes rank 0's under
/// the key that it is given, if there is one, and returns what rank 0 published.
fn publish(
    seat: Seat,
    exchange: impl FnOnce(&str, Option<&str>) -> Result<String, BootstrapError>,
) -> Result<Place, BootstrapError> {
    let Seat { launcher, rank, npes, one_node } = seat;
    let created = (rank == 0).then(|| UniqueId::start(Some(npes), one_node));
    let value = created.as_ref().map(|created| match created {
        Ok(id) => format!("{}@{}", id.job_id(), id.rendezvous()),
        // One line of printable characters, since PMI's messages are lines.
        Err(error) => super::cut(&format!("{FAILED}{error}"), 200).replace(|c: char| !c.is_ascii_graphic(), "_"),
    });
    let published = exchange(KEY, value.as_deref());
    if let Some(Err(error)) = created {
        return Err(error);
    }
    let published = published?;
    if let Some(error) = published.strip_prefix(FAILED) {
        let reason = format!("rank 0 cannot start the rendezvous: {}", error.replace('_', " "));
        return Err(unusable(launcher, reason));
    }
    let parsed =
        published.split_once('@').and_then(|(job, addresses)| Some((job.parse().ok()?, addresses.parse().ok()?)));
    let Some((job, rendezvous)) = parsed else {
        let shown = super::cut(&published, 80);
        return Err(unusable(
            launcher,
            format!("rank 0 published '{shown}', which is no rendezvous; start all PEs with one version of OxSHMEM"),
        ));
    };
    Ok(Place { rank, npes, job, rendezvous, searching: false })
}

/// The error of a launcher that cannot be used.
fn unusable(launcher: Launcher, reason: impl Into<String>) -> BootstrapError {
    BootstrapError::Launcher { launcher, reason: reason.into() }
}

/// A deadline's remaining time, at least a millisecond.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left.max(Duration::from_millis(1)))
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.rank, self.size)
    }
}
