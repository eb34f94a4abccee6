//! Which RDMA device a PE uses: the one that the configuration names, or one near its GPU or CPUs.

use oxshmem_hca::topology::{Card, Distance, Family, Place, Topology, TopologyError};

use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Hca};
use crate::device::Device;

impl From<TopologyError> for crate::Error {
    fn from(error: TopologyError) -> Self {
        Self::Hca(error.into())
    }
}

/// The device of a PE, and how far it is from where the PE works.
#[derive(Debug)]
pub(super) struct Chosen {
    pub card: Card,
    pub distance: Distance,
}

impl Chosen {
    /// A device that is named, whether or not it is there.
    fn named(card: &Card, place: &Place) -> Self {
        let topology = Topology::of_this_machine().ok();
        let distance = topology.map_or(Distance::Unknown, |topology| topology.distance_to(place, &card.device));
        Self { card: card.clone(), distance }
    }
}

/// The device and port of this PE. Where the configuration does not name them, the PEs of the node tell each other where they work, and share out
/// the devices; all of them come to the same answer. Collective.
pub(super) fn choose(config: &Config, bootstrap: &Bootstrap, device: &dyn Device) -> Result<Chosen> {
    let place = device.gpu().map_or_else(Place::of_this_thread, |gpu| Place::Pci(gpu.pci));
    // Also by PEs that need no answer: PEs may be configured differently.
    let places = bootstrap.allgather("places of PEs", place.to_string().as_bytes())?;
    let node = bootstrap.node_peers();
    let index = node.iter().position(|pe| *pe == bootstrap.rank()).unwrap_or_default();

    if let Some(card) = named(config.hca()) {
        return Ok(Chosen::named(card, &place));
    }
    if let Some(card) = config.hca_devices().exact(index, &place)? {
        return Ok(Chosen::named(card, &place));
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
    let chosen = topology.assign(family(config.hca()), config.hca_devices(), &places)?;
    let mine = chosen.get(index).ok_or(TopologyError::NoDevice)?;
    let distance = mine.distance;
    tracing::info!(pe = bootstrap.rank(), device = mine.device.name, port = mine.port.number, %place, %distance, "RDMA device");
    if let (Distance::System, Some(consequence)) = (distance, distance.consequence()) {
        tracing::warn!(
            "PE {} ({place}) uses {}, which is {distance}: {consequence}",
            bootstrap.rank(),
            mine.device.name
        );
    }
    Ok(Chosen { card: Card { device: mine.device.name.clone(), port: Some(mine.port.number) }, distance })
}

/// The device that `OXSHMEM_HCA` itself names.
fn named(hca: &Hca) -> Option<&Card> {
    match hca {
        Hca::Verbs { card } | Hca::Mlx5 { card } => card.as_ref(),
        Hca::Auto | Hca::Soft | Hca::Null => None,
    }
}

fn family(hca: &Hca) -> Family {
    match hca {
        Hca::Verbs { .. } => Family::Verbs,
        Hca::Auto | Hca::Soft | Hca::Null | Hca::Mlx5 { .. } => Family::Mlx5,
    }
}
