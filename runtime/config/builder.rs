//! How a configuration is made: from the environment, from the program's values, or from both.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

use super::error::{ConfigError, Origin};
use super::table::{BUILD_VARIABLES, Config, ConfigBuilder, PREFIX, VARIABLES, Variable};
use super::value::Choice;

impl Config {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// The first variable that is unknown, malformed, out of range, or contradicts another.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads `vars` instead of the process's environment; names that do not start with `OXSHMEM_` are skipped.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_vars<K: Into<OsString>, V: Into<OsString>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        Self::builder().vars(vars).build()
    }

    /// A builder with every default and no environment; see [`ConfigBuilder::env`].
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder { config: Self::default(), vars: Vec::new() }
    }

    /// A builder that starts from this configuration, to change some of its values.
    pub fn to_builder(&self) -> ConfigBuilder {
        ConfigBuilder { config: self.clone(), vars: Vec::new() }
    }

    /// Every variable with its value, written as in the environment, and where the value came from.
    pub fn settings(&self) -> impl Iterator<Item = (&'static Variable, String, Origin)> {
        VARIABLES.iter().map(|variable| (variable, (variable.show)(self), (variable.origin)(self)))
    }

    /// Blocks in the send queue of each QP of a PE, in a job of `n_pes` PEs: a power of two, see `OXSHMEM_QP_DEPTH`.
    pub fn send_queue_depth(&self, n_pes: u32) -> u32 {
        const BLOCK_BYTES: u64 = 64;
        match self.qp_depth() {
            Choice::Given(depth) => depth,
            Choice::Auto => {
                let qps = u64::from(n_pes) * u64::from(self.qps_per_peer());
                let within = ((64 << 20) / (qps.max(1) * BLOCK_BYTES)).clamp(1024, 8192);
                1 << within.ilog2()
            }
        }
    }

    /// Installs a `tracing` subscriber for the whole process that writes what `OXSHMEM_LOG` selects to stderr. If the program has installed
    /// a subscriber, that one stays.
    ///
    /// The library only emits events and never calls this: a program that wants to see them calls it once, before
    /// [`Pe::with_config`](crate::Pe::with_config), or installs a subscriber of its own.
    pub fn init_log(&self) {
        let filter = tracing_subscriber::EnvFilter::new(self.log().to_string());
        // An error means that the program has a subscriber: it decides what is logged.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .try_init();
    }
}

impl ConfigBuilder {
    /// Takes what is not set here from the process's environment.
    pub fn env(self) -> Self {
        self.vars(std::env::vars_os())
    }

    /// Takes what is not set here from `vars`.
    pub fn vars<K: Into<OsString>, V: Into<OsString>>(mut self, vars: impl IntoIterator<Item = (K, V)>) -> Self {
        self.vars.extend(vars.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first variable that is unknown, malformed, out of range, or contradicts another.
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut config = self.config;
        for (name, value) in &self.vars {
            let Some(name) = own_name(name).filter(|name| !BUILD_VARIABLES.contains(&name.as_str())) else { continue };
            let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) else {
                let suggestion = nearest(&name);
                return Err(ConfigError::Unknown { name, suggestion });
            };
            if (variable.origin)(&config) == Origin::Builder {
                continue;
            }
            if !value.to_str().is_some_and(|text| (variable.parse)(&mut config, text)) {
                let value = value.to_string_lossy().into_owned();
                return Err(ConfigError::Malformed { name: variable.name, value, form: variable.form() });
            }
        }
        config.check()?;
        Ok(config)
    }
}

/// The name as text if it starts with our prefix, with what is not UTF-8 replaced so that it is reported as unknown.
fn own_name(name: &OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    name.starts_with(PREFIX).then(|| name.into_owned())
}

/// The known name that is fewest edits away, if that is near enough to be meant.
fn nearest(name: &str) -> Option<&'static str> {
    VARIABLES
        .iter()
        .map(|variable| (edit_distance(&name[PREFIX.len()..], &variable.name[PREFIX.len()..]), variable.name))
        .min()
        .filter(|(distance, known)| *distance <= 2.max((known.len() - PREFIX.len()) / 2))
        .map(|(_, known)| known)
}

/// Insertions, deletions and substitutions from `a` to `b` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
