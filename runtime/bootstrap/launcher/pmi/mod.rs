//! PMI-2 and PMI-1, spoken on the descriptor that the launcher left open: `PMI_FD`.
//!
//! PMI-1 is lines of `key=value` (Flux RFC 13; MPICH's `pmi-1.1.txt`). PMI-2 is messages with a
//! length before them (MPICH's `pmi-2.0.txt`). Both begin with the same line, so the version is
//! agreed on there: Hydra and Slurm's `pmi2` plugin speak both, Flux PMI-1.

mod talk;
#[cfg(test)]
mod tests;
mod wire;

use std::os::fd::RawFd;
use std::time::Instant;

use super::super::error::BootstrapError;
use super::common::{Seat, publish, unusable};
use super::environment::{Environment, check_rank};
use super::slurm;
use super::start::{Finding, Local, Place, PmiStart, Start};
use crate::config::Launcher;
use talk::Talk;
use wire::{Wire, WireError};

const THIS: Launcher = Launcher::Pmi;

/// Looks for a PMI's variables.
pub fn find(environment: &Environment) -> Result<Option<Finding>, BootstrapError> {
    if !environment.has("PMI_FD") {
        // Only together: a number alone may be another program's.
        if environment.has("PMI_PORT") && environment.has("PMI_ID") {
            let set = environment.show(&["PMI_PORT", "PMI_ID"]);
            return Err(unusable(
                THIS,
                format!(
                    "{set} is set and PMI_FD is not: this PMI is spoken over a port, which OxSHMEM does not do; start the program with mpiexec without -pmi-port"
                ),
            ));
        }
        return Ok(None);
    }
    let fd = environment.number(THIS, "PMI_FD", "PMI_FD")?;
    let rank = environment.number(THIS, "PMI_RANK", "PMI_FD")?;
    let npes = environment.number(THIS, "PMI_SIZE", "PMI_FD")?;
    check_rank(THIS, ("PMI_RANK", rank), ("PMI_SIZE", npes))?;
    let fd = RawFd::try_from(fd).map_err(|_| {
        unusable(THIS, format!("PMI_FD={fd} is no descriptor; start the program anew with its launcher"))
    })?;
    let local = environment.local("MPI_LOCALRANKID", "MPI_LOCALNRANKS").or_else(|| slurm_local(environment));
    let one_node = local.is_some_and(|local| local.size == npes);
    let job = environment.get("PMI_JOBID").unwrap_or("0").to_owned();
    let why = environment.show(&["PMI_FD", "PMI_RANK", "PMI_SIZE"]);
    let start = PmiStart { fd, rank, npes, job, one_node };
    Ok(Some(Finding::new(THIS, npes, Start::Pmi(start), local, why)))
}

/// Returns Slurm's variables, where they are of the same step as the PMI's.
fn slurm_local(environment: &Environment) -> Option<Local> {
    let same = |slurm, pmi| environment.has(slurm) && environment.get(slurm) == environment.get(pmi);
    if same("SLURM_PROCID", "PMI_RANK") && same("SLURM_STEP_NUM_TASKS", "PMI_SIZE") {
        slurm::local(environment)
    } else {
        None
    }
}

/// Returns the place that the PMI gives, and leaves the PMI.
pub fn place(start: &PmiStart, deadline: Instant) -> Result<Option<Place>, BootstrapError> {
    let PmiStart { fd, rank, npes, one_node, .. } = *start;
    let failed = |error: WireError| {
        unusable(
            THIS,
            format!(
                "PMI_FD={fd} (PMI_RANK={rank} PMI_SIZE={npes}): {error}; check that the launcher runs, and that this process is the first that uses \
                 its PMI (a program that has called MPI_Init joins by oxshmem_mpi.h)"
            ),
        )
    };
    let wire = Wire::new(fd, deadline).map_err(failed)?;
    let mut talk = Talk::begin(wire, start).map_err(failed)?;
    let seat = Seat { launcher: THIS, rank, npes, one_node };
    let place = publish(seat, |key, value| talk.exchange(key, value).map_err(failed))?;
    talk.finalize().map_err(failed)?;
    Ok(Some(place))
}
