//! Jobs whose launcher has no key-value space: rank 0 starts the hub on a port that follows from
//! public facts of the job.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use oxshmem_system::mixing::{digest, mix};

use super::super::admission::Admission;
use super::super::error::BootstrapError;
use super::super::hub::HubOptions;
use super::super::job::{JobId, Rendezvous};
use super::super::places::Places;
use super::super::unique_id::UniqueId;
use super::common::unusable;
use super::start::{Place, PortStart};

/// How many ports a job may take. The job next to it on a node takes others, most probably.
const CANDIDATES: usize = 8;
/// The ports below those that Linux gives to outgoing connections (`ip_local_port_range`).
const PORTS: std::ops::Range<u64> = 20_000..32_768;

/// What makes a process a member of a job: facts that any user of the machines can learn. The job's
/// identity follows from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential(String);

impl PortStart {
    /// Returns what makes this process a member: the facts, and the user.
    pub fn credential(&self) -> Credential {
        let user = rustix::process::getuid().as_raw();
        Credential(format!("{} user {user}: {} of {} PEs", self.launcher, self.facts, self.npes))
    }

    /// Returns the ports that the job may take.
    pub fn ports(&self) -> Vec<u16> {
        let seed = digest(self.credential().0.as_bytes());
        let mut ports = Vec::new();
        for round in 0.. {
            let port = PORTS.start + mix(seed.wrapping_add(round)) % (PORTS.end - PORTS.start);
            ports.extend(u16::try_from(port).ok().filter(|port| !ports.contains(port)));
            if ports.len() == CANDIDATES {
                break;
            }
        }
        ports
    }
}

impl Credential {
    /// Returns the job's identity.
    pub fn job(&self) -> JobId {
        let Self(facts) = self;
        let half = |part: &str| digest(format!("oxshmem {part} {facts}").as_bytes()).to_le_bytes();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&half("first"));
        bytes[8..].copy_from_slice(&half("second"));
        JobId(bytes)
    }
}

/// Returns the place; at rank 0, after the hub has been started on the first free port.
pub fn place(start: &PortStart, deadline: Instant, secret: Option<&Path>) -> Result<Option<Place>, BootstrapError> {
    let PortStart { launcher, rank, npes, .. } = *start;
    let public = start.credential().job();
    let nodes = if start.one_node { Some(&[][..]) } else { start.nodes.as_deref() };
    // Only the hub looks at other PEs' addresses.
    let (job, admission) = Admission::choose(secret, public, nodes.filter(|_| rank == 0), deadline)?;
    let ports = start.ports();
    let (host, ports) = if rank == 0 {
        let (address, fallback): (IpAddr, IpAddr) = match start.one_node {
            true => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
            false => (Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()),
        };
        let mut taken = None;
        let mut serving = None;
        for port in &ports {
            let serve = |address| {
                let options = HubOptions {
                    places: start.nodes.clone().map_or(Places::Unknown, Places::Nodes),
                    one_program: true,
                    ..HubOptions::new(SocketAddr::new(address, *port), job, Some(npes))
                };
                UniqueId::serve(options, admission.clone())
            };
            // The IPv6 listener takes IPv4 too; a kernel without IPv6 refuses it.
            match serve(address).or_else(|_| serve(fallback)) {
                Ok(()) => {
                    serving = Some(*port);
                    break;
                }
                Err(error) => taken = Some(error),
            }
        }
        let Some(port) = serving else {
            let list: Vec<_> = ports.iter().map(u16::to_string).collect();
            let why = taken.map(|error| error.to_string()).unwrap_or_default();
            return Err(unusable(
                launcher,
                format!(
                    "none of the ports {} on {} can be listened on ({why}); end what has them, or start the program with a PMI",
                    list.join(", "),
                    start.host
                ),
            ));
        };
        ("127.0.0.1", vec![port])
    } else if start.one_node {
        ("127.0.0.1", ports)
    } else {
        (start.host.as_str(), ports)
    };
    let addresses: Vec<_> = ports
        .iter()
        .map(|port| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
        .collect();
    let rendezvous: Rendezvous = addresses.join(",").parse().map_err(|_| {
        unusable(
            launcher,
            format!("'{host}' is no host's name or address; correct it where the launcher takes it from"),
        )
    })?;
    Ok(Some(Place { rank, npes, job, rendezvous, searching: rank != 0 }))
}
