//! Modules and kernels: loading and launching.

pub(crate) mod args;
mod declare;

use std::ffi::c_void;
use std::sync::Arc;

use args::KernelArgs;

use crate::Result;
use crate::device::{LaunchConfig, LoadedModule, ModuleSource};
use crate::host::operations::Operations;
use crate::identity::PeId;
use crate::pe::Pe;

/// A module of device code that is loaded and knows the PE's state. Made by [`Pe::load`];
/// [`kernels!`](crate::kernels) loads modules too, and is what most programs use.
///
/// # Errors
/// A module of a PE that has been finalized is refused by every launch.
///
/// # Threads and drop
/// `Send` and `Sync`. The code stays loaded until the end of the PE, because graphs may have its
/// kernels, and longer while the module, clones or kernels of it are there. Loading it again
/// returns what is loaded.
///
/// ```
/// oxshmem::include_module!(OPERATIONS, "host_ops");
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let module: oxshmem::Module = pe.load(&OPERATIONS)?;
/// let error = module.kernel("nothing").unwrap_err();
/// assert!(error.to_string().contains("oxshmem_host_quiet"));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Module {
    pe: PeId,
    loaded: Arc<dyn LoadedModule>,
}

impl Module {
    /// Returns the kernel of this name.
    ///
    /// # Errors
    /// The module has no such kernel; the error lists those it has.
    ///
    /// ```
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.load(&OPERATIONS)?.kernel("oxshmem_host_quiet")?.name(), "oxshmem_host_quiet");
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        self.loaded.check(name)?;
        Ok(Kernel { pe: self.pe, loaded: Arc::clone(&self.loaded), name: name.to_owned() })
    }
}

/// A kernel of a [`Module`], by its name. A kernel that [`kernels!`](crate::kernels) declares also
/// has its arguments checked by the compiler.
///
/// # Errors
/// A kernel of a PE that has been finalized is refused by every launch.
///
/// # Threads and drop
/// `Send` and `Sync`. A kernel keeps the code of its [`Module`], as that does.
///
/// ```
/// use oxshmem::LaunchConfig;
///
/// oxshmem::include_module!(OPERATIONS, "host_ops");
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let quiet: oxshmem::Kernel = pe.load(&OPERATIONS)?.kernel("oxshmem_host_quiet")?;
/// // SAFETY: the kernel takes no arguments.
/// unsafe { quiet.launch(&pe, LaunchConfig::linear(1, 1), ()) }?;
/// pe.synchronize()?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Kernel {
    pe: PeId,
    loaded: Arc<dyn LoadedModule>,
    name: String,
}

impl Kernel {
    /// Returns the kernel's name.
    ///
    /// ```
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.load(&OPERATIONS)?.kernel("oxshmem_host_put")?.name(), "oxshmem_host_put");
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Launches the kernel and returns at once: on the PE's own stream if `on` is the [`Pe`], else
    /// on the stream of [`Pe::on`]. Kernels on a stream run in the order of their launches;
    /// [`Pe::synchronize`] waits for them.
    ///
    /// # Errors
    /// The shape or the arguments do not fit, symmetric memory among them is stale, or kernel or
    /// stream belong to an earlier PE; nothing was launched.
    ///
    /// # Safety
    /// The arguments must have the types that the kernel declares, and the kernel must be sound for
    /// them: device code may do what C++ may do. What they point to must stay valid until the
    /// kernel has ended.
    ///
    /// ```
    /// use oxshmem::LaunchConfig;
    ///
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (quiet, stream) = (pe.load(&OPERATIONS)?.kernel("oxshmem_host_quiet")?, pe.create_stream()?);
    /// // SAFETY: the kernel takes no arguments.
    /// unsafe { quiet.launch(&pe.on(&stream), LaunchConfig::linear(1, 1), ()) }?;
    /// pe.on(&stream).synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn launch(&self, on: &impl Operations, config: LaunchConfig, args: impl KernelArgs) -> Result<()> {
        let own = on.issuing_pe();
        own.id().admit(self.pe, &format!("kernel `{}`", self.name), "load its module again with this PE")?;
        let _call = own.host_profile().launches(&self.name);
        // SAFETY: the caller's promise.
        unsafe { own.queue_kernel(on.issuing_stream()?, (self.loaded.as_ref(), &self.name), config, &args) }
    }
}

/// Device code.
impl Pe {
    /// Loads a module of device code and gives it this PE's state.
    ///
    /// # Errors
    /// It was built for another version of the device ABI; both are named.
    ///
    /// ```
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let module = pe.load(&OPERATIONS)?;
    /// # drop(module);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn load(&self, source: &ModuleSource) -> Result<Module> {
        Ok(Module { pe: self.id(), loaded: self.device().load(source)? })
    }

    /// Links device code that the program has compiled while it runs (by NVRTC, say) with the
    /// device library, for this PE's GPU. Returns a cubin: what `cuModuleLoadData` takes, and then
    /// [`register_module`](Pe::register_module). It can be kept, and loaded again on GPUs of the
    /// same architecture by programs with this version of the library.
    ///
    /// `code` is PTX, a cubin or a fat binary: relocatable, and compiled with
    /// `OXSHMEM_DEVICE_LIBRARY` defined. Such kernels contain only their own code of the device
    /// API, so they compile in a fraction of the time. What they call is
    /// [`DEVICE_LIBRARY`](crate::device::cuda::DEVICE_LIBRARY).
    ///
    /// # Errors
    /// `code` is shorter than its header says. What the driver's linker says: it is not
    /// relocatable, or from headers of another version of the device ABI; or its kernels may have
    /// fewer than 64 registers a thread. Or this is not the `cuda` device.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// if pe.gpu().is_none() {
    ///     assert!(pe.link_module(b"").unwrap_err().to_string().contains("OXSHMEM_DEVICE=cuda"));
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn link_module(&self, code: &[u8]) -> Result<Vec<u8>> {
        Ok(self.device().link_module(code)?)
    }

    /// Gives a module that the program has loaded itself this PE's state, so that its kernels can
    /// use the device API. Its kernels are launched by the program;
    /// [`synchronize_device`](Pe::synchronize_device) reports their errors.
    ///
    /// # Errors
    /// It has no state symbol, or one of another version of the device ABI; or this is not the
    /// `cuda` device.
    ///
    /// # Safety
    /// `raw` is a `CUmodule` of the GPU's primary context, none of whose kernels is running. It
    /// stays loaded until it is [unregistered](Pe::unregister_module) or the PE is finalized, and
    /// none of its kernels runs then.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// if pe.gpu().is_none() {
    ///     // SAFETY: the `cpu` device refuses every module.
    ///     assert!(unsafe { pe.register_module(std::ptr::null_mut()) }.is_err());
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn register_module(&self, raw: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device().register_module(raw) }?)
    }

    /// Forgets a module that was registered; its kernels must not be launched any more.
    ///
    /// # Errors
    /// It is not registered.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.unregister_module(std::ptr::null_mut()).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn unregister_module(&self, raw: *mut c_void) -> Result<()> {
        Ok(self.device().unregister_module(raw)?)
    }

    /// Gives a state symbol this PE's state, as [`register_module`](Pe::register_module) does: that
    /// of a translation unit of a CUDA-runtime program. `locate` is called with the GPU's context
    /// current, and returns the symbol's device address and size. On the `cpu` device nothing
    /// happens, except for a warning in the log.
    ///
    /// # Errors
    /// Fails like [`register_module`](Pe::register_module), or with the text of `locate`.
    ///
    /// # Safety
    /// What `locate` returns is true until the PE is finalized, and no kernel that reads the symbol
    /// is running.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// // SAFETY: `locate` returns no address.
    /// let registered = unsafe { pe.register_unit("ring.cu", || Err("no such symbol".into())) };
    /// assert_eq!(registered.is_ok(), pe.gpu().is_none());
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn register_unit(
        &self,
        name: &str,
        mut locate: impl FnMut() -> std::result::Result<(u64, usize), String>,
    ) -> Result<()> {
        Ok(self.device().register_unit(name, &mut locate)?)
    }
}
