//! Makes the tables and plots of docs/performance.md and docs/notes/figures.md from the JSON of the
//! baselines.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::compare::docs::main()
}
