//! `gpu-bundle/run`: runs on a machine with GPUs what `make gpu-bundle` has packed elsewhere,
//! prints a table and writes everything to one JSON file. `make hardware-check` runs one part of it
//! where it was built.

mod hardware;
mod parts;
mod questions;
mod report;
mod step;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use report::{Report, say};
use step::Runner;

/// What can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Conformance over P2P, IBGDA and IBRC, errors, faults, deaths of PEs.
    Tests,
    /// Every performance test over P2P, IBGDA and IBRC.
    Perftests,
    /// The bandwidth of p, puts by threads and atomics with grids that fill the GPU and go beyond
    /// it, over every transport with few and many queue pairs.
    Grids,
    /// Side by side with NVSHMEM, where that is installed.
    Compare,
    /// Programs that were written for NVSHMEM, over P2P, IBGDA and IBRC.
    Compat,
    /// The core of the tests under compute-sanitizer's memcheck and racecheck.
    Sanitize,
    /// The doctor, five questions to the card, the core of conformance and performance over every
    /// path that this machine offers, with and without GPUs and cards, the published experiment
    /// over the card, and a verdict; packs everything into one archive beside the results.
    HardwareCheck,
}

/// Runs the tests, the performance tests, the comparison and the sanitizers on this machine's GPUs.
///
/// Exit status: 0 if everything that ran has passed, 1 if something failed or nothing could be run,
/// 2 if the arguments are wrong. What the machine lacks is skipped, with the reason.
#[derive(Debug, Parser)]
#[command(name = "run", version)]
struct Arguments {
    /// What to run; tests, perftests and compare unless given.
    parts: Vec<Part>,
    /// Folder for results.json and the logs of all steps.
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    /// The longest that one step may take, in seconds; 600 unless given, 120 for the hardware
    /// check.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86400))]
    limit: Option<u64>,
    /// Jobs at a time in the tests.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// For the hardware check: a folder with the stand-in for rdma-core, which takes the place of a
    /// card. Everything about a card is done, in a short form; figures say nothing.
    #[arg(long, value_name = "DIR")]
    stand_in: Option<PathBuf>,
    /// Only tests, performance tests, rows and cases whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let mut parts = arguments.parts.clone();
    if parts.is_empty() {
        parts = vec![Part::Tests, Part::Perftests, Part::Compare];
    }
    let usual = if parts == [Part::HardwareCheck] { hardware::limit() } else { Duration::from_secs(600) };
    let runner = Runner::new(&arguments.out, arguments.limit.map_or(usual, Duration::from_secs))?;
    let mut report = Report::new(&runner);
    say(report.heading());
    let mut archive = None;
    for part in parts {
        match part {
            Part::Tests => parts::tests(&runner, &mut report, arguments.jobs, &arguments.only),
            Part::Perftests => parts::perftests(&runner, &mut report, &arguments.only),
            Part::Grids => parts::grids(&runner, &mut report, &arguments.only),
            Part::Compare => parts::compare(&runner, &mut report, &arguments.only),
            Part::Compat => parts::compat(&runner, &mut report, &arguments.only),
            Part::Sanitize => parts::sanitize(&runner, &mut report, &arguments.only),
            Part::HardwareCheck => {
                let check =
                    hardware::Check { runner: &runner, only: &arguments.only, stand_in: arguments.stand_in.as_deref() };
                archive = Some(check.run(&mut report)?);
            }
        }
        // Also what an interrupted run has found is kept.
        report.write(&arguments.out.join("results.json"))?;
    }
    say(&format!("\n{}\nresults: {}", report.table(), arguments.out.join("results.json").display()));
    if let Some(archive) = archive {
        let summary = arguments.out.join("summary.md");
        say(&format!("summary: {}\n{} has everything: attach it to a report", summary.display(), archive.display()));
    }
    Ok(report.is_good())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("run: {error}");
            ExitCode::FAILURE
        }
    }
}
