//! The cases of conformance that use the network: one list for every HCA.

/// Those that run on every device, each case once or more, as [`jobs!`](crate::jobs!): after the
/// function that makes a job of a case and a number of PEs, the devices.
#[macro_export]
macro_rules! network_suite {
    ($make:path; $devices:tt) => {
        $crate::jobs! {
            $make;
            $devices
            typed_ibgda_2: "typed", Ibgda, 2;

            rma_ibgda_1: "rma", Ibgda, 1;
            rma_ibgda_2: "rma", Ibgda, 2;
            rma_ibgda_3: "rma", Ibgda, 3;

            lanes_ibgda_2: "lanes", Ibgda, 2;
            lanes_ibgda_4: "lanes", Ibgda, 4;
            lanes_ibgda_2_one_qp: "lanes", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";

            signals_ibgda_4: "signals", Ibgda, 4;

            buffers_ibgda_2: "buffers", Ibgda, 2;
            buffers_ibrc_2: "buffers", Ibrc, 2;
            buffers_ibrc_2_staged: "buffers", Ibrc, 2, "OXSHMEM_STAGING" = "on";

            contexts_ibgda_1: "contexts", Ibgda, 1;
            contexts_ibgda_3: "contexts", Ibgda, 3;
            context_batches_ibgda_2: "context_batches" "1000", Ibgda, 2;
            context_names_ibgda_2: "context_names", Ibgda, 2;

            atomic_values_ibgda_2: "atomic_values", Ibgda, 2;
            atomic_contention_ibgda_4: "atomic_contention", Ibgda, 4;

            waits_ibgda_3: "waits", Ibgda, 3;

            barriers_ibgda_4: "barriers" "15", Ibgda, 4;

            fence_ibgda_2: "fence", Ibgda, 2;
            pointers_ibgda_3: "pointers", Ibgda, 3;

            host_transfers_ibgda_3: "host_transfers", Ibgda, 3;
            host_signals_ibgda_2: "host_signals", Ibgda, 2;
            host_atomics_ibgda_3: "host_atomics", Ibgda, 3;
            host_heap_ibgda_4: "host_heap", Ibgda, 4;
            host_rounds_ibgda_3: "host_rounds", Ibgda, 3;
            host_mismatch_4: "host_mismatch", Ibgda, 4;

            collectives_ibgda_3: "collectives" "6000", Ibgda, 3;
            collectives_mixed_3: "collectives" "6000", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            grid_collectives_ibgda_3: "grid_collectives" "6000", Ibgda, 3;
            grid_collectives_mixed_3: "grid_collectives" "6000", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            grid_transfers_ibgda_2: "grid_transfers", Ibgda, 2;
            grid_transfers_mixed_3: "grid_transfers", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            typed_collectives_ibgda_2: "typed_collectives", Ibgda, 2;
            reproducible_ibgda_3: "reproducible", Ibgda, 3;

            teams_ibgda_4: "teams", Ibgda, 4;
            teams_turnover_ibgda_2: "teams_turnover" "100", Ibgda, 2;

            host_collectives_ibgda_2: "host_collectives", Ibgda, 2;

            streams_ibgda_2: "streams", Ibgda, 2;

            // Some pairs of PEs are without peer access, as GPUs can be: they use the network, the
            // others load and store.
            rma_mixed_3: "rma", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            rma_mixed_ibrc_3: "rma", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1", "OXSHMEM_NETWORK" = "ibrc";
            lanes_mixed_3: "lanes", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-2";
            signals_mixed_3: "signals", Auto, 3, "OXSHMEM_P2P_FAULTS" = "1-2";
            atomic_contention_mixed_3: "atomic_contention", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            // Words that both kinds of peers change: cards do all atomics on them, unless GPUs' and
            // cards' are atomic with each other.
            mixed_words_3: "mixed_words" "together", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            mixed_words_3_by_card: "mixed_words" "together", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1", "OXSHMEM_ATOMICS" = "card";
            atomic_contention_mixed_3_by_card: "atomic_contention", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1", "OXSHMEM_ATOMICS" = "card";
            mixed_words_3_apart: "mixed_words" "apart", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1", "OXSHMEM_ATOMICS" = "gpu";
            waits_mixed_3: "waits", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1,1-2";
            barriers_mixed_4: "barriers" "15", Auto, 4, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";
            fence_mixed_2: "fence", Auto, 2, "OXSHMEM_P2P_FAULTS" = "0-1";
            pointers_mixed_3: "pointers", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            host_transfers_mixed_3: "host_transfers", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            streams_mixed_3: "streams", Auto, 3, "OXSHMEM_P2P_FAULTS" = "1-2";

            teams_mixed_3: "teams", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";

            // Queues of 256 blocks: 16-bit counters wrap again and again.
            crowd_ibgda_2: "crowd" "12" "1024", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            quiet_of_each_lane_ibgda_2: "own_posts" "quiet_of_each_lane", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1";
            fence_of_each_lane_ibgda_2: "own_posts" "fence_of_each_lane", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1";
            flood_ibgda_2_one_qp: "flood" "4" "32" "700" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            flood_ibgda_2_large_qp: "flood" "4" "64" "500" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "16384";

            requests_ibgda_2: "requests", Ibgda, 2;
            requests_ibgda_2_wrapping: "requests" "40", Ibgda, 2, "OXSHMEM_QP_DEPTH" = "256";

            // The CPU proxy. Its rings, queues and landing slots are filled and emptied by host and
            // device together.
            typed_ibrc_1: "typed", Ibrc, 1;
            typed_ibrc_2: "typed", Ibrc, 2;
            rma_ibrc_1: "rma", Ibrc, 1;
            rma_ibrc_3: "rma", Ibrc, 3;
            lanes_ibrc_4: "lanes", Ibrc, 4;
            signals_ibrc_2: "signals", Ibrc, 2;
            atomic_values_ibrc_3: "atomic_values", Ibrc, 3;
            atomic_contention_ibrc_2: "atomic_contention", Ibrc, 2;
            waits_ibrc_2: "waits", Ibrc, 2;
            barriers_ibrc_4: "barriers" "15", Ibrc, 4;
            host_collectives_ibrc_3: "host_collectives" "1000", Ibrc, 3;
            teams_ibrc_3: "teams", Ibrc, 3;
            teams_turnover_ibrc_2: "teams_turnover" "100", Ibrc, 2;
            fence_ibrc_2: "fence", Ibrc, 2;
            pointers_ibrc_3: "pointers", Ibrc, 3;
            host_transfers_ibrc_3: "host_transfers", Ibrc, 3;
            host_signals_ibrc_2: "host_signals", Ibrc, 2;
            host_atomics_ibrc_3: "host_atomics", Ibrc, 3;
            collectives_ibrc_3: "collectives" "6000", Ibrc, 3;
            grid_collectives_ibrc_3: "grid_collectives" "6000", Ibrc, 3;
            grid_transfers_ibrc_3: "grid_transfers", Ibrc, 3;
            reproducible_ibrc_3: "reproducible", Ibrc, 3;
            host_heap_ibrc_2: "host_heap", Ibrc, 2;
            host_rounds_ibrc_3: "host_rounds", Ibrc, 3;
            host_mismatch_ibrc_2: "host_mismatch", Ibrc, 2;
            streams_ibrc_2: "streams", Ibrc, 2;

            descriptors_ibrc_2: "descriptors", Ibrc, 2;
            descriptors_ibrc_2_wrapping: "descriptors" "40", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64";
            proxy_threads_ibrc_1: "proxy_threads", Ibrc, 1;
            proxy_threads_ibrc_2: "proxy_threads", Ibrc, 2;
            proxy_threads_ibgda_2: "proxy_threads", Ibgda, 2;

            // The smallest ring and queues: each wraps hundreds of times.
            flood_ibrc_2_small: "flood" "4" "32" "700" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            flood_ibrc_2_large: "flood" "4" "64" "1200" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "65536", "OXSHMEM_QP_DEPTH" = "16384";
            lanes_ibrc_2_small: "lanes", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";

            // Puts through bounce slots of 4 KiB, which are 32, from the least size on that can be
            // staged.
            rma_ibrc_2_staged: "rma", Ibrc, 2, "OXSHMEM_STAGING" = "64";
            signals_ibrc_2_staged: "signals", Ibrc, 2, "OXSHMEM_STAGING" = "64";
            fence_ibrc_2_staged: "fence", Ibrc, 2, "OXSHMEM_STAGING" = "64";
            streams_ibrc_2_staged: "streams", Ibrc, 2, "OXSHMEM_STAGING" = "64";
            // Puts through staging rings, from the least size on that can be staged, with the
            // shortest rings: 32 slots of 64 bytes, so that they wrap and puts are cut.
            rma_ibgda_2_staged: "rma", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K";
            signals_ibgda_2_staged: "signals", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K";
            fence_ibgda_2_staged: "fence", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K";
            contexts_ibgda_2_staged: "contexts", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K";
            put_flood_ibgda_2_staged: "put_flood" "2" "4" "40" "20000", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K";
            put_flood_ibgda_3_some_staged: "put_flood" "3" "64" "40" "9000", Ibgda, 3, "OXSHMEM_STAGING" = "4K", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            word_ping_pong_ibgda_2: "word_ping_pong" "512" "4096" "40", Ibgda, 2;
            word_ping_pong_ibrc_2: "word_ping_pong" "512" "4096" "40", Ibrc, 2;
            put_flood_ibrc_2: "put_flood" "2" "4" "40" "20000", Ibrc, 2;
            put_flood_ibrc_2_staged: "put_flood" "2" "4" "40" "20000", Ibrc, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_PROXY_RING" = "64";
            put_flood_ibrc_3_some_staged: "put_flood" "3" "2" "40" "9000", Ibrc, 3, "OXSHMEM_STAGING" = "4K", "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
        }
    };
}

/// The same cases with other numbers of PEs, ways of collectives, and shapes of launches and
/// queues: what an HCA's provider has little part in.
#[macro_export]
macro_rules! network_suite_further {
    ($make:path; $devices:tt) => {
        $crate::jobs! {
            $make;
            $devices
            typed_ibgda_4: "typed", Ibgda, 4;
            rma_ibgda_4: "rma", Ibgda, 4;
            lanes_ibgda_3: "lanes", Ibgda, 3;
            signals_ibgda_2: "signals", Ibgda, 2;
            contexts_ibgda_2: "contexts", Ibgda, 2;
            contexts_ibrc_2: "contexts", Ibrc, 2;
            contexts_mixed_4: "contexts", Auto, 4, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";
            atomic_values_ibgda_3: "atomic_values", Ibgda, 3;
            atomic_contention_ibgda_2: "atomic_contention", Ibgda, 2;
            waits_ibgda_2: "waits", Ibgda, 2;
            barriers_ibgda_2: "barriers", Ibgda, 2;
            host_heap_ibgda_2: "host_heap", Ibgda, 2;
            collectives_ibgda_2: "collectives" "6000", Ibgda, 2;
            collectives_ibgda_4: "collectives" "1000", Ibgda, 4;
            teams_ibgda_2: "teams", Ibgda, 2;
            teams_ibgda_3: "teams", Ibgda, 3;
            host_collectives_ibgda_3: "host_collectives", Ibgda, 3;
            host_collectives_ibgda_4: "host_collectives" "64", Ibgda, 4;
            host_collectives_ibgda_3_push: "host_collectives" "1000", Ibgda, 3, "OXSHMEM_COLLECTIVES" = "broadcast=push,reduce=push";
            host_collectives_ibgda_3_tree: "host_collectives" "1000", Ibgda, 3, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";
            streams_ibgda_3: "streams", Ibgda, 3;
            host_collectives_mixed_3: "host_collectives", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
            teams_mixed_4: "teams", Auto, 4, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";
            flood_ibgda_2_one_warp: "flood" "1" "32" "2500" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            flood_ibgda_2_one_thread: "flood" "1" "1" "60000" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            flood_ibgda_3_uneven_warps: "flood" "3" "50" "600" "70000", Ibgda, 3, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256";
            flood_ibgda_2_many_qps: "flood" "4" "64" "1200" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "4", "OXSHMEM_QP_DEPTH" = "256";
            flood_ibgda_2_ctas_beyond_qps: "flood" "7" "40" "400" "20000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "3", "OXSHMEM_QP_DEPTH" = "256";

            typed_ibrc_4: "typed", Ibrc, 4;
            rma_ibrc_2: "rma", Ibrc, 2;
            rma_ibrc_4: "rma", Ibrc, 4;
            lanes_ibrc_2: "lanes", Ibrc, 2;
            lanes_ibrc_3: "lanes", Ibrc, 3;
            signals_ibrc_4: "signals", Ibrc, 4;
            atomic_values_ibrc_2: "atomic_values", Ibrc, 2;
            atomic_contention_ibrc_4: "atomic_contention", Ibrc, 4;
            waits_ibrc_3: "waits", Ibrc, 3;
            barriers_ibrc_2: "barriers", Ibrc, 2;
            host_collectives_ibrc_2: "host_collectives", Ibrc, 2;
            host_collectives_ibrc_3_tree: "host_collectives" "1000", Ibrc, 3, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";
            teams_ibrc_2: "teams", Ibrc, 2;
            teams_ibrc_4: "teams", Ibrc, 4;
            collectives_ibrc_2: "collectives" "6000", Ibrc, 2;
            collectives_ibrc_4: "collectives" "1000", Ibrc, 4;
            host_heap_ibrc_4: "host_heap", Ibrc, 4;
            streams_ibrc_3: "streams", Ibrc, 3;
            flood_ibrc_2_one_warp: "flood" "1" "32" "2500" "0", Ibrc, 2, "OXSHMEM_PROXY_RING" = "64";
            flood_ibrc_2_one_thread: "flood" "1" "1" "60000" "0", Ibrc, 2;
            flood_ibrc_3_uneven_warps: "flood" "3" "50" "600" "0", Ibrc, 3, "OXSHMEM_PROXY_RING" = "128";
            flood_ibrc_2_ctas_beyond_qps: "flood" "7" "40" "400" "0", Ibrc, 2, "OXSHMEM_QPS_PER_PEER" = "3";
            host_transfers_ibrc_3_staged: "host_transfers", Ibrc, 3, "OXSHMEM_STAGING" = "64";
            host_heap_ibrc_2_staged: "host_heap", Ibrc, 2, "OXSHMEM_STAGING" = "64";
            rma_ibgda_3_staged: "rma", Ibgda, 3, "OXSHMEM_STAGING" = "on";
            collectives_ibgda_3_staged: "collectives" "6000", Ibgda, 3, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K";
            host_transfers_ibgda_3_staged: "host_transfers", Ibgda, 3, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "8K";
        }
    };
}

/// More PEs than the GPUs of tests are meant for, and what only the `cpu` device has.
#[macro_export]
macro_rules! network_suite_on_cpu {
    ($make:path) => {
        $crate::jobs! {
            $make;
            [cpu]
            rma_ibgda_8: "rma", Ibgda, 8;
            rma_ibgda_2_workers: "rma", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

            lanes_ibgda_2_workers: "lanes", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

            signals_ibgda_8: "signals", Ibgda, 8;
            contexts_ibgda_5_workers: "contexts", Ibgda, 5, "OXSHMEM_CPU_WORKERS" = "3";
            signals_ibgda_2_workers: "signals", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

            atomic_contention_ibgda_8: "atomic_contention", Ibgda, 8;
            atomic_contention_ibgda_2_workers: "atomic_contention", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

            barriers_ibgda_8: "barriers" "8", Ibgda, 8;
            barriers_ibgda_20: "barriers" "2", Ibgda, 20;
            barriers_ibgda_2_workers: "barriers", Ibgda, 2, "OXSHMEM_CPU_WORKERS" = "3";

            collectives_ibgda_1: "collectives" "6000", Ibgda, 1;
            collectives_ibgda_5: "collectives" "6000", Ibgda, 5;
            collectives_ibgda_6: "collectives" "6000", Ibgda, 6;
            collectives_ibgda_7: "collectives" "6000", Ibgda, 7;
            collectives_ibgda_8: "collectives" "6000", Ibgda, 8;
            collectives_ibgda_3_workers: "collectives" "6000", Ibgda, 3, "OXSHMEM_CPU_WORKERS" = "3";
            collectives_mixed_6: "collectives" "6000", Auto, 6, "OXSHMEM_P2P_FAULTS" = "0-1,2-3,1-5";
            reproducible_ibgda_8: "reproducible" "500", Ibgda, 8;
            reproducible_mixed_5: "reproducible", Auto, 5, "OXSHMEM_P2P_FAULTS" = "0-1,2-3";
            teams_ibgda_1: "teams", Ibgda, 1;
            teams_ibgda_5: "teams", Ibgda, 5;
            teams_ibgda_6: "teams", Ibgda, 6;
            teams_ibgda_7: "teams", Ibgda, 7;
            teams_ibgda_8: "teams", Ibgda, 8;
            teams_mixed_6: "teams", Auto, 6, "OXSHMEM_P2P_FAULTS" = "0-1,1-2,3-5";
            host_collectives_ibgda_8: "host_collectives" "64", Ibgda, 8;
            host_collectives_ibgda_7_tree: "host_collectives" "64", Ibgda, 7, "OXSHMEM_COLLECTIVES" = "broadcast=tree,reduce=tree";

            fence_ibgda_4_workers: "fence", Ibgda, 4, "OXSHMEM_CPU_WORKERS" = "3";

            flood_ibgda_2_workers: "flood" "4" "64" "500" "70000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "1", "OXSHMEM_QP_DEPTH" = "256", "OXSHMEM_CPU_WORKERS" = "3";

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

            // The setting of PEs that share a GPU.
            host_collectives_ibrc_3_thinned: "host_collectives" "1000", Ibrc, 3, "CONFORMANCE_THINNED" = "1";
            collectives_ibrc_3_thinned: "collectives" "6000", Ibrc, 3, "CONFORMANCE_THINNED" = "1";

            rma_ibrc_3_staged: "rma", Ibrc, 3, "OXSHMEM_STAGING" = "on";
            rma_ibgda_2_staged_workers: "rma", Ibgda, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_STAGING_RING" = "2K", "OXSHMEM_CPU_WORKERS" = "3";
            rma_ibrc_2_staged_workers: "rma", Ibrc, 2, "OXSHMEM_STAGING" = "64", "OXSHMEM_CPU_WORKERS" = "3";
        }
    };
}
