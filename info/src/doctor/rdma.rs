//! RDMA cards: the kernel's drivers and devices, their nodes, ports and addresses, the libraries,
//! and which cards fall to which GPU.

use std::net::Ipv6Addr;

use oxshmem::config::{Choice, Config};
use oxshmem_hca::provider::LinkLayer;
use oxshmem_hca::topology::{
    Card, DeviceChoice, DeviceEntry, Distance, Family, MAX_CARDS, Place, PortEntry, Topology, TopologyError,
};

use super::cuda::Gpu;
use super::finding::{Finding, Outcome, Want, Wants};
use super::guard::Facts;
use super::libraries::{Library, LibraryFact};
use super::root::{Missing, Root};
use crate::shares::shares;

/// Mellanox's PCI vendor number, which NVIDIA's cards have kept.
const MELLANOX: &str = "0x15b3";

/// Returns whether a ConnectX is on the bus.
pub fn on_bus(root: &Root, wants: Wants) -> Finding {
    const PROBE: &str = "rdma.bus";
    let folder = "/sys/bus/pci/devices";
    let text = |address: &str, name: &str| root.text(&format!("{folder}/{address}/{name}")).unwrap_or_default();
    let cards: Vec<String> = match root.entries(folder) {
        Ok(all) => all
            .into_iter()
            // Network controllers: 0x0200 Ethernet, 0x0207 InfiniBand.
            .filter(|address| text(address, "vendor") == MELLANOX && text(address, "class").starts_with("0x02"))
            .collect(),
        Err(Missing::Absent) => Vec::new(),
        Err(missing) => {
            return Finding::bad(PROBE, Outcome::Warn, format!("{folder} cannot be read: {missing}"), "mount sysfs");
        }
    };
    if cards.is_empty() {
        return match wants.card.absent() {
            Outcome::Fail if wants.mlx5 => Finding::bad(
                PROBE,
                Outcome::Fail,
                "no ConnectX or BlueField on the PCI bus",
                "OXSHMEM_HCA=soft needs no card, verbs takes other RDMA cards; a virtual machine or container must be given the card",
            ),
            _ => Finding::skip(PROBE, "no ConnectX or BlueField on the PCI bus"),
        };
    }
    let driver = |address: &String| root.link(&format!("{folder}/{address}/driver"));
    let listed: Vec<_> = cards
        .iter()
        .map(|address| format!("{address} (driver {})", driver(address).as_deref().unwrap_or("none")))
        .collect();
    if cards.iter().all(|address| driver(address).as_deref() != Some("mlx5_core")) {
        return Finding::bad(
            PROBE,
            wants.card.broken(),
            format!("no card is driven by mlx5_core: {}", listed.join(", ")),
            "modprobe mlx5_core; vfio-pci keeps a card from it",
        );
    }
    Finding::ok(PROBE, listed.join(", "))
}

/// Returns the kernel's devices.
pub fn devices(topology: &Result<Topology, String>, root: &Root, wants: Wants) -> Vec<Finding> {
    const PROBE: &str = "rdma.devices";
    let topology = match topology {
        Ok(topology) => topology,
        Err(reason) => {
            let reason = format!("/sys/class/infiniband cannot be read: {reason}");
            return vec![Finding::bad(PROBE, wants.card.broken().max(Outcome::Warn), reason, "mount sysfs")];
        }
    };
    if topology.devices().is_empty() {
        return vec![match wants.card.absent() {
            Outcome::Fail => Finding::bad(
                PROBE,
                Outcome::Fail,
                TopologyError::NoDevice.to_string(),
                "modprobe mlx5_ib (or another card's driver), rdma link add for Soft-RoCE",
            ),
            _ => Finding::skip(PROBE, "the kernel has no RDMA device: jobs on one machine use the software HCA"),
        }];
    }
    let usable = topology.devices().iter().any(|device| device.fault.is_none());
    let describe = |device: &DeviceEntry| {
        let folder = format!("/sys/class/infiniband/{}", device.name);
        let attribute = |name: &str| root.text(&format!("{folder}/{name}")).ok().filter(|text| !text.is_empty());
        let mut parts = Vec::new();
        parts.extend(attribute("hca_type"));
        parts.extend(attribute("fw_ver").map(|version| format!("firmware {version}")));
        parts.extend(device.driver.clone());
        parts.extend(device.pci_address().map(str::to_owned));
        parts.extend(device.node().map(|node| format!("NUMA node {node}")));
        if parts.is_empty() { "a device in software".to_owned() } else { parts.join(", ") }
    };
    topology
        .devices()
        .iter()
        .map(|device| {
            let finding = match &device.fault {
                None => Finding::ok(PROBE, describe(device)),
                Some(fault) if usable => Finding::skip(PROBE, format!("{fault}; others are used")),
                Some(fault) => Finding::bad(
                    PROBE,
                    wants.card.broken(),
                    fault.clone(),
                    "check the cable and the switch; on InfiniBand the subnet manager (opensm), on Ethernet `ip link set DEV up`",
                ),
            };
            finding.of(&device.name)
        })
        .collect()
}

/// Returns the kernel's modules that user space talks to.
pub fn modules(root: &Root, topology: Option<&Topology>, wants: Wants) -> Finding {
    const PROBE: &str = "rdma.modules";
    let any = topology.is_some_and(|topology| !topology.devices().is_empty());
    if !any {
        return Finding::skip(PROBE, "no RDMA device");
    }
    // Built into the kernel they may have no folder; then the class is there.
    if root.exists("/sys/module/ib_uverbs") || root.exists("/sys/class/infiniband_verbs") {
        return Finding::ok(PROBE, "ib_uverbs is there");
    }
    Finding::bad(PROBE, wants.card.broken(), "the kernel module ib_uverbs is not loaded", "modprobe ib_uverbs")
}

/// Returns the device nodes of the devices, and whether this user may use them.
pub fn nodes(root: &Root, topology: Option<&Topology>, wants: Wants) -> Vec<Finding> {
    const PROBE: &str = "rdma.nodes";
    let class = "/sys/class/infiniband_verbs";
    let known: Vec<&str> =
        topology.iter().flat_map(|topology| topology.devices()).map(|device| device.name.as_str()).collect();
    if known.is_empty() {
        return vec![Finding::skip(PROBE, "no RDMA device")];
    }
    let nodes = root.entries(class).unwrap_or_default();
    let mut findings = Vec::new();
    for device in known {
        let own =
            nodes.iter().find(|node| root.text(&format!("{class}/{node}/ibdev")).is_ok_and(|name| name == device));
        let Some(node) = own else {
            findings.push(
                Finding::bad(
                    PROBE,
                    wants.card.broken(),
                    "it has no node for user space in /sys/class/infiniband_verbs",
                    "modprobe ib_uverbs",
                )
                .of(device),
            );
            continue;
        };
        let node = format!("/dev/infiniband/{node}");
        let finding = match root.usable(&node) {
            Ok(()) => Finding::ok(PROBE, format!("{node} can be read and written")),
            Err(Missing::Absent) => Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("{node} does not exist"),
                "start the container with --device /dev/infiniband; on a host, udevadm trigger makes the node",
            ),
            Err(Missing::Denied) => Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("this user may not read and write {node}"),
                format!("chmod a+rw {node}; for good: a udev rule (rdma-core has one), or the group that owns it"),
            ),
            Err(Missing::Other(reason)) => Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("{node} cannot be opened: {reason}"),
                "in a container the control group must allow the device (--device /dev/infiniband)",
            ),
        };
        findings.push(finding.of(device));
    }
    findings
}

/// Returns the state of every port.
pub fn ports(root: &Root, topology: Option<&Topology>, wants: Wants) -> Vec<Finding> {
    const PROBE: &str = "rdma.port";
    let Some(topology) = topology.filter(|topology| !topology.devices().is_empty()) else {
        return vec![Finding::skip(PROBE, "no RDMA device")];
    };
    let all = topology.devices().iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let any = all.clone().any(|(_, port)| port.is_active());
    let mut findings = Vec::new();
    for (device, port) in all {
        let folder = format!("/sys/class/infiniband/{}/ports/{}", device.name, port.number);
        let rate = root.text(&format!("{folder}/rate")).unwrap_or_else(|missing| format!("rate unknown ({missing})"));
        let layer = layer_name(port.link_layer);
        let finding = if port.is_active() {
            Finding::ok(PROBE, format!("ACTIVE, {layer}, {rate}"))
        } else if any {
            Finding::skip(PROBE, format!("{}, {layer}: not used", port.state))
        } else {
            let state = if port.state.is_empty() { "in an unknown state" } else { &port.state };
            let remedy = match port.link_layer {
                LinkLayer::InfiniBand => {
                    "check the cable and the switch; INIT means that no subnet manager answers (opensm, or the switch's)"
                }
                LinkLayer::Ethernet => "check the cable and the switch; ip link set DEV up",
            };
            Finding::bad(PROBE, wants.card.broken(), format!("{state}, {layer}"), remedy)
        };
        findings.push(finding.of(subject(device, port)));
    }
    findings
}

fn layer_name(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    }
}

fn subject(device: &DeviceEntry, port: &PortEntry) -> String {
    format!("{} port {}", device.name, port.number)
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The address.
    pub address: Ipv6Addr,
    /// `RoCE v2`, `IB/RoCE v1`; empty if the kernel does not say.
    pub kind: String,
}

impl Gid {
    /// Returns whether it serves a queue pair; the rule of `hca/src/verbs/context.rs`.
    fn serves(&self, layer: LinkLayer) -> bool {
        layer == LinkLayer::InfiniBand || self.kind == "RoCE v2"
    }

    /// Returns whether routers of InfiniBand know the way to it, so that it is better than others.
    fn is_routable(&self, layer: LinkLayer) -> bool {
        layer == LinkLayer::InfiniBand && oxshmem_hca::provider::Gid(self.address.octets()).flid().is_some()
    }

    /// Returns whether it may be chosen without being named.
    fn is_default(&self, layer: LinkLayer) -> bool {
        self.serves(layer) && (layer == LinkLayer::InfiniBand || !self.address.is_unicast_link_local())
    }
}

/// Returns the entries of a port's GID table that are not empty.
pub fn gid_table(root: &Root, device: &str, port: u8) -> Result<Vec<Gid>, Missing> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
    let mut table = Vec::new();
    for name in root.entries(&format!("{folder}/gids"))? {
        let Ok(index) = name.parse::<u32>() else { continue };
        let text = root.text(&format!("{folder}/gids/{name}")).unwrap_or_default();
        let Ok(address) = text.parse::<Ipv6Addr>() else { continue };
        // An entry with only the subnet prefix of InfiniBand is empty too.
        if address.octets()[8..] == [0; 8] {
            continue;
        }
        let kind = root.text(&format!("{folder}/gid_attrs/types/{name}")).unwrap_or_default();
        table.push(Gid { index, address, kind });
    }
    table.sort_by_key(|gid| gid.index);
    Ok(table)
}

/// Returns the address that queue pairs on each active port get.
pub fn gids(root: &Root, topology: Option<&Topology>, config: &Config, wants: Wants) -> Vec<Finding> {
    const PROBE: &str = "rdma.gid";
    let active: Vec<_> = topology
        .iter()
        .flat_map(|topology| topology.devices())
        .flat_map(|device| device.ports.iter().filter(|port| port.is_active()).map(move |port| (device, port)))
        .collect();
    if active.is_empty() {
        return vec![Finding::skip(PROBE, "no active port")];
    }
    let mut findings: Vec<Finding> = active
        .into_iter()
        .map(|(device, port)| {
            let finding = match gid_table(root, &device.name, port.number) {
                Ok(table) => gid(&table, port.link_layer, config.ib_gid_index(), wants),
                Err(missing) => Finding::bad(
                    PROBE,
                    Outcome::Warn,
                    format!("the GID table cannot be read: {missing}"),
                    "mount sysfs",
                ),
            };
            finding.of(subject(device, port))
        })
        .collect();
    // A port for something else needs no address for queue pairs.
    if findings.iter().any(|finding| finding.result == Outcome::Ok) {
        for finding in findings.iter_mut().filter(|finding| finding.result > Outcome::Ok) {
            let subject = std::mem::take(&mut finding.subject);
            *finding = Finding::skip(PROBE, format!("{}; others can be used", finding.reason)).of(subject);
        }
    }
    findings
}

fn gid(table: &[Gid], layer: LinkLayer, asked: Choice, wants: Wants) -> Finding {
    const PROBE: &str = "rdma.gid";
    let show = |gid: &Gid| match gid.kind.as_str() {
        "" => format!("entry {}: {}", gid.index, gid.address),
        kind => format!("entry {}: {}, {kind}", gid.index, gid.address),
    };
    let usable: Vec<_> = table.iter().filter(|gid| gid.serves(layer)).map(|gid| gid.index.to_string()).collect();
    let usable = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
    match asked {
        Choice::Given(index) => match table.iter().find(|gid| gid.index == index) {
            Some(gid) if gid.serves(layer) => Finding::ok(PROBE, show(gid)),
            Some(gid) => Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("OXSHMEM_IB_GID_INDEX={index} is of {}, and RoCE v2 is needed", gid.kind),
                format!("name one of these: {usable}"),
            ),
            None => Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("OXSHMEM_IB_GID_INDEX={index}: that entry is empty"),
                format!("name one of these: {usable}"),
            ),
        },
        Choice::Auto => match table
            .iter()
            .find(|gid| gid.is_routable(layer))
            .or_else(|| table.iter().find(|gid| gid.is_default(layer)))
        {
            Some(gid) => Finding::ok(PROBE, show(gid)),
            None => Finding::bad(
                PROBE,
                wants.card.broken(),
                "no RoCE v2 address with an IPv4 or global IPv6 address",
                format!(
                    "give the card's network interface one (ip addr add), or name an entry with OXSHMEM_IB_GID_INDEX (usable: {usable})"
                ),
            ),
        },
    }
}

/// Returns a library of rdma-core.
pub fn library(library: Library, facts: &Facts<LibraryFact>, any_device: bool, wants: Wants) -> Vec<Finding> {
    let (probe, file) = (library.probe(), library.file());
    // It is not missed without a card.
    let bad = if any_device || wants.card == Want::Must { wants.card.broken() } else { Outcome::Skip };
    let finding = |reason: String, remedy: &str| match bad {
        Outcome::Skip => Finding::skip(probe, reason),
        result => Finding::bad(probe, result, reason, remedy),
    };
    let mut findings = Vec::new();
    let mut file_name = String::new();
    for fact in &facts.facts {
        match fact {
            LibraryFact::NotLoaded { reason } => findings.push(finding(
                format!("{file} cannot be loaded: {reason}"),
                "install rdma-core (Debian and Ubuntu: libibverbs1 ibverbs-providers; Fedora: libibverbs), and look at LD_LIBRARY_PATH",
            )),
            LibraryFact::Loaded { file } => file_name.clone_from(file),
            LibraryFact::Refused { reason } => findings.push(finding(
                format!("{file_name}: {reason}"),
                "install a newer rdma-core; another library of that name may come first in LD_LIBRARY_PATH",
            )),
            LibraryFact::Devices { names: Ok(names) } => {
                findings.push(Finding::ok(probe, format!("{file_name}, devices {}", names.join(", "))));
            }
            LibraryFact::Devices { names: Err(_) } if !any_device => {
                findings.push(Finding::ok(probe, format!("{file_name}, no device")));
            }
            LibraryFact::Devices { names: Err(reason) } => findings.push(finding(
                format!("{file_name}: {reason}"),
                "install the cards' user-space drivers (Debian and Ubuntu: ibverbs-providers), and look at rdma.nodes",
            )),
        }
    }
    if let Some(fault) = facts.end.fault() {
        findings.push(finding(
            format!("loading {file} failed: {fault}"),
            "another library of that name may come first in LD_LIBRARY_PATH; reinstall rdma-core",
        ));
    } else if findings.is_empty() {
        findings.push(Finding::ok(probe, file_name));
    }
    findings
}

/// Which cards PEs use.
#[derive(Debug, Default)]
pub struct Selected {
    /// Returns the findings about it.
    pub findings: Vec<Finding>,
    /// Each card once, with the first GPU that it falls to, if it falls to one.
    pub cards: Vec<(Card, Option<i32>)>,
}

impl From<Finding> for Selected {
    fn from(finding: Finding) -> Self {
        Self { findings: vec![finding], cards: Vec::new() }
    }
}

/// Returns which cards fall to which GPU, or to the CPUs, and what the way between them means.
pub fn selection(topology: Option<&Topology>, gpus: &[Gpu], config: &Config, wants: Wants) -> Selected {
    const PROBE: &str = "rdma.selection";
    if wants.card == Want::No {
        return Finding::skip(PROBE, format!("OXSHMEM_HCA={} uses no card", config.hca())).into();
    }
    let Some(topology) = topology else { return Finding::skip(PROBE, "sysfs cannot be read").into() };
    if topology.devices().is_empty() && wants.card == Want::IfThere {
        return Finding::skip(PROBE, "no RDMA device").into();
    }
    let remedy =
        "correct OXSHMEM_HCA, OXSHMEM_HCA_DEVICES or OXSHMEM_HCA_DEVICES_PER_PE; oxshmem-info lists the devices";
    let places: Vec<(String, Place)> = match gpus {
        [] => vec![("the CPUs".to_owned(), Place::of_this_thread())],
        gpus => gpus.iter().map(|gpu| (format!("GPU {}", gpu.ordinal), Place::Pci(gpu.pci.clone()))).collect(),
    };
    let mut findings = Vec::new();
    let mut cards: Vec<(Card, Option<i32>)> = Vec::new();
    let spots: Vec<Place> = places.iter().map(|(_, place)| place.clone()).collect();
    let shares = shares(topology, config, &spots);
    for (index, ((subject, place), share)) in places.iter().zip(&shares).enumerate() {
        match share {
            Ok(share) => {
                findings.extend(share.iter().map(|card| judge(topology, place, card, wants).of(subject)));
                for card in share {
                    if !cards.iter().any(|(known, _)| known == card) {
                        cards.push((card.clone(), gpus.get(index).map(|gpu| gpu.ordinal)));
                    }
                }
            }
            Err(error) => {
                findings.push(Finding::bad(PROBE, wants.card.broken(), error.to_string(), remedy).of(subject));
            }
        }
    }
    if let Some(Ok(share)) = shares.first() {
        findings.extend(idle(topology, config, &spots, &cards, share.len()));
    }
    Selected { findings, cards }
}

/// Returns the cards below one switch with a GPU that no PE drives, if each GPU has one PE and each
/// PE `driven` cards; and how they are put to use.
fn idle(
    topology: &Topology,
    config: &Config,
    places: &[Place],
    used: &[(Card, Option<i32>)],
    driven: usize,
) -> Option<Finding> {
    const PROBE: &str = "rdma.selection";
    if config.hca().card().is_some() || matches!(config.hca_devices(), DeviceChoice::Mapping(_)) {
        return None;
    }
    let candidates = topology.candidates(config.hca().family(), config.hca_devices()).ok()?;
    let is_near =
        |place: &Place, device: &DeviceEntry| matches!(topology.distance(place, device), Distance::Bridges(_));
    let idle = candidates.iter().map(|(device, _)| *device).filter(|device| {
        let is_used = used.iter().any(|(card, _)| card.device == device.name);
        !is_used && places.iter().any(|place| is_near(place, device))
    });
    let idle: Vec<&str> = idle.map(|device| device.name.as_str()).collect();
    if idle.is_empty() {
        return None;
    }
    let near = |place: &Place| candidates.iter().filter(|(device, _)| is_near(place, device)).count();
    let most = places.iter().map(near).max().unwrap_or_default().min(MAX_CARDS);
    let how = match config.hca().family() {
        Family::Verbs => "a PE drives one card with verbs".to_owned(),
        Family::Mlx5 if most > driven => {
            let queues = match config.qps_per_peer() as usize {
                count if count < most => format!(", with OXSHMEM_QPS_PER_PEER={most} or more"),
                _ => String::new(),
            };
            format!("each drives {driven}; OXSHMEM_HCA_DEVICES_PER_PE={most} gives each the {most} nearest{queues}")
        }
        Family::Mlx5 => format!("each drives {driven}, the most"),
    };
    let idle = idle.join(", ");
    Some(Finding::ok(
        PROBE,
        format!(
            "near GPUs and idle with one PE per GPU: {idle}; {how}; several PEs on a GPU are spread over its cards"
        ),
    ))
}

/// Returns a card that a PE drives; one that the configuration names need not be there.
fn judge(topology: &Topology, place: &Place, card: &Card, wants: Wants) -> Finding {
    const PROBE: &str = "rdma.selection";
    match topology.devices().iter().find(|device| device.name == card.device) {
        Some(device) if card.port.is_some_and(|number| device.ports.iter().all(|port| port.number != number)) => {
            Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("{card}: {} has no such port", device.name),
                "correct OXSHMEM_HCA or OXSHMEM_HCA_DEVICES",
            )
        }
        Some(device) => way(card, place, topology.distance(place, device)),
        None => {
            let present: Vec<_> = topology.devices().iter().map(|device| device.name.as_str()).collect();
            let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
            Finding::bad(
                PROBE,
                wants.card.broken(),
                format!("there is no RDMA device {}", card.device),
                format!("name one of this machine's in OXSHMEM_HCA or OXSHMEM_HCA_DEVICES: {present}"),
            )
        }
    }
}

fn way(card: &Card, place: &Place, distance: Distance) -> Finding {
    const PROBE: &str = "rdma.selection";
    // For GPUs the way matters; PEs on CPUs are told how far it is.
    match distance.consequence().filter(|_| matches!(place, Place::Pci(_))) {
        None => Finding::ok(PROBE, format!("{card}, {distance}")),
        Some(consequence) if distance == Distance::System => Finding::bad(
            PROBE,
            Outcome::Warn,
            format!(
                "{card}, {distance}: {consequence}; of all data only long puts are staged in memory near the card \
                 (OXSHMEM_STAGING)"
            ),
            "run PEs on GPUs that have a card at their socket, or name a nearer card in OXSHMEM_HCA_DEVICES",
        ),
        Some(consequence) => Finding::ok(PROBE, format!("{card}, {distance}: {consequence}")),
    }
}

/// Returns the kernel, which gives dma-bufs to cards from 5.12 on.
pub fn kernel(root: &Root, any_device: bool, wants: Wants) -> Finding {
    const PROBE: &str = "rdma.kernel";
    let release = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (5, 12) || !any_device || wants.card == Want::No => {
            Finding::ok(PROBE, format!("Linux {release}"))
        }
        (Some(_), Some(_)) => Finding::bad(
            PROBE,
            Outcome::Warn,
            format!("Linux {release}: cards take dma-bufs from 5.12 on"),
            "use a newer kernel, or nvidia-peermem with the card vendor's kernel modules",
        ),
        _ => Finding::skip(PROBE, "the kernel's release cannot be read"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
