// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The host operations that the comparison needs, under one set of names: those of OxSHMEM, or with
// COMPARE_NVSHMEM those of NVSHMEM. What fails ends the process with a line that says what.
//
//   init(rank, n)   joins the job of n PEs as PE `rank`, on the current GPU
//   alloc(bytes)    symmetric memory, collective; alignment at least 256
//   barrier()       all PEs; what any of them has done before is visible after
//   create_contexts(how, count, depth)  collective; with OxSHMEM alone. The device's array of them
//   destroy_contexts()
//   check()         ends the process if the library has recorded an error
//   library()       name and version
#pragma once

#include "device_layer.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace compare {

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    std::fflush(nullptr);
    // Not exit(): the libraries' own ends could wait for PEs that are not there any more.
    std::_Exit(1);
}

} // namespace compare

#ifndef COMPARE_NVSHMEM

#include <oxshmem/host.h>

namespace compare {

inline void require(int status, const char *what) {
    if (status != 0) {
        fail("%s: %s", what, oxshmem_error());
    }
}

inline void init(int, int) {
    require(oxshmem_init(), "oxshmem_init");
}
inline int host_my_pe() {
    return oxshmem_host_my_pe();
}
inline int host_n_pes() {
    return oxshmem_host_n_pes();
}
inline void *alloc(size_t bytes) {
    void *memory = oxshmem_align(256, bytes);
    if (memory == nullptr) {
        fail("oxshmem_align(256, %zu): %s", bytes, oxshmem_error());
    }
    return memory;
}
inline void release(void *memory) {
    require(oxshmem_free(memory), "oxshmem_free");
}
inline void barrier() {
    require(oxshmem_host_barrier_all(), "oxshmem_host_barrier_all");
}
inline void check() {
    require(oxshmem_synchronize(), "oxshmem_synchronize");
}
// The first of the job's contexts, by which all are known.
inline oxshmem_ctx_t &first_context() {
    static oxshmem_ctx_t first = {};
    return first;
}
inline const Context *create_contexts(const std::string &how, int count, int depth) {
    const int sharing = how == "thread" ? OXSHMEMX_CTX_THREAD : how == "warp" ? OXSHMEMX_CTX_WARP : OXSHMEMX_CTX_BLOCK;
    const oxshmemx_ctx_config_t config = {count, sharing, depth, -1, OXSHMEMX_CTX_RAILS_AUTO};
    std::vector<oxshmem_ctx_t> contexts(static_cast<size_t>(count));
    require(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, contexts.data()), "oxshmemx_team_create_ctxs");
    first_context() = contexts[0];
    const oxshmem_ctx_t *array = nullptr;
    require(oxshmemx_ctx_device_array(contexts[0], &array), "oxshmemx_ctx_device_array");
    return reinterpret_cast<const Context *>(array);
}
inline void destroy_contexts() {
    require(oxshmem_ctx_destroy(first_context()), "oxshmem_ctx_destroy");
}
inline void finalize() {
    require(oxshmem_finalize(), "oxshmem_finalize");
}
inline std::string library() {
    int major = 0, minor = 0, patch = 0;
    oxshmem_version(&major, &minor, &patch);
    return "OxSHMEM " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

} // namespace compare

#else

#include <nvshmem.h>
#include <nvshmemx.h>

#include <chrono>
#include <thread>

namespace compare {

inline void require(int status, const char *what) {
    if (status != 0) {
        fail("%s: status %d", what, status);
    }
}

// PE 0 makes the job's unique id and leaves it in the file that COMPARE_UNIQUE_ID names; the others
// wait for it.
inline nvshmemx_uniqueid_t unique_id(int rank) {
    const char *path = std::getenv("COMPARE_UNIQUE_ID");
    if (path == nullptr) {
        fail("COMPARE_UNIQUE_ID is not set; it names the file in which PE 0 leaves the job's unique id");
    }
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (rank == 0) {
        require(nvshmemx_get_uniqueid(&id), "nvshmemx_get_uniqueid");
        const std::string whole = std::string(path) + ".part";
        std::FILE *file = std::fopen(whole.c_str(), "wb");
        const bool written = file != nullptr && std::fwrite(&id, sizeof(id), 1, file) == 1;
        if (file == nullptr || std::fclose(file) != 0 || !written || std::rename(whole.c_str(), path) != 0) {
            fail("cannot write %s", path);
        }
        return id;
    }
    using clock = std::chrono::steady_clock;
    const auto deadline = clock::now() + std::chrono::seconds(30);
    std::FILE *file = nullptr;
    while ((file = std::fopen(path, "rb")) == nullptr) {
        if (clock::now() > deadline) {
            fail("PE 0 has not written %s within 30 s", path);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (std::fread(&id, sizeof(id), 1, file) != 1) {
        fail("cannot read %s", path);
    }
    std::fclose(file);
    return id;
}

inline void init(int rank, int n) {
    const nvshmemx_uniqueid_t id = unique_id(rank);
    nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
    require(nvshmemx_set_attr_uniqueid_args(rank, n, &id, &attr), "nvshmemx_set_attr_uniqueid_args");
    require(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr), "nvshmemx_init_attr");
}
inline int host_my_pe() {
    return nvshmem_my_pe();
}
inline int host_n_pes() {
    return nvshmem_n_pes();
}
inline void *alloc(size_t bytes) {
    void *memory = nvshmem_align(256, bytes);
    if (memory == nullptr) {
        fail("nvshmem_align(256, %zu): no memory", bytes);
    }
    return memory;
}
inline void release(void *memory) {
    nvshmem_free(memory);
}
inline void barrier() {
    nvshmem_barrier_all();
}
inline void check() {}
inline const Context *create_contexts(const std::string &, int, int) {
    fail("rows with contexts are for OxSHMEM alone");
}
inline void destroy_contexts() {}
inline void finalize() {
    nvshmem_finalize();
}
inline std::string library() {
    int major = 0, minor = 0, patch = 0;
    nvshmemx_vendor_get_version_info(&major, &minor, &patch);
    return "NVSHMEM " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

} // namespace compare

#endif
