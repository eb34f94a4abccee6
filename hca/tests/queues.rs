//! Send queues: wrap-around, WQEs of several blocks, flush after an error, batches.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{LIMIT, Pair};
use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::prm::qpc::QpState;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::SoftOptions;
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::cqe::{self, Syndrome};
use oxshmem_hca::wire::{Op, data, doorbell, raddr};
use std::sync::atomic::Ordering::Acquire;

fn stepped() -> SoftOptions {
    SoftOptions { stepped: true, ..SoftOptions::default() }
}

#[test]
fn indices_wrap_at_depth_and_at_sixteen_bits() {
    let mut pair = Pair::new(EndpointOptions::default(), stepped);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let mut value = 0u64;
    while pair.a.posted() < 70_000 {
        let mut last = 0;
        for _ in 0..100 {
            value += 1;
            last = pair.a.post(Op::WriteInline { remote, payload: &value.to_ne_bytes() }, value.is_multiple_of(100));
        }
        pair.a.ring();
        while pair.step() {}
        let cqe = pair.a.cqe().unwrap();
        assert_eq!((cqe.wqe_counter, pair.b.heap.word(0).load(Acquire)), (last as u16, value));
    }
    assert!(pair.hca_a.violations().is_empty());
    let counters = pair.hca_a.counters().unwrap();
    assert_eq!((counters.wqes, counters.doorbells, counters.recovered), (70_000, 700, 0));
}

#[test]
fn wqes_of_several_blocks_wrap_inside() {
    let mut pair = Pair::new(EndpointOptions::default(), stepped);
    let remote = Endpoint::remote(&pair.b.address(), 1);
    // 5, 7 and 11 blocks: every position relative to the end of the queue is met.
    for round in 0..600usize {
        let len = [256, 380, 660][round % 3];
        let payload: Vec<u8> = (0..len).map(|i| (i * 3 + round) as u8).collect();
        pair.run(Op::WriteInline { remote, payload: &payload });
        assert_eq!(pair.b.heap.read(1, len), payload, "round {round}");
    }
    assert!(pair.a.posted() > 4096);
}

#[test]
fn a_full_queue_is_executed_in_order() {
    let mut pair = Pair::new(EndpointOptions::default(), SoftOptions::default);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for round in 0..50u64 {
        let mut last = 0;
        for i in 0..128u64 {
            last = pair.a.post(Op::WriteInline { remote, payload: &(round * 128 + i).to_ne_bytes() }, i == 127);
        }
        pair.a.ring();
        pair.a.wait(last, LIMIT, std::thread::yield_now).unwrap();
        assert_eq!(pair.b.heap.word(0).load(Acquire), round * 128 + 127);
    }
}

#[test]
fn a_failure_flushes_what_follows() {
    let options = EndpointOptions { collapsed: false, ..EndpointOptions::default() };
    let mut pair = Pair::new(options, stepped);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let bad = raddr::Repr { rkey: 0, ..remote };
    pair.a.post(Op::WriteInline { remote, payload: &[1] }, true);
    pair.a.post(Op::WriteInline { remote: bad, payload: &[2] }, false);
    pair.a.post(Op::WriteInline { remote, payload: &[3; 256] }, false);
    pair.a.post(Op::WriteInline { remote, payload: &[4] }, true);
    pair.a.ring();
    while pair.step() {}
    // Posted after the failure.
    pair.a.post(Op::WriteInline { remote, payload: &[5] }, false);
    pair.a.ring();
    while pair.step() {}
    let cqes: Vec<_> = std::iter::from_fn(|| pair.a.poll()).map(|cqe| (cqe.wqe_counter, cqe.status)).collect();
    let error = |syndrome: Syndrome| cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 };
    assert!(matches!(cqes[0], (0, cqe::Status::Done { .. })));
    let flushed = error(Syndrome::WrFlush);
    assert_eq!(cqes[1..], [(1, error(Syndrome::RemoteAccess)), (2, flushed), (7, flushed), (8, flushed)]);
    assert_eq!(pair.b.heap.read(0, 1), [1]);
    assert_eq!(pair.hca_a.violations().len(), 1, "flushing is not a violation");
    let counters = pair.hca_a.counters().unwrap();
    assert_eq!((counters.wqes, counters.errors, counters.cqes), (2, 4, 5));
}

#[test]
fn a_wrong_record_flushes_all_that_waits() {
    let options = EndpointOptions { collapsed: false, ..EndpointOptions::default() };
    let mut pair = Pair::new(options, stepped);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for _ in 0..100 {
        pair.a.post(Op::WriteInline { remote, payload: &[1] }, false);
    }
    pair.a.ring();
    while pair.step() {}
    // The peer does not accept what comes next, so that it waits.
    pair.b.qp.to_error().unwrap();
    for _ in 0..10 {
        pair.a.post(Op::WriteInline { remote, payload: &[2] }, false);
    }
    pair.a.ring();
    pair.step();
    pair.a.set_doorbell_record(1 << 16);
    pair.a.ring_register(doorbell::Repr::producer(110, pair.a.qp.qpn()));
    while pair.step() {}
    let cqes: Vec<_> = std::iter::from_fn(|| pair.a.poll()).map(|cqe| (cqe.wqe_counter, cqe.status)).collect();
    let error = |syndrome: Syndrome| cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 };
    assert_eq!(cqes[0], (100, error(Syndrome::LocalQpOperation)));
    assert!(cqes[1..].iter().copied().eq((100..110).map(|index| (index, error(Syndrome::WrFlush)))), "{cqes:?}");
}

#[test]
fn moving_to_error_flushes_what_is_outstanding() {
    let mut pair = Pair::new(EndpointOptions::default(), stepped);
    pair.b.qp.to_error().unwrap();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.a.post_and_ring(Op::WriteInline { remote, payload: &[1] });
    for _ in 0..10 {
        pair.step();
    }
    assert_eq!(pair.a.cqe(), None);
    pair.a.qp.to_error().unwrap();
    while pair.step() {}
    let flushed = cqe::Status::Error { syndrome: Syndrome::WrFlush as u8, vendor_syndrome: 0 };
    assert_eq!(pair.a.cqe().unwrap().status, flushed);
}

#[test]
fn a_reset_pair_starts_again_at_zero() {
    let mut pair = Pair::new(EndpointOptions::default(), stepped);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for round in 0..3u8 {
        for _ in 0..5 {
            pair.run(Op::WriteInline { remote, payload: &[round] });
        }
        for endpoint in [&mut pair.a, &mut pair.b] {
            endpoint.qp.to_error().unwrap();
            endpoint.qp.to_reset().unwrap();
            endpoint.restart();
            assert_eq!(endpoint.qp.query().unwrap().state, QpState::Reset);
        }
        pair.a.connect(&pair.b.address(), &QpAttributes::default()).unwrap();
        pair.b.connect(&pair.a.address(), &QpAttributes::default()).unwrap();
        let status = pair.a.qp.query().unwrap();
        assert_eq!((status.state, status.executed, status.covered), (QpState::Rts, 0, 0));
    }
}

#[test]
fn what_failed_first_is_kept_until_the_pair_is_reset() {
    let mut pair = Pair::new(EndpointOptions::default(), stepped);
    let qpn = pair.a.qp.qpn();
    // More violations than are kept, the first of them of this queue pair, and none a failure.
    pair.a.ring_register(doorbell::Repr::producer(1, qpn));
    while pair.step() {}
    for _ in 0..1024 {
        pair.a.ring_register(doorbell::Repr::producer(1, 0xab_cdef));
        while pair.step() {}
    }
    assert_eq!((pair.hca_a.violations().len(), pair.hca_a.violations()[0].qpn), (1024, qpn));
    let address = pair.b.address();
    let first = |pair: &Pair| pair.hca_a.first_failure(qpn).map(|failure| (failure.wqe_index, failure.syndrome));
    assert_eq!(first(&pair), None);
    for syndrome in [Syndrome::RemoteAccess, Syndrome::LocalProtection] {
        let remote = Endpoint::remote(&address, 0);
        pair.run(Op::WriteInline { remote, payload: &[1] });
        if syndrome == Syndrome::RemoteAccess {
            pair.a.post(Op::WriteInline { remote: raddr::Repr { rkey: 0, ..remote }, payload: &[2] }, true);
        } else {
            let local = data::Repr { lkey: 0x100, ..pair.a.local(0, 8) };
            pair.a.post(Op::Write { remote, local: Some(local) }, true);
        }
        pair.a.post_and_ring(Op::WriteInline { remote, payload: &[3] });
        while pair.step() {}
        assert_eq!(first(&pair), Some((1, syndrome as u8)));
        for endpoint in [&mut pair.a, &mut pair.b] {
            endpoint.qp.to_reset().unwrap();
            endpoint.restart();
        }
        assert_eq!(first(&pair), None, "it was before the reset");
        pair.a.connect(&pair.b.address(), &QpAttributes::default()).unwrap();
        pair.b.connect(&pair.a.address(), &QpAttributes::default()).unwrap();
    }
}

#[test]
fn queue_pairs_do_not_disturb_each_other() {
    let mut pair = Pair::new(EndpointOptions::default(), SoftOptions::default);
    let make = |hca: &std::sync::Arc<oxshmem_hca::soft::SoftHca>| {
        let provider: std::sync::Arc<dyn Provider> = std::sync::Arc::clone(hca) as _;
        Endpoint::new(&provider, EndpointOptions::default()).unwrap()
    };
    let mut ends: Vec<_> = (0..20).map(|_| (make(&pair.hca_a), make(&pair.hca_b))).collect();
    for (a, b) in &ends {
        a.connect(&b.address(), &QpAttributes::default()).unwrap();
        b.connect(&a.address(), &QpAttributes::default()).unwrap();
    }
    // One of them fails.
    let remote = raddr::Repr { raddr: 0, rkey: 0 };
    pair.run_any(Op::WriteInline { remote, payload: &[1] });
    std::thread::scope(|scope| {
        for (n, (a, b)) in ends.iter_mut().enumerate() {
            scope.spawn(move || {
                let remote = Endpoint::remote(&b.address(), 0);
                for i in 0..300u64 {
                    let index =
                        a.post_and_ring(Op::WriteInline { remote, payload: &(i << 8 | n as u64).to_ne_bytes() });
                    let cqe = a.wait(index, LIMIT, std::thread::yield_now).unwrap();
                    assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
                    assert_eq!(b.heap.word(0).load(Acquire), i << 8 | n as u64);
                }
            });
        }
    });
}

#[test]
fn like_on_a_card_a_doorbell_says_how_far_the_queue_goes() {
    let like_cards = || SoftOptions { card_doorbells: true, ..stepped() };
    let mut pair = Pair::new(EndpointOptions::default(), like_cards);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let post = |pair: &mut Pair, value: u64| {
        pair.a.post(Op::WriteInline { remote, payload: &value.to_ne_bytes() }, true);
    };
    // The record alone starts nothing.
    (1..=3).for_each(|value| post(&mut pair, value));
    pair.a.write_doorbell_record();
    while pair.step() {}
    assert_eq!((pair.b.heap.word(0).load(Acquire), pair.a.cqe()), (0, None));
    // The doorbell's index counts, although the record is ahead of it.
    pair.a.ring_register(doorbell::Repr::producer(2, pair.a.qp.qpn()));
    while pair.step() {}
    assert_eq!((pair.b.heap.word(0).load(Acquire), pair.a.cqe().unwrap().wqe_counter), (2, 1));
    assert!(pair.hca_a.violations().is_empty());
    pair.a.ring();
    while pair.step() {}
    assert_eq!(pair.b.heap.word(0).load(Acquire), 3);
    // As libmlx5 rings: with the start of the last request, which has one block.
    post(&mut pair, 4);
    pair.a.write_doorbell_record();
    pair.a.ring_register(doorbell::Repr { opmod: 0, index: 3, opcode: 8, qpn: pair.a.qp.qpn(), ds: 3 });
    while pair.step() {}
    assert_eq!(pair.b.heap.word(0).load(Acquire), 4);
    assert!(pair.hca_a.violations().is_empty());
    // A record that is not written at all is a violation.
    post(&mut pair, 5);
    pair.a.ring_register(doorbell::Repr::producer(5, pair.a.qp.qpn()));
    while pair.step() {}
    let [violation] = &pair.hca_a.violations()[..] else { panic!("{:?}", pair.hca_a.violations()) };
    assert!(violation.message.contains("doorbell.index is 5, ahead of the doorbell record, 4"), "{violation}");
}
