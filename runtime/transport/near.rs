//! Which PEs are on one node: those that pass descriptors of memory to each other. Names alone do
//! not tell: two containers may have one network, and still be kept apart by their users or by the
//! system's rules.
//!
//! A PE that is slow is not on another node. What has to be there is made before any PE connects, a
//! PE tries again until the job's own deadline, and only a refusal counts: of the connection, of
//! the user, or of the descriptor.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use oxshmem_system::Error;
use oxshmem_system::fdpass::{Connection, Listener, Received};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::MemfdFlags;

use crate::Result;
use crate::bootstrap::{Bootstrap, raise_file_limit};

/// How long a PE that waits for the first of its node does not look whether the job has failed.
const LOOK: Duration = Duration::from_secs(1);
/// Pause before a PE connects again.
const PAUSE: Duration = Duration::from_millis(10);
/// Processes that have connected and not said anything, at a time.
const MOST_SILENT: usize = 256;
/// How long a silent process has its place where others want it.
const SILENCE: Duration = Duration::from_secs(1);
/// What the first PE of a node says: a descriptor comes with this, or none has arrived.
const TAKE: u8 = 1;
const NONE_CAME: u8 = 0;

/// The nodes of a job. Every PE knows the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// By PE: the first PE of its node.
    first: Vec<usize>,
}

impl Nodes {
    /// Finds the nodes: among PEs that may be on one by their names, each passes a descriptor to
    /// the first of them, and gets one from it. Those that cannot are another node, among which
    /// this is repeated. `limit` is how long a PE may take. Collective.
    ///
    /// # Errors
    /// The job has failed, this process cannot listen or has no free descriptor, or a PE takes
    /// longer.
    pub(crate) fn find(bootstrap: &Bootstrap, limit: Duration) -> Result<Self> {
        let me = bootstrap.rank() as usize;
        let names: Vec<&str> = bootstrap.peers().iter().map(|peer| peer.node.as_str()).collect();
        let mut nodes = Self::by_name(&names);
        let candidates = nodes.clone();
        let mut settled: Vec<bool> = (0..names.len()).map(|pe| nodes.members(pe).len() == 1).collect();
        while settled.contains(&false) {
            // The first of each group of PEs that are left.
            for pe in 0..names.len() {
                let left = |other: &usize| !settled[*other] && candidates.is_one(*other, pe);
                if !settled[pe] {
                    nodes.first[pe] = (0..=pe).find(left).unwrap_or(pe);
                }
            }
            let first = nodes.first[me];
            let name = format!("oxshmem-near-{}-{first}", bootstrap.job_name());
            let found = if settled[me] {
                bootstrap.barrier("first PEs of nodes")?;
                bootstrap.allgather("nodes", &[1])?
            } else if first == me {
                let listener = with_descriptors(|| Listener::bind(&name))?;
                let host = Host { listener, own: descriptor(me)?, me };
                let abort = |error: &Error| bootstrap.abort(&format!("it cannot meet the PEs of its node: {error}"));
                host.while_serving(abort, || {
                    bootstrap.barrier("first PEs of nodes")?;
                    Ok(bootstrap.allgather("nodes", &[1])?)
                })?
            } else {
                let guest = Guest { name, own: descriptor(me)?, first, limit };
                bootstrap.barrier("first PEs of nodes")?;
                let met = guest.meet(|| bootstrap.failure().is_some())?;
                if let Err(reason) = &met {
                    let host = &bootstrap.peers()[me].host;
                    tracing::warn!(
                        "PE {me} and PE {first} are both on {host}, but share no memory: {reason}; they count as PEs of two nodes"
                    );
                }
                bootstrap.allgather("nodes", &[u8::from(met.is_ok())])?
            };
            for (pe, found) in found.iter().enumerate() {
                settled[pe] |= found == &[1];
            }
        }
        Ok(nodes)
    }

    /// Returns the nodes of PEs whose names for them are these.
    pub(super) fn by_name(names: &[&str]) -> Self {
        let mut known = std::collections::HashMap::new();
        Self { first: names.iter().enumerate().map(|(pe, name)| *known.entry(*name).or_insert(pe)).collect() }
    }

    /// Returns whether two PEs are on one node.
    pub(crate) fn is_one(&self, a: usize, b: usize) -> bool {
        self.first[a] == self.first[b]
    }

    /// Returns the first PE of the node of `pe`.
    pub(crate) fn first_of(&self, pe: usize) -> usize {
        self.first[pe]
    }

    /// Returns the PEs of the node of `pe`, ascending, `pe` included.
    pub(crate) fn members(&self, pe: usize) -> Vec<usize> {
        (0..self.first.len()).filter(|other| self.is_one(*other, pe)).collect()
    }

    /// Returns the PEs with the number that `pe` has among those of its node, of each node that has
    /// so many, ascending.
    pub(crate) fn with_the_number_of(&self, pe: usize) -> Vec<usize> {
        // By the first PE of each node: its PEs so far.
        let mut counts = vec![0usize; self.first.len()];
        let numbers: Vec<usize> = self
            .first
            .iter()
            .map(|first| {
                counts[*first] += 1;
                counts[*first]
            })
            .collect();
        (0..numbers.len()).filter(|other| numbers[*other] == numbers[pe]).collect()
    }

    /// Returns whether each node has a single PE.
    pub(super) fn are_of_one_each(&self) -> bool {
        self.first.iter().enumerate().all(|(pe, first)| pe == *first)
    }

    /// Returns whether all PEs are on one node.
    pub(crate) fn is_single(&self) -> bool {
        self.first.iter().all(|first| *first == 0)
    }
}

/// Returns a descriptor of memory that says which PE made it.
fn descriptor(pe: usize) -> oxshmem_system::Result<OwnedFd> {
    let os = |errno| Error::os("create memory to pass to other PEs", errno);
    let memory = with_descriptors(|| rustix::fs::memfd_create("oxshmem-near", MemfdFlags::CLOEXEC).map_err(os))?;
    rustix::io::pwrite(&memory, &(pe as u64).to_le_bytes(), 0).map_err(os)?;
    Ok(memory)
}

/// Does it once more with a higher limit if it lacks a descriptor.
fn with_descriptors<T>(mut make: impl FnMut() -> oxshmem_system::Result<T>) -> oxshmem_system::Result<T> {
    match make() {
        Err(Error::FileLimit { .. }) if raise_file_limit() => make(),
        made => made,
    }
}

/// Returns an error if this process has no free descriptor.
fn check_free(fd: impl AsFd) -> oxshmem_system::Result<()> {
    let taken = rustix::io::fcntl_dupfd_cloexec(fd, 0);
    taken.map(drop).map_err(|errno| Error::os("take the descriptor of memory of another PE", errno))
}

/// Returns which PE made the memory whose descriptor has arrived.
fn made_by(received: &Received) -> std::result::Result<u64, String> {
    let [memory] = &received.fds[..] else { return Err("no descriptor arrived".into()) };
    let mut bytes = [0; 8];
    match rustix::io::pread(memory, &mut bytes, 0) {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(_) => Err("the memory of the descriptor is empty".into()),
        Err(errno) => Err(format!("the memory of the descriptor cannot be read: {errno}")),
    }
}

/// A PE that is not the first of its node.
struct Guest {
    /// The socket of the first one.
    name: String,
    own: OwnedFd,
    first: usize,
    limit: Duration,
}

impl Guest {
    /// Passes a descriptor to the first PE, and takes one of it, unless the job has `failed`
    /// meanwhile. The inner error says why these two share no memory.
    fn meet(&self, failed: impl Fn() -> bool) -> oxshmem_system::Result<std::result::Result<(), String>> {
        let until = Instant::now() + self.limit;
        let is_over = || failed() || Instant::now() >= until;
        loop {
            if let Some(met) = with_descriptors(|| self.exchange(is_over))? {
                return Ok(met);
            }
            if failed() {
                return Ok(Err("the job has failed".into()));
            }
            if Instant::now() >= until {
                let what = format!(
                    "passing memory to PE {} of this node, at @{}, where OXSHMEM_BOOTSTRAP_TIMEOUT is the limit,",
                    self.first, self.name
                );
                return Err(Error::Timeout { what, limit: self.limit });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Tries once. Returns nothing if another try may come to something else.
    fn exchange(&self, is_over: impl Fn() -> bool) -> oxshmem_system::Result<Option<std::result::Result<(), String>>> {
        let connection = match Connection::connect(&self.name, LOOK) {
            Ok(connection) => connection,
            Err(error) => return refusal(error),
        };
        if let Err(error) = connection.send(&[TAKE], &[self.own.as_fd()], LOOK) {
            return refusal(error);
        }
        let mut word = [TAKE];
        let received = loop {
            match connection.recv(&mut word, LOOK) {
                Err(Error::Timeout { .. }) if !is_over() => {}
                Ok(received) => break received,
                Err(Error::FileLimit { .. }) => {
                    // The system may also keep back a descriptor that would find a place.
                    check_free(&connection)?;
                    return Ok(Some(Err("the system passes no descriptor from it".into())));
                }
                Err(error) => return refusal(error),
            }
        };
        Ok(match (received.len, word) {
            (0, _) => None,
            (_, [NONE_CAME]) => Some(Err("the system passes no descriptor to it".into())),
            _ => Some(made_by(&received).and_then(|by| {
                if by == self.first as u64 { Ok(()) } else { Err(format!("its descriptor is of PE {by}")) }
            })),
        })
    }
}

/// Says what an error of a connection means: another try, the end, or that two PEs share no memory.
fn refusal(error: Error) -> oxshmem_system::Result<Option<std::result::Result<(), String>>> {
    match error {
        Error::Timeout { .. } => Ok(None),
        Error::Os { ref source, .. }
            if matches!(
                source.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected
            ) =>
        {
            Ok(None)
        }
        Error::FileLimit { .. } => Err(error),
        other => Ok(Some(Err(other.to_string()))),
    }
}

/// The first PE of a node.
struct Host {
    listener: Listener,
    own: OwnedFd,
    me: usize,
}

impl Host {
    /// Has a thread take descriptors and give its own for them while `work` runs. Calls `abort` if
    /// that cannot go on, which must end `work`.
    fn while_serving<T>(self, abort: impl FnOnce(&Error) + Send, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let end = with_descriptors(|| {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|errno| Error::os("create an eventfd", errno))
        })?;
        let serving = Serving { host: self, silent: Vec::new(), short: false };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("oxshmem-near".into())
                .spawn_scoped(scope, || serving.run(&end).inspect_err(abort))
                .map_err(|error| Error::os("start a thread", error))?;
            let outcome = work();
            // Cannot fail: the counter is far from full.
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
            match thread.join() {
                Ok(served) => served?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            outcome
        })
    }
}

/// The thread of the first PE.
struct Serving {
    host: Host,
    /// Connections on which nothing has come, with when they were accepted.
    silent: Vec<(Connection, Instant)>,
    /// No descriptor is free until one of them is closed.
    short: bool,
}

impl Serving {
    fn run(mut self, end: &OwnedFd) -> oxshmem_system::Result<()> {
        loop {
            let is_full = self.short || self.silent.len() >= MOST_SILENT;
            let wanted = if is_full { PollFlags::empty() } else { PollFlags::IN };
            let mut fds = vec![PollFd::new(end, PollFlags::IN), PollFd::new(&self.host.listener, wanted)];
            fds.extend(self.silent.iter().map(|(connection, _)| PollFd::new(connection, PollFlags::IN)));
            let oldest = self.silent.first().filter(|_| is_full).map(|(_, since)| *since + SILENCE);
            let limit = oldest.map(|at| at.saturating_duration_since(Instant::now()));
            let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
            match poll(&mut fds, limit.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Error::os("wait for the PEs of this node", errno)),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            let now = Instant::now();
            let before = self.silent.len();
            for ((connection, since), speaks) in std::mem::take(&mut self.silent).into_iter().zip(&ready[2..]) {
                if *speaks {
                    if let Err(reason) = self.serve(&connection) {
                        tracing::warn!(
                            pe = self.host.me,
                            reason,
                            "a process of this machine shares no memory with this PE"
                        );
                    }
                } else if !is_full || now < since + SILENCE {
                    self.silent.push((connection, since));
                }
                // Else it makes room. A PE connects again.
            }
            self.short &= self.silent.len() == before;
            if ready[1] && !is_full {
                self.accept()?;
            }
        }
    }

    /// Accepts the processes that have connected, as far as descriptors are free.
    fn accept(&mut self) -> oxshmem_system::Result<()> {
        while self.silent.len() < MOST_SILENT {
            // One descriptor more is free than the connection takes, for the one that comes.
            let accepted = self.host.listener.accept(Duration::ZERO);
            let accepted = accepted.and_then(|connection| check_free(&connection).map(|()| connection));
            match accepted {
                Ok(connection) => self.silent.push((connection, Instant::now())),
                Err(Error::Timeout { .. }) => return Ok(()),
                Err(Error::FileLimit { .. }) if raise_file_limit() => {}
                Err(Error::FileLimit { .. }) if !self.silent.is_empty() => {
                    self.short = true;
                    return Ok(());
                }
                Err(Error::Protocol { detail, .. }) => {
                    tracing::warn!(
                        pe = self.host.me,
                        reason = detail,
                        "a process of this machine shares no memory with this PE"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes the descriptor of a process, and gives this PE's for it.
    fn serve(&self, connection: &Connection) -> std::result::Result<(), String> {
        let text = |error: Error| error.to_string();
        let outcome = match connection.try_recv(&mut [0; 1]) {
            Ok(None) => Err("it said nothing".into()),
            Ok(Some(received)) if received.len == 0 => return Err("it closed the connection".into()),
            Ok(Some(received)) => made_by(&received),
            Err(error @ Error::FileLimit { .. }) => {
                // It connects again if this process had no place for its descriptor.
                check_free(connection).map_err(text)?;
                Err(text(error))
            }
            Err(error) => Err(text(error)),
        };
        match outcome {
            Ok(_) => connection.try_send(&[TAKE], &[self.host.own.as_fd()]).map(drop).map_err(text),
            Err(reason) => {
                connection.try_send(&[NONE_CAME], &[]).map_err(text)?;
                Err(reason)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pes_are_of_the_node_that_has_their_name() {
        let nodes = Nodes::by_name(&["b", "a", "b", "c", "a"]);
        assert_eq!((nodes.members(2), nodes.members(1), nodes.members(3)), (vec![0, 2], vec![1, 4], vec![3]));
        assert!(nodes.is_one(1, 4) && !nodes.is_one(0, 1) && !nodes.is_single());
        assert!(Nodes::by_name(&["x"; 3]).is_single());
        assert!(Nodes::by_name(&["x", "y"]).are_of_one_each() && !nodes.are_of_one_each());
    }

    /// Long enough that only a hang reaches it.
    const PATIENT: Duration = Duration::from_secs(60);

    fn host(name: &str, me: usize) -> Host {
        Host { listener: Listener::bind(name).unwrap(), own: descriptor(me).unwrap(), me }
    }

    fn meet(name: &str, me: usize, first: usize) -> std::result::Result<(), String> {
        let guest = Guest { name: name.to_owned(), own: descriptor(me).unwrap(), first, limit: PATIENT };
        guest.meet(|| false).unwrap()
    }

    fn unused(what: &str) -> String {
        format!("oxshmem-near-test-{}-{what}", std::process::id())
    }

    fn is_called(connection: &Connection) -> u64 {
        made_by(&connection.recv(&mut [0; 1], PATIENT).unwrap()).unwrap()
    }

    #[test]
    fn a_pe_that_gets_no_descriptor_is_on_another_node() {
        let name = unused("none");
        host(&name, 7)
            .while_serving(
                |error| panic!("{error}"),
                || {
                    // A process that brings none gets none, and is in the way of no other.
                    let stranger = Connection::connect(&name, PATIENT).unwrap();
                    stranger.send(&[1], &[], PATIENT).unwrap();
                    let mut word = [TAKE];
                    let received = stranger.recv(&mut word, PATIENT).unwrap();
                    assert_eq!((received.len, received.fds.len(), word), (1, 0, [NONE_CAME]));
                    assert_eq!(meet(&name, 8, 7), Ok(()));
                    assert!(meet(&name, 8, 6).unwrap_err().contains("of PE 7"));
                    Ok(())
                },
            )
            .unwrap();
        assert!(meet(&name, 8, 7).unwrap_err().contains("refused"));
        // One that takes no descriptor.
        let name = unused("deaf");
        let listener = Listener::bind(&name).unwrap();
        let deaf = std::thread::spawn(move || {
            let connection = listener.accept(PATIENT).unwrap();
            assert_eq!(is_called(&connection), 8);
            connection.send(&[NONE_CAME], &[], PATIENT).unwrap();
        });
        assert!(meet(&name, 8, 7).unwrap_err().contains("no descriptor to it"));
        deaf.join().unwrap();
    }

    #[test]
    fn a_slow_pe_is_on_the_node_that_it_is_on() {
        let name = unused("slow");
        host(&name, 7)
            .while_serving(
                |error| panic!("{error}"),
                || {
                    let own = descriptor(8).unwrap();
                    let slow = Connection::connect(&name, PATIENT).unwrap();
                    // It is in the way of no other, however long it takes.
                    assert_eq!(meet(&name, 9, 7), Ok(()));
                    std::thread::sleep(2 * SILENCE);
                    assert_eq!(meet(&name, 9, 7), Ok(()));
                    slow.send(&[TAKE], &[own.as_fd()], PATIENT).unwrap();
                    assert_eq!(is_called(&slow), 7);
                    Ok(())
                },
            )
            .unwrap();
        // A first PE that closes connections for want of room is asked again.
        let name = unused("full");
        let listener = Listener::bind(&name).unwrap();
        let full = std::thread::spawn(move || {
            for _ in 0..3 {
                drop(listener.accept(PATIENT).unwrap());
            }
            let own = descriptor(7).unwrap();
            let connection = listener.accept(PATIENT).unwrap();
            assert_eq!(is_called(&connection), 8);
            connection.send(&[TAKE], &[own.as_fd()], PATIENT).unwrap();
        });
        assert_eq!(meet(&name, 8, 7), Ok(()));
        full.join().unwrap();
    }

    #[test]
    fn silent_processes_make_room() {
        let name = unused("crowd");
        host(&name, 7)
            .while_serving(
                |error| panic!("{error}"),
                || {
                    let silent: Vec<_> =
                        (0..MOST_SILENT + 3).map(|_| Connection::connect(&name, PATIENT).unwrap()).collect();
                    assert_eq!(meet(&name, 8, 7), Ok(()));
                    drop(silent);
                    Ok(())
                },
            )
            .unwrap();
    }

    #[test]
    fn a_pe_that_waits_ends_with_the_job_or_its_deadline() {
        let name = unused("hung");
        let _listener = Listener::bind(&name).unwrap();
        let limit = Duration::from_millis(1);
        let guest = Guest { name, own: descriptor(8).unwrap(), first: 7, limit };
        let error = guest.meet(|| false).unwrap_err().to_string();
        assert!(error.contains("PE 7 of this node") && error.contains("OXSHMEM_BOOTSTRAP_TIMEOUT"), "{error}");
        let guest = Guest { limit: PATIENT, ..guest };
        assert_eq!(guest.meet(|| true).unwrap(), Err("the job has failed".into()));
    }
}
