//! Opens the HCA, and settles together with all PEs which kind it is and what posts to it.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use oxshmem_hca::mlx5::{self, Mlx5Hca, Mlx5Options, Registration};
use oxshmem_hca::objects::{Uar, Umem, query_caps};
use oxshmem_hca::prm::caps::{
    ATOMIC_OP_EXTENDED_CMP_SWAP, ATOMIC_OP_EXTENDED_FETCH_ADD, ATOMIC_SIZE_4, ATOMIC_SIZE_8, AtomicCaps, GeneralCaps,
};
use oxshmem_hca::provider::{Access, Attempt, Provider, Rung, UmemSource};
use oxshmem_hca::soft::{CopyMode, FaultPlan, SoftHca, SoftOptions};
use oxshmem_hca::topology::{Card, DeviceChoice, TopologyError};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::striping::Striping;
use oxshmem_system::words::count32;

use super::atomics::Atomics;
use super::doorbell::Way;
use super::error::TransportError;
use super::near::Nodes;
use super::nodes;
use super::plan::{NetworkKind, Plan};
use super::qp_attributes::pkey_index;
use super::rails::{Rails, Spot};
use super::selection;
use super::selection::Chosen;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{self, Choice, Config, Doorbell, Hca, Network, Transport};
use crate::device::Device;

/// The HCA of a PE, open: one card, or several that its queue pairs are spread over ([`Striping`]).
#[derive(Debug)]
pub(crate) struct Opened {
    /// At least one, as many on every PE, none more than there are queue pairs to a peer.
    pub cards: Vec<OpenCard>,
    /// Whether this PE's cards do atomics that are atomic with those of CPUs, GPUs and each other.
    coherent: bool,
    /// What does atomics.
    pub atomics: Atomics,
    /// How device code rings.
    pub way: Way,
    /// Whether queues have to lie in memory of the host, as a card cannot reach them in that of the
    /// device.
    pub queues_on_host: bool,
    /// The software HCA, if it is that.
    soft: Option<Arc<SoftHca>>,
    /// What was tried on the way to it, apart from what the providers themselves tried.
    pub attempts: Vec<Attempt>,
    /// Where the cards of all PEs are.
    pub rails: Rails,
}

/// An open card, or the software HCA.
#[derive(Debug)]
pub(crate) struct OpenCard {
    pub provider: Arc<dyn Provider>,
    /// Whether it has masked atomics, and those of four bytes.
    pub extended_atomics: bool,
    /// log2 of the reads and atomics that a queue pair may have in flight, in either direction.
    pub log_max_rd_atomic: u8,
    /// Which card it is, and where. The software HCA is none, unless a machine is described.
    pub chosen: Option<Chosen>,
}

/// Which fence modes keep what is posted to a queue pair in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// The mode of a signal that follows its data.
    pub signal: Fence,
    /// The mode of the first request after a fence.
    pub fence: Fence,
}

impl Order {
    /// Where a queue pair delivers in order, a signal needs nothing, and what follows a fence waits
    /// only for reads and atomics: those that were posted later may overtake them at the responder
    /// (InfiniBand specification, "Work request operation ordering"; UCX and NVSHMEM post a write
    /// and its atomic without fence bits on one queue pair).
    const fn new(in_order: bool) -> Self {
        match in_order {
            true => Self { signal: Fence::None, fence: Fence::Fence },
            false => Self { signal: Fence::StrongOrdering, fence: Fence::StrongOrdering },
        }
    }
}

/// What a PE could do, as it tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Vote {
    /// Name of the provider it has opened.
    provider: String,
    /// Whether device code can post to it.
    device_posts: bool,
    /// The cards that it has opened.
    cards: Vec<Spot>,
    /// The reason, where something is not available.
    reason: String,
}

/// Returns a number of cards, or of bytes of a provider's name, as a vote has it.
fn count8(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl Vote {
    fn to_bytes(&self) -> Vec<u8> {
        let cards: Vec<u8> = self.cards.iter().flat_map(|spot| spot.to_bytes()).collect();
        [
            &[u8::from(self.device_posts) << 7 | count8(self.cards.len()), count8(self.provider.len())],
            &cards[..],
            self.provider.as_bytes(),
            self.reason.as_bytes(),
        ]
        .concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[first, len], rest) = bytes.split_first_chunk()?;
        let (posts, cards) = (first >> 7, first & 0x7f);
        let (spots, rest) = rest.split_at_checked(usize::from(cards) * Spot::BYTES)?;
        let cards = spots.as_chunks::<{ Spot::BYTES }>().0.iter().map(Spot::from_bytes).collect::<Option<Vec<_>>>()?;
        let (provider, reason) = rest.split_at_checked(len.into())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(Self { provider: text(provider), device_posts: posts != 0, cards, reason: text(reason) })
    }
}

/// Opens the HCA that the plan's network needs, if it needs one. Where the configuration leaves it
/// open, all PEs use ConnectX cards if each has one, and the software HCA otherwise; and the proxy
/// posts if some card cannot be posted to by device code. All PEs use as many cards as the one that
/// has fewest. Collective.
pub(crate) fn open(
    config: &Config,
    bootstrap: &Bootstrap,
    device: &dyn Device,
    plan: Plan,
) -> Result<(Plan, Option<Opened>)> {
    let Some(kind) = plan.network else { return Ok((plan, None)) };
    if matches!(config.hca(), Hca::Verbs { .. }) {
        return match kind {
            // They are opened with their own calls.
            NetworkKind::Ibrc => Ok((plan, None)),
            NetworkKind::Ibgda => Err(TransportError::NotAvailable {
                name: "OXSHMEM_HCA=verbs with work requests that device code posts (OXSHMEM_TRANSPORT=ibgda)",
                remedy: "use OXSHMEM_TRANSPORT=ibrc, or OXSHMEM_HCA=soft",
            }
            .into()),
        };
    }
    selection::check_description(config, device)?;
    let log_depth = config.send_queue_depth(bootstrap.size()).trailing_zeros();
    let Candidate { opened: mut candidate, played, reason } = candidate(config, bootstrap, &plan.nodes, device, kind)?;
    let mut vote = Vote {
        provider: candidate.as_ref().map_or("none", Opened::provider_name).to_owned(),
        device_posts: kind == NetworkKind::Ibgda,
        cards: candidate.as_ref().map_or_else(|| vec![Spot::new(played.as_ref())], Opened::spots),
        reason,
    };
    if let Some(opened) = &mut candidate
        && kind == NetworkKind::Ibgda
        && let Err(error) = prepare_for_device(config, device, opened, log_depth)
    {
        if config.transport() == Transport::Ibgda || config.network() == Network::Ibgda {
            return Err(error);
        }
        vote.device_posts = false;
        vote.reason = error.to_string();
    }

    let votes = bootstrap.allgather("HCA", &vote.to_bytes())?;
    let votes =
        votes.iter().enumerate().map(|(pe, bytes)| Vote::from_bytes(bytes).ok_or(TransportError::Address { pe }));
    let votes: Vec<Vote> = votes.collect::<std::result::Result<_, _>>()?;
    let without = votes.iter().position(|vote| vote.provider == "none");
    let mut opened = match (candidate, without) {
        (Some(opened), None) => opened,
        (candidate, _) => {
            // Only where the configuration leaves it open.
            drop(candidate);
            let pe = without.unwrap_or_default();
            tracing::info!(
                "the software HCA is used: PE {pe} has no ConnectX card that it can use: {}",
                votes[pe].reason
            );
            vote.device_posts = kind == NetworkKind::Ibgda;
            soft(config, device, kind, played)?
        }
    };
    if without.is_none()
        && let Some(pe) = votes.iter().position(|other| other.provider != vote.provider)
    {
        let what = format!(
            "this PE uses {}, PE {pe} uses {}; give all PEs the same OXSHMEM_HCA",
            vote.provider, votes[pe].provider
        );
        return Err(hca_error(opened.cards[0].provider.as_ref(), what));
    }
    if without.is_none() {
        let fewest = votes.iter().zip(0..).map(|(vote, pe)| (count8(vote.cards.len()), pe)).min().unwrap_or((1, 0));
        opened.keep(config, fewest);
    }
    if let Some(soft) = &opened.soft {
        nodes::check_descriptors(&plan, bootstrap)?;
        nodes::join(config, bootstrap, &plan.nodes, soft)?;
    }
    opened.rails = Rails::new(votes.iter().map(|vote| vote.cards.as_slice()), opened.cards.len());
    opened.atomics = Atomics::agree(config, bootstrap, opened.coherent)?;
    let mut plan = plan;
    if without.is_none()
        && kind == NetworkKind::Ibgda
        && let Some(pe) = votes.iter().position(|vote| !vote.device_posts)
    {
        tracing::warn!("the CPU proxy posts for all PEs, as device code cannot on PE {pe}: {}", votes[pe].reason);
        let reason = format!("PE {pe}: {}", votes[pe].reason);
        opened.attempts.push(Attempt { what: "work requests posted by device code".into(), outcome: Err(reason) });
        plan.network = Some(NetworkKind::Ibrc);
    }
    if plan.network == Some(NetworkKind::Ibrc) {
        opened.cards.iter().try_for_each(|card| check_queues(card, log_depth))?;
    }
    for attempt in &opened.attempts {
        tracing::info!(pe = bootstrap.rank(), "{attempt}");
    }
    // PE 0 has logged this for all of them.
    let what = "atomics on local memory".to_owned();
    opened.attempts.push(Attempt { what, outcome: Ok(opened.atomics.describe(config.atomics())) });
    Ok((plan, Some(opened)))
}

/// What a PE has opened before it knows what the others have.
struct Candidate {
    /// Nothing where the configuration leaves the choice open and there is no card.
    opened: Option<Opened>,
    /// The card that the software HCA counts as, if it takes the place of one.
    played: Option<Chosen>,
    /// Why there is no card.
    reason: String,
}

/// Opens what the configuration asks for; nothing, with the reason, where it leaves the choice open
/// and there is no card. Collective.
fn candidate(
    config: &Config,
    bootstrap: &Bootstrap,
    nodes: &Nodes,
    device: &dyn Device,
    kind: NetworkKind,
) -> Result<Candidate> {
    let done = |opened| Candidate { opened: Some(opened), played: None, reason: String::new() };
    if let Hca::Soft | Hca::Null = config.hca() {
        let chosen = match config.topology() {
            Some(_) => selection::locate(config, bootstrap, nodes, device)?,
            None => Vec::new(),
        };
        return Ok(done(soft(config, device, kind, chosen.into_iter().next())?));
    }
    let chosen = selection::choose(config, bootstrap, nodes, device);
    let played =
        chosen.as_ref().ok().and_then(|chosen| chosen.first()).filter(|_| config.topology().is_some()).cloned();
    match (card(config, bootstrap, chosen), config.hca()) {
        (Ok(opened), _) => Ok(done(opened)),
        // What the others have to say about a failure of the job is more to the point.
        (Err(error @ crate::Error::Bootstrap(_)), _) => Err(error),
        // A configuration that names several cards does not mean none.
        (Err(error), Hca::Auto) if config.hca_devices_per_pe().given().is_none_or(|count| count <= 1) => {
            Ok(Candidate { opened: None, played, reason: error.to_string() })
        }
        (Err(error), Hca::Auto) => Err(error),
        (Err(crate::Error::Hca(source)), hca) => {
            Err(TransportError::Asked { hca: hca.to_string(), source: Box::new(source) }.into())
        }
        (Err(error), _) => Err(error),
    }
}

/// Opens the cards that fall to this PE.
fn card(config: &Config, bootstrap: &Bootstrap, chosen: Result<Vec<Chosen>>) -> Result<Opened> {
    // What is missing altogether says more than that nothing could be chosen.
    mlx5::check_libraries()?;
    // One that was not requested is not missed.
    let is_asked =
        config.hca_devices_per_pe() != Choice::Auto || matches!(config.hca_devices(), DeviceChoice::Mapping(_));
    let mut opened: Option<Opened> = None;
    for chosen in chosen? {
        match (open_card(config, &chosen.card), &mut opened) {
            (Ok((open, coherent)), found) => {
                let info = open.provider.info();
                tracing::info!(pe = bootstrap.rank(), device = info.device, port = info.port.number, gid = %info.port.gid, "ConnectX card");
                let open = OpenCard { chosen: Some(chosen), ..open };
                match found {
                    Some(found) => {
                        found.coherent &= coherent;
                        found.cards.push(open);
                    }
                    None => *found = Some(Opened::new(open, coherent)),
                }
            }
            (Err(error), Some(found)) if !is_asked => {
                let what = format!("{} as a further card", chosen.card);
                found.attempts.push(Attempt { what, outcome: Err(error.to_string()) });
            }
            (Err(error), _) => return Err(error),
        }
    }
    opened.ok_or_else(|| TopologyError::NoDevice.into())
}

/// Opens a card; whether its atomics are coherent.
fn open_card(config: &Config, card: &Card) -> Result<(OpenCard, bool)> {
    let gid_index = match config.ib_gid_index() {
        Choice::Auto => None,
        Choice::Given(index) => Some(index),
    };
    let port = card.port.unwrap_or(1);
    let registration = match config.gpu_registration() {
        config::Registration::Auto | config::Registration::DmaBuf => Registration::DmaBuf,
        config::Registration::DmaBufPcie => Registration::DmaBufPcie,
        config::Registration::Peermem => Registration::Address,
    };
    let options = Mlx5Options { device: &card.device, port, gid_index, pkey_index: pkey_index(config), registration };
    let open = Mlx5Hca::open(&options)?;
    let (general, atomic) = *open.capabilities();
    OpenCard::new(open, &general, &atomic)
}

impl Opened {
    fn new(card: OpenCard, coherent: bool) -> Self {
        let (way, queues_on_host) = (Way::Memory, false);
        let atomics = Atomics::default();
        let (attempts, rails) = (Vec::new(), Rails::default());
        Self { cards: vec![card], coherent, atomics, way, queues_on_host, soft: None, attempts, rails }
    }

    /// Returns where its cards are, as the other PEs learn it.
    fn spots(&self) -> Vec<Spot> {
        self.cards.iter().map(|card| Spot::new(card.chosen.as_ref())).collect()
    }

    /// `soft`, `mlx5`.
    pub(crate) fn provider_name(&self) -> &'static str {
        self.cards[0].provider.info().provider
    }

    /// Which fence modes keep what is posted to a queue pair in order.
    pub(crate) fn order(&self, config: &Config) -> Order {
        let in_order = self.cards.iter().all(|card| card.provider.info().in_order);
        Order::new(in_order && !config.ib_strong_ordering())
    }

    /// How the queue pairs are spread over the cards.
    pub(crate) fn striping(&self, config: &Config) -> Striping {
        Striping::new(config.qps_per_peer(), count32(self.cards.len()))
    }

    /// Keeps as many cards as the PE with fewest has, that PE with its number, and no more than
    /// there are queue pairs to a peer: the first.
    fn keep(&mut self, config: &Config, (fewest, pe): (u8, u32)) {
        let queue_pairs = config.qps_per_peer();
        let count = queue_pairs.min(fewest.into()).max(1);
        let reason = if count == queue_pairs {
            format!("there are {queue_pairs} queue pairs to each peer (OXSHMEM_QPS_PER_PEER)")
        } else {
            format!("all PEs use as many cards, and PE {pe} has {fewest}")
        };
        self.cut(count, &reason);
    }

    /// Keeps the first `count` cards.
    fn cut(&mut self, count: u32, reason: &str) {
        for card in self.cards.drain(count as usize..) {
            let what = format!("{} as a further card", card.provider.info().device);
            self.attempts.push(Attempt { what, outcome: Err(reason.to_owned()) });
        }
    }
}

impl OpenCard {
    /// The card, and whether its atomics are coherent.
    fn new(provider: Arc<dyn Provider>, general: &GeneralCaps, atomic: &AtomicCaps) -> Result<(Self, bool)> {
        let operations = ATOMIC_OP_EXTENDED_CMP_SWAP | ATOMIC_OP_EXTENDED_FETCH_ADD;
        let sizes = ATOMIC_SIZE_4 | ATOMIC_SIZE_8;
        let missing = if !general.rc {
            Some("it has no RC transport; use another card, or OXSHMEM_HCA=soft")
        } else if atomic.atomic_req_8b_endianness_mode != 1 {
            Some(
                "it keeps 8-byte atomics big-endian in memory; its driver sets the host's byte order if the firmware allows it: update the \
                 firmware, or use OXSHMEM_HCA=soft",
            )
        } else {
            None
        };
        if let Some(what) = missing {
            return Err(hca_error(provider.as_ref(), what.to_owned()));
        }
        let coherent = provider.info().coherent_atomics;
        let card = Self {
            extended_atomics: atomic.atomic_operations & operations == operations
                && atomic.atomic_size_qp & sizes == sizes,
            log_max_rd_atomic: general.log_max_ra_req_qp.min(general.log_max_ra_res_qp).min(7),
            chosen: None,
            provider,
        };
        Ok((card, coherent))
    }
}

/// What was tried on a card, named where there are several.
pub(crate) fn of_card(cards: usize, provider: &dyn Provider, attempts: Vec<Attempt>) -> Vec<Attempt> {
    if cards == 1 {
        return attempts;
    }
    let device = &provider.info().device;
    let named = |attempt: Attempt| Attempt { what: format!("{device}: {}", attempt.what), outcome: attempt.outcome };
    attempts.into_iter().map(named).collect()
}

fn hca_error(provider: &dyn Provider, what: String) -> crate::Error {
    TransportError::Hca { device: provider.info().device.clone(), what }.into()
}

fn check_queues(card: &OpenCard, log_depth: u32) -> Result<()> {
    let (general, _) = query_caps(card.provider.as_ref())?;
    if u32::from(general.log_max_qp_sz) >= log_depth {
        return Ok(());
    }
    let what = format!(
        "its queues have at most {} blocks, {} are requested; lower OXSHMEM_QP_DEPTH",
        1u64 << general.log_max_qp_sz.min(63),
        1u64 << log_depth
    );
    Err(hca_error(card.provider.as_ref(), what))
}

/// Finds out whether device code can post and how it rings: by itself, or through a thread of the
/// CPU.
fn prepare_for_device(config: &Config, device: &dyn Device, opened: &mut Opened, log_depth: u32) -> Result<()> {
    let mut ways = Vec::new();
    for card in &opened.cards {
        let mut attempts = Vec::new();
        let (way, queues_on_host) = prepare_card(config, device, card, log_depth, &mut attempts)?;
        ways.push(way);
        opened.queues_on_host |= queues_on_host;
        opened.attempts.extend(of_card(opened.cards.len(), card.provider.as_ref(), attempts));
    }
    // One way for all.
    opened.way = if ways.contains(&Way::Thread) { Way::Thread } else { ways[0] };
    if ways.iter().any(|way| *way != opened.way) {
        let what = "doorbells of all cards rung by a thread of the CPU".to_owned();
        opened.attempts.push(Attempt { what, outcome: Ok("in use".to_owned()) });
    }
    Ok(())
}

/// How device code rings on a card, and whether queues have to lie in memory of the host.
fn prepare_card(
    config: &Config,
    device: &dyn Device,
    card: &OpenCard,
    log_depth: u32,
    attempts: &mut Vec<Attempt>,
) -> Result<(Way, bool)> {
    check_queues(card, log_depth)?;
    if !card.extended_atomics {
        let what = "it has 8-byte atomics without masks alone, and device code posts masked ones; update the card's firmware, or let the CPU \
                    proxy post (OXSHMEM_TRANSPORT=ibrc), which does not need it";
        return Err(hca_error(card.provider.as_ref(), what.to_owned()));
    }
    let by_cpu = config.ibgda_doorbell() == Doorbell::Cpu;
    let page = Uar::alloc(&card.provider, if by_cpu { Rung::ByCpu } else { Rung::ByDevice })?;
    if !page.page().device_registers {
        return Ok((Way::Memory, false));
    }
    let mut tried = |what: &str, outcome: std::result::Result<&str, &dyn Display>| {
        let outcome = outcome.map(ToOwned::to_owned).map_err(ToString::to_string);
        attempts.push(Attempt { what: what.to_owned(), outcome });
    };
    let queues = try_queues(device, &card.provider);
    if let Err(error) = &queues {
        tried("queues in memory of the device", Err(error));
        tried("queues in memory of the host", Ok("in use"));
    }
    const DEVICE: &str = "doorbells rung by device code";
    const THREAD: &str = "doorbells rung by a thread of the CPU";
    let way = if by_cpu {
        tried(DEVICE, Err(&"OXSHMEM_IBGDA_DOORBELL=cpu says so"));
        tried(THREAD, Ok("in use"));
        Way::Thread
    } else {
        match device.map_registers(page.page().base) {
            Ok(_) => {
                tried(DEVICE, Ok("in use"));
                Way::Mapped
            }
            Err(error) if config.ibgda_doorbell() == Doorbell::Gpu => {
                let what = format!("OXSHMEM_IBGDA_DOORBELL=gpu, but {error}");
                return Err(hca_error(card.provider.as_ref(), what));
            }
            Err(error) => {
                tried(DEVICE, Err(&error));
                tried(THREAD, Ok("in use"));
                Way::Thread
            }
        }
    };
    Ok((way, queues.is_err()))
}

/// Whether the card can be given memory of the device for queues; tried with a little of it.
fn try_queues(device: &dyn Device, provider: &Arc<dyn Provider>) -> Result<()> {
    let bytes = device.granularity();
    let memory = device.allocate(bytes)?;
    let space = device.reserve(bytes, 1)?;
    space.map_own(&memory, 0, bytes)?;
    let source = UmemSource::Fd {
        fd: memory.as_fd(),
        offset: 0,
        len: usize::try_from(bytes).unwrap_or(usize::MAX),
        addr: space.base() as *mut u8,
        device: device.exporter(),
    };
    // SAFETY: the memory is unmapped after this, and nothing uses it.
    let umem = unsafe { Umem::register(provider, source, Access::LOCAL) }?;
    Ok(umem.close()?)
}

/// How long `OXSHMEM_CHECK=buffers` has the software HCA watch the source of a put.
const SOURCES_WATCHED: Duration = Duration::from_millis(2);

/// Opens the software HCA, in the place of a card if one is given.
fn soft(config: &Config, device: &dyn Device, kind: NetworkKind, played: Option<Chosen>) -> Result<Opened> {
    let mut faults = FaultPlan::from_str(config.soft_faults()).map_err(TransportError::Faults)?;
    if config.checks().buffers && faults.sources.is_zero() && device.gpu().is_none() {
        faults.sources = SOURCES_WATCHED;
    }
    let null = *config.hca() == Hca::Null;
    let reachable = device.gpu().is_none();
    let kernel = match config.soft_engine() {
        config::SoftEngine::Auto => null || !reachable,
        config::SoftEngine::Kernel | config::SoftEngine::Copy => true,
        config::SoftEngine::Thread if reachable => false,
        config::SoftEngine::Thread => {
            return Err(TransportError::NotAvailable {
                name: "OXSHMEM_SOFT_ENGINE=thread on the `cuda` device, whose queues the CPU cannot reach,",
                remedy: "use auto, kernel or copy",
            }
            .into());
        }
    };
    let accelerator = kernel.then(|| device.accelerator()).transpose()?;
    let host_doorbells = kernel && kind == NetworkKind::Ibrc;
    let copying = match config.soft_engine() {
        config::SoftEngine::Auto | config::SoftEngine::Thread => CopyMode::WhenNeeded,
        config::SoftEngine::Kernel => CopyMode::Never,
        config::SoftEngine::Copy => CopyMode::Always,
    };
    let options = SoftOptions { faults, accelerator, host_doorbells, null, copying, ..SoftOptions::default() };
    let options = if config.soft_trace() { options.traced() } else { options };
    let hca = SoftHca::open(options)?;
    let (general, atomic) = query_caps(hca.as_ref())?;
    let (card, coherent) = OpenCard::new(Arc::<SoftHca>::clone(&hca), &general, &atomic)?;
    let card = OpenCard { chosen: played, ..card };
    Ok(Opened { soft: Some(hca), ..Opened::new(card, coherent) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn votes_survive(
            provider in "[a-z0-9]{0,8}",
            device_posts: bool,
            cards in proptest::collection::vec((any::<[u8; Spot::BYTES]>()).prop_filter_map("a spot", |bytes| Spot::from_bytes(&bytes)), 0..5),
            reason in ".{0,80}",
        ) {
            let vote = Vote { provider, device_posts, cards, reason };
            prop_assert_eq!(Vote::from_bytes(&vote.to_bytes()), Some(vote));
        }

        #[test]
        fn any_bytes_are_a_vote_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Vote::from_bytes(&bytes);
        }
    }
}
