//! Collectives in two levels on simulated nodes: results, and counted messages and bytes beside the
//! model, for several splits of PEs into nodes.

use oxshmem_tests::{Job, Transport, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// Has the host carry out in levels all that it can.
const LEVELS: &str = "broadcast=levels,collect=levels,fcollect=levels,alltoall=levels,alltoalls=levels,reduce=levels,reducescatter=levels";

/// A job whose PE i is on the node that the i-th character names.
fn on_nodes(case: &str, nodes: &str, transport: Transport) -> Job {
    let script = format!(r#"OXSHMEM_NODE=$(echo {nodes} | cut -c $((OXSHMEM_RANK + 1))) exec "$0" "$@""#);
    let network = if transport == Transport::Ibrc { "ibrc" } else { "ibgda" };
    Job::new(PE, case, u32::try_from(nodes.len()).expect("few PEs"))
        .through(&["sh", "-c", &script])
        .transport(Transport::Auto)
        .env("OXSHMEM_NETWORK", network)
        .env("OXSHMEM_COLLECTIVES", LEVELS)
        // A put that crosses chunks of the heap is several work requests.
        .env("OXSHMEM_HEAP_CHUNK", "128M")
        .env("OXSHMEM_HEAP_MAX", "512M")
}

/// The members of each node, as the case prints them.
fn members(nodes: &str) -> String {
    let mut names: Vec<char> = Vec::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (pe, name) in nodes.chars().enumerate() {
        match names.iter().position(|known| *known == name) {
            Some(node) => members[node].push(pe),
            None => {
                names.push(name);
                members.push(vec![pe]);
            }
        }
    }
    format!("{members:?}")
}

/// Runs the case `levels`, which compares with the model.
fn counts_as_the_model(nodes: &str, transport: Transport, blocks: &str) {
    let outcome = on_nodes("levels", nodes, transport).args(&[&members(nodes), blocks]).passes();
    assert!(!transcript(&outcome).contains("skipped"), "the software HCA's thread counts by queue pair");
}

macro_rules! splits {
    ($($name:ident: $nodes:literal, $transport:ident;)*) => {
        $(
            #[test]
            fn $name() {
                // The workspaces of 32 teams have room for as many blocks in a heap of 512 MiB.
                counts_as_the_model($nodes, Transport::$transport, "36");
            }
        )*
    };
}

splits! {
    two_of_one_ibgda: "ab", Ibgda;
    two_of_two_ibgda: "aabb", Ibgda;
    two_of_two_ibrc: "aabb", Ibrc;
    two_of_two_dealt_out_ibgda: "abab", Ibgda;
    three_of_two_ibgda: "aabbcc", Ibgda;
    three_of_one_ibrc: "abc", Ibrc;
    five_of_one_ibgda: "abcde", Ibgda;
    three_and_one_ibgda: "aaab", Ibgda;
    three_and_one_ibrc: "aaab", Ibrc;
    two_three_and_one_ibgda: "abbacb", Ibgda;
    two_three_and_one_ibrc: "abbacb", Ibrc;
    two_of_four_ibgda: "aaaabbbb", Ibgda;
}

/// The least and the greatest values do not depend on the node of a NaN.
#[test]
fn float_orders_do_not_depend_on_the_node_of_a_nan() {
    on_nodes("float_orders", "aabb", Transport::Ibgda).passes();
}

/// Sums of 16-bit floating point: each node's are rounded once. Where that is does not matter for
/// these values.
#[test]
fn float_sums_are_rounded_once_for_each_node() {
    on_nodes("float_sums", "aaaabbbb", Transport::Ibgda).args(&["Sum"]).passes();
}

/// Every type, operator and team shape, where nodes differ in size.
#[test]
fn host_collectives_of_uneven_nodes() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        on_nodes("host_collectives", "abbacb", transport).args(&["9000"]).thinned().passes();
    }
}

/// PE 0 and 1 do not reach each other, and both reach 2: the nodes are 0 and 2, and 1.
#[test]
fn host_collectives_where_reach_is_not_transitive() {
    let job = on_nodes("host_collectives", "aaa", Transport::Ibgda).env("OXSHMEM_P2P_FAULTS", "0-1");
    job.args(&["9000"]).thinned().passes();
}

/// Members that disagree, also on the number of blocks, or whose buffers are bad. With a deadline
/// that no test waits for.
#[test]
fn wrong_calls_are_errors_on_all_members() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        on_nodes("host_collectives_refused", "abba", transport).env("OXSHMEM_TIMEOUT", "1h").passes();
    }
}

#[test]
fn a_late_member_is_named_at_the_deadline() {
    on_nodes("host_collectives_late", "ab", Transport::Ibgda).env("OXSHMEM_TIMEOUT", "300ms").passes();
}

/// A small heap has room for one block alone in each workspace.
#[test]
fn one_block_is_enough() {
    let job = on_nodes("levels", "aab", Transport::Ibgda).env("OXSHMEM_COLLECTIVES_SMS", "1");
    job.args(&[&members("aab"), "1"]).passes();
}
