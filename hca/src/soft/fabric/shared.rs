//! The fabric within a node: how an HCA finds a peer by its GID, and gets at the peer's control
//! segment and memory.
//!
//! Each HCA listens at an abstract unix socket named after its GID. When a queue pair first has
//! work for a peer, the HCA connects, says HELLO, and gets the file of the control segment; later
//! it asks for the file of each umem that a remote key leads it to, and maps it. So a job has as
//! many connections as pairs of HCAs that talk to each other, and setting up queue pairs takes
//! none. An HCA with an accelerator connects when a queue pair is, because kernels wait for
//! nothing. Payload never travels through a socket. When a process dies its sockets close, which is
//! how the others learn of it. This is the side that serves peers; [`peer`](super::peer) is the one
//! that asks, and [`message`](super::message) what they say.

use super::message::{Kind, MESSAGE_BYTES, Message, socket_name};
use crate::error::{Error, Result};
use crate::port::Gid;
use crate::soft::control;
use oxshmem_system::fdpass::{Connection, Listener};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most peers that may be connected to one HCA.
const MAX_CLIENTS: usize = 4096;

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
    /// By a number that the thread knows each of them by.
    clients: HashMap<u64, Arc<Client>>,
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
        let awaited = |served: &mut Served| served.clients.values().any(|client| client.awaited().contains(&id));
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
    /// Returns how many peers are connected.
    #[cfg(test)]
    pub(in crate::soft) fn clients(&self) -> usize {
        lock(&self.served).clients.len()
    }

    /// Listens at the socket of `gid` and serves the control segment in `control`.
    pub(in crate::soft) fn start(gid: Gid, control: OwnedFd) -> Result<Self> {
        let listener = Listener::bind(&socket_name(gid))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("create an eventfd for the fabric thread", errno))?;
        let wake = Arc::new(wake);
        let watch = watch(&listener, &wake)?;
        let served = Arc::new(Mutex::new(Served { control: Some(control), ..Served::default() }));
        let news = Arc::new(Condvar::new());
        let thread = std::thread::Builder::new()
            .name("oxshmem-fabric".into())
            .spawn({
                let (served, news, wake) = (Arc::clone(&served), Arc::clone(&news), Arc::clone(&wake));
                move || serve(gid, &watch, &listener, &served, &news, &wake)
            })
            .map_err(|error| Error::thread("the fabric thread", error))?;
        Ok(Self { served, news, wake, thread: Some(thread) })
    }

    /// Lets peers map umem `id`.
    pub(in crate::soft) fn export(&self, id: u32, export: Export) {
        let mut served = lock(&self.served);
        if export.announced {
            served.clients.retain(|_, client| {
                let told = !client.greeted.load(Relaxed) || client.announce(id, &export).is_ok();
                if !told {
                    tracing::warn!(umem = id, "disconnected a peer: announcing memory failed");
                }
                told
            });
        }
        served.exports.insert(id, export);
    }

    /// Returns what waits for peers that are getting memory.
    pub(in crate::soft) fn sharing(&self) -> Sharing {
        Sharing { served: Arc::clone(&self.served), news: Arc::clone(&self.news) }
    }

    /// Stops serving umem `id` and tells peers to unmap it.
    pub(in crate::soft) fn forget(&self, id: u32) {
        let mut served = lock(&self.served);
        if served.exports.remove(&id).is_none() {
            return;
        }
        let message = Message { kind: Kind::Forget, a: id.into(), b: 0, c: 0 }.encode();
        for client in served.clients.values() {
            // A peer that does not read its messages keeps the mapping until it closes. That costs
            // memory, nothing else.
            if !matches!(client.connection.try_send(&message, &[]), Ok(true)) {
                tracing::debug!(umem = id, "a peer was not told that a umem is gone");
            }
        }
    }

    /// Closes every connection and stops listening. Idempotent.
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

/// What the thread knows its wake-up and its listener by; clients have the numbers from 2 on.
const WAKE: u64 = 0;
const LISTENER: u64 = 1;
/// Events that the thread takes at a time.
const EVENTS: usize = 64;

/// Creates what the thread waits with. It takes as long for many clients as for few.
fn watch(listener: &Listener, wake: &OwnedFd) -> Result<OwnedFd> {
    let os = |errno| Error::os("have the fabric thread watch its sockets", errno);
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
    epoll::add(&watch, wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN).map_err(os)?;
    epoll::add(&watch, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).map_err(os)?;
    Ok(watch)
}

/// Runs the thread: waits for connections and requests until woken.
fn serve(gid: Gid, watch: &OwnedFd, listener: &Listener, served: &Mutex<Served>, news: &Condvar, wake: &OwnedFd) {
    // Given up for a moment to refuse a peer where no descriptor is free: without one its
    // connection would wait unanswered.
    let mut spare = wake.try_clone().ok();
    let mut next = LISTENER + 1;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        // Without a deadline: this thread has nothing else to do, and `stop` wakes it.
        match epoll::wait(watch, spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => {
                tracing::error!(%errno, "the fabric thread cannot wait any more and ends; peers will see this HCA as dead");
                return;
            }
        }
        for event in &events {
            match event.data.u64() {
                WAKE => return,
                LISTENER => {
                    if let Some(connection) = accept(gid, listener, wake, &mut spare) {
                        admit(gid, watch, next, connection, served);
                        next += 1;
                    }
                }
                number => {
                    let Some(client) = lock(served).clients.get(&number).cloned() else { continue };
                    if let Err(reason) = answer(gid, &client, served) {
                        if !reason.is_empty() {
                            tracing::warn!(%gid, %reason, "dropped a connection to the software HCA");
                        }
                        // Closing the socket ends its being watched.
                        lock(served).clients.remove(&number);
                    }
                    news.notify_all();
                }
            }
        }
    }
}

/// Takes a connection, if there is one that can be.
fn accept(gid: Gid, listener: &Listener, wake: &OwnedFd, spare: &mut Option<OwnedFd>) -> Option<Connection> {
    match listener.accept(Duration::ZERO) {
        Ok(connection) => return Some(connection),
        Err(oxshmem_system::Error::Timeout { .. }) => {}
        Err(error @ oxshmem_system::Error::FileLimit { .. }) => {
            tracing::error!(%gid, %error, "refused a connection to the software HCA");
            drop(spare.take());
            drop(listener.accept(Duration::ZERO));
            *spare = wake.try_clone().ok();
        }
        Err(error) => tracing::warn!(%gid, %error, "refused a connection to the software HCA"),
    }
    None
}

/// Serves a connection from now on.
fn admit(gid: Gid, watch: &OwnedFd, number: u64, connection: Connection, served: &Mutex<Served>) {
    let mut served = lock(served);
    if served.clients.len() >= MAX_CLIENTS {
        return tracing::warn!(%gid, limit = MAX_CLIENTS, "too many peers, refused one");
    }
    if let Err(errno) = epoll::add(watch, &connection, epoll::EventData::new_u64(number), epoll::EventFlags::IN) {
        return tracing::warn!(%gid, %errno, "refused a connection to the software HCA that cannot be watched");
    }
    let (greeted, awaited) = (false.into(), Mutex::default());
    served.clients.insert(number, Arc::new(Client { connection, greeted, awaited }));
}

/// Replies to one request. `Err` closes the connection; with an empty reason if the peer closed it.
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
