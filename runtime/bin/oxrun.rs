//! Starts the PEs of an OxSHMEM job on this machine.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use oxshmem::config::LAUNCHER_VARIABLES;
use oxshmem::launch::{LaunchOptions, Output, run};

/// Starts PEs of a program on this machine, shows their output with the PE's number before each
/// line, and ends all of them when one fails.
///
/// Exit status: 0 when every PE ended with 0; else that of the PE that failed first, 128 + n when
/// signal n killed it; 124 when the time was over; 127 when the program does not exist, 126 when it
/// cannot be executed; 125 when the launcher itself failed or could not write the PEs' output, 2
/// when its arguments or an OXSHMEM_* variable are wrong.
#[derive(Debug, Parser)]
#[command(name = "oxrun", version)]
struct Arguments {
    /// Number of PEs.
    #[arg(short = 'n', long = "npes", value_name = "N")]
    npes: u32,
    /// End the job when it has taken this many seconds.
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Seconds that PEs have to end by themselves after one has failed, and again after SIGTERM,
    /// before SIGKILL.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3")]
    grace: Duration,
    /// Do not write the PE's number before its lines.
    #[arg(long)]
    no_prefix: bool,
    /// The program, a path or a name on PATH, and its arguments.
    #[arg(value_names = ["PROGRAM", "ARGS"], num_args = 1.., trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let limit = 1e9;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=limit).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("expected seconds, 0 to {limit}, like 30 or 0.5")),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut command = arguments.command.into_iter();
    // The parser requires one.
    let program = command.next().unwrap_or_default();
    // A launcher inside a launcher's job starts a job of its own.
    let vars = std::env::vars_os().filter(|(name, _)| !LAUNCHER_VARIABLES.iter().any(|own| name == own));
    match oxshmem::Config::from_vars(vars) {
        Ok(config) => config.init_log(),
        Err(error) => {
            eprintln!("oxrun: {error}");
            return ExitCode::from(2);
        }
    }
    let options = LaunchOptions {
        args: command.collect(),
        timeout: arguments.timeout,
        grace: arguments.grace,
        output: if arguments.no_prefix { Output::Plain } else { Output::Prefixed },
        stdin: true,
        forward_signals: true,
        ..LaunchOptions::new(arguments.npes, program)
    };
    match run(&options) {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            eprintln!("oxrun: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
