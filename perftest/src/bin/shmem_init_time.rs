//! See [`oxshmem_perftest::init_time`] and `docs/perftest.md`.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::init_time::main()
}
