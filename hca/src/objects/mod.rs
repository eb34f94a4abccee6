//! Typed objects over a [`Provider`](crate::provider::Provider): they build the command bytes, keep
//! what a command needs alive, and destroy what they own.
//!
//! An object holds an [`Arc`](std::sync::Arc) of each object it depends on, so a queue pair
//! outlives neither its completion queue nor the memory its queues lie in, in whatever order
//! variables are dropped. `close` destroys early; it and dropping are idempotent.

mod caps;
mod cq;
mod memory;
mod owned;
mod pd;
mod qp;
mod uar;

pub use crate::address::{QpAddress, QpAttributes};
pub use caps::{query_caps, query_second_caps, query_ts_format, without_records};
pub use cq::{Cq, CqAttributes};
pub use memory::{KEY_VARIANT, Mkey, MkeyAttributes, Umem};
pub use pd::Pd;
pub use qp::{LOG_MESSAGE_MAX, Qp, QpGeometry, QpStatus};
pub use uar::{Doorbell, Doorbells, Uar};
