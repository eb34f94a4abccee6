//! Integration tests of OxSHMEM: conformance per device and transport, launch, faults.
//!
//! A PE is a process, so a conformance test is a job: [`Job`] starts the PEs of one case of
//! `conformance-pe` and judges how they ended. The cases themselves are in `tests/pe`, their
//! kernels in `tests/kernels`.

pub mod costs;
pub mod covering;
pub mod exchange;
pub mod levels;
pub mod mirror;
pub mod set_up;
mod suite;

/// The Rust of pages in `docs/`, which `cargo test --doc` compiles and runs.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../docs/rust-api.md")]
    mod rust_api {}
    #[doc = include_str!("../../docs/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../../docs/cluster.md")]
    mod cluster {}
    #[doc = include_str!("../../docs/contexts.md")]
    mod contexts {}
    #[doc = include_str!("../../docs/profiling.md")]
    mod profiling {}
}

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oxshmem::launch::{self, LaunchOptions, Outcome, Output, PeStatus};

/// How the PEs of a job reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Load and store where that is possible, the network otherwise.
    Auto,
    /// Load and store.
    P2p,
    /// Work requests that device code posts.
    Ibgda,
    /// Work requests that a CPU proxy posts.
    Ibrc,
}

impl Transport {
    /// Returns the value of `OXSHMEM_TRANSPORT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::P2p => "p2p",
            Self::Ibgda => "ibgda",
            Self::Ibrc => "ibrc",
        }
    }
}

/// What runs the kernels of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The SIMT executor.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
}

impl Device {
    /// Returns the value of `OXSHMEM_DEVICE`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// The variable with the folder of the programs that tests start, for tests that run on a machine
/// where they were not built.
pub const PROGRAMS: &str = "CONFORMANCE_PROGRAMS";

/// The environment variable that has PEs run few cases of a long list: as many as it takes to see
/// every feature.
pub const THINNED: &str = "CONFORMANCE_THINNED";

/// The variable with the command that starts the programs that tests start, where this machine does
/// not run them by itself: an emulator with its arguments, separated by spaces.
pub const RUNNER: &str = "CONFORMANCE_RUNNER";

/// Returns where the program is that cargo built at `built`: there, or in the folder that
/// [`PROGRAMS`] names.
#[must_use]
pub fn program(built: &str) -> PathBuf {
    match (std::env::var_os(PROGRAMS), Path::new(built).file_name()) {
        (Some(folder), Some(name)) => Path::new(&folder).join(name),
        _ => built.into(),
    }
}

/// Returns the folder for files of tests that cargo made at `built`: there, or one of the system's
/// for temporary files where [`PROGRAMS`] is set.
#[must_use]
pub fn scratch(built: &str) -> PathBuf {
    match std::env::var_os(PROGRAMS) {
        Some(_) => std::env::temp_dir().join(format!("oxshmem-tests-{}", rustix::process::getuid().as_raw())),
        None => built.into(),
    }
}

/// One test for each of the devices named, as in `on_devices!([cpu cuda] job)`: what the function
/// `job` makes passes there, or is skipped with the reason if there is no such device, or none with
/// the job's transport.
#[macro_export]
macro_rules! on_devices {
    ([$($device:ident)+] $job:ident) => {
        $($crate::on_devices!($device $job);)+
    };
    (cpu $job:ident) => {
        #[test]
        fn cpu() {
            $job().on($crate::Device::Cpu).passes();
        }
    };
    (cuda $job:ident) => {
        #[test]
        fn cuda() {
            $job().on($crate::Device::Cuda).passes_or_is_skipped();
        }
    };
}

/// Tests that are jobs: after the function that makes a job of a case and a number of PEs, and the
/// devices, each `name: case and arguments, transport, PEs` and variables. Job `x` is the tests
/// `x::cpu` and `x::cuda`, or one of them; see [`on_devices`].
#[macro_export]
macro_rules! jobs {
    ($make:path; $devices:tt $($name:ident: $case:literal $($arg:literal)*, $transport:ident, $npes:literal $(, $variable:literal = $value:literal)*;)*) => {
        $(
            mod $name {
                use super::*;

                fn job() -> $crate::Job {
                    let job = $make($case, $npes).args(&[$($arg),*]).transport($crate::Transport::$transport);
                    job$(.env($variable, $value))*
                }
                $crate::on_devices!($devices job);
            }
        )*
    };
}

fn runner() -> String {
    std::env::var(RUNNER).unwrap_or_default()
}

/// Returns whether another program, such as an emulator, runs the PEs.
#[must_use]
pub fn has_runner() -> bool {
    !runner().trim().is_empty()
}

/// The status with which the case `probe` says that there is no such device or transport.
pub const ABSENT: i32 = 77;

/// Returns why a device or a transport is not available here, or `None` if it is.
///
/// # Panics
/// It is there, but does not work.
#[must_use]
pub fn absent(program: &str, device: Device, transport: Transport) -> Option<String> {
    static KNOWN: Mutex<Vec<(Device, Transport, Option<String>)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, reason)) = known.iter().find(|(d, t, _)| (*d, *t) == (device, transport)) {
        return reason.clone();
    }
    // A PE needs no network to reach itself.
    let outcome = Job::new(program, "probe", 2).transport(transport).on(device).run();
    let reason = match outcome.pes.iter().position(|pe| pe.status == PeStatus::Exited(ABSENT)) {
        Some(rank) => Some(stdout(&outcome, rank).trim().to_owned()),
        None if outcome.is_success() => None,
        None => panic!("{} with {} does not work:\n{}", device.name(), transport.name(), transcript(&outcome)),
    };
    known.push((device, transport, reason.clone()));
    reason
}

/// Longest time of one job; far above what any takes, so that a hang is a failure with the PEs'
/// output.
const LIMIT: Duration = Duration::from_secs(150);

/// A job of `conformance-pe`: a case, its PEs and their environment.
#[derive(Debug)]
pub struct Job {
    program: String,
    case: String,
    device: Device,
    transport: Transport,
    options: LaunchOptions,
}

impl Job {
    /// Creates a job of `npes` PEs that run `case`; `program` is the path of `conformance-pe`. The
    /// heap grows in chunks of 1 MiB, so that most data crosses chunks.
    #[must_use]
    pub fn new(program: &str, case: &str, npes: u32) -> Self {
        let mut options = LaunchOptions::new(npes, crate::program(program))
            .args([case])
            .env("OXSHMEM_HEAP_CHUNK", "1M")
            .env("OXSHMEM_HEAP_MAX", "256M");
        options.output = Output::Captured;
        options.timeout = Some(LIMIT);
        Self {
            program: program.to_owned(),
            case: case.to_owned(),
            device: Device::Cpu,
            transport: Transport::P2p,
            options,
        }
        .through_runner()
    }

    fn through_runner(self) -> Self {
        let runner = runner();
        let words: Vec<&str> = runner.split_whitespace().collect();
        if words.is_empty() { self } else { self.through(&words) }
    }

    /// Returns how long PEs may take to end when another has died; the launcher's three seconds
    /// unless set.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Chooses the device; without this, the `cpu` device.
    #[must_use]
    pub fn on(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Chooses the path between PEs; without this, load and store.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets a variable in the PEs; the last value of a name counts.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.options = self.options.env(name, value);
        self
    }

    /// Has the PEs run few cases of a long list; see [`THINNED`].
    #[must_use]
    pub fn thinned(self) -> Self {
        self.env(THINNED, "1")
    }

    /// Plays that many nodes, which reach each other over the network alone.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.options.nodes = nodes;
        self
    }

    /// Has a command start the program: it gets the program and its arguments after its own.
    #[must_use]
    pub fn through(mut self, command: &[&str]) -> Self {
        let (first, rest) = command.split_first().expect("a command has a program");
        let program = std::mem::replace(&mut self.options.program, OsString::from(first));
        let own = rest.iter().map(OsString::from).chain([program]);
        self.options.args = own.chain(std::mem::take(&mut self.options.args)).collect();
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
        let options = self.options.clone();
        let options = options.env("OXSHMEM_DEVICE", self.device.name()).env("OXSHMEM_TRANSPORT", self.transport.name());
        let outcome = match launch::run(&options) {
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
        assert!(
            outcome.is_success(),
            "{} failed on {} over {} with {:?}\n{}",
            self.case,
            self.device.name(),
            self.transport.name(),
            self.options.env,
            transcript(&outcome)
        );
        outcome
    }

    /// Returns whether the device and the transport are there; if not, says why.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        match absent(&self.program, self.device, self.transport) {
            Some(reason) => {
                println!("skipped: {reason}");
                false
            }
            None => true,
        }
    }

    /// Does the same as [`passes`](Self::passes), if the device and the transport are there. Shows
    /// what PE 0 printed: a case says there what it left out.
    pub fn passes_or_is_skipped(&self) {
        if self.is_possible() {
            print!("{}", stdout(&self.passes(), 0));
        }
    }
}

/// Checks that a word that GPUs and cards change at the same time is reported on the `cpu` device,
/// with its place and the PEs, by jobs that `make` makes of a case and a number of PEs.
///
/// # Panics
/// It is not.
pub fn mixed_words_are_found(make: impl Fn(&str, u32) -> Job) {
    let found = |transport, pes: &str| {
        let job = make("mixed_words", 3).args(&["found"]).transport(transport).env("OXSHMEM_ATOMICS", "gpu");
        let text = stdout(&job.env("OXSHMEM_P2P_FAULTS", "0-1").passes(), 0);
        assert!(text.contains(pes) && text.contains("with OXSHMEM_ATOMICS=gpu these are not atomic"), "{text}");
    };
    found(Transport::Auto, "was changed by atomics of GPUs (PEs 0, 2) and of cards (PE 1) with no barrier of all PEs");
    // No PE but the one itself loads and stores there.
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        found(transport, "was changed by atomics of GPUs (PE 0) and of cards (PEs 1, 2) with no barrier of all PEs");
    }
}

/// Checks that a job with near and far peers logs once what does atomics there, and that this is
/// `text`.
///
/// # Panics
/// It does not.
pub fn mode_is_logged_once(make: impl Fn(&str, u32) -> Job, mode: &str, text: &str) {
    let job = make("hca_report", 3).transport(Transport::Auto).env("OXSHMEM_P2P_FAULTS", "0-1");
    let all = transcript(&job.env("OXSHMEM_ATOMICS", mode).env("OXSHMEM_LOG", "info").passes());
    let lines: Vec<&str> = all.lines().filter(|line| line.contains("(OXSHMEM_ATOMICS=")).collect();
    let logged: Vec<&&str> = lines.iter().filter(|line| !line.starts_with("attempt ")).collect();
    assert!(logged.len() == 1 && logged[0].contains(&format!("atomics: {text}")), "{mode}: {lines:?}");
}

/// Returns everything that the PEs of a job wrote, and how each ended.
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

/// Returns what PE `rank` wrote to its standard output.
#[must_use]
pub fn stdout(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8_lossy(&outcome.pes[rank].stdout).into_owned()
}
