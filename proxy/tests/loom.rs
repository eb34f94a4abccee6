//! The ring under loom: every order in which the stores of two writers and the reader's loads can
//! take effect.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use oxshmem_proxy::descriptor::WORDS;
use oxshmem_proxy::ring::{Reader, Words, write_slot};

/// What a descriptor announces: plain memory, which loom watches for races.
struct Source(UnsafeCell<u64>);

/// One slot's worth of laps is what reuse needs; loom's state grows with every store, so rings are
/// tiny and so are slots: only the words of `MODELLED` are loom's, the others are stored with them.
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

    /// Returns the modelled word at `index`; the words between take the tag of the last one.
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

/// Returns the steps of `ibrc_post` in detail/ibrc/ring.h: reserve, look whether the slot is free,
/// fence, store. Waiting would have no end under loom, so a writer that finds no free slot gives
/// up, before it reserves; false then.
fn post(memory: &Memory, sources: &[Source], log_depth: u32, number: u64) -> bool {
    let depth = 1 << log_depth;
    let head = memory.head.load(Ordering::Relaxed);
    if head >= depth && memory.taken.load(Ordering::Acquire) < head - depth + 1 {
        return false;
    }
    if memory.head.compare_exchange(head, head + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return false;
    }
    sources[number as usize].0.with_mut(|cell| {
        // SAFETY: no other thread touches it before the descriptor is taken; loom checks that.
        unsafe { *cell = number + 100 };
    });
    fence(Ordering::Release);
    let mut words = [number; WORDS];
    words[0] = number << 8;
    write_slot(words, head, log_depth, |at, word| {
        if MODELLED.contains(&(at % WORDS)) {
            memory.word(at).store(word, Ordering::Relaxed);
        }
    });
    true
}

/// Takes what is there, checks it, and publishes that.
fn take(reader: &mut Reader<Shared>, memory: &Memory, sources: &[Source], seen: &mut Vec<u64>) {
    let Some(slot) = reader.take() else { return };
    let (number, last) = (slot[0] >> 8, slot[WORDS - 1]);
    assert_eq!(last, number, "a torn slot was taken");
    // SAFETY: as above.
    let source = sources[number as usize].0.with(|cell| unsafe { *cell });
    assert_eq!(source, number + 100, "what was written before the descriptor is not visible");
    seen.push(number);
    memory.taken.store(reader.taken(), Ordering::Release);
}

/// `before` descriptors are posted and taken before two writers post one each, while the reader
/// looks twice; then it takes the rest.
fn model(log_depth: u32, before: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let memory = Arc::new(Memory::new(log_depth));
        let sources: Arc<Vec<Source>> = Arc::new((0..before + 2).map(|_| Source(UnsafeCell::new(0))).collect());
        let mut reader = Reader::new(Shared(Arc::clone(&memory)), log_depth);
        let mut seen = Vec::new();
        for number in 0..before {
            assert!(post(&memory, &sources, log_depth, number));
            take(&mut reader, &memory, &sources, &mut seen);
        }
        let writers: Vec<_> = (before..before + 2)
            .map(|number| {
                let (memory, sources) = (Arc::clone(&memory), Arc::clone(&sources));
                thread::spawn(move || post(&memory, &sources, log_depth, number))
            })
            .collect();
        take(&mut reader, &memory, &sources, &mut seen);
        take(&mut reader, &memory, &sources, &mut seen);
        let posted: u64 = writers.into_iter().map(|writer| u64::from(writer.join().is_ok_and(|posted| posted))).sum();
        take(&mut reader, &memory, &sources, &mut seen);
        take(&mut reader, &memory, &sources, &mut seen);
        assert_eq!(seen.len() as u64, before + posted, "a descriptor was lost or taken twice: {seen:?}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len() as u64, before + posted, "{seen:?}");
    });
}

#[test]
fn two_writers_fill_fresh_slots() {
    model(1, 0);
}

#[test]
fn two_writers_meet_at_one_slot() {
    model(0, 0);
}

#[test]
fn slots_are_used_again() {
    model(0, 1);
    model(0, 2);
    model(1, 2);
}
