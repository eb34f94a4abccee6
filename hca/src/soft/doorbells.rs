//! Doorbells: which registers there are, and what was posted when one is rung.

use super::failure::Failure;
use super::limits::{REGISTER_STRIDE, REGISTERS_PER_PAGE};
use super::memory;
use super::state::{Engine, Qp};
use crate::prm::qpc::QpState;
use crate::wire::cqe::Syndrome;
use crate::wire::{dbr, doorbell};
use oxshmem_system::words::low16;
use std::sync::atomic::{AtomicU64, Ordering};

impl Engine {
    /// Whether a doorbell waits to be taken in.
    pub(super) fn doorbell_pending(&self) -> bool {
        // SAFETY: registers lie in UAR pages that the engine owns.
        self.registers.iter().any(|(register, _)| unsafe { memory::load64(*register, Ordering::Relaxed) } != 0)
    }

    /// Rebuild the list of registers after a UAR page came or went.
    pub(super) fn list_registers(&mut self) {
        if self.is_on_gpu() && !self.card_doorbells {
            let highest = self.uars.iter().map(|(number, _)| number).max();
            self.watch_pages(highest.unwrap_or_default());
            return;
        }
        self.registers = self
            .uars
            .iter()
            .flat_map(|(number, uar)| {
                let base = uar.base;
                (0..REGISTERS_PER_PAGE).map(move |i| {
                    // SAFETY: the register lies within the page.
                    (unsafe { base.add(doorbell::FIRST_REGISTER + i * REGISTER_STRIDE) }, number)
                })
            })
            .collect();
    }

    pub(super) fn scan_doorbells(&mut self) -> usize {
        let mut rung = 0;
        for i in 0..self.registers.len() {
            let (register, uar) = self.registers[i];
            // SAFETY: registers lie in UAR pages that the engine owns, aligned to 8.
            let value = unsafe { AtomicU64::from_ptr(register.cast()) };
            if value.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: the doorbell record and the WQEs that it covers were written before.
            let value = value.swap(0, Ordering::Acquire);
            self.counters.doorbells += 1;
            rung += 1;
            self.ring(value, uar);
            if self.card_doorbells {
                self.look_behind(uar);
            }
        }
        rung
    }

    /// Whether the record alone never starts work of a QP, as on a card: those that have a register
    /// to themselves, which keeps their last doorbell. Kernels look at records.
    pub(super) fn needs_doorbell(&self, qpn: u32, uar: u32) -> bool {
        self.card_doorbells && !self.is_on_gpu() && self.uars.get(uar).is_some_and(|page| page.qps == [qpn])
    }

    /// Look at the doorbell records of all QPs that ring in this page: a register keeps the last
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
            if self.is_on_gpu() {
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

    fn ring(&mut self, value: u64, uar: u32) {
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
        if self.faults.loses_doorbell(qp.ordinal, qp.counters.doorbells) {
            if self.tracer.is_on() {
                self.tracer.line("fault", format_args!("lost doorbell {bell}"));
            }
        } else if qp.context.uar_page != uar {
            let text = format!("doorbell in UAR page {uar}, but the QP was created with page {}", qp.context.uar_page);
            self.violation(qp.qpn, bell.index.into(), None, text);
        } else if matches!(qp.state, QpState::Rts | QpState::Err) {
            // The kernel looks at the record itself, of this QP and of those after it.
            if !self.is_on_gpu() {
                self.read_doorbell_record(&mut qp, Some((bell.index, self.needs_doorbell(bell.qpn, uar))));
            }
        } else {
            let text = format!("doorbell in state {}; it must be RTS", qp.state.name());
            self.violation(qp.qpn, bell.index.into(), None, text);
        }
        self.qps.put_back(bell.qpn, qp);
    }

    /// Take over the doorbell record, or the index of a doorbell, if that is said to count. Returns
    /// true if it moved.
    pub(super) fn read_doorbell_record(&mut self, qp: &mut Qp, rung: Option<(u16, bool)>) -> bool {
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

    /// Take over the doorbell record, whose word this is as it lies in memory. Returns true if it
    /// moved.
    pub(super) fn take_record(&mut self, qp: &mut Qp, word: u32, rung: Option<(u16, bool)>) -> bool {
        let word = u32::from_be(word);
        let problem = match dbr::Repr::from_word(word) {
            Err(error) => error.to_string(),
            Ok(record) => {
                let counts = rung.filter(|(_, counts)| *counts).map_or(record.send, |(rung, _)| rung);
                let producer = qp.producer + u64::from(counts.wrapping_sub(low16(qp.producer)));
                let ahead = rung.map(|(rung, _)| rung).filter(|rung| record.send.wrapping_sub(*rung) > 1 << 15);
                if producer - qp.consumer > qp.depth() {
                    format!(
                        "dbr.send is {}: it covers {} blocks that are not executed yet, but the queue has {}",
                        record.send,
                        producer - qp.consumer,
                        qp.depth()
                    )
                } else {
                    if let Some(rung) = ahead {
                        let text = format!("doorbell.index is {rung}, ahead of the doorbell record, {}", record.send);
                        self.violation(qp.qpn, producer, None, text);
                    }
                    let moved = producer != qp.producer;
                    let before = std::mem::replace(&mut qp.producer, producer);
                    if moved && !self.faults.sources.is_zero() && !self.is_on_gpu() {
                        self.note_sources(qp, before);
                    }
                    if moved {
                        self.activate(qp);
                    }
                    return moved;
                }
            }
        };
        if qp.state == QpState::Rts {
            let failure = Failure::new(Syndrome::LocalQpOperation, problem);
            self.fail(qp, 0, qp.consumer, &failure);
        }
        false
    }
}
