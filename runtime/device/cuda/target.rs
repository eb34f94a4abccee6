//! Which CUDA stream a call means.

use cudarc::driver::sys::CUstream;

use super::external_stream::ExternalStream;
use super::launched::Launched;
use super::stream::Stream;
use crate::device::error::DeviceError;
use crate::device::stream::{Stream as DeviceStream, StreamKind};

/// Returns the stream that is meant, unless it is the PE's own, and its handle.
pub(super) fn target<'a>(
    own: &Stream,
    stream: &'a DeviceStream,
) -> Result<(Option<&'a ExternalStream>, CUstream), DeviceError> {
    let reason = match &stream.0 {
        StreamKind::Own => return Ok((None, own.raw())),
        StreamKind::Cuda(stream) if stream.is_of(own) => return Ok((Some(stream), stream.raw())),
        StreamKind::Cuda(_) => "the stream belongs to a PE that has been finalized; make it again",
        StreamKind::Cpu(_) => "the stream is one of the cpu device",
    };
    Err(DeviceError::Unsupported { device: "cuda", reason })
}

/// Returns what the PE has queued on a stream that [`target`] has found.
pub(super) fn launched<'a>(own: &'a Stream, on: Option<&'a ExternalStream>) -> &'a Launched {
    on.map_or_else(|| own.launched(), |on| &on.queue().launched)
}
