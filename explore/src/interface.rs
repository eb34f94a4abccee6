//! What modules and the explorer share: mirrors `port/explore.h` and `programs/program.h`.

use std::ffi::{c_char, c_void};

/// `kExploreVersion`.
pub const VERSION: u32 = 3;
/// `kExplorePes`.
pub const MAX_PES: usize = 4;
/// Bytes set aside for a PE's `abi::State`.
pub const STATE_BYTES: usize = 1024;
/// `kHostMemory`.
pub const HOST: u8 = 0xff;
/// `kHeapKey` and `kSlabKey`.
pub const HEAP_KEY: u32 = 0x100;
/// See [`HEAP_KEY`].
pub const SLAB_KEY: u32 = 0x200;
/// `kCardKeys`: how far apart the keys of two cards are.
pub const CARD_KEYS: u32 = 0x10;
/// `kNanosecondsToDeadline`.
pub const TIMEOUT_NS: u64 = 1 << 60;

/// `oxshmem_explore_thread`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceThread {
    pub shared_base: u64,
    pub shared_bytes: u64,
    pub state: *const c_void,
    pub lane: u32,
    pub lanes: u32,
    pub block: u32,
    pub blocks: u32,
    pub block_shared: *mut c_void,
}

/// `oxshmem_explore_hooks`.
#[repr(C)]
#[derive(Debug)]
pub struct Hooks {
    pub load: unsafe extern "C" fn(u64, u32, u32, u32) -> u64,
    pub load_second: unsafe extern "C" fn(u64, u32, u32, u32) -> u64,
    pub store: unsafe extern "C" fn(u64, u32, u64, u32, u32),
    pub update: unsafe extern "C" fn(u32, u64, u32, u64, u64, u32, u32) -> u64,
    pub fence: unsafe extern "C" fn(u32, u32),
    pub mmio: unsafe extern "C" fn(u64, u64),
    pub pause: unsafe extern "C" fn(u64),
    pub clock: unsafe extern "C" fn() -> u64,
    pub converged: unsafe extern "C" fn(u64, u64) -> u32,
    pub warp: unsafe extern "C" fn(u32, u32, u64, u32) -> u64,
    pub sync_block: unsafe extern "C" fn(u32) -> u64,
    pub note: unsafe extern "C" fn(u32, u64, u64, u64, u64),
}

/// `oxshmem_explore_program`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub name: *const c_char,
    pub body: Option<unsafe extern "C" fn()>,
    pub initial: Option<unsafe extern "C" fn()>,
    pub more: Option<unsafe extern "C" fn()>,
    pub pes: u32,
    pub lanes: u32,
    pub blocks: [u32; MAX_PES],
    pub qps_per_pe: u32,
    pub depth_log2: u32,
    pub landing_log2: u32,
    pub network: u32,
    pub direct: u32,
    pub per_node: u32,
    pub host_queues: u32,
    pub without_record: u32,
    pub posted: u32,
    pub epoch: u32,
    pub rounds: u32,
    pub algorithm: u32,
    pub results_at: u32,
    pub results_bytes: u32,
    pub cards: u32,
    pub fails: u32,
    pub deadlines: u32,
    pub stale: u32,
    pub parts: u32,
    pub small: u32,
    pub ring_log2: u32,
    pub most_steps: u32,
}

/// `oxshmem_explore_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Constant = 0,
    Heap,
    Gate,
    Rung,
    Completed,
    Used,
    Stamps,
    Record,
    Doorbell,
    Cqe,
    Queue,
    Landing,
    Laps,
    Control,
    Error,
    Word,
    Slots,
}

impl Kind {
    /// Returns the kind with this number.
    pub fn from_number(number: u32) -> Self {
        use Kind::*;
        const ALL: [Kind; 17] = [
            Constant, Heap, Gate, Rung, Completed, Used, Stamps, Record, Doorbell, Cqe, Queue, Landing, Laps, Control,
            Error, Word, Slots,
        ];
        ALL.get(number as usize).copied().unwrap_or(Word)
    }
}

/// `oxshmem_explore_qp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct QpPlace {
    pub pe: u32,
    pub peer: u32,
    pub qpn: u32,
    pub depth_log2: u32,
    pub wq: u64,
    pub record: u64,
    pub doorbell: u64,
    pub cqe: u64,
    pub completed: u64,
    pub breakage: u64,
    pub posted: u64,
    pub card: u32,
    pub reserved0: u32,
}

/// `oxshmem_explore_proxy`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ProxyPlace {
    pub pe: u32,
    pub depth_log2: u32,
    pub landing_log2: u32,
    pub reserved0: u32,
    pub slots: u64,
    pub taken: u64,
    pub completed: u64,
    pub acknowledgements: u64,
    pub landing: u64,
}

/// `oxshmem_explore_setup`.
#[repr(C)]
#[derive(Debug)]
pub struct Setup {
    pub base: u64,
    pub states: *mut c_void,
    pub context: *mut c_void,
    pub range: unsafe extern "C" fn(*mut c_void, *const c_char, u32, u32, u64, u32, u32),
    pub set: unsafe extern "C" fn(*mut c_void, u64, *const c_void, u64, u32),
    pub qp: unsafe extern "C" fn(*mut c_void, *const QpPlace),
    pub proxy: unsafe extern "C" fn(*mut c_void, *const ProxyPlace),
    pub state: unsafe extern "C" fn(*mut c_void, u32, *const c_void),
}

/// `oxshmem_explore_module`.
#[repr(C)]
#[derive(Debug)]
pub struct Exports {
    pub version: u32,
    pub n_programs: u32,
    pub programs: *const Program,
    pub set_current: unsafe extern "C" fn(*mut DeviceThread),
    pub setup: unsafe extern "C" fn(*const Program, *const Setup),
    pub constant_bytes: u64,
    pub shared_bytes: u64,
    pub heap_at: u32,
    pub heap_bytes: u32,
    pub workspace_at: u32,
    pub workspace_bytes: u32,
    pub counter_bits: u32,
    pub lap_bits: u32,
    pub reserved_shift: u32,
    pub group_bits: u32,
    pub one_group: u64,
    pub baton_free: u64,
}
