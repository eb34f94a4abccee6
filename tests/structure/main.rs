//! The structure of the sources: imports between files form no cycle, no file is longer than can be
//! read, programs of tests have tests, and kernels that are launched early wait.

mod early_kernels;
mod imports;
mod lengths;
mod metadata;
mod targets;
