//! Why a transport cannot be used.

use std::fmt;

/// The requested transport is not available.
///
/// ```
/// use oxshmem::{Config, Error, Pe, TransportError};
///
/// # fn main() -> oxshmem::Result<()> {
/// let config = Config::builder().p2p_faults("0-0".to_owned()).env().build()?;
/// match Pe::with_config(config) {
///     Err(Error::Transport(error)) => assert!(matches!(error, TransportError::Pair { .. }), "{error}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// `OXSHMEM_TRANSPORT=p2p`, but not every PE is load/store reachable.
    #[error(
        "OXSHMEM_TRANSPORT=p2p, but PE {pe} (host {host}) is not load/store reachable from PE {me} (host {my_host}): {reason}; set \
         OXSHMEM_TRANSPORT=auto to reach it over the network"
    )]
    NotReachable {
        /// This PE.
        me: usize,
        /// Its host.
        my_host: String,
        /// The first PE that is not reachable.
        pe: usize,
        /// Its host.
        host: String,
        /// Why.
        reason: &'static str,
    },
    /// `OXSHMEM_TRANSPORT=p2p`, but the devices of PEs of one node cannot reach each other's
    /// memory.
    #[error(
        "OXSHMEM_TRANSPORT=p2p, but PE {me} ({device}) has no load/store access to the memory of PE {pe} ({peer_device}): {reason}; set \
         OXSHMEM_TRANSPORT=auto to reach it over the network, or run each PE on a GPU with peer access to the others (nvidia-smi topo -p2p r)"
    )]
    NoPeerAccess {
        /// This PE.
        me: usize,
        /// Its device.
        device: String,
        /// The peer.
        pe: usize,
        /// Its device.
        peer_device: String,
        /// Why.
        reason: String,
    },
    /// A card that the PE does not use.
    #[error("contexts request card {card}; this PE uses {cards} (OXSHMEM_HCA_DEVICES), whose numbers begin at 0")]
    NoCard {
        /// The card that the program chose.
        card: u32,
        /// Cards of the PE.
        cards: u32,
    },
    /// A card that does no atomics.
    #[error(
        "contexts request card {card}: the atomics of several cards are not atomic with each other here, so the first card does all of them; choose card 0"
    )]
    CardWithoutAtomics {
        /// The card that the program chose.
        card: u32,
    },
    /// Contexts that are to push in a job that does not.
    #[error(
        "contexts cannot push, as the PEs of this job send by their own cards (their logs say why); start the job with OXSHMEM_RAILS=push, or \
         leave the choice to the job"
    )]
    ContextsPush,
    /// Contexts that are not to push, where keys for that have no place.
    #[error(
        "contexts cannot send by each PE's own card here: with several cards of each PE whose rails differ from node to node, there are \
         no keys for these contexts beside those that push; use OXSHMEM_HCA_DEVICES_PER_PE=1, or leave the choice to the job"
    )]
    ContextsDirect,
    /// Contexts that are not to push, where the CPU proxy posts and pushes.
    #[error(
        "contexts cannot send by each PE's own card here: the CPU proxy of this job pushes, and all contexts share the queue pairs that it posts \
         to; start the job with OXSHMEM_NETWORK=ibgda or with OXSHMEM_RAILS=direct, or leave the choice to the job"
    )]
    ContextsShareProxy,
    /// Known, but not part of this release.
    #[error("{name} is not available in this build: {remedy}")]
    NotAvailable {
        /// The variable and its value.
        name: &'static str,
        /// What to use instead.
        remedy: &'static str,
    },
    /// The requested HCA cannot be used.
    #[error("OXSHMEM_HCA={hca}: {source}")]
    Asked {
        /// The variable's value.
        hca: String,
        /// Why.
        source: Box<oxshmem_hca::Error>,
    },
    /// An HCA could not be used for what the queues need.
    #[error("HCA {device}: {what}")]
    Hca {
        /// The device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The requested interface cannot be used.
    #[error("OXSHMEM_INTERFACE: {what}")]
    Interface {
        /// What is wrong, and what there is.
        what: String,
    },
    /// The process may not have as many files open as the job's connections take.
    #[error("{what}")]
    Descriptors {
        /// How many there are, are needed and may be, and the remedy.
        what: String,
    },
    /// The requested faults cannot be read.
    #[error("OXSHMEM_SOFT_FAULTS: {0}")]
    Faults(oxshmem_hca::soft::ParseFaultError),
    /// The pairs of PEs in `OXSHMEM_P2P_FAULTS` cannot be read.
    #[error("OXSHMEM_P2P_FAULTS: `{pair}` is not a pair of different PEs, as in `0-1,2-3`")]
    Pair {
        /// What was found in the place of a pair.
        pair: String,
    },
    /// A PE in `OXSHMEM_P2P_FAULTS` does not exist.
    #[error("OXSHMEM_P2P_FAULTS: `{pair}` names PE {pe}, and the PEs of this job are 0 to {last}; name pairs of those")]
    PairOutOfRange {
        /// The pair.
        pair: String,
        /// The PE.
        pe: usize,
        /// The last PE of the job.
        last: usize,
    },
    /// What a peer says of its reach cannot be read.
    #[error(
        "PE {pe} reported the memory it reaches in a form that this version cannot read; all PEs must run the same build"
    )]
    Reach {
        /// The peer.
        pe: usize,
    },
    /// The proxy's thread could not be started.
    #[error(
        "cannot start the thread of the CPU proxy: {source}; raise the limit of threads (ulimit -u), or use OXSHMEM_TRANSPORT=ibgda"
    )]
    ProxyThread {
        /// The system's answer.
        source: std::io::Error,
    },
    /// Puts cannot be staged, although the setting requests it.
    #[error("OXSHMEM_STAGING={setting}: puts cannot be staged: {source}; use auto or off")]
    Staging {
        /// The variable's value.
        setting: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Puts that device code posts cannot be staged, although the setting requests it.
    #[error(
        "PE {me}: no staging rings of {bytes} in {place} for {card}: {source}; lower OXSHMEM_STAGING_RING or OXSHMEM_QPS_PER_PEER, \
         or use OXSHMEM_STAGING=off, with which the card reads payloads where they are"
    )]
    StagingRings {
        /// This PE.
        me: usize,
        /// Bytes of all rings.
        bytes: crate::config::ByteSize,
        /// Whose memory it is.
        place: String,
        /// The card that would read it.
        card: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another PE did not share memory for staging rings.
    #[error("PE {owner} does not share its memory: {reason}")]
    NotLent {
        /// The PE whose memory it would be.
        owner: usize,
        /// Why.
        reason: String,
    },
    /// A device whose memory network cards cannot be used with.
    #[error("device {device}: {what}")]
    WriteOrdering {
        /// The device.
        device: String,
        /// What is wrong, and what to do about it.
        what: String,
    },
    /// PEs with different settings of `OXSHMEM_ATOMICS`.
    #[error("OXSHMEM_ATOMICS={mine} on this PE, and another setting on PE {pe}; give all PEs the same")]
    Atomics {
        /// This PE's setting.
        mine: crate::config::Atomics,
        /// The first PE with another.
        pe: usize,
    },
    /// PEs with different settings of `OXSHMEM_RAILS`.
    #[error("OXSHMEM_RAILS={mine} on this PE, and PE {pe} has `{theirs}`; give all PEs the same")]
    RailsDiffer {
        /// This PE's setting.
        mine: crate::config::Rails,
        /// The first PE with another.
        pe: usize,
        /// That PE's setting.
        theirs: crate::config::Rails,
    },
    /// A PE cannot send by the cards of other rails, as it is to.
    #[error("OXSHMEM_RAILS=push: PE {me} cannot push: {reason}; or use OXSHMEM_RAILS=auto or direct")]
    Rails {
        /// This PE.
        me: usize,
        /// What stands in the way, and the remedy.
        reason: String,
    },
    /// A word that atomics of GPUs and of cards changed, where these are not atomic with each
    /// other.
    #[error(
        "the word at heap offset {offset:#x} of PE {me} was changed by atomics of GPUs ({by_gpu}) and of cards ({by_card}) with no barrier of \
         all PEs between{others}; with OXSHMEM_ATOMICS={mode} these are not atomic with each other and updates get lost: use a word for each \
         kind, put barrier_all between them, or set OXSHMEM_ATOMICS=card",
        by_gpu = Pes(by_gpu),
        by_card = Pes(by_card),
        others = Others(*others)
    )]
    MixedAtomics {
        /// The PE whose word it is, this one.
        me: u32,
        /// Where the word is in its heap.
        offset: u64,
        /// The PEs that changed it themselves.
        by_gpu: Vec<u32>,
        /// The PEs whose cards changed it.
        by_card: Vec<u32>,
        /// Other words of this PE of which the same is true.
        others: usize,
        /// The setting of the job.
        mode: crate::config::Atomics,
    },
    /// Addresses from a peer that cannot be read.
    #[error("PE {pe} sent addresses of queue pairs that this version cannot read; all PEs must run the same build")]
    Address {
        /// The peer.
        pe: usize,
    },
}

/// Lists PEs in an error.
struct Pes<'a>(&'a [u32]);

impl fmt::Display for Pes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "PE " } else { "PEs " })?;
        for (index, pe) in self.0.iter().enumerate() {
            write!(f, "{}{pe}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Counts further words in an error.
struct Others(usize);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(", and so was one other word"),
            count => write!(f, ", and so were {count} other words"),
        }
    }
}
