//! Starts the PEs of an OxSHMEM job, on this machine or on several.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, ValueHint};
use oxshmem::config::LAUNCHER_VARIABLES;
use oxshmem::launch::{Hosts, LaunchOptions, Output, RemoteShell, run, run_on, serve_node};

/// Starts PEs of a program on this machine, or on the hosts that --hosts names, shows their output
/// with the PE's number before each line, and ends all of them when one fails.
///
/// Exit status: 0 when every PE ended with 0; else that of the PE that failed first, 128 + n when
/// signal n killed it; 124 when the time was over; 127 when the program does not exist, 126 when it
/// cannot be executed; 125 when the launcher itself failed or could not write the PEs' output, 2
/// when its arguments or an OXSHMEM_* variable are wrong.
#[derive(Debug, Parser)]
#[command(name = "oxrun", version)]
struct Arguments {
    /// Number of PEs; with --hosts, as many as the hosts take if it is left out.
    #[arg(short = 'n', long = "npes", value_name = "N", required_unless_present_any = ["hosts", "node"])]
    npes: Option<u32>,
    /// Run the PEs on these hosts, NAME or NAME:PES with commas between. PEs are numbered host by
    /// host; where no host has a number, they are divided evenly. Each host needs this oxrun and
    /// the program under the same paths as here, and the same current folder.
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<Hosts>,
    /// The command that runs another on a host: its words, then the host and the command to run
    /// are its arguments.
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "hosts", value_parser = RemoteShell::parse)]
    launcher: RemoteShell,
    /// The path of oxrun on the hosts, if it is not the same as here.
    #[arg(long, value_name = "PATH", requires = "hosts")]
    remote_oxrun: Option<PathBuf>,
    /// Start PEs as the oxrun at the other end of standard input says; oxrun --hosts calls it.
    #[arg(long, hide = true, exclusive = true)]
    node: bool,
    /// Play this many nodes on this machine: consecutive PEs share a node, and PEs of different
    /// nodes reach each other over the network alone.
    #[arg(long, value_name = "M", default_value = "0", hide_default_value = true, conflicts_with = "hosts")]
    nodes: u32,
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
    #[arg(value_names = ["PROGRAM", "ARGS"], num_args = 1.., trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, required_unless_present = "node")]
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
    if let Some(status) = oxshmem_manual::requested(Arguments::command) {
        return status;
    }
    let arguments = Arguments::parse();
    if arguments.node {
        return serve_node();
    }
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
    // The parser requires one of the two.
    let npes = arguments.npes.or(arguments.hosts.as_ref().map(Hosts::npes)).unwrap_or_default();
    let options = LaunchOptions {
        args: command.collect(),
        nodes: arguments.nodes,
        timeout: arguments.timeout,
        grace: arguments.grace,
        output: if arguments.no_prefix { Output::Plain } else { Output::Prefixed },
        stdin: true,
        forward_signals: true,
        ..LaunchOptions::new(npes, program)
    };
    let ended = match (&arguments.hosts, arguments.remote_oxrun) {
        (None, _) => run(&options),
        (Some(hosts), None) => run_on(&options, hosts, &arguments.launcher),
        (Some(hosts), Some(path)) => run_on(&options, hosts, &arguments.launcher.oxrun(path)),
    };
    match ended {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            eprintln!("oxrun: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
