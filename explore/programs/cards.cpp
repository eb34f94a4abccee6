// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Two cards to each peer: what one of them has written may arrive in the peer's memory after its
// completion, and after what the other has written later. Block b uses queue pair b, which is on
// card b; the first card does all atomics.
#define OXSHMEM_WAIT_POLLS 1 // a wait looks each time whether it has to ring
#include "bodies.h"

namespace explore {

// A block puts, and another one waits for that and sets a signal by the other card.
void signal_by_other_card() {
    uint64_t *const flag = heap<uint64_t>(0x500), *const signal = heap<uint64_t>(0x508);
    if (me() != 0) {
        oxshmem::signal_wait_until(signal, CMP_EQ, 1);
        expect(port::load<port::order::relaxed, port::reach::system>(place(0, 0)) == value(0, 0),
               "a signal that was set after quiet was there before what had been put");
    } else if (block() == 0) {
        p(place(0, 0), value(0, 0), 1);
        tell(flag, 1);
    } else {
        await(flag, 1);
        quiet();
        note(kNoteQuietFor, 0);
        const uint64_t one = 1;
        announce_put(signal, &one, sizeof(one), 1);
        oxshmem::signal_op(signal, one, SignalOp::set, 1);
    }
}

// A put by the block's own card, and an atomic by the first one, which may not overtake it.
void fence_before_atomic() {
    p(place(block(), 0), value(block(), 0), 1);
    fence();
    add(heap<uint64_t>(0x600), 1ull << (block() * 8), 1);
    oxshmem::signal_op(heap<uint64_t>(0x600), 1ull << (block() * 8), SignalOp::add, 1);
    fence();
    p(place(block(), 1), value(block(), 1), 1);
}

// Data and a signal that counts, both by the first card.
void put_signal_adds() {
    const uint64_t data = value(block(), 0);
    announce_put(place(block(), 0), &data, 8, 1);
    note(kNoteFence);
    add(heap<uint64_t>(0x600), 1ull << (block() * 8), 1);
    oxshmem::putmem_signal(oxshmem::thread, place(block(), 0), &data, sizeof(data), heap<uint64_t>(0x600),
                           1ull << (block() * 8), SignalOp::add, 1);
    quiet();
}

// quiet of both blocks again and again, which share the reads that flush.
void p_quiet_twice() {
    for (uint32_t i = 0; i < 2; ++i) {
        p(place(block(), i), value(block(), i), 1);
        quiet();
    }
}

// Two blocks wait for what one of them has put: one of them posts the read that both wait for.
void quiet_beside_quiet() {
    uint64_t *const flag = heap<uint64_t>(0x500);
    if (block() == 1) {
        p(place(1, 0), value(1, 0), 1);
        tell(flag, 1);
        quiet();
    } else {
        await(flag, 1);
        quiet();
        note(kNoteQuietFor, 1);
    }
}

// A blocking put ends when its source may be reused; quiet, when it is there.
void put_heap_quiet() {
    put_from_heap<5>();
    quiet();
}

constexpr oxshmem_explore_program by_cards(oxshmem_explore_program program) {
    program.qps_per_pe = 2;
    program.cards = 2;
    return program;
}
constexpr oxshmem_explore_program with_peer(oxshmem_explore_program program) {
    program.blocks[1] = 1;
    return program;
}

constexpr oxshmem_explore_program kPrograms[] = {
    by_cards(posting("p_quiet", p_quiet, 2, 1, 20000)),
    by_cards(posting("p_quiet_twice", p_quiet_twice, 2, 1, 20000)),
    by_cards(posting("quiet_beside_quiet", quiet_beside_quiet, 2, 1, 20000)),
    by_cards(posting("p_p_p_quiet_3", p_p_p_quiet, 3, 2, 40000)),
    by_cards(posting("put_heap_quiet", put_heap_quiet, 2, 2, 20000)),
    by_cards(with_peer(posting("signal_by_other_card", signal_by_other_card, 2, 2, 20000))),
    by_cards(posting("fence_before_atomic", fence_before_atomic, 2, 2, 20000)),
    by_cards(posting("put_signal_adds", put_signal_adds, 2, 2, 20000)),
    by_cards(filled(posting("g_twice", g_twice, 2, 2, 20000), 0)),
};

} // namespace explore

#include "module.h"
