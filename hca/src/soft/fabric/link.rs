//! The asking side of the fabric between nodes: a connection to the HCA of another node.

use super::buffers::Wire;
use super::frames::{Id, Request, Way};
use super::greeting;
use crate::error::Result;
use crate::port::Gid;
use std::net::SocketAddr;

/// Bytes that may wait to be sent before queue pairs wait.
const MOST_UNSENT: usize = 256 << 10;

/// A connection.
#[derive(Debug)]
pub(in crate::soft) struct Link {
    pub(in crate::soft) gid: Gid,
    pub(in crate::soft) wire: Wire,
    address: SocketAddr,
    /// Why it is of no use any more.
    closed: Option<String>,
    /// A queue pair waits for it.
    pub(in crate::soft) awaited: bool,
}

impl Link {
    /// Connects the HCA `own` to HCA `gid` at `address`.
    pub(in crate::soft) fn connect(own: Gid, gid: Gid, address: SocketAddr, secret: &[u8]) -> Result<Self> {
        let wire = Wire::new(greeting::connect(own, gid, address, secret)?)?;
        Ok(Self { gid, wire, address, closed: None, awaited: false })
    }

    /// Why the peer cannot be reached any more.
    pub(in crate::soft) fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    pub(in crate::soft) fn is_alive(&self) -> bool {
        self.closed.is_none()
    }

    /// Whether it takes a further request now.
    pub(in crate::soft) fn has_room(&self) -> bool {
        self.wire.unsent() < MOST_UNSENT
    }

    /// Queues a request.
    pub(in crate::soft) fn request(&mut self, request: &Request<'_>, id: Id, way: Way) {
        request.encode(&mut self.wire.output, id, way);
    }

    /// Sends what the connection takes now.
    pub(in crate::soft) fn flush(&mut self) {
        if self.closed.is_none()
            && let Err(reason) = self.wire.flush()
        {
            self.close(&reason);
        }
    }

    /// Takes in what has arrived. Returns whether there was anything.
    pub(in crate::soft) fn fill(&mut self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        match self.wire.fill() {
            Ok(0) => false,
            Ok(_) => true,
            Err(reason) => {
                self.close(&reason);
                true
            }
        }
    }

    /// Gives the connection up, for good.
    pub(in crate::soft) fn close(&mut self, reason: &str) {
        if self.closed.is_none() && reason.is_empty() {
            // A job ends like this. The queue pairs report it if something is under way.
            tracing::debug!(gid = %self.gid, address = %self.address, "the HCA of another node closed");
            self.closed = Some("it closed the connection".into());
            self.wire.end();
        } else if self.closed.is_none() {
            tracing::warn!(gid = %self.gid, address = %self.address, reason, "lost the connection to the HCA of another node");
            self.closed = Some(reason.to_owned());
            self.wire.end();
        }
    }
}
