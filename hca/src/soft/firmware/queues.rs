//! Queues: how completion queues and queue pairs are created, and how queue pairs are connected.

use std::collections::VecDeque;

use super::checks::{Outcome, full, refuse};
use super::objects::Object;
use crate::port::Gid;
use crate::prm::qpc::{self, QpState, SendDbrMode};
use crate::prm::{self, CommandStatus, cq, qp};
use crate::provider::Counters;
use crate::soft::control;
use crate::soft::fabric::flight::Flow;
use crate::soft::firmware::checks::{check_opt_param_mask, expect_state, need_write, within};
use crate::soft::limits::{
    FIRST_UDP_SPORT, GID_INDEX, LOG_MAX_CQ_SIZE, LOG_MAX_MSG, LOG_MAX_RA, LOG_MAX_SQ_SIZE, LOG_MAX_WITHOUT_RECORD, MTU,
    PKEYS, PORT,
};
use crate::soft::state::{CqState, Engine, Handed, Hold, Qp, Remote};
use crate::wire::dbr;

impl Engine {
    pub(super) fn create_cq(&mut self, command: &cq::CreateCq, output: &mut [u8]) -> Outcome<Object> {
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
        if cqc.status != 0 || cqc.producer_counter != 0 || cqc.consumer_counter != 0 {
            return refuse(CommandStatus::BadParam, CQC, "cqc: status and counters must be 0 at creation");
        }
        if !command.cq_umem_valid || !cqc.dbr_umem_valid {
            return refuse(CommandStatus::BadParam, 0x2e0, "cq_umem_valid and cqc.dbr_umem_valid must be set");
        }
        if self.is_on_gpu() && !(cqc.cc && cqc.oi) {
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

    pub(super) fn create_qp(&mut self, command: &qp::CreateQp, output: &mut [u8]) -> Outcome<Object> {
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
        if context.ts_format != 0 {
            let detail = format!("qpc.ts_format {}: the clock runs freely (0), see sq_ts_format", context.ts_format);
            return refuse(CommandStatus::BadParam, QPC + 0x58, detail);
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
        if !command.wq_umem_valid || !context.dbr_umem_valid {
            return refuse(CommandStatus::BadParam, 0x860, "wq_umem_valid and qpc.dbr_umem_valid must be set");
        }
        self.check_send_dbr_mode(context, QPC + 0x80)?;
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
                counters: Counters::default(),
                sources: VecDeque::new(),
                active: false,
                remote: None,
                flow: None,
                local_key: None,
                remote_keys: [None; 4],
                moved: 0,
                stalled: None,
                hold: Hold::Undecided,
                deferred: None,
                handed: Handed::default(),
                failure: None,
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

    /// Checks whether a QP may have, or be without, a doorbell record.
    fn check_send_dbr_mode(&self, context: &qpc::QpContext, bit: u32) -> Outcome<()> {
        let number = context.send_dbr_mode;
        let mode = SendDbrMode::from_u8(number);
        let Some(mode) = mode.filter(|mode| *mode == SendDbrMode::DbrValid || self.has_qps_without_record()) else {
            let known =
                if self.has_qps_without_record() { "DBR_VALID (0) and NO_DBR_EXT (1)" } else { "DBR_VALID (0)" };
            return refuse(CommandStatus::BadParam, bit, format!("qpc.send_dbr_mode {number}: known is {known}"));
        };
        if mode == SendDbrMode::DbrValid {
            return Ok(());
        }
        if self.qps.iter().filter(|(_, qp)| qp.mode() == mode).count() >> LOG_MAX_WITHOUT_RECORD != 0 {
            return Err(full("QPs without doorbell record", 1 << LOG_MAX_WITHOUT_RECORD));
        }
        if self.uar(context.uar_page, bit).is_ok_and(|page| !page.qps.is_empty()) {
            let detail = "qpc.send_dbr_mode NO_DBR_EXT: another QP rings in this UAR page, and the page's register, which is \
                          memory here, keeps one doorbell: use a page for each such QP";
            return refuse(CommandStatus::NoResources, bit, detail);
        }
        Ok(())
    }

    pub(super) fn modify_qp(
        &mut self,
        qpn: u32,
        change: impl FnOnce(&mut Self, &mut Qp) -> Outcome<()>,
    ) -> Outcome<()> {
        self.qp(qpn)?;
        let Some(mut qp) = self.qps.lend(qpn) else { return Ok(()) };
        let outcome = change(self, &mut qp);
        self.qps.put_back(qpn, qp);
        outcome
    }

    pub(super) fn rst2init(&mut self, qp: &mut Qp, command: &qp::Rst2InitQp) -> Outcome<()> {
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
        if new.counter_set_id != 0 {
            self.error_counter(new.counter_set_id, 0xc0 + 0x60)?;
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

    pub(super) fn init2rtr(&mut self, qp: &mut Qp, command: &qp::Init2RtrQp) -> Outcome<()> {
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
        if !new.is_in_order() {
            let detail = "qpc.dp_ordering_0 and dp_ordering_1 must be 0: no QP places data out of order";
            let bit = if new.dp_ordering_0 { 0x26 } else { 0x49c };
            return refuse(CommandStatus::BadParam, QPC + bit, detail);
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
        let no_qp = || {
            let detail = format!("qpc.remote_qpn {:#x} is not a QP number of HCA {gid}", new.remote_qpn);
            refuse(CommandStatus::BadParam, QPC + 0xa8, detail)
        };
        let peer = self.peers.iter().position(|peer| peer.gid == gid && peer.is_alive());
        match (peer, self.link_to(gid)) {
            (Some(peer), _) => {
                if !control::is_qpn(new.remote_qpn) {
                    return no_qp();
                }
                let entry = self.peers[peer].known().and_then(|control| control.qp(new.remote_qpn));
                let entry = entry.map_or(&raw const control::UNMET, std::ptr::from_ref);
                // An odd counter never equals the entry's, so the first WQE looks at the peer's QP.
                qp.remote = Some(Remote { peer, entry, seq: 1, facts: control::QpFacts::default() });
            }
            (None, Some(link)) => {
                if !control::is_qpn(new.remote_qpn) {
                    return no_qp();
                }
                qp.flow = Some(Box::new(Flow::new(link)));
            }
            (None, None) => {
                return refuse(CommandStatus::BadParam, PATH + 0x80, format!("rgid {gid}: no HCA has it"));
            }
        }
        let context = &mut qp.context;
        context.mtu = new.mtu;
        context.log_msg_max = new.log_msg_max;
        context.remote_qpn = new.remote_qpn;
        context.log_rra_max = new.log_rra_max;
        context.dp_ordering_force = new.dp_ordering_force;
        context.min_rnr_nak = new.min_rnr_nak;
        context.next_rcv_psn = new.next_rcv_psn;
        let kept = context.primary_address_path;
        context.primary_address_path =
            qpc::AddressPath { pkey_index: kept.pkey_index, vhca_port_num: kept.vhca_port_num, ..*path };
        self.set_state(qp, QpState::Rtr);
        Ok(())
    }

    pub(super) fn rtr2rts(&mut self, qp: &mut Qp, command: &qp::Rtr2RtsQp) -> Outcome<()> {
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
}
