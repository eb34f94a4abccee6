//! The boundary to an HCA: command bytes in, command bytes out, as DevX carries them.
//!
//! What sets up a real card and what sets up the software HCA is the same code above this trait
//! ([`crate::objects`]); only the calls below differ. Their shape follows rdma-core:
//! `mlx5dv_devx_alloc_uar`, `mlx5dv_devx_umem_reg_ex`,
//! `mlx5dv_devx_obj_create/modify/query/destroy`, `mlx5dv_devx_general_cmd`.

use crate::address::{QpAddress, QpAttributes};
use crate::blueflame::BlueFlame;
use crate::error::Result;
pub use crate::port::{DEFAULT_PKEY, Gid, LinkLayer, Mtu, PortInfo};
use crate::prm::qpc::SendDbrMode;
use crate::wire::cqe::Syndrome;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What stores to a doorbell register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// Device code.
    ByDevice,
    /// A thread of the CPU, whose stores to a write-combining page may linger.
    ByCpu,
}

/// What a provider says about itself and the port in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HcaInfo {
    /// `soft` or `mlx5`.
    pub provider: &'static str,
    /// Name of the device.
    pub device: String,
    /// The port.
    pub port: PortInfo,
    /// The port's MAC address; zeros on InfiniBand.
    pub mac: [u8; 6],
    /// Whether its atomics are atomic with those of CPUs and GPUs.
    pub coherent_atomics: bool,
    /// Whether what is posted to one QP arrives in the order of posting without fence bits, as on
    /// reliably connected QPs of cards, unless a card's administrator has set another order for
    /// them: see [`forces_order`](Self::forces_order).
    pub in_order: bool,
    /// Whether QPs are connected so that the order of posting counts whatever has been set. A card
    /// with adaptive routing that cannot do so lets reads and writes of a QP pass each other, and a
    /// QP says so once it is connected ([`Qp::is_in_order`](crate::objects::Qp::is_in_order)).
    pub forces_order: bool,
    /// Whether a completion says that every PE can see what was written, whichever way it has
    /// learned of that. A card's does not: it acknowledges a write before the write, which is
    /// posted across PCIe, has reached memory.
    pub visible_completions: bool,
    /// `ts_format` of QPs: [`TIME_STAMP_DEFAULT`](crate::prm::qpc::TIME_STAMP_DEFAULT) where the
    /// card knows the field, since one with a real-time clock alone refuses 0; otherwise 0.
    pub ts_format: u8,
    /// Ports of the bond that the port is part of, which QPs are spread over; 0 or 1: no bond.
    pub lag_ports: u8,
    /// The event queue that CQs name. Nothing is ever asked of it.
    pub event_queue: u32,
    /// log2 of the reads and atomics that one QP serves at a time, at most 7.
    pub log_rra_max: u8,
    /// The set of error counters that queue pairs count in; 0 is that of every queue pair that is
    /// given none.
    pub counter_set: u8,
    /// Queue pairs that may ring without a doorbell record
    /// ([`SendDbrMode::NoDbrExt`]) at a time, those of all
    /// processes together; 0: none may.
    pub without_records: u32,
    /// Commands that are worth giving it at a time: 1 where each waits for the one before.
    pub commands_at_a_time: usize,
}

impl HcaInfo {
    /// Returns what is common to the addresses of all QPs on the port, with 0 in the place of a QP
    /// number.
    pub fn address(&self) -> QpAddress {
        let PortInfo { gid, lid, pkey, mtu, link_layer, .. } = self.port;
        QpAddress { qpn: 0, gid, lid, pkey, mac: self.mac, mtu, link_layer, log_rra_max: self.log_rra_max }
    }
}

/// A page of doorbell registers.
///
/// A store of 8 bytes (see [`crate::wire::doorbell`]) to a register rings. The page lives until
/// [`free_uar`](Provider::free_uar).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UarPage {
    /// The number that CREATE_QP takes.
    pub page_id: u32,
    /// Where the page is mapped.
    pub base: *mut u8,
    /// Offsets of the registers that may be used, bytes.
    pub registers: Vec<usize>,
    /// Offsets of those for queue pairs without a doorbell record, bytes: none if the HCA has no
    /// such queue pairs.
    pub without_record: Vec<usize>,
    /// Whether these are registers of a card: any number of QPs may share one, and a GPU reaches
    /// them only after they have been mapped for it. Otherwise they are memory that the poster
    /// reaches at these addresses, and at most one QP may use each.
    pub device_registers: bool,
}

impl UarPage {
    /// Returns the offsets of the registers that queue pairs of a mode ring in, bytes.
    pub fn registers_of(&self, mode: SendDbrMode) -> &[usize] {
        match mode {
            SendDbrMode::DbrValid => &self.registers,
            SendDbrMode::NoDbrExt => &self.without_record,
        }
    }
}

// SAFETY: the pointer is an address of device registers (or memory that stands for them) which any
// thread may store to; the type itself gives no access through it.
unsafe impl Send for UarPage {}
// SAFETY: as above.
unsafe impl Sync for UarPage {}

/// A device whose memory a card can be given as a dma-buf.
pub trait DeviceMemory: fmt::Debug {
    /// Returns a dma-buf of `len` bytes from `addr`, both multiples of the page size, or the reason
    /// why there is none. With `pcie` its addresses are those of the PCIe BAR even where the device
    /// has another way to the CPU.
    fn dma_buf(&self, addr: u64, len: usize, pcie: bool) -> std::result::Result<OwnedFd, String>;
}

/// Memory to register.
#[derive(Debug, Clone, Copy)]
pub enum UmemSource<'a> {
    /// A range of a file (a memfd, a dma-buf), mapped in this process at `addr`. Peers can reach
    /// it.
    Fd {
        /// The file.
        fd: BorrowedFd<'a>,
        /// Start of the range, bytes; a multiple of the page size.
        offset: u64,
        /// Length of the range, bytes.
        len: usize,
        /// Where the range is mapped.
        addr: *mut u8,
        /// The exporter that turns it into a dma-buf, if it is memory of a device.
        device: Option<&'a dyn DeviceMemory>,
    },
    /// Memory of this process alone. On `soft`, peers cannot reach it, and an engine's kernel has
    /// to reach it at this address
    /// ([`SoftOptions::host_doorbells`](crate::soft::SoftOptions::host_doorbells)).
    Host {
        /// Where it starts.
        addr: *mut u8,
        /// Length, bytes.
        len: usize,
    },
    /// Memory for transfers of this process alone, which the program allocated, or which is the
    /// host's and page-locked. On `soft`, peers cannot reach it, and an engine's kernel reaches it
    /// at this address, which the caller has seen to.
    Program {
        /// Where it starts.
        addr: *mut u8,
        /// Length, bytes.
        len: usize,
        /// The exporter that turns it into a dma-buf, if it is memory of a device.
        device: Option<&'a dyn DeviceMemory>,
    },
}

/// Rights on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The HCA may write it for its own process.
    pub local_write: bool,
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write it.
    pub remote_write: bool,
    /// Peers may do atomics on it.
    pub remote_atomic: bool,
}

impl Access {
    /// Everything.
    pub const ALL: Self = Self { local_write: true, remote_read: true, remote_write: true, remote_atomic: true };
    /// Reads and writes by this process only.
    pub const LOCAL: Self = Self { local_write: true, remote_read: false, remote_write: false, remote_atomic: false };

    /// Returns whether peers have any right.
    pub const fn is_remote(self) -> bool {
        self.remote_read || self.remote_write || self.remote_atomic
    }
}

impl UmemSource<'_> {
    /// Returns where the memory is, and its length in bytes.
    pub fn range(&self) -> (*mut u8, usize) {
        match *self {
            UmemSource::Fd { addr, len, .. }
            | UmemSource::Host { addr, len }
            | UmemSource::Program { addr, len, .. } => (addr, len),
        }
    }
}

/// Memory that was registered without commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKey {
    /// What [`dereg_key`](Provider::dereg_key) takes.
    pub id: u64,
    /// The key for data segments, in host byte order.
    pub lkey: u32,
    /// The key for remote address segments, in host byte order.
    pub rkey: u32,
}

/// Something that can be done in more than one way, one way of it, and what came of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What was tried, in which way.
    pub what: String,
    /// What it gave, or why it failed.
    pub outcome: std::result::Result<String, String>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(result) => write!(f, "{}: {result}", self.what),
            Err(reason) => write!(f, "{}: no: {reason}", self.what),
        }
    }
}

/// An object that a command created, until [`obj_destroy`](Provider::obj_destroy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectHandle(pub u64);

/// What an HCA has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Work requests executed, those that failed included, flushed ones not.
    pub wqes: u64,
    /// Doorbells seen.
    pub doorbells: u64,
    /// CQEs written, errors included.
    pub cqes: u64,
    /// Payload bytes moved.
    pub bytes: u64,
    /// CQEs with an error, flushed ones included.
    pub errors: u64,
    /// How often work was found through a doorbell record before its doorbell was seen: the
    /// doorbell was lost, or about to be rung.
    pub recovered: u64,
    /// Work requests with strong ordering, each of which costs a card a round trip. Those that a
    /// kernel executes are not counted.
    pub strong: u64,
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            wqes: self.wqes + other.wqes,
            doorbells: self.doorbells + other.doorbells,
            cqes: self.cqes + other.cqes,
            bytes: self.bytes + other.bytes,
            errors: self.errors + other.errors,
            recovered: self.recovered + other.recovered,
            strong: self.strong + other.strong,
        }
    }
}

/// Why a QP went to the error state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpFailure {
    /// Block index of the WQE since the queue was reset, not cut to 16 bits.
    pub wqe_index: u64,
    /// Syndrome of its CQE.
    pub syndrome: u8,
    /// What exactly was wrong.
    pub text: String,
}

/// An HCA. Every call may block for a short while; none blocks forever.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns what it is and how it is addressed.
    fn info(&self) -> &HcaInfo;

    /// Allocates a page of doorbell registers, of the kind that is best for what rings.
    fn alloc_uar(&self, rung: Rung) -> Result<UarPage>;

    /// Frees a page. Fails while a QP uses it.
    fn free_uar(&self, page_id: u32) -> Result<()>;

    /// Registers memory; returns the umem id that commands take.
    ///
    /// # Safety
    /// The memory must stay mapped at its address, readable and (if `access.local_write`) writable,
    /// until [`dereg_umem`](Self::dereg_umem) has succeeded. It must not be used through Rust
    /// references meanwhile: the HCA and peers change it at any time.
    unsafe fn reg_umem(&self, source: UmemSource<'_>, access: Access) -> Result<u32>;

    /// Forgets memory. Fails while a key or a queue uses it.
    fn dereg_umem(&self, umem_id: u32) -> Result<()>;

    /// Registers memory for work requests of QPs in protection domain `pdn`, where the HCA does
    /// that without commands; work requests name its first byte `iova`. `None` where it does not:
    /// then it is done by [`reg_umem`](Self::reg_umem) and CREATE_MKEY.
    ///
    /// # Safety
    /// The conditions of [`reg_umem`](Self::reg_umem), until [`dereg_key`](Self::dereg_key) has
    /// succeeded.
    unsafe fn reg_key(&self, pdn: u32, source: UmemSource<'_>, iova: u64, access: Access) -> Result<Option<MemoryKey>>;

    /// Forgets what [`reg_key`](Self::reg_key) registered.
    fn dereg_key(&self, id: u64) -> Result<()>;

    /// Returns the MAC address that packets to `peer` go to on Ethernet: the peer's, or that of a
    /// router on the way.
    fn next_hop(&self, peer: &QpAddress, attributes: &QpAttributes) -> Result<[u8; 6]>;

    /// Executes a command that creates an object.
    fn obj_create(&self, input: &[u8], output: &mut [u8]) -> Result<ObjectHandle>;

    /// Executes a command that changes `object`.
    fn obj_modify(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()>;

    /// Executes a command that reads `object`'s state.
    fn obj_query(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()>;

    /// Destroys an object. Fails while others use it.
    fn obj_destroy(&self, object: ObjectHandle) -> Result<()>;

    /// Executes a command that concerns no object, such as QUERY_HCA_CAP.
    fn general_cmd(&self, input: &[u8], output: &mut [u8]) -> Result<()>;

    /// Makes ready, for each pair of a connected QP of this HCA and a key of its peer, what the
    /// first work request that uses both would otherwise have to wait for. Cards have nothing to
    /// do. Call it while no kernel waits for the network: mapping memory may wait for kernels.
    fn prepare(&self, uses: &[(u32, u32)]) -> Result<()>;

    /// Returns what it has done, where that is counted.
    fn counters(&self) -> Option<Counters>;

    /// Returns what a QP has done, where that is counted by QP: its doorbells, its work requests
    /// and what came of them.
    fn qp_counters(&self, _qpn: u32) -> Option<Counters> {
        None
    }

    /// Returns the bytes of memory that it has allocated for itself, of the accelerator and of the
    /// host; zeros of a card, whose driver does that.
    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Returns what failed first on a QP, where that is kept. A collapsed CQ may show a flushed WQE
    /// instead, whose CQE came later.
    fn first_failure(&self, qpn: u32) -> Option<QpFailure>;

    /// Returns what ended requests, and how often each, since this was last called, where the HCA
    /// counts that over all QPs: what failed first on a QP whose collapsed CQ shows a request that
    /// was flushed later.
    fn error_counts(&self) -> Vec<(Syndrome, u32)> {
        Vec::new()
    }

    /// Returns what else can be done with a doorbell register than storing a doorbell, if anything.
    /// Ask once for each register.
    fn blueflame(&self, register: *mut u64) -> Option<BlueFlame> {
        let _ = register;
        None
    }

    /// Returns what was tried in which way, in order; each different outcome once.
    fn attempts(&self) -> Vec<Attempt>;

    /// Returns why the HCA is gone for good, if it is: removed, or failed as a whole.
    fn dead(&self) -> Option<String>;

    /// Calls `hook` once, from another thread, when the HCA is found to be gone, if it tells; at
    /// once if it is gone already.
    fn when_dead(&self, hook: Box<dyn Fn() + Send + Sync>);
}
