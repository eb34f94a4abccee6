//! Messages with file descriptors (SCM_RIGHTS) over abstract unix sockets of type SOCK_SEQPACKET.
//!
//! An abstract name lives in the kernel alone: no file is left behind when a process dies. Packets
//! keep message boundaries, so a descriptor always arrives with the bytes it belongs to. Every wait
//! has a deadline.
//!
//! Abstract names have no permissions, so both ends check that the other runs under the same user
//! id.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The most descriptors in one message.
pub const MAX_FDS: usize = 16;

/// How long the kernel queues connections that were not accepted yet, in connections.
const BACKLOG: i32 = 128;

/// Waits until `fd` is ready for `flags` or the deadline passes. Returns false on the deadline.
fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> rustix::io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = rustix::event::Timespec { tv_sec: seconds, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::new(&fd, flags)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|errno| Error::os(format!("abstract socket name `{name}`"), errno))
}

fn new_socket(name: &str) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(|errno| Error::os(format!("create a socket for `@{name}`"), errno))
}

fn check_user(socket: BorrowedFd<'_>, name: &str) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|errno| Error::os(format!("read the credentials of the peer on `@{name}`"), errno))?;
    let own = rustix::process::geteuid();
    if peer.uid != own {
        return Err(Error::Protocol {
            what: format!("socket `@{name}`"),
            detail: format!(
                "the peer (process {}) runs as user {}, this process as user {}; both must be the same",
                peer.pid.as_raw_nonzero(),
                peer.uid.as_raw(),
                own.as_raw()
            ),
        });
    }
    Ok(())
}

/// A listening abstract socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    name: String,
}

impl Listener {
    /// Listens at the abstract name `name` (without the leading NUL).
    pub fn bind(name: &str) -> Result<Self> {
        let socket = new_socket(name)?;
        bind(&socket, &address(name)?).map_err(|errno| Error::os(format!("bind to `@{name}`"), errno))?;
        listen(&socket, BACKLOG).map_err(|errno| Error::os(format!("listen at `@{name}`"), errno))?;
        Ok(Self { socket, name: name.to_owned() })
    }

    /// Returns the abstract name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Accepts a connection; waits at most `limit`. A peer of another user is refused with an
    /// error; the listener stays usable.
    pub fn accept(&self, limit: Duration) -> Result<Connection> {
        let deadline = Instant::now() + limit;
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    check_user(socket.as_fd(), &self.name)?;
                    return Ok(Connection { socket, name: self.name.clone() });
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => {
                    let ready = wait(self.socket.as_fd(), PollFlags::IN, deadline)
                        .map_err(|errno| Error::os(format!("wait for a connection at `@{}`", self.name), errno))?;
                    if !ready {
                        return Err(Error::Timeout { what: format!("a connection at `@{}`", self.name), limit });
                    }
                }
                Err(errno) => return Err(Error::os(format!("accept at `@{}`", self.name), errno)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message that was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes; 0 when the peer has closed the connection.
    pub len: usize,
    /// Descriptors that came with them.
    pub fds: Vec<OwnedFd>,
}

/// A connected socket. It is in non-blocking mode.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    name: String,
}

impl Connection {
    /// Connects to the abstract name `name`; waits at most `limit` for room in the listener's
    /// backlog.
    pub fn connect(name: &str, limit: Duration) -> Result<Self> {
        let deadline = Instant::now() + limit;
        let address = address(name)?;
        let socket = new_socket(name)?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                // The backlog is full. There is nothing to poll for, so try again in a while.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Err(Errno::AGAIN) => return Err(Error::Timeout { what: format!("connecting to `@{name}`"), limit }),
                Err(errno) => return Err(Error::os(format!("connect to `@{name}`"), errno)),
            }
        }
        check_user(socket.as_fd(), name)?;
        Ok(Self { socket, name: name.to_owned() })
    }

    /// Returns a connected pair of this process; for tests, and for a child that inherits one end.
    pub fn pair() -> Result<(Self, Self)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| Error::os("create a socket pair", errno))?;
        Ok((Self { socket: a, name: "pair".to_owned() }, Self { socket: b, name: "pair".to_owned() }))
    }

    /// Sends `bytes` and at most [`MAX_FDS`] descriptors as one message; waits at most `limit`.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.try_send(bytes, fds)? {
            let ready = wait(self.socket.as_fd(), PollFlags::OUT, deadline)
                .map_err(|errno| Error::os(format!("wait to send on `@{}`", self.name), errno))?;
            if !ready {
                return Err(Error::Timeout { what: format!("sending on `@{}`", self.name), limit });
            }
        }
        Ok(())
    }

    /// Sends without waiting. Returns false if the socket's buffer is full.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<bool> {
        if bytes.is_empty() {
            return Err(Error::argument(
                "bytes",
                "empty",
                "a message has at least one byte: none means that the peer is gone",
            ));
        }
        if fds.len() > MAX_FDS {
            return Err(Error::argument(
                "fds",
                fds.len(),
                format!("at most {MAX_FDS} descriptors travel in a message"),
            ));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Error::argument("fds", fds.len(), "no room in the control buffer"));
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(Error::os(format!("send on `@{}`", self.name), errno)),
            }
        }
    }

    /// Receives one message into `bytes`; waits at most `limit`. A message longer than `bytes` is
    /// an error.
    pub fn recv(&self, bytes: &mut [u8], limit: Duration) -> Result<Received> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(received) = self.try_recv(bytes)? {
                return Ok(received);
            }
            let ready = wait(self.socket.as_fd(), PollFlags::IN, deadline)
                .map_err(|errno| Error::os(format!("wait to receive on `@{}`", self.name), errno))?;
            if !ready {
                return Err(Error::Timeout { what: format!("a message on `@{}`", self.name), limit });
            }
        }
    }

    /// Receives without waiting. `None` if there is no message.
    pub fn try_recv(&self, bytes: &mut [u8]) -> Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // A peer that died with unread data in its queue.
                Err(Errno::CONNRESET) => return Ok(Some(Received { len: 0, fds: Vec::new() })),
                Err(errno) => return Err(Error::os(format!("receive on `@{}`", self.name), errno)),
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        let protocol = |detail| Error::Protocol { what: format!("socket `@{}`", self.name), detail };
        if message.flags.contains(rustix::net::ReturnFlags::TRUNC) {
            return Err(protocol(format!("a message is longer than {} bytes", bytes.len())));
        }
        // There is room for as many descriptors as are ever sent, so one that is missing found no
        // place in this process.
        if message.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
            return Err(Error::FileLimit {
                what: format!("a descriptor that came over socket `@{}` is lost", self.name),
            });
        }
        Ok(Some(Received { len: message.bytes, fds }))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const NONE: Duration = Duration::ZERO;

    fn name(what: &str) -> String {
        format!("oxshmem-fdpass-test-{}-{what}", std::process::id())
    }

    #[test]
    fn bytes_and_descriptors_travel_together() {
        let listener = Listener::bind(&name("travel")).unwrap();
        let client = Connection::connect(listener.name(), LIMIT).unwrap();
        let server = listener.accept(LIMIT).unwrap();
        let memory = rustix::fs::memfd_create("fdpass", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&memory, b"shared").unwrap();
        client.send(b"take", &[memory.as_fd()], LIMIT).unwrap();
        client.send(b"more", &[], LIMIT).unwrap();

        let mut bytes = [0u8; 16];
        let first = server.recv(&mut bytes, LIMIT).unwrap();
        assert_eq!((&bytes[..first.len], first.fds.len()), (&b"take"[..], 1));
        let mut content = [0u8; 6];
        rustix::io::pread(&first.fds[0], &mut content, 0).unwrap();
        assert_eq!(&content, b"shared");
        let second = server.recv(&mut bytes, LIMIT).unwrap();
        assert_eq!((&bytes[..second.len], second.fds.len()), (&b"more"[..], 0));

        drop(client);
        assert_eq!(server.recv(&mut bytes, LIMIT).unwrap().len, 0);
    }

    #[test]
    fn waits_end() {
        let listener = Listener::bind(&name("waits")).unwrap();
        assert!(matches!(listener.accept(NONE), Err(Error::Timeout { .. })));
        let (a, b) = Connection::pair().unwrap();
        assert!(matches!(a.recv(&mut [0; 4], NONE), Err(Error::Timeout { .. })));
        // A peer that never reads fills the buffer.
        let refused = loop {
            if let Err(error) = b.send(&[0; 1024], &[], NONE) {
                break error;
            }
        };
        assert!(matches!(refused, Error::Timeout { .. }), "{refused}");
    }

    #[test]
    fn wrong_uses_are_refused() {
        let (a, b) = Connection::pair().unwrap();
        assert!(matches!(a.send(&[], &[], LIMIT), Err(Error::Argument { .. })));
        a.send(b"too long for the buffer", &[], LIMIT).unwrap();
        assert!(matches!(b.recv(&mut [0; 4], LIMIT), Err(Error::Protocol { .. })));
        assert!(Connection::connect(&name("nobody"), NONE).is_err());
        assert!(Listener::bind(&"x".repeat(200)).is_err());
        let listener = Listener::bind(&name("twice")).unwrap();
        assert!(Listener::bind(listener.name()).is_err());
    }
}
