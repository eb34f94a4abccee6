//! How much memory each PE of a job takes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use oxshmem::config::Config;
use oxshmem::{Error, MemoryKind, Operations, Pe};
use serde::Serialize;

use crate::job;
use crate::output::show;

/// What each PE says: for each kind bytes of the device, then of the host.
const WORDS: usize = 2 * MemoryKind::ALL.len();

/// Bytes, by where they are.
#[derive(Debug, Serialize)]
struct Bytes {
    device: u64,
    host: u64,
}

/// What PEs take after init. The heap has grown to what this program itself needs.
#[derive(Debug, Serialize)]
struct Report {
    /// By PE, then by kind.
    pes: Vec<BTreeMap<&'static str, Bytes>>,
}

/// Starts PEs, or is one.
pub fn run(config: Config, npes: u32, json: bool) -> ExitCode {
    job::start("memory", config, npes, json, pe)
}

/// Tells PE 0 what this PE takes; PE 0 prints it. Returns `false` if it cannot be printed.
fn pe(config: Config, json: bool) -> Result<bool, Error> {
    config.init_log();
    let pe = Pe::with_config(config)?;
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let mine: Vec<u64> = pe.memory().iter().flat_map(|(_, bytes)| [bytes.device, bytes.host]).collect();
    let all = pe.alloc::<u64>(WORDS * n_pes)?;
    pe.put(all.view(me * WORDS..), &mine, 0)?;
    pe.barrier_all()?;
    let mut shown = true;
    if me == 0 {
        let told = pe.read(all.view(..WORDS * n_pes))?;
        let of_pe = |words: &[u64]| {
            let bytes = words.chunks(2).map(|pair| Bytes { device: pair[0], host: pair[1] });
            MemoryKind::ALL.map(MemoryKind::name).into_iter().zip(bytes).collect()
        };
        let report = Report { pes: told.chunks(WORDS).map(of_pe).collect() };
        shown = show(json, &report, || report.text());
    }
    pe.free(all)?;
    pe.finalize()?;
    Ok(shown)
}

impl Report {
    /// Returns it as a table for people, in KiB: memory of the device, and after `+` of the host.
    fn text(&self) -> String {
        let mut text = String::from("KiB of the device + of the host\n\n      ");
        // Writing to a string cannot fail.
        for kind in MemoryKind::ALL {
            let _ = write!(text, "{kind:>14}");
        }
        let _ = write!(text, "{:>16}", "all");
        for (pe, kinds) in self.pes.iter().enumerate() {
            let _ = write!(text, "\nPE {pe:<3}");
            let cell = |device: u64, host: u64| match host {
                0 => format!("{}", device.div_ceil(1024)),
                _ => format!("{}+{}", device.div_ceil(1024), host.div_ceil(1024)),
            };
            let (mut device, mut host) = (0, 0);
            for bytes in MemoryKind::ALL.map(|kind| kinds.get(kind.name())).into_iter().flatten() {
                let _ = write!(text, "{:>14}", cell(bytes.device, bytes.host));
                (device, host) = (device + bytes.device, host + bytes.host);
            }
            let _ = write!(text, "{:>16}", cell(device, host));
        }
        text
    }
}
