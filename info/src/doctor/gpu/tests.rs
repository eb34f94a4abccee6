//! What is found on made-up machines.

use std::time::Duration;

use super::super::guard::End;
use super::super::root::recorded::Recorded;
use super::*;

const MUST: Wants = Wants { gpu: Want::Must, card: Want::Must, mlx5: true };
const AUTO: Wants = Wants { gpu: Want::IfThere, card: Want::IfThere, mlx5: true };
const NONE: Wants = Wants { gpu: Want::No, card: Want::No, mlx5: true };

/// A machine with two GPUs, its driver, and nothing wrong.
const MACHINE: &str = "
    /sys/bus/pci/devices/0000:1b:00.0/vendor = 0x10de
    /sys/bus/pci/devices/0000:1b:00.0/class = 0x030200
    /sys/bus/pci/devices/0000:1b:00.0/driver -> ../../../../bus/pci/drivers/nvidia
    /sys/bus/pci/devices/0000:00:02.0/vendor = 0x8086
    /sys/bus/pci/devices/0000:00:02.0/class = 0x030000
    /proc/driver/nvidia/version = NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\\nGCC version: 12
    /dev/nvidiactl = 
    /dev/nvidia-uvm = 
    /dev/nvidia0 = 
    /dev/nvidia-caps/
";

fn facts(facts: Vec<CudaFact>) -> Facts<CudaFact> {
    Facts { facts, end: End::Done }
}

fn gpu(ordinal: i32) -> Gpu {
    Gpu {
        ordinal,
        name: "NVIDIA H200".into(),
        pci: format!("0000:{ordinal}b:00.0"),
        memory: 140 << 30,
        architecture: 90,
        vmm: true,
        descriptors: true,
        dma_buf: true,
        rdma_vmm: true,
        write_ordering: 100,
        host_register: true,
    }
}

fn seen(access: bool, atomics: bool) -> Seen {
    let pair = |from, to| Pair { from, to, access, atomics, rank: 0 };
    Seen { gpus: vec![gpu(0), gpu(1)], pairs: vec![pair(0, 1), pair(1, 0)] }
}

/// Returns the results, after a check that every finding that is bad says what to do.
fn results(findings: &[Finding]) -> Vec<Outcome> {
    for finding in findings {
        assert_eq!(finding.remedy.is_some(), finding.result >= Outcome::Warn, "{finding:?}");
    }
    findings.iter().map(|finding| finding.result).collect()
}

#[test]
fn the_bus_shows_gpus_and_their_drivers() {
    let machine = Recorded::new(MACHINE);
    let finding = on_bus(&machine.root, AUTO);
    assert_eq!((finding.result, finding.reason.as_str()), (Outcome::Ok, "0000:1b:00.0 (driver nvidia)"));
    let nouveau = Recorded::new(
        "/sys/bus/pci/devices/0000:1b:00.0/vendor = 0x10de\n/sys/bus/pci/devices/0000:1b:00.0/class = 0x030000\n/sys/bus/pci/devices/0000:1b:00.0/driver -> x/nouveau",
    );
    let finding = on_bus(&nouveau.root, AUTO);
    assert!(finding.result == Outcome::Fail && finding.reason.contains("nouveau"), "{finding:?}");
    assert_eq!(on_bus(&nouveau.root, NONE).result, Outcome::Skip);
    let empty = Recorded::new("/sys/bus/pci/devices/");
    assert_eq!(on_bus(&empty.root, AUTO).result, Outcome::Skip);
    assert_eq!(on_bus(&empty.root, MUST).result, Outcome::Fail);
    // Hidden, but driven.
    let hidden = Recorded::new("/proc/driver/nvidia/version = NVRM version: x");
    assert_eq!(on_bus(&hidden.root, MUST).result, Outcome::Skip);
    // Garbage is no GPU.
    let garbage =
        Recorded::new("/sys/bus/pci/devices/0000:1b:00.0/vendor/\n/sys/bus/pci/devices/x/vendor = \u{0}\u{1}");
    assert_eq!(on_bus(&garbage.root, AUTO).result, Outcome::Skip);
}

#[test]
fn the_kernel_driver_is_named_or_missed() {
    let machine = Recorded::new(MACHINE);
    let finding = kernel_driver(&machine.root, MUST);
    assert_eq!(finding.reason, "NVIDIA UNIX Open Kernel Module for x86_64 580.82.07 Release Build");
    let empty = Recorded::new("/proc/");
    assert_eq!(kernel_driver(&empty.root, AUTO).result, Outcome::Skip);
    assert_eq!(kernel_driver(&empty.root, MUST).result, Outcome::Fail);
    let unloaded = Recorded::new(
        "/sys/bus/pci/devices/0000:1b:00.0/vendor = 0x10de\n/sys/bus/pci/devices/0000:1b:00.0/class = 0x030200",
    );
    let finding = kernel_driver(&unloaded.root, AUTO);
    assert!(finding.result == Outcome::Fail && finding.remedy.is_some_and(|text| text.contains("modprobe nvidia")));
    assert_eq!(kernel_driver(&Recorded::new("/proc/driver/nvidia/version = ").root, AUTO).result, Outcome::Warn);
    let mut denied = Recorded::new(MACHINE);
    denied.root.denied.push("/proc/driver");
    let finding = kernel_driver(&denied.root, AUTO);
    assert!(finding.result == Outcome::Warn && finding.reason.contains("permission denied"), "{finding:?}");
    assert_eq!(kernel_driver(&Recorded::new("/proc/driver/nvidia/version/").root, AUTO).result, Outcome::Warn);
}

#[test]
fn nodes_must_be_there_and_usable() {
    let mut machine = Recorded::new(MACHINE);
    let findings = nodes(&machine.root, MUST);
    assert_eq!(results(&findings), [Outcome::Ok]);
    assert!(findings[0].reason.contains("/dev") || findings[0].reason.contains("nvidia0"));
    machine.root.denied.push("/dev/nvidia-uvm");
    let findings = nodes(&machine.root, AUTO);
    assert_eq!(results(&findings), [Outcome::Fail]);
    assert!(findings[0].reason.contains("/dev/nvidia-uvm") && findings[0].subject == "/dev/nvidia-uvm");
    let bare = Recorded::new("/proc/driver/nvidia/version = x\n/dev/nvidiactl/");
    let findings = nodes(&bare.root, AUTO);
    assert_eq!(results(&findings), [Outcome::Fail; 3]);
    assert!(findings.iter().any(|finding| finding.reason == "/dev/nvidia0 does not exist"), "{findings:?}");
    assert_eq!(results(&nodes(&Recorded::new("/dev/").root, MUST)), [Outcome::Skip]);
}

#[test]
fn the_library_is_judged_by_what_it_said_and_how_it_ended() {
    let judge = |list: Vec<CudaFact>, wants, on_bus| library(&facts(list), wants, on_bus, 12050);
    let none = |reason: &str| vec![CudaFact::NoLibrary { reason: reason.into() }];
    let absent = "libcuda.so.1: cannot open shared object file: No such file or directory";
    assert_eq!(results(&judge(none(absent), AUTO, false)), [Outcome::Skip]);
    assert_eq!(results(&judge(none(absent), AUTO, true)), [Outcome::Fail]);
    assert_eq!(results(&judge(none(absent), MUST, false)), [Outcome::Fail]);
    assert_eq!(results(&judge(none("file too short"), AUTO, false)), [Outcome::Fail]);
    let good =
        vec![CudaFact::Version { version: 13000 }, CudaFact::Started { error: None }, CudaFact::Count { count: 2 }];
    let findings = judge(good, AUTO, true);
    assert_eq!((results(&findings), findings[0].reason.as_str()), (vec![Outcome::Ok], "CUDA 13.0"));
    let findings = judge(vec![CudaFact::Version { version: 12020 }], AUTO, true);
    assert!(
        findings[0].result == Outcome::Fail && findings[0].reason.contains("CUDA 12.2, 12.5 is needed"),
        "{findings:?}"
    );
    let findings = judge(vec![CudaFact::MissingSymbols { names: vec!["cuInit".into()] }], AUTO, false);
    assert!(findings[0].result == Outcome::Fail && findings[0].reason.contains("cuInit"), "{findings:?}");
    let error = Some("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)".to_owned());
    let findings = judge(vec![CudaFact::Version { version: 13000 }, CudaFact::Started { error }], AUTO, true);
    assert_eq!(results(&findings), [Outcome::Ok, Outcome::Fail]);
    for end in [
        End::Died { how: "signal 11".into(), said: String::new() },
        End::Deadline(Duration::from_secs(5)),
        End::NotStarted("no memory".into()),
    ] {
        let findings = library(&Facts { facts: Vec::new(), end }, AUTO, true, 12050);
        assert_eq!(results(&findings), [Outcome::Fail]);
    }
}

#[test]
fn gpus_need_virtual_memory_and_device_code() {
    let started = CudaFact::Started { error: None };
    let good = facts(vec![started.clone(), CudaFact::Gpu(gpu(0))]);
    assert_eq!(results(&gpus(&good, MUST, &[80, 90], None)), [Outcome::Ok; 4]);
    let findings = gpus(&good, MUST, &[100], None);
    assert!(findings[3].result == Outcome::Fail && findings[3].reason.contains("sm_100 and newer"), "{findings:?}");
    let findings = gpus(&good, MUST, &[], None);
    assert!(findings[3].result == Outcome::Fail && findings[3].reason.contains("no device code"), "{findings:?}");
    let unordered = facts(vec![started.clone(), CudaFact::Gpu(Gpu { write_ordering: 0, ..gpu(0) })]);
    let findings = gpus(&unordered, MUST, &[90], None);
    assert!(findings[2].result == Outcome::Fail && findings[2].reason.contains("in any order"), "{findings:?}");
    let vgpu = Gpu { vmm: false, descriptors: false, ..gpu(0) };
    let findings = gpus(&facts(vec![started.clone(), CudaFact::Gpu(vgpu)]), MUST, &[90], None);
    assert!(findings[1].result == Outcome::Fail && findings[1].reason.contains("and no sharing"), "{findings:?}");
    let findings = gpus(&facts(vec![started, CudaFact::Count { count: 0 }]), AUTO, &[90], Some("7"));
    assert_eq!(results(&findings), [Outcome::Fail]);
    assert!(findings[0].reason.contains("CUDA_VISIBLE_DEVICES is `7`"));
    assert!(gpus(&facts(vec![CudaFact::NoLibrary { reason: String::new() }]), MUST, &[90], None).is_empty());
}

#[test]
fn pairs_without_access_get_a_reason() {
    let machine = Recorded::new("/proc/cpuinfo = flags : fpu sse");
    let findings = peers(&seen(true, true), &machine.root, None);
    assert_eq!(results(&findings), [Outcome::Ok]);
    assert!(findings[0].reason.contains("0-1"));
    assert_eq!(results(&peers(&seen(true, false), &machine.root, None)), [Outcome::Warn]);
    let reason = |seen: &Seen, root: &Root, topology: Option<&Topology>| {
        let findings = peers(seen, root, topology);
        assert_eq!(results(&findings), [Outcome::Warn]);
        assert_eq!(findings[0].subject, "GPU 0 - GPU 1");
        findings[0].reason.clone()
    };
    assert!(reason(&seen(false, false), &machine.root, None).contains("the driver has no peer access"));
    let vm = Recorded::new("/proc/cpuinfo = flags : fpu hypervisor sse");
    assert!(reason(&seen(false, false), &vm.root, None).contains("virtual machine"));
    let named = |name: &str| {
        let mut seen = seen(false, false);
        seen.gpus[1].name = name.into();
        seen
    };
    assert!(reason(&named("NVIDIA GeForce RTX 4090"), &vm.root, None).contains("GeForce"));
    assert!(reason(&named("NVIDIA H100 MIG 1g.10gb"), &vm.root, None).contains("MIG"));
    let sockets = Recorded::new(
        "/sys/devices/pci0000:00/0000:00:01.0/0000:0b:00.0/numa_node = 0\n/sys/devices/pci0000:80/0000:80:01.0/0000:1b:00.0/numa_node = 1\n\
         /sys/bus/pci/devices/0000:0b:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:0b:00.0\n\
         /sys/bus/pci/devices/0000:1b:00.0 -> ../../../devices/pci0000:80/0000:80:01.0/0000:1b:00.0",
    );
    let topology = Topology::read(&sockets.root.at("/sys")).ok();
    assert!(reason(&seen(false, false), &sockets.root, topology.as_ref()).contains("different sockets"));
    let silent = Seen { pairs: Vec::new(), ..seen(true, true) };
    assert!(reason(&silent, &vm.root, None).contains("did not say"));
    let alone = Seen { gpus: vec![gpu(0)], pairs: Vec::new() };
    assert_eq!(results(&peers(&alone, &vm.root, None)), [Outcome::Skip]);
    assert_eq!(results(&peers(&Seen::default(), &vm.root, None)), [Outcome::Skip]);
}

#[test]
fn cards_reach_gpu_memory_by_one_of_two_ways() {
    let plain = Recorded::new("/sys/module/nvidia/");
    let peermem = Recorded::new("/sys/module/nvidia_peermem/");
    let refused = || Err("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801)".to_owned());
    let export_of = |shared, dma_buf, root: &Root, wants| {
        let facts = facts(vec![CudaFact::Export { gpu: 0, shared, dma_buf }]);
        results(&export(&facts, &seen(true, true), root, wants))
    };
    assert_eq!(export_of(Ok(()), Ok(()), &plain.root, MUST), [Outcome::Ok, Outcome::Ok, Outcome::Skip]);
    assert_eq!(export_of(Ok(()), refused(), &peermem.root, MUST), [Outcome::Ok, Outcome::Skip, Outcome::Ok]);
    assert_eq!(export_of(Ok(()), refused(), &plain.root, MUST), [Outcome::Ok, Outcome::Fail, Outcome::Fail]);
    assert_eq!(export_of(Ok(()), refused(), &plain.root, AUTO), [Outcome::Ok, Outcome::Warn, Outcome::Warn]);
    assert_eq!(export_of(Ok(()), refused(), &plain.root, NONE), [Outcome::Ok, Outcome::Skip, Outcome::Skip]);
    assert_eq!(export_of(refused(), Ok(()), &plain.root, AUTO), [Outcome::Fail, Outcome::Ok, Outcome::Skip]);
    let crashed = Facts { facts: Vec::new(), end: End::Died { how: "signal 6".into(), said: String::new() } };
    assert_eq!(results(&export(&crashed, &seen(true, true), &plain.root, NONE)), [Outcome::Skip, Outcome::Skip]);
    assert_eq!(results(&export(&crashed, &Seen::default(), &plain.root, MUST)), [Outcome::Skip, Outcome::Skip]);
}

#[test]
fn the_registry_key_is_read_from_the_drivers_parameters() {
    let with = |params: &str| {
        let machine = Recorded::new(MACHINE);
        machine.add(&format!("/proc/driver/nvidia/params = {params}"));
        machine
    };
    let set = with("EnableStreamMemOPs: 1\\nRegistryDwords: \"RmFoo=2;PeerMappingOverride=1;\"");
    assert_eq!(doorbell(&set.root, MUST).result, Outcome::Ok);
    for params in ["RegistryDwords: \"\"", "RegistryDwords: \"PeerMappingOverride=0\"", "\u{1}garbage"] {
        let unset = with(params);
        let finding = doorbell(&unset.root, AUTO);
        assert!(
            finding.result == Outcome::Warn && finding.remedy.is_some_and(|text| text.contains("modprobe.d")),
            "{params}"
        );
        assert_eq!(doorbell(&unset.root, NONE).result, Outcome::Skip);
    }
    let mut denied = with("x");
    denied.root.denied.push("/proc/driver/nvidia/params");
    assert!(doorbell(&denied.root, MUST).reason.contains("permission denied"));
    assert_eq!(doorbell(&denied.root, NONE).result, Outcome::Skip);
    assert_eq!(doorbell(&Recorded::new("/proc/").root, MUST).result, Outcome::Skip);
}

#[test]
fn the_iommu_matters_to_cards() {
    let kind = |kind: &str, wants| {
        let machine = Recorded::new(&format!("/sys/bus/pci/devices/0000:0b:00.0/iommu_group/type = {kind}"));
        iommu(&machine.root, &seen(true, true), wants).result
    };
    assert_eq!(kind("identity", MUST), Outcome::Ok);
    assert_eq!(kind("DMA-FQ", AUTO), Outcome::Warn);
    assert_eq!(kind("DMA", NONE), Outcome::Skip);
    assert_eq!(kind("blocked", MUST), Outcome::Ok);
    assert_eq!(iommu(&Recorded::new("/sys/").root, &seen(true, true), MUST).result, Outcome::Ok);
    assert_eq!(iommu(&Recorded::new("/sys/").root, &Seen::default(), MUST).result, Outcome::Skip);
}
