//! Errors in kernels: what is reported, and that the PE goes on.

use oxshmem_tests::{Device, Job, Transport, jobs, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

fn conformance(case: &str, npes: u32) -> Job {
    Job::new(PE, case, npes)
}

jobs! {
    conformance;
    [cpu cuda]
    collective_errors_p2p_3: "collective_errors", P2p, 3;
    collective_errors_ibgda_3: "collective_errors", Ibgda, 3;
    collective_errors_ibrc_3: "collective_errors", Ibrc, 3;
    collective_errors_ibgda_5: "collective_errors", Ibgda, 5;
    collective_timeouts_p2p_2: "collective_timeouts", P2p, 2, "OXSHMEM_TIMEOUT" = "300ms";
    collective_timeouts_ibgda_3: "collective_timeouts", Ibgda, 3, "OXSHMEM_TIMEOUT" = "300ms";
    collective_timeouts_ibrc_3: "collective_timeouts", Ibrc, 3, "OXSHMEM_TIMEOUT" = "300ms";
    grid_errors_p2p_3: "grid_errors", P2p, 3, "OXSHMEM_TIMEOUT" = "1s";
    grid_errors_p2p_3_few_sms: "grid_errors", P2p, 3, "OXSHMEM_TIMEOUT" = "1s", "OXSHMEM_COLLECTIVES_SMS" = "2";
    grid_errors_ibgda_3: "grid_errors", Ibgda, 3, "OXSHMEM_TIMEOUT" = "1s";
    grid_errors_ibrc_3: "grid_errors", Ibrc, 3, "OXSHMEM_TIMEOUT" = "1s";
    grid_errors_ibgda_5: "grid_errors", Ibgda, 5, "OXSHMEM_TIMEOUT" = "1s";
    refused_p2p_1: "refused", P2p, 1;
    refused_p2p_3: "refused", P2p, 3;
    refused_ibgda_3: "refused", Ibgda, 3;
    stream_aborted_p2p_2: "stream_aborted", P2p, 2, "OXSHMEM_TIMEOUT" = "1h";
    stream_aborted_ibgda_3: "stream_aborted", Ibgda, 3, "OXSHMEM_TIMEOUT" = "1h";
    stream_dropped_p2p_1: "stream_dropped", P2p, 1, "OXSHMEM_TIMEOUT" = "1h";
    stream_errors_p2p_1: "stream_errors", P2p, 1, "OXSHMEM_TIMEOUT" = "150ms";
    stream_errors_p2p_2: "stream_errors", P2p, 2, "OXSHMEM_TIMEOUT" = "150ms";
    stream_errors_ibgda_2: "stream_errors", Ibgda, 2, "OXSHMEM_TIMEOUT" = "150ms";
    timeouts_p2p_1: "timeouts", P2p, 1, "OXSHMEM_TIMEOUT" = "150ms";
    timeouts_p2p_3: "timeouts", P2p, 3, "OXSHMEM_TIMEOUT" = "150ms";
    timeouts_ibgda_2: "timeouts", Ibgda, 2, "OXSHMEM_TIMEOUT" = "150ms";
    refused_ibrc_3: "refused", Ibrc, 3;
    context_errors_p2p_2: "context_errors", P2p, 2;
    context_errors_ibgda_1: "context_errors", Ibgda, 1;
    context_errors_ibgda_3: "context_errors", Ibgda, 3;
    context_errors_ibrc_2: "context_errors", Ibrc, 2;
    teams_refused_p2p_2: "teams_refused", P2p, 2, "OXSHMEM_MAX_TEAMS" = "6";
    teams_refused_p2p_4: "teams_refused", P2p, 4, "OXSHMEM_MAX_TEAMS" = "6";
    teams_refused_ibgda_3: "teams_refused", Ibgda, 3, "OXSHMEM_MAX_TEAMS" = "6";
    teams_refused_ibrc_2: "teams_refused", Ibrc, 2, "OXSHMEM_MAX_TEAMS" = "6";
    collect_errors_p2p_2: "collect_errors", P2p, 2, "OXSHMEM_TIMEOUT" = "300ms";
    collect_errors_p2p_4: "collect_errors", P2p, 4, "OXSHMEM_TIMEOUT" = "300ms";
    host_collectives_refused_p2p_2: "host_collectives_refused", P2p, 2, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_refused_p2p_4: "host_collectives_refused", P2p, 4, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_refused_ibgda_2: "host_collectives_refused", Ibgda, 2, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_refused_ibgda_3: "host_collectives_refused", Ibgda, 3, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_refused_ibrc_2: "host_collectives_refused", Ibrc, 2, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_refused_relay_p2p_3:
        "host_collectives_refused", P2p, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_COLLECTIVES" = "broadcast=relay,reduce=relay";
    host_collectives_refused_oneshot_p2p_3:
        "host_collectives_refused", P2p, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
    host_collectives_mismatches_p2p_2: "host_collectives_mismatches", P2p, 2, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_mismatches_p2p_3: "host_collectives_mismatches", P2p, 3, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_mismatches_relay_p2p_3:
        "host_collectives_mismatches", P2p, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_COLLECTIVES" = "broadcast=relay,reduce=relay";
    host_collectives_mismatches_oneshot_p2p_3:
        "host_collectives_mismatches", P2p, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
    host_collectives_mismatches_copy_p2p_2:
        "host_collectives_mismatches", P2p, 2, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
    host_collectives_mismatches_copy_p2p_3:
        "host_collectives_mismatches", P2p, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
    host_collectives_mismatches_ibgda_3: "host_collectives_mismatches", Ibgda, 3, "OXSHMEM_TIMEOUT" = "1h";
    host_collectives_late_p2p_2: "host_collectives_late", P2p, 2, "OXSHMEM_TIMEOUT" = "300ms";
    host_collectives_late_p2p_4: "host_collectives_late", P2p, 4, "OXSHMEM_TIMEOUT" = "300ms";
    host_collectives_late_copy_p2p_2:
        "host_collectives_late", P2p, 2, "OXSHMEM_TIMEOUT" = "300ms", "OXSHMEM_COLLECTIVES" = "fcollect=copy";
    host_collectives_late_copy_p2p_3:
        "host_collectives_late", P2p, 3, "OXSHMEM_TIMEOUT" = "300ms", "OXSHMEM_COLLECTIVES" = "fcollect=copy";
    host_collectives_late_ibgda_3: "host_collectives_late", Ibgda, 3, "OXSHMEM_TIMEOUT" = "300ms";
    host_collectives_late_ibrc_2: "host_collectives_late", Ibrc, 2, "OXSHMEM_TIMEOUT" = "300ms";
    host_collectives_late_once_p2p_2: "host_collectives_late_once", P2p, 2, "OXSHMEM_TIMEOUT" = "500ms";
    host_collectives_late_once_p2p_3: "host_collectives_late_once", P2p, 3, "OXSHMEM_TIMEOUT" = "500ms";
    host_collectives_late_once_relay_p2p_3:
        "host_collectives_late_once", P2p, 3, "OXSHMEM_TIMEOUT" = "500ms", "OXSHMEM_COLLECTIVES" = "reduce=relay";
    host_collectives_late_once_ibgda_3: "host_collectives_late_once", Ibgda, 3, "OXSHMEM_TIMEOUT" = "500ms";
    host_collectives_late_once_ibgda_4: "host_collectives_late_once", Ibgda, 4, "OXSHMEM_TIMEOUT" = "500ms";
    host_collectives_late_once_ibrc_4: "host_collectives_late_once", Ibrc, 4, "OXSHMEM_TIMEOUT" = "500ms";
    host_collectives_missing_ibgda_9: "host_collectives_missing", Ibgda, 9, "OXSHMEM_TIMEOUT" = "1s";
    host_collectives_missing_ibrc_5: "host_collectives_missing", Ibrc, 5, "OXSHMEM_TIMEOUT" = "1s";
    context_absent_p2p_2: "context_absent", P2p, 2, "OXSHMEM_MEETING_TIMEOUT" = "1s";
    context_absent_ibgda_3: "context_absent", Ibgda, 3, "OXSHMEM_MEETING_TIMEOUT" = "1s";
    aggregate_absent_ibgda_3: "aggregate_absent", Ibgda, 3, "OXSHMEM_MEETING_TIMEOUT" = "1s";
    teams_busy_p2p_2: "teams_busy", P2p, 2, "OXSHMEM_TIMEOUT" = "1s";
    teams_busy_p2p_3: "teams_busy", P2p, 3, "OXSHMEM_TIMEOUT" = "1s";
    teams_busy_ibgda_2: "teams_busy", Ibgda, 2, "OXSHMEM_TIMEOUT" = "1s";
    teams_busy_ibrc_2: "teams_busy", Ibrc, 2, "OXSHMEM_TIMEOUT" = "1s";
    teams_absent_p2p_3: "teams_absent", P2p, 3, "OXSHMEM_MEETING_TIMEOUT" = "1s";
    stream_aborted_ibrc_3: "stream_aborted", Ibrc, 3, "OXSHMEM_TIMEOUT" = "1h";
    stream_errors_ibrc_2: "stream_errors", Ibrc, 2, "OXSHMEM_TIMEOUT" = "150ms";
    timeouts_ibrc_2: "timeouts", Ibrc, 2, "OXSHMEM_TIMEOUT" = "150ms";
}

// A crash on a GPU loses its context; see gpu.rs.
jobs! {
    conformance;
    [cpu]
    timeouts_p2p_1_workers: "timeouts", P2p, 1, "OXSHMEM_TIMEOUT" = "150ms", "OXSHMEM_CPU_WORKERS" = "3";
    crashes_p2p_2: "crashes", P2p, 2;
    context_in_use_ibgda_2: "context_in_use", Ibgda, 2;
    beyond_p2p_1: "beyond", P2p, 1;
    beyond_p2p_2: "beyond", P2p, 2;
    beyond_ibgda_2: "beyond", Ibgda, 2;
    beyond_ibrc_2: "beyond", Ibrc, 2;
    crashes_ibgda_2: "crashes", Ibgda, 2;
    crashes_ibrc_2: "crashes", Ibrc, 2;
    bad_local_ibgda_2: "bad_local", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1";
    bad_local_ibrc_2: "bad_local", Ibrc, 2;
    given_up_ibgda_2: "given_up", Ibgda, 2, "OXSHMEM_TIMEOUT" = "300ms", "OXSHMEM_SOFT_FAULTS" = "seed=1,delay=10s", "OXSHMEM_QPS_PER_PEER" = "1";
    given_up_ibrc_2: "given_up", Ibrc, 2, "OXSHMEM_TIMEOUT" = "300ms", "OXSHMEM_SOFT_FAULTS" = "seed=1,delay=10s", "OXSHMEM_PROXY_RING" = "64", "OXSHMEM_QP_DEPTH" = "256";
    failed_fetches_ibgda_3: "failed_fetches", Ibgda, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_QPS_PER_PEER" = "1";
    failed_fetches_ibrc_3: "failed_fetches", Ibrc, 3, "OXSHMEM_TIMEOUT" = "1h", "OXSHMEM_QPS_PER_PEER" = "1";
    crashes_p2p_1_workers: "crashes", P2p, 1, "OXSHMEM_CPU_WORKERS" = "3";
}

/// PEs that may open few files fail at once, with the remedy, or work.
#[test]
fn few_files() {
    for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
        let mut worked = 0;
        for files in [8, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 64] {
            let job = Job::new(PE, "few_files", 4).args(&[&files.to_string()]).transport(transport);
            let outcome = job.env("OXSHMEM_TIMEOUT", "1h").env("OXSHMEM_BOOTSTRAP_TIMEOUT", "1h").run();
            let text = transcript(&outcome);
            if outcome.is_success() {
                worked += 1;
            } else {
                let told = text.contains("file descriptor") && text.contains("ulimit -n");
                assert!(told, "{transport:?}, {files} files: {text}");
            }
        }
        assert!(worked > 0, "{transport:?}: 64 files are too few");
    }
}

#[test]
fn the_programs_of_tests_say_what_they_are() {
    let output = std::process::Command::new(PE).arg("--help").output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("conformance-pe CASE") && text.contains("  rma"), "{text}");
}

/// PEs whose devices do not reach each other: the network where that is allowed, and said; an error
/// where it is not.
fn without_peer_access(device: Device) {
    let job = |transport| Job::new(PE, "pointers", 3).on(device).transport(transport).env("OXSHMEM_P2P_FAULTS", "0-1");
    if !job(Transport::Auto).is_possible() {
        return;
    }
    let text = transcript(&job(Transport::Auto).passes());
    for pair in ["PE 0 (", "PE 1 ("] {
        assert!(text.contains(pair), "{text}");
    }
    assert!(text.contains("OXSHMEM_P2P_FAULTS says so; it is reached over the network"), "{text}");
    let outcome = job(Transport::P2p).run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("OXSHMEM_TRANSPORT=auto to reach it over the network"), "{text}");
    let outcome = job(Transport::Auto).env("OXSHMEM_P2P_FAULTS", "0-0").run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("`0-0` is not a pair of different PEs"), "{text}");
    let outcome = job(Transport::Auto).env("OXSHMEM_P2P_FAULTS", "0-1,0-9").run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("`0-9` names PE 9"), "{text}");
}

#[test]
fn without_peer_access_cpu() {
    without_peer_access(Device::Cpu);
}

#[test]
fn without_peer_access_cuda() {
    without_peer_access(Device::Cuda);
}

/// The other PE says that it is of another release.
#[test]
fn releases_that_differ_are_refused_with_both_named() {
    use std::ffi::OsString;

    let mut program = std::process::Command::new(oxshmem_tests::program(PE));
    program.arg("set_up");
    let own = format!("OxSHMEM {} with device ABI {},", env!("CARGO_PKG_VERSION"), oxshmem::abi::ABI_VERSION);
    let other = "OxSHMEM 99.7.0 with device ABI 1000,";
    let otherwise = |label: &str, mine: &[u8]| match label {
        "configuration" => Some(vec![0; mine.len()]),
        "configurations that differ" => Some(String::from_utf8_lossy(mine).replace(&own, other).into_bytes()),
        _ => None,
    };
    let variables = [("OXSHMEM_DEVICE", OsString::from("cpu")), ("OXSHMEM_HCA", OsString::from("soft"))];
    let played = oxshmem_tests::mirror::play_otherwise(program, 2, &variables, otherwise);
    let text = played.text();
    assert!(!played.output.status.success(), "{text}");
    for part in [format!("PE 0 has {own}"), format!("PE 1 has {other}")] {
        assert!(text.contains(&part), "no `{part}` in {text}");
    }
}
