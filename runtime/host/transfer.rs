//! Transfers by address, as the host issues them: through the staging buffer, by kernels, and by
//! copy engines.

use bytemuck::Pod;

use crate::Result;
use crate::device::{DeviceCopy, Stream};
use crate::pe::Pe;
use crate::pe::parts::STAGING_BYTES;
use crate::profile::host::{Operation, Subject};
use crate::slice::{SignalOp, Symmetric, SymmetricView, bytes_of};

/// From this many bytes on, a put with a signal is left to a copy engine, which takes as long as a
/// kernel then where such puts follow each other: 5.7 us. Transfers without a signal are always
/// left to the copy engine, but in graphs: in a row copies of 8 bytes take 1.9 us each, and kernels
/// 3.9.
const COPY_ENGINE_BYTES: u64 = 64 << 10;
/// The same in graphs, for all transfers. Between two H100s a kernel of 10 us and the copy of 128
/// KiB after it take 5 us more than the kernel alone if a kernel copies, and 12 if a copy engine
/// does.
const COPY_ENGINE_BYTES_IN_GRAPHS: u64 = 256 << 10;
/// Threads that a host operation copies with.
pub(super) const THREADS: u32 = 32;
/// Most threads that a transfer within the GPU's reach is copied with.
const COPY_THREADS: u32 = 1024;
/// Bytes that are worth a thread.
const BYTES_PER_THREAD: u64 = 16;

/// A put of device memory. `source` is an address here, and `target` the symmetric address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put {
    pub target: u64,
    pub source: u64,
    pub bytes: u64,
    pub pe: usize,
    /// Left to a copy engine in a graph, too, whatever its length.
    pub is_copied_in_graphs: bool,
}

impl Put {
    /// Returns a call's put, given target and source.
    pub fn new((target, source): (u64, u64), bytes: u64, pe: usize) -> Self {
        Self { target, source, bytes, pe, is_copied_in_graphs: false }
    }

    /// Returns the copy to where the target is mapped here.
    fn copy(&self, there: u64) -> DeviceCopy {
        let copy = transfer(there, self.source, self.bytes);
        DeviceCopy { in_graphs: copy.in_graphs || self.is_copied_in_graphs, ..copy }
    }
}

/// A signal's address, the value, and the number of the operator.
pub(super) type Update = (u64, u64, i32);

/// Transfers between the host and symmetric memory.
impl Pe {
    /// Copies `data` to the first elements of this PE's copy of `dst`. Kernels that are running are
    /// not waited for.
    ///
    /// # Errors
    /// A slice that is stale, out of range or too short.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u32>(4)?;
    /// pe.write(words.view(1..), &[5, 6])?;
    /// assert_eq!(pe.read(&words)?, [0, 5, 6, 0]);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn write<T: Pod>(&self, dst: impl Symmetric<Element = T>, data: &[T]) -> Result<()> {
        let address = dst.into_view().first(self.id(), data.len(), "dst")?;
        // SAFETY: the range is inside a live allocation of this PE's heap.
        Ok(unsafe { self.device().write(address, bytemuck::cast_slice(data)) }?)
    }

    /// Returns this PE's copy of `src`. Kernels that are running are not waited for.
    ///
    /// # Errors
    /// A slice that is stale or out of range.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u32>(4)?;
    /// assert_eq!(pe.read(words.view(..2))?, [0, 0]);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn read<T: Pod>(&self, src: impl Symmetric<Element = T>) -> Result<Vec<T>> {
        let (address, len) = src.into_view().resolve(self.id())?;
        let mut data = vec![T::zeroed(); len];
        // SAFETY: as in `write`.
        unsafe { self.device().read(address, bytemuck::cast_slice_mut(&mut data)) }?;
        Ok(data)
    }

    /// Returns the copy of `src` that PE `pe` has; as [`get`](crate::Operations::get), which copies
    /// to memory that is there.
    ///
    /// # Errors
    /// A slice that is stale or out of range, or what [`Pe::synchronize`] reports.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u32>(4)?;
    /// let next = (pe.my_pe() + 1) % pe.n_pes();
    /// assert_eq!(pe.get_vec(words.view(..2), next)?, [0, 0]);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn get_vec<T: Pod>(&self, src: impl Symmetric<Element = T>, pe: usize) -> Result<Vec<T>> {
        let (address, len) = src.into_view().resolve(self.id())?;
        let mut data = vec![T::zeroed(); len];
        let _call = self.host_profile().begins(Operation::Get, Subject::Peer(pe), bytes_of::<T>(len));
        self.get_bytes(address, bytemuck::cast_slice_mut(&mut data), pe)?;
        Ok(data)
    }

    /// Orders the operations that the host issues on this PE: those to a peer before the call are
    /// delivered there before those after it. What it issues on streams is not ordered; call
    /// [`quiet`](crate::Operations::quiet) there. Where a network takes part, the order is put on
    /// the PE's own stream, and the call waits for nothing.
    ///
    /// # Errors
    /// The device refuses the launch. What goes wrong later is reported by the next call that
    /// waits.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (data, ready) = (pe.alloc::<i32>(1)?, pe.alloc::<u64>(1)?);
    /// pe.put(&data, &[3], 0)?;
    /// pe.fence()?;
    /// pe.put(&ready, &[1], 0)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn fence(&self) -> Result<()> {
        let _call = self.host_profile().queues(Operation::Fence, Subject::Own, 0);
        // For loads and stores of this thread by `ptr`. Those of earlier calls have ended.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.network().is_none() {
            return Ok(());
        }
        self.queue_quiet_of_numbered(&Stream::OWN)?;
        // SAFETY: the kernel takes no arguments.
        unsafe { self.queue_host_kernel(&Stream::OWN, "oxshmem_host_fence", 1, ()) }
    }

    /// Returns the symmetric memory at `address`, an address of this PE's copy: for programs in
    /// other languages, which keep addresses. If it is not that of `len` elements of one live
    /// allocation, the call that the view is given to reports that, with the nearest allocation.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(4)?;
    /// pe.write(pe.view_at::<u64>(words.address() + 8, 1), &[9])?;
    /// assert_eq!(pe.read(&words)?, [0, 9, 0, 0]);
    /// let error = pe.read(pe.view_at::<u64>(words.address() + 8, 4)).unwrap_err();
    /// assert!(error.to_string().contains("reach beyond the allocation of 32 bytes"));
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn view_at<T>(&self, address: u64, len: usize) -> SymmetricView<'_, T> {
        SymmetricView::by_address(address, len, self.find(address, bytes_of::<T>(len)))
    }

    /// Returns where the copy of `of` that PE `pe` has can be loaded from and stored to, by kernels
    /// and on the `cpu` device by the host too. `None` if that PE is reached over the network.
    ///
    /// # Errors
    /// A slice that is stale or out of range.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(4)?;
    /// assert_eq!(pe.ptr(words.at(0), pe.my_pe())?, Some(words.address() as *mut u64));
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn ptr<T>(&self, of: impl Symmetric<Element = T>, pe: usize) -> Result<Option<*mut T>> {
        let (address, len) = of.into_view().resolve(self.id())?;
        Ok(self.mapped(address, bytes_of::<T>(len), pe).map(|there| there as *mut T))
    }

    /// Copies `bytes` to the symmetric address `target` at `pe`.
    pub(super) fn put_bytes(&self, target: u64, bytes: &[u8], pe: usize) -> Result<()> {
        for (piece, part) in bytes.chunks(STAGING_BYTES).enumerate() {
            self.stage(part)?;
            let to = target + (piece * STAGING_BYTES) as u64;
            let args = (to, self.staging_address()?, part.len() as u64, self.peer(pe));
            // SAFETY: the kernel reads the staging buffer, and checks the target itself.
            unsafe { self.run_host_kernel("oxshmem_host_put", THREADS, &args)? };
        }
        Ok(())
    }

    /// Copies as [`put_bytes`](Self::put_bytes), then updates a signal.
    pub(super) fn put_bytes_signal(
        &self,
        target: u64,
        bytes: &[u8],
        (signal, value, op): Update,
        pe: usize,
    ) -> Result<()> {
        let last = bytes.len().saturating_sub(1) / STAGING_BYTES * STAGING_BYTES;
        let (head, tail) = bytes.split_at(last);
        self.put_bytes(target, head, pe)?;
        self.stage(tail)?;
        let args = (target + last as u64, self.staging_address()?, tail.len() as u64, signal, value, op, self.peer(pe));
        // SAFETY: as in `put_bytes`.
        unsafe { self.run_host_kernel("oxshmem_host_put_signal", THREADS, &args) }
    }

    /// Copies what is at the symmetric address `source` at `pe` to `bytes`.
    pub(super) fn get_bytes(&self, source: u64, bytes: &mut [u8], pe: usize) -> Result<()> {
        for (piece, part) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            let from = source + (piece * STAGING_BYTES) as u64;
            let args = (self.staging_address()?, from, part.len() as u64, self.peer(pe));
            // SAFETY: the kernel writes the staging buffer, and checks the source itself.
            unsafe { self.run_host_kernel("oxshmem_host_get", THREADS, &args)? };
            self.unstage(part)?;
        }
        Ok(())
    }

    /// Returns how many threads copy that many bytes.
    pub(super) fn copy_threads(&self, bytes: u64) -> u32 {
        if self.gpu().is_none() {
            return THREADS;
        }
        let wanted = bytes.div_ceil(BYTES_PER_THREAD).next_multiple_of(u64::from(THREADS));
        u32::try_from(wanted).unwrap_or(u32::MAX).clamp(THREADS, COPY_THREADS)
    }

    /// Queues a put.
    ///
    /// # Safety
    /// The source names that many bytes that the device can read, until the operation has ended.
    pub(super) unsafe fn queue_put(&self, put: Put, stream: &Stream) -> Result<()> {
        let Put { target, source, bytes, pe, .. } = put;
        if bytes != 0
            && let Some(there) = self.mapped(target, bytes, pe)
            // SAFETY: the target is mapped; the source is the caller's promise.
            && unsafe { self.queue_copy(stream, put.copy(there)) }?
        {
            return Ok(());
        }
        let args = (target, source, bytes, self.peer(pe));
        // SAFETY: the kernel reads the source and checks the target itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_put", self.copy_threads(bytes), args) }
    }

    /// Queues puts by copy engines, and another one at the same time; `false`, and nothing is
    /// queued, where that cannot be.
    ///
    /// # Safety
    /// The same as for [`queue_put`](Self::queue_put), and no put touches what another writes.
    pub(super) unsafe fn queue_puts_beside(&self, beside: Put, puts: &[Put], stream: &Stream) -> Result<bool> {
        let copy = |put: &Put| self.mapped(put.target, put.bytes, put.pe).map(|there| put.copy(there));
        let copies: Option<Vec<DeviceCopy>> = puts.iter().map(copy).collect();
        let (Some(beside), Some(copies)) = (copy(&beside), copies) else { return Ok(false) };
        // SAFETY: the targets are mapped; the rest is the caller's promise.
        unsafe { self.queue_copies_beside(stream, beside, &copies) }
    }

    /// Queues a get of `bytes` bytes, given target and source.
    ///
    /// # Safety
    /// The target names that many bytes that the device can write, until the operation has ended.
    pub(super) unsafe fn queue_get(
        &self,
        (target, source): (u64, u64),
        bytes: u64,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        if bytes != 0
            && let Some(there) = self.mapped(source, bytes, pe)
            // SAFETY: the source is mapped; the target is the caller's promise.
            && unsafe { self.queue_copy(stream, transfer(target, there, bytes)) }?
        {
            return Ok(());
        }
        let args = (target, source, bytes, self.peer(pe));
        // SAFETY: the kernel writes the target and checks the source itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_get", self.copy_threads(bytes), args) }
    }

    /// Queues the update of a signal, after what the stream has done before.
    pub(super) fn queue_signal(&self, (signal, value, op): Update, pe: usize, stream: &Stream) -> Result<()> {
        if op == SignalOp::Set as i32 && self.queue_word(signal, value, size_of::<u64>() as u64, pe, stream)? {
            return Ok(());
        }
        // SAFETY: the kernel checks the signal itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_signal", 1, (signal, value, op, self.peer(pe))) }
    }

    /// Queues the store of a word at a PE that is reached by load and store, without a kernel;
    /// `false`, and nothing is queued, where that cannot be.
    pub(super) fn queue_word(&self, target: u64, word: u64, bytes: u64, pe: usize, stream: &Stream) -> Result<bool> {
        let is_word = matches!(bytes, 1 | 2 | 4 | 8) && target.is_multiple_of(bytes);
        let there = if is_word { self.mapped(target, bytes, pe) } else { None };
        // SAFETY: the word is aligned, and mapped until the work of the stream has been waited for.
        there.map_or(Ok(false), |there| unsafe { self.queue_store(stream, there, word, bytes) })
    }

    /// Queues a put of `bytes` bytes and then the update of a signal.
    ///
    /// # Safety
    /// The same as for [`queue_put`](Self::queue_put).
    pub(super) unsafe fn queue_put_signal(
        &self,
        (target, source): (u64, u64),
        bytes: u64,
        (signal, value, op): Update,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        if bytes >= COPY_ENGINE_BYTES
            && let Some(there) = self.mapped(target, bytes, pe)
            // SAFETY: the target is mapped; the source is the caller's promise.
            && unsafe { self.queue_copy(stream, transfer(there, source, bytes)) }?
        {
            return self.queue_signal((signal, value, op), pe, stream);
        }
        let args = (target, source, bytes, signal, value, op, self.peer(pe));
        // SAFETY: the kernel reads the source and checks the rest itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_put_signal", self.copy_threads(bytes), args) }
    }
}

/// Returns the copy that carries out a transfer.
fn transfer(to: u64, from: u64, bytes: u64) -> DeviceCopy {
    DeviceCopy { to, from, bytes, in_graphs: bytes >= COPY_ENGINE_BYTES_IN_GRAPHS }
}

/// Returns the bytes of the host at `at`.
///
/// # Safety
/// `at` names that many readable bytes, or there are none.
pub(super) unsafe fn host_bytes<'a>(at: u64, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }
}

/// Returns the bytes of the host at `at`, to be written.
///
/// # Safety
/// `at` names that many writable bytes, or there are none.
pub(super) unsafe fn host_bytes_mut<'a>(at: u64, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) }
}
