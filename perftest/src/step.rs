//! One measurement in a job of its own: a program starts itself again as PEs, which reply with rows
//! of figures.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use oxshmem::Pe;
use oxshmem::launch::{self, LaunchOptions, Output};
use serde::de::DeserializeOwned;

use crate::bench::Bench;
use crate::error::Error;
use crate::job;
use crate::options::Options;
use crate::output;
use crate::report::{Row, to_json};
use crate::run::Session;

/// Measures one thing in a job of two PEs that takes `limit` at most; what the PEs complained about
/// if it failed. `options` are those of the test's program, separated by single blanks.
///
/// # Errors
/// The job cannot be started, or a signal ended it.
pub fn run(bench: Bench, options: &str, limit: Duration) -> Result<Result<Vec<Row>, Vec<String>>, Error> {
    rows(2, [bench.name().to_owned()].into_iter().chain(options.split(' ').map(str::to_owned)), Some(limit))
}

/// Runs this program with `args` as a job of `npes` PEs, of which PE 0 replies with a line of JSON
/// for each row; what the PEs complained about if it failed.
///
/// # Errors
/// The job cannot be started, or a signal ended it.
pub fn rows<R: DeserializeOwned>(
    npes: u32,
    args: impl IntoIterator<Item: Into<OsString>>,
    limit: Option<Duration>,
) -> Result<Result<Vec<R>, Vec<String>>, Error> {
    let options = LaunchOptions {
        output: Output::Captured,
        timeout: limit,
        forward_signals: true,
        ..LaunchOptions::new(npes, job::this_program()?).args(args)
    };
    let outcome = launch::run(&options)?;
    if let Some(code) = outcome.interrupt_code() {
        return Err(Error::Interrupted(code));
    }
    if !outcome.is_success() {
        return Ok(Err(job::complaints(&outcome)));
    }
    let text = String::from_utf8_lossy(&outcome.pes[0].stdout);
    let rows = text.lines().map(serde_json::from_str::<R>).collect::<Result<Vec<_>, _>>();
    Ok(rows.map_err(|_| vec![format!("PE 0 has not answered with rows of figures: {text:?}")]))
}

/// Runs the part of a PE: the arguments are a test's name and its options, the answer is a line of
/// JSON for each row.
pub fn as_pe(name: &str) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(bench) = Bench::ALL.into_iter().find(|bench| args.first().is_some_and(|name| name == bench.name())) else {
        eprintln!("{name}: start this program without a launcher, it starts its own PEs");
        return ExitCode::from(2);
    };
    let options = match Options::parse(bench, &args) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Read by rank in `run`; what only follows from another PE's error stays untold.
            if !error.is_consequence() {
                eprintln!("{error}");
            }
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Error> {
    crate::in_job(&options.config, |pe: &Pe| {
        let mut session = Session::new(pe, options)?;
        session.run(&mut |row| output::line(format_args!("{}", to_json(&row)?)))?;
        session.close()
    })
}
