//! Traces that PEs have written, summarised and put together.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::output::show;

/// What is asked of traces.
#[derive(Debug, clap::Args)]
pub struct Question {
    /// Files of `OXSHMEM_PROFILE=trace`, or folders that have such.
    #[arg(value_name = "FILE", default_value = "oxshmem-profile")]
    from: Vec<PathBuf>,
    /// Calls that are listed one by one: those that took longest until all of it was complete.
    #[arg(long, value_name = "N", default_value_t = 10)]
    slowest: usize,
    /// Write all of them as one trace to this file, with one clock.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A file as PEs write it (`runtime/profile/chrome.rs`).
#[derive(Debug, Deserialize)]
struct File {
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    #[serde(rename = "otherData")]
    maker: Maker,
}

#[derive(Debug, Deserialize)]
struct Maker {
    library: String,
    pe: usize,
    n_pes: usize,
    device: String,
    dropped: u64,
    base_unix_ns: u64,
}

/// A call in a trace. Times are microseconds.
#[derive(Debug, Deserialize)]
struct Call {
    name: String,
    cat: String,
    ts: f64,
    dur: f64,
    args: Arguments,
}

#[derive(Debug, Deserialize)]
struct Arguments {
    operation: String,
    pe: Option<usize>,
    team: Option<i32>,
    bytes: u64,
    doorbell_us: Option<f64>,
    completion_us: Option<f64>,
}

impl Call {
    /// Returns how long it took until all of it was complete, or until it returned.
    fn took(&self) -> f64 {
        self.args.completion_us.map_or(self.dur, |completion| (completion - self.ts).max(self.dur))
    }
}

/// Calls of one kind at one PE. Times are microseconds.
#[derive(Debug, Default, Serialize)]
struct Row {
    pe: usize,
    origin: String,
    operation: String,
    peer: Option<usize>,
    team: Option<i32>,
    calls: u64,
    bytes: u64,
    /// From call to return.
    call_us: Times,
    /// From call to the doorbell of the last of its requests, of the calls of which it is known.
    doorbell_us: Option<Times>,
    /// From there until that was seen to be complete, likewise.
    completion_us: Option<Times>,
}

/// Times of a number of calls, in microseconds.
#[derive(Debug, Default, Clone, Serialize)]
struct Times {
    mean: f64,
    /// Half of them took no longer.
    median: f64,
    longest: f64,
    all: f64,
}

impl Times {
    /// Summarises `each`; `None` without any.
    fn of(mut each: Vec<f64>) -> Option<Self> {
        each.sort_by(f64::total_cmp);
        let (longest, median) = (*each.last()?, each[(each.len() - 1) / 2]);
        let all: f64 = each.iter().sum();
        Some(Self { mean: all / each.len() as f64, median, longest, all })
    }
}

/// A call that took long.
#[derive(Debug, Serialize)]
struct Slow {
    pe: usize,
    origin: String,
    name: String,
    peer: Option<usize>,
    team: Option<i32>,
    bytes: u64,
    at_us: f64,
    call_us: f64,
    doorbell_us: Option<f64>,
    completion_us: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Pe {
    pe: usize,
    device: String,
    calls: u64,
    /// Records that newer ones have displaced.
    dropped: u64,
    /// The time from the first call to the end of the last.
    span_us: f64,
}

/// What traces say.
#[derive(Debug, Serialize)]
struct Report {
    n_pes: usize,
    pes: Vec<Pe>,
    /// Those with the longest time in all first.
    rows: Vec<Row>,
    slowest: Vec<Slow>,
}

/// Summarises traces.
pub fn run(question: &Question, json: bool) -> ExitCode {
    match answer(question) {
        Ok(report) => ExitCode::from(u8::from(!show(json, &report, || report.text()))),
        Err(reason) => {
            eprintln!("oxshmem-info: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn answer(question: &Question) -> Result<Report, String> {
    let mut files = Vec::new();
    for from in &question.from {
        for path in paths(from)? {
            let text = fs::read(&path).map_err(|error| unread(&path, &error))?;
            let file: File = serde_json::from_slice(&text).map_err(|error| foreign(&path, &error))?;
            if file.maker.library != "OxSHMEM" {
                return Err(foreign(&path, &format!("it is of {}", file.maker.library)));
            }
            files.push((path, file));
        }
    }
    files.sort_by_key(|(_, file)| file.maker.pe);
    if let Some(pair) = files.windows(2).find(|pair| pair[0].1.maker.pe == pair[1].1.maker.pe) {
        let (pe, one, other) = (pair[0].1.maker.pe, pair[0].0.display(), pair[1].0.display());
        return Err(format!("{one} and {other} are both of PE {pe}; name the files of one job"));
    }
    let base = files.iter().map(|(_, file)| file.maker.base_unix_ns).min().unwrap_or(0);
    if let Some(output) = &question.output {
        let all = together(&files, base);
        fs::write(output, all.to_string())
            .map_err(|error| format!("{} cannot be written: {error}", output.display()))?;
    }
    Report::new(&files, base, question.slowest)
}

/// Returns the traces that a path names.
fn paths(from: &Path) -> Result<Vec<PathBuf>, String> {
    if !from.is_dir() {
        return Ok(vec![from.to_owned()]);
    }
    let entries = fs::read_dir(from).map_err(|error| unread(from, &error))?;
    let is_trace = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("trace-") && path.extension().is_some_and(|end| end == "json")
    };
    let found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_trace).collect();
    if found.is_empty() {
        return Err(format!(
            "{} has no file trace-PE.json; run the program with OXSHMEM_PROFILE=trace",
            from.display()
        ));
    }
    Ok(found)
}

fn unread(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}; OXSHMEM_PROFILE=trace has PEs write traces at finalize", path.display())
}

fn foreign(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{} is not a trace of OxSHMEM: {why}", path.display())
}

/// Returns one trace of all, whose times count from `base`.
fn together(files: &[(PathBuf, File)], base: u64) -> Value {
    let mut events = Vec::new();
    for (_, file) in files {
        let later = (file.maker.base_unix_ns - base) as f64 / 1e3;
        for event in &file.events {
            let mut event = event.clone();
            if let Some(ts) = event["ts"].as_f64() {
                event["ts"] = json!(ts + later);
            }
            // Numbers of requests are those of a PE.
            if event["id"].is_u64() {
                event["id"] = json!(format!("{}.{}", file.maker.pe, event["id"]));
            }
            events.push(event);
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

impl Report {
    fn new(files: &[(PathBuf, File)], base: u64, slowest: usize) -> Result<Self, String> {
        let (mut pes, mut rows, mut slow) = (Vec::new(), Vec::new(), Vec::new());
        for (path, File { events, maker }) in files {
            let later = (maker.base_unix_ns - base) as f64 / 1e3;
            let calls = events.iter().filter(|event| event["ph"] == "X").map(Call::deserialize);
            let calls: Vec<Call> = calls.collect::<Result<_, _>>().map_err(|error| foreign(path, &error))?;
            let first = calls.iter().map(|call| call.ts).fold(f64::INFINITY, f64::min);
            let last = calls.iter().map(|call| call.ts + call.took()).fold(0.0, f64::max);
            pes.push(Pe {
                pe: maker.pe,
                device: maker.device.clone(),
                calls: calls.len() as u64,
                dropped: maker.dropped,
                span_us: if calls.is_empty() { 0.0 } else { last - first },
            });
            rows.extend(rows_of(maker.pe, &calls));
            slow.extend(calls.into_iter().filter(|call| call.args.operation != "init").map(|call| {
                let took = call.took();
                (
                    took,
                    Slow {
                        pe: maker.pe,
                        origin: call.cat,
                        name: call.name,
                        peer: call.args.pe,
                        team: call.args.team,
                        bytes: call.args.bytes,
                        at_us: call.ts + later,
                        call_us: call.dur,
                        doorbell_us: call.args.doorbell_us.map(|at| at - call.ts),
                        completion_us: call.args.completion_us.map(|at| at - call.ts),
                    },
                )
            }));
        }
        rows.sort_by(|one: &Row, other| other.call_us.all.total_cmp(&one.call_us.all));
        slow.sort_by(|one, other| other.0.total_cmp(&one.0));
        let n_pes = files.first().map_or(0, |(_, file)| file.maker.n_pes);
        Ok(Self { n_pes, pes, rows, slowest: slow.into_iter().take(slowest).map(|(_, slow)| slow).collect() })
    }

    /// Returns it as text for people.
    fn text(&self) -> String {
        let mut text = format!("{} of {} PEs\n", self.pes.len(), self.n_pes);
        // Writing to a string cannot fail.
        for pe in &self.pes {
            let _ = write!(text, "PE {}, {} device: {} calls in {:.1} us", pe.pe, pe.device, pe.calls, pe.span_us);
            if pe.dropped != 0 {
                let _ = write!(text, "; {} older records were dropped: raise OXSHMEM_PROFILE_RECORDS", pe.dropped);
            }
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "\n{:<4}{:<8}{:<18}{:>6}{:>6}{:>9}{:>14}{:>30}{:>22}{:>22}",
            "PE",
            "by",
            "call",
            "peer",
            "team",
            "calls",
            "bytes",
            "us: in all, mean, longest",
            "to doorbell, longest",
            "from there, longest"
        );
        let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let two = |times: &Option<Times>| {
            times.as_ref().map_or_else(|| "-".to_owned(), |times| format!("{:.2} {:.2}", times.mean, times.longest))
        };
        for row in &self.rows {
            let peer = number(row.peer.and_then(|peer| i64::try_from(peer).ok()));
            let times = format!("{:.1} {:.2} {:.2}", row.call_us.all, row.call_us.mean, row.call_us.longest);
            let _ = writeln!(
                text,
                "{:<4}{:<8}{:<18}{peer:>6}{:>6}{:>9}{:>14}{times:>30}{:>22}{:>22}",
                row.pe,
                row.origin,
                row.operation,
                number(row.team.map(i64::from)),
                row.calls,
                row.bytes,
                two(&row.doorbell_us),
                two(&row.completion_us)
            );
        }
        if !self.slowest.is_empty() {
            text.push_str("\nThe slowest, from call to completion or return:\n");
        }
        for slow in &self.slowest {
            let _ = write!(text, "PE {} {} {}", slow.pe, slow.origin, slow.name);
            if let Some(peer) = slow.peer {
                let _ = write!(text, " with PE {peer}");
            }
            if let Some(team) = slow.team {
                let _ = write!(text, " in team {team}");
            }
            let _ =
                write!(text, ", {} bytes, at {:.1} us: returned after {:.2} us", slow.bytes, slow.at_us, slow.call_us);
            if let Some(doorbell) = slow.doorbell_us {
                let _ = write!(text, ", rung after {doorbell:.2} us");
            }
            if let Some(completion) = slow.completion_us {
                let _ = write!(text, ", complete after {completion:.2} us");
            }
            text.push('\n');
        }
        text
    }
}

/// What calls of one kind have in common: their origin, their operation, and their peer or team.
type Kind<'a> = (&'a str, &'a str, Option<usize>, Option<i32>);

/// Returns a row for each kind of call of a PE.
fn rows_of(pe: usize, calls: &[Call]) -> Vec<Row> {
    let mut kinds: BTreeMap<Kind<'_>, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let Arguments { operation, pe: peer, team, .. } = &call.args;
        kinds.entry((&call.cat, operation, *peer, *team)).or_default().push(call);
    }
    let row = |((origin, operation, peer, team), calls): (Kind<'_>, Vec<&Call>)| {
        let times = |of: &dyn Fn(&Call) -> Option<f64>| Times::of(calls.iter().filter_map(|call| of(call)).collect());
        Row {
            pe,
            origin: origin.to_owned(),
            operation: operation.to_owned(),
            peer,
            team,
            calls: calls.len() as u64,
            bytes: calls.iter().map(|call| call.args.bytes).sum(),
            call_us: times(&|call| Some(call.dur)).unwrap_or_default(),
            doorbell_us: times(&|call| Some(call.args.doorbell_us? - call.ts)),
            completion_us: times(&|call| Some(call.args.completion_us? - call.args.doorbell_us?)),
        }
    };
    kinds.into_iter().map(row).collect()
}
