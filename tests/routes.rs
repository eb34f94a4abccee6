//! Rails: what jobs on described machines count by the way between cards, and what `oxshmem-info`
//! makes of it and decides.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use oxshmem_tests::{Job, Transport, stdout, transcript};
use serde_json::Value;

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Machines that `hca/src/topology` describes for its own tests, with their sources.
const DGX_H100: &str = include_str!("../hca/src/topology/fixtures/dgx-h100.txt");
const DGX_A100: &str = include_str!("../hca/src/topology/fixtures/dgx-a100.txt");
const H20: &str = include_str!("../hca/src/topology/fixtures/h20-two-sockets.txt");
const FLAT: &str = include_str!("../hca/src/topology/fixtures/vm-flat.txt");
const SINGLE_CARD: &str = include_str!("../hca/src/topology/fixtures/single-card.txt");

/// Two GPUs and two cards below one switch.
const ONE_SWITCH: &str = include_str!("machines/one-switch.txt");

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
    info_in(&[], machine, args)
}

fn info_in(variables: &[(&str, &str)], machine: Option<&Path>, args: &[&str]) -> Output {
    // The workspace's tests are built with it.
    let program = oxshmem_tests::program(Path::new(PE).with_file_name("oxshmem-info").to_str().unwrap());
    let mut command = Command::new(&program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OXSHMEM_")) {
        command.env_remove(name);
    }
    let output = command
        .args(args)
        .envs(variables.iter().copied())
        .envs(machine.map(|machine| ("OXSHMEM_TOPOLOGY", machine)))
        .output();
    output.unwrap_or_else(|error| panic!("{}: {error}; cargo build -p oxshmem-info", program.display()))
}

/// Runs it with a setting of `OXSHMEM_RAILS`.
fn info_with(machine: Option<&Path>, rails: &str, args: &[&str]) -> Output {
    info_in(&[("OXSHMEM_RAILS", rails)], machine, args)
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
        .env("OXSHMEM_RAILS", "direct")
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
    difference(without, with)
}

fn difference(without: Value, with: Value) -> impl Fn(&str) -> (u64, u64, u64) {
    move |path: &str| {
        let find = |report: &Value| report.pointer(path).unwrap_or_else(|| panic!("no {path} in {report}")).clone();
        added(&find(&without), &find(&with))
    }
}

/// Returns what puts add to the report of a job that pushes, of nodes with as many PEs each, and
/// that report.
fn pushed(
    name: &str,
    (machine, transport): (&str, Transport),
    (nodes, pes): (u64, u64),
) -> (Value, impl Fn(&str) -> (u64, u64, u64)) {
    let folder = folder(name);
    let machine = file(&folder, "machine.txt", machine);
    let [without, with] = [0, PUTS].map(|puts| {
        let results = folder.join(format!("puts-{puts}"));
        Job::new(PE, "routes", u32::try_from(nodes * pes).unwrap())
            .args(&[&puts.to_string(), &BYTES.to_string()])
            .nodes(u32::try_from(nodes).unwrap())
            .transport(transport)
            .env("OXSHMEM_HCA", "soft")
            .env("OXSHMEM_RAILS", "push")
            .env("OXSHMEM_QPS_PER_PEER", QPS.to_string())
            .env("OXSHMEM_TOPOLOGY", &machine)
            .env("OXSHMEM_PROFILE", "counters")
            .env("OXSHMEM_PROFILE_DIR", &results)
            .passes();
        json(&info(None, &["routes", "--json", results.to_str().unwrap()]))
    });
    (with.clone(), difference(without, with))
}

/// Checks a job that pushes against the formulas of `docs/notes/rails.md`; `share` has by rail how
/// many PEs of a node have its card.
fn follows_the_formulas((report, added): &(Value, impl Fn(&str) -> (u64, u64, u64)), nodes: u64, share: &[u64]) {
    let pes: u64 = share.iter().sum();
    let pairs = nodes * (nodes - 1) * pes * pes;
    let alike = nodes * (nodes - 1) * share.iter().map(|pes| pes * pes).sum::<u64>();
    assert_eq!(added("/all"), of_pairs(pairs));
    assert_eq!(added("/along_rails"), of_pairs(pairs));
    for none in ["/across_rails", "/unknown_rails"] {
        assert_eq!(added(none), (0, 0, 0), "{none}");
    }
    // Each pair of PEs whose rails differ has queue pairs for the other direction.
    assert_eq!(report["receives_only"], (pairs - alike) * QPS);
    let ends = |of_rail: &u64| (nodes - 1) * QPS * (2 * pes - of_rail);
    let mut ends: Vec<u64> = share.iter().filter(|of_rail| **of_rail > 0).map(ends).collect();
    ends.sort_unstable();
    assert_eq!(report["connections_per_pe"], serde_json::json!([ends.first(), ends.last()]));
    // What goes to the PEs of a rail's card goes by the cards of that rail.
    for (place, of_rail) in share.iter().filter(|of_rail| **of_rail > 0).enumerate() {
        assert_eq!(added(&format!("/rails/{place}")), of_pairs(nodes * (nodes - 1) * pes * of_rail), "{place}");
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

/// With `OXSHMEM_RAILS=push` every PE sends by its node's card of the peer's rail.
#[test]
fn an_all_to_all_that_is_pushed_stays_on_its_rails() {
    follows_the_formulas(&pushed("push-h100", (DGX_H100, Transport::Auto), (2, PES)), 2, &[1; 8]);
}

/// The same over the CPU proxy, where some PEs share the card of their rail.
#[test]
fn two_sockets_push_as_the_formulas_say() {
    follows_the_formulas(&pushed("push-h20", (H20, Transport::Ibrc), (2, PES)), 2, &[2, 2, 2, 1, 1]);
}

#[test]
fn four_nodes_of_two_pes_push_as_the_formulas_say() {
    for (name, transport) in [("push-4-ibgda", Transport::Auto), ("push-4-ibrc", Transport::Ibrc)] {
        follows_the_formulas(&pushed(name, (DGX_H100, transport), (4, 2)), 4, &[1, 1]);
    }
}

/// By itself the library pushes where the cards of all rails are near the PEs' GPUs.
#[test]
fn where_no_payload_is_read_from_afar_pes_push_by_themselves() {
    let folder = folder("auto");
    let machine = file(&folder, "machine.txt", ONE_SWITCH);
    let results = folder.join("results");
    Job::new(PE, "rma", 4)
        .nodes(2)
        .transport(Transport::Auto)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_TOPOLOGY", &machine)
        .env("OXSHMEM_PROFILE", "counters")
        .env("OXSHMEM_PROFILE_DIR", &results)
        .passes();
    let report = json(&info(None, &["routes", "--json", results.to_str().unwrap()]));
    assert_eq!(report["along_rails"], report["all"]);
    assert!(report["all"]["messages"].as_u64() > Some(0), "{report}");
    // Each PE pushes to one of the two of the other node.
    assert_eq!(report["receives_only"], 4 * 4);
}

/// Has the first queue pair of each PE's software HCA, by which the PE's own card is measured, take
/// a time that nothing else takes; or the second, by which a card of another rail is.
const SLOW_OWN: &str = "slow=300ms@qp0";
const SLOW_FURTHER: &str = "slow=300ms@qp1";

/// What PEs of two nodes of two say about pushing, by PE.
fn decided(name: &str, machine: &str, transport: Transport, change: impl Fn(Job) -> Job) -> Vec<String> {
    let machine = file(&folder(name), "machine.txt", machine);
    let job = Job::new(PE, "hca_report", 4).nodes(2).transport(transport);
    let outcome = change(job.env("OXSHMEM_HCA", "soft").env("OXSHMEM_TOPOLOGY", machine)).passes();
    let line = |rank| {
        let text = stdout(&outcome, rank);
        let what = "attempt PEs of other nodes sent to by the cards on their rails: ";
        text.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default().to_owned()
    };
    (0..4).map(line).collect()
}

/// Where topology does not decide, a measurement does: copies to memory near the card of another
/// rail, or a tree without switches.
#[test]
fn where_topology_does_not_decide_a_measurement_does() {
    for (machine, name, transport, way) in [
        (DGX_H100, "gpu", Transport::Auto, "through the GPU of PE "),
        (FLAT, "flat", Transport::Auto, " of rail "),
        // The CPU proxy has cards read payloads where they are.
        (DGX_H100, "proxy", Transport::Ibrc, " of rail "),
    ] {
        for (faults, begins) in
            [(SLOW_OWN, "in use: measured: 1M by mlx5_"), (SLOW_FURTHER, "no: measured: 1M by mlx5_")]
        {
            let name = format!("measured-{name}-{}", &begins[..2]);
            let lines = decided(&name, machine, transport, |job| job.env("OXSHMEM_SOFT_FAULTS", faults));
            assert!(lines.iter().all(|line| line.starts_with(begins) && line.contains(way)), "{lines:#?}");
            assert_eq!(lines[0].contains(" (stored in "), way != " of rail ", "{lines:#?}");
        }
    }
    // PEs that lend nothing to each other go through memory of the host.
    let lines = decided("measured-host", DGX_H100, Transport::Auto, |job| {
        job.env("OXSHMEM_SOFT_FAULTS", SLOW_OWN).env("OXSHMEM_P2P_FAULTS", "0-1,2-3")
    });
    assert!(lines.iter().all(|line| line.contains(" through memory of the host in ")), "{lines:#?}");
}

/// All PEs push or none does, though those of one node measure otherwise.
#[test]
fn one_node_that_measures_otherwise_decides_for_all() {
    let by_node = format!(
        r#"export OXSHMEM_SOFT_FAULTS={SLOW_OWN}; [ "$OXSHMEM_NODE" = node1 ] && export OXSHMEM_SOFT_FAULTS={SLOW_FURTHER}; exec "$0" "$@""#
    );
    let lines = decided("measured-apart", DGX_H100, Transport::Auto, |job| job.through(&["sh", "-c", &by_node]));
    for line in &lines[..2] {
        assert!(line.starts_with("no: PE 2 does not, and all do or none does"), "{lines:#?}");
        assert!(line.contains("(here measured: 1M by mlx5_"), "{lines:#?}");
    }
    assert!(lines[2..].iter().all(|line| line.starts_with("no: measured: ")), "{lines:#?}");
}

/// What was measured has no effect on what is put then, and no byte crosses rails where PEs push.
#[test]
fn what_a_measurement_decides_is_done() {
    for (faults, pushes) in [(SLOW_OWN, true), (SLOW_FURTHER, false)] {
        let folder = folder(if pushes { "measured-pushes" } else { "measured-direct" });
        let results = folder.join("results");
        Job::new(PE, "rma", 4)
            .nodes(2)
            .transport(Transport::Auto)
            .env("OXSHMEM_HCA", "soft")
            .env("OXSHMEM_SOFT_FAULTS", faults)
            .env("OXSHMEM_TOPOLOGY", file(&folder, "machine.txt", DGX_H100))
            .env("OXSHMEM_PROFILE", "counters")
            .env("OXSHMEM_PROFILE_DIR", &results)
            .passes();
        let report = json(&info(None, &["routes", "--json", results.to_str().unwrap()]));
        assert!(report["all"]["messages"].as_u64() > Some(0), "{report}");
        assert_eq!(report["across_rails"]["connections"].as_u64() == Some(0), pushes, "{report}");
        // The queue pairs that are measured with are destroyed, and count nowhere.
        assert_eq!(report["receives_only"].as_u64() > Some(0), pushes, "{report}");
    }
}

/// A measurement that cannot be made decides against pushing, and says why.
#[test]
fn what_cannot_be_measured_is_not_pushed() {
    let error = |faults: &'static str| {
        decided("measured-not", DGX_H100, Transport::Auto, move |job| job.env("OXSHMEM_SOFT_FAULTS", faults))
    };
    // The card that is to be measured fails; and it takes longer than PEs wait.
    for (faults, words) in
        [("error=0x04@qp1:0", "no: not measured: mlx5_"), ("slow=10s@qp1", "no: not measured within 2000 ms")]
    {
        let lines = error(faults);
        assert!(lines.iter().all(|line| line.starts_with(words)), "{lines:#?}");
    }
    let lines = decided("measured-copies", DGX_H100, Transport::Auto, |job| job.env("OXSHMEM_SOFT_ENGINE", "copy"));
    assert!(lines.iter().all(|line| line.starts_with("no: the software HCA executes by a kernel")), "{lines:#?}");
}

/// A job of two nodes that does so much of what PEs can do with each other, pushing.
fn pushing(test: &str, transport: Transport, name: &str) -> Job {
    let machine = file(&folder(name), "machine.txt", DGX_H100);
    Job::new(PE, test, 4)
        .nodes(2)
        .transport(transport)
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_RAILS", "push")
        .env("OXSHMEM_TOPOLOGY", machine)
}

/// Order, quiet and fence mean what they mean, signals come after their data, and results of gets
/// and atomics arrive through the card that sends.
#[test]
fn what_is_pushed_is_put_got_and_ordered_as_ever() {
    for transport in [Transport::Auto, Transport::Ibgda, Transport::Ibrc] {
        for test in ["rma", "fence", "signals", "atomic_values", "barriers", "contexts"] {
            pushing(test, transport, &format!("pushing-{test}-{transport:?}")).passes();
        }
    }
}

/// What another card sends is copied to a ring near it first, in the memory of the GPU there or,
/// where no GPU of a PE is near or can be stored to, in host memory. No card reads across a root
/// complex. The shortest rings wrap, and puts are cut.
#[test]
fn what_is_pushed_is_staged_near_the_card_that_sends() {
    let job = |name: &str, machine: &str, pes: u32, place: &str| {
        let machine = file(&folder(name), "machine.txt", machine);
        Job::new(PE, "routes_staged", pes)
            .args(&["3", "5000", place])
            .nodes(2)
            .transport(Transport::Auto)
            .env("OXSHMEM_HCA", "soft")
            .env("OXSHMEM_RAILS", "push")
            .env("OXSHMEM_QPS_PER_PEER", QPS.to_string())
            .env("OXSHMEM_STAGING_RING", "2K")
            .env("OXSHMEM_TOPOLOGY", machine)
    };
    job("staged-h100", DGX_H100, 2 * PES as u32, "gpu").passes();
    job("staged-4", DGX_H100, 4, "gpu").passes();
    job("staged-host", DGX_H100, 4, "host").env("OXSHMEM_P2P_FAULTS", "0-1,2-3").passes();
    job("staged-workers", DGX_H100, 4, "gpu").env("OXSHMEM_CPU_WORKERS", "2").passes();
}

/// Order, signals, contexts and batches mean what they mean without rings.
#[test]
fn what_is_staged_is_put_and_ordered_as_ever() {
    for test in ["rma", "fence", "signals", "contexts", "put_flood"] {
        let flood: &[&str] = if test == "put_flood" { &["2", "40", "10", "3000"] } else { &[] };
        pushing(test, Transport::Auto, &format!("staged-{test}"))
            .args(flood)
            .env("OXSHMEM_STAGING", "64")
            .env("OXSHMEM_STAGING_RING", "2K")
            .passes();
    }
    // As on GPUs, whose memory the CPU does not reach.
    for test in ["rma", "signals"] {
        pushing(test, Transport::Auto, &format!("staged-copies-{test}"))
            .env("OXSHMEM_SOFT_ENGINE", "copy")
            .env("OXSHMEM_STAGING_RING", "2K")
            .passes();
    }
}

/// Rings that cannot be had are an error that names both PEs, the card and the remedy; where it is
/// left to the library, the card reads payloads where they are.
#[test]
fn rings_that_cannot_be_had_are_named() {
    // 32 GiB of rings do not fit the addresses that the PEs may have.
    let limit = r#"ulimit -v 12000000; exec "$0" "$@""#;
    let without_memory =
        |job: Job| job.env("OXSHMEM_STAGING_RING", "1G").env("OXSHMEM_HEAP_MAX", "64M").through(&["sh", "-c", limit]);
    let outcome = without_memory(pushing("rma", Transport::Auto, "no-rings")).env("OXSHMEM_QPS_PER_PEER", "16").run();
    let shown = transcript(&outcome);
    assert!(!outcome.is_success(), "{shown}");
    for words in [
        ": no staging rings of 16G in memory of the GPU of PE ",
        " for mlx5_",
        " does not share its memory: ",
        "lower OXSHMEM_STAGING_RING",
    ] {
        assert!(shown.contains(words), "no `{words}` in\n{shown}");
    }
    let far = SINGLE_CARD.replace("gpu 0 pci0000:00", "gpu 1 pci0000:00");
    let machine = file(&folder("no-rings-auto"), "machine.txt", &far);
    let outcome = without_memory(Job::new(PE, "rma", 4).nodes(2).transport(Transport::Auto))
        .env("OXSHMEM_HCA", "soft")
        .env("OXSHMEM_QPS_PER_PEER", "16")
        .env("OXSHMEM_TOPOLOGY", &machine)
        .env("OXSHMEM_LOG", "warn")
        .passes();
    let shown = transcript(&outcome);
    assert!(shown.contains("no staging rings in memory of the host for mlx5_"), "{shown}");
}

/// A card at another NUMA node than the GPU reads nothing that fits a work request: it travels
/// there.
#[test]
fn puts_to_a_far_card_travel_in_the_queue_while_they_fit() {
    let far = SINGLE_CARD.replace("gpu 0 pci0000:00", "gpu 1 pci0000:00");
    let machine = file(&folder("far-card"), "machine.txt", &far);
    // By the PE's number on its node: of the first the card is far.
    for (bytes, blocks) in [("28", ["1", "1"]), ("100", ["3", "1"]), ("220", ["4", "1"]), ("221", ["1", "1"])] {
        Job::new(PE, "routes_blocks", 4)
            .args(&[&[bytes], &blocks[..]].concat())
            .nodes(2)
            .transport(Transport::Auto)
            .env("OXSHMEM_HCA", "soft")
            .env("OXSHMEM_TOPOLOGY", &machine)
            .passes();
    }
}

/// Where PEs push, contexts may send by each PE's own card all the same.
#[test]
fn contexts_have_a_choice_of_their_own() {
    for rails in ["auto", "push", "direct"] {
        pushing("contexts", Transport::Auto, &format!("contexts-{rails}")).args(&[rails]).passes();
    }
    // The CPU proxy posts what all contexts send to the same queue pairs, which push.
    pushing("contexts", Transport::Ibrc, "contexts-ibrc-push").args(&["push"]).passes();
    let outcome = pushing("contexts", Transport::Ibrc, "contexts-ibrc-direct").args(&["direct"]).run();
    let shown = transcript(&outcome);
    let words = "all contexts share the queue pairs that it posts to";
    assert!(!outcome.is_success() && shown.contains(words), "no `{words}` in\n{shown}");
}

#[test]
fn what_cannot_be_pushed_is_an_error_that_names_it() {
    let folder = folder("refused");
    file(&folder, "node0.txt", DGX_H100);
    file(&folder, "node1.txt", H20);
    let by_node = format!(r#"export OXSHMEM_TOPOLOGY="{}/$OXSHMEM_NODE.txt"; exec "$0" "$@""#, folder.display());
    let job = |rails: &str| {
        Job::new(PE, "rma", 4)
            .nodes(2)
            .transport(Transport::Auto)
            .env("OXSHMEM_HCA", "soft")
            .env("OXSHMEM_RAILS", rails)
    };
    let refused = |job: Job, words: &str| {
        let outcome = job.run();
        let shown = transcript(&outcome);
        assert!(!outcome.is_success() && shown.contains(words), "no `{words}` in\n{shown}");
    };
    let different = "the node of PE 0 has 8 cards and that of PE 2 has 5";
    refused(job("push").through(&["sh", "-c", &by_node]), different);
    // Where it is left to the library, PEs send by their own cards.
    job("auto").through(&["sh", "-c", &by_node]).passes();
    refused(job("push"), "it is not known which rail the card of PE 0 is on");
    let each = r#"[ "$OXSHMEM_NODE" = node1 ] && export OXSHMEM_RAILS=direct; exec "$0" "$@""#;
    let h100 = folder.join("node0.txt");
    refused(job("auto").env("OXSHMEM_TOPOLOGY", &h100).through(&["sh", "-c", each]), "OXSHMEM_RAILS=");
    refused(job("sideways"), "OXSHMEM_RAILS");
    // On one rail there is nothing to push, which is not an error.
    job("push").env("OXSHMEM_TOPOLOGY", file(&folder, "single.txt", SINGLE_CARD)).passes();
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
        (folder.clone(), "it is not a file"),
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
        let taken = if rail == 2 { "direct" } else { "measured" };
        assert_eq!((route["rail"].as_u64(), &route["taken"]), (Some(rail as u64), &taken.into()));
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
        "The way that is taken (OXSHMEM_RAILS=auto): PEs measure at init whether the card of the peer's rail sends to PEs of other nodes, or \
         each PE's own card, and `oxshmem-info paths` shows the outcome: topology does not say whether PE 0 should push to rail 2: the card \
         of this rail is 3 PCIe bridges apart from the GPU of PE 2 of the node",
    ] {
        assert!(shown.contains(line), "no `{line}` in\n{shown}");
    }
    // As a setting, and where the cards of all rails are near.
    let (_, shown) = text(&info_with(Some(&a100), "push", &["rails"]));
    assert!(shown.contains("(OXSHMEM_RAILS=push): the card of the peer's rail sends"), "{shown}");
    assert_eq!(decided["pushes"], Value::Null);
    let decided = json(&info_with(Some(&a100), "push", &["rails", "--json"]));
    let taken = |pe: usize, rail: usize| decided["pes"][pe]["routes"][rail]["taken"].clone();
    assert_eq!((decided["pushes"].clone(), taken(2, 2), taken(2, 7)), (true.into(), "direct".into(), "push".into()));
    let (_, shown) = text(&info_with(Some(&a100), "direct", &["rails"]));
    assert!(shown.contains("whatever the rail: OXSHMEM_RAILS=direct says so."), "{shown}");
    let switch = file(&folder, "switch.txt", ONE_SWITCH);
    let (_, shown) = text(&info(Some(&switch), &["rails"]));
    assert!(shown.contains("to PEs of other nodes: the cards of all rails read payloads where they are."), "{shown}");
    // A far card, for which puts are staged whatever posts them.
    let far = SINGLE_CARD.replace("gpu 0 pci0000:00", "gpu 1 pci0000:00");
    let far = file(&folder, "far.txt", &far);
    let decided = json(&info(Some(&far), &["rails", "--json"]));
    let routes = [&decided["pes"][0]["routes"][0], &decided["pes"][1]["routes"][0]];
    assert_eq!(routes.map(|route| route["best"].as_str().unwrap()), ["staged", "direct"]);
    assert_eq!(routes.map(|route| route["taken"].as_str().unwrap()), ["staged", "direct"]);
    let off = json(&info_in(&[("OXSHMEM_STAGING", "off")], Some(&far), &["rails", "--json"]));
    assert_eq!(off["pes"][0]["routes"][0]["taken"], "direct");
    assert_eq!(routes[0]["reason"], "the node has one card; the card is at another NUMA node");

    // The description of a described machine is that machine.
    let (status, shown) = text(&info(Some(&a100), &["topology"]));
    assert_eq!(status, Some(0), "{shown}");
    let again = file(&folder, "again.txt", &shown);
    assert_eq!(text(&info(Some(&again), &["topology"])), (Some(0), shown));
    assert_eq!(json(&info(Some(&again), &["rails", "--json"])), json(&info(Some(&a100), &["rails", "--json"])));
}
