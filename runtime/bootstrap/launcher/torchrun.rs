//! torchrun: `RANK`, `WORLD_SIZE` and, beside `LOCAL_RANK`, where the first node is. See
//! <https://docs.pytorch.org/docs/stable/elastic/run.html>, "Environment Variables".

use super::super::error::BootstrapError;
use super::environment::Environment;
use super::start::{Finding, PortStart, Start};
use crate::config::Launcher;

const THIS: Launcher = Launcher::Torchrun;

/// What a run of torchrun is known by: all workers of it have the same values, and no other run has
/// all of them.
///
/// `TORCHELASTIC_RESTART_COUNT` is not among them. Each agent counts the failures of its own
/// workers alone, so workers that start together on two nodes may differ in it. Rounds of restarts
/// do not meet each other without it either. Agents end their workers before they agree on the next
/// round, in which the first of them chooses another `MASTER_PORT`, unless the user has given one.
/// With the same port PEs may find the rendezvous of the round before at its end. It refuses a
/// process that takes the place of one that was there, as that of one program does
/// (`HubOptions::one_program`), and a PE that is refused goes on searching.
const FACTS: [&str; 4] = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"];

/// Returns whether torchrun started this process itself, whatever started torchrun.
pub fn is_nearest(environment: &Environment) -> bool {
    ["TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK", "WORLD_SIZE"].iter().all(|name| environment.has(name))
}

/// Looks for torchrun's variables. `RANK` and `WORLD_SIZE` alone count nodes in some clouds, so
/// they are believed only beside `LOCAL_RANK`.
pub fn find(environment: &Environment, ignored: &mut Vec<String>) -> Result<Option<Finding>, BootstrapError> {
    let world = environment.show(&["RANK", "WORLD_SIZE"]);
    if !environment.has("LOCAL_RANK") {
        if !world.is_empty() {
            ignored.push(format!("{world} without LOCAL_RANK is not torchrun's and is ignored"));
        }
        return Ok(None);
    }
    if world.is_empty() {
        let local = environment.show(&["LOCAL_RANK"]);
        ignored.push(format!("{local} without RANK and WORLD_SIZE is not torchrun's and is ignored"));
        return Ok(None);
    }
    let (rank, npes) = environment.rank_of(THIS, "RANK", "WORLD_SIZE")?;
    environment.number(THIS, "LOCAL_RANK", "RANK")?;
    let local = environment.local("LOCAL_RANK", "LOCAL_WORLD_SIZE");
    let why = environment.show(&["RANK", "WORLD_SIZE", "LOCAL_RANK"]);
    if npes == 1 {
        return Ok(Some(Finding::new(THIS, npes, Start::Alone, local, why)));
    }
    let host = environment.text(THIS, "MASTER_ADDR", "RANK")?.to_owned();
    environment.number(THIS, "MASTER_PORT", "RANK")?;
    let one_node = local.is_some_and(|local| local.size == npes);
    let start = PortStart { launcher: THIS, rank, npes, host, one_node, nodes: None, facts: environment.show(&FACTS) };
    Ok(Some(Finding::new(THIS, npes, Start::Ports(start), local, why)))
}
