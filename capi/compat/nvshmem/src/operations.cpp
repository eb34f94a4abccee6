// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Memory, transfers, atomics, collectives, teams and modules: each gives the PE its device if it
// has none, and calls liboxshmem.

#include "internal.h"

#include <oxshmem/port/numbers.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

using namespace oxshmem_nv;

namespace {

// Calls that have no status report failures to the handler.
template <class Call> void run(const char *call, Call operation) {
    if (bound(call, false)) {
        check(call, operation());
    }
}

template <class Call> int run_with_status(const char *call, Call operation) {
    return bound(call, true) ? translate(call, operation()) : static_cast<int>(NVSHMEMX_ERROR_GPU_NOT_SELECTED);
}

// What nvshmemx_buffer_register_symmetric has returned, with its bytes.
std::mutex symmetric_guard;
std::map<void *, size_t> symmetric_bytes;

} // namespace

extern "C" {

int oxshmem_nv_my_pe(const char *call) {
    const int pe = oxshmem_host_my_pe();
    if (pe < 0) {
        fail(call, "there is no PE: call nvshmem_init first, and nothing after nvshmem_finalize");
    }
    return pe;
}

int oxshmem_nv_n_pes(const char *call) {
    const int n = oxshmem_host_n_pes();
    if (n < 0) {
        fail(call, "there is no PE: call nvshmem_init first, and nothing after nvshmem_finalize");
    }
    return n;
}

void *oxshmem_nv_ptr(const char *call, const void *address, int pe) {
    return bound(call, false) ? oxshmem_host_ptr(address, pe) : nullptr;
}

// Memory. A failure is a null pointer, and is printed.

// Atomics on numbers of 16 bits take the word of 32 that they are in, so allocations end with one.
static size_t whole_words(size_t bytes) {
    return bytes > SIZE_MAX - 3 ? bytes : (bytes + 3) & ~size_t{3};
}

static void *allocated(const char *call, void *memory, size_t bytes) {
    if (memory == nullptr && bytes != 0) {
        print(call, "%s", oxshmem_error());
    }
    return memory;
}

void *nvshmem_malloc(size_t bytes) {
    return on_own_gpu(__func__) ? allocated(__func__, oxshmem_malloc(whole_words(bytes)), bytes) : nullptr;
}
void *nvshmem_calloc(size_t count, size_t bytes) {
    size_t all = 0;
    const bool fits = !__builtin_mul_overflow(count, bytes, &all);
    return on_own_gpu(__func__) ? allocated(__func__, oxshmem_calloc(1, fits ? whole_words(all) : SIZE_MAX), all) : nullptr;
}
void *nvshmem_align(size_t alignment, size_t bytes) {
    return on_own_gpu(__func__) ? allocated(__func__, oxshmem_align(alignment, whole_words(bytes)), bytes) : nullptr;
}
void nvshmem_free(void *address) {
    run(__func__, [&] { return oxshmem_free(address); });
}

void *nvshmemx_buffer_register_symmetric(void *buffer, size_t bytes, int flags) {
    if (!bound(__func__, true)) {
        return nullptr;
    }
    if (flags != 0) {
        print(__func__, "flags %#x; there are none yet, so pass 0", static_cast<unsigned>(flags));
        return nullptr;
    }
    void *const symmetric = oxshmemx_buffer_register_symmetric(buffer, bytes);
    if (symmetric == nullptr) {
        print(__func__, "%s", oxshmem_error());
        return nullptr;
    }
    const std::lock_guard<std::mutex> lock(symmetric_guard);
    symmetric_bytes[symmetric] = bytes;
    return symmetric;
}
int nvshmemx_buffer_unregister_symmetric(void *address, size_t bytes) {
    const int status = run_with_status(__func__, [&] { return oxshmemx_buffer_unregister_symmetric(address); });
    if (status == NVSHMEMX_SUCCESS) {
        const std::lock_guard<std::mutex> lock(symmetric_guard);
        const auto found = symmetric_bytes.find(address);
        if (found != symmetric_bytes.end() && found->second != bytes) {
            print(__func__, "%p was registered with %zu bytes, not %zu; all of it is unregistered", address, found->second,
                  bytes);
        }
        symmetric_bytes.erase(address);
    }
    return status;
}

// Transfers.

void oxshmem_nv_put(const char *call, void *dst, const void *src, size_t bytes, int pe) {
    run(call, [&] { return oxshmem_host_putmem(dst, src, bytes, pe); });
}
void oxshmem_nv_get(const char *call, void *dst, const void *src, size_t bytes, int pe) {
    run(call, [&] { return oxshmem_host_getmem(dst, src, bytes, pe); });
}
void oxshmem_nv_iput(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                     size_t element_bytes, int pe) {
    run(call, [&] { return oxshmem_host_iputmem(dst, src, dst_stride, src_stride, n, element_bytes, pe); });
}
void oxshmem_nv_iget(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                     size_t element_bytes, int pe) {
    run(call, [&] { return oxshmem_host_igetmem(dst, src, dst_stride, src_stride, n, element_bytes, pe); });
}
void oxshmem_nv_signal_op(const char *call, uint64_t *signal, uint64_t value, int op, int pe) {
    run(call, [&] { return oxshmem_host_signal_op(signal, value, op, pe); });
}
uint64_t oxshmem_nv_signal_fetch(const char *call, const uint64_t *signal) {
    uint64_t value = 0;
    run(call, [&] { return oxshmem_host_signal_fetch(signal, &value); });
    return value;
}
void oxshmem_nv_quiet(const char *call) {
    run(call, oxshmem_host_quiet);
}
void oxshmem_nv_fence(const char *call) {
    run(call, oxshmem_host_fence);
}

void oxshmem_nv_put_on_stream(const char *call, void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_putmem_on_stream(dst, src, bytes, pe, stream); });
}
void oxshmem_nv_get_on_stream(const char *call, void *dst, const void *src, size_t bytes, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_getmem_on_stream(dst, src, bytes, pe, stream); });
}
void oxshmem_nv_iput_on_stream(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                               size_t n, size_t element_bytes, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_iputmem_on_stream(dst, src, dst_stride, src_stride, n, element_bytes, pe, stream); });
}
void oxshmem_nv_iget_on_stream(const char *call, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                               size_t n, size_t element_bytes, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_igetmem_on_stream(dst, src, dst_stride, src_stride, n, element_bytes, pe, stream); });
}
void oxshmem_nv_p_on_stream(const char *call, void *dst, uint64_t value, size_t bytes, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_put_word_on_stream(dst, value, bytes, pe, stream); });
}
uint64_t oxshmem_nv_g_on_stream(const char *call, const void *src, size_t bytes, int pe, cudaStream_t stream) {
    uint64_t value = 0;
    run(call, [&] {
        const int status = oxshmemx_stream_synchronize(stream);
        return status != OXSHMEM_SUCCESS ? status : oxshmem_host_getmem(&value, src, bytes, pe);
    });
    return value;
}
void oxshmem_nv_put_signal_on_stream(const char *call, void *dst, const void *src, size_t bytes, uint64_t *signal,
                                     uint64_t value, int op, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_putmem_signal_on_stream(dst, src, bytes, signal, value, op, pe, stream); });
}
void oxshmem_nv_signal_op_on_stream(const char *call, uint64_t *signal, uint64_t value, int op, int pe, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_signal_op_on_stream(signal, value, op, pe, stream); });
}
void oxshmem_nv_quiet_on_stream(const char *call, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_quiet_on_stream(stream); });
}
void oxshmem_nv_wait_on_stream(const char *call, const void *variables, size_t n, const int *status, int cmp, uint64_t value,
                               const void *values, int type, cudaStream_t stream) {
    run(call, [&] { return oxshmemx_wait_until_all_on_stream(variables, n, status, cmp, type, value, values, stream); });
}
uint64_t oxshmem_nv_atomic(const char *call, void *target, int op, size_t bytes, uint64_t operand, uint64_t compare, int pe) {
    uint64_t old = 0;
    run(call, [&] { return oxshmem_host_atomic(target, bytes, op, operand, compare, &old, pe); });
    return old;
}

uint16_t oxshmem_nv_half_atomic(const char *call, const void *target, int op, uint16_t operand, int pe) {
    using oxshmem::port::float_to_half;
    using oxshmem::port::half_to_float;
    const auto address = reinterpret_cast<uintptr_t>(target);
    // An odd address stays one, and is refused.
    auto *const word = reinterpret_cast<void *>((address & 1) != 0 ? address : address & ~uintptr_t{3});
    const unsigned shift = (address & 2) != 0 ? 16 : 0;
    uint64_t seen = oxshmem_nv_atomic(call, word, OXSHMEM_ATOMIC_FETCH, 4, 0, 0, pe);
    for (;;) {
        const auto before = static_cast<uint16_t>(seen >> shift);
        const uint16_t after = op == OXSHMEM_ATOMIC_FETCH  ? before
                               : op == OXSHMEM_ATOMIC_SWAP ? operand
                                                           : float_to_half(half_to_float(before) + half_to_float(operand));
        if (before == after) {
            return before;
        }
        const uint64_t wanted = (seen & ~(uint64_t{0xffff} << shift)) | static_cast<uint64_t>(after) << shift;
        const uint64_t found = oxshmem_nv_atomic(call, word, OXSHMEM_ATOMIC_COMPARE_SWAP, 4, wanted, seen, pe);
        // After an error that the handler let pass every call returns 0.
        if (found == seen) {
            return before;
        }
        seen = found;
    }
}

// Memory of the program.

int nvshmemx_buffer_register(void *address, size_t bytes) {
    return run_with_status(__func__, [&] { return oxshmemx_buffer_register(address, bytes); });
}
int nvshmemx_buffer_unregister(void *address) {
    return run_with_status(__func__, [&] { return oxshmemx_buffer_unregister(address); });
}
void nvshmemx_buffer_unregister_all(void) {
    run(__func__, oxshmemx_buffer_unregister_all);
}

// Queue pairs.

int nvshmemx_qp_create(int count, nvshmemx_qp_handle_t **handles) {
    if (handles == nullptr) {
        print(__func__, "the pointer for the handles is null");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    *handles = nullptr;
    const oxshmemx_ctx_config_t config = {count, OXSHMEMX_CTX_DEVICE, 0, -1, OXSHMEMX_CTX_RAILS_AUTO};
    std::vector<oxshmem_ctx_t> contexts(count > 0 ? static_cast<size_t>(count) : 1);
    int first = 0;
    const int status = run_with_status(__func__, [&] {
        const int created = oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, contexts.data());
        return created != OXSHMEM_SUCCESS ? created : oxshmemx_ctx_number(contexts[0], &first);
    });
    if (status != NVSHMEMX_SUCCESS) {
        return status;
    }
    auto *made = static_cast<nvshmemx_qp_handle_t *>(std::malloc(contexts.size() * sizeof(nvshmemx_qp_handle_t)));
    if (made == nullptr) {
        print(__func__, "there is no memory for %d handles", count);
        return NVSHMEMX_ERROR_OUT_OF_MEMORY;
    }
    for (int i = 0; i < count; ++i) {
        made[i] = OXSHMEM_NV_QP_FIRST + first + i;
    }
    *handles = made;
    return NVSHMEMX_SUCCESS;
}

// Collectives.

static int collective(int kind, nvshmem_team_t team, void *dst, const void *src, size_t n, int root, int op, int type) {
    switch (kind) {
    case OXSHMEM_NV_SYNC:
        return oxshmem_host_team_sync(team);
    case OXSHMEM_NV_BARRIER:
        return oxshmem_host_barrier(team);
    case OXSHMEM_NV_BROADCAST:
        return oxshmem_host_broadcastmem(team, dst, src, n, root);
    case OXSHMEM_NV_FCOLLECT:
        return oxshmem_host_fcollectmem(team, dst, src, n);
    case OXSHMEM_NV_ALLTOALL:
        return oxshmem_host_alltoallmem(team, dst, src, n);
    case OXSHMEM_NV_REDUCE:
        return oxshmem_host_reduce(team, static_cast<oxshmem_reduce_op>(op), static_cast<oxshmem_type>(type), dst, src, n);
    default:
        return oxshmem_host_reducescatter(team, static_cast<oxshmem_reduce_op>(op), static_cast<oxshmem_type>(type), dst, src,
                                          n);
    }
}

static int collective_on_stream(int kind, nvshmem_team_t team, void *dst, const void *src, size_t n, int root, int op, int type,
                                cudaStream_t stream) {
    switch (kind) {
    case OXSHMEM_NV_SYNC:
        return oxshmemx_team_sync_on_stream(team, stream);
    case OXSHMEM_NV_BARRIER:
        return oxshmemx_barrier_on_stream(team, stream);
    case OXSHMEM_NV_BROADCAST:
        return oxshmemx_broadcastmem_on_stream(team, dst, src, n, root, stream);
    case OXSHMEM_NV_FCOLLECT:
        return oxshmemx_fcollectmem_on_stream(team, dst, src, n, stream);
    case OXSHMEM_NV_ALLTOALL:
        return oxshmemx_alltoallmem_on_stream(team, dst, src, n, stream);
    case OXSHMEM_NV_REDUCE:
        return oxshmemx_reduce_on_stream(team, static_cast<oxshmem_reduce_op>(op), static_cast<oxshmem_type>(type), dst, src, n,
                                         stream);
    default:
        return oxshmemx_reducescatter_on_stream(team, static_cast<oxshmem_reduce_op>(op), static_cast<oxshmem_type>(type), dst,
                                                src, n, stream);
    }
}

int oxshmem_nv_collective(const char *call, int kind, nvshmem_team_t team, void *dst, const void *src, size_t n, int root,
                          int op, int type, int queue, cudaStream_t stream) {
    return run_with_status(call, [&] {
        return queue != 0 ? collective_on_stream(kind, team, dst, src, n, root, op, type, stream)
                          : collective(kind, team, dst, src, n, root, op, type);
    });
}

void oxshmem_nv_meet_all(const char *call, int kind, int queue, cudaStream_t stream) {
    run(call, [&] {
        if (kind == OXSHMEM_NV_BARRIER) {
            return queue != 0 ? oxshmemx_barrier_all_on_stream(stream) : oxshmem_host_barrier_all();
        }
        return queue != 0 ? oxshmemx_sync_all_on_stream(stream) : oxshmem_host_sync_all();
    });
}

// Teams. What the bootstrap knows is known before the PE has a device.

int oxshmem_nv_team_my_pe(const char *call, nvshmem_team_t team) {
    if (oxshmem_stage() == 1 && team == NVSHMEM_TEAM_WORLD) {
        return oxshmem_host_my_pe();
    }
    if (oxshmem_stage() == 1 && team == NVSHMEMX_TEAM_NODE) {
        return oxshmem_host_node_my_pe();
    }
    return team != NVSHMEM_TEAM_INVALID && bound(call, false) ? oxshmem_host_team_my_pe(team) : -1;
}
int oxshmem_nv_team_n_pes(const char *call, nvshmem_team_t team) {
    if (oxshmem_stage() == 1 && team == NVSHMEM_TEAM_WORLD) {
        return oxshmem_host_n_pes();
    }
    if (oxshmem_stage() == 1 && team == NVSHMEMX_TEAM_NODE) {
        return oxshmem_host_node_n_pes();
    }
    return team != NVSHMEM_TEAM_INVALID && bound(call, false) ? oxshmem_host_team_n_pes(team) : -1;
}
int oxshmem_nv_team_translate_pe(const char *call, nvshmem_team_t source, int pe, nvshmem_team_t destination) {
    if (source == NVSHMEM_TEAM_INVALID || destination == NVSHMEM_TEAM_INVALID || !bound(call, false)) {
        return -1;
    }
    return oxshmem_host_team_translate_pe(source, pe, destination);
}

// PEs may pass different numbers, each those of its own part.
int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size, const nvshmem_team_config_t *, long,
                               nvshmem_team_t *team) {
    return run_with_status(__func__, [&] { return oxshmemx_team_split_own(parent, start, stride, size, team); });
}
int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *, long, nvshmem_team_t *x,
                          const nvshmem_team_config_t *, long, nvshmem_team_t *y) {
    return run_with_status(__func__, [&] { return oxshmem_team_split_2d(parent, xrange, x, y); });
}
// An id of OxSHMEM's has 128 random bits; 64 of them tell the ids of a job apart.
int nvshmemx_team_get_uniqueid(nvshmemx_team_uniqueid_t *id) {
    if (id == nullptr) {
        print(__func__, "the id is null; pass the address of an nvshmemx_team_uniqueid_t");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    oxshmem_team_uniqueid full = {};
    const int status = run_with_status(__func__, [&] { return oxshmem_team_get_uniqueid(&full); });
    if (status == NVSHMEMX_SUCCESS) {
        std::memcpy(id, full.bytes, sizeof(*id));
    }
    return status;
}
int nvshmemx_team_init(nvshmem_team_t *team, nvshmem_team_config_t *config, long config_mask, int npes, int my_index) {
    if (team == nullptr || config == nullptr || (config_mask & NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID) == 0) {
        print(__func__,
              "%s; set config->uniqueid to what nvshmemx_team_get_uniqueid gave one member, and pass "
              "NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID (2) in the mask",
              team == nullptr || config == nullptr ? "the team or its configuration is null" : "there is no unique id");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    oxshmem_team_uniqueid full = {};
    std::memcpy(full.bytes, &config->uniqueid, sizeof(config->uniqueid));
    return run_with_status(__func__, [&] { return oxshmem_team_init(&full, my_index, npes, team); });
}
void nvshmem_team_destroy(nvshmem_team_t team) {
    run(__func__, [&] { return oxshmem_team_destroy(team); });
}
void nvshmem_team_get_config(nvshmem_team_t team, nvshmem_team_config_t *config) {
    if (config == nullptr) {
        fail(__func__, "the configuration is null; pass the address of an nvshmem_team_config_t");
        return;
    }
    if (bound(__func__, false) && oxshmem_host_team_n_pes(team) < 0) {
        fail(__func__, "%s", oxshmem_error());
        return;
    }
    *config = NVSHMEM_TEAM_CONFIG_INITIALIZER;
    config->num_contexts = 0; // There are no contexts.
}

// Modules.

int nvshmemx_cumodule_init(CUmodule module) {
    return run_with_status(__func__, [&] { return oxshmemx_module_register(module); });
}
int nvshmemx_cumodule_finalize(CUmodule module) {
    return run_with_status(__func__, [&] { return oxshmemx_module_unregister(module); });
}
}
