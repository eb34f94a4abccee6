//! Which RDMA devices a PE uses: those that the configuration names, or some near its GPU or CPUs.

use oxshmem_hca::topology::{Assignment, Card, Distance, Place, Topology, TopologyError};

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

/// A device of a PE, and how far it is from where the PE works.
#[derive(Debug)]
pub(super) struct Chosen {
    pub card: Card,
    pub distance: Distance,
}

impl Chosen {
    /// Devices that are named, whether or not they are there.
    fn named(cards: &[Card], place: &Place) -> Vec<Self> {
        let topology = Topology::of_this_machine().ok();
        let far = |card: &Card| {
            topology.as_ref().map_or(Distance::Unknown, |topology| topology.distance_to(place, &card.device))
        };
        cards.iter().map(|card| Self { card: card.clone(), distance: far(card) }).collect()
    }
}

/// The devices and ports of this PE: at least one, in the order of their names, or in that of a
/// mapping; with `OXSHMEM_HCA=verbs` one. Where the configuration does not name them, the PEs of
/// the node tell each other where they work, and share out the devices; all of them come to the
/// same answer. Collective.
pub(super) fn choose(
    config: &Config,
    bootstrap: &Bootstrap,
    nodes: &Nodes,
    device: &dyn Device,
) -> Result<Vec<Chosen>> {
    let place = device.gpu().map_or_else(Place::of_this_thread, |gpu| Place::Pci(gpu.pci));
    // Also by PEs that need no answer: PEs may be configured differently.
    let places = bootstrap.allgather("places of PEs", place.to_string().as_bytes())?;
    check_write_ordering(device.write_ordering(), &device.identity())?;
    let (index, places) = on_node(nodes, bootstrap.rank() as usize, &places);

    if let Some(card) = config.hca().card() {
        return Ok(Chosen::named(std::slice::from_ref(card), &place));
    }
    if let Some(cards) = config.hca_devices().exact(index, &place)? {
        return Ok(Chosen::named(cards, &place));
    }
    let topology =
        Topology::of_this_machine().map_err(|error| TopologyError::Unreadable { reason: error.to_string() })?;
    let per_pe = config.hca_devices_per_pe().given();
    let chosen = topology.assign(config.hca().family(), config.hca_devices(), per_pe, &places)?;
    let mine = chosen.get(index).ok_or(TopologyError::NoDevice)?;
    for Assignment { device, port, distance } in mine {
        tracing::info!(pe = bootstrap.rank(), device = device.name, port = port.number, %place, %distance, "RDMA device");
        if let (Distance::System, Some(consequence)) = (distance, distance.consequence()) {
            tracing::warn!(
                "PE {} ({place}) uses {}, which is {distance}: {consequence}",
                bootstrap.rank(),
                device.name
            );
        }
    }
    Ok(mine.iter().map(|it| Chosen { card: it.card(), distance: it.distance }).collect())
}

/// Returns this PE's number among those of its node, and where each of these works, which is known
/// of all PEs as text.
fn on_node(nodes: &Nodes, me: usize, places: &[Vec<u8>]) -> (usize, Vec<Place>) {
    let node = nodes.members(me);
    let place = |pe: &usize| {
        let text = places.get(*pe).map(|bytes| String::from_utf8_lossy(bytes));
        text.and_then(|text| text.parse().ok()).unwrap_or(Place::Anywhere)
    };
    (node.iter().take_while(|pe| **pe < me).count(), node.iter().map(place).collect())
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
        let (index, of_node) = on_node(&nodes, 2, &places);
        assert_eq!((index, of_node), (1, vec![Place::Node(0), Place::Node(2)]));
        let (index, of_node) = on_node(&nodes, 3, &places);
        assert_eq!((index, of_node), (1, vec![Place::Node(1), Place::Anywhere]));
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
