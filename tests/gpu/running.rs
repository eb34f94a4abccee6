//! Kernels that fail, that do not end, and PEs that do.

use std::time::Duration;

use oxshmem::device::DeviceError;
use oxshmem::{Config, Error, FaultKind, LaunchConfig, Operations, Pe, SymmetricSlice};

use crate::{GPU, Outcome, init, init_with};

const ONE: LaunchConfig = LaunchConfig { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0, cooperative: false };

/// Every PE puts its number to the next one, from the host.
fn pass_round(pe: &Pe, inbox: &SymmetricSlice<u32>) -> oxshmem::Result<()> {
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    pe.barrier_all()?;
    pe.put(inbox, &[me as u32 + 100], (me + 1) % n_pes)?;
    pe.barrier_all()?;
    assert_eq!(pe.read(inbox.view(..1))?, [((me + n_pes - 1) % n_pes) as u32 + 100]);
    assert_eq!(pe.get_vec(inbox.view(..1), (me + 1) % n_pes)?, [me as u32 + 100]);
    Ok(())
}

/// A wait for a signal that never comes ends with an error that names it, and the PE goes on.
pub fn unanswered() -> Outcome {
    let pe = init_with(Config::builder().timeout(Duration::from_millis(200)))?;
    let inbox = pe.alloc::<u32>(1)?;
    let signal = pe.alloc::<u64>(1)?;
    let wait = pe.load(&GPU)?.kernel("wait_for_signal")?;
    // SAFETY: the kernel takes the address of a signal.
    unsafe { wait.launch(&pe, ONE, (&signal,))? };
    match pe.synchronize() {
        Err(Error::Fault(fault)) => {
            assert_eq!(fault.operation, "signal_wait_until");
            let FaultKind::Timeout { timeout_ms: 200, address, .. } = fault.kind else { panic!("{fault}") };
            assert_eq!(address, signal.address());
        }
        other => panic!("{other:?}"),
    }
    pe.synchronize()?;
    pass_round(&pe, &inbox)?;
    Ok(pe.finalize()?)
}

/// A kernel that runs longer than allowed is reported; its end is seen by the next call.
pub fn overdue() -> Outcome {
    let pe = init_with(Config::builder().kernel_timeout(Duration::from_millis(300)))?;
    let busy = pe.load(&GPU)?.kernel("busy")?;
    // SAFETY: the kernel takes a number.
    unsafe { busy.launch(&pe, ONE, (700_000_000u64,))? };
    match pe.synchronize() {
        Err(Error::Device(DeviceError::StillRunning { kernels, .. })) => assert_eq!(kernels, "busy"),
        other => panic!("{other:?}"),
    }
    while matches!(pe.synchronize(), Err(Error::Device(DeviceError::StillRunning { .. }))) {}
    pe.synchronize()?;
    Ok(pe.finalize()?)
}

/// A bad address loses the context; the error names the kernel, and everything after says the same
/// instead of hanging.
pub fn context_lost() -> Outcome {
    let pe = init()?;
    let cell = pe.alloc::<u64>(1)?;
    let store = pe.load(&GPU)?.kernel("store_to")?;
    // SAFETY: the fault is what this is about: it ends the kernel.
    unsafe { store.launch(&pe, ONE, (0x10u64,))? };
    match pe.synchronize() {
        Err(Error::Device(DeviceError::ContextLost { kernels, source, .. })) => {
            println!("{kernels}: {source}");
            assert_eq!(kernels, "store_to");
            assert!(["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"].contains(&&*source.name), "{source}");
        }
        other => panic!("{other:?}"),
    }
    for result in [pe.synchronize(), pe.read(cell.view(..1)).map(drop), pe.put(&cell, &[1], 0), pe.barrier_all()] {
        let Err(Error::Device(DeviceError::ContextLost { kernels, .. })) = result else { panic!("{result:?}") };
        assert_eq!(kernels, "store_to");
    }
    assert!(pe.finalize().is_err());
    Ok(())
}

/// The last PE aborts the job while the others' kernels wait forever; they end at once.
pub fn aborted() -> Outcome {
    let pe = init_with(Config::builder().timeout(Duration::from_secs(3600)))?;
    let signal = pe.alloc::<u64>(1)?;
    let wait = pe.load(&GPU)?.kernel("wait_for_signal")?;
    pe.barrier_all()?;
    if pe.my_pe() + 1 == pe.n_pes() {
        std::thread::sleep(Duration::from_millis(300));
        pe.abort("tired of it");
        return Ok(());
    }
    // SAFETY: the kernel takes the address of a signal.
    unsafe { wait.launch(&pe, ONE, (&signal,))? };
    match pe.synchronize() {
        Err(Error::Bootstrap(error)) => assert!(error.to_string().contains("tired of it"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(pe.finalize().is_err());
    Ok(())
}

/// The last PE is killed while its kernel runs and the others' kernels wait for it; they are told
/// at once. Each has memory that is mapped by all.
pub fn killed() -> Outcome {
    let builder = Config::builder().timeout(Duration::from_secs(3600)).heap_chunk(1u64 << 30).heap_max(4u64 << 30);
    let pe = init_with(builder)?;
    let dying = pe.my_pe() + 1 == pe.n_pes();
    let signal = pe.alloc::<u64>((2usize << 30) / size_of::<u64>())?;
    let gpu = pe.load(&GPU)?;
    let (wait, busy) = (gpu.kernel("wait_for_signal")?, gpu.kernel("busy")?);
    pe.barrier_all()?;
    if dying {
        // SAFETY: the kernel takes a number, of nanoseconds.
        unsafe { busy.launch(&pe, ONE, (3_600_000_000_000u64,))? };
        std::thread::sleep(Duration::from_millis(300));
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        unreachable!("killed");
    }
    // SAFETY: the kernel takes the address of a signal.
    unsafe { wait.launch(&pe, ONE, (&signal,))? };
    let dead = format!("PE {}", pe.n_pes() - 1);
    match pe.synchronize() {
        Err(Error::Bootstrap(error)) => assert!(error.to_string().contains(&dead), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(pe.finalize().is_err());
    Ok(())
}

/// Finalize and init again; kernels of the PE before are refused.
pub fn rounds() -> Outcome {
    let mut stale = None;
    for round in 0..3 {
        let pe = init()?;
        assert_eq!(pe.live_allocations(), 1);
        let inbox = pe.alloc::<u32>(1)?;
        pass_round(&pe, &inbox)?;
        if let Some(old) = stale.replace(pe.load(&GPU)?.kernel("busy")?) {
            // SAFETY: it is refused.
            let refused = unsafe { old.launch(&pe, ONE, (0u64,)) }.unwrap_err();
            assert!(refused.to_string().contains("has been finalized"), "{refused}");
        }
        let gpu = pe.gpu().unwrap();
        println!("round {round}: PE {} on {} {}", pe.my_pe(), gpu.ordinal, gpu.name);
        pe.finalize()?;
    }
    Ok(())
}
