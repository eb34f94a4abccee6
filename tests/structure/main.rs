//! The structure of the sources: imports between files form no cycle, and no file is longer than
//! can be read.

mod imports;
mod lengths;
