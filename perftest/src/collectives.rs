//! `shmem_collective_latency`: how long each collective of all PEs takes, by size and scope.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, ValueEnum};
use oxshmem::config::Hca;
use oxshmem::device::takes_gpu;
use oxshmem::{Config, LaunchConfig, Module, Operations, Pe, SymmetricSlice};
use serde::{Deserialize, Serialize};

use crate::bench::{Scope, Scopes};
use crate::connection::{self, Connection};
use crate::error::Error;
use crate::options::{require_svg, size, sizes};
use crate::pattern::{self, SLACK};
use crate::plot;
use crate::report::{Column, Job, Posted, Table, verdict};
use crate::stats::Percentiles;
use crate::verdicts::{Verdicts, end_if_wrong};

oxshmem::include_module!(KERNELS, "perftest_collectives");

const NAME: &str = "shmem_collective_latency";

/// Rounds in which barriers and syncs are checked.
const ROUNDS: u64 = 20;

/// A collective; numbered as in `kernels/collective.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Collective {
    Barrier,
    Sync,
    Broadcast,
    Collect,
    Fcollect,
    Alltoall,
    Alltoalls,
    Reduce,
    Reducescatter,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Barrier,
        Self::Sync,
        Self::Broadcast,
        Self::Collect,
        Self::Fcollect,
        Self::Alltoall,
        Self::Alltoalls,
        Self::Reduce,
        Self::Reducescatter,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Sync => "sync",
            Self::Broadcast => "broadcast",
            Self::Collect => "collect",
            Self::Fcollect => "fcollect",
            Self::Alltoall => "alltoall",
            Self::Alltoalls => "alltoalls",
            Self::Reduce => "reduce",
            Self::Reducescatter => "reducescatter",
        }
    }

    /// Moves nothing.
    fn is_meeting(self) -> bool {
        matches!(self, Self::Barrier | Self::Sync)
    }

    fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::Reducescatter)
    }

    /// Bytes that a PE gives to a collective of `bytes` bytes, over all that get some, with the
    /// gaps between them.
    fn source_bytes(self, bytes: u64, npes: u64) -> u64 {
        match self {
            Self::Alltoall | Self::Reducescatter => bytes * npes,
            Self::Alltoalls => 2 * bytes * npes,
            _ => bytes,
        }
    }

    /// Bytes of what a PE gets.
    fn result_bytes(self, bytes: u64, npes: u64) -> u64 {
        match self {
            Self::Collect | Self::Fcollect | Self::Alltoall => bytes * npes,
            Self::Alltoalls => 2 * bytes * npes,
            _ => bytes,
        }
    }
}

/// Measures collectives of all PEs, one after the other, each called by one group of threads of
/// every PE.
#[derive(Debug, Clone, Parser)]
#[command(name = NAME, version)]
struct Options {
    /// The collective; all of them unless set. May be given several times.
    #[arg(long, value_enum)]
    collective: Vec<Collective>,
    /// Smallest message in bytes, or with K, M or G: what each PE gives (to alltoall and
    /// reducescatter: for each PE).
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    min: Option<u64>,
    /// Largest message.
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size)]
    max: Option<u64>,
    /// What a size is multiplied with to get the next one.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    factor: u64,
    /// Measured iterations of each size.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    iters: Option<u64>,
    /// Iterations before those, not measured.
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=1 << 24))]
    warmup: u64,
    /// Threads of the calling block, in block scope.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Threads that call together.
    #[arg(long, value_enum, default_value = "all")]
    scope: Scopes,
    /// PEs to start, when no launcher has started this one.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    npes: u32,
    #[command(flatten)]
    connection: Connection,
    /// Write one JSON object per line and measured point to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the median times over the message size into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Change this byte of what PE 0 got before it is checked: shows that the check works.
    #[arg(long, value_name = "OFFSET", hide = true)]
    corrupt: Option<u64>,
}

/// What follows from the options.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    collectives: Vec<Collective>,
    scopes: Vec<Scope>,
    sizes: Vec<u64>,
    iters: u64,
    threads: u32,
    config: Config,
}

impl Options {
    fn plan(&self) -> Result<Plan, Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let config = self.connection.config(std::env::vars_os())?;
        let small = !takes_gpu(config.device());
        let defaults = (8, if small { 32 << 10 } else { 4 << 20 });
        let sizes = sizes((self.min, self.max), defaults, self.factor, ("sizes", 8))?;
        if let Some(plot) = &self.plot {
            require_svg(plot)?;
            if sizes.len() < 2 || self.collective.iter().all(|one| one.is_meeting()) && !self.collective.is_empty() {
                return refuse(
                    "--plot draws times over the message size: give a collective that has one, and at least two with --min and --max"
                        .to_owned(),
                );
            }
        }
        if self.connection.hca == Some(Hca::Null) {
            return refuse("--hca null moves nothing, so no collective would ever end".to_owned());
        }
        Ok(Plan {
            collectives: if self.collective.is_empty() { Collective::ALL.to_vec() } else { self.collective.clone() },
            scopes: self.scope.of(&Scope::ALL),
            sizes,
            iters: self.iters.unwrap_or(if small { 100 } else { 1000 }),
            threads: self.threads.unwrap_or(if small { 64 } else { 512 }),
            config,
        })
    }
}

/// One measured point. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `shmem_collective_latency`.
    pub test: String,
    /// The collective.
    pub collective: String,
    /// The job, whose PEs all take part.
    #[serde(flatten)]
    pub job: Job,
    /// Threads of the calling block.
    pub threads: u32,
    /// `thread`, `warp` or `block`.
    pub scope: String,
    /// What each PE gives; for alltoall, alltoalls and reducescatter for each PE. 0 for barrier and
    /// sync.
    pub bytes: u64,
    /// Measured iterations.
    pub iters: u64,
    /// At PE 0.
    #[serde(flatten)]
    pub times: Percentiles,
    /// Whether all data was right.
    pub verified: bool,
}

impl Row {
    fn columns() -> Vec<Column<Self>> {
        let mut columns = vec![
            Column::new("collective", 13, |row: &Self| row.collective.clone()),
            Column::new("bytes", 10, |row: &Self| row.bytes.to_string()),
            Column::new("scope", 6, |row: &Self| row.scope.clone()),
        ];
        columns.extend(Column::times(|row: &Self| row.times));
        columns.extend(Column::posted(|row: &Self| row.job.posted));
        columns.push(Column::new("data", 8, |row: &Self| verdict(row.verified)));
        columns
    }

    /// Returns what was measured, and on what.
    fn title(&self) -> String {
        format!("# {NAME}: {} PEs, blocks of {} threads, {}", self.job.npes, self.threads, self.job.setting())
    }
}

/// The program.
pub fn main() -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(Options::command) {
        return status;
    }
    let options = Options::parse();
    let plan = match options.plan() {
        Ok(plan) => plan,
        Err(error) => Options::command().error(clap::error::ErrorKind::ValueValidation, error).exit(),
    };
    crate::start_or_join(NAME, options.npes, &plan.config, |pe| measure(pe, &options, &plan))
}

/// One collective of one size in one scope.
#[derive(Debug, Clone, Copy)]
struct Point {
    collective: Collective,
    scope: Scope,
    bytes: u64,
}

impl Point {
    /// Returns what PE `pe` gives; iterations begin somewhat later in it.
    fn source(self, pe: usize, npes: usize) -> Vec<u8> {
        let bytes = self.collective.source_bytes(self.bytes, npes as u64) as usize + SLACK;
        let seed = pattern::seed(self.collective.name(), &pe.to_string(), self.bytes);
        if !self.collective.reduces() {
            return pattern::source(seed, bytes);
        }
        // Small whole numbers, whose sums are exact.
        (0..bytes as u64 / 4).flat_map(|i| ((pattern::word(seed, 0, i) % 1024) as f32).to_ne_bytes()).collect()
    }

    /// Returns what PE `me` has after iteration `last`; `before` is what it had in the gaps.
    fn result(self, me: usize, npes: usize, last: u64, before: u8) -> Vec<u8> {
        let (bytes, from) = (self.bytes as usize, pattern::shift(last));
        let given = |pe: usize, first: usize| self.source(pe, npes)[from + first..][..bytes].to_vec();
        let floats = |pe: usize, first: usize| -> Vec<f32> {
            given(pe, first).as_chunks::<4>().0.iter().map(|float| f32::from_ne_bytes(*float)).collect()
        };
        let added = |first: usize| -> Vec<u8> {
            let mut sums = vec![0f32; bytes / 4];
            for pe in 0..npes {
                sums.iter_mut().zip(floats(pe, first)).for_each(|(sum, float)| *sum += float);
            }
            sums.into_iter().flat_map(f32::to_ne_bytes).collect()
        };
        match self.collective {
            Collective::Barrier | Collective::Sync => Vec::new(),
            Collective::Broadcast => given(0, 0),
            Collective::Collect | Collective::Fcollect => (0..npes).flat_map(|pe| given(pe, 0)).collect(),
            Collective::Alltoall => (0..npes).flat_map(|pe| given(pe, me * bytes)).collect(),
            Collective::Alltoalls => (0..npes)
                .flat_map(|pe| {
                    let source = self.source(pe, npes);
                    let words = source[from + 2 * me * bytes..][..2 * bytes].as_chunks::<16>().0;
                    words.iter().flat_map(|pair| [&pair[..8], &[before; 8]].concat()).collect::<Vec<u8>>()
                })
                .collect(),
            Collective::Reduce => added(0),
            Collective::Reducescatter => added(me * bytes),
        }
    }
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
    verdicts: Verdicts<'a>,
    job: Job,
}

fn measure(pe: &Pe, options: &Options, plan: &Plan) -> Result<(), Error> {
    connection::require_hca(pe, options.connection.hca.as_ref())?;
    let npes = pe.n_pes() as u64;
    let largest = plan.sizes.last().copied().unwrap_or_default();
    let room = |bytes: fn(Collective, u64, u64) -> u64| {
        Collective::ALL.iter().map(|one| bytes(*one, largest, npes)).max().unwrap_or(8).max(8 * npes)
    };
    let first = pe.my_pe() == 0;
    let session = Session {
        pe,
        options,
        plan,
        module: pe.load(&KERNELS)?,
        dst: pe.alloc_aligned(room(Collective::result_bytes) as usize, 256)?,
        src: pe.alloc_aligned(room(Collective::source_bytes) as usize + SLACK, 256)?,
        times: pe.alloc(plan.iters.max(options.warmup) as usize)?,
        verdicts: Verdicts::new(pe)?,
        job: Job::of(pe, connection::paths(pe)),
    };
    let mut table = Table::new(Row::title, Row::columns(), options.json.as_deref().filter(|_| first))?;
    for point in points(plan) {
        let (row, wrong) = session.point(point)?;
        if let Some(row) = row {
            table.add(row)?;
        }
        end_if_wrong(pe, wrong)?;
    }
    if let (Some(path), Some(Row { job, .. })) = (&options.plot, table.rows().first()) {
        let sized = table.rows().iter().filter(|row| row.bytes != 0);
        let lines =
            plot::lines(sized.map(|row| (format!("{}, {}", row.collective, row.scope), row.bytes, row.times.us_p50)));
        plot::draw_series(path, &format!("{NAME}: {}", job.parties()), "median time [us]", &lines)?;
    }
    let Session { dst, src, times, verdicts, .. } = session;
    [dst, src].into_iter().try_for_each(|slice| pe.free(slice))?;
    pe.free(times)?;
    verdicts.close()
}

/// Everything to measure, in order.
fn points(plan: &Plan) -> Vec<Point> {
    let mut points = Vec::new();
    for &collective in &plan.collectives {
        for &scope in &plan.scopes {
            let sizes = if collective.is_meeting() { &[0][..] } else { &plan.sizes };
            points.extend(sizes.iter().map(|&bytes| Point { collective, scope, bytes }));
        }
    }
    points
}

impl Session<'_> {
    /// Returns one point. PE 0 gets the row; it and the PEs that found wrong data get that as an
    /// error beside it. Collective.
    fn point(&self, point: Point) -> Result<(Option<Row>, Option<Error>), Error> {
        /// What results hold before.
        const BEFORE: u8 = 0xff;
        let (pe, me, npes) = (self.pe, self.pe.my_pe(), self.pe.n_pes());
        let (warmup, iters) = (self.options.warmup, self.plan.iters);
        pe.write(&self.src, &point.source(me, npes))?;
        let len = point.collective.result_bytes(point.bytes, npes as u64) as usize;
        pe.write(&self.dst, &vec![BEFORE; len])?;
        pe.barrier_all()?;
        if warmup != 0 {
            self.launch(point, 0, warmup)?;
        }
        let before = Posted::so_far(pe)?;
        self.launch(point, warmup, iters)?;
        let posted = Posted::so_far(pe)?.since(before);
        let times = pe.read(self.times.view(..iters as usize))?;
        pe.barrier_all()?;

        let expected = point.result(me, npes, warmup + iters - 1, BEFORE);
        let mut found = pe.read(self.dst.view(..len))?;
        if let Some(at) = self.options.corrupt.filter(|_| me == 0) {
            found.iter_mut().skip(at as usize).take(1).for_each(|byte| *byte ^= 1);
        }
        let mut checked = pattern::check("what the collective left", &expected, &found);
        if point.collective.is_meeting() {
            checked = checked.and(self.check_meeting(point)?);
        }
        let wrong = self.verdicts.gather(checked.map_err(Error::from))?;
        if me != 0 {
            return Ok((None, wrong));
        }
        let row = Row {
            test: NAME.to_owned(),
            collective: point.collective.name().to_owned(),
            job: self.job.having(posted),
            threads: self.threads(point.scope),
            scope: point.scope.name().to_owned(),
            bytes: point.bytes,
            iters,
            times: Percentiles::of(&times),
            verified: wrong.is_none(),
        };
        Ok((Some(row), wrong))
    }

    fn threads(&self, scope: Scope) -> u32 {
        match scope {
            Scope::Thread => 1,
            Scope::Warp => 32,
            Scope::Block => self.plan.threads,
        }
    }

    fn launch(&self, point: Point, first: u64, iters: u64) -> Result<(), Error> {
        let function = self.module.kernel(&format!("collective_{}", point.scope.name()))?;
        let shape = LaunchConfig::linear(1, self.threads(point.scope));
        let args = (point.collective as u32, &self.dst, &self.src, point.bytes, first, iters, &self.times);
        // SAFETY: what the kernel declares; `measure` has made the buffers large enough for every
        // point.
        unsafe { function.launch(self.pe, shape, args)? };
        Ok(self.pe.synchronize()?)
    }

    /// Returns whether barriers and syncs order what is stored before them.
    fn check_meeting(&self, point: Point) -> Result<Result<(), crate::error::Mismatch>, Error> {
        let function = self.module.kernel(&format!("meetings_{}", point.scope.name()))?;
        let shape = LaunchConfig::linear(1, self.threads(point.scope));
        self.pe.write(&self.times, &[u64::MAX])?;
        let args = (point.collective as u32, &self.dst, ROUNDS, &self.times);
        // SAFETY: what the kernel declares; a word of each PE fits the buffer.
        unsafe { function.launch(self.pe, shape, args)? };
        self.pe.synchronize()?;
        let wrong = self.pe.read(self.times.view(..1))?;
        Ok(pattern::check_words("rounds in which another PE's word was not there", &[0], &wrong))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        let args = std::iter::once(NAME).chain(line.split_whitespace());
        let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
        options.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read() {
        let plan = parse("--collective reduce --collective barrier -b 16 -e 64 -f 4 --scope warp -n 3").unwrap();
        let points = points(&plan);
        let found: Vec<_> = points.iter().map(|point| (point.collective.name(), point.bytes)).collect();
        assert_eq!(found, [("reduce", 16), ("reduce", 64), ("barrier", 0)]);
        assert_eq!(parse("").unwrap().collectives, Collective::ALL);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        for (line, reason) in [
            ("--collective gather", "--collective"),
            ("-b 64 -e 8", "larger than --max"),
            ("-b 12 -e 24", "multiples of 8"),
            ("--plot a.png", "end in .svg"),
            ("--plot a.svg --collective sync", "at least two"),
            ("--hca null", "moves nothing"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn results_are_as_long_as_they_should_be() {
        for collective in Collective::ALL {
            for (npes, bytes) in [(1, 8), (3, 24)] {
                let point =
                    Point { collective, scope: Scope::Warp, bytes: if collective.is_meeting() { 0 } else { bytes } };
                let result = point.result(npes - 1, npes, 5, 0);
                assert_eq!(result.len() as u64, collective.result_bytes(point.bytes, npes as u64), "{collective:?}");
            }
        }
    }
}
