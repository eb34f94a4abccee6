//! The check mode: it finds what it is for, takes nothing else for that, and says where it cannot
//! see.

use oxshmem::launch::Outcome;
use oxshmem_tests::{Job, Transport};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

fn job(case: &str, transport: Transport, check: &str) -> Job {
    // Deadlines that pass only after the limit of jobs: what is found is not found by them.
    Job::new(PE, case, 2)
        .transport(transport)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_CHECK", check)
        .env("OXSHMEM_DUMP", "none")
        .env("OXSHMEM_TIMEOUT", "10min")
        .env("OXSHMEM_BOOTSTRAP_TIMEOUT", "10min")
}

fn errors(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8_lossy(&outcome.pes[rank].stderr).into_owned()
}

#[test]
fn a_buffer_that_is_reused_without_quiet_is_found() {
    job("check_buffers", Transport::Ibgda, "buffers").args(&["reuse"]).passes();
    let outcome = job("check_buffers", Transport::Ibgda, "buffers").args(&["quiet"]).passes();
    assert_eq!(errors(&outcome, 0), "");
    // The whole of conformance's puts and gets reuse buffers as they may.
    job("rma", Transport::Ibgda, "buffers").passes();
}

#[test]
fn where_no_buffer_is_watched_a_line_says_so() {
    for (transport, reason) in [
        (Transport::P2p, "puts by load and store have read"),
        (Transport::Ibrc, "over the CPU proxy a source is watched from when"),
    ] {
        let outcome = job("check_buffers", transport, "buffers").args(&["quiet"]).passes();
        let errors = errors(&outcome, 1);
        assert!(errors.starts_with(&format!("oxshmem: PE 1: OXSHMEM_CHECK=buffers: {reason}")), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn collective_calls_that_differ_are_found_at_once() {
    for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
        job("check_calls", transport, "calls").passes();
    }
}

#[test]
fn waits_that_nothing_can_satisfy_are_found() {
    for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
        job("check_waits", transport, "waits").args(&["never"]).passes();
    }
}

#[test]
fn a_pe_that_computes_is_waited_for() {
    for transport in [Transport::P2p, Transport::Ibgda] {
        job("check_waits", transport, "waits").args(&["busy"]).passes();
    }
    // Collectives and waits of all kinds go on while they wait.
    job("waits", Transport::Ibgda, "calls,buffers,waits").passes();
    job("barriers", Transport::P2p, "calls,waits").args(&["15"]).passes();
}

#[test]
fn pes_of_several_nodes_are_not_checked_which_a_line_says() {
    let outcome = job("barriers", Transport::Ibgda, "waits").args(&["15"]).nodes(2).passes();
    let errors = errors(&outcome, 0);
    assert!(errors.starts_with("oxshmem: PE 0: OXSHMEM_CHECK=waits: PEs of several nodes"), "{errors}");
}
