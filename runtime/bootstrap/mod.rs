//! Bootstrap: how the PEs of a job find each other, exchange addresses, and learn that one of them
//! is gone.
//!
//! A tree: one [`Hub`], run by the launcher or by the process that created a [`UniqueId`], one TCP
//! connection from each node, which the PE has that leads the node (`leader.rs`), and a unix socket
//! from each other PE to it. PEs that can reach the hub on their own machine alone are connected to
//! it themselves. Both ends prove that they know the job's secret, which is never
//! sent (`gate.rs`). Frames carry magic, version, generation, op and sequence (see `frame.rs`), so
//! PEs that disagree get an error that names both sides. Every wait has a deadline, and when it
//! passes the ranks that did not arrive are named. A PE whose connection breaks before it has
//! finalized is announced to all others at once, whether or not they are waiting.
//!
//! A job fails as a whole and for good: after a failure every collective returns it at once, and a
//! PE that joins later gets it too. Initialising again after an orderly finalize is legal any
//! number of times, from the same or from new processes.
//!
//! ```
//! use oxshmem::bootstrap::{Bootstrap, UniqueId};
//! use oxshmem::config::Config;
//!
//! // One process creates the id; the others get its text, here as threads.
//! let id = UniqueId::create()?.to_string();
//! let pe = |rank: u32| -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>> {
//!     let config = Config::builder().unique_id(&id.parse()?, rank, 2).build()?;
//!     let bootstrap = Bootstrap::connect(&config)?;
//!     let all = bootstrap.allgather("names", format!("PE {rank}").as_bytes())?;
//!     bootstrap.finalize()?;
//!     Ok(all)
//! };
//! std::thread::scope(|scope| {
//!     scope.spawn(|| pe(1));
//!     assert_eq!(pe(0).unwrap(), [b"PE 0", b"PE 1"]);
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admission;
pub(crate) mod calls;
mod client;
mod crowd;
mod error;
mod failure;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod group;
mod handout;
mod hub;
pub(crate) mod interfaces;
pub(crate) mod job;
mod join;
#[doc(hidden)]
pub mod launcher;
mod leader;
mod munge;
mod pauses;
mod peer;
mod places;
mod resolve;
mod session;
mod sockets;
mod stream;
mod text;
mod unique_id;
mod wire;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[doc(hidden)]
pub use admission::Admission;
#[doc(hidden)]
pub use crowd::Crowd;
pub use error::BootstrapError;
#[doc(hidden)]
pub use failure::FailureCallback;
pub use failure::{Failure, FailureKind};
#[doc(hidden)]
pub use frame::{FrameError, MAX_CONTRIBUTION, MAX_GROUP_CONTRIBUTION, MAX_KEY, MAX_LABEL, MAX_RESULT};
#[doc(hidden)]
pub use hub::{Hub, HubOptions};
pub use job::{JobId, JobName, Rendezvous};
#[doc(hidden)]
pub use peer::Peer;
#[doc(hidden)]
pub use places::Places;
pub(crate) use sockets::raise_file_limit;
pub(crate) use unique_id::start_hub;
pub use unique_id::{BROADCAST_BYTES, UniqueId};

use crate::config::Config;
use calls::Calls;
use client::Client;
use failure::{FailureCell, aborted, lock};
use frame::Arrival;
pub(crate) use text::{cut, list};

impl JobId {
    /// Returns a new secret.
    ///
    /// # Errors
    /// The system has no randomness to give.
    ///
    /// ```
    /// use oxshmem::bootstrap::JobId;
    ///
    /// assert_ne!(JobId::random()?, JobId::random()?);
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn random() -> Result<Self, BootstrapError> {
        let bytes = oxshmem_system::challenge::random().map_err(io::Error::other);
        bytes.map(Self).map_err(BootstrapError::system("drawing the job's secret"))
    }
}

/// This PE's place in a job.
///
/// Dropping it without [`Bootstrap::finalize`] ends the job with an error at every other PE, as the
/// death of this PE would: the others would otherwise wait for it until a deadline.
#[doc(hidden)]
pub struct Bootstrap {
    rank: u32,
    npes: u32,
    job: JobId,
    link: Link,
}

enum Link {
    /// A job of one PE, without sockets.
    Single {
        peers: Vec<Peer>,
        failure: FailureCell,
        finalized: Mutex<bool>,
    },
    Hub(Client),
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrap")
            .field("rank", &self.rank)
            .field("npes", &self.npes)
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

impl Bootstrap {
    /// Joins the job that `config` names (by oxrun's variables or a unique id), or else the one
    /// that the launcher of this process has started, and waits until every PE has joined. Without
    /// either, this is a job of one PE.
    ///
    /// # Errors
    /// A launcher's variables cannot be used; the hub cannot be reached or refuses this PE; or not
    /// every PE joins before `OXSHMEM_BOOTSTRAP_TIMEOUT`: the missing ones are named.
    pub fn connect(config: &Config) -> Result<Self, BootstrapError> {
        let timeout = config.bootstrap_timeout();
        let deadline = Instant::now() + timeout;
        let Some(place) = launcher::place(config, deadline)? else {
            let link = Link::Single {
                peers: vec![Peer::this().on(config.node())],
                failure: FailureCell::default(),
                finalized: Mutex::new(false),
            };
            return Ok(Self { rank: 0, npes: 1, job: JobId::random()?, link });
        };
        // A rendezvous that only this machine reaches gains nothing by leaders, unless it plays
        // several nodes.
        let by_node = place.npes > 1 && (!place.rendezvous.is_local() || !config.node().is_empty());
        let peer = Peer::this().on(config.node());
        let client = Client::join(&place, (timeout, deadline), meeting_timeout(config), peer, by_node)?;
        Ok(Self { rank: place.rank, npes: place.npes, job: place.job, link: Link::Hub(client) })
    }

    /// Returns this PE's number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of PEs in the job.
    pub fn size(&self) -> u32 {
        self.npes
    }

    /// Returns the job's public name.
    pub fn job_name(&self) -> JobName {
        self.job.name()
    }

    /// Returns the job's secret.
    pub fn job_id(&self) -> JobId {
        self.job
    }

    /// Returns this node's address by which the rendezvous was reached.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        match &self.link {
            Link::Single { .. } => None,
            Link::Hub(client) => client.local_address(),
        }
    }

    /// Returns every PE's process and machine, by rank.
    pub fn peers(&self) -> &[Peer] {
        match &self.link {
            Link::Single { peers, .. } => peers,
            Link::Hub(client) => client.peers(),
        }
    }

    /// Returns the ranks on this PE's node, its own included, ascending: those that can pass file
    /// descriptors to each other.
    pub fn node_peers(&self) -> Vec<u32> {
        let peers = self.peers();
        let node = &peers[self.rank as usize].node;
        (0..self.npes).filter(|rank| peers[*rank as usize].node == *node).collect()
    }

    /// Gives every PE the bytes that each contributed, by rank; lengths may differ. Collective:
    /// every PE calls it with the same `label`, which says in error messages what the exchange is
    /// for.
    ///
    /// # Errors
    /// The job has failed: a PE died or did not arrive before the deadline, or PEs called different
    /// collectives. `data` or `label` above the limit [`MAX_CONTRIBUTION`] or [`MAX_LABEL`] is
    /// refused here and leaves the job as it was; a result above [`MAX_RESULT`] fails the job.
    pub fn allgather(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        check_length("label of an allgather", label.len(), MAX_LABEL)?;
        check_length(&format!("contribution to allgather ({label})"), data.len(), MAX_CONTRIBUTION)?;
        match &self.link {
            Link::Single { .. } => self.single("allgather").map(|()| vec![data.to_vec()]),
            Link::Hub(client) => client.allgather(label, data),
        }
    }

    /// Gives every PE what each has for it, by rank: of a contribution that is cut into as many
    /// equal parts as there are PEs, part i goes to PE i. All contributions are equally long. What
    /// a PE receives grows with the number of PEs, not with its square as by
    /// [`allgather`](Bootstrap::allgather). Collective, as that.
    ///
    /// # Errors
    /// As [`Bootstrap::allgather`], and if lengths differ or cannot be cut.
    pub fn alltoall(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        check_length("label of an alltoall", label.len(), MAX_LABEL)?;
        check_length(&format!("contribution to alltoall ({label})"), data.len(), MAX_CONTRIBUTION)?;
        match &self.link {
            Link::Single { .. } => self.single("alltoall").map(|()| vec![data.to_vec()]),
            Link::Hub(client) => client.alltoall(label, data),
        }
    }

    /// Returns once every PE has called it. Collective, as [`Bootstrap::allgather`].
    ///
    /// # Errors
    /// Fails like [`Bootstrap::allgather`].
    pub fn barrier(&self, label: &str) -> Result<(), BootstrapError> {
        check_length("label of a barrier", label.len(), MAX_LABEL)?;
        match &self.link {
            Link::Single { .. } => self.single("barrier"),
            Link::Hub(client) => client.barrier(label),
        }
    }

    /// Gives every member of a group what each contributed, by its number in the group, with its
    /// rank. Collective among the members: those that pass the same `key`, as many as `size` says,
    /// each with another `index` below that. No other PE takes part, and gathers with different
    /// keys do not wait for each other. `label` says in error messages what it is for.
    ///
    /// # Errors
    /// [`BootstrapError::Disbanded`] at every member: one did not arrive before the deadline, two
    /// came with one index, or they disagree on size or label. Otherwise as
    /// [`Bootstrap::allgather`], with the limits [`MAX_KEY`], [`MAX_LABEL`] and
    /// [`MAX_GROUP_CONTRIBUTION`].
    pub fn gather(
        &self,
        key: &[u8],
        label: &str,
        (index, size): (u32, u32),
        data: &[u8],
    ) -> Result<Vec<(u32, Vec<u8>)>, BootstrapError> {
        check_length("label of a gather", label.len(), MAX_LABEL)?;
        check_length(&format!("key of the gather ({label})"), key.len(), MAX_KEY)?;
        check_length(&format!("contribution to the gather ({label})"), data.len(), MAX_GROUP_CONTRIBUTION)?;
        let arrival = Arrival { key: key.to_vec(), label: label.to_owned(), size, index, data: data.to_vec() };
        match &self.link {
            Link::Single { .. } => {
                self.single("gather")?;
                group::alone(arrival)
            }
            Link::Hub(client) => client.gather(arrival),
        }
    }

    /// Ends the job: every other PE's pending and later collectives fail with `reason`, cut to 900
    /// bytes. Does nothing when the job has failed already or this PE has finalized.
    pub fn abort(&self, reason: &str) {
        self.end(None, reason);
    }

    fn end(&self, status: Option<i32>, reason: &str) {
        match &self.link {
            Link::Single { failure, finalized, .. } => {
                if !*lock(finalized) {
                    failure.set(aborted(self.rank, status, reason));
                }
            }
            Link::Hub(client) => client.abort(status, reason),
        }
    }

    /// Registers what to do when the job fails, in place of an earlier registration. Called once,
    /// from the thread that notices the failure, which may be an internal one; or from here, when
    /// the job has failed already. It must not block.
    pub fn on_failure(&self, callback: FailureCallback) {
        match &self.link {
            Link::Single { failure, .. } => failure.on_failure(callback),
            Link::Hub(client) => client.failure_cell().on_failure(callback),
        }
    }

    /// Ends the job as [`abort`](Self::abort) does, with a status for every process
    /// ([`Failure::exit_status`]).
    pub fn exit(&self, status: i32, reason: &str) {
        self.end(Some(status), reason);
    }

    /// Returns why the job has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        match &self.link {
            Link::Single { failure, .. } => failure.get(),
            Link::Hub(client) => client.failure_cell().get(),
        }
    }

    /// Returns how far this PE's calls at the rendezvous have come; a job of one PE makes none.
    pub(crate) fn calls(&self) -> Arc<Calls> {
        match &self.link {
            Link::Single { .. } => Arc::default(),
            Link::Hub(client) => client.calls(),
        }
    }

    /// Leaves the job in order and waits until every PE does. Collective. A second call does
    /// nothing.
    ///
    /// # Errors
    /// The job has failed, or not every PE finalizes before the deadline. This PE has left in any
    /// case.
    pub fn finalize(&self) -> Result<(), BootstrapError> {
        match &self.link {
            Link::Single { failure, finalized, .. } => {
                if std::mem::replace(&mut *lock(finalized), true) {
                    return Ok(());
                }
                failure.get().map_or(Ok(()), |failure| Err(BootstrapError::Failed(failure)))
            }
            Link::Hub(client) => client.finalize(),
        }
    }

    fn single(&self, what: &'static str) -> Result<(), BootstrapError> {
        match &self.link {
            Link::Single { finalized, .. } if *lock(finalized) => Err(BootstrapError::Finalized(what)),
            _ => self.failure().map_or(Ok(()), |failure| Err(BootstrapError::Failed(failure))),
        }
    }
}

/// Returns how long PEs wait for each other in a call that all, or the members of a team, make.
pub(crate) fn meeting_timeout(config: &Config) -> Duration {
    config.meeting_timeout().unwrap_or_else(|| config.timeout().max(config.bootstrap_timeout()))
}

fn check_length(what: &str, length: usize, limit: usize) -> Result<(), BootstrapError> {
    if length <= limit { Ok(()) } else { Err(BootstrapError::TooLong { what: what.to_owned(), length, limit }) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn calls_wait_for_the_longer_of_two_deadlines_unless_they_have_one() {
        let seconds = Duration::from_secs;
        let built = |timeout, joining| Config::builder().timeout(seconds(timeout)).bootstrap_timeout(seconds(joining));
        assert_eq!(meeting_timeout(&built(30, 60).build().unwrap()), seconds(60));
        assert_eq!(meeting_timeout(&built(3600, 60).build().unwrap()), seconds(3600));
        assert_eq!(meeting_timeout(&built(30, 60).meeting_timeout(seconds(1)).build().unwrap()), seconds(1));
    }
}
