//! What the engine keeps, and what can be asked of it.

use std::collections::VecDeque;

use super::options::{Acknowledgement, EngineOptions, Fault, LOOPS};
use super::queue::Queue;
use super::swap_loop::Loop;
use crate::staging::Pool;
use crate::work::Capabilities;

/// The engine of a proxy: descriptors in, work requests out. It does no I/O.
#[derive(Debug)]
pub struct Engine {
    pub(super) options: EngineOptions,
    pub(super) capabilities: Capabilities,
    pub(super) queues: Vec<Queue>,
    /// Queues that may have something to post.
    pub(super) listed: VecDeque<u32>,
    /// Queues whose next request waits for a loop.
    pub(super) blocked: Vec<u32>,
    /// Queues that were written through since the last flush.
    pub(super) written: Vec<u32>,
    /// Requests that descriptors wait for, from number `completed` on.
    pub(super) window: VecDeque<u32>,
    pub(super) completed: u64,
    pub(super) loops: Vec<Loop>,
    pub(super) free_loops: Vec<u32>,
    /// Puts of at least this many bytes are staged.
    pub(super) stage_from: u32,
    pub(super) pool: Pool,
    pub(super) outstanding: usize,
    pub(super) failures: u64,
    pub(super) last_failed: u32,
    pub(super) faults: Vec<Fault>,
    pub(super) acknowledgements: Vec<Acknowledgement>,
}

/// In an entry of the window: the descriptor has failed. Below: how many requests it waits for.
pub(super) const FAILED: u32 = 1 << 31;

impl Engine {
    /// Returns an idle engine for a backend with these capabilities.
    #[must_use]
    pub fn new(options: EngineOptions, capabilities: Capabilities) -> Self {
        let peers = options.n_pes.saturating_sub(u32::from(!options.own));
        let count = (peers * options.striping.per_peer()) as usize;
        Self {
            capabilities,
            queues: (0..count).map(|_| Queue::default()).collect(),
            listed: VecDeque::new(),
            blocked: Vec::new(),
            written: Vec::new(),
            window: VecDeque::with_capacity(options.window),
            completed: 0,
            loops: (0..LOOPS).map(|_| Loop::default()).collect(),
            free_loops: (0..LOOPS).rev().collect(),
            // No put is that long (`kMaxMessageBytes` in abi.h).
            stage_from: options.staging.map_or(u32::MAX, |staging| staging.from.max(1)),
            pool: Pool::new(options.staging, count, options.striping.clone(), capabilities.max_message),
            outstanding: 0,
            failures: 0,
            last_failed: 0,
            faults: Vec::new(),
            acknowledgements: Vec::new(),
            options,
        }
    }

    /// Returns whether another descriptor may be given.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.window.len() < self.options.window
    }

    /// Returns whether everything given has ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Returns whether requests are at the backend.
    #[must_use]
    pub fn has_outstanding(&self) -> bool {
        self.outstanding != 0
    }

    /// Returns the number of descriptors done, without a gap, since the beginning.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns how many descriptors have failed, and the peer of the newest of them.
    #[must_use]
    pub fn failures(&self) -> (u64, u32) {
        (self.failures, self.last_failed)
    }

    /// Returns the peer and the queue of a queue pair, and one more than the newest descriptor that
    /// requests were posted there for and that has not ended; `None` if there is none.
    #[must_use]
    pub fn posted(&self, qp: u32) -> Option<(u32, u32, u64)> {
        let newest = self.queues.get(qp as usize)?.posted.back()?.descriptor;
        Some((self.pe(qp), qp % self.options.striping.per_peer(), newest + 1))
    }

    /// Returns what waits for what, in words, for the log.
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

    /// Returns what failed first at each peer that failed, in the order of the failures.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns what device code is to be told about landing slots since the last call. They are in
    /// the landing slots already.
    pub fn acknowledgements(&mut self) -> std::vec::Drain<'_, Acknowledgement> {
        self.acknowledgements.drain(..)
    }

    /// Returns the dense index of a queue pair; `None` if there is none.
    pub(super) fn qp(&self, pe: u32, queue: u32) -> Option<u32> {
        self.options.qp(pe, queue)
    }

    /// Returns the peer that a queue pair leads to.
    pub(super) fn pe(&self, qp: u32) -> u32 {
        self.options.peer(qp)
    }
}
