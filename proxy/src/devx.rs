//! A [`Backend`] over queue pairs that DevX commands set up: those of the software HCA, or of a card that is driven without verbs.
//!
//! Queues, doorbell records and CQEs lie in host memory, which the caller gives. Each queue pair has a collapsed CQ: one entry, which
//! names the newest completed work request that asked for it. WQEs are written with [`oxshmem_hca::wire`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use oxshmem_hca::objects::{Cq, CqAttributes, Pd, Qp, QpAddress, QpAttributes, QpGeometry, Uar, Umem};
use oxshmem_hca::provider::{Provider, UmemSource};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_hca::wire::{BLOCK_BYTES, Op, Wqe, cqe, data, dbr, doorbell, masked_atomic, raddr};
use oxshmem_hca::{Error, Result, provider::Access};

use crate::work::{
    Backend, Capabilities, Completion, Failure, Local, Operation, PollError, PostError, Remote, Status, Width,
    WorkRequest,
};

/// A collapsed CQ uses its first entry alone; two is the least that drivers create.
const LOG_CQ_SIZE: u8 = 1;
/// A line for each record.
const LINE: u64 = 128;
/// The most blocks that a request of the engine takes: 48 bytes inline, or an eight-byte masked compare-and-swap.
const MOST_BLOCKS: u32 = 2;

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

    /// Bytes of them all.
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
    _uar: Arc<Uar>,
    /// Blocks filled so far.
    posted: u64,
    /// Requests on their way: the index of the first block, and the id.
    requests: VecDeque<(u64, u64)>,
    failed: bool,
}

impl Queues {
    /// Creates queue pairs in the memory at `base`, which is zero. `rung` is called after each doorbell, for providers that have to be told.
    ///
    /// # Errors
    /// What the provider refuses.
    ///
    /// # Safety
    /// [`QueueLayout::bytes`] bytes stay mapped at `base` until this is dropped, and are used by nobody else.
    pub unsafe fn create(pd: &Arc<Pd>, base: *mut u8, layout: QueueLayout, rung: fn()) -> Result<Self> {
        let provider = Arc::clone(pd.provider());
        let len = usize::try_from(layout.bytes()).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise; the registration lives in the queue pairs.
        let umem = unsafe { Umem::register(&provider, UmemSource::Host { addr: base, len }, Access::LOCAL) }?;
        let capabilities = Capabilities {
            inline_bytes: oxshmem_hca::wire::wqe::MAX_INLINE as u32,
            width_four: true,
            masked: true,
            four_is_big_endian: true,
            // Of the software HCA; whoever drives a card through this asks the card.
            atomics_coherent_with_cpu: true,
            send_depth: (1 << layout.log_depth) / MOST_BLOCKS,
            max_message: 1 << oxshmem_hca::objects::LOG_MESSAGE_MAX,
        };
        let mut queues = Self { pairs: Vec::new(), layout, base, provider, capabilities, busy: Vec::new(), rung };
        let mut uar: Option<(Arc<Uar>, usize)> = None;
        for index in 0..layout.count {
            let (page, register) = match uar.take() {
                Some((page, next)) if next < page.registers() => (page, next),
                _ => (Uar::alloc(&queues.provider)?, 0),
            };
            let doorbell = page
                .register(register)
                .ok_or_else(|| wrong("uar", page.page_id(), "a page without doorbell registers"))?;
            let qp = queues.create_pair(pd, &page, &umem, index)?;
            uar = Some((Arc::clone(&page), register + 1));
            let requests = VecDeque::with_capacity(1 << layout.log_depth);
            queues.pairs.push(Pair { qp, doorbell, _uar: page, posted: 0, requests, failed: false });
        }
        Ok(queues)
    }

    fn create_pair(&self, pd: &Arc<Pd>, uar: &Arc<Uar>, umem: &Arc<Umem>, index: u32) -> Result<Qp> {
        let at = self.layout.cq(index);
        for word in 0..(BLOCK_BYTES << LOG_CQ_SIZE) as u64 / 8 {
            self.word(at + word * 8).store(u64::from_ne_bytes([cqe::INITIAL_BYTE; 8]), Ordering::Relaxed);
        }
        let attributes = CqAttributes {
            log_size: LOG_CQ_SIZE,
            umem_offset: at,
            dbr_offset: self.layout.cq_record(index),
            collapsed: true,
        };
        let cq = Cq::create(uar, umem, &attributes)?;
        let geometry = QpGeometry {
            log_sq_size: self.layout.log_depth as u8,
            sq_offset: self.layout.queue(index),
            dbr_offset: self.layout.record(index),
            user_index: index,
        };
        Qp::create(pd, &cq, uar, umem, &geometry)
    }

    /// What the peer needs to connect to queue pair `qp`.
    #[must_use]
    pub fn address(&self, qp: u32) -> Option<QpAddress> {
        self.pairs.get(qp as usize).map(|pair| pair.qp.address())
    }

    /// The number of queue pair `qp`.
    #[must_use]
    pub fn qpn(&self, qp: u32) -> Option<u32> {
        self.pairs.get(qp as usize).map(|pair| pair.qp.qpn())
    }

    /// Connects queue pair `qp` to the peer's.
    ///
    /// # Errors
    /// What the provider refuses.
    pub fn connect(&self, qp: u32, peer: &QpAddress, attributes: &QpAttributes) -> Result<()> {
        let pair = self.pairs.get(qp as usize).ok_or_else(|| wrong("qp", qp, "no such queue pair"))?;
        pair.qp.connect(peer, attributes)
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.bytes() && offset.is_multiple_of(8));
        // SAFETY: inside the memory of the constructor's promise, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast()) }
    }

    /// Writes one WQE; how many blocks it took.
    fn write(&self, qp: u32, index: u64, request: &WorkRequest) -> u64 {
        let pair = &self.pairs[qp as usize];
        let mut wqe = Wqe::new(pair.qp.qpn(), index as u16, request.signaled, op(&request.operation));
        if request.fence {
            wqe.fence = Fence::StrongOrdering;
        }
        let mut bytes = [0; MOST_BLOCKS as usize * BLOCK_BYTES];
        let blocks = wqe.emit(&mut bytes);
        let mask = (1u64 << self.layout.log_depth) - 1;
        for (number, block) in bytes.chunks_exact(BLOCK_BYTES).take(blocks).enumerate() {
            let at = self.layout.queue(qp) + ((index + number as u64) & mask) * BLOCK_BYTES as u64;
            for (offset, word) in (0u64..).step_by(8).zip(block.as_chunks::<8>().0) {
                self.word(at + offset).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
        }
        blocks as u64
    }

    /// What the CQE of a queue pair says, if it is news.
    fn look(&mut self, qp: u32) -> Option<Completion> {
        let at = self.layout.cq(qp);
        // The tail is written last: what is in front of it was written before.
        let tail = self.word(at + cqe::TAIL_OFFSET as u64).load(Ordering::Acquire).to_ne_bytes();
        if tail[7] >> 4 == cqe::INVALID {
            return None;
        }
        let counter = u16::from_be_bytes([tail[4], tail[5]]);
        let failed = tail[7] >> 4 == cqe::REQ_ERR;
        let synd = self.word(at + 48).load(Ordering::Relaxed).to_ne_bytes();
        let pair = &mut self.pairs[qp as usize];
        if pair.failed {
            return None;
        }
        let oldest = pair.requests.front()?.0;
        if failed {
            pair.failed = true;
            // The entry may show a request that was flushed behind the one that failed.
            let first = self.provider.first_failure(pair.qp.qpn());
            let block = first.as_ref().map_or(oldest + u64::from(counter.wrapping_sub(oldest as u16)), |f| f.wqe_index);
            let id = pair.requests.iter().find(|(first, _)| *first >= block).map_or(u64::MAX, |(_, id)| *id);
            let syndrome = first.map_or(u32::from(synd[7]), |failure| u32::from(failure.syndrome));
            let what = if syndrome == cqe::Syndrome::WrFlush as u32 { Failure::Flushed } else { Failure::Error };
            pair.requests.clear();
            return Some(Completion { qp, id, status: Status::Failed { what, syndrome, vendor: u32::from(synd[6]) } });
        }
        // A queue has less than 2^15 blocks, so an older entry is more than that ahead.
        let ahead = counter.wrapping_sub(oldest as u16);
        if ahead >= 1 << 15 {
            return None;
        }
        let newest = oldest + u64::from(ahead);
        let mut id = None;
        while let Some((first, its_id)) = pair.requests.front().copied()
            && first <= newest
        {
            id = Some(its_id);
            pair.requests.pop_front();
        }
        id.map(|id| Completion { qp, id, status: Status::Success })
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
        if pair.requests.is_empty() && !requests.is_empty() {
            self.busy.push(qp);
        }
        let mut end = pair.posted;
        for request in requests {
            let blocks = self.write(qp, end, request);
            self.pairs[qp as usize].requests.push_back((end, request.id));
            end += blocks;
        }
        let pair = &mut self.pairs[qp as usize];
        pair.posted = end;
        let (qpn, register) = (pair.qp.qpn(), pair.doorbell);
        // WQEs, then the doorbell record, then the doorbell.
        let record = self.word(self.layout.record(qp)).as_ptr().cast::<u8>().wrapping_add(dbr::SEND_OFFSET);
        // SAFETY: the second half of the record's word.
        unsafe { AtomicU32::from_ptr(record.cast()) }.store(u32::from(end as u16).to_be(), Ordering::Release);
        fence(Ordering::SeqCst);
        let value = doorbell::Repr::producer(end as u16, qpn).to_register();
        // SAFETY: the register is mapped as long as the pair's UAR lives.
        unsafe { AtomicU64::from_ptr(register) }.store(value, Ordering::Release);
        (self.rung)();
        Ok(())
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

fn wrong(name: &'static str, value: u32, rule: &str) -> Error {
    Error::Argument { name, value: value.to_string(), rule: rule.to_owned() }
}

fn remote(remote: Remote) -> raddr::Repr {
    raddr::Repr { raddr: remote.address, rkey: remote.key }
}

fn local(local: Local) -> data::Repr {
    data::Repr { byte_count: local.length, lkey: local.key, addr: local.address }
}

/// What a WQE says for an operation. Four-byte atomics exist in the masked form only.
fn op(operation: &Operation) -> Op<'_> {
    use masked_atomic::Repr::{CompareSwap4, CompareSwap8, FetchAdd4, FetchAdd8};
    let masked = |target, operands, result| Op::Masked { remote: remote(target), operands, local: local(result) };
    match operation {
        Operation::Write { source, target } => Op::Write { remote: remote(*target), local: Some(local(*source)) },
        Operation::WriteInline { payload, target } => {
            Op::WriteInline { remote: remote(*target), payload: payload.as_slice() }
        }
        Operation::Read { target, source } => Op::Read { remote: remote(*source), local: Some(local(*target)) },
        Operation::FetchAdd { add, width: Width::Eight, result, target } => {
            Op::AtomicFa { remote: remote(*target), add: *add, local: local(*result) }
        }
        Operation::FetchAdd { add, width: Width::Four, result, target } => {
            masked(*target, FetchAdd4 { add: *add as u32, boundary: 0 }, *result)
        }
        Operation::CompareSwap { compare, swap, width: Width::Eight, result, target } => {
            Op::AtomicCs { remote: remote(*target), compare: *compare, swap: *swap, local: local(*result) }
        }
        Operation::CompareSwap { compare, swap, width: Width::Four, result, target } => {
            let (swap, compare) = (*swap as u32, *compare as u32);
            masked(*target, CompareSwap4 { swap, compare, swap_mask: u32::MAX, compare_mask: u32::MAX }, *result)
        }
        Operation::MaskedFetchAdd { add, boundary, width, result, target } => {
            let operands = match width {
                Width::Four => FetchAdd4 { add: *add as u32, boundary: *boundary as u32 },
                Width::Eight => FetchAdd8 { add: *add, boundary: *boundary },
            };
            masked(*target, operands, *result)
        }
        Operation::MaskedCompareSwap { compare, swap, compare_mask, swap_mask, width, result, target } => {
            let (swap, compare, swap_mask, compare_mask) = (*swap, *compare, *swap_mask, *compare_mask);
            let operands = match width {
                Width::Four => CompareSwap4 {
                    swap: swap as u32,
                    compare: compare as u32,
                    swap_mask: swap_mask as u32,
                    compare_mask: compare_mask as u32,
                },
                Width::Eight => CompareSwap8 { swap, compare, swap_mask, compare_mask },
            };
            masked(*target, operands, *result)
        }
    }
}
