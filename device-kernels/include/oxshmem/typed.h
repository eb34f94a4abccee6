// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The names that C programs know: oxshmem_<type>_<operation>, oxshmem_put<bits>, oxshmem_putmem,
// and oxshmemx_..._warp, _block and _grid for the wider scopes. Every one of them forwards to a
// template; see rma.h, signal.h, atomic.h, wait.h, ordering.h and barrier.h.
#pragma once

#include "oxshmem.h"
#include "types.h"

// X(prefix, suffix, scope), without the grid and with it.
#define OXSHMEM_FOR_EACH_NARROW_SCOPE(X, ...)                                                                                  \
    X(oxshmem_, , oxshmem::thread, __VA_ARGS__)                                                                                \
    X(oxshmemx_, _warp, oxshmem::warp, __VA_ARGS__)                                                                            \
    X(oxshmemx_, _block, oxshmem::block, __VA_ARGS__)
#define OXSHMEM_FOR_EACH_SCOPE(X, ...)                                                                                         \
    OXSHMEM_FOR_EACH_NARROW_SCOPE(X, __VA_ARGS__)                                                                              \
    X(oxshmemx_, _grid, oxshmem::grid, __VA_ARGS__)

#define OXSHMEM_NAME(name) oxshmem_##name
#define OXSHMEM_FOR_EACH_NAMED_SCOPE(X, ...) OXSHMEM_FOR_EACH_SCOPE(X, __VA_ARGS__)
#define OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE(X, ...) OXSHMEM_FOR_EACH_NARROW_SCOPE(X, __VA_ARGS__)
#define OXSHMEM_CONTEXT_PARAMETER
#define OXSHMEM_CONTEXT_ARGUMENT
#include "detail/typed_names.h"

#define OXSHMEM_DEFINE_WAIT(name, T)                                                                                           \
    OXSHMEM_DEVICE void oxshmem_##name##_wait_until(const T *ivar, oxshmem::detail::Named<oxshmem::Compare> cmp, T value) {    \
        oxshmem::wait_until(ivar, cmp, value);                                                                                 \
    }                                                                                                                          \
    OXSHMEM_DEVICE int oxshmem_##name##_test(const T *ivar, oxshmem::detail::Named<oxshmem::Compare> cmp, T value) {           \
        return oxshmem::test(ivar, cmp, value);                                                                                \
    }                                                                                                                          \
    OXSHMEM_DEFINE_WAIT_FORMS(name, T, , T)                                                                                    \
    OXSHMEM_DEFINE_WAIT_FORMS(name, T, _vector, const T *)
#define OXSHMEM_DEFINE_WAIT_FORMS(name, T, form, V)                                                                            \
    OXSHMEM_DEVICE void oxshmem_##name##_wait_until_all##form(const T *ivars, size_t n, const int *status,                     \
                                                              oxshmem::detail::Named<oxshmem::Compare> cmp, V value) {         \
        oxshmem::wait_until_all##form(ivars, n, status, cmp, value);                                                           \
    }                                                                                                                          \
    OXSHMEM_DEVICE size_t oxshmem_##name##_wait_until_any##form(const T *ivars, size_t n, const int *status,                   \
                                                                oxshmem::detail::Named<oxshmem::Compare> cmp, V value) {       \
        return oxshmem::wait_until_any##form(ivars, n, status, cmp, value);                                                    \
    }                                                                                                                          \
    OXSHMEM_DEVICE size_t oxshmem_##name##_wait_until_some##form(const T *ivars, size_t n, size_t *indices, const int *status, \
                                                                 oxshmem::detail::Named<oxshmem::Compare> cmp, V value) {      \
        return oxshmem::wait_until_some##form(ivars, n, indices, status, cmp, value);                                          \
    }                                                                                                                          \
    OXSHMEM_DEVICE int oxshmem_##name##_test_all##form(const T *ivars, size_t n, const int *status,                            \
                                                       oxshmem::detail::Named<oxshmem::Compare> cmp, V value) {                \
        return oxshmem::test_all##form(ivars, n, status, cmp, value);                                                          \
    }                                                                                                                          \
    OXSHMEM_DEVICE size_t oxshmem_##name##_test_any##form(const T *ivars, size_t n, const int *status,                         \
                                                          oxshmem::detail::Named<oxshmem::Compare> cmp, V value) {             \
        return oxshmem::test_any##form(ivars, n, status, cmp, value);                                                          \
    }                                                                                                                          \
    OXSHMEM_DEVICE size_t oxshmem_##name##_test_some##form(const T *ivars, size_t n, size_t *indices, const int *status,       \
                                                           oxshmem::detail::Named<oxshmem::Compare> cmp, V value) {            \
        return oxshmem::test_some##form(ivars, n, indices, status, cmp, value);                                                \
    }
OXSHMEM_FOR_EACH_WAIT_TYPE(OXSHMEM_DEFINE_WAIT)
#undef OXSHMEM_DEFINE_WAIT
#undef OXSHMEM_DEFINE_WAIT_FORMS

#define OXSHMEM_DEFINE_COLLECTIVE(prefix, suffix, scope, ...)                                                                  \
    OXSHMEM_DEVICE void prefix##quiet##suffix() {                                                                              \
        oxshmem::quiet(scope);                                                                                                 \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##barrier_all##suffix() {                                                                        \
        oxshmem::barrier_all(scope);                                                                                           \
    }                                                                                                                          \
    OXSHMEM_DEVICE void prefix##sync_all##suffix() {                                                                           \
        oxshmem::sync_all(scope);                                                                                              \
    }
OXSHMEM_FOR_EACH_SCOPE(OXSHMEM_DEFINE_COLLECTIVE, )
#undef OXSHMEM_DEFINE_COLLECTIVE

// Collectives over teams. They are templates whose parameter has a default that callers leave
// alone, so only what a program uses is compiled.
//
#define OXSHMEM_DEFINE_REDUCTION(prefix, suffix, scope, name, T, op)                                                           \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##name##_##op##_reduce##suffix(oxshmem::team_t team, T *dst, const T *src, size_t n) {            \
        return oxshmem::reduce(S{}, team, oxshmem::op_##op, dst, src, n);                                                      \
    }                                                                                                                          \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##name##_##op##_reducescatter##suffix(oxshmem::team_t team, T *dst, const T *src, size_t n) {     \
        return oxshmem::reducescatter(S{}, team, oxshmem::op_##op, dst, src, n);                                               \
    }                                                                                                                          \
    template <class S = std::decay_t<decltype(scope)>>                                                                         \
    OXSHMEM_DEVICE oxshmem::Begun<S> oxshmemx_##name##_##op##_reduce_begin##suffix(oxshmem::team_t team, T *dst, const T *src, \
                                                                                   size_t n) {                                 \
        return oxshmem::reduce_begin(S{}, team, oxshmem::op_##op, dst, src, n);                                                \
    }                                                                                                                          \
    template <class S = std::decay_t<decltype(scope)>>                                                                         \
    OXSHMEM_DEVICE oxshmem::Begun<S> oxshmemx_##name##_##op##_reducescatter_begin##suffix(oxshmem::team_t team, T *dst,        \
                                                                                          const T *src, size_t n) {            \
        return oxshmem::reducescatter_begin(S{}, team, oxshmem::op_##op, dst, src, n);                                         \
    }
#define OXSHMEM_DEFINE_REDUCTIONS(name, T, op) OXSHMEM_FOR_EACH_SCOPE(OXSHMEM_DEFINE_REDUCTION, name, T, op)
#define OXSHMEM_DEFINE_BITWISE(name, T)                                                                                        \
    OXSHMEM_DEFINE_REDUCTIONS(name, T, and)                                                                                    \
    OXSHMEM_DEFINE_REDUCTIONS(name, T, or)                                                                                     \
    OXSHMEM_DEFINE_REDUCTIONS(name, T, xor)
#define OXSHMEM_DEFINE_ORDERED(name, T)                                                                                        \
    OXSHMEM_DEFINE_REDUCTIONS(name, T, min)                                                                                    \
    OXSHMEM_DEFINE_REDUCTIONS(name, T, max)
#define OXSHMEM_DEFINE_SUM(name, T) OXSHMEM_DEFINE_REDUCTIONS(name, T, sum)
#define OXSHMEM_DEFINE_PROD(name, T) OXSHMEM_DEFINE_REDUCTIONS(name, T, prod)
OXSHMEM_FOR_EACH_BITWISE_REDUCE_TYPE(OXSHMEM_DEFINE_BITWISE)
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_DEFINE_ORDERED)
OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(OXSHMEM_DEFINE_ORDERED)
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_DEFINE_SUM)
OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(OXSHMEM_DEFINE_SUM)
OXSHMEM_FOR_EACH_COMPLEX_REDUCE_TYPE(OXSHMEM_DEFINE_SUM)
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_DEFINE_PROD)
OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(OXSHMEM_DEFINE_PROD)
OXSHMEM_FOR_EACH_COMPLEX_REDUCE_TYPE(OXSHMEM_DEFINE_PROD)
#undef OXSHMEM_DEFINE_PROD
#undef OXSHMEM_DEFINE_SUM
#undef OXSHMEM_DEFINE_ORDERED
#undef OXSHMEM_DEFINE_BITWISE
#undef OXSHMEM_DEFINE_REDUCTIONS
#undef OXSHMEM_DEFINE_REDUCTION

// `form` is the whole name in the middle, for example int_broadcast or broadcastmem.
#define OXSHMEM_DEFINE_GATHERING(prefix, suffix, scope, T, BROADCAST, COLLECT, FCOLLECT, ALLTOALL, ALLTOALLS, form)            \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##BROADCAST##suffix(oxshmem::team_t team, T *dst, const T *src, size_t n, int root) {             \
        return oxshmem::broadcast##form(S{}, team, dst, src, n, root);                                                         \
    }                                                                                                                          \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##COLLECT##suffix(oxshmem::team_t team, T *dst, const T *src, size_t n) {                         \
        return oxshmem::collect##form(S{}, team, dst, src, n);                                                                 \
    }                                                                                                                          \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##FCOLLECT##suffix(oxshmem::team_t team, T *dst, const T *src, size_t n) {                        \
        return oxshmem::fcollect##form(S{}, team, dst, src, n);                                                                \
    }                                                                                                                          \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##ALLTOALL##suffix(oxshmem::team_t team, T *dst, const T *src, size_t n) {                        \
        return oxshmem::alltoall##form(S{}, team, dst, src, n);                                                                \
    }                                                                                                                          \
    template <class S = decltype(scope)>                                                                                       \
    OXSHMEM_DEVICE int prefix##ALLTOALLS##suffix(oxshmem::team_t team, T *dst, const T *src, ptrdiff_t dst_stride,             \
                                                 ptrdiff_t src_stride, size_t n) {                                             \
        return oxshmem::alltoalls##form(S{}, team, dst, src, dst_stride, src_stride, n);                                       \
    }                                                                                                                          \
    template <class S = std::decay_t<decltype(scope)>>                                                                         \
    OXSHMEM_DEVICE oxshmem::Begun<S> oxshmemx_##BROADCAST##_begin##suffix(oxshmem::team_t team, T *dst, const T *src,          \
                                                                          size_t n, int root) {                                \
        return oxshmem::broadcast##form##_begin(S{}, team, dst, src, n, root);                                                 \
    }                                                                                                                          \
    template <class S = std::decay_t<decltype(scope)>>                                                                         \
    OXSHMEM_DEVICE oxshmem::Begun<S> oxshmemx_##FCOLLECT##_begin##suffix(oxshmem::team_t team, T *dst, const T *src,           \
                                                                         size_t n) {                                           \
        return oxshmem::fcollect##form##_begin(S{}, team, dst, src, n);                                                        \
    }                                                                                                                          \
    template <class S = std::decay_t<decltype(scope)>>                                                                         \
    OXSHMEM_DEVICE oxshmem::Begun<S> oxshmemx_##ALLTOALL##_begin##suffix(oxshmem::team_t team, T *dst, const T *src,           \
                                                                         size_t n) {                                           \
        return oxshmem::alltoall##form##_begin(S{}, team, dst, src, n);                                                        \
    }                                                                                                                          \
    template <class S = std::decay_t<decltype(scope)>>                                                                         \
    OXSHMEM_DEVICE oxshmem::Begun<S> oxshmemx_##ALLTOALLS##_begin##suffix(                                                     \
        oxshmem::team_t team, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n) {                    \
        return oxshmem::alltoalls##form##_begin(S{}, team, dst, src, dst_stride, src_stride, n);                               \
    }
#define OXSHMEM_DEFINE_TYPED_GATHERING(name, T)                                                                                \
    OXSHMEM_FOR_EACH_SCOPE(OXSHMEM_DEFINE_GATHERING, T, name##_broadcast, name##_collect, name##_fcollect, name##_alltoall,    \
                           name##_alltoalls, )
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_DEFINE_TYPED_GATHERING)
OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(OXSHMEM_DEFINE_TYPED_GATHERING)
OXSHMEM_FOR_EACH_SCOPE(OXSHMEM_DEFINE_GATHERING, void, broadcastmem, collectmem, fcollectmem, alltoallmem, alltoallsmem, mem)
#undef OXSHMEM_DEFINE_TYPED_GATHERING
#undef OXSHMEM_DEFINE_GATHERING

// Ends what a function whose name has _begin in it has begun.
template <class S> OXSHMEM_DEVICE int oxshmemx_end(const oxshmem::Begun<S> &begun) {
    return oxshmem::end(begun);
}

#define OXSHMEM_DEFINE_MEETING(prefix, suffix, scope, ...)                                                                     \
    OXSHMEM_DEVICE int prefix##team_sync##suffix(oxshmem::team_t team) {                                                       \
        return oxshmem::team_sync(scope, team);                                                                                \
    }                                                                                                                          \
    OXSHMEM_DEVICE int prefix##barrier##suffix(oxshmem::team_t team) {                                                         \
        return oxshmem::barrier(scope, team);                                                                                  \
    }
OXSHMEM_FOR_EACH_SCOPE(OXSHMEM_DEFINE_MEETING, )
#undef OXSHMEM_DEFINE_MEETING

OXSHMEM_DEVICE int oxshmem_team_my_pe(oxshmem::team_t team) {
    return oxshmem::team_my_pe(team);
}
OXSHMEM_DEVICE int oxshmem_team_n_pes(oxshmem::team_t team) {
    return oxshmem::team_n_pes(team);
}
OXSHMEM_DEVICE int oxshmem_team_translate_pe(oxshmem::team_t source, int pe, oxshmem::team_t destination) {
    return oxshmem::team_translate_pe(source, pe, destination);
}

OXSHMEM_DEVICE int oxshmem_my_pe() {
    return oxshmem::my_pe();
}
OXSHMEM_DEVICE int oxshmem_n_pes() {
    return oxshmem::n_pes();
}
OXSHMEM_DEVICE void *oxshmem_ptr(const void *address, int pe) {
    return oxshmem::ptr(static_cast<char *>(const_cast<void *>(address)), pe);
}
OXSHMEM_DEVICE void oxshmem_fence() {
    oxshmem::fence();
}
OXSHMEM_DEVICE void oxshmem_signal_op(uint64_t *signal, uint64_t value, oxshmem::detail::Named<oxshmem::SignalOp> op, int pe) {
    oxshmem::signal_op(signal, value, op, pe);
}
OXSHMEM_DEVICE uint64_t oxshmem_signal_fetch(const uint64_t *signal) {
    return oxshmem::signal_fetch(signal);
}
OXSHMEM_DEVICE uint64_t oxshmem_signal_wait_until(const uint64_t *signal, oxshmem::detail::Named<oxshmem::Compare> cmp,
                                                  uint64_t value) {
    return oxshmem::signal_wait_until(signal, cmp, value);
}
