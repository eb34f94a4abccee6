//! The asking side of the fabric between nodes: a connection to the HCA of another node.

use super::buffers::Wire;
use super::frames::{Id, Request, Way};
use super::greeting::{self, Target};
use crate::error::Result;
use crate::port::Gid;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes that may wait to be sent before queue pairs wait.
const MOST_UNSENT: usize = 256 << 10;

/// How many times as long a peer may take whose node is there.
const PATIENCE: u32 = 6;

/// Returns whether a peer has been silent for `limit` that should have responded since `since`.
fn is_silent(since: Instant, heard: Instant, now: Instant, limit: Duration) -> bool {
    now.saturating_duration_since(since.max(heard)) > limit
}

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
    /// When something last arrived.
    heard: Instant,
}

impl Link {
    /// Connects the HCA `own` to those of other nodes.
    pub(in crate::soft) fn connect(own: Gid, targets: &[Target<'_>]) -> Result<Vec<Self>> {
        let streams = greeting::connect(own, targets)?;
        targets.iter().zip(streams).map(|(target, stream)| Self::new(target.gid, target.address, stream)).collect()
    }

    fn new(gid: Gid, address: SocketAddr, stream: TcpStream) -> Result<Self> {
        let wire = Wire::new(stream)?;
        Ok(Self { gid, wire, address, closed: None, awaited: false, heard: Instant::now() })
    }

    /// Returns why the peer cannot be reached any more.
    pub(in crate::soft) fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    pub(in crate::soft) fn is_alive(&self) -> bool {
        self.closed.is_none()
    }

    /// Closes it if nothing has arrived for `limit` while a queue pair has been waiting since
    /// `since`. What arrives for other queue pairs counts: one may have to wait until the bulk of
    /// another is through. A peer whose node acknowledges what it is sent may just be slow, and has
    /// [`PATIENCE`] times as long: if its node is cut off, probes of the connection find that
    /// first.
    pub(in crate::soft) fn expect(&mut self, since: Instant, now: Instant, limit: Duration) {
        if !self.is_alive() || !is_silent(since, self.heard, now, limit) {
            return;
        }
        if self.wire.has_news() {
            // This side has not looked for a while.
            self.heard = now;
        } else if !self.wire.is_acknowledged() {
            self.close(&format!("its node has not acknowledged what was sent for {limit:?}"));
        } else if is_silent(since, self.heard, now, limit * PATIENCE) {
            self.close(&format!("it has not responded for {:?}", limit * PATIENCE));
        }
    }

    /// Returns whether it takes a further request now.
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
            Ok(_) => {
                self.heard = Instant::now();
                true
            }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_sends_to_any_queue_pair_is_not_silent() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let at = |seconds: u32| start + second * seconds;
        let limit = 10 * second;
        assert!(is_silent(at(0), at(0), at(11), limit));
        assert!(!is_silent(at(0), at(5), at(11), limit) && !is_silent(at(5), at(0), at(11), limit));
        assert!(is_silent(at(0), at(5), at(16), limit));
    }

    #[test]
    fn a_peer_that_is_slow_is_told_from_one_that_is_cut_off() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let link = || {
            let stream = TcpStream::connect(address).unwrap();
            (Link::new(Gid([0; 16]), address, stream).unwrap(), listener.accept().unwrap().0)
        };
        let (start, limit) = (Instant::now(), Duration::from_secs(10));
        let after = |limits: u32| start + limit * limits + Duration::from_secs(1);

        // The kernel of this machine has acknowledged all.
        let (mut slow, _end) = link();
        slow.expect(start, after(1), limit);
        assert!(slow.is_alive());
        slow.expect(start, after(PATIENCE), limit);
        assert_eq!(slow.closed(), Some("it has not responded for 60s"));

        // What has arrived was not looked at.
        let (mut busy, mut end) = link();
        std::io::Write::write_all(&mut end, &[0]).unwrap();
        while !busy.wire.has_news() {
            std::thread::yield_now();
        }
        busy.expect(start, after(PATIENCE), limit);
        assert!(busy.is_alive());

        // More than the other end takes.
        let (mut cut, _end) = link();
        cut.wire.output = vec![0; 64 << 20];
        cut.flush();
        cut.expect(start, after(1), limit);
        assert_eq!(cut.closed(), Some("its node has not acknowledged what was sent for 10s"));
    }
}
