//! What the host knows of a PE by itself: what its thread waits for, and what it has put on
//! streams.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::device::{Device, Stream, Wait};
use crate::fault::DeviceFault;

/// Streams that a dump describes.
const SHOWN: usize = 8;

/// The host's side of a PE.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What the PE's thread does that may take long, and since when.
    doing: Option<(&'static str, Instant)>,
    /// By the stream's key: what was put there since it was last waited for.
    queued: BTreeMap<usize, Queued>,
}

#[derive(Debug)]
struct Queued {
    stream: Stream,
    launches: u64,
    last: String,
    since: Instant,
    /// The teams with collectives there, by their handles.
    teams: Vec<i32>,
    /// An error that the wait for another stream found while this one had work. It may have ended
    /// that work's waits too.
    fault: Option<DeviceFault>,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the PE's thread does until what is returned is dropped.
    pub fn begins(&self, what: &'static str) -> Doing<'_> {
        self.state().doing = Some((what, Instant::now()));
        Doing(self)
    }

    /// Returns since when the PE's thread does what may take long.
    pub fn waits_since(&self) -> Option<Instant> {
        self.state().doing.map(|(_, since)| since)
    }

    /// Notes that work was put on a stream.
    pub fn queued(&self, stream: &Stream, name: &str) {
        let mut state = self.state();
        let queued = state.queued.entry(stream.key()).or_insert_with(|| Queued {
            stream: stream.clone(),
            launches: 0,
            last: String::new(),
            since: Instant::now(),
            teams: Vec::new(),
            fault: None,
        });
        queued.launches += 1;
        if queued.last != name {
            name.clone_into(&mut queued.last);
        }
    }

    /// Notes that what was put on a stream last is a part of a collective of this team.
    pub fn is_of_team(&self, stream: &Stream, team: i32) {
        if let Some(queued) = self.state().queued.get_mut(&stream.key())
            && !queued.teams.contains(&team)
        {
            queued.teams.push(team);
        }
    }

    /// Returns the streams that collectives of this team were put on since they were last waited
    /// for, each with the name of what was put there last.
    pub fn streams_of_team(&self, team: i32) -> Vec<(Stream, String)> {
        let state = self.state();
        let of_team = state.queued.values().filter(|queued| queued.teams.contains(&team));
        of_team.map(|queued| (queued.stream.clone(), queued.last.clone())).collect()
    }

    /// Returns the streams that work was put on since they were last waited for.
    pub fn streams(&self) -> Vec<Stream> {
        self.state().queued.values().map(|queued| queued.stream.clone()).collect()
    }

    /// Returns whether there are none.
    pub fn is_idle(&self) -> bool {
        self.state().queued.is_empty()
    }

    /// Notes an error that ends the waits of all work: each stream that has work reports it.
    pub fn failed(&self, fault: &DeviceFault) {
        for queued in self.state().queued.values_mut() {
            queued.fault.get_or_insert_with(|| fault.clone());
        }
    }

    /// Notes that what was put on these streams has ended, or has failed. Returns the first of the
    /// errors that they have to report.
    pub fn ended(&self, wait: Wait<'_>) -> Option<DeviceFault> {
        let mut state = self.state();
        // Streams may wait for work when they are dropped, which the lock must not do.
        let gone: Vec<Queued> = match wait {
            Wait::Own => state.queued.remove(&Stream::OWN.key()).into_iter().collect(),
            Wait::Stream(stream) => state.queued.remove(&stream.key()).into_iter().collect(),
            Wait::Launched(streams) => streams.iter().filter_map(|stream| state.queued.remove(&stream.key())).collect(),
            Wait::Everything => std::mem::take(&mut state.queued).into_values().collect(),
        };
        drop(state);
        gone.into_iter().find_map(|queued| queued.fault)
    }

    /// Describes it. `device` says which streams have ended their work.
    pub fn describe(&self, device: Option<&dyn Device>) -> Vec<String> {
        let state = self.state();
        let mut lines = Vec::new();
        if let Some((what, since)) = &state.doing {
            lines.push(format!("the host {what} since {:.1} s", since.elapsed().as_secs_f64()));
        }
        for Queued { stream, launches, last, since, .. } in state.queued.values().take(SHOWN) {
            let name =
                if stream.key() == Stream::OWN.key() { "the PE's own stream" } else { "a stream of the program" };
            let standing = match device.and_then(|device| device.has_ended(stream)) {
                Some(true) => "all of it has ended",
                Some(false) => "not all of it has ended",
                None => "whether it has ended is not known",
            };
            let mut line = format!("{name}: {launches} put there since it was waited for, the last one {last}; ");
            let _ = write!(line, "{standing}; the first one came {:.1} s ago", since.elapsed().as_secs_f64());
            lines.push(line);
        }
        if state.queued.len() > SHOWN {
            lines.push(format!("{} more streams with work", state.queued.len() - SHOWN));
        }
        lines
    }
}

/// While it lives, the PE's thread does what it was made with.
#[derive(Debug)]
pub(crate) struct Doing<'a>(&'a Board);

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        self.0.state().doing = None;
    }
}
