//! A port of an HCA, and the values by which peers reach it.

use oxshmem_system::words::low16;
use std::fmt;
use std::str::FromStr;

/// A global identifier: an IPv6 address, 16 bytes in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the upper and the lower half as integers.
    pub fn halves(self) -> (u64, u64) {
        let (halves, _) = self.0.as_chunks::<8>();
        (u64::from_be_bytes(halves[0]), u64::from_be_bytes(halves[1]))
    }

    /// Returns, in InfiniBand subnets that a router joins, the LID to which other subnets send
    /// packets for this GID. The upper half of such GIDs is 32 bits `fec00000`, the FLID, and the
    /// subnet's number (as NCCL's `src/transport/net_ib.cc` and UCX's `src/uct/ib/base/ib_iface.c`
    /// have it).
    pub fn flid(self) -> Option<u16> {
        let prefix = self.halves().0;
        let flid = low16(prefix >> 16);
        (prefix >> 32 == 0xfec0_0000 && flid != 0).then_some(flid)
    }

    /// Returns the IPv4 address that it stands for on Ethernet, if it is one.
    pub fn ipv4(self) -> Option<std::net::Ipv4Addr> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Returns the GID with these halves.
    pub fn from_halves(hi: u64, lo: u64) -> Self {
        Self((u128::from(hi) << 64 | u128::from(lo)).to_be_bytes())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl FromStr for Gid {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse::<std::net::Ipv6Addr>()?.octets()))
    }
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID, GRH optional.
    InfiniBand,
    /// Ethernet: RoCE v2, addressed by GID; the LID is 0.
    Ethernet,
}

/// Path MTU, numbered as in a QP context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Returns the MTU with this number, if known.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// Returns its size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }
}

/// The partition key of RoCE (InfiniBand specification, annex 16), and by default of InfiniBand:
/// full member of the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// An active port, and the address that peers reach it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortInfo {
    /// Physical port, from 1.
    pub number: u8,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Active MTU.
    pub mtu: Mtu,
    /// LID; 0 on Ethernet.
    pub lid: u16,
    /// Partition key that queue pairs use: the upper bit tells a full member, the others are the
    /// partition.
    pub pkey: u16,
    /// Index of `gid` in the port's table.
    pub gid_index: u8,
    /// GID.
    pub gid: Gid,
    /// Whether packets carry a global route header even within an InfiniBand subnet.
    pub grh_required: bool,
}
