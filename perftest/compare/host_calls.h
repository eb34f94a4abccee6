// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Operations that the host queues on a stream, for the rows that measure them: each with the same
// arguments, over OxSHMEM or, with COMPARE_NVSHMEM, over NVSHMEM. `bytes`: of one member's part for
// alltoall and fcollect, of one member's result for reduce and reducescatter. Reductions add 64-bit
// words.
#pragma once

#include "host_layer.h"

#include <cuda_runtime.h>

namespace compare {

struct Queued {
    char *dst;
    const char *src;
    uint64_t bytes;
    int root; // of a broadcast
    int peer; // of a put, a get and a signal
    cudaStream_t stream;
    uint64_t *signal;
    uint64_t turn; // the value of a signal, and of a word
};

using QueueCall = int (*)(const Queued &);

#ifndef COMPARE_NVSHMEM

inline int stream_put(const Queued &q) {
    return oxshmemx_putmem_on_stream(q.dst, q.src, q.bytes, q.peer, q.stream);
}
inline int stream_put_quiet(const Queued &q) {
    const int failed = stream_put(q);
    return failed != 0 ? failed : oxshmemx_quiet_on_stream(q.stream);
}
inline int stream_get(const Queued &q) {
    return oxshmemx_getmem_on_stream(q.dst, q.src, q.bytes, q.peer, q.stream);
}
inline int stream_p(const Queued &q) {
    return oxshmemx_put_word_on_stream(q.signal, q.turn, sizeof(q.turn), q.peer, q.stream);
}
inline int stream_signal(const Queued &q) {
    return oxshmemx_signal_op_on_stream(q.signal, q.turn, OXSHMEM_SIGNAL_SET, q.peer, q.stream);
}
inline int stream_put_signal(const Queued &q) {
    return oxshmemx_putmem_signal_on_stream(q.dst, q.src, q.bytes, q.signal, q.turn, OXSHMEM_SIGNAL_SET, q.peer, q.stream);
}
inline int stream_barrier_all(const Queued &q) {
    return oxshmemx_barrier_all_on_stream(q.stream);
}
inline int stream_sync_all(const Queued &q) {
    return oxshmemx_sync_all_on_stream(q.stream);
}
inline int stream_broadcast(const Queued &q) {
    return oxshmemx_broadcastmem_on_stream(OXSHMEM_TEAM_WORLD, q.dst, q.src, q.bytes, q.root, q.stream);
}
inline int stream_fcollect(const Queued &q) {
    return oxshmemx_fcollectmem_on_stream(OXSHMEM_TEAM_WORLD, q.dst, q.src, q.bytes, q.stream);
}
inline int stream_alltoall(const Queued &q) {
    return oxshmemx_alltoallmem_on_stream(OXSHMEM_TEAM_WORLD, q.dst, q.src, q.bytes, q.stream);
}
inline int stream_reduce(const Queued &q) {
    return oxshmemx_reduce_on_stream(OXSHMEM_TEAM_WORLD, OXSHMEM_REDUCE_SUM, OXSHMEM_TYPE_UINT64, q.dst, q.src, q.bytes / 8,
                                     q.stream);
}
inline int stream_reducescatter(const Queued &q) {
    return oxshmemx_reducescatter_on_stream(OXSHMEM_TEAM_WORLD, OXSHMEM_REDUCE_SUM, OXSHMEM_TYPE_UINT64, q.dst, q.src,
                                            q.bytes / 8, q.stream);
}

#else

inline int stream_put(const Queued &q) {
    nvshmemx_putmem_on_stream(q.dst, q.src, q.bytes, q.peer, q.stream);
    return 0;
}
inline int stream_put_quiet(const Queued &q) {
    stream_put(q);
    nvshmemx_quiet_on_stream(q.stream);
    return 0;
}
inline int stream_get(const Queued &q) {
    nvshmemx_getmem_on_stream(q.dst, q.src, q.bytes, q.peer, q.stream);
    return 0;
}
inline int stream_p(const Queued &q) {
    nvshmemx_uint64_p_on_stream(q.signal, q.turn, q.peer, q.stream);
    return 0;
}
inline int stream_signal(const Queued &q) {
    nvshmemx_signal_op_on_stream(q.signal, q.turn, NVSHMEM_SIGNAL_SET, q.peer, q.stream);
    return 0;
}
inline int stream_put_signal(const Queued &q) {
    nvshmemx_putmem_signal_on_stream(q.dst, q.src, q.bytes, q.signal, q.turn, NVSHMEM_SIGNAL_SET, q.peer, q.stream);
    return 0;
}
inline int stream_barrier_all(const Queued &q) {
    nvshmemx_barrier_all_on_stream(q.stream);
    return 0;
}
inline int stream_sync_all(const Queued &q) {
    nvshmemx_sync_all_on_stream(q.stream);
    return 0;
}
inline int stream_broadcast(const Queued &q) {
    return nvshmemx_broadcastmem_on_stream(NVSHMEM_TEAM_WORLD, q.dst, q.src, q.bytes, q.root, q.stream);
}
inline int stream_fcollect(const Queued &q) {
    return nvshmemx_fcollectmem_on_stream(NVSHMEM_TEAM_WORLD, q.dst, q.src, q.bytes, q.stream);
}
inline int stream_alltoall(const Queued &q) {
    return nvshmemx_alltoallmem_on_stream(NVSHMEM_TEAM_WORLD, q.dst, q.src, q.bytes, q.stream);
}
inline int stream_reduce(const Queued &q) {
    return nvshmemx_uint64_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, reinterpret_cast<uint64_t *>(q.dst),
                                                reinterpret_cast<const uint64_t *>(q.src), q.bytes / 8, q.stream);
}
inline int stream_reducescatter(const Queued &q) {
    return nvshmemx_uint64_sum_reducescatter_on_stream(NVSHMEM_TEAM_WORLD, reinterpret_cast<uint64_t *>(q.dst),
                                                       reinterpret_cast<const uint64_t *>(q.src), q.bytes / 8, q.stream);
}

#endif

} // namespace compare
