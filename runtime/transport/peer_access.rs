//! Which PEs of the node load from and store to each other's memory: those that the plan lets and
//! whose devices both can.

use super::error::TransportError;
use super::plan::{LoadStore, MAX_LOAD_STORE_PES, NetworkKind, Plan};
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Transport};
use crate::device::Device;

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
    ) -> Result<(Self, Vec<String>, PeerAccess)> {
        let me = bootstrap.rank() as usize;
        let faults = pairs(config.p2p_faults(), bootstrap.size() as usize)?;
        let devices = bootstrap.allgather("devices", device.identity().as_bytes())?;
        let devices: Vec<String> = devices.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let LoadStore { first, count } = self.load_store;
        let mut obstacles: Vec<Option<String>> = vec![None; count];
        for (pe, slot) in self.direct_peers(me) {
            obstacles[slot] = if faults.contains(&(me.min(pe), me.max(pe))) {
                Some("OXSHMEM_P2P_FAULTS says so".to_owned())
            } else {
                device.reaches(&devices[pe]).err()
            };
        }

        let reached = (0..count).filter(|slot| obstacles[*slot].is_none()).fold(0u64, |mask, slot| mask | 1 << slot);
        let mine = [first as u64, reached].map(u64::to_le_bytes).concat();
        let told = bootstrap.allgather("reach of the devices", &mine)?;
        let reach = PeerAccess::parse(&told)?;
        for (pe, slot) in self.direct_peers(me) {
            if obstacles[slot].is_none() && !reach.is_mutual(me, pe) {
                obstacles[slot] = Some("its device has none to this PE's memory".to_owned());
            }
        }

        let mut direct = self.direct;
        for (slot, reason) in obstacles.into_iter().enumerate() {
            let Some(reason) = reason else { continue };
            let pe = first + slot;
            if config.transport() == Transport::P2p {
                let (device, peer_device) = (devices[me].clone(), devices[pe].clone());
                return Err(TransportError::NoPeerAccess { me, device, pe, peer_device, reason }.into());
            }
            direct &= !(1 << slot);
            tracing::warn!(
                "PE {me} ({}) has no load/store access to the memory of PE {pe} ({}): {reason}; it is reached over the network",
                devices[me],
                devices[pe]
            );
        }
        // Queue pairs are set up by all PEs together, also by those that reach every PE by load and
        // store.
        let network = self.network.or((!reach.is_whole()).then(|| NetworkKind::of(config)));
        Ok((Self { direct, network, ..self }, devices, reach))
    }
}

/// Which PEs load from and store to each other's memory. Every PE knows the same of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerAccess {
    /// By PE: where its run of PEs begins (see [`LoadStore`]), and which PEs of the run its device
    /// reaches.
    by_pe: Vec<(usize, u64)>,
}

impl PeerAccess {
    fn parse(told: &[Vec<u8>]) -> Result<Self, TransportError> {
        let entry = |told: &[u8]| {
            let ([first, reached], []) = told.as_chunks::<8>() else { return None };
            Some((usize::try_from(u64::from_le_bytes(*first)).ok()?, u64::from_le_bytes(*reached)))
        };
        let entries = told.iter().enumerate().map(|(pe, told)| entry(told).ok_or(TransportError::Reach { pe }));
        Ok(Self { by_pe: entries.collect::<Result<_, _>>()? })
    }

    /// Returns whether PE `a` reaches the memory of `b`, by what its device says alone.
    fn reaches(&self, a: usize, b: usize) -> bool {
        let (first, reached) = self.by_pe[a];
        b.checked_sub(first).is_some_and(|slot| slot < MAX_LOAD_STORE_PES && reached >> slot & 1 == 1)
    }

    /// Returns whether the PEs load from and store to each other's memory.
    pub(crate) fn is_mutual(&self, a: usize, b: usize) -> bool {
        a == b || (self.by_pe[a].0 == self.by_pe[b].0 && self.reaches(a, b) && self.reaches(b, a))
    }

    /// Returns whether that holds for all that share a run.
    fn is_whole(&self) -> bool {
        let all = 0..self.by_pe.len();
        all.clone().all(|a| all.clone().all(|b| self.by_pe[a].0 != self.by_pe[b].0 || self.is_mutual(a, b)))
    }

    /// Returns whether all of these reach each other.
    pub(crate) fn is_clique(&self, pes: &[usize]) -> bool {
        pes.iter().all(|a| pes.iter().all(|b| self.is_mutual(*a, *b)))
    }

    /// Returns the PEs that reach each other and `me`, ascending, `me` included; every PE of the
    /// answer gets the same. Where reach is not transitive, PEs join in ascending order the first
    /// set all of whose members they reach.
    pub(crate) fn clique_of(&self, me: usize) -> Vec<usize> {
        let mut cliques: Vec<Vec<usize>> = Vec::new();
        for pe in (0..self.by_pe.len()).filter(|pe| self.by_pe[*pe].0 == self.by_pe[me].0) {
            match cliques.iter_mut().find(|clique| clique.iter().all(|member| self.is_mutual(*member, pe))) {
                Some(clique) => clique.push(pe),
                None => cliques.push(vec![pe]),
            }
        }
        cliques.into_iter().find(|clique| clique.contains(&me)).unwrap_or_else(|| vec![me])
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

    /// PEs of one run from `first` on, less the pairs that do not reach each other.
    fn run(first: usize, count: usize, faults: &[(usize, usize)]) -> Vec<(usize, u64)> {
        let reached = |pe: usize| {
            let apart = |other: usize| faults.contains(&(pe.min(other), pe.max(other)));
            (0..count).filter(|slot| !apart(first + slot)).fold(0, |mask, slot| mask | 1 << slot)
        };
        (first..first + count).map(|pe| (first, reached(pe))).collect()
    }

    #[test]
    fn sets_of_pes_that_reach_each_other_are_the_same_for_all_members() {
        // PeerAccess is not transitive: 1 reaches 0 and 2, which do not reach each other. 4 and 5
        // are another node.
        let by_pe = [run(0, 4, &[(0, 2), (2, 3)]), run(4, 2, &[])].concat();
        let reach = PeerAccess { by_pe };
        let sets: Vec<_> = (0..6).map(|pe| reach.clique_of(pe)).collect();
        assert_eq!(sets, [vec![0, 1, 3], vec![0, 1, 3], vec![2], vec![0, 1, 3], vec![4, 5], vec![4, 5]]);
        for (pe, set) in sets.iter().enumerate() {
            assert!(reach.is_clique(set) && set.contains(&pe));
        }
        assert!(!reach.is_whole() && !reach.is_mutual(3, 4) && !reach.is_clique(&[1, 2, 3]));
        assert!(PeerAccess { by_pe: run(0, 3, &[]) }.is_whole());
        // What one device lacks, both lack.
        let mut by_pe = run(0, 2, &[]);
        by_pe[1].1 = 0b10;
        assert_eq!(PeerAccess { by_pe }.clique_of(0), [0]);
    }

    #[test]
    fn reach_of_another_build_is_refused() {
        assert_eq!(PeerAccess::parse(&[vec![0; 16]]).unwrap().by_pe, [(0, 0)]);
        for told in [vec![], vec![0; 8], vec![0; 17]] {
            assert!(matches!(PeerAccess::parse(&[vec![0; 16], told]), Err(TransportError::Reach { pe: 1 })));
        }
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
