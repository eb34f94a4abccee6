//! The IBRC proxy as an actor: the `proxy` crate's own ring reader and descriptors. Every load of
//! the reader is a step, and so is every word that the proxy publishes.
//!
//! What carries its work requests is modelled: they take effect in any order, unless one is
//! ordered, and a descriptor is done when its request has taken effect.

use oxshmem_proxy::descriptor::{Descriptor, Landing, Request};
use oxshmem_proxy::engine::{LANDING_BYTES, acknowledgement};
use oxshmem_proxy::ring::{Reader, Words};
use oxshmem_proxy::work::{Atomic, Remote, Transfer, Width};

use crate::interface::{HEAP_KEY, MAX_PES, ProxyPlace};
use crate::network::{Change, Effect, Flight};
use crate::world::{World, reschedule, stop_if_over};
use oxshmem_system::mixing::scramble;

/// Flights of proxy 0 have this number in place of a QP's.
const FIRST: usize = 1000;
/// Descriptors under way at a time.
const WINDOW: u64 = 4;

/// The ring's memory, as the reader sees it.
struct Ring {
    world: *mut World,
    thread: usize,
    slots: u64,
}

impl Words for Ring {
    fn load(&self, index: usize) -> u64 {
        // SAFETY: the world that runs this coroutine; no reference to it is alive.
        unsafe {
            let address = self.slots + index as u64 * 8;
            (*self.world).about_to_access(self.thread, address);
            reschedule(self.world);
            (*self.world).host_load(self.thread, address)
        }
    }

    /// The proxy's loads are in order.
    fn acquire(&self) {}
}

/// What a proxy knows.
struct State {
    place: ProxyPlace,
    number: usize,
    published_taken: u64,
    published_completed: u64,
    /// Acknowledgements that wait for their descriptor to be done.
    told: Vec<(u64, Landing)>,
    /// Peers whose next request is ordered.
    fenced: [bool; MAX_PES],
}

/// What the proxy's thread does: it never returns.
pub(crate) fn run(world: *mut World, thread: usize, proxy: usize) {
    // SAFETY: the world that runs this coroutine; no reference to it is alive at any call that may
    // switch to another.
    let place = unsafe { (&(*world).proxy_places)[proxy] };
    let mut reader = Reader::new(Ring { world, thread, slots: place.slots }, place.depth_log2);
    let mut state = State {
        place,
        number: FIRST + proxy,
        published_taken: 0,
        published_completed: 0,
        told: Vec::new(),
        fenced: [false; MAX_PES],
    };
    loop {
        let mut busy = false;
        // SAFETY: as above.
        let begun = unsafe { (*world).changes() };
        // SAFETY: as above.
        let done = unsafe { (*world).done_of(state.number, reader.taken()) };
        if let Some(at) = state.told.iter().position(|(index, _)| *index < done) {
            let (_, landing) = state.told.remove(at);
            let value = acknowledgement(landing.lap, false);
            let address = place.acknowledgements + u64::from(landing.slot) * 8;
            // SAFETY: as above.
            unsafe { publish(world, thread, address, value, "acknowledges landing slot") };
            busy = true;
        }
        if done > state.published_completed {
            state.published_completed = done;
            // SAFETY: as above.
            unsafe { publish(world, thread, place.completed, done, "publishes completed descriptors:") };
            busy = true;
        }
        let has_room = reader.taken() - done < WINDOW;
        if let Some(slot) = has_room.then(|| reader.take()).flatten() {
            let index = reader.taken() - 1;
            match Descriptor::decode(&slot) {
                // SAFETY: as above.
                Ok(descriptor) => unsafe { carry_out(world, thread, &mut state, index, &descriptor) },
                // SAFETY: as above.
                Err(error) => unsafe { (*world).fail(format!("the proxy takes descriptor {index}: {error}")) },
            }
            busy = true;
        }
        if reader.taken() > state.published_taken {
            state.published_taken = reader.taken();
            // SAFETY: as above.
            unsafe { publish(world, thread, place.taken, state.published_taken, "publishes taken slots:") };
            busy = true;
        }
        // SAFETY: as above.
        unsafe {
            stop_if_over(world);
            if !busy {
                let mut known = scramble(reader.taken() ^ state.published_completed << 32);
                for (index, landing) in &state.told {
                    known = scramble(known ^ index ^ u64::from(landing.slot) << 32);
                }
                known ^= state.fenced.iter().fold(0, |bits, &fenced| bits << 1 | u64::from(fenced));
                (*world).proxy_waits(thread, known, begun);
                reschedule(world);
            }
        }
    }
}

/// Stores a word that device code waits for.
///
/// # Safety
/// The same as in [`reschedule`].
unsafe fn publish(world: *mut World, thread: usize, address: u64, value: u64, what: &str) {
    // SAFETY: by the caller.
    unsafe {
        reschedule(world);
        (*world).say(|world| format!("{} {what} {value}", world.who(thread)));
        (*world).write_bytes(address, &value.to_le_bytes());
    }
}

/// Posts what a descriptor asks for.
///
/// # Safety
/// The same as in [`reschedule`].
unsafe fn carry_out(world: *mut World, thread: usize, state: &mut State, index: u64, descriptor: &Descriptor) {
    // SAFETY: by the caller.
    unsafe {
        (*world).say(|world| format!("{} takes descriptor {index}: {:?}", world.who(thread), descriptor.request));
        if descriptor.request == Request::Fence {
            state.fenced = [true; MAX_PES];
            return;
        }
        // What the HCA of a world has carried out is visible.
        if descriptor.request == Request::Flush {
            return;
        }
        let Some(fenced) = state.fenced.get_mut(descriptor.pe as usize) else {
            (*world).fail(format!("descriptor {index} names PE {}", descriptor.pe));
            return;
        };
        let ordered = std::mem::take(fenced) || descriptor.ordered;
        while ordered && (*world).has_flights(state.number) {
            let begun = (*world).changes();
            (*world).proxy_waits(thread, scramble(index ^ 0x0d), begun);
            reschedule(world);
        }
        if let Some(effect) = (*world).effect_of_descriptor(state, index, descriptor) {
            (*world).fly(state.number, index, effect);
        }
    }
}

impl World {
    /// Returns how many of the first `taken` descriptors are done without a gap.
    fn done_of(&self, number: usize, taken: u64) -> u64 {
        self.flights.iter().filter(|flight| flight.qp == number).map(|flight| flight.index).min().unwrap_or(taken)
    }

    fn has_flights(&self, number: usize) -> bool {
        self.flights.iter().any(|flight| flight.qp == number)
    }

    fn fly(&mut self, number: usize, index: u64, effect: Effect) {
        let priority = self.policy.priority();
        self.flights.push(Flight { qp: number, index, effect, priority });
    }

    fn heap_of(&self, pe: u32) -> u64 {
        self.memory.base + u64::from(self.exports().heap_at) + u64::from(pe) * u64::from(self.exports().heap_bytes)
    }

    fn peer_address(&mut self, pe: u32, remote: &Remote) -> Option<u64> {
        if remote.key != HEAP_KEY + pe {
            self.fail(format!("a descriptor has rkey {:#x}, and PE {pe}'s is {:#x}", remote.key, HEAP_KEY + pe));
            return None;
        }
        Some(self.heap_of(pe) + remote.address)
    }

    fn effect_of_descriptor(&mut self, state: &mut State, index: u64, descriptor: &Descriptor) -> Option<Effect> {
        let (me, peer) = (state.place.pe, descriptor.pe);
        let landing_at = |landing: Landing| state.place.landing + u64::from(landing.slot) * LANDING_BYTES;
        match descriptor.request {
            Request::Transfer(Transfer::WriteInline { payload, target }) => {
                let address = self.peer_address(peer, &target)?;
                self.claimed_write((me, peer), index, (target.address, address), payload.as_slice().to_vec())
            }
            Request::Transfer(Transfer::Write { source, target }) => {
                let address = self.peer_address(peer, &target)?;
                let mut bytes = vec![0; source.length as usize];
                self.memory.bytes(self.heap_of(me) + source.address, &mut bytes);
                self.claimed_write((me, peer), index, (target.address, address), bytes)
            }
            Request::Transfer(Transfer::Read { target, source }) => {
                let from = self.peer_address(peer, &source)?;
                Some(Effect::Read { from, to: self.heap_of(me) + target.address, bytes: target.length as usize })
            }
            Request::Fetch { landing, bytes, source } => {
                let from = self.peer_address(peer, &source)?;
                state.told.push((index, landing));
                Some(Effect::Read { from, to: landing_at(landing), bytes: bytes as usize })
            }
            Request::Atomic { operands, width, landing, target } => {
                let address = self.peer_address(peer, &target)?;
                let mut operation = None;
                let change = match operands {
                    Atomic::Add { value, boundary } => Change::Add { value, boundary },
                    Atomic::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                        Change::Swap { swap, compare, swap_mask, compare_mask }
                    }
                };
                if let Change::Add { value, boundary: 0 } = change {
                    operation = self.claim_add(me, peer, target.address, value);
                    if operation.is_none() {
                        self.fail(format!("descriptor {index} is an addition of {value:#x} that was not called for"));
                        return None;
                    }
                }
                if let Some(landing) = landing {
                    state.told.push((index, landing));
                }
                Some(Effect::Atomic {
                    address,
                    width: if width == Width::Eight { 8 } else { 4 },
                    change,
                    result: landing.map(landing_at),
                    big_endian: false,
                    operation,
                })
            }
            Request::Fence | Request::Flush => None,
        }
    }

    /// Returns the write of descriptor `index` from one PE to another, given its offset in the heap
    /// and its address.
    fn claimed_write(
        &mut self,
        (me, peer): (u32, u32),
        index: u64,
        (offset, address): (u64, u64),
        bytes: Vec<u8>,
    ) -> Option<Effect> {
        let covers = self.claim(me, peer, offset, &bytes);
        if covers.is_none() {
            self.fail(format!(
                "descriptor {index} writes {bytes:02x?} at {offset:#x} of PE {peer}: that was not called for, or was done before"
            ));
        }
        covers.map(|covers| Effect::Write { address, bytes, covers })
    }
}
