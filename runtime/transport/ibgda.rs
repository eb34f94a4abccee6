//! IBGDA: queue pairs in the slab, which device code fills and rings.
//!
//! Per PE there is one slab (one umem, one key) that holds every send queue, doorbell record, CQE and [`abi::Qp`]. Each queue pair has a
//! collapsed CQ of one CQE. Set-up speaks PRM commands to a [`Provider`], whichever it is.

use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::heap::SymmetricHeap;
use crate::slab::{Layout, Offset, Slab};
use crate::Result;

/// Where the queues are in the slab.
#[derive(Debug, Clone)]
pub(crate) struct QueueLayout {
    qps: Offset,
}

impl QueueLayout {
    pub(crate) fn new(_layout: &mut Layout, _config: &Config, _me: u32, _n_pes: u32) -> Self { todo!() }
}
#[derive(Debug)]
pub(crate) struct Ibgda;
pub(crate) struct ChunkKeys { pub lkey: u32, pub rkey: u32 }
impl Ibgda {
    pub(crate) fn connect(config: &Config, bootstrap: &Bootstrap, slab: &Slab, queues: QueueLayout) -> Result<Self> { todo!() }
    pub(crate) fn describe(&self, state: &mut abi::State) {}
    pub(crate) fn provider_name(&self) -> &'static str { todo!() }
    pub(crate) fn counters(&self) -> Option<oxshmem_hca::provider::Counters> { todo!() }
    pub(crate) fn doorbells(&self, slab: &Slab) -> u64 { todo!() }
    pub(crate) fn register(&self, heap: &SymmetricHeap, index: usize) -> Result<ChunkKeys> { todo!() }
}
