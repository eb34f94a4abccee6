//! The parts of a run.

use std::path::{Path, PathBuf};

use oxshmem_tests::{Device, Transport, absent};
use serde_json::Value;

use crate::report::{Group, Item, Report, Status, say};
use crate::step::{Ended, Runner, Step};

const TRANSPORTS: [Transport; 3] = [Transport::P2p, Transport::Ibgda, Transport::Ibrc];

/// The test programs of the bundle, and whether their jobs may run beside each other: those of
/// `gpu` look at the free memory.
const TESTS: [(&str, bool); 6] =
    [("gpu", false), ("conformance", true), ("mlx5", true), ("errors", true), ("processes", true), ("profile", true)];

/// Runs the tests, on all GPUs and, if there are several, once more with all PEs on one.
pub fn tests(runner: &Runner, report: &mut Report, jobs: u32, only: &str) {
    for one_gpu in [false, true] {
        if one_gpu && report.gpus() < 2 {
            continue;
        }
        for (test, beside) in TESTS {
            let name = format!("{test}, {}", if one_gpu { "one GPU" } else { "all GPUs" });
            let threads = if beside { jobs } else { 1 };
            let log = format!("tests-{test}{}", if one_gpu { "-one-gpu" } else { "" });
            let mut step = Step::new(log, runner.bundle.join("tests").join(test))
                .args(["--show-output", "--test-threads", &threads.to_string()])
                // Those of the `cpu` device need no GPU to be tested.
                .args(["--skip", "cpu"]);
            if !only.is_empty() {
                step = step.args([only]);
            }
            if one_gpu {
                step = step.env("CUDA_VISIBLE_DEVICES", "0");
            }
            let ended = runner.run(&step);
            let mut items = read_tests(&ended.text);
            // A program that was killed, or has crashed, has not said how its last tests ended.
            if !ended.text.lines().any(|line| line.starts_with("test result: ")) {
                items.push(Item { name: format!("{test} as a whole"), status: Status::Failed(ended.how) });
            }
            report.add(Group { part: "tests", name, seconds: ended.seconds, items, lines: Vec::new() });
        }
    }
}

/// Returns what Rust's test harness printed with `--show-output`.
fn read_tests(text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut shown: Option<&str> = None;
    for line in text.lines() {
        if let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
            let name = name.trim_end_matches(" - should panic").to_owned();
            let status = match result {
                "ok" => Status::Passed,
                other if other.starts_with("ignored") => Status::Skipped(other.to_owned()),
                other => Status::Failed(other.to_owned()),
            };
            items.push(Item { name, status });
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            shown = Some(name);
        } else if line == "successes:" || line == "failures:" {
            shown = None;
        } else if let Some(item) = shown.and_then(|name| items.iter_mut().find(|item| item.name == name)) {
            match (&mut item.status, line.strip_prefix("skipped: ")) {
                (status @ Status::Passed, Some(reason)) => *status = Status::Skipped(reason.to_owned()),
                (Status::Failed(how), _) if how == "FAILED" => line.clone_into(how),
                (Status::Failed(how), _) => {
                    how.push('\n');
                    how.push_str(line);
                }
                _ => {}
            }
        }
    }
    items
}

/// The reason why programs of the bundle cannot run on GPUs over a transport.
fn obstacle(runner: &Runner, transport: Transport) -> Option<String> {
    let Some(pe) = runner.program("conformance-pe") else {
        return Some("bin/conformance-pe is not in this bundle".to_owned());
    };
    absent(&pe.to_string_lossy(), Device::Cuda, transport)
}

/// Returns what a program that was run by itself makes of an item.
pub fn verdict(ended: &Ended) -> Status {
    if ended.good {
        return Status::Passed;
    }
    let said = ended.text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Status::Failed(format!("{}: {said}", ended.how))
}

/// JSON lines in a file; none if there is no file.
pub fn read_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs every performance test and application over all transports, with its defaults.
pub fn perftests(runner: &Runner, report: &mut Report, only: &str) {
    let mut programs: Vec<String> = std::fs::read_dir(runner.bundle.join("bin"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("shmem_") || ["jacobi", "alltoall"].contains(&name.as_str()))
        .filter(|name| name.contains(only))
        .collect();
    programs.sort();
    for transport in TRANSPORTS {
        let mut group = Group { part: "perftests", name: transport.name().to_owned(), ..Group::default() };
        let obstacle = obstacle(runner, transport);
        for name in &programs {
            let status = match &obstacle {
                Some(reason) => Status::Skipped(reason.clone()),
                None => {
                    let json = runner.out.join(format!("{name}-{}.jsonl", transport.name()));
                    let step = Step::new(format!("{name}-{}", transport.name()), runner.bundle.join("bin").join(name))
                        .args(["--device", "cuda", "--transport", transport.name(), "--json"])
                        .args([&json]);
                    let ended = runner.run(&step);
                    group.seconds += ended.seconds;
                    group.lines.extend(read_lines(&json));
                    say(ended.text.trim_end());
                    verdict(&ended)
                }
            };
            group.items.push(Item { name: name.clone(), status });
        }
        report.add(group);
    }
}

/// The performance tests of `grids`, with what they are told besides.
const GRID_TESTS: [(&str, &[&str]); 4] = [
    ("shmem_p_bw", &["--stride", "1"]),
    ("shmem_p_bw", &["--stride", "16"]),
    ("shmem_put_bw", &["--scope", "thread"]),
    ("shmem_atomic_bw", &[]),
];
/// CTAs: two for each SM of a large GPU, as many threads as it holds, and far more; with the number
/// of threads of each.
const GRIDS: [u64; 4] = [264, 1056, 4096, 16384];
const GRID_THREADS: u64 = 256;
/// A deadline below this part's limit of a step, so that what hangs says where.
const GRID_TIMEOUT: &str = "20s";

/// The most atomics of a test: each takes a landing slot, of which there are few, so they come in
/// many rounds.
const GRID_ATOMICS: u64 = 1 << 16;

/// Runs grids that leave the software HCA's kernel no room on a GPU, each thread with one
/// operation; atomics are fewer.
pub fn grids(runner: &Runner, report: &mut Report, only: &str) {
    for transport in TRANSPORTS {
        let obstacle = obstacle(runner, transport);
        let queue_pairs: &[&str] = if transport == Transport::P2p { &["1"] } else { &["1", "4", "64"] };
        for qps in queue_pairs {
            let name = format!("{}, {qps} queue pairs", transport.name());
            let mut group = Group { part: "grids", name, ..Group::default() };
            for ((program, options), ctas) in GRID_TESTS.iter().flat_map(|test| GRIDS.map(|ctas| (test, ctas))) {
                let item = format!("{program} {} -c {ctas}", options.join(" "));
                if !item.contains(only) {
                    continue;
                }
                let status = match &obstacle {
                    Some(reason) => Status::Skipped(reason.clone()),
                    None => {
                        let log = item.replace([' ', '-'], "");
                        let log = format!("{log}-{}-{qps}", transport.name());
                        let json = runner.out.join(format!("{log}.jsonl"));
                        let threads = ctas * GRID_THREADS;
                        let operations =
                            if *program == "shmem_atomic_bw" { threads.min(GRID_ATOMICS) } else { threads };
                        let (ctas_text, bytes) = (ctas.to_string(), (operations * 8).to_string());
                        let step = Step::new(log, runner.bundle.join("bin").join(program))
                            .args([
                                "--device",
                                "cuda",
                                "--transport",
                                transport.name(),
                                "--qps",
                                qps,
                                "-n",
                                "1",
                                "-w",
                                "0",
                            ])
                            .args(["-c", &ctas_text, "-t", &GRID_THREADS.to_string(), "-b", &bytes, "-e", &bytes])
                            .args(*options)
                            .args([Path::new("--json"), &json])
                            .env("OXSHMEM_TIMEOUT", GRID_TIMEOUT);
                        let ended = runner.run(&step);
                        group.seconds += ended.seconds;
                        group.lines.extend(read_lines(&json));
                        say(ended.text.trim_end());
                        verdict(&ended)
                    }
                };
                group.items.push(Item { name: item, status });
            }
            report.add(group);
        }
    }
}

/// Runs the comparison with NVSHMEM; without NVSHMEM it measures our side alone, and says so.
pub fn compare(runner: &Runner, report: &mut Report, only: &str) {
    let mut group = Group { part: "compare", name: "with NVSHMEM".to_owned(), ..Group::default() };
    let json = runner.out.join("compare.jsonl");
    let run = || {
        let program = runner.program("compare").ok_or("bin/compare is not in this bundle")?;
        if report.gpus() < 2 {
            return Err(format!("it takes two GPUs, and there are {}", report.gpus()));
        }
        if let Some(reason) = obstacle(runner, Transport::P2p) {
            return Err(reason);
        }
        let mut step = Step::new("compare", program)
            .args([Path::new("--json"), &json, Path::new("--plot"), &runner.out.join("compare.svg")])
            .env("LD_LIBRARY_PATH", libraries(&runner.bundle.join("bin")));
        if !only.is_empty() {
            step = step.args(["--only", only]);
        }
        Ok(runner.run(&step))
    };
    let status = match run() {
        Err(reason) => Status::Skipped(reason),
        Ok(ended) => {
            group.seconds = ended.seconds;
            group.lines = read_lines(&json);
            say(ended.text.trim_end());
            verdict(&ended)
        }
    };
    group.items.push(Item { name: "compare".to_owned(), status });
    report.add(group);
}

/// The programs of `tests/compat` that fill a GPU, so that each of their PEs needs one.
const FILLS_A_GPU: &str = "ring";

/// Runs the programs that were written for NVSHMEM over every transport, as two PEs.
pub fn compat(runner: &Runner, report: &mut Report, only: &str) {
    let folder = runner.bundle.join("compat");
    let mut programs: Vec<PathBuf> = std::fs::read_dir(folder.join("bin"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        // Beside them are modules that they load.
        .filter(|path| path.extension().is_none())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(only)))
        .collect();
    programs.sort();
    for transport in TRANSPORTS {
        let mut group = Group { part: "compat", name: transport.name().to_owned(), ..Group::default() };
        let obstacle = obstacle(runner, transport);
        if programs.is_empty() && only.is_empty() {
            let status = Status::Skipped(format!("{} is not in this bundle", folder.join("bin").display()));
            group.items.push(Item { name: "programs".to_owned(), status });
        }
        for program in &programs {
            let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let npes = if name == FILLS_A_GPU && report.gpus() < 2 { "1" } else { "2" };
            let status = match &obstacle {
                Some(reason) => Status::Skipped(reason.clone()),
                None => {
                    let step =
                        Step::new(format!("compat-{name}-{}", transport.name()), runner.bundle.join("bin/oxrun"))
                            .args(["-n", npes])
                            .args([program])
                            .env("OXSHMEM_TRANSPORT", transport.name())
                            .env("LD_LIBRARY_PATH", libraries(&folder.join("lib")));
                    let ended = runner.run(&step);
                    group.seconds += ended.seconds;
                    verdict(&ended)
                }
            };
            group.items.push(Item { name, status });
        }
        report.add(group);
    }
}

/// Returns the search path for shared libraries, with a folder of the bundle first.
fn libraries(own: &Path) -> String {
    let own = own.display().to_string();
    match std::env::var("LD_LIBRARY_PATH") {
        Ok(others) if !others.is_empty() => format!("{own}:{others}"),
        _ => own,
    }
}

/// The tests' core for the sanitizers: cases, their arguments, and PEs. Sanitized kernels are 10 to
/// 100 times slower, so rounds are few.
const SANITIZED: [(&str, &[&str], u32); 7] = [
    ("rma", &["1"], 2),
    ("lanes", &[], 2),
    ("signals", &[], 2),
    ("atomic_values", &[], 2),
    ("barriers", &["3"], 2),
    ("fence", &[], 2),
    ("collectives", &["100"], 2),
];

/// Returns where compute-sanitizer is: in `PATH`, or where CUDA installs itself.
fn sanitizer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders.map(|folder| folder.join("compute-sanitizer")).find(|path| path.is_file())
}

/// Runs the core of the tests under the sanitizers, with every PE of a job under one.
pub fn sanitize(runner: &Runner, report: &mut Report, only: &str) {
    let sanitizer = sanitizer().ok_or("compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin");
    for tool in ["memcheck", "racecheck"] {
        for transport in TRANSPORTS {
            let name = format!("{tool}, {}", transport.name());
            let mut group = Group { part: "sanitize", name, ..Group::default() };
            let usable = match (&sanitizer, obstacle(runner, transport)) {
                (Err(reason), _) => Err((*reason).to_owned()),
                (_, Some(reason)) => Err(reason),
                (Ok(sanitizer), None) => Ok(sanitizer),
            };
            for (case, args, npes) in SANITIZED.iter().filter(|(case, ..)| case.contains(only)) {
                let status = match &usable {
                    Err(reason) => Status::Skipped(reason.clone()),
                    Ok(sanitizer) => {
                        let ended = runner.run(&sanitized(runner, (sanitizer, tool), transport, (case, args), *npes));
                        group.seconds += ended.seconds;
                        verdict(&ended)
                    }
                };
                group.items.push(Item { name: (*case).to_owned(), status });
            }
            report.add(group);
        }
    }
}

/// Returns a job of the conformance program under a tool of a sanitizer.
fn sanitized(
    runner: &Runner,
    (sanitizer, tool): (&Path, &str),
    transport: Transport,
    (case, args): (&str, &[&str]),
    npes: u32,
) -> Step {
    // Any status but 0 will do: it says that the sanitizer has found something.
    const FOUND: &str = "97";
    let bin = |name: &str| runner.bundle.join("bin").join(name);
    // The runtime asks the driver for a kernel's parameters until it says that it has reported all,
    // which is not to be reported.
    let quietly: &[&str] = if tool == "memcheck" { &["--report-api-errors", "no"] } else { &[] };
    Step::new(format!("{tool}-{case}-{}", transport.name()), sanitizer)
        .args(["--tool", tool, "--target-processes", "all", "--error-exitcode", FOUND])
        .args(quietly)
        .args([bin("oxrun")])
        .args(["-n".to_owned(), npes.to_string()])
        .args([bin("conformance-pe")])
        .args([case])
        .args(args.iter().copied())
        .env("OXSHMEM_DEVICE", Device::Cuda.name())
        .env("OXSHMEM_TRANSPORT", transport.name())
        .env("OXSHMEM_HEAP_CHUNK", "2M")
        .env("OXSHMEM_HEAP_MAX", "256M")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_harness_prints() {
        let text = "\nrunning 4 tests\ntest a::cuda ... ok\ntest b::cuda ... ok\ntest c::cuda ... FAILED\n\
            test d ... ignored, slow\n\nsuccesses:\n\n---- a::cuda stdout ----\nskipped: no GPU\n\n\nsuccesses:\n    a::cuda\n\n\
            failures:\n\n---- c::cuda stdout ----\n\nthread panicked\nvalues differ\n\n\nfailures:\n    c::cuda\n\n\
            test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let items = read_tests(text);
        let names: Vec<_> = items.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["a::cuda", "b::cuda", "c::cuda", "d"]);
        assert_eq!(items[0].status, Status::Skipped("no GPU".to_owned()));
        assert_eq!(items[1].status, Status::Passed);
        assert!(matches!(&items[2].status, Status::Failed(how) if how.contains("values differ")), "{items:?}");
        assert_eq!(items[3].status, Status::Skipped("ignored, slow".to_owned()));
    }
}
