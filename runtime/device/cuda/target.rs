//! Which CUDA stream a call means.

use std::sync::Arc;

use super::external_stream::ExternalStream;
use super::stream::Stream;
use crate::device::error::DeviceError;
use crate::device::stream::{Stream as DeviceStream, StreamKind};

/// Returns the program's stream that is meant, or `None` for the PE's own.
pub(super) fn target<'a>(
    own: &Arc<Stream>,
    stream: &'a DeviceStream,
) -> Result<Option<&'a ExternalStream>, DeviceError> {
    let reason = match &stream.0 {
        StreamKind::Own => return Ok(None),
        StreamKind::Cuda(stream) if stream.is_of(own) => return Ok(Some(stream)),
        StreamKind::Cuda(_) => "the stream belongs to a PE that has been finalized; make it again",
        StreamKind::Cpu(_) => "the stream is one of the cpu device",
    };
    Err(DeviceError::Unsupported { device: "cuda", reason })
}
