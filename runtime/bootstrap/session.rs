//! What the hub decides, without sockets, threads or clocks: events go in with the time, actions come out.
//!
//! A generation starts with the first HELLO and ends when every rank has said GOODBYE; then the next may start. Within it one
//! collective of all ranks is open at a time, and beside it gathers among some of them (`group.rs`). Any failure is for good, but for
//! those of such gathers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::frame::{Frame, FrameError, HUB, Hello, MAX_RESULT, Message, Op};
use super::group::{Answer, Arrival, Groups};
use super::{Failure, FailureKind, JobId, Peer, Seconds, list};
use crate::config::MAX_NPES;

/// A connection's number, never used twice.
pub type Connection = u64;

/// How long a connection may take to say HELLO.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// What the hub must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the bytes of a frame.
    Send(Connection, Arc<[u8]>),
    /// This connection is a rank's: it may send long payloads.
    Greeted(Connection),
    /// Close once all that was to be sent is.
    Close(Connection),
}

/// State of one job.
#[derive(Debug)]
pub struct Session {
    job: JobId,
    /// Ranks of the job when the launcher said so; else the first HELLO of each generation does.
    fixed_npes: Option<u32>,
    generation: u32,
    connections: BTreeMap<Connection, State>,
    /// By rank; empty between generations.
    members: Vec<Option<Member>>,
    /// Until when every rank must have joined, and the time that was allowed; `None` once complete or before the first.
    joining: Option<(Duration, Duration)>,
    next_sequence: u64,
    open: Option<Collective>,
    groups: Groups,
    failure: Option<Failure>,
    /// Ranks whose process has ended, and how.
    exited: BTreeMap<u32, String>,
    actions: Vec<Action>,
}

#[derive(Debug)]
enum State {
    /// Has not said HELLO; dropped at this time.
    Silent(Duration),
    Member(u32),
    /// Refused or done: whatever it still says is ignored.
    Left,
}

#[derive(Debug)]
struct Member {
    connection: Connection,
    timeout: Duration,
    peer: Peer,
}

#[derive(Debug)]
struct Collective {
    op: Op,
    label: String,
    first: u32,
    deadline: Duration,
    timeout: Duration,
    parts: Vec<Option<Vec<u8>>>,
}

impl Session {
    /// A job that no rank has joined yet. `npes` when it is known beforehand.
    pub fn new(job: JobId, npes: Option<u32>) -> Self {
        Self {
            job,
            fixed_npes: npes,
            generation: 1,
            connections: BTreeMap::new(),
            members: Vec::new(),
            joining: None,
            next_sequence: 1,
            open: None,
            groups: Groups::default(),
            failure: None,
            exited: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    /// The actions since the last call, in the order in which they must be done.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Why the job has failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Connections that are no rank's.
    pub fn strangers(&self) -> usize {
        self.connections.values().filter(|state| !matches!(state, State::Member(_))).count()
    }

    /// Gathers among some ranks that are under way, and those that failed and are remembered.
    pub fn groups(&self) -> (usize, usize) {
        (self.groups.open(), self.groups.failures())
    }

    /// When [`Session::tick`] has something to do next.
    pub fn deadline(&self) -> Option<Duration> {
        let silent = self.connections.values().filter_map(|state| match state {
            State::Silent(deadline) => Some(*deadline),
            _ => None,
        });
        let joining = self.joining.map(|(deadline, _)| deadline);
        let open = self.open.as_ref().map(|open| open.deadline);
        silent.chain(joining).chain(open).chain(self.groups.deadline()).min()
    }

    /// A connection was accepted.
    pub fn opened(&mut self, now: Duration, connection: Connection) {
        self.connections.insert(connection, State::Silent(now.saturating_add(HELLO_DEADLINE)));
    }

    /// A connection is gone, or must be given up: `why` completes the sentence "PE k ...".
    pub fn broken(&mut self, connection: Connection, why: &str) {
        match self.connections.remove(&connection) {
            Some(State::Member(rank)) => {
                let how = self.exited.get(&rank).map_or(why, String::as_str);
                let message = format!("PE {rank}{} died: it {how}", self.place(rank));
                self.fail(FailureKind::Lost, vec![rank], message);
            }
            Some(State::Silent(_)) => tracing::warn!("a connection to the rendezvous was dropped: it {why}"),
            Some(State::Left) | None => {}
        }
    }

    /// A connection carries something other than frames.
    pub fn garbage(&mut self, connection: Connection, error: &FrameError) {
        if let (Some(State::Silent(_)), FrameError::Version(_)) = (self.connections.get(&connection), error) {
            // An OxSHMEM of another version can at least see from the answer's header which one is here.
            self.refuse(connection, HUB, error.to_string());
        } else {
            self.give_up(connection, &format!("sent what is not a frame: {error}"));
        }
    }

    /// The process of `rank` has ended; `how` completes the sentence "PE k ...".
    pub fn exited(&mut self, rank: u32, how: &str) {
        self.exited.insert(rank, how.to_owned());
        self.check_exited();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        let late = self.connections.iter().filter(|(_, state)| matches!(state, State::Silent(at) if *at <= now));
        for connection in late.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.give_up(connection, "did not say HELLO in time");
        }
        if let Some((_, timeout)) = self.joining.filter(|(deadline, _)| *deadline <= now) {
            let absent: Vec<u32> =
                (0..).zip(&self.members).filter(|(_, m)| m.is_none()).map(|(rank, _)| rank).collect();
            let what = format!("did not join the job within {}", Seconds(timeout));
            self.missing(absent, &what);
        }
        if let Some(open) = self.open.as_ref().filter(|open| open.deadline <= now) {
            let absent: Vec<u32> = (0..).zip(&open.parts).filter(|(_, p)| p.is_none()).map(|(rank, _)| rank).collect();
            let what = format!(
                "did not arrive within {} at {}, which PE {} entered first",
                Seconds(open.timeout),
                describe(open.op, self.next_sequence, &open.label),
                open.first,
            );
            self.missing(absent, &what);
        }
        for answer in self.groups.tick(now) {
            self.answer(answer);
        }
    }

    /// A frame arrived.
    pub fn frame(&mut self, now: Duration, connection: Connection, frame: Frame) {
        match self.connections.get(&connection) {
            Some(State::Silent(_)) => match frame.message {
                Message::Hello(hello) => self.hello(now, connection, frame.rank, frame.generation, hello),
                other => self.refuse(connection, frame.rank, format!("it sent {:?} before HELLO", other.op())),
            },
            Some(State::Member(rank)) => self.member_says(now, *rank, frame),
            Some(State::Left) | None => {}
        }
    }

    fn hello(&mut self, now: Duration, connection: Connection, rank: u32, generation: u32, hello: Hello) {
        if hello.job != self.job {
            let (here, there) = (self.job.short(), hello.job.short());
            return self.refuse(
                connection,
                rank,
                format!("this is the rendezvous of job {here}..., not of job {there}..."),
            );
        }
        if let Some(failure) = self.failure.clone() {
            return self.send_failure(connection, failure);
        }
        let first = self.members.iter().position(Option::is_some);
        let known = if first.is_some() { Some(self.members.len()) } else { self.fixed_npes.map(|npes| npes as usize) };
        if let Some(npes) = known
            && hello.npes as usize != npes
        {
            let who = match (self.fixed_npes, first) {
                (None, Some(first)) => format!("PE {first}"),
                _ => "the launcher".into(),
            };
            let reason = format!("PE {rank} says that the job has {} PEs, {who} says {npes}", hello.npes);
            return self.refuse(connection, rank, reason);
        }
        if hello.npes == 0 || hello.npes > MAX_NPES {
            return self.refuse(connection, rank, format!("a job has 1 to {MAX_NPES} PEs, not {}", hello.npes));
        }
        if rank >= hello.npes {
            let last = hello.npes - 1;
            return self.refuse(
                connection,
                rank,
                format!("rank {rank} in a job of {} PEs: ranks are 0 to {last}", hello.npes),
            );
        }
        if generation != 0 && generation != self.generation {
            let reason =
                format!("PE {rank} initialises for the {generation}. time, the job for the {}.", self.generation);
            return self.refuse(connection, rank, reason);
        }
        if let Some(Some(other)) = self.members.get(rank as usize) {
            let reason = format!(
                "rank {rank} is taken by process {} on {}, and process {} on {} claims it too",
                other.peer.pid, other.peer.host, hello.peer.pid, hello.peer.host
            );
            return self.refuse(connection, rank, reason);
        }
        if self.members.is_empty() {
            self.members.resize_with(hello.npes as usize, || None);
            self.joining = Some((now.saturating_add(hello.timeout), hello.timeout));
        }
        self.members[rank as usize] = Some(Member { connection, timeout: hello.timeout, peer: hello.peer });
        self.connections.insert(connection, State::Member(rank));
        self.actions.push(Action::Greeted(connection));
        self.send(connection, Message::Accepted);
        if self.members.iter().all(Option::is_some) {
            self.joining = None;
            let peers = self.members.iter().flatten().map(|member| member.peer.clone()).collect();
            self.send_all(0, Message::Welcome { peers });
        } else {
            self.check_exited();
        }
    }

    fn member_says(&mut self, now: Duration, rank: u32, frame: Frame) {
        if self.failure.is_some() {
            return;
        }
        if frame.rank != rank || frame.generation != self.generation {
            let message = format!(
                "PE {rank} of generation {} sent a frame as PE {} of generation {}",
                self.generation, frame.rank, frame.generation
            );
            return self.fail(FailureKind::Mismatch, vec![rank], message);
        }
        let (op, label, part) = match frame.message {
            Message::Allgather { label, data } => (Op::Allgather, label, data),
            Message::Barrier { label } => (Op::Barrier, label, Vec::new()),
            Message::Goodbye => (Op::Goodbye, String::new(), Vec::new()),
            Message::Group(arrival) => return self.arrived_in_group(now, rank, arrival),
            Message::Abort { reason } => {
                let failure = super::aborted(rank, &reason);
                return self.fail(failure.kind, failure.ranks, failure.message);
            }
            other => {
                let message = format!("PE {rank} sent {:?}, which only the rendezvous sends", other.op());
                return self.fail(FailureKind::Mismatch, vec![rank], message);
            }
        };
        self.arrived(now, rank, frame.sequence, op, label, part);
    }

    fn arrived(&mut self, now: Duration, rank: u32, sequence: u64, op: Op, label: String, part: Vec<u8>) {
        let what = describe(op, sequence, &label);
        if self.joining.is_some() {
            let message = format!("PE {rank} entered {what} before every PE had joined");
            return self.fail(FailureKind::Mismatch, vec![rank], message);
        }
        if let Some(here) = self.groups.of(rank) {
            let message = format!("PE {rank} entered {what} while it is in {here}");
            return self.fail(FailureKind::Mismatch, vec![rank], message);
        }
        if let Some(open) = &self.open {
            let here = describe(open.op, self.next_sequence, &open.label);
            let first = open.first;
            if open.parts[rank as usize].is_some() {
                let message = format!("PE {rank} entered {what} while it is in {here}");
                return self.fail(FailureKind::Mismatch, vec![rank], message);
            }
            if (open.op, &open.label) != (op, &label) || sequence != self.next_sequence {
                let message = format!("PEs disagree: PE {first} entered {here}, PE {rank} entered {what}");
                return self.fail(FailureKind::Mismatch, vec![first, rank], message);
            }
        } else if sequence != self.next_sequence {
            let message = format!("PE {rank} entered {what}, the job is at collective {}", self.next_sequence);
            return self.fail(FailureKind::Mismatch, vec![rank], message);
        }
        let count = self.members.len();
        let timeout = self.members[rank as usize].as_ref().map_or(Duration::ZERO, |member| member.timeout);
        let open = self.open.get_or_insert_with(|| Collective {
            op,
            label,
            first: rank,
            deadline: now.saturating_add(timeout),
            timeout,
            parts: vec![None; count],
        });
        open.parts[rank as usize] = Some(part);
        if open.parts.iter().all(Option::is_some)
            && let Some(open) = self.open.take()
        {
            self.complete(open);
        }
    }

    fn arrived_in_group(&mut self, now: Duration, rank: u32, arrival: Arrival) {
        let entered = self.open.as_ref().filter(|open| open.parts[rank as usize].is_some());
        let here = entered.map(|open| describe(open.op, self.next_sequence, &open.label));
        let problem = if self.joining.is_some() {
            Some("before every PE had joined".to_owned())
        } else {
            here.or_else(|| self.groups.of(rank)).map(|here| format!("while it is in {here}"))
        };
        if let Some(problem) = problem {
            let message = format!("PE {rank} entered {} {problem}", arrival.label);
            return self.fail(FailureKind::Mismatch, vec![rank], message);
        }
        let timeout = self.members[rank as usize].as_ref().map_or(Duration::ZERO, |member| member.timeout);
        let answer = self.groups.arrived(now, (rank, timeout), self.members.len() as u32, arrival);
        if let Some(answer) = answer {
            self.answer(answer);
        }
    }

    fn answer(&mut self, answer: Answer) {
        let bytes = self.emit(0, answer.message);
        let members = answer.to.iter().filter_map(|rank| self.members.get(*rank as usize)?.as_ref());
        let connected = members.filter(|member| self.connections.contains_key(&member.connection));
        self.actions.extend(connected.map(|member| Action::Send(member.connection, Arc::clone(&bytes))));
    }

    fn complete(&mut self, open: Collective) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        match open.op {
            Op::Allgather => {
                let parts: Vec<Vec<u8>> = open.parts.into_iter().flatten().collect();
                let length: usize = parts.iter().map(|part| part.len() + 4).sum();
                if length > MAX_RESULT {
                    let what = describe(open.op, sequence, &open.label);
                    let message = format!("the result of {what} has {length} bytes, the limit is {MAX_RESULT}");
                    return self.fail(FailureKind::Mismatch, Vec::new(), message);
                }
                self.send_all(sequence, Message::Gathered { parts });
            }
            Op::Goodbye => {
                // The process that runs this hub hears it last: it may exit at once, and the others must have heard by then.
                let own = Peer::this();
                self.members.sort_by_key(|member| {
                    member.as_ref().is_some_and(|m| m.peer.pid == own.pid && m.peer.node == own.node)
                });
                self.send_all(sequence, Message::Farewell);
                for member in self.members.drain(..).flatten() {
                    self.connections.insert(member.connection, State::Left);
                    self.actions.push(Action::Close(member.connection));
                }
                self.generation = self.generation.wrapping_add(1).max(1);
                self.next_sequence = 1;
                // What is left of gathers that failed is nothing to the next generation.
                self.groups = Groups::default();
            }
            _ => self.send_all(sequence, Message::Released),
        }
    }

    /// Fails the job if ranks wait for one whose process has ended.
    fn check_exited(&mut self) {
        let absent = |rank: u32| matches!(self.members.get(rank as usize), Some(None));
        let gone = self.exited.iter().find(|(rank, _)| absent(**rank)).map(|(rank, how)| (*rank, how.clone()));
        if let Some((rank, how)) = gone {
            self.fail(FailureKind::Lost, vec![rank], format!("PE {rank} {how} before it joined the job"));
        }
    }

    fn missing(&mut self, absent: Vec<u32>, what: &str) {
        let (noun, ranks) = (if absent.len() == 1 { "PE" } else { "PEs" }, list(&absent));
        let message = format!("{noun} {ranks} of {} {what}", self.members.len());
        self.fail(FailureKind::Missing, absent, message);
    }

    /// The first failure counts; all that follow come from it.
    fn fail(&mut self, kind: FailureKind, ranks: Vec<u32>, message: String) {
        if self.failure.is_some() {
            return;
        }
        tracing::info!("the job has failed: {message}");
        let failure = Failure { kind, ranks, message };
        self.failure = Some(failure.clone());
        self.joining = None;
        self.open = None;
        self.groups = Groups::default();
        self.send_all(0, Message::Failed(failure));
    }

    fn place(&self, rank: u32) -> String {
        let member = self.members.get(rank as usize).and_then(Option::as_ref);
        member.map(|member| format!(" (process {} on {})", member.peer.pid, member.peer.host)).unwrap_or_default()
    }

    fn refuse(&mut self, connection: Connection, rank: u32, reason: String) {
        let who =
            if rank == HUB { "a connection".to_owned() } else { format!("a connection that says it is PE {rank}") };
        tracing::warn!("{who} was refused: {reason}");
        self.send(connection, Message::Refused { reason });
        self.dismiss(connection);
    }

    fn send_failure(&mut self, connection: Connection, failure: Failure) {
        self.send(connection, Message::Failed(failure));
        self.dismiss(connection);
    }

    fn dismiss(&mut self, connection: Connection) {
        self.connections.insert(connection, State::Left);
        self.actions.push(Action::Close(connection));
    }

    fn give_up(&mut self, connection: Connection, why: &str) {
        self.broken(connection, why);
        self.dismiss(connection);
    }

    fn emit(&self, sequence: u64, message: Message) -> Arc<[u8]> {
        Frame { generation: self.generation, rank: HUB, sequence, message }.emit().into()
    }

    fn send(&mut self, connection: Connection, message: Message) {
        let bytes = self.emit(0, message);
        self.actions.push(Action::Send(connection, bytes));
    }

    fn send_all(&mut self, sequence: u64, message: Message) {
        let bytes = self.emit(sequence, message);
        let connected = |member: &&Member| self.connections.contains_key(&member.connection);
        let all = self.members.iter().flatten().filter(connected);
        self.actions.extend(all.map(|member| Action::Send(member.connection, Arc::clone(&bytes))));
    }
}

fn describe(op: Op, sequence: u64, label: &str) -> String {
    match op {
        Op::Allgather => format!("allgather {sequence} ({label})"),
        Op::Barrier => format!("barrier {sequence} ({label})"),
        _ => format!("finalize (collective {sequence})"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::frame::Decoder;
    use super::*;

    const JOB: JobId = JobId([7; 16]);
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn arrival(rank: u32, key: &[u8], size: u32, index: u32) -> Arrival {
        Arrival { key: key.to_vec(), label: "split".into(), size, index, data: vec![rank as u8] }
    }

    /// Connection k is rank k's.
    struct Job {
        session: Session,
        now: Duration,
    }

    impl Job {
        fn new(npes: Option<u32>) -> Self {
            Self { session: Session::new(JOB, npes), now: Duration::from_secs(1000) }
        }

        fn joined(npes: u32) -> Self {
            let mut job = Self::new(Some(npes));
            for rank in 0..npes {
                job.join(rank, npes);
            }
            job.sent();
            job
        }

        fn hello(&mut self, connection: Connection, rank: u32, npes: u32, generation: u32, id: JobId) {
            self.session.opened(self.now, connection);
            let peer = Peer { pid: 100 + rank, host: "h".into(), node: "n".into() };
            let message = Message::Hello(Hello { job: id, npes, timeout: TIMEOUT, peer });
            self.session.frame(self.now, connection, Frame { generation, rank, sequence: 0, message });
        }

        fn join(&mut self, rank: u32, npes: u32) {
            self.hello(u64::from(rank), rank, npes, 0, JOB);
        }

        fn says(&mut self, rank: u32, sequence: u64, message: Message) {
            let generation = self.session.generation;
            self.session.frame(self.now, u64::from(rank), Frame { generation, rank, sequence, message });
        }

        fn barrier(&mut self, rank: u32, sequence: u64, label: &str) {
            self.says(rank, sequence, Message::Barrier { label: label.into() });
        }

        /// Enters a gather and contributes the rank.
        fn group(&mut self, rank: u32, key: &[u8], size: u32, index: u32) {
            self.says(rank, 0, Message::Group(arrival(rank, key, size, index)));
        }

        /// What was sent since the last call.
        fn sent(&mut self) -> Vec<(Connection, Message)> {
            let mut sent = Vec::new();
            for action in self.session.take_actions() {
                if let Action::Send(connection, bytes) = action {
                    let mut decoder = Decoder::new(1 << 20);
                    decoder.push(&bytes);
                    sent.push((connection, decoder.next_frame().unwrap().unwrap().message));
                }
            }
            sent
        }

        /// The failure, which each of `ranks` must have been told.
        fn failed(&mut self, ranks: &[u32]) -> Failure {
            let failure = self.session.failure().unwrap().clone();
            let sent = self.sent();
            for rank in ranks {
                assert!(sent.contains(&(u64::from(*rank), Message::Failed(failure.clone()))), "{rank} {sent:?}");
            }
            failure
        }

        fn refused(&mut self, connection: Connection) -> String {
            match self.sent().pop().unwrap() {
                (to, Message::Refused { reason }) if to == connection => reason,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn everybody_joins_exchanges_and_leaves() {
        let mut job = Job::new(None);
        job.join(1, 2);
        assert_eq!(job.sent(), vec![(1, Message::Accepted)]);
        job.join(0, 2);
        let sent = job.sent();
        let Message::Welcome { peers } = &sent[1].1 else { panic!("{sent:?}") };
        assert_eq!(peers.iter().map(|peer| peer.pid).collect::<Vec<_>>(), [100, 101]);
        job.says(1, 1, Message::Allgather { label: "x".into(), data: b"one".to_vec() });
        assert_eq!(job.sent(), vec![]);
        job.says(0, 1, Message::Allgather { label: "x".into(), data: vec![] });
        let gathered = Message::Gathered { parts: vec![vec![], b"one".to_vec()] };
        assert_eq!(job.sent(), vec![(0, gathered.clone()), (1, gathered)]);
        job.barrier(0, 2, "y");
        job.barrier(1, 2, "y");
        assert_eq!(job.sent(), vec![(0, Message::Released), (1, Message::Released)]);
        job.says(0, 3, Message::Goodbye);
        job.says(1, 3, Message::Goodbye);
        assert_eq!(job.sent(), vec![(0, Message::Farewell), (1, Message::Farewell)]);
        job.session.broken(0, "closed");
        job.session.exited(1, "exited with status 0");
        assert_eq!(job.session.failure(), None);
        assert_eq!(job.session.deadline(), None);
    }

    #[test]
    fn a_second_generation_may_have_another_size_and_refuses_the_first() {
        let mut job = Job::new(None);
        job.join(0, 1);
        job.says(0, 1, Message::Goodbye);
        job.sent();
        job.hello(10, 0, 2, 1, JOB);
        let reason = job.refused(10);
        assert!(reason.contains("for the 1. time") && reason.contains("for the 2."), "{reason}");
        job.hello(11, 0, 2, 2, JOB);
        job.hello(12, 1, 2, 0, JOB);
        let sent = job.sent();
        assert!(sent.iter().any(|(to, message)| *to == 12 && message.op() == Op::Welcome), "{sent:?}");
        // A late frame of the first generation, on a connection of the second.
        job.session.frame(job.now, 11, Frame { generation: 1, rank: 0, sequence: 1, message: Message::Goodbye });
        let failure = job.session.failure().unwrap();
        assert!(failure.message.contains("generation 2") && failure.message.contains("generation 1"), "{failure}");
    }

    #[test]
    fn ranks_that_do_not_join_are_named() {
        let mut job = Job::new(Some(4));
        job.join(0, 4);
        job.now += Duration::from_secs(30);
        job.join(2, 4);
        assert_eq!(job.session.deadline(), Some(Duration::from_secs(1060)));
        job.session.tick(Duration::from_secs(1059));
        assert_eq!(job.session.failure(), None);
        job.session.tick(Duration::from_secs(1060));
        let failure = job.failed(&[0, 2]);
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Missing, &[1, 3][..]));
        assert_eq!(failure.message, "PEs 1 and 3 of 4 did not join the job within 60 s");
        job.hello(9, 1, 4, 0, JOB);
        assert_eq!(job.sent(), vec![(9, Message::Failed(failure))]);
    }

    #[test]
    fn ranks_that_do_not_arrive_are_named_with_the_collective() {
        let mut job = Job::joined(3);
        job.barrier(1, 1, "start");
        job.session.tick(job.now + TIMEOUT);
        let failure = job.failed(&[0, 1, 2]);
        assert_eq!(failure.ranks, [0, 2]);
        assert_eq!(
            failure.message,
            "PEs 0 and 2 of 3 did not arrive within 60 s at barrier 1 (start), which PE 1 entered first"
        );
    }

    #[test]
    fn a_death_is_told_to_all_at_once() {
        let mut job = Job::joined(3);
        job.barrier(0, 1, "start");
        job.session.broken(2, "closed its connection without finalize");
        let failure = job.failed(&[0, 1]);
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Lost, &[2][..]));
        assert_eq!(failure.message, "PE 2 (process 102 on h) died: it closed its connection without finalize");
        job.session.broken(1, "closed its connection");
        assert_eq!(job.session.failure(), Some(&failure));
    }

    #[test]
    fn the_launcher_knows_how_a_process_ended() {
        let mut job = Job::joined(2);
        job.session.exited(1, "was killed by SIGKILL");
        assert_eq!(job.session.failure(), None);
        job.session.broken(1, "closed its connection");
        assert!(job.failed(&[0]).message.ends_with("died: it was killed by SIGKILL"));

        for exit_first in [true, false] {
            let mut job = Job::new(Some(2));
            if exit_first {
                job.session.exited(1, "exited with status 0");
                assert_eq!(job.session.failure(), None);
            }
            job.join(0, 2);
            if !exit_first {
                job.session.exited(1, "exited with status 0");
            }
            assert_eq!(job.failed(&[0]).message, "PE 1 exited with status 0 before it joined the job");
        }
    }

    #[test]
    fn disagreements_name_both_sides() {
        let mut job = Job::joined(2);
        job.barrier(0, 1, "a");
        job.barrier(1, 1, "b");
        let failure = job.failed(&[0, 1]);
        assert_eq!(failure.ranks, [0, 1]);
        assert_eq!(failure.message, "PEs disagree: PE 0 entered barrier 1 (a), PE 1 entered barrier 1 (b)");

        let mut job = Job::joined(2);
        job.barrier(1, 1, "a");
        job.says(0, 1, Message::Goodbye);
        assert_eq!(
            job.failed(&[0, 1]).message,
            "PEs disagree: PE 1 entered barrier 1 (a), PE 0 entered finalize (collective 1)"
        );

        let mut job = Job::joined(2);
        job.barrier(0, 1, "a");
        job.says(1, 2, Message::Barrier { label: "a".into() });
        assert!(job.failed(&[0, 1]).message.contains("barrier 1 (a), PE 1 entered barrier 2 (a)"));

        let mut job = Job::joined(2);
        job.barrier(0, 5, "a");
        assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered barrier 5 (a), the job is at collective 1");

        let mut job = Job::joined(2);
        job.barrier(0, 1, "a");
        job.barrier(0, 1, "a");
        assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered barrier 1 (a) while it is in barrier 1 (a)");

        let mut job = Job::joined(2);
        job.says(1, 0, Message::Released);
        assert!(job.failed(&[0, 1]).message.contains("only the rendezvous sends"));

        let mut job = Job::new(Some(2));
        job.join(0, 2);
        job.barrier(0, 1, "a");
        assert!(job.failed(&[0]).message.contains("before every PE had joined"));
    }

    #[test]
    fn some_ranks_gather_while_others_do_something_else() {
        let mut job = Job::joined(4);
        job.barrier(0, 1, "all");
        job.group(3, b"a", 2, 1);
        job.group(1, b"b", 1, 0);
        let alone = Message::Grouped { parts: vec![(1, vec![1])] };
        assert_eq!(job.sent(), vec![(1, alone)]);
        // Numbers in the gather are not ranks.
        job.group(2, b"a", 2, 0);
        let gathered = Message::Grouped { parts: vec![(2, vec![2]), (3, vec![3])] };
        assert_eq!(job.sent(), vec![(2, gathered.clone()), (3, gathered.clone())]);
        // Again, with the same key.
        job.group(2, b"a", 2, 0);
        job.group(3, b"a", 2, 1);
        assert_eq!(job.sent(), vec![(2, gathered.clone()), (3, gathered)]);
        for rank in 1..4 {
            job.barrier(rank, 1, "all");
        }
        assert_eq!(job.sent().len(), 4);
        assert_eq!((job.session.groups().0, job.session.deadline()), (0, None));
    }

    #[test]
    fn members_that_do_not_arrive_are_named_and_the_job_goes_on() {
        let mut job = Job::joined(4);
        job.group(3, b"a", 3, 2);
        job.now += Duration::from_secs(10);
        job.group(1, b"a", 3, 0);
        assert_eq!(job.session.deadline(), Some(Duration::from_secs(1060)));
        job.session.tick(Duration::from_secs(1060));
        let failure = Failure {
            kind: FailureKind::Missing,
            ranks: vec![1],
            message: "member 1 of 3 did not arrive within 60 s at split, which PE 3 entered first".into(),
        };
        let told = Message::Disbanded(failure);
        assert_eq!(job.sent(), vec![(1, told.clone()), (3, told.clone())]);
        // The late one is told at once, and is the last.
        job.now = Duration::from_secs(1061);
        job.group(2, b"a", 3, 1);
        assert_eq!(job.sent(), vec![(2, told)]);
        assert_eq!((job.session.deadline(), job.session.failure()), (None, None));
        // Another attempt works.
        for rank in 1..4 {
            job.group(rank, b"a", 3, rank - 1);
        }
        assert_eq!(job.sent().len(), 3);
    }

    #[test]
    fn members_that_disagree_are_told_and_those_that_follow_too() {
        // Who comes, in this order, with which size and number, and what all are told.
        for (arrivals, words) in [
            ([(0, 3, 0), (1, 2, 1), (2, 3, 2)], "PEs disagree: PE 0 says that split has 3 members, PE 1 says 2"),
            ([(2, 3, 1), (0, 3, 1), (1, 3, 0)], "PE 2 and PE 0 both enter split as member 1 of 3"),
            ([(1, 3, 3), (0, 3, 0), (2, 3, 2)], "PE 1 enters split as member 3; its members are 0 to 2"),
            ([(1, 5, 3), (0, 3, 0), (2, 3, 2)], "PE 1 says that split has 5 members, in a job of 4"),
            ([(1, 0, 0), (0, 3, 0), (2, 3, 2)], "PE 1 says that split has 0 members, in a job of 4"),
        ] {
            let mut job = Job::joined(4);
            for (rank, size, index) in arrivals {
                job.group(rank, b"a", size, index);
            }
            let mut told: Vec<u64> = Vec::new();
            for (to, message) in job.sent() {
                let Message::Disbanded(failure) = message else { continue };
                assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Mismatch, words));
                told.push(to);
            }
            told.sort_unstable();
            assert_eq!((&told[..], job.session.failure()), (&[0, 1, 2][..], None), "{words}");
        }
        let mut job = Job::joined(2);
        job.group(0, b"a", 2, 0);
        job.says(1, 0, Message::Group(Arrival { label: "destroy".into(), ..arrival(1, b"a", 2, 1) }));
        let Some((1, Message::Disbanded(failure))) = job.sent().pop() else { panic!() };
        assert_eq!(failure.message, "PEs disagree: PE 0 entered split, PE 1 entered destroy");
    }

    #[test]
    fn gathers_do_not_outlive_the_job_and_no_rank_is_in_two_places() {
        let mut job = Job::joined(3);
        job.group(0, b"a", 2, 0);
        job.session.broken(2, "closed its connection");
        job.failed(&[0, 1]);
        assert_eq!(job.session.groups().0, 0);

        let mut job = Job::joined(2);
        job.group(0, b"a", 2, 0);
        job.group(0, b"b", 2, 0);
        assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered split while it is in split");

        let mut job = Job::joined(2);
        job.group(0, b"a", 2, 0);
        job.says(0, 1, Message::Goodbye);
        assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered finalize (collective 1) while it is in split");

        let mut job = Job::joined(2);
        job.barrier(0, 1, "x");
        job.group(0, b"a", 2, 0);
        assert_eq!(job.failed(&[0, 1]).message, "PE 0 entered split while it is in barrier 1 (x)");

        let mut job = Job::new(Some(2));
        job.join(0, 2);
        job.group(0, b"a", 1, 0);
        assert_eq!(job.failed(&[0]).message, "PE 0 entered split before every PE had joined");
    }

    #[test]
    fn gathers_that_failed_are_forgotten() {
        let mut job = Job::joined(4);
        for round in 0..3 * MAX_NPES {
            job.group(0, &round.to_be_bytes(), 3, 0);
            job.group(1, &round.to_be_bytes(), 2, 0);
            assert!(job.session.groups().1 <= MAX_NPES as usize);
        }
        job.session.tick(job.now + TIMEOUT);
        assert_eq!((job.session.groups().1, job.session.deadline()), (0, None));
    }

    #[test]
    fn an_abort_reaches_all() {
        let mut job = Job::joined(2);
        job.says(1, 0, Message::Abort { reason: "out of cheese".into() });
        let failure = job.failed(&[0, 1]);
        assert_eq!(
            (failure.kind, failure.message.as_str()),
            (FailureKind::Aborted, "PE 1 aborted the job: out of cheese")
        );
    }

    #[test]
    fn wrong_greetings_are_refused_and_the_job_goes_on() {
        let mut job = Job::new(Some(2));
        job.join(0, 2);
        job.sent();
        job.hello(10, 1, 2, 0, JobId([9; 16]));
        let reason = job.refused(10);
        assert!(reason.contains("job 07070707...") && reason.contains("job 09090909..."), "{reason}");
        job.hello(11, 1, 3, 0, JOB);
        assert_eq!(job.refused(11), "PE 1 says that the job has 3 PEs, the launcher says 2");
        job.hello(12, 2, 2, 0, JOB);
        assert_eq!(job.refused(12), "rank 2 in a job of 2 PEs: ranks are 0 to 1");
        job.hello(13, 0, 2, 0, JOB);
        assert_eq!(job.refused(13), "rank 0 is taken by process 100 on h, and process 100 on h claims it too");
        job.hello(14, 1, 2, 7, JOB);
        assert!(job.refused(14).contains("for the 7. time"));
        job.session.opened(job.now, 15);
        job.session.frame(job.now, 15, Frame { generation: 1, rank: 1, sequence: 1, message: Message::Goodbye });
        assert!(job.refused(15).contains("before HELLO"));
        job.session.opened(job.now, 16);
        job.session.garbage(16, &FrameError::Version(9));
        assert!(job.refused(16).contains("version 9"));
        job.session.opened(job.now, 17);
        job.session.garbage(17, &FrameError::Magic(b"GET ".to_vec()));
        assert_eq!(job.session.take_actions(), vec![Action::Close(17)]);
        job.session.opened(job.now, 18);
        job.session.tick(job.now + HELLO_DEADLINE);
        assert_eq!(job.session.take_actions(), vec![Action::Close(18)]);
        job.join(1, 2);
        assert!(job.sent().iter().any(|(to, message)| *to == 0 && message.op() == Op::Welcome));

        let mut job = Job::new(None);
        job.join(0, 2);
        job.sent();
        job.hello(9, 1, 3, 0, JOB);
        assert_eq!(job.refused(9), "PE 1 says that the job has 3 PEs, PE 0 says 2");
        let mut job = Job::new(None);
        job.hello(9, 0, MAX_NPES + 1, 0, JOB);
        assert!(job.refused(9).contains("1 to 1024"));
    }

    #[test]
    fn a_member_that_sends_garbage_ends_the_job() {
        let mut job = Job::joined(2);
        job.session.garbage(1, &FrameError::Op(99));
        assert!(job.failed(&[0]).message.contains("op 99 does not exist"));
    }
}
