//! Jobs of several nodes, played on this machine: load and store within a node, and the software
//! HCA over TCP between nodes.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use oxshmem_tests::{Job, Transport, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Runs a case on the `cpu` device, on two nodes.
fn passes(case: &str, npes: u32, transport: Transport) {
    Job::new(PE, case, npes).nodes(2).transport(transport).passes();
}

#[test]
fn transfers_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibrc] {
        passes("rma", 3, transport);
    }
}

#[test]
fn signals_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibrc] {
        passes("signals", 4, transport);
    }
}

#[test]
fn atomics_between_nodes() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        passes("atomic_values", 3, transport);
        passes("atomic_contention", 3, transport);
    }
}

#[test]
fn fences_and_barriers_between_nodes() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        passes("fence", 2, transport);
        passes("barriers", 4, transport);
    }
}

#[test]
fn operations_of_the_host_between_nodes() {
    passes("host_transfers", 3, Transport::Auto);
    passes("host_atomics", 2, Transport::Ibrc);
}

#[test]
fn collectives_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibgda, Transport::Ibrc] {
        let job = |case| Job::new(PE, case, 4).nodes(2).transport(transport);
        job("collectives").args(&["6000"]).thinned().passes();
        job("host_collectives").args(&["9000"]).thinned().passes();
        job("host_collectives_late_once").env("OXSHMEM_TIMEOUT", "500ms").passes();
        job("host_collectives_missing").env("OXSHMEM_TIMEOUT", "1s").passes();
    }
}

#[test]
fn teams_between_nodes() {
    for transport in [Transport::Auto, Transport::Ibgda, Transport::Ibrc] {
        passes("teams", 4, transport);
    }
}

/// PEs 0, 2 and 4 are one node, and 1 and 3 another, as where a launcher deals out PEs in turn.
#[test]
fn the_pes_of_a_node_need_not_be_consecutive() {
    for case in ["rma", "atomic_values", "barriers"] {
        let rank_of_node = r#"OXSHMEM_NODE=$((OXSHMEM_RANK % 2)) exec "$0" "$@""#;
        Job::new(PE, case, 5).through(&["sh", "-c", rank_of_node]).transport(Transport::Auto).passes();
    }
}

/// Says why this process may not change users and namespaces, if it may not.
fn not_root() -> Option<String> {
    let tried = Command::new("unshare").args(["--net", "setpriv", "--reuid=65534", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// They have one kernel and one network, and still cannot pass descriptors, as in containers with
/// different users.
#[test]
fn pes_of_different_users_are_on_different_nodes() {
    if let Some(reason) = not_root() {
        return println!("skipped: {reason}");
    }
    let odd_ones =
        r#"[ $((OXSHMEM_RANK % 2)) = 0 ] || exec setpriv --reuid=65534 --clear-groups "$0" "$@"; exec "$0" "$@""#;
    let job = |transport| Job::new(PE, "rma", 4).through(&["sh", "-c", odd_ones]).transport(transport);
    let outcome = job(Transport::Auto).passes();
    let text = transcript(&outcome);
    assert!(text.contains("share no memory") && text.contains("runs as user"), "{text}");
    let outcome = job(Transport::P2p).run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("a container that shares no memory"), "{text}");
}

/// A limit is kept or named. It never decides which PEs are near.
#[test]
fn too_few_descriptors_are_named_and_make_no_further_node() {
    const FEWEST: usize = 10;
    for files in (FEWEST..100).step_by(3) {
        let limited = format!(r#"[ $OXSHMEM_RANK != 0 ] || ulimit -n {files}; exec "$0" "$@""#);
        let outcome = Job::new(PE, "barriers", 4).through(&["sh", "-c", &limited]).transport(Transport::P2p).run();
        let text = transcript(&outcome);
        assert!(!text.contains("another node"), "{files} descriptors: {text}");
        if outcome.is_success() {
            assert!(files > FEWEST, "no limit was tried that is too low");
            return;
        }
        assert!(text.contains("ulimit -n"), "{files} descriptors: {text}");
    }
    panic!("99 descriptors are too few for a job of 4 PEs");
}

/// Two network namespaces with a cable between them. All of it ends with the first process.
const TWO_NAMESPACES: &str = r#"
set -e
ip link set lo up
unshare --net sleep 1000 &
other=/proc/$!/ns/net
until [ "$(readlink $other)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add near type veth peer name far
ip link set far netns $!
ip address add 10.77.0.1/24 dev near
ip link set near up
nsenter --net=$other sh -c 'ip link set lo up; ip address add 10.77.0.2/24 dev far; ip link set far up'
export WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
pes=
for rank in 0 1 2 3; do
    enter=
    [ $((rank % 2)) = 0 ] || enter="nsenter --net=$other"
    RANK=$rank LOCAL_RANK=$((rank / 2)) $enter "$@" &
    pes="$pes $!"
done
for pe in $pes; do wait $pe; done
"#;

#[test]
fn pes_in_two_network_namespaces_are_on_two_nodes() {
    if let Some(reason) = not_root() {
        return println!("skipped: {reason}");
    }
    for (case, transport) in [("teams", "auto"), ("rma", "auto"), ("atomic_values", "ibrc")] {
        let output = Command::new("timeout")
            .args(["120", "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", TWO_NAMESPACES, "sh"])
            .arg(oxshmem_tests::program(PE))
            .arg(case)
            .envs([("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TRANSPORT", transport), ("OXSHMEM_HEAP_CHUNK", "1M")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case} over {transport}: {}\n{text}", output.status);
    }
}

/// More than one word of the device state describes.
#[test]
fn seventy_pes_of_a_node_load_and_store() {
    Job::new(PE, "atomic_values", 70).transport(Transport::P2p).passes();
}

#[test]
fn load_and_store_do_not_reach_another_node() {
    let outcome = Job::new(PE, "rma", 2).nodes(2).transport(Transport::P2p).run();
    let text = transcript(&outcome);
    assert!(!outcome.is_success() && text.contains("it is on another node"), "{text}");
}

/// As on GPUs, whose memory the CPU does not reach: the engine's thread executes by copies, and a
/// kernel does the atomics that other nodes request.
#[test]
fn an_engine_that_copies_reaches_other_nodes() {
    let job = |case, npes, transport| {
        Job::new(PE, case, npes).nodes(2).transport(transport).env("OXSHMEM_SOFT_ENGINE", "copy")
    };
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for case in ["rma", "atomic_values", "atomic_contention", "signals", "fence", "host_transfers"] {
            job(case, 2, transport).passes();
        }
        // Of four PEs each has one of its node, and two that are reached over TCP.
        job("barriers", 4, transport).args(&["5"]).passes();
        job("collectives", 4, transport).args(&["6000"]).thinned().passes();
    }
    job("rma", 4, Transport::Auto).passes();
    job("lanes", 2, Transport::Ibgda).passes();
    job("host_heap", 2, Transport::Ibgda).passes();
}

#[test]
fn an_engine_that_cannot_reach_other_nodes_says_so_at_once() {
    for (variable, value, remedy) in [
        ("OXSHMEM_SOFT_ENGINE", "kernel", "OXSHMEM_SOFT_ENGINE=auto or copy"),
        ("OXSHMEM_HCA", "null", "OXSHMEM_HCA=soft"),
    ] {
        let outcome = Job::new(PE, "rma", 2).nodes(2).transport(Transport::Ibgda).env(variable, value).run();
        let text = transcript(&outcome);
        assert!(!outcome.is_success() && text.contains(remedy), "{text}");
    }
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let job = Job::new(PE, "rma", 2).nodes(2).transport(Transport::Ibgda).env("OXSHMEM_INTERFACE", "no-such");
    let text = transcript(&job.run());
    assert!(text.contains("no interface fits 'no-such'; this machine has"), "{text}");
    // The one that is there, by its addresses, and by its name in a list.
    for wanted in ["127.0.0.0/8", "=no-such,lo"] {
        Job::new(PE, "rma", 2).nodes(2).transport(Transport::Ibgda).env("OXSHMEM_INTERFACE", wanted).passes();
    }
}

/// The others are told, and none of them hangs.
#[test]
fn a_pe_of_another_node_that_dies_is_noticed() {
    for engine in ["thread", "copy"] {
        for case in ["dies_in_barrier", "dies_in_kernel"] {
            let job = Job::new(PE, case, 3).nodes(2).transport(Transport::Ibgda).env("OXSHMEM_SOFT_ENGINE", engine);
            let outcome = job.run();
            let text = transcript(&outcome);
            assert!(!outcome.is_success() && text.contains(") died"), "{case}, {engine}: {text}");
        }
    }
}
