//! The world of one program: device threads as coroutines, the memory between them, and the
//! scheduler that decides after every visible access what happens next.
//!
//! Stores into a thread's own buffer are not decided about: no other process can tell when they
//! happen. Everything else is: a load, an atomic, a fence that has something to order, a store that
//! leaves a buffer, and every step of an HCA or a proxy.

mod accesses;
mod execute;
mod hooks;
mod orders;
mod schedule;
mod setup;
mod warps;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::trap::CoroutineTrapHandler;
use corosensei::{Coroutine, Yielder};
use rustc_hash::FxHashMap;

pub use hooks::load;
pub(crate) use hooks::{reschedule, stop_if_over};

use crate::interface::{DeviceThread, Exports, Kind, MAX_PES, Program, ProxyPlace, QpPlace, STATE_BYTES};
use crate::memory::{Entry, History, Memory};
use crate::module::{Module, name_of};
use crate::network::{Flight, Operation, Qp, Written};
use crate::policy::Policy;

thread_local! {
    /// The world that runs on this operating system thread.
    static WORLD: Cell<*mut World> = const { Cell::new(std::ptr::null_mut()) };
}

/// How a coroutine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Returned,
    Fault,
}

pub(crate) type Body = Coroutine<(), (), End, DefaultStack>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It has a step to make.
    Ready,
    /// It spins, and would see what it has seen before.
    Paused {
        others: u64,
    },
    /// It waits for other lanes to come to the same place.
    Converging {
        site: u64,
        key: u64,
    },
    /// It is in an operation of its warp.
    InWarp {
        kind: u32,
        mask: u32,
        value: u64,
        source: u32,
    },
    Done,
}

pub(crate) struct Thread {
    pub device: Box<DeviceThread>,
    pub pe: u8,
    pub proxy: Option<usize>,
    pub status: Status,
    /// A hash of all values it has seen.
    pub hash: u64,
    pub own_changes: u64,
    pub result: u64,
    pub priority: u64,
    pub epoch: u32,
    pub fruitless: u32,
    /// The word that its next step accesses.
    pub wants: u32,
    /// The words that its waiting loop looks at.
    watches: Vec<u32>,
    watched: Vec<u32>,
    /// Its hash before each of them.
    before: Vec<u64>,
    before_last: Vec<u64>,
    iteration_others: u64,
    iteration_memory: u64,
    last_site: u64,
    hash_at_pause: u64,
    effects: bool,
    was_stale: bool,
    /// Loads are not satisfied before this time.
    floor: u64,
    yielder: *const Yielder<(), ()>,
    trap: Option<CoroutineTrapHandler<End>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Thread(u8),
    Drain(u16),
    Look(u8),
    Execute(u8),
    Complete(u8),
    Land(u8),
    /// What a card has written arrives in a peer's memory.
    Arrive(u8),
    /// The deadlines of all threads that wait pass.
    Tick,
}

/// What a violated invariant says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The invariant and how it was violated.
    pub text: String,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All threads have returned, and everything they did has been executed.
    Passed,
    /// An invariant was violated.
    Failed(Failure),
    /// A state was reached from which everything has been explored.
    Pruned,
}

/// See the module's documentation.
pub struct World {
    module: Arc<Module>,
    pub(crate) program: &'static Program,
    pub(crate) memory: Memory,
    reservation: *mut c_void,
    reservation_bytes: usize,
    constants: Vec<(u64, Vec<u8>)>,
    states: Vec<[u64; STATE_BYTES / 8]>,
    state_of: [*const c_void; MAX_PES],
    pub(crate) qp_places: Vec<QpPlace>,
    pub(crate) proxy_places: Vec<ProxyPlace>,
    pub(crate) threads: Vec<Thread>,
    bodies: Vec<Option<Body>>,
    stacks: Vec<DefaultStack>,
    block_shared: Vec<u64>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) qps: Vec<Qp>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) written: Vec<Written>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) policy: Policy,
    actions: Vec<(Action, u64)>,
    changes: u64,
    time: u64,
    ticks: u32,
    tick_priority: u64,
    /// Where each PE's `abi::Control` is, whether it says that something is wrong, and whether it
    /// ever said that the job is over.
    pub(crate) control_at: [u64; MAX_PES],
    pub(crate) has_error: [bool; MAX_PES],
    pub(crate) job_over: [bool; MAX_PES],
    pub(crate) steps: u64,
    wakes: u32,
    resume: Option<usize>,
    running: usize,
    failure: Option<Failure>,
    pruned: bool,
    tracing: bool,
    trace: Vec<String>,
    fault: Option<(u64, u64)>,
    histories: FxHashMap<u32, History>,
    last_seen: FxHashMap<(u8, u32), u64>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("program", &name_of(self.program)).finish_non_exhaustive()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: the mapping is this world's, and no coroutine runs any more.
        unsafe { libc::munmap(self.reservation, self.reservation_bytes) };
    }
}

impl World {
    /// Returns the module of the program.
    #[must_use]
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Returns the program's name.
    #[must_use]
    pub fn name(&self) -> String {
        name_of(self.program)
    }

    /// Steps of the last execution.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns what the last execution that was traced did.
    #[must_use]
    pub fn trace(&self) -> &[String] {
        &self.trace
    }

    /// Returns the policy of the last execution.
    pub fn policy(&mut self) -> &mut Policy {
        &mut self.policy
    }

    /// A flight has landed, which its proxy waits for even if no memory has changed.
    pub(crate) fn note_landing(&mut self) {
        self.changes += 1;
    }

    pub(super) fn now(&self) -> u64 {
        self.changes
    }

    /// Returns how many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn exports(&self) -> &'static Exports {
        self.module.exports()
    }

    // -- What is told
    // ------------------------------------------------------------------------------------------------------

    pub(crate) fn who(&self, index: usize) -> String {
        let thread = &self.threads[index];
        if thread.proxy.is_some() {
            return format!("the proxy of PE {}", thread.pe);
        }
        if self.program.lanes > 1 {
            format!("lane {} of block {} of PE {}", thread.device.lane, thread.device.block, thread.pe)
        } else {
            format!("thread {} of PE {}", thread.device.block, thread.pe)
        }
    }

    pub(crate) fn say(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.tracing {
            let line = format!("{:5} {}", self.steps, text(self));
            self.trace.push(line);
        }
    }

    pub(crate) fn fail(&mut self, text: String) {
        if self.failure.is_none() {
            self.failure = Some(Failure { text });
        }
    }

    /// Returns a value of a word, as its field says.
    pub(crate) fn show(&self, address: u64, value: u64, bytes: u32) -> String {
        let exports = self.module.exports();
        match self.memory.about[self.memory.word_of(address) as usize].1 {
            Kind::Gate if bytes == 8 => {
                let groups = (value / exports.one_group) & ((1 << exports.group_bits) - 1);
                let mut text = format!("{{{} reserved, {groups} groups", value >> exports.reserved_shift);
                if value & exports.baton_free != 0 {
                    text.push_str(", baton free");
                }
                if value & exports.one_group << exports.group_bits != 0 {
                    text.push_str(", ringing");
                }
                text.push('}');
                text
            }
            Kind::Stamps if bytes == 4 => {
                let lap = value & ((1 << exports.lap_bits) - 1);
                let rest = value >> exports.lap_bits;
                if rest == 0 { format!("lap {lap}") } else { format!("lap {lap}, {rest} blocks follow") }
            }
            Kind::Record if bytes == 4 => format!("{}", (value as u32).swap_bytes()),
            Kind::Doorbell => format!("{}", (value as u32).swap_bytes() >> 8 & 0xffff),
            Kind::Cqe if address % 64 + u64::from(bytes) == 64 => {
                let value = if bytes == 4 { value << 32 } else { value };
                if value >> 60 == 0xf {
                    "no completion".to_owned()
                } else {
                    format!("counter {}", ((value >> 32) as u32).swap_bytes() >> 16)
                }
            }
            _ if value < 1 << 20 => format!("{value}"),
            _ => format!("{value:#x}"),
        }
    }
}
