//! Which CUDA stream a call means.

use std::sync::atomic::Ordering;

use cudarc::driver::sys::CUstream;

use super::driver::DriverError;
use super::external_stream::ExternalStream;
use super::launched::Launched;
use super::stream::Stream;
use crate::device::error::DeviceError;
use crate::device::stream::{Stream as DeviceStream, StreamKind};

/// Returns the stream that is meant, unless it is the PE's own, and its handle, which the calling
/// thread may use.
pub(super) fn target<'a>(
    own: &Stream,
    stream: &'a DeviceStream,
) -> Result<(Option<&'a ExternalStream>, CUstream), DeviceError> {
    match followed(own, stream)? {
        None => Ok((None, own.raw())),
        Some(stream) if stream.is_of_this_thread() => Ok((Some(stream), stream.raw())),
        Some(_) => {
            let reason = "the stream is the default stream of another thread (CU_STREAM_PER_THREAD); call Pe::stream_from_raw in the thread that uses it";
            Err(DeviceError::Unsupported { device: "cuda", reason })
        }
    }
}

/// Returns the stream that is meant, unless it is the PE's own, to look at what the PE has queued
/// there.
pub(super) fn followed<'a>(own: &Stream, stream: &'a DeviceStream) -> Result<Option<&'a ExternalStream>, DeviceError> {
    let reason = match &stream.0 {
        StreamKind::Own => return Ok(None),
        StreamKind::Cuda(stream) if stream.is_of(own) => return Ok(Some(stream)),
        StreamKind::Cuda(_) => "the stream belongs to a PE that has been finalized; make it again",
        StreamKind::Cpu(_) => "the stream is one of the cpu device",
    };
    Err(DeviceError::Unsupported { device: "cuda", reason })
}

/// Notes that work was queued on a stream that [`target`] has found, which `captures` or not. The
/// PE's own stream says itself when its work has ended, unless that went into a graph.
pub(super) fn mark(own: &Stream, on: Option<&ExternalStream>, captures: bool) -> Result<(), DriverError> {
    if captures {
        own.queues().captured.store(true, Ordering::Release);
        return Ok(());
    }
    on.map_or(Ok(()), |on| on.mark(own))
}

/// Returns what the PE has queued on a stream that [`target`] has found.
pub(super) fn launched<'a>(own: &'a Stream, on: Option<&'a ExternalStream>) -> &'a Launched {
    on.map_or_else(|| own.launched(), |on| &on.queue().launched)
}
