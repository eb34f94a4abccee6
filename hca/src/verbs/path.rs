//! Routes as verbs take them.

use super::sys;
use crate::address::{QpAddress, QpAttributes};
use crate::port::PortInfo;
use crate::route::Route;

/// Returns a route from a port to a peer. The flow label matters on Ethernet: the UDP source port
/// is made of it.
pub(crate) fn address(
    port: &PortInfo,
    route: Route,
    peer: &QpAddress,
    attributes: &QpAttributes,
    flow_label: u32,
) -> sys::ibv_ah_attr {
    sys::ibv_ah_attr {
        grh: sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: peer.gid.0 },
            flow_label,
            sgid_index: port.gid_index,
            hop_limit: attributes.hop_limit,
            traffic_class: attributes.traffic_class,
        },
        dlid: route.dlid,
        sl: attributes.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(route.global),
        port_num: port.number,
    }
}

/// Returns a flow label that gives this source port by rdma-core's `ibv_flow_label_to_udp_sport`:
/// its low 14 bits, exclusive or its high 6. Never 0, which would leave the choice to the driver.
pub(super) fn flow_label(port: u16) -> u32 {
    match u32::from(port & 0x3fff) {
        0 => 1 << 14 | 1,
        low => low,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_flow_label_gives_the_source_port(port in 0xc000u16..) {
            let label = flow_label(port);
            prop_assert!(label != 0 && label >> 20 == 0);
            let low = label & 0x3fff;
            let high = (label & 0xfc000) >> 14;
            prop_assert_eq!((low ^ high) | 0xc000, u32::from(port));
        }
    }
}
