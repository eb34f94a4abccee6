// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What threads do in programs for queue pairs and in programs for the proxy's ring alike.
#pragma once

#include "program.h"

namespace explore {

// Every thread puts one word, and waits for it.
inline void p_quiet() {
    p(place(block(), 0, lane()), value(block(), 0, lane()), 1);
    quiet();
}

// Every thread puts three words and waits for them: queues wrap.
inline void p_p_p_quiet() {
    for (uint32_t i = 0; i < 3; ++i) {
        p(place(block(), i, lane()), value(block(), i, lane()), 1);
    }
    quiet();
}

// One word of each of the warp's lanes, adjacent, so that they share a work request.
inline void p_adjacent() {
    for (uint32_t i = 0; i < 2; ++i) {
        p(heap<uint64_t>(block() * 256 + i * 64 + lane() * 8), value(block(), i, lane()), 1);
    }
    quiet();
}

// Every thread fetches words of the peer through landing slots.
inline void g_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = (block() * 2 + i + lane() * 4) % 8;
        expect(g(heap<uint64_t>(0x700 + at * 8), 1) == 0x9e70 + at, "g returned what is not at the peer");
    }
}

// The same by get, into memory that is not registered.
inline void get_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        uint64_t got[2] = {0, 0};
        const uint32_t at = (block() * 2 + i) % 4;
        getmem(oxshmem::thread, got, heap<uint64_t>(0x700 + at * 16), sizeof(got), 1);
        expect(got[0] == 0x9e70 + at * 2 && got[1] == 0x9e71 + at * 2, "get returned what is not at the peer");
    }
}

// Counts at the peer, by signals.
inline void signals() {
    add(heap<uint64_t>(0x600), 1ull << (block() * 8 + lane()), 1);
    oxshmem::signal_op(heap<uint64_t>(0x600), 1ull << (block() * 8 + lane()), SignalOp::add, 1);
    quiet();
}

// Words that were stored to the heap just before are put from there.
template <uint32_t kWords> void put_from_heap() {
    uint64_t bytes[kWords];
    uint64_t *const from = heap<uint64_t>(0x800 + block() * 64);
    for (uint32_t i = 0; i < kWords; ++i) {
        bytes[i] = value(block(), i);
        port::store<port::order::relaxed, port::reach::block>(from + i, bytes[i]);
    }
    put(place(block(), 0), from, bytes, sizeof(bytes), 1, true);
}

// By one card they are there once the call returns.
template <uint32_t kWords> void put_heap() {
    put_from_heap<kWords>();
    note(kNoteQuiet);
}

} // namespace explore
