//! Safe code cannot use memory that does not belong to it: what is stale is an error that names the
//! allocation.

#![forbid(unsafe_code)]

use oxshmem::{AddressProblem, Compare, Error, HeapError, Operations, Pe, ReduceOp, SymmetricSlice};

use crate::Outcome;

/// The error of a call that must be refused.
fn refused<T: std::fmt::Debug>(result: oxshmem::Result<T>) -> HeapError {
    match result {
        Err(Error::Heap(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

/// Every call that takes a slice.
fn every_call(pe: &Pe, stale: &SymmetricSlice<u64>, good: &SymmetricSlice<u64>) -> Vec<HeapError> {
    let (world, stream) = (pe.team_world(), pe.stream());
    let on = pe.on(&stream);
    vec![
        refused(pe.read(stale)),
        refused(pe.read(stale.view(..1))),
        refused(pe.write(stale, &[1])),
        refused(pe.put(stale, &[1], 0)),
        refused(pe.put(good, stale, 0)),
        refused(pe.get(&mut [0; 8], stale, 0)),
        refused(pe.get(stale, good, 0)),
        refused(pe.get_vec(stale, 0)),
        refused(pe.put_signal(good, &[1], stale.signal(0).set(1), 0)),
        refused(pe.put_signal(stale, &[1], good.signal(0).set(1), 0)),
        refused(pe.signal(stale.signal(0).add(1), 0)),
        refused(pe.signal_wait_until(stale.signal(0), Compare::Eq, 0)),
        refused(pe.atomic(stale.at(0), 0).fetch_add(1)),
        refused(pe.ptr(stale, 0)),
        refused(on.put(stale, good, 0)),
        refused(on.put(good, stale, 0)),
        refused(on.get(good, stale, 0)),
        refused(on.signal(stale.signal(0).set(1), 0)),
        refused(on.signal_wait_until(stale.signal(0), Compare::Eq, 0)),
        refused(pe.broadcast(&world, stale, good, 0)),
        refused(pe.fcollect(&world, good, stale.view(..1))),
        refused(pe.reduce(&world, ReduceOp::Sum, stale, stale)),
    ]
}

/// Slices, streams, teams and kernels of a PE that was finalized.
pub fn earlier_pe(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let (old, old_address) = (pe.alloc::<u64>(8)?, pe.alloc::<u64>(8)?.address());
    let (stream, world) = (pe.create_stream()?, pe.team_world());
    pe.finalize()?;

    let pe = oxshmem::init()?;
    let good = pe.alloc::<u64>(8)?;
    for error in every_call(&pe, &old, &good) {
        let text = error.to_string();
        assert!(matches!(error, HeapError::EarlierPe { .. }), "{text}");
        assert!(text.contains("the allocation of 64 bytes at offset 0x") && text.contains("sound.rs:"), "{text}");
    }
    // The addresses of the heap before are not given to this one.
    let error = refused(pe.read(pe.view_at::<u64>(old_address, 8)));
    let HeapError::Address { problem: AddressProblem::EarlierHeap { allocation: Some(info) }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(info.bytes, 64, "{error}");
    let stale = [
        pe.on(&stream).quiet().unwrap_err(),
        pe.on(&stream).synchronize().unwrap_err(),
        pe.barrier(&world).unwrap_err(),
        world.split_2d(&pe, 1).unwrap_err(),
        world.destroy(&pe).unwrap_err(),
    ];
    for error in stale {
        assert!(matches!(error, Error::Stale(_)), "{error}");
        assert!(error.to_string().contains("has been finalized"), "{error}");
    }
    let error = refused(pe.free(old));
    assert!(matches!(error, HeapError::EarlierPe { .. }), "{error}");
    pe.finalize()?;

    // The same when the program has joined more often.
    for _ in 0..6 {
        let pe = oxshmem::init()?;
        assert_ne!(pe.alloc::<u64>(8)?.address(), old_address);
        let error = refused(pe.read(pe.view_at::<u64>(old_address, 8)));
        assert!(matches!(error, HeapError::Address { problem: AddressProblem::EarlierHeap { .. }, .. }), "{error}");
        pe.finalize()?;
    }
    Ok(())
}

/// Slices of memory that was freed, whose memory another allocation has taken.
pub fn freed(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let first = pe.alloc::<u64>(8)?;
    let address = first.address();
    pe.free_at(address)?;
    let second = pe.alloc::<u64>(8)?;
    assert_eq!(second.address(), address, "the memory is used again");
    for error in every_call(&pe, &first, &second) {
        let text = error.to_string();
        assert!(matches!(error, HeapError::Freed { .. }), "{text}");
        assert!(text.contains("the allocation of 64 bytes at offset 0x") && text.contains("sound.rs:"), "{text}");
    }
    let error = refused(pe.free(first));
    assert!(matches!(error, HeapError::Freed { .. }), "{error}");
    pe.barrier_all()?;
    assert_eq!(pe.read(&second)?, [0; 8], "no refused call has changed the new allocation");

    // By address.
    pe.free(second)?;
    let error = refused(pe.read(pe.view_at::<u64>(address, 8)));
    assert!(matches!(error, HeapError::Address { problem: AddressProblem::Freed(_), .. }), "{error}");
    let error = refused(pe.free_at(address));
    assert!(matches!(error, HeapError::Address { problem: AddressProblem::Freed(_), .. }), "{error}");
    let third = pe.alloc::<u32>(8)?;
    let beyond = refused(pe.read(pe.view_at::<u32>(third.address() + 16, 5)));
    assert!(matches!(beyond, HeapError::Address { problem: AddressProblem::Beyond { room: 16, .. }, .. }), "{beyond}");
    let odd = refused(pe.read(pe.view_at::<u32>(third.address() + 2, 1)));
    assert!(matches!(odd, HeapError::Address { problem: AddressProblem::Misaligned { align: 4, .. }, .. }), "{odd}");
    for address in [0, 16, u64::MAX - 3] {
        let outside = refused(pe.write(pe.view_at::<u8>(address, usize::MAX), &[1]));
        let text = outside.to_string();
        assert!(matches!(outside, HeapError::Address { problem: AddressProblem::OutsideHeap { .. }, .. }), "{text}");
        assert!(text.contains("the nearest is the allocation of 32 bytes"), "{text}");
    }
    Ok(pe.finalize()?)
}
