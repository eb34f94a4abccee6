//! The ring under loom: every order in which the stores of two writers and the reader's loads can take effect.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use oxshmem_proxy::descriptor::{Slot, WORDS};
use oxshmem_proxy::ring::{Reader, Words, write_slot};

/// What a descriptor announces: plain memory, which loom watches for races.
struct Source(UnsafeCell<u64>);

/// One slot's worth of laps is what reuse needs; loom's state grows with every store, so rings are tiny and so are slots: only the words
/// of `MODELLED` are loom's, the others are stored with them.
const MODELLED: [usize; 2] = [0, WORDS - 1];

struct Memory {
    words: Vec<AtomicU64>,
    taken: AtomicU64,
    head: AtomicU64,
}

impl Memory {
    fn new(log_depth: u32) -> Self {
        Self {
            words: (0..MODELLED.len() << log_depth).map(|_| AtomicU64::new(0)).collect(),
            taken: AtomicU64::new(0),
            head: AtomicU64::new(0),
        }
    }

    /// The modelled word at `index`; the words between take the tag of the last one.
    fn word(&self, index: usize) -> &AtomicU64 {
        let (slot, word) = (index / WORDS, index % WORDS);
        &self.words[slot * MODELLED.len() + usize::from(word != 0)]
    }
}

struct Shared(Arc<Memory>);

impl Words for Shared {
    fn load(&self, index: usize) -> u64 {
        self.0.word(index).load(Ordering::Relaxed)
    }

    fn acquire(&self) {
        fence(Ordering::Acquire);
    }
}

/// As `ibrc_post` in detail/ibrc.h: reserve, wait until the slot is free, fence, store.
fn post(memory: &Memory, log_depth: u32, words: Slot) {
    let index = memory.head.fetch_add(1, Ordering::Relaxed);
    let depth = 1 << log_depth;
    while index >= depth && memory.taken.load(Ordering::Acquire) < index - depth + 1 {
        thread::yield_now();
    }
    fence(Ordering::Release);
    write_slot(words, index, log_depth, |at, word| {
        if MODELLED.contains(&(at % WORDS)) {
            memory.word(at).store(word, Ordering::Relaxed);
        }
    });
}

fn descriptor(number: u64) -> Slot {
    let mut words = [number; WORDS];
    words[0] = number << 8;
    words
}

/// Two writers, more descriptors than slots, so that slots are used again; the reader takes each once, whole, and sees what was written
/// before it.
fn model(log_depth: u32, each: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let memory = Arc::new(Memory::new(log_depth));
        let sources: Arc<Vec<Source>> = Arc::new((0..2 * each).map(|_| Source(UnsafeCell::new(0))).collect());
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (memory, sources) = (Arc::clone(&memory), Arc::clone(&sources));
                thread::spawn(move || {
                    for i in 0..each {
                        let number = writer * each + i;
                        sources[number as usize].0.with_mut(|cell| {
                            // SAFETY: nobody else touches it before the descriptor is taken; loom checks that.
                            unsafe { *cell = number + 100 };
                        });
                        post(&memory, log_depth, descriptor(number));
                    }
                })
            })
            .collect();
        let mut reader = Reader::new(Shared(Arc::clone(&memory)), log_depth);
        let mut seen = Vec::new();
        while seen.len() < 2 * each as usize {
            let Some(slot) = reader.take() else {
                thread::yield_now();
                continue;
            };
            let number = slot[0] >> 8;
            assert_eq!(slot[WORDS - 1], number, "a torn slot was taken");
            // SAFETY: as above.
            let source = sources[number as usize].0.with(|cell| unsafe { *cell });
            assert_eq!(source, number + 100, "what was written before the descriptor is not visible");
            seen.push(number);
            memory.taken.store(reader.taken(), Ordering::Release);
        }
        for writer in writers {
            assert!(writer.join().is_ok());
        }
        // Each once, and each writer's in its order.
        for writer in 0..2 {
            let own: Vec<u64> = seen.iter().copied().filter(|number| number / each == writer).collect();
            assert_eq!(own, (writer * each..(writer + 1) * each).collect::<Vec<_>>());
        }
    });
}

#[test]
fn two_writers_share_one_slot() {
    model(0, 1);
}

#[test]
fn two_writers_lap_a_ring_of_two_slots() {
    model(1, 2);
}
