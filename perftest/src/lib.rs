//! The shmem_* performance tests of OxSHMEM.
//!
//! Each test is one program over this library: [`main`] reads the command line, starts the PEs
//! unless a launcher did, and measures ([`run`]). `docs/perftest.md` describes the tests, their
//! options and how to read their figures.

pub mod atomic;
pub mod bench;
pub mod collectives;
pub mod compare;
pub mod connection;
pub mod demo;
pub mod error;
pub mod hub_time;
pub mod init_time;
pub mod job;
pub mod machine;
pub mod options;
pub mod output;
pub mod pattern;
pub mod plot;
pub mod report;
pub mod run;
pub mod scratch;
pub mod stats;
pub mod step;
pub mod transports;
pub mod tune;
pub mod updates;
pub mod verdicts;
pub mod waiting;

use std::process::ExitCode;

use oxshmem::{Config, Pe, launch};

use crate::bench::Bench;
use crate::error::Error;
use crate::job::Complaint;
use crate::options::Options;
use crate::report::{Row, Table};
use crate::run::Session;

/// Runs the program of `bench`.
pub fn main(bench: Bench) -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(|| Options::command(bench)) {
        return status;
    }
    let options = match Options::parse(bench, std::env::args_os()) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    start_or_join(bench.name(), options.npes, &options.config, |pe| measure(pe, &options))
}

/// Starts this program again as `npes` PEs, with the same arguments; or, as one of them, joins the
/// job, does `work` and leaves it. `name` is the program's, for messages.
pub fn start_or_join(name: &str, npes: u32, config: &Config, work: impl FnOnce(&Pe) -> Result<(), Error>) -> ExitCode {
    start_or_run(name, npes, || in_job(config, work))
}

/// Starts this program again as `npes` PEs, with the same arguments; or, as one of them, does
/// `work`, which joins the job.
pub fn start_or_run(name: &str, npes: u32, work: impl FnOnce() -> Result<(), Error>) -> ExitCode {
    if !launch::in_job() {
        return job::start(name, npes).unwrap_or_else(|error| error.report(name));
    }
    let complaint = match Complaint::attach() {
        Ok(complaint) => complaint,
        Err(error) => return error.report(name),
    };
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complaint.file(name, &error);
            error.exit_code()
        }
    }
}

/// Joins the job, does `work` as one of its PEs, and leaves it.
fn in_job(config: &Config, work: impl FnOnce(&Pe) -> Result<(), Error>) -> Result<(), Error> {
    config.init_log();
    let pe = Pe::with_config(config.clone())?;
    let done = work(&pe);
    match &done {
        Ok(()) => pe.finalize()?,
        // The other PEs wait for this one.
        Err(error) => pe.abort(&error.to_string()),
    }
    done
}

/// Measures as one PE of the job, and shows the figures.
fn measure(pe: &Pe, options: &Options) -> Result<(), Error> {
    let mut session = Session::new(pe, options)?;
    let first = pe.my_pe() == 0;
    let columns = Row::columns(options.bench.is_latency(), pe.hca_name().is_some(), options.ceiling);
    let mut table = Table::new(Row::title, columns, options.json.as_deref().filter(|_| first))?;
    session.run(&mut |row| table.add(row))?;
    if let Some(path) = options.plot.as_deref().filter(|_| first) {
        plot::draw(path, table.rows())?;
    }
    session.close()
}
