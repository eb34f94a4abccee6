//! Many connections in one thread, as the hub and the leader of a node have them: what is ready is
//! told by epoll, so each round costs what has happened and not how many connections there are.
//! None of them blocks, so a slow or silent one costs a table entry and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oxshmem_system::challenge::BYTES;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::BootstrapError;
use super::frame::{Decoder, FrameError, MAX_GREETING};
use super::gate::{Gate, Step, Stranger, nonce};
use super::job::JobId;
use super::session::Connection;
use super::stream::Channel;

/// How long a peer may take nothing of what it was sent, or send nothing more of a frame.
const STALL: Duration = Duration::from_secs(30);
/// How long a closed connection waits for the other side to close too, so that what was sent is not
/// lost.
pub const LINGER: Duration = Duration::from_secs(2);
/// Things that are ready and are taken from the kernel at a time.
const EVENTS: usize = 256;
/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;
/// Numbers from here on are no connections.
const OTHERS: u64 = 1 << 63;

/// Bytes that have gone through the connections.
#[derive(Debug, Default)]
pub struct ByteCounts {
    pub received: AtomicU64,
    pub sent: AtomicU64,
}

/// What is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// What was [watched](Sockets::watch) under this number.
    Other(u64),
    Connection(Connection),
}

/// What came of reading a connection once.
#[derive(Debug)]
pub enum Received {
    /// Nothing to do, or bytes for the decoder.
    Bytes,
    /// It is not a member's connection.
    Stranger(Stranger),
    /// The PE with this rank, or what says so, asks for the job's secret with this nonce.
    Asked(u32, [u8; BYTES]),
    /// It has ended; the text completes the sentence "PE k ...".
    Ended(String),
}

/// The connections of one thread.
pub struct Sockets {
    epoll: OwnedFd,
    job: JobId,
    /// By which strangers may know the job.
    public: Option<JobId>,
    started: Instant,
    connections: BTreeMap<Connection, Socket>,
    next: Connection,
    /// A time at which each connection that has a deadline is looked at: at or before it.
    timers: BTreeSet<(Duration, Connection)>,
    traffic: Arc<ByteCounts>,
    buffer: Vec<u8>,
}

struct Socket {
    stream: Channel,
    /// Until the other side has proven that it belongs to the job.
    gate: Option<Gate>,
    decoder: Decoder,
    /// What is still to be sent, and how much of the first piece is.
    queue: VecDeque<Arc<[u8]>>,
    sent: usize,
    /// Since when the queue has not moved.
    unsent_since: Option<Duration>,
    /// Since when part of a frame waits for more.
    partial_since: Option<Duration>,
    /// Closing: until when the other side may take to close too.
    closing: Option<Duration>,
    /// Its entry among the timers.
    timer: Option<Duration>,
    /// The kernel tells when it takes bytes again.
    waits_to_write: bool,
}

impl Sockets {
    /// Creates it without connections; those to come belong to `job`.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub fn new(job: JobId) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            job,
            public: None,
            started: Instant::now(),
            connections: BTreeMap::new(),
            next: 0,
            timers: BTreeSet::new(),
            traffic: Arc::default(),
            buffer: vec![0; PIECE],
        })
    }

    /// Says by which identity strangers may know the job, which lets PEs ask for its secret.
    pub fn known_as(self, public: Option<JobId>) -> Self {
        Self { public, ..self }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the counters, which go on.
    pub fn traffic(&self) -> Arc<ByteCounts> {
        Arc::clone(&self.traffic)
    }

    /// Watches something else that can be read, under a number of the caller's.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn watch(&self, fd: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(OTHERS | number), EventFlags::IN)?)
    }

    /// Watches it no more.
    pub fn unwatch(&self, fd: impl AsFd) {
        // Fails when it is not watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Adds a connection that was accepted, whose other side has to prove that it belongs to the
    /// job.
    ///
    /// # Errors
    /// The system refuses it, or has no randomness to give.
    pub fn accepted(&mut self, stream: Channel) -> Result<Connection, BootstrapError> {
        let gate = Gate::new(self.job, nonce()?).known_as(self.public);
        self.add(stream, Some(gate), Decoder::new(MAX_GREETING))
            .map_err(BootstrapError::system("accepting a connection"))
    }

    /// Adds a connection whose other side is known.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn known(&mut self, stream: Channel, decoder: Decoder) -> io::Result<Connection> {
        self.add(stream, None, decoder)
    }

    fn add(&mut self, stream: Channel, gate: Option<Gate>, decoder: Decoder) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        let connection = self.next;
        epoll::add(&self.epoll, &stream, EventData::new_u64(connection), EventFlags::IN)?;
        self.next += 1;
        let socket = Socket {
            stream,
            gate,
            decoder,
            queue: VecDeque::new(),
            sent: 0,
            unsent_since: None,
            partial_since: None,
            closing: None,
            timer: None,
            waits_to_write: false,
        };
        self.connections.insert(connection, socket);
        Ok(connection)
    }

    /// Waits for something that is ready, at most until `deadline` or until a connection is due.
    ///
    /// # Errors
    /// The system lacks memory.
    pub fn wait(&mut self, deadline: Option<Duration>) -> io::Result<Vec<Ready>> {
        let due = self.timers.first().map(|(at, _)| *at);
        let now = self.now();
        let timeout = deadline.into_iter().chain(due).min().map(|at| timespec(at.saturating_sub(now)));
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = |event: &Event| match event.data.u64() {
            other if other & OTHERS != 0 => Ready::Other(other & !OTHERS),
            connection => Ready::Connection(connection),
        };
        Ok(events.iter().map(ready).collect())
    }

    /// Reads once. Frames that are complete then are [taken](Sockets::take) after it.
    pub fn receive(&mut self, connection: Connection) -> Received {
        let Some(socket) = self.connections.get_mut(&connection) else { return Received::Bytes };
        let read = match (&socket.stream).read(&mut self.buffer) {
            Ok(0) => return Received::Ended("closed its connection without finalize".to_owned()),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Received::Bytes;
            }
            Err(error) => return Received::Ended(format!("lost its connection: {error}")),
        };
        self.traffic.received.fetch_add(read as u64, Ordering::Relaxed);
        if socket.closing.is_some() {
            return Received::Bytes;
        }
        // A long frame on a slow connection makes progress.
        if socket.partial_since.is_some() {
            socket.partial_since = Some(self.started.elapsed());
        }
        let bytes = &self.buffer[..read];
        let reply = match &mut socket.gate {
            None => {
                socket.decoder.push(bytes);
                None
            }
            Some(gate) => match gate.push(bytes) {
                Ok(Step::More) => return Received::Bytes,
                Ok(Step::Send(bytes)) => Some(bytes),
                Ok(Step::Asked(rank, nonce)) => return Received::Asked(rank, nonce),
                Ok(Step::Passed(bytes, rest)) => {
                    socket.gate = None;
                    socket.decoder.push(&rest);
                    Some(bytes)
                }
                Err(why) => return Received::Stranger(why),
            },
        };
        match reply.map(|bytes| self.send(connection, Arc::from(bytes))) {
            Some(Err(why)) => Received::Ended(why),
            _ => Received::Bytes,
        }
    }

    /// Takes what `next` finds complete at the front of a connection's bytes; nothing of one that
    /// is closing.
    pub fn take<T>(
        &mut self,
        connection: Connection,
        next: impl FnOnce(&mut Decoder) -> Result<Option<T>, FrameError>,
    ) -> Option<Result<T, FrameError>> {
        let now = self.now();
        let socket = self.connections.get_mut(&connection).filter(|socket| socket.closing.is_none())?;
        let taken = next(&mut socket.decoder).transpose();
        if taken.is_some() || !socket.decoder.is_partial() {
            socket.partial_since = None;
        } else if socket.partial_since.is_none() {
            socket.partial_since = Some(now);
            self.schedule(connection);
        }
        taken
    }

    /// Lets a connection send payloads of this length.
    pub fn set_limit(&mut self, connection: Connection, limit: usize) {
        if let Some(socket) = self.connections.get_mut(&connection) {
            socket.decoder.set_limit(limit);
        }
    }

    /// Sends bytes after those that wait to be sent.
    ///
    /// # Errors
    /// The connection is lost; the text completes the sentence "PE k ...".
    pub fn send(&mut self, connection: Connection, bytes: Arc<[u8]>) -> Result<(), String> {
        let Some(socket) = self.connections.get_mut(&connection) else { return Ok(()) };
        socket.queue.push_back(bytes);
        // What waits for the kernel goes on when the kernel says so.
        if socket.waits_to_write { Ok(()) } else { self.flush(connection) }
    }

    /// Closes a connection when all is sent, and says so to the other side.
    ///
    /// # Errors
    /// Fails like [`Sockets::send`].
    pub fn close(&mut self, connection: Connection) -> Result<(), String> {
        let until = self.now() + LINGER;
        let Some(socket) = self.connections.get_mut(&connection) else { return Ok(()) };
        socket.closing = Some(until);
        socket.partial_since = None;
        self.schedule(connection);
        self.flush(connection)
    }

    /// Forgets a connection at once.
    pub fn remove(&mut self, connection: Connection) {
        if let Some(socket) = self.connections.remove(&connection) {
            if let Some(at) = socket.timer {
                self.timers.remove(&(at, connection));
            }
            let _ = epoll::delete(&self.epoll, &socket.stream);
        }
    }

    /// Returns whether nothing waits to be sent.
    pub fn is_flushed(&self) -> bool {
        self.connections.values().all(|socket| socket.queue.is_empty())
    }

    /// Returns whether a connection has been sent all that it was to be.
    pub fn has_sent(&self, connection: Connection) -> bool {
        self.connections.get(&connection).is_none_or(|socket| socket.queue.is_empty())
    }

    /// Returns the connections whose other side does not read, does not finish a frame, or does not
    /// close, with the reason as the end of the sentence "PE k ...".
    pub fn overdue(&mut self) -> Vec<(Connection, String)> {
        let now = self.now();
        let mut overdue = Vec::new();
        while let Some((at, connection)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, connection));
            let Some(socket) = self.connections.get_mut(&connection) else { continue };
            socket.timer = None;
            if socket.deadline().is_some_and(|deadline| deadline <= now) {
                let why = if socket.unsent_since.is_some() { "does not read" } else { "does not finish a frame" };
                overdue.push((connection, format!("{why}, for {} s", STALL.as_secs())));
            } else {
                self.schedule(connection);
            }
        }
        overdue
    }

    /// Sends what the socket takes. When all is sent and the connection is closing, says so to the
    /// other side.
    ///
    /// # Errors
    /// Fails like [`Sockets::send`].
    pub fn flush(&mut self, connection: Connection) -> Result<(), String> {
        let now = self.now();
        let Some(socket) = self.connections.get_mut(&connection) else { return Ok(()) };
        let lost = |error: io::Error| format!("lost its connection: {error}");
        let mut sent = 0;
        let full = loop {
            let Some(bytes) = socket.queue.front() else { break false };
            match (&socket.stream).write(&bytes[socket.sent..]) {
                Ok(written) => {
                    sent += written as u64;
                    socket.sent += written;
                    if socket.sent == bytes.len() {
                        socket.queue.pop_front();
                        socket.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break true,
                Err(error) => return Err(lost(error)),
            }
        };
        self.traffic.sent.fetch_add(sent, Ordering::Relaxed);
        if sent > 0 || !full {
            socket.unsent_since = None;
        }
        if !full && socket.closing.is_some() {
            // Fails when the other side has closed already, which is as good.
            let _ = socket.stream.shutdown(Shutdown::Write);
        }
        if full != socket.waits_to_write {
            let interest = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &socket.stream, EventData::new_u64(connection), interest)
                .map_err(|error| lost(error.into()))?;
            socket.waits_to_write = full;
        }
        if full && socket.unsent_since.is_none() {
            socket.unsent_since = Some(now);
            self.schedule(connection);
        }
        Ok(())
    }

    /// Sees to it that a connection is looked at when its deadline passes.
    fn schedule(&mut self, connection: Connection) {
        let Some(socket) = self.connections.get_mut(&connection) else { return };
        let Some(deadline) = socket.deadline() else { return };
        match socket.timer {
            Some(at) if at <= deadline => return,
            Some(at) => self.timers.remove(&(at, connection)),
            None => false,
        };
        socket.timer = Some(deadline);
        self.timers.insert((deadline, connection));
    }
}

impl Socket {
    fn deadline(&self) -> Option<Duration> {
        let stalled = [self.unsent_since, self.partial_since].into_iter().flatten().map(|since| since + STALL);
        stalled.chain(self.closing).min()
    }
}

/// Raises the limit on open files as far as this process may. Returns whether it did.
pub fn raise_file_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    limit.current != limit.maximum
        && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}

/// Returns the limit on open files.
pub fn file_limit() -> String {
    getrlimit(Resource::Nofile).current.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string())
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that a deadline has passed when the wait for it ends.
    let duration = duration + Duration::from_micros(999);
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::frame::{Frame, Message};
    use super::*;

    #[test]
    fn a_frame_that_grows_is_not_overdue() {
        let mut sockets = Sockets::new(JobId([1; 16])).unwrap();
        let (mut far, near) = UnixStream::pair().unwrap();
        let connection = sockets.known(Channel::Unix(near), Decoder::new(MAX_GREETING)).unwrap();
        let message = Message::Barrier { label: "x".into() };
        let bytes = Frame { generation: 1, rank: 0, sequence: 1, message }.emit();
        let (first, rest) = bytes.split_at(5);
        let (second, third) = rest.split_at(1);
        let mut say = |sockets: &mut Sockets, bytes: &[u8]| {
            far.write_all(bytes).unwrap();
            assert!(matches!(sockets.receive(connection), Received::Bytes));
            sockets.take(connection, Decoder::next_frame)
        };
        assert!(say(&mut sockets, first).is_none());
        // It began long ago.
        let since = |sockets: &Sockets| sockets.connections[&connection].partial_since;
        assert!(since(&sockets).is_some());
        sockets.started -= STALL * 2;
        sockets.connections.get_mut(&connection).unwrap().partial_since = Some(Duration::ZERO);
        assert!(say(&mut sockets, second).is_none());
        assert!(since(&sockets) >= Some(STALL * 2));
        assert!(sockets.overdue().is_empty());
        assert!(matches!(say(&mut sockets, third), Some(Ok(_))));
        assert_eq!(since(&sockets), None);
    }
}
