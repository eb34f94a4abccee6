//! A queue pair: what waits to be posted on it, and what was posted and has not ended.

use std::collections::VecDeque;

use super::options::CHAIN;
use super::swap_loop::Swapped;
use crate::descriptor::Landing;
use crate::work::{Operation, Remote, WorkRequest};

/// What happens when a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
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
pub(super) enum Work {
    Request(Operation, End),
    /// An atomic for a loop: one of its own, which gets its place when it is posted, or the one
    /// before it.
    Loop(Swapped),
    /// A put whose pieces are posted when they have been copied. It counts as one request until its
    /// last piece is posted.
    Staged {
        put: u32,
    },
}

/// Why no more of a queue's requests can be posted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// There are none, or the chain or the backend's queue is full.
    Nothing,
    /// The next one waits for a loop.
    Loop,
    /// The next one waits for a copy.
    Copy,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) work: Work,
    pub(super) fence: bool,
    pub(super) descriptor: u64,
}

/// A request that was posted. Ids rise by one, so none is kept: see [`Queue::oldest`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    pub(super) address: u64,
    pub(super) descriptor: u64,
    pub(super) end: End,
    pub(super) opcode: u8,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The next chain: numbered, and in `posted`.
    pub(super) ready: Vec<WorkRequest>,
    /// What follows it.
    pub(super) pending: VecDeque<Pending>,
    pub(super) posted: VecDeque<Posted>,
    pub(super) next_id: u64,
    /// The next request is to be fenced.
    pub(super) fence_next: bool,
    /// Where it was last written through since the last flush.
    pub(super) written: Option<Remote>,
    /// The words of loops that were posted and have not ended.
    pub(super) loops: Vec<u64>,
    /// What the last loop left, and where: the next one's guess.
    pub(super) left: (u64, u64),
    /// It is among those that may have something to post.
    pub(super) listed: bool,
    pub(super) failed: bool,
}

impl Queue {
    /// Returns whether another request fits the next chain, and the backend's queue of `depth`.
    #[inline]
    pub(super) fn has_room(&self, depth: usize) -> bool {
        self.ready.len() < CHAIN && self.posted.len() < depth
    }

    /// Returns the id of the oldest request that was posted and has not ended, or of the next.
    #[inline]
    pub(super) fn oldest(&self) -> u64 {
        self.next_id - self.posted.len() as u64
    }

    /// Puts a request at the end of the next chain.
    #[inline(always)]
    pub(super) fn push(&mut self, operation: Operation, end: End, fence: bool, descriptor: u64) {
        let id = self.next_id;
        self.next_id += 1;
        let (opcode, address) = (operation.opcode(), operation.remote().address);
        self.posted.push_back(Posted { address, descriptor, end, opcode });
        self.ready.push(WorkRequest { id, operation, signaled: end != End::Plain, fence });
    }
}
