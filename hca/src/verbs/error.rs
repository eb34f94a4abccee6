//! What can go wrong with a verbs device. Each error says in one line what it is and what to do
//! about it.

use std::io;

/// LIDs of ports; those above are of multicast groups (InfiniBand specification, section 4.1.3).
pub(super) const LIDS: std::ops::RangeInclusive<u16> = 1..=0xbfff;

/// The result of a verbs call.
pub type Result<T> = std::result::Result<T, VerbsError>;

/// An error of the verbs library, or of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// No library.
    #[error(
        "the verbs library libibverbs.so.1 cannot be loaded ({reason}); install rdma-core (Debian and Ubuntu: ibverbs-providers), or use the \
         software HCA (OXSHMEM_HCA=soft)"
    )]
    NoLibrary {
        /// What the loader says.
        reason: String,
    },
    /// A library without a function that is needed.
    #[error(
        "libibverbs.so.1 has no {function}: install rdma-core 32 or newer, or use the software HCA (OXSHMEM_HCA=soft)"
    )]
    OldLibrary {
        /// The function.
        function: &'static str,
    },
    /// No device can be given to the PE.
    #[error(transparent)]
    Topology(#[from] crate::topology::TopologyError),
    /// The kernel has devices, the library knows none of them.
    #[error(
        "the kernel has RDMA devices ({devices}), but the verbs library cannot use them; install their user-space drivers (Debian and Ubuntu: \
         ibverbs-providers), and load the module ib_uverbs"
    )]
    NoDriver {
        /// Names of the devices.
        devices: String,
    },
    /// A device that does not exist.
    #[error(
        "there is no RDMA device {name}; this machine has {present}: name one of them in OXSHMEM_HCA=verbs:DEVICE, or none"
    )]
    NoSuchDevice {
        /// The requested name.
        name: String,
        /// Names of the devices.
        present: String,
    },
    /// A port that does not exist.
    #[error("{device} has no port {port}: its ports are 1 to {ports}; correct OXSHMEM_HCA=verbs:{device}/PORT")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The requested port.
        port: u8,
        /// How many it has.
        ports: u8,
    },
    /// A port that carries nothing.
    #[error(
        "port {port} of {device} is {state}, not ACTIVE; check cable and switch, the subnet manager on InfiniBand, `ip link` on Ethernet"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: &'static str,
    },
    /// An InfiniBand port without an address.
    #[error(
        "port {port} of {device} has LID {lid:#x}, and LIDs of ports are {:#x} to {:#x}; the subnet manager assigns them: see that one runs (`sminfo`)",
        LIDS.start(), LIDS.end()
    )]
    NoLid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What it has instead.
        lid: u16,
    },
    /// An entry of the partition key table that cannot be used.
    #[error("OXSHMEM_IB_PKEY_INDEX={index}: that entry of {device} port {port} {fault}; usable are {usable}")]
    PkeyIndex {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The requested index.
        index: u16,
        /// What is wrong with it.
        fault: String,
        /// What can be used, in words.
        usable: String,
    },
    /// An entry of the GID table that cannot be used.
    #[error("OXSHMEM_IB_GID_INDEX={index}: that entry of {device} port {port} {fault}; usable are {usable}")]
    GidIndex {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The requested index.
        index: u32,
        /// What is wrong with it.
        fault: String,
        /// What can be used, in words.
        usable: String,
    },
    /// No usable entry in the GID table.
    #[error(
        "port {port} of {device} has no RoCE v2 address with an IPv4 or global IPv6 address; give its network interface one (`ip addr add`), \
         or name an entry with OXSHMEM_IB_GID_INDEX"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The device's node in /dev cannot be opened.
    #[error(
        "{device} cannot be opened: {node}: {source}; this user must be able to read and write {node} (in a container: --device \
         /dev/infiniband)"
    )]
    DeviceNode {
        /// The device.
        device: String,
        /// Its node.
        node: String,
        /// The cause.
        source: io::Error,
    },
    /// Memory that the process may not lock.
    #[error(
        "{bytes} bytes cannot be registered with {device}: this process may lock {limit} bytes of memory; raise the limit (ulimit -l unlimited, \
         memlock in /etc/security/limits.conf, in a container --ulimit memlock=-1), or lower OXSHMEM_HEAP_CHUNK"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// What was to be registered.
        bytes: usize,
        /// RLIMIT_MEMLOCK.
        limit: u64,
    },
    /// Something that the device cannot do.
    #[error("{device} {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// What it lacks, and what to do.
        what: String,
    },
    /// There is no way to the peer.
    #[error(transparent)]
    Route(#[from] crate::route::RouteError),
    /// A call failed.
    #[error("{call} on {device} failed: {source}{hint}")]
    Call {
        /// The function.
        call: &'static str,
        /// The device.
        device: String,
        /// The cause.
        source: io::Error,
        /// What to do, if that is known; begins with a separator.
        hint: String,
    },
}

impl From<VerbsError> for crate::error::Error {
    fn from(error: VerbsError) -> Self {
        Self::provider(error)
    }
}

impl VerbsError {
    pub(super) fn call(call: &'static str, device: &str, source: io::Error) -> Self {
        Self::Call { call, device: device.to_owned(), source, hint: String::new() }
    }

    /// Returns what the system says of a call that failed.
    pub(super) fn of_call(&self) -> Option<&io::Error> {
        match self {
            Self::Call { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Adds what to do about it.
    pub(super) fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Call { hint, .. } = &mut self {
            *hint = format!("; {}", text.into());
        }
        self
    }
}

/// A chain of work requests that was not taken whole.
#[derive(Debug, thiserror::Error)]
#[error("work request {posted} of the chain was refused: {source}")]
pub struct PostError {
    /// How many were taken before it.
    pub posted: usize,
    /// The cause.
    pub source: io::Error,
}
