//! Folders for the files of a run, which go away with it.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A folder that this user alone can enter, and that goes away with this value.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder that was not there before among the system's temporary ones, named after the
    /// program and its process.
    ///
    /// # Errors
    /// Fails if the system refuses the folder.
    pub fn new(program: &str) -> Result<Self, Error> {
        /// A process that was killed may have left a folder of this number.
        const TRIES: usize = 100;
        let base = std::env::temp_dir().join(format!("{program}-{}", std::process::id()));
        let mut path = base.clone();
        for number in 1.. {
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => break,
                Err(source) if source.kind() == ErrorKind::AlreadyExists && number < TRIES => {
                    path = base.with_extension(number.to_string());
                }
                Err(source) => return Err(Error::Output { path, source }),
            }
        }
        Ok(Self(path))
    }

    /// Returns where the folder is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn each_is_new_private_and_goes_away() {
        let (one, other) = (Scratch::new("scratch-test").unwrap(), Scratch::new("scratch-test").unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.path().join("file"), "content").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }
}
