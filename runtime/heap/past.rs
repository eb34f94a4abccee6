//! Heaps of PEs that have been finalized: their addresses stay reserved for some time, so that a
//! pointer into one of them is told from a pointer into anything else.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use oxshmem_system::words::native;

use super::allocation::AllocationInfo;
use super::error::AddressProblem;

/// Heaps whose addresses are kept; the oldest is given back for the next.
const KEPT: usize = 4;

static PAST: Mutex<Vec<PastHeap>> = Mutex::new(Vec::new());

/// Addresses of a heap that is gone. Nothing is mapped there but inaccessible pages.
#[derive(Debug)]
struct PastHeap {
    /// First address of all heaps of the node.
    first: u64,
    bytes: u64,
    /// First address of this PE's heap.
    base: u64,
    allocations: Vec<AllocationInfo>,
}

impl Drop for PastHeap {
    fn drop(&mut self) {
        // SAFETY: the mapping is this record's, and nothing refers to it.
        let unmapped = unsafe { munmap(self.first as *mut c_void, native(self.bytes)) };
        if let Err(error) = unmapped {
            tracing::debug!(%error, "the addresses of an earlier heap cannot be given back");
        }
    }
}

/// Keeps the `bytes` addresses from `first` on, which have just been unmapped, from being given to
/// anything else. `base` is the first address of this PE's heap among them, and `allocations` are
/// those that were live.
pub(super) fn keep(first: u64, bytes: u64, base: u64, allocations: Vec<AllocationInfo>) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the flag refuses addresses that are in use.
    let mapped = unsafe { mmap_anonymous(first as *mut c_void, native(bytes), ProtFlags::empty(), flags) };
    match mapped {
        Ok(at) if at as u64 == first => {}
        Ok(elsewhere) => {
            // A kernel before Linux 4.17 ignores the flag.
            // SAFETY: the mapping was just made, and nothing refers to it.
            let _ = unsafe { munmap(elsewhere, native(bytes)) };
            return;
        }
        // Another thread has taken some of the addresses.
        Err(_) => return,
    }
    let mut past = PAST.lock().unwrap_or_else(PoisonError::into_inner);
    if past.len() == KEPT {
        past.remove(0);
    }
    past.push(PastHeap { first, bytes, base, allocations });
}

/// Returns what is wrong with an address if it lies in an earlier heap.
pub(super) fn problem(address: u64) -> Option<AddressProblem> {
    let past = PAST.lock().unwrap_or_else(PoisonError::into_inner);
    let heap = past.iter().find(|heap| (heap.first..heap.first + heap.bytes).contains(&address))?;
    let within = |info: &&AllocationInfo| {
        let start = heap.base + info.offset;
        (start..start + info.bytes.max(1)).contains(&address)
    };
    Some(AddressProblem::EarlierHeap { allocation: heap.allocations.iter().find(within).copied().map(Box::new) })
}
