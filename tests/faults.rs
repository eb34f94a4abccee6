//! Faults of the software HCA (`OXSHMEM_SOFT_FAULTS`): right programs do not notice them, wrong
//! ones are found out.

use oxshmem_tests::{Job, Transport, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// What the order of execution across queue pairs, the visibility of payloads and lost doorbells do
/// to a right program: nothing.
const HARMLESS: [&str; 4] = [
    "seed=1,reorder=0.3,delay=50us",
    "seed=2,visibility,delay=30us",
    "seed=3,lost-doorbell=0.2",
    "seed=4,reorder=0.2,visibility,lost-doorbell=0.1,delay=20us",
];

fn unharmed(case: &str, npes: u32, args: &[&str]) {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for faults in HARMLESS {
            Job::new(PE, case, npes).args(args).transport(transport).env("OXSHMEM_SOFT_FAULTS", faults).passes();
        }
    }
}

#[test]
fn typed_names_are_unharmed() {
    unharmed("typed", 2, &[]);
}

#[test]
fn transfers_are_unharmed() {
    unharmed("rma", 2, &["2"]);
}

#[test]
fn lanes_are_unharmed() {
    unharmed("lanes", 2, &["1"]);
}

#[test]
fn signals_are_unharmed() {
    unharmed("signals", 3, &[]);
}

#[test]
fn atomics_are_unharmed() {
    unharmed("atomic_contention", 2, &["1"]);
    unharmed("atomic_values", 2, &["10"]);
}

#[test]
fn waits_are_unharmed() {
    unharmed("waits", 2, &[]);
}

#[test]
fn barriers_are_unharmed() {
    unharmed("barriers", 3, &["5"]);
}

/// Like `unharmed`, with another number of PEs for each of the faults; `job` makes a job of that
/// many.
fn unharmed_in_turn(npes: [u32; 4], job: impl Fn(u32) -> Job) {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for (faults, npes) in HARMLESS.into_iter().zip(npes) {
            job(npes).transport(transport).env("OXSHMEM_SOFT_FAULTS", faults).passes();
        }
    }
}

#[test]
fn collectives_are_unharmed() {
    let job = |npes| Job::new(PE, "collectives", npes).args(&["500"]);
    unharmed_in_turn([2, 3, 5, 8], job);
    unharmed_in_turn([4, 7, 3, 2], |npes| job(npes).thinned());
}

#[test]
fn reductions_are_unharmed() {
    unharmed("reproducible", 3, &["500"]);
}

#[test]
fn teams_are_unharmed() {
    unharmed_in_turn([3, 2, 5, 4], |npes| Job::new(PE, "teams", npes));
}

#[test]
fn host_collectives_are_unharmed() {
    unharmed_in_turn([2, 3, 4, 3], |npes| Job::new(PE, "host_collectives", npes).args(&["8"]).thinned());
}

#[test]
fn fences_are_unharmed() {
    unharmed("fence", 2, &["300"]);
}

#[test]
fn host_operations_are_unharmed() {
    unharmed("host_transfers", 2, &[]);
    unharmed("host_signals", 2, &[]);
    unharmed("host_atomics", 2, &[]);
}

#[test]
fn wrapping_queues_are_unharmed() {
    for faults in ["seed=5,reorder=0.01,delay=1us", "seed=6,lost-doorbell=0.05", "seed=7,visibility,delay=1us"] {
        let job = Job::new(PE, "flood", 2).args(&["2", "32", "1200", "70000"]).transport(Transport::Ibgda);
        job.env("OXSHMEM_SOFT_FAULTS", faults).env("OXSHMEM_QPS_PER_PEER", "1").env("OXSHMEM_QP_DEPTH", "256").passes();
    }
}

#[test]
fn wrapping_rings_are_unharmed() {
    for faults in ["seed=5,reorder=0.01,delay=1us", "seed=6,lost-doorbell=0.05", "seed=7,visibility,delay=1us"] {
        let job = Job::new(PE, "flood", 2).args(&["2", "32", "1200", "0"]).transport(Transport::Ibrc);
        job.env("OXSHMEM_SOFT_FAULTS", faults).env("OXSHMEM_PROXY_RING", "64").env("OXSHMEM_QP_DEPTH", "256").passes();
    }
}

#[test]
fn staged_puts_are_unharmed() {
    for (faults, staging) in HARMLESS.into_iter().zip(["64", "64", "4K", "4K"]) {
        let job = Job::new(PE, "put_flood", 2).args(&["2", "2", "20", "9000"]).transport(Transport::Ibrc);
        job.env("OXSHMEM_SOFT_FAULTS", faults).env("OXSHMEM_STAGING", staging).passes();
        // Through rings that wrap.
        let job = Job::new(PE, "put_flood", 2).args(&["2", "34", "6", "5000"]).transport(Transport::Ibgda);
        let job = job.env("OXSHMEM_STAGING_RING", if staging == "64" { "2K" } else { "64K" });
        job.env("OXSHMEM_SOFT_FAULTS", faults).env("OXSHMEM_STAGING", staging).passes();
    }
}

/// A put that is longer than its ring waits for slots, which a card that does nothing leaves full.
#[test]
fn a_staging_ring_that_stays_full_is_named() {
    let job = Job::new(PE, "put_flood", 2).args(&["1", "1", "1", "9000"]).transport(Transport::Ibgda);
    let job = job.env("OXSHMEM_STAGING", "64").env("OXSHMEM_STAGING_RING", "2K").env("OXSHMEM_TIMEOUT", "1s");
    let outcome = job.env("OXSHMEM_SOFT_FAULTS", "delay=8s").run();
    let shown = transcript(&outcome);
    assert!(!outcome.is_success(), "{shown}");
    for words in [
        "waiting for a slot of a staging ring: the wait did not end within 1000 ms",
        "; no slot of the staging ring of 2K is free",
        "OXSHMEM_STAGING_RING makes rings longer",
    ] {
        assert!(shown.contains(words), "no `{words}` in\n{shown}");
    }
}

/// Rounds of this case in which a signal came before the data that it announces, at any PE.
fn stale(case: &str, args: &[&str], transport: Transport, seed: u32) -> u32 {
    let job = Job::new(PE, case, 2).args(args).transport(transport);
    let outcome = job.env("OXSHMEM_SOFT_FAULTS", format!("seed={seed},reorder=0.5,delay=200us")).passes();
    (0..2)
        .map(|rank| {
            let text = stdout(&outcome, rank);
            let count =
                text.lines().find_map(|line| line.strip_prefix("stale=")).and_then(|count| count.parse::<u32>().ok());
            count.unwrap_or_else(|| panic!("PE {rank} says {text:?}"))
        })
        .sum()
}

/// A block puts, another one signals on another queue pair, and neither completes the puts in
/// between: the reordering mode shows that this program is wrong, and that the one with a quiet is
/// right.
#[test]
fn a_missing_quiet_is_found_out() {
    const SEEDS: std::ops::Range<u32> = 0..8;
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let found: Vec<u32> = SEEDS.map(|seed| stale("order", &["0", "40"], transport, seed)).collect();
        assert!(found.iter().any(|count| *count > 0), "{transport:?}: the missing quiet was not noticed: {found:?}");
        for seed in SEEDS {
            assert_eq!(
                stale("order", &["1", "40"], transport, seed),
                0,
                "{transport:?}: the program with a quiet fails with seed {seed}"
            );
        }
    }
}

/// The fence of the layer for programs that are written for NVSHMEM is for the operations of all
/// blocks, whose queue pairs are several.
#[test]
fn a_fence_of_the_layer_orders_what_other_blocks_have_put() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let without = |seed| stale("compat_fence", &["40", "none"], transport, seed);
        assert!((0..8).any(|seed| without(seed) > 0), "{transport:?}: the missing fence was not noticed");
        for seed in 0..4 {
            assert_eq!(stale("compat_fence", &["40"], transport, seed), 0, "{transport:?}, seed {seed}");
        }
    }
}

#[test]
fn an_error_completion_names_what_failed() {
    let syndromes = [
        ("0x13", "remote access error"),
        ("0x04", "local protection error"),
        ("0x12", "remote invalid request"),
        ("0x15", "transport retry counter exceeded"),
    ];
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for (syndrome, name) in syndromes {
            let outcome = Job::new(PE, "completion_error", 3).args(&[syndrome, name]).transport(transport).run();
            assert!(outcome.is_success(), "{transport:?}, {syndrome}:\n{}", transcript(&outcome));
        }
    }
}

#[test]
fn a_wait_that_has_no_end_names_lost_connections() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let job = Job::new(PE, "lost_barrier", 2).transport(transport).env("OXSHMEM_SOFT_FAULTS", "error=0x15@qp*:0");
        let outcome = job.env("OXSHMEM_TIMEOUT", "3s").passes();
        for pe in 0..2 {
            let text = stdout(&outcome, pe);
            let lost = format!("the connection to PE {} is lost (transport retry counter exceeded", 1 - pe);
            assert!(
                text.contains("the wait did not end within 3000 ms") && text.contains(&lost),
                "{transport:?}: {text}"
            );
        }
    }
}

#[test]
fn a_malformed_fault_plan_is_refused() {
    let outcome = Job::new(PE, "typed", 2).transport(Transport::Ibgda).env("OXSHMEM_SOFT_FAULTS", "reorder=2").run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("OXSHMEM_SOFT_FAULTS") && text.contains("reorder=2"), "{text}");
}
