//! Waiting for a PE's device, and the errors that device code reports.

use std::time::{Duration, Instant};

use super::Pe;
use super::parts::{ABORT_AT, CLAIMED_AT, ERROR_AT, REPORT_BYTES};
use crate::abi::{self, ErrorRecord};
use crate::bootstrap::{BootstrapError, meeting_timeout};
use crate::device::cpu::{KernelError, KernelErrorKind};
use crate::device::{DeviceError, Stream, Wait, flush_printf};
use crate::dump::watcher;
use crate::fault::{DeviceFault, FaultKind};
use crate::profile::host::{Operation, Subject};
use crate::transport::Network;
use crate::{Error, Result};

/// How often streams are looked at that the PE waits for with a deadline.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Waiting.
impl Pe {
    /// Waits until everything that was put on streams through this PE has ended: kernels and
    /// operations. What went into a graph is left out.
    ///
    /// # Errors
    /// The PE's own stream is being captured. Otherwise the first that applies: the job has failed
    /// (a PE died, say); a kernel ended with an error; device code recorded one: a deadline that
    /// passed, an error completion, a call that was refused. The PE can go on unless the job has
    /// failed; a connection that the error names as lost stays lost. A kernel that makes a GPU
    /// fault (a bad address, say) loses the GPU's context, and everything but
    /// [`finalize`](Pe::finalize) then returns that error.
    ///
    /// A deadline or an error completion ends the waits on all streams of the PE, so each of those
    /// that had work at the time reports it. An error of device code that an earlier one in this
    /// list takes the place of is returned by the next wait.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (stream, cell) = (pe.create_stream()?, pe.alloc::<u64>(1)?);
    /// pe.on(&stream).signal(cell.signal(0).set(1), 99)?;
    /// let error = pe.synchronize().unwrap_err();
    /// assert!(error.to_string().contains("PE 99 does not exist"));
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn synchronize(&self) -> Result<()> {
        let mut streams = self.scene().board.streams();
        streams.retain(|stream| stream.key() != Stream::OWN.key());
        if streams.is_empty() {
            return self.wait(Wait::Own);
        }
        streams.push(Stream::OWN);
        self.wait(Wait::Launched(&streams))
    }

    /// Waits until everything on the device that this process started has ended, as
    /// `cudaDeviceSynchronize` does, and reports errors: for kernels that were launched by the CUDA
    /// runtime or driver. No stream may be capturing.
    ///
    /// # Errors
    /// Fails like [`synchronize`](Pe::synchronize).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// pe.synchronize_device()?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn synchronize_device(&self) -> Result<()> {
        self.wait(Wait::Everything)
    }

    /// Waits until the streams that have collectives of a team have ended what this PE has put
    /// there. Returns what has not ended by the deadline, in words, if anything has not. A graph
    /// that has collectives is not waited for.
    ///
    /// # Errors
    /// The job has failed.
    pub(crate) fn wait_for_team(&self, team: i32) -> Result<Option<String>> {
        let board = &self.scene().board;
        let mut left = board.streams_of_team(team);
        let _waiting = board.begins("waits for collectives of a team on streams");
        // The others wait for this PE in the meeting, and must not give up before it.
        let limit = self.config.timeout().min(meeting_timeout(&self.config) / 2);
        let start = Instant::now();
        loop {
            left.retain(|(stream, _)| self.device.has_ended(stream) == Some(false));
            let Some((stream, last)) = left.first() else { return Ok(None) };
            if start.elapsed() > limit {
                let name = stream.describe();
                return Ok(Some(format!(
                    "what it has put on {name} has not ended within {limit:?} (OXSHMEM_TIMEOUT, at most half of OXSHMEM_MEETING_TIMEOUT); the last is {last}"
                )));
            }
            self.check_job()?;
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits for everything on one stream.
    pub(crate) fn wait_stream(&self, stream: &Stream) -> Result<()> {
        self.wait(Wait::Stream(stream))
    }

    /// Waits for the PE's own stream.
    pub(crate) fn wait_own(&self) -> Result<()> {
        self.wait(Wait::Own)
    }

    /// Returns the failure of the job as an error, if it has failed as far as this PE knows. The
    /// dump of it is made before, since the program may end then.
    pub(crate) fn check_job(&self) -> Result<()> {
        self.bootstrap.failure().map_or(Ok(()), |failure| {
            self.watched.settle_failure();
            Err(BootstrapError::Failed(failure).into())
        })
    }

    pub(super) fn wait(&self, wait: Wait<'_>) -> Result<()> {
        let mut report = [0; REPORT_BYTES];
        let _call = self.profile.begins(Operation::Wait, Subject::Own, 0);
        let board = &self.scene().board;
        let _waiting = board.begins(match wait {
            Wait::Own => "waits for the PE's own stream",
            Wait::Stream(_) => "waits for a stream",
            Wait::Launched(_) => "waits for all streams with work",
            Wait::Everything => "waits for everything on the device",
        });
        // SAFETY: the slab holds the control block.
        let ended = unsafe { self.device.synchronize(wait, self.slab.address(self.parts.control), &mut report) };
        flush_printf();
        if let (Some(network), Ok(())) = (&self.network, &ended)
            && wait.includes_own()
            && !self.device.runs_elsewhere()
        {
            network.forget_idle(&self.state)?;
        }
        let fault = self.take_fault(&report)?;
        let mended = self.mend_teams(ended.as_ref().err());
        self.dump_deadline(fault.as_ref(), ended.as_ref().err());
        let goes_on = matches!(ended, Err(DeviceError::StillRunning { .. } | DeviceError::Capturing { .. }));
        if wait.includes_own() {
            self.own_is_late.set(goes_on);
        }
        // Work that goes on stays on the board, for later waits and for what frees memory.
        let earlier = if goes_on { None } else { board.ended(wait) };
        if let Some(fault) = fault.as_ref().filter(|fault| fault.ends_waits()) {
            board.failed(fault);
        }
        let passed = mended
            .and_then(|()| self.check_job())
            .and_then(|()| Ok(ended.map_err(|error| self.located(error))?))
            .and_then(|()| self.check_network());
        // An error of device code that another error takes the place of is the next wait's.
        let kept = self.unreported.take();
        if let Err(error) = passed {
            self.unreported.replace(kept.or(fault));
            return Err(error);
        }
        let (first, next) = if kept.is_some() { (kept, fault) } else { (fault, None) };
        self.unreported.replace(next);
        // What the board has is the copy of an error that another wait has returned, or returns.
        first.or(earlier).map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Leaves an error of device code to the next wait, because the call has another one to return.
    pub(crate) fn report_later(&self, error: Error) {
        if let Error::Fault(fault) = error {
            self.unreported.borrow_mut().get_or_insert(*fault);
        }
    }

    /// Ends the job if the network is dead.
    fn check_network(&self) -> Result<()> {
        let Some(error) = self.network.as_ref().and_then(Network::dead) else { return Ok(()) };
        // This PE reaches no other any more, and no other reaches it.
        self.bootstrap.abort(&format!("PE {}: {error}", self.bootstrap.rank()));
        Err(error.into())
    }

    /// Makes teams fit for further calls after a kernel was stopped in the middle, as soon as no
    /// other kernel runs. `ended`: how the wait has ended.
    fn mend_teams(&self, ended: Option<&DeviceError>) -> Result<()> {
        if matches!(ended, Some(DeviceError::Kernel(_))) {
            self.stopped.set(true);
        }
        let is_idle = || !self.device.runs_elsewhere() && self.device.has_ended(&Stream::OWN) == Some(true);
        if self.stopped.get() && is_idle() {
            self.stopped.set(false);
            self.parts.teams.forget_stopped_kernels(&self.slab)?;
        }
        Ok(())
    }

    /// Makes a dump if a wait of the device API, or the wait for a kernel, has reached its
    /// deadline, or if another PE's deadline has ended a collective. Where the job has failed, a
    /// dump is made of that.
    fn dump_deadline(&self, fault: Option<&DeviceFault>, ended: Option<&DeviceError>) {
        let me = self.peer(self.my_pe());
        let is_of_deadline = |kind: &FaultKind| match kind {
            FaultKind::Timeout { .. } => true,
            FaultKind::MemberLeft { awaited, .. } => awaited.is_some_and(|awaited| awaited != me),
            _ => false,
        };
        let fault = fault.filter(|fault| is_of_deadline(&fault.kind));
        let ended = ended.filter(|error| {
            matches!(error, DeviceError::StillRunning { .. })
                || matches!(error, DeviceError::Kernel(KernelError { kind: KernelErrorKind::Deadline { .. }, .. }))
        });
        let reason = fault.map(ToString::to_string).or_else(|| ended.map(ToString::to_string));
        if let Some(reason) = reason
            && self.bootstrap.failure().is_none()
            && self.scene().takes_deadline()
        {
            watcher::dump_now(self.scene(), &reason);
        }
    }

    /// Adds to a kernel's error what the heaps know of the address that it could not access.
    fn located(&self, mut error: DeviceError) -> DeviceError {
        if let DeviceError::Kernel(KernelError { kind: KernelErrorKind::BadAddress { address, note, .. }, .. }) =
            &mut error
        {
            let heap = self.heap.borrow();
            let (max, slot) = (heap.layout().max, heap.layout().my_slot as u64);
            let into = (*address as u64)
                .checked_sub(heap.base() - slot * max)
                .filter(|into| into / max < heap.layout().slots as u64);
            if let Some(into) = into
                && let Some(text) = heap.complaint(into % max)
            {
                let pe = self.plan.neighbours.first() as u64 + into / max;
                *note = format!("; in the heap of PE {pe}: {text}");
            }
        }
        error
    }

    /// Returns the error that device code recorded in the beginning of its control block, if there
    /// is one, and makes room for the next.
    fn take_fault(&self, report: &[u8; REPORT_BYTES]) -> Result<Option<DeviceFault>> {
        let claimed: u32 = bytemuck::pod_read_unaligned(&report[CLAIMED_AT..CLAIMED_AT + 4]);
        if claimed != abi::ERROR_VALID {
            // None, or one that a kernel on another stream is writing: the next look finds it.
            return Ok(None);
        }
        let record: ErrorRecord = bytemuck::pod_read_unaligned(&report[ERROR_AT..]);
        self.slab.write(self.parts.control, (CLAIMED_AT / 4) as u64, &0u32)?;
        if self.bootstrap.failure().is_none() {
            self.slab.write(self.parts.control, ABORT_AT, &0u32)?;
            // The job may have failed since it was asked, and its word must stay.
            if self.bootstrap.failure().is_some() {
                self.slab.write(self.parts.control, ABORT_AT, &abi::ABORT_JOB)?;
            }
        }
        let mut fault = DeviceFault::decode(&record, &self.state);
        self.parts.teams.forget_incomplete_grids(&self.slab)?;
        if let FaultKind::ExitRequested { status } = fault.kind {
            self.bootstrap.exit(status, &fault.to_string());
        }
        if let Some(network) = &self.network {
            network.explain(&mut fault);
        }
        fault.locate(|offset| self.heap.borrow().complaint(offset));
        Ok(Some(fault))
    }
}
