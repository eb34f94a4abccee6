//! Queue pairs: created, connected, reset and queried.

use super::cq::Cq;
use super::memory::Umem;
use super::owned::{Guard, Owned, create, modify};
use super::pd::Pd;
use super::uar::Uar;
use crate::address::{QpAddress, QpAttributes};
use crate::error::{Error, Result};
use crate::port::{LinkLayer, PortInfo};
use crate::prm::qpc::{self, QpContext, QpState, SendDbrMode};
use crate::prm::{Command, qp};
use oxshmem_system::words::low8;

use crate::route::{Route, route, udp_source_port};
use std::sync::Arc;

/// The longest message of a QP, log2 of bytes: 1 GiB.
pub const LOG_MESSAGE_MAX: u8 = 30;

/// Where a queue pair's send queue lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpGeometry {
    /// log2 of the number of 64-byte blocks.
    pub log_sq_size: u8,
    /// Start of the send queue in the umem, bytes; a multiple of 64.
    pub sq_offset: u64,
    /// Start of the 8-byte doorbell record in the umem; a multiple of 8. The send counter is
    /// [`SEND_OFFSET`](crate::wire::dbr::SEND_OFFSET) further. The caller fills it with zeros
    /// before.
    pub dbr_offset: u64,
    /// What CQEs name this QP by, 24 bits.
    pub user_index: u32,
    /// Whether the card reads the record. A QP without one rings in a register of those that
    /// [`UarPage::without_record`](crate::provider::UarPage::without_record) has; its record stays
    /// registered and untouched, as rdma-core's `tests/mlx5_base.py` has it.
    pub send_dbr_mode: SendDbrMode,
}

/// What QUERY_QP says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpStatus {
    /// State.
    pub state: QpState,
    /// Blocks that the HCA has executed, modulo 2^16.
    pub executed: u16,
    /// Blocks that the doorbell record covered, modulo 2^16.
    pub covered: u16,
    /// The whole context.
    pub context: QpContext,
}

/// A reliably connected queue pair with a send queue only.
#[derive(Debug)]
pub struct Qp {
    guard: Guard,
    qpn: u32,
    _pd: Arc<Pd>,
    cq: Arc<Cq>,
    _uar: Arc<Uar>,
    _umem: Arc<Umem>,
}

impl Qp {
    /// Creates one (CREATE_QP), in state RST. Send queue and doorbell record lie in `umem`,
    /// completions go to `cq`.
    pub fn create(pd: &Arc<Pd>, cq: &Arc<Cq>, uar: &Arc<Uar>, umem: &Arc<Umem>, geometry: &QpGeometry) -> Result<Self> {
        if geometry.user_index >> 24 != 0 {
            return Err(Error::argument("user_index", geometry.user_index, "has 24 bits"));
        }
        if geometry.log_sq_size > 15 {
            return Err(Error::argument(
                "log_sq_size",
                geometry.log_sq_size,
                "completion counters have 16 bits: at most 15",
            ));
        }
        let (mode, info) = (geometry.send_dbr_mode, pd.provider().info());
        if mode == SendDbrMode::NoDbrExt && info.without_records == 0 {
            let rule = format!("{} has no queue pairs without doorbell record; use DBR_VALID", info.device);
            return Err(Error::argument("send_dbr_mode", mode.name(), rule));
        }
        let (guard, out) = create(
            pd.provider(),
            &qp::CreateQp {
                wq_umem_offset: geometry.sq_offset,
                wq_umem_id: umem.id(),
                wq_umem_valid: true,
                qpc: QpContext {
                    st: qpc::SERVICE_RC,
                    pm_state: qpc::MIGRATED,
                    pd: pd.pdn(),
                    log_sq_size: geometry.log_sq_size,
                    ts_format: pd.provider().info().ts_format,
                    uar_page: uar.page_id(),
                    send_dbr_mode: geometry.send_dbr_mode as u8,
                    user_index: geometry.user_index,
                    cqn_snd: cq.cqn(),
                    cqn_rcv: cq.cqn(),
                    rq_type: qpc::ZERO_SIZE_RQ,
                    dbr_addr: geometry.dbr_offset,
                    dbr_umem_valid: true,
                    dbr_umem_id: umem.id(),
                    ..QpContext::default()
                },
                ..qp::CreateQp::default()
            },
        )?;
        Ok(Self {
            guard,
            qpn: out.qpn,
            _pd: Arc::clone(pd),
            cq: Arc::clone(cq),
            _uar: Arc::clone(uar),
            _umem: Arc::clone(umem),
        })
    }

    /// Returns its number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns what the peer needs to connect to it.
    pub fn address(&self) -> QpAddress {
        QpAddress { qpn: self.qpn, ..self.guard.provider.info().address() }
    }

    /// Connects to the peer's QP: RST2INIT, INIT2RTR, RTR2RTS. The peer does the same with this
    /// QP's address; until it has, work requests posted here are retried. The peer's QP must exist.
    pub fn connect(&self, peer: &QpAddress, attributes: &QpAttributes) -> Result<()> {
        let info = self.guard.provider.info();
        let route = route(&info.device, &info.port, peer)?;
        check_attributes(info.port.link_layer, attributes)?;
        let qpn = self.qpn;
        let mut init = qp::Rst2InitQp { qpn, ..qp::Rst2InitQp::default() };
        init.qpc.primary_address_path.vhca_port_num = info.port.number;
        init.qpc.primary_address_path.pkey_index = attributes.pkey_index;
        init.qpc.rre = true;
        init.qpc.rwe = true;
        init.qpc.rae = true;
        init.qpc.atomic_mode = qpc::ATOMIC_UP_TO_8_BYTES;
        init.qpc.pm_state = qpc::MIGRATED;
        // Linux sets it in this transition, too (drivers/infiniband/hw/mlx5/qp.c,
        // `__mlx5_ib_modify_qp`).
        init.qpc.counter_set_id = info.counter_set;
        modify(&self.guard, &init)?;

        let mut rtr = qp::Init2RtrQp { qpn, ..qp::Init2RtrQp::default() };
        rtr.qpc.mtu = attributes.mtu.min(info.port.mtu).min(peer.mtu) as u8;
        rtr.qpc.log_msg_max = LOG_MESSAGE_MAX;
        rtr.qpc.remote_qpn = peer.qpn;
        rtr.qpc.min_rnr_nak = attributes.min_rnr_timer;
        rtr.qpc.log_rra_max = attributes.log_max_rd_atomic.min(info.log_rra_max);
        rtr.qpc.next_rcv_psn = attributes.first_psn;
        // The hardware address is the kernel's to find out, and only Ethernet has one.
        let mac = match info.port.link_layer {
            LinkLayer::Ethernet => self.guard.provider.next_hop(peer, attributes)?,
            LinkLayer::InfiniBand => [0; 6],
        };
        // The bits that name the order stay 0, which is that of posting (UCX,
        // `uct_ib_mlx5_devx_set_qpc_dp_ordering`).
        rtr.qpc.dp_ordering_force = info.forces_order;
        rtr.qpc.primary_address_path = address_path(&info.port, route, qpn, peer, attributes, mac);
        if info.lag_ports > 1 {
            rtr.opt_param_mask = qpc::OPT_LAG_PORT;
            rtr.qpc.lag_tx_port_affinity = 1 + low8(u64::from(attributes.spread % u32::from(info.lag_ports)));
        }
        modify(&self.guard, &rtr)?;

        let mut rts = qp::Rtr2RtsQp { qpn, ..qp::Rtr2RtsQp::default() };
        // More than the peer serves it refuses, as an invalid request.
        rts.qpc.log_sra_max = attributes.log_max_rd_atomic.min(peer.log_rra_max);
        rts.qpc.retry_count = attributes.retry_count;
        rts.qpc.rnr_retry = attributes.rnr_retry;
        rts.qpc.next_send_psn = attributes.first_psn;
        rts.qpc.primary_address_path.ack_timeout = attributes.ack_timeout;
        modify(&self.guard, &rts)
    }

    /// Returns whether what is posted to it arrives in the order of posting. It is connected. Where
    /// the order was not forced its context says which one the firmware has chosen (QUERY_QP).
    pub fn is_in_order(&self) -> Result<bool> {
        let info = self.guard.provider.info();
        if !info.in_order || info.forces_order {
            return Ok(info.in_order);
        }
        Ok(self.query()?.context.is_in_order())
    }

    /// Moves it to the error state (2ERR): what is outstanding is flushed.
    pub fn to_error(&self) -> Result<()> {
        modify(&self.guard, &qp::ToErrQp { qpn: self.qpn })
    }

    /// Moves it to the reset state (2RST): counters start at 0 again, on both sides; the caller
    /// clears the doorbell record.
    pub fn to_reset(&self) -> Result<()> {
        modify(&self.guard, &qp::ToRstQp { qpn: self.qpn })
    }

    /// Reads its state (QUERY_QP).
    pub fn query(&self) -> Result<QpStatus> {
        let mut output = vec![0; qp::QueryQp::OUT_LEN];
        let Owned::Object(handle) = self.guard.what else {
            return Err(Error::argument("qp", self.qpn, "not an object"));
        };
        self.guard.provider.obj_query(handle, &qp::QueryQp { qpn: self.qpn }.encode(), &mut output)?;
        let context = qp::QueryQp::decode_output(&output).qpc;
        let state = QpState::from_u8(context.state)
            .ok_or_else(|| Error::protocol("QUERY_QP", format!("state {} is not known", context.state)))?;
        Ok(QpStatus { state, executed: context.hw_sq_wqebb_counter, covered: context.sw_sq_wqebb_counter, context })
    }

    /// Returns the completion queue that it was created with.
    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Destroys it now.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}

/// Returns a route from queue pair `qpn` in the fields that the link layer and the route have
/// (Linux, `mlx5_set_path`).
fn address_path(
    port: &PortInfo,
    route: Route,
    qpn: u32,
    peer: &QpAddress,
    attributes: &QpAttributes,
    mac: [u8; 6],
) -> qpc::AddressPath {
    let mut path = qpc::AddressPath {
        pkey_index: attributes.pkey_index,
        vhca_port_num: port.number,
        ..qpc::AddressPath::default()
    };
    if route.global {
        (path.rgid_hi, path.rgid_lo) = peer.gid.halves();
        path.src_addr_index = port.gid_index;
        path.hop_limit = attributes.hop_limit;
        path.tclass = attributes.traffic_class;
    }
    if port.link_layer == LinkLayer::Ethernet {
        path.eth_prio = attributes.sl;
        path.dscp = attributes.traffic_class >> 2;
        path.udp_sport = attributes.udp_sport.unwrap_or_else(|| udp_source_port(qpn, peer.qpn));
        path.rmac_47_32 = u16::from_be_bytes([mac[0], mac[1]]);
        path.rmac_31_0 = u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]);
    } else {
        path.grh = route.global;
        path.rlid = route.dlid;
        path.sl = attributes.sl;
    }
    path
}

fn check_attributes(link_layer: LinkLayer, attributes: &QpAttributes) -> Result<()> {
    let limits = [
        ("sl", attributes.sl, 0, if link_layer == LinkLayer::Ethernet { 7 } else { 15 }),
        ("ack_timeout", attributes.ack_timeout, 1, 31),
        ("retry_count", attributes.retry_count, 0, 7),
        ("rnr_retry", attributes.rnr_retry, 0, 7),
        ("min_rnr_timer", attributes.min_rnr_timer, 0, 31),
        ("log_max_rd_atomic", attributes.log_max_rd_atomic, 0, 7),
    ];
    for (name, value, low, high) in limits {
        if !(low..=high).contains(&value) {
            return Err(Error::argument(name, value, format!("{low} to {high} are allowed")));
        }
    }
    if attributes.first_psn >> 24 != 0 {
        return Err(Error::argument("first_psn", attributes.first_psn, "has 24 bits"));
    }
    if let Some(port) = attributes.udp_sport.filter(|port| *port < 0xc000) {
        return Err(Error::argument("udp_sport", port, "RoCE v2 uses 49152 (0xc000) and up"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::tests::{peer, port};

    #[test]
    fn on_infiniband_lid_and_service_level_are_given() {
        let attributes = QpAttributes { sl: 5, pkey_index: 8, traffic_class: 0x68, ..QpAttributes::default() };
        let (own, peer) = (port(LinkLayer::InfiniBand), peer(LinkLayer::InfiniBand, 0xfec0 << 48));
        let route = Route { dlid: 0x1234, global: false };
        let path = address_path(&own, route, 0x40, &peer, &attributes, [0; 6]);
        let expected =
            qpc::AddressPath { rlid: 0x1234, sl: 5, pkey_index: 8, vhca_port_num: 2, ..qpc::AddressPath::default() };
        assert_eq!(path, expected);
        let path = address_path(&own, Route { global: true, ..route }, 0x40, &peer, &attributes, [0; 6]);
        let header = qpc::AddressPath {
            grh: true,
            src_addr_index: 3,
            hop_limit: 255,
            tclass: 0x68,
            rgid_hi: 0xfec0 << 48,
            rgid_lo: 9,
            ..expected
        };
        assert_eq!(path, header);
    }

    #[test]
    fn on_ethernet_gid_and_mac_lead_to_the_peer() {
        let attributes =
            QpAttributes { sl: 3, traffic_class: 0x68, udp_sport: Some(0xc123), ..QpAttributes::default() };
        let (own, theirs) = (port(LinkLayer::Ethernet), peer(LinkLayer::Ethernet, 0xfe80 << 48));
        let route = Route { dlid: 0, global: true };
        let path = address_path(&own, route, 0x40, &theirs, &attributes, [2, 3, 4, 5, 6, 7]);
        let expected = qpc::AddressPath {
            rgid_hi: 0xfe80 << 48,
            rgid_lo: 9,
            src_addr_index: 3,
            hop_limit: 255,
            eth_prio: 3,
            tclass: 0x68,
            dscp: 0x1a,
            udp_sport: 0xc123,
            rmac_47_32: 0x0203,
            rmac_31_0: 0x0405_0607,
            vhca_port_num: 2,
            ..qpc::AddressPath::default()
        };
        assert_eq!(path, expected);
    }
}
