//! Connections among the PEs of a node that map each other's heaps: they carry the chunks'
//! descriptors.

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
        Ok(Self { links })
    }

    /// Returns the slots of the PEs whose heaps are mapped here.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        self.links.iter().map(|link| link.slot)
    }

    /// Sends chunk `index` to every peer.
    pub(crate) fn send(&self, index: usize, memory: BorrowedFd<'_>, timeout: Duration) -> Result<(), HeapError> {
        for link in &self.links {
            link.connection
                .send(&(index as u64).to_le_bytes(), &[memory], timeout)
                .map_err(|e| link.error("send", e))?;
        }
        Ok(())
    }

    /// Receives every peer's chunk `index`, with the peer and the slot it belongs to.
    pub(crate) fn receive(&self, index: usize, timeout: Duration) -> Result<Vec<(usize, usize, OwnedFd)>, HeapError> {
        let mut received = Vec::with_capacity(self.links.len());
        for link in &self.links {
            let mut bytes = [0; 8];
            let mut message = link.connection.recv(&mut bytes, timeout).map_err(|e| link.error("receive", e))?;
            let fd = message.fds.pop().filter(|_| message.fds.is_empty() && message.len == bytes.len());
            match fd {
                Some(fd) if u64::from_le_bytes(bytes) == index as u64 => received.push((link.pe, link.slot, fd)),
                _ => {
                    let what =
                        if message.len == 0 { "the peer closed the connection" } else { "not the chunk that was due" };
                    return Err(link.error("receive", std::io::Error::other(what)));
                }
            }
        }
        Ok(received)
    }
}

impl Link {
    fn error(&self, what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HeapError {
        HeapError::Peer { pe: self.pe, what, source: std::io::Error::other(source) }
    }
}
