// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What libnvshmem_host does for the names: a few functions that take addresses, bytes and numbers.
// `call` is the name that the program used, for messages. Those without a result end the job if
// they fail (see oxshmem_nv_error_handler); those that return int return a status of
// nvshmemx_status, and print why.
#pragma once

#include "types.h"

#ifdef OXSHMEM_NV_HOST_CODE
extern "C" {

// Called with the name of a call that failed and the reason, by calls that cannot return a status.
// If it returns, the call returns too. Null brings the default back, which prints both and ends the
// job.
typedef void (*oxshmem_nv_error_handler_t)(const char *call, const char *reason);
void oxshmem_nv_error_handler(oxshmem_nv_error_handler_t handler);

int oxshmem_nv_init(const char *call, int abi, unsigned flags, const nvshmemx_init_attr_t *attributes);
void oxshmem_nv_finalize(const char *call);
// Binds the PE to the GPU that is current, if it is not bound yet, and returns its number, -1 if it
// is on the `cpu` device. A status below -1 is an error that was printed.
int oxshmem_nv_bind(const char *call, int abi);

void oxshmem_nv_global_exit(const char *call, int status);

int oxshmem_nv_my_pe(const char *call);
int oxshmem_nv_n_pes(const char *call);
void *oxshmem_nv_ptr(const char *call, const void *address, int pe);

// Transfers; strides are in elements.
void oxshmem_nv_put(const char *call, void *dst, const void *src, size_t bytes, int pe);
void oxshmem_nv_get(const char *call, void *dst, const void *src, size_t bytes, int pe);
void oxshmem_nv_iput(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                     size_t element_bytes, int pe);
void oxshmem_nv_iget(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                     size_t element_bytes, int pe);
void oxshmem_nv_signal_op(const char *call, uint64_t *signal, uint64_t value, int op, int pe);
uint64_t oxshmem_nv_signal_fetch(const char *call, const uint64_t *signal);
void oxshmem_nv_quiet(const char *call);
void oxshmem_nv_fence(const char *call);

// The same on a stream. `p` takes the value when it is called, `g` waits for the stream.
void oxshmem_nv_put_on_stream(const char *call, void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream);
void oxshmem_nv_get_on_stream(const char *call, void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream);
void oxshmem_nv_iput_on_stream(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                               size_t n, size_t element_bytes, int pe, cudaStream_t stream);
void oxshmem_nv_iget_on_stream(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                               size_t n, size_t element_bytes, int pe, cudaStream_t stream);
void oxshmem_nv_p_on_stream(const char *call, void *dst, uint64_t value, size_t bytes, int pe, cudaStream_t stream);
uint64_t oxshmem_nv_g_on_stream(const char *call, const void *src, size_t bytes, int pe, cudaStream_t stream);
void oxshmem_nv_put_signal_on_stream(const char *call, void *dst, const void *src, size_t bytes, uint64_t *signal,
                                     uint64_t value, int op, int pe, cudaStream_t stream);
void oxshmem_nv_signal_op_on_stream(const char *call, uint64_t *signal, uint64_t value, int op, int pe, cudaStream_t stream);
void oxshmem_nv_quiet_on_stream(const char *call, cudaStream_t stream);

// Waits on a stream, for `n` variables of type `type` (an oxshmem_type) to compare true with
// `value`, or each with its own of `values` if that is not null. `status` and `values` are memory
// that kernels can read.
void oxshmem_nv_wait_on_stream(const char *call, const void *variables, size_t n, const int *status, int cmp, uint64_t value,
                               const void *values, int type, cudaStream_t stream);

// Atomics of 4 or 8 bytes; `op` is an oxshmem_atomic_op. Returns the old value.
uint64_t oxshmem_nv_atomic(const char *call, void *target, int op, size_t bytes, uint64_t operand, uint64_t compare, int pe);

// The same on a binary16 number; OXSHMEM_ATOMIC_FETCH, _SWAP and _FETCH_ADD.
uint16_t oxshmem_nv_half_atomic(const char *call, const void *target, int op, uint16_t operand, int pe);

// Collectives.
enum oxshmem_nv_collective {
    OXSHMEM_NV_SYNC,
    OXSHMEM_NV_BARRIER,
    OXSHMEM_NV_BROADCAST,
    OXSHMEM_NV_FCOLLECT,
    OXSHMEM_NV_ALLTOALL,
    OXSHMEM_NV_REDUCE,
    OXSHMEM_NV_REDUCESCATTER,
};
// `n`: bytes, but elements of reductions. `root` of a broadcast; `op` (an oxshmem_reduce_op) and
// `type` (an oxshmem_type) of reductions. `queue`: on `stream`, rather than at once.
int oxshmem_nv_collective(const char *call, int kind, nvshmem_team_t team, void *dst, const void *src, size_t n, int root,
                          int op, int type, int queue, cudaStream_t stream);
// The barrier or sync of all PEs, for calls without a status.
void oxshmem_nv_meet_all(const char *call, int kind, int queue, cudaStream_t stream);

int oxshmem_nv_team_my_pe(const char *call, nvshmem_team_t team);
int oxshmem_nv_team_n_pes(const char *call, nvshmem_team_t team);
int oxshmem_nv_team_translate_pe(const char *call, nvshmem_team_t source, int pe, nvshmem_team_t destination);

// Units of a program with device code: oxshmem/port/unit.h.
struct oxshmem_unit;
void oxshmem_nv_unit_register(const struct oxshmem_unit *unit);
void oxshmem_nv_unit_unregister(const struct oxshmem_unit *unit);
}
#endif
