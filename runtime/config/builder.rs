//! How a configuration is made: from the environment, from the program's values, or from both.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

use super::error::{ConfigError, Origin};
use super::services::is_of_service;
use super::table::{BUILD_VARIABLES, Config, ConfigBuilder, PREFIX, VARIABLES, Variable};
use super::value::Choice;

impl Config {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// The first variable that is unknown, malformed, out of range, or contradicts another.
    ///
    /// ```
    /// let config = oxshmem::Config::from_env()?;
    /// assert_eq!(config.qps_per_peer() == 0, false);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads `vars` instead of the process's environment; names that do not start with `OXSHMEM_`
    /// are skipped, and so are variables that Kubernetes sets for a Service whose name begins with
    /// `oxshmem`.
    ///
    /// # Errors
    /// Fails like [`Config::from_env`].
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// let config = Config::from_vars([("OXSHMEM_HEAP_MAX", "64M"), ("HOME", "/root")])?;
    /// assert_eq!(config.heap_max().0, 64 << 20);
    ///
    /// let error = Config::from_vars([("OXSHMEM_HEAP_MIX", "64M")]).unwrap_err();
    /// assert!(error.to_string().contains("did you mean OXSHMEM_HEAP_MAX?"));
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn from_vars<K: Into<OsString>, V: Into<OsString>>(
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        Self::builder().vars(vars).build()
    }

    /// Creates a builder with every default and no environment; see [`ConfigBuilder::env`].
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// assert_eq!(Config::builder().build()?, Config::default());
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder { config: Self::default(), vars: Vec::new() }
    }

    /// Creates a builder that starts from this configuration, to change some of its values.
    ///
    /// ```
    /// use oxshmem::Config;
    /// use oxshmem::config::Device;
    ///
    /// let config = Config::default().to_builder().device(Device::Cpu).build()?;
    /// assert_eq!(config.device(), Device::Cpu);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn to_builder(&self) -> ConfigBuilder {
        ConfigBuilder { config: self.clone(), vars: Vec::new() }
    }

    /// Returns every variable with its value, written as in the environment, and where the value
    /// came from.
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// for (variable, value, origin) in Config::default().settings() {
    ///     println!("{}={value} ({origin})", variable.name);
    /// }
    /// ```
    pub fn settings(&self) -> impl Iterator<Item = (&'static Variable, String, Origin)> {
        VARIABLES.iter().map(|variable| {
            let secret = variable.name == "OXSHMEM_JOB" && self.job().is_some();
            let value = if secret { "(secret)".to_owned() } else { (variable.show)(self) };
            (variable, value, (variable.origin)(self))
        })
    }

    /// Blocks in the send queue of each QP of a PE, in a job of `n_pes` PEs: a power of two, see
    /// `OXSHMEM_QP_DEPTH`.
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// let config = Config::builder().qp_depth(2048).build()?;
    /// assert_eq!(config.send_queue_depth(8), 2048);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn send_queue_depth(&self, n_pes: u32) -> u32 {
        const BLOCK_BYTES: u64 = 64;
        match self.qp_depth() {
            Choice::Given(depth) => depth,
            Choice::Auto => {
                let qps = u64::from(n_pes) * u64::from(self.qps_per_peer());
                let within = ((64 << 20) / (qps.max(1) * BLOCK_BYTES)).clamp(512, 8192);
                1 << within.ilog2()
            }
        }
    }

    /// Returns the bytes of each of `rings` staging rings of a PE.
    pub(crate) fn staging_ring_bytes(&self, rings: usize) -> u64 {
        match self.staging_ring() {
            Choice::Given(size) => size.0,
            Choice::Auto => {
                let within = ((256 << 20) / (rings as u64).max(1)).clamp(64 << 10, 4 << 20);
                1 << within.ilog2()
            }
        }
    }

    /// Installs a `tracing` subscriber for the whole process that writes what `OXSHMEM_LOG` selects
    /// to stderr. If the program has installed a subscriber, that one stays.
    ///
    /// The library only emits events and never calls this: a program that wants to see them calls
    /// it once, before [`Pe::with_config`](crate::Pe::with_config), or installs a subscriber of its
    /// own.
    ///
    /// ```
    /// let config = oxshmem::Config::from_env()?;
    /// config.init_log(); // `OXSHMEM_LOG=info` now shows how init goes
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
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
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// // The program decides the heap, and users of the program everything else.
    /// let config = Config::builder().heap_max(1u64 << 30).env().build()?;
    /// assert_eq!(config.heap_max().0, 1 << 30);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn env(self) -> Self {
        self.vars(std::env::vars_os())
    }

    /// Takes what is not set here from `vars`.
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// let config = Config::builder().max_teams(8u32).vars([("OXSHMEM_MAX_TEAMS", "16")]).build()?;
    /// assert_eq!(config.max_teams(), 8); // the program decides
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn vars<K: Into<OsString>, V: Into<OsString>>(mut self, vars: impl IntoIterator<Item = (K, V)>) -> Self {
        self.vars.extend(vars.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first variable that is unknown, malformed, out of range, or contradicts another.
    ///
    /// ```
    /// use oxshmem::Config;
    ///
    /// let error = Config::builder().qp_depth(3).build().unwrap_err();
    /// assert!(error.to_string().starts_with("OXSHMEM_QP_DEPTH=3 (set by the program)"));
    /// ```
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut config = self.config;
        for (name, value) in &self.vars {
            let Some(name) = own_name(name).filter(|name| !BUILD_VARIABLES.contains(&name.as_str())) else { continue };
            let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) else {
                if value.to_str().is_some_and(|text| is_of_service(&name[PREFIX.len()..], text)) {
                    continue;
                }
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

/// Returns the name as text if it starts with our prefix, with what is not UTF-8 replaced so that
/// it is reported as unknown.
fn own_name(name: &OsStr) -> Option<String> {
    let name = name.to_string_lossy();
    name.starts_with(PREFIX).then(|| name.into_owned())
}

/// Returns the known name that is fewest edits away, if that is near enough to be meant.
fn nearest(name: &str) -> Option<&'static str> {
    VARIABLES
        .iter()
        .map(|variable| (strsim::levenshtein(&name[PREFIX.len()..], &variable.name[PREFIX.len()..]), variable.name))
        .min()
        .filter(|(distance, known)| *distance <= 2.max((known.len() - PREFIX.len()) / 2))
        .map(|(_, known)| known)
}
