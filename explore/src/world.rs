//! The world of one program: device threads as coroutines, the memory between them, and the scheduler that decides after every
//! visible access what happens next.
//!
//! Stores into a thread's own buffer are not decided about: no other process can tell when they happen. Everything else is: a
//! load, an atomic, a fence that has something to order, a store that leaves a buffer, and every step of an HCA or a proxy.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt::Write as _;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::trap::CoroutineTrapHandler;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use rustc_hash::FxHashMap;

use crate::hca::{Flight, Operation, Qp};
use crate::interface::{DeviceThread, Hooks, Kind, MAX_PES, Program, ProxyPlace, QpPlace, STATE_BYTES, Setup};
use crate::memory::{Entry, History, Level, Memory, Range, spread};
use crate::module::{Module, ModuleError, name_of};
use crate::policy::{Class, Policy};
use crate::proxy::Proxy;
use crate::trap;
use oxshmem_system::mixing::scramble;

/// The calls that modules make.
pub(crate) static HOOKS: Hooks = Hooks {
    load: hook_load,
    store: hook_store,
    update: hook_update,
    fence: hook_fence,
    mmio: hook_mmio,
    pause: hook_pause,
    converged: hook_converged,
    warp: hook_warp,
    sync_block: hook_sync_block,
    note: hook_note,
};

thread_local! {
    static WORLD: Cell<*mut World> = const { Cell::new(std::ptr::null_mut()) };
}

const RELAXED: u32 = 0;
const ACQUIRE: u32 = 1;
const RELEASE: u32 = 2;
const SYSTEM: u32 = 2;

const STACK_BYTES: usize = 128 << 10;

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
    /// Of all values it has seen.
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
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) policy: Policy,
    actions: Vec<(Action, u64)>,
    changes: u64,
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
    /// Lays out memory for a program of a module.
    ///
    /// # Errors
    /// There is no such program.
    ///
    /// # Panics
    /// If the system has no address space left.
    pub fn new(module: &Arc<Module>, program: &str) -> Result<Box<Self>, ModuleError> {
        let program = module.find(program)?;
        let exports = module.exports();
        let bytes = exports.shared_bytes.next_multiple_of(4096) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let reservation = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(reservation != libc::MAP_FAILED, "{bytes} bytes of address space");
        let base = reservation as u64;
        let mut world = Box::new(Self {
            module: Arc::clone(module),
            program,
            memory: Memory::new(base, exports.shared_bytes),
            reservation,
            reservation_bytes: bytes,
            constants: Vec::new(),
            states: vec![[0; STATE_BYTES / 8]; MAX_PES],
            state_of: [std::ptr::null(); MAX_PES],
            qp_places: Vec::new(),
            proxy_places: Vec::new(),
            threads: Vec::new(),
            bodies: Vec::new(),
            stacks: Vec::new(),
            block_shared: vec![0; 8192],
            entries: Vec::new(),
            qps: Vec::new(),
            proxies: Vec::new(),
            flights: Vec::new(),
            operations: Vec::new(),
            policy: Policy::random(0, 1000),
            actions: Vec::new(),
            changes: 0,
            steps: 0,
            wakes: 0,
            resume: None,
            running: usize::MAX,
            failure: None,
            pruned: false,
            tracing: false,
            trace: Vec::new(),
            fault: None,
            histories: FxHashMap::default(),
            last_seen: FxHashMap::default(),
        });
        world.set_up(exports.constant_bytes);
        trap::install();
        Ok(world)
    }

    fn set_up(&mut self, constant_bytes: u64) {
        let setup = Setup {
            base: self.memory.base,
            states: self.states.as_mut_ptr().cast(),
            context: std::ptr::from_mut(self).cast(),
            range: setup_range,
            set: setup_set,
            qp: setup_qp,
            proxy: setup_proxy,
            state: setup_state,
        };
        WORLD.set(std::ptr::from_mut(self));
        // SAFETY: the module calls back with what the setup functions expect, and keeps nothing of it.
        unsafe { (self.module.exports().setup)(self.program, &raw const setup) };
        WORLD.set(std::ptr::null_mut());
        // Constants may be read directly. All else on their pages reads as nonsense, and faults when it is written.
        // SAFETY: the pages are of our reservation, and nothing else uses them yet.
        unsafe {
            let at = self.reservation.cast::<u8>();
            libc::mprotect(self.reservation, constant_bytes as usize, libc::PROT_READ | libc::PROT_WRITE);
            std::ptr::write_bytes(at, 0xa5, constant_bytes as usize);
            for (address, bytes) in &self.constants {
                let to = at.add((address - self.memory.base) as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
            libc::mprotect(self.reservation, constant_bytes as usize, libc::PROT_READ);
        }
        self.memory.start();
        for pe in 0..self.program.pes {
            for block in 0..self.program.blocks[pe as usize] {
                for lane in 0..self.program.lanes {
                    self.threads.push(self.thread(pe, block, lane, None));
                }
            }
        }
        for (index, place) in self.proxy_places.iter().enumerate() {
            self.threads.push(self.thread(place.pe, 0, 0, Some(index)));
        }
        assert!(self.threads.len() <= 64, "at most 64 threads");
        self.bodies.resize_with(self.threads.len(), || None);
    }

    fn thread(&self, pe: u32, block: u32, lane: u32, proxy: Option<usize>) -> Thread {
        let device = Box::new(DeviceThread {
            shared_base: self.memory.base,
            shared_bytes: self.module.exports().shared_bytes,
            state: self.state_of[pe as usize],
            lane,
            lanes: self.program.lanes,
            block,
            blocks: self.program.blocks[pe as usize],
            block_shared: self.block_shared.as_ptr().cast_mut().cast(),
        });
        Thread {
            device,
            pe: pe as u8,
            proxy,
            status: Status::Ready,
            hash: 0,
            own_changes: 0,
            result: 0,
            priority: 0,
            epoch: 0,
            fruitless: 0,
            wants: u32::MAX,
            watches: Vec::new(),
            watched: Vec::new(),
            before: Vec::new(),
            before_last: Vec::new(),
            iteration_others: u64::MAX,
            iteration_memory: 0,
            last_site: 0,
            hash_at_pause: 0,
            effects: false,
            was_stale: false,
            floor: 0,
            yielder: std::ptr::null(),
            trap: None,
        }
    }

    /// The module of the program.
    #[must_use]
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> String {
        name_of(self.program)
    }

    /// Steps of the last execution.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What the last execution that was traced did.
    #[must_use]
    pub fn trace(&self) -> &[String] {
        &self.trace
    }

    /// The policy of the last execution.
    pub fn policy(&mut self) -> &mut Policy {
        &mut self.policy
    }

    /// Runs the program once.
    pub fn execute(&mut self, policy: Policy, tracing: bool) -> Outcome {
        self.reset(policy, tracing);
        WORLD.set(std::ptr::from_mut(self));
        // Calls of the device threads come back to this world through the pointer, so only it is used from here on.
        let world: *mut Self = self;
        // SAFETY: `world` is `self`, and no other reference to it is used while a coroutine runs.
        unsafe { Self::run(world) };
        WORLD.set(std::ptr::null_mut());
        self.take_down();
        if self.pruned {
            return Outcome::Pruned;
        }
        match self.failure.take() {
            Some(failure) => {
                if self.tracing {
                    self.trace.push(format!("=> {}", failure.text));
                }
                Outcome::Failed(failure)
            }
            None => Outcome::Passed,
        }
    }

    fn reset(&mut self, policy: Policy, tracing: bool) {
        self.policy = policy;
        self.tracing = tracing;
        self.trace.clear();
        self.memory.reset();
        self.entries.clear();
        self.flights.clear();
        self.operations.clear();
        self.histories.clear();
        self.last_seen.clear();
        self.changes = 0;
        self.steps = 0;
        self.wakes = 0;
        self.failure = None;
        self.pruned = false;
        self.fault = None;
        self.qps.clear();
        for place in &self.qp_places {
            let priorities = [self.policy.priority(), self.policy.priority(), self.policy.priority()];
            self.qps.push(Qp::new(*place, priorities));
        }
        self.proxies.clear();
        self.proxies.extend(self.proxy_places.iter().map(|place| Proxy::new(*place)));
        for thread in &mut self.threads {
            thread.status = Status::Ready;
            thread.hash = 0;
            thread.own_changes = 0;
            thread.priority = self.policy.priority();
            thread.epoch = 0;
            thread.fruitless = 0;
            thread.wants = u32::MAX;
            thread.watches.clear();
            thread.watched.clear();
            thread.before.clear();
            thread.before_last.clear();
            thread.iteration_others = u64::MAX;
            thread.hash_at_pause = 0;
            thread.effects = false;
            thread.was_stale = false;
            thread.floor = 0;
            thread.trap = None;
        }
    }

    /// Runs coroutines until the execution is over.
    ///
    /// # Safety
    /// `world` is valid, and the pointer of this operating system thread.
    unsafe fn run(world: *mut Self) {
        // SAFETY: by the caller; references end before a coroutine is resumed.
        unsafe {
            let exports = (*world).module.exports();
            let mut next = (*world).next_thread();
            while let Some(index) = next {
                if (&(*world).bodies)[index].is_none() {
                    (*world).begin(index);
                }
                (*world).running = index;
                (exports.set_current)(std::ptr::from_mut(&mut *(&mut (*world).threads)[index].device));
                let body: *mut Option<Body> = &raw mut (&mut (*world).bodies)[index];
                let Some(body) = (*body).as_mut() else { break };
                match body.resume(()) {
                    CoroutineResult::Yield(()) => next = (*world).resume,
                    CoroutineResult::Return(End::Returned) => {
                        (*world).running = usize::MAX;
                        (*world).ended(index);
                        next = (*world).next_thread();
                    }
                    CoroutineResult::Return(End::Fault) => {
                        (*world).running = usize::MAX;
                        (*world).faulted(index);
                        next = None;
                    }
                }
                (*world).running = usize::MAX;
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let stack = self.stacks.pop().unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
        let world: *mut Self = self;
        let body = self.program.body;
        let proxy = self.threads[index].proxy;
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            // SAFETY: the world outlives its coroutines, and runs one at a time.
            unsafe { (&mut (*world).threads)[index].yielder = yielder };
            match (proxy, body) {
                (Some(proxy), _) => crate::proxy::run(world, index, proxy),
                // SAFETY: the module's function, on a stack of its own, with the hooks set up.
                (None, Some(body)) => unsafe { body() },
                (None, None) => {}
            }
            End::Returned
        });
        self.moved_on(index);
        self.threads[index].trap = Some(coroutine.trap_handler());
        self.bodies[index] = Some(coroutine);
    }

    fn take_down(&mut self) {
        for (thread, body) in self.threads.iter_mut().zip(&mut self.bodies) {
            thread.trap = None;
            if let Some(mut body) = body.take() {
                if !body.done() {
                    // SAFETY: device code and the proxy's loop own nothing that has to be dropped.
                    unsafe { body.force_reset() };
                }
                self.stacks.push(body.into_stack());
            }
        }
    }

    fn ended(&mut self, index: usize) {
        self.threads[index].status = Status::Done;
        if self.tracing {
            let who = self.who(index);
            self.trace.push(format!("{who}: returns"));
        }
        self.check_warp(index);
        self.check_converging(index);
    }

    fn faulted(&mut self, index: usize) {
        let (pc, address) = self.fault.take().unwrap_or_default();
        let place = trap::place_of(pc, self.module.path());
        let what = self.memory.describe(address);
        let who = self.who(index);
        self.fail(format!("{who} accesses {what} without the port layer, at {place}"));
    }

    /// Whether an address is in shared memory of the running thread's world, and the handler to leave that thread by.
    pub(crate) fn trap_of(address: u64, pc: u64) -> Option<CoroutineTrapHandler<End>> {
        let world = WORLD.get();
        if world.is_null() {
            return None;
        }
        // SAFETY: the world that runs on this operating system thread; it is inside of device code, which holds no reference.
        unsafe {
            let inside = address.wrapping_sub((*world).memory.base) < (*world).reservation_bytes as u64;
            let thread = (*world).threads.as_ptr().add((*world).running);
            if !inside || (*world).running == usize::MAX {
                return None;
            }
            (*world).fault = Some((pc, address));
            (*thread).trap
        }
    }

    // -- What is told ------------------------------------------------------------------------------------------------------

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

    /// A value of a word, as its field says.
    pub(crate) fn show(&self, address: u64, value: u64, bytes: u32) -> String {
        let exports = self.module.exports();
        match self.memory.about[self.memory.word_of(address) as usize].1 {
            Kind::Gate if bytes == 8 => {
                let groups = (value / exports.one_group) & ((1 << exports.group_bits) - 1);
                let mut text = format!("{{{} reserved, {groups} groups", value >> exports.reserved_shift);
                if value & exports.baton_free != 0 {
                    text.push_str(", baton free");
                }
                if value & (exports.one_group - 1) & !exports.baton_free != 0 {
                    text.push_str(", fence");
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

    // -- Memory ------------------------------------------------------------------------------------------------------------

    /// Puts bytes of a word into memory, where all who read this memory see them. `by`: the thread, if it was one's.
    pub(crate) fn set_memory(&mut self, word: u32, mask: u8, value: u64, by: Option<usize>) {
        let bits = spread(mask);
        let old = self.memory.words[word as usize];
        let new = old & !bits | value & bits;
        if old == new {
            return;
        }
        self.changes += 1;
        if let Some(by) = by {
            self.threads[by].own_changes += 1;
        }
        if self.program.stale != 0 {
            self.histories.entry(word).or_default().past.push((old, self.changes));
            if let Some(by) = by {
                self.last_seen.insert((by as u8, word), self.changes);
            }
        }
        self.before_change(word, bits, new);
        self.memory.replace(word, new);
    }

    /// Writes bytes to memory, by the HCA or the proxy.
    pub(crate) fn write_bytes(&mut self, address: u64, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (word, shift) = (self.memory.word_of(address + at as u64), ((address + at as u64) % 8) as usize);
            let n = (8 - shift).min(bytes.len() - at);
            let (mut value, mut mask) = (0u64, 0u8);
            for i in 0..n {
                value |= u64::from(bytes[at + i]) << ((shift + i) * 8);
                mask |= 1 << (shift + i);
            }
            self.set_memory(word, mask, value, None);
            at += n;
        }
    }

    /// What a thread sees in a word.
    fn seen(&self, thread: usize, word: u32) -> (u64, u8) {
        let mut value = self.memory.words[word as usize];
        let mut buffered = 0;
        let pe = self.threads[thread].pe;
        for level in [Level::Bus, Level::Thread] {
            for entry in &self.entries {
                let sees = match level {
                    Level::Bus => entry.pe == pe,
                    Level::Thread => entry.seen_by >> thread & 1 != 0,
                };
                if entry.word == word && entry.level == level && sees {
                    let bits = spread(entry.mask);
                    value = value & !bits | entry.value & bits;
                    buffered |= entry.mask;
                }
            }
        }
        (value, buffered)
    }

    /// Whether an entry may move on now.
    fn may_drain(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        for earlier in &self.entries[..index] {
            match (entry.level, earlier.level) {
                (Level::Thread, Level::Thread) => {
                    let known = earlier.seen_by >> entry.thread & 1 != 0;
                    let same = earlier.word == entry.word && earlier.mask & entry.mask != 0;
                    if known && (same || entry.release) {
                        return false;
                    }
                }
                (Level::Bus, Level::Bus) => {
                    let same = earlier.word == entry.word && earlier.mask & entry.mask != 0;
                    if earlier.pe == entry.pe && (same || entry.release) {
                        return false;
                    }
                }
                _ => {}
            }
        }
        true
    }

    /// Whether another process is about to access the word of a store, or of one that has to wait for it.
    fn is_wanted(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        if entry.doorbell || self.is_watched(entry) {
            return true;
        }
        self.entries[index + 1..].iter().any(|later| {
            later.level == entry.level
                && (later.release || later.word == entry.word)
                && (later.doorbell || self.is_watched(later))
        })
    }

    fn is_watched(&self, entry: &Entry) -> bool {
        let (word, kind) = (entry.word, self.memory.about[entry.word as usize].1);
        let by_thread = self.threads.iter().enumerate().any(|(index, thread)| {
            index != usize::from(entry.thread)
                && match thread.status {
                    Status::Ready => thread.wants == word,
                    Status::Paused { .. } => thread.watched.contains(&word) || thread.proxy.is_some(),
                    _ => false,
                }
        });
        by_thread
            || match kind {
                Kind::Record => self.qps.iter().any(|qp| qp.look),
                Kind::Queue => {
                    self.qps.iter().any(|qp| qp.executed < qp.announced && qp.has_word(word, self.memory.base))
                }
                Kind::Heap | Kind::Landing => {
                    !self.flights.is_empty() || self.qps.iter().any(|qp| qp.executed < qp.announced)
                }
                Kind::Cqe => true,
                _ => false,
            }
    }

    /// Whether an earlier store of the same thread to the same block of a queue is as far as this one.
    fn is_behind_in_block(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        self.memory.about[entry.word as usize].1 == Kind::Queue
            && self.entries[..index].iter().any(|earlier| {
                earlier.word / 8 == entry.word / 8 && earlier.thread == entry.thread && earlier.level == entry.level
            })
    }

    /// Moves an entry on: over the bus if its word lies elsewhere, otherwise to memory.
    fn drain(&mut self, index: usize) {
        let mut entry = self.entries.remove(index);
        let owner = self.memory.about[entry.word as usize].0;
        if entry.level == Level::Thread && owner != entry.pe {
            entry.level = Level::Bus;
            entry.seen_by = u64::MAX;
            self.changes += 1;
            self.threads[entry.thread as usize].own_changes += 1;
            self.say(|world| {
                format!("{}'s store to {} is in the GPU", world.who(entry.thread.into()), world.place(&entry))
            });
            self.entries.push(entry);
            return;
        }
        self.say(|world| {
            let address = world.memory.base + u64::from(entry.word) * 8 + u64::from(entry.mask.trailing_zeros());
            let value = entry.value >> (entry.mask.trailing_zeros() * 8);
            let bytes = entry.mask.count_ones();
            let value = if bytes == 8 { value } else { value & ((1 << (bytes * 8)) - 1) };
            format!(
                "{}'s store of {} to {} becomes visible",
                world.who(entry.thread.into()),
                world.show(address, value, bytes),
                world.memory.describe(address)
            )
        });
        let by = Some(entry.thread as usize);
        if entry.doorbell {
            self.ring(entry.word, entry.value);
            return;
        }
        self.set_memory(entry.word, entry.mask, entry.value, by);
    }

    fn place(&self, entry: &Entry) -> String {
        self.memory.describe(self.memory.base + u64::from(entry.word) * 8 + u64::from(entry.mask.trailing_zeros()))
    }

    /// Makes all stores that a thread has seen visible: in the GPU, or also beyond it.
    fn flush(&mut self, thread: usize, system: bool) {
        let mut index = 0;
        while index < self.entries.len() {
            let entry = &self.entries[index];
            if entry.level == Level::Thread && entry.seen_by >> thread & 1 != 0 {
                // What moves to the bus goes to the end.
                self.drain(index);
            } else {
                index += 1;
            }
        }
        if system {
            let pe = self.threads[thread].pe;
            let mut index = 0;
            while index < self.entries.len() {
                if self.entries[index].level == Level::Bus && self.entries[index].pe == pe {
                    self.drain(index);
                } else {
                    index += 1;
                }
            }
        }
    }

    fn has_unordered(&self, thread: usize, system: bool) -> bool {
        let pe = self.threads[thread].pe;
        self.entries.iter().any(|entry| match entry.level {
            Level::Thread => entry.seen_by >> thread & 1 != 0,
            Level::Bus => system && entry.pe == pe,
        })
    }

    /// A flight has landed, which its proxy waits for even if no memory has changed.
    pub(crate) fn note_landing(&mut self) {
        self.changes += 1;
    }

    fn now(&self) -> u64 {
        self.changes
    }

    /// Notes which word a thread's next step accesses.
    pub(crate) fn about_to_access(&mut self, thread: usize, address: u64) {
        self.threads[thread].wants = self.memory.word_of(address);
    }

    /// Notes that a thread is at another place than before, though it has learnt nothing.
    fn moved_on(&mut self, thread: usize) {
        let hash = &mut self.threads[thread].hash;
        *hash = scramble(*hash ^ 0x5bd1_e995);
    }

    /// Notes what a thread has learnt.
    fn learn(&mut self, thread: usize, address: u64, value: u64) {
        if self.memory.about[self.memory.word_of(address) as usize].1 == Kind::Control {
            self.moved_on(thread);
            return;
        }
        let place = address - self.memory.base;
        let thread = &mut self.threads[thread];
        thread.before.push(thread.hash);
        thread.hash = scramble(thread.hash.rotate_left(7) ^ value ^ place << 40);
        thread.watches.push((place / 8) as u32);
    }

    fn load(&mut self, thread: usize, address: u64, bytes: u32, order: u32) -> u64 {
        let word = self.memory.word_of(address);
        let (mut all, buffered) = self.seen(thread, word);
        if self.program.stale != 0 && buffered == 0 {
            all = self.maybe_stale(thread, word, all, order);
        }
        let value = all >> (address % 8 * 8);
        let value = if bytes == 8 { value } else { value & ((1 << (bytes * 8)) - 1) };
        if order == ACQUIRE {
            self.threads[thread].floor = self.now();
        }
        self.learn(thread, address, value);
        self.say(|world| {
            let acquire = if order == ACQUIRE { " (acquire)" } else { "" };
            let shown = world.show(address, value, bytes);
            format!("{} loads {}{acquire}: {shown}", world.who(thread), world.memory.describe(address))
        });
        value
    }

    /// A relaxed load may have been satisfied early: as far back as the thread's last acquire, and not before what the thread
    /// knows of the same word.
    fn maybe_stale(&mut self, thread: usize, word: u32, current: u64, order: u32) -> u64 {
        let now = self.now();
        let mut value = current;
        let mut seen = now;
        if order == RELAXED {
            let known = self.last_seen.get(&(thread as u8, word)).copied().unwrap_or(0);
            let floor = self.threads[thread].floor.max(known);
            let options: Vec<(u64, u64)> = self.histories.get(&word).map_or(Vec::new(), |history| {
                history.past.iter().copied().filter(|&(_, until)| until > floor).collect()
            });
            if !options.is_empty() && self.policy.chance(4) {
                let pick = self.policy.choose(options.len());
                (value, seen) = (options[pick].0, options[pick].1 - 1);
                self.threads[thread].was_stale = true;
                self.say(|world| format!("{}'s next load was made early", world.who(thread)));
            }
        }
        self.last_seen.insert((thread as u8, word), seen);
        value
    }

    fn store(&mut self, thread: usize, address: u64, bytes: u32, value: u64, release: bool, doorbell: bool) {
        let word = self.memory.word_of(address);
        let shift = address % 8;
        let entry = Entry {
            word,
            mask: (((1u16 << bytes) - 1) << shift) as u8,
            thread: thread as u8,
            pe: self.threads[thread].pe,
            level: Level::Thread,
            release,
            doorbell,
            value: value << (shift * 8),
            seen_by: 1 << thread,
            priority: self.policy.store_priority(),
        };
        self.threads[thread].effects = true;
        self.say(|world| {
            let release = if release { " (release)" } else { "" };
            let (shown, place) = (world.show(address, value, bytes), world.memory.describe(address));
            format!("{} stores {shown} to {place}{release}, into its buffer", world.who(thread))
        });
        self.entries.push(entry);
    }

    #[allow(clippy::too_many_arguments)] // as many as an atomic has
    fn update(
        &mut self,
        thread: usize,
        kind: u32,
        address: u64,
        bytes: u32,
        operand: u64,
        expected: u64,
        order: u32,
        reach: u32,
    ) -> u64 {
        let word = self.memory.word_of(address);
        let shift = address % 8;
        let mask = (((1u16 << bytes) - 1) << shift) as u8;
        if order >= RELEASE {
            self.flush(thread, reach == SYSTEM);
        }
        // Its own stores to the word come first.
        while let Some(index) = self.entries.iter().position(|entry| {
            let known = entry.level == Level::Bus && entry.pe == self.threads[thread].pe
                || entry.level == Level::Thread && entry.seen_by >> thread & 1 != 0;
            known && entry.word == word && entry.mask & mask != 0
        }) {
            if self.entries[index].release {
                let (owner, system) = (self.entries[index].thread as usize, self.entries[index].level == Level::Bus);
                self.flush(owner, system);
            } else {
                self.drain(index);
            }
        }
        let limit = if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        let old = self.memory.words[word as usize] >> (shift * 8) & limit;
        let signed = |value: u64| if bytes == 4 { i64::from(value as u32 as i32) } else { value as i64 };
        let new = match kind {
            0 => operand,
            1 => {
                if old == expected & limit {
                    operand
                } else {
                    old
                }
            }
            2 => old.wrapping_add(operand),
            3 => old & operand,
            4 => old | operand,
            5 => old ^ operand,
            6 => old.max(operand),
            _ => {
                if signed(old) < signed(operand) {
                    operand
                } else {
                    old
                }
            }
        } & limit;
        self.set_memory(word, mask, new << (shift * 8), Some(thread));
        if self.program.stale != 0 {
            let now = self.now();
            self.last_seen.insert((thread as u8, word), now);
        }
        if order & ACQUIRE != 0 {
            self.threads[thread].floor = self.now();
        }
        self.threads[thread].effects |= new != old;
        self.learn(thread, address, old);
        self.say(|world| {
            let verb = ["exchanges", "compares and swaps", "adds to", "ands", "ors", "xors", "raises", "raises"]
                [kind.min(7) as usize];
            let order = ["", " (acquire)", " (release)", " (acquire and release)"][order.min(3) as usize];
            let (before, after) = (world.show(address, old, bytes), world.show(address, new, bytes));
            format!("{} {verb} {}{order}: {before} becomes {after}", world.who(thread), world.memory.describe(address))
        });
        old
    }

    // -- Scheduling --------------------------------------------------------------------------------------------------------

    /// Executes what is not a thread's until it is a thread's turn. None: the execution is over.
    fn next_thread(&mut self) -> Option<usize> {
        loop {
            if self.failure.is_some() || self.pruned {
                return None;
            }
            if self.steps >= u64::from(self.program.most_steps) {
                let states = self.where_all_are();
                self.fail(format!(
                    "no end after {} steps: threads keep each other from terminating: {states}",
                    self.steps
                ));
                return None;
            }
            self.collect();
            if self.actions.is_empty() {
                if self.threads.iter().all(|thread| thread.status == Status::Done || thread.proxy.is_some()) {
                    self.check_end();
                    return None;
                }
                if !self.wake_all() {
                    let states = self.where_all_are();
                    self.fail(format!("deadlock: nothing can change any more, but {states}"));
                    return None;
                }
                continue;
            }
            let index = if self.actions.len() == 1 { 0 } else { self.decide()? };
            self.steps += 1;
            match self.actions[index].0 {
                Action::Thread(thread) => {
                    self.threads[thread as usize].status = Status::Ready;
                    return Some(thread.into());
                }
                Action::Drain(entry) => self.drain(entry.into()),
                Action::Look(qp) => self.look(qp.into()),
                Action::Execute(qp) => self.execute_next(qp.into()),
                Action::Complete(qp) => self.complete(qp.into()),
                Action::Land(flight) => self.land(flight.into()),
            }
        }
    }

    /// Collects what may happen next.
    fn collect(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        for (index, thread) in self.threads.iter().enumerate() {
            let enabled = match thread.status {
                Status::Ready => true,
                Status::Paused { others } => self.changes - thread.own_changes != others,
                _ => false,
            };
            if enabled {
                actions.push((Action::Thread(index as u8), thread.priority));
            }
        }
        let exhaustive = self.policy.is_exhaustive();
        let idle =
            exhaustive && actions.is_empty() && self.qps.iter().all(|qp| !qp.look && qp.executed == qp.announced);
        for index in 0..self.entries.len() {
            // An exhaustive search lets the words of a work request leave in their order: which of them is missing makes no
            // difference to what the HCA finds out. And it lets a store wait until some other process is about to look at its
            // word, since before that it makes no difference when it becomes visible.
            if self.may_drain(index)
                && !(exhaustive && (self.is_behind_in_block(index) || !(idle || self.is_wanted(index))))
            {
                actions.push((Action::Drain(index as u16), self.entries[index].priority));
            }
        }
        self.collect_hca(&mut actions);
        self.actions = actions;
    }

    fn decide(&mut self) -> Option<usize> {
        if self.policy.is_exhaustive() {
            if self.policy.is_new_choice() {
                let state = self.state_hash();
                if !self.policy.note_state(state) {
                    self.pruned = true;
                    return None;
                }
            }
            return Some(self.policy.choose(self.actions.len()));
        }
        let class = |action: &Action| match action {
            Action::Thread(_) => Class::Thread,
            Action::Drain(_) => Class::Drain,
            _ => Class::Hca,
        };
        let pick = self.policy.pick(self.actions.iter().map(|(action, priority)| (class(action), *priority)));
        if let Some(lowered) = self.policy.change_point(self.steps) {
            self.set_priority(self.actions[pick].0, lowered);
        }
        Some(pick)
    }

    fn set_priority(&mut self, action: Action, priority: u64) {
        match action {
            Action::Thread(thread) => self.threads[thread as usize].priority = priority,
            Action::Drain(entry) => self.entries[entry as usize].priority = priority,
            Action::Look(qp) => self.qps[qp as usize].priorities[0] = priority,
            Action::Execute(qp) => self.qps[qp as usize].priorities[1] = priority,
            Action::Complete(qp) => self.qps[qp as usize].priorities[2] = priority,
            Action::Land(flight) => self.flights[flight as usize].priority = priority,
        }
    }

    /// Lets lanes that wait for others go on alone, and spinning threads look some more times. False: that was done before.
    fn wake_all(&mut self) -> bool {
        let lanes: Vec<usize> = (0..self.threads.len())
            .filter(|&index| matches!(self.threads[index].status, Status::Converging { .. }))
            .collect();
        if !lanes.is_empty() {
            for index in lanes {
                self.release_waiting(self.warp_of(index));
            }
            return true;
        }
        self.wakes += 1;
        if self.wakes > 3 {
            return false;
        }
        let mut any = false;
        for thread in &mut self.threads {
            if matches!(thread.status, Status::Paused { .. }) && thread.proxy.is_none() {
                thread.status = Status::Ready;
                // As many as a wait polls before it looks at something else.
                thread.fruitless = 0;
                any = true;
            }
        }
        any
    }

    fn where_all_are(&self) -> String {
        let mut text = String::new();
        for (index, thread) in self.threads.iter().enumerate() {
            if thread.proxy.is_some() {
                continue;
            }
            let what = match thread.status {
                Status::Ready => "is running",
                Status::Paused { .. } => "waits",
                Status::Converging { .. } | Status::InWarp { .. } => "waits for its warp",
                Status::Done => continue,
            };
            let _ = write!(text, "{}{} {what}", if text.is_empty() { "" } else { ", " }, self.who(index));
        }
        text
    }

    fn state_hash(&self) -> u64 {
        let mut hash = self.memory.hash;
        for (index, thread) in self.threads.iter().enumerate() {
            let status = match thread.status {
                Status::Ready => 1,
                Status::Paused { others } => 2 + u64::from(self.changes - thread.own_changes != others),
                Status::Converging { key, .. } => 5 ^ key << 8,
                Status::InWarp { kind, .. } => 6 + (u64::from(kind) << 8),
                Status::Done => 4,
            };
            let fruitless = u64::from(thread.fruitless.min(3)) << 60;
            hash ^=
                scramble(thread.hash ^ status << 32 ^ fruitless ^ (index as u64).wrapping_mul(0x1234_5678_9abc_def1));
        }
        let mut order = 0;
        for entry in &self.entries {
            let flags =
                u64::from(entry.mask) | u64::from(entry.thread) << 8 | u64::from(entry.level == Level::Bus) << 16;
            order = scramble(order ^ entry.value ^ u64::from(entry.word) << 32 ^ scramble(flags ^ entry.seen_by << 20));
        }
        hash ^= order;
        scramble(hash ^ self.hca_hash())
    }

    /// How many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Lets a proxy wait until something has changed after the first `others` changes. `state`: all that it knows.
    pub(crate) fn proxy_waits(&mut self, index: usize, state: u64, others: u64) {
        let lowest = self.policy.lowest();
        let thread = &mut self.threads[index];
        thread.hash = state;
        thread.priority = lowest;
        thread.status = Status::Paused { others };
    }

    /// A word of host memory, as the proxy loads it.
    pub(crate) fn host_load(&mut self, thread: usize, address: u64) -> u64 {
        let value = self.memory.words[self.memory.word_of(address) as usize];
        self.threads[thread].hash = scramble(self.threads[thread].hash ^ value);
        self.say(|world| {
            let shown = world.show(address, value, 8);
            format!("{} loads {}: {shown}", world.who(thread), world.memory.describe(address))
        });
        value
    }

    /// Ends an iteration of a loop that waits.
    fn pause(&mut self, index: usize, site: u64) {
        let (changes, memory) = (self.changes, self.memory.hash);
        let most = 1 + (1 << self.program.landing_log2);
        let lowest = self.policy.lowest();
        let thread = &mut self.threads[index];
        let others = changes - thread.own_changes;
        if others == thread.iteration_others && memory == thread.iteration_memory && !thread.was_stale {
            thread.fruitless += 1;
        } else {
            thread.fruitless = 0;
        }
        // What a thread has seen in earlier turns of the same loop is forgotten. The turn before the second one began somewhere
        // before the loop; its end is what the second one looked at again.
        let same = !thread.effects && thread.last_site == site && !thread.watches.is_empty();
        if same && thread.watched == thread.watches {
            thread.hash = thread.hash_at_pause;
        } else {
            if same && thread.watched.ends_with(&thread.watches) {
                thread.hash = thread.before_last[thread.watched.len() - thread.watches.len()];
            }
            thread.hash = scramble(thread.hash ^ site);
            thread.hash_at_pause = thread.hash;
        }
        std::mem::swap(&mut thread.watches, &mut thread.watched);
        thread.watches.clear();
        std::mem::swap(&mut thread.before, &mut thread.before_last);
        thread.before.clear();
        thread.last_site = site;
        thread.effects = false;
        thread.was_stale = false;
        thread.iteration_others = others;
        thread.iteration_memory = memory;
        // A thread that waits lets the others go first.
        thread.priority = lowest;
        if thread.fruitless >= most {
            thread.status = Status::Paused { others };
        }
    }

    // -- Warps -------------------------------------------------------------------------------------------------------------

    fn warp_of(&self, index: usize) -> std::ops::Range<usize> {
        let first = index - self.threads[index].device.lane as usize;
        first..first + self.program.lanes as usize
    }

    /// Releases the lanes of a warp if they have all come to the same place, or alone if they never will.
    fn check_converging(&mut self, index: usize) {
        if self.threads[index].proxy.is_some() {
            return;
        }
        let warp = self.warp_of(index);
        let mut places = warp.clone().map(|lane| match self.threads[lane].status {
            Status::Converging { site, key } => Some((site, key)),
            _ => None,
        });
        let first = places.next().flatten();
        if first.is_some() && places.all(|place| place == first) {
            let mask = (1u64 << warp.len()) - 1;
            self.say(|world| format!("the warp of {} converges", world.who(index)));
            for lane in warp {
                self.threads[lane].status = Status::Ready;
                self.threads[lane].result = mask;
            }
            return;
        }
        let all_wait =
            warp.clone().all(|lane| matches!(self.threads[lane].status, Status::Converging { .. } | Status::Done));
        let waiting =
            warp.clone().filter(|&lane| matches!(self.threads[lane].status, Status::Converging { .. })).count();
        if all_wait || (self.program.parts != 0 && waiting >= 2 && self.policy.chance(2)) {
            self.release_waiting(warp);
        }
    }

    /// Releases the waiting lanes of a warp: each alone, or, where parts of a warp may work together, with those at the same place.
    fn release_waiting(&mut self, warp: std::ops::Range<usize>) {
        let first = warp.start;
        for lane in warp.clone() {
            let Status::Converging { site, key } = self.threads[lane].status else { continue };
            let same = |world: &Self, other: usize| world.threads[other].status == Status::Converging { site, key };
            let group: Vec<usize> = if self.program.parts != 0 {
                warp.clone().filter(|&other| same(self, other)).collect()
            } else {
                vec![lane]
            };
            let mask = group.iter().fold(0, |mask, other| mask | 1 << (other - first));
            for other in group {
                self.threads[other].status = Status::Ready;
                self.threads[other].result = mask;
            }
        }
    }

    /// Carries out the operation that a warp's lanes wait in, if all that take part are there.
    fn check_warp(&mut self, index: usize) {
        if self.threads[index].proxy.is_some() {
            return;
        }
        let warp = self.warp_of(index);
        let first = warp.start;
        for leader in warp.clone() {
            let Status::InWarp { kind, mask, .. } = self.threads[leader].status else { continue };
            let lanes: Vec<usize> = warp
                .clone()
                .filter(|&lane| mask >> (lane - first) & 1 != 0 && self.threads[lane].status != Status::Done)
                .collect();
            let values: Vec<(u64, u32)> = lanes
                .iter()
                .filter_map(|&lane| match self.threads[lane].status {
                    Status::InWarp { kind: theirs, mask: named, value, source } if theirs == kind && named == mask => {
                        Some((value, source))
                    }
                    _ => None,
                })
                .collect();
            if values.len() != lanes.len() {
                continue;
            }
            self.carry_out(kind, first, &lanes, &values);
        }
    }

    fn carry_out(&mut self, kind: u32, first: usize, lanes: &[usize], values: &[(u64, u32)]) {
        let bit = |lane: usize| 1u64 << (lane - first);
        let ballot =
            lanes.iter().zip(values).filter(|(_, (value, _))| *value != 0).fold(0, |all, (&lane, _)| all | bit(lane));
        for (position, &lane) in lanes.iter().enumerate() {
            let (value, source) = values[position];
            let result = match kind {
                1 => ballot,
                2 => lanes.iter().position(|&other| other == first + source as usize).map_or(value, |at| values[at].0),
                3 => lanes
                    .iter()
                    .zip(values)
                    .filter(|(_, (theirs, _))| *theirs == value)
                    .fold(0, |all, (&l, _)| all | bit(l)),
                4 => {
                    let mut starts = 0;
                    for (at, &other) in lanes.iter().enumerate() {
                        if at == 0 || values[at].0 != values[at - 1].0.wrapping_add(source.into()) {
                            starts |= bit(other);
                        }
                    }
                    starts
                }
                5 => u64::from(ballot != 0),
                _ => 0,
            };
            self.threads[lane].result = result;
            self.threads[lane].status = Status::Ready;
            self.threads[lane].hash = scramble(self.threads[lane].hash ^ result);
        }
        if kind == 0 || kind == 5 {
            // A barrier: what the participants have stored is visible to all of them.
            let all: u64 = lanes.iter().map(|&lane| 1u64 << lane).sum();
            for entry in &mut self.entries {
                if entry.level == Level::Thread && entry.seen_by & all != 0 {
                    entry.seen_by |= all;
                }
            }
            let now = self.now();
            for &lane in lanes {
                self.threads[lane].floor = now;
            }
        }
    }

    // -- Constants that hooks need -----------------------------------------------------------------------------------------

    pub(crate) fn exports(&self) -> &'static crate::interface::Exports {
        self.module.exports()
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Setup
// ---------------------------------------------------------------------------------------------------------------------------

unsafe extern "C" fn setup_range(
    context: *mut c_void,
    name: *const c_char,
    kind: u32,
    owner: u32,
    address: u64,
    bytes: u32,
    count: u32,
) {
    // SAFETY: the context is the world that called the module; names are literals.
    let (world, name) = unsafe { (&mut *context.cast::<World>(), std::ffi::CStr::from_ptr(name)) };
    world.memory.name(Range {
        start: address,
        end: address + u64::from(bytes) * u64::from(count),
        name: name.to_string_lossy().into_owned(),
        kind: Kind::from_number(kind),
        owner: owner as u8,
        piece: bytes,
        pieces: count,
    });
}

unsafe extern "C" fn setup_set(context: *mut c_void, address: u64, from: *const c_void, bytes: u64, constant: u32) {
    // SAFETY: as above; the module passes `bytes` readable bytes.
    let (world, bytes) =
        unsafe { (&mut *context.cast::<World>(), std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize)) };
    world.memory.set_image(address, bytes);
    if constant != 0 {
        world.constants.push((address, bytes.to_vec()));
    }
}

unsafe extern "C" fn setup_qp(context: *mut c_void, qp: *const QpPlace) {
    // SAFETY: as above.
    let (world, qp) = unsafe { (&mut *context.cast::<World>(), *qp) };
    world.qp_places.push(qp);
}

unsafe extern "C" fn setup_proxy(context: *mut c_void, proxy: *const ProxyPlace) {
    // SAFETY: as above.
    let (world, proxy) = unsafe { (&mut *context.cast::<World>(), *proxy) };
    world.proxy_places.push(proxy);
}

unsafe extern "C" fn setup_state(context: *mut c_void, pe: u32, state: *const c_void) {
    // SAFETY: as above.
    let world = unsafe { &mut *context.cast::<World>() };
    world.state_of[pe as usize] = state;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Calls of device threads. Each lets the scheduler decide before the access, and executes it when it is this thread's turn.
// ---------------------------------------------------------------------------------------------------------------------------

/// Lets others run until it is this thread's turn again.
///
/// # Safety
/// Called on the stack of the world's running thread, with no reference to the world alive.
pub(crate) unsafe fn reschedule(world: *mut World) {
    // SAFETY: by the caller; references end before the coroutine is suspended.
    unsafe {
        let me = (*world).running;
        let next = (*world).next_thread();
        if next != Some(me) {
            (*world).resume = next;
            suspend(world, me);
        }
    }
}

/// Suspends for good if the execution is over.
///
/// # Safety
/// As [`reschedule`].
pub(crate) unsafe fn stop_if_over(world: *mut World) {
    // SAFETY: by the caller.
    unsafe {
        if (*world).failure.is_some() {
            let me = (*world).running;
            (*world).resume = None;
            suspend(world, me);
        }
    }
}

unsafe fn suspend(world: *mut World, me: usize) {
    // SAFETY: the yielder lives on this coroutine's stack for as long as it runs.
    unsafe {
        let yielder = (&(*world).threads)[me].yielder;
        (*yielder).suspend(());
    }
}

/// The world, and the thread that runs in it.
fn current() -> (*mut World, usize) {
    let world = WORLD.get();
    // SAFETY: calls come from device threads only, whose world has set the pointer.
    (world, unsafe { (*world).running })
}

unsafe extern "C" fn hook_load(address: u64, bytes: u32, order: u32, _reach: u32) -> u64 {
    let (world, me) = current();
    // SAFETY: this is the running thread of the world, and no reference is kept over `reschedule`.
    unsafe {
        (*world).about_to_access(me, address);
        reschedule(world);
        (*world).load(me, address, bytes, order)
    }
}

unsafe extern "C" fn hook_store(address: u64, bytes: u32, value: u64, order: u32, _reach: u32) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).steps += 1;
        (*world).store(me, address, bytes, value, order == RELEASE, false);
    }
}

unsafe extern "C" fn hook_update(
    kind: u32,
    address: u64,
    bytes: u32,
    operand: u64,
    expected: u64,
    order: u32,
    reach: u32,
) -> u64 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).about_to_access(me, address);
        reschedule(world);
        let old = (*world).update(me, kind, address, bytes, operand, expected, order, reach);
        stop_if_over(world);
        old
    }
}

unsafe extern "C" fn hook_fence(order: u32, reach: u32) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        if order >= RELEASE && (*world).has_unordered(me, reach == SYSTEM) {
            reschedule(world);
            (*world).say(|world| {
                let scope = ["block", "device", "system"][reach.min(2) as usize];
                format!("{} fences ({scope})", world.who(me))
            });
            if reach != 0 {
                (*world).flush(me, reach == SYSTEM);
            }
            (*world).moved_on(me);
        } else {
            (*world).steps += 1;
            (*world).say(|world| format!("{} fences, with nothing to order", world.who(me)));
        }
        if order & ACQUIRE != 0 {
            (&mut (*world).threads)[me].floor = (*world).now();
        }
        stop_if_over(world);
    }
}

unsafe extern "C" fn hook_mmio(address: u64, value: u64) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).steps += 1;
        (*world).store(me, address, 8, value, false, true);
    }
}

unsafe extern "C" fn hook_pause(site: u64) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).pause(me, site);
        (&mut (*world).threads)[me].wants = u32::MAX;
        reschedule(world);
        (*world).moved_on(me);
    }
}

unsafe extern "C" fn hook_converged(site: u64, key: u64) -> u32 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        let lane = (&(*world).threads)[me].device.lane;
        if (*world).program.lanes == 1 || (*world).policy.chance(4) {
            return 1 << lane;
        }
        (&mut (*world).threads)[me].status = Status::Converging { site, key };
        (*world).check_converging(me);
        reschedule(world);
        let mask = (&(*world).threads)[me].result;
        let hash = &mut (&mut (*world).threads)[me].hash;
        *hash = scramble(*hash ^ mask);
        mask as u32
    }
}

unsafe fn in_warp(kind: u32, mask: u32, value: u64, source: u32) -> u64 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (&mut (*world).threads)[me].status = Status::InWarp { kind, mask, value, source };
        (*world).check_warp(me);
        reschedule(world);
        (&(*world).threads)[me].result
    }
}

unsafe extern "C" fn hook_warp(kind: u32, mask: u32, value: u64, source: u32) -> u64 {
    let lanes = {
        let (world, _) = current();
        // SAFETY: as above.
        unsafe { (*world).program.lanes }
    };
    let mask = if lanes >= 32 { mask } else { mask & ((1 << lanes) - 1) };
    // SAFETY: as above.
    unsafe { in_warp(kind, mask, value, source) }
}

unsafe extern "C" fn hook_sync_block(predicate: u32) -> u64 {
    let (world, _) = current();
    // SAFETY: as above.
    unsafe {
        let lanes = (*world).program.lanes;
        in_warp(5, if lanes >= 32 { u32::MAX } else { (1 << lanes) - 1 }, predicate.into(), 0)
    }
}

unsafe extern "C" fn hook_note(kind: u32, a: u64, b: u64, c: u64, d: u64) {
    let world = WORLD.get();
    // SAFETY: as above; during setup there is no thread, and only `kNoteSet` comes.
    unsafe {
        if kind == 6 {
            let address = u64::from((*world).exports().heap_at) + a * u64::from((*world).exports().heap_bytes) + b;
            let base = (*world).memory.base;
            (*world).memory.set_image(base + address, &c.to_le_bytes());
            return;
        }
        let me = (*world).running;
        match kind {
            1 => {
                let bytes = std::slice::from_raw_parts(b as *const u8, c as usize);
                (*world).announce_put(me, a, bytes, d as u32);
            }
            2 => (*world).announce_add(me, a, b, d as u32),
            3 => (&mut (*world).threads)[me].epoch += 1,
            4 => (*world).check_quiet(me, me),
            7 => (*world).check_quiet(me, a as usize),
            _ => {
                let text = std::ffi::CStr::from_ptr(a as *const c_char).to_string_lossy().into_owned();
                let who = (*world).who(me);
                (*world).fail(format!("{who}: {text}"));
            }
        }
        stop_if_over(world);
    }
}
