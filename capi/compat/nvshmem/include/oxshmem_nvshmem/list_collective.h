// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names of collectives and of teams.

// A collective of all scopes, and on a stream. DEVICE is the template's call; what follows it are
// the arguments of oxshmem_nv_collective between `call` and `queue`, in parentheses.
#define OXSHMEM_NV_AT_ONCE(kind, ...) oxshmem_nv_collective(__func__, kind, __VA_ARGS__, 0, nullptr)
#define OXSHMEM_NV_QUEUED(kind, ...) oxshmem_nv_collective(__func__, kind, __VA_ARGS__, 1, stream)

#define OXSHMEM_NV_MEETING(rest, kind, device)                                                                                 \
    OXSHMEM_NV_SCOPES(int, rest, (nvshmem_team_t team), return device,                                                         \
                      return OXSHMEM_NV_AT_ONCE(kind, team, nullptr, nullptr, 0, 0, 0, 0))                                     \
    OXSHMEM_NV_HOST(int, nvshmemx_##rest##_on_stream, (nvshmem_team_t team, cudaStream_t stream),                              \
                    return OXSHMEM_NV_QUEUED(kind, team, nullptr, nullptr, 0, 0, 0, 0))
OXSHMEM_NV_MEETING(barrier, OXSHMEM_NV_BARRIER, oxshmem_nv::barrier<S>(team))
OXSHMEM_NV_MEETING(team_sync, OXSHMEM_NV_SYNC, oxshmem::team_sync(S{}, team))
OXSHMEM_NV_MEETING(sync, OXSHMEM_NV_SYNC, oxshmem::team_sync(S{}, team))
#undef OXSHMEM_NV_MEETING

OXSHMEM_NV_DEVICE(thread, int, nvshmemx_barrier_warpgroup, (nvshmem_team_t team), return oxshmem_nv::barrier_of_warpgroup(team))

#define OXSHMEM_NV_MEETING_OF_ALL(rest, kind, device)                                                                          \
    OXSHMEM_NV_SCOPES(void, rest, (), device, oxshmem_nv_meet_all(__func__, kind, 0, nullptr))                                 \
    OXSHMEM_NV_HOST(void, nvshmemx_##rest##_on_stream, (cudaStream_t stream), oxshmem_nv_meet_all(__func__, kind, 1, stream))
OXSHMEM_NV_MEETING_OF_ALL(barrier_all, OXSHMEM_NV_BARRIER, oxshmem_nv::barrier_all<S>())
OXSHMEM_NV_MEETING_OF_ALL(sync_all, OXSHMEM_NV_SYNC, oxshmem::sync_all(S{}))
#undef OXSHMEM_NV_MEETING_OF_ALL

// Collectives that move data. BROADCAST, FCOLLECT and ALLTOALL are whole names without their
// prefix.
#define OXSHMEM_NV_GATHERING(BROADCAST, FCOLLECT, ALLTOALL, T, device_bytes, bytes)                                            \
    OXSHMEM_NV_SCOPES(int, BROADCAST, (nvshmem_team_t team, T * dst, const T *src, size_t n, int root),                        \
                      return oxshmem::broadcastmem(S{}, team, dst, src, device_bytes, root),                                   \
                      return OXSHMEM_NV_AT_ONCE(OXSHMEM_NV_BROADCAST, team, dst, src, bytes, root, 0, 0))                      \
    OXSHMEM_NV_HOST(int, nvshmemx_##BROADCAST##_on_stream,                                                                     \
                    (nvshmem_team_t team, T * dst, const T *src, size_t n, int root, cudaStream_t stream),                     \
                    return OXSHMEM_NV_QUEUED(OXSHMEM_NV_BROADCAST, team, dst, src, bytes, root, 0, 0))                         \
    OXSHMEM_NV_SCOPES(int, FCOLLECT, (nvshmem_team_t team, T * dst, const T *src, size_t n),                                   \
                      return oxshmem::fcollectmem(S{}, team, dst, src, device_bytes),                                          \
                      return OXSHMEM_NV_AT_ONCE(OXSHMEM_NV_FCOLLECT, team, dst, src, bytes, 0, 0, 0))                          \
    OXSHMEM_NV_HOST(int, nvshmemx_##FCOLLECT##_on_stream,                                                                      \
                    (nvshmem_team_t team, T * dst, const T *src, size_t n, cudaStream_t stream),                               \
                    return OXSHMEM_NV_QUEUED(OXSHMEM_NV_FCOLLECT, team, dst, src, bytes, 0, 0, 0))                             \
    OXSHMEM_NV_SCOPES(int, ALLTOALL, (nvshmem_team_t team, T * dst, const T *src, size_t n),                                   \
                      return oxshmem::alltoallmem(S{}, team, dst, src, device_bytes),                                          \
                      return OXSHMEM_NV_AT_ONCE(OXSHMEM_NV_ALLTOALL, team, dst, src, bytes, 0, 0, 0))                          \
    OXSHMEM_NV_HOST(int, nvshmemx_##ALLTOALL##_on_stream,                                                                      \
                    (nvshmem_team_t team, T * dst, const T *src, size_t n, cudaStream_t stream),                               \
                    return OXSHMEM_NV_QUEUED(OXSHMEM_NV_ALLTOALL, team, dst, src, bytes, 0, 0, 0))
#define OXSHMEM_NV_TYPED(name, T)                                                                                              \
    OXSHMEM_NV_GATHERING(name##_broadcast, name##_fcollect, name##_alltoall, T, oxshmem_nv::bytes(n, sizeof(T)),               \
                         oxshmem_nv::host_bytes(n, sizeof(T)))
OXSHMEM_NV_FOR_EACH_RMA_TYPE(OXSHMEM_NV_TYPED)
#undef OXSHMEM_NV_TYPED
OXSHMEM_NV_GATHERING(broadcastmem, fcollectmem, alltoallmem, void, n, n)
#undef OXSHMEM_NV_GATHERING

// Reductions. `number` is that of the operator, an oxshmem_reduce_op.
#define OXSHMEM_NV_REDUCTION(NAME, T, CALL, kind, op, number)                                                                  \
    OXSHMEM_NV_SCOPES(                                                                                                         \
        int, NAME, (nvshmem_team_t team, T * dst, const T *src, size_t n),                                                     \
        return oxshmem::CALL(S{}, team, oxshmem::op_##op, oxshmem_nv::to_native(dst), oxshmem_nv::to_native(src), n),          \
        return OXSHMEM_NV_AT_ONCE(kind, team, dst, src, n, 0, number, oxshmem_nv::element<T>::kType))                          \
    OXSHMEM_NV_HOST(int, nvshmemx_##NAME##_on_stream,                                                                          \
                    (nvshmem_team_t team, T * dst, const T *src, size_t n, cudaStream_t stream),                               \
                    return OXSHMEM_NV_QUEUED(kind, team, dst, src, n, 0, number, oxshmem_nv::element<T>::kType))
#define OXSHMEM_NV_REDUCTIONS(name, T, op, number)                                                                             \
    OXSHMEM_NV_REDUCTION(name##_##op##_reduce, T, reduce, OXSHMEM_NV_REDUCE, op, number)                                       \
    OXSHMEM_NV_REDUCTION(name##_##op##_reducescatter, T, reducescatter, OXSHMEM_NV_REDUCESCATTER, op, number)
#define OXSHMEM_NV_BITWISE(name, T)                                                                                            \
    OXSHMEM_NV_REDUCTIONS(name, T, and, 0)                                                                                     \
    OXSHMEM_NV_REDUCTIONS(name, T, or, 1)                                                                                      \
    OXSHMEM_NV_REDUCTIONS(name, T, xor, 2)
#define OXSHMEM_NV_ARITHMETIC(name, T)                                                                                         \
    OXSHMEM_NV_REDUCTIONS(name, T, min, 3)                                                                                     \
    OXSHMEM_NV_REDUCTIONS(name, T, max, 4)                                                                                     \
    OXSHMEM_NV_REDUCTIONS(name, T, sum, 5)                                                                                     \
    OXSHMEM_NV_REDUCTIONS(name, T, prod, 6)
OXSHMEM_FOR_EACH_BITWISE_REDUCE_TYPE(OXSHMEM_NV_BITWISE)
OXSHMEM_NV_FOR_EACH_RMA_TYPE(OXSHMEM_NV_ARITHMETIC)
#undef OXSHMEM_NV_ARITHMETIC
#undef OXSHMEM_NV_BITWISE
#undef OXSHMEM_NV_REDUCTIONS
#undef OXSHMEM_NV_REDUCTION
OXSHMEM_NV_DEVICE(block, int, nvshmemx_double2_maxloc_reduce_block,
                  (nvshmem_team_t team, OXSHMEM_NV_DOUBLE2 *dst, const OXSHMEM_NV_DOUBLE2 *src, size_t n),
                  return oxshmem::detail::reduce_elements<S>(team, dst, src, n, true, oxshmem_nv::MaxLoc{}))
#undef OXSHMEM_NV_QUEUED
#undef OXSHMEM_NV_AT_ONCE

// Teams.
OXSHMEM_NV_BOTH(int, nvshmem_team_my_pe, (nvshmem_team_t team), return oxshmem::team_my_pe(team),
                return oxshmem_nv_team_my_pe(__func__, team))
OXSHMEM_NV_BOTH(int, nvshmem_team_n_pes, (nvshmem_team_t team), return oxshmem::team_n_pes(team),
                return oxshmem_nv_team_n_pes(__func__, team))
OXSHMEM_NV_BOTH(int, nvshmem_team_translate_pe, (nvshmem_team_t source, int pe, nvshmem_team_t destination),
                return oxshmem::team_translate_pe(source, pe, destination),
                return oxshmem_nv_team_translate_pe(__func__, source, pe, destination))
