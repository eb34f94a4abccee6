//! The process's one place for a PE.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// Only one PE may live in a process at a time: device code finds its state in a symbol of the
/// process.
static OCCUPIED: AtomicBool = AtomicBool::new(false);

/// The process's one place for a PE.
#[derive(Debug)]
pub(super) struct Occupied;

impl Occupied {
    pub fn claim() -> Result<Self> {
        if OCCUPIED.swap(true, Ordering::AcqRel) { Err(Error::Occupied) } else { Ok(Self) }
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        OCCUPIED.store(false, Ordering::Release);
    }
}
