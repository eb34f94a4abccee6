//! Doorbell registers of an engine with a kernel: in its tables, in memory of the host, or in pages
//! as on a card.

use super::queue_pairs::bell_of;
use super::slices::Ringer;
use crate::blueflame;
use crate::error::{Error, Result};
use crate::prm::qpc::{QpState, SendDbrMode};
use crate::soft::limits::{HOST_PAGE_BYTES, PAGE_BELLS};
use crate::soft::memory::{Mapping, PAGE};
use crate::soft::state::{Engine, Qp, UarPage};
use crate::soft::tables;
use oxshmem_system::words::native;
use std::sync::atomic::{AtomicU64, Ordering};

impl Engine {
    /// Clears the registers of doorbell page `uar`, which comes or goes. They lie where the ringing
    /// side stores: in the kernel's memory or in the host's.
    pub(in crate::soft) fn clear_page(&mut self, uar: u32) -> Option<*mut u8> {
        self.with_gpu(|gpu| {
            gpu.pause()?;
            let page = gpu.page(uar);
            // SAFETY: the page lies in the tables.
            unsafe { gpu.accelerator.write(page, &[0; size_of::<tables::Page>()]) }?;
            let Some(host) = &gpu.host_doorbells else { return Ok(page as *mut u8) };
            let registers = (host.address() + u64::from(uar - 1) * HOST_PAGE_BYTES as u64) as *mut u8;
            for at in (0..HOST_PAGE_BYTES).step_by(8) {
                // SAFETY: the registers of this page are in the memory of
                // `SoftOptions::host_doorbells`, aligned to a page.
                unsafe { AtomicU64::from_ptr(registers.add(at).cast()) }.store(0, Ordering::Release);
            }
            Ok(registers)
        })
    }

    /// Returns whether the host rings, in registers of the kernel.
    pub(in crate::soft) fn host_rings(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.rung == Ringer::ByHost)
    }

    /// Returns whether QPs may be without a doorbell record: those that the engine's thread
    /// executes, or that a null card completes. A kernel that executes shares each QP with the
    /// engine's thread, and the record tells both what was posted.
    pub(in crate::soft) fn has_qps_without_record(&self) -> bool {
        self.gpu.as_ref().is_none_or(|gpu| gpu.null && gpu.rung == Ringer::ByKernels)
    }

    /// Returns whether the kernel is given queues in memory of the host.
    pub(in crate::soft) fn reaches_host(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.rung != Ringer::ByKernels)
    }

    /// Returns whether registers take whole work requests: the kernel executes, and the host rings.
    pub(in crate::soft) fn takes_blocks(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.rung == Ringer::ByHost && !gpu.null)
    }

    /// Returns whether peers map memory before they use it: mapping may wait for kernels that wait
    /// for the mapping, and no call prepares for keys.
    pub(in crate::soft) fn announces(&self) -> bool {
        self.is_on_gpu() && self.card_doorbells
    }

    /// Returns the memory of a new doorbell page, unless it is part of the tables.
    pub(in crate::soft) fn uar_page(&self) -> Result<Option<UarPage>> {
        let page = match &self.gpu {
            None => UarPage::Host(Mapping::anonymous(native(PAGE))?),
            Some(gpu) if gpu.rung == Ringer::LikeCards => {
                let memory = gpu.accelerator.host_memory(PAGE);
                let what = || "allocate a doorbell page".to_owned();
                UarPage::Accelerator(memory.map_err(|error| Error::Accelerator { what: what(), source: error.into() })?)
            }
            Some(_) => return Ok(None),
        };
        Ok(Some(page))
    }

    /// Makes the kernel look at the doorbell record of a QP.
    pub(in crate::soft) fn ring_kernel(&mut self, qp: &Qp) {
        let Some(gpu) = &mut self.gpu else { return };
        let Some(registers) = &gpu.host_doorbells else { return };
        if !matches!(qp.state, QpState::Rts | QpState::Err) {
            return;
        }
        // Only a change is seen.
        gpu.rings += 1;
        let value = u64::from((qp.qpn << 8).to_be()) << 32 | gpu.rings & u64::from(u32::MAX);
        let at = registers.address() + u64::from(bell_of(qp.qpn) - 1) * blueflame::REGISTER_BYTES as u64;
        // SAFETY: the register of this QP in memory that this owns, aligned to 8.
        let register = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        // Release: what the doorbell covers was seen to be there.
        register.store(value, Ordering::Release);
    }

    /// Notes that the number of doorbell pages in use has changed.
    pub(in crate::soft) fn watch_pages(&mut self, highest: u32) {
        if let Some(gpu) = &mut self.gpu {
            gpu.registers = highest * PAGE_BELLS;
        }
    }

    /// Notes that the QPs have changed, each of which has a register if they are rung as on a card.
    pub(in crate::soft) fn watch_qps(&mut self) {
        let highest = self.qps.iter().map(|(qpn, _)| bell_of(qpn)).max();
        let Some(gpu) = &mut self.gpu else { return };
        gpu.without_record = self.qps.iter().any(|(_, qp)| qp.mode() == SendDbrMode::NoDbrExt);
        if gpu.rung == Ringer::LikeCards {
            gpu.registers = highest.unwrap_or_default();
        }
    }
}
