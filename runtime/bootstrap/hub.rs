//! The hub's thread: sockets around the decisions of [`Session`].

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use oxshmem_system::challenge::BYTES;

use super::admission::Admission;
use super::error::BootstrapError;
use super::failure::{Failure, lock};
use super::frame::{Decoder, MAX_FROM_RANK};
use super::gate::Stranger;
use super::handout::{self, Handout};
use super::job::JobId;
use super::peer::Peer;
use super::places::Places;
use super::session::{Action, Connection, Session};
use super::sockets::{ByteCounts, Ready, Received, Sockets, file_limit, raise_file_limit};
use super::stream::{self, Channel};

/// Connections that no rank has claimed and that are kept at a time; more take the places of those
/// that are [dispensable](Session::dispensable), or wait in the listener's backlog.
const MAX_STRANGERS: usize = 256;
/// Connections that are accepted before those that are there are served.
const MAX_ACCEPTED: usize = 64;
/// Pause after the system refuses to accept, for want of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What the hub of a job has whose secret comes from a file.
const SECRET_FILE: &str = "reads the job's secret from OXSHMEM_SECRET_FILE";
/// The numbers under which the other end of the waker and the listener are watched.
const WAKENED: u64 = 0;
const LISTENER: u64 = 1;

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
    /// Where the launcher has put them, for messages.
    pub places: Places,
    /// By which strangers may know the job, where its launcher carries no secret.
    pub public: Option<JobId>,
    /// What PEs get the job's secret from, where munge carries it.
    pub handout: Option<Arc<Handout>>,
    /// The job is one program: a process that comes for the first time after the first generation
    /// is of the next program, which has a hub of its own.
    pub one_program: bool,
}

impl HubOptions {
    /// Creates options for a job that may be one of several programs, and of whose ranks nothing
    /// else is known.
    pub fn new(listen: SocketAddr, job: JobId, npes: Option<u32>) -> Self {
        Self { listen, job, npes, places: Places::Unknown, public: None, handout: None, one_program: false }
    }

    /// Creates options for a job on this machine: the hub listens on the loopback interface.
    ///
    /// # Errors
    /// Fails like [`JobId::random`].
    pub fn local(npes: u32) -> Result<Self, BootstrapError> {
        Ok(Self::new((Ipv4Addr::LOCALHOST, 0).into(), JobId::random()?, Some(npes)))
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
    traffic: Arc<ByteCounts>,
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

    /// Does the same as [`Hub::start`] for a job whose identity may be known to strangers.
    ///
    /// # Errors
    /// Fails like [`Hub::start`].
    pub fn start_for(options: HubOptions, admission: Admission) -> Result<Self, BootstrapError> {
        if let Admission::SameUser { nodes, without } = &admission {
            let others = match nodes {
                Some(nodes) if nodes.is_empty() => "no others",
                Some(_) => "any process on the job's other nodes",
                None => "any process on other machines, since the launcher does not name the nodes",
            };
            tracing::warn!(
                "the launcher gives the job no secret, so the rendezvous on {} admits processes of this user on this \
                 machine, and {others}; {without}; run munge on all nodes, or set OXSHMEM_SECRET_FILE to a file of mode \
                 0600 that all PEs can read",
                options.listen
            );
        }
        let what = || format!("starting the rendezvous on {}", options.listen);
        let listener = stream::listen(options.listen).map_err(BootstrapError::system(what()))?;
        listener.set_nonblocking(true).map_err(BootstrapError::system(what()))?;
        let address = listener.local_addr().map_err(BootstrapError::system(what()))?;
        let (waker, wakened) = UnixStream::pair().map_err(BootstrapError::system(what()))?;
        wakened.set_nonblocking(true).map_err(BootstrapError::system(what()))?;
        waker.set_nonblocking(true).map_err(BootstrapError::system(what()))?;
        let sockets = Sockets::new(options.job).map_err(BootstrapError::system(what()))?.known_as(options.public);
        sockets.watch(wakened.as_fd(), WAKENED).map_err(BootstrapError::system(what()))?;
        let traffic = sockets.traffic();
        let session = Session::new(options.job.name(), options.npes).with_places(options.places);
        let session = if options.one_program { session.of_one_program() } else { session };
        let (control, controls) = channel();
        let failure = Arc::new(Mutex::new(None));
        let server = Server {
            admission,
            handout: options.handout,
            short_of_files: false,
            session,
            sockets,
            listener,
            watching: false,
            wakened,
            controls,
            failure: Arc::clone(&failure),
            accept_after: Duration::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("oxshmem-hub".into())
            .spawn(move || server.run())
            .map_err(BootstrapError::system(what()))?;
        Ok(Self { address, job: options.job, control, waker, failure, traffic, thread: Some(thread) })
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the job it serves.
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

    /// Returns why the job has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Returns the bytes that it has received and sent.
    pub fn traffic(&self) -> (u64, u64) {
        let ByteCounts { received, sent } = &*self.traffic;
        (received.load(Ordering::Relaxed), sent.load(Ordering::Relaxed))
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
    admission: Admission,
    handout: Option<Arc<Handout>>,
    /// The lack of file descriptors has been reported.
    short_of_files: bool,
    session: Session,
    sockets: Sockets,
    listener: TcpListener,
    /// The listener is watched.
    watching: bool,
    wakened: UnixStream,
    controls: Receiver<Control>,
    failure: Arc<Mutex<Option<Failure>>>,
    accept_after: Duration,
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
            self.session.tick(self.sockets.now());
            for (connection, why) in self.sockets.overdue() {
                self.lose(connection, &why);
            }
            self.act();
            if let Err(error) = self.wait_and_serve() {
                // Only a lack of kernel memory can fail here; the next round tries again.
                tracing::warn!("the rendezvous cannot wait for its sockets: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Waits for sockets or the next deadline, then reads, writes and accepts.
    fn wait_and_serve(&mut self) -> io::Result<()> {
        let now = self.sockets.now();
        let has_room = self.has_room(now);
        self.watch_listener(has_room && now >= self.accept_after)?;
        let paused = (now < self.accept_after).then_some(self.accept_after);
        let crowded = self.session.next_dispensable().filter(|at| !has_room && *at > now);
        let deadline = self.session.deadline().into_iter().chain(paused).chain(crowded).min();
        for ready in self.sockets.wait(deadline)? {
            match ready {
                Ready::Other(WAKENED) => while matches!((&self.wakened).read(&mut [0; 64]), Ok(1..)) {},
                Ready::Other(_) => self.accept(),
                Ready::Connection(connection) => self.serve(connection),
            }
            self.act();
        }
        Ok(())
    }

    /// Has the listener watched, or not: the kernel tells again and again of what is not taken.
    fn watch_listener(&mut self, wanted: bool) -> io::Result<()> {
        if wanted && !self.watching {
            self.sockets.watch(self.listener.as_fd(), LISTENER)?;
        } else if !wanted && self.watching {
            self.sockets.unwatch(self.listener.as_fd());
        }
        self.watching = wanted;
        Ok(())
    }

    /// Returns whether another connection can be taken.
    fn has_room(&self, now: Duration) -> bool {
        self.session.strangers() < MAX_STRANGERS || self.dispensable(now).is_some()
    }

    /// Returns a connection in whose place another can be taken: a stranger cannot keep PEs out by
    /// connections that say nothing. One that is done has to have been sent all that it is told.
    fn dispensable(&self, now: Duration) -> Option<Connection> {
        self.session.dispensable(now).find(|connection| self.sockets.has_sent(*connection))
    }

    fn accept(&mut self) {
        // Others than those that connect again and again have their turn in between.
        for _ in 0..MAX_ACCEPTED {
            let now = self.sockets.now();
            if !self.has_room(now) {
                return;
            }
            // One descriptor more is free than the connection takes, for what looks at it.
            let accepted = self.listener.accept().and_then(|(stream, _)| self.listener.try_clone().map(|_| stream));
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_file_limit() => continue,
                Err(error) => return self.cannot_accept(&error),
            };
            if self.session.strangers() >= MAX_STRANGERS
                && let Some(other) = self.dispensable(now)
            {
                self.lose(other, "had said too little when others came");
            }
            let added = self.admission.check(&stream).and_then(|()| {
                stream::tune(&stream).map_err(|error| format!("cannot be set up: {error}"))?;
                self.sockets.accepted(Channel::Tcp(stream)).map_err(|error| format!("cannot be served: {error}"))
            });
            match added {
                Ok(connection) => self.session.opened(self.sockets.now(), connection),
                Err(why) => self.session.dropped(&why),
            }
        }
    }

    fn cannot_accept(&mut self, error: &io::Error) {
        self.accept_after = self.sockets.now() + ACCEPT_PAUSE;
        // A connection that no rank has claimed is dropped soon, and another may have its place.
        if error.raw_os_error() == Some(libc::EMFILE) && self.session.strangers() == 0 {
            self.session.full(&format!(
                "the limit of {} open files of the process that runs it is reached; raise it there (ulimit -n; LimitNOFILE= of a \
                 service)",
                file_limit()
            ));
        }
        if !std::mem::replace(&mut self.short_of_files, true) {
            let remedy = crate::limits::remedy(error);
            tracing::warn!("the rendezvous cannot accept a connection for now: {error}{remedy}");
        }
    }

    fn serve(&mut self, connection: Connection) {
        if let Err(why) = self.sockets.flush(connection) {
            return self.lose(connection, &why);
        }
        match self.sockets.receive(connection) {
            Received::Bytes => self.parse(connection),
            Received::Asked(rank, nonce) => self.hand_out(connection, rank, &nonce),
            Received::Stranger(Stranger::Bare) => {
                let has = if self.handout.is_some() { "hands out the job's secret by munge" } else { SECRET_FILE };
                self.session.bare(connection, format!("PE 0 on {} {has}", Peer::this().host));
            }
            Received::Stranger(why) => self.session.stranger(connection, &why),
            Received::Ended(why) => self.lose(connection, &why),
        }
    }

    /// Replies to a PE that asks for the job's secret.
    fn hand_out(&mut self, connection: Connection, rank: u32, nonce: &[u8; BYTES]) {
        let reply = match &self.handout {
            Some(handout) => handout.reply(nonce).map_err(|why| {
                format!("PE 0 on {} cannot hand out the job's secret: munge does not seal it: {why}", Peer::this().host)
            }),
            None => Ok(handout::without(self.admission == Admission::Secret).to_vec()),
        };
        self.session.asked(connection, rank, reply);
    }

    fn parse(&mut self, connection: Connection) {
        while let Some(taken) = self.sockets.take(connection, Decoder::next_frame) {
            match taken {
                Ok(frame) => self.session.frame(self.sockets.now(), connection, frame),
                Err(error) => return self.session.garbage(connection, &error),
            }
            // A HELLO raises the limit for the frames after it.
            self.act();
        }
    }

    fn lose(&mut self, connection: Connection, why: &str) {
        self.sockets.remove(connection);
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
                let (connection, done) = match action {
                    Action::Send(connection, bytes) => (connection, self.sockets.send(connection, bytes)),
                    Action::Close(connection) => (connection, self.sockets.close(connection)),
                    Action::Greeted(connection) => {
                        self.sockets.set_limit(connection, MAX_FROM_RANK);
                        continue;
                    }
                };
                if let Err(why) = done {
                    self.lose(connection, &why);
                }
            }
        }
    }
}
