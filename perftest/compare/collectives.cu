// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// One PE of the comparison of collectives: NVSHMEM's calls on a stream. The driver
// (src/compare/collectives) builds it, starts the PEs, and tells all of them what to measure by
// lines of their standard input; src/compare/collectives/protocol.rs describes the lines.
//
//   program ID RANK NPES BYTES
//
// ID is not used, since COMPARE_UNIQUE_ID names the same file; BYTES are those of the largest
// buffer. It takes GPU rank modulo their number.

#include "host_layer.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#ifndef COMPARE_NVSHMEM
#error "this program is NVSHMEM's side; ours is src/compare/collectives/ours.rs"
#endif

namespace {

using namespace compare;

constexpr unsigned char kUntouched = 0xff;

// What a command has found wrong; the reply names it, and the next command is read.
struct Refused {
    std::string reason;
};

#define CUDA(call)                                                                                                             \
    do {                                                                                                                       \
        const cudaError_t status = call;                                                                                       \
        if (status != cudaSuccess) {                                                                                           \
            throw Refused{std::string(#call ": ") + cudaGetErrorString(status)};                                               \
        }                                                                                                                      \
    } while (0)

// Element `index` of what PE `pe` gives, as in src/compare/collectives/calls.rs.
__device__ float value(uint32_t pe, uint64_t index) {
    return static_cast<float>(((static_cast<uint32_t>(index) + pe * 0x9e3779b9u) * 0x9e3779b1u) >> 27);
}

__device__ uint64_t grid_rank() {
    return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ uint64_t grid_threads() {
    return static_cast<uint64_t>(gridDim.x) * blockDim.x;
}

template <typename T> __global__ void give(T *to, uint64_t n, uint32_t pe) {
    for (uint64_t i = grid_rank(); i < n; i += grid_threads()) {
        to[i] = static_cast<T>(value(pe, i));
    }
}

enum class Way { broadcast, fcollect, alltoall, reduce, reducescatter, meeting };

// Counts the elements that are not as they should be.
template <typename T>
__global__ void check_result(const T *found, uint64_t n, Way way, uint64_t each, uint32_t me, uint32_t npes,
                             unsigned long long *wrong) {
    for (uint64_t i = grid_rank(); i < n; i += grid_threads()) {
        float expected = 0;
        if (way == Way::broadcast) {
            expected = value(0, i);
        } else if (way == Way::fcollect) {
            expected = value(static_cast<uint32_t>(i / each), i % each);
        } else if (way == Way::alltoall) {
            expected = value(static_cast<uint32_t>(i / each), me * each + i % each);
        } else {
            for (uint32_t pe = 0; pe < npes; ++pe) {
                expected += value(pe, way == Way::reduce ? i : me * each + i);
            }
        }
        if (static_cast<float>(found[i]) != expected) {
            atomicAdd(wrong, 1ull);
        }
    }
}

class Pe {
public:
    explicit Pe(uint64_t most) : me_(host_my_pe()), n_(host_n_pes()), most_(most) {
        dst_ = static_cast<char *>(alloc(most));
        src_ = static_cast<char *>(alloc(most));
        CUDA(cudaMalloc(&wrong_, sizeof(*wrong_)));
        CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        CUDA(cudaEventCreate(&begin_));
        CUDA(cudaEventCreate(&end_));
    }

    // Returns whether the calls are a graph.
    bool prepare(const std::string &name, uint64_t part, uint64_t count) {
        forget();
        name_ = name, part_ = part, count_ = count;
        const bool half = name == "reduce_bf16";
        way_ = name == "broadcast"        ? Way::broadcast
               : name == "fcollect"       ? Way::fcollect
               : name == "alltoall"       ? Way::alltoall
               : name == "reduce" || half ? Way::reduce
               : name == "reducescatter"  ? Way::reducescatter
                                          : Way::meeting;
        if (way_ == Way::meeting && name != "barrier" && name != "sync") {
            throw Refused{"there is no call " + name};
        }
        const uint64_t parts = static_cast<uint64_t>(n_) * part;
        const uint64_t got = way_ == Way::fcollect || way_ == Way::alltoall ? parts : part;
        if ((way_ == Way::reducescatter ? parts : got) > most_) {
            throw Refused{name + ": more than the buffers have"};
        }
        if (half) {
            give<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16 *>(src_), most_ / 2, static_cast<uint32_t>(me_));
        } else {
            give<<<1024, 256>>>(reinterpret_cast<float *>(src_), most_ / 4, static_cast<uint32_t>(me_));
        }
        CUDA(cudaGetLastError());
        CUDA(cudaMemset(dst_, kUntouched, got));
        CUDA(cudaDeviceSynchronize());
        barrier();

        const bool captured = capture();
        launch();
        CUDA(cudaStreamSynchronize(stream_));
        if (way_ != Way::meeting) {
            if (half) {
                verify(reinterpret_cast<const __nv_bfloat16 *>(dst_), got);
            } else {
                verify(reinterpret_cast<const float *>(dst_), got);
            }
        }
        return captured;
    }

    // Returns the nanoseconds of all calls, which begin when those of a round before have ended.
    double run() {
        launch();
        CUDA(cudaEventRecord(begin_, stream_));
        launch();
        CUDA(cudaEventRecord(end_, stream_));
        CUDA(cudaStreamSynchronize(stream_));
        float ms = 0;
        CUDA(cudaEventElapsedTime(&ms, begin_, end_));
        return static_cast<double>(ms) * 1e6;
    }

    void close() {
        forget();
        release(src_);
        release(dst_);
    }

private:
    void forget() {
        if (graph_ != nullptr) {
            CUDA(cudaGraphExecDestroy(graph_));
            graph_ = nullptr;
        }
    }

    void queue() {
        int status = 0;
        auto *to = reinterpret_cast<float *>(dst_);
        const auto *from = reinterpret_cast<const float *>(src_);
        if (name_ == "barrier") {
            nvshmemx_barrier_all_on_stream(stream_);
        } else if (name_ == "sync") {
            nvshmemx_sync_all_on_stream(stream_);
        } else if (name_ == "reduce_bf16") {
            status = nvshmemx_bfloat16_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, reinterpret_cast<__nv_bfloat16 *>(dst_),
                                                            reinterpret_cast<const __nv_bfloat16 *>(src_), part_ / 2, stream_);
        } else if (way_ == Way::broadcast) {
            status = nvshmemx_broadcastmem_on_stream(NVSHMEM_TEAM_WORLD, dst_, src_, part_, 0, stream_);
        } else if (way_ == Way::fcollect) {
            status = nvshmemx_fcollectmem_on_stream(NVSHMEM_TEAM_WORLD, dst_, src_, part_, stream_);
        } else if (way_ == Way::alltoall) {
            status = nvshmemx_alltoallmem_on_stream(NVSHMEM_TEAM_WORLD, dst_, src_, part_, stream_);
        } else if (way_ == Way::reduce) {
            status = nvshmemx_float_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, to, from, part_ / 4, stream_);
        } else {
            status = nvshmemx_float_sum_reducescatter_on_stream(NVSHMEM_TEAM_WORLD, to, from, part_ / 4, stream_);
        }
        if (status != 0) {
            throw Refused{name_ + ": status " + std::to_string(status)};
        }
    }

    void queue_all() {
        for (uint64_t i = 0; i < count_; ++i) {
            queue();
        }
    }

    // Makes the calls a graph. Where the library does what a capture forbids, they are queued one
    // by one, and the reply says so.
    bool capture() {
        CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        bool queued = true;
        try {
            queue_all();
        } catch (const Refused &) {
            queued = false;
        }
        cudaGraph_t graph = nullptr;
        const bool ended = cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph != nullptr;
        const bool made = queued && ended && cudaGraphInstantiate(&graph_, graph, 0) == cudaSuccess;
        if (graph != nullptr) {
            CUDA(cudaGraphDestroy(graph));
        }
        if (!made) {
            graph_ = nullptr;
            // What the capture has left.
            cudaGetLastError();
        }
        return made;
    }

    void launch() {
        if (graph_ != nullptr) {
            CUDA(cudaGraphLaunch(graph_, stream_));
        } else {
            queue_all();
        }
    }

    template <typename T> void verify(const T *found, uint64_t bytes) {
        CUDA(cudaMemset(wrong_, 0, sizeof(*wrong_)));
        check_result<<<1024, 256>>>(found, bytes / sizeof(T), way_, part_ / sizeof(T), static_cast<uint32_t>(me_),
                                    static_cast<uint32_t>(n_), wrong_);
        CUDA(cudaGetLastError());
        unsigned long long wrong = 0;
        CUDA(cudaMemcpy(&wrong, wrong_, sizeof(wrong), cudaMemcpyDeviceToHost));
        if (wrong != 0) {
            throw Refused{"wrong data: " + std::to_string(wrong) + " elements"};
        }
    }

    int me_, n_;
    uint64_t most_;
    char *dst_ = nullptr, *src_ = nullptr;
    unsigned long long *wrong_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    cudaGraphExec_t graph_ = nullptr;
    std::string name_;
    Way way_ = Way::meeting;
    uint64_t part_ = 0, count_ = 0;
};

// Text inside a JSON string.
std::string quoted(const std::string &text) {
    std::string out;
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return out;
}

void reply(const std::string &line) {
    std::cout << line << std::endl;
}

// Carries out one line.
std::string obey(Pe &pe, const std::string &line) {
    std::istringstream words(line);
    std::string what, way, call;
    uint64_t part = 0, count = 0;
    words >> what >> way;
    if (what == "prepare" && words >> call >> part >> count && count > 0) {
        return std::string("{\"ready\":true,\"graph\":") + (pe.prepare(call, part, count) ? "true}" : "false}");
    }
    if (what == "run") {
        return "{\"ns\":" + std::to_string(pe.run()) + "}";
    }
    throw Refused{"an unknown command: " + line};
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        fail("usage: %s ID RANK NPES BYTES", argv[0]);
    }
    const int rank = std::atoi(argv[2]), n = std::atoi(argv[3]);
    const uint64_t most = std::strtoull(argv[4], nullptr, 10);
    try {
        int gpus = 0;
        CUDA(cudaGetDeviceCount(&gpus));
        CUDA(cudaSetDevice(rank % gpus));
        init(rank, n);
        Pe pe(most);
        reply("{\"library\":\"" + library() + "\"}");
        for (std::string line; std::getline(std::cin, line);) {
            try {
                reply(obey(pe, line));
            } catch (const Refused &refused) {
                reply("{\"error\":\"" + quoted(refused.reason) + "\"}");
            }
        }
        pe.close();
    } catch (const Refused &refused) {
        fail("%s", refused.reason.c_str());
    }
    finalize();
}
