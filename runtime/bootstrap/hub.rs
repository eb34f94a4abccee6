//! The hub's thread: sockets around the decisions of [`Session`].
//!
//! One thread polls all sockets, none of them blocking, so a slow or silent connection costs a
//! table entry and nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::admission::Admission;
use super::error::BootstrapError;
use super::failure::{Failure, lock};
use super::frame::{Decoder, MAX_FROM_RANK, MAX_GREETING};
use super::gate::{Gate, Step, nonce};
use super::job::JobId;
use super::session::{Action, Connection, Session};

/// Connections that no rank has claimed and that are kept at a time; more wait in the listener's
/// backlog.
const MAX_STRANGERS: usize = 256;
/// How long a peer may leave what it was sent unread, or a frame unfinished.
const STALL: Duration = Duration::from_secs(30);
/// How long a closed connection waits for the other side to close too, so that what was sent is not
/// lost.
const LINGER: Duration = Duration::from_secs(2);
/// Connections that are accepted before those that are there are served.
const MAX_ACCEPTED: usize = 64;
/// Pause after the system refuses to accept, for want of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a hub is set up.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct HubOptions {
    /// Where it listens; port 0 for any.
    pub listen: SocketAddr,
    /// The job's secret.
    pub job: JobId,
    /// Ranks of the job when they are known beforehand; else the ranks say so, and must agree.
    pub npes: Option<u32>,
}

impl HubOptions {
    /// For a job on this machine: listens on the loopback interface.
    ///
    /// # Errors
    /// Fails like [`JobId::random`].
    pub fn local(npes: u32) -> Result<Self, BootstrapError> {
        Ok(Self { listen: (Ipv4Addr::LOCALHOST, 0).into(), job: JobId::random()?, npes: Some(npes) })
    }
}

/// A running hub. It serves one job, any number of generations of it; dropping it ends the job with
/// an error at every PE that has not finalized.
#[derive(Debug)]
#[doc(hidden)]
pub struct Hub {
    address: SocketAddr,
    job: JobId,
    control: Sender<Control>,
    waker: UnixStream,
    failure: Arc<Mutex<Option<Failure>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Control {
    Exited(u32, String),
}

impl Hub {
    /// Starts listening, and a thread.
    ///
    /// # Errors
    /// The system refuses the listener or the thread.
    pub fn start(options: HubOptions) -> Result<Self, BootstrapError> {
        Self::start_for(options, Admission::Secret)
    }

    /// [`Hub::start`] for a job whose identity may be known to strangers.
    ///
    /// # Errors
    /// Fails like [`Hub::start`].
    pub fn start_for(options: HubOptions, admission: Admission) -> Result<Self, BootstrapError> {
        if let Admission::SameUser(nodes) = &admission {
            let others = match nodes {
                Some(nodes) if nodes.is_empty() => "no others",
                Some(_) => "any process on the job's other nodes",
                None => "any process on other machines, since the launcher does not name the nodes",
            };
            tracing::warn!(
                "the launcher gives the job no secret, so the rendezvous on {} admits processes of this user on this \
                 machine, and {others}; set OXSHMEM_SECRET_FILE to a file of mode 0600 that all PEs can read",
                options.listen
            );
        }
        let what = || format!("starting the rendezvous on {}", options.listen);
        let listener = TcpListener::bind(options.listen).map_err(BootstrapError::system(what()))?;
        listener.set_nonblocking(true).map_err(BootstrapError::system(what()))?;
        let address = listener.local_addr().map_err(BootstrapError::system(what()))?;
        let (waker, wakened) = UnixStream::pair().map_err(BootstrapError::system(what()))?;
        wakened.set_nonblocking(true).map_err(BootstrapError::system(what()))?;
        waker.set_nonblocking(true).map_err(BootstrapError::system(what()))?;
        let (control, controls) = channel();
        let failure = Arc::new(Mutex::new(None));
        let server = Server {
            job: options.job,
            admission,
            short_of_files: false,
            session: Session::new(options.job.name(), options.npes),
            started: Instant::now(),
            listener,
            wakened,
            controls,
            failure: Arc::clone(&failure),
            connections: BTreeMap::new(),
            next_connection: 0,
            accept_after: Duration::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("oxshmem-hub".into())
            .spawn(move || server.run())
            .map_err(BootstrapError::system(what()))?;
        Ok(Self { address, job: options.job, control, waker, failure, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The job it serves.
    pub fn job_id(&self) -> JobId {
        self.job
    }

    /// Says that the process of `rank` has ended, so that PEs that wait for it need not wait for
    /// their deadline. `how` completes the sentence "PE k ...", for example "exited with status 1".
    pub fn exited(&self, rank: u32, how: &str) {
        // An error means that the thread has ended; then the message has no recipient.
        let _ = self.control.send(Control::Exited(rank, how.to_owned()));
        self.wake();
    }

    /// Why the job has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    fn wake(&self) {
        // An error means that the socket is full of wake-ups, or the thread gone.
        let _ = (&self.waker).write(&[0]);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // The thread ends when it finds the control channel closed.
        (self.control, _) = channel();
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    job: JobId,
    admission: Admission,
    /// The lack of file descriptors has been reported.
    short_of_files: bool,
    session: Session,
    started: Instant,
    listener: TcpListener,
    wakened: UnixStream,
    controls: Receiver<Control>,
    failure: Arc<Mutex<Option<Failure>>>,
    connections: BTreeMap<Connection, Socket>,
    next_connection: Connection,
    accept_after: Duration,
}

struct Socket {
    stream: TcpStream,
    /// Until the other side has proven that it belongs to the job.
    gate: Option<Gate>,
    decoder: Decoder,
    /// What is still to be sent, and how much of the first piece is.
    queue: VecDeque<Arc<[u8]>>,
    sent: usize,
    /// Since when the queue has not moved.
    unsent_since: Option<Duration>,
    /// Since when part of a frame waits for the rest.
    partial_since: Option<Duration>,
    /// Closing: until when the other side may take to close too.
    closing: Option<Duration>,
}

impl Server {
    fn run(mut self) {
        loop {
            loop {
                match self.controls.try_recv() {
                    Ok(Control::Exited(rank, how)) => self.session.exited(rank, &how),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.expire();
            self.act();
            if let Err(error) = self.wait_and_serve() {
                // Only a lack of kernel memory can fail here; the next round tries again.
                tracing::warn!("the rendezvous cannot wait for its sockets: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits for sockets or the next deadline, then reads, writes and accepts.
    fn wait_and_serve(&mut self) -> io::Result<()> {
        let now = self.now();
        let accepting = self.session.strangers() < MAX_STRANGERS && now >= self.accept_after;
        let timers = self.connections.values().flat_map(Socket::deadlines);
        let paused = (now < self.accept_after).then_some(self.accept_after);
        let deadline = timers.chain(self.session.deadline()).chain(paused).min();
        let timeout = deadline.map(|deadline| timespec(deadline.saturating_sub(now)));

        let listen = if accepting { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.wakened.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), listen),
        ];
        for socket in self.connections.values() {
            let write = if socket.queue.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(socket.stream.as_fd(), PollFlags::IN | write));
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let (woken, incoming) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        let ready: Vec<Connection> = self
            .connections
            .keys()
            .zip(&fds[2..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(id, _)| *id)
            .collect();
        drop(fds);

        if woken {
            while matches!((&self.wakened).read(&mut [0; 64]), Ok(1..)) {}
        }
        for connection in ready {
            self.flush(connection);
            self.receive(connection);
            self.act();
        }
        if incoming && accepting {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        // Others than those that connect again and again have their turn in between.
        for _ in 0..MAX_ACCEPTED {
            if self.session.strangers() >= MAX_STRANGERS {
                return;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_file_limit() => continue,
                Err(error) => {
                    if !std::mem::replace(&mut self.short_of_files, true) {
                        let remedy = crate::limits::remedy(&error);
                        tracing::warn!("the rendezvous cannot accept a connection for now: {error}{remedy}");
                    }
                    self.accept_after = self.now() + ACCEPT_PAUSE;
                    return;
                }
            };
            if let Err(why) = self.admission.check(&stream) {
                tracing::warn!("a connection to the rendezvous was dropped: it {why}");
                continue;
            }
            if let Err(error) = stream.set_nonblocking(true).and_then(|()| super::client::tune(&stream)) {
                tracing::warn!("a connection to the rendezvous was dropped: {error}");
                continue;
            }
            let gate = match nonce() {
                Ok(nonce) => Gate::new(self.job, nonce),
                Err(error) => {
                    tracing::warn!("a connection to the rendezvous was dropped: {error}");
                    continue;
                }
            };
            let now = self.now();
            self.session.opened(now, self.next_connection);
            self.connections.insert(
                self.next_connection,
                Socket {
                    stream,
                    gate: Some(gate),
                    decoder: Decoder::new(MAX_GREETING),
                    queue: VecDeque::new(),
                    sent: 0,
                    unsent_since: None,
                    partial_since: None,
                    closing: None,
                },
            );
            self.next_connection += 1;
        }
    }

    fn receive(&mut self, connection: Connection) {
        let now = self.now();
        let Some(socket) = self.connections.get_mut(&connection) else { return };
        let mut buffer = [0; 64 << 10];
        let read = match socket.stream.read(&mut buffer) {
            Ok(read) => Ok(read),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            Err(error) => Err(error),
        };
        match read {
            Ok(read @ 1..) if socket.closing.is_none() => {
                if let Some(gate) = &mut socket.gate {
                    match gate.push(&buffer[..read]) {
                        Ok(Step::More) => {}
                        Ok(Step::Send(bytes)) => self.send(connection, Arc::from(bytes)),
                        Ok(Step::Passed(bytes, rest)) => {
                            socket.gate = None;
                            socket.decoder.push(&rest);
                            self.send(connection, Arc::from(bytes));
                            self.parse(now, connection);
                        }
                        Err(why) => {
                            self.session.stranger(connection, &why);
                            self.act();
                        }
                    }
                } else {
                    socket.decoder.push(&buffer[..read]);
                    self.parse(now, connection);
                }
            }
            Ok(1..) => {}
            Ok(_) => self.lose(connection, "closed its connection without finalize"),
            Err(error) => self.lose(connection, &format!("lost its connection: {error}")),
        }
    }

    fn parse(&mut self, now: Duration, connection: Connection) {
        loop {
            let Some(socket) = self.connections.get_mut(&connection).filter(|socket| socket.closing.is_none()) else {
                return;
            };
            match socket.decoder.next_frame() {
                Ok(Some(frame)) => {
                    socket.partial_since = None;
                    self.session.frame(now, connection, frame);
                }
                Ok(None) => {
                    if socket.decoder.is_partial() {
                        socket.partial_since.get_or_insert(now);
                    }
                    return;
                }
                Err(error) => {
                    self.session.garbage(connection, &error);
                    self.act();
                    return;
                }
            }
            // A HELLO raises the limit for the frames after it.
            self.act();
        }
    }

    /// Gives up connections whose other side does not read, does not finish a frame, or does not
    /// close.
    fn expire(&mut self) {
        let now = self.now();
        self.session.tick(now);
        let over: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, socket)| socket.deadlines().any(|deadline| deadline <= now))
            .map(|(id, socket)| {
                let why = if socket.unsent_since.is_some() { "does not read" } else { "does not finish a frame" };
                (*id, format!("{why}, for {} s", STALL.as_secs()))
            })
            .collect();
        for (connection, why) in over {
            self.lose(connection, &why);
        }
    }

    fn lose(&mut self, connection: Connection, why: &str) {
        self.connections.remove(&connection);
        self.session.broken(connection, why);
    }

    /// Does what the session decided.
    fn act(&mut self) {
        loop {
            // Before any PE hears of it: an observer that sees a PE end because of a failure finds
            // the failure here.
            if let Some(failure) = self.session.failure() {
                lock(&self.failure).get_or_insert_with(|| failure.clone());
            }
            let actions = self.session.take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Send(connection, bytes) => self.send(connection, bytes),
                    Action::Greeted(connection) => {
                        if let Some(socket) = self.connections.get_mut(&connection) {
                            socket.decoder.set_limit(MAX_FROM_RANK);
                        }
                    }
                    Action::Close(connection) => {
                        let now = self.now();
                        if let Some(socket) = self.connections.get_mut(&connection) {
                            socket.closing = Some(now + LINGER);
                            socket.partial_since = None;
                            self.flush(connection);
                        }
                    }
                }
            }
        }
    }

    fn send(&mut self, connection: Connection, bytes: Arc<[u8]>) {
        if let Some(socket) = self.connections.get_mut(&connection) {
            socket.queue.push_back(bytes);
            self.flush(connection);
        }
    }

    fn flush(&mut self, connection: Connection) {
        let now = self.now();
        let Some(socket) = self.connections.get_mut(&connection) else { return };
        if let Err(error) = socket.flush(now) {
            self.lose(connection, &format!("lost its connection: {error}"));
        }
    }
}

impl Socket {
    fn deadlines(&self) -> impl Iterator<Item = Duration> {
        let stalled = [self.unsent_since, self.partial_since].into_iter().flatten().map(|since| since + STALL);
        stalled.chain(self.closing)
    }

    /// Sends what the socket takes; when all is sent and the connection is closing, says so to the
    /// other side.
    fn flush(&mut self, now: Duration) -> io::Result<()> {
        while let Some(bytes) = self.queue.front() {
            match self.stream.write(&bytes[self.sent..]) {
                Ok(written) => {
                    self.sent += written;
                    self.unsent_since = None;
                    if self.sent == bytes.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent_since.get_or_insert(now);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if self.closing.is_some() {
            // Fails when the other side has closed already, which is as good.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }
}

/// Raises the limit on open files as far as this process may. Returns whether it did.
fn raise_file_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    limit.current != limit.maximum
        && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that a deadline has passed when the wait for it ends.
    let duration = duration + Duration::from_micros(999);
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}
