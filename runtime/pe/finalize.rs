//! The end of a PE: in order, with an error, or by drop.

use std::sync::Arc;

use super::Pe;
use super::init::report;
use super::job_handle::JobHandle;
use super::parts::{ABORT_AT, REPORT_BYTES};
use crate::Result;
use crate::abi;
use crate::device::Wait;
use crate::host::operations::Operations;
use crate::profile::files;

/// Leaving the job.
impl Pe {
    /// Leaves the job in order: completes what is outstanding and waits until every PE does the
    /// same. Collective. A job can be joined again afterwards.
    ///
    /// # Errors
    /// Fails like [`synchronize`](Pe::synchronize), or because not every PE finalizes before the
    /// deadline, or because atomics that are not atomic with each other changed a word of this PE
    /// (`OXSHMEM_ATOMICS`; on the `cpu` device). This PE has left in any case.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// oxshmem::init()?.finalize()?;
    /// // The process may join a job again.
    /// oxshmem::init()?.finalize()
    /// # }
    /// ```
    pub fn finalize(self) -> Result<()> {
        // Work on other streams uses memory that is about to go.
        let ended = if self.others_work() { self.synchronize_device() } else { self.synchronize() };
        let quiet = ended
            .and_then(|()| self.quiet_all_aggregates())
            .and_then(|()| self.quiet_all_contexts())
            .and_then(|()| self.quiet());
        if let Err(reason) = files::write(&self) {
            report(format_args!("PE {}: {reason}", self.my_pe()));
        }
        if self.config.report_leaks() {
            self.report_leaks();
        }
        let mixed = self.mixed_words.as_ref().map_or(Ok(()), |mixed_words| mixed_words.check(&self.bootstrap));
        // No PE's memory goes away while another PE may still write to it.
        let together = self.bootstrap.barrier("finalize");
        let left = self.bootstrap.finalize();
        quiet?;
        together?;
        mixed?;
        Ok(left?)
    }

    /// Ends the job with an error at every other PE, whose message is `reason`.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// pe.abort("the input file is empty");
    /// assert!(pe.synchronize().unwrap_err().to_string().contains("the input file is empty"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(&self, reason: &str) {
        self.bootstrap.abort(reason);
    }

    /// Ends the job as [`abort`](Self::abort) does, and tells every PE the status that its process
    /// is to end with ([`exit_status`](Self::exit_status)). The call ends no process.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// pe.exit_job(3, "the input file is empty");
    /// assert_eq!(pe.exit_status(), Some(3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn exit_job(&self, status: i32, reason: &str) {
        self.bootstrap.exit(status, reason);
    }

    /// Returns the status that this process is to end with, if a PE has ended the job with
    /// one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// assert_eq!(pe.exit_status(), None);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn exit_status(&self) -> Option<i32> {
        self.bootstrap.failure()?.exit_status()
    }

    /// Returns a handle by which any thread ends the job, also while this PE's thread waits.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = oxshmem::init()?;
    /// let job = pe.job_handle();
    /// std::thread::spawn(move || {
    ///     // A supervisor that ends the job after a day.
    ///     std::thread::sleep(std::time::Duration::from_secs(86400));
    ///     job.abort("the day is over");
    /// });
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn job_handle(&self) -> JobHandle {
        JobHandle::new(Arc::downgrade(&self.bootstrap))
    }

    /// Lists the allocations that were not freed.
    fn report_leaks(&self) {
        let pe = self.my_pe();
        for allocation in self.allocations() {
            let unknown = if allocation.made_at.is_none() { ", made by a program in another language" } else { "" };
            report(format_args!("PE {pe}: not freed before finalize: {allocation}{unknown}"));
        }
    }

    /// Returns whether work that was not launched on the PE's own stream may use its memory.
    fn others_work(&self) -> bool {
        self.device.runs_elsewhere() || !self.loans.is_empty()
    }
}

impl Drop for Pe {
    fn drop(&mut self) {
        // Dumps read memory of the PE, which is about to go.
        self.watched.detach();
        // Kernels must not outlive the memory they use. After finalize none runs.
        let mut report = [0; REPORT_BYTES];
        let aborted = self.slab.write(self.parts.control, ABORT_AT, &abi::ABORT_JOB);
        self.aggregates.borrow_mut().stop();
        let stopped = aborted.and_then(|()| {
            let control = self.slab.address(self.parts.control);
            let wait = if self.others_work() { Wait::Everything } else { Wait::Own };
            // SAFETY: the slab holds the control block.
            unsafe { self.device.synchronize(wait, control, &mut report) }
        });
        if let Err(error) = stopped {
            tracing::warn!(%error, "a PE was dropped, and its kernels did not end in order");
        }
        // A stream that the program has dropped waits for its work when the board drops it, and the
        // waits of that work end once the abort word is set. Until then the board holds the stream,
        // so that the wait above includes it.
        self.scene().board.ended(Wait::Everything);
    }
}
