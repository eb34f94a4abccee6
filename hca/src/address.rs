//! How a queue pair is addressed and connected: what two peers tell each other, and what both ends
//! have to agree on.

use crate::error::{Error, Result};
use crate::port::{Gid, LinkLayer, Mtu};
use std::time::Duration;

/// How a queue pair is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttributes {
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Path MTU; cut to the active MTU of the port.
    pub mtu: Mtu,
    /// Service level (InfiniBand) or priority (RoCE), 0..=15 or 0..=7.
    pub sl: u8,
    /// Traffic class; on RoCE its upper six bits are the DSCP.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// UDP source port on RoCE, 0xc000 and up; `None` derives one from both QP numbers, which
    /// spreads QPs over paths.
    pub udp_sport: Option<u16>,
    /// A retry comes after 4.096 us x 2^this, 1..=31.
    pub ack_timeout: u8,
    /// Retries, 0..=7.
    pub retry_count: u8,
    /// Retries when the receiver is not ready, 0..=7; 7 is forever.
    pub rnr_retry: u8,
    /// Receiver-not-ready timer, 0..=31.
    pub min_rnr_timer: u8,
    /// log2 of outstanding reads and atomics, in either direction; cut to what the peer serves.
    pub log_max_rd_atomic: u8,
    /// First packet sequence number, the same at both ends, 24 bits.
    pub first_psn: u32,
    /// How long the kernel is asked again for the hardware address of a peer on Ethernet that does
    /// not answer; zero: it is asked once.
    pub patience: Duration,
    /// A number of the QP; QPs with numbers that follow each other leave by the ports of a bond in
    /// turn.
    pub spread: u32,
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self {
            pkey_index: 0,
            mtu: Mtu::B4096,
            sl: 0,
            traffic_class: 0,
            hop_limit: 255,
            udp_sport: None,
            // 268 ms, times 8 tries: a peer that is gone is reported after about 2 s.
            ack_timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            log_max_rd_atomic: 4,
            first_psn: 0,
            patience: Duration::ZERO,
            spread: 0,
        }
    }
}

/// What a peer needs to know to connect to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAddress {
    /// QP number.
    pub qpn: u32,
    /// GID of the port.
    pub gid: Gid,
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// Partition key that the QP uses.
    pub pkey: u16,
    /// MAC address of the port; zeros on InfiniBand.
    pub mac: [u8; 6],
    /// Active MTU of the port.
    pub mtu: Mtu,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// log2 of the reads and atomics that the QP serves at a time, 0..=7 (PRM `qpc.log_rra_max`).
    pub log_rra_max: u8,
}

impl QpAddress {
    /// The length of the encoded form.
    pub const BYTES: usize = 34;
    const VERSION: u8 = 3;

    /// Returns it as plain bytes, for the bootstrap to exchange: version, link layer, MTU,
    /// `log_rra_max`, LID, MAC, QP number, GID, partition key; little-endian.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = Self::VERSION;
        bytes[1] = u8::from(self.link_layer == LinkLayer::Ethernet);
        bytes[2] = self.mtu as u8;
        bytes[3] = self.log_rra_max;
        bytes[4..6].copy_from_slice(&self.lid.to_le_bytes());
        bytes[6..12].copy_from_slice(&self.mac);
        bytes[12..16].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.gid.0);
        bytes[32..].copy_from_slice(&self.pkey.to_le_bytes());
        bytes
    }

    /// Decodes the encoded form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |detail: String| Error::protocol("QP address of a peer", detail);
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| wrong(format!("{} bytes, expected {}", bytes.len(), Self::BYTES)))?;
        if bytes[0] != Self::VERSION {
            return Err(wrong(format!(
                "version {}, expected {}; do all PEs run the same release?",
                bytes[0],
                Self::VERSION
            )));
        }
        let link_layer = match bytes[1] {
            0 => LinkLayer::InfiniBand,
            1 => LinkLayer::Ethernet,
            other => return Err(wrong(format!("link layer {other}"))),
        };
        let mtu = Mtu::from_u8(bytes[2]).ok_or_else(|| wrong(format!("MTU {}", bytes[2])))?;
        let qpn = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
        let log_rra_max = bytes[3];
        if log_rra_max > 7 || qpn >> 24 != 0 {
            return Err(wrong(format!("log_rra_max {log_rra_max} or QP number {qpn:#x}")));
        }
        Ok(Self {
            qpn,
            gid: Gid(std::array::from_fn(|i| bytes[16 + i])),
            lid: u16::from_le_bytes([bytes[4], bytes[5]]),
            pkey: u16::from_le_bytes([bytes[32], bytes[33]]),
            mac: std::array::from_fn(|i| bytes[6 + i]),
            mtu,
            link_layer,
            log_rra_max,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_survive(
            qpn in 0u32..1 << 24, gid in any::<[u8; 16]>(), lid in any::<u16>(), pkey in any::<u16>(), mac in any::<[u8; 6]>(),
            mtu in 1u8..=5, ethernet in any::<bool>(), log_rra_max in 0u8..=7,
        ) {
            let link_layer = if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
            let mtu = Mtu::from_u8(mtu).unwrap();
            let address = QpAddress { qpn, gid: Gid(gid), lid, pkey, mac, mtu, link_layer, log_rra_max };
            prop_assert_eq!(QpAddress::from_bytes(&address.to_bytes()).unwrap(), address);
        }

        #[test]
        fn any_bytes_decode_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(address) = QpAddress::from_bytes(&bytes) {
                prop_assert_eq!(&address.to_bytes()[..], &bytes[..]);
            }
        }
    }
}
