//! A histogram whose bins are spread over all PEs. See `docs/applications.md`.

use std::process::ExitCode;

use clap::Parser;
use oxshmem_perftest::updates::{self, HistogramOptions};

fn main() -> ExitCode {
    updates::main(HistogramOptions::parse, HistogramOptions::plan)
}
