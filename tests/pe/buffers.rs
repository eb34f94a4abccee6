//! Memory of the program that is registered as the local side of transfers.

use std::ffi::c_void;

use oxshmem::{BufferError, Error, Operations, RawMemory};

use crate::Outcome;
use crate::rig::{Rig, mix};

oxshmem::include_module!(BUFFERS, "buffers");

/// Bytes of the round trip: more than a chunk of the heap has, so that transfers are cut.
const BYTES: usize = 5 << 20;
/// Bytes of it that are not registered: thousands of pieces.
const FEW_BYTES: usize = 96 << 10;
const THREADS: u32 = 64;

/// Returns the text of a refused call.
fn refused(result: oxshmem::Result<()>) -> String {
    match result {
        Err(Error::Buffer(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// `buffers`: round trips with memory that is registered, and that is not any more; what is
/// refused.
pub fn buffers(_: &[String]) -> Outcome {
    let rig = Rig::new(&BUFFERS)?;
    let (me, next) = (rig.me() as u64, (rig.me() + 1) % rig.n_pes());
    let (inbox, signal) = (rig.pe.alloc::<u8>(BYTES)?, rig.pe.alloc::<u64>(1)?);
    // At odd addresses.
    let mut out: Vec<u8> = (0..BYTES as u64 + 3).map(|i| mix(me << 32 | i) as u8).collect();
    let mut back = vec![0u8; BYTES + 5];
    let at = |memory: &mut [u8], skip: usize| -> *mut c_void { memory[skip..].as_mut_ptr().cast() };
    let (from, to) = (at(&mut out, 3), at(&mut back, 5));

    // Returns how many work requests the round trip took, where that is counted.
    let round_trip = |round: u64, bytes: usize| -> Result<Option<u64>, Box<dyn std::error::Error>> {
        let before = rig.pe.hca_counters();
        let args = (&inbox, from as u64, to as u64, bytes as u64, &signal, next as i32);
        rig.run_linear("buffer_round_trip", 1, THREADS, args)?;
        // SAFETY: the kernel has ended; the vectors are used through these pointers meanwhile.
        let (sent, got) = unsafe {
            (std::slice::from_raw_parts(from.cast::<u8>(), bytes), std::slice::from_raw_parts(to.cast::<u8>(), bytes))
        };
        assert!(sent == got, "round {round}: what came back is not what was sent");
        rig.pe.signal_wait_until(signal.signal(0), oxshmem::Compare::Ge, round)?;
        rig.pe.barrier_all()?;
        let after = rig.pe.hca_counters();
        Ok(before.zip(after).map(|(before, after)| after.wqes - before.wqes))
    };

    // A GPU does not reach pageable memory, before it is registered.
    let is_cpu = rig.pe.gpu().is_none();
    let mut round = 0;
    let unregistered = if is_cpu {
        round += 1;
        round_trip(round, FEW_BYTES)?
    } else {
        None
    };
    // SAFETY: the vectors live until the end of the function.
    unsafe {
        rig.pe.register_buffer(from, BYTES)?;
        rig.pe.register_buffer(to, BYTES)?;
    }
    assert_eq!(rig.pe.registered_buffers().len(), 2);
    for _ in 0..2 {
        round += 1;
        let registered = round_trip(round, BYTES)?;
        if let (Some(registered), Some(unregistered)) = (registered, unregistered)
            && rig.pe.path(next) == Some(oxshmem::Path::Ibgda)
        {
            // Pieces end with chunks of the heap; what is not registered travels in small ones.
            assert!(registered < 100 && unregistered > 1000, "{registered} and {unregistered} work requests");
        }
    }
    // The host's operations use it too.
    // SAFETY: it outlives the calls.
    rig.pe.put(inbox.view(..1000), unsafe { RawMemory::new(from, 1000) }, next)?;
    // SAFETY: as above, and nothing else uses it.
    rig.pe.get(unsafe { RawMemory::new(to, 1000) }, inbox.view(..1000), next)?;
    // SAFETY: the calls have ended.
    let equal = unsafe {
        std::slice::from_raw_parts(from.cast::<u8>(), 1000) == std::slice::from_raw_parts(to.cast::<u8>(), 1000)
    };
    assert!(equal);
    rig.pe.barrier_all()?;

    // SAFETY: these are refused, or the memory is not used.
    let register = |at: *mut c_void, bytes: usize| unsafe { rig.pe.register_buffer(at, bytes) };
    let text = refused(register(from, 1));
    assert!(
        text.contains(&format!("1 bytes at {:#x} overlap the registered {BYTES} bytes at {0:#x}", from as u64)),
        "{text}"
    );
    assert!(refused(register(std::ptr::null_mut(), 8)).contains("begins at null"));
    assert!(refused(register(to, 0)).contains("has no bytes"));
    assert!(refused(register(to, usize::MAX)).contains("ends beyond all addresses"));
    let heap = inbox.address() as *mut c_void;
    assert!(refused(register(heap, 64)).contains("are memory of the symmetric heap, which is registered already"));
    assert!(refused(rig.pe.unregister_buffer(heap)).contains("no registered buffer begins at"));
    // The first page is never mapped.
    let text = refused(register(64 as *mut c_void, 64));
    assert!(text.contains("64 bytes at 0x40 cannot be registered: "), "{text}");

    rig.pe.unregister_buffer(from)?;
    let Err(Error::Buffer(BufferError::Unknown { nearest: Some(nearest), .. })) = rig.pe.unregister_buffer(from) else {
        panic!("it is registered no more")
    };
    assert_eq!(nearest.address, to as u64);
    rig.pe.unregister_all_buffers()?;
    assert!(rig.pe.registered_buffers().is_empty());
    if is_cpu {
        round += 1;
        let again = round_trip(round, FEW_BYTES)?;
        assert!(
            again.zip(unregistered).is_none_or(|(again, before)| again >= before / 2),
            "{again:?} {unregistered:?}"
        );
    }

    // The table is filled, with a page for each range; then places are used again.
    let page = rustix::param::page_size();
    let mut many = vec![0u8; 66 * page];
    let first = many.as_mut_ptr().align_offset(page);
    let nth = |many: &mut [u8], i: usize| -> *mut c_void { many[first + i * page..].as_mut_ptr().cast() };
    for i in 0..63 {
        register(nth(&mut many, i), page)?;
    }
    let text = refused(register(nth(&mut many, 63), page));
    assert!(text.contains("would be registered range 64; a PE has at most 63"), "{text}");
    rig.pe.unregister_buffer(nth(&mut many, 17))?;
    register(nth(&mut many, 63), page)?;
    rig.pe.barrier_all()?;
    // What is registered at the end goes with the PE.
    rig.finish()
}

/// `symmetric_buffers`: memory of the program in the symmetric heap, again and again, beside memory
/// of `alloc`; what is refused.
pub fn symmetric(_: &[String]) -> Outcome {
    const PAGES: usize = 64;
    let rig = Rig::new(&BUFFERS)?;
    if rig.pe.gpu().is_some() {
        println!("skipped: memory of cuMemCreate is tried by tests/compat");
        return rig.finish();
    }
    let page = rustix::param::page_size();
    let (me, n) = (rig.me(), rig.n_pes());
    let next = (me + 1) % n;
    // Returns whole pages, with a number in each.
    let pages = |count: usize| -> Result<*mut u8, Box<dyn std::error::Error>> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), count * page, prot, MapFlags::PRIVATE) }?;
        for i in 0..count {
            // SAFETY: inside the mapping.
            unsafe { at.cast::<u8>().add(i * page).write((me * 16 + i) as u8) };
        }
        Ok(at.cast())
    };
    let chunk = usize::try_from(rig.pe.config().heap_chunk().0)?;
    // SAFETY: mapped memory of the program, which stays mapped.
    let register = |at: *mut u8, bytes: usize| unsafe { rig.pe.register_symmetric(at.cast(), bytes) };
    let first = pages(PAGES)?;
    let (out, signal) = (rig.filled(&[me as u8 + 1; 3])?, rig.pe.alloc::<u64>(1)?);
    for round in 1..=3u64 {
        let inbox = register(first, PAGES * page)?;
        // What was in it stays.
        assert_eq!(
            rig.pe.read(inbox.view((PAGES - 1) * page..(PAGES - 1) * page + 1))?[0],
            (me * 16 + PAGES - 1) as u8
        );
        // More than a chunk of the heap has.
        let large = pages(chunk / page + 3)?;
        let further = register(large, chunk + 3 * page)?;
        let across = further.view(chunk - 1..chunk + 2);
        rig.pe.put(across, &out, next)?;
        rig.pe.put_signal(inbox.view(5..8), &out, signal.signal(0).add(1), next)?;
        rig.pe.signal_wait_until(signal.signal(0), oxshmem::Compare::Ge, round)?;
        rig.pe.barrier_all()?;
        let from = ((me + n - 1) % n) as u8 + 1;
        // SAFETY: the program's own view of the same memory.
        let (seen, crossed) = unsafe {
            (std::slice::from_raw_parts(first.add(5), 3), std::slice::from_raw_parts(large.add(chunk - 1), 3))
        };
        assert_eq!((seen, crossed), (&[from; 3][..], &[from; 3][..]));
        rig.pe.barrier_all()?;
        // A kernel sends from it and fetches to it.
        let half = PAGES * page / 2;
        let args = (&inbox, further.address(), further.address() + half as u64, half as u64, &signal, next as i32);
        rig.run_linear("buffer_round_trip", 1, THREADS, args)?;
        rig.pe.signal_wait_until(signal.signal(0), oxshmem::Compare::Ge, round + 1)?;
        rig.pe.barrier_all()?;
        rig.pe.write(&signal, &[round])?;
        assert_eq!(rig.pe.ptr(inbox.at(0), me)?, Some(inbox.address() as *mut u8));
        let beside = rig.pe.alloc::<u8>(3 * chunk)?;
        let text = rig.pe.free_at(inbox.address()).unwrap_err().to_string();
        assert!(text.contains("is memory of the program; give it back with Pe::unregister_symmetric"), "{text}");
        let text = rig.pe.unregister_symmetric_at(beside.address()).unwrap_err().to_string();
        assert!(text.contains("is not memory of the program; give it back with Pe::free"), "{text}");
        rig.pe.free(beside)?;
        let address = inbox.address();
        rig.pe.unregister_symmetric(inbox)?;
        let text = rig.pe.put(rig.pe.view_at::<u8>(address, 1), &[1], next).unwrap_err().to_string();
        assert!(text.contains("which was freed"), "{text}");
        // The other one is as it was.
        rig.pe.put(further.view(..3), &out, next)?;
        rig.pe.barrier_all()?;
        // SAFETY: as above.
        assert_eq!(unsafe { std::slice::from_raw_parts(large, 3) }, [from; 3]);
        rig.pe.barrier_all()?;
        rig.pe.unregister_symmetric_at(further.address())?;
        for i in 0..PAGES {
            // SAFETY: as above.
            unsafe { first.add(i * page).write((me * 16 + i) as u8) };
        }
        rig.pe.barrier_all()?;
    }

    // Refused on every PE, wherever it is wrong.
    let text = register(first.wrapping_add(usize::from(me == n - 1)), PAGES * page).unwrap_err().to_string();
    let pages_text = "it is not whole pages of";
    assert!(
        text.contains(pages_text) && (me == n - 1 || text.contains(&format!("PE {} cannot register", n - 1))),
        "{text}"
    );
    if n > 1 {
        let text = register(first, (PAGES - usize::from(me == 1)) * page).unwrap_err().to_string();
        assert!(text.contains("register_symmetric of"), "{text}");
        // Some PEs call something else.
        let refused =
            if me == 0 { register(first, PAGES * page).map(|_| ()) } else { rig.pe.alloc::<u8>(64).map(|_| ()) };
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("register_symmetric") && text.contains("alloc"), "{text}");
        return Ok(());
    }
    // More than the heap has addresses for.
    let whole = usize::try_from(rig.pe.config().heap_max().0)?;
    let text = register(pages(whole / page)?, whole).unwrap_err().to_string();
    assert!(text.contains("the symmetric heap is exhausted"), "{text}");
    rig.finish()
}

/// `scarce_descriptors`: where one PE has no room for the descriptor of another one's memory, no PE
/// registers anything, and all can register afterwards.
pub fn scarce(_: &[String]) -> Outcome {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const BYTES: usize = 1 << 16;
    let rig = Rig::new(&BUFFERS)?;
    if rig.pe.gpu().is_some() {
        println!("skipped: memory of the host is none of a GPU's symmetric heap");
        return rig.finish();
    }
    let (me, n) = (rig.me(), rig.n_pes());
    let layout = std::alloc::Layout::from_size_align(BYTES, BYTES)?;
    // SAFETY: the layout has a size.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: it is freed at the end.
    let register = || unsafe { rig.pe.register_symmetric(at.cast(), BYTES) };
    let before = getrlimit(Resource::Nofile);
    let mut fill = Vec::new();
    if me == 1 {
        setrlimit(Resource::Nofile, Rlimit { current: Some(200), ..before })?;
        while let Ok(file) = std::fs::File::open("/dev/null") {
            fill.push(file);
        }
    }
    // One more descriptor for each call, until there are enough for the PE's own memory, and not
    // for that of all others.
    let reason = loop {
        let text = register().unwrap_err().to_string();
        if !text.contains("Too many open files") {
            break text;
        }
        fill.pop();
    };
    assert!(reason.contains("no free file descriptor"), "{reason}");
    drop(fill);
    setrlimit(Resource::Nofile, before)?;
    for round in 1..=3 {
        let inbox = register()?;
        rig.pe.put(inbox.view(..1), &rig.filled(&[me as u8 + round])?, (me + 1) % n)?;
        rig.pe.barrier_all()?;
        // SAFETY: the memory that was allocated above.
        assert_eq!(unsafe { at.read() }, ((me + n - 1) % n) as u8 + round);
        rig.pe.barrier_all()?;
        rig.pe.unregister_symmetric(inbox)?;
    }
    // SAFETY: as it was allocated; no PE has it any more.
    unsafe { std::alloc::dealloc(at, layout) };
    rig.finish()
}
