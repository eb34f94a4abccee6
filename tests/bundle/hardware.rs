//! The hardware check: the doctor, then conformance and performance over every path that the
//! machine offers, and one archive of it all.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use oxshmem_tests::{ABSENT, Device, Transport};
use serde_json::{Value, json};

use crate::parts::{read_lines, verdict};
use crate::report::{Group, Item, Report, Status, say};
use crate::step::{Runner, Step};

/// The longest that one step may take. On a path that works each takes seconds.
const STEP: Duration = Duration::from_secs(120);
/// When this much time has passed no further step is begun.
const WHOLE: Duration = Duration::from_secs(30 * 60);

/// The core of conformance: cases of `conformance-pe`, their arguments, and PEs.
const CASES: [(&str, &[&str], u32); 13] = [
    ("rma", &[], 2),
    ("rma", &["2"], 4),
    ("typed", &[], 2),
    ("lanes", &[], 2),
    ("signals", &[], 2),
    ("atomic_values", &[], 2),
    ("atomic_contention", &[], 2),
    ("waits", &[], 2),
    ("barriers", &["15"], 4),
    ("fence", &[], 2),
    ("host_transfers", &[], 2),
    ("host_signals", &[], 2),
    ("host_atomics", &[], 2),
];

/// Performance tests, with arguments that keep each to seconds on any path, and those that are
/// added on the `cpu` device, where a thread of a GPU is a coroutine.
const FIGURES: [(&str, &[&str], &[&str]); 6] = [
    ("shmem_put_bw", &["-b", "8", "-e", "4M", "-f", "8"], &BRIEFLY),
    ("shmem_get_bw", &["-b", "8", "-e", "4M", "-f", "8"], &BRIEFLY),
    ("shmem_p_bw", &["-b", "256", "-e", "64K", "-f", "16"], &BRIEFLY),
    ("shmem_put_latency", &["-b", "8", "-e", "64K", "-f", "8"], &BRIEFLY),
    ("shmem_atomic_latency", &[], &["-n", "4", "-w", "1"]),
    ("shmem_put_signal_ping_pong", &["-b", "8", "-e", "64K", "-f", "8"], &BRIEFLY),
];
const BRIEFLY: [&str; 8] = ["-n", "4", "-w", "1", "-c", "1", "-t", "32"];

/// The item of a path that is not available, or does not work at all.
const PATH: &str = "path";

/// A path between PEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    device: Device,
    transport: Transport,
    /// Nothing for load and store.
    hca: Option<&'static str>,
}

impl Route {
    fn name(self) -> String {
        let parts = [Some(self.device.name()), Some(self.transport.name()), self.hca];
        parts.into_iter().flatten().collect::<Vec<_>>().join("-")
    }
}

/// Returns every path that there is.
fn routes() -> Vec<Route> {
    let ways = [
        (Transport::P2p, None),
        (Transport::Ibgda, Some("soft")),
        (Transport::Ibrc, Some("soft")),
        (Transport::Ibgda, Some("mlx5")),
        (Transport::Ibrc, Some("mlx5")),
        (Transport::Ibrc, Some("verbs")),
    ];
    let on = |device| ways.map(|(transport, hca)| Route { device, transport, hca });
    [on(Device::Cuda), on(Device::Cpu)].concat()
}

/// Returns what the machine lacks for a path, by what `oxshmem-info` says of it.
fn lacks(route: Route, about: &Value) -> Option<String> {
    let devices = &about["devices"];
    let list = |name: &str| devices[name].as_array().cloned().unwrap_or_default();
    if route.device == Device::Cuda && list("gpus").is_empty() {
        let reason = devices["no_gpu"].as_str().unwrap_or("oxshmem-info did not say why");
        return Some(format!("no GPU: {reason}"));
    }
    let cards = list("cards");
    let usable =
        |card: &&Value| card["fault"].is_null() && (route.hca != Some("mlx5") || card["driver"] == "mlx5_core");
    match route.hca {
        Some(kind @ ("mlx5" | "verbs")) if !cards.iter().any(|card| usable(&card)) => {
            let faults: Vec<&str> = cards.iter().filter_map(|card| card["fault"].as_str()).collect();
            let what = if kind == "mlx5" { "ConnectX or BlueField" } else { "RDMA device" };
            let faults = if faults.is_empty() { String::new() } else { format!(": {}", faults.join("; ")) };
            Some(format!("no usable {what} in this machine{faults}"))
        }
        _ => None,
    }
}

/// Runs the check, and packs what it found; the archive.
pub fn check(runner: &Runner, report: &mut Report, only: &str) -> Result<PathBuf, String> {
    let begun = Instant::now();
    let info = runner.program("oxshmem-info").ok_or("oxshmem-info is not beside this program")?;
    let (about, verdict_of_doctor) = examine(runner, report, &info);
    let mut figures = Vec::new();
    for route in routes().into_iter().filter(|route| route.name().contains(only)) {
        let mut group = Group { part: "hardware", name: route.name(), ..Group::default() };
        let obstacle = lacks(route, &about).map(Status::Skipped).or_else(|| probe(runner, route, &mut group));
        match obstacle {
            Some(status) => group.items.push(Item { name: PATH.to_owned(), status }),
            None => {
                // How PEs reach each other, and what was tried for that; in the log.
                let step = Step::new(format!("{}-paths", route.name()), &info).args(["paths"]);
                let status = verdict(&runner.run(&environment(step, route)));
                group.items.push(Item { name: "paths".to_owned(), status });
                measure(runner, route, begun, &mut group);
            }
        }
        for line in &mut group.lines {
            line["route"] = json!(route.name());
        }
        figures.extend(group.lines.iter().cloned());
        report.add(group);
    }
    let write = |name: &str, text: String| {
        let path = runner.out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write("figures.json", format!("{:#}\n", Value::Array(figures.clone())))?;
    write("summary.md", summary(report, &about, &verdict_of_doctor, &figures))?;
    report.write(&runner.out.join("results.json"))?;
    pack(runner)
}

/// Runs the doctor, and keeps what it and `oxshmem-info` say; the latter's answer, and the doctor's
/// last line.
fn examine(runner: &Runner, report: &mut Report, info: &Path) -> (Value, String) {
    let mut group = Group { part: "hardware", name: "doctor".to_owned(), ..Group::default() };
    let ended = runner.run(&Step::new("doctor", info).args(["doctor"]));
    say(ended.text.trim_end());
    group.seconds = ended.seconds;
    let last = ended.text.lines().next_back().unwrap_or("it said nothing").to_owned();
    let verdict = match ended.text.lines().find(|line| line.starts_with("FAIL")) {
        Some(line) if !ended.good => Status::Failed(line.to_owned()),
        _ => verdict(&ended),
    };
    group.items.push(Item { name: "doctor".to_owned(), status: verdict });
    report.add(group);
    let mut about = Value::Null;
    for (name, args) in [("doctor", ["doctor", "--json"].as_slice()), ("configuration", &["--json"])] {
        let ended = runner.run(&Step::new(format!("{name}-json"), info).args(args.iter().copied()));
        about = serde_json::from_str(&ended.text).unwrap_or_default();
        // What is not written is missed in the archive, and nothing else depends on it.
        let _ = std::fs::rename(runner.out.join(format!("{name}-json.log")), runner.out.join(format!("{name}.json")));
    }
    (about, last)
}

fn environment(step: Step, route: Route) -> Step {
    let step = step
        .env("OXSHMEM_DEVICE", route.device.name())
        .env("OXSHMEM_TRANSPORT", route.transport.name())
        .env("OXSHMEM_HEAP_MAX", "256M")
        .env("OXSHMEM_HEAP_CHUNK", "2M");
    match route.hca {
        Some(hca) => step.env("OXSHMEM_HCA", hca),
        None => step,
    }
}

/// Returns whether PEs can be started over a path; what is wrong if not.
fn probe(runner: &Runner, route: Route, group: &mut Group) -> Option<Status> {
    let (Some(oxrun), Some(pe)) = (runner.program("oxrun"), runner.program("conformance-pe")) else {
        return Some(Status::Failed("oxrun and conformance-pe are not beside this program".to_owned()));
    };
    let step = Step::new(format!("{}-probe", route.name()), oxrun).args(["-n", "2"]).args([pe]).args(["probe"]);
    let ended = runner.run(&environment(step, route));
    group.seconds += ended.seconds;
    if ended.good {
        return None;
    }
    let said = ended.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    // PEs that share one machine may have no path that others have.
    match ended.status == Some(ABSENT) {
        true => Some(Status::Skipped(said.to_owned())),
        false => Some(verdict(&ended)),
    }
}

/// Conformance and figures over a path.
fn measure(runner: &Runner, route: Route, begun: Instant, group: &mut Group) {
    let late = || Status::Skipped(format!("not begun: {} minutes are over", WHOLE.as_secs() / 60));
    let program = |name: &str| runner.program(name).unwrap_or_else(|| PathBuf::from(name));
    for (case, args, npes) in CASES {
        let name = format!("{case}-{npes}");
        let status = if begun.elapsed() > WHOLE {
            late()
        } else {
            let step = Step::new(format!("{}-{name}", route.name()), program("oxrun")).args(["-n", &npes.to_string()]);
            let ended = runner.run(&environment(
                step.args([program("conformance-pe")]).args([case]).args(args.iter().copied()),
                route,
            ));
            group.seconds += ended.seconds;
            verdict(&ended)
        };
        group.items.push(Item { name, status });
    }
    for (name, args, on_cpu) in FIGURES {
        let status = if begun.elapsed() > WHOLE {
            late()
        } else {
            let json = runner.out.join(format!("{}-{name}.jsonl", route.name()));
            let brief = if route.device == Device::Cpu { on_cpu } else { &[] };
            let step = Step::new(format!("{}-{name}", route.name()), program(name))
                .args(args.iter().chain(brief).copied())
                .args([Path::new("--json"), &json]);
            let ended = runner.run(&environment(step, route));
            group.seconds += ended.seconds;
            group.lines.extend(read_lines(&json));
            verdict(&ended)
        };
        group.items.push(Item { name: name.to_owned(), status });
    }
}

/// Returns the best figures of each test over each path.
fn best(figures: &[Value]) -> String {
    let mut rows: Vec<(&str, &str, f64, f64)> = Vec::new();
    for figure in figures {
        let (Some(route), Some(bench)) = (figure["route"].as_str(), figure["bench"].as_str()) else { continue };
        let rate = figure["gbps"].as_f64().unwrap_or_default();
        let time = figure["us_p50"].as_f64().unwrap_or(f64::INFINITY);
        match rows.iter_mut().find(|row| (row.0, row.1) == (route, bench)) {
            Some(row) => (row.2, row.3) = (row.2.max(rate), row.3.min(time)),
            None => rows.push((route, bench, rate, time)),
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n| path | test | most GB/s | least us (median) |\n|---|---|---|---|\n");
    for (route, bench, rate, time) in rows {
        let rate = if rate > 0.0 { format!("{rate:.3}") } else { "-".into() };
        let time = if time.is_finite() { format!("{time:.2}") } else { "-".into() };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {route} | {bench} | {rate} | {time} |");
    }
    text
}

/// Returns the report for people who get the archive.
fn summary(report: &Report, about: &Value, doctor: &str, figures: &[Value]) -> String {
    let mut text = String::from("# Hardware check\n\n");
    let text_of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (machine, devices) = (report.machine(), &about["devices"]);
    let device_code = match about["build"]["cuda"].as_str() {
        Some(release) => format!("with device code by CUDA {release}"),
        None => "without device code for GPUs".to_owned(),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "OxSHMEM {} ({}), built {device_code}.\n\n* machine: Linux {}, {} processors, {}",
        text_of(&about["version"]),
        match machine["built_from"].as_str() {
            None | Some("") => "commit unknown",
            Some(commit) => commit,
        },
        text_of(&machine["kernel"]),
        machine["processors"],
        text_of(&machine["processor"]),
    );
    let (gpus, cards) = (devices["gpus"].as_array(), devices["cards"].as_array());
    for gpu in gpus.into_iter().flatten() {
        let _ = writeln!(text, "* GPU {}: {}, {}", gpu["ordinal"], text_of(&gpu["name"]), text_of(&gpu["pci"]));
    }
    if let Some(driver) = machine["driver"].as_str().filter(|driver| !driver.is_empty()) {
        let _ = writeln!(text, "* {driver}");
    }
    if gpus.is_none_or(Vec::is_empty) {
        let _ = writeln!(text, "* no GPU: {}", devices["no_gpu"].as_str().unwrap_or("none is seen"));
    }
    for card in cards.into_iter().flatten() {
        let _ = writeln!(
            text,
            "* card {}: {}, firmware {}",
            text_of(&card["name"]),
            text_of(&card["driver"]),
            text_of(&card["firmware"])
        );
    }
    if cards.is_none_or(Vec::is_empty) {
        text.push_str("* no RDMA card\n");
    }
    let _ = writeln!(text, "* doctor: {doctor}");
    let _ = write!(text, "\n| path | passed | failed | skipped | s |\n|---|---|---|---|---|\n");
    for (group, (passed, failed, skipped)) in report.counted() {
        let _ = writeln!(text, "| {} | {passed} | {failed} | {skipped} | {:.1} |", group.name, group.seconds);
    }
    text += &best(figures);
    for (title, failed) in [("Failed", true), ("Skipped", false)] {
        // Often one reason holds for several paths.
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for (group, item) in report.items() {
            let how = match &item.status {
                Status::Failed(how) if failed => how,
                Status::Skipped(how) if !failed => how,
                _ => continue,
            };
            let first = how.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let what = if item.name == PATH { group.name.clone() } else { format!("{} {}", group.name, item.name) };
            match reasons.iter_mut().find(|(reason, _)| *reason == first) {
                Some((_, whats)) => whats.push(what),
                None => reasons.push((first, vec![what])),
            }
        }
        let lines = reasons.iter().map(|(reason, whats)| format!("* {}: {reason}\n", whats.join(", ")));
        let lines: String = lines.collect();
        if !lines.is_empty() {
            let _ = write!(text, "\n## {title}\n\n{lines}");
        }
    }
    let _ = writeln!(
        text,
        "\n## Files\n\n{} figures are in `figures.json`, of runs that are kept short: they show whether a path works as it should, and are no measurement \
         of what it can do. Every result is in `results.json`, what the doctor said in `doctor.log` and `doctor.json`, the configuration in \
         `configuration.json`. `steps.log` has the command of each step, how it ended and how long it took; the log of its name has what it wrote, \
         which is nothing if a test of conformance passes.",
        figures.len()
    );
    text
}

/// Packs the results of this run, and nothing that an earlier one has left, beside their folder.
fn pack(runner: &Runner) -> Result<PathBuf, String> {
    let out = &runner.out;
    let files = runner.written().map_err(|error| format!("{}: {error}", out.display()))?;
    let name = out.file_name().ok_or("the folder for results has no name")?;
    let folder = out.parent().unwrap_or(Path::new("/"));
    let archive = folder.join(format!("{}.tar.gz", name.to_string_lossy()));
    let ended = Command::new("tar")
        .arg("-czf")
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .args(files.iter().map(|file| Path::new(name).join(file)))
        .output();
    match ended {
        Ok(output) if output.status.success() => Ok(archive),
        Ok(output) => Err(format!("tar: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("tar, which packs the report: {error}; the results are in {}", out.display())),
    }
}

/// Returns the runner's limits for this part.
pub fn limit() -> Duration {
    STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_figures_of_each_path_are_shown() {
        let figure =
            |route: &str, gbps: Value, us: Value| json!({ "route": route, "bench": "b", "gbps": gbps, "us_p50": us });
        let all = [
            figure("x", json!(1.5), Value::Null),
            figure("x", json!(12.25), Value::Null),
            figure("y", Value::Null, json!(3.0)),
            figure("y", Value::Null, json!(2.5)),
            json!("no figure"),
        ];
        let text = best(&all);
        assert!(text.contains("| x | b | 12.250 | - |\n| y | b | - | 2.50 |\n"), "{text}");
        assert_eq!(best(&[]), "");
    }

    #[test]
    fn what_the_machine_lacks_is_said_for_each_path() {
        let bare = json!({ "devices": { "gpus": [], "no_gpu": "no driver", "cards": [] } });
        let skipped: Vec<_> =
            routes().into_iter().filter_map(|route| Some((route.name(), lacks(route, &bare)?))).collect();
        let names: Vec<_> = skipped.iter().map(|(name, _)| name.as_str()).collect();
        let cuda =
            ["cuda-p2p", "cuda-ibgda-soft", "cuda-ibrc-soft", "cuda-ibgda-mlx5", "cuda-ibrc-mlx5", "cuda-ibrc-verbs"];
        assert_eq!(names, [cuda.as_slice(), &["cpu-ibgda-mlx5", "cpu-ibrc-mlx5", "cpu-ibrc-verbs"]].concat());
        assert_eq!(skipped[0].1, "no GPU: no driver");
        assert_eq!(skipped[6].1, "no usable ConnectX or BlueField in this machine");

        let card = |fault: Value, driver: &str| json!({ "fault": fault, "driver": driver });
        let machine = |cards: Vec<Value>| json!({ "devices": { "gpus": [{}], "cards": cards } });
        let count = |about: &Value| routes().into_iter().filter(|route| lacks(*route, about).is_some()).count();
        assert_eq!(count(&machine(vec![card(Value::Null, "mlx5_core")])), 0);
        // Another make serves verbs alone.
        assert_eq!(count(&machine(vec![card(Value::Null, "bnxt_en")])), 4);
        let down = machine(vec![card("port 1 is DOWN".into(), "mlx5_core")]);
        assert_eq!(count(&down), 6);
        let route = Route { device: Device::Cpu, transport: Transport::Ibrc, hca: Some("verbs") };
        assert!(lacks(route, &down).is_some_and(|text| text.ends_with("in this machine: port 1 is DOWN")));
        // Whatever the answer is.
        assert_eq!(count(&Value::Null), 9);
    }
}
