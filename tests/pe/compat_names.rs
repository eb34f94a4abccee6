//! Names of the compatibility layer that OxSHMEM's own tables do not have.

use oxshmem::{ContextOptions, Error, FaultKind, Operations, Sharing};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(COMPAT_NAMES, "compat_names");

/// `NVSHMEMX_QP_DEFAULT` and the handle of the context with number 0.
const DEFAULT: i32 = 1;
const FIRST: i32 = 2;

/// `compat_names`: atomics of 16 bits, maxloc, flush, the team of PEs with the same number.
pub fn names(_: &[String]) -> Outcome {
    const THREADS: u32 = 40;
    const ROUNDS: u32 = 3;
    let rig = Rig::new(&COMPAT_NAMES)?;
    let cells = rig.pe.alloc::<u16>(4)?;
    rig.run_linear("compat_half", 1, THREADS, (&cells, ROUNDS, rig.report()))?;
    rig.pe.barrier_all()?;
    let adds = THREADS * ROUNDS * rig.n_pes() as u32;
    rig.run_linear("compat_half_check", 1, 1, (&cells, adds, rig.report()))?;

    // By one exchange of packets, and by more.
    for n in [2u32, 5, 300] {
        let words = 2 * n as usize;
        let (dst, src) = (rig.pe.alloc_aligned::<u64>(words, 16)?, rig.pe.alloc_aligned::<u64>(words, 16)?);
        rig.run_linear("compat_maxloc", 1, THREADS, (&dst, &src, n, rig.report()))?;
        rig.pe.barrier_all()?;
    }

    let (dst, src) = (rig.pe.alloc::<u64>(THREADS as usize + 1)?, rig.pe.alloc::<u64>(THREADS as usize)?);
    let signal = rig.pe.alloc::<u64>(1)?;
    rig.run_linear("compat_flush", 1, THREADS, (&dst, &src, &signal, rig.report()))?;

    // Whole groups of four warps, and a last one that is not.
    for (bytes, threads) in [(1024u32, 256), (3001, 300), (1 << 20, 128)] {
        let (inbox, outbox) = (rig.pe.alloc::<u8>(bytes as usize)?, rig.pe.alloc::<u8>(bytes as usize)?);
        let (counter, arrived) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u32>(8)?);
        let args = (&inbox, &outbox, &counter, bytes, &arrived, rig.report());
        rig.run_linear("compat_library", 1, threads, args)?;
        rig.pe.barrier_all()?;
    }

    let team = rig.pe.team_same_node_pe();
    assert_eq!(team.members()[team.my_pe()], rig.me());
    // All PEs are on one node, so no other PE has the same number in its node.
    assert_eq!(team.members(), [rig.me()]);
    let (members, number) = (team.n_pes() as i32, team.my_pe() as i32);
    rig.run_linear("compat_same_node_pe", 1, 1, (members, number, rig.report()))?;
    rig.pe.barrier(&team)?;
    rig.finish()
}

/// `compat_qps`: operations by handles of queue pairs, and handles that stand for none.
pub fn qps(_: &[String]) -> Outcome {
    const BLOCKS: usize = 4;
    /// `kBlockWords` in the kernels.
    const WORDS: usize = 256;
    let rig = Rig::new(&COMPAT_NAMES)?;
    let options = |count| ContextOptions::new(Sharing::Device).count(count).depth(256);
    let contexts = rig.pe.team_world().create_contexts(&rig.pe, &options(3))?;
    assert_eq!((contexts.numbers(&rig.pe)?, contexts.numbers(&rig.pe)?), (0..3, 0..3));
    let more = rig.pe.team_world().create_contexts(&rig.pe, &options(1))?;
    assert_eq!(more.numbers(&rig.pe)?, 3..4);
    let too_many = rig.pe.team_world().create_contexts(&rig.pe, &options(1021));
    // A card may not have so many queue pairs.
    if let Ok(too_many) = too_many {
        let text = too_many.numbers(&rig.pe).unwrap_err().to_string();
        assert!(text.contains("1021 contexts need numbers, and 4 of 1024 are taken"), "{text}");
        too_many.destroy(&rig.pe)?;
    }

    for handles in [vec![DEFAULT], vec![FIRST, FIRST + 3], vec![FIRST + 1, DEFAULT, FIRST + 2]] {
        let n = handles.len() as i32;
        let handles = rig.filled(&handles)?;
        let words = || rig.pe.alloc::<u64>(BLOCKS * WORDS);
        let (inbox, outbox, back, signals) = (words()?, words()?, words()?, rig.pe.alloc::<u64>(BLOCKS)?);
        let args = (&handles, n, &inbox, &outbox, &back, &signals, rig.report());
        rig.run_linear("compat_qp", BLOCKS as u32, 40, args)?;
        rig.pe.barrier_all()?;
        let sent = rig.pe.read(&outbox)?;
        let arrived = rig.pe.read(&back)?;
        assert_eq!(arrived, sent, "what the queue pairs by handle have read back");
        rig.run_linear("compat_qp_check", BLOCKS as u32, 40, (&inbox, &signals, rig.report()))?;
        rig.pe.barrier_all()?;
    }

    // Another set's number outlives this one's.
    contexts.destroy(&rig.pe)?;
    let cell = rig.pe.alloc::<u64>(1)?;
    rig.run_linear("compat_bad_qp", 1, 1, (&cell, FIRST + 3))?;
    for (handle, expected) in [(FIRST, 0), (FIRST + 4, 4), (4711, 4709)] {
        let error = rig.run_linear("compat_bad_qp", 1, 1, (&cell, handle)).unwrap_err();
        let Error::Fault(fault) = &error else { panic!("{error}") };
        assert!(matches!(fault.kind, FaultKind::BadContextNumber { number } if number == expected), "{error}");
    }
    rig.pe.barrier_all()?;
    rig.finish()
}

/// Which block of the kernel `compat_fence` fences, its number, and how many handles of queue pairs
/// the kernel gets.
const FENCE_BY: [(&str, i32, i32); 4] = [
    ("the block that signals", 1, 0),
    ("the block that puts", 0, 0),
    ("the block that signals, by the same handle", 1, 1),
    ("the block that signals, by another handle", 1, 2),
];
const NO_FENCE: [(&str, i32, i32); 1] = [("no block", -1, 0)];

/// `compat_fence ROUNDS [none]`: prints how often a signal of one block came before the data of
/// another, with a fence in between, or without.
pub fn fence(args: &[String]) -> Outcome {
    const WORDS: usize = 375;
    let (rounds, by) = match args {
        [rounds] => (rounds, &FENCE_BY[..]),
        [rounds, none] if none == "none" => (rounds, &NO_FENCE[..]),
        _ => return Err("compat_fence ROUNDS [none]".into()),
    };
    let rounds: u32 = rounds.parse()?;
    let rig = Rig::new(&COMPAT_NAMES)?;
    let contexts =
        rig.pe.team_world().create_contexts(&rig.pe, &ContextOptions::new(Sharing::Device).count(2).depth(256))?;
    assert_eq!(contexts.numbers(&rig.pe)?, 0..2);
    let handles = rig.filled(&[FIRST, FIRST + 1])?;
    let all = rounds as usize * WORDS;
    let mut total = 0;
    for &(block, fencing, n_handles) in by {
        let (incoming, outgoing) = (rig.pe.alloc::<u64>(all)?, rig.filled(&vec![u64::MAX; all])?);
        let (signal, stale, handover) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u32>(1)?);
        rig.pe.barrier_all()?;
        let n = WORDS as u32;
        let args = (&incoming, &outgoing, n, &signal, &handover, rounds, &handles, n_handles, fencing, &stale);
        rig.run_linear("compat_fence", 3, 32, args)?;
        rig.pe.barrier_all()?;
        let found = rig.pe.read(stale.view(..1))?[0];
        println!("fence by {block}: {found}");
        total += found;
    }
    println!("stale={total}");
    rig.finish()
}

/// `compat_exit`: a kernel ends the job with a status, which every PE learns.
pub fn exit(_: &[String]) -> Outcome {
    let rig = Rig::new(&COMPAT_NAMES)?;
    let never = rig.pe.alloc::<u64>(1)?;
    if rig.me() == 0 {
        let error = rig.run_linear("compat_exit", 1, 1, (7i32, &never)).unwrap_err();
        let is_exit = |error: &Error| match error {
            Error::Fault(fault) => matches!(fault.kind, FaultKind::ExitRequested { status: 7 }),
            // The end of the job may be noticed first.
            Error::Bootstrap(_) => true,
            _ => false,
        };
        assert!(is_exit(&error), "{error}");
    } else {
        rig.pe.barrier_all().unwrap_err();
    }
    assert_eq!(rig.pe.exit_status(), Some(7));
    Ok(())
}
