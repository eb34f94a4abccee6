//! Which device each PE of a node uses.

use std::fmt;
use std::str::FromStr;

use super::{DeviceEntry, Distance, Place, PortEntry, Topology, TopologyError};
use crate::provider::LinkLayer;

/// A device by name, and maybe a port of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// The device's name, as in `/sys/class/infiniband`.
    pub device: String,
    /// The port, from 1; without one, the first that is active.
    pub port: Option<u8>,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.device),
            Some(port) => write!(f, "{}/{port}", self.device),
        }
    }
}

impl FromStr for Card {
    type Err = ();

    /// Reads `DEVICE` or `DEVICE/PORT`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (device, port) = match text.split_once('/') {
            Some((device, port)) => (device, Some(port.parse().ok().filter(|port| *port > 0).ok_or(())?)),
            None => (text, None),
        };
        // Names of devices are file names.
        let plain = !device.is_empty() && device.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        plain.then(|| Self { device: device.to_owned(), port }).ok_or(())
    }
}

/// Whom an item of a mapping is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// The PE with this number among those of its node, from 0.
    Pe(usize),
    /// Every PE on the GPU with this PCI address.
    Gpu(String),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pe(index) => write!(f, "{index}"),
            Self::Gpu(address) => f.write_str(address),
        }
    }
}

impl FromStr for Who {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Pe).map_err(|_| ());
        }
        // 0000:1b:00.0
        let hex = |part: &str, most: usize| {
            (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let parts: Vec<&str> = text.split([':', '.']).collect();
        match parts.as_slice() {
            [domain, bus, device, function] if text.matches('.').count() == 1 => {
                let fits = hex(domain, 8) && hex(bus, 2) && hex(device, 2) && hex(function, 1);
                fits.then(|| Self::Gpu(text.to_ascii_lowercase())).ok_or(())
            }
            _ => Err(()),
        }
    }
}

/// Which devices may be used, and by whom: the value of `OXSHMEM_HCA_DEVICES`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// All; topology decides.
    #[default]
    Any,
    /// These; topology decides among them.
    Only(Vec<Card>),
    /// All but these.
    Except(Vec<String>),
    /// Exactly as it says; topology decides nothing.
    Mapping(Vec<(Who, Card)>),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Any => String::new(),
            Self::Only(cards) => cards.iter().map(Card::to_string).collect::<Vec<_>>().join(","),
            Self::Except(names) => format!("^{}", names.join(",")),
            Self::Mapping(items) => {
                items.iter().map(|(who, card)| format!("{who}={card}")).collect::<Vec<_>>().join(",")
            }
        };
        f.write_str(&text)
    }
}

impl FromStr for DeviceChoice {
    type Err = ();

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, ()> {
        if text.is_empty() {
            return Ok(Self::Any);
        }
        if let Some(names) = text.strip_prefix('^') {
            let cards = names.split(',').map(Card::from_str).collect::<Result<Vec<_>, ()>>()?;
            let whole = cards.iter().all(|card| card.port.is_none());
            return whole.then(|| Self::Except(cards.into_iter().map(|card| card.device).collect())).ok_or(());
        }
        if text.contains('=') {
            let item = |item: &str| {
                let (who, card) = item.split_once('=').ok_or(())?;
                Ok((who.parse::<Who>()?, card.parse::<Card>()?))
            };
            let items = text.split(',').map(item).collect::<Result<Vec<_>, ()>>()?;
            let twice = items.iter().enumerate().any(|(i, (who, _))| items[..i].iter().any(|(other, _)| other == who));
            return if twice { Err(()) } else { Ok(Self::Mapping(items)) };
        }
        text.split(',').map(Card::from_str).collect::<Result<Vec<_>, ()>>().map(Self::Only)
    }
}

impl DeviceChoice {
    /// The device of a PE, where it is said exactly: `index` is the PE's number on its node.
    ///
    /// # Errors
    /// There is a mapping, and it says nothing of this PE.
    pub fn exact(&self, index: usize, place: &Place) -> Result<Option<&Card>, TopologyError> {
        let Self::Mapping(items) = self else { return Ok(None) };
        let is_for = |who: &Who| match (who, place) {
            (Who::Pe(number), _) => *number == index,
            (Who::Gpu(address), Place::Pci(own)) => own.eq_ignore_ascii_case(address),
            (Who::Gpu(_), _) => false,
        };
        // A PE's number says more than its GPU.
        let found = items
            .iter()
            .find(|(who, _)| matches!(who, Who::Pe(_)) && is_for(who))
            .or_else(|| items.iter().find(|(who, _)| is_for(who)));
        match found {
            Some((_, card)) => Ok(Some(card)),
            None => Err(TopologyError::Unmapped { list: self.to_string(), index, place: place.to_string() }),
        }
    }
}

/// What kind of device is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Any that the kernel's verbs serve.
    Verbs,
    /// Those that mlx5 drives.
    Mlx5,
}

/// The device and port of a PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment<'a> {
    /// The device.
    pub device: &'a DeviceEntry,
    /// Its port.
    pub port: &'a PortEntry,
    /// How far it is.
    pub distance: Distance,
}

impl Topology {
    /// Which device and port each PE of a node uses: one of those nearest to its place, and of these the one that fewest PEs have got. PEs whose
    /// nearest device is nearer choose first, those with lower numbers before others. Where there are ports on InfiniBand and on Ethernet,
    /// those on InfiniBand are used, since the PEs of a job must meet on one network. Every PE that sees the same devices gets the same answer.
    ///
    /// A mapping ([`DeviceChoice::exact`]) is not for this function, and counts as no restriction.
    ///
    /// # Errors
    /// No device can be used.
    pub fn assign(
        &self,
        family: Family,
        choice: &DeviceChoice,
        places: &[Place],
    ) -> Result<Vec<Assignment<'_>>, TopologyError> {
        let candidates = self.candidates(family, choice)?;
        let far = |place: &Place| -> Vec<Distance> {
            candidates.iter().map(|(device, _)| self.distance(place, device)).collect()
        };
        let distances: Vec<Vec<Distance>> = places.iter().map(far).collect();
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|pe| distances[*pe].iter().min());
        let mut users = vec![0u32; candidates.len()];
        let mut chosen = vec![0; places.len()];
        for pe in order {
            // Of equals the first.
            let nearest = (0..candidates.len()).min_by_key(|i| (distances[pe][*i], users[*i])).unwrap_or(0);
            users[nearest] += 1;
            chosen[pe] = nearest;
        }
        let assignment = |(pe, at): (usize, usize)| {
            let (device, port) = candidates[at];
            Assignment { device, port, distance: distances[pe][at] }
        };
        Ok(chosen.into_iter().enumerate().map(assignment).collect())
    }

    /// The devices and ports among which PEs may choose, at least one.
    fn candidates(
        &self,
        family: Family,
        choice: &DeviceChoice,
    ) -> Result<Vec<(&DeviceEntry, &PortEntry)>, TopologyError> {
        let names = || match self.devices.is_empty() {
            true => "none".to_owned(),
            false => self.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        let present = |name: &str| {
            let missing =
                || TopologyError::NoSuchDevice { list: choice.to_string(), name: name.to_owned(), present: names() };
            self.devices.iter().find(|device| device.name == name).ok_or_else(missing)
        };
        // Each device with the port that was asked for.
        let listed: Vec<(&DeviceEntry, Option<u8>)> = match choice {
            DeviceChoice::Only(cards) => {
                cards.iter().map(|card| Ok((present(&card.device)?, card.port))).collect::<Result<_, _>>()?
            }
            DeviceChoice::Except(left_out) => {
                left_out.iter().try_for_each(|name| present(name).map(drop))?;
                self.devices
                    .iter()
                    .filter(|device| !left_out.contains(&device.name))
                    .map(|device| (device, None))
                    .collect()
            }
            DeviceChoice::Any | DeviceChoice::Mapping(_) => self.devices.iter().map(|device| (device, None)).collect(),
        };
        if self.devices.is_empty() {
            return Err(TopologyError::NoDevice);
        }
        if listed.is_empty() {
            return Err(TopologyError::NoneLeft { list: choice.to_string(), present: names() });
        }
        let fitting: Vec<_> =
            listed.into_iter().filter(|(device, _)| family == Family::Verbs || device.is_mlx5()).collect();
        if fitting.is_empty() {
            return Err(TopologyError::NoMlx5 { present: names() });
        }
        let mut faults = Vec::new();
        let mut usable = Vec::new();
        for (device, number) in fitting {
            let port = match number {
                None => device.active(),
                Some(number) => {
                    let port = device.ports.iter().find(|port| port.number == number);
                    let numbers = || device.ports.iter().map(|port| port.number.to_string()).collect::<Vec<_>>();
                    let port = port.ok_or_else(|| TopologyError::NoSuchPort {
                        list: choice.to_string(),
                        device: device.name.clone(),
                        port: number,
                        present: numbers().join(", "),
                    })?;
                    if !port.is_active() {
                        faults.push(format!("{}: port {number} is {}", device.name, port.state));
                        continue;
                    }
                    Some(port)
                }
            };
            match (&device.fault, port) {
                (None, Some(port)) => usable.push((device, port)),
                (fault, _) => {
                    let fault = fault.as_deref().unwrap_or("no port is active");
                    faults.push(format!("{}: {fault}", device.name));
                }
            }
        }
        if usable.is_empty() {
            return Err(TopologyError::NoActivePort { devices: faults.join("; ") });
        }
        if usable.iter().any(|(_, port)| port.link_layer == LinkLayer::InfiniBand) {
            usable.retain(|(_, port)| port.link_layer == LinkLayer::InfiniBand);
        }
        Ok(usable)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    fn gpus(addresses: &[&str]) -> Vec<Place> {
        addresses.iter().map(|address| Place::Pci((*address).to_owned())).collect()
    }

    fn names(topology: &Topology, places: &[Place]) -> Vec<String> {
        topology
            .assign(Family::Verbs, &DeviceChoice::Any, places)
            .unwrap()
            .iter()
            .map(|it| it.device.name.clone())
            .collect()
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
        let places = gpus(&[
            "0000:07:00.0",
            "0000:0f:00.0",
            "0000:47:00.0",
            "0000:4e:00.0",
            "0000:87:00.0",
            "0000:90:00.0",
            "0000:b7:00.0",
            "0000:bd:00.0",
        ]);
        // mlx5_4, mlx5_5, mlx5_10 and mlx5_11 are for storage.
        let expected = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"];
        assert_eq!(names(&topology, &places), expected);
        // Two PEs on one GPU use both cards as well.
        let places = gpus(&["0000:47:00.0", "0000:47:00.0", "0000:47:00.0", "0000:07:00.0"]);
        assert_eq!(names(&topology, &places), ["mlx5_2", "mlx5_3", "mlx5_2", "mlx5_0"]);
    }

    #[test]
    fn two_gpus_share_the_card_of_their_switch_where_there_are_four() {
        let tree = Tree::new("hgx-4", include_str!("fixtures/hgx-4-cards.txt"));
        let topology = tree.topology();
        let places = gpus(&["0000:0e:00.0", "0000:13:00.0", "0000:4b:00.0", "0000:51:00.0", "0000:cb:00.0"]);
        assert_eq!(names(&topology, &places), ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1", "mlx5_3"]);
        // Without that card the GPUs of the switch have only far ones, all equally so, and take the one that nobody else has.
        let without: DeviceChoice = "^mlx5_0".parse().unwrap();
        let chosen = topology.assign(Family::Mlx5, &without, &places).unwrap();
        let got: Vec<_> = chosen.iter().map(|it| (it.device.name.as_str(), it.distance)).collect();
        assert_eq!(got[0], ("mlx5_2", Distance::System));
        assert_eq!(got[1], ("mlx5_2", Distance::System));
        assert_eq!((got[2].0, got[3].0, got[4].0), ("mlx5_1", "mlx5_1", "mlx5_3"));
        assert!(got[0].1.consequence().is_some() && got[2].1.consequence().is_none());
    }

    #[test]
    fn a_device_that_is_named_is_as_far_as_the_tree_says() {
        let tree = Tree::new("named", include_str!("fixtures/hgx-4-cards.txt"));
        let topology = tree.topology();
        let gpu = Place::Pci("0000:0e:00.0".into());
        let distances = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_9"].map(|name| topology.distance_to(&gpu, name));
        let far = Distance::System;
        assert_eq!(distances, [Distance::Bridges(3), far, far, far, Distance::Unknown]);
        let tree = Tree::new("named-single", include_str!("fixtures/single-card.txt"));
        assert_eq!(tree.topology().distance_to(&Place::Pci("0000:42:00.0".into()), "mlx5_0"), Distance::HostBridge);
    }

    #[test]
    fn one_card_is_for_everybody() {
        let tree = Tree::new("single-card", include_str!("fixtures/single-card.txt"));
        let topology = tree.topology();
        let places = gpus(&["0000:01:00.0", "0000:42:00.0"]);
        let chosen = topology.assign(Family::Mlx5, &DeviceChoice::Any, &places).unwrap();
        let got: Vec<_> = chosen.iter().map(|it| (it.device.name.as_str(), it.distance)).collect();
        assert_eq!(got, [("mlx5_0", Distance::Node), ("mlx5_0", Distance::HostBridge)]);
        assert_eq!(chosen[0].device.pci_address(), Some("0000:41:00.0"));
        assert_eq!(chosen[0].device.node(), Some(0));
    }

    #[test]
    fn who_has_a_near_card_does_not_lose_it_to_who_has_none() {
        // The first GPU has both cards at its node only, the second has one at its switch.
        let tree = Tree::new(
            "nested",
            "pci 0 pci0000:00/0000:00:01.0/0000:01:00.0\npci 0 pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:00.0/0000:23:00.0\n\
             pci 0 pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0/0000:24:00.0\npci 0 pci0000:40/0000:40:01.0/0000:41:00.0\n\
             rdma mlx5_0 0000:23:00.0 1:CA 1 4:ACTIVE InfiniBand\nrdma mlx5_1 0000:41:00.0 1:CA 1 4:ACTIVE InfiniBand\n",
        );
        assert_eq!(names(&tree.topology(), &gpus(&["0000:01:00.0", "0000:24:00.0"])), ["mlx5_1", "mlx5_0"]);
    }

    #[test]
    fn lists_restrict_the_choice_and_name_what_is_wrong() {
        let tree = Tree::new("lists", include_str!("fixtures/dgx-h100.txt"));
        let topology = tree.topology();
        let assign = |family, list: &str| {
            let places = gpus(&["0000:1b:00.0", "0000:43:00.0"]);
            let chosen = topology.assign(family, &list.parse().unwrap(), &places);
            chosen.map(|chosen| {
                chosen.iter().map(|it| format!("{}/{}", it.device.name, it.port.number)).collect::<Vec<_>>()
            })
        };
        assert_eq!(assign(Family::Mlx5, "mlx5_3,mlx5_4/1").unwrap(), ["mlx5_4/1", "mlx5_3/1"]);
        // Named alone, those on Ethernet are used.
        assert_eq!(assign(Family::Verbs, "mlx5_1,mlx5_2").unwrap(), ["mlx5_1/1", "mlx5_1/1"]);
        assert_eq!(assign(Family::Verbs, "^mlx5_0,mlx5_3").unwrap(), ["mlx5_4/1", "mlx5_5/1"]);
        for (list, words) in [
            (
                "mlx5_0,mlx5_77",
                "OXSHMEM_HCA_DEVICES=mlx5_0,mlx5_77: there is no RDMA device mlx5_77; this machine has mlx5_0, mlx5_1,",
            ),
            ("mlx5_0/2", "mlx5_0 has no port 2; its ports are 1"),
            ("mlx5_2", "mlx5_2: port 1 is DOWN"),
            ("^nothing", "there is no RDMA device nothing"),
            ("mlx5_2/1", "mlx5_2: port 1 is DOWN"),
        ] {
            let error = assign(Family::Verbs, list).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{list}: {error}");
        }
        let tree = Tree::new("only-soft", "rdma rxe0 - 1:CA 1 4:ACTIVE Ethernet\n");
        let error = tree.topology().assign(Family::Mlx5, &DeviceChoice::Any, &[Place::Anywhere]).unwrap_err();
        assert_eq!(error, TopologyError::NoMlx5 { present: "rxe0".into() });
        let error = tree.topology().assign(Family::Verbs, &"^rxe0".parse().unwrap(), &[Place::Anywhere]).unwrap_err();
        assert!(matches!(error, TopologyError::NoneLeft { .. }), "{error}");
    }

    #[test]
    fn mappings_say_exactly_who_uses_what() {
        let choice: DeviceChoice = "0=mlx5_7/2,0000:1B:00.0=mlx5_0,2=rxe0".parse().unwrap();
        let exact =
            |index, place: &str| choice.exact(index, &place.parse().unwrap()).map(|card| card.unwrap().to_string());
        assert_eq!(exact(0, "pci 0000:1b:00.0").unwrap(), "mlx5_7/2");
        assert_eq!(exact(1, "pci 0000:1b:00.0").unwrap(), "mlx5_0");
        assert_eq!(exact(2, "anywhere").unwrap(), "rxe0");
        let error = exact(3, "pci 0000:43:00.0").unwrap_err().to_string();
        assert!(error.contains("gives no device to PE 3 of the node (pci 0000:43:00.0); add 3=DEVICE"), "{error}");
        assert_eq!(DeviceChoice::Any.exact(0, &Place::Anywhere), Ok(None));
    }

    #[test]
    fn choices_parse_back() {
        for text in ["", "mlx5_0", "mlx5_0,mlx5_3/2", "^mlx5_1,mlx5_2", "0=mlx5_0,1=mlx5_1/2,0000:1b:00.0=mlx5_0"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in [
            ",",
            "mlx5_0,",
            "mlx5_0/0",
            "mlx5_0/x",
            "^",
            "^mlx5_0/1",
            "../x",
            "x=mlx5_0",
            "0=",
            "=a",
            "0=a,0=b",
            "0=a,b",
            "1b:00.0=a",
        ] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
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
        let chosen = topology.assign(Family::Verbs, &DeviceChoice::Any, &[Place::Node(0)]).unwrap();
        assert_eq!((chosen[0].device.name.as_str(), chosen[0].port.number), ("mlx4_0", 2));

        let tree = Tree::new("dead", "rdma rxe0 - 1:CA 1 1:DOWN Ethernet\nrdma siw0 - 4:RNIC 1 4:ACTIVE Ethernet\n");
        let error =
            tree.topology().assign(Family::Verbs, &DeviceChoice::Any, &[Place::Anywhere]).unwrap_err().to_string();
        assert!(error.contains("rxe0: port 1 is DOWN; siw0: it is no InfiniBand or RoCE card"), "{error}");
        let error =
            Tree::new("none", "").topology().assign(Family::Verbs, &DeviceChoice::Any, &[Place::Anywhere]).unwrap_err();
        assert_eq!(error, TopologyError::NoDevice);
    }
}
