//! What `make compare-transports` runs; see [`oxshmem_perftest::transports`].

use std::process::ExitCode;

fn main() -> ExitCode {
    oxshmem_perftest::transports::main()
}
