//! What is counted and recorded of calls, beside the calls that were made.

use oxshmem::{CallCount, Counters, LaunchConfig, Operations, Origin, Path, TraceCall};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(PROFILE, "profile");
oxshmem::include_module!(OFF, "profile_off");

/// Words of a put.
const WORDS: usize = 40;
const BYTES: u64 = 8 * WORDS as u64;
/// Calls of `profile_flood`.
const FLOOD: usize = 200;

/// Returns the count of calls of device code.
fn of_device(counters: &Counters, operation: &str) -> CallCount {
    let is = |count: &&CallCount| count.origin == Origin::Device && count.operation == operation;
    let found: Vec<_> = counters.calls.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{operation}: {:?}", counters.calls);
    found[0].clone()
}

/// `profile`: one call of each kind, in a kernel that counts and records, if that is requested.
pub fn profile(_: &[String]) -> Outcome {
    let rig = Rig::new(&PROFILE)?;
    let (pe, me, n) = (&rig.pe, rig.me(), rig.n_pes());
    let peer = (me + 1) % n;
    let (inbox, outbox) = (pe.alloc::<u64>(2 * WORDS + 1)?, pe.alloc::<u64>(WORDS)?);
    let (signal, counter) = (pe.alloc::<u64>(1)?, pe.alloc::<u64>(1)?);
    pe.put(&inbox, &[1; WORDS], peer)?;
    pe.barrier_all()?;
    let before = pe.counters()?;
    let args = (&inbox, &outbox, &signal, &counter, WORDS as u64, peer as i32, rig.report());
    rig.run_linear("profile_exchange", 1, 32, args)?;
    pe.barrier_all()?;
    // What meetings have posted is not waited for.
    pe.quiet()?;
    let after = pe.counters()?;

    let wanted = pe.config().profile();
    assert_eq!(after.counts_device, wanted.counters || wanted.trace);
    let of_device_calls = after.calls.iter().filter(|count| count.origin == Origin::Device).count();
    if after.counts_device {
        for (operation, to, bytes) in [
            ("put", Some(peer), BYTES),
            ("p", Some(peer), 8),
            ("put_signal", Some(peer), BYTES),
            ("atomic", Some(peer), 8),
            ("g", Some(peer), 8),
            ("quiet", Some(me), 0),
            ("signal_wait_until", Some(me), 0),
        ] {
            let count = of_device(&after, operation);
            assert_eq!((count.calls, count.bytes, count.pe, count.team), (1, bytes, to, None), "{operation}");
        }
        let barrier = of_device(&after, "barrier");
        assert_eq!((barrier.calls, barrier.bytes, barrier.team), (1, 0, Some(0)));
    } else {
        assert_eq!(of_device_calls, 0, "{:?}", after.calls);
    }

    // The host's put and the kernel's calls.
    let device_calls = if after.counts_device { 5 } else { 0 };
    let (then, now) = (before.peers[peer].traffic, after.peers[peer].traffic);
    assert_eq!((then.operations, then.bytes), (1, BYTES));
    assert_eq!(now.operations, 1 + device_calls);
    // The barriers of the host and of the kernel.
    assert_eq!(after.teams[0].meetings, before.teams[0].meetings + 2);
    assert!(after.waits().0 >= 3 && after.waits().1 > 0);

    check_network(&rig, &before, &after, peer)?;
    rig.run_linear("profile_broadcast", 1, 32, (&inbox, &outbox, WORDS as u64))?;
    if after.counts_device {
        let broadcast = of_device(&pe.counters()?, "broadcast");
        assert_eq!((broadcast.calls, broadcast.bytes, broadcast.team), (1, BYTES, Some(0)));
    }
    if wanted.trace {
        check_trace(&rig, peer)?;
    } else {
        assert!(pe.trace()?.calls.is_empty());
    }
    rig.finish()
}

/// Checks what the network has counted of the puts.
fn check_network(rig: &Rig, before: &Counters, after: &Counters, peer: usize) -> Outcome {
    let Some(path) = rig.pe.path(peer).filter(|path| matches!(path, Path::Ibgda | Path::Ibrc)) else {
        assert!(after.qps.is_empty() && after.cards.is_empty());
        assert_eq!(after.peers[peer].traffic.messages, None);
        return Ok(());
    };
    let qps: Vec<_> = after.qps.iter().filter(|qp| qp.pe == peer).collect();
    assert_eq!(qps.len(), rig.pe.config().qps_per_peer() as usize);
    assert!(after.qps.iter().all(|qp| !qp.broken && qp.context_set.is_none()));
    let doorbells: u64 = after.qps.iter().filter_map(|qp| qp.traffic.doorbells).sum();
    if path == Path::Ibgda {
        // Other PEs wait for no more of this one.
        assert_eq!(rig.pe.doorbells(), Some(doorbells));
        assert!(qps.iter().all(|qp| qp.blocks.is_some_and(|(posted, completed)| completed <= posted)));
    }
    let transport = after.transports.iter().find(|known| known.transport == after.peers[peer].transport).unwrap();
    assert_eq!(transport.peers, rig.n_pes() - 1);
    assert!(transport.traffic.doorbells.unwrap() > 0 && transport.traffic.operations >= 1);
    assert!(rig.pe.gpu().is_some() || after.peers[peer].traffic.messages.is_some(), "{:?}", after.peers[peer]);
    if let (Some(then), Some(now)) = (before.peers[peer].traffic.messages, after.peers[peer].traffic.messages) {
        // Two puts, a signal, a p, an atomic, a g, and what the meetings took.
        assert!(now >= then + 6, "{then} and {now}");
        let bytes = |counters: &Counters| counters.peers[peer].traffic.message_bytes.unwrap();
        assert!(bytes(after) >= bytes(before) + 2 * BYTES + 4 * 8, "{} and {}", bytes(before), bytes(after));
        let (all, errors) = after.qps.iter().fold((0, 0), |(all, errors), qp| {
            (all + qp.traffic.messages.unwrap(), errors + qp.traffic.errors.unwrap())
        });
        let card = after.cards[0].traffic;
        assert_eq!((errors, card.errors), (0, Some(0)));
        assert_eq!(card.messages, Some(all), "the card has the queue pairs' work requests, and no others");
    }
    Ok(())
}

/// Checks that each call has its place in time, and the requests of the network their doorbells and
/// completions.
fn check_trace(rig: &Rig, peer: usize) -> Outcome {
    let trace = rig.pe.trace()?;
    assert_eq!(trace.dropped, 0);
    let one = |origin, operation: &str| -> TraceCall {
        let is = |call: &&TraceCall| call.origin == origin && call.operation == operation;
        trace.calls.iter().find(is).unwrap_or_else(|| panic!("no {operation} in {:?}", trace.calls)).clone()
    };
    let launch = one(Origin::Host, "launch");
    assert_eq!(launch.detail.as_deref(), Some("profile_exchange"));
    assert!(trace.calls.iter().any(|call| call.operation == "init" && call.detail.as_deref() == Some("bootstrap")));
    let order = ["put", "quiet", "p", "put_signal", "atomic", "signal_wait_until", "barrier", "g", "broadcast"];
    let calls = order.map(|operation| one(Origin::Device, operation));
    let on_gpu = rig.pe.gpu().is_some();
    for pair in calls.windows(2) {
        let [one, next] = pair else { continue };
        assert!(one.begin_ns <= one.end_ns && one.end_ns <= next.begin_ns, "{one:?} and {next:?}");
    }
    // The clocks of host and device are one on the CPU.
    assert!(on_gpu || calls[0].begin_ns >= launch.begin_ns, "{launch:?} and {:?}", calls[0]);
    let [put, quiet, ..] = &calls;
    assert_eq!((put.pe, put.bytes, put.thread, quiet.pe), (Some(peer), BYTES, Some((0, 0)), Some(rig.me())));
    if matches!(rig.pe.path(peer), Some(Path::Ibgda | Path::Ibrc)) {
        let (doorbell, completion) = (put.doorbell_ns.unwrap(), put.completion_ns.unwrap());
        assert_eq!(put.posts, 1);
        assert!(on_gpu || put.begin_ns <= doorbell && doorbell <= completion, "{put:?}");
        assert!(on_gpu || completion <= quiet.end_ns, "{put:?} and {quiet:?}");
        assert!(calls.iter().filter(|call| call.posts != 0).all(|call| call.doorbell_ns.is_some()), "{calls:?}");
    } else {
        assert!(calls.iter().all(|call| call.posts == 0 && call.completion_ns.is_none()), "{calls:?}");
    }
    Ok(())
}

/// `profile_full`: more calls than there is room for. The oldest give way, and are counted.
pub fn full(_: &[String]) -> Outcome {
    let rig = Rig::new(&PROFILE)?;
    let peer = (rig.me() + 1) % rig.n_pes();
    let (inbox, outbox) = (rig.pe.alloc::<u64>(FLOOD)?, rig.pe.alloc::<u64>(FLOOD)?);
    rig.pe.barrier_all()?;
    rig.run_linear("profile_flood", 1, 1, (&inbox, &outbox, FLOOD as u64, peer as i32))?;
    let trace = rig.pe.trace()?;
    let room = rig.pe.config().profile_records() as usize;
    let of_device: Vec<_> = trace.calls.iter().filter(|call| call.origin == Origin::Device).collect();
    assert!(of_device.len() <= room, "{} of {room}", of_device.len());
    assert!(trace.dropped >= (FLOOD + 1 - of_device.len()) as u64, "{} dropped", trace.dropped);
    // The newest are there, whole and in order.
    let puts: Vec<u64> = of_device.iter().filter(|call| call.operation == "put").map(|call| call.bytes / 8).collect();
    let oldest = (FLOOD + 1 - puts.len()) as u64;
    assert_eq!(puts, (oldest..=FLOOD as u64).collect::<Vec<_>>());
    assert_eq!(of_device.last().map(|call| call.operation), Some("quiet"));
    // Counting drops nothing.
    assert_eq!(of_device_calls(&rig.pe.counters()?), FLOOD as u64);
    rig.pe.barrier_all()?;
    rig.finish()
}

fn of_device_calls(counters: &Counters) -> u64 {
    of_device(counters, "put").calls
}

/// `profile_cost CALLS`: prints what a call takes, in nanoseconds, in a kernel that is compiled
/// with `OXSHMEM_PROFILE` and in one that is not. What is on is up to the variable of this name.
pub fn cost(args: &[String]) -> Outcome {
    let [calls] = args else { return Err("profile_cost CALLS".into()) };
    let calls: u64 = calls.parse()?;
    let rig = Rig::new(&PROFILE)?;
    let off = rig.pe.load(&OFF)?.kernel("profile_cost")?;
    let peer = (rig.me() + 1) % rig.n_pes();
    let (inbox, outbox) = (rig.pe.alloc::<u64>(64)?, rig.pe.alloc::<u64>(64)?);
    let took = rig.pe.alloc::<u64>(3)?;
    for (compiled, kernel) in [("without", off), ("with", rig.function("profile_cost")?)] {
        let mut best = [f64::INFINITY; 3];
        for _ in 0..5 {
            rig.pe.barrier_all()?;
            // SAFETY: the arguments are those of the kernel.
            unsafe {
                let args = (&inbox, &outbox, calls, peer as i32, &took);
                kernel.launch(&rig.pe, LaunchConfig::linear(1, 1), args)?;
            }
            rig.pe.synchronize()?;
            for (best, took) in best.iter_mut().zip(rig.pe.read(&took)?) {
                *best = best.min(took as f64 / calls as f64);
            }
        }
        if rig.me() == 0 {
            println!("compiled {compiled} it: p {:.1} ns, put {:.1} ns, barrier {:.1} ns", best[0], best[1], best[2]);
        }
    }
    rig.finish()
}
