//! Measuring: every point is prepared, warmed up, measured, and its data checked. Iterations of a
//! bandwidth test are in flight together and not ordered, so what is checked of it is one more
//! iteration, in a launch of its own after the measured ones.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oxshmem::{KernelArgs, LaunchConfig, Module, Operations, Path, Pe, SymmetricSlice};

use crate::atomic::{AtomicOp, Expected};
use crate::bench::{Bench, Scope};
use crate::connection::{self, NULL};
use crate::error::Error;
use crate::options::Options;
use crate::pattern::{self, SLACK, Walk};
use crate::report::{Job, Posted, Row};
use crate::stats::{Percentiles, elapsed};
use crate::verdicts::{Verdicts, end_if_wrong};
use crate::waiting;

oxshmem::include_module!(KERNELS, "perftest");

/// The PE that measures, and the one that it works with.
const FIRST: usize = 0;
const SECOND: usize = 1;

/// Symmetric memory of a test.
struct Buffers {
    /// Where data arrives.
    dst: SymmetricSlice<u8>,
    /// What is sent or fetched.
    src: SymmetricSlice<u8>,
    /// Times of iterations, or begin and end of each block.
    times: SymmetricSlice<u64>,
    /// What atomics fetched; what of a ping-pong's data came after its signal.
    results: SymmetricSlice<u64>,
    /// Ping-pong signal.
    signal: SymmetricSlice<u64>,
    /// Counts the points that PE 0 has measured.
    done: SymmetricSlice<u64>,
}

/// Rounds of a ping-pong of data in which all of it is compared as soon as its signal was seen.
const CHECKED: u64 = 8;

/// Threads of a block of the kernel `ceiling`.
const CEILING_THREADS: u32 = 256;
/// The most requests that it times.
const CEILING_REQUESTS: u64 = 65536;
/// Bytes that these may move on all queue pairs, and those that one filling of all queues may move,
/// which has to be over within `OXSHMEM_TIMEOUT`; a filling has at least one request.
const CEILING_BYTES: u64 = 16 << 30;
const CEILING_FILL: u64 = 1 << 30;
/// Bytes of a work request, at most.
const LONGEST_REQUEST: u64 = 1 << 30;

/// What the kernel `ceiling` posts to each queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fillings {
    /// Requests of a filling.
    fill: u64,
    /// Requests that are timed: some fillings.
    timed: u64,
}

impl Fillings {
    /// Returns those of `blocks` queue pairs of `depth` requests of `bytes` bytes.
    fn of(bytes: u64, blocks: u64, depth: u64) -> Self {
        let once = bytes.saturating_mul(blocks).max(1);
        let fill = (CEILING_FILL / once).clamp(1, depth.min(CEILING_REQUESTS));
        let rounds = CEILING_BYTES / once.saturating_mul(fill);
        Self { fill, timed: rounds.clamp(1, CEILING_REQUESTS / fill) * fill }
    }
}

/// What was measured of a point.
struct Measured {
    posted: Posted,
    /// Times of iterations, or begin and end of each block.
    clock: Vec<u64>,
}

/// One size in one scope.
#[derive(Debug, Clone, Copy)]
struct Point {
    scope: Scope,
    bytes: u64,
    seed: u64,
}

impl Point {
    fn elements(self) -> u64 {
        self.bytes / 8
    }
}

/// A PE in the middle of a test.
pub struct Session<'a> {
    pe: &'a Pe,
    options: &'a Options,
    kernels: Module,
    buffers: Buffers,
    verdicts: Verdicts<'a>,
    job: Job,
    points_done: u64,
    /// Value of the ping-pong signal so far.
    rounds: u64,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("bench", &self.options.bench)
            .field("points_done", &self.points_done)
            .finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Allocates what the test needs. Collective.
    ///
    /// # Errors
    /// There are too few PEs, the requested HCA is not in use, or there is no memory.
    pub fn new(pe: &'a Pe, options: &'a Options) -> Result<Self, Error> {
        if pe.n_pes() < 2 {
            return Err(Error::Usage(format!(
                "{} needs two PEs, and this job has {}",
                options.bench.name(),
                pe.n_pes()
            )));
        }
        connection::require_hca(pe, options.hca.as_ref())?;
        let bench = options.bench;
        if pe.hca_name() == Some(NULL) && bench.is_ping_pong() {
            return Err(Error::Usage(format!(
                "--hca null moves nothing, so no signal of {} would ever arrive; it measures how fast work requests are posted: use \
                 shmem_p_bw, shmem_put_bw, shmem_put_latency, shmem_p_latency or the atomic tests",
                bench.name()
            )));
        }
        if options.ceiling && pe.my_pe() <= SECOND && transport(pe) != "ibgda" {
            return Err(Error::Usage(format!(
                "--ceiling: a kernel rings prepared requests of IBGDA, and PE 0 and PE 1 reach each other by {}; add --transport ibgda, or \
                 leave --ceiling out",
                transport(pe)
            )));
        }
        let largest = options.sizes.last().copied().unwrap_or_default();
        let total = options.iterations();
        let results = if options.op.is_some_and(AtomicOp::fetches) { largest / 8 * total } else { 1 };
        let words = options.op.map_or(largest / 8, |op| op.words(largest / 8, total));
        let source = match bench {
            Bench::GetBw => options.sizes.iter().map(|bytes| walk(pe, *bytes).length(*bytes)).max().unwrap_or_default(),
            _ => largest + SLACK as u64,
        };
        let times = options.iters.max(options.warmup).max(CHECKED).max(2 * u64::from(options.ctas));
        let buffers = Buffers {
            dst: pe.alloc_aligned(length(largest.max(8 * words).saturating_mul(options.stride)), 64)?,
            src: pe.alloc_aligned(length(source), 64)?,
            times: pe.alloc_aligned(length(times), 64)?,
            results: pe.alloc_aligned(length(results), 64)?,
            signal: pe.alloc_aligned(8, 64)?,
            done: pe.alloc_aligned(8, 64)?,
        };
        let (verdicts, job) = (Verdicts::new(pe)?, Job::of(pe, transport(pe)));
        Ok(Self { pe, options, kernels: pe.load(&KERNELS)?, buffers, verdicts, job, points_done: 0, rounds: 0 })
    }

    /// Gives the memory back. Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        let Buffers { dst, src, times, results, signal, done } = self.buffers;
        for slice in [dst, src] {
            self.pe.free(slice)?;
        }
        for slice in [times, results, signal, done] {
            self.pe.free(slice)?;
        }
        self.verdicts.close()
    }

    /// Measures every size in every scope; PE 0 hands each row to `show`, and draws a progress bar
    /// on a terminal. Collective.
    ///
    /// # Errors
    /// The first that applies: something failed, `show` did, or data was wrong; that row was shown.
    pub fn run(&mut self, show: &mut dyn FnMut(Row) -> Result<(), Error>) -> Result<(), Error> {
        let points =
            self.options.scopes.iter().flat_map(|scope| self.options.sizes.iter().map(move |bytes| (*scope, *bytes)));
        let points: Vec<(Scope, u64)> = points.collect();
        let bar = self.progress(points.len() as u64);
        self.write_walk()?;
        for (scope, bytes) in points {
            bar.set_message(format!("{} scope, {bytes} bytes", scope.name()));
            let seed = match self.options.bench {
                Bench::GetBw => self.walk_seed(),
                bench => pattern::seed(bench.name(), scope.name(), bytes),
            };
            let (row, wrong) = self.point(Point { scope, bytes, seed })?;
            bar.inc(1);
            if let Some(row) = row {
                bar.suspend(|| show(row))?;
            }
            if self.moves_nothing() {
                wrong.map_or(Ok(()), Err)?;
                self.meet()?;
            } else {
                end_if_wrong(self.pe, wrong)?;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn progress(&self, points: u64) -> ProgressBar {
        let target = if self.pe.my_pe() == FIRST { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(points), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
            bar.set_style(style);
        }
        bar
    }

    /// Meets the other PEs where nothing moves, so that no barrier would end: the bootstrap carries
    /// what allocations exchange. PEs that have nothing to do wait there for each point, not for
    /// the whole test.
    fn meet(&self) -> Result<(), Error> {
        Ok(self.pe.free(self.pe.alloc::<u64>(1)?)?)
    }

    /// Returns one point. PE 0 gets the row; it and the PE that found wrong data get that as an
    /// error beside it, and PE 0 that no ceiling could be measured.
    fn point(&mut self, point: Point) -> Result<(Option<Row>, Option<Error>), Error> {
        let me = self.pe.my_pe();
        if self.moves_nothing() {
            // Neither data nor barriers would arrive. The others wait in `meet`.
            if me != FIRST {
                return Ok((None, None));
            }
            let (row, failed) = self.posting(point)?;
            return Ok((Some(row), failed));
        }
        self.prepare(point)?;
        self.pe.barrier_all()?;

        let takes_part = me == FIRST || (me == SECOND && self.options.bench.is_ping_pong());
        let mut measured = None;
        if takes_part {
            let ping_pong = self.options.bench.is_ping_pong();
            if self.options.warmup != 0 {
                self.launch(point, 0, self.options.warmup)?;
                self.rounds += if ping_pong { self.options.warmup } else { 0 };
            }
            measured = Some(self.measure(point)?);
            self.rounds += if ping_pong { self.options.iters } else { 0 };
            self.launch_checked(point)?;
        }
        self.points_done += 1;
        if me == FIRST {
            for other in 1..self.pe.n_pes() {
                self.pe.signal(self.buffers.done.signal(0).set(self.points_done), other)?;
            }
            self.pe.quiet()?;
        } else {
            self.await_done(point)?;
        }

        let wrong = self.verdicts.gather(self.check(point))?;
        let Some(measured) = measured.filter(|_| me == FIRST) else { return Ok((None, wrong)) };
        let (row, failed) = self.with_ceiling(point, self.row(point, &measured, wrong.is_none()))?;
        Ok((Some(row), wrong.or(failed)))
    }

    fn moves_nothing(&self) -> bool {
        self.pe.hca_name() == Some(NULL)
    }

    /// Returns how fast work requests are posted; nothing is verified.
    fn posting(&self, point: Point) -> Result<(Row, Option<Error>), Error> {
        if self.options.warmup != 0 {
            self.launch(point, 0, self.options.warmup)?;
        }
        let measured = self.measure(point)?;
        self.with_ceiling(point, self.row(point, &measured, false))
    }

    /// Runs the measured iterations. Returns their times and what they have posted.
    fn measure(&self, point: Point) -> Result<Measured, Error> {
        let before = Posted::so_far(self.pe)?;
        self.launch(point, self.options.warmup, self.options.iters)?;
        let posted = Posted::so_far(self.pe)?.since(before);
        let times = if self.options.bench.is_latency() { self.options.iters } else { 2 * u64::from(self.options.ctas) };
        Ok(Measured { posted, clock: self.pe.read(self.buffers.times.view(..length(times)))? })
    }

    /// Waits until PE 0 has measured this point.
    fn await_done(&self, point: Point) -> Result<(), Error> {
        waiting::until(self.pe, &self.buffers.done, self.points_done, || {
            format!("{} bytes in {} scope", point.bytes, point.scope.name())
        })
    }

    fn row(&self, point: Point, measured: &Measured, verified: bool) -> Row {
        let options = self.options;
        let bench = options.bench;
        let threads = options.threads_in(point.scope);
        let (mut gbps, mut mops, mut times) = (None, None, Percentiles::default());
        if bench.is_latency() {
            times = Percentiles::of(&measured.clock);
        } else {
            let ns = elapsed(&measured.clock) as f64;
            let each = self.calls(point);
            gbps = Some((point.bytes * options.iters) as f64 / ns);
            mops = Some((each * options.iters) as f64 * 1e3 / ns);
        }
        Row {
            bench: bench.name().to_owned(),
            job: self.job.having(measured.posted),
            ctas: options.ctas,
            threads,
            scope: point.scope.name().to_owned(),
            op: options.op.map(|op| op.name()),
            stride: (bench == Bench::PBw).then_some(options.stride),
            bytes: point.bytes,
            iters: options.iters,
            gbps,
            mops,
            ceiling_gbps: None,
            ceiling_mops: None,
            times,
            verified,
        }
    }

    /// Returns the number of operations of one iteration.
    fn calls(&self, point: Point) -> u64 {
        let threads = self.options.threads_in(point.scope);
        let groups = u64::from(self.options.ctas)
            * match point.scope {
                Scope::Thread => u64::from(threads),
                Scope::Warp => u64::from(threads.div_ceil(32)),
                Scope::Block => 1,
            };
        match self.options.bench {
            // Every group sends its share, as far as there are bytes (or lines, see
            // kernels/common.h).
            Bench::PutBw | Bench::GetBw => groups.min(point.bytes),
            _ => point.elements(),
        }
    }

    /// Returns the row with what the HCA itself can do, if that was requested: as many queue pairs
    /// as the CTAs use are filled with requests of the size that the test's operations have, and
    /// then rung. Requests that are longer than a work request can be have none. If the HCA does
    /// not complete them, queues are not as the library knows them, which is an error beside the
    /// row.
    fn with_ceiling(&self, point: Point, row: Row) -> Result<(Row, Option<Error>), Error> {
        // Points of less than an element have no operation.
        let bytes = (point.bytes / self.calls(point).max(1)).max(1);
        if !self.options.ceiling || bytes > LONGEST_REQUEST {
            return Ok((row, None));
        }
        let blocks = self.options.ctas.min(self.pe.config().qps_per_peer());
        let (dst, src, times) = (&self.buffers.dst, &self.buffers.src, &self.buffers.times);
        let function = self.kernels.kernel("ceiling")?;
        let depth = u64::from(self.pe.config().send_queue_depth(self.pe.n_pes() as u32));
        let Fillings { fill, timed } = Fillings::of(bytes, blocks.into(), depth);
        let args = (dst, src, bytes, point.bytes, fill, timed, SECOND as i32, times);
        // SAFETY: what the kernel declares; both buffers hold `point.bytes` bytes, and `times` a
        // word for each block. `new` has made sure that IBGDA's queue pairs lead to PE 1.
        unsafe { function.launch(self.pe, LaunchConfig::linear(blocks, CEILING_THREADS), args)? };
        self.pe.synchronize()?;
        let spent = self.pe.read(times.view(..blocks as usize))?;
        if spent.contains(&0) {
            let limit = self.pe.config().timeout();
            let failed = Error::Usage(format!(
                "--ceiling: the HCA did not complete {fill} prepared requests of {bytes} bytes on each of {blocks} queue pairs within \
                 OXSHMEM_TIMEOUT={limit:?}; raise it, or leave --ceiling out"
            ));
            return Ok((row, Some(failed)));
        }
        let requests = (timed * u64::from(blocks)) as f64;
        let mops = spent.iter().max().map(|longest| requests * 1e3 / *longest as f64);
        Ok((Row { ceiling_mops: mops, ceiling_gbps: mops.map(|mops| mops * bytes as f64 / 1e3), ..row }, None))
    }

    /// Writes what is sent or fetched, and something else where it shall arrive.
    fn prepare(&self, point: Point) -> Result<(), Error> {
        let (pe, buffers, me) = (self.pe, &self.buffers, self.pe.my_pe());
        let bench = self.options.bench;
        match bench {
            Bench::PutBw | Bench::PutLatency if me == FIRST => self.write_source(point)?,
            Bench::GBw | Bench::GLatency if me == SECOND => self.write_source(point)?,
            Bench::PutSignalPingPong if me == FIRST || me == SECOND => {
                self.write_source(point)?;
                pe.write(&buffers.results, &[0])?;
            }
            _ => {}
        }
        if self.receives() {
            let initial = match bench {
                Bench::AtomicBw | Bench::AtomicLatency => bytes_of(&self.expected_atomics(point).initial),
                Bench::SignalPingPong => return Ok(()),
                _ => pattern::poison(&self.expected(point)),
            };
            pe.write(&buffers.dst, &initial)?;
        }
        if self.options.op.is_some_and(AtomicOp::fetches) && me == FIRST {
            let fetched = self.expected_atomics(point).fetched.iter().map(|value| !value).collect::<Vec<_>>();
            pe.write(&buffers.results, &fetched)?;
        }
        Ok(())
    }

    /// Returns what the source of `shmem_get_bw` depends on, the same for all points.
    fn walk_seed(&self) -> u64 {
        pattern::seed(self.options.bench.name(), "all", 0)
    }

    /// Writes the source of `shmem_get_bw`, over which the iterations of all points walk.
    fn write_walk(&self) -> Result<(), Error> {
        if self.options.bench != Bench::GetBw || self.pe.my_pe() != SECOND {
            return Ok(());
        }
        for (at, bytes) in pattern::chunks(self.buffers.src.len() as u64) {
            let data = pattern::part(self.walk_seed(), at, length(bytes));
            self.pe.write(self.buffers.src.view(length(at)..length(at + bytes)), &data)?;
        }
        Ok(())
    }

    fn write_source(&self, point: Point) -> Result<(), Error> {
        let data = pattern::source(point.seed, length(point.bytes) + SLACK);
        Ok(self.pe.write(&self.buffers.src, &data)?)
    }

    /// Returns whether data arrives at this PE.
    fn receives(&self) -> bool {
        match self.options.bench {
            Bench::GetBw | Bench::GBw | Bench::GLatency => self.pe.my_pe() == FIRST,
            Bench::SignalPingPong | Bench::PutSignalPingPong => self.pe.my_pe() <= SECOND,
            _ => self.pe.my_pe() == SECOND,
        }
    }

    fn last_iteration(&self) -> u64 {
        self.options.iterations() - 1
    }

    /// Returns what the destination holds in the end.
    fn expected(&self, point: Point) -> Vec<u8> {
        let checked = if self.options.bench == Bench::PutSignalPingPong { CHECKED } else { 0 };
        let last = self.last_iteration() + checked;
        match self.options.bench {
            Bench::PBw | Bench::PLatency => {
                // Nothing may be written between elements.
                let stride = length(self.options.stride);
                let mut words = vec![0; length(point.elements()) * stride];
                for (e, value) in words.iter_mut().step_by(stride).enumerate() {
                    *value = pattern::word(point.seed, last, e as u64);
                }
                bytes_of(&words)
            }
            Bench::GetBw => pattern::part(point.seed, walk(self.pe, point.bytes).away(last), length(point.bytes)),
            _ => pattern::part(point.seed, pattern::shift(last) as u64, length(point.bytes)),
        }
    }

    fn expected_atomics(&self, point: Point) -> Expected {
        let op = self.options.op.unwrap_or(AtomicOp::FetchInc);
        Expected::new(op, point.seed, point.elements(), self.options.iterations())
    }

    fn check(&self, point: Point) -> Result<(), Error> {
        let (pe, buffers, me) = (self.pe, &self.buffers, self.pe.my_pe());
        let bench = self.options.bench;
        if bench.is_ping_pong() && self.receives() {
            let signal = self.corrupted(pe.read(buffers.signal.view(..1))?, bench == Bench::SignalPingPong);
            pattern::check_words("the signal", &[self.rounds], &signal)?;
        }
        if bench == Bench::PutSignalPingPong && self.receives() {
            let late = pe.read(buffers.results.view(..1))?;
            pattern::check_words("words that were not there when their signal was seen", &[0], &late)?;
        }
        if bench.is_atomic() {
            let expected = self.expected_atomics(point);
            if me == SECOND {
                let words = words_of(&pe.read(buffers.dst.view(..8 * expected.last.len()))?);
                pattern::check_words("the words after the last atomic", &expected.last, &self.corrupted(words, true))?;
            } else if me == FIRST && !expected.fetched.is_empty() {
                let fetched = pe.read(buffers.results.view(..expected.fetched.len()))?;
                pattern::check_words("what atomics fetched", &expected.fetched, &fetched)?;
            }
        } else if bench != Bench::SignalPingPong && self.receives() {
            let expected = self.expected(point);
            let mut found = pe.read(buffers.dst.view(..expected.len()))?;
            if let Some(at) = self.corrupt().and_then(|at| usize::try_from(at).ok()).filter(|at| *at < found.len()) {
                found[at] ^= 1;
            }
            // Between the elements of a strided p there must still be what was there before.
            if bench == Bench::PBw {
                let stride = length(self.options.stride);
                let gaps = words_of(&found).iter().enumerate().any(|(e, word)| e % stride != 0 && *word != u64::MAX);
                if gaps {
                    let found = words_of(&found);
                    let mut untouched = found.clone();
                    untouched
                        .iter_mut()
                        .enumerate()
                        .filter(|(e, _)| e % stride != 0)
                        .for_each(|(_, word)| *word = u64::MAX);
                    pattern::check_words("the gaps between the words that were put", &untouched, &found)?;
                }
                let put = |bytes: &[u8]| words_of(bytes).into_iter().step_by(stride).collect::<Vec<_>>();
                pattern::check_words("the words that were put", &put(&expected), &put(&found))?;
            } else {
                pattern::check("the last iteration's data", &expected, &found)?;
            }
        }
        Ok(())
    }

    /// Returns the byte to change before the check, at one of the PEs that data arrives at.
    fn corrupt(&self) -> Option<u64> {
        self.options.corrupt.filter(|_| !self.options.bench.is_ping_pong() || self.pe.my_pe() == SECOND)
    }

    /// Returns `words`, one of them changed if that was requested.
    fn corrupted(&self, mut words: Vec<u64>, here: bool) -> Vec<u64> {
        if let Some(word) = self.corrupt().filter(|_| here).and_then(|at| words.get_mut(length(at / 8))) {
            *word ^= 1;
        }
        words
    }

    /// Launches what is checked and not measured: the last iteration of a bandwidth test; rounds of
    /// a ping-pong that compare their data.
    fn launch_checked(&mut self, point: Point) -> Result<(), Error> {
        if self.options.bench == Bench::PutSignalPingPong {
            self.launch_as(point, self.last_iteration() + 1, CHECKED, true)?;
            self.rounds += CHECKED;
        } else if !self.options.bench.is_latency() {
            self.launch(point, self.last_iteration(), 1)?;
        }
        Ok(())
    }

    /// Launches the kernel and waits for its end.
    fn launch(&self, point: Point, first: u64, iters: u64) -> Result<(), Error> {
        self.launch_as(point, first, iters, false)
    }

    /// Does the same; with `checks` the kernel of a ping-pong compares its data.
    fn launch_as(&self, point: Point, first: u64, iters: u64, checks: bool) -> Result<(), Error> {
        let b = &self.buffers;
        let (bytes, elements, seed) = (point.bytes, point.elements(), point.seed);
        let peer = if self.pe.my_pe() == FIRST { SECOND as i32 } else { FIRST as i32 };
        let serve = i32::from(self.pe.my_pe() == FIRST);
        let scope = point.scope.name();
        let (stride, rounds) = (self.options.stride, self.rounds);
        let op = self.options.op.map_or(0, |op| op as i32);
        match self.options.bench {
            Bench::PutBw => {
                self.start(point, &format!("put_bw_{scope}"), (&b.dst, &b.src, bytes, first, iters, peer, &b.times))
            }
            Bench::GetBw => {
                let Walk { step, steps } = walk(self.pe, bytes);
                let args = (&b.dst, &b.src, step, steps, bytes, first, iters, peer, &b.times);
                self.start(point, &format!("get_bw_{scope}"), args)
            }
            Bench::PBw => self.start(point, "p_bw", (&b.dst, elements, stride, seed, first, iters, peer, &b.times)),
            Bench::GBw => self.start(point, "g_bw", (&b.dst, &b.src, elements, first, iters, peer, &b.times)),
            Bench::PutLatency => self.start(
                point,
                &format!("put_latency_{scope}"),
                (&b.dst, &b.src, bytes, first, iters, peer, &b.times),
            ),
            Bench::PLatency => {
                let pause = self.options.pause * 1000;
                self.start(point, "p_latency", (&b.dst, elements, seed, first, iters, pause, peer, &b.times))
            }
            Bench::GLatency => self.start(point, "g_latency", (&b.dst, &b.src, elements, first, iters, peer, &b.times)),
            Bench::AtomicBw => self.start(
                point,
                "atomic_bandwidth",
                (op, &b.dst, elements, seed, first, iters, peer, &b.times, &b.results),
            ),
            Bench::AtomicLatency => self.start(
                point,
                "atomic_latency",
                (op, &b.dst, elements, seed, first, iters, peer, &b.times, &b.results),
            ),
            Bench::SignalPingPong => {
                self.start(point, "signal_ping_pong", (&b.signal, rounds, iters, peer, serve, &b.times))
            }
            Bench::PutSignalPingPong => self.start(
                point,
                &format!("put_signal_ping_pong_{scope}"),
                (
                    &b.dst,
                    &b.src,
                    bytes,
                    &b.signal,
                    rounds,
                    first,
                    iters,
                    peer,
                    serve,
                    &b.times,
                    &b.results,
                    i32::from(checks),
                ),
            ),
        }
    }

    fn start(&self, point: Point, kernel: &str, args: impl KernelArgs) -> Result<(), Error> {
        let shape = LaunchConfig::linear(self.options.ctas, self.options.threads_in(point.scope));
        let function = self.kernels.kernel(kernel)?;
        // SAFETY: `launch` passes what the kernel of that name declares, and `new` has made the
        // buffers large enough for every point.
        unsafe { function.launch(self.pe, shape, args)? };
        Ok(self.pe.synchronize()?)
    }
}

/// Returns how iterations of `shmem_get_bw` walk over the source: at most an eighth of the heap.
fn walk(pe: &Pe, bytes: u64) -> Walk {
    Walk::of(bytes, pe.gpu().is_some(), pe.config().heap_max().0 / 8)
}

/// Returns how PE 0 and PE 1 reach each other.
fn transport(pe: &Pe) -> &'static str {
    let other = if pe.my_pe() == FIRST { SECOND } else { FIRST };
    match pe.path(other) {
        Some(Path::LoadStore) => "p2p",
        Some(Path::Ibgda) => "ibgda",
        Some(Path::Ibrc) => "ibrc",
        _ => "none",
    }
}

/// Converts a length. Lengths are bounded by `Options`; what does not fit an address space is
/// refused by the allocation.
fn length(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filling_is_over_in_time() {
        let of = |bytes, blocks| Fillings::of(bytes, blocks, 8192);
        assert_eq!(of(8, 4), Fillings { fill: 8192, timed: 65536 });
        assert_eq!(of(1 << 20, 4), Fillings { fill: 256, timed: 4096 });
        assert_eq!(of(1 << 30, 4), Fillings { fill: 1, timed: 4 });
        for (bytes, blocks) in [(8, 1), (24, 3), (4096, 64), (3 << 20, 7), (1 << 30, 64)] {
            let Fillings { fill, timed } = of(bytes, blocks);
            assert!(fill == 1 || fill * bytes * blocks <= CEILING_FILL, "{bytes} bytes, {blocks} blocks");
            assert!((1..=8192).contains(&fill) && timed % fill == 0 && timed <= CEILING_REQUESTS && timed != 0);
        }
    }
}
