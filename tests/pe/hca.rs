//! What a PE says of its HCA, and whether it gives everything back.

use std::fs;
use std::time::{Duration, Instant};

use oxshmem::bootstrap::UniqueId;
use oxshmem::config::Config;
use oxshmem::{Operations, Pe};

use crate::Outcome;

/// Far above what the kernel takes to forget a thread.
const LINGERING: Duration = Duration::from_secs(20);

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

/// Atomics of each PE on its own memory through its card, where the card does all of them: each
/// goes over a queue pair that leads to itself. PE 0 prints how long one takes.
pub fn loopback(args: &[String]) -> Outcome {
    let count: u64 = args.first().map_or(Ok(200), |text| text.parse())?;
    let pe = oxshmem::init()?;
    let word = pe.alloc::<u64>(1)?;
    let before = pe.hca_counters().map(|counters| counters.wqes);
    let begun = Instant::now();
    for expected in 0..count {
        let found = pe.atomic(word.at(0), pe.my_pe()).fetch_add(1)?;
        if found != expected {
            return Err(format!("an atomic on this PE's own memory fetched {found}, not {expected}").into());
        }
    }
    let each = begun.elapsed().as_secs_f64() * 1e6 / count as f64;
    // Where requests are counted, they show that the card has done it.
    if let (Some(before), Some(after)) = (before, pe.hca_counters().map(|counters| counters.wqes))
        && after < before + count
    {
        return Err(
            format!("{count} atomics took {} work requests: they did not go through the card", after - before).into()
        );
    }
    if pe.my_pe() == 0 {
        println!("loopback {count} atomics, each with a kernel of its own, {each:.1} us each");
    }
    pe.barrier_all()?;
    pe.finalize()?;
    Ok(())
}

/// Joins and leaves, and prints how long each took.
pub fn set_up(_: &[String]) -> Outcome {
    let begun = Instant::now();
    let pe = oxshmem::init()?;
    println!("init ms {}", begun.elapsed().as_secs_f64() * 1e3);
    let begun = Instant::now();
    pe.finalize()?;
    println!("finalize ms {}", begun.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Open files of this process, once it has no thread but this one: a thread that was joined is
/// listed for a moment longer.
fn files_without_threads() -> Result<usize, String> {
    let count = |folder: &str| fs::read_dir(folder).map(Iterator::count).map_err(|error| format!("{folder}: {error}"));
    let begin = Instant::now();
    loop {
        match count("/proc/self/task")? {
            1 => return count("/proc/self/fd"),
            threads if begin.elapsed() > LINGERING => return Err(format!("{threads} threads after {LINGERING:?}")),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
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
        pe.put(&word, &[round as u64], next)?;
        pe.barrier_all()?;
        assert_eq!(pe.read(word.view(..1))?, [round as u64]);
        pe.finalize()?;
        let files = files_without_threads().map_err(|error| format!("round {round}: {error}"))?;
        let first = *after_first.get_or_insert(files);
        if files != first {
            return Err(format!("round {round}: {files} open files, {first} after the first").into());
        }
    }
    Ok(())
}

/// `hca_recovers FIRST SECOND RANK`: joins a job of two PEs by its id, which may fail, and says how
/// that went; then joins another, which must work, and uses the card.
pub fn recovers(args: &[String]) -> Outcome {
    let [first, second, rank] = args else { return Err("hca_recovers FIRST SECOND RANK".into()) };
    let config = |id: &String| -> Result<Config, Box<dyn std::error::Error>> {
        Ok(Config::builder().unique_id(&id.parse::<UniqueId>()?, rank.parse()?, 2).env().build()?)
    };
    match Pe::with_config(config(first)?) {
        Ok(pe) => {
            pe.hca_attempts().iter().for_each(|attempt| eprintln!("attempt {attempt}"));
            pe.finalize()?;
            eprintln!("first: passed");
        }
        Err(error) => eprintln!("first: {error}"),
    }
    let pe = Pe::with_config(config(second)?)?;
    let word = pe.alloc::<u64>(1)?;
    (0..pe.n_pes()).try_for_each(|to| pe.signal(word.signal(0).add(3), to))?;
    pe.barrier_all()?;
    assert_eq!(pe.read(&word)?, [6]);
    pe.finalize()?;
    Ok(())
}
