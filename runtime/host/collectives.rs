//! Collectives over a team from the host: small kernels of one block, on the PE's own stream or another one.

use bytemuck::{Pod, Zeroable};

use super::SymmetricSlice;
use super::mem::bytes_of;
use crate::Result;
use crate::abi::{Call, ReduceOp, Type};
use crate::device::Stream;
use crate::heap::HeapError;
use crate::pe::Pe;
use crate::team::{Team, TeamError};

/// IEEE 754 binary16, by its bits: an element of [`Pe::reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Half(pub u16);

/// The upper 16 bits of an `f32`: an element of [`Pe::reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bfloat16(pub u16);

/// A complex number, for sums and products: an element of [`Pe::reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Complex<T> {
    /// Real part.
    pub re: T,
    /// Imaginary part.
    pub im: T,
}

// SAFETY: two `f32`, without padding.
unsafe impl Zeroable for Complex<f32> {}
// SAFETY: as above.
unsafe impl Pod for Complex<f32> {}
// SAFETY: two `f64`, without padding.
unsafe impl Zeroable for Complex<f64> {}
// SAFETY: as above.
unsafe impl Pod for Complex<f64> {}

mod sealed {
    pub trait Sealed {}
}

/// Element types of reductions.
pub trait Reducible: Pod + sealed::Sealed {
    #[doc(hidden)]
    const TYPE: Type;
    #[doc(hidden)]
    const NAME: &'static str;
}

macro_rules! reducible {
    ($($type:ty = $variant:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $type {}
            impl Reducible for $type {
                const TYPE: Type = Type::$variant;
                const NAME: &'static str = stringify!($type);
            }
        )*
    };
}
reducible! {
    i8 = Int8, i16 = Int16, i32 = Int32, i64 = Int64, u8 = Uint8, u16 = Uint16, u32 = Uint32, u64 = Uint64, f32 = Float32,
    f64 = Float64, Complex<f32> = Complex32, Complex<f64> = Complex64, Half = Half, Bfloat16 = Bfloat16,
}

/// Whether a reduction is defined; see `ReduceOp`.
fn is_defined(op: ReduceOp, element: Type) -> bool {
    match op {
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => (element as u32) < Type::Float32 as u32,
        ReduceOp::Min | ReduceOp::Max => !matches!(element, Type::Complex32 | Type::Complex64),
        ReduceOp::Sum => true,
        ReduceOp::Prod => !matches!(element, Type::Half | Type::Bfloat16),
    }
}

/// The arguments of the kernel: call, team, dst, src, n, then the root or both strides, the element's bytes or type, and the operator.
type Args = (u32, i32, u64, u64, u64, i64, i64, u32, u32);

/// A launch of the kernel.
struct Launch {
    /// That goes through one PE's hands, for the number of threads.
    bytes: u64,
    args: Args,
}

/// What a transfer has as arguments: destination and source.
type Sides = (u64, u64);

/// Two sides that no device accepts: the own memory of nobody.
const NOWHERE: Sides = (0, 0);

/// The addresses of the first elements of both sides, if they are there.
fn sides<T>(dst: (&SymmetricSlice<T>, usize), src: (&SymmetricSlice<T>, usize)) -> Result<Sides, HeapError> {
    Ok((dst.0.range_address(0..dst.1)?, src.0.range_address(0..src.1)?))
}

/// Elements of `parts` parts of `n`; what is more than any slice has is refused with the range.
fn parts(n: usize, parts: usize) -> usize {
    n.saturating_mul(parts)
}

/// Elements from the first to the last of `n` with a stride.
fn span(n: usize, stride: usize) -> usize {
    if n == 0 { 0 } else { (n - 1).saturating_mul(stride).saturating_add(1) }
}

fn word(number: usize) -> u64 {
    number as u64
}

macro_rules! collectives {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident / $on_stream:ident $(<$element:ident: $bound:path>)? ($pe:ident, $team:ident $(, $arg:ident: $type:ty)* $(,)?)
            => $call:expr;
    )*) => {
        /// Collectives over a team. All members make the same calls in the same order, one at a time for a team; `n`, the element's size and
        /// the other numbers are the same on all (but `n` of [`collect`](Pe::collect)). Slices are those of one allocation at the same place on all
        /// members; the first elements of each are used, and those of `dst` may be those of `src` only where it says so. Each returns
        /// when this member's part is done: `dst` holds the result, and `src` may be reused.
        ///
        /// # Errors
        /// A slice that is too short, a member that is not there, a team that was destroyed, or what [`Pe::synchronize`]
        /// reports. Members learn of each other's wrong calls, and get an error too; then no `dst` has been written, and the team can go on.
        impl Pe {
            $(
                $(#[doc = $doc])*
                #[allow(clippy::too_many_arguments)]
                pub fn $name $(<$element: $bound>)? (&self, $team: &Team $(, $arg: $type)*) -> Result<()> {
                    let queued = self.$on_stream($team $(, $arg)*, &Stream::OWN);
                    // Also what device code says of a call that was refused here: it is no later call's error.
                    let ended = self.wait_own();
                    queued.and(ended)
                }
            )*
        }

        /// The same on a stream: each call queues its collective and returns at once. Collectives of a team come one after the other: on one
        /// stream, or on streams that wait for each other.
        ///
        /// # Errors
        /// What can be seen at once: a slice that is too short, a team that was destroyed. The other members are told when the stream comes to
        /// it, and [`synchronize_stream`](Pe::synchronize_stream) reports it again, as it does what device code finds.
        impl Pe {
            $(
                #[doc = concat!("[`", stringify!($name), "`](Pe::", stringify!($name), ") on a stream.")]
                #[allow(clippy::too_many_arguments)]
                pub fn $on_stream $(<$element: $bound>)? (&self, $team: &Team $(, $arg: $type)*, stream: &Stream) -> Result<()> {
                    let $pe = self;
                    let (launch, refused) = $call;
                    self.queue(launch, stream)?;
                    refused.map_or(Ok(()), Err)
                }
            )*
        }
    };
}

/// What to launch, and the error to answer. With an error, device code is given sides that it refuses, and so the other members learn that
/// this one's call is not to be had.
type Checked = (Launch, Option<crate::Error>);

fn checked(bytes: u64, sides: Result<Sides, impl Into<crate::Error>>, args: impl FnOnce(Sides) -> Args) -> Checked {
    match sides {
        Ok(sides) => (Launch { bytes, args: args(sides) }, None),
        Err(error) => (Launch { bytes: 0, args: args(NOWHERE) }, Some(error.into())),
    }
}

fn meeting(call: Call, handle: i32) -> Checked {
    (Launch { bytes: 0, args: (call as u32, handle, 0, 0, 0, 0, 0, 0, 0) }, None)
}

collectives! {
    /// Returns when every member has entered. Stores of kernels that ended before, to their own heap and to peers by load and store, are
    /// visible to all; it completes no network operation.
    team_sync / team_sync_on_stream(pe, team) => {
        let handle = team.live_handle(pe)?;
        meeting(Call::Sync, handle)
    };

    /// [`quiet`](Pe::quiet), then [`team_sync`](Pe::team_sync).
    barrier / barrier_on_stream(pe, team) => {
        let handle = team.live_handle(pe)?;
        meeting(Call::Barrier, handle)
    };

    /// Copies `n` elements of `src` of member `root` to `dst` of every member, its own included. `dst` may be `src`.
    broadcast / broadcast_on_stream<T: Pod>(pe, team, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, n: usize, root: usize) => {
        let handle = team.live_handle(pe)?;
        let bytes = bytes_of::<T>(n);
        checked(bytes, sides((dst, n), (src, n)), |(dst, src)| {
            (Call::Broadcast as u32, handle, dst, src, refusable(bytes, dst), pe.peer(root).into(), 0, 0, 0)
        })
    };

    /// Puts the `n` elements of `src` of every member behind each other in `dst` of every member, in the team's order. `n` may be another
    /// on each; that `dst` has room for all of them is the caller's promise.
    collect / collect_on_stream<T: Pod>(pe, team, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, n: usize) => {
        let handle = team.live_handle(pe)?;
        let bytes = bytes_of::<T>(n);
        checked(parts(bytes as usize, team.n_pes()) as u64, sides((dst, n), (src, n)), |(dst, src)| {
            (Call::Collect as u32, handle, dst, src, refusable(bytes, dst), 0, 0, 0, 0)
        })
    };

    /// [`collect`](Pe::collect) with the same `n` on all.
    fcollect / fcollect_on_stream<T: Pod>(pe, team, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, n: usize) => {
        let (handle, total) = (team.live_handle(pe)?, parts(n, team.n_pes()));
        let bytes = bytes_of::<T>(n);
        checked(bytes_of::<T>(total), sides((dst, total), (src, n)), |(dst, src)| {
            (Call::Fcollect as u32, handle, dst, src, refusable(bytes, dst), 0, 0, 0, 0)
        })
    };

    /// Copies the j-th `n` elements of `src` of member i to the i-th of `dst` of member j.
    alltoall / alltoall_on_stream<T: Pod>(pe, team, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, n: usize) => {
        let (handle, total) = (team.live_handle(pe)?, parts(n, team.n_pes()));
        let bytes = bytes_of::<T>(n);
        checked(bytes_of::<T>(total), sides((dst, total), (src, total)), |(dst, src)| {
            (Call::Alltoall as u32, handle, dst, src, refusable(bytes, dst), 0, 0, 0, 0)
        })
    };

    /// [`alltoall`](Pe::alltoall) of elements that are `dst_stride` and `src_stride` apart, at least 1.
    alltoalls / alltoalls_on_stream<T: Pod>(pe, team, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, dst_stride: usize, src_stride: usize, n: usize) => {
        let (handle, total) = (team.live_handle(pe)?, parts(n, team.n_pes()));
        let range = sides((dst, span(total, dst_stride)), (src, span(total, src_stride)));
        checked(bytes_of::<T>(total), range, |(dst, src)| {
            let (n, element) = (refusable(word(n), dst), size_of::<T>() as u32);
            (Call::Alltoalls as u32, handle, dst, src, n, stride(dst_stride), stride(src_stride), element, 0)
        })
    };

    /// Combines the `n` elements of `src` of all members, element by element, into `dst` of every member. The result is the same
    /// to the bit on all, and from call to call for the same team and algorithm. `dst` may be `src`.
    reduce / reduce_on_stream<T: Reducible>(pe, team, op: ReduceOp, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, n: usize) => {
        let handle = team.live_handle(pe)?;
        let range = sides((dst, n), (src, n)).map_err(Into::into).and_then(|sides| defined::<T>(op, sides));
        checked(bytes_of::<T>(n), range, |(dst, src)| {
            (Call::Reduce as u32, handle, dst, src, refusable(word(n), dst), 0, 0, T::TYPE as u32, op as u32)
        })
    };

    /// Combines `n` elements for each member of `src` of all members, and puts the i-th `n` of the result into `dst` of member i.
    reducescatter / reducescatter_on_stream<T: Reducible>(pe, team, op: ReduceOp, dst: &SymmetricSlice<T>, src: &SymmetricSlice<T>, n: usize) => {
        let (handle, total) = (team.live_handle(pe)?, parts(n, team.n_pes()));
        let range = sides((dst, n), (src, total)).map_err(Into::into).and_then(|sides| defined::<T>(op, sides));
        checked(bytes_of::<T>(total), range, |(dst, src)| {
            (Call::Reducescatter as u32, handle, dst, src, refusable(word(n), dst), 0, 0, T::TYPE as u32, op as u32)
        })
    };
}

fn defined<T: Reducible>(op: ReduceOp, sides: Sides) -> Result<Sides> {
    if is_defined(op, T::TYPE) { Ok(sides) } else { Err(TeamError::BadReduction { op, element: T::NAME }.into()) }
}

/// A length that lets device code look at an address that it will refuse: with nothing to copy it would not.
fn refusable(length: u64, dst: u64) -> u64 {
    if dst == NOWHERE.0 { length.max(1) } else { length }
}

fn stride(stride: usize) -> i64 {
    i64::try_from(stride).unwrap_or(i64::MAX)
}

impl Pe {
    fn queue(&self, launch: Launch, stream: &Stream) -> Result<()> {
        let threads = self.copy_threads(launch.bytes);
        // SAFETY: the kernel checks every address and number itself, but for memory outside the heap, which a slice is not.
        unsafe { self.queue_collective(stream, "oxshmem_host_collective", threads, launch.args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_are_defined_as_openshmem_says() {
        let all =
            [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor, ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod];
        let of = |element| all.map(|op| is_defined(op, element));
        assert_eq!(of(Type::Int8), [true; 7]);
        assert_eq!(of(Type::Uint64), [true; 7]);
        assert_eq!(of(Type::Float64), [false, false, false, true, true, true, true]);
        assert_eq!(of(Type::Complex64), [false, false, false, false, false, true, true]);
        assert_eq!(of(Type::Half), [false, false, false, true, true, true, false]);
        assert_eq!(size_of::<Complex<f64>>(), 16);
    }

    #[test]
    fn strides_reach_from_the_first_to_the_last() {
        assert_eq!([span(0, 5), span(1, 5), span(3, 5), span(2, usize::MAX)], [0, 1, 11, usize::MAX]);
    }

    #[test]
    fn what_is_refused_is_looked_at() {
        assert_eq!([refusable(0, 0), refusable(9, 0), refusable(0, 64)], [1, 9, 0]);
    }
}
