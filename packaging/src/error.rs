//! What can go wrong.

use std::path::PathBuf;

/// Why a list cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Cargo did not start, or failed.
    #[error("cargo {0} failed: {1}")]
    Cargo(&'static str, String),
    /// Cargo printed what has no meaning here.
    #[error("cargo {0} printed {1:?}, which is not understood; this program is for cargo 1.90 and newer")]
    Output(&'static str, String),
    /// A crate declares no licence.
    #[error("{0} {1} declares no licence; leave the crate out, or ask its authors for one")]
    NoLicence(String, String),
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
}
