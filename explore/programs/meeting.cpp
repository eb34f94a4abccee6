// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync and barrier: what a PE has stored or put before is there for every PE that leaves.
#include "program.h"

namespace explore {

constexpr uint64_t kFrom = 0x400; // word i: what PE i last wrote here

// Stores to every other PE directly, syncs, and looks at what the others have stored: as often as
// epochs take to come around.
template <class Scope, uint32_t kTurns> void sync_turns() {
    const int n = port::state().n_pes;
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        uint64_t *const own = heap<uint64_t>(kFrom) + turn * 8;
        if (lane() == 0) {
            for (int pe = 0; pe < n; ++pe) {
                oxshmem::p(own + me(), uint64_t{100} * turn + static_cast<uint64_t>(me()), pe);
            }
        }
        sync_all(Scope{});
        for (int pe = 0; pe < n; ++pe) {
            const uint64_t seen = port::load<port::order::relaxed, port::reach::system>(own + pe);
            expect(seen == uint64_t{100} * turn + static_cast<uint64_t>(pe), "a PE left sync before another had entered");
        }
    }
}

// Puts over the network, and meets by messages.
template <uint32_t kTurns> void barrier_turns() {
    const int n = port::state().n_pes;
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        uint64_t *const own = heap<uint64_t>(kFrom) + turn * 8;
        for (int pe = 0; pe < n; ++pe) {
            const uint64_t said = uint64_t{100} * turn + static_cast<uint64_t>(me());
            if (pe != me()) {
                p(own + me(), said, pe);
            }
        }
        barrier_all();
        note(kNoteQuiet);
        for (int pe = 0; pe < n; ++pe) {
            const uint64_t seen = port::load<port::order::relaxed, port::reach::system>(own + pe);
            expect(pe == me() || seen == uint64_t{100} * turn + static_cast<uint64_t>(pe),
                   "a PE left barrier before what another had put was there");
        }
    }
}

constexpr oxshmem_explore_program meeting(const char *name, void (*body)(), uint32_t pes, uint32_t lanes, uint32_t epoch,
                                          uint32_t most_steps) {
    oxshmem_explore_program program = posting(name, body, 1, 2, most_steps);
    program.pes = pes;
    program.lanes = lanes;
    for (uint32_t pe = 0; pe < pes; ++pe) {
        program.blocks[pe] = 1;
    }
    program.epoch = epoch;
    return program;
}
constexpr oxshmem_explore_program direct(oxshmem_explore_program program) {
    program.network = 0;
    program.direct = 1;
    return program;
}
constexpr oxshmem_explore_program in_rounds(oxshmem_explore_program program) {
    program.rounds = 1;
    return program;
}

constexpr oxshmem_explore_program kPrograms[] = {
    small(direct(meeting("sync_once", sync_turns<thread_scope, 1>, 2, 1, 2, 8000))),
    direct(meeting("sync", sync_turns<thread_scope, 4>, 2, 1, 2, 20000)),
    direct(meeting("sync_3", sync_turns<thread_scope, 3>, 3, 1, 0xfffffffe, 20000)),
    direct(meeting("sync_warp", sync_turns<warp_scope, 3>, 2, 2, 0xffffffff, 20000)),
    early(direct(meeting("sync_early", sync_turns<thread_scope, 3>, 2, 1, 5, 20000))),
    in_rounds(direct(meeting("sync_rounds", sync_turns<thread_scope, 3>, 3, 1, 0xfffffffe, 20000))),
    in_rounds(meeting("barrier", barrier_turns<3>, 2, 1, 0xfffffffe, 40000)),
    in_rounds(meeting("barrier_3", barrier_turns<3>, 3, 1, 4, 60000)),
    in_rounds(by_proxy(meeting("barrier_ibrc", barrier_turns<3>, 2, 1, 4, 60000))),
};

} // namespace explore

#include "module.h"
