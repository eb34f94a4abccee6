// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names of operations by the handle of a queue pair (nvshmemx_qp_create): a context of any threads.
// A PE is reached over the network by the context's queue pair alone, and by load and store as by
// any other name.

#define OXSHMEM_NV_QP_SCOPES(rest, parameters, device)                                                                         \
    OXSHMEM_NV_DEVICE(thread, void, nvshmemx_qp_##rest, parameters, device)                                                    \
    OXSHMEM_NV_DEVICE(warp, void, nvshmemx_qp_##rest##_warp, parameters, device)                                               \
    OXSHMEM_NV_DEVICE(block, void, nvshmemx_qp_##rest##_block, parameters, device)

#define OXSHMEM_NV_QP_TRANSFER(rest, T, CALL)                                                                                  \
    OXSHMEM_NV_QP_SCOPES(rest, (T * dst, const T *src, size_t n, int pe, nvshmemx_qp_handle_t qp),                             \
                         oxshmem_nv::with_qp(qp, [&](const oxshmem::Context &context) {                                        \
                             S::sync();                                                                                        \
                             oxshmem::CALL(context, S{}, dst, src, oxshmem_nv::bytes(n, sizeof(T)), pe);                       \
                             S::sync();                                                                                        \
                         }))
#define OXSHMEM_NV_QP_SIGNALLED(rest, T, CALL)                                                                                 \
    OXSHMEM_NV_QP_SCOPES(                                                                                                      \
        rest, (T * dst, const T *src, size_t n, uint64_t *signal, uint64_t value, int op, int pe, nvshmemx_qp_handle_t qp),    \
        oxshmem_nv::with_qp(qp, [&](const oxshmem::Context &context) {                                                         \
            S::sync();                                                                                                         \
            oxshmem::CALL(context, S{}, dst, src, oxshmem_nv::bytes(n, sizeof(T)), signal, value, oxshmem_nv::signal(op), pe); \
            S::sync();                                                                                                         \
        }))
#define OXSHMEM_NV_QP_TYPED(name, T)                                                                                           \
    OXSHMEM_NV_DEVICE(thread, void, nvshmemx_qp_##name##_p, (T * dst, const T value, int pe, nvshmemx_qp_handle_t qp),         \
                      oxshmem_nv::with_qp(qp, [&](const oxshmem::Context &context) { oxshmem::p(context, dst, value, pe); }))  \
    OXSHMEM_NV_DEVICE(thread, T, nvshmemx_qp_##name##_g, (const T *src, int pe, nvshmemx_qp_handle_t qp), T value{};           \
                      oxshmem_nv::with_qp(qp, [&](const oxshmem::Context &context) { value = oxshmem::g(context, src, pe); }); \
                      return value)                                                                                            \
    OXSHMEM_NV_QP_TRANSFER(name##_put, T, putmem)                                                                              \
    OXSHMEM_NV_QP_TRANSFER(name##_put_nbi, T, putmem_nbi)                                                                      \
    OXSHMEM_NV_QP_TRANSFER(name##_get, T, getmem)                                                                              \
    OXSHMEM_NV_QP_TRANSFER(name##_get_nbi, T, getmem_nbi)                                                                      \
    OXSHMEM_NV_QP_SIGNALLED(name##_put_signal, T, putmem_signal)                                                               \
    OXSHMEM_NV_QP_SIGNALLED(name##_put_signal_nbi, T, putmem_signal_nbi)
OXSHMEM_NV_FOR_EACH_RMA_TYPE(OXSHMEM_NV_QP_TYPED)
#undef OXSHMEM_NV_QP_TYPED
#undef OXSHMEM_NV_QP_SIGNALLED
#undef OXSHMEM_NV_QP_TRANSFER

OXSHMEM_NV_DEVICE(thread, void, nvshmemx_qp_signal_op,
                  (uint64_t * signal, uint64_t value, int op, int pe, nvshmemx_qp_handle_t qp),
                  oxshmem_nv::with_qp(qp, [&](const oxshmem::Context &context) {
                      oxshmem::signal_op(context, signal, value, oxshmem_nv::signal(op), pe);
                  }))

// These are for the operations by these handles to all PEs, of which `pe` is one.
OXSHMEM_NV_QP_SCOPES(quiet, (int, nvshmemx_qp_handle_t *handles, int n), oxshmem_nv::quiet_qps<S>(handles, n))
OXSHMEM_NV_QP_SCOPES(fence, (int, nvshmemx_qp_handle_t *handles, int n), oxshmem_nv::fence_qps<S>(handles, n))
#undef OXSHMEM_NV_QP_SCOPES
