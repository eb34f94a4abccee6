//! What cargo tells a build script.

use std::env::VarError;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::Error;

/// Files that are there where this machine has an NVIDIA GPU: of the driver for Linux, and of the
/// Windows Subsystem for Linux.
const GPU_MARKS: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/dxg"];

/// The package whose build script runs.
#[derive(Debug, Clone)]
pub(crate) struct Cargo {
    /// Where results go.
    pub out_dir: PathBuf,
    /// The package's folder.
    pub manifest_dir: PathBuf,
    /// The package's name.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// The triple compiled for.
    pub target: String,
    /// The triple compiled on.
    pub host: String,
    /// How many compilers may run at a time.
    pub jobs: usize,
    /// The profile is `release`, or inherits from it.
    pub release: bool,
    /// This machine has an NVIDIA GPU.
    pub has_gpu: bool,
}

impl Cargo {
    /// Reads the variables that cargo sets for build scripts.
    pub fn from_env() -> Result<Self, Error> {
        let text = |name| {
            std::env::var(name).map_err(|error| match error {
                VarError::NotPresent => Error::NotABuildScript(name),
                VarError::NotUnicode(value) => Error::NotUnicode { name, value },
            })
        };
        Ok(Self {
            out_dir: text("OUT_DIR")?.into(),
            manifest_dir: text("CARGO_MANIFEST_DIR")?.into(),
            package: text("CARGO_PKG_NAME")?,
            version: text("CARGO_PKG_VERSION")?,
            target: text("TARGET")?,
            host: text("HOST")?,
            jobs: text("NUM_JOBS")?.parse().unwrap_or(1),
            release: text("PROFILE")? == "release",
            has_gpu: GPU_MARKS.iter().any(|path| Path::new(path).exists()),
        })
    }

    /// Returns a folder that all build scripts of this target directory share, whatever profile and
    /// features they run for: `oxshmem-modules` beside the profiles' folders, or beside the
    /// triple's where cargo was given one. None if `OUT_DIR` is not where cargo puts it.
    pub fn shared_dir(&self) -> Option<PathBuf> {
        let build = self.out_dir.ancestors().find(|dir| dir.file_name() == Some(OsStr::new("build")))?;
        let profiles = build.parent().and_then(Path::parent)?;
        let root = if profiles.ends_with(&self.target) { profiles.parent()? } else { profiles };
        Some(root.join("oxshmem-modules"))
    }
}
