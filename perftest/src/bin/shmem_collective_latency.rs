//! See [`oxshmem_perftest::collectives`] and `docs/perftest.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::collectives::main()
}
