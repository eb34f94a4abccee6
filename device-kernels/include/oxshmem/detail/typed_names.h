// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The names of remote memory access and atomics, without a context or with one: included once by
// typed.h and once by typed_context.h, which define
//   OXSHMEM_NAME(name)                the name with its prefix
//   OXSHMEM_FOR_EACH_NAMED_SCOPE(X, ...)    X(prefix, suffix, scope, ...) for each scope
//   OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE(X, ...)    the same for those up to the block
//   OXSHMEM_CONTEXT_PARAMETER         the first parameter and a comma, or nothing
//   OXSHMEM_CONTEXT_ARGUMENT          what the templates take for it, likewise

#ifndef OXSHMEM_DETAIL_NAMED
#define OXSHMEM_DETAIL_NAMED
namespace oxshmem::detail {

// A comparison or an update of a signal by its name in C++ or by its number, which C programs know
// (host.h).
template <class E> struct Named {
    E value;
    OXSHMEM_DEVICE Named(E name) : value(name) {}
    OXSHMEM_DEVICE Named(int number) : value(static_cast<E>(number)) {}
    OXSHMEM_DEVICE operator E() const { return value; }
};

} // namespace oxshmem::detail
#endif

#define OXSHMEM_DEFINE_SCALAR(name, T)                                                                                         \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_p)(OXSHMEM_CONTEXT_PARAMETER T * dst, T value, int pe) {                           \
        oxshmem::p(OXSHMEM_CONTEXT_ARGUMENT dst, value, pe);                                                                   \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_g)(OXSHMEM_CONTEXT_PARAMETER const T *src, int pe) {                                  \
        return oxshmem::g(OXSHMEM_CONTEXT_ARGUMENT src, pe);                                                                   \
    }
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_DEFINE_SCALAR)
OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(OXSHMEM_DEFINE_SCALAR)
#undef OXSHMEM_DEFINE_SCALAR

// Bulk operations; PUT and GET are the whole name up to the suffix, for example oxshmem_int_put or
// oxshmem_put32. P is what the pointers are to: T, or void, which takes any type of that size.
#define OXSHMEM_DEFINE_BULK(prefix, suffix, scope, P, T, PUT, GET)                                                             \
    OXSHMEM_DEVICE void prefix##PUT##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, size_t n, int pe) {                \
        oxshmem::put(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), n, pe);               \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##GET##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, size_t n, int pe) {                \
        oxshmem::get(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), n, pe);               \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##PUT##_nbi##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, size_t n, int pe) {          \
        oxshmem::put_nbi(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), n, pe);           \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##GET##_nbi##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, size_t n, int pe) {          \
        oxshmem::get_nbi(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), n, pe);           \
    }

#define OXSHMEM_DEFINE_BULK_SIGNAL(prefix, suffix, scope, P, T, PUT)                                                           \
    OXSHMEM_DEVICE void prefix##PUT##_signal##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, size_t n,                 \
                                                     uint64_t *signal, uint64_t value,                                         \
                                                     oxshmem::detail::Named<oxshmem::SignalOp> op, int pe) {                   \
        oxshmem::put_signal(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), n, signal,     \
                            value, op, pe);                                                                                    \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##PUT##_signal_nbi##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, size_t n,             \
                                                         uint64_t *signal, uint64_t value,                                     \
                                                         oxshmem::detail::Named<oxshmem::SignalOp> op, int pe) {               \
        oxshmem::put_signal_nbi(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), n, signal, \
                                value, op, pe);                                                                                \
    }

#define OXSHMEM_DEFINE_STRIDED(prefix, suffix, scope, P, T, IPUT, IGET)                                                        \
    OXSHMEM_DEVICE void prefix##IPUT##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, ptrdiff_t dst_stride,             \
                                             ptrdiff_t src_stride, size_t n, int pe) {                                         \
        oxshmem::iput(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), dst_stride,          \
                      src_stride, n, pe);                                                                                      \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##IGET##suffix(OXSHMEM_CONTEXT_PARAMETER P *dst, const P *src, ptrdiff_t dst_stride,             \
                                             ptrdiff_t src_stride, size_t n, int pe) {                                         \
        oxshmem::iget(OXSHMEM_CONTEXT_ARGUMENT scope, static_cast<T *>(dst), static_cast<const T *>(src), dst_stride,          \
                      src_stride, n, pe);                                                                                      \
    }

#define OXSHMEM_DEFINE_TYPED(name, T)                                                                                          \
    OXSHMEM_FOR_EACH_NAMED_SCOPE(OXSHMEM_DEFINE_BULK, T, T, name##_put, name##_get)                                            \
    OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE(OXSHMEM_DEFINE_BULK_SIGNAL, T, T, name##_put)                                          \
    OXSHMEM_FOR_EACH_NAMED_SCOPE(OXSHMEM_DEFINE_STRIDED, T, T, name##_iput, name##_iget)
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_DEFINE_TYPED)
OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(OXSHMEM_DEFINE_TYPED)
#undef OXSHMEM_DEFINE_TYPED

#define OXSHMEM_DEFINE_SIZED(bits, T)                                                                                          \
    OXSHMEM_FOR_EACH_NAMED_SCOPE(OXSHMEM_DEFINE_BULK, void, T, put##bits, get##bits)                                           \
    OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE(OXSHMEM_DEFINE_BULK_SIGNAL, void, T, put##bits)                                        \
    OXSHMEM_FOR_EACH_NAMED_SCOPE(OXSHMEM_DEFINE_STRIDED, void, T, iput##bits, iget##bits)
OXSHMEM_FOR_EACH_SIZE(OXSHMEM_DEFINE_SIZED)
#undef OXSHMEM_DEFINE_SIZED
#undef OXSHMEM_DEFINE_BULK
#undef OXSHMEM_DEFINE_BULK_SIGNAL
#undef OXSHMEM_DEFINE_STRIDED

#define OXSHMEM_DEFINE_MEM(prefix, suffix, scope, ...)                                                                         \
    OXSHMEM_DEVICE void prefix##putmem##suffix(OXSHMEM_CONTEXT_PARAMETER void *dst, const void *src, size_t bytes, int pe) {   \
        oxshmem::putmem(OXSHMEM_CONTEXT_ARGUMENT scope, dst, src, bytes, pe);                                                  \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##getmem##suffix(OXSHMEM_CONTEXT_PARAMETER void *dst, const void *src, size_t bytes, int pe) {   \
        oxshmem::getmem(OXSHMEM_CONTEXT_ARGUMENT scope, dst, src, bytes, pe);                                                  \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##putmem_nbi##suffix(OXSHMEM_CONTEXT_PARAMETER void *dst, const void *src, size_t bytes,         \
                                                   int pe) {                                                                   \
        oxshmem::putmem_nbi(OXSHMEM_CONTEXT_ARGUMENT scope, dst, src, bytes, pe);                                              \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##getmem_nbi##suffix(OXSHMEM_CONTEXT_PARAMETER void *dst, const void *src, size_t bytes,         \
                                                   int pe) {                                                                   \
        oxshmem::getmem_nbi(OXSHMEM_CONTEXT_ARGUMENT scope, dst, src, bytes, pe);                                              \
    }
OXSHMEM_FOR_EACH_NAMED_SCOPE(OXSHMEM_DEFINE_MEM, )
#undef OXSHMEM_DEFINE_MEM

#define OXSHMEM_DEFINE_MEM_SIGNAL(prefix, suffix, scope, ...)                                                                  \
    OXSHMEM_DEVICE void prefix##putmem_signal##suffix(OXSHMEM_CONTEXT_PARAMETER void *dst, const void *src, size_t bytes,      \
                                                      uint64_t *signal, uint64_t value,                                        \
                                                      oxshmem::detail::Named<oxshmem::SignalOp> op, int pe) {                  \
        oxshmem::putmem_signal(OXSHMEM_CONTEXT_ARGUMENT scope, dst, src, bytes, signal, value, op, pe);                        \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##putmem_signal_nbi##suffix(OXSHMEM_CONTEXT_PARAMETER void *dst, const void *src, size_t bytes,  \
                                                          uint64_t *signal, uint64_t value,                                    \
                                                          oxshmem::detail::Named<oxshmem::SignalOp> op, int pe) {              \
        oxshmem::putmem_signal_nbi(OXSHMEM_CONTEXT_ARGUMENT scope, dst, src, bytes, signal, value, op, pe);                    \
    }
OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE(OXSHMEM_DEFINE_MEM_SIGNAL, )
#undef OXSHMEM_DEFINE_MEM_SIGNAL

#define OXSHMEM_DEFINE_EXTENDED_ATOMIC(name, T)                                                                                \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_fetch)(OXSHMEM_CONTEXT_PARAMETER const T *source, int pe) {                    \
        return oxshmem::atomic_fetch(OXSHMEM_CONTEXT_ARGUMENT source, pe);                                                     \
    }                                                                                                                          \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_atomic_set)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {               \
        oxshmem::atomic_set(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                                       \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_swap)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {                 \
        return oxshmem::atomic_swap(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                               \
    }
OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(OXSHMEM_DEFINE_EXTENDED_ATOMIC)
OXSHMEM_FOR_EACH_FLOATING_ATOMIC_TYPE(OXSHMEM_DEFINE_EXTENDED_ATOMIC)
#undef OXSHMEM_DEFINE_EXTENDED_ATOMIC

#define OXSHMEM_DEFINE_STANDARD_ATOMIC(name, T)                                                                                \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_compare_swap)(OXSHMEM_CONTEXT_PARAMETER T * target, T expected, T desired,     \
                                                              int pe) {                                                        \
        return oxshmem::atomic_compare_swap(OXSHMEM_CONTEXT_ARGUMENT target, expected, desired, pe);                           \
    }                                                                                                                          \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_atomic_add)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {               \
        oxshmem::atomic_add(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                                       \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_fetch_add)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {            \
        return oxshmem::atomic_fetch_add(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                          \
    }                                                                                                                          \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_atomic_inc)(OXSHMEM_CONTEXT_PARAMETER T * target, int pe) {                        \
        oxshmem::atomic_inc(OXSHMEM_CONTEXT_ARGUMENT target, pe);                                                              \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_fetch_inc)(OXSHMEM_CONTEXT_PARAMETER T * target, int pe) {                     \
        return oxshmem::atomic_fetch_inc(OXSHMEM_CONTEXT_ARGUMENT target, pe);                                                 \
    }
OXSHMEM_FOR_EACH_STANDARD_ATOMIC_TYPE(OXSHMEM_DEFINE_STANDARD_ATOMIC)
#undef OXSHMEM_DEFINE_STANDARD_ATOMIC

#define OXSHMEM_DEFINE_BITWISE_ATOMIC(name, T)                                                                                 \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_atomic_and)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {               \
        oxshmem::atomic_and(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                                       \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_fetch_and)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {            \
        return oxshmem::atomic_fetch_and(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                          \
    }                                                                                                                          \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_atomic_or)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {                \
        oxshmem::atomic_or(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                                        \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_fetch_or)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {             \
        return oxshmem::atomic_fetch_or(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                           \
    }                                                                                                                          \
    OXSHMEM_DEVICE void OXSHMEM_NAME(name##_atomic_xor)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {               \
        oxshmem::atomic_xor(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                                       \
    }                                                                                                                          \
    OXSHMEM_DEVICE T OXSHMEM_NAME(name##_atomic_fetch_xor)(OXSHMEM_CONTEXT_PARAMETER T * target, T value, int pe) {            \
        return oxshmem::atomic_fetch_xor(OXSHMEM_CONTEXT_ARGUMENT target, value, pe);                                          \
    }
OXSHMEM_FOR_EACH_BITWISE_ATOMIC_TYPE(OXSHMEM_DEFINE_BITWISE_ATOMIC)
#undef OXSHMEM_DEFINE_BITWISE_ATOMIC

#undef OXSHMEM_NAME
#undef OXSHMEM_FOR_EACH_NAMED_SCOPE
#undef OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE
#undef OXSHMEM_CONTEXT_PARAMETER
#undef OXSHMEM_CONTEXT_ARGUMENT
