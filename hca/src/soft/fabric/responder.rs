//! The serving side of the fabric between nodes: a thread that executes what HCAs of other nodes
//! request, on the memory, keys and queue pairs of its own HCA.
//!
//! It reaches these as a peer of the same node does, through [`shared`](super::shared): it maps
//! the control segment and the memory. What the HCA withdraws stays mapped here until this thread
//! has taken that in, so a request that is being executed meanwhile touches memory that no program
//! has any more, and harms none. Its atomics are those of the engine: CPU atomics on the word.
//!
//! Memory that only kernels reach is not mapped: a [`Copier`] works on it, and holds off its
//! deregistration meanwhile.
//!
//! What it keeps for a connection is bounded: it takes nothing more in while the peer does not
//! read what it is sent. A connection that has not proved in time that it belongs to the job, or
//! sends what no HCA sends, is closed, which harms no other.

use super::buffers::Wire;
use super::copier::{Copier, Registered};
use super::frames::{Id, PIECE, Request, Response, Way};
use super::greeting::{self, HELLO, Hello};
use super::peer::{Peer, PeerMemory};
use crate::error::{Error, Result};
use crate::port::Gid;
use crate::soft::AcceleratorError;
use crate::soft::admission::{self, Initiator, Target};
use crate::soft::control::{MAX_QPS, QpFacts, rights};
use crate::soft::failure::Failure;
use crate::soft::memory;
use crate::wire::cqe::Syndrome;
use oxshmem_system::challenge::{BYTES, nonce};
use oxshmem_system::mixing::shuffle;
use oxshmem_system::words::native;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most connections of HCAs of other nodes.
const MOST_MEMBERS: usize = 4096;
/// The most connections that have not proved anything yet. Members try again.
const MOST_STRANGERS: usize = 256;
/// Bytes that may wait to be sent to a peer before nothing more of it is executed.
const MOST_UNSENT: usize = 1 << 20;
/// Connections that wait to be accepted; the kernel lowers it to `net.core.somaxconn`. The HCAs of
/// a job connect at the same time.
const BACKLOG: i32 = 4096;
/// How long the HCA's own fabric thread may take to tell of its memory. The connection whose
/// request needs it waits; others do not.
const MAPPING: Duration = Duration::from_secs(1);

/// The serving side.
#[derive(Debug)]
pub(in crate::soft) struct Responder {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Listens at `address`, for HCAs that know `secret`. The HCA `gid` is open; if its memory is
    /// an accelerator's, `copier` reaches it.
    pub(in crate::soft) fn start(
        gid: Gid,
        address: SocketAddr,
        secret: Vec<u8>,
        copier: Option<Copier>,
    ) -> Result<Self> {
        let os = |error| Error::os(format!("listen at {address} for HCAs of other nodes"), error);
        let listener = listen(address).map_err(os)?;
        let address = listener.local_addr().map_err(os)?;
        let own = Peer::connect(gid, gid, None)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("create an eventfd for the fabric between nodes", errno))?;
        let wake = Arc::new(wake);
        let mut serving =
            Serving { gid, secret, own, copier, listener, wake: Arc::clone(&wake), clients: Vec::new(), refused: 0 };
        let thread = std::thread::Builder::new()
            .name("oxshmem-nodes".into())
            .spawn(move || serving.run())
            .map_err(|error| Error::thread("the thread of the fabric between nodes", error))?;
        Ok(Self { address, wake, thread: Some(thread) })
    }

    /// Returns where it listens.
    pub(in crate::soft) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens at `address`, with a longer queue than the standard library's of 128.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Drop for Responder {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Err(errno) = rustix::io::write(&*self.wake, &1u64.to_ne_bytes()) {
            tracing::warn!(%errno, "the thread of the fabric between nodes could not be woken");
        }
        if thread.join().is_err() {
            tracing::warn!("the thread of the fabric between nodes panicked");
        }
    }
}

/// What a connection has proved.
#[derive(Debug)]
enum State {
    /// The peer has proved nothing, and may do so until then.
    Silent(Instant),
    /// The peer speaks the protocol.
    Challenged(Instant, Hello, [u8; BYTES]),
    /// The peer is this HCA of the job.
    Member(Gid),
}

#[derive(Debug)]
struct Client {
    wire: Wire,
    from: SocketAddr,
    state: State,
    qps: HashMap<u32, Progress>,
    /// QPs that have not been told of all that is done.
    untold: Vec<u32>,
    /// Until when the next request waits for this HCA's memory, if it does.
    waits: Option<Instant>,
}

/// Bytes that a connection sends until it is a member's.
const GREETING: usize = HELLO + BYTES;

/// How far the requests of a QP are.
#[derive(Debug, Clone, Copy)]
struct Progress {
    attempt: u32,
    next: u64,
    /// A request failed, or has to wait; the others of the attempt are ignored.
    stopped: bool,
    /// The initiator has not been told that the last one is done.
    untold: bool,
}

struct Serving {
    gid: Gid,
    secret: Vec<u8>,
    /// This HCA, as its peers see it.
    own: Peer,
    /// Reaches this HCA's memory if the CPU does not.
    copier: Option<Copier>,
    listener: TcpListener,
    wake: Arc<OwnedFd>,
    clients: Vec<Client>,
    /// Strangers that were refused; not each is worth a line in the log.
    refused: u64,
}

/// Why a request is not executed.
enum Stop {
    /// Memory of this HCA is not mapped yet.
    Fetch(String),
    Stall(String),
    Fail(Failure),
    /// The accelerator that executes does not.
    Lost(AcceleratorError),
}

impl From<AcceleratorError> for Stop {
    fn from(error: AcceleratorError) -> Self {
        Self::Lost(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Fail(failure)
    }
}

impl Serving {
    fn run(&mut self) {
        loop {
            let Some(ready) = self.wait() else { return };
            self.own.poll();
            let now = Instant::now();
            let mut kept = Vec::with_capacity(self.clients.len() + 1);
            for (mut client, (readable, writable)) in std::mem::take(&mut self.clients).into_iter().zip(ready.clients) {
                let outcome = match readable || writable || client.waits.is_some() {
                    true => self.serve(&mut client, readable),
                    false => Ok(()),
                };
                let outcome = outcome.and_then(|()| match client.state {
                    State::Silent(until) | State::Challenged(until, ..) if until <= now => {
                        Err(format!("it has not proved within {:?} that it belongs to the job", greeting::LIMIT))
                    }
                    _ => Ok(()),
                });
                match outcome {
                    Ok(()) => kept.push(client),
                    Err(reason) => self.dropped(&client, &reason),
                }
            }
            self.clients = kept;
            // Nothing is held back, so nothing touches what was withdrawn.
            self.own.unmap_withdrawn();
            if ready.listener {
                self.accept(now);
            }
        }
    }

    fn dropped(&mut self, client: &Client, reason: &str) {
        match client.state {
            State::Member(gid) if reason.is_empty() => {
                tracing::debug!(own = %self.gid, %gid, "the HCA of another node closed its connection");
            }
            State::Member(gid) => {
                tracing::warn!(own = %self.gid, %gid, from = %client.from, reason, "dropped the HCA of another node");
            }
            _ => {
                self.refused += 1;
                if self.refused.is_power_of_two() {
                    let (refused, reason) = (self.refused, if reason.is_empty() { "it closed" } else { reason });
                    tracing::warn!(own = %self.gid, from = %client.from, reason, refused, "refused a connection");
                }
            }
        }
    }

    /// Waits until something can be done. `None`: the HCA closes.
    fn wait(&self) -> Option<Ready> {
        loop {
            let deadlines = self.clients.iter().filter_map(|client| match client.state {
                State::Silent(until) | State::Challenged(until, ..) => Some(until),
                State::Member(_) => client.waits,
            });
            // Without a deadline if no connection has one: there is nothing else to do, and the HCA
            // wakes this thread when it closes.
            let limit = deadlines.min().map(|until| until.saturating_duration_since(Instant::now()));
            let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
            let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            // Gone once it has closed.
            fds.extend(self.own.connection().map(|own| PollFd::new(own, PollFlags::IN)));
            let first = fds.len();
            fds.extend(self.clients.iter().map(|client| {
                let unsent = client.wire.unsent();
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, unsent < MOST_UNSENT && client.waits.is_none());
                flags.set(PollFlags::OUT, unsent > 0);
                PollFd::new(&client.wire, flags)
            }));
            match poll(&mut fds, limit.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "the thread of the fabric between nodes cannot wait any more and ends; other nodes see this HCA as gone");
                    return None;
                }
            }
            if !fds[0].revents().is_empty() {
                return None;
            }
            let gone = PollFlags::ERR | PollFlags::HUP;
            let clients = fds[first..].iter().map(|fd| {
                let got = fd.revents();
                (got.intersects(PollFlags::IN | gone), got.contains(PollFlags::OUT))
            });
            return Some(Ready { listener: !fds[1].revents().is_empty(), clients: clients.collect() });
        }
    }

    fn accept(&mut self, now: Instant) {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(own = %self.gid, %error, "a connection of another node's HCA was lost");
                    // Without a free descriptor it would be reported again at once.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            let strangers = self.clients.iter().filter(|client| !matches!(client.state, State::Member(_))).count();
            if strangers >= MOST_STRANGERS || self.clients.len() - strangers >= MOST_MEMBERS {
                self.refused += 1;
                if self.refused.is_power_of_two() {
                    let (members, refused) = (self.clients.len() - strangers, self.refused);
                    tracing::warn!(own = %self.gid, %from, members, strangers, refused, "refused a connection: too many");
                }
                continue;
            }
            match self.admit(stream, from, now) {
                Ok(client) => self.clients.push(client),
                Err(error) => {
                    tracing::warn!(own = %self.gid, %from, %error, "a connection of another node's HCA was lost")
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, from: SocketAddr, now: Instant) -> Result<Client> {
        let state = State::Silent(now + greeting::LIMIT);
        Ok(Client { wire: Wire::new(stream)?, from, state, qps: HashMap::new(), untold: Vec::new(), waits: None })
    }

    /// Does what a connection asks for. `Err` closes it, with an empty reason if the peer did.
    fn serve(&mut self, client: &mut Client, readable: bool) -> std::result::Result<(), String> {
        client.wire.flush()?;
        match client.state {
            State::Member(_) if readable && client.waits.is_none() => client.wire.fill()?,
            State::Silent(_) if readable => client.wire.fill_greeting(GREETING)?,
            State::Challenged(..) if readable => client.wire.fill_greeting(BYTES)?,
            _ => 0,
        };
        if !matches!(client.state, State::Member(_)) && !self.greet(client)? {
            return Ok(());
        }
        let State::Member(from) = client.state else { return Ok(()) };
        // What is here and finds no room for its response has nothing that wakes this thread for
        // it, if the connection then takes all that was unsent.
        loop {
            self.execute_all(client, from)?;
            client.wire.flush()?;
            if client.wire.unsent() >= MOST_UNSENT || client.waits.is_some() || !client.wire.has_frame() {
                return Ok(());
            }
        }
    }

    /// Executes the requests that are here, as long as there is room for responses.
    fn execute_all(&mut self, client: &mut Client, from: Gid) -> std::result::Result<(), String> {
        let registered = self.copier.as_ref().map(Copier::registered);
        // Memory stays until what is executed here has ended.
        let registered = registered.as_ref().map(|all| all.lock().unwrap_or_else(PoisonError::into_inner));
        let registered = registered.as_deref();
        while client.wire.unsent() + self.copier.as_ref().map_or(0, Copier::pending) < MOST_UNSENT {
            let Some((header, range)) = client.wire.next()? else { break };
            let (body, output) = client.wire.parts(range.clone());
            let (way, request) = Request::decode(header.kind, body)?;
            let id = header.id;
            if client.qps.len() >= MAX_QPS && !client.qps.contains_key(&id.qpn) {
                return Err(format!("requests of more than {MAX_QPS} QPs"));
            }
            let fresh = Progress { attempt: id.attempt, next: 0, stopped: false, untold: false };
            let progress = client.qps.entry(id.qpn).or_insert(fresh);
            if progress.attempt != id.attempt {
                *progress = Progress { untold: progress.untold, ..fresh };
            }
            if progress.stopped {
                continue;
            }
            if id.number != progress.next {
                return Err(format!("request {} of QP {:#x}, but {} is the next", id.number, id.qpn, progress.next));
            }
            let waited = client.waits.take();
            let initiator = Initiator { qpn: id.qpn, gid: from, psn: way.psn };
            let outcome = self.execute((&initiator, id), way, &request, registered, output);
            let outcome = match outcome {
                Err(Stop::Fetch(reason)) => {
                    let now = Instant::now();
                    let until = waited.unwrap_or(now + MAPPING);
                    if now < until {
                        client.waits = Some(until);
                        client.wire.put_back(&range);
                        break;
                    }
                    Err(Stop::Stall(reason))
                }
                outcome => outcome,
            };
            progress.next += 1;
            if outcome.is_err() {
                // Responses to what came before are first.
                finish(&mut self.copier, output)?;
            }
            match outcome {
                Ok(Outcome::Done) => {
                    if !std::mem::replace(&mut progress.untold, true) {
                        client.untold.push(id.qpn);
                    }
                }
                Ok(Outcome::Later) => {}
                Ok(Outcome::Data(data)) => Response::Data(data.bytes()).encode(output, id),
                Err(Stop::Stall(reason) | Stop::Fetch(reason)) => {
                    progress.stopped = true;
                    Response::Stalled(reason).encode(output, id);
                }
                Err(Stop::Fail(failure)) => {
                    progress.stopped = true;
                    Response::Refused(failure).encode(output, id);
                }
                Err(Stop::Lost(error)) => return Err(lost(&error)),
            }
        }
        finish(&mut self.copier, &mut client.wire.output)?;
        // What is done is told of at once for many.
        for qpn in client.untold.drain(..) {
            let Some(progress) = client.qps.get_mut(&qpn) else { continue };
            let untold = std::mem::take(&mut progress.untold);
            if untold && !progress.stopped && progress.next > 0 {
                let id = Id { qpn, attempt: progress.attempt, number: progress.next - 1 };
                Response::Done.encode(&mut client.wire.output, id);
            }
        }
        Ok(())
    }

    /// Goes on with the greeting. Returns whether the connection is a member's now.
    fn greet(&self, client: &mut Client) -> std::result::Result<bool, String> {
        if let State::Silent(until) = client.state {
            let Some(bytes) = client.wire.take::<HELLO>() else { return Ok(false) };
            let hello = Hello::decode(&bytes)?;
            if hello.to != self.gid {
                return Err(format!("it looks for HCA {}", hello.to));
            }
            let accepting = nonce().map_err(|error| error.to_string())?;
            client.wire.output.extend_from_slice(&greeting::challenge(&accepting));
            client.state = State::Challenged(until, hello, accepting);
        }
        if let State::Challenged(_, hello, accepting) = &client.state {
            if let Some(proof) = client.wire.take::<BYTES>() {
                if !hello.admits(&self.secret, accepting, &proof) {
                    return Err("it does not belong to this job".into());
                }
                client.wire.output.extend_from_slice(&hello.welcome(&self.secret, accepting));
                client.state = State::Member(hello.from);
            }
            client.wire.flush()?;
        }
        Ok(matches!(client.state, State::Member(_)))
    }

    /// Checks a request, in the order in which hardware does, and executes it. With a copier,
    /// `registered` has the memory, and `out` gets responses to earlier requests that this one has
    /// to wait for.
    fn execute(
        &mut self,
        (from, id): (&Initiator, Id),
        way: Way,
        request: &Request<'_>,
        registered: Option<&Registered>,
        out: &mut Vec<u8>,
    ) -> std::result::Result<Outcome, Stop> {
        if !self.own.is_alive() {
            return Err(Stop::Stall(self.own.gone()));
        }
        let entry = self.own.known().and_then(|control| control.qp(way.qpn)?.read());
        let facts = entry.map_or_else(QpFacts::default, |(_, facts)| facts);
        admission::check_qp(&facts, way.qpn, self.gid, from).map_err(Stop::Stall)?;
        let accepts = |right| admission::check_accepts(facts.rights, way.qpn, right);
        match request {
            Request::Probe { right } => {
                accepts(*right)?;
                Ok(Outcome::Done)
            }
            Request::Write { target, offset, order, payload } => {
                accepts(rights::REMOTE_WRITE)?;
                let to = self.find(&facts, target, rights::REMOTE_WRITE, registered)?.wrapping_add(native(*offset));
                match &mut self.copier {
                    // SAFETY: `find` checked the range, which the piece lies in.
                    Some(copier) => unsafe { copier.write(to.addr() as u64, payload, out) }?,
                    // SAFETY: as above.
                    None => unsafe { write(to, payload, *order) },
                }
                // An observer of a later store of this QP also sees this one.
                fence(Ordering::Release);
                Ok(Outcome::Done)
            }
            Request::Read { target, offset, len } => {
                accepts(rights::REMOTE_READ)?;
                let from = self.find(&facts, target, rights::REMOTE_READ, registered)?.wrapping_add(native(*offset));
                let len = native(*len).min(PIECE);
                if let Some(copier) = &mut self.copier {
                    // SAFETY: as above.
                    unsafe { copier.read(id, from.addr() as u64, len, out) }?;
                    return Ok(Outcome::Later);
                }
                let mut data = vec![0; len];
                // SAFETY: as above; `data` has as many bytes.
                unsafe { memory::copy(data.as_mut_ptr(), from, data.len()) };
                Ok(Outcome::Data(Data::Read(data)))
            }
            Request::Atomic { rkey, raddr, atomic } => {
                let width = atomic.width();
                accepts(rights::REMOTE_ATOMIC)?;
                admission::check_alignment(*raddr, width)?;
                let target = Target { rkey: *rkey, raddr: *raddr, len: width as u64 };
                let word = self.find(&facts, &target, rights::REMOTE_ATOMIC, registered)?;
                admission::check_word(*raddr, word, width)?;
                if let Some(copier) = &mut self.copier {
                    // SAFETY: range and alignment were checked.
                    unsafe { copier.atomic(id, word.addr() as u64, *atomic, out) }?;
                    return Ok(Outcome::Later);
                }
                // SAFETY: as above.
                Ok(Outcome::Data(Data::Word(unsafe { atomic.execute(word) }, width)))
            }
        }
    }

    /// Returns where memory of this HCA is, if the key admits the access: for kernels if
    /// `registered` is given, and for this thread otherwise.
    fn find(
        &mut self,
        qp: &QpFacts,
        target: &Target,
        right: u32,
        registered: Option<&Registered>,
    ) -> std::result::Result<*mut u8, Stop> {
        let (gid, rkey) = (self.gid, target.rkey);
        let entry = self.own.known().and_then(|control| control.mkey(rkey >> 8));
        let entry = entry.ok_or_else(|| admission::unknown_key(rkey, gid))?;
        let Some((_, facts)) = entry.read() else {
            return Err(Stop::Stall(format!("key {rkey:#x} at {gid} does not settle")));
        };
        admission::check_key(&facts, rkey, qp, gid)?;
        let offset = admission::check_range(facts.rights, facts.start, facts.len, target, right)?;
        let denied = |text: String| Stop::Fail(Failure::new(Syndrome::RemoteAccess, text));
        let too_large = |len: u64| denied(format!("key {rkey:#x} of {gid} is larger than its memory, {len} bytes"));
        let fits = |len: u64| facts.umem_offset.checked_add(facts.len).is_some_and(|end| end <= len);
        if let Some(registered) = registered {
            return match registered.get(&facts.umem) {
                None => Err(denied(format!("memory behind raddr.rkey {rkey:#x} of {gid} is not registered"))),
                Some((_, len)) if !fits(*len) => Err(too_large(*len)),
                Some((base, _)) => Ok((base + facts.umem_offset + offset) as *mut u8),
            };
        }
        match self.own.memory(facts.umem) {
            PeerMemory::Requested => Err(Stop::Fetch(format!("waiting for the memory behind key {rkey:#x} of {gid}"))),
            PeerMemory::Refused(reason) => {
                Err(denied(format!("memory behind raddr.rkey {rkey:#x} of {gid}: {reason}")))
            }
            PeerMemory::Mapped { len, .. } if !fits(*len) => Err(too_large(*len)),
            PeerMemory::Mapped { mapping, .. } => Ok(mapping.ptr().wrapping_add(native(facts.umem_offset + offset))),
        }
    }
}

/// Ends what a copier has begun.
fn finish(copier: &mut Option<Copier>, out: &mut Vec<u8>) -> std::result::Result<(), String> {
    copier.as_mut().map_or(Ok(()), |copier| copier.finish(out)).map_err(|error| lost(&error))
}

fn lost(error: &AcceleratorError) -> String {
    format!("this HCA's memory cannot be reached: {error}")
}

/// What can be done.
struct Ready {
    listener: bool,
    /// Says of each client whether it can be read from, and written to.
    clients: Vec<(bool, bool)>,
}

/// How a request went that was executed.
enum Outcome {
    Done,
    Data(Data),
    /// The copier has its response, and sends it when the data is here.
    Later,
}

/// What was read.
enum Data {
    Read(Vec<u8>),
    Word([u8; 8], usize),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Word(bytes, width) => &bytes[..*width],
        }
    }
}

/// Writes a payload; byte by byte in an order that `order` determines, unless it is 0 or the
/// payload is one store.
///
/// # Safety
/// `to` is writable for as many bytes.
unsafe fn write(to: *mut u8, payload: &[u8], order: u64) {
    let len = payload.len();
    let whole = matches!(len, 1 | 2 | 4 | 8) && to.addr().is_multiple_of(len);
    if order == 0 || whole {
        // SAFETY: the caller's promise.
        return unsafe { memory::copy(to, payload.as_ptr(), len) };
    }
    let mut places: Vec<usize> = (0..len).collect();
    shuffle(&mut places, order);
    for at in places {
        // SAFETY: the caller's promise; `at` is below the payload's length.
        unsafe { memory::copy_byte(to.add(at), payload.as_ptr().add(at)) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn many_hcas_may_connect_at_the_same_time() {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        if most.trim().parse::<usize>().unwrap() < 300 {
            return println!("skipped: net.core.somaxconn is {}, 300 are needed", most.trim());
        }
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        // None is accepted meanwhile.
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
        let connected: Vec<_> = (0..300).map(connect).collect();
        assert_eq!(connected.len(), 300);
    }
}
