//! One PE of a conformance or fault test: `conformance-pe CASE ARGS...`, started by the tests as
//! often as a job has PEs.

#![allow(clippy::unwrap_used)] // A failed case ends this process, which is how it reports.

mod aggregates;
mod atomics;
mod barriers;
mod buffers;
mod cable;
mod check;
mod collect;
mod collectives;
mod compat_names;
mod contexts;
mod costs;
mod errors;
mod exchange;
mod float_sums;
mod grid;
mod hca;
mod host;
mod host_collectives;
mod lanes;
mod layout;
mod levels;
mod memory;
mod posting;
mod processes;
mod profile;
mod proxy;
mod queues;
mod rig;
mod rma;
mod routes;
mod signals;
mod sound;
mod streams;
mod teams;
mod typed;
mod waits;

use std::process::ExitCode;

/// What a case returns; an error or a panic fails the test, with its text.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A case and its name.
type Case = (&'static str, fn(&[String]) -> Outcome);

const CASES: &[Case] = &[
    ("aborts", processes::aborts),
    ("aborts_beside", processes::aborts_beside),
    ("aggregate_absent", aggregates::absent),
    ("aggregate_ages", aggregates::ages),
    ("aggregate_counts", aggregates::counts),
    ("aggregate_errors", aggregates::errors),
    ("aggregate_forged", aggregates::forged),
    ("aggregate_occupies", aggregates::occupies),
    ("aggregate_rail_dies", aggregates::rail_dies),
    ("aggregates", aggregates::aggregates),
    ("atomic_contention", atomics::contention),
    ("atomic_values", atomics::values),
    ("beyond", errors::beyond),
    ("bad_local", posting::bad_local),
    ("barriers", barriers::barriers),
    ("barrier_after_wait", barriers::barrier_after_wait),
    ("buffers", buffers::buffers),
    ("collect_errors", collect::errors),
    ("collect_lengths", collect::lengths),
    ("collective_errors", collectives::collective_errors),
    ("collective_timeouts", collectives::collective_timeouts),
    ("collectives", collectives::collectives),
    ("collectives_thinned", collectives::thinned),
    ("check_buffers", check::buffers),
    ("check_calls", check::calls),
    ("check_waits", check::waits),
    ("completion_error", queues::completion_error),
    ("costs", costs::count),
    ("crashes", errors::crashes),
    ("context_batches", contexts::batches),
    ("context_errors", contexts::errors),
    ("context_absent", contexts::absent),
    ("context_in_use", contexts::in_use),
    ("context_names", contexts::names),
    ("contexts", contexts::contexts),
    ("crowd", posting::crowd),
    ("cut_cable", cable::cut_cable),
    ("descriptors", proxy::descriptors),
    ("dies_amid_collectives", processes::dies_amid_collectives),
    ("dies_in_alloc", processes::dies_in_alloc),
    ("dies_in_barrier", processes::dies_in_barrier),
    ("dies_in_bootstrap", processes::dies_in_bootstrap),
    ("dies_in_collective", processes::dies_in_collective),
    ("dies_in_finalize", processes::dies_in_finalize),
    ("dies_in_kernel", processes::dies_in_kernel),
    ("dies_in_split", processes::dies_in_split),
    ("dies_with_lent_rings", processes::dies_with_lent_rings),
    ("dies_under_load", processes::dies_under_load),
    ("drops", processes::drops),
    ("drops_with_reason", processes::drops_with_reason),
    ("few_files", processes::few_files),
    ("exchange", exchange::exchange),
    ("failed_fetches", posting::failed_fetches),
    ("fence", barriers::fence),
    ("flood", queues::flood),
    ("flushed_error", queues::flushed_error),
    ("given_up", posting::given_up),
    ("hca_loopback", hca::loopback),
    ("hca_recovers", hca::recovers),
    ("hca_report", hca::report),
    ("hca_rounds", hca::rounds),
    ("host_atomics", host::atomics),
    ("grid_collectives", grid::collectives),
    ("grid_relays", grid::relays),
    ("grid_tuned", grid::tuned),
    ("grid_errors", grid::errors),
    ("grid_transfers", grid::transfers),
    ("float_orders", float_sums::float_orders),
    ("float_sums", float_sums::float_sums),
    ("host_collectives", host_collectives::collectives),
    ("host_collectives_late", host_collectives::late),
    ("host_collectives_late_once", host_collectives::late_once),
    ("host_collectives_long", host_collectives::long),
    ("host_collectives_mismatches", host_collectives::mismatches),
    ("host_collectives_missing", host_collectives::missing),
    ("host_collectives_refused", host_collectives::refused),
    ("host_collectives_thinned", host_collectives::thinned),
    ("host_fence", queues::host_fence),
    ("host_heap", host::heap),
    ("host_memory", host::memory),
    ("host_mismatch", host::mismatch),
    ("host_rounds", host::rounds),
    ("host_signals", host::signals),
    ("host_transfers", host::transfers),
    ("lanes", lanes::lanes),
    ("layout", layout::layout),
    ("lost_barrier", cable::lost_barrier),
    ("lost_packets", cable::lost_packets),
    ("levels", levels::levels),
    ("memory", memory::memory),
    ("mixed_words", atomics::mixed_words),
    ("order", queues::order),
    ("own_posts", posting::own_posts),
    ("pointers", barriers::pointers),
    ("probe", layout::probe),
    ("profile", profile::profile),
    ("profile_cost", profile::cost),
    ("profile_full", profile::full),
    ("proxy_threads", proxy::threads),
    ("put_flood", proxy::put_flood),
    ("refused", errors::refused),
    ("reproducible", collectives::reproducible),
    ("requests", queues::requests),
    ("rma", rma::rma),
    ("routes", routes::routes),
    ("routes_blocks", routes::blocks),
    ("routes_staged", routes::staged),
    ("set_up", hca::set_up),
    ("signals", signals::signals),
    ("sound_earlier_pe", sound::earlier_pe),
    ("sound_freed", sound::freed),
    ("spread", queues::spread),
    ("stream_aborted", streams::aborted),
    ("stream_dropped", streams::dropped),
    ("stream_errors", streams::errors),
    ("streams", streams::streams),
    ("scarce_descriptors", buffers::scarce),
    ("symmetric_buffers", buffers::symmetric),
    ("teams", teams::teams),
    ("teams_absent", teams::absent),
    ("teams_busy", teams::busy),
    ("teams_refused", teams::refused),
    ("teams_turnover", teams::turnover),
    ("timeouts", errors::timeouts),
    ("typed", typed::typed),
    ("typed_collectives", typed::collectives),
    ("compat_own_memory", typed::compat_own_memory),
    ("compat_exit", compat_names::exit),
    ("compat_fence", compat_names::fence),
    ("compat_names", compat_names::names),
    ("compat_qps", compat_names::qps),
    ("compat_typed", typed::compat_typed),
    ("compat_typed_collectives", typed::compat_collectives),
    ("waits", waits::waits),
    ("word_ping_pong", queues::word_ping_pong),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = args.split_first() else {
        eprintln!(
            "conformance-pe CASE ARGS...; the cases: {:?}",
            CASES.iter().map(|(name, _)| name).collect::<Vec<_>>()
        );
        return ExitCode::from(2);
    };
    if ["-h", "--help"].contains(&name.as_str()) {
        println!("conformance-pe CASE ARGS...: one PE of a test of OxSHMEM; start it with oxrun. The cases:");
        CASES.iter().for_each(|(name, _)| println!("  {name}"));
        return ExitCode::SUCCESS;
    }
    let Some((_, case)) = CASES.iter().find(|(known, _)| known == name) else {
        eprintln!("no case `{name}`; conformance-pe --help lists those that there are");
        return ExitCode::from(2);
    };
    // A case that sets `OXSHMEM_LOG` wrongly, or any other variable, reports that itself.
    if let Ok(config) = oxshmem::Config::from_env() {
        config.init_log();
    }
    match case(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
