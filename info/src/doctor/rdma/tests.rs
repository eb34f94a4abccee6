//! What is found on made-up machines.

use oxshmem::config::Hca;

use super::super::guard::End;
use super::super::root::recorded::Recorded;
use super::*;

const MUST: Wants = Wants { gpu: Want::Must, card: Want::Must, mlx5: true };
const AUTO: Wants = Wants { gpu: Want::IfThere, card: Want::IfThere, mlx5: true };
const NONE: Wants = Wants { gpu: Want::No, card: Want::No, mlx5: true };

/// A machine with a card on InfiniBand, one on RoCE whose port is down, and a GPU at each of its
/// two sockets.
const MACHINE: &str = "
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/vendor = 0x15b3
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/class = 0x020700
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/numa_node = 0
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/driver -> ../../../../bus/pci/drivers/mlx5_core
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/device -> ../..
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/node_type = 1: CA
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/fw_ver = 28.39.1002
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/state = 4: ACTIVE
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/link_layer = InfiniBand
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/rate = 400 Gb/sec (4X NDR)
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/gids/0 = fe80:0000:0000:0000:b83f:d203:0012:3456
    /sys/devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0/ports/1/gids/1 = fe80:0000:0000:0000:0000:0000:0000:0000
    /sys/devices/pci0000:10/0000:10:01.0/0000:19:00.0/numa_node = 0
    /sys/devices/pci0000:90/0000:90:01.0/0000:91:00.0/numa_node = 1
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/vendor = 0x15b3
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/class = 0x020000
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/numa_node = 1
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/driver -> ../../../../bus/pci/drivers/mlx5_core
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/device -> ../..
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/node_type = 1: CA
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/ports/1/state = 1: DOWN
    /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1/ports/1/link_layer = Ethernet
    /sys/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:10/0000:10:01.0/0000:18:00.0
    /sys/bus/pci/devices/0000:19:00.0 -> ../../../devices/pci0000:10/0000:10:01.0/0000:19:00.0
    /sys/bus/pci/devices/0000:81:00.0 -> ../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0
    /sys/bus/pci/devices/0000:91:00.0 -> ../../../devices/pci0000:90/0000:90:01.0/0000:91:00.0
    /sys/class/infiniband/mlx5_0 -> ../../devices/pci0000:10/0000:10:01.0/0000:18:00.0/infiniband/mlx5_0
    /sys/class/infiniband/mlx5_1 -> ../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/infiniband/mlx5_1
    /sys/class/infiniband_verbs/uverbs0/ibdev = mlx5_0
    /sys/class/infiniband_verbs/uverbs1/ibdev = mlx5_1
    /dev/infiniband/uverbs0 = 
    /dev/infiniband/uverbs1 = 
    /proc/sys/kernel/osrelease = 6.8.0-45-generic
";

fn topology(machine: &Recorded) -> Topology {
    Topology::read(&machine.root.at("/sys")).unwrap()
}

fn config(vars: &[(&str, &str)]) -> Config {
    Config::from_vars(vars.iter().copied()).unwrap()
}

/// Returns every finding that is bad says what to do.
fn results(findings: &[Finding]) -> Vec<Outcome> {
    for finding in findings {
        assert_eq!(finding.remedy.is_some(), finding.result >= Outcome::Warn, "{finding:?}");
    }
    findings.iter().map(|finding| finding.result).collect()
}

#[test]
fn cards_are_found_on_the_bus_with_their_drivers() {
    let machine = Recorded::new(MACHINE);
    let finding = on_bus(&machine.root, MUST);
    assert!(finding.result == Outcome::Ok && finding.reason.contains("0000:81:00.0 (driver mlx5_core)"), "{finding:?}");
    let card = "/sys/bus/pci/devices/0000:18:00.0/vendor = 0x15b3\n/sys/bus/pci/devices/0000:18:00.0/class = 0x020700";
    let undriven = Recorded::new(card);
    assert_eq!(on_bus(&undriven.root, MUST).result, Outcome::Fail);
    assert_eq!(on_bus(&undriven.root, AUTO).result, Outcome::Warn);
    let empty = Recorded::new("/sys/");
    assert_eq!(on_bus(&empty.root, AUTO).result, Outcome::Skip);
    assert_eq!(on_bus(&empty.root, MUST).result, Outcome::Fail);
    assert_eq!(on_bus(&empty.root, Wants { mlx5: false, ..MUST }).result, Outcome::Skip);
    let mut denied = Recorded::new(card);
    denied.root.denied.push("/sys/bus");
    assert_eq!(on_bus(&denied.root, AUTO).result, Outcome::Warn);
}

#[test]
fn devices_say_what_speaks_against_them() {
    let machine = Recorded::new(MACHINE);
    let findings = devices(&Ok(topology(&machine)), &machine.root, MUST);
    assert_eq!(results(&findings), [Outcome::Ok, Outcome::Skip]);
    assert_eq!(findings[0].reason, "firmware 28.39.1002, mlx5_core, 0000:18:00.0, NUMA node 0");
    assert!(findings[1].reason.contains("port 1 is DOWN"));
    let down = Recorded::new(
        "/sys/class/infiniband/rxe0/node_type = 1: CA\n/sys/class/infiniband/rxe0/ports/1/state = 1: DOWN",
    );
    assert_eq!(results(&devices(&Ok(topology(&down)), &down.root, MUST)), [Outcome::Fail]);
    assert_eq!(results(&devices(&Ok(topology(&down)), &down.root, AUTO)), [Outcome::Warn]);
    let empty = Recorded::new("/sys/");
    assert_eq!(results(&devices(&Ok(topology(&empty)), &empty.root, AUTO)), [Outcome::Skip]);
    assert_eq!(results(&devices(&Ok(topology(&empty)), &empty.root, MUST)), [Outcome::Fail]);
    assert_eq!(results(&devices(&Err("no".into()), &empty.root, MUST)), [Outcome::Fail]);
    assert_eq!(results(&devices(&Err("no".into()), &empty.root, AUTO)), [Outcome::Warn]);
}

#[test]
fn nodes_and_modules_are_needed_for_user_space() {
    let mut machine = Recorded::new(MACHINE);
    let known = topology(&machine);
    assert_eq!(modules(&machine.root, Some(&known), MUST).result, Outcome::Ok);
    assert_eq!(modules(&Recorded::new("/sys/").root, Some(&known), MUST).result, Outcome::Fail);
    assert_eq!(modules(&machine.root, None, MUST).result, Outcome::Skip);
    assert_eq!(results(&nodes(&machine.root, Some(&known), MUST)), [Outcome::Ok, Outcome::Ok]);
    std::fs::remove_file(machine.root.at("/dev/infiniband/uverbs1")).unwrap();
    machine.root.denied.push("/dev/infiniband/uverbs0");
    let findings = nodes(&machine.root, Some(&known), MUST);
    assert_eq!(results(&findings), [Outcome::Fail, Outcome::Fail]);
    assert!(findings[0].reason.contains("may not read and write /dev/infiniband/uverbs0"), "{findings:?}");
    assert_eq!(findings[1].reason, "/dev/infiniband/uverbs1 does not exist");
    std::fs::create_dir(machine.root.at("/dev/infiniband/uverbs1")).unwrap();
    assert!(nodes(&machine.root, Some(&known), AUTO)[1].reason.contains("cannot be opened"));
    std::fs::remove_dir_all(machine.root.at("/sys/class/infiniband_verbs")).unwrap();
    assert!(nodes(&machine.root, Some(&known), AUTO)[0].reason.contains("no node for user space"));
    assert_eq!(results(&nodes(&machine.root, None, MUST)), [Outcome::Skip]);
}

#[test]
fn ports_that_are_down_count_if_all_are() {
    let machine = Recorded::new(MACHINE);
    let findings = ports(&machine.root, Some(&topology(&machine)), MUST);
    assert_eq!(results(&findings), [Outcome::Ok, Outcome::Skip]);
    assert_eq!(findings[0].reason, "ACTIVE, InfiniBand, 400 Gb/sec (4X NDR)");
    for (state, layer, words) in
        [("2: INIT", "InfiniBand", "subnet manager"), ("1: DOWN", "Ethernet", "ip link"), ("\u{7}", "x", "subnet")]
    {
        let down = Recorded::new(&format!(
            "/sys/class/infiniband/x/ports/1/state = {state}\n/sys/class/infiniband/x/ports/1/link_layer = {layer}"
        ));
        let findings = ports(&down.root, Some(&topology(&down)), MUST);
        assert_eq!(results(&findings), [Outcome::Fail]);
        assert!(findings[0].remedy.as_ref().is_some_and(|text| text.contains(words)), "{findings:?}");
    }
    assert_eq!(results(&ports(&machine.root, None, MUST)), [Outcome::Skip]);
}

#[test]
fn the_address_is_chosen_as_queue_pairs_choose_it() {
    let machine = Recorded::new(MACHINE);
    let findings = gids(&machine.root, Some(&topology(&machine)), &config(&[]), MUST);
    assert_eq!(results(&findings), [Outcome::Ok]);
    assert!(findings[0].reason.starts_with("entry 0: fe80::b83f:"), "{findings:?}");

    let port = "/sys/class/infiniband/rxe0/ports/1";
    let roce = Recorded::new(&format!(
        "/sys/class/infiniband/rxe0/node_type = 1: CA\n{port}/state = 4: ACTIVE\n{port}/link_layer = Ethernet\n\
         {port}/gids/0 = fe80:0000:0000:0000:5054:00ff:fe12:3456\n{port}/gid_attrs/types/0 = RoCE v2\n\
         {port}/gids/1 = 0000:0000:0000:0000:0000:ffff:0a00:0001\n{port}/gid_attrs/types/1 = IB/RoCE v1\n\
         {port}/gids/2 = 0000:0000:0000:0000:0000:ffff:0a00:0001\n{port}/gid_attrs/types/2 = RoCE v2\n\
         {port}/gids/3 = 0000:0000:0000:0000:0000:0000:0000:0000\n{port}/gids/4 = rubbish\n{port}/gids/x = ::1"
    ));
    let chosen = |vars: &[(&str, &str)]| gids(&roce.root, Some(&topology(&roce)), &config(vars), MUST).remove(0);
    assert_eq!(chosen(&[]).reason, "entry 2: ::ffff:10.0.0.1, RoCE v2");
    assert_eq!(chosen(&[("OXSHMEM_IB_GID_INDEX", "0")]).result, Outcome::Ok);
    let old = chosen(&[("OXSHMEM_IB_GID_INDEX", "1")]);
    assert!(
        old.result == Outcome::Fail
            && old.reason.contains("IB/RoCE v1")
            && old.remedy.is_some_and(|text| text.contains("0, 2"))
    );
    assert!(chosen(&[("OXSHMEM_IB_GID_INDEX", "3")]).reason.contains("empty"));

    let local = Recorded::new(&format!(
        "{port}/state = 4: ACTIVE\n{port}/link_layer = Ethernet\n{port}/gids/0 = fe80:0000:0000:0000:5054:00ff:fe12:3456\n{port}/gid_attrs/types/0 = RoCE v2"
    ));
    let finding = gids(&local.root, Some(&topology(&local)), &config(&[]), AUTO).remove(0);
    assert!(finding.result == Outcome::Warn && finding.remedy.is_some_and(|text| text.contains("ip addr add")));
    local.add(
        "/sys/class/infiniband/rxe1/ports/1/state = 4: ACTIVE\n/sys/class/infiniband/rxe1/ports/1/link_layer = InfiniBand\n\
         /sys/class/infiniband/rxe1/ports/1/gids/0 = fe80:0000:0000:0000:5054:00ff:fe12:3457",
    );
    assert_eq!(results(&gids(&local.root, Some(&topology(&local)), &config(&[]), MUST)), [Outcome::Skip, Outcome::Ok]);
    // What routers know goes before what is first.
    local.add("/sys/class/infiniband/rxe1/ports/1/gids/1 = fec0:0000:0b00:0001:5054:00ff:fe12:3457");
    let findings = gids(&local.root, Some(&topology(&local)), &config(&[]), MUST);
    assert!(findings[1].reason.starts_with("entry 1: fec0:0:b00:1:"), "{}", findings[1].reason);
    let bare = Recorded::new(&format!("{port}/state = 4: ACTIVE\n{port}/link_layer = Ethernet"));
    assert!(gids(&bare.root, Some(&topology(&bare)), &config(&[]), AUTO)[0].reason.contains("cannot be read"));
    assert_eq!(results(&gids(&bare.root, None, &config(&[]), MUST)), [Outcome::Skip]);
}

#[test]
fn libraries_are_judged_by_what_loading_showed() {
    let loaded = || LibraryFact::Loaded { file: "/lib/libibverbs.so.1.14.50.0".into() };
    let judge =
        |facts: Vec<LibraryFact>, any, wants| library(Library::Verbs, &Facts { facts, end: End::Done }, any, wants);
    let good = judge(vec![loaded(), LibraryFact::Devices { names: Ok(vec!["mlx5_0".into()]) }], true, MUST);
    assert_eq!(
        (results(&good), good[0].reason.as_str()),
        (vec![Outcome::Ok], "/lib/libibverbs.so.1.14.50.0, devices mlx5_0")
    );
    let none = || LibraryFact::Devices { names: Err("none".into()) };
    assert_eq!(results(&judge(vec![loaded(), none()], false, AUTO)), [Outcome::Ok]);
    assert_eq!(results(&judge(vec![loaded(), none()], true, AUTO)), [Outcome::Warn]);
    let not = || vec![LibraryFact::NotLoaded { reason: "file too short".into() }];
    assert_eq!(results(&judge(not(), false, AUTO)), [Outcome::Skip]);
    assert_eq!(results(&judge(not(), true, AUTO)), [Outcome::Warn]);
    assert_eq!(results(&judge(not(), false, MUST)), [Outcome::Fail]);
    let lacks = judge(
        vec![loaded(), LibraryFact::Refused { reason: "libibverbs.so.1 has no ibv_reg_mr_iova2".into() }],
        true,
        MUST,
    );
    assert!(lacks[0].result == Outcome::Fail && lacks[0].reason.contains("ibv_reg_mr_iova2"), "{lacks:?}");
    let crashed = Facts { facts: vec![loaded()], end: End::Died { how: "signal 11".into(), said: String::new() } };
    let findings = library(Library::Mlx5, &crashed, true, MUST);
    assert!(findings[0].result == Outcome::Fail && findings[0].reason.contains("signal 11"), "{findings:?}");
    let mlx5 = Facts { facts: vec![loaded()], end: End::Done };
    assert_eq!(results(&library(Library::Mlx5, &mlx5, true, MUST)), [Outcome::Ok]);
}

#[test]
fn the_card_of_each_gpu_is_shown_with_the_way_to_it() {
    let machine = Recorded::new(MACHINE);
    let known = topology(&machine);
    let gpu = |ordinal, pci: &str| Gpu { ordinal, pci: pci.into(), ..Gpu::default() };
    let gpus = [gpu(0, "0000:19:00.0"), gpu(1, "0000:91:00.0")];
    let select = |vars: &[(&str, &str)]| {
        let config = config(vars);
        let wants = Wants { mlx5: !matches!(config.hca(), Hca::Verbs { .. }), ..MUST };
        selection(Some(&known), &gpus, &config, wants).findings
    };
    let findings = select(&[]);
    assert_eq!(results(&findings), [Outcome::Ok, Outcome::Warn]);
    assert_eq!(findings[0].reason, "mlx5_0/1, below one PCIe bridge");
    assert!(
        findings[1].reason.contains("at another NUMA node")
            && findings[1].reason.contains("of all data only long puts are staged"),
        "{findings:?}"
    );
    let findings = select(&[("OXSHMEM_HCA", "mlx5:mlx5_9")]);
    assert_eq!(results(&findings), [Outcome::Fail, Outcome::Fail]);
    assert!(
        findings[0].reason.contains("no RDMA device mlx5_9")
            && findings[0].remedy.as_ref().is_some_and(|text| text.contains("mlx5_0, mlx5_1"))
    );
    assert!(select(&[("OXSHMEM_HCA", "verbs:mlx5_0/3")])[0].reason.contains("no such port"));
    for (list, words) in [
        ("mlx5_9", "there is no RDMA device mlx5_9"),
        ("mlx5_1", "port 1 is DOWN"),
        ("7=mlx5_0", "gives no device to PE 0"),
    ] {
        let findings = select(&[("OXSHMEM_HCA_DEVICES", list)]);
        assert!(findings[0].result == Outcome::Fail && findings[0].reason.contains(words), "{list}: {findings:?}");
    }
    assert_eq!(
        results(&select(&[("OXSHMEM_HCA_DEVICES", "0=mlx5_0,0000:91:00.0=mlx5_1")])),
        [Outcome::Ok, Outcome::Ok]
    );
    assert_eq!(results(&selection(Some(&known), &gpus, &config(&[]), NONE).findings), [Outcome::Skip]);
    assert_eq!(results(&selection(None, &gpus, &config(&[]), MUST).findings), [Outcome::Skip]);
    let software = Recorded::new(
        "/sys/class/infiniband/rxe0/node_type = 1: CA\n/sys/class/infiniband/rxe0/ports/1/state = 4: ACTIVE",
    );
    let found = topology(&software);
    assert_eq!(devices(&Ok(found.clone()), &software.root, MUST)[0].reason, "a device in software");
    let findings =
        selection(Some(&found), &[], &config(&[("OXSHMEM_HCA", "verbs")]), Wants { mlx5: false, ..MUST }).findings;
    assert_eq!(findings[0].reason, "rxe0/1, at an unknown distance");
    let empty = Recorded::new("/sys/");
    assert_eq!(results(&selection(Some(&topology(&empty)), &[], &config(&[]), AUTO).findings), [Outcome::Skip]);
    assert_eq!(results(&selection(Some(&topology(&empty)), &[], &config(&[]), MUST).findings), [Outcome::Fail]);
}

/// Returns a machine with switches, each with as many GPUs and cards as its item says.
fn switches(of_each: &[(u32, u32)]) -> (String, Vec<Gpu>) {
    use std::fmt::Write as _;
    let (mut machine, mut gpus, mut cards) = (String::new(), Vec::new(), 0);
    for (switch, (gpu_count, card_count)) in of_each.iter().enumerate() {
        let bus = 0x10 * (switch + 1);
        let above = format!("/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0", bus + 1);
        let add = |machine: &mut String, slot: u32| {
            let address = format!("0000:{:02x}:{slot:02x}.0", bus + 2);
            let folder = format!("{above}/{address}");
            let _ = write!(
                machine,
                "{folder}/numa_node = 0\n/sys/bus/pci/devices/{address} -> ../../..{}\n",
                &folder["/sys".len()..]
            );
            (address, folder)
        };
        for slot in 0..*gpu_count {
            let ordinal = i32::try_from(gpus.len()).unwrap();
            gpus.push(Gpu { ordinal, pci: add(&mut machine, slot).0, ..Gpu::default() });
        }
        for slot in 0..*card_count {
            let folder = add(&mut machine, 0x10 + slot).1;
            let device = format!("{folder}/infiniband/mlx5_{cards}");
            let _ = write!(
                machine,
                "{folder}/driver -> ../../../../../bus/pci/drivers/mlx5_core\n{device}/device -> ../..\n{device}/node_type = 1: CA\n\
                 {device}/ports/1/state = 4: ACTIVE\n{device}/ports/1/link_layer = InfiniBand\n\
                 /sys/class/infiniband/mlx5_{cards} -> ../..{}\n",
                &device["/sys".len()..]
            );
            cards += 1;
        }
    }
    (machine, gpus)
}

#[test]
fn all_cards_of_each_gpu_are_shown_and_those_that_stay_idle() {
    let select = |of_each: &[(u32, u32)], vars: &[(&str, &str)]| {
        let (machine, gpus) = switches(of_each);
        let machine = Recorded::new(&machine);
        let config = config(vars);
        let wants = Wants { mlx5: !matches!(config.hca(), Hca::Verbs { .. }), ..MUST };
        let selected = selection(Some(&topology(&machine)), &gpus, &config, wants);
        let say = |finding: &Finding| format!("{}: {}", finding.subject, finding.reason);
        (selected.findings.iter().map(say).collect::<Vec<_>>(), selected.cards)
    };
    // Both cards of a switch are its only GPU's.
    let (said, cards) = select(&[(1, 2), (1, 2)], &[]);
    let expected = [
        "GPU 0: mlx5_0/1, below one PCIe bridge",
        "GPU 0: mlx5_1/1, below one PCIe bridge",
        "GPU 1: mlx5_2/1, below one PCIe bridge",
        "GPU 1: mlx5_3/1, below one PCIe bridge",
    ];
    assert_eq!(said, expected);
    let of_gpus: Vec<_> = cards.iter().map(|(card, gpu)| (card.device.as_str(), gpu.unwrap())).collect();
    assert_eq!(of_gpus, [("mlx5_0", 0), ("mlx5_1", 0), ("mlx5_2", 1), ("mlx5_3", 1)]);
    // One that another PE has not is not driven either.
    let (said, cards) = select(&[(1, 2), (1, 1)], &[]);
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(
        said[2],
        ": near GPUs and idle with one PE per GPU: mlx5_1; each drives 1; OXSHMEM_HCA_DEVICES_PER_PE=2 gives each the 2 nearest; several PEs on \
         a GPU are spread over its cards"
    );
    assert_eq!(cards.len(), 2);
    let (said, _) = select(&[(1, 2), (1, 1)], &[("OXSHMEM_HCA_DEVICES_PER_PE", "2")]);
    assert_eq!(said[..2], ["GPU 0: mlx5_0/1, below one PCIe bridge", "GPU 0: mlx5_1/1, below one PCIe bridge"]);
    assert!(said.len() == 4 && said[2].starts_with("GPU 1: mlx5_0/1, at the same NUMA node: "), "{said:?}");
    // Nor with too few queue pairs.
    let (said, _) = select(&[(1, 2)], &[("OXSHMEM_QPS_PER_PEER", "1")]);
    assert!(said[1].contains("idle with one PE per GPU: mlx5_1;"), "{said:?}");
    assert!(said[1].contains("gives each the 2 nearest, with OXSHMEM_QPS_PER_PEER=2 or more;"), "{said:?}");
    let (said, _) = select(&[(1, 6)], &[]);
    assert!(said.len() == 5 && said[4].contains("mlx5_4, mlx5_5; each drives 4, the most; several PEs"), "{said:?}");
    let (said, _) = select(&[(2, 3)], &[("OXSHMEM_HCA", "verbs")]);
    assert!(said.len() == 3 && said[2].contains("mlx5_2; a PE drives one card with verbs; several PEs"), "{said:?}");
    // What is left out, or not mapped, is so on purpose.
    for vars in [
        [("OXSHMEM_HCA", "mlx5"), ("OXSHMEM_HCA_DEVICES", "^mlx5_1")],
        [("OXSHMEM_HCA", "auto"), ("OXSHMEM_HCA_DEVICES", "0=mlx5_0")],
        [("OXSHMEM_HCA", "mlx5:mlx5_0/1"), ("OXSHMEM_DEVICE", "cuda")],
    ] {
        let (said, _) = select(&[(1, 2)], &vars);
        assert!(said.len() == 1 && said[0].starts_with("GPU 0: mlx5_0"), "{vars:?}: {said:?}");
    }
    let mapping = ("OXSHMEM_HCA_DEVICES", "0=mlx5_1+mlx5_0,1=mlx5_2+mlx5_9");
    let (said, cards) = select(&[(1, 2), (1, 1)], &[mapping]);
    assert!(said[0].starts_with("GPU 0: mlx5_1,") && said[1].starts_with("GPU 0: mlx5_0,"), "{said:?}");
    assert_eq!((said.len(), said[3].as_str(), cards.len()), (4, "GPU 1: there is no RDMA device mlx5_9", 4));
    let (said, cards) = select(&[(1, 1), (1, 1)], &[("OXSHMEM_HCA_DEVICES_PER_PE", "3")]);
    assert!(said.iter().all(|line| line.contains("2 RDMA devices of this machine can be used")), "{said:?}");
    assert_eq!((said.len(), cards.len()), (2, 0));
}

#[test]
fn old_kernels_give_cards_no_dma_bufs() {
    let release = |release: &str, wants| {
        kernel(&Recorded::new(&format!("/proc/sys/kernel/osrelease = {release}")).root, true, wants).result
    };
    assert_eq!(release("6.8.0-45-generic", MUST), Outcome::Ok);
    assert_eq!(release("5.4.0-150-generic", MUST), Outcome::Warn);
    assert_eq!(release("5.4.0-150-generic", NONE), Outcome::Ok);
    assert_eq!(release("rubbish", MUST), Outcome::Skip);
}
