//! The tracer: one line for each command, doorbell, WQE and CQE, written where the options say.

use std::fmt::Arguments;
use std::io::Write;

/// Where trace lines go; nowhere unless switched on.
pub(super) struct Tracer {
    device: String,
    out: Option<Box<dyn Write + Send>>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("device", &self.device).field("on", &self.out.is_some()).finish()
    }
}

impl Tracer {
    pub(super) fn new(device: String, out: Option<Box<dyn Write + Send>>) -> Self {
        Self { device, out }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.out.is_some()
    }

    /// Writes one line. A writer that fails is dropped, with a log message.
    pub(super) fn line(&mut self, what: &str, text: Arguments<'_>) {
        let Some(out) = &mut self.out else { return };
        // One write per line, so that lines of several processes on one pipe stay whole.
        let line = format!("{} {what} {text}\n", self.device);
        if let Err(error) = out.write_all(line.as_bytes()) {
            tracing::warn!(%error, device = self.device, "the trace cannot be written and ends here");
            self.out = None;
        }
    }
}
