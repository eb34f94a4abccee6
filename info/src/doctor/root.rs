//! Files of the system, below a root that tests choose.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use oxshmem::config::Config;
use oxshmem_hca::topology::Topology;

/// Where `/sys`, `/proc` and `/dev` are.
#[derive(Debug, Clone)]
pub struct Root {
    path: PathBuf,
    /// What this user may not read; the tests' user may read everything.
    #[cfg(test)]
    pub denied: Vec<&'static str>,
}

/// Why a file has no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// There is no such file.
    Absent,
    /// This user may not read it.
    Denied,
    /// Something else.
    Other(String),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("it does not exist"),
            Self::Denied => f.write_str("permission denied"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// The longest text of interest; files of the system are shorter.
const LONGEST: u64 = 1 << 20;

impl Root {
    /// Returns the files below `path`, which stands for `/`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            #[cfg(test)]
            denied: Vec::new(),
        }
    }

    /// Returns the machine that PEs see: what sysfs says, or what `OXSHMEM_TOPOLOGY` describes in
    /// its place.
    ///
    /// # Errors
    /// It cannot be read; the reason in one line.
    pub fn machine(&self, config: &Config) -> Result<Topology, String> {
        match config.topology() {
            Some(file) => Topology::from_file(file).map_err(|error| error.to_string()),
            None => Topology::read(&self.at("/sys")).map_err(|error| format!("sysfs cannot be read: {error}")),
        }
    }

    /// Returns where the file `name`, an absolute path, is.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name.trim_start_matches('/'))
    }

    fn allowed(&self, name: &str) -> Result<PathBuf, Missing> {
        #[cfg(test)]
        if self.denied.iter().any(|denied| name.starts_with(denied)) {
            return Err(Missing::Denied);
        }
        Ok(self.at(name))
    }

    /// Returns a file's text, without white space at its ends; what is not UTF-8 is replaced.
    pub fn text(&self, name: &str) -> Result<String, Missing> {
        use io::Read as _;
        let mut bytes = Vec::new();
        fs::File::open(self.allowed(name)?)?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns a folder's entries, in the order of their names.
    pub fn entries(&self, name: &str) -> Result<Vec<String>, Missing> {
        let mut names: Vec<String> = fs::read_dir(self.allowed(name)?)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Returns whether there is such a file.
    pub fn exists(&self, name: &str) -> bool {
        self.at(name).exists()
    }

    /// Checks whether this user may read and write the file, a device node.
    pub fn usable(&self, name: &str) -> Result<(), Missing> {
        fs::File::options().read(true).write(true).open(self.allowed(name)?)?;
        Ok(())
    }

    /// Returns the last part of what a link points to.
    pub fn link(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.at(name)).ok()?;
        Some(Path::new(&target).file_name()?.to_string_lossy().into_owned())
    }
}

/// A folder of recorded files, for tests: `PATH = TEXT` lines, `PATH -> TARGET` for links, `PATH/`
/// for folders.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod recorded {
    use super::Root;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug)]
    pub struct Recorded {
        folder: PathBuf,
        pub root: Root,
    }

    impl Recorded {
        pub fn new(files: &str) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("oxshmem-doctor-{}-{number}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            let recorded = Self { root: Root::new(&folder), folder };
            recorded.add(files);
            recorded
        }

        pub fn add(&self, files: &str) {
            for line in files.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
                let parent = |path: &str| {
                    let path = self.root.at(path);
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    path
                };
                if let Some((path, target)) = line.split_once(" -> ") {
                    std::os::unix::fs::symlink(target, parent(path)).unwrap();
                } else if let Some((path, text)) = line.split_once(" =") {
                    let text = text.trim_start().replace("\\n", "\n").replace("\\t", "\t");
                    fs::write(parent(path), text + "\n").unwrap();
                } else {
                    fs::create_dir_all(self.root.at(line.trim_end_matches('/'))).unwrap();
                }
            }
        }
    }

    impl Drop for Recorded {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
