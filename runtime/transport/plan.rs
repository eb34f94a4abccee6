//! The plan of a job's paths: which PEs are reached by load and store, and what serves the others.

use super::error::TransportError;
use super::near::Nodes;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Hca, MAX_NPES, Network, Transport};

/// The most PEs that load from and store to each other's memory: each has a connection to every
/// other one.
pub(super) const MAX_LOAD_STORE_PES: usize = 128;
/// The most addresses that are reserved for heaps of PEs: a quarter of what a process has on the
/// processors of today.
const MOST_RESERVED: u64 = 1 << 45;

/// PEs of one node whose heaps have places beside each other, ascending, at most
/// [`MAX_LOAD_STORE_PES`]. There is a place for every PE between the first and the last of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbours(Vec<usize>);

impl Neighbours {
    /// Returns the piece of the PEs of a node, ascending, that `me` is in: the same for all of its
    /// members. A piece ends where it has enough PEs, or enough addresses for heaps of `heap_max`
    /// bytes.
    fn around(me: usize, node: &[usize], heap_max: u64) -> Self {
        let slots = usize::try_from((MOST_RESERVED / heap_max.max(1)).max(1)).unwrap_or(usize::MAX);
        let mut piece: Vec<usize> = Vec::new();
        for pe in node {
            let fits = piece.first().is_none_or(|first| piece.len() < MAX_LOAD_STORE_PES && pe - first < slots);
            if !fits {
                if piece.contains(&me) {
                    break;
                }
                piece.clear();
            }
            piece.push(*pe);
        }
        Self(piece)
    }

    /// Returns the first PE.
    pub(crate) fn first(&self) -> usize {
        self.0.first().copied().unwrap_or(0)
    }

    /// Returns how many places there are.
    pub(crate) fn slots(&self) -> usize {
        self.0.last().map_or(0, |last| last - self.first() + 1)
    }

    /// Returns the PEs.
    pub(super) fn members(&self) -> &[usize] {
        &self.0
    }
}

/// How the PEs of a job are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub nodes: Nodes,
    /// This PE and those whose heaps have places beside its heap.
    pub neighbours: Neighbours,
    /// Those of them whose heaps are mapped here, as this PE's is there; ascending. This PE is one.
    pub(super) direct: Vec<usize>,
    /// Whether this PE's atomics on their memory are atomic with those of their devices.
    pub shares_atomics: bool,
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

/// Returns whether no PE reaches another by load and store, on purpose.
fn is_alone(config: &Config) -> bool {
    config.disable_p2p() || matches!(config.transport(), Transport::Ibgda | Transport::Ibrc)
}

impl Plan {
    /// Decides per peer: load/store inside the node unless the configuration forbids it, the
    /// network for all others.
    pub(crate) fn new(config: &Config, bootstrap: &Bootstrap, nodes: Nodes) -> Result<Self, TransportError> {
        let (me, n_pes) = (bootstrap.rank() as usize, bootstrap.size() as usize);
        let node = nodes.members(me);
        let neighbours =
            if is_alone(config) { Neighbours(vec![me]) } else { Neighbours::around(me, &node, config.heap_max().0) };
        let outside = (0..n_pes).find(|pe| neighbours.members().binary_search(pe).is_err());
        if let (Transport::P2p, Some(pe)) = (config.transport(), outside) {
            return Err(TransportError::NotReachable {
                me,
                my_host: bootstrap.peers()[me].host.clone(),
                pe,
                host: bootstrap.peers()[pe].host.clone(),
                reason: if config.disable_p2p() {
                    "OXSHMEM_DISABLE_P2P=1"
                } else if node.contains(&pe) {
                    "it is on the same node, but not among the 128 PEs whose heaps can be mapped, which have 32 TiB of addresses together \
                     (OXSHMEM_HEAP_MAX for each)"
                } else {
                    "it is on another node, or in another network namespace, or a container that shares no memory with this one"
                },
            });
        }
        let direct = neighbours.members().to_vec();
        Ok(Self { nodes, neighbours, direct, shares_atomics: true, network: outside.map(|_| NetworkKind::of(config)) })
    }

    /// Returns whether any two PEs of the job may reach each other by load and store. Where the
    /// devices of a node have no access to each other, none may after all.
    pub(super) fn shares_memory(&self, config: &Config) -> bool {
        !is_alone(config) && !self.nodes.are_of_one_each()
    }

    /// Returns whether the heap of `pe` is mapped here.
    pub(crate) fn is_direct(&self, pe: usize) -> bool {
        self.direct.binary_search(&pe).is_ok()
    }

    /// Returns the PEs whose heaps are mapped here, except for `me`, with the place of each.
    pub(crate) fn direct_peers(&self, me: usize) -> Vec<(usize, usize)> {
        let first = self.neighbours.first();
        self.direct.iter().filter(|pe| **pe != me).map(|pe| (*pe, pe - first)).collect()
    }

    /// Fills in which PEs device code reaches by load and store.
    pub(crate) fn describe(&self, state: &mut abi::State) {
        let first = self.neighbours.first();
        state.p2p_first = i32::try_from(first).unwrap_or(i32::MAX);
        state.p2p_count = i32::try_from(self.neighbours.slots()).unwrap_or(i32::MAX);
        for pe in &self.direct {
            let slot = pe - first;
            state.p2p_reach[slot / 64] |= 1 << (slot % 64);
        }
        let run = self.direct.iter().enumerate().take_while(|(slot, pe)| *slot == **pe - first).count();
        state.p2p_run = u32::try_from(run).unwrap_or(u32::MAX);
    }
}

// Every PE of a job has a bit.
const _: () = assert!(abi::MAX_PES == MAX_NPES);

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Returns the pieces that the PEs of a node are in, after a check that members agree.
    fn pieces(node: &[usize], heap_max: u64) -> Vec<Neighbours> {
        let mut pieces: Vec<Neighbours> = Vec::new();
        for me in node {
            let piece = Neighbours::around(*me, node, heap_max);
            assert!(piece.members().contains(me) && piece.members().len() <= 128);
            assert!(piece.slots() as u64 * heap_max <= MOST_RESERVED);
            for pe in piece.members() {
                assert_eq!(Neighbours::around(*pe, node, heap_max), piece);
            }
            if pieces.last() != Some(&piece) {
                pieces.push(piece);
            }
        }
        pieces
    }

    #[test]
    fn members_need_not_be_consecutive() {
        assert_eq!(pieces(&[2, 3, 4, 7], GIB), [Neighbours(vec![2, 3, 4, 7])]);
        let cyclic: Vec<usize> = (1..1024).step_by(8).collect();
        let [piece] = &pieces(&cyclic, 16 * GIB)[..] else { panic!("not one piece") };
        assert_eq!((piece.first(), piece.slots(), piece.members().len()), (1, 1017, 128));
    }

    #[test]
    fn members_of_a_large_node_agree_on_its_pieces() {
        let lengths = |node: &[usize], heap_max| -> Vec<usize> {
            pieces(node, heap_max).iter().map(|piece| piece.members().len()).collect()
        };
        let node: Vec<usize> = (10..300).collect();
        assert_eq!(lengths(&node, 16 * GIB), [128, 128, 34]);
        // There are addresses for 64 heaps of this size.
        assert_eq!(lengths(&node, 512 * GIB), [64, 64, 64, 64, 34]);
        let cyclic: Vec<usize> = (0..256).step_by(4).collect();
        assert_eq!(lengths(&cyclic, 512 * GIB), [16; 4]);
    }

    #[test]
    fn device_code_is_told_every_mapped_heap() {
        let direct = vec![5, 6, 70, 200];
        let nodes = Nodes::by_name(&["a"; 201]);
        let neighbours = Neighbours(vec![5, 6, 70, 133, 200]);
        let plan = Plan { nodes, neighbours, direct: direct.clone(), shares_atomics: true, network: None };
        let mut state = abi::State::default();
        plan.describe(&mut state);
        assert_eq!((state.p2p_first, state.p2p_count, state.p2p_run), (5, 196, 2));
        let told = |pe: usize| state.p2p_reach[(pe - 5) / 64] >> ((pe - 5) % 64) & 1 == 1;
        let all: Vec<usize> = (5..201).filter(|pe| told(*pe)).collect();
        assert_eq!(all, direct);
        assert_eq!(plan.direct_peers(70), [(5, 0), (6, 1), (200, 195)]);
    }
}
