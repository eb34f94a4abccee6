//! How a job is started.

use std::ffi::OsString;
use std::time::Duration;

/// What becomes of the PEs' output.
///
/// ```
/// use oxshmem::launch::{LaunchOptions, Output, run};
///
/// let mut options = LaunchOptions::new(2, "echo").args(["hello"]);
/// options.output = Output::Captured;
/// assert_eq!(run(&options)?.pes[1].stdout, b"hello\n");
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Passed on line by line, standard output to standard output and error to error, each line
    /// with `[PE k] ` before it.
    Prefixed,
    /// Passed on line by line as it is.
    Plain,
    /// Kept for [`PeOutcome`](super::PeOutcome), byte for byte.
    Captured,
}

/// How a job is started.
///
/// ```
/// use oxshmem::launch::{LaunchOptions, Output};
///
/// let options = LaunchOptions { output: Output::Plain, ..LaunchOptions::new(4, "target/release/ring") };
/// assert_eq!(options.npes, 4);
/// ```
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    /// Number of PEs.
    pub npes: u32,
    /// The program, a path or a name on `PATH`.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Plays that many nodes: consecutive PEs, as many for each as for the others where that is
    /// possible, have one name in `OXSHMEM_NODE`. With 0 the PEs are on the node that they are on.
    pub nodes: u32,
    /// Variables to set in the PEs, beside those of this process and those that tell a PE its
    /// place.
    pub env: Vec<(OsString, OsString)>,
    /// Longest time that the job may take.
    pub timeout: Option<Duration>,
    /// Time that PEs have to end by themselves after one has failed, and again after SIGTERM,
    /// before SIGKILL.
    pub grace: Duration,
    /// What becomes of their output.
    pub output: Output,
    /// Gives this process's standard input to PE 0; else it has none. The others never have.
    pub stdin: bool,
    /// Passes SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 on to the PEs for as long as
    /// the job runs, those excepted that this process ignores, as after `nohup`. They are blocked
    /// in the calling thread meanwhile; so this needs a process without other threads.
    pub forward_signals: bool,
}

impl LaunchOptions {
    /// Creates options for `npes` PEs of `program`, with prefixed output, no time limit, three
    /// seconds of grace, no input, and signals not forwarded.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// assert!(run(&LaunchOptions::new(2, "true"))?.is_success());
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn new(npes: u32, program: impl Into<OsString>) -> Self {
        Self {
            npes,
            program: program.into(),
            args: Vec::new(),
            nodes: 0,
            env: Vec::new(),
            timeout: None,
            grace: Duration::from_secs(3),
            output: Output::Prefixed,
            stdin: false,
            forward_signals: false,
        }
    }

    /// Adds arguments.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// let outcome = run(&LaunchOptions::new(2, "test").args(["1", "-eq", "2"]))?;
    /// assert_eq!(outcome.exit_code(), 1);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn args(mut self, args: impl IntoIterator<Item: Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable in the PEs.
    ///
    /// ```
    /// use oxshmem::launch::{LaunchOptions, run};
    ///
    /// let options = LaunchOptions::new(2, "sh").args(["-c", "test $OXSHMEM_TRANSPORT = ibgda"]);
    /// assert!(run(&options.env("OXSHMEM_TRANSPORT", "ibgda"))?.is_success());
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}
