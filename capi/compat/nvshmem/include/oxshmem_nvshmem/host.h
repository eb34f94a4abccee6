// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host alone can call: joining and leaving a job, memory, teams, modules, launches.
#pragma once

#include "abi.h"

#if !defined(__CUDACC_RTC__)
#include <stdio.h>
#endif

#ifdef OXSHMEM_NV_HOST_CODE

// The calls that begin the use of the library tell it which interface the program was compiled
// with.
static inline void nvshmem_init(void) {
    oxshmem_nv_init("nvshmem_init", OXSHMEM_NV_ABI, 0, nullptr);
}
static inline int nvshmem_init_thread(int requested, int *provided) {
    (void)requested; // Every level below NVSHMEM_THREAD_MULTIPLE is SERIALIZED.
    if (provided != nullptr) {
        *provided = NVSHMEM_THREAD_SERIALIZED;
    }
    return oxshmem_nv_init("nvshmem_init_thread", OXSHMEM_NV_ABI, 0, nullptr);
}
static inline int nvshmemx_init_attr(unsigned int flags, nvshmemx_init_attr_t *attributes) {
    return oxshmem_nv_init("nvshmemx_init_attr", OXSHMEM_NV_ABI, flags, attributes);
}
static inline void nvshmem_finalize(void) {
    oxshmem_nv_finalize("nvshmem_finalize");
}

extern "C" {
int nvshmemx_hostlib_init_attr(unsigned int flags, nvshmemx_init_attr_t *attributes);
void nvshmemx_hostlib_finalize(void);
int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id);
int nvshmemx_set_attr_uniqueid_args(const int myrank, const int nranks, const nvshmemx_uniqueid_t *id,
                                    nvshmemx_init_attr_t *attributes);
int nvshmemx_set_attr_mpi_comm_args(void *mpi_comm, nvshmemx_init_attr_t *attributes);
int nvshmemx_init_status(void);
void nvshmem_query_thread(int *provided);

void *nvshmem_malloc(size_t bytes);
void *nvshmem_calloc(size_t count, size_t bytes);
void *nvshmem_align(size_t alignment, size_t bytes);
void nvshmem_free(void *address);

int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size, const nvshmem_team_config_t *config,
                               long config_mask, nvshmem_team_t *team);
int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *x_config, long x_mask,
                          nvshmem_team_t *x, const nvshmem_team_config_t *y_config, long y_mask, nvshmem_team_t *y);
int nvshmemx_team_get_uniqueid(nvshmemx_team_uniqueid_t *id);
int nvshmemx_team_init(nvshmem_team_t *team, nvshmem_team_config_t *config, long config_mask, int npes, int my_index);
void nvshmem_team_destroy(nvshmem_team_t team);
void nvshmem_team_get_config(nvshmem_team_t team, nvshmem_team_config_t *config);

// Memory of the program as the local side of transfers, over the network as fast as memory of the
// heap.
int nvshmemx_buffer_register(void *address, size_t bytes);
int nvshmemx_buffer_unregister(void *address);
void nvshmemx_buffer_unregister_all(void);

// Memory of the program as a part of the symmetric heap: memory of cuMemCreate whose handle can be
// exported as a file descriptor, or on the `cpu` device whole pages. Collective. Returns where it
// is in the heap.
void *nvshmemx_buffer_register_symmetric(void *buffer, size_t bytes, int flags);
int nvshmemx_buffer_unregister_symmetric(void *address, size_t bytes);

// Makes `count` queue pairs to each PE, which any threads may use, and an array of their handles,
// which free() frees. Collective. They end with nvshmem_finalize.
int nvshmemx_qp_create(int count, nvshmemx_qp_handle_t **handles);

int nvshmemx_cumodule_init(CUmodule module);
int nvshmemx_cumodule_finalize(CUmodule module);
#ifdef OXSHMEM_NV_CUDA_TYPES
int nvshmemx_culibrary_init(CUlibrary library);
int nvshmemx_culibrary_finalize(CUlibrary library);

// In libnvshmem_device, since they call the program's CUDA runtime.
typedef struct nvshmemx_collective_launch_attr {
    cudaLaunchConfig_t cuda_config;
} nvshmemx_collective_launch_attr_t;
int nvshmemx_collective_launch(const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes, cudaStream_t stream);
int nvshmemx_collective_launch_attr(const nvshmemx_collective_launch_attr_t *attributes, const void *func, void **args);
int nvshmemx_collective_launch_query_gridsize(const void *func, dim3 block, void **args, size_t shared_bytes, int *gridsize);
#endif
}

// Programs print with it, although it is not documented.
#define NVSHMEMI_ERROR_PRINT(...)                                                                                              \
    do {                                                                                                                       \
        fprintf(stderr, "%s:%s:%d: ", __FILE__, __func__, __LINE__);                                                           \
        fprintf(stderr, __VA_ARGS__);                                                                                          \
    } while (0)

static inline const char *nvshmemx_status_string(int status) {
#define OXSHMEM_NV_TEXT(name) #name,
    static const char *const texts[] = {OXSHMEM_NV_FOR_EACH_STATUS(OXSHMEM_NV_TEXT)};
#undef OXSHMEM_NV_TEXT
    const int known = (int)(sizeof(texts) / sizeof(texts[0]));
    return status >= 0 && status < known ? texts[status] : "NVSHMEMX_ERROR_<unknown>";
}

#endif
