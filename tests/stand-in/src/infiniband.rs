//! Ports on InfiniBand: subnets, LIDs, partitions, and which packets arrive.
//!
//! The software HCA behind a port is known by the lower half of its GID, the GUID. Here that is
//! made of subnet and LID, so a sender to a LID knows the GUID behind it, and no two ports of a
//! machine have the same, in whatever job and process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oxshmem_hca::Error;
use oxshmem_hca::prm::{CommandStatus, qpc};
use oxshmem_hca::provider::{DEFAULT_PKEY, Gid};
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::verbs::sys::ibverbs as ib;

use crate::state::lies;

/// Entries of the GID table.
pub(crate) const GIDS: u32 = 8;
/// Entries of the partition key table.
pub(crate) const PKEYS: u16 = 128;

/// The LIDs that the subnet manager gives to ports; above are those by which other subnets are
/// reached, then those of multicast groups.
const LIDS: std::ops::Range<u16> = 0x100..FIRST_FLID;
const FIRST_FLID: u16 = 0xb000;
const FIRST_MULTICAST: u16 = 0xc000;
/// The LID of the subnet manager.
const SM_LID: u16 = 1;

/// The upper half of GUIDs: a company's number.
const GUID: u64 = 0x506b_4b03 << 32;
/// The default prefix of a subnet's GIDs.
const LINK_LOCAL: u64 = 0xfe80 << 48;
/// The prefix of GIDs that a router forwards to, less FLID and number of the subnet.
const SITE_LOCAL: u64 = 0xfec0 << 48;

/// The last QP number of a software HCA, which none has unless there are 16384. A QP that is
/// connected to it sends, and gets no answer.
pub(crate) const NOBODY: u32 = 0x403f;

/// What the environment says of `name` of ports.
fn told(name: &str) -> Option<u16> {
    lies().number("port", name).and_then(|value| u16::try_from(value).ok())
}

fn subnets() -> u16 {
    told("subnets").unwrap_or(1).max(1)
}

/// Bits of LIDs that name paths to one port (LMC, 0 to 7).
fn path_bits() -> u8 {
    told("lmc").map_or(0, |bits| (bits & 7) as u8)
}

/// The FLID of a subnet, if a router joins it to others.
fn flid(subnet: u16) -> Option<u16> {
    (subnets() > 1 && told("flid") != Some(0)).then_some(FIRST_FLID + subnet)
}

/// An active port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    subnet: u16,
    /// The first of its LIDs.
    lid: u16,
    card: u16,
}

impl Port {
    fn guid(self) -> u64 {
        GUID | u64::from(self.subnet) << 16 | u64::from(self.lid)
    }

    /// Entry `index` of the GID table: the subnet's prefix, and the alias for routers.
    pub(crate) fn gid(self, index: u32) -> Option<Gid> {
        let number = u64::from(self.subnet) + 1;
        let prefix = match index {
            0 if subnets() == 1 => LINK_LOCAL,
            0 => SITE_LOCAL | number,
            1 => SITE_LOCAL | u64::from(flid(self.subnet)?) << 16 | number,
            _ => return None,
        };
        Some(Gid::from_halves(prefix, self.guid()))
    }

    /// Entry `index` of the partition key table, 0 if it is empty; nothing beyond the table. The
    /// first two are of full members, the third of a limited one, the fourth of a partition that no
    /// other card is in.
    pub(crate) fn pkey(self, index: u16) -> Option<u16> {
        let keys = [DEFAULT_PKEY, 0x8001, 0x0001, 0x8010 + self.card];
        (index < PKEYS).then(|| keys.get(usize::from(index)).copied().unwrap_or(0))
    }

    /// What `ibv_query_port` says of it; the state is there already.
    pub(crate) fn describe(self, attributes: &mut ib::ibv_port_attr) {
        // Without a subnet manager a port gets no further than to INIT, and no LID.
        if attributes.state >= ib::IBV_PORT_ARMED {
            (attributes.lid, attributes.lmc) = (told("lid").unwrap_or(self.lid), path_bits());
            (attributes.sm_lid, attributes.sm_sl, attributes.subnet_timeout) = (SM_LID, 0, 18);
        }
        attributes.gid_tbl_len = GIDS.cast_signed();
        attributes.pkey_tbl_len = PKEYS;
        attributes.link_layer = 1;
        // Four lanes of HDR, link up.
        (attributes.active_width, attributes.active_speed, attributes.phys_state) = (2, 64, 5);
        attributes.flags = u8::from(is_grh_required());
    }

    /// What the firmware makes of a path: the GID of the port that gets the packets, nothing if
    /// they are lost on the way, or a refusal.
    pub(crate) fn follow(self, path: &qpc::AddressPath) -> Result<Option<Gid>, CommandStatus> {
        // Fields of RoCE, which are reserved here.
        let ethernet = path.rmac_47_32 != 0 || path.rmac_31_0 != 0 || path.udp_sport != 0;
        if ethernet || path.eth_prio != 0 || path.dscp != 0 || !(1..FIRST_MULTICAST).contains(&path.rlid) {
            return Err(CommandStatus::BadParam);
        }
        let target = Gid::from_halves(path.rgid_hi, path.rgid_lo);
        // Without a global route header its fields are reserved.
        let header = (path.src_addr_index, path.hop_limit, path.tclass, path.flow_label, target);
        if !path.grh && header != (0, 0, 0, 0, Gid::default()) {
            return Err(CommandStatus::BadParam);
        }
        let source = self.gid(path.src_addr_index.into()).ok_or(CommandStatus::BadIndex)?;
        if self.pkey(path.pkey_index).ok_or(CommandStatus::BadIndex)? == 0 {
            return Ok(None);
        }
        // Other service levels have no virtual lane, and no port forwards what lacks a header that
        // is demanded.
        if told("sl").is_some_and(|sl| sl != u16::from(path.sl)) || (is_grh_required() && !path.grh) {
            return Ok(None);
        }
        let at = |subnet, lid| Self { subnet, lid, card: 0 };
        let far = path.rlid.checked_sub(FIRST_FLID);
        let receiver = match far {
            None => at(self.subnet, path.rlid & !((1 << path_bits()) - 1)),
            // The last bits of a GUID are the LID in its subnet.
            Some(subnet) => at(subnet, target.halves().1 as u16),
        };
        let known = [0, 1].into_iter().any(|index| receiver.gid(index) == Some(target));
        let arrives = match far {
            None => known || !path.grh,
            // A router forwards by GID to subnets that it knows, and counts hops; what comes back
            // needs an address that it can forward to.
            Some(subnet) => known && flid(subnet).is_some() && path.hop_limit > 1 && source.flid().is_some(),
        };
        Ok(arrives.then(|| Gid::from_halves(LINK_LOCAL, receiver.guid())))
    }
}

fn is_grh_required() -> bool {
    told("grh").is_some_and(|demanded| demanded != 0)
}

/// Opens a software HCA behind a port of `card`, which gets a LID, if ports are on InfiniBand.
pub(crate) fn open(card: u16, options: impl Fn() -> SoftOptions) -> Option<Result<(Arc<SoftHca>, Port), i32>> {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    told("infiniband")?;
    let places = u64::from(LIDS.end - LIDS.start) >> path_bits();
    // Where to begin to look for a free one; processes that are started together begin far from
    // each other.
    let start = u64::from(std::process::id()) * 251 + OPENED.fetch_add(1, Ordering::Relaxed) * 7;
    for place in 0..places {
        let lid = LIDS.start + (((start + place) % places) << path_bits()) as u16;
        let port = Port { subnet: card % subnets(), lid, card };
        match SoftHca::open(SoftOptions { interface: Some(port.guid()), ..options() }) {
            Ok(hca) => return Some(Ok((hca, port))),
            Err(Error::System(oxshmem_system::Error::Os { source, .. }))
                if source.kind() == io::ErrorKind::AddrInUse => {}
            Err(_) => return Some(Err(libc::ENOMEM)),
        }
    }
    Some(Err(libc::ENOSPC))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Port = Port { subnet: 0, lid: 0x123, card: 0 };
    const THERE: Port = Port { subnet: 0, lid: 0x456, card: 1 };

    fn by_lid() -> qpc::AddressPath {
        qpc::AddressPath { rlid: THERE.lid, sl: 15, pkey_index: 1, ..qpc::AddressPath::default() }
    }

    fn by_gid(gid: Gid) -> qpc::AddressPath {
        let (rgid_hi, rgid_lo) = gid.halves();
        qpc::AddressPath { grh: true, hop_limit: 1, tclass: 3, rgid_hi, rgid_lo, ..by_lid() }
    }

    #[test]
    fn packets_arrive_at_the_port_that_has_the_address() {
        let arrived = Ok(Some(Gid::from_halves(LINK_LOCAL, THERE.guid())));
        assert_eq!(HERE.follow(&by_lid()), arrived);
        assert_eq!(THERE.gid(0).map(|gid| HERE.follow(&by_gid(gid))), Some(arrived));
        // The LID of one and the GID of another, no partition, and a router that is not there.
        assert_eq!(HERE.gid(0).map(|gid| HERE.follow(&by_gid(gid))), Some(Ok(None)));
        assert_eq!(HERE.follow(&qpc::AddressPath { pkey_index: 4, ..by_lid() }), Ok(None));
        assert_eq!(HERE.follow(&qpc::AddressPath { rlid: FIRST_FLID, ..by_lid() }), Ok(None));
    }

    #[test]
    fn paths_that_no_firmware_takes_are_refused() {
        for (path, status) in [
            (qpc::AddressPath { rlid: 0, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { rlid: FIRST_MULTICAST, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { udp_sport: 0xc000, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { rmac_31_0: 1, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { eth_prio: 1, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { hop_limit: 255, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { rgid_lo: 1, ..by_lid() }, CommandStatus::BadParam),
            (qpc::AddressPath { src_addr_index: 1, ..by_gid(Gid::default()) }, CommandStatus::BadIndex),
            (qpc::AddressPath { pkey_index: PKEYS, ..by_lid() }, CommandStatus::BadIndex),
        ] {
            assert_eq!(HERE.follow(&path), Err(status), "{path:?}");
        }
    }
}
