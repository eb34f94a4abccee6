//! The `cuda` device on this machine's GPUs: each test is a job whose PEs run one case of `gpu-pe`. Without a GPU they are skipped, with the
//! reason.

use std::time::Duration;

use oxshmem::launch::{self, LaunchOptions, Outcome, Output, PeStatus};

/// The status with which the case `probe` says that there is no GPU.
const ABSENT: i32 = 77;

fn run(case: &str, npes: u32) -> Outcome {
    let mut options = LaunchOptions::new(npes, env!("CARGO_BIN_EXE_gpu-pe")).args([case]);
    options.output = Output::Captured;
    options.timeout = Some(Duration::from_secs(150));
    launch::run(&options).unwrap_or_else(|error| panic!("{case}: {error}"))
}

fn text(outcome: &Outcome) -> String {
    let pes = outcome.pes.iter().enumerate().map(|(rank, pe)| {
        let (out, err) = (String::from_utf8_lossy(&pe.stdout), String::from_utf8_lossy(&pe.stderr));
        format!("PE {rank} {}\n{out}{err}", pe.status)
    });
    pes.collect::<Vec<_>>().join("\n")
}

/// Runs a case if there is a GPU.
fn passes(case: &str, npes: u32) {
    let probe = run("probe", 1);
    match probe.pes[0].status {
        PeStatus::Exited(0) => {}
        PeStatus::Exited(ABSENT) => {
            println!("skipped: {}", String::from_utf8_lossy(&probe.pes[0].stdout).trim());
            return;
        }
        _ => panic!("a GPU is there, but does not work:\n{}", text(&probe)),
    }
    let outcome = run(case, npes);
    assert!(outcome.is_success() && !outcome.timed_out, "{case}:\n{}", text(&outcome));
}

macro_rules! cases {
    ($($name:ident: $case:literal, $npes:literal;)*) => {
        $(#[test] fn $name() { passes($case, $npes); })*
    };
}

cases! {
    beside_cudarc: "beside_cudarc", 2;
    chunks_1: "chunks", 1;
    chunks_2: "chunks", 2;
    chunks_3: "chunks", 3;
    context_lost: "context_lost", 1;
    launches: "launches", 1;
    modules: "modules", 1;
    out_of_memory_1: "out_of_memory", 1;
    out_of_memory_2: "out_of_memory", 2;
    overdue: "overdue", 1;
    rounds_1: "rounds", 1;
    rounds_4: "rounds", 4;
    unanswered: "unanswered", 2;
}

/// One PE ends the job while the kernels of the others wait.
#[test]
fn aborted() {
    let probe = run("probe", 1);
    if let PeStatus::Exited(ABSENT) = probe.pes[0].status {
        println!("skipped: {}", String::from_utf8_lossy(&probe.pes[0].stdout).trim());
        return;
    }
    let outcome = run("aborted", 3);
    assert!(!outcome.timed_out, "{}", text(&outcome));
    assert!(outcome.pes.iter().all(|pe| pe.status == PeStatus::Exited(0)), "{}", text(&outcome));
}
