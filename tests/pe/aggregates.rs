//! Aggregating contexts: every operation to every member, order, what `quiet` promises, counts, and
//! what is refused or lost.

use std::time::Duration;

use oxshmem::{
    Aggregate, AggregateError, AggregateOptions, Error, FaultKind, HeapError, Operations, Path, SymmetricSlice, Team,
    TeamError, abi,
};
use rustix::process::{Signal, getpid, kill_process};

use crate::Outcome;
use crate::rig::{Rig, misses_last};

oxshmem::include_module!(AGGREGATES, "aggregates");

/// `sizeof(Part)` and `sizeof(Shared)` in `kernels/aggregates.cu`, in words.
const PART: usize = 896 / 8;
const SHARED: usize = 40 / 8;
/// Threads of the block that sends.
const THREADS: u32 = 64;
/// What nothing but `flush`, `quiet` and a full segment sends.
const NEVER: Duration = Duration::from_secs(60);

/// Small segments, so that records fill many of them.
fn small() -> AggregateOptions {
    AggregateOptions::new().segment(1024)
}

struct Made {
    context: Aggregate,
    memory: SymmetricSlice<u64>,
}

fn make(rig: &Rig, team: &Team, options: &AggregateOptions) -> oxshmem::Result<Made> {
    // Teams differ in what they need, and all PEs allocate the same: enough for any team.
    let memory = rig.pe.alloc::<u64>(options.words(&rig.pe.team_world())? * rig.n_pes())?;
    let context = team.create_aggregate(&rig.pe, &memory, options)?;
    Ok(Made { context, memory })
}

fn end(rig: &Rig, made: Made) -> oxshmem::Result<()> {
    made.context.destroy(&rig.pe)?;
    rig.pe.barrier_all()?;
    rig.pe.free(made.memory)
}

/// `aggregates`: over the world and teams, each member sends to every member, itself included.
pub fn aggregates(_: &[String]) -> Outcome {
    let rig = Rig::new(&AGGREGATES)?;
    let mut teams = vec![rig.pe.team_world()];
    if rig.n_pes() > 2 {
        let (row, column) = teams[0].split_2d(&rig.pe, 2)?;
        teams.extend([column, row]);
    }
    for team in &teams {
        for options in [small(), AggregateOptions::new().age(Duration::ZERO)] {
            exchange(&rig, team, &options)?;
            completes(&rig, team, &options)?;
        }
    }
    rig.finish()
}

fn exchange(rig: &Rig, team: &Team, options: &AggregateOptions) -> oxshmem::Result<()> {
    let made = make(rig, team, options)?;
    let (n, me) = (team.n_pes(), team.my_pe());
    let parts = rig.pe.alloc_aligned::<u64>(PART * rig.n_pes(), 128)?;
    let shared = rig.pe.alloc_aligned::<u64>(SHARED, 128)?;
    let (source, tail) = (rig.pe.alloc::<u8>(1024)?, rig.pe.alloc::<u64>(4)?);
    rig.pe.write(&shared, &[0, 0, u64::MAX, 0, 0])?;
    rig.pe.barrier_all()?;
    for turn in 0..3u32 {
        for peer in 0..n {
            // Members begin with different ones.
            let peer = (me + peer) % n;
            rig.run_linear("aggregate_fill", 1, THREADS, (&source, me as i32, peer as i32, turn))?;
            let args = (&made.context, &parts, &shared, &source, &tail, me as i32, peer as i32, turn);
            rig.run_linear("aggregate_send", 1, THREADS, args)?;
        }
        for from in 0..n {
            let args = (&parts, me as i32, from as i32, turn, rig.report());
            rig.run_linear("aggregate_receive", 1, THREADS, args)?;
        }
        // What the next turn overwrites has been checked.
        rig.pe.barrier(team)?;
    }
    rig.run_linear("aggregate_quiet", 1, 1, (&made.context,))?;
    rig.pe.barrier(team)?;
    let words = rig.pe.read(&shared)?;
    let (turns, n, threads) = (3, n as u64, u64::from(THREADS));
    let toggled = if turns * n % 2 == 0 { 0 } else { u64::MAX };
    // Two threads toggle each bit of the half word, so all turns leave it as it was.
    let half_sum = turns * n * threads;
    assert_eq!(words, [turns * n * threads * (threads + 1) / 2, u64::MAX, 0, toggled, half_sum]);
    assert!(made.context.unacknowledged(&rig.pe)?.by_pe.is_empty());
    end(rig, made)?;
    rig.pe.free(parts)?;
    rig.pe.free(shared)?;
    rig.pe.free(source)?;
    rig.pe.free(tail)
}

/// `quiet` returns when every store can be read at its PE; more of them than rings hold.
fn completes(rig: &Rig, team: &Team, options: &AggregateOptions) -> oxshmem::Result<()> {
    const N: usize = 1500;
    let made = make(rig, team, options)?;
    let words = rig.pe.alloc::<u64>(N * rig.n_pes())?;
    let numbers: Vec<i32> = team.members().into_iter().map(|pe| pe as i32).collect();
    let pes = rig.pe.alloc::<i32>(rig.n_pes())?;
    rig.pe.write(pes.view(..numbers.len()), &numbers)?;
    let args = (&made.context, &words, N as u32, team.my_pe() as i32, team.n_pes() as i32, &pes, rig.report());
    rig.run_linear("aggregate_complete", 1, THREADS, args)?;
    end(rig, made)?;
    rig.pe.free(words)?;
    rig.pe.free(pes)
}

/// `aggregate_counts`: work requests by formula. Each PE puts as many words to each PE of another
/// node.
pub fn counts(_: &[String]) -> Outcome {
    const N: u64 = 3000;
    let rig = Rig::new(&AGGREGATES)?;
    let world = rig.pe.team_world();
    let made = make(&rig, &world, &small().age(NEVER))?;
    let words = rig.pe.alloc::<u64>(N as usize)?;
    let node = rig.pe.team_shared().members();
    let far: Vec<usize> = (0..rig.n_pes()).filter(|pe| !node.contains(pe)).collect();
    let before = rig.pe.hca_counters().map_or(0, |counters| counters.wqes);
    for pe in &far {
        rig.run_linear("aggregate_put_words", 1, 32, (&made.context, &words, N as u32, *pe as i32))?;
    }
    rig.run_linear("aggregate_quiet", 1, 1, (&made.context,))?;
    // The PEs meet without a work request.
    let _met = rig.pe.alloc::<u64>(1)?;
    // Two nodes of as many PEs: the member 1 - node of each node has its ring and its inbox.
    let pes = node.len() as u64;
    let owner = node.iter().position(|pe| *pe == rig.me()) == Some(usize::from(node[0] == 0) % node.len());
    let bytes = if owner { pes * pes * N * 16 } else { 0 };
    // All acknowledgements have left; the card has counted them once they are complete.
    rig.run_linear("aggregate_quiet", 1, 1, (&made.context,))?;
    let counters = made.context.counters(&rig.pe)?;
    let wqes = rig.pe.hca_counters().map_or(0, |counters| counters.wqes) - before;
    let least = bytes.div_ceil(1024);
    // Each quiet may send what has gathered so far, twice.
    let most = least + if owner { 2 * pes } else { 0 };
    assert_eq!((counters.bytes, counters.records), (bytes, bytes / 16));
    assert!((least..=most).contains(&counters.writes), "{} writes for {bytes} bytes", counters.writes);
    assert!((least.min(1)..=most).contains(&counters.acknowledgements), "{counters:?}");
    assert_eq!(wqes, counters.work_requests(), "{counters:?}");
    let direct = pes * pes * N;
    println!("{wqes} work requests at this PE, {direct} of the node without aggregation");
    assert!(wqes * 50 <= direct.max(1) * 3, "a segment of 64 records takes three requests");
    rig.pe.barrier_all()?;
    end(&rig, made)?;
    rig.finish()
}

/// `aggregate_ages`: a record leaves by itself, and another one when its segment is full.
pub fn ages(_: &[String]) -> Outcome {
    let rig = Rig::new(&AGGREGATES)?;
    let world = rig.pe.team_world();
    let words = rig.pe.alloc::<u64>(64)?;
    let peer = (rig.me() + rig.n_pes() / 2) % rig.n_pes();
    for (options, n) in [(small().age(Duration::from_millis(2)), 1u32), (small().age(NEVER), 64)] {
        let made = make(&rig, &world, &options)?;
        rig.pe.write(&words, &[0; 64])?;
        rig.pe.barrier_all()?;
        rig.run_linear("aggregate_put_words", 1, 1, (&made.context, &words, n, peer as i32))?;
        rig.run_linear("aggregate_await", 1, 1, (words.view(n as usize - 1..), u64::from(n)))?;
        rig.pe.barrier_all()?;
        end(&rig, made)?;
    }
    rig.finish()
}

/// `aggregate_errors`: what is refused, and what stays as it was.
pub fn errors(_: &[String]) -> Outcome {
    let rig = Rig::new(&AGGREGATES)?;
    let world = rig.pe.team_world();
    let refused = |made: oxshmem::Result<Aggregate>| match made {
        Err(Error::Aggregate(error)) => error,
        other => panic!("{other:?}"),
    };
    let options = small();
    let memory = rig.pe.alloc::<u64>(options.words(&world)?)?;
    let create = |options: &AggregateOptions| world.create_aggregate(&rig.pe, &memory, options);

    assert!(matches!(refused(create(&small().segment(1000))), AggregateError::Segment { bytes: 1000, .. }));
    assert!(matches!(refused(create(&small().age(2 * NEVER))), AggregateError::Age { .. }));
    assert!(matches!(refused(create(&small().segment(65536))), AggregateError::Memory { .. }));
    // One PE that asks for something else is an error at all.
    if rig.n_pes() > 1 {
        let age = Duration::from_millis(rig.me().min(1) as u64);
        assert!(matches!(refused(create(&small().age(age))), AggregateError::Mismatch { .. }));
    }

    let context = create(&options)?;
    assert!(matches!(refused(create(&options)), AggregateError::InUse { number } if number == context.number()));
    let HeapError::Aggregates { number, .. } = heap_error(rig.pe.free_at(memory.address())) else { panic!() };
    assert_eq!(number, context.number());

    if rig.pe.gpu().is_none() {
        on_memory_of_the_program(&rig, &options)?;
    }
    let words = rig.pe.alloc::<u64>(8)?;
    let fault = |result: oxshmem::Result<()>| match result {
        Err(Error::Fault(fault)) => fault.kind,
        other => panic!("{other:?}"),
    };
    let put =
        |address: u64, pe: i32| rig.run_linear("aggregate_put_words", 1, 1, (&context, address as *mut u64, 1u32, pe));
    let n = rig.n_pes() as i32;
    assert!(matches!(fault(put(words.address(), n)), FaultKind::MemberOutOfRange { pe, .. } if pe == n));
    let peer = (rig.me() + rig.n_pes() / 2) % rig.n_pes();
    if peer != rig.me() {
        assert!(matches!(fault(put(4096, peer as i32)), FaultKind::AddressOutsideHeap { .. }));
        // A GPU's own stores end the kernel there.
        if rig.pe.gpu().is_none() || rig.pe.path(peer) != Some(Path::LoadStore) {
            assert!(matches!(fault(put(words.address() + 4, peer as i32)), FaultKind::Unaligned { .. }));
        }
    }
    // It goes on after errors.
    put(words.address(), peer as i32)?;
    rig.run_linear("aggregate_quiet", 1, 1, (&context,))?;
    rig.pe.barrier_all()?;
    assert_eq!(rig.pe.read(words.at(0))?, [1]);

    let again = rig.pe.aggregate_of(context.number())?;
    context.destroy(&rig.pe)?;
    let stale = rig.run_linear("aggregate_quiet", 1, 1, (&again,));
    assert!(matches!(heap_error(stale), HeapError::Aggregate(AggregateError::Destroyed)));
    assert!(matches!(rig.pe.aggregate_of(again.number()), Err(Error::Aggregate(AggregateError::Unknown { .. }))));
    assert!(matches!(again.destroy(&rig.pe), Err(Error::Aggregate(AggregateError::Destroyed))));

    // What is outstanding is completed.
    rig.pe.barrier_all()?;
    let context = create(&options)?;
    rig.run_linear("aggregate_put_words", 1, 1, (&context, words.view(1..), 3u32, peer as i32))?;
    context.destroy(&rig.pe)?;
    rig.pe.barrier_all()?;
    assert_eq!(rig.pe.read(words.view(1..4))?, [1, 2, 3]);

    // A team stays as long as it has an aggregating context.
    if let Some(team) = world.split_strided(&rig.pe, 0, 1, rig.n_pes())? {
        let handle = team.handle();
        let context = team.create_aggregate(&rig.pe, &memory, &options)?;
        let kept = team.destroy(&rig.pe);
        assert!(matches!(kept, Err(Error::Team(TeamError::Aggregates { .. }))), "{kept:?}");
        context.destroy(&rig.pe)?;
        rig.pe.team(handle)?.destroy(&rig.pe)?;
    }
    rig.pe.barrier_all()?;
    rig.pe.free(memory)?;
    rig.finish()
}

/// `aggregate_forged`: two nodes of one PE. What a program writes to the memory of an inbox is
/// applied only where it is a record of words of the heap; else it is an error.
pub fn forged(_: &[String]) -> Outcome {
    const PUT: u64 = 1;
    const ADD: u64 = 2;
    const SIGNAL_SET: u64 = 6;
    let rig = Rig::new(&AGGREGATES)?;
    let (world, options) = (rig.pe.team_world(), small());
    let memory = rig.pe.alloc_aligned::<u64>(options.words(&world)?, 128)?;
    let words = rig.pe.alloc::<u64>(2)?;
    let offset = rig.pe.allocations().iter().find(|made| made.bytes == 16).map(|made| made.offset).unwrap();
    let capacity = 1024 * abi::AGGREGATE_SEGMENTS as usize;
    let (ring, inbox) = (size_of::<abi::AggregateRing>() + capacity, size_of::<abi::AggregateInbox>() + capacity);
    // Rings and inboxes for two nodes each; the inbox has the number of the node that sends.
    let inbox = (2 * ring + (1 - rig.me()) * inbox) / 8;
    let records = inbox + size_of::<abi::AggregateInbox>() / 8;
    let header = |kind: u64, bytes: u64, offset: u64| kind << 60 | (bytes - 1) << 52 | offset;
    let last = (1 << abi::AGGREGATE_HEAP_BITS) - 8;
    let forged = [
        header(PUT, 8, last),
        header(ADD, 8, last),
        header(SIGNAL_SET, 8, last),
        header(ADD, 8, offset + 12),
        header(ADD, 4, offset + 10),
        header(ADD, 2, offset + 8),
        header(SIGNAL_SET, 4, offset + 8),
    ];
    for (turn, forged) in (1u64..).zip(forged) {
        let context = world.create_aggregate(&rig.pe, &memory, &options)?;
        // What precedes it is a record, and says when the service has come so far.
        rig.pe.write(memory.view(records..records + 4), &[header(PUT, 8, offset), turn, forged, 0])?;
        rig.pe.signal(memory.signal(inbox).set(32), rig.me())?;
        rig.run_linear("aggregate_await", 1, 1, (words.view(..1), turn))?;
        let error = context.destroy(&rig.pe).unwrap_err();
        let Error::Aggregate(AggregateError::Service { me, reason }) = &error else { panic!("{forged:#x}: {error}") };
        assert!(*me == rig.me() && reason.contains("is no record"), "{forged:#x}: {reason}");
        assert_eq!(rig.pe.read(words.view(1..))?, [0], "{forged:#x}");
        rig.pe.barrier_all()?;
    }
    rig.finish()
}

/// `aggregate_occupies [BLOCKS THREADS]`: grids that occupy the device until all PEs have completed
/// what they put, while the services of each PE have work of others. All blocks have to be resident
/// at the same time.
pub fn occupies(args: &[String]) -> Outcome {
    const EACH: u32 = 20;
    const WORDS: usize = 1024;
    let (blocks, threads) = match args {
        [blocks, threads] => (blocks.parse()?, threads.parse()?),
        _ => (4, 128),
    };
    let rig = Rig::new(&AGGREGATES)?;
    let peer = (rig.me() + rig.n_pes() / 2) % rig.n_pes();
    let (words, met) = (rig.pe.alloc::<u64>(WORDS)?, rig.pe.alloc::<u64>(2)?);
    let made = make(&rig, &rig.pe.team_world(), &small().age(NEVER))?;
    rig.run_linear(
        "aggregate_occupy",
        blocks,
        threads,
        (&made.context, &words, WORDS as u32, EACH, &met, peer as i32),
    )?;
    rig.pe.barrier_all()?;
    let added: u64 = rig.pe.read(&words)?.iter().sum();
    assert_eq!(added, u64::from(blocks * threads * EACH));
    end(&rig, made)?;
    rig.finish()
}

/// `aggregate_absent`: the last PE does not take part, which the others learn at the deadline. Run
/// with a short `OXSHMEM_MEETING_TIMEOUT`.
pub fn absent(_: &[String]) -> Outcome {
    let rig = Rig::new(&AGGREGATES)?;
    let (world, options) = (rig.pe.team_world(), small());
    let memory = rig.pe.alloc::<u64>(options.words(&world)?)?;
    misses_last(&rig, "create an aggregating context", || world.create_aggregate(&rig.pe, &memory, &options))?
        .destroy(&rig.pe)?;
    rig.pe.barrier_all()?;
    rig.pe.free(memory)?;
    rig.finish()
}

fn heap_error<T: std::fmt::Debug>(result: oxshmem::Result<T>) -> HeapError {
    match result {
        Err(Error::Heap(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// `aggregate_rail_dies`: PE 1 dies with records of PE 0 in its ring, which learns what is lost.
pub fn rail_dies(_: &[String]) -> Outcome {
    let rig = Rig::new(&AGGREGATES)?;
    let world = rig.pe.team_world();
    let made = make(&rig, &world, &small().age(NEVER))?;
    let words = rig.pe.alloc::<u64>(16)?;
    if rig.me() == 0 {
        for (n, pe) in [(10u32, 2i32), (5, 3)] {
            rig.run_linear("aggregate_put_words", 1, 1, (&made.context, &words, n, pe))?;
        }
    }
    // PE 1 leaves the barrier and dies while others may still be in it.
    let met = rig.pe.barrier_all();
    if rig.me() == 1 {
        met?;
        let _ = kill_process(getpid(), Signal::KILL);
    }
    while rig.pe.synchronize().is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let lost = made.context.unacknowledged(&rig.pe)?;
    assert!(lost.unreadable.is_empty(), "{lost:?}");
    let counted: Vec<_> = lost.by_pe.iter().map(|at| (at.pe, at.operations, at.rail, at.receiver)).collect();
    let error = made.context.destroy(&rig.pe).unwrap_err();
    if rig.me() == 0 {
        assert_eq!(counted, [(2, 10, 1, 2), (3, 5, 1, 2)]);
        assert!(matches!(error, Error::Aggregate(AggregateError::Lost { me: 0, .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("10 for PE 2 (by way of PE 1 and PE 2), 5 for PE 3"), "{text}");
        println!("survivor: {text}");
    } else {
        assert_eq!(counted, []);
        assert!(matches!(error, Error::Bootstrap(_)), "{error}");
    }
    Ok(())
}

/// Memory of the program stays registered as long as an aggregating context uses it.
fn on_memory_of_the_program(rig: &Rig, options: &AggregateOptions) -> Outcome {
    let world = rig.pe.team_world();
    let words = options.words(&world)?;
    let page = rustix::param::page_size();
    let layout = std::alloc::Layout::from_size_align((words * 8).next_multiple_of(page), page)?;
    // SAFETY: the layout has a size.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: it is freed after it was unregistered.
    let memory = unsafe { rig.pe.register_symmetric(at.cast(), layout.size()) }?;
    let address = memory.address();
    let context = world.create_aggregate_at(&rig.pe, (address, words), options)?;
    let HeapError::Aggregates { number, .. } = heap_error(rig.pe.unregister_symmetric_at(address)) else { panic!() };
    assert_eq!(number, context.number());
    context.destroy(&rig.pe)?;
    rig.pe.unregister_symmetric_at(address)?;
    // SAFETY: as it was allocated; no PE has it any more.
    unsafe { std::alloc::dealloc(at, layout) };
    Ok(())
}
