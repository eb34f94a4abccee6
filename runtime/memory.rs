//! How much memory a PE takes, by what it is for.

use std::fmt;
use std::ops::AddAssign;

/// What memory of a PE is for.
///
/// ```
/// use oxshmem::MemoryKind;
///
/// assert_eq!(MemoryKind::ALL.map(MemoryKind::name)[..3], ["heap", "teams", "queues"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The chunks that the symmetric heap has grown to, less the workspaces of teams.
    Heap,
    /// Workspaces of teams, which lie in the heap, and the table of teams.
    Teams,
    /// Send queues of QPs with their completion queues.
    Queues,
    /// Doorbell records, and what is kept for each QP.
    Records,
    /// Landing slots, where results of reads and atomics arrive.
    Landing,
    /// The ring between device code and the CPU proxy (IBRC).
    Rings,
    /// What the software HCA keeps: its control segment, its doorbell pages and its kernel's
    /// tables.
    Engine,
    /// Buffers that data of host operations and staged puts passes through.
    Staging,
    /// Keys of peers, control blocks, and what is left at the ends of lines and pages.
    Tables,
    /// What device code counts and records for `OXSHMEM_PROFILE`.
    Profile,
}

impl MemoryKind {
    /// Every kind, in the order of reports.
    ///
    /// ```
    /// assert_eq!(oxshmem::MemoryKind::ALL.len(), 10);
    /// ```
    pub const ALL: [Self; 10] = [
        Self::Heap,
        Self::Teams,
        Self::Queues,
        Self::Records,
        Self::Landing,
        Self::Rings,
        Self::Engine,
        Self::Staging,
        Self::Tables,
        Self::Profile,
    ];

    /// Returns its name in reports.
    ///
    /// ```
    /// assert_eq!(oxshmem::MemoryKind::Rings.name(), "rings");
    /// ```
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Teams => "teams",
            Self::Queues => "queues",
            Self::Records => "records",
            Self::Landing => "landing",
            Self::Rings => "rings",
            Self::Engine => "engine",
            Self::Staging => "staging",
            Self::Tables => "tables",
            Self::Profile => "profile",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes of memory, by where it is.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{MemoryBytes, MemoryKind};
///
/// let MemoryBytes { device, host, .. } = pe.memory().of(MemoryKind::Staging);
/// println!("{device} bytes of the device, {host} bytes of the host");
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryBytes {
    /// Memory of the device: of the GPU, or shared memory of the host on the `cpu` device.
    pub device: u64,
    /// Memory of the host.
    pub host: u64,
}

impl MemoryBytes {
    /// Counts memory of the device.
    pub(crate) fn device(bytes: u64) -> Self {
        Self { device: bytes, host: 0 }
    }

    /// Counts memory of the host.
    pub(crate) fn host(bytes: u64) -> Self {
        Self { device: 0, host: bytes }
    }

    /// Returns both together.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let all = pe.memory().all();
    /// assert_eq!(all.total(), all.device + all.host);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn total(self) -> u64 {
        self.device + self.host
    }
}

impl AddAssign for MemoryBytes {
    fn add_assign(&mut self, other: Self) {
        self.device += other.device;
        self.host += other.host;
    }
}

/// How much memory a PE takes, in bytes, by kind. Made by [`Pe::memory`](crate::Pe::memory).
///
/// Each byte counts once. What is not counted: the process's own code and bookkeeping, stacks of
/// the `cpu` device, what libraries and drivers allocate for themselves (contexts of the GPU,
/// queues of `OXSHMEM_HCA=verbs`), and memory of peers that is mapped.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::MemoryKind;
///
/// let memory = pe.memory();
/// assert!(memory.of(MemoryKind::Staging).total() >= 1 << 20);
/// assert_eq!(memory.iter().map(|(_, bytes)| bytes.total()).sum::<u64>(), memory.all().total());
/// println!("{memory}"); // heap 64.0 MiB, teams 2.4 MiB, ...
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    kinds: [MemoryBytes; MemoryKind::ALL.len()],
}

impl MemoryUse {
    /// Counts memory of a kind.
    pub(crate) fn add(&mut self, kind: MemoryKind, bytes: MemoryBytes) {
        self.kinds[kind as usize] += bytes;
    }

    /// Returns the bytes of a kind.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// println!("the heap takes {} bytes", pe.memory().of(oxshmem::MemoryKind::Heap).total());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn of(&self, kind: MemoryKind) -> MemoryBytes {
        self.kinds[kind as usize]
    }

    /// Returns all bytes.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// println!("{} bytes of device memory", pe.memory().all().device);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn all(&self) -> MemoryBytes {
        let mut all = MemoryBytes::default();
        self.kinds.iter().for_each(|bytes| all += *bytes);
        all
    }

    /// Returns every kind with its bytes.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// for (kind, bytes) in pe.memory().iter() {
    ///     println!("{kind:<8} {:>12} {:>12}", bytes.device, bytes.host);
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (MemoryKind, MemoryBytes)> {
        MemoryKind::ALL.into_iter().zip(self.kinds)
    }
}

impl AddAssign for MemoryUse {
    fn add_assign(&mut self, other: Self) {
        other.iter().for_each(|(kind, bytes)| self.add(kind, bytes));
    }
}

/// Writes everything in one line.
impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for (kind, bytes) in self.iter().filter(|(_, bytes)| bytes.total() > 0) {
            write!(f, "{kind} {:.1} MiB, ", mib(bytes.total()))?;
        }
        let MemoryBytes { device, host } = self.all();
        write!(f, "in all {:.1} MiB of the device and {:.1} MiB of the host", mib(device), mib(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_added_and_written() {
        let mut memory = MemoryUse::default();
        assert_eq!(memory.to_string(), "in all 0.0 MiB of the device and 0.0 MiB of the host");
        memory.add(MemoryKind::Heap, MemoryBytes::device(3 << 20));
        memory.add(MemoryKind::Rings, MemoryBytes::host(1 << 19));
        memory += memory;
        assert_eq!(memory.of(MemoryKind::Heap), MemoryBytes { device: 6 << 20, host: 0 });
        assert_eq!(memory.all(), MemoryBytes { device: 6 << 20, host: 1 << 20 });
        let text = "heap 6.0 MiB, rings 1.0 MiB, in all 6.0 MiB of the device and 1.0 MiB of the host";
        assert_eq!(memory.to_string(), text);
        assert!(MemoryKind::ALL.iter().zip(0..).all(|(kind, place)| *kind as usize == place));
    }
}
