//! Has software HCAs reach those of other nodes: each listens at an address of its node, and all
//! tell each other where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use oxshmem_hca::port::Gid;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::SoftHca;
use oxshmem_system::challenge::{self, BYTES};

use super::error::TransportError;
use super::near::Nodes;
use super::plan::Plan;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::interfaces;
use crate::config::Config;

/// Descriptors that are left to the program.
const SPARE_DESCRIPTORS: u64 = 16;

/// Connects with the PEs of other nodes, if there are any. Collective.
pub(super) fn join(config: &Config, bootstrap: &Bootstrap, nodes: &Nodes, hca: &SoftHca) -> Result<()> {
    let me = bootstrap.rank() as usize;
    if nodes.is_single() {
        return Ok(());
    }
    let address = own_address(config, bootstrap)?;
    // The job's identity alone would admit a stranger where it follows from public facts; what is
    // drawn here reaches only PEs that the rendezvous has admitted.
    let job = bootstrap.job_id().to_bytes();
    let drawn = challenge::nonce().map_err(oxshmem_hca::Error::from)?;
    let listening = hca.listen(SocketAddr::new(address, 0), &[&job[..], &drawn].concat())?;
    let (hi, lo) = hca.info().port.gid.halves();
    let mut bytes = [hi.to_le_bytes(), lo.to_le_bytes()].concat();
    bytes.extend_from_slice(&listening.port().to_le_bytes());
    bytes.extend_from_slice(&to_v6(address).octets());
    bytes.extend_from_slice(&drawn);
    let mut far = Vec::new();
    for (pe, bytes) in bootstrap.allgather("HCAs of nodes", &bytes)?.iter().enumerate() {
        let (gid, route, drawn) = parse(bytes).ok_or(TransportError::Address { pe })?;
        if !nodes.is_one(pe, me) {
            hca.add_route(gid, route, &[&job[..], &drawn].concat());
            far.push(gid);
        }
    }
    // Each begins with another, so that none is called by all at a time.
    let place = nodes.members(me).iter().take_while(|pe| **pe < me).count();
    let first = place % far.len().max(1);
    far.rotate_left(first);
    Ok(hca.reach(&far)?)
}

/// Refuses a job whose connections need more descriptors than this process may have: 2 for each PE
/// that the software HCA may be asked to reach, for either direction.
pub(super) fn check_descriptors(plan: &Plan, bootstrap: &Bootstrap) -> Result<()> {
    let me = bootstrap.rank() as usize;
    let reached = (0..bootstrap.size() as usize).filter(|pe| *pe != me && !plan.is_direct(*pe)).count();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    match limit.and_then(|limit| shortage(reached as u64, plan.direct_peers(me).len() as u64, open as u64, limit)) {
        Some(what) => Err(TransportError::Descriptors { what }.into()),
        None => Ok(()),
    }
}

/// Says what is missing where `limit` descriptors are too few: for two connections with each of
/// `reached` PEs, one with each of `direct`, and some for the program.
fn shortage(reached: u64, direct: u64, open: u64, limit: u64) -> Option<String> {
    let needed = open + 2 * reached + direct + SPARE_DESCRIPTORS;
    (needed > limit).then(|| {
        format!(
            "the software HCA of this PE reaches {reached} PEs, which takes up to {needed} file descriptors, {open} that are open \
             included, and the process may have {limit}; raise the limit (ulimit -n, LimitNOFILE= of a service, --ulimit nofile= of a \
             container)"
        )
    })
}

/// Returns the address of this node that the others shall use. Collective.
fn own_address(config: &Config, bootstrap: &Bootstrap) -> Result<IpAddr> {
    let wanted = config.interface();
    let given = if wanted.is_empty() {
        None
    } else {
        let chosen = interfaces::choose(wanted, &interfaces::interfaces()?);
        Some(chosen.map_err(|what| TransportError::Interface { what })?)
    };
    // By which the rendezvous was reached.
    let near_hub = given.or_else(|| bootstrap.local_address()).unwrap_or(Ipv4Addr::LOCALHOST.into());
    let all = bootstrap.allgather("addresses of nodes", &to_v6(near_hub).octets())?;
    if let Some(address) = given.filter(|address| has_scope(*address)) {
        let what = format!(
            "'{wanted}' has no address that other nodes can use: {address} means another interface on each of them"
        );
        return Err(TransportError::Interface { what }.into());
    }
    if given.is_some() || !(near_hub.is_loopback() || has_scope(near_hub)) {
        return Ok(near_hub);
    }
    // The rendezvous is on this node. Another node shows by which address this one reaches others.
    for (pe, bytes) in all.iter().enumerate() {
        let octets: [u8; 16] = bytes.as_slice().try_into().map_err(|_| TransportError::Address { pe })?;
        let other = Ipv6Addr::from(octets).to_canonical();
        if !(other.is_loopback() || has_scope(other))
            && let Some(address) = interfaces::towards(other)
        {
            return Ok(address);
        }
    }
    if has_scope(near_hub) {
        let what = format!(
            "the rendezvous was reached by {near_hub}, which means another interface on each node; name an interface with another address"
        );
        return Err(TransportError::Interface { what }.into());
    }
    Ok(near_hub)
}

/// Returns whether an address means something only together with an interface, which other nodes do
/// not know.
fn has_scope(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn parse(bytes: &[u8]) -> Option<(Gid, SocketAddr, [u8; BYTES])> {
    let (hi, rest) = bytes.split_first_chunk()?;
    let (lo, rest) = rest.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let (octets, rest) = rest.split_first_chunk::<16>()?;
    let gid = Gid::from_halves(u64::from_le_bytes(*hi), u64::from_le_bytes(*lo));
    let address = SocketAddr::new(Ipv6Addr::from(*octets).to_canonical(), u16::from_le_bytes(*port));
    Some((gid, address, rest.try_into().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_route_survives_and_garbage_is_none() {
        for address in ["10.1.2.3", "fd00::7"] {
            let address: IpAddr = address.parse().unwrap();
            let octets = to_v6(address).octets();
            let bytes = [&5u64.to_le_bytes()[..], &6u64.to_le_bytes(), &77u16.to_le_bytes(), &octets, &[9; BYTES]];
            let bytes = bytes.concat();
            assert_eq!(parse(&bytes), Some((Gid::from_halves(5, 6), SocketAddr::new(address, 77), [9; BYTES])));
            assert_eq!(parse(&bytes[1..]), None);
            assert_eq!(parse(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn too_few_descriptors_are_named() {
        assert_eq!(shortage(200, 50, 40, 1024), None);
        let what = shortage(511, 0, 40, 1024).unwrap();
        assert!(
            what.contains("511 PEs") && what.contains("1078 file descriptors") && what.contains("have 1024"),
            "{what}"
        );
    }

    #[test]
    fn an_address_without_its_interface_is_of_no_use_to_other_nodes() {
        for (address, scoped) in [("fe80::1", true), ("fd00::1", false), ("::1", false), ("169.254.1.1", false)] {
            assert_eq!(has_scope(address.parse().unwrap()), scoped, "{address}");
        }
    }
}
