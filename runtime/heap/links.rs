//! Connections among the PEs of a node that map each other's heaps: they carry the chunks' descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use oxshmem_hca::fdpass::{Connection, Listener};

use super::HeapError;

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
    /// Connects the PEs `first..first + count` of the job that `name` identifies. `everyone_listens` is called between listening and
    /// connecting, and returns when every PE listens.
    pub(crate) fn connect(
        name: &str,
        me: usize,
        first: usize,
        count: usize,
        timeout: Duration,
        everyone_listens: impl FnOnce() -> Result<(), crate::Error>,
    ) -> Result<Self, crate::Error> {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let socket = |pe: usize| format!("oxshmem-heap-{name}-{pe}");
        let listener = Listener::bind(&socket(me))?;
        everyone_listens()?;

        // Each connects to the PEs below it and says who it is.
        let mut links = Vec::new();
        for pe in first..me {
            let connection = Connection::connect(&socket(pe), left())?;
            connection.send(&(me as u64).to_le_bytes(), &[], left())?;
            links.push(Link { pe, slot: pe - first, connection });
        }
        while links.len() + 1 < count {
            let connection = listener.accept(left())?;
            let mut hello = [0; 8];
            let received = connection.recv(&mut hello, left())?;
            let pe = usize::try_from(u64::from_le_bytes(hello)).unwrap_or(usize::MAX);
            let expected = me + 1..first + count;
            if received.len != hello.len() || !expected.contains(&pe) || links.iter().any(|link| link.pe == pe) {
                tracing::warn!(
                    pe,
                    "dropped a connection to the heap's socket that is from none of the PEs {expected:?}"
                );
                continue;
            }
            links.push(Link { pe, slot: pe - first, connection });
        }
        Ok(Self { links })
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
