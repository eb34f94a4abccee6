//! The mutants: changes of the headers, each of which breaks an invariant that some program sees.

use std::sync::Arc;

use crate::explore::{self, Found, Limit};
use crate::module::{Module, ModuleError, Recipe};
use crate::world::load;

/// A mutant, and the programs that can see it.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// A name, and of the file in `mutants/` unless `patched` is false.
    pub name: &'static str,
    /// Whether the headers are changed; otherwise only the widths are.
    pub patched: bool,
    /// The module.
    pub module: &'static str,
    /// Widths.
    pub defines: &'static [&'static str],
    /// Programs of the module.
    pub programs: &'static [&'static str],
}

/// The modules whose programs keep every invariant.
pub const MODULES: &[&str] = &["posting", "ibrc", "meeting", "packets"];

/// A counter of CQEs that is four times as wide as the deepest queue of programs.
pub const NARROW: &[&str] = &["OXSHMEM_CQE_COUNTER_BITS=4"];

const fn posting(name: &'static str, programs: &'static [&'static str]) -> Mutant {
    Mutant { name, patched: true, module: "posting", defines: NARROW, programs }
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    posting("finding-1-base-is-wanted", &["many", "p_p_p_quiet_8"]),
    posting("finding-2-fence-lost", &["fences", "fence_between_used"]),
    posting("finding-4-leader-sets-used", &["parts"]),
    posting("no-fence-before-stamps", &["p_quiet", "p_quiet_3", "many"]),
    posting("leave-relaxed", &["p_quiet", "p_quiet_3", "many"]),
    posting("no-rescan", &["p_quiet_3", "many", "p_p_p_quiet"]),
    posting("base-is-reserved", &["many", "p_p_p_quiet_8"]),
    posting("doorbell-before-record", &["p_quiet", "many"]),
    posting("device-fence-for-host-queues", &["p_quiet_host", "p_p_p_quiet_host"]),
    Mutant {
        name: "lap-of-2-bits",
        patched: false,
        module: "posting",
        defines: &["OXSHMEM_CQE_COUNTER_BITS=4", "OXSHMEM_STAMP_LAP_BITS=2"],
        programs: &["many"],
    },
    posting("landing-released-early", &["g_twice", "get_twice"]),
    posting("used-set-late", &["parts"]),
    posting("gate-read-early", &["quiet_of_other"]),
    Mutant {
        name: "epoch-wraps-early",
        patched: true,
        module: "meeting",
        defines: NARROW,
        programs: &["sync", "sync_3"],
    },
    Mutant {
        name: "flag-before-payload",
        patched: true,
        module: "packets",
        defines: NARROW,
        programs: &["fcollect", "alltoall"],
    },
    Mutant {
        name: "tag-before-slot",
        patched: true,
        module: "ibrc",
        defines: NARROW,
        programs: &["p_quiet", "fetch_adds"],
    },
];

impl Mutant {
    /// Returns how its module is compiled.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        let plain = Recipe::plain(self.module, self.defines);
        if self.patched { plain.patched(self.name) } else { plain }
    }

    /// Looks for it with at most that many steps, by all its programs in turn. Returns what was
    /// found, and the steps it took.
    ///
    /// # Errors
    /// The headers cannot be patched or compiled.
    pub fn hunt(&self, seed: u64, steps: u64) -> Result<(Option<Found>, u64), ModuleError> {
        const TURN: u64 = 1_000_000;
        let module: Arc<Module> = load(&self.recipe())?;
        let mut taken = 0;
        let mut seed = seed;
        while taken < steps {
            for program in self.programs {
                let report = explore::random(&module, program, seed, Limit::steps(TURN))?;
                taken += report.steps;
                if report.found.is_some() {
                    return Ok((report.found, taken));
                }
                seed = seed.wrapping_add(report.executions);
            }
        }
        Ok((None, taken))
    }
}
