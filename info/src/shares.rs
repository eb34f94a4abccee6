//! Which cards fall to PEs, if there is one on each GPU.

use oxshmem::config::Config;
use oxshmem_hca::topology::{Assignment, Card, Place, Topology, TopologyError};

/// Returns the cards that PEs drive which are alone on this machine, one at each of `places`; or
/// why one has none. Cards that the configuration names need not be there.
pub fn shares(topology: &Topology, config: &Config, places: &[Place]) -> Vec<Result<Vec<Card>, TopologyError>> {
    let choice = config.hca_devices();
    let assigned = topology.assign(config.hca().family(), choice, config.hca_devices_per_pe().given(), places);
    let share = |(index, place): (usize, &Place)| {
        if let Some(card) = config.hca().card() {
            return Ok(vec![card.clone()]);
        }
        if let Some(cards) = choice.exact(index, place)? {
            return Ok(cards.to_vec());
        }
        let assigned = assigned.as_ref().map_err(Clone::clone)?;
        Ok(assigned.get(index).into_iter().flatten().map(Assignment::card).collect())
    };
    let mut shares: Vec<Result<Vec<Card>, TopologyError>> = places.iter().enumerate().map(share).collect();
    // All PEs drive as many as the one with the fewest has, and each card needs a QP to each peer.
    let fewest = shares.iter().flatten().map(Vec::len).min().unwrap_or_default();
    let driven = fewest.min(config.qps_per_peer() as usize);
    shares.iter_mut().flatten().for_each(|cards| cards.truncate(driven));
    shares
}
