//! The RDMA devices of a machine and how far they are from GPUs and CPUs, read from sysfs.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::port::LinkLayer;

/// Where sysfs is mounted.
const SYSFS: &str = "/sys";

/// Returns the names of the devices that the kernel has, whether or not the verbs library can use
/// them.
pub(crate) fn device_names() -> Vec<String> {
    let mut names: Vec<String> = entries(&Path::new(SYSFS).join("class/infiniband"))
        .unwrap_or_default()
        .into_iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort_by(|a, b| natural(a, b));
    names
}

/// Where a PE works, as far as the way to a device depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On the PCI device with this address (`0000:1b:00.0`): a GPU.
    Pci(String),
    /// On the CPUs of this NUMA node.
    Node(u32),
    /// On any CPU.
    Anywhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => write!(f, "pci {address}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Anywhere => f.write_str("anywhere"),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(' ') {
            Some(("pci", address)) => Ok(Self::Pci(address.to_owned())),
            Some(("node", node)) => node.parse().map(Self::Node).map_err(|_| format!("{text:?}: no node number")),
            None if text == "anywhere" => Ok(Self::Anywhere),
            _ => Err(format!("{text:?} is not a place")),
        }
    }
}

impl Place {
    /// Returns where this thread may run: the NUMA node that has all its CPUs, if there is one.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Self::Anywhere };
        let nodes = Path::new(SYSFS).join("devices/system/node");
        let mut found = None;
        for path in entries(&nodes).unwrap_or_default() {
            let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix("node")?.parse::<u32>().ok());
            let Some(number) = number else { continue };
            let list = fs::read_to_string(path.join("cpulist")).unwrap_or_default();
            if cpus(&list).any(|cpu| cpu < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(cpu)) {
                if found.is_some() {
                    return Self::Anywhere;
                }
                found = Some(number);
            }
        }
        found.map_or(Self::Anywhere, Self::Node)
    }
}

/// Returns the numbers of a list like `0-3,8`.
fn cpus(list: &str) -> impl Iterator<Item = usize> {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
        })
        .flatten()
}

/// How far a device is from a place, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Below one port of the CPU, this many PCI bridges apart.
    Bridges(u32),
    /// At the same host bridge of the CPU, through the CPU.
    HostBridge,
    /// At the same NUMA node.
    Node,
    /// At another NUMA node.
    System,
    /// One of the two is nowhere in particular.
    Unknown,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridges(1) => f.write_str("below one PCIe bridge"),
            Self::Bridges(count) => write!(f, "{count} PCIe bridges apart"),
            Self::HostBridge => f.write_str("at the same host bridge"),
            Self::Node => f.write_str("at the same NUMA node"),
            Self::System => f.write_str("at another NUMA node"),
            Self::Unknown => f.write_str("at an unknown distance"),
        }
    }
}

impl Distance {
    /// Returns what it means for a card that reads and writes the memory of a GPU there; nothing if
    /// the data stays below one port of the CPU.
    #[must_use]
    pub fn consequence(self) -> Option<&'static str> {
        match self {
            Self::Bridges(_) => None,
            Self::HostBridge | Self::Node => Some(
                "what the card reads from and writes to GPU memory passes through the CPU's root complex, on many machines below the rate of the link",
            ),
            Self::System => Some(
                "what the card reads from and writes to GPU memory crosses the link between the CPU's sockets, often at a fraction of the rate of the card",
            ),
            Self::Unknown => Some("whether data passes through the CPU cannot be told"),
        }
    }
}

/// A device, as sysfs describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Its name.
    pub name: String,
    /// Its node type: `1: CA`.
    pub(super) kind: String,
    /// What speaks against queue pairs on it, if anything: it is an iWARP card, or no port is
    /// active.
    pub fault: Option<String>,
    /// The kernel's driver of it; nothing for devices in software.
    pub driver: Option<String>,
    /// Its ports.
    pub ports: Vec<PortEntry>,
    pub(super) pci: Option<PciPath>,
}

impl DeviceEntry {
    /// Makes one, and finds what speaks against it. `kind` is the node type: `1: CA`; iWARP cards
    /// are `4: RNIC`, others have numbers of their own.
    pub(super) fn new(
        name: &str,
        kind: &str,
        driver: Option<String>,
        ports: Vec<PortEntry>,
        pci: Option<PciPath>,
    ) -> Self {
        let fault = if !kind.ends_with(": CA") {
            Some(format!("it is no InfiniBand or RoCE card (node type {kind})"))
        } else if ports.is_empty() {
            Some("it has no port".to_owned())
        } else if !ports.iter().any(PortEntry::is_active) {
            let states = ports.iter().map(|port| format!("port {} is {}", port.number, port.state));
            Some(states.collect::<Vec<_>>().join(", "))
        } else {
            None
        };
        Self { name: name.to_owned(), kind: kind.to_owned(), fault, driver, ports, pci }
    }

    /// Returns its address on the PCI bus, if it is there.
    #[must_use]
    pub fn pci_address(&self) -> Option<&str> {
        self.pci.as_ref().map(PciPath::address)
    }

    /// Returns its NUMA node, if it has one.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        self.pci.as_ref()?.node
    }

    /// Returns whether a ConnectX or BlueField that mlx5 drives.
    #[must_use]
    pub fn is_mlx5(&self) -> bool {
        self.driver.as_deref() == Some("mlx5_core")
    }

    /// Returns the first active port.
    pub(super) fn active(&self) -> Option<&PortEntry> {
        self.ports.iter().find(|port| port.is_active())
    }
}

/// A port, as sysfs describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortEntry {
    /// Its number, from 1.
    pub number: u8,
    /// What it is on.
    pub link_layer: LinkLayer,
    /// Its state: `ACTIVE`, `DOWN` and others.
    pub state: String,
}

impl PortEntry {
    /// Returns whether it carries data.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// The way from a host bridge to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PciPath {
    /// Host bridge (`pci0000:15`), bridges, device.
    pub steps: Vec<String>,
    pub node: Option<u32>,
}

impl PciPath {
    /// Takes the part of a path from the host bridge on; nothing if it has no host bridge, or
    /// nothing below.
    pub(super) fn from_steps<'a>(steps: impl Iterator<Item = &'a str>, node: Option<u32>) -> Option<Self> {
        let below = steps.skip_while(|step| !(step.starts_with("pci") && step.contains(':')));
        let steps: Vec<String> = below.map(str::to_owned).collect();
        (steps.len() > 1).then_some(Self { steps, node })
    }

    /// Returns the address of the device at its end.
    pub(super) fn address(&self) -> &str {
        self.steps.last().map_or("", String::as_str)
    }
}

/// Where the way to a PCI device is looked up.
#[derive(Debug, Clone)]
pub(super) enum Bus {
    /// In a tree that has the form of sysfs.
    Sysfs(PathBuf),
    /// In a description, by address.
    Described(BTreeMap<String, PciPath>),
}

/// The RDMA devices of a machine, its GPUs, and how far they are from each other.
#[derive(Debug, Clone)]
pub struct Topology {
    pub(super) bus: Bus,
    pub(super) devices: Vec<DeviceEntry>,
    /// PCI addresses, in the order in which PEs take them.
    pub(super) gpus: Vec<String>,
}

impl Topology {
    /// Reads this machine's.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn of_this_machine() -> io::Result<Self> {
        Self::read(Path::new(SYSFS))
    }

    /// Reads a tree that has the form of sysfs.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(sysfs: &Path) -> io::Result<Self> {
        let sysfs = fs::canonicalize(sysfs)?;
        let class = sysfs.join("class/infiniband");
        let mut devices = Vec::new();
        for path in entries(&class)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let mut ports = Vec::new();
            for path in entries(&path.join("ports"))? {
                let number = path.file_name().and_then(|name| name.to_str()?.parse::<u8>().ok());
                let Some(number) = number else { continue };
                let layer = attribute(&path, "link_layer");
                let link_layer = if layer == "Ethernet" { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
                // `4: ACTIVE`
                let state = attribute(&path, "state");
                let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name).to_owned();
                ports.push(PortEntry { number, link_layer, state });
            }
            ports.sort_by_key(|port| port.number);
            let device = path.join("device");
            let pci = device.exists().then(|| pci_path(&sysfs, &device)).flatten();
            let driver = fs::read_link(device.join("driver"));
            let driver = driver.ok().and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
            devices.push(DeviceEntry::new(name, &attribute(&path, "node_type"), driver, ports, pci));
        }
        devices.sort_by(|a, b| natural(&a.name, &b.name));
        // In the order of their addresses.
        let on_bus = entries(&sysfs.join("bus/pci/devices"))?;
        let gpus = on_bus.iter().filter(|device| is_nvidia_gpu(device));
        let gpus = gpus.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
        Ok(Self { bus: Bus::Sysfs(sysfs), devices, gpus })
    }

    /// Returns the PCI addresses of its GPUs: in the order of their addresses, or in that of a
    /// description.
    #[must_use]
    pub fn gpus(&self) -> &[String] {
        &self.gpus
    }

    /// Returns whether a place is on a PCI device that the tree or the description has, or is none
    /// on a PCI device.
    #[must_use]
    pub fn knows(&self, place: &Place) -> bool {
        !matches!(place, Place::Pci(_)) || self.path_of(place).is_some()
    }

    /// Returns its devices, in the order of their names.
    #[must_use]
    pub fn devices(&self) -> &[DeviceEntry] {
        &self.devices
    }

    /// Returns how far two places are from each other.
    #[must_use]
    pub fn between(&self, a: &Place, b: &Place) -> Distance {
        match (self.path_of(a), self.path_of(b)) {
            (Some(a), Some(b)) => between(&a, &b),
            _ => Distance::Unknown,
        }
    }

    /// Returns the way from a host bridge to a place on the PCI bus.
    pub(super) fn path_of(&self, place: &Place) -> Option<PciPath> {
        let Place::Pci(address) = place else { return None };
        let address = address.to_ascii_lowercase();
        match &self.bus {
            Bus::Sysfs(sysfs) => pci_path(sysfs, &sysfs.join("bus/pci/devices").join(address)),
            Bus::Described(paths) => paths.get(&address).cloned(),
        }
    }

    /// Returns how far the device with this name is from a place.
    #[must_use]
    pub fn distance_to(&self, place: &Place, name: &str) -> Distance {
        let device = self.devices.iter().find(|device| device.name == name);
        device.map_or(Distance::Unknown, |device| self.distance(place, device))
    }

    /// Returns how far a device is from a place.
    #[must_use]
    pub fn distance(&self, place: &Place, device: &DeviceEntry) -> Distance {
        let Some(there) = &device.pci else { return Distance::Unknown };
        match place {
            Place::Anywhere => Distance::Unknown,
            Place::Node(node) => near(Some(*node), there.node),
            Place::Pci(_) => self.path_of(place).map_or(Distance::Unknown, |here| between(&here, there)),
        }
    }
}

fn between(a: &PciPath, b: &PciPath) -> Distance {
    let common = a.steps.iter().zip(&b.steps).take_while(|(a, b)| a == b).count();
    match common {
        0 => near(a.node, b.node),
        1 => Distance::HostBridge,
        // The bridge in common, and those from it to either device.
        _ => {
            let below = |path: &PciPath| path.steps.len().saturating_sub(common + 1);
            Distance::Bridges(u32::try_from(1 + below(a) + below(b)).unwrap_or(u32::MAX))
        }
    }
}

/// Returns the distance; a machine without NUMA nodes is one.
fn near(a: Option<u32>, b: Option<u32>) -> Distance {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Distance::System,
        _ => Distance::Node,
    }
}

/// Follows a link to a PCI device; nothing if it is none.
fn pci_path(sysfs: &Path, link: &Path) -> Option<PciPath> {
    let path = fs::canonicalize(link).ok()?;
    // -1 where there are no nodes.
    let node = attribute(&path, "numa_node").parse().ok();
    PciPath::from_steps(path.strip_prefix(sysfs).ok()?.components().filter_map(|step| step.as_os_str().to_str()), node)
}

/// Returns whether a text is an address on the PCI bus with its domain: `0000:1b:00.0`.
pub(super) fn is_pci_address(text: &str) -> bool {
    let hex =
        |part: &str, most: usize| (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    match parts.as_slice() {
        [domain, bus, device, function] => {
            text.matches('.').count() == 1 && hex(domain, 8) && hex(bus, 2) && hex(device, 2) && hex(function, 1)
        }
        _ => false,
    }
}

/// Returns whether a folder of sysfs is a GPU of NVIDIA: a display (0x0300) or a 3D controller
/// (0x0302) in PCI's code of classes.
fn is_nvidia_gpu(device: &Path) -> bool {
    let class = attribute(device, "class");
    attribute(device, "vendor") == "0x10de" && (class.starts_with("0x0300") || class.starts_with("0x0302"))
}

/// Returns a folder's entries; none if it does not exist.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(found) => {
            let mut paths = found.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
            paths.sort();
            Ok(paths)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns an attribute's text; empty if it does not exist.
fn attribute(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Compares names with their numbers in the order of the values: mlx5_2 before mlx5_10.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let split = |name: &str| {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, number) = name.split_at(name.len() - digits);
        (stem.to_owned(), number.parse::<u64>().unwrap_or(0), name.to_owned())
    };
    split(a).cmp(&split(b))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_parse_back() {
        for place in [Place::Pci("0000:1b:00.0".into()), Place::Node(3), Place::Anywhere] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for text in ["", "pci", "node x", "node", "elsewhere", "gpu 3"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
        assert_eq!(cpus("0-3,8\n").collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("").count(), 0);
    }

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "irdma0", "mlx5_bond_0", "mlx5_1"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["irdma0", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }
}
