//! Streams of a PE, and the launches that the runtime makes on them.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::sync::Arc;

use super::Pe;
use crate::Result;
use crate::device::{self, DeviceCopy, DeviceError, LaunchConfig, LoadedModule, ModuleSource, Wait};
use crate::kernel::args::KernelArgs;
use crate::modules::{AGGREGATE, COLLECTIVES, LEVELS};
use crate::stream::{OnStream, Stream};

/// Streams.
impl Pe {
    /// Returns what issues operations and kernels on `stream`.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (stream, inbox, outbox) = (pe.create_stream()?, pe.alloc::<i32>(8)?, pe.alloc::<i32>(8)?);
    /// pe.on(&stream).put(&inbox, &outbox, 0)?;
    /// pe.on(&stream).synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn on<'a>(&'a self, stream: &'a Stream) -> OnStream<'a> {
        OnStream { pe: self, stream }
    }

    /// Returns the PE's own stream, which launches on the PE and the host's operations use.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let own = pe.stream();
    /// pe.on(&own).quiet()?; // queued; pe.quiet() also waits
    /// pe.synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::new(self.id, device::Stream::OWN)
    }

    /// Creates a stream, which waits for no other.
    ///
    /// # Errors
    /// The device has no room for it.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (first, second) = (pe.create_stream()?, pe.create_stream()?);
    /// # drop((first, second));
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn create_stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.id, self.device.create_stream()?))
    }

    /// Returns a stream that the program made: on the `cuda` device a `CUstream` (`cudaStream_t`,
    /// cudarc's `CudaStream::cu_stream`) of the GPU's primary context, null for the legacy default
    /// stream. The `cpu` device takes null alone, and means the PE's own stream. For
    /// `CU_STREAM_PER_THREAD` it is the calling thread's default stream; other threads cannot put
    /// work on it.
    ///
    /// What is put on a stream that is being captured becomes part of the graph; errors of its
    /// launches are reported by the next [`synchronize_device`](Pe::synchronize_device), and they
    /// must have ended before the PE is finalized.
    ///
    /// # Errors
    /// The device cannot use it.
    ///
    /// # Safety
    /// `raw` is such a stream, and stays one while work is put on it or [`OnStream::synchronize`]
    /// is called with it.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// // SAFETY: null is the legacy default stream, or the PE's own on the `cpu` device.
    /// let stream = unsafe { pe.stream_from_raw(std::ptr::null_mut()) }?;
    /// pe.on(&stream).synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Result<Stream> {
        if let Some(named) = self.named.borrow().as_ref().filter(|stream| stream.is_named(raw)) {
            return Ok(Stream::new(self.id, named.clone()));
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { self.device.stream_from_raw(raw) }?;
        if stream.is_named(raw) {
            self.named.replace(Some(stream.clone()));
        }
        Ok(Stream::new(self.id, stream))
    }

    /// Puts a kernel on a stream.
    ///
    /// # Safety
    /// The same as for [`Kernel::launch`](crate::Kernel::launch).
    pub(crate) unsafe fn queue_kernel(
        &self,
        stream: &device::Stream,
        (module, name): (&dyn LoadedModule, &str),
        config: LaunchConfig,
        args: &impl KernelArgs,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        args.with_bytes(self.id, &mut |args| unsafe { module.launch(name, config, args, stream) })??;
        self.wake_proxy();
        self.scene().board.queued(stream, name);
        Ok(())
    }

    /// Runs a kernel of `host_ops.cu` in one block and waits for it.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn run_host_kernel(&self, name: &str, threads: u32, args: &impl KernelArgs) -> Result<()> {
        let (own, config) = (&device::Stream::OWN, LaunchConfig::linear(1, threads));
        // SAFETY: the caller's promise.
        args.with_bytes(self.id, &mut |args| unsafe { self.host_ops.launch(name, config, args, own) })??;
        self.wake_proxy();
        self.scene().board.queued(own, name);
        self.wait(Wait::Own)
    }

    /// Puts a kernel of `host_ops.cu` in one block on a stream.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn queue_host_kernel(
        &self,
        stream: &device::Stream,
        name: &str,
        threads: u32,
        args: impl KernelArgs,
    ) -> Result<()> {
        let config = LaunchConfig::linear(1, threads);
        // SAFETY: the caller's promise.
        unsafe { self.queue_kernel(stream, (self.host_ops.as_ref(), name), config, &args) }
    }

    /// Puts a kernel of `collectives.cu` on a stream. In a job of one PE the first call loads the
    /// module; otherwise init has.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn queue_collective(
        &self,
        stream: &device::Stream,
        name: &str,
        config: LaunchConfig,
        args: impl KernelArgs,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.queue_lazily(stream, (&self.collectives, &COLLECTIVES, name), config, &args) }
    }

    /// Does the same with the kernel of `levels.cu`, whose module init has loaded where a team may
    /// have several nodes.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn queue_in_levels(
        &self,
        stream: &device::Stream,
        config: LaunchConfig,
        args: impl KernelArgs,
    ) -> Result<()> {
        let name = "oxshmem_host_collective_by_levels";
        // SAFETY: the caller's promise.
        unsafe { self.queue_lazily(stream, (&self.levels, &LEVELS, name), config, &args) }
    }

    /// Returns the module of aggregating contexts. It is loaded by the first call.
    pub(crate) fn aggregate_module(&self) -> Result<Arc<dyn LoadedModule>> {
        self.loaded(&self.aggregate, &AGGREGATE)
    }

    /// Runs a kernel of `aggregate.cu` in one block and waits for it.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn run_aggregate_kernel(&self, name: &str, threads: u32, args: &impl KernelArgs) -> Result<()> {
        let (own, module) = (&device::Stream::OWN, self.aggregate_module()?);
        // SAFETY: the caller's promise.
        unsafe { self.queue_kernel(own, (module.as_ref(), name), LaunchConfig::linear(1, threads), args) }?;
        self.wait(Wait::Own)
    }

    /// Returns a module, and loads it before if it is not there.
    fn loaded(&self, place: &OnceCell<Arc<dyn LoadedModule>>, source: &ModuleSource) -> Result<Arc<dyn LoadedModule>> {
        if let Some(module) = place.get() {
            return Ok(Arc::clone(module));
        }
        let module = self.device.load(source)?;
        module.reserve_stacks()?;
        // One thread at a time has the PE, so no other sets it meanwhile.
        Ok(Arc::clone(place.get_or_init(|| module)))
    }

    /// Puts a kernel of a module on a stream, and loads the module before if it is not there.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    unsafe fn queue_lazily(
        &self,
        stream: &device::Stream,
        (place, source, name): (&OnceCell<Arc<dyn LoadedModule>>, &ModuleSource, &str),
        config: LaunchConfig,
        args: &impl KernelArgs,
    ) -> Result<()> {
        let module = self.loaded(place, source)?;
        // SAFETY: the caller's promise.
        unsafe { self.queue_kernel(stream, (module.as_ref(), name), config, args) }
    }

    /// Queues a copy of device memory by a copy engine; `false` if the device has none, or if the
    /// stream is being captured and the copy is not for graphs.
    ///
    /// # Safety
    /// The same as for [`Device::copy_on`](device::Device::copy_on).
    pub(crate) unsafe fn queue_copy(&self, stream: &device::Stream, copy: DeviceCopy) -> Result<bool> {
        // SAFETY: the caller's promise.
        self.queued(stream, "copy", unsafe { self.device.copy_on(stream, copy) })
    }

    /// Queues copies by copy engines, and another one at the same time; `false` if the device has
    /// none.
    ///
    /// # Safety
    /// The same as for [`Device::copy_beside`](device::Device::copy_beside).
    pub(crate) unsafe fn queue_copies_beside(
        &self,
        stream: &device::Stream,
        beside: DeviceCopy,
        copies: &[DeviceCopy],
    ) -> Result<bool> {
        // SAFETY: the caller's promise.
        self.queued(stream, "copy", unsafe { self.device.copy_beside(stream, beside, copies) })
    }

    /// Queues the store of a word of 1, 2, 4 or 8 bytes without a kernel; `false` if the device
    /// cannot do that on this stream now.
    ///
    /// # Safety
    /// The same as for [`Device::store_on`](device::Device::store_on).
    pub(crate) unsafe fn queue_store(&self, stream: &device::Stream, to: u64, word: u64, bytes: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        self.queued(stream, "store", unsafe { self.device.store_on(stream, to, word, bytes) })
    }

    /// Notes what was queued without a kernel, if it was.
    fn queued(&self, stream: &device::Stream, what: &str, queued: Result<bool, DeviceError>) -> Result<bool> {
        let queued = queued?;
        if queued {
            self.scene().board.queued(stream, what);
        }
        Ok(queued)
    }

    /// Tells the proxy that a kernel was launched, which may have work for it soon.
    fn wake_proxy(&self) {
        if let Some(network) = &self.network {
            network.wake();
        }
    }
}
