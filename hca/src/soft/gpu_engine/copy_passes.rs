//! Passes of the engine's thread that executes by copies while slices find no room.

use super::slices::{GpuEngine, WARY, WARY_PATIENCE};
use crate::error::{Error, Result};
use crate::prm::qpc::QpState;
use crate::soft::accelerator::AcceleratorResult;
use crate::soft::copying::{CopyMode, Copying, Place};
use crate::soft::memory;
use crate::soft::state::{Engine, Qp};
use crate::wire::dbr;
use oxshmem_system::words::native;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a slice that takes turns with other kernels runs, and how long without work.
pub(super) const ASIDE_RUN: Duration = Duration::from_micros(500);
pub(super) const ASIDE_IDLE: Duration = Duration::from_micros(20);
/// How long the engine's thread executes at least if slices are kept out again and again.
pub(super) const SHORTEST_STAY: Duration = Duration::from_millis(4);
pub(super) const LONGEST_STAY: Duration = Duration::from_millis(128);

impl Engine {
    /// Returns whether the engine's thread executes what its kernel otherwise does.
    pub(in crate::soft) fn is_copying(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.copying.is_some())
    }

    pub(in crate::soft) fn with_copying<T>(
        &mut self,
        run: impl FnOnce(&mut Copying) -> AcceleratorResult<T>,
    ) -> Option<T> {
        let result = run(self.gpu.as_mut()?.copying.as_mut()?);
        self.survive(result)
    }

    /// Has the engine's thread execute everything from now on, by copies: what goes to other nodes
    /// passes through its hands.
    ///
    /// # Errors
    /// The engine was opened to execute by its kernel alone, or not to execute at all.
    pub(in crate::soft) fn always_copy(&mut self) -> Result<()> {
        let Some(gpu) = &mut self.gpu else { return Ok(()) };
        match (gpu.null, gpu.mode) {
            (true, _) => {
                let rule = "it moves nothing and measures posting, on one node; use OXSHMEM_HCA=soft";
                Err(Error::argument("the null card", "a job of several nodes", rule))
            }
            (false, CopyMode::Never) => {
                let rule = "the engine's kernel reaches no other node, the engine's thread does so by copies: use \
                            OXSHMEM_SOFT_ENGINE=auto or copy";
                Err(Error::argument("OXSHMEM_SOFT_ENGINE", "kernel, with several nodes", rule))
            }
            (false, CopyMode::WhenNeeded | CopyMode::Always) => {
                gpu.mode = CopyMode::Always;
                Ok(())
            }
        }
    }

    /// Has the engine's thread execute while slices find no room, and slices when they do.
    pub(in crate::soft) fn watch_slices(&mut self) {
        let Some(gpu) = &mut self.gpu else { return };
        match gpu.mode {
            CopyMode::Never => {}
            CopyMode::Always => {
                if gpu.copying.is_none() {
                    self.begin_copying();
                }
            }
            CopyMode::WhenNeeded => match (gpu.copying.is_some(), gpu.running.is_empty()) {
                (false, _) if gpu.is_kept_out() => self.begin_copying(),
                (true, true) => {
                    let has_room = self.with_gpu(GpuEngine::has_room);
                    if has_room == Some(true) {
                        self.end_copying();
                    }
                }
                (true, false) if gpu.probed.is_some_and(|probed| probed.elapsed() > WARY_PATIENCE) => {
                    gpu.probed = None;
                }
                _ => {}
            },
        }
    }

    pub(super) fn begin_copying(&mut self) {
        self.pause();
        let Some(gpu) = &mut self.gpu else { return };
        if self.dead.is_some() {
            return;
        }
        gpu.copying = gpu.spare.take();
        let soon = gpu.resumed.is_some_and(|resumed| resumed.elapsed() < WARY);
        gpu.stay = if soon { (gpu.stay * 2).clamp(SHORTEST_STAY, LONGEST_STAY) } else { Duration::ZERO };
        gpu.began = Instant::now();
        gpu.probed = None;
        if self.tracer.is_on() {
            self.tracer.line("copying", format_args!("begins"));
        }
    }

    pub(super) fn end_copying(&mut self) {
        if self.with_copying(Copying::settle).is_none() {
            return;
        }
        // The others are given back when what they wait for has been judged.
        let idle = |qp: &Qp| qp.handed.trapped && qp.state == QpState::Rts && qp.consumer == qp.producer;
        let idle: Vec<u32> = self.qps.iter().filter(|(_, qp)| idle(qp)).map(|(qpn, _)| qpn).collect();
        self.resume_all(&idle);
        for qpn in &idle {
            if let Some(qp) = self.qps.get_mut(*qpn) {
                qp.handed.trapped = false;
                qp.handed.done = false;
                qp.active = false;
            }
        }
        let Some(gpu) = &mut self.gpu else { return };
        gpu.spare = gpu.copying.take();
        gpu.resumed = Some(Instant::now());
        gpu.moved = Instant::now();
        if self.tracer.is_on() {
            self.tracer.line("copying", format_args!("ends"));
        }
        self.deactivate(&idle);
    }

    /// Begins a pass of the thread that executes by copies: fetches what was posted since the last.
    /// Returns how many doorbells that takes the place of.
    pub(in crate::soft) fn begin_pass(&mut self) -> usize {
        let (mut looked, mut others) = (Vec::new(), Vec::new());
        for place in 0..self.qps.places() {
            let qpn = self.qps.number(place);
            let state = self.qps.get(qpn).map(|qp| (qp.state, qp.handed.trapped));
            let Some((QpState::Rts | QpState::Err, trapped)) = state else { continue };
            if !trapped {
                others.push(qpn);
            }
            looked.push(qpn);
        }
        if !others.is_empty() {
            self.stop_all(&others);
        }
        let rung = self.look_at_records(&looked);
        let mut images: Vec<(u32, Place, u64, u64, u64)> = Vec::new();
        for qpn in &looked {
            let Some(qp) = self.qps.get(*qpn).filter(|qp| qp.consumer != qp.producer) else { continue };
            let queue = Place { address: qp.sq.addr() as u64, on_host: self.is_on_host(qp.sq_umem) };
            images.push((*qpn, queue, qp.depth(), qp.consumer, qp.producer - qp.consumer));
        }
        if !images.is_empty() {
            self.tell_of_copies();
            if let Some(gpu) = &mut self.gpu {
                gpu.passes += 1;
            }
            self.with_copying(|copying| {
                copying.begin_images();
                for (qpn, queue, depth, first, blocks) in &images {
                    // SAFETY: the queue lies in a umem that stays registered while the QP lives.
                    unsafe { copying.fetch_image(*qpn, *queue, *depth, *first, *blocks) }?;
                }
                copying.end_images()
            });
        }
        rung
    }

    pub(super) fn look_at_records(&mut self, qpns: &[u32]) -> usize {
        let mut addresses = Vec::with_capacity(qpns.len());
        for qpn in qpns {
            let Some(qp) = self.qps.get(*qpn) else { continue };
            let record = qp.dbr.wrapping_add(dbr::SEND_OFFSET);
            // SAFETY: the record lies in a umem that stays registered while the QP lives, and is
            // this process's memory too.
            let known = self.is_on_host(qp.sq_umem).then(|| unsafe { memory::load32(record, Ordering::Acquire) });
            addresses.push((*qpn, record.addr() as u64, known));
        }
        let unknown: Vec<u64> = addresses.iter().filter(|each| each.2.is_none()).map(|each| each.1).collect();
        let words = if unknown.is_empty() {
            Vec::new()
        } else {
            // SAFETY: as above.
            let words = self.with_copying(|copying| unsafe { copying.read_all(&unknown, 4) });
            let Some(words) = words else { return 0 };
            words.iter().map(|bytes| bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))).collect()
        };
        let mut words = words.into_iter();
        let mut rung = 0;
        for (qpn, _, known) in addresses {
            let Some(word) = known.or_else(|| words.next()) else { break };
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            if self.take_record(&mut qp, word, None) {
                self.counters.doorbells += 1;
                rung += 1;
            }
            self.qps.put_back(qpn, qp);
        }
        rung
    }

    /// Returns whether the memory of a umem is this process's too.
    pub(in crate::soft) fn is_on_host(&self, umem: u32) -> bool {
        self.umems.get(&umem).is_some_and(|umem| !umem.shared)
    }

    pub(super) fn tell_of_copies(&mut self) {
        let Some(gpu) = &mut self.gpu else { return };
        if gpu.mode == CopyMode::WhenNeeded && !std::mem::replace(&mut gpu.told, true) {
            tracing::warn!(
                gid = %self.gid,
                "the software HCA's kernel finds no room beside the program's kernels; a thread of the CPU executes by copies while that is so, \
                 which is slower, atomics above all"
            );
        }
    }

    /// Ends a pass: completes what was executed, and has a kernel execute what only kernels do.
    /// Returns how much that was.
    pub(in crate::soft) fn end_pass(&mut self) -> usize {
        self.with_copying(Copying::settle);
        let aside: Vec<u32> = self.qps.iter().filter(|(_, qp)| qp.handed.aside).map(|(qpn, _)| qpn).collect();
        if aside.is_empty() || self.dead.is_some() {
            return 0;
        }
        let mut before = Vec::new();
        for qpn in &aside {
            let Some(qp) = self.qps.get_mut(*qpn) else { continue };
            qp.handed.aside = false;
            before.push(qp.consumer);
        }
        self.resume_all(&aside);
        self.with_gpu(|gpu| {
            let since = Instant::now();
            let ended = gpu.launch_aside(ASIDE_RUN, ASIDE_IDLE);
            gpu.asides += 1;
            gpu.aside_time += since.elapsed();
            ended
        });
        self.stop_all(&aside);
        let mut done = 0;
        let mut stuck = Vec::new();
        for (qpn, before) in aside.iter().zip(before) {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            done += native(qp.consumer.saturating_sub(before));
            let in_vain = qp.consumer == before;
            if in_vain {
                stuck.push(*qpn);
            }
            if self.stopped_too_often(&mut qp, in_vain) {
                self.refuse(&mut qp);
            }
            self.qps.put_back(*qpn, qp);
        }
        // Keys with one place in the tables replace each other in a pass: QPs that found another's
        // there come last in the next one.
        self.active.sort_by_key(|qpn| stuck.contains(qpn));
        done
    }
}
