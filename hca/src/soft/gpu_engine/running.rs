//! Keeps slices running, and reads what they count.

use super::slices::GpuEngine;
use crate::prm::qpc::QpState;
use crate::provider::Counters;
use crate::soft::accelerator::{AcceleratorResult, Pace};
use crate::soft::state::Engine;
use crate::soft::tables::{self, BlockCounters, Tables};
use std::mem::offset_of;
use std::time::Duration;

impl Engine {
    /// Returns what an accelerator answered; a failure is the HCA's end.
    pub(super) fn survive<T>(&mut self, result: AcceleratorResult<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.die(&format!("the engine's kernel: {error}"));
                None
            }
        }
    }

    pub(super) fn with_gpu<T>(&mut self, run: impl FnOnce(&mut GpuEngine) -> AcceleratorResult<T>) -> Option<T> {
        let result = run(self.gpu.as_mut()?);
        self.survive(result)
    }

    pub(in crate::soft) fn is_on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    pub(in crate::soft) fn pace(&self) -> Option<Pace> {
        self.gpu.as_ref().map(|gpu| gpu.accelerator.pace())
    }

    /// Returns the counters of the engine and its kernel.
    pub(in crate::soft) fn all_counters(&mut self) -> Counters {
        let mut all = self.counters;
        if self.dead.is_some() {
            return all;
        }
        let blocks = self.with_gpu(|gpu| {
            (0..tables::BLOCKS)
                .map(|block| {
                    let at = offset_of!(Tables, counters) + block * size_of::<BlockCounters>();
                    gpu.read::<BlockCounters>(gpu.at(at))
                })
                .collect::<AcceleratorResult<Vec<_>>>()
        });
        all.doorbells = all.doorbells.wrapping_sub(self.gpu.as_ref().map_or(0, |gpu| gpu.rings));
        for block in blocks.unwrap_or_default() {
            all.wqes += block.wqes;
            all.doorbells = all.doorbells.wrapping_add(block.doorbells);
            all.cqes += block.cqes;
            all.bytes += block.bytes;
        }
        all
    }

    /// Makes sure that the kernel touches nothing until something is launched again.
    pub(in crate::soft) fn pause(&mut self) {
        self.with_gpu(GpuEngine::pause);
    }

    /// Waits until the slices that were launched have ended by themselves.
    pub(in crate::soft) fn await_slices(&mut self) {
        self.with_gpu(GpuEngine::finish);
    }

    /// Returns the number of slices that had not ended when that was last looked at.
    pub(in crate::soft) fn running(&self) -> usize {
        self.gpu.as_ref().map_or(0, |gpu| gpu.running.len())
    }

    /// Returns whether there is a QP that could have work.
    pub(super) fn wants_kernel(&self) -> bool {
        self.dead.is_none() && self.qps.iter().any(|(_, qp)| matches!(qp.state, QpState::Rts | QpState::Err))
    }

    /// Launches slices so that `ahead` are under way. Returns how many are.
    pub(in crate::soft) fn keep_running(&mut self, ahead: usize, idle: Duration) -> usize {
        if !self.wants_kernel() || self.is_copying() {
            return self.running();
        }
        self.with_gpu(|gpu| {
            while gpu.running.len() < ahead {
                gpu.launch(gpu.accelerator.pace().run, idle)?;
            }
            Ok(gpu.running.len())
        })
        .unwrap_or(0)
    }
}
