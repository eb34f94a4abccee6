//! The leader of a node: the PE that has the node's connection to the hub, and passes on what the
//! node's other PEs say and hear. So the hub has as many connections as the job has nodes, and
//! sends what is for all PEs to each node once.
//!
//! The leader is the PE that gets the abstract socket of the job and the node first. It passes
//! frames on as they are: the hub knows from their rank which PE they are from, and the leader
//! which PE they are for. Each PE that comes through it proves that it belongs to the job, as it
//! does at the hub.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::BootstrapError;
use super::failure::{Failure, FailureKind};
use super::frame::{Decoder, Frame, FrameError, HUB, MAX_FROM_HUB, MAX_FROM_RANK, Message, Op, Packet, VERSION, Way};
use super::gate::Stranger;
use super::job::{JobId, JobName};
use super::peer::Peer;
use super::session::{Connection, HELLO_DEADLINE};
use super::sockets::{LINGER, Ready, Received, Sockets, file_limit, raise_file_limit};
use super::stream::{self, Channel};

/// The number under which the listener is watched.
const LISTENER: u64 = 0;
/// Connections that are accepted before those that are there are served.
const MAX_ACCEPTED: usize = 64;
/// Connections that have not said HELLO and are kept at a time.
const MAX_STRANGERS: usize = 256;
/// Pause after the system refuses to accept, for want of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the hub may take to end a job that the leader's own PE has left.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the name of the socket of the leader of a node.
pub fn name_of(job: JobName, node: &str) -> String {
    format!("oxshmem-lead-{job}-{node}")
}

/// What a leader starts with.
#[derive(Debug)]
pub struct Start {
    pub job: JobId,
    pub rank: u32,
    pub peer: Peer,
    /// The generation that the hub has let the rank into.
    pub generation: u32,
    /// The hub's address, for messages.
    pub address: String,
    pub listener: UnixListener,
    /// The connection to the hub, and what came on it that was not read yet.
    pub upstream: Channel,
    pub unread: Vec<u8>,
}

/// Starts the thread, and returns the end of the leader's own connection to it.
///
/// # Errors
/// The system refuses a socket or the thread.
pub fn start(start: Start) -> Result<(UnixStream, JoinHandle<()>), BootstrapError> {
    let rank = start.rank;
    let failed = || BootstrapError::system(format!("PE {rank}: leading the PEs of this node to the rendezvous"));
    let (own, theirs) = UnixStream::pair().map_err(failed())?;
    let leader = Leader::new(start, theirs).map_err(failed())?;
    let thread = std::thread::Builder::new().name("oxshmem-lead".into()).spawn(move || leader.run());
    Ok((own, thread.map_err(failed())?))
}

/// A PE of the node.
#[derive(Debug)]
struct Member {
    connection: Connection,
    peer: Peer,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Silent,
    Member(u32),
    /// Refused or done.
    Left,
}

struct Leader {
    rank: u32,
    generation: u32,
    address: String,
    /// What the PEs of this node are told of their way to the hub.
    way: Way,
    sockets: Sockets,
    /// Until the job is over.
    listener: Option<UnixListener>,
    /// The listener is watched.
    watching: bool,
    accept_after: Duration,
    upstream: Connection,
    own: Connection,
    states: BTreeMap<Connection, State>,
    silent: BTreeMap<Connection, Duration>,
    members: BTreeMap<u32, Member>,
    /// Nothing comes from the hub any more: until when what was sent to the PEs may take.
    over: Option<Duration>,
    /// The leader's own PE has left: until when the hub may take to say what follows.
    forsaken: Option<Duration>,
    short_of_files: bool,
}

impl Leader {
    fn new(start: Start, own: UnixStream) -> io::Result<Self> {
        let mut sockets = Sockets::new(start.job)?;
        let way = Way::through(start.rank, start.upstream.local_address());
        let mut decoder = Decoder::new(MAX_FROM_HUB);
        decoder.push(&start.unread);
        // The deadlines are those of the PE until here.
        start.upstream.set_read_timeout(None)?;
        let upstream = sockets.known(start.upstream, decoder)?;
        let own = sockets.known(Channel::Unix(own), Decoder::new(MAX_FROM_RANK))?;
        start.listener.set_nonblocking(true)?;
        Ok(Self {
            rank: start.rank,
            generation: start.generation,
            address: start.address,
            way,
            sockets,
            listener: Some(start.listener),
            watching: false,
            accept_after: Duration::ZERO,
            upstream,
            own,
            states: BTreeMap::from([(own, State::Member(start.rank))]),
            silent: BTreeMap::new(),
            members: BTreeMap::from([(start.rank, Member { connection: own, peer: start.peer })]),
            over: None,
            forsaken: None,
            short_of_files: false,
        })
    }

    fn run(mut self) {
        // What the hub has sent with its first answer.
        self.hear();
        loop {
            let now = self.sockets.now();
            self.expire(now);
            let given_up = |until: Option<Duration>| until.is_some_and(|until| until <= now);
            if self.over.is_some() && self.sockets.is_flushed() || given_up(self.over) || given_up(self.forsaken) {
                return;
            }
            self.watch_listener(self.accept_after <= now && self.silent.len() < MAX_STRANGERS);
            let waiting = self.silent.first_key_value().map(|(_, deadline)| *deadline);
            let paused = (self.accept_after > now).then_some(self.accept_after);
            let deadline = [waiting, paused, self.over, self.forsaken].into_iter().flatten().min();
            match self.sockets.wait(deadline) {
                Ok(ready) => ready.into_iter().for_each(|ready| self.serve(ready)),
                Err(error) => {
                    tracing::warn!("PE {} cannot wait for the PEs of its node: {error}", self.rank);
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn serve(&mut self, ready: Ready) {
        let Ready::Connection(connection) = ready else { return self.accept() };
        if let Err(why) = self.sockets.flush(connection) {
            return self.lose(connection, &why);
        }
        match self.sockets.receive(connection) {
            Received::Bytes if connection == self.upstream => self.hear(),
            Received::Bytes => self.listen_to(connection),
            Received::Stranger(Stranger::Old(version)) => {
                self.refuse_in(version, connection, HUB, format!("a PE speaks {}", FrameError::Version(version)));
            }
            // A PE asks the hub for the secret, not a leader.
            Received::Asked(..) => self.close(connection),
            Received::Stranger(why) => {
                tracing::debug!("a connection to the leader of this node was dropped: it {why}");
                self.close(connection);
            }
            Received::Ended(why) => self.lose(connection, &why),
        }
    }

    /// Has the listener watched, or not: the kernel tells again and again of what is not taken.
    fn watch_listener(&mut self, wanted: bool) {
        let Some(listener) = self.listener.as_ref().filter(|_| wanted != self.watching) else { return };
        if !wanted {
            self.sockets.unwatch(listener.as_fd());
            self.watching = false;
        } else if let Err(error) = self.sockets.watch(listener.as_fd(), LISTENER) {
            tracing::warn!("PE {} cannot wait for the PEs of its node: {error}", self.rank);
            self.accept_after = self.sockets.now() + ACCEPT_PAUSE;
        } else {
            self.watching = true;
        }
    }

    /// Accepts the PEs of this node.
    fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTED {
            let Some(listener) = &self.listener else { return };
            // One descriptor more is free than the connection takes, for what looks at it.
            let accepted = listener.accept().and_then(|(stream, _)| listener.try_clone().map(|_| stream));
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_file_limit() => continue,
                Err(error) => {
                    self.accept_after = self.sockets.now() + ACCEPT_PAUSE;
                    if error.raw_os_error() == Some(libc::EMFILE)
                        && self.silent.is_empty()
                        && !std::mem::replace(&mut self.short_of_files, true)
                    {
                        let reason = format!(
                            "it leads the PEs of its node to the rendezvous, has let in {}, and cannot let in more: its limit \
                             of {} open files is reached; raise it (ulimit -n)",
                            self.members.len(),
                            file_limit()
                        );
                        self.say(self.rank, Message::Abort { status: None, reason });
                    }
                    return;
                }
            };
            let added = stream::is_of_this_user(&stream)
                .and_then(|()| self.sockets.accepted(Channel::Unix(stream)).map_err(|error| error.to_string()));
            match added {
                Ok(connection) => {
                    self.states.insert(connection, State::Silent);
                    self.silent.insert(connection, self.sockets.now() + HELLO_DEADLINE);
                }
                Err(why) => tracing::warn!("a connection to the leader of this node was dropped: it {why}"),
            }
        }
    }

    /// Passes on what a PE of this node says.
    fn listen_to(&mut self, connection: Connection) {
        while let Some(taken) = self.sockets.take(connection, Decoder::next_packet) {
            let parsed = taken.and_then(|packet| Ok((packet.message()?, packet)));
            match (self.states.get(&connection).copied(), parsed) {
                (Some(State::Silent), Ok((Message::Hello(hello), packet))) => {
                    self.enter(connection, hello.peer, &packet);
                }
                (Some(State::Silent), Ok((other, packet))) => {
                    let reason = format!("it sent {:?} before HELLO", other.op());
                    self.refuse_in(VERSION, connection, packet.rank, reason);
                }
                (Some(State::Silent), Err(error @ FrameError::Version(version))) => {
                    return self.refuse_in(version, connection, HUB, format!("a PE speaks {error}"));
                }
                (Some(State::Member(rank)), Ok((message, packet))) => {
                    if packet.rank != rank || matches!(message, Message::Hello(_) | Message::Gone { .. }) {
                        let why = format!("sent {:?} as PE {}", packet.op, packet.rank);
                        return self.lose(connection, &why);
                    }
                    self.up(&packet.bytes);
                }
                (Some(State::Left) | None, _) => return,
                (_, Err(error)) => return self.lose(connection, &format!("sent what is not a frame: {error}")),
            }
        }
    }

    /// Takes the HELLO of a PE of this node.
    fn enter(&mut self, connection: Connection, peer: Peer, packet: &Packet) {
        let rank = packet.rank;
        // What the hub says to it would be for all.
        if rank == HUB {
            return self.refuse_in(VERSION, connection, rank, "it has no rank".to_owned());
        }
        if let Some(member) = self.members.get(&rank) {
            let reason = member.peer.keeps(rank, &peer);
            return self.refuse_in(VERSION, connection, rank, reason);
        }
        self.silent.remove(&connection);
        self.states.insert(connection, State::Member(rank));
        self.members.insert(rank, Member { connection, peer });
        self.sockets.set_limit(connection, MAX_FROM_RANK);
        self.up(&packet.bytes);
    }

    /// Passes on what the hub says.
    fn hear(&mut self) {
        while let Some(taken) = self.sockets.take(self.upstream, Decoder::next_packet) {
            match taken {
                Ok(packet) if packet.rank == HUB => self.down_to_all(&packet),
                Ok(packet) => self.down(&packet),
                Err(error) => return self.lose_hub(&format!("what it sent is not a frame: {error}")),
            }
        }
    }

    fn down(&mut self, packet: &Packet) {
        let Some(member) = self.members.get(&packet.rank) else { return };
        let connection = member.connection;
        if packet.op == Op::Accepted {
            let message = Message::Accepted(self.way);
            let accepted = Frame { generation: packet.generation, rank: packet.rank, sequence: 0, message };
            return self.send(connection, accepted.emit().into());
        }
        self.send(connection, Arc::clone(&packet.bytes));
        if matches!(packet.op, Op::Refused | Op::Failed) {
            self.members.remove(&packet.rank);
            self.close(connection);
        }
    }

    /// Sends the packet to all, to the leader's own PE last: that one may end at once, and the
    /// others must have heard by then.
    fn down_to_all(&mut self, packet: &Packet) {
        let last = matches!(packet.op, Op::Farewell | Op::Failed);
        if last {
            // A PE that initialises again finds another leader.
            self.stop_listening();
        }
        let others = self.members.values().map(|member| member.connection).filter(|other| *other != self.own);
        let all: Vec<Connection> = others.chain([self.own]).collect();
        for connection in all {
            self.send(connection, Arc::clone(&packet.bytes));
        }
        if last {
            self.finish();
        }
    }

    fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.sockets.unwatch(listener.as_fd());
        }
    }

    /// Closes all connections when all is sent: nothing follows.
    fn finish(&mut self) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(self.sockets.now() + LINGER);
        self.members.clear();
        for connection in self.states.keys().copied().collect::<Vec<_>>() {
            self.close(connection);
        }
        self.sockets.remove(self.upstream);
    }

    fn lose_hub(&mut self, why: &str) {
        if self.over.is_some() {
            return;
        }
        let message = format!("PE {} lost the rendezvous at {}: {why}", self.rank, self.address);
        let failure = Failure::new(FailureKind::Hub, Vec::new(), message);
        let (generation, message) = (self.generation, Message::Failed(failure));
        let bytes = Frame { generation, rank: HUB, sequence: 0, message }.emit().into();
        self.down_to_all(&Packet { generation, rank: HUB, op: Op::Failed, bytes });
    }

    /// Notes that a connection is gone, or must be given up: `why` completes the sentence "PE k
    /// ...".
    fn lose(&mut self, connection: Connection, why: &str) {
        if connection == self.upstream {
            let why = if why.starts_with("closed") { "it closed the connection" } else { why };
            return self.lose_hub(why);
        }
        self.sockets.remove(connection);
        self.silent.remove(&connection);
        match self.states.remove(&connection) {
            Some(State::Member(rank)) if self.over.is_none() => {
                self.members.remove(&rank);
                self.say(rank, Message::Gone { why: why.to_owned() });
                if connection == self.own {
                    self.forsaken = Some(self.sockets.now() + PATIENCE);
                }
            }
            Some(State::Silent) => tracing::debug!("a connection to the leader of this node was dropped: it {why}"),
            _ => {}
        }
    }

    fn expire(&mut self, now: Duration) {
        while let Some((connection, _)) = self.silent.first_key_value().filter(|(_, at)| **at <= now) {
            let connection = *connection;
            self.lose(connection, "did not say HELLO in time");
        }
        for (connection, why) in self.sockets.overdue() {
            self.lose(connection, &why);
        }
    }

    fn refuse_in(&mut self, version: u16, connection: Connection, rank: u32, reason: String) {
        tracing::warn!("the leader of this node, PE {}, refused a connection: {reason}", self.rank);
        let refusal = Frame { generation: self.generation, rank, sequence: 0, message: Message::Refused { reason } };
        self.send(connection, refusal.emit_in(version).into());
        self.close(connection);
    }

    /// Says something to the hub in a rank's name.
    fn say(&mut self, rank: u32, message: Message) {
        let frame = Frame { generation: self.generation, rank, sequence: 0, message };
        self.up(&frame.emit().into());
    }

    fn up(&mut self, bytes: &Arc<[u8]>) {
        if let Err(why) = self.sockets.send(self.upstream, Arc::clone(bytes)) {
            self.lose_hub(&why);
        }
    }

    fn send(&mut self, connection: Connection, bytes: Arc<[u8]>) {
        if let Err(why) = self.sockets.send(connection, bytes) {
            self.lose(connection, &why);
        }
    }

    fn close(&mut self, connection: Connection) {
        self.silent.remove(&connection);
        if let Some(state) = self.states.get_mut(&connection) {
            *state = State::Left;
        }
        if let Err(why) = self.sockets.close(connection) {
            self.lose(connection, &why);
        }
    }
}
