// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// put, get and quiet in grid scope, and the names of typed.h that end in _grid.
#include "conformance.h"

#include <oxshmem/typed.h>

namespace {

using namespace conformance;
using namespace oxshmem;

// The symmetric memory of a test: four zones of `room` bytes.
struct Zones {
    uint8_t *first;
    uint64_t room;
    OXSHMEM_DEVICE uint8_t *zone(uint64_t number) const { return first + number * room; }
};

// Byte `at` of what `pe` gives in a zone.
OXSHMEM_DEVICE uint8_t given(int pe, uint64_t zone, uint64_t at) {
    return static_cast<uint8_t>(mix(static_cast<uint64_t>(pe) << 40 | zone << 32 | at));
}

template <class Each> OXSHMEM_DEVICE void for_all(uint64_t n, Each each) {
    for (uint64_t i = grid_scope::rank(); i < n; i += grid_scope::size()) {
        each(i);
    }
}

// Ends a step on all PEs: what the blocks have stored, and put, is there for all.
OXSHMEM_DEVICE void meet(Report *report) {
    EXPECT_EQ(report, barrier(grid, TEAM_WORLD), 0);
}

OXSHMEM_DEVICE int next_pe() {
    return (my_pe() + 1) % n_pes();
}
OXSHMEM_DEVICE int previous_pe() {
    return (my_pe() + n_pes() - 1) % n_pes();
}

constexpr uint8_t kUntouched = 0xa5;

OXSHMEM_DEVICE void prepare(const Zones &zones, uint64_t n, Report *report) {
    for_all(zones.room, [&](uint64_t i) {
        zones.zone(0)[i] = i < n ? given(my_pe(), 0, i) : 0;
        for (uint64_t zone = 1; zone < 4; ++zone) {
            zones.zone(zone)[i] = kUntouched;
        }
    });
    meet(report);
}

} // namespace

// The blocks put to the next PE and get from it, in both forms; and nothing else is written.
OXSHMEM_KERNEL(transfers, uint8_t *memory, uint64_t room, uint64_t to, uint64_t from, uint64_t bytes, Report *report) {
    const Zones zones{memory, room};
    prepare(zones, from + bytes, report);
    uint8_t *const src = zones.zone(0) + from;
    putmem(grid, zones.zone(1) + to, src, bytes, next_pe());
    putmem_nbi(grid, zones.zone(2) + to, src, bytes, next_pe());
    getmem_nbi(grid, zones.zone(3) + to, src, bytes, next_pe());
    quiet(grid);
    meet(report);
    for_all(room, [&](uint64_t i) {
        const bool inside = i >= to && i < to + bytes;
        const uint64_t at = i - to + from;
        for (uint64_t zone = 1; zone < 4; ++zone) {
            const int pe = zone < 3 ? previous_pe() : next_pe();
            EXPECT_EQ(report, zones.zone(zone)[i], inside ? given(pe, 0, at) : kUntouched);
        }
    });
    meet(report);
    // The blocking get, which the block's part of the data is there after.
    getmem(grid, zones.zone(3) + to, src, bytes, previous_pe());
    meet(report);
    for_all(bytes, [&](uint64_t i) { EXPECT_EQ(report, zones.zone(3)[to + i], given(previous_pe(), 0, from + i)); });
    meet(report);
}

// Every second element to every third.
OXSHMEM_KERNEL(strided, uint8_t *memory, uint64_t room, Report *report) {
    constexpr uint64_t kElements = 200;
    const Zones zones{memory, room};
    prepare(zones, room, report);
    const uint32_t *const src = reinterpret_cast<uint32_t *>(zones.zone(0));
    uint32_t *const put = reinterpret_cast<uint32_t *>(zones.zone(1)), *const got = reinterpret_cast<uint32_t *>(zones.zone(2));
    iput(grid, put, src, 3, 2, kElements, next_pe());
    iget(grid, got, src, 3, 2, kElements, next_pe());
    meet(report);
    const auto word = [](int pe, uint64_t index) {
        uint32_t value = 0;
        for (uint32_t byte = 0; byte < 4; ++byte) {
            value |= static_cast<uint32_t>(given(pe, 0, 4 * index + byte)) << 8 * byte;
        }
        return value;
    };
    for_all(3 * kElements, [&](uint64_t i) {
        constexpr uint32_t kWord = 0xa5a5a5a5;
        EXPECT_EQ(report, put[i], i % 3 == 0 ? word(previous_pe(), i / 3 * 2) : kWord);
        EXPECT_EQ(report, got[i], i % 3 == 0 ? word(next_pe(), i / 3 * 2) : kWord);
    });
    meet(report);
}

namespace {

// Puts and gets kNamed elements of T by its names, which `calls` makes, and looks at the bytes.
template <class T, class Calls> OXSHMEM_NOINLINE void check_named(const Zones &zones, Report *report, Calls calls) {
    constexpr uint64_t kNamed = 5;
    prepare(zones, kNamed * sizeof(T), report);
    const auto at = [&](uint64_t zone) { return reinterpret_cast<T *>(zones.zone(zone)); };
    calls(at(1), at(2), at(3), at(0), kNamed);
    oxshmemx_quiet_grid();
    EXPECT_EQ(report, oxshmemx_barrier_grid(TEAM_WORLD), 0);
    for_all(kNamed * sizeof(T), [&](uint64_t i) {
        EXPECT_EQ(report, zones.zone(1)[i], given(previous_pe(), 0, i));
        EXPECT_EQ(report, zones.zone(2)[i], given(next_pe(), 0, i));
        EXPECT_EQ(report, zones.zone(3)[i], given(previous_pe(), 0, i));
    });
    EXPECT_EQ(report, oxshmemx_team_sync_grid(TEAM_WORLD), 0);
}

} // namespace

#define NAMED(T, PUT, GET, IPUT, IGET)                                                                                         \
    check_named<T>(zones, report, [](T *put, T *got, T *strided, const T *src, size_t n) {                                     \
        PUT##_grid(put, src, n - 1, next_pe());                                                                                \
        PUT##_nbi_grid(put + n - 1, src + n - 1, 1, next_pe());                                                                \
        GET##_grid(got, src, n - 1, next_pe());                                                                                \
        GET##_nbi_grid(got + n - 1, src + n - 1, 1, next_pe());                                                                \
        IPUT##_grid(strided, src, 1, 1, n - 1, next_pe());                                                                     \
        IGET##_grid(strided + n - 1, src + n - 1, 1, 1, 1, previous_pe());                                                     \
    });
#define NAMED_TYPE(name, T)                                                                                                    \
    NAMED(T, oxshmemx_##name##_put, oxshmemx_##name##_get, oxshmemx_##name##_iput, oxshmemx_##name##_iget)
#define NAMED_SIZE(bits, T) NAMED(T, oxshmemx_put##bits, oxshmemx_get##bits, oxshmemx_iput##bits, oxshmemx_iget##bits)

OXSHMEM_KERNEL(named, uint8_t *memory, uint64_t room, Report *report) {
    const Zones zones{memory, room};
    OXSHMEM_FOR_EACH_RMA_TYPE(NAMED_TYPE)
    OXSHMEM_FOR_EACH_SIZE(NAMED_SIZE)
    oxshmemx_sync_all_grid();
    oxshmemx_barrier_all_grid();
    prepare(zones, 100, report);
    oxshmemx_putmem_grid(zones.zone(1), zones.zone(0), 50, next_pe());
    oxshmemx_putmem_nbi_grid(zones.zone(1) + 50, zones.zone(0) + 50, 50, next_pe());
    oxshmemx_getmem_grid(zones.zone(2), zones.zone(0), 50, next_pe());
    oxshmemx_getmem_nbi_grid(zones.zone(2) + 50, zones.zone(0) + 50, 50, next_pe());
    meet(report);
    for_all(100, [&](uint64_t i) {
        EXPECT_EQ(report, zones.zone(1)[i], given(previous_pe(), 0, i));
        EXPECT_EQ(report, zones.zone(2)[i], given(next_pe(), 0, i));
    });
    meet(report);
}

// What one block would refuse, none does a part of: the memory stays as it was.
OXSHMEM_KERNEL(refused, uint8_t *memory, uint64_t bytes, int pe, Report *report) {
    const uint8_t before = memory[64];
    putmem(grid, memory + 64, memory, bytes, pe);
    getmem(grid, memory + 64, memory, bytes, pe);
    EXPECT_EQ(report, memory[64], before);
}

namespace {

// Collectives of kBegun elements of T in two calls, by the names of a scope, which `calls` makes.
template <class T, class Calls> OXSHMEM_NOINLINE void check_begun(const Zones &zones, Report *report, Calls calls) {
    constexpr uint64_t kBegun = 3;
    const uint64_t n = static_cast<uint64_t>(n_pes()), bytes = kBegun * sizeof(T);
    prepare(zones, n * bytes, report);
    const auto at = [&](uint64_t zone) { return reinterpret_cast<T *>(zones.zone(zone)); };
    EXPECT_EQ(report, calls(at(1), at(2), at(3), at(0), kBegun), 0);
    for_all(n * bytes, [&](uint64_t i) {
        const int pe = static_cast<int>(i / bytes);
        EXPECT_EQ(report, zones.zone(2)[i], given(pe, 0, i % bytes));
        EXPECT_EQ(report, zones.zone(3)[i], given(pe, 0, static_cast<uint64_t>(my_pe()) * bytes + i % bytes));
    });
    for_all(bytes, [&](uint64_t i) { EXPECT_EQ(report, zones.zone(1)[i], given(n_pes() - 1, 0, i)); });
    meet(report);
}

} // namespace

#define BEGUN(T, BROADCAST, FCOLLECT, ALLTOALL, suffix)                                                                        \
    check_begun<T>(zones, report, [](T *sent, T *all, T *parts, const T *src, size_t n) {                                      \
        int failed = oxshmemx_end(BROADCAST##_begin##suffix(TEAM_WORLD, sent, src, n, n_pes() - 1));                           \
        failed |= oxshmemx_end(FCOLLECT##_begin##suffix(TEAM_WORLD, all, src, n));                                             \
        return failed | oxshmemx_end(ALLTOALL##_begin##suffix(TEAM_WORLD, parts, src, n));                                     \
    });
#define BEGUN_TYPE(name, T) BEGUN(T, oxshmemx_##name##_broadcast, oxshmemx_##name##_fcollect, oxshmemx_##name##_alltoall, _grid)

OXSHMEM_KERNEL(begun, uint8_t *memory, uint64_t room, Report *report) {
    const Zones zones{memory, room};
    OXSHMEM_FOR_EACH_RMA_TYPE(BEGUN_TYPE)
    BEGUN(uint8_t, oxshmemx_broadcastmem, oxshmemx_fcollectmem, oxshmemx_alltoallmem, _grid)
}

// Sums of all PEs while something else is computed: in one block, and by each of its scopes.
OXSHMEM_KERNEL(overlapped, uint8_t *memory, uint64_t room, Report *report) {
    constexpr uint64_t kElements = 64;
    const Zones zones{memory, room};
    float *const src = reinterpret_cast<float *>(zones.zone(0)), *const dst = reinterpret_cast<float *>(zones.zone(1));
    float *const own = reinterpret_cast<float *>(zones.zone(2));
    const auto check = [&](int failed) {
        sync_block();
        EXPECT_EQ(report, failed, 0);
        const float n = static_cast<float>(n_pes());
        for (uint64_t i = thread_rank(); i < kElements; i += block_threads()) {
            EXPECT_EQ(report, dst[i], n * static_cast<float>(i) + n * (n - 1) / 2);
            EXPECT_EQ(report, own[i], static_cast<float>(3 * i));
        }
        sync_block();
        EXPECT_EQ(report, team_sync(block, TEAM_WORLD), 0);
    };
    const auto fill = [&] {
        for (uint64_t i = thread_rank(); i < kElements; i += block_threads()) {
            src[i] = static_cast<float>(i) + static_cast<float>(my_pe());
            dst[i] = own[i] = -1;
        }
        sync_block();
        EXPECT_EQ(report, team_sync(block, TEAM_WORLD), 0);
    };
    // What the threads do meanwhile.
    const auto compute = [&](uint32_t rank, uint32_t size) {
        for (uint64_t i = rank; i < kElements; i += size) {
            own[i] = static_cast<float>(3 * i);
        }
    };
    fill();
    int failed = 0;
    if (thread_rank() == 0) {
        const auto sum = oxshmemx_float_sum_reduce_begin(TEAM_WORLD, dst, src, kElements);
        compute(0, 1);
        failed = oxshmemx_end(sum);
    }
    check(failed);
    fill();
    if (thread_rank() < 32) {
        const auto sum = oxshmemx_float_sum_reduce_begin_warp(TEAM_WORLD, dst, src, kElements);
        compute(warp_scope::rank(), warp_scope::size());
        failed = oxshmemx_end(sum);
    }
    check(failed);
    fill();
    const auto sum = oxshmemx_float_sum_reduce_begin_block(TEAM_WORLD, dst, src, kElements);
    compute(block_scope::rank(), block_scope::size());
    check(oxshmemx_end(sum));
    fill();
    const auto last = oxshmemx_float_sum_reduce_begin_grid(TEAM_WORLD, dst, src, kElements);
    compute(grid_scope::rank(), grid_scope::size());
    check(oxshmemx_end(last));
}
