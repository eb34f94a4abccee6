//! How each PE of a job reaches the others.

use std::fmt::Write as _;
use std::process::ExitCode;

use oxshmem::config::Config;
use oxshmem::{Error, Operations, Path, Pe};
use serde::{Deserialize, Serialize};

use crate::job;
use crate::output::show;

/// What one PE says of itself, at most this many bytes of JSON.
const RECORD_BYTES: usize = 1024;

/// A PE.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pe: usize,
    host: String,
    device: String,
    hca: Option<String>,
}

/// The matrix of paths.
#[derive(Debug, Serialize)]
struct Matrix {
    pes: Vec<Record>,
    /// By PE, then by peer: `own`, `p2p`, `ibgda`, `ibrc`.
    paths: Vec<Vec<&'static str>>,
    /// What PE 0 tried to open and use its HCA.
    attempts: Vec<String>,
}

/// Starts PEs, or is one.
pub fn run(config: Config, npes: u32, json: bool) -> ExitCode {
    job::start("paths", config, npes, json, pe)
}

fn name(path: Option<Path>) -> &'static str {
    match path {
        Some(Path::Own) => "own",
        Some(Path::LoadStore) => "p2p",
        Some(Path::Ibgda) => "ibgda",
        Some(Path::Ibrc) => "ibrc",
        // The enumeration may grow.
        _ => "unknown",
    }
}

const NAMES: [&str; 5] = ["own", "p2p", "ibgda", "ibrc", "unknown"];

/// Tells PE 0 what this PE has; PE 0 prints the matrix. Returns `false` if it cannot be printed.
fn pe(config: Config, json: bool) -> Result<bool, Error> {
    config.init_log();
    let pe = Pe::with_config(config)?;
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let device = match pe.gpu() {
        Some(gpu) => format!("GPU {}, {}, {}", gpu.ordinal, gpu.name, gpu.pci),
        None => pe.device_name().to_owned(),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut record = Record { pe: me, host, device, hca: pe.hca_name().map(str::to_owned) };
    // Names of hosts and GPUs are short; one that is not is cut.
    for text in [&mut record.host, &mut record.device] {
        *text = text.chars().take(96).collect();
    }
    let mut bytes = serde_json::to_vec(&record).unwrap_or_default();
    bytes.resize(RECORD_BYTES, b' ');
    let row: Vec<u8> = (0..n_pes)
        .map(|peer| (0..).zip(NAMES).find(|(_, known)| *known == name(pe.path(peer))).map_or(0u8, |(number, _)| number))
        .collect();

    let records = pe.alloc::<u8>(RECORD_BYTES * n_pes)?;
    let rows = pe.alloc::<u8>(n_pes * n_pes)?;
    pe.put(records.view(me * RECORD_BYTES..), &bytes, 0)?;
    pe.put(rows.view(me * n_pes..), &row, 0)?;
    pe.barrier_all()?;
    let mut shown = true;
    if me == 0 {
        let records = pe.read(records.view(..RECORD_BYTES * n_pes))?;
        let rows = pe.read(rows.view(..n_pes * n_pes))?;
        let matrix = Matrix {
            pes: records.chunks(RECORD_BYTES).filter_map(|record| serde_json::from_slice(record).ok()).collect(),
            attempts: pe.hca_attempts().iter().map(ToString::to_string).collect(),
            paths: rows
                .chunks(n_pes)
                .map(|row| row.iter().map(|path| NAMES[usize::from(*path) % NAMES.len()]).collect())
                .collect(),
        };
        shown = show(json, &matrix, || matrix.text());
    }
    pe.free(records)?;
    pe.free(rows)?;
    pe.finalize()?;
    Ok(shown)
}

impl Matrix {
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for Record { pe, host, device, hca } in &self.pes {
            let hca = hca.as_ref().map_or("no network is needed".to_owned(), |hca| format!("HCA {hca}"));
            let _ = writeln!(text, "PE {pe:<4} {host}, {device}, {hca}");
        }
        let _ = write!(text, "\n{:>8}", "to PE");
        for pe in 0..self.paths.len() {
            let _ = write!(text, "{pe:>7}");
        }
        for (pe, row) in self.paths.iter().enumerate() {
            let _ = write!(text, "\n{pe:>8}");
            for path in row {
                let _ = write!(text, "{path:>7}");
            }
        }
        if !self.attempts.is_empty() {
            let _ = write!(text, "\n\nTried by PE 0:\n  {}", self.attempts.join("\n  "));
        }
        text
    }
}
