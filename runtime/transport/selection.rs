//! Which RDMA devices a PE uses: those that the configuration names, or some near its GPU or CPUs.

use oxshmem_hca::topology::{Assignment, Card, Distance, Place, Topology, TopologyError};

use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::device::Device;

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

/// The devices and ports of this PE: at least one, in the order of their names, or in that of a mapping; with `OXSHMEM_HCA=verbs` one. Where the
/// configuration does not name them, the PEs of the node tell each other where they work, and share out the devices; all of them come to the same
/// answer. Collective.
pub(super) fn choose(config: &Config, bootstrap: &Bootstrap, device: &dyn Device) -> Result<Vec<Chosen>> {
    let place = device.gpu().map_or_else(Place::of_this_thread, |gpu| Place::Pci(gpu.pci));
    // Also by PEs that need no answer: PEs may be configured differently.
    let places = bootstrap.allgather("places of PEs", place.to_string().as_bytes())?;
    let node = bootstrap.node_peers();
    let index = node.iter().position(|pe| *pe == bootstrap.rank()).unwrap_or_default();

    if let Some(card) = config.hca().card() {
        return Ok(Chosen::named(std::slice::from_ref(card), &place));
    }
    if let Some(cards) = config.hca_devices().exact(index, &place)? {
        return Ok(Chosen::named(cards, &place));
    }
    let places: Vec<Place> = node
        .iter()
        .map(|pe| {
            let text = places.get(*pe as usize).map(|bytes| String::from_utf8_lossy(bytes));
            text.and_then(|text| text.parse().ok()).unwrap_or(Place::Anywhere)
        })
        .collect();
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
