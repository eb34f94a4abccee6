//! `oxshmem-info`: what OxSHMEM is, how it is configured, and what this machine can do.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod about;
mod contexts;
mod devices;
mod doctor;
mod job;
mod launch;
mod machine;
mod memory;
mod output;
mod paths;
mod rails;
mod routes;
mod shares;
mod trace;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use oxshmem::Config;

use output::show;

/// Shows the version, the build, the configuration in force with where each value came from, the
/// algorithms of collectives, and the machine's GPUs and RDMA cards.
///
/// Exit status: 0 when all went well, and `doctor` found that what the configuration asks for can
/// be had; 1 when `doctor` found that it cannot, PEs of `paths` or `memory` failed,
/// `launch` found a launcher that cannot be used, or standard output could
/// not be written; 2 when an argument or (except for `doctor`, which reports it) an OXSHMEM_*
/// variable, or the file that it names, is wrong.
#[derive(Debug, Parser)]
#[command(name = "oxshmem-info", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Write JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Seconds that each probe of a driver may take.
    #[arg(long, global = true, value_name = "S", value_parser = seconds, default_value = "5")]
    deadline: Duration,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tries what PEs need of this machine, and says what is missing, why, and what to do.
    Doctor,
    /// Shows which launchers' variables are set, which launcher is chosen and why, and where the
    /// PEs would meet. Starts nothing; exit status 1 where a launcher cannot be used.
    Launch,
    /// Starts PEs and shows how each reaches the others; under oxrun it is the PE's program.
    Paths {
        /// Number of PEs.
        #[arg(short = 'n', long = "npes", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
        npes: u32,
    },
    /// Starts PEs and shows how much memory each takes, by what it is for; under oxrun it is the
    /// PE's program.
    Memory {
        /// Number of PEs.
        #[arg(short = 'n', long = "npes", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
        npes: u32,
    },
    /// Shows what contexts take at each PE: queue pairs, and memory of the device. Starts nothing.
    Contexts(contexts::Question),
    /// Shows which rail the card of each PE is on, if there is a PE on each GPU, and the best way
    /// for puts to each rail of nodes that are cabled as this one, and why. Starts nothing.
    Rails,
    /// Puts together what PEs have counted with OXSHMEM_PROFILE=counters: messages, bytes and
    /// connections by card, by rail, across rails and across root complexes. Exit status 1 where
    /// files are missing or wrong.
    Routes(routes::Question),
    /// Writes the description of this machine that OXSHMEM_TOPOLOGY takes: GPUs, RDMA devices, and
    /// their places on the PCI bus.
    Topology,
    /// Summarises traces that PEs have written with OXSHMEM_PROFILE=trace: which calls took long,
    /// to which PE, and where the time went. Exit status 1 where a file is no trace.
    Trace(trace::Question),
    /// Asks a driver, in a process of its own.
    #[command(hide = true)]
    Probe {
        #[command(subcommand)]
        probe: doctor::Probe,
    },
}

fn seconds(text: &str) -> Result<Duration, String> {
    let (least, most) = (0.01, 600.0);
    match text.parse::<f64>() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected seconds, {least} to {most}, like 5 or 0.5")),
    }
}

fn main() -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(Arguments::command) {
        return status;
    }
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Probe { probe }) => {
            probe.run();
            ExitCode::SUCCESS
        }
        Some(Command::Doctor) => {
            let report = doctor::examine(Config::from_env(), &doctor::Root::new("/"), arguments.deadline);
            let shown = show(arguments.json, &report, || report.text());
            ExitCode::from(u8::from(!shown || !report.is_ready()))
        }
        Some(Command::Trace(question)) => trace::run(question, arguments.json),
        Some(Command::Routes(question)) => routes::run(question, arguments.json),
        Some(Command::Contexts(question)) => contexts::run(question, arguments.json),
        command => {
            let config = match Config::from_env() {
                Ok(config) => config,
                Err(error) => {
                    eprintln!("oxshmem-info: {error}");
                    return ExitCode::from(2);
                }
            };
            match command {
                Some(Command::Launch) => {
                    let launch = launch::Launch::new(&config);
                    let shown = show(arguments.json, &launch, || launch.text());
                    ExitCode::from(u8::from(!shown || !launch.is_usable()))
                }
                Some(Command::Paths { npes }) => paths::run(config, *npes, arguments.json),
                Some(Command::Rails) => rails::run(&config, arguments.json),
                Some(Command::Topology) => machine::describe(&config),
                Some(Command::Memory { npes }) => memory::run(config, *npes, arguments.json),
                _ => {
                    let about = match about::About::new(&config, &doctor::Root::new("/"), arguments.deadline) {
                        Ok(about) => about,
                        Err(error) => {
                            eprintln!("oxshmem-info: {error}");
                            return ExitCode::from(2);
                        }
                    };
                    let shown = show(arguments.json, &about, || about.text());
                    ExitCode::from(u8::from(!shown))
                }
            }
        }
    }
}
