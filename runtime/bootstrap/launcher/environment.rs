//! Variables of launchers.

use std::collections::BTreeMap;

use super::super::error::BootstrapError;
use super::common::unusable;
use super::start::Local;
use crate::config::{Launcher, MAX_NPES};

/// Variables by name. One that is empty counts as absent.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(vars: I) -> Self {
        Self(vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Environment {
    /// Returns the process's environment, with what is not UTF-8 replaced.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect()
    }

    /// Returns the value of a variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns whether the variable is set and not empty.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns the variables whose names `select` takes.
    pub fn select(&self, select: impl Fn(&str) -> bool) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(move |(name, _)| select(name))
    }

    /// Returns `NAME=VALUE` of those of `names` that are set, for messages and identities.
    pub fn show(&self, names: &[&str]) -> String {
        let set: Vec<_> = names.iter().filter_map(|name| Some(format!("{name}={}", self.get(name)?))).collect();
        set.join(" ")
    }

    /// Returns a variable that has to be there, because `because` is.
    pub(super) fn text(&self, launcher: Launcher, name: &str, because: &str) -> Result<&str, BootstrapError> {
        self.get(name).ok_or_else(|| {
            let set = self.show(&[because]);
            unusable(launcher, format!("{set} is set but {name} is not; set both or neither, or set OXSHMEM_LAUNCHER to what started this program"))
        })
    }

    /// Returns a number that has to be there, because `because` is.
    pub(super) fn number(&self, launcher: Launcher, name: &str, because: &str) -> Result<u32, BootstrapError> {
        let text = self.text(launcher, name, because)?;
        text.parse().map_err(|_| {
            unusable(
                launcher,
                format!("{name}={text} is not a number; start the program anew, or unset it and {because}"),
            )
        })
    }

    /// Returns a rank and the number of PEs, from the variables of these names.
    pub(super) fn rank_of(&self, launcher: Launcher, rank: &str, size: &str) -> Result<(u32, u32), BootstrapError> {
        let (number, npes) = (self.number(launcher, rank, size)?, self.number(launcher, size, rank)?);
        check_rank(launcher, (rank, number), (size, npes))?;
        Ok((number, npes))
    }

    /// Returns the place on the node, where both variables are there and make sense.
    pub(super) fn local(&self, rank: &str, size: &str) -> Option<Local> {
        let (rank, size) = (self.get(rank)?.parse().ok()?, self.get(size)?.parse().ok()?);
        (rank < size).then_some(Local { rank, size })
    }
}

/// Refuses a rank that is not below the number of PEs, and a job that is too large.
pub(super) fn check_rank(
    launcher: Launcher,
    (rank_name, rank): (&str, u32),
    (size_name, npes): (&str, u32),
) -> Result<(), BootstrapError> {
    let reason = if npes == 0 || npes > MAX_NPES {
        format!("{size_name}={npes} is outside its limits, 1 to {MAX_NPES}; start as many PEs")
    } else if rank >= npes {
        format!("{rank_name}={rank} is not below {size_name}={npes}; ranks count from 0, so start the program anew")
    } else {
        return Ok(());
    };
    Err(unusable(launcher, reason))
}
