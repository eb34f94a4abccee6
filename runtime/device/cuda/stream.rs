//! The stream that kernels run on, and the context it belongs to.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};

use super::driver::{Context, DriverError, Entered, check, driver};
use super::events::new_event;
use super::launched::Launched;
use super::occupancy::Resident;
use super::queues::Queues;
use super::raw_stream::{create, create_urgent, destroy, ended, is_capturing};
use crate::device::error::{DeviceError, OWN_STREAM};

/// How long a wait spins; kernels that take longer are looked at every [`LOOK_AGAIN`].
const SPIN: Duration = Duration::from_millis(2);
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The stream of a PE. Everything else of the PE that lives on the GPU keeps it, so that it is the
/// last to go.
#[derive(Debug)]
pub(super) struct Stream {
    context: Context,
    raw: CUstream,
    deadline: Duration,
    launched: Launched,
    /// What may have lost the context, as it was when that was first seen.
    suspects: OnceLock<String>,
    /// The PE is gone.
    closed: AtomicBool,
    /// What the PE has put on other streams.
    queues: Queues,
    /// Modules and translation units of the program that have the PE's state: their kernels are
    /// launched without the PE's knowing.
    programs: Mutex<Programs>,
    /// The software HCA's kernel, where it runs on this GPU for the PE.
    beside: OnceLock<Resident>,
}

/// See [`Stream::programs`].
#[derive(Debug, Default)]
pub(super) struct Programs {
    pub units: usize,
    pub modules: BTreeSet<usize>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Returns a stream of its own that does not wait for the legacy default stream, nor that for
    /// it.
    pub fn new(context: Context, deadline: Duration) -> Result<Self, DriverError> {
        let raw = create(&context)?;
        Ok(Self::of(context, raw, deadline))
    }

    /// Returns the same, whose kernels start before all others that wait for room on the GPU.
    pub fn urgent(context: Context, deadline: Duration) -> Result<Self, DriverError> {
        let raw = create_urgent(&context)?;
        Ok(Self::of(context, raw, deadline))
    }

    fn of(context: Context, raw: CUstream, deadline: Duration) -> Self {
        Self {
            context,
            raw,
            deadline,
            launched: Launched::default(),
            suspects: OnceLock::new(),
            closed: AtomicBool::new(false),
            queues: Queues::new(),
            programs: Mutex::default(),
            beside: OnceLock::new(),
        }
    }

    /// Has kernels whose blocks wait for each other leave room for this one from now on.
    pub fn leave_room(&self, resident: Resident) {
        // A PE opens one HCA.
        let _ = self.beside.set(resident);
    }

    /// Returns what kernels whose blocks wait for each other leave room for.
    pub fn beside(&self) -> Option<Resident> {
        self.beside.get().copied()
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    pub fn enter(&self) -> Result<Entered, DeviceError> {
        self.entered(self.context.enter())
    }

    /// Does the same as [`Context::enter_to_queue`].
    pub fn enter_to_queue(&self) -> Result<Entered, DeviceError> {
        self.entered(self.context.enter_to_queue())
    }

    fn entered(&self, entered: Result<Entered, DriverError>) -> Result<Entered, DeviceError> {
        entered.map_err(|error| self.error("cannot use the GPU's context", error))
    }

    /// Returns the public error for what the driver answered.
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

    fn launched_names(&self) -> String {
        let mut names = self.queues.launched();
        names.extend(self.launched.names());
        names.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Returns what the PE has queued on this stream.
    pub fn launched(&self) -> &Launched {
        &self.launched
    }

    /// Refuses launches from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    pub fn programs(&self) -> MutexGuard<'_, Programs> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to wait while the stream captures: a query would invalidate the capture. The context
    /// must be current.
    pub fn check_waits(&self) -> Result<(), DeviceError> {
        match is_capturing(self.raw) {
            Ok(false) => Ok(()),
            Ok(true) => Err(DeviceError::Capturing { stream: OWN_STREAM.to_owned() }),
            Err(error) => Err(self.error("cannot wait for kernels", error)),
        }
    }

    /// Waits until everything on the stream has ended. The context must be current.
    ///
    /// # Errors
    /// A kernel lost the context; or the deadline passed, and what runs goes on running, since
    /// nothing can stop it.
    pub fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives as long as `self`.
        self.wait_until(|| ("cuStreamQuery", unsafe { sys::cuStreamQuery(self.raw) }))?;
        self.launched.clear();
        Ok(())
    }

    /// Waits for everything on another stream of this context, which must be current. Errors as
    /// [`wait`](Self::wait).
    ///
    /// # Safety
    /// The stream exists.
    pub unsafe fn wait_stream(&self, raw: CUstream) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        self.wait_until(|| ("cuStreamQuery", unsafe { sys::cuStreamQuery(raw) }))
    }

    /// Waits for an event of this context, which must be current. Errors as [`wait`](Self::wait).
    pub fn wait_event(&self, event: CUevent) -> Result<(), DeviceError> {
        // SAFETY: the caller has the event.
        self.wait_until(|| ("cuEventQuery", unsafe { sys::cuEventQuery(event) }))
    }

    /// Waits for all work in the context, no matter which part of the process started it. The
    /// context must be current. Errors as [`wait`](Self::wait).
    pub fn wait_for_context(&self) -> Result<(), DeviceError> {
        let failed = |error: DriverError| {
            if error.code == CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as u32 {
                return DeviceError::Capturing { stream: format!("a stream of GPU {}", self.context.gpu.ordinal) };
            }
            self.error("cannot wait for the GPU", error)
        };
        let event = new_event().map_err(failed)?;
        let recorded = self.context.record(event).map_err(failed);
        let ended = recorded.and_then(|()| self.wait_event(event));
        // SAFETY: nothing else has it; the driver keeps what it still needs of it.
        unsafe { driver!(cuEventDestroy_v2(event)) }.map_err(failed).and(ended)?;
        self.launched.clear();
        Ok(())
    }

    fn wait_until(&self, mut query: impl FnMut() -> (&'static str, CUresult)) -> Result<(), DeviceError> {
        let start = Instant::now();
        loop {
            match query() {
                (_, CUresult::CUDA_SUCCESS) => return Ok(()),
                (_, CUresult::CUDA_ERROR_NOT_READY) => {}
                (call, other) => {
                    return check(call, other).map_err(|error| self.error("cannot wait for kernels", error));
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

    /// Returns whether everything on the stream has ended; `None` if the driver does not say. The
    /// context must be current.
    pub fn has_ended(&self) -> Option<bool> {
        // SAFETY: the stream lives as long as `self`.
        ended(unsafe { sys::cuStreamQuery(self.raw) })
    }

    /// Returns whether nothing runs that may use this PE's memory, or nothing can run any more,
    /// since the context is lost.
    pub fn idle(&self) -> bool {
        let Ok(_entered) = self.context.enter() else { return true };
        // SAFETY: the stream lives as long as `self`.
        unsafe { sys::cuStreamQuery(self.raw) != CUresult::CUDA_ERROR_NOT_READY && !self.queues.unfinished() }
    }
}

impl Drop for Stream {
    /// Leaves everything to the end of the process if a kernel is still running: the driver would
    /// wait for it.
    fn drop(&mut self) {
        if !self.idle() {
            tracing::error!("a kernel does not end; its stream and context are kept until the process ends");
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            self.queues.destroy(&self.context);
        }
        destroy(&self.context, self.raw);
        self.context.release();
    }
}
