//! How device code rings the doorbells of a card: by itself, in registers that are mapped for it,
//! or through a thread of the CPU that watches words in host memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use oxshmem_hca::objects::{Doorbell, Doorbells};
use oxshmem_hca::prm::qpc::SendDbrMode;
use oxshmem_hca::provider::{Provider, Rung};
use oxshmem_system::idle::{Idler, Parking, Patience};
use oxshmem_system::store_fence::store_fence;
use oxshmem_system::words::native;

use super::error::TransportError;
use crate::Result;
use crate::abi::LINE_BYTES;
use crate::device::{Device, HostMemory, MappedRegisters};
use crate::memory::MemoryBytes;

/// How device code rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By stores to memory that the software HCA looks at.
    Memory,
    /// By stores to the card's registers.
    Mapped,
    /// By stores to words in host memory, which a thread of the CPU passes on.
    Thread,
}

impl Way {
    /// Returns what stores to the registers.
    fn rung(self) -> Rung {
        match self {
            Self::Memory | Self::Mapped => Rung::ByDevice,
            Self::Thread => Rung::ByCpu,
        }
    }
}

/// How device code tells a card what it has posted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Posting {
    /// How it rings.
    pub way: Way,
    /// Whether it writes a doorbell record before.
    pub mode: SendDbrMode,
}

/// Threads that pass doorbells on.
static RINGERS: Parking = Parking::new();

/// Tells them that there is something to do; where device code runs on the CPU, after each store to
/// a word.
pub(super) fn announce() {
    RINGERS.announce();
}

const SPINNING: Patience =
    Patience { spin_passes: 4096, awake: Duration::from_micros(50), first_nap: Duration::from_micros(50) };
/// The CPU device announces its stores, and needs the core that the thread would spin on.
const NAPPING: Patience =
    Patience { spin_passes: 64, awake: Duration::from_micros(50), first_nap: Duration::from_millis(1) };
/// Also for the thread to see that it has to stop, and for doorbells of GPUs, which are not
/// announced.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// Doorbells of queue pairs, and where device code rings them.
#[derive(Debug)]
pub(super) struct Ringing {
    // Dropped in this order: the thread, its words, mappings, pages.
    ringer: Option<Ringer>,
    words: Option<Box<dyn HostMemory>>,
    /// By card and page.
    mapped: HashMap<(usize, u32), Box<dyn MappedRegisters>>,
    given: Vec<Doorbell>,
    /// By card.
    doorbells: Vec<Doorbells>,
    way: Way,
}

impl Ringing {
    /// Creates the doorbells for `count` queue pairs on these cards.
    pub(super) fn new<'a>(
        cards: impl Iterator<Item = &'a Arc<dyn Provider>>,
        Posting { way, mode }: Posting,
        device: &dyn Device,
        count: u32,
    ) -> Result<Self> {
        let words = match way {
            Way::Thread => Some(device.host_memory(u64::from(count.max(1)) * LINE_BYTES)?),
            Way::Memory | Way::Mapped => None,
        };
        let doorbells = cards.map(|card| Doorbells::new(card, way.rung(), mode)).collect();
        Ok(Self { ringer: None, words, mapped: HashMap::new(), given: Vec::new(), doorbells, way })
    }

    /// Returns the doorbell of the next queue pair, which is on that card, and the address at which
    /// device code rings it.
    pub(super) fn give(&mut self, device: &dyn Device, card: usize) -> Result<(Doorbell, u64)> {
        let doorbell = self.doorbells[card].give()?;
        let address = match (self.way, &self.words) {
            (Way::Thread, Some(words)) => words.address() as u64 + self.given.len() as u64 * LINE_BYTES,
            (Way::Mapped, _) => {
                let page = match self.mapped.entry((card, doorbell.uar.page_id())) {
                    Entry::Occupied(page) => page.into_mut(),
                    Entry::Vacant(place) => place.insert(device.map_registers(doorbell.uar.page().base)?),
                };
                page.address() + doorbell.offset as u64
            }
            (Way::Memory | Way::Thread, _) => doorbell.address() as u64,
        };
        self.given.push(doorbell.clone());
        Ok((doorbell, address))
    }

    /// Returns the memory of the words that device code rings in.
    pub(super) fn memory(&self) -> MemoryBytes {
        MemoryBytes::host(self.words.as_ref().map_or(0, |words| words.bytes()))
    }

    /// Begins to pass doorbells on, if that is how they are rung. All have been given.
    pub(super) fn start(&mut self, device: &dyn Device) -> Result<()> {
        let Some(words) = &self.words else { return Ok(()) };
        let pairs = self.given.iter().zip(0u64..);
        let pairs = pairs.map(|(doorbell, i)| Pair {
            word: words.address().wrapping_add(native(i * LINE_BYTES)).cast(),
            register: doorbell.address(),
            rung: 0,
        });
        let patience = if device.gpu().is_some() { SPINNING } else { NAPPING };
        self.ringer =
            Some(Ringer::start(pairs.collect(), patience).map_err(|source| TransportError::ProxyThread { source })?);
        Ok(())
    }
}

/// A word that device code stores doorbells to, and the register that they are meant for.
struct Pair {
    word: *mut u64,
    register: *mut u64,
    /// What was passed on last. No doorbell is 0: it names a queue pair.
    rung: u64,
}

// SAFETY: addresses of a word in host memory and of a register, both accessed by atomics from any
// thread.
unsafe impl Send for Pair {}

impl Pair {
    fn value(&self) -> u64 {
        // SAFETY: the owner of the thread keeps the word mapped; device code stores it as a whole.
        unsafe { AtomicU64::from_ptr(self.word) }.load(Ordering::Acquire)
    }
}

/// The thread that passes doorbells on, until dropped.
#[derive(Debug)]
struct Ringer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ringer {
    fn start(mut pairs: Vec<Pair>, patience: Patience) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("oxshmem-ringer".into()).spawn(move || {
            let mut idler = Idler::new(patience);
            while !stopped.load(Ordering::Acquire) {
                if pass_on(&mut pairs, store_fence) > 0 {
                    idler.worked();
                } else if let Some(nap) = idler.rest() {
                    let ready =
                        || stopped.load(Ordering::Acquire) || pairs.iter().any(|pair| pair.value() != pair.rung);
                    if RINGERS.park(nap, ready) {
                        idler.worked();
                    } else {
                        idler.napped(LONGEST_NAP);
                    }
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        RINGERS.announce();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that rings doorbells panicked");
        }
    }
}

/// Rings what is new; how many. `flush` makes the stores leave the core.
fn pass_on(pairs: &mut [Pair], flush: impl Fn()) -> usize {
    let mut count = 0;
    for pair in pairs {
        let value = pair.value();
        if value != pair.rung {
            pair.rung = value;
            // Device code has written the doorbell record, if there is one, and whatever the
            // doorbell covers, before the word.
            fence(Ordering::SeqCst);
            // SAFETY: the owner of the thread keeps the register mapped.
            unsafe { AtomicU64::from_ptr(pair.register) }.store(value, Ordering::Release);
            count += 1;
        }
    }
    if count > 0 {
        flush();
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_new_doorbell_is_passed_on_once() {
        let (mut words, mut registers) = ([0u64; 2], [0u64; 2]);
        let mut pairs: Vec<Pair> = words
            .iter_mut()
            .zip(&mut registers)
            .map(|(word, register)| Pair { word: &raw mut *word, register: &raw mut *register, rung: 0 })
            .collect();
        // SAFETY: addresses of the two arrays, which live to the end of the test.
        let store = |to: *mut u64, value: u64| unsafe { AtomicU64::from_ptr(to) }.swap(value, Ordering::SeqCst);
        // A register that is mapped write-combining sees stores when they are flushed.
        let flushed = Cell::new(0);
        let flush = || flushed.set(flushed.get() + 1);
        assert_eq!((pass_on(&mut pairs, flush), flushed.get()), (0, 0));
        store(pairs[1].word, 7);
        assert_eq!((pass_on(&mut pairs, flush), flushed.get()), (1, 1));
        assert_eq!((store(pairs[0].register, 0), store(pairs[1].register, 0)), (0, 7));
        // The register may have been consumed; the word still says what was rung.
        assert_eq!((pass_on(&mut pairs, flush), flushed.get()), (0, 1));
        store(pairs[1].word, 8);
        store(pairs[0].word, 9);
        assert_eq!((pass_on(&mut pairs, flush), flushed.get()), (2, 2));
        assert_eq!((store(pairs[0].register, 0), store(pairs[1].register, 0)), (9, 8));
    }
}
