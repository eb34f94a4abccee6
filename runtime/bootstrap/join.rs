//! The way into a job: straight to the hub, or through the PE that leads this node.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::BootstrapError;
use super::frame::{FrameError, Message, Way};
use super::gate::Knock;
use super::launcher::Place;
use super::leader;
use super::pauses::Pauses;
use super::peer::Peer;
use super::resolve::Names;
use super::stream::{self, Channel};
use super::wire::{Wire, WireError, write_all};

/// How long the hub may take to answer a HELLO. A HELLO never waits for other work.
const ANSWER: Duration = Duration::from_secs(10);
/// Pause between attempts to find the leader of this node, which is at most about to end.
const NEAR: Duration = Duration::from_millis(5);
/// Attempts in which the other side may close the connection instead of accepting the proof. One
/// that is about to end closes what it has accepted, and accepts nothing more; a stranger does it
/// each time.
const TURNS: u32 = 3;

/// A PE's attempt to join before the deadline.
#[derive(Debug)]
pub struct Attempt<'a> {
    pub place: &'a Place,
    /// What was allowed for it, for messages.
    pub timeout: Duration,
    pub deadline: Instant,
    /// The frame that the PE begins with.
    pub hello: &'a [u8],
}

/// A PE that has been let in.
#[derive(Debug)]
pub struct Admitted {
    // Ends before the thread is waited for.
    pub wire: Wire,
    /// The hub's address.
    pub address: String,
    pub way: Way,
    pub leading: Option<Leading>,
}

/// The thread of a PE that leads its node. Dropping this waits until the node's other PEs have been
/// told of the end, for a few seconds at most; the PE's own connection must have ended before.
#[derive(Debug)]
pub struct Leading(Option<JoinHandle<()>>);

impl Drop for Leading {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // An error means that it has panicked, which has been reported.
            let _ = thread.join();
        }
    }
}

/// What a PE knows from its earlier attempts to find the hub.
#[derive(Debug, Default)]
struct Search {
    names: Names,
    /// How often it was turned away.
    turns: u32,
}

/// What came of one attempt.
enum Outcome {
    In(Wire, String, u32),
    /// By a hub that may be another job's.
    Refused(BootstrapError),
    /// For this reason another attempt may succeed.
    Again(String),
}

/// Why a PE does not come in through the leader of its node.
enum NoWay {
    /// No other way helps.
    Final(BootstrapError),
    /// The leader cannot be used.
    Direct(String),
    /// It is ending, or not there yet.
    Again,
    /// It closed the connection instead of accepting the proof.
    TurnedAway(String),
}

impl Attempt<'_> {
    /// Connects to the hub.
    pub fn direct(&self) -> Result<Admitted, BootstrapError> {
        let (wire, address, _) = self.find()?;
        Ok(Admitted { wire, address, way: Way::DIRECT, leading: None })
    }

    /// Connects to the leader of this node, or becomes it.
    pub fn by_node(&self, peer: &Peer) -> Result<Admitted, BootstrapError> {
        let (rank, job) = (self.place.rank, self.place.job);
        let name = leader::name_of(job.name(), &peer.node);
        let mut turns = 0;
        let why = loop {
            match stream::listen_at(&name) {
                Ok(Some(listener)) => {
                    // The others wait in the listener's queue. If this PE is not let in, another
                    // finds the name free.
                    let (wire, address, generation) = self.find()?;
                    let Wire { stream: upstream, decoder, .. } = wire;
                    let near = upstream.local_address();
                    let start = leader::Start {
                        job,
                        rank,
                        peer: peer.clone(),
                        generation,
                        address: address.clone(),
                        listener,
                        upstream,
                        unread: decoder.into_rest(),
                    };
                    let (own, thread) = leader::start(start)?;
                    let leading = Some(Leading(Some(thread)));
                    let wire = Wire::new(Channel::Unix(own));
                    return Ok(Admitted { wire, address, way: Way::through(rank, near), leading });
                }
                Ok(None) => {}
                Err(error) => break error.to_string(),
            }
            match self.through(&name) {
                Ok(joined) => return Ok(joined),
                Err(NoWay::Final(error)) => return Err(error),
                Err(NoWay::Direct(why)) => break why,
                Err(NoWay::Again) => {}
                Err(NoWay::TurnedAway(why)) => {
                    turns += 1;
                    if turns == TURNS {
                        break why;
                    }
                }
            }
            if Instant::now() + NEAR >= self.deadline {
                break "it has not reached the rendezvous".to_owned();
            }
            std::thread::sleep(NEAR);
        };
        tracing::warn!("PE {rank} does not join through the leader of its node, @{name}: {why}");
        self.direct()
    }

    /// Makes attempts until one succeeds, one at least.
    fn find(&self) -> Result<(Wire, String, u32), BootstrapError> {
        let Place { rank, searching, ref rendezvous, .. } = *self.place;
        let mut reason = None;
        let mut refused = None;
        let mut search = Search::default();
        let mut pauses = Pauses::of(rank);
        loop {
            match self.any(&mut search)? {
                Outcome::In(wire, address, generation) => return Ok((wire, address, generation)),
                Outcome::Refused(error) if !searching => return Err(error),
                // The hub that refused may be another job's, and this job's not there yet.
                Outcome::Refused(error) => refused = Some(error),
                Outcome::Again(latest) => {
                    // An attempt that the deadline cut short says less than one before it.
                    if reason.is_none() || Instant::now() < self.deadline {
                        reason = Some(latest);
                    }
                }
            }
            let Some(pause) = pauses.next(self.deadline.saturating_duration_since(Instant::now())) else {
                let (address, timeout) = (rendezvous.to_string(), self.timeout);
                let reason = reason.unwrap_or_default();
                // A hub that has refused this PE and ended says more than the lack of one.
                return Err(refused.unwrap_or(BootstrapError::Unreachable { rank, address, timeout, reason }));
            };
            std::thread::sleep(pause);
        }
    }

    /// Makes one attempt at every address.
    fn any(&self, search: &mut Search) -> Result<Outcome, BootstrapError> {
        let Place { rank, job, ref rendezvous, .. } = *self.place;
        let mut reason = String::new();
        let mut refused = None;
        for address in rendezvous.addresses() {
            let mut wire = match search.names.connect(address, self.deadline) {
                Ok(stream) => Wire::new(Channel::Tcp(stream)),
                // No later attempt of this process succeeds either.
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                    return Err(BootstrapError::system(format!("connecting to the rendezvous at {address}"))(error));
                }
                Err(error) => {
                    reason = format!("{address}: {error}");
                    continue;
                }
            };
            let until = self.deadline.min(Instant::now() + ANSWER);
            let refusal = |reason| BootstrapError::Refused { rank, address: address.to_owned(), reason };
            match self.greet(&mut wire, until)? {
                Ok((Message::Accepted(_), generation)) => {
                    return Ok(Outcome::In(wire, address.to_owned(), generation));
                }
                Ok((Message::Failed(failure), _)) => return Err(BootstrapError::Failed(failure)),
                // Another address may lead to the right hub: the same port of another machine may
                // serve another job.
                Ok((Message::Refused { reason }, _)) | Err(WireError::Refused(reason)) => {
                    refused = Some(refusal(reason));
                }
                // It has told by the proof that this PE is of its job, so no other address is
                // right.
                Err(WireError::Bare(reason)) => return Err(refusal(self.bare(&reason))),
                Err(WireError::Frame(error @ FrameError::Version(_))) => {
                    refused = Some(refusal(format!("it speaks {error}")));
                }
                Err(WireError::Stranger(what)) => {
                    refused =
                        Some(refusal(format!("{what} the secret of job {}; it may serve another job", job.name())));
                }
                Err(error @ WireError::TurnedAway) => {
                    search.turns += 1;
                    if search.turns < TURNS {
                        reason = format!("{address}: {error} the job's secret");
                    } else {
                        let what = format!("{error} the secret of job {}; it may serve another job", job.name());
                        refused = Some(refusal(what));
                    }
                }
                Ok((other, _)) => reason = format!("{address} answered HELLO with {:?}", other.op()),
                Err(error) => reason = format!("{address}: {error}"),
            }
        }
        Ok(refused.map_or(Outcome::Again(reason), Outcome::Refused))
    }

    /// Makes one attempt through the leader of this node.
    fn through(&self, name: &str) -> Result<Admitted, NoWay> {
        let Place { rank, searching, ref rendezvous, .. } = *self.place;
        let address = rendezvous.to_string();
        let stream = stream::connect_to(name).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted => NoWay::Again,
            _ => NoWay::Direct(error.to_string()),
        })?;
        stream::is_of_this_user(&stream).map_err(|why| NoWay::Direct(format!("it {why}")))?;
        let mut wire = Wire::new(Channel::Unix(stream));
        // The leader may have to look for the hub first.
        let greeted = self.greet(&mut wire, self.deadline).map_err(NoWay::Final)?;
        let refusal = |reason| NoWay::Final(BootstrapError::Refused { rank, address: address.clone(), reason });
        match greeted {
            Ok((Message::Accepted(way), _)) => Ok(Admitted { wire, address, way, leading: None }),
            Ok((Message::Failed(failure), _)) => Err(NoWay::Final(BootstrapError::Failed(failure))),
            Ok((Message::Refused { reason }, _)) | Err(WireError::Refused(reason)) if !searching => {
                Err(refusal(reason))
            }
            Err(WireError::Frame(error @ FrameError::Version(_))) => Err(refusal(format!("it speaks {error}"))),
            Err(WireError::Stranger(what)) => Err(NoWay::Direct(format!("{what} the job's secret"))),
            Err(error @ WireError::TurnedAway) => Err(NoWay::TurnedAway(format!("{error} the job's secret"))),
            Ok((other, _)) if !matches!(other, Message::Refused { .. }) => {
                Err(NoWay::Direct(format!("it answered HELLO with {:?}", other.op())))
            }
            // Of another program, or at its end.
            _ => Err(NoWay::Again),
        }
    }

    /// Returns what a PE without a secret is told by a rendezvous that has one.
    fn bare(&self, reason: &str) -> String {
        let why = self.place.bare.as_deref().unwrap_or("it has another secret");
        format!(
            "{reason}, and this PE on {} does not have it: {why}; run munge on all nodes of the job or on none, and set \
             OXSHMEM_MUNGE and OXSHMEM_SECRET_FILE alike for all PEs",
            Peer::this().host
        )
    }

    /// Proves that this PE belongs to the job, and says HELLO. Returns the reply, and the
    /// generation in it.
    fn greet(&self, wire: &mut Wire, until: Instant) -> Result<Result<(Message, u32), WireError>, BootstrapError> {
        let knock = Knock::new(self.place.job)?;
        let reply = wire.knock(&knock, until).and_then(|()| {
            write_all(&wire.stream, self.hello, until)?;
            wire.read(Some(until))
        });
        Ok(reply.map(|frame| (frame.message, frame.generation)))
    }
}
