//! What collectives over a team need on the host: element types, checks, and the launch of a small
//! kernel of one block.

use bytemuck::Pod;
use half::{bf16, f16};
use num_complex::Complex;

use super::copies::{Args, queue_copies};
use super::issuer::begins;
use super::issuer::sealed::Issuer;
use super::transfer::THREADS;
use crate::Result;
use crate::abi::{Algorithm, Call, ReduceOp, Type};
use crate::device::{self, LaunchConfig};
use crate::heap::error::HeapError;
use crate::pe::Pe;
use crate::profile::host::{Operation, Subject};
use crate::slice::SymmetricView;
use crate::team::choice::{BLOCKS_THREADS, Plan, Size};
use crate::team::{Team, TeamError};

mod sealed {
    pub trait Sealed {}
}

/// Element types of reductions: integers, `f32`, `f64`, `half::f16`, `half::bf16`, and
/// `num_complex::Complex` of `f32` and `f64`.
///
/// ```
/// use oxshmem::{Operations, Pe, ReduceOp, Reducible};
///
/// /// Returns the sum of a value over all PEs.
/// fn sum<T: Reducible>(pe: &Pe, value: T) -> oxshmem::Result<T> {
///     let cell = pe.alloc::<T>(1)?;
///     pe.write(&cell, &[value])?;
///     pe.reduce(&pe.team_world(), ReduceOp::Sum, &cell, &cell)?;
///     let sum = pe.read(&cell)?[0];
///     pe.free(cell)?;
///     Ok(sum)
/// }
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// assert_eq!(sum(&pe, half::f16::from_f32(1.5))?.to_f32(), 1.5);
/// # pe.finalize()
/// # }
/// ```
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
    f64 = Float64, Complex<f32> = Complex32, Complex<f64> = Complex64, f16 = Half, bf16 = Bfloat16,
}

/// Returns whether a reduction is defined; see `ReduceOp`.
fn is_defined(op: ReduceOp, element: Type) -> bool {
    match op {
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => (element as u32) < Type::Float32 as u32,
        ReduceOp::Min | ReduceOp::Max => !matches!(element, Type::Complex32 | Type::Complex64),
        ReduceOp::Sum | ReduceOp::Prod => true,
    }
}

/// A launch of the kernel.
pub(super) struct Launch {
    size: Size,
    args: Args,
}

/// The most threads of a block that handles few bytes.
const FEW_THREADS: u32 = 256;
/// The most bytes of such a block, if it sends packets.
const FEW_BYTES_IN_PACKETS: u64 = 4 << 10;
/// The most bytes of such a block otherwise.
const FEW_BYTES: u64 = 32 << 10;

/// What a transfer has as arguments: destination and source.
pub(super) type Sides = (u64, u64);

/// Two sides that no device accepts: memory that no PE owns.
const NOWHERE: Sides = (0, 0);

/// Returns the addresses of the first elements of both sides, if they are there.
pub(super) fn sides<T>(
    own: &Pe,
    (dst, dst_needed): (&SymmetricView<'_, T>, usize),
    (src, src_needed): (&SymmetricView<'_, T>, usize),
) -> Result<Sides, HeapError> {
    Ok((dst.first(own.id(), dst_needed, "dst")?, src.first(own.id(), src_needed, "src")?))
}

/// Returns the same for a call of which all members need as much. A side of which they need nothing
/// may be anywhere: the beginning of the heap stands for it, so that the members agree.
pub(super) fn equal_sides<T>(
    own: &Pe,
    (dst, dst_needed): (&SymmetricView<'_, T>, usize),
    (src, src_needed): (&SymmetricView<'_, T>, usize),
) -> Result<Sides, HeapError> {
    let side = |view: &SymmetricView<'_, T>, needed, name| {
        if needed == 0 { view.nothing(own.id()).map(|()| own.heap_base()) } else { view.first(own.id(), needed, name) }
    };
    Ok((side(dst, dst_needed, "dst")?, side(src, src_needed, "src")?))
}

/// Returns the number of elements of `parts` parts of `n`; what is more than any slice has is
/// refused with the range.
pub(super) fn parts(n: usize, parts: usize) -> usize {
    n.saturating_mul(parts)
}

/// Returns the number of elements from the first to the last of `n` with a stride.
pub(super) fn span(n: usize, stride: usize) -> usize {
    if n == 0 { 0 } else { (n - 1).saturating_mul(stride).saturating_add(1) }
}

/// What to launch, and the error to return. With an error, device code is given sides that it
/// refuses, and so the other members learn that this member's call is wrong.
pub(super) type Checked = (Launch, Option<crate::Error>);

pub(super) fn checked(
    size: Size,
    sides: Result<Sides, impl Into<crate::Error>>,
    args: impl FnOnce(Sides) -> Args,
) -> Checked {
    match sides {
        Ok(sides) => (Launch { size, args: args(sides) }, None),
        Err(error) => (Launch { size, args: args(NOWHERE) }, Some(error.into())),
    }
}

/// Returns the stream that a collective is put on. One that is waited for is not begun in a job
/// that has failed: a PE that has not heard of that yet would blame this one for the call.
fn stream_of<I: Issuer + ?Sized>(issuer: &I) -> Result<&device::Stream> {
    if I::WAITS {
        issuer.issuing_pe().check_job()?;
    }
    issuer.issuing_stream()
}

/// Queues a meeting of the members of a team, [`Call::Sync`] or [`Call::Barrier`], which is a
/// kernel of its own: that of the other collectives needs a larger stack.
pub(super) fn meet<I: Issuer + ?Sized>(issuer: &I, team: &Team, call: Call) -> Result<()> {
    let own = issuer.issuing_pe();
    let (known, n_pes) = (team.known(own.id(), own.my_pe())?, team.n_pes());
    let handle = known.handle;
    if I::WAITS && n_pes == own.n_pes() {
        own.check_call(|| format!("{} of team {handle}", operation(call as u32).name()))?;
    }
    let _call = begins(issuer, operation(call as u32), Subject::Team(handle), 0);
    let stream = stream_of(issuer)?;
    if call == Call::Barrier {
        own.queue_quiet_of_numbered(stream)?;
    }
    let by_network = known.one_round == 0 || (call == Call::Barrier && own.network().is_some());
    if by_network {
        let kernel = if call == Call::Sync { "oxshmem_host_sync" } else { "oxshmem_host_barrier" };
        // SAFETY: the kernel takes a team's handle, and checks it.
        unsafe { own.queue_host_kernel(stream, kernel, THREADS, (handle,)) }?;
    } else {
        let kernel = if call == Call::Sync { "oxshmem_host_sync_near" } else { "oxshmem_host_barrier_near" };
        // SAFETY: the kernel takes what the host knows of a team, and checks that it still exists.
        unsafe { own.queue_host_kernel(stream, kernel, 2 * THREADS, (known,)) }?;
    }
    own.scene().board.is_of_team(stream, handle);
    issuer.finish()
}

/// Queues the collective that `call` makes for a team, given its handle and the PE.
pub(super) fn queue<I: Issuer + ?Sized>(issuer: &I, team: &Team, call: impl FnOnce(i32, &Pe) -> Checked) -> Result<()> {
    let own = issuer.issuing_pe();
    let known = team.known(own.id(), own.my_pe())?;
    let (Launch { size, args }, refused) = call(known.handle, own);
    let (handle, bytes) = (args.1, size.total);
    if I::WAITS && team.n_pes() == own.n_pes() {
        own.check_call(|| match operation(args.0) {
            // Members contribute different lengths.
            Operation::Collect => format!("collect of team {handle}"),
            call => format!("{} of team {handle} with {bytes} bytes in all", call.name()),
        })?;
    }
    let _call = begins(issuer, operation(args.0), Subject::Team(handle), bytes);
    let stream = stream_of(issuer)?;
    let threads_of = |blocks: u32, total: u64, few: u64| {
        let each = total / u64::from(blocks);
        let most = if each <= few { FEW_THREADS } else { BLOCKS_THREADS };
        LaunchConfig::linear(blocks, own.copy_threads(each).min(most))
    };
    let queued = match team.plan(size) {
        Plan::OneBlock => {
            let config = LaunchConfig::linear(1, own.copy_threads(size.total));
            // SAFETY: the kernel checks every address and number itself, but for memory outside the
            // heap, which a slice is not.
            unsafe { own.queue_collective(stream, "oxshmem_host_collective", config, args) }
        }
        Plan::Copies => {
            let kernel = kernel_by_blocks(args.0, args.7, args.8, Algorithm::CopyEngines);
            queue_copies(own, (team, known), stream, kernel, args, refused.is_some())
        }
        Plan::Levels(blocks) => {
            let config = threads_of(blocks, size.total, FEW_BYTES);
            // SAFETY: as above.
            unsafe { own.queue_in_levels(stream, config, args) }
        }
        Plan::Collect { blocks, in_packets } => {
            // The others' contributions may be longer than this member's.
            let most = size.total.max(FEW_BYTES_IN_PACKETS.saturating_mul(blocks.into()));
            let config = threads_of(blocks, most, FEW_BYTES_IN_PACKETS);
            let (call, _, dst, src, n, _, second, kind, op) = args;
            let args = (call, known, dst, src, n, in_packets.cast_signed(), second, kind, op, 0u32);
            // SAFETY: as above.
            unsafe { own.queue_collective(stream, "oxshmem_host_collect", config, args) }
        }
        Plan::Blocks(blocks, algorithm) => {
            let config = match algorithm {
                // Every block sends its part to each of the other members.
                Algorithm::Packets => {
                    let sent = size.divisible.map_or(0, |(_, bytes)| bytes).saturating_mul(team.n_pes() as u64 - 1);
                    threads_of(blocks, size.total.max(sent), FEW_BYTES_IN_PACKETS)
                }
                // And here its part of a share.
                Algorithm::Relay => threads_of(blocks, size.total, FEW_BYTES_IN_PACKETS),
                _ => threads_of(blocks, size.total, FEW_BYTES),
            };
            let (call, _, dst, src, n, first, second, kind, op) = args;
            let args = (call, known, dst, src, n, first, second, kind, op, algorithm as u32);
            // SAFETY: as above.
            unsafe { own.queue_collective(stream, kernel_by_blocks(call, kind, op, algorithm), config, args) }
        }
    };
    own.scene().board.is_of_team(stream, handle);
    // Also what device code says of a call that was refused here: it is no later call's error.
    let ended = queued.and_then(|()| issuer.finish());
    refused.map_or(ended, Err)
}

/// Returns the kernel of `collectives.cu` that carries out a collective by several blocks.
fn kernel_by_blocks(call: u32, kind: u32, op: u32, algorithm: Algorithm) -> &'static str {
    macro_rules! kernel {
        ($name:literal) => {
            match algorithm {
                Algorithm::Packets => concat!("oxshmem_host_", $name, "_packets"),
                Algorithm::Relay => concat!("oxshmem_host_", $name, "_relay"),
                Algorithm::CopyEngines => concat!("oxshmem_host_", $name, "_copy"),
                _ => concat!("oxshmem_host_", $name, "_push"),
            }
        };
    }
    let is = |element: Type| op == ReduceOp::Sum as u32 && kind == element as u32;
    match call {
        call if call == Call::Broadcast as u32 => kernel!("broadcast"),
        call if call == Call::Fcollect as u32 => kernel!("fcollect"),
        call if call == Call::Alltoall as u32 => kernel!("alltoall"),
        // Packets of elements that lie apart are left to one block.
        call if call == Call::Alltoalls as u32 => "oxshmem_host_alltoalls_push",
        _ if is(Type::Float32) => kernel!("reduce_sum_float"),
        _ if is(Type::Float64) => kernel!("reduce_sum_double"),
        _ if is(Type::Half) => kernel!("reduce_sum_half"),
        _ if is(Type::Bfloat16) => kernel!("reduce_sum_bfloat16"),
        _ if is(Type::Int32) || is(Type::Uint32) => kernel!("reduce_sum_32"),
        _ if is(Type::Int64) || is(Type::Uint64) => kernel!("reduce_sum_64"),
        _ => kernel!("reduce_any"),
    }
}

/// Returns the operation of the API that a call of device code is.
fn operation(call: u32) -> Operation {
    match call {
        call if call == Call::Sync as u32 => Operation::Sync,
        call if call == Call::Barrier as u32 => Operation::Barrier,
        call if call == Call::Broadcast as u32 => Operation::Broadcast,
        call if call == Call::Collect as u32 => Operation::Collect,
        call if call == Call::Fcollect as u32 => Operation::Fcollect,
        call if call == Call::Alltoall as u32 => Operation::Alltoall,
        call if call == Call::Alltoalls as u32 => Operation::Alltoalls,
        call if call == Call::Reduce as u32 => Operation::Reduce,
        _ => Operation::Reducescatter,
    }
}

pub(super) fn defined<T: Reducible>(op: ReduceOp, sides: Sides) -> Result<Sides> {
    if is_defined(op, T::TYPE) { Ok(sides) } else { Err(TeamError::BadReduction { op, element: T::NAME }.into()) }
}

/// Returns a length that lets device code look at an address that it will refuse: with nothing to
/// copy it would not.
pub(super) fn refusable(length: u64, dst: u64) -> u64 {
    if dst == NOWHERE.0 { length.max(1) } else { length }
}

pub(super) fn stride(stride: usize) -> i64 {
    i64::try_from(stride).unwrap_or(i64::MAX)
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
        assert_eq!(of(Type::Half), [false, false, false, true, true, true, true]);
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
