//! How a job ended.

use std::fmt;

use super::signals;

/// Exit status of a job that took longer than it was allowed.
///
/// ```
/// use std::time::Duration;
///
/// use oxshmem::launch::{LaunchOptions, TIMED_OUT, run};
///
/// let mut options = LaunchOptions::new(1, "sleep").args(["600"]);
/// options.timeout = Some(Duration::from_millis(10));
/// assert_eq!(run(&options)?.exit_code(), TIMED_OUT);
/// # Ok::<(), oxshmem::Error>(())
/// ```
pub const TIMED_OUT: u8 = 124;
/// Exit status of a launcher that failed itself, or that could not pass on what the PEs wrote.
///
/// ```
/// assert_eq!(oxshmem::launch::LAUNCHER_FAILED, 125);
/// ```
pub const LAUNCHER_FAILED: u8 = 125;

/// How a PE ended.
///
/// ```
/// use oxshmem::launch::{LaunchOptions, PeStatus, run};
///
/// let outcome = run(&LaunchOptions::new(1, "sh").args(["-c", "exit 3"]))?;
/// assert_eq!(outcome.pes[0].status, PeStatus::Exited(3));
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeStatus {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl PeStatus {
    /// Returns whether it is the status 0.
    ///
    /// ```
    /// use oxshmem::launch::PeStatus;
    ///
    /// assert!(PeStatus::Exited(0).is_success());
    /// ```
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Returns the status that a shell would show: 128 + n for signal n.
    ///
    /// ```
    /// use oxshmem::launch::PeStatus;
    ///
    /// assert_eq!(PeStatus::Killed(9).exit_code(), 137);
    /// ```
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Exited(status) => status.to_le_bytes()[0],
            Self::Killed(signal) => 128u8.wrapping_add(signal.to_le_bytes()[0]),
        }
    }
}

impl fmt::Display for PeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Killed(libc::SIGXFSZ) => {
                f.write_str("was killed by SIGXFSZ: a file or shared memory was to grow past the limit on the size of files; raise it (ulimit -f)")
            }
            Self::Killed(signal) => write!(f, "was killed by {}", signals::name(*signal)),
        }
    }
}

/// What became of one PE.
///
/// ```
/// use oxshmem::launch::{LaunchOptions, PeOutcome, run};
///
/// let outcome = run(&LaunchOptions::new(1, "true"))?;
/// let first: &PeOutcome = &outcome.pes[0];
/// assert!(first.status.is_success() && first.stdout.is_empty());
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeOutcome {
    /// How it ended.
    pub status: PeStatus,
    /// Its standard output, if captured.
    pub stdout: Vec<u8>,
    /// Its standard error, if captured.
    pub stderr: Vec<u8>,
}

/// What became of a job.
///
/// ```
/// use oxshmem::launch::{LaunchOptions, Outcome, run};
///
/// let outcome: Outcome = run(&LaunchOptions::new(2, "false"))?;
/// assert!(outcome.failed.is_some() && !outcome.timed_out);
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Every PE, by rank.
    pub pes: Vec<PeOutcome>,
    /// The PE that made the job fail: the one that died or aborted, if that is known, else the
    /// first that failed.
    pub failed: Option<u32>,
    /// The job was ended because its time was over.
    pub timed_out: bool,
    /// The signal that ended the job, where the launcher got one and passed it on to the PEs.
    pub interrupted: Option<i32>,
    /// Output of the PEs is lost, because the launcher could not write it.
    pub output_lost: bool,
    /// What the launcher had to say; with forwarded output it has said so on standard error.
    pub reports: Vec<String>,
}

impl Outcome {
    /// Returns whether every PE ended with status 0, in time.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// assert!(!run(&LaunchOptions::new(2, "false"))?.is_success());
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn is_success(&self) -> bool {
        self.exit_code() == 0
    }

    /// Returns the launcher's exit status: [`TIMED_OUT`], or that of the PE that made the job fail,
    /// 128 + n if signal n killed it; or [`LAUNCHER_FAILED`] where every PE ended well and their
    /// output is lost.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// let outcome = run(&LaunchOptions::new(1, "sh").args(["-c", "kill -9 $$"]))?;
    /// assert_eq!(outcome.exit_code(), 137);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn exit_code(&self) -> u8 {
        match self.failed {
            _ if self.timed_out => TIMED_OUT,
            Some(rank) => self.pes[rank as usize].status.exit_code(),
            None if self.output_lost => LAUNCHER_FAILED,
            None => 0,
        }
    }

    /// Returns 128 + n where signal n ended the job through the launcher, as a shell shows it.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// assert_eq!(run(&LaunchOptions::new(1, "true"))?.interrupt_code(), None);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn interrupt_code(&self) -> Option<u8> {
        self.interrupted.map(|signal| PeStatus::Killed(signal).exit_code())
    }
}
