//! RDMA devices through the kernel's verbs: any card that rdma-core has a driver for, and
//! Soft-RoCE.
//!
//! rdma-core is loaded when it is first needed, so a program that was built anywhere starts
//! everywhere, and says what is missing. These are thin objects over it, each keeping alive what it
//! depends on: [`Context`], [`Port`], [`ProtectionDomain`], [`MemoryRegion`], [`CompletionQueue`],
//! [`QueuePair`] (RC).

pub(crate) mod context;
mod error;
pub(crate) mod library;
mod memory;
pub(crate) mod path;
mod queue;
pub mod sys;
mod work;

pub use context::{Atomicity, Context, Limits, Port, device_names};
pub use error::{PostError, Result, VerbsError};
pub use memory::{MemoryRegion, ProtectionDomain};
pub use queue::{CompletionQueue, QueuePair, QueuePairSize, WorkCompletion, WorkStatus};
pub use work::{Segment, SendChain, SendOperation, SendRequest, Target};
