//! Completion queues.

use super::memory::Umem;
use super::owned::{Guard, create};
use super::uar::Uar;
use crate::error::Result;
use crate::prm::cq;
use std::sync::Arc;

/// Where a completion queue lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqAttributes {
    /// log2 of the number of 64-byte entries. A collapsed queue uses the first alone, but hardware
    /// wants room for all.
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
    /// Creates one (CREATE_CQ).
    pub fn create(uar: &Arc<Uar>, umem: &Arc<Umem>, attributes: &CqAttributes) -> Result<Arc<Self>> {
        let (guard, out) = create(
            &uar.guard.provider,
            &cq::CreateCq {
                cq_umem_offset: attributes.umem_offset,
                cq_umem_id: umem.id(),
                cq_umem_valid: true,
                cqc: cq::CqContext {
                    dbr_umem_valid: true,
                    cqe_sz: cq::CQE_SIZE_64,
                    cc: attributes.collapsed,
                    oi: attributes.collapsed,
                    dbr_umem_id: umem.id(),
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

    /// Returns its number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Destroys it now. Fails while QPs use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}
