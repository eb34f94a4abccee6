//! A short measurement of how fast cards send, where topology does not say whether PEs should push.
//!
//! Each PE has its own card and each card of another rail send a payload from the memory of its
//! device to memory of the host, as puts of this job would be sent: the card reads the payload
//! where it is, or kernels store it near the card first, which goes on while the card reads what
//! came before. Each card sends through a queue pair to itself, so that no other node takes part.
//! The fastest of several rounds counts. All PEs measure at the same time, as all send in an
//! all-to-all.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use oxshmem_hca::objects::{Mkey, Pd};
use oxshmem_hca::provider::{Access, UmemSource};
use oxshmem_hca::soft::doorbell_rung;
use oxshmem_hca::topology::fetch;
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::devx::{QueueLayout, Queues};
use oxshmem_proxy::work::{Backend, Local, Operation, Remote, Status, Transfer, WorkRequest};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::opened::{OpenCard, Opened};
use super::plan::{NetworkKind, Plan};
use super::qp_attributes::attributes;
use super::rings::{self, Borrowed, OnCard};
use super::staging;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{ByteSize, Config, Hca, SoftEngine};
use crate::device::{AddressSpace, Device, DeviceError, HostMemory, LaunchConfig, LoadedModule, Memory, Stream, Wait};
use crate::heap::PeerLinks;
use crate::modules::HOST_OPS;

/// Bytes of the payload.
const PAYLOAD: u32 = 1 << 20;
/// Rounds, of which the fastest counts.
const ROUNDS: u32 = 5;
/// Measuring ends after this time: with what the rounds until then say, or undecided if there was
/// none.
const LIMIT: Duration = Duration::from_secs(2);
/// log2 of the blocks of a queue.
const LOG_DEPTH: u32 = 6;
/// What stores a payload near a card: as many blocks and threads as a program would use that is
/// after the card's rate.
const STORES: (u32, u32) = (16, 256);
const STORES_KERNEL: &str = "oxshmem_host_copy";

/// Returns whether pushing is worth it: PEs push where that takes at most ten ninths of the time:
/// what is saved beyond the node cannot be measured here.
fn is_worth(pushed: Time, direct: Time) -> bool {
    pushed.total().as_nanos() * 9 <= direct.total().as_nanos() * 10
}

/// Returns why nothing is measured, if the cards' time says nothing about cards.
pub(super) fn check(config: &Config, device: &dyn Device, opened: &Opened) -> std::result::Result<(), String> {
    let by_kernel = matches!(config.soft_engine(), SoftEngine::Kernel | SoftEngine::Copy);
    match opened.provider_name() {
        "soft" if device.gpu().is_some() || by_kernel || *config.hca() == Hca::Null => Err(
            "the software HCA executes by a kernel, so that there is nothing to measure; OXSHMEM_RAILS=push or direct decides".to_owned(),
        ),
        _ => Ok(()),
    }
}

/// What a measurement has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measured {
    /// Whether pushing is worth it for this PE.
    pub pushes: bool,
    /// The figures, in words.
    pub figures: String,
}

/// How long a payload takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Time {
    /// The time of the stores to memory near the card, if there are any.
    stored: Option<Duration>,
    /// The card's time, from the doorbell to the completion.
    sent: Duration,
}

impl Time {
    /// Returns that of long payloads, whose pieces are stored while earlier ones are sent.
    fn total(self) -> Duration {
        self.stored.map_or(self.sent, |stored| stored.max(self.sent))
    }

    /// Returns the shorter times of two rounds.
    fn best(self, other: Self) -> Self {
        let stored = self.stored.zip(other.stored).map(|(one, other)| one.min(other));
        Self { stored, sent: self.sent.min(other.sent) }
    }
}

/// Why a PE could not measure.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("not measured within {} ms", LIMIT.as_millis())]
    TimeUp,
    #[error("not measured: {0}")]
    Refused(String),
}

impl From<crate::Error> for Failed {
    fn from(error: crate::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<oxshmem_hca::Error> for Failed {
    fn from(error: oxshmem_hca::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<DeviceError> for Failed {
    fn from(error: DeviceError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// Measures the cards with these numbers, of other rails, beside this PE's own. Returns nothing if
/// there are none. Collective, as PEs lend each other memory.
///
/// # Errors
/// A PE is gone, or does not reply. Everything else is a reason not to push.
pub(super) fn measure(
    config: &Config,
    (bootstrap, links): (&Bootstrap, &PeerLinks),
    device: &dyn Device,
    (plan, kind): (&Plan, NetworkKind),
    opened: &Opened,
    undecided: &[usize],
) -> Result<Option<Measured>> {
    let me = bootstrap.rank() as usize;
    let rings = rings::Plan::new(config, (&plan.nodes, me), &opened.cards);
    let wanted = |card: u32| if undecided.contains(&(card as usize)) { PAYLOAD.into() } else { 0 };
    // Over the CPU proxy nothing goes through the memory of another PE.
    let (lent, borrowed) = match kind {
        NetworkKind::Ibgda => rings.exchange((bootstrap, links), device, wanted)?,
        NetworkKind::Ibrc => Default::default(),
    };
    let by_proxy = |card: &OpenCard| {
        let chosen = card.chosen.as_ref()?;
        staging::choose_for_proxy(config.staging(), fetch(chosen.is_gpu(), Some(chosen.distance))).from
    };
    let is_staged = |number: usize| {
        let from = match kind {
            NetworkKind::Ibgda => rings.staged_from(number),
            NetworkKind::Ibrc => opened.cards.get(number).and_then(by_proxy),
        };
        from.is_some_and(|from| from <= PAYLOAD)
    };
    let measured = (!undecided.is_empty()).then(|| {
        let senders = std::iter::once(0).chain(undecided.iter().copied());
        let senders: Vec<(usize, bool)> = senders.map(|number| (number, is_staged(number))).collect();
        let bench = Bench::new(config, device, opened, &senders, borrowed);
        match bench.and_then(|mut bench| bench.run(Instant::now() + LIMIT)) {
            Ok(times) => judge(&times),
            Err(failed) => Measured { pushes: false, figures: failed.to_string() },
        }
    });
    if let Some(Measured { pushes, figures }) = &measured {
        tracing::debug!(target: "oxshmem::transport", pe = me, pushes, "measured whether to push: {figures}");
    }
    drop(lent);
    Ok(measured)
}

/// Judges what the PE's own card, the first, and those of other rails have taken.
fn judge(times: &[(String, Time)]) -> Measured {
    let [(own, direct), further @ ..] = times else {
        return Measured { pushes: true, figures: "there is no card to measure".to_owned() };
    };
    let all = further.iter().map(|(name, time)| format!(", {name} in {time}"));
    Measured {
        pushes: further.iter().all(|(_, time)| is_worth(*time, *direct)),
        figures: format!("measured: {} by {own} in {direct}{}", ByteSize(PAYLOAD.into()), all.collect::<String>()),
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.total().as_micros())?;
        match self.stored {
            Some(stored) => write!(f, " (stored in {}, sent in {})", stored.as_micros(), self.sent.as_micros()),
            None => Ok(()),
        }
    }
}

/// What is needed to measure.
struct Bench<'a> {
    // Dropped in this order: what uses memory, then memory.
    senders: Vec<Sender>,
    stores: Option<Arc<dyn LoadedModule>>,
    target: Target,
    payload: Payload,
    device: &'a dyn Device,
}

impl<'a> Bench<'a> {
    /// Prepares the cards with these numbers, of which some read payloads near them.
    fn new(
        config: &Config,
        device: &'a dyn Device,
        opened: &Opened,
        senders: &[(usize, bool)],
        mut borrowed: Vec<Borrowed>,
    ) -> std::result::Result<Self, Failed> {
        let stores = if senders.iter().any(|(_, is_staged)| *is_staged) { Some(device.load(&HOST_OPS)?) } else { None };
        let (target, payload) = (Target::new()?, Payload::new(device)?);
        let mut bench = Self { senders: Vec::new(), stores, target, payload, device };
        let fence = opened.order(config).fence;
        for (number, is_staged) in senders {
            let lent = u32::try_from(*number).ok().and_then(|number| Borrowed::take(&mut borrowed, number));
            let card = opened.cards.get(*number).ok_or_else(|| Failed::Refused("a card is missing".to_owned()))?;
            let near = is_staged.then_some(lent);
            bench.senders.push(Sender::new((config, fence), (card, near), device, (&bench.payload, &bench.target))?);
        }
        Ok(bench)
    }

    /// Returns the name and the best time of each card.
    fn run(&mut self, until: Instant) -> std::result::Result<Vec<(String, Time)>, Failed> {
        let mut best: Vec<Time> = Vec::new();
        for _ in 0..ROUNDS {
            match self.round(until) {
                Ok(round) if best.is_empty() => best = round,
                Ok(round) => best.iter_mut().zip(round).for_each(|(best, time)| *best = best.best(time)),
                // What was measured before counts.
                Err(Failed::TimeUp) if !best.is_empty() => break,
                Err(failed) => return Err(failed),
            }
        }
        Ok(self.senders.iter().map(|sender| sender.name.clone()).zip(best).collect())
    }

    fn round(&mut self, until: Instant) -> std::result::Result<Vec<Time>, Failed> {
        let mut times = Vec::new();
        for sender in &mut self.senders {
            let near = sender.near.as_ref().map(OnCard::address);
            let stored =
                near.zip(self.stores.as_ref()).map(|(near, module)| store(module, self.device, &self.payload, near));
            times.push(Time { stored: stored.transpose()?, sent: sender.send(until)? });
        }
        Ok(times)
    }
}

/// Has kernels store the payload at `near`. Returns how long that takes.
fn store(
    module: &Arc<dyn LoadedModule>,
    device: &dyn Device,
    payload: &Payload,
    near: u64,
) -> std::result::Result<Duration, Failed> {
    let config = LaunchConfig::linear(STORES.0, STORES.1);
    let (to, from, bytes) = (near.to_ne_bytes(), payload.address().to_ne_bytes(), u64::from(PAYLOAD).to_ne_bytes());
    let begun = Instant::now();
    // SAFETY: the kernel takes two addresses and a number of bytes, which both ranges have; they
    // stay until it has ended below.
    unsafe { module.launch(STORES_KERNEL, config, &[&to, &from, &bytes], &Stream::OWN) }?;
    let mut first = [0; 8];
    // SAFETY: the payload is mapped memory of the device, and longer.
    unsafe { device.synchronize(Wait::Own, payload.address(), &mut first) }?;
    Ok(begun.elapsed())
}

/// A payload in memory of the device.
struct Payload {
    // Dropped in this order.
    space: Box<dyn AddressSpace>,
    memory: Memory,
}

impl Payload {
    fn new(device: &dyn Device) -> std::result::Result<Self, DeviceError> {
        let bytes = u64::from(PAYLOAD).next_multiple_of(device.granularity());
        let memory = device.allocate(bytes)?;
        let space = device.reserve(bytes, 1)?;
        space.map_own(&memory, 0, bytes)?;
        // Pages that were never written may not be there.
        // SAFETY: the memory is mapped, and nothing else uses it.
        unsafe { device.fill(space.base(), 1, bytes) }?;
        Ok(Self { space, memory })
    }

    fn address(&self) -> u64 {
        self.space.base()
    }

    fn register(&self, pd: &Arc<Pd>, device: &dyn Device) -> std::result::Result<Mkey, Failed> {
        let source = UmemSource::Fd {
            fd: self.memory.as_fd(),
            offset: 0,
            len: PAYLOAD as usize,
            addr: self.address() as *mut u8,
            device: device.exporter(),
        };
        // SAFETY: a bench drops its keys before the payload, which is used through raw pointers
        // only.
        Ok(unsafe { Mkey::register(pd, source, None, self.address(), Access::LOCAL) }?)
    }
}

/// Memory of the host that cards write to, the software HCA too.
struct Target {
    descriptor: OwnedFd,
    mapping: MmapRaw,
}

impl Target {
    fn new() -> std::result::Result<Self, Failed> {
        let refused = |errno: rustix::io::Errno| Failed::Refused(format!("no memory of the host: {errno}"));
        let descriptor = memfd_create("oxshmem-measured", MemfdFlags::CLOEXEC).map_err(refused)?;
        ftruncate(&descriptor, PAYLOAD.into()).map_err(refused)?;
        let mapping = MmapOptions::new().len(PAYLOAD as usize).populate().map_raw(&descriptor);
        let mapping = mapping.map_err(|error| Failed::Refused(format!("no memory of the host: {error}")))?;
        Ok(Self { descriptor, mapping })
    }

    fn register(&self, pd: &Arc<Pd>) -> std::result::Result<Mkey, Failed> {
        let (len, addr) = (PAYLOAD as usize, self.mapping.as_mut_ptr());
        let source = UmemSource::Fd { fd: self.descriptor.as_fd(), offset: 0, len, addr, device: None };
        // SAFETY: a bench drops its keys before the target, which only cards use.
        Ok(unsafe { Mkey::register(pd, source, None, addr as u64, Access::ALL) }?)
    }
}

/// A card with a queue pair to itself.
struct Sender {
    // Dropped in this order: the queue pair, keys, the memory of queues.
    queues: Queues,
    request: WorkRequest,
    _payload: Mkey,
    _target: Mkey,
    near: Option<OnCard>,
    _memory: Box<dyn HostMemory>,
    name: String,
}

impl Sender {
    /// Connects a card to itself. `near` says whether payloads are stored near it first, and with
    /// what another PE has lent for that, or else in memory of the host.
    fn new(
        (config, fence): (&Config, Fence),
        (card, near): (&OpenCard, Option<Option<Borrowed>>),
        device: &dyn Device,
        (payload, target): (&Payload, &Target),
    ) -> std::result::Result<Self, Failed> {
        let layout = QueueLayout { count: 1, log_depth: LOG_DEPTH };
        let pd = Pd::alloc(&card.provider)?;
        let memory = device.host_memory(layout.bytes())?;
        let extended = card.extended_atomics;
        // SAFETY: the memory is zero, and is dropped after the queues, which alone use it.
        let queues = unsafe { Queues::create(&pd, memory.address(), layout, extended, fence, doorbell_rung) }?;
        let own = queues.address(0).ok_or_else(|| Failed::Refused("there is no queue pair".to_owned()))?;
        queues.connect(&[(0, own, attributes(config, card.log_max_rd_atomic, 0))])?;
        let (from, to) = (payload.register(&pd, device)?, target.register(&pd)?);
        let mut name = card.name();
        if let (Some(rail), true) = (card.chosen.as_ref().and_then(|chosen| chosen.rail), card.pushed.is_some()) {
            name = format!("{name} of rail {}", rail.number);
        }
        let near = match near {
            None => None,
            Some(Some(lent)) => {
                name = format!("{name} through the GPU of PE {}", lent.owner());
                Some(OnCard::borrowed(&pd, device, lent)?)
            }
            Some(None) => {
                name += " through memory of the host";
                Some(OnCard::new(&pd, device, PAYLOAD.into())?)
            }
        };
        let (address, key) =
            near.as_ref().map_or((payload.address(), from.lkey()), |near| (near.address(), near.lkey()));
        let source = Local { address, length: PAYLOAD, key };
        let target = Remote { address: target.mapping.as_mut_ptr() as u64, key: to.rkey() };
        let operation = Operation::Transfer(Transfer::Write { source, target });
        let request = WorkRequest { id: 0, operation, signaled: true, fence: false };
        Ok(Self { queues, request, _payload: from, _target: to, near, _memory: memory, name })
    }

    /// Has the card send the payload. Returns how long that takes.
    fn send(&mut self, until: Instant) -> std::result::Result<Duration, Failed> {
        let refused = |reason: String| Failed::Refused(reason);
        let begun = Instant::now();
        self.queues.post(0, &[self.request]).map_err(|error| refused(error.to_string()))?;
        self.queues.announce();
        self.request.id += 1;
        let mut ended = Vec::new();
        loop {
            self.queues.poll(&mut ended).map_err(|error| refused(error.to_string()))?;
            match ended.pop().map(|completion| completion.status) {
                Some(Status::Success) => return Ok(begun.elapsed()),
                Some(Status::Failed { syndrome, .. }) => {
                    let reason = self.queues.explain(0).unwrap_or_else(|| format!("syndrome {syndrome:#04x}"));
                    return Err(refused(format!("{} cannot send the payload: {reason}", self.name)));
                }
                None if Instant::now() >= until => return Err(Failed::TimeUp),
                // The software HCA may need the core.
                None => std::thread::yield_now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(stored: Option<u64>, sent: u64) -> Time {
        Time { stored: stored.map(Duration::from_micros), sent: Duration::from_micros(sent) }
    }

    #[test]
    fn the_slower_of_stores_and_card_counts() {
        assert_eq!(time(None, 50).total(), Duration::from_micros(50));
        assert_eq!(time(Some(20), 50).total(), Duration::from_micros(50));
        assert_eq!(time(Some(70), 50).total(), Duration::from_micros(70));
        assert_eq!(time(Some(70), 50).best(time(Some(80), 40)), time(Some(70), 40));
        assert_eq!(time(None, 50).best(time(None, 60)), time(None, 50));
    }

    #[test]
    fn pes_push_unless_that_is_slower_by_more_than_a_tenth_of_the_rate() {
        let judged = |further: &[Time]| {
            let further = further.iter().map(|time| ("far".to_owned(), *time));
            judge(&std::iter::once(("own".to_owned(), time(None, 90))).chain(further).collect::<Vec<_>>())
        };
        for (further, pushes) in [
            (&[time(Some(20), 90)][..], true),
            (&[time(Some(100), 90)], true),
            (&[time(None, 101)], false),
            (&[time(Some(101), 90)], false),
            (&[time(None, 90), time(None, 200)], false),
            (&[time(None, 10), time(None, 20)], true),
        ] {
            assert_eq!(judged(further).pushes, pushes, "{further:?}");
        }
        let figures = "measured: 1M by own in 90 us, far in 100 us (stored in 100, sent in 80), far in 30 us";
        assert_eq!(judged(&[time(Some(100), 80), time(None, 30)]).figures, figures);
    }
}
