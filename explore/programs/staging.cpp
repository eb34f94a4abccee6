// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Puts through staging rings in memory of the host: two slots of 16 bytes, so that a put is several
// pieces and slots are used again and again. The source is overwritten as soon as the put returns.
#define OXSHMEM_WAIT_POLLS 1 // a wait looks each time whether it has to ring
#include "bodies.h"

namespace explore {

// Where the block puts from.
uint64_t *staged_source() {
    return heap<uint64_t>(0x800 + block() * 64);
}

// Stores the words of put `number` there, and to `copy`.
void fill_source(uint32_t number, uint32_t words, uint64_t *copy) {
    for (uint32_t i = 0; i < words; ++i) {
        copy[i] = value(block(), number * 8 + i);
        port::store<port::order::relaxed, port::reach::block>(staged_source() + i, copy[i]);
    }
}

// Words that were stored to the heap just before are put from there, and others are stored in their
// place afterwards.
void staged_put_of(uint32_t number, uint32_t words, bool blocking) {
    uint64_t bytes[5];
    uint64_t *const from = staged_source();
    fill_source(number, words, bytes);
    put(place(block(), number * 8), from, bytes, words * sizeof(uint64_t), 1, blocking);
    if (blocking) {
        for (uint32_t i = 0; i < words; ++i) {
            port::store<port::order::relaxed, port::reach::block>(from + i, ~0ull);
        }
    }
}

// Three pieces.
void put_once() {
    staged_put_of(0, 5, true);
    quiet();
}

// Six pieces, so that each slot is used three times by each thread.
void put_twice() {
    staged_put_of(0, 5, true);
    staged_put_of(1, 5, true);
    quiet();
}

// What is short travels in the queue, and passes over its slot.
void put_among_others() {
    p(place(block(), 0), value(block(), 0), 1);
    staged_put_of(1, 5, true);
    p(place(block(), 16), value(block(), 16), 1);
    quiet();
}

// Staged data and its signal.
void put_signal() {
    uint64_t bytes[5];
    fill_source(0, 5, bytes);
    announce_put(place(block(), 0), bytes, sizeof(bytes), 1);
    note(kNoteFence);
    const uint64_t one = 1;
    announce_put(place(block(), 8), &one, 8, 1);
    oxshmem::putmem_signal(oxshmem::thread, place(block(), 0), staged_source(), sizeof(bytes), place(block(), 8), one,
                           SignalOp::set, 1);
    quiet();
}

// A put by a warp of which one lane has something of its own to complete first.
void put_by_warp() {
    uint64_t bytes[5];
    if (lane() == 0) {
        fill_source(0, 5, bytes);
    }
    port::sync_warp(port::kWholeWarp);
    if (lane() == 1) {
        p(place(block(), 8), value(block(), 8), 1);
        quiet();
    } else {
        announce_put(place(block(), 0), bytes, sizeof(bytes), 1);
    }
    oxshmem::putmem_nbi(oxshmem::warp, place(block(), 0), staged_source(), sizeof(bytes), 1);
    quiet();
}

constexpr oxshmem_explore_program staged(oxshmem_explore_program program) {
    program.ring_log2 = 1;
    return program;
}

constexpr oxshmem_explore_program kPrograms[] = {
    staged(posting("put_alone", put_twice, 1, 2, 20000)),
    staged(posting("put_once", put_once, 2, 2, 20000)),
    staged(posting("put_twice", put_twice, 2, 2, 40000)),
    staged(posting("put_twice_3", put_twice, 3, 2, 60000)),
    staged(in_host_memory(posting("put_twice_host", put_twice, 2, 2, 40000))),
    staged(behind(5, posting("put_once_used", put_once, 2, 2, 20000))),
    staged(early(behind(2, posting("put_once_early", put_once, 2, 2, 20000)))),
    staged(posting("put_among_others", put_among_others, 2, 2, 40000)),
    staged(warps_of(2, posting("put_by_warp", put_by_warp, 1, 2, 40000))),
    staged(warps_of(2, posting("put_by_warp_2", put_by_warp, 2, 2, 60000))),
    staged(posting("put_signal", put_signal, 2, 2, 40000)),
};

} // namespace explore

#include "module.h"
