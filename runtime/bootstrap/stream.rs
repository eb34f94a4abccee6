//! The connections of the bootstrap: TCP to the hub, unix sockets to the leader of the node.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// Connections that wait in a listener; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Milliseconds in which a machine that is there acknowledges what it is sent.
const SILENCE: u32 = 20_000;

/// One end of a connection.
#[derive(Debug)]
pub enum Channel {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Channel {
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
            Self::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
            Self::Unix(stream) => stream.set_write_timeout(timeout),
        }
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }

    /// Returns this node's address of a connection between nodes.
    pub fn local_address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl Read for &Channel {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Channel::Tcp(stream) => (&*stream).read(bytes),
            Channel::Unix(stream) => (&*stream).read(bytes),
        }
    }
}

impl Write for &Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Channel::Tcp(stream) => (&*stream).write(bytes),
            Channel::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Listens at an address, with a queue in which all PEs fit: they connect at once. The standard
/// library's queue is of 128. A listener of IPv6 takes IPv4 too, whatever the system's default
/// (`net.ipv6.bindv6only`).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Turns off the delay of small frames and has the kernel notice a machine that vanishes within
/// [`SILENCE`]: by probes, and where bytes are on their way, which keep probes back, by how long
/// the machine acknowledges none of them. This includes a process that takes no bytes for so long.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(3))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE)?;
    Ok(())
}

/// Listens at an abstract name, which only this network namespace sees, and of which nothing is
/// left when the process ends. `None` if another process listens there.
pub fn listen_at(name: &str) -> io::Result<Option<UnixListener>> {
    match UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

/// Connects to a process that listens at an abstract name. `WouldBlock` if its queue is full,
/// `ConnectionRefused` if there is none.
pub fn connect_to(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns why the process at the other end is a stranger: abstract names have no permissions.
///
/// # Errors
/// The reason, as the end of the sentence "it ...".
pub fn is_of_this_user(stream: &UnixStream) -> Result<(), String> {
    let own = rustix::process::geteuid();
    match sockopt::socket_peercred(stream) {
        Ok(peer) if peer.uid == own => Ok(()),
        Ok(peer) => Err(format!("is of user {}, the job of user {}", peer.uid.as_raw(), own.as_raw())),
        Err(error) => Err(format!("cannot be told from a stranger's: {error}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn a_machine_that_acknowledges_nothing_is_given_up() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune(&stream).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), SILENCE);
        assert!(sockopt::socket_keepalive(&stream).unwrap());
    }

    #[test]
    fn a_listener_of_ipv6_takes_ipv4() {
        let listener = match listen((Ipv6Addr::UNSPECIFIED, 0).into()) {
            Ok(listener) => listener,
            Err(error) => return println!("skipped: no IPv6 here: {error}"),
        };
        assert!(!sockopt::ipv6_v6only(&listener).unwrap());
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let taken = listen((Ipv6Addr::UNSPECIFIED, port).into());
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
