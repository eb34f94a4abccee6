//! The engine's passes: each gives every queue pair with work one turn, in which its WQEs are
//! fetched and executed in order.
//!
//! An HCA has one engine, under the HCA's lock. A caller can also step it without a thread, by
//! [`Engine::progress`].

use super::execute::Step;
use super::fabric::peer::Peer;
use super::failure::Failure;
use super::memory;
use super::state::{Engine, Hold, Qp};
use crate::prm::qpc::QpState;
use crate::wire::cqe::Syndrome;
use crate::wire::{BLOCK_BYTES, MAX_WQE_BLOCKS};
use oxshmem_system::mixing::shuffle;
use oxshmem_system::words::{low16, native};
use std::sync::atomic::Ordering;

/// WQEs that one QP may execute before it is another's turn.
const WQES_PER_TURN: usize = 256;
/// Payload bytes that one QP may move before it is another's turn.
const BYTES_PER_TURN: usize = 1 << 20;
/// The same where the engine's thread executes by copies: several are under way at a time.
const COPIED_PER_TURN: usize = 16 << 20;
/// QPs whose doorbell records are compared in one sweep for lost doorbells.
const SWEEP: usize = 64;
/// Peers whose sockets are looked at in one go: a system call each.
const PEERS_POLLED: usize = 16;
/// Words in a block.
pub(super) const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

impl Engine {
    /// Makes one pass: takes in doorbells, and gives each QP with work one turn. Returns how much
    /// was done; 0 means nothing.
    pub(super) fn progress(&mut self) -> usize {
        if self.dead.is_some() {
            return 0;
        }
        self.now = None;
        let mut work = 0;
        if self.is_on_gpu() {
            work += self.collect();
            self.watch_slices();
        }
        work += self.scan_doorbells() + self.deliver_due() + self.poll_links(false);
        let copying = self.is_copying();
        if copying {
            work += self.begin_pass();
        }
        if self.active.is_empty() {
            return work;
        }
        let mut turn = std::mem::replace(&mut self.active, std::mem::take(&mut self.spare));
        if self.faults.reorder > 0.0 {
            shuffle(&mut turn, self.faults.seed ^ self.counters.wqes);
        }
        for qpn in turn.drain(..) {
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            work += self.run(&mut qp);
            let given_back = self.hand_back(&mut qp);
            work += usize::from(given_back);
            qp.active = !given_back && qp.has_work() && self.dead.is_none();
            if qp.active {
                self.active.push(qpn);
            }
            self.qps.put_back(qpn, qp);
        }
        self.spare = turn;
        if copying {
            work += self.end_pass();
        }
        work
    }

    /// Returns whether a QP waits for time to pass, a peer, or its turn.
    pub(super) fn is_waiting(&self) -> bool {
        !(self.active.is_empty() && self.late.is_empty()) && self.dead.is_none()
    }

    /// Ends the reordering. No QP has had work for a while, so none is about to overtake: WQEs that
    /// sit out passes wait for time alone.
    pub(super) fn end_reordering(&mut self) {
        for at in 0..self.active.len() {
            let qpn = self.active[at];
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            if let Hold::Until(_, passes) = &mut qp.hold {
                *passes = 0;
            }
            self.qps.put_back(qpn, qp);
        }
    }

    /// Does what need not happen in every pass: notices peers that are gone, and work whose
    /// doorbell was lost.
    pub(super) fn housekeeping(&mut self) -> usize {
        if self.dead.is_some() {
            return 0;
        }
        let mut news = 0;
        for _ in 0..self.peers.len().min(PEERS_POLLED) {
            self.poll_at = (self.poll_at + 1) % self.peers.len();
            news += usize::from(self.peers[self.poll_at].poll());
        }
        news += self.poll_links(true);
        if self.is_on_gpu() {
            self.review_peers();
        }
        if self.peers.iter().any(Peer::has_withdrawn) {
            self.pause();
            self.unmap_withdrawn();
        }
        let places = self.qps.places();
        let mut found = 0;
        for _ in 0..places.min(SWEEP) {
            self.sweep_at = (self.sweep_at + 1) % places;
            let qpn = self.qps.number(self.sweep_at);
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            // The kernel looks after its own.
            let ours = !self.is_on_gpu() || qp.handed.trapped && !qp.active && !self.is_copying();
            let ours = ours && !self.needs_doorbell(qpn, qp.context.uar_page);
            if ours && matches!(qp.state, QpState::Rts | QpState::Err) && self.read_doorbell_record(&mut qp, None) {
                let recovered = u64::from(!qp.handed.trapped);
                self.counters.recovered += recovered;
                qp.counters.recovered += recovered;
                found += 1;
                if self.tracer.is_on() {
                    let producer = low16(qp.producer);
                    self.tracer.line("recover", format_args!("qp={qpn:#x} dbr={producer}"));
                }
            }
            self.qps.put_back(qpn, qp);
        }
        news + found
    }

    /// Unmaps memory that peers have withdrawn, after every payload that may be meant for it has
    /// been delivered.
    #[cold]
    fn unmap_withdrawn(&mut self) {
        self.deliver_all();
        for place in 0..self.qps.places() {
            let qpn = self.qps.number(place);
            if let Some(mut qp) = self.qps.lend(qpn) {
                self.release_deferred(&mut qp);
                self.qps.put_back(qpn, qp);
            }
        }
        self.peers.iter_mut().for_each(Peer::unmap_withdrawn);
    }

    /// Gives a QP one turn. Returns the number of WQEs done.
    fn run(&mut self, qp: &mut Qp) -> usize {
        let mut done = 0;
        let copying = self.is_copying();
        let mut budget = if copying { COPIED_PER_TURN } else { BYTES_PER_TURN };
        if qp.flow.is_some() && !self.may_send(qp) {
            return 0;
        }
        let most = if copying { usize::MAX } else { WQES_PER_TURN };
        while qp.consumer != qp.producer && done < most && budget != 0 && self.dead.is_none() {
            if copying && done != 0 && !self.has_image(qp) {
                break;
            }
            match self.step(qp, &mut budget) {
                Step::Done => done += 1,
                Step::Wait => break,
            }
        }
        if qp.flow.is_some() {
            self.end_turn(qp);
        }
        if qp.deferred.as_ref().is_some_and(|deferred| deferred.until <= self.now()) {
            self.release_deferred(qp);
            done += 1;
        }
        done
    }

    /// Executes, continues or flushes the WQE at the consumer index.
    fn step(&mut self, qp: &mut Qp, budget: &mut usize) -> Step {
        let mut first = [0u64; BLOCK_WORDS];
        self.fetch(qp, qp.consumer, &mut first);
        let ds = first[0].to_ne_bytes()[7] & 0x3f;
        let blocks = u64::from(ds).div_ceil(4).max(1);
        let available = qp.producer - qp.consumer;
        let opcode = first[0].to_ne_bytes()[3];
        if qp.state != QpState::Rts {
            self.flush(qp, opcode, blocks.min(available));
            return Step::Done;
        }
        if self.faulty && self.holds(qp) {
            return Step::Wait;
        }
        if qp.deferred.is_some() {
            self.release_deferred(qp);
        }
        if blocks > available {
            let text =
                format!("ctrl.qpn_ds.ds is {ds}: {blocks} blocks, but the doorbell record covers only {available}");
            let failure = Failure::new(Syndrome::LocalQpOperation, text);
            return self.fail_in_order(qp, opcode, available, &failure);
        }
        if blocks == 1 {
            self.execute(qp, as_bytes(&first), blocks, budget)
        } else {
            let mut words = [0u64; MAX_WQE_BLOCKS * BLOCK_WORDS];
            let (head, rest) = words.split_at_mut(BLOCK_WORDS);
            head.copy_from_slice(&first);
            for i in 1..blocks {
                let at = (native(i) - 1) * BLOCK_WORDS;
                if let Some(block) = rest[at..].first_chunk_mut() {
                    self.fetch(qp, qp.consumer + i, block);
                }
            }
            self.execute(qp, as_bytes(&words), blocks, budget)
        }
    }

    /// Returns whether the fault plan makes the next WQE wait.
    fn holds(&mut self, qp: &mut Qp) -> bool {
        if self.watches_source(qp) {
            return true;
        }
        if self.faults.delay.is_zero() && self.faults.slow.is_empty() && self.faults.reorder == 0.0 {
            return false;
        }
        match qp.hold {
            Hold::Released => false,
            Hold::Undecided => {
                let delay = self.faults.delay(qp.ordinal, qp.consumer);
                let passes = self.faults.passes(qp.ordinal, qp.consumer);
                if delay.is_zero() && passes == 0 {
                    qp.hold = Hold::Released;
                    return false;
                }
                qp.hold = Hold::Until(self.now() + delay, passes);
                true
            }
            Hold::Until(until, passes) => {
                let now = self.now();
                if passes == 0 && until <= now {
                    qp.hold = Hold::Released;
                    return false;
                }
                qp.hold = Hold::Until(until, passes.saturating_sub(1));
                true
            }
        }
    }

    /// Returns whether the next block of a QP's queue has been fetched with others.
    fn has_image(&self, qp: &Qp) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.image(qp.qpn, qp.consumer).is_some())
    }

    /// Reads one block of a send queue.
    #[inline]
    pub(super) fn fetch(&mut self, qp: &Qp, index: u64, block: &mut [u64; BLOCK_WORDS]) {
        let slot = native(index & (qp.depth() - 1));
        let at = qp.sq.wrapping_add(slot * BLOCK_BYTES);
        if self.is_on_gpu() {
            let image = self.gpu.as_ref().and_then(|gpu| gpu.image(qp.qpn, index));
            let Some(image) = image else { return self.fetch_from_gpu(at.addr() as u64, block) };
            for (i, word) in block.iter_mut().enumerate() {
                // SAFETY: a block of an image.
                *word = unsafe { image.cast::<u64>().add(i).read_unaligned() };
            }
            return;
        }
        // SAFETY: the queue lies in a umem that stays registered while the QP lives, is `depth`
        // blocks long and aligned to 64.
        unsafe {
            for (i, word) in block.iter_mut().enumerate() {
                *word = memory::load64(at.add(i * 8), Ordering::Relaxed);
            }
        }
    }
}

/// Returns the memory image of words.
pub(super) fn as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any initialised words are valid bytes, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}
