//! What the host knows of its own calls: it counts them, and records them or tells a tool of them
//! where that is requested.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use oxshmem_system::clock::monotonic_ns;

use super::nvtx::Tool;
use crate::config::Config;

/// Declares [`Operation`] with the names of its variants in the API.
macro_rules! operations {
    ($($operation:ident: $name:literal,)*) => {
        /// A call of the host's API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Operation {
            $($operation,)*
        }

        impl Operation {
            const ALL: &[Self] = &[$(Self::$operation,)*];

            /// Returns its name in the API.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$operation => $name,)*
                }
            }
        }
    };
}
operations! {
    Alloc: "alloc",
    Alltoall: "alltoall",
    Alltoalls: "alltoalls",
    Atomic: "atomic",
    Barrier: "barrier",
    Broadcast: "broadcast",
    Collect: "collect",
    Fcollect: "fcollect",
    Fence: "fence",
    Free: "free",
    Get: "get",
    Iget: "iget",
    Init: "init",
    Iput: "iput",
    Launch: "launch",
    P: "p",
    Put: "put",
    PutSignal: "put_signal",
    Quiet: "quiet",
    Reduce: "reduce",
    Reducescatter: "reducescatter",
    SignalOp: "signal_op",
    SignalWaitUntil: "signal_wait_until",
    Sync: "sync",
    Wait: "wait",
    WaitUntil: "wait_until",
}

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// This PE alone.
    Own,
    /// A PE that data moves to or from. A call about one that does not exist is refused, and not
    /// counted.
    Peer(usize),
    /// A team, by its handle.
    Team(i32),
}

/// How often something was called, how many bytes it was to move, and how long the calls took that
/// were timed.
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
    pub operation: Operation,
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

/// The counts of all operations about one subject.
type Row = [Count; Operation::ALL.len()];

/// What is counted.
#[derive(Debug, Default)]
struct Counts {
    own: Row,
    /// By PE, where there was a call about it.
    peers: Vec<Option<Box<Row>>>,
    teams: BTreeMap<i32, Row>,
}

impl Counts {
    fn add(&mut self, operation: Operation, subject: Subject, more: Count) {
        let row = match subject {
            Subject::Own => &mut self.own,
            Subject::Peer(pe) => match self.peers.get_mut(pe) {
                Some(row) => row.get_or_insert_default(),
                None => return,
            },
            Subject::Team(team) => self.teams.entry(team).or_default(),
        };
        row[operation as usize].add(more);
    }

    fn rows(&self) -> impl Iterator<Item = (Subject, &Row)> {
        let peers = self.peers.iter().enumerate();
        let peers = peers.filter_map(|(pe, row)| row.as_deref().map(|row| (Subject::Peer(pe), row)));
        let teams = self.teams.iter().map(|(team, row)| (Subject::Team(*team), row));
        std::iter::once((Subject::Own, &self.own)).chain(peers).chain(teams)
    }
}

/// The calls of a PE's host.
#[derive(Debug)]
pub(crate) struct HostProfile {
    counts: RefCell<Counts>,
    records: Option<RefCell<Records>>,
    tool: Option<&'static Tool>,
    /// Calls that only queue work are timed, too: counters or a trace were requested.
    times_all: bool,
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
            times_all: wanted.counters || wanted.trace,
            missing: Cell::new(tool.err()),
            in_phase: Cell::new(false),
        }
    }

    /// Returns why NVTX ranges go nowhere, the first time.
    pub fn missing(&self) -> Option<&'static str> {
        self.missing.take()
    }

    /// Counts calls about the PEs of a job of `n_pes` from now on.
    pub fn joined(&self, n_pes: usize) {
        self.counts.borrow_mut().peers.resize(n_pes, None);
    }

    /// Begins a call, which ends when what is returned is dropped.
    pub fn begins(&self, operation: Operation, subject: Subject, bytes: u64) -> Call<'_> {
        self.call(operation, None, subject, bytes, true)
    }

    /// Does the same for a call that only queues work. It is timed only if counters or a
    /// trace were requested: two looks at the clock take 0.06 us, and to queue a copy the driver
    /// takes 1.5.
    pub fn queues(&self, operation: Operation, subject: Subject, bytes: u64) -> Call<'_> {
        self.call(operation, None, subject, bytes, self.times_all)
    }

    /// Does the same for the launch of a kernel, which tools and traces show by its name.
    pub fn launches(&self, kernel: &str) -> Call<'_> {
        self.call(Operation::Launch, Some(kernel), Subject::Own, 0, self.times_all)
    }

    #[inline]
    fn call(
        &self,
        operation: Operation,
        detail: Option<&str>,
        subject: Subject,
        bytes: u64,
        is_timed: bool,
    ) -> Call<'_> {
        if let Some(tool) = self.tool {
            tool.push(detail.unwrap_or(operation.name()), bytes);
        }
        let detail = self.records.as_ref().and(detail).map(Box::from);
        Call { of: self, operation, detail, subject, bytes, begin: is_timed.then(monotonic_ns) }
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
        self.count(Operation::Init, Subject::Own, 0, end - begin);
        self.record(HostRecord { operation: Operation::Init, detail, subject: Subject::Own, bytes: 0, begin, end });
    }

    fn leave_phase(&self) {
        if let Some(tool) = self.tool.filter(|_| self.in_phase.replace(false)) {
            tool.pop();
        }
    }

    fn count(&self, operation: Operation, subject: Subject, bytes: u64, nanoseconds: u64) {
        self.counts.borrow_mut().add(operation, subject, Count { calls: 1, bytes, nanoseconds });
    }

    fn record(&self, record: HostRecord) {
        if let Some(records) = &self.records {
            records.borrow_mut().push(record);
        }
    }

    /// Returns what was counted, by what was called and what the calls were about.
    pub fn counts(&self) -> Vec<(Operation, Subject, Count)> {
        let counts = self.counts.borrow();
        let of = |(subject, row): (Subject, &Row)| {
            Operation::ALL.iter().zip(*row).map(move |(operation, count)| (*operation, subject, count))
        };
        let mut counted: Vec<_> = counts.rows().flat_map(of).filter(|(_, _, count)| count.calls != 0).collect();
        counted.sort_by_key(|(operation, subject, _)| (*operation, *subject));
        counted
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
    operation: Operation,
    detail: Option<Box<str>>,
    subject: Subject,
    bytes: u64,
    /// When it began, if it is timed.
    begin: Option<u64>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Self { of, operation, subject, bytes, begin, .. } = *self;
        let times = begin.map(|begin| (begin, monotonic_ns()));
        if let Some(tool) = of.tool {
            tool.pop();
        }
        of.count(operation, subject, bytes, times.map_or(0, |(begin, end)| end - begin));
        if let Some((begin, end)) = times {
            of.record(HostRecord { operation, detail: self.detail.take(), subject, bytes, begin, end });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Profile;

    const TRACE: Profile = Profile { trace: true, ..Profile::NONE };

    fn profile(wanted: Profile) -> HostProfile {
        HostProfile::new(&Config::builder().profile(wanted).profile_records(64u32).build().unwrap())
    }

    #[test]
    fn calls_are_counted_by_what_they_are_about() {
        let profile = profile(Profile::NONE);
        profile.joined(2);
        drop(profile.begins(Operation::Put, Subject::Peer(1), 8));
        drop(profile.begins(Operation::Put, Subject::Peer(1), 16));
        drop(profile.begins(Operation::Put, Subject::Peer(0), 1));
        drop(profile.begins(Operation::Get, Subject::Peer(1), u64::MAX));
        drop(profile.begins(Operation::Get, Subject::Peer(1), 4));
        drop(profile.begins(Operation::Sync, Subject::Team(7), 0));
        drop(profile.begins(Operation::Quiet, Subject::Own, 0));
        // No such PE.
        drop(profile.begins(Operation::Put, Subject::Peer(2), 8));
        let counted = |(of, subject, count): (Operation, _, Count)| (of.name(), subject, count.calls, count.bytes);
        let counts: Vec<_> = profile.counts().into_iter().map(counted).collect();
        let [zero, one] = [Subject::Peer(0), Subject::Peer(1)];
        let wanted = [
            ("get", one, 2, u64::MAX),
            ("put", zero, 1, 1),
            ("put", one, 2, 24),
            ("quiet", Subject::Own, 1, 0),
            ("sync", Subject::Team(7), 1, 0),
        ];
        assert_eq!(counts, wanted);
        assert_eq!(profile.records(), (Vec::new(), 0));
    }

    #[test]
    fn what_only_queues_work_is_timed_for_a_profile_alone() {
        let counters = Profile { counters: true, ..Profile::NONE };
        let nvtx = Profile { nvtx: true, ..Profile::NONE };
        for (wanted, times_all) in [(Profile::NONE, false), (nvtx, false), (counters, true), (TRACE, true)] {
            let profile = profile(wanted);
            let took = |call: Call<'_>| {
                let begin = monotonic_ns();
                while monotonic_ns() == begin {}
                drop(call);
                let counts = profile.counts();
                counts.iter().map(|(.., count)| count.nanoseconds).sum::<u64>()
            };
            let queued = took(profile.queues(Operation::Put, Subject::Own, 8));
            let launched = took(profile.launches("kernel"));
            let waited = took(profile.begins(Operation::Wait, Subject::Own, 0));
            let timed = (queued != 0, launched > queued, waited > launched);
            assert_eq!(timed, (times_all, times_all, true), "{wanted:?}");
        }
    }

    #[test]
    fn the_oldest_records_give_way_and_are_counted() {
        let profile = profile(TRACE);
        (0..100).for_each(|bytes| drop(profile.queues(Operation::Put, Subject::Own, bytes)));
        let (kept, dropped) = profile.records();
        assert_eq!((kept.len(), dropped), (64, 36));
        assert_eq!(kept.iter().map(|record| record.bytes).collect::<Vec<_>>(), (36..100).collect::<Vec<u64>>());
        assert!(kept.iter().all(|record| record.begin <= record.end));
    }
}
