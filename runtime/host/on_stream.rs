//! The host's operations on a stream: they are queued, run in order with the stream's other work, and report errors when the stream is
//! synchronised.

use std::ops::Range;

use super::rma::{Compare, SignalOp, THREADS};
use super::{SymmetricSlice, mem};
use crate::Result;
use crate::device::Stream;
use crate::pe::Pe;

/// Every call queues its operation on `stream` and returns at once. There it means what the call without `_on_stream` means: when the
/// stream's next work begins, the operation is locally complete. Errors of device code are reported by
/// [`synchronize_stream`](Pe::synchronize_stream) and [`synchronize`](Pe::synchronize).
///
/// # Errors
/// A range outside the slice, a stream that is not of this PE's device, or a launch that the device refuses; nothing was queued.
impl Pe {
    /// Copies elements `from` of the own copy of `src` to elements `at..` of `dst` at `pe`.
    pub fn put_on_stream<T>(
        &self,
        dst: &SymmetricSlice<T>,
        at: usize,
        src: &SymmetricSlice<T>,
        from: Range<usize>,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        let target = dst.range_address(at..at.saturating_add(from.len()))?;
        let bytes = mem::bytes_of::<T>(from.len());
        let source = src.range_address(from)?;
        // SAFETY: both are memory of the heap, which stays until it is freed, which may be done only after the operation.
        unsafe { self.queue_put(target, source, bytes, pe, stream) }
    }

    /// Copies elements `from` of `src` at `pe` to elements `at..` of the own copy of `dst`.
    pub fn get_on_stream<T>(
        &self,
        dst: &SymmetricSlice<T>,
        at: usize,
        src: &SymmetricSlice<T>,
        from: Range<usize>,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        let target = dst.range_address(at..at.saturating_add(from.len()))?;
        let bytes = mem::bytes_of::<T>(from.len());
        let source = src.range_address(from)?;
        // SAFETY: as in `put_on_stream`.
        unsafe { self.queue_get(target, source, bytes, pe, stream) }
    }

    /// As [`put_on_stream`](Pe::put_on_stream), then updates element `index` of `signal` at `pe`: whoever sees the signal sees the data.
    #[allow(clippy::too_many_arguments)]
    pub fn put_signal_on_stream<T>(
        &self,
        dst: &SymmetricSlice<T>,
        at: usize,
        src: &SymmetricSlice<T>,
        from: Range<usize>,
        signal: &SymmetricSlice<u64>,
        index: usize,
        value: u64,
        op: SignalOp,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        let target = dst.range_address(at..at.saturating_add(from.len()))?;
        let bytes = mem::bytes_of::<T>(from.len());
        let source = src.range_address(from)?;
        let update = (signal.element_address(index)?, value, op);
        // SAFETY: as in `put_on_stream`.
        unsafe { self.queue_put_signal(target, source, bytes, update, pe, stream) }
    }

    /// Updates element `index` of `signal` at `pe`, after the puts to that PE that were put on the stream before.
    pub fn signal_on_stream(
        &self,
        signal: &SymmetricSlice<u64>,
        index: usize,
        value: u64,
        op: SignalOp,
        pe: usize,
        stream: &Stream,
    ) -> Result<()> {
        let args = (signal.element_address(index)?, value, op as i32, self.peer(pe));
        // SAFETY: the kernel checks the signal itself.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_signal", 1, args) }
    }

    /// What follows on the stream begins when the own element `index` of `signal` compares true with `value`; or at the wait's deadline,
    /// with an error.
    pub fn signal_wait_until_on_stream(
        &self,
        signal: &SymmetricSlice<u64>,
        index: usize,
        cmp: Compare,
        value: u64,
        stream: &Stream,
    ) -> Result<()> {
        let nowhere = 0u64;
        let args = (signal.element_address(index)?, cmp as i32, value, nowhere);
        // SAFETY: the kernel reads the signal.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_signal_wait", 1, args) }
    }

    /// What follows on the stream begins when all operations of this PE that happened before are complete: those of the stream's earlier
    /// work, and of work that it has waited for.
    pub fn quiet_on_stream(&self, stream: &Stream) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_quiet", 1, ()) }
    }

    /// [`quiet_on_stream`](Pe::quiet_on_stream) on every PE, then a barrier among all. Collective: barriers and syncs of a PE come one after
    /// the other, on one stream or on streams that wait for each other, in the same order on every PE.
    pub fn barrier_all_on_stream(&self, stream: &Stream) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_barrier_all", THREADS, ()) }
    }

    /// A barrier among all PEs that completes no operation. Collective, as [`barrier_all_on_stream`](Pe::barrier_all_on_stream).
    pub fn sync_all_on_stream(&self, stream: &Stream) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_sync_all", THREADS, ()) }
    }
}
