//! The fabric between software HCAs. It has two sides:
//!
//! * [`shared`] and [`peer`]: within a node. An HCA maps the control segment and the memory of a
//!   peer, and its engine executes what is posted on both.
//! * TCP, between nodes. An HCA sends requests through a [`link`]; the [`responder`] of the target
//!   makes the same checks on its own memory, keys and queue pairs, executes, and sends back the
//!   result or the failure. Where only kernels reach the memory, a [`copier`] executes.
//!
//! A queue pair uses one of them, as its peer is reached: through a link if
//! [`SoftHca::add_route`](super::SoftHca::add_route) names the peer's address, and else through
//! shared memory.

pub(super) mod buffers;
pub(super) mod copier;
pub(super) mod flight;
pub(super) mod frames;
pub(super) mod greeting;
pub(super) mod link;
pub(super) mod message;
pub(super) mod peer;
pub(super) mod responder;
pub(super) mod shared;
