//! Executes what HCAs of other nodes request where the memory of this HCA is an accelerator's,
//! which the CPU does not reach: reads and writes by copies, and atomics by a kernel, so that they
//! are atomic with those of all other kernels.
//!
//! # Order
//! Copies take place in the order in which they are queued, and before each write everything
//! earlier is made visible, as requests of a queue pair are executed in order. Atomics are
//! gathered, and executed by one launch when all copies before them have ended; a read or a write
//! that follows waits for them. So responses come in the order of the requests.

use super::frames::{Id, Response};
use crate::soft::accelerator::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult};
use crate::soft::atomics::Atomic;
use crate::soft::copying::{Copying, Place};
use crate::soft::tables::{ATOMICS, AtomicBatch};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a batch of atomics may take until the accelerator counts as lost.
const LIMIT: Duration = Duration::from_secs(20);

/// Address and length of the memory that peers may use, by umem.
pub(in crate::soft) type Registered = HashMap<u32, (u64, u64)>;

/// A response whose data is not here yet.
#[derive(Debug)]
enum Answer {
    /// What is being read.
    Bytes(Vec<u8>),
    /// The atomic at that place of the batch.
    Word(usize, Atomic),
}

/// Executes requests in memory of kernels.
#[derive(Debug)]
pub(in crate::soft) struct Copier {
    accelerator: Arc<dyn Accelerator>,
    /// While a request is executed this is locked, so that its memory stays.
    registered: Arc<Mutex<Registered>>,
    copying: Copying,
    /// An [`AtomicBatch`]; kept for good if its kernel may still run.
    batch: ManuallyDrop<Box<dyn AcceleratorMemory>>,
    /// Batches launched.
    launched: u64,
    /// Responses in the order of their requests, and how many of them are atomics.
    answers: Vec<(Id, Answer)>,
    atomics: usize,
    /// Bytes of what is being read.
    reading: usize,
}

impl Copier {
    pub(in crate::soft) fn new(
        accelerator: Arc<dyn Accelerator>,
        registered: Arc<Mutex<Registered>>,
    ) -> AcceleratorResult<Self> {
        let copying = Copying::new(accelerator.copy_engine()?);
        let batch = ManuallyDrop::new(accelerator.host_memory(size_of::<AtomicBatch>() as u64)?);
        let answers = Vec::new();
        let mut copier = Self { accelerator, registered, copying, batch, launched: 0, answers, atomics: 0, reading: 0 };
        // The first launch of a kernel may have to wait for kernels that run; later ones do not.
        copier.launch()?;
        Ok(copier)
    }

    /// Returns the memory that requests may name, which stays registered while it is locked.
    pub(super) fn registered(&self) -> Arc<Mutex<Registered>> {
        Arc::clone(&self.registered)
    }

    /// Returns the bytes that responses will have that are not here yet.
    pub(super) fn pending(&self) -> usize {
        self.reading + self.atomics * 8
    }

    /// Writes a payload.
    ///
    /// # Safety
    /// `to` is writable for as many bytes until the next [`finish`](Self::finish).
    pub(super) unsafe fn write(&mut self, to: u64, payload: &[u8], out: &mut Vec<u8>) -> AcceleratorResult<()> {
        self.after_atomics(out)?;
        if payload.is_empty() {
            return Ok(());
        }
        self.copying.order()?;
        let from = Place { address: payload.as_ptr().addr() as u64, on_host: true };
        // SAFETY: the caller's promise; the payload is copied at once.
        unsafe { self.copying.write(to, from, payload.len()) }
    }

    /// Reads `len` bytes for the response to `id`.
    ///
    /// # Safety
    /// `from` is readable for as many bytes until the next [`finish`](Self::finish).
    pub(super) unsafe fn read(&mut self, id: Id, from: u64, len: usize, out: &mut Vec<u8>) -> AcceleratorResult<()> {
        self.after_atomics(out)?;
        let mut bytes = vec![0; len];
        if len != 0 {
            let to = Place { address: bytes.as_mut_ptr().addr() as u64, on_host: true };
            // SAFETY: the caller's promise; the vector's memory stays where it is.
            unsafe { self.copying.read(to, from, len) }?;
        }
        self.reading += len;
        self.answers.push((id, Answer::Bytes(bytes)));
        Ok(())
    }

    /// Executes an atomic for the response to `id`.
    ///
    /// # Safety
    /// `word` is aligned to the atomic's width, and valid until the next [`finish`](Self::finish).
    pub(super) unsafe fn atomic(
        &mut self,
        id: Id,
        word: u64,
        atomic: Atomic,
        out: &mut Vec<u8>,
    ) -> AcceleratorResult<()> {
        if self.atomics == ATOMICS {
            self.finish(out)?;
        }
        let place = self.atomics;
        // SAFETY: a place of the batch, which no kernel reads now.
        unsafe { (&raw mut (*self.memory()).atomics[place]).write(atomic.on_word(word)) };
        self.answers.push((id, Answer::Word(place, atomic)));
        self.atomics += 1;
        Ok(())
    }

    /// Ends all that was begun, and appends the responses.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> AcceleratorResult<()> {
        self.copying.settle()?;
        if self.atomics != 0 {
            self.launch()?;
        }
        for (id, answer) in std::mem::take(&mut self.answers) {
            match answer {
                Answer::Bytes(bytes) => Response::Data(&bytes).encode(out, id),
                Answer::Word(place, atomic) => {
                    // SAFETY: a place of the batch, whose kernel has ended.
                    let old = unsafe { (&raw const (*self.memory()).atomics[place].old).read() };
                    Response::Data(&atomic.result(old)[..atomic.width()]).encode(out, id);
                }
            }
        }
        (self.atomics, self.reading) = (0, 0);
        Ok(())
    }

    /// Has what comes now not overtake atomics.
    fn after_atomics(&mut self, out: &mut Vec<u8>) -> AcceleratorResult<()> {
        if self.atomics == 0 { Ok(()) } else { self.finish(out) }
    }

    fn memory(&self) -> *mut AtomicBatch {
        self.batch.address() as *mut AtomicBatch
    }

    /// Executes the batch.
    fn launch(&mut self) -> AcceleratorResult<()> {
        let batch = self.memory();
        self.launched += 1;
        // SAFETY: it is that large, aligned to a page, lives as long as `self`, and no kernel reads
        // it now.
        let done = unsafe {
            (&raw mut (*batch).number).write(self.launched);
            (&raw mut (*batch).count).write(self.atomics as u64);
            &(*batch).done
        };
        // SAFETY: it is waited for here, and kept for good if that is in vain. The words were
        // checked.
        unsafe { self.accelerator.launch_atomics(batch.addr() as u64) }?;
        let since = Instant::now();
        let look = self.accelerator.pace().look.min(Duration::from_micros(20));
        while done.load(Ordering::Acquire) != self.launched {
            self.accelerator.check()?;
            if since.elapsed() > LIMIT {
                let what = format!("{} atomics of other nodes did not end within {LIMIT:?}", self.atomics);
                let remedy = "kernels that wait for the network have to leave room on the GPU for them";
                return Err(AcceleratorError(format!("{what}: {remedy}")));
            }
            std::thread::sleep(look);
        }
        Ok(())
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // SAFETY: as in `launch`.
        let done = unsafe { &(*self.memory()).done };
        if done.load(Ordering::Acquire) == self.launched {
            // SAFETY: no kernel uses it any more, and neither does anything here.
            unsafe { ManuallyDrop::drop(&mut self.batch) };
        }
    }
}
