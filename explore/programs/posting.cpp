// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs that post to queue pairs.
#include "program.h"

namespace explore {

constexpr uint32_t kIbgda = static_cast<uint32_t>(abi::Network::ibgda);

// Where block `b` of PE 0 writes its `i`th value, far from its other ones, so that nothing is combined.
uint64_t *place(uint32_t b, uint32_t i, uint32_t l = 0) {
    return heap<uint64_t>(b * 1024 + l * 256 + i * 16);
}

uint64_t value(uint32_t b, uint32_t i, uint32_t l = 0) {
    return 0x5e00000000000001ull + b * 0x10000 + i * 0x100 + l;
}

// Every thread puts one word, and waits for it.
void p_quiet() {
    p(place(block(), 0, lane()), value(block(), 0, lane()), 1);
    quiet();
}

// Every thread puts three words and waits for them: queues wrap.
void p_p_p_quiet() {
    for (uint32_t i = 0; i < 3; ++i) {
        p(place(block(), i, lane()), value(block(), i, lane()), 1);
    }
    quiet();
}

// Every thread waits for its first word before it puts the second.
void p_quiet_p_quiet() {
    for (uint32_t i = 0; i < 2; ++i) {
        p(place(block(), i, lane()), value(block(), i, lane()), 1);
        quiet();
    }
}

// A fence between two puts, and one before the first.
void fence_between() {
    if (block() == 0) {
        fence();
        p(place(0, 0), value(0, 0), 1);
    } else {
        p(place(1, 0), value(1, 0), 1);
        fence();
        p(place(1, 1), value(1, 1), 1);
    }
}

// One word of each of the warp's lanes, adjacent, so that they share a work request.
void p_adjacent() {
    for (uint32_t i = 0; i < 2; ++i) {
        p(heap<uint64_t>(block() * 256 + i * 64 + lane() * 8), value(block(), i, lane()), 1);
    }
    quiet();
}

// Two-block requests: 48 bytes of a buffer that is not registered.
void put_long() {
    uint64_t bytes[6];
    for (uint32_t i = 0; i < 6; ++i) {
        bytes[i] = value(block(), i, lane());
    }
    put(place(block(), 0, lane()), bytes, bytes, sizeof(bytes), 1, false);
    put(place(block(), 8, lane()), bytes, bytes, sizeof(bytes), 1, false);
    quiet();
}

// What was stored to the heap just before is put from there.
void put_heap() {
    uint64_t bytes[5];
    uint64_t *const from = heap<uint64_t>(0x800 + block() * 64);
    for (uint32_t i = 0; i < 5; ++i) {
        bytes[i] = value(block(), i);
        port::store<port::order::relaxed, port::reach::block>(from + i, bytes[i]);
    }
    put(place(block(), 0), from, bytes, sizeof(bytes), 1, true);
    note(kNoteQuiet);
}

void fill() {
    for (uint32_t i = 0; i < 8; ++i) {
        set(1, 0x700 + i * 8, 0x9e70 + i);
    }
}

// Every thread fetches words of the peer through landing slots.
void g_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = (block() * 2 + i + lane() * 4) % 8;
        expect(g(heap<uint64_t>(0x700 + at * 8), 1) == 0x9e70 + at, "g returned what is not at the peer");
    }
}

// The same by get, into memory that is not registered.
void get_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        uint64_t got[2] = {0, 0};
        const uint32_t at = (block() * 2 + i) % 4;
        getmem(oxshmem::thread, got, heap<uint64_t>(0x700 + at * 16), sizeof(got), 1);
        expect(got[0] == 0x9e70 + at * 2 && got[1] == 0x9e71 + at * 2, "get returned what is not at the peer");
    }
}

// Counts at the peer, by signals.
void signals() {
    add(heap<uint64_t>(0x600), 1ull << (block() * 8 + lane()), 1);
    oxshmem::signal_op(heap<uint64_t>(0x600), 1ull << (block() * 8 + lane()), SignalOp::add, 1);
    quiet();
}

// Data and its signal.
void put_signals() {
    const uint64_t data = value(block(), 0);
    announce_put(place(block(), 0), &data, 8, 1);
    note(kNoteFence);
    const uint64_t one = 1;
    announce_put(place(block(), 3), &one, 8, 1);
    oxshmem::putmem_signal(oxshmem::thread, place(block(), 0), &data, sizeof(data), place(block(), 3), one, SignalOp::set, 1);
    quiet();
}

#define PROGRAM(function, ...) #function, function, __VA_ARGS__
// name, body, initial, pes, lanes, blocks, qps, depth, landing, network, direct, host, posted, epoch, rounds, stale, small, steps
constexpr oxshmem_explore_program kPrograms[] = {
    {PROGRAM(p_quiet, nullptr, 2, 1, {2}, 1, 1, 0, kIbgda, 0, 0, 0, 2, 0, 0, 1, 4000)},
    {"p_quiet_host", p_quiet, nullptr, 2, 1, {2}, 1, 1, 0, kIbgda, 0, 1, 0, 2, 0, 0, 1, 4000},
    {"p_quiet_3", p_quiet, nullptr, 2, 1, {3}, 1, 1, 0, kIbgda, 0, 0, 0, 2, 0, 0, 0, 8000},
    {"p_quiet_stale", p_quiet, nullptr, 2, 1, {2}, 1, 1, 0, kIbgda, 0, 0, 0, 2, 0, 1, 0, 4000},
    {PROGRAM(p_p_p_quiet, nullptr, 2, 1, {2}, 1, 1, 0, kIbgda, 0, 0, 0, 2, 0, 0, 0, 8000)},
    {"p_p_p_quiet_host", p_p_p_quiet, nullptr, 2, 1, {3}, 1, 2, 0, kIbgda, 0, 1, 0, 2, 0, 0, 0, 12000},
    {"p_p_p_quiet_8", p_p_p_quiet, nullptr, 2, 1, {8}, 1, 1, 0, kIbgda, 0, 0, 0, 2, 0, 0, 0, 40000},
    {PROGRAM(p_quiet_p_quiet, nullptr, 2, 1, {3}, 1, 1, 0, kIbgda, 0, 0, 5, 2, 0, 0, 0, 12000)},
    {"lanes", p_quiet_p_quiet, nullptr, 2, 2, {2}, 1, 2, 0, kIbgda, 0, 0, 0, 2, 0, 0, 0, 20000},
    {"lane_alone", p_quiet, nullptr, 2, 2, {1}, 1, 1, 0, kIbgda, 0, 0, 0, 2, 0, 1, 0, 8000},
    {PROGRAM(fence_between, nullptr, 2, 1, {2}, 1, 2, 0, kIbgda, 0, 0, 0, 2, 0, 0, 1, 8000)},
};
#undef PROGRAM

} // namespace explore

#include "module.h"
