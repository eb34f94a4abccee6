//! Probes that call into drivers' libraries run in a process of their own: a crash or a hang there
//! is a finding, not the end.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What comes before a fact on the output of the process; libraries may print there too.
const MARK: &str = "oxshmem-fact ";
/// How long a killed process may take to go; one that hangs in the kernel stays, and is not waited
/// for.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// How the process of a probe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Well.
    Done,
    /// Otherwise; what it said last.
    Died {
        /// `signal 11`, `exit status 101`.
        how: String,
        /// The last line on its stderr.
        said: String,
    },
    /// It was killed at its deadline.
    Deadline(Duration),
    /// It could not be started.
    NotStarted(String),
}

impl End {
    /// Returns what is wrong, if something is.
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Done => None,
            Self::Died { how, said } if said.is_empty() => Some(format!("the probe's process ended with {how}")),
            Self::Died { how, said } => Some(format!("the probe's process ended with {how}: {said}")),
            Self::Deadline(limit) => Some(format!("no answer after {} s", limit.as_secs_f64())),
            Self::NotStarted(reason) => Some(format!("the probe could not be started: {reason}")),
        }
    }
}

/// What a probe's process found before it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts<T> {
    /// In the order in which they were found.
    pub facts: Vec<T>,
    /// How it ended.
    pub end: End,
}

/// Says a fact, in the process of a probe.
pub fn tell(fact: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(fact) {
        println!("{MARK}{text}");
    }
}

/// A probe's process that runs.
#[derive(Debug)]
pub struct Guarded {
    begun: Instant,
    limit: Duration,
    started: Result<Running, String>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    out: mpsc::Receiver<String>,
    err: mpsc::Receiver<String>,
}

impl Guarded {
    /// Starts this program again, as the probe that `args` name.
    pub fn start(args: &[&str], limit: Duration) -> Self {
        let program = std::env::current_exe();
        let started = program.and_then(|program| {
            let mut command = Command::new(program);
            command.arg("probe").args(args).process_group(0);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            let (out, err) = (lines(child.stdout.take()), lines(child.stderr.take()));
            Ok(Running { child, out, err })
        });
        Self { begun: Instant::now(), limit, started: started.map_err(|error| error.to_string()) }
    }

    /// Waits for it, at most until its deadline.
    pub fn finish<T: DeserializeOwned>(self) -> Facts<T> {
        let Running { mut child, out, err } = match self.started {
            Ok(running) => running,
            Err(reason) => return Facts { facts: Vec::new(), end: End::NotStarted(reason) },
        };
        let deadline = self.begun + self.limit;
        let mut texts = Vec::new();
        // The process may have ended before what it wrote has been read; the pipes close with it.
        let late = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match out.recv_timeout(left) {
                Ok(line) => texts.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break false,
                Err(mpsc::RecvTimeoutError::Timeout) => break true,
            }
        };
        let status = wait(&mut child, if late { Instant::now() } else { deadline });
        let end = match status {
            Some(status) if !late => ended(status, &err),
            _ => {
                kill(&mut child);
                End::Deadline(self.limit)
            }
        };
        let facts = texts.iter().filter_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok()).collect();
        Facts { facts, end }
    }
}

fn lines(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(pipe) = pipe {
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
    receiver
}

fn ended(status: ExitStatus, err: &mpsc::Receiver<String>) -> End {
    if status.success() {
        return End::Done;
    }
    let how = match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit status {}", status.code().unwrap_or_default()),
    };
    let mut said: Vec<String> = Vec::new();
    while let Ok(line) = err.recv_timeout(LAST_WAIT) {
        said.push(line);
    }
    // What a panic says comes before advice about backtraces.
    let useful = |line: &&String| !line.trim().is_empty() && !line.starts_with("note: ") && !line.starts_with("  ");
    End::Died { how, said: said.iter().rfind(useful).cloned().unwrap_or_default() }
}

fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have gone by itself.
        let _ = kill_process_group(group, Signal::KILL);
    }
    wait(child, Instant::now() + LAST_WAIT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_say_what_is_wrong() {
        assert_eq!(End::Done.fault(), None);
        for (end, words) in [
            (End::Died { how: "signal 11".into(), said: String::new() }, "signal 11"),
            (End::Died { how: "exit status 101".into(), said: "Missing symbol cuInit".into() }, "cuInit"),
            (End::Deadline(Duration::from_millis(1500)), "no answer after 1.5 s"),
            (End::NotStarted("No such file".into()), "No such file"),
        ] {
            assert!(end.fault().is_some_and(|text| text.contains(words)), "{end:?}");
        }
    }
}
