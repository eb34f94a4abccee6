//! The RDMA libraries, loaded in the process of a probe.

use oxshmem_hca::verbs::VerbsError;
use serde::{Deserialize, Serialize};

use super::cuda::loader;
use super::guard::tell;

/// What loading a library showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum LibraryFact {
    /// It cannot be loaded.
    NotLoaded {
        /// The loader's words.
        reason: String,
    },
    /// It is loaded.
    Loaded {
        /// From this file, links followed.
        file: String,
    },
    /// It is too old, or none of that kind.
    Refused {
        /// What it lacks.
        reason: String,
    },
    /// Devices that it can use, or why there are none.
    Devices {
        /// Their names.
        names: Result<Vec<String>, String>,
    },
}

/// A library of rdma-core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// libibverbs.
    Verbs,
    /// libmlx5.
    Mlx5,
}

impl Library {
    /// Returns the file that the loader looks for.
    pub fn file(self) -> &'static str {
        match self {
            Self::Verbs => "libibverbs.so.1",
            Self::Mlx5 => "libmlx5.so.1",
        }
    }

    /// Returns the probe's name.
    pub fn probe(self) -> &'static str {
        match self {
            Self::Verbs => "rdma.libibverbs",
            Self::Mlx5 => "rdma.libmlx5",
        }
    }
}

/// Runs the probes `verbs` and `mlx5`.
pub fn probe(library: Library) {
    // SAFETY: constructors of these libraries set up the library; what else one may do is why this
    // is a process of its own.
    let loaded = match unsafe { libloading::Library::new(library.file()) } {
        Ok(loaded) => loaded,
        Err(error) => {
            return tell(&LibraryFact::NotLoaded { reason: loader(&error) });
        }
    };
    tell(&LibraryFact::Loaded { file: mapped_from(library.file()) });
    // It stays loaded for its users.
    std::mem::forget(loaded);
    match library {
        Library::Verbs => match oxshmem_hca::verbs::device_names() {
            Err(error @ (VerbsError::OldLibrary { .. } | VerbsError::NoLibrary { .. })) => {
                tell(&LibraryFact::Refused { reason: error.to_string() });
            }
            names => tell(&LibraryFact::Devices { names: names.map_err(|error| error.to_string()) }),
        },
        Library::Mlx5 => {
            if let Err(error) = oxshmem_hca::mlx5::check_libraries() {
                tell(&LibraryFact::Refused { reason: error.to_string() });
            }
        }
    }
}

/// Returns the file that this process has mapped for a library.
fn mapped_from(library: &str) -> String {
    let stem = library.split('.').next().unwrap_or(library);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.starts_with(stem)
    });
    file.unwrap_or(library).to_owned()
}
