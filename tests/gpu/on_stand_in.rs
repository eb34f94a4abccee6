//! What the host queues on streams, told by the stand-in for the driver (`tests/driver`).

use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys::{self, CUstream};
use oxshmem::by_address::put_word;
use oxshmem::device::DeviceError;
use oxshmem::{Config, Error, LaunchConfig, Operations, Pe, ReduceOp, Stream, SymmetricSlice};

use crate::modules::source;
use crate::streams::works;
use crate::{GPU, Outcome, init, init_with};

/// `CU_STREAM_PER_THREAD` of cuda.h.
const PER_THREAD: CUstream = 2 as CUstream;
/// Words that a copy engine moves where a signal follows them: 64 KiB.
const LONG: usize = 8192;
/// Words that a copy engine moves in a graph, too: 256 KiB.
const MANY: usize = 4 * LONG;

/// The stand-in that this process has loaded.
struct StandIn {
    calls: unsafe extern "C" fn() -> *mut c_char,
    hold: extern "C" fn(CUstream, c_int),
    capture: extern "C" fn(CUstream, c_int),
}

impl StandIn {
    fn loaded() -> Self {
        const ANOTHER: &str = "the driver that is loaded is not the stand-in";
        // SAFETY: the library is loaded, and its functions have these types.
        unsafe {
            let driver = sys::culib();
            Self {
                calls: *driver.get(b"stand_in_calls\0").expect(ANOTHER),
                hold: *driver.get(b"stand_in_hold\0").expect(ANOTHER),
                capture: *driver.get(b"stand_in_capture\0").expect(ANOTHER),
            }
        }
    }

    /// Returns what was queued since the last call, with `beside: ` before what is not on `stream`.
    /// What a PE writes from the host, on a stream of its own, is left out.
    fn calls_beside(&self, stream: CUstream) -> Vec<String> {
        // SAFETY: it returns text that the caller frees.
        let text = unsafe { CString::from_raw((self.calls)()) };
        let name = format!("{:#x}", stream as usize);
        let call = |line: &str| match line.rsplit_once(" on ") {
            Some((call, on)) if on == name => call.to_owned(),
            Some((call, _)) => format!("beside: {call}"),
            None => line.to_owned(),
        };
        let is_own = |call: &String| ["beside: write", "beside: set"].iter().any(|own| call.starts_with(own));
        text.to_string_lossy().lines().map(call).filter(|call| !is_own(call)).collect()
    }

    /// Returns the same where nothing was queued on others.
    fn calls(&self, stream: CUstream) -> Vec<String> {
        let calls = self.calls_beside(stream);
        assert!(!calls.iter().any(|call| call.starts_with("beside")), "{calls:?}");
        calls
    }
}

/// Creates a stream of the program in the PE's context.
fn create(pe: &Pe) -> CUstream {
    let mut raw = null_mut();
    let context = pe.gpu().unwrap().context.cast();
    // SAFETY: the context of a PE; writes a handle.
    unsafe {
        works(sys::cuCtxSetCurrent(context));
        works(sys::cuStreamCreate(&raw mut raw, 1));
    }
    raw
}

fn adopt(pe: &Pe, raw: CUstream) -> Stream {
    // SAFETY: a stream that the stand-in has.
    unsafe { pe.stream_from_raw(raw.cast()) }.unwrap()
}

/// Creates a stream of the program, which the PE follows.
fn followed(pe: &Pe) -> (CUstream, Stream) {
    let raw = create(pe);
    (raw, adopt(pe, raw))
}

fn memory(pe: &Pe) -> oxshmem::Result<(SymmetricSlice<u64>, SymmetricSlice<u64>, SymmetricSlice<u64>)> {
    Ok((pe.alloc(MANY)?, pe.alloc(MANY)?, pe.alloc(2)?))
}

/// `queued_on_stand_in`: copies and stores without kernels, on all kinds of streams, each followed
/// by a record that tells when it has ended.
pub fn queued() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let next = (pe.my_pe() + 1) % pe.n_pes();
    let (to, from, cells) = memory(&pe)?;
    let streams = [create(&pe), null_mut(), PER_THREAD];
    let long = format!("copy {}", 8 * LONG);
    for (round, raw) in (1u64..).zip(streams) {
        let stream = adopt(&pe, raw);
        let on = pe.on(&stream);
        pe.write(&from, &[round; MANY])?;
        driver.calls(raw);
        on.put(&to, from.view(..1), next)?;
        assert_eq!(driver.calls(raw), ["copy 8", "record"]);
        put_word(&on, cells.address(), round, 8, next)?;
        on.signal(cells.signal(1).set(round), next)?;
        assert_eq!(driver.calls(raw), ["store 8", "record", "write 8", "record"]);
        for (at, bytes) in [(8, 4), (12, 2), (14, 1)] {
            put_word(&on, to.address() + at, round, bytes, next)?;
            assert_eq!(driver.calls(raw), [format!("set {bytes}").as_str(), "record"]);
        }
        on.put_signal(to.view(2..), from.view(2..), cells.signal(1).set(round), next)?;
        assert_eq!(driver.calls(raw), [format!("copy {}", 8 * (MANY - 2)).as_str(), "record", "store 8", "record"]);
        on.signal(cells.signal(1).set(round), next)?;
        assert_eq!(driver.calls(raw), ["write 8", "record"]);
        on.put_signal(to.view(2..), from.view(..LONG), cells.signal(1).set(round), next)?;
        assert_eq!(driver.calls(raw), [long.as_str(), "record", "store 8", "record"]);
        on.put_signal(to.view(2..), from.view(..LONG), cells.signal(1).add(0), next)?;
        assert_eq!(driver.calls(raw), [long.as_str(), "record", "launch oxshmem_host_signal", "record"]);
        on.put_signal(&to, from.view(1..LONG), cells.signal(1).set(round), next)?;
        on.signal(cells.signal(1).set(round), next)?;
        assert_eq!(driver.calls(raw), ["launch oxshmem_host_put_signal", "record", "write 8", "record"]);
        on.put_signal(&to, from.view(..1), cells.signal(1).set(round), next)?;
        on.signal(cells.signal(1).add(1), next)?;
        let kernels = ["launch oxshmem_host_put_signal", "record", "launch oxshmem_host_signal", "record"];
        assert_eq!(driver.calls(raw), kernels);
        on.quiet()?;
        assert_eq!(driver.calls(raw), [""; 0]);
        // All PEs have queued the round, and all the stand-in's copies are done then.
        let _met = pe.alloc::<u64>(1)?;
        let mut expected = vec![round; MANY];
        expected[1] |= round << 32 | round << 48;
        assert_eq!(pe.read(&to)?, expected);
        assert_eq!(pe.read(&cells)?, [round; 2]);
        let _met = pe.alloc::<u64>(1)?;
    }
    // The PE's own stream is followed without records.
    let (stream, raw) = (pe.stream(), pe.gpu().unwrap().stream.cast());
    let on = pe.on(&stream);
    driver.calls(raw);
    on.put(&to, from.view(..1), next)?;
    on.signal(cells.signal(1).set(1), next)?;
    on.signal(cells.signal(1).set(1), next)?;
    assert_eq!(driver.calls(raw), ["copy 8", "store 8", "write 8"]);
    Ok(pe.finalize()?)
}

/// `words_on_stand_in`, run with `STAND_IN_GPU`: how words of 8 bytes get to GPUs that cannot do
/// all that [`queued`] sees. Shorter ones do not depend on that.
pub fn words() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let (to, from, cells) = memory(&pe)?;
    let (raw, stream) = followed(&pe);
    let on = pe.on(&stream);
    let expected = match std::env::var("STAND_IN_GPU").as_deref() {
        Ok("reads-host") => "store 8",
        Ok("no-stores") => "write 8",
        _ => "launch oxshmem_host_put_word",
    };
    driver.calls(raw);
    put_word(&on, cells.address(), 1, 8, 0)?;
    assert_eq!(driver.calls(raw), [expected, "record"]);
    on.put(&to, from.view(..1), 0)?;
    put_word(&on, cells.address(), 1, 8, 0)?;
    assert_eq!(driver.calls(raw), ["copy 8", "record", expected, "record"]);
    put_word(&on, cells.address(), 1, 4, 0)?;
    assert_eq!(driver.calls(raw), ["set 4", "record"]);
    Ok(pe.finalize()?)
}

/// `early_on_stand_in`: the GPU may launch the kernels of a module early if the module says that
/// they wait for what they follow, as those of the library do where they are compiled for sm_90.
pub fn early() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let (raw, stream) = followed(&pe);
    let (_, ptx) = GPU.ptx().first().ok_or("no PTX")?;
    let grid = LaunchConfig::linear(1, 1);
    for (says, launch) in
        [("", "launch busy"), (".global .align 1 .u8 oxshmem_syncs_grid_dependency = 1;", "launch busy early")]
    {
        let ptx: &'static str = format!("{ptx}\n{says}\n").leak();
        let busy = pe.load(&source(GPU.name(), vec![(80, ptx)].leak()))?.kernel("busy")?;
        driver.calls(raw);
        // SAFETY: the stand-in executes nothing.
        unsafe {
            busy.launch(&pe.on(&stream), grid, (0u64,))?;
            busy.launch(&pe.on(&stream), LaunchConfig { cooperative: true, ..grid }, (0u64,))?;
        }
        assert_eq!(driver.calls(raw), [launch, "record", "launch busy together", "record"]);
    }
    Ok(pe.finalize()?)
}

/// `captured_on_stand_in`: words are stored by kernels then, and nothing is recorded.
pub fn captured() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let (to, from, cells) = memory(&pe)?;
    let (raw, stream) = followed(&pe);
    let on = pe.on(&stream);
    driver.calls(raw);
    (driver.capture)(raw, 1);
    let launch = |name| format!("launch oxshmem_host_{name}");
    let copy = format!("copy {}", 8 * MANY);
    on.put(&to, &from, 0)?;
    on.get(&to, &from, 0)?;
    assert_eq!(driver.calls(raw), [copy.as_str(); 2]);
    on.put(&to, from.view(1..), 0)?;
    on.get(&to, from.view(1..), 0)?;
    assert_eq!(driver.calls(raw), ["put", "get"].map(launch));
    for bytes in [8, 4, 2, 1] {
        put_word(&on, cells.address(), 1, bytes, 0)?;
    }
    assert_eq!(driver.calls(raw), ["put_word"; 4].map(launch));
    on.signal(cells.signal(1).set(1), 0)?;
    on.put_signal(&to, &from, cells.signal(1).set(1), 0)?;
    on.put_signal(&to, from.view(1..), cells.signal(1).set(1), 0)?;
    assert_eq!(driver.calls(raw), [launch("signal"), copy, launch("signal"), launch("put_signal")]);
    (driver.capture)(raw, 0);
    put_word(&on, cells.address(), 1, 8, 0)?;
    on.put(&to, from.view(..1), 0)?;
    assert_eq!(driver.calls(raw), ["write 8", "record", "copy 8", "record"]);
    Ok(pe.finalize()?)
}

/// `copied_on_stand_in`, run with `OXSHMEM_COLLECTIVES=fcollect=copy` by 2 PEs: the PE's own part
/// is copied on a stream beside, which is forked from the call's and joined to it, in a capture as
/// well.
pub fn copied() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let (team, n) = (pe.team_world(), pe.n_pes());
    let (to, from) = (pe.alloc::<u64>(n * MANY)?, pe.alloc::<u64>(MANY)?);
    let (raw, stream) = followed(&pe);
    let [meets, ends] = ["fcollect_copy", "copied"].map(|name| format!("launch oxshmem_host_{name}"));
    let copy = format!("copy {}", 8 * MANY);
    let beside = format!("beside: {copy}");
    let fork = ["record", "beside: wait", &beside, &copy, "beside: record", "wait"];
    // A build without machine code of the module loads it with the first collective.
    pe.on(&stream).reduce(&team, ReduceOp::Sum, &to, from.view(..1))?;
    for captures in [false, true] {
        pe.write(&from, &[1 + pe.my_pe() as u64 + 10 * u64::from(captures); MANY])?;
        // All PEs have checked what was copied before.
        let _met = pe.alloc::<u64>(1)?;
        driver.calls_beside(raw);
        (driver.capture)(raw, captures.into());
        pe.on(&stream).fcollect(&team, &to, &from)?;
        (driver.capture)(raw, 0);
        // The PE's own marks are no part of a graph.
        let marks: &[&str] = if captures { &[] } else { &["record"] };
        let expected = [&[meets.as_str()][..], marks, &fork, marks, &[&ends], marks].concat();
        assert_eq!(driver.calls_beside(raw), expected);
        let _met = pe.alloc::<u64>(1)?;
        let expected = (0..n).flat_map(|pe| [1 + pe as u64 + 10 * u64::from(captures); MANY]);
        assert_eq!(pe.read(&to)?, expected.collect::<Vec<u64>>());
    }
    Ok(pe.finalize()?)
}

/// `held_on_stand_in`: the PE waits for what it has queued on a stream that the program has
/// destroyed since.
pub fn held() -> Outcome {
    let pe = init_with(Config::builder().kernel_timeout(Duration::from_millis(300)))?;
    let driver = StandIn::loaded();
    let (to, from, _cells) = memory(&pe)?;
    let raw = create(&pe);
    pe.on(&adopt(&pe, raw)).put(&to, &from, 0)?;
    (driver.hold)(raw, 1);
    // SAFETY: the stream exists, and the program uses it no more.
    unsafe { works(sys::cuStreamDestroy_v2(raw)) };
    // Each call that waits for the copy reports it.
    let is_late = |ended: oxshmem::Result<()>| match ended {
        Err(Error::Device(DeviceError::StillRunning { kernels, .. })) => assert_eq!(kernels, "copies or stores"),
        other => panic!("{other:?}"),
    };
    is_late(pe.synchronize());
    is_late(pe.synchronize());
    let (address, before) = (to.address(), pe.live_allocations());
    is_late(pe.free(to));
    assert_eq!(pe.live_allocations(), before, "the copy goes there");
    (driver.hold)(raw, 0);
    pe.synchronize()?;
    pe.free_at(address)?;
    assert_eq!(pe.live_allocations(), before - 1);
    Ok(pe.finalize()?)
}

/// `rounds_on_stand_in`: a stream is followed anew by each PE, and a handle of an earlier PE is
/// refused. The stand-in ends the process for an event that is gone.
pub fn rounds() -> Outcome {
    let mut kept: Option<Stream> = None;
    for _ in 0..3 {
        let pe = init()?;
        let driver = StandIn::loaded();
        let (to, from, _cells) = memory(&pe)?;
        if let Some(stream) = &kept {
            let error = pe.on(stream).put(&to, &from, 0).unwrap_err();
            assert!(error.to_string().contains("create it again"), "{error}");
        }
        let stream = adopt(&pe, null_mut());
        driver.calls(null_mut());
        pe.on(&stream).put(&to, &from, 0)?;
        assert_eq!(driver.calls(null_mut()), [format!("copy {}", 8 * MANY), "record".to_owned()]);
        pe.on(&stream).synchronize()?;
        pe.finalize()?;
        kept = Some(stream);
    }
    Ok(())
}

/// `collectives_on_stand_in`: a collective on a stream launches kernels, and does nothing else. Not
/// even the first loads a module or makes room for stacks, for which a GPU may wait until running
/// kernels have ended, except that it loads the module in a job of one PE.
pub fn collectives() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let (team, n) = (pe.team_world(), pe.n_pes());
    let (to, from) = (pe.alloc::<u64>(n * MANY)?, pe.alloc::<u64>(n * MANY)?);
    let (raw, stream) = followed(&pe);
    let on = pe.on(&stream);
    let call = |words: usize| {
        on.team_sync(&team)?;
        on.barrier(&team)?;
        on.broadcast(&team, &to, from.view(..words), 0)?;
        on.collect(&team, &to, from.view(..words))?;
        on.fcollect(&team, &to, from.view(..words))?;
        on.alltoall(&team, &to, &from, words)?;
        on.alltoalls(&team, to.view(..).step_by(1), from.view(..).step_by(1), words)?;
        on.reduce(&team, ReduceOp::Sum, &to, from.view(..words))?;
        on.reducescatter(&team, ReduceOp::Max, to.view(..words), &from)
    };
    driver.calls(raw);
    on.reduce(&team, ReduceOp::Sum, &to, from.view(..1))?;
    let first = driver.calls(raw);
    // The builds that have machine code of it are releases.
    let is_loaded = n != 1 && !cfg!(debug_assertions);
    assert_eq!((!is_loaded, is_loaded), (first.contains(&"load".to_owned()), first.len() == 2), "{first:?}");
    for (words, captures) in [1, 1000, LONG, MANY].into_iter().flat_map(|words| [(words, false), (words, true)]) {
        (driver.capture)(raw, captures.into());
        call(words)?;
        (driver.capture)(raw, 0);
        let calls = driver.calls(raw);
        // The PE's own marks are no part of a graph.
        let each = if captures { 1 } else { 2 };
        assert_eq!(calls.len(), 9 * each, "{words}: {calls:?}");
        for call in calls.chunks(each) {
            let launches = call[0].starts_with("launch oxshmem_host_");
            assert!(launches && call[1..].iter().all(|mark| mark == "record"), "{words}: {calls:?}");
        }
    }
    Ok(pe.finalize()?)
}

/// `waits_on_stand_in`: a call that waits for a stream which is being captured is refused, and the
/// capture goes on. The stand-in ends a process that asks whether such a stream has ended.
pub fn waits() -> Outcome {
    let pe = init()?;
    let driver = StandIn::loaded();
    let (to, from, cells) = memory(&pe)?;
    let (raw, stream) = followed(&pe);
    let on = pe.on(&stream);
    let refused = |ended: oxshmem::Result<()>, name: &str| match ended {
        Err(Error::Device(error @ DeviceError::Capturing { .. })) => {
            assert!(error.to_string().contains(&format!("{name} is being captured")), "{error}");
        }
        other => panic!("{name}: {other:?}"),
    };
    (driver.capture)(raw, 1);
    on.put(&to, &from, 0)?;
    refused(on.synchronize(), &format!("stream {raw:p} of the program"));
    refused(pe.synchronize_device(), "a stream of GPU 0");
    // Calls that wait for other streams go on, and so do those that wait for none.
    pe.synchronize()?;
    pe.quiet()?;
    pe.free(pe.alloc::<u64>(1)?)?;
    let team = pe.team_world().split_strided(&pe, 0, 1, 1)?.unwrap();
    on.team_sync(&team)?;
    team.destroy(&pe)?;
    (driver.capture)(raw, 0);
    on.synchronize()?;
    pe.synchronize_device()?;

    let own = pe.gpu().unwrap().stream.cast();
    (driver.capture)(own, 1);
    let team = pe.team_world();
    refused(pe.synchronize(), "the PE's own stream");
    refused(pe.on(&pe.stream()).synchronize(), "the PE's own stream");
    refused(pe.quiet(), "the PE's own stream");
    refused(pe.barrier(&team), "the PE's own stream");
    refused(pe.put(&to, &[1], 0), "the PE's own stream");
    refused(pe.get_vec(to.view(..1), 0).map(drop), "the PE's own stream");
    refused(pe.atomic(cells.at(0), 0).fetch().map(drop), "the PE's own stream");
    (driver.capture)(own, 0);
    pe.synchronize()?;
    Ok(pe.finalize()?)
}
