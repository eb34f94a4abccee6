//! Operations between PEs, each once: on the PE, which waits, or on a stream, which does not.

use bytemuck::Pod;

use oxshmem_system::words::{const32, native};

use super::collectives::{
    Reducible, checked, defined, equal_sides, meet, parts, queue, refusable, sides, span, stride,
};
use super::issuer::{begins, sealed};
use super::sides::{Destination, Local, LocalMut, Source};
use super::transfer::{self, Put};
use crate::Result;
use crate::abi::{Call, Collective, ReduceOp};
use crate::heap::LocalPlace;
use crate::heap::error::HeapError;
use crate::pe::Pe;
use crate::profile::host::{Operation, Subject};
use crate::slice::{Compare, Signal, SignalUpdate, Strided, Symmetric, SymmetricView, bytes_of};
use crate::stream::OnStream;
use crate::team::Team;
use crate::team::choice::Size;

/// Operations between PEs: transfers, signals, ordering, barriers, and collectives over teams.
///
/// Implemented by what issues them:
///
/// * [`Pe`]: the call returns when its local side is done. Data of the host may be reused, or is
///   there; what was put is delivered at the peer after [`quiet`](Self::quiet) or
///   [`barrier_all`](Self::barrier_all).
/// * [`OnStream`], made by [`Pe::on`]: the call queues the operation on a stream and returns at
///   once. When the stream's next work begins, the operation is locally complete. Its data is
///   symmetric or device memory. Errors of device code are reported by [`OnStream::synchronize`]
///   and [`Pe::synchronize`].
///
/// Peers are numbers of PEs. Where a slice is longer than a call needs, the call uses its first
/// elements.
///
/// # Errors
/// Every call: a slice that is stale, out of range or too short, a stream or team of an earlier PE,
/// a launch that the device refuses; then nothing was queued. On a [`Pe`] also what
/// [`Pe::synchronize`] reports.
///
/// # Example
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let next = (pe.my_pe() + 1) % pe.n_pes();
/// let (inbox, outbox) = (pe.alloc::<i32>(4)?, pe.alloc::<i32>(4)?);
/// pe.put(&inbox, &[1, 2, 3, 4], next)?; // waits
///
/// let stream = pe.create_stream()?;
/// let on = pe.on(&stream);
/// on.put(&inbox, outbox.view(..2), next)?; // queues
/// on.barrier_all()?;
/// on.synchronize()?;
/// assert_eq!(pe.read(&inbox)?, [0, 0, 3, 4]);
/// # pe.finalize()
/// # }
/// ```
pub trait Operations: sealed::Issuer {
    /// What [`signal_wait_until`](Self::signal_wait_until) returns: on a [`Pe`] the value that
    /// ended the wait, on a stream nothing.
    ///
    /// ```
    /// use oxshmem::{Compare, Operations};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flag = pe.alloc::<u64>(1)?;
    /// let seen: u64 = pe.signal_wait_until(flag.signal(0), Compare::Eq, 0)?;
    /// # assert_eq!(seen, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    type Seen;

    #[doc(hidden)]
    fn seen(&self) -> Result<Self::Seen>;

    /// Copies all of `src` to the first elements of `dst` at PE `pe`.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let inbox = pe.alloc::<u8>(5)?;
    /// pe.put(inbox.view(1..), b"abc", 0)?;
    /// assert_eq!(pe.read(&inbox)?, b"\0abc\0");
    /// # pe.finalize()
    /// # }
    /// ```
    fn put<D: Symmetric>(&self, dst: D, src: impl Source<Self, Element = D::Element>, pe: usize) -> Result<()> {
        let own = self.issuing_pe();
        let dst = dst.into_view();
        let src = src.source(self)?;
        let target = first_bytes(own, &dst, src.bytes())?;
        let _call = begins(self, Operation::Put, Subject::Peer(pe), src.bytes());
        match src {
            Local::Host(data) => own.put_bytes(target, data, pe),
            Local::Device(source, bytes, hold) => {
                // SAFETY: the source is memory of the device that a slice names, and `hold` keeps
                // until the operation is queued.
                unsafe { own.queue_put(Put::new((target, source), bytes, pe), self.issuing_stream()?) }?;
                drop(hold);
                self.finish()
            }
            Local::Raw(source, bytes) => {
                if is_direct::<Self>(own, source, bytes)? {
                    // SAFETY: the maker of the `RawMemory` has promised that it is readable.
                    unsafe { own.queue_put(Put::new((target, source), bytes as u64, pe), self.issuing_stream()?) }?;
                    return self.finish();
                }
                // SAFETY: as above; on a PE the call ends before the promise does.
                own.put_bytes(target, unsafe { transfer::host_bytes(source, bytes) }, pe)
            }
        }
    }

    /// Copies all of `src` at PE `pe` to the first elements of `dst`, which is here.
    /// [`Pe::get_vec`] returns a vector instead.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let table = pe.alloc::<i64>(100)?;
    /// let mut row = [1; 10];
    /// pe.get(&mut row, table.view(20..30), 0)?;
    /// assert_eq!(row, [0; 10]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn get<S: Symmetric>(
        &self,
        mut dst: impl Destination<Self, Element = S::Element>,
        src: S,
        pe: usize,
    ) -> Result<()> {
        let own = self.issuing_pe();
        let src = src.into_view();
        let (source, len) = src.resolve(own.id())?;
        let bytes = bytes_of::<S::Element>(len);
        let dst = dst.destination(self)?;
        if bytes > dst.bytes() {
            let room = native(dst.bytes() / (size_of::<S::Element>() as u64).max(1));
            return Err(HeapError::TooShort { side: "dst", needed: len, len: room, allocation: None }.into());
        }
        let _call = begins(self, Operation::Get, Subject::Peer(pe), bytes);
        match dst {
            LocalMut::Host(data) => own.get_bytes(source, &mut data[..native(bytes)], pe),
            LocalMut::Device(target, _, hold) => {
                // SAFETY: as in `put`.
                unsafe { own.queue_get((target, source), bytes, pe, self.issuing_stream()?) }?;
                drop(hold);
                self.finish()
            }
            LocalMut::Raw(target, _) => {
                if is_direct::<Self>(own, target, native(bytes))? {
                    // SAFETY: the maker of the `RawMemory` has promised that it is writable.
                    unsafe { own.queue_get((target, source), bytes, pe, self.issuing_stream()?) }?;
                    return self.finish();
                }
                // SAFETY: as above; on a PE the call ends before the promise does.
                own.get_bytes(source, unsafe { transfer::host_bytes_mut(target, native(bytes)) }, pe)
            }
        }
    }

    /// Copies as [`put`](Self::put), then updates a signal at the same PE: a PE that sees the
    /// signal sees the data.
    ///
    /// ```
    /// use oxshmem::{Compare, Operations};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (data, arrived) = (pe.alloc::<f64>(3)?, pe.alloc::<u64>(1)?);
    /// pe.put_signal(&data, &[0.5, 1.5, 2.5], arrived.signal(0).set(1), 0)?;
    /// pe.signal_wait_until(arrived.signal(0), Compare::Eq, 1)?;
    /// assert_eq!(pe.read(&data)?, [0.5, 1.5, 2.5]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn put_signal<D: Symmetric>(
        &self,
        dst: D,
        src: impl Source<Self, Element = D::Element>,
        update: SignalUpdate<'_>,
        pe: usize,
    ) -> Result<()> {
        let own = self.issuing_pe();
        let dst = dst.into_view();
        let update = update.resolve(own.id())?;
        let src = src.source(self)?;
        let target = first_bytes(own, &dst, src.bytes())?;
        let _call = begins(self, Operation::PutSignal, Subject::Peer(pe), src.bytes());
        match src {
            Local::Host(data) => own.put_bytes_signal(target, data, update, pe),
            Local::Device(source, bytes, hold) => {
                // SAFETY: as in `put`.
                unsafe { own.queue_put_signal((target, source), bytes, update, pe, self.issuing_stream()?) }?;
                drop(hold);
                self.finish()
            }
            Local::Raw(source, bytes) => {
                if is_direct::<Self>(own, source, bytes)? {
                    let sides = (target, source);
                    // SAFETY: as in `put`.
                    unsafe { own.queue_put_signal(sides, bytes as u64, update, pe, self.issuing_stream()?) }?;
                    return self.finish();
                }
                // SAFETY: as in `put`.
                own.put_bytes_signal(target, unsafe { transfer::host_bytes(source, bytes) }, update, pe)
            }
        }
    }

    /// Updates a signal at PE `pe`, after the puts to that PE that were issued before, on the same
    /// stream.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flags = pe.alloc::<u64>(2)?;
    /// pe.signal(flags.signal(1).add(40), 0)?;
    /// pe.signal(flags.signal(1).add(2), 0)?;
    /// assert_eq!(pe.read(&flags)?, [0, 42]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn signal(&self, update: SignalUpdate<'_>, pe: usize) -> Result<()> {
        let own = self.issuing_pe();
        let update = update.resolve(own.id())?;
        let _call = begins(self, Operation::SignalOp, Subject::Peer(pe), size_of::<u64>() as u64);
        own.queue_signal(update, pe, self.issuing_stream()?)?;
        self.finish()
    }

    /// Waits until this PE's copy of `signal` compares true with `value`: on a PE the call returns
    /// the value that did, and on a stream what follows begins then. A wait ends with an error at
    /// the deadline, `OXSHMEM_TIMEOUT`.
    ///
    /// ```
    /// use oxshmem::{Compare, Operations};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flag = pe.alloc::<u64>(1)?;
    /// let stream = pe.create_stream()?;
    /// pe.on(&stream).signal_wait_until(flag.signal(0), Compare::Gt, 0)?;
    /// pe.signal(flag.signal(0).set(1), 0)?;
    /// pe.on(&stream).synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    fn signal_wait_until(&self, signal: Signal<'_>, cmp: Compare, value: u64) -> Result<Self::Seen> {
        let own = self.issuing_pe();
        let seen = if Self::WAITS { own.staging_address()? } else { 0 };
        let args = (signal.address(own.id())?, cmp as i32, value, seen);
        let _call = begins(self, Operation::SignalWaitUntil, Subject::Own, 0);
        // SAFETY: the kernel reads the signal, and writes the staging buffer if it is told to.
        unsafe { own.queue_host_kernel(self.issuing_stream()?, "oxshmem_host_signal_wait", 1, args) }?;
        self.finish()?;
        self.seen()
    }

    /// Completes all operations of this PE that were issued before, the host's and those of
    /// kernels: puts are delivered and visible. On a stream these are the operations of the
    /// stream's earlier work, and of work that it has waited for.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let inbox = pe.alloc::<i32>(1)?;
    /// pe.put(&inbox, &[5], 0)?;
    /// pe.quiet()?;
    /// # pe.finalize()
    /// # }
    /// ```
    fn quiet(&self) -> Result<()> {
        let own = self.issuing_pe();
        let _call = begins(self, Operation::Quiet, Subject::Own, 0);
        let stream = self.issuing_stream()?;
        // What a GPU's stream has done by load and store is complete when the stream gets there.
        if own.gpu().is_none() || own.network().is_some() {
            own.queue_quiet_of_numbered(stream)?;
            // SAFETY: the kernel takes no arguments.
            unsafe { own.queue_host_kernel(stream, "oxshmem_host_quiet", 1, ()) }?;
        }
        self.finish()
    }

    /// Calls [`quiet`](Self::quiet), then meets all PEs. Collective: barriers and syncs of a PE
    /// come one after the other, on one stream or on streams that wait for each other, in the same
    /// order on every PE.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// pe.barrier_all()?;
    /// # pe.finalize()
    /// # }
    /// ```
    fn barrier_all(&self) -> Result<()> {
        meet(self, &self.issuing_pe().team_world(), Call::Barrier)
    }

    /// Meets all PEs, and completes no operation. Collective, as
    /// [`barrier_all`](Self::barrier_all).
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// pe.sync_all()?;
    /// # pe.finalize()
    /// # }
    /// ```
    fn sync_all(&self) -> Result<()> {
        meet(self, &self.issuing_pe().team_world(), Call::Sync)
    }

    /// Returns when every member of `team` has entered. Stores of kernels that ended before, to
    /// this PE's heap and to peers by load and store, are visible to all members; it completes no
    /// network operation.
    ///
    /// # Collectives
    /// This and the following calls are made by all members of the team, in the same order, one at
    /// a time for a team. Lengths, sizes and the other numbers are the same on all members (but the
    /// length of `src` in [`collect`](Self::collect)), and slices are those of one allocation at
    /// the same place. `dst` may be `src` only where the call says so. On a [`Pe`] a call returns
    /// when this member's part is done: `dst` holds the result, and `src` may be reused. On
    /// streams, collectives of a team come one after the other: on one stream, or on streams that
    /// wait for each other.
    ///
    /// Members learn of each other's wrong calls, and get an error too; then no `dst` has been
    /// written, unless copy engines carry the call out (`docs/teams.md`), and the team can go on.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// pe.team_sync(&pe.team_world())?;
    /// # pe.finalize()
    /// # }
    /// ```
    fn team_sync(&self, team: &Team) -> Result<()> {
        meet(self, team, Call::Sync)
    }

    /// Calls [`quiet`](Self::quiet), then [`team_sync`](Self::team_sync).
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let stream = pe.create_stream()?;
    /// pe.on(&stream).barrier(&pe.team_node())?;
    /// pe.on(&stream).synchronize()?;
    /// # pe.finalize()
    /// # }
    /// ```
    fn barrier(&self, team: &Team) -> Result<()> {
        meet(self, team, Call::Barrier)
    }

    /// Copies `src` of member `root` to `dst` of every member, `root` included. `dst` may be `src`.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (dst, src) = (pe.alloc::<i32>(2)?, pe.alloc::<i32>(2)?);
    /// pe.write(&src, &[6, 7])?;
    /// pe.broadcast(&pe.team_world(), &dst, &src, 0)?;
    /// assert_eq!(pe.read(&dst)?, [6, 7]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn broadcast<T: Pod>(
        &self,
        team: &Team,
        dst: impl Symmetric<Element = T>,
        src: impl Symmetric<Element = T>,
        root: usize,
    ) -> Result<()> {
        queue(self, team, |handle, own| {
            let src = src.into_view();
            let n = src.len();
            let bytes = bytes_of::<T>(n);
            let size = Size { divisible: Some((Collective::Broadcast, bytes)), total: bytes };
            checked(size, equal_sides(own, (&dst.into_view(), n), (&src, n)), |(dst, src)| {
                (Call::Broadcast as u32, handle, dst, src, refusable(bytes, dst), own.peer(root).into(), 0, 0, 0)
            })
        })
    }

    /// Concatenates `src` of all members, in the team's order, in `dst` of every member. The length
    /// of `src` may differ; that `dst` has room for all of them is checked by device code at the
    /// heap's end alone, so the caller sees to it.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (dst, src) = (pe.alloc::<i32>(9)?, pe.alloc::<i32>(3)?);
    /// pe.write(&src, &[1, 2, 3])?;
    /// pe.collect(&pe.team_world(), &dst, &src)?;
    /// assert_eq!(pe.read(dst.view(..3))?, [1, 2, 3]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn collect<T: Pod>(
        &self,
        team: &Team,
        dst: impl Symmetric<Element = T>,
        src: impl Symmetric<Element = T>,
    ) -> Result<()> {
        queue(self, team, |handle, own| {
            let src = src.into_view();
            let n = src.len();
            let bytes = bytes_of::<T>(n);
            checked(
                Size {
                    divisible: Some((Collective::Collect, bytes)),
                    total: bytes.saturating_mul(team.n_pes() as u64),
                },
                sides(own, (&dst.into_view(), n), (&src, n)),
                |(dst, src)| (Call::Collect as u32, handle, dst, src, refusable(bytes, dst), 0, 0, 0, 0),
            )
        })
    }

    /// Concatenates as [`collect`](Self::collect), with `src` of the same length on all members.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let team = pe.team_world();
    /// let (dst, src) = (pe.alloc::<u8>(4 * team.n_pes())?, pe.alloc::<u8>(4)?);
    /// pe.write(&src, b"here")?;
    /// pe.fcollect(&team, &dst, &src)?;
    /// assert_eq!(pe.read(&dst)?, b"here");
    /// # pe.finalize()
    /// # }
    /// ```
    fn fcollect<T: Pod>(
        &self,
        team: &Team,
        dst: impl Symmetric<Element = T>,
        src: impl Symmetric<Element = T>,
    ) -> Result<()> {
        queue(self, team, |handle, own| {
            let src = src.into_view();
            let n = src.len();
            let (bytes, total) = (bytes_of::<T>(n), parts(n, team.n_pes()));
            let size = Size { divisible: Some((Collective::Fcollect, bytes)), total: bytes_of::<T>(total) };
            checked(size, equal_sides(own, (&dst.into_view(), total), (&src, n)), |(dst, src)| {
                (Call::Fcollect as u32, handle, dst, src, refusable(bytes, dst), 0, 0, 0, 0)
            })
        })
    }

    /// Copies the j-th `n` elements of `src` of member i to the i-th `n` of `dst` of member j.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let team = pe.team_world();
    /// let (dst, src) = (pe.alloc::<i32>(3 * team.n_pes())?, pe.alloc::<i32>(3 * team.n_pes())?);
    /// pe.write(&src, &[1, 2, 3])?;
    /// pe.alltoall(&team, &dst, &src, 3)?;
    /// assert_eq!(pe.read(&dst)?, [1, 2, 3]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn alltoall<T: Pod>(
        &self,
        team: &Team,
        dst: impl Symmetric<Element = T>,
        src: impl Symmetric<Element = T>,
        n: usize,
    ) -> Result<()> {
        queue(self, team, |handle, own| {
            let (bytes, total) = (bytes_of::<T>(n), parts(n, team.n_pes()));
            let sides = equal_sides(own, (&dst.into_view(), total), (&src.into_view(), total));
            let size = Size { divisible: Some((Collective::Alltoall, bytes)), total: bytes_of::<T>(total) };
            checked(size, sides, |(dst, src)| {
                (Call::Alltoall as u32, handle, dst, src, refusable(bytes, dst), 0, 0, 0, 0)
            })
        })
    }

    /// Copies as [`alltoall`](Self::alltoall), elements that lie strides apart. A stride is at
    /// least 1.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (dst, src) = (pe.alloc::<i32>(6)?, pe.alloc::<i32>(3)?);
    /// pe.write(&src, &[1, 2, 3])?;
    /// pe.alltoalls(&pe.team_world(), dst.view(..).step_by(2), src.view(..).step_by(1), 3)?;
    /// assert_eq!(pe.read(&dst)?, [1, 0, 2, 0, 3, 0]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn alltoalls<T: Pod>(&self, team: &Team, dst: Strided<'_, T>, src: Strided<'_, T>, n: usize) -> Result<()> {
        queue(self, team, |handle, own| {
            let total = parts(n, team.n_pes());
            let (dst_needed, src_needed) = (span(total, dst.stride), span(total, src.stride));
            let sides = equal_sides(own, (&dst.view, dst_needed), (&src.view, src_needed));
            let strides = (stride(dst.stride), stride(src.stride));
            let size = Size { divisible: Some((Collective::Alltoalls, bytes_of::<T>(n))), total: bytes_of::<T>(total) };
            checked(size, sides, |(dst, src)| {
                let (n, element) = (refusable(n as u64, dst), const { const32(size_of::<T>()) });
                (Call::Alltoalls as u32, handle, dst, src, n, strides.0, strides.1, element, 0)
            })
        })
    }

    /// Combines `src` of all members, element by element, into `dst` of every member. The result is
    /// the same to the bit on all, and from call to call for the same team and algorithm. `dst` may
    /// be `src`.
    ///
    /// # Errors
    /// Also an operator that is not defined for the type; see [`ReduceOp`].
    ///
    /// ```
    /// use oxshmem::{Operations, ReduceOp};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let sums = pe.alloc::<f64>(2)?;
    /// pe.write(&sums, &[0.5, 2.0])?;
    /// pe.reduce(&pe.team_world(), ReduceOp::Sum, &sums, &sums)?;
    /// assert_eq!(pe.read(&sums)?, [0.5, 2.0]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn reduce<T: Reducible>(
        &self,
        team: &Team,
        op: ReduceOp,
        dst: impl Symmetric<Element = T>,
        src: impl Symmetric<Element = T>,
    ) -> Result<()> {
        queue(self, team, |handle, own| {
            let src = src.into_view();
            let n = src.len();
            let sides = equal_sides(own, (&dst.into_view(), n), (&src, n)).map_err(Into::into);
            let bytes = bytes_of::<T>(n);
            let size = Size { divisible: Some((Collective::Reduce, bytes)), total: bytes };
            checked(size, sides.and_then(|sides| defined::<T>(op, sides)), |(dst, src)| {
                (Call::Reduce as u32, handle, dst, src, refusable(n as u64, dst), 0, 0, T::TYPE as u32, op as u32)
            })
        })
    }

    /// Combines as [`reduce`](Self::reduce), and puts the i-th part of the result, which is as long
    /// as `dst`, into `dst` of member i.
    ///
    /// # Errors
    /// Fails like [`reduce`](Self::reduce).
    ///
    /// ```
    /// use oxshmem::{Operations, ReduceOp};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let team = pe.team_world();
    /// let (dst, src) = (pe.alloc::<u32>(2)?, pe.alloc::<u32>(2 * team.n_pes())?);
    /// pe.write(&src, &[3, 4])?;
    /// pe.reducescatter(&team, ReduceOp::Max, &dst, &src)?;
    /// assert_eq!(pe.read(&dst)?, [3, 4]);
    /// # pe.finalize()
    /// # }
    /// ```
    fn reducescatter<T: Reducible>(
        &self,
        team: &Team,
        op: ReduceOp,
        dst: impl Symmetric<Element = T>,
        src: impl Symmetric<Element = T>,
    ) -> Result<()> {
        queue(self, team, |handle, own| {
            let dst = dst.into_view();
            let n = dst.len();
            let total = parts(n, team.n_pes());
            let sides = equal_sides(own, (&dst, n), (&src.into_view(), total)).map_err(Into::into);
            let size =
                Size { divisible: Some((Collective::Reducescatter, bytes_of::<T>(n))), total: bytes_of::<T>(total) };
            checked(size, sides.and_then(|sides| defined::<T>(op, sides)), |(dst, src)| {
                let n = refusable(n as u64, dst);
                (Call::Reducescatter as u32, handle, dst, src, n, 0, 0, T::TYPE as u32, op as u32)
            })
        })
    }
}

impl Operations for Pe {
    type Seen = u64;
    fn seen(&self) -> Result<u64> {
        self.staged_word()
    }
}

impl Operations for OnStream<'_> {
    type Seen = ();
    fn seen(&self) -> Result<()> {
        Ok(())
    }
}

/// Returns the address of the first `bytes` bytes of `dst`.
fn first_bytes<T>(own: &Pe, dst: &SymmetricView<'_, T>, bytes: u64) -> Result<u64, HeapError> {
    let needed = bytes.checked_div(size_of::<T>() as u64).unwrap_or(0);
    dst.first(own.id(), usize::try_from(needed).unwrap_or(usize::MAX), "dst")
}

/// Returns whether kernels use the program's side of a transfer as it is. Other memory passes
/// through the staging buffer, which a stream has no use for.
fn is_direct<I: sealed::Issuer + ?Sized>(own: &Pe, address: u64, bytes: usize) -> Result<bool> {
    let place = own.locate(address, bytes as u64)?;
    if I::WAITS {
        let on_gpu = bytes != 0 && own.gpu().is_some() && own.device().is_accessible(address, bytes as u64);
        return Ok(place == LocalPlace::Heap || on_gpu || own.is_registered(address, bytes));
    }
    // A kernel would fault on other memory, and with that lose the GPU.
    if bytes == 0 || place != LocalPlace::Outside || own.device().is_accessible(address, bytes as u64) {
        return Ok(true);
    }
    Err(HeapError::NotOnDevice { address, bytes }.into())
}
