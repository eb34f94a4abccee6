//! How packets get from a port to a peer's: what queue pairs of cards and those of the kernel's
//! verbs have in common.

use crate::address::QpAddress;
use crate::port::{Gid, LinkLayer, PortInfo};

/// The bit of a partition key that marks a full member; limited members hear only those.
const FULL_MEMBER: u16 = 1 << 15;

/// The way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// Where packets go within this port's InfiniBand subnet: the peer's LID, or that of a router;
    /// 0 on Ethernet.
    pub(crate) dlid: u16,
    /// Whether packets carry a global route header.
    pub(crate) global: bool,
}

/// Why there is no way to a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// Ports of different networks.
    #[error(
        "{device} port {port} is on {here}, the peer's port on {there}: let every PE use devices of one network (OXSHMEM_HCA=mlx5:DEVICE or \
         verbs:DEVICE, OXSHMEM_HCA_DEVICES)"
    )]
    Networks {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Network here.
        here: &'static str,
        /// Network there.
        there: &'static str,
    },
    /// Addresses of different families on Ethernet, between which the kernel finds no way.
    #[error(
        "{device} port {port} has the {} address {here}, the peer's port the {} address {there}: packets go between addresses of one family; give \
         the ports of all PEs one of the same family, or name entries of the GID table that have one (OXSHMEM_IB_GID_INDEX)",
        family(*here), family(*there)
    )]
    Families {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// GID here.
        here: Gid,
        /// GID there.
        there: Gid,
    },
    /// InfiniBand subnets that no router joins, as far as can be told.
    #[error(
        "{device} port {port} ({here}) and the peer's port ({there}) are on different InfiniBand subnets, and the peer's GID has no FLID, by which \
         a router is reached: let every PE use devices of one subnet (OXSHMEM_HCA_DEVICES), or name entries of the GID table that have one \
         (OXSHMEM_IB_GID_INDEX)"
    )]
    Subnets {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// GID here.
        here: Gid,
        /// GID there.
        there: Gid,
    },
    /// Partition keys that do not go together.
    #[error(
        "{device} port {port} has partition key {here:#06x} at OXSHMEM_IB_PKEY_INDEX, the peer's port {there:#06x}: {fault}; name entries of one \
         partition, at most one end a limited member, or let the subnet manager make them so"
    )]
    Partitions {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Key here.
        here: u16,
        /// Key there.
        there: u16,
        /// What is wrong.
        fault: &'static str,
    },
}

impl From<RouteError> for crate::error::Error {
    fn from(error: RouteError) -> Self {
        Self::provider(error)
    }
}

/// Returns the family of the address that a GID on Ethernet is.
fn family(gid: Gid) -> &'static str {
    if gid.ipv4().is_some() { "IPv4" } else { "IPv6" }
}

/// Returns what tells the subnet of a GID: its upper half, less the FLID.
fn subnet(gid: Gid) -> u64 {
    gid.halves().0 & if gid.flid().is_some() { !0xffff_0000 } else { u64::MAX }
}

fn name(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet (RoCE)",
    }
}

/// Returns the way from a port of `device` to a peer: by GID on Ethernet, by LID within an
/// InfiniBand subnet, by both between subnets.
pub(crate) fn route(device: &str, own: &PortInfo, peer: &QpAddress) -> Result<Route, RouteError> {
    let (device, port) = (|| device.to_owned(), own.number);
    if peer.link_layer != own.link_layer {
        let (here, there) = (name(own.link_layer), name(peer.link_layer));
        return Err(RouteError::Networks { device: device(), port, here, there });
    }
    let fault = if (own.pkey ^ peer.pkey) & !FULL_MEMBER != 0 {
        Some("they are of different partitions")
    } else if (own.pkey | peer.pkey) & FULL_MEMBER == 0 {
        Some("limited members of a partition do not hear each other")
    } else {
        None
    };
    if let Some(fault) = fault {
        return Err(RouteError::Partitions { device: device(), port, here: own.pkey, there: peer.pkey, fault });
    }
    if own.link_layer == LinkLayer::Ethernet {
        if own.gid.ipv4().is_some() != peer.gid.ipv4().is_some() {
            return Err(RouteError::Families { device: device(), port, here: own.gid, there: peer.gid });
        }
        return Ok(Route { dlid: 0, global: true });
    }
    if subnet(own.gid) != subnet(peer.gid) {
        let dlid = peer.gid.flid();
        let none = || RouteError::Subnets { device: device(), port, here: own.gid, there: peer.gid };
        return Ok(Route { dlid: dlid.ok_or_else(none)?, global: true });
    }
    // Functions of one card may share a LID, and are told apart by their GIDs.
    let shared = own.lid == peer.lid && own.gid != peer.gid;
    Ok(Route { dlid: peer.lid, global: own.grh_required || shared })
}

/// Returns a source port that depends on both QP numbers, so that QPs take different paths.
/// Multiplication spreads neighbours, as in rdma-core's `ibv_flow_label_to_udp_sport` fed with its
/// `rdma_calc_flow_label`.
pub(crate) fn udp_source_port(qpn: u32, peer: u32) -> u16 {
    let mixed = u64::from(qpn).wrapping_mul(u64::from(peer));
    let folded = mixed ^ mixed >> 20 ^ mixed >> 40;
    0xc000 | ((folded ^ folded >> 14) & 0x3fff) as u16
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::port::Mtu;
    use proptest::prelude::*;

    pub(crate) fn port(link_layer: LinkLayer) -> PortInfo {
        PortInfo {
            number: 2,
            link_layer,
            mtu: Mtu::B4096,
            lid: 7,
            pkey: 0xffff,
            gid_index: 3,
            gid: Gid::from_halves(0xfe80 << 48, 1),
            grh_required: false,
        }
    }

    pub(crate) fn peer(link_layer: LinkLayer, prefix: u64) -> QpAddress {
        let gid = Gid::from_halves(prefix, 9);
        QpAddress {
            qpn: 0x41,
            gid,
            lid: 0x1234,
            pkey: 0xffff,
            mac: [0; 6],
            mtu: Mtu::B4096,
            link_layer,
            log_rra_max: 4,
        }
    }

    const LOCAL: u64 = 0xfe80 << 48;

    #[test]
    fn a_lid_leads_to_a_peer_of_the_subnet() {
        let own = port(LinkLayer::InfiniBand);
        let by_lid = Ok(Route { dlid: 0x1234, global: false });
        let both = Ok(Route { dlid: 0x1234, global: true });
        let near = peer(LinkLayer::InfiniBand, LOCAL);
        assert_eq!(route("x", &own, &near), by_lid);
        assert_eq!(route("x", &PortInfo { grh_required: true, ..own }, &near), both);
        assert_eq!(route("x", &PortInfo { lid: 0x1234, ..own }, &near), both);
        // This port.
        let own_address = QpAddress { gid: own.gid, lid: own.lid, ..near };
        assert_eq!(route("x", &own, &own_address), Ok(Route { dlid: 7, global: false }));
        // FLIDs are not part of the subnet's number.
        let own = PortInfo { gid: Gid::from_halves(0xfec0_0000_0100_0001, 1), ..own };
        assert_eq!(route("x", &own, &peer(LinkLayer::InfiniBand, 0xfec0_0000_0200_0001)), by_lid);
    }

    #[test]
    fn a_router_leads_to_other_subnets() {
        let own = port(LinkLayer::InfiniBand);
        let far = peer(LinkLayer::InfiniBand, 0xfec0_0000_0200_0001);
        assert_eq!(route("x", &own, &far), Ok(Route { dlid: 0x200, global: true }));
        for prefix in [0xfec0_0000_0000_0001, 0xfd00_0000_0200_0001] {
            let refused = route("mlx5_1", &own, &peer(LinkLayer::InfiniBand, prefix));
            assert!(matches!(refused, Err(RouteError::Subnets { .. })), "{prefix:#x}: {refused:?}");
        }
    }

    #[test]
    fn a_gid_leads_to_a_peer_on_ethernet() {
        let own = port(LinkLayer::Ethernet);
        for prefix in [LOCAL, 0x2001 << 48] {
            assert_eq!(route("x", &own, &peer(LinkLayer::Ethernet, prefix)), Ok(Route { dlid: 0, global: true }));
        }
        let refused = route("x", &own, &peer(LinkLayer::InfiniBand, LOCAL)).map_err(|error| error.to_string());
        let text = "x port 2 is on Ethernet (RoCE), the peer's port on InfiniBand: ";
        assert!(refused.as_ref().is_err_and(|error| error.starts_with(text)), "{refused:?}");
    }

    #[test]
    fn addresses_of_two_families_do_not_reach_each_other() {
        let between = |here: &str, there: &str| {
            let own = PortInfo { gid: here.parse().unwrap(), ..port(LinkLayer::Ethernet) };
            let peer = QpAddress { gid: there.parse().unwrap(), ..peer(LinkLayer::Ethernet, LOCAL) };
            route("mlx5_1", &own, &peer).map_err(|error| error.to_string())
        };
        let (ipv4, ipv6) = ("::ffff:10.0.0.1", "2001:db8::1");
        for same in [ipv4, ipv6] {
            assert_eq!(between(same, same), Ok(Route { dlid: 0, global: true }));
        }
        let text =
            "mlx5_1 port 2 has the IPv4 address ::ffff:10.0.0.1, the peer's port the IPv6 address 2001:db8::1: packets";
        let refused = between(ipv4, ipv6);
        assert!(refused.as_ref().is_err_and(|error| error.starts_with(text)), "{refused:?}");
        let refused = between(ipv6, ipv4);
        assert!(refused.as_ref().is_err_and(|error| error.contains("(OXSHMEM_IB_GID_INDEX)")), "{refused:?}");
    }

    #[test]
    fn partitions_separate_ports() {
        let between = |here, there| {
            let own = PortInfo { pkey: here, ..port(LinkLayer::InfiniBand) };
            let peer = QpAddress { pkey: there, ..peer(LinkLayer::InfiniBand, LOCAL) };
            route("mlx5_1", &own, &peer).map_err(|error| error.to_string())
        };
        for (here, there) in [(0xffff, 0xffff), (0x8001, 0x8001), (0x8001, 1), (1, 0x8001)] {
            assert!(between(here, there).is_ok(), "{here:#x} {there:#x}");
        }
        for (here, there, text) in [
            (
                0xffff,
                0x8001,
                "mlx5_1 port 2 has partition key 0xffff at OXSHMEM_IB_PKEY_INDEX, the peer's port 0x8001: they are of",
            ),
            (1, 1, "0x0001: limited members of a partition do not hear each other; name entries"),
        ] {
            let refused = between(here, there);
            assert!(refused.as_ref().is_err_and(|error| error.contains(text)), "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn source_ports_are_in_range(a in 0u32..1 << 24, b in 0u32..1 << 24) {
            prop_assert!(udp_source_port(a, b) >= 0xc000);
        }
    }

    #[test]
    fn neighbouring_qps_use_different_ports() {
        let ports: std::collections::HashSet<u16> = (0x40..0x80).map(|qpn| udp_source_port(qpn, qpn)).collect();
        assert!(ports.len() > 56, "{} different ports for 64 QPs", ports.len());
    }
}
