//! rdma-core's C interface: what bindgen makes of its headers, and the functions that the headers
//! define inline.
//!
//! The generated files are compared with what is installed by `tests/bindings.rs`.

#[rustfmt::skip]
#[allow(dead_code, missing_debug_implementations, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(unnameable_types, unreachable_pub, unsafe_op_in_unsafe_fn, unused_qualifications)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc, clippy::ptr_as_ptr, clippy::cast_lossless)]
pub mod ibverbs;

#[rustfmt::skip]
#[allow(dead_code, missing_debug_implementations, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(unnameable_types, unreachable_pub, unsafe_op_in_unsafe_fn, unused_qualifications)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc, clippy::ptr_as_ptr, clippy::cast_lossless)]
pub mod mlx5dv;

pub(crate) use ibverbs::*;

use core::ffi::c_int;
use core::mem::offset_of;

/// What a function of the context that the driver leaves out answers.
const ENOSYS: c_int = libc::EOPNOTSUPP;

/// Calls `ibv_post_send`, which returns 0 or an errno; then `*bad` is the first work request that
/// was not taken.
///
/// # Safety
/// `qp` is alive; `wr` is a chain of work requests whose segments stay where they are during the
/// call.
pub(crate) unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a queue pair that is alive has a context, and that its operations.
    unsafe { (*(*qp).context).ops.post_send.map_or(ENOSYS, |post| post(qp, wr, bad)) }
}

/// Calls `ibv_poll_cq`, which returns how many completions were written to `wc`, or a negative
/// number.
///
/// # Safety
/// `cq` is alive; `wc` has room for `entries`.
pub(crate) unsafe fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a completion queue that is alive has a context, and that its operations.
    unsafe { (*(*cq).context).ops.poll_cq.map_or(-ENOSYS, |poll| poll(cq, entries, wc)) }
}

/// Calls `___ibv_query_port`, which the macro `ibv_query_port` stands for; returns 0 or an errno.
/// The library's function of that name fills in only what its first release knew.
///
/// # Safety
/// `context` is alive; `attributes` may be written.
pub(crate) unsafe fn query_port(
    library: &Ibverbs,
    context: *mut ibv_context,
    port: u8,
    attributes: &mut ibv_port_attr,
) -> c_int {
    // SAFETY: `verbs_get_ctx_op`: this value in the context says that it lies in a larger
    // structure, whose size tells which operations it has.
    unsafe {
        if (*context).abi_compat.addr() == usize::MAX {
            let whole = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            let has = (*whole).sz >= size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
            if let Some(query) = (*whole).query_port.filter(|_| has) {
                return query(context, port, attributes, size_of::<ibv_port_attr>());
            }
        }
        *attributes = core::mem::zeroed();
        library.ibv_query_port(context, port, core::ptr::from_mut(attributes).cast())
    }
}
