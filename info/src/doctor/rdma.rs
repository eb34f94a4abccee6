//! RDMA cards: the kernel's drivers and devices, their nodes, ports and addresses, the libraries, and which cards fall to which GPU.

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

/// Whether a ConnectX is on the bus.
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

/// The kernel's devices.
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

/// The kernel's modules that user space talks to.
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

/// The device nodes of the devices, and whether this user may use them.
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

/// The state of every port.
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
    /// Whether it serves a queue pair; the rule of `hca/src/verbs/context.rs`.
    fn serves(&self, layer: LinkLayer) -> bool {
        layer == LinkLayer::InfiniBand || self.kind == "RoCE v2"
    }

    /// Whether routers of InfiniBand know the way to it, so that it is better than others.
    fn is_routable(&self, layer: LinkLayer) -> bool {
        layer == LinkLayer::InfiniBand && oxshmem_hca::provider::Gid(self.address.octets()).flid().is_some()
    }

    /// Whether it may be chosen without being named.
    fn is_default(&self, layer: LinkLayer) -> bool {
        self.serves(layer) && (layer == LinkLayer::InfiniBand || !self.address.is_unicast_link_local())
    }
}

/// The entries of a port's GID table that are not empty.
pub fn gid_table(root: &Root, device: &str, port: u8) -> Result<Vec<Gid>, Missing> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
    let mut table = Vec::new();
    for name in root.entries(&format!("{folder}/gids"))? {
        let Ok(index) = name.parse::<u32>() else { continue };
        let text = root.text(&format!("{folder}/gids/{name}")).unwrap_or_default();
        let Ok(address) = text.parse::<Ipv6Addr>() else { continue };
        // An entry with only the subnet prefix of InfiniBand is empty too.
        if u128::from(address) as u64 == 0 {
            continue;
        }
        let kind = root.text(&format!("{folder}/gid_attrs/types/{name}")).unwrap_or_default();
        table.push(Gid { index, address, kind });
    }
    table.sort_by_key(|gid| gid.index);
    Ok(table)
}

/// The address that queue pairs on each active port get.
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

/// A library of rdma-core.
pub fn library(library: Library, facts: &Facts<LibraryFact>, any_device: bool, wants: Wants) -> Vec<Finding> {
    let (probe, file) = (library.probe(), library.file());
    // Without a card nobody misses it.
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
    /// What there is to say of it.
    pub findings: Vec<Finding>,
    /// Each card once, with the first GPU that it falls to, if it falls to one.
    pub cards: Vec<(Card, Option<i32>)>,
}

impl From<Finding> for Selected {
    fn from(finding: Finding) -> Self {
        Self { findings: vec![finding], cards: Vec::new() }
    }
}

/// Which cards fall to which GPU, or to the CPUs, and what the way between them means.
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

/// Cards below one switch with a GPU that no PE drives, if each GPU has one PE and each PE `driven` cards; and how they are put to use.
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

/// A card that a PE drives; one that the configuration names need not be there.
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
                "{card}, {distance}: {consequence}; of all data only large puts of the CPU proxy are staged through host memory \
                 (OXSHMEM_IBRC_STAGING)"
            ),
            "run PEs on GPUs that have a card at their socket, or name a nearer card in OXSHMEM_HCA_DEVICES",
        ),
        Some(consequence) => Finding::ok(PROBE, format!("{card}, {distance}: {consequence}")),
    }
}

/// The kernel, which gives dma-bufs to cards from 5.12 on.
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
mod tests {
    use oxshmem::config::Hca;

    use super::super::guard::End;
    use super::super::root::recorded::Recorded;
    use super::*;

    const MUST: Wants = Wants { gpu: Want::Must, card: Want::Must, mlx5: true };
    const AUTO: Wants = Wants { gpu: Want::IfThere, card: Want::IfThere, mlx5: true };
    const NONE: Wants = Wants { gpu: Want::No, card: Want::No, mlx5: true };

    /// A machine with a card on InfiniBand, one on RoCE whose port is down, and a GPU at each of its two sockets.
    const MACHINE: &str = "
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/vendor = 0x15b3
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/class = 0x020700
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/numa_node = 0
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/driver -> ../../../../bus/pci/drivers/mlx5_core
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/device -> ../..
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/node_type = 1: CA
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/fw_ver = 28.39.1002
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/state = 4: ACTIVE
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/link_layer = InfiniBand
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/rate = 400 Gb/sec (4X NDR)
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/gids/0 = fe80:0000:0000:0000:b83f:d203:0012:3456
        /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/gids/1 = fe80:0000:0000:0000:0000:0000:0000:0000
        /sys/devices/pci0000:10/0000:10:01.0/0000:19:00.0/numa_node = 0
        /sys/devices/pci0000:90/0000:90:01.0/0000:91:00.0/numa_node = 1
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/vendor = 0x15b3
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/class = 0x020000
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node = 1
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/driver -> ../../../../bus/pci/drivers/mlx5_core
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/device -> ../..
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/node_type = 1: CA
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/ports/1/state = 1: DOWN
        /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/ports/1/link_layer = Ethernet
        /sys/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:10/0000:10:01.0/0000:18:00.0
        /sys/bus/pci/devices/0000:19:00.0 -> ../../../devices/pci0000:10/0000:10:01.0/0000:19:00.0
        /sys/bus/pci/devices/0000:81:00.0 -> ../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0
        /sys/bus/pci/devices/0000:91:00.0 -> ../../../devices/pci0000:90/0000:90:01.0/0000:91:00.0
        /sys/class/infiniband/mlx5_0 -> ../../devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0
        /sys/class/infiniband/mlx5_1 -> ../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1
        /sys/class/infiniband_verbs/uverbs0/ibdev = mlx5_0
        /sys/class/infiniband_verbs/uverbs1/ibdev = mlx5_1
        /dev/infiniband/uverbs0 = 
        /dev/infiniband/uverbs1 = 
        /proc/sys/kernel/osrelease = 6.8.0-45-generic
    ";

    fn topology(machine: &Recorded) -> Topology {
        Topology::read(&machine.root.at("/sys")).unwrap()
    }

    fn config(vars: &[(&str, &str)]) -> Config {
        Config::from_vars(vars.iter().copied()).unwrap()
    }

    /// Every finding that is bad says what to do.
    fn results(findings: &[Finding]) -> Vec<Outcome> {
        for finding in findings {
            assert_eq!(finding.remedy.is_some(), finding.result >= Outcome::Warn, "{finding:?}");
        }
        findings.iter().map(|finding| finding.result).collect()
    }

    #[test]
    fn cards_are_found_on_the_bus_with_their_drivers() {
        let machine = Recorded::new(MACHINE);
        let finding = on_bus(&machine.root, MUST);
        assert!(
            finding.result == Outcome::Ok && finding.reason.contains("0000:81:00.0 (driver mlx5_core)"),
            "{finding:?}"
        );
        let card =
            "/sys/bus/pci/devices/0000:18:00.0/vendor = 0x15b3\n/sys/bus/pci/devices/0000:18:00.0/class = 0x020700";
        let undriven = Recorded::new(card);
        assert_eq!(on_bus(&undriven.root, MUST).result, Outcome::Fail);
        assert_eq!(on_bus(&undriven.root, AUTO).result, Outcome::Warn);
        let empty = Recorded::new("/sys/");
        assert_eq!(on_bus(&empty.root, AUTO).result, Outcome::Skip);
        assert_eq!(on_bus(&empty.root, MUST).result, Outcome::Fail);
        assert_eq!(on_bus(&empty.root, Wants { mlx5: false, ..MUST }).result, Outcome::Skip);
        let mut denied = Recorded::new(card);
        denied.root.denied.push("/sys/bus");
        assert_eq!(on_bus(&denied.root, AUTO).result, Outcome::Warn);
    }

    #[test]
    fn devices_say_what_speaks_against_them() {
        let machine = Recorded::new(MACHINE);
        let findings = devices(&Ok(topology(&machine)), &machine.root, MUST);
        assert_eq!(results(&findings), [Outcome::Ok, Outcome::Skip]);
        assert_eq!(findings[0].reason, "firmware 28.39.1002, mlx5_core, 0000:18:00.0, NUMA node 0");
        assert!(findings[1].reason.contains("port 1 is DOWN"));
        let down = Recorded::new(
            "/sys/class/infiniband/rxe0/node_type = 1: CA\n/sys/class/infiniband/rxe0/ports/1/state = 1: DOWN",
        );
        assert_eq!(results(&devices(&Ok(topology(&down)), &down.root, MUST)), [Outcome::Fail]);
        assert_eq!(results(&devices(&Ok(topology(&down)), &down.root, AUTO)), [Outcome::Warn]);
        let empty = Recorded::new("/sys/");
        assert_eq!(results(&devices(&Ok(topology(&empty)), &empty.root, AUTO)), [Outcome::Skip]);
        assert_eq!(results(&devices(&Ok(topology(&empty)), &empty.root, MUST)), [Outcome::Fail]);
        assert_eq!(results(&devices(&Err("no".into()), &empty.root, MUST)), [Outcome::Fail]);
        assert_eq!(results(&devices(&Err("no".into()), &empty.root, AUTO)), [Outcome::Warn]);
    }

    #[test]
    fn nodes_and_modules_are_needed_for_user_space() {
        let mut machine = Recorded::new(MACHINE);
        let known = topology(&machine);
        assert_eq!(modules(&machine.root, Some(&known), MUST).result, Outcome::Ok);
        assert_eq!(modules(&Recorded::new("/sys/").root, Some(&known), MUST).result, Outcome::Fail);
        assert_eq!(modules(&machine.root, None, MUST).result, Outcome::Skip);
        assert_eq!(results(&nodes(&machine.root, Some(&known), MUST)), [Outcome::Ok, Outcome::Ok]);
        std::fs::remove_file(machine.root.at("/dev/infiniband/uverbs1")).unwrap();
        machine.root.denied.push("/dev/infiniband/uverbs0");
        let findings = nodes(&machine.root, Some(&known), MUST);
        assert_eq!(results(&findings), [Outcome::Fail, Outcome::Fail]);
        assert!(findings[0].reason.contains("may not read and write /dev/infiniband/uverbs0"), "{findings:?}");
        assert_eq!(findings[1].reason, "/dev/infiniband/uverbs1 does not exist");
        std::fs::create_dir(machine.root.at("/dev/infiniband/uverbs1")).unwrap();
        assert!(nodes(&machine.root, Some(&known), AUTO)[1].reason.contains("cannot be opened"));
        std::fs::remove_dir_all(machine.root.at("/sys/class/infiniband_verbs")).unwrap();
        assert!(nodes(&machine.root, Some(&known), AUTO)[0].reason.contains("no node for user space"));
        assert_eq!(results(&nodes(&machine.root, None, MUST)), [Outcome::Skip]);
    }

    #[test]
    fn ports_that_are_down_count_if_all_are() {
        let machine = Recorded::new(MACHINE);
        let findings = ports(&machine.root, Some(&topology(&machine)), MUST);
        assert_eq!(results(&findings), [Outcome::Ok, Outcome::Skip]);
        assert_eq!(findings[0].reason, "ACTIVE, InfiniBand, 400 Gb/sec (4X NDR)");
        for (state, layer, words) in
            [("2: INIT", "InfiniBand", "subnet manager"), ("1: DOWN", "Ethernet", "ip link"), ("\u{7}", "x", "subnet")]
        {
            let down = Recorded::new(&format!(
                "/sys/class/infiniband/x/ports/1/state = {state}\n/sys/class/infiniband/x/ports/1/link_layer = {layer}"
            ));
            let findings = ports(&down.root, Some(&topology(&down)), MUST);
            assert_eq!(results(&findings), [Outcome::Fail]);
            assert!(findings[0].remedy.as_ref().is_some_and(|text| text.contains(words)), "{findings:?}");
        }
        assert_eq!(results(&ports(&machine.root, None, MUST)), [Outcome::Skip]);
    }

    #[test]
    fn the_address_is_chosen_as_queue_pairs_choose_it() {
        let machine = Recorded::new(MACHINE);
        let findings = gids(&machine.root, Some(&topology(&machine)), &config(&[]), MUST);
        assert_eq!(results(&findings), [Outcome::Ok]);
        assert!(findings[0].reason.starts_with("entry 0: fe80::b83f:"), "{findings:?}");

        let port = "/sys/class/infiniband/rxe0/ports/1";
        let roce = Recorded::new(&format!(
            "/sys/class/infiniband/rxe0/node_type = 1: CA\n{port}/state = 4: ACTIVE\n{port}/link_layer = Ethernet\n\
             {port}/gids/0 = fe80:0000:0000:0000:5054:00ff:fe12:3456\n{port}/gid_attrs/types/0 = RoCE v2\n\
             {port}/gids/1 = 0000:0000:0000:0000:0000:ffff:0a00:0001\n{port}/gid_attrs/types/1 = IB/RoCE v1\n\
             {port}/gids/2 = 0000:0000:0000:0000:0000:ffff:0a00:0001\n{port}/gid_attrs/types/2 = RoCE v2\n\
             {port}/gids/3 = 0000:0000:0000:0000:0000:0000:0000:0000\n{port}/gids/4 = rubbish\n{port}/gids/x = ::1"
        ));
        let chosen = |vars: &[(&str, &str)]| gids(&roce.root, Some(&topology(&roce)), &config(vars), MUST).remove(0);
        assert_eq!(chosen(&[]).reason, "entry 2: ::ffff:10.0.0.1, RoCE v2");
        assert_eq!(chosen(&[("OXSHMEM_IB_GID_INDEX", "0")]).result, Outcome::Ok);
        let old = chosen(&[("OXSHMEM_IB_GID_INDEX", "1")]);
        assert!(
            old.result == Outcome::Fail
                && old.reason.contains("IB/RoCE v1")
                && old.remedy.is_some_and(|text| text.contains("0, 2"))
        );
        assert!(chosen(&[("OXSHMEM_IB_GID_INDEX", "3")]).reason.contains("empty"));

        let local = Recorded::new(&format!(
            "{port}/state = 4: ACTIVE\n{port}/link_layer = Ethernet\n{port}/gids/0 = fe80:0000:0000:0000:5054:00ff:fe12:3456\n{port}/gid_attrs/types/0 = RoCE v2"
        ));
        let finding = gids(&local.root, Some(&topology(&local)), &config(&[]), AUTO).remove(0);
        assert!(finding.result == Outcome::Warn && finding.remedy.is_some_and(|text| text.contains("ip addr add")));
        local.add(
            "/sys/class/infiniband/rxe1/ports/1/state = 4: ACTIVE\n/sys/class/infiniband/rxe1/ports/1/link_layer = InfiniBand\n\
             /sys/class/infiniband/rxe1/ports/1/gids/0 = fe80:0000:0000:0000:5054:00ff:fe12:3457",
        );
        assert_eq!(
            results(&gids(&local.root, Some(&topology(&local)), &config(&[]), MUST)),
            [Outcome::Skip, Outcome::Ok]
        );
        // What routers know goes before what is first.
        local.add("/sys/class/infiniband/rxe1/ports/1/gids/1 = fec0:0000:0b00:0001:5054:00ff:fe12:3457");
        let findings = gids(&local.root, Some(&topology(&local)), &config(&[]), MUST);
        assert!(findings[1].reason.starts_with("entry 1: fec0:0:b00:1:"), "{}", findings[1].reason);
        let bare = Recorded::new(&format!("{port}/state = 4: ACTIVE\n{port}/link_layer = Ethernet"));
        assert!(gids(&bare.root, Some(&topology(&bare)), &config(&[]), AUTO)[0].reason.contains("cannot be read"));
        assert_eq!(results(&gids(&bare.root, None, &config(&[]), MUST)), [Outcome::Skip]);
    }

    #[test]
    fn libraries_are_judged_by_what_loading_showed() {
        let loaded = || LibraryFact::Loaded { file: "/lib/libibverbs.so.1.14.50.0".into() };
        let judge =
            |facts: Vec<LibraryFact>, any, wants| library(Library::Verbs, &Facts { facts, end: End::Done }, any, wants);
        let good = judge(vec![loaded(), LibraryFact::Devices { names: Ok(vec!["mlx5_0".into()]) }], true, MUST);
        assert_eq!(
            (results(&good), good[0].reason.as_str()),
            (vec![Outcome::Ok], "/lib/libibverbs.so.1.14.50.0, devices mlx5_0")
        );
        let none = || LibraryFact::Devices { names: Err("none".into()) };
        assert_eq!(results(&judge(vec![loaded(), none()], false, AUTO)), [Outcome::Ok]);
        assert_eq!(results(&judge(vec![loaded(), none()], true, AUTO)), [Outcome::Warn]);
        let not = || vec![LibraryFact::NotLoaded { reason: "file too short".into() }];
        assert_eq!(results(&judge(not(), false, AUTO)), [Outcome::Skip]);
        assert_eq!(results(&judge(not(), true, AUTO)), [Outcome::Warn]);
        assert_eq!(results(&judge(not(), false, MUST)), [Outcome::Fail]);
        let lacks = judge(
            vec![loaded(), LibraryFact::Refused { reason: "libibverbs.so.1 has no ibv_reg_mr_iova2".into() }],
            true,
            MUST,
        );
        assert!(lacks[0].result == Outcome::Fail && lacks[0].reason.contains("ibv_reg_mr_iova2"), "{lacks:?}");
        let crashed = Facts { facts: vec![loaded()], end: End::Died { how: "signal 11".into(), said: String::new() } };
        let findings = library(Library::Mlx5, &crashed, true, MUST);
        assert!(findings[0].result == Outcome::Fail && findings[0].reason.contains("signal 11"), "{findings:?}");
        let mlx5 = Facts { facts: vec![loaded()], end: End::Done };
        assert_eq!(results(&library(Library::Mlx5, &mlx5, true, MUST)), [Outcome::Ok]);
    }

    #[test]
    fn the_card_of_each_gpu_is_shown_with_the_way_to_it() {
        let machine = Recorded::new(MACHINE);
        let known = topology(&machine);
        let gpu = |ordinal, pci: &str| Gpu { ordinal, pci: pci.into(), ..Gpu::default() };
        let gpus = [gpu(0, "0000:19:00.0"), gpu(1, "0000:91:00.0")];
        let select = |vars: &[(&str, &str)]| {
            let config = config(vars);
            let wants = Wants { mlx5: !matches!(config.hca(), Hca::Verbs { .. }), ..MUST };
            selection(Some(&known), &gpus, &config, wants).findings
        };
        let findings = select(&[]);
        assert_eq!(results(&findings), [Outcome::Ok, Outcome::Warn]);
        assert_eq!(findings[0].reason, "mlx5_0/1, below one PCIe bridge");
        assert!(
            findings[1].reason.contains("at another NUMA node")
                && findings[1].reason.contains("only large puts of the CPU proxy are staged"),
            "{findings:?}"
        );
        let findings = select(&[("OXSHMEM_HCA", "mlx5:mlx5_9")]);
        assert_eq!(results(&findings), [Outcome::Fail, Outcome::Fail]);
        assert!(
            findings[0].reason.contains("no RDMA device mlx5_9")
                && findings[0].remedy.as_ref().is_some_and(|text| text.contains("mlx5_0, mlx5_1"))
        );
        assert!(select(&[("OXSHMEM_HCA", "verbs:mlx5_0/3")])[0].reason.contains("no such port"));
        for (list, words) in [
            ("mlx5_9", "there is no RDMA device mlx5_9"),
            ("mlx5_1", "port 1 is DOWN"),
            ("7=mlx5_0", "gives no device to PE 0"),
        ] {
            let findings = select(&[("OXSHMEM_HCA_DEVICES", list)]);
            assert!(findings[0].result == Outcome::Fail && findings[0].reason.contains(words), "{list}: {findings:?}");
        }
        assert_eq!(
            results(&select(&[("OXSHMEM_HCA_DEVICES", "0=mlx5_0,0000:91:00.0=mlx5_1")])),
            [Outcome::Ok, Outcome::Ok]
        );
        assert_eq!(results(&selection(Some(&known), &gpus, &config(&[]), NONE).findings), [Outcome::Skip]);
        assert_eq!(results(&selection(None, &gpus, &config(&[]), MUST).findings), [Outcome::Skip]);
        let software = Recorded::new(
            "/sys/class/infiniband/rxe0/node_type = 1: CA\n/sys/class/infiniband/rxe0/ports/1/state = 4: ACTIVE",
        );
        let found = topology(&software);
        assert_eq!(devices(&Ok(found.clone()), &software.root, MUST)[0].reason, "a device in software");
        let findings =
            selection(Some(&found), &[], &config(&[("OXSHMEM_HCA", "verbs")]), Wants { mlx5: false, ..MUST }).findings;
        assert_eq!(findings[0].reason, "rxe0/1, at an unknown distance");
        let empty = Recorded::new("/sys/");
        assert_eq!(results(&selection(Some(&topology(&empty)), &[], &config(&[]), AUTO).findings), [Outcome::Skip]);
        assert_eq!(results(&selection(Some(&topology(&empty)), &[], &config(&[]), MUST).findings), [Outcome::Fail]);
    }

    /// A machine with switches, each with so many GPUs and cards as its item says.
    fn switches(of_each: &[(u32, u32)]) -> (String, Vec<Gpu>) {
        use std::fmt::Write as _;
        let (mut machine, mut gpus, mut cards) = (String::new(), Vec::new(), 0);
        for (switch, (gpu_count, card_count)) in of_each.iter().enumerate() {
            let bus = 0x10 * (switch + 1);
            let above = format!("/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0", bus + 1);
            let add = |machine: &mut String, slot: u32| {
                let address = format!("0000:{:02x}:{slot:02x}.0", bus + 2);
                let folder = format!("{above}/{address}");
                let _ = write!(
                    machine,
                    "{folder}/numa_node = 0\n/sys/bus/pci/devices/{address} -> ../../..{}\n",
                    &folder["/sys".len()..]
                );
                (address, folder)
            };
            for slot in 0..*gpu_count {
                let ordinal = i32::try_from(gpus.len()).unwrap();
                gpus.push(Gpu { ordinal, pci: add(&mut machine, slot).0, ..Gpu::default() });
            }
            for slot in 0..*card_count {
                let folder = add(&mut machine, 0x10 + slot).1;
                let device = format!("{folder}/infiniband/mlx5_{cards}");
                let _ = write!(
                    machine,
                    "{folder}/driver -> ../../../../../bus/pci/drivers/mlx5_core\n{device}/device -> ../..\n{device}/node_type = 1: CA\n\
                     {device}/ports/1/state = 4: ACTIVE\n{device}/ports/1/link_layer = InfiniBand\n\
                     /sys/class/infiniband/mlx5_{cards} -> ../..{}\n",
                    &device["/sys".len()..]
                );
                cards += 1;
            }
        }
        (machine, gpus)
    }

    #[test]
    fn all_cards_of_each_gpu_are_shown_and_those_that_stay_idle() {
        let select = |of_each: &[(u32, u32)], vars: &[(&str, &str)]| {
            let (machine, gpus) = switches(of_each);
            let machine = Recorded::new(&machine);
            let config = config(vars);
            let wants = Wants { mlx5: !matches!(config.hca(), Hca::Verbs { .. }), ..MUST };
            let selected = selection(Some(&topology(&machine)), &gpus, &config, wants);
            let say = |finding: &Finding| format!("{}: {}", finding.subject, finding.reason);
            (selected.findings.iter().map(say).collect::<Vec<_>>(), selected.cards)
        };
        // Both cards of a switch are its only GPU's.
        let (said, cards) = select(&[(1, 2), (1, 2)], &[]);
        let expected = [
            "GPU 0: mlx5_0/1, below one PCIe bridge",
            "GPU 0: mlx5_1/1, below one PCIe bridge",
            "GPU 1: mlx5_2/1, below one PCIe bridge",
            "GPU 1: mlx5_3/1, below one PCIe bridge",
        ];
        assert_eq!(said, expected);
        let of_gpus: Vec<_> = cards.iter().map(|(card, gpu)| (card.device.as_str(), gpu.unwrap())).collect();
        assert_eq!(of_gpus, [("mlx5_0", 0), ("mlx5_1", 0), ("mlx5_2", 1), ("mlx5_3", 1)]);
        // One that another PE has not is not driven either.
        let (said, cards) = select(&[(1, 2), (1, 1)], &[]);
        assert_eq!(said.len(), 3, "{said:?}");
        assert_eq!(
            said[2],
            ": near GPUs and idle with one PE per GPU: mlx5_1; each drives 1; OXSHMEM_HCA_DEVICES_PER_PE=2 gives each the 2 nearest; several PEs on \
             a GPU are spread over its cards"
        );
        assert_eq!(cards.len(), 2);
        let (said, _) = select(&[(1, 2), (1, 1)], &[("OXSHMEM_HCA_DEVICES_PER_PE", "2")]);
        assert_eq!(said[..2], ["GPU 0: mlx5_0/1, below one PCIe bridge", "GPU 0: mlx5_1/1, below one PCIe bridge"]);
        assert!(said.len() == 4 && said[2].starts_with("GPU 1: mlx5_0/1, at the same NUMA node: "), "{said:?}");
        // Nor with too few queue pairs.
        let (said, _) = select(&[(1, 2)], &[("OXSHMEM_QPS_PER_PEER", "1")]);
        assert!(said[1].contains("idle with one PE per GPU: mlx5_1;"), "{said:?}");
        assert!(said[1].contains("gives each the 2 nearest, with OXSHMEM_QPS_PER_PEER=2 or more;"), "{said:?}");
        let (said, _) = select(&[(1, 6)], &[]);
        assert!(
            said.len() == 5 && said[4].contains("mlx5_4, mlx5_5; each drives 4, the most; several PEs"),
            "{said:?}"
        );
        let (said, _) = select(&[(2, 3)], &[("OXSHMEM_HCA", "verbs")]);
        assert!(
            said.len() == 3 && said[2].contains("mlx5_2; a PE drives one card with verbs; several PEs"),
            "{said:?}"
        );
        // What is left out, or not mapped, is so on purpose.
        for vars in [
            [("OXSHMEM_HCA", "mlx5"), ("OXSHMEM_HCA_DEVICES", "^mlx5_1")],
            [("OXSHMEM_HCA", "auto"), ("OXSHMEM_HCA_DEVICES", "0=mlx5_0")],
            [("OXSHMEM_HCA", "mlx5:mlx5_0/1"), ("OXSHMEM_DEVICE", "cuda")],
        ] {
            let (said, _) = select(&[(1, 2)], &vars);
            assert!(said.len() == 1 && said[0].starts_with("GPU 0: mlx5_0"), "{vars:?}: {said:?}");
        }
        let mapping = ("OXSHMEM_HCA_DEVICES", "0=mlx5_1+mlx5_0,1=mlx5_2+mlx5_9");
        let (said, cards) = select(&[(1, 2), (1, 1)], &[mapping]);
        assert!(said[0].starts_with("GPU 0: mlx5_1,") && said[1].starts_with("GPU 0: mlx5_0,"), "{said:?}");
        assert_eq!((said.len(), said[3].as_str(), cards.len()), (4, "GPU 1: there is no RDMA device mlx5_9", 4));
        let (said, cards) = select(&[(1, 1), (1, 1)], &[("OXSHMEM_HCA_DEVICES_PER_PE", "3")]);
        assert!(said.iter().all(|line| line.contains("2 RDMA devices of this machine can be used")), "{said:?}");
        assert_eq!((said.len(), cards.len()), (2, 0));
    }

    #[test]
    fn old_kernels_give_cards_no_dma_bufs() {
        let release = |release: &str, wants| {
            kernel(&Recorded::new(&format!("/proc/sys/kernel/osrelease = {release}")).root, true, wants).result
        };
        assert_eq!(release("6.8.0-45-generic", MUST), Outcome::Ok);
        assert_eq!(release("5.4.0-150-generic", MUST), Outcome::Warn);
        assert_eq!(release("5.4.0-150-generic", NONE), Outcome::Ok);
        assert_eq!(release("rubbish", MUST), Outcome::Skip);
    }
}
