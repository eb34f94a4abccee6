//! What the hub decides, without sockets, threads or clocks: events go in with the time, actions
//! come out.
//!
//! A generation starts with the first HELLO and ends when every rank has said GOODBYE; then the
//! next may start. Within it one collective of all ranks is open at a time, and beside it gathers
//! among some of them (`group.rs`). Any failure is for good, except for those of such gathers.
//!
//! A connection serves the ranks that have said HELLO on it: a rank that is connected itself, or
//! the leader of a node and the ranks whose frames it passes on (`leader.rs`). What is for one rank
//! goes to its connection with its number; what is for all goes to each connection once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use oxshmem_system::words::count32;

use super::failure::{Failure, FailureKind, aborted};
use super::frame::{Arrival, Frame, FrameError, HUB, Hello, MAX_RESULT, Message, Op, VERSION, Way, gathered};
use super::gate::Stranger;
use super::group::{Answer, Groups};
use super::job::JobName;
use super::peer::Peer;
use super::places::{self, Places};
use super::text::{LONGER, Seconds, list};
use crate::config::MAX_NPES;

/// A connection's number, never used twice.
pub type Connection = u64;

/// How long a connection may take to say HELLO.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// How long it may take while others wait for its place.
const CROWDED_DEADLINE: Duration = Duration::from_secs(1);
/// Connections that are no PE's and of which the log tells one by one: PEs that look for their hub
/// among several come to others' again and again.
const TOLD: u32 = 8;

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
    job: JobName,
    /// Ranks of the job when the launcher said so; else the first HELLO of each generation does.
    fixed_npes: Option<u32>,
    /// Where the launcher has put the ranks.
    places: Places,
    /// The job is one program: processes that are new after its first generation are another's.
    one_program: bool,
    generation: u32,
    connections: BTreeMap<Connection, State>,
    /// Connections that have not said HELLO, and when they are dropped.
    silent: BTreeMap<Connection, Duration>,
    /// Connections that serve ranks.
    links: BTreeSet<Connection>,
    /// Connections that were refused or are done, and that the other side has not closed.
    left: BTreeSet<Connection>,
    /// By rank; empty between generations.
    members: Vec<Option<Member>>,
    /// How many there are.
    joined: usize,
    /// Until when every rank must have joined, and the time that was allowed; `None` once complete
    /// or before the first.
    joining: Option<(Duration, Duration)>,
    next_sequence: u64,
    open: Option<Collective>,
    groups: Groups,
    failure: Option<Failure>,
    /// Ranks whose process has ended, and how.
    exited: BTreeMap<u32, String>,
    actions: Vec<Action>,
    /// How many connections that are no PE's have been reported.
    told: u32,
}

#[derive(Debug)]
enum State {
    /// Has not said HELLO.
    Silent,
    Link(Link),
    /// Refused or done: whatever it still says is ignored.
    Left,
}

/// A connection that serves ranks.
#[derive(Debug)]
struct Link {
    /// The rank whose process has the connection.
    leader: u32,
    /// All ranks that it serves.
    ranks: BTreeSet<u32>,
}

#[derive(Debug)]
struct Member {
    connection: Connection,
    /// How long it waits for others in a collective or a gather.
    meeting: Duration,
    peer: Peer,
}

/// What a member says when it enters a collective.
struct Entry {
    sequence: u64,
    op: Op,
    label: String,
    part: Vec<u8>,
}

#[derive(Debug)]
struct Collective {
    op: Op,
    label: String,
    first: u32,
    deadline: Duration,
    timeout: Duration,
    parts: Vec<Option<Vec<u8>>>,
    /// How many have come.
    arrived: usize,
}

impl Session {
    /// Creates the session of a job that no rank has joined yet. `npes` is given when it is known
    /// beforehand.
    pub fn new(job: JobName, npes: Option<u32>) -> Self {
        Self {
            job,
            fixed_npes: npes,
            places: Places::default(),
            one_program: false,
            generation: 1,
            connections: BTreeMap::new(),
            silent: BTreeMap::new(),
            links: BTreeSet::new(),
            left: BTreeSet::new(),
            members: Vec::new(),
            joined: 0,
            joining: None,
            next_sequence: 1,
            open: None,
            groups: Groups::default(),
            failure: None,
            exited: BTreeMap::new(),
            actions: Vec::new(),
            told: 0,
        }
    }

    /// Says where the launcher has put the ranks, for messages.
    pub fn with_places(self, places: Places) -> Self {
        Self { places, ..self }
    }

    /// Refuses processes that come for the first time after the job's first generation, or after
    /// its failure: they are of another program, which has a rendezvous of its own.
    pub fn of_one_program(self) -> Self {
        Self { one_program: true, ..self }
    }

    /// Returns the actions since the last call, in the order in which they must be done.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Returns why the job has failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Returns the number of connections that are no rank's.
    pub fn strangers(&self) -> usize {
        self.silent.len() + self.left.len()
    }

    /// Returns the connections that may be dropped for others that wait, of those that are no
    /// rank's: first those with which the hub is done, then those that have said too little for too
    /// long; the oldest first.
    pub fn dispensable(&self, now: Duration) -> impl Iterator<Item = Connection> {
        let silent = self.silent.iter().take_while(move |(_, deadline)| crowded(**deadline) <= now);
        self.left.iter().copied().chain(silent.map(|(connection, _)| *connection))
    }

    /// Returns when the next connection that has said too little becomes
    /// [dispensable](Self::dispensable).
    pub fn next_dispensable(&self) -> Option<Duration> {
        self.silent.first_key_value().map(|(_, deadline)| crowded(*deadline))
    }

    /// Gathers among some ranks that are under way, and those that failed and are remembered.
    pub fn groups(&self) -> (usize, usize) {
        (self.groups.open(), self.groups.failures())
    }

    /// Returns when [`Session::tick`] has something to do next.
    pub fn deadline(&self) -> Option<Duration> {
        // All were given the same time, so the oldest is the first.
        let silent = self.silent.first_key_value().map(|(_, deadline)| *deadline);
        let joining = self.joining.map(|(deadline, _)| deadline);
        let open = self.open.as_ref().map(|open| open.deadline);
        silent.into_iter().chain(joining).chain(open).chain(self.groups.deadline()).min()
    }

    /// Notes that a connection was accepted.
    pub fn opened(&mut self, now: Duration, connection: Connection) {
        self.connections.insert(connection, State::Silent);
        self.silent.insert(connection, now.saturating_add(HELLO_DEADLINE));
    }

    /// Notes that a connection is gone, or must be given up: `why` completes the sentence "PE k
    /// ...".
    pub fn broken(&mut self, connection: Connection, why: &str) {
        self.silent.remove(&connection);
        self.links.remove(&connection);
        self.left.remove(&connection);
        match self.connections.remove(&connection) {
            Some(State::Link(link)) => self.died(link.leader, why),
            Some(State::Silent) => self.dropped(why),
            Some(State::Left) | None => {}
        }
    }

    /// Tells, of the first few, that a connection that is no PE's was dropped: `why` completes the
    /// sentence "it ...".
    pub fn dropped(&mut self, why: &str) {
        if self.told == TOLD {
            return tracing::debug!("a connection to the rendezvous was dropped: it {why}");
        }
        self.told += 1;
        let last = if self.told == TOLD { "; others are not told of" } else { "" };
        tracing::warn!("a connection to the rendezvous was dropped: it {why}{last}");
    }

    fn died(&mut self, rank: u32, why: &str) {
        let how = self.exited.get(&rank).map_or(why, String::as_str);
        let place = self.members.get(rank as usize).and_then(Option::as_ref).map(|member| member.peer.place());
        let message = format!("PE {rank}{} died: it {how}", place.unwrap_or_default());
        self.fail(FailureKind::Lost, vec![rank], message);
    }

    /// Sends the reply to a PE of this job, or what says so, that requests its secret, and ends the
    /// connection. A PE of a later program gets none, and goes on looking.
    pub fn asked(&mut self, connection: Connection, rank: u32, reply: Result<Vec<u8>, String>) {
        match reply {
            _ if self.is_of_a_later_program(rank) => self.dismiss(connection),
            Ok(reply) => {
                self.actions.push(Action::Send(connection, reply.into()));
                self.dismiss(connection);
            }
            Err(why) => self.refuse(connection, rank, why),
        }
    }

    /// Notes that a PE of this job does not have the secret that the rendezvous has: `what` says
    /// which.
    pub fn bare(&mut self, connection: Connection, what: String) {
        self.refuse(connection, HUB, what);
    }

    /// Returns whether a process that has not been in this job, and is to be this rank, is of
    /// another program.
    fn is_of_a_later_program(&self, rank: u32) -> bool {
        let has_been_here = matches!(self.members.get(rank as usize), Some(Some(_)));
        self.one_program && (self.generation > 1 || self.failure.is_some() && has_been_here)
    }

    /// Notes that a connection is not a PE's, which it would have proven before its first frame.
    pub fn stranger(&mut self, connection: Connection, why: &Stranger) {
        match why {
            Stranger::Old(version) => self.garbage(connection, &FrameError::Version(*version)),
            other => self.give_up(connection, &other.to_string()),
        }
    }

    /// Notes that a connection carries something other than frames.
    pub fn garbage(&mut self, connection: Connection, error: &FrameError) {
        if let (Some(State::Silent), FrameError::Version(version)) = (self.connections.get(&connection), error) {
            // In the other side's version, so that it reads why, and does not try again.
            self.refuse_in(*version, connection, HUB, format!("a PE speaks {error}"));
        } else {
            self.give_up(connection, &format!("sent what is not a frame: {error}"));
        }
    }

    /// Notes that the process of `rank` has ended; `how` completes the sentence "PE k ...".
    pub fn exited(&mut self, rank: u32, how: &str) {
        self.exited.insert(rank, how.to_owned());
        self.check_exited();
    }

    /// Notes that no more connections can be taken, for this reason, though ranks are missing.
    pub fn full(&mut self, why: &str) {
        if self.joining.is_some() {
            let (joined, npes) = (self.joined, self.members.len());
            let message = format!("the rendezvous has let in {joined} of {npes} PEs and cannot let in more: {why}");
            self.fail(FailureKind::Hub, Vec::new(), message);
        }
    }

    /// Notes that time has passed.
    pub fn tick(&mut self, now: Duration) {
        while let Some((connection, _)) = self.silent.first_key_value().filter(|(_, at)| **at <= now) {
            let connection = *connection;
            self.give_up(connection, "did not say HELLO in time");
        }
        if let Some((_, timeout)) = self.joining.filter(|(deadline, _)| *deadline <= now) {
            let absent: Vec<u32> =
                (0..).zip(&self.members).filter(|(_, m)| m.is_none()).map(|(rank, _)| rank).collect();
            let here = self.members.iter().flatten().map(|member| member.peer.host.as_str());
            let (at, rest) = self.places.of_missing(&absent, here);
            let what = format!("{at} did not join the job within {}{rest}", Seconds(timeout));
            self.missing(absent, &what);
        }
        if let Some(open) = self.open.as_ref().filter(|open| open.deadline <= now) {
            let absent: Vec<u32> = (0..).zip(&open.parts).filter(|(_, p)| p.is_none()).map(|(rank, _)| rank).collect();
            let what = format!(
                "{} did not arrive within {} at {}, which PE {} entered first{LONGER}",
                self.hosts_of(&absent),
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

    /// Handles a frame that arrived.
    pub fn frame(&mut self, now: Duration, connection: Connection, frame: Frame) {
        match self.connections.get(&connection) {
            Some(State::Silent) => match frame.message {
                Message::Hello(hello) => self.hello(now, connection, frame.rank, frame.generation, hello),
                other => self.refuse(connection, frame.rank, format!("it sent {:?} before HELLO", other.op())),
            },
            Some(State::Link(link)) => {
                let (leader, serves) = (link.leader, link.ranks.contains(&frame.rank));
                match frame.message {
                    // Another process of the leader's node greets; the leader's own did so before.
                    Message::Hello(hello) if frame.rank != leader => {
                        self.hello(now, connection, frame.rank, frame.generation, hello);
                    }
                    // One that was refused here has left as such.
                    Message::Gone { .. } if !serves => {}
                    // What has no rank that the connection serves is its leader's own mistake.
                    _ => self.member_says(now, if serves { frame.rank } else { leader }, frame),
                }
            }
            Some(State::Left) | None => {}
        }
    }

    fn hello(&mut self, now: Duration, connection: Connection, rank: u32, generation: u32, hello: Hello) {
        if hello.job != self.job {
            let reason = format!("this is the rendezvous of job {}, not of job {}", self.job, hello.job);
            return self.refuse(connection, rank, reason);
        }
        if generation == 0 && self.is_of_a_later_program(rank) {
            let reason = "this is the rendezvous of an earlier program, whose process has not ended yet".to_owned();
            return self.refuse(connection, rank, reason);
        }
        if let Some(failure) = self.failure.clone() {
            return self.send_failure(connection, rank, failure);
        }
        let first = self.members.iter().position(Option::is_some).filter(|_| self.joined > 0);
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
            let reason = other.peer.keeps(rank, &hello.peer);
            return self.refuse(connection, rank, reason);
        }
        if self.members.is_empty() {
            self.members.resize_with(hello.npes as usize, || None);
            self.joining = Some((now.saturating_add(hello.timeout), hello.timeout));
        }
        self.members[rank as usize] = Some(Member { connection, meeting: hello.meeting, peer: hello.peer });
        self.joined += 1;
        if let Some(State::Link(link)) = self.connections.get_mut(&connection) {
            link.ranks.insert(rank);
        } else {
            self.silent.remove(&connection);
            self.links.insert(connection);
            self.connections.insert(connection, State::Link(Link { leader: rank, ranks: BTreeSet::from([rank]) }));
            self.actions.push(Action::Greeted(connection));
        }
        self.send(connection, rank, Message::Accepted(Way::DIRECT));
        if self.joined == self.members.len() {
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
            Message::Alltoall { label, data } => (Op::Alltoall, label, data),
            Message::Barrier { label } => (Op::Barrier, label, Vec::new()),
            Message::Goodbye => (Op::Goodbye, String::new(), Vec::new()),
            Message::Group(arrival) => return self.arrived_in_group(now, rank, arrival),
            Message::Gone { why } => {
                if let Some(State::Link(link)) =
                    self.members[rank as usize].as_ref().and_then(|member| self.connections.get_mut(&member.connection))
                {
                    link.ranks.remove(&rank);
                }
                return self.died(rank, &why);
            }
            Message::Abort { status, reason } => return self.fail_with(aborted(rank, status, &reason)),
            other => {
                let message = format!("PE {rank} sent {:?}, which only the rendezvous sends", other.op());
                return self.fail(FailureKind::Mismatch, vec![rank], message);
            }
        };
        self.arrived(now, rank, Entry { sequence: frame.sequence, op, label, part });
    }

    fn arrived(&mut self, now: Duration, rank: u32, Entry { sequence, op, label, part }: Entry) {
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
        let timeout = self.members[rank as usize].as_ref().map_or(Duration::ZERO, |member| member.meeting);
        let open = self.open.get_or_insert_with(|| Collective {
            op,
            label,
            first: rank,
            deadline: now.saturating_add(timeout),
            timeout,
            parts: vec![None; count],
            arrived: 0,
        });
        open.parts[rank as usize] = Some(part);
        open.arrived += 1;
        if open.arrived == count
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
        let timeout = self.members[rank as usize].as_ref().map_or(Duration::ZERO, |member| member.meeting);
        let answer = self.groups.arrived(now, (rank, timeout), count32(self.members.len()), arrival);
        if let Some(answer) = answer {
            self.answer(answer);
        }
    }

    fn answer(&mut self, answer: Answer) {
        for rank in answer.to {
            self.send_to(rank, |generation| {
                Frame { generation, rank, sequence: 0, message: answer.message.clone() }.emit().into()
            });
        }
    }

    /// Sends a frame for one rank, unless it is gone; `emit` is given the generation.
    fn send_to(&mut self, rank: u32, emit: impl FnOnce(u32) -> Arc<[u8]>) {
        let member = self.members.get(rank as usize).and_then(Option::as_ref);
        if let Some(connection) = member.map(|member| member.connection).filter(|link| self.links.contains(link)) {
            self.actions.push(Action::Send(connection, emit(self.generation)));
        }
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
            Op::Alltoall => {
                let rows: Vec<Vec<u8>> = open.parts.into_iter().flatten().collect();
                let length = rows.first().map_or(0, Vec::len);
                if let Some(rank) =
                    rows.iter().position(|row| row.len() != length || !length.is_multiple_of(rows.len()))
                {
                    let what = describe(open.op, sequence, &open.label);
                    let message = format!(
                        "PE {rank} contributed {} bytes to {what}, PE 0 {length}: all have to contribute equally much, in {} equal parts",
                        rows[rank].len(),
                        rows.len()
                    );
                    return self.fail(FailureKind::Mismatch, vec![count32(rank)], message);
                }
                let share = length / rows.len().max(1);
                for rank in 0..count32(rows.len()) {
                    let column = rows.iter().map(|row| &row[rank as usize * share..][..share]);
                    self.send_to(rank, |generation| gathered(generation, rank, sequence, column));
                }
            }
            Op::Goodbye => {
                // The process that runs this hub hears it last: it may exit at once, and the others
                // must have heard by then.
                let own = Peer::this();
                let is_own = |member: &&Member| member.peer.pid == own.pid && member.peer.machine() == own.machine();
                let last: BTreeSet<Connection> =
                    self.members.iter().flatten().filter(is_own).map(|member| member.connection).collect();
                let bytes = self.emit(HUB, sequence, Message::Farewell);
                let links = std::mem::take(&mut self.links);
                for connection in links.difference(&last).chain(links.intersection(&last)) {
                    self.actions.push(Action::Send(*connection, Arc::clone(&bytes)));
                }
                for connection in links {
                    self.connections.insert(connection, State::Left);
                    self.left.insert(connection);
                    self.actions.push(Action::Close(connection));
                }
                self.members.clear();
                self.joined = 0;
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
        let message = format!("{noun} {ranks} of {}{what}", self.members.len());
        self.fail(FailureKind::Missing, absent, message);
    }

    /// Notes a failure. The first counts; all that follow come from it.
    fn fail(&mut self, kind: FailureKind, ranks: Vec<u32>, message: String) {
        self.fail_with(Failure::new(kind, ranks, message));
    }

    fn fail_with(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        tracing::info!("the job has failed: {failure}");
        self.failure = Some(failure.clone());
        self.joining = None;
        self.open = None;
        self.groups = Groups::default();
        self.send_all(0, Message::Failed(failure));
    }

    /// Returns where these members are, in a job of several nodes.
    fn hosts_of(&self, ranks: &[u32]) -> String {
        let peer = |rank: u32| self.members.get(rank as usize).and_then(Option::as_ref).map(|member| &member.peer);
        let first = peer(0).map(|peer| &peer.host);
        if self.members.iter().flatten().all(|member| Some(&member.peer.host) == first) {
            return String::new();
        }
        places::on(ranks, |rank| peer(rank).map(|peer| peer.host.as_str()))
    }

    fn refuse(&mut self, connection: Connection, rank: u32, reason: String) {
        self.refuse_in(VERSION, connection, rank, reason);
    }

    /// Refuses a connection, in the version of the protocol that its other side speaks.
    fn refuse_in(&mut self, version: u16, connection: Connection, rank: u32, reason: String) {
        let who =
            if rank == HUB { "a connection".to_owned() } else { format!("a connection that says it is PE {rank}") };
        tracing::warn!("{who} was refused: {reason}");
        let message = Message::Refused { reason };
        let refusal = Frame { generation: self.generation, rank, sequence: 0, message };
        self.actions.push(Action::Send(connection, refusal.emit_in(version).into()));
        self.dismiss_rank(connection);
    }

    fn send_failure(&mut self, connection: Connection, rank: u32, failure: Failure) {
        self.send(connection, rank, Message::Failed(failure));
        self.dismiss_rank(connection);
    }

    /// Ends a connection whose rank is not let in. The leader of a node sees to that itself.
    fn dismiss_rank(&mut self, connection: Connection) {
        if !self.links.contains(&connection) {
            self.dismiss(connection);
        }
    }

    fn dismiss(&mut self, connection: Connection) {
        self.silent.remove(&connection);
        self.links.remove(&connection);
        self.left.insert(connection);
        self.connections.insert(connection, State::Left);
        self.actions.push(Action::Close(connection));
    }

    fn give_up(&mut self, connection: Connection, why: &str) {
        self.broken(connection, why);
        self.dismiss(connection);
    }

    fn emit(&self, rank: u32, sequence: u64, message: Message) -> Arc<[u8]> {
        Frame { generation: self.generation, rank, sequence, message }.emit().into()
    }

    fn send(&mut self, connection: Connection, rank: u32, message: Message) {
        let bytes = self.emit(rank, 0, message);
        self.actions.push(Action::Send(connection, bytes));
    }

    fn send_all(&mut self, sequence: u64, message: Message) {
        let bytes = self.emit(HUB, sequence, message);
        self.actions.extend(self.links.iter().map(|link| Action::Send(*link, Arc::clone(&bytes))));
    }
}

/// Returns from when on a connection that has to say HELLO until `deadline` makes room for others.
fn crowded(deadline: Duration) -> Duration {
    (deadline + CROWDED_DEADLINE).saturating_sub(HELLO_DEADLINE)
}

fn describe(op: Op, sequence: u64, label: &str) -> String {
    match op {
        Op::Allgather => format!("allgather {sequence} ({label})"),
        Op::Alltoall => format!("alltoall {sequence} ({label})"),
        Op::Barrier => format!("barrier {sequence} ({label})"),
        _ => format!("finalize (collective {sequence})"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
