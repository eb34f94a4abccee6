// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names of transfers, signals and ordering.

// p and g.
#define OXSHMEM_NV_SCALAR(name, T)                                                                                             \
    OXSHMEM_NV_BOTH(void, nvshmem_##name##_p, (T * dst, const T value, int pe), oxshmem::p(dst, value, pe),                    \
                    oxshmem_nv_put(__func__, dst, &value, sizeof(T), pe))                                                      \
    OXSHMEM_NV_BOTH(T, nvshmem_##name##_g, (const T *src, int pe), return oxshmem::g(src, pe),                                 \
                    T value = oxshmem_nv::from_word<T>(0);                                                                     \
                    oxshmem_nv_get(__func__, &value, src, sizeof(T), pe); return value)                                        \
    OXSHMEM_NV_HOST(void, nvshmemx_##name##_p_on_stream, (T * dst, const T value, int pe, cudaStream_t stream),                \
                    oxshmem_nv_p_on_stream(__func__, dst, oxshmem_nv::to_word(value), sizeof(T), pe, stream))                  \
    OXSHMEM_NV_HOST(T, nvshmemx_##name##_g_on_stream, (const T *src, int pe, cudaStream_t stream),                             \
                    return oxshmem_nv::from_word<T>(oxshmem_nv_g_on_stream(__func__, src, sizeof(T), pe, stream)))
OXSHMEM_NV_FOR_EACH_RMA_TYPE(OXSHMEM_NV_SCALAR)
#undef OXSHMEM_NV_SCALAR

// put, get, their _nbi forms, put_signal, iput and iget. Those of a warp or block are a meeting of
// its threads on entry and, also the _nbi forms, on return, as programs written for NVSHMEM expect:
// what each thread has written before is sent, and what one thread does after, such as a quiet,
// follows all threads' part. PUT and GET are whole names without their
// prefix, such as int_put, put32 and putmem; T is what pointers point to, and `bytes` how many
// bytes the host moves.
#define OXSHMEM_NV_PUT(PUT, T, device_bytes, bytes)                                                                            \
    OXSHMEM_NV_SCOPES(void, PUT, (T * dst, const T *src, size_t n, int pe), S::sync();                                         \
                      oxshmem::putmem(S{}, dst, src, device_bytes, pe), oxshmem_nv_put(__func__, dst, src, bytes, pe))         \
    OXSHMEM_NV_SCOPES(void, PUT##_nbi, (T * dst, const T *src, size_t n, int pe), S::sync();                                   \
                      oxshmem::putmem_nbi(S{}, dst, src, device_bytes, pe);                                                    \
                      S::sync(), oxshmem_nv_put(__func__, dst, src, bytes, pe))                                                \
    OXSHMEM_NV_HOST(void, nvshmemx_##PUT##_on_stream, (T * dst, const T *src, size_t n, int pe, cudaStream_t stream),          \
                    oxshmem_nv_put_on_stream(__func__, dst, src, bytes, pe, stream))                                           \
    OXSHMEM_NV_HOST(void, nvshmemx_##PUT##_nbi_on_stream, (T * dst, const T *src, size_t n, int pe, cudaStream_t stream),      \
                    oxshmem_nv_put_on_stream(__func__, dst, src, bytes, pe, stream))
#define OXSHMEM_NV_GET(GET, T, device_bytes, bytes)                                                                            \
    OXSHMEM_NV_SCOPES(void, GET, (T * dst, const T *src, size_t n, int pe), S::sync();                                         \
                      oxshmem::getmem(S{}, dst, src, device_bytes, pe), oxshmem_nv_get(__func__, dst, src, bytes, pe))         \
    OXSHMEM_NV_SCOPES(void, GET##_nbi, (T * dst, const T *src, size_t n, int pe), S::sync();                                   \
                      oxshmem::getmem_nbi(S{}, dst, src, device_bytes, pe);                                                    \
                      S::sync(), oxshmem_nv_get(__func__, dst, src, bytes, pe))                                                \
    OXSHMEM_NV_HOST(void, nvshmemx_##GET##_on_stream, (T * dst, const T *src, size_t n, int pe, cudaStream_t stream),          \
                    oxshmem_nv_get_on_stream(__func__, dst, src, bytes, pe, stream))                                           \
    OXSHMEM_NV_HOST(void, nvshmemx_##GET##_nbi_on_stream, (T * dst, const T *src, size_t n, int pe, cudaStream_t stream),      \
                    oxshmem_nv_get_on_stream(__func__, dst, src, bytes, pe, stream))
#define OXSHMEM_NV_SIGNALLED(NAME, CALL, T, device_bytes, bytes)                                                               \
    OXSHMEM_NV_DEVICE_SCOPES(void, NAME, (T * dst, const T *src, size_t n, uint64_t *signal, uint64_t value, int op, int pe),  \
                             S::sync();                                                                                        \
                             oxshmem::CALL(S{}, dst, src, device_bytes, signal, value, oxshmem_nv::signal(op), pe); S::sync()) \
    OXSHMEM_NV_HOST(void, nvshmemx_##NAME##_on_stream,                                                                         \
                    (T * dst, const T *src, size_t n, uint64_t *signal, uint64_t value, int op, int pe, cudaStream_t stream),  \
                    oxshmem_nv_put_signal_on_stream(__func__, dst, src, bytes, signal, value, op, pe, stream))
#define OXSHMEM_NV_STRIDED(IPUT, IGET, T, E, element)                                                                          \
    OXSHMEM_NV_SCOPES(void, IPUT, (T * dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe),       \
                      S::sync();                                                                                               \
                      oxshmem::iput(S{}, static_cast<E *>(dst), static_cast<const E *>(src), dst_stride, src_stride, n, pe),   \
                      oxshmem_nv_iput(__func__, dst, src, dst_stride, src_stride, n, element, pe))                             \
    OXSHMEM_NV_SCOPES(void, IGET, (T * dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe),       \
                      S::sync();                                                                                               \
                      oxshmem::iget(S{}, static_cast<E *>(dst), static_cast<const E *>(src), dst_stride, src_stride, n, pe),   \
                      oxshmem_nv_iget(__func__, dst, src, dst_stride, src_stride, n, element, pe))                             \
    OXSHMEM_NV_HOST(                                                                                                           \
        void, nvshmemx_##IPUT##_on_stream,                                                                                     \
        (T * dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe, cudaStream_t stream),            \
        oxshmem_nv_iput_on_stream(__func__, dst, src, dst_stride, src_stride, n, element, pe, stream))                         \
    OXSHMEM_NV_HOST(                                                                                                           \
        void, nvshmemx_##IGET##_on_stream,                                                                                     \
        (T * dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe, cudaStream_t stream),            \
        oxshmem_nv_iget_on_stream(__func__, dst, src, dst_stride, src_stride, n, element, pe, stream))

#define OXSHMEM_NV_TYPED(name, T)                                                                                              \
    OXSHMEM_NV_PUT(name##_put, T, oxshmem_nv::bytes(n, sizeof(T)), oxshmem_nv::host_bytes(n, sizeof(T)))                       \
    OXSHMEM_NV_GET(name##_get, T, oxshmem_nv::bytes(n, sizeof(T)), oxshmem_nv::host_bytes(n, sizeof(T)))                       \
    OXSHMEM_NV_SIGNALLED(name##_put_signal, putmem_signal, T, oxshmem_nv::bytes(n, sizeof(T)),                                 \
                         oxshmem_nv::host_bytes(n, sizeof(T)))                                                                 \
    OXSHMEM_NV_SIGNALLED(name##_put_signal_nbi, putmem_signal_nbi, T, oxshmem_nv::bytes(n, sizeof(T)),                         \
                         oxshmem_nv::host_bytes(n, sizeof(T)))                                                                 \
    OXSHMEM_NV_STRIDED(name##_iput, name##_iget, T, T, sizeof(T))
OXSHMEM_NV_FOR_EACH_RMA_TYPE(OXSHMEM_NV_TYPED)
#undef OXSHMEM_NV_TYPED

#define OXSHMEM_NV_WORD_1 uint8_t
#define OXSHMEM_NV_WORD_2 uint16_t
#define OXSHMEM_NV_WORD_4 uint32_t
#define OXSHMEM_NV_WORD_8 uint64_t
#define OXSHMEM_NV_WORD_16 oxshmem::port::vec16
#define OXSHMEM_NV_SIZED(bits, size)                                                                                           \
    OXSHMEM_NV_PUT(put##bits, void, oxshmem_nv::bytes(n, size), oxshmem_nv::host_bytes(n, size))                               \
    OXSHMEM_NV_GET(get##bits, void, oxshmem_nv::bytes(n, size), oxshmem_nv::host_bytes(n, size))                               \
    OXSHMEM_NV_SIGNALLED(put##bits##_signal, putmem_signal, void, oxshmem_nv::bytes(n, size), oxshmem_nv::host_bytes(n, size)) \
    OXSHMEM_NV_SIGNALLED(put##bits##_signal_nbi, putmem_signal_nbi, void, oxshmem_nv::bytes(n, size),                          \
                         oxshmem_nv::host_bytes(n, size))                                                                      \
    OXSHMEM_NV_STRIDED(iput##bits, iget##bits, void, OXSHMEM_NV_WORD_##size, size)
OXSHMEM_NV_FOR_EACH_SIZE(OXSHMEM_NV_SIZED)
#undef OXSHMEM_NV_SIZED
#undef OXSHMEM_NV_WORD_1
#undef OXSHMEM_NV_WORD_2
#undef OXSHMEM_NV_WORD_4
#undef OXSHMEM_NV_WORD_8
#undef OXSHMEM_NV_WORD_16

OXSHMEM_NV_PUT(putmem, void, n, n)
OXSHMEM_NV_GET(getmem, void, n, n)
OXSHMEM_NV_SIGNALLED(putmem_signal, putmem_signal, void, n, n)
OXSHMEM_NV_SIGNALLED(putmem_signal_nbi, putmem_signal_nbi, void, n, n)
#undef OXSHMEM_NV_STRIDED
#undef OXSHMEM_NV_SIGNALLED
#undef OXSHMEM_NV_GET
#undef OXSHMEM_NV_PUT

// Signals.
OXSHMEM_NV_BOTH(void, nvshmemx_signal_op, (uint64_t * signal, uint64_t value, int op, int pe),
                oxshmem::signal_op(signal, value, oxshmem_nv::signal(op), pe),
                oxshmem_nv_signal_op(__func__, signal, value, op, pe))
OXSHMEM_NV_BOTH(uint64_t, nvshmem_signal_fetch, (uint64_t * signal), return oxshmem::signal_fetch(signal),
                return oxshmem_nv_signal_fetch(__func__, signal))
OXSHMEM_NV_DEVICE(thread, uint64_t, nvshmem_signal_wait_until, (uint64_t * signal, int cmp, uint64_t value),
                  return oxshmem::signal_wait_until(signal, oxshmem_nv::compare(cmp), value))
OXSHMEM_NV_BOTH(void, nvshmemx_signal_counted_reset, (uint64_t * signal),
                oxshmem::signal_op(signal, 0, oxshmem::SIGNAL_SET, oxshmem::my_pe()),
                oxshmem_nv_signal_op(__func__, signal, 0, NVSHMEM_SIGNAL_SET, oxshmem_nv_my_pe(__func__)))
OXSHMEM_NV_HOST(void, nvshmemx_signal_op_on_stream, (uint64_t * signal, uint64_t value, int op, int pe, cudaStream_t stream),
                oxshmem_nv_signal_op_on_stream(__func__, signal, value, op, pe, stream))
OXSHMEM_NV_HOST(void, nvshmemx_signal_wait_until_on_stream, (uint64_t * signal, int cmp, uint64_t value, cudaStream_t stream),
                oxshmem_nv_wait_on_stream(__func__, signal, 1, nullptr, cmp, value, nullptr,
                                          oxshmem_nv::element<uint64_t>::kType, stream))

// Ordering.
OXSHMEM_NV_BOTH(void, nvshmem_quiet, (), oxshmem_nv::quiet<S>(), oxshmem_nv_quiet(__func__))
OXSHMEM_NV_BOTH(void, nvshmem_fence, (), oxshmem_nv::fence(), oxshmem_nv_fence(__func__))
OXSHMEM_NV_HOST(void, nvshmemx_quiet_on_stream, (cudaStream_t stream), oxshmem_nv_quiet_on_stream(__func__, stream))
// The sources of what was put may be changed after a flush. What a quiet promises is more.
OXSHMEM_NV_BOTH(void, nvshmemx_flush, (), oxshmem_nv::quiet<S>(), oxshmem_nv_quiet(__func__))
OXSHMEM_NV_DEVICE(warp, void, nvshmemx_flush_warp, (), oxshmem_nv::quiet<S>())
OXSHMEM_NV_DEVICE(block, void, nvshmemx_flush_block, (), oxshmem_nv::quiet<S>())
OXSHMEM_NV_HOST(void, nvshmemx_flush_on_stream, (cudaStream_t stream), oxshmem_nv_quiet_on_stream(__func__, stream))

OXSHMEM_NV_BOTH(int, nvshmem_my_pe, (), return oxshmem::my_pe(), return oxshmem_nv_my_pe(__func__))
OXSHMEM_NV_BOTH(int, nvshmem_n_pes, (), return oxshmem::n_pes(), return oxshmem_nv_n_pes(__func__))
OXSHMEM_NV_BOTH(void *, nvshmem_ptr, (const void *address, int pe),
                return oxshmem::ptr(static_cast<char *>(const_cast<void *>(address)), pe),
                return oxshmem_nv_ptr(__func__, address, pe))
