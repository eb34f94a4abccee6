//! See [`oxshmem_perftest::collectives`] and `docs/perftest.md`.

use std::process::ExitCode;

use oxshmem_perftest::collectives::Program;

fn main() -> ExitCode {
    oxshmem_perftest::collectives::main(Program::Bandwidth)
}
