//! What a PE says of its HCA, and whether it gives everything back.

use std::fs;

use oxshmem::Pe;
use oxshmem::config::Config;

use crate::Outcome;

/// Prints provider, path and every attempt, a line each.
pub fn report(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    println!("provider {}", pe.hca_name().unwrap_or("none"));
    let peer = (pe.my_pe() + 1) % pe.n_pes();
    println!("path {:?}", pe.path(peer).ok_or("no such PE")?);
    for attempt in pe.hca_attempts() {
        println!("attempt {attempt}");
    }
    pe.finalize()?;
    Ok(())
}

/// Threads and open files of this process.
fn held() -> std::io::Result<(usize, usize)> {
    Ok((fs::read_dir("/proc/self/task")?.count(), fs::read_dir("/proc/self/fd")?.count()))
}

/// Joins and leaves, as often as the argument says: nothing is left of any round.
pub fn rounds(args: &[String]) -> Outcome {
    let rounds: usize = args.first().map_or(Ok(10), |text| text.parse())?;
    let config = Config::from_env()?;
    let mut after_first = None;
    for round in 0..rounds {
        let pe = Pe::with_config(config.clone())?;
        let word = pe.alloc::<u64>(1)?;
        let next = (pe.my_pe() + 1) % pe.n_pes();
        pe.put(&word, 0, &[round as u64], next)?;
        pe.barrier_all()?;
        assert_eq!(pe.read_local(&word, 0..1)?, [round as u64]);
        pe.finalize()?;
        let held = held()?;
        let first = *after_first.get_or_insert(held);
        if held != first {
            return Err(format!("round {round}: {held:?} threads and files, {first:?} after the first").into());
        }
    }
    Ok(())
}
