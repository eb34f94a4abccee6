//! What started this process, as the library sees it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oxshmem::Config;
use oxshmem::bootstrap::launcher::{Environment, Report};
use serde::Serialize;

/// What `oxshmem-info launch` shows.
#[derive(Debug, Serialize)]
pub struct Launch {
    host: String,
    /// `none` without a launcher, and for `oxrun`, whose variables are OxSHMEM's own.
    launcher: String,
    /// Why its variables cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    why: String,
    meeting: String,
    /// Where the job's secret comes from.
    secret: String,
    /// This process's number on its node, and how many there are, as the launcher says.
    local_rank: Option<u32>,
    local_size: Option<u32>,
    ignored: Vec<String>,
    /// By launcher, its variables that are set.
    variables: BTreeMap<String, BTreeMap<String, String>>,
}

impl Launch {
    /// Looks at this process.
    pub fn new(config: &Config) -> Self {
        let report = Report::new(config, &Environment::of_process());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".into());
        let (launcher, error) = match report.chosen {
            Ok(launcher) => (launcher.to_string(), None),
            Err(error) => ("unusable".to_owned(), Some(error)),
        };
        let variables = report
            .seen
            .into_iter()
            .map(|(launcher, seen)| (launcher.to_string(), seen.into_iter().collect()))
            .collect();
        Self {
            host: host.trim().to_owned(),
            launcher,
            error,
            why: report.why,
            meeting: report.meeting,
            secret: report.secret,
            local_rank: report.local.map(|(rank, _)| rank),
            local_size: report.local.map(|(_, size)| size),
            ignored: report.ignored,
            variables,
        }
    }

    /// Returns whether PEs can start here.
    pub fn is_usable(&self) -> bool {
        self.error.is_none()
    }

    /// Returns it as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for (launcher, seen) in &self.variables {
            let _ = writeln!(text, "{launcher}:{}", if seen.is_empty() { " no variables" } else { "" });
            for (name, value) in seen {
                let _ = writeln!(text, "  {name}={value}");
            }
        }
        for ignored in &self.ignored {
            let _ = writeln!(text, "ignored: {ignored}");
        }
        let _ = writeln!(text, "host: {}", self.host);
        if let Some(error) = &self.error {
            let _ = writeln!(text, "error: {error}");
            return text;
        }
        let _ = writeln!(text, "chosen: {} ({})", self.launcher, self.why);
        let _ = writeln!(text, "the PEs meet: {}", self.meeting);
        let _ = writeln!(text, "the job's secret: {}", self.secret);
        if let (Some(rank), Some(size)) = (self.local_rank, self.local_size) {
            let _ = writeln!(text, "on this node: process {rank} of {size}");
        }
        text
    }
}
