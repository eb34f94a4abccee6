//! Jobs of several nodes, played on this machine: load and store within a node, and the software
//! HCA over TCP between nodes.

use oxshmem_tests::{Job, Transport, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Runs a case on the `cpu` device, on two nodes.
fn passes(case: &str, npes: u32, transport: Transport) {
    Job::new(PE, case, npes).nodes(2).transport(transport).passes();
}

#[test]
fn transfers_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibrc] {
        passes("rma", 3, transport);
    }
}

#[test]
fn signals_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibrc] {
        passes("signals", 4, transport);
    }
}

#[test]
fn atomics_between_nodes() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        passes("atomic_values", 3, transport);
        passes("atomic_contention", 3, transport);
    }
}

#[test]
fn fences_and_barriers_between_nodes() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        passes("fence", 2, transport);
        passes("barriers", 4, transport);
    }
}

#[test]
fn operations_of_the_host_between_nodes() {
    passes("host_transfers", 3, Transport::Auto);
    passes("host_atomics", 2, Transport::Ibrc);
}

/// Each collective with every algorithm takes half a minute on two cores.
#[test]
#[ignore = "takes half a minute; run it with --ignored"]
fn collectives_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibgda, Transport::Ibrc] {
        passes("collectives", 4, transport);
    }
}

#[test]
fn load_and_store_do_not_reach_another_node() {
    let outcome = Job::new(PE, "rma", 2).nodes(2).transport(Transport::P2p).run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("it is on another node"), "{text}");
}

#[test]
fn an_engine_that_cannot_reach_other_nodes_says_so_at_once() {
    let job = Job::new(PE, "rma", 2).nodes(2).transport(Transport::Ibgda).env("OXSHMEM_SOFT_ENGINE", "kernel");
    let outcome = job.run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("only the engine of the CPU reaches other nodes"), "{text}");
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let job = Job::new(PE, "rma", 2).nodes(2).transport(Transport::Ibgda).env("OXSHMEM_INTERFACE", "no-such");
    let text = transcript(&job.run());
    assert!(text.contains("no interface fits 'no-such'; this machine has"), "{text}");
    // The one that is there, by its addresses.
    Job::new(PE, "rma", 2).nodes(2).transport(Transport::Ibgda).env("OXSHMEM_INTERFACE", "127.0.0.0/8").passes();
}

/// The others are told, and none of them hangs.
#[test]
fn a_pe_of_another_node_that_dies_is_noticed() {
    for case in ["dies_in_barrier", "dies_in_kernel"] {
        let outcome = Job::new(PE, case, 3).nodes(2).transport(Transport::Ibgda).run();
        let text = transcript(&outcome);
        assert!(!outcome.is_success() && text.contains(") died"), "{case}: {text}");
    }
}
