//! The boundary between the engine and what carries its work requests: plain data, and the [`Backend`] trait.
//!
//! A backend posts what it is given, in the order it is given, on reliably connected queue pairs, and reports completions of what was
//! signaled. It keeps no policy: which request is signaled, how many are outstanding and what happens after an error is the engine's.

use std::fmt;

/// Payload bytes that a descriptor can carry inside; every backend sends as many inline.
pub const PAYLOAD_BYTES: usize = 48;

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
    /// The first `length` of `bytes`, at most [`PAYLOAD_BYTES`].
    #[must_use]
    #[inline]
    pub fn new(bytes: [u8; PAYLOAD_BYTES], length: usize) -> Self {
        Self { bytes, length: length.min(PAYLOAD_BYTES) as u8 }
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
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
    /// As a number.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// What a work request does. Results of atomics are `width` bytes; the address of `target` is a multiple of `width`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
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
    /// Adds, and fetches what was there before.
    FetchAdd {
        /// What is added.
        add: u64,
        /// Of the operand.
        width: Width,
        /// Where the old value goes.
        result: Local,
        /// The word.
        target: Remote,
    },
    /// Replaces the word if it equals `compare`, and fetches what was there before.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// The new value.
        swap: u64,
        /// Of the operand.
        width: Width,
        /// Where the old value goes.
        result: Local,
        /// The word.
        target: Remote,
    },
    /// As `FetchAdd`, but a carry does not cross a set bit of `boundary`: all ones make it an exclusive or. Only where
    /// [`Capabilities::masked`] says so.
    MaskedFetchAdd {
        /// What is added.
        add: u64,
        /// The most significant bit of each field.
        boundary: u64,
        /// Of the operand.
        width: Width,
        /// Where the old value goes.
        result: Local,
        /// The word.
        target: Remote,
    },
    /// As `CompareSwap`, comparing the bits in `compare_mask` and replacing those in `swap_mask`. Only where [`Capabilities::masked`]
    /// says so.
    MaskedCompareSwap {
        /// What is expected.
        compare: u64,
        /// The new value.
        swap: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits that are replaced.
        swap_mask: u64,
        /// Of the operand.
        width: Width,
        /// Where the old value goes.
        result: Local,
        /// The word.
        target: Remote,
    },
}

impl Operation {
    /// The word or bytes at the peer.
    #[must_use]
    #[inline]
    pub fn remote(&self) -> Remote {
        match *self {
            Self::Write { target, .. }
            | Self::WriteInline { target, .. }
            | Self::FetchAdd { target, .. }
            | Self::CompareSwap { target, .. }
            | Self::MaskedFetchAdd { target, .. }
            | Self::MaskedCompareSwap { target, .. } => target,
            Self::Read { source, .. } => source,
        }
    }

    /// The number that errors name the operation by: the opcode of an mlx5 WQE that would do it (`MLX5_OPCODE_*`, rdma-core's mlx5dv.h).
    #[must_use]
    #[inline]
    pub fn opcode(&self) -> u8 {
        match self {
            Self::Write { .. } | Self::WriteInline { .. } => 0x08,
            Self::Read { .. } => 0x10,
            Self::CompareSwap { .. } => 0x11,
            Self::FetchAdd { .. } => 0x12,
            Self::MaskedCompareSwap { .. } => 0x14,
            Self::MaskedFetchAdd { .. } => 0x15,
        }
    }
}

/// One work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// What its completion is known by. On a queue pair, ids rise by one from request to request, from 0.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// Whether its success is reported. Failures always are.
    pub signaled: bool,
    /// Nothing of it is visible at the peer before everything that was posted to the queue pair earlier: earlier writes are delivered,
    /// earlier reads and atomics have been carried out.
    pub fence: bool,
}

/// Why a work request failed, in the terms that verbs and PRM share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It had been posted behind one that failed.
    Flushed,
    /// Everything else; the syndrome says what.
    Error,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done, and all before it on its queue pair as well.
    Success,
    /// Not done, and nothing behind it on its queue pair will be.
    Failed {
        /// Flushed or the cause.
        what: Failure,
        /// The syndrome as an mlx5 error CQE has it (`MLX5_CQE_SYNDROME_*`); other cards' status codes are translated.
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
    /// Bytes that fit into a work request: at least [`PAYLOAD_BYTES`].
    pub inline_bytes: u32,
    /// Whether atomics of four bytes exist.
    pub width_four: bool,
    /// Whether masked atomics exist (with the widths of the others).
    pub masked: bool,
    /// Whether results of four-byte atomics arrive big-endian. Those of eight bytes are in host order.
    pub four_is_big_endian: bool,
    /// Whether atomics are atomic with respect to the CPU's own (`IBV_ATOMIC_GLOB`).
    pub atomics_coherent_with_cpu: bool,
    /// Work requests that fit one queue pair at a time.
    pub send_depth: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
}

/// Requests could not be posted; none of the chain was. The backend is of no more use.
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

/// Completions could not be had. The backend is of no more use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot poll for completions: {reason}")]
pub struct PollError {
    /// What the device or its library said.
    pub reason: String,
}

/// What carries work requests: queue pairs of a card, connected, by dense index. The queue pairs of a peer follow each other, and peers
/// come in the order of their numbers without the own one.
pub trait Backend: Send {
    /// What it can do; never changes.
    fn capabilities(&self) -> &Capabilities;

    /// Post a chain to one queue pair, and tell the card once. The engine never has more than
    /// [`send_depth`](Capabilities::send_depth) requests outstanding on it.
    ///
    /// # Errors
    /// The device is gone or refuses. A queue pair in error is not that: its requests fail by completion.
    fn post(&mut self, qp: u32, requests: &[WorkRequest]) -> Result<(), PostError>;

    /// Append the completions that have arrived. They are in order for each queue pair. A backend may leave out a success that a later one
    /// of the same queue pair covers, and report an error once for all that was flushed behind it.
    ///
    /// # Errors
    /// The device is gone.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), PollError>;

    /// How far its queue pairs are, in words, for the log.
    fn status(&self) -> String {
        String::new()
    }

    /// What the device says about the failure of a queue pair, beyond the syndrome.
    fn explain(&self, qp: u32) -> Option<String> {
        let _ = qp;
        None
    }
}
