//! What does not fit.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use oxshmem::device::DeviceError;
use oxshmem::device::cpu::{LaunchError, ModuleError};
use oxshmem::{Config, Error, HeapError, KernelArgs, LaunchConfig, Operations};

use crate::{GPU, Outcome, init, init_with};

/// Launches that cannot be: each is refused with the limit, and nothing runs.
pub fn launches() -> Outcome {
    let pe = init()?;
    let sum = pe.alloc::<u64>(1)?;
    let module = pe.load(&GPU)?;
    match module.kernel("sum") {
        Err(Error::Device(DeviceError::Module { source: ModuleError::NoKernel { known, .. }, .. })) => {
            assert_eq!(known, "busy, put_from, store_late, store_to, sum_shared, wait_for_signal, who_am_i");
        }
        other => panic!("{other:?}"),
    }
    let kernel = module.kernel("sum_shared")?;
    let refused = |config, args: &dyn Fn() -> Result<(), Error>| {
        let _: LaunchConfig = config;
        match args() {
            Err(Error::Device(DeviceError::Launch(error))) => error,
            other => panic!("{other:?}"),
        }
    };
    fn launch<A: KernelArgs>(
        pe: &oxshmem::Pe,
        kernel: &oxshmem::Kernel,
        config: LaunchConfig,
        args: A,
    ) -> oxshmem::Result<()> {
        // SAFETY: where it is not refused, the arguments are the kernel's.
        unsafe { kernel.launch(pe, config, args) }
    }
    let shape = |grid, block, shared_bytes| LaunchConfig { grid, block, shared_bytes, cooperative: false };
    let plain = LaunchConfig::linear(1, 32);
    let check = |config: LaunchConfig| refused(config, &|| launch(&pe, &kernel, config, (0u32, &sum)));
    assert!(matches!(check(shape([0, 1, 1], [1, 1, 1], 0)), LaunchError::Grid { .. }));
    assert!(matches!(check(shape([1, 1 << 20, 1], [1, 1, 1], 0)), LaunchError::GridLimit { .. }));
    assert!(matches!(check(shape([1, 1, 1], [1025, 1, 1], 0)), LaunchError::Block { .. }));
    assert!(matches!(check(shape([1, 1, 1], [0, 1, 1], 0)), LaunchError::Block { .. }));
    let bounded = module.kernel("who_am_i")?;
    let error = refused(plain, &|| launch(&pe, &bounded, shape([1, 1, 1], [65, 1, 1], 0), (&sum,)));
    assert!(matches!(error, LaunchError::Block { limit: 64, .. }), "{error}");
    assert!(matches!(check(shape([1, 1, 1], [1, 1, 1], 1 << 20)), LaunchError::Shared { .. }));
    let count = refused(plain, &|| launch(&pe, &kernel, plain, (0u32,)));
    assert!(matches!(count, LaunchError::ArgumentCount { expected: 2, given: 1, .. }), "{count}");
    let size = refused(plain, &|| launch(&pe, &kernel, plain, (0u64, &sum)));
    assert!(matches!(size, LaunchError::ArgumentSize { index: 0, expected: 4, given: 8, .. }), "{size}");

    // More shared memory than a kernel has without asking, then less again.
    for words in [40_000u32, 100] {
        launch(&pe, &kernel, shape([1, 1, 1], [64, 1, 1], words as usize * 4), (words, &sum))?;
        pe.synchronize()?;
        let words = u64::from(words);
        assert_eq!(pe.read(sum.view(..1))?, [words * (words - 1) / 2]);
    }
    Ok(pe.finalize()?)
}

/// More than the GPU has: every PE is told which PE has no memory, and the heap stays as it was.
pub fn out_of_memory() -> Outcome {
    let builder = Config::builder().heap_max(480u64 << 30).heap_chunk(32u64 << 30);
    let pe = init_with(builder)?;
    let before = pe.live_allocations();
    match pe.alloc::<u8>(400 << 30) {
        Err(Error::Heap(HeapError::NoMemory { reason, .. })) => {
            assert!(reason.contains("CUDA_ERROR_OUT_OF_MEMORY") && reason.contains("MiB free"), "{reason}");
            println!("{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(pe.live_allocations(), before);
    let small = pe.alloc::<u8>(1 << 20)?;
    assert!(pe.read(small.view(..1 << 20))?.iter().all(|byte| *byte == 0));
    pe.barrier_all()?;
    Ok(pe.finalize()?)
}

/// The heap grows by many chunks, which every peer sees.
pub fn chunks() -> Outcome {
    let pe = init_with(Config::builder().heap_chunk(2u64 << 20).heap_max(1u64 << 30))?;
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let next = (me + 1) % n_pes;
    let mut slices = Vec::new();
    for round in 0..6u64 {
        let words = 700_000; // crosses chunks
        let slice = pe.alloc::<u64>(words)?;
        let data: Vec<u64> = (0..words as u64).map(|i| (round << 48) + ((me as u64) << 32) + i).collect();
        pe.put(&slice, &data, next)?;
        slices.push((slice, data));
    }
    pe.barrier_all()?;
    for (slice, mine) in &slices {
        assert_eq!(&pe.get_vec(slice, next)?, mine);
        let before = ((me + n_pes - 1) % n_pes) as u64;
        let here = pe.read(slice)?;
        assert!(here.iter().zip(mine).all(|(seen, own)| *seen == own - ((me as u64) << 32) + (before << 32)));
    }
    pe.barrier_all()?;
    for (slice, _) in slices {
        pe.free(slice)?;
    }
    Ok(pe.finalize()?)
}

/// Joins a job as a process that sees one GPU, each rank another.
pub fn sees_one_gpu() -> Outcome {
    const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
    let rank = std::env::var("OXSHMEM_RANK")?;
    if std::env::var_os(VISIBLE).is_some_and(|gpus| gpus == *rank) {
        return Ok(init()?.finalize()?);
    }
    // The driver reads it when it starts, so this is for another program.
    Err(Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(VISIBLE, rank).exec().into())
}
