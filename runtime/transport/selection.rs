//! Which RDMA devices a PE uses: those that the configuration names, or some near its GPU or CPUs.

use oxshmem_hca::topology::{Assignment, Card, Distance, Place, Rail, Topology, TopologyError, Way};

use super::error::TransportError;
use super::near::Nodes;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::device::{Device, ORDERED_FOR_OWNER};

impl From<TopologyError> for crate::Error {
    fn from(error: TopologyError) -> Self {
        Self::Hca(error.into())
    }
}

/// A device of a PE, how far it is from where the PE works, and which rail it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub card: Card,
    pub distance: Distance,
    /// Where the PE works: on its GPU, on one that a description has, or on CPUs.
    pub place: Place,
    /// Nothing if the machine does not have the device, or the configuration does not let the PEs
    /// of the node use it.
    pub rail: Option<Rail>,
}

impl Chosen {
    /// Returns whether the PE is on a GPU.
    pub(super) fn is_gpu(&self) -> bool {
        matches!(self.place, Place::Pci(_))
    }
}

/// Returns the machine that `OXSHMEM_TOPOLOGY` describes, or this one.
///
/// # Errors
/// It cannot be read.
pub(super) fn machine(config: &Config) -> std::result::Result<Topology, TopologyError> {
    match config.topology() {
        Some(file) => Topology::from_file(file),
        None => Topology::of_this_machine().map_err(|error| TopologyError::Unreadable { reason: error.to_string() }),
    }
}

/// Returns where a PE works: on its GPU, on its CPUs, or on the GPU of a description that falls to
/// the PE with number `index` of its node.
fn place(config: &Config, machine: Option<&Topology>, gpu: Option<String>, index: usize) -> Result<Place> {
    let described = machine.zip(config.topology().as_deref());
    match (gpu, described) {
        (Some(pci), Some((machine, file))) => {
            let place = Place::Pci(pci);
            if machine.knows(&place) {
                return Ok(place);
            }
            let (file, place) = (file.display().to_string(), place.to_string());
            Err(TopologyError::NotDescribed { file, place }.into())
        }
        (Some(pci), None) => Ok(Place::Pci(pci)),
        (None, Some((machine, _))) if !machine.gpus().is_empty() => {
            Ok(Place::Pci(machine.gpus()[index % machine.gpus().len()].clone()))
        }
        (None, _) => Ok(Place::of_this_thread()),
    }
}

/// Refuses a description of the machine that is wrong, or does not have the GPU of this PE.
pub(super) fn check_description(config: &Config, device: &dyn Device) -> Result<()> {
    if config.topology().is_some() {
        place(config, Some(&machine(config)?), device.gpu().map(|gpu| gpu.pci), 0)?;
    }
    Ok(())
}

/// Returns the devices and ports of this PE for real cards, as [`locate`] returns them.
pub(super) fn choose(
    config: &Config,
    bootstrap: &Bootstrap,
    nodes: &Nodes,
    device: &dyn Device,
) -> Result<(Vec<Chosen>, Vec<Place>)> {
    let located = locate(config, bootstrap, nodes, device);
    check_write_ordering(device.write_ordering(), &device.identity().to_string())?;
    let located = located?;
    for Chosen { card, distance, place, .. } in &located.0 {
        let me = bootstrap.rank();
        tracing::info!(pe = me, %card, %place, %distance, "RDMA device");
        if let (Distance::System, Some(consequence)) = (distance, distance.consequence()) {
            tracing::warn!("PE {me} ({place}) uses {card}, which is {distance}: {consequence}");
        }
    }
    Ok(located)
}

/// Returns the devices and ports of this PE, and where each PE of its node works: at least one, in
/// the order of their names, or in that of a mapping; with `OXSHMEM_HCA=verbs` one. Where the
/// configuration does not name them, the PEs of the node tell each other where they work, and share
/// out the devices; all of them come to the same answer. Collective.
pub(super) fn locate(
    config: &Config,
    bootstrap: &Bootstrap,
    nodes: &Nodes,
    device: &dyn Device,
) -> Result<(Vec<Chosen>, Vec<Place>)> {
    let me = bootstrap.rank() as usize;
    let index = nodes.members(me).iter().take_while(|pe| **pe < me).count();
    let machine = machine(config);
    let read = machine.as_ref().ok();
    let place = place(config, read, device.gpu().map(|gpu| gpu.pci), index)?;
    // Also by PEs that need no answer: PEs may be configured differently.
    let places = bootstrap.allgather("places of PEs", place.to_string().as_bytes())?;
    let places = on_node(nodes, me, &places);

    let (family, choice) = (config.hca().family(), config.hca_devices());
    let chosen = |card: Card, distance: Option<Distance>| {
        let found = || read.map_or(Distance::Unknown, |machine| machine.distance_to(&place, &card.device));
        let distance = distance.unwrap_or_else(found);
        let rail = read.and_then(|machine| machine.rail(family, choice, &card));
        Chosen { card, distance, place: place.clone(), rail }
    };
    // Devices that are named, whether or not they are there.
    if let Some(card) = config.hca().card() {
        return Ok((vec![chosen(card.clone(), None)], places));
    }
    if let Some(cards) = choice.exact(index, &place)? {
        return Ok((cards.iter().map(|card| chosen(card.clone(), None)).collect(), places));
    }
    let machine = machine.as_ref().map_err(Clone::clone)?;
    let assigned = machine.assign(family, choice, config.hca_devices_per_pe().given(), &places)?;
    let mine = assigned.get(index).ok_or(TopologyError::NoDevice)?;
    let mine = mine.iter().map(|it: &Assignment<'_>| chosen(it.card(), Some(it.distance))).collect();
    Ok((mine, places))
}

/// A card by which a PE may push.
#[derive(Debug)]
pub(super) struct OnRail {
    pub chosen: Chosen,
    /// Which way topology has to that card's rail, and why.
    pub way: Way,
    pub reason: String,
}

/// The PEs of a node.
pub(super) struct OnNode<'a> {
    /// Where each works.
    pub places: &'a [Place],
    /// The rail of the first card of each, as far as it is known.
    pub rails: Vec<Option<Rail>>,
    /// This PE's number among them.
    pub me: usize,
    /// To whose memory this PE can store.
    pub reached: Vec<bool>,
}

/// Returns the cards of this PE's node that are on these rails, for a PE whose own card is `own`.
///
/// # Errors
/// There is no such card that PEs may use, in words.
pub(super) fn on_rails(
    config: &Config,
    own: &Chosen,
    node: &OnNode<'_>,
    rails: &[u32],
) -> std::result::Result<Vec<OnRail>, String> {
    let (family, choice) = (config.hca().family(), config.hca_devices());
    let machine = machine(config).map_err(|error| error.to_string())?;
    let card_of = |rail: &Option<Rail>| rail.and_then(|rail| machine.card_on(family, choice, rail.number));
    let cards: Vec<Card> = node.rails.iter().map(|rail| card_of(rail).unwrap_or_else(|| own.card.clone())).collect();
    let reaches = |from: usize, to: usize| from == node.me && node.reached.get(to).is_some_and(|reached| *reached);
    let mut routes =
        machine.routes((family, choice), node.places, &cards, reaches).map_err(|error| error.to_string())?;
    if node.me >= routes.len() {
        return Err("the PEs of its node have not told each other where they work".to_owned());
    }
    let routes = routes.swap_remove(node.me);
    let of_rail = |number: &u32| {
        let card = machine.card_on(family, choice, *number);
        let route = routes.iter().find(|route| route.rail.number == *number);
        let (Some(card), Some(route)) = (card, route) else {
            return Err(format!(
                "its node has no card on rail {number} that PEs may use; OXSHMEM_HCA_DEVICES names those that they may"
            ));
        };
        let distance = machine.distance_to(&own.place, &card.device);
        let chosen = Chosen { card, distance, place: own.place.clone(), rail: Some(route.rail) };
        Ok(OnRail { chosen, way: route.way, reason: route.reason.clone() })
    };
    rails.iter().map(of_rail).collect()
}

/// Returns where each PE of the node of `me` works, which is known of all PEs as text.
fn on_node(nodes: &Nodes, me: usize, places: &[Vec<u8>]) -> Vec<Place> {
    let place = |pe: &usize| {
        let text = places.get(*pe).map(|bytes| String::from_utf8_lossy(bytes));
        text.and_then(|text| text.parse().ok()).unwrap_or(Place::Anywhere)
    };
    nodes.members(me).iter().map(place).collect()
}

/// Refuses a device in whose memory a card's later writes may become visible before earlier ones: a
/// kernel could see a signal before its data. (NVSHMEM and NCCL flush by reads through the card
/// then, `ncclTopoNeedFlush`; no platform with GPUs that this library runs on needs it.)
fn check_write_ordering(ordering: i32, device: &str) -> Result<()> {
    if ordering >= ORDERED_FOR_OWNER {
        return Ok(());
    }
    let what = format!(
        "it does not order the writes of network cards (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING is {ordering}, {ORDERED_FOR_OWNER} is \
         needed), so a signal could be seen before its data; use OXSHMEM_HCA=soft or OXSHMEM_TRANSPORT=p2p"
    );
    Err(TransportError::WriteOrdering { device: device.to_owned(), what }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_shared_out_among_the_pes_that_were_found_on_the_node() {
        let nodes = Nodes::by_name(&["a", "b", "a", "b"]);
        let places = ["node 0", "node 1", "node 2", "nowhere"].map(|place| place.as_bytes().to_vec());
        assert_eq!(on_node(&nodes, 2, &places), [Place::Node(0), Place::Node(2)]);
        assert_eq!(on_node(&nodes, 3, &places), [Place::Node(1), Place::Anywhere]);
    }

    /// Without GPUs PEs take those of a description in turn; a GPU has to be among them.
    #[test]
    fn a_described_machine_has_the_places_of_pes() -> Result<()> {
        let config = Config::builder().topology(std::path::PathBuf::from("machine.txt")).build()?;
        let text = "gpu 0 pci0000:15/0000:1b:00.0\ngpu 1 pci0000:3d/0000:43:00.0";
        let machine = Topology::parse(text).map_err(|what| TopologyError::Unreadable { reason: what })?;
        let on = |index| place(&config, Some(&machine), None, index);
        assert_eq!((on(1)?, on(2)?), (Place::Pci("0000:43:00.0".into()), Place::Pci("0000:1b:00.0".into())));
        let gpu = |pci: &str| place(&config, Some(&machine), Some(pci.to_owned()), 0);
        assert_eq!(gpu("0000:43:00.0")?, Place::Pci("0000:43:00.0".into()));
        let error = gpu("0000:44:00.0").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains("OXSHMEM_TOPOLOGY=machine.txt does not describe the GPU of this PE (pci 0000:44:00.0)"),
            "{error}"
        );
        let cards_alone =
            Topology::parse("rdma a - - 1:CA").map_err(|what| TopologyError::Unreadable { reason: what })?;
        assert_eq!(place(&config, Some(&cards_alone), None, 0)?, Place::of_this_thread());
        Ok(())
    }

    #[test]
    fn a_device_that_does_not_order_writes_is_refused() {
        for ordering in [100, 200] {
            assert!(check_write_ordering(ordering, "cuda:0").is_ok());
        }
        let error = check_write_ordering(0, "cuda:0").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("device cuda:0: it does not order") && error.contains("ORDERING is 0"), "{error}");
    }
}
