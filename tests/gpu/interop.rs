//! A program that uses the GPU itself, through cudarc, before, beside and after this library.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DevicePtr, PushKernelArg};
use cudarc::nvrtc::Ptx;
use oxshmem::{Compare, Config, Error, HeapError, LaunchConfig, Operations, Pe};

use crate::{GPU, Outcome, init};

pub fn beside_cudarc() -> Outcome {
    // Its own context on the last GPU: the PE takes the GPU that is current.
    let last = CudaContext::device_count()? as usize - 1;
    let context = CudaContext::new(last)?;
    let stream = context.new_stream()?;
    let data: Vec<u32> = (0..100_000).collect();
    let source = stream.clone_htod(&data)?;
    stream.synchronize()?;

    let pe = init()?;
    assert_eq!(pe.gpu().unwrap().ordinal as usize, last);
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let inbox = pe.alloc::<u32>(data.len())?;
    let put = pe.load(&GPU)?.kernel("put_from")?;
    {
        let (address, _guard) = source.device_ptr(&stream);
        let args = (&inbox, address, data.len() as u64 * 4, ((me + 1) % n_pes) as i32);
        // SAFETY: the kernel reads memory of cudarc's, which lives until the stream is synchronised
        // below.
        unsafe { put.launch(&pe, LaunchConfig::linear(1, 256), args)? };
        pe.barrier_all()?;
    }
    assert_eq!(pe.read(inbox.view(..data.len()))?, data);

    // The library left cudarc's context current, and its calls still work, on the library's memory
    // too.
    let mut here = vec![0u32; data.len()];
    context.check_err()?;
    // SAFETY: the slice has that many elements.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut here, inbox.address())? };
    assert_eq!(here, data);
    pe.finalize()?;
    assert_eq!(stream.clone_dtoh(&source)?, data);
    drop(source);
    drop(stream);
    assert_eq!(Arc::strong_count(&context), 1);
    Ok(())
}

/// The feature `cudarc`: what `docs/cudarc.md` says works, and what it says is refused.
pub fn cudarc_api() -> Outcome {
    const WORDS: usize = 70_000;
    // A PE in the context that the program has made.
    let context = CudaContext::new(0)?;
    let pe = Pe::with_cuda_context(&context, Config::from_env()?)?;
    assert_eq!(pe.cuda_context()?.cu_ctx(), context.cu_ctx());
    assert_eq!(pe.gpu().unwrap().context.cast(), context.cu_ctx());
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let (next, previous) = ((me + 1) % n_pes, (me + n_pes - 1) % n_pes);
    let words =
        |pe: usize, round: usize| -> Vec<u32> { (0..WORDS).map(|i| (pe << 24 | round << 20 | i) as u32).collect() };

    let stream = context.new_stream()?;
    let adopted = pe.cuda_stream(&stream)?;
    assert_eq!(adopted.raw(), Some(stream.cu_stream().cast()));
    let own = pe.create_stream()?;
    let (inbox, signal) = (pe.alloc::<u32>(WORDS)?, pe.alloc::<u64>(1)?);

    // Slices of cudarc as local operands: on cudarc's stream, on one of the library's, and on the
    // PE. None of them waits for the host, and slices may be dropped at once.
    let mut received = stream.alloc_zeros::<u32>(WORDS)?;
    for (round, on) in [(1, Some(&adopted)), (2, Some(&own)), (3, None)] {
        let sent = stream.clone_htod(&words(me, round))?;
        match on {
            Some(on) => {
                pe.on(on).put_signal(&inbox, &sent, signal.signal(0).set(round as u64), next)?;
                drop(sent);
                pe.on(on).signal_wait_until(signal.signal(0), Compare::Ge, round as u64)?;
                pe.on(on).get(&mut received, &inbox, me)?;
            }
            None => {
                pe.put_signal(&inbox, &sent, signal.signal(0).set(round as u64), next)?;
                pe.signal_wait_until(signal.signal(0), Compare::Ge, round as u64)?;
                pe.get(&mut received, &inbox, me)?;
            }
        }
        // The copy is on cudarc's stream, which waits for the get.
        assert_eq!(stream.clone_dtoh(&received)?, words(previous, round), "round {round}");
        pe.barrier_all()?;
    }
    // Parts of slices.
    let both = stream.clone_htod(&words(me, 4))?;
    pe.on(&adopted).put(inbox.view(10..), &both.slice(10..20), next)?;
    pe.on(&adopted).barrier_all()?;
    pe.on(&adopted).get(&mut received.slice_mut(..10), inbox.view(10..20), me)?;
    assert_eq!(stream.clone_dtoh(&received.slice(..10))?, words(previous, 4)[10..20]);
    let short = stream.alloc_zeros::<u32>(3)?;
    let refused = pe.get(&mut { short }, inbox.view(..4), me);
    assert!(
        matches!(refused, Err(Error::Heap(HeapError::TooShort { side: "dst", needed: 4, len: 3, .. }))),
        "{refused:?}"
    );

    // Symmetric memory in cudarc's copies, fills and launches.
    let part = pe.alloc::<u32>(WORDS)?;
    let mut lent = pe.lend(part.view(5..), &stream)?;
    stream.memcpy_htod(&[7, 8, 9], &mut lent)?;
    let mut copy = stream.alloc_zeros::<u32>(WORDS - 5)?;
    stream.memcpy_dtod(&lent, &mut copy)?;
    assert_eq!(stream.clone_dtoh(&copy.slice(..3))?, [7, 8, 9]);
    stream.memset_zeros(&mut lent.view_mut().slice_mut(1..2))?;
    assert_eq!(stream.clone_dtoh(&lent)?[..4], [7, 0, 9, 0]);
    assert_eq!(pe.read(part.view(4..8))?, [0, 7, 0, 9]);

    // What is lent is not freed, on any PE, and after that it is.
    let refused = pe.free_at(part.address());
    assert!(matches!(refused, Err(Error::Heap(HeapError::Lent { .. }))), "{refused:?}");
    stream.memset_zeros(&mut lent)?;
    drop(lent);
    pe.free(part)?;

    // A module of cudarc uses the device API, and its kernel takes lent memory.
    let (major, minor) = context.compute_capability()?;
    let fits = |arch: u32| arch as i32 <= major * 10 + minor;
    let (_, ptx) = GPU.ptx().iter().rfind(|(arch, _)| fits(*arch)).ok_or("no PTX")?;
    let module = context.load_module(Ptx::from_src(ptx.trim_end_matches('\0')))?;
    pe.register_cuda_module(&module)?;
    let kernel = module.load_function("who_am_i")?;
    drop(module);
    let answer = pe.alloc::<i32>(2)?;
    {
        let mut lent = pe.lend(&answer, &stream)?;
        let mut view = lent.view_mut();
        let shape = cudarc::driver::LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel writes two numbers.
        unsafe { stream.launch_builder(&kernel).arg(&mut view).launch(shape) }?;
        stream.synchronize()?;
    }
    pe.synchronize_device()?;
    assert_eq!(pe.read(&answer)?, [me as i32, n_pes as i32]);
    let stateless = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";
    let stateless = context.load_module(Ptx::from_src(stateless))?;
    assert!(pe.register_cuda_module(&stateless).is_err());

    // A context beside the primary one, and what is in it.
    let other = CudaContext::new_non_primary(0, 0)?;
    let foreign = other.new_stream()?;
    let elsewhere = foreign.alloc_zeros::<u32>(4)?;
    foreign.synchronize()?;
    let refusals = [
        pe.cuda_stream(&foreign).map(drop),
        pe.lend(&inbox, &foreign).map(drop),
        pe.put(&inbox, &elsewhere, me),
        Pe::with_cuda_context(&other, Config::from_env()?).map(drop),
    ];
    for refused in refusals {
        assert!(matches!(&refused, Err(error) if error.to_string().contains("context")), "{refused:?}");
    }
    drop((elsewhere, foreign, other));
    context.bind_to_thread()?;

    pe.barrier_all()?;
    Ok(pe.finalize()?)
}
