//! A CUDA graph of calls on a stream, and the time that it takes.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{self, CUevent, CUgraphExec, CUresult, CUstream};

use crate::error::Error;

fn worked(what: &str, result: CUresult) -> Result<(), Error> {
    result.result().map_err(|error| Error::Usage(format!("{what}: {error}")))
}

/// Calls that were captured, and two events around them.
#[derive(Debug)]
pub(super) struct Graph {
    executable: CUgraphExec,
    stream: CUstream,
    begin: CUevent,
    end: CUevent,
}

impl Graph {
    /// Returns a graph of what `work` puts on `stream`.
    ///
    /// # Errors
    /// `work` fails, or the driver refuses the capture.
    ///
    /// # Safety
    /// `context` is the stream's context; both outlive the graph.
    pub unsafe fn capture(
        context: *mut c_void,
        stream: *mut c_void,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let stream: CUstream = stream.cast();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the caller's promise.
        unsafe {
            worked("making the context current", sys::cuCtxSetCurrent(context.cast()))?;
            worked("beginning a capture", sys::cuStreamBeginCapture_v2(stream, mode))?;
        }
        let done = work();
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the capture that began above ends, whatever `work` said; a graph is made into an
        // executable one once, and goes away.
        unsafe {
            let ended = worked("ending a capture", sys::cuStreamEndCapture(stream, &raw mut graph));
            done.and(ended)?;
            let made = worked("instantiating a graph", sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
            worked("destroying a graph", sys::cuGraphDestroy(graph))?;
            made?;
        }
        let mut made = Self { executable, stream, begin: ptr::null_mut(), end: ptr::null_mut() };
        for event in [&raw mut made.begin, &raw mut made.end] {
            // SAFETY: writes one value.
            worked("creating an event", unsafe { sys::cuEventCreate(event, 0) })?;
        }
        Ok(made)
    }

    /// Puts the graph on its stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch(&self) -> Result<(), Error> {
        // SAFETY: both exist as long as this value.
        worked("launching a graph", unsafe { sys::cuGraphLaunch(self.executable, self.stream) })
    }

    /// Puts the graph on its stream between the events.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn launch_timed(&self) -> Result<(), Error> {
        // SAFETY: as above.
        let record = |event| worked("recording an event", unsafe { sys::cuEventRecord(event, self.stream) });
        record(self.begin)?;
        self.launch()?;
        record(self.end)
    }

    /// Returns the nanoseconds between the events, after the stream was synchronized.
    ///
    /// # Errors
    /// The events were not reached.
    pub fn nanoseconds(&self) -> Result<f64, Error> {
        let mut milliseconds = 0f32;
        // SAFETY: writes one value; the events exist as long as this value.
        let read = unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, self.begin, self.end) };
        worked("reading the time between events", read)?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `capture`, and used by nothing else. What the driver says is of no use
        // any more.
        unsafe {
            for event in [self.begin, self.end].into_iter().filter(|event| !event.is_null()) {
                let _ = sys::cuEventDestroy_v2(event);
            }
            let _ = sys::cuGraphExecDestroy(self.executable);
        }
    }
}
