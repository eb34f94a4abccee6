//! The fabric within a node, as the side that asks sees it: a peer, its control segment, and what
//! of its memory is mapped.

use super::message::{EXCHANGE_LIMIT, Kind, MESSAGE_BYTES, Message, socket_name};
use crate::error::{Error, Result};
use crate::port::Gid;
use crate::soft::accelerator::{Accelerator, AcceleratorMemory};
use crate::soft::control::{self, Segment};
use crate::soft::memory::Mapping;
use oxshmem_system::fdpass::{Connection, Received};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Where memory of a peer is mapped: for this process's CPU, or for kernels alone.
#[derive(Debug)]
pub(in crate::soft) enum Mapped {
    Host(Mapping),
    Accelerator(Box<dyn AcceleratorMemory>),
}

impl Mapped {
    /// Returns its address; only the process that it was mapped for dereferences it.
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

/// The asking side: a peer, and the connection to it once there is one.
#[derive(Debug)]
pub(in crate::soft) struct Peer {
    pub(in crate::soft) gid: Gid,
    own: Gid,
    /// There from the first [`control`](Self::control) on.
    connection: Option<Connection>,
    /// There when the peer has responded to the greeting.
    control: Option<Segment>,
    /// Maps the peer's memory for kernels, if there is one.
    accelerator: Option<Arc<dyn Accelerator>>,
    memory: HashMap<u32, PeerMemory>,
    /// Memory that the peer has withdrawn; still mapped, because a payload that is held back may be
    /// meant for it.
    withdrawn: Vec<PeerMemory>,
    /// Why it cannot be reached any more.
    closed: Option<String>,
}

impl Peer {
    /// Creates the peer of HCA `gid`, which nothing is sent to yet, as the HCA `own` sees it.
    pub(in crate::soft) fn new(own: Gid, gid: Gid, accelerator: Option<Arc<dyn Accelerator>>) -> Self {
        let (memory, withdrawn) = (HashMap::new(), Vec::new());
        Self { gid, own, connection: None, control: None, accelerator, memory, withdrawn, closed: None }
    }

    /// Finds the HCA with `gid` and introduces the one with `own` to it.
    pub(in crate::soft) fn connect(own: Gid, gid: Gid, accelerator: Option<Arc<dyn Accelerator>>) -> Result<Self> {
        let mut peer = Self::new(own, gid, accelerator);
        let announced = peer.greet(EXCHANGE_LIMIT)?;
        let mut bytes = [0; MESSAGE_BYTES + 1];
        for _ in 0..announced.unwrap_or(0) {
            let received = peer.receive(&mut bytes, EXCHANGE_LIMIT)?;
            let message = Message::decode(&bytes[..received.len]).map_err(|detail| peer.protocol(detail))?;
            peer.take(message, received.fds);
        }
        Ok(peer)
    }

    /// Greets the peer, or goes on with that, for at most `limit`. Returns how many pieces of
    /// memory it announces; nothing if `limit` is 0 and the peer has not responded yet.
    fn greet(&mut self, limit: Duration) -> Result<Option<u64>> {
        let unknown = |gid| move |error: oxshmem_system::Error| Error::UnknownGid { gid, detail: error.to_string() };
        let waits =
            |error: &oxshmem_system::Error| limit.is_zero() && matches!(error, oxshmem_system::Error::Timeout { .. });
        if self.connection.is_none() {
            let connection = match Connection::connect(&socket_name(self.gid), limit) {
                Err(error) if waits(&error) => return Ok(None),
                connected => connected.map_err(unknown(self.gid))?,
            };
            let (a, b) = self.own.halves();
            // An empty socket takes a message at once.
            let hello = Message { kind: Kind::Hello, a, b, c: 0 }.encode();
            connection.send(&hello, &[], EXCHANGE_LIMIT).map_err(unknown(self.gid))?;
            self.connection = Some(connection);
        }
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let received = match self.receive(&mut bytes, limit) {
            Err(Error::System(error)) if waits(&error) => return Ok(None),
            received => received?,
        };
        let reply = Message::decode(&bytes[..received.len]).map_err(|detail| self.protocol(detail))?;
        let (hi, lo) = self.gid.halves();
        let (size, announced) = (reply.c & u64::from(u32::MAX), reply.c >> 32);
        let expected = Message { kind: Kind::HelloOk, a: hi, b: lo, c: control::BYTES as u64 };
        if (Message { c: size, ..reply }) != expected || received.fds.len() != 1 {
            return Err(self.protocol(format!("{reply:?} with {} files", received.fds.len())));
        }
        self.control = Some(Segment::of_peer(received.fds[0].as_fd(), self.gid)?);
        Ok(Some(announced))
    }

    fn receive(&self, bytes: &mut [u8], limit: Duration) -> Result<Received> {
        let gone = || Error::UnknownGid { gid: self.gid, detail: "it closed the connection".into() };
        let received = self.connection.as_ref().ok_or_else(gone)?.recv(bytes, limit)?;
        if received.len == 0 { Err(gone()) } else { Ok(received) }
    }

    fn protocol(&self, detail: String) -> Error {
        Error::protocol(format!("greeting of HCA {}", self.gid), detail)
    }

    /// Returns the peer's control segment, which the first call requests. `Ok(None)`: it is not
    /// here yet. `Err` says why it never will be.
    pub(in crate::soft) fn control(&mut self) -> std::result::Result<Option<&Segment>, String> {
        if self.control.is_none()
            && self.closed.is_none()
            && let Err(error) = self.greet(Duration::ZERO)
        {
            self.close(error.to_string());
        }
        match (&self.control, &self.closed) {
            (Some(control), _) => Ok(Some(control)),
            (None, Some(reason)) => Err(reason.clone()),
            (None, None) => Ok(None),
        }
    }

    /// Returns the peer's control segment, if it is here.
    #[inline]
    pub(in crate::soft) fn known(&self) -> Option<&Segment> {
        self.control.as_ref()
    }

    /// Gives the peer up, for good.
    fn close(&mut self, reason: String) {
        self.closed = Some(reason);
        self.connection = None;
    }

    /// Returns why the peer cannot be reached any more.
    #[cold]
    pub(in crate::soft) fn gone(&self) -> String {
        match &self.closed {
            Some(reason) => format!("the HCA of the peer, {}, is gone: {reason}", self.gid),
            None => format!("the HCA of the peer, {}, is gone", self.gid),
        }
    }

    /// Returns what says when there is something to [`poll`](Self::poll).
    pub(in crate::soft) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    /// Returns whether the peer still lives, as far as is known without a system call.
    #[inline]
    pub(in crate::soft) fn is_alive(&self) -> bool {
        self.closed.is_none() && self.control.as_ref().is_none_or(|control| !control.is_dead())
    }

    /// Returns the umem `id`, requested on first use.
    pub(in crate::soft) fn memory(&mut self, id: u32) -> &PeerMemory {
        let connection = &self.connection;
        self.memory.entry(id).or_insert_with(|| {
            let Some(connection) = connection else { return PeerMemory::Refused("the peer is gone".into()) };
            match connection.try_send(&Message { kind: Kind::Umem, a: id.into(), b: 0, c: 0 }.encode(), &[]) {
                Ok(true) => PeerMemory::Requested,
                Ok(false) => PeerMemory::Refused("the peer does not read its messages".into()),
                Err(error) => PeerMemory::Refused(error.to_string()),
            }
        })
    }

    /// Returns whether umem `id` is not mapped, or not any more.
    pub(in crate::soft) fn has_lost(&self, id: u32) -> bool {
        !matches!(self.memory.get(&id), Some(PeerMemory::Mapped { .. }))
    }

    /// Returns whether there is withdrawn memory to unmap.
    pub(in crate::soft) fn has_withdrawn(&self) -> bool {
        !self.withdrawn.is_empty()
    }

    /// Unmaps what the peer has withdrawn. The caller makes sure that nothing will touch it any
    /// more.
    pub(in crate::soft) fn unmap_withdrawn(&mut self) {
        self.withdrawn.clear();
    }

    /// Takes in what the peer sent, and notices if it is gone. Returns true if there was anything.
    pub(in crate::soft) fn poll(&mut self) -> bool {
        if self.control.is_none() {
            return false;
        }
        let mut any = false;
        let mut bytes = [0; MESSAGE_BYTES + 1];
        loop {
            let Some(connection) = &self.connection else { return any };
            let received = match connection.try_recv(&mut bytes) {
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
                    self.close(error.to_string());
                    return true;
                }
                Err(error) => {
                    tracing::warn!(gid = %self.gid, %error, "lost the connection to a peer's HCA");
                    self.close(error.to_string());
                    return true;
                }
            };
            any = true;
            if received.len == 0 {
                tracing::debug!(gid = %self.gid, "a peer's HCA closed");
                self.close("it closed the connection".into());
                return true;
            }
            match Message::decode(&bytes[..received.len]) {
                Ok(message) => self.take(message, received.fds),
                Err(detail) => {
                    tracing::warn!(gid = %self.gid, detail, "a peer's HCA sent garbage");
                    self.close(format!("it sent garbage: {detail}"));
                    return true;
                }
            }
        }
    }

    /// Tells the peer that umem `id` need not be waited for.
    fn hold(&self, id: u32) {
        let message = Message { kind: Kind::Held, a: id.into(), b: 0, c: 0 };
        let send = |connection: &Connection| matches!(connection.try_send(&message.encode(), &[]), Ok(true));
        if self.accelerator.is_some() && !self.connection.as_ref().is_some_and(send) {
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
    use crate::soft::fabric::shared::{Export, Server};
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
        peer.connection().unwrap().send(&Message { kind: Kind::Held, a: 2, b: 0, c: 0 }.encode(), &[], long).unwrap();
        server.sharing().wait(2, long).unwrap();
        // No thread waits for one that is gone.
        server.export(4, export(true));
        drop(peer);
        server.sharing().wait(4, long).unwrap();
    }

    #[test]
    fn a_peer_is_greeted_when_it_is_first_needed() {
        let (_own, mut server) = server(gid(7));
        let mut peer = Peer::new(gid(8), gid(7), None);
        assert!(peer.is_alive() && !peer.poll() && server.clients() == 0);
        let until = std::time::Instant::now() + Duration::from_secs(100);
        while peer.control().unwrap().is_none() {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert!(peer.known().is_some() && server.clients() == 1);
        settle(&mut peer, 1);
        assert!(matches!(peer.memory(1), PeerMemory::Refused(_)));
        server.stop();
        while peer.is_alive() {
            peer.poll();
        }
        assert!(peer.gone().contains("it closed the connection"), "{}", peer.gone());
        // One that was gone before.
        let mut late = Peer::new(gid(8), gid(7), None);
        assert!(late.is_alive());
        let reason = late.control().err().unwrap();
        assert!(reason.contains(&gid(7).to_string()) && !late.is_alive(), "{reason}");
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
