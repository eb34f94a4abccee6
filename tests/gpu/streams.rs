//! Streams and modules of a program that uses the GPU itself.

use std::ffi::{CString, c_void};

use cudarc::driver::{CudaContext, sys};
use oxshmem::by_address::put_word;
use oxshmem::device::DeviceError;
use oxshmem::{Compare, Error, HeapError, LaunchConfig, OnStream, Operations, RawMemory};

use crate::{GPU, Outcome, init};

const ONE: LaunchConfig = LaunchConfig { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0, cooperative: false };
/// More than what a kernel copies in a graph.
const WORDS: usize = 70_000;

/// The status that a driver call returns.
pub fn works(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// cudarc's stream, the legacy and the per-thread default stream, a stream that is destroyed with
/// work on it, and one that is captured.
pub fn callers_streams() -> Outcome {
    let context = CudaContext::new(0)?;
    let theirs = context.new_stream()?;
    let pe = init()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let (source, inbox) = (pe.alloc::<u32>(WORDS)?, pe.alloc::<u32>(WORDS)?);
    let signal = pe.alloc::<u64>(1)?;
    let cells = pe.alloc::<u64>(8)?;
    let busy = pe.load(&GPU)?.kernel("busy")?;
    let mut round = 0u64;
    let passed = |round: u64| {
        pe.barrier_all()?;
        let expected = (previous as u32) << 16 | round as u32;
        let seen = pe.read(inbox.view(..WORDS))?;
        assert!(seen.iter().all(|word| *word == expected), "round {round}: {:#x} instead of {expected:#x}", seen[0]);
        pe.barrier_all()
    };
    let value = |round: u64| (me as u32) << 16 | round as u32;
    // Words of all sizes, and a signal, from cell `first` on.
    let store = |on: &OnStream<'_>, first: usize, round: u64| {
        let address = cells.address() + 8 * first as u64;
        put_word(on, address, round, 8, next)?;
        put_word(on, address + 8, round, 4, next)?;
        put_word(on, address + 16, round, 2, next)?;
        put_word(on, address + 18, round, 1, next)?;
        on.signal(cells.signal(first + 3).set(round), next)
    };
    let stored = |round: u64| [round, round & 0xffff_ffff, round & 0xffff | (round & 0xff) << 16, round];

    // The library's operations come after the program's own work on the stream, and before what
    // follows.
    let handles = [theirs.cu_stream(), std::ptr::null_mut(), 2 as sys::CUstream];
    for raw in handles {
        // SAFETY: streams of the context that the PE is in.
        let stream = unsafe { pe.stream_from_raw(raw.cast()) }?;
        assert_eq!(stream.raw(), Some(raw.cast()));
        for words in [16, WORDS] {
            round += 1;
            // SAFETY: the kernel takes a number; the memory is the heap's.
            unsafe {
                busy.launch(&pe.on(&stream), ONE, (20_000_000u64,))?;
                works(sys::cuMemsetD32Async(source.address(), value(round), WORDS, raw));
            }
            pe.on(&stream).put(inbox.view(words..), source.view(words..WORDS), next)?;
            pe.on(&stream).put_signal(&inbox, source.view(..words), signal.signal(0).set(round), next)?;
            store(&pe.on(&stream), 0, round)?;
            // SAFETY: the stream does not end before the kernels.
            unsafe { works(sys::cuMemsetD32Async(source.address(), 0, WORDS, raw)) };
            pe.on(&stream).signal_wait_until(signal.signal(0), Compare::Ge, round)?;
            pe.on(&stream).synchronize()?;
            passed(round)?;
            assert_eq!(pe.read(cells.view(..4))?, stored(round));
        }
    }

    // Gone with work on it: synchronize knows when that has ended.
    let mut raw = std::ptr::null_mut();
    context.bind_to_thread()?;
    round += 1;
    // SAFETY: the stream exists while it is used; the kernel takes a number; the memory is the
    // heap's.
    unsafe {
        works(sys::cuStreamCreate(&raw mut raw, 1));
        let stream = pe.stream_from_raw(raw.cast())?;
        busy.launch(&pe.on(&stream), ONE, (50_000_000u64,))?;
        works(sys::cuMemsetD32Async(source.address(), value(round), WORDS, raw));
        pe.on(&stream).put(&inbox, source.view(..WORDS), next)?;
        works(sys::cuStreamDestroy_v2(raw));
    }
    pe.synchronize()?;
    passed(round)?;

    // A graph.
    // SAFETY: as above; graph and executable graph are used as cuda.h says.
    unsafe {
        let raw = theirs.cu_stream();
        let stream = pe.stream_from_raw(raw.cast())?;
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        works(sys::cuStreamBeginCapture_v2(raw, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        pe.on(&stream).put(inbox.view(16..), source.view(16..WORDS), next)?;
        pe.on(&stream).put(&inbox, source.view(..16), next)?;
        store(&pe.on(&stream), 4, 0x12_3456)?;
        pe.on(&stream).quiet()?;
        works(sys::cuStreamEndCapture(raw, &raw mut graph));
        works(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
        for _ in 0..3 {
            round += 1;
            works(sys::cuMemsetD32Async(source.address(), value(round), WORDS, raw));
            works(sys::cuGraphLaunch(executable, raw));
            pe.synchronize_device()?;
            passed(round)?;
        }
        assert_eq!(pe.read(cells.view(4..))?, stored(0x12_3456));
        works(sys::cuGraphExecDestroy(executable));
        works(sys::cuGraphDestroy(graph));
    }

    // While another stream is captured in the mode that forbids most.
    // SAFETY: as above.
    unsafe {
        let (other, mut graph) = (context.new_stream()?, std::ptr::null_mut());
        let stream = pe.stream_from_raw(theirs.cu_stream().cast())?;
        round += 1;
        works(sys::cuMemsetD32Async(source.address(), value(round), WORDS, theirs.cu_stream()));
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        works(sys::cuStreamBeginCapture_v2(other.cu_stream(), mode));
        pe.on(&stream).put(&inbox, source.view(..WORDS), next)?;
        store(&pe.on(&stream), 0, round)?;
        works(sys::cuStreamEndCapture(other.cu_stream(), &raw mut graph));
        works(sys::cuGraphDestroy(graph));
        pe.on(&stream).synchronize()?;
        passed(round)?;
        assert_eq!(pe.read(cells.view(..4))?, stored(round));
    }

    // Memory that a kernel would fault on.
    // SAFETY: a stream of the context.
    let stream = unsafe { pe.stream_from_raw(theirs.cu_stream().cast()) }?;
    let pageable = [0u32; 16];
    // SAFETY: it is refused.
    let memory = unsafe { RawMemory::new(pageable.as_ptr().cast_mut().cast(), 64) };
    let bytes = |len: usize| pe.view_at::<u8>(inbox.address(), len);
    let refused = pe.on(&stream).put(bytes(64), memory, next);
    assert!(matches!(refused, Err(Error::Heap(HeapError::NotOnDevice { bytes: 64, .. }))), "{refused:?}");
    // The call that waits takes it.
    round += 1;
    let data = vec![value(round); WORDS];
    // SAFETY: as long as the data; then memory of cudarc's.
    unsafe {
        pe.put(bytes(WORDS * 4), RawMemory::new(data.as_ptr().cast_mut().cast(), WORDS * 4), next)?;
        passed(round)?;
        let copy = theirs.clone_htod(&data)?;
        theirs.synchronize()?;
        let (address, _guard) = cudarc::driver::DevicePtr::device_ptr(&copy, &theirs);
        pe.get(RawMemory::new(address as *mut c_void, WORDS * 4), bytes(WORDS * 4), next)?;
        drop(_guard);
        assert_eq!(theirs.clone_dtoh(&copy)?, data);
    }
    pe.barrier_all()?;
    pe.finalize()?;

    // A stream of a PE that is gone.
    let pe = init()?;
    let words = pe.alloc::<u32>(1)?;
    let stale = pe.on(&stream).put(&words, words.view(..1), 0);
    assert!(matches!(stale, Err(Error::Stale(_))), "{stale:?}");
    Ok(pe.finalize()?)
}

/// Kernels of the library, which a GPU may launch before what they follow on their stream has
/// ended, see all of it; and what follows them leaves their memory alone until they have ended. In
/// dev builds, whose PTX is for sm_80, the GPU launches none of them early.
pub fn follows() -> Outcome {
    const ROUNDS: usize = 300;
    let context = CudaContext::new(0)?;
    let (theirs, other) = (context.new_stream()?, context.new_stream()?);
    let pe = init()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let next = (me + 1) % n;
    let (source, inbox, signal) = (pe.alloc::<u64>(1)?, pe.alloc::<u64>(ROUNDS)?, pe.alloc::<u64>(2)?);
    let (words, relayed) = (pe.alloc::<u64>(ROUNDS)?, pe.alloc::<u64>(ROUNDS)?);
    let long = pe.alloc::<u64>(2 * WORDS)?;
    let store_late = pe.load(&GPU)?.kernel("store_late")?;
    let (mut blocking, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    context.bind_to_thread()?;
    // SAFETY: writes handles.
    unsafe {
        works(sys::cuStreamCreate(&raw mut blocking, 0));
        works(sys::cuEventCreate(&raw mut event, 2)); // without a time
    }
    // SAFETY: streams of the PE's context.
    let stream = |raw: sys::CUstream| unsafe { pe.stream_from_raw(raw.cast()) };
    let (legacy, per_thread) = (std::ptr::null_mut(), 2 as sys::CUstream);
    let word = |pe: usize, round: usize| (pe as u64) << 32 | (1 + round as u64);
    // `from`: the PE whose words have arrived, counted back from this one.
    let passed_from = |from: usize, what: &str| {
        pe.barrier_all()?;
        let expected: Vec<u64> = (0..ROUNDS).map(|round| word((me + 2 * n - from) % n, round)).collect();
        assert_eq!(pe.read(&inbox)?, expected, "{what}");
        pe.write(&inbox, &[0; ROUNDS])?;
        pe.barrier_all()
    };
    let passed = |what: &str| passed_from(1, what);
    // A kernel of the program stores a word on one stream, and a kernel of the library puts it on
    // another one, which waits for the first if it has to be told.
    let turn = |stores: sys::CUstream, puts: sys::CUstream, waits: bool, round: usize| {
        let ns = (round as u64 % 7) * 5_000;
        let args = (source.address(), word(me, round), ns);
        // SAFETY: the kernel stores a word of the heap; streams and the event exist.
        unsafe {
            store_late.launch(&pe.on(&stream(stores)?), ONE, args)?;
            if waits {
                works(sys::cuEventRecord(event, stores));
                works(sys::cuStreamWaitEvent(puts, event, 0));
            }
        }
        let place = inbox.view(round..=round);
        pe.on(&stream(puts)?).put_signal(place, &source, signal.signal(0).add(1), next)?;
        if waits {
            // SAFETY: as above.
            unsafe {
                works(sys::cuEventRecord(event, puts));
                works(sys::cuStreamWaitEvent(stores, event, 0));
            }
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    let (theirs, other) = (theirs.cu_stream(), other.cu_stream());
    let cases = [
        ("the same stream", theirs, theirs, false),
        ("the legacy default stream", legacy, legacy, false),
        ("the default stream of the thread", per_thread, per_thread, false),
        ("another stream", other, theirs, true),
        ("a stream that the default stream waits for", blocking, legacy, false),
        ("the default stream, which a stream waits for", legacy, blocking, false),
    ];
    for (what, stores, puts, waits) in cases {
        (0..ROUNDS).try_for_each(|round| turn(stores, puts, waits, round))?;
        pe.synchronize_device()?;
        passed(what)?;
    }
    // After a copy, and before another one.
    for round in 0..ROUNDS {
        // SAFETY: as above; copies within the heap.
        unsafe {
            let last = long.address() + 8 * (WORDS as u64 - 1);
            store_late.launch(&pe.on(&stream(theirs)?), ONE, (last, word(me, round), 1_000u64))?;
            let bytes = 8 * WORDS;
            works(sys::cuMemcpyDtoDAsync_v2(long.address() + bytes as u64, long.address(), bytes, theirs));
            works(sys::cuMemcpyDtoDAsync_v2(source.address(), last + bytes as u64, 8, theirs));
        }
        let place = inbox.view(round..=round);
        pe.on(&stream(theirs)?).put_signal(place, &source, signal.signal(0).add(1), next)?;
        // SAFETY: as above.
        unsafe { works(sys::cuMemsetD8Async(source.address(), 0xff, 8, theirs)) };
    }
    pe.synchronize_device()?;
    passed("copies")?;
    // What the PE before has sent, which a kernel of the library has waited for, is passed on.
    pe.write(&words, &(0..ROUNDS).map(|round| word(me, round)).collect::<Vec<u64>>())?;
    pe.barrier_all()?;
    for round in 0..ROUNDS {
        let (stream, turn) = (stream(theirs)?, 1 + round as u64);
        let (on, place) = (pe.on(&stream), || round..=round);
        on.put_signal(relayed.view(place()), words.view(place()), signal.signal(1).set(turn), next)?;
        on.signal_wait_until(signal.signal(1), Compare::Ge, turn)?;
        on.put_signal(inbox.view(place()), relayed.view(place()), signal.signal(0).add(1), next)?;
    }
    pe.synchronize_device()?;
    passed_from(2, "what was received")?;
    // Graphs, with a second stream that is forked and joined.
    for (what, puts) in [("a graph", theirs), ("a graph with two streams", other)] {
        // SAFETY: graph and executable graph are used as cuda.h says.
        unsafe {
            let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            works(sys::cuStreamBeginCapture_v2(theirs, mode));
            (0..ROUNDS).try_for_each(|round| turn(theirs, puts, puts != theirs, round))?;
            works(sys::cuStreamEndCapture(theirs, &raw mut graph));
            works(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
            for _ in 0..3 {
                works(sys::cuGraphLaunch(executable, theirs));
                pe.synchronize_device()?;
                passed(what)?;
            }
            works(sys::cuGraphExecDestroy(executable));
            works(sys::cuGraphDestroy(graph));
        }
    }
    // SAFETY: nothing uses them any more.
    unsafe {
        works(sys::cuEventDestroy_v2(event));
        works(sys::cuStreamDestroy_v2(blocking));
    }
    Ok(pe.finalize()?)
}

/// A module that the program loads through the driver API can be given the PE's state.
pub fn own_modules() -> Outcome {
    let context = CudaContext::new(0)?;
    let pe = init()?;
    let (major, minor) = context.compute_capability()?;
    let fits = |arch: u32| arch as i32 <= major * 10 + minor;
    let (_, ptx) = GPU.ptx().iter().rfind(|(arch, _)| fits(*arch)).ok_or("no PTX")?;
    context.bind_to_thread()?;
    let load = |ptx: &str| {
        let text = CString::new(ptx).unwrap();
        let mut module = std::ptr::null_mut();
        // SAFETY: PTX that ends with 0.
        works(unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) });
        module
    };
    let answer = pe.alloc::<i32>(2)?;
    for _ in 0..2 {
        let module = load(ptx);
        let mut function = std::ptr::null_mut();
        let mut address = answer.address();
        let mut args = [(&raw mut address).cast::<c_void>()];
        // SAFETY: the module stays loaded until it is unregistered, the kernel takes an address.
        unsafe {
            pe.register_module(module.cast())?;
            works(sys::cuModuleGetFunction(&raw mut function, module, c"who_am_i".as_ptr()));
            let (stream, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
            works(sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args.as_mut_ptr(), extra));
        }
        pe.synchronize_device()?;
        assert_eq!(pe.read(answer.view(..2))?, [pe.my_pe() as i32, pe.n_pes() as i32]);
        pe.write(&answer, &[-1, -1])?;
        pe.unregister_module(module.cast())?;
        assert!(pe.unregister_module(module.cast()).is_err());
        // SAFETY: none of its kernels is running.
        works(unsafe { sys::cuModuleUnload(module) });
    }
    let stateless = load(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n");
    // SAFETY: it is loaded.
    let refused = unsafe { pe.register_module(stateless.cast()) };
    assert!(matches!(refused, Err(Error::Device(DeviceError::CudaModule { .. }))), "{refused:?}");
    // SAFETY: none of its kernels is running.
    works(unsafe { sys::cuModuleUnload(stateless) });
    Ok(pe.finalize()?)
}
