//! The HCA as an actor. It hears the doorbell, reads the doorbell record some time later (or, of a
//! queue pair without one, takes the doorbell's index), fetches and executes work requests in
//! order, and writes the collapsed CQE. What a request does becomes visible later, and that of
//! requests without strong ordering in any order; the CQE comes after all of it.
//!
//! Also what programs have announced: every byte that the HCA writes to a peer must belong to an
//! operation that was called.

use oxshmem_hca::wire::cqe::Syndrome;
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_hca::wire::masked_atomic::Repr as Masked;
use oxshmem_hca::wire::{Op, Wqe, cqe, data, dbr, raddr};

use crate::interface::{CARD_KEYS, HEAP_KEY, Kind, QpPlace, SLAB_KEY};
use crate::network::{Change, Completion, Effect, Flight, Operation, Written};
use crate::world::{Action, World};
use oxshmem_system::mixing::scramble;

impl World {
    // -- What programs announce
    // --------------------------------------------------------------------------------------------

    fn announce(&mut self, thread: usize, address: u64, bytes: &[u8], pe: u32, add: bool) {
        let heap = self.memory.base + u64::from(self.exports().heap_at);
        let own = heap + u64::from(self.threads[thread].pe) * u64::from(self.exports().heap_bytes);
        let (epoch, offset) = (self.threads[thread].epoch, address - own);
        assert!(bytes.len() <= 64, "operations of programs have at most 64 bytes");
        self.operations.push(Operation {
            thread,
            pe,
            epoch,
            offset,
            bytes: bytes.to_vec(),
            add,
            executed: 0,
            landed: 0,
        });
        let number = self.operations.len();
        self.say(|world| {
            let verb = if add { "adds to" } else { "writes" };
            format!(
                "{} begins operation {number}: {verb} {} bytes at {offset:#x} of PE {pe}",
                world.who(thread),
                bytes.len()
            )
        });
    }

    pub(crate) fn announce_put(&mut self, thread: usize, address: u64, bytes: &[u8], pe: u32) {
        self.announce(thread, address, bytes, pe, false);
    }

    pub(crate) fn announce_add(&mut self, thread: usize, address: u64, value: u64, pe: u32) {
        self.announce(thread, address, &value.to_le_bytes(), pe, true);
    }

    /// quiet has returned to a thread: all that `poster` began before has landed, unless an error
    /// says why not.
    pub(crate) fn check_quiet(&mut self, thread: usize, poster: usize) {
        let late = self.operations.iter().position(|operation| operation.thread == poster && !operation.has_landed());
        if let Some(late) = late.filter(|_| !self.knows_of_error(self.threads[thread].pe)) {
            let (who, poster) = (self.who(thread), self.who(poster));
            self.fail(format!(
                "quiet (or a blocking call) returned to {who} before operation {} of {poster} was executed",
                late + 1
            ));
        }
        self.say(|world| format!("quiet returns to {}", world.who(thread)));
    }

    // -- Steps of the HCA
    // --------------------------------------------------------------------------------------------------

    pub(crate) fn collect_hca(&self, actions: &mut Vec<(Action, u64)>) {
        for (index, qp) in self.qps.iter().enumerate() {
            let number = index as u8;
            if qp.look {
                actions.push((Action::Look(number), qp.priorities[0]));
            }
            if qp.executed < qp.announced && self.flights.len() < 8 {
                let blocked = qp.waits && self.flights.iter().any(|flight| flight.qp == index);
                if !blocked {
                    actions.push((Action::Execute(number), qp.priorities[1]));
                }
            }
            let is_under_way = |first| self.flights.iter().any(|flight| flight.qp == index && flight.index <= first);
            if qp.completions.first().is_some_and(|completion| !is_under_way(completion.first)) {
                actions.push((Action::Complete(number), qp.priorities[2]));
            }
        }
        for (index, flight) in self.flights.iter().enumerate() {
            let is_behind = || self.flights.iter().any(|other| other.qp == flight.qp && other.index < flight.index);
            if self.program.cards == 1 || matches!(flight.effect, Effect::Write { .. }) || !is_behind() {
                actions.push((Action::Land(index as u8), flight.priority));
            }
        }
        for (index, write) in self.written.iter().enumerate() {
            if !self.written[..index].iter().any(|other| other.card == write.card && other.peer == write.peer) {
                actions.push((Action::Arrive(index as u8), write.priority));
            }
        }
    }

    pub(crate) fn hca_hash(&self) -> u64 {
        let mut hash = 0;
        for qp in &self.qps {
            let flags = u64::from(qp.look) << 1 | u64::from(qp.waits);
            hash = scramble(hash ^ qp.announced ^ qp.executed << 16 ^ qp.reported << 32 ^ flags << 60);
            for completion in &qp.completions {
                hash = scramble(hash ^ completion.first ^ completion.end << 32 ^ u64::from(completion.syndrome) << 56);
            }
            for (first, syndrome) in &qp.errors {
                hash = scramble(hash ^ first ^ u64::from(*syndrome) << 48);
            }
        }
        let mut flights = 0u64;
        for flight in &self.flights {
            flights = flights.wrapping_add(scramble(flight.index ^ (flight.qp as u64) << 32));
        }
        for operation in &self.operations {
            let about = operation.landed ^ operation.executed.rotate_left(32) ^ u64::from(operation.epoch) << 56;
            flights =
                flights.wrapping_add(scramble(about ^ scramble(operation.offset ^ (operation.thread as u64) << 40)));
        }
        scramble(hash ^ flights)
    }

    /// The doorbell register of some QP is written.
    pub(crate) fn ring(&mut self, word: u32, value: u64) {
        let address = self.memory.base + u64::from(word) * 8;
        let Some(index) = self.qps.iter().position(|qp| qp.place.doorbell == address) else {
            self.fail("a doorbell that belongs to no QP rings".to_owned());
            return;
        };
        let place = self.qps[index].place;
        let counter = u64::from((value as u32).swap_bytes() >> 8 & 0xffff);
        self.say(|world| format!("the HCA hears the doorbell of QP {:#x}: {counter}", world.qps[index].place.qpn));
        if place.record == 0 {
            self.announced(index, counter as u16, "doorbell");
            return;
        }
        let end = self.qps[index].executed + (counter.wrapping_sub(self.qps[index].executed) & 0xffff);
        if end > self.qps[index].executed + (1 << place.depth_log2) && counter != self.qps[index].executed & 0xffff {
            // A doorbell that arrives late names blocks that were executed meanwhile.
            let behind = self.qps[index].executed.wrapping_sub(counter) & 0xffff;
            if behind > 1 << (place.depth_log2 + 2) {
                self.fail(format!(
                    "the doorbell covers more than the queue holds: it says {counter}, and {} blocks are executed",
                    self.qps[index].executed
                ));
            }
        }
        self.qps[index].look = true;
    }

    /// Reads the doorbell record.
    pub(crate) fn look(&mut self, index: usize) {
        let place = self.qps[index].place;
        self.qps[index].look = false;
        let word = self.memory.load32(place.record).swap_bytes();
        let Ok(record) = dbr::Repr::from_word(word) else {
            self.fail(format!("the doorbell record holds {word:#x}, which is not a counter"));
            return;
        };
        self.say(|_| format!("the HCA reads the doorbell record of QP {:#x}: {}", place.qpn, record.send));
        self.announced(index, record.send, "doorbell record");
    }

    /// Takes over how many blocks were posted, modulo 2^16, from the doorbell record or, of a queue
    /// pair without one, from the doorbell.
    fn announced(&mut self, index: usize, counter: u16, source: &str) {
        let qp = &self.qps[index];
        let ahead = i64::from(counter.wrapping_sub(qp.announced as u16) as i16);
        let announced = qp.announced.wrapping_add(ahead as u64);
        let (executed, depth) = (qp.executed, 1 << qp.place.depth_log2);
        if ahead < 0 {
            self.fail(format!("the {source} goes back: {announced} after {}", self.qps[index].announced));
        } else if announced - executed > depth {
            self.fail(format!(
                "the {source} covers more than the queue holds: {announced} blocks, of which {executed} are executed, in a queue of \
                 {depth}"
            ));
        } else {
            self.qps[index].announced = announced;
        }
    }

    /// Fetches and executes the next work request.
    pub(crate) fn execute_next(&mut self, index: usize) {
        let qp = &self.qps[index];
        let (place, first, announced) = (qp.place, qp.executed, qp.announced);
        let depth = 1u64 << place.depth_log2;
        let mut bytes = [0u8; 256];
        for (block, part) in bytes.chunks_exact_mut(64).enumerate() {
            self.memory.bytes(place.wq + (first + block as u64) % depth * 64, part);
        }
        let wqe = match Wqe::parse(&bytes) {
            Ok(wqe) => wqe,
            Err(error) => {
                self.fail(format!(
                    "the HCA fetches block {first}, which is not a work request that was posted: {error}"
                ));
                return;
            }
        };
        let end = first + wqe.blocks() as u64;
        if wqe.qpn != place.qpn || u64::from(wqe.index) != first & 0xffff {
            self.fail(format!(
                "the HCA fetches block {first}, and finds block {} of QP {:#x} there: it was not written yet, or overwritten",
                wqe.index, wqe.qpn
            ));
            return;
        }
        if end > announced {
            self.fail(format!(
                "a doorbell ends within a work request: it covers {announced} blocks, the request ends at {end}"
            ));
            return;
        }
        if !self.qps[index].errors.is_empty() {
            self.end_with_error(index, (first, end), Syndrome::WrFlush);
            return;
        }
        let ordered = wqe.fence != Fence::None;
        if ordered && self.flights.iter().any(|flight| flight.qp == index) {
            self.qps[index].waits = true;
            return;
        }
        if self.program.fails != 0 && self.policy.chance(3) {
            self.end_with_error(index, (first, end), Syndrome::RemoteAccess);
            return;
        }
        let effect = self.effect_of(&wqe, place, first);
        let Some(effect) = effect else { return };
        self.say(|_| {
            let ordered = if ordered { ", strongly ordered" } else { "" };
            let signaled = if wqe.signaled { ", signaled" } else { "" };
            format!("the HCA executes block {first} of QP {:#x}: {:?}{ordered}{signaled}", place.qpn, wqe.op.opcode())
        });
        let priority = self.policy.priority();
        let signaled = wqe.signaled;
        let qp = &mut self.qps[index];
        qp.waits = false;
        qp.executed = end;
        if signaled {
            qp.completions.push(Completion { first, end, syndrome: 0 });
        }
        self.flights.push(Flight { qp: index, index: first, effect, priority });
    }

    /// Ends a request that is not carried out: with the first error of its QP, or as all that
    /// follow it.
    fn end_with_error(&mut self, index: usize, (first, end): (u64, u64), syndrome: Syndrome) {
        let qp = &mut self.qps[index];
        qp.waits = false;
        qp.executed = end;
        qp.completions.push(Completion { first, end, syndrome: syndrome as u8 });
        qp.errors.push((first, syndrome as u8));
        let qpn = qp.place.qpn;
        self.say(|_| format!("the HCA ends block {first} of QP {qpn:#x} with an error: {}", syndrome.text()));
    }

    fn remote(&mut self, remote: &raddr::Repr, place: &QpPlace) -> Option<u64> {
        let key = HEAP_KEY + place.card * CARD_KEYS + place.peer;
        if remote.rkey != key {
            self.fail(format!(
                "a work request has rkey {:#x}, and PE {}'s is {key:#x} on card {}",
                remote.rkey, place.peer, place.card
            ));
            return None;
        }
        let exports = self.exports();
        Some(
            self.memory.base
                + u64::from(exports.heap_at)
                + u64::from(place.peer) * u64::from(exports.heap_bytes)
                + remote.raddr,
        )
    }

    fn local(&mut self, local: &data::Repr, place: &QpPlace) -> Option<u64> {
        let exports = self.exports();
        if local.lkey == HEAP_KEY + place.card * CARD_KEYS + place.pe {
            let heap =
                self.memory.base + u64::from(exports.heap_at) + u64::from(place.pe) * u64::from(exports.heap_bytes);
            Some(heap + local.addr)
        } else if local.lkey == SLAB_KEY + place.card * CARD_KEYS {
            Some(local.addr)
        } else {
            self.fail(format!(
                "a work request has lkey {:#x}, which is none of PE {}'s on card {}",
                local.lkey, place.pe, place.card
            ));
            None
        }
    }

    fn effect_of(&mut self, wqe: &Wqe<'_>, place: QpPlace, first: u64) -> Option<Effect> {
        match wqe.op {
            Op::WriteInline { remote, payload } => {
                let address = self.remote(&remote, &place)?;
                self.write_effect(place, first, remote.raddr, address, payload.to_vec())
            }
            Op::Write { remote, local: Some(local) } => {
                let (address, from) = (self.remote(&remote, &place)?, self.local(&local, &place)?);
                let mut bytes = vec![0; local.len() as usize];
                self.memory.bytes(from, &mut bytes);
                self.write_effect(place, first, remote.raddr, address, bytes)
            }
            Op::Read { remote, local: Some(local) } => {
                let (from, to) = (self.remote(&remote, &place)?, self.local(&local, &place)?);
                Some(Effect::Read { from, to, bytes: local.len() as usize })
            }
            Op::AtomicFa { remote, add, local } => {
                self.atomic_effect(place, first, (remote, &local), 8, Change::Add { value: add, boundary: 0 })
            }
            Op::AtomicCs { remote, compare, swap, local } => {
                let change = Change::Swap { swap, compare, swap_mask: u64::MAX, compare_mask: u64::MAX };
                self.atomic_effect(place, first, (remote, &local), 8, change)
            }
            Op::Masked { remote, operands, local } => {
                let (width, change) = match operands {
                    Masked::FetchAdd4 { add, boundary } => {
                        (4, Change::Add { value: add.into(), boundary: u64::from(boundary) | !0xffff_ffff })
                    }
                    Masked::FetchAdd8 { add, boundary } => (8, Change::Add { value: add, boundary }),
                    Masked::CompareSwap4 { swap, compare, swap_mask, compare_mask } => (
                        4,
                        Change::Swap {
                            swap: swap.into(),
                            compare: compare.into(),
                            swap_mask: swap_mask.into(),
                            compare_mask: compare_mask.into(),
                        },
                    ),
                    Masked::CompareSwap8 { swap, compare, swap_mask, compare_mask } => {
                        (8, Change::Swap { swap, compare, swap_mask, compare_mask })
                    }
                };
                self.atomic_effect(place, first, (remote, &local), width, change)
            }
            _ => {
                self.fail(format!("block {first} is a work request that was not posted: {:?}", wqe.op));
                None
            }
        }
    }

    /// Finds the operations that the bytes belong to.
    fn write_effect(
        &mut self,
        place: QpPlace,
        first: u64,
        offset: u64,
        address: u64,
        bytes: Vec<u8>,
    ) -> Option<Effect> {
        let covers = self.claim(place.pe, place.peer, offset, &bytes);
        match covers {
            Some(covers) => Some(Effect::Write { address, bytes, covers }),
            None => {
                self.fail(format!(
                    "the HCA executes block {first}, which writes {bytes:02x?} at {offset:#x} of PE {}: that was not posted, or was \
                     executed before",
                    place.peer
                ));
                None
            }
        }
    }

    /// Marks bytes of announced operations as executed. None: some bytes belong to none.
    pub(crate) fn claim(&mut self, pe: u32, peer: u32, offset: u64, bytes: &[u8]) -> Option<Vec<(usize, u64)>> {
        let mut covers = Vec::new();
        let mut found = 0;
        let workspace = u64::from(self.exports().workspace_at);
        let results = u64::from(self.program.results_at);
        if (workspace..workspace + u64::from(self.exports().workspace_bytes)).contains(&offset)
            || (results..results + u64::from(self.program.results_bytes)).contains(&offset)
        {
            // Collectives send messages of which programs know nothing, and results that programs
            // check afterwards.
            return Some(covers);
        }
        for (number, operation) in self.operations.iter_mut().enumerate() {
            if operation.add || operation.pe != peer || u32::from(self.threads[operation.thread].pe) != pe {
                continue;
            }
            let mut mask = 0;
            for (at, &byte) in bytes.iter().enumerate() {
                let into = (offset + at as u64).wrapping_sub(operation.offset);
                if into < operation.bytes.len() as u64
                    && operation.executed >> into & 1 == 0
                    && operation.bytes[into as usize] == byte
                {
                    mask |= 1 << into;
                    found += 1;
                }
            }
            if mask != 0 {
                operation.executed |= mask;
                covers.push((number, mask));
            }
        }
        (found == bytes.len()).then_some(covers)
    }

    fn atomic_effect(
        &mut self,
        place: QpPlace,
        first: u64,
        (remote, local): (raddr::Repr, &data::Repr),
        width: usize,
        change: Change,
    ) -> Option<Effect> {
        let (address, result) = (self.remote(&remote, &place)?, self.local(local, &place)?);
        let mut number = None;
        if let Change::Add { value, boundary: 0 } = change {
            number = self.claim_add(place.pe, place.peer, remote.raddr, value);
            if number.is_none() {
                self.fail(format!(
                    "the HCA executes block {first}, an atomic addition of {value:#x} that was not posted"
                ));
                return None;
            }
        }
        Some(Effect::Atomic { address, width, change, result: Some(result), big_endian: true, operation: number })
    }

    /// Finds the announced addition, and marks it as executed.
    pub(crate) fn claim_add(&mut self, pe: u32, peer: u32, offset: u64, value: u64) -> Option<usize> {
        let threads = &self.threads;
        let number = self.operations.iter().position(|operation| {
            operation.add
                && operation.pe == peer
                && u32::from(threads[operation.thread].pe) == pe
                && operation.executed == 0
                && operation.offset == offset
                && operation.bytes == value.to_le_bytes()
        })?;
        self.operations[number].executed = self.operations[number].all();
        Some(number)
    }

    /// Makes what a request does visible.
    pub(crate) fn land(&mut self, index: usize) {
        let flight = self.flights.remove(index);
        self.say(|world| match world.qps.get(flight.qp) {
            Some(qp) => format!("block {} of QP {:#x} takes effect", flight.index, qp.place.qpn),
            None => format!("descriptor {} takes effect", flight.index),
        });
        self.note_landing();
        let several = self.program.cards > 1;
        if several && !matches!(flight.effect, Effect::Write { .. }) {
            self.arrive_before_read(flight.qp);
        }
        match flight.effect {
            Effect::Write { address, bytes, covers } if several => {
                let QpPlace { card, peer, .. } = self.qps[flight.qp].place;
                let priority = self.policy.priority();
                self.written.push(Written { card, peer, address, bytes, covers, priority });
            }
            Effect::Write { address, bytes, covers } => self.take_effect(address, &bytes, covers),
            Effect::Read { from, to, bytes } => {
                let mut data = vec![0; bytes];
                self.memory.bytes(from, &mut data);
                self.write_bytes(to, &data);
            }
            Effect::Atomic { address, width, change, result, big_endian, operation } => {
                let mut old = [0u8; 8];
                self.memory.bytes(address, &mut old[..width]);
                let before = u64::from_le_bytes(old);
                self.write_bytes(address, &change.apply(before).to_le_bytes()[..width]);
                // Old values of 8 bytes come in host order, of 4 bytes big-endian.
                if let Some(result) = result {
                    if width == 4 && big_endian {
                        self.write_bytes(result, &(before as u32).to_be_bytes());
                    } else {
                        self.write_bytes(result, &before.to_le_bytes());
                    }
                }
                if let Some(number) = operation {
                    let all = self.operations[number].all();
                    self.landed(number, all);
                }
            }
        }
    }

    fn take_effect(&mut self, address: u64, bytes: &[u8], covers: Vec<(usize, u64)>) {
        self.write_bytes(address, bytes);
        for (number, mask) in covers {
            self.landed(number, mask);
        }
    }

    /// Makes what one of several cards has written visible in the peer's memory.
    pub(crate) fn arrive(&mut self, index: usize) {
        let write = self.written.remove(index);
        self.say(|_| {
            let length = write.bytes.len();
            format!("{length} bytes that card {} has written arrive in the memory of PE {}", write.card, write.peer)
        });
        self.note_landing();
        self.take_effect(write.address, &write.bytes, write.covers);
    }

    /// A card reads the peer's memory, or updates it, after all that it has written there has
    /// arrived.
    fn arrive_before_read(&mut self, qp: usize) {
        let QpPlace { card, peer, .. } = self.qps[qp].place;
        while let Some(index) = self.written.iter().position(|write| write.card == card && write.peer == peer) {
            self.arrive(index);
        }
    }

    /// Bytes of an operation are visible at the peer: nothing of its thread from before the last
    /// fence may be missing there.
    pub(crate) fn landed(&mut self, number: usize, mask: u64) {
        self.operations[number].landed |= mask;
        let operation = &self.operations[number];
        let late = self.operations.iter().position(|other| {
            other.thread == operation.thread
                && other.pe == operation.pe
                && other.epoch < operation.epoch
                && !other.has_landed()
        });
        if let Some(late) = late {
            let who = self.who(self.operations[number].thread);
            self.fail(format!(
                "operation {} of {who}, which comes after a fence, is visible at PE {} before operation {}, which comes before it",
                number + 1,
                self.operations[number].pe,
                late + 1
            ));
        }
    }

    /// Writes the CQE.
    pub(crate) fn complete(&mut self, index: usize) {
        let Completion { first, end, syndrome } = self.qps[index].completions.remove(0);
        let place = self.qps[index].place;
        let counter = (first & ((1 << self.exports().counter_bits) - 1)) as u16;
        if syndrome == 0 {
            self.qps[index].reported = end;
        }
        self.say(|_| {
            let error = if syndrome == 0 { String::new() } else { format!(", syndrome {syndrome:#04x}") };
            format!("the HCA writes the CQE of QP {:#x}: counter {counter} (block {first}){error}", place.qpn)
        });
        let mut bytes = [0u8; 64];
        cqe::Repr {
            wqe_opcode: 8,
            qpn: place.qpn,
            wqe_counter: counter,
            owner: false,
            status: match syndrome {
                0 => cqe::Status::Done { byte_cnt: 0, timestamp: 0 },
                syndrome => cqe::Status::Error { syndrome, vendor_syndrome: 0 },
            },
        }
        .emit(&mut cqe::Segment::new_unchecked(&mut bytes[..]));
        self.write_bytes(place.cqe, &bytes);
    }

    /// Looks at a change of a word before it is made.
    pub(crate) fn before_change(&mut self, word: u32, bits: u64, new: u64) {
        match self.memory.about[word as usize].1 {
            Kind::Queue => self.check_overwrite(word),
            Kind::Completed => {
                let address = self.memory.base + u64::from(word) * 8;
                if let Some(qp) = self.qps.iter().find(|qp| qp.place.completed == address) {
                    let reported = qp.reported;
                    if bits == u64::MAX && new > reported && new >> 63 == 0 {
                        self.fail(format!(
                            "`completed` is raised to {new}, though the HCA has completed {reported} blocks: what lies in between \
                             would be overwritten before it is executed"
                        ));
                    }
                }
            }
            Kind::Error => self.note_error(word, new),
            _ => {}
        }
    }

    /// A block of a queue is written: it must not be one that was announced and is not executed
    /// yet.
    fn check_overwrite(&mut self, word: u32) {
        let address = self.memory.base + u64::from(word) * 8;
        for qp in &self.qps {
            let depth = 1u64 << qp.place.depth_log2;
            let into = address.wrapping_sub(qp.place.wq);
            if into >= depth * 64 {
                continue;
            }
            let slot = into / 64;
            if let Some(block) = (qp.executed..qp.announced).find(|block| block % depth == slot) {
                self.fail(format!("block {block} is overwritten before the HCA has executed it"));
            }
            return;
        }
    }
}
