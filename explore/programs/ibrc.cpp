// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs whose operations go through the ring of the CPU proxy.
#include "program.h"

#include <oxshmem/atomic.h>

namespace explore {

void p_quiet() {
    p(place(block(), 0, lane()), value(block(), 0, lane()), 1);
    quiet();
}

// The ring wraps.
void p_p_p_quiet() {
    for (uint32_t i = 0; i < 3; ++i) {
        p(place(block(), i, lane()), value(block(), i, lane()), 1);
    }
    quiet();
}

// Lanes whose targets are adjacent share descriptors.
void p_adjacent() {
    for (uint32_t i = 0; i < 2; ++i) {
        p(heap<uint64_t>(block() * 256 + i * 64 + lane() * 8), value(block(), i, lane()), 1);
    }
    quiet();
}

void fence_between() {
    p(place(block(), 0), value(block(), 0), 1);
    fence();
    p(place(block(), 1), value(block(), 1), 1);
}

// More than fits a descriptor, from the heap: the proxy reads it.
void put_heap() {
    uint64_t bytes[7];
    uint64_t *const from = heap<uint64_t>(0x800 + block() * 64);
    for (uint32_t i = 0; i < 7; ++i) {
        bytes[i] = value(block(), i);
        port::store<port::order::relaxed, port::reach::block>(from + i, bytes[i]);
    }
    put(place(block(), 0), from, bytes, sizeof(bytes), 1, true);
    note(kNoteQuiet);
}

void g_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = (block() * 2 + i + lane() * 4) % 8;
        expect(g(heap<uint64_t>(0x700 + at * 8), 1) == 0x9e70 + at, "g returned what is not at the peer");
    }
}

void get_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        uint64_t got[2] = {0, 0};
        const uint32_t at = (block() * 2 + i) % 4;
        getmem(oxshmem::thread, got, heap<uint64_t>(0x700 + at * 16), sizeof(got), 1);
        expect(got[0] == 0x9e70 + at * 2 && got[1] == 0x9e71 + at * 2, "get returned what is not at the peer");
    }
}

// Adds to a word, and to one of four bytes, and looks at what was there before.
void fetch_adds() {
    add(heap<uint64_t>(0x600), 1ull << (block() * 8), 1);
    const uint64_t old = atomic_fetch_add(heap<uint64_t>(0x600), uint64_t{1} << (block() * 8), 1);
    expect((old >> (block() * 8) & 0xff) == 0, "a fetch-and-add returned its own result");
}

void signals() {
    add(heap<uint64_t>(0x600), 1ull << (block() * 8 + lane()), 1);
    oxshmem::signal_op(heap<uint64_t>(0x600), 1ull << (block() * 8 + lane()), SignalOp::add, 1);
    quiet();
}

constexpr oxshmem_explore_program kPrograms[] = {
    by_proxy(posting("p_quiet", p_quiet, 2, 1, 8000)),
    by_proxy(posting("p_p_p_quiet", p_p_p_quiet, 2, 1, 20000)),
    by_proxy(posting("p_p_p_quiet_3", p_p_p_quiet, 3, 1, 20000)),
    by_proxy(warps_of(2, posting("adjacent", p_adjacent, 2, 1, 20000))),
    by_proxy(posting("fence_between", fence_between, 2, 1, 20000)),
    by_proxy(posting("put_heap", put_heap, 2, 1, 20000)),
    by_proxy(filled(posting("g_twice", g_twice, 3, 1, 20000), 0)),
    by_proxy(filled(warps_of(2, posting("g_warps", g_twice, 2, 2, 20000)), 1)),
    by_proxy(filled(posting("get_twice", get_twice, 3, 1, 20000), 0)),
    by_proxy(posting("fetch_adds", fetch_adds, 3, 1, 20000)),
    by_proxy(posting("signals", signals, 2, 1, 20000)),
};

} // namespace explore

#include "module.h"
