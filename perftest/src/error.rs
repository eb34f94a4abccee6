//! What can go wrong in a performance test.

use std::path::PathBuf;
use std::process::ExitCode;

use oxshmem::bootstrap::BootstrapError;

/// Delivered data that is not what was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "wrong data: {what}, {unit} {offset}: expected {expected:#x}, found {found:#x} ({wrong} of {of} {unit}s are wrong); \
     the figures of this run mean nothing"
)]
pub struct Mismatch {
    /// What it is.
    pub what: &'static str,
    /// What offsets count.
    pub unit: &'static str,
    /// The first difference.
    pub offset: u64,
    /// What should be there.
    pub expected: u64,
    /// What is there.
    pub found: u64,
    /// Differences in all.
    pub wrong: u64,
    /// Units compared.
    pub of: u64,
}

/// Anything that ends a performance test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library's error.
    #[error(transparent)]
    Library(Box<oxshmem::Error>),
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] oxshmem::config::ConfigError),
    /// The PEs could not be started.
    #[error(transparent)]
    Launch(#[from] oxshmem::launch::LaunchError),
    /// Data did not arrive as it was sent.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// Another PE has found wrong data, and reports it.
    #[error("PE {0} found wrong data")]
    MismatchElsewhere(usize),
    /// Options that do not go together.
    #[error("{0}")]
    Usage(String),
    /// A result file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A plot could not be drawn.
    #[error("cannot draw {}: {reason}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A PE that was waited for did not come.
    #[error("PE {me} waited {seconds} s for PE 0 to finish {what}; raise OXSHMEM_KERNEL_TIMEOUT for longer runs")]
    Late {
        /// The PE that waited.
        me: usize,
        /// How long.
        seconds: u64,
        /// For what.
        what: String,
    },
    /// The reader of standard output has closed its end of the pipe, as `head` does: no more is
    /// wanted.
    #[error("standard output is closed at its reading end")]
    Closed,
    /// A signal (Ctrl-C, for example) ended the job that was running.
    #[error("interrupted")]
    Interrupted(u8),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// Status of a program whose output has no reader any more: 128 + SIGPIPE, as a shell shows it.
pub const CLOSED: u8 = 128 + 13;

impl Error {
    /// Returns the status of a program that this error ends.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Closed => ExitCode::from(CLOSED),
            Self::Interrupted(code) => ExitCode::from(*code),
            _ => ExitCode::FAILURE,
        }
    }

    /// Says on standard error what ended the program `name`, unless its user requested the end, and
    /// returns its status.
    pub fn report(&self, name: &str) -> ExitCode {
        if !matches!(self, Self::Closed) {
            eprintln!("{name}: {self}");
        }
        self.exit_code()
    }

    /// Returns whether it only says that another PE has failed, which reports itself.
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::MismatchElsewhere(_) => true,
            Self::Library(error) => matches!(**error, oxshmem::Error::Bootstrap(BootstrapError::Failed(_))),
            _ => false,
        }
    }
}

impl From<oxshmem::Error> for Error {
    fn from(error: oxshmem::Error) -> Self {
        Self::Library(Box::new(error))
    }
}

impl From<oxshmem::device::DeviceError> for Error {
    fn from(error: oxshmem::device::DeviceError) -> Self {
        oxshmem::Error::from(error).into()
    }
}

impl From<oxshmem::HeapError> for Error {
    fn from(error: oxshmem::HeapError) -> Self {
        oxshmem::Error::from(error).into()
    }
}
