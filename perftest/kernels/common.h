// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the kernels of the performance tests share: which thread sends which part, the data, and the
// clock.
#pragma once

#include <oxshmem/oxshmem.h>

namespace perftest {

using namespace oxshmem;

struct Part {
    uint64_t first, count;
};

// Part `index` of `n` items that `parts` share: all items, each once; the first n % parts have one
// more.
OXSHMEM_DEVICE Part split(uint64_t n, uint64_t parts, uint64_t index) {
    const uint64_t each = n / parts, more = n % parts;
    return {index * each + (index < more ? index : more), each + (index < more ? 1 : 0)};
}

// The same for bytes, cut at cache lines where every part gets at least one.
OXSHMEM_DEVICE Part split_bytes(uint64_t bytes, uint64_t parts, uint64_t index) {
    constexpr uint64_t kLine = 64;
    const uint64_t unit = bytes >= kLine * parts ? kLine : 1;
    const Part part = split((bytes + unit - 1) / unit, parts, index);
    const uint64_t first = part.first * unit, last = (part.first + part.count) * unit;
    return {first, (last < bytes ? last : bytes) - first};
}

// The grid's groups of threads that call together, and the calling thread's one.
template <class Scope> OXSHMEM_DEVICE uint64_t groups_per_block();
template <> OXSHMEM_DEVICE uint64_t groups_per_block<thread_scope>() {
    return port::block_threads();
}
template <> OXSHMEM_DEVICE uint64_t groups_per_block<warp_scope>() {
    return (port::block_threads() + 31) / 32;
}
template <> OXSHMEM_DEVICE uint64_t groups_per_block<block_scope>() {
    return 1;
}

template <class Scope> OXSHMEM_DEVICE uint64_t group_in_block();
template <> OXSHMEM_DEVICE uint64_t group_in_block<thread_scope>() {
    return port::thread_rank();
}
template <> OXSHMEM_DEVICE uint64_t group_in_block<warp_scope>() {
    return port::thread_rank() / 32;
}
template <> OXSHMEM_DEVICE uint64_t group_in_block<block_scope>() {
    return 0;
}

template <class Scope> OXSHMEM_DEVICE Part my_part(uint64_t bytes) {
    const uint64_t each = groups_per_block<Scope>();
    return split_bytes(bytes, each * port::grid_blocks(), port::block_rank() * each + group_in_block<Scope>());
}

OXSHMEM_DEVICE uint64_t grid_threads() {
    return static_cast<uint64_t>(port::grid_blocks()) * port::block_threads();
}
OXSHMEM_DEVICE uint64_t grid_rank() {
    return static_cast<uint64_t>(port::block_rank()) * port::block_threads() + port::thread_rank();
}

// The data; src/pattern.rs has the same. Iteration i of a test that copies buffers takes them from
// 64 * (i mod 16) bytes on, so what an earlier iteration left does not pass for the last one's
// data.
OXSHMEM_DEVICE uint64_t shift(uint64_t iteration) {
    return iteration % 16 * 64;
}
// Where in the source iteration i of a test of gets begins: it walks in `steps` steps of `step`
// bytes, over and over; `steps` is a power of two. So gets by load cross the link each time, and do
// not find what an earlier iteration has left in the L1 cache. src/pattern.rs chooses the steps.
OXSHMEM_DEVICE uint64_t away(uint64_t iteration, uint64_t step, uint64_t steps) {
    return (iteration & (steps - 1)) * step;
}
OXSHMEM_DEVICE uint64_t word(uint64_t seed, uint64_t iteration, uint64_t index) {
    const uint64_t x = (seed + iteration * 0xd1b54a32d192ed03ull + index) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

// What bandwidth covers: from the first operation of the block until all of its operations are
// complete.
OXSHMEM_DEVICE void begin(uint64_t *clock) {
    port::sync_block();
    if (port::thread_rank() == 0) {
        clock[2 * port::block_rank()] = port::clock_ns();
    }
}
OXSHMEM_DEVICE void end(uint64_t *clock) {
    port::sync_block();
    if (port::thread_rank() == 0) {
        quiet();
        clock[2 * port::block_rank() + 1] = port::clock_ns();
    }
}

} // namespace perftest
