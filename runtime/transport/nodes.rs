//! Has software HCAs reach those of other nodes: each listens at an address of its node, and all
//! tell each other where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use oxshmem_hca::port::Gid;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::SoftHca;
use oxshmem_system::challenge::{self, BYTES};

use super::error::TransportError;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::interfaces;
use crate::config::Config;

/// Any port: nothing is sent to it.
const SOME_PORT: u16 = 9;

/// Prepares connections to the PEs of other nodes, if there are any. Collective.
pub(super) fn join(config: &Config, bootstrap: &Bootstrap, hca: &SoftHca) -> Result<()> {
    let peers = bootstrap.peers();
    let own = &peers[bootstrap.rank() as usize].node;
    if peers.iter().all(|peer| peer.node == *own) {
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
    for (pe, bytes) in bootstrap.allgather("HCAs of nodes", &bytes)?.iter().enumerate() {
        let (gid, route, drawn) = parse(bytes).ok_or(TransportError::Address { pe })?;
        if peers[pe].node != *own {
            hca.add_route(gid, route, &[&job[..], &drawn].concat());
        }
    }
    Ok(())
}

/// The address of this node that the others shall use. Collective.
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
    if given.is_some() || !near_hub.is_loopback() {
        return Ok(near_hub);
    }
    // The rendezvous is on this node. Another node shows by which address this one reaches others.
    for (pe, bytes) in all.iter().enumerate() {
        let octets: [u8; 16] = bytes.as_slice().try_into().map_err(|_| TransportError::Address { pe })?;
        let other = Ipv6Addr::from(octets).to_canonical();
        if !other.is_loopback()
            && let Some(address) = towards(other)
        {
            return Ok(address);
        }
    }
    Ok(near_hub)
}

/// The address of this node that packets to `other` come from.
fn towards(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // This only looks up a route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((other, SOME_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
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
    fn the_way_to_this_machine_starts_here() {
        assert_eq!(towards(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::LOCALHOST.into()));
    }
}
