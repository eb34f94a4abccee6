//! Registered memory and its keys.

use super::owned::{Guard, Owned, create};
use super::pd::Pd;
use crate::error::{Error, Result};
use crate::prm::mkey;
use crate::provider::{Access, Provider, UmemSource};
use std::sync::Arc;

/// Registered memory: what queues and keys lie in.
#[derive(Debug)]
pub struct Umem {
    guard: Guard,
    id: u32,
    addr: *mut u8,
    len: usize,
}

// SAFETY: the pointer is kept as an address only; the memory behind it is shared with the HCA by
// contract.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Registers memory.
    ///
    /// # Safety
    /// The conditions of [`Provider::reg_umem`]: the memory stays mapped until this object is
    /// closed or dropped, and is used through raw pointers only.
    pub unsafe fn register(provider: &Arc<dyn Provider>, source: UmemSource<'_>, access: Access) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise is the same.
        let id = unsafe { provider.reg_umem(source, access) }?;
        let (addr, len) = source.range();
        Ok(Arc::new(Self { guard: Guard::new(provider, Owned::Umem(id)), id, addr, len }))
    }

    /// Returns its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns its length in bytes.
    #[allow(clippy::len_without_is_empty)] // empty memory cannot be registered
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns where it is mapped.
    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Deregisters it now. Fails while keys and queues use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// What a memory key covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MkeyAttributes {
    /// Start in the umem, bytes.
    pub umem_offset: u64,
    /// Length, bytes.
    pub len: u64,
    /// The address that WQEs use for the first byte (iova).
    pub start_addr: u64,
    /// Rights; local reads are always allowed.
    pub access: Access,
    /// Whether writes may pass each other, where the HCA can.
    pub relaxed_ordering: bool,
    /// The low byte of the key (PRM: mkey_7_0), for software to tell keys apart.
    pub variant: u8,
}

/// A memory key.
#[derive(Debug)]
pub struct Mkey {
    guard: Guard,
    lkey: u32,
    rkey: u32,
    _pd: Arc<Pd>,
    _umem: Option<Arc<Umem>>,
}

/// The low byte of keys where nothing has to be told apart.
pub const KEY_VARIANT: u8 = 0x5a;
/// Page size of translation tables: 4 KiB.
const LOG_PAGE: u8 = 12;

impl Mkey {
    /// Registers memory in the way that the HCA prefers: by its library, or as umem with a key.
    /// Work requests name its first byte `start_addr`. `umem` is a registration of the same memory,
    /// if there is one already. Writes do not pass each other.
    ///
    /// # Safety
    /// The conditions of [`Umem::register`].
    pub unsafe fn register(
        pd: &Arc<Pd>,
        source: UmemSource<'_>,
        umem: Option<&Arc<Umem>>,
        start_addr: u64,
        access: Access,
    ) -> Result<Self> {
        let provider = pd.provider();
        // SAFETY: the caller's promise is the same.
        if let Some(key) = unsafe { provider.reg_key(pd.pdn(), source, start_addr, access) }? {
            let guard = Guard::new(provider, Owned::Key(key.id));
            return Ok(Self { guard, lkey: key.lkey, rkey: key.rkey, _pd: Arc::clone(pd), _umem: None });
        }
        let umem = match umem {
            Some(umem) => Arc::clone(umem),
            // SAFETY: as above.
            None => unsafe { Umem::register(provider, source, access) }?,
        };
        let len = umem.len as u64;
        let attributes =
            MkeyAttributes { umem_offset: 0, len, start_addr, access, relaxed_ordering: false, variant: KEY_VARIANT };
        Self::create(pd, &umem, &attributes)
    }

    /// Creates one (CREATE_MKEY).
    pub fn create(pd: &Arc<Pd>, umem: &Arc<Umem>, attributes: &MkeyAttributes) -> Result<Self> {
        let access = attributes.access;
        // A translation entry has 8 bytes, an octoword 16.
        let pages = attributes.len.div_ceil(1 << LOG_PAGE) + 1;
        let octowords = u32::try_from(pages.div_ceil(2)).map_err(|_| {
            Error::argument("len", attributes.len, "too many pages for one key; register the memory in several pieces")
        })?;
        let (guard, out) = create(
            pd.provider(),
            &mkey::CreateMkey {
                mkey_umem_valid: true,
                translations_octword_actual_size: octowords,
                mkey_umem_id: umem.id,
                mkey_umem_offset: attributes.umem_offset,
                mkc: mkey::MkeyContext {
                    a: access.remote_atomic,
                    rw: access.remote_write,
                    rr: access.remote_read,
                    lw: access.local_write,
                    lr: true,
                    relaxed_ordering_write: attributes.relaxed_ordering,
                    relaxed_ordering_read: attributes.relaxed_ordering,
                    access_mode_1_0: mkey::ACCESS_MODE_MTT,
                    qpn: mkey::ANY_QP,
                    mkey_7_0: attributes.variant,
                    pd: pd.pdn(),
                    start_addr: attributes.start_addr,
                    len: attributes.len,
                    translations_octword_size: octowords,
                    log_page_size: LOG_PAGE,
                    ..mkey::MkeyContext::default()
                },
            },
        )?;
        let key = out.mkey_index << 8 | u32::from(attributes.variant);
        Ok(Self { guard, lkey: key, rkey: key, _pd: Arc::clone(pd), _umem: Some(Arc::clone(umem)) })
    }

    /// Returns the key for data segments, in host byte order.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Returns the key for remote address segments, in host byte order.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Destroys it now.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}
