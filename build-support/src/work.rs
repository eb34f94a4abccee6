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
    /// `OUT_DIR` where no folder can be shared, also because its file system has no locks.
    pub fn open(cargo: &Cargo, name: &str, identity: u64) -> Result<Self, Error> {
        let own = || Self { dir: cargo.out_dir.clone(), _lock: None };
        let Some(shared) = cargo.shared_dir() else { return Ok(own()) };
        let dir = shared.join(format!("{}-{name}-{identity:016x}", cargo.package));
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let path = dir.join("lock");
        let lock = File::create(&path).map_err(Error::file(&path))?;
        match lock.lock() {
            Ok(()) => Ok(Self { dir, _lock: Some(lock) }),
            Err(error) if has_no_locks(&error) => Ok(own()),
            Err(error) => Err(Error::file(&path)(error)),
        }
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

/// Returns whether an error of `flock` says that the file system has no locks, as some network file
/// systems have none.
fn has_no_locks(error: &std::io::Error) -> bool {
    /// No locks available (errno.h); std has no kind for it.
    const ENOLCK: i32 = 37;
    error.kind() == std::io::ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

#[cfg(test)]
mod tests {
    use super::has_no_locks;

    #[test]
    fn a_file_system_without_locks_is_told_from_other_errors() {
        let without = |code: i32| has_no_locks(&std::io::Error::from_raw_os_error(code));
        // ENOSYS, EOPNOTSUPP and ENOLCK; EACCES, EIO and EBADF.
        assert_eq!([38, 95, 37].map(without), [true; 3]);
        assert_eq!([13, 5, 9].map(without), [false; 3]);
    }
}
