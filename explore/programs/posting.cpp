// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs that post to queue pairs.
#define OXSHMEM_WAIT_POLLS 1 // a wait looks each time whether it has to ring
#include "bodies.h"

namespace explore {

// Every thread puts one word.
void p_once() {
    p(place(block(), 0, lane()), value(block(), 0, lane()), 1);
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

// The fence of one thread while another's is on its way.
void fences() {
    if (block() == 0) {
        fence();
        p(place(0, 0), value(0, 0), 1);
    } else {
        p(place(1, 0), value(1, 0), 1);
        p(place(1, 1), value(1, 1), 1);
        fence();
        p(place(1, 2), value(1, 2), 1);
    }
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

// One thread puts, and another waits for it: the first has told the second, which has looked
// without ordering anything.
void quiet_of_other() {
    uint64_t *const flag = heap<uint64_t>(0x500);
    if (block() == 0) {
        p(place(0, 0), value(0, 0), 1);
        tell(flag, 1);
    } else if (block() == 1) {
        while (port::load<port::order::relaxed, port::reach::device>(flag) != 1) {
            port::pause();
        }
        quiet();
        note(kNoteQuietFor, 0);
    }
}

// Enough that slots are used again and again.
void many() {
    for (uint32_t i = 0; i < 6; ++i) {
        p(place(block(), i), value(block(), i), 1);
    }
    quiet();
}

// One thread posts, and another waits for it again and again.
void quiets() {
    for (uint32_t i = 0; i < 10; ++i) {
        if (block() == 0) {
            p(place(0, i), value(0, i), 1);
        } else if (i % 2 == 0) {
            quiet();
        }
    }
}

constexpr oxshmem_explore_program kPrograms[] = {
    small(posting("p_once", p_once, 2, 1, 4000)),
    in_host_memory(posting("p_once_host", p_once, 2, 1, 4000)),
    small(posting("p_once_alone", p_once, 1, 1, 4000)),
    small(posting("p_p_p_alone", p_p_p_quiet, 1, 1, 4000)),
    posting("p_quiet", p_quiet, 2, 1, 4000),
    in_host_memory(posting("p_quiet_host", p_quiet, 2, 1, 4000)),
    posting("fence_between", fence_between, 2, 2, 8000),
    behind(3, posting("fence_between_used", fence_between, 2, 2, 8000)),
    behind(3, posting("fences", fences, 2, 2, 8000)),
    posting("p_quiet_3", p_quiet, 3, 1, 8000),
    early(posting("p_quiet_early", p_quiet, 2, 1, 4000)),
    posting("p_p_p_quiet", p_p_p_quiet, 2, 1, 8000),
    in_host_memory(posting("p_p_p_quiet_host", p_p_p_quiet, 3, 2, 12000)),
    posting("p_p_p_quiet_8", p_p_p_quiet, 8, 1, 40000),
    early(behind(9, posting("p_p_p_quiet_early", p_p_p_quiet, 3, 2, 12000))),
    early(behind(2, posting("quiet_of_other", quiet_of_other, 2, 1, 8000))),
    early(posting("quiet_of_first", quiet_of_other, 2, 1, 8000)),
    posting("many", many, 3, 1, 30000),
    early(behind(2, posting("quiets_early", quiets, 2, 1, 20000))),
    behind(5, posting("p_quiet_p_quiet", p_quiet_p_quiet, 3, 1, 12000)),
    warps_of(2, posting("warps", p_quiet_p_quiet, 2, 2, 20000)),
    warps_of(2, posting("warp", p_quiet, 1, 2, 8000)),
    in_parts(warps_of(3, posting("parts", p_quiet, 1, 2, 8000))),
    warps_of(2, posting("adjacent", p_adjacent, 2, 2, 20000)),
    warps_of(4, posting("adjacent_4", p_adjacent, 1, 2, 20000)),
    posting("put_long", put_long, 2, 2, 12000),
    warps_of(2, posting("put_long_warps", put_long, 2, 2, 40000)),
    posting("put_heap", put_heap<5>, 2, 1, 12000),
    in_host_memory(posting("put_heap_host", put_heap<5>, 2, 1, 12000)),
    filled(posting("g_twice", g_twice, 3, 1, 12000), 0),
    filled(warps_of(2, posting("g_warps", g_twice, 2, 2, 20000)), 1),
    filled(posting("get_twice", get_twice, 3, 1, 12000), 0),
    small(without_record(posting("p_once_without_record", p_once, 2, 1, 4000))),
    small(without_record(posting("p_p_p_alone_without_record", p_p_p_quiet, 1, 1, 4000))),
    without_record(in_host_memory(posting("p_quiet_host_without_record", p_quiet, 2, 1, 4000))),
    without_record(posting("p_quiet_3_without_record", p_quiet, 3, 1, 8000)),
    without_record(early(behind(9, posting("p_p_p_quiet_early_without_record", p_p_p_quiet, 3, 2, 12000)))),
    without_record(posting("p_p_p_quiet_8_without_record", p_p_p_quiet, 8, 1, 40000)),
    without_record(posting("many_without_record", many, 3, 1, 30000)),
    without_record(early(behind(2, posting("quiets_early_without_record", quiets, 2, 1, 20000)))),
    without_record(warps_of(2, posting("warps_without_record", p_quiet_p_quiet, 2, 2, 20000))),
    without_record(in_parts(warps_of(3, posting("parts_without_record", p_quiet, 1, 2, 8000)))),
    without_record(warps_of(4, posting("adjacent_4_without_record", p_adjacent, 1, 2, 20000))),
    without_record(posting("put_long_without_record", put_long, 2, 2, 12000)),
    without_record(filled(posting("g_twice_without_record", g_twice, 3, 1, 12000), 0)),
    posting("signals", signals, 2, 1, 8000),
    posting("put_signals", put_signals, 2, 2, 8000),
};

} // namespace explore

#include "module.h"
