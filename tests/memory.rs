//! What PEs say of their memory: by the API, in a line at init, and at finalize.

use oxshmem::launch::PeStatus;
use oxshmem_tests::{Job, Transport, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Two PEs whose network has that many queue pairs in all.
fn job(transport: Transport, qps: &str) -> Job {
    Job::new(PE, "memory", 2)
        .args(&[qps])
        .transport(transport)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_QP_DEPTH", "512")
        .env("OXSHMEM_QPS_PER_PEER", qps)
}

#[test]
fn what_is_reported_is_what_was_allocated() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for qps in ["1", "4"] {
            job(transport, qps).passes();
        }
    }
}

#[test]
fn a_line_at_init_and_what_was_left_are_reported_on_request() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let asked = job(transport, "2").env("OXSHMEM_REPORT_MEMORY", "1").env("OXSHMEM_REPORT_LEAKS", "1");
        let outcome = asked.passes();
        for rank in 0..2 {
            let errors = String::from_utf8_lossy(&outcome.pes[rank].stderr).into_owned();
            let found = |begin: String| errors.lines().filter(move |line| line.starts_with(&begin)).count();
            assert_eq!(found(format!("oxshmem: PE {rank}: heap ")), 1, "{errors}");
            assert_eq!(found(format!("oxshmem: PE {rank}: not freed before finalize: ")), 1, "{errors}");
            let line = stdout(&outcome, rank);
            let place = line.trim().trim_start_matches("left at ");
            let left = "the allocation of 616 bytes at offset 0x";
            assert!(
                errors.contains(left) && errors.contains(&format!(", made at {place}")),
                "no `{place}` in {errors}"
            );
        }
        let silent = job(transport, "2").passes();
        assert!(
            silent.pes.iter().all(|pe| pe.status == PeStatus::Exited(0) && pe.stderr.is_empty()),
            "{}",
            transcript(&silent)
        );
    }
}
