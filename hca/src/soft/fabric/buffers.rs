//! A TCP connection of the fabric between nodes, with what has arrived and what is to be sent.
//! No call waits.

use super::frames::{HEADER, Header, MAX_BODY};
use crate::error::{Error, Result};
use oxshmem_system::words::low32;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::sockopt;
use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Bytes that are taken in before they are executed.
const MOST_INPUT: usize = 256 << 10;
/// Bytes that one call of the system reads.
const READ: usize = 64 << 10;
/// Bytes that a buffer keeps when it is empty: an HCA may have thousands of connections, most of
/// them idle.
const MOST_KEPT: usize = 4 << 10;
/// How much a socket has to send; linux/sockios.h, which takes the number from
/// asm-generic/ioctls.h.
const SIOCOUTQ: Opcode = 0x5411;
/// A peer whose node does not respond for this long is gone.
const SILENCE: Duration = Duration::from_secs(10);

const _: () = assert!(MOST_INPUT > HEADER + MAX_BODY);

thread_local! {
    /// Where a thread reads to, so that no connection needs room for what has not arrived.
    static ARRIVING: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// A connection.
#[derive(Debug)]
pub(in crate::soft) struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    taken: usize,
    /// What is to be sent, from `sent` on.
    pub(in crate::soft) output: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Takes a connection over.
    pub(in crate::soft) fn new(stream: TcpStream) -> Result<Self> {
        let os = |error| Error::os("prepare a connection to another node's HCA", error);
        stream.set_nonblocking(true).map_err(os)?;
        stream.set_nodelay(true).map_err(os)?;
        // A node that is gone sends nothing, and probes find that out. They stop while data is
        // under way. Then the asking side waits for its response with a limit of its own, and the
        // serving side loses nothing: `TCP_USER_TIMEOUT` would also end a connection whose other
        // end lives and takes no bytes for a while.
        //
        // A process that ends on this machine closes its connections, so none is probed here: the
        // probes of very many would come at once, and fill the queue of the loopback interface.
        let (here, there) = (stream.local_addr().map_err(os)?, stream.peer_addr().map_err(os)?);
        let probes = sockopt::set_socket_keepalive(&stream, here.ip() != there.ip())
            .and_then(|()| sockopt::set_tcp_keepidle(&stream, SILENCE / 2))
            .and_then(|()| sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1)))
            .and_then(|()| sockopt::set_tcp_keepcnt(&stream, low32(SILENCE.as_secs() / 2)));
        probes.map_err(|errno| Error::os("have a connection to another node's HCA probed", errno))?;
        Ok(Self { stream, input: Vec::new(), taken: 0, output: Vec::new(), sent: 0 })
    }

    /// Returns the number of bytes that are still to be sent.
    pub(in crate::soft) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Returns whether something has arrived that was not taken in.
    pub(in crate::soft) fn has_news(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN)];
        // A call that fails knows of nothing; `fill` meets its reason.
        rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether the peer's node has acknowledged all that was sent. It does so even if its
    /// process does not run.
    pub(in crate::soft) fn is_acknowledged(&self) -> bool {
        // SAFETY: it writes an int: for a TCP socket the bytes that were not acknowledged (tcp(7)).
        let waiting = unsafe { ioctl(&self.stream, Getter::<SIOCOUTQ, i32>::new()) };
        self.unsent() == 0 && waiting.is_ok_and(|bytes| bytes == 0)
    }

    /// Sends what the connection takes now. `Err` says why it is of no use any more.
    pub(in crate::soft) fn flush(&mut self) -> std::result::Result<(), String> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err("it takes no bytes any more".into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.output.shrink_to(MOST_KEPT);
            self.sent = 0;
        } else if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Takes in what has arrived, until as much is here as can be executed at a time. Returns how
    /// much that was. `Err` says why the connection is of no use any more; it is empty if the peer
    /// closed it.
    pub(in crate::soft) fn fill(&mut self) -> std::result::Result<usize, String> {
        self.fill_to(MOST_INPUT, READ)
    }

    /// Takes in what has arrived of a greeting, which has `limit` bytes.
    pub(in crate::soft) fn fill_greeting(&mut self, limit: usize) -> std::result::Result<usize, String> {
        self.fill_to(limit, limit.saturating_sub(self.input.len() - self.taken))
    }

    /// Takes in what has arrived, `step` bytes at a time, until `most` bytes or more are here.
    fn fill_to(&mut self, most: usize, step: usize) -> std::result::Result<usize, String> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let before = self.input.len();
        ARRIVING.with_borrow_mut(|arriving| {
            while self.input.len() < most {
                let read = self.stream.read(&mut arriving[..step]);
                self.input.extend_from_slice(&arriving[..*read.as_ref().unwrap_or(&0)]);
                match read {
                    // What arrived before is executed first; the end is noticed by the next call.
                    Ok(0) if self.input.len() > before => break,
                    Ok(0) => return Err(String::new()),
                    Ok(count) if count < step => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
            Ok(())
        })?;
        Ok(self.input.len() - before)
    }

    /// Takes the next frame, and returns where its body is. `Err` says what is wrong with it.
    pub(in crate::soft) fn next(&mut self) -> std::result::Result<Option<(Header, Range<usize>)>, String> {
        let Some(bytes) = self.input[self.taken..].first_chunk() else {
            if self.taken == self.input.len() {
                self.input.clear();
                self.input.shrink_to(MOST_KEPT);
                self.taken = 0;
            }
            return Ok(None);
        };
        let header = Header::decode(bytes)?;
        let start = self.taken + HEADER;
        let end = start + header.len;
        if end > self.input.len() {
            return Ok(None);
        }
        self.taken = end;
        Ok(Some((header, start..end)))
    }

    /// Gives back a frame that [`next`](Self::next) returned last, for another time.
    pub(in crate::soft) fn put_back(&mut self, body: &Range<usize>) {
        self.taken = body.start - HEADER;
    }

    /// Returns whether a whole frame is here, or one that is wrong, which [`next`](Self::next)
    /// says.
    pub(in crate::soft) fn has_frame(&self) -> bool {
        let here = &self.input[self.taken..];
        let whole = |header: Header| here.len() >= HEADER + header.len;
        here.first_chunk().is_some_and(|bytes| Header::decode(bytes).map_or(true, whole))
    }

    /// Ends the connection in both directions, which the peer notices.
    pub(in crate::soft) fn end(&mut self) {
        // Fails where the connection has ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.output = Vec::new();
        self.sent = 0;
    }

    /// Returns a body that [`next`](Self::next) found, and what is to be sent.
    pub(in crate::soft) fn parts(&mut self, body: Range<usize>) -> (&[u8], &mut Vec<u8>) {
        (&self.input[body], &mut self.output)
    }

    /// Takes the next `N` bytes, if they are here.
    pub(in crate::soft) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.input[self.taken..].first_chunk()?;
        self.taken += N;
        Some(bytes)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::frames::PIECE;
    use super::*;
    use std::net::TcpListener;

    /// Creates a connection, and its other end, which waits.
    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        other.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
        (Wire::new(listener.accept().unwrap().0).unwrap(), other)
    }

    #[test]
    fn a_greeting_has_no_more_bytes_than_it_may_have_however_they_come() {
        let (mut wire, mut other) = pair();
        other.write_all(&[7; 300]).unwrap();
        while wire.input.len() < 100 {
            wire.fill_greeting(100).unwrap();
        }
        assert_eq!((wire.fill_greeting(100), wire.input.len()), (Ok(0), 100));
        assert_eq!(wire.take::<60>(), Some([7; 60]));
        assert_eq!((wire.fill_greeting(40), wire.input.len()), (Ok(0), 40));
    }

    #[test]
    fn buffers_keep_little_when_they_are_empty() {
        let (mut wire, mut other) = pair();
        let many = 8 * MOST_KEPT;
        let drain = std::thread::spawn(move || {
            let mut bytes = vec![0; many];
            other.read_exact(&mut bytes).unwrap();
            other
        });
        wire.output.resize(many, 1);
        while wire.unsent() > 0 {
            wire.flush().unwrap();
        }
        assert!(wire.output.capacity() <= MOST_KEPT);
        drop(drain.join().unwrap());
    }

    #[test]
    fn a_connection_that_is_idle_keeps_little_of_what_arrived() {
        let (mut wire, mut other) = pair();
        wire.fill().unwrap();
        assert!(wire.input.capacity() <= MOST_KEPT, "{}", wire.input.capacity());
        let mut frame = vec![0; HEADER + PIECE];
        frame[..4].copy_from_slice(&low32(PIECE as u64).to_le_bytes());
        frame[4..6].copy_from_slice(&0x82u16.to_le_bytes());
        other.write_all(&frame).unwrap();
        while !wire.has_frame() {
            wire.fill().unwrap();
        }
        let (header, body) = wire.next().unwrap().unwrap();
        assert_eq!((header.len, body.len()), (PIECE, PIECE));
        // It may be given back until the next call.
        wire.put_back(&body);
        assert_eq!(wire.next(), Ok(Some((header, body))));
        assert_eq!(wire.next(), Ok(None));
        assert!(wire.input.capacity() <= MOST_KEPT, "{}", wire.input.capacity());
    }
}
