//! Streams of the program: order on each, independence of each other, errors; and cooperative launches.

use oxshmem::device::DeviceError;
use oxshmem::device::cpu::LaunchError;
use oxshmem::{Compare, Error, FaultKind, HeapError, LaunchConfig, Pe, SignalOp, Stream, SymmetricSlice};

use crate::Outcome;

oxshmem::include_module!(STREAMS, "streams");

const ONE: LaunchConfig = LaunchConfig { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0, cooperative: false };
/// Long enough that what does not wait for it comes first.
const LATE_NS: u64 = 20_000_000;
/// Words of the transfers: some that kernels copy, and one that is left to copy engines where there are any.
const LENGTHS: [usize; 4] = [0, 1, 1000, 40_000];

pub fn streams(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    order(&pe)?;
    independence(&pe)?;
    cooperative(&pe)?;

    // Work that nobody waits for is waited for by finalize.
    let (fill, memory) = (pe.load(&STREAMS)?.function("fill_late")?, pe.alloc::<u64>(100)?);
    let stream = pe.create_stream()?;
    // SAFETY: the kernel's types; the memory holds 100 words.
    unsafe { pe.launch_on_stream(&stream, &fill, ONE, (&memory, 50u64, 1u64, LATE_NS))? };
    pe.put_on_stream(&memory, 50, &memory, 0..50, (pe.my_pe() + 1) % pe.n_pes(), &stream)?;
    drop(stream);
    Ok(pe.finalize()?)
}

/// Each operation on a stream sees what the stream's earlier work has done.
fn order(pe: &Pe) -> Outcome {
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let module = pe.load(&STREAMS)?;
    let (fill, count) = (module.function("fill_late")?, module.function("count_wrong")?);
    let most = LENGTHS[LENGTHS.len() - 1];
    let (source, inbox, back) = (pe.alloc::<u64>(most)?, pe.alloc::<u64>(most + 3)?, pe.alloc::<u64>(most)?);
    let (signal, wrong) = (pe.alloc::<u64>(2)?, pe.alloc::<u64>(2)?);
    let (sender, receiver) = (pe.create_stream()?, pe.create_stream()?);
    for (round, words) in LENGTHS.into_iter().enumerate() {
        let round = round as u64 + 1;
        let value = |pe: usize| ((pe as u64) << 32) | (round << 20);
        let check = |stream: &Stream, at: &SymmetricSlice<u64>, expected: u64, cell: usize| {
            let cell = wrong.slice(cell..cell + 1)?;
            // SAFETY: the kernel's types; `at` holds that many words.
            unsafe { pe.launch_on_stream(stream, &count, ONE, (at, words as u64, expected, &cell)) }
        };
        // SAFETY: the kernel's types; the source holds that many words.
        unsafe { pe.launch_on_stream(&sender, &fill, ONE, (&source, words as u64, value(me), LATE_NS))? };
        if round.is_multiple_of(2) {
            pe.put_on_stream(&inbox, 3, &source, 0..words, next, &sender)?;
            pe.signal_on_stream(&signal, 0, round, SignalOp::Set, next, &sender)?;
        } else {
            let set = SignalOp::Set;
            pe.put_signal_on_stream(&inbox, 3, &source, 0..words, &signal, 0, round, set, next, &sender)?;
        }
        pe.quiet_on_stream(&sender)?;
        pe.get_on_stream(&back, 0, &inbox, 3..3 + words, next, &sender)?;
        check(&sender, &back, value(me), 0)?;
        pe.signal_wait_until_on_stream(&signal, 0, Compare::Ge, round, &receiver)?;
        check(&receiver, &inbox.slice(3..3 + words)?, value(previous), 1)?;
        pe.synchronize_stream(&receiver)?;
        if round.is_multiple_of(2) {
            pe.barrier_all_on_stream(&sender)?;
        } else {
            pe.quiet_on_stream(&sender)?;
            pe.sync_all_on_stream(&sender)?;
        }
        pe.synchronize_stream(&sender)?;
        assert_eq!(pe.read_local(&wrong, 0..2)?, [0, 0], "{words} words");
    }
    Ok(())
}

/// A stream that waits holds up neither the host nor other streams, and the PE's own stream is one of them.
fn independence(pe: &Pe) -> Outcome {
    let me = pe.my_pe();
    let signal = pe.alloc::<u64>(3)?;
    let streams = [pe.create_stream()?, pe.create_stream()?];
    pe.signal_wait_until_on_stream(&signal, 0, Compare::Eq, 5, &streams[0])?;
    pe.signal_on_stream(&signal, 1, 6, SignalOp::Set, me, &streams[0])?;
    pe.signal_wait_until_on_stream(&signal, 1, Compare::Eq, 6, &streams[1])?;
    pe.signal_on_stream(&signal, 2, 7, SignalOp::Add, me, &streams[1])?;
    pe.quiet_on_stream(&streams[1])?;
    assert_eq!(pe.read_local(&signal, 0..3)?, [0, 0, 0]);
    // On the PE's own stream.
    pe.signal(&signal, 0, 5, SignalOp::Set, me)?;
    assert_eq!(pe.signal_wait_until(&signal, 2, Compare::Ne, 0)?, 7);
    pe.synchronize()?;
    assert_eq!(pe.read_local(&signal, 0..3)?, [5, 6, 7]);
    pe.put_on_stream(&signal, 0, &signal, 1..2, me, &pe.stream())?;
    pe.synchronize_stream(&pe.stream())?;
    assert_eq!(pe.read_local(&signal, 0..1)?, [6]);
    Ok(pe.barrier_all()?)
}

/// As many blocks as the device says it can run at the same time do; one more is refused with that number.
fn cooperative(pe: &Pe) -> Outcome {
    let meet = pe.load(&STREAMS)?.function("meet")?;
    let counts = pe.alloc::<u64>(2)?;
    let left = counts.slice(1..2)?;
    let launch = |stream: &Stream, blocks: u32, threads: u32| {
        pe.write_local(&counts, 0, &[0, 0])?;
        let config = LaunchConfig::linear(blocks, threads).cooperative();
        // SAFETY: the kernel's types.
        unsafe { pe.launch_on_stream(stream, &meet, config, (&counts, &left, 5_000_000_000u64)) }
    };
    let (threads, limit) = match launch(&pe.stream(), 1 << 20, 64) {
        // One block less than fill the device, and as many as do.
        Err(Error::Device(DeviceError::Launch(LaunchError::Cooperative { limit, per_sm, sms, beside, .. }))) => {
            let most = u64::from(per_sm) * u64::from(sms);
            assert!(limit == most || (beside != 0 && 0 < limit && limit < most), "{limit} of {most}");
            (64, limit as u32)
        }
        // Every launch is cooperative on the cpu device.
        Err(Error::Device(DeviceError::Launch(LaunchError::Threads { limit, .. }))) => {
            (32, (limit as u32 / 32).min(64))
        }
        other => panic!("{other:?}"),
    };
    for (stream, blocks) in [(pe.stream(), 1), (pe.stream(), limit), (pe.create_stream()?, limit)] {
        launch(&stream, blocks, threads)?;
        pe.synchronize_stream(&stream)?;
        assert_eq!(pe.read_local(&counts, 0..2)?, [u64::from(blocks), 0]);
    }
    Ok(pe.barrier_all()?)
}

/// Errors come with the next synchronize of each stream that they ended something on; calls that are refused queue nothing.
pub fn errors(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let words = pe.alloc::<u64>(8)?;
    let wait = pe.load(&STREAMS)?.function("wait_for_word")?;
    let (first, second) = (pe.create_stream()?, pe.create_stream()?);
    let timeout = |result: oxshmem::Result<()>| match result {
        Err(Error::Fault(fault)) => {
            assert_eq!((fault.operation, fault.me), ("signal_wait_until", pe.my_pe() as i32));
            let FaultKind::Timeout { timeout_ms: 150, address, .. } = fault.kind else { panic!("{fault}") };
            assert!((words.address()..words.address() + 64).contains(&address), "{fault}");
        }
        other => panic!("{other:?}"),
    };

    // Two streams and the PE's own wait for what never comes. The first deadline ends them all, and all are told.
    pe.signal_wait_until_on_stream(&words, 0, Compare::Eq, 1, &first)?;
    // SAFETY: the kernel's types.
    unsafe { pe.launch_on_stream(&second, &wait, ONE, (&words, 2u64))? };
    // SAFETY: as above.
    unsafe { pe.launch(&wait, ONE, (&words, 3u64))? };
    timeout(pe.synchronize_stream(&first));
    timeout(pe.synchronize_stream(&second));
    timeout(pe.synchronize_stream(&pe.stream()));
    pe.synchronize()?;
    // A host operation tells of it too, since it follows on the PE's own stream.
    pe.signal_wait_until_on_stream(&words, 0, Compare::Eq, 1, &first)?;
    // SAFETY: as above.
    unsafe { pe.launch(&wait, ONE, (&words, 3u64))? };
    timeout(pe.quiet());
    timeout(pe.synchronize());
    pe.synchronize()?;
    pe.synchronize_device()?;

    // A bad argument ends nothing.
    pe.put_on_stream(&words, 4, &words, 0..2, pe.n_pes(), &first)?;
    pe.signal_on_stream(&words, 7, 9, SignalOp::Set, pe.my_pe(), &first)?;
    match pe.synchronize_stream(&first) {
        Err(Error::Fault(fault)) => assert!(matches!(fault.kind, FaultKind::PeOutOfRange { .. }), "{fault}"),
        other => panic!("{other:?}"),
    }
    pe.signal_on_stream(&words, 6, 8, SignalOp::Set, pe.my_pe(), &second)?;
    pe.put_on_stream(&words, 4, &words, 0..2, pe.n_pes(), &first)?;
    assert!(pe.synchronize_stream(&first).is_err());
    pe.synchronize_stream(&second)?;
    assert_eq!(pe.read_local(&words, 4..8)?, [0, 0, 8, 9]);

    let out_of_range = |result: oxshmem::Result<()>| {
        assert!(matches!(result, Err(Error::Heap(HeapError::OutOfRange { .. }))), "{result:?}");
    };
    out_of_range(pe.put_on_stream(&words, 7, &words, 0..2, 0, &first));
    out_of_range(pe.put_on_stream(&words, 0, &words, 7..9, 0, &first));
    out_of_range(pe.get_on_stream(&words, usize::MAX, &words, 0..2, 0, &first));
    out_of_range(pe.signal_on_stream(&words, 8, 0, SignalOp::Set, 0, &first));
    out_of_range(pe.signal_wait_until_on_stream(&words, 8, Compare::Eq, 0, &first));
    pe.synchronize()?;
    pe.barrier_all_on_stream(&second)?;
    pe.synchronize_stream(&second)?;
    Ok(pe.finalize()?)
}

/// The last PE aborts the job while the others' streams wait, for an hour if nobody told them.
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
        pe.signal_wait_until_on_stream(&signal, 0, Compare::Eq, 1, &stream)?;
        pe.quiet_on_stream(&stream)?;
        pe.synchronize_stream(&stream)
    });
    match ended {
        Err(Error::Bootstrap(error)) => assert!(error.to_string().contains("tired of it"), "{error}"),
        other => panic!("{other:?}"),
    }
    pe.signal_wait_until_on_stream(&signal, 0, Compare::Eq, 1, &stream)?;
    assert!(pe.finalize().is_err());
    Ok(())
}
