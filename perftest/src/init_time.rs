//! `shmem_init_time`: how long the phases of init take, at a typical PE and at the slowest.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use oxshmem::config::MAX_NPES;
use oxshmem::{Config, Operations, Pe};
use serde::{Deserialize, Serialize};

use crate::connection::{self, Connection};
use crate::error::Error;
use crate::hub_time;
use crate::report::{Column, Job, Table, rounded};

const NAME: &str = "shmem_init_time";
/// The phase that is the sum of all.
const TOTAL: &str = "all of init";
/// The last line: `Pe::finalize`.
const FINALIZE: &str = "finalize";

/// Initialises and finalizes several times, and shows how long each phase of init took: waiting for
/// other PEs is part of the phase in which it happens.
#[derive(Debug, Clone, Parser)]
#[command(name = NAME, version)]
struct Options {
    /// Rounds of init and finalize. The first is shown by itself, because it also loads libraries
    /// and, on a GPU, makes the context; the medians are of the others.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// PEs to start, when no launcher has started this one.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPES)))]
    npes: u32,
    #[command(flatten)]
    connection: Connection,
    /// Write one JSON object per line and phase to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the rendezvous alone, of jobs of these sizes whose PEs a few processes speak for:
    /// join, allgather, alltoall, barrier and abort.
    #[arg(long, value_name = "NPES", value_delimiter = ',', num_args = 0..=1, default_missing_value = "64,256,1024,4096",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPES)))]
    hub: Option<Vec<u32>>,
    /// With --hub: PEs that share a connection, as those of a node do.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "hub", value_parser = clap::value_parser!(u32).range(1..))]
    per_node: u32,
    /// Speak for PEs, as a process with --hub orders.
    #[arg(long, hide = true, exclusive = true)]
    crowd: bool,
}

/// One phase. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `shmem_init_time`.
    pub test: String,
    /// The phase, `all of init` or `finalize`.
    pub phase: String,
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// Rounds of init and finalize.
    pub rounds: u32,
    /// In the first round, at the slowest PE.
    pub ms_first: f64,
    /// The median over PEs of each PE's median over the rounds after the first.
    pub ms_p50: f64,
    /// The largest such median of a PE.
    pub ms_slowest: f64,
    /// That PE.
    pub slowest_pe: usize,
}

impl Row {
    fn columns() -> Vec<Column<Self>> {
        vec![
            Column::new("phase", 14, |row: &Self| row.phase.clone()),
            Column::new("first [ms]", 10, |row: &Self| rounded(Some(row.ms_first))),
            Column::new("p50 [ms]", 9, |row: &Self| rounded(Some(row.ms_p50))),
            Column::new("slowest [ms]", 12, |row: &Self| rounded(Some(row.ms_slowest))),
            Column::new("PE", 5, |row: &Self| row.slowest_pe.to_string()),
        ]
    }

    /// Returns what was measured, and on what.
    fn title(&self) -> String {
        format!("# {NAME}: {} PEs, {} rounds, {}", self.job.npes, self.rounds, self.job.setting())
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(Options::command) {
        return status;
    }
    let options = Options::parse();
    if options.crowd {
        return hub_time::crowd();
    }
    if let Some(sizes) = &options.hub {
        return match hub_time::measure(sizes, options.per_node, options.json.as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error.report(NAME),
        };
    }
    let config = match options.connection.config(std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => Options::command().error(clap::error::ErrorKind::ValueValidation, error).exit(),
    };
    crate::start_or_run(NAME, options.npes, || measure(&options, &config))
}

/// What a PE has measured: by round, the nanoseconds of each phase.
type Rounds = Vec<Vec<u64>>;

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn measure(options: &Options, config: &Config) -> Result<(), Error> {
    config.init_log();
    let mut rounds = Rounds::new();
    for _ in 0..options.rounds {
        let begun = Instant::now();
        let pe = Pe::with_config(config.clone())?;
        let total = begun.elapsed();
        connection::require_hca(&pe, options.connection.hca.as_ref())
            .inspect_err(|error| pe.abort(&error.to_string()))?;
        let mut times: Vec<u64> = pe.init_phases().iter().map(|(_, time)| nanoseconds(*time)).collect();
        times.push(nanoseconds(total));
        let begun = Instant::now();
        pe.finalize()?;
        times.push(nanoseconds(begun.elapsed()));
        rounds.push(times);
    }
    // One more, in which PE 0 gets the times of all.
    let pe = Pe::with_config(config.clone())?;
    let shown = show(&pe, options, &rounds);
    match &shown {
        Ok(()) => pe.finalize()?,
        Err(error) => pe.abort(&error.to_string()),
    }
    shown
}

/// Gathers the times of all PEs at PE 0, which shows them. Collective.
fn show(pe: &Pe, options: &Options, rounds: &Rounds) -> Result<(), Error> {
    let mut phases: Vec<&str> = pe.init_phases().iter().map(|(phase, _)| *phase).collect();
    phases.extend([TOTAL, FINALIZE]);
    let mine = rounds.concat();
    let length = mine.len();
    let all = pe.alloc::<u64>(length * pe.n_pes())?;
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    pe.put(all.view(me * length..), mine.as_slice(), 0)?;
    pe.barrier_all()?;
    if me == 0 {
        let told = pe.read(all.view(..))?;
        let times = |pe: usize, round: usize, phase: usize| told[pe * length + round * phases.len() + phase];
        let job = Job::of(pe, connection::paths(pe));
        let mut table = Table::new(Row::title, Row::columns(), options.json.as_deref())?;
        for (phase, name) in phases.iter().enumerate() {
            let medians: Vec<u64> =
                (0..n_pes).map(|pe| median((1..rounds.len()).map(|round| times(pe, round, phase)).collect())).collect();
            let slowest = (0..n_pes).max_by_key(|pe| medians[*pe]).unwrap_or_default();
            table.add(Row {
                test: NAME.to_owned(),
                phase: (*name).to_owned(),
                job: job.clone(),
                rounds: options.rounds,
                ms_first: milliseconds((0..n_pes).map(|pe| times(pe, 0, phase)).max().unwrap_or_default()),
                ms_p50: milliseconds(median(medians.clone())),
                ms_slowest: milliseconds(medians[slowest]),
                slowest_pe: slowest,
            })?;
        }
    }
    pe.barrier_all()?;
    Ok(pe.free(all)?)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// Returns the middle one, the lower of two.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3, 1, 2]), 2);
        assert_eq!(median(vec![4, 1, 2, 3]), 2);
        assert_eq!(median(vec![7]), 7);
        assert_eq!(median(Vec::new()), 0);
    }
}
