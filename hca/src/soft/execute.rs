//! Execution of one WQE: strict checks, translation of keys, and the transfer itself.
//!
//! Checks come in the order in which hardware meets them: the WQE's own format, the local key, the
//! way to the peer, the remote key. Each has the syndrome that hardware answers with:
//!
//! | what is wrong | syndrome |
//! |---|---|
//! | format of the WQE, its index or QP number | local QP operation (0x02) |
//! | message longer than `log_msg_max`, result of an atomic not as long as its operand | local length (0x01) |
//! | local key: unknown, other protection domain, right, bounds | local protection (0x04) |
//! | no peer, peer not ready, not connected to this QP, dead; packet sequence numbers differ | retry exceeded (0x15), after the retry budget |
//! | the peer's QP does not accept the operation, or serves fewer reads at a time; atomic not aligned | remote invalid request (0x12) |
//! | remote key: unknown, other protection domain, right, bounds | remote access (0x13) |

use super::admission::{Initiator, Target};
use super::atomics::Atomic;
use super::control::{self, MkeyFacts, rights};
use super::copying::{Copying, Place};
use super::fabric::message::EXCHANGE_LIMIT;
use super::fabric::peer::PeerMemory;
use super::failure::Failure;
use super::state::{Deferred, Engine, LocalKey, Qp, RemoteKey};
use super::{admission, memory};
use crate::error::Error;
use crate::prm::mkey::ANY_QP;
use crate::wire::cqe::Syndrome;
use crate::wire::ctrl::Fence;
use crate::wire::{BLOCK_BYTES, Op, Wqe, data, raddr};
use oxshmem_system::words::{low16, native};
use std::time::Duration;

/// The largest payload that the fault `visibility` holds back.
pub(super) const MAX_DEFERRED: usize = 1 << 20;
/// Where an inline payload starts in its WQE.
const INLINE_OFFSET: usize = 36;

/// Why a WQE does not go on.
pub(super) enum Stop {
    /// Not now; after the retry budget, not at all.
    Stall(String),
    /// Not now: an exchange between the HCAs is under way that a card does not need. It has its own
    /// limit.
    Fetch(String),
    /// Not at all.
    Fail(Failure),
    /// Nothing is wrong with it, and the kernel that executes this QP now has what it needs.
    HandBack,
    /// Nothing is wrong with it, and only a kernel does it, which has to take turns with others.
    Aside,
}

/// The unit that touches memory of queues and payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Cpu,
    Kernel,
    Copies,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Fail(failure)
    }
}

/// A transfer of bytes.
struct Transfer {
    dst: *mut u8,
    src: *const u8,
    len: usize,
}

/// What a step of a QP came to.
pub(super) enum Step {
    /// The WQE is done.
    Done,
    /// Nothing more can be done now.
    Wait,
}

impl Engine {
    /// Executes the WQE in `bytes`, or goes on with it. `blocks` is its size.
    pub(super) fn execute(&mut self, qp: &mut Qp, bytes: &[u8], blocks: u64, budget: &mut usize) -> Step {
        let wqe = match self.check(qp, bytes) {
            Ok(wqe) => wqe,
            Err(failure) => return self.fail_in_order(qp, bytes[3], blocks, &failure),
        };
        if self.faulty
            && qp.moved == 0
            && let Err(failure) = self.check_source(qp, &wqe)
        {
            return self.fail_in_order(qp, bytes[3], blocks, &failure);
        }
        if qp.flow.is_some() {
            return self.send(qp, &wqe, blocks, budget);
        }
        if self.tracer.is_on() && qp.moved == 0 && qp.stalled.is_none() {
            self.tracer.line("wqe", format_args!("{wqe}"));
        }
        match self.perform(qp, &wqe, budget) {
            Ok(Some(moved)) => {
                self.complete(qp, wqe.op.opcode() as u8, blocks, moved, wqe.signaled);
                Step::Done
            }
            Ok(None) => {
                qp.stalled = None;
                Step::Wait
            }
            Err(Stop::Fail(failure)) => {
                self.fail(qp, wqe.op.opcode() as u8, blocks, &failure);
                Step::Done
            }
            Err(Stop::HandBack) => {
                qp.stalled = None;
                qp.handed.done = true;
                Step::Wait
            }
            Err(Stop::Aside) => {
                qp.stalled = None;
                qp.handed.aside = true;
                Step::Wait
            }
            Err(Stop::Stall(reason)) => self.stall(qp, wqe.op.opcode() as u8, blocks, qp.retry_budget(), &reason),
            Err(Stop::Fetch(reason)) => {
                let budget = qp.retry_budget().map(|budget| budget.max(EXCHANGE_LIMIT));
                self.stall(qp, wqe.op.opcode() as u8, blocks, budget, &reason)
            }
        }
    }

    #[cold]
    pub(super) fn stall(
        &mut self,
        qp: &mut Qp,
        opcode: u8,
        blocks: u64,
        budget: Option<Duration>,
        reason: &str,
    ) -> Step {
        let now = self.now();
        let since = *qp.stalled.get_or_insert(now);
        match budget {
            Some(budget) if now.duration_since(since) >= budget => {
                let text = format!("{reason}; gave up after {budget:?} (ack_timeout and retry_count of the QP)");
                self.fail(qp, opcode, blocks, &Failure::new(Syndrome::RetryExceeded, text));
                Step::Done
            }
            _ => Step::Wait,
        }
    }

    /// Looks at what a WQE of QP `qpn` that names `rkey` would look at, so that the engine's kernel
    /// knows it. `Some` says what is still waited for.
    pub(super) fn prepare(&mut self, qpn: u32, rkey: u32) -> Result<Option<String>, Error> {
        if !self.is_on_gpu() {
            return Ok(None);
        }
        if let Some(reason) = &self.dead {
            return Err(Error::Dead { device: format!("soft {}", self.gid), reason: reason.clone() });
        }
        let Some(mut qp) = self.qps.lend(qpn) else {
            return Err(Error::argument("qpn", format!("{qpn:#x}"), "no such QP"));
        };
        if qp.flow.is_some() {
            // The HCA of another node looks at its keys itself.
            self.qps.put_back(qpn, qp);
            return Ok(None);
        }
        let found = self.look_at_peer(&mut qp).and_then(|()| self.find_remote(&mut qp, rkey));
        if let Ok(key) = &found {
            if !qp.handed.connected {
                self.write_constants(&mut qp);
            }
            self.publish_remote_key(&qp, key);
        }
        self.qps.put_back(qpn, qp);
        match found {
            Ok(_) => Ok(None),
            Err(Stop::Stall(reason) | Stop::Fetch(reason)) => Ok(Some(reason)),
            Err(Stop::Fail(failure)) => Err(Error::argument("rkey", format!("{rkey:#x}"), failure.text)),
            Err(Stop::HandBack | Stop::Aside) => Ok(None),
        }
    }

    /// Checks the format of the WQE, and what it says about itself.
    #[inline]
    fn check<'a>(&mut self, qp: &Qp, bytes: &'a [u8]) -> Result<Wqe<'a>, Failure> {
        let local = |text: String| Failure::new(Syndrome::LocalQpOperation, text);
        if self.faulty
            && let Some(syndrome) = self.faults.error(qp.ordinal, qp.consumer)
        {
            return Err(Failure::new(syndrome, "injected by the fault plan"));
        }
        let wqe = Wqe::parse(bytes).map_err(|error| local(error.to_string()))?;
        if wqe.index != low16(qp.consumer) {
            return Err(local(format!(
                "ctrl.opmod_idx_opcode.index is {}, but the WQE is at {}",
                wqe.index,
                low16(qp.consumer)
            )));
        }
        if wqe.qpn != qp.qpn {
            return Err(local(format!("ctrl.qpn_ds.qpn is {:#x}, but the QP is {:#x}", wqe.qpn, qp.qpn)));
        }
        Ok(wqe)
    }

    /// Carries out the operation. `Some(bytes)` when it is done, `None` when the turn's budget is
    /// used up.
    #[inline]
    fn perform(&mut self, qp: &mut Qp, wqe: &Wqe<'_>, budget: &mut usize) -> Result<Option<u64>, Stop> {
        if qp.moved == 0 {
            let strong = u64::from(wqe.fence == Fence::StrongOrdering);
            self.counters.strong += strong;
            qp.counters.strong += strong;
            if (wqe.fence != Fence::None || self.card_doorbells) && self.unit() == Unit::Copies {
                self.with_copying(Copying::order);
            }
        }
        match &wqe.op {
            Op::Nop { .. } => Ok(Some(0)),
            Op::Dump { local } => {
                self.local(qp, local, rights::LOCAL_READ)?;
                Ok(Some(0))
            }
            Op::WriteInline { remote, payload } => {
                let dst = self.remote(qp, remote, payload.len() as u64, rights::REMOTE_WRITE)?;
                if self.unit() == Unit::Copies {
                    return Ok(Some(self.copy_inline(qp, dst, payload)));
                }
                let transfer = Transfer { dst, src: payload.as_ptr(), len: payload.len() };
                self.write(qp, transfer, budget)
            }
            Op::Write { remote, local: Some(local) } => {
                check_length(qp, local)?;
                let src = self.local(qp, local, rights::LOCAL_READ)?;
                let dst = self.remote(qp, remote, local.len(), rights::REMOTE_WRITE)?;
                let transfer = Transfer { dst, src, len: native(local.len()) };
                match self.unit() {
                    Unit::Copies => Ok(self.copy(qp, &transfer, true, budget)),
                    Unit::Cpu | Unit::Kernel => self.write(qp, transfer, budget),
                }
            }
            Op::Read { remote, local: Some(local) } => {
                check_length(qp, local)?;
                let dst = self.local(qp, local, rights::LOCAL_WRITE)?;
                let src = self.remote(qp, remote, local.len(), rights::REMOTE_READ)?;
                let bytes = Transfer { dst, src, len: native(local.len()) };
                if self.unit() == Unit::Copies {
                    return Ok(self.copy(qp, &bytes, false, budget));
                }
                self.leave_to_kernel()?;
                if let Some(remote) = &qp.remote {
                    self.deliver_at(remote.peer);
                }
                Ok(transfer(qp, &bytes, budget))
            }
            // No bytes: the keys are not looked at (InfiniBand specification, 9.7.4.1.5), but the
            // peer must be there.
            Op::Write { local: None, .. } => {
                self.peer_accepts(qp, rights::REMOTE_WRITE)?;
                Ok(Some(0))
            }
            Op::Read { local: None, .. } => {
                self.peer_accepts(qp, rights::REMOTE_READ)?;
                Ok(Some(0))
            }
            Op::AtomicFa { remote, add, local } => self.atomic(qp, remote, local, &Atomic::FetchAdd { add: *add }),
            Op::AtomicCs { remote, compare, swap, local } => {
                self.atomic(qp, remote, local, &Atomic::CompareSwap { compare: *compare, swap: *swap })
            }
            Op::Masked { remote, operands, local } => self.atomic(qp, remote, local, &Atomic::Masked(*operands)),
        }
    }

    /// Leaves the work to the kernel, if the engine has one: memory of queues and payloads is the
    /// CPU's to touch only without one.
    #[inline]
    fn leave_to_kernel(&self) -> Result<(), Stop> {
        match self.unit() {
            Unit::Cpu => Ok(()),
            Unit::Kernel => Err(Stop::HandBack),
            Unit::Copies => Err(Stop::Aside),
        }
    }

    #[inline]
    pub(super) fn unit(&self) -> Unit {
        match (self.is_on_gpu(), self.is_copying()) {
            (false, _) => Unit::Cpu,
            (true, false) => Unit::Kernel,
            (true, true) => Unit::Copies,
        }
    }

    /// Queues the copy of the payload of the QP's next WQE, which lies in that. Returns its length.
    fn copy_inline(&mut self, qp: &Qp, dst: *mut u8, payload: &[u8]) -> u64 {
        let (to, len) = (dst.addr() as u64, payload.len());
        let image = self.gpu.as_ref().and_then(|gpu| gpu.image(qp.qpn, qp.consumer));
        let last = INLINE_OFFSET + len.max(1) - 1;
        let whole =
            self.gpu.as_ref().is_some_and(|gpu| gpu.image(qp.qpn, qp.consumer + (last / BLOCK_BYTES) as u64).is_some());
        self.with_copying(|copying| match image {
            _ if len == 0 => Ok(()),
            // SAFETY: `dst` was checked for `len` bytes; all blocks of the WQE are in the image, in
            // sequence.
            Some(image) if whole => unsafe { copying.write_from_image(to, image.add(INLINE_OFFSET), len) },
            _ => {
                let from = Place { address: payload.as_ptr().addr() as u64, on_host: true };
                // SAFETY: as above; the payload is copied at once.
                unsafe { copying.write(to, from, len) }
            }
        });
        len as u64
    }

    /// Queues copies for what the budget allows of the bytes that are left; `writes`: to the peer,
    /// otherwise from it.
    fn copy(&mut self, qp: &mut Qp, bytes: &Transfer, writes: bool, budget: &mut usize) -> Option<u64> {
        let on_host = qp.local_key.is_some_and(|key| key.on_host);
        let left = bytes.len - qp.moved;
        let now = left.min(*budget);
        let (to, from) = (bytes.dst.addr() + qp.moved, bytes.src.addr() + qp.moved);
        // Less than a block may be left of the budget.
        let now = if now == left { now } else { now.saturating_sub((to + now) % BLOCK_BYTES) };
        self.with_copying(|copying| {
            let piece = copying.piece();
            let mut done = 0;
            while done < now {
                let len = (now - done).min(piece);
                let len = if done + len == now { len } else { len - (to + done + len) % BLOCK_BYTES };
                let (to, from) = ((to + done) as u64, (from + done) as u64);
                // SAFETY: both ends were checked for `len` bytes.
                unsafe {
                    if writes {
                        copying.write(to, Place { address: from, on_host }, len)?;
                    } else {
                        copying.read(Place { address: to, on_host }, from, len)?;
                    }
                }
                done += len;
            }
            Ok(())
        });
        *budget -= now;
        if now == left {
            Some(bytes.len as u64)
        } else {
            qp.moved += now;
            None
        }
    }

    #[inline]
    fn write(&mut self, qp: &mut Qp, bytes: Transfer, budget: &mut usize) -> Result<Option<u64>, Stop> {
        self.leave_to_kernel()?;
        if self.late_visibility
            && qp.moved == 0
            && let Some(remote) = &qp.remote
            // SAFETY: both ends were checked for `len` bytes; the source may be the payload of a
            // WQE in private memory.
            && unsafe { self.write_late(remote.peer, bytes.dst, bytes.src, bytes.len) }
        {
            return Ok(Some(bytes.len as u64));
        }
        if self.faulty
            && qp.moved == 0
            && bytes.len <= MAX_DEFERRED
            && let Some((late, order)) = self.faults.visibility(qp.ordinal, qp.consumer)
        {
            let mut payload = vec![0; bytes.len];
            // SAFETY: `src` was checked for `len` bytes, or is the payload of a WQE in private
            // memory.
            unsafe { memory::copy(payload.as_mut_ptr(), bytes.src, bytes.len) };
            let until = self.now() + late;
            qp.deferred = Some(Deferred { until, order, dst: bytes.dst, payload, cqe: None });
            return Ok(Some(bytes.len as u64));
        }
        Ok(transfer(qp, &bytes, budget))
    }

    fn atomic(
        &mut self,
        qp: &mut Qp,
        remote: &raddr::Repr,
        local: &data::Repr,
        atomic: &Atomic,
    ) -> Result<Option<u64>, Stop> {
        let width = atomic.width();
        if local.len() != width as u64 {
            let text = format!("data.byte_count is {}, but the atomic's result has {width} bytes", local.len());
            return Err(Failure::new(Syndrome::LocalLength, text).into());
        }
        let dst = self.local(qp, local, rights::LOCAL_WRITE)?;
        self.peer_accepts(qp, rights::REMOTE_ATOMIC)?;
        admission::check_alignment(remote.raddr, width)?;
        let word = self.remote(qp, remote, width as u64, rights::REMOTE_ATOMIC)?;
        admission::check_word(remote.raddr, word, width)?;
        self.leave_to_kernel()?;
        self.deliver_all();
        // SAFETY: range and alignment were checked.
        let result = unsafe { atomic.execute(word) };
        // SAFETY: `dst` was checked for `width` bytes.
        unsafe { memory::copy(dst, result.as_ptr(), width) };
        Ok(Some(width as u64))
    }

    /// Translates a data segment.
    #[inline]
    pub(super) fn local(&mut self, qp: &mut Qp, segment: &data::Repr, right: u32) -> Result<*mut u8, Failure> {
        let key = match qp.local_key {
            Some(key) if key.key == segment.lkey && key.epoch == self.key_epoch => key,
            _ => self.find_local(qp, segment.lkey)?,
        };
        let len = segment.len();
        let offset = segment.addr.wrapping_sub(key.start);
        if key.rights & right == 0 {
            let name = if right == rights::LOCAL_READ { "local reads" } else { "local writes" };
            return Err(protection(format!("data.lkey {:#x} does not allow {name}", segment.lkey)));
        }
        if segment.addr < key.start || offset > key.len || len > key.len - offset {
            return Err(protection(format!(
                "data.addr {:#x} + {len} bytes is not within [{:#x}, {:#x}) of lkey {:#x}",
                segment.addr,
                key.start,
                u128::from(key.start) + u128::from(key.len),
                segment.lkey
            )));
        }
        Ok(key.base.wrapping_add(native(offset)))
    }

    #[cold]
    fn find_local(&mut self, qp: &mut Qp, lkey: u32) -> Result<LocalKey, Failure> {
        let mkey = self
            .mkeys
            .get(lkey >> 8)
            .filter(|mkey| mkey.facts.key == lkey)
            .ok_or_else(|| protection(format!("data.lkey {lkey:#x}: no such key")))?;
        let facts = &mkey.facts;
        if facts.pd != qp.context.pd {
            let text =
                format!("data.lkey {lkey:#x} belongs to protection domain {}, the QP to {}", facts.pd, qp.context.pd);
            return Err(protection(text));
        }
        if facts.qpn != ANY_QP && facts.qpn != qp.qpn {
            return Err(protection(format!("data.lkey {lkey:#x} may be used by QP {:#x} only", facts.qpn)));
        }
        let key = LocalKey {
            key: lkey,
            epoch: self.key_epoch,
            start: facts.start,
            len: facts.len,
            base: mkey.base,
            rights: facts.rights,
            on_host: self.is_on_host(facts.umem),
        };
        qp.local_key = Some(key);
        Ok(key)
    }

    /// Checks that the peer's QP is there and accepts the operation.
    #[inline]
    fn peer_accepts(&mut self, qp: &mut Qp, right: u32) -> Result<(), Stop> {
        let Some(remote) = &qp.remote else {
            return Err(Stop::Stall("the QP has no peer".into()));
        };
        let peer = &self.peers[remote.peer];
        if !peer.is_alive() {
            return Err(Stop::Stall(peer.gone()));
        }
        // SAFETY: the entry lies in the peer's control segment, which stays mapped as long as the
        // engine lives, or is `UNMET`.
        if unsafe { &*remote.entry }.seq() != remote.seq {
            self.look_at_peer(qp)?;
        }
        let accepted = qp.remote.as_ref().map_or(0, |remote| remote.facts.rights);
        Ok(admission::check_accepts(accepted, qp.context.remote_qpn, right)?)
    }

    #[cold]
    fn look_at_peer(&mut self, qp: &mut Qp) -> Result<(), Stop> {
        let own = Initiator { qpn: qp.qpn, gid: self.gid, psn: qp.context.next_send_psn };
        let remote_qpn = qp.context.remote_qpn;
        let Some(remote) = &mut qp.remote else {
            return Err(Stop::Stall("the QP has no peer".into()));
        };
        let peer = &mut self.peers[remote.peer];
        let gid = peer.gid;
        if std::ptr::eq(remote.entry, &raw const control::UNMET) {
            match peer.control() {
                Ok(Some(control)) => {
                    let entry = control.qp(remote_qpn);
                    remote.entry = entry.ok_or_else(|| Stop::Stall(format!("HCA {gid} has no QP {remote_qpn:#x}")))?;
                }
                Ok(None) => return Err(Stop::Fetch(format!("waiting for HCA {gid} to respond to a greeting"))),
                Err(_) => return Err(Stop::Stall(peer.gone())),
            }
            if !peer.is_alive() {
                return Err(Stop::Stall(peer.gone()));
            }
        }
        // SAFETY: as in `peer_accepts`.
        let Some((seq, facts)) = unsafe { &*remote.entry }.read() else {
            return Err(Stop::Stall(format!("the state of QP {remote_qpn:#x} at {gid} does not settle")));
        };
        admission::check_qp(&facts, remote_qpn, gid, &own).map_err(Stop::Stall)?;
        admission::check_depth(&facts, gid, qp.context.log_sra_max)?;
        remote.seq = seq;
        remote.facts = facts;
        Ok(())
    }

    /// Checks the way to the peer and translates a remote address.
    #[inline]
    fn remote(&mut self, qp: &mut Qp, segment: &raddr::Repr, len: u64, right: u32) -> Result<*mut u8, Stop> {
        self.peer_accepts(qp, right)?;
        let place = (segment.rkey >> 8) as usize % qp.remote_keys.len();
        let key = match qp.remote_keys[place] {
            // SAFETY: as in `peer_accepts`.
            Some(key) if key.key == segment.rkey && unsafe { &*key.entry }.seq() == key.seq => key,
            _ => {
                let key = self.find_remote(qp, segment.rkey)?;
                qp.remote_keys[place] = Some(key);
                key
            }
        };
        if self.is_on_gpu() {
            self.publish_remote_key(qp, &key);
        }
        let target = Target { rkey: segment.rkey, raddr: segment.raddr, len };
        let offset = admission::check_range(key.rights, key.start, key.len, &target, right)?;
        Ok(key.base.wrapping_add(native(offset)))
    }

    #[cold]
    fn find_remote(&mut self, qp: &mut Qp, rkey: u32) -> Result<RemoteKey, Stop> {
        let denied = |text: String| Stop::Fail(Failure::new(Syndrome::RemoteAccess, text));
        let Some(remote) = &qp.remote else {
            return Err(Stop::Stall("the QP has no peer".into()));
        };
        let peer = &mut self.peers[remote.peer];
        let gid = peer.gid;
        let control = peer.known().ok_or_else(|| Stop::Stall(format!("HCA {gid} was not greeted yet")))?;
        let entry = control.mkey(rkey >> 8).ok_or_else(|| admission::unknown_key(rkey, gid))?;
        let address: *const _ = entry;
        let Some((seq, facts)) = entry.read() else {
            return Err(Stop::Stall(format!("key {rkey:#x} at {gid} does not settle")));
        };
        admission::check_key(&facts, rkey, &remote.facts, gid)?;
        // The answer may have come since the last housekeeping.
        if matches!(peer.memory(facts.umem), PeerMemory::Requested) {
            peer.poll();
        }
        match peer.memory(facts.umem) {
            PeerMemory::Requested => Err(Stop::Fetch(format!("waiting for the memory behind key {rkey:#x} of {gid}"))),
            PeerMemory::Refused(reason) => {
                Err(denied(format!("memory behind raddr.rkey {rkey:#x} of {gid}: {reason}")))
            }
            PeerMemory::Mapped { mapping, len } => {
                if facts.umem_offset.checked_add(facts.len).is_none_or(|end| end > *len) {
                    return Err(denied(format!("key {rkey:#x} of {gid} is larger than its memory, {len} bytes")));
                }
                let base = mapping.ptr().wrapping_add(native(facts.umem_offset));
                let MkeyFacts { pd, qpn, umem, start, len, rights, .. } = facts;
                Ok(RemoteKey { key: rkey, entry: address, seq, pd, qpn, umem, start, len, base, rights })
            }
        }
    }
}

fn protection(text: String) -> Failure {
    Failure::new(Syndrome::LocalProtection, text)
}

#[inline]
pub(super) fn check_length(qp: &Qp, local: &data::Repr) -> Result<(), Failure> {
    let limit = 1u64 << qp.context.log_msg_max;
    if local.len() > limit {
        let text = format!("data.byte_count is {} bytes, above the QP's log_msg_max, {limit} bytes", local.len());
        return Err(Failure::new(Syndrome::LocalLength, text));
    }
    Ok(())
}

/// Moves what the budget allows of the bytes that are left.
#[inline]
fn transfer(qp: &mut Qp, bytes: &Transfer, budget: &mut usize) -> Option<u64> {
    let left = bytes.len - qp.moved;
    let now = if left <= *budget {
        left
    } else {
        // A piece ends where the destination is aligned, so that no word of it is torn.
        let end = bytes.dst.addr() + qp.moved + *budget;
        (*budget).saturating_sub(end % 64)
    };
    // SAFETY: both ends were checked for `len` bytes, and `moved + now` is not more.
    unsafe { memory::copy(bytes.dst.add(qp.moved), bytes.src.add(qp.moved), now) };
    *budget -= now;
    if now == left {
        Some(bytes.len as u64)
    } else {
        qp.moved += now;
        None
    }
}
