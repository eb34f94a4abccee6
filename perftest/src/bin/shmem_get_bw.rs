//! See [`Bench::GetBw`] and `docs/perftest.md`.

use std::process::ExitCode;

use oxshmem_perftest::bench::Bench;

fn main() -> ExitCode {
    oxshmem_perftest::main(Bench::GetBw)
}
