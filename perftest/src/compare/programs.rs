//! The two programs: where they are, or how theirs is built.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the programs. Theirs is built from them on the spot, since NVSHMEM's device
/// library is linked into it.
const SOURCES: [(&str, &str); 10] = [
    ("device_layer.h", include_str!("../../compare/device_layer.h")),
    ("host_calls.h", include_str!("../../compare/host_calls.h")),
    ("host_layer.h", include_str!("../../compare/host_layer.h")),
    ("kernels.h", include_str!("../../compare/kernels.h")),
    ("contexts.h", include_str!("../../compare/contexts.h")),
    ("jacobi.h", include_str!("../../compare/jacobi.h")),
    ("moe.h", include_str!("../../compare/moe.h")),
    ("stencil.h", include_str!("../../apps/jacobi/stencil.h")),
    (ROWS, include_str!("../../compare/main.cu")),
    (COLLECTIVES, include_str!("../../compare/collectives.cu")),
];

/// The source of the program that runs rows of kernels and calls.
pub const ROWS: &str = "main.cu";
/// The source of the program that times collectives on streams.
pub const COLLECTIVES: &str = "collectives.cu";

/// Our program's name; `scripts/compare` builds it beside the driver.
pub const OURS: &str = "compare-oxshmem";

/// An NVSHMEM installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvshmem {
    /// Headers.
    pub include: PathBuf,
    /// Libraries.
    pub lib: PathBuf,
    /// The shared library of the host API, which wheels have under its version alone.
    pub host_library: PathBuf,
}

impl Nvshmem {
    /// Returns the installation at `root`, or why it is none.
    ///
    /// # Errors
    /// What is missing.
    pub fn at(root: &Path) -> Result<Self, String> {
        let (include, lib) = (root.join("include"), root.join("lib"));
        let host_library = lib.join("libnvshmem_host.so.3");
        for file in [&include.join("nvshmem.h"), &lib.join("libnvshmem_device.a"), &host_library] {
            if !file.exists() {
                return Err(format!("NVSHMEM at {}: {} is missing", root.display(), file.display()));
            }
        }
        Ok(Self { include, lib, host_library })
    }

    /// Returns the installation that is named, else that of NVSHMEM_HOME, else the package of
    /// `python3`; or why there is none.
    ///
    /// # Errors
    /// Where it was looked for.
    pub fn find(named: Option<&Path>) -> Result<Self, String> {
        if let Some(root) = named {
            return Self::at(root);
        }
        if let Some(root) = std::env::var_os("NVSHMEM_HOME") {
            return Self::at(Path::new(&root));
        }
        let script =
            "import importlib.util as u; print(list(u.find_spec('nvidia.nvshmem').submodule_search_locations)[0])";
        match Command::new("python3").args(["-c", script]).output() {
            Ok(output) if output.status.success() => {
                Self::at(Path::new(String::from_utf8_lossy(&output.stdout).trim_end()))
            }
            _ => Err(
                "NVSHMEM is not installed: no --nvshmem, no NVSHMEM_HOME, and python3 has no package nvidia.nvshmem"
                    .to_owned(),
            ),
        }
    }
}

/// Returns nvcc: the one that is named, else of CUDA_HOME, else on PATH, else where CUDA installs
/// itself.
///
/// # Errors
/// Where it was looked for.
pub fn find_nvcc(named: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(nvcc) = named {
        return Ok(nvcc.to_owned());
    }
    let home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = home.into_iter().chain(std::env::split_paths(&path)).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders
        .map(|folder| folder.join("nvcc"))
        .find(|nvcc| nvcc.is_file())
        .ok_or_else(|| "nvcc is not installed: no --nvcc, none in CUDA_HOME, on PATH or in /usr/local/cuda".to_owned())
}

/// Returns our program: the one that is named, or the one beside the driver.
///
/// # Errors
/// It is not there.
pub fn find_ours(named: Option<&Path>) -> Result<PathBuf, String> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let driver = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
            driver.with_file_name(OURS)
        }
    };
    if path.is_file() { Ok(path) } else { Err(format!("{} is missing; scripts/compare builds it", path.display())) }
}

/// Builds their program from `source` in `folder`, with the options of ours and what NVSHMEM's
/// device library needs.
///
/// # Errors
/// The file that could not be written, or what the compiler said.
pub fn build_theirs(nvcc: &Path, nvshmem: &Nvshmem, folder: &Path, source: &str) -> Result<PathBuf, String> {
    let failed = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
    for (name, text) in SOURCES {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    }
    let program = folder.join("compare-nvshmem");
    let mut include = OsString::from("-I");
    include.push(&nvshmem.include);
    let mut rpath = OsString::from("-rpath,");
    rpath.push(&nvshmem.lib);
    let mut search = OsString::from("-L");
    search.push(&nvshmem.lib);
    let output = Command::new(nvcc)
        .args(["-std=c++17", "-O3", "-arch=native", "-rdc=true", "-DCOMPARE_NVSHMEM"])
        .args([include, folder.join(source).into(), "-o".into(), program.clone().into(), search])
        .args(["-lnvshmem_device".into(), "-Xlinker".into(), nvshmem.host_library.clone().into_os_string()])
        .args(["-Xlinker".into(), rpath])
        .output()
        .map_err(|error| failed(nvcc, &error))?;
    if output.status.success() {
        Ok(program)
    } else {
        Err(format!("{} failed:\n{}", nvcc.display(), String::from_utf8_lossy(&output.stderr).trim_end()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let error = Nvshmem::find(Some(Path::new("/nonexistent"))).unwrap_err();
        assert!(error.contains("/nonexistent/include/nvshmem.h is missing"), "{error}");
        let error = find_ours(Some(Path::new("/nonexistent/ours"))).unwrap_err();
        assert!(error.contains("/nonexistent/ours") && error.contains("scripts/compare"), "{error}");
        assert!(find_ours(None).is_err_and(|error| error.contains(OURS)));
        assert_eq!(find_nvcc(Some(Path::new("/a/nvcc"))).unwrap(), Path::new("/a/nvcc"));
    }
}
