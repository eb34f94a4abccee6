//! The tracked files of the checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate is inside the checkout")
}

/// Returns the paths of all tracked files, relative to [`root`], that exist in the working tree.
///
/// # Errors
///
/// `git ls-files` cannot be run, or fails: the text says why.
pub fn files() -> Result<Vec<String>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git ls-files cannot be run: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.split('\0').filter(|name| root().join(name).is_file()).map(str::to_owned).collect())
}

/// Reads a tracked file. Bytes that are not UTF-8 are replaced.
///
/// # Errors
///
/// The file cannot be read: the text names it and says why.
pub fn read(path: &str) -> Result<String, String> {
    let bytes = std::fs::read(root().join(path)).map_err(|error| format!("{path} cannot be read: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The languages that the checks tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Rust.
    Rust,
    /// C, C++ and CUDA.
    Cpp,
    /// Shell scripts, Makefiles, CMake, Python, TOML and YAML.
    Hash,
    /// Markdown.
    Markdown,
}

impl Language {
    /// Returns the language of the file at `path`, or `None` if the checks leave it alone:
    /// generated bindings, licences, lock files and data.
    pub fn of(path: &str) -> Option<Self> {
        if path.contains("bindings") || path == "tests/prose/src/idioms.rs" {
            return None;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => Some(Self::Rust),
            Some("h" | "c" | "cpp" | "cu" | "cuh") => Some(Self::Cpp),
            Some("md") => Some(Self::Markdown),
            Some("toml" | "cmake" | "py" | "sh" | "yaml" | "yml") => Some(Self::Hash),
            Some("txt") if name == "CMakeLists.txt" => Some(Self::Hash),
            None if name == "Makefile" || path.starts_with("scripts/") || path.starts_with(".ci/") => Some(Self::Hash),
            _ => None,
        }
    }
}
