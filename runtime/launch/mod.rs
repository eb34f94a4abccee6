//! The launcher: starts the PEs of a job on this machine or, through a remote shell, on several,
//! runs the hub that they meet at, and sees to it that all of them end.
//!
//! On each machine, one thread waits for everything at once: output of the PEs, their ends,
//! signals, deadlines. Each PE leads a process group of its own, so what it started ends with it,
//! and is killed by the kernel when the launcher itself dies. A process that leaves its group on
//! purpose (a daemon) is not followed.
//!
//! A program can start its own PEs when no launcher did:
//!
//! ```no_run
//! use oxshmem::launch::{LaunchOptions, in_job, run};
//!
//! if !in_job() {
//!     let program = std::env::current_exe()?;
//!     let options = LaunchOptions { forward_signals: true, ..LaunchOptions::new(2, program) };
//!     let outcome = run(&options.args(std::env::args_os().skip(1)))?;
//!     std::process::exit(outcome.exit_code().into());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dumps;
mod error;
mod failure;
mod hosts;
mod job;
mod node;
mod options;
mod outcome;
mod output;
mod relay;
mod remote;
mod signals;
mod takers;

pub use error::LaunchError;
pub use hosts::Hosts;
pub use job::run;
#[doc(hidden)]
pub use node::serve_node;
pub use options::{LaunchOptions, Output};
pub use outcome::{LAUNCHER_FAILED, Outcome, PeOutcome, PeStatus, TIMED_OUT};
pub use remote::{RemoteShell, run_on};

use crate::bootstrap::launcher::{Environment, find};
use crate::config::{LAUNCHER_VARIABLES, Launcher};

/// Returns whether a launcher started this process as a PE: `oxrun`, or another whose variables are
/// set (`OXSHMEM_LAUNCHER`), even if they cannot be used.
///
/// ```
/// if !oxshmem::launch::in_job() {
///     println!("no launcher started this process");
/// }
/// ```
pub fn in_job() -> bool {
    let wanted = std::env::var("OXSHMEM_LAUNCHER").ok().and_then(|name| name.parse().ok());
    LAUNCHER_VARIABLES.iter().any(|name| std::env::var_os(name).is_some())
        || find(&Environment::of_process(), wanted.unwrap_or(Launcher::Auto))
            .map_or(true, |finding| finding.launcher != Launcher::None)
}
