//! Whether the sources of large puts that the CPU proxy posts are copied to host memory first, and
//! the copying.
//!
//! A card reads memory of a GPU at another socket across two root complexes and the link between
//! the sockets, which is slow on most machines; the GPU's copy engine writes to host memory, and
//! the card reads that. Nothing else is staged: what the card writes, and what is atomic, it does
//! in the memory itself. The choice is made by distance, from the table that decides for all
//! transports ([`choose`]); nothing is measured. Where device code posts, it copies by itself
//! ([`rings`](super::rings)).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use oxshmem_hca::provider::Attempt;
use oxshmem_hca::topology::{Way, fetch};
use oxshmem_proxy::staging::{Copied, Copier, CopyRequest, Staging};
use oxshmem_proxy::work::{Local, Registered};

use super::error::TransportError;
use super::fabric::{Fabric, Kind, Region, lkeys};
use crate::Result;
use crate::config::{self, ByteSize, Config};
use crate::device::{self, Device, DeviceError, HostMemory};

/// The least put that is staged unless `OXSHMEM_STAGING` says otherwise: below it, starting a
/// copy takes longer than it saves. An estimate; it awaits a machine to be measured on.
const FROM: u32 = 64 << 10;
/// Bounce slots: enough that copying, posting and reading go on at the same time.
const SLOTS: u32 = 32;
/// A slot holds four puts of the least size, within these limits.
const SLOT_BYTES: (u32, u32) = (4 << 10, 256 << 10);

/// Which puts are to be staged, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Those of at least this many bytes.
    pub from: Option<u32>,
    pub reason: String,
    /// The configuration says so, and there is no other way.
    pub is_asked: bool,
}

/// Returns the choice for all transports: what the setting says, or else what the table says, which
/// has the way and a reason. `least` is the least put that is staged unless the setting says
/// another.
pub(super) fn choose(setting: config::Staging, (way, reason): (Way, String), least: u32) -> Choice {
    let says_so = || format!("OXSHMEM_STAGING={setting} says so");
    let (from, reason) = match setting {
        config::Staging::Off => (None, says_so()),
        config::Staging::On => (Some(least), says_so()),
        config::Staging::From(size) => (Some(u32::try_from(size.0).unwrap_or(u32::MAX)), says_so()),
        config::Staging::Auto => (way.is_staged().then_some(least), reason),
    };
    Choice { from, reason, is_asked: setting != config::Staging::Auto }
}

/// Returns the choice for what the CPU proxy posts by a card, to which the table has this way.
pub(super) fn choose_for_proxy(setting: config::Staging, way: (Way, String)) -> Choice {
    choose(setting, way, FROM)
}

/// Follows a choice: where staging was chosen by itself and cannot be had, puts go directly.
fn follow<T>(choice: &Choice, make: impl FnOnce(u32) -> Result<T>) -> Result<(Option<T>, Vec<Attempt>)> {
    let direct =
        |reason: String| Attempt { what: "sources of puts read by the card itself".to_owned(), outcome: Ok(reason) };
    let Some(from) = choice.from else {
        return Ok((None, vec![direct(format!("in use: {}", choice.reason))]));
    };
    let what = format!("sources of puts of {} and more copied to host memory first", ByteSize(from.into()));
    match make(from) {
        Ok(made) => Ok((Some(made), vec![Attempt { what, outcome: Ok(format!("in use: {}", choice.reason)) }])),
        Err(error) if choice.is_asked => Err(error),
        Err(error) => {
            let failed = Attempt { what, outcome: Err(error.to_string()) };
            Ok((None, vec![failed, direct("in use".to_owned())]))
        }
    }
}

/// Registered memory by card and lkey: where it is in this process.
#[derive(Default)]
pub(super) struct Sources(RwLock<HashMap<(u32, u32), Source>>);

#[derive(Debug, Clone, Copy)]
struct Source {
    iova: u64,
    address: u64,
    bytes: u64,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

impl Sources {
    /// Adds memory that puts can come from, from now on, with its lkeys by card.
    pub(super) fn add(&self, region: &Region<'_>, lkeys: impl IntoIterator<Item = u32>) {
        let Region { iova, address, bytes, .. } = *region;
        let keys = (0u32..).zip(lkeys).map(|key| (key, Source { iova, address, bytes }));
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(keys);
    }

    /// Forgets memory with these lkeys by card.
    pub(super) fn remove(&self, lkeys: impl IntoIterator<Item = u32>) {
        let mut sources = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for key in (0u32..).zip(lkeys) {
            sources.remove(&key);
        }
    }

    /// Returns where `local` is in this process, if all of it is registered with the card under its
    /// key.
    fn find(&self, card: u32, local: Local) -> Option<u64> {
        let sources = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let source = sources.get(&(card, local.key))?;
        let into = local.address.checked_sub(source.iova)?;
        (into <= source.bytes && u64::from(local.length) <= source.bytes - into).then(|| source.address + into)
    }
}

/// Bounce slots, registered.
#[derive(Debug)]
pub(super) struct Bounce {
    pub staging: Staging,
    pub sources: Arc<Sources>,
    memory: Arc<dyn HostMemory>,
}

impl Bounce {
    /// Returns the bytes of the slots.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }
}

/// The slots, and what copies to them.
pub(super) type Staged = (Bounce, Box<dyn Copier>);

/// Returns what a PE does with large puts, and what was tried. The answer is to outlive `fabric`,
/// which it is registered with.
pub(super) fn set_up(
    config: &Config,
    device: &dyn Device,
    fabric: &mut dyn Fabric,
    me: u32,
) -> Result<(Option<Staged>, Vec<Attempt>)> {
    let setting = config.staging();
    let choice = choose_for_proxy(setting, fetch(device.gpu().is_some(), fabric.distance()));
    let made = follow(&choice, |from| make(from, device, fabric));
    let (made, attempts) =
        made.map_err(|source| TransportError::Staging { setting: setting.to_string(), source: Box::new(source) })?;
    for attempt in &attempts {
        // A way that was chosen because of where the card is, or that was chosen and cannot be had,
        // is worth a line.
        if choice.from.is_some() && !choice.is_asked {
            tracing::warn!("PE {me}: {attempt}");
        } else {
            tracing::info!(pe = me, "{attempt}");
        }
    }
    Ok((made, attempts))
}

fn make(from: u32, device: &dyn Device, fabric: &mut dyn Fabric) -> Result<Staged> {
    let length = from.saturating_mul(4).clamp(SLOT_BYTES.0, SLOT_BYTES.1);
    let bytes = u64::from(length) * u64::from(SLOTS);
    let memory: Arc<dyn HostMemory> = Arc::from(device.host_memory(bytes)?);
    let address = memory.address() as u64;
    let kind = Kind::Library;
    let region = Region { memory: None, device: None, kind, address, bytes, iova: address, remote: false };
    let copier = device.copier(Arc::clone(&memory))?;
    let keys = lkeys(&fabric.register(&region)?);
    let staging = Staging { from, bounce: Registered { address, length, keys }, slots: SLOTS };
    let sources = Arc::<Sources>::default();
    let copier = SlotCopier { sources: Arc::clone(&sources), slot_bytes: length as usize, copier, ended: Vec::new() };
    Ok((Bounce { staging, sources, memory }, Box::new(copier)))
}

/// Copies by key and slot.
struct SlotCopier {
    sources: Arc<Sources>,
    slot_bytes: usize,
    copier: Box<dyn device::Copier>,
    ended: Vec<(u32, std::result::Result<(), DeviceError>)>,
}

impl Copier for SlotCopier {
    fn start(&mut self, copy: &CopyRequest) -> std::result::Result<(), String> {
        let CopyRequest { slot, source, card } = *copy;
        let from = self.sources.find(card, source).ok_or_else(|| {
            let Local { address, length, key } = source;
            format!("no memory is registered under key {key:#x} for {length} bytes at {address:#x}")
        })?;
        let (at, bytes) = (slot as usize * self.slot_bytes, source.length as usize);
        // SAFETY: the source is registered, so it stays mapped while the network is there, to which
        // this belongs. The slot is in the memory that the copier was made for, and the engine uses
        // it for this copy alone.
        unsafe { self.copier.start(from, at, bytes, slot) }.map_err(|error| error.to_string())
    }

    fn poll(&mut self, ended: &mut Vec<Copied>) {
        self.copier.poll(&mut self.ended);
        let copied = |(slot, outcome): (u32, std::result::Result<(), DeviceError>)| Copied {
            slot,
            outcome: outcome.map_err(|error| error.to_string()),
        };
        ended.extend(self.ended.drain(..).map(copied));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use oxshmem_hca::topology::Distance;

    use super::*;

    fn refused() -> crate::Error {
        TransportError::Hca { device: "mlx5_0".into(), what: "no room".into() }.into()
    }

    #[test]
    fn puts_are_staged_where_the_card_is_at_another_node_alone() {
        use config::Staging::{Auto, From, Off, On};
        let (here, far) = (Some(Distance::Bridges(2)), Some(Distance::System));
        for (setting, is_gpu, distance, from, words) in [
            (Auto, true, far, Some(FROM), "the card is at another NUMA node"),
            (Auto, true, here, None, "the card is 2 PCIe bridges apart"),
            (Auto, true, Some(Distance::HostBridge), None, "at the same host bridge"),
            (Auto, true, Some(Distance::Node), None, "at the same NUMA node"),
            (Auto, true, Some(Distance::Unknown), None, "at an unknown distance"),
            (Auto, true, None, None, "there is no card"),
            (Auto, false, far, None, "they are in host memory"),
            (Off, true, far, None, "OXSHMEM_STAGING=off says so"),
            (On, true, here, Some(FROM), "OXSHMEM_STAGING=on says so"),
            (On, false, None, Some(FROM), "OXSHMEM_STAGING=on says so"),
            (From(ByteSize(4096)), true, far, Some(4096), "OXSHMEM_STAGING=4K says so"),
        ] {
            let choice = choose(setting, fetch(is_gpu, distance), FROM);
            assert_eq!((choice.from, choice.is_asked), (from, setting != Auto), "{setting} {distance:?}");
            assert!(choice.reason.contains(words), "{setting} {distance:?}: {}", choice.reason);
        }
    }

    #[test]
    fn what_cannot_be_had_is_an_error_where_it_was_asked_for_and_a_reason_otherwise() {
        let lines = |attempts: Vec<Attempt>| attempts.iter().map(Attempt::to_string).collect::<Vec<_>>();
        let far = choose(config::Staging::Auto, fetch(true, Some(Distance::System)), FROM);
        let staged = "sources of puts of 64K and more copied to host memory first";
        let (made, attempts) = follow(&far, Ok).unwrap();
        assert_eq!(
            (made, lines(attempts)),
            (Some(FROM), vec![format!("{staged}: in use: the card is at another NUMA node")])
        );

        let (made, attempts) = follow::<()>(&far, |_| Err(refused())).unwrap();
        let direct = "sources of puts read by the card itself";
        assert_eq!(
            (made, lines(attempts)),
            (None, vec![format!("{staged}: no: HCA mlx5_0: no room"), format!("{direct}: in use")])
        );

        let near = choose(config::Staging::Auto, fetch(true, Some(Distance::HostBridge)), FROM);
        let (made, attempts) = follow::<()>(&near, |_| panic!("nothing is needed")).unwrap();
        assert_eq!(
            (made, lines(attempts)),
            (None, vec![format!("{direct}: in use: the card is at the same host bridge")])
        );

        let asked = choose(config::Staging::On, fetch(true, None), FROM);
        assert_eq!(follow::<()>(&asked, |_| Err(refused())).unwrap_err().to_string(), "HCA mlx5_0: no room");
    }

    #[test]
    fn sources_are_found_by_key_and_not_beyond_their_memory() {
        let sources = Sources::default();
        let region = |address, bytes, iova| Region {
            memory: None,
            device: None,
            kind: Kind::Library,
            address,
            bytes,
            iova,
            remote: false,
        };
        // Cards number their keys each for itself.
        sources.add(&region(0x7000_0000, 4096, 0x7000_0000), [1, 2]);
        sources.add(&region(0x9010_0000, 1 << 20, 1 << 20), [2, 1]);
        let find = |address, length, key| sources.find(0, Local { address, length, key });
        let second = |address, length, key| sources.find(1, Local { address, length, key });
        assert_eq!((second(0x7000_0010, 16, 2), second(0x7000_0010, 16, 1)), (Some(0x7000_0010), None));
        assert_eq!(find(0x7000_0010, 16, 1), Some(0x7000_0010));
        assert_eq!(find((1 << 20) + 8, 16, 2), Some(0x9010_0008));
        assert_eq!(find((2 << 20) - 16, 16, 2), Some(0x901f_fff0));
        for (address, length, key) in [
            ((2 << 20) - 16, 17, 2),
            (2 << 20, 1, 2),
            (u64::MAX, 1, 2),
            (8, 16, 2),
            (0x7000_0000, 4097, 1),
            (0x7000_0000, 16, 3),
        ] {
            assert_eq!(find(address, length, key), None, "{length} at {address:#x} under {key}");
        }
    }
}
