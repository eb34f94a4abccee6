//! Integration tests of OxSHMEM: conformance per device and transport, launch, faults.
//!
//! A PE is a process, so a conformance test is a job: [`Job`] starts the PEs of one case of `conformance-pe` and judges how they
//! ended. The cases themselves are in `tests/pe`, their kernels in `tests/kernels`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Duration;

use oxshmem::launch::{self, LaunchOptions, Outcome, Output, PeStatus};

/// How the PEs of a job reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Load and store.
    P2p,
    /// Work requests that device code posts.
    Ibgda,
    /// Work requests that a CPU proxy posts.
    Ibrc,
}

impl Transport {
    /// The value of `OXSHMEM_TRANSPORT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P2p => "p2p",
            Self::Ibgda => "ibgda",
            Self::Ibrc => "ibrc",
        }
    }
}

/// The status with which the case `probe` says that there is no such device or transport.
pub const ABSENT: i32 = 77;

/// Why a device or a transport is not to be had here, or `None` if it is.
///
/// # Panics
/// It is there, but does not work.
#[must_use]
pub fn absent(program: &str, device: &str, transport: Transport) -> Option<String> {
    let outcome = Job::new(program, "probe", 1).transport(transport).env("OXSHMEM_DEVICE", device).run();
    match outcome.pes[0].status {
        PeStatus::Exited(0) => None,
        PeStatus::Exited(ABSENT) => Some(stdout(&outcome, 0).trim().to_owned()),
        _ => panic!("{device} with {} does not work:\n{}", transport.name(), transcript(&outcome)),
    }
}

/// Longest time of one job; far above what any takes, so that a hang is a failure with the PEs' output.
const LIMIT: Duration = Duration::from_secs(150);

/// A job of `conformance-pe`: a case, its PEs and their environment.
#[derive(Debug)]
pub struct Job {
    case: String,
    options: LaunchOptions,
}

impl Job {
    /// `npes` PEs that run `case`; `program` is the path of `conformance-pe`. The heap grows in chunks of 1 MiB, so that most data
    /// crosses chunks.
    #[must_use]
    pub fn new(program: &str, case: &str, npes: u32) -> Self {
        let mut options = LaunchOptions::new(npes, program)
            .args([case])
            .env("OXSHMEM_HEAP_CHUNK", "1M")
            .env("OXSHMEM_HEAP_MAX", "256M");
        options.output = Output::Captured;
        options.timeout = Some(LIMIT);
        Self { case: case.to_owned(), options }
    }

    /// Chooses the path between PEs.
    #[must_use]
    pub fn transport(self, transport: Transport) -> Self {
        self.env("OXSHMEM_TRANSPORT", transport.name())
    }

    /// Sets a variable in the PEs; the last value of a name counts.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.options = self.options.env(name, value);
        self
    }

    /// Adds arguments for the case.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.options = self.options.args(args.iter().copied());
        self
    }

    /// Runs the job.
    ///
    /// # Panics
    /// It cannot be started, or does not end in time.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let outcome = match launch::run(&self.options) {
            Ok(outcome) => outcome,
            Err(error) => panic!("{}: {error}", self.case),
        };
        assert!(!outcome.timed_out, "{} did not end within {LIMIT:?}\n{}", self.case, transcript(&outcome));
        outcome
    }

    /// Runs the job and demands that every PE succeeds.
    ///
    /// # Panics
    /// A PE failed; its output, and that of the others, is in the message.
    pub fn passes(&self) -> Outcome {
        let outcome = self.run();
        assert!(outcome.is_success(), "{} failed with {:?}\n{}", self.case, self.options.env, transcript(&outcome));
        outcome
    }
}

/// Everything that the PEs of a job wrote, and how each ended.
#[must_use]
pub fn transcript(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (rank, pe) in outcome.pes.iter().enumerate() {
        let _ = writeln!(text, "--- PE {rank} {}", pe.status);
        for stream in [&pe.stdout, &pe.stderr] {
            text.push_str(&String::from_utf8_lossy(stream));
        }
    }
    outcome.reports.iter().for_each(|report| text.extend(["--- launcher: ", report, "\n"]));
    text
}

/// What PE `rank` wrote to its standard output.
#[must_use]
pub fn stdout(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8_lossy(&outcome.pes[rank].stdout).into_owned()
}
