//! How to open a software HCA.

use super::accelerator::Accelerator;
use super::copying::CopyMode;
use super::faults::FaultPlan;
use crate::error::{Error, Result};
use std::fmt;
use std::io::Write;
use std::sync::Arc;

/// How to open a software HCA.
#[derive(Default)]
pub struct SoftOptions {
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Where to print what is executed; nowhere if `None`.
    pub trace: Option<Box<dyn Write + Send>>,
    /// Whether the caller drives the engine itself with
    /// [`SoftHca::progress`](super::SoftHca::progress), instead of a thread.
    pub stepped: bool,
    /// What executes send queues instead of this process's CPU, in memory that only it reaches.
    /// Registered memory is then given by addresses that are valid there, and CQs are collapsed.
    pub accelerator: Option<Arc<dyn Accelerator>>,
    /// With an accelerator: this process posts and rings. Queues are then in memory of the host
    /// that kernels reach too, and so are doorbell registers. Without it, kernels post and ring.
    pub host_doorbells: bool,
    /// Doorbells are as on a card: any number of queue pairs may ring one register, and no code
    /// calls [`doorbell_rung`](super::doorbell_rung) or
    /// [`Provider::prepare`](crate::provider::Provider::prepare). With an accelerator queues may be
    /// anywhere where kernels reach them, and registering memory that peers may use waits until the
    /// connected peers have mapped it.
    pub card_doorbells: bool,
    /// Writes are acknowledged before they are visible, by 2 us to 2 ms, in the order of all of the
    /// HCA's QPs; its reads find those at their peer, and its atomics all. Only the engine of the
    /// CPU does so.
    pub late_visibility: bool,
    /// As on a platform that does not order the writes of a card: what is acknowledged becomes
    /// visible later, in any order, unless a read at the same peer or an atomic of the HCA comes
    /// first. Only the engine of the CPU does so.
    pub unordered_visibility: bool,
    /// When the engine's thread executes by copies what the accelerator's kernel otherwise does.
    pub copying: CopyMode,
    /// Complete what is posted, and execute nothing: measures posting alone. Needs an accelerator.
    pub null: bool,
    /// The lower half of its GID, which no other HCA of this machine may have; random without.
    pub interface: Option<u64>,
}

impl SoftOptions {
    /// Turns on the trace on standard error.
    pub fn traced(mut self) -> Self {
        self.trace = Some(Box::new(std::io::stderr()));
        self
    }
}

impl fmt::Debug for SoftOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftOptions")
            .field("faults", &self.faults)
            .field("trace", &self.trace.is_some())
            .field("stepped", &self.stepped)
            .field("accelerator", &self.accelerator)
            .field("host_doorbells", &self.host_doorbells)
            .field("card_doorbells", &self.card_doorbells)
            .field("late_visibility", &self.late_visibility)
            .field("unordered_visibility", &self.unordered_visibility)
            .field("copying", &self.copying)
            .field("null", &self.null)
            .field("interface", &self.interface)
            .finish()
    }
}

/// Refuses what an engine with a kernel cannot do.
pub(super) fn check_options(options: &SoftOptions) -> Result<()> {
    if options.card_doorbells && (options.host_doorbells || options.null) {
        let rule = "the poster rings them, and what is posted is executed";
        return Err(Error::argument("card_doorbells", true, rule));
    }
    if options.accelerator.is_none() {
        if options.host_doorbells {
            let rule = "the engine's thread looks at registers of its own; only its kernel needs others";
            return Err(Error::argument("host_doorbells", true, rule));
        }
        let rule = "the null card is a mode of the engine's kernel (OXSHMEM_SOFT_ENGINE=kernel)";
        return if options.null { Err(Error::argument("null", true, rule)) } else { Ok(()) };
    }
    if options.faults != (FaultPlan { seed: options.faults.seed, ..FaultPlan::default() }) {
        let rule = "only the engine of the CPU misbehaves on demand (OXSHMEM_SOFT_ENGINE=thread)";
        return Err(Error::argument("faults", &options.faults, rule));
    }
    Ok(())
}
