//! Typed objects over a [`Provider`]: they build the command bytes, keep what a command needs alive, and destroy what they own.
//!
//! An object holds an [`Arc`] of each object it depends on, so a queue pair outlives neither its completion queue nor the memory
//! its queues lie in, in whatever order variables are dropped. `close` destroys early; it and dropping are idempotent.

use crate::error::{Error, Result};
use crate::prm::qpc::{self, QpContext, QpState};
use crate::prm::{Command, caps, cq, mkey, pd, qp};
use crate::provider::{Access, Gid, HcaInfo, LinkLayer, Mtu, ObjectHandle, PortInfo, Provider, UarPage, UmemSource};
use crate::route::{Route, route};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest message of a QP, log2 of bytes: 1 GiB.
pub const LOG_MESSAGE_MAX: u8 = 30;

/// Destroys something once.
#[derive(Debug)]
struct Guard {
    provider: Arc<dyn Provider>,
    what: Owned,
    open: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
enum Owned {
    Object(ObjectHandle),
    Uar(u32),
    Umem(u32),
    Key(u64),
}

impl Guard {
    fn new(provider: &Arc<dyn Provider>, what: Owned) -> Self {
        Self { provider: Arc::clone(provider), what, open: AtomicBool::new(true) }
    }

    fn close(&self) -> Result<()> {
        if !self.open.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let result = match self.what {
            Owned::Object(handle) => self.provider.obj_destroy(handle),
            Owned::Uar(page) => self.provider.free_uar(page),
            Owned::Umem(id) => self.provider.dereg_umem(id),
            Owned::Key(id) => self.provider.dereg_key(id),
        };
        if result.is_err() {
            // Still there, so a later attempt may succeed.
            self.open.store(true, Ordering::Release);
        }
        result
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(what = ?self.what, %error, "an HCA object could not be destroyed");
        }
    }
}

fn create<C: Command>(provider: &Arc<dyn Provider>, command: &C) -> Result<(Guard, C::Output)> {
    let mut output = vec![0; C::OUT_LEN];
    let handle = provider.obj_create(&command.encode(), &mut output)?;
    Ok((Guard::new(provider, Owned::Object(handle)), C::decode_output(&output)))
}

fn modify<C: Command>(guard: &Guard, command: &C) -> Result<()> {
    let Owned::Object(handle) = guard.what else { return Ok(()) };
    guard.provider.obj_modify(handle, &command.encode(), &mut vec![0; C::OUT_LEN])
}

/// Read the general and the atomic capabilities.
pub fn query_caps(provider: &dyn Provider) -> Result<(caps::GeneralCaps, caps::AtomicCaps)> {
    let mut output = vec![0; caps::QueryHcaCap::OUT_LEN];
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::GENERAL_CURRENT }.encode(), &mut output)?;
    let general = caps::QueryHcaCap::decode_output(&output).caps;
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::ATOMIC_CURRENT }.encode(), &mut output)?;
    Ok((general, caps::AtomicCapsOut::decode(&output).caps))
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    guard: Guard,
    pdn: u32,
}

impl Pd {
    /// Allocate one (ALLOC_PD).
    pub fn alloc(provider: &Arc<dyn Provider>) -> Result<Arc<Self>> {
        let (guard, out) = create(provider, &pd::AllocPd {})?;
        Ok(Arc::new(Self { guard, pdn: out.pd }))
    }

    /// Its number.
    pub fn pdn(&self) -> u32 {
        self.pdn
    }

    /// The HCA it belongs to.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.guard.provider
    }

    /// Free it now. Fails while keys and QPs use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// A page of doorbell registers.
#[derive(Debug)]
pub struct Uar {
    guard: Guard,
    page: UarPage,
}

impl Uar {
    /// Allocate one.
    pub fn alloc(provider: &Arc<dyn Provider>) -> Result<Arc<Self>> {
        let page = provider.alloc_uar()?;
        Ok(Arc::new(Self { guard: Guard::new(provider, Owned::Uar(page.page_id)), page }))
    }

    /// Its number.
    pub fn page_id(&self) -> u32 {
        self.page.page_id
    }

    /// How many registers may be used.
    pub fn registers(&self) -> usize {
        self.page.registers.len()
    }

    /// The page as the HCA gave it.
    pub fn page(&self) -> &UarPage {
        &self.page
    }

    /// The address of register `index`, valid as long as this object.
    pub fn register(&self, index: usize) -> Option<*mut u64> {
        let offset = *self.page.registers.get(index)?;
        Some(self.page.base.wrapping_add(offset).cast())
    }

    /// Free it now. Fails while CQs and QPs use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// Pages of a card that the queue pairs of a process share. More of them would not ring faster, and each has to be mapped for a GPU.
const MAX_SHARED_PAGES: usize = 16;

/// A doorbell register for a queue pair.
#[derive(Debug, Clone)]
pub struct Doorbell {
    /// Its page, which the queue pair has to name.
    pub uar: Arc<Uar>,
    /// Its offset in the page, bytes.
    pub offset: usize,
}

impl Doorbell {
    /// Where this process has mapped the register.
    pub fn address(&self) -> *mut u64 {
        self.uar.page.base.wrapping_add(self.offset).cast()
    }
}

/// Gives each queue pair a doorbell register: one of its own, or on a card one of a few that are shared.
#[derive(Debug)]
pub struct Doorbells {
    provider: Arc<dyn Provider>,
    pages: Vec<Arc<Uar>>,
    given: usize,
}

impl Doorbells {
    /// None so far.
    pub fn new(provider: &Arc<dyn Provider>) -> Self {
        Self { provider: Arc::clone(provider), pages: Vec::new(), given: 0 }
    }

    /// The register for the next queue pair.
    pub fn give(&mut self) -> Result<Doorbell> {
        let room: usize = self.pages.iter().map(|page| page.registers()).sum();
        let shared = self.pages.first().is_some_and(|page| page.page.device_registers);
        if self.given >= room && !(shared && self.pages.len() >= MAX_SHARED_PAGES) {
            match Uar::alloc(&self.provider) {
                Ok(page) if page.registers() == 0 => {
                    return Err(Error::argument("uar", page.page_id(), "a page without doorbell registers"));
                }
                Ok(page) => self.pages.push(page),
                // A card that gives no more pages has given enough.
                Err(error) if shared => tracing::debug!(%error, pages = self.pages.len(), "doorbell pages are shared"),
                Err(error) => return Err(error),
            }
        }
        let room: usize = self.pages.iter().map(|page| page.registers()).sum();
        let mut index = self.given % room;
        self.given += 1;
        for page in &self.pages {
            match page.page.registers.get(index) {
                Some(offset) => return Ok(Doorbell { uar: Arc::clone(page), offset: *offset }),
                None => index -= page.registers(),
            }
        }
        Err(Error::argument("uar", self.given, "no doorbell register"))
    }
}

/// Registered memory: what queues and keys lie in.
#[derive(Debug)]
pub struct Umem {
    guard: Guard,
    id: u32,
    addr: *mut u8,
    len: usize,
}

// SAFETY: the pointer is kept as an address only; the memory behind it is shared with the HCA by contract.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Register memory.
    ///
    /// # Safety
    /// As for [`Provider::reg_umem`]: the memory stays mapped until this object is closed or dropped, and is used through raw
    /// pointers only.
    pub unsafe fn register(provider: &Arc<dyn Provider>, source: UmemSource<'_>, access: Access) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise is the same.
        let id = unsafe { provider.reg_umem(source, access) }?;
        let (addr, len) = source.range();
        Ok(Arc::new(Self { guard: Guard::new(provider, Owned::Umem(id)), id, addr, len }))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)] // empty memory cannot be registered
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it is mapped.
    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Deregister it now. Fails while keys and queues use it.
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
    /// Register memory in the way that the HCA prefers: by its library, or as umem with a key. Work requests name its first byte
    /// `start_addr`. `umem` is a registration of the same memory, if there is one already. Writes do not pass each other.
    ///
    /// # Safety
    /// As for [`Umem::register`].
    pub unsafe fn register(
        pd: &Arc<Pd>,
        source: UmemSource<'_>,
        umem: Option<&Arc<Umem>>,
        start_addr: u64,
        access: Access,
    ) -> Result<Self> {
        let provider = &pd.guard.provider;
        // SAFETY: the caller's promise is the same.
        if let Some(key) = unsafe { provider.reg_key(pd.pdn, source, start_addr, access) }? {
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

    /// Create one (CREATE_MKEY).
    pub fn create(pd: &Arc<Pd>, umem: &Arc<Umem>, attributes: &MkeyAttributes) -> Result<Self> {
        let access = attributes.access;
        // A translation entry has 8 bytes, an octoword 16.
        let pages = attributes.len.div_ceil(1 << LOG_PAGE) + 1;
        let octowords = u32::try_from(pages.div_ceil(2)).map_err(|_| {
            Error::argument("len", attributes.len, "too many pages for one key; register the memory in several pieces")
        })?;
        let (guard, out) = create(
            &pd.guard.provider,
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
                    pd: pd.pdn,
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

    /// The key for data segments, in host byte order.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for remote address segments, in host byte order.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Destroy it now.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// Where a completion queue lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqAttributes {
    /// log2 of the number of 64-byte entries. A collapsed queue uses the first alone, but hardware wants room for all.
    pub log_size: u8,
    /// Start of the queue in its umem, bytes; a multiple of 64. The caller fills it with
    /// [`INITIAL_BYTE`](crate::wire::cqe::INITIAL_BYTE) before.
    pub umem_offset: u64,
    /// Start of the 8-byte doorbell record in the same umem; a multiple of 8.
    pub dbr_offset: u64,
    /// Whether every CQE is written to the first entry, and overrun is ignored.
    pub collapsed: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    guard: Guard,
    cqn: u32,
    _uar: Arc<Uar>,
    _umem: Arc<Umem>,
}

impl Cq {
    /// Create one (CREATE_CQ).
    pub fn create(uar: &Arc<Uar>, umem: &Arc<Umem>, attributes: &CqAttributes) -> Result<Arc<Self>> {
        let (guard, out) = create(
            &uar.guard.provider,
            &cq::CreateCq {
                cq_umem_offset: attributes.umem_offset,
                cq_umem_id: umem.id,
                cq_umem_valid: true,
                cqc: cq::CqContext {
                    dbr_umem_valid: true,
                    cqe_sz: cq::CQE_SIZE_64,
                    cc: attributes.collapsed,
                    oi: attributes.collapsed,
                    dbr_umem_id: umem.id,
                    log_cq_size: attributes.log_size,
                    uar_page: uar.page_id(),
                    c_eqn: uar.guard.provider.info().event_queue,
                    dbr_addr: attributes.dbr_offset,
                    ..cq::CqContext::default()
                },
            },
        )?;
        Ok(Arc::new(Self { guard, cqn: out.cqn, _uar: Arc::clone(uar), _umem: Arc::clone(umem) }))
    }

    /// Its number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Destroy it now. Fails while QPs use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// Where a queue pair's send queue lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpGeometry {
    /// log2 of the number of 64-byte blocks.
    pub log_sq_size: u8,
    /// Start of the send queue in the umem, bytes; a multiple of 64.
    pub sq_offset: u64,
    /// Start of the 8-byte doorbell record in the umem; a multiple of 8. The send counter is
    /// [`SEND_OFFSET`](crate::wire::dbr::SEND_OFFSET) further. The caller fills it with zeros before.
    pub dbr_offset: u64,
    /// What CQEs name this QP by, 24 bits.
    pub user_index: u32,
}

/// How a queue pair is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttributes {
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Path MTU; cut to the active MTU of the port.
    pub mtu: Mtu,
    /// Service level (InfiniBand) or priority (RoCE), 0..=15 or 0..=7.
    pub sl: u8,
    /// Traffic class; on RoCE its upper six bits are the DSCP.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// UDP source port on RoCE, 0xc000 and up; `None` derives one from both QP numbers, which spreads QPs over paths.
    pub udp_sport: Option<u16>,
    /// A retry comes after 4.096 us x 2^this, 1..=31.
    pub ack_timeout: u8,
    /// Retries, 0..=7.
    pub retry_count: u8,
    /// Retries when the receiver is not ready, 0..=7; 7 is for ever.
    pub rnr_retry: u8,
    /// Receiver-not-ready timer, 0..=31.
    pub min_rnr_timer: u8,
    /// log2 of outstanding reads and atomics, in either direction.
    pub log_max_rd_atomic: u8,
    /// First packet sequence number, the same at both ends, 24 bits.
    pub first_psn: u32,
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self {
            pkey_index: 0,
            mtu: Mtu::B4096,
            sl: 0,
            traffic_class: 0,
            hop_limit: 255,
            udp_sport: None,
            // 268 ms, times 8 tries: a peer that is gone is reported after about 2 s.
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            log_max_rd_atomic: 4,
            first_psn: 0,
        }
    }
}

/// What a peer needs to know to connect to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAddress {
    /// QP number.
    pub qpn: u32,
    /// GID of the port.
    pub gid: Gid,
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// Partition key that the QP uses.
    pub pkey: u16,
    /// MAC address of the port; zeros on InfiniBand.
    pub mac: [u8; 6],
    /// Active MTU of the port.
    pub mtu: Mtu,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
}

impl QpAddress {
    /// The length of the encoded form.
    pub const BYTES: usize = 34;
    const VERSION: u8 = 2;

    /// As plain bytes, for the bootstrap to exchange: version, link layer, MTU, 0, LID, MAC, QP number, GID, partition key;
    /// little-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = Self::VERSION;
        bytes[1] = u8::from(self.link_layer == LinkLayer::Ethernet);
        bytes[2] = self.mtu as u8;
        bytes[4..6].copy_from_slice(&self.lid.to_le_bytes());
        bytes[6..12].copy_from_slice(&self.mac);
        bytes[12..16].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.gid.0);
        bytes[32..].copy_from_slice(&self.pkey.to_le_bytes());
        bytes
    }

    /// From the encoded form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |detail: String| Error::Protocol { what: "QP address of a peer".into(), detail };
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| wrong(format!("{} bytes, expected {}", bytes.len(), Self::BYTES)))?;
        if bytes[0] != Self::VERSION {
            return Err(wrong(format!(
                "version {}, expected {}; do all PEs run the same release?",
                bytes[0],
                Self::VERSION
            )));
        }
        let link_layer = match bytes[1] {
            0 => LinkLayer::InfiniBand,
            1 => LinkLayer::Ethernet,
            other => return Err(wrong(format!("link layer {other}"))),
        };
        let mtu = Mtu::from_u8(bytes[2]).ok_or_else(|| wrong(format!("MTU {}", bytes[2])))?;
        let qpn = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
        if bytes[3] != 0 || qpn >> 24 != 0 {
            return Err(wrong(format!("reserved byte {} or QP number {qpn:#x}", bytes[3])));
        }
        Ok(Self {
            qpn,
            gid: Gid(std::array::from_fn(|i| bytes[16 + i])),
            lid: u16::from_le_bytes([bytes[4], bytes[5]]),
            pkey: u16::from_le_bytes([bytes[32], bytes[33]]),
            mac: std::array::from_fn(|i| bytes[6 + i]),
            mtu,
            link_layer,
        })
    }
}

/// What QUERY_QP says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpStatus {
    /// State.
    pub state: QpState,
    /// Blocks that the HCA has executed, modulo 2^16.
    pub executed: u16,
    /// Blocks that the doorbell record covered, modulo 2^16.
    pub covered: u16,
    /// The whole context.
    pub context: QpContext,
}

/// A reliably connected queue pair with a send queue only.
#[derive(Debug)]
pub struct Qp {
    guard: Guard,
    qpn: u32,
    _pd: Arc<Pd>,
    _cq: Arc<Cq>,
    _uar: Arc<Uar>,
    _umem: Arc<Umem>,
}

impl Qp {
    /// Create one (CREATE_QP), in state RST. Send queue and doorbell record lie in `umem`, completions go to `cq`.
    pub fn create(pd: &Arc<Pd>, cq: &Arc<Cq>, uar: &Arc<Uar>, umem: &Arc<Umem>, geometry: &QpGeometry) -> Result<Self> {
        if geometry.user_index >> 24 != 0 {
            return Err(Error::argument("user_index", geometry.user_index, "has 24 bits"));
        }
        if geometry.log_sq_size > 15 {
            return Err(Error::argument(
                "log_sq_size",
                geometry.log_sq_size,
                "completion counters have 16 bits: at most 15",
            ));
        }
        let (guard, out) = create(
            &pd.guard.provider,
            &qp::CreateQp {
                wq_umem_offset: geometry.sq_offset,
                wq_umem_id: umem.id,
                wq_umem_valid: true,
                qpc: QpContext {
                    st: qpc::SERVICE_RC,
                    pm_state: qpc::MIGRATED,
                    pd: pd.pdn,
                    log_sq_size: geometry.log_sq_size,
                    uar_page: uar.page_id(),
                    user_index: geometry.user_index,
                    cqn_snd: cq.cqn,
                    cqn_rcv: cq.cqn,
                    rq_type: qpc::ZERO_SIZE_RQ,
                    dbr_addr: geometry.dbr_offset,
                    dbr_umem_valid: true,
                    dbr_umem_id: umem.id,
                    ..QpContext::default()
                },
                ..qp::CreateQp::default()
            },
        )?;
        Ok(Self {
            guard,
            qpn: out.qpn,
            _pd: Arc::clone(pd),
            _cq: Arc::clone(cq),
            _uar: Arc::clone(uar),
            _umem: Arc::clone(umem),
        })
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// What the peer needs to connect to it.
    pub fn address(&self) -> QpAddress {
        let info: &HcaInfo = self.guard.provider.info();
        QpAddress {
            qpn: self.qpn,
            gid: info.port.gid,
            lid: info.port.lid,
            pkey: info.port.pkey,
            mac: info.mac,
            mtu: info.port.mtu,
            link_layer: info.port.link_layer,
        }
    }

    /// Connect to the peer's QP: RST2INIT, INIT2RTR, RTR2RTS. The peer does the same with this QP's address; until it has, work
    /// requests posted here are retried. The peer's QP must exist.
    pub fn connect(&self, peer: &QpAddress, attributes: &QpAttributes) -> Result<()> {
        let info = self.guard.provider.info();
        let route = route(&info.device, &info.port, peer)?;
        check_attributes(info.port.link_layer, attributes)?;
        let qpn = self.qpn;
        let mut init = qp::Rst2InitQp { qpn, ..qp::Rst2InitQp::default() };
        init.qpc.primary_address_path.vhca_port_num = info.port.number;
        init.qpc.primary_address_path.pkey_index = attributes.pkey_index;
        init.qpc.rre = true;
        init.qpc.rwe = true;
        init.qpc.rae = true;
        init.qpc.atomic_mode = qpc::ATOMIC_UP_TO_8_BYTES;
        init.qpc.pm_state = qpc::MIGRATED;
        modify(&self.guard, &init)?;

        let mut rtr = qp::Init2RtrQp { qpn, ..qp::Init2RtrQp::default() };
        rtr.qpc.mtu = attributes.mtu.min(info.port.mtu).min(peer.mtu) as u8;
        rtr.qpc.log_msg_max = LOG_MESSAGE_MAX;
        rtr.qpc.remote_qpn = peer.qpn;
        rtr.qpc.min_rnr_nak = attributes.min_rnr_timer;
        rtr.qpc.log_rra_max = attributes.log_max_rd_atomic;
        rtr.qpc.next_rcv_psn = attributes.first_psn;
        // The hardware address is the kernel's to find out, and only Ethernet has one.
        let mac = match info.port.link_layer {
            LinkLayer::Ethernet => self.guard.provider.next_hop(peer, attributes)?,
            LinkLayer::InfiniBand => [0; 6],
        };
        rtr.qpc.primary_address_path = address_path(&info.port, route, qpn, peer, attributes, mac);
        modify(&self.guard, &rtr)?;

        let mut rts = qp::Rtr2RtsQp { qpn, ..qp::Rtr2RtsQp::default() };
        rts.qpc.log_sra_max = attributes.log_max_rd_atomic;
        rts.qpc.retry_count = attributes.retry_count;
        rts.qpc.rnr_retry = attributes.rnr_retry;
        rts.qpc.next_send_psn = attributes.first_psn;
        rts.qpc.primary_address_path.ack_timeout = attributes.ack_timeout;
        modify(&self.guard, &rts)
    }

    /// Move it to the error state (2ERR): what is outstanding is flushed.
    pub fn to_error(&self) -> Result<()> {
        modify(&self.guard, &qp::ToErrQp { qpn: self.qpn })
    }

    /// Move it to the reset state (2RST): counters start at 0 again, on both sides; the caller clears the doorbell record.
    pub fn to_reset(&self) -> Result<()> {
        modify(&self.guard, &qp::ToRstQp { qpn: self.qpn })
    }

    /// Read its state (QUERY_QP).
    pub fn query(&self) -> Result<QpStatus> {
        let mut output = vec![0; qp::QueryQp::OUT_LEN];
        let Owned::Object(handle) = self.guard.what else {
            return Err(Error::argument("qp", self.qpn, "not an object"));
        };
        self.guard.provider.obj_query(handle, &qp::QueryQp { qpn: self.qpn }.encode(), &mut output)?;
        let context = qp::QueryQp::decode_output(&output).qpc;
        let state = QpState::from_u8(context.state).ok_or_else(|| Error::Protocol {
            what: "QUERY_QP".into(),
            detail: format!("state {} is not known", context.state),
        })?;
        Ok(QpStatus { state, executed: context.hw_sq_wqebb_counter, covered: context.sw_sq_wqebb_counter, context })
    }

    /// Destroy it now.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// A route from queue pair `qpn` in the fields that the link layer and the route have (Linux, `mlx5_set_path`).
fn address_path(
    port: &PortInfo,
    route: Route,
    qpn: u32,
    peer: &QpAddress,
    attributes: &QpAttributes,
    mac: [u8; 6],
) -> qpc::AddressPath {
    let mut path = qpc::AddressPath {
        pkey_index: attributes.pkey_index,
        vhca_port_num: port.number,
        ..qpc::AddressPath::default()
    };
    if route.global {
        (path.rgid_hi, path.rgid_lo) = peer.gid.halves();
        path.src_addr_index = port.gid_index;
        path.hop_limit = attributes.hop_limit;
        path.tclass = attributes.traffic_class;
    }
    if port.link_layer == LinkLayer::Ethernet {
        path.eth_prio = attributes.sl;
        path.dscp = attributes.traffic_class >> 2;
        path.udp_sport = attributes.udp_sport.unwrap_or_else(|| udp_source_port(qpn, peer.qpn));
        path.rmac_47_32 = u16::from_be_bytes([mac[0], mac[1]]);
        path.rmac_31_0 = u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]);
    } else {
        path.grh = route.global;
        path.rlid = route.dlid;
        path.sl = attributes.sl;
    }
    path
}

fn check_attributes(link_layer: LinkLayer, attributes: &QpAttributes) -> Result<()> {
    let limits = [
        ("sl", attributes.sl, 0, if link_layer == LinkLayer::Ethernet { 7 } else { 15 }),
        ("ack_timeout", attributes.ack_timeout, 1, 31),
        ("retry_count", attributes.retry_count, 0, 7),
        ("rnr_retry", attributes.rnr_retry, 0, 7),
        ("min_rnr_timer", attributes.min_rnr_timer, 0, 31),
        ("log_max_rd_atomic", attributes.log_max_rd_atomic, 0, 7),
    ];
    for (name, value, low, high) in limits {
        if !(low..=high).contains(&value) {
            return Err(Error::argument(name, value, format!("{low} to {high} are allowed")));
        }
    }
    if attributes.first_psn >> 24 != 0 {
        return Err(Error::argument("first_psn", attributes.first_psn, "has 24 bits"));
    }
    if let Some(port) = attributes.udp_sport.filter(|port| *port < 0xc000) {
        return Err(Error::argument("udp_sport", port, "RoCE v2 uses 49152 (0xc000) and up"));
    }
    Ok(())
}

/// A source port that depends on both QP numbers, so that QPs take different paths. Multiplication spreads neighbours, as in
/// rdma-core's `ibv_flow_label_to_udp_sport` fed with its `rdma_calc_flow_label`.
pub(crate) fn udp_source_port(qpn: u32, peer: u32) -> u16 {
    let mixed = u64::from(qpn).wrapping_mul(u64::from(peer));
    let folded = mixed ^ mixed >> 20 ^ mixed >> 40;
    0xc000 | ((folded ^ folded >> 14) & 0x3fff) as u16
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::route::tests::{peer, port};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_survive(
            qpn in 0u32..1 << 24, gid in any::<[u8; 16]>(), lid in any::<u16>(), pkey in any::<u16>(), mac in any::<[u8; 6]>(),
            mtu in 1u8..=5, ethernet in any::<bool>(),
        ) {
            let link_layer = if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
            let address = QpAddress { qpn, gid: Gid(gid), lid, pkey, mac, mtu: Mtu::from_u8(mtu).unwrap(), link_layer };
            prop_assert_eq!(QpAddress::from_bytes(&address.to_bytes()).unwrap(), address);
        }

        #[test]
        fn any_bytes_decode_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(address) = QpAddress::from_bytes(&bytes) {
                prop_assert_eq!(&address.to_bytes()[..], &bytes[..]);
            }
        }

        #[test]
        fn source_ports_are_in_range(a in 0u32..1 << 24, b in 0u32..1 << 24) {
            prop_assert!(udp_source_port(a, b) >= 0xc000);
        }
    }

    #[test]
    fn on_infiniband_lid_and_service_level_are_given() {
        let attributes = QpAttributes { sl: 5, pkey_index: 8, traffic_class: 0x68, ..QpAttributes::default() };
        let (own, peer) = (port(LinkLayer::InfiniBand), peer(LinkLayer::InfiniBand, 0xfec0 << 48));
        let route = Route { dlid: 0x1234, global: false };
        let path = address_path(&own, route, 0x40, &peer, &attributes, [0; 6]);
        let expected =
            qpc::AddressPath { rlid: 0x1234, sl: 5, pkey_index: 8, vhca_port_num: 2, ..qpc::AddressPath::default() };
        assert_eq!(path, expected);
        let path = address_path(&own, Route { global: true, ..route }, 0x40, &peer, &attributes, [0; 6]);
        let header = qpc::AddressPath {
            grh: true,
            src_addr_index: 3,
            hop_limit: 255,
            tclass: 0x68,
            rgid_hi: 0xfec0 << 48,
            rgid_lo: 9,
            ..expected
        };
        assert_eq!(path, header);
    }

    #[test]
    fn on_ethernet_gid_and_mac_lead_to_the_peer() {
        let attributes =
            QpAttributes { sl: 3, traffic_class: 0x68, udp_sport: Some(0xc123), ..QpAttributes::default() };
        let (own, theirs) = (port(LinkLayer::Ethernet), peer(LinkLayer::Ethernet, 0xfe80 << 48));
        let route = Route { dlid: 0, global: true };
        let path = address_path(&own, route, 0x40, &theirs, &attributes, [2, 3, 4, 5, 6, 7]);
        let expected = qpc::AddressPath {
            rgid_hi: 0xfe80 << 48,
            rgid_lo: 9,
            src_addr_index: 3,
            hop_limit: 255,
            eth_prio: 3,
            tclass: 0x68,
            dscp: 0x1a,
            udp_sport: 0xc123,
            rmac_47_32: 0x0203,
            rmac_31_0: 0x0405_0607,
            vhca_port_num: 2,
            ..qpc::AddressPath::default()
        };
        assert_eq!(path, expected);
    }

    #[test]
    fn neighbouring_qps_use_different_ports() {
        let ports: std::collections::HashSet<u16> = (0x40..0x80).map(|qpn| udp_source_port(qpn, qpn)).collect();
        assert!(ports.len() > 56, "{} different ports for 64 QPs", ports.len());
    }
}
