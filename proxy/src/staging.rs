//! Puts whose source is first copied to host memory, because the card reads memory of the device
//! slowly.
//!
//! A staged put is cut into pieces. Each is copied into a *bounce slot*, registered host memory, by
//! a [`Copier`], and posted from there. Slots are few. Puts of a queue pair get them in their
//! order, so that no slot is held by a piece that waits for one that has none; queue pairs take
//! turns. A slot is free again when the card has read it, which the completion of the piece says.
//!
//! Staging is a matter of speed alone: every piece could be posted from its source as well. So
//! copies that do not get through are given up
//! ([`Engine::give_up_copies`](crate::engine::Engine::give_up_copies)), and until the last of them
//! has ended after all, nothing is staged.

use std::collections::VecDeque;

use oxshmem_system::words::count32;

use crate::striping::Striping;
use crate::work::{Local, Registered, Remote, Transfer};

/// What is staged, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// Puts of at least this many bytes.
    pub from: u32,
    /// Bounce slot 0; `length` is that of each slot, and slots follow each other.
    pub bounce: Registered,
    /// How many there are.
    pub slots: u32,
}

/// A piece to copy into a bounce slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest {
    /// The slot. It is not used for anything else before the copy has ended.
    pub slot: u32,
    /// What is copied; at most a slot is long.
    pub source: Local,
    /// The card that the source's key is of.
    pub card: u32,
}

/// The end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The slot that it went to.
    pub slot: u32,
    /// Why the slot does not hold the source, if it does not.
    pub outcome: Result<(), String>,
}

/// Copies memory of the device into bounce slots, while kernels run and the proxy's thread does
/// other things.
///
/// What device code wrote before it published the descriptor of a put has to be in the copy. Device
/// code fences for the system before that, and the proxy acquires what was published before it
/// calls [`start`](Self::start).
pub trait Copier: Send {
    /// Starts a copy, whose end is told by [`poll`](Self::poll).
    ///
    /// # Errors
    /// It cannot be done, in words; `poll` does not tell of it.
    fn start(&mut self, copy: &CopyRequest) -> Result<(), String>;

    /// Appends the copies that have ended since the last call, in any order.
    fn poll(&mut self, ended: &mut Vec<Copied>);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// A copy for this put goes on.
    Copying {
        put: u32,
    },
    Copied,
    /// The card may be reading it.
    Posted,
    /// A copy goes on that no put waits for any more; `late`: because it does not get through.
    Unwanted {
        late: bool,
    },
}

/// A put that has not been posted to its end.
#[derive(Debug, Default)]
struct Put {
    qp: u32,
    source: Local,
    target: Remote,
    /// Bytes that were posted.
    posted: u32,
    /// Bytes that were posted or have a slot.
    cut: u32,
    /// The slots of the bytes in between.
    slots: VecDeque<u32>,
    /// It gets no more slots: what has none is posted from the source.
    direct: bool,
}

/// A piece to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub transfer: Transfer,
    /// The slot that it is in, which is to be [`release`](Pool::release)d when it has ended.
    pub slot: Option<u32>,
    /// The put has no more pieces.
    pub last: bool,
}

/// Whose copy has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub qp: u32,
    pub put: u32,
}

/// Bounce slots, and the puts that use and want them.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Slot 0; `length` is that of a piece.
    bounce: Registered,
    /// Bytes from one slot to the next.
    stride: u32,
    states: Vec<State>,
    free: Vec<u32>,
    /// Copies that go on, except for late ones.
    copying: u32,
    late: u32,
    puts: Vec<Put>,
    free_puts: Vec<u32>,
    /// For each queue pair the puts that want slots, in their order.
    wanting: Vec<VecDeque<u32>>,
    /// The queue pairs that have such puts, each once.
    turns: VecDeque<u32>,
    striping: Striping,
}

impl Pool {
    /// Returns a pool for `qps` queue pairs and messages of at most `longest` bytes. Without
    /// `staging` all is posted from its source.
    pub fn new(staging: Option<Staging>, qps: usize, striping: Striping, longest: u32) -> Self {
        let none = Staging { from: 0, bounce: Registered::default(), slots: 0 };
        let Staging { bounce, slots, .. } = staging.unwrap_or(none);
        let slots = if bounce.length == 0 { 0 } else { slots };
        Self {
            bounce: Registered { length: bounce.length.min(longest.max(1)), ..bounce },
            stride: bounce.length,
            states: vec![State::Free; slots as usize],
            free: (0..slots).rev().collect(),
            copying: 0,
            late: 0,
            puts: Vec::new(),
            free_puts: Vec::new(),
            wanting: vec![VecDeque::new(); if slots == 0 { 0 } else { qps }],
            turns: VecDeque::new(),
            striping,
        }
    }

    /// Copies that go on, except for those that were given up; and these.
    pub fn under_way(&self) -> (u32, u32) {
        (self.copying, self.late)
    }

    fn is_suspended(&self) -> bool {
        self.late != 0 || self.states.is_empty()
    }

    /// Takes a put in; its pieces are to be posted in the order of puts of the queue pair.
    pub fn open(&mut self, qp: u32, source: Local, target: Remote) -> u32 {
        let direct = self.is_suspended();
        let index = self.free_puts.pop().unwrap_or_else(|| {
            self.puts.push(Put::default());
            count32(self.puts.len() - 1)
        });
        let put = &mut self.puts[index as usize];
        let slots = std::mem::take(&mut put.slots);
        *put = Put { qp, source, target, posted: 0, cut: 0, slots, direct };
        if !direct {
            let wanting = &mut self.wanting[qp as usize];
            if wanting.is_empty() {
                self.turns.push_back(qp);
            }
            wanting.push_back(index);
        }
        index
    }

    /// Returns the next piece to copy, if a put wants a slot and there is one.
    pub fn next_copy(&mut self) -> Option<CopyRequest> {
        if self.is_suspended() || self.free.is_empty() {
            return None;
        }
        let qp = self.turns.pop_front()?;
        let wanting = &mut self.wanting[qp as usize];
        let index = *wanting.front()?;
        let slot = self.free.pop()?;
        let put = &mut self.puts[index as usize];
        let length = self.bounce.length.min(put.source.length - put.cut);
        let address = put.source.address.wrapping_add(put.cut.into());
        let source = Local { address, length, key: put.source.key };
        put.cut += length;
        put.slots.push_back(slot);
        self.states[slot as usize] = State::Copying { put: index };
        self.copying += 1;
        if put.cut == put.source.length {
            wanting.pop_front();
        }
        if !wanting.is_empty() {
            self.turns.push_back(qp);
        }
        Some(CopyRequest { slot, source, card: self.striping.card(qp) })
    }

    /// Notes that a copy has ended; returns the put that still waits for it, if one does. If it
    /// failed, that put is to be [`close`](Self::close)d.
    pub fn copied(&mut self, slot: u32) -> Option<Owner> {
        match *self.states.get(slot as usize)? {
            State::Copying { put } => {
                self.copying -= 1;
                self.states[slot as usize] = State::Copied;
                Some(Owner { qp: self.puts[put as usize].qp, put })
            }
            State::Unwanted { late } => {
                *(if late { &mut self.late } else { &mut self.copying }) -= 1;
                self.make_free(slot);
                None
            }
            State::Free | State::Copied | State::Posted => {
                tracing::error!(slot, "a copy ended that was not under way");
                None
            }
        }
    }

    /// Returns the next piece of a put that can be posted now, at most `longest` bytes long. The
    /// put is gone with its last piece.
    pub fn next_piece(&mut self, index: u32, longest: u32) -> Option<Piece> {
        let Transfer::Write { mut source, target } = self.rest(index) else { return None };
        let suspended = self.is_suspended();
        let put = &mut self.puts[index as usize];
        let slot = match put.slots.front().copied() {
            Some(slot) if self.states[slot as usize] == State::Copied => {
                put.slots.pop_front();
                self.states[slot as usize] = State::Posted;
                let address = self.bounce.address.wrapping_add(u64::from(slot) * u64::from(self.stride));
                let slots = self.bounce.on(self.striping.card(put.qp));
                source = Local { address, length: slots.length.min(source.length), key: slots.key };
                Some(slot)
            }
            None if put.direct || suspended => {
                if !std::mem::replace(&mut put.direct, true) {
                    let qp = put.qp;
                    self.want_no_more(qp, index);
                }
                source.length = source.length.min(longest.max(1));
                None
            }
            _ => return None,
        };
        let put = &mut self.puts[index as usize];
        put.posted += source.length;
        let last = put.posted == put.source.length;
        if last {
            self.free_puts.push(index);
        }
        Some(Piece { transfer: Transfer::Write { source, target }, slot, last })
    }

    /// Notes that a piece that was posted from a slot has ended.
    pub fn release(&mut self, slot: u32) {
        if self.states.get(slot as usize) == Some(&State::Posted) {
            self.make_free(slot);
        }
    }

    /// Returns what of a put was not posted yet.
    pub fn rest(&self, index: u32) -> Transfer {
        let &Put { source, target, posted, .. } = &self.puts[index as usize];
        Transfer::Write {
            source: Local {
                address: source.address.wrapping_add(posted.into()),
                length: source.length - posted,
                key: source.key,
            },
            target: Remote { address: target.address + u64::from(posted), key: target.key },
        }
    }

    /// Notes that a put will not be posted to its end.
    pub fn close(&mut self, index: u32) {
        self.take_slots(index, 0, false);
        let qp = self.puts[index as usize].qp;
        self.want_no_more(qp, index);
        self.free_puts.push(index);
    }

    /// Gives up all copies that go on: those pieces, and all that follows them of their puts, are
    /// posted from their source. Returns the queue pairs of all puts that were waiting, some of
    /// them more than once.
    pub fn give_up(&mut self) -> Vec<u32> {
        let mut qps: Vec<u32> = self.turns.iter().copied().collect();
        for slot in 0..self.states.len() {
            match self.states[slot] {
                State::Copying { put: index } => {
                    let put = &mut self.puts[index as usize];
                    let is_copied = |slot: &u32| self.states[*slot as usize] == State::Copied;
                    let kept = put.slots.iter().take_while(|slot| is_copied(slot)).count();
                    put.direct = true;
                    let qp = put.qp;
                    self.take_slots(index, kept, true);
                    self.want_no_more(qp, index);
                    qps.push(qp);
                }
                State::Unwanted { late: false } => {
                    self.states[slot] = State::Unwanted { late: true };
                    self.copying -= 1;
                    self.late += 1;
                }
                _ => {}
            }
        }
        qps
    }

    /// Takes from a put all its slots but the first `kept`.
    fn take_slots(&mut self, index: u32, kept: usize, late: bool) {
        let mut slots = std::mem::take(&mut self.puts[index as usize].slots);
        for slot in slots.drain(kept..) {
            if let State::Copying { .. } = self.states[slot as usize] {
                self.states[slot as usize] = State::Unwanted { late };
                if late {
                    self.copying -= 1;
                    self.late += 1;
                }
            } else {
                self.make_free(slot);
            }
        }
        self.puts[index as usize].slots = slots;
    }

    fn want_no_more(&mut self, qp: u32, index: u32) {
        let Some(wanting) = self.wanting.get_mut(qp as usize).filter(|wanting| !wanting.is_empty()) else { return };
        wanting.retain(|put| *put != index);
        if wanting.is_empty() {
            self.turns.retain(|other| *other != qp);
        }
    }

    fn make_free(&mut self, slot: u32) {
        self.states[slot as usize] = State::Free;
        self.free.push(slot);
    }
}
