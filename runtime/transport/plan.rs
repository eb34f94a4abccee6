//! The plan of a job's paths: which PEs are reached by load and store, and what serves the others.

use super::error::TransportError;
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Hca, Network, Transport};

/// PEs that one word of the device state can describe.
pub(super) const MAX_LOAD_STORE_PES: usize = 64;

/// The run of PEs whose heaps have a place beside this PE's, which is among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadStore {
    pub first: usize,
    pub count: usize,
}

/// How the PEs of a job are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub load_store: LoadStore,
    /// Bit i: the heap of PE `load_store.first + i` is mapped here, and this PE's there.
    pub direct: u64,
    /// The network, if some PE needs one.
    pub network: Option<NetworkKind>,
}

/// What posts work requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkKind {
    /// Device code.
    Ibgda,
    /// The CPU proxy.
    Ibrc,
}

impl NetworkKind {
    pub(super) fn of(config: &Config) -> Self {
        // Plain verbs leave posting to the CPU.
        match (config.transport(), config.network(), config.hca()) {
            (Transport::Ibrc, ..) | (Transport::Auto, Network::Ibrc, _) => Self::Ibrc,
            (Transport::Auto, Network::Auto, Hca::Verbs { .. }) => Self::Ibrc,
            _ => Self::Ibgda,
        }
    }
}

impl Plan {
    /// Decides per peer: load/store inside the node unless the configuration forbids it, the
    /// network for everyone else.
    pub(crate) fn new(config: &Config, bootstrap: &Bootstrap) -> Result<Self, TransportError> {
        let (me, n_pes) = (bootstrap.rank() as usize, bootstrap.size() as usize);
        let node: Vec<usize> = bootstrap.node_peers().into_iter().map(|rank| rank as usize).collect();
        let alone = config.disable_p2p() || matches!(config.transport(), Transport::Ibgda | Transport::Ibrc);
        let load_store = if alone { LoadStore { first: me, count: 1 } } else { run_around(me, &node) };
        let reachable = |pe: usize| (load_store.first..load_store.first + load_store.count).contains(&pe);
        let outside = (0..n_pes).find(|pe| !reachable(*pe));
        if let (Transport::P2p, Some(pe)) = (config.transport(), outside) {
            return Err(TransportError::NotReachable {
                me,
                my_host: bootstrap.peers()[me].host.clone(),
                pe,
                host: bootstrap.peers()[pe].host.clone(),
                reason: if config.disable_p2p() {
                    "OXSHMEM_DISABLE_P2P=1"
                } else if node.contains(&pe) {
                    "it is on the same node, but outside the run of 64 consecutive PEs that can be mapped"
                } else {
                    "it is on another node, or in another network namespace"
                },
            });
        }
        let direct = u64::MAX >> (MAX_LOAD_STORE_PES - load_store.count);
        Ok(Self { load_store, direct, network: outside.map(|_| NetworkKind::of(config)) })
    }

    /// Returns whether the heap of `pe` is mapped here.
    pub(crate) fn is_direct(&self, pe: usize) -> bool {
        pe.checked_sub(self.load_store.first)
            .is_some_and(|slot| slot < self.load_store.count && self.direct >> slot & 1 == 1)
    }

    /// Returns the PEs whose heaps are mapped here, except for `me`, with the place of each.
    pub(crate) fn direct_peers(&self, me: usize) -> Vec<(usize, usize)> {
        let LoadStore { first, count } = self.load_store;
        (first..first + count).filter(|pe| *pe != me && self.is_direct(*pe)).map(|pe| (pe, pe - first)).collect()
    }
}

/// Returns the longest run of consecutive PEs of the node around `me`, at most
/// [`MAX_LOAD_STORE_PES`], the same for all of its members.
fn run_around(me: usize, node: &[usize]) -> LoadStore {
    let on_node = |pe: usize| node.binary_search(&pe).is_ok();
    let mut first = me;
    while first > 0 && on_node(first - 1) {
        first -= 1;
    }
    let mut end = me + 1;
    while on_node(end) {
        end += 1;
    }
    // Longer runs are cut in pieces that are the same for all PEs.
    first += (me - first) / MAX_LOAD_STORE_PES * MAX_LOAD_STORE_PES;
    LoadStore { first, count: (end - first).min(MAX_LOAD_STORE_PES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_another_node_begins() {
        let node = [2, 3, 4, 7];
        for me in [2, 3, 4] {
            assert_eq!(run_around(me, &node), LoadStore { first: 2, count: 3 });
        }
        assert_eq!(run_around(7, &node), LoadStore { first: 7, count: 1 });
    }

    #[test]
    fn members_of_a_long_run_agree_on_its_pieces() {
        let node: Vec<usize> = (10..200).collect();
        for me in 10..200 {
            let run = run_around(me, &node);
            assert!((run.first..run.first + run.count).contains(&me) && run.count <= 64);
            for pe in run.first..run.first + run.count {
                assert_eq!(run_around(pe, &node), run);
            }
        }
    }
}
