//! Cards of a described machine, and what is counted by their rails.

use std::path::{Path, PathBuf};

use oxshmem_tests::Transport;
use serde_json::Value;

use super::{folder, job, report};

/// Returns what a PE has counted.
fn counters_of(results: &Path, pe: usize) -> Value {
    let file = results.join(format!("counters-{pe}.json"));
    let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Returns the names of the cards that a PE has counted by.
fn devices(counters: &Value) -> Vec<&str> {
    counters["cards"].as_array().into_iter().flatten().filter_map(|card| card["device"].as_str()).collect()
}

/// Writes a description of two GPUs and two cards below one switch, whose ports are those of the
/// stand-in, and returns the file.
fn one_switch(name: &str) -> PathBuf {
    let machine = folder().join(name);
    let text = include_str!("../machines/one-switch.txt").replace("InfiniBand", "Ethernet");
    std::fs::write(&machine, text).unwrap_or_else(|error| panic!("{}: {error}", machine.display()));
    machine
}

/// Two nodes of two PEs, each with a card of its own, which push by the other PE's card as well:
/// the cards' atomics are not atomic with each other, and each has its own keys and doorbells.
#[test]
fn cards_of_other_rails_are_opened_and_pushed_by() {
    let machine = one_switch("one-switch.txt");
    for transport in [Transport::Auto, Transport::Ibgda, Transport::Ibrc] {
        let results = folder().join(format!("pushed-{transport:?}"));
        let _ = std::fs::remove_dir_all(&results);
        for test in ["rma", "atomic_values", "signals", "fence"] {
            job(test, transport, 4)
                .nodes(2)
                .env("OXSHMEM_HCA", "mlx5")
                .env("OXSHMEM_RAILS", "push")
                .env("OXSHMEM_TOPOLOGY", &machine)
                .env("RDMA_STAND_IN", "device:count=2")
                .env("OXSHMEM_PROFILE", "counters")
                .env("OXSHMEM_PROFILE_DIR", &results)
                .passes();
        }
        for pe in 0..4 {
            let counters = counters_of(&results, pe);
            let cards = devices(&counters);
            let (own, other) = if pe % 2 == 0 { ("mlx5_0", "mlx5_1") } else { ("mlx5_1", "mlx5_0") };
            assert_eq!(cards, [own, other], "PE {pe}");
            let routes: Vec<_> = counters["routes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|route| route["leaves_node"] == true)
                .collect();
            assert_eq!(routes.len(), 3, "PE {pe}: {routes:?}");
            assert!(routes.iter().all(|route| route["crosses_rails"] == false), "PE {pe}: {routes:?}");
        }
    }
}

/// Returns the description of two GPUs with two cards below the switch of each, whose ports are
/// those of the stand-in.
fn two_cards_each() -> String {
    let mut text = String::new();
    for node in 0..2 {
        let switch = format!("pci0000:{node}5/0000:{node}5:01.0/0000:{node}6:00.0");
        text += &format!("gpu 0 {switch}/0000:{node}7:00.0/0000:{node}8:00.0\n");
        for card in 1..3 {
            text += &format!("pci 0 {switch}/0000:{node}7:0{card}.0/0000:{node}a:0{card}.0\n");
        }
    }
    for card in 0..4 {
        let address = format!("0000:{}a:0{}.0", card / 2, 1 + card % 2);
        text += &format!("rdma mlx5_{card} {address} mlx5_core 1:CA 1 4:ACTIVE Ethernet\n");
    }
    text
}

/// Two nodes of two PEs, each with two cards of its own, which push by both cards of the other PE
/// as well: of four queue pairs to a peer, two lead to each of its cards, on their rails.
#[test]
fn pes_with_several_cards_push_by_those_of_all_rails() {
    let machine = folder().join("two-cards-each.txt");
    std::fs::write(&machine, two_cards_each()).unwrap_or_else(|error| panic!("{}: {error}", machine.display()));
    for transport in [Transport::Auto, Transport::Ibgda, Transport::Ibrc] {
        let results = folder().join(format!("pushed-by-several-{transport:?}"));
        let _ = std::fs::remove_dir_all(&results);
        let job = |test: &str| {
            job(test, transport, 4)
                .nodes(2)
                .env("OXSHMEM_HCA", "mlx5")
                .env("OXSHMEM_RAILS", "push")
                .env("OXSHMEM_QPS_PER_PEER", "4")
                .env("OXSHMEM_STAGING_RING", "2K")
                .env("OXSHMEM_TOPOLOGY", &machine)
                .env("RDMA_STAND_IN", "device:count=4")
        };
        for test in ["rma", "atomic_values", "signals", "fence", "contexts"] {
            job(test).env("OXSHMEM_PROFILE", "counters").env("OXSHMEM_PROFILE_DIR", &results).passes();
        }
        // A signal that adds follows its put on the same queue pair where atomics need not be on
        // the first card.
        let coherent = job("put_flood").env("RDMA_STAND_IN", "device:count=4,device:atomics=2");
        coherent.args(&["2", "34", "6", "5000"]).env("OXSHMEM_STAGING", "64").passes();
        for pe in 0..4 {
            let counters = counters_of(&results, pe);
            let cards = devices(&counters);
            let all = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"];
            let expected: Vec<&str> = if pe % 2 == 0 { all.to_vec() } else { [&all[2..], &all[..2]].concat() };
            assert_eq!(cards, expected, "PE {pe}");
            let routes = counters["routes"].as_array().cloned().unwrap_or_default();
            let sent: Vec<_> =
                routes.iter().filter(|route| route["leaves_node"] == true && route["receives_only"] == false).collect();
            assert!(sent.iter().all(|route| route["crosses_rails"] == false), "PE {pe}: {sent:?}");
            // Each of the four cards leads to one PE of the other node, by two queue pairs.
            let mut connections: Vec<_> =
                sent.iter().map(|route| (route["card"].as_u64(), route["connections"].as_u64())).collect();
            connections.sort_unstable();
            let each: Vec<_> = (0..4).map(|card| (Some(card), Some(2))).collect();
            assert_eq!(connections, each, "PE {pe}: {sent:?}");
        }
    }
}

/// The second node lacks the card of a rail that a PE of the first is on.
#[test]
fn a_card_of_another_rail_that_cannot_be_opened_is_named() {
    let machine = one_switch("lacking.txt");
    let lacking = r#"[ "$OXSHMEM_NODE" = node1 ] && export RDMA_STAND_IN=device:count=1; exec "$0" "$@""#;
    let job = |rails: &str| {
        job("rma", Transport::Auto, 3)
            .nodes(2)
            .through(&["sh", "-c", lacking])
            .env("OXSHMEM_HCA", "mlx5")
            .env("OXSHMEM_RAILS", rails)
            .env("OXSHMEM_TOPOLOGY", &machine)
            .env("RDMA_STAND_IN", "device:count=2")
    };
    let outcome = job("push").run();
    let shown = oxshmem_tests::transcript(&outcome);
    let words = "PE 2 cannot push: mlx5_1/1 of rail 1 cannot be used: there is no RDMA device mlx5_1";
    assert!(!outcome.is_success() && shown.contains(words), "no `{words}` in\n{shown}");
    // Where it is left to the library, PEs send by their own cards.
    job("auto").passes();
}

/// PEs get the cards that are near the GPUs of a described machine, and what the CPU proxy posts is
/// counted by their rails.
#[test]
fn a_described_machine_gives_pes_their_cards_and_rails() {
    let machine = folder().join("machine.txt");
    let description = "gpu 0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0\n\
                       pci 0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0\n\
                       gpu 1 pci0000:3d/0000:3d:01.0/0000:3e:00.0/0000:3f:00.0/0000:40:00.0\n\
                       pci 1 pci0000:5d/0000:5d:01.0/0000:5e:00.0\n\
                       rdma mlx5_0 0000:5e:00.0 mlx5_core 1:CA 1 4:ACTIVE Ethernet\n\
                       rdma mlx5_1 0000:19:00.0 mlx5_core 1:CA 1 4:ACTIVE Ethernet\n";
    std::fs::write(&machine, description).unwrap_or_else(|error| panic!("{}: {error}", machine.display()));
    let results = folder().join("described");
    let _ = std::fs::remove_dir_all(&results);
    job("routes", Transport::Ibrc, 2)
        .args(&["3", "100"])
        .env("OXSHMEM_HCA", "mlx5")
        .env("OXSHMEM_TOPOLOGY", &machine)
        .env("RDMA_STAND_IN", "device:count=2")
        .env("OXSHMEM_IB_FLUSH", "never")
        .env("OXSHMEM_PROFILE", "counters")
        .env("OXSHMEM_PROFILE_DIR", &results)
        .passes();
    for (pe, card, rail, crossing) in [(0, "mlx5_1", 1, "none"), (1, "mlx5_0", 0, "root")] {
        let counters = counters_of(&results, pe);
        assert_eq!(counters["cards"][0]["device"], card, "PE {pe}");
        let route = &counters["routes"][0];
        let rails = [&route["rail"], &route["peer_rail"]].map(|rail| rail.as_u64());
        assert_eq!(rails, [Some(rail), Some(1 - rail)], "PE {pe}: {route}");
        assert_eq!((&route["crosses_rails"], &route["crossing"]), (&true.into(), &crossing.into()), "PE {pe}: {route}");
        assert!(route["messages"].as_u64() >= Some(3), "PE {pe}: {route}");
    }
    // Device code that posts stages for a card at another socket, or says that it does not.
    let text = |cards: &str, staging: &str| {
        let job = job("hca_report", Transport::Ibgda, 2).env("OXSHMEM_HCA", "mlx5").env("OXSHMEM_HCA_DEVICES", cards);
        let job = job.env("OXSHMEM_STAGING", staging).env("OXSHMEM_TOPOLOGY", &machine);
        report(job.env("RDMA_STAND_IN", "device:count=2"))
    };
    let staged = "attempt sources of puts of 221 and more staged for mlx5_0: in use: the card is at another NUMA node; a ring of 4M for \
                  each of 8 QPs, 32M together, in memory of the host";
    let left_alone = "attempt sources of puts staged for mlx5_0: no: OXSHMEM_STAGING=off says so, though the card is at another NUMA \
                      node: puts of up to 220 bytes travel in the queue, and the card reads longer ones there";
    for (staging, line) in [("auto", staged), ("off", left_alone)] {
        let far = text("0=mlx5_0,1=mlx5_1", staging);
        assert!(far.lines().any(|found| found == line), "no `{line}` in\n{far}");
    }
    let near = text("0=mlx5_1,1=mlx5_0", "auto");
    assert!(!near.contains("sources of puts"), "{near}");
}
