//! Queue pairs in the tables: what the kernel knows of each, and whether the kernel or the engine's
//! thread executes it.

use super::slices::Ringer;
use crate::prm::qpc::{QpState, SendDbrMode};
use crate::soft::control::FIRST_QPN;
use crate::soft::failure::Failure;
use crate::soft::limits::PAGE_BELLS;
use crate::soft::state::{Engine, Handed, Qp};
use crate::soft::tables::{QpConstants, QpContext, QpProgress};
use crate::wire::cqe::Syndrome;
use crate::wire::{dbr, doorbell};
use oxshmem_system::words::{count32, low16, low32, native};
use std::mem::offset_of;

/// How often the kernel may hand the same WQE to the host without need.
const DISAGREEMENTS: u32 = 3;
/// Bytes of a `QpProgress` that are used.
pub(super) const PROGRESS_BYTES: usize = 32;
const _: () = assert!(offset_of!(QpProgress, trap) == 24 && offset_of!(QpProgress, bell) == 20);

/// Returns what is rung for all that is posted to a QP.
pub(super) fn doorbell_for(qp: &Qp) -> u64 {
    let mut bytes = [0; doorbell::LEN];
    doorbell::Repr::producer(low16(qp.producer), qp.qpn).emit(&mut doorbell::Segment::new_unchecked(&mut bytes[..]));
    u64::from_ne_bytes(bytes)
}

/// Returns the number, from 1, of the register of a QP that has the one of its place.
pub(super) fn bell_of(qpn: u32) -> u32 {
    qpn - FIRST_QPN + 1
}

impl Engine {
    /// Takes a QP from the kernel, which has stopped it, or (`stop`) has yet to be stopped.
    pub(in crate::soft) fn take_over(&mut self, qpn: u32, stop: bool) {
        if !self.is_on_gpu() {
            return;
        }
        let Some(mut qp) = self.qps.lend(qpn) else { return };
        if !qp.handed.trapped && self.load_progress(&mut qp, stop) {
            qp.handed.trapped = true;
            qp.handed.done = false;
            if matches!(qp.state, QpState::Rts | QpState::Err) {
                qp.producer = qp.consumer;
                self.read_doorbell_record(&mut qp, None);
            } else if !stop {
                let text = format!("doorbell in state {}; it must be RTS", qp.state.name());
                self.violation(qp.qpn, 0, None, text);
            }
            self.activate(&mut qp);
            if self.tracer.is_on() {
                let (consumer, producer) = (qp.consumer, qp.producer);
                self.tracer.line("stopped", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
            }
        }
        self.qps.put_back(qpn, qp);
    }

    /// Loads how far the kernel is; returns whether it has stopped the QP.
    pub(super) fn load_progress(&mut self, qp: &mut Qp, stop: bool) -> bool {
        let qpn = qp.qpn;
        let progress = self.with_gpu(|gpu| {
            let at = gpu.qp(qpn) + offset_of!(QpContext, progress) as u64;
            if stop {
                gpu.pause()?;
                gpu.write(at + offset_of!(QpProgress, trap) as u64, &1u64)?;
            }
            gpu.read::<QpProgress>(at)
        });
        let Some(progress) = progress else { return false };
        self.take_progress(qp, &progress);
        progress.trap != 0
    }

    pub(super) fn take_progress(&mut self, qp: &mut Qp, progress: &QpProgress) {
        qp.consumer = progress.consumer;
        qp.moved = native(progress.moved);
        qp.handed.bell = progress.bell;
        qp.handed.cq_producer = progress.cq_producer;
        if let Some(cq) = self.cqs.get_mut(qp.context.cqn_snd) {
            cq.producer = progress.cq_producer;
        }
    }

    /// Stops QPs and finds out how far the kernel was with each, in one go, while the engine's
    /// thread executes by copies.
    pub(super) fn stop_all(&mut self, qpns: &[u32]) {
        let Some(gpu) = &self.gpu else { return };
        let places: Vec<u64> = qpns.iter().map(|qpn| gpu.qp(*qpn) + offset_of!(QpContext, progress) as u64).collect();
        let read = self.with_copying(|copying| {
            for place in &places {
                // SAFETY: inside the tables.
                unsafe { copying.write_words(place + offset_of!(QpProgress, trap) as u64, &[1]) }?;
            }
            // SAFETY: as above.
            unsafe { copying.read_all(&places, PROGRESS_BYTES) }
        });
        for (qpn, bytes) in qpns.iter().zip(read.unwrap_or_default()) {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            let word = |at: usize| {
                bytes.get(at..at + 8).map_or(0, |word| u64::from_ne_bytes(std::array::from_fn(|i| word[i])))
            };
            let progress = QpProgress {
                consumer: word(offset_of!(QpProgress, consumer)),
                moved: word(offset_of!(QpProgress, moved)),
                cq_producer: low32(word(offset_of!(QpProgress, cq_producer))),
                bell: (word(offset_of!(QpProgress, cq_producer)) >> 32) as u32,
                ..QpProgress::default()
            };
            self.take_progress(&mut qp, &progress);
            qp.producer = qp.producer.max(qp.consumer);
            if !qp.handed.trapped {
                qp.handed.trapped = true;
                qp.handed.done = false;
                // The record is looked at next.
                qp.producer = qp.consumer;
                self.activate(&mut qp);
                if self.tracer.is_on() {
                    let consumer = qp.consumer;
                    self.tracer.line("stopped", format_args!("qp={qpn:#x} at={consumer}"));
                }
            }
            self.qps.put_back(*qpn, qp);
        }
    }

    /// Lets the kernel go on with QPs, in one go, while no slice executes and the engine's thread
    /// does: each is rung for.
    pub(super) fn resume_all(&mut self, qpns: &[u32]) {
        self.learn_bells(qpns);
        let mut writes: Vec<(u64, Vec<u64>)> = Vec::new();
        for qpn in qpns {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            if let Some(cq) = self.cqs.get(qp.context.cqn_snd) {
                qp.handed.cq_producer = cq.producer;
            }
            self.write_constants(&mut qp);
            if let Some(gpu) = &mut self.gpu {
                let Handed { bell, cq_producer, .. } = qp.handed;
                let words = vec![qp.consumer, qp.moved as u64, u64::from(bell) << 32 | u64::from(cq_producer), 0];
                writes.push((gpu.qp(*qpn) + offset_of!(QpContext, progress) as u64, words));
                if bell != 0 {
                    gpu.rings += 1;
                    writes.push((gpu.register(bell), vec![doorbell_for(&qp)]));
                }
            }
            self.qps.put_back(*qpn, qp);
        }
        self.with_copying(|copying| {
            for (at, words) in &writes {
                // SAFETY: inside the tables, aligned.
                unsafe { copying.write_words(*at, words) }?;
            }
            copying.end_writes()
        });
    }

    /// Brings `consumer` and `producer` of a QP that the kernel serves up to date.
    pub(in crate::soft) fn refresh(&mut self, qp: &mut Qp) {
        if self.is_on_gpu() && !qp.handed.trapped && qp.state == QpState::Rts {
            self.load_progress(qp, false);
            qp.producer = qp.consumer;
            if qp.mode() == SendDbrMode::NoDbrExt {
                return;
            }
            let record = u32::from_be(self.load_from_gpu(qp.dbr.addr() as u64 + dbr::SEND_OFFSET as u64));
            qp.producer += u64::from(low16(u64::from(record)).wrapping_sub(low16(qp.producer)));
        }
    }

    /// Gives a QP that needs nothing more back to the kernel. Returns false if it stays: one in the
    /// error state does, and its doorbell record is looked at in housekeeping.
    pub(in crate::soft) fn hand_back(&mut self, qp: &mut Qp) -> bool {
        let ready = qp.handed.trapped && qp.state == QpState::Rts && (qp.handed.done || qp.consumer == qp.producer);
        if !ready || self.dead.is_some() || self.is_copying() {
            return false;
        }
        let in_vain = qp.handed.done;
        if self.stopped_too_often(qp, in_vain) {
            self.refuse(qp);
            return false;
        }
        if let Some(cq) = self.cqs.get(qp.context.cqn_snd) {
            qp.handed.cq_producer = cq.producer;
        }
        self.learn_bell(qp);
        self.write_constants(qp);
        self.write_progress(qp, false);
        qp.handed.trapped = false;
        qp.handed.done = false;
        if self.tracer.is_on() {
            let (qpn, consumer, producer) = (qp.qpn, qp.consumer, qp.producer);
            self.tracer.line("resumed", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
        }
        self.ring_for(qp);
        true
    }

    /// Notes at which WQE a QP leaves the kernel, or returns to it; `in_vain`: where it was before.
    /// Returns whether it has been there too often, although nothing in the tables has changed, as
    /// when another key takes the place of the QP's.
    pub(super) fn stopped_too_often(&self, qp: &mut Qp, in_vain: bool) -> bool {
        let changes = self.gpu.as_ref().map_or(0, |gpu| gpu.changes);
        let (index, before, count) = qp.handed.stopped_at;
        let again = in_vain && (index, before) == (qp.consumer, changes);
        let count = if again { count + 1 } else { 0 };
        qp.handed.stopped_at = (qp.consumer, changes, count);
        count > DISAGREEMENTS
    }

    /// Rings for what is posted to a QP that the kernel gets. What was rung meanwhile was rung in
    /// vain, so this is done in any case, unless the kernel has seen none of the QP's doorbells:
    /// then it has yet to see the first.
    pub(super) fn ring_for(&mut self, qp: &Qp) {
        if qp.handed.bell == 0 {
            return;
        }
        let mut bytes = [0; doorbell::LEN];
        doorbell::Repr::producer(low16(qp.producer), qp.qpn)
            .emit(&mut doorbell::Segment::new_unchecked(&mut bytes[..]));
        let bell = qp.handed.bell;
        self.with_gpu(|gpu| {
            gpu.rings += 1;
            gpu.write(gpu.register(bell), &u64::from_ne_bytes(bytes))
        });
    }

    /// Writes what the host knows of a QP to its context.
    pub(in crate::soft) fn write_constants(&mut self, qp: &mut Qp) {
        if !self.is_on_gpu() {
            return;
        }
        let facts = qp.remote.as_ref().filter(|remote| remote.seq & 1 == 0).map(|remote| (remote.peer, remote.facts));
        qp.handed.connected = facts.is_some();
        let cq = self.cqs.get(qp.context.cqn_snd);
        let constants = QpConstants {
            sq: qp.sq.addr() as u64,
            dbr: qp.dbr.addr() as u64 + dbr::SEND_OFFSET as u64,
            cqe: cq.map_or(0, |cq| cq.base.addr() as u64),
            qpn: qp.qpn,
            depth_log2: qp.context.log_sq_size.into(),
            state: qp.state as u32,
            pd: qp.context.pd,
            log_msg_max: qp.context.log_msg_max.into(),
            uar_page: match self.card_doorbells {
                true => bell_of(qp.qpn).div_ceil(PAGE_BELLS),
                false => qp.context.uar_page,
            },
            cq_log_size: cq.map_or(0, |cq| cq.context.log_cq_size.into()),
            peer: facts.map_or(0, |(peer, _)| count32(peer) + 1),
            accepts: facts.map_or(0, |(_, facts)| facts.rights),
            remote_pd: facts.map_or(0, |(_, facts)| facts.pd),
            remote_qpn: facts.map_or(0, |(_, facts)| facts.qpn),
            in_order: self.card_doorbells.into(),
            reserved0: [0; 14],
        };
        if qp.handed.written == Some(constants) {
            return;
        }
        qp.handed.written = Some(constants);
        let qpn = qp.qpn;
        self.with_gpu(|gpu| {
            let at = gpu.qp(qpn);
            if gpu.read::<QpConstants>(at)? != constants { gpu.change(at, &constants) } else { Ok(()) }
        });
    }

    /// Writes how far a QP is to its context; the kernel goes on from there, unless `trapped`.
    pub(in crate::soft) fn write_progress(&mut self, qp: &Qp, trapped: bool) {
        if !self.is_on_gpu() {
            return;
        }
        let progress = QpProgress {
            consumer: qp.consumer,
            moved: qp.moved as u64,
            cq_producer: qp.handed.cq_producer,
            bell: qp.handed.bell,
            trap: trapped.into(),
            reserved1: [0; 25],
        };
        let qpn = qp.qpn;
        self.with_gpu(|gpu| {
            gpu.pause()?;
            gpu.write(gpu.qp(qpn) + offset_of!(QpContext, progress) as u64, &progress)
        });
    }

    /// Takes a QP out of the tables.
    pub(in crate::soft) fn erase_qp(&mut self, qpn: u32) {
        if self.tracer.is_on()
            && let Some(mut qp) = self.qps.lend(qpn)
        {
            self.refresh(&mut qp);
            let (consumer, producer) = (qp.consumer, qp.producer);
            self.tracer.line("erased", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
            self.qps.put_back(qpn, qp);
        }
        self.with_gpu(|gpu| {
            gpu.change(gpu.qp(qpn), &QpConstants::default())?;
            if gpu.rung == Ringer::LikeCards {
                // What was put off. Other ways of ringing clear whole pages.
                gpu.write(gpu.register(bell_of(qpn)), &0u64)?;
            }
            gpu.write(gpu.qp(qpn) + offset_of!(QpContext, progress) as u64, &QpProgress::default())
        });
    }

    /// Finds out the registers of QPs whose doorbells the kernel first saw while the host had them,
    /// in one go.
    pub(super) fn learn_bells(&mut self, qpns: &[u32]) {
        let Some(gpu) = &self.gpu else { return };
        let unknown = qpns.iter().copied().filter(|qpn| self.qps.get(*qpn).is_some_and(|qp| qp.handed.bell == 0));
        let bell = offset_of!(QpContext, progress) + offset_of!(QpProgress, bell);
        let (unknown, places): (Vec<u32>, Vec<u64>) = unknown.map(|qpn| (qpn, gpu.qp(qpn) + bell as u64)).unzip();
        if unknown.is_empty() {
            return;
        }
        // SAFETY: inside the tables.
        let bells = self.with_copying(|copying| unsafe { copying.read_all(&places, 4) }).unwrap_or_default();
        for (qpn, bell) in unknown.into_iter().zip(bells) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.handed.bell = bell.first_chunk().map_or(0, |bell| u32::from_ne_bytes(*bell));
            }
        }
    }

    /// Learns the register of a QP whose doorbells the kernel first saw while the host had the QP.
    pub(super) fn learn_bell(&mut self, qp: &mut Qp) {
        if qp.handed.bell != 0 {
            return;
        }
        let qpn = qp.qpn;
        let progress =
            self.with_gpu(|gpu| gpu.read::<QpProgress>(gpu.qp(qpn) + offset_of!(QpContext, progress) as u64));
        qp.handed.bell = progress.map_or(0, |progress| progress.bell);
    }

    pub(super) fn refuse(&mut self, qp: &mut Qp) {
        let text = "the engine's kernel refuses a work request that is in order".to_owned();
        let failure = Failure::new(Syndrome::LocalQpOperation, text);
        self.fail(qp, 0, 1, &failure);
    }
}
