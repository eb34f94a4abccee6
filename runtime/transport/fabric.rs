//! What the CPU proxy needs of its cards, however they are driven: registration and connecting.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use oxshmem_hca::objects::QpAddress;
use oxshmem_hca::provider::{Access, Attempt, DeviceMemory, Provider, UmemSource};
use oxshmem_hca::topology::{Distance, MAX_SENDERS};
use oxshmem_proxy::work::Backend;

use crate::Result;
use crate::memory::MemoryUse;
use crate::profile::counters::QpCount;

/// Keys of a heap chunk, in host byte order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkKeys {
    pub lkey: u32,
    pub rkey: u32,
}

/// Whose allocation memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This library.
    Library,
    /// The program.
    Program,
}

/// Memory to register.
#[derive(Debug)]
pub(crate) struct Region<'a> {
    /// The descriptor that holds it, from its start; none for memory of this process alone.
    pub memory: Option<BorrowedFd<'a>>,
    /// The exporter that turns it into a dma-buf, if it is memory of a device.
    pub device: Option<&'a dyn DeviceMemory>,
    /// Whose allocation it is.
    pub kind: Kind,
    /// Where it is mapped here.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The address of its first byte on the wire and in work requests.
    pub iova: u64,
    /// Whether peers may read, write and do atomics.
    pub remote: bool,
}

impl<'a> Region<'a> {
    /// Returns what a provider is given.
    pub(super) fn source(&self) -> (UmemSource<'a>, Access) {
        let len = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let addr = self.address as *mut u8;
        let source = match (self.memory, self.kind) {
            (Some(fd), _) => UmemSource::Fd { fd, offset: 0, len, addr, device: self.device },
            (None, Kind::Program) => UmemSource::Program { addr, len, device: self.device },
            (None, Kind::Library) => UmemSource::Host { addr, len },
        };
        (source, if self.remote { Access::ALL } else { Access::LOCAL })
    }
}

/// Open cards, mostly one, with a queue pair or several to every other PE: registration and
/// connecting. Queue pairs have dense indices as in [`Backend`].
pub(crate) trait Fabric: Debug + Send {
    /// Returns `soft`, `mlx5` or `verbs`.
    fn name(&self) -> &'static str;
    /// Returns whether it has queue pairs from this PE to itself, the last ones: this PE's atomics
    /// on its own memory need them if cards do all atomics.
    fn has_own(&self) -> bool;
    /// Returns how far the card is from where the PE works, the farthest of several; nothing where
    /// there is none.
    fn distance(&self) -> Option<Distance>;
    /// Registers memory until [`forget`](Self::forget), or until the fabric is dropped, which the
    /// memory outlives; the keys by card.
    fn register(&mut self, region: &Region<'_>) -> Result<Vec<ChunkKeys>>;
    /// Ends the registration of memory with these keys, which nothing uses any more.
    fn forget(&mut self, keys: &[ChunkKeys]) -> Result<()>;
    /// Returns what is common to the addresses of the queue pairs on each card, with 0 in the place
    /// of their numbers.
    fn ports(&self) -> Vec<QpAddress>;
    /// Connects queue pairs, each to a peer's; and those by which peers alone send, by PE and
    /// column. Returns whether they deliver in order, as far as the fabric relies on it.
    fn connect(&mut self, peers: &[(u32, QpAddress)], receiving: &[(u32, u32, QpAddress)]) -> Result<bool>;
    /// Has requests that stay in order wait for everything before them. Called before the first
    /// request, where queue pairs of some PE do not deliver in order.
    fn order_strongly(&mut self);
    /// Returns the number of the queue pair by which a peer alone sends, of a column of those from
    /// it; 0 where there is none.
    fn qpn_of_receiver(&self, pe: u32, column: u32) -> u32;
    /// Returns the queue pairs by which peers alone send.
    fn receives(&self) -> Vec<QpCount>;
    /// Returns the number of queue pair `qp`, by which peers and errors name it.
    fn qpn(&self, qp: u32) -> u32;
    /// Makes queue pair `qp`, connected, ready for keys of its peer, where that takes time.
    fn prepare(&self, qp: u32, rkeys: &[u32]) -> Result<()>;
    /// Gives the queue pairs away, once, when all are connected.
    fn backend(&mut self) -> Result<Box<dyn Backend>>;
    /// Returns what was tried in which way.
    fn attempts(&self) -> Vec<Attempt>;
    /// Returns the memory of queues and records, as far as it is the PE's own: the kernel's verbs
    /// allocate theirs.
    fn memory_use(&self) -> MemoryUse;
    /// Returns what takes commands for each card, if cards are driven by commands.
    fn providers(&self) -> Vec<Arc<dyn Provider>>;
}

/// Returns the local keys by card, in host byte order; zeros where there is no card.
pub(crate) fn lkeys(keys: &[ChunkKeys]) -> [u32; MAX_SENDERS] {
    std::array::from_fn(|card| keys.get(card).map_or(0, |keys| keys.lkey))
}
