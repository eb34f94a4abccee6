//! Connections among the PEs of a node that map each other's heaps: they carry the chunks'
//! descriptors.

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use oxshmem_system::fdpass::{Connection, Listener};

use super::error::HeapError;

impl From<oxshmem_system::Error> for crate::Error {
    fn from(error: oxshmem_system::Error) -> Self {
        Self::Hca(error.into())
    }
}

/// A PE whose heap is mapped here.
#[derive(Debug)]
struct Link {
    pe: usize,
    slot: usize,
    connection: Connection,
}

/// A connection to every other PE of the reservation.
#[derive(Debug, Default)]
pub(crate) struct PeerLinks {
    links: Vec<Link>,
    /// Exchanges so far: what comes late of one that has failed is not taken for a later one's.
    exchanges: Cell<u64>,
}

impl PeerLinks {
    /// Connects with the `peers`, each with its slot, of the job that `name` identifies.
    /// `everyone_listens` is called between listening and connecting, and returns when every PE
    /// listens.
    pub(crate) fn connect(
        name: &str,
        me: usize,
        peers: &[(usize, usize)],
        timeout: Duration,
        everyone_listens: impl FnOnce() -> Result<(), crate::Error>,
    ) -> Result<Self, crate::Error> {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let socket = |pe: usize| format!("oxshmem-heap-{name}-{pe}");
        let listener = Listener::bind(&socket(me))?;
        everyone_listens()?;

        // Each connects to the PEs below it and sends its own number.
        let mut links = Vec::new();
        for &(pe, slot) in peers.iter().filter(|(pe, _)| *pe < me) {
            let connection = Connection::connect(&socket(pe), left())?;
            connection.send(&(me as u64).to_le_bytes(), &[], left())?;
            links.push(Link { pe, slot, connection });
        }
        while links.len() < peers.len() {
            let connection = listener.accept(left())?;
            let mut hello = [0; 8];
            let received = connection.recv(&mut hello, left())?;
            let pe = usize::try_from(u64::from_le_bytes(hello)).unwrap_or(usize::MAX);
            let is_due = |peer: usize| peer > me && !links.iter().any(|link| link.pe == peer);
            let due = peers.iter().find(|(peer, _)| received.len == hello.len() && *peer == pe && is_due(pe));
            let Some(&(pe, slot)) = due else {
                tracing::warn!(
                    pe,
                    "dropped a connection to the heap's socket that is from none of the PEs that are due"
                );
                continue;
            };
            links.push(Link { pe, slot, connection });
        }
        Ok(Self { links, exchanges: Cell::default() })
    }

    /// Returns the slots of the PEs whose heaps are mapped here.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        self.links.iter().map(|link| link.slot)
    }

    /// Sends chunk `index` to every peer and receives theirs, each with the peer and the slot that
    /// it belongs to. All peers exchange as often.
    ///
    /// # Errors
    /// The first of a connection that failed. All others were tried, and what comes late is passed
    /// over by the next exchange.
    pub(crate) fn exchange(
        &self,
        index: usize,
        memory: BorrowedFd<'_>,
        timeout: Duration,
    ) -> Result<Vec<(usize, usize, OwnedFd)>, HeapError> {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let exchange = self.exchanges.get() + 1;
        self.exchanges.set(exchange);
        let label: [u64; 2] = [exchange, index as u64];
        let send = |link: &Link| {
            link.connection.send(bytemuck::bytes_of(&label), &[memory], left()).map_err(|e| link.error("send", e))
        };
        let sent: Vec<_> = self.links.iter().map(send).collect();
        let received: Vec<_> = self.links.iter().map(|link| link.receive(label, &left)).collect();
        sent.into_iter().collect::<Result<(), _>>()?;
        received.into_iter().collect()
    }
}

/// The most bytes of a reason that travels in the place of descriptors.
const MOST_REASON: usize = 512;

impl PeerLinks {
    /// Returns the connection to a PE.
    fn to(&self, pe: usize) -> Result<&Link, HeapError> {
        let none =
            || HeapError::Peer { pe, what: "reach", source: std::io::Error::other("there is no connection to it") };
        self.links.iter().find(|link| link.pe == pe).ok_or_else(none)
    }

    /// Sends a PE descriptors of memory that it may use, or says why there are none. The PE calls
    /// [`borrow`](Self::borrow) for it.
    pub(crate) fn lend(
        &self,
        pe: usize,
        lent: Result<&[BorrowedFd<'_>], &str>,
        timeout: Duration,
    ) -> Result<(), HeapError> {
        let link = self.to(pe)?;
        let (reason, fds) = match lent {
            Ok(fds) => ("", fds),
            Err(reason) => (reason, &[][..]),
        };
        let bytes = &reason.as_bytes()[..reason.len().min(MOST_REASON)];
        link.connection
            .send(&[&[u8::from(lent.is_ok())], bytes].concat(), fds, timeout)
            .map_err(|e| link.error("send", e))
    }

    /// Receives what a PE lends: descriptors, or the reason why there are none.
    pub(crate) fn borrow(&self, pe: usize, timeout: Duration) -> Result<Result<Vec<OwnedFd>, String>, HeapError> {
        let link = self.to(pe)?;
        let mut bytes = [0; MOST_REASON + 1];
        let received = link.connection.recv(&mut bytes, timeout).map_err(|e| link.error("receive", e))?;
        match bytes[..received.len].split_first() {
            Some((1, [])) if !received.fds.is_empty() => Ok(Ok(received.fds)),
            // The system may keep descriptors back.
            Some((1, _)) => Ok(Err("no descriptor arrived".to_owned())),
            Some((_, reason)) => Ok(Err(String::from_utf8_lossy(reason).into_owned())),
            None => Err(link.error("receive", std::io::Error::other("the peer closed the connection"))),
        }
    }
}

impl Link {
    /// Receives the message with this label, the numbers of the exchange and of the chunk, after
    /// those of earlier exchanges.
    fn receive(&self, label: [u64; 2], left: &impl Fn() -> Duration) -> Result<(usize, usize, OwnedFd), HeapError> {
        loop {
            let mut seen = [0u64; 2];
            let bytes = bytemuck::bytes_of_mut(&mut seen);
            let mut message = self.connection.recv(bytes, left()).map_err(|e| self.error("receive", e))?;
            let is_whole = message.len == size_of::<[u64; 2]>();
            if is_whole && seen[0] < label[0] {
                continue;
            }
            let fd = message.fds.pop().filter(|_| message.fds.is_empty() && is_whole && seen == label);
            return fd.map(|fd| (self.pe, self.slot, fd)).ok_or_else(|| {
                let what =
                    if message.len == 0 { "the peer closed the connection" } else { "not the chunk that was due" };
                self.error("receive", std::io::Error::other(what))
            });
        }
    }

    fn error(&self, what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HeapError {
        HeapError::Peer { pe: self.pe, what, source: std::io::Error::other(source) }
    }
}
