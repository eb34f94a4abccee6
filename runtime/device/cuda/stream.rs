//! The stream that kernels run on, and the context it belongs to.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstream, CUstream_flags};

use super::driver::{Context, DriverError, Entered, check, driver};
use crate::device::DeviceError;

/// How long a wait spins; kernels that take longer are looked at every [`LOOK_AGAIN`].
const SPIN: Duration = Duration::from_millis(2);
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The stream of a PE. Everything else of the PE that lives on the GPU keeps it, so that it is the last to go.
#[derive(Debug)]
pub(super) struct Stream {
    context: Context,
    raw: CUstream,
    deadline: Duration,
    /// Kernels that were launched since all were seen to have ended.
    launched: Mutex<BTreeSet<String>>,
    /// What may have lost the context, as it was when that was first seen.
    suspects: OnceLock<String>,
    /// The PE is gone.
    closed: AtomicBool,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own that does not wait for the legacy default stream, nor that for it.
    pub fn new(context: Context, deadline: Duration) -> Result<Self, DriverError> {
        let raw = create(&context)?;
        Ok(Self::of(context, raw, deadline))
    }

    /// The same, whose kernels start before all others that wait for room on the GPU.
    pub fn urgent(context: Context, deadline: Duration) -> Result<Self, DriverError> {
        let raw = create_urgent(&context)?;
        Ok(Self::of(context, raw, deadline))
    }

    fn of(context: Context, raw: CUstream, deadline: Duration) -> Self {
        Self {
            context,
            raw,
            deadline,
            launched: Mutex::default(),
            suspects: OnceLock::new(),
            closed: AtomicBool::new(false),
        }
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    pub fn enter(&self) -> Result<Entered, DeviceError> {
        self.context.enter().map_err(|error| self.error("cannot use the GPU's context", error))
    }

    /// The public error for what the driver answered.
    pub fn error(&self, what: impl Into<String>, source: DriverError) -> DeviceError {
        if source.loses_context() {
            let kernels = self.suspects.get_or_init(|| {
                let launched = self.launched_names();
                if launched.is_empty() { "none of this PE's".to_owned() } else { launched }
            });
            return DeviceError::ContextLost { gpu: self.context.gpu.ordinal, kernels: kernels.clone(), source };
        }
        DeviceError::Cuda { what: what.into(), source }
    }

    fn launched(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launched_names(&self) -> String {
        self.launched().iter().cloned().collect::<Vec<_>>().join(", ")
    }

    /// Remembers that a kernel was launched.
    pub fn note(&self, kernel: &str) {
        let mut launched = self.launched();
        if !launched.contains(kernel) {
            launched.insert(kernel.to_owned());
        }
    }

    /// Refuses launches from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits until everything on the stream has ended. The context must be current.
    ///
    /// # Errors
    /// A kernel lost the context; or the deadline passed, and what runs goes on running, since nothing can stop it.
    pub fn wait(&self) -> Result<(), DeviceError> {
        let start = Instant::now();
        loop {
            // SAFETY: the stream lives as long as `self`.
            match unsafe { sys::cuStreamQuery(self.raw) } {
                CUresult::CUDA_SUCCESS => {
                    self.launched().clear();
                    return Ok(());
                }
                CUresult::CUDA_ERROR_NOT_READY => {}
                other => {
                    let failed = check("cuStreamQuery", other);
                    return failed.map_err(|error| self.error("cannot wait for kernels", error));
                }
            }
            let waited = start.elapsed();
            if waited > self.deadline {
                return Err(DeviceError::StillRunning { kernels: self.launched_names(), deadline: self.deadline });
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }

    /// Nothing runs that may use this PE's memory; or nothing can run any more, since the context is lost.
    pub fn idle(&self) -> bool {
        let Ok(_entered) = self.context.enter() else { return true };
        // SAFETY: the stream lives as long as `self`.
        unsafe { sys::cuStreamQuery(self.raw) != CUresult::CUDA_ERROR_NOT_READY }
    }
}

impl Drop for Stream {
    /// Leaves everything to the end of the process if a kernel is still running: the driver would wait for it.
    fn drop(&mut self) {
        if !self.idle() {
            tracing::error!("a kernel does not end; its stream and context are kept until the process ends");
            return;
        }
        destroy(&self.context, self.raw);
        self.context.release();
    }
}

/// Creates a stream that is independent of the legacy default stream.
pub(super) fn create(context: &Context) -> Result<CUstream, DriverError> {
    let _entered = context.enter()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: a context is current.
    unsafe { driver!(cuStreamCreate(&raw mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
    Ok(raw)
}

/// The same with the highest priority.
fn create_urgent(context: &Context) -> Result<CUstream, DriverError> {
    let _entered = context.enter()?;
    let (mut lowest, mut highest) = (0, 0);
    let mut raw = std::ptr::null_mut();
    // SAFETY: a context is current; the calls write two integers and one handle.
    unsafe {
        driver!(cuCtxGetStreamPriorityRange(&raw mut lowest, &raw mut highest))?;
        driver!(cuStreamCreateWithPriority(&raw mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32, highest))?;
    }
    Ok(raw)
}

/// Destroys a stream that [`create`] made.
pub(super) fn destroy(context: &Context, stream: CUstream) {
    let destroyed = context.enter().and_then(|_entered| {
        // SAFETY: nobody uses it any more.
        unsafe { driver!(cuStreamDestroy_v2(stream)) }
    });
    if let Err(error) = destroyed {
        tracing::debug!(%error, "cannot destroy a stream");
    }
}
