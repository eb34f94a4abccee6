//! How PEs are told from strangers where the launcher carries no secret.
//!
//! A launcher such as plain `srun` gives the PEs nothing but numbers that every user of the machine
//! can read. Then the secret comes from a file (`OXSHMEM_SECRET_FILE`), or by munge (`handout.rs`).
//! Without either, the hub admits connections from processes of its own user on this machine, as
//! the kernel's table of sockets shows them, and connections whose source address is one of the
//! job's nodes.

use std::fmt::Display;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::error::BootstrapError;
use super::interfaces::interfaces;
use super::munge::{Credentials, MungeClient, NoMunge};
use super::resolve;
use crate::config;

/// Bytes that a secret in a file has at least.
const SHORTEST: usize = 16;
/// Bytes that a file with a secret has at most.
const LONGEST: u64 = 4096;

/// Which connections a hub admits, beside the proof that every connection gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Those that prove that they know the job's secret.
    Secret,
    /// The job has no secret: those of processes of this user on this machine, and those from
    /// these addresses of other machines; from any if they are unknown.
    SameUser {
        /// The addresses.
        nodes: Option<Vec<IpAddr>>,
        /// Why munge does not carry a secret.
        without: String,
    },
}

/// Where the secret of a job comes from whose launcher carries none.
#[derive(Debug, Clone)]
pub enum Secrecy {
    /// The file of `OXSHMEM_SECRET_FILE`.
    File(PathBuf),
    /// PE 0 draws it, and hands it out by munge.
    Munge(Arc<dyn Credentials>),
    /// There is none, because munge is not used for this reason.
    None(String),
}

impl Secrecy {
    /// Chooses by the settings of `OXSHMEM_SECRET_FILE` and `OXSHMEM_MUNGE`, and by what this
    /// machine has.
    ///
    /// # Errors
    /// Munge is there and does not work, or it is required and not there: what is wrong, and what
    /// to do.
    pub fn choose(file: Option<&Path>, munge: config::Munge) -> Result<Self, String> {
        match (file, munge) {
            (Some(file), _) => Ok(Self::File(file.to_owned())),
            (None, config::Munge::Off) => Ok(Self::None("OXSHMEM_MUNGE=off here".to_owned())),
            (None, _) => Self::of(munge, MungeClient::find()),
        }
    }

    fn of(setting: config::Munge, found: Result<MungeClient, NoMunge>) -> Result<Self, String> {
        match found {
            Ok(munge) => Ok(Self::Munge(Arc::new(munge))),
            Err(NoMunge::Absent(why)) if setting == config::Munge::Auto => {
                Ok(Self::None(format!("munge is not there: {why}")))
            }
            Err(NoMunge::Absent(why)) => Err(format!(
                "OXSHMEM_MUNGE={setting}, but munge is not there: {why}; install and start munge, or set \
                 OXSHMEM_SECRET_FILE"
            )),
            Err(NoMunge::Broken(why)) => Err(format!(
                "munge is there and does not work: {why}; start munged anew, or set OXSHMEM_SECRET_FILE or \
                 OXSHMEM_MUNGE=off for all PEs"
            )),
        }
    }
}

impl Display for Secrecy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(file) => write!(f, "the file OXSHMEM_SECRET_FILE={}", file.display()),
            Self::Munge(_) => f.write_str("drawn by PE 0, which hands it out by munge"),
            Self::None(why) => {
                write!(f, "none ({why}); any process of this user, and of the job's other nodes, can join")
            }
        }
    }
}

impl Admission {
    /// Returns what admits members where there is no secret, for the reason `without`: by user and
    /// by address, if the job's `nodes` are known.
    ///
    /// # Errors
    /// A node's name has no address.
    pub(super) fn same_user(
        nodes: Option<&[String]>,
        without: String,
        deadline: Instant,
    ) -> Result<Self, BootstrapError> {
        let Some(nodes) = nodes else { return Ok(Self::SameUser { nodes: None, without }) };
        let mut addresses = Vec::new();
        for node in nodes {
            let what = format!("looking up node {node} of the job");
            let found = resolve::addresses(&format!("{node}:0"), deadline).map_err(BootstrapError::system(what))?;
            addresses.extend(found.into_iter().map(|address| address.ip().to_canonical()));
        }
        Ok(Self::SameUser { nodes: Some(addresses), without })
    }

    /// Returns why a connection is not admitted.
    ///
    /// # Errors
    /// The reason, as the end of the sentence "the connection ...".
    pub(super) fn check(&self, stream: &TcpStream) -> Result<(), String> {
        let Self::SameUser { nodes, .. } = self else { return Ok(()) };
        let theirs = canonical(stream.peer_addr().map_err(unknown)?);
        let own = canonical(stream.local_addr().map_err(unknown)?);
        let user = rustix::process::geteuid().as_raw();
        let is_here = is_here(theirs.ip()).map_err(unknown)?;
        let looks = if is_here { LOOKS } else { 1 };
        match owner(looks, |path| std::fs::read_to_string(path), (theirs, own)).map_err(unknown)? {
            Some(owner) if owner == user => Ok(()),
            Some(owner) => Err(format!("is of user {owner}, the job of user {user}")),
            None if is_here => Err("is of no process here: it is gone, or in another network namespace".to_owned()),
            None if nodes.as_ref().is_none_or(|nodes| nodes.contains(&theirs.ip())) => Ok(()),
            None => Err(format!("comes from {}, which is none of the job's nodes", theirs.ip())),
        }
    }
}

/// Reads the secret of `OXSHMEM_SECRET_FILE`.
///
/// # Errors
/// The file cannot be read, or others than this user can.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, BootstrapError> {
    let what = || format!("OXSHMEM_SECRET_FILE={}", path.display());
    // A pipe at that path does not make the PE wait for a writer.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(BootstrapError::system(what()))?;
    let metadata = file.metadata().map_err(BootstrapError::system(what()))?;
    let user = rustix::process::geteuid().as_raw();
    let mode = metadata.mode() & 0o7777;
    let mut secret = Vec::new();
    let problem = if !metadata.is_file() {
        "it is not a file".to_owned()
    } else if metadata.uid() != user {
        format!("it belongs to user {}, the job to user {user}; use a file of your own", metadata.uid())
    } else if mode & 0o177 != 0 {
        format!("its mode is {mode:04o}, so others can read it; run chmod 0600")
    } else {
        file.take(LONGEST + 1).read_to_end(&mut secret).map_err(BootstrapError::system(what()))?;
        if (SHORTEST as u64..=LONGEST).contains(&(secret.len() as u64)) {
            return Ok(secret);
        }
        format!(
            "it has {} bytes, a secret has {SHORTEST} to {LONGEST}; make one with `head -c 32 /dev/urandom`",
            secret.len()
        )
    };
    Err(BootstrapError::system(what())(io::Error::new(io::ErrorKind::InvalidInput, problem)))
}

/// Returns why a connection cannot be judged.
fn unknown(error: impl Display) -> String {
    format!("cannot be told from a stranger's: {error}")
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// How often the kernel's tables are read before a socket of this machine counts as one that is not
/// there. The kernel lists sockets in pieces, so one may be missing from a table while others open
/// and close.
const LOOKS: u32 = 3;

/// Returns whether an address is one of this machine's.
fn is_here(ip: IpAddr) -> Result<bool, BootstrapError> {
    Ok(ip.is_loopback() || interfaces()?.iter().any(|interface| interface.address.to_canonical() == ip))
}

/// Returns the user of the socket of this network namespace that is bound to `local` and connected
/// to `remote`, if there is one in the tables that `read` returns; it reads them up to `looks`
/// times.
fn owner(
    looks: u32,
    read: impl Fn(&str) -> io::Result<String>,
    (local, remote): (SocketAddr, SocketAddr),
) -> io::Result<Option<u32>> {
    for _ in 0..looks {
        for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
            match read(path) {
                Ok(table) => {
                    if let Some(owner) = owner_in(&table, local, remote) {
                        return Ok(Some(owner));
                    }
                }
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound && path.ends_with('6') => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// Looks in a table of the kernel: local and remote address are the second and third column, the
/// user the eighth.
fn owner_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let of_line = |text: &str| parse(text).map(canonical);
        let matches = of_line(columns.nth(1)?)? == local && of_line(columns.next()?)? == remote;
        if matches { columns.nth(4)?.parse().ok() } else { None }
    })
}

/// Parses an address of the table: words of the machine's byte order as hexadecimal digits, a
/// colon, the port.
fn parse(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..host.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(host.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_kernel_knows_the_user_of_a_local_connection() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("skipped: {address} is not there");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let _theirs = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let (stream, _) = listener.accept().unwrap();
            Admission::same_user(Some(&[]), String::new(), Instant::now()).unwrap().check(&stream).unwrap();
        }
    }

    #[test]
    fn a_socket_of_another_user_or_an_unknown_address_is_a_stranger() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
            0: 0100007F:1F90 0200007F:0050 01 00000000:00000000 00:00000000 00000000  1234        0 5\n";
        let word = |ip: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(ip));
        let table = table.replace("0100007F", &word([127, 0, 0, 1])).replace("0200007F", &word([127, 0, 0, 2]));
        let [local, remote] = ["127.0.0.1:8080", "127.0.0.2:80"].map(|text| text.parse().unwrap());
        assert_eq!(owner_in(&table, local, remote), Some(1234));
        assert_eq!(owner_in(&table, remote, local), None);
        let reads = Cell::new(0);
        let found_by = |nth| {
            reads.set(0);
            let read = |_: &str| {
                reads.set(reads.get() + 1);
                Ok(if reads.get() == nth { table.clone() } else { String::new() })
            };
            owner(LOOKS, read, (local, remote)).unwrap()
        };
        assert_eq!([1, 2, 3, 6, 7].map(found_by), [Some(1234), Some(1234), Some(1234), Some(1234), None]);
        assert_eq!(owner_in("garbage\nmore garbage\n:: : :", local, remote), None);
        for text in ["", ":", "01:50", "0100007F", "0100007F:123456", "é00007F:50", "0100007F0100007F:50"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_is_read_from_a_private_file_alone() {
        let path = std::env::temp_dir().join(format!("oxshmem-secret-{}", std::process::id()));
        let choose = || read_secret(&path);
        let with = |bytes: &[u8], mode: u32| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            choose()
        };
        assert!(choose().unwrap_err().to_string().contains("OXSHMEM_SECRET_FILE="));
        assert_eq!(with(&[1; 32], 0o600).unwrap(), [1; 32]);
        assert_eq!(with(&[2; 32], 0o400).unwrap(), [2; 32]);
        for (bytes, mode, words) in [
            (&[1; 32][..], 0o640, "its mode is 0640, so others can read it; run chmod 0600"),
            (&[1; 15], 0o600, "it has 15 bytes"),
            (&[1; 5000], 0o600, "it has 4097 bytes"),
        ] {
            let error = with(bytes, mode).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = read_secret(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("it is not a file"), "{error}");
    }

    #[test]
    fn a_node_without_an_address_is_named() {
        let until = Instant::now() + resolve::LONGEST;
        let nodes = ["no-such-node.invalid".to_owned()];
        let error = Admission::same_user(Some(&nodes), String::new(), until).unwrap_err().to_string();
        assert!(error.contains("looking up node no-such-node.invalid"), "{error}");
    }

    #[test]
    fn what_is_there_and_does_not_work_is_never_done_without() {
        use config::Munge::{Auto, Off, Require};
        let of = |setting, absent: bool| {
            let why = "for a reason".to_owned();
            Secrecy::of(setting, Err(if absent { NoMunge::Absent(why) } else { NoMunge::Broken(why) }))
        };
        assert!(matches!(of(Auto, true), Ok(Secrecy::None(why)) if why == "munge is not there: for a reason"));
        for (setting, absent, words) in [
            (Require, true, "OXSHMEM_MUNGE=require, but munge is not there: for a reason; install"),
            (Require, false, "munge is there and does not work: for a reason"),
            (Auto, false, "munge is there and does not work: for a reason"),
        ] {
            let error = of(setting, absent).unwrap_err();
            assert!(error.contains(words) && error.contains("OXSHMEM_SECRET_FILE"), "{error}");
        }
        let file = Path::new("/a/file");
        for setting in [Auto, Require, Off] {
            assert!(matches!(Secrecy::choose(Some(file), setting), Ok(Secrecy::File(found)) if found == file));
        }
        assert!(matches!(Secrecy::choose(None, Off), Ok(Secrecy::None(why)) if why.contains("OXSHMEM_MUNGE=off")));
    }
}
