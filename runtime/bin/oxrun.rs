//! Starts the PEs of an OxSHMEM job.
fn main() {}
