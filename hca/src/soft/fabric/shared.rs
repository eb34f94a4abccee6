//! The fabric within a node: how an HCA finds a peer by its GID, and gets at the peer's control
//! segment and memory.
//!
//! Each HCA listens at an abstract unix socket named after its GID. A peer connects, says HELLO,
//! and gets the file of the control segment; later it asks for the file of each umem that a remote
//! key leads it to, and maps it. Payload never travels through a socket. When a process dies its
//! sockets close, which is how the others learn of it.
//!
//! | message | `a`, `b`, `c` | file |
//! |---|---|---|
//! | HELLO | GID of the sender | |
//! | HELLO_OK | GID of the HCA, size of the control segment and 2^32 times the number of UMEM_OK that follow | control segment |
//! | UMEM | id | |
//! | UMEM_OK | id, offset, length; also unrequested | memory |
//! | UMEM_NONE | id | |
//! | FORGET | id; the owner has deregistered it | |
//! | HELD | id; an HCA with an accelerator has mapped it, or knows that it cannot | |

use crate::error::{Error, Result};
use crate::port::Gid;
use crate::soft::accelerator::{Accelerator, AcceleratorMemory};
use crate::soft::control::{self, Segment};
use crate::soft::memory::Mapping;
use oxshmem_system::fdpass::{Connection, Listener};
use oxshmem_system::words::{low16, low32};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const MAGIC: u32 = u32::from_le_bytes(*b"OXHF");
const VERSION: u16 = 2;
const MESSAGE_BYTES: usize = 32;

/// How long an exchange of two small messages on one machine may take before the peer counts as
/// gone.
pub(in crate::soft) const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);

/// The most peers that may be connected to one HCA.
const MAX_CLIENTS: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum Kind {
    Hello = 1,
    HelloOk = 2,
    Umem = 3,
    UmemOk = 4,
    UmemNone = 5,
    Forget = 6,
    Held = 7,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    kind: Kind,
    a: u64,
    b: u64,
    c: u64,
}

impl Message {
    fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        for (at, value) in [(8, self.a), (16, self.b), (24, self.c)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, String> {
        let bytes: &[u8; MESSAGE_BYTES] =
            bytes.try_into().map_err(|_| format!("{} bytes, a message has {MESSAGE_BYTES}", bytes.len()))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (magic, version, kind) = (low32(word(0)), low16(word(0) >> 32), low16(word(0) >> 48));
        if magic != MAGIC || version != VERSION {
            return Err(format!("magic {magic:#x} version {version}, expected {MAGIC:#x} version {VERSION}"));
        }
        let kind = [Kind::Hello, Kind::HelloOk, Kind::Umem, Kind::UmemOk, Kind::UmemNone, Kind::Forget, Kind::Held]
            .into_iter()
            .find(|known| *known as u16 == kind)
            .ok_or_else(|| format!("unknown kind {kind}"))?;
        Ok(Self { kind, a: word(8), b: word(16), c: word(24) })
    }
}

/// The abstract socket name of the HCA with this GID.
pub(in crate::soft) fn socket_name(gid: Gid) -> String {
    let (hi, lo) = gid.halves();
    format!("oxshmem-hca-{hi:016x}{lo:016x}")
}

/// Memory that peers may map.
#[derive(Debug)]
pub(in crate::soft) struct Export {
    pub(in crate::soft) fd: OwnedFd,
    pub(in crate::soft) offset: u64,
    pub(in crate::soft) len: u64,
    /// Whether peers get it before they ask.
    pub(in crate::soft) announced: bool,
}

impl Export {
    fn message(&self, id: u32) -> Message {
        Message { kind: Kind::UmemOk, a: id.into(), b: self.offset, c: self.len }
    }
}

#[derive(Debug, Default)]
struct Served {
    exports: HashMap<u32, Export>,
    clients: Vec<Arc<Client>>,
    control: Option<OwnedFd>,
}

#[derive(Debug)]
struct Client {
    connection: Connection,
    greeted: std::sync::atomic::AtomicBool,
    /// Memory that was announced to it, and that it does not hold yet.
    awaited: Mutex<HashSet<u32>>,
}

impl Client {
    fn awaited(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends memory that it has not requested.
    fn announce(&self, id: u32, export: &Export) -> std::result::Result<(), String> {
        self.awaited().insert(id);
        match self.connection.try_send(&export.message(id).encode(), &[export.fd.as_fd()]) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the peer does not read its messages".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Memory that peers are getting.
#[derive(Debug)]
pub(in crate::soft) struct Sharing {
    served: Arc<Mutex<Served>>,
    news: Arc<Condvar>,
}

impl Sharing {
    /// Waits until all peers that are connected hold umem `id`, if it was announced.
    pub(in crate::soft) fn wait(&self, id: u32, limit: Duration) -> Result<()> {
        let served = lock(&self.served);
        let awaited = |served: &mut Served| served.clients.iter().any(|client| client.awaited().contains(&id));
        let (_served, waited) =
            self.news.wait_timeout_while(served, limit, awaited).unwrap_or_else(PoisonError::into_inner);
        match waited.timed_out() {
            true => Err(Error::timeout(format!("peers that map umem {id}"), limit)),
            false => Ok(()),
        }
    }
}

/// The serving side: a thread that answers peers.
#[derive(Debug)]
pub(in crate::soft) struct Server {
    served: Arc<Mutex<Served>>,
    /// A peer holds something, or is gone.
    news: Arc<Condvar>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

fn lock(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Listen at the socket of `gid` and serve the control segment in `control`.
    pub(in crate::soft) fn start(gid: Gid, control: OwnedFd) -> Result<Self> {
        let listener = Listener::bind(&socket_name(gid))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("create an eventfd for the fabric thread", errno))?;
        let wake = Arc::new(wake);
        let served = Arc::new(Mutex::new(Served { control: Some(control), ..Served::default() }));
        let news = Arc::new(Condvar::new());
        let thread = std::thread::Builder::new()
            .name("oxshmem-fabric".into())
            .spawn({
                let (served, news, wake) = (Arc::clone(&served), Arc::clone(&news), Arc::clone(&wake));
                move || serve(gid, &listener, &served, &news, &wake)
            })
            .map_err(|error| Error::os("start the fabric thread", error))?;
        Ok(Self { served, news, wake, thread: Some(thread) })
    }

    /// Let peers map umem `id`.
    pub(in crate::soft) fn export(&self, id: u32, export: Export) {
        let mut served = lock(&self.served);
        if export.announced {
            served.clients.retain(|client| {
                let told = !client.greeted.load(Relaxed) || client.announce(id, &export).is_ok();
                if !told {
                    tracing::warn!(umem = id, "dropped a peer that could not be told of memory");
                }
                told
            });
        }
        served.exports.insert(id, export);
    }

    /// What waits for peers that are getting memory.
    pub(in crate::soft) fn sharing(&self) -> Sharing {
        Sharing { served: Arc::clone(&self.served), news: Arc::clone(&self.news) }
    }

    /// Stop serving umem `id` and tell peers to unmap it.
    pub(in crate::soft) fn forget(&self, id: u32) {
        let mut served = lock(&self.served);
        if served.exports.remove(&id).is_none() {
            return;
        }
        let message = Message { kind: Kind::Forget, a: id.into(), b: 0, c: 0 }.encode();
        for client in &served.clients {
            // A peer that does not read its messages keeps the mapping until it closes. That costs
            // memory, nothing else.
            if !matches!(client.connection.try_send(&message, &[]), Ok(true)) {
                tracing::debug!(umem = id, "a peer was not told that a umem is gone");
            }
        }
    }

    /// Close every connection and stop listening. Idempotent.
    pub(in crate::soft) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        lock(&self.served).control = None;
        if let Err(errno) = rustix::io::write(&*self.wake, &1u64.to_ne_bytes()) {
            tracing::warn!(%errno, "the fabric thread could not be woken");
        }
        if thread.join().is_err() {
            tracing::warn!("the fabric thread panicked");
        }
        let mut served = lock(&self.served);
        served.clients.clear();
        served.exports.clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread: wait for connections and requests until woken.
fn serve(gid: Gid, listener: &Listener, served: &Mutex<Served>, news: &Condvar, wake: &OwnedFd) {
    // Given up for a moment to refuse a peer where no descriptor is free: without one its
    // connection would wait unanswered.
    let mut spare = wake.try_clone().ok();
    loop {
        let clients = lock(served).clients.clone();
        let mut fds = vec![PollFd::new(wake, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        fds.extend(clients.iter().map(|client| PollFd::new(&client.connection, PollFlags::IN)));
        // Without a deadline: this thread has nothing else to do, and `stop` wakes it.
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => {
                tracing::error!(%errno, "the fabric thread cannot wait any more and ends; peers will see this HCA as dead");
                return;
            }
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        for (client, _) in clients.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            if let Err(reason) = answer(gid, client, served) {
                if !reason.is_empty() {
                    tracing::warn!(%gid, %reason, "dropped a connection to the software HCA");
                }
                lock(served).clients.retain(|other| !Arc::ptr_eq(other, client));
            }
            news.notify_all();
        }
        if ready[1] {
            match listener.accept(Duration::ZERO) {
                Ok(connection) => {
                    let mut served = lock(served);
                    if served.clients.len() < MAX_CLIENTS {
                        let (greeted, awaited) = (false.into(), Mutex::default());
                        served.clients.push(Arc::new(Client { connection, greeted, awaited }));
                    } else {
                        tracing::warn!(%gid, limit = MAX_CLIENTS, "too many peers, refused one");
                    }
                }
                Err(oxshmem_system::Error::Timeout { .. }) => {}
                Err(error @ oxshmem_system::Error::FileLimit { .. }) => {
                    tracing::error!(%gid, %error, "refused a connection to the software HCA");
                    drop(spare.take());
                    drop(listener.accept(Duration::ZERO));
                    spare = wake.try_clone().ok();
                }
                Err(error) => tracing::warn!(%gid, %error, "refused a connection to the software HCA"),
            }
        }
    }
}

/// Answer one request. `Err` closes the connection; with an empty reason if the peer closed it.
fn answer(gid: Gid, client: &Client, served: &Mutex<Served>) -> std::result::Result<(), String> {
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let received = match client.connection.try_recv(&mut bytes).map_err(|error| error.to_string())? {
        None => return Ok(()),
        Some(received) if received.len == 0 => return Err(String::new()),
        Some(received) => received,
    };
    let request = Message::decode(&bytes[..received.len])?;
    let served = lock(served);
    let announced: Vec<_> = match request.kind {
        Kind::Hello => served.exports.iter().filter(|(_, export)| export.announced).collect(),
        _ => Vec::new(),
    };
    let (reply, fd) = match request.kind {
        Kind::Hello => {
            client.greeted.store(true, Relaxed);
            let (a, b) = gid.halves();
            let control = served.control.as_ref().ok_or("the HCA is closing")?;
            (
                Message { kind: Kind::HelloOk, a, b, c: control::BYTES as u64 | (announced.len() as u64) << 32 },
                Some(control),
            )
        }
        Kind::Held if client.greeted.load(Relaxed) => {
            client.awaited().retain(|id| u64::from(*id) != request.a);
            return Ok(());
        }
        Kind::Umem if client.greeted.load(Relaxed) => {
            match u32::try_from(request.a).ok().and_then(|id| Some((id, served.exports.get(&id)?))) {
                Some((id, export)) => (export.message(id), Some(&export.fd)),
                None => (Message { kind: Kind::UmemNone, a: request.a, b: 0, c: 0 }, None),
            }
        }
        kind => return Err(format!("unexpected message {kind:?}")),
    };
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    match client.connection.try_send(&reply.encode(), &fds) {
        Ok(true) => announced.into_iter().try_for_each(|(id, export)| client.announce(*id, export)),
        Ok(false) => Err("the peer does not read its messages".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Where memory of a peer is mapped: for this process's CPU, or for kernels alone.
#[derive(Debug)]
pub(in crate::soft) enum Mapped {
    Host(Mapping),
    Accelerator(Box<dyn AcceleratorMemory>),
}

impl Mapped {
    /// Its address; only the process that it was mapped for dereferences it.
    pub(in crate::soft) fn ptr(&self) -> *mut u8 {
        match self {
            Self::Host(mapping) => mapping.ptr(),
            Self::Accelerator(memory) => memory.address() as *mut u8,
        }
    }
}

/// Memory of a peer.
#[derive(Debug)]
pub(in crate::soft) enum PeerMemory {
    /// Asked for, not answered yet.
    Requested,
    /// Mapped.
    Mapped {
        /// The mapping of the whole umem.
        mapping: Mapped,
        /// Its length in bytes.
        len: u64,
    },
    /// The peer has no such umem, or it cannot be mapped.
    Refused(String),
}

/// The asking side: a connection to one peer.
#[derive(Debug)]
pub(in crate::soft) struct Peer {
    pub(in crate::soft) gid: Gid,
    pub(in crate::soft) control: Segment,
    connection: Connection,
    /// Maps the peer's memory for kernels, if there is one.
    accelerator: Option<Arc<dyn Accelerator>>,
    memory: HashMap<u32, PeerMemory>,
    /// Memory that the peer has withdrawn; still mapped, because a payload that is held back may be
    /// meant for it.
    withdrawn: Vec<PeerMemory>,
    closed: bool,
}

impl Peer {
    /// Find the HCA with `gid` and introduce the one with `own` to it.
    pub(in crate::soft) fn connect(own: Gid, gid: Gid, accelerator: Option<Arc<dyn Accelerator>>) -> Result<Self> {
        let unknown = |error: oxshmem_system::Error| Error::UnknownGid { gid, detail: error.to_string() };
        let connection = Connection::connect(&socket_name(gid), EXCHANGE_LIMIT).map_err(unknown)?;
        let (a, b) = own.halves();
        connection.send(&Message { kind: Kind::Hello, a, b, c: 0 }.encode(), &[], EXCHANGE_LIMIT).map_err(unknown)?;
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let received = connection.recv(&mut bytes, EXCHANGE_LIMIT).map_err(unknown)?;
        let protocol = |detail: String| Error::protocol(format!("greeting of HCA {gid}"), detail);
        if received.len == 0 {
            return Err(Error::UnknownGid { gid, detail: "it closed the connection".into() });
        }
        let reply = Message::decode(&bytes[..received.len]).map_err(protocol)?;
        let (hi, lo) = gid.halves();
        let (size, announced) = (reply.c & u64::from(u32::MAX), reply.c >> 32);
        let expected = Message { kind: Kind::HelloOk, a: hi, b: lo, c: control::BYTES as u64 };
        if (Message { c: size, ..reply }) != expected || received.fds.len() != 1 {
            return Err(protocol(format!("{reply:?} with {} files", received.fds.len())));
        }
        let control = Segment::of_peer(received.fds[0].as_fd(), gid)?;
        let (memory, withdrawn) = (HashMap::new(), Vec::new());
        let mut peer = Self { gid, control, connection, accelerator, memory, withdrawn, closed: false };
        for _ in 0..announced {
            let received = peer.connection.recv(&mut bytes, EXCHANGE_LIMIT).map_err(unknown)?;
            let message = Message::decode(&bytes[..received.len]).map_err(protocol)?;
            peer.take(message, received.fds);
        }
        Ok(peer)
    }

    /// What says when there is something to [`poll`](Self::poll).
    pub(in crate::soft) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether the peer still lives, as far as is known without a system call.
    #[inline]
    pub(in crate::soft) fn is_alive(&self) -> bool {
        !self.closed && !self.control.is_dead()
    }

    /// The umem `id`, requested on first use.
    pub(in crate::soft) fn memory(&mut self, id: u32) -> &PeerMemory {
        let connection = &self.connection;
        self.memory.entry(id).or_insert_with(|| {
            match connection.try_send(&Message { kind: Kind::Umem, a: id.into(), b: 0, c: 0 }.encode(), &[]) {
                Ok(true) => PeerMemory::Requested,
                Ok(false) => PeerMemory::Refused("the peer does not read its messages".into()),
                Err(error) => PeerMemory::Refused(error.to_string()),
            }
        })
    }

    /// Whether umem `id` is not mapped, or not any more.
    pub(in crate::soft) fn has_lost(&self, id: u32) -> bool {
        !matches!(self.memory.get(&id), Some(PeerMemory::Mapped { .. }))
    }

    /// Whether there is withdrawn memory to unmap.
    pub(in crate::soft) fn has_withdrawn(&self) -> bool {
        !self.withdrawn.is_empty()
    }

    /// Unmap what the peer has withdrawn. The caller makes sure that nothing will touch it any
    /// more.
    pub(in crate::soft) fn unmap_withdrawn(&mut self) {
        self.withdrawn.clear();
    }

    /// Take in what the peer sent, and notice if it is gone. Returns true if there was anything.
    pub(in crate::soft) fn poll(&mut self) -> bool {
        if self.closed {
            return false;
        }
        let mut any = false;
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            let received = match self.connection.try_recv(&mut bytes) {
                Ok(None) => return any,
                Ok(Some(received)) => received,
                // The message is here, without the descriptor of the memory that it tells of.
                Err(error @ oxshmem_system::Error::FileLimit { .. }) => {
                    any = true;
                    if let Ok(message) = Message::decode(&bytes[..MESSAGE_BYTES])
                        && let Ok(id) = u32::try_from(message.a)
                    {
                        tracing::error!(gid = %self.gid, umem = id, %error, "memory of a peer's HCA cannot be reached");
                        self.memory.insert(id, PeerMemory::Refused(error.to_string()));
                        self.hold(id);
                        continue;
                    }
                    self.closed = true;
                    return true;
                }
                Err(error) => {
                    tracing::warn!(gid = %self.gid, %error, "lost the connection to a peer's HCA");
                    self.closed = true;
                    return true;
                }
            };
            any = true;
            if received.len == 0 {
                tracing::debug!(gid = %self.gid, "a peer's HCA closed");
                self.closed = true;
                return true;
            }
            match Message::decode(&bytes[..received.len]) {
                Ok(message) => self.take(message, received.fds),
                Err(detail) => {
                    tracing::warn!(gid = %self.gid, detail, "a peer's HCA sent garbage");
                    self.closed = true;
                    return true;
                }
            }
        }
    }

    /// Tells the peer that umem `id` need not be waited for.
    fn hold(&self, id: u32) {
        let message = Message { kind: Kind::Held, a: id.into(), b: 0, c: 0 };
        if self.accelerator.is_some() && !matches!(self.connection.try_send(&message.encode(), &[]), Ok(true)) {
            tracing::warn!(gid = %self.gid, umem = id, "a peer's HCA was not told that its memory is mapped");
        }
    }

    fn take(&mut self, message: Message, fds: Vec<OwnedFd>) {
        let Ok(id) = u32::try_from(message.a) else { return };
        match (message.kind, fds.first()) {
            // Announced, and requested before that was noticed.
            (Kind::UmemOk, Some(_)) if matches!(self.memory.get(&id), Some(PeerMemory::Mapped { .. })) => self.hold(id),
            (Kind::UmemOk, Some(fd)) => {
                let mapped = match &self.accelerator {
                    Some(accelerator) => accelerator
                        .map(fd.as_fd(), message.b, message.c)
                        .map(Mapped::Accelerator)
                        .map_err(|error| error.to_string()),
                    None => usize::try_from(message.c)
                        .map_err(|_| Error::argument("len", message.c, "larger than this process's address space"))
                        .and_then(|len| Mapping::of_fd(fd.as_fd(), message.b, len, true))
                        .map(Mapped::Host)
                        .map_err(|error| error.to_string()),
                };
                let memory = match mapped {
                    Ok(mapping) => PeerMemory::Mapped { mapping, len: message.c },
                    Err(reason) => PeerMemory::Refused(reason),
                };
                self.memory.insert(id, memory);
                self.hold(id);
            }
            (Kind::UmemNone, _) => {
                self.memory.insert(id, PeerMemory::Refused("the peer has no such memory, or does not share it".into()));
            }
            (Kind::Forget, _) => self.withdrawn.extend(self.memory.remove(&id)),
            (kind, _) => tracing::warn!(gid = %self.gid, ?kind, "a peer's HCA sent an unexpected message"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::soft::control::OwnSegment;
    use proptest::prelude::*;

    fn server(gid: Gid) -> (OwnSegment, Server) {
        let own = OwnSegment::create(gid).unwrap();
        let server = Server::start(gid, own.fd().try_clone_to_owned().unwrap()).unwrap();
        (own, server)
    }

    fn gid(n: u64) -> Gid {
        Gid::from_halves(0xfe80 << 48, u64::from(std::process::id()) << 32 | n)
    }

    fn settle(peer: &mut Peer, id: u32) {
        while matches!(peer.memory(id), PeerMemory::Requested) {
            peer.poll();
            std::thread::yield_now();
        }
    }

    #[test]
    fn memory_is_fetched_once_and_forgotten() {
        let (_own, mut server) = server(gid(1));
        let fd = rustix::fs::memfd_create("export", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        server.export(5, Export { fd, offset: 4096, len: 4096, announced: false });
        let mut peer = Peer::connect(gid(2), gid(1), None).unwrap();
        settle(&mut peer, 5);
        assert!(matches!(peer.memory(5), PeerMemory::Mapped { len: 4096, .. }));
        settle(&mut peer, 6);
        assert!(matches!(peer.memory(6), PeerMemory::Refused(_)));
        server.forget(5);
        while peer.memory.contains_key(&5) {
            peer.poll();
        }
        settle(&mut peer, 5);
        assert!(matches!(peer.memory(5), PeerMemory::Refused(_)));
        assert!(peer.is_alive());
        server.stop();
        server.stop();
        while peer.is_alive() {
            peer.poll();
        }
        assert!(matches!(Peer::connect(gid(2), gid(1), None), Err(Error::UnknownGid { .. })));
    }

    #[test]
    fn announced_memory_is_waited_for_until_every_peer_holds_it() {
        let (_own, server) = server(gid(5));
        let export = |announced| {
            let fd = rustix::fs::memfd_create("export", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, 8192).unwrap();
            Export { fd, offset: 0, len: 8192, announced }
        };
        let long = Duration::from_secs(100);
        server.export(1, export(true));
        server.sharing().wait(1, long).unwrap();
        // What was announced before comes with the greeting, unrequested.
        let mut peer = Peer::connect(gid(6), gid(5), None).unwrap();
        assert!(matches!(peer.memory.get(&1), Some(PeerMemory::Mapped { .. })));
        server.export(2, export(true));
        server.export(3, export(false));
        server.sharing().wait(3, long).unwrap();
        assert!(matches!(
            server.sharing().wait(2, Duration::ZERO),
            Err(Error::System(oxshmem_system::Error::Timeout { .. }))
        ));
        while !matches!(peer.memory.get(&2), Some(PeerMemory::Mapped { .. })) {
            peer.poll();
        }
        assert!(!peer.memory.contains_key(&3));
        // This peer says so by hand, as it has no accelerator.
        peer.connection.send(&Message { kind: Kind::Held, a: 2, b: 0, c: 0 }.encode(), &[], long).unwrap();
        server.sharing().wait(2, long).unwrap();
        // No thread waits for one that is gone.
        server.export(4, export(true));
        drop(peer);
        server.sharing().wait(4, long).unwrap();
    }

    #[test]
    fn garbage_closes_only_its_own_connection() {
        let (_own, _server) = server(gid(3));
        let mut good = Peer::connect(gid(4), gid(3), None).unwrap();
        let limit = Duration::from_secs(10);
        let hello = Message { kind: Kind::Hello, a: 0, b: 0, c: 0 }.encode();
        let mut wrong_version = hello;
        wrong_version[4] ^= 1;
        let umem_first = Message { kind: Kind::Umem, a: 1, b: 0, c: 0 }.encode();
        let forget = Message { kind: Kind::Forget, a: 1, b: 0, c: 0 }.encode();
        let long = [0x55u8; 4096];
        for garbage in [&b"GET / HTTP/1.1\r\n"[..], &wrong_version, &umem_first, &forget, &long] {
            let connection = Connection::connect(&socket_name(gid(3)), limit).unwrap();
            connection.send(garbage, &[], limit).unwrap();
            let received = connection.recv(&mut [0; 64], limit).unwrap();
            assert_eq!(received.len, 0, "the HCA answered garbage");
        }
        settle(&mut good, 9);
        assert!(good.is_alive());
    }

    proptest! {
        #[test]
        fn messages_survive(kind in 1u16..=7, a in any::<u64>(), b in any::<u64>(), c in any::<u64>()) {
            use Kind::{Forget, Hello, HelloOk, Held, Umem, UmemNone, UmemOk};
            let kinds = [Hello, HelloOk, Umem, UmemOk, UmemNone, Forget, Held];
            let kind = kinds[usize::from(kind) - 1];
            let message = Message { kind, a, b, c };
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn any_bytes_decode_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Message::decode(&bytes);
        }
    }
}
