// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// One PE of a comparison: runs the rows of a plan, in order, and checks the data of each. Built
// once against OxSHMEM and, with COMPARE_NVSHMEM, once against NVSHMEM. The driver (src/compare)
// writes the plan, starts the PEs and reads what PE 0 prints.
//
//   program PLAN [posting]
//
// A line of the plan: NAME KERNEL CTAS THREADS BYTES STRIDE STEP STEPS WARMUP ITERS SAMPLES, and
// for rows with contexts SHARING COUNT DEPTH; all rows of a plan have the same contexts. PE 0
// replies with a line of JSON that names the library, and one for each row with the nanoseconds of
// each sample; the row of the kernel `init` has one, of the call by which PE 0 joined the job, with
// its GPU's context made before. With `posting` nothing is delivered (the HCA is the null card), so
// PE 0 works alone and nothing is checked.
//
// OXSHMEM_RANK and OXSHMEM_NPES, which the launcher sets, are the PE's place in both builds; it
// takes GPU rank modulo their number.

#include "host_calls.h"
#include "host_layer.h"
#include "kernels.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <utility>
#include <vector>

namespace {

using namespace compare;

#define CUDA(call)                                                                                                             \
    do {                                                                                                                       \
        const cudaError_t status = call;                                                                                       \
        if (status != cudaSuccess) {                                                                                           \
            fail("%s: %s", #call, cudaGetErrorString(status));                                                                 \
        }                                                                                                                      \
    } while (0)

constexpr uint64_t kShifts = 1024; // what shift() can add
constexpr uint64_t kUntouched = ~0ull;
constexpr size_t kTurns = 16;       // of a sample that the host's processor bounds
constexpr uint64_t kLittle = 65536; // bytes that a call moves, at most, which is bound so

using Kernel = void (*)(char *, char *, uint64_t *, uint64_t *, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, int, const Context *);

// Which PEs run a kernel, and what must hold afterwards.
enum class Role {
    put,       // PE 0; the last iteration's data is at PE 1
    get,       // PE 0; the last iteration's data, PE 1's, is at PE 0
    words,     // PE 0; every word of the last iteration is at PE 1, and nothing between them
    word,      // PE 0; the last iteration's one word is at PE 1
    signals,   // PE 0; every thread's signal at PE 1 has its last value
    ping_pong, // PE 0 and 1; both signals have their last value
    exchange,  // likewise, and the last iteration's data is at both
    meeting,   // all PEs; `check` finds nothing wrong
    alltoall,  // all PEs; each has the part of each PE's last data that is for it
    fcollect,  // all PEs; each has the last data of all
    broadcast, // all PEs; each has the last root's data
    sum,       // all PEs; each has the sums of the last data
    scatter,   // all PEs; each has its part of the sums of the last data
    jacobi,    // all PEs; each has its rows of the solution
    moe,       // all PEs; each has the sums of what experts made of its last tokens
};

struct Entry {
    const char *name;
    Kernel kernel;
    Role role;
    Kernel check;
    QueueCall call = nullptr; // in place of a kernel: queued on a stream by the host, once for each iteration
};

const Entry kEntries[] = {
    {"put_bw_thread", put_bw_thread, Role::put, nullptr},
    {"put_bw_block", put_bw_block, Role::put, nullptr},
    {"get_bw_block", get_bw_block, Role::get, nullptr},
    {"put_quiet_thread", put_quiet_thread, Role::put, nullptr},
    {"put_quiet_warp", put_quiet_warp, Role::put, nullptr},
    {"get_thread", get_thread, Role::get, nullptr},
    {"get_warp", get_warp, Role::get, nullptr},
    {"p_bw", ::p_bw, Role::words, nullptr},
    {"p_quiet", ::p_quiet, Role::word, nullptr},
    {"quiet_used", ::quiet_used, Role::words, nullptr},
    {"signal_rate", ::signal_rate, Role::signals, nullptr},
    {"put_signal_rate", ::put_signal_rate, Role::put, nullptr},
    {"signal_ping_pong", ::signal_ping_pong, Role::ping_pong, nullptr},
    {"put_signal_ping_pong_thread", put_signal_ping_pong_thread, Role::exchange, nullptr},
    {"barrier_all_thread", barrier_all_thread, Role::meeting, check_barrier_all_thread},
    {"barrier_all_block", barrier_all_block, Role::meeting, check_barrier_all_block},
    {"sync_all_thread", sync_all_thread, Role::meeting, check_sync_all_thread},
    {"sync_all_block", sync_all_block, Role::meeting, check_sync_all_block},
    {"alltoall_thread", ::alltoall_thread, Role::alltoall, nullptr},
    {"alltoall_block", ::alltoall_block, Role::alltoall, nullptr},
    {"fcollect_block", ::fcollect_block, Role::fcollect, nullptr},
    {"broadcast_block", ::broadcast_block, Role::broadcast, nullptr},
    {"sum_block", ::sum_block, Role::sum, nullptr},
    {"exchange_block", ::exchange_block, Role::alltoall, nullptr},
    {"jacobi_p", ::jacobi_p, Role::jacobi, nullptr},
    {"jacobi_put", ::jacobi_put, Role::jacobi, nullptr},
    {"moe", ::moe, Role::moe, nullptr},
#ifndef COMPARE_NVSHMEM
    {"context_put_thread", context_put_thread, Role::put, nullptr},
    {"context_put_batched_8", context_put_batched_8, Role::put, nullptr},
    {"batch_put", ::batch_put, Role::put, nullptr},
    {"batch_put_8", batch_put_8, Role::put, nullptr},
    {"context_p_quiet", ::context_p_quiet, Role::word, nullptr},
    {"context_put_signal_block", ::context_put_signal_block, Role::put, nullptr},
    {"context_p_warp", ::context_p_warp, Role::words, nullptr},
    {"null_card", ::null_card, Role::words, nullptr},
#endif
    {"link_store", ::link_store, Role::put, nullptr},
    {"link_load", ::link_load, Role::get, nullptr},
    {"link_words", ::link_words, Role::words, nullptr},
    {"word_fence", ::word_fence, Role::put, nullptr},
    {"flag_ping_pong", ::flag_ping_pong, Role::ping_pong, nullptr},
    {"flag_sync", flag_sync, Role::meeting, nullptr},
    {"flag_barrier", flag_barrier, Role::meeting, nullptr},
    {"stream_put", nullptr, Role::put, nullptr, stream_put},
    {"stream_put_quiet", nullptr, Role::put, nullptr, stream_put_quiet},
    {"stream_put_signal", nullptr, Role::put, nullptr, stream_put_signal},
    {"stream_get", nullptr, Role::get, nullptr, stream_get},
    {"stream_p", nullptr, Role::signals, nullptr, stream_p},
    {"stream_signal", nullptr, Role::signals, nullptr, stream_signal},
    {"stream_barrier_all", nullptr, Role::meeting, nullptr, stream_barrier_all},
    {"stream_sync_all", nullptr, Role::meeting, nullptr, stream_sync_all},
    {"stream_broadcast", nullptr, Role::broadcast, nullptr, stream_broadcast},
    {"stream_fcollect", nullptr, Role::fcollect, nullptr, stream_fcollect},
    {"stream_alltoall", nullptr, Role::alltoall, nullptr, stream_alltoall},
    {"stream_reduce", nullptr, Role::sum, nullptr, stream_reduce},
    {"stream_reducescatter", nullptr, Role::scatter, nullptr, stream_reducescatter},
};

struct Row {
    std::string name, kernel;
    unsigned ctas, threads;
    uint64_t bytes, stride, step, steps, warmup, iters, samples;
    std::string sharing; // of contexts; empty without
    int contexts = 0, depth = 0;

    uint64_t walk() const { return step * steps; }
    uint64_t dst_bytes() const { return bytes * stride + walk(); }
    uint64_t src_bytes() const { return bytes + std::max(walk(), kShifts); }
    // A word for each thread, or at each step.
    uint64_t signal_words() const { return std::max<uint64_t>(static_cast<uint64_t>(ctas) * threads, walk() / 8 + 1); }
    uint64_t all_threads() const { return static_cast<uint64_t>(ctas) * threads; }
    uint64_t away(uint64_t i) const { return i % steps * step; }
};

// What PE `pe` sends: word `index` of its source.
__host__ __device__ uint64_t pattern(uint64_t seed, int pe, uint64_t index) {
    const uint64_t x = (seed + static_cast<uint64_t>(pe) * 0xd1b54a32d192ed03ull + index) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

__global__ void fill(uint64_t *words, uint64_t n, uint64_t seed, int pe) {
    for (uint64_t i = grid_rank(); i < n; i += grid_threads()) {
        words[i] = pattern(seed, pe, i);
    }
}

// Counts the words that are not as they should be in found[0]; found[1] gets the place of the
// first.
__global__ void check_data(const uint64_t *words, uint64_t n, uint64_t seed, int from, uint64_t shifted, uint64_t *found) {
    for (uint64_t i = grid_rank(); i < n; i += grid_threads()) {
        if (words[i] != pattern(seed, from, i + shifted)) {
            atomicAdd(reinterpret_cast<unsigned long long *>(found), 1ull);
            atomicMin(reinterpret_cast<unsigned long long *>(found + 1), static_cast<unsigned long long>(i));
        }
    }
}

__global__ void check_words(const uint64_t *words, uint64_t n, uint64_t stride, uint64_t base, uint64_t last, uint64_t *found) {
    for (uint64_t i = grid_rank(); i < n * stride; i += grid_threads()) {
        if (words[i] != (i % stride == 0 ? value(base, last, i / stride) : kUntouched)) {
            atomicAdd(reinterpret_cast<unsigned long long *>(found), 1ull);
            atomicMin(reinterpret_cast<unsigned long long *>(found + 1), static_cast<unsigned long long>(i));
        }
    }
}

__global__ void check_sums(const uint64_t *words, uint64_t n, uint64_t seed, int pes, uint64_t shifted, uint64_t *found) {
    for (uint64_t i = grid_rank(); i < n; i += grid_threads()) {
        uint64_t expected = 0;
        for (int pe = 0; pe < pes; ++pe) {
            expected += pattern(seed, pe, i + shifted);
        }
        if (words[i] != expected) {
            atomicAdd(reinterpret_cast<unsigned long long *>(found), 1ull);
            atomicMin(reinterpret_cast<unsigned long long *>(found + 1), static_cast<unsigned long long>(i));
        }
    }
}

// The reference for jacobi: one iteration on the whole mesh, without anything clever.
__global__ void jacobi_start(float *field, uint64_t side) {
    for (uint64_t i = grid_rank(); i < side * side; i += grid_threads()) {
        field[i] = start_value(side, i / side, i % side);
    }
}

__global__ void jacobi_step(const float *in, float *out, uint64_t side) {
    for (uint64_t i = grid_rank(); i < side * (side - 2); i += grid_threads()) {
        const float *at = in + side + i;
        const uint64_t column = i % side;
        const bool fixed = column == 0 || column + 1 == side;
        out[side + i] = fixed ? *at : 0.25f * ((at[-static_cast<int64_t>(side)] + at[side]) + (at[-1] + at[1]));
    }
}

// `words` are those of each token; all experts of a token add something to each of them, and the
// results are added.
__global__ void check_experts(const uint32_t *sums, uint64_t tokens, uint64_t words, uint64_t base, uint64_t last, int me,
                              int pes, uint64_t *found) {
    for (uint64_t i = grid_rank(); i < tokens * words; i += grid_threads()) {
        const uint64_t at = shift(last) / 4 + i;
        const uint32_t word = static_cast<uint32_t>(pattern(base, me, at / 2) >> at % 2 * 32);
        uint32_t expected = 0;
        for (uint64_t k = 0; k < kTop; ++k) {
            expected += word + expertise(chosen(me, i / words, k, pes), base + last);
        }
        if (sums[i] != expected) {
            atomicAdd(reinterpret_cast<unsigned long long *>(found), 1ull);
            atomicMin(reinterpret_cast<unsigned long long *>(found + 1), static_cast<unsigned long long>(i));
        }
    }
}

__global__ void check_equal(const uint32_t *a, const uint32_t *b, uint64_t n, uint64_t *found) {
    for (uint64_t i = grid_rank(); i < n; i += grid_threads()) {
        if (a[i] != b[i]) {
            atomicAdd(reinterpret_cast<unsigned long long *>(found), 1ull);
            atomicMin(reinterpret_cast<unsigned long long *>(found + 1), static_cast<unsigned long long>(i));
        }
    }
}

class Pe {
public:
    Pe(const std::vector<Row> &rows, bool posting, uint64_t init_ns)
        : me_(host_my_pe()), n_(host_n_pes()), posting_(posting), init_ns_(init_ns) {
        for (const Row &row : rows) {
            dst_bytes_ = std::max(dst_bytes_, row.dst_bytes());
            src_bytes_ = std::max(src_bytes_, row.src_bytes());
            signals_count_ = std::max(signals_count_, row.signal_words());
            // And a word for blocks that meet.
            clock_count_ = std::max<uint64_t>(clock_count_, 2 * row.ctas + 1);
        }
        dst_ = static_cast<char *>(alloc(dst_bytes_));
        src_ = static_cast<char *>(alloc(src_bytes_));
        signals_ = static_cast<uint64_t *>(alloc(signals_count_ * sizeof(uint64_t)));
        CUDA(cudaMemset(signals_, 0, signals_count_ * sizeof(uint64_t)));
        CUDA(cudaMalloc(&clock_, clock_count_ * sizeof(uint64_t)));
        if (!rows.empty() && rows[0].contexts > 0) {
            contexts_ = create_contexts(rows[0].sharing, rows[0].contexts, rows[0].depth);
        }
        CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        CUDA(cudaEventCreate(&begin_));
        CUDA(cudaEventCreate(&end_));
    }

    void close() {
        if (contexts_ != nullptr) {
            destroy_contexts();
        }
        for (float *field : solution_) {
            CUDA(cudaFree(field));
        }
        CUDA(cudaFree(clock_));
        CUDA(cudaEventDestroy(end_));
        CUDA(cudaEventDestroy(begin_));
        CUDA(cudaStreamDestroy(stream_));
        release(signals_);
        release(src_);
        release(dst_);
    }

    // The nanoseconds of each sample; on PE 0.
    std::vector<uint64_t> run(const Row &row) {
        if (row.kernel == "init") {
            return {init_ns_};
        }
        const auto entry =
            std::find_if(std::begin(kEntries), std::end(kEntries), [&](const Entry &e) { return row.kernel == e.name; });
        if (entry == std::end(kEntries)) {
            fail("%s: there is no kernel %s", row.name.c_str(), row.kernel.c_str());
        }
        const bool all = entry->role == Role::alltoall || entry->role == Role::fcollect || entry->role == Role::scatter;
        if (all && static_cast<uint64_t>(n_) * row.bytes > row.walk()) {
            fail("%s: there is room for the data of %llu PEs, and there are %d", row.name.c_str(),
                 static_cast<unsigned long long>(row.walk() / row.bytes), n_);
        }
        const MoeRoom room{static_cast<uint64_t>(n_), row.stride, row.bytes};
        if (entry->role == Role::moe && (room.total() > row.walk() || row.threads % 32 != 0 || row.bytes % 16 != 0)) {
            fail("%s: %d PEs need %llu bytes, and there are %llu; tokens are multiples of 16 bytes, CTAs whole warps",
                 row.name.c_str(), n_, static_cast<unsigned long long>(room.total()),
                 static_cast<unsigned long long>(row.walk()));
        }
        std::vector<uint64_t> samples;
        for (uint64_t sample = 0; sample < row.samples; ++sample) {
            prepare(row);
            meet();
            if (takes_part(entry->role)) {
                const uint64_t ns = entry->call != nullptr ? queued_run(*entry, row) : timed_run(*entry, row);
                if (me_ == 0) {
                    samples.push_back(ns);
                }
            }
            meet();
            if (!posting_) {
                verify(*entry, row);
            }
            base_ += row.warmup + row.iters;
        }
        return samples;
    }

private:
    int other() const { return me_ == 0 ? 1 : 0; }
    void meet() const {
        if (!posting_) {
            barrier();
        }
    }

    bool takes_part(Role role) const {
        switch (role) {
        case Role::meeting:
        case Role::alltoall:
        case Role::fcollect:
        case Role::broadcast:
        case Role::sum:
        case Role::scatter:
        case Role::jacobi:
        case Role::moe:
            return true;
        case Role::ping_pong:
        case Role::exchange:
            return me_ <= 1;
        default:
            return me_ == 0;
        }
    }

    void prepare(const Row &row) {
        fill<<<256, 256>>>(reinterpret_cast<uint64_t *>(src_), row.src_bytes() / 8, base_, me_);
        CUDA(cudaGetLastError());
        CUDA(cudaMemset(dst_, 0xff, row.dst_bytes()));
        CUDA(cudaMemset(clock_, 0, clock_count_ * sizeof(uint64_t)));
        CUDA(cudaDeviceSynchronize());
    }

    void launch(const Row &row, Kernel kernel, uint64_t warmup, uint64_t iters, uint64_t base) {
        kernel<<<row.ctas, row.threads>>>(dst_, src_, signals_, clock_, row.bytes, row.stride, row.step, row.steps, warmup,
                                          iters, base, other(), contexts_);
        CUDA(cudaGetLastError());
        CUDA(cudaDeviceSynchronize());
        check();
    }

    void queue(const Entry &entry, const Row &row, uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            const char *src = src_ + (entry.role == Role::get ? row.away(i) : row.steps == 1 ? shift_of(i) : 0);
            const int root = static_cast<int>(i % static_cast<uint64_t>(n_));
            const Queued call{dst_, src, row.bytes, root, other(), stream_, signals_, base_ + i + 1};
            require(entry.call(call), entry.name);
        }
    }

    // Calls that move little are bound by the host's processor. Processors of one machine differ in
    // speed by a half and more, and change it from one moment to the next, as others make use of
    // the same cores. So such a sample is the least of several, spread over the processors.
    uint64_t queued_run(const Entry &entry, const Row &row) {
        const bool by_host =
            entry.role == Role::put || entry.role == Role::get || entry.role == Role::signals || entry.role == Role::meeting;
        if (!by_host || row.bytes > kLittle) {
            return queued_once(entry, row);
        }
        cpu_set_t all;
        if (sched_getaffinity(0, sizeof(all), &all) != 0) {
            fail("sched_getaffinity: %s", strerror(errno));
        }
        std::vector<int> processors;
        for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
            if (CPU_ISSET(processor, &all)) {
                processors.push_back(processor);
            }
        }
        // PEs keep apart: neighbours may be threads of one core.
        const size_t first = processors.size() * static_cast<size_t>(me_) / static_cast<size_t>(n_);
        uint64_t least = ~0ull;
        for (size_t turn = 0; turn < kTurns; ++turn) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(processors[(first + turn * processors.size() / kTurns) % processors.size()], &one);
            move_to(one);
            least = std::min(least, queued_once(entry, row));
        }
        move_to(all);
        return least;
    }

    static void move_to(const cpu_set_t &processors) {
        if (sched_setaffinity(0, sizeof(processors), &processors) != 0) {
            fail("sched_setaffinity: %s", strerror(errno));
        }
    }

    // From the moment at which the stream reaches the first timed call until it has ended the last
    // one.
    uint64_t queued_once(const Entry &entry, const Row &row) {
        queue(entry, row, 0, row.warmup);
        CUDA(cudaStreamSynchronize(stream_));
        CUDA(cudaEventRecord(begin_, stream_));
        queue(entry, row, row.warmup, row.warmup + row.iters);
        CUDA(cudaEventRecord(end_, stream_));
        CUDA(cudaStreamSynchronize(stream_));
        check();
        float ms = 0;
        CUDA(cudaEventElapsedTime(&ms, begin_, end_));
        return static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
    }

    // From the first CTA's begin to the last one's end.
    uint64_t timed_run(const Entry &entry, const Row &row) {
        launch(row, entry.kernel, row.warmup, row.iters, base_);
        std::vector<uint64_t> clock(2ull * row.ctas);
        CUDA(cudaMemcpy(clock.data(), clock_, clock.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
        uint64_t begin = ~0ull, end = 0;
        for (size_t i = 0; i < clock.size(); i += 2) {
            begin = std::min(begin, clock[i]);
            end = std::max(end, clock[i + 1]);
        }
        if (begin == 0 || end <= begin) {
            fail("%s: the kernel has not run to its end", row.name.c_str());
        }
        return end - begin;
    }

    void verify(const Entry &entry, const Row &row) {
        const uint64_t last = row.warmup + row.iters - 1;
        const auto *dst = reinterpret_cast<const uint64_t *>(dst_);
        const auto *dst_away = reinterpret_cast<const uint64_t *>(dst_ + row.away(last));
        uint64_t *found = nullptr;
        const uint64_t nothing[2] = {0, ~0ull};
        CUDA(cudaMalloc(&found, sizeof(nothing)));
        CUDA(cudaMemcpy(found, nothing, sizeof(nothing), cudaMemcpyHostToDevice));
        if (entry.role == Role::get && me_ == 0) {
            check_data<<<256, 256>>>(dst, row.bytes / 8, base_, other(), row.away(last) / 8, found);
        } else if ((entry.role == Role::put && me_ == 1) || (entry.role == Role::exchange && me_ <= 1)) {
            check_data<<<256, 256>>>(dst_away, row.bytes / 8, base_, other(), shift_of(last) / 8, found);
        } else if (entry.role == Role::words && me_ == 1) {
            check_words<<<256, 256>>>(dst, row.bytes / 8, row.stride, base_, last, found);
        } else if (entry.role == Role::word && me_ == 1) {
            check_words<<<1, 1>>>(dst_away, 1, 1, base_, last, found);
        } else if (entry.role == Role::alltoall || entry.role == Role::fcollect) {
            const uint64_t words = row.bytes / 8, mine = entry.role == Role::alltoall ? me_ * words : 0;
            for (int pe = 0; pe < n_; ++pe) {
                check_data<<<256, 256>>>(dst + pe * words, words, base_, pe, shift_of(last) / 8 + mine, found);
            }
        } else if (entry.role == Role::broadcast) {
            check_data<<<256, 256>>>(dst, row.bytes / 8, base_, static_cast<int>(last % n_), shift_of(last) / 8, found);
        } else if (entry.role == Role::sum || entry.role == Role::scatter) {
            const uint64_t words = row.bytes / 8, mine = entry.role == Role::scatter ? me_ * words : 0;
            check_sums<<<256, 256>>>(dst, words, base_, n_, shift_of(last) / 8 + mine, found);
        } else if (entry.role == Role::jacobi) {
            const uint64_t side = row.step, total = row.warmup + row.iters;
            const stencil::Share mine = stencil_share(side - 2);
            const uint64_t n = mine.count * side;
            check_equal<<<256, 256>>>(reinterpret_cast<const uint32_t *>(total % 2 == 0 ? dst_ : src_) + side,
                                      reinterpret_cast<const uint32_t *>(solution(side, total)) + (mine.first + 1) * side, n,
                                      found);
        } else if (entry.role == Role::moe) {
            check_experts<<<256, 256>>>(reinterpret_cast<const uint32_t *>(dst_), row.stride, row.bytes / 4, base_, last, me_,
                                        n_, found);
        }
        CUDA(cudaGetLastError());
        uint64_t result[2];
        CUDA(cudaMemcpy(result, found, sizeof(result), cudaMemcpyDeviceToHost));
        CUDA(cudaFree(found));
        if (result[0] != 0) {
            fail("PE %d, row %s: wrong data: %llu words, the first at word %llu", me_, row.name.c_str(),
                 static_cast<unsigned long long>(result[0]), static_cast<unsigned long long>(result[1]));
        }
        if (entry.role == Role::signals && me_ == 1) {
            verify_signals(row, 0, row.all_threads(), last);
        } else if ((entry.role == Role::ping_pong || entry.role == Role::exchange) && me_ <= 1) {
            verify_signals(row, row.away(last) / 8, 1, last);
        } else if (entry.check != nullptr) {
            constexpr uint64_t kRounds = 200;
            barrier();
            launch(row, entry.check, 0, kRounds, base_);
            uint64_t wrong = 0;
            CUDA(cudaMemcpy(&wrong, clock_, sizeof(wrong), cudaMemcpyDeviceToHost));
            if (wrong != 0) {
                fail("PE %d, row %s: in %llu of %llu rounds another PE's word was not there", me_, row.name.c_str(),
                     static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(kRounds));
            }
        } else if (entry.call == stream_barrier_all || entry.call == stream_sync_all) {
            barrier();
            verify_stream_meeting(entry, row);
        }
        barrier();
    }

    // The same as check_meeting of kernels.h, on a stream: before a barrier a word is put to the
    // next PE; before a sync each PE stores its own, which the next one gets.
    void verify_stream_meeting(const Entry &entry, const Row &row) {
        constexpr uint64_t kRounds = 20;
        const bool at_home = entry.call == stream_sync_all;
        const int next = (me_ + 1) % n_, before = (me_ + n_ - 1) % n_;
        uint64_t *const words = reinterpret_cast<uint64_t *>(dst_);
        uint64_t wrong = 0;
        for (uint64_t round = 0; round < kRounds; ++round) {
            const uint64_t turn = base_ + round;
            const Queued meeting{dst_, src_, sizeof(turn), 0, next, stream_, words, turn};
            if (at_home) {
                CUDA(cudaMemcpyAsync(words, &turn, sizeof(turn), cudaMemcpyHostToDevice, stream_));
            } else {
                require(stream_p(meeting), "stream_p");
            }
            require(entry.call(meeting), entry.name);
            if (at_home) {
                const Queued fetch{dst_ + sizeof(turn), dst_, sizeof(turn), 0, before, stream_, words, turn};
                require(stream_get(fetch), "stream_get");
            }
            CUDA(cudaStreamSynchronize(stream_));
            uint64_t found = 0;
            CUDA(cudaMemcpy(&found, words + (at_home ? 1 : 0), sizeof(found), cudaMemcpyDeviceToHost));
            wrong += found != turn;
            // The next round's words come after all PEs have looked.
            require(entry.call(meeting), entry.name);
            CUDA(cudaStreamSynchronize(stream_));
        }
        check();
        if (wrong != 0) {
            fail("PE %d, row %s: in %llu of %llu rounds another PE's word was not there", me_, row.name.c_str(),
                 static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(kRounds));
        }
    }

    void verify_signals(const Row &row, uint64_t first, uint64_t n, uint64_t last) {
        std::vector<uint64_t> signals(n);
        CUDA(cudaMemcpy(signals.data(), signals_ + first, n * sizeof(uint64_t), cudaMemcpyDeviceToHost));
        for (uint64_t i = 0; i < n; ++i) {
            if (signals[i] != base_ + last + 1) {
                fail("PE %d, row %s: signal %llu is %llu, not %llu", me_, row.name.c_str(), static_cast<unsigned long long>(i),
                     static_cast<unsigned long long>(signals[i]), static_cast<unsigned long long>(base_ + last + 1));
            }
        }
    }

    stencil::Share stencil_share(uint64_t rows) const {
        const uint64_t pes = static_cast<uint64_t>(n_), me = static_cast<uint64_t>(me_), each = rows / pes, more = rows % pes;
        return {me * each + std::min(me, more), each + (me < more ? 1 : 0)};
    }

    // The whole mesh after `iterations` iterations; kept, since several rows ask for the same.
    const float *solution(uint64_t side, uint64_t iterations) {
        if (solved_ != std::make_pair(side, iterations)) {
            for (float *&field : solution_) {
                CUDA(cudaFree(field));
                CUDA(cudaMalloc(&field, side * side * sizeof(float)));
                jacobi_start<<<1024, 256>>>(field, side);
            }
            for (uint64_t i = 0; i < iterations; ++i) {
                jacobi_step<<<2048, 256>>>(solution_[i % 2], solution_[~i % 2], side);
            }
            CUDA(cudaGetLastError());
            solved_ = {side, iterations};
        }
        return solution_[iterations % 2];
    }

    static uint64_t shift_of(uint64_t i) { return i % 16 * 64; }

    int me_, n_;
    bool posting_;
    uint64_t init_ns_;
    uint64_t dst_bytes_ = 16, src_bytes_ = 8, signals_count_ = 1, clock_count_ = 2;
    char *dst_ = nullptr, *src_ = nullptr;
    uint64_t *signals_ = nullptr, *clock_ = nullptr;
    const Context *contexts_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    float *solution_[2] = {nullptr, nullptr};
    std::pair<uint64_t, uint64_t> solved_{0, 0};
    uint64_t base_ = 1; // grows with every sample, so signals only grow
};

std::vector<Row> read_plan(const char *path) {
    std::ifstream file(path);
    if (!file) {
        fail("cannot read %s", path);
    }
    std::vector<Row> rows;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        Row row;
        if (!(words >> row.name >> row.kernel >> row.ctas >> row.threads >> row.bytes >> row.stride >> row.step >> row.steps >>
              row.warmup >> row.iters >> row.samples)) {
            fail("%s: a line that is not a row: %s", path, line.c_str());
        }
        if (row.ctas == 0 || row.threads == 0 || row.steps == 0 || (row.steps & (row.steps - 1)) != 0 || row.iters == 0) {
            fail("%s: a shape that cannot be: %s", path, line.c_str());
        }
        if (words >> row.sharing && !(words >> row.contexts >> row.depth)) {
            fail("%s: a line whose contexts are not SHARING COUNT DEPTH: %s", path, line.c_str());
        }
        rows.push_back(row);
    }
    return rows;
}

// A number that the launcher has left in the environment.
int place(const char *variable) {
    const char *text = std::getenv(variable);
    char *end = nullptr;
    const long number = text == nullptr ? -1 : std::strtol(text, &end, 10);
    if (text == nullptr || *text == '\0' || *end != '\0' || number < 0) {
        fail("%s is not set to a number; start this program through the driver", variable);
    }
    return static_cast<int>(number);
}

} // namespace

int main(int argc, char **argv) {
    const bool posting = argc == 3 && std::strcmp(argv[2], "posting") == 0;
    if (argc != 2 && !posting) {
        fail("usage: %s PLAN [posting]", argv[0]);
    }
    const std::vector<Row> rows = read_plan(argv[1]);
    const int rank = place("OXSHMEM_RANK"), n = place("OXSHMEM_NPES");
    int gpus = 0;
    CUDA(cudaGetDeviceCount(&gpus));
    CUDA(cudaSetDevice(rank % gpus));
    CUDA(cudaFree(nullptr));
    const auto begun = std::chrono::steady_clock::now();
    init(rank, n);
    const auto took = std::chrono::steady_clock::now() - begun;
    Pe pe(rows, posting, static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count()));
    if (rank == 0) {
        std::printf("{\"library\":\"%s\"}\n", library().c_str());
    }
    if (rank == 0 || !posting) {
        for (const Row &row : rows) {
            const std::vector<uint64_t> samples = pe.run(row);
            if (rank == 0) {
                std::printf("{\"row\":\"%s\",\"ns\":[", row.name.c_str());
                for (size_t i = 0; i < samples.size(); ++i) {
                    std::printf("%s%llu", i == 0 ? "" : ",", static_cast<unsigned long long>(samples[i]));
                }
                std::printf("]}\n");
                std::fflush(stdout);
            }
        }
    }
    pe.close();
    finalize();
}
