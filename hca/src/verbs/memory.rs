//! Protection domains and registered memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::context::Context;
use super::error::{Result, VerbsError};
use super::sys;
use crate::provider::Access;

/// A protection domain: keys of one are not valid for queue pairs of another.
#[derive(Debug)]
pub struct ProtectionDomain {
    context: Arc<Context>,
    raw: NonNull<sys::ibv_pd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for `Context`.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates one.
    ///
    /// # Errors
    /// The device has no more.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: the context is alive.
        let raw = unsafe { context.library().functions().ibv_alloc_pd(context.raw()) };
        let raw = context.check_pointer("ibv_alloc_pd", raw)?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    /// Returns the device it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything made of the domain holds an `Arc` of it, so nothing is left.
        let status = unsafe { self.context.library().functions().ibv_dealloc_pd(self.raw()) };
        if let Err(error) = self.context.check("ibv_dealloc_pd", status) {
            tracing::warn!(%error, "a protection domain could not be freed");
        }
    }
}

/// Memory that the device may access.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<sys::ibv_mr>,
}

// SAFETY: as for `Context`; the memory is used by the device, not through this object.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers `len` bytes of this process's memory from `address`; work requests name its first
    /// byte `iova`, which must lie at the same place in a page. The device may read it locally in
    /// any case.
    ///
    /// # Safety
    /// The memory stays mapped until this object is dropped, and is used through raw pointers or
    /// atomics only: the device, and every peer that knows its key, reads and writes it as `access`
    /// says.
    ///
    /// # Errors
    /// The limit of locked memory; memory that cannot be pinned.
    pub unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        address: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        let context = &domain.context;
        // The kernel's rule; it would say no more than "invalid argument".
        if !(address.addr() as u64 ^ iova).is_multiple_of(rustix::param::page_size() as u64) {
            let what =
                format!("maps whole pages: address {address:p} and iova {iova:#x} differ in their offset in a page");
            return Err(VerbsError::Unsupported { device: context.name().to_owned(), what });
        }
        // SAFETY: the domain is alive, and the caller vouches for the memory.
        let raw = unsafe {
            context.library().functions().ibv_reg_mr_iova2(
                domain.raw(),
                address.cast(),
                len,
                iova,
                access_flags(access),
            )
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { domain: Arc::clone(domain), raw }),
            None => Err(refused("ibv_reg_mr_iova2", context, len, io::Error::last_os_error())),
        }
    }

    /// Registers `len` bytes of a dma-buf from `offset`: memory of a GPU, for example. Otherwise
    /// like [`register`](Self::register).
    ///
    /// # Safety
    /// What the dma-buf stands for is used by the device, and by every peer that knows the key, as
    /// `access` says.
    ///
    /// # Errors
    /// A library or a driver that cannot do it.
    pub unsafe fn register_dmabuf(
        domain: &Arc<ProtectionDomain>,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        let context = &domain.context;
        let functions = context.library().functions();
        if functions.ibv_reg_dmabuf_mr.is_err() {
            return Err(VerbsError::OldLibrary { function: "ibv_reg_dmabuf_mr (rdma-core 34)" });
        }
        // SAFETY: the domain is alive; the kernel holds the dma-buf from here on.
        let raw = unsafe {
            functions.ibv_reg_dmabuf_mr(
                domain.raw(),
                offset,
                len,
                iova,
                fd.as_raw_fd(),
                access_flags(access).cast_signed(),
            )
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { domain: Arc::clone(domain), raw }),
            None => {
                let source = io::Error::last_os_error();
                if source.raw_os_error() == Some(libc::EOPNOTSUPP) {
                    let what = "cannot register dma-bufs; its driver needs a kernel of 5.12 or newer and a card that supports it";
                    return Err(VerbsError::Unsupported { device: context.name().to_owned(), what: what.to_owned() });
                }
                Err(refused("ibv_reg_dmabuf_mr", context, len, source))
            }
        }
    }

    /// Returns the key for local segments of work requests, in host byte order.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { self.raw.as_ref().lkey }
    }

    /// Returns the key that peers name the memory by, in host byte order.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { self.raw.as_ref().rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let context = &self.domain.context;
        // SAFETY: the region is alive, and used no more.
        let status = unsafe { context.library().functions().ibv_dereg_mr(self.raw.as_ptr()) };
        if let Err(error) = context.check("ibv_dereg_mr", status) {
            tracing::warn!(%error, "memory could not be deregistered");
        }
    }
}

pub(crate) fn access_flags(access: Access) -> u32 {
    [
        // Writes and atomics of others need the local right as well (ibv_reg_mr(3)).
        (access.local_write || access.remote_write || access.remote_atomic, sys::IBV_ACCESS_LOCAL_WRITE),
        (access.remote_write, sys::IBV_ACCESS_REMOTE_WRITE),
        (access.remote_read, sys::IBV_ACCESS_REMOTE_READ),
        (access.remote_atomic, sys::IBV_ACCESS_REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter_map(|(wanted, flag)| wanted.then_some(flag))
    .sum()
}

fn refused(call: &'static str, context: &Context, bytes: usize, source: io::Error) -> VerbsError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (source.raw_os_error(), limit) {
        // The kernel says ENOMEM when the limit is exceeded; without a limit it means what it says.
        (Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM), Some(limit)) => {
            VerbsError::LockedMemory { device: context.name().to_owned(), bytes, limit }
        }
        (Some(libc::EFAULT), _) => VerbsError::call(call, context.name(), source)
            .hint(format!("the {bytes} bytes are not mapped, of a file system whose pages cannot be pinned, or of a GPU without the module nvidia_peermem")),
        _ => VerbsError::call(call, context.name(), source).hint(format!("{bytes} bytes were to be registered")),
    }
}
