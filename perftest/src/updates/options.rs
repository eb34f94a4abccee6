//! The command lines of `gups` and `histogram`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use oxshmem::config::Hca;
use oxshmem::device::takes_gpu;
use oxshmem::{AggregateOptions, Config};

use crate::connection::{self, Connection};
use crate::error::Error;
use crate::options::size;

/// What updates travel by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// The default context: each is a work request.
    Direct,
    /// An aggregating context.
    Aggregate,
}

/// What an update of gups does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Stores 8 bytes that depend on the place alone.
    Put,
    /// Combines the word with random bits by exclusive or.
    Xor,
}

/// What both programs have.
#[derive(Debug, Clone, clap::Args)]
struct Common {
    /// PEs to start, when no launcher has started this one.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    npes: u32,
    /// What updates travel by; both unless set, one after the other.
    #[arg(long, value_enum)]
    via: Option<Via>,
    /// What places and values depend on.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Segment of the aggregating context in bytes, or with K: a power of two from 1K to 64K.
    #[arg(long, value_name = "SIZE", default_value = "8K", value_parser = size)]
    segment: u64,
    /// Microseconds that a record waits for others, at most 60000000.
    #[arg(long, value_name = "US", default_value_t = 200)]
    age: u64,
    /// CTAs.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    ctas: Option<u32>,
    /// Threads per CTA.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    #[command(flatten)]
    connection: Connection,
    /// Write one JSON object per line to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Change this word of what PE 0 has before it is checked: shows that the check works.
    #[arg(long, value_name = "WORD", hide = true)]
    corrupt: Option<usize>,
}

/// Random access: every PE updates random words of a table that is spread over all PEs. Data is
/// verified. One line for each way is printed.
#[derive(Debug, Clone, Parser)]
#[command(name = "gups", version)]
pub struct GupsOptions {
    /// What an update does.
    #[arg(long, value_enum, default_value = "put")]
    op: Op,
    /// Updates of each PE.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    updates: Option<u64>,
    /// Words of the table at each PE.
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    words: u64,
    #[command(flatten)]
    common: Common,
}

/// Histogram: every PE counts its keys in bins that are spread over all PEs. Data is verified. One
/// line for each way is printed.
#[derive(Debug, Clone, Parser)]
#[command(name = "histogram", version)]
pub struct HistogramOptions {
    /// Keys of each PE.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: Option<u64>,
    /// Bins, over all PEs.
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    bins: u64,
    /// How uneven keys are: 0 for alike; with S the first bins get up to 2^S times as many.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=32))]
    skew: u64,
    #[command(flatten)]
    common: Common,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program.
    pub app: &'static str,
    /// What an update does: `put`, `xor` or `add`.
    pub op: &'static str,
    /// The same as `Update` of kernels/updates.cu.
    pub update: u64,
    /// PEs to start.
    pub npes: u32,
    /// Updates of each PE.
    pub updates: u64,
    /// Words of the table: `Ok` at each PE, `Err` over all PEs.
    pub words: Result<u64, u64>,
    /// See `Updates` of kernels/updates.cu.
    pub skew: u64,
    /// See there.
    pub seed: u64,
    /// The ways, in their order.
    pub via: Vec<Via>,
    /// The aggregating context.
    pub aggregate: AggregateOptions,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
    /// An HCA that must be in use.
    pub hca: Option<Hca>,
    /// The library's configuration.
    pub config: Config,
    /// The file for lines of JSON.
    pub json: Option<PathBuf>,
    /// The word that is changed before the check.
    pub corrupt: Option<usize>,
}

impl Common {
    /// Fills in what was left out.
    fn plan(&self, app: &'static str, updates: Option<u64>) -> Result<Plan, Error> {
        let config = self.connection.config(std::env::vars_os())?;
        connection::refuse_null(&config, "no update would ever arrive")?;
        let gpu = takes_gpu(config.device());
        let aggregate = AggregateOptions::new().segment(self.segment).age(Duration::from_micros(self.age));
        aggregate.check().map_err(|error| Error::Usage(format!("--segment, --age: {error}")))?;
        Ok(Plan {
            app,
            op: "put",
            update: 0,
            npes: self.npes,
            updates: updates.unwrap_or(if gpu { 1 << 20 } else { 1 << 16 }),
            words: Ok(1),
            skew: 0,
            seed: self.seed,
            via: self.via.map_or_else(|| vec![Via::Direct, Via::Aggregate], |via| vec![via]),
            aggregate,
            ctas: self.ctas.unwrap_or(if gpu { 32 } else { 1 }),
            threads: self.threads.unwrap_or(if gpu { 256 } else { 32 }),
            hca: self.connection.hca.clone(),
            config,
            json: self.json.clone(),
            corrupt: self.corrupt,
        })
    }
}

impl GupsOptions {
    /// Returns what is measured.
    ///
    /// # Errors
    /// Options that the library refuses.
    pub fn plan(&self) -> Result<Plan, Error> {
        let (op, update) = match self.op {
            Op::Put => ("put", 0),
            Op::Xor => ("xor", 1),
        };
        Ok(Plan { op, update, words: Ok(self.words), ..self.common.plan("gups", self.updates)? })
    }
}

impl HistogramOptions {
    /// Returns what is measured.
    ///
    /// # Errors
    /// Options that the library refuses.
    pub fn plan(&self) -> Result<Plan, Error> {
        let plan = self.common.plan("histogram", self.keys)?;
        Ok(Plan { op: "add", update: 2, words: Err(self.bins), skew: self.skew, ..plan })
    }
}
