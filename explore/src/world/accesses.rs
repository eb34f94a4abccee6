//! What loads, stores and atomics of threads do: store buffers, and when what is in them becomes
//! visible.

use oxshmem_system::mixing::scramble;

use super::orders::{ACQUIRE, RELAXED, RELEASE, SYSTEM};
use super::{Status, World};
use crate::interface::Kind;
use crate::memory::{Entry, Level, spread};

/// A store of a device thread.
pub(super) struct Store {
    pub address: u64,
    pub bytes: u32,
    pub value: u64,
    pub release: bool,
    /// It goes to a doorbell register.
    pub doorbell: bool,
}

/// An atomic of a device thread, with the port layer's numbers for its kind, order and reach.
pub(super) struct Update {
    pub kind: u32,
    pub address: u64,
    pub bytes: u32,
    pub operand: u64,
    pub expected: u64,
    pub order: u32,
    pub reach: u32,
}

impl World {
    /// Returns whether an address is in a CQE.
    pub(super) fn is_of_cqe(&self, address: u64) -> bool {
        self.memory.about[self.memory.word_of(address) as usize].1 == Kind::Cqe
    }

    /// Puts bytes of a word into memory, where all readers of this memory see them. `by`: the
    /// thread that stored them, if one did, and the threads that have seen the store, as bits.
    pub(crate) fn set_memory(&mut self, word: u32, mask: u8, value: u64, by: Option<(usize, u64)>) {
        let bits = spread(mask);
        let old = self.memory.words[word as usize];
        let new = old & !bits | value & bits;
        if old != new {
            self.changes += 1;
            if let Some((by, _)) = by {
                self.threads[by].own_changes += 1;
            }
        }
        if self.program.stale != 0 {
            let seen_by = by.map_or(0, |(_, seen_by)| seen_by);
            for thread in (0..self.threads.len()).filter(|thread| seen_by >> thread & 1 != 0) {
                self.last_seen.insert((thread as u8, word), self.changes);
            }
        }
        if old == new {
            return;
        }
        if self.program.stale != 0 {
            self.histories.entry(word).or_default().past.push((old, self.changes));
        }
        self.before_change(word, bits, new);
        self.memory.replace(word, new);
    }

    /// Writes bytes to memory, by the HCA or the proxy.
    pub(crate) fn write_bytes(&mut self, address: u64, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (word, shift) = (self.memory.word_of(address + at as u64), ((address + at as u64) % 8) as usize);
            let n = (8 - shift).min(bytes.len() - at);
            let (mut value, mut mask) = (0u64, 0u8);
            for i in 0..n {
                value |= u64::from(bytes[at + i]) << ((shift + i) * 8);
                mask |= 1 << (shift + i);
            }
            self.set_memory(word, mask, value, None);
            at += n;
        }
    }

    /// Returns what a thread sees in a word.
    pub(super) fn seen(&self, thread: usize, word: u32) -> (u64, u8) {
        let mut value = self.memory.words[word as usize];
        let mut buffered = 0;
        let pe = self.threads[thread].pe;
        for level in [Level::Bus, Level::Thread] {
            for entry in &self.entries {
                let sees = match level {
                    Level::Bus => entry.pe == pe,
                    Level::Thread => entry.seen_by >> thread & 1 != 0,
                };
                if entry.word == word && entry.level == level && sees {
                    let bits = spread(entry.mask);
                    value = value & !bits | entry.value & bits;
                    buffered |= entry.mask;
                }
            }
        }
        (value, buffered)
    }

    /// Returns whether an entry may move on now.
    pub(super) fn may_drain(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        for earlier in &self.entries[..index] {
            match (entry.level, earlier.level) {
                (Level::Thread, Level::Thread) => {
                    let known = earlier.seen_by >> entry.thread & 1 != 0;
                    let same = earlier.word == entry.word && earlier.mask & entry.mask != 0;
                    if known && (same || entry.release) {
                        return false;
                    }
                }
                (Level::Bus, Level::Bus) => {
                    let same = earlier.word == entry.word && earlier.mask & entry.mask != 0;
                    if earlier.pe == entry.pe && (same || entry.release) {
                        return false;
                    }
                }
                _ => {}
            }
        }
        true
    }

    /// Returns whether another process is about to access the word of a store, or of one that has
    /// to wait for it.
    pub(super) fn is_wanted(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        if entry.doorbell || self.is_watched(entry) {
            return true;
        }
        self.entries[index + 1..].iter().any(|later| {
            later.level == entry.level
                && (later.release || later.word == entry.word)
                && (later.doorbell || self.is_watched(later))
        })
    }

    pub(super) fn is_watched(&self, entry: &Entry) -> bool {
        let (word, kind) = (entry.word, self.memory.about[entry.word as usize].1);
        let by_thread = self.threads.iter().enumerate().any(|(index, thread)| {
            index != usize::from(entry.thread)
                && match thread.status {
                    Status::Ready => thread.wants == word,
                    Status::Paused { .. } => thread.watched.contains(&word) || thread.proxy.is_some(),
                    _ => false,
                }
        });
        by_thread
            || match kind {
                Kind::Record => self.qps.iter().any(|qp| qp.look),
                Kind::Queue => {
                    self.qps.iter().any(|qp| qp.executed < qp.announced && qp.has_word(word, self.memory.base))
                }
                Kind::Heap | Kind::Landing => {
                    !self.flights.is_empty() || self.qps.iter().any(|qp| qp.executed < qp.announced)
                }
                Kind::Cqe => true,
                _ => false,
            }
    }

    /// Returns whether an earlier store of the same thread to the same block of a queue is as far
    /// as this one.
    pub(super) fn is_behind_in_block(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        self.memory.about[entry.word as usize].1 == Kind::Queue
            && self.entries[..index].iter().any(|earlier| {
                earlier.word / 8 == entry.word / 8 && earlier.thread == entry.thread && earlier.level == entry.level
            })
    }

    /// Moves an entry on: over the bus if its word lies elsewhere, otherwise to memory.
    pub(super) fn drain(&mut self, index: usize) {
        let mut entry = self.entries.remove(index);
        let owner = self.memory.about[entry.word as usize].0;
        if entry.level == Level::Thread && owner != entry.pe {
            entry.level = Level::Bus;
            self.changes += 1;
            self.threads[entry.thread as usize].own_changes += 1;
            self.say(|world| {
                format!("{}'s store to {} is in the GPU", world.who(entry.thread.into()), world.place(&entry))
            });
            self.entries.push(entry);
            return;
        }
        self.say(|world| {
            let address = world.memory.base + u64::from(entry.word) * 8 + u64::from(entry.mask.trailing_zeros());
            let value = entry.value >> (entry.mask.trailing_zeros() * 8);
            let bytes = entry.mask.count_ones();
            let value = if bytes == 8 { value } else { value & ((1 << (bytes * 8)) - 1) };
            format!(
                "{}'s store of {} to {} becomes visible",
                world.who(entry.thread.into()),
                world.show(address, value, bytes),
                world.memory.describe(address)
            )
        });
        let by = Some((entry.thread as usize, entry.seen_by));
        if entry.doorbell {
            self.ring(entry.word, entry.value);
            return;
        }
        self.set_memory(entry.word, entry.mask, entry.value, by);
    }

    pub(super) fn place(&self, entry: &Entry) -> String {
        self.memory.describe(self.memory.base + u64::from(entry.word) * 8 + u64::from(entry.mask.trailing_zeros()))
    }

    /// Makes all stores that a thread has seen visible: in the GPU, or also beyond it.
    pub(super) fn flush(&mut self, thread: usize, system: bool) {
        let mut index = 0;
        while index < self.entries.len() {
            let entry = &self.entries[index];
            if entry.level == Level::Thread && entry.seen_by >> thread & 1 != 0 {
                // What moves to the bus goes to the end.
                self.drain(index);
            } else {
                index += 1;
            }
        }
        if system {
            let pe = self.threads[thread].pe;
            let mut index = 0;
            while index < self.entries.len() {
                if self.entries[index].level == Level::Bus && self.entries[index].pe == pe {
                    self.drain(index);
                } else {
                    index += 1;
                }
            }
        }
    }

    pub(super) fn has_unordered(&self, thread: usize, system: bool) -> bool {
        let pe = self.threads[thread].pe;
        self.entries.iter().any(|entry| match entry.level {
            Level::Thread => entry.seen_by >> thread & 1 != 0,
            Level::Bus => system && entry.pe == pe,
        })
    }

    /// Notes which word a thread's next step accesses.
    pub(crate) fn about_to_access(&mut self, thread: usize, address: u64) {
        self.threads[thread].wants = self.memory.word_of(address);
    }

    /// Notes that a thread is at another place than before, though it has learnt nothing.
    pub(super) fn moved_on(&mut self, thread: usize) {
        let hash = &mut self.threads[thread].hash;
        *hash = scramble(*hash ^ 0x5bd1_e995);
    }

    /// Notes what a thread has learnt.
    pub(super) fn learn(&mut self, thread: usize, address: u64, value: u64) {
        if self.memory.about[self.memory.word_of(address) as usize].1 == Kind::Control {
            self.moved_on(thread);
            return;
        }
        let place = address - self.memory.base;
        let thread = &mut self.threads[thread];
        thread.before.push(thread.hash);
        thread.hash = scramble(thread.hash.rotate_left(7) ^ value ^ place << 40);
        thread.watches.push((place / 8) as u32);
    }

    pub(super) fn load(&mut self, thread: usize, address: u64, bytes: u32, order: u32) -> u64 {
        let word = self.memory.word_of(address);
        let (mut all, buffered) = self.seen(thread, word);
        if buffered != 0 {
            let pe = self.threads[thread].pe;
            for entry in &mut self.entries {
                if entry.word == word && entry.level == Level::Bus && entry.pe == pe {
                    entry.seen_by |= 1 << thread;
                }
            }
        } else if self.program.stale != 0 {
            all = self.maybe_stale(thread, word, all, order);
        }
        let value = all >> (address % 8 * 8);
        let value = if bytes == 8 { value } else { value & ((1 << (bytes * 8)) - 1) };
        if order == ACQUIRE {
            self.threads[thread].floor = self.now();
        }
        self.learn(thread, address, value);
        self.say(|world| {
            let acquire = if order == ACQUIRE { " (acquire)" } else { "" };
            let shown = world.show(address, value, bytes);
            format!("{} loads {}{acquire}: {shown}", world.who(thread), world.memory.describe(address))
        });
        value
    }

    /// A relaxed load may have been satisfied early: as far back as the thread's last acquire, and
    /// not before what the thread knows of the same word.
    pub(super) fn maybe_stale(&mut self, thread: usize, word: u32, current: u64, order: u32) -> u64 {
        let now = self.now();
        let mut value = current;
        let mut seen = now;
        if order == RELAXED {
            let known = self.last_seen.get(&(thread as u8, word)).copied().unwrap_or(0);
            let floor = self.threads[thread].floor.max(known);
            let options: Vec<(u64, u64)> = self.histories.get(&word).map_or(Vec::new(), |history| {
                history.past.iter().copied().filter(|&(_, until)| until > floor).collect()
            });
            if !options.is_empty() && self.policy.chance(4) {
                let pick = self.policy.choose(options.len());
                (value, seen) = (options[pick].0, options[pick].1 - 1);
                self.threads[thread].was_stale = true;
                self.say(|world| format!("{}'s next load was made early", world.who(thread)));
            }
        }
        self.last_seen.insert((thread as u8, word), seen);
        value
    }

    pub(super) fn store(&mut self, thread: usize, store: Store) {
        let Store { address, bytes, value, release, doorbell } = store;
        let word = self.memory.word_of(address);
        let shift = address % 8;
        let entry = Entry {
            word,
            mask: (((1u16 << bytes) - 1) << shift) as u8,
            thread: thread as u8,
            pe: self.threads[thread].pe,
            level: Level::Thread,
            release,
            doorbell,
            value: value << (shift * 8),
            seen_by: 1 << thread,
            priority: self.policy.store_priority(),
        };
        self.threads[thread].effects = true;
        self.say(|world| {
            let release = if release { " (release)" } else { "" };
            let (shown, place) = (world.show(address, value, bytes), world.memory.describe(address));
            format!("{} stores {shown} to {place}{release}, into its buffer", world.who(thread))
        });
        self.entries.push(entry);
    }

    pub(super) fn update(&mut self, thread: usize, update: Update) -> u64 {
        let Update { kind, address, bytes, operand, expected, order, reach } = update;
        let word = self.memory.word_of(address);
        let shift = address % 8;
        let mask = (((1u16 << bytes) - 1) << shift) as u8;
        if order >= RELEASE {
            self.flush(thread, reach == SYSTEM);
        }
        // Its own stores to the word come first.
        while let Some(index) = self.entries.iter().position(|entry| {
            let known = entry.level == Level::Bus && entry.pe == self.threads[thread].pe
                || entry.level == Level::Thread && entry.seen_by >> thread & 1 != 0;
            known && entry.word == word && entry.mask & mask != 0
        }) {
            if self.entries[index].release {
                let (owner, system) = (self.entries[index].thread as usize, self.entries[index].level == Level::Bus);
                self.flush(owner, system);
            } else {
                self.drain(index);
            }
        }
        let limit = if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        let old = self.memory.words[word as usize] >> (shift * 8) & limit;
        let signed = |value: u64| if bytes == 4 { i64::from(value as u32 as i32) } else { value as i64 };
        let new = match kind {
            0 => operand,
            1 => {
                if old == expected & limit {
                    operand
                } else {
                    old
                }
            }
            2 => old.wrapping_add(operand),
            3 => old & operand,
            4 => old | operand,
            5 => old ^ operand,
            6 => old.max(operand),
            _ => {
                if signed(old) < signed(operand) {
                    operand
                } else {
                    old
                }
            }
        } & limit;
        self.set_memory(word, mask, new << (shift * 8), Some((thread, 1 << thread)));
        if self.program.stale != 0 {
            let now = self.now();
            self.last_seen.insert((thread as u8, word), now);
        }
        if order & ACQUIRE != 0 {
            self.threads[thread].floor = self.now();
        }
        self.threads[thread].effects |= new != old;
        self.learn(thread, address, old);
        self.say(|world| {
            let verb = ["exchanges", "compares and swaps", "adds to", "ands", "ors", "xors", "raises", "raises"]
                [kind.min(7) as usize];
            let order = ["", " (acquire)", " (release)", " (acquire and release)"][order.min(3) as usize];
            let (before, after) = (world.show(address, old, bytes), world.show(address, new, bytes));
            format!("{} {verb} {}{order}: {before} becomes {after}", world.who(thread), world.memory.describe(address))
        });
        old
    }
}
