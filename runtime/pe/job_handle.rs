//! A handle by which any thread ends the job of a PE.

use std::sync::Weak;

use crate::bootstrap::Bootstrap;

/// Ends the job of a PE from any thread, also while the PE's own thread waits in a call. Made by
/// [`Pe::job_handle`](crate::Pe::job_handle) and [`Joined::job_handle`](crate::Joined::job_handle).
///
/// # Threads and drop
/// `Send` and `Sync`. It keeps nothing: after the end of the PE its calls do nothing. Dropping it
/// does nothing.
///
/// ```
/// use oxshmem::{Compare, Operations};
/// # fn main() -> oxshmem::Result<()> {
/// let pe = oxshmem::init()?;
/// let never = pe.alloc::<u64>(1)?;
/// let job: oxshmem::JobHandle = pe.job_handle();
/// let thread = std::thread::spawn(move || job.abort("interrupted"));
/// let error = pe.signal_wait_until(never.signal(0), Compare::Eq, 1).unwrap_err();
/// assert!(error.to_string().contains("interrupted"));
/// # thread.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct JobHandle(Weak<Bootstrap>);

impl JobHandle {
    pub(super) fn new(bootstrap: Weak<Bootstrap>) -> Self {
        Self(bootstrap)
    }

    /// Ends the job as [`Pe::abort`](crate::Pe::abort) does.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// pe.job_handle().abort("the input file is empty");
    /// assert!(pe.synchronize().unwrap_err().to_string().contains("the input file is empty"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(&self, reason: &str) {
        if let Some(bootstrap) = self.0.upgrade() {
            bootstrap.abort(reason);
        }
    }

    /// Ends the job as [`Pe::exit_job`](crate::Pe::exit_job) does.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// pe.job_handle().exit_job(3, "the input file is empty");
    /// assert_eq!(pe.exit_status(), Some(3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn exit_job(&self, status: i32, reason: &str) {
        if let Some(bootstrap) = self.0.upgrade() {
            bootstrap.exit(status, reason);
        }
    }

    /// Returns what [`Pe::exit_status`](crate::Pe::exit_status) returns; `None` after the end of
    /// the PE.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// let job = pe.job_handle();
    /// pe.exit_job(3, "the input file is empty");
    /// assert_eq!(job.exit_status(), Some(3));
    /// drop(pe);
    /// assert_eq!(job.exit_status(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn exit_status(&self) -> Option<i32> {
        self.0.upgrade()?.failure()?.exit_status()
    }
}
