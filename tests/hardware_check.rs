//! `gpu-bundle/run hardware-check`, where there is nothing to check: its report, its archive and
//! its exit status.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpu-bundle-run");

fn check(out: &Path, only: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["hardware-check", "--only", only, "--out"]).arg(out);
    command
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[test]
fn what_is_missing_is_said_and_everything_is_packed() {
    let info = Path::new(PROGRAM).with_file_name("oxshmem-info");
    if !info.is_file() {
        println!("skipped: oxshmem-info is not built (cargo build -p oxshmem-info)");
        return;
    }
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hardware-check");
    let _ = std::fs::remove_dir_all(&out);
    // What an earlier run has left.
    let old = out.join("old.log");
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(&old, "").unwrap();
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    // A card that no machine of the tests has: nothing but the doctor runs.
    let ended = check(&out, "cpu-ibgda-mlx5").env("OXSHMEM_DEVICE", "cpu").output().unwrap();
    let said = text(&ended);
    if !said.contains("skipped: no usable ConnectX") {
        println!("skipped: this machine has a card");
        return;
    }
    assert!(ended.status.success(), "{said}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    for name in ["doctor.json", "configuration.json", "figures.json", "results.json"] {
        serde_json::from_str::<Value>(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let summary = read("summary.md");
    assert!(summary.contains("| doctor | 1 | 0 | 0 |"), "{summary}");
    assert!(summary.contains("* cpu-ibgda-mlx5: no usable ConnectX or BlueField in this machine"), "{summary}");
    assert!(summary.contains("\n* machine: Linux ") && summary.contains("\n* doctor: ready: "), "{summary}");
    let steps = read("steps.log");
    assert!(steps.starts_with("doctor: exit status 0, ") && steps.contains("/oxshmem-info doctor\n"), "{steps}");
    let listed = Command::new("tar").arg("-tzf").arg(out.with_file_name("hardware-check.tar.gz")).output().unwrap();
    let listed = text(&listed);
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("hardware-check/")).collect();
    names.sort_unstable();
    let expected =
        ["configuration.json", "doctor.json", "doctor.log", "figures.json", "results.json", "steps.log", "summary.md"];
    assert_eq!(names, expected);

    // A doctor that finds the machine not ready fails the check.
    let ended = check(&out, "cpu-ibgda-mlx5").env("OXSHMEM_HCA", "verbs:no_such_card").output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    assert!(text(&ended).contains("there is no RDMA device no_such_card"), "{}", text(&ended));
}
