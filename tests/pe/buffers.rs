//! Memory of the program that is registered as the local side of transfers.

use std::ffi::c_void;

use oxshmem::{BufferError, Error, Operations, RawMemory};

use crate::Outcome;
use crate::rig::{Rig, mix};

oxshmem::include_module!(BUFFERS, "buffers");

/// Bytes of the round trip: more than a chunk of the heap has, so that transfers are cut.
const BYTES: usize = 5 << 20;
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
    let round_trip = |round: u64| -> Result<Option<u64>, Box<dyn std::error::Error>> {
        let before = rig.pe.hca_counters();
        let args = (&inbox, from as u64, to as u64, BYTES as u64, &signal, next as i32);
        rig.run_linear("buffer_round_trip", 1, THREADS, args)?;
        // SAFETY: the kernel has ended; the vectors are used through these pointers meanwhile.
        let (sent, got) = unsafe {
            (std::slice::from_raw_parts(from.cast::<u8>(), BYTES), std::slice::from_raw_parts(to.cast::<u8>(), BYTES))
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
        round_trip(round)?
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
        let registered = round_trip(round)?;
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
        let again = round_trip(round)?;
        assert!(
            again.zip(unregistered).is_none_or(|(again, before)| again >= before / 2),
            "{again:?} {unregistered:?}"
        );
    }

    // As many as there can be, each of a page of its own; then places are used again.
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
