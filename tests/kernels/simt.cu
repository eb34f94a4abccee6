// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Kernels that exercise the SIMT executor of the `cpu` device; tests/simt.rs launches them and
// checks what they leave.
#include <oxshmem/port/port.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>

namespace {

using namespace oxshmem::port;

struct Three {
    float a;
    uint16_t b;
    double c;
};

// The rank of the calling thread in the grid.
uint32_t global_rank() {
    return block_rank() * block_threads() + thread_rank();
}

template <class T> T block_sum(T value) {
    OXSHMEM_SHARED(T, partial, [32]);
    for (int delta = 16; delta > 0; delta /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(delta));
    }
    if (lane_id() == 0) {
        partial[thread_rank() / 32] = value;
    }
    __syncthreads();
    T sum = 0;
    for (uint32_t warp = 0; warp < (block_threads() + 31) / 32; ++warp) {
        sum += partial[warp];
    }
    __syncthreads();
    return sum;
}

} // namespace

// Each thread writes its position: 14 words a thread.
OXSHMEM_KERNEL(positions, uint32_t *out) {
    const uint32_t words[14] = {threadIdx.x,  threadIdx.y,   threadIdx.z,     blockIdx.x, blockIdx.y,
                                blockIdx.z,   thread_rank(), lane_id(),       gridDim.x,  blockDim.y,
                                block_rank(), grid_blocks(), block_threads(), 0};
    for (int i = 0; i < 14; ++i) {
        out[global_rank() * 14 + static_cast<uint32_t>(i)] = words[i];
    }
}

OXSHMEM_KERNEL(arguments, uint64_t *out, int8_t a, Three three, const char *text, uint16_t b) {
    out[0] = static_cast<uint64_t>(static_cast<int64_t>(a));
    out[1] = static_cast<uint64_t>(three.a * 2);
    out[2] = three.b;
    out[3] = static_cast<uint64_t>(three.c * 4);
    out[4] = static_cast<uint64_t>(text[1]);
    out[5] = b;
}

// Every thread gets the sum over its block, of a 64-bit and of a double value.
OXSHMEM_KERNEL(reduce, const uint64_t *in, uint64_t *out) {
    const uint64_t sum = block_sum(in[global_rank()]);
    const double real = block_sum(static_cast<double>(in[global_rank()]) / 2);
    out[global_rank()] = sum + static_cast<uint64_t>(real);
}

// Reverses each block's part through dynamic shared memory, `rounds` times.
OXSHMEM_KERNEL(reverse, uint32_t *data, uint32_t rounds) {
    OXSHMEM_DYNAMIC_SHARED(uint32_t, staged);
    uint32_t *mine = data + block_rank() * block_threads();
    for (uint32_t i = 0; i < rounds; ++i) {
        staged[thread_rank()] = mine[thread_rank()];
        sync_block();
        mine[thread_rank()] = staged[block_threads() - 1 - thread_rank()];
        sync_block();
    }
}

// Static shared memory belongs to one block, and to one instantiation.
OXSHMEM_KERNEL(shared_is_per_block, uint32_t *out) {
    OXSHMEM_SHARED(uint32_t, tile, [4][33]);
    OXSHMEM_SHARED(uint32_t, count);
    if (thread_rank() == 0) {
        count = block_rank();
        tile[3][32] = block_rank() * 7;
    }
    sync_block();
    for (int i = 0; i < 3; ++i) {
        pause(); // lets other blocks of this worker run
    }
    out[global_rank()] = count + tile[3][32];
}

// The results of each vote and barrier vote: 8 words a thread.
OXSHMEM_KERNEL(votes, uint32_t *out) {
    const uint32_t rank = thread_rank();
    uint32_t *mine = out + global_rank() * 8;
    const unsigned all = __activemask();
    mine[0] = __ballot_sync(all, rank % 3 == 0);
    mine[1] = static_cast<uint32_t>(__any_sync(all, lane_id() == 5));
    mine[2] = static_cast<uint32_t>(__all_sync(all, rank < 1000));
    mine[3] = __match_any_sync(all, static_cast<unsigned long long>(rank % 4));
    mine[4] = static_cast<uint32_t>(__syncthreads_count(rank % 2 == 0));
    mine[5] = static_cast<uint32_t>(__syncthreads_and(rank < block_threads()));
    mine[6] = static_cast<uint32_t>(__syncthreads_or(rank == 1));
    mine[7] = static_cast<uint32_t>(__syncthreads_and(rank != 2));
}

// The four shuffles, in segments of 8 lanes, and one of a larger type: 6 words a thread.
OXSHMEM_KERNEL(shuffles, uint32_t *out) {
    uint32_t *mine = out + thread_rank() * 6;
    const uint32_t value = 100 + lane_id();
    mine[0] = __shfl_sync(~0u, value, 11, 8);
    mine[1] = __shfl_up_sync(~0u, value, 3u, 8);
    mine[2] = __shfl_down_sync(~0u, value, 3u, 8);
    mine[3] = __shfl_xor_sync(~0u, value, 5, 8);
    mine[4] = __shfl_xor_sync(~0u, value, 16, 32);
    const Three three = shfl(~0u, Three{static_cast<float>(value), static_cast<uint16_t>(value), value / 2.0}, 31 - lane_id());
    mine[5] = static_cast<uint32_t>(three.c * 2) + static_cast<uint32_t>(three.a) + three.b;
}

// Returns a mask to callers at different places: it must not become one place where they meet.
OXSHMEM_INLINE uint32_t together() {
    return active_mask();
}

// The masks seen at the top, after a stretch that takes lanes different time, and in two branches
// at the end: 3 words a thread.
OXSHMEM_KERNEL(divergence, uint32_t *out) {
    uint32_t *mine = out + global_rank() * 3;
    mine[0] = active_mask();
    uint32_t delay = 0;
    for (uint32_t i = 0; i < lane_id() % 5; ++i) {
        delay += shfl(1u << lane_id(), i, lane_id());
    }
    mine[1] = active_mask() - delay + delay;
    if (lane_id() % 3 == 0) {
        mine[2] = together();
        // The group works together while the others are elsewhere.
        mine[2] ^= ballot(mine[2], lane_id() < 16);
    } else {
        mine[2] = together();
    }
}

// Where lanes meet again is up to the layout of the code here, but each member of a group must be
// told the same group.
OXSHMEM_KERNEL(nested_divergence, uint32_t *out) {
    for (uint32_t i = 0; i < 8; ++i) {
        uint32_t mask = 0;
        if ((lane_id() >> (i % 3)) & 1) {
            if (lane_id() % (i + 2) == 1) {
                mask = active_mask();
            } else if (lane_id() % (i + 2) == 0) {
                mask = active_mask();
                if (ballot(mask, true) != mask) {
                    mask = 0;
                }
            }
        }
        if (mask == 0) {
            mask = active_mask();
        }
        // Only an equal group completes this.
        out[thread_rank() * 8 + i] = match_any(mask, 7) == mask ? mask : 0;
    }
}

// Half of the lanes meet again and again without a pause, until the others, further down, let them
// go.
OXSHMEM_KERNEL(gathering_is_fair, uint32_t *flag) {
    if (lane_id() < 16) {
        while (load<order::relaxed, reach::block>(flag) == 0) {
            active_mask();
        }
    } else {
        active_mask();
        store<order::relaxed, reach::block>(flag, 1u);
    }
}

// Lanes leave one by one; those that stay see a shrinking mask and operations with a full mask
// still complete.
OXSHMEM_KERNEL(leaving, uint32_t *out) {
    uint32_t seen = 0;
    for (uint32_t i = 0; i <= lane_id(); ++i) {
        seen = ballot(0xffffffffu, true);
    }
    out[thread_rank()] = seen;
}

// Two halves of a warp shuffle with their own masks at the same time, different numbers of times,
// then together.
OXSHMEM_KERNEL(partial_masks, uint32_t *out) {
    const bool low = lane_id() < 16;
    const uint32_t mask = low ? 0x0000ffffu : 0xffff0000u;
    uint32_t value = lane_id();
    const int rounds = low ? 3 : 7;
    for (int i = 0; i < rounds; ++i) {
        value = shfl(mask, value, (lane_id() + 1) % 16 + (low ? 0 : 16));
    }
    sync_warp(mask);
    out[thread_rank()] = value + 100 * ballot(0xffffffffu, low);
}

// Masks that overlap: lane 0 pairs with lane 1, then with lane 2, which first pairs with lane 3.
OXSHMEM_KERNEL(overlapping_masks, uint32_t *out) {
    const uint32_t lane = lane_id();
    uint32_t sum = 0;
    if (lane < 2) {
        sum += shfl(0x3u, lane + 10, 1 - lane);
    }
    if (lane == 2 || lane == 3) {
        sum += shfl(0xcu, lane + 20, 5 - lane);
    }
    if (lane == 0 || lane == 2) {
        sum += 100 * shfl(0x5u, lane + 30, 2 - lane);
    }
    out[thread_rank()] = sum;
}

// Exited threads do not count in barriers: half of the threads return, the others meet `rounds`
// times.
OXSHMEM_KERNEL(early_exit, uint32_t *out, uint32_t rounds) {
    if (thread_rank() % 2 == 1) {
        return;
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < rounds; ++i) {
        count += static_cast<uint32_t>(__syncthreads_count(1));
    }
    out[global_rank()] = count;
}

// A token goes round the blocks: block i waits for block i - 1.
OXSHMEM_KERNEL(chain, uint32_t *flags, uint32_t rounds) {
    const uint32_t me = block_rank();
    const uint32_t left = (me + grid_blocks() - 1) % grid_blocks();
    for (uint32_t round = 1; round <= rounds; ++round) {
        if (thread_rank() == 0) {
            const uint32_t wanted = me == 0 ? round - 1 : round;
            while (load<order::acquire, reach::device>(&flags[left]) < wanted) {
                pause();
            }
        }
        sync_block();
        if (thread_rank() == block_threads() - 1) {
            store<order::release, reach::device>(&flags[me], round);
        }
    }
}

// A barrier over the whole grid, `rounds` times; counts the arrivals it sees.
OXSHMEM_KERNEL(grid_barrier, uint32_t *arrived, uint32_t *wrong, uint32_t rounds) {
    for (uint32_t round = 1; round <= rounds; ++round) {
        sync_block();
        if (thread_rank() == 0) {
            fetch_add<order::acq_rel, reach::device>(arrived, 1u);
            while (load<order::acquire, reach::device>(arrived) < round * grid_blocks()) {
                pause();
            }
        }
        sync_block();
        if (load<order::acquire, reach::device>(arrived) < round * grid_blocks()) {
            fetch_add<order::relaxed, reach::device>(wrong, 1u);
        }
    }
}

struct Counters {
    unsigned add, sub, max, min, exclusive, spin, bits, parity;
    unsigned long long wide;
    float real;
    double precise;
    uint8_t bytes[8];
    unsigned lock;
};

OXSHMEM_KERNEL(atomics, Counters *c, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        atomicAdd(&c->add, 1u);
        atomicSub(&c->sub, 1u);
        atomicMax(&c->max, global_rank());
        atomicMin(&c->min, global_rank());
        atomicAdd(&c->wide, 1ull << 33);
        atomicAdd(&c->real, 1.0f);
        atomicAdd(&c->precise, 0.5);
        atomicOr(&c->bits, 1u << (global_rank() % 32));
        atomicXor(&c->parity, 1u);
        unsigned old = c->exclusive;
        for (;;) {
            const unsigned seen = atomicCAS(&c->exclusive, old, old + 2);
            if (seen == old) {
                break;
            }
            old = seen;
        }
        // A lock, held across a pause.
        while (exchange<order::acquire, reach::device>(&c->lock, 1u) != 0) {
            pause();
        }
        const unsigned before = c->spin;
        if (i == 0) {
            pause();
        }
        c->spin = before + 1;
        store<order::release, reach::device>(&c->lock, 0u);
        store<order::relaxed, reach::block>(&c->bytes[global_rank() % 8], static_cast<uint8_t>(200 + global_rank() % 8));
    }
}

OXSHMEM_KERNEL(vectors, uint32_t *data) {
    vec16 v = load_vec(data + 4 * thread_rank());
    v = {v.w, v.z, v.y, v.x};
    store_vec(data + 4 * thread_rank(), v);
}

OXSHMEM_KERNEL(doorbell, uint64_t *reg) {
    mmio_store(reg, 42);
}

OXSHMEM_KERNEL(count_threads, uint32_t *count) {
    fetch_add<order::relaxed, reach::device>(count, 1u);
}

// Each thread uses `bytes` of stack, then meets its block.
OXSHMEM_KERNEL(use_stack, uint32_t *count, uint32_t bytes) {
    volatile char *memory = static_cast<volatile char *>(__builtin_alloca(bytes));
    for (uint32_t i = 0; i < bytes; i += 512) {
        memory[i] = static_cast<char>(i);
    }
    sync_block();
    fetch_add<order::relaxed, reach::device>(count, 1u + (bytes > 0 ? static_cast<uint32_t>(memory[0]) : 0u));
}

// ---- Errors. Each names the thread that errs: `who` is its rank in the grid. ----

OXSHMEM_KERNEL(bad_write, uint64_t *address, uint32_t who) {
    if (global_rank() == who) {
        *static_cast<volatile uint64_t *>(address) = 1;
    }
    sync_block();
}

OXSHMEM_KERNEL(bad_read, const uint64_t *address, uint64_t *out, uint32_t who) {
    sync_block();
    if (global_rank() == who) {
        *out = *static_cast<const volatile uint64_t *>(address);
    }
}

namespace {
__attribute__((noinline)) int recurse(volatile int *depth) {
    volatile char frame[256];
    frame[0] = static_cast<char>(*depth);
    *depth = *depth + 1;
    return *depth < 0 ? 0 : recurse(depth) + frame[0];
}
} // namespace

OXSHMEM_KERNEL(overflow, int *depth, uint32_t who) {
    if (global_rank() == who) {
        recurse(depth);
    }
    sync_block();
}

OXSHMEM_KERNEL(divide, int *value, int by) {
    volatile int divisor = by;
    *value = *value / divisor;
}

OXSHMEM_KERNEL(illegal) {
    __builtin_trap();
}

OXSHMEM_KERNEL(throws, uint32_t who) {
    sync_block();
    if (global_rank() == who) {
        throw std::runtime_error("no luck today");
    }
    sync_block();
}

OXSHMEM_KERNEL(throws_number) {
    throw 7;
}

// Warp 0 waits in a barrier that thread 40 never reaches, because it waits for a lane that is in
// the barrier.
OXSHMEM_KERNEL(deadlock, uint32_t who) {
    if (global_rank() == who) {
        sync_warp(0xffffffffu);
    }
    sync_block();
}

OXSHMEM_KERNEL(foreign_mask) {
    if (lane_id() == 3) {
        sync_warp(0x7);
    }
}

OXSHMEM_KERNEL(different_operations) {
    if (lane_id() < 4) {
        sync_warp(0xffffffffu);
    } else {
        ballot(0xffffffffu, true);
    }
}

OXSHMEM_KERNEL(different_masks) {
    if (lane_id() == 0) {
        sync_warp(0x3);
    } else if (lane_id() == 1) {
        sync_warp(0x6);
    } else if (lane_id() == 2) {
        sync_warp(0x5);
    }
}

OXSHMEM_KERNEL(spin_forever, uint32_t *flag) {
    while (load<order::acquire, reach::device>(flag) == 0) {
        pause();
    }
}

// Never comes back to the executor.
OXSHMEM_KERNEL(hog, uint32_t *flag, uint32_t who) {
    if (block_rank() == who) {
        while (load<order::relaxed, reach::device>(flag) == 0) {
        }
    } else {
        sync_block();
    }
}

// Block 0 fails while block 1 never comes back.
OXSHMEM_KERNEL(fail_beside_hog, uint32_t *flag) {
    if (block_rank() == 1) {
        store<order::release, reach::device>(flag, 1u);
        while (load<order::relaxed, reach::device>(flag) == 1) {
        }
    } else {
        while (load<order::acquire, reach::device>(flag) == 0) {
            pause();
        }
        throw std::runtime_error("block 0 failed");
    }
}

// Barriers forever: in the executor most of the time, but never idle.
OXSHMEM_KERNEL(barriers_forever, uint32_t *flag) {
    while (__syncthreads_or(load<order::relaxed, reach::device>(flag) != 0) == 0) {
    }
}

// The fault happens inside of the C library.
OXSHMEM_KERNEL(bad_string, const char *text, uint64_t *length) {
    *length = std::strlen(text);
}

// Nearly always inside of the C library, where a thread might hold a lock.
OXSHMEM_KERNEL(sleeps_forever, uint32_t *flag) {
    while (load<order::relaxed, reach::device>(flag) == 0) {
        const timespec time = {0, 100000000};
        nanosleep(&time, nullptr);
    }
}

// An exception that the kernel handles itself, thrown after other threads have run in between.
OXSHMEM_KERNEL(handles_exceptions, uint32_t *caught) {
    for (uint32_t i = 0; i < 3; ++i) {
        try {
            sync_block();
            throw global_rank() + i;
        } catch (uint32_t value) {
            fetch_add<order::relaxed, reach::device>(caught, value);
        }
        pause();
    }
}

// ---- Measurements ----

OXSHMEM_KERNEL(time_pause, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        pause();
    }
}

OXSHMEM_KERNEL(time_barrier, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        sync_block();
    }
}

OXSHMEM_KERNEL(time_ballot, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        ballot(0xffffffffu, i != lane_id());
    }
}

OXSHMEM_KERNEL(time_shfl, uint32_t times) {
    uint64_t v = lane_id();
    for (uint32_t i = 0; i < times; ++i) {
        v = shfl(0xffffffffu, v, lane_id() ^ 1);
    }
}

OXSHMEM_KERNEL(time_match, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        match_any(0xffffffffu, i);
    }
}

OXSHMEM_KERNEL(time_active_mask, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
        active_mask();
    }
}

OXSHMEM_KERNEL(empty) {}
OXSHMEM_BOUNDED_KERNEL(96, bounded) {}
