//! OxSHMEM: a partitioned global address space for GPUs.
//!
//! Every processing element ([`Pe`]) has a symmetric heap; memory of the heap ([`SymmetricSlice`]) exists at the same offset on every PE.
//! Kernels put to, get from and synchronise on the memory of other PEs (`oxshmem/oxshmem.h`): by load and store where a PE's memory is
//! mapped, and by work requests to an RDMA card where it is not: device code posts them
//! itself (IBGDA), or leaves that to a thread of the host (IBRC). The host has the same operations.
//!
//! Nothing below needs a GPU or a card: the `cpu` device runs the same kernels on a SIMT executor, and the software HCA executes the
//! same work requests. See `docs/architecture.md`.

pub mod abi;
pub mod bootstrap;
mod build_info;
pub mod config;
pub mod device;
pub mod error;
mod fault;
mod heap;
mod host;
mod identity;
mod kernel;
pub mod launch;
mod modules;
mod pe;
mod slab;
mod slice;
mod stream;
mod team;
mod transport;

// The build's generated expressions name this crate.
extern crate self as oxshmem;

pub use abi::ReduceOp;
pub use build_info::{BuildInfo, build_info};
pub use config::Config;
pub use device::{CudaGpu, LaunchConfig, ModuleSource};
pub use error::{Error, Result};
pub use fault::{DeviceFault, FaultKind};
pub use heap::allocation::AllocationInfo;
pub use heap::error::{AddressProblem, HeapError};
pub use host::atomic::{Atomic, AtomicValue, BitwiseValue};
pub use host::collectives::Reducible;
pub use host::operations::Operations;
pub use host::sides::{Destination, RawMemory, Source};
pub use identity::{PeId, StaleError};
pub use kernel::args::{KernelArg, KernelArgs};
pub use kernel::{Kernel, Module};
pub use pe::{Path, Pe, init};
pub use slice::{Compare, Signal, SignalOp, SignalUpdate, Strided, Symmetric, SymmetricSlice, SymmetricView};
pub use stream::{OnStream, Stream};
pub use team::{Collectives, MissingPes, Team, TeamError, TeamUniqueId};
pub use transport::TransportError;
