//! Execution of WQEs whose peer is on another node: requests go out through a link, many at a time,
//! and each WQE ends when its responses are here, in the order of the queue.
//!
//! The initiator checks the WQE and its local key, the target the rest (see
//! [`admission`](super::admission)). A WQE with an ordering bit waits for what is being read. What
//! the target cannot execute yet is sent again, with all that was sent behind it, within the QP's
//! retry budget. When the connection breaks nothing is sent again: an atomic is executed at most
//! once.

use super::admission::Target;
use super::atomics::Atomic;
use super::control::rights;
use super::copying::{Copying, Place};
use super::execute::{MAX_DEFERRED, Step, Stop, Unit, check_length};
use super::fabric::flight::{Flight, Unfilled};
use super::fabric::frames::{Id, PIECE, Request, Response, Way};
use super::fabric::message::EXCHANGE_LIMIT;
use super::failure::Failure;
use super::memory;
use super::state::{Engine, Hold, Qp};
use crate::prm::qpc::QpState;
use crate::wire::cqe::Syndrome;
use crate::wire::ctrl::Fence;
use crate::wire::{BLOCK_BYTES, Op, Wqe, data, raddr};
use oxshmem_system::words::native;
use std::time::{Duration, Instant};

/// Bytes that one QP may have requested and not got.
const MOST_READING: u64 = 1 << 20;
/// Time until what the target could not execute is sent again.
const PAUSE: Duration = Duration::from_millis(1);
/// Links without work that are looked at in one go: a system call each.
const LINKS_POLLED: usize = 16;

impl Engine {
    /// Returns whether a QP with a peer on another node may send.
    pub(super) fn may_send(&mut self, qp: &mut Qp) -> bool {
        if qp.state != QpState::Rts {
            // What is under way is flushed with the rest.
            qp.rewind();
            return true;
        }
        let limit = qp.retry_budget().map_or(EXCHANGE_LIMIT * 2, |budget| budget.max(EXCHANGE_LIMIT * 2));
        let Some(flow) = &mut qp.flow else { return true };
        if flow.pause.is_none() && flow.flights.is_empty() {
            return true;
        }
        let now = Instant::now();
        if flow.pause.is_some_and(|until| now < until) {
            return false;
        }
        flow.pause = None;
        let Some(link) = self.links.get_mut(flow.link).and_then(Option::as_mut) else { return true };
        if !flow.flights.is_empty() {
            link.expect(flow.heard, now, limit);
        }
        if !link.is_alive() {
            qp.rewind();
        }
        true
    }

    /// Sends what a turn has queued.
    pub(super) fn end_turn(&mut self, qp: &Qp) {
        let Some(flow) = &qp.flow else { return };
        if !self.fill_requests() {
            return;
        }
        if let Some(link) = self.links.get_mut(flow.link).and_then(Option::as_mut) {
            link.flush();
            link.awaited |= !flow.flights.is_empty();
        }
    }

    /// Copies into requests what the CPU does not reach, all that is missing at once. Returns
    /// whether they are whole, and may be sent.
    fn fill_requests(&mut self) -> bool {
        let unfilled = std::mem::take(&mut self.unfilled);
        if unfilled.is_empty() {
            return true;
        }
        let mut pieces = Vec::with_capacity(unfilled.len());
        for Unfilled { link, at, len, from } in unfilled {
            let link = self.links.get_mut(link).and_then(Option::as_mut);
            let Some(room) = link.and_then(|link| link.wire.output.get_mut(at..at + len)) else { continue };
            pieces.push((Place { address: room.as_mut_ptr().addr() as u64, on_host: true }, from, len));
        }
        let filled = self.with_copying(|copying| {
            for (to, from, len) in pieces {
                // SAFETY: `local` checked the source; what is to be sent stays where it is until it
                // is, after this.
                unsafe { copying.read(to, from, len) }?;
            }
            copying.settle()
        });
        filled.is_some()
    }

    /// Gives up the link of a queue pair whose peer sends what no HCA sends.
    fn end_link(&mut self, qp: &Qp, detail: &str) {
        let link = qp.flow.as_ref().and_then(|flow| self.links.get_mut(flow.link)?.as_mut());
        if let Some(link) = link {
            link.close(&format!("it sent garbage: {detail}"));
        }
    }

    /// Fails the WQE at the consumer index, when all before it have ended.
    pub(super) fn fail_in_order(&mut self, qp: &mut Qp, opcode: u8, blocks: u64, failure: &Failure) -> Step {
        if qp.flow.as_ref().is_some_and(|flow| flow.flights.iter().any(|flight| flight.index != qp.consumer)) {
            return Step::Wait;
        }
        self.fail(qp, opcode, blocks, failure);
        Step::Done
    }

    /// Sends the requests of a WQE, or goes on with it.
    pub(super) fn send(&mut self, qp: &mut Qp, wqe: &Wqe<'_>, blocks: u64, budget: &mut usize) -> Step {
        let opcode = wqe.op.opcode() as u8;
        match self.request(qp, wqe, budget) {
            Ok(true) => {
                if let Some(flow) = &mut qp.flow
                    && let Some(flight) = flow.flights.back_mut()
                {
                    flight.end = flow.next;
                }
                qp.consumer += blocks;
                qp.moved = 0;
                qp.hold = Hold::Undecided;
                let done = qp.flow.as_ref().map_or(0, |flow| flow.done);
                if let Err(detail) = self.retire(qp, done) {
                    self.end_link(qp, &detail);
                }
                Step::Done
            }
            Ok(false) | Err(Stop::HandBack | Stop::Aside) => Step::Wait,
            Err(Stop::Fail(failure)) => self.fail_in_order(qp, opcode, blocks, &failure),
            Err(Stop::Stall(reason) | Stop::Fetch(reason)) => {
                let step = self.stall(qp, opcode, blocks, qp.retry_budget(), &reason);
                if let (Step::Wait, Some(flow)) = (&step, &mut qp.flow) {
                    flow.pause = Some(Instant::now() + PAUSE);
                }
                step
            }
        }
    }

    /// Sends what can be sent now of a WQE. Returns whether that was the last of it.
    fn request(&mut self, qp: &mut Qp, wqe: &Wqe<'_>, budget: &mut usize) -> Result<bool, Stop> {
        let going_on = qp.flow.as_ref().is_some_and(|flow| flow.is_sending());
        if !going_on {
            // The HCA dies when that many have ended.
            let under_way = qp.flow.as_ref().map_or(0, |flow| flow.flights.len() as u64);
            if self.faults.die_after.is_some_and(|limit| self.counters.wqes + under_way >= limit) {
                return Ok(false);
            }
            if wqe.fence != Fence::None && qp.flow.as_ref().is_some_and(|flow| flow.is_reading()) {
                return Ok(false);
            }
        }
        match &wqe.op {
            Op::Nop { .. } => {
                self.depart(qp, wqe, 0, None);
                Ok(true)
            }
            Op::Dump { local } => {
                self.local(qp, local, rights::LOCAL_READ)?;
                self.depart(qp, wqe, 0, None);
                Ok(true)
            }
            Op::WriteInline { remote, payload } => self.send_write(qp, wqe, remote, payload, budget),
            Op::Write { remote, local: Some(local) } => {
                check_length(qp, local)?;
                let src = self.local(qp, local, rights::LOCAL_READ)?;
                // Read when it is sent; the target gets what is there then.
                let len = native(local.len());
                self.check_way(qp)?;
                if !going_on && !self.is_due(qp, len) {
                    return Ok(false);
                }
                if !going_on {
                    self.depart(qp, wqe, local.len(), None);
                }
                loop {
                    let now = piece_of(remote.raddr, qp.moved, len);
                    if !self.has_room(qp, now, budget) {
                        return Ok(false);
                    }
                    let mut piece = std::mem::take(&mut self.piece);
                    piece.resize(PIECE, 0);
                    let from = src.wrapping_add(qp.moved);
                    let is_here = self.is_here(qp);
                    if is_here {
                        // SAFETY: `local` checked the range, which the piece lies in.
                        unsafe { memory::copy(piece.as_mut_ptr(), from, now) };
                    }
                    self.send_piece(qp, remote, len, &piece[..now]);
                    self.piece = piece;
                    if !is_here {
                        self.fill_later(qp, now, from.addr() as u64);
                    }
                    qp.moved += now;
                    if qp.moved == len {
                        return Ok(true);
                    }
                }
            }
            Op::Read { remote, local: Some(local) } => {
                check_length(qp, local)?;
                self.local(qp, local, rights::LOCAL_WRITE)?;
                self.check_way(qp)?;
                if !going_on {
                    self.depart(qp, wqe, local.len(), Some(*local));
                }
                self.send_reads(qp, remote, local, budget)
            }
            Op::Write { local: None, .. } => self.send_probe(qp, wqe, rights::REMOTE_WRITE, budget),
            Op::Read { local: None, .. } => self.send_probe(qp, wqe, rights::REMOTE_READ, budget),
            Op::AtomicFa { remote, add, local } => {
                self.send_atomic(qp, wqe, (remote, local), Atomic::FetchAdd { add: *add }, budget)
            }
            Op::AtomicCs { remote, compare, swap, local } => {
                let atomic = Atomic::CompareSwap { compare: *compare, swap: *swap };
                self.send_atomic(qp, wqe, (remote, local), atomic, budget)
            }
            Op::Masked { remote, operands, local } => {
                self.send_atomic(qp, wqe, (remote, local), Atomic::Masked(*operands), budget)
            }
        }
    }

    fn send_write(
        &mut self,
        qp: &mut Qp,
        wqe: &Wqe<'_>,
        remote: &raddr::Repr,
        payload: &[u8],
        budget: &mut usize,
    ) -> Result<bool, Stop> {
        self.check_way(qp)?;
        if !self.is_due(qp, payload.len()) || !self.has_room(qp, payload.len(), budget) {
            return Ok(false);
        }
        self.depart(qp, wqe, payload.len() as u64, None);
        self.send_piece(qp, remote, payload.len(), payload);
        Ok(true)
    }

    /// Sends a piece of a write, the one from `qp.moved` on.
    fn send_piece(&mut self, qp: &mut Qp, remote: &raddr::Repr, len: usize, payload: &[u8]) {
        let held = qp.flow.as_ref().and_then(|flow| flow.held);
        let order = held.filter(|(index, ..)| *index == qp.consumer).map_or(0, |(.., order)| order);
        let target = Target { rkey: remote.rkey, raddr: remote.raddr, len: len as u64 };
        self.push(qp, &Request::Write { target, offset: qp.moved as u64, order, payload });
    }

    /// Returns whether this thread reaches the memory that `local` has just found.
    fn is_here(&self, qp: &Qp) -> bool {
        self.unit() == Unit::Cpu || qp.local_key.is_some_and(|key| key.on_host)
    }

    /// Notes that the last `len` bytes that are to be sent are at `from`.
    fn fill_later(&mut self, qp: &Qp, len: usize, from: u64) {
        let Some(flow) = &qp.flow else { return };
        if let Some(link) = self.links.get(flow.link).and_then(Option::as_ref) {
            let at = link.wire.output.len() - len;
            self.unfilled.push(Unfilled { link: flow.link, at, len, from });
        }
    }

    fn send_reads(
        &mut self,
        qp: &mut Qp,
        remote: &raddr::Repr,
        local: &data::Repr,
        budget: &mut usize,
    ) -> Result<bool, Stop> {
        let len = native(local.len());
        let target = Target { rkey: remote.rkey, raddr: remote.raddr, len: len as u64 };
        loop {
            let now = piece_of(local.addr, qp.moved, len);
            let reading = qp.flow.as_ref().map_or(0, |flow| flow.reading);
            if reading + now as u64 > MOST_READING || !self.has_room(qp, now, budget) {
                return Ok(false);
            }
            self.push(qp, &Request::Read { target, offset: qp.moved as u64, len: now as u64 });
            if let Some(flow) = &mut qp.flow {
                flow.reading += now as u64;
            }
            qp.moved += now;
            if qp.moved == len {
                return Ok(true);
            }
        }
    }

    /// Sends a request without bytes: the keys are not looked at (InfiniBand specification,
    /// 9.7.4.1.5), but the peer must be there.
    fn send_probe(&mut self, qp: &mut Qp, wqe: &Wqe<'_>, right: u32, budget: &mut usize) -> Result<bool, Stop> {
        self.check_way(qp)?;
        if !self.has_room(qp, 0, budget) {
            return Ok(false);
        }
        self.depart(qp, wqe, 0, None);
        self.push(qp, &Request::Probe { right });
        Ok(true)
    }

    fn send_atomic(
        &mut self,
        qp: &mut Qp,
        wqe: &Wqe<'_>,
        (remote, local): (&raddr::Repr, &data::Repr),
        atomic: Atomic,
        budget: &mut usize,
    ) -> Result<bool, Stop> {
        let width = atomic.width() as u64;
        if local.len() != width {
            let text = format!("data.byte_count is {}, but the atomic's result has {width} bytes", local.len());
            return Err(Failure::new(Syndrome::LocalLength, text).into());
        }
        self.local(qp, local, rights::LOCAL_WRITE)?;
        self.check_way(qp)?;
        if !self.has_room(qp, native(width), budget) {
            return Ok(false);
        }
        self.depart(qp, wqe, width, Some(*local));
        self.push(qp, &Request::Atomic { rkey: remote.rkey, raddr: remote.raddr, atomic });
        if let Some(flow) = &mut qp.flow {
            flow.reading += width;
        }
        Ok(true)
    }

    /// Checks whether the peer can be reached.
    fn check_way(&self, qp: &Qp) -> Result<(), Stop> {
        let link = qp.flow.as_ref().and_then(|flow| self.links.get(flow.link)?.as_ref());
        let Some(link) = link else { return Err(Stop::Stall("the QP has no peer".into())) };
        match link.closed() {
            Some(reason) => Err(Stop::Stall(format!("the HCA of the peer, {}, is gone: {reason}", link.gid))),
            None => Ok(()),
        }
    }

    /// Returns whether a request with `bytes` bytes of payload may go now; it then counts.
    fn has_room(&mut self, qp: &Qp, bytes: usize, budget: &mut usize) -> bool {
        let Some(at) = qp.flow.as_ref().map(|flow| flow.link) else { return false };
        let is_full = |engine: &Self| engine.links.get(at).and_then(Option::as_ref).is_none_or(|link| !link.has_room());
        if is_full(self)
            && self.fill_requests()
            && let Some(link) = self.links.get_mut(at).and_then(Option::as_mut)
        {
            link.flush();
        }
        if *budget == 0 || is_full(self) {
            return false;
        }
        *budget = budget.saturating_sub(bytes);
        true
    }

    /// Returns whether a write may go, which fault `visibility` holds back.
    fn is_due(&mut self, qp: &mut Qp, len: usize) -> bool {
        if !self.faulty || len > MAX_DEFERRED {
            return true;
        }
        let Some((late, order)) = self.faults.visibility(qp.ordinal, qp.consumer) else { return true };
        let now = self.now();
        let Some(flow) = &mut qp.flow else { return true };
        match flow.held {
            Some((index, until, _)) if index == qp.consumer => until <= now,
            _ => {
                flow.held = Some((qp.consumer, now + late, order));
                late.is_zero()
            }
        }
    }

    /// Notes a WQE that is under way from now on.
    fn depart(&mut self, qp: &mut Qp, wqe: &Wqe<'_>, bytes: u64, landing: Option<data::Repr>) {
        if self.tracer.is_on() {
            self.tracer.line("wqe", format_args!("{wqe}"));
        }
        let strong = u64::from(wqe.fence == Fence::StrongOrdering);
        self.counters.strong += strong;
        qp.counters.strong += strong;
        let (index, opcode, signaled) = (qp.consumer, wqe.op.opcode() as u8, wqe.signaled);
        if let Some(flow) = &mut qp.flow {
            if flow.flights.is_empty() {
                flow.heard = Instant::now();
            }
            flow.flights.push_back(Flight { index, opcode, signaled, bytes, end: u64::MAX, landing, landed: 0 });
        }
    }

    /// Queues a request.
    fn push(&mut self, qp: &mut Qp, request: &Request<'_>) {
        let way = Way { qpn: qp.context.remote_qpn, psn: qp.context.next_send_psn };
        let Some(flow) = &mut qp.flow else { return };
        let id = Id { qpn: qp.qpn, attempt: flow.attempt, number: flow.next };
        flow.next += 1;
        if let Some(link) = self.links.get_mut(flow.link).and_then(Option::as_mut) {
            link.request(request, id, way);
        }
    }

    /// Takes in what HCAs of other nodes respond: of those that a QP waits for, and with `all` of
    /// some others. Returns how much there was.
    pub(super) fn poll_links(&mut self, all: bool) -> usize {
        let count = self.links.len();
        let mut news = 0;
        let mut others = LINKS_POLLED;
        for step in 0..count {
            let at = (self.link_at + step) % count;
            let Some(link) = self.links[at].as_mut() else { continue };
            let awaited = std::mem::take(&mut link.awaited);
            if !(link.is_alive() && (awaited || all && others > 0)) {
                continue;
            }
            if !awaited {
                others -= 1;
            }
            link.flush();
            if link.fill() {
                news += 1;
                self.take_responses(at);
            }
        }
        if all && count > 0 {
            self.link_at = (self.link_at + LINKS_POLLED) % count;
        }
        if news > 0 {
            // What a pass then begins with finds nothing under way.
            self.with_copying(Copying::settle);
        }
        news
    }

    fn take_responses(&mut self, at: usize) {
        let Some(mut link) = self.links[at].take() else { return };
        loop {
            let taken = match link.wire.next() {
                Ok(None) => break,
                Ok(Some((header, body))) => {
                    let (body, _) = link.wire.parts(body);
                    Response::decode(header.kind, body).and_then(|response| self.respond(at, header.id, response))
                }
                Err(detail) => Err(detail),
            };
            if let Err(detail) = taken {
                link.close(&format!("it sent garbage: {detail}"));
                break;
            }
        }
        self.links[at] = Some(link);
    }

    /// Takes in a response. `Err` says why it cannot be one.
    fn respond(&mut self, at: usize, id: Id, response: Response<'_>) -> Result<(), String> {
        let Some(mut qp) = self.qps.lend(id.qpn) else { return Ok(()) };
        let flow = qp.flow.as_ref().filter(|flow| (flow.link, flow.attempt) == (at, id.attempt));
        // A response that no QP waits for any more is not an error.
        let outcome = match flow.map(|flow| flow.next) {
            Some(next) if id.number >= next => Err(format!("a response to request {}, which was not sent", id.number)),
            Some(_) if self.dead.is_none() && qp.state == QpState::Rts => {
                self.take_response(&mut qp, id.number, response)
            }
            _ => Ok(()),
        };
        self.qps.put_back(id.qpn, qp);
        outcome
    }

    fn take_response(&mut self, qp: &mut Qp, number: u64, response: Response<'_>) -> Result<(), String> {
        match response {
            Response::Done => self.retire(qp, number + 1),
            Response::Data(bytes) => {
                self.retire(qp, number)?;
                self.land(qp, bytes)?;
                self.retire(qp, number + 1)
            }
            Response::Refused(failure) => {
                self.retire(qp, number)?;
                let (opcode, blocks) = self.first_in_flight(qp);
                self.fail(qp, opcode, blocks, &failure);
                Ok(())
            }
            Response::Stalled(reason) => {
                self.retire(qp, number)?;
                let (opcode, blocks) = self.first_in_flight(qp);
                qp.rewind();
                let budget = qp.retry_budget();
                self.stall(qp, opcode, blocks, budget, &reason);
                if let Some(flow) = &mut qp.flow {
                    flow.pause = Some(Instant::now() + PAUSE);
                }
                Ok(())
            }
        }
    }

    /// Returns the opcode and blocks of the first WQE under way.
    fn first_in_flight(&mut self, qp: &Qp) -> (u8, u64) {
        let first = qp.flow.as_ref().and_then(|flow| flow.flights.front()).map(|flight| (flight.opcode, flight.index));
        let (opcode, index) = first.unwrap_or((0, qp.consumer));
        let mut block = [0; BLOCK_BYTES / 8];
        self.fetch(qp, index, &mut block);
        (opcode, u64::from(block[0].to_ne_bytes()[7] & 0x3f).div_ceil(4).max(1))
    }

    /// Writes what was read to where it belongs.
    fn land(&mut self, qp: &mut Qp, bytes: &[u8]) -> Result<(), String> {
        let flight = qp.flow.as_ref().and_then(|flow| flow.flights.front());
        let Some((landing, landed)) = flight.and_then(|flight| Some((flight.landing?, flight.landed))) else {
            return Err("data that was not requested".into());
        };
        let len = bytes.len() as u64;
        if len > landing.len() - landed {
            return Err(format!("{len} bytes of data where {} are left", landing.len() - landed));
        }
        // The key may be gone since the request was sent.
        match self.local(qp, &landing, rights::LOCAL_WRITE) {
            Ok(to) if self.is_here(qp) => {
                // SAFETY: `local` checked the range, which the piece lies in.
                unsafe { memory::copy(to.add(native(landed)), bytes.as_ptr(), bytes.len()) };
            }
            Ok(to) => {
                let to = to.addr() as u64 + landed;
                let from = Place { address: bytes.as_ptr().addr() as u64, on_host: true };
                // SAFETY: as above; the data is copied at once.
                self.with_copying(|copying| unsafe { copying.write(to, from, bytes.len()) });
            }
            Err(failure) => {
                let (opcode, blocks) = self.first_in_flight(qp);
                self.fail(qp, opcode, blocks, &failure);
                return Ok(());
            }
        }
        if let Some(flow) = &mut qp.flow {
            flow.reading = flow.reading.saturating_sub(len);
            if let Some(flight) = flow.flights.front_mut() {
                flight.landed += len;
            }
        }
        Ok(())
    }

    /// Ends the WQEs whose requests are all below `done`. `Err`: one of them is a read or an atomic
    /// whose data has not all arrived.
    fn retire(&mut self, qp: &mut Qp, done: u64) -> Result<(), String> {
        loop {
            let Some(flow) = &mut qp.flow else { return Ok(()) };
            if done > flow.done {
                flow.done = done;
                flow.heard = Instant::now();
                qp.stalled = None;
            }
            let done = flow.done;
            if flow.flights.front().is_none_or(|flight| flight.end > done) {
                return Ok(());
            }
            let Some(flight) = flow.flights.pop_front() else { return Ok(()) };
            if let Some(landing) = flight.landing
                && landing.len() != flight.landed
            {
                let text = format!("a read is done, but {} of its {} bytes are here", flight.landed, landing.len());
                flow.flights.push_front(flight);
                return Err(text);
            }
            self.count_wqe(qp);
            self.report(qp, flight.index, flight.opcode, flight.bytes, flight.signaled);
        }
    }
}

/// Returns the length of the piece from `moved` on. It ends where the destination is aligned, so
/// that no word of it is torn.
fn piece_of(destination: u64, moved: usize, len: usize) -> usize {
    let left = len - moved;
    if left <= PIECE {
        return left;
    }
    PIECE - native((destination.wrapping_add((moved + PIECE) as u64)) % BLOCK_BYTES as u64)
}
