//! Errors of the symmetric heap.

use super::allocation::AllocationInfo;
use crate::aggregate::AggregateError;
use crate::context::ContextError;
use crate::device::DeviceError;

/// What the symmetric heap refused or could not do.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{Error, HeapError};
///
/// let refused = pe.alloc_aligned::<u8>(1, 3);
/// assert!(matches!(refused, Err(Error::Heap(HeapError::Alignment { align: 3, .. }))));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// No room.
    #[error(
        "the symmetric heap is exhausted: {requested} bytes requested (alignment {align}), {free} of {max} bytes free, of \
         which {largest} lie together with that alignment; raise OXSHMEM_HEAP_MAX, now {max}"
    )]
    Exhausted {
        /// Requested bytes.
        requested: u64,
        /// Requested alignment.
        align: u64,
        /// Bytes free in all.
        free: u64,
        /// Bytes of the largest request of this alignment that there is room for.
        largest: u64,
        /// The heap's limit.
        max: u64,
    },
    /// PEs called with different sizes or in a different order.
    #[error(
        "symmetric call differs between PEs: PE {me} calls {mine}, PE {pe} calls {theirs}; all PEs must make the same calls in the same order"
    )]
    Asymmetric {
        /// This PE.
        me: usize,
        /// Its call.
        mine: String,
        /// A PE that called something else.
        pe: usize,
        /// What it called.
        theirs: String,
    },
    /// Not a power of two, or too large.
    #[error("alignment {align} is not a power of two between 1 and {limit}; pass a power of two in that range")]
    Alignment {
        /// The requested alignment.
        align: u64,
        /// The limit.
        limit: u64,
    },
    /// Free of a part of an allocation.
    #[error("free of {address:#x}, which is inside {allocation}; only the whole allocation can be freed")]
    NotWhole {
        /// The address.
        address: u64,
        /// The allocation that it is in.
        allocation: Box<AllocationInfo>,
    },
    /// The program's side of an on-stream operation is pageable host memory.
    #[error(
        "{bytes} bytes at {address:#x} are not memory that the GPU can access; for operations on a stream use memory of the symmetric heap, of \
         the GPU (cudaMalloc), or page-locked memory (cudaMallocHost)"
    )]
    NotOnDevice {
        /// The address.
        address: u64,
        /// Length of the transfer.
        bytes: usize,
    },
    /// A strided transfer with an invalid stride or an invalid element size.
    #[error(
        "stride {stride} or element size {element_bytes} is invalid; strides are at least 1, elements have 1, 2, 4, 8 or 16 bytes"
    )]
    Strided {
        /// The smaller stride, in elements.
        stride: usize,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// A word of another size than words have.
    #[error("a word of {bytes} bytes; words have 1, 2, 4 or 8 bytes")]
    Word {
        /// Bytes of the word.
        bytes: usize,
    },
    /// Elements, given by an address, that are not aligned to their size.
    #[error(
        "the address {address:#x} of elements is not a multiple of their {element_bytes} bytes; pass one that is, or copy bytes"
    )]
    Misaligned {
        /// The address, of either side of a transfer.
        address: u64,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// A wait for variables of a type that no wait accepts.
    #[error(
        "cannot wait for variables of type {element}; the valid types are int16 (1), int32 (2), int64 (3), uint16 (5), uint32 (6) and uint64 (7)"
    )]
    NoVariable {
        /// The type's number.
        element: u32,
    },
    /// A context, as an argument of a kernel, that cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// An aggregating context, as an argument of a kernel, that cannot be used.
    #[error(transparent)]
    Aggregate(#[from] AggregateError),
    /// A part that reaches outside its slice.
    #[error("elements {first}..{last} are outside a slice of {len} elements in {allocation}")]
    OutOfRange {
        /// First element of the part.
        first: usize,
        /// After its last element.
        last: usize,
        /// Elements of the slice.
        len: usize,
        /// The allocation that the slice is in.
        allocation: Box<AllocationInfo>,
    },
    /// One side of a transfer has fewer elements than the call needs. Nothing was transferred.
    #[error("{side} has {len} elements, and the call needs {needed}{}",
        allocation.as_ref().map(|info| format!("; it is in {info}")).unwrap_or_default())]
    TooShort {
        /// `dst` or `src`.
        side: &'static str,
        /// Elements that the call needs.
        needed: usize,
        /// Elements of the slice.
        len: usize,
        /// The allocation that it is in. `None` for memory of the host.
        allocation: Option<Box<AllocationInfo>>,
    },
    /// A call that acts on one element was given another number of them.
    #[error("{call} acts on one element, and was given {len} in {allocation}; pass `slice.at(index)`")]
    NotOneElement {
        /// The call.
        call: &'static str,
        /// Elements of the slice.
        len: usize,
        /// The allocation that the slice is in.
        allocation: Box<AllocationInfo>,
    },
    /// Free of memory that is lent to cudarc.
    #[error("{allocation} is lent to cudarc; drop every `Lent` of it before Pe::free")]
    Lent {
        /// The allocation.
        allocation: Box<AllocationInfo>,
    },
    /// Free of memory that an aggregating context uses.
    #[error("{allocation} has the rings of aggregating context {number}; destroy that before Pe::free")]
    Aggregates {
        /// The allocation.
        allocation: Box<AllocationInfo>,
        /// The number of the context.
        number: u32,
    },
    /// Memory of the heap where memory of the program is needed.
    #[error("{allocation} is not memory of the program; give it back with Pe::free")]
    NotOfProgram {
        /// The allocation.
        allocation: Box<AllocationInfo>,
    },
    /// Free of memory of the program.
    #[error("{allocation} is memory of the program; give it back with Pe::unregister_symmetric")]
    OfProgram {
        /// The allocation.
        allocation: Box<AllocationInfo>,
    },
    /// A slice of an allocation that was freed.
    #[error("the slice belongs to {allocation}, which was freed; a slice can be used until Pe::free")]
    Freed {
        /// The allocation.
        allocation: Box<AllocationInfo>,
    },
    /// A slice that a PE made that has been finalized.
    #[error("the slice belongs to {allocation} of a PE that has been finalized; allocate it again with this PE")]
    EarlierPe {
        /// The allocation.
        allocation: Box<AllocationInfo>,
    },
    /// An address that is not symmetric memory of this PE.
    #[error("{}{bytes} bytes at {address:#x}: {problem}", side.map(|side| format!("{side}: ")).unwrap_or_default())]
    Address {
        /// Which side of a call has the address, where there are two: `dst` or `src`.
        side: Option<&'static str>,
        /// The address.
        address: u64,
        /// Length of the access.
        bytes: u64,
        /// What is wrong.
        problem: AddressProblem,
    },
    /// A PE has no memory to grow the heap with. No PE has grown it.
    #[error("PE {pe} cannot add memory to the symmetric heap: {reason}")]
    NoMemory {
        /// The first PE that could not.
        pe: usize,
        /// What its device said.
        reason: String,
    },
    /// A peer's memory cannot be mapped here.
    #[error("the heap memory of PE {pe} cannot be mapped: {source}")]
    Map {
        /// The peer.
        pe: usize,
        /// What this PE's device said.
        source: Box<DeviceError>,
    },
    /// The connection to a PE of the node broke or fell silent while memory was exchanged.
    #[error("exchange of heap memory with PE {pe}: {what}: {source}")]
    Peer {
        /// The peer.
        pe: usize,
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Why an address is not symmetric memory of this PE.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{AddressProblem, Error, HeapError};
///
/// let Err(Error::Heap(HeapError::Address { problem, .. })) = pe.free_at(64) else { panic!() };
/// assert!(matches!(problem, AddressProblem::OutsideHeap { .. }));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressProblem {
    /// It was allocated and then freed.
    #[error("they are in {0}, which was freed")]
    Freed(Box<AllocationInfo>),
    /// It begins in an allocation and reaches beyond it.
    #[error("they reach beyond {allocation}, which has {room} bytes from there on")]
    Beyond {
        /// The allocation.
        allocation: Box<AllocationInfo>,
        /// Bytes from the address to the end of the allocation.
        room: u64,
    },
    /// It is in the heap and was not allocated.
    #[error("they are in no allocation of the symmetric heap{}", nearest_text(nearest.as_deref()))]
    Unallocated {
        /// The nearest live allocation.
        nearest: Option<Box<AllocationInfo>>,
    },
    /// It is not in the heap.
    #[error("they are outside the symmetric heap, which is {heap_bytes} bytes at {base:#x}{}", nearest_text(nearest.as_deref()))]
    OutsideHeap {
        /// First address of this PE's heap.
        base: u64,
        /// Addresses of the heap.
        heap_bytes: u64,
        /// The nearest live allocation.
        nearest: Option<Box<AllocationInfo>>,
    },
    /// It is in the heap of a PE that this process had before.
    #[error("they are in the symmetric heap of a PE that has been finalized{}",
        allocation.as_ref().map(|info| format!(", in {info}")).unwrap_or_default())]
    EarlierHeap {
        /// The allocation that it was in.
        allocation: Option<Box<AllocationInfo>>,
    },
    /// It is not aligned for its type.
    #[error("the address is not aligned to {align} bytes; it is in {allocation}")]
    Misaligned {
        /// The alignment of the type.
        align: usize,
        /// The allocation that it is in.
        allocation: Box<AllocationInfo>,
    },
}

fn nearest_text(nearest: Option<&AllocationInfo>) -> String {
    nearest.map(|info| format!("; the nearest is {info}")).unwrap_or_default()
}
