//! Words, strided transfers and waits for variables, by address.

use std::ffi::{c_int, c_void};

use api::by_address::{self, StridedTransfer, Variables, Wanted};
use api::{BitwiseValue, Pe, Stream};

use crate::error::Failure;
use crate::{compare, not_null, on_stream, peer, with_pe};

/// Makes the call on the stream, or on the PE if there is none.
macro_rules! issue {
    ($own:expr, $stream:expr, |$issuer:ident| $call:expr) => {
        match $stream {
            None => {
                let $issuer = $own;
                $call
            }
            Some(stream) => {
                let $issuer = &$own.on(&stream);
                $call
            }
        }
    };
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Put,
    Get,
}

/// Makes a strided transfer from `src` to `dst`, each an address and a stride: on the stream, or at
/// once if there is none.
///
/// # Safety
/// `stream` is a stream of the process, as [`on_stream`] takes it.
unsafe fn strided(
    direction: Direction,
    (dst, src): ((*mut c_void, isize), (*const c_void, isize)),
    (n, element_bytes): (usize, usize),
    pe: c_int,
    stream: Option<*mut c_void>,
) -> c_int {
    let (dst, src) = ((dst.0 as u64, dst.1), (src.0 as u64, src.1));
    let (symmetric, local) = match direction {
        Direction::Put => (dst, src),
        Direction::Get => (src, dst),
    };
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let stream = stream.map(|stream| unsafe { on_stream(own, stream) }).transpose()?;
        transfer(own, direction, (symmetric, local), (n, element_bytes), pe, stream)
    })
}

/// Transfers `n` elements; `symmetric` and `local` are an address and a stride.
fn transfer(
    own: &Pe,
    direction: Direction,
    (symmetric, local): ((u64, isize), (u64, isize)),
    (n, element_bytes): (usize, usize),
    pe: c_int,
    stream: Option<Stream>,
) -> Result<(), Failure> {
    let stride = |stride: isize| {
        usize::try_from(stride).map_err(|_| Failure::invalid(format!("a stride is {stride}; it is at least 1")))
    };
    not_null("the local side", local.0 as *const u8, n)?;
    let transfer = StridedTransfer {
        symmetric: symmetric.0,
        symmetric_stride: stride(symmetric.1)?,
        local: local.0,
        local_stride: stride(local.1)?,
        n,
        element_bytes,
        pe: peer(own, pe)?,
    };
    // SAFETY: what host.h says of the local side.
    Ok(issue!(own, stream, |issuer| unsafe {
        match direction {
            Direction::Put => transfer.put(issuer),
            Direction::Get => transfer.get(issuer),
        }
    })?)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_iputmem(
    dst: *mut c_void,
    src: *const c_void,
    dst_stride: isize,
    src_stride: isize,
    n: usize,
    element_bytes: usize,
    pe: c_int,
) -> c_int {
    // SAFETY: there is no stream.
    unsafe { strided(Direction::Put, ((dst, dst_stride), (src, src_stride)), (n, element_bytes), pe, None) }
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_igetmem(
    dst: *mut c_void,
    src: *const c_void,
    dst_stride: isize,
    src_stride: isize,
    n: usize,
    element_bytes: usize,
    pe: c_int,
) -> c_int {
    // SAFETY: there is no stream.
    unsafe { strided(Direction::Get, ((dst, dst_stride), (src, src_stride)), (n, element_bytes), pe, None) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_iputmem_on_stream(
    dst: *mut c_void,
    src: *const c_void,
    dst_stride: isize,
    src_stride: isize,
    n: usize,
    element_bytes: usize,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { strided(Direction::Put, ((dst, dst_stride), (src, src_stride)), (n, element_bytes), pe, Some(stream)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_igetmem_on_stream(
    dst: *mut c_void,
    src: *const c_void,
    dst_stride: isize,
    src_stride: isize,
    n: usize,
    element_bytes: usize,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { strided(Direction::Get, ((dst, dst_stride), (src, src_stride)), (n, element_bytes), pe, Some(stream)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_put_word_on_stream(
    dst: *mut c_void,
    word: u64,
    bytes: usize,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let stream = unsafe { on_stream(own, stream) }?;
        Ok(by_address::put_word(&own.on(&stream), dst as u64, word, bytes, peer(own, pe)?)?)
    })
}

/// Does the atomic with this number in `oxshmem_atomic_op`, on a word of one type.
fn atomic<T: BitwiseValue>(
    own: &Pe,
    target: *mut c_void,
    op: c_int,
    (operand, compare): (u64, u64),
    pe: c_int,
) -> Result<u64, Failure> {
    let word = own.atomic(own.view_at::<T>(target as u64, 1), peer(own, pe)?);
    let (operand, compare) = (T::from_word(operand), T::from_word(compare));
    let old = match op {
        0 => word.fetch(),
        1 => word.swap(operand),
        2 => word.compare_swap(compare, operand),
        3 => word.fetch_add(operand),
        4 => word.fetch_and(operand),
        5 => word.fetch_or(operand),
        6 => word.fetch_xor(operand),
        other => {
            return Err(Failure::invalid(format!(
                "atomic {other} is invalid; use OXSHMEM_ATOMIC_FETCH (0) to OXSHMEM_ATOMIC_FETCH_XOR (6)"
            )));
        }
    };
    Ok(old?.to_word())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_host_atomic(
    target: *mut c_void,
    bytes: usize,
    op: c_int,
    operand: u64,
    compare: u64,
    old: *mut u64,
    pe: c_int,
) -> c_int {
    with_pe(|own| {
        let value = match bytes {
            4 => atomic::<u32>(own, target, op, (operand, compare), pe),
            8 => atomic::<u64>(own, target, op, (operand, compare), pe),
            other => Err(Failure::invalid(format!("atomics are on words of 4 or 8 bytes, not {other}"))),
        }?;
        // SAFETY: null, or a place for the number.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = value;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_wait_until_all_on_stream(
    variables: *const c_void,
    n: usize,
    status: *const c_int,
    cmp: c_int,
    element: c_int,
    value: u64,
    values: *const c_void,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let stream = unsafe { on_stream(own, stream) }?;
        let wanted = if values.is_null() { Wanted::Same(value) } else { Wanted::Each(values as u64) };
        let (issuer, cmp) = (own.on(&stream), compare(cmp)?);
        let element = u32::try_from(element).unwrap_or(u32::MAX);
        let variables = Variables { element, address: variables as u64, n, status: status as u64 };
        // SAFETY: as above.
        unsafe { by_address::wait_until_all(&issuer, &variables, cmp, wanted) }?;
        Ok(())
    })
}
