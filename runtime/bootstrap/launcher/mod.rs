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

mod common;
mod environment;
mod find;
mod nodelist;
mod openmpi;
mod pmi;
mod pmix;
mod ports;
mod report;
mod slurm;
mod start;
#[cfg(test)]
mod tests;
mod torchrun;

use std::sync::Mutex;
use std::time::Instant;

use super::error::BootstrapError;
use super::failure::lock;
use crate::config::{Config, Launcher};
pub use environment::Environment;
pub use find::find;
pub use report::Report;
use start::Means;
pub use start::{Finding, Local, Place, Start};

/// The place that a launcher gave this process: PMI initialises once, and the hub of rank 0 serves
/// every generation of the job.
static PLACE: Mutex<Option<(Launcher, Place)>> = Mutex::new(None);

/// Returns this process's place, or `None` for a job of one PE.
///
/// # Errors
/// A launcher's variables are there and cannot be used, or the launcher does not do its part before
/// the deadline.
pub fn place(config: &Config, deadline: Instant) -> Result<Option<Place>, BootstrapError> {
    if let (Some(rendezvous), Some(rank), Some(npes), Some(job)) =
        (config.rendezvous().as_ref(), config.rank(), config.npes(), config.job())
    {
        return Ok(Some(Place { rank, npes, job, rendezvous: rendezvous.clone(), searching: false, bare: None }));
    }
    let finding = find(&Environment::of_process(), config.launcher())?;
    finding.log();
    let mut kept = lock(&PLACE);
    if let Some((_, place)) = kept.as_ref().filter(|(launcher, _)| *launcher == finding.launcher) {
        return Ok(Some(place.clone()));
    }
    let launcher = finding.launcher;
    let secret_file = config.secret_file().as_deref();
    let means = Means { timeout: config.bootstrap_timeout(), deadline, secret_file, munge: config.munge() };
    let place = match finding.start {
        Start::Alone => None,
        Start::Pmix(start) => pmix::place(&start, &means)?,
        Start::Pmi(start) => pmi::place(&start, deadline)?,
        Start::Ports(start) => ports::place(&start, &means)?,
    };
    if let Some(place) = &place {
        tracing::info!("{launcher}: PE {} of {}, the job meets at {}", place.rank, place.npes, place.rendezvous);
        *kept = Some((launcher, place.clone()));
    }
    Ok(place)
}
