//! The `cuda` device on this machine's GPUs: each test is a job whose PEs run one case of `gpu-pe`. Without a GPU they are skipped, with the
//! reason.

use oxshmem_tests::{Job, Transport, absent};

const PE: &str = env!("CARGO_BIN_EXE_gpu-pe");

fn passes(case: &str, npes: u32) {
    match absent(PE, "cuda", Transport::P2p) {
        Some(reason) => println!("skipped: {reason}"),
        None => drop(Job::new(PE, case, npes).transport(Transport::P2p).passes()),
    }
}

macro_rules! cases {
    ($($name:ident: $case:literal, $npes:literal;)*) => {
        $(#[test] fn $name() { passes($case, $npes); })*
    };
}

cases! {
    aborted: "aborted", 3;
    beside_cudarc: "beside_cudarc", 2;
    callers_streams_1: "callers_streams", 1;
    callers_streams_2: "callers_streams", 2;
    chunks_1: "chunks", 1;
    chunks_2: "chunks", 2;
    chunks_3: "chunks", 3;
    context_lost: "context_lost", 1;
    launches: "launches", 1;
    modules: "modules", 1;
    out_of_memory_1: "out_of_memory", 1;
    out_of_memory_2: "out_of_memory", 2;
    overdue: "overdue", 1;
    own_modules: "own_modules", 1;
    rounds_1: "rounds", 1;
    rounds_4: "rounds", 4;
    unanswered: "unanswered", 2;
}
