//! Which RDMA device is near which GPU or CPU, read from sysfs, and which PE of a node uses which.

use std::cmp::Ordering;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::{Result, VerbsError};
use crate::provider::LinkLayer;

/// Where sysfs is mounted.
const SYSFS: &str = "/sys";

/// The names of the devices that the kernel has, whether or not the verbs library can use them.
pub(super) fn device_names() -> Vec<String> {
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
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(' ') {
            Some(("pci", address)) => Ok(Self::Pci(address.to_owned())),
            Some(("node", node)) => node.parse().map(Self::Node).map_err(|_| format!("{text:?}: no node number")),
            None if text == "anywhere" => Ok(Self::Anywhere),
            _ => Err(format!("{text:?} is no place")),
        }
    }
}

impl Place {
    /// Where this thread may run: the NUMA node that has all its CPUs, if there is one.
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

/// The numbers of a list like `0-3,8`.
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

/// A device, as sysfs describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Its name.
    pub name: String,
    /// What speaks against queue pairs on it, if anything: it is an iWARP card, or no port is active.
    pub fault: Option<String>,
    /// The first active port.
    pub port: Option<PortEntry>,
    pci: Option<PciPath>,
}

/// A port, as sysfs describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortEntry {
    /// Its number, from 1.
    pub number: u8,
    /// What it is on.
    pub link_layer: LinkLayer,
}

/// The way from a host bridge to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PciPath {
    /// Host bridge (`pci0000:15`), bridges, device.
    steps: Vec<String>,
    node: Option<u32>,
}

/// The RDMA devices of a machine.
#[derive(Debug, Clone)]
pub struct Topology {
    sysfs: PathBuf,
    devices: Vec<DeviceEntry>,
}

impl Topology {
    /// Reads this machine's.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn of_this_machine() -> io::Result<Self> {
        Self::read(Path::new(SYSFS))
    }

    fn read(sysfs: &Path) -> io::Result<Self> {
        let sysfs = fs::canonicalize(sysfs)?;
        let class = sysfs.join("class/infiniband");
        let mut devices = Vec::new();
        for path in entries(&class)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let mut port = None;
            let mut states = Vec::new();
            for path in entries(&path.join("ports"))? {
                let number = path.file_name().and_then(|name| name.to_str()?.parse::<u8>().ok());
                let Some(number) = number else { continue };
                // `4: ACTIVE`
                let state = attribute(&path, "state");
                if state.ends_with("ACTIVE") {
                    let layer = attribute(&path, "link_layer");
                    let link_layer = if layer == "Ethernet" { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
                    port = port.or(Some(PortEntry { number, link_layer }));
                }
                let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
                states.push(format!("port {number} is {state}"));
            }
            // `1: CA`; iWARP cards are `4: RNIC`, others have numbers of their own.
            let kind = attribute(&path, "node_type");
            let fault = if !kind.ends_with(": CA") {
                Some(format!("it is no InfiniBand or RoCE card (node type {kind})"))
            } else if port.is_none() {
                Some(states.join(", "))
            } else {
                None
            };
            let pci = path.join("device").exists().then(|| pci_path(&sysfs, &path.join("device"))).flatten();
            devices.push(DeviceEntry { name: name.to_owned(), fault, port, pci });
        }
        devices.sort_by(|a, b| natural(&a.name, &b.name));
        Ok(Self { sysfs, devices })
    }

    /// Its devices, in the order of their names.
    #[must_use]
    pub fn devices(&self) -> &[DeviceEntry] {
        &self.devices
    }

    /// How far a device is from a place.
    #[must_use]
    pub fn distance(&self, place: &Place, device: &DeviceEntry) -> Distance {
        let Some(there) = &device.pci else { return Distance::Unknown };
        match place {
            Place::Anywhere => Distance::Unknown,
            Place::Node(node) => near(Some(*node), there.node),
            Place::Pci(address) => {
                let link = self.sysfs.join("bus/pci/devices").join(address.to_ascii_lowercase());
                match pci_path(&self.sysfs, &link) {
                    Some(here) => between(&here, there),
                    None => Distance::Unknown,
                }
            }
        }
    }

    /// Which device and port each PE of a node uses: one of those nearest to its place, and of these the one that fewest PEs before it have got. Where
    /// there are ports on InfiniBand and on Ethernet, those on InfiniBand are used, since the PEs of a job must meet on one network. Every PE
    /// that sees the same devices gets the same answer.
    ///
    /// # Errors
    /// No device can be used.
    pub fn assign(&self, places: &[Place]) -> Result<Vec<(&DeviceEntry, PortEntry)>> {
        let usable = |layer: LinkLayer| -> Vec<(&DeviceEntry, PortEntry)> {
            let ports = self.devices.iter().filter(|device| device.fault.is_none());
            ports
                .filter_map(|device| Some((device, device.port?)))
                .filter(|(_, port)| port.link_layer == layer)
                .collect()
        };
        let mut candidates = usable(LinkLayer::InfiniBand);
        if candidates.is_empty() {
            candidates = usable(LinkLayer::Ethernet);
        }
        if candidates.is_empty() {
            if self.devices.is_empty() {
                return Err(VerbsError::NoDevice);
            }
            let faults = self.devices.iter().filter_map(|device| Some((&device.name, device.fault.as_ref()?)));
            let devices: Vec<_> = faults.map(|(name, fault)| format!("{name}: {fault}")).collect();
            return Err(VerbsError::NoActivePort { devices: devices.join("; ") });
        }
        let mut users = vec![0u32; candidates.len()];
        let chosen = places.iter().map(|place| {
            let key = |i: usize| (self.distance(place, candidates[i].0), users[i]);
            // Of equals the first.
            let nearest = (0..candidates.len()).min_by_key(|i| key(*i)).unwrap_or(0);
            users[nearest] += 1;
            candidates[nearest]
        });
        Ok(chosen.collect())
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

/// A machine without NUMA nodes is one.
fn near(a: Option<u32>, b: Option<u32>) -> Distance {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Distance::System,
        _ => Distance::Node,
    }
}

/// Follows a link to a PCI device; nothing if it is none.
fn pci_path(sysfs: &Path, link: &Path) -> Option<PciPath> {
    let path = fs::canonicalize(link).ok()?;
    let steps: Vec<String> = path
        .strip_prefix(sysfs)
        .ok()?
        .components()
        .filter_map(|step| step.as_os_str().to_str().map(str::to_owned))
        .skip_while(|step| !(step.starts_with("pci") && step.contains(':')))
        .collect();
    // -1 where there are no nodes.
    let node = attribute(&path, "numa_node").parse().ok();
    (steps.len() > 1).then_some(PciPath { steps, node })
}

/// A folder's entries; none if it does not exist.
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

/// An attribute's text; empty if it does not exist.
fn attribute(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Numbers in names in the order of their values: mlx5_2 before mlx5_10.
fn natural(a: &str, b: &str) -> Ordering {
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

    /// A sysfs tree made of a description: a line for each PCI device (`pci NODE PATH`) and for each RDMA device (`rdma NAME ADDRESS NODE-TYPE`
    /// and then `NUMBER STATE LINK-LAYER` for each port; the address is `-` for a device that is not on PCI).
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, description: &str) -> Self {
            let root = std::env::temp_dir().join(format!("oxshmem-topology-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for folder in ["class/infiniband", "bus/pci/devices", "devices/virtual/infiniband"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            for line in description.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                let words: Vec<_> = line.split_whitespace().collect();
                match words[0] {
                    "pci" => {
                        let folder = root.join("devices").join(words[2]);
                        fs::create_dir_all(&folder).unwrap();
                        fs::write(folder.join("numa_node"), format!("{}\n", words[1])).unwrap();
                        let address = folder.file_name().unwrap();
                        std::os::unix::fs::symlink(&folder, root.join("bus/pci/devices").join(address)).unwrap();
                    }
                    "rdma" => {
                        let folder = match words[2] {
                            "-" => root.join("devices/virtual/infiniband").join(words[1]),
                            address => {
                                let device = fs::canonicalize(root.join("bus/pci/devices").join(address)).unwrap();
                                device.join("infiniband").join(words[1])
                            }
                        };
                        fs::create_dir_all(&folder).unwrap();
                        if words[2] != "-" {
                            std::os::unix::fs::symlink("../..", folder.join("device")).unwrap();
                        }
                        fs::write(folder.join("node_type"), format!("{}\n", words[3].replace(':', ": "))).unwrap();
                        for port in words[4..].chunks(3) {
                            let ports = folder.join("ports").join(port[0]);
                            fs::create_dir_all(&ports).unwrap();
                            fs::write(ports.join("state"), format!("{}\n", port[1].replace(':', ": "))).unwrap();
                            fs::write(ports.join("link_layer"), format!("{}\n", port[2])).unwrap();
                        }
                        std::os::unix::fs::symlink(&folder, root.join("class/infiniband").join(words[1])).unwrap();
                    }
                    other => panic!("{other}?"),
                }
            }
            Self(root)
        }

        fn topology(&self) -> Topology {
            Topology::read(&self.0).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn gpus(addresses: &[&str]) -> Vec<Place> {
        addresses.iter().map(|address| Place::Pci((*address).to_owned())).collect()
    }

    fn names(topology: &Topology, places: &[Place]) -> Vec<String> {
        topology.assign(places).unwrap().iter().map(|(device, _)| device.name.clone()).collect()
    }

    #[test]
    fn each_gpu_of_a_dgx_h100_gets_the_card_at_its_switch() {
        let tree = Tree::new("dgx-h100", include_str!("fixtures/dgx-h100.txt"));
        let topology = tree.topology();
        let places = gpus(&[
            "0000:1b:00.0",
            "0000:43:00.0",
            "0000:52:00.0",
            "0000:61:00.0",
            "0000:9d:00.0",
            "0000:c3:00.0",
            "0000:d1:00.0",
            "0000:df:00.0",
        ]);
        // mlx5_1, mlx5_2, mlx5_7 and mlx5_8 are for storage: elsewhere, and on Ethernet.
        let expected = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"];
        assert_eq!(names(&topology, &places), expected);
        let distances: Vec<_> = topology.devices().iter().map(|device| topology.distance(&places[0], device)).collect();
        assert_eq!(distances[0], Distance::Bridges(3));
        assert_eq!(distances[3], Distance::Node);
        assert_eq!(distances[6], Distance::System);
        // In whatever order the GPUs are given.
        let mut reversed = places;
        reversed.reverse();
        assert_eq!(names(&topology, &reversed), expected.iter().rev().copied().collect::<Vec<_>>());
    }

    #[test]
    fn two_gpus_of_a_dgx_a100_share_out_the_two_cards_of_their_switch() {
        let tree = Tree::new("dgx-a100", include_str!("fixtures/dgx-a100.txt"));
        let topology = tree.topology();
        let places = gpus(&["0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0"]);
        assert_eq!(names(&topology, &places), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]);
        // Two PEs on one GPU do as well.
        let places = gpus(&["0000:47:00.0", "0000:47:00.0", "0000:47:00.0", "0000:07:00.0"]);
        assert_eq!(names(&topology, &places), ["mlx5_2", "mlx5_3", "mlx5_2", "mlx5_0"]);
    }

    #[test]
    fn on_one_socket_the_root_port_decides() {
        let tree = Tree::new("single-socket", include_str!("fixtures/single-socket.txt"));
        let topology = tree.topology();
        let places = gpus(&["0000:01:00.0", "0000:21:00.0", "0000:41:00.0"]);
        // The first GPU is at the host bridge of the card; for the others both cards are on the node.
        assert_eq!(topology.distance(&places[0], &topology.devices()[0]), Distance::HostBridge);
        assert_eq!(names(&topology, &places), ["mlx5_0", "mlx5_1", "mlx5_0"]);
        assert_eq!(
            names(&topology, &[Place::Node(0), Place::Node(0), Place::Anywhere]),
            ["mlx5_0", "mlx5_1", "mlx5_0"]
        );
    }

    #[test]
    fn in_a_flat_tree_of_a_vm_the_node_decides_and_infiniband_is_preferred() {
        let tree = Tree::new("vm", include_str!("fixtures/vm-flat.txt"));
        let topology = tree.topology();
        let places = gpus(&["0001:00:00.0", "0002:00:00.0", "0003:00:00.0", "0004:00:00.0"]);
        assert_eq!(names(&topology, &places), ["mlx5_ib0", "mlx5_ib1", "mlx5_ib2", "mlx5_ib3"]);
        let odd = gpus(&["0003:00:00.0", "0004:00:00.0", "0003:00:00.0"]);
        assert_eq!(names(&topology, &odd), ["mlx5_ib2", "mlx5_ib3", "mlx5_ib2"]);
        // A bus address that is not there, as in a container, is no error.
        assert_eq!(names(&topology, &gpus(&["00ff:00:00.0"])), ["mlx5_ib0"]);
    }

    #[test]
    fn software_devices_are_spread_and_ports_must_be_active() {
        let tree = Tree::new("soft", "rdma rxe1 - 1:CA 1 4:ACTIVE Ethernet\nrdma rxe0 - 1:CA 1 4:ACTIVE Ethernet\n");
        let topology = tree.topology();
        assert_eq!(names(&topology, &vec![Place::Anywhere; 3]), ["rxe0", "rxe1", "rxe0"]);

        let tree = Tree::new(
            "down",
            "rdma rxe0 - 1:CA 1 1:DOWN Ethernet\nrdma siw0 - 4:RNIC 1 4:ACTIVE Ethernet\nrdma mlx4_0 - 1:CA 1 2:INIT InfiniBand 2 4:ACTIVE InfiniBand\n",
        );
        let topology = tree.topology();
        let chosen = topology.assign(&[Place::Node(0)]).unwrap();
        assert_eq!((chosen[0].0.name.as_str(), chosen[0].1.number), ("mlx4_0", 2));

        let tree = Tree::new("dead", "rdma rxe0 - 1:CA 1 1:DOWN Ethernet\nrdma siw0 - 4:RNIC 1 4:ACTIVE Ethernet\n");
        let error = tree.topology().assign(&[Place::Anywhere]).unwrap_err().to_string();
        assert!(error.contains("rxe0: port 1 is DOWN; siw0: it is no InfiniBand or RoCE card"), "{error}");
        let error = Tree::new("none", "").topology().assign(&[Place::Anywhere]).unwrap_err();
        assert!(matches!(error, VerbsError::NoDevice), "{error}");
    }

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
