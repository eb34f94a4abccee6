//! The kinds of errors that device code reports, and their texts.

use std::fmt;

use crate::abi::{self, ErrorRecord};
use crate::config::ByteSize;

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
    pub(super) fn decode(record: &ErrorRecord) -> Option<Self> {
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

/// Returns why a member has left.
fn departure(awaited: Option<i32>) -> String {
    match awaited {
        Some(pe) => format!("while it waited for PE {pe}; if PE {pe} is only slow, raise OXSHMEM_TIMEOUT"),
        None => "by an error of its own, which it reports".to_owned(),
    }
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
