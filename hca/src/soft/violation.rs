//! Violations: what the strict checks of the software HCA find.

use crate::wire::cqe::Syndrome;
use std::fmt;

/// What a strict check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The QP, 0 if none could be told.
    pub qpn: u32,
    /// Block index of the WQE since the queue was reset, not cut to 16 bits.
    pub wqe_index: u64,
    /// The syndrome of the CQE, if one was written.
    pub syndrome: Option<Syndrome>,
    /// The field and what is wrong with it.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x} WQE {}: {}", self.qpn, self.wqe_index, self.message)?;
        match self.syndrome {
            Some(syndrome) => write!(f, " [{syndrome}]"),
            None => Ok(()),
        }
    }
}
