//! Profiling: counters, traces and NVTX ranges.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use oxshmem::launch::Outcome;
use oxshmem_tests::{Device, Job, Transport, on_devices};
use serde_json::Value;

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// A folder of a test, empty when it begins.
fn folder(name: &str) -> PathBuf {
    let folder = oxshmem_tests::scratch(env!("CARGO_TARGET_TMPDIR")).join(format!("profile-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn job(transport: Transport, profile: &str, folder: &Path) -> Job {
    Job::new(PE, "profile", 2)
        .transport(transport)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_PROFILE", profile)
        .env("OXSHMEM_PROFILE_DIR", folder)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

fn errors(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8_lossy(&outcome.pes[rank].stderr).into_owned()
}

/// Names of files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

mod calls {
    use super::*;

    macro_rules! with {
        ($($transport:ident: $name:ident),*) => {$(
            mod $name {
                use super::*;
                fn counted_and_recorded() -> Job {
                    job(Transport::$transport, "counters,trace", &folder(concat!("both-", stringify!($name))))
                }
                on_devices!([cpu cuda] counted_and_recorded);
            }
        )*};
    }
    with!(P2p: p2p, Ibgda: ibgda, Ibrc: ibrc);
}

mod cpu {
    use super::*;

    #[test]
    fn nothing_is_counted_of_device_code_unless_requested() {
        let folder = folder("none");
        for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
            let outcome = job(transport, "none", &folder).on(Device::Cpu).passes();
            assert_eq!(errors(&outcome, 0), "");
        }
        assert!(files(&folder).is_empty());
    }

    #[test]
    fn files_are_written_at_finalize() {
        for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
            let folder = folder(&format!("files-{}", transport.name()));
            job(transport, "counters,trace", &folder.join("made/here")).on(Device::Cpu).passes();
            let folder = folder.join("made/here");
            assert_eq!(files(&folder), ["counters-0.json", "counters-1.json", "trace-0.json", "trace-1.json"]);
            let counters = json(&folder.join("counters-1.json"));
            assert_eq!((counters["pe"].as_u64(), counters["counts_device"].as_bool()), (Some(1), Some(true)));
            let puts = |call: &&Value| call["operation"] == "put" && call["origin"] == "device";
            let put = counters["calls"].as_array().unwrap().iter().find(puts).unwrap();
            assert_eq!((put["pe"].as_u64(), put["calls"].as_u64()), (Some(0), Some(1)));
            let trace = json(&folder.join("trace-0.json"));
            let events = trace["traceEvents"].as_array().unwrap();
            let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
            assert!(of("X") > 10 && of("M") >= 3);
            assert_eq!(of("b"), of("e"));
            assert_eq!(of("b") > 0, transport != Transport::P2p);
            assert_eq!(trace["otherData"]["dropped"], 0);
        }
    }

    #[test]
    fn a_ring_that_is_full_drops_the_oldest_and_counts_them() {
        for transport in [Transport::P2p, Transport::Ibgda, Transport::Ibrc] {
            let folder = folder(&format!("full-{}", transport.name()));
            Job::new(PE, "profile_full", 2)
                .on(Device::Cpu)
                .transport(transport)
                .env("OXSHMEM_HCA", "soft")
                .env("OXSHMEM_PROFILE", "trace")
                .env("OXSHMEM_PROFILE_RECORDS", "64")
                .env("OXSHMEM_PROFILE_DIR", &folder)
                .passes();
            assert!(json(&folder.join("trace-0.json"))["otherData"]["dropped"].as_u64().unwrap() > 100);
        }
    }

    #[test]
    fn what_profiling_costs_can_be_measured() {
        let outcome = Job::new(PE, "profile_cost", 2).on(Device::Cpu).args(&["20"]).passes();
        assert_eq!(oxshmem_tests::stdout(&outcome, 0).lines().count(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_one_line_and_no_failure() {
        let folder = folder("unwritable");
        let file = folder.join("file");
        std::fs::write(&file, "").unwrap();
        let outcome = job(Transport::P2p, "trace", &file).on(Device::Cpu).passes();
        for rank in 0..2 {
            let errors = errors(&outcome, rank);
            let begin = format!("oxshmem: PE {rank}: {}/trace-{rank}.json is not written: ", file.display());
            assert!(errors.starts_with(&begin) && errors.lines().count() == 1, "{errors}");
            assert!(errors.contains("OXSHMEM_PROFILE_DIR"), "{errors}");
        }
        assert_eq!(files(&folder), ["file"]);
    }

    /// A tool for NVTX, compiled.
    fn tool(folder: &Path) -> PathBuf {
        let library = folder.join("tool.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("nvtx/tool.c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let compiled = Command::new(compiler)
            .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&library, &source])
            .status();
        assert!(compiled.unwrap().success());
        library
    }

    /// A job of one PE with a tool.
    fn with_tool(folder: &Path, library: &Path) -> Job {
        Job::new(PE, "profile", 1)
            .on(Device::Cpu)
            .env("OXSHMEM_PROFILE", "nvtx")
            .env("OXSHMEM_PROFILE_DIR", folder)
            .env("NVTX_INJECTION64_PATH", library)
            .env("NVTX_TOOL_LOG", folder.join("log"))
    }

    #[test]
    fn a_tool_sees_the_phases_of_init_the_calls_and_the_launches() {
        let folder = folder("nvtx");
        let outcome = with_tool(&folder, &tool(&folder)).passes();
        assert_eq!(errors(&outcome, 0), "");
        let log = std::fs::read_to_string(folder.join("log")).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        let phases =
            ["bootstrap", "device", "peers", "HCA", "slab", "heap addresses", "network", "modules", "heap memory"];
        let ranges: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("0 OxSHMEM ")).collect();
        assert_eq!(ranges[..phases.len()], phases.map(|phase| format!("{phase} 0")));
        for wanted in ["put 320", "barrier 0", "profile_exchange 0", "alloc 648", "wait 0", "quiet 0"] {
            assert!(lines.iter().any(|line| line.ends_with(&format!("OxSHMEM {wanted}"))), "no `{wanted}` in {log}");
        }
        // Every range ends, in the order of a stack.
        let mut depth = 0;
        for line in &lines {
            let (at, what) = line.split_once(' ').unwrap();
            depth -= usize::from(what == "end");
            assert_eq!(at.parse::<usize>().unwrap(), depth, "{line} in {log}");
            depth += usize::from(what != "end");
        }
        assert_eq!(depth, 0);
        assert!(!folder.join("trace-0.json").exists());
    }

    #[test]
    fn a_tool_that_is_missing_or_takes_nothing_is_one_line() {
        let folder = folder("no-nvtx");
        let tool = tool(&folder);
        let absent = folder.join("absent.so");
        let other = Path::new("/proc/self/exe");
        let plain = |library: &Path| with_tool(&folder, library);
        for (job, wanted) in [
            (
                plain(Path::new("")),
                "no tool takes NVTX ranges: NVTX_INJECTION64_PATH is not set; start the program under one",
            ),
            (plain(&absent), "absent.so: cannot open shared object file"),
            (plain(other), "the tool of NVTX_INJECTION64_PATH=/proc/self/exe: "),
            (plain(&tool).env("NVTX_TOOL_REFUSES", "1"), "tool.so: it does not start"),
            (plain(&tool).env("NVTX_TOOL_TAKES_NOTHING", "1"), "tool.so: it takes no ranges of domains"),
        ] {
            let outcome = job.passes();
            let errors = errors(&outcome, 0);
            assert!(
                errors.starts_with("oxshmem: PE 0: OXSHMEM_PROFILE=nvtx: ") && errors.lines().count() == 1,
                "{errors}"
            );
            assert!(errors.contains(wanted), "no `{wanted}` in {errors}");
        }
    }
}
