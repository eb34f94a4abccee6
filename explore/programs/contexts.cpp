// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs that post through contexts. Each uses the queue pair to PE 1 as that of a context, and
// for nothing else.
#define OXSHMEM_WAIT_POLLS 1 // a wait looks each time whether it has to ring
#include "contexts.h"
#include "bodies.h"

#include <oxshmem/batch.h>

namespace explore {

// Posts more than the queue holds, and waits.
void own() {
    const Context mine = context(kOfThread);
    for (uint32_t i = 0; i < 5; ++i) {
        p(mine, place(block(), i), value(block(), i), 1);
    }
    quiet(mine);
}

// One thread posts, and then another.
void handed_over() {
    uint64_t *const flag = heap<uint64_t>(0x500);
    const Context shared = context(kOfThread);
    if (block() == 1) {
        await(flag, 1);
    }
    p(shared, place(block(), 0), value(block(), 0), 1);
    p(shared, place(block(), 1), value(block(), 1), 1);
    if (block() == 0) {
        tell(flag, 1);
    } else {
        quiet(shared);
    }
}

// Threads of a block take turns.
void turns() {
    const Context shared = context(kOfBlock);
    for (uint32_t i = 0; i < 3; ++i) {
        p(shared, place(block(), i, lane()), value(block(), i, lane()), 1);
    }
    quiet(shared);
}

// A warp that puts rows of words, which share a request, and words that do not, in a context of its
// own. Each lane completes them.
void rows() {
    const Context mine = context(kOfWarp);
    for (uint32_t i = 0; i < 4; ++i) {
        uint64_t *const row = heap<uint64_t>(0x100 * i);
        const uint64_t word = value(0, i, lane());
        uint64_t *const at = row + (i == 2 ? 2 : 1) * lane();
        announce_put(at, &word, sizeof(word), 1);
        oxshmem::p(mine, at, word, 1);
    }
    quiet(mine);
}

// A batch that is longer than the queue.
void batch() {
    const Context mine = batched(context(kOfThread));
    for (uint32_t i = 0; i < 5; ++i) {
        p(mine, place(0, i), value(0, i), 1);
    }
    flush(mine);
    p(mine, place(0, 5), value(0, 5), 1);
    quiet(mine);
}

// Adjacent words that one request puts, as long as it was not rung for, by the batch or by a flush
// of its context; a fence between them keeps them apart.
void grown() {
    const Context mine = context(kOfThread);
    {
        oxshmem::Batch batch(mine, 1);
        for (uint32_t i = 0; i < 8; ++i) {
            const uint64_t word = value(0, i);
            announce_put(heap<uint64_t>(i * 8), &word, sizeof(word), 1);
            batch.p(heap<uint64_t>(i * 8), word);
            if (i == 1 || i == 6) {
                oxshmem::flush(mine);
            }
            if (i == 3 || i == 6) {
                batch.flush();
            }
            if (i == 4) {
                batch.fence();
                note(kNoteFence);
            }
        }
    }
    quiet(mine);
    // One that finds room at once.
    {
        oxshmem::Batch batch(mine, 1);
        const uint64_t word = value(0, 8);
        announce_put(heap<uint64_t>(0x200), &word, sizeof(word), 1);
        batch.p(heap<uint64_t>(0x200), word);
    }
    quiet(mine);
}

// What fetches rings for what was posted before.
void batch_and_fetch() {
    const Context mine = batched(context(kOfThread));
    for (uint32_t i = 0; i < 2; ++i) {
        p(mine, place(0, i), value(0, i), 1);
        expect(oxshmem::g(mine, heap<uint64_t>(0x700 + i * 8), 1) == 0x9e70 + i, "g returns what is there");
    }
    quiet(mine);
}

// Order without a wait.
void fenced() {
    const Context mine = context(kOfThread);
    for (uint32_t i = 0; i < 3; ++i) {
        p(mine, place(0, i), value(0, i), 1);
        fence(mine);
    }
    quiet(mine);
}

// A signal after its data.
void signalled() {
    const Context mine = batched(context(kOfThread));
    const uint64_t data = value(0, 0), one = 1;
    announce_put(place(0, 0), &data, 8, 1);
    note(kNoteFence);
    announce_put(place(0, 3), &one, 8, 1);
    oxshmem::putmem_signal(mine, oxshmem::thread, place(0, 0), &data, sizeof(data), place(0, 3), one, SignalOp::set, 1);
    quiet(mine);
}

constexpr oxshmem_explore_program kPrograms[] = {
    small(posting("own", own, 1, 1, 8000)),
    in_host_memory(posting("own_host", own, 1, 1, 8000)),
    early(behind(3, posting("own_early", own, 1, 1, 8000))),
    posting("handed_over", handed_over, 2, 1, 8000),
    posting("turns", turns, 2, 1, 12000),
    in_host_memory(posting("turns_host", turns, 3, 2, 12000)),
    warps_of(2, posting("turns_of_warps", turns, 2, 2, 20000)),
    in_parts(warps_of(3, posting("turns_of_parts", turns, 1, 2, 20000))),
    warps_of(2, posting("rows", rows, 1, 2, 20000)),
    behind(3, in_host_memory(warps_of(4, posting("rows_of_more_blocks", rows, 1, 2, 20000)))),
    posting("batch", batch, 1, 2, 8000),
    behind(3, posting("batch_used", batch, 1, 1, 8000)),
    posting("grown", grown, 1, 2, 8000),
    filled(posting("batch_and_fetch", batch_and_fetch, 1, 2, 8000), 0),
    small(without_record(posting("own_without_record", own, 1, 1, 8000))),
    without_record(early(behind(3, posting("own_early_without_record", own, 1, 1, 8000)))),
    without_record(posting("handed_over_without_record", handed_over, 2, 1, 8000)),
    without_record(posting("turns_without_record", turns, 2, 1, 12000)),
    without_record(in_host_memory(posting("turns_host_without_record", turns, 3, 2, 12000))),
    without_record(warps_of(2, posting("turns_of_warps_without_record", turns, 2, 2, 20000))),
    without_record(behind(3, posting("batch_without_record", batch, 1, 1, 8000))),
    posting("fenced", fenced, 1, 2, 8000),
    posting("signalled", signalled, 1, 2, 8000),
};

} // namespace explore

#include "module.h"
