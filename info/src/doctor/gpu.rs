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
    /// Returns what of the facts is about GPUs.
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

/// Returns the PCI addresses of NVIDIA's display and 3D controllers, with the driver that has each.
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

/// Returns what a GPU that is there but cannot be used means: its owner wants it used.
fn broken(want: Want) -> Outcome {
    if want == Want::No { Outcome::Skip } else { Outcome::Fail }
}

/// Checks whether a GPU is on the bus.
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

/// Checks the kernel's driver.
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

/// Checks the device nodes of the driver, and whether this user may use them.
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

/// Checks the CUDA driver's library, and how it starts.
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

/// Checks the GPUs that this process sees.
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

/// Returns why two GPUs have no access to each other, as far as can be told, and what to do.
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

/// Checks whether the heap's memory can be shared, and given to cards as dma-buf or by
/// nvidia-peermem.
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

/// Returns a setting in `/proc/driver/nvidia/params`.
fn parameter(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Checks whether the driver lets a GPU map a card's doorbell registers: the registry key
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

/// Checks whether the IOMMU translates what GPUs and cards read and write.
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
mod tests;
