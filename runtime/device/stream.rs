//! Streams: queues of work that a program makes itself, beside the PE's own.

use std::ffi::c_void;
use std::sync::Arc;

use super::{cpu, cuda};

/// A queue of work on the PE's device: kernels and on-stream operations on one stream run in the order of their calls, those on
/// different streams in any order, or at the same time. Made by [`Pe::create_stream`](crate::Pe::create_stream) and
/// [`Pe::stream_from_raw`](crate::Pe::stream_from_raw); [`Pe::stream`](crate::Pe::stream) is the PE's own. Clones name the same stream.
///
/// A stream that the library created is destroyed with its last clone, when what was queued on it has ended.
#[derive(Debug, Clone)]
pub struct Stream(pub(crate) StreamKind);

#[derive(Debug, Clone)]
pub(crate) enum StreamKind {
    /// The one that [`Pe::launch`](crate::Pe::launch) uses.
    Own,
    /// An executor of its own.
    Cpu(Arc<cpu::Executor>),
    /// A `CUstream`.
    Cuda(cuda::CallerStream),
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

    /// The `CUstream` of a stream that was created on the `cuda` device or taken from the program. `None` on the `cpu` device; for the
    /// PE's own stream see [`CudaGpu::stream`](crate::CudaGpu::stream).
    #[must_use]
    pub fn raw(&self) -> Option<*mut c_void> {
        match &self.0 {
            StreamKind::Own | StreamKind::Cpu(_) => None,
            StreamKind::Cuda(stream) => Some(stream.raw().cast()),
        }
    }
}
