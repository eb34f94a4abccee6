//! Which PEs of the node load from and store to each other's memory: those that the plan lets and whose devices both can.

use super::{LoadStore, NetworkKind, Plan, TransportError};
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{Config, Transport};
use crate::device::Device;

impl Plan {
    /// The plan with the network for those PEs whose devices have no access to each other's memory, and what every PE's device is.
    /// Collective.
    ///
    /// # Errors
    /// There are such PEs, and the configuration allows no network.
    pub(crate) fn settle(
        self,
        config: &Config,
        device: &dyn Device,
        bootstrap: &Bootstrap,
    ) -> Result<(Self, Vec<String>)> {
        let me = bootstrap.rank() as usize;
        let faults = pairs(config.p2p_faults())?;
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

        let missing = (0..count).filter(|slot| obstacles[*slot].is_some()).fold(0u64, |mask, slot| mask | 1 << slot);
        let told = bootstrap.allgather("reach of the devices", &missing.to_le_bytes())?;
        let told = told
            .into_iter()
            .enumerate()
            .map(|(pe, mask)| mask.try_into().map(u64::from_le_bytes).map_err(|_| TransportError::Reach { pe }))
            .collect::<Result<Vec<u64>, _>>()?;
        for (pe, slot) in self.direct_peers(me) {
            // PEs of a run agree on where it begins.
            if told[pe] >> (me - first) & 1 == 1 {
                obstacles[slot].get_or_insert_with(|| "its device has none to this PE's memory".to_owned());
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
        // Queue pairs are set up by all PEs together, also by those that reach everybody.
        let needed = told.iter().any(|missing| *missing != 0);
        let network = self.network.or(needed.then(|| NetworkKind::of(config)));
        Ok((Self { direct, network, ..self }, devices))
    }
}

/// The pairs of PEs in `OXSHMEM_P2P_FAULTS`, the lower number first.
fn pairs(text: &str) -> Result<Vec<(usize, usize)>, TransportError> {
    let pair = |pair: &str| {
        let (a, b) = pair.split_once('-')?;
        let (a, b): (usize, usize) = (a.trim().parse().ok()?, b.trim().parse().ok()?);
        (a != b).then_some((a.min(b), a.max(b)))
    };
    let parts = text.split(',').filter(|_| !text.trim().is_empty());
    parts.map(|part| pair(part).ok_or_else(|| TransportError::Pair { pair: part.trim().to_owned() })).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_or_named() {
        assert_eq!(pairs(" ").unwrap(), []);
        assert_eq!(pairs("0-1, 3-2").unwrap(), [(0, 1), (2, 3)]);
        for (text, wrong) in [("0-1,", ""), ("1-1", "1-1"), ("0-1,2", "2"), ("a-b", "a-b")] {
            assert!(matches!(pairs(text), Err(TransportError::Pair { pair }) if pair == wrong), "{text}");
        }
    }
}
