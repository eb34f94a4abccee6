//! Doorbells: which registers there are, and what was posted when one is rung.

use super::failure::Failure;
use super::limits::{REGISTER_STRIDE, REGISTER_STRIDE_WITHOUT_RECORD, REGISTERS_PER_PAGE};
use super::memory;
use super::state::{Engine, Qp, Register};
use crate::prm::qpc::{QpState, SendDbrMode};
use crate::wire::cqe::Syndrome;
use crate::wire::{dbr, doorbell};
use oxshmem_system::words::low16;
use std::sync::atomic::{AtomicU64, Ordering};

impl Engine {
    /// Returns whether a doorbell waits to be taken in.
    pub(super) fn doorbell_pending(&self) -> bool {
        // SAFETY: registers lie in UAR pages that the engine owns.
        self.registers.iter().any(|register| unsafe { memory::load64(register.at, Ordering::Relaxed) } != 0)
    }

    /// Rebuilds the list of registers after a UAR page came or went.
    pub(super) fn list_registers(&mut self) {
        if self.is_on_gpu() && !self.card_doorbells {
            let highest = self.uars.iter().map(|(number, _)| number).max();
            self.watch_pages(highest.unwrap_or_default());
            return;
        }
        let alone = self.card_doorbells;
        self.registers = self
            .uars
            .iter()
            .flat_map(|(number, uar)| {
                let base = uar.base;
                let ordinary = (0..REGISTERS_PER_PAGE).map(|i| doorbell::FIRST_REGISTER + i * REGISTER_STRIDE);
                let ordinary = ordinary.map(|offset| (offset, SendDbrMode::DbrValid));
                let others = registers_without_record(alone).map(|offset| (offset, SendDbrMode::NoDbrExt));
                ordinary.chain(others).map(move |(offset, mode)| Register {
                    // SAFETY: the register lies within the page.
                    at: unsafe { base.add(offset) },
                    uar: number,
                    mode,
                })
            })
            .collect();
    }

    pub(super) fn scan_doorbells(&mut self) -> usize {
        let mut rung = 0;
        for i in 0..self.registers.len() {
            let Register { at, uar, mode } = self.registers[i];
            // SAFETY: registers lie in UAR pages that the engine owns, aligned to 8.
            let value = unsafe { AtomicU64::from_ptr(at.cast()) };
            if value.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: the WQEs were written before, and the doorbell record that covers them, if
            // the QP has one.
            let value = value.swap(0, Ordering::Acquire);
            self.counters.doorbells += 1;
            rung += 1;
            self.ring(value, uar, mode);
            if self.card_doorbells && mode == SendDbrMode::DbrValid {
                self.look_behind(uar);
            }
        }
        rung
    }

    /// Returns whether the record alone never starts work of a QP, as on a card: those that have a
    /// register to themselves, which keeps their last doorbell. Kernels look at records.
    pub(super) fn needs_doorbell(&self, qpn: u32, uar: u32) -> bool {
        self.card_doorbells && !self.is_on_gpu() && self.uars.get(uar).is_some_and(|page| page.qps == [qpn])
    }

    /// Looks at the doorbell records of all QPs that ring in this page: a register keeps the last
    /// doorbell only.
    fn look_behind(&mut self, uar: u32) {
        let Some(page) = self.uars.get(uar) else { return };
        if page.qps.first().is_some_and(|qpn| self.needs_doorbell(*qpn, uar)) {
            return;
        }
        let Some(page) = self.uars.get_mut(uar) else { return };
        let qps = std::mem::take(&mut page.qps);
        for qpn in &qps {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            if qp.mode() == SendDbrMode::NoDbrExt {
                // It has a register to itself, see create_qp.
            } else if self.is_on_gpu() {
                self.ring_kernel(&qp);
            } else if matches!(qp.state, QpState::Rts | QpState::Err) {
                self.read_doorbell_record(&mut qp, None);
            }
            self.qps.put_back(*qpn, qp);
        }
        if let Some(page) = self.uars.get_mut(uar) {
            page.qps = qps;
        }
    }

    fn ring(&mut self, value: u64, uar: u32, mode: SendDbrMode) {
        let bell = match doorbell::Repr::from_register(value) {
            Ok(bell) => bell,
            Err(error) => return self.violation(0, 0, None, format!("doorbell in UAR page {uar}: {error}")),
        };
        if self.tracer.is_on() {
            self.tracer.line("doorbell", format_args!("{bell} uar={uar}"));
        }
        let Some(mut qp) = self.qps.lend(bell.qpn) else {
            return self.violation(bell.qpn, bell.index.into(), None, format!("doorbell.qpn: no QP {:#x}", bell.qpn));
        };
        qp.counters.doorbells += 1;
        // A card loses no doorbell of a QP without a record, which nothing would make good.
        let may_be_lost = qp.mode() == SendDbrMode::DbrValid;
        if may_be_lost && self.faults.loses_doorbell(qp.ordinal, qp.counters.doorbells) {
            if self.tracer.is_on() {
                self.tracer.line("fault", format_args!("lost doorbell {bell}"));
            }
        } else if qp.context.uar_page != uar {
            let text = format!("doorbell in UAR page {uar}, but the QP was created with page {}", qp.context.uar_page);
            self.violation(qp.qpn, bell.index.into(), None, text);
        } else if qp.mode() != mode {
            let text = format!(
                "doorbell in a register for QPs of {}, but the QP was created with {}",
                mode.name(),
                qp.mode().name()
            );
            self.violation(qp.qpn, bell.index.into(), None, text);
        } else if mode == SendDbrMode::NoDbrExt && matches!(qp.state, QpState::Rts | QpState::Err) {
            self.take_posted(&mut qp, bell.producer_index(), "doorbell.index");
        } else if matches!(qp.state, QpState::Rts | QpState::Err) {
            // The kernel looks at the record itself, of this QP and of those after it.
            if !self.is_on_gpu() {
                let rung = (bell.producer_index(), self.needs_doorbell(bell.qpn, uar));
                self.read_doorbell_record(&mut qp, Some(rung));
            }
        } else {
            let text = format!("doorbell in state {}; it must be RTS", qp.state.name());
            self.violation(qp.qpn, bell.index.into(), None, text);
        }
        self.qps.put_back(bell.qpn, qp);
    }

    /// Takes over the doorbell record, or the producer index of a doorbell, if that is said to
    /// count. Returns true if it moved. A QP without a record goes on with what its doorbells have
    /// named.
    pub(super) fn read_doorbell_record(&mut self, qp: &mut Qp, rung: Option<(u16, bool)>) -> bool {
        if qp.mode() == SendDbrMode::NoDbrExt {
            return false;
        }
        let record = qp.dbr.wrapping_add(dbr::SEND_OFFSET);
        let word = if self.is_on_gpu() {
            self.load_from_gpu(record.addr() as u64)
        } else {
            // SAFETY: the record lies in a umem that stays registered while the QP lives, aligned
            // to 8.
            unsafe { memory::load32(record, Ordering::Acquire) }
        };
        self.take_record(qp, word, rung)
    }

    /// Takes over the doorbell record, whose word this is as it lies in memory. Returns true if it
    /// moved.
    pub(super) fn take_record(&mut self, qp: &mut Qp, word: u32, rung: Option<(u16, bool)>) -> bool {
        let record = match dbr::Repr::from_word(u32::from_be(word)) {
            Ok(record) => record.send,
            Err(error) => return self.refuse_posted(qp, error.to_string()),
        };
        let counts = rung.filter(|(_, counts)| *counts).map_or(record, |(rung, _)| rung);
        let ahead = rung.map(|(rung, _)| rung).filter(|rung| record.wrapping_sub(*rung) > 1 << 15);
        if let Some(rung) = ahead
            && posted(qp, counts) - qp.consumer <= qp.depth()
        {
            let text = format!("doorbell.index is {rung}, ahead of the doorbell record, {record}");
            self.violation(qp.qpn, posted(qp, counts), None, text);
        }
        self.take_posted(qp, counts, "dbr.send")
    }

    /// Takes over how many blocks were posted, modulo 2^16, as `field` says it. Returns true if
    /// that moved. What goes back, as a doorbell does that was overtaken, covers more than the
    /// queue has.
    fn take_posted(&mut self, qp: &mut Qp, counter: u16, field: &str) -> bool {
        let producer = posted(qp, counter);
        if producer - qp.consumer > qp.depth() {
            let text = format!(
                "{field} is {counter}: it covers {} blocks that are not executed yet, but the queue has {}",
                producer - qp.consumer,
                qp.depth()
            );
            return self.refuse_posted(qp, text);
        }
        let moved = producer != qp.producer;
        let before = std::mem::replace(&mut qp.producer, producer);
        if moved && !self.faults.sources.is_zero() && !self.is_on_gpu() {
            self.note_sources(qp, before);
        }
        if moved {
            self.activate(qp);
        }
        moved
    }

    /// Fails a QP whose record or doorbell is wrong. No work request is, and those that wait are
    /// flushed.
    fn refuse_posted(&mut self, qp: &mut Qp, problem: String) -> bool {
        if qp.state == QpState::Rts {
            let failure = Failure::new(Syndrome::LocalQpOperation, problem);
            self.fail(qp, 0, 0, &failure);
        }
        false
    }
}

/// Blocks posted to a QP, given that number modulo 2^16 as it is now.
fn posted(qp: &Qp, counter: u16) -> u64 {
    qp.producer + u64::from(counter.wrapping_sub(low16(qp.producer)))
}

/// Returns the offsets in a UAR page of the registers for QPs without a doorbell record: one, as on
/// a card, or one for each QP.
pub(super) fn registers_without_record(one: bool) -> impl Iterator<Item = usize> {
    (0..if one { 1 } else { REGISTERS_PER_PAGE }).map(|i| doorbell::WITHOUT_RECORD + i * REGISTER_STRIDE_WITHOUT_RECORD)
}
