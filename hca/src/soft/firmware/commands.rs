//! Each command: what it is used for, and what it does.

use super::checks::{Outcome, Refusal, refuse};
use super::objects::{Object, Purpose};
use crate::error::{Error, Result};
use crate::port::Gid;
use crate::prm::qpc::{self, QpState};
use crate::prm::{self, CommandStatus, Opcode, counter, cq, mkey, pd, qp, uar};
use crate::soft::control::{self, MkeyFacts};
use crate::soft::fabric::link::Link;
use crate::soft::fabric::peer::Peer;
use crate::soft::firmware::checks::{busy, decode, full, no_memory};
use crate::soft::state::{Engine, PdState, UarPage, UarState};
use oxshmem_system::words::{low8, low16, low32};

/// The first syndrome of the software HCA.
pub const SYNDROME_BASE: u32 = 0x5f00_0000;

impl Engine {
    /// Executes a command. The output gets status and syndrome in any case.
    pub(in crate::soft) fn command(
        &mut self,
        purpose: Purpose,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<Option<Object>> {
        let name = Opcode::of(input).map_or("an unknown command", Opcode::name);
        let outcome = match &self.dead {
            Some(reason) => refuse(CommandStatus::InternalError, 0, format!("the HCA is dead: {reason}")),
            None => self.dispatch(purpose, input, output),
        };
        match outcome {
            Ok(object) => {
                if self.tracer.is_on() {
                    let number = object.map_or(0, |object| low32(object.to_bits()));
                    self.tracer.line("command", format_args!("{name} ok object={number:#x}"));
                }
                Ok(object)
            }
            Err(Refusal { status, bit, detail }) => {
                let syndrome = SYNDROME_BASE | bit;
                prm::set_outcome(output, status, syndrome);
                if self.tracer.is_on() {
                    self.tracer.line(
                        "command",
                        format_args!("{name} refused: {} syndrome={syndrome:#x}: {detail}", status.text()),
                    );
                }
                Err(Error::Command { command: name, status, syndrome, detail })
            }
        }
    }

    fn dispatch(&mut self, purpose: Purpose, input: &[u8], output: &mut [u8]) -> Outcome<Option<Object>> {
        let Some(opcode) = Opcode::of(input) else {
            let detail = match input.get(..2) {
                Some(bytes) => format!("opcode {:#06x} is not known", u16::from_be_bytes([bytes[0], bytes[1]])),
                None => format!("{} bytes of input have no opcode", input.len()),
            };
            return refuse(CommandStatus::BadOp, 0, detail);
        };
        let number = low32(prm::layout::get(input, 0x48, 24));
        use Opcode as O;
        let fits = match purpose {
            Purpose::Create => {
                matches!(
                    opcode,
                    O::AllocPd | O::AllocUar | O::AllocQCounter | O::CreateMkey | O::CreateCq | O::CreateQp
                )
            }
            Purpose::Modify(object) => {
                matches!(opcode, O::Rst2InitQp | O::Init2RtrQp | O::Rtr2RtsQp | O::ToErrQp | O::ToRstQp)
                    && object == Object::Qp(number)
            }
            Purpose::Query(object) => match opcode {
                O::QueryQp => object == Object::Qp(number),
                O::QueryCq => object == Object::Cq(number),
                O::QueryQCounter => object == Object::QCounter(low32(prm::layout::get(input, 0xf8, 8))),
                _ => false,
            },
            Purpose::Destroy => {
                matches!(
                    opcode,
                    O::DeallocPd | O::DeallocUar | O::DeallocQCounter | O::DestroyMkey | O::DestroyCq | O::DestroyQp
                )
            }
            Purpose::General => opcode == O::QueryHcaCap,
        };
        if !fits {
            return refuse(CommandStatus::BadOp, 0, format!("{} cannot be used so: {purpose:?}", opcode.name()));
        }
        match opcode {
            O::QueryHcaCap => self.query_hca_cap(input, output).map(|()| None),
            O::QueryLag => refuse(CommandStatus::BadOp, 0, "QUERY_LAG: there is one port"),
            O::AllocPd => {
                let _: pd::AllocPd = decode(input, output)?;
                let pd = self.pds.insert_with(|_| PdState::default());
                let pd = pd.ok_or_else(|| full("protection domains", self.pds.limit()))?;
                prm::encode_output(&pd::AllocPdOut { pd }, output);
                Ok(Some(Object::Pd(pd)))
            }
            O::DeallocPd => {
                let pd::DeallocPd { pd } = decode(input, output)?;
                let users = self.pd(pd)?.users;
                busy(users, "protection domain", pd, "keys and QPs")?;
                self.pds.remove(pd);
                prm::encode_output(&pd::DeallocPdOut {}, output);
                Ok(None)
            }
            O::AllocUar => {
                let _: uar::AllocUar = decode(input, output)?;
                let page = self.uar_page().or_else(|error| no_memory(&error))?;
                let base = page.as_ref().map_or(std::ptr::null_mut(), UarPage::ptr);
                let uar = self.uars.insert_with(|_| UarState { base, page, users: 0, qps: Vec::new() });
                let uar = uar.ok_or_else(|| full("UAR pages", self.uars.limit()))?;
                if base.is_null()
                    && let Some(base) = self.clear_page(uar)
                    && let Some(state) = self.uars.get_mut(uar)
                {
                    state.base = base;
                }
                self.list_registers();
                prm::encode_output(&uar::AllocUarOut { uar }, output);
                Ok(Some(Object::Uar(uar)))
            }
            O::DeallocUar => {
                let uar::DeallocUar { uar } = decode(input, output)?;
                let users = self.uar(uar, 0x48)?.users;
                busy(users, "UAR page", uar, "CQs and QPs")?;
                // An accelerator takes back memory only while nothing runs.
                self.pause();
                self.uars.remove(uar);
                self.list_registers();
                prm::encode_output(&uar::DeallocUarOut {}, output);
                Ok(None)
            }
            O::AllocQCounter => {
                let _: counter::AllocQCounter = decode(input, output)?;
                let set = self.error_counters.insert_with(|_| counter::QueryQCounterOut::default());
                let set = set.ok_or_else(|| full("sets of error counters", self.error_counters.limit()))?;
                prm::encode_output(&counter::AllocQCounterOut { counter_set_id: low8(set.into()) }, output);
                Ok(Some(Object::QCounter(set)))
            }
            O::DeallocQCounter => {
                let counter::DeallocQCounter { counter_set_id } = decode(input, output)?;
                self.error_counter(counter_set_id, 0x58)?;
                self.error_counters.remove(counter_set_id.into());
                prm::encode_output(&counter::DeallocQCounterOut {}, output);
                Ok(None)
            }
            O::QueryQCounter => {
                let counter::QueryQCounter { clear, counter_set_id } = decode(input, output)?;
                let set = self.error_counter(counter_set_id, 0xf8)?;
                let counted = *set;
                if clear {
                    *set = counter::QueryQCounterOut::default();
                }
                prm::encode_output(&counted, output);
                Ok(None)
            }
            O::CreateMkey => self.create_mkey(&decode(input, output)?, output).map(Some),
            O::DestroyMkey => {
                let mkey::DestroyMkey { mkey_index } = decode(input, output)?;
                let facts = self.mkey(mkey_index)?.facts;
                self.control.publish_mkey(mkey_index, &MkeyFacts::default());
                self.write_local_key(mkey_index, None);
                self.mkeys.remove(mkey_index);
                self.key_epoch += 1;
                self.use_pd(facts.pd, -1);
                self.use_umem(facts.umem, -1);
                prm::encode_output(&mkey::DestroyMkeyOut {}, output);
                Ok(None)
            }
            O::CreateCq => self.create_cq(&decode(input, output)?, output).map(Some),
            O::QueryCq => {
                let cq::QueryCq { cqn } = decode(input, output)?;
                let cq = self.cq(cqn, 0x48)?;
                let cqc = cq::CqContext { producer_counter: cq.producer, ..cq.context };
                prm::encode_output(&cq::QueryCqOut { cqc }, output);
                Ok(None)
            }
            O::DestroyCq => {
                let cq::DestroyCq { cqn } = decode(input, output)?;
                let cq = self.cq(cqn, 0x48)?;
                let (users, umem, context) = (cq.users, cq.umem, cq.context);
                busy(users, "CQ", cqn, "QPs")?;
                self.cqs.remove(cqn);
                self.use_umem(umem, -1);
                self.use_umem(context.dbr_umem_id, -1);
                self.use_uar(context.uar_page, -1);
                prm::encode_output(&cq::DestroyCqOut {}, output);
                Ok(None)
            }
            O::CreateQp => self.create_qp(&decode(input, output)?, output).map(Some),
            O::Rst2InitQp => {
                let command: qp::Rst2InitQp = decode(input, output)?;
                self.modify_qp(command.qpn, |engine, qp| engine.rst2init(qp, &command))?;
                prm::encode_output(&qp::Rst2InitQpOut {}, output);
                Ok(None)
            }
            O::Init2RtrQp => {
                let command: qp::Init2RtrQp = decode(input, output)?;
                self.modify_qp(command.qpn, |engine, qp| engine.init2rtr(qp, &command))?;
                prm::encode_output(&qp::Init2RtrQpOut {}, output);
                Ok(None)
            }
            O::Rtr2RtsQp => {
                let command: qp::Rtr2RtsQp = decode(input, output)?;
                self.modify_qp(command.qpn, |engine, qp| engine.rtr2rts(qp, &command))?;
                prm::encode_output(&qp::Rtr2RtsQpOut {}, output);
                Ok(None)
            }
            O::ToErrQp => {
                let qp::ToErrQp { qpn } = decode(input, output)?;
                self.take_over(qpn, true);
                self.modify_qp(qpn, |engine, qp| {
                    engine.set_state(qp, QpState::Err);
                    // What is outstanding gets flushed.
                    engine.activate(qp);
                    Ok(())
                })?;
                prm::encode_output(&qp::ToErrQpOut {}, output);
                Ok(None)
            }
            O::ToRstQp => {
                let qp::ToRstQp { qpn } = decode(input, output)?;
                self.modify_qp(qpn, |engine, qp| {
                    qp.reset();
                    engine.set_state(qp, QpState::Reset);
                    engine.write_progress(qp, false);
                    Ok(())
                })?;
                prm::encode_output(&qp::ToRstQpOut {}, output);
                Ok(None)
            }
            O::QueryQp => {
                let qp::QueryQp { qpn } = decode(input, output)?;
                self.modify_qp(qpn, |engine, qp| {
                    engine.refresh(qp);
                    Ok(())
                })?;
                let qp = self.qp(qpn)?;
                let qpc = qpc::QpContext {
                    hw_sq_wqebb_counter: low16(qp.consumer),
                    sw_sq_wqebb_counter: low16(qp.producer),
                    ..qp.context
                };
                prm::encode_output(&qp::QueryQpOut { qpc }, output);
                Ok(None)
            }
            O::DestroyQp => {
                let qp::DestroyQp { qpn } = decode(input, output)?;
                self.qp(qpn)?;
                self.erase_qp(qpn);
                let Some(mut qp) = self.qps.remove(qpn) else { return Ok(None) };
                qp.reset();
                self.control.publish_qp(qpn, &control::QpFacts::default());
                self.use_pd(qp.context.pd, -1);
                self.use_uar(qp.context.uar_page, -1);
                if let Some(page) = self.uars.get_mut(qp.context.uar_page) {
                    page.qps.retain(|other| *other != qpn);
                }
                self.use_umem(qp.sq_umem, -1);
                self.use_umem(qp.context.dbr_umem_id, -1);
                if let Some(cq) = self.cqs.get_mut(qp.context.cqn_snd) {
                    cq.users -= 1;
                }
                self.watch_qps();
                prm::encode_output(&qp::DestroyQpOut {}, output);
                Ok(None)
            }
        }
    }

    /// Returns whether there is a live connection to the HCA with this GID.
    pub(in crate::soft) fn knows(&self, gid: Gid) -> bool {
        self.peers.iter().any(|peer| peer.gid == gid && peer.is_alive()) || self.link_to(gid).is_some()
    }

    /// Returns the connection to an HCA of another node.
    pub(in crate::soft) fn link_to(&self, gid: Gid) -> Option<usize> {
        self.links.iter().position(|link| link.as_ref().is_some_and(|link| link.gid == gid && link.is_alive()))
    }

    /// Keeps a connection to an HCA of another node.
    pub(in crate::soft) fn add_link(&mut self, link: Link) {
        if !self.knows(link.gid) {
            self.links.push(Some(Box::new(link)));
        }
    }

    /// Keeps a connection to a peer.
    pub(in crate::soft) fn add_peer(&mut self, peer: Peer) {
        if !self.knows(peer.gid) {
            self.peers.push(peer);
        }
    }
}
