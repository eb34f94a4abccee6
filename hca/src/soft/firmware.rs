//! The firmware: parses commands, refuses what the PRM refuses, and keeps the objects.
//!
//! A refusal has a status of the PRM and a syndrome. The syndrome of the software HCA is [`SYNDROME_BASE`] plus the bit offset, in the
//! command's input, of the field that is wrong, so it can be found in `mlx5_ifc.h`.

use super::control::{MkeyFacts, rights};
use super::engine::{CqState, Engine, Hold, MkeyState, PdState, Qp, Remote, UarPage, UarState, UmemState};
use super::fabric::{Export, Peer};
use super::memory::PAGE;
use super::offload::Handed;
use super::{GID_INDEX, LOG_MAX_CQ_SIZE, LOG_MAX_MSG, LOG_MAX_SQ_SIZE, MTU, PORT, REGISTER_STRIDE, control};
use crate::error::{Error, Result};
use crate::port::Gid;
use crate::prm::qpc::{self, QpState};
use crate::prm::{self, Command, CommandStatus, Opcode, caps, cq, mkey, pd, qp, uar};
use crate::provider::{Access, UmemSource};
use crate::wire::dbr;

/// The first syndrome of the software HCA.
pub const SYNDROME_BASE: u32 = 0x5f00_0000;

/// log2 of outstanding reads and atomics; the software HCA executes them one by one, so any number is fine.
const LOG_MAX_RA: u8 = 4;
/// P_Keys in the table of the port.
const PKEYS: u16 = 128;
/// UDP source ports of RoCE v2 start here (InfiniBand specification, annex 17).
const FIRST_UDP_SPORT: u16 = 0xc000;

/// Why a command is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    status: CommandStatus,
    bit: u32,
    detail: String,
}

type Outcome<T> = std::result::Result<T, Refusal>;

fn refuse<T>(status: CommandStatus, bit: u32, detail: impl Into<String>) -> Outcome<T> {
    Err(Refusal { status, bit, detail: detail.into() })
}

/// An object that a command created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Pd(u32),
    Uar(u32),
    Mkey(u32),
    Cq(u32),
    Qp(u32),
}

impl Object {
    /// As a handle.
    pub(super) fn to_bits(self) -> u64 {
        let (kind, number) = match self {
            Self::Pd(n) => (1u64, n),
            Self::Uar(n) => (2, n),
            Self::Mkey(n) => (3, n),
            Self::Cq(n) => (4, n),
            Self::Qp(n) => (5, n),
        };
        kind << 32 | u64::from(number)
    }

    /// From a handle.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let number = bits as u32;
        Some(match bits >> 32 {
            1 => Self::Pd(number),
            2 => Self::Uar(number),
            3 => Self::Mkey(number),
            4 => Self::Cq(number),
            5 => Self::Qp(number),
            _ => return None,
        })
    }

    /// The command that destroys it.
    pub(super) fn destroy_command(self) -> (Vec<u8>, usize) {
        fn bytes<C: Command>(command: C) -> (Vec<u8>, usize) {
            (command.encode(), C::OUT_LEN)
        }
        match self {
            Self::Pd(pd) => bytes(pd::DeallocPd { pd }),
            Self::Uar(uar) => bytes(uar::DeallocUar { uar }),
            Self::Mkey(mkey_index) => bytes(mkey::DestroyMkey { mkey_index }),
            Self::Cq(cqn) => bytes(cq::DestroyCq { cqn }),
            Self::Qp(qpn) => bytes(qp::DestroyQp { qpn }),
        }
    }
}

/// What a command is used for, which says what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Create,
    Modify(Object),
    Query(Object),
    Destroy,
    General,
}

/// The GID that an INIT2RTR_QP names, if `input` is one.
pub(super) fn remote_gid(input: &[u8]) -> Option<Gid> {
    if Opcode::of(input) != Some(Opcode::Init2RtrQp) || input.len() < qp::Init2RtrQp::IN_LEN {
        return None;
    }
    let path = qp::Init2RtrQp::decode(input).ok()?.qpc.primary_address_path;
    Some(Gid::from_halves(path.rgid_hi, path.rgid_lo))
}

impl Engine {
    /// Execute a command. The output gets status and syndrome in any case.
    pub(super) fn command(&mut self, purpose: Purpose, input: &[u8], output: &mut [u8]) -> Result<Option<Object>> {
        let name = Opcode::of(input).map_or("an unknown command", Opcode::name);
        let outcome = match &self.dead {
            Some(reason) => refuse(CommandStatus::InternalError, 0, format!("the HCA is dead: {reason}")),
            None => self.dispatch(purpose, input, output),
        };
        match outcome {
            Ok(object) => {
                if self.tracer.is_on() {
                    let number = object.map_or(0, |object| object.to_bits() as u32);
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
        let number = prm::layout::get(input, 0x48, 24) as u32;
        use Opcode as O;
        let fits = match purpose {
            Purpose::Create => matches!(opcode, O::AllocPd | O::AllocUar | O::CreateMkey | O::CreateCq | O::CreateQp),
            Purpose::Modify(object) => {
                matches!(opcode, O::Rst2InitQp | O::Init2RtrQp | O::Rtr2RtsQp | O::ToErrQp | O::ToRstQp)
                    && object == Object::Qp(number)
            }
            Purpose::Query(object) => match opcode {
                O::QueryQp => object == Object::Qp(number),
                O::QueryCq => object == Object::Cq(number),
                O::QueryMkey => object == Object::Mkey(number),
                _ => false,
            },
            Purpose::Destroy => {
                matches!(opcode, O::DeallocPd | O::DeallocUar | O::DestroyMkey | O::DestroyCq | O::DestroyQp)
            }
            Purpose::General => opcode == O::QueryHcaCap,
        };
        if !fits {
            return refuse(CommandStatus::BadOp, 0, format!("{} cannot be used so: {purpose:?}", opcode.name()));
        }
        match opcode {
            O::QueryHcaCap => self.query_hca_cap(input, output).map(|()| None),
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
                let uar = self.uars.insert_with(|_| UarState { base, _page: page, users: 0, qps: Vec::new() });
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
            O::CreateMkey => self.create_mkey(&decode(input, output)?, output).map(Some),
            O::QueryMkey => {
                let mkey::QueryMkey { mkey_index } = decode(input, output)?;
                let mkc = self.mkey(mkey_index)?.context;
                prm::encode_output(&mkey::QueryMkeyOut { mkc }, output);
                Ok(None)
            }
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
                    hw_sq_wqebb_counter: qp.consumer as u16,
                    sw_sq_wqebb_counter: qp.producer as u16,
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

    fn query_hca_cap(&self, input: &[u8], output: &mut [u8]) -> Outcome<()> {
        let caps::QueryHcaCap { op_mod } = decode(input, output)?;
        match op_mod {
            caps::GENERAL_CURRENT => {
                let caps = caps::GeneralCaps {
                    log_max_qp_sz: LOG_MAX_SQ_SIZE,
                    log_max_qp: self.qps.limit().ilog2() as u8,
                    log_max_cq_sz: LOG_MAX_CQ_SIZE,
                    log_max_cq: self.cqs.limit().ilog2() as u8,
                    log_max_mkey: self.mkeys.limit().ilog2() as u8,
                    log_max_ra_req_qp: LOG_MAX_RA,
                    log_max_ra_res_qp: LOG_MAX_RA,
                    port_type: 1,
                    num_ports: 1,
                    log_max_msg: LOG_MAX_MSG,
                    cqe_version: 1,
                    roce: true,
                    atomic: true,
                    cq_oi: true,
                    rc: true,
                    log_bf_reg_size: REGISTER_STRIDE.ilog2() as u8,
                    // `ds` has six bits.
                    max_wqe_sz_sq: 63 * 16,
                    log_max_pd: self.pds.limit().ilog2() as u8,
                };
                prm::encode_output(&caps::GeneralCapsOut { caps }, output);
                Ok(())
            }
            caps::ATOMIC_CURRENT => {
                let caps = caps::AtomicCaps {
                    atomic_req_8b_endianness_mode: 1,
                    atomic_operations: caps::ATOMIC_OP_CMP_SWAP
                        | caps::ATOMIC_OP_FETCH_ADD
                        | caps::ATOMIC_OP_EXTENDED_CMP_SWAP
                        | caps::ATOMIC_OP_EXTENDED_FETCH_ADD,
                    atomic_size_qp: caps::ATOMIC_SIZE_4 | caps::ATOMIC_SIZE_8,
                };
                prm::encode_output(&caps::AtomicCapsOut { caps }, output);
                Ok(())
            }
            other => refuse(
                CommandStatus::BadParam,
                0x30,
                format!("op_mod {other:#x}: known are current general (0x1) and atomic (0x7) capabilities"),
            ),
        }
    }

    fn create_mkey(&mut self, command: &mkey::CreateMkey, output: &mut [u8]) -> Outcome<Object> {
        const MKC: u32 = 0x80;
        let mkc = &command.mkc;
        if !command.mkey_umem_valid {
            return refuse(CommandStatus::BadParam, 0x61, "mkey_umem_valid must be set: keys translate through a umem");
        }
        if mkc.free || mkc.length64 {
            return refuse(CommandStatus::BadParam, MKC + 1, "free and length64 must be clear");
        }
        if mkc.access_mode_1_0 != mkey::ACCESS_MODE_MTT {
            let detail = format!("access_mode {} is not supported, only MTT (1)", mkc.access_mode_1_0);
            return refuse(CommandStatus::BadParam, MKC + 0x16, detail);
        }
        self.pd(mkc.pd)?;
        if mkc.qpn != mkey::ANY_QP && self.qps.get(mkc.qpn).is_none() {
            return refuse(CommandStatus::BadResource, MKC + 0x20, format!("mkc.qpn {:#x}: no such QP", mkc.qpn));
        }
        let umem = self.umem(command.mkey_umem_id, 0x320)?;
        if mkc.len == 0 {
            return refuse(CommandStatus::BadParam, MKC + 0xc0, "mkc.len is 0");
        }
        if mkc.start_addr.checked_add(mkc.len - 1).is_none() {
            return refuse(
                CommandStatus::BadParam,
                MKC + 0x80,
                "mkc.start_addr + mkc.len goes beyond the address space",
            );
        }
        let base = within(umem, command.mkey_umem_offset, mkc.len, 1, 0x340, "the key")?;
        let access = umem.access;
        for (wanted, allowed, bit, name) in [
            (mkc.lw, access.local_write, 0x14, "lw"),
            (mkc.rr, access.remote_read, 0x13, "rr"),
            (mkc.rw, access.remote_write, 0x12, "rw"),
            (mkc.a, access.remote_atomic, 0x11, "a"),
        ] {
            if wanted && !allowed {
                let detail = format!("mkc.{name}: the umem was registered without this right");
                return refuse(CommandStatus::BadParam, MKC + bit, detail);
            }
        }
        if (mkc.rr || mkc.rw || mkc.a) && !umem.shared {
            return refuse(
                CommandStatus::BadParam,
                MKC + 0x11,
                "remote rights on memory that peers cannot reach: register it by file descriptor (UmemSource::Fd)",
            );
        }
        let mut rights_bits = 0;
        for (set, right) in [
            (mkc.lr, rights::LOCAL_READ),
            (mkc.lw, rights::LOCAL_WRITE),
            (mkc.rr, rights::REMOTE_READ),
            (mkc.rw, rights::REMOTE_WRITE),
            (mkc.a, rights::REMOTE_ATOMIC),
        ] {
            rights_bits |= if set { right } else { 0 };
        }
        let facts = |index: u32| MkeyFacts {
            key: index << 8 | u32::from(mkc.mkey_7_0),
            pd: mkc.pd,
            rights: rights_bits,
            umem: command.mkey_umem_id,
            qpn: mkc.qpn,
            start: mkc.start_addr,
            len: mkc.len,
            umem_offset: command.mkey_umem_offset,
        };
        let index = self.mkeys.insert_with(|index| MkeyState { facts: facts(index), context: *mkc, base });
        let index = index.ok_or_else(|| full("memory keys", self.mkeys.limit()))?;
        self.write_local_key(index, Some((&facts(index), base)));
        self.control.publish_mkey(index, &facts(index));
        self.key_epoch += 1;
        self.use_pd(mkc.pd, 1);
        self.use_umem(command.mkey_umem_id, 1);
        prm::encode_output(&mkey::CreateMkeyOut { mkey_index: index }, output);
        Ok(Object::Mkey(index))
    }

    fn create_cq(&mut self, command: &cq::CreateCq, output: &mut [u8]) -> Outcome<Object> {
        const CQC: u32 = 0x80;
        let cqc = &command.cqc;
        if cqc.cqe_sz != cq::CQE_SIZE_64 {
            let detail = format!("cqc.cqe_sz {}: only 64-byte entries (0) are supported", cqc.cqe_sz);
            return refuse(CommandStatus::BadParam, CQC + 8, detail);
        }
        if cqc.log_cq_size > LOG_MAX_CQ_SIZE {
            let detail = format!("cqc.log_cq_size {} is above log_max_cq_sz {LOG_MAX_CQ_SIZE}", cqc.log_cq_size);
            return refuse(CommandStatus::Limit, CQC + 0x63, detail);
        }
        check_page_size(cqc.log_page_size, CQC + 0xc3)?;
        if cqc.status != 0 || cqc.producer_counter != 0 || cqc.consumer_counter != 0 {
            return refuse(CommandStatus::BadParam, CQC, "cqc: status and counters must be 0 at creation");
        }
        if !command.cq_umem_valid || !cqc.dbr_umem_valid {
            return refuse(CommandStatus::BadParam, 0x2e0, "cq_umem_valid and cqc.dbr_umem_valid must be set");
        }
        if self.is_offloaded() && !(cqc.cc && cqc.oi) {
            let detail = "cqc.cc and cqc.oi must be set: the engine's kernel writes collapsed queues only, and reads no consumer counter";
            return refuse(CommandStatus::BadParam, CQC + 0x0b, detail);
        }
        self.uar(cqc.uar_page, CQC + 0x68)?;
        let bytes = 64u64 << cqc.log_cq_size;
        let umem = self.umem(command.cq_umem_id, 0x2c0)?;
        let base = within(umem, command.cq_umem_offset, bytes, 64, 0x280, "the completion queue")?;
        need_write(umem, 0x2c0, "the completion queue")?;
        let umem = self.umem(cqc.dbr_umem_id, CQC + 0x20)?;
        let dbr = within(umem, cqc.dbr_addr, dbr::LEN as u64, 8, CQC + 0x1c0, "the doorbell record")?;
        let cq = CqState { context: *cqc, umem: command.cq_umem_id, base, dbr, producer: 0, users: 0 };
        let cqn = self.cqs.insert_with(|_| cq).ok_or_else(|| full("CQs", self.cqs.limit()))?;
        self.use_umem(command.cq_umem_id, 1);
        self.use_umem(cqc.dbr_umem_id, 1);
        self.use_uar(cqc.uar_page, 1);
        prm::encode_output(&cq::CreateCqOut { cqn }, output);
        Ok(Object::Cq(cqn))
    }

    fn create_qp(&mut self, command: &qp::CreateQp, output: &mut [u8]) -> Outcome<Object> {
        const QPC: u32 = 0xc0;
        let context = &command.qpc;
        check_opt_param_mask(command.opt_param_mask)?;
        if context.st != qpc::SERVICE_RC {
            let detail = format!("qpc.st {}: only reliable connections (0) are supported", context.st);
            return refuse(CommandStatus::BadParam, QPC + 8, detail);
        }
        if context.pm_state != qpc::MIGRATED {
            return refuse(CommandStatus::BadParam, QPC + 0x13, "qpc.pm_state must be MIGRATED (3)");
        }
        if context.state != QpState::Reset as u8 {
            return refuse(CommandStatus::BadParam, QPC, "qpc.state must be 0 at creation");
        }
        if context.no_sq {
            return refuse(CommandStatus::BadParam, QPC + 0x50, "qpc.no_sq: a QP without send queue is not supported");
        }
        if context.rq_type != qpc::ZERO_SIZE_RQ || context.log_rq_size != 0 {
            let detail = "qpc.rq_type must be ZERO_SIZE_RQ (3): one-sided operations need no receive queue";
            return refuse(CommandStatus::BadParam, QPC + 0x565, detail);
        }
        if context.log_sq_size > LOG_MAX_SQ_SIZE {
            let detail = format!("qpc.log_sq_size {} is above log_max_qp_sz {LOG_MAX_SQ_SIZE}", context.log_sq_size);
            return refuse(CommandStatus::Limit, QPC + 0x51, detail);
        }
        check_page_size(context.log_page_size, QPC + 0xa3)?;
        if !command.wq_umem_valid || !context.dbr_umem_valid {
            return refuse(CommandStatus::BadParam, 0x860, "wq_umem_valid and qpc.dbr_umem_valid must be set");
        }
        self.pd(context.pd)?;
        self.uar(context.uar_page, QPC + 0x68)?;
        self.cq(context.cqn_snd, QPC + 0x3e8)?;
        self.cq(context.cqn_rcv, QPC + 0x4e8)?;
        let umem = self.umem(command.wq_umem_id, 0x840)?;
        let bytes = 64u64 << context.log_sq_size;
        let sq = within(umem, command.wq_umem_offset, bytes, 64, 0x800, "the send queue")?;
        let umem = self.umem(context.dbr_umem_id, QPC + 0x720)?;
        let dbr = within(umem, context.dbr_addr, dbr::LEN as u64, 8, QPC + 0x500, "the doorbell record")?;
        let ordinal = self.created;
        let qpn = self.qps.insert_with(|qpn| {
            Box::new(Qp {
                qpn,
                ordinal,
                state: QpState::Reset,
                context: *context,
                sq,
                sq_umem: command.wq_umem_id,
                dbr,
                consumer: 0,
                producer: 0,
                doorbells: 0,
                active: false,
                remote: None,
                local_key: None,
                remote_keys: [None; 4],
                moved: 0,
                stalled: None,
                hold: Hold::Undecided,
                deferred: None,
                handed: Handed::default(),
            })
        });
        let qpn = qpn.ok_or_else(|| full("QPs", self.qps.limit()))?;
        self.created += 1;
        self.use_pd(context.pd, 1);
        self.use_uar(context.uar_page, 1);
        self.use_umem(command.wq_umem_id, 1);
        self.use_umem(context.dbr_umem_id, 1);
        if let Some(cq) = self.cqs.get_mut(context.cqn_snd) {
            cq.users += 1;
        }
        if self.card_doorbells
            && let Some(page) = self.uars.get_mut(context.uar_page)
        {
            page.qps.push(qpn);
        }
        self.watch_qps();
        prm::encode_output(&qp::CreateQpOut { qpn }, output);
        Ok(Object::Qp(qpn))
    }

    fn modify_qp(&mut self, qpn: u32, change: impl FnOnce(&mut Self, &mut Qp) -> Outcome<()>) -> Outcome<()> {
        self.qp(qpn)?;
        let Some(mut qp) = self.qps.lend(qpn) else { return Ok(()) };
        let outcome = change(self, &mut qp);
        self.qps.put_back(qpn, qp);
        outcome
    }

    fn rst2init(&mut self, qp: &mut Qp, command: &qp::Rst2InitQp) -> Outcome<()> {
        const PATH: u32 = 0xc0 + 0xc0;
        expect_state(qp, QpState::Reset, "RST2INIT")?;
        check_opt_param_mask(command.opt_param_mask)?;
        let (new, path) = (&command.qpc, &command.qpc.primary_address_path);
        if path.vhca_port_num != PORT {
            let detail = format!("port {}: the only port is {PORT}", path.vhca_port_num);
            return refuse(CommandStatus::BadParam, PATH + 0x128, detail);
        }
        if path.pkey_index >= PKEYS {
            let detail = format!("pkey_index {}: the table has {PKEYS} entries", path.pkey_index);
            return refuse(CommandStatus::BadIndex, PATH + 0x10, detail);
        }
        if new.atomic_mode > qpc::ATOMIC_UP_TO_8_BYTES {
            let detail = format!("qpc.atomic_mode {}: operands have at most 8 bytes (3)", new.atomic_mode);
            return refuse(CommandStatus::BadParam, 0xc0 + 0x48c, detail);
        }
        let context = &mut qp.context;
        context.primary_address_path.vhca_port_num = path.vhca_port_num;
        context.primary_address_path.pkey_index = path.pkey_index;
        (context.rre, context.rwe, context.rae) = (new.rre, new.rwe, new.rae);
        context.atomic_mode = new.atomic_mode;
        context.counter_set_id = new.counter_set_id;
        self.set_state(qp, QpState::Init);
        Ok(())
    }

    fn init2rtr(&mut self, qp: &mut Qp, command: &qp::Init2RtrQp) -> Outcome<()> {
        const QPC: u32 = 0xc0;
        const PATH: u32 = QPC + 0xc0;
        expect_state(qp, QpState::Init, "INIT2RTR")?;
        check_opt_param_mask(command.opt_param_mask)?;
        let (new, path) = (&command.qpc, &command.qpc.primary_address_path);
        if new.mtu == 0 || new.mtu > MTU as u8 {
            let detail = format!("qpc.mtu {}: 1 (256 bytes) to {} (the active MTU) are allowed", new.mtu, MTU as u8);
            return refuse(CommandStatus::BadParam, QPC + 0x40, detail);
        }
        if new.log_msg_max > LOG_MAX_MSG {
            let detail = format!("qpc.log_msg_max {} is above log_max_msg {LOG_MAX_MSG}", new.log_msg_max);
            return refuse(CommandStatus::Limit, QPC + 0x43, detail);
        }
        if new.log_rra_max > LOG_MAX_RA {
            let detail = format!("qpc.log_rra_max {} is above log_max_ra_res_qp {LOG_MAX_RA}", new.log_rra_max);
            return refuse(CommandStatus::Limit, QPC + 0x488, detail);
        }
        if path.src_addr_index != GID_INDEX {
            let detail = format!("src_addr_index {}: the only GID has index {GID_INDEX}", path.src_addr_index);
            return refuse(CommandStatus::BadIndex, PATH + 0x48, detail);
        }
        if path.grh || path.rlid != 0 {
            let detail = "grh and rlid belong to InfiniBand; this port is Ethernet";
            return refuse(CommandStatus::BadParam, PATH + 0x28, detail);
        }
        if path.hop_limit == 0 {
            return refuse(CommandStatus::BadParam, PATH + 0x58, "hop_limit must not be 0 on RoCE v2");
        }
        if path.udp_sport < FIRST_UDP_SPORT {
            let detail = format!("udp_sport {:#x}: RoCE v2 uses {FIRST_UDP_SPORT:#x} and up", path.udp_sport);
            return refuse(CommandStatus::BadParam, PATH + 0x110, detail);
        }
        if path.rmac_47_32 & 0x0100 != 0 || (path.rmac_47_32 == 0 && path.rmac_31_0 == 0) {
            return refuse(CommandStatus::BadParam, PATH + 0x130, "rmac must be a unicast address");
        }
        let gid = Gid::from_halves(path.rgid_hi, path.rgid_lo);
        let peer = self.peers.iter().position(|peer| peer.gid == gid && peer.is_alive());
        let Some(peer) = peer else {
            return refuse(CommandStatus::BadParam, PATH + 0x80, format!("rgid {gid}: no HCA has it"));
        };
        let Some(entry) = self.peers[peer].control.qp(new.remote_qpn) else {
            let detail = format!("qpc.remote_qpn {:#x} is not a QP number of HCA {gid}", new.remote_qpn);
            return refuse(CommandStatus::BadParam, QPC + 0xa8, detail);
        };
        // An odd counter never equals the entry's, so the first WQE looks at the peer's QP.
        qp.remote = Some(Remote { peer, entry, seq: 1, facts: control::QpFacts::default() });
        let context = &mut qp.context;
        context.mtu = new.mtu;
        context.log_msg_max = new.log_msg_max;
        context.remote_qpn = new.remote_qpn;
        context.log_rra_max = new.log_rra_max;
        context.min_rnr_nak = new.min_rnr_nak;
        context.next_rcv_psn = new.next_rcv_psn;
        let kept = context.primary_address_path;
        context.primary_address_path =
            qpc::AddressPath { pkey_index: kept.pkey_index, vhca_port_num: kept.vhca_port_num, ..*path };
        self.set_state(qp, QpState::Rtr);
        Ok(())
    }

    fn rtr2rts(&mut self, qp: &mut Qp, command: &qp::Rtr2RtsQp) -> Outcome<()> {
        expect_state(qp, QpState::Rtr, "RTR2RTS")?;
        check_opt_param_mask(command.opt_param_mask)?;
        let new = &command.qpc;
        if new.log_sra_max > LOG_MAX_RA {
            let detail = format!("qpc.log_sra_max {} is above log_max_ra_req_qp {LOG_MAX_RA}", new.log_sra_max);
            return refuse(CommandStatus::Limit, 0xc0 + 0x388, detail);
        }
        let context = &mut qp.context;
        context.log_ack_req_freq = new.log_ack_req_freq;
        context.log_sra_max = new.log_sra_max;
        context.retry_count = new.retry_count;
        context.rnr_retry = new.rnr_retry;
        context.next_send_psn = new.next_send_psn;
        context.primary_address_path.ack_timeout = new.primary_address_path.ack_timeout;
        self.set_state(qp, QpState::Rts);
        if qp.handed.trapped {
            // A doorbell came too early; the kernel may have the QP now.
            self.activate(qp);
        }
        Ok(())
    }

    /// Register memory.
    ///
    /// # Safety
    /// As for [`crate::provider::Provider::reg_umem`].
    pub(super) unsafe fn register(&mut self, source: UmemSource<'_>, access: Access) -> Result<u32> {
        if let Some(reason) = &self.dead {
            return Err(Error::Dead { device: format!("soft {}", self.gid), reason: reason.clone() });
        }
        let (addr, len) = match source {
            UmemSource::Fd { addr, len, .. } | UmemSource::Host { addr, len } => (addr, len),
        };
        if addr.is_null() || len == 0 {
            return Err(Error::argument(
                "umem",
                format!("{len} bytes at {addr:p}"),
                "must be mapped memory of at least a byte",
            ));
        }
        if addr.addr().checked_add(len).is_none() {
            return Err(Error::argument("umem", format!("{len} bytes at {addr:p}"), "goes beyond the address space"));
        }
        if self.next_umem > 0xff_ffff {
            return Err(Error::argument("umem", self.next_umem, "24-bit umem ids are used up; open the HCA anew"));
        }
        let shared = match source {
            UmemSource::Host { .. } if self.is_offloaded() && !self.reaches_host() => {
                return Err(Error::argument(
                    "umem",
                    format!("{len} bytes at {addr:p}"),
                    "memory of the host is out of reach of the engine's kernel: register it by file descriptor (UmemSource::Fd)",
                ));
            }
            UmemSource::Host { .. } => {
                if access.is_remote() {
                    return Err(Error::argument(
                        "access",
                        format!("{access:?}"),
                        "peers cannot reach private memory: register it by file descriptor (UmemSource::Fd)",
                    ));
                }
                false
            }
            UmemSource::Fd { fd, offset, .. } => {
                if !offset.is_multiple_of(PAGE) {
                    return Err(Error::argument(
                        "offset",
                        offset,
                        format!("must be a multiple of the page size, {PAGE}"),
                    ));
                }
                let size =
                    rustix::fs::fstat(fd).map_err(|errno| Error::os("look at the file of a umem", errno))?.st_size;
                let end = offset.checked_add(len as u64);
                // Descriptors of GPU memory have no size; who maps them checks it.
                let sized = !self.is_offloaded();
                if sized && end.is_none_or(|end| end > u64::try_from(size).unwrap_or(0)) {
                    let value = format!("{len} bytes at offset {offset:#x}");
                    return Err(Error::argument("umem", value, format!("the file has {size} bytes")));
                }
                let fd = fd.try_clone_to_owned().map_err(|error| Error::os("duplicate the file of a umem", error))?;
                let announced = access.is_remote() && self.announces();
                self.server.export(self.next_umem, Export { fd, offset, len: len as u64, announced });
                true
            }
        };
        let id = self.next_umem;
        self.next_umem += 1;
        self.umems.insert(id, UmemState { addr, len: len as u64, access, shared, users: 0 });
        if self.tracer.is_on() {
            self.tracer.line("umem", format_args!("registered id={id} len={len} shared={shared}"));
        }
        Ok(id)
    }

    /// Forget memory.
    pub(super) fn deregister(&mut self, id: u32) -> Result<()> {
        let users = self
            .umems
            .get(&id)
            .ok_or_else(|| Error::argument("umem_id", id, "no such umem; was it deregistered before?"))?
            .users;
        if users != 0 {
            return Err(Error::argument(
                "umem_id",
                id,
                format!("{users} keys or queues still use it; destroy them first"),
            ));
        }
        self.umems.remove(&id);
        self.server.forget(id);
        Ok(())
    }

    /// Whether there is a live connection to the HCA with this GID.
    pub(super) fn knows(&self, gid: Gid) -> bool {
        self.peers.iter().any(|peer| peer.gid == gid && peer.is_alive())
    }

    /// Keep a connection to a peer.
    pub(super) fn add_peer(&mut self, peer: Peer) {
        if !self.knows(peer.gid) {
            self.peers.push(peer);
        }
    }

    fn pd(&self, pd: u32) -> Outcome<&PdState> {
        self.pds
            .get(pd)
            .map_or_else(|| refuse(CommandStatus::BadResource, 0x48, format!("no protection domain {pd}")), Ok)
    }

    fn uar(&self, uar: u32, bit: u32) -> Outcome<&UarState> {
        self.uars.get(uar).map_or_else(|| refuse(CommandStatus::BadResource, bit, format!("no UAR page {uar}")), Ok)
    }

    fn umem(&self, id: u32, bit: u32) -> Outcome<&UmemState> {
        self.umems.get(&id).map_or_else(|| refuse(CommandStatus::BadResource, bit, format!("no umem {id}")), Ok)
    }

    fn mkey(&self, index: u32) -> Outcome<&MkeyState> {
        self.mkeys
            .get(index)
            .map_or_else(|| refuse(CommandStatus::BadResource, 0x48, format!("no key with index {index:#x}")), Ok)
    }

    fn cq(&self, cqn: u32, bit: u32) -> Outcome<&CqState> {
        self.cqs.get(cqn).map_or_else(|| refuse(CommandStatus::BadResource, bit, format!("no CQ {cqn:#x}")), Ok)
    }

    fn qp(&self, qpn: u32) -> Outcome<&Qp> {
        match self.qps.get(qpn) {
            Some(qp) => Ok(qp),
            None => refuse(CommandStatus::BadResource, 0x48, format!("no QP {qpn:#x}")),
        }
    }

    fn use_pd(&mut self, pd: u32, change: isize) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }

    fn use_uar(&mut self, uar: u32, change: isize) {
        if let Some(uar) = self.uars.get_mut(uar) {
            uar.users = uar.users.saturating_add_signed(change);
        }
    }

    fn use_umem(&mut self, id: u32, change: isize) {
        if let Some(umem) = self.umems.get_mut(&id) {
            umem.users = umem.users.saturating_add_signed(change);
        }
    }
}

/// Check lengths and reserved bits.
fn decode<C: Command>(input: &[u8], output: &[u8]) -> Outcome<C> {
    if input.len() < C::IN_LEN {
        let detail = format!("{} bytes of input, {} needed", input.len(), C::IN_LEN);
        return refuse(CommandStatus::BadInputLength, 0, detail);
    }
    if output.len() < C::OUT_LEN {
        let detail = format!("room for {} bytes of output, {} needed", output.len(), C::OUT_LEN);
        return refuse(CommandStatus::BadOutputLength, 0, detail);
    }
    C::decode(input).or_else(|bit| {
        refuse(CommandStatus::BadParam, bit as u32, format!("bit {bit:#x} of the input is reserved and must be 0"))
    })
}

/// A range of a umem, checked.
fn within(umem: &UmemState, offset: u64, len: u64, align: u64, bit: u32, what: &str) -> Outcome<*mut u8> {
    if offset.checked_add(len).is_none_or(|end| end > umem.len) {
        let detail = format!("{what}: {len} bytes at offset {offset:#x} do not fit a umem of {} bytes", umem.len);
        return refuse(CommandStatus::BadParam, bit, detail);
    }
    let at = umem.addr.wrapping_add(offset as usize);
    if !(at.addr() as u64).is_multiple_of(align) {
        let detail = format!("{what}: offset {offset:#x} is not aligned to {align} bytes in memory");
        return refuse(CommandStatus::BadParam, bit, detail);
    }
    Ok(at)
}

fn need_write(umem: &UmemState, bit: u32, what: &str) -> Outcome<()> {
    if umem.access.local_write {
        return Ok(());
    }
    refuse(CommandStatus::BadParam, bit, format!("{what}: the umem was registered without local write"))
}

fn check_page_size(log_page_size: u8, bit: u32) -> Outcome<()> {
    if log_page_size == 0 {
        return Ok(());
    }
    refuse(CommandStatus::BadParam, bit, "log_page_size must be 0 (4 KiB) for queues in a umem")
}

fn check_opt_param_mask(mask: u32) -> Outcome<()> {
    if mask == 0 {
        return Ok(());
    }
    refuse(CommandStatus::BadParam, 0x80, format!("opt_param_mask {mask:#x}: no optional field is supported"))
}

fn expect_state(qp: &Qp, state: QpState, transition: &str) -> Outcome<()> {
    if qp.state == state {
        return Ok(());
    }
    let detail = format!("QP {:#x} is in state {}, {transition} needs {}", qp.qpn, qp.state.name(), state.name());
    refuse(CommandStatus::BadQpState, 0x48, detail)
}

fn busy(users: usize, kind: &str, number: u32, by: &str) -> Outcome<()> {
    if users == 0 {
        return Ok(());
    }
    let detail = format!("{kind} {number:#x} is used by {users} {by}; destroy them first");
    refuse(CommandStatus::ResourceBusy, 0x48, detail)
}

fn full(what: &str, limit: usize) -> Refusal {
    Refusal { status: CommandStatus::NoResources, bit: 0, detail: format!("all {limit} {what} are in use") }
}

fn no_memory<T>(error: &Error) -> Outcome<T> {
    refuse(CommandStatus::NoResources, 0, error.to_string())
}
