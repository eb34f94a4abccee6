//! What a queue pair has sent to another node, and not got an answer to.

use crate::wire::data;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Numbers attempts, so that no two of this process are the same for long.
static ATTEMPTS: AtomicU32 = AtomicU32::new(1);

/// A WQE under way.
#[derive(Debug)]
pub(in crate::soft) struct Flight {
    /// The index of its first block.
    pub index: u64,
    pub opcode: u8,
    pub signaled: bool,
    /// Bytes of its payload.
    pub bytes: u64,
    /// The number behind that of its last request; `u64::MAX` while some are still to be sent.
    pub end: u64,
    /// Where what it reads belongs, and how much of it is there.
    pub landing: Option<data::Repr>,
    pub landed: u64,
}

/// A piece of a payload that is still to be copied into the request that carries it, as the CPU
/// does not reach it where it is.
#[derive(Debug, Clone, Copy)]
pub(in crate::soft) struct Unfilled {
    /// Place of the connection in [`Engine::links`](super::super::state::Engine::links).
    pub link: usize,
    /// Where the piece goes in what the connection has to send.
    pub at: usize,
    pub len: usize,
    /// Where kernels find it.
    pub from: u64,
}

/// What a queue pair with a peer on another node keeps of it.
#[derive(Debug)]
pub(in crate::soft) struct Flow {
    /// Place in [`Engine::links`](super::super::state::Engine::links).
    pub link: usize,
    pub attempt: u32,
    /// The number of the next request.
    pub next: u64,
    /// Requests that are done: those below this number.
    pub done: u64,
    pub flights: VecDeque<Flight>,
    /// Bytes that were requested and have not arrived.
    pub reading: u64,
    /// When something was last heard of what is under way, or when it was first sent.
    pub heard: Instant,
    /// Nothing is sent before.
    pub pause: Option<Instant>,
    /// The write that fault `visibility` holds back, until when, and the order of its bytes.
    pub held: Option<(u64, Instant, u64)>,
}

impl Flow {
    pub(in crate::soft) fn new(link: usize) -> Self {
        Self {
            link,
            attempt: ATTEMPTS.fetch_add(1, Ordering::Relaxed),
            next: 0,
            done: 0,
            flights: VecDeque::new(),
            reading: 0,
            heard: Instant::now(),
            pause: None,
            held: None,
        }
    }

    /// Forgets what is under way, and returns the index of the first WQE that has to be sent again.
    pub(in crate::soft) fn rewind(&mut self) -> Option<u64> {
        let first = self.flights.front().map(|flight| flight.index);
        *self = Self { held: self.held, ..Self::new(self.link) };
        first
    }

    /// Returns whether the last flight's requests are not all sent.
    pub(in crate::soft) fn is_sending(&self) -> bool {
        self.flights.back().is_some_and(|flight| flight.end == u64::MAX)
    }

    /// Returns whether something is being read.
    pub(in crate::soft) fn is_reading(&self) -> bool {
        self.flights.iter().any(|flight| flight.landing.is_some())
    }
}
