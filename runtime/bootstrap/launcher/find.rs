//! Which launcher started this process, by its variables alone.

use super::super::error::BootstrapError;
use super::common::unusable;
use super::environment::Environment;
use super::start::{Finding, Start};
use super::{openmpi, pmi, pmix, slurm, torchrun};
use crate::config::Launcher;

/// Returns how the process with these variables was started: by `wanted`, or with
/// [`Launcher::Auto`] by the first whose variables are there.
///
/// # Errors
/// The launcher's variables cannot be used, or those of a launcher that is wanted are absent.
pub fn find(environment: &Environment, wanted: Launcher) -> Result<Finding, BootstrapError> {
    let mut ignored = Vec::new();
    let found = match wanted {
        Launcher::None => None,
        Launcher::Auto => first(environment, &mut ignored)?,
        one => {
            let found = look(environment, one, &mut ignored)?;
            if found.is_none() {
                let names = names(one);
                return Err(unusable(
                    one,
                    format!(
                        "OXSHMEM_LAUNCHER={one}, but {names} is not set here; start the program with it, or unset OXSHMEM_LAUNCHER"
                    ),
                ));
            }
            found
        }
    };
    let mut found = found.unwrap_or_else(|| {
        let why = match wanted {
            Launcher::None => "OXSHMEM_LAUNCHER=none",
            _ => "no launcher's variables are set",
        };
        Finding::new(Launcher::None, 1, Start::Alone, None, why.into())
    });
    found.ignored.append(&mut ignored);
    Ok(found)
}

/// Looks for the launchers in their order.
fn first(environment: &Environment, ignored: &mut Vec<String>) -> Result<Option<Finding>, BootstrapError> {
    // torchrun is often started by another launcher, once for each node, and its workers inherit
    // that launcher's variables. TORCHELASTIC_RUN_ID says that it is the nearest.
    let nearest = torchrun::is_nearest(environment).then_some(Launcher::Torchrun);
    let order = [Launcher::Pmix, Launcher::Pmi, Launcher::Torchrun, Launcher::Openmpi, Launcher::Slurm];
    for launcher in nearest.into_iter().chain(order) {
        if let Some(found) = look(environment, launcher, ignored)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn look(
    environment: &Environment,
    launcher: Launcher,
    ignored: &mut Vec<String>,
) -> Result<Option<Finding>, BootstrapError> {
    match launcher {
        Launcher::Auto | Launcher::None => Ok(None),
        Launcher::Pmix => pmix::find(environment),
        Launcher::Pmi => pmi::find(environment),
        Launcher::Torchrun => torchrun::find(environment, ignored),
        Launcher::Openmpi => openmpi::find(environment),
        Launcher::Slurm => slurm::find(environment, ignored),
    }
}

/// Returns the variable that tells the launcher.
fn names(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Auto | Launcher::None => "a launcher's variable",
        Launcher::Pmix => "PMIX_NAMESPACE",
        Launcher::Pmi => "PMI_FD",
        Launcher::Torchrun => "RANK, WORLD_SIZE and LOCAL_RANK",
        Launcher::Openmpi => "OMPI_COMM_WORLD_RANK",
        Launcher::Slurm => "SLURM_STEP_ID of a step that srun started",
    }
}
