//! `shmem_init_time --hub`: what the rendezvous of many PEs costs, without the PEs.
//!
//! The hub runs in this process, which does nothing else. A few processes beside it speak for all
//! PEs, and check all that they get.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use oxshmem::bootstrap::{Crowd, Hub, HubOptions, JobId};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine;
use crate::report::{Column, Table, rounded};

/// Processes that speak for the PEs.
const CROWDS: u32 = 4;
/// Bytes of each contribution, and of each pair's part in the alltoall.
const BYTES: usize = 64;
/// Longest time of a step: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(300);
/// What is done, in this order.
const STEPS: [&str; 5] = ["join", "allgather", "alltoall", "barrier", "abort"];

/// One step of one hub.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `shmem_init_time --hub`.
    pub test: String,
    /// `join`, `allgather`, `alltoall`, `barrier` or `abort`.
    pub step: String,
    /// PEs of the job.
    pub npes: u32,
    /// Connections to the hub.
    pub connections: u32,
    /// From the start of the step to the last PE's end of it, in milliseconds.
    pub ms: f64,
    /// By how much the time has grown for each doubling of the PEs since the size before; null for
    /// the first.
    pub growth: Option<f64>,
    /// Bytes that the hub has received.
    pub received: u64,
    /// Bytes that the hub has sent.
    pub sent: u64,
    /// The most memory that the hub's process had in the step, in bytes, less what it had before
    /// there was a hub.
    pub memory: u64,
    /// Descriptors that the hub's process has.
    pub descriptors: usize,
    /// Day, UTC.
    pub date: String,
}

impl Row {
    fn columns() -> Vec<Column<Self>> {
        let mib = |bytes: u64| rounded(Some(bytes as f64 / f64::from(1 << 20)));
        vec![
            Column::new("PEs", 5, |row: &Self| row.npes.to_string()),
            Column::new("connections", 11, |row: &Self| row.connections.to_string()),
            Column::new("step", 9, |row: &Self| row.step.clone()),
            Column::new("ms", 7, |row: &Self| rounded(Some(row.ms))),
            Column::new("x/doubling", 10, |row: &Self| rounded(row.growth)),
            Column::new("in [MiB]", 8, move |row: &Self| mib(row.received)),
            Column::new("out [MiB]", 9, move |row: &Self| mib(row.sent)),
            Column::new("memory [MiB]", 12, move |row: &Self| mib(row.memory)),
            Column::new("descriptors", 11, |row: &Self| row.descriptors.to_string()),
        ]
    }

    fn title(&self) -> String {
        format!("# {}: the rendezvous alone, {CROWDS} processes speak for its PEs, {BYTES} bytes each", self.test)
    }
}

/// Measures hubs of these sizes, each with a connection from every `per_connection` PEs.
///
/// # Errors
/// A process cannot be started, or what it got is wrong.
pub fn measure(sizes: &[u32], per_connection: u32, json: Option<&Path>) -> Result<(), Error> {
    let mut table = Table::new(Row::title, Row::columns(), json)?;
    let mut before: Option<(u32, Vec<f64>)> = None;
    for npes in sizes {
        let mut times = Vec::new();
        let base = memory("VmRSS:");
        let hub = Hub::start(HubOptions::local(*npes).map_err(oxshmem::Error::from)?).map_err(oxshmem::Error::from)?;
        let mut crowds = Vec::new();
        // Whole connections in each process.
        let connections = npes.div_ceil(per_connection);
        let at = |part: u32| (u64::from(connections) * u64::from(part) / u64::from(CROWDS)) as u32;
        for part in 0..CROWDS {
            let first = (at(part) * per_connection).min(*npes);
            let last = (at(part + 1) * per_connection).min(*npes);
            if first < last {
                let start = format!("{} {} {first} {last} {npes} {per_connection}", hub.address(), hub.job_id());
                crowds.push(Process::start(start)?);
            }
        }
        for (at, step) in STEPS.iter().enumerate() {
            forget_peak();
            let (received, sent) = hub.traffic();
            let begun = Instant::now();
            crowds.iter_mut().try_for_each(|crowd| crowd.order(step))?;
            crowds.iter_mut().try_for_each(Process::done)?;
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            let traffic = hub.traffic();
            let growth = before.as_ref().map(|(smaller, times): &(u32, Vec<f64>)| {
                (ms / times[at]).powf(1.0 / (f64::from(*npes) / f64::from(*smaller)).log2())
            });
            times.push(ms);
            table.add(Row {
                test: "shmem_init_time --hub".to_owned(),
                step: (*step).to_owned(),
                npes: *npes,
                connections,
                ms,
                growth,
                received: traffic.0 - received,
                sent: traffic.1 - sent,
                memory: memory("VmHWM:").saturating_sub(base),
                descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
                date: machine::today(),
            })?;
        }
        before = Some((*npes, times));
    }
    Ok(())
}

/// Does what a process that speaks for PEs does: orders come on standard input, and each is
/// answered by a line.
pub fn crowd() -> std::process::ExitCode {
    let mut lines = std::io::stdin().lines();
    let mut next = || lines.next().and_then(Result::ok);
    let Some(start) = next() else { return std::process::ExitCode::FAILURE };
    let mut joined = None;
    while let Some(step) = next() {
        let done = match (&mut joined, step.as_str()) {
            (None, _) => join(&start).map(|new| joined = Some(new)),
            (Some(crowd), "allgather") => Crowd::allgather(crowd, BYTES).map_err(|error| error.to_string()),
            (Some(crowd), "alltoall") => crowd.alltoall(BYTES).map_err(|error| error.to_string()),
            (Some(crowd), "barrier") => crowd.barrier().map_err(|error| error.to_string()),
            (Some(crowd), _) => {
                let is_first = start.split_ascii_whitespace().nth(2) == Some("0");
                crowd.abort(is_first).map_err(|error| error.to_string())
            }
        };
        println!("{}", done.err().unwrap_or_default());
    }
    std::process::ExitCode::SUCCESS
}

fn join(start: &str) -> Result<Crowd, String> {
    let words: Vec<&str> = start.split_ascii_whitespace().collect();
    let [hub, job, first, last, npes, per_connection] = words[..] else { return Err("a start of other words".into()) };
    let number = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
    let hub: SocketAddr = hub.parse().map_err(|_| "an address that is none".to_owned())?;
    let ranks = number(first)?..number(last)?;
    Crowd::join(hub, job.parse::<JobId>()?, (ranks, number(npes)?), number(per_connection)?, PATIENCE)
        .map_err(|error| error.to_string())
}

/// A process that speaks for PEs.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(start: String) -> Result<Self, Error> {
        let failed = |source| Error::System { what: "starting a process that speaks for PEs", source };
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("--crowd").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut process = Self { child, orders, answers: BufReader::new(answers) };
        process.order(&start)?;
        Ok(process)
    }

    fn order(&mut self, order: &str) -> Result<(), Error> {
        writeln!(self.orders, "{order}")
            .map_err(|source| Error::System { what: "telling a process that speaks for PEs", source })
    }

    fn done(&mut self) -> Result<(), Error> {
        let mut answer = String::new();
        let read = self.answers.read_line(&mut answer);
        match (read, answer.trim_end()) {
            (Ok(1..), "") => Ok(()),
            (Ok(0), _) => Err(Error::Usage("a process that speaks for PEs has ended".to_owned())),
            (Ok(_), why) => Err(Error::Usage(format!("a process that speaks for PEs failed: {why}"))),
            (Err(source), _) => Err(Error::System { what: "hearing a process that speaks for PEs", source }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may wait for a hub that has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Forgets the most memory that this process has had; where the kernel does not allow it, later
/// steps show what earlier ones had.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns a size from this process's status, in bytes.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() << 10
}
