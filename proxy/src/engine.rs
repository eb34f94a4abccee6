//! The engine, without I/O: descriptors in, chains of work requests out; completions in, acknowledgements out.
//!
//! # Order
//! A descriptor goes to the queue pair that its peer and queue number name, and requests of a queue pair are posted in the order of their
//! descriptors. An ordered descriptor's request is marked with a fence; so is the next one to each peer after a [`Request::Fence`] of its
//! queue.
//!
//! # Atomics that the card lacks
//! Their work is done by a loop of native 64-bit compare-and-swaps on the aligned eight bytes around the operand, each of them a work
//! request: swap a guess, compute here from what was there, and swap once more if the guess was wrong. As every other atomic on the word is
//! a 64-bit work request of the same card or such a loop, all of them are atomic with respect to each other. Whatever is behind a loop on
//! its queue pair waits here until it has ended; only loops on other words pass, unless they are ordered. Atomics on the word of a loop
//! that follow it at once join it: one compare-and-swap does the work of all of them, one after the other.
//!
//! # Staged puts
//! Sources of large puts can be copied to host memory first; see [`staging`](crate::staging). Whatever is behind such a put on its queue pair
//! waits here until its last piece is posted, so the order is that of puts which are not staged.
//!
//! # Completion
//! Success is reported for requests that are signaled: the last of each chain, and those that somebody waits for by name. It covers all
//! earlier ones of the queue pair. A descriptor is done when all its requests are; [`Engine::completed`] counts the descriptors before the
//! first that is not.
//!
//! # Errors
//! A queue pair that failed ends all of its descriptors, now and later, as failed. They count as completed, so nobody waits for them, and
//! [`Engine::failures`] rises; what failed first is kept per peer. Other queue pairs go on.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::descriptor::{Descriptor, Landing, Request, Slot};
use crate::staging::{Copied, CopyRequest, Owner, Pool, Staging};
use crate::striping::Striping;
use crate::work::{
    Atomic, Capabilities, Completion, Failure, Local, Operation, Registered, Remote, Status, Transfer, Width,
    WorkRequest,
};

/// The most requests of a chain.
pub const CHAIN: usize = 64;
/// Compare-and-swap loops at a time.
pub const LOOPS: u32 = 256;
/// Bytes from one landing slot to the next.
pub const LANDING_BYTES: u64 = 64;
/// The syndrome of a descriptor that cannot be carried out, as of a malformed WQE (`MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR`).
const LOCAL_QP_OPERATION: u32 = 0x02;
/// The syndrome of a put whose source could not be copied (`MLX5_CQE_SYNDROME_LOCAL_PROT_ERR`): a card that cannot read it says the same.
const LOCAL_PROTECTION: u32 = 0x04;

/// The landing slots: registered memory that the card writes results to and that this process reads.
pub trait Results {
    /// The first eight bytes of a slot.
    fn load(&self, slot: u32) -> u64;
    /// Replaces them.
    fn store(&mut self, slot: u32, value: u64);
}

/// What an engine is made for.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// The own PE.
    pub me: u32,
    /// Whether queue pairs lead to it as well: the last ones.
    pub own: bool,
    /// PEs of the job.
    pub n_pes: u32,
    /// Queue pairs to each peer, and the cards that they are on.
    pub striping: Striping,
    /// Descriptors that may be on their way at a time.
    pub window: usize,
    /// Landing slot 0; `length` is not used. Behind the device's `slots` there are [`EXTRA_SLOTS`] for the engine.
    pub landing: Registered,
    /// Landing slots of the device.
    pub slots: u32,
    /// Which puts are staged, if any are.
    pub staging: Option<Staging>,
}

impl EngineOptions {
    /// The PE that a queue pair leads to.
    #[must_use]
    pub fn peer(&self, qp: u32) -> u32 {
        let peer = qp / self.striping.per_peer();
        if peer + 1 == self.n_pes {
            self.me
        } else if peer < self.me {
            peer
        } else {
            peer + 1
        }
    }
}

/// Landing slots that the engine itself needs: one a loop, and one for results that nobody wants.
pub const EXTRA_SLOTS: u32 = LOOPS + 1;

/// The word that tells device code the end of what it waits for at a landing slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The landing slot.
    pub slot: u32,
    /// See [`acknowledgement`].
    pub value: u64,
}

/// What an acknowledgement says: the lap it is for, from 1, and whether the operation failed.
#[must_use]
pub fn acknowledgement(lap: u32, failed: bool) -> u64 {
    (u64::from(lap) + 1) << 1 | u64::from(failed)
}

/// What failed first at a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The peer.
    pub pe: u32,
    /// The queue pair, by dense index.
    pub qp: u32,
    /// The request's id on it.
    pub id: u64,
    /// As [`Operation::opcode`].
    pub opcode: u8,
    /// The address at the peer.
    pub address: u64,
    /// As in [`Status::Failed`].
    pub syndrome: u32,
    /// As in [`Status::Failed`].
    pub vendor: u32,
}

/// What happens when a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its descriptor has one request less to wait for.
    Plain,
    /// And a landing slot is acknowledged; `swap`: its four bytes are big-endian.
    Land { landing: Landing, swap: bool },
    /// A loop goes on.
    Loop { index: u32 },
    /// A bounce slot is free again.
    Staged { slot: u32 },
}

/// What is to be posted.
#[derive(Debug, Clone, Copy)]
enum Work {
    Request(Operation, End),
    /// An atomic for a loop: one of its own, which gets its place when it is posted, or the one in front of it.
    Loop(Swapped),
    /// A put whose pieces are posted when they have been copied. It counts as one request until its last piece is posted.
    Staged {
        put: u32,
    },
}

/// Why no more of a queue's requests can be posted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// There are none, or the chain or the backend's queue is full.
    Nothing,
    /// The next one waits for a loop.
    Loop,
    /// The next one waits for a copy.
    Copy,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    work: Work,
    fence: bool,
    descriptor: u64,
}

/// A request that was posted. Ids rise by one, so none is kept: see [`Queue::oldest`].
#[derive(Debug, Clone, Copy)]
struct Posted {
    address: u64,
    descriptor: u64,
    end: End,
    opcode: u8,
}

#[derive(Debug, Default)]
struct Queue {
    /// The next chain: numbered, and in `posted`.
    ready: Vec<WorkRequest>,
    /// What comes behind it.
    pending: VecDeque<Pending>,
    posted: VecDeque<Posted>,
    next_id: u64,
    /// The next request is to be fenced.
    fence_next: bool,
    /// The words of loops that were posted and have not ended.
    loops: Vec<u64>,
    /// What the last loop left, and where: the next one's guess.
    left: (u64, u64),
    /// It is among those that may have something to post.
    listed: bool,
    failed: bool,
}

impl Queue {
    /// Whether another request fits the next chain, and the backend's queue of `depth`.
    #[inline]
    fn has_room(&self, depth: usize) -> bool {
        self.ready.len() < CHAIN && self.posted.len() < depth
    }

    /// The id of the oldest request that was posted and has not ended, or of the next.
    #[inline]
    fn oldest(&self) -> u64 {
        self.next_id - self.posted.len() as u64
    }

    /// Puts a request at the end of the next chain.
    #[inline(always)]
    fn push(&mut self, operation: Operation, end: End, fence: bool, descriptor: u64) {
        let id = self.next_id;
        self.next_id += 1;
        let (opcode, address) = (operation.opcode(), operation.remote().address);
        self.posted.push_back(Posted { address, descriptor, end, opcode });
        self.ready.push(WorkRequest { id, operation, signaled: end != End::Plain, fence });
    }
}

/// An atomic that is done by a loop.
#[derive(Debug, Clone, Copy)]
struct Swapped {
    /// The aligned eight bytes.
    target: Remote,
    /// Where the operand is in them, bits.
    shift: u32,
    width: Width,
    operands: Atomic,
    landing: Option<Landing>,
}

impl Swapped {
    fn mask(&self) -> u64 {
        self.width.bits() << self.shift
    }

    /// What the eight bytes become.
    fn apply(&self, old: u64) -> u64 {
        let mask = self.mask();
        let new = self.operands.apply((old & mask) >> self.shift);
        old & !mask | new << self.shift & mask
    }

    fn result(&self, old: u64) -> u64 {
        (old & self.mask()) >> self.shift
    }
}

/// A compare-and-swap loop.
#[derive(Debug, Default)]
struct Loop {
    /// The aligned eight bytes.
    target: Remote,
    /// What they are believed to be.
    guess: u64,
    /// The atomics it does, in order, with their descriptors.
    members: Vec<(Swapped, u64)>,
}

impl Loop {
    /// What the eight bytes become.
    fn next(&self) -> u64 {
        self.members.iter().fold(self.guess, |value, (member, _)| member.apply(value))
    }
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    capabilities: Capabilities,
    queues: Vec<Queue>,
    /// Queues that may have something to post.
    listed: VecDeque<u32>,
    /// Queues whose next request waits for a loop.
    blocked: Vec<u32>,
    /// Requests that descriptors wait for, from number `completed` on.
    window: VecDeque<u32>,
    completed: u64,
    loops: Vec<Loop>,
    free_loops: Vec<u32>,
    /// Puts of at least this many bytes are staged.
    stage_from: u32,
    pool: Pool,
    outstanding: usize,
    failures: u64,
    last_failed: u32,
    faults: Vec<Fault>,
    acknowledgements: Vec<Acknowledgement>,
}

impl Engine {
    /// An idle engine for a backend with these capabilities.
    #[must_use]
    pub fn new(options: EngineOptions, capabilities: Capabilities) -> Self {
        let peers = options.n_pes.saturating_sub(u32::from(!options.own));
        let count = (peers * options.striping.per_peer()) as usize;
        Self {
            options,
            capabilities,
            queues: (0..count).map(|_| Queue::default()).collect(),
            listed: VecDeque::new(),
            blocked: Vec::new(),
            window: VecDeque::with_capacity(options.window),
            completed: 0,
            loops: (0..LOOPS).map(|_| Loop::default()).collect(),
            free_loops: (0..LOOPS).rev().collect(),
            // No put is that long (`kMaxMessageBytes` in abi.h).
            stage_from: options.staging.map_or(u32::MAX, |staging| staging.from.max(1)),
            pool: Pool::new(options.staging, count, options.striping, capabilities.max_message),
            outstanding: 0,
            failures: 0,
            last_failed: 0,
            faults: Vec::new(),
            acknowledgements: Vec::new(),
        }
    }

    /// Whether another descriptor may be given.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.window.len() < self.options.window
    }

    /// Whether everything given has ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Whether requests are at the backend.
    #[must_use]
    pub fn has_outstanding(&self) -> bool {
        self.outstanding != 0
    }

    /// Descriptors done, without a gap, since the beginning.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// How many descriptors have failed, and the peer of the newest of them.
    #[must_use]
    pub fn failures(&self) -> (u64, u32) {
        (self.failures, self.last_failed)
    }

    /// What waits for what, in words, for the log.
    #[must_use]
    pub fn status(&self) -> String {
        let mut text = format!("{} done, {} under way", self.completed, self.window.len());
        for (qp, queue) in self.queues.iter().enumerate() {
            let (posted, pending) = (queue.posted.len(), queue.pending.len());
            if posted != 0 {
                text += &format!("; queue pair {qp}: {posted} posted from {}, {pending} to post", queue.oldest());
            } else if pending != 0 {
                text += &format!("; queue pair {qp}: {pending} to post");
            }
        }
        let (copying, late) = self.pool.under_way();
        if copying + late != 0 {
            text += &format!("; {copying} copies under way, {late} given up");
        }
        text
    }

    /// What failed first at each peer that failed, in the order of the failures.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// What device code is to be told about landing slots since the last call. They are in the landing slots already.
    pub fn acknowledgements(&mut self) -> std::vec::Drain<'_, Acknowledgement> {
        self.acknowledgements.drain(..)
    }

    /// The dense index of a queue pair; `None` if there is none.
    fn qp(&self, pe: u32, queue: u32) -> Option<u32> {
        let EngineOptions { me, own, n_pes, striping, .. } = self.options;
        let per_peer = striping.per_peer();
        if pe >= n_pes || queue >= per_peer || (pe == me && !own) {
            return None;
        }
        let peer = match pe.cmp(&me) {
            Ordering::Less => pe,
            Ordering::Equal => n_pes - 1,
            Ordering::Greater => pe - 1,
        };
        Some(peer * per_peer + queue)
    }

    /// The peer that a queue pair leads to.
    fn pe(&self, qp: u32) -> u32 {
        self.options.peer(qp)
    }

    /// Takes the next descriptor of the ring, [`has_room`](Self::has_room) given.
    pub fn accept(&mut self, slot: &Slot) {
        let number = self.completed + self.window.len() as u64;
        self.window.push_back(0);
        match Descriptor::decode(slot) {
            Ok(descriptor) => self.accept_decoded(number, &descriptor),
            Err(error) => {
                tracing::error!(%error, number, "a slot of the ring was not written by the device API");
                self.refuse(number, 0);
            }
        }
        self.advance();
    }

    #[inline(always)]
    fn accept_decoded(&mut self, number: u64, descriptor: &Descriptor) {
        let Descriptor { pe, queue, ordered, request } = *descriptor;
        if request == Request::Fence {
            let per_peer = self.options.striping.per_peer() as usize;
            for queue in self.queues.iter_mut().skip(queue as usize).step_by(per_peer) {
                queue.fence_next = true;
            }
            return;
        }
        let Some(qp) = self.qp(pe, queue) else {
            tracing::error!(pe, queue, number, "a slot of the ring names a queue pair that does not exist");
            return self.refuse(number, pe);
        };
        if self.queues[qp as usize].failed {
            let landing = match request {
                Request::Fetch { landing, .. } => Some(landing),
                Request::Atomic { landing, .. } => landing,
                _ => None,
            };
            self.fail(number, pe, landing);
            return;
        }
        let fence = std::mem::take(&mut self.queues[qp as usize].fence_next) || ordered;
        match request {
            Request::Transfer(Transfer::Write { source, target }) if source.length >= self.stage_from => {
                let put = self.pool.open(qp, source, target);
                self.enqueue(qp, number, Work::Staged { put }, fence);
            }
            Request::Transfer(Transfer::Write { source, target }) => {
                self.cut(source, target, |engine, source, target, first| {
                    engine.transfer(qp, number, Transfer::Write { source, target }, fence && first);
                });
            }
            Request::Transfer(Transfer::Read { target, source }) => {
                self.cut(target, source, |engine, target, source, first| {
                    engine.transfer(qp, number, Transfer::Read { target, source }, fence && first);
                });
            }
            Request::Transfer(Transfer::WriteInline { payload, .. }) if payload.as_slice().is_empty() => {}
            Request::Transfer(inline) => self.transfer(qp, number, inline, fence),
            Request::Fetch { landing, bytes, source } => {
                let target = self.landing(qp, landing.slot, bytes);
                let end = End::Land { landing, swap: false };
                let operation = Operation::Transfer(Transfer::Read { target, source });
                self.enqueue(qp, number, Work::Request(operation, end), fence);
            }
            Request::Atomic { operands, width, landing, target } => {
                self.atomic(qp, number, operands, width, landing, target, fence);
            }
            Request::Fence => {}
        }
    }

    /// Calls `each` for pieces of a transfer, none longer than the backend's messages. A transfer of no bytes has none.
    fn cut(&mut self, local: Local, remote: Remote, mut each: impl FnMut(&mut Self, Local, Remote, bool)) {
        let longest = self.capabilities.max_message.max(1);
        let (mut local, mut remote, mut left, mut first) = (local, remote, local.length, true);
        while left != 0 {
            local.length = left.min(longest);
            each(self, local, remote, first);
            left -= local.length;
            local.address = local.address.wrapping_add(local.length.into());
            remote.address += u64::from(local.length);
            first = false;
        }
    }

    /// A landing slot as requests of queue pair `qp` name it.
    fn landing(&self, qp: u32, slot: u32, bytes: u32) -> Local {
        let EngineOptions { landing, striping, .. } = self.options;
        let Local { address, key, .. } = landing.on(striping.card(qp));
        Local { address: address.wrapping_add(u64::from(slot) * LANDING_BYTES), length: bytes, key }
    }

    #[inline(always)]
    fn transfer(&mut self, qp: u32, number: u64, transfer: Transfer, fence: bool) {
        self.enqueue(qp, number, Work::Request(Operation::Transfer(transfer), End::Plain), fence);
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic(
        &mut self,
        qp: u32,
        number: u64,
        operands: Atomic,
        width: Width,
        landing: Option<Landing>,
        target: Remote,
        fence: bool,
    ) {
        let Capabilities { width_four, masked, four_is_big_endian, .. } = self.capabilities;
        if (width == Width::Eight || width_four) && (masked || !operands.is_masked(width)) {
            // The last slot is for what nobody wants.
            let slot = landing.map_or(self.options.slots + LOOPS, |landing| landing.slot);
            let result = self.landing(qp, slot, width.bytes());
            let swap = width == Width::Four && four_is_big_endian;
            let end = landing.map_or(End::Plain, |landing| End::Land { landing, swap });
            let operation = Operation::Atomic { operands, width, result, target };
            self.enqueue(qp, number, Work::Request(operation, end), fence);
        } else {
            let aligned = target.address & !7;
            let shift = (target.address - aligned) as u32 * 8;
            let target = Remote { address: aligned, key: target.key };
            self.enqueue(qp, number, Work::Loop(Swapped { target, shift, width, operands, landing }), fence);
        }
    }

    #[inline(always)]
    fn enqueue(&mut self, qp: u32, descriptor: u64, work: Work, fence: bool) {
        if let Some(requests) = self.window.get_mut((descriptor - self.completed) as usize) {
            *requests += 1;
        }
        let depth = self.capabilities.send_depth as usize;
        let queue = &mut self.queues[qp as usize];
        match work {
            // Nothing is in front of it.
            Work::Request(operation, end)
                if queue.pending.is_empty() && queue.loops.is_empty() && queue.has_room(depth) =>
            {
                queue.push(operation, end, fence, descriptor);
                self.outstanding += 1;
            }
            _ => queue.pending.push_back(Pending { work, fence, descriptor }),
        }
        self.list(qp);
    }

    #[inline]
    fn list(&mut self, qp: u32) {
        let queue = &mut self.queues[qp as usize];
        if !(queue.listed || queue.pending.is_empty() && queue.ready.is_empty()) {
            queue.listed = true;
            self.listed.push_back(qp);
        }
    }

    /// Replaces `chain` by the next requests to post together, and says to which queue pair; `None` if there is nothing to post now. They
    /// count as posted.
    pub fn chain(&mut self, chain: &mut Vec<WorkRequest>) -> Option<u32> {
        while let Some(qp) = self.listed.pop_front() {
            self.queues[qp as usize].listed = false;
            let stop = if self.queues[qp as usize].pending.is_empty() { Stop::Nothing } else { self.fill(qp) };
            if stop == Stop::Loop {
                self.blocked.push(qp);
            }
            let queue = &mut self.queues[qp as usize];
            let Some(last) = queue.ready.last_mut() else { continue };
            last.signaled = true;
            chain.clear();
            std::mem::swap(chain, &mut queue.ready);
            if stop == Stop::Nothing && queue.has_room(self.capabilities.send_depth as usize) {
                self.list(qp);
            }
            return Some(qp);
        }
        None
    }

    /// Moves what may be posted from `pending` to `ready`. Why it stopped.
    fn fill(&mut self, qp: u32) -> Stop {
        while self.queues[qp as usize].has_room(self.capabilities.send_depth as usize) {
            let queue = &mut self.queues[qp as usize];
            let Some(next) = queue.pending.front() else { break };
            let waits = match &next.work {
                // A loop's next step.
                Work::Request(_, End::Loop { .. }) => false,
                Work::Request(..) | Work::Staged { .. } => !queue.loops.is_empty(),
                Work::Loop(new) => {
                    let conflicts =
                        if next.fence { !queue.loops.is_empty() } else { queue.loops.contains(&new.target.address) };
                    conflicts || self.free_loops.is_empty()
                }
            };
            if waits {
                return Stop::Loop;
            }
            let Pending { work, fence, descriptor } = *next;
            let (operation, end) = match work {
                Work::Staged { put } => {
                    if !self.fill_piece(qp, put) {
                        return Stop::Copy;
                    }
                    continue;
                }
                Work::Request(operation, end) => {
                    queue.pending.pop_front();
                    (operation, end)
                }
                Work::Loop(new) => {
                    let Some(index) = self.free_loops.pop() else { break };
                    queue.pending.pop_front();
                    let address = new.target.address;
                    queue.loops.push(address);
                    let slot = &mut self.loops[index as usize];
                    slot.target = new.target;
                    slot.guess = if queue.left.0 == address { queue.left.1 } else { 0 };
                    slot.members.push((new, descriptor));
                    (self.step(qp, index), End::Loop { index })
                }
            };
            self.queues[qp as usize].push(operation, end, fence, descriptor);
            self.outstanding += 1;
        }
        Stop::Nothing
    }

    /// Moves the next piece of the put that is first in `pending` to `ready`, if it is there.
    fn fill_piece(&mut self, qp: u32, put: u32) -> bool {
        let Some(piece) = self.pool.next_piece(put, self.capabilities.max_message) else { return false };
        let queue = &mut self.queues[qp as usize];
        let Some(first) = queue.pending.front_mut() else { return false };
        let descriptor = first.descriptor;
        let fence = std::mem::take(&mut first.fence);
        if piece.last {
            queue.pending.pop_front();
        } else if let Some(requests) = self.window.get_mut((descriptor - self.completed) as usize) {
            *requests += 1;
        }
        let end = piece.slot.map_or(End::Plain, |slot| End::Staged { slot });
        queue.push(Operation::Transfer(piece.transfer), end, fence, descriptor);
        self.outstanding += 1;
        true
    }

    /// The next copy to start, if a put waits for one and there is a free bounce slot.
    pub fn next_copy(&mut self) -> Option<CopyRequest> {
        self.pool.next_copy()
    }

    /// Whether copies are under way.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.pool.under_way() != (0, 0)
    }

    /// Whether copies are under way that were not given up.
    #[must_use]
    pub fn awaits_copies(&self) -> bool {
        self.pool.under_way().0 != 0
    }

    /// Takes the end of a copy in. If it failed, its put and what is behind that on its queue pair fail, and all that comes later.
    pub fn copied(&mut self, copied: &Copied) {
        let Some(Owner { qp, put }) = self.pool.copied(copied.slot) else { return };
        match copied.outcome {
            Ok(()) => self.list(qp),
            Err(_) => self.lose_put(qp, put),
        }
        self.advance();
    }

    /// Waits no longer for the copies that are under way, which may be behind what waits for the puts. What they are for is posted from its
    /// source, as is every put until the last of these copies has ended.
    pub fn give_up_copies(&mut self) {
        for qp in self.pool.give_up() {
            self.list(qp);
        }
    }

    /// The next compare-and-swap of a loop. Atomics on its word that are next on the queue pair join it.
    fn step(&mut self, qp: u32, index: u32) -> Operation {
        let step = &mut self.loops[index as usize];
        let pending = &mut self.queues[qp as usize].pending;
        while let Some(&Pending { work: Work::Loop(next), fence: false, descriptor }) = pending.front()
            && next.target.address == step.target.address
        {
            step.members.push((next, descriptor));
            pending.pop_front();
        }
        let (compare, swap, target) = (step.guess, step.next(), step.target);
        let result = self.landing(qp, self.options.slots + index, 8);
        Operation::Atomic { operands: Atomic::compare_swap(compare, swap), width: Width::Eight, result, target }
    }

    /// Takes a completion in.
    pub fn complete(&mut self, completion: &Completion, results: &mut dyn Results) {
        let Completion { qp, id, status } = *completion;
        if qp as usize >= self.queues.len() {
            tracing::error!(qp, id, "a completion of a queue pair that does not exist");
            return;
        }
        // All before it have succeeded, whatever became of it.
        let oldest = self.queues[qp as usize].oldest();
        let ended = (id + u64::from(status == Status::Success)).saturating_sub(oldest);
        for _ in 0..ended {
            let Some(front) = self.queues[qp as usize].posted.pop_front() else { break };
            self.outstanding -= 1;
            self.succeed(qp, &front, results);
        }
        if let Status::Failed { what, syndrome, vendor } = status {
            self.lose(qp, id, what, syndrome, vendor);
        }
        self.list(qp);
        self.advance();
    }

    fn succeed(&mut self, qp: u32, posted: &Posted, results: &mut dyn Results) {
        match posted.end {
            End::Plain => {}
            End::Staged { slot } => self.pool.release(slot),
            End::Land { landing, swap } => {
                if swap {
                    let seen = results.load(landing.slot) as u32;
                    results.store(landing.slot, u64::from(seen.swap_bytes()));
                }
                self.acknowledge(landing, false);
            }
            End::Loop { index } => {
                let seen = results.load(self.options.slots + index);
                let step = &mut self.loops[index as usize];
                if seen != step.guess {
                    step.guess = seen;
                    let work = Work::Request(self.step(qp, index), posted.end);
                    let again = Pending { work, fence: false, descriptor: posted.descriptor };
                    // In front: a fenced request may wait for this loop.
                    self.queues[qp as usize].pending.push_front(again);
                    return;
                }
                let (address, mut value) = (step.target.address, seen);
                for (member, descriptor) in std::mem::take(&mut step.members) {
                    if let Some(landing) = member.landing {
                        results.store(landing.slot, member.result(value));
                        self.acknowledge(landing, false);
                    }
                    value = member.apply(value);
                    self.ended(descriptor);
                }
                self.queues[qp as usize].left = (address, value);
                return self.end_loop(qp, index);
            }
        }
        self.ended(posted.descriptor);
    }

    fn end_loop(&mut self, qp: u32, index: u32) {
        self.free_loops.push(index);
        let word = self.loops[index as usize].target.address;
        let loops = &mut self.queues[qp as usize].loops;
        if let Some(at) = loops.iter().position(|busy| *busy == word) {
            loops.swap_remove(at);
        }
        for blocked in std::mem::take(&mut self.blocked) {
            self.list(blocked);
        }
    }

    fn acknowledge(&mut self, landing: Landing, failed: bool) {
        let value = acknowledgement(landing.lap, failed);
        self.acknowledgements.push(Acknowledgement { slot: landing.slot, value });
    }

    /// One request of a descriptor has ended.
    fn ended(&mut self, descriptor: u64) {
        if let Some(requests) = self.window.get_mut((descriptor - self.completed) as usize) {
            *requests -= 1;
        }
    }

    fn advance(&mut self) {
        while self.window.front().is_some_and(|requests| requests & !FAILED == 0) {
            self.window.pop_front();
            self.completed += 1;
        }
    }

    /// A queue pair is in error from request `id` on.
    fn lose(&mut self, qp: u32, id: u64, what: Failure, syndrome: u32, vendor: u32) {
        let pe = self.pe(qp);
        let queue = &mut self.queues[qp as usize];
        // A put that could not be copied leaves what is in front of it.
        if queue.failed && queue.posted.is_empty() && queue.pending.is_empty() {
            return;
        }
        queue.failed = true;
        queue.ready.clear();
        let (posted, pending) = (std::mem::take(&mut queue.posted), std::mem::take(&mut queue.pending));
        let cause = posted.front().map_or((0, 0), |first| (first.opcode, first.address));
        tracing::debug!(pe, qp, id, ?what, syndrome, vendor, "a queue pair failed");
        self.record(Fault { pe, qp, id, opcode: cause.0, address: cause.1, syndrome, vendor });
        self.outstanding -= posted.len();
        for Posted { descriptor, end, .. } in posted {
            self.lose_request(qp, descriptor, end);
        }
        self.lose_pending(qp, pending);
    }

    /// The source of a put could not be copied. What is in front of it on its queue pair goes on, as in front of a request that fails.
    fn lose_put(&mut self, qp: u32, put: u32) {
        let pe = self.pe(qp);
        let queue = &mut self.queues[qp as usize];
        let is_put = |pending: &Pending| matches!(pending.work, Work::Staged { put: other } if other == put);
        let at = queue.pending.iter().position(is_put).unwrap_or(queue.pending.len());
        let lost = queue.pending.split_off(at);
        queue.failed = true;
        let id = queue.next_id;
        let rest = Operation::Transfer(self.pool.rest(put));
        let (opcode, address) = (rest.opcode(), rest.remote().address);
        tracing::debug!(pe, qp, address, "the source of a put could not be copied");
        self.record(Fault { pe, qp, id, opcode, address, syndrome: LOCAL_PROTECTION, vendor: 0 });
        self.lose_pending(qp, lost);
    }

    fn lose_pending(&mut self, qp: u32, pending: VecDeque<Pending>) {
        for Pending { work, descriptor, .. } in pending {
            match work {
                Work::Request(_, end) => self.lose_request(qp, descriptor, end),
                Work::Loop(never_begun) => self.lose_descriptor(qp, descriptor, never_begun.landing),
                Work::Staged { put } => {
                    self.pool.close(put);
                    self.lose_descriptor(qp, descriptor, None);
                }
            }
        }
    }

    fn lose_request(&mut self, qp: u32, descriptor: u64, end: End) {
        match end {
            End::Plain => self.lose_descriptor(qp, descriptor, None),
            End::Land { landing, .. } => self.lose_descriptor(qp, descriptor, Some(landing)),
            End::Staged { slot } => {
                // The card does not read for a queue pair in error.
                self.pool.release(slot);
                self.lose_descriptor(qp, descriptor, None);
            }
            End::Loop { index } => {
                for (member, descriptor) in std::mem::take(&mut self.loops[index as usize].members) {
                    self.lose_descriptor(qp, descriptor, member.landing);
                }
                self.end_loop(qp, index);
            }
        }
    }

    /// A request of a descriptor has ended, and the descriptor fails with it.
    fn lose_descriptor(&mut self, qp: u32, descriptor: u64, landing: Option<Landing>) {
        self.ended(descriptor);
        self.fail(descriptor, self.pe(qp), landing);
    }

    /// Every queue pair is in error: the backend is gone.
    pub fn lose_all(&mut self) {
        for qp in 0..self.queues.len() as u32 {
            let id = self.queues[qp as usize].oldest();
            self.lose(qp, id, Failure::Error, LOCAL_QP_OPERATION, 0);
        }
        self.advance();
    }

    fn record(&mut self, fault: Fault) {
        if self.faults.iter().all(|known| known.pe != fault.pe) {
            self.faults.push(fault);
        }
    }

    /// A descriptor fails, once however many of its requests do.
    fn fail(&mut self, descriptor: u64, pe: u32, landing: Option<Landing>) {
        if let Some(requests) = self.window.get_mut((descriptor - self.completed) as usize)
            && *requests & FAILED == 0
        {
            *requests |= FAILED;
            self.failures += 1;
            self.last_failed = pe;
        }
        if let Some(landing) = landing {
            self.acknowledge(landing, true);
        }
    }

    /// A descriptor cannot be carried out.
    fn refuse(&mut self, descriptor: u64, pe: u32) {
        let pe = pe.min(self.options.n_pes.saturating_sub(1));
        self.record(Fault { pe, qp: 0, id: 0, opcode: 0, address: 0, syndrome: LOCAL_QP_OPERATION, vendor: 0 });
        self.fail(descriptor, pe, None);
    }
}

/// In an entry of the window: the descriptor has failed. Below: how many requests it waits for.
const FAILED: u32 = 1 << 31;
