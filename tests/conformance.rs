//! The semantics of the device and host APIs, per device and transport: each test is a job whose
//! PEs run one case.

use oxshmem_tests::{Job, Transport, jobs, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// A job of the conformance program.
fn conformance(case: &str, npes: u32) -> Job {
    Job::new(PE, case, npes)
}

oxshmem_tests::network_suite!(conformance; [cpu cuda]);
oxshmem_tests::network_suite_further!(conformance; [cpu cuda]);
oxshmem_tests::network_suite_on_cpu!(conformance);

jobs! {
    conformance;
    [cpu cuda]
    layout: "layout", P2p, 1;

    typed_p2p_1: "typed", P2p, 1;
    typed_p2p_2: "typed", P2p, 2;
    typed_p2p_4: "typed", P2p, 4;

    rma_p2p_1: "rma", P2p, 1;
    rma_p2p_2: "rma", P2p, 2;
    rma_p2p_3: "rma", P2p, 3;

    lanes_p2p_1: "lanes", P2p, 1;
    lanes_p2p_2: "lanes", P2p, 2;
    lanes_p2p_4: "lanes", P2p, 4;

    buffers_p2p_2: "buffers", P2p, 2;
    scarce_descriptors_p2p_5: "scarce_descriptors", P2p, 5;
    symmetric_buffers_p2p_1: "symmetric_buffers", P2p, 1;
    symmetric_buffers_p2p_3: "symmetric_buffers", P2p, 3;
    symmetric_buffers_ibgda_2: "symmetric_buffers", Ibgda, 2;
    symmetric_buffers_ibrc_3: "symmetric_buffers", Ibrc, 3;

    signals_p2p_1: "signals", P2p, 1;
    signals_p2p_2: "signals", P2p, 2;
    signals_p2p_4: "signals", P2p, 4;

    atomic_values_p2p_1: "atomic_values", P2p, 1;
    atomic_values_p2p_3: "atomic_values", P2p, 3;
    atomic_contention_p2p_1: "atomic_contention", P2p, 1;
    atomic_contention_p2p_2: "atomic_contention", P2p, 2;
    atomic_contention_p2p_4: "atomic_contention", P2p, 4;

    waits_p2p_1: "waits", P2p, 1;
    waits_p2p_2: "waits", P2p, 2;
    waits_p2p_4: "waits", P2p, 4;

    barriers_p2p_1: "barriers", P2p, 1;
    barriers_p2p_2: "barriers", P2p, 2;
    barriers_p2p_3: "barriers", P2p, 3;
    barriers_p2p_4: "barriers" "15", P2p, 4;

    fence_p2p_2: "fence", P2p, 2;
    pointers_p2p_1: "pointers", P2p, 1;
    pointers_p2p_4: "pointers", P2p, 4;

    host_transfers_p2p_1: "host_transfers", P2p, 1;
    host_transfers_p2p_3: "host_transfers", P2p, 3;
    host_signals_p2p_2: "host_signals", P2p, 2;
    host_atomics_p2p_2: "host_atomics", P2p, 2;
    host_heap_p2p_1: "host_heap", P2p, 1;
    host_heap_p2p_3: "host_heap", P2p, 3;
    host_rounds_p2p_1: "host_rounds", P2p, 1;
    host_rounds_p2p_3: "host_rounds", P2p, 3;
    sound_earlier_pe_p2p_1: "sound_earlier_pe", P2p, 1;
    sound_earlier_pe_p2p_2: "sound_earlier_pe", P2p, 2;
    sound_freed_p2p_1: "sound_freed", P2p, 1;
    sound_freed_p2p_3: "sound_freed", P2p, 3;
    host_mismatch_2: "host_mismatch", P2p, 2;

    collectives_p2p_1: "collectives", P2p, 1;
    collectives_p2p_2: "collectives", P2p, 2;
    collectives_p2p_3: "collectives", P2p, 3;
    collectives_p2p_4: "collectives", P2p, 4;
    grid_collectives_p2p_1: "grid_collectives", P2p, 1;
    grid_collectives_p2p_2: "grid_collectives", P2p, 2;
    grid_collectives_p2p_3: "grid_collectives", P2p, 3;
    grid_collectives_p2p_4: "grid_collectives", P2p, 4;
    grid_relays_p2p_3: "grid_relays", P2p, 3, "OXSHMEM_HEAP_MAX" = "2G";
    grid_relays_p2p_4: "grid_relays", P2p, 4, "OXSHMEM_HEAP_MAX" = "2G";
    grid_collectives_p2p_3_few_sms: "grid_collectives", P2p, 3, "OXSHMEM_COLLECTIVES_SMS" = "2";
    grid_transfers_p2p_1: "grid_transfers", P2p, 1;
    grid_transfers_p2p_2: "grid_transfers", P2p, 2;
    typed_collectives_p2p_2: "typed_collectives", P2p, 2;
    typed_collectives_p2p_3: "typed_collectives", P2p, 3;
    reproducible_p2p_4: "reproducible", P2p, 4;

    teams_p2p_1: "teams", P2p, 1;
    teams_p2p_2: "teams", P2p, 2;
    teams_p2p_3: "teams", P2p, 3;
    teams_p2p_4: "teams", P2p, 4;
    teams_turnover_p2p_3: "teams_turnover", P2p, 3;

    contexts_p2p_2: "contexts", P2p, 2;
    context_batches_p2p_2: "context_batches" "1000", P2p, 2;
    context_names_p2p_2: "context_names", P2p, 2;
    context_names_ibrc_2: "context_names", Ibrc, 2;

    host_collectives_p2p_1: "host_collectives", P2p, 1;
    host_collectives_p2p_2: "host_collectives", P2p, 2;
    host_collectives_p2p_3: "host_collectives", P2p, 3;
    host_collectives_p2p_4: "host_collectives", P2p, 4;
    collect_lengths_p2p_1: "collect_lengths", P2p, 1;
    collect_lengths_p2p_2: "collect_lengths", P2p, 2;
    collect_lengths_p2p_3: "collect_lengths", P2p, 3;
    collect_lengths_p2p_4: "collect_lengths", P2p, 4;
    collect_lengths_p2p_2_many_blocks: "collect_lengths", P2p, 2, "OXSHMEM_HEAP_MAX" = "2G";
    collect_lengths_p2p_3_push: "collect_lengths", P2p, 3, "OXSHMEM_COLLECTIVES" = "collect=push";
    collect_lengths_p2p_3_one_sm: "collect_lengths", P2p, 3, "OXSHMEM_COLLECTIVES_SMS" = "1";
    collect_lengths_ibgda_3: "collect_lengths", Ibgda, 3;
    host_collectives_p2p_3_push: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=push,collect=push,fcollect=push,alltoall=push,alltoalls=push,reduce=push,reducescatter=push";
    host_collectives_p2p_3_packets: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=packets,collect=packets,fcollect=packets,alltoall=packets,alltoalls=packets,reduce=packets,reducescatter=packets";
    host_collectives_p2p_3_relay: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=relay,reduce=relay";
    host_collectives_p2p_4_relay: "host_collectives", P2p, 4, "OXSHMEM_COLLECTIVES" = "broadcast=relay,reduce=relay";
    host_collectives_p2p_2_copy: "host_collectives", P2p, 2, "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
    host_collectives_p2p_3_no_sms: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES_SMS" = "0";
    host_collectives_p2p_4_no_sms: "host_collectives", P2p, 4, "OXSHMEM_COLLECTIVES_SMS" = "0";
    grid_collectives_p2p_2_no_sms: "grid_collectives", P2p, 2, "OXSHMEM_COLLECTIVES_SMS" = "0";
    host_collectives_p2p_2_oneshot: "host_collectives", P2p, 2, "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
    host_collectives_p2p_3_oneshot: "host_collectives", P2p, 3, "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
    host_collectives_p2p_4_tree: "host_collectives" "1000", P2p, 4, "OXSHMEM_COLLECTIVES" = "broadcast=tree";
    host_collectives_long_p2p_2: "host_collectives_long", P2p, 2;
    host_collectives_long_p2p_3: "host_collectives_long", P2p, 3;
    host_collectives_long_p2p_3_oneshot: "host_collectives_long", P2p, 3, "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
    host_collectives_long_p2p_3_push: "host_collectives_long", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=push,fcollect=push,alltoall=push,reduce=push,reducescatter=push";
    host_collectives_long_p2p_3_no_sms: "host_collectives_long", P2p, 3, "OXSHMEM_COLLECTIVES_SMS" = "0";
    host_collectives_long_ibgda_3: "host_collectives_long", Ibgda, 3;

    float_orders_p2p_3: "float_orders", P2p, 3;
    float_orders_p2p_4_packets: "float_orders", P2p, 4, "OXSHMEM_COLLECTIVES" = "reduce=packets,reducescatter=packets";
    float_orders_p2p_4_relay: "float_orders", P2p, 4, "OXSHMEM_COLLECTIVES" = "reduce=relay,reducescatter=packets";
    float_orders_p2p_4_push: "float_orders", P2p, 4, "OXSHMEM_COLLECTIVES" = "reduce=push,reducescatter=push";
    float_orders_ibgda_3: "float_orders", Ibgda, 3;
    float_sums_p2p_8: "float_sums", P2p, 8;
    float_sums_p2p_8_packets: "float_sums", P2p, 8, "OXSHMEM_COLLECTIVES" = "reduce=packets,reducescatter=packets";
    float_sums_p2p_8_relay: "float_sums", P2p, 8, "OXSHMEM_COLLECTIVES" = "reduce=relay,reducescatter=packets";
    float_sums_p2p_8_push: "float_sums", P2p, 8, "OXSHMEM_COLLECTIVES" = "reduce=push,reducescatter=push";
    float_sums_p2p_8_oneshot: "float_sums", P2p, 8, "OXSHMEM_COLLECTIVES" = "reduce=oneshot,reducescatter=push";
    float_sums_ibgda_6_push: "float_sums", Ibgda, 6, "OXSHMEM_COLLECTIVES" = "reduce=push,reducescatter=push";

    streams_p2p_1: "streams", P2p, 1;
    streams_p2p_3: "streams", P2p, 3;

    flood_p2p_2: "flood" "4" "32" "700" "0", P2p, 2;
    proxy_threads_p2p_2: "proxy_threads", P2p, 2;
}

// Queue pairs without a doorbell record, which the engine of the CPU has.
jobs! {
    conformance;
    [cpu]
    rma_ibgda_3_without_record: "rma", Ibgda, 3, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    lanes_ibgda_2_without_record: "lanes", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    signals_ibgda_2_without_record: "signals", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    atomic_values_ibgda_2_without_record: "atomic_values", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    collectives_ibgda_3_without_record: "collectives" "500", Ibgda, 3, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    contexts_ibgda_2_without_record: "contexts", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    context_batches_ibgda_2_without_record: "context_batches" "1000", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    requests_ibgda_2_without_record_wrapping: "requests" "40", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_without_record: "flood" "4" "32" "700" "70000", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_without_record_faults: "flood" "4" "32" "300" "30000", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256",
        "OXSHMEM_SOFT_FAULTS" = "seed=3,reorder=0.5,lost-doorbell=0.5";
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
    buffers_ibgda_2_kernel: "buffers", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    symmetric_buffers_ibgda_2_kernel: "symmetric_buffers", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    signals_ibgda_2_kernel: "signals", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    signals_ibgda_4_kernel: "signals", Ibgda, 4, "OXSHMEM_SOFT_ENGINE" = "kernel";
    atomic_values_ibgda_2_kernel: "atomic_values", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    atomic_contention_ibgda_3_kernel: "atomic_contention", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    waits_ibgda_2_kernel: "waits", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    contexts_ibgda_3_kernel: "contexts", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "kernel";
    context_batches_ibgda_2_kernel: "context_batches" "1000", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
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
    host_fence_ibgda_2_kernel: "host_fence", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    requests_ibgda_2_kernel: "requests", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    requests_ibgda_2_kernel_wrapping: "requests" "40", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_kernel: "flood" "4" "32" "700" "70000", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_kernel_ctas_beyond_qps: "flood" "7" "40" "400" "20000", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel", "OXSHMEM_QPS_PER_PEER" = "3", "OXSHMEM_QP_DEPTH" = "256";
}

// The network through copies by the engine's thread, which is what remains where kernels leave no
// room; atomics take turns with them.
jobs! {
    conformance;
    [cpu cuda]
    typed_ibgda_2_copy: "typed", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    rma_ibgda_2_copy: "rma", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    contexts_ibgda_2_copy: "contexts", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    rma_ibrc_2_copy: "rma", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    lanes_ibgda_2_copy: "lanes", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    signals_ibgda_2_copy: "signals", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    signals_ibrc_2_copy: "signals", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    atomic_values_ibgda_2_copy: "atomic_values", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    atomic_contention_ibrc_2_copy: "atomic_contention", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    waits_ibgda_2_copy: "waits", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    barriers_ibgda_2_copy: "barriers", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    collectives_ibgda_3_copy: "collectives" "6000", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "copy";
    fence_ibgda_2_copy: "fence", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    fence_ibrc_2_copy: "fence", Ibrc, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    host_transfers_ibgda_3_copy: "host_transfers", Ibgda, 3, "OXSHMEM_SOFT_ENGINE" = "copy";
    host_heap_ibgda_2_copy: "host_heap", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy";
    flood_ibgda_2_copy: "flood" "4" "32" "700" "70000", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "copy", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
}

// More PEs than these GPUs are meant for, and what only the `cpu` device has.
jobs! {
    conformance;
    [cpu]
    // With the names of the compatibility layer.
    compat_own_memory_p2p_1: "compat_own_memory", P2p, 1;
    compat_own_memory_ibgda_2: "compat_own_memory", Ibgda, 2;
    compat_own_memory_ibrc_2: "compat_own_memory", Ibrc, 2;
    compat_own_memory_ibgda_2_card: "compat_own_memory", Ibgda, 2, "OXSHMEM_ATOMICS" = "card";
    compat_exit_p2p_2: "compat_exit", P2p, 2;
    compat_exit_ibgda_3: "compat_exit", Ibgda, 3;
    compat_names_p2p_1: "compat_names", P2p, 1;
    compat_names_p2p_3: "compat_names", P2p, 3;
    compat_names_ibgda_2: "compat_names", Ibgda, 2;
    compat_names_ibgda_4: "compat_names", Ibgda, 4;
    compat_names_ibrc_3: "compat_names", Ibrc, 3;
    compat_qps_p2p_2: "compat_qps", P2p, 2;
    compat_qps_ibgda_1: "compat_qps", Ibgda, 1;
    compat_qps_ibgda_3: "compat_qps", Ibgda, 3;
    compat_qps_ibrc_2: "compat_qps", Ibrc, 2;
    compat_typed_p2p_1: "compat_typed", P2p, 1;
    compat_typed_p2p_3: "compat_typed", P2p, 3;
    compat_typed_ibgda_2: "compat_typed", Ibgda, 2;
    compat_typed_collectives_p2p_3: "compat_typed_collectives", P2p, 3;
    compat_typed_collectives_ibgda_2: "compat_typed_collectives", Ibgda, 2;

    // On GPUs its kernel is linked with the device library: gpu.rs.
    exchange_p2p_2: "exchange", P2p, 2;
    exchange_ibgda_2: "exchange", Ibgda, 2;
    exchange_ibgda_2_kernel: "exchange", Ibgda, 2, "OXSHMEM_SOFT_ENGINE" = "kernel";
    exchange_ibgda_3: "exchange", Ibgda, 3;
    exchange_ibrc_2: "exchange", Ibrc, 2;

    rma_p2p_8: "rma", P2p, 8;
    rma_p2p_2_workers: "rma", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    signals_p2p_8: "signals", P2p, 8;
    signals_p2p_2_workers: "signals", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    atomic_contention_p2p_2_workers: "atomic_contention", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    barriers_p2p_8: "barriers" "8", P2p, 8;
    barriers_p2p_17: "barriers" "3", P2p, 17;

    collectives_p2p_5: "collectives", P2p, 5;
    collectives_p2p_6: "collectives" "6000", P2p, 6;
    collectives_p2p_7: "collectives" "6000", P2p, 7;
    collectives_p2p_8: "collectives" "6000", P2p, 8;
    collectives_p2p_3_workers: "collectives" "6000", P2p, 3, "OXSHMEM_CPU_WORKERS" = "3";
    reproducible_p2p_7: "reproducible", P2p, 7;
    teams_p2p_5: "teams", P2p, 5;
    teams_p2p_6: "teams", P2p, 6;
    teams_p2p_7: "teams", P2p, 7;
    teams_p2p_8: "teams", P2p, 8;
    host_collectives_p2p_5: "host_collectives" "1000", P2p, 5;
    host_collectives_p2p_8: "host_collectives" "64", P2p, 8;
    host_collectives_p2p_7_tree: "host_collectives" "64", P2p, 7, "OXSHMEM_COLLECTIVES" = "broadcast=tree";
    host_collectives_p2p_3_workers: "host_collectives", P2p, 3, "OXSHMEM_CPU_WORKERS" = "3";
    teams_p2p_3_workers: "teams", P2p, 3, "OXSHMEM_CPU_WORKERS" = "3";
    teams_turnover_p2p_8: "teams_turnover" "100", P2p, 8;

    fence_p2p_2_workers: "fence", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";

    streams_p2p_2_workers: "streams", P2p, 2, "OXSHMEM_CPU_WORKERS" = "3";
}

jobs! {
    conformance;
    [cpu]
    // The setting of PEs that share a GPU.
    host_collectives_p2p_3_thinned: "host_collectives" "9000", P2p, 3, "CONFORMANCE_THINNED" = "1";
    collectives_p2p_4_thinned: "collectives" "6000", P2p, 4, "CONFORMANCE_THINNED" = "1";

    // Executed by the software HCA's kernel, as on GPUs: the host posts, and the kernel reads the
    // host's queues.
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
    // The kernel reads payloads from staging rings in memory of the host.
    rma_ibgda_2_staged_kernel: "rma", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K", "OXSHMEM_SOFT_ENGINE" = "kernel";
    contexts_ibgda_2_staged_kernel: "contexts", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K", "OXSHMEM_SOFT_ENGINE" = "kernel";
    put_flood_ibgda_2_staged_kernel: "put_flood" "2" "4" "40" "9000", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_SOFT_ENGINE" = "kernel";
    put_flood_ibrc_2_staged_kernel: "put_flood" "2" "4" "40" "9000", Ibrc, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_SOFT_ENGINE" = "kernel";
}

/// The same on two nodes, which the software HCA connects over TCP. On GPUs it executes by copies
/// then; `tests/nodes.rs` has the `cpu` device.
fn two_nodes(case: &str, npes: u32) -> Job {
    conformance(case, npes).nodes(2)
}

jobs! {
    two_nodes;
    [cuda]
    nodes_rma_ibgda: "rma", Ibgda, 2;
    nodes_rma_ibrc: "rma", Ibrc, 2;
    nodes_rma_auto_4: "rma", Auto, 4;
    nodes_lanes_ibgda: "lanes", Ibgda, 2;
    nodes_signals_ibgda: "signals", Ibgda, 2;
    nodes_signals_ibrc: "signals", Ibrc, 2;
    nodes_atomic_values_ibgda: "atomic_values", Ibgda, 2;
    nodes_atomic_values_ibrc: "atomic_values", Ibrc, 2;
    nodes_atomic_contention_ibgda: "atomic_contention", Ibgda, 2;
    nodes_atomic_contention_ibrc: "atomic_contention", Ibrc, 2;
    nodes_fence_ibgda: "fence", Ibgda, 2;
    nodes_fence_ibrc: "fence", Ibrc, 2;
    nodes_barriers_ibgda: "barriers" "5", Ibgda, 2;
    nodes_barriers_ibrc: "barriers" "5", Ibrc, 2;
    nodes_barriers_auto_4: "barriers" "5", Auto, 4;
    nodes_collectives_ibgda: "collectives" "6000", Ibgda, 2, "CONFORMANCE_THINNED" = "1";
    nodes_collectives_ibrc: "collectives" "6000", Ibrc, 2, "CONFORMANCE_THINNED" = "1";
    nodes_collectives_auto_4: "collectives" "6000", Auto, 4, "CONFORMANCE_THINNED" = "1";
    nodes_host_collectives_ibgda: "host_collectives" "9000", Ibgda, 2, "CONFORMANCE_THINNED" = "1";
    nodes_host_transfers_ibgda: "host_transfers", Ibgda, 2;
    nodes_host_transfers_ibrc: "host_transfers", Ibrc, 2;
    nodes_host_heap_ibgda: "host_heap", Ibgda, 2;
}

/// How large puts are read, and why, is among what a PE says of its HCA.
#[test]
fn the_choice_of_staging_is_reported_cpu() {
    for (value, line) in [
        ("auto", "attempt sources of puts read by the card itself: in use: they are in host memory"),
        ("off", "attempt sources of puts read by the card itself: in use: OXSHMEM_STAGING=off says so"),
        (
            "on",
            "attempt sources of puts of 64K and more copied to host memory first: in use: OXSHMEM_STAGING=on says so",
        ),
        (
            "300",
            "attempt sources of puts of 300 and more copied to host memory first: in use: OXSHMEM_STAGING=300 says so",
        ),
    ] {
        let outcome = Job::new(PE, "hca_report", 2).transport(Transport::Ibrc).env("OXSHMEM_STAGING", value).passes();
        let text = stdout(&outcome, 0);
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    let outcome = Job::new(PE, "hca_report", 2).transport(Transport::Ibrc).env("OXSHMEM_STAGING", "63").run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success(), "{text}");
    let error =
        "OXSHMEM_STAGING=63 (from the environment) is outside its limits: expected `auto`, `on`, `off` or a size";
    assert!(text.contains(error), "{text}");
}

/// A file that was measured on streams has no say in kernels.
#[test]
fn a_tuning_file_leaves_kernels_alone_cpu() {
    let file = std::env::temp_dir().join(format!("oxshmem-grid-tuned-{}", std::process::id()));
    for line in ["1 2 reduce packets:16K/library", "1 2 reduce oneshot"] {
        std::fs::write(&file, format!("oxshmem-tuning 1\n{line}\n")).expect("the temporary folder takes a file");
        conformance("grid_tuned", 2).env("OXSHMEM_TUNING", file.to_str().expect("the path is text")).passes();
    }
    std::fs::remove_file(&file).expect("the file is there");
}

/// What PEs that share a GPU leave out of the lists of collectives is seen in other calls. The
/// checks are in the program, whose lists they are.
#[test]
fn thinned_lists_show_everything_cpu() {
    for case in ["collectives_thinned", "host_collectives_thinned"] {
        conformance(case, 1).passes();
    }
}

/// With the defaults, a PE needs less than 256 MiB of memory.
#[test]
fn memory_cpu() {
    if oxshmem_tests::has_runner() {
        println!("skipped: memory of the program that runs the PEs counts as theirs");
        return;
    }
    for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
        let job = Job::new(PE, "host_memory", 2).transport(transport);
        job.env("OXSHMEM_HEAP_MAX", "16G").env("OXSHMEM_HEAP_CHUNK", "64M").passes();
    }
}

#[test]
fn words_that_gpus_and_cards_change_are_reported_cpu() {
    oxshmem_tests::mixed_words_are_found(conformance);
}

#[test]
fn what_does_atomics_is_logged_once_cpu() {
    let both = "those of cards and GPUs are atomic with each other (OXSHMEM_ATOMICS=";
    oxshmem_tests::mode_is_logged_once(conformance, "auto", both);
    oxshmem_tests::mode_is_logged_once(conformance, "gpu", both);
    oxshmem_tests::mode_is_logged_once(conformance, "card", "all of them by cards (OXSHMEM_ATOMICS=card)");
}
