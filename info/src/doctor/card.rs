//! A ConnectX card as jobs use it: commands, doorbell registers, and memory, tried in the process
//! of a probe.

use std::os::fd::{FromRawFd as _, OwnedFd};

use oxshmem::config::{Choice, Config, DoorbellRecord};
use oxshmem_hca::mlx5::{Mlx5Hca, Mlx5Options, Registration};
use oxshmem_hca::objects::Pd;
use oxshmem_hca::provider::{Access, DeviceMemory, LinkLayer, Provider, Rung, UmemSource};
use oxshmem_hca::topology::Card;
use serde::{Deserialize, Serialize};

use super::cuda;
use super::finding::{Finding, Outcome, Want, Wants};
use super::guard::{Facts, tell};

/// What using a card showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum CardFact {
    /// It was opened for commands, and has answered; what it can do.
    Opened {
        /// In words; or why not.
        outcome: Result<String, String>,
    },
    /// What its firmware says of queue pairs without a doorbell record.
    WithoutRecord {
        /// How many there may be, those of all processes together; 0: none.
        most: u32,
    },
    /// A page of doorbell registers was had.
    Page {
        /// Why not.
        outcome: Result<(), String>,
    },
    /// A GPU's kernels may store to that page.
    Mapped {
        /// Why not.
        outcome: Result<(), String>,
    },
    /// Memory was registered, for work requests and for queues.
    Memory {
        /// Whose it is.
        of: Owner,
        /// The way that worked last; or what did not.
        outcome: Result<String, String>,
    },
}

/// Whose memory is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A GPU's.
    Gpu,
    /// The host's.
    Host,
}

impl Owner {
    fn probe(self) -> &'static str {
        match self {
            Self::Gpu => "rdma.gpu-memory",
            Self::Host => "rdma.host-memory",
        }
    }
}

/// GPU memory that the CUDA driver exports.
#[derive(Debug)]
struct GpuMemory;

impl DeviceMemory for GpuMemory {
    fn dma_buf(&self, addr: u64, len: usize, pcie: bool) -> Result<OwnedFd, String> {
        let descriptor = cuda::dma_buf(addr, len, pcie)?;
        // SAFETY: the driver has just made it, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

/// Runs the probe `card`: opens the card, and tries what set-up needs. `gpu` is the GPU that is to
/// post to it.
pub fn probe(card: &Card, gid_index: Option<u32>, pkey_index: u16, gpu: Option<i32>) {
    let (port, registration) = (card.port.unwrap_or(1), Registration::DmaBuf);
    let options = Mlx5Options { device: &card.device, port, gid_index, pkey_index, registration };
    let opened = match Mlx5Hca::open(&options) {
        Ok(opened) => opened,
        Err(error) => return tell(&CardFact::Opened { outcome: Err(error.to_string()) }),
    };
    let (general, _) = opened.capabilities();
    let port = &opened.info().port;
    let lid = match port.link_layer {
        LinkLayer::InfiniBand => format!("LID {:#x}, partition key {:#06x}, ", port.lid, port.pkey),
        LinkLayer::Ethernet => String::new(),
    };
    let (number, mtu, gid) = (port.number, port.mtu.bytes(), port.gid);
    let blocks = 1u64 << general.log_max_qp_sz;
    let about = format!("port {number} has MTU {mtu}, {lid}GID {gid}; queues of up to {blocks} blocks");
    tell(&CardFact::Opened { outcome: Ok(about) });
    tell(&CardFact::WithoutRecord { most: opened.info().without_records });
    let memory = gpu.filter(|_| cuda::start_quietly()).map(cuda::create);

    let provider: std::sync::Arc<dyn Provider> = opened;
    match provider.alloc_uar(Rung::ByDevice) {
        Ok(page) => {
            tell(&CardFact::Page { outcome: Ok(()) });
            if let Some(Ok(_)) = &memory {
                tell(&CardFact::Mapped { outcome: cuda::map_registers(page.base) });
            }
        }
        Err(error) => tell(&CardFact::Page { outcome: Err(error.to_string()) }),
    }
    let host = host_page().and_then(|addr| register(&provider, UmemSource::Host { addr, len: PAGE }));
    tell(&CardFact::Memory { of: Owner::Host, outcome: host });
    let outcome = match memory {
        None => return,
        Some(Err(reason)) => Err(reason),
        Some(Ok(memory)) => match cuda::share(memory.handle) {
            Err(reason) => Err(reason),
            Ok(descriptor) => {
                // SAFETY: the driver has just made it, and nothing else has it.
                let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
                #[allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits on every supported machine")]
                let addr = std::ptr::with_exposed_provenance_mut(memory.address as usize);
                let fd = std::os::fd::AsFd::as_fd(&descriptor);
                let source = UmemSource::Fd { fd, offset: 0, len: memory.bytes, addr, device: Some(&GpuMemory) };
                register(&provider, source)
            }
        },
    };
    tell(&CardFact::Memory { of: Owner::Gpu, outcome });
    // The process ends with it, and with everything that was made.
}

const PAGE: usize = 4096;

/// Returns a page of host memory as PEs have it, mapped from a descriptor. It is left to the end of
/// the process.
fn host_page() -> Result<*mut u8, String> {
    let map = || {
        let fd = rustix::fs::memfd_create("oxshmem-doctor", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, PAGE as u64)?;
        let rights = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping wherever there is room.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, rights, rustix::mm::MapFlags::SHARED, &fd, 0) };
        // It stays open as long as the memory, like in a PE.
        std::mem::forget(fd);
        address
    };
    map().map(|address| address.cast()).map_err(|error: rustix::io::Errno| error.to_string())
}

/// Registers memory as work requests and as queues use it, and gives it back; how that was done.
fn register(provider: &std::sync::Arc<dyn Provider>, source: UmemSource<'_>) -> Result<String, String> {
    let pd = Pd::alloc(provider).map_err(|error| error.to_string())?;
    // SAFETY: the memory stays until both are given back, or until the process ends.
    let key = unsafe { provider.reg_key(pd.pdn(), source, 0, Access::ALL) }.map_err(|error| error.to_string())?;
    // SAFETY: as above.
    let umem = unsafe { provider.reg_umem(source, Access::LOCAL) }.map_err(|error| error.to_string())?;
    let ways: Vec<String> = provider
        .attempts()
        .iter()
        .filter(|attempt| attempt.what.contains(" memory as ") && attempt.outcome.is_ok())
        .map(|attempt| attempt.what.clone())
        .collect();
    let returned = provider.dereg_umem(umem).and_then(|()| key.map_or(Ok(()), |key| provider.dereg_key(key.id)));
    returned.map_err(|error| error.to_string())?;
    Ok(ways.join(", "))
}

/// Returns what the probe's arguments are for a card of this configuration.
pub fn arguments(card: &Card, config: &Config, gpu: Option<i32>) -> Vec<String> {
    let mut arguments = vec!["card".to_owned(), card.to_string()];
    if let Choice::Given(index) = config.ib_gid_index() {
        arguments.extend(["--gid-index".to_owned(), index.to_string()]);
    }
    if config.ib_pkey_index() != 0 {
        arguments.extend(["--pkey-index".to_owned(), config.ib_pkey_index().to_string()]);
    }
    if let Some(gpu) = gpu {
        arguments.extend(["--gpu".to_owned(), gpu.to_string()]);
    }
    arguments
}

/// Judges whether a card takes doorbells as the configuration has them.
fn doorbell_record(most: u32, records: DoorbellRecord, bad: Outcome) -> Finding {
    const PROBE: &str = "rdma.doorbell-record";
    match (records, most) {
        (DoorbellRecord::Always, 0) => {
            Finding::ok(PROBE, "written before each doorbell, which this card's firmware cannot do without")
        }
        (DoorbellRecord::Always, most) => Finding::ok(
            PROBE,
            format!(
                "written before each doorbell; the card can do without for {most} queue pairs of all processes (OXSHMEM_IBGDA_DOORBELL_RECORD=never)"
            ),
        ),
        (DoorbellRecord::Never, 0) => Finding::bad(
            PROBE,
            bad,
            "OXSHMEM_IBGDA_DOORBELL_RECORD=never, but the card's firmware does not offer queue pairs without one (send_dbr_mode_no_dbr_ext)",
            "unset OXSHMEM_IBGDA_DOORBELL_RECORD; ConnectX-8 and newer have such queue pairs",
        ),
        (DoorbellRecord::Never, most) => {
            Finding::ok(PROBE, format!("left out; the card has {most} such queue pairs for all processes"))
        }
    }
}

/// Returns what it means, for each step that was tried. `records`: what the configuration says of
/// doorbell records.
pub fn judge(
    card: &str,
    facts: &Facts<CardFact>,
    wants: Wants,
    (on_gpu, records): (bool, DoorbellRecord),
) -> Vec<Finding> {
    let bad = wants.card.broken();
    let mut findings = Vec::new();
    for fact in &facts.facts {
        let finding = match fact {
            CardFact::Opened { outcome: Ok(about) } => {
                Finding::ok("rdma.devx", format!("commands reach the card: {about}"))
            }
            CardFact::Opened { outcome: Err(reason) } => Finding::bad(
                "rdma.devx",
                bad,
                reason.clone(),
                "see rdma.nodes and rdma.port; DevX needs mlx5_ib of Linux 5.1 or newer and user contexts in the firmware (mlxconfig -d DEV set UCTX_EN=1), in a \
                 container CAP_NET_RAW; OXSHMEM_HCA=verbs does not need it",
            ),
            CardFact::WithoutRecord { most } => doorbell_record(*most, records, bad),
            CardFact::Page { outcome: Ok(()) } => Finding::ok("rdma.uar", "a page of doorbell registers was had"),
            CardFact::Page { outcome: Err(reason) } => Finding::bad(
                "rdma.uar",
                bad,
                reason.clone(),
                "end other jobs on the card; OXSHMEM_HCA=verbs does not need it",
            ),
            CardFact::Mapped { outcome: Ok(()) } => {
                Finding::ok("gpu.doorbell", "kernels may store to the card's doorbell registers")
            }
            CardFact::Mapped { outcome: Err(reason) } => Finding::bad(
                "gpu.doorbell",
                Outcome::Warn.min(bad),
                format!(
                    "the driver does not map the card's doorbell registers for kernels: {reason}; a thread of the CPU rings"
                ),
                "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d, then update-initramfs -u and restart",
            ),
            CardFact::Memory { of, outcome: Ok(way) } => Finding::ok(of.probe(), way.clone()),
            CardFact::Memory { of, outcome: Err(reason) } => Finding::bad(
                of.probe(),
                bad,
                reason.clone(),
                "see gpu.dma-buf, gpu.peermem, rdma.kernel and system.memlock",
            ),
        };
        findings.push(finding.of(card));
    }
    if let Some(fault) = facts.end.fault() {
        let remedy = "reinstall rdma-core; dmesg and devlink health say whether the card has failed";
        findings.push(Finding::bad("rdma.devx", bad, format!("using the card failed: {fault}"), remedy).of(card));
    }
    if on_gpu && wants.gpu != Want::No && !facts.facts.iter().any(|fact| matches!(fact, CardFact::Mapped { .. })) {
        findings.push(Finding::skip("gpu.doorbell", "not tried: see rdma.devx, rdma.uar and gpu.export").of(card));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::guard::End;
    use super::*;

    const MUST: Wants = Wants { gpu: Want::Must, card: Want::Must, mlx5: true };
    const AUTO: Wants = Wants { gpu: Want::IfThere, card: Want::IfThere, mlx5: true };

    fn results(facts: Vec<CardFact>, wants: Wants) -> Vec<(&'static str, Outcome)> {
        let findings = judge("mlx5_0", &Facts { facts, end: End::Done }, wants, (true, DoorbellRecord::Always));
        for finding in &findings {
            assert_eq!(finding.remedy.is_some(), finding.result >= Outcome::Warn, "{finding:?}");
            assert_eq!(finding.subject, "mlx5_0");
        }
        findings.iter().map(|finding| (finding.probe, finding.result)).collect()
    }

    #[test]
    fn each_step_is_judged() {
        let good = vec![
            CardFact::Opened { outcome: Ok("port 1".into()) },
            CardFact::Page { outcome: Ok(()) },
            CardFact::Mapped { outcome: Ok(()) },
            CardFact::Memory { of: Owner::Host, outcome: Ok("by address".into()) },
        ];
        assert!(results(good, MUST).iter().all(|(_, result)| *result == Outcome::Ok));
        let refused = vec![CardFact::Opened { outcome: Err("no DevX context".into()) }];
        assert_eq!(results(refused.clone(), MUST), [("rdma.devx", Outcome::Fail), ("gpu.doorbell", Outcome::Skip)]);
        assert_eq!(results(refused, AUTO)[0].1, Outcome::Warn);
        let no = || Err("refused".to_owned());
        let poor = vec![
            CardFact::Opened { outcome: Ok("port 1".into()) },
            CardFact::Page { outcome: Ok(()) },
            CardFact::Mapped { outcome: Err("CUDA_ERROR_INVALID_VALUE".into()) },
            CardFact::Memory { of: Owner::Gpu, outcome: no() },
        ];
        // The CPU can ring; without memory there is nothing.
        assert_eq!(results(poor, MUST)[2..], [("gpu.doorbell", Outcome::Warn), ("rdma.gpu-memory", Outcome::Fail)]);
        let pageless = vec![CardFact::Page { outcome: Err("none left".into()) }];
        assert_eq!(results(pageless, MUST)[0], ("rdma.uar", Outcome::Fail));
        let hung = Facts { facts: Vec::new(), end: End::Deadline(Duration::from_secs(5)) };
        assert_eq!(judge("mlx5_0", &hung, AUTO, (false, DoorbellRecord::Always))[0].result, Outcome::Warn);
    }

    #[test]
    fn a_card_has_to_do_without_records_where_that_is_requested() {
        let result = |most, records, wants| {
            let facts = Facts { facts: vec![CardFact::WithoutRecord { most }], end: End::Done };
            let finding = judge("mlx5_0", &facts, wants, (false, records)).remove(0);
            assert_eq!(
                (finding.probe, finding.remedy.is_some()),
                ("rdma.doorbell-record", finding.result != Outcome::Ok)
            );
            (finding.result, finding.reason)
        };
        for most in [0, 1024] {
            assert_eq!(result(most, DoorbellRecord::Always, MUST).0, Outcome::Ok);
        }
        assert!(result(1024, DoorbellRecord::Always, MUST).1.contains("OXSHMEM_IBGDA_DOORBELL_RECORD=never"));
        assert_eq!(result(1024, DoorbellRecord::Never, MUST).0, Outcome::Ok);
        assert_eq!(result(0, DoorbellRecord::Never, MUST).0, Outcome::Fail);
        assert_eq!(result(0, DoorbellRecord::Never, AUTO).0, Outcome::Warn);
    }

    #[test]
    fn the_arguments_name_what_is_configured() {
        let config = Config::builder().ib_gid_index(3u32).build().unwrap_or_default();
        let card = Card { device: "mlx5_0".into(), port: Some(2) };
        assert_eq!(arguments(&card, &config, Some(1)), ["card", "mlx5_0/2", "--gid-index", "3", "--gpu", "1"]);
        assert_eq!(arguments(&card, &Config::default(), None), ["card", "mlx5_0/2"]);
    }
}
