//! Open MPI's own variables, for processes whose PMIx cannot be used. They say nothing of rank 0's
//! node, so they are enough for a job on one node only. See `mpirun(1)`, "Exported environment
//! variables".

use super::super::error::BootstrapError;
use super::common::unusable;
use super::environment::Environment;
use super::start::{Finding, PortStart, Start};
use crate::config::Launcher;

const THIS: Launcher = Launcher::Openmpi;

/// What a job of Open MPI is known by; which of them are there depends on the release.
const FACTS: [&str; 5] =
    ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PRTE_LAUNCHED", "OMPI_COMM_WORLD_SIZE"];

/// Looks for Open MPI's variables.
pub fn find(environment: &Environment) -> Result<Option<Finding>, BootstrapError> {
    if !environment.has("OMPI_COMM_WORLD_RANK") && !environment.has("OMPI_COMM_WORLD_SIZE") {
        return Ok(None);
    }
    let (rank, npes) = environment.rank_of(THIS, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")?;
    let local = environment.local("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    let why = environment.show(&["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"]);
    if npes > 1 && local.is_none_or(|local| local.size != npes) {
        return Err(unusable(
            THIS,
            format!(
                "{why}: the job has several nodes, and these variables do not say where rank 0 is; install libpmix.so.2 \
                 (Debian's libpmix2) on every node, or join through MPI (oxshmem_mpi.h)"
            ),
        ));
    }
    let facts = environment.show(&FACTS);
    let start = PortStart { launcher: THIS, rank, npes, host: "127.0.0.1".into(), one_node: true, nodes: None, facts };
    Ok(Some(Finding::new(THIS, npes, Start::Ports(start), local, why)))
}
