//! Transfers by address: of memory that no [`SymmetricSlice`] describes, and from which C programs are served.

use std::ffi::c_void;

use super::SymmetricSlice;
use super::rma::{SignalOp, THREADS};
use crate::Result;
use crate::device::Stream;
use crate::heap::HeapError;
use crate::pe::Pe;

/// From so many bytes on, copies between mapped memory on a stream are left to the GPU's copy engines. Between two H200s a copy takes
/// 1.9 us of the host's or GPU's time with 8 KiB and 2.2 us with 32 KiB, and a kernel of one block 3.7 and 3.9 us; longer ones run at the
/// link's speed.
const COPY_ENGINE_BYTES: u64 = 4 << 10;
/// Likewise with a signal behind it, which takes a kernel in any case: 5.2 us by one kernel with 32 KiB, 6.2 us by copy and kernel with
/// 128 KiB, of which the copy by a kernel alone takes 6.1 us.
const SIGNALLED_COPY_ENGINE_BYTES: u64 = 64 << 10;
/// Most threads that a transfer within the GPU's reach is copied with.
const COPY_THREADS: u32 = 1024;
/// Bytes that are worth a thread.
const BYTES_PER_THREAD: u64 = 16;

pub(super) fn bytes_of<T>(elements: usize) -> u64 {
    // What is more than the address space has was refused with the range.
    (elements as u64).saturating_mul(size_of::<T>() as u64)
}

/// `dst`, `src` and signals are symmetric addresses where the operation has them at `pe`: addresses of the own copy. The other side is any
/// memory: of the heap, of the GPU, or of the host.
impl Pe {
    /// Copies `bytes` bytes from `src` to `dst` at `pe`; as [`put`](Pe::put).
    ///
    /// # Errors
    /// As [`put`](Pe::put).
    ///
    /// # Safety
    /// `src` names that many readable bytes. `dst` may be anything; what is not in the heap is refused.
    pub unsafe fn putmem(&self, dst: *mut c_void, src: *const c_void, bytes: usize, pe: usize) -> Result<()> {
        let (target, source) = (dst as u64, src as u64);
        if self.is_direct(source, bytes) {
            // SAFETY: the caller's promise; the operation ends before this returns.
            unsafe { self.queue_put(target, source, bytes as u64, pe, &Stream::OWN) }?;
            return self.wait_own();
        }
        // SAFETY: the caller's promise.
        self.put_bytes(target, unsafe { host_bytes(src, bytes) }, pe)
    }

    /// Copies `bytes` bytes from `src` at `pe` to `dst`; as [`get`](Pe::get).
    ///
    /// # Errors
    /// As [`get`](Pe::get).
    ///
    /// # Safety
    /// `dst` names that many writable bytes. `src` may be anything; what is not in the heap is refused.
    pub unsafe fn getmem(&self, dst: *mut c_void, src: *const c_void, bytes: usize, pe: usize) -> Result<()> {
        let (target, source) = (dst as u64, src as u64);
        if self.is_direct(target, bytes) {
            // SAFETY: as in `putmem`.
            unsafe { self.queue_get(target, source, bytes as u64, pe, &Stream::OWN) }?;
            return self.wait_own();
        }
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.get_bytes(source, unsafe { std::slice::from_raw_parts_mut(dst.cast(), bytes) }, pe)
    }

    /// As [`putmem`](Pe::putmem), then updates `signal` at `pe`; as [`put_signal`](Pe::put_signal).
    ///
    /// # Errors
    /// As [`put_signal`](Pe::put_signal).
    ///
    /// # Safety
    /// As [`putmem`](Pe::putmem).
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn putmem_signal(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        signal: *mut u64,
        value: u64,
        op: SignalOp,
        pe: usize,
    ) -> Result<()> {
        let (target, source, update) = (dst as u64, src as u64, (signal as u64, value, op));
        if self.is_direct(source, bytes) {
            // SAFETY: as in `putmem`.
            unsafe { self.queue_put_signal(target, source, bytes as u64, update, pe, &Stream::OWN) }?;
            return self.wait_own();
        }
        // SAFETY: the caller's promise.
        self.put_bytes_signal(target, unsafe { host_bytes(src, bytes) }, update, pe)
    }

    /// As [`putmem`](Pe::putmem), on a stream; as [`put_on_stream`](Pe::put_on_stream).
    ///
    /// # Errors
    /// As [`put_on_stream`](Pe::put_on_stream).
    ///
    /// # Safety
    /// `src` names that many bytes that the device can read, until the operation has ended.
    pub unsafe fn putmem_on_stream(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.check_side(src as u64, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.queue_put(dst as u64, src as u64, bytes as u64, pe, stream) }
    }

    /// As [`getmem`](Pe::getmem), on a stream; as [`get_on_stream`](Pe::get_on_stream).
    ///
    /// # Errors
    /// As [`get_on_stream`](Pe::get_on_stream).
    ///
    /// # Safety
    /// `dst` names that many bytes that the device can write, until the operation has ended.
    pub unsafe fn getmem_on_stream(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.check_side(dst as u64, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.queue_get(dst as u64, src as u64, bytes as u64, pe, stream) }
    }

    /// As [`putmem_signal`](Pe::putmem_signal), on a stream; as [`put_signal_on_stream`](Pe::put_signal_on_stream).
    ///
    /// # Errors
    /// As [`put_signal_on_stream`](Pe::put_signal_on_stream).
    ///
    /// # Safety
    /// As [`putmem_on_stream`](Pe::putmem_on_stream).
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn putmem_signal_on_stream(
        &self,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        signal: *mut u64,
        value: u64,
        op: SignalOp,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        self.check_side(src as u64, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.queue_put_signal(dst as u64, src as u64, bytes as u64, (signal as u64, value, op), pe, stream) }
    }

    /// A slice of symmetric memory by its address.
    ///
    /// # Safety
    /// `address` is that of the own copy of `len` elements in a live allocation of the heap.
    #[must_use]
    pub unsafe fn slice_from_raw<T>(&self, address: *mut T, len: usize) -> SymmetricSlice<T> {
        SymmetricSlice::new(address as u64, len)
    }

    /// Where `pe`'s copy of `address` can be loaded from and stored to, by kernels and on the `cpu` device by the host too; `None` if it
    /// is reached over the network, or `address` is not in the heap.
    #[must_use]
    pub fn ptr(&self, address: *const c_void, pe: usize) -> Option<*mut c_void> {
        self.mapped(address as u64, 1, pe).map(|there| there as *mut c_void)
    }

    /// Whether kernels can use the program's side of a transfer as it is, and well: memory of the heap, and of the GPU. Other memory passes
    /// through the staging buffer.
    fn is_direct(&self, address: u64, bytes: usize) -> bool {
        self.mapped(address, bytes as u64, self.my_pe()).is_some()
            || (self.gpu().is_some() && self.device().is_accessible(address))
    }

    /// Refuses memory that a kernel would fault on, and with it lose the GPU.
    fn check_side(&self, address: u64, bytes: usize) -> Result<()> {
        if bytes == 0
            || self.mapped(address, bytes as u64, self.my_pe()).is_some()
            || self.device().is_accessible(address)
        {
            return Ok(());
        }
        Err(HeapError::NotOnDevice { address, bytes }.into())
    }

    /// Threads for a copy of so many bytes.
    pub(super) fn copy_threads(&self, bytes: u64) -> u32 {
        if self.gpu().is_none() {
            return THREADS;
        }
        let wanted = bytes.div_ceil(BYTES_PER_THREAD).next_multiple_of(u64::from(THREADS));
        u32::try_from(wanted).unwrap_or(u32::MAX).clamp(THREADS, COPY_THREADS)
    }

    /// # Safety
    /// `source` names that many bytes that the device can read, until the operation has ended.
    pub(super) unsafe fn queue_put(
        &self,
        target: u64,
        source: u64,
        bytes: u64,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        if bytes >= COPY_ENGINE_BYTES
            && let Some(there) = self.mapped(target, bytes, pe)
            // SAFETY: the target is mapped; the source is the caller's promise.
            && unsafe { self.queue_copy(stream, there, source, bytes) }?
        {
            return Ok(());
        }
        let args = (target, source, bytes, self.peer(pe));
        // SAFETY: the kernel reads the source and checks the target itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_put", self.copy_threads(bytes), args) }
    }

    /// # Safety
    /// `target` names that many bytes that the device can write, until the operation has ended.
    pub(super) unsafe fn queue_get(
        &self,
        target: u64,
        source: u64,
        bytes: u64,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        if bytes >= COPY_ENGINE_BYTES
            && let Some(there) = self.mapped(source, bytes, pe)
            // SAFETY: the source is mapped; the target is the caller's promise.
            && unsafe { self.queue_copy(stream, target, there, bytes) }?
        {
            return Ok(());
        }
        let args = (target, source, bytes, self.peer(pe));
        // SAFETY: the kernel writes the target and checks the source itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_get", self.copy_threads(bytes), args) }
    }

    /// `update` is the signal's address, value and operator.
    ///
    /// # Safety
    /// As `queue_put`.
    pub(super) unsafe fn queue_put_signal(
        &self,
        target: u64,
        source: u64,
        bytes: u64,
        update: (u64, u64, SignalOp),
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        let (signal, value, op) = update;
        let peer = self.peer(pe);
        if bytes >= SIGNALLED_COPY_ENGINE_BYTES
            && let Some(there) = self.mapped(target, bytes, pe)
            // SAFETY: the target is mapped; the source is the caller's promise.
            && unsafe { self.queue_copy(stream, there, source, bytes) }?
        {
            let args = (signal, value, op as i32, peer);
            // SAFETY: the kernel checks the signal itself.
            return unsafe { self.queue_host_kernel(stream, "oxshmem_host_signal", 1, args) };
        }
        let args = (target, source, bytes, signal, value, op as i32, peer);
        // SAFETY: the kernel reads the source and checks the rest itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_put_signal", self.copy_threads(bytes), args) }
    }
}

/// # Safety
/// `at` names that many readable bytes, or there are none.
unsafe fn host_bytes<'a>(at: *const c_void, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at.cast(), bytes) }
}
