//! Which PEs of the node load from and store to each other's memory: those that the plan lets and
//! whose devices both can.

use std::collections::{HashMap, HashSet};

use super::error::TransportError;
use super::plan::{MAX_LOAD_STORE_PES, NetworkKind, Plan};
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{Atomics, Config, Transport};
use crate::device::{Device, DeviceIdentity};
use oxshmem_system::words::low32;

impl Plan {
    /// Returns the plan with the network for those PEs whose devices have no access to each other's
    /// memory; what every PE's device is; and which PEs of the job load from and store to each
    /// other's memory. Collective.
    ///
    /// # Errors
    /// There are such PEs, and the configuration allows no network.
    pub(crate) fn settle(
        self,
        config: &Config,
        device: &dyn Device,
        bootstrap: &Bootstrap,
    ) -> Result<(Self, Vec<DeviceIdentity>, PeerAccess)> {
        let me = bootstrap.rank() as usize;
        let faults = pairs(config.p2p_faults(), bootstrap.size() as usize)?;
        let devices = bootstrap.allgather("devices", &device.identity().to_bytes())?;
        let devices: Vec<DeviceIdentity> = devices.iter().map(|told| DeviceIdentity::told(told)).collect();
        let members = self.neighbours.members();
        let obstacle = |pe: &usize| {
            if faults.contains(&(me.min(*pe), me.max(*pe))) {
                Some("OXSHMEM_P2P_FAULTS says so".to_owned())
            } else if *pe == me {
                None
            } else {
                device.reaches(&devices[*pe]).err()
            }
        };
        let mut obstacles: Vec<Option<String>> = members.iter().map(obstacle).collect();

        let reached = (0..).zip(&obstacles).fold(0u128, |mask, (i, reason)| mask | u128::from(reason.is_none()) << i);
        let mine = [&low32(self.neighbours.first() as u64).to_le_bytes()[..], &reached.to_le_bytes()].concat();
        let told = bootstrap.allgather("reach of the devices", &mine)?;
        let reach = PeerAccess::parse(&told, &devices)?;
        for (pe, reason) in members.iter().zip(&mut obstacles) {
            if reason.is_none() && !reach.is_mutual(me, *pe) {
                *reason = Some("its device has none to this PE's memory".to_owned());
            }
        }

        for (pe, reason) in members.iter().zip(&obstacles) {
            let (pe, Some(reason)) = (*pe, reason) else { continue };
            if config.transport() == Transport::P2p {
                let (device, peer_device) = (devices[me].to_string(), devices[pe].to_string());
                let reason = reason.clone();
                return Err(TransportError::NoPeerAccess { me, device, pe, peer_device, reason }.into());
            }
            tracing::warn!(
                "PE {me} ({}) has no load/store access to the memory of PE {pe} ({}): {reason}; it is reached over the network",
                devices[me],
                devices[pe]
            );
        }
        let direct: Vec<usize> =
            members.iter().zip(&obstacles).filter(|(_, reason)| reason.is_none()).map(|(pe, _)| *pe).collect();
        // Queue pairs are set up by all PEs together, also by those that reach every PE by load and
        // store.
        let network = self.network.or((!reach.is_whole()).then(|| NetworkKind::of(config)));
        let apart = direct.iter().find(|pe| **pe != me && !device.shares_atomics(&devices[**pe]));
        if let Some(pe) = apart
            && (network.is_none() || config.atomics() == Atomics::Gpu)
        {
            tracing::warn!(
                "atomics and signals that add between PE {me} ({}) and PE {pe} ({}) may lose updates: the link between these GPUs has no \
                 native atomics; let one PE change a word, or open a network, whose cards do atomics then (OXSHMEM_TRANSPORT, \
                 OXSHMEM_ATOMICS=auto)",
                devices[me],
                devices[*pe]
            );
        }
        let shares_atomics = apart.is_none();
        Ok((Self { direct, shares_atomics, network, ..self }, devices, reach))
    }
}

/// Which PEs load from and store to each other's memory. Every PE knows the same of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerAccess {
    by_pe: Vec<Access>,
    /// The first PE that has the same device, by PE.
    devices: Vec<usize>,
}

/// What a PE said of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Access {
    /// The first of its [`Neighbours`](super::plan::Neighbours), which no other PEs have.
    first: usize,
    /// Its place among them.
    place: usize,
    /// Bit i: its device reaches the memory of the one at place i.
    reached: u128,
}

impl PeerAccess {
    /// Reads what each PE has told, and the identity of its device.
    fn parse(told: &[Vec<u8>], devices: &[DeviceIdentity]) -> Result<Self, TransportError> {
        let mut places = HashMap::new();
        let mut entry = |told: &[u8]| {
            let (first, reached) = told.split_first_chunk()?;
            let first = usize::try_from(u32::from_le_bytes(*first)).ok()?;
            let place = *places.entry(first).and_modify(|place| *place += 1).or_insert(0);
            let reached = u128::from_le_bytes(reached.try_into().ok()?);
            (place < MAX_LOAD_STORE_PES).then_some(Access { first, place, reached })
        };
        let entries = told.iter().enumerate().map(|(pe, told)| entry(told).ok_or(TransportError::Reach { pe }));
        let by_pe = entries.collect::<Result<_, _>>()?;
        let mut owners = HashMap::new();
        let keys = devices.iter().map(|device| &device.key);
        let devices = keys.enumerate().map(|(pe, key)| *owners.entry(key).or_insert(pe)).collect();
        Ok(Self { by_pe, devices })
    }

    /// Returns whether no two of these PEs share a device.
    pub(crate) fn have_own_devices(&self, pes: &[usize]) -> bool {
        let devices: HashSet<usize> = pes.iter().map(|pe| self.devices[*pe]).collect();
        devices.len() == pes.len()
    }

    /// Returns whether PEs `a` and `b` have places for each other's heaps.
    fn are_neighbours(&self, a: usize, b: usize) -> bool {
        self.by_pe[a].first == self.by_pe[b].first
    }

    /// Returns whether the PEs load from and store to each other's memory.
    pub(crate) fn is_mutual(&self, a: usize, b: usize) -> bool {
        let reaches = |a: usize, b: usize| self.by_pe[a].reached >> self.by_pe[b].place & 1 == 1;
        a == b || (self.are_neighbours(a, b) && reaches(a, b) && reaches(b, a))
    }

    /// Returns whether that holds for all neighbours.
    fn is_whole(&self) -> bool {
        let all = 0..self.by_pe.len();
        all.clone().all(|a| all.clone().all(|b| !self.are_neighbours(a, b) || self.is_mutual(a, b)))
    }

    /// Returns the PEs that reach each other and `me`, ascending, `me` included; every PE of the
    /// answer gets the same. Where reach is not transitive, PEs join in ascending order the first
    /// set all of whose members they reach.
    pub(crate) fn clique_of(&self, me: usize) -> Vec<usize> {
        let neighbours: Vec<usize> = (0..self.by_pe.len()).filter(|pe| self.are_neighbours(*pe, me)).collect();
        let cliques = self.cliques(&neighbours);
        let of_me = cliques.into_iter().find(|clique| clique.iter().any(|index| neighbours[*index] == me));
        of_me.map_or_else(|| vec![me], |clique| clique.into_iter().map(|index| neighbours[index]).collect())
    }

    /// Returns sets of these PEs that reach each other, as indices: in the given order, each PE
    /// joins the first set all of whose members it reaches.
    pub(crate) fn cliques(&self, pes: &[usize]) -> Vec<Vec<usize>> {
        let mut cliques: Vec<Vec<usize>> = Vec::new();
        for (index, pe) in pes.iter().enumerate() {
            match cliques.iter_mut().find(|clique| clique.iter().all(|member| self.is_mutual(pes[*member], *pe))) {
                Some(clique) => clique.push(index),
                None => cliques.push(vec![index]),
            }
        }
        cliques
    }
}

/// Returns the pairs of PEs in `OXSHMEM_P2P_FAULTS`, the lower number first.
fn pairs(text: &str, n_pes: usize) -> Result<Vec<(usize, usize)>, TransportError> {
    let pair = |pair: &str| {
        let (a, b) = pair.split_once('-')?;
        let (a, b): (usize, usize) = (a.trim().parse().ok()?, b.trim().parse().ok()?);
        (a != b).then_some((a.min(b), a.max(b)))
    };
    let parts = text.split(',').filter(|_| !text.trim().is_empty());
    let read = |part: &str| {
        let name = || part.trim().to_owned();
        let (a, b) = pair(part).ok_or_else(|| TransportError::Pair { pair: name() })?;
        if b < n_pes {
            Ok((a, b))
        } else {
            Err(TransportError::PairOutOfRange { pair: name(), pe: b, last: n_pes.saturating_sub(1) })
        }
    };
    parts.map(read).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns the neighbours, less the pairs that do not reach each other.
    fn neighbours(members: &[usize], faults: &[(usize, usize)]) -> Vec<(usize, Access)> {
        let apart = |a: usize, b: usize| faults.contains(&(a.min(b), a.max(b)));
        let reached = |pe: usize| {
            (0..).zip(members).filter(|(_, other)| !apart(pe, **other)).fold(0, |mask, (place, _)| mask | 1 << place)
        };
        let access = |(place, pe): (usize, &usize)| (*pe, Access { first: members[0], place, reached: reached(*pe) });
        members.iter().enumerate().map(access).collect()
    }

    fn of_all(mut entries: Vec<(usize, Access)>) -> PeerAccess {
        entries.sort_unstable_by_key(|(pe, _)| *pe);
        let devices = (0..entries.len()).collect();
        PeerAccess { by_pe: entries.into_iter().map(|(_, access)| access).collect(), devices }
    }

    #[test]
    fn sets_of_pes_that_reach_each_other_are_the_same_for_all_members() {
        // PeerAccess is not transitive: 1 reaches 0 and 3, which do not reach each other. 2 and 5
        // are another node.
        let reach = of_all([neighbours(&[0, 1, 3, 4], &[(0, 3), (3, 4)]), neighbours(&[2, 5], &[])].concat());
        let sets: Vec<_> = (0..6).map(|pe| reach.clique_of(pe)).collect();
        assert_eq!(sets, [vec![0, 1, 4], vec![0, 1, 4], vec![2, 5], vec![3], vec![0, 1, 4], vec![2, 5]]);
        for (pe, set) in sets.iter().enumerate() {
            assert!(set.iter().all(|a| set.iter().all(|b| reach.is_mutual(*a, *b))) && set.contains(&pe));
        }
        assert!(!reach.is_whole() && !reach.is_mutual(2, 4));
        // By index, in the given order.
        assert_eq!(reach.cliques(&[5, 3, 1, 0, 2]), [vec![0, 4], vec![1, 2], vec![3]]);
        assert!(of_all(neighbours(&[0, 1, 2], &[])).is_whole());
        // What one device lacks, both lack.
        let mut one_way = of_all(neighbours(&[0, 1], &[]));
        one_way.by_pe[1].reached = 0b10;
        assert_eq!(one_way.clique_of(0), [0]);
    }

    #[test]
    fn what_pes_say_of_their_reach_is_read_or_refused() {
        let word = |first: u32, reached: u128| [&first.to_le_bytes()[..], &reached.to_le_bytes()].concat();
        let told = [word(0, 0b11), word(1, 1), word(0, 0b10)];
        let gpu = |key: &str, name: &str| DeviceIdentity { key: key.to_owned(), name: name.to_owned() };
        let devices = [gpu("b0", "GPU 0, H200"), gpu("a0", "GPU 0, H200"), gpu("b0", "GPU 1, H200")];
        let reach = PeerAccess::parse(&told, &devices).unwrap();
        let expected = [(0, 0, 0b11), (1, 0, 1), (0, 1, 0b10)];
        assert_eq!(reach.by_pe, expected.map(|(first, place, reached)| Access { first, place, reached }));
        assert_eq!(
            [&[0, 1][..], &[1, 2], &[0, 2], &[2]].map(|pes| reach.have_own_devices(pes)),
            [true, true, false, true]
        );
        // Another build says something else.
        for wrong in [vec![], vec![0; 16], vec![0; 21]] {
            assert!(matches!(
                PeerAccess::parse(&[word(0, 0), wrong], &devices[..2]),
                Err(TransportError::Reach { pe: 1 })
            ));
        }
        assert!(matches!(PeerAccess::parse(&vec![word(0, 0); 129], &[]), Err(TransportError::Reach { pe: 128 })));
    }

    #[test]
    fn pairs_are_read_or_named() {
        assert_eq!(pairs(" ", 2).unwrap(), []);
        assert_eq!(pairs("0-1, 3-2", 4).unwrap(), [(0, 1), (2, 3)]);
        for (text, wrong) in [("0-1,", ""), ("1-1", "1-1"), ("0-1,2", "2"), ("a-b", "a-b")] {
            assert!(matches!(pairs(text, 4), Err(TransportError::Pair { pair }) if pair == wrong), "{text}");
        }
        let error = pairs("0-1,0-9", 2).unwrap_err().to_string();
        assert!(error.contains("`0-9` names PE 9") && error.contains("are 0 to 1"), "{error}");
    }
}
