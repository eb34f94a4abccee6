//! The engine, without I/O: descriptors in, chains of work requests out; completions in,
//! acknowledgements out.
//!
//! # Order
//! A descriptor goes to the queue pair that its peer and queue number name, and requests of a queue
//! pair are posted in the order of their descriptors. An ordered descriptor's request is marked
//! with a fence; so is the next one to each peer after a
//! [`Request::Fence`](crate::descriptor::Request::Fence) of its queue.
//!
//! # Atomics that the card lacks
//! Their work is done by a loop of native 64-bit compare-and-swaps on the aligned eight bytes
//! around the operand, each of them a work request: swap a guess, compute here from what was there,
//! and swap once more if the guess was wrong. As every other atomic on the word is a 64-bit work
//! request of the same card or such a loop, all of them are atomic with respect to each other.
//! Whatever follows a loop on its queue pair waits here until it has ended; only loops on other
//! words pass, unless they are ordered. Atomics on the word of a loop that follow it at once join
//! it: one compare-and-swap does the work of all of them, one after the other.
//!
//! # Staged puts
//! Sources of large puts can be copied to host memory first; see [`staging`](crate::staging).
//! Whatever follows such a put on its queue pair waits here until its last piece is posted, so the
//! order is that of puts which are not staged.
//!
//! # Completion
//! Success is reported for requests that are signaled: the last of each chain, and those that a
//! thread waits for by name. It covers all earlier ones of the queue pair. A descriptor is done
//! when all its requests are; [`Engine::completed`] counts the descriptors before the first that is
//! not.
//!
//! A [`Request::Flush`](crate::descriptor::Request::Flush) is done when a read through each queue
//! pair that was written through before it is. A responder's card carries requests of a queue pair
//! out in their order, and its read finds what it has written in memory.
//!
//! # Errors
//! A queue pair that failed ends all of its descriptors, now and later, as failed. They count as
//! completed, so no thread waits for them, and [`Engine::failures`] rises; what failed first is
//! kept per peer. Other queue pairs go on.

mod accept;
mod complete;
mod failures;
mod options;
mod post;
mod queue;
mod state;
mod swap_loop;

pub use options::{
    Acknowledgement, CHAIN, EXTRA_SLOTS, EngineOptions, Fault, LANDING_BYTES, LOOPS, Results, acknowledgement,
};
pub use state::Engine;
