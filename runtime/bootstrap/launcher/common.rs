//! What the launchers share: the exchange of the rendezvous, and the error.

use std::time::{Duration, Instant};

use super::super::error::BootstrapError;
use super::super::text::cut;
use super::super::unique_id::UniqueId;
use super::start::Place;
use crate::config::Launcher;

/// The key under which rank 0 publishes where the PEs meet.
const KEY: &str = "oxshmem.rendezvous";
/// What a published value starts with when rank 0 has failed; its error follows.
const FAILED: char = '!';

/// What this process knows of the job before it has a rendezvous.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) launcher: Launcher,
    pub(super) rank: u32,
    pub(super) npes: u32,
    /// All PEs are on one node.
    pub(super) one_node: bool,
}

/// Returns the place that follows from one exchange of a text: `exchange` publishes rank 0's under
/// the key that it is given, if there is one, and returns what rank 0 published.
pub(super) fn publish(
    seat: Seat,
    exchange: impl FnOnce(&str, Option<&str>) -> Result<String, BootstrapError>,
) -> Result<Place, BootstrapError> {
    let Seat { launcher, rank, npes, one_node } = seat;
    let created = (rank == 0).then(|| UniqueId::start(Some(npes), one_node));
    let value = created.as_ref().map(|created| match created {
        Ok(id) => format!("{}@{}", id.job_id(), id.rendezvous()),
        // One line of printable characters, since PMI's messages are lines.
        Err(error) => cut(&format!("{FAILED}{error}"), 200).replace(|c: char| !c.is_ascii_graphic(), "_"),
    });
    let published = exchange(KEY, value.as_deref());
    if let Some(Err(error)) = created {
        return Err(error);
    }
    let published = published?;
    if let Some(error) = published.strip_prefix(FAILED) {
        let reason = format!("rank 0 cannot start the rendezvous: {}", error.replace('_', " "));
        return Err(unusable(launcher, reason));
    }
    let parsed =
        published.split_once('@').and_then(|(job, addresses)| Some((job.parse().ok()?, addresses.parse().ok()?)));
    let Some((job, rendezvous)) = parsed else {
        // What stands before it is the job's secret.
        let shown = cut(published.split_once('@').map_or("", |(_, addresses)| addresses), 80);
        return Err(unusable(
            launcher,
            format!(
                "rank 0 published {} bytes, with the addresses '{shown}', which are no rendezvous; start all PEs with one version of OxSHMEM",
                published.len()
            ),
        ));
    };
    Ok(Place { rank, npes, job, rendezvous, searching: false, bare: None })
}

/// Returns the error of a launcher that cannot be used.
pub(super) fn unusable(launcher: Launcher, reason: impl Into<String>) -> BootstrapError {
    BootstrapError::Launcher { launcher, reason: reason.into() }
}

/// Returns a deadline's remaining time, at least a millisecond.
pub(super) fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left.max(Duration::from_millis(1)))
}
