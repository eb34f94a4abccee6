//! Meetings: calls that the members of a team make together, through the hub.

use std::sync::atomic::Ordering;

use oxshmem_system::words::count32;

use super::error::{MissingPes, TeamError};
use super::members::Members;
use super::table::{Entry, Team, name};
use crate::Result;
use crate::bootstrap::{BootstrapError, FailureKind, cut};
use crate::pe::Pe;

/// Members that meet through the hub, in phases: once to agree, say, and once to begin.
pub(crate) struct Meeting {
    pub(super) key: Vec<u8>,
    pub(super) label: String,
    pub(super) index: usize,
    pub(super) size: usize,
    /// The PE numbers of the members, where they are known before.
    pub(super) members: Option<Members>,
}

impl Meeting {
    /// Returns the next meeting of a team's members, for a call that they make together.
    pub(super) fn of_entry(team: &Entry, what: &str) -> Self {
        let handle = team.place.handle();
        // Teams without a common member may have the same handle, but not the same first member.
        let first = count32(team.members.pe(0).unwrap_or_default());
        let call = team.calls.fetch_add(1, Ordering::Relaxed);
        let key = [&b"t"[..], &handle.to_be_bytes(), &first.to_be_bytes(), &call.to_be_bytes()].concat();
        Self {
            key,
            label: format!("{what} of {}", name(handle)),
            index: team.me,
            size: team.members.len(),
            members: Some(team.members.clone()),
        }
    }

    /// Does the same for a team as programs have it.
    pub(crate) fn of_team(team: &Team, what: &str) -> Self {
        Self::of_entry(&team.0, what)
    }

    /// Tells all members what keeps this one from going on, if anything does. Returns the first
    /// member with a problem, by its PE.
    pub(crate) fn first_problem(&self, pe: &Pe, phase: u8, mine: &str) -> Result<Option<(usize, String)>> {
        let told = self.hold(pe, phase, cut(mine, 1024).as_bytes())?;
        let problem = told.into_iter().find(|(_, problem)| !problem.is_empty());
        Ok(problem.map(|(pe, problem)| (pe as usize, String::from_utf8_lossy(&problem).into_owned())))
    }

    /// Returns what all members say in a phase, by number, with their PEs.
    pub(crate) fn hold(&self, pe: &Pe, phase: u8, data: &[u8]) -> Result<Vec<(u32, Vec<u8>)>> {
        let key = [&self.key[..], &[phase]].concat();
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let place = (number(self.index), number(self.size));
        pe.bootstrap().gather(&key, &self.label, place, data).map_err(|error| match error {
            BootstrapError::Disbanded(failure) => {
                let missing = if failure.kind == FailureKind::Missing { &failure.ranks[..] } else { &[] };
                let pe = |index: &u32| self.members.as_ref()?.pe(*index as usize).map(count32);
                let pes = MissingPes(missing.iter().filter_map(pe).collect());
                TeamError::Meeting { failure, pes }.into()
            }
            other => other.into(),
        })
    }
}
