//! Version, build, configuration and devices.

use std::fmt::Write as _;
use std::time::Duration;

use oxshmem::config::{ConfigError, Origin, Variable};
use oxshmem::{Config, Tuning};
use serde::Serialize;

use crate::devices::Devices;
use crate::doctor::Root;

/// Everything that `oxshmem-info` shows without a subcommand.
#[derive(Debug, Serialize)]
pub struct About {
    version: &'static str,
    build: Build,
    configuration: Vec<Setting>,
    collectives: Collectives,
    devices: Devices,
}

/// Which algorithms collectives use.
#[derive(Debug, Serialize)]
struct Collectives {
    /// The file of `OXSHMEM_TUNING`, if there is one, and its lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    lines: Vec<String>,
    teams: Vec<TeamAlgorithms>,
}

/// What teams of a shape use.
#[derive(Debug, Serialize)]
struct TeamAlgorithms {
    nodes: usize,
    n_pes: usize,
    /// What one block uses, as `OXSHMEM_COLLECTIVES` would say it.
    algorithms: String,
    /// What is used on streams and from the host, with the fewest and the most blocks in brackets.
    streams: String,
}

impl Collectives {
    /// Nodes and PEs of the teams that are shown.
    const SHAPES: [(usize, usize); 5] = [(1, 2), (1, 4), (1, 8), (2, 4), (2, 16)];

    fn new(config: &Config) -> Result<Self, ConfigError> {
        let tuning = Tuning::of_config(config)?;
        let of = |(nodes, n_pes)| {
            let (algorithms, streams) = (tuning.algorithms(config, nodes, n_pes), tuning.plans(config, nodes, n_pes));
            TeamAlgorithms { nodes, n_pes, algorithms, streams }
        };
        let file = config.tuning().as_ref().map(|path| path.display().to_string());
        Ok(Self { file, lines: tuning.lines(), teams: Self::SHAPES.map(of).into() })
    }

    fn text(&self) -> String {
        let source = match &self.file {
            Some(file) => format!("{file}, {} lines", self.lines.len()),
            None => "the library's choice; oxshmem-tune measures this machine".to_owned(),
        };
        let mut text = format!("Collectives ({source}):\n");
        for TeamAlgorithms { nodes, n_pes, algorithms, streams } in &self.teams {
            let nodes = if *nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
            let shape = format!("{n_pes} PEs on {nodes}");
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {shape:<17} {:<18}  on streams and from the host, [blocks]", "one block");
            for (one, planned) in algorithms.split(',').zip(streams.split(',')) {
                let (collective, steps) = one.split_once('=').unwrap_or((one, ""));
                let (_, planned) = planned.split_once('=').unwrap_or(("", planned));
                let _ = writeln!(text, "    {collective:<15} {steps:<18}  {planned}");
            }
        }
        text
    }
}

/// What the program was built from.
#[derive(Debug, Serialize)]
struct Build {
    abi_version: u32,
    profile: &'static str,
    target: String,
    /// The CUDA compiler's release; none if there was none.
    cuda: Option<String>,
    /// Architectures of the library's modules, as PTX and as machine code.
    ptx: Vec<String>,
    cubins: Vec<String>,
}

/// A variable with its value.
#[derive(Debug, Serialize)]
struct Setting {
    name: &'static str,
    value: String,
    /// `default`, `environment`, `derived`.
    origin: &'static str,
    /// What a value that is chosen later is chosen from.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl About {
    /// Looks at this build, the configuration and the machine.
    ///
    /// # Errors
    /// A file that the configuration names is wrong.
    pub fn new(config: &Config, root: &Root, limit: Duration) -> Result<Self, ConfigError> {
        let collectives = Collectives::new(config)?;
        let info = oxshmem::build_info();
        let names = |prefix: &str, list: &[u32]| list.iter().map(|arch| format!("{prefix}_{arch}")).collect();
        let devices = Devices::look(root, config, limit);
        let build = Build {
            abi_version: info.abi_version,
            profile: info.profile,
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            cuda: info.cuda,
            ptx: names("compute", &info.ptx),
            cubins: names("sm", &info.cubins),
        };
        let configuration = config.settings().map(|(variable, value, origin)| {
            let note = derived(config, variable, &value, &devices);
            let origin = match origin {
                Origin::Environment => "environment",
                Origin::Builder => "program",
                Origin::Default if note.is_some() => "derived",
                Origin::Default => "default",
            };
            Setting { name: variable.name, value, origin, note }
        });
        let configuration = configuration.collect();
        Ok(Self { version: env!("CARGO_PKG_VERSION"), build, configuration, collectives, devices })
    }

    /// Returns it as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let build = &self.build;
        let list = |list: &[String]| if list.is_empty() { "none".to_owned() } else { list.join(" ") };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "oxshmem {} (ABI {}, {} build, {})",
            self.version, build.abi_version, build.profile, build.target
        );
        let compiler = build.cuda.as_deref().unwrap_or("none: no device code for GPUs");
        let _ = writeln!(text, "CUDA compiler  {compiler}");
        let _ = writeln!(text, "device code    PTX {}; cubins {}\n", list(&build.ptx), list(&build.cubins));
        let _ = writeln!(text, "Configuration:");
        for Setting { name, value, origin, note } in &self.configuration {
            let value = if value.is_empty() { "-" } else { value };
            let note = note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
            let _ = writeln!(text, "  {name:<26}  {value:<12}  {origin}{note}");
        }
        let _ = write!(text, "\n{}\n{}", self.collectives.text(), self.devices.text());
        text
    }
}

/// Returns what becomes of a value that the library chooses itself.
fn derived(config: &Config, variable: &Variable, value: &str, devices: &Devices) -> Option<String> {
    match (variable.name, value) {
        ("OXSHMEM_DEVICE", "auto") => Some(match devices.gpu_count() {
            0 => "cpu, no GPU is seen".to_owned(),
            count => format!("cuda, {count} GPUs are seen"),
        }),
        ("OXSHMEM_HCA", "auto") => Some(match devices.usable_mlx5() {
            0 => "soft, no usable ConnectX is seen".to_owned(),
            _ => "mlx5 if every PE has such a card, else soft".to_owned(),
        }),
        ("OXSHMEM_QP_DEPTH", "auto") => {
            let depths = [2, 64, 1024].map(|n_pes| format!("{} with {n_pes} PEs", config.send_queue_depth(n_pes)));
            Some(depths.join(", "))
        }
        ("OXSHMEM_SOFT_ENGINE", "auto") => Some(
            if devices.gpu_count() == 0 {
                "thread"
            } else {
                "kernel on the cuda device, and copies while it finds no room"
            }
            .to_owned(),
        ),
        ("OXSHMEM_IB_GID_INDEX", "auto") => Some("see rdma.gid of oxshmem-info doctor".to_owned()),
        _ => None,
    }
}
