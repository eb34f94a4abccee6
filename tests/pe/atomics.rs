//! Atomics: values and contention.

use bytemuck::Pod;
use oxshmem::{Error, HeapError, Operations, Path, SymmetricSlice};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(ATOMICS, "atomics");

/// `atomic_values [PART]`: runs one in PART of the steps.
pub fn values(args: &[String]) -> Outcome {
    let part: u32 = args.first().map_or(Ok(1), |text| text.parse())?;
    let rig = Rig::new(&ATOMICS)?;
    for (blocks, threads, steps) in [(1, 1, 400 / part), (2, 40, 20 / part)] {
        let words = rig.pe.alloc::<u64>(rig.n_pes() * (blocks * threads) as usize * 6)?;
        rig.run_linear("atomic_values", blocks, threads, (&words, steps, u64::from(threads), rig.report()))?;
        rig.pe.barrier_all()?;
    }
    rig.finish()
}

/// Fields of `Contended` in `kernels/atomics.cu`.
const ADDED: usize = 0;
const INCREMENTS: usize = 1;
const TICKETS: usize = 2;
const BITS_SET: usize = 3;
const BITS_CLEARED: usize = 4;
const TOGGLED: usize = 5;
const SWAPPED: usize = 6;
const COMPARED: usize = 7;

trait Word: Pod + Into<i64> {
    const ALL: Self;
    fn wrap(value: i64) -> i64;
}

impl Word for i32 {
    const ALL: Self = -1;
    fn wrap(value: i64) -> i64 {
        i64::from(value as i32)
    }
}

impl Word for i64 {
    const ALL: Self = -1;
    fn wrap(value: i64) -> i64 {
        value
    }
}

fn contend<T: Word>(rig: &Rig, kernel: &str, home: usize, blocks: u32, threads: u32, times: u32) -> Outcome {
    let everyone = rig.n_pes() as i64 * i64::from(blocks * threads);
    let calls = everyone * i64::from(times);
    let words: SymmetricSlice<T> = rig.pe.alloc(8)?;
    rig.pe.write(words.view(BITS_CLEARED..), &[T::ALL])?;
    let claims = rig.pe.alloc::<u32>(calls as usize)?;
    let out: SymmetricSlice<T> = rig.pe.alloc(1)?;
    rig.pe.barrier_all()?;
    rig.run_linear(kernel, blocks, threads, (&words, &claims, &out, home as i32, times, rig.report()))?;
    rig.pe.barrier_all()?;
    if rig.me() == home {
        let seen: Vec<i64> = rig.pe.read(words.view(..8))?.into_iter().map(Into::into).collect();
        let wanted = |what: &str, index: usize, value: i64| {
            assert_eq!(seen[index], T::wrap(value), "{kernel} at PE {home}: {what} after {calls} calls");
        };
        wanted("sum", ADDED, 2 * calls);
        wanted("increments", INCREMENTS, calls);
        wanted("tickets", TICKETS, calls);
        wanted("compare and swap", COMPARED, 7 * calls);
        let width = 8 * size_of::<T>() as i64;
        let touched = if everyone >= width { T::ALL.into() } else { (1 << everyone) - 1 };
        wanted("or", BITS_SET, touched);
        wanted("and", BITS_CLEARED, !touched);
        // Bit b was toggled as often as there are threads with that bit, modulo 2.
        let toggled = (0..everyone).fold(0i64, |bits, rank| bits ^ (1i64 << (rank % width)));
        wanted("xor", TOGGLED, toggled);
        let swapped_in: i64 = (1..=calls).sum();
        let swapped_out: i64 = rig.pe.read(out.view(..1))?[0].into();
        assert_eq!(
            T::wrap(swapped_out.wrapping_add(seen[SWAPPED])),
            T::wrap(swapped_in),
            "{kernel}: swap lost or doubled a value"
        );
        for (ticket, claims) in rig.pe.read(claims.view(..calls as usize))?.into_iter().enumerate() {
            assert_eq!(claims, 1, "{kernel}: ticket {ticket} was drawn {claims} times");
        }
    }
    rig.pe.barrier_all()?;
    Ok(())
}

/// `atomic_contention [TIMES]`: how often each thread calls each of them.
pub fn contention(args: &[String]) -> Outcome {
    let times: u32 = args.first().map_or(Ok(4), |text| text.parse())?;
    let rig = Rig::new(&ATOMICS)?;
    for home in [0, rig.n_pes() - 1] {
        contend::<i32>(&rig, "atomic_contention32", home, 2, 40, times)?;
        contend::<i64>(&rig, "atomic_contention64", home, 3, 32, times)?;
    }
    contend::<i64>(&rig, "atomic_contention64", 0, 1, 1, 50)?;
    rig.finish()
}

/// `mixed_words HOW`: PEs that load and store to a PE and PEs that reach it over the network change
/// one word there: at the same time (`together`), with a barrier between (`apart`), or at the same
/// time where that is an error (`found`), which finalize returns. Each PE has such a word; with
/// `found` PE 0 alone.
pub fn mixed_words(args: &[String]) -> Outcome {
    const BLOCKS: u32 = 2;
    const THREADS: u32 = 40;
    const TIMES: u32 = 3;
    let how = args.first().map_or("together", String::as_str);
    let rig = Rig::new(&ATOMICS)?;
    let (me, homes) = (rig.me(), if how == "found" { 1 } else { rig.n_pes() });
    let bytes = 16 * (BLOCKS * THREADS) as usize;
    let calls = u64::from(BLOCKS * THREADS * TIMES) * rig.n_pes() as u64;
    let mut place = String::new();
    for home in 0..homes {
        let words = rig.pe.alloc::<u64>(7)?;
        let (incoming, outgoing) = (rig.pe.alloc::<u8>(bytes)?, rig.pe.alloc::<u8>(bytes)?);
        let is_near = matches!(rig.pe.path(home), Some(Path::Own | Path::LoadStore));
        for turn in [true, false] {
            if turn == (is_near || how != "apart") {
                let args = (words.view(5..), &incoming, &outgoing, home as i32, TIMES);
                rig.run_linear("mixed_words", BLOCKS, THREADS, args)?;
            }
            rig.pe.barrier_all()?;
        }
        if me == home {
            assert_eq!(rig.pe.read(&words)?, [0, 0, 0, 0, 0, 15 * calls, calls], "at PE {home}, {how}");
        }
        let Err(Error::Heap(HeapError::OutOfRange { allocation, .. })) = rig.pe.read(words.view(8..)) else {
            return Err("a view beyond the slice was read".into());
        };
        place = format!("heap offset {:#x} of PE {home} ", allocation.offset + 5 * 8);
    }
    match rig.finish() {
        Err(error) if how == "found" && me == 0 => {
            println!("{error}");
            assert!(error.to_string().contains(&place), "no `{place}` in: {error}");
            Ok(())
        }
        Ok(()) if how == "found" && me == 0 => Err("no word was reported".into()),
        ended => ended,
    }
}
