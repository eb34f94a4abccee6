//! What needs no GPU: lies of libraries, kernel and firmware, and teardown.

mod commands;
mod order;
mod rails;
mod size;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use oxshmem::bootstrap::UniqueId;
use oxshmem::launch::{self, LaunchOptions, Output, PeStatus};
use oxshmem_tests::{Job, Transport, stdout, transcript};

use super::{PE, card_reports, counts, folder, job, libraries, library_path, stand_in_path};

/// What PE 0 says of its HCA.
fn report(job: Job) -> String {
    stdout(&job.passes(), 0)
}

#[test]
fn the_report_names_what_was_tried_and_chosen() {
    let text = report(job("hca_report", Transport::Ibgda, 2));
    for line in [
        "provider mlx5",
        "path Ibgda",
        "attempt DevX context: opened on mlx5_0",
        "attempt host memory as umem by address: done",
        "attempt host memory as memory region by address: done",
        "attempt doorbell page, not cached, of its own: given",
        "attempt doorbells rung by device code: in use",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

/// The errors of a job that must fail, each in one line. `text` is part of one of them.
fn fails(job: &Job, text: &str) {
    let outcome = job.run();
    let all = transcript(&outcome);
    assert!(!outcome.is_success(), "nothing failed, where `{text}` should have:\n{all}");
    let reports = all.lines().filter(|line| line.starts_with("hca_report: "));
    assert!(reports.clone().any(|line| line.contains(text)), "no line with `{text}` in\n{all}");
}

/// A PE whose libraries, kernel or firmware lie.
fn told(lies: &str) -> Job {
    job("hca_report", Transport::Ibgda, 2).env("RDMA_STAND_IN", lies)
}

#[test]
fn libraries_that_are_too_old_are_named() {
    let without = |function: &str| {
        job("hca_report", Transport::Ibgda, 2).env("LD_LIBRARY_PATH", library_path(&libraries(&[function])))
    };
    let needed = "has no mlx5dv_devx_umem_reg_ex: it is too old; install rdma-core 36 or newer";
    fails(&without("mlx5dv_devx_umem_reg_ex"), needed);
    fails(&without("ibv_reg_mr_iova2"), "libibverbs.so.1 has no ibv_reg_mr_iova2: install rdma-core 32 or newer");
}

#[test]
fn memory_is_kept_across_forks_where_the_library_can_do_so() {
    let said = |job: Job| transcript(&job.env("OXSHMEM_LOG", "oxshmem_hca=debug").passes());
    let refused = "a program that forks may lose what cards write (ibv_fork_init)";
    assert!(said(told("errno:ibv_fork_init=22")).contains(refused));
    assert!(!said(told("")).contains(refused));
    // A library without the function does as well.
    let path = library_path(&libraries(&["ibv_fork_init"]));
    assert!(!said(told("").env("LD_LIBRARY_PATH", path)).contains(refused));
}

#[test]
fn a_library_that_cannot_be_loaded_is_named() {
    let folder = folder().join("no-stand-in");
    let written =
        std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(folder.join("libmlx5.so.1"), "no library"));
    assert!(written.is_ok(), "{}: {written:?}", folder.display());
    let path = format!("{}:{}", folder.display(), libraries(&[]).display());
    let job = job("hca_report", Transport::Ibgda, 2).env("LD_LIBRARY_PATH", path);
    fails(&job, "the driver library libmlx5.so.1 cannot be loaded (");
}

#[test]
fn devices_that_cannot_be_used_are_named() {
    let named = |device: &str| told("").env("OXSHMEM_HCA", device);
    fails(&named("mlx5:mlx5_7"), "there is no RDMA device mlx5_7; this machine has mlx5_0");
    fails(&named("mlx5:mlx5_0/2"), "mlx5_0 has no port 2: its ports are 1 to 1");
    fails(&told("device:foreign=1"), "mlx5_0 is not a ConnectX card that libmlx5 drives; use OXSHMEM_HCA=verbs:mlx5_0");
    fails(&told("device:none=1"), "has no RDMA device");
    fails(
        &told("errno:mlx5dv_open_device=13"),
        "mlx5_0 cannot be opened: /dev/infiniband/uverbs0: Permission denied (os error 13); this user must be able to read",
    );
    fails(
        &told("errno:mlx5dv_open_device=95"),
        "mlx5_0 does not give this user a DevX context: Operation not supported",
    );
    fails(&told("port:state=1"), "port 1 of mlx5_0 is DOWN, not ACTIVE");
}

#[test]
fn entries_of_the_gid_table_are_checked() {
    let index = |index: &str| told("").env("OXSHMEM_IB_GID_INDEX", index);
    fails(
        &index("9"),
        "OXSHMEM_IB_GID_INDEX=9: that entry of mlx5_0 port 1 does not exist (the table has 4); usable are 1 (",
    );
    fails(&index("2"), "is of RoCE v1, and RoCE v2 is needed");
    index("1").passes();
}

/// Two PEs on InfiniBand, each with a card of its own.
fn two_cards(case: &str, transport: Transport, lies: &str) -> Job {
    job(case, transport, 2)
        .env("OXSHMEM_HCA", "mlx5")
        .env("OXSHMEM_HCA_DEVICES", "0=mlx5_0,1=mlx5_1")
        .env("RDMA_STAND_IN", format!("device:count=2,port:infiniband=1,{lies}"))
}

fn on_infiniband(lies: &str) -> Job {
    two_cards("hca_report", Transport::Ibgda, lies)
}

#[test]
fn infiniband_ports_that_cannot_be_used_are_named() {
    on_infiniband("").passes();
    fails(
        &on_infiniband("port:state=2"),
        "port 1 of mlx5_0 is INIT, not ACTIVE; check cable and switch, the subnet manager",
    );
    fails(
        &on_infiniband("port:lid=0"),
        "port 1 of mlx5_0 has LID 0x0, and LIDs of ports are 0x1 to 0xbfff; the subnet manager assigns them",
    );
    fails(
        &on_infiniband("").env("OXSHMEM_IB_GID_INDEX", "1"),
        "OXSHMEM_IB_GID_INDEX=1: that entry of mlx5_0 port 1 is empty; usable are 0 (fe80::",
    );
}

#[test]
fn entries_of_the_partition_key_table_are_checked() {
    let index = |job: Job, index: &str| job.env("OXSHMEM_IB_PKEY_INDEX", index);
    fails(
        &index(on_infiniband(""), "4"),
        "OXSHMEM_IB_PKEY_INDEX=4: that entry of mlx5_0 port 1 is empty (0x0000); usable are 0 (0xffff), 1 (0x8001), 2 (0x0001), 3 (0x8010)",
    );
    fails(
        &index(on_infiniband(""), "128"),
        "that entry of mlx5_0 port 1 does not exist (the table has 128); usable are 0",
    );
    fails(
        &index(told(""), "1"),
        "OXSHMEM_IB_PKEY_INDEX=1: that entry of mlx5_0 port 1 does not exist (the table has 1); usable are 0",
    );
    fails(
        &index(on_infiniband(""), "2"),
        "mlx5_0 port 1 has partition key 0x0001 at OXSHMEM_IB_PKEY_INDEX, the peer's port 0x0001: limited members of a partition do",
    );
    fails(
        &index(on_infiniband(""), "3"),
        "the peer's port 0x8011: they are of different partitions; name entries of one partition",
    );
    fails(
        &on_infiniband("errno:ibv_query_pkey=13"),
        "mlx5_0 port 1 cannot be read (Permission denied (os error 13)); usable are none",
    );
}

#[test]
fn subnets_that_no_router_joins_are_named() {
    fails(
        &on_infiniband("port:subnets=2,port:flid=0"),
        "are on different InfiniBand subnets, and the peer's GID has no FLID, by which a router is reached: let every PE use devices of one",
    );
    // What is chosen is the entry that a router knows.
    on_infiniband("port:subnets=2").passes();
    fails(&on_infiniband("port:subnets=2").env("OXSHMEM_IB_GID_INDEX", "0"), "are on different InfiniBand subnets");
}

#[test]
fn packets_that_get_lost_on_infiniband_are_reported() {
    // A LID that no port has, a service level that is not forwarded, and too few hops to a router's
    // other side.
    for (lies, hops) in [("port:lid=0xafff", "255"), ("port:sl=5", "255"), ("port:subnets=2", "1")] {
        for transport in [Transport::Ibgda, Transport::Ibrc] {
            let job = two_cards("lost_packets", transport, lies);
            job.env("OXSHMEM_IB_TIMEOUT", "8").env("OXSHMEM_IB_HOP_LIMIT", hops).passes();
        }
    }
    for (transport, why) in
        [(Transport::Ibgda, "a queue pair is in error"), (Transport::Ibrc, "transport retry counter")]
    {
        let job = two_cards("lost_barrier", transport, "port:lid=0xafff").env("OXSHMEM_TIMEOUT", "3s");
        let text = transcript(&job.env("OXSHMEM_IB_TIMEOUT", "8").passes());
        assert!(text.contains(&format!("the connection to PE 1 is lost ({why}")), "{text}");
    }
}

#[test]
fn cards_that_lack_something_are_named() {
    fails(&told("cap:rc=0"), "HCA mlx5_0: it has no RC transport; use another card");
    fails(&told("cap:atomic=0"), "HCA mlx5_0: it has no atomics; use another card");
    let verbs = job("hca_report", Transport::Ibrc, 2).env("OXSHMEM_HCA", "verbs:mlx5_0");
    fails(&verbs.env("RDMA_STAND_IN", "device:atomics=0"), "mlx5_0 has no atomics (ibv_devinfo -v: ATOMIC_NONE)");
    fails(&told("cap:atomic_req_8b_endianness_mode=0"), "HCA mlx5_0: it keeps 8-byte atomics big-endian in memory");
    fails(
        &told("cap:log_max_qp_sz=7").env("OXSHMEM_QP_DEPTH", "256"),
        "HCA mlx5_0: its queues have at most 128 blocks, 256 are requested; lower OXSHMEM_QP_DEPTH",
    );
    fails(&told("cap:atomic_operations=3"), "it has 8-byte atomics without masks alone");
}

#[test]
fn without_masked_atomics_the_proxy_posts() {
    let lies = "cap:atomic_operations=3,cap:log_max_ra_req_qp=1";
    let auto = |case| job(case, Transport::Auto, 2).env("OXSHMEM_DISABLE_P2P", "1").env("RDMA_STAND_IN", lies);
    let text = report(auto("hca_report"));
    assert!(
        text.contains("path Ibrc") && text.contains("attempt work requests posted by device code: no: PE 0: "),
        "{text}"
    );
    auto("atomic_values").passes();
}

#[test]
fn refusals_of_the_firmware_show_the_command() {
    fails(
        &told("status:CREATE_QP=0x0f@2"),
        "CREATE_QP failed: no resources (status 0x0f), syndrome 0xbad: mlx5_0: CREATE_QP wq_umem_offset=0x",
    );
    fails(
        &told("status:QUERY_HCA_CAP=2"),
        "QUERY_HCA_CAP failed: bad operation (status 0x02), syndrome 0xbad: mlx5_0: ",
    );
    fails(&told("status:INIT2RTR_QP=0x0a"), "INIT2RTR_QP failed: bad index");
    fails(
        &told("errno:mlx5dv_devx_obj_create=22@2"),
        "mlx5dv_devx_obj_create on mlx5_0 failed: Invalid argument (os error 22); CREATE_CQ ",
    );
    fails(&told("errno:mlx5dv_devx_query_eqn=95"), "mlx5dv_devx_query_eqn on mlx5_0 failed: Operation not supported");
}

#[test]
fn memory_that_cannot_be_registered_is_explained() {
    fails(
        &told("errno:mlx5dv_devx_umem_reg_ex.address=14"),
        "bytes of host memory cannot be registered with mlx5_0: by address: Bad address (os error 14)",
    );
    fails(&told("errno:ibv_reg_mr_iova2=14@2"), "bytes of host memory cannot be registered with mlx5_0: by address: ");
}

#[test]
fn bounce_slots_that_cannot_be_registered_are_explained_where_they_were_asked_for() {
    let job = |staging| job("hca_report", Transport::Ibrc, 2).env("OXSHMEM_STAGING", staging);
    // The landing slots, the slab, the bounce slots.
    fails(
        &job("on").env("RDMA_STAND_IN", "errno:ibv_reg_mr_iova2=12@3"),
        "OXSHMEM_STAGING=on: puts cannot be staged: ",
    );
    let text = report(job("auto"));
    assert!(
        text.contains("attempt sources of puts read by the card itself: in use: they are in host memory"),
        "{text}"
    );
}

#[test]
fn queues_lie_in_host_memory_where_the_card_cannot_reach_the_devices() {
    let lies = "errno:mlx5dv_devx_umem_reg_ex.address=95@1";
    let text = report(told(lies));
    assert!(
        text.contains("attempt queues in memory of the device: no: ") && text.contains("Operation not supported"),
        "{text}"
    );
    assert!(text.contains("attempt queues in memory of the host: in use"), "{text}");
    job("rma", Transport::Ibgda, 3).env("RDMA_STAND_IN", lies).passes();
}

#[test]
fn what_is_made_of_a_card_grows_with_the_peers_and_no_faster() {
    const PES: u64 = 64;
    const QPS: u64 = 8;
    let file = folder().join("many");
    let _ = std::fs::remove_file(&file);
    job("hca_report", Transport::Ibgda, PES as u32)
        .env("OXSHMEM_QPS_PER_PEER", QPS.to_string())
        .env("OXSHMEM_QP_DEPTH", "256")
        .env("OXSHMEM_HEAP_MAX", "4M")
        .env("OXSHMEM_HEAP_CHUNK", "4M")
        .env("RDMA_STAND_IN", format!("report:file={}", file.display()))
        .passes();
    let reports = std::fs::read_to_string(&file).unwrap_or_default();
    println!("{}", reports.lines().next().unwrap_or_default());
    let each = |name, count: u64| assert_eq!(counts(&reports, name), vec![count; PES as usize], "{name}");
    // Those from a PE to itself are for atomics.
    each("qps", PES * QPS);
    each("cqs", PES * QPS);
    // The slab, after a piece of memory that was tried.
    each("umems", 2);
    // The slab and one chunk of the heap.
    each("regions", 2);
    // Few pages for all, after one that was tried.
    each("pages", 17);
    each("domains", 2);
    each("error_counters", 1);
    each("others", 0);
    // A question to the kernel for each peer, and for the PE itself.
    each("handles", PES);
}

#[test]
fn quiet_reads_through_the_card_where_a_pe_may_learn_of_a_write_in_another_way() {
    let executed = |job: Job, flush: &str| -> u64 {
        // Where nothing is read, what the card has acknowledged has to be visible.
        let lies = if flush == "never" { "device:late=0" } else { "" };
        let reports = card_reports("flush", job.env("OXSHMEM_IB_FLUSH", flush), lies);
        counts(&reports, "wqes").iter().sum()
    };
    // PEs 0 and 1 reach each other through the card, and PE 2 by load and store.
    for network in ["ibgda", "ibrc"] {
        let mixed = || {
            job("barriers", Transport::Auto, 3)
                .args(&["8"])
                .env("OXSHMEM_NETWORK", network)
                .env("OXSHMEM_P2P_FAULTS", "0-1")
        };
        let [never, auto, always] = ["never", "auto", "always"].map(|flush| executed(mixed(), flush));
        assert!(never > 0 && auto > never && always > never, "{network}: {never}, {auto}, {always}");
    }
    // Through the card alone no other way exists.
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let [never, auto, always] =
            ["never", "auto", "always"].map(|flush| executed(job("barriers", transport, 2).args(&["8"]), flush));
        assert!(never > 0 && always > auto, "{}: {never}, {auto}, {always}", transport.name());
        assert_eq!(never, auto, "{}", transport.name());
    }
}

/// The PE before a PE is on the other node for half of them, and learns of the put from others.
#[test]
fn what_was_put_before_the_host_waited_is_visible_after_a_barrier() {
    for network in ["ibgda", "ibrc"] {
        job("barrier_after_wait", Transport::Auto, 4).nodes(2).env("OXSHMEM_NETWORK", network).passes();
    }
}

#[test]
fn who_does_local_atomics_can_be_chosen() {
    let told = |mode: &str, transport| {
        let job = job("hca_report", transport, 2).env("OXSHMEM_QPS_PER_PEER", "3").env("OXSHMEM_ATOMICS", mode);
        counts(&card_reports("atomics", job, ""), "qps")
    };
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        // With queue pairs from a PE to itself, or without.
        assert_eq!((told("auto", transport), told("card", transport)), (vec![6; 2], vec![6; 2]));
        assert_eq!(told("gpu", transport), [3; 2]);
    }
    let text = report(job("hca_report", Transport::Ibgda, 2));
    assert!(text.contains("attempt atomics on local memory: all of them by cards, which are not atomic"), "{text}");
    let text = report(job("hca_report", Transport::Ibgda, 2).env("OXSHMEM_ATOMICS", "gpu"));
    assert!(text.contains("attempt atomics on local memory: by the GPU on its own memory"), "{text}");
}

#[test]
fn words_that_gpus_and_cards_change_are_reported() {
    oxshmem_tests::mixed_words_are_found(super::on_the_card);
}

#[test]
fn what_does_atomics_is_logged_once() {
    for mode in ["auto", "card"] {
        oxshmem_tests::mode_is_logged_once(
            super::on_the_card,
            mode,
            "all of them by cards, which are not atomic with GPUs",
        );
    }
    oxshmem_tests::mode_is_logged_once(
        super::on_the_card,
        "gpu",
        "by the GPU on its own memory and that of load/store peers",
    );
}

#[test]
fn queue_pairs_are_spread_over_the_ports_of_a_bond() {
    let job = || job("rma", Transport::Ibgda, 3).env("OXSHMEM_ATOMICS", "gpu");
    let ports = "cap:init2_lag_tx_port_affinity=1,cap:num_lag_ports=2";
    // Two peers with four queue pairs each.
    let reports = card_reports("bond", job(), ports);
    assert_eq!(reports.matches(" bond=4+4+0+0\n").count(), 3, "{reports}");
    // Ports that are not bonded, a card that is never told, and one that does not know the command.
    for lies in [&format!("{ports},port:bond=0"), "cap:num_lag_ports=2", &format!("{ports},status:QUERY_LAG=2")] {
        let reports = card_reports("bond", job(), lies);
        assert_eq!(reports.matches(" bond=0+0+0+0\n").count(), 3, "{lies}: {reports}");
    }
}

#[test]
fn every_kind_of_clock_is_taken() {
    // Real time only, free-running only, both.
    for clock in ["1", "0", "2"] {
        told(&format!("cap:qp_ts_format={clock},cap:sq_ts_format={clock}")).passes();
        on_infiniband(&format!("cap:qp_ts_format={clock},cap:sq_ts_format={clock}")).passes();
    }
}

#[test]
fn a_kernel_that_hides_the_firmwares_answer_does_not_make_a_dead_card() {
    // EIO, and nothing in the output.
    for call in ["mlx5dv_devx_obj_create=5@3", "mlx5dv_devx_obj_modify=5@2"] {
        let job = told(&format!("errno:{call}"));
        fails(&job, "failed: Input/output error (os error 5); ");
        fails(&job, "the card still answers, so its firmware refused the command: kernels before 5.18");
        assert!(!transcript(&job.run()).contains("is dead"));
    }
}

/// The set-up of two PEs, in which the call or the command at one position of PE 0 fails, and
/// another one after it.
struct Setup {
    transport: Transport,
    cards: u32,
}

/// What a call or a command that failed had for a consequence.
struct Failed {
    /// Its name.
    what: String,
    /// How the set-up went at PE 0 and at PE 1: `passed`, or the error.
    first: [String; 2],
    /// Everything that PE 0 said.
    text: String,
}

impl Setup {
    /// Lets `lie` fail at that position. `None` if that is beyond the first set-up. The second
    /// set-up works, and nothing is left.
    fn fails_at(&self, lie: &str, position: u32) -> Option<Failed> {
        let ids = [(); 2].map(|()| UniqueId::create().unwrap_or_else(|error| panic!("{error}")).to_string());
        let cards: Vec<String> = (0..self.cards).map(|card| format!("mlx5_{card}")).collect();
        let cards = cards.join("+");
        let file = |rank: usize| {
            folder().join(format!("position-{}-{}-{}-{rank}", &lie[..6], self.transport.name(), self.cards))
        };
        let pes = [0, 1].map(|rank| {
            let _ = std::fs::remove_file(file(rank));
            let lies = format!("device:count={},report:file={}", self.cards, file(rank).display());
            let lies = if rank == 0 { format!("{lies},{lie}@{position}") } else { lies };
            let pe = Command::new(oxshmem_tests::program(PE))
                .args(["hca_recovers", &ids[0], &ids[1], &rank.to_string()])
                .env("LD_LIBRARY_PATH", stand_in_path())
                .env("RDMA_STAND_IN", lies)
                .env("OXSHMEM_DEVICE", "cpu")
                .env("OXSHMEM_TRANSPORT", self.transport.name())
                .env("OXSHMEM_HCA", "mlx5")
                .env("OXSHMEM_HCA_DEVICES", format!("0={cards},1={cards}"))
                .env("OXSHMEM_QPS_PER_PEER", self.cards.to_string())
                .env("OXSHMEM_HEAP_MAX", "4M")
                .env("OXSHMEM_HEAP_CHUNK", "4M")
                .stderr(Stdio::piped())
                .spawn();
            pe.unwrap_or_else(|error| panic!("{PE}: {error}"))
        });
        let [(zero, text), (one, other)] = pes.map(|pe| {
            let output = pe.wait_with_output().unwrap_or_else(|error| panic!("{PE}: {error}"));
            (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
        });
        let told = |text: &str| {
            let place = text.lines().position(|line| line.starts_with("first: "));
            place.unwrap_or_else(|| panic!("no set-up ended at position {position} in\n{text}"))
        };
        let failing = |line: &str| {
            let line = line.strip_prefix("stand-in: ")?;
            line.strip_suffix(" is refused").or_else(|| line.strip_suffix(" fails")).map(str::to_owned)
        };
        // The rest of the positions are those of the second.
        let what = text.lines().take(told(&text)).find_map(failing)?;
        assert!(zero.success() && one.success(), "{what}, position {position}: PE 0:\n{text}\nPE 1:\n{other}");
        for rank in [0, 1] {
            let reports = std::fs::read_to_string(file(rank)).unwrap_or_default();
            let last = reports.lines().last().unwrap_or_default();
            let nothing_left = reports.lines().all(|line| line.contains(" live=0 ")) && last.contains(" open=0 ");
            assert!(nothing_left, "{what}, position {position}, PE {rank}: {reports}");
        }
        let first = [&text, &other]
            .map(|text| text.lines().nth(told(text)).unwrap_or_default().trim_start_matches("first: ").to_owned());
        Some(Failed { what, first, text })
    }
}

fn setups() -> [Setup; 4] {
    let both = |cards| [Transport::Ibgda, Transport::Ibrc].map(|transport| Setup { transport, cards });
    let ([a, b], [c, d]) = (both(1), both(2));
    [a, b, c, d]
}

#[test]
fn a_command_that_fails_at_any_position_of_the_set_up_is_named() {
    for setup in setups() {
        let mut commands = BTreeSet::new();
        let mut count = 0;
        while let Some(Failed { what: command, first, text }) = setup.fails_at("status:any=0x0f", count + 1) {
            count += 1;
            let error = "no resources (status 0x0f), syndrome 0xbad";
            let [first, other] = first;
            if first == "passed" {
                // What a PE can do without is an attempt that failed.
                let attempt = text.lines().find(|line| line.starts_with("attempt ") && line.contains(&command));
                assert!(attempt.is_some_and(|line| line.contains(error)), "{command}, position {count}:\n{text}");
            } else {
                assert!(first.contains(&format!("{command} failed: {error}")), "position {count}: {first}");
                assert!(first.contains("lower OXSHMEM_QPS_PER_PEER"), "{command}, position {count}: {first}");
                assert!(other.contains(&first), "{command}, position {count}: PE 1 says {other}");
            }
            commands.insert(command);
        }
        let needed =
            ["ALLOC_Q_COUNTER", "CREATE_CQ", "CREATE_QP", "QUERY_HCA_CAP", "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"];
        assert!(needed.iter().all(|command| commands.contains(*command)), "{commands:?}");
        assert!(count >= 9 * setup.cards, "{count} commands with {} cards", setup.cards);
    }
}

#[test]
fn a_call_that_fails_at_any_position_of_the_set_up_is_explained() {
    for setup in setups() {
        let mut count = 0;
        while let Some(Failed { what: call, first: [first, _], text }) = setup.fails_at("errno:any=16", count + 1) {
            count += 1;
            let names = |line: &str| line.contains("mlx5_0") || line.contains("mlx5_1") || line.contains(&call);
            // A device that cannot be opened is looked for, and here its file is missing, too.
            let reason =
                if call == "mlx5dv_open_device" { "cannot be opened" } else { "Device or resource busy (os error 16)" };
            let explained = |line: &str| line.contains(reason) && names(line);
            let attempt = |line: &str| line.starts_with("attempt ") && line.contains("Device or resource busy");
            let told = if first == "passed" { text.lines().any(attempt) } else { explained(&first) };
            assert!(told, "{call}, position {count}:\n{text}");
        }
        assert!(count >= 15 * setup.cards, "{count} calls with {} cards", setup.cards);
    }
}

#[test]
fn the_first_error_is_named_although_others_replace_it() {
    let job = |transport, name: &str, lies: &str| {
        let job = job("flushed_error", transport, 2).args(&[name]).env("OXSHMEM_QPS_PER_PEER", "1");
        // Without queue pairs of a PE to itself the first one is that to PE 1.
        stdout(&job.env("OXSHMEM_ATOMICS", "gpu").env("RDMA_STAND_IN", lies).passes(), 0)
    };
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for (syndrome, name) in [
            ("0x13", "remote access error (0x13)"),
            ("0x04", "local protection error (0x4)"),
            ("0x12", "remote invalid request (0x12)"),
            ("0x15", "transport retry counter exceeded"),
        ] {
            let text = job(transport, name, &format!("wqe:error={syndrome}@100"));
            println!("{text}");
        }
    }
    // A card that gives no counters shows the request that was flushed last.
    job(Transport::Ibgda, "work request flushed", "wqe:error=0x13@100,status:ALLOC_Q_COUNTER=0x0f");
}

#[test]
fn a_platform_that_orders_no_writes_is_not_one_to_run_on() {
    // The runtime refuses such a GPU (`check_write_ordering`): signals would come before their
    // data, and older values of a word after newer ones.
    let job = |lies: &str| job("signals", Transport::Ibgda, 2).env("RDMA_STAND_IN", lies);
    job("device:late=1").passes();
    let outcome = job("device:unordered=1").env("OXSHMEM_TIMEOUT", "3s").run();
    let text = transcript(&outcome);
    let wrong = [" instead of ", "the wait did not end within"].iter().any(|sign| text.contains(sign));
    assert!(!outcome.is_success() && wrong, "{text}");
}

#[test]
fn errors_of_address_resolution_are_named() {
    for (errno, text) in [("110", "Connection timed out"), ("113", "No route to host")] {
        let job = || told(&format!("errno:ibv_create_ah={errno}")).env("OXSHMEM_BOOTSTRAP_TIMEOUT", "10s");
        fails(&job(), text);
        fails(&job(), "does not reach 2001:db8::");
    }
    // One answer that gets lost is not missed.
    told("errno:ibv_create_ah=110@1").passes();
}

/// Two PEs with the cards that a mapping gives them, of two.
fn mapped(mapping: &str, transport: Transport, lies: &str) -> Job {
    job("hca_report", transport, 2)
        .env("OXSHMEM_HCA", "mlx5")
        .env("OXSHMEM_HCA_DEVICES", mapping)
        .env("RDMA_STAND_IN", format!("device:count=2,{lies}"))
}

#[test]
fn several_cards_of_a_pe_are_reported_each_by_its_name() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let text = report(mapped("0=mlx5_0+mlx5_1,1=mlx5_1+mlx5_0", transport, ""));
        for card in ["mlx5_0", "mlx5_1"] {
            let line = format!("attempt {card}: host memory as memory region by address: done");
            assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
        }
        // All use as many as the one with fewest.
        let text = report(mapped("0=mlx5_0+mlx5_1,1=mlx5_1", transport, ""));
        for line in [
            "attempt host memory as memory region by address: done",
            "attempt mlx5_1 as a further card: no: all PEs use as many cards, and PE 1 has 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
        }
    }
}

#[test]
fn a_further_card_that_fails_is_an_error_where_it_was_asked_for() {
    let both = "0=mlx5_0+mlx5_1,1=mlx5_0+mlx5_1";
    let third = "0=mlx5_0+mlx5_2,1=mlx5_0+mlx5_2";
    fails(&mapped(third, Transport::Ibgda, ""), "there is no RDMA device mlx5_2; this machine has mlx5_0, mlx5_1");
    fails(&mapped(both, Transport::Ibgda, "errno:mlx5dv_open_device=13@2"), "mlx5_1 cannot be opened: ");
    // Commands to either card are counted.
    fails(&mapped(both, Transport::Ibgda, "vanish:command=1@20"), "is dead: ");
}

#[test]
fn the_software_hca_takes_the_place_of_one_card_and_not_of_several() {
    let auto = |per_pe: &str| {
        let job = told("device:none=1").env("OXSHMEM_HCA", "auto");
        job.env("OXSHMEM_HCA_DEVICES_PER_PE", per_pe)
    };
    for per_pe in ["auto", "1"] {
        let text = report(auto(per_pe));
        assert!(text.contains("provider soft"), "{text}");
    }
    fails(&auto("2"), "RDMA device");
}

#[test]
fn one_card_of_a_pe_that_vanishes_is_reported() {
    // While kernels wait for it, which they would for an hour.
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let job = job("flood", transport, 2).args(&["2", "1", "300", "0"]).env("OXSHMEM_TIMEOUT", "1h");
        let job = job.env("OXSHMEM_HCA", "mlx5").env("OXSHMEM_HCA_DEVICES", "0=mlx5_0+mlx5_1,1=mlx5_0+mlx5_1");
        let outcome = job.env("RDMA_STAND_IN", "device:count=2,vanish:wqe=50").run();
        let text = transcript(&outcome);
        assert!(!outcome.is_success(), "{text}");
        assert!(text.contains("is dead: it reported \"local catastrophic error\""), "{text}");
    }
}

#[test]
fn each_card_of_a_pe_has_one_slab_and_one_key_per_chunk() {
    let file = folder().join("two-cards");
    let _ = std::fs::remove_file(&file);
    mapped("0=mlx5_0+mlx5_1,1=mlx5_0+mlx5_1", Transport::Ibgda, &format!("report:file={}", file.display()))
        .env("OXSHMEM_QPS_PER_PEER", "5")
        .env("OXSHMEM_HEAP_MAX", "4M")
        .env("OXSHMEM_HEAP_CHUNK", "4M")
        .passes();
    let reports = std::fs::read_to_string(&file).unwrap_or_default();
    let mut qps = counts(&reports, "qps");
    qps.sort_unstable();
    assert_eq!(qps, [4, 4, 6, 6], "{reports}");
    // The slab, after a piece of memory that was tried; the slab and one chunk of the heap.
    assert_eq!((counts(&reports, "umems"), counts(&reports, "regions")), (vec![2; 4], vec![2; 4]), "{reports}");
    assert!(reports.lines().all(|line| line.contains(" live=0 ")), "{reports}");
}

#[test]
fn there_are_second_choices_for_doorbell_pages() {
    let text = report(told("errno:mlx5dv_devx_alloc_uar.dedicated=95"));
    assert!(text.contains("doorbell page, not cached, of its own: no: Operation not supported"), "{text}");
    assert!(text.contains("doorbell page, write-combining, of its own: given"), "{text}");
    // Pages that all queue pairs have to share.
    let one = "errno:mlx5dv_devx_alloc_uar.dedicated=95,errno:mlx5dv_devx_alloc_uar.bf=95";
    job("rma", Transport::Ibgda, 2).env("RDMA_STAND_IN", one).passes();
    let none = format!("{one},errno:mlx5dv_devx_alloc_uar.nc=12");
    fails(
        &told(&none),
        "mlx5_0 has no page of doorbell registers to give: doorbell page, not cached, of its own: Operation not",
    );
}

#[test]
fn a_card_that_vanishes_is_reported() {
    // While it is set up, at different places.
    for command in [1, 2, 5, 12, 20] {
        fails(&told(&format!("vanish:command=1@{command}")), "HCA mlx5_0 is dead: ");
    }
    // While kernels wait for it, which they would for an hour.
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        let job = job("flood", transport, 2).args(&["1", "1", "300", "0"]).env("OXSHMEM_TIMEOUT", "1h");
        let outcome = job.env("RDMA_STAND_IN", "vanish:wqe=50").run();
        let text = transcript(&outcome);
        assert!(!outcome.is_success(), "{text}");
        assert!(text.contains("HCA mlx5_0 is dead: it reported \"local catastrophic error\""), "{text}");
    }
}

#[test]
fn everything_is_given_back() {
    let folder = folder();
    for (transport, rounds) in [(Transport::Ibgda, "1000"), (Transport::Ibrc, "20")] {
        let file = folder.join(format!("rounds-{}", transport.name()));
        let _ = std::fs::remove_file(&file);
        job("hca_rounds", transport, 2)
            .args(&[rounds])
            .env("RDMA_STAND_IN", format!("report:file={}", file.display()))
            .env("OXSHMEM_QP_DEPTH", "256")
            .env("OXSHMEM_HEAP_MAX", "4M")
            .passes();
        let reports = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(reports.lines().count().to_string(), (2 * rounds.parse().unwrap_or(0)).to_string());
        for line in reports.lines() {
            assert!(line.contains(" live=0 "), "{line}");
        }
    }
}

#[test]
fn the_death_of_a_process_is_survived() {
    for (case, transport) in [
        ("dies_in_bootstrap", Transport::Ibgda),
        ("dies_in_kernel", Transport::Ibgda),
        ("dies_under_load", Transport::Ibgda),
        ("dies_under_load", Transport::Ibrc),
    ] {
        // Deadlines that no test waits for.
        let job = job(case, transport, 3).env("OXSHMEM_TIMEOUT", "10min").env("OXSHMEM_BOOTSTRAP_TIMEOUT", "10min");
        let outcome = job.run();
        let text = transcript(&outcome);
        for (rank, pe) in outcome.pes.iter().enumerate() {
            let expected = if rank == 1 { PeStatus::Killed(libc::SIGKILL) } else { PeStatus::Exited(0) };
            assert_eq!(pe.status, expected, "{text}");
        }
    }
}

#[test]
fn jobs_that_are_killed_leave_nothing_in_the_way() {
    let libraries = libraries(&[]);
    for moment in (0..8).map(|i| Duration::from_millis(11 + 23 * i)) {
        let mut options = LaunchOptions::new(2, oxshmem_tests::program(PE))
            .args(["hca_rounds", "100000"])
            .env("LD_LIBRARY_PATH", &libraries)
            .env("OXSHMEM_HCA", "mlx5:mlx5_0")
            .env("OXSHMEM_DEVICE", "cpu")
            .env("OXSHMEM_TRANSPORT", "ibgda")
            .env("OXSHMEM_QP_DEPTH", "256")
            .env("OXSHMEM_HEAP_MAX", "4M")
            .env("OXSHMEM_HEAP_CHUNK", "1M");
        options.output = Output::Captured;
        options.timeout = Some(moment);
        let outcome = launch::run(&options).unwrap_or_else(|error| panic!("{error}"));
        assert!(outcome.timed_out, "{}", transcript(&outcome));
    }
    job("rma", Transport::Ibgda, 2).passes();
}
