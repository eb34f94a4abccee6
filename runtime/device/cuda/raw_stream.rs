//! Streams as the driver's handles.

use cudarc::driver::sys::{CUresult, CUstream, CUstream_flags, CUstreamCaptureStatus};

use super::driver::{Context, DriverError, driver};

/// Returns what a query says, if it says whether the work has ended.
pub(super) fn ended(query: CUresult) -> Option<bool> {
    match query {
        CUresult::CUDA_SUCCESS => Some(true),
        CUresult::CUDA_ERROR_NOT_READY => Some(false),
        _ => None,
    }
}

/// Returns whether what is put on the stream becomes a part of a graph. The context must be
/// current.
pub(super) fn is_capturing(stream: CUstream) -> Result<bool, DriverError> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: writes one value; that the stream exists is the promise of the caller that passed it.
    unsafe { driver!(cuStreamIsCapturing(stream, &raw mut status)) }?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Creates a stream that is independent of the legacy default stream.
pub(super) fn create(context: &Context) -> Result<CUstream, DriverError> {
    let _entered = context.enter()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: a context is current.
    unsafe { driver!(cuStreamCreate(&raw mut raw, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)) }?;
    Ok(raw)
}

/// Returns the same with the highest priority.
pub(super) fn create_urgent(context: &Context) -> Result<CUstream, DriverError> {
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
        // SAFETY: no thread uses it any more.
        unsafe { driver!(cuStreamDestroy_v2(stream)) }
    });
    if let Err(error) = destroyed {
        tracing::debug!(%error, "cannot destroy a stream");
    }
}
