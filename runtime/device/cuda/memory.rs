//! GPU memory that other processes can map, and copies between it and the host.
//!
//! CUDA driver API, "Virtual Memory Management": addresses are reserved, memory is created apart
//! from them and exported as a file descriptor, and every process that has the descriptor can map
//! it. The descriptor keeps the memory, as a memfd would.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUmemAccess_flags,
    CUmemAccessDesc, CUstream,
};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::driver::{DriverError, driver};
use super::handle::{Handle, length, location};
use super::raw_stream;
use super::stream::Stream;
use crate::config::ByteSize;
use crate::device::error::DeviceError;
use crate::device::interface::{AddressSpace, HostMemory, KeptAddresses, Memory};

/// Copies go through a pinned buffer of this size, piece by piece.
const BUFFER_BYTES: usize = 1 << 20;

/// Allocates zeroed memory of the GPU; `bytes` is a multiple of the granularity.
pub(super) fn allocate(stream: &Arc<Stream>, copies: &Copies, bytes: u64) -> Result<Memory, DeviceError> {
    let gpu = stream.context().gpu;
    let space = Reservation::new(Arc::clone(stream), bytes, 0)?;
    let _entered = stream.enter()?;
    let handle = Handle::create(gpu, bytes).map_err(|error| {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers. If it fails too, the numbers stay 0, and the error is the
        // first one's.
        let _ = unsafe { driver!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) };
        let what = format!(
            "cannot allocate {} of memory on GPU {}, which has {} MiB free of {} MiB; allocate less, or end what else uses this GPU",
            ByteSize(bytes),
            gpu.ordinal,
            free >> 20,
            total >> 20
        );
        stream.error(what, error)
    })?;
    // The driver does not promise zeros.
    space.map_handle(&handle, 0, bytes)?;
    // SAFETY: it was just mapped.
    if let Err(error) = unsafe { copies.fill(space.base, 0, bytes) } {
        if matches!(error, DeviceError::StillRunning { .. }) {
            // The fill goes on in this mapping.
            std::mem::forget(space);
        }
        return Err(error);
    }
    // Only the fill has used this mapping, so it can go while kernels run.
    space.unmap(0, bytes)?;
    let descriptor =
        handle.export().map_err(|error| stream.error("cannot export GPU memory as a file descriptor", error))?;
    // Programs that this one starts have no use for it.
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(|errno| DeviceError::Memory {
        what: "cannot set up the descriptor of GPU memory",
        bytes,
        source: errno.into(),
    })?;
    Ok(Memory { descriptor, handle: Some(handle), _pages: None })
}

/// Addresses that the driver has reserved. It needs no context to take them back.
#[derive(Debug)]
struct Addresses {
    base: u64,
    bytes: u64,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: `Reservation::new` reserved them, and nothing is mapped there any more.
        if let Err(error) = unsafe { driver!(cuMemAddressFree(self.base, length(self.bytes))) } {
            tracing::debug!(%error, "cannot free GPU addresses");
        }
    }
}

/// Addresses for memory of this and other GPUs.
#[derive(Debug)]
pub(super) struct Reservation {
    stream: Arc<Stream>,
    base: u64,
    bytes: u64,
    /// `None` once they are another value's.
    addresses: Option<Addresses>,
    /// Address and length of each mapping.
    mapped: Mutex<Vec<(u64, u64)>>,
}

impl Reservation {
    /// Reserves addresses of which the first is a multiple of `align`, a power of two and at least
    /// the granularity of memory, or 0 for that granularity.
    pub fn new(stream: Arc<Stream>, bytes: u64, align: u64) -> Result<Self, DeviceError> {
        let mut base = 0;
        {
            let _entered = stream.enter()?;
            // SAFETY: writes one address.
            unsafe { driver!(cuMemAddressReserve(&raw mut base, length(bytes), length(align), 0, 0)) }.map_err(
                |error| {
                    let what = format!("cannot reserve {} of GPU addresses; lower OXSHMEM_HEAP_MAX", ByteSize(bytes));
                    stream.error(what, error)
                },
            )?;
        }
        let addresses = Some(Addresses { base, bytes });
        Ok(Self { stream, base, bytes, addresses, mapped: Mutex::default() })
    }

    /// Takes away all that is mapped. Returns whether nothing is any more.
    fn clear(&self) -> bool {
        if self.mapped().is_empty() {
            return true;
        }
        if !self.stream.idle() {
            tracing::error!(base = self.base, "a kernel does not end; its memory is kept until the process ends");
            return false;
        }
        let Ok(_entered) = self.stream.enter() else { return false };
        for (at, bytes) in self.mapped().drain(..) {
            // SAFETY: it is mapped, and no kernel is left that uses it.
            if let Err(error) = unsafe { driver!(cuMemUnmap(at, length(bytes))) } {
                tracing::debug!(%error, "cannot unmap GPU memory");
            }
        }
        true
    }

    /// Returns the addresses, with nothing mapped there; `None` if they are another value's
    /// already, or cannot be cleared, and stay as they are until the process ends.
    fn take_cleared(&mut self) -> Option<Addresses> {
        let addresses = self.addresses.take()?;
        if !self.clear() {
            std::mem::forget(addresses);
            return None;
        }
        Some(addresses)
    }

    fn mapped(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the handle. The context must be current.
    fn map_handle(&self, handle: &Handle, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        assert!(offset + bytes <= self.bytes, "mapping after the end of a reservation");
        let at = self.base + offset;
        let gpu = self.stream.context().gpu;
        // SAFETY: the range is inside this object's reservation; the driver refuses one that is
        // mapped already.
        unsafe { driver!(cuMemMap(at, length(bytes), 0, handle.0, 0)) }
            .map_err(|error| self.stream.error(format!("cannot map {} of GPU memory", ByteSize(bytes)), error))?;
        let access =
            CUmemAccessDesc { location: location(gpu), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: the range was just mapped.
        if let Err(error) = unsafe { driver!(cuMemSetAccess(at, length(bytes), &raw const access, 1)) } {
            // SAFETY: as above; nothing can use it yet.
            let unmapped = unsafe { driver!(cuMemUnmap(at, length(bytes))) };
            if let Err(error) = unmapped {
                tracing::debug!(%error, "cannot unmap GPU memory");
            }
            let what = format!("cannot give GPU {} access to {} of mapped memory", gpu.ordinal, ByteSize(bytes));
            return Err(self.stream.error(what, error));
        }
        self.mapped().push((at, bytes));
        Ok(())
    }
}

impl AddressSpace for Reservation {
    fn base(&self) -> u64 {
        self.base
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        let handle = Handle::import(memory).map_err(|error| {
            let what = format!(
                "cannot import {} of GPU memory; if it is another GPU's, this process has to see that GPU too (CUDA_VISIBLE_DEVICES)",
                ByteSize(bytes)
            );
            self.stream.error(what, error)
        })?;
        self.map_handle(&handle, offset, bytes)
    }

    fn map_own(&self, memory: &Memory, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        // What is no GPU's is refused there.
        let Some(handle) = &memory.handle else { return self.map(memory.as_fd(), offset, bytes) };
        let _entered = self.stream.enter()?;
        self.map_handle(handle, offset, bytes)
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        let at = self.base + offset;
        // SAFETY: it is mapped, and nothing uses it any more.
        unsafe { driver!(cuMemUnmap(at, length(bytes))) }
            .map_err(|error| self.stream.error(format!("cannot unmap {} of GPU memory", ByteSize(bytes)), error))?;
        self.mapped().retain(|mapping| *mapping != (at, bytes));
        Ok(())
    }

    fn retire(&mut self) -> Option<KeptAddresses> {
        Some(Box::new(self.take_cleared()?))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        drop(self.take_cleared());
    }
}

/// Page-locked host memory: copies to and from it are done by the GPU's copy engines alone, also
/// while kernels run.
#[derive(Debug)]
pub(super) struct Pinned {
    stream: Arc<Stream>,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, used under the owner's rules.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// Kernels of every context reach page-locked memory at the host's address, since the driver's
/// address space is unified.
impl HostMemory for Pinned {
    fn address(&self) -> *mut u8 {
        self.at
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Pinned {
    pub fn new(stream: Arc<Stream>, bytes: usize) -> Result<Self, DeviceError> {
        let mut at = std::ptr::null_mut();
        {
            let _entered = stream.enter()?;
            // SAFETY: writes one pointer.
            unsafe { driver!(cuMemHostAlloc(&raw mut at, bytes, CU_MEMHOSTALLOC_PORTABLE)) }
                .map_err(|error| stream.error(format!("cannot allocate {bytes} bytes of page-locked memory"), error))?;
        }
        Ok(Self { stream, at: at.cast(), bytes })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Freeing waits for the GPU.
        if !self.stream.idle() {
            return;
        }
        let Ok(_entered) = self.stream.enter() else { return };
        // SAFETY: `new` allocated it, and no copy is under way.
        if let Err(error) = unsafe { driver!(cuMemFreeHost(self.at.cast())) } {
            tracing::debug!(%error, "cannot free page-locked memory");
        }
    }
}

/// Memory of the host that was page-locked after it was allocated. The driver takes such pages for
/// a card's registers too (`CU_MEMHOSTREGISTER_IOMEMORY`), and refuses its own.
#[derive(Debug)]
pub(super) struct Locked {
    stream: Arc<Stream>,
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: plain memory, used under the owner's rules.
unsafe impl Send for Locked {}
// SAFETY: as above.
unsafe impl Sync for Locked {}

impl Locked {
    /// Allocates page-locked memory of the host that is all zeros.
    pub fn new(stream: Arc<Stream>, bytes: u64) -> Result<Self, DeviceError> {
        let bytes = length(bytes).next_multiple_of(rustix::param::page_size());
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) }.map_err(|errno| {
            let what = "cannot allocate memory of the host";
            DeviceError::Memory { what, bytes: bytes as u64, source: errno.into() }
        })?;
        let failed = |error| stream.error(format!("cannot page-lock {bytes} bytes"), error);
        let entered = stream.enter()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: it was just mapped.
        if let Err(error) = unsafe { driver!(cuMemHostRegister_v2(at, bytes, flags)) } {
            // SAFETY: nothing else has it.
            let _ = unsafe { munmap(at, bytes) };
            return Err(failed(error));
        }
        let memory = Self { stream: Arc::clone(&stream), at, bytes };
        let mut seen = 0;
        // SAFETY: writes one address.
        unsafe { driver!(cuMemHostGetDevicePointer_v2(&raw mut seen, at, 0)) }.map_err(failed)?;
        drop(entered);
        if seen != at.addr() as u64 {
            let reason = "kernels do not reach page-locked memory at the host's address";
            return Err(DeviceError::Unsupported { device: "cuda", reason });
        }
        Ok(memory)
    }
}

impl HostMemory for Locked {
    fn address(&self) -> *mut u8 {
        self.at.cast()
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // No kernel may still use it.
        if !self.stream.idle() {
            return;
        }
        let Ok(_entered) = self.stream.enter() else { return };
        // SAFETY: `new` page-locked it.
        if let Err(error) = unsafe { driver!(cuMemHostUnregister(self.at)) } {
            tracing::debug!(%error, "cannot unlock pages");
            return;
        }
        // SAFETY: this object's mapping, which is no longer used.
        if let Err(error) = unsafe { munmap(self.at, self.bytes) } {
            tracing::debug!(%error, "cannot unmap memory");
        }
    }
}

/// Copies between host and GPU, on a stream of their own: they neither wait for kernels nor delay
/// them.
#[derive(Debug)]
pub(super) struct Copies {
    stream: Arc<Stream>,
    channel: Mutex<Channel>,
}

#[derive(Debug)]
struct Channel {
    raw: CUstream,
    /// Kept until the process ends if a copy that uses it does not end.
    buffer: ManuallyDrop<Pinned>,
    /// A copy did not end by its deadline, and may still use the buffer.
    late: bool,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Channel {}

impl Copies {
    pub fn new(stream: Arc<Stream>) -> Result<Self, DeviceError> {
        let buffer = Pinned::new(Arc::clone(&stream), BUFFER_BYTES)?;
        let raw =
            raw_stream::create(stream.context()).map_err(|error| stream.error("cannot create a stream", error))?;
        let buffer = ManuallyDrop::new(buffer);
        Ok(Self { stream, channel: Mutex::new(Channel { raw, buffer, late: false }) })
    }

    fn locked(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the channel, when earlier copies have ended. The context must be current.
    fn channel(&self) -> Result<MutexGuard<'_, Channel>, DeviceError> {
        let mut channel = self.locked();
        if channel.late {
            self.end(&mut channel)?;
        }
        Ok(channel)
    }

    /// Waits for what is on the channel. Copies wait for no kernels, but the driver can hold a
    /// whole context back, for example while it loads a kernel. The context must be current.
    ///
    /// # Errors
    /// Fails like [`Stream::wait`].
    fn end(&self, channel: &mut Channel) -> Result<(), DeviceError> {
        // SAFETY: the stream lives as long as `self`.
        let ended = unsafe { self.stream.wait_stream(channel.raw) };
        channel.late = matches!(ended, Err(DeviceError::StillRunning { .. }));
        ended
    }

    fn error(&self, error: DriverError) -> DeviceError {
        self.stream.error("cannot copy between host and GPU", error)
    }

    /// Writes `bytes` from `to` on.
    ///
    /// # Safety
    /// `to` names mapped memory of that length.
    pub unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        let mut channel = self.channel()?;
        for (index, part) in bytes.chunks(BUFFER_BYTES).enumerate() {
            let at = to + (index * BUFFER_BYTES) as u64;
            // SAFETY: the part fits the buffer, which is not in use by another copy; the target is
            // the caller's promise.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), channel.buffer.as_ptr(), part.len());
                driver!(cuMemcpyHtoDAsync_v2(at, channel.buffer.as_ptr().cast(), part.len(), channel.raw))
            }
            .map_err(|error| self.error(error))?;
            self.end(&mut channel)?;
        }
        Ok(())
    }

    /// Reads `bytes` from `from` on.
    ///
    /// # Safety
    /// `from` names mapped memory of that length.
    pub unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        let mut channel = self.channel()?;
        for (index, part) in bytes.chunks_mut(BUFFER_BYTES).enumerate() {
            let at = from + (index * BUFFER_BYTES) as u64;
            // SAFETY: as in `write`, in the other direction.
            unsafe { driver!(cuMemcpyDtoHAsync_v2(channel.buffer.as_ptr().cast(), at, part.len(), channel.raw)) }
                .map_err(|error| self.error(error))?;
            self.end(&mut channel)?;
            // SAFETY: the copy has ended, and the part fits the buffer.
            unsafe { std::ptr::copy_nonoverlapping(channel.buffer.as_ptr(), part.as_mut_ptr(), part.len()) };
        }
        Ok(())
    }

    /// Sets `bytes` bytes from `at` on to `value`.
    ///
    /// # Safety
    /// `at` names mapped memory of that length.
    pub unsafe fn fill(&self, at: u64, value: u8, bytes: u64) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        let mut channel = self.channel()?;
        // SAFETY: the caller's promise.
        unsafe { driver!(cuMemsetD8Async(at, value, length(bytes), channel.raw)) }
            .map_err(|error| self.error(error))?;
        self.end(&mut channel)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if !self.stream.idle() {
            return;
        }
        let mut channel = self.locked();
        if !channel.late {
            raw_stream::destroy(self.stream.context(), channel.raw);
            // SAFETY: it is not used again, and no copy uses it.
            unsafe { ManuallyDrop::drop(&mut channel.buffer) };
        }
    }
}
