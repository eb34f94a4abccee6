//! What is counted of a PE, by queue pair, peer, team, transport and card.

use std::ops::AddAssign;

use oxshmem_hca::provider::Counters as HcaCounters;
use oxshmem_proxy::thread::QueueCounters;
use serde::Serialize;

use super::trace::Origin;

/// What went some way: calls of the API, and what the network made of them.
///
/// `None` where it is not counted, which is not zero: see each.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{Operations, Traffic};
///
/// let word = pe.alloc::<u64>(1)?;
/// pe.put(&word, &[1], 0)?;
/// let to_self: &Traffic = &pe.counters()?.peers[0].traffic;
/// assert_eq!((to_self.operations, to_self.bytes), (1, 8));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Traffic {
    /// Calls of the API that go to a peer or a team: those of the host, and of device code that was
    /// compiled with `OXSHMEM_PROFILE`, while [`Counters::counts_device`].
    pub operations: u64,
    /// Bytes that these calls were to move.
    pub bytes: u64,
    /// Work requests that were executed (IBGDA, by the software HCA's thread) or posted (IBRC).
    /// `None`: a card, or the software HCA's kernel, does not tell it by queue pair.
    pub messages: Option<u64>,
    /// Payload bytes of these work requests. `None` as above.
    pub message_bytes: Option<u64>,
    /// Doorbells that were rung for them, by device code or by the proxy.
    pub doorbells: Option<u64>,
    /// CQEs that were written, those with errors included. `None` as of messages.
    pub completions: Option<u64>,
    /// CQEs with an error. `None` as of messages.
    pub errors: Option<u64>,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        let add = |all: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *all = Some(all.unwrap_or(0) + more);
            }
        };
        self.operations += other.operations;
        self.bytes += other.bytes;
        add(&mut self.messages, other.messages);
        add(&mut self.message_bytes, other.message_bytes);
        add(&mut self.doorbells, other.doorbells);
        add(&mut self.completions, other.completions);
        add(&mut self.errors, other.errors);
    }
}

impl Traffic {
    /// Returns what was staged of it, of which there are messages and bytes, and the rest. Nothing
    /// was, if nothing is known of messages.
    pub(super) fn without_staged(self, (messages, bytes): (u64, u64)) -> (Option<Self>, Self) {
        let (Some(all), Some(all_bytes)) = (self.messages, self.message_bytes) else { return (None, self) };
        // Requests that are under way are not counted by the HCA yet.
        let (messages, bytes) = (messages.min(all), bytes.min(all_bytes));
        let staged = Self { messages: Some(messages), message_bytes: Some(bytes), ..Self::default() };
        let rest = Self { messages: Some(all - messages), message_bytes: Some(all_bytes - bytes), ..self };
        ((messages > 0).then_some(staged), rest)
    }
}

impl From<HcaCounters> for Traffic {
    fn from(counted: HcaCounters) -> Self {
        Self {
            messages: Some(counted.wqes),
            message_bytes: Some(counted.bytes),
            doorbells: Some(counted.doorbells),
            completions: Some(counted.cqes),
            errors: Some(counted.errors),
            ..Self::default()
        }
    }
}

impl From<QueueCounters> for Traffic {
    fn from(counted: QueueCounters) -> Self {
        Self {
            messages: Some(counted.requests),
            message_bytes: Some(counted.bytes),
            doorbells: Some(counted.chains),
            completions: Some(counted.completions),
            errors: Some(counted.errors),
            ..Self::default()
        }
    }
}

/// Calls of one kind.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{CallCount, Operations};
///
/// pe.quiet()?;
/// let counters = pe.counters()?;
/// let quiet: Option<&CallCount> = counters.calls.iter().find(|count| count.operation == "quiet");
/// assert_eq!(quiet.map(|count| count.calls), Some(1));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CallCount {
    /// What called.
    pub origin: Origin,
    /// The call's name in the API.
    pub operation: &'static str,
    /// The peer, if data moves to or from one.
    pub pe: Option<usize>,
    /// The handle of the team, of a collective.
    pub team: Option<i32>,
    /// How often.
    pub calls: u64,
    /// Bytes that the calls were to move.
    pub bytes: u64,
    /// How long they took, all together. The host's calls on a stream take until the work is
    /// queued, and are timed while `OXSHMEM_PROFILE` has `counters` or `trace`; otherwise they
    /// count 0.
    pub nanoseconds: u64,
}

impl CallCount {
    /// Returns whether the call waits for others, and moves nothing itself.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::Operations;
    ///
    /// pe.quiet()?;
    /// assert!(pe.counters()?.calls.iter().any(|count| count.is_wait()));
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn is_wait(&self) -> bool {
        matches!(self.operation, "wait" | "quiet" | "fence" | "wait_until" | "signal_wait_until" | "barrier" | "sync")
    }
}

/// What went to and from a peer.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let peer: &oxshmem::PeerCount = &pe.counters()?.peers[0];
/// assert_eq!((peer.pe, peer.transport), (0, "own"));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PeerCount {
    /// The peer.
    pub pe: usize,
    /// How it is reached: `own`, `load_store`, `ibgda` or `ibrc`.
    pub transport: &'static str,
    /// What went there.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// What a team did.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{Operations, TeamCount};
///
/// pe.sync_all()?;
/// let counters = pe.counters()?;
/// let world: &TeamCount = &counters.teams[0];
/// assert_eq!((world.meetings, world.traffic.operations), (1, 1));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TeamCount {
    /// Its handle.
    pub team: i32,
    /// Its members.
    pub n_pes: usize,
    /// How often its members have met, whatever called: each collective is a meeting or begins with
    /// one. It costs nothing to count, and wraps after 2^32.
    pub meetings: u64,
    /// Its collectives, as far as they are counted.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// What went by a transport.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let counters = pe.counters()?;
/// let transport: &oxshmem::TransportCount = &counters.transports[0];
/// assert_eq!((transport.transport, transport.peers), ("own", 1));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransportCount {
    /// `own`, `load_store`, `ibgda` or `ibrc`.
    pub transport: &'static str,
    /// PEs that are reached so.
    pub peers: usize,
    /// What went to and from them.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// What a card did for this PE.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// for card in pe.counters()?.cards {
///     println!("{} ({}): {:?} work requests", card.device, card.provider, card.traffic.messages);
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CardCount {
    /// Its number among those of this PE.
    pub card: usize,
    /// The name of its device.
    pub device: String,
    /// What drives it: `soft`, `mlx5`.
    pub provider: &'static str,
    /// What it did. Calls are not counted by card.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// What a queue pair did.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// for qp in pe.counters()?.qps {
///     println!("QP {:#x} to PE {}: {:?} doorbells", qp.qpn, qp.pe, qp.traffic.doorbells);
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QpCount {
    /// Its number.
    pub qpn: u32,
    /// The peer.
    pub pe: usize,
    /// The card it is on.
    pub card: u32,
    /// The set of contexts that it belongs to; `None`: the default context.
    pub context_set: Option<u32>,
    /// The peer sends by it and this PE does not, which sends by another: PEs push
    /// (`OXSHMEM_RAILS`).
    pub receives_only: bool,
    /// Blocks of 64 bytes of its send queue that device code has reserved, and that it knows to be
    /// completed. `None` of the proxy's.
    pub blocks: Option<(u64, u64)>,
    /// It has failed and takes nothing more.
    pub broken: bool,
    /// Messages, and bytes of them, that the card has read or will read in a staging ring near it,
    /// to which device code has copied the payload (`OXSHMEM_STAGING`).
    pub staged: (u64, u64),
    /// What it did. Calls are not counted by queue pair.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// What went from a card of this PE to cards of peers that are alike: on the same rail, and as far
/// from the peers' memory.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::RouteCount;
///
/// let routes: Vec<RouteCount> = pe.counters()?.routes;
/// let across = routes.iter().filter(|route| route.leaves_node && route.crosses_rails == Some(true));
/// let bytes: u64 = across.filter_map(|route| route.traffic.message_bytes).sum();
/// println!("{bytes} bytes went from one rail to another");
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RouteCount {
    /// This PE's card, by its number among those of this PE.
    pub card: u32,
    /// Whether the peers are on other nodes. To peers of this node that are reached by load and
    /// store there are connections (IBGDA), through which little goes.
    pub leaves_node: bool,
    /// The peers send so and this PE does not, which sends by other cards: PEs push
    /// (`OXSHMEM_RAILS`).
    pub receives_only: bool,
    /// The rail of this PE's card: its number among the cards of the node. `None` where there is no
    /// card, or it is not known.
    pub rail: Option<u32>,
    /// The rail of the peers' cards.
    pub peer_rail: Option<u32>,
    /// Whether the two are different rails. `None` where one of them is not known, or the nodes
    /// have different numbers of cards.
    pub crosses_rails: Option<bool>,
    /// What data passes between the memory of this PE and its card: `none`, `root` (the root
    /// complex of a CPU), `sockets` (two, and the link between them) or `unknown`.
    pub crossing: &'static str,
    /// The same at the peers.
    pub peer_crossing: &'static str,
    /// Peers that are reached so.
    pub peers: usize,
    /// Connections: queue pairs, those of contexts too.
    pub connections: usize,
    /// What this PE's requests did. Calls are not counted by route.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// Everything that is counted of a PE since init. Made by [`Pe::counters`](crate::Pe::counters).
///
/// # Cost
/// Calls of the host are counted always, for some 0.1 us each. What the network and the queue pairs
/// count is there in any case and is read when this is made. Calls of device code are counted only
/// where it was compiled with `OXSHMEM_PROFILE`, and while the variable of the same name says so:
/// `profiling.md` has what that costs.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let counters: oxshmem::Counters = pe.counters()?;
/// println!("{}", counters.to_json());
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// This PE.
    pub pe: usize,
    /// PEs of the job.
    pub n_pes: usize,
    /// The first PE of this PE's node.
    pub node: usize,
    /// Whether calls of device code are counted that was compiled with `OXSHMEM_PROFILE`.
    pub counts_device: bool,
    /// All calls, by what made them, their name, and their peer or team.
    pub calls: Vec<CallCount>,
    /// By peer, in their order.
    pub peers: Vec<PeerCount>,
    /// By team.
    pub teams: Vec<TeamCount>,
    /// By transport, those that some peer is reached by.
    pub transports: Vec<TransportCount>,
    /// By card.
    pub cards: Vec<CardCount>,
    /// By queue pair, those to this PE itself among them.
    pub qps: Vec<QpCount>,
    /// By the way between cards, without what goes to this PE itself.
    pub routes: Vec<RouteCount>,
}

impl Counters {
    /// Returns them as a JSON object, whose fields have the names of the structures here.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.counters()?.to_json().contains("\"peers\""));
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn to_json(&self) -> String {
        // Maps have strings as keys here, which is all that can fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns how often calls waited, and how long, of host and device together. What the host
    /// queues on a stream is among them, with the time that queuing took if that was measured.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::Operations;
    ///
    /// pe.quiet()?;
    /// let (waits, nanoseconds) = pe.counters()?.waits();
    /// println!("{waits} waits of {nanoseconds} ns in all");
    /// # assert!(waits > 0);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn waits(&self) -> (u64, u64) {
        let waits = self.calls.iter().filter(|count| count.is_wait());
        waits.fold((0, 0), |(calls, time), count| (calls + count.calls, time + count.nanoseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_adds_nothing_and_is_not_zero() {
        let mut all = Traffic { operations: 1, messages: None, doorbells: Some(2), ..Traffic::default() };
        all += Traffic { operations: 2, bytes: 5, doorbells: Some(3), errors: Some(0), ..Traffic::default() };
        assert_eq!(all, Traffic { operations: 3, bytes: 5, doorbells: Some(5), errors: Some(0), ..Traffic::default() });
    }
}
