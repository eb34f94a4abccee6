//! The HCA side of OxSHMEM: what an mlx5 host channel adapter reads and writes, how it is set up,
//! and providers that do it.
//!
//! * [`wire`]: WQEs, CQEs, doorbell records and doorbells, byte by byte.
//! * [`prm`]: the commands that create and connect queue pairs, keys and completion queues.
//! * [`provider`]: the boundary below which a card or the software HCA sits. It carries command
//!   bytes, as DevX does.
//! * [`port`], [`address`]: a port, and what peers tell each other to connect queue pairs.
//! * [`objects`]: typed objects over a provider: protection domain, memory key, completion queue,
//!   queue pair.
//! * [`soft`]: the software HCA, a provider that executes the same commands and the same WQE bytes
//!   in this process.
//! * [`mlx5`]: ConnectX cards, a provider that hands the same commands to rdma-core.
//! * [`verbs`]: RDMA devices through the kernel's verbs.
//! * [`topology`]: which RDMA device is near which GPU, and which PE of a node uses which.
//! * [`blueflame`]: doorbell registers that take work requests.
//! * [`route`]: how packets get to a peer.
//! * `testing`, behind the feature of that name: a host-side poster of WQEs, for tests and
//!   benchmarks.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

pub mod address;
pub mod blueflame;
pub mod error;
pub mod mlx5;
pub mod objects;
pub mod port;
pub mod prm;
pub mod provider;
mod resolving;
pub mod route;
pub mod soft;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::cast_possible_truncation, reason = "it is for tests")]
pub mod testing;
pub mod topology;
pub mod verbs;
pub mod wire;

pub use error::{Error, Result};
