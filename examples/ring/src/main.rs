//! A ring of PEs: the smallest crate that uses OxSHMEM.

fn main() {}
