//! A PE's side of the bootstrap: one connection to the hub, and a thread that reads it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxshmem_system::challenge::BYTES;
use rustix::net::sockopt;

use super::error::BootstrapError;
use super::failure::{Failure, FailureCell, FailureKind, aborted, lock};
use super::frame::{Arrival, Decoder, Frame, FrameError, Hello, MAGIC, MAX_RESULT, Message};
use super::gate::Knock;
use super::job::{JobId, Rendezvous};
use super::peer::Peer;
use super::text::Seconds;
use crate::last_error;

/// How long the hub may take to answer a HELLO. A HELLO never waits for other work.
const ANSWER: Duration = Duration::from_secs(10);
/// How much longer than the hub this side waits: the hub's answer at its deadline names the missing
/// ranks.
const HUB_SLACK: Duration = Duration::from_secs(5);
/// Longest attempt to connect to one address, when there are others.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(50);
/// How long a frame from the hub may take from its first byte to its last.
const STALL: Duration = Duration::from_secs(30);
/// Longest payload that the hub sends: a result and its count, or the table of the PEs.
const MAX_FROM_HUB: usize = MAX_RESULT + 4;

/// How often this process has initialised and finalized as a rank of a job. It makes a HELLO refer
/// to one generation.
static GENERATIONS: Mutex<BTreeMap<(JobId, u32), u32>> = Mutex::new(BTreeMap::new());

/// A connected PE.
#[derive(Debug)]
pub struct Client {
    rank: u32,
    job: JobId,
    generation: u32,
    timeout: Duration,
    address: String,
    peers: Vec<Peer>,
    /// Held for the length of a collective: its sequence number, and whether this PE has finalized.
    turn: Mutex<Turn>,
    writer: Mutex<TcpStream>,
    shared: Arc<Shared>,
    monitor: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Turn {
    sequence: u64,
    finalized: bool,
}

/// What the monitor thread and the callers share.
#[derive(Debug)]
struct Shared {
    /// The hub's answer to the collective that is under way.
    answer: Mutex<Option<Frame>>,
    /// An answer or a failure is there.
    changed: Condvar,
    failure: FailureCell,
}

impl Shared {
    fn fail(&self, failure: Failure) {
        self.failure.set(failure);
        // Taken so that a caller cannot look between the failure and the wake-up.
        let _answer = lock(&self.answer);
        self.changed.notify_all();
    }
}

impl Client {
    /// Connects and waits for all other ranks.
    pub fn join(
        rendezvous: &Rendezvous,
        job: JobId,
        (rank, npes): (u32, u32),
        timeout: Duration,
        peer: Peer,
    ) -> Result<Self, BootstrapError> {
        let deadline = Instant::now() + timeout;
        let generation = lock(&GENERATIONS).get(&(job, rank)).map_or(0, |last| last.wrapping_add(1).max(1));
        let hello = Frame {
            generation,
            rank,
            sequence: 0,
            message: Message::Hello(Hello { job: job.name(), npes, timeout, peer }),
        }
        .emit();
        let mut reason = None;
        let (mut wire, address) = loop {
            match connect_any(rendezvous, deadline, (rank, job), &hello)? {
                Ok(connected) => break connected,
                // An attempt that the deadline cut short says less than one before it.
                Err(latest) if reason.is_none() || Instant::now() < deadline => reason = Some(latest),
                Err(_) => {}
            }
            if Instant::now() + RETRY >= deadline {
                let (address, reason) = (rendezvous.to_string(), reason.unwrap_or_default());
                return Err(BootstrapError::Unreachable { rank, address, timeout, reason });
            }
            std::thread::sleep(RETRY);
        };
        let lost = |error: WireError| hub_lost(rank, &address, &error.to_string());
        let frame =
            wire.read(Some(Instant::now() + timeout + HUB_SLACK)).map_err(|e| BootstrapError::Failed(lost(e)))?;
        let peers = match frame.message {
            Message::Welcome { peers } if peers.len() == npes as usize => peers,
            Message::Failed(failure) => return Err(BootstrapError::Failed(failure)),
            other => {
                let what = format!("it answered HELLO with {:?}", other.op());
                return Err(BootstrapError::Failed(hub_lost(rank, &address, &what)));
            }
        };
        let system = || BootstrapError::system(format!("PE {rank}: preparing the connection to the rendezvous"));
        let writer = wire.stream.try_clone().map_err(system())?;
        let shared =
            Arc::new(Shared { answer: Mutex::new(None), changed: Condvar::new(), failure: FailureCell::default() });
        let monitor = {
            let (shared, address) = (Arc::clone(&shared), address.clone());
            std::thread::Builder::new()
                .name("oxshmem-boot".into())
                .spawn(move || monitor(wire, &shared, rank, &address))
                .map_err(system())?
        };
        Ok(Self {
            rank,
            job,
            generation: frame.generation,
            timeout,
            address,
            peers,
            turn: Mutex::new(Turn { sequence: 0, finalized: false }),
            writer: Mutex::new(writer),
            shared,
            monitor: Mutex::new(Some(monitor)),
        })
    }

    /// Every PE, by rank.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// This node's address by which the hub was reached.
    pub fn local_address(&self) -> Option<IpAddr> {
        lock(&self.writer).local_addr().ok().map(|address| address.ip())
    }

    /// Why the job failed, and the subscribers to that news.
    pub fn failure_cell(&self) -> &FailureCell {
        &self.shared.failure
    }

    /// See [`super::Bootstrap::allgather`].
    pub fn allgather(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let message = Message::Allgather { label: label.to_owned(), data: data.to_vec() };
        match self.collective("allgather", message)? {
            Message::Gathered { parts } if parts.len() == self.peers.len() => Ok(parts),
            other => Err(self.unexpected("allgather", &other)),
        }
    }

    /// See [`super::Bootstrap::alltoall`].
    pub fn alltoall(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let message = Message::Alltoall { label: label.to_owned(), data: data.to_vec() };
        match self.collective("alltoall", message)? {
            Message::Gathered { parts } if parts.len() == self.peers.len() => Ok(parts),
            other => Err(self.unexpected("alltoall", &other)),
        }
    }

    /// See [`super::Bootstrap::barrier`].
    pub fn barrier(&self, label: &str) -> Result<(), BootstrapError> {
        match self.collective("barrier", Message::Barrier { label: label.to_owned() })? {
            Message::Released => Ok(()),
            other => Err(self.unexpected("barrier", &other)),
        }
    }

    /// See [`super::Bootstrap::gather`].
    pub fn gather(&self, arrival: Arrival) -> Result<Vec<(u32, Vec<u8>)>, BootstrapError> {
        let size = arrival.size as usize;
        let turn = lock(&self.turn);
        match self.ask(&turn, 0, "gather", Message::Group(arrival))? {
            Message::Grouped { parts } if parts.len() == size => Ok(parts),
            Message::Disbanded(failure) => Err(BootstrapError::Disbanded(failure)),
            other => Err(self.unexpected("gather", &other)),
        }
    }

    /// See [`super::Bootstrap::abort`].
    pub fn abort(&self, reason: &str) {
        if self.shared.failure.get().is_some() || lock(&self.monitor).is_none() {
            return;
        }
        // An error means that the hub is gone; then the others learn it from that.
        let _ = self.send(0, Message::Abort { reason: reason.to_owned() });
        self.shared.fail(aborted(self.rank, reason));
    }

    /// See [`super::Bootstrap::finalize`].
    pub fn finalize(&self) -> Result<(), BootstrapError> {
        let result = match self.collective("finalize", Message::Goodbye) {
            Ok(Message::Farewell) => {
                lock(&GENERATIONS).insert((self.job, self.rank), self.generation);
                Ok(())
            }
            Ok(other) => Err(self.unexpected("finalize", &other)),
            Err(BootstrapError::Finalized(_)) => return Ok(()),
            Err(error) => Err(error),
        };
        lock(&self.turn).finalized = true;
        self.close();
        result
    }

    /// Enters a collective of all ranks and waits for the hub's answer.
    fn collective(&self, what: &'static str, message: Message) -> Result<Message, BootstrapError> {
        let mut turn = lock(&self.turn);
        let sequence = turn.sequence + 1;
        turn.sequence = sequence;
        self.ask(&turn, sequence, what, message)
    }

    /// Sends this PE's part and waits for the hub's answer.
    fn ask(&self, turn: &Turn, sequence: u64, what: &'static str, message: Message) -> Result<Message, BootstrapError> {
        if turn.finalized {
            return Err(BootstrapError::Finalized(what));
        }
        if let Some(failure) = self.shared.failure.get() {
            return Err(BootstrapError::Failed(failure));
        }
        let deadline = Instant::now() + self.timeout + HUB_SLACK;
        if let Err(error) = self.send(sequence, message) {
            // The monitor finds the connection broken too, after what the hub may have said before.
            let lost = || hub_lost(self.rank, &self.address, &error.to_string());
            return self.wait(Instant::now() + HUB_SLACK, lost).map(|frame| frame.message);
        }
        let late = || {
            let what = format!("it did not answer {what} within {}", Seconds(self.timeout + HUB_SLACK));
            hub_lost(self.rank, &self.address, &what)
        };
        let frame = self.wait(deadline, late)?;
        if (frame.sequence, frame.generation) != (sequence, self.generation) {
            return Err(self.unexpected(what, &frame.message));
        }
        Ok(frame.message)
    }

    /// Waits for an answer or a failure; at the deadline `late` becomes the failure.
    fn wait(&self, deadline: Instant, late: impl Fn() -> Failure) -> Result<Frame, BootstrapError> {
        let mut answer = lock(&self.shared.answer);
        loop {
            if let Some(frame) = answer.take() {
                return Ok(frame);
            }
            if let Some(failure) = self.shared.failure.get() {
                return Err(BootstrapError::Failed(failure));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(answer);
                self.shared.fail(late());
                answer = lock(&self.shared.answer);
                continue;
            }
            answer = match self.shared.changed.wait_timeout(answer, left) {
                Ok((answer, _)) => answer,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn unexpected(&self, what: &str, answer: &Message) -> BootstrapError {
        let failure = hub_lost(self.rank, &self.address, &format!("it answered {what} with {:?}", answer.op()));
        self.shared.fail(failure.clone());
        BootstrapError::Failed(failure)
    }

    fn send(&self, sequence: u64, message: Message) -> io::Result<()> {
        let bytes = Frame { generation: self.generation, rank: self.rank, sequence, message }.emit();
        write_all(&lock(&self.writer), &bytes, Instant::now() + self.timeout)
    }

    fn close(&self) {
        // Fails when the hub has closed already.
        let _ = lock(&self.writer).shutdown(Shutdown::Both);
        let monitor = lock(&self.monitor).take();
        // A failure callback may be what closes this; a thread cannot wait for itself.
        if let Some(thread) = monitor.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !lock(&self.turn).finalized {
            let how = if std::thread::panicking() { "it panicked" } else { "it ended without finalize" };
            match last_error::take() {
                Some(error) => self.abort(&format!("{how}; the last error of its calls: {error}")),
                None => self.abort(how),
            }
            self.close();
        }
    }
}

/// Reads the connection until it ends: replies go to the caller that waits, a failure to all
/// callers.
fn monitor(mut wire: Wire, shared: &Shared, rank: u32, address: &str) {
    loop {
        let frame = match wire.read(None) {
            Ok(frame) => frame,
            Err(error) => return shared.fail(hub_lost(rank, address, &error.to_string())),
        };
        match frame.message {
            Message::Failed(failure) => return shared.fail(failure),
            Message::Gathered { .. }
            | Message::Released
            | Message::Farewell
            | Message::Grouped { .. }
            | Message::Disbanded(_) => {
                let last = matches!(frame.message, Message::Farewell);
                *lock(&shared.answer) = Some(frame);
                shared.changed.notify_all();
                if last {
                    return;
                }
            }
            other => return shared.fail(hub_lost(rank, address, &format!("it sent {:?} unasked", other.op()))),
        }
    }
}

fn hub_lost(rank: u32, address: &str, why: &str) -> Failure {
    let message = format!("PE {rank} lost the rendezvous at {address}: {why}");
    Failure { kind: FailureKind::Hub, ranks: Vec::new(), message }
}

/// One attempt at every address: `Ok(Err(reason))` when another attempt may succeed.
fn connect_any(
    rendezvous: &Rendezvous,
    deadline: Instant,
    (rank, job): (u32, JobId),
    hello: &[u8],
) -> Result<Result<(Wire, String), String>, BootstrapError> {
    let mut reason = String::new();
    let mut refused = None;
    for address in rendezvous.addresses() {
        let mut wire = match connect(address, deadline) {
            Ok(stream) => Wire { stream, decoder: Decoder::new(MAX_FROM_HUB), timeout: None },
            // No later attempt of this process succeeds either.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                return Err(BootstrapError::system(format!("connecting to the rendezvous at {address}"))(error));
            }
            Err(error) => {
                reason = format!("{address}: {error}");
                continue;
            }
        };
        let until = deadline.min(Instant::now() + ANSWER);
        let answer = wire.knock(&Knock::new(job)?, until).and_then(|()| {
            write_all(&wire.stream, hello, until)?;
            wire.read(Some(until))
        });
        match answer.map(|frame| frame.message) {
            Ok(Message::Accepted) => return Ok(Ok((wire, address.to_owned()))),
            Ok(Message::Failed(failure)) => return Err(BootstrapError::Failed(failure)),
            // Another address may lead to the right hub: the same port of another machine may serve
            // another job.
            Ok(Message::Refused { reason }) | Err(WireError::Refused(reason)) => {
                refused = Some(BootstrapError::Refused { rank, address: address.to_owned(), reason });
            }
            Err(WireError::Frame(error @ FrameError::Version(_))) => {
                let reason = format!("it speaks {error}");
                refused = Some(BootstrapError::Refused { rank, address: address.to_owned(), reason });
            }
            Err(WireError::Stranger(what)) => {
                let reason = format!("{what} the secret of job {}; it may serve another job", job.name());
                refused = Some(BootstrapError::Refused { rank, address: address.to_owned(), reason });
            }
            Ok(other) => reason = format!("{address} answered HELLO with {:?}", other.op()),
            Err(error) => reason = format!("{address}: {error}"),
        }
    }
    refused.map_or(Ok(Err(reason)), Err)
}

fn connect(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), ATTEMPT);
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                tune(&stream)?;
                return Ok(stream);
            }
            Err(last) => error = last,
        }
    }
    Err(error)
}

/// No delay for small frames; and probes, so that a machine that vanishes is noticed within about
/// 20 seconds.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(3))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not read what it is sent"));
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum WireError {
    #[error("it closed the connection")]
    Closed,
    #[error("it did not answer in time")]
    TimedOut,
    #[error("what it sent is not a frame: {0}")]
    Frame(#[from] FrameError),
    /// It refuses this side before any proof, as a rendezvous of an old version does.
    #[error("{0}")]
    Refused(String),
    /// The other side is not of this job; the text is to be followed by the name of the secret.
    #[error("{0}")]
    Stranger(&'static str),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The reading half.
struct Wire {
    stream: TcpStream,
    decoder: Decoder,
    /// The read timeout that the socket has now.
    timeout: Option<Duration>,
}

impl Wire {
    /// Proves to the other side that this one belongs to the job, and makes it prove the same.
    fn knock(&mut self, knock: &Knock, deadline: Instant) -> Result<(), WireError> {
        write_all(&self.stream, &knock.opening(), deadline)?;
        let theirs = self.read_exact::<BYTES>(deadline)?;
        let (proof, is_right) = knock.answer(theirs);
        write_all(&self.stream, &proof, deadline)?;
        let theirs = self.read_exact::<BYTES>(deadline).map_err(|error| match error {
            // It has sent a nonce, so it is a rendezvous.
            WireError::Closed => WireError::Stranger("it does not accept the proof that this PE knows"),
            WireError::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                WireError::Stranger("it does not accept the proof that this PE knows")
            }
            other => other,
        })?;
        if is_right(&theirs) { Ok(()) } else { Err(WireError::Stranger("it does not prove that it knows")) }
    }

    /// The next bytes, before the first frame. A frame instead of them says why the other side
    /// refuses this one.
    fn read_exact<const N: usize>(&mut self, deadline: Instant) -> Result<[u8; N], WireError> {
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WireError::TimedOut);
            }
            self.stream.set_read_timeout(Some(left))?;
            self.timeout = Some(left);
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(WireError::Closed),
                Ok(read) => filled += read,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
            if bytes[..filled].starts_with(&MAGIC) {
                self.decoder.push(&bytes[..filled]);
                return match self.read(Some(deadline))?.message {
                    Message::Refused { reason } => Err(WireError::Refused(reason)),
                    other => Err(io::Error::other(format!("it sent {:?} before its proof", other.op())).into()),
                };
            }
        }
        Ok(bytes)
    }

    /// The next frame. Without a deadline it waits for the first byte forever, and for the rest not
    /// longer than [`STALL`].
    fn read(&mut self, deadline: Option<Instant>) -> Result<Frame, WireError> {
        let mut begun = None;
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(frame);
            }
            if self.decoder.is_partial() {
                begun.get_or_insert_with(Instant::now);
            }
            let deadline = deadline.or(begun.map(|begun| begun + STALL));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(WireError::TimedOut);
            }
            if self.timeout != left {
                self.stream.set_read_timeout(left)?;
                self.timeout = left;
            }
            let mut buffer = [0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(WireError::Closed),
                Ok(read) => self.decoder.push(&buffer[..read]),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    use super::super::frame::HUB;
    use super::super::gate::{Gate, Step, nonce};
    use super::*;

    /// A client whose hub lets it in alone, and then does `then` with the connection.
    fn with_hub(then: impl FnOnce(&mut Wire) + Send + 'static) -> (Client, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let rendezvous = listener.local_addr().unwrap().to_string().parse().unwrap();
        let hub = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut wire = Wire { stream, decoder: Decoder::new(1 << 20), timeout: None };
            let mut gate = Gate::new(JobId([1; 16]), nonce().unwrap());
            let mut bytes = [0; 40];
            wire.stream.read_exact(&mut bytes).unwrap();
            let Ok(Step::Send(own)) = gate.push(&bytes) else { panic!() };
            wire.stream.write_all(&own).unwrap();
            wire.stream.read_exact(&mut bytes[..BYTES]).unwrap();
            let Ok(Step::Passed(own, _)) = gate.push(&bytes[..BYTES]) else { panic!() };
            wire.stream.write_all(&own).unwrap();
            let Message::Hello(hello) = wire.read(None).unwrap().message else { panic!() };
            say(&mut wire, 0, Message::Accepted);
            say(&mut wire, 0, Message::Welcome { peers: vec![hello.peer] });
            then(&mut wire);
        });
        let client = Client::join(&rendezvous, JobId([1; 16]), (0, 1), Duration::from_secs(1), Peer::this()).unwrap();
        (client, hub)
    }

    fn say(wire: &mut Wire, sequence: u64, message: Message) {
        wire.stream.write_all(&Frame { generation: 1, rank: HUB, sequence, message }.emit()).unwrap();
    }

    fn failure_of_barrier(client: &Client) -> String {
        match client.barrier("x") {
            Err(BootstrapError::Failed(failure)) => {
                assert_eq!(failure.kind, FailureKind::Hub);
                failure.message
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hub_that_falls_silent_is_given_up_at_the_deadline() {
        let (done, wait) = channel::<()>();
        let (client, hub) = with_hub(move |_| assert!(wait.recv().is_err()));
        let message = failure_of_barrier(&client);
        assert!(message.ends_with("it did not answer barrier within 6 s"), "{message}");
        drop(done);
        hub.join().unwrap();
    }

    #[test]
    fn answers_that_do_not_fit_the_question_are_errors() {
        let (client, hub) = with_hub(|wire| {
            wire.read(None).unwrap();
            say(wire, 1, Message::Gathered { parts: vec![] });
            let _ = wire.read(None);
        });
        assert!(failure_of_barrier(&client).ends_with("it answered barrier with Gathered"));
        drop(client);
        hub.join().unwrap();

        let (client, hub) = with_hub(|wire| {
            wire.read(None).unwrap();
            say(wire, 7, Message::Released);
            let _ = wire.read(None);
        });
        assert!(failure_of_barrier(&client).ends_with("it answered barrier with Released"));
        drop(client);
        hub.join().unwrap();
    }

    #[test]
    fn a_gather_has_as_many_parts_as_members() {
        let (client, hub) = with_hub(|wire| {
            wire.read(None).unwrap();
            say(wire, 0, Message::Grouped { parts: vec![(0, vec![]); 3] });
            let _ = wire.read(None);
        });
        let arrival = Arrival { key: vec![1], label: "split".into(), size: 2, index: 0, data: vec![] };
        let error = client.gather(arrival).unwrap_err().to_string();
        assert!(error.ends_with("it answered gather with Grouped"), "{error}");
        drop(client);
        hub.join().unwrap();
    }

    #[test]
    fn garbage_from_the_hub_is_an_error() {
        let (client, hub) = with_hub(|wire| {
            wire.read(None).unwrap();
            wire.stream.write_all(b"OXSB\0\x04\xff").unwrap();
            wire.stream.write_all(&[0; 30]).unwrap();
        });
        let message = failure_of_barrier(&client);
        assert!(message.ends_with("what it sent is not a frame: op 255 does not exist"), "{message}");
        hub.join().unwrap();
    }
}
