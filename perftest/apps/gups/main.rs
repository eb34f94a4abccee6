//! Random access to a table that is spread over all PEs. See `docs/applications.md`.

use std::process::ExitCode;

use clap::Parser;
use oxshmem_perftest::updates::{self, GupsOptions};

fn main() -> ExitCode {
    updates::main(GupsOptions::parse, GupsOptions::plan)
}
