//! Folder listings.

use std::path::{Path, PathBuf};

use crate::Error;

/// Returns all files under `dir`, sorted.
pub(crate) fn under(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).map_err(Error::file(&dir))? {
            let path = entry.map_err(Error::file(&dir))?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
