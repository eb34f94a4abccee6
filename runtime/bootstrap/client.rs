//! A PE's side of the bootstrap: one connection to the hub or to the leader of the node, and a
//! thread that reads it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::error::BootstrapError;
use super::failure::{Failure, FailureCell, FailureKind, aborted, lock};
use super::frame::{Arrival, Frame, HUB, Hello, Message, Way};
use super::job::JobId;
use super::join::{Admitted, Attempt, Leading};
use super::launcher::Place;
use super::peer::Peer;
use super::stream::Channel;
use super::text::Seconds;
use super::wire::{Wire, WireError, write_all};
use crate::last_error;

/// How much longer than the hub this side waits: the hub's answer at its deadline names the missing
/// ranks.
const HUB_SLACK: Duration = Duration::from_secs(5);

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
    /// How long a call waits for other PEs.
    meeting: Duration,
    route: Route,
    peers: Vec<Peer>,
    /// Held for the length of a collective: its sequence number, and whether this PE has finalized.
    turn: Mutex<Turn>,
    writer: Mutex<Channel>,
    shared: Arc<Shared>,
    calls: Arc<Calls>,
    monitor: Mutex<Option<JoinHandle<()>>>,
    /// The thread that serves the other PEs of this node, if this one leads them.
    leading: Mutex<Option<Leading>>,
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
    /// Connects before the deadline, and waits for all other ranks for `timeout`, and later in each
    /// call for `meeting`.
    pub fn join(
        place: &Place,
        (timeout, deadline): (Duration, Instant),
        meeting: Duration,
        peer: Peer,
        by_node: bool,
    ) -> Result<Self, BootstrapError> {
        let Place { rank, npes, job, .. } = *place;
        let generation = lock(&GENERATIONS).get(&(job, rank)).map_or(0, |last| last.wrapping_add(1).max(1));
        let message = Message::Hello(Hello { job: job.name(), npes, timeout, meeting, peer: peer.clone() });
        let hello = Frame { generation, rank, sequence: 0, message }.emit();
        let attempt = Attempt { place, timeout, deadline, hello: &hello };
        // The wire last, so that it is dropped first if this fails: the leader's thread waits for
        // it.
        let Admitted { leading, way, address, mut wire } =
            if by_node { attempt.by_node(&peer)? } else { attempt.direct()? };
        let mut route = Route { rank, address, way, leader: format!(" on {}", peer.host) };
        let frame = wire
            .read(Some(Instant::now() + timeout + HUB_SLACK))
            .map_err(|error| BootstrapError::Failed(route.broken(&error)))?;
        let peers = match frame.message {
            Message::Welcome { peers } if peers.len() == npes as usize => peers,
            Message::Failed(failure) => return Err(BootstrapError::Failed(failure)),
            other => {
                let what = format!("it answered HELLO with {:?}", other.op());
                return Err(BootstrapError::Failed(route.lost(&what)));
            }
        };
        if let Some(leader) = peers.get(route.way.leader as usize) {
            route.leader = leader.place();
        }
        let system = || BootstrapError::system(format!("PE {rank}: preparing the connection to the rendezvous"));
        let writer = wire.stream.try_clone().map_err(system())?;
        let shared =
            Arc::new(Shared { answer: Mutex::new(None), changed: Condvar::new(), failure: FailureCell::default() });
        let monitor = {
            let (shared, route) = (Arc::clone(&shared), route.clone());
            std::thread::Builder::new()
                .name("oxshmem-boot".into())
                .spawn(move || monitor(wire, &shared, &route))
                .map_err(system())?
        };
        Ok(Self {
            rank,
            job,
            generation: frame.generation,
            timeout,
            meeting,
            route,
            peers,
            turn: Mutex::new(Turn { sequence: 0, finalized: false }),
            writer: Mutex::new(writer),
            shared,
            calls: Arc::default(),
            monitor: Mutex::new(Some(monitor)),
            leading: Mutex::new(leading),
        })
    }

    /// Returns every PE, by rank.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// Returns this node's address by which the hub was reached.
    pub fn local_address(&self) -> Option<IpAddr> {
        if self.route.way.leader == HUB {
            return lock(&self.writer).local_address();
        }
        let address = self.route.way.address;
        (!address.is_unspecified()).then(|| IpAddr::V6(address).to_canonical())
    }

    /// Returns how far this PE's calls have come.
    pub fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls)
    }

    /// Returns why the job failed, and the subscribers to that news.
    pub fn failure_cell(&self) -> &FailureCell {
        &self.shared.failure
    }

    /// Does what [`super::Bootstrap::allgather`] does.
    pub fn allgather(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let message = Message::Allgather { label: label.to_owned(), data: data.to_vec() };
        match self.collective("allgather", message)? {
            Message::Gathered { parts } if parts.len() == self.peers.len() => Ok(parts),
            other => Err(self.unexpected("allgather", &other)),
        }
    }

    /// Does what [`super::Bootstrap::alltoall`] does.
    pub fn alltoall(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let message = Message::Alltoall { label: label.to_owned(), data: data.to_vec() };
        match self.collective("alltoall", message)? {
            Message::Gathered { parts } if parts.len() == self.peers.len() => Ok(parts),
            other => Err(self.unexpected("alltoall", &other)),
        }
    }

    /// Does what [`super::Bootstrap::barrier`] does.
    pub fn barrier(&self, label: &str) -> Result<(), BootstrapError> {
        match self.collective("barrier", Message::Barrier { label: label.to_owned() })? {
            Message::Released => Ok(()),
            other => Err(self.unexpected("barrier", &other)),
        }
    }

    /// Does what [`super::Bootstrap::gather`] does.
    pub fn gather(&self, arrival: Arrival) -> Result<Vec<(u32, Vec<u8>)>, BootstrapError> {
        let size = arrival.size as usize;
        let turn = lock(&self.turn);
        match self.ask(&turn, 0, "gather", Message::Group(arrival))? {
            Message::Grouped { parts } if parts.len() == size => Ok(parts),
            Message::Disbanded(failure) => Err(BootstrapError::Disbanded(failure)),
            other => Err(self.unexpected("gather", &other)),
        }
    }

    /// Does what [`super::Bootstrap::abort`] does, or [`super::Bootstrap::exit`] with a status.
    pub fn abort(&self, status: Option<i32>, reason: &str) {
        if self.shared.failure.get().is_some() || lock(&self.monitor).is_none() {
            return;
        }
        // An error means that the hub is gone; then the others learn it from that.
        let _ = self.send(0, Message::Abort { status, reason: reason.to_owned() });
        self.shared.fail(aborted(self.rank, status, reason));
    }

    /// Does what [`super::Bootstrap::finalize`] does.
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
        let label = match &message {
            Message::Allgather { label, .. } | Message::Alltoall { label, .. } | Message::Barrier { label } => label,
            Message::Group(arrival) => &arrival.label,
            _ => what,
        };
        self.calls.begin(sequence, label);
        let answer = self.exchange(sequence, what, message);
        self.calls.end();
        answer
    }

    fn exchange(&self, sequence: u64, what: &'static str, message: Message) -> Result<Message, BootstrapError> {
        let deadline = Instant::now() + self.meeting + HUB_SLACK;
        if let Err(error) = self.send(sequence, message) {
            // The monitor finds the connection broken too, after what the hub may have said before.
            let lost = || self.route.lost(&error.to_string());
            return self.wait(Instant::now() + HUB_SLACK, lost).map(|frame| frame.message);
        }
        let late = || {
            let what = format!("it did not answer {what} within {}", Seconds(self.meeting + HUB_SLACK));
            self.route.lost(&what)
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
        let failure = self.route.lost(&format!("it answered {what} with {:?}", answer.op()));
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
        // Last: what this PE has said is passed on, and the others of the node have heard the end.
        drop(lock(&self.leading).take());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !lock(&self.turn).finalized {
            let how = if std::thread::panicking() { "it panicked" } else { "it ended without finalize" };
            match last_error::take() {
                Some(error) => self.abort(None, &format!("{how}; the last error of its calls: {error}")),
                None => self.abort(None, how),
            }
            self.close();
        }
    }
}

/// Reads the connection until it ends: replies go to the caller that waits, a failure to all
/// callers.
fn monitor(mut wire: Wire, shared: &Shared, route: &Route) {
    loop {
        let frame = match wire.read(None) {
            Ok(frame) => frame,
            Err(error) => return shared.fail(route.broken(&error)),
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
            other => return shared.fail(route.lost(&format!("it sent {:?} unasked", other.op()))),
        }
    }
}

/// How this PE is connected, for messages.
#[derive(Debug, Clone)]
struct Route {
    rank: u32,
    /// The hub's address.
    address: String,
    way: Way,
    /// Where the leader is, to be set after its name.
    leader: String,
}

impl Route {
    /// Returns the failure of the hub, as this PE sees it.
    fn lost(&self, why: &str) -> Failure {
        let message = format!("PE {} lost the rendezvous at {}: {why}", self.rank, self.address);
        Failure::new(FailureKind::Hub, Vec::new(), message)
    }

    /// Returns the failure that follows from the end of the connection: it is the leader's, if
    /// another PE leads this node.
    fn broken(&self, error: &WireError) -> Failure {
        let Way { leader, .. } = self.way;
        if leader == HUB || leader == self.rank || !matches!(error, WireError::Closed | WireError::Io(_)) {
            return self.lost(&error.to_string());
        }
        let message = format!(
            "PE {leader}{} died: it closed its connection without finalize, through which PE {} reached the rendezvous",
            self.leader, self.rank
        );
        Failure::new(FailureKind::Lost, vec![leader], message)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    use oxshmem_system::challenge::BYTES;

    use super::super::frame::VERSION;
    use super::super::gate::{Gate, Step, nonce};
    use super::*;

    /// Creates a client whose hub lets it in alone, and then does `then` with the connection.
    fn with_hub(then: impl FnOnce(&mut Wire) + Send + 'static) -> (Client, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Place {
            rank: 0,
            npes: 1,
            job: JobId([1; 16]),
            rendezvous: listener.local_addr().unwrap().to_string().parse().unwrap(),
            searching: false,
            bare: None,
        };
        let hub = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut wire = Wire::new(Channel::Tcp(stream));
            let mut gate = Gate::new(JobId([1; 16]), nonce().unwrap());
            let mut bytes = [0; 40];
            (&wire.stream).read_exact(&mut bytes).unwrap();
            let Ok(Step::Send(own)) = gate.push(&bytes) else { panic!() };
            (&wire.stream).write_all(&own).unwrap();
            (&wire.stream).read_exact(&mut bytes[..BYTES]).unwrap();
            let Ok(Step::Passed(own, _)) = gate.push(&bytes[..BYTES]) else { panic!() };
            (&wire.stream).write_all(&own).unwrap();
            let Message::Hello(hello) = wire.read(None).unwrap().message else { panic!() };
            say(&mut wire, 0, Message::Accepted(Way::DIRECT));
            say(&mut wire, 0, Message::Welcome { peers: vec![hello.peer] });
            then(&mut wire);
        });
        let (timeout, meeting) = (Duration::from_secs(10), Duration::from_secs(1));
        let until = Instant::now() + timeout;
        let client = Client::join(&place, (timeout, until), meeting, Peer::this(), false).unwrap();
        (client, hub)
    }

    fn say(wire: &mut Wire, sequence: u64, message: Message) {
        (&wire.stream).write_all(&Frame { generation: 1, rank: HUB, sequence, message }.emit()).unwrap();
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
            (&wire.stream).write_all(&[&b"OXSB"[..], &VERSION.to_be_bytes(), &[0xff]].concat()).unwrap();
            (&wire.stream).write_all(&[0; 30]).unwrap();
        });
        let message = failure_of_barrier(&client);
        assert!(message.ends_with("what it sent is not a frame: op 255 does not exist"), "{message}");
        hub.join().unwrap();
    }
}
