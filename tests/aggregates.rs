//! Aggregating contexts on simulated nodes and between PEs of one node that do not reach each other
//! by load and store.

#![allow(clippy::unwrap_used)]

use oxshmem::launch::PeStatus;
use oxshmem_tests::{Job, Transport, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Moves the effects of work requests apart as far as their order allows.
const FAULTS: &str = "seed=7,reorder=0.5,visibility";

/// A job of PEs that reach each other by load and store within a node, and over a network between
/// nodes.
fn on_nodes(case: &str, npes: u32, nodes: u32, network: &str) -> Job {
    Job::new(PE, case, npes).nodes(nodes).transport(Transport::Auto).env("OXSHMEM_NETWORK", network)
}

/// A job each of whose PEs is a node of its own, as aggregation has it.
fn apart(case: &str, npes: u32, transport: Transport) -> Job {
    Job::new(PE, case, npes).transport(transport)
}

macro_rules! passes {
    ($($name:ident: $job:expr;)*) => {
        $(
            #[test]
            fn $name() {
                $job.passes();
            }
        )*
    };
}

passes! {
    two_nodes_of_two_over_ibgda: on_nodes("aggregates", 4, 2, "ibgda");
    two_nodes_of_two_over_ibrc: on_nodes("aggregates", 4, 2, "ibrc");
    // Nodes of two, two and one PE: rings are not spread evenly.
    three_uneven_nodes_over_ibgda: on_nodes("aggregates", 5, 3, "ibgda");
    each_pe_a_node_over_ibgda: apart("aggregates", 3, Transport::Ibgda);
    each_pe_a_node_over_ibrc: apart("aggregates", 3, Transport::Ibrc);
    nothing_is_aggregated_by_load_and_store: apart("aggregates", 3, Transport::P2p);
    one_pe: apart("aggregates", 1, Transport::P2p);

    reordered_on_nodes: on_nodes("aggregates", 4, 2, "ibgda").env("OXSHMEM_SOFT_FAULTS", FAULTS);
    reordered_over_ibgda: apart("aggregates", 3, Transport::Ibgda).env("OXSHMEM_SOFT_FAULTS", FAULTS);
    reordered_over_ibrc: apart("aggregates", 3, Transport::Ibrc).env("OXSHMEM_SOFT_FAULTS", FAULTS);

    counts_over_ibgda: on_nodes("aggregate_counts", 4, 2, "ibgda");
    counts_over_ibrc: on_nodes("aggregate_counts", 4, 2, "ibrc");

    records_leave_when_they_are_old: on_nodes("aggregate_ages", 4, 2, "ibgda");
    records_leave_when_they_are_old_over_ibrc: on_nodes("aggregate_ages", 4, 2, "ibrc");

    // Every worker of the executor has a block that stays until all PEs have come so far.
    occupied_over_ibgda: on_nodes("aggregate_occupies", 4, 2, "ibgda").env("OXSHMEM_CPU_WORKERS", "4");
    occupied_over_ibrc: on_nodes("aggregate_occupies", 4, 2, "ibrc").env("OXSHMEM_CPU_WORKERS", "4");

    forged_records_are_refused: on_nodes("aggregate_forged", 2, 2, "ibgda");

    errors_on_nodes: on_nodes("aggregate_errors", 4, 2, "ibgda");
    errors_of_one_pe: apart("aggregate_errors", 1, Transport::P2p);
}

#[test]
fn sources_learn_what_a_dead_rail_peer_has_lost() {
    let outcome = on_nodes("aggregate_rail_dies", 4, 2, "ibgda").run();
    for (rank, pe) in outcome.pes.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert_eq!(pe.status, PeStatus::Exited(0), "PE {rank}\n{}", transcript(&outcome));
    }
    assert!(stdout(&outcome, 0).contains("survivor: PE 0: operations of an aggregating context are lost: 10 for PE 2"));
}
