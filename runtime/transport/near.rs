//! Which PEs are on one node: those that pass descriptors of memory to each other. Names alone do
//! not tell: two containers may have one network, and still be kept apart by their users or by the
//! system's rules.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use oxshmem_system::fdpass::{Connection, Listener, Received};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::MemfdFlags;

use crate::Result;
use crate::bootstrap::Bootstrap;

/// How long two PEs of one machine may take to pass a descriptor.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the first PE of a node waits for what a PE that has connected says.
const WORD: Duration = Duration::from_secs(1);

/// The nodes of a job. Every PE knows the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// By PE: the first PE of its node.
    first: Vec<usize>,
}

impl Nodes {
    /// Finds the nodes: among PEs that may be on one by their names, each passes a descriptor to
    /// the first of them, and gets one from it. Those that cannot are another node, among which
    /// this is repeated. Collective.
    ///
    /// # Errors
    /// The job has failed, or this process cannot listen.
    pub(crate) fn find(bootstrap: &Bootstrap) -> Result<Self> {
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
                let listener = Listener::bind(&name)?;
                let own = descriptor(me)?;
                while_serving(&listener, &own, me, || {
                    bootstrap.barrier("first PEs of nodes")?;
                    Ok(bootstrap.allgather("nodes", &[1])?)
                })?
            } else {
                bootstrap.barrier("first PEs of nodes")?;
                let met = meet(&name, me, first);
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

    /// Returns the PEs of the node of `pe`, ascending, `pe` included.
    pub(crate) fn members(&self, pe: usize) -> Vec<usize> {
        (0..self.first.len()).filter(|other| self.is_one(*other, pe)).collect()
    }

    /// Returns whether all PEs are on one node.
    pub(crate) fn is_single(&self) -> bool {
        self.first.iter().all(|first| *first == 0)
    }
}

/// Returns a descriptor of memory that says which PE made it.
fn descriptor(pe: usize) -> oxshmem_system::Result<OwnedFd> {
    let os = |errno| oxshmem_system::Error::os("create memory to pass to other PEs", errno);
    let memory = rustix::fs::memfd_create("oxshmem-near", MemfdFlags::CLOEXEC).map_err(os)?;
    rustix::io::pwrite(&memory, &(pe as u64).to_le_bytes(), 0).map_err(os)?;
    Ok(memory)
}

/// Returns which PE made the memory whose descriptor has arrived.
fn made_by(received: &Received) -> std::result::Result<u64, String> {
    if received.len == 0 {
        return Err("it closed the connection".into());
    }
    let [memory] = &received.fds[..] else { return Err("no descriptor arrived".into()) };
    let mut bytes = [0; 8];
    match rustix::io::pread(memory, &mut bytes, 0) {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(_) => Err("the memory of the descriptor is empty".into()),
        Err(errno) => Err(format!("the memory of the descriptor cannot be read: {errno}")),
    }
}

/// Passes a descriptor to PE `first` at the socket `name`, and takes one of it.
fn meet(name: &str, me: usize, first: usize) -> std::result::Result<(), String> {
    let text = |error: oxshmem_system::Error| error.to_string();
    let connection = Connection::connect(name, LIMIT).map_err(text)?;
    connection.send(&[1], &[descriptor(me).map_err(text)?.as_fd()], LIMIT).map_err(text)?;
    let by = made_by(&connection.recv(&mut [0; 1], LIMIT).map_err(text)?)?;
    if by == first as u64 { Ok(()) } else { Err(format!("its descriptor is of PE {by}")) }
}

/// Has a thread take descriptors and give `own` for them while `work` runs.
fn while_serving<T>(listener: &Listener, own: &OwnedFd, me: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| oxshmem_system::Error::os("create an eventfd", errno))?;
    std::thread::scope(|scope| {
        let serve = || {
            loop {
                let mut fds = [PollFd::new(&end, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return tracing::error!(%errno, "cannot wait for the PEs of this node"),
                }
                let [ended, called] = [&fds[0], &fds[1]].map(|fd| !fd.revents().is_empty());
                if ended {
                    return;
                }
                if called && let Err(reason) = serve_one(listener, own) {
                    tracing::warn!(pe = me, reason, "a process of this machine shares no memory with this PE");
                }
            }
        };
        std::thread::Builder::new()
            .name("oxshmem-near".into())
            .spawn_scoped(scope, serve)
            .map_err(|error| oxshmem_system::Error::os("start a thread", error))?;
        let outcome = work();
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
        outcome
    })
}

/// Takes the descriptor of a process that has connected, and gives `own` for it.
fn serve_one(listener: &Listener, own: &OwnedFd) -> std::result::Result<(), String> {
    let text = |error: oxshmem_system::Error| error.to_string();
    let connection = match listener.accept(Duration::ZERO) {
        Err(oxshmem_system::Error::Timeout { .. }) => return Ok(()),
        accepted => accepted.map_err(text)?,
    };
    made_by(&connection.recv(&mut [0; 1], WORD).map_err(text)?)?;
    connection.send(&[1], &[own.as_fd()], WORD).map_err(text)
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
    }

    #[test]
    fn a_pe_that_gets_no_descriptor_is_on_another_node() {
        let name = format!("oxshmem-near-test-{}", std::process::id());
        let listener = Listener::bind(&name).unwrap();
        let own = descriptor(7).unwrap();
        while_serving(&listener, &own, 7, || {
            // A process that brings none gets none, and is in the way of no other.
            let stranger = Connection::connect(&name, LIMIT).unwrap();
            stranger.send(&[1], &[], LIMIT).unwrap();
            assert!(made_by(&stranger.recv(&mut [0; 1], LIMIT).unwrap()).unwrap_err().contains("closed"));
            assert_eq!(meet(&name, 8, 7), Ok(()));
            assert!(meet(&name, 8, 6).unwrap_err().contains("of PE 7"));
            Ok(())
        })
        .unwrap();
        drop(listener);
        assert!(meet(&name, 8, 7).is_err());
    }
}
