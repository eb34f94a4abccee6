//! What can go wrong, and what to do about it.

use std::ffi::OsString;
use std::path::PathBuf;

/// Why a module could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not started by cargo.
    #[error("{0} is not set: oxshmem-build works in a build script, started by cargo")]
    NotABuildScript(&'static str),
    /// A path that cannot be part of the sources that are written.
    #[error("{name} is {}, which is not UTF-8: build in a folder with such a path, CARGO_TARGET_DIR may name one", value.display())]
    NotUnicode {
        /// The variable of cargo.
        name: &'static str,
        /// Its value.
        value: OsString,
    },
    /// Two modules of one name in one build script.
    #[error(
        "this build script compiles two device modules named {0:?}, of which the second would replace the first: \
             give each one another name in Module::new"
    )]
    SameName(String),
    /// The module's name cannot be part of a C symbol.
    #[error("device module name {0:?} is not a C identifier: use letters, digits and '_', not starting with a digit")]
    BadName(String),
    /// A module without sources.
    #[error("device module {0:?} has no sources: add one with Module::source")]
    NoSource(String),
    /// A macro of more than one line.
    #[error(
        "device module {module:?}: macro {macro_name:?} has a line break in its name or value: write it in one line"
    )]
    BadMacro {
        /// The module.
        module: String,
        /// The name given to `Module::define`.
        macro_name: String,
    },
    /// Architectures that are unknown, or not ascending.
    #[error("device module {module:?}: architectures {architectures:?} are not some of {known:?}, ascending")]
    BadArchitectures {
        /// The module.
        module: String,
        /// What was given to `Module::architectures`.
        architectures: Vec<u32>,
        /// [`ARCHITECTURES`](crate::ARCHITECTURES).
        known: &'static [u32],
    },
    /// A source that is not there.
    #[error("device module {module:?}: source {} does not exist", path.display())]
    MissingSource {
        /// The module.
        module: String,
        /// The absolute path that was looked for.
        path: PathBuf,
    },
    /// The device headers are not where this crate expects them.
    #[error("the OxSHMEM device headers are not in {}: that folder must come along with oxshmem-build", .0.display())]
    MissingHeaders(PathBuf),
    /// No usable C++ compiler.
    #[error(
        "no C++ compiler for the CPU objects of device code: {0}\n\
             install one (Debian, Ubuntu: apt-get install g++) or name it in CXX"
    )]
    NoCxx(String),
    /// A tool of the C++ toolchain cannot be started.
    #[error(
        "cannot start {tool}: {source}\n\
             it comes with the C++ toolchain (Debian, Ubuntu: apt-get install g++ binutils)"
    )]
    NoTool {
        /// The tool's name or path.
        tool: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// `NVCC` names something that is not a program.
    #[error("NVCC is {}, which is not an executable file: correct it or unset it", .0.display())]
    BadNvcc(PathBuf),
    /// The compiler that was found does not say its version.
    #[error("{} --version failed: {reason}\nset NVCC to a CUDA compiler that works, or OXSHMEM_CUDA=0 to build without PTX", nvcc.display())]
    NvccVersion {
        /// The compiler.
        nvcc: PathBuf,
        /// What was wrong.
        reason: String,
    },
    /// A CUDA compiler that does not know the newest architecture.
    #[error(
        "{} is CUDA {}.{}, but device code is built for sm_{newest}, which needs CUDA {}.{} or newer\n\
         run scripts/setup, set NVCC to a newer one, or OXSHMEM_CUDA=0 to build without PTX",
        nvcc.display(), found.0, found.1, needed.0, needed.1
    )]
    OldNvcc {
        /// The compiler.
        nvcc: PathBuf,
        /// Its version.
        found: (u32, u32),
        /// The oldest version that works.
        needed: (u32, u32),
        /// The architecture that needs it.
        newest: u32,
    },
    /// `OXSHMEM_CUDA=1`, but no compiler was found.
    #[error(
        "OXSHMEM_CUDA=1, but no nvcc is in $NVCC, $CUDA_HOME, $CUDA_PATH, PATH, .toolchain/cuda or /usr/local/cuda: \
             run scripts/setup or set NVCC"
    )]
    NvccRequired,
    /// A value of `OXSHMEM_CUDA` that means nothing.
    #[error("OXSHMEM_CUDA is {0:?}: it is 0 (no PTX), 1 (a CUDA compiler is required), or unset (PTX if there is one)")]
    BadSwitch(String),
    /// The compiler rejected the device code.
    #[error("{what} failed ({status})\n  {command}\n{output}")]
    Compile {
        /// The step, with the module's name.
        what: String,
        /// How the compiler ended.
        status: std::process::ExitStatus,
        /// The command line.
        command: String,
        /// Everything the compiler printed.
        output: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns a function for `map_err` that names the file that an I/O error is about.
    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
