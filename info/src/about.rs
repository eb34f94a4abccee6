//! Version, build, configuration and devices.

use std::fmt::Write as _;
use std::time::Duration;

use oxshmem::Config;
use oxshmem::config::{Origin, Variable};
use serde::Serialize;

use crate::devices::Devices;
use crate::doctor::Root;

/// Everything that `oxshmem-info` shows without a subcommand.
#[derive(Debug, Serialize)]
pub struct About {
    version: &'static str,
    build: Build,
    configuration: Vec<Setting>,
    devices: Devices,
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
    pub fn new(config: &Config, root: &Root, limit: Duration) -> Self {
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
        Self { version: env!("CARGO_PKG_VERSION"), build, configuration: configuration.collect(), devices }
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
        let _ = write!(text, "\n{}", self.devices.text());
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
