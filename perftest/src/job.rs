//! Starting the PEs of a test, and what of theirs reaches the user: the table once, and the error
//! of the PE that failed.
//!
//! The launcher runs in the process that the user started, and each PE's output goes straight to
//! that process's own, so that progress bars find their terminal. PEs report how they failed
//! through the pipe that the launcher has given them as standard error; it keeps that text by rank,
//! and so an error that all PEs have is shown once.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::ExitCode;

use oxshmem::launch::{self, LaunchOptions, Outcome, Output};

use crate::error::{CLOSED, Error};

/// Tells a PE which descriptors are the user's standard output and error.
const TERMINAL: &str = "SHMEM_PERFTEST_OUTPUT";

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::System { what, source: errno.into() }
}

/// Runs this program again, with the same arguments, as the PEs of a job.
///
/// # Errors
/// The job could not be started.
pub fn start(name: &str, npes: u32) -> Result<ExitCode, Error> {
    // Duplicates that stay open in the PEs.
    let out = rustix::io::dup(rustix::stdio::stdout()).map_err(system("duplicating standard output"))?;
    let err = rustix::io::dup(rustix::stdio::stderr()).map_err(system("duplicating standard error"))?;
    let options = LaunchOptions {
        output: Output::Captured,
        forward_signals: true,
        ..LaunchOptions::new(npes, this_program()?)
            .args(std::env::args_os().skip(1))
            .env(TERMINAL, format!("{},{}", out.as_raw_fd(), err.as_raw_fd()))
    };
    let outcome = launch::run(&options)?;
    // A PE whose output has no reader any more has ended as its user wants it.
    if outcome.exit_code() != CLOSED {
        for line in complaints(&outcome) {
            eprintln!("{name}: {line}");
        }
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Returns the path of the program that runs.
///
/// # Errors
/// The system does not say.
pub fn this_program() -> Result<std::path::PathBuf, Error> {
    std::env::current_exe().map_err(|source| Error::System { what: "finding the path of this program", source })
}

/// Returns what to tell about a job that failed: what each PE said, once where several said the
/// same, or what the launcher noticed if no PE said anything.
pub fn complaints(outcome: &Outcome) -> Vec<String> {
    if outcome.is_success() {
        return Vec::new();
    }
    let mut told: Vec<(Vec<usize>, String)> = Vec::new();
    for (rank, pe) in outcome.pes.iter().enumerate() {
        let text = String::from_utf8_lossy(&pe.stderr).trim().to_owned();
        if text.is_empty() {
            continue;
        }
        match told.iter_mut().find(|(_, same)| *same == text) {
            Some((ranks, _)) => ranks.push(rank),
            None => told.push((vec![rank], text)),
        }
    }
    if told.is_empty() {
        return outcome.reports.clone();
    }
    told.into_iter()
        .map(|(ranks, text)| match ranks.as_slice() {
            ranks if ranks.len() == outcome.pes.len() => text,
            ranks => {
                let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
                format!("PE {}: {text}", list.join(", "))
            }
        })
        .collect()
}

/// Where a PE reports how it failed.
#[derive(Debug)]
pub struct Complaint(Option<File>);

impl Complaint {
    /// Gives a PE the user's own standard output and error. A PE that another launcher has started
    /// keeps what it has.
    ///
    /// # Errors
    /// The descriptors are not what the starting process said they are.
    pub fn attach() -> Result<Self, Error> {
        let Ok(numbers) = std::env::var(TERMINAL) else { return Ok(Self(None)) };
        let mut descriptors = numbers.split(',').map(str::parse::<i32>);
        let (Some(Ok(out)), Some(Ok(err)), None) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
            return Err(Error::Usage(format!(
                "{TERMINAL}={numbers}: this variable is set by the tests themselves; unset it"
            )));
        };
        let keep =
            rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).map_err(system("keeping standard error"))?;
        for (descriptor, is_out) in [(out, true), (err, false)] {
            // SAFETY: the starting process left it open for this process; nothing here closes it.
            // If it is not open, that is an error below.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let attached =
                if is_out { rustix::stdio::dup2_stdout(descriptor) } else { rustix::stdio::dup2_stderr(descriptor) };
            attached.map_err(system("taking over standard output"))?;
        }
        Ok(Self(Some(File::from(keep))))
    }

    /// Tells how this PE failed.
    pub fn file(mut self, name: &str, error: &Error) {
        match &mut self.0 {
            // The starting process reports what made a job fail; what only followed from it stays
            // untold.
            Some(_) if error.is_consequence() || matches!(error, Error::Closed) => {}
            Some(pipe) => {
                // There is no one left to report a failure to.
                let _ = writeln!(pipe, "{error}");
            }
            None if matches!(error, Error::Closed) => {}
            None => match std::env::var("OXSHMEM_RANK") {
                Ok(rank) => eprintln!("{name}: PE {rank}: {error}"),
                Err(_) => eprintln!("{name}: {error}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxshmem::launch::{PeOutcome, PeStatus};

    fn outcome(stderr: &[&str]) -> Outcome {
        let pe = |text: &&str| PeOutcome {
            status: PeStatus::Exited(1),
            stdout: Vec::new(),
            stderr: text.as_bytes().to_vec(),
        };
        Outcome {
            pes: stderr.iter().map(pe).collect(),
            failed: Some(0),
            timed_out: false,
            interrupted: None,
            output_lost: false,
            reports: vec!["PE 0 exited".into()],
        }
    }

    #[test]
    fn the_same_error_of_all_pes_is_one_line() {
        assert_eq!(complaints(&outcome(&["no GPU\n", "no GPU\n"])), ["no GPU"]);
    }

    #[test]
    fn errors_of_some_pes_name_them() {
        assert_eq!(complaints(&outcome(&["", "wrong data\n", ""])), ["PE 1: wrong data"]);
        assert_eq!(complaints(&outcome(&["a\n", "b\n", "b\n"])), ["PE 0: a", "PE 1, 2: b"]);
    }

    #[test]
    fn a_pe_that_says_nothing_is_reported_by_the_launcher() {
        assert_eq!(complaints(&outcome(&["", ""])), ["PE 0 exited"]);
    }

    #[test]
    fn success_says_nothing() {
        let pe = PeOutcome { status: PeStatus::Exited(0), stdout: Vec::new(), stderr: b"warning".to_vec() };
        assert!(complaints(&Outcome { pes: vec![pe], failed: None, ..outcome(&[]) }).is_empty());
    }
}
