//! The CUDA driver: whether it is there, its errors, and the context of a GPU.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUevent, CUresult, CUstreamCaptureMode,
};
use oxshmem_system::words::count32;

/// The oldest CUDA release that a driver must serve (12050 for 12.5): it brought the newest driver
/// function used here, cuCtxRecordEvent.
///
/// ```
/// assert_eq!(oxshmem::device::cuda::OLDEST_DRIVER, 12050); // CUDA 12.5
/// ```
pub const OLDEST_DRIVER: i32 = 12050;

/// A call of the CUDA driver that failed.
///
/// ```
/// use oxshmem::device::DeviceError;
///
/// /// Returns the number of the driver's result, where a call failed for it.
/// fn code(error: &DeviceError) -> Option<u32> {
///     match error {
///         DeviceError::Cuda { source, .. } => Some(source.code),
///         _ => None,
///     }
/// }
/// # assert_eq!(code(&DeviceError::Unsupported { device: "cpu", reason: "" }), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}): {text}")]
pub struct DriverError {
    /// The function of the driver API.
    pub call: &'static str,
    /// Its result, a `CUresult`.
    pub code: u32,
    /// The result's name.
    pub name: Box<str>,
    /// The driver's own words.
    pub text: Box<str>,
}

impl DriverError {
    /// Returns whether the context is lost with it: cuda.h says of these errors that the process
    /// must be ended and started again to use CUDA further.
    pub(super) fn loses_context(&self) -> bool {
        const LOST: [CUresult; 13] = [
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_UNKNOWN,
        ];
        LOST.iter().any(|lost| *lost as u32 == self.code)
    }

    /// Returns whether host memory could not be page-locked because it is.
    pub(super) fn is_registered_already(&self) -> bool {
        self.code == CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED as u32
    }
}

/// Returns the error of `call`, unless it succeeded.
#[inline]
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(describe(call, result)) }
}

/// Returns the error of `call`, which the driver has answered.
#[cold]
pub(crate) fn describe(call: &'static str, result: CUresult) -> DriverError {
    type Describe = unsafe fn(CUresult, *mut *const c_char) -> CUresult;
    let describe = |describe: Describe| -> Box<str> {
        let mut text = std::ptr::null();
        // SAFETY: the driver is loaded, since it answered; it stores a pointer to static text, or
        // null for a code it does not know.
        let known = unsafe { describe(result, &raw mut text) };
        if known != CUresult::CUDA_SUCCESS || text.is_null() {
            return "unknown error".into();
        }
        // SAFETY: static text that ends with 0.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into()
    };
    DriverError {
        call,
        code: result as u32,
        name: describe(sys::cuGetErrorName),
        text: describe(sys::cuGetErrorString),
    }
}

/// Calls a function of the driver and checks its result; to be used inside `unsafe`.
macro_rules! driver {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::device::cuda::driver::check(stringify!($function), cudarc::driver::sys::$function($($argument),*))
    };
}
pub(super) use driver;

/// Returns whether the driver's library is on this machine.
pub(crate) fn driver_present() -> bool {
    // SAFETY: looks for the library by name and loads it, which runs nothing but its own set-up.
    unsafe { sys::is_culib_present() }
}

/// Returns whether this process has initialised the driver; does nothing to it.
pub(super) fn in_use() -> bool {
    // SAFETY: asks the loader for what it has loaded already, by the name that the library gives
    // itself.
    let loaded = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if loaded.is_null() {
        return false;
    }
    // SAFETY: the reference that was just taken.
    unsafe { libc::dlclose(loaded) };
    // A driver that is not initialised does not count.
    count().is_ok_and(|count| count > 0)
}

/// Loads and initialises the driver; why it cannot be used, otherwise. Everything else here relies
/// on it: cudarc panics when the library or a function of it is missing.
pub(super) fn start() -> Result<(), String> {
    if !driver_present() {
        return Err("no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)".into());
    }
    // SAFETY: the library is there, and the function is looked up, not called.
    if unsafe { sys::culib().get::<unsafe extern "C" fn()>(b"cuDriverGetVersion\0") }.is_err() {
        return Err("the libcuda that is found first is not the NVIDIA driver's (look at LD_LIBRARY_PATH)".into());
    }
    // SAFETY: the library is there, and has this function.
    let asked = unsafe {
        let mut version = 0;
        driver!(cuDriverGetVersion(&raw mut version)).map(|()| version)
    };
    let version = asked.map_err(|error| error.to_string())?;
    if version < OLDEST_DRIVER {
        return Err(format!(
            "the NVIDIA driver supports CUDA {}, but {} is needed: update the driver",
            release(version),
            release(OLDEST_DRIVER)
        ));
    }
    // SAFETY: may be called any number of times.
    unsafe { driver!(cuInit(0)) }.map_err(|error| error.to_string())
}

/// Returns the release by name: `13000` is release 13.0.
fn release(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Returns the number of GPUs that this process sees.
pub(super) fn count() -> Result<i32, DriverError> {
    let mut count = 0;
    // SAFETY: writes one integer.
    unsafe { driver!(cuDeviceGetCount(&raw mut count)) }?;
    Ok(count)
}

/// Returns whether the driver shows this process a GPU; initialises it.
pub(crate) fn gpu_present() -> bool {
    start().is_ok() && count().is_ok_and(|count| count > 0)
}

/// A GPU of this machine, whichever number it has in a process.
pub(super) type Uuid = [u8; 16];

/// One GPU as this process sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gpu {
    pub ordinal: i32,
    pub raw: CUdevice,
    pub uuid: Uuid,
}

impl Gpu {
    /// Returns the GPU of this number, below [`count`].
    pub fn get(ordinal: i32) -> Result<Self, DriverError> {
        let mut raw = 0;
        let mut uuid = MaybeUninit::<sys::CUuuid>::zeroed();
        // SAFETY: each call writes one value.
        unsafe {
            driver!(cuDeviceGet(&raw mut raw, ordinal))?;
            driver!(cuDeviceGetUuid_v2(uuid.as_mut_ptr(), raw))?;
        }
        // SAFETY: any bytes are a value, and they are initialised.
        let uuid: [u8; 16] = bytemuck::cast(unsafe { uuid.assume_init() }.bytes);
        Ok(Self { ordinal, raw, uuid })
    }

    /// Returns the GPU whose context is current in the calling thread, if there is one.
    pub fn current() -> Result<Option<Self>, DriverError> {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { driver!(cuCtxGetCurrent(&raw mut context)) }?;
        if context.is_null() {
            return Ok(None);
        }
        let mut raw = 0;
        // SAFETY: a context is current.
        unsafe { driver!(cuCtxGetDevice(&raw mut raw)) }?;
        for ordinal in 0..count()? {
            let gpu = Self::get(ordinal)?;
            if gpu.raw == raw {
                return Ok(Some(gpu));
            }
        }
        Ok(None)
    }

    /// Returns the GPU with this UUID, if this process sees it.
    pub fn find(uuid: Uuid) -> Result<Option<Self>, DriverError> {
        for ordinal in 0..count()? {
            let gpu = Self::get(ordinal)?;
            if gpu.uuid == uuid {
                return Ok(Some(gpu));
            }
        }
        Ok(None)
    }

    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one integer.
        unsafe { driver!(cuDeviceGetAttribute(&raw mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// Returns its address on the PCI bus, as sysfs writes it: `0000:1b:00.0`.
    pub fn pci(&self) -> Result<String, DriverError> {
        let mut text = [0u8; 32];
        // SAFETY: writes at most that many bytes, with a 0 at the end.
        unsafe { driver!(cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), count32(text.len()).cast_signed(), self.raw)) }?;
        Ok(CStr::from_bytes_until_nul(&text)
            .map(|text| text.to_string_lossy().to_ascii_lowercase())
            .unwrap_or_default())
    }

    /// Returns the architecture's number: 90 for sm_90.
    pub fn architecture(&self) -> Result<u32, DriverError> {
        let major = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major * 10 + minor).unsigned_abs())
    }

    pub fn name(&self) -> Result<String, DriverError> {
        let mut name = [0u8; 128];
        // SAFETY: writes at most that many bytes, with a 0 at the end.
        unsafe { driver!(cuDeviceGetName(name.as_mut_ptr().cast(), count32(name.len()).cast_signed(), self.raw)) }?;
        Ok(CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
    }

    /// Returns whether kernels of this GPU can load from and store to the memory of `peer`.
    pub fn can_access(&self, peer: &Self) -> Result<bool, DriverError> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: writes one integer.
        unsafe { driver!(cuDeviceCanAccessPeer(&raw mut can, self.raw, peer.raw)) }?;
        Ok(can != 0)
    }

    /// Returns whether the link to `peer` carries atomics as such. Over PCIe they are a read and a
    /// write, between which others may change the word (CUDA driver API,
    /// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`).
    pub fn has_native_atomics(&self, peer: &Self) -> Result<bool, DriverError> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let attribute = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let mut has = 0;
        // SAFETY: writes one integer.
        unsafe { driver!(cuDeviceGetP2PAttribute(&raw mut has, attribute, self.raw, peer.raw)) }?;
        Ok(has != 0)
    }
}

/// The primary context of a GPU: the one that the CUDA runtime and cudarc use too, so their
/// pointers and streams are valid here. Or one of its own, in which nothing waits for what other
/// contexts do; memory that is mapped, or of the host and portable, is the same in both.
#[derive(Debug)]
pub(super) struct Context {
    pub gpu: Gpu,
    raw: CUcontext,
    primary: bool,
}

// SAFETY: a context may be used from any thread; calls are made with it current in the calling
// thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Returns whether the context of `gpu` is there.
    pub fn exists(gpu: Gpu) -> Result<bool, DriverError> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { driver!(cuDevicePrimaryCtxGetState(gpu.raw, &raw mut flags, &raw mut active)) }?;
        Ok(active != 0)
    }

    /// Takes a reference; the first one in the process creates the context.
    pub fn retain(gpu: Gpu) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device exists.
        unsafe { driver!(cuDevicePrimaryCtxRetain(&raw mut raw, gpu.raw)) }?;
        Ok(Self { gpu, raw, primary: true })
    }

    /// Creates a context beside the primary one.
    pub fn create(gpu: Gpu) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        let mut popped = std::ptr::null_mut();
        // SAFETY: the device exists. The new context is current then, which is undone.
        unsafe {
            driver!(cuCtxCreate_v4(&raw mut raw, std::ptr::null_mut(), 0, gpu.raw))?;
            driver!(cuCtxPopCurrent_v2(&raw mut popped))?;
        }
        Ok(Self { gpu, raw, primary: false })
    }

    /// Returns the driver's handle.
    pub fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes the context current in this thread until the result is dropped; then the one before it
    /// is current again. Meanwhile the thread's calls neither are forbidden by captures of the
    /// program's threads into graphs, nor end them.
    pub fn enter(&self) -> Result<Entered, DriverError> {
        let mut entered = self.enter_to_queue()?;
        let mut captures = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: writes the mode that was in force. If it fails the calls that follow say why.
        let _ = unsafe { driver!(cuThreadExchangeStreamCaptureMode(&raw mut captures)) };
        entered.captures = Some(captures);
        Ok(entered)
    }

    /// Makes the context current as [`enter`](Self::enter) does, for calls that no capture of
    /// another stream forbids and that end none: those that queue copies, fills, stores of words or
    /// events on a stream, or ask whether it captures.
    pub fn enter_to_queue(&self) -> Result<Entered, DriverError> {
        // To look takes a quarter of the time of a push and a pop.
        let is_other = current()? != self.raw;
        if is_other {
            // SAFETY: the context lives as long as `self`.
            unsafe { driver!(cuCtxPushCurrent_v2(self.raw)) }?;
        }
        Ok(Entered { captures: None, is_pushed: is_other })
    }

    /// Makes the context current in this thread if none is.
    pub fn adopt(&self) -> Result<(), DriverError> {
        if !current()?.is_null() {
            return Ok(());
        }
        // SAFETY: the context lives as long as `self`.
        unsafe { driver!(cuCtxSetCurrent(self.raw)) }
    }

    /// Puts `event` after all work in the context.
    pub fn record(&self, event: CUevent) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { driver!(cuCtxRecordEvent(self.raw, event)) }
    }
}

impl Context {
    /// Gives the reference back. Not done on drop: a context with a kernel in it that does not end
    /// is left to the process's end.
    pub fn release(&self) {
        let released = if self.primary {
            // SAFETY: `retain` took the reference.
            unsafe { driver!(cuDevicePrimaryCtxRelease_v2(self.gpu.raw)) }
        } else {
            // SAFETY: `create` made it, and what was in it is gone.
            unsafe { driver!(cuCtxDestroy_v2(self.raw)) }
        };
        if let Err(error) = released {
            tracing::debug!(%error, "cannot release the GPU's context");
        }
    }
}

/// Returns the context that is current in this thread, or null.
fn current() -> Result<CUcontext, DriverError> {
    let mut current = std::ptr::null_mut();
    // SAFETY: writes one handle.
    unsafe { driver!(cuCtxGetCurrent(&raw mut current)) }?;
    Ok(current)
}

/// See [`Context::enter`].
#[derive(Debug)]
#[must_use]
pub(super) struct Entered {
    /// The mode that the thread had before, if it has another one meanwhile.
    captures: Option<CUstreamCaptureMode>,
    is_pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(captures) = &mut self.captures {
            // SAFETY: gives the thread back the mode that it had.
            let _ = unsafe { driver!(cuThreadExchangeStreamCaptureMode(&raw mut *captures)) };
        }
        if !self.is_pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: `enter` pushed one.
        if let Err(error) = unsafe { driver!(cuCtxPopCurrent_v2(&raw mut popped)) } {
            tracing::debug!(%error, "cannot restore the thread's CUDA context");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        match start() {
            Ok(()) => println!("skipped: this machine has an NVIDIA driver"),
            Err(reason) => assert!(driver_present() || reason.contains("libcuda.so.1"), "{reason}"),
        }
    }

    #[test]
    fn releases_are_written_as_users_know_them() {
        assert_eq!(release(12040), "12.4");
        assert_eq!(release(13000), "13.0");
    }

    #[test]
    fn errors_that_lose_the_context_are_told_from_others() {
        let error = |code: CUresult| DriverError { call: "c", code: code as u32, name: "".into(), text: "".into() };
        assert!(error(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).loses_context());
        assert!(!error(CUresult::CUDA_ERROR_OUT_OF_MEMORY).loses_context());
        assert!(!error(CUresult::CUDA_ERROR_INVALID_VALUE).loses_context());
    }
}
