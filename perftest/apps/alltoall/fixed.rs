//! Messages of one size.

use oxshmem::{ContextOptions, Contexts, LaunchConfig, Sharing, SymmetricSlice};
use oxshmem_perftest::error::Error;
use oxshmem_perftest::pattern::{self, SLACK};
use oxshmem_perftest::report::Posted;

use crate::options::Via;
use crate::report::Row;
use crate::session::{Phase, Session, Words};

/// Messages below this are sent by the warps of one CTA.
const BY_BLOCKS: u64 = 1024;
/// A slice of a message is not less than this.
const SLICE: u64 = 1024;
/// Threads of a warp.
const WARP: u32 = 32;
/// Blocks of the send queues of contexts. A group has a few puts to a PE under way.
const CONTEXT_DEPTH: u32 = 256;

/// Messages of one size, from every PE to every PE.
pub struct Exchange<'a, 'b> {
    session: &'b Session<'a>,
    dst: SymmetricSlice<u8>,
    src: SymmetricSlice<u8>,
    signals: SymmetricSlice<u64>,
    times: SymmetricSlice<u64>,
    /// With `--via context`: one for each warp of the CTA that sends small messages, and one for
    /// each CTA.
    contexts: Option<[Contexts; 2]>,
    /// Iterations so far.
    base: u64,
}

impl<'a, 'b> Exchange<'a, 'b> {
    /// Allocates for the largest size. Collective.
    ///
    /// # Errors
    /// No memory.
    pub fn new(session: &'b Session<'a>) -> Result<Self, Error> {
        let (pe, plan) = (session.pe, session.plan);
        let npes = pe.n_pes();
        let room = room(session.options.via(), plan.sizes.last().copied().unwrap_or_default()) as usize;
        let create = |sharing, count: u32| {
            pe.team_world()
                .create_contexts(pe, &ContextOptions::new(sharing).count(count as usize).depth(CONTEXT_DEPTH))
        };
        let contexts = match session.options.via() {
            Via::Context => Some([create(Sharing::Warp, plan.threads / WARP)?, create(Sharing::Block, plan.ctas)?]),
            Via::Put | Via::Collective => None,
        };
        Ok(Self {
            session,
            dst: pe.alloc_aligned(room.saturating_mul(2 * npes), 256)?,
            src: pe.alloc_aligned(room.saturating_mul(npes).saturating_add(SLACK), 256)?,
            signals: pe.alloc_aligned(npes * plan.ctas as usize, 128)?,
            times: pe.alloc(plan.iters.max(session.options.warmup) as usize)?,
            contexts,
            base: 0,
        })
    }

    /// Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        [self.dst, self.src].into_iter().try_for_each(|slice| self.session.pe.free(slice))?;
        [self.signals, self.times].into_iter().try_for_each(|slice| self.session.pe.free(slice))?;
        Ok(self.contexts.into_iter().flatten().try_for_each(|contexts| contexts.destroy(self.session.pe))?)
    }

    /// Measures one size. PE 0 gets the row; it and the PEs that found wrong data get that as an
    /// error beside it. Collective.
    ///
    /// # Errors
    /// Anything but wrong data.
    pub fn run(&mut self, bytes: u64) -> Result<(Vec<Row>, Option<Error>), Error> {
        let (session, pe) = (self.session, self.session.pe);
        let (me, npes) = (pe.my_pe(), pe.n_pes());
        let source = pattern::source(seed(bytes, me), self.room(bytes) as usize * npes + SLACK);
        pe.write(&self.src, &source)?;
        let warmup = session.options.warmup;
        if warmup != 0 {
            self.launch(bytes, 0, warmup)?;
        }
        // What is not overwritten is wrong.
        let len = self.room(bytes) as usize * npes;
        pe.write(&self.dst, &vec![0xff; 2 * len])?;
        let before = Posted::so_far(pe)?;
        let iters = session.plan.iters;
        self.launch(bytes, warmup, iters)?;
        let posted = Posted::so_far(pe)?.since(before);

        let wrong = session.verdicts.gather(self.check(bytes, warmup + iters - 1))?;
        if me != 0 {
            return Ok((Vec::new(), wrong));
        }
        let times = pe.read(self.times.view(..iters as usize))?;
        let phase = Phase {
            name: "exchange",
            shape: self.shape(bytes).1,
            bytes,
            sent: bytes * (npes as u64 - 1),
            times: &times,
        };
        Ok((vec![session.row(&phase, posted, wrong.is_none())], wrong))
    }

    fn room(&self, bytes: u64) -> u64 {
        room(self.session.options.via(), bytes)
    }

    /// Returns the kernel, its shape, and the slices of a message.
    fn shape(&self, bytes: u64) -> (&'static str, LaunchConfig, u64) {
        let plan = self.session.plan;
        if self.session.options.via() == Via::Collective {
            return ("exchange_collective", LaunchConfig::linear(1, plan.threads), 1);
        }
        let own = self.contexts.is_some();
        if bytes < BY_BLOCKS {
            let kernel = if own { "exchange_warp_in_contexts" } else { "exchange_warp" };
            return (kernel, LaunchConfig::linear(1, plan.threads), 1);
        }
        let each = (u64::from(plan.ctas) / self.session.pe.n_pes() as u64).clamp(1, (bytes / SLICE).max(1));
        let kernel = if own { "exchange_block_in_contexts" } else { "exchange_block" };
        (kernel, LaunchConfig::linear(plan.ctas, plan.threads), each)
    }

    fn launch(&mut self, bytes: u64, first: u64, iters: u64) -> Result<(), Error> {
        let (kernel, shape, slices) = self.shape(bytes);
        let words = Words([
            self.dst.address(),
            self.src.address(),
            self.signals.address(),
            self.session.arrivals.address(),
            self.times.address(),
            bytes,
            self.room(bytes),
            slices,
            first,
            iters,
            self.base,
            self.contexts.as_ref().map_or(0, |sets| sets[usize::from(bytes >= BY_BLOCKS)].as_device_has_them().1),
        ]);
        self.session.launch(kernel, shape, words)?;
        self.base += iters;
        Ok(())
    }

    /// What the last iteration has brought: it was iteration `last` of this size.
    fn check(&self, bytes: u64, last: u64) -> Result<(), Error> {
        let pe = self.session.pe;
        let (me, npes, room, bytes) = (pe.my_pe(), pe.n_pes(), self.room(bytes) as usize, bytes as usize);
        let set = (self.base % 2) as usize * npes * room;
        for sender in 0..npes {
            let at = set + sender * room;
            let mut found = pe.read(self.dst.view(at..at + bytes))?;
            if let Some(byte) = self.session.options.corrupt.filter(|_| me == 0 && sender + 1 == npes) {
                found.iter_mut().skip(byte as usize).take(1).for_each(|byte| *byte ^= 1);
            }
            let sent = pattern::part(seed(bytes as u64, sender), (pattern::shift(last) + me * room) as u64, bytes);
            pattern::check("what another PE sent", &sent, &found)?;
        }
        Ok(())
    }
}

/// From one PE's message to the next one's. The collective has them side by side.
fn room(via: Via, bytes: u64) -> u64 {
    match via {
        Via::Put | Via::Context => bytes.next_multiple_of(64),
        Via::Collective => bytes,
    }
}

fn seed(bytes: u64, sender: usize) -> u64 {
    pattern::seed("alltoall", &sender.to_string(), bytes)
}
