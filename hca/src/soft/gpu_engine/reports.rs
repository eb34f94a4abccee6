//! What slices report: queue pairs that the kernel has stopped, and doorbells that it could not
//! use.

use crate::soft::control::FIRST_QPN;
use crate::soft::limits::PAGE_BELLS;
use crate::soft::state::Engine;
use crate::soft::tables::{Control, EVENT_DOORBELL, EVENT_TRAP, EVENTS, Event, Tables};
use crate::wire::doorbell;
use oxshmem_system::words::native;
use std::mem::offset_of;

impl Engine {
    /// Looks whether slices have ended, and takes in what they report. Returns how much there was.
    pub(in crate::soft) fn collect(&mut self) -> usize {
        let Some(control) = self.with_gpu(|gpu| {
            if !gpu.running.is_empty() {
                gpu.look()?;
            }
            if gpu.ended == gpu.reported && !gpu.unread {
                return Ok(None);
            }
            gpu.reported = gpu.ended;
            gpu.read::<Control>(gpu.at(offset_of!(Tables, control))).map(Some)
        }) else {
            return 0;
        };
        control.map_or(0, |control| self.take_report(&control))
    }

    pub(super) fn take_report(&mut self, control: &Control) -> usize {
        let Some(gpu) = &mut self.gpu else { return 0 };
        let served = control.served.wrapping_sub(gpu.served);
        gpu.served = control.served;
        let first = gpu.events;
        let new = control.events.wrapping_sub(first);
        if new > EVENTS as u64 {
            // More than the ring holds: look at every QP.
            gpu.events = control.events;
            for place in 0..self.qps.places() {
                let qpn = self.qps.number(place);
                self.take_over(qpn, false);
            }
        } else {
            for number in first..control.events {
                let at = offset_of!(Tables, events) + native(number % EVENTS as u64) * size_of::<Event>();
                let Some(event) = self.with_gpu(|gpu| gpu.read::<Event>(gpu.at(at))) else { break };
                if event.number != number + 1 {
                    // A slice that runs is about to write it.
                    break;
                }
                if let Some(gpu) = &mut self.gpu {
                    gpu.events = number + 1;
                }
                match event.kind {
                    EVENT_TRAP => self.take_over(FIRST_QPN + event.place, false),
                    EVENT_DOORBELL => self.wrong_doorbell(event.value, event.place / PAGE_BELLS + 1),
                    other => {
                        self.violation(0, 0, None, format!("the engine's kernel reported an event of kind {other}"))
                    }
                }
            }
        }
        if let Some(gpu) = &mut self.gpu {
            gpu.unread = gpu.events != control.events;
        }
        native(served + new)
    }

    /// Says why the kernel could not use a doorbell.
    pub(super) fn wrong_doorbell(&mut self, value: u64, uar: u32) {
        if self.card_doorbells {
            // They were checked when they were passed on; the QP is gone since.
            return;
        }
        let bell = match doorbell::Repr::from_register(value) {
            Ok(bell) => bell,
            Err(error) => return self.violation(0, 0, None, format!("doorbell in UAR page {uar}: {error}")),
        };
        let text = match self.qps.get(bell.qpn) {
            None => format!("doorbell.qpn: no QP {:#x}", bell.qpn),
            Some(qp) if qp.context.uar_page != uar => {
                format!("doorbell in UAR page {uar}, but the QP was created with page {}", qp.context.uar_page)
            }
            Some(_) => "doorbell in a second register; a QP uses one".to_owned(),
        };
        self.violation(bell.qpn, bell.index.into(), None, text);
    }
}
