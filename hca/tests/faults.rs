//! Faults on demand: each kind shows, keeps what RC guarantees, and is repeatable by its seed.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{LIMIT, Pair};
use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::prm::qpc::QpState;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::{FaultPlan, SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::Op;
use oxshmem_hca::wire::cqe::{self, Syndrome};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex};

/// A read of the peer's memory, so that the HCAs have exchanged what they need: how long that takes
/// is not part of a plan.
fn warm_up(pair: &Pair, a: &mut Endpoint, b: &Endpoint) {
    let local = Some(a.local(0, 1));
    let index = a.post_and_ring(Op::Read { remote: Endpoint::remote(&b.address(), 0), local });
    a.wait(index, LIMIT, || {
        pair.step();
    })
    .unwrap();
}

fn with(plan: &str, stepped: bool) -> Pair {
    let faults: FaultPlan = plan.parse().unwrap();
    let a = SoftOptions { faults, stepped, ..SoftOptions::default() };
    Pair::with(
        EndpointOptions::default(),
        a,
        SoftOptions { stepped, ..SoftOptions::default() },
        &QpAttributes { ack_timeout: 4, retry_count: 1, ..QpAttributes::default() },
    )
}

/// Returns a second connection between the pair's HCAs.
fn second(pair: &Pair) -> (Endpoint, Endpoint) {
    let make = |hca: &Arc<SoftHca>| {
        let provider: Arc<dyn Provider> = Arc::clone(hca) as _;
        Endpoint::new(&provider, EndpointOptions::default()).unwrap()
    };
    let (a, b) = (make(&pair.hca_a), make(&pair.hca_b));
    a.connect(&b.address(), &QpAttributes::default()).unwrap();
    b.connect(&a.address(), &QpAttributes::default()).unwrap();
    (a, b)
}

#[test]
fn order_within_a_queue_pair_survives_every_fault() {
    for plan in [
        "reorder=0.5",
        "delay=20us",
        "visibility",
        "lost-doorbell=0.5",
        "seed=9,reorder=0.5,delay=20us,visibility,lost-doorbell=0.2",
    ] {
        let mut pair = with(plan, false);
        let remote = Endpoint::remote(&pair.b.address(), 0);
        let flag = Endpoint::remote(&pair.b.address(), 4096);
        for round in 1..200u64 {
            // Data, then a flag on the same QP: a reader that sees the flag sees the data.
            let payload: Vec<u8> = round.to_ne_bytes().repeat(12);
            pair.a.post(Op::WriteInline { remote, payload: &payload }, false);
            let index = pair.a.post_and_ring(Op::WriteInline { remote: flag, payload: &round.to_ne_bytes() });
            while pair.b.heap.word(4096).load(Acquire) != round {
                std::thread::yield_now();
            }
            assert_eq!(pair.b.heap.read(0, 96), payload, "{plan}");
            pair.a.wait(index, LIMIT, std::thread::yield_now).unwrap();
        }
        assert!(pair.hca_a.violations().is_empty(), "{plan}: {:?}", pair.hca_a.violations());
    }
}

/// Data on one QP, then a flag on another without waiting for the data: returns how often the flag
/// was seen first.
fn flag_first(plan: &str) -> usize {
    let mut pair = with(plan, true);
    let (mut a2, b2) = second(&pair);
    warm_up(&pair, &mut a2, &b2);
    let local = Some(pair.a.local(0, 1));
    pair.run(Op::Read { remote: Endpoint::remote(&pair.b.address(), 0), local });
    let mut wrong = 0;
    for round in 1..=100u64 {
        let remote = Endpoint::remote(&pair.b.address(), 0);
        let data = pair.a.post_and_ring(Op::WriteInline { remote, payload: &round.to_ne_bytes() });
        let flag = a2.post_and_ring(Op::WriteInline {
            remote: Endpoint::remote(&b2.address(), 0),
            payload: &round.to_ne_bytes(),
        });
        while b2.heap.word(0).load(Acquire) != round {
            pair.step();
        }
        wrong += usize::from(pair.b.heap.word(0).load(Relaxed) != round);
        for (end, index) in [(&pair.a, data), (&a2, flag)] {
            end.wait(index, LIMIT, || {
                pair.step();
            })
            .unwrap();
        }
        assert_eq!(pair.b.heap.word(0).load(Acquire), round);
    }
    wrong
}

#[test]
fn a_missing_quiet_shows() {
    // Different QPs have no order on any fabric; the mapped one happens to have it.
    if common::side() == common::Side::Shared {
        assert_eq!(flag_first("seed=1"), 0, "without faults, posts are executed as they come");
    }
    for plan in ["seed=1,reorder=0.5", "seed=2,delay=50us", "seed=3,visibility,delay=50us"] {
        assert!(flag_first(plan) > 0, "{plan}");
    }
}

#[test]
fn waiting_for_the_completion_is_enough() {
    for plan in
        ["seed=1,reorder=0.5", "seed=2,delay=20us", "seed=3,visibility", "seed=4,visibility,reorder=0.3,delay=30us"]
    {
        let mut pair = with(plan, true);
        for round in 1..=100u64 {
            let remote = Endpoint::remote(&pair.b.address(), 3);
            let payload: Vec<u8> = round.to_ne_bytes().repeat(5);
            pair.run(Op::WriteInline { remote, payload: &payload });
            assert_eq!(pair.b.heap.read(3, 40), payload, "{plan}");
        }
    }
}

#[test]
fn late_payloads_arrive_in_any_order_of_bytes_but_arrive() {
    // A target shows a late payload and acknowledges it at once.
    if common::side() == common::Side::Tcp {
        return;
    }
    // Executed, but nothing to see yet. How late it is depends on the seed, so some are tried.
    let pair = (0..64)
        .map(|seed| with(&format!("seed={seed},visibility"), true))
        .find_map(|mut fresh| {
            let remote = Endpoint::remote(&fresh.b.address(), 0);
            fresh.a.post(Op::WriteInline { remote, payload: &[7; 100] }, false);
            fresh.a.ring();
            while fresh.hca_a.counters().unwrap().wqes == 0 {
                fresh.step();
            }
            (fresh.b.heap.read(0, 100) == [0; 100]).then_some(fresh)
        })
        .expect("every payload was visible at once");
    // Nothing posts any more, and still it arrives.
    while pair.step() {}
    assert_eq!(pair.b.heap.read(0, 100), [7; 100]);
}

#[test]
fn lost_doorbells_are_recovered() {
    let mut pair = with("lost-doorbell=1", false);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for round in 0..20u8 {
        pair.run(Op::WriteInline { remote, payload: &[round] });
    }
    let counters = pair.hca_a.counters().unwrap();
    assert_eq!((counters.doorbells, counters.recovered), (20, 20));
}

#[test]
fn injected_errors() {
    for (plan, fails_at, syndrome) in [
        ("error=0x13@qp0:5", 5, Syndrome::RemoteAccess),
        ("error=0x04@qp*:0", 0, Syndrome::LocalProtection),
        ("error=0x15@qp1:0,error=0x02@qp0:7", 7, Syndrome::LocalQpOperation),
    ] {
        let mut pair = with(plan, true);
        let remote = Endpoint::remote(&pair.b.address(), 0);
        for i in 0..fails_at {
            pair.run(Op::WriteInline { remote, payload: &[i] });
        }
        let cqe = pair.run_any(Op::WriteInline { remote, payload: &[0xff] });
        assert_eq!(cqe.status, cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 }, "{plan}");
        assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
        assert_ne!(pair.b.heap.read(0, 1), [0xff]);
        assert!(pair.hca_a.violations()[0].message.contains("injected"));
    }
}

#[test]
fn an_hca_that_dies_completes_nothing_more() {
    let mut pair = with("die-after=10", true);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for i in 0..20 {
        pair.a.post(Op::WriteInline { remote, payload: &[i] }, false);
    }
    pair.a.ring();
    while pair.step() || pair.hca_a.is_waiting() {}
    assert_eq!(pair.b.heap.read(0, 1), [9]);
    assert!(pair.hca_a.dead().unwrap().contains("die-after"));
    assert_eq!(pair.a.cqe(), None);
    // The peer finds out.
    let index = pair.b.post_and_ring(Op::WriteInline { remote: Endpoint::remote(&pair.a.address(), 0), payload: &[1] });
    let cqe = pair.b.wait(index, LIMIT, || {
        pair.step();
    });
    let exceeded = cqe::Status::Error { syndrome: Syndrome::RetryExceeded as u8, vendor_syndrome: 0 };
    assert_eq!(cqe.unwrap().status, exceeded);
}

/// A writer that keeps what was written.
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

/// Returns the order in which four QPs' WQEs were executed.
fn schedule(seed: u64) -> Vec<String> {
    let log = Log::default();
    let faults = FaultPlan { seed, reorder: 0.5, lost_doorbell: 0.3, ..FaultPlan::default() };
    let a = SoftOptions { faults, stepped: true, trace: Some(Box::new(log.clone())), ..SoftOptions::default() };
    let b = SoftOptions { stepped: true, ..SoftOptions::default() };
    let mut pair = Pair::with(EndpointOptions::default(), a, b, &QpAttributes::default());
    let mut more: Vec<_> = (0..3).map(|_| second(&pair)).collect();
    for (a, b) in &mut more {
        warm_up(&pair, a, b);
    }
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[0] });
    log.0.lock().unwrap().clear();
    for _ in 0..50 {
        pair.a.post(Op::WriteInline { remote, payload: &[1] }, true);
        pair.a.ring();
        for (a, b) in &mut more {
            a.post(Op::WriteInline { remote: Endpoint::remote(&b.address(), 0), payload: &[1] }, true);
            a.ring();
        }
    }
    while pair.step() {}
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    // The device's name is random.
    text.lines().filter_map(|line| line.split_once(" wqe ").map(|(_, wqe)| wqe.to_owned())).collect()
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    // When a target responds, no seed decides.
    if common::side() == common::Side::Tcp {
        return;
    }
    let first = schedule(11);
    assert_eq!(first.len(), 200);
    assert_eq!(first, schedule(11));
    assert_ne!(first, schedule(12));
}

#[test]
fn the_trace_shows_everything() {
    let log = Log::default();
    let a = SoftOptions { stepped: true, trace: Some(Box::new(log.clone())), ..SoftOptions::default() };
    let b = SoftOptions { stepped: true, ..SoftOptions::default() };
    let mut pair = Pair::with(EndpointOptions::default(), a, b, &QpAttributes::default());
    let remote = Endpoint::remote(&pair.b.address(), 16);
    pair.run(Op::WriteInline { remote, payload: &[0xab, 0xcd] });
    let local = pair.a.local(8, 8);
    pair.run(Op::AtomicFa { remote, add: 5, local });
    pair.run_any(Op::Write { remote: oxshmem_hca::wire::raddr::Repr { rkey: 7, ..remote }, local: None });
    pair.run_any(Op::Read { remote: oxshmem_hca::wire::raddr::Repr { rkey: 7, ..remote }, local: Some(local) });
    drop(pair);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for wanted in [
        "command CREATE_MKEY ok",
        "command CREATE_QP ok object=0x40",
        "command RTR2RTS_QP ok",
        "state qp=0x40 RTS",
        "doorbell qp=0x40 idx=1 uar=1",
        "wqe RDMA_WRITE(inline) qp=0x40 idx=0 ds=3 cqe raddr=0x1000000010",
        "len=2 inline=abcd",
        "cqe qp=0x40 idx=0 opcode=0x08 owner=0 ok len=2",
        "wqe ATOMIC_FA qp=0x40 idx=1 ds=4 cqe",
        "add=0x5 len=8",
        "wqe RDMA_READ qp=0x40 idx=3",
        "violation QP 0x40 WQE 3: raddr.rkey 0x7: no such key",
        "state qp=0x40 ERR",
        "error=0x13 (remote access error)",
        "command DESTROY_QP ok",
    ] {
        assert!(text.contains(wanted), "`{wanted}` is not in the trace:\n{text}");
    }
    assert!(text.lines().all(|line| line.starts_with("soft-")));
}
