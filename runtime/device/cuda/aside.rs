//! Kernels that take turns with everything else on a GPU.
//!
//! Kernels of one context share the GPU's multiprocessors: one starts when there is room for its
//! blocks, and a grid that occupies all of them until something happens keeps it out for good.
//! Kernels of two contexts take turns, each for some milliseconds, whatever the other one occupies
//! (measured with driver 580 on an H200, as for `accelerator.rs`). Under MPS they do not: there a
//! kernel of either context waits for room.

use std::sync::Arc;
use std::time::Duration;

use super::driver::{Context, Gpu};
use super::memory::Copies;
use super::module::CudaModule;
use super::stream::Stream;
use crate::abi;
use crate::device::cpu::LaunchConfig;
use crate::device::error::DeviceError;
use crate::device::interface::{Aside, LoadedModule};
use crate::device::source::ModuleSource;

/// A module in a context of its own.
#[derive(Debug)]
pub(super) struct CudaAside {
    // Dropped in this order.
    module: CudaModule,
    copies: Copies,
    stream: Arc<Stream>,
}

impl CudaAside {
    pub fn new(gpu: Gpu, source: &ModuleSource, state: &abi::State, deadline: Duration) -> Result<Self, DeviceError> {
        let made = Context::create(gpu).and_then(|context| Stream::urgent(context, deadline));
        let stream = Arc::new(made.map_err(|error| DeviceError::Cuda {
            what: format!(
                "cannot create a second context on GPU {} for module `{}`; it takes some 0.5 GiB of the GPU's memory, and a GPU in compute mode \
                 DEFAULT",
                gpu.ordinal, source.name
            ),
            source: error,
        })?);
        let copies = Copies::new(Arc::clone(&stream))?;
        let module = CudaModule::load(&stream, &copies, source)?;
        module.install(&copies, state)?;
        Ok(Self { module, copies, stream })
    }
}

impl Aside for CudaAside {
    unsafe fn run(&self, name: &str, config: LaunchConfig, args: &[&[u8]]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.module.launch(name, config, args, &crate::device::stream::Stream::OWN) }?;
        self.stream.wait()
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.read(from, bytes) }
    }
}
