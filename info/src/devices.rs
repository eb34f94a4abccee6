//! GPUs and RDMA cards, and which cards fall to which GPU.

use std::fmt::Write as _;
use std::time::Duration;

use oxshmem::Config;
use oxshmem_hca::provider::LinkLayer;
use oxshmem_hca::topology::{Card, Distance, Place, Topology, TopologyError};
use serde::Serialize;

use crate::doctor::{CudaFact, Facts, Gpu, Guarded, Root, gid_table};
use crate::shares::shares;

/// What the machine has.
#[derive(Debug, Serialize)]
pub struct Devices {
    gpus: Vec<GpuEntry>,
    /// Why there is no GPU, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_gpu: Option<String>,
    cards: Vec<CardEntry>,
    /// Why no card falls to GPUs, if there are cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_card: Option<String>,
}

#[derive(Debug, Serialize)]
struct GpuEntry {
    #[serde(flatten)]
    gpu: Gpu,
    node: Option<u32>,
    /// The cards that fall to it, if all GPUs have one PE each.
    cards: Vec<ShareEntry>,
    /// Why none does, where other GPUs have some.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_card: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShareEntry {
    card: String,
    distance: String,
}

#[derive(Debug, Serialize)]
struct CardEntry {
    name: String,
    driver: Option<String>,
    pci: Option<String>,
    node: Option<u32>,
    firmware: Option<String>,
    fault: Option<String>,
    ports: Vec<PortEntry>,
}

#[derive(Debug, Serialize)]
struct PortEntry {
    number: u8,
    link_layer: &'static str,
    state: String,
    rate: Option<String>,
    gids: Vec<GidEntry>,
}

#[derive(Debug, Serialize)]
struct GidEntry {
    index: u32,
    gid: String,
    kind: String,
}

impl Devices {
    /// Looks at this machine.
    pub fn look(root: &Root, config: &Config, limit: Duration) -> Self {
        let facts: Facts<CudaFact> = Guarded::start(&["cuda"], limit).finish();
        let topology = Topology::read(&root.at("/sys"));
        let machine = root.machine(config);
        let found: Vec<Gpu> = facts
            .facts
            .iter()
            .filter_map(|fact| if let CudaFact::Gpu(gpu) = fact { Some(gpu.clone()) } else { None })
            .collect();
        let no_gpu = found.is_empty().then(|| no_gpu(&facts));
        let places: Vec<Place> = match found.as_slice() {
            [] => vec![Place::of_this_thread()],
            gpus => gpus.iter().map(|gpu| Place::Pci(gpu.pci.clone())).collect(),
        };
        let known = machine.as_ref().ok().filter(|topology| !topology.devices().is_empty());
        let shared = known.map(|topology| shares(topology, config, &places)).unwrap_or_default();
        let no_pe_has_a_card = shared.iter().all(Result::is_err);
        let error = |share: Option<&Result<Vec<Card>, TopologyError>>| Some(share?.as_ref().err()?.to_string());
        let wrong = machine.as_ref().err().filter(|_| config.topology().is_some()).cloned();
        let no_card = wrong.or_else(|| error(shared.first().filter(|_| no_pe_has_a_card)));
        let gpus = found.into_iter().enumerate().map(|(index, gpu)| {
            let node = root.text(&format!("/sys/bus/pci/devices/{}/numa_node", gpu.pci));
            let entry = |card: &Card| {
                let distance =
                    known.zip(places.get(index)).map(|(known, place)| known.distance_to(place, &card.device));
                ShareEntry { card: card.to_string(), distance: distance.unwrap_or(Distance::Unknown).to_string() }
            };
            GpuEntry {
                node: node.ok().and_then(|text| text.parse().ok()),
                cards: shared.get(index).into_iter().flatten().flatten().map(entry).collect(),
                no_card: error(shared.get(index).filter(|_| !no_pe_has_a_card)),
                gpu,
            }
        });
        let gpus = gpus.collect();
        let cards = topology.as_ref().map(|topology| cards(topology, root)).unwrap_or_default();
        Self { gpus, no_gpu, cards, no_card }
    }

    /// Returns the number of GPUs that this process sees.
    pub fn gpu_count(&self) -> usize {
        self.gpus.len()
    }

    /// Returns the number of ConnectX cards with an active port.
    pub fn usable_mlx5(&self) -> usize {
        self.cards.iter().filter(|card| card.fault.is_none() && card.driver.as_deref() == Some("mlx5_core")).count()
    }

    /// Returns it as text for people.
    pub fn text(&self) -> String {
        let mut text = String::from("GPUs:\n");
        let node = |node: Option<u32>| node.map_or(String::new(), |node| format!(", NUMA node {node}"));
        // Writing to a string cannot fail.
        if let Some(reason) = &self.no_gpu {
            let _ = writeln!(text, "  none: {reason}");
        }
        for GpuEntry { gpu, node: at, cards, no_card } in &self.gpus {
            let card = |ShareEntry { card, distance }: &ShareEntry| format!("; card {card}, {distance}");
            let none = no_card.as_ref().map(|reason| format!("; no card: {reason}"));
            let card: String = cards.iter().map(card).chain(none).collect();
            let gib = gpu.memory >> 30;
            let _ = writeln!(
                text,
                "  GPU {}  {}, {gib} GiB, sm_{}, {}{}{card}",
                gpu.ordinal,
                gpu.name,
                gpu.architecture,
                gpu.pci,
                node(*at)
            );
        }
        text += "\nRDMA devices:\n";
        if self.cards.is_empty() {
            text += "  none: the software HCA serves PEs of this machine\n";
        }
        if let Some(reason) = &self.no_card {
            let _ = writeln!(text, "  none is used: {reason}");
        }
        for card in &self.cards {
            let parts = [
                card.driver.clone(),
                card.pci.clone(),
                card.firmware.as_ref().map(|version| format!("firmware {version}")),
            ];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            let fault = card.fault.as_ref().map(|fault| format!("; {fault}")).unwrap_or_default();
            let _ = writeln!(text, "  {}  {}{}{fault}", card.name, parts.join(", "), node(card.node));
            for port in &card.ports {
                let rate = port.rate.as_deref().unwrap_or("rate unknown");
                let _ = writeln!(text, "    port {}  {}, {}, {rate}", port.number, port.state, port.link_layer);
                for GidEntry { index, gid, kind } in &port.gids {
                    let _ = writeln!(text, "      GID {index}  {gid}  {kind}");
                }
            }
        }
        text
    }
}

/// Returns why the driver told of no GPU.
fn no_gpu(facts: &Facts<CudaFact>) -> String {
    let said = facts.facts.iter().find_map(|fact| match fact {
        CudaFact::NoLibrary { reason } => Some(format!("no NVIDIA driver: {reason}")),
        CudaFact::MissingSymbols { names } => Some(format!("libcuda lacks {}", names.join(", "))),
        CudaFact::Started { error } => error.clone(),
        _ => None,
    });
    said.or_else(|| facts.end.fault()).unwrap_or_else(|| "this process sees none (CUDA_VISIBLE_DEVICES)".to_owned())
}

fn cards(topology: &Topology, root: &Root) -> Vec<CardEntry> {
    let entry = |device: &oxshmem_hca::topology::DeviceEntry| {
        let folder = format!("/sys/class/infiniband/{}", device.name);
        let ports = device.ports.iter().map(|port| {
            let gids = gid_table(root, &device.name, port.number).unwrap_or_default().into_iter();
            PortEntry {
                number: port.number,
                link_layer: if port.link_layer == LinkLayer::Ethernet { "Ethernet" } else { "InfiniBand" },
                state: port.state.clone(),
                rate: root.text(&format!("{folder}/ports/{}/rate", port.number)).ok(),
                gids: gids
                    .map(|gid| GidEntry { index: gid.index, gid: gid.address.to_string(), kind: gid.kind })
                    .collect(),
            }
        });
        CardEntry {
            name: device.name.clone(),
            driver: device.driver.clone(),
            pci: device.pci_address().map(str::to_owned),
            node: device.node(),
            // Devices in software have none.
            firmware: root.text(&format!("{folder}/fw_ver")).ok().filter(|version| !version.is_empty()),
            fault: device.fault.clone(),
            ports: ports.collect(),
        }
    };
    topology.devices().iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cards_of_a_gpu_are_printed_or_why_it_has_none() {
        let entry = |ordinal, cards: &[&str], no_card: Option<&str>| GpuEntry {
            gpu: Gpu { ordinal, pci: format!("0000:0{ordinal}:00.0"), ..Gpu::default() },
            node: Some(1),
            cards: cards.iter().map(|card| ShareEntry { card: (*card).to_owned(), distance: "near".into() }).collect(),
            no_card: no_card.map(str::to_owned),
        };
        let gpus =
            vec![entry(0, &["mlx5_0/1", "mlx5_1/1"], None), entry(1, &[], Some("unmapped")), entry(2, &[], None)];
        let text = Devices { gpus, no_gpu: None, cards: Vec::new(), no_card: None }.text();
        let ends: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("NUMA node 1")).map(|(_, end)| end).collect();
        assert_eq!(ends, ["; card mlx5_0/1, near; card mlx5_1/1, near", "; no card: unmapped", ""], "{text}");
    }
}
