//! OxSHMEM: a partitioned global address space for GPUs.
//!
//! # The model
//! A job is a number of processes. Each has one processing element, a [`Pe`], with a GPU (or, on
//! the `cpu` device, a SIMT executor that runs the same kernels) and a *symmetric heap*. Memory of
//! the heap, a [`SymmetricSlice`], is allocated by all PEs together and lies at the same offset on
//! every PE, so one slice names a copy on each of them.
//!
//! Kernels put to, get from and synchronise on the copies of other PEs (`oxshmem/oxshmem.h`): by
//! load and store where a PE's memory is mapped, and by work requests to an RDMA card where it is
//! not. Device code posts these itself (IBGDA), or leaves that to a thread of the host (IBRC). The
//! host has the same [`Operations`].
//!
//! # A program
//! ```
//! use oxshmem::{Compare, Operations};
//!
//! fn main() -> oxshmem::Result<()> {
//!     let pe = oxshmem::init()?; // joins the job that `oxrun` started; alone, a job of one PE
//!     let inbox = pe.alloc::<i32>(1)?;
//!     let arrived = pe.alloc::<u64>(1)?;
//!
//!     // Puts this PE's number into the next PE's inbox, and a signal after it.
//!     let next = (pe.my_pe() + 1) % pe.n_pes();
//!     pe.put_signal(&inbox, &[pe.my_pe() as i32], arrived.signal(0).set(1), next)?;
//!
//!     // A PE that sees the signal sees the data.
//!     pe.signal_wait_until(arrived.signal(0), Compare::Eq, 1)?;
//!     println!("PE {} got {}", pe.my_pe(), pe.read(&inbox)?[0]);
//!     pe.finalize()
//! }
//! ```
//! Kernels are declared with [`kernels!`] and launched on the PE or on a stream; `examples/ring`
//! does the same in one.
//!
//! # The objects
//! | object | what it is | made by |
//! |---|---|---|
//! | [`Pe`] | this process's place in the job; issues operations and waits for them | [`init`], [`Pe::with_config`] |
//! | [`SymmetricSlice`], [`SymmetricView`] | symmetric memory, and a part of it | [`Pe::alloc`], [`SymmetricSlice::view`] |
//! | [`Signal`], [`SignalUpdate`] | a word that tells of data, and what to do to it | [`SymmetricSlice::signal`], [`Signal::set`] |
//! | [`Atomic`] | an element at one PE, for atomics | [`Pe::atomic`] |
//! | [`Stream`], [`OnStream`] | a queue of work, and what issues operations on it | [`Pe::create_stream`], [`Pe::on`] |
//! | [`Team`] | an ordered set of PEs, for collectives | [`Pe::team_world`], [`Team::split_strided`] |
//! | [`Module`], [`Kernel`] | device code | [`kernels!`], [`Pe::load`] |
//!
//! Each operation exists once, in [`Operations`]: `pe.put(..)` returns when it is locally complete,
//! `pe.on(&stream).put(..)` queues it.
//!
//! # What is promised
//! * **Completion.** A put is delivered after [`quiet`](Operations::quiet) or
//!   [`barrier_all`](Operations::barrier_all), or when its signal is seen.
//! * **Safety.** Every call checks its slices. What was freed, belongs to an earlier PE or is out
//!   of range is an error that names the allocation. Launching kernels is `unsafe`: device code may
//!   do what C++ may do.
//! * **Errors.** No wait is unbounded, and a PE that dies is an error on all others; see
//!   [`Pe::synchronize`].
//!
//! # Threads and drop
//! A [`Pe`] and a [`Joined`] are `Send` and not `Sync`: each belongs to one thread at a time, and
//! so does what borrows a [`Pe`] to issue calls, [`OnStream`] and [`Atomic`]. Everything else is
//! `Send` and `Sync`, except for [`CudaGpu`], which has handles of the driver. Other threads end
//! the job of a PE by its [`JobHandle`].
//!
//! Dropping a [`Pe`] without [`finalize`](Pe::finalize), or a [`Joined`] without
//! [`open`](Joined::open), leaves the job as a crash would. Dropping a [`Stream`] that the library
//! created gives it back when its work has ended. The code of a [`Module`] stays loaded until the
//! end of the PE, because graphs may have its kernels. Dropping a [`SymmetricSlice`] or a [`Team`]
//! gives nothing back before finalize, since that is collective: [`Pe::free`], [`Team::destroy`].
//! Dropping anything else does nothing.
//!
//! ```
//! use oxshmem::*;
//!
//! fn shared<T: Send + Sync>() {}
//! shared::<SymmetricSlice<f32>>();
//! shared::<(SymmetricView<'_, f32>, Strided<'_, f32>, Signal<'_>, SignalUpdate<'_>, RawMemory)>();
//! shared::<(Stream, Team, TeamUniqueId, Module, Kernel, ModuleSource)>();
//! shared::<(Contexts, Context, Aggregate, Counters, Trace, JobHandle)>();
//! shared::<(Config, config::ConfigBuilder, BuildInfo, LaunchConfig)>();
//! shared::<(launch::LaunchOptions, launch::Outcome, bootstrap::UniqueId)>();
//! shared::<(Error, DeviceFault, HeapError, TeamError, TransportError, StaleError)>();
//! shared::<(bootstrap::BootstrapError, config::ConfigError, device::DeviceError)>();
//!
//! fn sendable<T: Send>() {}
//! sendable::<(Pe, Joined)>();
//! ```
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<oxshmem::Pe>();
//! ```
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<oxshmem::Joined>();
//! ```
//!
//! `docs/semantics.md` has the details, `docs/environment.md` the variables, `docs/architecture.md`
//! the parts.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

#[doc(hidden)]
pub mod abi;
mod aggregate;
pub mod bootstrap;
mod buffer;
mod build_info;
mod check;
pub mod config;
mod context;
pub mod device;
mod dump;
pub mod error;
mod fault;
mod heap;
mod host;
mod identity;
#[cfg(feature = "cudarc")]
mod interop;
mod kernel;
mod last_error;
pub mod launch;
mod limits;
mod memory;
mod modules;
mod pe;
mod profile;
mod slab;
mod slice;
mod stream;
mod team;
mod transport;

// The build's generated expressions name this crate.
extern crate self as oxshmem;

/// The crate of the feature `cudarc`, in the version that this library works with.
#[cfg(feature = "cudarc")]
#[doc(no_inline)]
pub use ::cudarc;
pub use abi::ReduceOp;
pub use aggregate::{Aggregate, AggregateCounters, AggregateError, AggregateOptions, Lost, LostAt};
pub use buffer::{BufferError, BufferInfo};
pub use build_info::{BuildInfo, build_info};
pub use config::Config;
pub use context::{Context, ContextArray, ContextCost, ContextError, ContextOptions, Contexts, Sharing};
pub use device::{CudaGpu, LaunchConfig, ModuleSource};
pub use dump::dump;
pub use error::{Error, Result};
pub use fault::{DeviceFault, FaultKind, Unmet};
pub use heap::allocation::AllocationInfo;
pub use heap::error::{AddressProblem, HeapError};
pub use host::atomic::{Atomic, AtomicValue, BitwiseValue};
pub use host::by_address;
pub use host::collectives::Reducible;
pub use host::operations::Operations;
pub use host::sides::{Destination, RawMemory, Source};
pub use identity::{PeId, StaleError};
#[cfg(feature = "cudarc")]
pub use interop::Lent;
pub use kernel::args::{KernelArg, KernelArgs};
pub use kernel::{Kernel, Module};
pub use memory::{MemoryBytes, MemoryKind, MemoryUse};
pub use pe::{JobHandle, Joined, Path, Pe, init};
pub use profile::{
    CallCount, CardCount, Counters, Origin, PeerCount, QpCount, RouteCount, TeamCount, Trace, TraceCall, Traffic,
    TransportCount,
};
pub use slice::{Compare, Signal, SignalOp, SignalUpdate, Strided, Symmetric, SymmetricSlice, SymmetricView};
pub use stream::{OnStream, Stream};
pub use team::{Collectives, MissingPes, Team, TeamError, TeamUniqueId, Tuning};
pub use transport::TransportError;
