//! Queue pairs: wrapped counters, the bytes of every kind of work request, order between queue
//! pairs, and their faults.

use bytemuck::{Pod, Zeroable};
use oxshmem::{Error, FaultKind, Operations, Path, SymmetricSlice};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_hca::wire::wqe::{Op, Wqe};
use oxshmem_hca::wire::{data, masked_atomic, raddr};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(pub(crate) QUEUES, "queues");

/// Bytes of `kWideBytes` in `kernels/queues.cu`, and how many rounds there are for each such put,
/// and for each swap.
const WIDE: usize = 100;
const WIDE_EVERY: u32 = 8;
const SWAP_EVERY: u32 = 32;
/// Bytes of `kSpreadLong`.
const SPREAD_LONG: usize = 600;

/// Mirrors what `queue_state` of `kernels/queues.cu` writes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
#[allow(dead_code, reason = "printed")]
struct QueueState {
    gate: u64,
    rung: u64,
    completed: u64,
    doorbell_record: u64,
    doorbell: u64,
    cqe_tail: u64,
    /// The number of the oldest block that is not known to be complete.
    wqe: u64,
    stamp: u64,
}

/// What is said of a kernel that failed with `error` while it posted to `pe`: how far its queue
/// pairs are.
fn stuck(rig: &Rig, states: &SymmetricSlice<QueueState>, pe: i32, error: &Error) -> String {
    if let Some(proxy) = rig.pe.proxy_counters() {
        return format!("{error}\n{proxy:?}, {:?}", rig.pe.hca_counters());
    }
    let seen = rig.run_linear("queue_state", 1, 1, (states, pe)).and_then(|()| rig.pe.read(states));
    match seen {
        Ok(seen) => format!("{error}\nqueue pairs to PE {pe}: {seen:#x?}, {:?}", rig.pe.hca_counters()),
        Err(second) => format!("{error}; then: {second}"),
    }
}

/// `word_ping_pong THREADS WORDS TURNS`: a block puts words, and one of its threads signals after
/// them.
pub fn word_ping_pong(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let [threads, words, turns] = args else { return Err("word_ping_pong THREADS WORDS TURNS".into()) };
    let (threads, words, turns): (u32, u32, u32) = (threads.parse()?, words.parse()?, turns.parse()?);
    let (data, signal) = (rig.pe.alloc::<u32>(words as usize)?, rig.pe.alloc::<u64>(1)?);
    rig.pe.barrier_all()?;
    rig.run_linear("word_ping_pong", 1, threads, (&data, &signal, words, turns, rig.report()))?;
    rig.finish()
}

/// `flood BLOCKS THREADS COUNT LEAST`: every PE floods the next one; each of its queue pairs that
/// is used gets LEAST blocks or more.
pub fn flood(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let [blocks, threads, count, least] = args else { return Err("flood BLOCKS THREADS COUNT LEAST".into()) };
    let (blocks, threads, count): (u32, u32, u32) = (blocks.parse()?, threads.parse()?, count.parse()?);
    let least: u64 = least.parse()?;
    let (me, n) = (rig.me(), rig.n_pes());
    let all = (blocks * threads) as usize * n;
    let words = rig.pe.alloc::<u64>(all * count as usize)?;
    let wide = rig.pe.alloc::<u8>(all * count.div_ceil(WIDE_EVERY) as usize * WIDE)?;
    let swapped = rig.pe.alloc::<u64>(all * count.div_ceil(SWAP_EVERY) as usize)?;
    let states = rig.pe.alloc::<QueueState>(rig.pe.config().qps_per_peer() as usize)?;
    let sum = rig.pe.alloc::<u64>(1)?;
    let (next, previous) = (((me + 1) % n) as i32, ((me + n - 1) % n) as i32);
    rig.run_linear("flood", blocks, threads, (&words, &wide, &swapped, &sum, count, next))
        .map_err(|error| stuck(&rig, &states, next, &error))?;
    rig.pe.barrier_all()?;
    rig.run_linear("flooded", blocks, threads, (&words, &wide, &swapped, count, previous, rig.report()))?;
    let adds = (0..count).map(|i| u64::from(i % 16 == 3) + u64::from(i % 64 == 33)).sum::<u64>();
    assert_eq!(rig.pe.read(sum.view(..1))?, [adds * u64::from(blocks * threads)]);
    if let Some(proxy) = rig.pe.proxy_counters() {
        let errors = rig.pe.hca_counters().map_or(0, |counters| counters.errors);
        // The proxy counts with a delay, so the numbers are for people.
        println!("{proxy:?}");
        assert_eq!(errors, 0);
    } else if let Some(counters) = rig.pe.hca_counters() {
        let per_peer = rig.pe.config().qps_per_peer();
        let reserved = rig.pe.alloc::<u64>(per_peer as usize)?;
        rig.run_linear("reserved_blocks", 1, 1, (&reserved, next))?;
        let reserved = rig.pe.read(reserved.view(..per_peer as usize))?;
        let used = blocks.min(per_peer) as usize;
        assert!(reserved[..used].iter().all(|blocks| *blocks >= least), "{reserved:?}, {least} wanted");
        assert!(counters.errors == 0 && counters.wqes >= u64::from(blocks * threads * count), "{counters:?}");
        println!("{reserved:?} blocks, {counters:?}, {:?} doorbells rung", rig.pe.doorbells());
    }
    rig.pe.barrier_all()?;
    rig.finish()
}

/// `spread CARDS`: queue pairs to a peer are on CARDS cards in turn; atomics, and what has to stay
/// in order with them, are all on those of the first card, if cards' atomics are atomic among
/// themselves only.
pub fn spread(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let [cards] = args else { return Err("spread CARDS".into()) };
    let cards: usize = cards.parse()?;
    let (me, n) = (rig.me(), rig.n_pes());
    let (next, per_peer) = (((me + 1) % n) as i32, rig.pe.config().qps_per_peer());
    let blocks = per_peer as usize;
    let words = rig.pe.alloc::<u64>(blocks)?;
    let data = rig.pe.alloc::<u8>(blocks * (2 * WIDE + SPREAD_LONG))?;
    let sum = rig.pe.alloc::<u64>(1)?;
    let set = rig.pe.alloc::<u64>(blocks)?;
    let added = rig.pe.alloc::<u64>(1)?;
    rig.run_linear("spread", per_peer, 1, (&words, &data, &sum, &set, &added, next))?;
    rig.run_linear("spread_out", per_peer, 1, (&words, &data, &set, &added, rig.report()))?;
    if rig.pe.proxy_counters().is_none() {
        let reserved = rig.pe.alloc::<u64>(blocks)?;
        rig.run_linear("reserved_blocks", 1, 1, (&reserved, next))?;
        // A word; a put and its signal. Then an addition, one that fetches, a put and its signal, a
        // long put and its, another signal.
        let (plain, atomic) = (1 + (3 + 1), 1 + 1 + (3 + 1) + (3 * 4 + 1) + 1);
        let mut expected = vec![plain; blocks];
        // A fence between two cards reads once from both, so that what was written is visible, but
        // for what another block has read after.
        let mut reads = vec![0; blocks];
        for queue in 0..blocks {
            let first = queue - queue % cards;
            expected[first] += atomic;
            if first != queue {
                reads[first] += 1;
                reads[queue] += 1;
            }
        }
        let found = rig.pe.read(reserved.view(..blocks))?;
        for (queue, found) in found.iter().enumerate() {
            let least = expected[queue] + u64::from(reads[queue] > 0);
            let most = expected[queue] + reads[queue];
            assert!((least..=most).contains(found), "queue {queue}: {found} blocks, {least} to {most} expected");
        }
    }
    rig.pe.barrier_all()?;
    assert_eq!(rig.pe.read(sum.view(..1))?, [2 * blocks as u64]);
    rig.finish()
}

/// Mirrors `Names` of `kernels/queues.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Names {
    qpn: u64,
    reserved: u64,
    depth: u64,
    landing: u64,
    landing_head: u64,
    landing_mask: u64,
    discard: u64,
    slab_lkey: u64,
    lkey: u64,
    rkey: u64,
    offset: u64,
}

/// `requests [TIMES]`: what device code writes into a queue equals what the HCA crate writes for
/// the same request. The requests of one time end anywhere in the queue, so several show those that
/// wrap.
pub fn requests(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    for _ in 0..args.first().map_or(Ok(1), |text| text.parse::<u32>())? {
        compare_requests(&rig)?;
    }
    rig.finish()
}

fn compare_requests(rig: &Rig) -> Outcome {
    let next = ((rig.me() + 1) % rig.n_pes()) as i32;
    let memory = rig.pe.alloc_aligned::<u8>(1024, 1024)?;
    let names = rig.pe.alloc::<Names>(1)?;
    rig.pe.barrier_all()?;
    rig.run_linear("queue_names", 1, 1, (&names, &memory, next))?;
    let before = rig.pe.read(names.view(..1))?[0];
    rig.run_linear("every_request", 1, 1, (&memory, next))?;
    let queue = rig.pe.alloc::<u8>(before.depth as usize * 64)?;
    rig.run_linear("queue_names", 1, 1, (&names, &memory, next))?;
    let after = rig.pe.read(names.view(..1))?[0];
    rig.run_linear("queue_bytes", 1, 1, (&queue, next))?;
    let queue = rig.pe.read(&queue)?;

    let local_bytes: Vec<u8> = (0..=255).map(|i| i ^ 0x5a).collect();
    let stack: Vec<u8> = (0..100u32).map(|i| (i * 3 + 1) as u8).collect();
    let remote = |at: u64| raddr::Repr { raddr: before.offset + at, rkey: before.rkey as u32 };
    let heap =
        |at: u64, bytes: u32| data::Repr { byte_count: bytes, lkey: before.lkey as u32, addr: before.offset + at };
    let slab = |addr: u64, bytes: u32| data::Repr { byte_count: bytes, lkey: before.slab_lkey as u32, addr };
    let discard = |bytes| slab(before.discard, bytes);
    let mut landings = before.landing_head;
    let mut landing = |bytes| {
        let slot = landings & before.landing_mask;
        landings += 1;
        slab(before.landing + slot * 64, bytes)
    };
    let inline = |at: u64, payload| Op::WriteInline { remote: remote(at), payload };
    let masked = |at: u64, operands, local| Op::Masked { remote: remote(at), operands, local };
    use masked_atomic::Repr::{CompareSwap4, CompareSwap8, FetchAdd4, FetchAdd8};
    let swap8 = |swap, swap_mask| CompareSwap8 { swap, compare: 0, swap_mask, compare_mask: 0 };
    let swap4 = |swap, swap_mask| CompareSwap4 { swap, compare: 0, swap_mask, compare_mask: 0 };
    // In the order of the kernel; the flag says whether a CQE is requested.
    let expected = [
        (inline(3, &[0xa5]), true),
        (inline(6, &[0xc7, 0xb6]), true),
        (inline(8, &[0x44, 0x33, 0x22, 0x11]), true),
        (inline(16, &[8, 7, 6, 5, 4, 3, 2, 1]), true),
        (inline(33, &local_bytes[..28]), true),
        (Op::Write { remote: remote(70), local: Some(heap(513, 29)) }, true),
        (inline(100, &stack), true),
        (Op::Read { remote: remote(8), local: Some(heap(512, 24)) }, true),
        (Op::Read { remote: remote(6), local: Some(landing(2)) }, true),
        (Op::AtomicFa { remote: remote(256), add: 5, local: discard(8) }, true),
        (Op::AtomicFa { remote: remote(256), add: u64::MAX, local: landing(8) }, true),
        (Op::AtomicCs { remote: remote(256), compare: 4, swap: 0x1234_5678_90ab_cdef, local: landing(8) }, true),
        (masked(264, swap8(0xfedc_ba98_7654_3210, u64::MAX), discard(8)), true),
        (masked(264, swap8(0xff00_ff00_ff00_ff00, 0x00ff_00ff_00ff_00ff), landing(8)), true),
        (masked(264, swap8(0xf0, 0xf0), discard(8)), true),
        (masked(264, FetchAdd8 { add: 0x8000_0000_0000_0001, boundary: u64::MAX }, discard(8)), true),
        (masked(280, FetchAdd4 { add: 7, boundary: 0 }, discard(4)), true),
        (masked(280, FetchAdd4 { add: 1, boundary: 0 }, landing(4)), true),
        (
            masked(
                280,
                CompareSwap4 { swap: 0xdead_beef, compare: 8, swap_mask: u32::MAX, compare_mask: u32::MAX },
                landing(4),
            ),
            true,
        ),
        (masked(284, swap4(0xcafe_f00d, u32::MAX), landing(4)), true),
        (masked(284, swap4(0x00ff_ff00, 0xff00_00ff), discard(4)), true),
        (masked(284, swap4(0x0f, 0x0f), landing(4)), true),
        (masked(284, FetchAdd4 { add: 0x8000_0000, boundary: u32::MAX }, discard(4)), true),
        (inline(320, &[77, 0, 0, 0, 0, 0, 0, 0]), true),
        (Op::AtomicFa { remote: remote(320), add: 3, local: discard(8) }, true),
        (Op::Write { remote: remote(340), local: Some(heap(512, 64)) }, false),
        (inline(328, &[9, 0, 0, 0, 0, 0, 0, 0]), true),
        (inline(404, &local_bytes[..8]), false),
        (Op::AtomicFa { remote: remote(328), add: 1, local: discard(8) }, true),
    ];
    // The kernel reads into the local bytes before it puts from them again.
    let fetched: Vec<u8> = rig.pe.read(memory.view(512..520))?;
    let signals_need = if rig.pe.hca_name() == Some("mlx5") { Fence::None } else { Fence::StrongOrdering };
    let mut index = before.reserved;
    for (number, (op, signaled)) in expected.into_iter().enumerate() {
        let op = match op {
            Op::WriteInline { remote, payload } if payload == &local_bytes[..8] => {
                Op::WriteInline { remote, payload: &fetched }
            }
            op => op,
        };
        let mut wqe = Wqe::new(before.qpn as u32, index as u16, signaled, op);
        // Signals stay after what was posted before; on cards they do so without a fence mode.
        if op.remote().is_some_and(|remote| [320, 328].map(|at| before.offset + at).contains(&remote.raddr)) {
            wqe.fence = signals_need;
        }
        let mut wanted = [0; 1024];
        let blocks = wqe.emit(&mut wanted);
        // The bytes after an inline payload have no meaning.
        let length = match op {
            Op::WriteInline { payload, .. } => 36 + payload.len(),
            _ => op.ds() * 16,
        };
        let seen: Vec<u8> =
            (0..length as u64).map(|i| queue[((index * 64 + i) % (before.depth * 64)) as usize]).collect();
        assert_eq!(seen, &wanted[..length], "request {number}: {wqe:?}");
        index += blocks as u64;
    }
    assert_eq!(index, after.reserved, "blocks");
    assert_eq!(landings, after.landing_head, "landing slots");
    rig.pe.barrier_all()?;
    Ok(())
}

/// `host_fence`: of what the host puts, the first request after a fence comes after those before
/// it.
pub fn host_fence(_: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let peer = (rig.me() + 1) % rig.n_pes();
    let (words, names) = (rig.pe.alloc::<u64>(3)?, rig.pe.alloc::<Names>(1)?);
    rig.pe.barrier_all()?;
    rig.run_linear("queue_names", 1, 1, (&names, &words, peer as i32))?;
    let Names { reserved, depth, .. } = rig.pe.read(&names)?[0];
    for word in 0..3 {
        if word == 2 {
            rig.pe.fence()?;
        }
        rig.pe.put(words.at(word), &[word as u64 + 1], peer)?;
    }
    let queue = rig.pe.alloc::<u8>(depth as usize * 64)?;
    rig.run_linear("queue_bytes", 1, 1, (&queue, peer as i32))?;
    let queue = rig.pe.read(&queue)?;
    for word in 0..3 {
        let at = ((reserved + word) % depth * 64) as usize;
        let request = Wqe::parse(&queue[at..at + 64])?;
        assert!(
            matches!(&request.op, Op::WriteInline { payload, .. } if payload[..] == (word + 1).to_le_bytes()),
            "{request}"
        );
        assert_eq!(request.fence != Fence::None, word == 2, "request {word}: {request}");
    }
    rig.pe.barrier_all()?;
    assert_eq!(rig.pe.read(&words)?, [1, 2, 3]);
    rig.finish()
}

/// `order COMPLETE ROUNDS`: prints how often a signal of one queue pair came before the data of
/// another.
pub fn order(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let [complete, rounds] = args else { return Err("order COMPLETE ROUNDS".into()) };
    let (complete, rounds): (u32, u32) = (complete.parse()?, rounds.parse()?);
    const BYTES: usize = 3000;
    let all = rounds as usize * BYTES;
    let incoming = rig.pe.alloc::<u8>(all)?;
    let outgoing = rig.filled(&vec![0xffu8; all])?;
    let (signal, stale) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u64>(1)?);
    let handover = rig.pe.alloc::<u32>(1)?;
    rig.pe.barrier_all()?;
    let args = (&incoming, &outgoing, BYTES as u64, &signal, &handover, rounds, complete, &stale);
    rig.run_linear("flag_of_another_block", 3, 32, args)?;
    rig.pe.barrier_all()?;
    println!("stale={}", rig.pe.read(stale.view(..1))?[0]);
    rig.finish()
}

/// PE 0's first queue pair, which leads to PE 1, ends with an error completion: the error says so,
/// and operations among the others go on.
pub fn completion_error(args: &[String]) -> Outcome {
    let [syndrome, name] = args else { return Err("completion_error SYNDROME NAME".into()) };
    let faulty = std::env::var("OXSHMEM_RANK")? == "0";
    let faults = if faulty { format!("error={syndrome}@qp0:100") } else { String::new() };
    let rig = Rig::with_config(&QUEUES, oxshmem::Config::builder().soft_faults(faults).env().build()?)?;
    let (me, n) = (rig.me(), rig.n_pes());
    let slice = rig.pe.alloc::<u64>(n)?;
    let at = slice.at(me);
    let done = rig.pe.alloc::<u64>(1)?;
    let names = rig.pe.alloc::<Names>(1)?;
    let left = rig.filled(&[u64::MAX])?;
    let last = n - 1;
    let lost = 1;
    if me != 0 {
        // To the last PE, or from it to PE 1; for as long as PE 0 meets its error.
        let to = if me == last { lost } else { last as i32 };
        rig.run_linear("put_to", 1, 1, (&at, 5u64, to, 300u32))?;
        assert_eq!(rig.pe.get_vec(slice.view(me..me + 1), to as usize)?, [5]);
        if me == last {
            // PE 0 reaches this PE after its error, and the others are done.
            let others = n as u64 - 1;
            assert_eq!(rig.pe.signal_wait_until(done.signal(0), oxshmem::Compare::Eq, others)?, others);
            assert_eq!(rig.pe.read(slice.view(..1))?, [6]);
            rig.pe.abort("the test is over");
        } else {
            // The end may come as soon as the signal is there, before the call is back.
            let told = rig.pe.signal(done.signal(0).add(1), last);
            let error =
                told.and_then(|()| rig.pe.signal_wait_until(done.signal(0), oxshmem::Compare::Eq, 1)).unwrap_err();
            assert!(error.to_string().contains("the test is over"), "{error}");
        }
        return Ok(());
    }
    let error = rig.run_linear("put_to", 1, 1, (&at, 7u64, lost, 2_000u32)).unwrap_err();
    let Error::Fault(fault) = &error else { panic!("{error:?}") };
    let FaultKind::Completion { pe, qpn, opcode, address, syndrome: named, wqe_index, cause, .. } = &fault.kind else {
        panic!("{error:?}")
    };
    assert_eq!((*pe, *wqe_index), (lost, 100), "{error}");
    assert!(*qpn != 0 && opcode == "RDMA WRITE" && named.contains(name.as_str()), "{error}");
    if rig.pe.path(lost as usize) == Some(Path::Ibgda) {
        rig.run_linear("queue_names", 1, 1, (&names, &at, lost))?;
        let names = rig.pe.read(names.view(..1))?[0];
        assert_eq!((u64::from(*qpn), *address), (names.qpn, names.offset), "{error}");
    } else {
        assert!(*address != 0 && cause.starts_with(": "), "{error}");
    }
    // Each later use of that queue pair reports again and does not hang.
    let error = rig.run_linear("put_to", 1, 1, (&at, 8u64, lost, 1u32)).unwrap_err();
    assert!(
        matches!(&error, Error::Fault(fault) if matches!(fault.kind, FaultKind::Completion { pe, .. } if pe == lost)),
        "{error}"
    );
    // It keeps quiet from none of the others.
    assert!(rig.run_linear("put_to_both", 1, 1, (&at, 9u64, lost, last as i32, &left)).is_err());
    assert_eq!(rig.pe.read(left.view(..1))?, [0]);
    // The other PEs are still reached. The last one ends the job, and this PE with it, maybe before
    // the call is back.
    let told = rig.run_linear("put_and_signal", 1, 1, (&at, 6u64, &done, last as i32));
    let error = told.and_then(|()| rig.pe.alloc::<u64>(1)).unwrap_err();
    assert!(error.to_string().contains("the test is over"), "{error}");
    Ok(())
}

/// `flushed_error NAME`: a work request of PE 0 fails when many are posted after it, whose
/// completions replace its own. The error names the first one's syndrome, of which NAME is a part.
/// There is one queue pair between the PEs.
pub fn flushed_error(args: &[String]) -> Outcome {
    let [name] = args else { return Err("flushed_error NAME".into()) };
    let rig = Rig::new(&QUEUES)?;
    let (at, done) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u64>(1)?);
    if rig.me() != 0 {
        let error = rig.pe.signal_wait_until(done.signal(0), oxshmem::Compare::Eq, 1).unwrap_err();
        assert!(error.to_string().contains("the test is over"), "{error}");
        return Ok(());
    }
    let error = rig.run_linear("put_to", 8, 32, (&at, 7u64, 1, 2u32)).unwrap_err();
    println!("{error}");
    let Error::Fault(fault) = &error else { return Err(error.into()) };
    let FaultKind::Completion { pe, syndrome, .. } = &fault.kind else { return Err(error.into()) };
    assert!(*pe == 1 && syndrome.contains(name.as_str()), "no `{name}` in: {error}");
    rig.pe.abort("the test is over");
    Ok(())
}
