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
pub const MODULES: &[&str] = &[
    "posting",
    "staging",
    "ibrc",
    "meeting",
    "packets",
    "blocks",
    "grid",
    "grid_few",
    "grid_large",
    "errors",
    "push",
    "direct",
    "levels",
    "cards",
    "contexts",
    "aggregates",
];

/// A counter of CQEs that is four times as wide as the deepest queue of programs, and the shortest
/// rings of aggregating contexts.
pub const NARROW: &[&str] = &["OXSHMEM_CQE_COUNTER_BITS=4", "OXSHMEM_AGGREGATE_SEGMENTS=2"];

const fn in_module(module: &'static str, name: &'static str, programs: &'static [&'static str]) -> Mutant {
    Mutant { name, patched: true, module, defines: NARROW, programs }
}

const fn posting(name: &'static str, programs: &'static [&'static str]) -> Mutant {
    in_module("posting", name, programs)
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    posting("finding-1-base-is-wanted", &["many", "p_p_p_quiet_8"]),
    posting("finding-2-fence-lost", &["fences", "fence_between_used"]),
    posting("finding-4-leader-sets-used", &["parts"]),
    posting("no-fence-before-stamps", &["p_quiet", "p_quiet_3", "many"]),
    posting("holder-leaves-stamps-unseen", &["p_quiet", "p_quiet_3", "many"]),
    posting("warp-awaits-stamps-of-what-rang", &["warps"]),
    posting("warp-rings-within-a-wqe", &["put_long_warps"]),
    posting("lane-rings-within-a-wqe", &["put_long"]),
    posting("waiters-leave-the-baton", &["p_quiet_3", "many", "p_p_p_quiet"]),
    posting("waiters-free-without-order", &["many", "p_p_p_quiet"]),
    posting("base-is-reserved", &["many", "p_p_p_quiet_8"]),
    posting("completed-one-too-early", &["p_quiet", "p_quiet_3", "p_p_p_quiet"]),
    posting("base-is-not-older", &["quiets_early"]),
    posting("doorbell-overtaken", &["many", "quiets_early", "warps"]),
    posting("doorbell-overtaken-by-lane", &["many", "quiets_early"]),
    posting("rings-early", &["many_without_record", "p_quiet_3"]),
    posting("doorbell-before-record", &["p_quiet", "many"]),
    posting("fence-left-out-without-record", &["many_without_record", "p_quiet_3_without_record"]),
    posting("older-doorbell-without-record", &["many_without_record", "quiets_early_without_record"]),
    posting("index-of-doorbell-before", &["p_once_without_record", "many_without_record"]),
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
    posting("used-read-early", &["quiet_of_first"]),
    posting("groups-that-wait-count", &["p_p_p_quiet_8"]),
    posting("single-finds-room", &["many", "p_p_p_quiet"]),
    posting("single-forgets-fence", &["fences", "fence_between_used"]),
    posting("single-leaves-others", &["p_quiet", "p_quiet_3"]),
    in_module("staging", "slot-reused-early", &["put_twice", "put_alone"]),
    in_module("staging", "staged-without-system-fence", &["put_twice", "put_once"]),
    in_module("staging", "staged-put-by-lanes-apart", &["put_by_warp"]),
    in_module("meeting", "epoch-wraps-early", &["sync", "sync_3"]),
    in_module("packets", "flag-before-payload", &["fcollect", "alltoall"]),
    in_module("ibrc", "tag-before-slot", &["p_quiet", "fetch_adds"]),
    in_module("meeting", "host-meets-without-release", &["host", "host_3"]),
    in_module("meeting", "epoch-closed-by-first-block", &["blocks"]),
    in_module("meeting", "blocks-count-on", &["blocks"]),
    in_module("meeting", "blocks-share-a-workspace", &["blocks"]),
    in_module("meeting", "unwritten-header-counts", &["blocks"]),
    in_module("meeting", "blocks-never-stop", &["disagreement"]),
    in_module("blocks", "blocks-share-packets", &["reduce_packets"]),
    in_module("blocks", "lanes-settle-alone", &["reduce_packets_warp"]),
    in_module("blocks", "relay-among-packets", &["reduce_relay_3"]),
    in_module("blocks", "relay-forgets-pieces", &["reduce_relay_3", "broadcast_relay_3"]),
    in_module("blocks", "share-handed-out-by-others", &["reduce_push", "reduce_push_long"]),
    in_module("blocks", "copied-meets-after-failure", &["fcollect_copied"]),
    in_module("blocks", "collected-not-awaited", &["collect_packets", "collect_some_pushed"]),
    in_module("grid", "left-meeting-not-told", &["late_members", "late_members_of_3"]),
    in_module("grid", "blame-is-passed-on-unseen", &["differing_rounds_of_4"]),
    in_module("grid", "refused-call-forgotten", &["refused_rounds_of_3"]),
    in_module("grid", "stopped-block-blames-its-own-pe", &["refused_levels_of_3"]),
    in_module("grid", "grid-arrives-relaxed", &["reduce_packets", "sync_early", "sync"]),
    in_module("grid", "grid-tells-no-member", &["late_block"]),
    in_module("grid", "given-up-turn-ends-well", &["absent_block", "absent_block_push"]),
    in_module("grid", "given-up-turn-ends-others", &["slow_to_look"]),
    in_module("grid", "turn-ends-well-though-given-up", &["late_block_alone_packets", "absent_block"]),
    in_module(
        "grid",
        "given-up-call-takes-no-epoch",
        &["left_out_once", "left_out_once_push", "left_out_once_packets"],
    ),
    in_module("grid", "late-block-goes-on", &["late_block_push", "late_block_alone_packets"]),
    in_module("grid", "entries-without-release", &["reduce_push", "reduce_one_shot"]),
    in_module("grid_large", "large-grid-arrives-relaxed", &["reduce_push_3"]),
    in_module("grid", "share-tells-no-member", &["late_block_push"]),
    in_module("grid", "failed-part-tells-nothing", &["aborted_in_two", "aborted_push", "aborted_push_3"]),
    in_module("grid", "failed-part-ends-well", &["aborted_push", "aborted_push_3"]),
    in_module("grid_few", "idle-block-counts-twice", &["disagreement_in_two_3", "aborted_twice"]),
    in_module("grid_few", "idle-block-awaits-all-members", &["aborted_push_3"]),
    in_module("grid", "epoch-of-given-up-call-not-taken", &["late_block_push"]),
    in_module("grid", "blocks-await-their-number-alone", &["reduce_push", "reduce_push_3"]),
    in_module("grid", "second-word-not-seen", &["reduce_push", "reduce_one_shot"]),
    in_module("grid", "packets-leave-without-order", &["reduce_packets_of_all", "fcollect_packets_of_all"]),
    in_module("grid", "packets-enter-without-order", &["reduce_packets_of_all", "fcollect_packets_of_all"]),
    in_module("grid", "failed-packets-end-well", &["aborted_packets", "aborted_packets_3"]),
    in_module("grid", "failed-packets-arrive-early", &["aborted_packets", "disagreement_packets"]),
    in_module("grid", "failed-packets-do-not-give-up", &["part_fails_as_job_ends_late"]),
    in_module("grid", "begun-does-not-wait", &["reduce_in_two"]),
    in_module("grid", "first-block-leaves-a-disagreement", &["disagreement_after_sync_of_3"]),
    in_module("errors", "first-error-overwritten", &["puts_fail", "puts_fail_3"]),
    in_module("errors", "error-in-two-reads", &["puts_fail_3", "puts_fail"]),
    in_module("errors", "error-counts-as-completion", &["puts_fail"]),
    in_module("errors", "breakage-not-reported", &["puts_fail"]),
    in_module("errors", "landing-kept-after-error", &["fetches_fail"]),
    in_module("errors", "late-post-keeps-queue", &["puts_late", "puts_late_3"]),
    in_module("direct", "direct-meets-without-release", &["alltoall"]),
    in_module("push", "arrival-before-data", &["fcollect"]),
    in_module("push", "collect-stores-unordered", &["collect", "collect_warp"]),
    in_module("push", "sends-not-completed", &["fcollect_far"]),
    in_module("push", "tree-overwrites-what-it-sends", &["reduce_tree"]),
    in_module("levels", "levels-do-not-await-room", &["reducescatter", "reducescatter_3"]),
    in_module("levels", "levels-result-not-awaited", &["reduce_3", "reduce_in_place_3"]),
    in_module("cards", "no-flush-before-quiet", &["p_quiet", "signal_by_other_card"]),
    in_module("cards", "fence-without-flush", &["fence_before_atomic"]),
    in_module("cards", "flush-noted-too-early", &["quiet_beside_quiet"]),
    in_module("contexts", "turns-without-order", &["turns", "turns_host"]),
    in_module("contexts", "full-batch-is-not-rung", &["batch", "batch_used"]),
    in_module("contexts", "fetch-leaves-batch", &["batch_and_fetch"]),
    in_module("contexts", "context-forgets-before-quiet", &["batch", "batch_used"]),
    in_module("contexts", "side-by-side-forgets", &["turns", "turns_host"]),
    in_module("contexts", "flush-takes-no-turn", &["turns", "turns_host"]),
    in_module("contexts", "gate-stored-before-doorbell", &["turns", "turns_host"]),
    in_module("contexts", "fence-keeps-room", &["fenced"]),
    in_module("contexts", "batch-keeps-room", &["grown"]),
    in_module("contexts", "room-for-one-more", &["own"]),
    in_module("contexts", "batch-grows-what-was-rung", &["grown"]),
    in_module("contexts", "batch-leaves-no-mark", &["grown"]),
    in_module("contexts", "warp-decides-apart", &["rows", "rows_of_more_blocks"]),
    in_module("contexts", "warp-misses-turns", &["rows", "rows_of_more_blocks"]),
    in_module("aggregates", "record-published-before-payload", &["puts_of_node"]),
    in_module("aggregates", "lanes-published-without-order", &["adds_lanes_16", "adds_lanes_early"]),
    in_module("aggregates", "gap-not-published", &["signalled"]),
    in_module("aggregates", "segment-reused-in-part", &["puts_of_node"]),
    in_module("aggregates", "arrival-read-relaxed", &["ascending_early", "adds_early"]),
    in_module("aggregates", "records-applied-twice", &["adds"]),
    in_module("aggregates", "two-slices-serve", &["two_slices"]),
    in_module("aggregates", "room-awaited-after-reserving", &["adds_late", "adds_late_alone"]),
    in_module("aggregates", "lanes-apply-at-once", &["ascending_lanes"]),
    in_module("aggregates", "signal-among-words", &["signalled_word"]),
    in_module("aggregates", "windows-without-order", &["ascending_windows"]),
    in_module("aggregates", "lanes-read-without-order", &["adds_lanes_early"]),
    in_module("aggregates", "acknowledged-before-applied", &["puts_1"]),
    in_module("aggregates", "acknowledged-without-order", &["to_both"]),
    in_module("aggregates", "quiet-awaits-sending", &["puts_1"]),
    in_module("aggregates", "quiet-awaits-all-but-one", &["puts_1"]),
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
