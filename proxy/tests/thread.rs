//! The proxy's thread with staged puts: copies that end late and in another order, that do not get
//! through, and that fail.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oxshmem_hca::topology::MAX_SENDERS;
use oxshmem_proxy::block::{Block, Layout};
use oxshmem_proxy::descriptor::{Descriptor, Request};
use oxshmem_proxy::engine::{Engine, EngineOptions};
use oxshmem_proxy::ring::write_slot;
use oxshmem_proxy::staging::{Copied, Copier, CopyRequest, Staging};
use oxshmem_proxy::striping::Striping;
use oxshmem_proxy::thread::{Lost, Pace, Proxy};
use oxshmem_proxy::work::{
    Backend, Capabilities, Completion, Local, Operation, PAYLOAD_BYTES, Payload, PollError, PostError, Registered,
    Remote, Status, Transfer, WorkRequest,
};

const LAYOUT: Layout = Layout { log_depth: 6, log_landing: 2, n_pes: 2 };
const SLOT: u32 = 32;
const SLOTS: u32 = 4;
const BYTES: usize = 4096;
/// Far above what anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn bytes(count: usize, value: impl Fn(usize) -> u8) -> Vec<AtomicU8> {
    (0..count).map(|i| AtomicU8::new(value(i))).collect()
}

/// This PE's heap (key 55), bounce slots (key 66), and the peer's heap. Addresses are offsets.
struct Memory {
    own: Vec<AtomicU8>,
    bounce: Vec<AtomicU8>,
    peer: Vec<AtomicU8>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let own = bytes(BYTES, |i| (i * 37 + i / 256) as u8);
        Arc::new(Self { own, bounce: bytes((SLOT * SLOTS) as usize, |_| 0xee), peer: bytes(BYTES, |_| 0) })
    }

    fn peer(&self) -> Vec<u8> {
        self.peer.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }
}

/// A card that carries out what it is given at once, and tells of it at the next poll.
struct Card {
    memory: Arc<Memory>,
    capabilities: Capabilities,
    done: Vec<Completion>,
}

impl Backend for Card {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, qp: u32, requests: &[WorkRequest]) -> Result<(), PostError> {
        for request in requests {
            let Memory { own, bounce, peer } = &*self.memory;
            let at = request.operation.remote().address as usize;
            let store = |i: usize, byte: u8| peer[at + i].store(byte, Ordering::Relaxed);
            match request.operation {
                Operation::Transfer(Transfer::Write { source, .. }) => {
                    let from = if source.key == 66 { bounce } else { own };
                    for i in 0..source.length as usize {
                        store(i, from[source.address as usize + i].load(Ordering::Relaxed));
                    }
                }
                Operation::Transfer(Transfer::WriteInline { payload, .. }) => {
                    payload.as_slice().iter().enumerate().for_each(|(i, byte)| store(i, *byte));
                }
                other => panic!("{other:?}"),
            }
            self.done.push(Completion { qp, id: request.id, status: Status::Success });
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), PollError> {
        completions.append(&mut self.done);
        Ok(())
    }
}

/// What a copier does with the copies it was given.
#[derive(Clone)]
enum Manner {
    /// The newest first, one every third time it is asked.
    Late,
    /// Nothing, until the flag is set.
    Held(Arc<AtomicBool>),
    /// The third one fails.
    Failing,
}

struct Model {
    memory: Arc<Memory>,
    manner: Manner,
    under_way: Vec<CopyRequest>,
    started: u32,
    polls: u32,
}

impl Copier for Model {
    fn start(&mut self, copy: &CopyRequest) -> Result<(), String> {
        self.started += 1;
        if matches!(self.manner, Manner::Failing) && self.started == 3 {
            return Err("no more of it".to_owned());
        }
        self.under_way.push(*copy);
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Copied>) {
        self.polls += 1;
        let go = match &self.manner {
            Manner::Late => self.polls.is_multiple_of(3),
            Manner::Held(released) => released.load(Ordering::Acquire),
            Manner::Failing => true,
        };
        if go && let Some(CopyRequest { slot, source, .. }) = self.under_way.pop() {
            for i in 0..source.length as usize {
                let byte = self.memory.own[source.address as usize + i].load(Ordering::Relaxed);
                self.memory.bounce[(slot * SLOT) as usize + i].store(byte, Ordering::Relaxed);
            }
            ended.push(Copied { slot, outcome: Ok(()) });
        }
    }
}

/// A proxy, and device code that writes descriptors.
struct Rig {
    proxy: Proxy,
    memory: Arc<Memory>,
    words: Arc<Vec<AtomicU64>>,
    first: usize,
    next: u64,
}

impl Rig {
    fn start(manner: Manner) -> Self {
        let memory = Memory::new();
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..LAYOUT.bytes() / 8 + 16).map(|_| AtomicU64::new(0)).collect());
        // The block begins at a line.
        let first = words.as_ptr().align_offset(128);
        let base = words[first..].as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the words outlive the proxy, which is dropped first, are zero, and are accessed
        // by atomics.
        let block = unsafe { Block::new(base, LAYOUT) };
        let capabilities = Capabilities {
            inline_bytes: PAYLOAD_BYTES as u32,
            width_four: true,
            masked: true,
            four_is_big_endian: false,
            atomics_coherent_with_cpu: true,
            send_depth: 16,
            max_message: 1 << 20,
        };
        let bounce = Registered { address: 0, length: SLOT, keys: [66; MAX_SENDERS] };
        let options = EngineOptions {
            me: 0,
            own: false,
            n_pes: 2,
            striping: Striping::new(2, 1),
            window: 64,
            landing: Registered::default(),
            slots: 4,
            staging: Some(Staging { from: 49, bounce, slots: SLOTS }),
        };
        let card = Card { memory: Arc::clone(&memory), capabilities, done: Vec::new() };
        let copier = Model { memory: Arc::clone(&memory), manner, under_way: Vec::new(), started: 0, polls: 0 };
        let pace = Pace { spin_passes: 16, longest_nap: Duration::from_millis(1) };
        let engine = Engine::new(options, capabilities);
        let proxy = Proxy::start(block, engine, Box::new(card), Some(Box::new(copier)), vec![7, 8], pace).unwrap();
        Self { proxy, memory, words, first, next: 0 }
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.words[self.first + (offset / 8) as usize]
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: not within {LIMIT:?}; {:?}", self.proxy);
            std::thread::yield_now();
        }
    }

    fn post(&mut self, queue: u32, ordered: bool, request: Request) {
        let index = self.next;
        self.next += 1;
        self.wait("room in the ring", || {
            self.word(LAYOUT.taken()).load(Ordering::Acquire) + (1 << LAYOUT.log_depth) > index
        });
        let slot = Descriptor { pe: 1, queue, ordered, request }.encode();
        write_slot(slot, index, LAYOUT.log_depth, |at, word| {
            self.words[self.first + at].store(word, Ordering::Relaxed);
        });
        oxshmem_proxy::parking::wake_sleepers();
    }

    fn put(&mut self, queue: u32, from: usize, length: u32, to: usize) {
        let source = Local { address: from as u64, length, key: 55 };
        let target = Remote { address: to as u64, key: 1 };
        self.post(queue, false, Request::Transfer(Transfer::Write { source, target }));
    }

    /// A word after all that its queue has put.
    fn signal(&mut self, queue: u32, value: u8, to: usize) {
        let payload = Payload::new([value; PAYLOAD_BYTES], 1);
        let target = Remote { address: to as u64, key: 1 };
        self.post(queue, true, Request::Transfer(Transfer::WriteInline { payload, target }));
    }

    fn quiet(&self) -> bool {
        let completed = || self.word(LAYOUT.completed()).load(Ordering::Acquire);
        self.wait("quiet", || completed() << 1 >> 1 == self.next);
        completed() >> 63 == 0
    }
}

#[test]
fn late_copies_keep_the_order() {
    let mut rig = Rig::start(Manner::Late);
    let mut expected = vec![0; BYTES];
    for round in 0..60usize {
        let queue = round % 2;
        // Long and short ones over each other, in parts of their own for each queue.
        let (from, length, to) = (round * 53 % 2048, 1 + round * 97 % 400, queue * 2048 + round * 31 % 1000);
        rig.put(queue as u32, from, length as u32, to);
        for i in 0..length {
            expected[to + i] = rig.memory.own[from + i].load(Ordering::Relaxed);
        }
        rig.signal(queue as u32, round as u8, to + length - 1);
        expected[to + length - 1] = round as u8;
    }
    assert!(rig.quiet());
    assert_eq!(rig.memory.peer(), expected);
}

#[test]
fn copies_that_do_not_get_through_hold_nobody_up() {
    let released = Arc::new(AtomicBool::new(false));
    let mut rig = Rig::start(Manner::Held(Arc::clone(&released)));
    for round in 0..10 {
        rig.put(round % 2, 0, 300, round as usize * 300);
        rig.signal(round % 2, 9, 4000);
    }
    assert!(rig.quiet());
    let expected: Vec<u8> = rig.memory.own[..300].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    for part in rig.memory.peer()[..3000].chunks(300) {
        assert_eq!(part, expected);
    }
    rig.wait("its counters", || rig.proxy.counters().given_up == 1);
    let before = rig.proxy.counters().copies;
    assert!((1..=u64::from(SLOTS)).contains(&before), "{before} copies");
    // Once they have ended, puts are staged again.
    released.store(true, Ordering::Release);
    let end = Instant::now() + LIMIT;
    while rig.proxy.counters().copies == before {
        assert!(Instant::now() < end, "{:?}", rig.proxy);
        rig.put(0, 100, 64, 0);
        assert!(rig.quiet());
    }
    assert_eq!(
        rig.memory.peer()[..64],
        rig.memory.own[100..164].iter().map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<_>>()
    );
}

#[test]
fn a_proxy_ends_while_copies_are_under_way() {
    let mut rig = Rig::start(Manner::Held(Arc::default()));
    rig.put(0, 0, 300, 0);
    drop(rig.proxy);
}

#[test]
fn a_copy_that_fails_says_why() {
    let mut rig = Rig::start(Manner::Failing);
    rig.put(0, 0, 60, 0);
    assert!(rig.quiet());
    rig.put(0, 60, 60, 60);
    rig.signal(0, 1, 200);
    rig.put(1, 0, 60, 300);
    assert!(!rig.quiet());
    let reason = Some("the source cannot be copied to host memory: no more of it".into());
    assert_eq!(rig.proxy.lost(), [Lost { pe: 1, syndrome: 4, reason }]);
    // Write, at the peer's address of the put, local protection error, on the queue pair with this
    // number.
    let fault: Vec<u64> = (0..4).map(|i| rig.word(LAYOUT.faults() + 64 + i * 8).load(Ordering::Relaxed)).collect();
    assert_eq!((fault[0], fault[2], fault[3]), (0x08 << 32 | 7, 60, 4));
    let peer = rig.memory.peer();
    assert_eq!((peer[60..120].to_vec(), peer[200]), (vec![0; 60], 0), "the put that failed, and what follows it");
    assert_eq!(peer[..60], peer[300..360]);
}
