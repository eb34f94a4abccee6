//! Bootstrap: how the PEs of a job find each other, exchange addresses, and learn that one of them is gone.
//!
//! A star: one [`Hub`], run by the launcher or by the process that created a [`UniqueId`], and one TCP connection from each
//! PE. Frames carry magic, version, generation, op and sequence (see `frame.rs`), so PEs that disagree get an error that
//! names both sides. Every wait has a deadline, and when it passes the ranks that did not arrive are named. A PE whose
//! connection breaks before it has finalized is announced to all others at once, whether or not they are waiting.
//!
//! A job fails as a whole and for good: after a failure every collective returns it at once, and a PE that joins later gets
//! it too. Initialising again after an orderly finalize is legal any number of times, from the same or from new processes.
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

mod client;
mod frame;
pub mod fuzz;
mod group;
mod hub;
pub(crate) mod job;
mod session;
mod unique_id;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use frame::{FrameError, MAX_CONTRIBUTION, MAX_GROUP_CONTRIBUTION, MAX_KEY, MAX_LABEL, MAX_RESULT};
pub use hub::{Hub, HubOptions};
pub use job::{JobId, Rendezvous};
pub use unique_id::UniqueId;

use crate::config::Config;
use client::Client;
pub(crate) use frame::cut;
use group::Arrival;

/// Why PEs could not meet, or stopped working together.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The job has failed; every PE gets this, and so does every later call.
    #[error("{0}")]
    Failed(Failure),
    /// A gather among some PEs has failed; each of its members gets this, and the job goes on. [`Failure::ranks`] are the numbers in
    /// the gather of those that did not arrive ([`FailureKind::Missing`]), or the PEs that contradict each other
    /// ([`FailureKind::Mismatch`]).
    #[error("{0}")]
    Disbanded(Failure),
    /// No connection to the hub before the deadline.
    #[error("PE {rank}: no rendezvous at {address} within {}: {reason}; check that the launcher runs and that this address is \
        reachable from here, or raise OXSHMEM_BOOTSTRAP_TIMEOUT", Seconds(*timeout))]
    Unreachable {
        /// Who tried.
        rank: u32,
        /// The addresses tried.
        address: String,
        /// How long.
        timeout: Duration,
        /// What happened at the last attempt.
        reason: String,
    },
    /// The hub does not let this PE in.
    #[error("PE {rank}: refused by the rendezvous at {address}: {reason}")]
    Refused {
        /// Who was refused.
        rank: u32,
        /// The hub's address.
        address: String,
        /// The hub's words.
        reason: String,
    },
    /// An argument above its limit.
    #[error("{what} of {length} bytes, the limit is {limit}")]
    TooLong {
        /// The argument.
        what: String,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A call after [`Bootstrap::finalize`].
    #[error("{0} after finalize")]
    Finalized(&'static str),
    /// The operating system refused something that the bootstrap needs.
    #[error("{what}: {source}{}", crate::limits::remedy(source))]
    System {
        /// What was attempted.
        what: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
}

impl BootstrapError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source: Arc::new(source) }
    }
}

/// What kind of thing made a job fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureKind {
    /// A PE called [`Bootstrap::abort`], or dropped its [`Bootstrap`] without finalize.
    Aborted = 0,
    /// A PE's process or connection is gone.
    Lost = 1,
    /// Ranks did not arrive before a deadline.
    Missing = 2,
    /// PEs called different things.
    Mismatch = 3,
    /// The hub is gone or does not answer.
    Hub = 4,
}

impl FailureKind {
    fn from_wire(number: u8) -> Option<Self> {
        [Self::Aborted, Self::Lost, Self::Missing, Self::Mismatch, Self::Hub]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// The ranks at fault; empty when it is nobody's in particular.
    pub ranks: Vec<u32>,
    /// The whole story in one line.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl JobId {
    /// Returns a new identity.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn random() -> Result<Self, BootstrapError> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes))
            .map_err(BootstrapError::system("reading /dev/urandom for the job's identity"))?;
        Ok(Self(bytes))
    }
}

/// A PE's process and machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Process id, in its own PID namespace.
    pub pid: u32,
    /// Host name, for messages.
    pub host: String,
    /// Equal for PEs that can reach each other through abstract unix sockets, so pass file descriptors: the boot of the kernel
    /// and the network namespace.
    pub node: String,
}

impl Peer {
    /// This process.
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let host = read("/proc/sys/kernel/hostname").unwrap_or_else(|| "unknown".into());
        let boot = read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|| host.clone());
        let net =
            std::fs::read_link("/proc/self/ns/net").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default();
        Self { pid: std::process::id(), host, node: format!("{boot}/{net}") }
    }
}

/// Called when the job fails, from the thread that notices it; see [`Bootstrap::on_failure`].
pub type FailureCallback = Box<dyn Fn(&Failure) + Send + Sync>;

/// This PE's place in a job.
///
/// Dropping it without [`Bootstrap::finalize`] ends the job with an error at every other PE, as the death of this PE would:
/// the others would otherwise wait for it until a deadline.
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
    /// Joins the job that `config` names (by the launcher's variables or a unique id) and waits until every PE has joined.
    /// When it names none, this is a job of one PE.
    ///
    /// # Errors
    /// The hub cannot be reached or refuses this PE; or not every PE joins before `OXSHMEM_BOOTSTRAP_TIMEOUT`: the missing
    /// ones are named.
    pub fn connect(config: &Config) -> Result<Self, BootstrapError> {
        let (Some(rendezvous), Some(rank), Some(npes), Some(job)) =
            (config.rendezvous().as_ref(), config.rank(), config.npes(), config.job())
        else {
            let link = Link::Single {
                peers: vec![Peer::this()],
                failure: FailureCell::default(),
                finalized: Mutex::new(false),
            };
            return Ok(Self { rank: 0, npes: 1, job: JobId::random()?, link });
        };
        let client = Client::join(rendezvous, job, rank, npes, config.bootstrap_timeout())?;
        Ok(Self { rank, npes, job, link: Link::Hub(client) })
    }

    /// This PE's number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// PEs in the job.
    pub fn size(&self) -> u32 {
        self.npes
    }

    /// The job's identity.
    pub fn job_id(&self) -> JobId {
        self.job
    }

    /// Every PE's process and machine, by rank.
    pub fn peers(&self) -> &[Peer] {
        match &self.link {
            Link::Single { peers, .. } => peers,
            Link::Hub(client) => client.peers(),
        }
    }

    /// Ranks on this PE's node, its own included, ascending: those that can pass file descriptors to each other.
    pub fn node_peers(&self) -> Vec<u32> {
        let peers = self.peers();
        let node = &peers[self.rank as usize].node;
        (0..self.npes).filter(|rank| peers[*rank as usize].node == *node).collect()
    }

    /// Gives every PE the bytes that each contributed, by rank; lengths may differ. Collective: every PE calls it with the same
    /// `label`, which says in error messages what the exchange is for.
    ///
    /// # Errors
    /// The job has failed: a PE died or did not arrive before the deadline, or PEs called different collectives. `data` or
    /// `label` above the limit [`MAX_CONTRIBUTION`] or [`MAX_LABEL`] is refused here and leaves the job as it was; a result
    /// above [`MAX_RESULT`] fails the job.
    pub fn allgather(&self, label: &str, data: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        check_length("label of an allgather", label.len(), MAX_LABEL)?;
        check_length(&format!("contribution to allgather ({label})"), data.len(), MAX_CONTRIBUTION)?;
        match &self.link {
            Link::Single { .. } => self.single("allgather").map(|()| vec![data.to_vec()]),
            Link::Hub(client) => client.allgather(label, data),
        }
    }

    /// Returns once every PE has called it. Collective, as [`Bootstrap::allgather`].
    ///
    /// # Errors
    /// As [`Bootstrap::allgather`].
    pub fn barrier(&self, label: &str) -> Result<(), BootstrapError> {
        check_length("label of a barrier", label.len(), MAX_LABEL)?;
        match &self.link {
            Link::Single { .. } => self.single("barrier"),
            Link::Hub(client) => client.barrier(label),
        }
    }

    /// Gives every member of a group what each contributed, by its number in the group, with its rank. Collective among the members: those
    /// that pass the same `key`, as many as `size` says, each with another `index` below that. Nobody else takes part, and
    /// gathers with different keys do not wait for each other. `label` says in error messages what it is for.
    ///
    /// # Errors
    /// [`BootstrapError::Disbanded`] at every member: one did not arrive before the deadline, two came with one index, or they disagree on
    /// size or label. Otherwise as [`Bootstrap::allgather`], with the limits [`MAX_KEY`], [`MAX_LABEL`] and
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

    /// Ends the job: every other PE's pending and later collectives fail with `reason`, cut to 900 bytes. Does nothing
    /// when the job has failed already or this PE has finalized.
    pub fn abort(&self, reason: &str) {
        match &self.link {
            Link::Single { failure, finalized, .. } => {
                if !*lock(finalized) {
                    failure.set(aborted(self.rank, reason));
                }
            }
            Link::Hub(client) => client.abort(reason),
        }
    }

    /// Registers what to do when the job fails, in place of an earlier registration. Called once, from the thread that notices
    /// the failure, which may be an internal one; or from here, when the job has failed already. It must not block.
    pub fn on_failure(&self, callback: FailureCallback) {
        match &self.link {
            Link::Single { failure, .. } => failure.on_failure(callback),
            Link::Hub(client) => client.failure_cell().on_failure(callback),
        }
    }

    /// Why the job has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        match &self.link {
            Link::Single { failure, .. } => failure.get(),
            Link::Hub(client) => client.failure_cell().get(),
        }
    }

    /// Leaves the job in order and waits until every PE does. Collective. A second call does nothing.
    ///
    /// # Errors
    /// The job has failed, or not every PE finalizes before the deadline. This PE has left in any case.
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

fn check_length(what: &str, length: usize, limit: usize) -> Result<(), BootstrapError> {
    if length <= limit { Ok(()) } else { Err(BootstrapError::TooLong { what: what.to_owned(), length, limit }) }
}

fn aborted(rank: u32, reason: &str) -> Failure {
    // Shorter than the wire's limit for texts, so that the sentence around it fits too.
    let reason = cut(reason, 900);
    Failure { kind: FailureKind::Aborted, ranks: vec![rank], message: format!("PE {rank} aborted the job: {reason}") }
}

/// The first failure, and who is told of it.
#[derive(Default)]
struct FailureCell(Mutex<FailureState>);

#[derive(Default)]
struct FailureState {
    failure: Option<Failure>,
    callback: Option<FailureCallback>,
}

impl fmt::Debug for FailureCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailureCell").field(&self.get()).finish()
    }
}

impl FailureCell {
    fn get(&self) -> Option<Failure> {
        lock(&self.0).failure.clone()
    }

    /// Keeps `failure` unless there is one, and calls the callback the first time, with no lock held.
    fn set(&self, failure: Failure) {
        let mut state = lock(&self.0);
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(failure.clone());
        let callback = state.callback.take();
        drop(state);
        if let Some(callback) = callback {
            callback(&failure);
        }
    }

    fn on_failure(&self, callback: FailureCallback) {
        let mut state = lock(&self.0);
        match state.failure.clone() {
            None => state.callback = Some(callback),
            Some(failure) => {
                drop(state);
                callback(&failure);
            }
        }
    }
}

/// Locks, also after a panic of another holder: what these locks guard is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `1, 3 and 5`; of a long list only the beginning.
pub(crate) fn list(ranks: &[u32]) -> String {
    const SHOWN: usize = 16;
    let text: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    match text.split_last() {
        _ if ranks.len() > SHOWN => format!("{} and {} more", text.join(", "), ranks.len() - SHOWN),
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => text.concat(),
    }
}

/// A duration as messages show it.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_millis() as f64 / 1000.0)
    }
}
