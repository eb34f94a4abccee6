//! Which device each PE of a node uses.

use super::choice::{Card, DeviceChoice, MAX_CARDS};
use super::error::TopologyError;
use super::machine::{DeviceEntry, Distance, Place, PortEntry, Topology, natural};
use crate::port::LinkLayer;

/// What kind of device is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Any that the kernel's verbs serve.
    Verbs,
    /// Those that mlx5 drives.
    Mlx5,
}

/// A device and port of a PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment<'a> {
    /// The device.
    pub device: &'a DeviceEntry,
    /// Its port.
    pub port: &'a PortEntry,
    /// How far it is.
    pub distance: Distance,
}

impl Assignment<'_> {
    /// Returns the device and the port by name and number.
    #[must_use]
    pub fn card(&self) -> Card {
        Card { device: self.device.name.clone(), port: Some(self.port.number) }
    }
}

impl Topology {
    /// Returns which devices and ports each PE of a node uses: at least one, in the order of the
    /// devices' names.
    ///
    /// The first that a PE gets is one of those nearest to its place, and of these the one that
    /// fewest PEs have got. PEs whose nearest device is nearer choose first, those with lower
    /// numbers before others. Where there are ports on InfiniBand and on Ethernet, those on
    /// InfiniBand are used, since the PEs of a job must meet on one network. Every PE that sees the
    /// same devices gets the same answer.
    ///
    /// Further ones are given in rounds, in which PEs choose in the same order. With `per_pe` (1 to
    /// [`MAX_CARDS`]) each PE gets so many, by the rule of the first, none twice. Without it a PE
    /// gets a further one only if that is exactly as near as its first, below the same root port of
    /// the CPU ([`Distance::Bridges`], so a GPU's), and no PE has got it; at most [`MAX_CARDS`] in
    /// all. Verbs ([`Family::Verbs`]) drive one device per PE: there it is always one.
    ///
    /// A mapping ([`DeviceChoice::exact`]) is not for this function, and counts as no restriction.
    ///
    /// # Errors
    /// No device can be used, or fewer than `per_pe`.
    pub fn assign(
        &self,
        family: Family,
        choice: &DeviceChoice,
        per_pe: Option<u32>,
        places: &[Place],
    ) -> Result<Vec<Vec<Assignment<'_>>>, TopologyError> {
        let candidates = self.candidates(family, choice)?;
        let rounds = match (family, per_pe) {
            (Family::Verbs, _) => 1,
            (Family::Mlx5, None) => MAX_CARDS,
            (Family::Mlx5, Some(wanted)) => {
                let rounds = wanted as usize;
                if candidates.len() < rounds {
                    let present: Vec<_> = candidates.iter().map(|(device, _)| device.name.as_str()).collect();
                    let (count, present) = (present.len(), present.join(", "));
                    return Err(TopologyError::TooFewDevices { wanted, count, present });
                }
                rounds
            }
        };
        let far = |place: &Place| -> Vec<Distance> {
            candidates.iter().map(|(device, _)| self.distance(place, device)).collect()
        };
        let distances: Vec<Vec<Distance>> = places.iter().map(far).collect();
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|pe| distances[*pe].iter().min());
        let mut users = vec![0u32; candidates.len()];
        let mut chosen: Vec<Vec<usize>> = vec![Vec::new(); places.len()];
        for _ in 0..rounds {
            for &pe in &order {
                let far = &distances[pe];
                let mut others = (0..candidates.len()).filter(|at| !chosen[pe].contains(at));
                // The first among equals.
                let next = match chosen[pe].first() {
                    Some(&first) if per_pe.is_none() => others
                        .find(|&at| users[at] == 0 && far[at] == far[first] && matches!(far[at], Distance::Bridges(_))),
                    _ => others.min_by_key(|&at| (far[at], users[at])),
                };
                if let Some(at) = next {
                    users[at] += 1;
                    chosen[pe].push(at);
                }
            }
        }
        let assignments = |(pe, chosen): (usize, Vec<usize>)| {
            let assignment = |at: usize| {
                let (device, port) = candidates[at];
                Assignment { device, port, distance: distances[pe][at] }
            };
            let mut assignments: Vec<_> = chosen.into_iter().map(assignment).collect();
            // A list may name devices in any order.
            assignments.sort_by(|a, b| {
                natural(&a.device.name, &b.device.name).then_with(|| a.port.number.cmp(&b.port.number))
            });
            assignments
        };
        Ok(chosen.into_iter().enumerate().map(assignments).collect())
    }

    /// Returns the devices and ports among which PEs may choose: at least one, none twice; of a
    /// list in its order, otherwise in the order of names.
    ///
    /// # Errors
    /// No device can be used.
    pub fn candidates(
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
        // Each device with the requested port.
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
                // A list may name one twice.
                (None, Some(port)) if usable.contains(&(device, port)) => {}
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
    use proptest::prelude::*;

    use super::super::sysfs_tree::Tree;
    use super::*;

    fn gpus(addresses: &[&str]) -> Vec<Place> {
        addresses.iter().map(|address| Place::Pci((*address).to_owned())).collect()
    }

    /// Returns where each PE has one.
    fn single<'a>(
        assigned: Result<Vec<Vec<Assignment<'a>>>, TopologyError>,
    ) -> Result<Vec<Assignment<'a>>, TopologyError> {
        let assigned = assigned?;
        assert!(assigned.iter().all(|of_one| of_one.len() == 1), "{assigned:?}");
        Ok(assigned.concat())
    }

    fn names(topology: &Topology, places: &[Place]) -> Vec<String> {
        let assigned = topology.assign(Family::Verbs, &DeviceChoice::Any, None, places);
        single(assigned).unwrap().iter().map(|it| it.device.name.clone()).collect()
    }

    /// Returns each PE's devices with mlx5, joined by `+`.
    fn several(topology: &Topology, list: &str, per_pe: Option<u32>, places: &[Place]) -> Vec<String> {
        let assigned = topology.assign(Family::Mlx5, &list.parse().unwrap(), per_pe, places).unwrap();
        let joined = |of_one: &Vec<Assignment<'_>>| {
            of_one.iter().map(|it| it.device.name.as_str()).collect::<Vec<_>>().join("+")
        };
        assigned.iter().map(joined).collect()
    }

    /// GPUs of the DGX A100, two at each switch.
    const DGX_A100: [&str; 8] = [
        "0000:07:00.0",
        "0000:0f:00.0",
        "0000:47:00.0",
        "0000:4e:00.0",
        "0000:87:00.0",
        "0000:90:00.0",
        "0000:b7:00.0",
        "0000:bd:00.0",
    ];

    /// GPUs of the DGX H100, one at each switch.
    const DGX_H100: [&str; 8] = [
        "0000:1b:00.0",
        "0000:43:00.0",
        "0000:52:00.0",
        "0000:61:00.0",
        "0000:9d:00.0",
        "0000:c3:00.0",
        "0000:d1:00.0",
        "0000:df:00.0",
    ];

    #[test]
    fn each_gpu_of_a_dgx_h100_gets_the_card_at_its_switch() {
        let tree = Tree::new("dgx-h100", include_str!("fixtures/dgx-h100.txt"));
        let topology = tree.topology();
        let places = gpus(&DGX_H100);
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
        let places = gpus(&DGX_A100);
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
        // Without that card the GPUs of the switch have only far ones, all equally so, and take the
        // one that no other PE has.
        let without: DeviceChoice = "^mlx5_0".parse().unwrap();
        let chosen = single(topology.assign(Family::Mlx5, &without, None, &places)).unwrap();
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
        let chosen = single(topology.assign(Family::Mlx5, &DeviceChoice::Any, None, &places)).unwrap();
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
             rdma mlx5_0 0000:23:00.0 mlx5_core 1:CA 1 4:ACTIVE InfiniBand\nrdma mlx5_1 0000:41:00.0 mlx5_core 1:CA 1 4:ACTIVE InfiniBand\n",
        );
        assert_eq!(names(&tree.topology(), &gpus(&["0000:01:00.0", "0000:24:00.0"])), ["mlx5_1", "mlx5_0"]);
    }

    #[test]
    fn lists_restrict_the_choice_and_name_what_is_wrong() {
        let tree = Tree::new("lists", include_str!("fixtures/dgx-h100.txt"));
        let topology = tree.topology();
        let assign = |family, list: &str| {
            let places = gpus(&["0000:1b:00.0", "0000:43:00.0"]);
            let chosen = topology.assign(family, &list.parse().unwrap(), None, &places);
            single(chosen).map(|chosen| {
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
        let tree = Tree::new("only-soft", "rdma rxe0 - - 1:CA 1 4:ACTIVE Ethernet\n");
        let error = tree.topology().assign(Family::Mlx5, &DeviceChoice::Any, None, &[Place::Anywhere]).unwrap_err();
        assert_eq!(error, TopologyError::NoMlx5 { present: "rxe0".into() });
        let error =
            tree.topology().assign(Family::Verbs, &"^rxe0".parse().unwrap(), None, &[Place::Anywhere]).unwrap_err();
        assert!(matches!(error, TopologyError::NoneLeft { .. }), "{error}");
    }

    #[test]
    fn on_one_socket_the_root_port_decides() {
        let tree = Tree::new("single-socket", include_str!("fixtures/single-socket.txt"));
        let topology = tree.topology();
        let places = gpus(&["0000:01:00.0", "0000:21:00.0", "0000:41:00.0"]);
        // The first GPU is at the host bridge of the card; for the others both cards are on the
        // node.
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
        // A bus address that is not there, as in a container, is not an error.
        assert_eq!(names(&topology, &gpus(&["00ff:00:00.0"])), ["mlx5_ib0"]);
    }

    #[test]
    fn software_devices_are_spread_and_ports_must_be_active() {
        let tree =
            Tree::new("soft", "rdma rxe1 - - 1:CA 1 4:ACTIVE Ethernet\nrdma rxe0 - - 1:CA 1 4:ACTIVE Ethernet\n");
        let topology = tree.topology();
        assert_eq!(names(&topology, &vec![Place::Anywhere; 3]), ["rxe0", "rxe1", "rxe0"]);

        let tree = Tree::new(
            "down",
            "rdma rxe0 - - 1:CA 1 1:DOWN Ethernet\nrdma siw0 - - 4:RNIC 1 4:ACTIVE Ethernet\nrdma mlx4_0 - - 1:CA 1 2:INIT InfiniBand 2 4:ACTIVE InfiniBand\n",
        );
        let topology = tree.topology();
        let chosen = single(topology.assign(Family::Verbs, &DeviceChoice::Any, None, &[Place::Node(0)])).unwrap();
        assert_eq!((chosen[0].device.name.as_str(), chosen[0].port.number), ("mlx4_0", 2));

        let tree =
            Tree::new("dead", "rdma rxe0 - - 1:CA 1 1:DOWN Ethernet\nrdma siw0 - - 4:RNIC 1 4:ACTIVE Ethernet\n");
        let error = tree
            .topology()
            .assign(Family::Verbs, &DeviceChoice::Any, None, &[Place::Anywhere])
            .unwrap_err()
            .to_string();
        assert!(error.contains("rxe0: port 1 is DOWN; siw0: it is no InfiniBand or RoCE card"), "{error}");
        let error = Tree::new("none", "")
            .topology()
            .assign(Family::Verbs, &DeviceChoice::Any, None, &[Place::Anywhere])
            .unwrap_err();
        assert_eq!(error, TopologyError::NoDevice);
    }

    #[test]
    fn a_gpu_that_has_two_cards_to_itself_gets_both() {
        let tree = Tree::new("several-a100", include_str!("fixtures/dgx-a100.txt"));
        let topology = tree.topology();
        let one_per_switch: Vec<&str> = DGX_A100.iter().step_by(2).copied().collect();
        let pairs = ["mlx5_0+mlx5_1", "mlx5_2+mlx5_3", "mlx5_6+mlx5_7", "mlx5_8+mlx5_9"];
        assert_eq!(several(&topology, "", None, &gpus(&one_per_switch)), pairs);
        assert_eq!(several(&topology, "", None, &gpus(&DGX_A100[4..5])), ["mlx5_6+mlx5_7"]);
        // With a PE on each GPU nothing is left over.
        let each = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"];
        assert_eq!(several(&topology, "", None, &gpus(&DGX_A100)), each);
        // Nor with three on one; the fourth has a switch to itself.
        let shared = gpus(&["0000:07:00.0", "0000:07:00.0", "0000:07:00.0", "0000:47:00.0"]);
        assert_eq!(several(&topology, "", None, &shared), ["mlx5_0", "mlx5_1", "mlx5_0", "mlx5_2+mlx5_3"]);
        // On request, every PE gets both.
        let both: Vec<_> = pairs.iter().flat_map(|pair| [*pair; 2]).collect();
        assert_eq!(several(&topology, "", Some(2), &gpus(&DGX_A100)), both);
        assert_eq!(several(&topology, "", Some(1), &gpus(&one_per_switch)), ["mlx5_0", "mlx5_2", "mlx5_6", "mlx5_8"]);
        // Those on Ethernet are left out as ever, and far ones are taken only on request: in turn,
        // by the PE that has got the fewest.
        let four = several(&topology, "", Some(4), &gpus(&["0000:07:00.0", "0000:47:00.0"]));
        assert_eq!(four, ["mlx5_0+mlx5_1+mlx5_6+mlx5_8", "mlx5_2+mlx5_3+mlx5_7+mlx5_9"]);
        let list = "mlx5_9,mlx5_1,mlx5_0";
        assert_eq!(several(&topology, list, None, &gpus(&["0000:0f:00.0"])), ["mlx5_0+mlx5_1"]);
        assert_eq!(several(&topology, list, None, &gpus(&["0000:bd:00.0"])), ["mlx5_9"]);
        // In the order of names, whichever was found first.
        assert_eq!(several(&topology, list, Some(2), &gpus(&["0000:bd:00.0"])), ["mlx5_1+mlx5_9"]);
        assert_eq!(several(&topology, "mlx5_4,mlx5_10", Some(2), &gpus(&["0000:07:00.0"])), ["mlx5_4+mlx5_10"]);
        assert_eq!(several(&topology, "^mlx5_0", None, &gpus(&["0000:07:00.0"])), ["mlx5_1"]);
    }

    #[test]
    fn who_is_not_on_a_gpu_or_has_one_card_at_its_switch_gets_one() {
        let tree = Tree::new("one-h100", include_str!("fixtures/dgx-h100.txt"));
        let topology = tree.topology();
        assert_eq!(several(&topology, "", None, &gpus(&DGX_H100[..2])), ["mlx5_0", "mlx5_3"]);
        assert_eq!(several(&topology, "", Some(2), &gpus(&DGX_H100[..2])), ["mlx5_0+mlx5_4", "mlx5_3+mlx5_5"]);
        let cpus = [Place::Node(0), Place::Node(1), Place::Anywhere];
        assert_eq!(several(&topology, "", None, &cpus), ["mlx5_0", "mlx5_6", "mlx5_3"]);
        assert_eq!(several(&topology, "", Some(2), &cpus[1..2]), ["mlx5_6+mlx5_9"]);

        let tree = Tree::new("one-hgx-4", include_str!("fixtures/hgx-4-cards.txt"));
        let topology = tree.topology();
        assert_eq!(several(&topology, "", None, &gpus(&["0000:0e:00.0", "0000:4b:00.0"])), ["mlx5_0", "mlx5_1"]);
        let places = gpus(&["0000:0e:00.0", "0000:13:00.0"]);
        assert_eq!(several(&topology, "", Some(2), &places), ["mlx5_0+mlx5_1", "mlx5_0+mlx5_2"]);

        // Equally near, but not below one port of the CPU.
        let tree = Tree::new("one-vm", include_str!("fixtures/vm-flat.txt"));
        assert_eq!(several(&tree.topology(), "", None, &gpus(&["0001:00:00.0"])), ["mlx5_ib0"]);
        assert_eq!(several(&tree.topology(), "", Some(3), &gpus(&["0001:00:00.0"])), ["mlx5_ib0+mlx5_ib1+mlx5_ib2"]);
        let tree = Tree::new("one-socket", include_str!("fixtures/single-socket.txt"));
        assert_eq!(several(&tree.topology(), "", None, &gpus(&["0000:01:00.0"])), ["mlx5_0"]);
        assert_eq!(several(&tree.topology(), "", Some(2), &gpus(&["0000:01:00.0"])), ["mlx5_0+mlx5_1"]);

        // Verbs drive one, whatever there is.
        let tree = Tree::new("one-verbs", include_str!("fixtures/dgx-a100.txt"));
        for per_pe in [None, Some(2), Some(99)] {
            let assigned = tree.topology();
            let assigned = single(assigned.assign(Family::Verbs, &DeviceChoice::Any, per_pe, &gpus(&DGX_A100[..1])));
            assert_eq!(assigned.unwrap()[0].card().to_string(), "mlx5_0/1");
        }
    }

    #[test]
    fn a_pe_never_gets_more_than_it_can_drive_nor_one_twice() {
        let mut machine = "pci 0 pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0\n".to_owned();
        for card in 0..6 {
            let bus = 0x10 + card;
            machine +=
                &format!("pci 0 pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:0{}.0/0000:{bus:x}:00.0\n", card + 1);
            machine += &format!(
                "rdma mlx5_{card} 0000:{bus:x}:00.0 mlx5_core 1:CA 1 4:ACTIVE InfiniBand 2 4:ACTIVE InfiniBand\n"
            );
        }
        let tree = Tree::new("six", &machine);
        let topology = tree.topology();
        let gpu = gpus(&["0000:03:00.0", "0000:03:00.0"]);
        assert_eq!(several(&topology, "", None, &gpu[..1]), ["mlx5_0+mlx5_1+mlx5_2+mlx5_3"]);
        assert_eq!(several(&topology, "", None, &gpu), ["mlx5_0+mlx5_2+mlx5_4", "mlx5_1+mlx5_3+mlx5_5"]);
        // A list that names one twice, or ports of one.
        assert_eq!(several(&topology, "mlx5_5,mlx5_5,mlx5_5/1", None, &gpu[..1]), ["mlx5_5"]);
        let ports = "mlx5_1/2,mlx5_1/1".parse().unwrap();
        let assigned = topology.assign(Family::Mlx5, &ports, Some(2), &gpu[..1]).unwrap();
        assert_eq!(assigned[0].iter().map(|it| it.port.number).collect::<Vec<_>>(), [1, 2]);
        // Where one below the switch is nearer than others, those are not equals.
        let nearer = "pci 0 pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1\n\
                      rdma mlx5_9 0000:03:00.1 mlx5_core 1:CA 1 4:ACTIVE InfiniBand\n";
        let tree = Tree::new("nearer", &(machine + nearer));
        assert_eq!(several(&tree.topology(), "", None, &gpu[..1]), ["mlx5_9"]);
    }

    #[test]
    fn fewer_devices_than_asked_for_are_an_error() {
        let places = gpus(&["0000:01:00.0"]);
        let refused = |name: &str, tree: &str, list: &str, per_pe| {
            let tree = Tree::new(name, tree);
            tree.topology().assign(Family::Mlx5, &list.parse().unwrap(), Some(per_pe), &places).unwrap_err().to_string()
        };
        let error = refused("few-single", include_str!("fixtures/single-card.txt"), "", 2);
        assert_eq!(
            error,
            "OXSHMEM_HCA_DEVICES_PER_PE=2, but 1 RDMA device of this machine can be used (mlx5_0); lower it to 1, or see with oxshmem-info what \
             keeps others from use"
        );
        let error = refused("few-listed", include_str!("fixtures/dgx-a100.txt"), "mlx5_0,mlx5_3", 3);
        assert!(
            error.contains("2 RDMA devices of this machine can be used (mlx5_0, mlx5_3); lower it to 2"),
            "{error}"
        );
        let error = refused("few-infiniband", include_str!("fixtures/dgx-a100.txt"), "mlx5_0,mlx5_4", 2);
        assert!(error.contains("1 RDMA device of this machine can be used (mlx5_0)"), "{error}");
    }

    #[test]
    fn assignments_keep_their_promises() {
        let tree = Tree::new("promises", include_str!("fixtures/dgx-a100.txt"));
        let topology = tree.topology();
        let pes = proptest::collection::vec(0..DGX_A100.len(), 1..20);
        proptest!(|(pes in pes, per_pe in proptest::option::of(1..=MAX_CARDS as u32))| {
            let places = gpus(&pes.iter().map(|gpu| DGX_A100[*gpu]).collect::<Vec<_>>());
            let first = single(topology.assign(Family::Mlx5, &DeviceChoice::Any, Some(1), &places)).unwrap();
            let assigned = topology.assign(Family::Mlx5, &DeviceChoice::Any, per_pe, &places).unwrap();
            prop_assert_eq!(assigned.len(), places.len());
            let users = |it: &Assignment<'_>| assigned.iter().flatten().filter(|other| other.device == it.device).count();
            for (of_one, first) in assigned.iter().zip(&first) {
                prop_assert!(of_one.contains(first));
                prop_assert!(of_one.windows(2).all(|pair| natural(&pair[0].device.name, &pair[1].device.name).is_lt()));
                let own = |it: &Assignment<'_>| users(it) == 1 && it.distance == first.distance;
                match per_pe {
                    Some(count) => prop_assert_eq!(of_one.len(), count as usize),
                    None => prop_assert!(of_one.len() == 1 || of_one.iter().all(own)),
                }
            }
        });
    }
}
