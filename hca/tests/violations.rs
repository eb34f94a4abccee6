//! Every strict check of the software HCA: the right syndrome, a message that names the field, and
//! a QP in the error state.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Pair;
use oxshmem_hca::objects::{KEY_VARIANT, Mkey, MkeyAttributes, Pd, QpAttributes};
use oxshmem_hca::prm::qpc::QpState;
use oxshmem_hca::provider::{Access, Provider};
use oxshmem_hca::soft::SoftOptions;
use oxshmem_hca::testing::{Endpoint, EndpointOptions, HEAP_START};
use oxshmem_hca::wire::cqe::{self, Syndrome};
use oxshmem_hca::wire::masked_atomic::Repr as Masked;
use oxshmem_hca::wire::{BLOCK_BYTES, MAX_WQE_BYTES, Op, Wqe, data, doorbell, raddr};
use std::sync::Arc;

fn stepped() -> SoftOptions {
    SoftOptions { stepped: true, ..SoftOptions::default() }
}

fn pair() -> Pair {
    Pair::new(common::options(), stepped)
}

/// The pair's QP is in error: `syndrome`, and a message with `text`.
#[track_caller]
fn assert_failed(pair: &Pair, syndrome: Syndrome, text: &str) {
    let violations = pair.hca_a.violations();
    let first = violations.first().expect("nothing was noticed");
    assert_eq!(first.syndrome, Some(syndrome), "{first}");
    assert!(first.message.contains(text), "`{text}` is not in `{first}`");
    assert_eq!(first.qpn, pair.a.qp.qpn());
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
    let cqe = pair.a.cqe().unwrap();
    assert_eq!(cqe.status, cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 });
    assert_eq!(cqe.qpn, pair.a.qp.qpn());
}

#[track_caller]
fn fails(op: Op<'_>, syndrome: Syndrome, text: &str) {
    let mut pair = pair();
    pair.run_any(op);
    assert_failed(&pair, syndrome, text);
}

/// A WQE whose bytes are changed before it is posted.
#[track_caller]
fn malformed(change: impl FnOnce(&mut [u8]), text: &str) {
    let mut pair = pair();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let wqe = Wqe::new(pair.a.qp.qpn(), 0, true, Op::WriteInline { remote, payload: &[1, 2, 3, 4] });
    let mut bytes = [0; MAX_WQE_BYTES];
    wqe.emit(&mut bytes);
    change(&mut bytes);
    pair.a.post_raw(&bytes[..BLOCK_BYTES]);
    pair.a.ring();
    while pair.step() {}
    assert_failed(&pair, Syndrome::LocalQpOperation, text);
    assert_eq!(pair.b.heap.read(0, 4), [0; 4], "a malformed WQE wrote memory");
}

#[test]
fn control_segment() {
    malformed(|wqe| wqe[0] = 1, "ctrl.opmod_idx_opcode.opmod");
    malformed(|wqe| wqe[2] = 1, "ctrl.opmod_idx_opcode.index is 1, but the WQE is at 0");
    malformed(|wqe| wqe[3] = 0x0a, "ctrl.opmod_idx_opcode.opcode is 0xa");
    malformed(|wqe| wqe[6] ^= 1, "ctrl.qpn_ds.qpn");
    malformed(|wqe| wqe[7] |= 0x40, "ctrl.qpn_ds[7:6]");
    malformed(|wqe| wqe[7] = 0, "ctrl.qpn_ds.ds");
    malformed(|wqe| wqe[7] = 1, "ctrl.qpn_ds.ds");
    malformed(|wqe| wqe[7] = 4, "ctrl.qpn_ds.ds");
    malformed(|wqe| wqe[7] = 5, "2 blocks, but the doorbell record covers only 1");
    malformed(|wqe| wqe[8] = 1, "ctrl.signature");
    malformed(|wqe| wqe[9] = 1, "ctrl.dci_stream_channel_id");
    malformed(|wqe| wqe[11] |= 1, "ctrl.fm_ce_se[4,0]");
    malformed(|wqe| wqe[11] |= 4, "ctrl.fm_ce_se.ce");
    malformed(|wqe| wqe[11] |= 0xe0, "ctrl.fm_ce_se.fm");
    malformed(|wqe| wqe[12] = 1, "ctrl.imm");
}

#[test]
fn other_segments() {
    malformed(|wqe| wqe[31] = 1, "raddr.reserved");
    malformed(|wqe| wqe[33] = 1, "inline.byte_count");
    malformed(|wqe| wqe[35] = 200, "inline.byte_count is 0xc8: more bytes than the WQE has");
}

#[test]
fn segments_of_atomics() {
    for (op_bytes, change, text) in [(0x12u8, 47usize, "atomic.compare"), (0x15, 43, "masked_atomic.reserved")] {
        let mut pair = pair();
        let remote = Endpoint::remote(&pair.b.address(), 0);
        let local = pair.a.local(0, if op_bytes == 0x12 { 8 } else { 4 });
        let op = if op_bytes == 0x12 {
            Op::AtomicFa { remote, add: 1, local }
        } else {
            Op::Masked { remote, operands: Masked::FetchAdd4 { add: 1, boundary: 0 }, local }
        };
        let mut bytes = [0; MAX_WQE_BYTES];
        Wqe::new(pair.a.qp.qpn(), 0, true, op).emit(&mut bytes);
        bytes[change] = 1;
        pair.a.post_raw(&bytes[..BLOCK_BYTES]);
        pair.a.ring();
        while pair.step() {}
        assert_failed(&pair, Syndrome::LocalQpOperation, text);
    }
    let mut pair = pair();
    let local = pair.a.local(0, 8);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let mut bytes = [0; MAX_WQE_BYTES];
    let operands = Masked::FetchAdd8 { add: 1, boundary: 0 };
    Wqe::new(pair.a.qp.qpn(), 0, true, Op::Masked { remote, operands, local }).emit(&mut bytes);
    bytes[0] = 0x0a;
    pair.a.post_raw(&bytes[..BLOCK_BYTES]);
    pair.a.ring();
    while pair.step() {}
    assert_failed(&pair, Syndrome::LocalQpOperation, "masked atomic is 0x08 (4 bytes) or 0x09 (8 bytes)");
}

#[test]
fn local_keys() {
    let pair = pair();
    let (remote, local) = (Endpoint::remote(&pair.b.address(), 0), pair.a.local(0, 8));
    drop(pair);
    let write = |local: data::Repr| Op::Write { remote, local: Some(local) };
    // Numbers are given out alike, so the addresses fit the fresh pair in `fails`.
    let protection = Syndrome::LocalProtection;
    fails(write(data::Repr { lkey: 0x100, ..local }), protection, "data.lkey 0x100: no such key");
    fails(write(data::Repr { lkey: local.lkey ^ 1, ..local }), protection, "no such key");
    fails(write(data::Repr { addr: HEAP_START - 1, ..local }), protection, "data.addr");
    fails(write(data::Repr { addr: HEAP_START + (1 << 16) - 7, ..local }), protection, "data.addr");
    fails(write(data::Repr { addr: u64::MAX, ..local }), protection, "data.addr");
    fails(Op::Dump { local: data::Repr { addr: 0, ..local } }, protection, "data.addr");
    fails(Op::Read { remote, local: Some(data::Repr { addr: 0, ..local }) }, protection, "data.addr");
}

#[test]
fn lengths() {
    let pair = pair();
    let (remote, local) = (Endpoint::remote(&pair.b.address(), 0), pair.a.local(0, 8));
    drop(pair);
    let length = Syndrome::LocalLength;
    let long = data::Repr { byte_count: (1 << 30) + 1, ..local };
    fails(Op::Write { remote, local: Some(long) }, length, "above the QP's log_msg_max");
    fails(
        Op::Read { remote, local: Some(data::Repr { byte_count: 0, ..local }) },
        length,
        "data.byte_count is 2147483648",
    );
    fails(
        Op::AtomicFa { remote, add: 1, local: data::Repr { byte_count: 4, ..local } },
        length,
        "the atomic's result has 8",
    );
    let operands = Masked::FetchAdd4 { add: 1, boundary: 0 };
    fails(Op::Masked { remote, operands, local }, length, "the atomic's result has 4");
}

#[test]
fn remote_keys() {
    let pair = pair();
    let (remote, local) = (Endpoint::remote(&pair.b.address(), 0), pair.a.local(0, 8));
    drop(pair);
    let access = Syndrome::RemoteAccess;
    let write = |remote: raddr::Repr| Op::WriteInline { remote, payload: &[1; 8] };
    fails(write(raddr::Repr { rkey: 0, ..remote }), access, "raddr.rkey 0x0: no such key");
    fails(write(raddr::Repr { rkey: u32::MAX, ..remote }), access, "no such key");
    fails(write(raddr::Repr { rkey: remote.rkey ^ 1, ..remote }), access, "no such key");
    fails(write(raddr::Repr { raddr: HEAP_START - 1, ..remote }), access, "raddr.raddr");
    fails(write(raddr::Repr { raddr: HEAP_START + (1 << 16) - 7, ..remote }), access, "raddr.raddr");
    fails(write(raddr::Repr { raddr: u64::MAX, ..remote }), access, "raddr.raddr");
    let beyond = raddr::Repr { raddr: HEAP_START + (1 << 16), ..remote };
    fails(Op::Read { remote: beyond, local: Some(local) }, access, "raddr.raddr");
    fails(Op::AtomicFa { remote: beyond, add: 1, local }, access, "raddr.raddr");
}

#[test]
fn alignment_of_atomics() {
    let pair = pair();
    let (address, local) = (pair.b.address(), pair.a.local(0, 8));
    let half = pair.a.local(0, 4);
    drop(pair);
    let invalid = Syndrome::RemoteInvalidRequest;
    let remote = Endpoint::remote(&address, 4);
    fails(Op::AtomicFa { remote, add: 1, local }, invalid, "not a multiple of the atomic's 8 bytes");
    fails(Op::AtomicCs { remote, compare: 0, swap: 1, local }, invalid, "raddr.raddr");
    let operands = Masked::FetchAdd8 { add: 1, boundary: 0 };
    fails(Op::Masked { remote, operands, local }, invalid, "raddr.raddr");
    let remote = Endpoint::remote(&address, 2);
    let operands = Masked::CompareSwap4 { swap: 1, compare: 0, swap_mask: 1, compare_mask: 1 };
    fails(Op::Masked { remote, operands, local: half }, invalid, "not a multiple of the atomic's 4 bytes");
}

#[test]
fn rights_of_the_remote_key() {
    let rights = [
        (Access { remote_write: false, ..Access::ALL }, "remote writes"),
        (Access { remote_read: false, ..Access::ALL }, "remote reads"),
        (Access { remote_atomic: false, ..Access::ALL }, "remote atomics"),
    ];
    for (i, (access, text)) in rights.into_iter().enumerate() {
        let mut pair = Pair::new(EndpointOptions { access, ..common::options() }, stepped);
        let (remote, local) = (Endpoint::remote(&pair.b.address(), 0), pair.a.local(0, 8));
        let op = match i {
            0 => Op::WriteInline { remote, payload: &[1] },
            1 => Op::Read { remote, local: Some(local) },
            _ => Op::AtomicFa { remote, add: 1, local },
        };
        pair.run_any(op);
        assert_failed(&pair, Syndrome::RemoteAccess, text);
    }
}

/// Returns a second key over `a`'s heap.
fn second_key(pair: &Pair, pd: &Arc<Pd>, access: Access) -> Mkey {
    let attributes = MkeyAttributes {
        umem_offset: 0,
        len: 4096,
        start_addr: HEAP_START,
        access,
        relaxed_ordering: true,
        variant: KEY_VARIANT,
    };
    Mkey::create(pd, &pair.a.heap_umem, &attributes).unwrap()
}

#[test]
fn rights_of_the_local_key() {
    let mut pair = pair();
    let pd = Arc::clone(&pair.a.pd);
    let key = second_key(&pair, &pd, Access { local_write: false, ..Access::ALL });
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let local = data::Repr { lkey: key.lkey(), ..pair.a.local(0, 8) };
    pair.run(Op::Write { remote, local: Some(local) });
    pair.run_any(Op::Read { remote, local: Some(local) });
    assert_failed(&pair, Syndrome::LocalProtection, "does not allow local writes");
}

#[test]
fn keys_of_another_protection_domain() {
    let mut pair = pair();
    let provider: Arc<dyn Provider> = Arc::clone(&pair.hca_a) as Arc<dyn Provider>;
    let other = Pd::alloc(&provider).unwrap();
    let key = second_key(&pair, &other, Access::ALL);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let local = data::Repr { lkey: key.lkey(), ..pair.a.local(0, 8) };
    pair.run_any(Op::Write { remote, local: Some(local) });
    assert_failed(&pair, Syndrome::LocalProtection, "belongs to protection domain");

    // At the other end.
    let mut pair = self::pair();
    let provider: Arc<dyn Provider> = Arc::clone(&pair.hca_b) as Arc<dyn Provider>;
    let stranger = Endpoint::new(&provider, common::options()).unwrap();
    let remote = Endpoint::remote(&stranger.address(), 0);
    pair.run_any(Op::WriteInline { remote, payload: &[1] });
    assert_failed(&pair, Syndrome::RemoteAccess, "belongs to protection domain");
}

#[test]
fn a_destroyed_key_is_gone_at_once() {
    let mut pair = pair();
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1] });
    pair.b.key.close().unwrap();
    pair.b.key.close().unwrap();
    pair.run_any(Op::WriteInline { remote, payload: &[2] });
    assert_failed(&pair, Syndrome::RemoteAccess, "no such key");
    assert_eq!(pair.b.heap.read(0, 1), [1]);

    let mut pair = self::pair();
    let (remote, local) = (Endpoint::remote(&pair.b.address(), 0), pair.a.local(0, 8));
    pair.run(Op::Write { remote, local: Some(local) });
    pair.a.key.close().unwrap();
    pair.run_any(Op::Write { remote, local: Some(local) });
    assert_failed(&pair, Syndrome::LocalProtection, "no such key");
}

#[test]
fn doorbell_records() {
    for (value, text) in [(1 << 16, "dbr.send[31:16]"), (129, "covers 129 blocks"), (0xffff, "covers 65535 blocks")] {
        let mut pair = pair();
        pair.a.post(Op::Nop { ds: 1 }, false);
        pair.a.set_doorbell_record(value);
        pair.a.ring_register(doorbell::Repr::producer(1, pair.a.qp.qpn()));
        while pair.step() {}
        assert!(pair.hca_a.violations()[0].message.contains(text), "{:?}", pair.hca_a.violations());
        assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
    }
}

/// Retries last 2 x 4.096 us x 2^4.
fn impatient() -> QpAttributes {
    QpAttributes { ack_timeout: 4, retry_count: 1, ..QpAttributes::default() }
}

#[test]
fn a_peer_that_is_not_ready_is_retried() {
    let mut pair = pair();
    let provider: Arc<dyn Provider> = Arc::clone(&pair.hca_b) as Arc<dyn Provider>;
    let late = Endpoint::new(&provider, common::options()).unwrap();
    pair.a.qp.to_reset().unwrap();
    pair.a.restart();
    pair.a.connect(&late.address(), &QpAttributes::default()).unwrap();
    let index =
        pair.a.post_and_ring(Op::WriteInline { remote: Endpoint::remote(&late.address(), 0), payload: b"late" });
    for _ in 0..100 {
        pair.step();
    }
    assert_eq!(pair.a.cqe(), None);
    late.connect(&pair.a.address(), &QpAttributes::default()).unwrap();
    let cqe = pair.a.wait(index, common::LIMIT, || {
        pair.step();
    });
    assert!(matches!(cqe.unwrap().status, cqe::Status::Done { .. }));
    assert_eq!(late.heap.read(0, 4), b"late");
}

#[test]
fn a_peer_that_never_answers_exceeds_the_retries() {
    let connect = |psn: u32, other: bool| {
        let mut pair = pair();
        let provider: Arc<dyn Provider> = Arc::clone(&pair.hca_b) as Arc<dyn Provider>;
        let third = Endpoint::new(&provider, common::options()).unwrap();
        pair.a.qp.to_reset().unwrap();
        pair.a.restart();
        let target = if other { third.address() } else { pair.b.address() };
        pair.a.connect(&target, &QpAttributes { first_psn: psn, ..impatient() }).unwrap();
        if other {
            // The third is connected to `b`, not to `a`.
            third.connect(&pair.b.address(), &QpAttributes::default()).unwrap();
        }
        pair.run_any(Op::WriteInline { remote: Endpoint::remote(&target, 0), payload: &[1] });
        pair
    };
    assert_failed(&connect(5, false), Syndrome::RetryExceeded, "packet sequence number");
    assert_failed(&connect(0, true), Syndrome::RetryExceeded, "is connected to");

    let mut pair = Pair::with(common::options(), stepped(), stepped(), &impatient());
    pair.b.qp.to_error().unwrap();
    pair.run_any(Op::Write { remote: Endpoint::remote(&pair.b.address(), 0), local: None });
    assert_failed(&pair, Syndrome::RetryExceeded, "in state ERR");
}

#[test]
fn a_peers_hca_that_is_gone_exceeds_the_retries() {
    let mut pair = Pair::with(common::options(), stepped(), stepped(), &impatient());
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[1] });
    pair.hca_b.kill();
    pair.run_any(Op::WriteInline { remote, payload: &[1] });
    assert_failed(&pair, Syndrome::RetryExceeded, "is gone");
    assert!(pair.hca_b.dead().is_some());
    assert!(pair.b.qp.query().is_err());
}
