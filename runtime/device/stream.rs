//! Streams: queues of work that a program makes itself, beside the PE's own.

use std::ffi::c_void;
use std::sync::Arc;

use super::error::OWN_STREAM;
use super::{cpu, cuda};

/// A stream of the device. The device's own calls take it; programs have it as [`crate::Stream`].
/// Clones name the same stream.
///
/// A stream that the library created is destroyed with its last clone, when what was queued on it
/// has ended.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Stream(pub(crate) StreamKind);

#[derive(Debug, Clone)]
pub(crate) enum StreamKind {
    /// The PE's own.
    Own,
    /// An executor of its own.
    Cpu(Arc<cpu::Executor>),
    /// A `CUstream`.
    Cuda(cuda::ExternalStream),
}

impl Stream {
    pub(crate) const OWN: Self = Self(StreamKind::Own);

    /// Tells streams of a PE apart.
    pub(crate) fn key(&self) -> usize {
        match &self.0 {
            StreamKind::Own => 0,
            StreamKind::Cpu(executor) => Arc::as_ptr(executor) as usize,
            StreamKind::Cuda(stream) => stream.key(),
        }
    }

    /// Returns the `CUstream` of a stream that is not the PE's own. `None` on the `cpu` device.
    pub fn raw(&self) -> Option<*mut c_void> {
        match &self.0 {
            StreamKind::Own | StreamKind::Cpu(_) => None,
            StreamKind::Cuda(stream) => Some(stream.raw().cast()),
        }
    }

    /// Returns what an error calls the stream.
    pub(crate) fn describe(&self) -> String {
        match &self.0 {
            StreamKind::Own => OWN_STREAM.to_owned(),
            StreamKind::Cpu(_) => "a stream of the program".to_owned(),
            StreamKind::Cuda(stream) => stream.describe(),
        }
    }

    /// Returns whether `raw` is this stream's handle, and names it in every thread.
    pub(crate) fn is_named(&self, raw: *mut c_void) -> bool {
        matches!(&self.0, StreamKind::Cuda(stream) if stream.is_named(raw.cast()))
    }
}
