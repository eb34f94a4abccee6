//! The hardware check: the doctor, five questions to the card, conformance and performance over
//! every path that the machine offers, the published experiment over the card, a verdict, and one
//! archive of it all.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use oxshmem_tests::{ABSENT, Device, Transport};
use serde_json::{Value, json};

use crate::parts::{read_lines, verdict};
use crate::questions::{self, Asking, StepFor};
use crate::report::{Group, Item, Report, Status, say};
use crate::step::{Runner, Step};

/// The longest that one step may take. On a path that works each takes seconds.
const STEP: Duration = Duration::from_secs(120);
/// When this much time has passed no further step is begun.
const WHOLE: Duration = Duration::from_secs(30 * 60);

/// The longest that the published experiment may take.
const EXPERIMENT: Duration = Duration::from_secs(15 * 60);

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

/// The check: what runs it, which paths it is about, and the stand-in's folder where that takes the
/// place of a card.
#[derive(Debug)]
pub struct Check<'a> {
    /// Runs the steps.
    pub runner: &'a Runner,
    /// A part of the names of paths.
    pub only: &'a str,
    /// The folder with the stand-in for rdma-core.
    pub stand_in: Option<&'a Path>,
}

/// A route of a check, for what runs over it.
#[derive(Debug)]
struct Over<'a>(&'a Check<'a>, Route);

impl StepFor for Over<'_> {
    fn complete(&self, step: Step) -> Step {
        self.0.environment(step, self.1)
    }
}

impl Check<'_> {
    /// Runs the check, and packs what it found; the archive.
    pub fn run(&self, report: &mut Report) -> Result<PathBuf, String> {
        let begun = Instant::now();
        let runner = self.runner;
        let info = runner.program("oxshmem-info").ok_or("oxshmem-info is not beside this program")?;
        let (about, verdict_of_doctor) = examine(runner, report, &info);
        let mut figures = Vec::new();

        let card = self.card(&about);
        if self.stand_in.is_some() {
            say(
                "the stand-in for rdma-core takes the place of a card: everything is done, in a short form, and figures say nothing",
            );
        }
        let mut answers = String::new();
        if let Some(card) = &card {
            let mut group = Group { part: "hardware", name: "questions".to_owned(), ..Group::default() };
            answers = match card {
                Ok(route) => {
                    let brief = if route.device == Device::Cpu { &BRIEFLY[..] } else { &[] };
                    let asking = Asking { runner, through_the_card: &Over(self, *route), brief };
                    questions::ask(&asking, &mut group)
                }
                Err(reason) => questions::leave_out(reason, &mut group),
            };
            report.add(group);
        }

        for route in routes().into_iter().filter(|route| route.name().contains(self.only)) {
            let mut group = Group { part: "hardware", name: route.name(), ..Group::default() };
            let obstacle = self.lacks(route, &about).map(Status::Skipped).or_else(|| self.probe(route, &mut group));
            match obstacle {
                Some(status) => group.items.push(Item { name: PATH.to_owned(), status }),
                None => {
                    // How PEs reach each other, and what was tried for that; in the log.
                    let step = Step::new(format!("{}-paths", route.name()), &info).args(["paths"]);
                    let status = verdict(&runner.run(&self.environment(step, route)));
                    group.items.push(Item { name: "paths".to_owned(), status });
                    self.measure(route, begun, &mut group);
                }
            }
            for line in &mut group.lines {
                line["route"] = json!(route.name());
            }
            figures.extend(group.lines.iter().cloned());
            report.add(group);
        }

        let mut experiment = None;
        if let Some(card) = &card {
            let group = self.experiment(card);
            experiment = (!group.lines.is_empty()).then(|| questions::experiment(&group.lines));
            report.add(group);
        }
        let judged = card.map(|card| self.judge(report, &card.map(Route::name), experiment.as_deref()));
        if let Some(judged) = &judged {
            say(&format!("verdict: {judged}"));
        }

        let write = |name: &str, text: String| {
            let path = runner.out.join(name);
            std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        write("figures.json", format!("{:#}\n", Value::Array(figures.clone())))?;
        let findings = Findings { doctor: &verdict_of_doctor, answers: &answers, judged: judged.as_deref() };
        write("summary.md", summary(report, &about, &findings, &figures))?;
        report.write(&runner.out.join("results.json"))?;
        pack(runner)
    }

    /// Returns the path by which the card is asked and the experiment made, or why there is none;
    /// nothing where the check is about other paths.
    fn card(&self, about: &Value) -> Option<Result<Route, String>> {
        let over_card = |route: &Route| (route.transport, route.hca) == (Transport::Ibgda, Some("mlx5"));
        let named = |route: &Route| route.name().contains(self.only);
        let all: Vec<Route> = routes().into_iter().filter(over_card).filter(named).collect();
        let mut reason = None;
        for route in all {
            match self.lacks(route, about) {
                None => return Some(Ok(route)),
                Some(lack) => reason = Some(lack),
            }
        }
        reason.map(Err)
    }

    /// Returns what the machine lacks for a path. The stand-in is a card for the `cpu` device, and
    /// then nothing else is of interest.
    fn lacks(&self, route: Route, about: &Value) -> Option<String> {
        match (self.stand_in, route) {
            (None, _) => lacks(route, about),
            (Some(_), Route { device: Device::Cpu, hca: Some("mlx5"), .. }) => None,
            (Some(_), _) => Some("the stand-in for rdma-core is what is checked".to_owned()),
        }
    }

    fn environment(&self, step: Step, route: Route) -> Step {
        let step = self.device_and_card(step, route);
        step.env("OXSHMEM_TRANSPORT", route.transport.name())
    }

    /// Leaves the transport open.
    fn device_and_card(&self, step: Step, route: Route) -> Step {
        let step = step
            .env("OXSHMEM_DEVICE", route.device.name())
            .env("OXSHMEM_HEAP_MAX", "256M")
            .env("OXSHMEM_HEAP_CHUNK", "2M");
        match (self.stand_in, route.hca) {
            (Some(folder), Some(_)) => step.env("OXSHMEM_HCA", "mlx5:mlx5_0").env("LD_LIBRARY_PATH", folder),
            (_, Some(hca)) => step.env("OXSHMEM_HCA", hca),
            (_, None) => step,
        }
    }

    /// The published experiment over the card: put bandwidth by size and CTAs, the rate of p by
    /// CTAs, IBGDA beside IBRC.
    fn experiment(&self, card: &Result<Route, String>) -> Group {
        const NAME: &str = "compare_transports";
        let mut group = Group { part: "hardware", name: "experiment".to_owned(), ..Group::default() };
        let status = match (card, self.runner.program(NAME)) {
            (Err(reason), _) => {
                group.items.push(Item { name: PATH.to_owned(), status: Status::Skipped(reason.clone()) });
                return group;
            }
            (Ok(_), None) => Status::Failed(format!("{NAME} is not beside this program")),
            (Ok(route), Some(program)) => {
                let files = ["jsonl", "svg"].map(|end| self.runner.out.join(format!("experiment.{end}")));
                let step = Step::new("experiment", program).limit(EXPERIMENT);
                let step = step.args([Path::new("--json"), &files[0], Path::new("--plot"), &files[1]]);
                let step = step.args(["--device", route.device.name()]);
                let step = if self.stand_in.is_some() { step.args(["--short"]) } else { step };
                let ended = self.runner.run(&self.device_and_card(step, *route));
                say(ended.text.trim_end());
                group.seconds = ended.seconds;
                group.lines = read_lines(&files[0]);
                verdict(&ended)
            }
        };
        group.items.push(Item { name: NAME.to_owned(), status });
        group
    }

    /// Returns what all of it says of the card.
    fn judge(&self, report: &Report, card: &Result<String, String>, experiment: Option<&str>) -> String {
        let failed: Vec<String> = report
            .items()
            .filter(|(group, item)| {
                let about_card = group.name.ends_with("mlx5") || ["questions", "experiment"].contains(&&*group.name);
                about_card && matches!(item.status, Status::Failed(_))
            })
            .map(|(group, item)| format!("{} {}", group.name, item.name))
            .collect();
        let experiment = experiment.map(|experiment| format!("; {experiment}")).unwrap_or_default();
        match (card, self.stand_in, failed.is_empty()) {
            (Err(reason), ..) => format!(
                "no card was checked: {reason}. With one this check asks it five questions, runs conformance and the published experiment over \
                 it (docs/hardware.md, \"The first hour with a card\")"
            ),
            (Ok(_), Some(_), true) => {
                "the stand-in passes; of a card this says that the check is ready for it, and no more".to_owned()
            }
            (Ok(route), _, true) => format!("this card works over {route}: nothing failed{experiment}"),
            (Ok(route), _, false) => format!("this card does not work yet over {route}: {}", failed.join(", ")),
        }
    }

    /// Returns whether PEs can be started over a path; what is wrong if not.
    fn probe(&self, route: Route, group: &mut Group) -> Option<Status> {
        let (Some(oxrun), Some(pe)) = (self.runner.program("oxrun"), self.runner.program("conformance-pe")) else {
            return Some(Status::Failed("oxrun and conformance-pe are not beside this program".to_owned()));
        };
        let step = Step::new(format!("{}-probe", route.name()), oxrun).args(["-n", "2"]).args([pe]).args(["probe"]);
        let ended = self.runner.run(&self.environment(step, route));
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
    fn measure(&self, route: Route, begun: Instant, group: &mut Group) {
        let late = || Status::Skipped(format!("not begun: {} minutes are over", WHOLE.as_secs() / 60));
        let program = |name: &str| self.runner.program(name).unwrap_or_else(|| PathBuf::from(name));
        let short = self.stand_in.is_some();
        for (case, args, npes) in CASES.into_iter().take(if short { 1 } else { CASES.len() }) {
            let name = format!("{case}-{npes}");
            let status = if begun.elapsed() > WHOLE {
                late()
            } else {
                let step =
                    Step::new(format!("{}-{name}", route.name()), program("oxrun")).args(["-n", &npes.to_string()]);
                let ended = self.runner.run(&self.environment(
                    step.args([program("conformance-pe")]).args([case]).args(args.iter().copied()),
                    route,
                ));
                group.seconds += ended.seconds;
                verdict(&ended)
            };
            group.items.push(Item { name, status });
        }
        for (name, args, on_cpu) in FIGURES.into_iter().take(if short { 1 } else { FIGURES.len() }) {
            let status = if begun.elapsed() > WHOLE {
                late()
            } else {
                let json = self.runner.out.join(format!("{}-{name}.jsonl", route.name()));
                let brief = if route.device == Device::Cpu { on_cpu } else { &[] };
                let step = Step::new(format!("{}-{name}", route.name()), program(name))
                    .args(args.iter().chain(brief).copied())
                    .args([Path::new("--json"), &json]);
                let ended = self.runner.run(&self.environment(step, route));
                group.seconds += ended.seconds;
                group.lines.extend(read_lines(&json));
                verdict(&ended)
            };
            group.items.push(Item { name: name.to_owned(), status });
        }
    }
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

/// What was found besides figures.
#[derive(Debug)]
struct Findings<'a> {
    /// The doctor's last line.
    doctor: &'a str,
    /// To the five questions.
    answers: &'a str,
    /// The verdict on the card.
    judged: Option<&'a str>,
}

/// Returns the report for people who get the archive.
fn summary(report: &Report, about: &Value, findings: &Findings<'_>, figures: &[Value]) -> String {
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
    let _ = writeln!(text, "* doctor: {}", findings.doctor);
    if let Some(judged) = findings.judged {
        let _ = writeln!(text, "* verdict: {judged}");
    }
    if !findings.answers.is_empty() {
        let _ = write!(text, "\n## Five questions\n\n{}", findings.answers);
    }
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
