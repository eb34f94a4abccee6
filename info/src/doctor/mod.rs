//! `oxshmem-info doctor`: what this machine can do and why, and what to change.
//!
//! A probe looks, and says facts; judging them is apart, so that each judgement is tested on
//! recorded files and facts. Probes that call into drivers' libraries run in processes of their own
//! ([`guard`]), side by side.

mod card;
mod cuda;
mod finding;
mod gpu;
mod guard;
mod libraries;
mod process;
mod rdma;
mod root;
mod verdict;

use std::time::{Duration, Instant};

use clap::Subcommand;
use oxshmem::Tuning;
use oxshmem::config::{Config, ConfigError, Device, Hca, Transport};
use oxshmem_hca::topology::{Card, DeviceEntry, Topology};
use serde::Serialize;

pub use cuda::{CudaFact, Gpu};
pub use finding::{Finding, Outcome};
use finding::{Want, Wants};
use gpu::Seen;
pub use guard::{Facts, Guarded};
use libraries::{Library, LibraryFact};
use process::{Limits, Needs};
pub use rdma::gid_table;
pub use root::Root;
use verdict::Verdict;

/// The probes that run in processes of their own.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Probe {
    /// The CUDA driver, GPUs and what they do to each other.
    Cuda,
    /// Memory of a GPU, shared and exported.
    Export {
        /// The GPU's number.
        gpu: i32,
    },
    /// libibverbs.
    Verbs,
    /// libmlx5.
    Mlx5,
    /// A ConnectX card.
    Card {
        /// Its name, and maybe its port: `mlx5_0/1`.
        #[arg(value_parser = |text: &str| text.parse::<Card>().map_err(|()| "expected DEVICE or DEVICE/PORT"))]
        card: Card,
        /// Entry of the GID table.
        #[arg(long)]
        gid_index: Option<u32>,
        /// Entry of the partition key table.
        #[arg(long, default_value_t = 0)]
        pkey_index: u16,
        /// The GPU that is to post to it.
        #[arg(long)]
        gpu: Option<i32>,
    },
}

impl Probe {
    /// Runs it, in this process.
    pub fn run(&self) {
        match self {
            Self::Cuda => cuda::probe(),
            Self::Export { gpu } => cuda::probe_export(*gpu),
            Self::Verbs => libraries::probe(Library::Verbs),
            Self::Mlx5 => libraries::probe(Library::Mlx5),
            Self::Card { card, gid_index, pkey_index, gpu } => card::probe(card, *gid_index, *pkey_index, *gpu),
        }
    }
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The release of this program.
    version: &'static str,
    /// Whether this machine has what the configuration requires.
    ready: bool,
    /// How long it took.
    seconds: f64,
    /// The paths between PEs that this machine has.
    paths: Vec<Verdict>,
    /// What each probe found.
    findings: Vec<Finding>,
}

/// Returns what a configuration wants of the machine.
fn wants(config: &Config) -> Wants {
    let gpu = match config.device() {
        Device::Cpu => Want::No,
        Device::Auto => Want::IfThere,
        Device::Cuda => Want::Must,
    };
    let card = match (config.hca(), config.transport()) {
        (Hca::Soft | Hca::Null, _) | (_, Transport::P2p) => Want::No,
        (Hca::Auto, _) => Want::IfThere,
        (Hca::Mlx5 { .. } | Hca::Verbs { .. }, _) => Want::Must,
    };
    Wants { gpu, card, mlx5: !matches!(config.hca(), Hca::Verbs { .. }) }
}

/// Looks at everything.
pub fn examine(config: Result<Config, ConfigError>, root: &Root, limit: Duration) -> Report {
    let begun = Instant::now();
    // They take the most time.
    let cuda = Guarded::start(&["cuda"], limit);
    let export = Guarded::start(&["export", "0"], limit);
    let verbs = Guarded::start(&["verbs"], limit);
    let mlx5 = Guarded::start(&["mlx5"], limit);

    let mut findings = Vec::new();
    let config = match config {
        Ok(config) => {
            let given = config.settings().filter(|(_, _, origin)| *origin != oxshmem::config::Origin::Default).count();
            findings.push(match Tuning::of_config(&config) {
                Ok(_) => Finding::ok("configuration", format!("{given} variables are set, all are valid")),
                Err(error) => {
                    let remedy = "correct the file, measure another one with oxshmem-tune, or unset OXSHMEM_TUNING";
                    Finding::bad("configuration", Outcome::Fail, error.to_string(), remedy)
                }
            });
            config
        }
        Err(error) => {
            let remedy = "correct the variable; docs/environment.md lists them all. What follows is for the defaults";
            findings.push(Finding::bad("configuration", Outcome::Fail, error.to_string(), remedy));
            Config::default()
        }
    };
    let wants = wants(&config);
    let topology = Topology::read(&root.at("/sys")).map_err(|error| error.to_string());
    let known = topology.as_ref().ok();
    let any_device = known.is_some_and(|topology| !topology.devices().is_empty());

    let limits = Limits::own();
    let needs = Needs { chunk: config.heap_chunk().0, heap: config.heap_max().0 };
    findings.push(process::sharing());
    findings.extend(process::confinement(root, wants));
    findings.push(process::cgroup(root, needs));
    findings.push(process::shm(root, process::shm_bytes()));

    let bus = gpu::on_bus(root, wants);
    let gpu_on_bus = bus.result == Outcome::Ok || root.exists("/proc/driver/nvidia/version");
    findings.push(bus);
    findings.push(gpu::kernel_driver(root, wants));
    findings.extend(gpu::nodes(root, wants));
    let cuda: Facts<CudaFact> = cuda.finish();
    let seen = Seen::of(&cuda);
    findings.extend(gpu::library(&cuda, wants, gpu_on_bus, oxshmem::device::cuda::OLDEST_DRIVER));
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    findings.extend(gpu::gpus(&cuda, wants, &oxshmem::build_info().ptx, visible.as_deref()));
    findings.extend(gpu::peers(&seen, root, known));
    // What cards need of GPUs and of limits matters where there is a card, or has to be one.
    let near_card = if any_device || wants.card == Want::Must { wants } else { Wants { card: Want::No, ..wants } };
    findings.extend(gpu::export(&export.finish(), &seen, root, near_card));
    findings.push(gpu::doorbell(root, near_card));
    findings.push(gpu::iommu(root, &seen, near_card));

    findings.push(rdma::on_bus(root, wants));
    findings.extend(rdma::devices(&topology, root, wants));
    findings.push(rdma::modules(root, known, wants));
    findings.extend(rdma::nodes(root, known, wants));
    findings.push(rdma::kernel(root, any_device, wants));
    let verbs: Facts<LibraryFact> = verbs.finish();
    findings.extend(rdma::library(Library::Verbs, &verbs, any_device, wants));
    let mlx5_wants = if wants.mlx5 { wants } else { Wants { card: Want::No, ..wants } };
    let any_mlx5 = known.is_some_and(|topology| topology.devices().iter().any(DeviceEntry::is_mlx5));
    findings.extend(rdma::library(Library::Mlx5, &mlx5.finish(), any_mlx5, mlx5_wants));
    findings.extend(rdma::ports(root, known, wants));
    findings.extend(rdma::gids(root, known, &config, wants));
    let selected = match config.topology().is_some().then(|| root.machine(&config)) {
        None => rdma::selection(known, &seen.gpus, &config, wants),
        Some(Ok(described)) => rdma::selection(Some(&described), &seen.gpus, &config, wants),
        Some(Err(error)) => {
            let remedy = "correct the file, or unset OXSHMEM_TOPOLOGY";
            Finding::bad("rdma.selection", Outcome::Fail, error, remedy).into()
        }
    };
    findings.extend(selected.findings);
    if wants.mlx5 && wants.card != Want::No {
        // Each card once, with the first GPU that it falls to; side by side.
        let guarded: Vec<_> = selected
            .cards
            .iter()
            .map(|(card, gpu)| {
                let arguments = card::arguments(card, &config, *gpu);
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                (card.to_string(), gpu.is_some(), Guarded::start(&arguments, limit))
            })
            .collect();
        for (name, on_gpu, guarded) in guarded {
            findings.extend(card::judge(&name, &guarded.finish(), wants, (on_gpu, config.ibgda_doorbell_record())));
        }
    }
    findings.push(process::memlock(limits, needs, near_card, process::may_lock(root)));
    let peers = std::thread::available_parallelism().map_or(1, |count| count.get() as u64).max(seen.gpus.len() as u64);
    findings.push(process::files(limits, needs, peers.min(64)));

    let paths = verdict::verdicts(&findings, &seen, any_device, any_mlx5);
    let ready = findings.iter().all(|finding| finding.result != Outcome::Fail);
    Report { version: env!("CARGO_PKG_VERSION"), ready, seconds: begun.elapsed().as_secs_f64(), paths, findings }
}

impl Report {
    /// Returns whether this machine has what the configuration requires.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Returns it as text for people.
    pub fn text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        // Writing to a string cannot fail.
        for finding in &self.findings {
            let subject = if finding.subject.is_empty() { String::new() } else { format!("{}: ", finding.subject) };
            let _ = writeln!(text, "{:<4}  {:<18}  {subject}{}", finding.result.name(), finding.probe, finding.reason);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "{:<4}  {:<18}  -> {remedy}", "", "");
            }
        }
        let _ = writeln!(text, "\nPaths between PEs:");
        for verdict in &self.paths {
            let _ = writeln!(text, "  {:<28}  {:<12}  {}", verdict.path, verdict.state.name(), verdict.reason);
        }
        let count = |result| self.findings.iter().filter(|finding| finding.result == result).count();
        let verdict = if self.ready { "ready" } else { "NOT READY" };
        let _ = write!(
            text,
            "\n{verdict}: {} ok, {} warnings, {} failures, {} skipped, in {:.2} s",
            count(Outcome::Ok),
            count(Outcome::Warn),
            count(Outcome::Fail),
            count(Outcome::Skip),
            self.seconds
        );
        text
    }
}
