//! The device ABI: what host and device code share. Mirrors `device-kernels/include/oxshmem/abi.h`, field for field; a test compares
//! all sizes and offsets with what the C++ compiler says.

/// [`State::magic`]: "OXSM" in memory.
pub const MAGIC: u32 = 0x4d53_584f;
/// Raised with every change of layout or meaning.
pub const ABI_VERSION: u32 = 7;

/// Where the blocks ever reserved begin in [`Qp::gate`], which keeps them modulo 2^42.
pub const GATE_RESERVED_SHIFT: u32 = 22;
/// In [`Qp::completed`]: the QP is broken.
pub const BROKEN: u64 = 1 << 63;
/// What is hot for one party has lines of its own: 128 bytes is what one GPU L2 access touches.
pub const LINE_BYTES: u64 = 128;
/// Bytes of a WQE basic block.
pub const BLOCK_BYTES: u64 = 64;
/// [`Control::abort`]: the job is over, and every device wait returns. Device code itself aborts a launch with a smaller number.
pub const ABORT_JOB: u32 = 2;
/// [`Control::claimed`]: the error is whole.
pub const ERROR_VALID: u32 = 2;
/// Bytes of a landing slot.
pub const LANDING_BYTES: u64 = 64;
/// Buffers outside the heap that can be registered at a time.
pub const MAX_LOCAL_REGIONS: usize = 64;
/// Cards that the QPs of a PE may be spread over.
pub const MAX_CARDS: usize = oxshmem_hca::topology::MAX_CARDS;

/// [`State::network`]: how a peer that is not load/store reachable is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Network {
    /// Not at all.
    None = 0,
    /// Device code builds WQEs and rings the doorbell.
    Ibgda = 1,
    /// Device code writes descriptors, and a thread of the host posts them.
    Ibrc = 2,
}

/// The first error of a launch, as device code records it.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct ErrorRecord {
    /// What happened.
    pub code: u32,
    /// The operation.
    pub op: u32,
    /// The peer, -1 if none.
    pub pe: i32,
    /// QP number.
    pub qpn: u32,
    /// 64-bit block index of the WQE.
    pub wqe_index: u64,
    /// The address in question.
    pub address: u64,
    /// Bytes, or the value that `code` explains.
    pub length: u64,
    /// Syndrome of an error CQE.
    pub syndrome: u32,
    /// Vendor syndrome of an error CQE.
    pub vendor_syndrome: u32,
    /// Block index of the thread.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// Handle of the team, -1 if none.
    pub team: i32,
    /// Zero.
    pub reserved0: u32,
}

/// Shared by host and device.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct Control {
    /// Non-zero: device waits return, all of them if it is [`ABORT_JOB`].
    pub abort: u32,
    /// 0: no error; 1: being written; 2: `error` is valid.
    pub claimed: u32,
    /// The first error.
    pub error: ErrorRecord,
}

/// Why a queue of work requests is of no more use.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Breakage {
    /// 0: it works; 1: being written; 2: `first` is valid.
    pub claimed: u32,
    reserved0: u32,
    /// The first error.
    pub first: ErrorRecord,
}

/// One RC queue pair as device code sees it.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct Qp {
    /// Address of the send queue.
    pub wq: u64,
    /// Address of the stamps, a `u32` per block.
    pub stamps: u64,
    /// Address of the send doorbell record.
    pub dbr: u64,
    /// Address of the doorbell register.
    pub doorbell: u64,
    /// Address of the collapsed CQE.
    pub cqe: u64,
    /// Address of the landing slots.
    pub landing: u64,
    /// Address of the landing slots' words, a `u32` each: twice how often the slot was released, and 1 more while it is taken.
    pub laps: u64,
    /// QP number.
    pub qpn: u32,
    /// log2 of the depth in blocks.
    pub depth_log2: u32,
    /// The peer.
    pub pe: i32,
    /// Position in the array.
    pub index: u32,
    /// log2 of the number of landing slots.
    pub landing_log2: u32,
    reserved0: [u32; 13],
    /// Blocks ever reserved, from [`GATE_RESERVED_SHIFT`] on; below, who is posting.
    pub gate: u64,
    /// Landing slots ever looked for.
    pub landing_head: u64,
    pad0: [u64; 14],
    /// Blocks the last doorbell covered.
    pub rung: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    pad1: [u64; 14],
    /// Blocks that may be reused; with [`BROKEN`] in it, the QP is broken.
    pub completed: u64,
    /// Requests from this index on come after a fence.
    pub fence_at: u64,
    /// Index, plus 1, of the newest request that carries a fence.
    pub ordered_at: u64,
    pad2: [u64; 13],
    /// Why the QP is broken.
    pub breakage: Breakage,
    pad3: [u64; 5],
}

/// The constants of a QP; every counter starts at zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QpConstants {
    pub wq: u64,
    pub stamps: u64,
    pub dbr: u64,
    pub doorbell: u64,
    pub cqe: u64,
    pub landing: u64,
    pub laps: u64,
    pub qpn: u32,
    pub depth_log2: u32,
    pub pe: i32,
    pub index: u32,
    pub landing_log2: u32,
}

impl Qp {
    pub(crate) fn new(c: QpConstants) -> Self {
        Self {
            wq: c.wq,
            stamps: c.stamps,
            dbr: c.dbr,
            doorbell: c.doorbell,
            cqe: c.cqe,
            landing: c.landing,
            laps: c.laps,
            qpn: c.qpn,
            depth_log2: c.depth_log2,
            pe: c.pe,
            index: c.index,
            landing_log2: c.landing_log2,
            reserved0: [0; 13],
            gate: 0,
            landing_head: 0,
            pad0: [0; 14],
            rung: 0,
            doorbells: 0,
            pad1: [0; 14],
            completed: 0,
            fence_at: 0,
            ordered_at: 0,
            pad2: [0; 13],
            breakage: Breakage::default(),
            pad3: [0; 5],
        }
    }
}

/// The ring of the CPU proxy as device code sees it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(128))]
pub struct Proxy {
    /// Address of the slots.
    pub slots: u64,
    /// Address of the word that counts slots taken.
    pub taken_word: u64,
    /// Address of the words that count descriptors done and failed.
    pub completed_word: u64,
    /// Address of the acknowledgements, a `u64` per landing slot.
    pub acknowledgements: u64,
    /// Address of the landing slots.
    pub landing: u64,
    /// Address of the fault records, one a PE.
    pub faults: u64,
    /// Address of the landing slots' words, as [`Qp::laps`].
    pub laps: u64,
    /// log2 of the slots.
    pub depth_log2: u32,
    /// log2 of the landing slots.
    pub landing_log2: u32,
    reserved0: [u64; 8],
    /// Slots ever reserved.
    pub head: u64,
    /// Landing slots ever looked for.
    pub landing_head: u64,
    pad0: [u64; 14],
    /// What device code has seen of `taken_word`.
    pub taken: ProxyWord,
    pad1: [u64; 14],
    /// What it has seen of `completed_word`.
    pub completed: ProxyWord,
    /// Failures that it has recorded.
    pub failures: u64,
    pad2: [u64; 13],
    /// Why the ring is broken.
    pub breakage: Breakage,
    pad3: [u64; 5],
}

/// A word of the proxy's as device code knows it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ProxyWord {
    /// What was seen of it.
    pub seen: u64,
    /// 1: somebody is asking host memory.
    pub polled: u64,
}

/// A registered buffer outside the symmetric heap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LocalRegion {
    /// First byte.
    pub base: u64,
    /// Length.
    pub bytes: u64,
    /// Big-endian keys, by card.
    pub lkeys: [u32; MAX_CARDS],
}

/// Handle of no team.
pub const TEAM_INVALID: i32 = -1;
/// Handle of the team of all PEs.
pub const TEAM_WORLD: i32 = 0;
/// Handle of the team of PEs that reach each other by load and store.
pub const TEAM_SHARED: i32 = 1;
/// Handle of the team of the node's PEs.
pub const TEAM_NODE: i32 = 2;
/// A handle's bits from here on are the generation of its row; those below are the row's index.
pub const TEAM_INDEX_BITS: u32 = 8;
/// Rows of [`Team::choices`].
pub const COLLECTIVES: usize = 7;
/// Entries of a row of [`Team::choices`].
pub const CHOICES: usize = 3;
/// Members of a team that tell each other directly, at most.
pub const ONE_ROUND_PES: usize = 64;
/// Where [`team_workspace_bytes`] has packets, and how many bytes per parity.
pub const PACKET_BYTES: u64 = 32768;
const ARRIVALS_AT: u64 = 2 * 32 * 8 + 2 * ONE_ROUND_PES as u64 * 8 + 2 * PACKET_BYTES;

/// Bytes of the workspace of a team of `n_pes` members, a multiple of [`LINE_BYTES`].
#[must_use]
pub const fn team_workspace_bytes(n_pes: u64) -> u64 {
    (ARRIVALS_AT + 2 * 2 * n_pes * 8).next_multiple_of(LINE_BYTES)
}

/// [`Team::packet_share`] of a team of `n_pes` members: a packet of 16 bytes of data takes 32.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // At most PACKET_BYTES.
pub const fn packet_share(n_pes: usize) -> u32 {
    (PACKET_BYTES / n_pes as u64 / 32 * 32) as u32
}

/// The calls that members announce to each other, and that the host's kernel makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Call {
    /// All have entered.
    Sync = 1,
    /// The same, after a quiet.
    Barrier = 2,
    /// [`Collective::Broadcast`].
    Broadcast = 3,
    /// [`Collective::Collect`].
    Collect = 4,
    /// [`Collective::Fcollect`].
    Fcollect = 5,
    /// [`Collective::Alltoall`].
    Alltoall = 6,
    /// [`Collective::Alltoalls`].
    Alltoalls = 7,
    /// [`Collective::Reduce`].
    Reduce = 8,
    /// [`Collective::Reducescatter`].
    Reducescatter = 9,
}

/// Collectives that have a choice of algorithms; the rows of [`Team::choices`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Collective {
    /// One member's data to all.
    Broadcast = 0,
    /// Everybody's data to all, of different lengths.
    Collect = 1,
    /// Everybody's data to all, of one length.
    Fcollect = 2,
    /// A part of everybody's data to each.
    Alltoall = 3,
    /// The same with strides.
    Alltoalls = 4,
    /// Everybody's data combined, to all.
    Reduce = 5,
    /// Everybody's data combined, a part to each.
    Reducescatter = 6,
}

/// Element types of reductions, as kernels take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Type {
    /// `i8`.
    Int8 = 0,
    /// `i16`.
    Int16 = 1,
    /// `i32`.
    Int32 = 2,
    /// `i64`.
    Int64 = 3,
    /// `u8`.
    Uint8 = 4,
    /// `u16`.
    Uint16 = 5,
    /// `u32`.
    Uint32 = 6,
    /// `u64`.
    Uint64 = 7,
    /// `f32`.
    Float32 = 8,
    /// `f64`.
    Float64 = 9,
    /// Two `f32`: real and imaginary part.
    Complex32 = 10,
    /// Two `f64`.
    Complex64 = 11,
    /// IEEE 754 binary16.
    Half = 12,
    /// The upper half of an `f32`.
    Bfloat16 = 13,
}

/// Operators of reductions, as kernels take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReduceOp {
    /// Bitwise and; integers.
    And = 0,
    /// Bitwise or; integers.
    Or = 1,
    /// Bitwise exclusive or; integers.
    Xor = 2,
    /// The smallest; not complex numbers.
    Min = 3,
    /// The largest; not complex numbers.
    Max = 4,
    /// The sum.
    Sum = 5,
    /// The product; not [`Type::Half`] and [`Type::Bfloat16`].
    Prod = 6,
}

/// How a collective is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Algorithm {
    /// One round of flagged words into each other's workspace: load/store reach, and no more than the workspace holds.
    Packets = 0,
    /// After a meeting, straight between the members' buffers.
    Push = 1,
    /// A binomial tree (broadcast) or recursive doubling (reduce).
    Tree = 2,
}

/// An algorithm and up to which size it is used; `abi.h` says of what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Choice {
    /// The largest size.
    pub up_to_bytes: u64,
    /// [`Algorithm`].
    pub algorithm: u32,
    /// Zero.
    pub reserved0: u32,
}

/// A team of a PE as device code sees it. Member i is PE `start + i * stride`, or `members[i]`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(128))]
pub struct Team {
    /// The handle; [`TEAM_INVALID`]: there is no team in this row.
    pub handle: i32,
    /// The own number in the team.
    pub my_pe: i32,
    /// Members.
    pub n_pes: i32,
    /// The first member, if `members` is 0.
    pub start: i32,
    /// The distance between members, if `members` is 0.
    pub stride: i32,
    /// 1: members tell each other directly: all are load/store reachable, and at most [`ONE_ROUND_PES`].
    pub one_round: u32,
    /// Bytes of a member's packets for each sender: see [`packet_share`].
    pub packet_share: u32,
    /// Of the last meeting; the only thing that device code writes.
    pub epoch: u32,
    /// Address of an `i32` per member, or 0.
    pub members: u64,
    /// Symmetric address of the workspace.
    pub workspace: u64,
    pub(crate) pad0: [u64; 10],
    /// What to use up to which size, by [`Collective`], in ascending order; beyond the last, [`Algorithm::Push`].
    pub choices: [[Choice; CHOICES]; COLLECTIVES],
    pub(crate) pad1: [u64; 6],
}

impl Team {
    /// A row without a team.
    pub(crate) const NONE: Self = Self {
        handle: TEAM_INVALID,
        my_pe: 0,
        n_pes: 0,
        start: 0,
        stride: 0,
        one_round: 0,
        packet_share: 0,
        epoch: 0,
        members: 0,
        workspace: 0,
        pad0: [0; 10],
        choices: [[Choice { up_to_bytes: 0, algorithm: 0, reserved0: 0 }; CHOICES]; COLLECTIVES],
        pad1: [0; 6],
    };
}

/// What every module is given. Read-only for device code.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(128))]
pub struct State {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Size of this structure.
    pub bytes: u32,
    /// The own PE.
    pub my_pe: i32,
    /// PEs in the job.
    pub n_pes: i32,
    /// [`Network`].
    pub network: u32,
    /// First PE of the run that [`p2p_mask`](Self::p2p_mask) describes.
    pub p2p_first: i32,
    /// Length of the run, at most 64.
    pub p2p_count: i32,
    /// Bit i: `p2p_first + i` is load/store reachable.
    pub p2p_mask: u64,
    /// Address of the own heap.
    pub heap_base: u64,
    /// Address space reserved for one heap: the distance between neighbouring PEs' heaps.
    pub heap_bytes: u64,
    /// log2 of the registration unit.
    pub chunk_log2: u32,
    /// Chunks a heap may have.
    pub max_chunks: u32,
    /// Address of the own chunks' local keys: a row of `max_chunks` for each card.
    pub lkeys: u64,
    /// Address of all PEs' remote keys: for each card a row of `max_chunks` for each PE.
    pub rkeys: u64,
    /// Address of the [`Qp`] array.
    pub qps: u64,
    /// QPs per peer.
    pub qps_per_pe: u32,
    /// Cards that the QPs are spread over: QP i of those to a peer is on card `i % cards`, here and at the peer. 1 to [`MAX_CARDS`].
    pub cards: u32,
    /// Address of the bitmap of used QPs.
    pub used: u64,
    /// Local keys of the queue slab, big-endian, by card.
    pub slab_lkeys: [u32; MAX_CARDS],
    /// Address of the [`LocalRegion`] array.
    pub local_regions: u64,
    /// Address of a `u64`: how many of them are valid.
    pub n_local_regions: u64,
    /// Address of the [`Control`].
    pub control: u64,
    /// Deadline of device waits, in ns.
    pub timeout_ns: u64,
    /// Address of the [`Team`] array.
    pub teams: u64,
    /// Address of the [`Proxy`], if there is one.
    pub proxy: u64,
    /// Not 0: all atomics on a PE's memory are those of its first card, also where it is load/store reachable or the own one, since a card's
    /// are not atomic with those of CPUs, GPUs and other cards.
    pub atomics_by_network: u32,
    /// Rows of `teams`.
    pub max_teams: u32,
    /// Not 0: what reads the queues sees what has reached this GPU's memory, where they are; a doorbell needs no fence of system scope.
    pub queues_in_device_memory: u32,
    pub(crate) reserved0: [u32; 31],
}

const _: () = assert!(size_of::<ErrorRecord>() == 80);
const _: () = assert!(size_of::<Control>() == 128);
const _: () = assert!(size_of::<Qp>() == 640);
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Qp, gate) == 128 && offset_of!(Qp, rung) == 256 && offset_of!(Qp, completed) == 384);
    assert!(offset_of!(Qp, fence_at) == 392 && offset_of!(Qp, breakage) == 512);
};
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Proxy>() == 640 && offset_of!(Proxy, taken) == 256 && offset_of!(Proxy, completed) == 384);
    assert!(offset_of!(Proxy, breakage) == 512);
};
const _: () = assert!(size_of::<LocalRegion>() == 32);
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Team>() == 512 && offset_of!(Team, members) == 32 && offset_of!(Team, choices) == 128);
};
const _: () = assert!(size_of::<State>() == 384);

macro_rules! layout {
    ($($type:ident { $($field:ident),* $(,)? })*) => {
        /// Every structure's size and field offsets, as `(name, bytes)`, in declaration order; for the test that compares them with
        /// the C++ compiler's.
        #[must_use]
        pub fn layout() -> Vec<(String, usize)> {
            let mut rows = Vec::new();
            $(
                rows.push((stringify!($type).to_owned(), size_of::<$type>()));
                $(rows.push((concat!(stringify!($type), ".", stringify!($field)).to_owned(), core::mem::offset_of!($type, $field)));)*
            )*
            rows
        }
    };
}

layout! {
    ErrorRecord { code, op, pe, qpn, wqe_index, address, length, syndrome, vendor_syndrome, block, thread, team }
    Control { abort, claimed, error }
    Breakage { claimed, first }
    Qp {
        wq, stamps, dbr, doorbell, cqe, landing, laps, qpn, depth_log2, pe, index, landing_log2, gate, landing_head, rung,
        doorbells, completed, fence_at, ordered_at, breakage,
    }
    ProxyWord { seen, polled }
    Proxy {
        slots, taken_word, completed_word, acknowledgements, landing, faults, laps, depth_log2, landing_log2, head, landing_head,
        taken, completed, failures, breakage,
    }
    LocalRegion { base, bytes, lkeys }
    Choice { up_to_bytes, algorithm }
    Team { handle, my_pe, n_pes, start, stride, one_round, packet_share, epoch, members, workspace, choices }
    State {
        magic, abi_version, bytes, my_pe, n_pes, network, p2p_first, p2p_count, p2p_mask, heap_base, heap_bytes,
        chunk_log2, max_chunks, lkeys, rkeys, qps, qps_per_pe, cards, used, slab_lkeys, local_regions, n_local_regions, control,
        timeout_ns, teams, proxy, atomics_by_network, max_teams, queues_in_device_memory,
    }
}
