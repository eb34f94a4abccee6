//! What the host knows of its own calls: it counts them, and records them or tells a tool of them
//! where that is requested.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use oxshmem_system::clock::monotonic_ns;

use super::nvtx::Tool;
use crate::config::Config;

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// This PE alone.
    Own,
    /// A PE that data moves to or from. It may not exist; the call says so.
    Peer(usize),
    /// A team, by its handle.
    Team(i32),
}

/// How often something was called, how many bytes it was to move, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    pub calls: u64,
    pub bytes: u64,
    pub nanoseconds: u64,
}

impl Count {
    fn add(&mut self, more: Self) {
        self.calls += more.calls;
        // A call that is refused may name any number of bytes.
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.nanoseconds += more.nanoseconds;
    }
}

/// A call that has ended. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostRecord {
    pub operation: &'static str,
    /// What was launched, say.
    pub detail: Option<Box<str>>,
    pub subject: Subject,
    pub bytes: u64,
    pub begin: u64,
    pub end: u64,
}

/// The newest calls.
#[derive(Debug)]
struct Records {
    most: usize,
    kept: VecDeque<HostRecord>,
    dropped: u64,
}

impl Records {
    fn push(&mut self, record: HostRecord) {
        if self.kept.len() >= self.most {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(record);
    }
}

/// Where the text of an operation's name is. Names are told apart by that, without a look at the
/// text; the same name may be in more than one place.
type Place = (usize, usize);

fn place(name: &'static str) -> Place {
    (name.as_ptr().addr(), name.len())
}

/// What calls are counted by: the place of the operation's name, and what they are about.
type Key = (Place, Subject);

/// What is counted. Many calls are like the one before them, so the last key is looked at first.
#[derive(Debug, Default)]
struct Counts {
    by_key: BTreeMap<Key, usize>,
    /// With the operation's name.
    all: Vec<(&'static str, Count)>,
    last: Option<(Key, usize)>,
}

impl Counts {
    fn add(&mut self, operation: &'static str, subject: Subject, more: Count) {
        let key = (place(operation), subject);
        let at = match self.last {
            Some((last, at)) if last == key => at,
            _ => self.find(key, operation),
        };
        if let Some((_, count)) = self.all.get_mut(at) {
            count.add(more);
        }
    }

    /// Returns where the calls with a key are counted.
    fn find(&mut self, key: Key, operation: &'static str) -> usize {
        let at = *self.by_key.entry(key).or_insert_with(|| {
            self.all.push((operation, Count::default()));
            self.all.len() - 1
        });
        self.last = Some((key, at));
        at
    }
}

/// The calls of a PE's host.
#[derive(Debug)]
pub(crate) struct HostProfile {
    counts: RefCell<Counts>,
    records: Option<RefCell<Records>>,
    tool: Option<&'static Tool>,
    /// Why there is no tool, though one was requested. It is reported once.
    missing: Cell<Option<&'static str>>,
    /// The tool has a range for a phase of init.
    in_phase: Cell<bool>,
}

impl HostProfile {
    /// Begins with no call, as the configuration requests.
    pub fn new(config: &Config) -> Self {
        let wanted = config.profile();
        let tool = wanted.nvtx.then(Tool::get).transpose();
        let most = config.profile_records() as usize;
        let records = || RefCell::new(Records { most, kept: VecDeque::new(), dropped: 0 });
        Self {
            counts: RefCell::default(),
            records: wanted.trace.then(records),
            tool: tool.ok().flatten(),
            missing: Cell::new(tool.err()),
            in_phase: Cell::new(false),
        }
    }

    /// Returns why NVTX ranges go nowhere, the first time.
    pub fn missing(&self) -> Option<&'static str> {
        self.missing.take()
    }

    /// Begins a call, which ends when what is returned is dropped.
    pub fn begins(&self, operation: &'static str, subject: Subject, bytes: u64) -> Call<'_> {
        self.begins_with(operation, None, subject, bytes)
    }

    /// Does the same for a call that tools and traces show under a name of its own.
    pub fn begins_with(&self, operation: &'static str, detail: Option<&str>, subject: Subject, bytes: u64) -> Call<'_> {
        if let Some(tool) = self.tool {
            tool.push(detail.unwrap_or(operation), bytes);
        }
        let detail = self.records.as_ref().and(detail).map(Box::from);
        Call { of: self, operation, detail, subject, bytes, begin: monotonic_ns() }
    }

    /// Begins a phase of init for tools.
    pub fn phase_begins(&self, name: &str) {
        if let Some(tool) = self.tool {
            tool.push(name, 0);
            self.in_phase.set(true);
        }
    }

    /// Ends the phase of init that began last; times are those of `CLOCK_MONOTONIC`.
    pub fn phase_ended(&self, name: &str, begin: u64, end: u64) {
        self.leave_phase();
        let detail = self.records.as_ref().map(|_| Box::from(name));
        self.ended(HostRecord { operation: "init", detail, subject: Subject::Own, bytes: 0, begin, end });
    }

    fn leave_phase(&self) {
        if let Some(tool) = self.tool.filter(|_| self.in_phase.replace(false)) {
            tool.pop();
        }
    }

    fn ended(&self, record: HostRecord) {
        let count = Count { calls: 1, bytes: record.bytes, nanoseconds: record.end - record.begin };
        self.counts.borrow_mut().add(record.operation, record.subject, count);
        if let Some(records) = &self.records {
            records.borrow_mut().push(record);
        }
    }

    /// Returns what was counted, by the names of the operations and what they are about.
    pub fn counts(&self) -> BTreeMap<(&'static str, Subject), Count> {
        let mut counts: BTreeMap<_, Count> = BTreeMap::new();
        let counted = self.counts.borrow();
        for ((_, subject), at) in &counted.by_key {
            let Some((operation, count)) = counted.all.get(*at) else { continue };
            counts.entry((*operation, *subject)).or_default().add(*count);
        }
        counts
    }

    /// Returns the newest calls in the order of their ends, and how many older ones were dropped.
    pub fn records(&self) -> (Vec<HostRecord>, u64) {
        self.records.as_ref().map_or_else(Default::default, |records| {
            let records = records.borrow();
            (records.kept.iter().cloned().collect(), records.dropped)
        })
    }
}

impl Drop for HostProfile {
    fn drop(&mut self) {
        // An init that failed.
        self.leave_phase();
    }
}

/// A call that has not ended.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    of: &'a HostProfile,
    operation: &'static str,
    detail: Option<Box<str>>,
    subject: Subject,
    bytes: u64,
    begin: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Self { of, operation, subject, bytes, begin, .. } = *self;
        let end = monotonic_ns();
        if let Some(tool) = of.tool {
            tool.pop();
        }
        of.ended(HostRecord { operation, detail: self.detail.take(), subject, bytes, begin, end });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Profile;

    fn profile(trace: bool) -> HostProfile {
        let wanted = Profile { trace, ..Profile::NONE };
        HostProfile::new(&Config::builder().profile(wanted).profile_records(64u32).build().unwrap())
    }

    #[test]
    fn calls_are_counted_by_what_they_are_about() {
        let profile = profile(false);
        drop(profile.begins("put", Subject::Peer(1), 8));
        drop(profile.begins("put", Subject::Peer(1), 16));
        drop(profile.begins("put", Subject::Peer(0), 1));
        drop(profile.begins("get", Subject::Peer(1), 4));
        // The same name at another place.
        drop(profile.begins(String::from("put").leak(), Subject::Peer(1), 32));
        let counted = |(of, count): (_, Count)| (of, count.calls, count.bytes);
        let counts: Vec<_> = profile.counts().into_iter().map(counted).collect();
        let [zero, one] = [Subject::Peer(0), Subject::Peer(1)];
        assert_eq!(counts, [(("get", one), 1, 4), (("put", zero), 1, 1), (("put", one), 3, 56)]);
        assert_eq!(profile.records(), (Vec::new(), 0));
    }

    #[test]
    fn the_oldest_records_give_way_and_are_counted() {
        let profile = profile(true);
        (0..100).for_each(|bytes| drop(profile.begins("put", Subject::Own, bytes)));
        let (kept, dropped) = profile.records();
        assert_eq!((kept.len(), dropped), (64, 36));
        assert_eq!(kept.iter().map(|record| record.bytes).collect::<Vec<_>>(), (36..100).collect::<Vec<u64>>());
        assert!(kept.iter().all(|record| record.begin <= record.end));
    }
}
