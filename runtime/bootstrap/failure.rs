//! How a job fails: the failure that every PE gets, and where a PE keeps it.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::text::cut;

/// What kind of thing made a job fail.
///
/// ```
/// use oxshmem::bootstrap::FailureKind;
///
/// assert_ne!(FailureKind::Lost, FailureKind::Aborted);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureKind {
    /// A PE called [`Bootstrap::abort`](super::Bootstrap::abort), or dropped its
    /// [`Bootstrap`](super::Bootstrap) without finalize.
    Aborted = 0,
    /// A PE's process or connection is gone.
    Lost = 1,
    /// Ranks did not arrive before a deadline.
    Missing = 2,
    /// PEs called different things.
    Mismatch = 3,
    /// The hub is gone or does not answer.
    Hub = 4,
}

impl FailureKind {
    pub(super) fn from_wire(number: u8) -> Option<Self> {
        [Self::Aborted, Self::Lost, Self::Missing, Self::Mismatch, Self::Hub]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// Why a job failed.
///
/// ```
/// use oxshmem::bootstrap::BootstrapError;
/// use oxshmem::Error;
///
/// # fn main() -> oxshmem::Result<()> {
/// let pe = oxshmem::init()?;
/// pe.abort("no input");
/// let Err(Error::Bootstrap(BootstrapError::Failed(failure))) = pe.synchronize() else { panic!() };
/// assert_eq!((failure.ranks.as_slice(), failure.to_string()), (&[0][..], failure.message.clone()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// The ranks at fault; empty when it is no particular rank's.
    pub ranks: Vec<u32>,
    /// The whole story in one line.
    pub message: String,
    pub(super) status: Option<i32>,
}

impl Failure {
    /// Returns a failure without a status.
    pub(super) fn new(kind: FailureKind, ranks: Vec<u32>, message: String) -> Self {
        Self { kind, ranks, message, status: None }
    }

    /// Returns the status that every process of the job ends with, if a PE has ended the job with
    /// one ([`Pe::exit_job`](crate::Pe::exit_job)).
    ///
    /// ```
    /// use oxshmem::bootstrap::BootstrapError;
    /// use oxshmem::Error;
    ///
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// pe.exit_job(3, "no input");
    /// let Err(Error::Bootstrap(BootstrapError::Failed(failure))) = pe.synchronize() else { panic!() };
    /// assert_eq!(failure.exit_status(), Some(3));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn exit_status(&self) -> Option<i32> {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Called when the job fails, from the thread that notices it; see
/// [`Bootstrap::on_failure`](super::Bootstrap::on_failure).
#[doc(hidden)]
pub type FailureCallback = Box<dyn Fn(&Failure) + Send + Sync>;

/// Returns the failure of a job that a PE ends, maybe with a status for every process.
pub(super) fn aborted(rank: u32, status: Option<i32>, reason: &str) -> Failure {
    // Shorter than the wire's limit for texts, so that the sentence around it fits too.
    let reason = cut(reason, 900);
    let said = status.map_or_else(String::new, |status| format!("exit status {status}: "));
    let message = format!("PE {rank} aborted the job: {said}{reason}");
    Failure { status, ..Failure::new(FailureKind::Aborted, vec![rank], message) }
}

/// The first failure, and the subscribers to it.
#[derive(Default)]
pub(super) struct FailureCell(Mutex<FailureState>);

#[derive(Default)]
struct FailureState {
    failure: Option<Failure>,
    callback: Option<FailureCallback>,
}

impl fmt::Debug for FailureCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailureCell").field(&self.get()).finish()
    }
}

impl FailureCell {
    pub(super) fn get(&self) -> Option<Failure> {
        lock(&self.0).failure.clone()
    }

    /// Keeps `failure` unless there is one, and calls the callback the first time, with no lock
    /// held.
    pub(super) fn set(&self, failure: Failure) {
        let mut state = lock(&self.0);
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(failure.clone());
        let callback = state.callback.take();
        drop(state);
        if let Some(callback) = callback {
            callback(&failure);
        }
    }

    pub(super) fn on_failure(&self, callback: FailureCallback) {
        let mut state = lock(&self.0);
        match state.failure.clone() {
            None => state.callback = Some(callback),
            Some(failure) => {
                drop(state);
                callback(&failure);
            }
        }
    }
}

/// Locks, even after a panic of another holder: what these locks guard is consistent between any
/// two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_no_status() {
        for status in [0, 7, 255, -1, i32::MIN] {
            let failure = aborted(3, Some(status), "exit status 9: it: says");
            assert_eq!(failure.exit_status(), Some(status));
            assert_eq!(failure.message, format!("PE 3 aborted the job: exit status {status}: exit status 9: it: says"));
        }
        for reason in ["enough", "exit status 0: child ended early", "it said exit status 3: no"] {
            assert_eq!(aborted(0, None, reason).exit_status(), None, "{reason}");
        }
    }
}
