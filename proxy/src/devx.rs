//! A [`Backend`] over queue pairs that DevX commands set up: those of the software HCA, or of a
//! card that is driven without verbs.
//!
//! Queues, doorbell records and CQEs lie in host memory, which the caller gives. Each queue pair
//! has a collapsed CQ: one entry, which names the newest completed work request that requested it.
//! WQEs are written with [`oxshmem_hca::wire`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oxshmem_hca::blueflame::BlueFlame;
use oxshmem_hca::objects::{Cq, CqAttributes, Doorbells, Pd, Qp, QpAddress, QpAttributes, QpGeometry, Uar, Umem};
use oxshmem_hca::prm::qpc::SendDbrMode;
use oxshmem_hca::provider::{Provider, Rung, UmemSource};
use oxshmem_hca::wire::ctrl::{self, Fence, Opcode};
use oxshmem_hca::wire::{BLOCK_BYTES, OCTOWORD_BYTES, Op, Wqe, cqe, data, dbr, doorbell, inline, masked_atomic, raddr};
use oxshmem_hca::{Error, Result, provider::Access};
use oxshmem_system::side_by_side::side_by_side;
use oxshmem_system::store_fence::store_fence;
use oxshmem_system::words::{const32, count32, low16, low32, native};

use crate::prefetch;
use crate::work::{
    Atomic, Backend, Capabilities, Completion, Failure, Local, Operation, PollError, PostError, Remote, Status,
    Transfer, Width, WorkRequest,
};

/// A collapsed CQ uses its first entry alone; two is the least that drivers create.
const LOG_CQ_SIZE: u8 = 1;
/// Bytes that a WQE can carry inside.
const MAX_INLINE: u32 = const32(oxshmem_hca::wire::wqe::MAX_INLINE);
/// A line for each record.
const LINE: u64 = 128;
/// The most blocks that a request of the engine takes: 48 bytes inline, or an eight-byte masked
/// compare-and-swap.
const MOST_BLOCKS: u32 = 2;
const BLOCK_WORDS: usize = BLOCK_BYTES / 8;
const WORDS: usize = MOST_BLOCKS as usize * BLOCK_WORDS;

/// How many blocks ahead of the one that is written are fetched.
const AHEAD: u64 = 16;

/// A WQE in memory order.
type Words = [u64; WORDS];

/// Where the queues of `count` queue pairs lie in memory, as offsets.
#[derive(Debug, Clone, Copy)]
pub struct QueueLayout {
    /// Queue pairs.
    pub count: u32,
    /// log2 of the blocks of a send queue.
    pub log_depth: u32,
}

impl QueueLayout {
    fn stride(&self) -> u64 {
        // CQ, its doorbell record, the queue pair's doorbell record, the send queue.
        ((BLOCK_BYTES as u64) << self.log_depth) + 3 * LINE
    }

    fn cq(&self, qp: u32) -> u64 {
        u64::from(qp) * self.stride()
    }

    fn cq_record(&self, qp: u32) -> u64 {
        self.cq(qp) + LINE
    }

    fn record(&self, qp: u32) -> u64 {
        self.cq(qp) + 2 * LINE
    }

    fn queue(&self, qp: u32) -> u64 {
        self.cq(qp) + 3 * LINE
    }

    /// Creates queue pair `index`, whose completion queue is filled already.
    fn create_qp(&self, pd: &Arc<Pd>, uar: &Arc<Uar>, umem: &Arc<Umem>, index: u32) -> Result<Qp> {
        let attributes = CqAttributes {
            log_size: LOG_CQ_SIZE,
            umem_offset: self.cq(index),
            dbr_offset: self.cq_record(index),
            collapsed: true,
        };
        let cq = Cq::create(uar, umem, &attributes)?;
        let geometry = QpGeometry {
            log_sq_size: u8::try_from(self.log_depth)
                .map_err(|_| wrong("log_depth", self.log_depth, "it is at most 15"))?,
            sq_offset: self.queue(index),
            dbr_offset: self.record(index),
            user_index: index,
            // A CPU's fences between the record and the doorbell cost next to nothing.
            send_dbr_mode: SendDbrMode::DbrValid,
        };
        Qp::create(pd, &cq, uar, umem, &geometry)
    }

    /// Returns the bytes of all doorbell records, those of completion queues included.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        u64::from(self.count) * 2 * LINE
    }

    /// Returns the bytes of them all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (u64::from(self.count) * self.stride()).max(LINE).next_multiple_of(4096)
    }
}

/// Queue pairs that are not connected yet, or are in use.
#[derive(Debug)]
pub struct Queues {
    pairs: Vec<Pair>,
    layout: QueueLayout,
    base: *mut u8,
    provider: Arc<dyn Provider>,
    capabilities: Capabilities,
    fence: Fence,
    /// Queue pairs with requests on their way.
    busy: Vec<u32>,
    rung: fn(),
}

// SAFETY: the pointer names memory that is accessed by atomics alone, from one thread at a time.
unsafe impl Send for Queues {}

#[derive(Debug)]
struct Pair {
    qp: Qp,
    doorbell: *mut u64,
    /// The same register, if it takes work requests.
    blueflame: Option<BlueFlame>,
    _uar: Arc<Uar>,
    /// Blocks filled so far.
    posted: u64,
    /// The first blocks, modulo 2^16, of the requests on their way. A queue has less than 2^15
    /// blocks, so these tell how far apart they are.
    requests: VecDeque<u16>,
    /// The id of the oldest of them, or of the next.
    oldest_id: u64,
    /// A fence was requested, and no WQE since has carried its mode; see [`fence_of`].
    owed: bool,
    failed: bool,
}

/// Where a WQE goes.
#[derive(Debug, Clone, Copy)]
struct Place {
    qpn: u32,
    /// The send queue's offset.
    queue: u64,
    /// The first block, as counted from the beginning.
    index: u64,
}

impl Queues {
    /// Creates queue pairs in the memory at `base`, which is zero. `extended_atomics` says whether
    /// the HCA has masked ones, and those of four bytes. `fence` is the mode that keeps a request
    /// in order: [`Fence::Fence`] where a queue pair delivers in order, which only a write after
    /// reads and atomics needs; otherwise [`Fence::StrongOrdering`]. `rung` is called after
    /// doorbells, for providers that have to be told.
    ///
    /// # Errors
    /// What the provider refuses.
    ///
    /// # Safety
    /// [`QueueLayout::bytes`] bytes stay mapped at `base` until this is dropped, and nothing else
    /// uses them. Where a kernel executes, it reaches them at that address.
    pub unsafe fn create(
        pd: &Arc<Pd>,
        base: *mut u8,
        layout: QueueLayout,
        extended_atomics: bool,
        fence: Fence,
        rung: fn(),
    ) -> Result<Self> {
        let provider = Arc::clone(pd.provider());
        let len = usize::try_from(layout.bytes()).unwrap_or(usize::MAX);
        // The software HCA's kernel, if there is one, looks at the memory by this address.
        let source = UmemSource::Program { addr: base, len, device: None };
        // SAFETY: the caller's promise; the registration lives in the queue pairs.
        let umem = unsafe { Umem::register(&provider, source, Access::LOCAL) }?;
        let capabilities = Capabilities {
            inline_bytes: MAX_INLINE,
            width_four: extended_atomics,
            masked: extended_atomics,
            four_is_big_endian: true,
            atomics_coherent_with_cpu: provider.info().coherent_atomics,
            send_depth: (1 << layout.log_depth) / MOST_BLOCKS,
            max_message: 1 << oxshmem_hca::objects::LOG_MESSAGE_MAX,
        };
        let mut queues =
            Self { pairs: Vec::new(), layout, base, provider, capabilities, fence, busy: Vec::new(), rung };
        let mut doorbells = Doorbells::new(&queues.provider, Rung::ByCpu, SendDbrMode::DbrValid);
        let doorbells = (0..layout.count).map(|_| doorbells.give()).collect::<Result<Vec<_>>>()?;
        for index in 0..layout.count {
            queues.clear_cq(index);
        }
        let places: Vec<(u32, &Arc<Uar>)> = (0..).zip(doorbells.iter().map(|doorbell| &doorbell.uar)).collect();
        let qps = side_by_side(&places, queues.commands_at_a_time(), |(index, uar)| {
            layout.create_qp(pd, uar, &umem, *index)
        })?;
        for (qp, doorbell) in qps.into_iter().zip(doorbells) {
            let requests = VecDeque::with_capacity(1 << layout.log_depth);
            let (register, uar) = (doorbell.address(), doorbell.uar);
            let blueflame = queues.provider.blueflame(register);
            queues.pairs.push(Pair {
                qp,
                doorbell: register,
                blueflame,
                _uar: uar,
                posted: 0,
                requests,
                oldest_id: 0,
                owed: false,
                failed: false,
            });
        }
        Ok(queues)
    }

    /// Fills the completion queue of queue pair `qp` with entries that no work request has
    /// completed.
    fn clear_cq(&self, qp: u32) {
        for word in 0..(BLOCK_BYTES << LOG_CQ_SIZE) as u64 / 8 {
            let entry = self.word(self.layout.cq(qp) + word * 8);
            entry.store(u64::from_ne_bytes([cqe::INITIAL_BYTE; 8]), Ordering::Relaxed);
        }
    }

    /// Returns what the peer needs to connect to queue pair `qp`.
    #[must_use]
    pub fn address(&self, qp: u32) -> Option<QpAddress> {
        self.pairs.get(qp as usize).map(|pair| pair.qp.address())
    }

    /// Returns the number of queue pair `qp`.
    #[must_use]
    pub fn qpn(&self, qp: u32) -> Option<u32> {
        self.pairs.get(qp as usize).map(|pair| pair.qp.qpn())
    }

    /// Connects queue pairs, each to the peer's, by several threads where there are many. Returns
    /// whether they deliver in order, as far as the mode that keeps requests in order relies on it;
    /// if not, [`order_strongly`](Self::order_strongly) comes before the first request.
    ///
    /// # Errors
    /// What the provider refuses.
    pub fn connect(&self, peers: &[(u32, QpAddress, QpAttributes)]) -> Result<bool> {
        let mut qps = Vec::new();
        for (qp, peer, attributes) in peers {
            let pair = self.pairs.get(*qp as usize).ok_or_else(|| wrong("qp", *qp, "no such queue pair"))?;
            qps.push((&pair.qp, peer, attributes));
        }
        let relies = self.fence == Fence::Fence;
        let connected = side_by_side(&qps, self.commands_at_a_time(), |(qp, peer, attributes)| {
            qp.connect(peer, attributes)?;
            if relies { qp.is_in_order() } else { Ok(true) }
        })?;
        Ok(connected.into_iter().all(|in_order| in_order))
    }

    /// Has a request that is to stay in order wait for everything before it from now on.
    pub fn order_strongly(&mut self) {
        self.fence = Fence::StrongOrdering;
    }

    fn commands_at_a_time(&self) -> usize {
        self.provider.info().commands_at_a_time
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.bytes() && offset.is_multiple_of(8));
        // SAFETY: inside the memory of the constructor's promise, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(native(offset)).cast()) }
    }

    /// Writes one WQE at `place`; how many blocks it took, and the first of them.
    #[inline]
    fn write(&self, place: Place, request: &WorkRequest, fence: Fence) -> (u64, [u64; BLOCK_WORDS]) {
        let (words, blocks) = match &request.operation {
            Operation::Transfer(transfer) => transfer_words(place, request.signaled, fence, transfer),
            Operation::Atomic { operands, width, result, target } => {
                op_words(place, request.signaled, fence, atomic(*operands, *width, remote(*target), local(*result)))
            }
        };
        let mask = (1u64 << self.layout.log_depth) - 1;
        let ahead = place.queue + ((place.index + AHEAD) & mask) * BLOCK_BYTES as u64;
        // The card has read what was there.
        prefetch::to_write(self.base.wrapping_add(native(ahead)));
        let (all, _) = words.as_chunks::<BLOCK_WORDS>();
        for (number, block) in (0u64..).zip(all).take(blocks) {
            let at = place.queue + ((place.index + number) & mask) * BLOCK_BYTES as u64;
            for (offset, word) in (0u64..).step_by(8).zip(block) {
                self.word(at + offset).store(*word, Ordering::Relaxed);
            }
        }
        (blocks as u64, all[0])
    }

    /// Returns what the CQE of a queue pair says, if it is news.
    fn look(&mut self, qp: u32) -> Option<Completion> {
        let at = self.layout.cq(qp);
        // The tail is written last: what is before it was written before.
        let tail = self.word(at + cqe::TAIL_OFFSET as u64).load(Ordering::Acquire).to_ne_bytes();
        if tail[7] >> 4 == cqe::INVALID {
            return None;
        }
        let counter = u16::from_be_bytes([tail[4], tail[5]]);
        let failed = tail[7] >> 4 == cqe::REQ_ERR;
        let synd = self.word(at + cqe::SYNDROME_WORD as u64).load(Ordering::Acquire).to_ne_bytes();
        if failed && self.word(at + cqe::TAIL_OFFSET as u64).load(Ordering::Relaxed).to_ne_bytes() != tail {
            // The card has written another entry meanwhile: the next look finds both parts of one.
            return None;
        }
        let pair = &mut self.pairs[qp as usize];
        if pair.failed {
            return None;
        }
        let oldest = *pair.requests.front()?;
        let from_oldest = |block: u16| block.wrapping_sub(oldest);
        if failed {
            pair.failed = true;
            let first = self.provider.first_failure(pair.qp.qpn());
            let block = first.as_ref().map_or(counter, |failure| low16(failure.wqe_index));
            let syndrome = first.as_ref().map_or(u32::from(synd[7]), |failure| u32::from(failure.syndrome));
            let what = if syndrome == cqe::Syndrome::WrFlush as u32 { Failure::Flushed } else { Failure::Error };
            // An entry that shows a flushed request has replaced that of the one that failed, which
            // may be any from the oldest on: none of them is known to have succeeded.
            let place = match what {
                Failure::Flushed => None,
                Failure::Error => pair.requests.iter().position(|start| from_oldest(*start) >= from_oldest(block)),
            };
            let id = pair.oldest_id + place.unwrap_or(0) as u64;
            pair.requests.clear();
            return Some(Completion { qp, id, status: Status::Failed { what, syndrome, vendor: u32::from(synd[6]) } });
        }
        // An older entry is far ahead.
        let newest = from_oldest(counter);
        if newest >= 1 << 15 {
            return None;
        }
        let before = pair.oldest_id;
        while pair.requests.front().is_some_and(|start| from_oldest(*start) <= newest) {
            pair.requests.pop_front();
            pair.oldest_id += 1;
        }
        (pair.oldest_id != before).then(|| Completion { qp, id: pair.oldest_id - 1, status: Status::Success })
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let qps: Vec<&Qp> = self.pairs.iter().map(|pair| &pair.qp).collect();
        // A pair that cannot be destroyed reports that when it is dropped.
        let _ = side_by_side(&qps, self.commands_at_a_time(), |qp| qp.close().and_then(|()| qp.cq().close()));
    }
}

impl Backend for Queues {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, qp: u32, requests: &[WorkRequest]) -> std::result::Result<(), PostError> {
        let Some(pair) = self.pairs.get(qp as usize) else {
            return Err(PostError {
                qp: format!("queue pair {qp}"),
                requests: requests.len(),
                reason: format!("there are {}", self.pairs.len()),
            });
        };
        let idle = pair.requests.is_empty();
        if idle && !requests.is_empty() {
            self.busy.push(qp);
        }
        // It will be looked at soon, and the card has written it since.
        prefetch::to_read(self.base.wrapping_add(native(self.layout.cq(qp))));
        let mut place = Place { qpn: pair.qp.qpn(), queue: self.layout.queue(qp), index: pair.posted };
        let mut last = None;
        for request in requests {
            let pair = &mut self.pairs[qp as usize];
            pair.requests.push_back(low16(place.index));
            let fence = fence_of(self.fence, &mut pair.owed, request);
            let (blocks, first) = self.write(place, request, fence);
            place.index += blocks;
            last = (blocks == 1).then_some(first);
        }
        let end = place.index;
        let record = self.word(self.layout.record(qp)).as_ptr().cast::<u8>().wrapping_add(dbr::SEND_OFFSET);
        let pair = &mut self.pairs[qp as usize];
        pair.posted = end;
        let ring = || {
            let with_request = match (&mut pair.blueflame, &last) {
                // SAFETY: the register is mapped as long as the pair's UAR lives.
                (Some(blueflame), Some(block)) if idle && requests.len() == 1 => unsafe { blueflame.ring(block) },
                _ => false,
            };
            if !with_request {
                let value = doorbell::Repr::producer(low16(end), pair.qp.qpn()).to_register();
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(pair.doorbell) }.store(value, Ordering::Release);
            }
        };
        // SAFETY: the second half of the record's word.
        publish(unsafe { AtomicU32::from_ptr(record.cast()) }, low16(end), store_fence, ring);
        Ok(())
    }

    fn announce(&self) {
        (self.rung)();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> std::result::Result<(), PollError> {
        let mut at = 0;
        while let Some(qp) = self.busy.get(at).copied() {
            completions.extend(self.look(qp));
            if self.pairs[qp as usize].requests.is_empty() {
                self.busy.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn status(&self) -> String {
        let mut text = Vec::new();
        for qp in &self.busy {
            let pair = &self.pairs[*qp as usize];
            let tail = self.word(self.layout.cq(*qp) + cqe::TAIL_OFFSET as u64).load(Ordering::Acquire);
            let oldest = pair.requests.front();
            text.push(format!(
                "{:#x}: {} blocks posted, oldest {oldest:?}, CQE {tail:#018x}",
                pair.qp.qpn(),
                pair.posted
            ));
        }
        text.join("; ")
    }

    fn explain(&self, qp: u32) -> Option<String> {
        self.provider.first_failure(self.qpn(qp)?).map(|failure| failure.text)
    }
}

/// Writes the doorbell record after the WQEs, and rings after that. `flush` keeps the stores in
/// order, and makes that to the register leave the core: it may be mapped write-combining.
#[inline]
fn publish(record: &AtomicU32, end: u16, flush: impl Fn(), ring: impl FnOnce()) {
    record.store(u32::from(end).to_be(), Ordering::Release);
    flush();
    ring();
    flush();
}

fn wrong(name: &'static str, value: u32, rule: &str) -> Error {
    oxshmem_system::Error::argument(name, value, rule).into()
}

fn remote(remote: Remote) -> raddr::Repr {
    raddr::Repr { raddr: remote.address, rkey: remote.key }
}

fn local(local: Local) -> data::Repr {
    data::Repr { byte_count: local.length, lkey: local.key, addr: local.address }
}

/// Returns the mode of a queue pair's next WQE, given the mode that keeps requests in order. A
/// responder takes requests in their order, so with [`Fence::Fence`] only a write needs it, which
/// may pass the reads and atomics before it. The fence of a read or an atomic is `owed`, then: the
/// next write carries it.
#[inline]
fn fence_of(mode: Fence, owed: &mut bool, request: &WorkRequest) -> Fence {
    *owed |= request.fence;
    let carries = *owed && (mode == Fence::StrongOrdering || request.operation.is_write());
    *owed &= !carries;
    if carries { mode } else { Fence::None }
}

/// Returns the words of a WQE that moves bytes, as they lie in memory, and its blocks. The same as
/// [`Wqe::emit`] makes, put together in registers: with most applications nearly every WQE is one
/// of these, and stores of single fields that are loaded as words again cost more than all the
/// rest.
#[inline(always)]
fn transfer_words(place: Place, signaled: bool, fence: Fence, transfer: &Transfer) -> (Words, usize) {
    let mut words = [0; WORDS];
    let (opcode, far, units) = match transfer {
        Transfer::Write { source, target } => {
            (words[4], words[5]) = data_segment(source);
            (Opcode::RdmaWrite, target, 3)
        }
        Transfer::Read { target, source } => {
            (words[4], words[5]) = data_segment(target);
            (Opcode::RdmaRead, source, 3)
        }
        Transfer::WriteInline { payload, target } => {
            // The payload begins after a header of four bytes.
            let length = payload.as_slice().len();
            let mut before = u64::from((inline::MARKER | count32(length)).swap_bytes());
            for (word, next) in words[4..].iter_mut().zip(payload.words().into_iter().chain([0])) {
                *word = before | next << 32;
                before = next >> 32;
            }
            (Opcode::RdmaWrite, target, 2 + (inline::HEADER_LEN + length).div_ceil(OCTOWORD_BYTES))
        }
    };
    #[allow(clippy::cast_possible_truncation, reason = "a WQE has at most 63 units")]
    let ds = units as u8;
    let control = ctrl::Repr {
        opcode,
        opmod: 0,
        index: low16(place.index),
        qpn: place.qpn,
        ds,
        fence,
        signaled,
        solicited: false,
    };
    let first = u32::from(control.index) << 8 | opcode as u32;
    words[0] = u64::from(first.swap_bytes()) | u64::from((control.qpn << 8 | u32::from(ds)).swap_bytes()) << 32;
    words[1] = u64::from(control.fm_ce_se()) << 24;
    words[2] = far.address.swap_bytes();
    words[3] = u64::from(far.key.swap_bytes());
    (words, units.div_ceil(BLOCK_BYTES / OCTOWORD_BYTES))
}

fn data_segment(local: &Local) -> (u64, u64) {
    (u64::from(local.length.swap_bytes()) | u64::from(local.key.swap_bytes()) << 32, local.address.swap_bytes())
}

/// Returns the words of any WQE.
fn op_words(place: Place, signaled: bool, fence: Fence, op: Op<'_>) -> (Words, usize) {
    let mut wqe = Wqe::new(place.qpn, low16(place.index), signaled, op);
    wqe.fence = fence;
    let mut bytes = [0; WORDS * 8];
    let blocks = wqe.emit(&mut bytes);
    let (all, _) = bytes.as_chunks::<8>();
    (std::array::from_fn(|i| u64::from_ne_bytes(all[i])), blocks)
}

/// Returns what a WQE says for an atomic. Four-byte atomics exist in the masked form only.
fn atomic(operands: Atomic, width: Width, remote: raddr::Repr, local: data::Repr) -> Op<'static> {
    use masked_atomic::Repr::{CompareSwap4, CompareSwap8, FetchAdd4, FetchAdd8};
    let masked = |operands| Op::Masked { remote, operands, local };
    match (operands, width) {
        (Atomic::Add { value, boundary: 0 }, Width::Eight) => Op::AtomicFa { remote, add: value, local },
        (Atomic::Add { value, boundary }, Width::Eight) => masked(FetchAdd8 { add: value, boundary }),
        (Atomic::Add { value, boundary }, Width::Four) => {
            masked(FetchAdd4 { add: low32(value), boundary: low32(boundary) })
        }
        (Atomic::CompareSwap { compare, swap, .. }, Width::Eight) if !operands.is_masked(width) => {
            Op::AtomicCs { remote, compare, swap, local }
        }
        (Atomic::CompareSwap { compare, swap, compare_mask, swap_mask }, Width::Eight) => {
            masked(CompareSwap8 { swap, compare, swap_mask, compare_mask })
        }
        (Atomic::CompareSwap { compare, swap, compare_mask, swap_mask }, Width::Four) => masked(CompareSwap4 {
            swap: low32(swap),
            compare: low32(compare),
            swap_mask: low32(swap_mask),
            compare_mask: low32(compare_mask),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    use crate::work::{PAYLOAD_BYTES, Payload};
    use proptest::prelude::*;

    fn any_transfer() -> impl Strategy<Value = Transfer> {
        let local = (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(address, length, key)| Local {
            address,
            length: length >> 1,
            key,
        });
        let far = (any::<u64>(), any::<u32>()).prop_map(|(address, key)| Remote { address, key });
        (0..3, local, far, prop::collection::vec(any::<u8>(), 0..=PAYLOAD_BYTES)).prop_map(
            |(kind, local, far, bytes)| {
                let mut all = [0; PAYLOAD_BYTES];
                all[..bytes.len()].copy_from_slice(&bytes);
                match kind {
                    0 => Transfer::Write { source: local, target: far },
                    1 => Transfer::Read { target: local, source: far },
                    _ => Transfer::WriteInline { payload: Payload::new(all, bytes.len()), target: far },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn words_are_those_of_the_wire_format(
            transfer in any_transfer(),
            (qpn, index) in (0u32..1 << 24, any::<u64>()),
            (signaled, fenced) in (any::<bool>(), any::<bool>()),
        ) {
            let fence = if fenced { Fence::Fence } else { Fence::None };
            let place = Place { qpn, queue: 0, index };
            let op = match &transfer {
                Transfer::Write { source, target } => {
                    Op::Write { remote: remote(*target), local: Some(local(*source)) }
                }
                Transfer::Read { target, source } => Op::Read { remote: remote(*source), local: Some(local(*target)) },
                Transfer::WriteInline { payload, target } => {
                    Op::WriteInline { remote: remote(*target), payload: payload.as_slice() }
                }
            };
            prop_assert_eq!(
                transfer_words(place, signaled, fence, &transfer),
                op_words(place, signaled, fence, op)
            );
        }
    }

    /// A store to a write-combining page is seen after a flush only, which leaves no trace that a
    /// test of the whole could see.
    #[test]
    fn the_record_is_flushed_before_the_doorbell_and_the_doorbell_at_once() {
        let record = AtomicU32::new(0);
        let seen = RefCell::new(Vec::new());
        let see = |what| seen.borrow_mut().push((what, u32::from_be(record.load(Ordering::Relaxed))));
        publish(&record, 7, || see("flush"), || see("ring"));
        assert_eq!(*seen.borrow(), [("flush", 7), ("ring", 7), ("flush", 7)]);
    }

    /// On a card that delivers in order an atomic has no fence mode, however many are under way,
    /// and neither has a read.
    #[test]
    fn only_what_may_overtake_is_fenced() {
        let [write, read, add] = operations();
        for (operation, in_order) in [(write, Fence::Fence), (read, Fence::None), (add, Fence::None)] {
            for (mode, expected) in [(Fence::Fence, in_order), (Fence::StrongOrdering, Fence::StrongOrdering)] {
                let fenced = |fence| fence_of(mode, &mut false, &request(operation, fence));
                assert_eq!(fenced(true), expected, "{operation:?}");
                assert_eq!(fenced(false), Fence::None);
            }
        }
    }

    /// A write may pass the atomics before a fence, whatever else was posted after it.
    #[test]
    fn the_first_write_after_a_fence_carries_it() {
        let [write, read, add] = operations();
        let posted = [(add, false), (add, true), (read, false), (write, false), (write, false), (add, false)];
        let modes = |mode| {
            let mut owed = false;
            posted.map(|(operation, fence)| fence_of(mode, &mut owed, &request(operation, fence)))
        };
        let one_at = |at, mode| -> [Fence; 6] { std::array::from_fn(|i| if i == at { mode } else { Fence::None }) };
        assert_eq!(modes(Fence::Fence), one_at(3, Fence::Fence));
        assert_eq!(modes(Fence::StrongOrdering), one_at(1, Fence::StrongOrdering));
    }

    /// Returns a write, a read and an atomic.
    fn operations() -> [Operation; 3] {
        let (far, near) = (Remote { address: 0, key: 1 }, Local { address: 0, length: 8, key: 2 });
        let operands = Atomic::Add { value: 1, boundary: 0 };
        [
            Operation::Transfer(Transfer::Write { source: near, target: far }),
            Operation::Transfer(Transfer::Read { target: near, source: far }),
            Operation::Atomic { operands, width: Width::Eight, result: near, target: far },
        ]
    }

    fn request(operation: Operation, fence: bool) -> WorkRequest {
        WorkRequest { id: 0, operation, signaled: true, fence }
    }
}
