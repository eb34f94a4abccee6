//! Names of hosts, looked up within a deadline, which the system's resolver does not have.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::stream;

/// Longest look-up of one name.
pub const LONGEST: Duration = Duration::from_secs(10);

/// Longest attempt to connect to one address, when there are others.
const ATTEMPT: Duration = Duration::from_secs(3);

/// How long the addresses of a name are used without another look-up.
const KEPT: Duration = Duration::from_secs(5);
/// How long a name that was not found is not looked up again.
const MISSED: Duration = Duration::from_secs(1);

/// Names of hosts with what was found of them, for a PE that tries several ports of a host again
/// and again.
#[derive(Debug, Default)]
pub struct Names {
    /// By host.
    known: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    /// The addresses, of any port, or why there are none.
    found: Result<Vec<SocketAddr>, String>,
    until: Instant,
}

impl Names {
    /// Connects to `host:port`, at the first of its addresses that accepts.
    ///
    /// # Errors
    /// None does, or the name has no address.
    pub fn connect(&mut self, address: &str, deadline: Instant) -> io::Result<TcpStream> {
        let mut error = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in self.find(address, Instant::now, || addresses(address, deadline))? {
            let left = deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), ATTEMPT);
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream::tune(&stream)?;
                    return Ok(stream);
                }
                Err(last) => error = last,
            }
        }
        Err(error)
    }

    /// Returns the addresses of `host:port`, which `look_up` finds if the host is not known.
    fn find(
        &mut self,
        address: &str,
        now: impl Fn() -> Instant,
        look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Vec<SocketAddr>> {
        let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        // An address needs no look-up.
        let Some((host, port)) = parts.filter(|_| address.parse::<SocketAddr>().is_err()) else { return look_up() };
        if self.known.get(host).is_none_or(|known| known.until <= now()) {
            let found = look_up().map_err(|error| error.to_string());
            // A look-up may take longer than what it finds is kept.
            let until = now() + if found.is_ok() { KEPT } else { MISSED };
            self.known.insert(host.to_owned(), Known { found, until });
        }
        let found = self.known.get(host).map_or(Ok(&[][..]), |known| known.found.as_deref());
        let at_port = |found: &SocketAddr| {
            let mut found = *found;
            found.set_port(port);
            found
        };
        Ok(found.map_err(|why| io::Error::other(why.clone()))?.iter().map(at_port).collect())
    }
}

/// Returns the addresses of `host:port`.
///
/// # Errors
/// The name has none, or the resolver takes longer than until the deadline.
pub fn addresses(host: &str, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let name = host.to_owned();
    look_up(host, deadline.min(Instant::now() + LONGEST), move || Ok(name.to_socket_addrs()?.collect()))
}

/// Looks up in a thread, which is left behind when it does not return.
fn look_up(
    host: &str,
    deadline: Instant,
    resolver: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let begun = Instant::now();
    let (done, found) = channel();
    std::thread::Builder::new().name("oxshmem-lookup".into()).spawn(move || {
        // An error means that the deadline has passed.
        let _ = done.send(resolver());
    })?;
    let problem = |why: String| {
        let remedy = "check the name in /etc/hosts and the resolver in /etc/resolv.conf, or use an address";
        io::Error::other(format!("the name {host} {why}; {remedy}"))
    };
    match found.recv_timeout(deadline.saturating_duration_since(begun)) {
        Ok(Ok(found)) if found.is_empty() => Err(problem("has no address".to_owned())),
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(problem(format!("cannot be looked up: {error}"))),
        Err(RecvTimeoutError::Timeout) => {
            Err(problem(format!("was not looked up within {} s", begun.elapsed().as_millis() as f64 / 1000.0)))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(problem("cannot be looked up: the thread for it has ended".to_owned()))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_resolver_that_does_not_return_is_given_up() {
        let (hold, held) = channel::<()>();
        let resolver = move || {
            let _ = held.recv();
            Ok(Vec::new())
        };
        let until = Instant::now() + Duration::from_millis(20);
        let error = look_up("node7:4000", until, resolver).unwrap_err().to_string();
        assert!(
            error.contains("the name node7:4000 was not looked up within") && error.contains("resolv.conf"),
            "{error}"
        );
        drop(hold);
    }

    #[test]
    fn a_name_is_looked_up_once_for_all_ports_until_it_is_forgotten() {
        let begin = Instant::now();
        let time = Cell::new(Duration::ZERO);
        let now = || begin + time.get();
        let looked = Cell::new(0);
        let mut names = Names::default();
        let mut find = |address: &str, found: io::Result<&str>| {
            let look_up = || {
                looked.set(looked.get() + 1);
                found.map(|found| vec![found.parse().unwrap()])
            };
            names.find(address, now, look_up).map(|found| found[0].to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(find("n1:7", Ok("10.0.0.1:7")), Ok("10.0.0.1:7".into()));
        assert_eq!(find("n1:8", Ok("10.0.0.2:8")), Ok("10.0.0.1:8".into()));
        let missing = || io::Error::other("no such host");
        assert_eq!(find("n2:7", Err(missing())), Err("no such host".into()));
        assert_eq!(find("n2:8", Ok("10.0.0.3:8")), Err("no such host".into()));
        assert_eq!(looked.get(), 2);
        time.set(MISSED);
        assert_eq!(find("n2:8", Ok("10.0.0.3:8")), Ok("10.0.0.3:8".into()));
        time.set(KEPT);
        assert_eq!(find("n1:8", Ok("10.0.0.2:8")), Ok("10.0.0.2:8".into()));
        assert_eq!(looked.get(), 4);
        assert_eq!(find("[fe80::1]:7", Ok("[fe80::1]:7")), Ok("[fe80::1]:7".into()));
    }

    #[test]
    fn names_and_addresses_have_addresses() {
        let until = Instant::now() + LONGEST;
        assert_eq!(addresses("[::1]:7", until).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert!(addresses("localhost:7", until).unwrap().iter().all(|address| address.ip().is_loopback()));
        for (found, words) in [
            (Ok(Vec::new()), "has no address"),
            (Err(io::Error::other("no such host")), "cannot be looked up: no such host"),
        ] {
            let error = look_up("n1:7", until, move || found).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
