//! Posting where it is hardest: more posters than the queue has room, lanes that go on before their
//! leader, posts that end in the middle.

use oxshmem::device::DeviceError;
use oxshmem::device::cpu::KernelErrorKind;
use oxshmem::{Error, FaultKind, Operations, Path};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(POSTING, "posting");

/// Words of `kInlinedWords` in `kernels/posting.cu`.
const INLINED_WORDS: usize = 55;
/// Landing slots of a queue pair.
const LANDING_SLOTS: u32 = 256;

/// `crowd BLOCKS THREADS`: every thread of the grid reserves before the queue has room for any but
/// the first few.
pub fn crowd(args: &[String]) -> Outcome {
    let rig = Rig::new(&POSTING)?;
    let [blocks, threads] = args else { return Err("crowd BLOCKS THREADS".into()) };
    let (blocks, threads): (u32, u32) = (blocks.parse()?, threads.parse()?);
    let words = rig.pe.alloc::<u32>((blocks * threads) as usize * INLINED_WORDS)?;
    let next = ((rig.me() + 1) % rig.n_pes()) as i32;
    rig.run_linear("crowd", blocks, threads, (&words, next))?;
    rig.pe.barrier_all()?;
    rig.run_linear("crowd_out", blocks, threads, (&words, rig.report()))?;
    if let Some(counters) = rig.pe.hca_counters() {
        assert_eq!(counters.errors, 0, "{counters:?}");
    }
    rig.finish()
}

/// `own_posts KERNEL`: `quiet_of_each_lane` or `fence_of_each_lane`.
pub fn own_posts(args: &[String]) -> Outcome {
    let rig = Rig::new(&POSTING)?;
    let [kernel] = args else { return Err("own_posts KERNEL".into()) };
    let (words, out) = (rig.pe.alloc::<u64>(64)?, rig.pe.alloc::<u64>(32)?);
    let next = ((rig.me() + 1) % rig.n_pes()) as i32;
    rig.run_linear(kernel, 1, 32, (&words, &out, next))?;
    let out = rig.pe.read(out.view(..32))?;
    assert!(out.iter().zip(0u64..).all(|(blocks, lane)| *blocks > lane), "{kernel}: {out:?}");
    rig.pe.barrier_all()?;
    rig.finish()
}

/// Faults between reserving and submitting, and after a fetch: the queue pair works as before. Run
/// on the `cpu` device.
pub fn bad_local(_: &[String]) -> Outcome {
    const BAD: u64 = 4096;
    let rig = Rig::new(&POSTING)?;
    let (words, signal) = (rig.pe.alloc::<u64>(64)?, rig.pe.alloc::<u64>(1)?);
    let next = ((rig.me() + 1) % rig.n_pes()) as i32;
    let mut value = 0u64;
    let mut goes_on = || {
        value += 1;
        rig.run_linear("round_trip", 1, 1, (&words, value, next, rig.report()))
    };
    let is_bad = |result: oxshmem::Result<()>| match result {
        Err(Error::Device(DeviceError::Kernel(error))) => {
            assert!(
                matches!(error.kind, KernelErrorKind::BadAddress { address, .. } if address >= BAD as usize),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    };
    for bytes in [1u64, 8, 28, 29, 100, 220, 500] {
        is_bad(rig.run_linear("bad_source", 1, 1, (&words, BAD, bytes.min(512), next)));
        goes_on()?;
        is_bad(rig.run_linear("bad_put_signal", 1, 1, (&words, BAD, bytes.min(512), &signal, next)));
        goes_on()?;
    }
    for _ in 0..LANDING_SLOTS + 2 {
        is_bad(rig.run_linear("bad_destination", 1, 1, (&words, BAD, 16u64, next)));
    }
    goes_on()?;
    rig.pe.barrier_all()?;
    rig.finish()
}

/// PE 0's queue pairs to PE 1 end with an error: any number of fetches reports that error, none a
/// deadline, and fetches from PE 2 work. Run with `error=0x13@qp0:0` at PE 0.
pub fn failed_fetches(_: &[String]) -> Outcome {
    let faulty = std::env::var("OXSHMEM_RANK")? == "0";
    let faults = if faulty { "error=0x13@qp0:0" } else { "" };
    let rig = Rig::with_config(&POSTING, oxshmem::Config::builder().soft_faults(faults).env().build()?)?;
    let words = rig.pe.alloc::<u64>(64)?;
    if !faulty {
        // No signal comes; PE 0 ends the job.
        let error = rig.pe.signal_wait_until(words.signal(0), oxshmem::Compare::Eq, 1).unwrap_err();
        assert!(error.to_string().contains("the test is over"), "{error}");
        return Ok(());
    }
    for round in 0..3 {
        let error = rig.run_linear("fetches", 1, 1, (&words, LANDING_SLOTS, 1)).unwrap_err();
        let Error::Fault(fault) = &error else { panic!("{error:?}") };
        let FaultKind::Completion { pe: 1, syndrome, .. } = &fault.kind else { panic!("round {round}: {error}") };
        assert!(syndrome.contains("remote access error"), "round {round}: {error}");
        rig.run_linear("fetches", 1, 1, (&words, 3u32, 2)).map_err(|error| format!("round {round}, PE 2: {error}"))?;
    }
    rig.pe.abort("the test is over");
    Ok(())
}

/// A post that is given up at its deadline: later operations say at once that the queue is broken,
/// and why. Run with a short `OXSHMEM_TIMEOUT`, and a delay that is far longer.
pub fn given_up(_: &[String]) -> Outcome {
    let rig = Rig::new(&POSTING)?;
    let words = rig.pe.alloc::<u64>(1)?;
    let peer = ((rig.me() + 1) % rig.n_pes()) as i32;
    let error = rig.run_linear("put_words", 1, 1, (&words, 20_000u32, peer)).unwrap_err();
    assert!(matches!(&error, Error::Fault(fault) if matches!(fault.kind, FaultKind::Timeout { .. })), "{error}");
    let is_broken = |error: Error| {
        let Error::Fault(fault) = &error else { panic!("{error:?}") };
        let FaultKind::QueueBroken { pe, qpn, .. } = fault.kind else { panic!("{error}") };
        let by_device = rig.pe.path(peer as usize) == Some(Path::Ibgda);
        assert_eq!((pe, qpn.is_some()), (peer, by_device), "{error}");
        assert!(error.to_string().contains("OXSHMEM_TIMEOUT"), "{error}");
    };
    for _ in 0..3 {
        is_broken(rig.run_linear("one_put", 1, 1, (&words, peer)).unwrap_err());
        is_broken(rig.run_linear("one_quiet", 1, 1, ()).unwrap_err());
    }
    // The host's calls are kernels too.
    is_broken(rig.pe.quiet().unwrap_err());
    is_broken(rig.pe.signal(words.signal(0).set(1), peer as usize).unwrap_err());
    let error = rig.finish().unwrap_err().to_string();
    assert!(error.contains("cannot be used any more"), "{error}");
    Ok(())
}
