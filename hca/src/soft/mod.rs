//! The software HCA: executes in this process what an mlx5 card would be given.
//!
//! Commands, WQEs, doorbell records, doorbells and CQEs have the card's formats. A thread per HCA,
//! the engine, polls the doorbell registers and executes send queues; it reaches the memory of a
//! peer through a mapping that it got from the peer's HCA (see `fabric.rs`). There is no central
//! process, and nothing is left in the file system.
//!
//! # Ordering
//! WQEs of a QP execute in order; the payload of each is visible before that of the next, and
//! before its own CQE. Between QPs there is no order. A payload of 1, 2, 4 or 8 bytes to an address
//! aligned to its size is one store. Atomics are CPU atomics on the word, hence atomic against
//! every process that maps it, and against the CPU.
//!
//! # Errors
//! As on the card, the first WQE that fails gets an error CQE and moves its QP to the error state,
//! and every later one, posted before or after, gets a CQE with "flushed". On a collapsed CQ the
//! last CQE written is what remains; the cause is then in [`SoftHca::violations`]. One difference:
//! on a card, a remote access error also moves the responder's QP to the error state.
//!
//! # Faults and trace
//! [`FaultPlan`] makes it delay, reorder, lose, fail and die on demand. With
//! [`SoftOptions::trace`], each command, doorbell, WQE and CQE is printed in a line.

mod accelerator;
mod admission;
mod atomics;
mod completions;
mod control;
mod copying;
mod doorbells;
mod engine;
mod execute;
mod fabric;
mod failure;
mod faults;
mod firmware;
mod flow;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::cast_possible_truncation, reason = "it is for tests")]
pub mod fuzz;
mod gpu_engine;
mod hca;
mod late;
mod limits;
mod memory;
mod options;
mod slots;
mod sources;
mod state;
pub mod tables;
mod thread;
mod trace;
mod violation;

pub use accelerator::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, CopyEngine, Pace, Rows};
pub use copying::CopyMode;
pub use faults::{FaultPlan, InjectedError, ParseFaultError, SlowQp};
pub use firmware::SYNDROME_BASE;
pub use hca::SoftHca;
pub use limits::{REGISTER_STRIDE, REGISTERS_PER_PAGE};
pub use options::SoftOptions;
pub use thread::doorbell_rung;
pub use violation::Violation;
