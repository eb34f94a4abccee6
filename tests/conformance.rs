//! The semantics of the device API, per device and transport: each test is a job of the `cpu` device whose PEs run one case.

use oxshmem_tests::{Job, Transport};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// `name: case, transport, PEs` and variables.
macro_rules! jobs {
    ($($name:ident: $case:literal, $transport:ident, $npes:literal $(, $variable:literal = $value:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                Job::new(PE, $case, $npes).transport(Transport::$transport)$(.env($variable, $value))*.passes();
            }
        )*
    };
}

jobs! {
    typed_p2p_1: "typed", P2p, 1;
    typed_p2p_2: "typed", P2p, 2;
    typed_p2p_4: "typed", P2p, 4;

    rma_p2p_1: "rma", P2p, 1;
    rma_p2p_2: "rma", P2p, 2;
    rma_p2p_3: "rma", P2p, 3;
    rma_p2p_8: "rma", P2p, 8;
    rma_p2p_2_workers: "rma", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    lanes_p2p_1: "lanes", P2p, 1;
    lanes_p2p_2: "lanes", P2p, 2;
    lanes_p2p_4: "lanes", P2p, 4;

    signals_p2p_1: "signals", P2p, 1;
    signals_p2p_2: "signals", P2p, 2;
    signals_p2p_4: "signals", P2p, 4;
    signals_p2p_8: "signals", P2p, 8;
    signals_p2p_2_workers: "signals", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    atomic_values_p2p_1: "atomic_values", P2p, 1;
    atomic_values_p2p_3: "atomic_values", P2p, 3;
    atomic_contention_p2p_1: "atomic_contention", P2p, 1;
    atomic_contention_p2p_2: "atomic_contention", P2p, 2;
    atomic_contention_p2p_4: "atomic_contention", P2p, 4;
    atomic_contention_p2p_2_workers: "atomic_contention", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    waits_p2p_1: "waits", P2p, 1;
    waits_p2p_2: "waits", P2p, 2;
    waits_p2p_4: "waits", P2p, 4;

    barriers_p2p_1: "barriers", P2p, 1;
    barriers_p2p_2: "barriers", P2p, 2;
    barriers_p2p_3: "barriers", P2p, 3;
    barriers_p2p_4: "barriers", P2p, 4;
    barriers_p2p_8: "barriers", P2p, 8;

    fence_p2p_2: "fence", P2p, 2;
    fence_p2p_2_workers: "fence", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";
    pointers_p2p_1: "pointers", P2p, 1;
    pointers_p2p_4: "pointers", P2p, 4;
}
