//! PEs that this program starts to show something of a job, or is one of.

use std::process::ExitCode;

use oxshmem::Error;
use oxshmem::config::Config;
use oxshmem::launch::{LaunchOptions, Output, in_job, run};

/// Starts `npes` PEs with the subcommand `name`, or is one of them by `pe`, which returns `false`
/// if standard output cannot be written.
pub fn start(
    name: &str,
    config: Config,
    npes: u32,
    json: bool,
    pe: impl FnOnce(Config, bool) -> Result<bool, Error>,
) -> ExitCode {
    if in_job() {
        return match pe(config, json) {
            Ok(shown) => ExitCode::from(u8::from(!shown)),
            Err(error) => {
                eprintln!("oxshmem-info: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("oxshmem-info: this program's own path is unknown: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut options = LaunchOptions::new(npes, program).args([name]);
    if json {
        options = options.args(["--json"]);
    }
    options.output = Output::Plain;
    options.forward_signals = true;
    match run(&options) {
        Ok(outcome) if outcome.is_success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("oxshmem-info: {error}");
            ExitCode::FAILURE
        }
    }
}
