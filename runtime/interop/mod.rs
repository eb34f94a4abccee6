//! Work beside cudarc: contexts, streams and modules of cudarc with a PE, symmetric memory in
//! cudarc's calls, and slices of cudarc as the local side of operations. `docs/cudarc.md` lists
//! what cudarc does not allow.

mod context;
mod lent;
mod operand;

use std::sync::Arc;

use context::{context_of, failed, refused};
use cudarc::driver::{CudaContext, CudaModule, CudaStream};
pub use lent::Lent;

use crate::Result;
use crate::config::{Config, Device};
use crate::device::cuda;
use crate::pe::Pe;
use crate::stream::Stream;

/// The symbol of a module that has the PE's state.
const STATE_SYMBOL: &str = "oxshmem_state";

/// Work beside cudarc, with the feature `cudarc`.
impl Pe {
    /// Joins the job as [`Pe::with_config`], on the GPU of `context`: the PE works in that context,
    /// whose pointers, streams and modules it can use. Makes the context the calling thread's
    /// current one.
    ///
    /// # Errors
    /// `context` is not the primary context of its GPU, or the configuration says `cpu`; then
    /// nothing was done. Or as [`Pe::with_config`].
    ///
    /// ```no_run
    /// use oxshmem::cudarc::driver::CudaContext;
    /// use oxshmem::{Config, Pe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = CudaContext::new(0)?; // it panics where there is no NVIDIA driver
    /// let pe = Pe::with_cuda_context(&context, Config::from_env()?)?;
    /// assert_eq!(pe.cuda_context()?.cu_ctx(), context.cu_ctx());
    /// # Ok(pe.finalize()?)
    /// # }
    /// ```
    pub fn with_cuda_context(context: &Arc<CudaContext>, config: Config) -> Result<Self> {
        if !context.is_primary() {
            return Err(refused(
                "the cudarc context is not the primary context of its GPU; make it with CudaContext::new",
            ));
        }
        if config.device() == Device::Cpu {
            return Err(refused(
                "the configuration has the device `cpu`; set OXSHMEM_DEVICE=cuda to use a CUDA context",
            ));
        }
        context.bind_to_thread().map_err(|error| failed("cannot make the cudarc context current", error))?;
        Pe::with_config(config.to_builder().device(Device::Cuda).build()?)
    }

    /// Returns the primary context of this PE's GPU, which all pointers, streams and modules of
    /// this library belong to. Makes it the calling thread's current one, as cudarc does in each
    /// call.
    ///
    /// # Errors
    /// The PE is on the `cpu` device, or the driver refuses.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// match pe.cuda_context() {
    ///     Ok(context) => assert_eq!(context.ordinal(), pe.gpu().map_or(0, |gpu| gpu.ordinal as usize)),
    ///     Err(error) => println!("{error}"), // on the `cpu` device
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn cuda_context(&self) -> Result<Arc<CudaContext>> {
        let gpu = self.own_gpu()?;
        let ordinal = usize::try_from(gpu.ordinal).unwrap_or_default();
        CudaContext::new(ordinal).map_err(|error| failed("cudarc cannot open the PE's GPU", error))
    }

    /// Returns a stream of cudarc as a stream of this PE, for [`Pe::on`]. The stream stays open
    /// while the result or a clone of it exists.
    ///
    /// # Errors
    /// The PE is on the `cpu` device, or the stream belongs to another context.
    ///
    /// ```
    /// use oxshmem::Operations;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pe = oxshmem::init()?;
    /// if pe.gpu().is_some() {
    ///     let stream = pe.cuda_context()?.new_stream()?;
    ///     let adopted = pe.cuda_stream(&stream)?;
    ///     pe.on(&adopted).barrier_all()?;
    ///     stream.synchronize()?; // or pe.on(&adopted).synchronize(), which also reports errors of device code
    /// }
    /// # Ok(pe.finalize()?)
    /// # }
    /// ```
    pub fn cuda_stream(&self, stream: &Arc<CudaStream>) -> Result<Stream> {
        self.check_context(stream.context())?;
        // SAFETY: a stream of the PE's context, which the result keeps open.
        let adopted = unsafe { self.stream_from_raw(stream.cu_stream().cast()) }?;
        Ok(adopted.kept_by(stream))
    }

    /// Gives a module that the program has loaded through cudarc this PE's state, so that its
    /// kernels can use the device API. The program launches them through cudarc;
    /// [`synchronize_device`](Pe::synchronize_device) reports their errors. The module stays loaded
    /// until the PE is finalized.
    ///
    /// A launch is `unsafe` in cudarc. Kernels that use the device API must not run before this
    /// call or after the PE was finalized.
    ///
    /// # Errors
    /// The PE is on the `cpu` device; the module belongs to another context, has no state symbol,
    /// or has one of another version of the device ABI.
    ///
    /// ```no_run
    /// use oxshmem::cudarc::nvrtc::Ptx;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pe = oxshmem::init()?;
    /// let module = pe.cuda_context()?.load_module(Ptx::from_file("kernels.ptx"))?;
    /// pe.register_cuda_module(&module)?;
    /// let kernel = module.load_function("my_kernel")?;
    /// # drop(kernel);
    /// # Ok(pe.finalize()?)
    /// # }
    /// ```
    pub fn register_cuda_module(&self, module: &Arc<CudaModule>) -> Result<()> {
        let context = self.cuda_context()?;
        let stream = context.default_stream();
        let name = "loaded through cudarc";
        let locate = || {
            // cudarc has no other way to the module than its symbols.
            let symbol = module.get_global(STATE_SYMBOL, &stream).map_err(|error| error.to_string())?;
            let bytes = symbol.len();
            let (address, guard) = symbol.view_ptr(&stream);
            drop(guard);
            if context_of(address) != Some(context.cu_ctx()) {
                let theirs = cuda::gpu_of(address).map_or_else(|_| "unknown".to_owned(), |ordinal| ordinal.to_string());
                return Err(format!(
                    "the module belongs to another context (GPU {theirs}, {bytes} bytes at {address:#x}) than the PE's (GPU {}); load it in Pe::cuda_context",
                    context.ordinal()
                ));
            }
            Ok((address, bytes))
        };
        // SAFETY: the symbol lives as long as the module, which the PE keeps. Launches are the
        // program's own promise.
        unsafe { self.register_unit(name, locate) }?;
        self.keep(Arc::clone(module));
        Ok(())
    }
}
