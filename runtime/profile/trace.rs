//! Calls with what became of them: records of device code, of the proxy and of the host, put
//! together.
//!
//! Device code makes records of four kinds as it goes, which do not name each other
//! (`abi::ProfileKind`). What a thread posts between the beginning and the end of a call belongs to
//! that call. A request is rung for by the first doorbell of its QP that covers it, whichever
//! thread rang, and complete when that is first seen.

use std::collections::BTreeMap;

use oxshmem_proxy::thread::{Happened, Moment};
use serde::Serialize;

use super::device::DeviceRecords;
use super::host::{HostRecord, Subject};
use crate::abi::{self, ProfileKind, ProfileRecord};
use crate::fault;

/// What made a call.
///
/// ```
/// use oxshmem::Origin;
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let of_kernels = pe.trace()?.calls.iter().filter(|call| call.origin == Origin::Device).count();
/// # assert_eq!(of_kernels, 0);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Origin {
    /// The program on the host.
    Host,
    /// A thread of a kernel that was compiled with `OXSHMEM_PROFILE`.
    Device,
}

/// A call of the API, and what became of its work requests. Times are nanoseconds of this machine's
/// `CLOCK_MONOTONIC`; those of a GPU are converted, and precise to a microsecond or so.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// for call in &pe.trace()?.calls {
///     let took = call.end_ns - call.begin_ns;
///     println!("{} of {} bytes took {took} ns", call.operation, call.bytes);
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TraceCall {
    /// What made it.
    pub origin: Origin,
    /// What it does, by its name in the API: `put`, say.
    pub operation: &'static str,
    /// What it is called in this program: the kernel of a `launch`, say.
    pub detail: Option<Box<str>>,
    /// The peer.
    pub pe: Option<usize>,
    /// The handle of the team.
    pub team: Option<i32>,
    /// Bytes that it is to move.
    pub bytes: u64,
    /// When it began, which is when the caller posted.
    pub begin_ns: u64,
    /// When it returned.
    pub end_ns: u64,
    /// Of device code: the rank of the block in the grid, and of the thread in the block.
    pub thread: Option<(u32, u32)>,
    /// Groups of work requests that it posted by itself.
    pub posts: u32,
    /// When the last of its work requests was rung for. `None` if it has none, or if the record of
    /// that is gone.
    pub doorbell_ns: Option<u64>,
    /// When the last of its work requests was seen to be complete. `None` as above.
    pub completion_ns: Option<u64>,
}

/// What a PE has recorded. Made by [`Pe::trace`](crate::Pe::trace).
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let trace = pe.trace()?;
/// assert_eq!((trace.calls.len(), trace.dropped), (0, 0)); // OXSHMEM_PROFILE=trace is not set
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Trace {
    /// In the order of their beginnings.
    pub calls: Vec<TraceCall>,
    /// Records that newer ones have displaced: of device code, of the host and of the proxy
    /// together. One call of device code makes several.
    pub dropped: u64,
}

/// What a trace is made of.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub device: DeviceRecords,
    pub host: (Vec<HostRecord>, u64),
    pub proxy: (Vec<Moment>, u64),
    /// What is added to times of the device to get those of the host.
    pub offset: i64,
    /// Whether the proxy posts: then requests are descriptors of its ring.
    pub by_proxy: bool,
}

/// A place where requests are counted: a QP by its number, or a queue of the proxy and its peer.
type Place = (u32, i32);
/// The whole ring of the proxy.
const RING: Place = (0, -1);

/// When which requests had got somewhere.
#[derive(Debug, Default)]
struct Marks {
    /// A time, and the index that was reached by then: both rise.
    reached: Vec<(u64, u64)>,
}

impl Marks {
    fn by_place(mut marks: Vec<(Place, u64, u64)>) -> BTreeMap<Place, Self> {
        marks.sort_unstable();
        let mut by_place: BTreeMap<Place, Self> = BTreeMap::new();
        for (place, at, index) in marks {
            let reached = &mut by_place.entry(place).or_default().reached;
            // A later mark that says less adds nothing.
            if reached.last().is_none_or(|(_, highest)| index > *highest) {
                reached.push((at, index));
            }
        }
        by_place
    }

    /// Returns when all requests before `index` had got there.
    fn when(&self, index: u64) -> Option<u64> {
        let first = self.reached.partition_point(|(_, reached)| *reached < index);
        self.reached.get(first).map(|(at, _)| *at)
    }
}

impl Recorded {
    /// Puts it together.
    pub fn trace(self) -> Trace {
        let Self { device, host: (host, host_dropped), proxy: (moments, forgotten), offset, by_proxy } = self;
        let dropped = device.dropped + host_dropped + forgotten;
        let (mut calls, mut posts) = (Vec::new(), Vec::new());
        let (mut rung, mut completed) = (Vec::new(), Vec::new());
        for record in &device.kept {
            let at = shifted(record.begin, offset);
            match u32::from(record.kind) {
                kind if kind == ProfileKind::Call as u32 => calls.push(call_of(record, offset)),
                kind if kind == ProfileKind::Request as u32 => posts.push((record, at)),
                kind if kind == ProfileKind::Doorbell as u32 => rung.push((place(record, by_proxy), at, record.index)),
                _ if by_proxy => completed.push((RING, at, record.index)),
                _ => completed.push((place(record, by_proxy), at, record.index)),
            }
        }
        for Moment { at, what } in moments {
            match what {
                Happened::Posted { pe, queue, end } => rung.push(((queue, pe.cast_signed()), at, end)),
                Happened::Completed(end) => completed.push((RING, at, end)),
            }
        }
        let (rung, completed) = (Marks::by_place(rung), Marks::by_place(completed));
        calls.sort_by_key(|call: &TraceCall| call.begin_ns);
        let by_thread = by_thread(&calls);
        let mut fates: Vec<Fate> = vec![Fate::default(); calls.len()];
        for (record, at) in posts {
            let Some(call) = enclosing(&calls, by_thread.get(&(record.block, record.thread)), at) else { continue };
            let place = place(record, by_proxy);
            let done = if by_proxy { RING } else { place };
            let when = |marks: &BTreeMap<Place, Marks>, place| marks.get(&place).and_then(|m| m.when(record.index));
            fates[call].add(when(&rung, place), when(&completed, done));
        }
        for (call, fate) in calls.iter_mut().zip(fates) {
            call.posts = fate.posts;
            call.doorbell_ns = fate.doorbell.filter(|_| !fate.unrung);
            call.completion_ns = fate.completion.filter(|_| !fate.open);
        }
        calls.extend(host.into_iter().map(host_call));
        calls.sort_by_key(|call| call.begin_ns);
        Trace { calls, dropped }
    }
}

/// What became of the requests of a call.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    posts: u32,
    doorbell: Option<u64>,
    completion: Option<u64>,
    /// The doorbell, or the completion, of some is not known.
    unrung: bool,
    open: bool,
}

impl Fate {
    fn add(&mut self, doorbell: Option<u64>, completion: Option<u64>) {
        self.posts += 1;
        self.unrung |= doorbell.is_none();
        self.open |= completion.is_none();
        self.doorbell = self.doorbell.max(doorbell);
        self.completion = self.completion.max(completion);
    }
}

fn place(record: &ProfileRecord, by_proxy: bool) -> Place {
    (record.qpn, if by_proxy { record.pe } else { 0 })
}

fn shifted(at: u64, offset: i64) -> u64 {
    at.saturating_add_signed(offset)
}

fn call_of(record: &ProfileRecord, offset: i64) -> TraceCall {
    TraceCall {
        origin: Origin::Device,
        operation: fault::operation(record.op.into()).unwrap_or("operation"),
        detail: None,
        pe: usize::try_from(record.pe).ok(),
        team: (record.team != abi::TEAM_INVALID).then_some(record.team),
        bytes: record.bytes,
        begin_ns: shifted(record.begin, offset),
        end_ns: shifted(record.end, offset),
        thread: Some((record.block, record.thread)),
        posts: 0,
        doorbell_ns: None,
        completion_ns: None,
    }
}

fn host_call(record: HostRecord) -> TraceCall {
    let HostRecord { operation, detail, subject, bytes, begin, end } = record;
    TraceCall {
        origin: Origin::Host,
        operation: operation.name(),
        detail,
        pe: if let Subject::Peer(pe) = subject { Some(pe) } else { None },
        team: if let Subject::Team(team) = subject { Some(team) } else { None },
        bytes,
        begin_ns: begin,
        end_ns: end,
        thread: None,
        posts: 0,
        doorbell_ns: None,
        completion_ns: None,
    }
}

/// Returns the calls of each thread, by their places, in the order of their beginnings.
fn by_thread(calls: &[TraceCall]) -> BTreeMap<(u32, u32), Vec<usize>> {
    let mut by_thread: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, call) in calls.iter().enumerate() {
        by_thread.entry(call.thread.unwrap_or_default()).or_default().push(at);
    }
    by_thread
}

/// Returns the call that was under way at a time: the latest to begin, as calls of the API make
/// others.
fn enclosing(calls: &[TraceCall], of_thread: Option<&Vec<usize>>, at: u64) -> Option<usize> {
    /// Calls that are within each other, at most.
    const DEPTH: usize = 8;
    let of_thread = of_thread?;
    let begun = of_thread.partition_point(|call| calls[*call].begin_ns <= at);
    of_thread[..begun].iter().rev().take(DEPTH).copied().find(|call| calls[*call].end_ns >= at)
}

/// Returns how much later the host's clock is than the device's, given times of the host before and
/// after the device's clock was read.
pub(super) fn clock_offset(before: u64, device: u64, after: u64) -> i64 {
    let middle = before + (after - before) / 2;
    middle.wrapping_sub(device).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    fn record(kind: ProfileKind, (begin, end): (u64, u64), index: u64) -> ProfileRecord {
        let op = abi::Op::Put as u16;
        ProfileRecord { kind: kind as u16, begin, end, index, qpn: 7, pe: 1, op, team: -1, ..ProfileRecord::zeroed() }
    }

    fn trace(kept: Vec<ProfileRecord>) -> Vec<TraceCall> {
        let device = DeviceRecords { kept, dropped: 0 };
        Recorded { device, offset: 1000, ..Recorded::default() }.trace().calls
    }

    #[test]
    fn a_request_belongs_to_the_call_of_its_thread_and_ends_with_the_first_mark_that_covers_it() {
        let other_thread = ProfileRecord { thread: 3, ..record(ProfileKind::Request, (12, 12), 9) };
        let other_qp = ProfileRecord { qpn: 8, ..record(ProfileKind::Completion, (21, 21), 100) };
        let calls = trace(vec![
            record(ProfileKind::Request, (12, 12), 1),
            record(ProfileKind::Doorbell, (14, 14), 1),
            record(ProfileKind::Call, (10, 20), 0),
            other_thread,
            record(ProfileKind::Request, (32, 32), 2),
            record(ProfileKind::Call, (30, 40), 0),
            other_qp,
            record(ProfileKind::Doorbell, (50, 50), 2),
            record(ProfileKind::Completion, (60, 60), 1),
            record(ProfileKind::Completion, (70, 70), 2),
        ]);
        let fates: Vec<_> = calls.iter().map(|call| (call.posts, call.doorbell_ns, call.completion_ns)).collect();
        assert_eq!(fates, [(1, Some(1014), Some(1060)), (1, Some(1050), Some(1070))]);
        assert_eq!((calls[0].begin_ns, calls[0].end_ns, calls[0].pe), (1010, 1020, Some(1)));
    }

    #[test]
    fn what_is_not_known_of_one_request_is_not_known_of_the_call() {
        let calls = trace(vec![
            record(ProfileKind::Call, (10, 20), 0),
            record(ProfileKind::Request, (11, 11), 1),
            record(ProfileKind::Request, (12, 12), 2),
            record(ProfileKind::Doorbell, (13, 13), 2),
            record(ProfileKind::Completion, (15, 15), 1),
        ]);
        assert_eq!((calls[0].posts, calls[0].doorbell_ns, calls[0].completion_ns), (2, Some(1013), None));
    }

    #[test]
    fn the_proxy_posts_by_queue_and_completes_in_order() {
        let request = ProfileRecord { qpn: 2, ..record(ProfileKind::Request, (12, 12), 5) };
        let device = DeviceRecords { kept: vec![record(ProfileKind::Call, (10, 20), 0), request], dropped: 3 };
        let moment = |at, what| Moment { at, what };
        let moments = vec![
            moment(30, Happened::Posted { pe: 0, queue: 2, end: 9 }),
            moment(31, Happened::Posted { pe: 1, queue: 1, end: 9 }),
            moment(32, Happened::Posted { pe: 1, queue: 2, end: 5 }),
            moment(40, Happened::Completed(4)),
            moment(41, Happened::Completed(8)),
        ];
        let recorded = Recorded { device, proxy: (moments, 2), by_proxy: true, ..Recorded::default() };
        let Trace { calls, dropped } = recorded.trace();
        assert_eq!((calls[0].doorbell_ns, calls[0].completion_ns, dropped), (Some(32), Some(41), 5));
    }

    #[test]
    fn clocks_may_differ_either_way() {
        assert_eq!((clock_offset(100, 40, 120), clock_offset(100, 1000, 120)), (70, -890));
        assert_eq!(shifted(1000, -890), 110);
    }
}
