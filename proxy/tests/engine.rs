//! The engine against a model of cards: requests of a queue pair take effect in order, everything
//! else as the seed says; completions are delayed, left out where a later one covers them, or
//! errors. Copies of staged puts end in any order, late or never in time, or fail.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap, VecDeque};

use oxshmem_hca::topology::MAX_SENDERS;
use oxshmem_proxy::descriptor::{Descriptor, Landing, Request};
use oxshmem_proxy::engine::{
    Acknowledgement, CHAIN, EXTRA_SLOTS, Engine, EngineOptions, LANDING_BYTES, Results, acknowledgement,
};
use oxshmem_proxy::staging::{Copied, CopyRequest, Staging};
use oxshmem_proxy::striping::Striping;
use oxshmem_proxy::work::{
    Atomic, Capabilities, Completion, Failure, Local, Operation, PAYLOAD_BYTES, Payload, Registered, Remote, Status,
    Transfer, Width, WorkRequest,
};
use proptest::prelude::*;

const ME: u32 = 1;
const N_PES: u32 = 3;
const PER_PEER: u32 = 2;
const QPS: u32 = (N_PES - 1) * PER_PEER;
/// Queue pairs to a peer take turns on them.
const CARDS: u32 = 2;
const LANDING_KEYS: [u32; MAX_SENDERS] = [77, 78, 0, 0, 0, 0, 0, 0];
const BOUNCE_KEYS: [u32; MAX_SENDERS] = [66, 67, 0, 0, 0, 0, 0, 0];
const SLOTS: u32 = 8;
const LANDING: u64 = 0x7000_0000;
const BOUNCE: u64 = 0x6000_0000;
/// Bytes of a peer's memory: one part for each queue, then shared words.
const PART: u64 = 256;
const SHARED: u64 = PART * PER_PEER as u64;
const BYTES: u64 = SHARED + 64;

fn options(window: usize) -> EngineOptions {
    let landing = Registered { address: LANDING, length: 0, keys: LANDING_KEYS };
    let (striping, staging) = (Striping::new(PER_PEER, CARDS), None);
    EngineOptions { me: ME, own: false, n_pes: N_PES, striping, window, landing, slots: SLOTS, staging }
}

/// Puts of `from` bytes and more through `slots` bounce slots of `bytes` each.
fn staging(from: u32, slots: u32, bytes: u32) -> Staging {
    Staging { from, bounce: Registered { address: BOUNCE, length: bytes, keys: BOUNCE_KEYS }, slots }
}

fn staged(window: usize, staging: Staging) -> EngineOptions {
    EngineOptions { staging: Some(staging), ..options(window) }
}

fn capabilities(send_depth: u32, masked: bool, width_four: bool, four_is_big_endian: bool) -> Capabilities {
    Capabilities {
        inline_bytes: PAYLOAD_BYTES as u32,
        width_four,
        masked,
        four_is_big_endian,
        atomics_coherent_with_cpu: false,
        send_depth,
        max_message: 64,
    }
}

/// This side: landing slots.
struct Landings(Vec<u64>);

impl Results for Landings {
    fn load(&self, slot: u32) -> u64 {
        self.0[slot as usize]
    }
    fn store(&mut self, slot: u32, value: u64) {
        self.0[slot as usize] = value;
    }
}

/// Returns what this PE's heap holds at an address: reads of it need no memory.
fn own_byte(address: u64) -> u8 {
    (address * 37 + 11) as u8
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<WorkRequest>,
    /// Done, not reported.
    done: VecDeque<(u64, bool)>,
    next_id: u64,
    fails_at: Option<u64>,
    failed: bool,
}

/// A card and the memory of all peers.
struct Card {
    capabilities: Capabilities,
    queues: Vec<Queue>,
    memory: HashMap<u32, Vec<u8>>,
    landings: Landings,
    reads: BTreeMap<u64, u8>,
    /// What is in the bounce slots.
    bounce: BTreeMap<u64, u8>,
    /// Requests whose source was not a bounce slot and was as long as puts that are staged.
    direct: u32,
}

impl Card {
    fn new(capabilities: Capabilities) -> Self {
        let slots = (SLOTS + EXTRA_SLOTS) as usize;
        Self {
            capabilities,
            queues: (0..QPS).map(|_| Queue::default()).collect(),
            memory: (0..N_PES).map(|pe| (pe, vec![0; BYTES as usize])).collect(),
            landings: Landings(vec![0; slots]),
            reads: BTreeMap::new(),
            bounce: BTreeMap::new(),
            direct: 0,
        }
    }

    fn post(&mut self, qp: u32, chain: &[WorkRequest]) {
        let queue = &mut self.queues[qp as usize];
        assert!(!chain.is_empty() && chain.len() <= CHAIN, "a chain of {}", chain.len());
        assert!(chain.last().unwrap().signaled, "no completion would report the chain's end");
        for request in chain {
            assert_eq!(request.id, queue.next_id, "ids rise by one");
            queue.next_id += 1;
            queue.waiting.push_back(*request);
        }
        let outstanding = queue.waiting.len() + queue.done.len();
        assert!(outstanding <= self.capabilities.send_depth as usize, "{outstanding} requests outstanding");
    }

    /// Carries out the oldest request of a queue pair.
    fn execute(&mut self, qp: u32) -> bool {
        let Some(request) = self.queues[qp as usize].waiting.pop_front() else { return false };
        let fails = self.queues[qp as usize].fails_at == Some(request.id) || self.queues[qp as usize].failed;
        if fails {
            self.queues[qp as usize].failed = true;
        } else {
            self.carry_out(qp, &request.operation);
        }
        if request.signaled || fails {
            self.queues[qp as usize].done.push_back((request.id, !fails));
        }
        true
    }

    fn peer(qp: u32) -> u32 {
        let peer = qp / PER_PEER;
        if peer < ME { peer } else { peer + 1 }
    }

    /// Returns the one of `keys` that its card knows.
    fn key(qp: u32, keys: [u32; MAX_SENDERS]) -> u32 {
        keys[(qp % PER_PEER % CARDS) as usize]
    }

    fn word(&self, pe: u32, at: u64, width: Width) -> u64 {
        let bytes = &self.memory[&pe][at as usize..(at + u64::from(width.bytes())) as usize];
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    fn carry_out(&mut self, qp: u32, operation: &Operation) {
        let pe = Self::peer(qp);
        let remote = operation.remote();
        assert_eq!(remote.key, 1000 + pe, "the key of another peer");
        let at = remote.address as usize;
        let Capabilities { masked, width_four, max_message, .. } = self.capabilities;
        match *operation {
            Operation::Transfer(Transfer::Write { source, .. }) => {
                assert!(source.length <= max_message && source.length != 0);
                for i in 0..u64::from(source.length) {
                    let from = source.address + i;
                    let byte = match source.key {
                        55 => own_byte(from),
                        key if key == Self::key(qp, BOUNCE_KEYS) => self.bounce[&from],
                        other => panic!("key {other}"),
                    };
                    self.memory.get_mut(&pe).unwrap()[at + i as usize] = byte;
                }
                self.direct += u32::from(source.key == 55);
            }
            Operation::Transfer(Transfer::WriteInline { payload, .. }) => {
                let bytes = payload.as_slice();
                self.memory.get_mut(&pe).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Operation::Transfer(Transfer::Read { target, .. }) => {
                assert!(target.length <= max_message && target.length != 0);
                let bytes = self.memory[&pe][at..at + target.length as usize].to_vec();
                if target.key == Self::key(qp, LANDING_KEYS) {
                    let mut word = [0; 8];
                    word[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
                    let slot = self.slot(qp, target);
                    self.landings.0[slot] = u64::from_le_bytes(word);
                } else {
                    self.reads.extend((target.address..).zip(bytes));
                }
            }
            Operation::Atomic { operands, width, result, .. } => {
                assert!(width == Width::Eight || width_four, "the card has no such width");
                assert!(!operands.is_masked(width) || masked, "the card has no masked atomics");
                assert!(at.is_multiple_of(width.bytes() as usize) && result.length == width.bytes());
                let old = self.word(pe, remote.address, width);
                let new = operands.apply(old).to_le_bytes();
                let bytes = width.bytes() as usize;
                self.memory.get_mut(&pe).unwrap()[at..at + bytes].copy_from_slice(&new[..bytes]);
                let slot = self.slot(qp, result);
                self.landings.0[slot] = match width {
                    Width::Four if self.capabilities.four_is_big_endian => u64::from((old as u32).swap_bytes()),
                    _ => old,
                };
            }
        }
    }

    fn slot(&self, qp: u32, local: Local) -> usize {
        assert_eq!(local.key, Self::key(qp, LANDING_KEYS));
        let offset = local.address - LANDING;
        assert_eq!(offset % LANDING_BYTES, 0);
        let slot = (offset / LANDING_BYTES) as usize;
        assert!(slot < self.landings.0.len());
        slot
    }

    /// Reports what is done on a queue pair, `skip`ping successes that a later one covers.
    fn report(&mut self, qp: u32, skip: bool) -> Vec<Completion> {
        let queue = &mut self.queues[qp as usize];
        let mut completions = Vec::new();
        let ok = queue.done.iter().take_while(|(_, ok)| *ok).count();
        for (position, (id, ok_)) in queue.done.drain(..).enumerate() {
            let status = if ok_ {
                if skip && position + 1 < ok {
                    continue;
                }
                Status::Success
            } else {
                let first = position == ok && queue.fails_at == Some(id);
                let (what, syndrome) = if first { (Failure::Error, 0x13) } else { (Failure::Flushed, 0x05) };
                Status::Failed { what, syndrome, vendor: 9 }
            };
            completions.push(Completion { qp, id, status });
        }
        completions
    }
}

fn landing_of(descriptor: &Descriptor) -> Option<Landing> {
    match descriptor.request {
        Request::Fetch { landing, .. } => Some(landing),
        Request::Atomic { landing, .. } => landing,
        _ => None,
    }
}

/// What copies sources: in any order, and some not at all before they are given up.
#[derive(Default)]
struct Copies {
    staging: Option<Staging>,
    under_way: Vec<CopyRequest>,
    started: u32,
    /// The copy with this number fails.
    fails_at: Option<u32>,
    /// The request of that copy, once it has failed.
    failed: Option<CopyRequest>,
    /// How often all copies may be given up.
    give_up: u32,
}

impl Copies {
    fn of(staging: Staging) -> Self {
        Self { staging: Some(staging), ..Self::default() }
    }

    fn start(&mut self, engine: &mut Engine, card: &mut Card) {
        let Some(staging) = self.staging else {
            assert_eq!(engine.next_copy(), None, "nothing is staged");
            return;
        };
        let Some(request) = engine.next_copy() else { return };
        assert!(request.slot < staging.slots && request.source.length <= staging.bounce.length);
        assert!(request.source.length != 0 && request.source.key == 55 && request.card < CARDS);
        assert!(self.under_way.iter().all(|other| other.slot != request.slot), "slot {} twice", request.slot);
        // A slot that a copy goes to holds nothing.
        let at = staging.bounce.address + u64::from(request.slot * staging.bounce.length);
        card.bounce.extend((at..at + u64::from(staging.bounce.length)).map(|at| (at, 0xee)));
        self.under_way.push(request);
    }

    fn end(&mut self, engine: &mut Engine, card: &mut Card, at: u32) {
        let Some(staging) = self.staging.filter(|_| !self.under_way.is_empty()) else { return };
        let request = self.under_way.swap_remove(at as usize % self.under_way.len());
        let fails = self.fails_at == Some(self.started);
        self.started += 1;
        if fails {
            self.failed = Some(request);
        } else {
            let at = staging.bounce.address + u64::from(request.slot * staging.bounce.length);
            for i in 0..u64::from(request.source.length) {
                card.bounce.insert(at + i, own_byte(request.source.address + i));
            }
        }
        let outcome = if fails { Err("as the test wants".to_owned()) } else { Ok(()) };
        engine.copied(&Copied { slot: request.slot, outcome });
    }
}

/// Runs descriptors to their end in an order that `seed` decides. Returns the acknowledgements in
/// the order they came, with what was in the landing slot then. As device code does, a landing slot
/// is used again only when its last user has been told.
fn run(engine: &mut Engine, card: &mut Card, descriptors: &[Descriptor], seed: u64) -> Vec<(Acknowledgement, u64)> {
    run_with(engine, card, &mut Copies::default(), descriptors, seed)
}

/// Returns the same with staged puts.
fn run_with(
    engine: &mut Engine,
    card: &mut Card,
    copies: &mut Copies,
    descriptors: &[Descriptor],
    seed: u64,
) -> Vec<(Acknowledgement, u64)> {
    // An xorshift generator.
    let mut state = seed | 1;
    let mut choose = move |n: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % n
    };
    let mut given = descriptors.iter();
    let mut next = given.next();
    let (mut chain, mut acknowledgements) = (Vec::new(), Vec::new());
    let mut used = [0; SLOTS as usize];
    for _ in 0..400_000 {
        match choose(8) {
            0 => {
                let free = |descriptor: &Descriptor| {
                    landing_of(descriptor).is_none_or(|landing| used[landing.slot as usize] == landing.lap)
                };
                if let Some(descriptor) = next.filter(|next| engine.has_room() && free(next)) {
                    engine.accept(&descriptor.encode());
                    next = given.next();
                }
            }
            1 => {
                if let Some(qp) = engine.chain(&mut chain) {
                    card.post(qp, &chain);
                }
            }
            2 | 3 => {
                let first = choose(QPS);
                (0..QPS).any(|i| card.execute((first + i) % QPS));
            }
            4 => copies.start(engine, card),
            // Copies that were given up end late: not as long as there is anything else to do, most
            // of the time.
            5 if engine.awaits_copies() || choose(16) == 0 => {
                if copies.give_up != 0 && engine.awaits_copies() && choose(4) == 0 {
                    copies.give_up -= 1;
                    engine.give_up_copies();
                    assert!(engine.has_copies() && !engine.awaits_copies() && engine.next_copy().is_none());
                } else {
                    let at = choose(1000);
                    copies.end(engine, card, at);
                }
            }
            5 => {}
            _ => {
                let qp = choose(QPS);
                for completion in card.report(qp, choose(2) == 0) {
                    engine.complete(&completion, &mut card.landings);
                }
            }
        }
        for acknowledgement in engine.acknowledgements() {
            used[acknowledgement.slot as usize] += 1;
            acknowledgements.push((acknowledgement, card.landings.load(acknowledgement.slot)));
        }
        if next.is_none() && engine.is_idle() {
            return acknowledgements;
        }
    }
    panic!("after {} descriptors nothing happens: {engine:?}", engine.completed());
}

fn remote(pe: u32, address: u64) -> Remote {
    Remote { address, key: 1000 + pe }
}

/// Returns a descriptor of queue `queue` that touches only this queue's part of the peer's memory,
/// or adds to a shared word.
fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    let place = (prop_oneof![Just(0u32), Just(2)], 0..PER_PEER, any::<bool>());
    let width = prop_oneof![Just(Width::Four), Just(Width::Eight)];
    let operands = prop_oneof![
        (any::<u64>(), prop_oneof![Just(0), Just(u64::MAX), any::<u64>()])
            .prop_map(|(value, boundary)| Atomic::Add { value, boundary }),
        (any::<u64>(), 0u64..3, any::<u64>(), prop_oneof![Just(0), Just(u64::MAX)]).prop_map(
            |(swap, compare, swap_mask, compare_mask)| Atomic::CompareSwap { swap, compare, swap_mask, compare_mask }
        ),
    ];
    let kind = prop_oneof![
        (0u64..PART / 2, 1u32..100, any::<u32>()).prop_map(|(at, length, from)| (0, at, length, u64::from(from), None)),
        (0u64..PART - 48, 0u32..=48, any::<u64>()).prop_map(|(at, length, seed)| (1, at, length, seed, None)),
        (0u64..PART / 2, 1u32..100, any::<u32>()).prop_map(|(at, length, to)| (2, at, length, u64::from(to), None)),
        (0u64..PART - 8, 1u32..=8).prop_map(|(at, length)| (3, at, length, 0, None)),
        (0u64..PART / 8, operands, width).prop_map(|(at, operands, width)| (4, at * 8, 0, 0, Some((operands, width)))),
        (0u64..8, 1u64..100).prop_map(|(word, add)| (5, word, 0, add, None)),
        Just((6, 0, 0, 0, None)),
        Just((7, 0, 0, 0, None)),
    ];
    (place, kind).prop_map(|((pe, queue, ordered), (kind, at, length, seed, atomic))| {
        let target = remote(pe, u64::from(queue) * PART + at);
        // Landing slots are given out by `numbered`.
        let landing = Landing { slot: 0, lap: 0 };
        let request = match kind {
            0 => Request::Transfer(Transfer::Write { source: Local { address: seed, length, key: 55 }, target }),
            1 => {
                let bytes = std::array::from_fn(|i| (seed >> (i % 8 * 8)) as u8);
                let payload = Payload::new(bytes, length as usize);
                Request::Transfer(Transfer::WriteInline { payload, target })
            }
            2 => {
                let into = Local { address: seed << 8, length, key: 55 };
                Request::Transfer(Transfer::Read { target: into, source: target })
            }
            3 => Request::Fetch { landing, bytes: length, source: target },
            4 => {
                let (operands, width) = atomic.unwrap();
                let target = remote(pe, target.address + if width == Width::Four { seed % 2 * 4 } else { 0 });
                Request::Atomic { operands, width, landing: (at % 16 == 0).then_some(landing), target }
            }
            5 => Request::Atomic {
                operands: Atomic::Add { value: seed, boundary: 0 },
                width: if at % 2 == 0 { Width::Eight } else { Width::Four },
                landing: None,
                target: remote(pe, SHARED + at / 2 * 16 + at % 2 * 8),
            },
            6 => Request::Fence,
            _ => Request::Flush,
        };
        Descriptor { pe, queue, ordered, request }
    })
}

/// Gives every descriptor that fetches a landing slot and lap of its own.
fn numbered(mut descriptors: Vec<Descriptor>) -> Vec<Descriptor> {
    let mut ticket = 0;
    for descriptor in &mut descriptors {
        if let Request::Fetch { landing, .. } | Request::Atomic { landing: Some(landing), .. } = &mut descriptor.request
        {
            *landing = Landing { slot: ticket % SLOTS, lap: ticket / SLOTS };
            ticket += 1;
        }
    }
    descriptors
}

/// Returns what one queue's descriptors do, one after the other: memory, and what is fetched.
/// `card` is only memory here.
fn in_turn(card: &mut Card, descriptors: &[Descriptor]) -> HashMap<(u32, u32), u64> {
    let mut fetched = HashMap::new();
    for descriptor in descriptors {
        let qp = (if descriptor.pe < ME { descriptor.pe } else { descriptor.pe - 1 }) * PER_PEER + descriptor.queue;
        let result = Local { address: LANDING, length: 8, key: Card::key(qp, LANDING_KEYS) };
        match descriptor.request {
            Request::Transfer(transfer) => card.carry_out(qp, &Operation::Transfer(transfer)),
            Request::Fetch { landing, bytes, source } => {
                let target = Local { length: bytes, ..result };
                card.carry_out(qp, &Operation::Transfer(Transfer::Read { target, source }));
                fetched.insert((landing.slot, landing.lap), card.landings.0[0]);
            }
            Request::Atomic { operands, width, landing, target } => {
                let old = card.word(descriptor.pe, target.address, width);
                let new = operands.apply(old).to_le_bytes();
                let at = target.address as usize;
                let memory = card.memory.get_mut(&descriptor.pe).unwrap();
                memory[at..at + width.bytes() as usize].copy_from_slice(&new[..width.bytes() as usize]);
                if let Some(landing) = landing {
                    fetched.insert((landing.slot, landing.lap), old);
                }
            }
            Request::Fence | Request::Flush => {}
        }
    }
    fetched
}

/// Compare masks and operands of 32-bit atomics have no meaning above bit 31.
fn narrowed(mut descriptors: Vec<Descriptor>) -> Vec<Descriptor> {
    for descriptor in &mut descriptors {
        if let Request::Atomic { operands, width: Width::Four, .. } = &mut descriptor.request {
            let low = 0xffff_ffff;
            *operands = match *operands {
                Atomic::Add { value, boundary } => Atomic::Add { value: value & low, boundary: boundary & low },
                Atomic::CompareSwap { swap, compare, swap_mask, compare_mask } => Atomic::CompareSwap {
                    swap: swap & low,
                    compare: compare & low,
                    swap_mask: swap_mask & low,
                    compare_mask: compare_mask & low,
                },
            };
        }
    }
    descriptors
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the order of execution, each queue's part ends as if its descriptors had run in
    /// turn, sums are right, and every fetch is told once, with what was there; on cards with and
    /// without masked and four-byte atomics, and with queues of any depth.
    #[test]
    fn every_order_ends_the_same(
        descriptors in proptest::collection::vec(any_descriptor(), 1..120),
        seed in any::<u64>(),
        masked in any::<bool>(), width_four in any::<bool>(), swapped in any::<bool>(),
        send_depth in 1u32..80, window in 1usize..100,
    ) {
        let descriptors = numbered(narrowed(descriptors));
        let capabilities = capabilities(send_depth, masked, width_four, swapped);
        let mut engine = Engine::new(options(window), capabilities);
        let mut card = Card::new(capabilities);
        let acknowledgements = run(&mut engine, &mut card, &descriptors, seed);
        prop_assert_eq!(engine.completed(), descriptors.len() as u64);
        prop_assert_eq!(engine.failures().0, 0);

        let mut reference = Card::new(Capabilities { max_message: u32::MAX, ..capabilities });
        let fetched = in_turn(&mut reference, &descriptors);
        for pe in [0, 2] {
            prop_assert_eq!(&card.memory[&pe], &reference.memory[&pe], "memory of PE {}", pe);
        }
        let mut told: HashMap<u32, u32> = HashMap::new();
        for (Acknowledgement { slot, value }, seen) in acknowledgements {
            let lap = (value >> 1) as u32 - 1;
            prop_assert_eq!(value, acknowledgement(lap, false));
            prop_assert_eq!(Some(&seen), fetched.get(&(slot, lap)), "slot {} lap {}", slot, lap);
            *told.entry(slot).or_default() += 1;
        }
        prop_assert_eq!(told.values().sum::<u32>() as usize, fetched.len());
    }

    /// One queue pair fails at any request: its descriptors end as failed, each once; the others
    /// are as if nothing had happened.
    #[test]
    fn a_failure_stays_with_its_queue_pair(
        descriptors in proptest::collection::vec(any_descriptor(), 1..100),
        seed in any::<u64>(),
        masked in any::<bool>(), qp in 0..QPS, fails_at in 0u64..20, send_depth in 1u32..40,
    ) {
        let descriptors = numbered(narrowed(descriptors));
        let capabilities = capabilities(send_depth, masked, masked, false);
        let mut engine = Engine::new(options(64), capabilities);
        let mut card = Card::new(capabilities);
        card.queues[qp as usize].fails_at = Some(fails_at);
        let acknowledgements = run(&mut engine, &mut card, &descriptors, seed);
        prop_assert_eq!(engine.completed(), descriptors.len() as u64);
        let lost = card.queues[qp as usize].failed;
        let pe = Card::peer(qp);
        let queue = qp % PER_PEER;
        if lost {
            let fault = engine.faults()[0];
            prop_assert_eq!((fault.pe, fault.qp, fault.id, fault.vendor), (pe, qp, fails_at, 9));
            prop_assert_eq!(fault.syndrome, 0x13);
            prop_assert!(engine.failures().0 >= 1 && engine.failures().1 == pe);
        }
        prop_assert_eq!(engine.faults().len(), usize::from(lost));
        for (Acknowledgement { slot, value }, _) in &acknowledgements {
            if value & 1 != 0 {
                let lap = (value >> 1) as u32 - 1;
                let slot = *slot;
                let whose = descriptors.iter().find(|descriptor| landing_of(descriptor) == Some(Landing { slot, lap }));
                prop_assert!(whose.is_some_and(|descriptor| (descriptor.pe, descriptor.queue) == (pe, queue)));
            }
        }
        let asked = descriptors.iter().filter(|descriptor| landing_of(descriptor).is_some()).count();
        prop_assert_eq!(acknowledgements.len(), asked);
        let mut reference = Card::new(Capabilities { max_message: u32::MAX, ..capabilities });
        in_turn(&mut reference, &descriptors);
        for other in [0u32, 2] {
            for part in 0..PER_PEER {
                if lost && (other, part) == (pe, queue) {
                    continue;
                }
                let range = (u64::from(part) * PART) as usize..(u64::from(part + 1) * PART) as usize;
                prop_assert_eq!(&card.memory[&other][range.clone()], &reference.memory[&other][range]);
            }
        }
    }
}

/// Returns a pool that is mostly too small, and puts from any size on.
fn any_staging() -> impl Strategy<Value = Staging> {
    (1u32..40, 1u32..6, 1u32..100).prop_map(|(from, slots, bytes)| staging(from, slots, bytes))
}

/// The same with more and longer puts than [`any_descriptor`] makes by itself.
fn any_program() -> impl Strategy<Value = Vec<Descriptor>> {
    let put = ((prop_oneof![Just(0u32), Just(2)], 0..PER_PEER, any::<bool>()), 0u64..PART / 2, 1u32..128, any::<u32>())
        .prop_map(|((pe, queue, ordered), at, length, from)| {
            let source = Local { address: from.into(), length, key: 55 };
            let target = remote(pe, u64::from(queue) * PART + at);
            Descriptor { pe, queue, ordered, request: Request::Transfer(Transfer::Write { source, target }) }
        });
    proptest::collection::vec(prop_oneof![1 => put, 1 => any_descriptor()], 1..100)
        .prop_map(|descriptors| numbered(narrowed(descriptors)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Staged puts leave what puts leave, in the order of their queue, with pools that are too
    /// small, in the company of loops, on queues of any depth, and when copies are given up.
    /// Nothing is lost, and everything ends.
    #[test]
    fn staged_puts_end_the_same(
        descriptors in any_program(), staging in any_staging(), seed in any::<u64>(),
        masked in any::<bool>(), send_depth in 1u32..40, window in 1usize..100, give_up in 0u32..4,
    ) {
        let capabilities = capabilities(send_depth, masked, masked, false);
        let mut engine = Engine::new(staged(window, staging), capabilities);
        let mut card = Card::new(capabilities);
        let mut copies = Copies { give_up, ..Copies::of(staging) };
        let acknowledgements = run_with(&mut engine, &mut card, &mut copies, &descriptors, seed);
        prop_assert_eq!(engine.completed(), descriptors.len() as u64);
        prop_assert_eq!(engine.failures().0, 0);
        prop_assert!(!engine.awaits_copies(), "a put ended before its copies");

        let mut reference = Card::new(Capabilities { max_message: u32::MAX, ..capabilities });
        let fetched = in_turn(&mut reference, &descriptors);
        for pe in [0, 2] {
            prop_assert_eq!(&card.memory[&pe], &reference.memory[&pe], "memory of PE {}", pe);
        }
        prop_assert_eq!(acknowledgements.len(), fetched.len());
        for (Acknowledgement { slot, value }, seen) in acknowledgements {
            prop_assert_eq!(Some(&seen), fetched.get(&(slot, (value >> 1) as u32 - 1)));
        }
        let short = |descriptor: &&Descriptor| matches!(descriptor.request,
            Request::Transfer(Transfer::Write { source, .. }) if source.length < staging.from);
        if copies.give_up == give_up {
            let pieces = |descriptor: &Descriptor| match descriptor.request {
                Request::Transfer(Transfer::Write { source, .. }) => source.length.div_ceil(64),
                _ => 0,
            };
            let direct: u32 = descriptors.iter().filter(short).map(pieces).sum();
            prop_assert_eq!(card.direct, direct, "puts that are long enough are staged, others are not");
        }
        // Late copies end after all, and then their slots are used again.
        while !copies.under_way.is_empty() {
            copies.end(&mut engine, &mut card, 0);
        }
        prop_assert!(!engine.has_copies());
        let again = Descriptor { pe: 0, queue: 0, ordered: false, request: Request::Transfer(Transfer::Write {
            source: Local { address: 3, length: staging.from, key: 55 }, target: remote(0, 0) }) };
        let before = card.direct;
        run_with(&mut engine, &mut card, &mut Copies { give_up: 0, ..copies }, &[again], seed);
        prop_assert_eq!(card.direct, before);
    }

    /// A copy that fails ends its put, and what follows it on its queue pair, as failed; what
    /// precedes it, and other queue pairs, are as if nothing had happened.
    #[test]
    fn a_copy_that_fails_fails_its_put_and_what_is_behind_it(
        descriptors in any_program(), staging in any_staging(), seed in any::<u64>(),
        masked in any::<bool>(), fails_at in 0u32..20, send_depth in 1u32..40,
    ) {
        let capabilities = capabilities(send_depth, masked, masked, false);
        let mut engine = Engine::new(staged(64, staging), capabilities);
        let mut card = Card::new(capabilities);
        let mut copies = Copies { fails_at: Some(fails_at), ..Copies::of(staging) };
        let acknowledgements = run_with(&mut engine, &mut card, &mut copies, &descriptors, seed);
        prop_assert_eq!(engine.completed(), descriptors.len() as u64);
        let asked = descriptors.iter().filter(|descriptor| landing_of(descriptor).is_some()).count();
        prop_assert_eq!(acknowledgements.len(), asked);
        prop_assert_eq!(engine.faults().len(), usize::from(copies.failed.is_some()));
        let Some(fault) = engine.faults().first().copied() else { return Ok(()) };
        prop_assert_eq!((fault.opcode, fault.syndrome), (0x08, 0x04));
        prop_assert_eq!((fault.pe, engine.failures().1), (Card::peer(fault.qp), fault.pe));

        // The put is the one on that queue pair whose source has the piece, and whose target the
        // address of the fault.
        let piece = copies.failed.unwrap().source.address;
        let of_queue = |descriptor: &&Descriptor| (descriptor.pe, descriptor.queue) == (fault.pe, fault.qp % PER_PEER);
        let own: Vec<Descriptor> = descriptors.iter().filter(of_queue).copied().collect();
        let put = own.iter().position(|descriptor| match descriptor.request {
            Request::Transfer(Transfer::Write { source, target }) => {
                (source.address..source.address + u64::from(source.length)).contains(&piece)
                    && (target.address..target.address + u64::from(source.length)).contains(&fault.address)
            }
            _ => false,
        });
        let put = put.unwrap();
        let mut reference = Card::new(Capabilities { max_message: u32::MAX, ..capabilities });
        in_turn(&mut reference, &own[..put]);
        if let Request::Transfer(Transfer::Write { mut source, target }) = own[put].request {
            // Its pieces before the one at the fault were posted.
            source.length = (fault.address - target.address) as u32;
            if source.length != 0 {
                let request = Request::Transfer(Transfer::Write { source, target });
                in_turn(&mut reference, &[Descriptor { request, ..own[put] }]);
            }
        }
        let others: Vec<Descriptor> = descriptors.iter().filter(|descriptor| !of_queue(descriptor)).copied().collect();
        in_turn(&mut reference, &others);
        for pe in [0, 2] {
            let part = |card: &Card| card.memory[&pe][..SHARED as usize].to_vec();
            prop_assert_eq!(part(&card), part(&reference), "memory of PE {}", pe);
        }
        // No slot is lost. A flush also fails where it reads through that queue pair.
        let flushes = others.iter().filter(|descriptor| descriptor.request == Request::Flush).count();
        prop_assert!(engine.failures().0 <= (own.len() - put + flushes) as u64);
        while !copies.under_way.is_empty() {
            copies.end(&mut engine, &mut card, 0);
        }
        prop_assert!(!engine.has_copies());
    }

    /// A queue pair fails while staged puts of it are copied, wait, or are at the card: all ends,
    /// and the others are as they would be.
    #[test]
    fn a_failure_of_a_queue_pair_ends_its_staged_puts(
        descriptors in any_program(), staging in any_staging(), seed in any::<u64>(),
        qp in 0..QPS, fails_at in 0u64..20, send_depth in 1u32..40, give_up in 0u32..2,
    ) {
        let capabilities = capabilities(send_depth, true, true, false);
        let mut engine = Engine::new(staged(64, staging), capabilities);
        let mut card = Card::new(capabilities);
        card.queues[qp as usize].fails_at = Some(fails_at);
        let mut copies = Copies { give_up, ..Copies::of(staging) };
        run_with(&mut engine, &mut card, &mut copies, &descriptors, seed);
        prop_assert_eq!(engine.completed(), descriptors.len() as u64);
        let mut reference = Card::new(Capabilities { max_message: u32::MAX, ..capabilities });
        in_turn(&mut reference, &descriptors);
        for other in (0..QPS).filter(|other| *other != qp) {
            let first = (u64::from(other % PER_PEER) * PART) as usize;
            let range = first..first + PART as usize;
            let pe = Card::peer(other);
            prop_assert_eq!(&card.memory[&pe][range.clone()], &reference.memory[&pe][range], "queue pair {}", other);
        }
        while !copies.under_way.is_empty() {
            copies.end(&mut engine, &mut card, 0);
        }
        prop_assert!(!engine.has_copies());
    }
}

/// Returns a put of `length` bytes on queue 0 of PE 0.
fn put(from: u64, length: u32, at: u64) -> Descriptor {
    let (source, target) = (Local { address: from, length, key: 55 }, remote(0, at));
    Descriptor { pe: 0, queue: 0, ordered: false, request: Request::Transfer(Transfer::Write { source, target }) }
}

#[test]
fn pieces_of_a_staged_put_are_copied_together_and_posted_in_their_order() {
    let staging = staging(16, 3, 16);
    let mut engine = Engine::new(staged(64, staging), capabilities(64, true, true, false));
    let fence = Descriptor { pe: 0, queue: 0, ordered: false, request: Request::Fence };
    let signal = p(0, 0, 200, true);
    for descriptor in [put(0, 15, 0), fence, put(100, 40, 32), signal] {
        engine.accept(&descriptor.encode());
    }
    let requests: Vec<CopyRequest> = std::iter::from_fn(|| engine.next_copy()).collect();
    let parts: Vec<_> = requests.iter().map(|request| (request.source.address, request.source.length)).collect();
    assert_eq!(parts, [(100, 16), (116, 16), (132, 8)]);
    let mut chain = Vec::new();
    assert_eq!(engine.chain(&mut chain), Some(0));
    assert_eq!(chain.len(), 1, "a put that is too short to be staged, and waits for nothing");
    let copied = |request: &CopyRequest| Copied { slot: request.slot, outcome: Ok(()) };
    for later in [&requests[2], &requests[1]] {
        engine.copied(&copied(later));
        assert_eq!(engine.chain(&mut chain), None, "nothing overtakes the first piece");
    }
    engine.copied(&copied(&requests[0]));
    assert_eq!(engine.chain(&mut chain), Some(0));
    let posted: Vec<_> = chain.iter().map(|request| (request.operation.remote().address, request.fence)).collect();
    assert_eq!(posted, [(32, true), (48, false), (64, false), (200, true)]);
    assert_eq!((engine.chain(&mut chain), engine.awaits_copies()), (None, false));
    // The slots are in use until the card has read them.
    engine.accept(&put(0, 16, 0).encode());
    assert_eq!(engine.next_copy(), None);
    let done = |id| Completion { qp: 0, id, status: Status::Success };
    engine.complete(&done(2), &mut Landings(Vec::new()));
    assert_eq!(engine.next_copy().map(|request| request.source.length), Some(16));
    engine.complete(&done(4), &mut Landings(Vec::new()));
    assert_eq!(engine.completed(), 4);
}

/// Slots go to queue pairs in turn, and to the puts of each in their order: a peer that does not
/// answer does not take the pool.
#[test]
fn queue_pairs_take_turns_at_the_bounce_slots() {
    let mut engine = Engine::new(staged(64, staging(1, 4, 16)), capabilities(64, true, true, false));
    for descriptor in [put(0, 64, 0), put(1000, 64, 64), Descriptor { queue: 1, ..put(2000, 64, 256) }] {
        engine.accept(&descriptor.encode());
    }
    let from: Vec<u64> = std::iter::from_fn(|| engine.next_copy()).map(|request| request.source.address).collect();
    assert_eq!(from, [0, 2000, 16, 2016]);
}

#[test]
fn what_is_given_up_goes_from_its_source_until_the_last_copy_has_ended() {
    let mut engine = Engine::new(staged(64, staging(1, 2, 16)), capabilities(64, true, true, false));
    engine.accept(&put(0, 80, 0).encode());
    let requests: Vec<CopyRequest> = std::iter::from_fn(|| engine.next_copy()).collect();
    let copied = |request: &CopyRequest| Copied { slot: request.slot, outcome: Ok(()) };
    engine.copied(&copied(&requests[0]));
    engine.give_up_copies();
    engine.accept(&put(500, 8, 128).encode());
    let mut chain = Vec::new();
    assert_eq!(engine.chain(&mut chain), Some(0));
    let source = |request: &WorkRequest| match request.operation {
        Operation::Transfer(Transfer::Write { source, .. }) => (source.key, source.address, source.length),
        other => panic!("{other:?}"),
    };
    let sources: Vec<_> = chain.iter().map(source).collect();
    let first = BOUNCE + u64::from(requests[0].slot) * 16;
    assert_eq!(sources, [(66, first, 16), (55, 16, 64), (55, 500, 8)]);
    engine.complete(&Completion { qp: 0, id: 2, status: Status::Success }, &mut Landings(Vec::new()));
    assert!(engine.is_idle() && engine.has_copies());
    engine.copied(&copied(&requests[1]));
    engine.accept(&put(0, 8, 0).encode());
    assert!(engine.next_copy().is_some() && engine.awaits_copies());
}

fn p(pe: u32, queue: u32, address: u64, ordered: bool) -> Descriptor {
    let payload = Payload::new([7; PAYLOAD_BYTES], 8);
    Descriptor {
        pe,
        queue,
        ordered,
        request: Request::Transfer(Transfer::WriteInline { payload, target: remote(pe, address) }),
    }
}

#[test]
fn a_fence_marks_the_next_request_to_each_peer_and_no_other() {
    let mut engine = Engine::new(options(64), capabilities(64, true, true, false));
    let first = p(0, 1, 0, false);
    let fence = Descriptor { request: Request::Fence, ..first };
    // A put of no bytes posts nothing.
    let payload = Payload::new([0; PAYLOAD_BYTES], 0);
    let nothing = Transfer::WriteInline { payload, target: remote(0, 16) };
    let nothing = Descriptor { request: Request::Transfer(nothing), ..first };
    for descriptor in
        [first, fence, nothing, p(0, 0, 8, false), p(0, 1, 16, false), p(0, 1, 24, false), p(2, 1, 0, false)]
    {
        engine.accept(&descriptor.encode());
    }
    let mut fenced = Vec::new();
    let mut chain = Vec::new();
    while let Some(qp) = engine.chain(&mut chain) {
        fenced.extend(chain.iter().filter(|request| request.fence).map(|request| (qp, request.id)));
    }
    fenced.sort_unstable();
    assert_eq!(fenced, [(1, 1), (3, 0)]);
}

/// A flush reads once through each queue pair that was written through since the one before, after
/// what was written, and is done when all of these reads are.
#[test]
fn a_flush_reads_through_what_was_written_through() {
    let capabilities = capabilities(64, true, true, false);
    let mut engine = Engine::new(options(64), capabilities);
    let mut card = Card::new(capabilities);
    let request = |request| Descriptor { pe: 0, queue: 0, ordered: false, request };
    let read = Transfer::Read { target: Local { address: 0, length: 8, key: 55 }, source: remote(0, 0) };
    let (flush, read) = (request(Request::Flush), request(Request::Transfer(read)));
    for descriptor in [p(0, 1, 16, false), p(2, 0, 8, false), p(0, 1, 24, false), flush, flush, read, flush] {
        engine.accept(&descriptor.encode());
    }
    let mut posted: BTreeMap<u32, Vec<Operation>> = BTreeMap::new();
    let mut chain = Vec::new();
    while let Some(qp) = engine.chain(&mut chain) {
        posted.entry(qp).or_default().extend(chain.iter().map(|request| request.operation));
        card.post(qp, &chain);
    }
    let byte_at = |operations: &[Operation]| match operations.last() {
        Some(Operation::Transfer(Transfer::Read { target, source })) if target.length == 1 => Some(source.address),
        _ => None,
    };
    // Queue pair 0 was only read through.
    assert_eq!(posted.iter().map(|(qp, all)| (*qp, all.len())).collect::<Vec<_>>(), [(0, 1), (1, 3), (2, 2)]);
    assert_eq!((byte_at(&posted[&1]), byte_at(&posted[&2])), (Some(24), Some(8)));
    // The writes alone are not enough for the flush.
    let land = |card: &mut Card, engine: &mut Engine, qp: u32, times: usize| {
        (0..times).for_each(|_| assert!(card.execute(qp)));
        for completion in card.report(qp, false) {
            engine.complete(&completion, &mut card.landings);
        }
    };
    land(&mut card, &mut engine, 1, 3);
    assert_eq!(engine.completed(), 1);
    land(&mut card, &mut engine, 2, 2);
    assert_eq!(engine.completed(), 5, "the flush, and the one after it, which has nothing to read");
    land(&mut card, &mut engine, 0, 1);
    assert!(engine.is_idle());
}

/// What follows a loop waits for it; only a loop on another word passes, unless it is ordered.
#[test]
fn requests_wait_for_loops() {
    let capabilities = capabilities(64, false, false, false);
    let operands = Atomic::Add { value: 1, boundary: 0 };
    let add = |address, ordered| {
        let request = Request::Atomic { operands, width: Width::Four, landing: None, target: remote(0, address) };
        Descriptor { pe: 0, queue: 0, ordered, request }
    };
    for (second, together, sum) in [
        (p(0, 0, 64, false), 1, 6),
        (p(0, 0, 64, true), 1, 6),
        (add(0, false), 1, 7),
        (add(4, false), 1, 6),
        (add(8, true), 1, 6),
        (add(8, false), 2, 6),
    ] {
        let mut engine = Engine::new(options(64), capabilities);
        let mut card = Card::new(capabilities);
        card.memory.get_mut(&0).unwrap()[..12].fill(5);
        engine.accept(&add(0, false).encode());
        engine.accept(&second.encode());
        let mut chain = Vec::new();
        assert_eq!(engine.chain(&mut chain), Some(0));
        assert_eq!(chain.len(), together, "{second:?}");
        card.post(0, &chain);
        let mut steps = 0;
        while !engine.is_idle() {
            while card.execute(0) {}
            for completion in card.report(0, false) {
                engine.complete(&completion, &mut card.landings);
            }
            while let Some(qp) = engine.chain(&mut chain) {
                card.post(qp, &chain);
            }
            steps += 1;
            assert!(steps < 10, "{second:?}");
        }
        assert_eq!(card.memory[&0][0], sum, "{second:?}");
    }
}

/// Atomics that follow each other on a word are one loop, and each sees what the one before left;
/// the next loop knows the word already.
#[test]
fn atomics_on_a_word_join_its_loop() {
    let capabilities = capabilities(64, false, false, false);
    let mut engine = Engine::new(options(64), capabilities);
    let mut card = Card::new(capabilities);
    card.memory.get_mut(&0).unwrap()[..8].copy_from_slice(&100u64.to_le_bytes());
    let mut posted = Vec::new();
    let mut told = Vec::new();
    for round in 0..2u32 {
        for slot in 0..4 {
            let landing = Some(Landing { slot, lap: round });
            // A swap of the low half, and an addition to the high half: neighbours share the eight
            // bytes.
            let (operands, address) = if slot % 2 == 0 {
                let operands = Atomic::CompareSwap {
                    swap: u64::from(10 * round + slot),
                    compare: 0,
                    swap_mask: u64::MAX,
                    compare_mask: 0,
                };
                (operands, 0)
            } else {
                (Atomic::Add { value: 1, boundary: 0 }, 4)
            };
            let request = Request::Atomic { operands, width: Width::Four, landing, target: remote(0, address) };
            engine.accept(&Descriptor { pe: 0, queue: 0, ordered: false, request }.encode());
        }
        let mut chain = Vec::new();
        let mut requests = 0;
        while !engine.is_idle() {
            while let Some(qp) = engine.chain(&mut chain) {
                requests += chain.len();
                card.post(qp, &chain);
            }
            while card.execute(0) {}
            for completion in card.report(0, false) {
                engine.complete(&completion, &mut card.landings);
            }
        }
        posted.push(requests);
        told.push((0..4).map(|slot| card.landings.load(slot)).collect::<Vec<_>>());
        assert_eq!(engine.acknowledgements().count(), 4);
    }
    assert_eq!(
        posted,
        [2, 1],
        "compare-and-swaps of a loop whose first guess is wrong, and of one whose guess is right"
    );
    assert_eq!(told, [[100, 0, 0, 1], [2, 2, 10, 3]]);
    assert_eq!(card.memory[&0][..8], [12, 0, 0, 0, 4, 0, 0, 0]);
}

#[test]
fn what_no_device_code_writes_is_refused_and_the_rest_goes_on() {
    let mut engine = Engine::new(options(64), capabilities(64, true, true, false));
    let mut card = Card::new(capabilities(64, true, true, false));
    engine.accept(&[0; 8]);
    engine.accept(&p(ME, 0, 0, false).encode());
    engine.accept(&p(N_PES, 0, 0, false).encode());
    engine.accept(&p(0, PER_PEER, 0, false).encode());
    assert_eq!((engine.completed(), engine.failures().0), (4, 4));
    run(&mut engine, &mut card, &[p(0, 0, 0, false)], 7);
    assert_eq!((engine.completed(), card.memory[&0][0]), (5, 7));
}

#[test]
fn when_the_backend_is_gone_nobody_waits() {
    let capabilities = capabilities(2, false, false, false);
    let mut engine = Engine::new(options(64), capabilities);
    for queue in [0, 1, 0, 0, 0] {
        engine.accept(&p(2, queue, 0, false).encode());
    }
    let landing = Some(Landing { slot: 3, lap: 2 });
    let operands = Atomic::Add { value: 1, boundary: u64::MAX };
    let request = Request::Atomic { operands, width: Width::Eight, landing, target: remote(0, 0) };
    engine.accept(&Descriptor { pe: 0, queue: 0, ordered: false, request }.encode());
    let mut chain = Vec::new();
    while engine.chain(&mut chain).is_some() {}
    engine.lose_all();
    engine.accept(&p(0, 1, 0, false).encode());
    assert!(engine.is_idle() && !engine.has_outstanding());
    assert_eq!((engine.completed(), engine.failures().0), (7, 7));
    let told: Vec<_> = engine.acknowledgements().collect();
    assert_eq!(told, [Acknowledgement { slot: 3, value: acknowledgement(2, true) }]);
}
