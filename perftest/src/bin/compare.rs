//! Side by side with NVSHMEM; see docs/notes/figures.md.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::compare::main()
}
