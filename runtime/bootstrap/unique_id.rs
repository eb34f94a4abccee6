//! A job that a program sets up itself: one process creates an id, and gives it to the others by
//! whatever means it has.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Mutex;

use crate::config::{Config, ConfigBuilder};

use super::interfaces::{Interface, fitting, interfaces};
use super::{Admission, BootstrapError, Hub, HubOptions, JobId, Places, Rendezvous, lock};

/// What a token starts with; the number is the format's version.
const SCHEME: &str = "oxshmem1:";
/// How many addresses of this machine a token names at most, the loopback address besides.
const MAX_ADDRESSES: usize = 8;

/// How many bytes [`ConfigBuilder::broadcast`] broadcasts.
///
/// ```
/// let mut bytes = [0; oxshmem::bootstrap::BROADCAST_BYTES];
/// # let _ = &mut bytes;
/// ```
pub const BROADCAST_BYTES: usize = 512;

/// The hubs of the ids that this process created, until it ends.
static HUBS: Mutex<Vec<Hub>> = Mutex::new(Vec::new());

/// Names a job and where its PEs meet; [`crate::config::ConfigBuilder::unique_id`] joins it. As
/// text it is one word without blanks: `oxshmem1:JOB@HOST:PORT,...`. Any process that has it can
/// join, so it is a secret among the job's processes.
///
/// ```
/// use oxshmem::bootstrap::UniqueId;
/// use oxshmem::{Config, Pe};
///
/// # fn main() -> oxshmem::Result<()> {
/// // One process creates the id, and gives its text to the others.
/// let text = UniqueId::create()?.to_string();
///
/// // Every process, also that one, joins with its number.
/// let id: UniqueId = text.parse().unwrap();
/// let pe = Pe::with_config(Config::builder().unique_id(&id, 0, 1).env().build()?)?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueId {
    job: JobId,
    rendezvous: Rendezvous,
}

impl UniqueId {
    /// Creates an id, and starts its hub in this process, on all interfaces. It names the addresses
    /// that `OXSHMEM_INTERFACE` allows. The hub lives as long as the process, which must therefore
    /// outlive the job; it may be a PE of it, since finalize returns there after it has at the
    /// others.
    ///
    /// # Errors
    /// The system refuses a listening socket, a thread, or the list of interfaces.
    ///
    /// ```
    /// use oxshmem::bootstrap::UniqueId;
    ///
    /// println!("{}", UniqueId::create()?);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn create() -> Result<Self, BootstrapError> {
        Self::start(None, false)
    }

    /// Does the same as [`create`](Self::create) for a job of `npes` PEs, if that is known, all of
    /// them on this node if `one_node` says so: then only this node can reach the hub.
    pub(super) fn start(npes: Option<u32>, one_node: bool) -> Result<Self, BootstrapError> {
        let job = JobId::random()?;
        let (hub, rendezvous) = start_hub(job, npes, one_node, Places::Unknown)?;
        lock(&HUBS).push(hub);
        Ok(Self { job, rendezvous })
    }

    /// Starts the hub of a job whose identity and address its PEs know, in this process.
    pub(super) fn serve(options: HubOptions, admission: Admission) -> Result<(), BootstrapError> {
        lock(&HUBS).push(Hub::start_for(options, admission)?);
        Ok(())
    }

    /// Returns the same id with as many of its addresses as a text of `most` bytes has room for:
    /// the first ones and, if it fits too, the last, by which this machine is reached from itself.
    /// `None` if there is no room for one.
    ///
    /// ```
    /// use oxshmem::bootstrap::UniqueId;
    ///
    /// let id = UniqueId::create()?;
    /// assert!(id.shortened(80).is_some_and(|short| short.to_string().len() <= 80));
    /// assert_eq!(id.shortened(20), None);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    #[must_use]
    pub fn shortened(&self, most: usize) -> Option<Self> {
        let Rendezvous(addresses) = &self.rendezvous;
        let fits = |kept: &[String]| {
            let short = Self { job: self.job, rendezvous: Rendezvous(kept.to_vec()) };
            (!kept.is_empty() && short.to_string().len() <= most).then_some(short)
        };
        let with_last = |first: usize| [&addresses[..first], &addresses[addresses.len() - 1..]].concat();
        fits(addresses)
            .or_else(|| (1..addresses.len()).rev().find_map(|first| fits(&with_last(first))))
            .or_else(|| fits(&addresses[..addresses.len().min(1)]))
    }

    /// Returns the job.
    ///
    /// ```
    /// use oxshmem::bootstrap::UniqueId;
    ///
    /// let id = UniqueId::create()?;
    /// assert!(id.to_string().contains(&id.job_id().to_string()));
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn job_id(&self) -> JobId {
        self.job
    }

    /// Returns where its PEs meet.
    ///
    /// ```
    /// use oxshmem::bootstrap::UniqueId;
    ///
    /// assert!(UniqueId::create()?.rendezvous().addresses().count() >= 1);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }
}

impl ConfigBuilder {
    /// Joins the job of `id` as PE `rank` of `npes`, instead of the job that a launcher named.
    ///
    /// ```
    /// use oxshmem::Config;
    /// use oxshmem::bootstrap::UniqueId;
    ///
    /// let config = Config::builder().unique_id(&UniqueId::create()?, 2, 4).build()?;
    /// assert_eq!((config.rank(), config.npes()), (Some(2), Some(4)));
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn unique_id(self, id: &UniqueId, rank: u32, npes: u32) -> Self {
        self.rendezvous(id.rendezvous().clone()).job(id.job_id()).rank(rank).npes(npes)
    }

    /// Joins a job that the program sets up, as PE `rank` of `npes`, by a broadcast of its own: of
    /// MPI, for example. `broadcast` is called once, at every PE; it replaces the bytes at all
    /// others by those of PE 0. Their number, [`BROADCAST_BYTES`], is the same everywhere. PE 0's
    /// process must outlive the job, since it runs the hub.
    ///
    /// # Errors
    /// `broadcast` fails, or PE 0 cannot create a unique id, which then fails at all PEs.
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (rank, npes) = (0, 1); // as the program's communicator says
    /// let builder = Config::builder().env().broadcast(rank, npes, |bytes: &mut [u8]| {
    ///     // With MPI: world.process_at_rank(0).broadcast_into(bytes);
    ///     assert_eq!(bytes.len(), oxshmem::bootstrap::BROADCAST_BYTES);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// let pe = oxshmem::Pe::with_config(builder.build()?)?;
    /// assert_eq!(pe.n_pes(), 1);
    /// pe.finalize()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn broadcast<E: fmt::Display>(
        self,
        rank: u32,
        npes: u32,
        broadcast: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, BootstrapError> {
        let failed = |reason: String| BootstrapError::Broadcast { rank, reason };
        let mut bytes = [0; BROADCAST_BYTES];
        let created = (rank == 0).then(UniqueId::create).transpose();
        if let Ok(Some(id)) = &created {
            let text = id.to_string();
            let room = bytes.get_mut(..text.len()).ok_or_else(|| {
                failed(format!("the id has {} bytes, the limit is {BROADCAST_BYTES}; please report it", text.len()))
            })?;
            room.copy_from_slice(text.as_bytes());
        }
        // Even if there is no id, so that no PE waits for this one.
        let sent = broadcast(&mut bytes);
        created?;
        sent.map_err(|error| failed(error.to_string()))?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        if end == 0 {
            return Err(failed("PE 0 sent no id; see its error".into()));
        }
        let id: UniqueId = String::from_utf8_lossy(&bytes[..end]).parse().map_err(failed)?;
        Ok(self.unique_id(&id, rank, npes))
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}@{}", self.job, self.rendezvous)
    }
}

impl FromStr for UniqueId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (job, rendezvous) = text
            .trim()
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.split_once('@'))
            // A text that is nearly an id has a secret in it.
            .ok_or_else(|| format!("a text of {} bytes is no unique id, {SCHEME}JOB@HOST:PORT,...", text.len()))?;
        Ok(Self { job: job.parse()?, rendezvous: rendezvous.parse()? })
    }
}

/// Starts the hub of a job of `npes` PEs, if that is known, and returns it with where it is. If all
/// PEs are on this node, as `one_node` says, only this node can reach it.
///
/// # Errors
/// The system refuses a listening socket, a thread, or the list of interfaces.
pub(crate) fn start_hub(
    job: JobId,
    npes: Option<u32>,
    one_node: bool,
    places: Places,
) -> Result<(Hub, Rendezvous), BootstrapError> {
    let at = |address: IpAddr| HubOptions { places: places.clone(), ..HubOptions::new((address, 0).into(), job, npes) };
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let (hub, mut hosts) = if one_node {
        (Hub::start(at(loopback))?, Vec::new())
    } else {
        // The IPv6 listener takes IPv4 too; a kernel without IPv6 refuses it.
        let hub =
            Hub::start(at(Ipv6Addr::UNSPECIFIED.into())).or_else(|_| Hub::start(at(Ipv4Addr::UNSPECIFIED.into())))?;
        // Joining the job reports what is wrong in the environment.
        let wanted = Config::from_env().map(|config| config.interface().clone()).unwrap_or_default();
        let mut hosts = addresses(&wanted, &interfaces()?);
        hosts.truncate(MAX_ADDRESSES);
        (hub, hosts)
    };
    // Last, since on another machine it leads nowhere, or to another process.
    hosts.push(loopback);
    let port = hub.address().port();
    let addresses = hosts.into_iter().map(|host| SocketAddr::new(host, port).to_string()).collect();
    Ok((hub, Rendezvous(addresses)))
}

/// Returns the addresses of this machine that another could use, of those that `wanted`, the value
/// of `OXSHMEM_INTERFACE`, allows, the best first: without loopback and link-local. Where it allows
/// none they are all of them, since PEs may reach each other all the same.
fn addresses(wanted: &str, interfaces: &[Interface]) -> Vec<IpAddr> {
    let allowed = if wanted.is_empty() { Ok(interfaces.iter().collect()) } else { fitting(wanted, interfaces) };
    let allowed = allowed.unwrap_or_else(|what| {
        tracing::warn!("OXSHMEM_INTERFACE: {what}; PEs are told all its addresses");
        interfaces.iter().collect()
    });
    let mut addresses = Vec::new();
    for interface in allowed.into_iter().filter(|interface| !interface.is_local()) {
        if !addresses.contains(&interface.address) {
            addresses.push(interface.address);
        }
    }
    addresses
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back() {
        let text = "oxshmem1:00112233445566778899aabbccddeeff@10.0.0.1:4000,[fe80::1]:4000,127.0.0.1:4000";
        let id: UniqueId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(id.rendezvous().addresses().count(), 3);
        for text in [
            "",
            "oxshmem1:",
            "oxshmem2:00112233445566778899aabbccddeeff@h:1",
            "oxshmem1:0011@h:1",
            "oxshmem1:00112233445566778899aabbccddeeff@",
            "oxshmem1:00112233445566778899aabbccddeeff@h",
            "oxshmem1:00112233445566778899aabbccddeeff@h:0",
            "oxshmem1:00112233445566778899aabbccddeeff@h:70000",
            "oxshmem1:00112233445566778899aabbccddeef\u{e9}@h:1",
        ] {
            assert!(text.parse::<UniqueId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_shortened_token_keeps_what_fits() {
        let text = "oxshmem1:00112233445566778899aabbccddeeff@10.0.0.1:4000,[fe80::1]:4000,127.0.0.1:4000";
        let id: UniqueId = text.parse().unwrap();
        let short = |most| id.shortened(most).map(|id| id.to_string().split_once('@').unwrap().1.to_owned());
        assert_eq!(short(text.len()).unwrap(), "10.0.0.1:4000,[fe80::1]:4000,127.0.0.1:4000");
        assert_eq!(short(text.len() - 1).unwrap(), "10.0.0.1:4000,127.0.0.1:4000");
        assert_eq!(short(56).unwrap(), "10.0.0.1:4000");
        assert_eq!(short(54), None);
    }

    /// A host with more networks than the text of an id has room for.
    #[test]
    fn an_id_names_the_addresses_that_are_allowed() {
        let interface = |name: &str, address: &str| Interface { name: name.into(), address: address.parse().unwrap() };
        let mut all: Vec<Interface> = (0..8).map(|n| interface(&format!("roce{n}"), &format!("10.{n}.0.1"))).collect();
        all.extend([interface("bond0", "192.168.1.1"), interface("bond0", "fe80::1"), interface("lo", "127.0.0.1")]);
        let text = |wanted| addresses(wanted, &all).iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(text("bond0"), "192.168.1.1");
        assert_eq!(text("=bond0,roce7"), "10.7.0.1 192.168.1.1");
        assert_eq!(text("^roce,lo"), "192.168.1.1");
        assert_eq!(text("lo"), "");
        for wanted in ["", "eth", "^docker0,lo"] {
            assert_eq!(addresses(wanted, &all).len(), 9, "{wanted}");
        }
    }

    #[test]
    fn a_created_id_is_one_printable_word() {
        let text = UniqueId::create().unwrap().to_string();
        assert!(text.chars().all(|c| c.is_ascii_graphic()), "{text}");
        assert!(text.parse::<UniqueId>().unwrap().rendezvous().addresses().any(|a| a.starts_with("127.0.0.1:")));
    }
}
