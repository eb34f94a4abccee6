//! `shmem_collective_latency` and `shmem_collective_bw`: how long each collective of all PEs takes,
//! and how much it moves, by size and scope, in kernels and on streams.

mod options;
mod point;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::FromArgMatches;
use oxshmem::config::ByteSize;
use oxshmem::{
    Config, LaunchConfig, Module, OnStream, Operations, Pe, ReduceOp, Stream, SymmetricSlice, SymmetricView,
};
use serde::{Deserialize, Serialize};

use crate::connection;
use crate::error::{Error, Mismatch};
use crate::output;
use crate::pattern::{self, SLACK, chunks};
use crate::plot;
use crate::report::{Column, Job, Posted, Table, rounded, verdict};
use crate::stats::Percentiles;
use crate::verdicts::{Verdicts, end_if_wrong};

pub use options::{On, Program, Scopes};
pub(crate) use point::needed;
pub use point::{Collective, Scope};

use options::{Options, Plan, points};
use point::{Point, room};

oxshmem::include_module!(KERNELS, "perftest_collectives");

/// Collectives that are queued on a stream and timed together.
const QUEUED: u64 = 10;

/// Rounds in which barriers and syncs are checked.
const ROUNDS: u64 = 20;

/// One measured point. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `shmem_collective_latency` or `shmem_collective_bw`.
    pub test: String,
    /// The collective.
    pub collective: String,
    /// The job, whose PEs all take part.
    #[serde(flatten)]
    pub job: Job,
    /// `kernel` or `stream`.
    pub on: String,
    /// Calling blocks; null on a stream.
    pub ctas: Option<u32>,
    /// Threads of a calling block; null on a stream.
    pub threads: Option<u32>,
    /// `thread`, `warp`, `block` or `grid`; null on a stream.
    pub scope: Option<String>,
    /// What each PE gives; for alltoall, alltoalls and reducescatter for each PE. 0 for barrier and
    /// sync.
    pub bytes: u64,
    /// Measured iterations.
    pub iters: u64,
    /// At PE 0.
    #[serde(flatten)]
    pub times: Percentiles,
    /// 10^9 bytes per second of the whole buffer, by the median time; null where nothing is moved.
    pub gbps: Option<f64>,
    /// 10^9 bytes per second that every PE at least sends; null likewise.
    pub bus_gbps: Option<f64>,
    /// Whether all data was right.
    pub verified: bool,
}

impl Row {
    fn columns(program: Program) -> Vec<Column<Self>> {
        let mut columns = vec![
            Column::new("collective", 13, |row: &Self| row.collective.clone()),
            Column::new("bytes", 10, |row: &Self| row.bytes.to_string()),
            Column::new("scope", 6, |row: &Self| row.scope.clone().unwrap_or_else(|| row.on.clone())),
        ];
        columns.extend(Column::times(|row: &Self| row.times));
        if program == Program::Bandwidth {
            columns.push(Column::new("GB/s", 6, |row: &Self| rounded(row.gbps)));
            columns.push(Column::new("bus GB/s", 8, |row: &Self| rounded(row.bus_gbps)));
        } else {
            columns.extend(Column::posted(|row: &Self| row.job.posted));
        }
        columns.push(Column::new("data", 8, |row: &Self| verdict(row.verified)));
        columns
    }

    /// Returns what was measured, and on what.
    fn title(&self) -> String {
        let by = match (self.ctas, self.threads) {
            (Some(1), Some(threads)) => format!("blocks of {threads} threads"),
            (Some(ctas), Some(threads)) => format!("grids of {ctas} blocks of {threads} threads"),
            _ => "calls on a stream".to_owned(),
        };
        format!("# {}: {} PEs, {by}, {}", self.test, self.job.npes, self.job.setting())
    }

    /// Returns what distinguishes the row's line in a plot.
    fn label(&self) -> String {
        format!("{}, {}", self.collective, self.scope.as_ref().unwrap_or(&self.on))
    }
}

/// Runs `program`.
pub fn main(program: Program) -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(|| Options::command_of(program)) {
        return status;
    }
    main_with(program, std::env::args_os())
}

/// Does the same with this command line, of which the first is a name.
pub(crate) fn main_with(program: Program, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let matches = Options::command_of(program).get_matches_from(arguments);
    let options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let plan = match options.plan(program) {
        Ok(plan) => plan,
        Err(error) => Options::command_of(program).error(clap::error::ErrorKind::ValueValidation, error).exit(),
    };
    crate::start_or_join(program.name(), options.npes, &plan.config, |pe| measure(pe, &options, &plan))
}

/// A PE in the middle of the test.
struct Session<'a> {
    pe: &'a Pe,
    options: &'a Options,
    plan: &'a Plan,
    module: Module,
    dst: SymmetricSlice<u8>,
    src: SymmetricSlice<u8>,
    times: SymmetricSlice<u64>,
    stream: Stream,
    verdicts: Verdicts<'a>,
    job: Job,
}

fn measure(pe: &Pe, options: &Options, plan: &Plan) -> Result<(), Error> {
    connection::require_hca(pe, options.connection.hca.as_ref())?;
    let npes = pe.n_pes() as u64;
    let first = pe.my_pe() == 0;
    let sizes = fitting(plan, npes)?;
    if let Some(left) = plan.sizes.get(sizes.len()).filter(|_| first) {
        output::line(format_args!(
            "# {} bytes and more are not measured by default: {npes} PEs need {} each, more\n#   than {} of OXSHMEM_HEAP_MAX={}; \
             raise it, or give --max",
            left,
            ByteSize(needed(&plan.collectives, *left, npes)),
            ByteSize(room_of(&plan.config)),
            plan.config.heap_max(),
        ))?;
    }
    let largest = sizes.last().copied().unwrap_or_default();
    let room = |bytes: fn(Collective, u64, u64) -> u64| room(&plan.collectives, |one| bytes(one, largest, npes), npes);
    let session = Session {
        pe,
        options,
        plan,
        module: pe.load(&KERNELS)?,
        dst: pe.alloc_aligned(room(Collective::result_bytes) as usize, 256)?,
        src: pe.alloc_aligned(room(Collective::source_bytes) as usize + SLACK, 256)?,
        times: pe.alloc(plan.iters.max(options.warmup) as usize)?,
        stream: pe.create_stream()?,
        verdicts: Verdicts::new(pe)?,
        job: Job::of(pe, connection::paths(pe)),
    };
    let columns = Row::columns(plan.program);
    let mut table = Table::new(Row::title, columns, options.json.as_deref().filter(|_| first))?;
    for point in points(plan, sizes) {
        let (row, wrong) = session.point(point)?;
        if let Some(row) = row {
            table.add(row)?;
        }
        end_if_wrong(pe, wrong)?;
    }
    if let (Some(path), Some(Row { job, .. })) = (&options.plot, table.rows().first()) {
        let sized = table.rows().iter().filter(|row| row.bytes != 0);
        let (unit, figure): (_, fn(&Row) -> Option<f64>) = match plan.program {
            Program::Latency => ("median time [us]", |row| row.times.us_p50),
            Program::Bandwidth => ("bus bandwidth [GB/s]", |row| row.bus_gbps),
        };
        let lines = plot::lines(sized.map(|row| (row.label(), row.bytes, figure(row))));
        plot::draw_series(path, &format!("{}: {}", plan.program.name(), job.parties()), unit, &lines)?;
    }
    let Session { dst, src, times, verdicts, .. } = session;
    [dst, src].into_iter().try_for_each(|slice| pe.free(slice))?;
    pe.free(times)?;
    verdicts.close()
}

/// Returns the bytes of symmetric memory that a test may take with a configuration: the library has
/// the rest for itself.
pub(crate) fn room_of(config: &Config) -> u64 {
    config.heap_max().0 / 4 * 3
}

/// Returns the sizes to measure: those of the options, or, where the largest one is a default,
/// those of them that the heap has room for.
fn fitting(plan: &Plan, npes: u64) -> Result<&[u64], Error> {
    let fits = |bytes: &u64| needed(&plan.collectives, *bytes, npes) <= room_of(&plan.config);
    let number =
        if plan.has_max { plan.sizes.len() } else { plan.sizes.iter().take_while(|bytes| fits(bytes)).count() };
    if number == 0 {
        return Err(Error::Usage(format!(
            "{} bytes, the smallest size, need {} of symmetric memory at each of {npes} PEs, more than {} of OXSHMEM_HEAP_MAX={}; raise \
             it, or give a smaller --min",
            plan.sizes[0],
            ByteSize(needed(&plan.collectives, plan.sizes[0], npes)),
            ByteSize(room_of(&plan.config)),
            plan.config.heap_max(),
        )));
    }
    Ok(&plan.sizes[..number])
}

impl Session<'_> {
    /// Returns one point. PE 0 gets the row; it and the PEs that found wrong data get that as an
    /// error beside it. Collective.
    fn point(&self, point: Point) -> Result<(Option<Row>, Option<Error>), Error> {
        /// What results hold before.
        const BEFORE: u8 = 0xff;
        let (pe, me, npes) = (self.pe, self.pe.my_pe(), self.pe.n_pes());
        let (warmup, iters) = (self.options.warmup, self.plan.iters);
        for (at, bytes) in chunks(point.source_bytes(npes)) {
            pe.write(self.src.view(at as usize..(at + bytes) as usize), &point.given(me, at, bytes))?;
        }
        for (at, bytes) in chunks(point.result_bytes(npes)) {
            pe.write(self.dst.view(at as usize..(at + bytes) as usize), &vec![BEFORE; bytes as usize])?;
        }
        pe.barrier_all()?;
        if warmup != 0 {
            self.launch(point, 0, warmup)?;
        }
        let before = Posted::so_far(pe)?;
        let times = self.launch(point, warmup, iters)?;
        let posted = Posted::so_far(pe)?.since(before);
        pe.barrier_all()?;

        let mut checked = Ok(());
        for (at, bytes) in chunks(point.result_bytes(npes)) {
            let expected = point.result((me, npes), warmup + iters - 1, BEFORE, (at, bytes));
            let mut found = pe.read(self.dst.view(at as usize..(at + bytes) as usize))?;
            if let Some(byte) = self.options.corrupt.filter(|_| me == 0).and_then(|byte| byte.checked_sub(at)) {
                found.iter_mut().skip(byte as usize).take(1).for_each(|byte| *byte ^= 1);
            }
            let wrong = pattern::check("what the collective left", &expected, &found);
            checked = checked.and(wrong.map_err(|wrong| Mismatch { offset: at + wrong.offset, ..wrong }));
        }
        if point.collective.is_meeting() {
            checked = checked.and(self.check_meeting(point)?);
        }
        let wrong = self.verdicts.gather(checked.map_err(Error::from))?;
        if me != 0 {
            return Ok((None, wrong));
        }
        let times = Percentiles::of(&times);
        let whole = point.collective.whole_bytes(point.bytes, npes as u64) as f64;
        // Bytes in a microsecond are megabytes in a second.
        let gbps = times.us_p50.filter(|us| *us > 0.0 && whole > 0.0).map(|us| whole / us / 1e3);
        let shape = point.scope.map(|scope| self.shape(scope));
        let row = Row {
            test: self.plan.program.name().to_owned(),
            collective: point.collective.name().to_owned(),
            job: self.job.having(posted),
            on: if point.scope.is_some() { "kernel" } else { "stream" }.to_owned(),
            ctas: shape.map(|shape| shape.grid[0]),
            threads: shape.map(|shape| shape.block[0]),
            scope: point.scope.map(|scope| scope.name().to_owned()),
            bytes: point.bytes,
            iters,
            times,
            gbps,
            bus_gbps: gbps.map(|gbps| gbps * point.collective.bus_factor(npes as u64)),
            verified: wrong.is_none(),
        };
        Ok((Some(row), wrong))
    }

    /// Returns how a kernel is launched whose threads call in a scope.
    fn shape(&self, scope: Scope) -> LaunchConfig {
        match scope {
            Scope::Thread => LaunchConfig::linear(1, 1),
            Scope::Warp => LaunchConfig::linear(1, 32),
            Scope::Block => LaunchConfig::linear(1, self.plan.threads),
            Scope::Grid => LaunchConfig::linear(self.plan.ctas, self.plan.threads).cooperative(),
        }
    }

    /// Runs some iterations. Returns the nanoseconds of each; on a stream, of each of those that
    /// are queued together what they take on average.
    fn launch(&self, point: Point, first: u64, iters: u64) -> Result<Vec<u64>, Error> {
        let Some(scope) = point.scope else { return self.queue(point, first, iters) };
        let function = self.module.kernel(&format!("collective_{}_{}", point.collective.name(), scope.name()))?;
        let args = (&self.dst, &self.src, point.bytes, first, iters, &self.times);
        // SAFETY: what the kernel declares; `measure` has made the buffers large enough for every
        // point.
        unsafe { function.launch(self.pe, self.shape(scope), args)? };
        self.pe.synchronize()?;
        Ok(self.pe.read(self.times.view(..iters as usize))?)
    }

    fn queue(&self, point: Point, first: u64, iters: u64) -> Result<Vec<u64>, Error> {
        let on = self.pe.on(&self.stream);
        let mut times = Vec::new();
        let mut next = first;
        while next < first + iters {
            let count = QUEUED.min(first + iters - next);
            on.barrier_all()?;
            on.synchronize()?;
            let begin = Instant::now();
            for iteration in next..next + count {
                self.call(&on, point, pattern::shift(iteration))?;
            }
            on.synchronize()?;
            let taken = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            times.push(taken / count);
            next += count;
        }
        Ok(times)
    }

    /// Queues the collective, whose source begins `from` bytes into the source buffer.
    fn call(&self, on: &OnStream<'_>, point: Point, from: usize) -> Result<(), Error> {
        let (pe, team, npes) = (self.pe, self.pe.team_world(), self.pe.n_pes());
        let bytes = point.bytes as usize;
        let given = point.collective.source_bytes(point.bytes, npes as u64) as usize;
        let got = point.collective.result_bytes(point.bytes, npes as u64) as usize;
        let (dst, src) = (self.dst.view(..got), self.src.view(from..from + given));
        let words = |view: &SymmetricSlice<u8>, first: usize, bytes: usize| -> SymmetricView<'_, u64> {
            pe.view_at(view.address() + first as u64, bytes / 8)
        };
        let floats = |view: &SymmetricSlice<u8>, first: usize, bytes: usize| -> SymmetricView<'_, f32> {
            pe.view_at(view.address() + first as u64, bytes / 4)
        };
        match point.collective {
            Collective::Barrier => on.barrier(&team)?,
            Collective::Sync => on.team_sync(&team)?,
            Collective::Broadcast => on.broadcast(&team, dst, src, 0)?,
            Collective::Collect => on.collect(&team, dst, src)?,
            Collective::Fcollect => on.fcollect(&team, dst, src)?,
            Collective::Alltoall => on.alltoall(&team, dst, src, bytes)?,
            Collective::Alltoalls => {
                let (dst, src) = (words(&self.dst, 0, got), words(&self.src, from, given));
                on.alltoalls(&team, dst.step_by(2), src.step_by(2), bytes / 8)?;
            }
            Collective::Reduce => {
                on.reduce(&team, ReduceOp::Sum, floats(&self.dst, 0, got), floats(&self.src, from, given))?;
            }
            Collective::Reducescatter => {
                on.reducescatter(&team, ReduceOp::Sum, floats(&self.dst, 0, got), floats(&self.src, from, given))?;
            }
        }
        Ok(())
    }

    /// Returns whether barriers and syncs order what is stored before them.
    fn check_meeting(&self, point: Point) -> Result<Result<(), Mismatch>, Error> {
        let Some(scope) = point.scope else { return self.check_meeting_on_stream(point) };
        let function = self.module.kernel(&format!("meetings_{}", scope.name()))?;
        self.pe.write(&self.times, &[u64::MAX])?;
        let args = (point.collective as u32, &self.dst, ROUNDS, &self.times);
        // SAFETY: what the kernel declares; a word of each PE fits the buffer.
        unsafe { function.launch(self.pe, self.shape(scope), args)? };
        self.pe.synchronize()?;
        let wrong = self.pe.read(self.times.view(..1))?;
        Ok(pattern::check_words("rounds in which another PE's word was not there", &[0], &wrong))
    }

    /// Checks the same on a stream: a word is put to the next PE before a barrier; before a sync
    /// each PE writes its own, which the next one gets.
    fn check_meeting_on_stream(&self, point: Point) -> Result<Result<(), Mismatch>, Error> {
        let (pe, me, npes) = (self.pe, self.pe.my_pe(), self.pe.n_pes());
        let (next, before) = ((me + 1) % npes, (me + npes - 1) % npes);
        let on = pe.on(&self.stream);
        let words: SymmetricView<'_, u64> = pe.view_at(self.dst.address(), npes);
        let meet = || if point.collective == Collective::Barrier { on.barrier_all() } else { on.sync_all() };
        let mut wrong = 0;
        for round in 0..ROUNDS {
            let word = |pe: usize| pattern::word(0, round, pe as u64);
            let at = if point.collective == Collective::Barrier { next } else { me };
            pe.write(self.times.view(..1), &[word(me)])?;
            on.put(words.at(me), self.times.view(..1), at)?;
            meet()?;
            on.synchronize()?;
            let from = if point.collective == Collective::Barrier { me } else { before };
            wrong += u64::from(pe.get_vec(words.at(before), from)?[0] != word(before));
            meet()?;
            on.synchronize()?;
        }
        Ok(pattern::check_words("rounds in which another PE's word was not there", &[0], &[wrong]))
    }
}
