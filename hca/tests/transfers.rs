//! Every operation of the software HCA, between two HCAs of this process, engines with threads and
//! stepped.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{LIMIT, Pair};
use oxshmem_hca::soft::SoftOptions;
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::masked_atomic::Repr as Masked;
use oxshmem_hca::wire::{Op, cqe};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

fn both(test: impl Fn(Pair)) {
    for stepped in [true, false] {
        test(Pair::new(common::options(), || SoftOptions { stepped, ..SoftOptions::default() }));
    }
}

#[test]
fn inline_writes_of_every_length() {
    both(|mut pair| {
        for len in (0..=64).chain([255, 256, 500, 900]) {
            let payload: Vec<u8> = (0..len).map(|i| (i * 3 + len) as u8).collect();
            let before = pair.b.heap.read(0, 1024);
            let remote = Endpoint::remote(&pair.b.address(), 8);
            pair.run(Op::WriteInline { remote, payload: &payload });
            let after = pair.b.heap.read(0, 1024);
            assert_eq!(&after[8..8 + len], &payload[..]);
            assert_eq!((&after[..8], &after[8 + len..]), (&before[..8], &before[8 + len..]), "length {len}");
        }
    });
}

#[test]
fn writes_and_reads_of_many_lengths_and_alignments() {
    both(|mut pair| {
        let pattern: Vec<u8> = (0..8192u32).map(|i| (i * 7 % 251) as u8).collect();
        pair.a.heap.write(0, &pattern);
        for (from, to, len) in [(0, 0, 1), (1, 2, 3), (8, 16, 8), (3, 5, 8), (0, 7, 4096), (9, 1, 4097), (1, 1, 100)] {
            let remote = Endpoint::remote(&pair.b.address(), 8192 + to);
            let local = Some(pair.a.local(from, len));
            pair.run(Op::Write { remote, local });
            let expected = &pattern[from as usize..(from + u64::from(len)) as usize];
            assert_eq!(pair.b.heap.read(8192 + to as usize, len as usize), expected);
            // And back.
            let local = Some(pair.a.local(32768 + from, len));
            pair.run(Op::Read { remote, local });
            assert_eq!(pair.a.heap.read((32768 + from) as usize, len as usize), expected);
        }
    });
}

#[test]
fn long_transfers_take_several_turns() {
    let options = EndpointOptions { heap_bytes: 8 << 20, ..common::options() };
    let mut pair = Pair::new(options, || SoftOptions { stepped: true, ..SoftOptions::default() });
    let pattern: Vec<u8> = (0..7_000_001u32).map(|i| ((i * 31) >> 3) as u8).collect();
    pair.a.heap.write(5, &pattern);
    let remote = Endpoint::remote(&pair.b.address(), 3);
    let local = Some(pair.a.local(5, pattern.len() as u32));
    let cqe = pair.run(Op::Write { remote, local });
    assert!(matches!(cqe.status, cqe::Status::Done { byte_cnt: 7_000_001, .. }));
    assert_eq!(pair.b.heap.read(3, pattern.len()), pattern);
}

#[test]
fn nothing_to_move_completes() {
    both(|mut pair| {
        let remote = Endpoint::remote(&pair.b.address(), 0);
        pair.run(Op::Nop { ds: 1 });
        pair.run(Op::Nop { ds: 2 });
        pair.run(Op::Write { remote, local: None });
        pair.run(Op::Read { remote, local: None });
        let local = pair.a.local(0, 64);
        pair.run(Op::Dump { local });
        assert!(pair.hca_a.violations().is_empty());
    });
}

#[test]
fn eight_byte_atomics() {
    both(|mut pair| {
        let remote = Endpoint::remote(&pair.b.address(), 64);
        let local = pair.a.local(128, 8);
        let word = |pair: &Pair| pair.b.heap.word(64).load(Acquire);
        let result = |pair: &Pair| pair.a.heap.word(128).load(Acquire);
        pair.b.heap.word(64).store(40, Release);
        pair.run(Op::AtomicFa { remote, add: 2, local });
        assert_eq!((word(&pair), result(&pair)), (42, 40));
        pair.run(Op::AtomicFa { remote, add: u64::MAX, local });
        assert_eq!((word(&pair), result(&pair)), (41, 42));
        pair.run(Op::AtomicCs { remote, compare: 7, swap: 1, local });
        assert_eq!((word(&pair), result(&pair)), (41, 41));
        pair.run(Op::AtomicCs { remote, compare: 41, swap: 0x0102_0304_0506_0708, local });
        assert_eq!((word(&pair), result(&pair)), (0x0102_0304_0506_0708, 41));
    });
}

#[test]
fn masked_atomics_of_eight_bytes() {
    both(|mut pair| {
        let remote = Endpoint::remote(&pair.b.address(), 64);
        let local = pair.a.local(128, 8);
        let mut step = |old: u64, operands: Masked| {
            pair.b.heap.word(64).store(old, Release);
            pair.run(Op::Masked { remote, operands, local });
            assert_eq!(pair.a.heap.word(128).load(Acquire), old, "{operands}");
            pair.b.heap.word(64).load(Acquire)
        };
        assert_eq!(step(0xffff, Masked::FetchAdd8 { add: 1, boundary: 0 }), 0x10000);
        assert_eq!(step(0xffff, Masked::FetchAdd8 { add: 1, boundary: 1 << 15 }), 0);
        assert_eq!(step(0b1100, Masked::FetchAdd8 { add: 0b1010, boundary: u64::MAX }), 0b0110);
        let swap =
            |swap, compare, swap_mask, compare_mask| Masked::CompareSwap8 { swap, compare, swap_mask, compare_mask };
        assert_eq!(step(5, swap(9, 0, u64::MAX, 0)), 9);
        assert_eq!(step(0xf0f0, swap(0xffff, 0, 0x0f00, 0)), 0xfff0);
        assert_eq!(step(5, swap(9, 4, u64::MAX, u64::MAX)), 5);
        assert_eq!(step(5, swap(9, 5, u64::MAX, u64::MAX)), 9);
    });
}

#[test]
fn masked_atomics_of_four_bytes_answer_big_endian() {
    both(|mut pair| {
        let remote = Endpoint::remote(&pair.b.address(), 68);
        let local = pair.a.local(132, 4);
        let mut step = |old: u32, operands: Masked| {
            pair.b.heap.half_word(64).store(0x5555_5555, Relaxed);
            pair.b.heap.half_word(72).store(0x5555_5555, Relaxed);
            pair.b.heap.half_word(68).store(old, Release);
            pair.run(Op::Masked { remote, operands, local });
            assert_eq!(u32::from_be(pair.a.heap.half_word(132).load(Acquire)), old, "{operands}");
            assert_eq!(pair.b.heap.half_word(64).load(Relaxed), 0x5555_5555);
            assert_eq!(pair.b.heap.half_word(72).load(Relaxed), 0x5555_5555);
            pair.b.heap.half_word(68).load(Acquire)
        };
        assert_eq!(step(u32::MAX, Masked::FetchAdd4 { add: 3, boundary: 0 }), 2);
        assert_eq!(step(0b1100, Masked::FetchAdd4 { add: 0b1010, boundary: u32::MAX }), 0b0110);
        let swap =
            |swap, compare, swap_mask, compare_mask| Masked::CompareSwap4 { swap, compare, swap_mask, compare_mask };
        assert_eq!(step(1, swap(0x0102_0304, 0, u32::MAX, 0)), 0x0102_0304);
        assert_eq!(step(1, swap(7, 2, u32::MAX, u32::MAX)), 1);
    });
}

#[test]
fn atomics_are_atomic_against_the_owner() {
    let mut pair = Pair::new(common::options(), SoftOptions::default);
    const EACH: u64 = 2000;
    let remote = Endpoint::remote(&pair.b.address(), 0);
    let local = pair.a.local(0, 8);
    std::thread::scope(|scope| {
        let (heap, a) = (&pair.b.heap, &mut pair.a);
        scope.spawn(move || {
            for _ in 0..EACH {
                heap.word(0).fetch_add(1, Relaxed);
            }
        });
        scope.spawn(move || {
            for _ in 0..EACH {
                let index = a.post_and_ring(Op::AtomicFa { remote, add: 1, local });
                a.wait(index, LIMIT, std::thread::yield_now).unwrap();
            }
        });
    });
    assert_eq!(pair.b.heap.word(0).load(Acquire), 2 * EACH);
}

#[test]
fn a_queue_pair_may_be_connected_to_its_own_hca() {
    let hca = oxshmem_hca::soft::SoftHca::open(SoftOptions::default()).unwrap();
    let provider: std::sync::Arc<dyn oxshmem_hca::provider::Provider> = hca;
    let mut a = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
    let b = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
    a.connect(&b.address(), &Default::default()).unwrap();
    b.connect(&a.address(), &Default::default()).unwrap();
    let index = a.post_and_ring(Op::WriteInline { remote: Endpoint::remote(&b.address(), 0), payload: b"loopback" });
    a.wait(index, LIMIT, std::thread::yield_now).unwrap();
    assert_eq!(b.heap.read(0, 8), b"loopback");
}

#[test]
fn unsignaled_work_writes_no_cqe() {
    let mut pair = Pair::new(common::options(), || SoftOptions { stepped: true, ..SoftOptions::default() });
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for _ in 0..10 {
        pair.a.post(Op::WriteInline { remote, payload: &[1] }, false);
    }
    pair.a.ring();
    while pair.step() {}
    assert_eq!(pair.a.cqe(), None);
    assert_eq!(pair.b.heap.read(0, 1), [1]);
    let counters = oxshmem_hca::provider::Provider::counters(&*pair.hca_a).unwrap();
    assert_eq!((counters.wqes, counters.cqes, counters.bytes, counters.doorbells), (10, 0, 10, 1));
}

#[test]
fn memory_may_come_and_go_while_connected() {
    let mut pair = Pair::new(common::options(), || SoftOptions { stepped: true, ..SoftOptions::default() });
    for round in 0..20u8 {
        let memory = oxshmem_hca::testing::SharedMemory::new(8192).unwrap();
        // SAFETY: the registration is closed before the memory is dropped.
        let umem = unsafe {
            oxshmem_hca::objects::Umem::register(
                pair.b.pd.provider(),
                memory.source_at(common::options().shift),
                oxshmem_hca::provider::Access::ALL,
            )
        }
        .unwrap();
        let attributes = oxshmem_hca::objects::MkeyAttributes {
            umem_offset: 4096,
            len: 4096,
            start_addr: 0x1000,
            access: oxshmem_hca::provider::Access::ALL,
            relaxed_ordering: false,
            variant: oxshmem_hca::objects::KEY_VARIANT,
        };
        let key = oxshmem_hca::objects::Mkey::create(&pair.b.pd, &umem, &attributes).unwrap();
        let remote = oxshmem_hca::wire::raddr::Repr { raddr: 0x1ffc, rkey: key.rkey() };
        pair.run(Op::WriteInline { remote, payload: &[round; 4] });
        assert_eq!(memory.read(8188, 4), [round; 4]);
        key.close().unwrap();
        umem.close().unwrap();
    }
}
