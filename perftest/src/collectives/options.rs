//! The command line of the programs that measure collectives.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, ValueEnum};
use oxshmem::Config;
use oxshmem::device::takes_gpu;

use super::point::{Collective, Point, Scope};
use crate::connection::{self, Connection};
use crate::error::Error;
use crate::options::{require_svg, size, sizes};

/// The programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Times.
    Latency,
    /// Bandwidths of large messages.
    Bandwidth,
}

impl Program {
    /// Returns the program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "shmem_collective_latency",
            Self::Bandwidth => "shmem_collective_bw",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Latency => {
                "Measures how long collectives of all PEs take, one after the other, each called by one group of threads of every PE, or \
                 queued on a stream."
            }
            Self::Bandwidth => {
                "Measures how much collectives of all PEs move, one after the other, each called by one group of threads of every PE, or \
                 queued on a stream."
            }
        }
    }
}

/// What calls the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// Threads of a kernel.
    Kernel,
    /// The host, which queues them on a stream.
    Stream,
}

/// A selection of scopes, as on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Scopes {
    Thread,
    Warp,
    Block,
    Grid,
    All,
}

impl Scopes {
    fn all(self) -> Vec<Scope> {
        match self {
            Self::Thread => vec![Scope::Thread],
            Self::Warp => vec![Scope::Warp],
            Self::Block => vec![Scope::Block],
            Self::Grid => vec![Scope::Grid],
            Self::All => vec![Scope::Thread, Scope::Warp, Scope::Block, Scope::Grid],
        }
    }
}

/// Threads of a block of a grid that calls, at most: the bound of its kernel.
const GRID_THREADS: u32 = 512;
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub(super) struct Options {
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
    pub warmup: u64,
    /// What calls: threads of a kernel, or the host on a stream.
    #[arg(long, value_enum, default_value = "kernel")]
    on: On,
    /// Threads of the calling block, in block scope, or of each calling block, in grid scope (at
    /// most 512 there).
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Blocks of the calling grid, in grid scope.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ctas: Option<u32>,
    /// Threads that call together, in a kernel [default: all; of shmem_collective_bw: grid].
    #[arg(long, value_enum)]
    scope: Option<Scopes>,
    /// PEs to start, when no launcher has started this one.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub npes: u32,
    #[command(flatten)]
    pub connection: Connection,
    /// Write one JSON object per line and measured point to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the median times, or the bandwidths, over the message size into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Change this byte of what PE 0 got before it is checked: shows that the check works.
    #[arg(long, value_name = "OFFSET", hide = true)]
    pub corrupt: Option<u64>,
}

/// What follows from the options.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub program: Program,
    pub collectives: Vec<Collective>,
    /// Those that call in a kernel; `None`: a stream.
    pub scopes: Vec<Option<Scope>>,
    pub sizes: Vec<u64>,
    /// Whether the largest was given.
    pub has_max: bool,
    pub iters: u64,
    pub threads: u32,
    pub ctas: u32,
    pub config: Config,
}

impl Options {
    pub(super) fn command_of(program: Program) -> clap::Command {
        Self::command().name(program.name()).about(program.about())
    }

    pub(super) fn plan(&self, program: Program) -> Result<Plan, Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let config = self.connection.config(std::env::vars_os())?;
        let small = !takes_gpu(config.device());
        let defaults = match (program, small) {
            (Program::Latency, true) => (8, 32 << 10),
            (Program::Latency, false) => (8, 4 << 20),
            (Program::Bandwidth, true) => (4 << 10, 256 << 10),
            (Program::Bandwidth, false) => (64 << 10, 256 << 20),
        };
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
        connection::refuse_null(&config, "no collective would ever end")?;
        let scopes = match self.on {
            On::Stream if self.scope.is_some() || self.threads.is_some() || self.ctas.is_some() => {
                return refuse(
                    "--scope, --threads and --ctas say what calls in a kernel; on a stream the library chooses its own kernel (--on stream)"
                        .to_owned(),
                );
            }
            On::Stream => vec![None],
            On::Kernel => {
                let default = if program == Program::Bandwidth { Scopes::Grid } else { Scopes::All };
                self.scope.unwrap_or(default).all().into_iter().map(Some).collect()
            }
        };
        let has_grid = scopes.contains(&Some(Scope::Grid));
        if let Some(threads) = self.threads.filter(|threads| has_grid && *threads > GRID_THREADS) {
            return refuse(format!(
                "--threads {threads}: in grid scope a block has at most {GRID_THREADS}; give fewer, or another --scope"
            ));
        }
        if self.ctas.is_some() && !has_grid {
            return refuse("--ctas says how many blocks call in grid scope: give --scope grid".to_owned());
        }
        let all: &[Collective] = match program {
            Program::Latency => &Collective::ALL,
            Program::Bandwidth => &Collective::ALL[2..],
        };
        if let Some(meeting) = self.collective.iter().find(|one| program == Program::Bandwidth && one.is_meeting()) {
            return refuse(format!(
                "--collective {} moves nothing, so it has no bandwidth: {} measures it",
                meeting.name(),
                Program::Latency.name()
            ));
        }
        let iters = match (program, small) {
            (Program::Latency, true) => 100,
            (Program::Latency, false) => 1000,
            (Program::Bandwidth, true) => 20,
            (Program::Bandwidth, false) => 100,
        };
        Ok(Plan {
            program,
            collectives: if self.collective.is_empty() { all.to_vec() } else { self.collective.clone() },
            scopes,
            sizes,
            has_max: self.max.is_some(),
            iters: self.iters.unwrap_or(iters),
            threads: self.threads.unwrap_or(if small { 64 } else { 512 }),
            ctas: self.ctas.unwrap_or(if small { 4 } else { 64 }),
            config,
        })
    }
}

/// Returns everything to measure in these sizes, in order.
pub(super) fn points(plan: &Plan, sizes: &[u64]) -> Vec<Point> {
    let mut points = Vec::new();
    for &collective in &plan.collectives {
        for &scope in &plan.scopes {
            let sizes = if collective.is_meeting() { &[0][..] } else { sizes };
            points.extend(sizes.iter().map(|&bytes| Point { collective, scope, bytes }));
        }
    }
    points
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        parse_for(Program::Latency, line)
    }

    fn parse_for(program: Program, line: &str) -> Result<Plan, String> {
        let args = std::iter::once(program.name()).chain(line.split_whitespace());
        let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
        options.plan(program).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read() {
        let plan = parse("--collective reduce --collective barrier -b 16 -e 64 -f 4 --scope warp -n 3").unwrap();
        let points = points(&plan, &plan.sizes);
        let found: Vec<_> = points.iter().map(|point| (point.collective.name(), point.bytes)).collect();
        assert_eq!(found, [("reduce", 16), ("reduce", 64), ("barrier", 0)]);
        assert_eq!(parse("").unwrap().collectives, Collective::ALL);
        assert_eq!(parse("").unwrap().scopes.len(), 4);
        assert_eq!(parse("--on stream").unwrap().scopes, [None]);
        let bandwidth = parse_for(Program::Bandwidth, "-c 7").unwrap();
        assert_eq!((bandwidth.scopes, bandwidth.ctas), (vec![Some(Scope::Grid)], 7));
        assert_eq!(bandwidth.collectives, Collective::ALL[2..]);
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
            ("--on stream --scope warp", "on a stream the library chooses"),
            ("--on stream --ctas 4", "on a stream the library chooses"),
            ("--on host", "--on"),
            ("--scope grid -t 513", "at most 512"),
            ("--scope block --ctas 4", "give --scope grid"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
        let error = parse_for(Program::Bandwidth, "--collective sync").unwrap_err();
        assert!(error.contains("has no bandwidth"), "{error}");
    }
}
