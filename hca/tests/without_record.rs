//! Queue pairs without a doorbell record: the software HCA goes by their doorbells alone, and is as
//! strict about these as a card may be.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Pair;
use oxshmem_hca::objects::{Doorbells, Qp, QpGeometry, Uar};
use oxshmem_hca::prm::CommandStatus;
use oxshmem_hca::prm::qpc::{QpState, SendDbrMode};
use oxshmem_hca::provider::{Provider, Rung};
use oxshmem_hca::soft::{FaultPlan, SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::doorbell::Repr;
use oxshmem_hca::wire::{Op, doorbell};

fn stepped() -> SoftOptions {
    SoftOptions { stepped: true, ..SoftOptions::default() }
}

fn options(send_dbr_mode: SendDbrMode) -> EndpointOptions {
    EndpointOptions { send_dbr_mode, ..EndpointOptions::default() }
}

fn pair() -> Pair {
    Pair::new(options(SendDbrMode::NoDbrExt), stepped)
}

/// Stores a doorbell to the first register that queue pairs of a mode ring in.
fn store(pair: &Pair, mode: SendDbrMode, value: Repr) {
    let register = pair.a.uar.register(mode, 0).unwrap();
    // SAFETY: a register of the page that the endpoint keeps, aligned to 8.
    unsafe { AtomicU64::from_ptr(register) }.store(value.to_register(), Ordering::Release);
    while pair.step() {}
}

fn executed(pair: &Pair) -> u16 {
    pair.a.qp.query().unwrap().executed
}

#[test]
fn the_doorbell_alone_says_how_far_the_queue_goes() {
    let mut pair = pair();
    let qpn = pair.a.qp.qpn();
    // No card reads it: one that did would find more than the queue has.
    pair.a.set_doorbell_record(0xffff);
    for _ in 0..3 {
        pair.a.post(Op::Nop { ds: 1 }, true);
    }
    while pair.step() {}
    assert_eq!(executed(&pair), 0, "posted, not rung");
    store(&pair, SendDbrMode::NoDbrExt, Repr::producer(2, qpn));
    assert_eq!(executed(&pair), 2, "rung for two");
    // The same doorbell once more says nothing new; then as libmlx5 rings: the start of the last
    // request, which has one block.
    store(&pair, SendDbrMode::NoDbrExt, Repr::producer(2, qpn));
    store(&pair, SendDbrMode::NoDbrExt, Repr { opmod: 0, index: 2, opcode: 0, qpn, ds: 1 });
    assert_eq!(executed(&pair), 3);
    assert!(pair.hca_a.violations().is_empty(), "{:?}", pair.hca_a.violations());
    assert_eq!(pair.hca_a.counters().unwrap().recovered, 0);
}

#[test]
fn the_index_wraps() {
    let mut pair = pair();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    // A lap of the index, and some of the next, where a queue has 128 blocks.
    for round in 0..(1 << 16) / 64 + 3u32 {
        for _ in 0..63 {
            pair.a.post(Op::Nop { ds: 1 }, false);
        }
        pair.run(Op::WriteInline { remote, payload: &round.to_le_bytes() });
        assert_eq!(pair.b.heap.read(0, 4), round.to_le_bytes());
    }
    assert!(pair.a.posted() > 1 << 16);
    assert!(pair.hca_a.violations().is_empty(), "{:?}", pair.hca_a.violations());
}

#[test]
fn a_doorbell_that_was_overtaken_fails_the_queue_pair() {
    for (index, text) in [(1, "doorbell.index is 1: it covers 65535 blocks"), (131, "it covers 129 blocks")] {
        let mut pair = pair();
        for _ in 0..2 {
            pair.a.post(Op::Nop { ds: 1 }, true);
        }
        pair.a.ring();
        while pair.step() {}
        store(&pair, SendDbrMode::NoDbrExt, Repr::producer(index, pair.a.qp.qpn()));
        assert!(pair.hca_a.violations()[0].message.contains(text), "{:?}", pair.hca_a.violations());
        assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
    }
}

#[test]
fn a_doorbell_in_the_other_kind_of_register_is_noticed() {
    for (mode, wrong, text) in [
        (SendDbrMode::NoDbrExt, SendDbrMode::DbrValid, "for QPs of DBR_VALID, but the QP was created with NO_DBR_EXT"),
        (SendDbrMode::DbrValid, SendDbrMode::NoDbrExt, "for QPs of NO_DBR_EXT, but the QP was created with DBR_VALID"),
    ] {
        let mut pair = Pair::new(options(mode), stepped);
        pair.a.post(Op::Nop { ds: 1 }, true);
        store(&pair, wrong, Repr::producer(1, pair.a.qp.qpn()));
        let violations = pair.hca_a.violations();
        assert!(violations.len() == 1 && violations[0].message.contains(text), "{violations:?}");
        assert_eq!(executed(&pair), 0);
        // It rings where it should.
        store(&pair, mode, Repr::producer(1, pair.a.qp.qpn()));
        assert_eq!(executed(&pair), u16::from(mode == SendDbrMode::NoDbrExt), "its record says 0");
    }
}

#[test]
fn no_doorbell_is_lost() {
    let faults = FaultPlan { lost_doorbell: 1.0, ..FaultPlan::default() };
    let mut pair = Pair::new(options(SendDbrMode::NoDbrExt), || SoftOptions { faults: faults.clone(), ..stepped() });
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[7] });
    assert_eq!(pair.b.heap.read(0, 1), [7]);
}

#[test]
fn a_queue_pair_that_was_reset_begins_at_0() {
    let mut pair = pair();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1] });
    pair.a.qp.to_reset().unwrap();
    pair.a.restart();
    pair.a.connect(&pair.b.address(), &oxshmem_hca::objects::QpAttributes::default()).unwrap();
    pair.run(Op::WriteInline { remote, payload: &[2] });
    assert_eq!((executed(&pair), pair.b.heap.read(0, 1)), (1, vec![2]));
}

/// A queue pair on the page of an endpoint, beside its own.
fn further(endpoint: &Endpoint, uar: &Arc<Uar>) -> oxshmem_hca::Result<Qp> {
    let geometry = QpGeometry {
        log_sq_size: 7,
        sq_offset: 4096,
        dbr_offset: 128,
        user_index: 1,
        send_dbr_mode: SendDbrMode::NoDbrExt,
    };
    Qp::create(&endpoint.pd, &endpoint.cq, uar, &endpoint.slab_umem, &geometry)
}

fn provider(options: SoftOptions) -> Arc<dyn Provider> {
    SoftHca::open(options).unwrap()
}

fn refused(result: oxshmem_hca::Result<Qp>, expected: CommandStatus, text: &str) {
    match result.unwrap_err() {
        oxshmem_hca::Error::Command { status, detail, .. } if status == expected && detail.contains(text) => {}
        other => panic!("{other}, not {expected:?} with `{text}`"),
    }
}

#[test]
fn their_number_is_limited() {
    let provider = provider(stepped());
    let most = provider.info().without_records;
    assert_eq!(most, 1024);
    let first = Endpoint::new(&provider, options(SendDbrMode::NoDbrExt)).unwrap();
    let mut doorbells = Doorbells::new(&provider, Rung::ByDevice, SendDbrMode::NoDbrExt);
    let mut registers = std::collections::BTreeSet::new();
    let mut create = || {
        let doorbell = doorbells.give().unwrap();
        assert!((0x600..0x800).contains(&doorbell.offset), "{:#x}", doorbell.offset);
        assert!(registers.insert(doorbell.address().addr()), "each has a register of its own");
        further(&first, &doorbell.uar)
    };
    let mut others: Vec<Qp> = (1..most).map(|_| create().unwrap()).collect();
    refused(create(), CommandStatus::NoResources, "all 1024 QPs without doorbell record are in use");
    others.pop();
    create().unwrap();
}

#[test]
fn as_on_a_card_there_is_one_register_in_a_page() {
    let provider = provider(SoftOptions { card_doorbells: true, ..stepped() });
    let first = Endpoint::new(&provider, options(SendDbrMode::NoDbrExt)).unwrap();
    assert_eq!(first.uar.page().without_record, [doorbell::WITHOUT_RECORD]);
    // Memory in the place of the register would lose doorbells.
    refused(further(&first, &first.uar), CommandStatus::NoResources, "use a page for each such QP");
}

#[test]
fn as_on_a_card_data_arrives() {
    let soft = || SoftOptions { card_doorbells: true, ..SoftOptions::default() };
    let mut pair = Pair::new(options(SendDbrMode::NoDbrExt), soft);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for i in 0..200u8 {
        pair.run(Op::WriteInline { remote, payload: &[i] });
        assert_eq!(pair.b.heap.read(0, 1), [i]);
    }
}
