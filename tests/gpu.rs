//! The `cuda` device on this machine's GPUs: each test is a job whose PEs run one case of `gpu-pe`.
//! Without a GPU they are skipped, with the reason.

use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DriverError};
use oxshmem::launch::PeStatus;
use oxshmem_tests::{Device, Job, Transport, transcript};

const PE: &str = env!("CARGO_BIN_EXE_gpu-pe");

fn passes(case: &str, npes: u32) {
    gpu(case, npes).on(Device::Cuda).passes_or_is_skipped();
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
    cudarc_api_1: "cudarc_api", 1;
    cudarc_api_2: "cudarc_api", 2;
    follows_1: "follows", 1;
    follows_2: "follows", 2;
    launches: "launches", 1;
    linked_deadline: "linked_deadline", 1;
    modules: "modules", 1;
    out_of_memory_1: "out_of_memory", 1;
    out_of_memory_2: "out_of_memory", 2;
    overdue: "overdue", 1;
    own_modules: "own_modules", 1;
    rounds_1: "rounds", 1;
    rounds_4: "rounds", 4;
    unanswered: "unanswered", 2;
}

/// Returns a job of `gpu-pe`.
fn gpu(case: &str, npes: u32) -> Job {
    Job::new(PE, case, npes)
}

oxshmem_tests::jobs! {
    gpu;
    [cuda]
    linked_p2p: "linked", P2p, 2;
    linked_ibgda: "linked", Ibgda, 2;
    linked_ibrc: "linked", Ibrc, 2;
}

oxshmem_tests::jobs! {
    gpu;
    [cuda]
    graphs_p2p_1: "graphs", P2p, 1;
    graphs_p2p_2: "graphs", P2p, 2;
    graphs_p2p_4: "graphs", P2p, 4;
    graphs_packets_p2p_2: "graphs", P2p, 2, "OXSHMEM_COLLECTIVES" = "broadcast=packets,collect=packets,fcollect=packets,alltoall=packets,alltoalls=packets,reduce=packets,reducescatter=packets";
    graphs_push_p2p_3: "graphs", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=push,collect=push,fcollect=push,alltoall=push,alltoalls=push,reduce=push,reducescatter=push";
    graphs_relay_p2p_3: "graphs", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=relay,reduce=relay";
    graphs_oneshot_p2p_2: "graphs", P2p, 2, "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
    graphs_copy_p2p_2: "graphs", P2p, 2, "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
    graphs_copy_p2p_3: "graphs", P2p, 3, "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
    graphs_ibgda_2: "graphs", Ibgda, 2;
}

/// Returns a job of `gpu-pe` on two nodes, where collectives have two levels.
fn two_nodes(case: &str, npes: u32) -> Job {
    gpu(case, npes).nodes(2)
}

oxshmem_tests::jobs! {
    two_nodes;
    [cuda]
    graphs_levels_ibgda: "graphs", Ibgda, 2;
    graphs_levels_auto_4: "graphs", Auto, 4;
}

/// Free memory of each GPU, in bytes.
fn free_memory() -> Result<Vec<usize>, DriverError> {
    (0..CudaContext::device_count()? as usize).map(|gpu| Ok(CudaContext::new(gpu)?.mem_get_info()?.0)).collect()
}

/// A PE that is killed while its kernel runs leaves nothing on the GPUs, and the others are told.
#[test]
fn killed() -> Result<(), DriverError> {
    const NPES: usize = 3;
    // Less than a heap of the case, more than what tests beside this one use meanwhile.
    const SLACK: usize = 1 << 30;
    let job = Job::new(PE, "killed", NPES as u32).on(Device::Cuda);
    if !job.is_possible() {
        return Ok(());
    }
    let before = free_memory()?;
    let outcome = job.run();
    let text = transcript(&outcome);
    for (rank, pe) in outcome.pes.iter().enumerate() {
        let wanted = if rank + 1 == NPES { PeStatus::Killed(libc::SIGKILL) } else { PeStatus::Exited(0) };
        assert_eq!(pe.status, wanted, "{text}");
    }
    // The driver clears up after a process has ended.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let after = free_memory()?;
        if before.iter().zip(&after).all(|(before, after)| after + SLACK >= *before) {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "free memory was {before:?}, and is {after:?} bytes\n{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A GPU that a PE does not reach, here because its process does not see it. The software HCA does
/// not reach it either, and says so.
#[test]
fn unreached_gpu() -> Result<(), DriverError> {
    let job = |transport| Job::new(PE, "sees_one_gpu", 2).on(Device::Cuda).transport(transport);
    if !job(Transport::P2p).is_possible() {
        return Ok(());
    }
    let gpus = CudaContext::device_count()?;
    if gpus < 2 {
        println!("skipped: it takes two GPUs, and there are {gpus}");
        return Ok(());
    }
    let network = ["it is reached over the network", "the software HCA moves data by loads and stores of the GPU"];
    let cases: [(_, &[&str]); 3] = [
        (Transport::P2p, &["set OXSHMEM_TRANSPORT=auto to reach it over the network"]),
        (Transport::Auto, &network),
        (Transport::Ibgda, &network[1..]),
    ];
    for (transport, wanted) in cases {
        let outcome = job(transport).run();
        let text = transcript(&outcome);
        assert!(!outcome.is_success() && text.contains("CUDA_VISIBLE_DEVICES"), "{transport:?}: {text}");
        assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{transport:?}: {text}");
    }
    Ok(())
}
