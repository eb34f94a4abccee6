//! Where a module is compiled, and how its results come to `OUT_DIR`.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::cargo::Cargo;
use crate::step;

/// A module's folder, this process's alone as long as this lives.
#[derive(Debug)]
pub(crate) struct Work {
    /// The folder.
    pub dir: PathBuf,
    _lock: Option<File>,
}

impl Work {
    /// Returns the folder of module `name`, shared with all build scripts that compile it with the
    /// same C++ compiler and options, which `identity` stands for; waits for those that are in it.
    /// `OUT_DIR` where no folder can be shared.
    pub fn open(cargo: &Cargo, name: &str, identity: u64) -> Result<Self, Error> {
        let Some(shared) = cargo.shared_dir() else {
            return Ok(Self { dir: cargo.out_dir.clone(), _lock: None });
        };
        let dir = shared.join(format!("{}-{name}-{identity:016x}", cargo.package));
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let path = dir.join("lock");
        let lock = File::create(&path).map_err(Error::file(&path))?;
        lock.lock().map_err(Error::file(&path))?;
        Ok(Self { dir, _lock: Some(lock) })
    }

    /// Copies a result to `out_dir`; where it is then.
    pub fn publish(&self, result: &Path, out_dir: &Path) -> Result<PathBuf, Error> {
        let target = out_dir.join(result.file_name().unwrap_or_default());
        if target != result {
            step::write_if_changed(&target, &std::fs::read(result).map_err(Error::file(result))?)?;
        }
        Ok(target)
    }
}
