//! Gathers among some ranks of the job: what the hub decides about them, without sockets or clocks.
//!
//! A gather is known by its key. A rank is in one at a time, since it waits for the answer, so
//! there are never more than ranks, and never more data than one contribution of each. A gather
//! that fails does not fail the job: every member is told once, also those that come later, and a
//! member that comes again begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::error::BootstrapError;
use super::failure::{Failure, FailureKind};
use super::frame::{Arrival, Message};
use super::text::{LONGER, Seconds, list};
use crate::config::MAX_NPES;

/// What the hub has to say, and its recipients.
#[derive(Debug)]
pub struct Answer {
    pub to: Vec<u32>,
    pub message: Message,
}

/// The gathers of a job that are under way.
#[derive(Debug, Default)]
pub struct Groups {
    open: BTreeMap<Vec<u8>, Open>,
    failed: BTreeMap<Vec<u8>, Failed>,
    /// The gather that a rank waits in, by its key.
    waiting: BTreeMap<u32, Vec<u8>>,
}

#[derive(Debug)]
struct Open {
    label: String,
    /// The rank that came first.
    first: u32,
    size: u32,
    deadline: Duration,
    timeout: Duration,
    /// By number in the gather: rank and contribution.
    parts: BTreeMap<u32, (u32, Vec<u8>)>,
}

/// A gather that failed, for members that come later.
#[derive(Debug)]
struct Failed {
    failure: Failure,
    told: BTreeSet<u32>,
    /// How many there can be to tell.
    members: usize,
    until: Duration,
}

impl Groups {
    /// Gathers under way.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Gathers that failed and are remembered.
    pub fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Returns the gather that this rank waits in.
    pub fn of(&self, rank: u32) -> Option<String> {
        self.open.get(self.waiting.get(&rank)?).map(|open| open.label.clone())
    }

    /// Returns when [`Groups::tick`] has something to do next.
    pub fn deadline(&self) -> Option<Duration> {
        let failed = self.failed.values().map(|failed| failed.until);
        self.open.values().map(|open| open.deadline).chain(failed).min()
    }

    /// Notes that time has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Answer> {
        self.failed.retain(|_, failed| failed.until > now);
        let late: Vec<_> =
            self.open.iter().filter(|(_, open)| open.deadline <= now).map(|(key, _)| key.clone()).collect();
        let mut answers = Vec::new();
        for key in late {
            let Some(open) = self.open.remove(&key) else { continue };
            open.parts.values().for_each(|(rank, _)| drop(self.waiting.remove(rank)));
            let absent: Vec<u32> = (0..open.size).filter(|index| !open.parts.contains_key(index)).collect();
            let message = format!(
                "{} {} of {} did not arrive within {} at {}, which PE {} entered first{LONGER}",
                if absent.len() == 1 { "member" } else { "members" },
                list(&absent),
                open.size,
                Seconds(open.timeout),
                open.label,
                open.first,
            );
            let failure = Failure::new(FailureKind::Missing, absent, message);
            answers.push(self.fail(now, key, &open, (failure, open.ranks(), open.size)));
        }
        answers
    }

    /// Makes a rank that is in no gather enter one, in a job of `ranks`.
    pub fn arrived(
        &mut self,
        now: Duration,
        (rank, timeout): (u32, Duration),
        ranks: u32,
        arrival: Arrival,
    ) -> Option<Answer> {
        let Arrival { key, label, size, index, data } = arrival;
        if let Some(failed) = self.failed.get_mut(&key) {
            if failed.told.insert(rank) {
                let message = Message::Disbanded(failed.failure.clone());
                if failed.told.len() >= failed.members {
                    self.failed.remove(&key);
                }
                return Some(Answer { to: vec![rank], message });
            }
            self.failed.remove(&key);
        }
        let mut open = self.open.remove(&key).unwrap_or_else(|| Open {
            label: label.clone(),
            first: rank,
            size,
            deadline: now.saturating_add(timeout),
            timeout,
            parts: BTreeMap::new(),
        });
        let (here, first) = (open.label.clone(), open.first);
        let problem = if label != open.label {
            Some((vec![first, rank], format!("PEs disagree: PE {first} entered {here}, PE {rank} entered {label}")))
        } else if size != open.size {
            let message =
                format!("PEs disagree: PE {first} says that {here} has {} members, PE {rank} says {size}", open.size);
            Some((vec![first, rank], message))
        } else if size == 0 || size > ranks {
            let message = format!("PE {rank} says that {here} has {size} members, in a job of {ranks}");
            Some((vec![rank], message))
        } else if index >= size {
            let message = format!("PE {rank} enters {here} as member {index}; its members are 0 to {}", size - 1);
            Some((vec![rank], message))
        } else {
            open.parts.get(&index).map(|(other, _)| {
                (vec![*other, rank], format!("PE {other} and PE {rank} both enter {here} as member {index} of {size}"))
            })
        };
        if let Some((at_fault, message)) = problem {
            // How many members there are is in doubt, so no member is the last.
            let failure = Failure::new(FailureKind::Mismatch, at_fault, message);
            let mut to = open.ranks();
            to.iter().for_each(|rank| drop(self.waiting.remove(rank)));
            to.push(rank);
            return Some(self.fail(now, key, &open, (failure, to, ranks)));
        }
        open.parts.insert(index, (rank, data));
        if open.parts.len() == open.size as usize {
            let to = open.ranks();
            to.iter().for_each(|rank| drop(self.waiting.remove(rank)));
            let message = Message::Grouped { parts: open.parts.into_values().collect() };
            return Some(Answer { to, message });
        }
        self.waiting.insert(rank, key.clone());
        self.open.insert(key, open);
        None
    }

    /// Tells members of a gather that was taken out why, and remembers it for those of `members`
    /// that come later.
    fn fail(
        &mut self,
        now: Duration,
        key: Vec<u8>,
        open: &Open,
        (failure, to, members): (Failure, Vec<u32>, u32),
    ) -> Answer {
        tracing::info!("a gather has failed: {}", failure.message);
        let message = Message::Disbanded(failure.clone());
        let (told, until) = (to.iter().copied().collect::<BTreeSet<u32>>(), now.saturating_add(open.timeout));
        if until > now && told.len() < members as usize {
            if self.failed.len() >= MAX_NPES as usize {
                let oldest = self.failed.iter().min_by_key(|(_, failed)| failed.until).map(|(key, _)| key.clone());
                oldest.map(|key| self.failed.remove(&key));
            }
            self.failed.insert(key, Failed { failure, told, members: members as usize, until });
        }
        Answer { to, message }
    }
}

/// Returns the gather of a job of one PE.
pub fn alone(arrival: Arrival) -> Result<Vec<(u32, Vec<u8>)>, BootstrapError> {
    let answer = Groups::default().arrived(Duration::ZERO, (0, Duration::ZERO), 1, arrival);
    match answer.map(|answer| answer.message) {
        Some(Message::Disbanded(failure)) => Err(BootstrapError::Disbanded(failure)),
        Some(Message::Grouped { parts }) => Ok(parts),
        // A gather of at most one is never waited for.
        _ => Ok(Vec::new()),
    }
}

impl Open {
    /// Returns the members that have come.
    fn ranks(&self) -> Vec<u32> {
        self.parts.values().map(|(rank, _)| *rank).collect()
    }
}
