//! The provider for ConnectX cards through its real interface, on the stand-in for rdma-core:
//! conformance, lies of libraries, kernel and firmware, and teardown.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use oxshmem_tests::{Job, Transport, jobs, scratch};

#[path = "mlx5/cpu.rs"]
mod cpu;
#[path = "mlx5/strictness.rs"]
mod strictness;

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// The folder for files of these tests.
fn folder() -> PathBuf {
    scratch(env!("CARGO_TARGET_TMPDIR"))
}

/// The folder with the libraries, less those functions.
fn libraries(missing: &[&str]) -> PathBuf {
    let name = [&["stand-in"], missing].concat().join("-without-");
    let folder = folder().join(name);
    if let Err(error) = oxshmem_stand_in::install(&folder, missing) {
        panic!("{}: {error}", folder.display());
    }
    folder
}

/// The library path of a process that finds the stand-in in the place of rdma-core.
fn stand_in_path() -> OsString {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    library_path(LIBRARIES.get_or_init(|| libraries(&[])))
}

/// A job whose PEs find the stand-in in the place of rdma-core. The cards take all kinds of
/// messages in the same ways, so long lists of calls are thinned; over the software HCA all are
/// made.
fn on_the_card(case: &str, npes: u32) -> Job {
    let job = Job::new(PE, case, npes).thinned();
    job.env("LD_LIBRARY_PATH", stand_in_path()).env("OXSHMEM_HCA", "mlx5:mlx5_0")
}

/// The library path with `folder` first: where there are GPUs, their driver may be found by it.
fn library_path(folder: &Path) -> OsString {
    let others = std::env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty());
    let others = others.iter().flat_map(std::env::split_paths);
    match std::env::join_paths([folder.to_path_buf()].into_iter().chain(others)) {
        Ok(path) => path,
        Err(error) => panic!("{}: {error}", folder.display()),
    }
}

fn job(case: &str, transport: Transport, npes: u32) -> Job {
    on_the_card(case, npes).transport(transport)
}

/// Returns the counts of that name in reports of the stand-in: one for each PE and card.
fn counts(reports: &str, name: &str) -> Vec<u64> {
    let one = |line: &str| line.split(' ').find_map(|item| item.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
    reports.lines().filter_map(one).collect()
}

/// Runs a job that must pass, and returns what the stand-in's cards report of it.
fn card_reports(name: &str, job: Job, lies: &str) -> String {
    let file = folder().join(name);
    let _ = std::fs::remove_file(&file);
    job.env("RDMA_STAND_IN", format!("report:file={},{lies}", file.display())).passes();
    std::fs::read_to_string(&file).unwrap_or_default()
}

oxshmem_tests::network_suite!(on_the_card; [cpu cuda]);
// On the `cpu` device these take as long again as the others, and show what conformance shows of
// the software HCA, which moves the data here, too.
oxshmem_tests::network_suite_further!(on_the_card; [cuda]);

jobs! {
    on_the_card;
    [cpu cuda]
    // A thread of the CPU passes doorbells on.
    rma_ibgda_3_rung_by_thread: "rma", Ibgda, 3, "OXSHMEM_IBGDA_DOORBELL" = "cpu";
    signals_ibgda_2_rung_by_thread: "signals", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL" = "cpu";
    flood_ibgda_2_rung_by_thread: "flood" "4" "32" "300" "30000", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL" = "cpu";

    // The GPU does a PE's atomics on its own memory: no word there is a target of others as well.
    atomic_values_ibgda_2_of_the_gpu: "atomic_values", Ibgda, 2, "OXSHMEM_ATOMICS" = "gpu";
    signals_ibgda_2_of_the_gpu: "signals" "alone", Ibgda, 2, "OXSHMEM_ATOMICS" = "gpu";

    // On InfiniBand peers are reached by LID.
    typed_ibgda_2_infiniband: "typed", Ibgda, 2, "RDMA_STAND_IN" = "port:infiniband=1";
    rma_ibgda_1_infiniband: "rma", Ibgda, 1, "RDMA_STAND_IN" = "port:infiniband=1";
    rma_ibgda_3_infiniband: "rma", Ibgda, 3, "RDMA_STAND_IN" = "port:infiniband=1";
    signals_ibgda_4_infiniband: "signals", Ibgda, 4, "RDMA_STAND_IN" = "port:infiniband=1";
    atomic_contention_ibgda_3_infiniband: "atomic_contention", Ibgda, 3, "RDMA_STAND_IN" = "port:infiniband=1";
    collectives_ibgda_3_infiniband: "collectives" "500", Ibgda, 3, "RDMA_STAND_IN" = "port:infiniband=1";
    typed_ibrc_2_infiniband: "typed", Ibrc, 2, "RDMA_STAND_IN" = "port:infiniband=1";
    rma_ibrc_3_infiniband: "rma", Ibrc, 3, "RDMA_STAND_IN" = "port:infiniband=1";
    signals_ibrc_2_infiniband: "signals", Ibrc, 2, "RDMA_STAND_IN" = "port:infiniband=1";
    atomic_contention_ibrc_2_infiniband: "atomic_contention", Ibrc, 2, "RDMA_STAND_IN" = "port:infiniband=1";
    collectives_ibrc_3_infiniband: "collectives" "500", Ibrc, 3, "RDMA_STAND_IN" = "port:infiniband=1";
    // Several LIDs for a port; a header that is demanded; the only service level that is forwarded;
    // another partition.
    rma_ibgda_2_infiniband_lmc: "rma", Ibgda, 2, "RDMA_STAND_IN" = "port:infiniband=1,port:lmc=3";
    rma_ibgda_2_infiniband_grh: "rma", Ibgda, 2, "RDMA_STAND_IN" = "port:infiniband=1,port:grh=1";
    rma_ibgda_2_infiniband_sl: "rma", Ibgda, 2, "RDMA_STAND_IN" = "port:infiniband=1,port:sl=5", "OXSHMEM_IB_SL" = "5";
    rma_ibgda_2_infiniband_pkey: "rma", Ibgda, 2, "RDMA_STAND_IN" = "port:infiniband=1", "OXSHMEM_IB_PKEY_INDEX" = "1";
    // Two subnets, and a router between them.
    rma_ibgda_3_subnets: "rma", Ibgda, 3, "RDMA_STAND_IN" = "device:count=2,port:infiniband=1,port:subnets=2",
        "OXSHMEM_HCA" = "mlx5", "OXSHMEM_HCA_DEVICES" = "0=mlx5_0,1=mlx5_1,2=mlx5_0";
    signals_ibrc_3_subnets: "signals", Ibrc, 3, "RDMA_STAND_IN" = "device:count=2,port:infiniband=1,port:subnets=2",
        "OXSHMEM_HCA" = "mlx5", "OXSHMEM_HCA_DEVICES" = "0=mlx5_0,1=mlx5_1,2=mlx5_0";

    // Without several cards, for comparison.
    spread_ibgda_2_of_the_gpu: "spread" "1", Ibgda, 2, "OXSHMEM_ATOMICS" = "gpu";
}

/// A job whose PEs have two cards each, which keep different keys, and whose acknowledgements come
/// before what was written is visible.
fn on_two_cards(case: &str, npes: u32) -> Job {
    on_the_card(case, npes)
        .env("OXSHMEM_HCA", "mlx5")
        .env("OXSHMEM_HCA_DEVICES", "0=mlx5_0+mlx5_1,1=mlx5_1+mlx5_0,2=mlx5_0+mlx5_1")
        .env("RDMA_STAND_IN", "device:count=2")
}

jobs! {
    on_the_card;
    [cpu]
    mixed_words_3_strict: "mixed_words", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
}

// Queue pairs without a doorbell record: each rings in a page of its own.
jobs! {
    on_the_card;
    [cpu]
    rma_ibgda_3_without_record: "rma", Ibgda, 3, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    signals_ibgda_2_without_record: "signals", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never";
    flood_ibgda_2_without_record: "flood" "4" "32" "300" "30000", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never", "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_without_record_rung_by_thread: "flood" "4" "32" "300" "30000", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL_RECORD" = "never",
        "OXSHMEM_IBGDA_DOORBELL" = "cpu", "OXSHMEM_QP_DEPTH" = "256";
}

/// A card that has no queue pairs without a doorbell record, or not enough, is an error with the
/// remedy, even where the proxy could post instead.
#[test]
fn doorbell_records_that_a_card_cannot_do_without() {
    for (lies, qps, text) in [
        ("device:kernel=1", "4", "does not offer them (send_dbr_mode_no_dbr_ext)"),
        ("device:count=1", "40", "queue pairs without doorbell record may be used up"),
    ] {
        for transport in [Transport::Ibgda, Transport::Auto] {
            let job = on_the_card("rma", 2).transport(transport).env("OXSHMEM_DISABLE_P2P", "1");
            let job = job.env("RDMA_STAND_IN", lies).env("OXSHMEM_QPS_PER_PEER", qps);
            let text = [text, "use OXSHMEM_IBGDA_DOORBELL_RECORD=always"].map(str::to_owned);
            let outcome = job.env("OXSHMEM_IBGDA_DOORBELL_RECORD", "never").run();
            let said = oxshmem_tests::transcript(&outcome);
            assert!(!outcome.is_success() && text.iter().all(|text| said.contains(text)), "{said}");
        }
    }
}

jobs! {
    on_two_cards;
    [cpu]
    // Each card counts the ways from it.
    routes_ibrc_2_cards: "routes" "3" "100", Ibrc, 2, "OXSHMEM_IB_FLUSH" = "never";
    mixed_words_3_cards_strict: "mixed_words", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    aggregates_ibgda_3_cards_strict: "aggregates", Ibgda, 3;
    aggregates_mixed_3_cards_strict: "aggregates", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    contexts_ibgda_3_cards_strict: "contexts", Ibgda, 3;
    contexts_mixed_3_cards_strict: "contexts", Auto, 3, "OXSHMEM_P2P_FAULTS" = "0-1";
    context_batches_ibgda_2_cards_strict: "context_batches" "600", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL" = "cpu";
    context_errors_ibgda_2_cards_strict: "context_errors", Ibgda, 2;
}

jobs! {
    on_two_cards;
    [cpu cuda]
    spread_ibgda_2_cards: "spread" "2", Ibgda, 2;
    spread_ibrc_2_cards: "spread" "2", Ibrc, 2;
    typed_ibgda_2_cards: "typed", Ibgda, 2;
    rma_ibgda_3_cards: "rma", Ibgda, 3;
    lanes_ibgda_2_cards: "lanes", Ibgda, 2;
    signals_ibgda_3_cards: "signals", Ibgda, 3;
    fence_ibgda_2_cards: "fence", Ibgda, 2;
    atomic_values_ibgda_2_cards: "atomic_values", Ibgda, 2;
    atomic_contention_ibgda_3_cards: "atomic_contention", Ibgda, 3;
    collectives_ibgda_3_cards: "collectives" "500", Ibgda, 3;
    host_heap_ibgda_2_cards: "host_heap", Ibgda, 2;
    flood_ibgda_2_cards: "flood" "4" "32" "300" "30000", Ibgda, 2, "OXSHMEM_QP_DEPTH" = "256";
    rma_ibgda_2_cards_rung_by_thread: "rma", Ibgda, 2, "OXSHMEM_IBGDA_DOORBELL" = "cpu";
    rma_ibrc_3_cards: "rma", Ibrc, 3;
    signals_ibrc_2_cards: "signals", Ibrc, 2;
    atomic_values_ibrc_2_cards: "atomic_values", Ibrc, 2;
    // Atomics by loops of compare-and-swap.
    atomic_contention_ibrc_3_cards: "atomic_contention", Ibrc, 3, "RDMA_STAND_IN" = "device:count=2,cap:atomic_operations=3";
    collectives_ibrc_3_cards: "collectives" "500", Ibrc, 3;
    // Three cards for four queue pairs, and on InfiniBand.
    spread_ibgda_2_three_cards: "spread" "3", Ibgda, 2, "OXSHMEM_HCA_DEVICES" = "0=mlx5_0+mlx5_1+mlx5_2,1=mlx5_2+mlx5_0+mlx5_1",
        "RDMA_STAND_IN" = "device:count=3,port:infiniband=1";
    rma_ibrc_2_three_cards: "rma", Ibrc, 2, "OXSHMEM_HCA_DEVICES" = "0=mlx5_0+mlx5_1+mlx5_2,1=mlx5_2+mlx5_0+mlx5_1",
        "RDMA_STAND_IN" = "device:count=3,port:infiniband=1";
    // Atomics that are atomic with those of CPUs and GPUs take the block's queue pair.
    put_flood_ibrc_2_coherent_cards: "put_flood" "2" "4" "40" "9000", Ibrc, 2, "OXSHMEM_STAGING" = "64",
        "RDMA_STAND_IN" = "device:count=2,device:atomics=2";
    signals_ibgda_2_coherent_cards: "signals", Ibgda, 2, "RDMA_STAND_IN" = "device:count=2,device:atomics=2";
    spread_ibgda_2_coherent_cards: "spread" "1", Ibgda, 2, "RDMA_STAND_IN" = "device:count=2,device:atomics=2";
    // The GPU does local atomics, and of those that it does not the first card does all.
    spread_ibgda_2_cards_and_gpu: "spread" "2", Ibgda, 2, "OXSHMEM_ATOMICS" = "gpu";
    fence_ibgda_2_cards_and_gpu: "fence", Ibgda, 2, "OXSHMEM_ATOMICS" = "gpu";
}

// Where PEs have no GPU, a kernel on the `cpu` device moves the data.
jobs! {
    on_the_card;
    [cpu]
    rma_ibgda_1_kernel: "rma", Ibgda, 1, "RDMA_STAND_IN" = "device:kernel=1";
    rma_ibgda_3_kernel: "rma", Ibgda, 3, "RDMA_STAND_IN" = "device:kernel=1";
    signals_ibgda_2_kernel: "signals", Ibgda, 2, "RDMA_STAND_IN" = "device:kernel=1";
    atomic_contention_ibgda_2_kernel: "atomic_contention", Ibgda, 2, "RDMA_STAND_IN" = "device:kernel=1";
    host_heap_ibgda_2_kernel: "host_heap", Ibgda, 2, "RDMA_STAND_IN" = "device:kernel=1";
    flood_ibgda_2_kernel: "flood" "4" "32" "300" "30000", Ibgda, 2, "RDMA_STAND_IN" = "device:kernel=1", "OXSHMEM_QPS_PER_PEER" = "1",
        "OXSHMEM_QP_DEPTH" = "256";
    flood_ibgda_2_kernel_shared_pages: "flood" "7" "40" "200" "20000", Ibgda, 2, "OXSHMEM_QPS_PER_PEER" = "4", "OXSHMEM_QP_DEPTH" = "256",
        "RDMA_STAND_IN" = "device:kernel=1,errno:mlx5dv_devx_alloc_uar.dedicated=95,errno:mlx5dv_devx_alloc_uar.bf=95";
    rma_ibgda_2_kernel_rung_by_thread: "rma", Ibgda, 2, "RDMA_STAND_IN" = "device:kernel=1", "OXSHMEM_IBGDA_DOORBELL" = "cpu";
    rma_ibgda_2_kernel_infiniband: "rma", Ibgda, 2, "RDMA_STAND_IN" = "device:kernel=1,port:infiniband=1";
    rma_ibrc_2_kernel: "rma", Ibrc, 2, "RDMA_STAND_IN" = "device:kernel=1";
    signals_ibrc_2_kernel: "signals", Ibrc, 2, "RDMA_STAND_IN" = "device:kernel=1";
    atomic_contention_ibrc_2_kernel: "atomic_contention", Ibrc, 2, "RDMA_STAND_IN" = "device:kernel=1";
    host_transfers_ibrc_2_kernel: "host_transfers", Ibrc, 2, "RDMA_STAND_IN" = "device:kernel=1";
}
