//! Why a module was refused on a GPU.

use std::fmt;

use super::driver::DriverError;

/// Why a module was refused on a GPU.
///
/// ```
/// use oxshmem::device::cuda::ModuleError;
///
/// let error = ModuleError::OldGpu { gpu: 0, has: 70, oldest: 80 };
/// let text = error.to_string();
/// assert!(text.starts_with("GPU 0 is sm_70, and the oldest PTX in the program is for sm_80"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// No PTX.
    #[error(
        "the program holds no PTX of it: no CUDA compiler was found when it was built, or it was built for the cpu device alone; run \
         scripts/setup (or set CUDA_HOME) and build again, or use OXSHMEM_DEVICE=cpu"
    )]
    NoPtx,
    /// A GPU that is older than all PTX.
    #[error(
        "GPU {gpu} is sm_{has}, and the oldest PTX in the program is for sm_{oldest}; use a newer GPU, or OXSHMEM_DEVICE=cpu"
    )]
    OldGpu {
        /// The GPU.
        gpu: i32,
        /// Its architecture.
        has: u32,
        /// The lowest architecture there is PTX for.
        oldest: u32,
    },
    /// PTX of a CUDA release that the driver does not know.
    #[error(
        "its PTX is version {ptx}, which is newer than this driver: update the driver, or build with an older CUDA compiler"
    )]
    NewPtx {
        /// The PTX ISA version.
        ptx: String,
    },
    /// The driver could not compile or load it.
    #[error("{source}{}", Log(log))]
    Load {
        /// What the driver answered.
        source: DriverError,
        /// What its compiler printed.
        log: String,
    },
    /// Code that is not whole.
    #[error("the code has {given} bytes, and its header says that it has {needed}; pass all of it")]
    Truncated {
        /// Bytes that were passed.
        given: u64,
        /// Bytes by the header, at least.
        needed: u64,
    },
    /// The driver could not link it with the device library.
    #[error(
        "cannot link it with the device library: {source}{}; compile it with OXSHMEM_DEVICE_LIBRARY, as relocatable code, with the headers \
         of this runtime, and for at least 64 registers a thread",
        Said(log)
    )]
    Link {
        /// What the driver answered.
        source: DriverError,
        /// What its linker printed.
        log: String,
    },
    /// It does not have the state symbol as it should be.
    #[error("{what}: compile device code with oxshmem_build and the headers of this runtime")]
    State {
        /// What is wrong with the symbol.
        what: String,
    },
}

struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, as all errors are.
        self.0.lines().map(str::trim).filter(|line| !line.is_empty()).try_for_each(|line| write!(f, "; {line}"))
    }
}

struct Log<'a>(&'a str);

impl fmt::Display for Log<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; the compiler says: {}", self.0.trim_end()) }
    }
}
