//! What PEs tell each other of their processes.

use oxshmem_system::mixing::digest;

/// A PE's process and machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct Peer {
    /// Process id, in its own PID namespace.
    pub pid: u32,
    /// Host name, for messages.
    pub host: String,
    /// Equal for PEs that can reach each other through abstract unix sockets, so pass file
    /// descriptors: the boot of the kernel and the network namespace, and what `OXSHMEM_NODE` says.
    pub node: String,
}

impl Peer {
    /// Returns the same process as part of the node of this name (`OXSHMEM_NODE`); without a name
    /// of the node that it is on.
    pub(super) fn on(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.node.push_str(&format!("/{:016x}", digest(name.as_bytes())));
        }
        self
    }

    /// Returns where it is, to be set after its name.
    pub(super) fn place(&self) -> String {
        format!(" (process {} on {})", self.pid, self.host)
    }

    /// Returns why `other` cannot be this rank: this process is.
    pub(super) fn keeps(&self, rank: u32, other: &Self) -> String {
        format!(
            "rank {rank} is taken by process {} on {}, and process {} on {} claims it too",
            self.pid, self.host, other.pid, other.host
        )
    }

    /// Returns what it is equal in with all PEs of its machine, whatever `OXSHMEM_NODE` says.
    pub(super) fn machine(&self) -> &str {
        self.node.split('/').next().unwrap_or_default()
    }

    /// Returns this process.
    pub(super) fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let host = read("/proc/sys/kernel/hostname").unwrap_or_else(|| "unknown".into());
        let boot = read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|| host.clone());
        let net =
            std::fs::read_link("/proc/self/ns/net").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default();
        // Every PE is told the nodes of all, and compares them.
        Self { pid: std::process::id(), host, node: format!("{:016x}", digest(format!("{boot}/{net}").as_bytes())) }
    }
}
