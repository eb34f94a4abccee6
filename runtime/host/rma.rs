//! Puts, gets, signals, ordering and barriers from the host.

use std::ops::Range;

use bytemuck::Pod;

use super::SymmetricSlice;
use crate::Result;
use crate::pe::{Pe, STAGING_BYTES};

/// How a signal is updated; numbered as in `signal.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum SignalOp {
    /// Replace it.
    Set = 9,
    /// Add to it.
    Add = 10,
}

/// A comparison; numbered as in `wait.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Compare {
    /// ==
    Eq = 0,
    /// !=
    Ne = 1,
    /// >
    Gt = 2,
    /// <=
    Le = 3,
    /// <
    Lt = 4,
    /// >=
    Ge = 5,
}

/// Threads that a host operation copies with.
pub(super) const THREADS: u32 = 32;

/// Every call returns when its local side is done: `data` may be reused, or the result is complete. What was put is delivered at the
/// peer after [`quiet`](Pe::quiet) or [`barrier_all`](Pe::barrier_all).
///
/// # Errors
/// A range outside the slice, or what [`Pe::synchronize`] reports.
impl Pe {
    /// Copies `data` to elements `at..` of `dst` at `pe`.
    pub fn put<T: Pod>(&self, dst: &SymmetricSlice<T>, at: usize, data: &[T], pe: usize) -> Result<()> {
        let target = dst.range_address(at..at.saturating_add(data.len()))?;
        self.put_bytes(target, bytemuck::cast_slice(data), pe)
    }

    /// Copies `bytes` to the symmetric address `target` at `pe`.
    pub(super) fn put_bytes(&self, target: u64, bytes: &[u8], pe: usize) -> Result<()> {
        for (piece, part) in bytes.chunks(STAGING_BYTES).enumerate() {
            self.stage(part)?;
            let to = target + (piece * STAGING_BYTES) as u64;
            let args = (to, self.staging_address(), part.len() as u64, self.peer(pe));
            // SAFETY: the kernel reads the staging buffer, and checks the target itself.
            unsafe { self.run_host_kernel("oxshmem_host_put", THREADS, &args)? };
        }
        Ok(())
    }

    /// As [`put`](Pe::put), then updates element `index` of `signal` at `pe`: whoever sees the signal sees the data.
    #[allow(clippy::too_many_arguments)]
    pub fn put_signal<T: Pod>(
        &self,
        dst: &SymmetricSlice<T>,
        at: usize,
        data: &[T],
        signal: &SymmetricSlice<u64>,
        index: usize,
        value: u64,
        op: SignalOp,
        pe: usize,
    ) -> Result<()> {
        let update = (signal.element_address(index)?, value, op);
        let target = dst.range_address(at..at.saturating_add(data.len()))?;
        self.put_bytes_signal(target, bytemuck::cast_slice(data), update, pe)
    }

    /// [`put_bytes`](Pe::put_bytes), and a signal behind it: its address, value and operator.
    pub(super) fn put_bytes_signal(
        &self,
        target: u64,
        bytes: &[u8],
        (signal, value, op): (u64, u64, SignalOp),
        pe: usize,
    ) -> Result<()> {
        let last = bytes.len().saturating_sub(1) / STAGING_BYTES * STAGING_BYTES;
        let (head, tail) = bytes.split_at(last);
        self.put_bytes(target, head, pe)?;
        self.stage(tail)?;
        let args =
            (target + last as u64, self.staging_address(), tail.len() as u64, signal, value, op as i32, self.peer(pe));
        // SAFETY: as in `put_bytes`.
        unsafe { self.run_host_kernel("oxshmem_host_put_signal", THREADS, &args) }
    }

    /// Elements `range` of `src` at `pe`.
    pub fn get<T: Pod>(&self, src: &SymmetricSlice<T>, range: Range<usize>, pe: usize) -> Result<Vec<T>> {
        let source = src.range_address(range.clone())?;
        let mut data = vec![T::zeroed(); range.len()];
        self.get_bytes(source, bytemuck::cast_slice_mut(&mut data), pe)?;
        Ok(data)
    }

    /// Copies what is at the symmetric address `source` at `pe` to `bytes`.
    pub(super) fn get_bytes(&self, source: u64, bytes: &mut [u8], pe: usize) -> Result<()> {
        for (piece, part) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            let from = source + (piece * STAGING_BYTES) as u64;
            let args = (self.staging_address(), from, part.len() as u64, self.peer(pe));
            // SAFETY: the kernel writes the staging buffer, and checks the source itself.
            unsafe { self.run_host_kernel("oxshmem_host_get", THREADS, &args)? };
            self.unstage(part)?;
        }
        Ok(())
    }

    /// Copies `data` to elements `at..` of the own copy of `dst`.
    pub fn write_local<T: Pod>(&self, dst: &SymmetricSlice<T>, at: usize, data: &[T]) -> Result<()> {
        let address = dst.range_address(at..at.saturating_add(data.len()))?;
        // SAFETY: the range is inside an allocation of the own heap.
        Ok(unsafe { self.device().write(address, bytemuck::cast_slice(data)) }?)
    }

    /// Elements `range` of the own copy of `src`.
    pub fn read_local<T: Pod>(&self, src: &SymmetricSlice<T>, range: Range<usize>) -> Result<Vec<T>> {
        let address = src.range_address(range.clone())?;
        let mut data = vec![T::zeroed(); range.len()];
        // SAFETY: as in `write_local`.
        unsafe { self.device().read(address, bytemuck::cast_slice_mut(&mut data)) }?;
        Ok(data)
    }

    /// Updates element `index` of `signal` at `pe`, after the host's earlier puts to that PE.
    pub fn signal(
        &self,
        signal: &SymmetricSlice<u64>,
        index: usize,
        value: u64,
        op: SignalOp,
        pe: usize,
    ) -> Result<()> {
        let args = (signal.element_address(index)?, value, op as i32, self.peer(pe));
        // SAFETY: the kernel checks the signal itself.
        unsafe { self.run_host_kernel("oxshmem_host_signal", 1, &args) }
    }

    /// Waits until the own element `index` of `signal` compares true with `value`; the value that did.
    pub fn signal_wait_until(
        &self,
        signal: &SymmetricSlice<u64>,
        index: usize,
        cmp: Compare,
        value: u64,
    ) -> Result<u64> {
        let args = (signal.element_address(index)?, cmp as i32, value, self.staging_address());
        // SAFETY: the kernel reads the signal and writes the staging buffer.
        unsafe { self.run_host_kernel("oxshmem_host_signal_wait", 1, &args)? };
        self.staged_word()
    }

    /// Completes all of this PE's earlier operations, the host's and those of kernels launched before: puts are delivered and visible.
    pub fn quiet(&self) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.run_host_kernel("oxshmem_host_quiet", 1, &()) }
    }

    /// Orders the host's operations to each PE: those before the call are delivered before those after it. They share one queue pair per
    /// peer, or are loads and stores, so nothing has to be waited for.
    pub fn fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// [`quiet`](Pe::quiet) on every PE, then a barrier among all. Collective.
    pub fn barrier_all(&self) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.run_host_kernel("oxshmem_host_barrier_all", THREADS, &()) }
    }

    /// A barrier among all PEs that completes no operation. Collective.
    pub fn sync_all(&self) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.run_host_kernel("oxshmem_host_sync_all", THREADS, &()) }
    }
}
