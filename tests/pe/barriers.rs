//! barrier_all, sync_all, quiet, fence, ptr.

use oxshmem::{Operations, Path};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(BARRIERS, "barriers");

pub fn barriers(args: &[String]) -> Outcome {
    let rounds: u32 = args.first().map_or(Ok(40), |text| text.parse())?;
    let rig = Rig::new(&BARRIERS)?;
    let flags = rig.pe.alloc::<u32>(rig.n_pes())?;
    let own = rig.pe.alloc::<u32>(1)?;
    let mut first = 1u32;
    for scope in 0..3u32 {
        for sync in 0..2u32 {
            for threads in [1, 32, 50] {
                rig.run_linear("barrier_rounds", 1, threads, (&flags, &own, first, rounds, scope, sync, rig.report()))?;
                first += rounds;
                // The host's barriers are of the same sequence.
                rig.pe.barrier_all()?;
                rig.pe.sync_all()?;
            }
        }
    }
    let data = rig.pe.alloc::<u32>(rig.n_pes() * 64)?;
    rig.run_linear("quiet_rounds", 1, 64, (&data, 4u32, rig.report()))?;
    rig.pe.barrier_all()?;
    rig.finish()
}

/// A kernel puts and ends, the host waits, and a barrier makes visible what was put: to the PE
/// before this one, which of two nodes of two PEs learns of that from others. The host forgets
/// which queue pairs are idle when it waits.
pub fn barrier_after_wait(args: &[String]) -> Outcome {
    const WORDS: u32 = 128;
    let rounds: u64 = args.first().map_or(Ok(200), |text| text.parse())?;
    let rig = Rig::new(&BARRIERS)?;
    let (inbox, words) = (rig.pe.alloc::<u64>(WORDS as usize)?, rig.pe.alloc::<u64>(WORDS as usize)?);
    let before = u32::try_from((rig.me() + rig.n_pes() - 1) % rig.n_pes())?;
    for round in 1..=rounds {
        rig.run_linear("put_alone", 1, 1, (&inbox, &words, WORDS, round, before))?;
        rig.pe.barrier_all()?;
        assert_eq!(rig.pe.read(&inbox)?, [round; WORDS as usize], "PE {} after barrier {round}", rig.me());
        rig.pe.barrier_all()?;
    }
    rig.finish()
}

/// `fence [ROUNDS]`.
pub fn fence(args: &[String]) -> Outcome {
    let rounds: u64 = args.first().map_or(Ok(2000), |text| text.parse())?;
    let rig = Rig::new(&BARRIERS)?;
    let (first, second) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u64>(1)?);
    rig.run_linear("fence_rounds", 2, 1, (&first, &second, rounds, rig.report()))?;
    rig.finish()
}

pub fn pointers(_: &[String]) -> Outcome {
    let rig = Rig::new(&BARRIERS)?;
    let direct = |pe: &usize| matches!(rig.pe.path(*pe), Some(Path::Own | Path::LoadStore));
    let reachable = (0..rig.n_pes()).filter(direct).fold(0u64, |mask, pe| mask | 1 << pe);
    assert!(reachable >> rig.me() & 1 == 1);
    assert_eq!(rig.pe.path(rig.n_pes()), None);
    let data = rig.pe.alloc::<i32>(rig.n_pes())?;
    rig.run_linear("pointers", 1, 1, (&data, reachable, rig.report()))?;
    rig.finish()
}
