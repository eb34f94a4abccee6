//! What was found: a table for people, JSON for programs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use cudarc::driver::{CudaContext, result};
use serde_json::{Value, json};

use crate::step::Runner;

/// How one thing ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// It was right.
    Passed,
    /// It was wrong, and how.
    Failed(String),
    /// It was not run, and why.
    Skipped(String),
}

/// Something that passed, failed or was skipped.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its name within the group.
    pub name: String,
    /// How it ended.
    pub status: Status,
}

/// Items that were run together, and what they measured.
#[derive(Debug, Default)]
pub struct Group {
    /// The part they belong to.
    pub part: &'static str,
    /// What they have in common.
    pub name: String,
    /// How long they took.
    pub seconds: f64,
    /// The items.
    pub items: Vec<Item>,
    /// JSON lines that they wrote.
    pub lines: Vec<Value>,
}

/// Everything.
#[derive(Debug)]
pub struct Report {
    machine: Value,
    heading: String,
    gpus: usize,
    groups: Vec<Group>,
    /// Why something was skipped, as it was printed last.
    reason: String,
}

/// Names and memory of the GPUs, and the driver's CUDA version; or why there are none.
fn gpus() -> Result<(Vec<(String, usize)>, String), String> {
    // SAFETY: it only looks for the library.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("no CUDA driver (libcuda.so.1) on this machine".to_owned());
    }
    let list = || {
        result::init()?;
        let count = CudaContext::device_count()?;
        let gpu = |ordinal| {
            let device = result::device::get(ordinal)?;
            // SAFETY: the device was just obtained.
            Ok((result::device::get_name(device)?, unsafe { result::device::total_mem(device)? }))
        };
        (0..count).map(gpu).collect::<Result<Vec<_>, result::DriverError>>()
    };
    let found = list().map_err(|error| format!("no GPU: {error}"))?;
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok((found, driver.lines().next().unwrap_or("unknown driver").to_owned()))
}

/// Returns the commit of the folder that these programs were built in; then they are not a bundle.
fn checked_out() -> String {
    let git = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]).output();
    git.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Returns the processor's name, where the kernel tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

impl Report {
    /// Looks at the machine and the bundle.
    pub fn new(runner: &Runner) -> Self {
        let built = std::fs::read_to_string(runner.bundle.join("built-from")).unwrap_or_else(|_| checked_out());
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let (gpus, driver, heading) = match gpus() {
            Ok((gpus, driver)) => {
                let names = gpus.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                let heading = format!("{} GPUs: {names}\n{driver}", gpus.len());
                (gpus, driver, heading)
            }
            Err(reason) => (Vec::new(), String::new(), reason),
        };
        let listed: Vec<Value> = gpus.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect();
        let machine = json!({
            "gpus": listed,
            "driver": driver,
            "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
            "processor": processor(),
            "processors": std::thread::available_parallelism().map_or(0, usize::from),
            "built_from": built.trim(),
            "unix_time": seconds,
        });
        Self { machine, heading, gpus: gpus.len(), groups: Vec::new(), reason: String::new() }
    }

    /// Returns the machine, and what the programs were built from, for programs.
    pub fn machine(&self) -> &Value {
        &self.machine
    }

    /// Returns the machine, for people.
    pub fn heading(&self) -> &str {
        &self.heading
    }

    /// Returns how many GPUs there are.
    pub fn gpus(&self) -> usize {
        self.gpus
    }

    /// Adds what a step found, and prints it in a line; what failed, in one line each.
    pub fn add(&mut self, group: Group) {
        say(&line(&group));
        for item in &group.items {
            if let Status::Failed(how) = &item.status {
                say(&format!(
                    "    FAILED {}: {}",
                    item.name,
                    how.lines().find(|line| !line.is_empty()).unwrap_or_default()
                ));
            }
        }
        let mut reasons: Vec<&str> = Vec::new();
        for item in &group.items {
            if let Status::Skipped(reason) = &item.status
                && !reasons.contains(&reason.as_str())
            {
                say(&format!("    skipped: {}", if *reason == self.reason { "as above" } else { reason }));
                reasons.push(reason);
            }
        }
        if let Some(reason) = reasons.last() {
            self.reason = (*reason).to_owned();
        }
        self.groups.push(group);
    }

    /// Returns whether something passed and nothing failed.
    pub fn is_good(&self) -> bool {
        let counts = self.groups.iter().map(count);
        let (passed, failed) = counts.fold((0, 0), |sum, (passed, failed, _)| (sum.0 + passed, sum.1 + failed));
        passed > 0 && failed == 0
    }

    /// Returns each group, with how many of its items passed, failed and were skipped.
    pub fn counted(&self) -> impl Iterator<Item = (&Group, (usize, usize, usize))> {
        self.groups.iter().map(|group| (group, count(group)))
    }

    /// Returns every item, with its group.
    pub fn items(&self) -> impl Iterator<Item = (&Group, &Item)> {
        self.groups.iter().flat_map(|group| group.items.iter().map(move |item| (group, item)))
    }

    /// Returns a line for each group, and the sums.
    pub fn table(&self) -> String {
        let mut text = format!("{:<11}{:<44}{:>7}{:>7}{:>8}{:>8}\n", "part", "", "passed", "failed", "skipped", "s");
        let mut sums = (0, 0, 0);
        for group in &self.groups {
            text.push_str(&line(group));
            text.push('\n');
            let (passed, failed, skipped) = count(group);
            sums = (sums.0 + passed, sums.1 + failed, sums.2 + skipped);
        }
        let seconds: f64 = self.groups.iter().map(|group| group.seconds).sum();
        let _ = write!(text, "{:<55}{:>7}{:>7}{:>8}{seconds:>8.1}", "all", sums.0, sums.1, sums.2);
        text
    }

    /// Writes everything.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let groups: Vec<Value> = self.groups.iter().map(to_json).collect();
        let all = json!({ "machine": self.machine, "good": self.is_good(), "groups": groups });
        std::fs::write(path, format!("{all:#}\n")).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Prints a line. A closed reader is not an error: what counts is written to files.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn count(group: &Group) -> (usize, usize, usize) {
    group.items.iter().fold((0, 0, 0), |(passed, failed, skipped), item| match item.status {
        Status::Passed => (passed + 1, failed, skipped),
        Status::Failed(_) => (passed, failed + 1, skipped),
        Status::Skipped(_) => (passed, failed, skipped + 1),
    })
}

fn line(group: &Group) -> String {
    let (passed, failed, skipped) = count(group);
    format!("{:<11}{:<44}{passed:>7}{failed:>7}{skipped:>8}{:>8.1}", group.part, group.name, group.seconds)
}

fn to_json(group: &Group) -> Value {
    let item = |item: &Item| match &item.status {
        Status::Passed => json!({ "name": item.name, "status": "passed" }),
        Status::Failed(how) => json!({ "name": item.name, "status": "failed", "reason": how }),
        Status::Skipped(why) => json!({ "name": item.name, "status": "skipped", "reason": why }),
    };
    json!({
        "part": group.part,
        "name": group.name,
        "seconds": group.seconds,
        "items": group.items.iter().map(item).collect::<Vec<_>>(),
        "lines": group.lines,
    })
}
