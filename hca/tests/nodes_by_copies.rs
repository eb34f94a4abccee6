//! The tests of transfers and violations between HCAs of two nodes whose memory is an
//! accelerator's: nothing but the accelerator touches it, so the engine's thread executes by
//! copies, and the thread that serves the other node by copies and by launches of atomics.
#![allow(clippy::unwrap_used, missing_docs)]
#![allow(clippy::duplicate_mod, reason = "each of the test programs has its own `common`")]

mod common;
#[path = "transfers.rs"]
mod transfers;
#[path = "violations.rs"]
mod violations;

use common::accelerator::Apart;
use common::{LIMIT, Pair};
use oxshmem_hca::soft::{CopyMode, SoftHca, SoftOptions};
use oxshmem_hca::testing::Endpoint;
use oxshmem_hca::wire::{Op, cqe};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Posts of every kind at once, so that requests wait for each other in batches.
#[test]
fn requests_of_one_queue_pair_take_effect_in_their_order() {
    let mut pair = Pair::new(common::options(), SoftOptions::default);
    let remote = |at| Endpoint::remote(&pair.b.address(), at);
    let (word, counter) = (remote(0), remote(64));
    let long: Vec<u8> = (0..3000u32).map(|i| (i * 7) as u8).collect();
    pair.a.heap.write(4096, &long);
    let mut adds = 0u64;
    for round in 1..=100u64 {
        let value = round.to_ne_bytes();
        // What was written is read, added to, read again, and overwritten.
        pair.a.post(Op::WriteInline { remote: word, payload: &value }, false);
        pair.a.post(Op::Read { remote: word, local: Some(pair.a.local(0, 8)) }, false);
        pair.a.post(Op::AtomicFa { remote: word, add: 1000, local: pair.a.local(8, 8) }, false);
        pair.a.post(Op::Read { remote: word, local: Some(pair.a.local(16, 8)) }, false);
        for _ in 0..round % 7 {
            pair.a.post(Op::AtomicFa { remote: counter, add: 1, local: pair.a.local(24, 8) }, false);
            adds += 1;
        }
        pair.a.post(Op::Write { remote: remote(128), local: Some(pair.a.local(4096, 3000)) }, false);
        let last = pair.a.post_and_ring(Op::Read { remote: remote(128), local: Some(pair.a.local(8192, 3000)) });
        let cqe = pair.a.wait(last, LIMIT, std::thread::yield_now).unwrap();
        assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}: {:?}", pair.hca_a.violations());
        let found = |at| pair.a.heap.word(at).load(Acquire);
        assert_eq!((found(0), found(8), found(16)), (round, round, round + 1000));
        assert_eq!(pair.b.heap.word(64).load(Acquire), adds);
        assert_eq!(pair.a.heap.read(8192, 3000), long);
        pair.a.heap.write(8192, &[0; 3000]);
    }
}

/// More than one launch executes, and more than the staging memory holds.
#[test]
fn many_atomics_and_much_data_take_several_batches() {
    let options = oxshmem_hca::testing::EndpointOptions { log_sq_size: 11, heap_bytes: 4 << 20, ..common::options() };
    let mut pair = Pair::new(options, SoftOptions::default);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    for i in 0..1500u64 {
        let local = pair.a.local(8 * i, 8);
        pair.a.post(Op::AtomicFa { remote, add: 1, local }, i == 1499);
    }
    pair.a.ring();
    pair.a.wait(1499, LIMIT, std::thread::yield_now).unwrap();
    assert_eq!(pair.b.heap.word(0).load(Acquire), 1500);
    assert!((0..1500).all(|i| pair.a.heap.word(8 * i).load(Acquire) == i as u64));

    let data: Vec<u8> = (0..2_000_003u32).map(|i| ((i * 13) >> 2) as u8).collect();
    pair.a.heap.write(1, &data);
    let remote = Endpoint::remote(&pair.b.address(), 9);
    pair.run(Op::Write { remote, local: Some(pair.a.local(1, data.len() as u32)) });
    assert_eq!(pair.b.heap.read(9, data.len()), data);
    pair.run(Op::Read { remote, local: Some(pair.a.local(2 << 20, data.len() as u32)) });
    assert_eq!(pair.a.heap.read(2 << 20, data.len()), data);
}

#[test]
fn an_engine_that_may_not_copy_is_refused() {
    let open = |copying, null| {
        let accelerator: Arc<dyn oxshmem_hca::soft::Accelerator> = Arc::new(Apart);
        SoftHca::open(SoftOptions { accelerator: Some(accelerator), copying, null, ..SoftOptions::default() }).unwrap()
    };
    let refusal = |hca: &SoftHca| hca.listen("127.0.0.1:0".parse().unwrap(), b"secret").unwrap_err().to_string();
    let text = refusal(&open(CopyMode::Never, false));
    assert!(text.contains("OXSHMEM_SOFT_ENGINE=auto or copy"), "{text}");
    let text = refusal(&open(CopyMode::WhenNeeded, true));
    assert!(text.contains("null card"), "{text}");
}
