//! What device code reports: the first error of a launch, decoded.

use std::fmt;

use bytemuck::checked;
use oxshmem_hca::wire::cqe::Syndrome;
use oxshmem_system::words::low32;

use self::arguments::bad_argument;
pub(crate) use self::members::call;
use self::members::{awaited, departure, mismatch};
use crate::abi::{self, ErrorCode, ErrorRecord, Op};
use crate::config::ByteSize;

mod arguments;
mod members;

/// An error that device code recorded. Operations that were refused had no effect; those issued
/// before are complete or reported.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{DeviceFault, Error, FaultKind, Operations};
///
/// let words = pe.alloc::<u64>(1)?;
/// let error = pe.put(&words, &[1], 99).unwrap_err();
/// let Error::Fault(fault) = error else { panic!("{error}") };
/// let fault: DeviceFault = *fault;
/// assert_eq!((fault.me, fault.kind), (0, FaultKind::PeOutOfRange { pe: 99, last: 0 }));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PE {me}, {place}: {operation}{team}: {kind}", place = Place(*block, *thread), team = OnTeam(*team))]
pub struct DeviceFault {
    /// The PE whose kernel it was.
    pub me: i32,
    /// The operation.
    pub operation: &'static str,
    /// The team whose collective it was, by its handle.
    pub team: Option<i32>,
    /// Block index of the thread.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// What happened.
    pub kind: FaultKind,
}

/// What device code can report.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{Error, FaultKind, Operations};
///
/// let flag = pe.alloc::<u64>(1)?;
/// match pe.signal(flag.signal(0).set(1), 7) {
///     Err(Error::Fault(fault)) => assert!(matches!(fault.kind, FaultKind::PeOutOfRange { pe: 7, .. })),
///     other => panic!("{other:?}"),
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// No such PE.
    #[error("PE {pe} does not exist; PEs are 0 to {last}")]
    PeOutOfRange {
        /// The requested PE.
        pe: i32,
        /// The last PE.
        last: i32,
    },
    /// Not symmetric memory.
    #[error(
        "[{address:#x}, {address:#x} + {bytes}) to PE {pe} is not inside the symmetric heap; pass memory of Pe::alloc, by the \
         address of this PE's copy"
    )]
    AddressOutsideHeap {
        /// The address.
        address: u64,
        /// Length of the access.
        bytes: u64,
        /// The peer.
        pe: i32,
    },
    /// An address that is not a multiple of the operand's size.
    #[error("{address:#x} on PE {pe} is not aligned to the operand's {bytes} bytes; pass an aligned address")]
    Unaligned {
        /// The address.
        address: u64,
        /// Bytes of the operand.
        bytes: u64,
        /// The peer.
        pe: i32,
    },
    /// A wait outlasted its deadline.
    #[error("the wait did not end within {timeout_ms} ms{}; {}", Waited { address: *address, heap_offset: *heap_offset, pe: *pe, unmet: unmet.as_ref() }, Ending(lost, *ring))]
    Timeout {
        /// The deadline in milliseconds.
        timeout_ms: u64,
        /// What was waited on.
        address: u64,
        /// The offset of `address` in the heap of this PE, if it is there.
        heap_offset: Option<u64>,
        /// The peer; this PE if it could be any.
        pe: i32,
        /// What a wait for variables of this PE saw.
        unmet: Option<Unmet>,
        /// The peers to which the network is lost, and why: what was waited for may have been on
        /// its way there.
        lost: Vec<(u32, String)>,
        /// Bytes of the staging ring that had no free slot.
        ring: Option<u64>,
    },
    /// The HCA completed a work request with an error.
    #[error(
        "the HCA ended {opcode} to PE {pe} (QP {qpn:#x}, WQE {wqe_index}, heap offset {address:#x}) with {syndrome} (vendor syndrome \
         {vendor_syndrome:#x}){cause}; the connection to this PE is lost"
    )]
    Completion {
        /// The peer.
        pe: i32,
        /// QP number.
        qpn: u32,
        /// 64-bit block index of the WQE.
        wqe_index: u64,
        /// The work request.
        opcode: String,
        /// Remote address of the WQE: an offset in the peer's heap.
        address: u64,
        /// The syndrome.
        syndrome: String,
        /// The vendor syndrome.
        vendor_syndrome: u32,
        /// What the HCA says about it, after a colon; empty if it says nothing.
        cause: String,
    },
    /// Neither load/store nor a network leads there.
    #[error("no path to PE {pe}: it is not load/store reachable and no network is open; oxshmem-info paths says why")]
    NoPath {
        /// The peer.
        pe: i32,
    },
    /// Another argument is wrong.
    #[error("{problem}")]
    BadArgument {
        /// The value: of a reduction, the element type in the upper half and the operator in the
        /// lower one, as `oxshmem/abi.h` numbers them.
        value: i64,
        /// Which argument it is, and which values are allowed.
        problem: String,
        /// The address given with it.
        address: u64,
        /// The peer.
        pe: i32,
    },
    /// No team has this handle.
    #[error("{handle:#x} is not the handle of a team of this PE; it may have been destroyed")]
    BadTeam {
        /// The handle.
        handle: i32,
    },
    /// Members of a team made calls that do not belong together.
    #[error(
        "{theirs}, while this PE called {mine}; every PE of the team must make the same call; nothing was written, unless copy engines carried it out"
    )]
    Mismatch {
        /// The PE whose call is another one.
        pe: i32,
        /// What that PE did.
        theirs: String,
        /// The collective that this PE called.
        mine: &'static str,
    },
    /// A member of the team has left a collective, because it waited for another member in vain, or
    /// by another error of its own.
    #[error("PE {pe} left the collective {}; what the collective has written is not complete", departure(*awaited))]
    MemberLeft {
        /// The PE.
        pe: i32,
        /// The PE for which that one waited; `None` if it has not said so.
        awaited: Option<i32>,
    },
    /// Buffers that must not overlap do.
    #[error("dst {dst:#x} and src {src:#x} overlap; pass buffers that do not")]
    Overlap {
        /// Where the one begins.
        dst: u64,
        /// Where the other begins.
        src: u64,
    },
    /// A queue in which an earlier post was given up.
    #[error(
        "{} to PE {pe} cannot be used any more: an operation that waited for room in it reached its deadline. Finalize the PE and initialise again; a larger OXSHMEM_TIMEOUT may avoid it",
        queue(*qpn)
    )]
    QueueBroken {
        /// The peer.
        pe: i32,
        /// QP number; `None` if it is the ring of the CPU proxy.
        qpn: Option<u32>,
    },
    /// A private context that is used from two places at once. Where that is found, on the `cpu`
    /// device.
    #[error(
        "a private context is used from two places at once, posting to PE {pe} on QP {qpn:#x}; use it from one thread, warp or block at a time, or create it with Sharing::Device"
    )]
    ContextInUse {
        /// The peer.
        pe: i32,
        /// QP number.
        qpn: u32,
    },
    /// A context that was destroyed.
    #[error("the context with QP {qpn:#x} to PE {pe} was destroyed; a context can be used until Contexts::destroy")]
    ContextDestroyed {
        /// The peer.
        pe: i32,
        /// QP number.
        qpn: u32,
    },
    /// No context has this number.
    #[error("no context of this PE has the number {number}; Contexts::numbers gives numbers, which end with destroy")]
    BadContextNumber {
        /// The number.
        number: u64,
    },
    /// A kernel ends the job with a status, as programs for NVSHMEM do. Not an error by itself.
    #[error("a kernel has ended the job with status {status}")]
    ExitRequested {
        /// The status.
        status: i32,
    },
    /// No such member of a context's team.
    #[error("the team of the context has no PE {pe}; its PEs are 0 to {last}")]
    MemberOutOfRange {
        /// The requested number.
        pe: i32,
        /// The last number.
        last: u64,
    },
    /// A call in grid scope that not all blocks of the grid have made.
    #[error(
        "only {arrived} of the grid's {blocks} blocks made the call within {timeout_ms} ms; a call in grid scope is made by all blocks, which run at the same time: launch the kernel as a cooperative one (LaunchConfig::cooperative, cudaLaunchCooperativeKernel), with no more blocks than fit the GPU"
    )]
    GridIncomplete {
        /// Blocks that made it.
        arrived: u64,
        /// Blocks of the grid.
        blocks: u64,
        /// The deadline in milliseconds.
        timeout_ms: u64,
    },
    /// Records of an aggregating context that were not applied.
    #[error(
        "{bytes} bytes of records in the ring at PE {rail} were not applied by PE {receiver} within {timeout_ms} ms; their services run as kernels: leave room for a block of 32 threads beside other kernels, or raise OXSHMEM_TIMEOUT; Aggregate::unacknowledged counts what is not acknowledged"
    )]
    AggregateStalled {
        /// The rail peer, which sends them.
        rail: u64,
        /// The PE that is to apply them.
        receiver: i32,
        /// Their bytes, those of other PEs of the node that precede them included.
        bytes: u64,
        /// The deadline in milliseconds.
        timeout_ms: u64,
    },
    /// A record that this runtime cannot read.
    #[error("unknown error code {code}")]
    Unknown {
        /// The code.
        code: u32,
    },
}

/// A variable that did not become what a wait is for. Values have the bytes of the variable, and 64
/// bits if they have a sign.
///
/// ```
/// use oxshmem::{Compare, Config, Error, FaultKind, Operations, Pe};
///
/// # fn main() -> oxshmem::Result<()> {
/// let pe = Pe::with_config(Config::builder().timeout(std::time::Duration::from_millis(50)).env().build()?)?;
/// let flag = pe.alloc::<u64>(1)?;
/// let error = pe.signal_wait_until(flag.signal(0), Compare::Eq, 3).unwrap_err();
/// let Error::Fault(fault) = error else { panic!("{error}") };
/// let FaultKind::Timeout { unmet: Some(unmet), .. } = fault.kind else { panic!("{fault}") };
/// assert_eq!((unmet.seen, unmet.wanted, unmet.comparison), (0, 3, "equal to"));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmet {
    /// What the variable was when the deadline passed.
    pub seen: i128,
    /// What it was compared with.
    pub wanted: i128,
    /// How: `equal to`, for example.
    pub comparison: &'static str,
    /// Bytes of the variable.
    pub bytes: u32,
    /// Variables that the wait is for, of which any may end it; this is the first.
    pub variables: u32,
}

impl Unmet {
    /// Reads what `abi.h` describes at kUnmetBytesShift. `None` if the record is of no wait for
    /// variables.
    fn decode(record: &ErrorRecord) -> Option<Self> {
        const COMPARISONS: [&str; 6] = ["equal to", "other than", "above", "at most", "below", "at least"];
        let comparison = COMPARISONS.get((record.syndrome & 0xff) as usize)?;
        let bytes = record.syndrome >> abi::UNMET_BYTES_SHIFT & 0xff;
        let has_sign = record.syndrome >> abi::UNMET_SIGN_SHIFT & 1 != 0;
        let bits = bytes.checked_mul(8).filter(|bits| (16..=64).contains(bits))?;
        let number = |word: u64| {
            let word = word << (64 - bits);
            if has_sign { i128::from(word.cast_signed() >> (64 - bits)) } else { i128::from(word >> (64 - bits)) }
        };
        Some(Self {
            seen: number(record.wqe_index),
            wanted: number(record.length),
            comparison,
            bytes,
            variables: record.vendor_syndrome,
        })
    }
}

/// What a wait was for.
struct Waited<'a> {
    address: u64,
    heap_offset: Option<u64>,
    pe: i32,
    unmet: Option<&'a Unmet>,
}

impl fmt::Display for Waited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self
            .heap_offset
            .map_or_else(|| format!("address {:#x}", self.address), |offset| format!("heap offset {offset:#x}"));
        let pe = self.pe;
        let Some(Unmet { seen, wanted, comparison, bytes, variables }) = self.unmet else {
            return write!(f, ", waiting at {place} for PE {pe}");
        };
        let variable = if *variables > 1 {
            format!("none of {variables} variables satisfies the condition; the first, of {bytes} bytes at {place},")
        } else {
            format!("the variable of {bytes} bytes at {place}")
        };
        write!(
            f,
            ": {variable} is {seen} and has to become {comparison} {wanted}; no put, signal or atomic of a PE has made it so"
        )
    }
}

fn queue(qpn: Option<u32>) -> String {
    qpn.map_or_else(|| "the CPU proxy's ring".to_owned(), |qpn| format!("the send queue of QP {qpn:#x}"))
}

/// Why a wait may have had no end.
struct Ending<'a>(&'a [(u32, String)], Option<u64>);

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ring) = self.1 {
            write!(
                f,
                "no slot of the staging ring of {} is free, since the card has not read what lies there; OXSHMEM_STAGING_RING makes rings \
                 longer; ",
                ByteSize(ring)
            )?;
        }
        if self.0.is_empty() {
            return f.write_str("if the peer is only slow, raise OXSHMEM_TIMEOUT");
        }
        for (i, (pe, why)) in self.0.iter().enumerate() {
            write!(f, "{}the connection to PE {pe} is lost ({why})", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

struct Place([u32; 3], [u32; 3]);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.0, self.1);
        write!(f, "block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})")
    }
}

/// Names a team in an error.
struct OnTeam(Option<i32>);

impl fmt::Display for OnTeam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(abi::TEAM_WORLD) => f.write_str(" of the world team"),
            Some(abi::TEAM_SHARED) => f.write_str(" of the shared team"),
            Some(abi::TEAM_NODE) => f.write_str(" of the node team"),
            Some(abi::TEAM_SAME_NODE_PE) => f.write_str(" of the team of PEs with the same number in their nodes"),
            Some(handle) => write!(f, " of team {handle:#x}"),
        }
    }
}

/// What errors call a wait for a slot of a staging ring.
pub(crate) const STAGING: &str = "waiting for a slot of a staging ring";

/// Returns what errors call an operation; `None` if this runtime does not know it.
pub(crate) fn operation(op: u32) -> Option<&'static str> {
    Some(match checked::try_cast(op).ok()? {
        Op::None => "operation",
        Op::Put => "put",
        Op::Get => "get",
        Op::P => "p",
        Op::G => "g",
        Op::Iput => "iput",
        Op::Iget => "iget",
        Op::Atomic => "atomic",
        Op::Signal => "signal_op",
        Op::PutSignal => "put_signal",
        Op::WaitUntil => "wait_until",
        Op::SignalWait => "signal_wait_until",
        Op::Quiet => "quiet",
        Op::Fence => "fence",
        Op::Barrier => "barrier",
        Op::Sync => "sync",
        Op::QueueSpace => "waiting for room in a send queue",
        Op::Staging => STAGING,
        Op::Landing => "waiting for a landing slot",
        Op::Ptr => "ptr",
        Op::Broadcast => "broadcast",
        Op::Collect => "collect",
        Op::Fcollect => "fcollect",
        Op::Alltoall => "alltoall",
        Op::Alltoalls => "alltoalls",
        Op::Reduce => "reduce",
        Op::Reducescatter => "reducescatter",
    })
}

/// Returns the opcode's name. Opcodes and syndromes are named as in rdma-core's mlx5dv.h.
fn opcode(opcode: u64) -> String {
    match opcode {
        0x08 => "RDMA WRITE".into(),
        0x10 => "RDMA READ".into(),
        0x11 => "ATOMIC CS".into(),
        0x12 => "ATOMIC FA".into(),
        0x14 => "MASKED CS".into(),
        0x15 => "MASKED FA".into(),
        other => format!("opcode {other:#x}"),
    }
}

pub(crate) fn syndrome(syndrome: u32) -> String {
    let name = match syndrome {
        0x01 => "local length error",
        0x02 => "local QP operation error",
        0x04 => "local protection error",
        0x05 => "work request flushed since one before it failed, and the HCA does not keep which",
        0x06 => "memory window bind error",
        0x10 => "bad response",
        0x11 => "local access error",
        0x12 => "remote invalid request",
        0x13 => "remote access error",
        0x14 => "remote operation error",
        0x15 => "transport retry counter exceeded: the peer or the link is down",
        0x16 => "receiver-not-ready retry counter exceeded",
        0x22 => "remote abort",
        _ => return format!("syndrome {syndrome:#x}"),
    };
    format!("{name} ({syndrome:#x})")
}

impl DeviceFault {
    /// Reads a record that a kernel of the PE with this state has left.
    pub(crate) fn decode(record: &ErrorRecord, state: &abi::State) -> Self {
        let abi::State { my_pe: me, n_pes, timeout_ns, heap_base, heap_bytes, .. } = *state;
        let ErrorRecord { pe, address, length, .. } = *record;
        let kind = match checked::try_cast(record.code) {
            Ok(ErrorCode::PeOutOfRange) if length != 0 => FaultKind::MemberOutOfRange { pe, last: length - 1 },
            Ok(ErrorCode::PeOutOfRange) => FaultKind::PeOutOfRange { pe, last: n_pes - 1 },
            Ok(ErrorCode::AddressOutsideHeap) => FaultKind::AddressOutsideHeap { address, bytes: length, pe },
            Ok(ErrorCode::Unaligned) => FaultKind::Unaligned { address, bytes: length, pe },
            Ok(ErrorCode::Timeout) => FaultKind::Timeout {
                timeout_ms: timeout_ns / 1_000_000,
                address,
                heap_offset: address.checked_sub(heap_base).filter(|offset| *offset < heap_bytes),
                pe,
                unmet: if record.syndrome == 0 { None } else { Unmet::decode(record) },
                lost: Vec::new(),
                ring: None,
            },
            Ok(ErrorCode::Completion) => FaultKind::Completion {
                pe,
                qpn: record.qpn,
                wqe_index: record.wqe_index,
                opcode: opcode(length),
                address,
                syndrome: syndrome(record.syndrome),
                vendor_syndrome: record.vendor_syndrome,
                cause: String::new(),
            },
            Ok(ErrorCode::NoPath) => FaultKind::NoPath { pe },
            Ok(ErrorCode::BadArgument) => {
                let value = length.cast_signed();
                FaultKind::BadArgument { value, problem: bad_argument(record.op, value), address, pe }
            }
            Ok(ErrorCode::BadTeam) => FaultKind::BadTeam { handle: low32(length).cast_signed() },
            Ok(ErrorCode::Mismatch) => mismatch(pe, length, address),
            Ok(ErrorCode::MemberLeft) => FaultKind::MemberLeft { pe, awaited: awaited(pe, length) },
            Ok(ErrorCode::QueueBroken) => FaultKind::QueueBroken { pe, qpn: (record.qpn != 0).then_some(record.qpn) },
            Ok(ErrorCode::Overlap) => FaultKind::Overlap { dst: address, src: length },
            Ok(ErrorCode::ContextInUse) => FaultKind::ContextInUse { pe, qpn: record.qpn },
            Ok(ErrorCode::ContextDestroyed) => FaultKind::ContextDestroyed { pe, qpn: record.qpn },
            Ok(ErrorCode::BadNumber) => FaultKind::BadContextNumber { number: length },
            Ok(ErrorCode::GridIncomplete) => {
                FaultKind::GridIncomplete { arrived: address, blocks: length, timeout_ms: timeout_ns / 1_000_000 }
            }
            Ok(ErrorCode::ExitRequested) => FaultKind::ExitRequested { status: low32(length).cast_signed() },
            Ok(ErrorCode::AggregateStalled) => FaultKind::AggregateStalled {
                rail: address,
                receiver: pe,
                bytes: length,
                timeout_ms: timeout_ns / 1_000_000,
            },
            Ok(ErrorCode::None) | Err(_) => FaultKind::Unknown { code: record.code },
        };
        let team = (record.team != abi::TEAM_INVALID).then_some(record.team);
        Self {
            me,
            operation: operation(record.op).unwrap_or("unknown operation"),
            team,
            block: record.block,
            thread: record.thread,
            kind,
        }
    }
}

/// The work request that made a queue pair fail, as its HCA remembers it.
#[derive(Debug)]
pub(crate) struct Cause {
    pub wqe_index: u64,
    /// The first words of the WQE: opcode and remote address.
    pub opcode: u8,
    pub address: u64,
    pub syndrome: u8,
    pub text: String,
}

impl DeviceFault {
    /// Returns whether device code ends all waits of the PE when it records this; see `raise` in
    /// `detail/error.h`.
    pub(crate) fn ends_waits(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::Timeout { .. }
                | FaultKind::Completion { .. }
                | FaultKind::QueueBroken { .. }
                | FaultKind::GridIncomplete { .. }
                | FaultKind::AggregateStalled { .. }
                | FaultKind::ExitRequested { .. }
        )
    }

    /// Adds what the heap says about the address of a completion error: `complaint` is given the
    /// offset.
    pub(crate) fn locate(&mut self, complaint: impl Fn(u64) -> Option<String>) {
        if let FaultKind::Completion { cause, address, .. } = &mut self.kind
            && let Some(text) = complaint(*address)
        {
            let separator = if cause.is_empty() { ": " } else { "; " };
            cause.push_str(separator);
            cause.push_str(&text);
        }
    }

    /// Adds what the HCA says about a completion error.
    pub(crate) fn annotate(&mut self, text: &str) {
        if let FaultKind::Completion { cause, .. } = &mut self.kind {
            *cause = format!(": {text}");
        }
    }

    /// Returns the QP of a completion error.
    pub(crate) fn failed_qp(&self) -> Option<u32> {
        match self.kind {
            FaultKind::Completion { qpn, .. } => Some(qpn),
            _ => None,
        }
    }

    /// Returns whether the work request was flushed because one before it had failed.
    pub(crate) fn is_flushed(&self) -> bool {
        let flushed = syndrome(Syndrome::WrFlush as u32);
        matches!(&self.kind, FaultKind::Completion { syndrome: what, .. } if *what == flushed)
    }

    /// Names the first error in the place of a flush, from what the cards have counted: each
    /// syndrome with the number of its errors.
    pub(crate) fn name_first(&mut self, counted: &[(Syndrome, u32)]) {
        let FaultKind::Completion { syndrome: what, cause, .. } = &mut self.kind else { return };
        match counted {
            [] => {}
            [(only, count)] => {
                *what = syndrome(*only as u32);
                *cause = format!(
                    ": the card counted {count} such error{}; the work request named here is one that was flushed afterwards",
                    if *count == 1 { "" } else { "s" }
                );
            }
            several => {
                let each = several.iter().map(|(which, count)| format!("{count} of {}", syndrome(*which as u32)));
                *cause = format!(": the card counted {}", each.collect::<Vec<_>>().join(", "));
            }
        }
    }

    /// Names the work request that failed first. Device code may have seen one that was flushed
    /// after it.
    pub(crate) fn explain(&mut self, why: Cause) {
        if let FaultKind::Completion { wqe_index, opcode: name, address, syndrome: what, cause, .. } = &mut self.kind {
            *wqe_index = why.wqe_index;
            *name = opcode(why.opcode.into());
            *address = why.address;
            *what = syndrome(why.syndrome.into());
            *cause = format!(": {}", why.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_error_names_peer_queue_pair_address_and_syndrome() {
        let record = ErrorRecord {
            code: 5,
            op: 12,
            pe: 3,
            qpn: 0x41,
            wqe_index: 70_001,
            address: 0x1000,
            length: 8,
            syndrome: 0x13,
            vendor_syndrome: 0x88,
            block: [1, 0, 0],
            thread: [31, 0, 0],
            team: abi::TEAM_INVALID,
            reserved0: 0,
        };
        let text =
            DeviceFault::decode(&record, &abi::State { my_pe: 2, n_pes: 4, ..abi::State::default() }).to_string();
        for part in [
            "PE 2",
            "block (1, 0, 0), thread (31, 0, 0)",
            "quiet",
            "RDMA WRITE to PE 3",
            "QP 0x41",
            "WQE 70001",
            "0x1000",
            "remote access error (0x13)",
            "0x88",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_wait_names_the_variable_and_what_it_saw() {
        let state = abi::State {
            my_pe: 1,
            n_pes: 2,
            timeout_ns: 3_000_000_000,
            heap_base: 0x7000_0000,
            heap_bytes: 1 << 20,
            ..abi::State::default()
        };
        let record = |syndrome, seen, wanted, variables| ErrorRecord {
            code: 4,
            op: 11,
            pe: 1,
            address: 0x7000_1040,
            length: wanted,
            wqe_index: seen,
            syndrome,
            vendor_syndrome: variables,
            team: abi::TEAM_INVALID,
            ..ErrorRecord::default()
        };
        let text = |record: &ErrorRecord| DeviceFault::decode(record, &state).to_string();
        let signal = text(&record(8 << 8, 3, u64::MAX, 1));
        assert!(
            signal.contains(
                "the wait did not end within 3000 ms: the variable of 8 bytes at heap offset 0x1040 is 3 and has to become equal to \
                 18446744073709551615;"
            ),
            "{signal}"
        );
        assert!(signal.contains("OXSHMEM_TIMEOUT") && !signal.contains("for PE 1") && !signal.contains("0x70001040"));
        let signed = text(&record(1 << 16 | 4 << 8 | 5, 0xffff_fffe, -1i64 as u64, 7));
        assert!(
            signed.contains("none of 7 variables") && signed.contains("is -2 and has to become at least -1"),
            "{signed}"
        );
        // Other waits name the PE that they are for.
        let other = text(&ErrorRecord { pe: 0, address: 0x10, ..record(0, 0, 0, 0) });
        assert!(other.contains("the wait did not end within 3000 ms, waiting at address 0x10 for PE 0;"), "{other}");
    }

    #[test]
    fn calls_that_do_not_fit_name_team_collective_and_pe() {
        let decode = |theirs: u64, mine: u64| {
            let record = ErrorRecord {
                code: 9,
                op: 21,
                pe: 1,
                address: mine,
                length: theirs,
                team: 0x105,
                ..ErrorRecord::default()
            };
            DeviceFault::decode(&record, &abi::State { n_pes: 4, ..abi::State::default() }).to_string()
        };
        let mine = 7 << 32 | 5 << 28 | 99;
        for (theirs, part) in [
            (7 << 32 | 3 << 28 | 99, "PE 1 called broadcast"),
            (7 << 32 | 5 << 28 | 98, "PE 1 called fcollect with another size"),
            (7 << 32 | 1, "PE 1 made a call that is refused"),
            (9 << 32 | 5 << 28 | 99, "PE 1 is 2 collectives ahead"),
        ] {
            let text = decode(theirs, mine);
            assert!(text.contains("fcollect of team 0x105") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn codes_of_another_version_are_shown_as_they_are() {
        let record = ErrorRecord { code: 99, op: 99, team: abi::TEAM_INVALID, ..ErrorRecord::default() };
        assert!(
            DeviceFault::decode(&record, &abi::State::default())
                .to_string()
                .contains("unknown operation: unknown error code 99")
        );
    }

    #[test]
    fn a_flush_is_replaced_by_what_the_card_counted() {
        let flushed = || {
            let record = ErrorRecord { code: 5, syndrome: 5, pe: 1, ..ErrorRecord::default() };
            let fault = DeviceFault::decode(&record, &abi::State { n_pes: 2, ..abi::State::default() });
            assert!(fault.is_flushed());
            fault
        };
        let named = |counted: &[(Syndrome, u32)]| {
            let mut fault = flushed();
            fault.name_first(counted);
            (fault.is_flushed(), fault.to_string())
        };
        let (is_flushed, text) = named(&[(Syndrome::RemoteAccess, 1)]);
        assert!(!is_flushed && text.contains("with remote access error (0x13)"), "{text}");
        assert!(text.contains(": the card counted 1 such error; the work request named here"), "{text}");
        let (is_flushed, text) = named(&[(Syndrome::RemoteAccess, 2), (Syndrome::LocalProtection, 1)]);
        assert!(
            is_flushed && text.contains("counted 2 of remote access error (0x13), 1 of local protection"),
            "{text}"
        );
        assert_eq!(named(&[]).1, flushed().to_string());
    }
}
