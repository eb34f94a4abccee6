//! How a job fails and is ended, whether its PEs are on this machine or on several: which PE is to
//! blame, what is said of it once, and the times that the PEs have until they are killed.

use std::io;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::outcome::PeStatus;
use super::signals;
use crate::bootstrap::{FailureKind, Hub, list};

/// How far the end of the job has come.
#[derive(Debug, Clone, Copy)]
enum Ending {
    No,
    /// PEs may still end by themselves, until then.
    Grace(Instant),
    /// They have got SIGTERM, and until then to follow it.
    Terminated(Instant),
    /// They have got SIGKILL.
    Killed,
}

/// A time that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// That of the whole job.
    Job,
    /// That which PEs had to end by themselves.
    Grace,
    /// That which they had after SIGTERM.
    Terminated,
}

/// What follows from a signal that the launcher got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heed {
    /// It is passed on.
    Pass,
    /// It is passed on, and the job is to end; with what is to be said.
    End(String),
    /// The PEs are killed, since it came again; with what is to be said.
    Kill(String),
}

/// The course of a job towards its end.
#[derive(Debug)]
pub(super) struct Course {
    grace: Duration,
    ending: Ending,
    /// The first PE that failed.
    failed: Option<u32>,
    pub timed_out: bool,
    pub interrupted: Option<i32>,
    /// Output is lost, which has been reported.
    pub output_lost: bool,
    /// The failure has been reported.
    pub reported: bool,
}

impl Course {
    /// Creates the state of a job that runs, whose PEs have this time to end by themselves and,
    /// again, after SIGTERM.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            ending: Ending::No,
            failed: None,
            timed_out: false,
            interrupted: None,
            output_lost: false,
            reported: false,
        }
    }

    /// Returns whether the end of the job came from outside.
    pub fn was_ended(&self) -> bool {
        self.timed_out || self.interrupted.is_some()
    }

    /// Returns whether the PEs have not been told to end.
    pub fn may_go_on(&self) -> bool {
        matches!(self.ending, Ending::No | Ending::Grace(_))
    }

    /// Returns which time has passed, of a job that has until `deadline`.
    pub fn due(&self, now: Instant, deadline: Option<Instant>) -> Option<Due> {
        match self.ending {
            Ending::No if deadline.is_some_and(|deadline| deadline <= now) => Some(Due::Job),
            Ending::Grace(until) if until <= now => Some(Due::Grace),
            Ending::Terminated(until) if until <= now => Some(Due::Terminated),
            _ => None,
        }
    }

    /// Returns when [`Course::due`] has something to say next.
    pub fn next(&self, deadline: Option<Instant>) -> Option<Instant> {
        match self.ending {
            Ending::No => deadline,
            Ending::Grace(until) | Ending::Terminated(until) => Some(until),
            Ending::Killed => None,
        }
    }

    /// Notes that the job is to end: the PEs have time to do so by themselves.
    pub fn begin_grace(&mut self) {
        if matches!(self.ending, Ending::No) {
            self.ending = Ending::Grace(Instant::now() + self.grace);
        }
    }

    /// Notes that the PEs have got SIGTERM, and the usual time, and `more`, to follow it.
    pub fn terminated(&mut self, more: Duration) {
        self.ending = Ending::Terminated(Instant::now() + self.grace + more);
    }

    /// Notes that the PEs have got SIGKILL.
    pub fn killed(&mut self) {
        self.ending = Ending::Killed;
    }

    /// Notes that a PE has ended.
    pub fn ended(&mut self, rank: u32, status: PeStatus) {
        if !status.is_success() && self.failed.is_none() {
            self.failed = Some(rank);
            self.begin_grace();
        }
    }

    /// Returns the PE that made the job fail, as far as is known. `status` is that of a PE that has
    /// ended.
    pub fn culprit(&self, hub: Option<&Hub>, status: impl Fn(u32) -> Option<PeStatus>) -> Option<u32> {
        let first = self.failed?;
        let named = hub
            .and_then(Hub::failure)
            .filter(|failure| matches!(failure.kind, FailureKind::Aborted | FailureKind::Lost))
            .and_then(|failure| failure.ranks.first().copied())
            .filter(|rank| status(*rank).is_none_or(|status| !status.is_success()));
        Some(named.unwrap_or(first))
    }

    /// Returns, once, which PE failed and how, when that is to be reported: once it is known how,
    /// or `now` what is known.
    pub fn verdict(
        &mut self,
        now: bool,
        hub: Option<&Hub>,
        status: impl Fn(u32) -> Option<PeStatus>,
    ) -> Option<(u32, PeStatus)> {
        let mut rank = self.culprit(hub, &status).filter(|_| !self.reported)?;
        if status(rank).is_none() {
            if !now {
                return None;
            }
            rank = self.failed.unwrap_or(rank);
        }
        let status = status(rank)?;
        self.reported = true;
        (!self.was_ended()).then_some((rank, status))
    }

    /// Returns, once, what is to be said of output that cannot be written. The PEs run on, and what
    /// they write from here on is dropped.
    pub fn lost_output(&mut self, stream: &str, why: &io::Error) -> Option<String> {
        (!std::mem::replace(&mut self.output_lost, true)).then(|| {
            format!(
                "standard {stream} cannot be written: {why}; what the PEs write to it is lost from here on. Make room, \
                 or write to another file, and run the job again"
            )
        })
    }

    /// Says that the time of the job is over, with the PEs that run.
    pub fn time_is_over(&mut self, limit: Duration, running: &[u32]) -> String {
        self.timed_out = true;
        let limit = limit.as_millis() as f64 / 1000.0;
        format!("the time of {limit} s is over and {} still running; ending the job", are(running))
    }

    /// Returns what follows from a signal.
    pub fn heed(&mut self, number: i32) -> Heed {
        if ![libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP].contains(&number) {
            return Heed::Pass;
        }
        let name = signals::name(number);
        if self.interrupted.is_some() {
            return Heed::Kill(format!("{name} again: killing the PEs"));
        }
        self.interrupted = Some(number);
        self.begin_grace();
        Heed::End(format!("{name} passed on to the PEs"))
    }
}

/// Returns `PE 3`, or `PEs 1 and 2`.
pub(super) fn pes(ranks: &[u32]) -> String {
    format!("{} {}", if ranks.len() == 1 { "PE" } else { "PEs" }, list(ranks))
}

/// Returns `PE 3 is`, or `PEs 1 and 2 are`.
pub(super) fn are(ranks: &[u32]) -> String {
    format!("{} {}", pes(ranks), if ranks.len() == 1 { "is" } else { "are" })
}

/// Signals a process that has not been waited for, with all that is in its group.
pub(super) fn signal_group(child: &Child, signal: Signal) {
    // Fails only when nothing is left in the group.
    let _ = rustix::process::kill_process_group(Pid::from_child(child), signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: PeStatus = PeStatus::Exited(3);

    #[test]
    fn the_first_pe_that_failed_is_reported_once() {
        let mut course = Course::new(Duration::ZERO);
        assert_eq!(course.verdict(true, None, |_| None), None);
        course.ended(1, PeStatus::Exited(0));
        assert!(course.may_go_on() && course.culprit(None, |_| None).is_none());
        course.ended(2, FAILED);
        course.ended(0, PeStatus::Killed(9));
        let status = |rank| (rank == 2).then_some(FAILED);
        assert_eq!(course.culprit(None, status), Some(2));
        assert_eq!(course.verdict(false, None, status), Some((2, FAILED)));
        assert_eq!(course.verdict(true, None, status), None);
    }

    #[test]
    fn an_end_from_outside_is_no_failure() {
        let mut course = Course::new(Duration::ZERO);
        assert_eq!(course.heed(libc::SIGUSR1), Heed::Pass);
        assert_eq!(course.heed(libc::SIGINT), Heed::End("SIGINT passed on to the PEs".into()));
        course.ended(0, PeStatus::Killed(2));
        assert_eq!(course.verdict(true, None, |_| Some(FAILED)), None);
        assert_eq!(course.heed(libc::SIGTERM), Heed::Kill("SIGTERM again: killing the PEs".into()));
    }

    #[test]
    fn times_pass_one_after_another() {
        let mut course = Course::new(Duration::ZERO);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        assert_eq!((course.due(now, Some(later)), course.next(Some(later))), (None, Some(later)));
        assert_eq!(course.due(later, Some(now)), Some(Due::Job));
        course.begin_grace();
        assert_eq!(course.due(later, None), Some(Due::Grace));
        course.terminated(Duration::from_secs(3600));
        assert_eq!(course.due(later, None), None);
        course.terminated(Duration::ZERO);
        assert_eq!(course.due(later, None), Some(Due::Terminated));
        course.killed();
        assert_eq!((course.due(later, Some(now)), course.next(Some(now))), (None, None));
    }

    #[test]
    fn output_that_is_lost_and_pes_that_run_are_said_in_words() {
        let mut course = Course::new(Duration::ZERO);
        let full = io::Error::other("disk full");
        assert!(course.lost_output("output", &full).is_some_and(|text| text.starts_with("standard output cannot be")));
        assert_eq!(course.lost_output("error", &full), None);
        let text = course.time_is_over(Duration::from_millis(1500), &[1]);
        assert_eq!(text, "the time of 1.5 s is over and PE 1 is still running; ending the job");
        assert_eq!((pes(&[1, 2]), are(&[1, 2])), ("PEs 1 and 2".into(), "PEs 1 and 2 are".into()));
    }
}
