//! A host-side poster of work requests, for tests and benches: what device code does, in Rust,
//! through [`wire`](crate::wire).
//!
//! [`Endpoint`] is one end of a connection with everything it needs: a heap that the peer may use,
//! and a slab with a send queue, a doorbell record and a collapsed CQ. Nothing here is used outside
//! tests; it checks no ordering and posts from one thread.

use crate::address::{QpAddress, QpAttributes};
use crate::error::{Error, Result};
use crate::objects::{Cq, CqAttributes, KEY_VARIANT, Mkey, MkeyAttributes, Pd, Qp, QpGeometry, Uar, Umem};
use crate::prm::qpc::SendDbrMode;
use crate::provider::{Access, Provider, Rung, UmemSource};
use crate::soft::doorbell_rung;
use crate::wire::{BLOCK_BYTES, MAX_WQE_BYTES, Op, Wqe, cqe, data, dbr, doorbell, raddr};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Zeroed memory in a memfd, mapped here.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    mapping: MmapRaw,
}

impl SharedMemory {
    /// Creates `len` bytes.
    pub fn new(len: usize) -> Result<Self> {
        let what = || format!("create {len} bytes of shared memory");
        let fd = rustix::fs::memfd_create("oxshmem-test", MemfdFlags::CLOEXEC);
        let fd = fd.map_err(|errno| Error::os(what(), errno))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|errno| Error::os(what(), errno))?;
        let mapping = MmapOptions::new().len(len).map_raw(&fd).map_err(|error| Error::os(what(), error))?;
        Ok(Self { fd, mapping })
    }

    /// Returns its file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns where it is mapped.
    pub fn base(&self) -> *mut u8 {
        self.mapping.as_mut_ptr()
    }

    /// Returns it as a umem source.
    pub fn source(&self) -> UmemSource<'_> {
        self.source_at(0)
    }

    /// Returns it as a umem source whose address is `shift` larger, see
    /// [`EndpointOptions::shift`].
    pub fn source_at(&self, shift: usize) -> UmemSource<'_> {
        let addr = self.base().wrapping_add(shift);
        UmemSource::Fd { fd: self.fd(), offset: 0, len: self.mapping.len(), addr, device: None }
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let whole = self.mapping.len();
        assert!(offset + len <= whole, "{len} bytes at {offset} of {whole}");
        self.base().wrapping_add(offset)
    }

    /// Returns the 8-byte word at `offset`.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "offset {offset} is not aligned to 8");
        // SAFETY: in bounds, aligned, and shared memory is only accessed by atomics and raw copies.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Returns the 4-byte word at `offset`.
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "offset {offset} is not aligned to 4");
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: in bounds; the source is private.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) };
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: in bounds; the destination is private.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, len), bytes.as_mut_ptr(), len) };
        bytes
    }
}

/// The address of the first byte that a heap's key covers; not 0, so that an address is never a
/// heap offset by accident.
pub const HEAP_START: u64 = 0x10_0000_0000;

/// What a peer must know of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointAddress {
    /// Its QP.
    pub qp: QpAddress,
    /// Key of its heap.
    pub rkey: u32,
}

impl EndpointAddress {
    /// Returns it as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.qp.to_bytes().to_vec();
        bytes.extend(self.rkey.to_le_bytes());
        bytes
    }

    /// Decodes the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (qp, rkey) = bytes.split_at(QpAddress::BYTES.min(bytes.len()));
        let rkey = rkey.try_into().map_err(|_| Error::argument("bytes", bytes.len(), "not an endpoint's address"))?;
        Ok(Self { qp: QpAddress::from_bytes(qp)?, rkey: u32::from_le_bytes(rkey) })
    }
}

/// How an endpoint is made.
#[derive(Debug, Clone, Copy)]
pub struct EndpointOptions {
    /// log2 of the send queue's blocks.
    pub log_sq_size: u8,
    /// log2 of the CQ's entries.
    pub log_cq_size: u8,
    /// Whether the CQ is collapsed.
    pub collapsed: bool,
    /// Bytes of heap.
    pub heap_bytes: usize,
    /// Bytes at either end of the heap that its key does not cover.
    pub guard: usize,
    /// Rights on the heap.
    pub access: Access,
    /// Whether the QP has a doorbell record.
    pub send_dbr_mode: SendDbrMode,
    /// What the HCA is told of addresses is larger by this, for an accelerator that takes it off
    /// again. Where nothing is mapped at such addresses, no thread but the accelerator's touches
    /// the memory.
    pub shift: usize,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            log_sq_size: 7,
            log_cq_size: 7,
            collapsed: true,
            heap_bytes: 1 << 16,
            guard: 0,
            access: Access::ALL,
            send_dbr_mode: SendDbrMode::DbrValid,
            shift: 0,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Endpoint {
    // In the order of destruction.
    /// The queue pair.
    pub qp: Qp,
    /// The heap's key.
    pub key: Mkey,
    /// The completion queue.
    pub cq: Arc<Cq>,
    /// The protection domain.
    pub pd: Arc<Pd>,
    /// The doorbell page.
    pub uar: Arc<Uar>,
    /// Registration of the slab.
    pub slab_umem: Arc<Umem>,
    /// Registration of the heap.
    pub heap_umem: Arc<Umem>,
    /// Queues and doorbell records.
    pub slab: SharedMemory,
    /// What the peer may use.
    pub heap: SharedMemory,
    options: EndpointOptions,
    doorbell: *mut u64,
    posted: u64,
    consumed: u32,
}

// SAFETY: the doorbell register belongs to the UAR page that the endpoint keeps.
unsafe impl Send for Endpoint {}

/// Layout of the slab: doorbell records, CQ, send queue.
const QP_DBR: usize = 0;
const CQ_DBR: usize = 64;
const CQ_AT: usize = 4096;

impl Endpoint {
    /// Makes one with a protection domain and a doorbell page of its own.
    pub fn new(provider: &Arc<dyn Provider>, options: EndpointOptions) -> Result<Self> {
        Self::in_pd(&Pd::alloc(provider)?, options)
    }

    /// Makes one in a given protection domain.
    pub fn in_pd(pd: &Arc<Pd>, options: EndpointOptions) -> Result<Self> {
        let provider = pd.provider();
        let sq_at = CQ_AT + (cqe::LEN << options.log_cq_size);
        let slab = SharedMemory::new(sq_at + (BLOCK_BYTES << options.log_sq_size))?;
        slab.write(CQ_AT, &vec![cqe::INITIAL_BYTE; cqe::LEN << options.log_cq_size]);
        let heap = SharedMemory::new(options.heap_bytes)?;
        let uar = Uar::alloc(provider, Rung::ByDevice)?;
        // SAFETY: both memories are fields behind the registrations, so they are unmapped after
        // them.
        let (slab_umem, heap_umem) = unsafe {
            (
                Umem::register(provider, slab.source_at(options.shift), Access::LOCAL)?,
                Umem::register(provider, heap.source_at(options.shift), options.access)?,
            )
        };
        let key = Mkey::create(
            pd,
            &heap_umem,
            &MkeyAttributes {
                umem_offset: options.guard as u64,
                len: options.heap_bytes.saturating_sub(2 * options.guard) as u64,
                start_addr: HEAP_START,
                access: options.access,
                relaxed_ordering: false,
                variant: KEY_VARIANT,
            },
        )?;
        let cq = Cq::create(
            &uar,
            &slab_umem,
            &CqAttributes {
                log_size: options.log_cq_size,
                umem_offset: CQ_AT as u64,
                dbr_offset: CQ_DBR as u64,
                collapsed: options.collapsed,
            },
        )?;
        let geometry = QpGeometry {
            log_sq_size: options.log_sq_size,
            sq_offset: sq_at as u64,
            dbr_offset: QP_DBR as u64,
            user_index: 0,
            send_dbr_mode: options.send_dbr_mode,
        };
        let qp = Qp::create(pd, &cq, &uar, &slab_umem, &geometry)?;
        let doorbell = uar
            .register(options.send_dbr_mode, 0)
            .ok_or_else(|| Error::argument("uar", uar.page_id(), "has no registers"))?;
        let doorbell = doorbell.wrapping_byte_sub(options.shift);
        Ok(Self {
            qp,
            key,
            cq,
            pd: Arc::clone(pd),
            uar,
            slab_umem,
            heap_umem,
            slab,
            heap,
            options,
            doorbell,
            posted: 0,
            consumed: 0,
        })
    }

    /// Returns what the peer must know.
    pub fn address(&self) -> EndpointAddress {
        EndpointAddress { qp: self.qp.address(), rkey: self.key.rkey() }
    }

    /// Connects to the peer.
    pub fn connect(&self, peer: &EndpointAddress, attributes: &QpAttributes) -> Result<()> {
        self.qp.connect(&peer.qp, attributes)
    }

    /// Returns the offset of the send queue in the slab.
    fn sq_at(&self) -> usize {
        CQ_AT + (cqe::LEN << self.options.log_cq_size)
    }

    /// Returns a data segment over this PE's heap, `offset` bytes from where its key starts.
    pub fn local(&self, offset: u64, len: u32) -> data::Repr {
        data::Repr { byte_count: len, lkey: self.key.lkey(), addr: HEAP_START + offset }
    }

    /// Returns a remote address segment over a peer's heap, `offset` bytes from where its key
    /// starts.
    pub fn remote(peer: &EndpointAddress, offset: u64) -> raddr::Repr {
        raddr::Repr { raddr: HEAP_START + offset, rkey: peer.rkey }
    }

    /// Blocks posted so far.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Writes a WQE into the queue, without ringing. Returns the index of its first block. It is
    /// the caller's business not to overrun the queue.
    pub fn post(&mut self, op: Op<'_>, signaled: bool) -> u64 {
        let wqe = Wqe::new(self.qp.qpn(), self.posted as u16, signaled, op);
        let mut bytes = [0; MAX_WQE_BYTES];
        let blocks = wqe.emit(&mut bytes);
        self.post_raw(&bytes[..blocks * BLOCK_BYTES])
    }

    /// Writes the bytes of a WQE into the queue, whatever they are.
    pub fn post_raw(&mut self, bytes: &[u8]) -> u64 {
        let index = self.posted;
        for (i, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let slot = (index + i as u64) & ((1 << self.options.log_sq_size) - 1);
            self.slab.write(self.sq_at() + slot as usize * BLOCK_BYTES, block);
        }
        self.posted += bytes.len().div_ceil(BLOCK_BYTES) as u64;
        index
    }

    /// Publishes all that was posted: the doorbell record, if the QP has one, then the doorbell.
    pub fn ring(&self) {
        if self.options.send_dbr_mode == SendDbrMode::DbrValid {
            self.write_doorbell_record();
        }
        self.ring_register(doorbell::Repr::producer(self.posted as u16, self.qp.qpn()));
    }

    /// Writes the doorbell record only.
    pub fn write_doorbell_record(&self) {
        self.set_doorbell_record(u32::from(self.posted as u16));
    }

    /// Writes any value to the doorbell record.
    pub fn set_doorbell_record(&self, value: u32) {
        self.slab.half_word(QP_DBR + dbr::SEND_OFFSET).store(value.to_be(), Ordering::Release);
    }

    /// Writes any value to the doorbell register.
    pub fn ring_register(&self, value: doorbell::Repr) {
        // SAFETY: the register is 8 bytes in the UAR page that the endpoint keeps, aligned.
        unsafe { AtomicU64::from_ptr(self.doorbell) }.store(value.to_register(), Ordering::Release);
        doorbell_rung();
    }

    /// Empties the queue on the host's side, after the QP was reset: indices start at 0 again, the
    /// doorbell record is 0.
    pub fn restart(&mut self) {
        self.posted = 0;
        self.set_doorbell_record(0);
        self.slab.write(CQ_AT, &vec![cqe::INITIAL_BYTE; cqe::LEN << self.options.log_cq_size]);
    }

    /// Posts one WQE with a CQE, and rings.
    pub fn post_and_ring(&mut self, op: Op<'_>) -> u64 {
        let index = self.post(op, true);
        self.ring();
        index
    }

    fn entry(&self, slot: usize) -> [u8; cqe::LEN] {
        let at = CQ_AT + slot * cqe::LEN;
        // The tail first: what is before it was written before.
        let tail = self.slab.word(at + cqe::TAIL_OFFSET).load(Ordering::Acquire);
        let mut bytes = [0; cqe::LEN];
        for offset in (0..cqe::TAIL_OFFSET).step_by(8) {
            let word = self.slab.word(at + offset).load(Ordering::Relaxed);
            bytes[offset..offset + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[cqe::TAIL_OFFSET..].copy_from_slice(&tail.to_ne_bytes());
        bytes
    }

    /// Returns what the collapsed CQE says; `None` before the first completion.
    pub fn cqe(&self) -> Option<cqe::Repr> {
        cqe::Repr::parse(&cqe::Segment::new_unchecked(self.entry(0))).ok().flatten()
    }

    /// Takes the next CQE of a CQ that is not collapsed.
    pub fn poll(&mut self) -> Option<cqe::Repr> {
        let slot = self.consumed & ((1 << self.options.log_cq_size) - 1);
        let lap = self.consumed >> self.options.log_cq_size & 1 != 0;
        let repr = cqe::Repr::parse(&cqe::Segment::new_unchecked(self.entry(slot as usize))).ok().flatten()?;
        if repr.owner != lap {
            return None;
        }
        self.consumed += 1;
        self.slab.half_word(CQ_DBR).store((self.consumed & 0xff_ffff).to_be(), Ordering::Release);
        Some(repr)
    }

    /// Waits for the completion of the WQE at `index` on the collapsed CQ, at most `limit`. `step`
    /// is called between looks, to drive an engine or to yield. An error CQE is returned as soon as
    /// it is there, for whatever WQE.
    pub fn wait(&self, index: u64, limit: Duration, mut step: impl FnMut()) -> Result<cqe::Repr> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(cqe) = self.cqe() {
                let reached = cqe.wqe_counter.wrapping_sub(index as u16) < 1 << 15;
                if reached || matches!(cqe.status, cqe::Status::Error { .. }) {
                    return Ok(cqe);
                }
            }
            if Instant::now() >= deadline {
                return Err(Error::timeout(format!("the completion of WQE {index}"), limit));
            }
            step();
        }
    }
}
