//! How far the process's PE is.

use std::sync::atomic::{AtomicI32, Ordering};

/// How far the PE is, as `oxshmem_stage` returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Stage {
    /// There is no PE.
    Absent = 0,
    /// It has joined the job, and has no device yet.
    Joined = 1,
    /// It has its device.
    Open = 2,
}

/// A copy that a call can return without waiting for other calls.
static STAGE: AtomicI32 = AtomicI32::new(Stage::Absent as i32);

pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Acquire) {
        1 => Stage::Joined,
        2 => Stage::Open,
        _ => Stage::Absent,
    }
}

pub(crate) fn set_stage(stage: Stage) {
    STAGE.store(stage as i32, Ordering::Release);
}
