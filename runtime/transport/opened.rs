//! The HCA of a PE, open: its cards, and what device code can do with them.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::Arc;

use oxshmem_hca::mlx5::{Mlx5Hca, Mlx5Options, Registration};
use oxshmem_hca::objects::{QpAddress, Uar, Umem, query_caps};
use oxshmem_hca::prm::caps::{
    ATOMIC_OP_EXTENDED_CMP_SWAP, ATOMIC_OP_EXTENDED_FETCH_ADD, ATOMIC_SIZE_4, ATOMIC_SIZE_8, AtomicCaps, GeneralCaps,
};
use oxshmem_hca::provider::{Access, Attempt, Provider, Rung, UmemSource};
use oxshmem_hca::soft::SoftHca;
use oxshmem_hca::topology::{Card, Place, Way as PayloadWay, fetch};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::striping::Striping;
use oxshmem_system::words::count32;

use super::atomics::Atomics;
use super::doorbell::Way;
use super::error::TransportError;
use super::plan::NetworkKind;
use super::qp_attributes::{attributes, pkey_index};
use super::rails::{Pushing, Rails, Spot};
use super::selection::Chosen;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{self, Choice, Config, Doorbell, DoorbellRecord};
use crate::device::Device;

/// The HCA of a PE, open: one card, or several that its queue pairs are spread over ([`Striping`]),
/// and, where PEs push, those of other rails that it sends by.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The PE's own: at least one, as many on every PE, none more than there are queue pairs to a
    /// peer. Those of other rails follow.
    pub cards: Vec<OpenCard>,
    /// How many are the PE's own.
    own: usize,
    /// Whether this PE's cards do atomics that are atomic with those of CPUs, GPUs and each other.
    pub(super) coherent: bool,
    /// What does atomics.
    pub atomics: Atomics,
    /// How device code rings.
    pub way: Way,
    /// Whether queues have to lie in memory of the host, as a card cannot reach them in that of the
    /// device.
    pub queues_on_host: bool,
    /// The software HCA, if it is that.
    pub(super) soft: Option<Arc<SoftHca>>,
    /// What was tried on the way to it, apart from what the providers themselves tried.
    pub attempts: Vec<Attempt>,
    /// Where the cards of all PEs are.
    pub rails: Rails,
    /// Where the PEs of the node work, ascending; empty where they have not told each other.
    pub(super) places: Vec<Place>,
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
    /// Which way payloads take to a card of another rail, and why.
    pub pushed: Option<(PayloadWay, String)>,
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
    /// Creates the order: where a queue pair delivers in order, a signal needs nothing, and what
    /// follows a fence waits only for reads and atomics: those that were posted later may overtake
    /// them at the responder (InfiniBand specification, "Work request operation ordering"; UCX and
    /// NVSHMEM post a write and its atomic without fence bits on one queue pair).
    pub(super) const fn new(in_order: bool) -> Self {
        match in_order {
            true => Self { signal: Fence::None, fence: Fence::Fence },
            false => Self { signal: Fence::StrongOrdering, fence: Fence::StrongOrdering },
        }
    }

    /// Returns whether it relies on queue pairs that deliver in order.
    pub(super) fn is_relying(self) -> bool {
        self.fence == Fence::Fence
    }
}

/// Waits until the queue pairs of all PEs are connected: no PE posts before the other end is ready
/// to receive. Returns whether those of all PEs deliver in order, and not only this PE's, of which
/// `in_order` says it: writes are placed at the other end. Collective.
pub(super) fn are_connected(bootstrap: &Bootstrap, in_order: bool) -> Result<bool> {
    let told = bootstrap.allgather("queue pairs connected", &[u8::from(in_order)])?;
    Ok(told.iter().all(|theirs| theirs[..] == [1]))
}

/// Says that queue pairs were found not to deliver in order, and what follows.
pub(super) fn unordered() -> Attempt {
    let why = "a card of the job places writes out of order (adaptive routing), and its firmware has no dp_ordering_force to refuse that; signals and the \
               first request after a fence wait for everything before them, as with OXSHMEM_IB_STRONG_ORDERING=1";
    Attempt { what: "queue pairs that deliver in order".to_owned(), outcome: Err(why.to_owned()) }
}

/// Opens a card; whether its atomics are coherent.
pub(super) fn open_card(config: &Config, card: &Card) -> Result<(OpenCard, bool)> {
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
    pub(super) fn new(card: OpenCard, coherent: bool) -> Self {
        let (way, queues_on_host) = (Way::Memory, false);
        let atomics = Atomics::default();
        let (attempts, rails, places) = (Vec::new(), Rails::default(), Vec::new());
        Self { cards: vec![card], own: 1, coherent, atomics, way, queues_on_host, soft: None, attempts, rails, places }
    }

    /// Returns the software HCA.
    pub(super) fn of_soft(soft: Arc<SoftHca>, card: OpenCard, coherent: bool) -> Self {
        Self { soft: Some(soft), ..Self::new(card, coherent) }
    }

    /// Returns where its cards are, as the other PEs learn it.
    pub(super) fn spots(&self) -> Vec<Spot> {
        self.cards.iter().map(|card| Spot::new(card.chosen.as_ref())).collect()
    }

    /// Returns `soft` or `mlx5`.
    pub(crate) fn provider_name(&self) -> &'static str {
        self.cards[0].provider.info().provider
    }

    /// Returns which fence modes keep what is posted to a queue pair in order.
    pub(crate) fn order(&self, config: &Config) -> Order {
        let in_order = self.cards.iter().all(|card| card.provider.info().in_order);
        Order::new(in_order && !config.ib_strong_ordering())
    }

    /// Returns how many cards are the PE's own, to which peers send.
    pub(crate) fn targets(&self) -> u32 {
        count32(self.own)
    }

    /// Returns how the queue pairs are spread over the cards that they lead to.
    pub(crate) fn striping(&self, config: &Config) -> Striping {
        Striping::new(config.qps_per_peer(), self.targets())
    }

    /// Returns the software HCA in the place of a card, if it is that.
    pub(super) fn plays(&self, chosen: &Chosen) -> Option<OpenCard> {
        self.soft.as_ref()?;
        let OpenCard { provider, extended_atomics, log_max_rd_atomic, .. } = self.cards.first()?;
        let (extended_atomics, log_max_rd_atomic) = (*extended_atomics, *log_max_rd_atomic);
        let chosen = Some(chosen.clone());
        let provider = Arc::clone(provider);
        Some(OpenCard { provider, extended_atomics, log_max_rd_atomic, chosen, pushed: None })
    }

    /// Finds out whether queues of cards from number `from` on can be what those of the others are.
    pub(super) fn prepare_further(
        &mut self,
        config: &Config,
        device: &dyn Device,
        (kind, log_depth): (NetworkKind, u32),
        from: usize,
    ) -> Result<()> {
        match kind {
            NetworkKind::Ibgda => {
                check_records(config, self, from)?;
                prepare_for_device(config, device, self, from, log_depth)
            }
            NetworkKind::Ibrc => self.cards[from..].iter().try_for_each(|card| check_queues(card, log_depth)),
        }
    }

    /// Pushes by all cards.
    pub(super) fn push(&mut self, pushing: Pushing) {
        let further = self.cards[self.own..].iter().map(|card| Spot::new(card.chosen.as_ref())).collect();
        self.rails.push(pushing, further);
    }

    /// Closes the cards that are not the PE's own.
    pub(super) fn keep_own(&mut self) {
        self.cards.truncate(self.own);
    }

    /// Takes another card of the PE's own in.
    pub(super) fn add(&mut self, card: OpenCard, coherent: bool) {
        self.coherent &= coherent;
        self.cards.push(card);
        self.own = self.cards.len();
    }

    /// Keeps as many cards as the PE with fewest has, that PE with its number, and no more than
    /// there are queue pairs to a peer: the first.
    pub(super) fn keep(&mut self, config: &Config, (fewest, pe): (u8, u32)) {
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
        self.own = count as usize;
        for card in self.cards.drain(self.own..) {
            let what = format!("{} as a further card", card.provider.info().device);
            self.attempts.push(Attempt { what, outcome: Err(reason.to_owned()) });
        }
    }
}

impl OpenCard {
    /// Returns it as the card that was chosen.
    pub(super) fn at(self, chosen: Chosen) -> Self {
        Self { chosen: Some(chosen), ..self }
    }

    /// Returns it as a card of another rail, with the way that payloads take to it, and why.
    pub(super) fn pushed(self, way: PayloadWay, reason: String) -> Self {
        Self { pushed: Some((way, reason)), ..self }
    }

    /// Returns which way payloads take to it, and why: what the table says.
    pub(super) fn way(&self) -> (PayloadWay, String) {
        self.pushed.clone().unwrap_or_else(|| match &self.chosen {
            Some(chosen) => fetch(chosen.is_gpu(), Some(chosen.distance)),
            None => fetch(true, None),
        })
    }

    /// Returns the address of its port, with 0 in the place of a queue pair's number, and with as
    /// many reads and atomics as queue pairs with [`attributes`] serve.
    pub(super) fn port(&self, config: &Config) -> QpAddress {
        let log_rra_max = attributes(config, self.log_max_rd_atomic, 0).log_max_rd_atomic;
        QpAddress { log_rra_max, ..self.provider.info().address() }
    }

    /// Returns its name for people.
    pub(super) fn name(&self) -> String {
        self.chosen.as_ref().map_or_else(|| self.provider.info().device.clone(), |chosen| chosen.card.to_string())
    }

    /// Returns the card, and whether its atomics are coherent.
    pub(super) fn new(provider: Arc<dyn Provider>, general: &GeneralCaps, atomic: &AtomicCaps) -> Result<(Self, bool)> {
        let operations = ATOMIC_OP_EXTENDED_CMP_SWAP | ATOMIC_OP_EXTENDED_FETCH_ADD;
        let sizes = ATOMIC_SIZE_4 | ATOMIC_SIZE_8;
        let missing = if !general.rc {
            Some("it has no RC transport; use another card, or OXSHMEM_HCA=soft")
        } else if !general.atomic {
            Some("it has no atomics; use another card, or OXSHMEM_HCA=soft")
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
            pushed: None,
            provider,
        };
        Ok((card, coherent))
    }
}

/// Returns what drives cards, each once: the software HCA can be in the place of several.
pub(crate) fn distinct<'a>(providers: impl Iterator<Item = &'a Arc<dyn Provider>>) -> Vec<Arc<dyn Provider>> {
    let mut found: Vec<Arc<dyn Provider>> = Vec::new();
    for provider in providers {
        let is_it = |known: &Arc<dyn Provider>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(provider));
        if !found.iter().any(is_it) {
            found.push(Arc::clone(provider));
        }
    }
    found
}

/// Returns what was tried on a card, named where there are several.
pub(crate) fn of_card(cards: usize, provider: &dyn Provider, attempts: Vec<Attempt>) -> Vec<Attempt> {
    if cards == 1 {
        return attempts;
    }
    let device = &provider.info().device;
    let named = |attempt: Attempt| Attempt { what: format!("{device}: {}", attempt.what), outcome: attempt.outcome };
    attempts.into_iter().map(named).collect()
}

pub(super) fn hca_error(provider: &dyn Provider, what: String) -> crate::Error {
    TransportError::Hca { device: provider.info().device.clone(), what }.into()
}

/// Refuses cards from number `from` on that want a doorbell record where the configuration wants
/// none.
pub(super) fn check_records(config: &Config, opened: &Opened, from: usize) -> Result<()> {
    if config.ibgda_doorbell_record() == DoorbellRecord::Always {
        return Ok(());
    }
    let Some(card) = opened.cards[from..].iter().find(|card| card.provider.info().without_records == 0) else {
        return Ok(());
    };
    let have = match card.provider.info().provider {
        "mlx5" => "its firmware does not offer them (send_dbr_mode_no_dbr_ext), as that of ConnectX-8 and newer does",
        _ => "the kernel that executes for it has none; with OXSHMEM_SOFT_ENGINE=thread and the null card there are",
    };
    let what = format!(
        "OXSHMEM_IBGDA_DOORBELL_RECORD=never, but it has no queue pairs without doorbell record: {have}; use \
         OXSHMEM_IBGDA_DOORBELL_RECORD=always"
    );
    Err(hca_error(card.provider.as_ref(), what))
}

pub(super) fn check_queues(card: &OpenCard, log_depth: u32) -> Result<()> {
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

/// Finds out whether device code can post to cards from number `from` on and how it rings: by
/// itself, or through a thread of the CPU.
pub(super) fn prepare_for_device(
    config: &Config,
    device: &dyn Device,
    opened: &mut Opened,
    from: usize,
    log_depth: u32,
) -> Result<()> {
    let mut ways = if from == 0 { Vec::new() } else { vec![opened.way] };
    for card in &opened.cards[from..] {
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

/// Returns how device code rings on a card, and whether queues have to lie in memory of the host.
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
    let records = config.ibgda_doorbell_record();
    match (records, card.provider.info().without_records) {
        (DoorbellRecord::Never, most) => {
            tried("doorbells without a record", Ok(&format!("in use; the card has {most} such queue pairs")));
        }
        (DoorbellRecord::Always, 0) => tried("doorbells without a record", Err(&"the card's firmware has none")),
        (DoorbellRecord::Always, most) => {
            let why = format!("the card has {most}, for all processes; OXSHMEM_IBGDA_DOORBELL_RECORD=never uses them");
            tried("doorbells without a record", Err(&why));
        }
    }
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

/// Checks whether the card can be given memory of the device for queues; tried with a little of it.
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
