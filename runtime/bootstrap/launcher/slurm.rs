//! Slurm's variables, for steps of `srun` without a PMI plugin. See `srun(1)`, "OUTPUT ENVIRONMENT
//! VARIABLES".

use super::super::error::BootstrapError;
use super::common::unusable;
use super::environment::Environment;
use super::nodelist;
use super::start::{Finding, Local, PortStart, Start};
use crate::config::Launcher;

const THIS: Launcher = Launcher::Slurm;

/// What a step is known by.
const FACTS: [&str; 4] = ["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"];
/// Step ids from here on are Slurm's own: the batch script, the interactive shell, `extern`
/// (slurm.h, `SLURM_BATCH_SCRIPT` and its neighbours).
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// Looks for the variables of a step. The shells of `sbatch` and `salloc` have some of them, and
/// are not steps that `srun` started: a program there is a job of one PE.
pub fn find(environment: &Environment, ignored: &mut Vec<String>) -> Result<Option<Finding>, BootstrapError> {
    let in_step = environment.has("SLURM_STEP_ID") && environment.has("SLURM_PROCID");
    let special =
        environment.get("SLURM_STEP_ID").and_then(|id| id.parse().ok()).is_some_and(|id: u32| id >= FIRST_SPECIAL_STEP);
    if !in_step || special {
        if environment.has("SLURM_JOB_ID") {
            let seen = environment.show(&["SLURM_JOB_ID", "SLURM_NTASKS"]);
            ignored.push(format!(
                "{seen}: an allocation of Slurm, and srun did not start this process, so this is a job of one PE"
            ));
        }
        return Ok(None);
    }
    // SLURM_NTASKS may be the allocation's; this is the step's.
    let (rank, npes) = environment.rank_of(THIS, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")?;
    let local = local(environment);
    let why = environment.show(&["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"]);
    if npes == 1 {
        return Ok(Some(Finding::new(THIS, npes, Start::Alone, local, why)));
    }
    environment.number(THIS, "SLURM_JOB_ID", "SLURM_PROCID")?;
    let list = environment.text(THIS, "SLURM_STEP_NODELIST", "SLURM_PROCID")?;
    let host = nodelist::first(list).map_err(|reason| {
        unusable(
            THIS,
            format!("SLURM_STEP_NODELIST={list}: {reason}; start the program with srun --mpi=pmi2 or --mpi=pmix"),
        )
    })?;
    if let Some(here) = environment.get("SLURMD_NODENAME").filter(|here| rank == 0 && *here != host) {
        return Err(unusable(
            THIS,
            format!(
                "task 0 runs on {here}, not on {host}, the first node of SLURM_STEP_NODELIST={list}, where the other tasks look for it; \
                 start the program with srun --mpi=pmi2 or --mpi=pmix"
            ),
        ));
    }
    let one_node = environment.get("SLURM_STEP_NUM_NODES") == Some("1");
    let nodes =
        nodelist::all(list).map_err(|reason| unusable(THIS, format!("SLURM_STEP_NODELIST={list}: {reason}")))?;
    let facts = environment.show(&FACTS);
    let start = PortStart { launcher: THIS, rank, npes, host, one_node, nodes: Some(nodes), facts };
    Ok(Some(Finding::new(THIS, npes, Start::Ports(start), local, why)))
}

/// Returns the place on the node: `SLURM_STEP_TASKS_PER_NODE` is like `2(x3),1`, in the order of
/// the nodes.
pub fn local(environment: &Environment) -> Option<Local> {
    let rank = environment.get("SLURM_LOCALID")?.parse().ok()?;
    let node: usize = environment.get("SLURM_NODEID")?.parse().ok()?;
    let mut before = 0usize;
    for item in environment.get("SLURM_STEP_TASKS_PER_NODE")?.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (item, 1),
        };
        before = before.checked_add(times)?;
        if node < before {
            let size = tasks.parse().ok()?;
            return (rank < size).then_some(Local { rank, size });
        }
    }
    None
}

/// Returns what [`local`] returns, where the variables are of the step in which this process has
/// number `rank`.
pub fn local_of(environment: &Environment, rank: u32) -> Option<Local> {
    (environment.get("SLURM_PROCID")?.parse() == Ok(rank)).then(|| local(environment)).flatten()
}
