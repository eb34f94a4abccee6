//! An accelerator whose memory no thread but its own reaches: what the HCA is told of addresses is
//! [`SHIFT`] more than where the memory is, and nothing is mapped there. It runs no slices of the
//! engine's kernel, so the engine's thread has to execute everything by copies.

use oxshmem_hca::soft::tables::{AtomicBatch, Gate, Slice, WordAtomic};
use oxshmem_hca::soft::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, CopyEngine, Pace, Rows};
use oxshmem_hca::testing::SharedMemory;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// How much larger addresses are that the HCA is told. User space ends below.
pub const SHIFT: usize = 1 << 56;
/// Staging memory: little, so that it runs out.
const STAGING: usize = 1 << 20;

#[derive(Debug)]
struct Owned {
    memory: SharedMemory,
    bytes: usize,
    shift: usize,
}

impl AcceleratorMemory for Owned {
    fn address(&self) -> u64 {
        (self.memory.base().addr() + self.shift) as u64
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

/// Memory that is `shift` further for the HCA.
fn owned(bytes: u64, shift: usize) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
    let bytes = usize::try_from(bytes).unwrap();
    let memory = SharedMemory::new(bytes).map_err(|error| AcceleratorError(error.to_string()))?;
    Ok(Box::new(Owned { memory, bytes, shift }))
}

/// Where the accelerator's memory is at `address`.
fn at(address: u64) -> *mut u8 {
    let address = usize::try_from(address).unwrap();
    assert!(address > SHIFT, "{address:#x} is not an address of the accelerator");
    (address - SHIFT) as *mut u8
}

/// The accelerator.
#[derive(Debug)]
pub struct Apart;

impl Apart {
    /// A slice that starts and ends.
    fn pass(slice: &Slice) {
        // SAFETY: the gate is valid until the slice has ended.
        let gate = unsafe { &*(slice.gate as *const Gate) };
        gate.blocks[0].started.store(slice.number, Ordering::SeqCst);
        gate.blocks[0].ended.store(slice.number, Ordering::Release);
    }
}

impl Accelerator for Apart {
    fn pace(&self) -> Pace {
        Pace {
            run: Duration::from_millis(1),
            idle: Duration::from_micros(20),
            ahead: 1,
            look: Duration::from_micros(50),
            patience: Duration::from_secs(5),
        }
    }

    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        owned(bytes, SHIFT)
    }

    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        owned(bytes, 0)
    }

    fn map(&self, _: BorrowedFd<'_>, _: u64, _: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        Err(AcceleratorError("memory of another node is not mapped".into()))
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { copy(bytes.as_mut_ptr(), at(from), bytes.len()) };
        Ok(())
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { copy(at(to), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn blocks(&self) -> usize {
        1
    }

    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()> {
        Self::pass(slice);
        Ok(())
    }

    unsafe fn launch_aside(&self, slice: &Slice) -> AcceleratorResult<()> {
        Self::pass(slice);
        Ok(())
    }

    unsafe fn launch_atomics(&self, batch: u64) -> AcceleratorResult<()> {
        let batch = batch as *mut AtomicBatch;
        // SAFETY: the batch is valid and unchanged until `done`, and so are its words.
        unsafe {
            let (number, count) = ((*batch).number, (*batch).count);
            for place in 0..usize::try_from(count).unwrap() {
                let each = &raw mut (*batch).atomics[place];
                (*each).old = change(&*each);
            }
            (*batch).done.store(number, Ordering::Release);
        }
        Ok(())
    }

    fn check(&self) -> AcceleratorResult<()> {
        Ok(())
    }

    fn copy_engine(&self) -> AcceleratorResult<Box<dyn CopyEngine>> {
        Ok(Box::new(Copies { staging: vec![0; STAGING / 8].into_boxed_slice(), queued: Vec::new() }))
    }
}

/// Carries out an atomic as `soft_hca.h` describes it. Returns the word before.
///
/// # Safety
/// The word is valid and aligned.
unsafe fn change(atomic: &WordAtomic) -> u64 {
    let bits = if atomic.width == 8 { u64::MAX } else { u64::from(u32::MAX) };
    let next = |old: u64| {
        let next = if atomic.add != 0 {
            let (a, b, top) = (old, atomic.operand, atomic.mask);
            (a & !top).wrapping_add(b & !top) ^ ((a ^ b) & top)
        } else if (old ^ atomic.compare) & atomic.compare_mask == 0 {
            old & !atomic.mask | atomic.operand & atomic.mask
        } else {
            old
        };
        next & bits
    };
    let order = (Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: the caller's promise.
    unsafe {
        if atomic.width == 8 {
            let word = AtomicU64::from_ptr(at(atomic.word).cast());
            return word.fetch_update(order.0, order.1, |old| Some(next(old))).unwrap();
        }
        let word = AtomicU32::from_ptr(at(atomic.word).cast());
        word.fetch_update(order.0, order.1, |old| Some(next(old.into()) as u32)).unwrap().into()
    }
}

/// Copies that take place as late as they may.
#[derive(Debug)]
struct Copies {
    staging: Box<[u64]>,
    queued: Vec<Queued>,
}

#[derive(Debug)]
enum Queued {
    Fetch(*mut u8, u64, usize),
    Put(Rows),
    Store(u64, u64, bool),
}

// SAFETY: the addresses are valid for the thread that waits, by the queueing caller's promise.
unsafe impl Send for Copies {}

impl CopyEngine for Copies {
    fn staging(&self) -> (*mut u8, usize) {
        (self.staging.as_ptr().cast_mut().cast(), size_of_val(&*self.staging))
    }

    unsafe fn fetch(&mut self, to: *mut u8, from: u64, bytes: usize) -> AcceleratorResult<()> {
        self.queued.push(Queued::Fetch(to, from, bytes));
        Ok(())
    }

    unsafe fn put(&mut self, rows: &Rows) -> AcceleratorResult<()> {
        self.queued.push(Queued::Put(*rows));
        Ok(())
    }

    unsafe fn store(&mut self, to: u64, value: u64, wide: bool) -> AcceleratorResult<()> {
        self.queued.push(Queued::Store(to, value, wide));
        Ok(())
    }

    fn order(&mut self) -> AcceleratorResult<()> {
        Ok(())
    }

    fn wait(&mut self) -> AcceleratorResult<()> {
        for queued in self.queued.drain(..) {
            // SAFETY: both ends are valid until this has returned, and words are aligned.
            unsafe {
                match queued {
                    Queued::Fetch(to, from, bytes) => copy(to, at(from), bytes),
                    Queued::Put(rows) => {
                        for row in 0..rows.count {
                            let from = rows.from.add(usize::try_from(row * rows.from_pitch).unwrap());
                            copy(at(rows.to + row * rows.to_pitch), from, usize::try_from(rows.width).unwrap());
                        }
                    }
                    Queued::Store(to, value, true) => {
                        AtomicU64::from_ptr(at(to).cast()).store(value, Ordering::Release);
                    }
                    Queued::Store(to, value, false) => {
                        AtomicU32::from_ptr(at(to).cast()).store(value as u32, Ordering::Release);
                    }
                }
            }
            fence(Ordering::Release);
        }
        Ok(())
    }
}

/// Copies in words of 8 bytes where both addresses and the length are aligned to that, and in bytes
/// otherwise.
///
/// # Safety
/// Both ranges are valid.
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let words = (to.addr() | from.addr() | bytes).is_multiple_of(8);
    for i in (0..bytes).step_by(if words { 8 } else { 1 }) {
        // SAFETY: within the ranges, and aligned.
        unsafe {
            if words {
                let word = AtomicU64::from_ptr(from.add(i).cast_mut().cast()).load(Ordering::Relaxed);
                AtomicU64::from_ptr(to.add(i).cast()).store(word, Ordering::Relaxed);
            } else {
                let byte = AtomicU8::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to.add(i)).store(byte, Ordering::Relaxed);
            }
        }
    }
}
