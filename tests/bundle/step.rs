//! One program that is run, with a time limit and a log.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process_group};

/// The list of steps, among their logs.
const STEPS: &str = "steps.log";

/// Where programs are, where logs go, and how long a program may take.
#[derive(Debug)]
pub struct Runner {
    /// The bundle's folder.
    pub bundle: PathBuf,
    /// Results and logs.
    pub out: PathBuf,
    limit: Duration,
    /// When the run began.
    begun: SystemTime,
}

/// A program, its arguments and its environment.
#[derive(Debug, Clone)]
pub struct Step {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
    limit: Option<Duration>,
}

impl fmt::Display for Step {
    /// Returns it as a shell takes it, as long as nothing has to be quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", value.to_string_lossy())?;
        }
        write!(f, "{}", self.program.display())?;
        self.args.iter().try_for_each(|argument| write!(f, " {}", argument.to_string_lossy()))
    }
}

/// How a step ended.
#[derive(Debug)]
pub struct Ended {
    /// Whether it ended well and in time.
    pub good: bool,
    /// What is wrong if not: its status, or the limit.
    pub how: String,
    /// Its exit status, if it had one.
    pub status: Option<i32>,
    /// What it wrote, to both streams.
    pub text: String,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Step {
    /// `name` is unique in a run: it names the log.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), program: program.into(), args: Vec::new(), env: Vec::new(), limit: None }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Sets how long it may take, if that is longer than the runner's limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl Runner {
    /// Takes the folder of this program as the bundle's, and makes the folder for results.
    pub fn new(out: &Path, limit: Duration) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path is unknown: {error}"))?;
        let bundle = program.parent().unwrap_or(Path::new("/")).to_owned();
        let failed = |error: std::io::Error| format!("{}: {error}", out.display());
        std::fs::create_dir_all(out).map_err(failed)?;
        let out = out.canonicalize().map_err(failed)?;
        // The results of this run alone.
        File::create(out.join(STEPS)).map_err(failed)?;
        Ok(Self { bundle, out, limit, begun: SystemTime::now() })
    }

    /// Returns a program of the bundle, or one that was built beside this, if it is there.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        [self.bundle.join("bin").join(name), self.bundle.join(name)].into_iter().find(|path| path.is_file())
    }

    /// Runs a step to its end, or to the limit: then it and what it has started are killed.
    pub fn run(&self, step: &Step) -> Ended {
        let begin = Instant::now();
        let log = self.out.join(format!("{}.log", step.name));
        let limit = step.limit.unwrap_or_default().max(self.limit);
        let (status, how) = match self.start(step, &log).and_then(|child| wait(child, begin, limit)) {
            Ok(Some(status)) => (status.code(), describe(status)),
            Ok(None) => (None, format!("killed after its limit of {} s", limit.as_secs())),
            Err(error) => (None, format!("{}: {error}", step.program.display())),
        };
        // A log that cannot be read is empty: `how` tells what went wrong.
        let text = std::fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let seconds = begin.elapsed().as_secs_f64();
        if let Ok(mut steps) = File::options().append(true).open(self.out.join(STEPS)) {
            // For people; what counts is in the report.
            let _ = writeln!(steps, "{}: {how}, {seconds:.1} s: {step}", step.name);
        }
        Ended { good: status == Some(0), how, status, text, seconds }
    }

    /// Names of the files in the folder of results that were written in this run, in order. A
    /// second is left for file systems that keep no parts of it.
    pub fn written(&self) -> std::io::Result<Vec<OsString>> {
        let since = self.begun - Duration::from_secs(1);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.out)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_file() && about.modified()? >= since {
                names.push(entry.file_name());
            }
        }
        names.sort();
        Ok(names)
    }

    fn start(&self, step: &Step, log: &Path) -> std::io::Result<Child> {
        let output = File::create(log)?;
        let mut command = Command::new(&step.program);
        command.args(&step.args).envs(step.env.iter().map(|(name, value)| (name, value)));
        command.env(oxshmem_tests::PROGRAMS, self.bundle.join("bin")).process_group(0);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()
    }
}

/// Waits for a program; at the limit it and what it has started are killed.
fn wait(mut child: Child, begin: Instant, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() >= limit {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                kill_process_group(group, Signal::KILL)?;
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("ended by signal {}", signal.unwrap_or(0)),
    }
}
