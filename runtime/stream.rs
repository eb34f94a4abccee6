//! Streams, and what issues operations on one.

use std::ffi::c_void;
#[cfg(feature = "cudarc")]
use std::sync::Arc;

use crate::Result;
use crate::device;
use crate::identity::PeId;
use crate::pe::Pe;

/// A queue of work on a PE's device.
///
/// Kernels and operations on one stream run in the order of their calls, those on different streams
/// in any order, or at the same time. Made by [`Pe::create_stream`] and [`Pe::stream_from_raw`];
/// [`Pe::stream`] is the PE's own. [`Pe::on`] issues operations on it. Clones name the same stream.
///
/// # Errors
/// A stream of a PE that has been finalized is refused by every call.
///
/// # Threads and drop
/// `Send` and `Sync`: it is a name, and work is put on it through the PE alone. A stream that the
/// library created is destroyed with its last clone, when what was queued on it has ended; a stream
/// of the program is left alone.
///
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let stream: oxshmem::Stream = pe.create_stream()?;
/// pe.on(&stream).quiet()?;
/// pe.on(&stream).synchronize()?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Stream {
    pe: PeId,
    stream: device::Stream,
    /// The stream of cudarc that this one names, which it keeps open.
    #[cfg(feature = "cudarc")]
    _kept_by: Option<Arc<cudarc::driver::CudaStream>>,
}

impl Stream {
    pub(crate) fn new(pe: PeId, stream: device::Stream) -> Self {
        Self {
            pe,
            stream,
            #[cfg(feature = "cudarc")]
            _kept_by: None,
        }
    }

    /// Keeps a stream of cudarc open, which this one names.
    #[cfg(feature = "cudarc")]
    pub(crate) fn kept_by(self, stream: &Arc<cudarc::driver::CudaStream>) -> Self {
        Self { _kept_by: Some(Arc::clone(stream)), ..self }
    }

    /// Returns the device's stream, unless it belongs to another PE.
    pub(crate) fn check(&self, pe: PeId) -> Result<&device::Stream> {
        pe.admit(self.pe, "a stream", "create it again with Pe::create_stream or Pe::stream_from_raw")?;
        Ok(&self.stream)
    }

    /// Returns the `CUstream` of a stream that was created on the `cuda` device or taken from the
    /// program. `None` on the `cpu` device; for the PE's own stream see
    /// [`CudaGpu::stream`](crate::CudaGpu::stream).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.create_stream()?.raw().is_some(), pe.gpu().is_some());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn raw(&self) -> Option<*mut c_void> {
        self.stream.raw()
    }
}

/// A PE together with a stream: issues [`Operations`](crate::Operations) and kernels on that
/// stream. Made by [`Pe::on`].
///
/// # Threads and drop
/// It borrows the PE and the stream, so it stays on the PE's thread. Dropping it does nothing to
/// the stream's work.
///
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let (stream, cell) = (pe.create_stream()?, pe.alloc::<u64>(1)?);
/// let on: oxshmem::OnStream<'_> = pe.on(&stream);
/// on.signal(cell.signal(0).set(2), 0)?;
/// on.synchronize()?;
/// assert_eq!(pe.read(&cell)?, [2]);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct OnStream<'a> {
    pub(crate) pe: &'a Pe,
    pub(crate) stream: &'a Stream,
}

impl OnStream<'_> {
    /// Waits until everything on the stream has ended, also what others put there.
    ///
    /// # Errors
    /// The stream is being captured into a graph
    /// ([`DeviceError::Capturing`](crate::device::DeviceError::Capturing)). Otherwise it fails like
    /// [`Pe::synchronize`]. Device code has one place for its first error, so an error
    /// of another stream may be reported here, and there again.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// pe.on(&pe.stream()).synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn synchronize(&self) -> Result<()> {
        self.pe.wait_stream(self.stream.check(self.pe.id())?)
    }
}
