//! The thread around the engine: takes descriptors out of the ring, posts, polls, and publishes
//! what has ended.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxshmem_system::clock::monotonic_ns;
use oxshmem_system::idle::{Idler, Patience};

use crate::block::Block;
use crate::engine::{CHAIN, Engine, Fault};
use crate::parking::{self, PROXIES};
use crate::ring::{RawWords, Reader};
use crate::staging::{Copied, Copier};
use crate::work::{Backend, Completion, Status, WorkRequest};

/// Descriptors taken before anything is posted: what is done once a pass, doorbells and completions
/// above all, costs several hundred nanoseconds.
const BATCH: usize = 2 * CHAIN;
/// Time without work after which the thread naps.
const AWAKE: Duration = Duration::from_micros(100);
/// The first nap.
const FIRST_NAP: Duration = Duration::from_micros(50);
/// The longest nap while requests or copies are on their way, whose completions wake no thread.
const WORKING_NAP: Duration = Duration::from_micros(100);

/// Time without the end of a copy after which those under way are given up. A copy engine may hold
/// them back after a copy of the program's that waits for a kernel, which may in turn wait for the
/// puts.
const COPY_PATIENCE: Duration = Duration::from_millis(10);

/// How a proxy sleeps when there is nothing to do.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Passes without work after which the thread offers the CPU to others.
    pub spin_passes: u32,
    /// The longest nap: how late a descriptor may be seen that is not announced by
    /// [`parking::wake_sleepers`].
    pub longest_nap: Duration,
}

/// What a proxy has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Descriptors taken out of the ring.
    pub descriptors: u64,
    /// Work requests posted.
    pub requests: u64,
    /// Chains they were posted in.
    pub chains: u64,
    /// Naps.
    pub naps: u64,
    /// Pieces of staged puts whose copies were started.
    pub copies: u64,
    /// How often the copies under way were given up.
    pub given_up: u64,
}

/// What a proxy has done on one queue pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Work requests posted.
    pub requests: u64,
    /// Payload bytes that they are to move; of an atomic those of its operand.
    pub bytes: u64,
    /// Chains they were posted in, each with one doorbell.
    pub chains: u64,
    /// Completions that were reported, errors included.
    pub completions: u64,
    /// Completions with an error.
    pub errors: u64,
}

/// When something happened to descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// What happened to which descriptors.
    pub what: Happened,
}

/// What happened to descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// Work requests were posted, and their doorbell was rung: all of this queue of a peer for
    /// descriptors before `end`.
    Posted {
        /// The peer.
        pe: u32,
        /// The queue, of those to each peer.
        queue: u32,
        /// One more than the number of the newest descriptor among them.
        end: u64,
    },
    /// All descriptors before this one are done.
    Completed(u64),
}

/// What failed first at a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The peer.
    pub pe: u32,
    /// The syndrome, as in [`Fault::syndrome`].
    pub syndrome: u32,
    /// What is known beyond the syndrome.
    pub reason: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    descriptors: AtomicU64,
    requests: AtomicU64,
    chains: AtomicU64,
    naps: AtomicU64,
    copies: AtomicU64,
    given_up: AtomicU64,
    lost: Mutex<Vec<Lost>>,
    queues: Box<[SharedQueue]>,
    /// Moments that are kept at most; 0: none is recorded.
    recording: AtomicUsize,
    moments: Mutex<VecDeque<Moment>>,
    forgotten: AtomicU64,
}

/// Counters of a queue pair, which the thread alone changes.
#[derive(Debug, Default)]
struct SharedQueue {
    requests: AtomicU64,
    bytes: AtomicU64,
    chains: AtomicU64,
    completions: AtomicU64,
    errors: AtomicU64,
}

/// Adds to a counter that no other thread changes.
fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Shared {
    /// Records a moment, if moments are recorded. The oldest gives way.
    fn record(&self, what: Happened) {
        let most = self.recording.load(Ordering::Relaxed);
        if most == 0 {
            return;
        }
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        if moments.len() >= most {
            moments.pop_front();
            count(&self.forgotten, 1);
        }
        moments.push_back(Moment { at: monotonic_ns(), what });
    }

    fn lost(&self) -> MutexGuard<'_, Vec<Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a failure, if it is the first at its peer.
    fn lose(&self, fault: &Fault, reason: Option<String>) {
        let mut lost = self.lost();
        if lost.iter().all(|known| known.pe != fault.pe) {
            lost.push(Lost { pe: fault.pe, syndrome: fault.syndrome, reason });
        }
    }
}

/// A running proxy. Dropping it stops the thread, whatever is on its way.
pub struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts the thread. `qpns` are the numbers that errors name queue pairs by, in dense order;
    /// `copier` is there if the engine stages puts.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn start(
        block: Block,
        engine: Engine,
        backend: Box<dyn Backend>,
        copier: Option<Box<dyn Copier>>,
        qpns: Vec<u32>,
        pace: Pace,
    ) -> std::io::Result<Self> {
        let queues = qpns.iter().map(|_| SharedQueue::default()).collect();
        let shared = Arc::new(Shared { queues, ..Shared::default() });
        let reader = Reader::new(block.slots(), block.layout().log_depth);
        let worker = Worker {
            shared: Arc::clone(&shared),
            pump: Pump {
                shared: Arc::clone(&shared),
                reader,
                block,
                engine,
                backend,
                copies: copier.map(|copier| Copies { copier, ended: Vec::new(), since: None }),
                qpns,
                chain: Vec::with_capacity(CHAIN),
                completions: Vec::with_capacity(CHAIN),
                known_faults: 0,
                published: (0, 0),
                broken: None,
                counters: Counters::default(),
            },
            pace,
        };
        let thread = std::thread::Builder::new().name("oxshmem-proxy".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Wakes it, because descriptors are about to come that wake no thread.
    pub fn wake(&self) {
        parking::wake_sleepers();
    }

    /// Returns what it has done so far, as of a short while ago.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.observer().counters()
    }

    /// Returns what it has done on a queue pair, given its dense index.
    #[must_use]
    pub fn queue_counters(&self, qp: u32) -> Option<QueueCounters> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let queue = self.shared.queues.get(qp as usize)?;
        Some(QueueCounters {
            requests: load(&queue.requests),
            bytes: load(&queue.bytes),
            chains: load(&queue.chains),
            completions: load(&queue.completions),
            errors: load(&queue.errors),
        })
    }

    /// Records from now on when descriptors are posted and done, the newest `most` moments.
    pub fn record_moments(&self, most: usize) {
        self.shared.recording.store(most, Ordering::Relaxed);
    }

    /// Returns the moments that were recorded, and how many older ones were forgotten.
    #[must_use]
    pub fn moments(&self) -> (Vec<Moment>, u64) {
        let moments = self.shared.moments.lock().unwrap_or_else(PoisonError::into_inner);
        (moments.iter().copied().collect(), self.shared.forgotten.load(Ordering::Relaxed))
    }

    /// Returns the peers with a failed queue pair, and what failed first.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.shared.lost().clone()
    }

    /// Returns what says the same from any thread, and after the proxy has stopped.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer { shared: Arc::clone(&self.shared) }
    }
}

/// What a proxy has done, for threads that do not have the proxy.
#[derive(Debug, Clone)]
pub struct Observer {
    shared: Arc<Shared>,
}

impl Observer {
    /// Returns what the proxy has done so far, as of a short while ago.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            descriptors: load(&self.shared.descriptors),
            requests: load(&self.shared.requests),
            chains: load(&self.shared.chains),
            naps: load(&self.shared.naps),
            copies: load(&self.shared.copies),
            given_up: load(&self.shared.given_up),
        }
    }

    /// Returns the peers with a failed queue pair, and what failed first.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.shared.lost().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        parking::wake_sleepers();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the proxy's thread panicked");
        }
    }
}

/// What copies the sources of staged puts.
struct Copies {
    copier: Box<dyn Copier>,
    ended: Vec<Copied>,
    /// When it was last seen to go on, while copies are under way.
    since: Option<Instant>,
}

/// Everything that moves descriptors and completions.
struct Pump {
    shared: Arc<Shared>,
    reader: Reader<RawWords>,
    block: Block,
    engine: Engine,
    backend: Box<dyn Backend>,
    copies: Option<Copies>,
    qpns: Vec<u32>,
    chain: Vec<WorkRequest>,
    completions: Vec<Completion>,
    known_faults: usize,
    published: (u64, u64),
    broken: Option<String>,
    counters: Counters,
}

impl Pump {
    /// Returns one pass; whether anything happened.
    fn pass(&mut self) -> bool {
        let mut worked = false;
        let before = self.reader.taken();
        while self.engine.has_room()
            && self.reader.taken() - before < BATCH as u64
            && let Some(slot) = self.reader.take()
        {
            self.engine.accept(&slot);
        }
        let taken = self.reader.taken() - before;
        if taken != 0 {
            worked = true;
            self.counters.descriptors += taken;
            self.block.publish_taken(self.reader.taken());
        }
        worked |= self.copy();
        worked |= self.post();
        worked |= self.poll();
        self.publish();
        worked
    }

    /// Starts copies, and takes in those that have ended.
    fn copy(&mut self) -> bool {
        let Some(Copies { copier, ended, since }) = &mut self.copies else { return false };
        let before = self.counters.copies;
        while self.broken.is_none()
            && let Some(request) = self.engine.next_copy()
        {
            self.counters.copies += 1;
            if let Err(reason) = copier.start(&request) {
                ended.push(Copied { slot: request.slot, outcome: Err(reason) });
            }
        }
        if !self.engine.has_copies() {
            return false;
        }
        copier.poll(ended);
        let worked = self.counters.copies != before || !ended.is_empty();
        for copied in ended.drain(..) {
            let faults = self.engine.faults().len();
            self.engine.copied(&copied);
            if let (Some(fault), Err(reason)) = (self.engine.faults().get(faults), copied.outcome) {
                self.shared.lose(fault, Some(format!("the source cannot be copied to host memory: {reason}")));
            }
        }
        if worked || !self.engine.awaits_copies() {
            *since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() > COPY_PATIENCE {
            *since = None;
            if self.counters.given_up == 0 {
                tracing::info!(
                    "copies of puts' sources to host memory do not get through, maybe after a copy of the program's that waits for a \
                     kernel; until they do the card reads the sources itself"
                );
            }
            self.counters.given_up += 1;
            self.engine.give_up_copies();
            return true;
        }
        worked
    }

    fn post(&mut self) -> bool {
        let mut any = false;
        while self.broken.is_none()
            && let Some(qp) = self.engine.chain(&mut self.chain)
        {
            any = true;
            self.counters.requests += self.chain.len() as u64;
            self.counters.chains += 1;
            if let Some(queue) = self.shared.queues.get(qp as usize) {
                count(&queue.requests, self.chain.len() as u64);
                count(&queue.bytes, self.chain.iter().map(|request| request.operation.bytes()).sum());
                count(&queue.chains, 1);
            }
            if let Err(error) = self.backend.post(qp, &self.chain) {
                self.give_up(&error);
            } else if self.shared.recording.load(Ordering::Relaxed) != 0
                && let Some((pe, queue, end)) = self.engine.posted(qp)
            {
                self.shared.record(Happened::Posted { pe, queue, end });
            }
        }
        if any {
            self.backend.announce();
        }
        any
    }

    fn poll(&mut self) -> bool {
        if !self.engine.has_outstanding() || self.broken.is_some() {
            return false;
        }
        self.completions.clear();
        if let Err(error) = self.backend.poll(&mut self.completions) {
            self.give_up(&error);
            return true;
        }
        for completion in &self.completions {
            if let Some(queue) = self.shared.queues.get(completion.qp as usize) {
                count(&queue.completions, 1);
                count(&queue.errors, u64::from(completion.status != Status::Success));
            }
            self.engine.complete(completion, &mut self.block);
        }
        !self.completions.is_empty()
    }

    /// Gives up, since the backend is gone: all that was and will be given fails.
    fn give_up(&mut self, error: &dyn std::error::Error) {
        tracing::error!(%error, "the proxy can no longer post");
        self.broken = Some(error.to_string());
        self.engine.lose_all();
    }

    /// Publishes what has ended: faults, then how many failed, then which threads may go on.
    fn publish(&mut self) {
        let failures = self.engine.failures();
        let now = (self.engine.completed(), failures.0);
        for acknowledgement in {
            let new = &self.engine.faults()[self.known_faults..];
            for fault in new {
                self.shared.lose(fault, self.broken.clone().or_else(|| self.backend.explain(fault.qp)));
                self.block.publish_fault(fault, self.qpns.get(fault.qp as usize).copied().unwrap_or(0));
            }
            self.known_faults = self.engine.faults().len();
            if now != self.published {
                self.published = now;
                self.shared.record(Happened::Completed(now.0));
                self.block.publish_completed(now.0, failures);
            }
            self.engine.acknowledgements()
        } {
            self.block.publish_acknowledgement(acknowledgement);
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    pump: Pump,
    pace: Pace,
}

impl Worker {
    fn run(mut self) {
        let Pace { spin_passes, longest_nap } = self.pace;
        let mut idler = Idler::new(Patience { spin_passes, awake: AWAKE, first_nap: FIRST_NAP });
        while !self.shared.stop.load(Ordering::Acquire) {
            if self.pump.pass() {
                idler.worked();
                continue;
            }
            let Some(nap) = idler.rest() else { continue };
            self.report();
            let engine = &self.pump.engine;
            let working = engine.has_outstanding() || engine.has_copies();
            let longest = if working { WORKING_NAP } else { longest_nap };
            let stop = &self.shared.stop;
            let reader = &self.pump.reader;
            let woken = PROXIES.park(nap.min(longest), || stop.load(Ordering::Acquire) || reader.is_begun());
            self.pump.counters.naps += 1;
            if woken {
                idler.worked();
            } else {
                idler.napped(longest);
            }
        }
        self.report();
        if !self.pump.engine.is_idle() {
            // Kept for calls that ask why operations did not end.
            tracing::debug!(
                taken = self.pump.reader.taken(),
                next_slot_is_begun = self.pump.reader.is_begun(),
                engine = %self.pump.engine.status(),
                backend = %self.pump.backend.status(),
                "the proxy stops before all was done"
            );
        }
    }

    fn report(&self) {
        let Counters { descriptors, requests, chains, naps, copies, given_up } = self.pump.counters;
        let pairs = [
            (&self.shared.descriptors, descriptors),
            (&self.shared.requests, requests),
            (&self.shared.chains, chains),
            (&self.shared.naps, naps),
            (&self.shared.copies, copies),
            (&self.shared.given_up, given_up),
        ];
        for (counter, value) in pairs {
            counter.store(value, Ordering::Relaxed);
        }
    }
}
