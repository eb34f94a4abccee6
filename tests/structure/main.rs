//! The structure of the sources: imports between files form no cycle, no file is longer than can be
//! read, and programs of tests have tests.

mod imports;
mod lengths;
mod metadata;
mod targets;
