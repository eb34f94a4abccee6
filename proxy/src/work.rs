//! The boundary between the engine and what carries its work requests: plain data, and the
//! [`Backend`] trait.
//!
//! A backend posts what it is given, in the order it is given, on reliably connected queue pairs,
//! and reports completions of what was signaled. It keeps no policy: which request is signaled, how
//! many are outstanding and what happens after an error is the engine's.

use std::fmt;

use oxshmem_hca::topology::MAX_SENDERS;

/// Payload bytes that a descriptor can carry inside; every backend sends as many inline.
pub const PAYLOAD_BYTES: usize = LEAST_INLINE_BYTES as usize;

/// Bytes that every backend sends inline, at least.
pub const LEAST_INLINE_BYTES: u32 = 48;

/// Registered memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Local {
    /// Address under `key`: an offset in the heap for heap memory, otherwise the virtual address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The lkey, in host byte order.
    pub key: u32,
}

/// Registered memory of this process, with its keys on all cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registered {
    /// The address, as in [`Local::address`].
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The lkeys by card, in host byte order.
    pub keys: [u32; MAX_SENDERS],
}

impl Registered {
    /// Returns what a work request on a card names.
    #[must_use]
    #[inline]
    pub fn on(&self, card: u32) -> Local {
        Local { address: self.address, length: self.length, key: self.keys[card as usize % MAX_SENDERS] }
    }
}

/// Registered memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
    /// Address under `key`: an offset in the peer's heap.
    pub address: u64,
    /// The rkey, in host byte order.
    pub key: u32,
}

/// Bytes that travel inside a work request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    bytes: [u8; PAYLOAD_BYTES],
    length: u8,
}

impl Payload {
    /// Returns the first `length` of `bytes`, at most [`PAYLOAD_BYTES`].
    #[must_use]
    #[inline]
    pub fn new(bytes: [u8; PAYLOAD_BYTES], length: usize) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "PAYLOAD_BYTES is 48")]
        let length = length.min(PAYLOAD_BYTES) as u8;
        Self { bytes, length }
    }

    /// Returns the bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Returns the bytes in little-endian words, and what lay after them.
    #[must_use]
    #[inline]
    pub fn words(&self) -> [u64; PAYLOAD_BYTES / 8] {
        let (words, _) = self.bytes.as_chunks::<8>();
        std::array::from_fn(|i| u64::from_le_bytes(words[i]))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({:02x?})", self.as_slice())
    }
}

/// Bytes of an atomic's operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Four,
    /// 64 bits.
    Eight,
}

impl Width {
    /// Returns it as a number.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Returns the bits of an operand.
    #[must_use]
    pub fn bits(self) -> u64 {
        match self {
            Self::Four => 0xffff_ffff,
            Self::Eight => u64::MAX,
        }
    }
}

/// What an atomic does to its word. Bits above the operand's width are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds; a carry does not cross a set bit of `boundary`: all ones make it an exclusive or.
    Add {
        /// What is added.
        value: u64,
        /// Most significant bits of fields.
        boundary: u64,
    },
    /// Replaces the bits in `swap_mask` if those in `compare_mask` equal `compare`.
    CompareSwap {
        /// New bits.
        swap: u64,
        /// Expected bits.
        compare: u64,
        /// Which are replaced.
        swap_mask: u64,
        /// Which are compared.
        compare_mask: u64,
    },
}

impl Atomic {
    /// Replaces all bits if all equal `compare`.
    #[must_use]
    pub fn compare_swap(compare: u64, swap: u64) -> Self {
        Self::CompareSwap { swap, compare, swap_mask: u64::MAX, compare_mask: u64::MAX }
    }

    /// Returns whether it is more than an addition or a compare-and-swap of the whole operand: only
    /// where [`Capabilities::masked`] says so.
    #[must_use]
    pub fn is_masked(&self, width: Width) -> bool {
        let all = width.bits();
        match *self {
            Self::Add { boundary, .. } => boundary & all != 0,
            Self::CompareSwap { swap_mask, compare_mask, .. } => swap_mask & compare_mask & all != all,
        }
    }

    /// Returns what it makes of a word. Bits above the operand's width are to be ignored.
    #[must_use]
    pub fn apply(&self, old: u64) -> u64 {
        match *self {
            Self::Add { value, boundary } => {
                // Without the boundary bits no carry leaves a field; those bits are added without
                // carry.
                ((old & !boundary).wrapping_add(value & !boundary)) ^ ((old ^ value) & boundary)
            }
            Self::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                if (old ^ compare) & compare_mask == 0 {
                    old & !swap_mask | swap & swap_mask
                } else {
                    old
                }
            }
        }
    }
}

/// Bytes that are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// RDMA WRITE from registered memory.
    Write {
        /// From here,
        source: Local,
        /// to there.
        target: Remote,
    },
    /// RDMA WRITE of bytes inside the request.
    WriteInline {
        /// These bytes,
        payload: Payload,
        /// to there.
        target: Remote,
    },
    /// RDMA READ.
    Read {
        /// To here,
        target: Local,
        /// from there.
        source: Remote,
    },
}

/// What a work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Moves bytes.
    Transfer(Transfer),
    /// Changes a word, and fetches what was there before.
    Atomic {
        /// How. Masks only where [`Capabilities::masked`] says so.
        operands: Atomic,
        /// The width of the operand; four bytes only where [`Capabilities::width_four`] says so.
        width: Width,
        /// Where the old value goes: `width` bytes.
        result: Local,
        /// The word; the address is a multiple of `width`.
        target: Remote,
    },
}

impl Operation {
    /// Returns the word or bytes at the peer.
    #[must_use]
    #[inline]
    pub fn remote(&self) -> Remote {
        match *self {
            Self::Transfer(Transfer::Write { target, .. } | Transfer::WriteInline { target, .. })
            | Self::Atomic { target, .. } => target,
            Self::Transfer(Transfer::Read { source, .. }) => source,
        }
    }

    /// Returns the payload's bytes; of an atomic those of its operand.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Transfer(Transfer::Write { source: local, .. } | Transfer::Read { target: local, .. }) => {
                local.length.into()
            }
            Self::Transfer(Transfer::WriteInline { payload, .. }) => payload.as_slice().len() as u64,
            Self::Atomic { width, .. } => width.bytes().into(),
        }
    }

    /// Returns whether it writes without reading what was there.
    #[must_use]
    #[inline]
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Transfer(Transfer::Write { .. } | Transfer::WriteInline { .. }))
    }

    /// Returns the number that errors name the operation by: the opcode of an mlx5 WQE that would
    /// do it (`MLX5_OPCODE_*`, rdma-core's mlx5dv.h).
    #[must_use]
    #[inline]
    pub fn opcode(&self) -> u8 {
        match self {
            Self::Transfer(Transfer::Write { .. } | Transfer::WriteInline { .. }) => 0x08,
            Self::Transfer(Transfer::Read { .. }) => 0x10,
            Self::Atomic { operands, width, .. } => match (operands, operands.is_masked(*width)) {
                (Atomic::CompareSwap { .. }, false) => 0x11,
                (Atomic::Add { .. }, false) => 0x12,
                (Atomic::CompareSwap { .. }, true) => 0x14,
                (Atomic::Add { .. }, true) => 0x15,
            },
        }
    }
}

/// One work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// What its completion is known by. On a queue pair, ids rise by one from request to request,
    /// from 0.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// Whether its success is reported. Failures always are.
    pub signaled: bool,
    /// Nothing of it, nor of what is posted to the queue pair after it, is visible at the peer
    /// before everything that was posted there earlier: earlier writes are delivered, earlier reads
    /// and atomics have been carried out.
    pub fence: bool,
}

/// Why a work request failed, in the terms that verbs and PRM share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It had been posted after one that failed, or the card tells only that one has failed from it
    /// on.
    Flushed,
    /// Everything else; the syndrome says what.
    Error,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done, and all before it on its queue pair as well.
    Success,
    /// Not done, and nothing after it on its queue pair will be.
    Failed {
        /// Flushed or the cause.
        what: Failure,
        /// The syndrome as an mlx5 error CQE has it (`MLX5_CQE_SYNDROME_*`); other cards' status
        /// codes are translated.
        syndrome: u32,
        /// The vendor's detail, as the card gave it.
        vendor: u32,
    },
}

/// The end of a work request. A success also ends all earlier requests of its queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The queue pair, by dense index.
    pub qp: u32,
    /// [`WorkRequest::id`].
    pub id: u64,
    /// How it ended.
    pub status: Status,
}

/// What a backend can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Bytes that fit into a work request: at least [`LEAST_INLINE_BYTES`].
    pub inline_bytes: u32,
    /// Whether atomics of four bytes exist.
    pub width_four: bool,
    /// Whether masked atomics exist (with the widths of the others).
    pub masked: bool,
    /// Whether results of four-byte atomics arrive big-endian. Those of eight bytes are in host
    /// order.
    pub four_is_big_endian: bool,
    /// Whether atomics are atomic with respect to the CPU's own (`IBV_ATOMIC_GLOB`).
    pub atomics_coherent_with_cpu: bool,
    /// Work requests that fit one queue pair at a time.
    pub send_depth: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
}

impl Capabilities {
    /// Returns what both can do.
    #[must_use]
    pub fn both(self, other: Self) -> Self {
        Self {
            inline_bytes: self.inline_bytes.min(other.inline_bytes),
            width_four: self.width_four && other.width_four,
            masked: self.masked && other.masked,
            // All of a kind: see `Backend`.
            four_is_big_endian: self.four_is_big_endian,
            atomics_coherent_with_cpu: self.atomics_coherent_with_cpu && other.atomics_coherent_with_cpu,
            send_depth: self.send_depth.min(other.send_depth),
            max_message: self.max_message.min(other.max_message),
        }
    }
}

/// Requests could not be posted; none of the chain was. The backend cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot post {requests} work requests to {qp}: {reason}")]
pub struct PostError {
    /// Which queue pair, in words.
    pub qp: String,
    /// Length of the chain.
    pub requests: usize,
    /// What the device or its library said.
    pub reason: String,
}

/// Completions could not be read. The backend cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot poll for completions: {reason}")]
pub struct PollError {
    /// What the device or its library said.
    pub reason: String,
}

/// What carries work requests: queue pairs of a card, connected, by dense index. The queue pairs of
/// a peer follow each other, and peers come in the order of their numbers, without this PE.
pub trait Backend: Send {
    /// Returns what it can do; never changes.
    fn capabilities(&self) -> &Capabilities;

    /// Posts a chain to one queue pair, and tells the card once. The engine never has more than
    /// [`send_depth`](Capabilities::send_depth) requests outstanding on it.
    ///
    /// # Errors
    /// The device is gone or refuses. A queue pair in error is not that: its requests fail by
    /// completion.
    fn post(&mut self, qp: u32, requests: &[WorkRequest]) -> Result<(), PostError>;

    /// Wakes the thread that carries the chains out, should it sleep: after chains were posted,
    /// before any thread waits for them.
    fn announce(&self) {}

    /// Appends the completions that have arrived. They are in order for each queue pair. A backend
    /// may leave out a success that a later one of the same queue pair covers, and report an error
    /// once for all that was flushed after it.
    ///
    /// # Errors
    /// The device is gone.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), PollError>;

    /// Returns how far its queue pairs are, in words, for the log.
    fn status(&self) -> String {
        String::new()
    }

    /// Returns what the device says about the failure of a queue pair, beyond the syndrome.
    fn explain(&self, qp: u32) -> Option<String> {
        let _ = qp;
        None
    }
}
