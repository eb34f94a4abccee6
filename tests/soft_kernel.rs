//! The software HCA's kernel on the `cpu` device: it does what the engine of the CPU does, to
//! memory, completions, errors and queue pairs.

#![allow(clippy::unwrap_used)]

#[path = "../hca/tests/common/mod.rs"]
mod common;

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Pair, Side};
use oxshmem_hca::blueflame::BlueFlame;
use oxshmem_hca::objects::{KEY_VARIANT, Mkey, MkeyAttributes, Pd, QpAttributes};
use oxshmem_hca::prm::qpc::{QpState, SendDbrMode};
use oxshmem_hca::provider::{Access, Provider, Rung};
use oxshmem_hca::soft::tables::{PEER_STRIDE, Slice};
use oxshmem_hca::soft::{
    Accelerator, AcceleratorMemory, AcceleratorResult, CopyEngine, CopyMode, Pace, SoftHca, SoftOptions,
};
use oxshmem_hca::testing::{Endpoint, EndpointOptions, HEAP_START};
use oxshmem_hca::wire::cqe::{self, Syndrome};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_hca::wire::masked_atomic::Repr as Masked;
use oxshmem_hca::wire::{BLOCK_BYTES, MAX_WQE_BYTES, Op, Wqe, data, doorbell, raddr};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

fn kernel() -> SoftOptions {
    SoftOptions {
        stepped: true,
        accelerator: Some(oxshmem::device::cpu_accelerator().unwrap()),
        ..SoftOptions::default()
    }
}

fn thread() -> SoftOptions {
    SoftOptions { stepped: true, ..SoftOptions::default() }
}

/// Where the host rings, in memory of its own.
fn rung_by_host() -> SoftOptions {
    SoftOptions { host_doorbells: true, ..kernel() }
}

/// Where registers are as on a card: the engine's thread looks at them and passes doorbells on.
fn rung_as_on_a_card() -> SoftOptions {
    SoftOptions { card_doorbells: true, ..kernel() }
}

/// Where the engine's thread executes by copies.
fn by_copies() -> SoftOptions {
    SoftOptions { copying: CopyMode::Always, ..kernel() }
}

/// The same, with queues in memory of the host.
fn by_copies_from_host() -> SoftOptions {
    SoftOptions { copying: CopyMode::Always, ..rung_by_host() }
}

fn pair() -> Pair {
    Pair::new(EndpointOptions::default(), kernel)
}

/// One work request of a random program; each has 256 bytes of remote memory and 256 of local
/// memory to itself.
#[derive(Debug, Clone)]
struct Request {
    kind: u8,
    len: u32,
    shift: u32,
    operands: [u64; 4],
    signaled: bool,
    ordered: bool,
    /// Bytes of the WQE to change, and how.
    damage: Vec<(usize, u8)>,
}

fn request() -> impl Strategy<Value = Request> {
    let damage = prop_oneof![
        30 => Just(Vec::new()),
        1 => prop::collection::vec((0usize..64, 1u8..=255), 1..2),
    ];
    (0u8..12, 0u32..220, 0u32..16, any::<[u64; 4]>(), any::<bool>(), any::<bool>(), damage).prop_map(
        |(kind, len, shift, operands, signaled, ordered, damage)| Request {
            kind,
            len,
            shift,
            operands,
            signaled,
            ordered,
            damage,
        },
    )
}

/// Rings with one work request, whose blocks these are, if it can be rung so; otherwise for it.
fn ring_with(endpoint: &Endpoint, blueflame: &mut BlueFlame, blocks: &[u8]) {
    endpoint.write_doorbell_record();
    // SAFETY: the endpoint keeps the page.
    if !words(blocks).is_ok_and(|block| unsafe { blueflame.ring(&block) }) {
        endpoint.ring();
    }
}

/// A block in words, or all words of several.
fn words(blocks: &[u8]) -> Result<[u64; BLOCK_BYTES / 8], Vec<u64>> {
    let words: Vec<u64> = blocks.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.try_into()
}

fn blueflame(pair: &Pair) -> Option<BlueFlame> {
    pair.hca_a.blueflame(pair.a.uar.register(SendDbrMode::DbrValid, 0).unwrap())
}

/// Posts the work requests and rings after each, or once; returns what has to be compared.
fn run(options: fn() -> SoftOptions, requests: &[Request], every: usize) -> Outcome {
    run_on(Side::Shared, options, requests, every)
}

/// The same, between HCAs that reach each other on this side.
fn run_on(side: Side, options: fn() -> SoftOptions, requests: &[Request], every: usize) -> Outcome {
    let soft = [options(), options()];
    let mut pair = Pair::on(side, EndpointOptions::default(), soft, &QpAttributes::default());
    let mut blueflame = blueflame(&pair).filter(|_| every == 1);
    let mut filler = 0u32;
    let fill: Vec<u8> = std::iter::repeat_with(|| {
        filler = filler.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (filler >> 24) as u8
    })
    .take(1 << 16)
    .collect();
    pair.a.heap.write(0, &fill);
    pair.b.heap.write(0, &fill);
    for (at, request) in requests.iter().enumerate() {
        let (place, shift) = (at as u64 * 256, u64::from(request.shift));
        let atomic = |width: u64| Endpoint::remote(&pair.b.address(), place + shift / width * width);
        let remote = Endpoint::remote(&pair.b.address(), place + shift);
        let local = |len: u32| pair.a.local((1 << 15) + place + 16 - shift, len);
        let [a, b, c, d] = request.operands;
        let payload = &fill[at..at + request.len as usize];
        let op = match request.kind {
            0 => Op::Nop { ds: 1 + (request.len % 4) as u8 },
            1 => Op::Dump { local: local(request.len.max(1)) },
            2 | 3 => Op::WriteInline { remote, payload },
            4 => Op::Write { remote, local: (request.len != 0).then(|| local(request.len)) },
            5 => Op::Read { remote, local: (request.len != 0).then(|| local(request.len)) },
            6 => Op::AtomicFa { remote: atomic(8), add: a, local: local(8) },
            7 => Op::AtomicCs { remote: atomic(8), compare: a, swap: b, local: local(8) },
            8 => {
                let operands = Masked::CompareSwap8 { swap: a, compare: b, swap_mask: c, compare_mask: d & 1 };
                Op::Masked { remote: atomic(8), operands, local: local(8) }
            }
            9 => {
                let (swap_mask, compare_mask) = (c as u32, d as u32 & 1);
                let operands = Masked::CompareSwap4 { swap: a as u32, compare: b as u32, swap_mask, compare_mask };
                Op::Masked { remote: atomic(4), operands, local: local(4) }
            }
            10 => {
                let boundary = [0, u64::MAX, b][a as usize % 3];
                Op::Masked { remote: atomic(8), operands: Masked::FetchAdd8 { add: a, boundary }, local: local(8) }
            }
            _ => {
                let boundary = [0, u32::MAX, b as u32][a as usize % 3];
                let operands = Masked::FetchAdd4 { add: a as u32, boundary };
                Op::Masked { remote: atomic(4), operands, local: local(4) }
            }
        };
        let mut wqe = Wqe::new(pair.a.qp.qpn(), pair.a.posted() as u16, request.signaled, op);
        // A damaged request may reach the memory of others, and only a fence orders writes that
        // overlap.
        let damaged = |at: usize| requests.get(at).is_some_and(|request| !request.damage.is_empty());
        let ordered = request.ordered || damaged(at) || (at > 0 && damaged(at - 1));
        wqe.fence = if ordered { Fence::StrongOrdering } else { Fence::None };
        let mut bytes = [0; MAX_WQE_BYTES];
        let blocks = wqe.emit(&mut bytes);
        for (at, change) in &request.damage {
            bytes[*at] ^= *change;
        }
        pair.a.post_raw(&bytes[..blocks * BLOCK_BYTES]);
        if (at + 1) % every == 0 {
            // The first eight bytes are the doorbell itself.
            let intact = request.damage.iter().all(|(at, _)| *at >= 8);
            match &mut blueflame {
                Some(blueflame) if intact => ring_with(&pair.a, blueflame, &bytes[..blocks * BLOCK_BYTES]),
                _ => pair.a.ring(),
            }
            while pair.step() {}
        }
    }
    pair.a.ring();
    while pair.step() {}
    Outcome {
        local: pair.a.heap.read(0, 1 << 16),
        remote: pair.b.heap.read(0, 1 << 16),
        cqe: pair.a.cqe().map(|cqe| match cqe.status {
            cqe::Status::Done { byte_cnt, .. } => (cqe.wqe_opcode, cqe.wqe_counter, Ok(byte_cnt)),
            cqe::Status::Error { syndrome, .. } => (cqe.wqe_opcode, cqe.wqe_counter, Err(syndrome)),
        }),
        state: pair.a.qp.query().unwrap().state,
        violations: pair
            .hca_a
            .violations()
            .iter()
            .map(|violation| violation.to_string().replace(&pair.hca_b.info().port.gid.to_string(), "the peer"))
            .collect(),
    }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    local: Vec<u8>,
    remote: Vec<u8>,
    cqe: Option<(u8, u16, Result<u32, u8>)>,
    state: QpState,
    violations: Vec<String>,
}

/// Checks that two engines leave the same memory behind, and names the first byte of memory that
/// differs.
fn agree(expected: &Outcome, found: &Outcome) -> Result<(), TestCaseError> {
    let differs = |ours: &[u8], theirs: &[u8]| ours.iter().zip(theirs).position(|(a, b)| a != b);
    prop_assert_eq!(differs(&expected.remote, &found.remote), None, "remote memory");
    prop_assert_eq!(differs(&expected.local, &found.local), None, "local memory");
    prop_assert_eq!(expected, found);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The CPU's engine, which is the reference, and the kernel leave the same memory behind; even
    /// where a work request is damaged.
    #[test]
    fn kernel_and_thread_agree(requests in prop::collection::vec(request(), 1..40), every in 1usize..50) {
        // A queue of 128 blocks must hold what is posted between two doorbells.
        let every = every.min(20);
        agree(&run(thread, &requests, every), &run(kernel, &requests, every))?;
    }

    /// The kernel does the same where the host rings, and if work requests come with their
    /// doorbells, one by one.
    #[test]
    fn work_requests_may_come_with_doorbells(requests in prop::collection::vec(request(), 1..20), every in 1usize..3) {
        prop_assert_eq!(run(kernel, &requests, every), run(rung_by_host, &requests, every));
    }

    /// The engine's thread does by copies what the kernel does, atomics aside, which it leaves to
    /// the kernel.
    #[test]
    fn copies_and_thread_agree(requests in prop::collection::vec(request(), 1..40), every in 1usize..20) {
        agree(&run(thread, &requests, every), &run(by_copies, &requests, every))?;
    }

    /// The same where queues and completions are in memory of the host.
    #[test]
    fn copies_reach_queues_of_the_host(requests in prop::collection::vec(request(), 1..20), every in 1usize..20) {
        prop_assert_eq!(run(thread, &requests, every), run(by_copies_from_host, &requests, every));
    }

    /// And where the peer is on another node, whose atomics the kernel for atomics does.
    #[test]
    fn copies_reach_other_nodes(requests in prop::collection::vec(request(), 1..40), every in 1usize..20) {
        agree(&run(thread, &requests, every), &run_on(Side::Tcp, by_copies, &requests, every))?;
    }

    /// And where doorbells are passed on to it.
    #[test]
    fn doorbells_may_be_passed_on(requests in prop::collection::vec(request(), 1..20), every in 1usize..20) {
        prop_assert_eq!(run(kernel, &requests, every), run(rung_as_on_a_card, &requests, every));
    }
}

#[test]
fn a_work_request_that_comes_with_its_doorbell_is_not_fetched() {
    let mut pair = Pair::new(EndpointOptions::default(), rung_by_host);
    let mut blueflame = blueflame(&pair).unwrap();
    let remote = Endpoint::remote(&pair.b.address(), 64);
    // The kernel learns whose register it is.
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    let index = pair.a.posted();
    let op = Op::WriteInline { remote, payload: &[7; 8] };
    let mut block = [0; BLOCK_BYTES];
    Wqe::new(pair.a.qp.qpn(), index as u16, true, op).emit(&mut block);
    // In the queue there is something else, and the doorbell record tells of nothing.
    pair.a.post(Op::WriteInline { remote, payload: &[9; 8] }, true);
    let block = words(&block).unwrap();
    // SAFETY: the endpoint keeps the page.
    assert!(unsafe { blueflame.ring(&block) });
    while pair.step() {}
    assert_eq!((pair.b.heap.read(64, 8), pair.a.cqe().unwrap().wqe_counter), (vec![7; 8], index as u16));
    let counters = pair.hca_a.counters().unwrap();
    assert_eq!((counters.wqes, counters.doorbells, counters.errors), (2, 2, 0));
}

#[test]
fn indices_wrap_again_and_again() {
    let mut pair = pair();
    let address = pair.b.address();
    for round in 0..1500u64 {
        for i in 0..100 {
            let remote = Endpoint::remote(&address, i * 8);
            pair.a.post(Op::WriteInline { remote, payload: &(round * 100 + i).to_ne_bytes() }, i == 99);
        }
        pair.a.ring();
        while pair.step() {}
        assert_eq!(pair.a.cqe().unwrap().wqe_counter, (round * 100 + 99) as u16, "round {round}");
    }
    let expected: Vec<u8> = (149_900..150_000u64).flat_map(u64::to_ne_bytes).collect();
    assert_eq!(pair.b.heap.read(0, 800), expected);
    let counters = pair.hca_a.counters().unwrap();
    assert_eq!((counters.wqes, counters.bytes, counters.errors), (150_000, 1_200_000, 0));
    assert_eq!((counters.doorbells, counters.recovered), (1500, 0));
}

#[test]
fn long_transfers_take_several_turns() {
    let mut pair = Pair::new(EndpointOptions { heap_bytes: 8 << 20, ..EndpointOptions::default() }, kernel);
    let pattern: Vec<u8> = (0..7_000_001u32).map(|i| ((i * 31) >> 3) as u8).collect();
    pair.a.heap.write(5, &pattern);
    let remote = Endpoint::remote(&pair.b.address(), 3);
    let local = Some(pair.a.local(5, pattern.len() as u32));
    let cqe = pair.run(Op::Write { remote, local });
    assert_eq!(cqe.status_bytes(), pattern.len() as u32);
    assert_eq!(pair.b.heap.read(3, pattern.len()), pattern);
    let local = Some(pair.a.local(9, pattern.len() as u32));
    pair.run(Op::Read { remote, local });
    assert_eq!(pair.a.heap.read(9, pattern.len()), pattern);
}

/// By copies a turn moves 16 MiB. A request that they do not suffice for begins in the next turn,
/// wherever its destination lies.
#[test]
fn a_turn_may_end_between_two_requests() {
    const TURN: u32 = 16 << 20;
    let options = EndpointOptions { heap_bytes: 2 * TURN as usize, ..EndpointOptions::default() };
    let mut pair = Pair::new(options, by_copies);
    let address = pair.b.address();
    for (at, first) in [(8, TURN), (24, TURN - 8)] {
        let (long, short) = (pair.a.local(0, first), pair.a.local(TURN.into(), 100));
        pair.a.heap.write(TURN as usize, &[at; 100]);
        pair.a.post(Op::Write { remote: Endpoint::remote(&address, 0), local: Some(long) }, false);
        let remote = Endpoint::remote(&address, u64::from(TURN) + u64::from(at));
        pair.run(Op::Write { remote, local: Some(short) });
        assert_eq!(pair.b.heap.read(TURN as usize + usize::from(at), 100), [at; 100]);
    }
}

trait StatusBytes {
    fn status_bytes(&self) -> u32;
}

impl StatusBytes for cqe::Repr {
    fn status_bytes(&self) -> u32 {
        match self.status {
            cqe::Status::Done { byte_cnt, .. } => byte_cnt,
            cqe::Status::Error { .. } => 0,
        }
    }
}

/// What a queue pair in error still gets is flushed, and after a reset it works again.
#[test]
fn errors_flush_and_a_reset_heals() {
    let mut pair = pair();
    let address = pair.b.address();
    let bad = raddr::Repr { rkey: address.rkey ^ 0x100, ..Endpoint::remote(&address, 0) };
    let good = Endpoint::remote(&address, 0);
    pair.a.post(Op::WriteInline { remote: good, payload: &[1; 8] }, false);
    pair.a.post(Op::WriteInline { remote: bad, payload: &[2; 8] }, false);
    pair.a.post(Op::WriteInline { remote: good, payload: &[3; 8] }, false);
    pair.a.ring();
    while pair.step() {}
    assert_eq!(pair.b.heap.read(0, 8), [1; 8], "what came before the error is done, what came after is not");
    let error = |syndrome: Syndrome| cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 };
    let cqe = pair.a.cqe().unwrap();
    assert_eq!((cqe.wqe_counter, cqe.status), (2, error(Syndrome::WrFlush)));
    let first = pair.hca_a.first_failure(pair.a.qp.qpn()).unwrap();
    assert_eq!((first.wqe_index, first.syndrome), (1, Syndrome::RemoteAccess as u8));
    // Posted to a queue pair that is in error already.
    pair.a.post_and_ring(Op::Nop { ds: 1 });
    while pair.step() {}
    let step = || {
        pair.step();
    };
    let cqe = pair.a.wait(3, common::LIMIT, step).unwrap();
    assert_eq!(cqe.status, error(Syndrome::WrFlush));
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);

    pair.a.qp.to_reset().unwrap();
    pair.b.qp.to_reset().unwrap();
    pair.a.restart();
    pair.b.restart();
    pair.a.connect(&pair.b.address(), &QpAttributes::default()).unwrap();
    pair.b.connect(&pair.a.address(), &QpAttributes::default()).unwrap();
    pair.run(Op::WriteInline { remote: good, payload: &[4; 8] });
    assert_eq!(pair.b.heap.read(0, 8), [4; 8]);
}

#[test]
fn a_queue_pair_that_is_put_into_error_is_flushed() {
    let mut pair = pair();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    pair.a.qp.to_error().unwrap();
    let cqe = pair.run_any(Op::WriteInline { remote, payload: &[2; 8] });
    assert_eq!(cqe.status, cqe::Status::Error { syndrome: Syndrome::WrFlush as u8, vendor_syndrome: 0 });
    assert_eq!(pair.b.heap.read(0, 8), [1; 8]);
}

/// A peer whose HCA dies, and one that destroys its key, after the kernel has used both.
#[test]
fn peers_that_go_away_are_noticed() {
    let quick = QpAttributes { ack_timeout: 8, retry_count: 1, ..QpAttributes::default() };
    let mut pair = Pair::with(EndpointOptions::default(), kernel(), kernel(), &quick);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    pair.b.key.close().unwrap();
    pair.hca_a.progress();
    let cqe = pair.run_any(Op::WriteInline { remote, payload: &[2; 8] });
    assert_eq!(cqe.status, cqe::Status::Error { syndrome: Syndrome::RemoteAccess as u8, vendor_syndrome: 0 });
    assert_eq!(pair.b.heap.read(0, 8), [1; 8]);

    let mut pair = Pair::with(EndpointOptions::default(), kernel(), kernel(), &quick);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    pair.hca_b.kill();
    pair.hca_a.progress();
    let cqe = pair.run_any(Op::WriteInline { remote, payload: &[2; 8] });
    assert_eq!(cqe.status, cqe::Status::Error { syndrome: Syndrome::RetryExceeded as u8, vendor_syndrome: 0 });
    assert_eq!(pair.b.heap.read(0, 8), [1; 8]);
}

/// What was prepared needs no stop of the kernel: the trace has none.
#[test]
fn prepared_keys_stop_nothing() {
    let log = Log::default();
    let traced = SoftOptions { trace: Some(Box::new(log.clone())), ..kernel() };
    let mut pair = Pair::with(EndpointOptions::default(), traced, kernel(), &QpAttributes::default());
    let (qpn, rkey) = (pair.a.qp.qpn(), pair.b.address().rkey);
    pair.hca_a.prepare(&[(qpn, rkey)]).unwrap();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    assert_eq!(pair.b.heap.read(0, 8), [1; 8]);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("stopped") && text.contains("CREATE_QP"), "{text}");

    let error = pair.hca_a.prepare(&[(qpn, rkey ^ 0x100)]).unwrap_err().to_string();
    assert!(error.contains("no such key"), "{error}");
    assert!(pair.hca_a.prepare(&[(qpn + 1, rkey)]).unwrap_err().to_string().contains("no such QP"));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn doorbells_that_fit_no_queue_pair_are_reported() {
    let mut pair = pair();
    let qpn = pair.a.qp.qpn();
    for (bell, text) in [
        (doorbell::Repr::producer(1, qpn + 7), "doorbell.qpn: no QP"),
        (doorbell::Repr { ds: 0x40, ..doorbell::Repr::producer(1, qpn) }, "doorbell.qpn_ds[7:6]"),
    ] {
        pair.a.ring_register(bell);
        while pair.step() {}
        let last = pair.hca_a.violations().pop().unwrap().to_string();
        assert!(last.contains(text), "{last}");
    }
    // The queue pair itself is well.
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    pair.a.set_doorbell_record(60_000);
    pair.a.ring_register(doorbell::Repr::producer(0, qpn));
    while pair.step() {}
    let last = pair.hca_a.violations().pop().unwrap().to_string();
    assert!(last.contains("dbr.send is 60000"), "{last}");
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
}

/// An engine with a thread instead of steps, and both ends posting.
#[test]
fn both_ends_post_to_running_kernels() {
    let running = || SoftOptions { stepped: false, ..kernel() };
    let mut pair = Pair::new(EndpointOptions::default(), running);
    for i in 0..200u64 {
        let (a, b) = (pair.a.address(), pair.b.address());
        let at = pair.a.post_and_ring(Op::WriteInline { remote: Endpoint::remote(&b, 0), payload: &i.to_ne_bytes() });
        let bt = pair.b.post_and_ring(Op::WriteInline { remote: Endpoint::remote(&a, 0), payload: &i.to_ne_bytes() });
        for (end, index) in [(&pair.a, at), (&pair.b, bt)] {
            let cqe = end.wait(index, common::LIMIT, || std::thread::sleep(Duration::from_micros(20))).unwrap();
            assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
        }
        assert_eq!(pair.b.heap.word(0).load(Ordering::Acquire), i);
    }
}

/// An accelerator whose slices find no room while the program's kernels, which there are none of,
/// take it all.
#[derive(Debug)]
struct Crowded {
    inner: Arc<dyn Accelerator>,
    /// Slices that wait, in their order; `None` while there is room.
    waiting: Mutex<Option<Vec<Slice>>>,
}

impl Crowded {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: oxshmem::device::cpu_accelerator().unwrap(), waiting: Mutex::new(None) })
    }

    /// From now on there is no room.
    fn crowd(&self) {
        *self.waiting.lock().unwrap() = Some(Vec::new());
    }

    /// From now on there is. Returns how many slices have waited.
    fn make_room(&self) -> usize {
        let waiting = self.waiting.lock().unwrap().take().unwrap_or_default();
        for slice in &waiting {
            // SAFETY: as when it was launched first.
            unsafe { self.inner.launch(slice) }.unwrap();
        }
        waiting.len()
    }
}

impl Accelerator for Crowded {
    fn pace(&self) -> Pace {
        Pace { patience: Duration::from_millis(20), ..self.inner.pace() }
    }

    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        self.inner.allocate(bytes)
    }

    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        self.inner.host_memory(bytes)
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, len: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        self.inner.map(memory, offset, len)
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.read(from, bytes) }
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.write(to, bytes) }
    }

    fn blocks(&self) -> usize {
        self.inner.blocks()
    }

    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()> {
        match &mut *self.waiting.lock().unwrap() {
            Some(waiting) => waiting.push(*slice),
            // SAFETY: the caller's promise.
            None => unsafe { self.inner.launch(slice) }?,
        }
        Ok(())
    }

    unsafe fn launch_aside(&self, slice: &Slice) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch_aside(slice) }
    }

    unsafe fn launch_atomics(&self, batch: u64) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch_atomics(batch) }
    }

    fn check(&self) -> AcceleratorResult<()> {
        self.inner.check()
    }

    fn copy_engine(&self) -> AcceleratorResult<Box<dyn CopyEngine>> {
        self.inner.copy_engine()
    }
}

/// Puts, gets and atomics go on while no slice finds room, and slices execute again when they find
/// some: each queue pair has one owner all the time, so that every atomic is executed once.
#[test]
fn what_finds_no_room_is_done_by_copies() {
    let crowded = Crowded::new();
    let log = Log::default();
    let accelerator: Arc<dyn Accelerator> = Arc::<Crowded>::clone(&crowded);
    let trace: Option<Box<dyn std::io::Write + Send>> = Some(Box::new(log.clone()));
    let options = SoftOptions { stepped: false, accelerator: Some(accelerator), trace, ..kernel() };
    let running = SoftOptions { stepped: false, ..kernel() };
    let mut pair = Pair::with(EndpointOptions::default(), options, running, &QpAttributes::default());
    let count = |what: &str| {
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(what)).count()
    };
    let address = pair.b.address();
    let mut expected = 0u64;
    for round in 0..3u64 {
        for room in [true, false, true] {
            if room {
                crowded.make_room();
            } else {
                crowded.crowd();
            }
            for i in 0..20u64 {
                let payload = (round * 100 + i + 1).to_ne_bytes();
                pair.run(Op::WriteInline { remote: Endpoint::remote(&address, 64), payload: &payload });
                pair.a.heap.write(128, &[0; 8]);
                pair.run(Op::Read { remote: Endpoint::remote(&address, 64), local: Some(pair.a.local(128, 8)) });
                assert_eq!(pair.a.heap.read(128, 8), payload);
                let remote = Endpoint::remote(&address, 0);
                pair.run(Op::AtomicFa { remote, add: 1, local: pair.a.local(192, 8) });
                assert_eq!(pair.a.heap.read(192, 8), expected.to_ne_bytes(), "round {round}, room {room}");
                expected += 1;
            }
        }
    }
    assert_eq!(pair.b.heap.word(0).load(Ordering::Acquire), expected);
    // How often depends on how soon slices start.
    let (begun, ended) = (count("copying begins"), count("copying ends"));
    assert!(begun >= 1 && ended >= 1 && (begun == ended || begun == ended + 1), "{begun}, {ended}");
    assert!(pair.hca_a.violations().is_empty(), "{:?}", pair.hca_a.violations());
}

/// A slice that finds room only after the HCA is gone finds that it has been cancelled, and touches
/// nothing but its gate.
#[test]
fn a_slice_may_outlive_its_hca() {
    let crowded = Crowded::new();
    let accelerator: Arc<dyn Accelerator> = Arc::<Crowded>::clone(&crowded);
    let options = SoftOptions { stepped: false, accelerator: Some(accelerator), ..kernel() };
    let running = SoftOptions { stepped: false, ..kernel() };
    let mut pair = Pair::with(EndpointOptions::default(), options, running, &QpAttributes::default());
    crowded.crowd();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1; 8] });
    drop(pair);
    assert_ne!(crowded.make_room(), 0, "the slice that had to wait is still there");
    crowded.inner.check().unwrap();
}

/// Three at one counter: an engine that copies, an engine's kernel, and another user of the memory.
/// None loses an update, and none gets a value twice.
#[test]
fn both_modes_may_share_a_counter() {
    const EACH: u64 = 300;
    let open = |options: SoftOptions| SoftHca::open(SoftOptions { stepped: false, ..options }).unwrap();
    let hcas = [open(by_copies()), open(kernel()), open(kernel())];
    let provider = |at: usize| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(&hcas[at]) };
    let pd = Pd::alloc(&provider(2)).unwrap();
    let owners = [0, 1].map(|_| Endpoint::in_pd(&pd, EndpointOptions::default()).unwrap());
    let posters = [0, 1].map(|at| Endpoint::new(&provider(at), EndpointOptions::default()).unwrap());
    for (owner, poster) in owners.iter().zip(&posters) {
        owner.connect(&poster.address(), &QpAttributes::default()).unwrap();
        poster.connect(&owner.address(), &QpAttributes::default()).unwrap();
    }
    let counter = owners[0].address();
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let each = posters.map(|mut poster| {
            scope.spawn(move || {
                let mut seen = Vec::new();
                for _ in 0..EACH {
                    let local = poster.local(0, 8);
                    let index =
                        poster.post_and_ring(Op::AtomicFa { remote: Endpoint::remote(&counter, 0), add: 1, local });
                    let cqe = poster.wait(index, common::LIMIT, std::thread::yield_now).unwrap();
                    assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
                    seen.push(poster.heap.word(0).load(Ordering::Acquire));
                }
                seen
            })
        });
        let mut seen: Vec<u64> = Vec::new();
        while seen.len() < EACH as usize || !each.iter().all(|thread| thread.is_finished()) {
            seen.push(owners[0].heap.word(0).fetch_add(1, Ordering::AcqRel));
            std::thread::yield_now();
        }
        seen.extend(each.into_iter().flat_map(|thread| thread.join().unwrap()));
        seen
    });
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..seen.len() as u64), "an update is lost");
    assert_eq!(owners[0].heap.word(0).load(Ordering::Acquire), seen.len() as u64);
}

/// Atomics by copies of two queue pairs whose peers' keys have one place in the tables take turns.
#[test]
fn no_queue_pair_keeps_another_from_its_key() {
    let pair = Pair::new(EndpointOptions::default(), by_copies);
    let hca_c = SoftHca::open(kernel()).unwrap();
    let provider = |hca: &Arc<SoftHca>| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(hca) };
    let endpoint = |hca: &Arc<SoftHca>| Endpoint::new(&provider(hca), EndpointOptions::default()).unwrap();
    let (other, c) = (endpoint(&pair.hca_a), endpoint(&hca_c));
    other.connect(&c.address(), &QpAttributes::default()).unwrap();
    c.connect(&other.address(), &QpAttributes::default()).unwrap();
    // The peer `c` comes after `b`, and so does the place of the key with the same index.
    let (access, start_addr, variant) = (Access::ALL, HEAP_START, KEY_VARIANT);
    let attributes = MkeyAttributes { umem_offset: 0, len: 8, start_addr, access, relaxed_ordering: false, variant };
    let key = |_| Mkey::create(&pair.b.pd, &pair.b.heap_umem, &attributes).unwrap();
    let keys: Vec<Mkey> = (0..PEER_STRIDE).map(key).collect();
    let (near, far) = (keys[keys.len() - 1].rkey(), c.key.rkey());
    assert_eq!(near >> 8, (far >> 8) + PEER_STRIDE);
    let mut ends = [(pair.a, near), (other, far)];
    let post = |(end, rkey): &mut (Endpoint, u32)| {
        let (remote, local) = (raddr::Repr { raddr: HEAP_START, rkey: *rkey }, end.local(0, 8));
        end.post_and_ring(Op::AtomicFa { remote, add: 1, local })
    };
    for end in &mut ends {
        let index = post(end);
        end.0.wait(index, common::LIMIT, || _ = pair.hca_a.progress()).unwrap();
    }
    for _ in 0..400 {
        for end in &mut ends {
            if end.0.cqe().is_some_and(|cqe| u64::from(cqe.wqe_counter) + 1 == end.0.posted()) {
                post(end);
            }
        }
        pair.hca_a.progress();
    }
    assert!(pair.hca_a.violations().is_empty(), "{:?}", pair.hca_a.violations());
    assert!(ends.iter().all(|(end, _)| end.posted() > 20), "{ends:?}");
}

#[test]
fn the_null_card_completes_and_moves_nothing() {
    for send_dbr_mode in [SendDbrMode::DbrValid, SendDbrMode::NoDbrExt] {
        let options = EndpointOptions { send_dbr_mode, ..EndpointOptions::default() };
        let mut pair = Pair::new(options, || SoftOptions { null: true, ..kernel() });
        assert_eq!(pair.hca_a.info().provider, "null");
        let remote = Endpoint::remote(&pair.b.address(), 0);
        // One block, then two: the CQE names the first block of the last work request.
        pair.a.post(Op::WriteInline { remote, payload: &[1; 8] }, true);
        let index = pair.a.post_and_ring(Op::WriteInline { remote, payload: &[1; 60] });
        while pair.step() {}
        assert_eq!((index, pair.a.cqe().unwrap().wqe_counter), (1, 1), "{send_dbr_mode:?}");
        assert_eq!(pair.b.heap.read(0, 64), [0; 64]);
        // Three blocks are posted; then one more, and a doorbell for it.
        let index = pair.a.post_and_ring(Op::WriteInline { remote, payload: &[1; 8] });
        while pair.step() {}
        assert_eq!((index, pair.a.cqe().unwrap().wqe_counter), (3, 3), "{send_dbr_mode:?}");
    }
}

/// A queue pair that the kernel shares with the engine's thread needs a record, from which each
/// learns what was posted.
#[test]
fn a_kernel_that_executes_has_no_queue_pairs_without_record() {
    let hca = SoftHca::open(kernel()).unwrap();
    assert_eq!(hca.info().without_records, 0);
    let provider: Arc<dyn Provider> = hca;
    assert!(provider.alloc_uar(Rung::ByDevice).unwrap().without_record.is_empty());
    let options = EndpointOptions { send_dbr_mode: SendDbrMode::NoDbrExt, ..EndpointOptions::default() };
    let error = Endpoint::new(&provider, options).unwrap_err().to_string();
    assert!(error.contains("send_dbr_mode is NO_DBR_EXT") && error.contains("use DBR_VALID"), "{error}");
}

#[test]
fn what_a_kernel_cannot_do_is_refused() {
    let faulty = SoftOptions { faults: "reorder=0.5".parse().unwrap(), ..kernel() };
    let error = SoftHca::open(faulty).unwrap_err().to_string();
    assert!(error.contains("OXSHMEM_SOFT_ENGINE=thread"), "{error}");
    let error = SoftHca::open(SoftOptions { null: true, ..thread() }).unwrap_err().to_string();
    assert!(error.contains("OXSHMEM_SOFT_ENGINE=kernel"), "{error}");

    let hca = SoftHca::open(kernel()).unwrap();
    let provider: Arc<dyn Provider> = hca;
    let error =
        Endpoint::new(&provider, EndpointOptions { collapsed: false, ..EndpointOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("cqc.cc"), "{error}");
}

/// A data segment that is good for `kernel_and_thread_agree` in one respect only: its length means
/// 2 GiB.
#[test]
fn lengths_are_checked() {
    let mut pair = pair();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let local = Some(data::Repr { byte_count: 0, ..pair.a.local(0, 8) });
    let cqe = pair.run_any(Op::Read { remote, local });
    assert_eq!(cqe.status, cqe::Status::Error { syndrome: Syndrome::LocalLength as u8, vendor_syndrome: 0 });
}
