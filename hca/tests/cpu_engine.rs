//! What only the engine of the CPU has: CQs that are not collapsed, doorbells that it judges
//! itself, private memory, and writes that become visible late.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{LIMIT, Pair};
use oxshmem_hca::objects::{KEY_VARIANT, Mkey, MkeyAttributes, QpAttributes, Umem};
use oxshmem_hca::prm::qpc::QpState;
use oxshmem_hca::provider::{Access, Provider, UmemSource};
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::{Op, cqe, data, doorbell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

fn stepped() -> SoftOptions {
    SoftOptions { stepped: true, ..SoftOptions::default() }
}

fn pair() -> Pair {
    Pair::new(EndpointOptions::default(), stepped)
}

#[test]
fn a_cq_that_is_not_collapsed_flips_its_owner_bit() {
    let options = EndpointOptions { collapsed: false, log_cq_size: 2, ..EndpointOptions::default() };
    let mut pair = Pair::new(options, || SoftOptions { stepped: true, ..SoftOptions::default() });
    for round in 0..50u16 {
        for _ in 0..3 {
            pair.a.post(Op::Nop { ds: 1 }, true);
        }
        pair.a.ring();
        while pair.step() {}
        for i in 0..3 {
            let cqe = pair.a.poll().unwrap();
            assert_eq!(cqe.wqe_counter, round * 3 + i);
        }
        assert_eq!(pair.a.poll(), None);
    }
}

#[test]
fn a_cq_that_is_not_drained_overruns() {
    let options = EndpointOptions { collapsed: false, log_cq_size: 2, ..EndpointOptions::default() };
    let mut pair = Pair::new(options, || SoftOptions { stepped: true, ..SoftOptions::default() });
    for _ in 0..5 {
        pair.a.post(Op::Nop { ds: 1 }, true);
    }
    pair.a.ring();
    while pair.step() {}
    assert!(pair.hca_a.violations()[0].message.contains("overran"));
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
}

#[test]
fn doorbells() {
    let mut pair = pair();
    let qpn = pair.a.qp.qpn();
    pair.a.ring_register(doorbell::Repr::producer(0, 0xabcdef));
    while pair.step() {}
    pair.a.ring_register(doorbell::Repr { ds: 0xc1, ..doorbell::Repr::producer(0, qpn) });
    while pair.step() {}
    pair.a.post(Op::Nop { ds: 1 }, true);
    pair.a.write_doorbell_record();
    pair.a.ring_register(doorbell::Repr::producer(2, qpn));
    while pair.step() {}
    // A doorbell through another QP's page.
    let provider: Arc<dyn Provider> = Arc::clone(&pair.hca_a) as Arc<dyn Provider>;
    let other = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
    other.ring_register(doorbell::Repr::producer(1, qpn));
    while pair.step() {}
    // A doorbell before the QP is ready.
    other.ring();
    while pair.step() {}
    let violations = pair.hca_a.violations();
    for (violation, text) in violations.iter().zip([
        "no QP 0xabcdef",
        "doorbell.qpn_ds[7:6]",
        "ahead of the doorbell record",
        "created with page",
        "in state RST",
    ]) {
        assert!(violation.message.contains(text), "`{text}` is not in `{violation}`");
        assert_eq!(violation.syndrome, None);
    }
    assert_eq!(violations.len(), 5);
    // None of them did harm.
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Rts);
    pair.run(Op::Nop { ds: 1 });
}

#[test]
fn private_memory_cannot_be_offered_to_peers() {
    let pair = pair();
    let mut memory = vec![0u64; 1024];
    let source = UmemSource::Host { addr: memory.as_mut_ptr().cast(), len: 8192 };
    // SAFETY: the vector outlives the registration, and is not used meanwhile.
    let refused = unsafe { pair.hca_a.reg_umem(source, Access::ALL) };
    assert!(refused.unwrap_err().to_string().contains("UmemSource::Fd"));
    // SAFETY: as above; `umem` is dropped at the end of this function, before the vector.
    let umem = unsafe { Umem::register(pair.a.pd.provider(), source, Access::LOCAL) }.unwrap();
    let attributes = MkeyAttributes {
        umem_offset: 0,
        len: 8192,
        start_addr: 0,
        access: Access::LOCAL,
        relaxed_ordering: false,
        variant: KEY_VARIANT,
    };
    let key = Mkey::create(&pair.a.pd, &umem, &attributes).unwrap();
    let mut pair = pair;
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.b.heap.write(0, b"to private memory");
    let local = data::Repr { byte_count: 17, lkey: key.lkey(), addr: 16 };
    pair.run(Op::Read { remote, local: Some(local) });
    drop((key, umem));
    assert_eq!(&memory[2].to_ne_bytes(), b"to priva");
}

/// Writes data, lets `between` happen, writes a flag, and looks at the data when the flag is there;
/// how often it was not there.
fn flags_before_data(options: impl Fn() -> SoftOptions, between: impl Fn(&mut Pair)) -> u32 {
    const ROUNDS: u64 = 60;
    let mut pair = Pair::new(EndpointOptions::default(), options);
    let mut early = 0;
    for round in 1..=ROUNDS {
        let payload = round.to_ne_bytes();
        let write = |pair: &mut Pair, at| {
            let remote = Endpoint::remote(&pair.b.address(), at);
            pair.run(Op::WriteInline { remote, payload: &payload });
        };
        write(&mut pair, 0);
        between(&mut pair);
        write(&mut pair, 64);
        while pair.b.heap.word(64).load(Acquire) != round {
            pair.step();
        }
        early += u32::from(pair.b.heap.word(0).load(Acquire) != round);
        flush(&mut pair);
        assert_eq!(pair.b.heap.word(0).load(Acquire), round);
    }
    early
}

/// A read by the QP that wrote finds, and so makes visible, all that was written before.
fn flush(pair: &mut Pair) {
    let remote = Endpoint::remote(&pair.b.address(), 128);
    let local = Some(pair.a.local(128, 8));
    pair.run(Op::Read { remote, local });
}

#[test]
fn without_order_a_flag_may_be_seen_before_its_data_unless_that_is_flushed() {
    // The engine holds writes back that it carries out itself.
    if common::side() == common::Side::Tcp {
        return;
    }
    let unordered = || SoftOptions { stepped: true, unordered_visibility: true, ..SoftOptions::default() };
    assert!(flags_before_data(unordered, |_| {}) > 0);
    assert_eq!(flags_before_data(unordered, flush), 0);
    // Late, but in order.
    let late = || SoftOptions { stepped: true, late_visibility: true, ..SoftOptions::default() };
    assert_eq!(flags_before_data(late, |_| {}), 0);
}

#[test]
fn a_read_makes_visible_what_was_written_to_its_peer() {
    // Writes over TCP are never late.
    if common::side() == common::Side::Tcp {
        return;
    }
    for unordered_visibility in [false, true] {
        let late =
            || SoftOptions { stepped: true, late_visibility: true, unordered_visibility, ..SoftOptions::default() };
        let mut pair = Pair::new(EndpointOptions::default(), late);
        let end = |hca: Arc<SoftHca>| {
            let provider: Arc<dyn Provider> = hca;
            Endpoint::new(&provider, EndpointOptions::default()).unwrap()
        };
        let (mut other, c) = (end(Arc::clone(&pair.hca_a)), end(SoftHca::open(late()).unwrap()));
        other.connect(&c.address(), &QpAttributes::default()).unwrap();
        c.connect(&other.address(), &QpAttributes::default()).unwrap();
        let (remote, local) = (Endpoint::remote(&c.address(), 0), other.local(128, 8));
        let mut run = |pair: &Pair, op: Op<'_>| {
            let index = other.post_and_ring(op);
            let cqe = other.wait(index, LIMIT, || _ = pair.step()).unwrap();
            assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
        };
        let mut hidden = 0;
        for round in 1..=60u64 {
            run(&pair, Op::WriteInline { remote, payload: &round.to_ne_bytes() });
            // A read at another peer.
            flush(&mut pair);
            hidden += u32::from(c.heap.word(0).load(Acquire) != round);
            run(&pair, Op::Read { remote, local: Some(local) });
            assert_eq!(c.heap.word(0).load(Acquire), round);
        }
        assert!(hidden > 0);
    }
}
