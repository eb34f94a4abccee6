//! How many descriptors a second each stage of the proxy handles on one thread, and all of them
//! together, from a full ring to work requests whose doorbell was rung. Every descriptor is a put
//! of eight bytes that travel inside; four queue pairs share them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxshmem_hca::objects::{Pd, QpAttributes};
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::descriptor::{Descriptor, Request, SLOT_BYTES, Slot, WORDS};
use oxshmem_proxy::devx::{QueueLayout, Queues};
use oxshmem_proxy::engine::{Engine, EngineOptions, Results};
use oxshmem_proxy::ring::{RawWords, Reader, write_slot};
use oxshmem_proxy::striping::Striping;
use oxshmem_proxy::work::{
    Backend, Capabilities, Completion, Operation, PAYLOAD_BYTES, Payload, Registered, Remote, Status, Transfer,
    WorkRequest,
};

const LOG_DEPTH: u32 = 12;
const COUNT: u64 = 1 << LOG_DEPTH;
const QPS: u32 = 4;
/// Room for all of a round's requests, two blocks each.
const LOG_QUEUE: u32 = LOG_DEPTH + 1;

/// A ring that is filled from the start again and again.
struct Ring(Vec<AtomicU64>);

impl Ring {
    fn new() -> Self {
        Self((0..(SLOT_BYTES / 8) << LOG_DEPTH).map(|_| AtomicU64::new(0)).collect())
    }

    fn fill(&self, from: u64) {
        for index in from..from + COUNT {
            let store = |at: usize, word| self.0[at].store(word, Ordering::Relaxed);
            write_slot(descriptor(index), index, LOG_DEPTH, store);
        }
    }

    fn reader(&self) -> Reader<RawWords> {
        // SAFETY: the ring outlives the reader, which the callers drop first, and is written by
        // atomic stores.
        let words = unsafe { RawWords::new(self.0.as_ptr().cast()) };
        Reader::new(words, LOG_DEPTH)
    }
}

fn descriptor(index: u64) -> Slot {
    let payload = Payload::new([index as u8; PAYLOAD_BYTES], 8);
    let target = Remote { address: index % 1024 * 8, key: 7 };
    let request = Request::Transfer(Transfer::WriteInline { payload, target });
    Descriptor { pe: 1, queue: index as u32 % QPS, ordered: false, request }.encode()
}

struct NoResults;

impl Results for NoResults {
    fn load(&self, _: u32) -> u64 {
        0
    }
    fn store(&mut self, _: u32, _: u64) {}
}

fn engine(capabilities: Capabilities) -> Engine {
    let options = EngineOptions {
        me: 0,
        n_pes: 2,
        striping: Striping::new(QPS, 1),
        own: false,
        window: COUNT as usize,
        landing: Registered::default(),
        slots: 1,
        staging: None,
    };
    Engine::new(options, capabilities)
}

/// Queue pairs of two software HCAs that execute only when they are told to.
struct Cards {
    queues: [Queues; 2],
    hcas: [Arc<SoftHca>; 2],
    _memory: [Vec<u64>; 2],
}

impl Cards {
    fn new() -> Self {
        let open = || SoftHca::open(SoftOptions { stepped: true, ..SoftOptions::default() }).unwrap();
        let hcas = [open(), open()];
        let layout = QueueLayout { count: QPS, log_depth: LOG_QUEUE };
        // Aligned to what the layout asks for by starting after the first page's rest.
        let words = layout.bytes() as usize / 8 + 512;
        let mut memory = [vec![0u64; words], vec![0u64; words]];
        let queues: Vec<Queues> = hcas
            .iter()
            .zip(&mut memory)
            .map(|(hca, memory)| {
                let provider: Arc<dyn Provider> = Arc::<SoftHca>::clone(hca);
                let base = memory.as_mut_ptr().cast::<u8>();
                let base = base.wrapping_add(base.align_offset(4096));
                // SAFETY: the memory is a field after the queues, so it is dropped after them.
                unsafe {
                    Queues::create(&Pd::alloc(&provider).unwrap(), base, layout, true, Fence::StrongOrdering, || {})
                }
                .unwrap()
            })
            .collect();
        let queues: [Queues; 2] = queues.try_into().unwrap_or_else(|_| unreachable!());
        for qp in 0..QPS {
            let addresses = [queues[0].address(qp).unwrap(), queues[1].address(qp).unwrap()];
            queues[0].connect(&[(qp, addresses[1], QpAttributes::default())]).unwrap();
            queues[1].connect(&[(qp, addresses[0], QpAttributes::default())]).unwrap();
        }
        Self { queues, hcas, _memory: memory }
    }

    /// Executes everything. The key is none of the peer's, so requests of the first round fail;
    /// queue pairs then take what is posted and flush it, which is as good for measuring how fast
    /// it is posted.
    fn settle(&mut self) {
        while self.hcas[0].progress() > 0 || self.hcas[0].is_waiting() {
            self.hcas[1].progress();
        }
        self.queues[0].poll(&mut Vec::new()).unwrap();
    }
}

fn stages(c: &mut Criterion) {
    let mut group = c.benchmark_group("proxy");
    group.throughput(Throughput::Elements(COUNT));

    group.bench_function("ring only", |bench| {
        let ring = Ring::new();
        let mut reader = ring.reader();
        bench.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                ring.fill(reader.taken());
                let start = Instant::now();
                while let Some(slot) = reader.take() {
                    black_box(slot);
                }
                spent += start.elapsed();
            }
            spent
        });
    });

    group.bench_function("engine only", |bench| {
        let mut engine = engine(Capabilities {
            inline_bytes: PAYLOAD_BYTES as u32,
            width_four: true,
            masked: true,
            four_is_big_endian: false,
            atomics_coherent_with_cpu: true,
            send_depth: COUNT as u32,
            max_message: 1 << 30,
        });
        let slots: Vec<[u64; WORDS]> = (0..COUNT).map(descriptor).collect();
        let mut chain = Vec::new();
        bench.iter(|| {
            for batch in slots.chunks(64) {
                batch.iter().for_each(|slot| engine.accept(slot));
                while let Some(qp) = engine.chain(&mut chain) {
                    let id = chain.last().map_or(0, |last: &WorkRequest| last.id);
                    engine.complete(&Completion { qp, id, status: Status::Success }, &mut NoResults);
                }
            }
            assert!(engine.is_idle());
        });
    });

    group.bench_function("post only", |bench| {
        let mut cards = Cards::new();
        let mut next_id = 0;
        bench.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let chains: Vec<Vec<WorkRequest>> = (0..COUNT / 64)
                    .map(|chain| {
                        (0..64)
                            .map(|i| {
                                let payload = Payload::new([i as u8; PAYLOAD_BYTES], 8);
                                let target = Remote { address: i * 8, key: 7 };
                                let operation = Operation::Transfer(Transfer::WriteInline { payload, target });
                                let id = next_id + chain / u64::from(QPS) * 64 + i;
                                WorkRequest { id, operation, signaled: i == 63, fence: false }
                            })
                            .collect()
                    })
                    .collect();
                next_id += COUNT / u64::from(QPS);
                let start = Instant::now();
                for (number, chain) in chains.iter().enumerate() {
                    cards.queues[0].post(number as u32 % QPS, chain).unwrap();
                }
                spent += start.elapsed();
                cards.settle();
            }
            spent
        });
    });

    group.bench_function("ring, engine and post", |bench| {
        let mut cards = Cards::new();
        let ring = Ring::new();
        let mut reader = ring.reader();
        let mut engine = engine(*cards.queues[0].capabilities());
        let mut chain = Vec::new();
        bench.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                ring.fill(reader.taken());
                let start = Instant::now();
                loop {
                    let before = reader.taken();
                    while reader.taken() - before < 64
                        && let Some(slot) = reader.take()
                    {
                        engine.accept(&slot);
                    }
                    if reader.taken() == before {
                        break;
                    }
                    while let Some(qp) = engine.chain(&mut chain) {
                        cards.queues[0].post(qp, &chain).unwrap();
                        // It counts as done at once; what the cards make of it is not measured.
                        let id = chain.last().map_or(0, |last: &WorkRequest| last.id);
                        engine.complete(&Completion { qp, id, status: Status::Success }, &mut NoResults);
                    }
                }
                spent += start.elapsed();
                assert!(engine.is_idle());
                cards.settle();
            }
            spent
        });
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
