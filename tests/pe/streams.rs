//! Streams of the program: order on each, independence of each other, errors; and cooperative
//! launches.

use oxshmem::device::DeviceError;
use oxshmem::device::cpu::LaunchError;
use oxshmem::{Compare, Error, FaultKind, HeapError, LaunchConfig, Operations, Pe, Stream, SymmetricView};

use crate::Outcome;

oxshmem::include_module!(STREAMS, "streams");

const ONE: LaunchConfig = LaunchConfig { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0, cooperative: false };
/// Long enough that what does not wait for it comes first.
const LATE_NS: u64 = 20_000_000;
/// Words of the transfers: some that kernels copy, and one that is left to copy engines where there
/// are any.
const LENGTHS: [usize; 4] = [0, 1, 1000, 40_000];

pub fn streams(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    order(&pe)?;
    independence(&pe)?;
    cooperative(&pe)?;

    // finalize waits for work that the program does not wait for.
    let (fill, memory) = (pe.load(&STREAMS)?.kernel("fill_late")?, pe.alloc::<u64>(100)?);
    let stream = pe.create_stream()?;
    // SAFETY: the kernel's types; the memory holds 100 words.
    unsafe { fill.launch(&pe.on(&stream), ONE, (&memory, 50u64, 1u64, LATE_NS))? };
    pe.on(&stream).put(memory.view(50..), memory.view(..50), (pe.my_pe() + 1) % pe.n_pes())?;
    drop(stream);
    Ok(pe.finalize()?)
}

/// Each operation on a stream sees what the stream's earlier work has done.
fn order(pe: &Pe) -> Outcome {
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let module = pe.load(&STREAMS)?;
    let (fill, count) = (module.kernel("fill_late")?, module.kernel("count_wrong")?);
    let most = LENGTHS[LENGTHS.len() - 1];
    let (source, inbox, back) = (pe.alloc::<u64>(most)?, pe.alloc::<u64>(most + 3)?, pe.alloc::<u64>(most)?);
    let (signal, wrong) = (pe.alloc::<u64>(2)?, pe.alloc::<u64>(2)?);
    let (sender, receiver) = (pe.create_stream()?, pe.create_stream()?);
    for (round, words) in LENGTHS.into_iter().enumerate() {
        let round = round as u64 + 1;
        let value = |pe: usize| ((pe as u64) << 32) | (round << 20);
        let check = |stream: &Stream, at: SymmetricView<'_, u64>, expected: u64, cell: usize| {
            let cell = wrong.at(cell);
            // SAFETY: the kernel's types; `at` holds that many words.
            unsafe { count.launch(&pe.on(stream), ONE, (at, words as u64, expected, cell)) }
        };
        // SAFETY: the kernel's types; the source holds that many words.
        unsafe { fill.launch(&pe.on(&sender), ONE, (&source, words as u64, value(me), LATE_NS))? };
        if round.is_multiple_of(2) {
            pe.on(&sender).put(inbox.view(3..), source.view(..words), next)?;
            pe.on(&sender).signal(signal.signal(0).set(round), next)?;
        } else {
            let update = signal.signal(0).set(round);
            pe.on(&sender).put_signal(inbox.view(3..), source.view(..words), update, next)?;
        }
        pe.on(&sender).quiet()?;
        pe.on(&sender).get(&back, inbox.view(3..3 + words), next)?;
        check(&sender, back.view(..), value(me), 0)?;
        pe.on(&receiver).signal_wait_until(signal.signal(0), Compare::Ge, round)?;
        check(&receiver, inbox.view(3..3 + words), value(previous), 1)?;
        pe.on(&receiver).synchronize()?;
        if round.is_multiple_of(2) {
            pe.on(&sender).barrier_all()?;
        } else {
            pe.on(&sender).quiet()?;
            pe.on(&sender).sync_all()?;
        }
        pe.on(&sender).synchronize()?;
        assert_eq!(pe.read(wrong.view(..2))?, [0, 0], "{words} words");
    }
    Ok(())
}

/// A stream that waits holds up neither the host nor other streams, and the PE's own stream is one
/// of them.
fn independence(pe: &Pe) -> Outcome {
    let me = pe.my_pe();
    let signal = pe.alloc::<u64>(3)?;
    let streams = [pe.create_stream()?, pe.create_stream()?];
    pe.on(&streams[0]).signal_wait_until(signal.signal(0), Compare::Eq, 5)?;
    pe.on(&streams[0]).signal(signal.signal(1).set(6), me)?;
    pe.on(&streams[1]).signal_wait_until(signal.signal(1), Compare::Eq, 6)?;
    pe.on(&streams[1]).signal(signal.signal(2).add(7), me)?;
    pe.on(&streams[1]).quiet()?;
    assert_eq!(pe.read(signal.view(..3))?, [0, 0, 0]);
    // On the PE's own stream.
    pe.signal(signal.signal(0).set(5), me)?;
    assert_eq!(pe.signal_wait_until(signal.signal(2), Compare::Ne, 0)?, 7);
    pe.synchronize()?;
    assert_eq!(pe.read(signal.view(..3))?, [5, 6, 7]);
    pe.on(&pe.stream()).put(&signal, signal.view(1..2), me)?;
    pe.on(&pe.stream()).synchronize()?;
    assert_eq!(pe.read(signal.view(..1))?, [6]);
    Ok(pe.barrier_all()?)
}

/// A launch runs as many blocks as the device says it can run at the same time; one more is refused
/// with that number.
fn cooperative(pe: &Pe) -> Outcome {
    let meet = pe.load(&STREAMS)?.kernel("meet")?;
    let counts = pe.alloc::<u64>(2)?;
    let left = counts.at(1);
    let launch = |stream: &Stream, blocks: u32, threads: u32| {
        pe.write(&counts, &[0, 0])?;
        let config = LaunchConfig::linear(blocks, threads).cooperative();
        // SAFETY: the kernel's types.
        unsafe { meet.launch(&pe.on(stream), config, (&counts, &left, 5_000_000_000u64)) }
    };
    let (threads, limit) = match launch(&pe.stream(), 1 << 20, 64) {
        // One block less than fill the device, and as many as do.
        Err(Error::Device(DeviceError::Launch(LaunchError::Cooperative { limit, per_sm, sms, beside, .. }))) => {
            let most = u64::from(per_sm) * u64::from(sms);
            assert!(limit == most || (beside != 0 && 0 < limit && limit < most), "{limit} of {most}");
            (64, limit as u32)
        }
        // What the cpu device has live together.
        Err(Error::Device(DeviceError::Launch(LaunchError::Threads { limit, .. }))) => {
            (32, (limit as u32 / 32).min(64))
        }
        other => panic!("{other:?}"),
    };
    for (stream, blocks) in [(pe.stream(), 1), (pe.stream(), limit), (pe.create_stream()?, limit)] {
        launch(&stream, blocks, threads)?;
        pe.on(&stream).synchronize()?;
        assert_eq!(pe.read(counts.view(..2))?, [u64::from(blocks), 0]);
    }
    Ok(pe.barrier_all()?)
}

/// Errors come with the next synchronize of each stream that they ended something on; calls that
/// are refused queue nothing.
pub fn errors(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let words = pe.alloc::<u64>(8)?;
    let wait = pe.load(&STREAMS)?.kernel("wait_for_word")?;
    let (first, second) = (pe.create_stream()?, pe.create_stream()?);
    let timeout = |result: oxshmem::Result<()>| match result {
        Err(Error::Fault(fault)) => {
            assert_eq!((fault.operation, fault.me), ("signal_wait_until", pe.my_pe() as i32));
            let FaultKind::Timeout { timeout_ms: 150, address, .. } = fault.kind else { panic!("{fault}") };
            assert!((words.address()..words.address() + 64).contains(&address), "{fault}");
        }
        other => panic!("{other:?}"),
    };

    // Two streams and the PE's own wait for what never comes. The first deadline ends them all, and
    // all are told.
    pe.on(&first).signal_wait_until(words.signal(0), Compare::Eq, 1)?;
    // SAFETY: the kernel's types.
    unsafe { wait.launch(&pe.on(&second), ONE, (&words, 2u64))? };
    // SAFETY: as above.
    unsafe { wait.launch(&pe, ONE, (&words, 3u64))? };
    timeout(pe.on(&first).synchronize());
    timeout(pe.on(&second).synchronize());
    timeout(pe.on(&pe.stream()).synchronize());
    pe.synchronize()?;
    // A host operation tells of it too, since it follows on the PE's own stream.
    pe.on(&first).signal_wait_until(words.signal(0), Compare::Eq, 1)?;
    // SAFETY: as above.
    unsafe { wait.launch(&pe, ONE, (&words, 3u64))? };
    timeout(pe.quiet());
    timeout(pe.synchronize());
    pe.synchronize()?;
    pe.synchronize_device()?;

    // A bad argument ends nothing.
    pe.on(&first).put(words.view(4..), words.view(..2), pe.n_pes())?;
    pe.on(&first).signal(words.signal(7).set(9), pe.my_pe())?;
    match pe.on(&first).synchronize() {
        Err(Error::Fault(fault)) => assert!(matches!(fault.kind, FaultKind::PeOutOfRange { .. }), "{fault}"),
        other => panic!("{other:?}"),
    }
    pe.on(&second).signal(words.signal(6).set(8), pe.my_pe())?;
    pe.on(&first).put(words.view(4..), words.view(..2), pe.n_pes())?;
    assert!(pe.on(&first).synchronize().is_err());
    pe.on(&second).synchronize()?;
    assert_eq!(pe.read(words.view(4..8))?, [0, 0, 8, 9]);

    let out_of_range = |result: oxshmem::Result<()>| {
        assert!(matches!(result, Err(Error::Heap(HeapError::OutOfRange { .. }))), "{result:?}");
    };
    let short = pe.on(&first).put(words.view(7..), words.view(..2), 0);
    assert!(matches!(short, Err(Error::Heap(HeapError::TooShort { .. }))), "{short:?}");
    out_of_range(pe.on(&first).put(&words, words.view(7..9), 0));
    out_of_range(pe.on(&first).get(words.view(usize::MAX..), words.view(..2), 0));
    out_of_range(pe.on(&first).signal(words.signal(8).set(0), 0));
    out_of_range(pe.on(&first).signal_wait_until(words.signal(8), Compare::Eq, 0));
    pe.synchronize()?;
    pe.on(&second).barrier_all()?;
    pe.on(&second).synchronize()?;
    Ok(pe.finalize()?)
}

/// `stream_dropped`: the end of a PE ends what waits on a stream that the program has dropped. Run
/// with a deadline that no test waits for.
pub fn dropped(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let signal = pe.alloc::<u64>(1)?;
    let stream = pe.create_stream()?;
    pe.on(&stream).signal_wait_until(signal.signal(0), Compare::Eq, 1)?;
    drop(stream);
    drop(pe);
    Ok(())
}

/// The last PE aborts the job while the others' streams wait, for an hour if they were not told.
pub fn aborted(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let signal = pe.alloc::<u64>(1)?;
    let stream = pe.create_stream()?;
    let met = pe.barrier_all();
    if pe.my_pe() + 1 == pe.n_pes() {
        met?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        pe.abort("tired of it");
        return Ok(());
    }
    // On a busy machine the end may come before the barrier's call is back.
    let ended = met.and_then(|()| {
        pe.on(&stream).signal_wait_until(signal.signal(0), Compare::Eq, 1)?;
        pe.on(&stream).quiet()?;
        pe.on(&stream).synchronize()
    });
    match ended {
        Err(Error::Bootstrap(error)) => assert!(error.to_string().contains("tired of it"), "{error}"),
        other => panic!("{other:?}"),
    }
    pe.on(&stream).signal_wait_until(signal.signal(0), Compare::Eq, 1)?;
    assert!(pe.finalize().is_err());
    Ok(())
}
