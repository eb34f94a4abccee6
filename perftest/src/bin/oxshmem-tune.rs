//! See [`oxshmem_perftest::tune`] and `docs/teams.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::tune::main()
}
