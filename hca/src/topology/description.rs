//! Descriptions of machines: what `OXSHMEM_TOPOLOGY` names in place of sysfs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::error::TopologyError;
use super::machine::{Bus, DeviceEntry, PciPath, Place, PortEntry, Topology, is_pci_address, natural};
use crate::port::LinkLayer;

/// The most bytes of a description: far more than any machine takes.
const MOST_BYTES: u64 = 1 << 20;
/// What a value that is not there is written as.
const NONE: &str = "-";

impl Topology {
    /// Reads the description of a machine from a file.
    ///
    /// # Errors
    /// The file cannot be read, is larger than a description can be, or describes no machine; the
    /// error names the file, and the line.
    pub fn from_file(file: &Path) -> Result<Self, TopologyError> {
        let wrong = |what: String| TopologyError::Description { file: file.display().to_string(), what };
        let about = fs::metadata(file).map_err(|error| wrong(format!("it cannot be read ({error})")))?;
        if !about.is_file() {
            return Err(wrong("it is not a file".to_owned()));
        }
        if about.len() > MOST_BYTES {
            return Err(wrong(format!("it has {} bytes; a description has at most {MOST_BYTES}", about.len())));
        }
        let text = fs::read_to_string(file).map_err(|error| wrong(format!("it cannot be read ({error})")))?;
        Self::parse(&text).map_err(wrong)
    }

    /// Reads the description of a machine: a line for each GPU, each other PCI device that is an
    /// RDMA card, and each RDMA device. Empty lines, and those that begin with `#`, are left out.
    ///
    /// ```text
    /// gpu  NUMA-NODE PATH
    /// pci  NUMA-NODE PATH
    /// rdma NAME ADDRESS DRIVER NODE-TYPE [PORT STATE LINK-LAYER]...
    /// ```
    ///
    /// `PATH` is the way from the host bridge to the device, as below `/sys/devices`:
    /// `pci0000:15/0000:15:01.0/0000:1b:00.0`; `NUMA-NODE` is -1 where there is none. GPUs are in
    /// the order in which PEs on the `cpu` device take them. `ADDRESS` is that of a `pci` line, and
    /// `-` of a device in software, as `DRIVER` is where the kernel names none. `NODE-TYPE`,
    /// `STATE` and `LINK-LAYER` are as in sysfs, without spaces: `1:CA`, `4:ACTIVE`, `InfiniBand`
    /// or `Ethernet`.
    ///
    /// # Errors
    /// The line that is wrong, and why.
    ///
    /// ```
    /// use oxshmem_hca::topology::{Distance, Place, Topology};
    ///
    /// let machine = Topology::parse(
    ///     "gpu 0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0
    ///      pci 0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:18:00.0
    ///      rdma mlx5_0 0000:18:00.0 mlx5_core 1:CA 1 4:ACTIVE InfiniBand",
    /// )?;
    /// let gpu = Place::Pci(machine.gpus()[0].clone());
    /// assert_eq!(machine.distance_to(&gpu, "mlx5_0"), Distance::Bridges(3));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut read = Reading::default();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            read.line(&words).map_err(|what| format!("line {number}: {what}"))?;
        }
        let Reading { mut devices, gpus, paths } = read;
        if gpus.is_empty() && devices.is_empty() {
            return Err("it describes neither a GPU nor an RDMA device".to_owned());
        }
        devices.sort_by(|a, b| natural(&a.name, &b.name));
        Ok(Self { bus: Bus::Described(paths), devices, gpus })
    }

    /// Returns the description of this machine, which [`parse`](Self::parse) reads back.
    ///
    /// ```
    /// use oxshmem_hca::topology::Topology;
    ///
    /// let text = "gpu 0 pci0000:00/0000:01:00.0\n";
    /// assert_eq!(Topology::parse(text)?.describe(), text);
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut on_bus = |word: &str, path: &PciPath| {
            let node = path.node.map_or("-1".to_owned(), |node| node.to_string());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{word} {node} {}", path.steps.join("/"));
        };
        for gpu in &self.gpus {
            if let Some(path) = self.path_of(&Place::Pci(gpu.clone())) {
                on_bus("gpu", &path);
            }
        }
        // Two RDMA devices may be at one address.
        let cards = self.devices.iter().filter_map(|device| device.pci.as_ref());
        let cards: BTreeMap<&str, &PciPath> = cards.map(|path| (path.address(), path)).collect();
        let others = cards.into_iter().filter(|(address, _)| !self.gpus.iter().any(|gpu| gpu == address));
        others.for_each(|(_, path)| on_bus("pci", path));
        for device in &self.devices {
            let (address, driver) = (device.pci_address().unwrap_or(NONE), device.driver.as_deref().unwrap_or(NONE));
            let _ = write!(text, "rdma {} {address} {driver} {}", device.name, device.kind.replace(": ", ":"));
            for port in &device.ports {
                let layer = if port.link_layer == LinkLayer::Ethernet { "Ethernet" } else { "InfiniBand" };
                let _ = write!(text, " {} {} {layer}", port.number, port.state);
            }
            text.push('\n');
        }
        text
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    devices: Vec<DeviceEntry>,
    gpus: Vec<String>,
    paths: BTreeMap<String, PciPath>,
}

impl Reading {
    fn line(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            [] => Ok(()),
            [comment, ..] if comment.starts_with('#') => Ok(()),
            ["gpu", node, path] => {
                let address = self.device(node, path)?;
                self.gpus.push(address);
                Ok(())
            }
            ["pci", node, path] => self.device(node, path).map(drop),
            ["rdma", name, address, driver, kind, ports @ ..] => self.rdma((name, kind), (address, driver), ports),
            [word, ..] => Err(format!(
                "{word:?} with {} more words; expected `gpu NUMA-NODE PATH`, `pci NUMA-NODE PATH` or `rdma NAME ADDRESS DRIVER \
                 NODE-TYPE [PORT STATE LINK-LAYER]...`",
                words.len() - 1
            )),
        }
    }

    /// Reads a PCI device, and returns its address.
    fn device(&mut self, node: &str, path: &str) -> Result<String, String> {
        let node = match node.parse::<i64>() {
            Ok(-1) => None,
            Ok(number) if u32::try_from(number).is_ok() => u32::try_from(number).ok(),
            _ => return Err(format!("NUMA node {node:?}; expected a number from 0, or -1 for none")),
        };
        let form = "expected the way from the host bridge, like pci0000:15/0000:15:01.0/0000:1b:00.0";
        let lower = path.to_ascii_lowercase();
        let found = PciPath::from_steps(lower.split('/'), node).ok_or_else(|| format!("PATH {path:?}; {form}"))?;
        if let Some(step) = found.steps[1..].iter().find(|step| !is_pci_address(step)) {
            return Err(format!("PATH {path:?}: {step:?} is no PCI address; {form}"));
        }
        let address = found.address().to_owned();
        match self.paths.insert(address.clone(), found) {
            None => Ok(address),
            Some(_) => Err(format!("{address} is described twice")),
        }
    }

    fn rdma(
        &mut self,
        (name, kind): (&str, &str),
        (address, driver): (&str, &str),
        ports: &[&str],
    ) -> Result<(), String> {
        if self.devices.iter().any(|device| device.name == name) {
            return Err(format!("{name} is described twice"));
        }
        let pci = match address {
            NONE => None,
            address => {
                let found = self.paths.get(&address.to_ascii_lowercase()).cloned();
                Some(found.ok_or_else(|| {
                    format!("{name} is at {address}, which no line before describes; add `pci NUMA-NODE PATH` before")
                })?)
            }
        };
        let (groups, []) = ports.as_chunks::<3>() else {
            let count = ports.len();
            return Err(format!("{name} has {count} words about ports; expected `PORT STATE LINK-LAYER` for each"));
        };
        let mut known: Vec<PortEntry> = Vec::new();
        for [number, state, layer] in groups {
            let port = number.parse::<u8>().ok().filter(|number| *number > 0);
            let number = port.ok_or_else(|| format!("{name}: port {number:?}; expected a number from 1 to 255"))?;
            if known.iter().any(|port| port.number == number) {
                return Err(format!("{name}: port {number} is described twice"));
            }
            let link_layer = match *layer {
                "InfiniBand" => LinkLayer::InfiniBand,
                "Ethernet" => LinkLayer::Ethernet,
                other => return Err(format!("{name}: link layer {other:?}; expected InfiniBand or Ethernet")),
            };
            let state = state.split_once(':').map_or(*state, |(_, name)| name).to_owned();
            known.push(PortEntry { number, link_layer, state });
        }
        known.sort_by_key(|port| port.number);
        let kind = match kind.split_once(':') {
            Some((number, name)) if number.parse::<u8>().is_ok() => format!("{number}: {name}"),
            _ => return Err(format!("{name}: node type {kind:?}; expected a number and a name, like 1:CA")),
        };
        let driver = (driver != NONE).then(|| driver.to_owned());
        self.devices.push(DeviceEntry::new(name, &kind, driver, known, pci));
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::sysfs_tree::{FIXTURES, Tree};
    use super::*;

    /// A description says what the tree of sysfs says that is made of it, and the description of
    /// that tree says it again.
    #[test]
    fn a_description_is_as_good_as_sysfs() {
        for (name, text) in FIXTURES {
            let described = Topology::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let tree = Tree::new(&format!("described-{name}"), text);
            let read = tree.topology();
            assert_eq!((&described.devices, &described.gpus), (&read.devices, &read.gpus), "{name}");
            assert!(!described.gpus.is_empty(), "{name}");
            let places: Vec<Place> = described.gpus.iter().map(|gpu| Place::Pci(gpu.clone())).collect();
            for place in &places {
                assert!(described.knows(place) && read.knows(place), "{name}: {place}");
                for device in described.devices() {
                    let distance = described.distance(place, device);
                    assert_eq!(distance, read.distance(place, device), "{name}: {place}, {}", device.name);
                }
            }
            let again = Topology::parse(&read.describe()).unwrap();
            assert_eq!((again.devices, again.gpus), (read.devices.clone(), read.gpus.clone()), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_description_is_said_with_its_line() {
        let gpu = "gpu 0 pci0000:15/0000:15:01.0/0000:1b:00.0\n";
        for (text, words) in [
            ("", "neither a GPU nor an RDMA device"),
            ("# nothing\n\n", "neither a GPU nor an RDMA device"),
            ("<system version=\"1\">", "line 1: \"<system\" with 1 more words; expected `gpu NUMA-NODE PATH`"),
            ("gpu 0", "line 1: \"gpu\" with 1 more words"),
            ("gpu x pci0000:15/0000:1b:00.0", "NUMA node \"x\"; expected a number"),
            ("gpu -2 pci0000:15/0000:1b:00.0", "NUMA node \"-2\""),
            ("gpu 0 0000:1b:00.0", "PATH \"0000:1b:00.0\"; expected the way from the host bridge"),
            ("gpu 0 pci0000:15", "PATH \"pci0000:15\""),
            ("gpu 0 pci0000:15/bridge/0000:1b:00.0", "\"bridge\" is no PCI address"),
            ("gpu 0 pci0000:15/0000:1b:00", "\"0000:1b:00\" is no PCI address"),
            (&[gpu, gpu].concat(), "line 2: 0000:1b:00.0 is described twice"),
            ("rdma mlx5_0 0000:18:00.0 mlx5_core 1:CA", "which no line before describes; add `pci NUMA-NODE PATH`"),
            ("rdma a - - 1:CA\nrdma a - - 1:CA", "line 2: a is described twice"),
            ("rdma a - - 1:CA 1 4:ACTIVE", "a has 2 words about ports"),
            ("rdma a - - 1:CA 0 4:ACTIVE Ethernet", "port \"0\"; expected a number from 1"),
            ("rdma a - - 1:CA 1 4:ACTIVE Ethernet 1 4:ACTIVE Ethernet", "port 1 is described twice"),
            ("rdma a - - 1:CA 1 4:ACTIVE Token-Ring", "link layer \"Token-Ring\"; expected InfiniBand or Ethernet"),
            ("rdma a - - CA 1 4:ACTIVE Ethernet", "node type \"CA\"; expected a number and a name"),
        ] {
            let error = Topology::parse(text).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        let folder = std::env::temp_dir();
        let missing = Topology::from_file(&folder.join("oxshmem-no-such-topology")).unwrap_err().to_string();
        assert!(missing.starts_with("OXSHMEM_TOPOLOGY=") && missing.contains("cannot be read"), "{missing}");
        let error = Topology::from_file(&folder).unwrap_err().to_string();
        assert!(error.contains("it is not a file"), "{error}");
        // A device without end is refused before it is read.
        let error = Topology::from_file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("it is not a file"), "{error}");
        let file = folder.join(format!("oxshmem-topology-{}.txt", std::process::id()));
        fs::write(&file, vec![b'#'; 1 + MOST_BYTES as usize]).unwrap();
        let error = Topology::from_file(&file).unwrap_err().to_string();
        assert!(error.contains("it has 1048577 bytes"), "{error}");
        fs::write(&file, "gpu 0 pci0000:15/0000:1b:00.0\nrdma\n").unwrap();
        let error = Topology::from_file(&file).unwrap_err().to_string();
        fs::remove_file(&file).unwrap();
        assert!(
            error.contains(": line 2: \"rdma\" with 0 more words") && error.contains("docs/hardware.md"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_description_or_not(text in "([a-z0-9:./ -]|gpu |pci |rdma |\n){0,200}") {
            if let Ok(topology) = Topology::parse(&text) {
                let again = Topology::parse(&topology.describe());
                prop_assert!(again.is_ok_and(|again| again.devices == topology.devices && again.gpus == topology.gpus));
            }
        }
    }
}
