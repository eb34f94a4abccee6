//! How many work requests the engine of the software HCA executes per second, on one thread, once
//! they are in the queue.
#![allow(clippy::unwrap_used, missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointAddress, EndpointOptions};
use oxshmem_hca::wire::Op;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOG_DEPTH: u8 = 13;

fn engine(c: &mut Criterion) {
    let open = || SoftHca::open(SoftOptions { stepped: true, ..SoftOptions::default() }).unwrap();
    let (hca_a, hca_b) = (open(), open());
    let options = EndpointOptions { log_sq_size: LOG_DEPTH, heap_bytes: 1 << 20, ..EndpointOptions::default() };
    let provider = |hca: &Arc<SoftHca>| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(hca) };
    let mut a = Endpoint::new(&provider(&hca_a), options).unwrap();
    let b = Endpoint::new(&provider(&hca_b), options).unwrap();
    a.connect(&b.address(), &QpAttributes::default()).unwrap();
    b.connect(&a.address(), &QpAttributes::default()).unwrap();
    let peer = b.address();

    type Make = fn(&Endpoint, &EndpointAddress, u64) -> Op<'static>;
    let cases: [(&str, Make, u64); 5] = [
        ("inline write, 8 bytes", |_, peer, i| inline(peer, i), 1),
        ("inline write, 256 bytes", |_, peer, i| inline_256(peer, i), 5),
        ("write, 8 bytes", |a, peer, i| write(a, peer, i, 8), 1),
        ("write, 4 KiB", |a, peer, i| write(a, peer, i, 4096), 1),
        ("fetch and add", |a, peer, i| fetch_add(a, peer, i), 1),
    ];
    let mut group = c.benchmark_group("engine");
    for (name, make, blocks) in cases {
        let count = (1u64 << LOG_DEPTH) / blocks;
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |bench| {
            bench.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    for i in 0..count {
                        let op = make(&a, &peer, i);
                        a.post(op, i + 1 == count);
                    }
                    a.ring();
                    let start = Instant::now();
                    while hca_a.progress() > 0 || hca_a.is_waiting() {
                        hca_b.progress();
                    }
                    spent += start.elapsed();
                }
                spent
            });
        });
    }
    group.finish();
    assert!(hca_a.violations().is_empty(), "{:?}", hca_a.violations());
}

fn inline(peer: &EndpointAddress, i: u64) -> Op<'static> {
    Op::WriteInline { remote: Endpoint::remote(peer, i % 1024 * 8), payload: &[7; 8] }
}

fn inline_256(peer: &EndpointAddress, i: u64) -> Op<'static> {
    Op::WriteInline { remote: Endpoint::remote(peer, i % 1024 * 256), payload: &[7; 256] }
}

fn write(a: &Endpoint, peer: &EndpointAddress, i: u64, len: u32) -> Op<'static> {
    let remote = Endpoint::remote(peer, i % 128 * 4096);
    Op::Write { remote, local: Some(a.local(i % 128 * 4096, len)) }
}

fn fetch_add(a: &Endpoint, peer: &EndpointAddress, i: u64) -> Op<'static> {
    Op::AtomicFa { remote: Endpoint::remote(peer, i % 1024 * 8), add: 1, local: a.local(0, 8) }
}

criterion_group!(benches, engine);
criterion_main!(benches);
