//! Errors of the configuration.

use std::fmt;

/// Why a configuration was refused.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::ConfigError;
///
/// let error = Config::from_vars([("OXSHMEM_DEVICE", "gpu")]).unwrap_err();
/// assert!(matches!(error, ConfigError::Malformed { name: "OXSHMEM_DEVICE", .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An `OXSHMEM_*` variable that does not exist.
    #[error("{name} is not a variable of OxSHMEM{}; unset it (docs/environment.md lists them all)",
        suggestion.map(|known| format!(", did you mean {known}?")).unwrap_or_default())]
    Unknown {
        /// The name as found in the environment.
        name: String,
        /// The nearest known name, when one is near.
        suggestion: Option<&'static str>,
    },
    /// A value that cannot be read as the variable's type.
    #[error("{name}={value}: expected {form}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value, with what is not UTF-8 replaced.
        value: String,
        /// The expected form and its limits.
        form: String,
    },
    /// A value outside the variable's limits.
    #[error("{name}={value} ({origin}) is outside its limits: expected {form}")]
    OutOfRange {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
        /// Where it was given.
        origin: Origin,
        /// The expected form and its limits.
        form: String,
    },
    /// A file that a variable names and that cannot be read as what it is for.
    #[error("{name}={path}: {}{problem}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    File {
        /// The variable.
        name: &'static str,
        /// The file.
        path: String,
        /// The line, counted from 1, if a line is wrong.
        line: Option<usize>,
        /// The value, what is expected, and what to do.
        problem: String,
    },
    /// Variables that only make sense together, given in part.
    #[error(
        "{present} is set but {missing} is not: a launcher sets both; start the program with oxrun, or unset {present}"
    )]
    Incomplete {
        /// A variable that is set.
        present: &'static str,
        /// One that is absent.
        missing: &'static str,
    },
    /// Two values that contradict each other.
    #[error("{first} contradicts {second}: {rule}")]
    Contradiction {
        /// `NAME=value` of one.
        first: String,
        /// `NAME=value` of the other.
        second: String,
        /// What must hold.
        rule: &'static str,
    },
}

/// Where a value came from.
///
/// ```
/// use oxshmem::Config;
/// use oxshmem::config::Origin;
///
/// let config = Config::builder().max_teams(8u32).build()?;
/// let (_, value, origin) = config.settings().find(|(variable, ..)| variable.name == "OXSHMEM_MAX_TEAMS").unwrap();
/// assert_eq!((value.as_str(), origin), ("8", Origin::Builder));
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The table's default.
    Default,
    /// The environment.
    Environment,
    /// The program, through [`ConfigBuilder`](super::ConfigBuilder).
    Builder,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Environment => "from the environment",
            Self::Builder => "set by the program",
        })
    }
}
