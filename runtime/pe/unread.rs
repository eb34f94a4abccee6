//! Errors that a program has not requested yet.

use crate::device::Stream;
use crate::fault::DeviceFault;

/// A stream with work whose errors have not been reported yet.
#[derive(Debug)]
pub(super) struct Unread {
    pub stream: Stream,
    /// An error that another stream's `synchronize` found while this stream had work. It may have
    /// ended that work's waits too.
    pub fault: Option<DeviceFault>,
}
