//! The files that a PE writes at finalize: counters and traces.

use std::path::Path;
use std::{fs, io};

use oxshmem_system::clock::{monotonic_ns, unix_ns};

use super::chrome::{self, Maker};
use crate::pe::Pe;

/// Writes what the configuration requests.
///
/// # Errors
/// The reason in one line, with the file.
pub(crate) fn write(pe: &Pe) -> Result<(), String> {
    let (wanted, folder) = (pe.config().profile(), pe.config().profile_dir());
    if wanted.counters {
        let counters = pe.counters().map_err(|error| format!("the counters are not read: {error}"))?;
        put(folder, &format!("counters-{}.json", pe.my_pe()), &counters.to_json())?;
    }
    if wanted.trace {
        let trace = pe.trace().map_err(|error| format!("the trace is not read: {error}"))?;
        let to_unix = unix_ns().saturating_sub(monotonic_ns());
        let maker = Maker { pe: pe.my_pe(), n_pes: pe.n_pes(), device: pe.device_name(), to_unix };
        put(folder, &format!("trace-{}.json", pe.my_pe()), &chrome::json(&maker, &trace).to_string())?;
    }
    Ok(())
}

/// Writes a file whole, or not at all: one of an earlier job stays until then.
fn put(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = folder.join(name);
    let partial = folder.join(format!("{name}.{}", std::process::id()));
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(&partial, text)?;
        fs::rename(&partial, &path)
    };
    write().map_err(|error| {
        // What was begun is of no use.
        drop(fs::remove_file(&partial));
        failed(&path, &error)
    })
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("{} is not written: {error}; OXSHMEM_PROFILE_DIR names the folder", path.display())
}
