// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Joining and leaving a job, what failures do, and which GPU a PE has.

#include "internal.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <unistd.h>

namespace {

std::mutex guard;
oxshmem_nv_error_handler_t handler = nullptr;
// How often the program has joined its job more than it has left it. An init of liboxshmem's own
// interface that a call here finds counts as one.
unsigned joins = 0;
// The call that gave the PE its device, for messages.
char binding_call[64] = "";
char joining_call[64] = "";

// Returns a function of CUDA's driver if the program has loaded it.
template <class Function> Function driver(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
        return nullptr;
    }
    const auto function = reinterpret_cast<Function>(dlsym(library, name));
    dlclose(library); // It stays loaded, since the program uses it.
    return function;
}

// The number of the GPU that is current in the calling thread, -1 if none is.
int current_gpu() {
    const auto current = driver<int (*)(void **)>("cuCtxGetCurrent");
    const auto device = driver<int (*)(int *)>("cuCtxGetDevice");
    void *context = nullptr;
    int number = -1;
    const bool has_one = current != nullptr && device != nullptr && current(&context) == 0 && context != nullptr;
    return has_one && device(&number) == 0 ? number : -1;
}

enum Stage { kNone = 0, kJoined = 1, kOpen = 2 };

void remember(char (&to)[64], const char *call) {
    std::snprintf(to, sizeof(to), "%s", call);
}

// Prints one line.
void print_line(const char *call, const char *text) {
    const int pe = oxshmem_host_my_pe();
    if (pe >= 0) {
        std::fprintf(stderr, "PE %d: %s: %s\n", pe, call, text);
    } else {
        std::fprintf(stderr, "%s: %s\n", call, text);
    }
    std::fflush(stderr);
}

[[noreturn]] void end_job(const char *call, const char *text, int status) {
    char reason[1024];
    std::snprintf(reason, sizeof(reason), "PE %d has ended the job: %s: %s", oxshmem_host_my_pe(), call, text);
    oxshmem_abort(reason);
    std::fflush(nullptr);
    _exit(status);
}

// Ends the process if a PE has ended the job with a status: with that.
void leave_with_the_job(const char *call, const char *text) {
    int status = 0;
    if (oxshmem_exit_status(&status) == 1) {
        print_line(call, text);
        std::fflush(nullptr);
        _exit(status);
    }
}

// An id of NVSHMEM's interface begins with its version; the text is ours.
constexpr int kIdVersion = (1 << 16) + static_cast<int>(sizeof(nvshmemx_uniqueid_t));

} // namespace

namespace oxshmem_nv {

void print(const char *call, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    print_line(call, text);
}

void fail(const char *call, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    leave_with_the_job(call, text);
    oxshmem_nv_error_handler_t to;
    {
        const std::lock_guard<std::mutex> lock(guard);
        to = handler;
    }
    if (to != nullptr) {
        to(call, text);
        return;
    }
    print_line(call, text);
    end_job(call, text, 1);
}

void check(const char *call, int status) {
    if (status != OXSHMEM_SUCCESS) {
        fail(call, "%s", oxshmem_error());
    }
}

int translate(const char *call, int status) {
    if (status == OXSHMEM_SUCCESS) {
        return NVSHMEMX_SUCCESS;
    }
    leave_with_the_job(call, oxshmem_error());
    print(call, "%s", oxshmem_error());
    switch (status) {
    case OXSHMEM_ERROR_INVALID:
    case OXSHMEM_ERROR_TEAM:
    case OXSHMEM_ERROR_CONFIG:
        return NVSHMEMX_ERROR_INVALID_VALUE;
    case OXSHMEM_ERROR_HEAP:
        return NVSHMEMX_ERROR_SYMMETRY;
    default:
        return NVSHMEMX_ERROR_INTERNAL;
    }
}

bool bound(const char *call, bool has_status) {
    switch (oxshmem_stage()) {
    case kOpen:
        return true;
    case kJoined:
        if (oxshmem_open() == OXSHMEM_SUCCESS) {
            const std::lock_guard<std::mutex> lock(guard);
            remember(binding_call, call);
            return true;
        }
        (has_status ? print : fail)(call, "%s", oxshmem_error());
        return false;
    default:
        (has_status ? print : fail)(call, "there is no PE: call nvshmem_init first, and nothing after nvshmem_finalize");
        return false;
    }
}

bool on_own_gpu(const char *call) {
    if (!bound(call, true)) {
        return false;
    }
    const int own = oxshmem_gpu(), current = current_gpu();
    if (own < 0 || current < 0 || own == current) {
        return true;
    }
    const std::lock_guard<std::mutex> lock(guard);
    print(call, "GPU %d is current, and this PE has GPU %d since %s; call cudaSetDevice(%d) first, or choose the GPU before %s",
          current, own, binding_call, own, binding_call);
    return false;
}

} // namespace oxshmem_nv

using namespace oxshmem_nv;

namespace {

// Whether NVIDIA's library is in this process as well; prints that. It has this name, and this
// library does not.
bool has_both_libraries(const char *call) {
    void *const theirs = dlsym(RTLD_DEFAULT, "nvshmemid_hostlib_init_attr");
    if (theirs == nullptr) {
        return false;
    }
    Dl_info info = {};
    const bool known = dladdr(theirs, &info) != 0 && info.dli_fname != nullptr;
    print(call,
          "NVIDIA's NVSHMEM (%s) is in this process beside OxSHMEM's libnvshmem_host, and both have the same names; link the "
          "program, and every library that it loads, with one of them",
          known ? info.dli_fname : "a library");
    return true;
}

// Returns the ways to join a job that flags name.
unsigned ways_of(unsigned flags) {
    return flags & (NVSHMEMX_INIT_WITH_MPI_COMM | NVSHMEMX_INIT_WITH_SHMEM | NVSHMEMX_INIT_WITH_UNIQUEID);
}

// Counts a call by a process that has joined a job already. Its arguments have no effect, and a
// line says so if they name another PE.
void join_again(const char *call, unsigned flags, const nvshmemx_init_attr_t *attributes) {
    const unsigned ways = ways_of(flags);
    int rank = -1, size = -1;
    if (attributes != nullptr && ways == NVSHMEMX_INIT_WITH_UNIQUEID) {
        rank = attributes->args.uid_args.myrank;
        size = attributes->args.uid_args.nranks;
    } else if (attributes != nullptr && ways == NVSHMEMX_INIT_WITH_MPI_COMM) {
        place_by_mpi(attributes->mpi_comm, &rank, &size);
    }
    const int me = oxshmem_host_my_pe(), n = oxshmem_host_n_pes();
    const std::lock_guard<std::mutex> lock(guard);
    joins = (joins == 0 ? 1 : joins) + 1;
    if (size >= 0 && (rank != me || size != n)) {
        print(call,
              "this process is PE %d of %d since %s, and stays that: a later init only counts, so PE %d of %d is ignored; call "
              "nvshmem_finalize for each init before it joins another job",
              me, n, joining_call[0] == '\0' ? "oxshmem_init" : joining_call, rank, size);
    }
}

int join(const char *call, unsigned flags, const nvshmemx_init_attr_t *attributes) {
    if (has_both_libraries(call)) {
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    if (oxshmem_stage() != kNone) {
        join_again(call, flags, attributes);
        return NVSHMEMX_SUCCESS;
    }
    const unsigned ways = ways_of(flags);
    if ((flags & NVSHMEMX_INIT_WITH_SHMEM) != 0) {
        print(call,
              "flags %#x: a job is not joined through OpenSHMEM; use NVSHMEMX_INIT_WITH_UNIQUEID (8) with an id that PE 0 "
              "broadcasts, or no flag under a launcher",
              flags);
        return NVSHMEMX_ERROR_NOT_SUPPORTED;
    }
    if (ways != 0 && attributes == nullptr) {
        print(call, "flags %#x need attributes, which are null", flags);
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    read_environment();
    int status;
    // A launcher's PMI is MPI's once MPI has begun.
    const void *world = ways == 0 && wants_mpi() ? world_of_mpi() : nullptr;
    if (ways == NVSHMEMX_INIT_WITH_MPI_COMM || world != nullptr) {
        char id[512];
        int rank = 0, size = 0;
        const void *communicator = world != nullptr ? world : attributes->mpi_comm;
        if (const char *problem = broadcast_by_mpi(communicator, id, sizeof(id), &rank, &size)) {
            print(call, "%s", problem);
            return NVSHMEMX_ERROR_INVALID_VALUE;
        }
        status = oxshmem_join_with_uniqueid(id, rank, size);
    } else if (ways == NVSHMEMX_INIT_WITH_UNIQUEID) {
        const nvshmemx_uniqueid_args_t &args = attributes->args.uid_args;
        if (args.id == nullptr || args.id->version != kIdVersion) {
            print(call, "the unique id is %s; get one from nvshmemx_get_uniqueid, and pass all %zu bytes to every PE",
                  args.id == nullptr ? "null" : "of another version", sizeof(nvshmemx_uniqueid_t));
            return NVSHMEMX_ERROR_INVALID_VALUE;
        }
        char id[sizeof(args.id->internal) + 1] = {};
        std::memcpy(id, args.id->internal, sizeof(args.id->internal));
        status = oxshmem_join_with_uniqueid(id, args.myrank, args.nranks);
    } else if (ways == 0) {
        status = oxshmem_join();
    } else {
        print(call, "flags %#x name two ways to join a job; pass one", flags);
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    if (status != OXSHMEM_SUCCESS) {
        return translate(call, status);
    }
    const std::lock_guard<std::mutex> lock(guard);
    joins = 1;
    remember(joining_call, call);
    binding_call[0] = '\0';
    return NVSHMEMX_SUCCESS;
}

} // namespace

extern "C" {

void oxshmem_nv_error_handler(oxshmem_nv_error_handler_t to) {
    const std::lock_guard<std::mutex> lock(guard);
    handler = to;
}

int oxshmem_nv_init(const char *call, int abi, unsigned flags, const nvshmemx_init_attr_t *attributes) {
    int status = NVSHMEMX_ERROR_INVALID_VALUE;
    if (abi != OXSHMEM_NV_ABI) {
        print(call,
              "the program was compiled with nvshmem.h of interface %d, and libnvshmem_host has interface %d; compile it with "
              "the "
              "headers beside the library",
              abi, OXSHMEM_NV_ABI);
    } else {
        status = join(call, flags, attributes);
    }
    if (status != NVSHMEMX_SUCCESS) {
        // As NVSHMEM's, it does not return.
        end_job(call, "init failed", 1);
    }
    // A GPU that the program has chosen is taken now, so that its next launch may be of a kernel.
    if (current_gpu() >= 0 && !bound(call, false)) {
        status = NVSHMEMX_ERROR_GPU_NOT_SELECTED;
    }
    return status;
}

void oxshmem_nv_finalize(const char *call) {
    if (oxshmem_stage() == kNone) {
        fail(call, "there is no PE; call it once for each nvshmem_init");
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(guard);
        if (joins > 1) {
            --joins; // Another part of the program still uses the library.
            return;
        }
        joins = 0;
        joining_call[0] = '\0';
    }
    check(call, oxshmem_finalize());
}

int oxshmem_nv_bind(const char *call, int abi) {
    if (abi != OXSHMEM_NV_ABI) {
        print(call, "libnvshmem_device has interface %d, and libnvshmem_host has interface %d; link both from one installation",
              abi, OXSHMEM_NV_ABI);
        return -2;
    }
    return on_own_gpu(call) ? oxshmem_gpu() : -2;
}

// For programs that look names up while they run.
void nvshmem_init(void) {
    oxshmem_nv_init("nvshmem_init", OXSHMEM_NV_ABI, 0, nullptr);
}
void nvshmem_finalize(void) {
    oxshmem_nv_finalize("nvshmem_finalize");
}
int nvshmemx_init_attr(unsigned int flags, nvshmemx_init_attr_t *attributes) {
    return oxshmem_nv_init("nvshmemx_init_attr", OXSHMEM_NV_ABI, flags, attributes);
}
int nvshmemx_hostlib_init_attr(unsigned int flags, nvshmemx_init_attr_t *attributes) {
    const int status = join("nvshmemx_hostlib_init_attr", flags, attributes);
    if (status != NVSHMEMX_SUCCESS || current_gpu() < 0) {
        return status;
    }
    return bound("nvshmemx_hostlib_init_attr", true) ? NVSHMEMX_SUCCESS : NVSHMEMX_ERROR_GPU_NOT_SELECTED;
}
void nvshmemx_hostlib_finalize(void) {
    oxshmem_nv_finalize("nvshmemx_hostlib_finalize");
}

int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id) {
    if (id == nullptr) {
        print("nvshmemx_get_uniqueid", "id is null");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    read_environment();
    id->version = kIdVersion;
    return translate("nvshmemx_get_uniqueid", oxshmem_get_short_uniqueid(id->internal, sizeof(id->internal)));
}

int nvshmemx_set_attr_uniqueid_args(const int myrank, const int nranks, const nvshmemx_uniqueid_t *id,
                                    nvshmemx_init_attr_t *attributes) {
    if (attributes == nullptr || id == nullptr) {
        print("nvshmemx_set_attr_uniqueid_args", "%s is null", id == nullptr ? "the id" : "attr");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    attributes->args.uid_args.id = const_cast<nvshmemx_uniqueid_t *>(id);
    attributes->args.uid_args.myrank = myrank;
    attributes->args.uid_args.nranks = nranks;
    return NVSHMEMX_SUCCESS;
}

int nvshmemx_set_attr_mpi_comm_args(void *mpi_comm, nvshmemx_init_attr_t *attributes) {
    if (attributes == nullptr || mpi_comm == nullptr) {
        print("nvshmemx_set_attr_mpi_comm_args", "%s is null", mpi_comm == nullptr ? "the communicator" : "attr");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    attributes->mpi_comm = mpi_comm;
    return NVSHMEMX_SUCCESS;
}

int nvshmemx_culibrary_init(CUlibrary library) {
    CUmodule module = nullptr;
    const auto module_of = driver<int (*)(CUmodule *, CUlibrary)>("cuLibraryGetModule");
    if (!bound(__func__, true) || module_of == nullptr || module_of(&module, library) != 0) {
        print(__func__, "the driver gives no module for this library; load it with cuLibraryLoadData after the GPU was chosen");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    return translate(__func__, oxshmemx_module_register(module));
}
int nvshmemx_culibrary_finalize(CUlibrary library) {
    CUmodule module = nullptr;
    const auto module_of = driver<int (*)(CUmodule *, CUlibrary)>("cuLibraryGetModule");
    if (module_of == nullptr || module_of(&module, library) != 0) {
        print(__func__, "the driver gives no module for this library");
        return NVSHMEMX_ERROR_INVALID_VALUE;
    }
    return translate(__func__, oxshmemx_module_unregister(module));
}

int nvshmemx_init_status(void) {
    switch (oxshmem_stage()) {
    case kOpen:
        return NVSHMEM_STATUS_IS_INITIALIZED;
    case kJoined:
        return NVSHMEM_STATUS_IS_BOOTSTRAPPED;
    default:
        return NVSHMEM_STATUS_NOT_INITIALIZED;
    }
}

void nvshmem_query_thread(int *provided) {
    if (provided == nullptr) {
        fail(__func__, "provided is null; pass the address of an int");
        return;
    }
    *provided = NVSHMEM_THREAD_SERIALIZED;
}

void oxshmem_nv_global_exit(const char *call, int status) {
    oxshmem_exit_job(status, call);
    std::fflush(nullptr);
    _exit(status);
}

void oxshmem_nv_unit_register(const struct oxshmem_unit *unit) {
    oxshmem_unit_register(unit);
}
void oxshmem_nv_unit_unregister(const struct oxshmem_unit *unit) {
    oxshmem_unit_unregister(unit);
}
}
