//! Jobs whose launcher has no key-value space: rank 0 starts the hub on a port that follows from
//! public facts of the job.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use oxshmem_system::mixing::{digest, mix};

use super::super::admission::{Admission, Secrecy, read_secret};
use super::super::error::BootstrapError;
use super::super::handout::{Handout, Request};
use super::super::hub::HubOptions;
use super::super::job::{JobId, Rendezvous};
use super::super::places::Places;
use super::super::unique_id::UniqueId;
use super::common::unusable;
use super::start::{Means, Place, PortStart};

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

    /// Returns where the other PEs look for rank 0's hub.
    fn rendezvous(&self) -> Result<Rendezvous, BootstrapError> {
        let host = if self.one_node { "127.0.0.1" } else { self.host.as_str() };
        let address = |port: &u16| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let addresses: Vec<_> = self.ports().iter().map(address).collect();
        addresses.join(",").parse().map_err(|_| {
            let reason = format!("'{host}' is no host's name or address; correct it where the launcher takes it from");
            unusable(self.launcher, reason)
        })
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

/// Returns the place; at rank 0, after the hub has been started on the first free port, and
/// elsewhere, where munge carries the secret, after this PE has got it from the hub.
pub fn place(start: &PortStart, means: &Means<'_>) -> Result<Option<Place>, BootstrapError> {
    let PortStart { launcher, rank, npes, .. } = *start;
    let public = start.credential().job();
    let secrecy = Secrecy::choose(means.secret_file, means.munge).map_err(|reason| unusable(launcher, reason))?;
    let mut place =
        Place { rank, npes, job: public, rendezvous: start.rendezvous()?, searching: rank != 0, bare: None };
    match (&secrecy, rank) {
        (Secrecy::File(file), _) => place.job = public.keyed(&read_secret(file)?),
        (Secrecy::None(why), 1..) => place.bare = Some(why.clone()),
        (Secrecy::Munge(credentials), 1..) => {
            let Rendezvous(addresses) = &place.rendezvous;
            let request = Request { rank, host: &start.host, public, addresses, credentials: &**credentials };
            let (job, address) = request.make(means.timeout, means.deadline)?;
            // Where the credential came from is this job's hub.
            return Ok(Some(Place { job, rendezvous: Rendezvous(vec![address]), searching: false, ..place }));
        }
        (Secrecy::None(_) | Secrecy::Munge(_), 0) => {}
    }
    if rank == 0 {
        let (job, port) = serve(start, (place.job, public), secrecy, means)?;
        place.job = job;
        place.rendezvous = Rendezvous(vec![format!("127.0.0.1:{port}")]);
    }
    Ok(Some(place))
}

/// Starts the hub of a job that has the first of these identities and is publicly known by the
/// second, on the first free port. Returns the identity that PEs with the secret use, and the port.
fn serve(
    start: &PortStart,
    (job, public): (JobId, JobId),
    secrecy: Secrecy,
    means: &Means<'_>,
) -> Result<(JobId, u16), BootstrapError> {
    let nodes = if start.one_node { Some(&[][..]) } else { start.nodes.as_deref() };
    let (job, handout, admission) = match secrecy {
        Secrecy::File(_) => (job, None, Admission::Secret),
        Secrecy::Munge(credentials) => {
            let handout = Handout::new(credentials, public)?;
            (handout.job(), Some(Arc::new(handout)), Admission::Secret)
        }
        Secrecy::None(without) => (job, None, Admission::same_user(nodes, without, means.deadline)?),
    };
    // The IPv6 listener takes IPv4 too; a kernel without IPv6 refuses it.
    let listen: [IpAddr; 2] = match start.one_node {
        true => [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()],
        false => [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
    };
    let ports = start.ports();
    let mut taken = String::new();
    for port in &ports {
        let serve = |address| {
            let options = HubOptions {
                places: start.nodes.clone().map_or(Places::Unknown, Places::Nodes),
                public: Some(public),
                handout: handout.clone(),
                one_program: true,
                ..HubOptions::new(SocketAddr::new(address, *port), job, Some(start.npes))
            };
            UniqueId::serve(options, admission.clone())
        };
        match serve(listen[0]).or_else(|_| serve(listen[1])) {
            Ok(()) => return Ok((job, *port)),
            Err(error) => taken = error.to_string(),
        }
    }
    let list: Vec<_> = ports.iter().map(u16::to_string).collect();
    Err(unusable(
        start.launcher,
        format!(
            "none of the ports {} on {} can be listened on ({taken}); end what has them, or start the program with a PMI",
            list.join(", "),
            start.host
        ),
    ))
}
