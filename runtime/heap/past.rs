//! Heaps of PEs that have been finalized: their addresses stay reserved for some time, so that a
//! pointer into one of them is told from a pointer into anything else.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::device::KeptAddresses;

use super::allocation::AllocationInfo;
use super::error::AddressProblem;

/// The most heaps whose addresses are kept.
const KEPT: usize = 64;
/// The most addresses that are kept, of more than one heap: a sixteenth of those that a process has
/// on x86-64.
const KEPT_BYTES: u64 = 8 << 40;

static PAST: Mutex<Vec<PastHeap>> = Mutex::new(Vec::new());

/// Addresses of a heap that is gone.
#[derive(Debug)]
struct PastHeap {
    _kept: KeptAddresses,
    /// Those of all heaps of the node.
    addresses: Range<u64>,
    /// First address of this PE's heap.
    base: u64,
    allocations: Vec<AllocationInfo>,
}

/// Keeps the addresses of a heap, and of its node's other heaps, from being given to anything else
/// until [`KEPT`] heaps or [`KEPT_BYTES`] of addresses have followed. `base` is the first address
/// of this PE's heap among them, and `allocations` are those that were live.
pub(super) fn keep(kept: KeptAddresses, addresses: Range<u64>, base: u64, allocations: Vec<AllocationInfo>) {
    let mut past = PAST.lock().unwrap_or_else(PoisonError::into_inner);
    past.push(PastHeap { _kept: kept, addresses, base, allocations });
    let bytes = |past: &[PastHeap]| past.iter().map(|heap| heap.addresses.end - heap.addresses.start).sum::<u64>();
    while past.len() > 1 && (past.len() > KEPT || bytes(&past) > KEPT_BYTES) {
        past.remove(0);
    }
}

/// Returns what is wrong with an address if it lies in an earlier heap.
pub(super) fn problem(address: u64) -> Option<AddressProblem> {
    let past = PAST.lock().unwrap_or_else(PoisonError::into_inner);
    let heap = past.iter().find(|heap| heap.addresses.contains(&address))?;
    let within = |info: &&AllocationInfo| {
        let start = heap.base + info.offset;
        (start..start + info.bytes.max(1)).contains(&address)
    };
    Some(AddressProblem::EarlierHeap { allocation: heap.allocations.iter().find(within).copied().map(Box::new) })
}
