//! Symmetric memory as memory of cudarc.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};

use super::context::failed;
use crate::Result;
use crate::pe::Pe;
use crate::pe::loans::Loan;
use crate::slice::Symmetric;

/// Symmetric memory that is lent to cudarc: this PE's copy, as a slice on the device. Made by
/// [`Pe::lend`].
///
/// It implements cudarc's `DeviceSlice`, `DevicePtr` and `DevicePtrMut`, so cudarc's copies and
/// fills take it, and [`view`](Self::view) and [`view_mut`](Self::view_mut) return cudarc's own
/// views, which launches take as arguments.
///
/// [`SymmetricSlice`](crate::SymmetricSlice) itself cannot implement these traits: each of them
/// asks for the stream that the memory belongs to, and symmetric memory belongs to none.
///
/// # Ordering
/// Uses through one `Lent` are ordered by cudarc, as those of a `CudaSlice` are. Operations of this
/// library, of other PEs and of other loans of the memory are ordered by streams, signals and
/// barriers alone.
///
/// # Errors
/// As long as the loan exists, [`Pe::free`] refuses to free its memory. It borrows the PE, so the
/// PE cannot be finalized either.
///
/// # Threads and drop
/// `Send` and `Sync`, as a `CudaSlice` is. Dropping it ends the loan and waits for nothing:
/// [`Pe::free`] and [`Pe::finalize`] wait for all work in the GPU's context.
///
/// ```
/// use oxshmem::Lent;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pe = oxshmem::init()?;
/// let words = pe.alloc::<u32>(3)?;
/// if pe.gpu().is_some() {
///     let stream = pe.cuda_context()?.new_stream()?;
///     let mut lent: Lent<'_, u32> = pe.lend(&words, &stream)?;
///     stream.memcpy_htod(&[1, 2, 3], &mut lent)?;
///     assert_eq!(stream.clone_dtoh(&lent)?, [1, 2, 3]);
/// }
/// # Ok(pe.finalize()?)
/// # }
/// ```
#[derive(Debug)]
pub struct Lent<'a, T> {
    /// Never dropped as a slice: the memory is not cudarc's.
    slice: ManuallyDrop<CudaSlice<T>>,
    _loan: Loan,
    of: PhantomData<&'a ()>,
}

impl Pe {
    /// Lends symmetric memory to cudarc: returns this PE's copy as memory of `stream`.
    ///
    /// # Errors
    /// The PE is on the `cpu` device, the stream belongs to another context, or the slice is stale
    /// or out of range.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(8)?;
    /// if pe.gpu().is_some() {
    ///     let stream = pe.cuda_context()?.default_stream();
    ///     stream.memset_zeros(&mut pe.lend(words.view(2..), &stream)?)?;
    /// }
    /// # Ok(pe.finalize()?)
    /// # }
    /// ```
    pub fn lend<'a, S>(&'a self, memory: S, stream: &Arc<CudaStream>) -> Result<Lent<'a, S::Element>>
    where
        S: Symmetric + 'a,
        S::Element: Pod,
    {
        self.check_context(stream.context())?;
        let memory = memory.to_view();
        let (address, len) = memory.resolve(self.id())?;
        // The call below panics where no event can be made.
        stream.context().new_event(None).map_err(|error| failed("cudarc cannot make an event", error))?;
        let loan = self.loans().lend(memory.allocation(self.id())?);
        // SAFETY: `len` elements of a live allocation, which stays until the loan has ended; any
        // bytes are a `Pod` value.
        let slice = unsafe { stream.upgrade_device_ptr(address, len) };
        Ok(Lent { slice: ManuallyDrop::new(slice), _loan: loan, of: PhantomData })
    }
}

impl<T> Lent<'_, T> {
    /// Returns the memory as a view of cudarc, for reading: what launches of cudarc take as
    /// `.arg(&view)`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u32>(3)?;
    /// if pe.gpu().is_some() {
    ///     let stream = pe.cuda_context()?.default_stream();
    ///     assert_eq!(pe.lend(&words, &stream)?.view().len(), 3);
    /// }
    /// # Ok(pe.finalize()?)
    /// # }
    /// ```
    #[must_use]
    pub fn view(&self) -> CudaView<'_, T> {
        self.slice.as_view()
    }

    /// Returns the memory as a view of cudarc, for writing: what launches of cudarc take as
    /// `.arg(&mut view)`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u32>(3)?;
    /// if pe.gpu().is_some() {
    ///     let stream = pe.cuda_context()?.default_stream();
    ///     let mut lent = pe.lend(&words, &stream)?;
    ///     stream.memset_zeros(&mut lent.view_mut().slice_mut(1..))?;
    /// }
    /// # Ok(pe.finalize()?)
    /// # }
    /// ```
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }
}

impl<T> DeviceSlice<T> for Lent<'_, T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T> DevicePtr<T> for Lent<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for Lent<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the slice is not used afterwards.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Gives its events and its stream back, and leaves the memory alone.
        let _ = slice.leak();
    }
}
