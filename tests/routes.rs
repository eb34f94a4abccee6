//! Rails: what jobs on described machines count by the way between cards, and what `oxshmem-info`
//! makes of it and decides.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use oxshmem_tests::{Job, Transport, transcript};
use serde_json::Value;

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Machines that `hca/src/topology` describes for its own tests, with their sources.
const DGX_H100: &str = include_str!("../hca/src/topology/fixtures/dgx-h100.txt");
const DGX_A100: &str = include_str!("../hca/src/topology/fixtures/dgx-a100.txt");
const H20: &str = include_str!("../hca/src/topology/fixtures/h20-two-sockets.txt");
const SINGLE_CARD: &str = include_str!("../hca/src/topology/fixtures/single-card.txt");

/// PEs of a node.
const PES: u64 = 8;
/// Queue pairs to each peer.
const QPS: u64 = 2;
/// What each PE puts to each PE of other nodes.
const PUTS: u64 = 5;
const BYTES: u64 = 100;

/// A folder of a test, empty when it begins.
fn folder(name: &str) -> PathBuf {
    let folder = oxshmem_tests::scratch(env!("CARGO_TARGET_TMPDIR")).join(format!("routes-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs `oxshmem-info` with a machine, if one is given.
fn info(machine: Option<&Path>, args: &[&str]) -> Output {
    // The workspace's tests are built with it.
    let program = oxshmem_tests::program(Path::new(PE).with_file_name("oxshmem-info").to_str().unwrap());
    let mut command = Command::new(&program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OXSHMEM_")) {
        command.env_remove(name);
    }
    let output = command.args(args).envs(machine.map(|machine| ("OXSHMEM_TOPOLOGY", machine))).output();
    output.unwrap_or_else(|error| panic!("{}: {error}; cargo build -p oxshmem-info", program.display()))
}

fn text(output: &Output) -> (Option<i32>, String) {
    let all = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(all).unwrap())
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(output).1);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Two nodes of eight PEs on a described machine.
fn job(machine: &Path, transport: Transport, puts: u64, results: &Path) -> Job {
    Job::new(PE, "routes", 2 * PES as u32)
        .args(&[&puts.to_string(), &BYTES.to_string()])
        .nodes(2)
        .transport(transport)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_QPS_PER_PEER", QPS.to_string())
        .env("OXSHMEM_TOPOLOGY", machine)
        .env("OXSHMEM_PROFILE", "counters")
        .env("OXSHMEM_PROFILE_DIR", results)
}

/// Returns connections, and the messages and bytes that puts have added.
fn added(without: &Value, with: &Value) -> (u64, u64, u64) {
    let more = |name: &str| with[name].as_u64().unwrap() - without[name].as_u64().unwrap();
    assert_eq!(with["connections"], without["connections"]);
    (with["connections"].as_u64().unwrap(), more("messages"), more("bytes"))
}

/// Returns what puts add to the report of a job, by the name of what it is about.
fn report(name: &str, machine: &str, transport: Transport) -> impl Fn(&str) -> (u64, u64, u64) {
    let folder = folder(name);
    let machine = file(&folder, "machine.txt", machine);
    let [without, with] = [0, PUTS].map(|puts| {
        let results = folder.join(format!("puts-{puts}"));
        job(&machine, transport, puts, &results).passes();
        json(&info(None, &["routes", "--json", results.to_str().unwrap()]))
    });
    for report in [&without, &with] {
        assert_eq!((report["n_pes"].as_u64(), report["nodes"].as_u64()), (Some(2 * PES), Some(2)));
        // A PE has so many connections to the other node.
        assert_eq!(report["connections_per_pe"], serde_json::json!([PES * QPS, PES * QPS]));
    }
    move |path: &str| {
        let find = |report: &Value| report.pointer(path).unwrap_or_else(|| panic!("no {path} in {report}")).clone();
        added(&find(&without), &find(&with))
    }
}

/// Returns what `pairs` pairs of PEs have: connections, messages, bytes.
fn of_pairs(pairs: u64) -> (u64, u64, u64) {
    (pairs * QPS, pairs * PUTS, pairs * PUTS * BYTES)
}

/// Pairs of PEs of two nodes, in both directions.
const PAIRS: u64 = 2 * PES * PES;

/// With a rail for each PE, an eighth of an all-to-all stays on its rail: the rest is what a push
/// would take off the spine.
#[test]
fn an_all_to_all_of_two_dgx_h100_crosses_rails_as_the_formula_says() {
    let added = report("h100", DGX_H100, Transport::Auto);
    assert_eq!(added("/all"), of_pairs(PAIRS));
    assert_eq!(added("/along_rails"), of_pairs(PAIRS / PES));
    assert_eq!(added("/across_rails"), of_pairs(PAIRS - PAIRS / PES));
    for none in ["/unknown_rails", "/across_root/source", "/across_root/destination"] {
        assert_eq!(added(none), (0, 0, 0), "{none}");
    }
    // PEs of a node are connected, and put by load and store.
    assert_eq!(added("/within_nodes"), (2 * PES * (PES - 1) * QPS, 0, 0));
    for rail in 0..PES {
        assert_eq!(added(&format!("/rails/{rail}")), of_pairs(2));
    }
    // Each card has one PE, which puts to all of the other node.
    for card in 0..2 * PES {
        assert_eq!(added(&format!("/cards/{card}")), of_pairs(PES));
    }
}

/// PEs 0 and 1 have the card of rail 0, 2 and 3 that of rail 1, 4 and 7 that of rail 2, 5 that of
/// rail 3 and 6 that of rail 4; those with odd numbers have no card at their switch.
#[test]
fn two_sockets_count_what_passes_their_root_complexes() {
    let added = report("h20", H20, Transport::Ibrc);
    let alike = 2 * 2 + 2 * 2 + 2 * 2 + 1 + 1;
    assert_eq!(added("/all"), of_pairs(PAIRS));
    assert_eq!(added("/along_rails"), of_pairs(2 * alike));
    assert_eq!(added("/across_rails"), of_pairs(PAIRS - 2 * alike));
    // Half of the PEs, at either end.
    assert_eq!(added("/across_root/source"), of_pairs(PAIRS / 2));
    assert_eq!(added("/across_root/destination"), of_pairs(PAIRS / 2));
    assert_eq!(added("/across_sockets/source"), (0, 0, 0));
    // Over IBRC the PEs of a node reach each other through their cards, too.
    assert_eq!(added("/within_nodes"), of_pairs(2 * PES * (PES - 1)));
    // By node and rail: of the first, rails 0 and 3.
    assert_eq!((added("/cards/0"), added("/cards/3")), (of_pairs(2 * PES), of_pairs(PES)));
}

/// The nodes are not cabled alike, so their rails are not compared.
#[test]
fn nodes_with_different_numbers_of_cards_have_no_rails_in_common() {
    let folder = folder("different");
    file(&folder, "node0.txt", DGX_H100);
    file(&folder, "node1.txt", H20);
    let by_node = format!(r#"export OXSHMEM_TOPOLOGY="{}/$OXSHMEM_NODE.txt"; exec "$0" "$@""#, folder.display());
    Job::new(PE, "routes", 4)
        .args(&["1", "8"])
        .nodes(2)
        .transport(Transport::Auto)
        .through(&["sh", "-c", &by_node])
        .env("OXSHMEM_PROFILE", "counters")
        .env("OXSHMEM_PROFILE_DIR", folder.join("results"))
        .passes();
    let report = json(&info(None, &["routes", "--json", folder.join("results").to_str().unwrap()]));
    assert_eq!(report["unknown_rails"]["connections"], report["all"]["connections"]);
    assert_eq!(report["across_rails"]["connections"], 0);
}

/// Without a description the software HCA is no card.
#[test]
fn without_a_machine_nothing_is_said_of_rails() {
    let folder = folder("none");
    Job::new(PE, "routes", 2)
        .args(&["1", "8"])
        .nodes(2)
        .transport(Transport::Auto)
        .env("OXSHMEM_PROFILE", "counters")
        .env("OXSHMEM_PROFILE_DIR", &folder)
        .passes();
    let report = json(&info(None, &["routes", "--json", folder.to_str().unwrap()]));
    let sums = ["all", "unknown_rails"].map(|name| report[name]["connections"].as_u64());
    assert_eq!(sums, [Some(8), Some(8)]);
    assert_eq!(report["unknown_crossing"]["source"]["connections"], 8);
    let (status, shown) = text(&info(None, &["routes", folder.to_str().unwrap()]));
    assert!(status == Some(0) && shown.contains("2 PEs on 2 nodes; connections of a PE to other nodes: 4"), "{shown}");

    // What is missing is named.
    std::fs::remove_file(folder.join("counters-1.json")).unwrap();
    let (status, shown) = text(&info(None, &["routes", folder.to_str().unwrap()]));
    assert!(status == Some(1) && shown.contains("the files of these PEs of 2 are missing: 1"), "{shown}");
    let empty = folder.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (status, shown) = text(&info(None, &["routes", empty.to_str().unwrap()]));
    assert!(status == Some(1) && shown.contains("run the job with OXSHMEM_PROFILE=counters"), "{shown}");
    let other = file(&folder, "other.json", "{\"pe\": 0}");
    let (status, shown) = text(&info(None, &["routes", other.to_str().unwrap()]));
    assert!(status == Some(1) && shown.contains("is no file of counters of this version"), "{shown}");
}

#[test]
fn a_description_that_is_wrong_ends_the_job_with_its_line() {
    let folder = folder("wrong");
    let wrong = file(&folder, "wrong.txt", "gpu 0 pci0000:15/0000:1b:00.0\nrdma mlx5_0 0000:18:00.0 mlx5_core 1:CA\n");
    for (machine, words) in [
        (wrong, "line 2: mlx5_0 is at 0000:18:00.0, which no line before describes"),
        (folder.join("missing"), "it cannot be read"),
        (folder.clone(), "it is no file"),
    ] {
        // Whatever executes work requests, and for the tools as well.
        for hca in ["auto", "soft"] {
            let job = Job::new(PE, "rma", 2)
                .nodes(2)
                .transport(Transport::Auto)
                .env("OXSHMEM_HCA", hca)
                .env("OXSHMEM_TOPOLOGY", &machine);
            let outcome = job.run();
            let shown = transcript(&outcome);
            assert!(!outcome.is_success() && shown.contains("OXSHMEM_TOPOLOGY=") && shown.contains(words), "{shown}");
        }
        for command in ["rails", "topology"] {
            let (status, shown) = text(&info(Some(&machine), &[command]));
            assert!(status == Some(1) && shown.contains(words), "{command}: {shown}");
        }
        let (_, shown) = text(&info(Some(&machine), &[]));
        assert!(shown.contains(words), "{shown}");
    }
    // A machine without a card that could be used, where one is needed.
    let gpus = file(&folder, "gpus.txt", "gpu 0 pci0000:15/0000:1b:00.0\n");
    let outcome = Job::new(PE, "rma", 2)
        .nodes(2)
        .transport(Transport::Auto)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_TOPOLOGY", &gpus)
        .run();
    assert!(transcript(&outcome).contains("no RDMA device"), "{}", transcript(&outcome));
}

#[test]
fn decisions_are_shown_with_their_reasons() {
    let folder = folder("decisions");
    let a100 = file(&folder, "a100.txt", DGX_A100);
    let decided = json(&info(Some(&a100), &["rails", "--json"]));
    assert_eq!(decided["rails"], 8);
    let pe = &decided["pes"][2];
    assert_eq!(
        (&pe["card"], &pe["rail"], &pe["distance"]),
        (&"mlx5_2/1".into(), &2.into(), &"3 PCIe bridges apart".into())
    );
    let route = |rail: usize| {
        let route = &pe["routes"][rail];
        assert_eq!((route["rail"].as_u64(), &route["ibgda"]), (Some(rail as u64), &"direct".into()));
        (
            route["best"].as_str().unwrap(),
            route["card"].as_str().unwrap(),
            route["through"].as_str(),
            route["through_pe"].as_u64(),
        )
    };
    assert_eq!(route(2), ("direct", "mlx5_2/1", None, None));
    assert_eq!(route(3), ("push", "mlx5_3/1", Some("source"), None));
    assert_eq!(route(7), ("push", "mlx5_9/1", Some("gpu"), Some(7)));
    let (status, shown) = text(&info(Some(&a100), &["rails"]));
    assert_eq!(status, Some(0), "{shown}");
    for line in [
        "  PE 0   pci 0000:07:00.0: mlx5_0/1, rail 0, 3 PCIe bridges apart",
        "  PE 0   to rail 2   push by mlx5_2/1 through the GPU of PE 2: the card of this rail is 3 PCIe bridges apart from the GPU of PE 2 \
         of the node",
        "OxSHMEM does not push yet",
    ] {
        assert!(shown.contains(line), "no `{line}` in\n{shown}");
    }
    // A far card, which the CPU proxy stages for.
    let far = SINGLE_CARD.replace("gpu 0 pci0000:00", "gpu 1 pci0000:00");
    let far = file(&folder, "far.txt", &far);
    let decided = json(&info(Some(&far), &["rails", "--json"]));
    let routes = [&decided["pes"][0]["routes"][0], &decided["pes"][1]["routes"][0]];
    assert_eq!(routes.map(|route| route["best"].as_str().unwrap()), ["staged", "direct"]);
    assert_eq!(routes.map(|route| route["ibrc"].as_str().unwrap()), ["staged", "direct"]);
    assert_eq!(routes[0]["reason"], "the node has one card; the card is at another NUMA node");

    // The description of a described machine is that machine.
    let (status, shown) = text(&info(Some(&a100), &["topology"]));
    assert_eq!(status, Some(0), "{shown}");
    let again = file(&folder, "again.txt", &shown);
    assert_eq!(text(&info(Some(&again), &["topology"])), (Some(0), shown));
    assert_eq!(json(&info(Some(&again), &["rails", "--json"])), json(&info(Some(&a100), &["rails", "--json"])));
}
