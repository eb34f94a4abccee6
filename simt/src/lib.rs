//! The `cpu` device: a SIMT executor that runs kernels compiled as C++.
//!
//! Every GPU thread is a coroutine with a small stack of its own. A block belongs to one worker,
//! which is one operating system thread, and runs there warp by warp. As many blocks as have room
//! ([`ExecutorOptions::max_threads`]) are live together, so these may wait for each other; as on a
//! GPU, the others begin as these end. Device code enters the executor (`calls.rs`)
//! wherever a GPU thread can wait: in `pause`, in barriers, in warp operations and in
//! `active_mask`. There the coroutine is suspended and the worker (`worker.rs`) resumes another
//! one.
//!
//! # What a launch may assume
//!
//! * Barriers and warp operations order memory among their participants, as on a GPU.
//! * Threads of one worker run one at a time, so a spin loop without `pause` on a value that
//!   another thread of the same worker writes ends at the deadline. Blocks on different workers run
//!   in parallel.
//! * Launches of one executor run one after the other, in the order of the calls.
//!
//! # Errors
//!
//! A kernel that accesses memory it may not, overflows its stack, divides by zero, throws,
//! deadlocks, misuses a warp operation or runs longer than its deadline ends with a [`KernelError`]
//! that names kernel, block and thread. The other threads of the launch are dropped where they
//! stand, without running C++ destructors; the executor is ready for the next launch.
//!
//! Faults are caught by process-wide signal handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and one
//! real-time signal, SIGRTMIN + 6. Signals that do not come from device code go to the handler that
//! was installed before.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

mod activity;
mod block;
mod calls;
mod context;
mod error;
mod executor;
mod interface;
mod launch;
mod module;
mod stack;
mod trap;
mod worker;

#[cfg(test)]
mod unit_tests;

pub use activity::{Activity, activity};
pub use error::{KernelError, KernelErrorKind, LaunchError, ModuleError, Position};
pub use executor::Executor;
pub use interface::{AtomicAccess, device_state, set_atomic_hook, set_mmio_hook};
pub use launch::{ExecutorOptions, LaunchConfig, LaunchHandle};
pub use module::{Kernel, Module};

/// Lanes of a warp.
///
/// ```
/// assert_eq!(oxshmem_simt::WARP_LANES, 32);
/// ```
pub const WARP_LANES: u32 = 32;

/// Most threads of a block, as on every GPU.
///
/// ```
/// use oxshmem_simt::LaunchConfig;
/// use oxshmem_simt::MAX_BLOCK_THREADS;
///
/// let widest = LaunchConfig::linear(1, MAX_BLOCK_THREADS);
/// # assert_eq!(widest.block, [1024, 1, 1]);
/// ```
pub const MAX_BLOCK_THREADS: u32 = 1024;

/// Most dynamic shared memory of a block in bytes: what one block can use on sm_90 (227 KiB).
///
/// ```
/// use oxshmem_simt::LaunchConfig;
/// use oxshmem_simt::MAX_SHARED_BYTES;
///
/// let roomy = LaunchConfig { shared_bytes: MAX_SHARED_BYTES, ..LaunchConfig::linear(1, 256) };
/// # assert_eq!(roomy.shared_bytes, 232_448);
/// ```
pub const MAX_SHARED_BYTES: usize = 227 * 1024;
