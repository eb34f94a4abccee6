//! The semantics of the device and host APIs, per device and transport: each test is a job whose PEs run one case.

use oxshmem_tests::{Job, Transport, jobs, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// A job of the conformance program.
fn conformance(case: &str, npes: u32) -> Job {
    Job::new(PE, case, npes)
}

jobs! {
    conformance;
    [cpu cuda]
    layout: "layout", P2p, 1;

    typed_p2p_1: "typed", P2p, 1;
    typed_p2p_2: "typed", P2p, 2;
    typed_p2p_4: "typed", P2p, 4;
    typed_ibgda_2: "typed", Ibgda, 2;
    typed_ibgda_4: "typed", Ibgda, 4;

    rma_p2p_1: "rma", P2p, 1;
    rma_p2p_2: "rma", P2p, 2;
    rma_p2p_3: "rma", P2p, 3;
    rma_ibgda_1: "rma", Ibgda, 1;
    rma_ibgda_2: "rma", Ibgda, 2;
    rma_ibgda_3: "rma", Ibgda, 3;
    rma_ibgda_4: "rma", Ibgda, 4;

    lanes_p2p_1: "lanes", P2p, 1;
    lanes_p2p_2: "lanes", P2p, 2;
    lanes_p2p_4: "lanes", P2p, 4;
    lanes_ibgda_2: "lanes", Ibgda, 2;
    lanes_ibgda_3: "lanes", Ibgda, 3;
    lanes_ibgda_4: "lanes", Ibgda, 4;
    lanes_ibgda_2_one_qp: "lanes", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";

    signals_p2p_1: "signals", P2p, 1;
    signals_p2p_2: "signals", P2p, 2;
    signals_p2p_4: "signals", P2p, 4;
    signals_ibgda_2: "signals", Ibgda, 2;
    signals_ibgda_4: "signals", Ibgda, 4;

    atomic_values_p2p_1: "atomic_values", P2p, 1;
    atomic_values_p2p_3: "atomic_values", P2p, 3;
    atomic_values_ibgda_2: "atomic_values", Ibgda, 2;
    atomic_values_ibgda_3: "atomic_values", Ibgda, 3;
    atomic_contention_p2p_1: "atomic_contention", P2p, 1;
    atomic_contention_p2p_2: "atomic_contention", P2p, 2;
    atomic_contention_p2p_4: "atomic_contention", P2p, 4;
    atomic_contention_ibgda_2: "atomic_contention", Ibgda, 2;
    atomic_contention_ibgda_4: "atomic_contention", Ibgda, 4;

    waits_p2p_1: "waits", P2p, 1;
    waits_p2p_2: "waits", P2p, 2;
    waits_p2p_4: "waits", P2p, 4;
    waits_ibgda_2: "waits", Ibgda, 2;
    waits_ibgda_3: "waits", Ibgda, 3;

    barriers_p2p_1: "barriers", P2p, 1;
    barriers_p2p_2: "barriers", P2p, 2;
    barriers_p2p_3: "barriers", P2p, 3;
    barriers_p2p_4: "barriers" "15", P2p, 4;
    barriers_ibgda_2: "barriers", Ibgda, 2;
    barriers_ibgda_4: "barriers" "15", Ibgda, 4;

    fence_p2p_2: "fence", P2p, 2;
    fence_ibgda_2: "fence", Ibgda, 2;
    pointers_p2p_1: "pointers", P2p, 1;
    pointers_p2p_4: "pointers", P2p, 4;
    pointers_ibgda_3: "pointers", Ibgda, 3;

    host_transfers_p2p_1: "host_transfers", P2p, 1;
    host_transfers_p2p_3: "host_transfers", P2p, 3;
    host_transfers_ibgda_3: "host_transfers", Ibgda, 3;
    host_signals_p2p_2: "host_signals", P2p, 2;
    host_signals_ibgda_2: "host_signals", Ibgda, 2;
    host_atomics_p2p_2: "host_atomics", P2p, 2;
    host_atomics_ibgda_3: "host_atomics", Ibgda, 3;
    host_heap_p2p_1: "host_heap", P2p, 1;
    host_heap_p2p_3: "host_heap", P2p, 3;
    host_heap_ibgda_2: "host_heap", Ibgda, 2;
    host_heap_ibgda_4: "host_heap", Ibgda, 4;
    host_rounds_p2p_1: "host_rounds", P2p, 1;
    host_rounds_p2p_3: "host_rounds", P2p, 3;
    host_rounds_ibgda_3: "host_rounds", Ibgda, 3;
    host_mismatch_2: "host_mismatch", P2p, 2;
    host_mismatch_4: "host_mismatch", Ibgda, 4;

    collectives_p2p_1: "collectives", P2p, 1;
    collectives_p2p_2: "collectives", P2p, 2;
    collectives_p2p_3: "collectives", P2p, 3;
    collectives_p2p_4: "collectives", P2p, 4;
    collectives_ibgda_2: "collectives" "6000", Ibgda, 2;
    collectives_ibgda_3: "collectives" "6000", Ibgda, 3;
    collectives_ibgda_4: "collectives" "1000", Ibgda, 4;
    collectives_mixed_3: "collectives" "6000", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    typed_collectives_p2p_2: "typed_collectives", P2p, 2;
    typed_collectives_p2p_3: "typed_collectives", P2p, 3;
    typed_collectives_ibgda_2: "typed_collectives", Ibgda, 2;
    reproducible_p2p_4: "reproducible", P2p, 4;
    reproducible_ibgda_3: "reproducible", Ibgda, 3;

    teams_p2p_1: "teams", P2p, 1;
    teams_p2p_2: "teams", P2p, 2;
    teams_p2p_3: "teams", P2p, 3;
    teams_p2p_4: "teams", P2p, 4;
    teams_ibgda_2: "teams", Ibgda, 2;
    teams_ibgda_3: "teams", Ibgda, 3;
    teams_ibgda_4: "teams", Ibgda, 4;
    teams_turnover_p2p_3: "teams_turnover", P2p, 3;
    teams_turnover_ibgda_2: "teams_turnover" "100", Ibgda, 2;

    host_collectives_p2p_1: "host_collectives", P2p, 1;
    host_collectives_p2p_2: "host_collectives", P2p, 2;
    host_collectives_p2p_3: "host_collectives", P2p, 3;
    host_collectives_p2p_4: "host_collectives", P2p, 4;
    host_collectives_ibgda_2: "host_collectives", Ibgda, 2;
    host_collectives_ibgda_3: "host_collectives", Ibgda, 3;
    host_collectives_ibgda_4: "host_collectives" "64", Ibgda, 4;
    host_collectives_p2p_3_push: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=push,collect=push,fcollect=push,alltoall=push,alltoalls=push,reduce=push,reducescatter=push";
    host_collectives_p2p_3_packets: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=packets,collect=packets,fcollect=packets,alltoall=packets,alltoalls=packets,reduce=packets,reducescatter=packets";
    host_collectives_p2p_4_tree: "host_collectives" "1000", P2p, 4, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";
    host_collectives_ibgda_3_push: "host_collectives" "1000", Ibgda, 3, "OXSHMEM_COLLECTIVES" = "broadcast=push,reduce=push";
    host_collectives_ibgda_3_tree: "host_collectives" "1000", Ibgda, 3, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";

    streams_p2p_1: "streams", P2p, 1;
    streams_p2p_3: "streams", P2p, 3;
    streams_ibgda_2: "streams", Ibgda, 2;
    streams_ibgda_3: "streams", Ibgda, 3;

    // Some pairs of PEs are without peer access, as GPUs can be: they use the network, the others load and store.
    rma_mixed_3: "rma", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    lanes_mixed_3: "lanes", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-2";
    signals_mixed_3: "signals", Auto, 3, "OXSHMEM_P2P_FAULTS" = "1-2";
    atomic_contention_mixed_3: "atomic_contention", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    waits_mixed_3: "waits", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1,1-2";
    barriers_mixed_4: "barriers" "15", Auto, 4, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";
    fence_mixed_2: "fence", Auto, 2, "OXSHMEM_P2P_FAULTS" = "0-1";
    pointers_mixed_3: "pointers", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    host_transfers_mixed_3: "host_transfers", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    streams_mixed_3: "streams", Auto, 3, "OXSHMEM_P2P_FAULTS" = "1-2";

    host_collectives_mixed_3: "host_collectives", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    teams_mixed_3: "teams", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    teams_mixed_4: "teams", Auto, 4, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";

    // Queues of 256 blocks: 16-bit counters wrap again and again.
    flood_ibgda_2_one_qp: "flood" "4" "32" "700" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_one_warp: "flood" "1" "32" "2500" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_one_thread: "flood" "1" "1" "60000" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_3_uneven_warps: "flood" "3" "50" "600" "70000", Ibgda, 3, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_many_qps: "flood" "4" "64" "1200" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "4", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_ctas_beyond_qps: "flood" "7" "40" "400" "20000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "3", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_large_qp: "flood" "4" "64" "500" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "16384";
    flood_p2p_2: "flood" "4" "32" "700" "0", P2p, 2;

    requests_ibgda_2: "requests", Ibgda, 2;
    requests_ibgda_2_wrapping: "requests" "40", Ibgda, 2, "OXSHMEM_QP_DEPTH" = "256";
}

// The network through the engine that runs as a kernel, which is the only one on GPUs.
jobs! {
    conformance;
    [cpu]
    layout_ibgda_1_kernel: "layout", Ibgda, 1, "OXSHMEM_SOFT_ENGINE" = "kernel";
    typed_ibgda_2_kernel: "typed", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    rma_ibgda_2_kernel: "rma", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    rma_ibgda_3_kernel: "rma", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    lanes_ibgda_2_kernel: "lanes", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    lanes_ibgda_3_kernel: "lanes", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    signals_ibgda_2_kernel: "signals", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    signals_ibgda_4_kernel: "signals", Ibgda, 4, "OXSHMEM_SOFT_ENGINE" = "kernel";
    atomic_values_ibgda_2_kernel: "atomic_values", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    atomic_contention_ibgda_3_kernel: "atomic_contention", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    waits_ibgda_2_kernel: "waits", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    barriers_ibgda_2_kernel: "barriers", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    barriers_ibgda_4_kernel: "barriers" "15", Ibgda, 4, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_collectives_ibgda_3_kernel: "host_collectives" "7", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    collectives_ibgda_3_kernel: "collectives" "6000", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    teams_ibgda_3_kernel: "teams", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    fence_ibgda_2_kernel: "fence", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    pointers_ibgda_3_kernel: "pointers", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_transfers_ibgda_3_kernel: "host_transfers", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_signals_ibgda_2_kernel: "host_signals", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_atomics_ibgda_3_kernel: "host_atomics", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_heap_ibgda_2_kernel: "host_heap", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_rounds_ibgda_3_kernel: "host_rounds", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    requests_ibgda_2_kernel: "requests", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    requests_ibgda_2_kernel_wrapping: "requests" "40", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_kernel: "flood" "4" "32" "700" "70000", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_kernel_ctas_beyond_qps: "flood" "7" "40" "400" "20000", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QPS_PER_PEER" = "3", "OXSHMEM_QP_DEPTH" = "256";
}

// More PEs than these GPUs are meant for, and what only the `cpu` device has.
jobs! {
    conformance;
    [cpu]
    rma_p2p_8: "rma", P2p, 8;
    rma_p2p_2_workers: "rma", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";
    rma_ibgda_8: "rma", Ibgda, 8;
    rma_ibgda_2_workers: "rma", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

    lanes_ibgda_2_workers: "lanes", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

    signals_p2p_8: "signals", P2p, 8;
    signals_p2p_2_workers: "signals", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";
    signals_ibgda_8: "signals", Ibgda, 8;
    signals_ibgda_2_workers: "signals", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

    atomic_contention_p2p_2_workers: "atomic_contention", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";
    atomic_contention_ibgda_8: "atomic_contention", Ibgda, 8;
    atomic_contention_ibgda_2_workers: "atomic_contention", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

    barriers_p2p_8: "barriers" "8", P2p, 8;
    barriers_p2p_17: "barriers" "3", P2p, 17;
    barriers_ibgda_8: "barriers" "8", Ibgda, 8;
    barriers_ibgda_20: "barriers" "2", Ibgda, 20;
    barriers_ibgda_2_workers: "barriers", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

    collectives_p2p_5: "collectives", P2p, 5;
    collectives_p2p_6: "collectives" "6000", P2p, 6;
    collectives_p2p_7: "collectives" "6000", P2p, 7;
    collectives_p2p_8: "collectives" "6000", P2p, 8;
    collectives_p2p_3_workers: "collectives" "6000", P2p, 3, "OXSHMEM_CPU_WORKERS" = "3";
    collectives_ibgda_1: "collectives" "6000", Ibgda, 1;
    collectives_ibgda_5: "collectives" "6000", Ibgda, 5;
    collectives_ibgda_6: "collectives" "6000", Ibgda, 6;
    collectives_ibgda_7: "collectives" "6000", Ibgda, 7;
    collectives_ibgda_8: "collectives" "6000", Ibgda, 8;
    collectives_ibgda_3_workers: "collectives" "6000", Ibgda, 3, "OXSHMEM_CPU_WORKERS" = "3";
    collectives_mixed_6: "collectives" "6000", Auto, 6, "OXSHMEM_P2P_FAULTS" = "0-1,2-3,1-5";
    reproducible_p2p_7: "reproducible", P2p, 7;
    reproducible_ibgda_8: "reproducible" "500", Ibgda, 8;
    reproducible_mixed_5: "reproducible", Auto, 5, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";
    teams_p2p_5: "teams", P2p, 5;
    teams_p2p_6: "teams", P2p, 6;
    teams_p2p_7: "teams", P2p, 7;
    teams_p2p_8: "teams", P2p, 8;
    teams_ibgda_1: "teams", Ibgda, 1;
    teams_ibgda_5: "teams", Ibgda, 5;
    teams_ibgda_6: "teams", Ibgda, 6;
    teams_ibgda_7: "teams", Ibgda, 7;
    teams_ibgda_8: "teams", Ibgda, 8;
    teams_mixed_6: "teams", Auto, 6, "OXSHMEM_P2P_FAULTS" = "0-1,1-2,3-5";
    host_collectives_p2p_5: "host_collectives" "1000", P2p, 5;
    host_collectives_p2p_8: "host_collectives" "64", P2p, 8;
    host_collectives_ibgda_8: "host_collectives" "64", Ibgda, 8;
    host_collectives_p2p_7_tree: "host_collectives" "64", P2p, 7, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";
    host_collectives_ibgda_7_tree: "host_collectives" "64", Ibgda, 7, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";
    host_collectives_p2p_3_workers: "host_collectives", P2p, 3, "OXSHMEM_CPU_WORKERS" = "3";
    teams_p2p_3_workers: "teams", P2p, 3, "OXSHMEM_CPU_WORKERS" = "3";
    teams_turnover_p2p_8: "teams_turnover" "100", P2p, 8;

    fence_p2p_2_workers: "fence", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";
    fence_ibgda_4_workers: "fence", Ibgda, 4, "OXSHMEM_CPU_WORKERS" = "3";

    streams_p2p_2_workers: "streams", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    flood_ibgda_2_workers: "flood" "4" "64" "500" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256", "OXSHMEM_CPU_WORKERS" = "3";
}

// The network by the CPU proxy. Its rings, queues and landing slots are filled and emptied by host and device together.
jobs! {
    conformance;
    [cpu cuda]
    typed_ibrc_1: "typed", Ibrc, 1;
    typed_ibrc_2: "typed", Ibrc, 2;
    typed_ibrc_4: "typed", Ibrc, 4;
    rma_ibrc_1: "rma", Ibrc, 1;
    rma_ibrc_2: "rma", Ibrc, 2;
    rma_ibrc_3: "rma", Ibrc, 3;
    rma_ibrc_4: "rma", Ibrc, 4;
    lanes_ibrc_2: "lanes", Ibrc, 2;
    lanes_ibrc_3: "lanes", Ibrc, 3;
    lanes_ibrc_4: "lanes", Ibrc, 4;
    signals_ibrc_2: "signals", Ibrc, 2;
    signals_ibrc_4: "signals", Ibrc, 4;
    atomic_values_ibrc_2: "atomic_values", Ibrc, 2;
    atomic_values_ibrc_3: "atomic_values", Ibrc, 3;
    atomic_contention_ibrc_2: "atomic_contention", Ibrc, 2;
    atomic_contention_ibrc_4: "atomic_contention", Ibrc, 4;
    waits_ibrc_2: "waits", Ibrc, 2;
    waits_ibrc_3: "waits", Ibrc, 3;
    barriers_ibrc_2: "barriers", Ibrc, 2;
    barriers_ibrc_4: "barriers" "15", Ibrc, 4;
    host_collectives_ibrc_2: "host_collectives", Ibrc, 2;
    host_collectives_ibrc_3: "host_collectives" "1000", Ibrc, 3;
    host_collectives_ibrc_3_tree: "host_collectives" "1000", Ibrc, 3, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";
    teams_ibrc_2: "teams", Ibrc, 2;
    teams_ibrc_3: "teams", Ibrc, 3;
    teams_ibrc_4: "teams", Ibrc, 4;
    teams_turnover_ibrc_2: "teams_turnover" "100", Ibrc, 2;
    fence_ibrc_2: "fence", Ibrc, 2;
    pointers_ibrc_3: "pointers", Ibrc, 3;
    host_transfers_ibrc_3: "host_transfers", Ibrc, 3;
    host_signals_ibrc_2: "host_signals", Ibrc, 2;
    host_atomics_ibrc_3: "host_atomics", Ibrc, 3;
    collectives_ibrc_2: "collectives" "6000", Ibrc, 2;
    collectives_ibrc_3: "collectives" "6000", Ibrc, 3;
    collectives_ibrc_4: "collectives" "1000", Ibrc, 4;
    reproducible_ibrc_3: "reproducible", Ibrc, 3;
    host_heap_ibrc_2: "host_heap", Ibrc, 2;
    host_heap_ibrc_4: "host_heap", Ibrc, 4;
    host_rounds_ibrc_3: "host_rounds", Ibrc, 3;
    host_mismatch_ibrc_2: "host_mismatch", Ibrc, 2;
    streams_ibrc_2: "streams", Ibrc, 2;
    streams_ibrc_3: "streams", Ibrc, 3;

    descriptors_ibrc_2: "descriptors", Ibrc, 2;
    descriptors_ibrc_2_wrapping: "descriptors" "40", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64";
    proxy_threads_ibrc_1: "proxy_threads", Ibrc, 1;
    proxy_threads_ibrc_2: "proxy_threads", Ibrc, 2;
    proxy_threads_ibgda_2: "proxy_threads", Ibgda, 2;
    proxy_threads_p2p_2: "proxy_threads", P2p, 2;

    // The smallest ring and queues: each wraps hundreds of times.
    flood_ibrc_2_small: "flood" "4" "32" "700" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibrc_2_one_warp: "flood" "1" "32" "2500" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64";
    flood_ibrc_2_one_thread: "flood" "1" "1" "60000" "0", Ibrc, 2;
    flood_ibrc_3_uneven_warps: "flood" "3" "50" "600" "0", Ibrc, 3, "OXSHMEM_PROXY_RING" = "128";
    flood_ibrc_2_ctas_beyond_qps: "flood" "7" "40" "400" "0", Ibrc, 2, "OXSHMEM_QPS_PER_PEER" = "3";
    flood_ibrc_2_large: "flood" "4" "64" "1200" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "65536", "OXSHMEM_QP_DEPTH" = "16384";
    lanes_ibrc_2_small: "lanes", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
}

jobs! {
    conformance;
    [cpu]
    rma_ibrc_8: "rma", Ibrc, 8;
    atomic_contention_ibrc_8: "atomic_contention", Ibrc, 8;
    barriers_ibrc_20: "barriers" "2", Ibrc, 20;
    collectives_ibrc_1: "collectives" "6000", Ibrc, 1;
    collectives_ibrc_5: "collectives" "6000", Ibrc, 5;
    collectives_ibrc_6: "collectives" "6000", Ibrc, 6;
    collectives_ibrc_7: "collectives" "6000", Ibrc, 7;
    collectives_ibrc_8: "collectives" "6000", Ibrc, 8;
    teams_ibrc_1: "teams", Ibrc, 1;
    teams_ibrc_5: "teams", Ibrc, 5;
    teams_ibrc_6: "teams", Ibrc, 6;
    teams_ibrc_7: "teams", Ibrc, 7;
    teams_ibrc_8: "teams", Ibrc, 8;
    rma_ibrc_2_workers: "rma", Ibrc, 2, "OXSHMEM_CPU_WORKERS" = "3";
    lanes_ibrc_2_workers: "lanes", Ibrc, 2, "OXSHMEM_CPU_WORKERS" = "3";
    atomic_contention_ibrc_2_workers: "atomic_contention", Ibrc, 2, "OXSHMEM_CPU_WORKERS" = "3";
    barriers_ibrc_2_workers: "barriers", Ibrc, 2, "OXSHMEM_CPU_WORKERS" = "3";
    flood_ibrc_2_workers: "flood" "4" "64" "500" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64", "OXSHMEM_CPU_WORKERS" = "3";

    // As where PEs share a GPU.
    host_collectives_p2p_3_thinned: "host_collectives" "9000" "thinned", P2p, 3;
    host_collectives_ibrc_3_thinned: "host_collectives" "1000" "thinned", Ibrc, 3;
    collectives_p2p_4_thinned: "collectives" "6000" "thinned", P2p, 4;
    collectives_ibrc_3_thinned: "collectives" "6000" "thinned", Ibrc, 3;

    // Executed by the software HCA's kernel, as on GPUs: the host posts, and the kernel reads the host's queues.
    typed_ibrc_2_kernel: "typed", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    rma_ibrc_3_kernel: "rma", Ibrc, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    lanes_ibrc_2_kernel: "lanes", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    signals_ibrc_2_kernel: "signals", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    atomic_contention_ibrc_2_kernel: "atomic_contention", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    waits_ibrc_2_kernel: "waits", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    fence_ibrc_2_kernel: "fence", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_transfers_ibrc_2_kernel: "host_transfers", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    host_heap_ibrc_2_kernel: "host_heap", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    flood_ibrc_2_kernel: "flood" "4" "32" "700" "0", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_PROXY_RING" = "64";
}

// Puts through bounce slots of 4 KiB, which are 32, from the least size on that can be staged.
jobs! {
    conformance;
    [cpu cuda]
    rma_ibrc_2_staged: "rma", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64";
    signals_ibrc_2_staged: "signals", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64";
    fence_ibrc_2_staged: "fence", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64";
    host_transfers_ibrc_3_staged: "host_transfers", Ibrc, 3, "OXSHMEM_IBRC_STAGING" = "64";
    host_heap_ibrc_2_staged: "host_heap", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64";
    streams_ibrc_2_staged: "streams", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64";
    put_flood_ibrc_2: "put_flood" "2" "4" "40" "20000", Ibrc, 2;
    put_flood_ibrc_2_staged: "put_flood" "2" "4" "40" "20000", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64", "OXSHMEM_PROXY_RING" = "64";
    put_flood_ibrc_3_some_staged: "put_flood" "3" "2" "40" "9000", Ibrc, 3, "OXSHMEM_IBRC_STAGING" = "4K", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
}

jobs! {
    conformance;
    [cpu]
    rma_ibrc_3_staged: "rma", Ibrc, 3, "OXSHMEM_IBRC_STAGING" = "on";
    rma_ibrc_2_staged_workers: "rma", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64", "OXSHMEM_CPU_WORKERS" = "3";
    put_flood_ibrc_2_staged_kernel: "put_flood" "2" "4" "40" "9000", Ibrc, 2, "OXSHMEM_IBRC_STAGING" = "64", "OXSHMEM_SOFT_ENGINE" = "kernel";
}

/// How large puts are read, and why, is among what a PE says of its HCA.
#[test]
fn the_choice_of_staging_is_reported_cpu() {
    for (value, line) in [
        ("auto", "attempt sources of puts read by the card itself: in use: they are in host memory"),
        ("off", "attempt sources of puts read by the card itself: in use: OXSHMEM_IBRC_STAGING=off says so"),
        (
            "on",
            "attempt sources of puts of 64K and more copied to host memory first: in use: OXSHMEM_IBRC_STAGING=on says so",
        ),
        (
            "300",
            "attempt sources of puts of 300 and more copied to host memory first: in use: OXSHMEM_IBRC_STAGING=300 says so",
        ),
    ] {
        let outcome =
            Job::new(PE, "hca_report", 2).transport(Transport::Ibrc).env("OXSHMEM_IBRC_STAGING", value).passes();
        let text = stdout(&outcome, 0);
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    let outcome = Job::new(PE, "hca_report", 2).transport(Transport::Ibrc).env("OXSHMEM_IBRC_STAGING", "63").run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success(), "{text}");
    let error =
        "OXSHMEM_IBRC_STAGING=63 (from the environment) is outside its limits: expected `auto`, `on`, `off` or a size";
    assert!(text.contains(error), "{text}");
}

/// With the defaults, a PE needs less than 256 MiB of memory.
#[test]
fn memory_cpu() {
    for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
        let job = Job::new(PE, "host_memory", 2).transport(transport);
        job.env("OXSHMEM_HEAP_MAX", "16G").env("OXSHMEM_HEAP_CHUNK", "64M").passes();
    }
}
