//! GPUs: the kernel's driver, its device nodes and settings, what the CUDA driver says, and what
//! that means.

use oxshmem_hca::topology::{Distance, Place, Topology};

use super::cuda::{CudaFact, Gpu, Pair};
use super::finding::{Finding, Outcome, Want, Wants};
use super::guard::Facts;
use super::root::{Missing, Root};

/// NVIDIA's PCI vendor number.
const NVIDIA: &str = "0x10de";

/// What the CUDA driver said, in order.
#[derive(Debug, Default)]
pub struct Seen {
    /// The GPUs of this process.
    pub gpus: Vec<Gpu>,
    /// What they do to each other.
    pub pairs: Vec<Pair>,
}

impl Seen {
    /// What of the facts is about GPUs.
    pub fn of(facts: &Facts<CudaFact>) -> Self {
        let mut seen = Self::default();
        for fact in &facts.facts {
            match fact {
                CudaFact::Gpu(gpu) => seen.gpus.push(gpu.clone()),
                CudaFact::Pair(pair) => seen.pairs.push(*pair),
                _ => {}
            }
        }
        seen
    }
}

/// PCI addresses of NVIDIA's display and 3D controllers, with the driver that has each.
fn on_the_bus(root: &Root) -> Vec<(String, Option<String>)> {
    let folder = "/sys/bus/pci/devices";
    let is_gpu = |address: &String| {
        let attribute = |name: &str| root.text(&format!("{folder}/{address}/{name}")).unwrap_or_default();
        // 0x030000 VGA, 0x030200 3D.
        attribute("vendor") == NVIDIA && attribute("class").starts_with("0x03")
    };
    let addresses = root.entries(folder).unwrap_or_default().into_iter().filter(is_gpu);
    addresses.map(|address| (address.clone(), root.link(&format!("{folder}/{address}/driver")))).collect()
}

/// What a GPU that is there but cannot be used means: its owner wants it used.
fn broken(want: Want) -> Outcome {
    if want == Want::No { Outcome::Skip } else { Outcome::Fail }
}

/// Whether a GPU is on the bus.
pub fn on_bus(root: &Root, wants: Wants) -> Finding {
    const PROBE: &str = "gpu.bus";
    let found = on_the_bus(root);
    // In containers and odd virtual machines the bus is hidden, but not the driver.
    if found.is_empty() {
        return match root.exists("/proc/driver/nvidia/version") {
            true => Finding::skip(PROBE, "no NVIDIA GPU is seen on the PCI bus, but its driver is loaded"),
            false if wants.gpu == Want::Must => Finding::bad(
                PROBE,
                Outcome::Fail,
                "no NVIDIA GPU on the PCI bus",
                "OXSHMEM_DEVICE=cpu runs kernels on the CPU; a virtual machine or container must be given the GPU",
            ),
            false => Finding::skip(PROBE, "no NVIDIA GPU on the PCI bus: kernels run on the cpu device"),
        };
    }
    let text = |(address, driver): &(String, Option<String>)| {
        format!("{address} (driver {})", driver.as_deref().unwrap_or("none"))
    };
    let listed = found.iter().map(text).collect::<Vec<_>>().join(", ");
    if found.iter().all(|(_, driver)| driver.as_deref() != Some("nvidia")) {
        return Finding::bad(
            PROBE,
            broken(wants.gpu),
            format!("no GPU is driven by `nvidia`: {listed}"),
            "load the driver (modprobe nvidia); nouveau and vfio-pci keep a GPU from it",
        );
    }
    Finding::ok(PROBE, listed)
}

/// The kernel's driver.
pub fn kernel_driver(root: &Root, wants: Wants) -> Finding {
    const PROBE: &str = "gpu.kernel-driver";
    match root.text("/proc/driver/nvidia/version") {
        Ok(text) => {
            let line = text.lines().next().unwrap_or_default().trim_start_matches("NVRM version:").trim();
            if line.is_empty() {
                return Finding::bad(PROBE, Outcome::Warn, "/proc/driver/nvidia/version is empty", "reload the driver");
            }
            Finding::ok(PROBE, line.split_whitespace().collect::<Vec<_>>().join(" "))
        }
        Err(Missing::Absent) if on_the_bus(root).is_empty() => match wants.gpu.absent() {
            Outcome::Skip => Finding::skip(PROBE, "not loaded"),
            result => Finding::bad(
                PROBE,
                result,
                "the kernel module nvidia is not loaded",
                "install and load NVIDIA's driver",
            ),
        },
        Err(Missing::Absent) => Finding::bad(
            PROBE,
            broken(wants.gpu),
            "a GPU is there, but the kernel module nvidia is not loaded",
            "install NVIDIA's driver of release 555 or newer, and load it (modprobe nvidia)",
        ),
        Err(missing) => Finding::bad(
            PROBE,
            Outcome::Warn,
            format!("/proc/driver/nvidia/version cannot be read: {missing}"),
            "mount /proc",
        ),
    }
}

/// The device nodes of the driver, and whether this user may use them.
pub fn nodes(root: &Root, wants: Wants) -> Vec<Finding> {
    const PROBE: &str = "gpu.nodes";
    if !root.exists("/proc/driver/nvidia/version") {
        return vec![Finding::skip(PROBE, "no driver")];
    }
    let numbered = |name: &String| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let mut names = vec!["nvidiactl".to_owned(), "nvidia-uvm".to_owned()];
    let gpus: Vec<String> = root.entries("/dev").unwrap_or_default().into_iter().filter(numbered).collect();
    if gpus.is_empty() {
        names.push("nvidia0".to_owned());
    }
    names.extend(gpus);
    let mut findings = Vec::new();
    for name in &names {
        let node = format!("/dev/{name}");
        let finding = match root.usable(&node) {
            Ok(()) => continue,
            Err(Missing::Absent) => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("{node} does not exist"),
                "nvidia-modprobe -u -c 0 makes it; a container needs NVIDIA's runtime (docker run --gpus all)",
            ),
            Err(Missing::Denied) => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("this user may not read and write {node}"),
                "chmod a+rw, or join the group that owns it (ls -l /dev/nvidia*)",
            ),
            Err(Missing::Other(reason)) => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("{node} cannot be opened: {reason}"),
                "in a container the control group must allow the device (docker run --gpus all); nvidia-smi shows a GPU that has failed",
            ),
        };
        findings.push(finding.of(node));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(PROBE, format!("{} can be read and written", names.join(", "))));
    }
    findings
}

/// The CUDA driver's library, and how it starts.
pub fn library(facts: &Facts<CudaFact>, wants: Wants, on_bus: bool, oldest: i32) -> Vec<Finding> {
    const PROBE: &str = "gpu.libcuda";
    let mut findings = Vec::new();
    let release = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
    let absent = if on_bus { broken(wants.gpu) } else { wants.gpu.absent() };
    for fact in &facts.facts {
        let finding = match fact {
            CudaFact::NoLibrary { reason } => {
                // What is there under that name should have been the driver's.
                let found = !reason.contains("No such file");
                Finding::bad(
                    PROBE,
                    if found { broken(wants.gpu) } else { absent },
                    format!("libcuda.so.1 cannot be loaded: {reason}"),
                    "install the driver's libraries (Debian and Ubuntu: libcuda1; a container: --gpus all), and look at LD_LIBRARY_PATH",
                )
            }
            CudaFact::MissingSymbols { names } => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("libcuda lacks {}", names.join(", ")),
                "it is too old, or none at all: look at LD_LIBRARY_PATH, and update the driver",
            ),
            CudaFact::Version { version } if *version < oldest => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("the driver serves CUDA {}, {} is needed", release(*version), release(oldest)),
                "update the driver",
            ),
            CudaFact::Version { version } => Finding::ok(PROBE, format!("CUDA {}", release(*version))),
            CudaFact::Started { error: Some(error) } if error.contains("NO_DEVICE") => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("the driver shows this process no GPU: {error}"),
                "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist (nvidia-smi -L); see gpu.nodes",
            ),
            CudaFact::Started { error: Some(error) } => Finding::bad(
                PROBE,
                broken(wants.gpu),
                format!("the driver does not start: {error}"),
                "nvidia-smi says more; module and library must be of one release, and the device nodes usable",
            ),
            _ => continue,
        };
        findings.push(finding);
    }
    if let Some(fault) = facts.end.fault() {
        findings.push(Finding::bad(
            PROBE,
            broken(wants.gpu),
            format!("asking the driver failed: {fault}"),
            "nvidia-smi shows whether the driver responds; LD_LIBRARY_PATH may name another libcuda; reload the driver, or restart the machine",
        ));
    }
    findings
}

/// The GPUs that this process sees.
pub fn gpus(facts: &Facts<CudaFact>, wants: Wants, build: &[u32], visible: Option<&str>) -> Vec<Finding> {
    let seen = Seen::of(facts);
    let mut findings = Vec::new();
    let started = facts.facts.iter().any(|fact| matches!(fact, CudaFact::Started { error: None }));
    if started && seen.gpus.is_empty() {
        let reason = match visible {
            Some(list) => format!("this process sees no GPU; CUDA_VISIBLE_DEVICES is `{list}`"),
            None => "this process sees no GPU".to_owned(),
        };
        findings.push(Finding::bad(
            "gpu.visible",
            broken(wants.gpu),
            reason,
            "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist (nvidia-smi -L)",
        ));
    }
    for gpu in &seen.gpus {
        let subject = format!("GPU {}", gpu.ordinal);
        let about = format!("{}, {} GiB, sm_{}, {}", gpu.name, gpu.memory >> 30, gpu.architecture, gpu.pci);
        findings.push(Finding::ok("gpu.visible", about).of(&subject));
        let lacking =
            [(gpu.vmm, "virtual memory management"), (gpu.descriptors, "sharing of memory by file descriptor")];
        let lacking: Vec<_> = lacking.iter().filter(|(has, _)| !has).map(|(_, what)| *what).collect();
        findings.push(if lacking.is_empty() {
            Finding::ok("gpu.vmm", "virtual memory management, shared by file descriptor").of(&subject)
        } else {
            Finding::bad(
                "gpu.vmm",
                broken(wants.gpu),
                format!("no {}", lacking.join(" and no ")),
                "use a driver of release 555 or newer on bare metal; vGPU profiles and WSL lack it",
            )
            .of(&subject)
        });
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER.
        findings.push(if gpu.write_ordering >= 100 {
            Finding::ok("gpu.write-ordering", "kernels see the writes of cards in order").of(&subject)
        } else {
            Finding::bad(
                "gpu.write-ordering",
                wants.card.broken(),
                format!("kernels may see a card's writes in any order (the driver says {})", gpu.write_ordering),
                "use OXSHMEM_HCA=soft, or OXSHMEM_TRANSPORT=p2p; a newer driver may order them",
            )
            .of(&subject)
        });
        let architecture = u32::try_from(gpu.architecture).unwrap_or_default();
        findings.push(match build.iter().min() {
            None => Finding::bad(
                "gpu.modules",
                broken(wants.gpu),
                "this build has no device code for GPUs",
                "build with a CUDA compiler (make setup installs one)",
            )
            .of(&subject),
            Some(oldest) if *oldest > architecture => Finding::bad(
                "gpu.modules",
                broken(wants.gpu),
                format!("device code is built for sm_{oldest} and newer, this GPU is sm_{architecture}"),
                "use a newer GPU, or OXSHMEM_DEVICE=cpu",
            )
            .of(&subject),
            Some(_) => Finding::ok(
                "gpu.modules",
                format!("device code for sm_{architecture} is there, or is compiled at first use"),
            )
            .of(&subject),
        });
    }
    findings
}

/// Loads and stores between each two GPUs, and why not.
pub fn peers(seen: &Seen, root: &Root, topology: Option<&Topology>) -> Vec<Finding> {
    const PROBE: &str = "gpu.p2p";
    if seen.gpus.len() < 2 {
        let reason = if seen.gpus.is_empty() { "no GPU" } else { "one GPU: PEs that share it reach each other" };
        return vec![Finding::skip(PROBE, reason)];
    }
    let gpu = |ordinal: i32| seen.gpus.iter().find(|gpu| gpu.ordinal == ordinal);
    let pair = |from: i32, to: i32| seen.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to));
    let mut findings = Vec::new();
    let mut good = Vec::new();
    for (i, a) in seen.gpus.iter().enumerate() {
        for b in &seen.gpus[i + 1..] {
            let subject = format!("GPU {} - GPU {}", a.ordinal, b.ordinal);
            let both = (pair(a.ordinal, b.ordinal), pair(b.ordinal, a.ordinal));
            let (Some(there), Some(back)) = both else {
                findings
                    .push(Finding::bad(PROBE, Outcome::Warn, "the driver did not say", "see gpu.libcuda").of(subject));
                continue;
            };
            if there.access && back.access {
                if there.atomics && back.atomics {
                    good.push(format!("{}-{}", a.ordinal, b.ordinal));
                } else {
                    findings.push(
                        Finding::bad(
                            PROBE,
                            Outcome::Warn,
                            "loads and stores, but no atomics between these GPUs: atomic operations of PEs on them may not be atomic",
                            "join the GPUs by NVLink, or run the PEs with OXSHMEM_DISABLE_P2P=1",
                        )
                        .of(subject),
                    );
                }
                continue;
            }
            let (why, remedy) = obstacle(gpu(there.from), gpu(there.to), root, topology);
            findings.push(
                Finding::bad(
                    PROBE,
                    Outcome::Warn,
                    format!("no loads and stores: {why}; PEs on them use the network"),
                    remedy,
                )
                .of(subject),
            );
        }
    }
    if !good.is_empty() {
        let rank = seen.pairs.iter().map(|pair| pair.rank).collect::<std::collections::BTreeSet<_>>();
        let ranks = rank.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        findings.insert(
            0,
            Finding::ok(PROBE, format!("loads, stores and atomics: {} (performance rank {ranks})", good.join(" "))),
        );
    }
    findings
}

/// Why two GPUs have no access to each other, as far as can be told, and what to do.
fn obstacle(a: Option<&Gpu>, b: Option<&Gpu>, root: &Root, topology: Option<&Topology>) -> (String, &'static str) {
    let (Some(a), Some(b)) = (a, b) else { return ("a GPU is not visible".into(), "see gpu.visible") };
    if a.name.contains("GeForce") || b.name.contains("GeForce") {
        return (
            "the driver gives GeForce GPUs no peer access over PCIe".into(),
            "use GPUs of the data centre line, or let the network carry it",
        );
    }
    if a.name.contains("MIG") || b.name.contains("MIG") {
        return ("a slice of a GPU (MIG) has no peer access".into(), "turn MIG off, or let the network carry it");
    }
    if root.text("/proc/cpuinfo").unwrap_or_default().split_whitespace().any(|word| word == "hypervisor") {
        return (
            "the driver has no peer access between them, on this virtual machine".into(),
            "the hypervisor must put both GPUs into one peer-to-peer group, and pass NVLink through",
        );
    }
    let far = topology.map(|topology| topology.between(&Place::Pci(a.pci.clone()), &Place::Pci(b.pci.clone())));
    match far {
        Some(Distance::System) => (
            "they are at different sockets, and not joined by NVLink".into(),
            "use GPUs of one socket, or let the network carry it",
        ),
        _ => (
            "the driver has no peer access between them".into(),
            "nvidia-smi topo -p2p r says why (CNS: chipset not supported, TNS: topology not supported); turn the IOMMU and ACS off (gpu.iommu)",
        ),
    }
}

/// Whether the heap's memory can be shared, and given to cards as dma-buf or by nvidia-peermem.
pub fn export(facts: &Facts<CudaFact>, seen: &Seen, root: &Root, wants: Wants) -> Vec<Finding> {
    let mut findings = Vec::new();
    if seen.gpus.is_empty() {
        findings.push(Finding::skip("gpu.dma-buf", "no GPU"));
        findings.push(Finding::skip("gpu.peermem", "no GPU"));
        return findings;
    }
    let exported = facts.facts.iter().find_map(|fact| match fact {
        CudaFact::Export { gpu, shared, dma_buf } => Some((*gpu, shared, dma_buf)),
        _ => None,
    });
    let peermem =
        ["nvidia_peermem", "nv_peer_mem"].into_iter().find(|name| root.exists(&format!("/sys/module/{name}")));
    // Where the other way exists, one is enough.
    let lesser = |other: bool| if wants.card == Want::No || other { Outcome::Skip } else { wants.card.broken() };
    match exported {
        None => {
            let fault = facts.end.fault().unwrap_or_else(|| "the probe said nothing".into());
            findings.push(Finding::bad(
                "gpu.dma-buf",
                wants.gpu.broken(),
                format!("memory of GPU {} could not be tried: {fault}", seen.gpus[0].ordinal),
                "see gpu.libcuda; a GPU in exclusive mode (nvidia-smi -c) or without free memory refuses",
            ));
        }
        Some((gpu, shared, dma_buf)) => {
            let subject = format!("GPU {gpu}");
            if let Err(reason) = shared {
                findings.push(
                    Finding::bad(
                        "gpu.export",
                        broken(wants.gpu),
                        format!("memory cannot be shared by descriptor: {reason}"),
                        "free memory on the GPU (nvidia-smi); allow the device nodes in the container",
                    )
                    .of(&subject),
                );
            } else {
                findings.push(
                    Finding::ok("gpu.export", "memory was created, mapped and shared by descriptor").of(&subject),
                );
            }
            findings.push(match dma_buf {
                Ok(()) => Finding::ok("gpu.dma-buf", "its memory was exported as dma-buf").of(&subject),
                Err(reason) if lesser(peermem.is_some()) == Outcome::Skip => {
                    Finding::skip("gpu.dma-buf", format!("no dma-buf of its memory: {reason}")).of(&subject)
                }
                Err(reason) => Finding::bad(
                    "gpu.dma-buf",
                    lesser(peermem.is_some()),
                    format!("no dma-buf of its memory: {reason}"),
                    "use the open kernel modules of the driver and Linux 5.12 or newer, or load nvidia-peermem",
                )
                .of(&subject),
            });
        }
    }
    let has_dma_buf = exported.is_some_and(|(_, _, dma_buf)| dma_buf.is_ok());
    findings.push(match peermem {
        Some(name) => Finding::ok("gpu.peermem", format!("{name} is loaded")),
        None if lesser(has_dma_buf) == Outcome::Skip => {
            Finding::skip("gpu.peermem", "nvidia-peermem is not loaded; not needed here")
        }
        None => Finding::bad(
            "gpu.peermem",
            lesser(has_dma_buf),
            "nvidia-peermem is not loaded, and there is no dma-buf: a card cannot reach GPU memory",
            "modprobe nvidia-peermem (it needs the card vendor's kernel modules), or use dma-buf",
        ),
    });
    findings
}

/// A setting in `/proc/driver/nvidia/params`.
fn parameter(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Whether the driver lets a GPU map a card's doorbell registers: the registry key
/// `PeerMappingOverride`.
pub fn doorbell(root: &Root, wants: Wants) -> Finding {
    const PROBE: &str = "gpu.peer-mapping";
    if !root.exists("/proc/driver/nvidia/version") {
        return Finding::skip(PROBE, "no driver");
    }
    let remedy = "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d, then update-initramfs -u and restart; without it \
                  a thread of the CPU rings for the GPU, or posts for it (IBRC)";
    match root.text("/proc/driver/nvidia/params") {
        Ok(text) => {
            let dwords = parameter(&text, "RegistryDwords").unwrap_or_default();
            let set = dwords.split(';').any(|item| item.trim().replace(' ', "") == "PeerMappingOverride=1");
            match (set, wants.card, wants.mlx5) {
                (true, ..) => Finding::ok(PROBE, "PeerMappingOverride=1: the driver lets a GPU map doorbell registers"),
                (false, Want::No, _) | (false, _, false) => {
                    Finding::skip(PROBE, "PeerMappingOverride is not set; not needed without a ConnectX")
                }
                (false, ..) => {
                    let reason = "the driver's registry key PeerMappingOverride is not set: GPUs may not be able to ring a card's doorbell";
                    Finding::bad(PROBE, Outcome::Warn, reason, remedy)
                }
            }
        }
        Err(missing) if wants.card == Want::No || !wants.mlx5 => {
            Finding::skip(PROBE, format!("/proc/driver/nvidia/params cannot be read: {missing}"))
        }
        Err(missing) => Finding::bad(
            PROBE,
            Outcome::Warn,
            format!(
                "/proc/driver/nvidia/params cannot be read ({missing}), so whether GPUs may ring a card's doorbell is not known"
            ),
            remedy,
        ),
    }
}

/// Whether the IOMMU translates what GPUs and cards read and write.
pub fn iommu(root: &Root, seen: &Seen, wants: Wants) -> Finding {
    const PROBE: &str = "gpu.iommu";
    let Some(gpu) = seen.gpus.first() else { return Finding::skip(PROBE, "no GPU") };
    let kind = root.text(&format!("/sys/bus/pci/devices/{}/iommu_group/type", gpu.pci));
    match kind.as_deref() {
        Ok("identity") => Finding::ok(PROBE, "the IOMMU passes GPU addresses through"),
        Ok(kind) if kind.starts_with("DMA") && wants.card == Want::No => {
            Finding::skip(PROBE, format!("the IOMMU translates ({kind}); that matters to cards, and none is used"))
        }
        Ok(kind) if kind.starts_with("DMA") => Finding::bad(
            PROBE,
            Outcome::Warn,
            format!(
                "the IOMMU translates what GPUs read and write ({kind}): transfers between card and GPU go through the CPU, or fail"
            ),
            "iommu=pt on the kernel's command line (on AMD also amd_iommu=on), and ACS off below the switches",
        ),
        Ok(kind) => Finding::ok(PROBE, format!("the IOMMU group of the GPU is of type {kind}")),
        Err(_) => Finding::ok(PROBE, "no IOMMU"),
    }
}

#[cfg(test)]
mod tests {
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

    /// Every finding that is bad says what to do.
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
}
