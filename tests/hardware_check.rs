//! `gpu-bundle/run hardware-check`, where there is nothing to check, and on the stand-in for
//! rdma-core: its report, its archive and its exit status.
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
    let lacking = "* questions, cpu-ibgda-mlx5, experiment: no usable ConnectX or BlueField in this machine";
    assert!(summary.contains(lacking), "{summary}");
    // Each question says how it would be asked, and the verdict what would be done.
    assert_eq!(summary.matches("? not asked; with a card by ").count(), 5, "{summary}");
    assert!(said.contains("verdict: no card was checked: no usable ConnectX"), "{said}");
    assert!(said.contains("With one this check asks it five questions, runs conformance and the published"), "{said}");
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

/// Everything that is done with a card, in a short form.
#[test]
fn the_stand_in_is_asked_and_judged_like_a_card() {
    let needed = ["oxshmem-info", "oxrun", "compare_transports", "shmem_put_signal_ping_pong"];
    if let Some(name) = needed.iter().find(|name| !Path::new(PROGRAM).with_file_name(name).is_file()) {
        println!("skipped: {name} is not built (cargo build --workspace --bins)");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hardware-check-stand-in");
    oxshmem_stand_in::install(&folder.join("libraries"), &[]).unwrap();
    let run = |lies: &str| {
        let mut command = check(&folder.join("results"), "cpu-ibgda-mlx5");
        command.arg("--stand-in").arg(folder.join("libraries"));
        let ended = command.env("RDMA_STAND_IN", lies).output().unwrap();
        (ended.status.code(), text(&ended))
    };
    let (status, said) = run("");
    assert_eq!(status, Some(0), "{said}");
    // The order: doctor, five questions, conformance, the experiment, the verdict.
    let mut rest = said.as_str();
    for part in [
        "ready: ",
        "\nloopback: does a queue pair reach its own card? yes: ",
        "\nuar: which kind of doorbell page does the driver give, and what rings in it? doorbell page, not cached, of its own: given",
        "\nput_signal: what does strong ordering cost a put with a signal? ",
        "\numem: does the card read its queues in GPU memory, by dma-buf? host memory as umem by address: done",
        "\nmasked-cas: are 64-bit masked compare-and-swaps right? yes: ",
        "\nhardware   cpu-ibgda-mlx5  ",
        "\noperation  ",
        "\nhardware   experiment  ",
        "\nverdict: the stand-in passes; of a card this says that the check is ready for it, and no more",
    ] {
        let at = rest.find(part).unwrap_or_else(|| panic!("no `{part}` in its place:\n{said}"));
        rest = &rest[at + part.len()..];
    }
    let summary = std::fs::read_to_string(folder.join("results/summary.md")).unwrap();
    assert!(summary.contains("## Five questions") && summary.contains("* verdict: the stand-in passes"), "{summary}");

    // A card that does masked atomics wrong, or none, is found by the questions, and judged.
    let (status, said) = run("cap:atomic_operations=3");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("\nmasked-cas: are 64-bit masked compare-and-swaps right? NO ANSWER: "), "{said}");
    assert!(said.contains("\nverdict: this card does not work yet over cpu-ibgda-mlx5: questions "), "{said}");
}
