//! The GPU engine: where queues lie in memory that only kernels reach, the kernel of an
//! [`Accelerator`](super::Accelerator) executes work requests, and the engine's thread judges what
//! the kernel refuses.
//!
//! `slices.rs` launches and cancels slices of the kernel, and `running.rs` keeps them running.
//! `queue_pairs.rs`, `keys.rs` and `doorbells.rs` keep the tables that the kernel reads, and
//! `reports.rs` takes in what it writes. `copy_passes.rs` executes by copies while slices find no
//! room. `queues.rs` reaches queues that the CPU cannot address.
//!
//! The kernel (`device-kernels/kernels/soft_hca.cu`) executes what is well-formed and permitted.
//! Before anything else it stops the QP and reports an event. The engine then looks at the WQE as
//! it would at one of its own: it fails it, waits for a peer, or finds that only a translated key
//! was missing, writes that to the tables, and lets the QP go on. Errors therefore have one source,
//! and the same syndromes and words on either engine.
//!
//! The tables change only while no slice executes. `pause` sees to that: it cancels the slices that
//! were launched (see `Gate` in `soft_hca.h`), which takes as long as those that have started need
//! to notice, and nothing for those that have not.
//!
//! A slice that finds no room beside other kernels does not start, and neither do the kernels end
//! if they wait for the network. Then the engine's thread takes all queue pairs over and executes
//! by copies ([`copying`](super::copying)), until the slice has found room. So a queue pair always
//! has one owner: slices that may execute, or the thread, which has cancelled them.

mod copy_passes;
mod doorbells;
mod keys;
mod queue_pairs;
mod queues;
mod reports;
mod running;
mod slices;

pub(super) use slices::{GpuEngine, Ringer};
