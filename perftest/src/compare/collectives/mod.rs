//! Collectives on streams beside those of NVSHMEM, of NCCL and of torch's symmetric memory.
//!
//! Each is a program that is started once and told by lines what to measure, so that they take
//! turns: in each round every way makes the same call of the same size once, while the others idle.
//! Ours is this program again; that of NVSHMEM is built on the spot from
//! `perftest/compare/collectives.cu`, and NCCL and symmetric memory are measured by
//! `perftest/compare/collectives.py`.

pub mod calls;
mod graph;
mod ours;
pub mod protocol;
pub mod report;
pub mod sides;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use oxshmem::Config;
use oxshmem::config::ByteSize;
use oxshmem::device::takes_gpu;

use crate::error::Error;
use crate::machine::{self, Gpus};
use crate::options::{size, sizes};
use crate::output;
use crate::report::JsonLines;
use calls::{CALLS, Call, MOST_PES};
use protocol::{Command, Reply, Way};
use report::{Rounds, Row, Setting};
use sides::{Kind, Side, Start, Trouble};

pub use ours::main as as_pe;
pub use sides::AS_PE;

/// The options of this comparison.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Compare collectives on streams, in CUDA graphs, with those of NVSHMEM and, where python3 has
    /// torch, of NCCL and of torch's symmetric memory. --only selects calls by their names.
    #[arg(long, conflicts_with_all = ["previous", "without_records", "ours"])]
    pub collectives: bool,
    /// With --collectives: the smallest buffer, all parts together, in bytes or with K, M or G.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "collectives")]
    pub min: Option<u64>,
    /// With --collectives: the largest buffer [default: 1G, or what the GPUs' memory has room for;
    /// 64K on the cpu device].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "collectives")]
    pub max: Option<u64>,
}

/// What is compared, and how.
#[derive(Debug)]
pub struct Request<'a> {
    /// The options of this comparison.
    pub options: &'a Options,
    /// PEs, if they were given.
    pub pes: Option<u32>,
    /// Rounds.
    pub repetitions: u32,
    /// Calls whose names contain one of these; all if there are none.
    pub only: &'a [String],
    /// Print the calls, and measure nothing.
    pub list: bool,
    /// The files to write.
    pub json: Option<&'a Path>,
    /// Likewise.
    pub plot: Option<&'a Path>,
    /// Longest time of a command.
    pub timeout: Duration,
    /// What is said of libraries beside ours.
    pub others_are: &'a str,
    /// Where files are kept meanwhile.
    pub folder: PathBuf,
}

/// What each size is multiplied with to get the next one.
const FACTOR: u64 = 4;

/// Bytes of a GPU's memory that programs need beside their buffers.
const BESIDE: u64 = 6 << 30;
/// Buffers of the largest size in a GPU's memory: two each of ours and NVSHMEM's, four of torch's.
const BUFFERS: u64 = 8;

/// Returns the calls that `only` selects.
fn select(only: &[String]) -> Result<Vec<Call>, Error> {
    if let Some(text) = only.iter().find(|text| CALLS.iter().all(|call| !call.name.contains(text.as_str()))) {
        let names = CALLS.map(|call| call.name).join(", ");
        return Err(Error::Usage(format!("--only {text}: no call's name contains that; there are {names}")));
    }
    let named = |call: &Call| only.is_empty() || only.iter().any(|text| call.name.contains(text.as_str()));
    Ok(CALLS.into_iter().filter(named).collect())
}

/// Returns how many calls are timed together: enough for the clock, and a few milliseconds at most
/// for large buffers.
fn count(bytes: u64, on_gpus: bool) -> u64 {
    match bytes {
        _ if !on_gpus => 4,
        0..=0x1_0000 => 64,
        0x1_0001..=0x10_0000 => 32,
        0x10_0001..=0x100_0000 => 16,
        0x100_0001..=0x1000_0000 => 4,
        _ => 2,
    }
}

/// Returns the largest buffer for which `free` bytes of memory have room, of sizes that are powers
/// of two.
fn largest(free: u64) -> u64 {
    let room = free.saturating_sub(BESIDE) / BUFFERS;
    if room == 0 { 0 } else { 1 << room.ilog2() }
}

/// Compares. `others` returns the programs beside ours, for buffers of as many bytes, and why
/// others are missing; `draw` writes a plot.
///
/// # Errors
/// Nothing can be compared.
pub fn compare(
    request: &Request<'_>,
    draw: impl FnOnce(&Path, Result<String, String>) -> Result<(), Error>,
    others: impl FnOnce(u64) -> Result<(Vec<Kind>, Vec<String>), Error>,
) -> Result<ExitCode, Error> {
    let calls = select(request.only)?;
    if request.list {
        calls.iter().try_for_each(|call| output::line(format_args!("{}", call.name)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let on_gpus = takes_gpu(Config::from_env()?.device());
    let gpus = if on_gpus { Gpus::find() } else { None };
    let pes = request.pes.unwrap_or_else(|| gpus.as_ref().map_or(2, |gpus| gpus.number.clamp(2, 4)));
    check_pes(pes, on_gpus, gpus.as_ref())?;
    let default = if on_gpus { 1 << 30 } else { 64 << 10 };
    let mut wanted = sizes((request.options.min, request.options.max), (8, default), FACTOR, ("buffers", 8))?;
    let free = gpus.as_ref().and_then(|gpus| gpus.least_free(pes));
    let room = free.map_or(u64::MAX, largest);
    if let Some(free) = free.filter(|_| wanted[0] > room) {
        return Err(Error::Usage(format!(
            "--collectives: {} MiB are free on a GPU, and {BUFFERS} buffers of {} beside {} for the programs need more; free memory, or \
             choose other GPUs with CUDA_VISIBLE_DEVICES",
            free >> 20,
            ByteSize(wanted[0]),
            ByteSize(BESIDE)
        )));
    }
    if let Some(first) = wanted.iter().find(|size| **size > room) {
        output::line(format_args!(
            "buffers of {} and more are not measured: the GPUs' free memory has room for {BUFFERS} of {} beside {}",
            ByteSize(*first),
            ByteSize(room),
            ByteSize(BESIDE)
        ))?;
        wanted.retain(|size| *size <= room);
    }
    // What a part is rounded up to.
    let most = wanted.last().copied().unwrap_or(8).max(4 * u64::from(pes));
    let program = crate::job::this_program()?;
    let mut kinds = vec![Kind::Ours { program }];
    if on_gpus {
        let (found, missing) = others(most)?;
        missing.iter().try_for_each(|reason| output::line(format_args!("not measured: {reason}")))?;
        kinds.extend(found);
    } else {
        output::line(format_args!("only ours is measured: the cpu device is ours alone"))?;
    }
    let start = Start { pes, most, timeout: request.timeout, folder: request.folder.clone() };
    let mut run = Run { sides: kinds.into_iter().map(Side::new).collect(), start, failures: Vec::new() };
    run.start_all()?;
    let setting = Setting {
        gpu: gpus.as_ref().map(|gpus| gpus.model.clone()),
        driver: gpus.as_ref().map(|gpus| gpus.driver.clone()),
        pes,
        repetitions: request.repetitions,
        date: machine::today(),
        libraries: run
            .sides
            .iter()
            .filter_map(|side| Some(described(side.kind.name(), side.library.as_ref()?, request.others_are)))
            .collect(),
    };
    let on = setting.gpu.as_deref().unwrap_or("the cpu device");
    output::line(format_args!(
        "{pes} PEs on {on}, {}: {}; medians of {} rounds in turn\n{}",
        setting.date,
        setting.libraries.join("; "),
        setting.repetitions,
        report::titles()
    ))?;
    // Each row is written at once, so that what was measured is kept whatever happens later.
    let mut json = request.json.map(JsonLines::create).transpose()?;
    let mut rows: Vec<Row> = Vec::new();
    for call in calls {
        let mut parts: Vec<u64> = wanted.iter().map(|size| call.part(*size, u64::from(pes))).collect();
        parts.dedup();
        for part in parts {
            let count = count(call.collective.whole_bytes(part, u64::from(pes)), on_gpus);
            let rounds = run.row(call, part, count, request.repetitions);
            let row = Row::new(call, part, count, &rounds, &setting);
            output::line(format_args!("{}", row.line()))?;
            json.iter_mut().try_for_each(|json| json.write(&row))?;
            rows.push(row);
        }
    }
    for failure in &run.failures {
        eprintln!("compare: {failure}");
    }
    finish(json, &rows)?;
    request.plot.map_or(Ok(()), |path| draw(path, report::plot(&rows)))?;
    Ok(if run.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns what a library is called in results.
fn described(side: &str, library: &str, others_are: &str) -> String {
    if side == "ours" { library.to_owned() } else { format!("{library}, {others_are}") }
}

fn check_pes(pes: u32, on_gpus: bool, gpus: Option<&Gpus>) -> Result<(), Error> {
    let available = gpus.map_or(0, |gpus| gpus.number);
    if on_gpus && available < pes {
        return Err(Error::Usage(format!(
            "--collectives: {pes} PEs need a GPU each, and the driver shows {available}; give fewer --pes, make more visible (CUDA_VISIBLE_DEVICES), or set OXSHMEM_DEVICE=cpu"
        )));
    }
    if pes > MOST_PES {
        return Err(Error::Usage(format!(
            "--pes {pes}: with --collectives at most {MOST_PES}, whose sums are exact in every type"
        )));
    }
    Ok(())
}

/// Prints means and writes them.
fn finish(json: Option<JsonLines>, rows: &[Row]) -> Result<(), Error> {
    if rows.iter().any(|row| row.line().contains('*')) {
        output::line(format_args!("* calls that are queued one by one, since they could not be captured"))?;
    }
    let means = report::means(rows);
    means.iter().try_for_each(|mean| output::line(format_args!("{}", mean.line())))?;
    json.map_or(Ok(()), |mut json| means.iter().try_for_each(|mean| json.write(mean)))
}

/// The programs, and what went wrong with them.
struct Run {
    sides: Vec<Side>,
    start: Start,
    failures: Vec<String>,
}

impl Run {
    /// Starts all programs. One that does not start is left out, and is a failure; ours must.
    fn start_all(&mut self) -> Result<(), Error> {
        let mut failures = Vec::new();
        self.sides.retain_mut(|side| match side.start(&self.start) {
            Ok(()) => true,
            Err(text) => {
                failures.push((side.kind.name(), text));
                false
            }
        });
        if let Some((name, text)) = failures.iter().find(|(name, _)| *name == "ours") {
            return Err(Error::Usage(format!("{name} does not start: {text}")));
        }
        self.failures.extend(failures.iter().map(|(name, text)| format!("{name} does not start: {text}")));
        Ok(())
    }

    /// Measures one row: every way is prepared, and then all are run in turn.
    fn row(&mut self, call: Call, part: u64, count: u64, repetitions: u32) -> BTreeMap<Way, Rounds> {
        let mut rounds = BTreeMap::new();
        let mut failures = Vec::new();
        for side in self.sides.iter_mut().filter(|side| side.is_usable()) {
            for way in side.kind.ways(call) {
                let ready = side.start(&self.start).and_then(|()| {
                    let command = Command::Prepare { way, call, part, count };
                    side.command(command, self.start.timeout).map_err(|trouble| match trouble {
                        Trouble::Refused(text) | Trouble::Lost(text) => text,
                    })
                });
                match ready {
                    Ok(replies) => {
                        let graph = replies.iter().all(|reply| matches!(reply, Reply::Ready { graph: true, .. }));
                        rounds.insert(way, Rounds { ns: Vec::new(), graph });
                    }
                    Err(text) => failures.push((way, text)),
                }
            }
        }
        for _ in 0..repetitions {
            for side in &mut self.sides {
                for way in side.kind.ways(call) {
                    let Some(found) = rounds.get_mut(&way) else { continue };
                    match side.command(Command::Run { way }, self.start.timeout) {
                        // The PE that needs longest.
                        Ok(replies) => found.ns.extend(slowest(&replies)),
                        Err(Trouble::Refused(text) | Trouble::Lost(text)) => {
                            rounds.remove(&way);
                            failures.push((way, text));
                        }
                    }
                }
            }
        }
        let bytes = call.collective.whole_bytes(part, u64::from(self.start.pes));
        let told = |(way, text): (Way, String)| format!("{}, {} of {bytes} bytes: {text}", way.name(), call.name);
        self.failures.extend(failures.into_iter().map(told));
        rounds
    }
}

fn slowest(replies: &[Reply]) -> Option<f64> {
    let times = replies.iter().filter_map(|reply| match reply {
        Reply::Time { ns } => Some(*ns),
        _ => None,
    });
    times.max_by(f64::total_cmp)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::sides::tests::{HONEST, Script};
    use super::*;

    #[test]
    fn calls_are_selected_by_name() {
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(|text| (*text).to_owned()).collect();
            select(&only).unwrap().iter().map(|call| call.name).collect()
        };
        assert_eq!(names(&["reduce"]), ["reduce", "reduce_bf16", "reducescatter"]);
        assert_eq!(names(&[]).len(), CALLS.len());
        let error = select(&["nonsense".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("nonsense") && error.contains("fcollect"), "{error}");
    }

    #[test]
    fn sizes_are_those_that_memory_has_room_for() {
        assert_eq!((largest(80 << 30), largest(15 << 30), largest(1 << 30)), (8 << 30, 1 << 30, 0));
        assert_eq!([8, 1 << 20, 1 << 30].map(|bytes| count(bytes, true)), [64, 32, 2]);
        assert_eq!(count(1 << 30, false), 4);
    }

    #[test]
    fn results_say_how_other_libraries_were_run() {
        assert_eq!(described("ours", "OxSHMEM 1", "multicast off"), "OxSHMEM 1");
        assert_eq!(described("nvshmem", "NVSHMEM 3", "multicast off"), "NVSHMEM 3, multicast off");
    }

    #[test]
    fn pes_need_gpus_and_exact_sums() {
        let gpus = Gpus { model: "M".to_owned(), driver: "1".to_owned(), number: 2, free: vec![None; 2] };
        assert!(check_pes(2, true, Some(&gpus)).is_ok() && check_pes(8, false, None).is_ok());
        let error = |pes, on_gpus| check_pes(pes, on_gpus, Some(&gpus)).unwrap_err().to_string();
        assert!(error(3, true).contains("the driver shows 2") && error(9, false).contains("at most 8"));
    }

    fn run(script: &Script) -> Run {
        let mut run = Run { sides: vec![script.side()], start: script.0.clone(), failures: Vec::new() };
        run.start_all().unwrap();
        run
    }

    #[test]
    fn a_row_has_the_slowest_pe_of_every_round() {
        let script = Script::new("row", &format!("BROKEN=reduce DEADLY=none{HONEST}"));
        let mut run = run(&script);
        let call = Call::named("alltoall").unwrap();
        let rounds = run.row(call, 8, 2, 3);
        assert_eq!(rounds[&Way::Nvshmem], Rounds { ns: vec![2000.0; 3], graph: true });
        assert!(run.row(Call::named("reduce").unwrap(), 8, 2, 3).is_empty());
        assert_eq!(run.failures, ["nvshmem, reduce of 8 bytes: PE 0: no luck; PE 1: no luck"]);
    }

    #[test]
    fn after_a_program_has_ended_the_next_row_is_measured() {
        let script = Script::new("again", &format!("BROKEN=none DEADLY=reduce{HONEST}"));
        let mut run = run(&script);
        assert!(run.row(Call::named("reduce").unwrap(), 8, 2, 3).is_empty());
        assert!(run.failures.len() == 1 && run.failures[0].contains("it was too much"), "{:?}", run.failures);
        assert_eq!(run.row(Call::named("sync").unwrap(), 0, 2, 3)[&Way::Nvshmem].ns.len(), 3);
    }

    #[test]
    fn a_program_that_does_not_start_is_left_out() {
        let script = Script::new("dead", "echo dead >&2; exit 7");
        let mut run = Run { sides: vec![script.side()], start: script.0.clone(), failures: Vec::new() };
        run.start_all().unwrap();
        assert!(run.sides.is_empty() && run.failures[0].contains("nvshmem does not start"), "{:?}", run.failures);
        let ours = Kind::Ours { program: "/nonexistent/compare".into() };
        run.sides = vec![Side::new(ours)];
        let error = run.start_all().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/compare"), "{error}");
    }
}
