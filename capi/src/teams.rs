//! Teams and their collectives for C.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use api::abi::{TEAM_INVALID, Type};
use api::{Operations, Pe, ReduceOp, Reducible, Stream, SymmetricView, Team, TeamUniqueId};
use half::{bf16, f16};
use num_complex::Complex;

use crate::error::Failure;
use crate::{answer, int, not_null, on_stream, pe, with_pe};

/// Returns a number that cannot be negative.
fn number(name: &str, value: impl TryInto<usize> + Copy + std::fmt::Display) -> Result<usize, Failure> {
    value.try_into().map_err(|_| Failure::invalid(format!("{name} is {value}; it cannot be negative")))
}

/// Returns where a handle is to be written.
///
/// # Safety
/// Null, or a place for a handle.
unsafe fn place<'a>(what: &str, to: *mut i32) -> Result<&'a mut i32, Failure> {
    // SAFETY: the caller's promise.
    unsafe { to.as_mut() }.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Returns the numbers by which a team is split.
fn strided(start: c_int, stride: c_int, size: c_int) -> Result<[usize; 3], Failure> {
    Ok([number("start", start)?, number("stride", stride)?, number("size", size)?])
}

fn asked(of: impl FnOnce(&Pe) -> Result<c_int, Failure>) -> c_int {
    answer(|_| -1, || of(pe().as_ref().ok_or_else(Failure::no_pe)?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_team_my_pe(team: i32) -> c_int {
    asked(|own| Ok(int(own.team(team)?.my_pe())))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_team_n_pes(team: i32) -> c_int {
    asked(|own| Ok(int(own.team(team)?.n_pes())))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_team_translate_pe(source: i32, pe: c_int, destination: i32) -> c_int {
    asked(|own| {
        let (source, destination) = (own.team(source)?, own.team(destination)?);
        Ok(usize::try_from(pe).ok().and_then(|pe| source.translate(pe, &destination)).map_or(-1, int))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_team_split_strided(
    parent: i32,
    start: c_int,
    stride: c_int,
    size: c_int,
    team: *mut i32,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let team = unsafe { place("team", team) }?;
        *team = TEAM_INVALID;
        let [start, stride, size] = strided(start, stride, size)?;
        let made = own.team(parent)?.split_strided(own, start, stride, size)?;
        *team = made.map_or(TEAM_INVALID, |team| team.handle());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_team_split_own(
    parent: i32,
    start: c_int,
    stride: c_int,
    size: c_int,
    team: *mut i32,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let team = unsafe { place("team", team) }.map(|team| {
            *team = TEAM_INVALID;
            team
        });
        let numbers = strided(start, stride, size);
        // A PE with a wrong argument takes part, by numbers that fit no team, since the others wait
        // for it.
        let fit = numbers.as_ref().ok().filter(|_| team.is_ok());
        let [start, stride, size] = *fit.unwrap_or(&[usize::MAX, 1, 1]);
        let made = own.team(parent)?.split_own(own, start, stride, size);
        let team = team?;
        numbers?;
        *team = made?.map_or(TEAM_INVALID, |team| team.handle());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_team_split_2d(parent: i32, xrange: c_int, x: *mut i32, y: *mut i32) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let (x, y) = unsafe { (place("x", x)?, place("y", y)?) };
        (*x, *y) = (TEAM_INVALID, TEAM_INVALID);
        let (row, column) = own.team(parent)?.split_2d(own, number("xrange", xrange)?)?;
        (*x, *y) = (row.handle(), column.handle());
        Ok(())
    })
}

/// `oxshmem_team_uniqueid`.
#[repr(C)]
#[derive(Debug)]
pub struct RawTeamUniqueId {
    bytes: [u8; 16],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_team_get_uniqueid(id: *mut RawTeamUniqueId) -> c_int {
    with_pe(|_| {
        // SAFETY: null, or a place for an id.
        let id = unsafe { id.as_mut() }.ok_or_else(|| Failure::invalid("id is null".into()))?;
        id.bytes = *TeamUniqueId::create()?.as_bytes();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_team_init(
    id: *const RawTeamUniqueId,
    my_pe: c_int,
    n_pes: c_int,
    team: *mut i32,
) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or an id.
        let id = unsafe { id.as_ref() }.ok_or_else(|| Failure::invalid("id is null".into()))?;
        // SAFETY: the caller's promise.
        let team = unsafe { place("team", team) }?;
        *team = TEAM_INVALID;
        let id = TeamUniqueId::from_bytes(id.bytes);
        *team = Team::from_unique_id(own, &id, number("my_pe", my_pe)?, number("n_pes", n_pes)?)?.handle();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_team_destroy(team: i32) -> c_int {
    with_pe(|own| if team == TEAM_INVALID { Ok(()) } else { Ok(own.team(team)?.destroy(own)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_team_algorithms(team: i32, text: *mut c_char, bytes: usize) -> c_int {
    with_pe(|own| {
        not_null("text", text, bytes)?;
        let team = own.team(team)?;
        let known = team.algorithms().as_bytes();
        let length = known.len().min(bytes.saturating_sub(1));
        if bytes > 0 {
            // SAFETY: the caller's promise: room for `bytes` bytes.
            unsafe {
                ptr::copy_nonoverlapping(known.as_ptr(), text.cast(), length);
                *text.add(length) = 0;
            }
        }
        Ok(())
    })
}

/// Returns both sides of a collective, as long as it needs them.
fn sides<T>(
    own: &Pe,
    (dst, dst_len): (*mut c_void, usize),
    (src, src_len): (*const c_void, usize),
) -> (SymmetricView<'_, T>, SymmetricView<'_, T>) {
    (own.view_at(dst as u64, dst_len), own.view_at(src as u64, src_len))
}

/// Returns the number of elements, `n` for each member.
fn total(team: &Team, n: usize) -> usize {
    n.saturating_mul(team.n_pes())
}

/// Makes the call on the stream, or on the PE if there is none.
macro_rules! on {
    ($own:expr, $stream:expr, $name:ident($($arg:expr),*)) => {
        match $stream {
            None => $own.$name($($arg),*),
            Some(stream) => $own.on(&stream).$name($($arg),*),
        }
    };
}

fn reduce_op(op: c_int) -> Result<ReduceOp, Failure> {
    use ReduceOp::{And, Max, Min, Or, Prod, Sum, Xor};
    [And, Or, Xor, Min, Max, Sum, Prod].into_iter().find(|known| *known as c_int == op).ok_or_else(|| {
        Failure::invalid(format!("operator {op} is invalid; use OXSHMEM_REDUCE_AND (0) to OXSHMEM_REDUCE_PROD (6)"))
    })
}

/// A reduction to all members, or a part of the result to each.
#[derive(Clone)]
struct Reduction<'a> {
    own: &'a Pe,
    team: &'a Team,
    op: ReduceOp,
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    stream: Option<Stream>,
    scatter: bool,
}

fn reduce<T: Reducible>(call: &Reduction<'_>) -> Result<(), Failure> {
    let Reduction { own, team, op, n, .. } = *call;
    let from = if call.scatter { total(team, n) } else { n };
    let (dst, src) = sides::<T>(own, (call.dst, n), (call.src, from));
    let stream = call.stream.clone();
    Ok(if call.scatter {
        on!(own, stream, reducescatter(team, op, dst, src))
    } else {
        on!(own, stream, reduce(team, op, dst, src))
    }?)
}

/// Does the same as [`reduce`] with the operator and the element type of these numbers. The other
/// members wait for a call that is wrong, too: memory that no PE owns tells them.
fn reduce_of(call: Reduction<'_>, op: c_int, element: c_int) -> Result<(), Failure> {
    let refuse = |why: Failure| {
        let nowhere = Reduction { dst: ptr::null_mut(), src: ptr::null(), n: 1, ..call.clone() };
        let _refused = reduce::<u8>(&nowhere);
        Err(why)
    };
    let call = match reduce_op(op) {
        Ok(op) => Reduction { op, ..call.clone() },
        Err(why) => return refuse(why),
    };
    macro_rules! by_number {
        ($($name:ident = $type:ty),* $(,)?) => {
            match element {
                $(number if number == Type::$name as c_int => reduce::<$type>(&call),)*
                other => refuse(Failure::invalid(format!(
                    "type {other} is invalid; use OXSHMEM_TYPE_INT8 (0) to OXSHMEM_TYPE_BFLOAT16 (13)"
                ))),
            }
        };
    }
    by_number! {
        Int8 = i8, Int16 = i16, Int32 = i32, Int64 = i64, Uint8 = u8, Uint16 = u16, Uint32 = u32, Uint64 = u64, Float32 = f32,
        Float64 = f64, Complex32 = Complex<f32>, Complex64 = Complex<f64>, Half = f16, Bfloat16 = bf16,
    }
}

/// An exchange with strides, of elements that have the size of `T`.
#[derive(Clone)]
struct Strided<'a> {
    own: &'a Pe,
    team: &'a Team,
    dst: (*mut c_void, usize),
    src: (*const c_void, usize),
    n: usize,
    stream: Option<Stream>,
}

fn alltoalls<T: bytemuck::Pod>(call: &Strided<'_>) -> Result<(), Failure> {
    let Strided { own, team, n, .. } = *call;
    let ((dst, dst_stride), (src, src_stride)) = (call.dst, call.src);
    // From the first to the last element.
    let length = |stride: usize| match total(team, n) {
        0 => 0,
        all => (all - 1).saturating_mul(stride).saturating_add(1),
    };
    let (dst, src) = sides::<T>(own, (dst, length(dst_stride)), (src, length(src_stride)));
    let (dst, src) = (dst.step_by(dst_stride), src.step_by(src_stride));
    let stream = call.stream.clone();
    Ok(on!(own, stream, alltoalls(team, dst, src, n))?)
}

/// Does the same as [`alltoalls`] with these strides and the element size. The other members wait
/// for a call that is wrong, too: memory that no PE owns tells them.
fn alltoalls_of(
    call: Strided<'_>,
    (dst_stride, src_stride): (isize, isize),
    element_bytes: usize,
) -> Result<(), Failure> {
    let refuse = |why: Failure| {
        let nowhere = Strided { dst: (ptr::null_mut(), 1), src: (ptr::null(), 1), n: 1, ..call.clone() };
        let _refused = alltoalls::<u8>(&nowhere);
        Err(why)
    };
    let strides = number("dst_stride", dst_stride).and_then(|dst| Ok((dst, number("src_stride", src_stride)?)));
    let call = match strides {
        Ok((dst, src)) => &Strided { dst: (call.dst.0, dst), src: (call.src.0, src), ..call.clone() },
        Err(why) => return refuse(why),
    };
    match element_bytes {
        1 => alltoalls::<u8>(call),
        2 => alltoalls::<u16>(call),
        4 => alltoalls::<u32>(call),
        8 => alltoalls::<u64>(call),
        16 => alltoalls::<[u64; 2]>(call),
        other => refuse(Failure::invalid(format!("elements have 1, 2, 4, 8 or 16 bytes, not {other}"))),
    }
}

macro_rules! collectives {
    ($($name:ident / $on_stream:ident ($own:ident, $team:ident, $stream:ident $(, $arg:ident: $type:ty)*) $call:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($team: i32 $(, $arg: $type)*) -> c_int {
                with_pe(|$own| {
                    let ($team, $stream) = (&$own.team($team)?, None::<Stream>);
                    $call
                })
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $on_stream($team: i32 $(, $arg: $type)*, stream: *mut c_void) -> c_int {
                with_pe(|$own| {
                    // SAFETY: the caller's promise.
                    let ($team, $stream) = (&$own.team($team)?, Some(unsafe { on_stream($own, stream) }?));
                    $call
                })
            }
        )*
    };
}

collectives! {
    oxshmem_host_team_sync / oxshmemx_team_sync_on_stream (own, team, stream) {
        Ok(on!(own, stream, team_sync(team))?)
    };
    oxshmem_host_barrier / oxshmemx_barrier_on_stream (own, team, stream) {
        Ok(on!(own, stream, barrier(team))?)
    };
    oxshmem_host_broadcastmem / oxshmemx_broadcastmem_on_stream (
        own, team, stream, dst: *mut c_void, src: *const c_void, bytes: usize, root: c_int
    ) {
        let (dst, src) = sides::<u8>(own, (dst, bytes), (src, bytes));
        // Device code tells all members of one that does not exist.
        let root = (root as isize).cast_unsigned();
        Ok(on!(own, stream, broadcast(team, dst, src, root))?)
    };
    oxshmem_host_collectmem / oxshmemx_collectmem_on_stream (
        own, team, stream, dst: *mut c_void, src: *const c_void, bytes: usize
    ) {
        let (dst, src) = sides::<u8>(own, (dst, bytes), (src, bytes));
        Ok(on!(own, stream, collect(team, dst, src))?)
    };
    oxshmem_host_fcollectmem / oxshmemx_fcollectmem_on_stream (
        own, team, stream, dst: *mut c_void, src: *const c_void, bytes: usize
    ) {
        let (dst, src) = sides::<u8>(own, (dst, total(team, bytes)), (src, bytes));
        Ok(on!(own, stream, fcollect(team, dst, src))?)
    };
    oxshmem_host_alltoallmem / oxshmemx_alltoallmem_on_stream (
        own, team, stream, dst: *mut c_void, src: *const c_void, bytes: usize
    ) {
        let (dst, src) = sides::<u8>(own, (dst, total(team, bytes)), (src, total(team, bytes)));
        Ok(on!(own, stream, alltoall(team, dst, src, bytes))?)
    };
    oxshmem_host_alltoallsmem / oxshmemx_alltoallsmem_on_stream (
        own, team, stream, dst: *mut c_void, src: *const c_void, dst_stride: isize, src_stride: isize, n: usize, element_bytes: usize
    ) {
        let call = Strided { own, team, dst: (dst, 1), src: (src, 1), n, stream };
        alltoalls_of(call, (dst_stride, src_stride), element_bytes)
    };
    oxshmem_host_reduce / oxshmemx_reduce_on_stream (
        own, team, stream, op: c_int, element: c_int, dst: *mut c_void, src: *const c_void, n: usize
    ) {
        let call = Reduction { own, team, op: ReduceOp::Sum, dst, src, n, stream, scatter: false };
        reduce_of(call, op, element)
    };
    oxshmem_host_reducescatter / oxshmemx_reducescatter_on_stream (
        own, team, stream, op: c_int, element: c_int, dst: *mut c_void, src: *const c_void, n: usize
    ) {
        let call = Reduction { own, team, op: ReduceOp::Sum, dst, src, n, stream, scatter: true };
        reduce_of(call, op, element)
    };
}
