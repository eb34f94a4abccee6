//! Modules on a GPU: the choice of PTX, its compilation by the driver, the state symbol, kernels
//! and their launch.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUfunction, CUfunction_attribute, CUjit_option, CUlaunchAttribute,
    CUlaunchAttributeID as Attribute, CUlaunchAttributeValue, CUlaunchConfig, CUlimit, CUmodule, CUresult,
};

use oxshmem_system::words::{const32, count32};

use super::driver::{DriverError, check, driver};
use super::error::ModuleError;
use super::memory::Copies;
use super::module_units;
use super::occupancy::{Block, Multiprocessors};
use super::raw_stream;
use super::stream::Stream;
use super::target::{launched, mark, target};
use crate::abi;
use crate::device::cpu::{LaunchConfig, LaunchError, ModuleError as SharedModuleError};
use crate::device::error::DeviceError;
use crate::device::interface::LoadedModule;
use crate::device::source::ModuleSource;

/// The state symbol that `oxshmem/port/cuda.h` defines in every module.
const STATE_SYMBOL: &CStr = c"oxshmem_state";
/// The symbol that `OXSHMEM_SYNCS_GRID_DEPENDENCY` defines in a module.
const EARLY_SYMBOL: &CStr = c"oxshmem_syncs_grid_dependency";
/// Room for what the driver's PTX compiler says.
pub(super) const LOG_BYTES: usize = 16 << 10;
/// Dynamic shared memory that a kernel may have without asking for it (CUDA C++ Programming Guide,
/// "Compute Capabilities").
const FREE_SHARED_BYTES: usize = 48 << 10;

/// Returns the PTX for a GPU of this architecture: the newest that is not newer than the GPU.
pub(super) fn select(
    ptx: &'static [(u32, &'static str)],
    gpu: i32,
    architecture: u32,
) -> Result<&'static str, ModuleError> {
    let oldest = ptx.iter().map(|(arch, _)| *arch).min().ok_or(ModuleError::NoPtx)?;
    let best = ptx.iter().filter(|(arch, _)| *arch <= architecture).max_by_key(|(arch, _)| *arch);
    best.map(|(_, text)| *text).ok_or(ModuleError::OldGpu { gpu, has: architecture, oldest })
}

/// Returns the cubin for a GPU of this architecture: the newest of its major version that is not
/// newer (CUDA C++ Programming Guide, "Binary Compatibility").
fn select_cubin(cubins: &'static [(u32, &'static [u8])], architecture: u32) -> Option<&'static [u8]> {
    let runs = |arch: u32| arch / 10 == architecture / 10 && arch <= architecture;
    cubins.iter().filter(|(arch, _)| runs(*arch)).max_by_key(|(arch, _)| *arch).map(|(_, image)| *image)
}

/// Returns whether a module has a cubin for the GPU of a stream.
pub(super) fn has_code(stream: &Stream, source: &ModuleSource) -> Result<bool, DeviceError> {
    let architecture = stream.context().gpu.architecture();
    let architecture = architecture.map_err(|error| stream.error("cannot ask the GPU what it is", error))?;
    Ok(select_cubin(source.cubins, architecture).is_some())
}

/// Returns the ISA version that PTX says it is.
pub(super) fn ptx_version(ptx: &str) -> String {
    let line = ptx.lines().find_map(|line| line.trim().strip_prefix(".version"));
    line.map_or_else(|| "unknown".to_owned(), |version| version.trim().to_owned())
}

/// Checks what a state symbol says before it is filled: what its module was built for.
fn check_state(bytes: &[u8; 12], symbol_bytes: usize) -> Result<(), SharedOrOwn> {
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (magic, version, state_bytes) = (word(0), word(4), word(8));
    if magic != abi::MAGIC {
        let what = format!("its oxshmem_state starts with {magic:#x} instead of {:#x}", abi::MAGIC);
        return Err(SharedOrOwn::Own(ModuleError::State { what }));
    }
    let runtime_bytes = const { const32(size_of::<abi::State>()) };
    if (version, state_bytes) != (abi::ABI_VERSION, runtime_bytes) {
        return Err(SharedOrOwn::Shared(SharedModuleError::AbiVersion {
            module: version,
            module_bytes: state_bytes,
            runtime: abi::ABI_VERSION,
            runtime_bytes,
        }));
    }
    if symbol_bytes != size_of::<abi::State>() {
        let what = format!("its oxshmem_state has {symbol_bytes} bytes and says {state_bytes}");
        return Err(SharedOrOwn::Own(ModuleError::State { what }));
    }
    Ok(())
}

/// A reason that all devices have, or one of GPUs.
#[derive(Debug, PartialEq, Eq)]
enum SharedOrOwn {
    Shared(SharedModuleError),
    Own(ModuleError),
}

/// Returns the state symbol of a module that was linked with the device library, as
/// `OXSHMEM_LIBRARY` makes its name.
fn library_state_symbol() -> String {
    format!("oxshmem_library_state_v{}", abi::ABI_VERSION)
}

/// Returns where a module has a symbol, and the symbol's size.
fn find_symbol(module: CUmodule, symbol: &CStr) -> Result<(u64, usize), DriverError> {
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the module is loaded; writes two integers.
    unsafe { driver!(cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, symbol.as_ptr())) }
        .map(|()| (address, bytes))
}

/// Returns where a module has its state symbol, and the symbol's size.
fn find_state(module: CUmodule) -> Result<(u64, usize), ModuleError> {
    find_symbol(module, STATE_SYMBOL)
        .or_else(|error| CString::new(library_state_symbol()).map_or(Err(error), |symbol| find_symbol(module, &symbol)))
        .map_err(|error| ModuleError::State { what: format!("it has no symbol oxshmem_state ({error})") })
}

/// Refuses a symbol of another ABI, or that is none. The context must be current.
fn check_symbol(copies: &Copies, module: &str, state: u64, bytes: usize) -> Result<(), DeviceError> {
    let mut as_built = [0; 12];
    if bytes >= as_built.len() {
        // SAFETY: the symbol has that many bytes.
        unsafe { copies.read(state, &mut as_built) }?;
    }
    let module = || module.to_owned();
    check_state(&as_built, bytes).map_err(|error| match error {
        SharedOrOwn::Shared(source) => DeviceError::Module { module: module(), source },
        SharedOrOwn::Own(source) => DeviceError::CudaModule { module: module(), source },
    })
}

/// Gives a state symbol of the right size the PE's state.
fn fill_symbol(copies: &Copies, symbol: u64, state: &abi::State) -> Result<(), DeviceError> {
    // SAFETY: `repr(C)` of integers that fill it: the bytes at its end, which its alignment adds,
    // are a field, too.
    let bytes = unsafe {
        let mut bytes = [0u8; size_of::<abi::State>()];
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(state).cast(), bytes.as_mut_ptr(), bytes.len());
        bytes
    };
    // SAFETY: the symbol has the size of the state.
    unsafe { copies.write(symbol, &bytes) }
}

/// Checks and fills the state symbol of a module that the program loaded, or those of its units if
/// it is relocatable code that was linked. The context must be current.
pub(super) fn register(
    stream: &Arc<Stream>,
    copies: &Copies,
    raw: CUmodule,
    state: &abi::State,
) -> Result<(), DeviceError> {
    let name = format!("registered at {raw:p}");
    let source = match find_state(raw) {
        Ok((symbol, bytes)) => return register_symbol(copies, &name, symbol, bytes, state),
        Err(source) => source,
    };
    let units = module_units::states(stream, raw)?;
    if units.is_empty() {
        return Err(DeviceError::CudaModule { module: name, source });
    }
    units.into_iter().try_for_each(|symbol| register_symbol(copies, &name, symbol, size_of::<abi::State>(), state))
}

/// Checks and fills a state symbol. The context must be current.
pub(super) fn register_symbol(
    copies: &Copies,
    name: &str,
    symbol: u64,
    bytes: usize,
    state: &abi::State,
) -> Result<(), DeviceError> {
    check_symbol(copies, name, symbol, bytes)?;
    fill_symbol(copies, symbol, state)
}

/// One kernel.
#[derive(Debug, Clone)]
struct Kernel {
    raw: CUfunction,
    parameters: Vec<usize>,
    max_threads: u32,
    /// The registers of each thread.
    registers: u32,
    static_shared: usize,
    /// Bytes of local memory of each thread.
    stack: usize,
}

/// A module that is loaded in the GPU's context.
#[derive(Debug)]
pub(super) struct CudaModule {
    source: ModuleSource,
    stream: Arc<Stream>,
    raw: CUmodule,
    state: u64,
    kernels: BTreeMap<String, Kernel>,
    /// Whether the GPU may launch the kernels before those that they follow on their streams have
    /// ended: each of them begins by waiting for that.
    early: bool,
    max_grid: [u32; 3],
    max_shared: usize,
    sms: Multiprocessors,
}

// SAFETY: handles of modules and functions may be used from any thread.
unsafe impl Send for CudaModule {}
// SAFETY: as above.
unsafe impl Sync for CudaModule {}

impl CudaModule {
    /// Loads the cubin that fits the GPU, or has the driver compile the PTX where there is none
    /// that it takes. Every kernel is loaded at once: the driver would otherwise do it at the first
    /// launch, which may wait until the GPU is idle.
    pub fn load(stream: &Arc<Stream>, copies: &Copies, source: &ModuleSource) -> Result<Self, DeviceError> {
        let refused = |error| DeviceError::CudaModule { module: source.name.to_owned(), source: error };
        let failed = |error| refused(ModuleError::Load { source: error, log: String::new() });
        let gpu = stream.context().gpu;
        let _entered = stream.enter()?;
        let architecture = gpu.architecture().map_err(failed)?;
        let ptx = select(source.ptx, gpu.ordinal, architecture).map_err(refused)?;
        let mut module = Self {
            source: *source,
            stream: Arc::clone(stream),
            raw: load_image(source, ptx, architecture).map_err(refused)?,
            state: 0,
            kernels: BTreeMap::new(),
            early: false,
            max_grid: [0; 3],
            max_shared: 0,
            sms: Multiprocessors::of(gpu).map_err(failed)?,
        };

        let (state, bytes) = find_state(module.raw).map_err(refused)?;
        check_symbol(copies, source.name, state, bytes)?;
        module.state = state;
        module.kernels = kernels(module.raw).map_err(failed)?;
        module.early = find_symbol(module.raw, EARLY_SYMBOL).is_ok();
        let limit = |attribute| gpu.attribute(attribute).map(i32::unsigned_abs).map_err(failed);
        module.max_grid = [
            limit(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            limit(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            limit(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ];
        module.max_shared = limit(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        Ok(module)
    }

    /// Returns whether it was made from `source`.
    pub fn is_of(&self, source: &ModuleSource) -> bool {
        self.source.name == source.name && std::ptr::eq(self.source.ptx, source.ptx)
    }

    /// Gives the module the PE's state. No kernel of it may be running.
    pub fn install(&self, copies: &Copies, state: &abi::State) -> Result<(), DeviceError> {
        fill_symbol(copies, self.state, state)
    }

    fn kernel(&self, name: &str) -> Result<&Kernel, DeviceError> {
        self.kernels.get(name).ok_or_else(|| DeviceError::Module {
            module: self.source.name.to_owned(),
            source: SharedModuleError::NoKernel {
                name: name.to_owned(),
                known: self.kernels.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
            },
        })
    }

    /// Refuses what does not fit the kernel or the GPU.
    fn check_launch(
        &self,
        name: &str,
        kernel: &Kernel,
        config: LaunchConfig,
        args: &[&[u8]],
    ) -> Result<(), LaunchError> {
        let name = || name.to_owned();
        let LaunchConfig { grid, block, shared_bytes, .. } = config;
        if grid.contains(&0) {
            return Err(LaunchError::Grid { kernel: name(), grid });
        }
        if grid.iter().zip(self.max_grid).any(|(&extent, limit)| extent > limit) {
            return Err(LaunchError::GridLimit { kernel: name(), grid, limit: self.max_grid });
        }
        let threads = block.iter().try_fold(1u32, |product, &extent| product.checked_mul(extent));
        if !threads.is_some_and(|threads| (1..=kernel.max_threads).contains(&threads)) {
            return Err(LaunchError::Block { kernel: name(), block, limit: kernel.max_threads });
        }
        let limit = self.max_shared.saturating_sub(kernel.static_shared);
        if shared_bytes > limit {
            return Err(LaunchError::Shared { kernel: name(), bytes: shared_bytes, limit });
        }
        check_args(name, &kernel.parameters, args)
    }

    /// Refuses more blocks than run at the same time, beside the software HCA's kernel if there is
    /// one, which they may wait for. The context must be current.
    fn check_cooperative(&self, name: &str, kernel: &Kernel, config: LaunchConfig) -> Result<(), DeviceError> {
        let failed = |error| self.stream.error(format!("cannot size a launch of kernel `{name}`"), error);
        let set_aside = |percent: i32| {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: the function is the module's.
            unsafe { driver!(cuFuncSetAttribute(kernel.raw, attribute, percent)) }.map_err(failed)
        };
        let threads: u32 = config.block.iter().product();
        let beside = self.stream.beside();
        if beside.is_some() {
            // What the last launch has set would count as a limit.
            set_aside(sys::CUshared_carveout::CU_SHAREDMEM_CARVEOUT_DEFAULT as i32)?;
        }
        let mut per_sm = 0;
        // SAFETY: writes one integer.
        unsafe {
            driver!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut per_sm,
                kernel.raw,
                threads.cast_signed(),
                config.shared_bytes
            ))
        }
        .map_err(failed)?;
        let (per_sm, sms) = (per_sm.unsigned_abs(), self.sms.count);
        let block = self.block(name, threads, config.shared_bytes)?;
        let limit = match beside {
            Some(resident) => self.sms.limit_beside(per_sm, block, resident),
            None => u64::from(per_sm) * u64::from(sms),
        };
        let blocks = config.grid.iter().map(|extent| u64::from(*extent)).product();
        if blocks > limit {
            let beside = beside.map_or(0, |resident| resident.blocks);
            return Err(LaunchError::Cooperative {
                kernel: name.to_owned(),
                blocks,
                threads,
                limit,
                per_sm,
                sms,
                beside,
            }
            .into());
        }
        beside.map_or(Ok(()), |resident| set_aside(self.sms.carveout(blocks, block, resident).cast_signed()))
    }

    /// Returns the attribute of a launch, if it has one.
    fn attribute(&self, config: LaunchConfig) -> Option<CUlaunchAttribute> {
        let (id, value) = if config.cooperative {
            (Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUlaunchAttributeValue { cooperative: 1 })
        } else if self.early {
            let value = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            (Attribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value)
        } else {
            return None;
        };
        Some(CUlaunchAttribute { id, pad: [0; 4], value })
    }

    /// Returns what a block of a kernel takes of an SM.
    pub fn block(&self, kernel: &str, threads: u32, dynamic_shared: usize) -> Result<Block, DeviceError> {
        let Kernel { registers, static_shared, .. } = self.kernel(kernel)?;
        let shared = u32::try_from(static_shared.saturating_add(dynamic_shared)).unwrap_or(u32::MAX);
        Ok(Block { threads, registers: *registers, shared })
    }
}

/// Compares arguments with parameters, which the driver does not do.
fn check_args(kernel: impl Fn() -> String, parameters: &[usize], args: &[&[u8]]) -> Result<(), LaunchError> {
    if parameters.len() != args.len() {
        return Err(LaunchError::ArgumentCount { kernel: kernel(), expected: parameters.len(), given: args.len() });
    }
    match parameters.iter().zip(args).position(|(&expected, arg)| expected != arg.len()) {
        None => Ok(()),
        Some(index) => Err(LaunchError::ArgumentSize {
            kernel: kernel(),
            index,
            expected: parameters[index],
            given: args[index].len(),
        }),
    }
}

impl LoadedModule for CudaModule {
    unsafe fn launch(
        &self,
        name: &str,
        config: LaunchConfig,
        args: &[&[u8]],
        stream: &crate::device::Stream,
    ) -> Result<(), DeviceError> {
        if self.stream.closed() {
            return Err(LaunchError::Stale { kernel: name.to_owned() }.into());
        }
        let kernel = self.kernel(name)?;
        self.check_launch(name, kernel, config, args)?;
        let (on, raw) = target(&self.stream, stream)?;
        let failed = |error| self.stream.error(format!("cannot launch kernel `{name}`"), error);
        let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| arg.as_ptr().cast_mut().cast()).collect();
        let _entered = self.stream.enter()?;
        if config.shared_bytes + kernel.static_shared > FREE_SHARED_BYTES {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is the module's; the size is below the limit.
            unsafe { driver!(cuFuncSetAttribute(kernel.raw, attribute, count32(config.shared_bytes).cast_signed())) }
                .map_err(failed)?;
        }
        if config.cooperative {
            self.check_cooperative(name, kernel, config)?;
        }
        launched(&self.stream, on).note(name);
        let mut attribute = self.attribute(config);
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (config.grid, config.block);
        let launch = CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: count32(config.shared_bytes),
            hStream: raw,
            attrs: attribute.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
            numAttrs: attribute.is_some().into(),
        };
        // SAFETY: number and sizes of the arguments are the kernel's, the driver copies them during
        // the call; that they are what the kernel needs, and that the stream exists, is the
        // caller's promise. `attrs` points to as many attributes as `numAttrs` says, which live
        // longer than the call.
        unsafe { driver!(cuLaunchKernelEx(&raw const launch, kernel.raw, pointers.as_mut_ptr(), std::ptr::null_mut())) }
            .and_then(|()| mark(&self.stream, on, raw_stream::is_capturing(raw)?))
            .map_err(failed)
    }

    fn reserve_stacks(&self) -> Result<(), DeviceError> {
        let failed = |error| self.stream.error("cannot size the stacks of kernels", error);
        let needed = self.kernels.values().map(|kernel| kernel.stack).max().unwrap_or_default();
        let _entered = self.stream.enter()?;
        let mut bytes = 0;
        // SAFETY: writes one integer.
        unsafe { driver!(cuCtxGetLimit(&raw mut bytes, CUlimit::CU_LIMIT_STACK_SIZE)) }.map_err(failed)?;
        if bytes >= needed {
            return Ok(());
        }
        // The driver makes the room in this call.
        // SAFETY: a context is current.
        unsafe { driver!(cuCtxSetLimit(CUlimit::CU_LIMIT_STACK_SIZE, needed)) }.map_err(failed)
    }

    fn check(&self, name: &str) -> Result<(), DeviceError> {
        self.kernel(name).map(drop)
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        // Unloading waits for kernels.
        if !self.stream.idle() {
            return;
        }
        let Ok(_entered) = self.stream.enter() else { return };
        // SAFETY: `load` loaded it, and none of its kernels runs.
        if let Err(error) = unsafe { driver!(cuModuleUnload(self.raw)) } {
            tracing::debug!(%error, module = self.source.name, "cannot unload a module");
        }
    }
}

/// Loads a module's cubin into the current context, or has the driver compile its PTX if there is
/// none that it takes.
fn load_image(source: &ModuleSource, ptx: &str, architecture: u32) -> Result<CUmodule, ModuleError> {
    let Some(cubin) = select_cubin(source.cubins, architecture) else { return compile(ptx) };
    let mut module = std::ptr::null_mut();
    // SAFETY: a whole cubin (`ModuleSource::from_build`), whose header says how long it is.
    match unsafe { driver!(cuModuleLoadData(&raw mut module, cubin.as_ptr().cast())) } {
        Ok(()) => Ok(module),
        Err(error) if error.loses_context() => Err(ModuleError::Load { source: error, log: String::new() }),
        Err(error) => {
            // A driver that is older than the compiler may know the PTX and not the cubin.
            tracing::info!(module = source.name, %error, "the driver does not take the cubin and compiles the PTX");
            compile(ptx)
        }
    }
}

/// Has the driver compile PTX for the current context's GPU.
fn compile(ptx: &str) -> Result<CUmodule, ModuleError> {
    let text = CString::new(ptx).map_err(|_| ModuleError::Load {
        source: DriverError {
            call: "cuModuleLoadDataEx",
            code: CUresult::CUDA_ERROR_INVALID_PTX as u32,
            name: "CUDA_ERROR_INVALID_PTX".into(),
            text: "the PTX holds a zero byte".into(),
        },
        log: String::new(),
    })?;
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes a number in the place of a pointer.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
    let mut module = std::ptr::null_mut();
    // SAFETY: text that ends with 0, and a log of the size that is given.
    let loaded = unsafe {
        driver!(cuModuleLoadDataEx(
            &raw mut module,
            text.as_ptr().cast(),
            count32(options.len()),
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        ))
    };
    loaded.map(|()| module).map_err(|source| {
        if source.code == CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32 {
            return ModuleError::NewPtx { ptx: ptx_version(ptx) };
        }
        let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned()).unwrap_or_default();
        ModuleError::Load { source, log }
    })
}

/// Returns every kernel of a module, loaded.
fn kernels(module: CUmodule) -> Result<BTreeMap<String, Kernel>, DriverError> {
    let mut count = 0;
    // SAFETY: writes one integer.
    unsafe { driver!(cuModuleGetFunctionCount(&raw mut count, module)) }?;
    let mut functions: Vec<CUfunction> = vec![std::ptr::null_mut(); count as usize];
    if count != 0 {
        // SAFETY: room for that many handles.
        unsafe { driver!(cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)) }?;
    }
    let mut kernels = BTreeMap::new();
    for raw in functions {
        let mut name = std::ptr::null();
        // SAFETY: a function of the module; its name is text that lives as long as the module.
        let name = unsafe {
            driver!(cuFuncLoad(raw))?;
            driver!(cuFuncGetName(&raw mut name, raw))?;
            CStr::from_ptr(name)
        };
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes one integer.
            unsafe { driver!(cuFuncGetAttribute(&raw mut value, attribute, raw)) }.map(|()| value.unsigned_abs())
        };
        let kernel = Kernel {
            raw,
            parameters: parameters(raw)?,
            max_threads: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            registers: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            static_shared: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as usize,
            stack: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)? as usize,
        };
        kernels.insert(name.to_string_lossy().into_owned(), kernel);
    }
    Ok(kernels)
}

/// Returns the bytes of each parameter of a kernel.
fn parameters(function: CUfunction) -> Result<Vec<usize>, DriverError> {
    let mut parameters = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: writes two integers. An index past the last parameter is an invalid value, and
        // nothing else tells their number.
        match unsafe { sys::cuFuncGetParamInfo(function, parameters.len(), &raw mut offset, &raw mut bytes) } {
            CUresult::CUDA_SUCCESS => parameters.push(bytes),
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(parameters),
            other => check("cuFuncGetParamInfo", other)?,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    static PTX: &[(u32, &str)] = &[(80, "eighty"), (100, "hundred"), (90, "ninety")];

    #[test]
    fn the_newest_ptx_that_the_gpu_can_run_is_taken() {
        for (gpu, text) in
            [(80, "eighty"), (86, "eighty"), (90, "ninety"), (99, "ninety"), (100, "hundred"), (120, "hundred")]
        {
            assert_eq!(select(PTX, 0, gpu).unwrap(), text);
        }
    }

    #[test]
    fn a_cubin_serves_gpus_of_its_major_version() {
        static CUBINS: &[(u32, &[u8])] = &[(80, b"eighty"), (90, b"ninety"), (100, b"hundred")];
        let text = |gpu| select_cubin(CUBINS, gpu).map(|image| String::from_utf8_lossy(image).into_owned());
        for (gpu, image) in [(80, "eighty"), (86, "eighty"), (90, "ninety"), (100, "hundred"), (103, "hundred")] {
            assert_eq!(text(gpu).as_deref(), Some(image), "{gpu}");
        }
        for gpu in [75, 110, 120] {
            assert_eq!(text(gpu), None);
        }
    }

    #[test]
    fn a_gpu_older_than_all_ptx_and_a_program_without_ptx_are_refused() {
        assert_eq!(select(PTX, 3, 75), Err(ModuleError::OldGpu { gpu: 3, has: 75, oldest: 80 }));
        let error = select(&[], 0, 90).unwrap_err();
        assert!(error.to_string().contains("no CUDA compiler was found when it was built"), "{error}");
    }

    #[test]
    fn the_version_of_ptx_is_read() {
        assert_eq!(ptx_version("//\n// c\n.version 9.0\n.target sm_80\n"), "9.0");
        assert_eq!(ptx_version(""), "unknown");
    }

    fn as_built(magic: u32, version: u32, bytes: u32) -> [u8; 12] {
        let mut all = [0; 12];
        for (at, word) in all.chunks_exact_mut(4).zip([magic, version, bytes]) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        all
    }

    #[test]
    fn a_state_of_another_version_is_refused_with_both() {
        let bytes = size_of::<abi::State>();
        assert_eq!(check_state(&as_built(abi::MAGIC, abi::ABI_VERSION, bytes as u32), bytes), Ok(()));
        let error = check_state(&as_built(abi::MAGIC, abi::ABI_VERSION + 1, 264), 264).unwrap_err();
        assert_eq!(
            error,
            SharedOrOwn::Shared(SharedModuleError::AbiVersion {
                module: abi::ABI_VERSION + 1,
                module_bytes: 264,
                runtime: abi::ABI_VERSION,
                runtime_bytes: bytes as u32,
            })
        );
    }

    #[test]
    fn a_symbol_that_is_no_state_is_refused() {
        let bytes = size_of::<abi::State>();
        for (built, symbol) in [(as_built(0, 0, 0), 4), (as_built(abi::MAGIC, abi::ABI_VERSION, bytes as u32), 128)] {
            assert!(matches!(check_state(&built, symbol), Err(SharedOrOwn::Own(ModuleError::State { .. }))));
        }
    }

    #[test]
    fn arguments_are_compared_with_parameters() {
        let name = || "k".to_owned();
        let four: &[u8] = &[0; 4];
        assert_eq!(check_args(name, &[8, 4], &[&[0; 8], four]), Ok(()));
        assert_eq!(
            check_args(name, &[8, 4], &[four]),
            Err(LaunchError::ArgumentCount { kernel: "k".into(), expected: 2, given: 1 })
        );
        assert_eq!(
            check_args(name, &[8, 8], &[&[0; 8], four]),
            Err(LaunchError::ArgumentSize { kernel: "k".into(), index: 1, expected: 8, given: 4 })
        );
    }

    /// The library's modules say that their kernels wait for what they follow where they do: where
    /// they are compiled for sm_90 and above.
    #[test]
    fn ptx_of_the_runtime_says_whether_it_may_be_launched_early() {
        let symbol = EARLY_SYMBOL.to_str().unwrap();
        for source in [&crate::modules::HOST_OPS, &crate::modules::COLLECTIVES, &crate::modules::LEVELS] {
            for (architecture, ptx) in source.ptx {
                let waits = ptx.matches("griddepcontrol.wait").count();
                let kernels = if *architecture < 90 { 0 } else { ptx.matches(".entry ").count() };
                assert_eq!((waits, ptx.contains(symbol)), (kernels, kernels != 0), "{} {architecture}", source.name);
            }
        }
    }

    /// What nvcc made of this program's own module says what `check_state` wants to read.
    #[test]
    fn ptx_of_the_runtime_is_born_with_its_version() {
        let source = &crate::modules::HOST_OPS;
        let Some((_, ptx)) = source.ptx.first() else {
            println!("skipped: built without a CUDA compiler");
            return;
        };
        let line = ptx.lines().find(|line| line.contains("oxshmem_state[")).unwrap();
        assert!(line.contains(".const") && line.contains(&format!("[{}]", size_of::<abi::State>())), "{line}");
        // Trailing zeros are left out.
        let bytes = as_built(abi::MAGIC, abi::ABI_VERSION, size_of::<abi::State>() as u32);
        let said = bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let said = said.trim_end_matches(", 0");
        assert!(line.contains(&format!("{{{said}}}")), "{line} instead of {said}");
    }
}
