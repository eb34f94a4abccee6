//! The engine where no kernel finds room: its thread executes send queues that it cannot reach, by
//! copies.
//!
//! The thread is the engine of the CPU, with its checks, texts and order. It differs in how it
//! touches memory of kernels: it fetches the doorbell records of all queue pairs at once, then what
//! is posted to each as an image, and queues copies for what the work requests move. Completions
//! are written last, after all of it. What only a kernel does, atomics, it leaves to a slice that
//! takes turns with other kernels
//! ([`Accelerator::launch_aside`](super::Accelerator::launch_aside)).
//!
//! # Order
//! Copies take place in the order in which they are queued. Inline writes that follow each other
//! with the same length, at the same distance, become one copy of rows, whose order no program may
//! rely on: none of them carries an ordering bit but perhaps the first. In front of a work request
//! that does, everything before it is made visible. Payload that has to be fetched first is written
//! when it has arrived, and what is read likewise; both before the next work request with an
//! ordering bit, the next that reads, and any completion.

use super::accelerator::{AcceleratorResult, CopyEngine, Rows};
use crate::wire::{BLOCK_BYTES, cqe};
use oxshmem_system::words::native;
use std::collections::HashMap;

/// When the engine's thread executes by copies what an accelerator's kernel otherwise does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyMode {
    /// While other kernels leave no room for that one.
    #[default]
    WhenNeeded,
    /// Never: what is posted then waits for room.
    Never,
    /// Always, for tests.
    Always,
}

/// From this length on a copy of one row needs no kernel's turn; measured on an H200: 4 KiB take
/// 2.4 ms where kernels of another context fill the GPU, 32 KiB 9 us.
const ONE_ROW: usize = 32 << 10;
/// The longest payload that is stored in words.
const STORED: usize = 128;
/// Rows of whole words up to this number are stored instead.
const FEW_ROWS: u64 = 3;
/// The largest distance of rows.
const MAX_PITCH: u64 = 1 << 30;
/// Between the two halves of what is copied as two rows, so that they are not one.
const GAP: usize = 64;

/// Where something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub address: u64,
    /// It is memory of this process too.
    pub on_host: bool,
}

/// Blocks of a send queue as they were fetched.
#[derive(Debug, Clone, Copy)]
struct Image {
    first: u64,
    blocks: u64,
    at: *const u8,
}

/// Something that is on its way to the staging memory and belongs elsewhere.
#[derive(Debug)]
struct Landing {
    at: *const u8,
    to: Place,
    len: usize,
    /// It is the payload of a write.
    written: bool,
}

/// The staging memory, handed out from its start; all of it is free again after a wait.
#[derive(Debug)]
struct Staging {
    base: *mut u8,
    len: usize,
    used: usize,
}

impl Staging {
    fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        let at = self.used.next_multiple_of(GAP);
        let end = at.checked_add(bytes).filter(|end| *end <= self.len)?;
        self.used = end;
        // SAFETY: within the staging memory.
        Some(unsafe { self.base.add(at) })
    }
}

/// What the engine's thread needs to execute by copies.
#[derive(Debug)]
pub(super) struct Copying {
    engine: Box<dyn CopyEngine>,
    images: HashMap<u32, Image>,
    image_staging: Staging,
    staging: Staging,
    /// Writes that may become one copy.
    run: Option<Rows>,
    landings: Vec<Landing>,
    completions: HashMap<u32, (Place, [u8; cqe::LEN])>,
    /// Something was queued since the last wait.
    queued: bool,
}

// SAFETY: the pointers name the copy engine's staging memory, which goes where it goes.
unsafe impl Send for Copying {}

impl Copying {
    pub(super) fn new(engine: Box<dyn CopyEngine>) -> Self {
        let (base, len) = engine.staging();
        let half = len / 2 / GAP * GAP;
        // SAFETY: the middle of the staging memory.
        let middle = unsafe { base.add(half) };
        Self {
            engine,
            images: HashMap::new(),
            image_staging: Staging { base, len: half, used: 0 },
            staging: Staging { base: middle, len: len - half, used: 0 },
            run: None,
            landings: Vec::new(),
            completions: HashMap::new(),
            queued: false,
        }
    }

    /// Returns the longest piece of a payload that is moved at once.
    pub(super) fn piece(&self) -> usize {
        self.staging.len / 4
    }

    fn wait(&mut self) -> AcceleratorResult<()> {
        if std::mem::take(&mut self.queued) {
            self.engine.wait()?;
        }
        Ok(())
    }

    /// Takes staging memory for the data of one work request. Everything before it may be waited
    /// for.
    fn take(&mut self, bytes: usize) -> AcceleratorResult<*mut u8> {
        if let Some(at) = self.staging.take(bytes) {
            return Ok(at);
        }
        self.land()?;
        self.wait()?;
        self.staging.used = 0;
        self.staging.take(bytes).ok_or_else(|| {
            super::AcceleratorError(format!(
                "a copy of {bytes} bytes at once; the staging memory has {}",
                self.staging.len
            ))
        })
    }

    /// Reads `bytes` bytes at each address, at most a page; all addresses are of memory of kernels.
    /// Nothing else has been begun.
    ///
    /// # Safety
    /// All of that is readable.
    pub(super) unsafe fn read_all(&mut self, addresses: &[u64], bytes: usize) -> AcceleratorResult<Vec<Vec<u8>>> {
        let mut found: Vec<(u64, *const u8)> = Vec::new();
        for (from, len) in spans(addresses, bytes as u64) {
            let to = self.take(len)?;
            // SAFETY: the requested words lie at both ends of the span, and close to each other in
            // between; memory of kernels is mapped in larger units.
            unsafe { self.engine.fetch(to, from, len) }?;
            self.queued = true;
            found.push((from, to));
        }
        self.wait()?;
        let range = |address: &u64| {
            let span = found.partition_point(|(from, _)| from <= address).checked_sub(1).and_then(|at| found.get(at));
            span.map_or_else(Vec::new, |(from, at)| {
                // SAFETY: within the span that was fetched.
                unsafe { std::slice::from_raw_parts(at.add(native(address - from)), bytes) }.to_vec()
            })
        };
        let ranges = addresses.iter().map(range).collect();
        self.staging.used = 0;
        Ok(ranges)
    }

    /// Queues the write of words of 8 bytes, to memory of kernels.
    ///
    /// # Safety
    /// They are writable until the next wait, and aligned.
    pub(super) unsafe fn write_words(&mut self, to: u64, words: &[u64]) -> AcceleratorResult<()> {
        self.queued = true;
        for (at, word) in words.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.engine.store(to + 8 * at as u64, *word, true) }?;
        }
        Ok(())
    }

    /// Waits for what was queued.
    pub(super) fn end_writes(&mut self) -> AcceleratorResult<()> {
        self.wait()
    }

    /// Forgets all images.
    pub(super) fn begin_images(&mut self) {
        self.images.clear();
        self.image_staging.used = 0;
    }

    /// Queues the fetch of `blocks` blocks of a send queue from block `first` on; fewer if the
    /// staging memory is short. `queue` has `depth` blocks, a power of two.
    ///
    /// # Safety
    /// The queue is readable.
    pub(super) unsafe fn fetch_image(
        &mut self,
        qpn: u32,
        queue: Place,
        depth: u64,
        first: u64,
        blocks: u64,
    ) -> AcceleratorResult<()> {
        let room = (self.image_staging.len - self.image_staging.used) / BLOCK_BYTES;
        let blocks = blocks.min(depth).min(room.saturating_sub(1) as u64);
        let Some(at) = self.image_staging.take(native(blocks) * BLOCK_BYTES) else { return Ok(()) };
        let before_end = blocks.min(depth - (first & (depth - 1)));
        for (done, blocks) in [(0, before_end), (before_end, blocks - before_end)] {
            if blocks == 0 {
                continue;
            }
            let from = queue.address + ((first + done) & (depth - 1)) * BLOCK_BYTES as u64;
            let bytes = native(blocks) * BLOCK_BYTES;
            // SAFETY: within the part that was taken.
            let to = unsafe { at.add(native(done) * BLOCK_BYTES) };
            if queue.on_host {
                // SAFETY: the queue is this process's memory too; posters do not change what is
                // posted.
                unsafe { super::memory::copy(to, from as *const u8, bytes) };
            } else {
                // SAFETY: the caller's promise.
                unsafe { self.engine.fetch(to, from, bytes) }?;
                self.queued = true;
            }
        }
        if blocks != 0 {
            self.images.insert(qpn, Image { first, blocks, at });
        }
        Ok(())
    }

    /// Waits for the images.
    pub(super) fn end_images(&mut self) -> AcceleratorResult<()> {
        self.wait()
    }

    /// Returns where block `index` of a queue is in its image.
    pub(super) fn block(&self, qpn: u32, index: u64) -> Option<*const u8> {
        let image = self.images.get(&qpn)?;
        let block = index.checked_sub(image.first).filter(|block| *block < image.blocks)?;
        // SAFETY: within the image.
        Some(unsafe { image.at.add(native(block) * BLOCK_BYTES) })
    }

    /// Makes everything before visible to an observer of what comes now.
    pub(super) fn order(&mut self) -> AcceleratorResult<()> {
        self.land()?;
        self.engine.order()
    }

    /// Writes what an image holds.
    ///
    /// # Safety
    /// `to` is writable until the next [`settle`](Self::settle), and `from` is within an image.
    pub(super) unsafe fn write_from_image(&mut self, to: u64, from: *const u8, len: usize) -> AcceleratorResult<()> {
        if let Some(run) = &mut self.run
            && extend(run, to, from, len)
        {
            return Ok(());
        }
        self.end_run()?;
        self.run = Some(Rows { to, to_pitch: 0, from, from_pitch: 0, width: len as u64, count: 1 });
        Ok(())
    }

    /// Writes what lies elsewhere; at most [`piece`](Self::piece) bytes.
    ///
    /// # Safety
    /// Both ranges are valid until the next [`settle`](Self::settle).
    pub(super) unsafe fn write(&mut self, to: u64, from: Place, len: usize) -> AcceleratorResult<()> {
        self.end_run()?;
        let at = self.take(len)?;
        if from.on_host {
            // SAFETY: the caller's promise; it is this process's memory too.
            unsafe { super::memory::copy(at, from.address as *const u8, len) };
            return self.put(to, at, len);
        }
        // SAFETY: the caller's promise.
        unsafe { self.engine.fetch(at, from.address, len) }?;
        self.queued = true;
        if len >= ONE_ROW {
            return self.put(to, at, len);
        }
        self.landings.push(Landing { at, to: Place { address: to, on_host: false }, len, written: true });
        Ok(())
    }

    /// Reads; at most [`piece`](Self::piece) bytes.
    ///
    /// # Safety
    /// The conditions of [`write`](Self::write).
    pub(super) unsafe fn read(&mut self, to: Place, from: u64, len: usize) -> AcceleratorResult<()> {
        if self.landings.iter().any(|landing| landing.written) {
            self.land()?;
        }
        self.end_run()?;
        let at = self.take(len)?;
        // SAFETY: the caller's promise.
        unsafe { self.engine.fetch(at, from, len) }?;
        self.queued = true;
        self.landings.push(Landing { at, to, len, written: false });
        Ok(())
    }

    /// Writes a completion when everything before it is visible. Completions of one queue pair
    /// share a place, where the last one remains.
    pub(super) fn complete(&mut self, qpn: u32, at: Place, bytes: &[u8; cqe::LEN]) {
        self.completions.insert(qpn, (at, *bytes));
    }

    /// Ends everything that was begun, completions last.
    pub(super) fn settle(&mut self) -> AcceleratorResult<()> {
        self.land()?;
        let mut completions: Vec<(Place, [u8; cqe::LEN])> = self.completions.drain().map(|(_, each)| each).collect();
        let word = |bytes: &[u8; cqe::LEN], at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        if !completions.is_empty() {
            self.engine.order()?;
            self.queued = true;
        }
        for (at, bytes) in completions.iter().filter(|(at, _)| !at.on_host) {
            for offset in (0..cqe::LEN).step_by(8) {
                // SAFETY: the CQ lies in a umem that stays registered while it lives, aligned to
                // 64.
                unsafe { self.engine.store(at.address + offset as u64, word(bytes, offset), true) }?;
            }
        }
        self.wait()?;
        completions.retain(|(at, _)| at.on_host);
        for (at, bytes) in completions {
            let cqe = at.address as *mut u8;
            for offset in (0..cqe::LEN).step_by(8) {
                let order = if offset == cqe::TAIL_OFFSET {
                    std::sync::atomic::Ordering::Release
                } else {
                    std::sync::atomic::Ordering::Relaxed
                };
                // SAFETY: as above; it is this process's memory too.
                unsafe { super::memory::store64(cqe.add(offset), word(&bytes, offset), order) };
            }
        }
        self.staging.used = 0;
        Ok(())
    }

    /// Writes what has been fetched to where it belongs.
    fn land(&mut self) -> AcceleratorResult<()> {
        self.end_run()?;
        if self.landings.is_empty() {
            return Ok(());
        }
        self.wait()?;
        for Landing { at, to, len, .. } in std::mem::take(&mut self.landings) {
            if to.on_host {
                // SAFETY: the range is valid by the caller's promise, and this process's memory
                // too.
                unsafe { super::memory::copy(to.address as *mut u8, at, len) };
            } else {
                self.put(to.address, at, len)?;
            }
        }
        Ok(())
    }

    fn end_run(&mut self) -> AcceleratorResult<()> {
        let Some(run) = self.run.take() else { return Ok(()) };
        let words = run.width == 8 && (run.to | run.to_pitch).is_multiple_of(8);
        if run.count != 1 && !(words && run.count <= FEW_ROWS) {
            self.queued = true;
            // SAFETY: the promise of `write_from_image`.
            return unsafe { self.engine.put(&run) };
        }
        for row in 0..run.count {
            // SAFETY: within the image.
            let from = unsafe { run.from.add(native(row * run.from_pitch)) };
            self.put(run.to + row * run.to_pitch, from, native(run.width))?;
        }
        Ok(())
    }

    /// Queues the write of bytes in the staging memory that stay as they are. An aligned word of 4
    /// or 8 bytes is written at once, and so is one of 1 or 2 bytes by itself.
    fn put(&mut self, to: u64, from: *const u8, len: usize) -> AcceleratorResult<()> {
        self.queued = true;
        let one = |count, width: usize| Rows {
            to,
            to_pitch: width as u64,
            from,
            from_pitch: width as u64,
            width: width as u64,
            count,
        };
        if len == 0 {
            return Ok(());
        }
        if len <= 2 || len >= ONE_ROW {
            // SAFETY: the caller's promise.
            return unsafe { self.engine.put(&one(1, len)) };
        }
        let (mut to, mut from, mut len) = (to, from, len);
        if len > STORED || (to % 4 != 0 && len >= 2 * 16) {
            // Two rows, each of whole words where the destination is aligned, and apart in the
            // staging memory.
            let half = len / 2 / 8 * 8;
            let place = self.staging.take(2 * half + GAP);
            let Some(place) = place else {
                // SAFETY: as above. It may take a kernel's turn.
                return unsafe {
                    self.engine.put(&Rows {
                        to,
                        to_pitch: len as u64,
                        from,
                        from_pitch: len as u64,
                        width: len as u64,
                        count: 1,
                    })
                };
            };
            // SAFETY: `place` has room for both halves and the gap; `from` has `len` bytes.
            unsafe {
                super::memory::copy(place, from, half);
                super::memory::copy(place.add(half + GAP), from.add(half), half);
                let (width, from_pitch) = (half as u64, (half + GAP) as u64);
                self.engine.put(&Rows { to, to_pitch: width, from: place, from_pitch, width, count: 2 })?;
                from = from.add(2 * half);
            }
            to += 2 * half as u64;
            len -= 2 * half;
        }
        while len != 0 {
            // SAFETY: `from` has `len` bytes; words of `to` are valid by the caller's promise.
            let taken = unsafe {
                if len >= 8 && to % 8 == 0 {
                    self.engine.store(to, from.cast::<u64>().read_unaligned(), true)?;
                    8
                } else if len >= 4 && to % 4 == 0 {
                    self.engine.store(to, from.cast::<u32>().read_unaligned().into(), false)?;
                    4
                } else {
                    self.put_bytes(to, from, len)?;
                    len
                }
            };
            // SAFETY: `taken` is at most `len`.
            from = unsafe { from.add(taken) };
            to += taken as u64;
            len -= taken;
        }
        Ok(())
    }

    /// Queues the write of a few bytes as several rows: of 2 bytes each where the destination is
    /// aligned to 2, so that no 16-bit word is written in two steps, and of one byte otherwise.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, `to` writable.
    unsafe fn put_bytes(&mut self, to: u64, from: *const u8, len: usize) -> AcceleratorResult<()> {
        let width = if (to | len as u64).is_multiple_of(2) { 2 } else { 1 };
        let count = len / width;
        let spread = if count > 1 { self.staging.take(2 * len) } else { None };
        let Some(spread) = spread else {
            let width = len as u64;
            // SAFETY: the caller's promise. It may take a kernel's turn.
            return unsafe { self.engine.put(&Rows { to, to_pitch: width, from, from_pitch: width, width, count: 1 }) };
        };
        // SAFETY: `spread` has room for twice as many bytes as there are.
        unsafe {
            for row in 0..count {
                super::memory::copy(spread.add(2 * row * width), from.add(row * width), width);
            }
            let (width, count) = (width as u64, count as u64);
            self.engine.put(&Rows { to, to_pitch: width, from: spread, from_pitch: 2 * width, width, count })
        }
    }
}

/// Adds a write to a run if it has the same length and comes at the same distance, at both ends.
fn extend(run: &mut Rows, to: u64, from: *const u8, len: usize) -> bool {
    let last = run.count - 1;
    let (Some(to_step), Some(from_step)) = (
        to.checked_sub(run.to + last * run.to_pitch),
        (from.addr() as u64).checked_sub(run.from.addr() as u64 + last * run.from_pitch),
    ) else {
        return false;
    };
    let width = len as u64;
    let fits = width == run.width && to_step >= width && from_step >= width && to_step.max(from_step) <= MAX_PITCH;
    if !fits || (run.count > 1 && (to_step, from_step) != (run.to_pitch, run.from_pitch)) {
        return false;
    }
    (run.to_pitch, run.from_pitch) = (to_step, from_step);
    run.count += 1;
    true
}

/// Returns the ranges that cover words at these addresses; what is close together is one. In
/// ascending order.
fn spans(addresses: &[u64], bytes: u64) -> Vec<(u64, usize)> {
    /// Bytes between two words that are fetched in vain rather than with a further copy.
    const CLOSE: u64 = 1024;
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    let mut spans: Vec<(u64, usize)> = Vec::new();
    for address in sorted {
        match spans.last_mut() {
            Some((from, len)) if address - *from <= *len as u64 + CLOSE => {
                *len = (*len).max(native(address - *from + bytes));
            }
            _ => spans.push((address, native(bytes))),
        }
    }
    spans
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    /// Copies at once, keeps count, and notes what it did.
    #[derive(Debug)]
    struct Recorder {
        staging: Vec<u64>,
        log: Arc<Mutex<Vec<String>>>,
    }

    impl Recorder {
        fn note(&self, what: String) {
            self.log.lock().unwrap().push(what);
        }
    }

    impl CopyEngine for Recorder {
        fn staging(&self) -> (*mut u8, usize) {
            (self.staging.as_ptr().cast_mut().cast(), self.staging.len() * 8)
        }

        unsafe fn fetch(&mut self, to: *mut u8, from: u64, bytes: usize) -> AcceleratorResult<()> {
            self.note(format!("fetch {bytes}"));
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes) };
            Ok(())
        }

        unsafe fn put(&mut self, rows: &Rows) -> AcceleratorResult<()> {
            self.note(format!("put {}x{}", rows.count, rows.width));
            for row in 0..rows.count {
                let to = (rows.to + row * rows.to_pitch) as *mut u8;
                // SAFETY: the caller's promise.
                unsafe {
                    let from = rows.from.add((row * rows.from_pitch) as usize);
                    std::ptr::copy_nonoverlapping(from, to, rows.width as usize);
                }
            }
            Ok(())
        }

        unsafe fn store(&mut self, to: u64, value: u64, wide: bool) -> AcceleratorResult<()> {
            self.note(format!("store {}", if wide { 8 } else { 4 }));
            assert!(to.is_multiple_of(if wide { 8 } else { 4 }));
            // SAFETY: the caller's promise.
            unsafe { if wide { (to as *mut u64).write(value) } else { (to as *mut u32).write(value as u32) } }
            Ok(())
        }

        fn order(&mut self) -> AcceleratorResult<()> {
            self.note("order".into());
            Ok(())
        }

        fn wait(&mut self) -> AcceleratorResult<()> {
            self.note("wait".into());
            Ok(())
        }
    }

    const DEPTH: u64 = 64;

    struct Rig {
        copying: Copying,
        log: Arc<Mutex<Vec<String>>>,
        /// A send queue, whose block `i` begins with `i`, and the memory of a peer.
        queue: Vec<[u8; BLOCK_BYTES]>,
        peer: Vec<u64>,
    }

    fn rig() -> Rig {
        let log = Arc::new(Mutex::new(Vec::new()));
        let engine = Recorder { staging: vec![0; 1 << 14], log: Arc::clone(&log) };
        let queue = (0..DEPTH).map(|i| std::array::from_fn(|at| (i as u8).wrapping_add(at as u8))).collect();
        Rig { copying: Copying::new(Box::new(engine)), log, queue, peer: vec![0; 4096] }
    }

    impl Rig {
        fn log(&self) -> Vec<String> {
            std::mem::take(&mut self.log.lock().unwrap())
        }

        fn images(&mut self, first: u64, blocks: u64) {
            let queue = Place { address: self.queue.as_ptr().addr() as u64, on_host: false };
            self.copying.begin_images();
            // SAFETY: the queue has that many blocks.
            unsafe { self.copying.fetch_image(1, queue, DEPTH, first, blocks) }.unwrap();
            self.copying.end_images().unwrap();
        }

        /// Writes `len` bytes of block `index` to the peer's byte `to`.
        fn write(&mut self, index: u64, to: usize, len: usize) {
            let from = self.copying.block(1, index).unwrap();
            let to = self.peer.as_mut_ptr().addr() + to;
            // SAFETY: inside both.
            unsafe { self.copying.write_from_image(to as u64, from, len) }.unwrap();
        }

        fn peer(&self, at: usize, len: usize) -> Vec<u8> {
            let bytes: Vec<u8> = self.peer.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes[at..at + len].to_vec()
        }
    }

    #[test]
    fn an_image_goes_round_the_end_of_the_queue() {
        let mut rig = rig();
        rig.images(DEPTH - 2, 5);
        assert_eq!(rig.log(), ["fetch 128", "fetch 192", "wait"]);
        for index in DEPTH - 2..DEPTH + 3 {
            // SAFETY: a block.
            assert_eq!(unsafe { rig.copying.block(1, index).unwrap().read() }, (index % DEPTH) as u8);
        }
        assert_eq!((rig.copying.block(1, DEPTH - 3), rig.copying.block(1, DEPTH + 3)), (None, None));
        assert_eq!(rig.copying.block(2, DEPTH), None, "another queue pair's");
    }

    #[test]
    fn writes_at_one_distance_are_one_copy() {
        let mut rig = rig();
        rig.images(0, DEPTH);
        for stride in [8, 128] {
            (0..32).for_each(|i| rig.write(i, i as usize * stride, 8));
            rig.copying.settle().unwrap();
            let log = rig.log();
            assert_eq!(log.iter().filter(|line| line.starts_with("put")).collect::<Vec<_>>(), ["put 32x8"], "{log:?}");
            assert!(!log.iter().any(|line| line.starts_with("store")));
            (0..32).for_each(|i| assert_eq!(rig.peer(i as usize * stride, 8), rig.queue[i as usize][..8]));
        }
    }

    #[test]
    fn what_differs_begins_another_copy() {
        let mut rig = rig();
        rig.images(0, DEPTH);
        // Distances 64, 64, 64, 8; then another length; then backwards.
        for (index, (to, len)) in
            [(0, 8), (64, 8), (128, 8), (192, 8), (200, 8), (256, 4), (128, 4)].into_iter().enumerate()
        {
            rig.write(index as u64, to, len);
        }
        rig.copying.settle().unwrap();
        assert_eq!(rig.log(), ["fetch 4096", "wait", "put 4x8", "store 8", "store 4", "store 4", "wait"]);
    }

    #[test]
    fn an_ordering_bit_ends_a_run() {
        let mut rig = rig();
        rig.images(0, DEPTH);
        rig.log();
        (0..4).for_each(|i| rig.write(i, i as usize * 8, 8));
        rig.copying.order().unwrap();
        (4..8).for_each(|i| rig.write(i, i as usize * 8, 8));
        rig.copying.settle().unwrap();
        assert_eq!(rig.log(), ["put 4x8", "order", "put 4x8", "wait"]);
    }

    #[test]
    fn completions_come_last() {
        let mut rig = rig();
        rig.images(0, DEPTH);
        rig.log();
        let mut cqes = [[0u64; 8]; 2];
        let places = cqes.each_mut().map(|cqe| cqe.as_mut_ptr().addr() as u64);
        rig.write(0, 0, 8);
        for (qpn, on_host) in [(1, false), (2, true), (2, true)] {
            rig.copying.complete(qpn, Place { address: places[qpn as usize - 1], on_host }, &[qpn as u8; cqe::LEN]);
        }
        rig.copying.settle().unwrap();
        let stores = std::iter::repeat_n("store 8", 8);
        let expected: Vec<&str> = ["store 8", "order"].into_iter().chain(stores).chain(["wait"]).collect();
        assert_eq!(rig.log(), expected);
        assert_eq!(cqes.map(|cqe| cqe[7].to_ne_bytes()[7]), [1, 2]);
    }

    #[test]
    fn what_is_read_lands_before_what_is_ordered_behind_it() {
        let mut rig = rig();
        let local = [0u8; 64];
        let to = Place { address: local.as_ptr().addr() as u64, on_host: true };
        // SAFETY: both have 64 bytes.
        unsafe { rig.copying.read(to, rig.queue[3].as_ptr().addr() as u64, 64) }.unwrap();
        rig.copying.order().unwrap();
        assert_eq!(rig.log(), ["fetch 64", "wait", "order"]);
        // SAFETY: as it was written through its address.
        assert_eq!(unsafe { std::ptr::read_volatile(&raw const local) }, rig.queue[3]);
    }

    #[test]
    fn words_close_together_are_read_at_once() {
        let words: Vec<u32> = (0..2000).collect();
        let at = |i: usize| &raw const words[i] as u64;
        let mut rig = rig();
        // SAFETY: words of the vector.
        let read = unsafe { rig.copying.read_all(&[at(40), at(0), at(1999), at(16)], 4) }.unwrap();
        assert_eq!(read, [40u32, 0, 1999, 16].map(|word| word.to_ne_bytes().to_vec()));
        assert_eq!(rig.log(), ["fetch 164", "fetch 4", "wait"]);
    }

    proptest! {
        /// Any bytes arrive where they belong and nowhere else; alone or one after the other.
        #[test]
        fn every_byte_arrives(
            pieces in prop::collection::vec((0usize..70, 0usize..3000, any::<bool>()), 1..20),
            long in 0usize..20_000,
        ) {
            let mut rig = rig();
            let source: Vec<u8> = (0..40_000u32).map(|i| (i.wrapping_mul(7) >> 2) as u8).collect();
            let mut expected = vec![0u8; 32_768];
            let mut to = 0;
            let lengths = pieces.into_iter().chain([(3, long, false)]);
            for (gap, len, on_host) in lengths {
                to += gap;
                if to + len > expected.len() {
                    break;
                }
                expected[to..to + len].copy_from_slice(&source[len..2 * len]);
                let from = Place { address: source[len..].as_ptr().addr() as u64, on_host };
                let address = rig.peer.as_mut_ptr().addr() + to;
                for at in (0..len).step_by(rig.copying.piece()) {
                    let piece = rig.copying.piece().min(len - at);
                    let from = Place { address: from.address + at as u64, ..from };
                    // SAFETY: inside both.
                    unsafe { rig.copying.write((address + at) as u64, from, piece) }.unwrap();
                }
                to += len;
            }
            rig.copying.settle().unwrap();
            let found = rig.peer(0, expected.len());
            let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
            prop_assert_eq!(differs, None);
        }
    }
}
