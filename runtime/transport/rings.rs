//! Staging rings: where device code copies the payloads of puts for cards that are far from them.
//!
//! Each queue pair on such a card has a ring of [`SLOTS`] slots in memory near the card. The lanes
//! that post copy a payload to a slot by stores, and the card reads it there
//! (`device-kernels/include/oxshmem/detail/ibgda/staging.h`). Which cards they are for is what the
//! table says that decides for all transports ([`choose`]).
//!
//! Where another PE's GPU is near the card, that PE lends memory: it allocates it and passes its
//! descriptors to the PE that sends, which maps it for its stores and registers it with the card by
//! itself. The memory lives as long as either of them has it, so a PE that ends takes nothing away.
//! The rings of contexts that a program creates lie in host memory: the PE that would lend need not
//! take part in their creation.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use oxshmem_hca::objects::{Mkey, Pd};
use oxshmem_hca::provider::{Access, Attempt, DeviceMemory, UmemSource};
use oxshmem_hca::topology::{Through, Way};
use oxshmem_system::words::{count32, low32, native};

use super::card::Card;
use super::error::TransportError;
use super::near::Nodes;
use super::opened::OpenCard;
use super::staging::{Choice, choose};
use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::{self, ByteSize, Config};
use crate::device::{AddressSpace, Device, DeviceError, HostMemory, Memory};
use crate::heap::PeerLinks;
use crate::memory::{MemoryBytes, MemoryKind, MemoryUse};

/// Slots of a ring. Each takes one block of the queue.
const SLOTS: u32 = 32;
// A queue has no fewer blocks than a ring has slots.
const _: () = assert!(SLOTS <= 1 << abi::MIN_DEPTH_LOG2 && SLOTS.is_power_of_two());

/// The least put that is staged unless `OXSHMEM_STAGING` says another: what the queue has no room
/// for.
const LEAST: u32 = abi::INLINE_MOST + 1;

/// Which cards of a PE puts are staged for.
#[derive(Debug)]
pub(super) struct Plan {
    config: Config,
    me: usize,
    /// By card.
    choices: Vec<Choice>,
    /// By card: the PE whose GPU is near it, through whose memory payloads go.
    owners: Vec<Option<usize>>,
    /// Whether the job is not to begin where a ring cannot be had.
    is_asked: bool,
}

impl Plan {
    pub(super) fn new(config: &Config, (nodes, me): (&Nodes, usize), cards: &[OpenCard]) -> Self {
        let choices = cards.iter().map(|card| choose(config.staging(), card.way(), LEAST)).collect();
        let members = nodes.members(me);
        let owner = |card: &OpenCard| match card.way().0 {
            Way::Push { through: Through::Gpu(number) } => members.get(number).copied(),
            _ => None,
        };
        let owners = cards.iter().map(owner).collect();
        let is_asked = config.staging() != config::Staging::Auto || config.rails() == config::Rails::Push;
        Self { config: config.clone(), me, choices, owners, is_asked }
    }

    /// Returns the least put by a card that is staged, if any is.
    pub(super) fn staged_from(&self, card: usize) -> Option<u32> {
        self.choices.get(card)?.from
    }

    /// Returns the bytes of each ring of queue pairs on these cards.
    fn ring_bytes(&self, card_of: &[u32]) -> u64 {
        let staged = |card: &&u32| self.staged_from(**card as usize).is_some();
        self.config.staging_ring_bytes(card_of.iter().filter(staged).count())
    }

    /// Returns the bytes of the rings on a card, where `card_of` says by queue pair on which it is.
    pub(super) fn bytes_on(&self, card: u32, card_of: &[u32]) -> u64 {
        card_of.iter().filter(|on| **on == card).count() as u64 * self.ring_bytes(card_of)
    }

    /// Asks the PEs whose GPUs are near cards of this one for as much memory as `bytes_on` says by
    /// card, and gives others what they ask for. Collective. A PE that cannot give it says why.
    ///
    /// # Errors
    /// A PE is gone, or does not reply.
    pub(super) fn exchange(
        &self,
        (bootstrap, links): (&Bootstrap, &PeerLinks),
        device: &dyn Device,
        bytes_on: impl Fn(u32) -> u64,
    ) -> Result<(Vec<Lent>, Vec<Borrowed>)> {
        let unit = device.granularity();
        let mut wanted = Vec::new();
        for ((owner, choice), card) in self.owners.iter().zip(&self.choices).zip(0u32..) {
            if let (Some(owner), Some(_), bytes @ 1..) = (owner, choice.from, bytes_on(card)) {
                wanted.push(Wanted { owner: *owner, card, bytes: bytes.next_multiple_of(unit) });
            }
        }
        let mine: Vec<u8> = wanted.iter().flat_map(|wanted| wanted.to_bytes()).collect();
        let told = bootstrap.allgather("staging rings", &mine)?;
        let timeout = self.config.bootstrap_timeout();
        let mut lent = Vec::new();
        for (pe, told) in told.iter().enumerate().filter(|(pe, _)| *pe != self.me) {
            for asked in Wanted::parse(told).filter(|asked| asked.owner == self.me) {
                match Lent::new(device, asked.bytes) {
                    Ok(memory) => {
                        links.lend(pe, Ok(&memory.descriptors()), timeout)?;
                        lent.push(memory);
                    }
                    Err(error) => {
                        tracing::warn!(
                            "PE {}: no memory for {} of staging rings of PE {pe}: {error}",
                            self.me,
                            ByteSize(asked.bytes)
                        );
                        links.lend(pe, Err(&error.to_string()), timeout)?;
                    }
                }
            }
        }
        let borrow = |Wanted { owner, card, bytes }| {
            let descriptors = links.borrow(owner, timeout)?;
            Ok(Borrowed { owner, card, bytes, descriptors })
        };
        let borrowed = wanted.into_iter().map(borrow).collect::<Result<_>>()?;
        Ok((lent, borrowed))
    }

    /// Returns the most bytes of puts that are not staged, at least those of what travels in the
    /// queue.
    pub(super) fn direct_up_to(&self, inline_up_to: u32) -> u32 {
        let most = u32::try_from(abi::MAX_MESSAGE_BYTES).unwrap_or(u32::MAX);
        let least = self.choices.iter().filter_map(|choice| choice.from).min();
        least.map_or(most, |from| (from - 1).clamp(inline_up_to, most))
    }
}

/// What a PE asks another one for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    /// The PE that is asked.
    owner: usize,
    /// The card that will read the memory, by its number at the PE that asks.
    card: u32,
    bytes: u64,
}

impl Wanted {
    const BYTES: usize = 16;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&count32(self.owner).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.card.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Returns all that a PE has told; what is not whole is left out.
    fn parse(told: &[u8]) -> impl Iterator<Item = Self> {
        told.as_chunks::<{ Self::BYTES }>().0.iter().map(|bytes| {
            let word = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            let bytes = u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
            Self { owner: native(u64::from(low32(word))), card: low32(word >> 32), bytes }
        })
    }
}

/// Memory of this PE's device for the staging rings of another PE, which has its descriptors.
#[derive(Debug)]
pub(super) struct Lent {
    // Dropped in this order.
    space: Box<dyn AddressSpace>,
    memory: Memory,
    /// The same as dma-buf, if it is memory of a GPU that can be exported so: memory that a process
    /// has imported it cannot export again.
    dma_buf: Option<OwnedFd>,
    bytes: u64,
}

impl Lent {
    fn new(device: &dyn Device, bytes: u64) -> std::result::Result<Self, DeviceError> {
        let memory = device.allocate(bytes)?;
        let space = device.reserve(bytes, 1)?;
        space.map_own(&memory, 0, bytes)?;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        // Without one the other PE's card may still take the memory by its address.
        let dma_buf = device.exporter().and_then(|exporter| exporter.dma_buf(space.base(), len, false).ok());
        Ok(Self { space, memory, dma_buf, bytes })
    }

    /// Returns the descriptor of the memory, and that of the dma-buf if there is one.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.memory.as_fd()).chain(self.dma_buf.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Returns what is allocated.
    pub(super) fn memory_use(&self) -> MemoryUse {
        debug_assert!(self.space.base() != 0);
        let mut memory = MemoryUse::default();
        memory.add(MemoryKind::Staging, MemoryBytes::device(self.bytes));
        memory
    }
}

/// What another PE has lent for the rings on a card, or why it has not.
#[derive(Debug)]
pub(super) struct Borrowed {
    owner: usize,
    card: u32,
    bytes: u64,
    descriptors: std::result::Result<Vec<OwnedFd>, String>,
}

impl Borrowed {
    /// Takes what was lent for a card, if something was.
    pub(super) fn take(all: &mut Vec<Self>, card: u32) -> Option<Self> {
        let found = all.iter().position(|borrowed| borrowed.card == card)?;
        Some(all.swap_remove(found))
    }

    /// Returns the PE that has lent it.
    pub(super) fn owner(&self) -> usize {
        self.owner
    }
}

/// The dma-buf of memory that another PE has exported.
#[derive(Debug)]
struct HandedOn {
    owner: usize,
    dma_buf: Option<OwnedFd>,
}

impl DeviceMemory for HandedOn {
    fn dma_buf(&self, _: u64, _: usize, pcie: bool) -> std::result::Result<OwnedFd, String> {
        let none =
            || format!("PE {} has handed on no dma-buf{}", self.owner, if pcie { " with PCIe mapping" } else { "" });
        let dma_buf = self.dma_buf.as_ref().filter(|_| !pcie).ok_or_else(none)?;
        dma_buf.try_clone().map_err(|error| error.to_string())
    }
}

/// A ring, as device code finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    address: u64,
    bytes: u64,
    lkey: u32,
}

impl Ring {
    /// Returns its bytes.
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Tells device code of it.
    pub(super) fn describe(self, qp: &mut abi::Qp) {
        qp.ring = self.address;
        qp.ring_key = self.lkey.to_be();
        qp.slot_bytes = u32::try_from(self.bytes / u64::from(SLOTS)).unwrap_or(u32::MAX);
        qp.ring_log2 = SLOTS.trailing_zeros();
    }
}

/// Memory near a card, registered with it: for the rings of the queue pairs of a set that are on
/// it.
#[derive(Debug)]
pub(super) struct OnCard {
    // Dropped in this order.
    key: Mkey,
    memory: Near,
}

/// Memory near a card.
#[derive(Debug)]
enum Near {
    Host(Box<dyn HostMemory>),
    /// Of another PE, mapped here.
    Gpu(Box<dyn AddressSpace>),
}

impl Near {
    fn address(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.address() as u64,
            Self::Gpu(space) => space.base(),
        }
    }
}

impl OnCard {
    /// Maps and registers what another PE has lent.
    pub(super) fn borrowed(pd: &Arc<Pd>, device: &dyn Device, borrowed: Borrowed) -> Result<Self> {
        let Borrowed { owner, bytes, descriptors, .. } = borrowed;
        let refused = |reason: String| crate::Error::from(TransportError::NotLent { owner, reason });
        let mut descriptors = descriptors.map_err(refused)?.into_iter();
        let memory = descriptors.next().ok_or_else(|| refused("no descriptor arrived".to_owned()))?;
        let handed_on = HandedOn { owner, dma_buf: descriptors.next() };
        let space = device.reserve(bytes, 1)?;
        space.map(memory.as_fd(), 0, bytes)?;
        let address = space.base();
        let source = UmemSource::Fd {
            fd: memory.as_fd(),
            offset: 0,
            len: usize::try_from(bytes).unwrap_or(usize::MAX),
            addr: address as *mut u8,
            device: device.exporter().map(|_| &handed_on as &dyn DeviceMemory),
        };
        // SAFETY: the memory is unmapped after the key is dropped, and is used through raw pointers
        // only.
        let key = unsafe { Mkey::register(pd, source, None, address, Access::LOCAL) }?;
        Ok(Self { key, memory: Near::Gpu(space) })
    }

    /// Allocates and registers memory of the host.
    pub(super) fn new(pd: &Arc<Pd>, device: &dyn Device, bytes: u64) -> Result<Self> {
        let memory = device.host_memory(bytes)?;
        // Kernels reach memory that the device gives, those of the software HCA's engine too.
        let (addr, len) = (memory.address(), usize::try_from(bytes).unwrap_or(usize::MAX));
        let source = UmemSource::Program { addr, len, device: None };
        // SAFETY: the memory is dropped after the key, and is used through raw pointers only.
        let key = unsafe { Mkey::register(pd, source, None, memory.address() as u64, Access::LOCAL) }?;
        Ok(Self { key, memory: Near::Host(memory) })
    }

    /// Returns where it is, for device code and for the card.
    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Returns the card's key.
    pub(super) fn lkey(&self) -> u32 {
        self.key.lkey()
    }
}

/// The rings of a set of queue pairs.
#[derive(Debug, Default)]
pub(super) struct Rings {
    /// By queue pair.
    of_qp: Vec<Option<Ring>>,
    on_cards: Vec<OnCard>,
}

impl Rings {
    /// Creates rings for queue pairs on these cards, `card_of` says by queue pair on which, in what
    /// other PEs have lent or in host memory; and returns what was tried.
    ///
    /// # Errors
    /// Memory cannot be had, or registered, and the configuration does not leave it open whether
    /// puts are staged.
    pub(super) fn create(
        (plan, mut borrowed): (&Plan, Vec<Borrowed>),
        cards: &[Card],
        device: &dyn Device,
        card_of: &[u32],
    ) -> Result<(Self, Vec<Attempt>)> {
        let bytes = plan.ring_bytes(card_of);
        let mut rings = Self { of_qp: vec![None; card_of.len()], on_cards: Vec::new() };
        let mut attempts = Vec::new();
        for ((card, choice), number) in cards.iter().zip(&plan.choices).zip(0u32..) {
            let count = card_of.iter().filter(|on| **on == number).count() as u64;
            let name = card.open.name();
            let Some(from) = choice.from.filter(|_| count > 0) else {
                attempts.extend(left_alone(card, choice).filter(|_| count > 0));
                continue;
            };
            let what = format!("sources of puts of {} and more staged for {name}", ByteSize(from.into()));
            let lent = Borrowed::take(&mut borrowed, number);
            let place = lent.as_ref().map_or_else(
                || "memory of the host".to_owned(),
                |borrowed| format!("memory of the GPU of PE {}", borrowed.owner),
            );
            let made = match lent {
                Some(borrowed) => OnCard::borrowed(&card.pd, device, borrowed),
                None => OnCard::new(&card.pd, device, count * bytes),
            };
            match made {
                Ok(on_card) => {
                    let to = rings.of_qp.iter_mut().zip(card_of).filter(|(_, on)| **on == number);
                    let (lkey, base) = (on_card.lkey(), on_card.address());
                    for ((ring, _), index) in to.zip(0u64..) {
                        *ring = Some(Ring { address: base + index * bytes, bytes, lkey });
                    }
                    rings.on_cards.push(on_card);
                    let (each, all) = (ByteSize(bytes), ByteSize(count * bytes));
                    let outcome = format!(
                        "in use: {}; a ring of {each} for each of {count} QPs, {all} together, in {place}",
                        choice.reason
                    );
                    attempts.push(Attempt { what, outcome: Ok(outcome) });
                }
                Err(source) if plan.is_asked => {
                    let (me, source) = (plan.me, Box::new(source));
                    return Err(TransportError::StagingRings {
                        me,
                        bytes: ByteSize(count * bytes),
                        place,
                        card: name,
                        source,
                    }
                    .into());
                }
                Err(error) => {
                    tracing::warn!(
                        "PE {}: no staging rings in {place} for {name}: {error}; it reads payloads where they are",
                        plan.me
                    );
                    attempts.push(Attempt { what, outcome: Err(error.to_string()) });
                }
            }
        }
        Ok((rings, attempts))
    }

    /// Returns the ring of a queue pair, if it has one.
    pub(super) fn of(&self, index: u32) -> Option<Ring> {
        self.of_qp.get(index as usize).copied().flatten()
    }

    /// Returns what is allocated for them.
    pub(super) fn memory_use(&self) -> MemoryUse {
        let mut memory = MemoryUse::default();
        for on_card in &self.on_cards {
            // What is lent counts as its owner's.
            if let Near::Host(host) = &on_card.memory {
                memory.add(MemoryKind::Staging, MemoryBytes::host(host.bytes()));
            }
        }
        memory
    }
}

/// Says that a card reads payloads itself where the table would have them staged.
fn left_alone(card: &Card, choice: &Choice) -> Option<Attempt> {
    let (way, reason) = card.open.way();
    way.is_staged().then(|| Attempt {
        what: format!("sources of puts staged for {}", card.open.name()),
        outcome: Err(format!(
            "{}, though {reason}: puts of up to {} bytes travel in the queue, and the card reads longer ones there",
            choice.reason,
            abi::INLINE_MOST
        )),
    })
}
