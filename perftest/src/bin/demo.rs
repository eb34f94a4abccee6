//! What `make demo` runs; see [`oxshmem_perftest::demo`].

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::demo::main()
}
