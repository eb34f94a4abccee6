//! Blocks, warps and threads of a running launch: which threads are ready, what the others wait
//! for, and what makes a waiting thread ready again.
//!
//! Everything here belongs to one worker. State is kept in cells, because device code enters the
//! executor while the worker is still inside of `resume`, and both look at the same block.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::fmt::Write as _;

use corosensei::trap::CoroutineTrapHandler;
use corosensei::{Coroutine, Yielder};

use super::WARP_LANES;
use super::context::Context;
use super::error::Position;
use super::interface::{BlockView, ThreadView, WarpOp};
use super::stack::{Canary, PooledStack};

const LANES: usize = WARP_LANES as usize;

/// How many waiting threads a deadlock's message lists.
const LISTED_WAITERS: usize = 4;

pub(super) type ThreadCoroutine = Coroutine<(), (), (), PooledStack>;

/// One GPU thread. Its fields are valid from its start to its exit.
#[repr(C)]
pub(super) struct Thread {
    /// First, so that `oxshmem_cpu_current` points to both.
    pub(super) view: UnsafeCell<ThreadView>,
    pub(super) bit: Cell<u32>,
    pub(super) warp: Cell<*const Warp>,
    pub(super) block: Cell<*const Block>,
    pub(super) context: Cell<*const Context>,
    pub(super) yielder: Cell<*const Yielder<(), ()>>,
    pub(super) coroutine: UnsafeCell<Option<ThreadCoroutine>>,
    pub(super) trap: Cell<Option<CoroutineTrapHandler<()>>>,
    pub(super) guard: Cell<(usize, usize)>,
    pub(super) canary: Cell<Option<Canary>>,
}

impl Thread {
    fn new() -> Self {
        Self {
            view: UnsafeCell::new(ThreadView {
                thread_idx: [0; 3],
                lane: 0,
                rank: 0,
                reserved0: 0,
                block: std::ptr::null(),
            }),
            bit: Cell::new(0),
            warp: Cell::new(std::ptr::null()),
            block: Cell::new(std::ptr::null()),
            context: Cell::new(std::ptr::null()),
            yielder: Cell::new(std::ptr::null()),
            coroutine: UnsafeCell::new(None),
            trap: Cell::new(None),
            guard: Cell::new((0, 0)),
            canary: Cell::new(None),
        }
    }
}

/// A warp operation that some lanes have reached.
#[derive(Default)]
struct Group {
    mask: Cell<u32>,
    arrived: Cell<u32>,
    op: Cell<Option<WarpOp>>,
}

/// The lanes of a warp as bit sets, and the operands of its operations.
///
/// A live lane is in exactly one of `ready`, `paused`, `gathering`, `in_barrier`, `in_op`, or it is
/// running.
pub(super) struct Warp {
    index: u32,
    pub(super) live: Cell<u32>,
    pub(super) unstarted: Cell<u32>,
    pub(super) ready: Cell<u32>,
    pub(super) paused: Cell<u32>,
    pub(super) gathering: Cell<u32>,
    /// Lanes were left gathering at the end of a turn; see [`Self::end_turn`].
    overdue: Cell<bool>,
    in_barrier: Cell<u32>,
    in_op: Cell<u32>,
    /// Which of `groups` are in use; each holds at least one lane that waits.
    groups_used: Cell<u32>,
    groups: [Group; LANES],
    values: [Cell<u64>; LANES],
    sources: [Cell<u32>; LANES],
    sites: [Cell<usize>; LANES],
    results: [Cell<u64>; LANES],
}

/// What a lane that reached a warp operation does next.
pub(super) enum Arrival {
    /// It was the last: here is its result.
    Complete(u64),
    /// It waits; the result will be in [`Warp::result`].
    Wait,
    /// Another lane reached a different operation with the same mask.
    Mismatch(WarpOp),
}

impl Warp {
    fn new(index: u32) -> Self {
        Self {
            index,
            live: Cell::new(0),
            unstarted: Cell::new(0),
            ready: Cell::new(0),
            paused: Cell::new(0),
            gathering: Cell::new(0),
            overdue: Cell::new(false),
            in_barrier: Cell::new(0),
            in_op: Cell::new(0),
            groups_used: Cell::new(0),
            groups: Default::default(),
            values: Default::default(),
            sources: Default::default(),
            sites: Default::default(),
            results: Default::default(),
        }
    }

    fn reset(&self, lanes: u32) {
        self.live.set(lanes);
        self.unstarted.set(lanes);
        self.ready.set(lanes);
        for cell in [&self.paused, &self.gathering, &self.in_barrier, &self.in_op, &self.groups_used] {
            cell.set(0);
        }
        self.overdue.set(false);
    }

    /// Returns the warp's position in its block.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn result(&self, bit: u32) -> u64 {
        self.results[bit.trailing_zeros() as usize % LANES].get()
    }

    /// Returns the mask of lanes that [`Self::gather`] left for a lane.
    pub(super) fn gathered(&self, bit: u32) -> u32 {
        (self.result(bit) & 0xffff_ffff) as u32
    }

    /// Handles a lane that reaches a warp operation.
    pub(super) fn arrive(&self, bit: u32, op: WarpOp, mask: u32, value: u64, source: u32) -> Arrival {
        let expected = mask & self.live.get();
        if expected == bit {
            return Arrival::Complete(match op {
                WarpOp::Sync => 0,
                WarpOp::Ballot => {
                    if value != 0 {
                        u64::from(bit)
                    } else {
                        0
                    }
                }
                WarpOp::Shfl => value,
                WarpOp::MatchAny | WarpOp::RunStarts => u64::from(bit),
            });
        }
        let lane = bit.trailing_zeros() as usize % LANES;
        self.values[lane].set(value);
        self.sources[lane].set(source);
        let slot = self.group_of(mask);
        let group = &self.groups[slot];
        let used = self.groups_used.get();
        if used & (1 << slot) == 0 {
            self.groups_used.set(used | (1 << slot));
            group.mask.set(mask);
            group.arrived.set(bit);
            group.op.set(Some(op));
        } else {
            match group.op.get() {
                Some(other) if other != op => return Arrival::Mismatch(other),
                _ => group.arrived.set(group.arrived.get() | bit),
            }
        }
        let arrived = group.arrived.get();
        if arrived == expected {
            self.complete(slot);
            self.in_op.set(self.in_op.get() & !arrived);
            self.ready.set(self.ready.get() | (arrived & !bit));
            Arrival::Complete(self.results[lane].get())
        } else {
            self.in_op.set(self.in_op.get() | bit);
            Arrival::Wait
        }
    }

    /// Returns the group for `mask`: the one lanes already wait in, or else a free one.
    #[inline]
    fn group_of(&self, mask: u32) -> usize {
        let used = self.groups_used.get();
        let mut rest = used;
        while rest != 0 {
            let slot = rest.trailing_zeros() as usize;
            if self.groups[slot].mask.get() == mask {
                return slot;
            }
            rest &= rest - 1;
        }
        // Each used group holds a waiting lane, and the caller is none of them, so fewer than 32
        // are used.
        (!used).trailing_zeros() as usize % LANES
    }

    /// Gives every lane of a group its result, and frees the group.
    fn complete(&self, slot: usize) {
        let group = &self.groups[slot];
        let arrived = group.arrived.get();
        self.groups_used.set(self.groups_used.get() & !(1 << slot));
        match group.op.get() {
            None | Some(WarpOp::Sync) => {}
            Some(WarpOp::Ballot) => {
                let mut votes = 0;
                for lane in lanes(arrived) {
                    votes |= u64::from(self.values[lane].get() != 0) << lane;
                }
                for lane in lanes(arrived) {
                    self.results[lane].set(votes);
                }
            }
            Some(WarpOp::Shfl) => {
                for lane in lanes(arrived) {
                    let source = self.sources[lane].get() as usize % LANES;
                    let from = if arrived & (1 << source) != 0 { source } else { lane };
                    self.results[lane].set(self.values[from].get());
                }
            }
            Some(WarpOp::MatchAny) => self.tell_equals(arrived),
            Some(WarpOp::RunStarts) => {
                let mut starts = 0;
                let mut next = None;
                for lane in lanes(arrived) {
                    let value = self.values[lane].get();
                    starts |= u64::from(next != Some(value)) << lane;
                    next = Some(value.wrapping_add(u64::from(self.sources[lane].get())));
                }
                for lane in lanes(arrived) {
                    self.results[lane].set(starts);
                }
            }
        }
    }

    /// Handles a lane that asks which lanes are converged with it and have the same key. `Some`:
    /// the answer at once; `None`: it waits for [`Self::gathered`].
    pub(super) fn gather(&self, bit: u32, site: usize, key: u64) -> Option<u32> {
        if self.ready.get() | self.gathering.get() == 0 {
            return Some(bit);
        }
        let lane = bit.trailing_zeros() as usize % LANES;
        self.sites[lane].set(site);
        self.values[lane].set(key);
        self.gathering.set(self.gathering.get() | bit);
        if self.ready.get() != 0 {
            return None;
        }
        self.let_gatherers_go();
        if self.gathering.get() & bit != 0 {
            return None;
        }
        self.ready.set(self.ready.get() & !bit);
        Some(self.gathered(bit))
    }

    /// Lets the first group that gathers go on, since no lane of the warp can run on, or all of
    /// them if some have been left behind for long.
    pub(super) fn let_gatherers_go(&self) {
        self.release_gathering();
        if self.overdue.replace(false) {
            while self.gathering.get() != 0 {
                self.release_gathering();
            }
        }
    }

    /// Ends the turn of the warp. A group that keeps meeting must not hold up those that wait
    /// further down forever, so the next time that no lane can run on, all groups go on. Until then
    /// lanes that are on their way to a group may still join it; released now, it would lose them,
    /// and they would go on apart from then on. Only a warp whose lanes find no such time in a
    /// whole turn is cut short.
    pub(super) fn end_turn(&self) {
        if self.gathering.get() != 0 && self.overdue.replace(true) {
            self.let_gatherers_go();
        }
    }

    /// Lets a group go on, since no lane of the warp can run on. The lanes that wait at one place
    /// are a converged group: the one at the lowest address goes on, and may catch up with the
    /// others, since code that comes later in the program mostly lies higher (the "minimum PC" rule
    /// of SIMT reconvergence). Each lane is told those of the group that have its key. Returns the
    /// group.
    pub(super) fn release_gathering(&self) -> u32 {
        let all = self.gathering.get();
        let first = lanes(all).map(|lane| self.sites[lane].get()).min().unwrap_or(0);
        let group = lanes(all).fold(0, |group, lane| group | u32::from(self.sites[lane].get() == first) << lane);
        self.tell_equals(group);
        self.gathering.set(all & !group);
        self.ready.set(self.ready.get() | group);
        group
    }

    /// Gives every lane of `group` the set of those with its value.
    fn tell_equals(&self, group: u32) {
        let mut rest = group;
        while rest != 0 {
            let value = self.values[rest.trailing_zeros() as usize].get();
            let mut equal = 0;
            for lane in lanes(rest) {
                equal |= u32::from(self.values[lane].get() == value) << lane;
            }
            for lane in lanes(equal) {
                self.results[lane].set(u64::from(equal));
            }
            rest &= !equal;
        }
    }

    /// Notes that a lane exited: operations that only waited for it are complete.
    fn exit(&self, bit: u32) {
        self.live.set(self.live.get() & !bit);
        let mut rest = self.groups_used.get();
        while rest != 0 {
            let slot = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let group = &self.groups[slot];
            let arrived = group.arrived.get();
            if arrived == group.mask.get() & self.live.get() {
                self.complete(slot);
                self.in_op.set(self.in_op.get() & !arrived);
                self.ready.set(self.ready.get() | arrived);
            }
        }
    }

    /// Returns the group in which a lane waits.
    fn waiting_group(&self, bit: u32) -> Option<&Group> {
        lanes(self.groups_used.get()).map(|slot| &self.groups[slot]).find(|group| group.arrived.get() & bit != 0)
    }

    /// Returns what a lane is doing, for messages.
    pub(super) fn describe(&self, bit: u32) -> String {
        if self.in_barrier.get() & bit != 0 {
            return "waits in sync_block".to_owned();
        }
        if let Some(group) = self.waiting_group(bit) {
            let (mask, arrived) = (group.mask.get(), group.arrived.get());
            let missing = mask & self.live.get() & !arrived;
            let op = group.op.get().map_or("a warp operation", WarpOp::name);
            return format!("waits in {op}(mask {mask:#010x}) for lanes {missing:#010x}");
        }
        if self.gathering.get() & bit != 0 {
            return "waits in active_mask".to_owned();
        }
        if self.paused.get() & bit != 0 {
            return "spins (pause)".to_owned();
        }
        if self.unstarted.get() & bit != 0 {
            return "has not started".to_owned();
        }
        "runs".to_owned()
    }
}

/// Returns the lanes of a set, lowest first.
fn lanes(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let lane = set.trailing_zeros() as usize;
        set &= set - 1;
        Some(lane)
    })
}

/// Uninitialised memory of a block, aligned for every type a kernel may keep there.
struct SharedMemory {
    start: *mut u8,
    layout: Layout,
}

impl SharedMemory {
    fn new(bytes: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), align.max(16)).unwrap_or(Layout::new::<u128>());
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// One block. It is boxed and reused from launch to launch.
#[repr(C)]
pub(super) struct Block {
    /// First, so that `oxshmem_cpu_thread::block` points to both.
    view: BlockView,
    pub(super) live: Cell<u32>,
    pub(super) ready_warps: Cell<u32>,
    pub(super) paused_warps: Cell<u32>,
    barrier_arrived: Cell<u32>,
    barrier_votes: Cell<u32>,
    barrier_warps: Cell<u32>,
    barrier_result: Cell<u64>,
    warps: Vec<Warp>,
    threads: Vec<Thread>,
    slots: Vec<Cell<*mut c_void>>,
    dynamic: Option<SharedMemory>,
    statics: RefCell<Vec<SharedMemory>>,
}

impl Block {
    /// Returns an empty block; [`Self::prepare`] gives it a place in a grid.
    pub(super) fn new() -> Self {
        Self {
            view: BlockView {
                block_idx: [0; 3],
                block_dim: [0; 3],
                grid_dim: [0; 3],
                threads: 0,
                rank: 0,
                grid_blocks: 0,
                dynamic_shared_bytes: 0,
                dynamic_shared: std::ptr::null_mut(),
                shared: std::ptr::null(),
            },
            live: Cell::new(0),
            ready_warps: Cell::new(0),
            paused_warps: Cell::new(0),
            barrier_arrived: Cell::new(0),
            barrier_votes: Cell::new(0),
            barrier_warps: Cell::new(0),
            barrier_result: Cell::new(0),
            warps: Vec::new(),
            threads: Vec::new(),
            slots: Vec::new(),
            dynamic: None,
            statics: RefCell::new(Vec::new()),
        }
    }

    /// Makes this block number `rank` of a launch, with no thread started.
    pub(super) fn prepare(&mut self, rank: u32, grid: [u32; 3], block: [u32; 3], shared_bytes: usize, slots: usize) {
        let threads = block[0] * block[1] * block[2];
        if self.threads.len() < threads as usize {
            self.threads.resize_with(threads as usize, Thread::new);
        }
        let warps = threads.div_ceil(WARP_LANES);
        for index in (0..warps).skip(self.warps.len()) {
            self.warps.push(Warp::new(index));
        }
        for warp in &self.warps[..warps as usize] {
            let lanes = (threads - warp.index * WARP_LANES).min(WARP_LANES);
            warp.reset(u32::MAX >> (WARP_LANES - lanes));
        }
        let kept = self.dynamic.as_ref().map_or(0, |memory| memory.layout.size());
        if shared_bytes == 0 {
            self.dynamic = None;
        } else if shared_bytes > kept || kept > 2 * shared_bytes {
            self.dynamic = Some(SharedMemory::new(shared_bytes, 128));
        }
        #[allow(clippy::cast_possible_truncation, reason = "a launch has at most MAX_SHARED_BYTES")]
        let dynamic_shared_bytes = shared_bytes as u32;
        self.slots.clear();
        self.slots.resize(slots, Cell::new(std::ptr::null_mut()));
        self.statics.get_mut().clear();
        self.view = BlockView {
            block_idx: [rank % grid[0], rank / grid[0] % grid[1], rank / grid[0] / grid[1]],
            block_dim: block,
            grid_dim: grid,
            threads,
            rank,
            grid_blocks: grid[0] * grid[1] * grid[2],
            dynamic_shared_bytes,
            dynamic_shared: self.dynamic.as_ref().map_or(std::ptr::null_mut(), |memory| memory.start.cast()),
            shared: self.slots.as_ptr(),
        };
        self.live.set(threads);
        self.ready_warps.set(u32::MAX >> (WARP_LANES - warps));
        for cell in [&self.paused_warps, &self.barrier_arrived, &self.barrier_votes, &self.barrier_warps] {
            cell.set(0);
        }
    }

    pub(super) fn view(&self) -> &BlockView {
        &self.view
    }

    pub(super) fn warps(&self) -> &[Warp] {
        &self.warps[..self.view.threads.div_ceil(WARP_LANES) as usize]
    }

    pub(super) fn warp(&self, index: u32) -> &Warp {
        &self.warps[index as usize]
    }

    pub(super) fn thread(&self, warp: &Warp, lane: u32) -> &Thread {
        &self.threads[(warp.index * WARP_LANES + lane) as usize]
    }

    pub(super) fn threads(&self) -> &[Thread] {
        &self.threads[..self.view.threads as usize]
    }

    /// Returns the number of threads this block has room for without allocating.
    pub(super) fn capacity(&self) -> usize {
        self.threads.len()
    }

    /// Returns threadIdx of the thread with this rank.
    pub(super) fn thread_idx(&self, rank: u32) -> [u32; 3] {
        let [x, y, _] = self.view.block_dim;
        [rank % x, rank / x % y, rank / x / y]
    }

    /// Returns where a lane of this block is.
    pub(super) fn position(&self, warp: &Warp, lane: u32) -> Position {
        Position { block: self.view.block_idx, thread: self.thread_idx(warp.index * WARP_LANES + lane) }
    }

    /// Handles a thread that reaches the barrier. `Some`: it was the last, with the result; `None`:
    /// it waits for [`Self::barrier_result`].
    ///
    /// The result is the number of threads, and above it, from bit 32, the number of true
    /// predicates.
    pub(super) fn arrive(&self, warp: &Warp, bit: u32, predicate: bool) -> Option<u64> {
        self.barrier_votes.set(self.barrier_votes.get() + u32::from(predicate));
        let arrived = self.barrier_arrived.get() + 1;
        self.barrier_arrived.set(arrived);
        if arrived == self.live.get() {
            self.release_barrier();
            return Some(self.barrier_result.get());
        }
        warp.in_barrier.set(warp.in_barrier.get() | bit);
        self.barrier_warps.set(self.barrier_warps.get() | (1 << warp.index));
        None
    }

    pub(super) fn barrier_result(&self) -> u64 {
        self.barrier_result.get()
    }

    fn release_barrier(&self) {
        let (arrived, votes) = (self.barrier_arrived.replace(0), self.barrier_votes.replace(0));
        self.barrier_result.set(u64::from(arrived) | u64::from(votes) << 32);
        let warps = self.barrier_warps.replace(0);
        for index in lanes(warps) {
            let warp = &self.warps[index];
            warp.ready.set(warp.ready.get() | warp.in_barrier.replace(0));
        }
        self.ready_warps.set(self.ready_warps.get() | warps);
    }

    /// Notes that a thread exited: it no longer counts in barriers and warp operations.
    pub(super) fn exit(&self, warp: &Warp, bit: u32) {
        let live = self.live.get() - 1;
        self.live.set(live);
        warp.exit(bit);
        if live != 0 && self.barrier_arrived.get() == live {
            self.release_barrier();
        }
    }

    /// Lets threads that paused look again.
    pub(super) fn wake_paused(&self) {
        let warps = self.paused_warps.replace(0);
        for index in lanes(warps) {
            let warp = &self.warps[index];
            warp.ready.set(warp.ready.get() | warp.paused.replace(0));
        }
        self.ready_warps.set(self.ready_warps.get() | warps);
    }

    /// Returns memory for a static shared variable that the block uses for the first time.
    pub(super) fn shared(&self, slot: u32, bytes: usize, align: usize) -> *mut c_void {
        let memory = SharedMemory::new(bytes, align);
        let start = memory.start.cast();
        self.statics.borrow_mut().push(memory);
        if let Some(cell) = self.slots.get(slot as usize) {
            cell.set(start);
        }
        start
    }

    /// Returns the first live thread, and whether some lane waits for one that waits for other
    /// lanes.
    pub(super) fn stuck(&self) -> (Position, bool) {
        let first = self.warps().iter().find(|warp| warp.live.get() != 0);
        let position = first.map_or(Position { block: self.view.block_idx, thread: [0; 3] }, |warp| {
            self.position(warp, warp.live.get().trailing_zeros())
        });
        let mismatch = self.warps().iter().any(|warp| {
            lanes(warp.groups_used.get()).any(|slot| {
                let group = &warp.groups[slot];
                group.mask.get() & warp.in_op.get() & !group.arrived.get() != 0
            })
        });
        (position, mismatch)
    }

    /// Returns which thread waits for what: lanes of a warp in the same wait are named together.
    pub(super) fn describe_waiters(&self) -> String {
        let mut text = String::new();
        let mut listed = 0;
        for warp in self.warps() {
            let mut rest = warp.live.get();
            while rest != 0 {
                let first = rest.trailing_zeros();
                let what = warp.describe(1 << first);
                let same =
                    lanes(rest).filter(|&lane| warp.describe(1 << lane) == what).fold(0u32, |set, l| set | 1 << l);
                rest &= !same;
                if listed == LISTED_WAITERS {
                    text.push_str("; and more");
                    return text;
                }
                listed += 1;
                let Position { thread: [x, y, z], .. } = self.position(warp, first);
                let separator = if text.is_empty() { "" } else { "; " };
                // Writing to a String does not fail.
                let _ = write!(text, "{separator}thread ({x},{y},{z})");
                if same.count_ones() > 1 {
                    let _ = write!(text, " and {} more of warp {}", same.count_ones() - 1, warp.index);
                }
                let _ = write!(text, " {what}");
            }
        }
        if self.barrier_arrived.get() != 0 {
            let _ = write!(text, " ({} of {} threads are in sync_block)", self.barrier_arrived.get(), self.live.get());
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
