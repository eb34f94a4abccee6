// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync and barrier: what a PE has stored or put before is there for every PE that leaves.
#define OXSHMEM_MET_BY_ONE 2 // three PEs meet by several lanes
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

// The same by kernels, of which one meets for the host.
template <uint32_t kTurns> void host_turns() {
    const abi::KnownTeam team = known_world();
    auto &found = *heap<detail::MeetingForHost>(0x800);
    const int n = port::state().n_pes;
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        uint64_t *const own = heap<uint64_t>(kFrom) + turn * 8;
        for (int pe = 0; lane() == 0 && pe < n; ++pe) {
            oxshmem::p(own + me(), uint64_t{100} * turn + static_cast<uint64_t>(me()), pe);
        }
        next_kernel();
        detail::meet_for_host(team, detail::Call::barrier, found);
        next_kernel();
        for (int pe = 0; lane() == 0 && pe < n; ++pe) {
            const uint64_t seen = port::load<port::order::relaxed, port::reach::system>(own + pe);
            expect(seen == uint64_t{100} * turn + static_cast<uint64_t>(pe), "a kernel ended before another PE's began");
        }
        next_kernel();
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

// What block b of a kernel announces to block b of the other PEs' kernels; true if these announce
// the same.
bool meet_by_blocks(uint64_t said) {
    using detail::opening_blocks;
    const abi::KnownTeam world = known_world();
    detail::TeamView team;
    detail::view_team<opening_blocks>(team, world, abi::Op::barrier);
    return detail::settle<opening_blocks>(team, world, abi::Op::barrier) &&
           detail::meet<opening_blocks, true>(team, abi::Op::barrier, detail::announce(abi::Call::barrier, said));
}

// A meeting by the blocks of a kernel: what the PE's kernels before have stored is there for the
// blocks of the same number.
template <uint32_t kTurns> void blocks_in_turns() {
    const int n = port::state().n_pes;
    const auto said = [](uint32_t turn, int pe) {
        return uint64_t{100} * turn + uint64_t{10} * static_cast<uint64_t>(pe) + block();
    };
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        uint64_t *const own = heap<uint64_t>(kFrom) + turn * 8 + block() * 4;
        for (int pe = 0; lane() == 0 && pe < n; ++pe) {
            oxshmem::p(own + me(), said(turn, me()), pe);
        }
        next_kernel();
        expect(meet_by_blocks(block()), "the blocks do not agree");
        for (int pe = 0; pe < n; ++pe) {
            const uint64_t seen = port::load<port::order::relaxed, port::reach::system>(own + pe);
            expect(seen == said(turn, pe), "a block left a meeting before another had entered");
        }
        next_kernel();
    }
}

// By turns one block meets and all do, at the same place.
template <uint32_t kTurns> void one_or_all_blocks() {
    const int n = port::state().n_pes;
    for (uint32_t turn = 1; turn <= kTurns; ++turn) {
        uint64_t *const own = heap<uint64_t>(kFrom) + turn * 8;
        for (int pe = 0; block() == 0 && pe < n; ++pe) {
            oxshmem::p(own + me(), uint64_t{100} * turn + static_cast<uint64_t>(me()), pe);
        }
        next_kernel();
        if (turn % 2 == 0) {
            expect(meet_by_blocks(0), "the blocks do not agree");
        } else if (block() == 0) {
            sync_all(oxshmem::block);
        }
        for (int pe = 0; block() == 0 && pe < n; ++pe) {
            const uint64_t seen = port::load<port::order::relaxed, port::reach::system>(own + pe);
            expect(seen == uint64_t{100} * turn + static_cast<uint64_t>(pe), "a PE left a meeting before another had entered");
        }
        next_kernel();
    }
}

// The members do not agree, and have different numbers of blocks: every block ends.
void disagreement() {
    expect(!meet_by_blocks(static_cast<uint64_t>(me())), "a call that differs from another member's has not failed");
}

constexpr oxshmem_explore_program meeting(const char *name, void (*body)(), uint32_t pes, uint32_t lanes, uint32_t epoch,
                                          uint32_t most_steps) {
    oxshmem_explore_program program = posting(name, body, 1, 2, most_steps);
    program.pes = pes;
    program.lanes = lanes;
    program.epoch = epoch;
    return blocks_of(1, program);
}

constexpr oxshmem_explore_program kPrograms[] = {
    small(direct(meeting("sync_once", sync_turns<thread_scope, 1>, 2, 1, 2, 8000))),
    direct(meeting("sync", sync_turns<thread_scope, 4>, 2, 1, 2, 20000)),
    direct(meeting("sync_3", sync_turns<thread_scope, 3>, 3, 1, 0xfffffffe, 20000)),
    direct(meeting("sync_warp", sync_turns<warp_scope, 3>, 2, 2, 0xffffffff, 20000)),
    direct(meeting("host", host_turns<3>, 2, 2, 0xfffffffe, 40000)),
    direct(meeting("host_3", host_turns<2>, 3, 2, 4, 40000)),
    early(direct(meeting("sync_early", sync_turns<thread_scope, 3>, 2, 1, 5, 20000))),
    in_rounds(direct(meeting("sync_rounds", sync_turns<thread_scope, 3>, 3, 1, 0xfffffffe, 20000))),
    in_rounds(meeting("barrier", barrier_turns<3>, 2, 1, 0xfffffffe, 40000)),
    in_rounds(meeting("barrier_3", barrier_turns<3>, 3, 1, 4, 60000)),
    blocks_of(2, direct(meeting("blocks", blocks_in_turns<4>, 2, 1, 0xfffffffe, 40000))),
    blocks_of(2, direct(meeting("blocks_warp", blocks_in_turns<2>, 2, 2, 4, 40000))),
    blocks_of(2, direct(meeting("blocks_3", blocks_in_turns<2>, 3, 1, 0xffffffff, 40000))),
    early(blocks_of(2, direct(meeting("blocks_early", blocks_in_turns<3>, 2, 1, 4, 40000)))),
    blocks_of(2, direct(meeting("one_or_all_blocks", one_or_all_blocks<4>, 2, 1, 0xfffffffd, 40000))),
    uneven(blocks_of(2, direct(meeting("disagreement", disagreement, 2, 1, 4, 40000)))),
    in_rounds(by_proxy(meeting("barrier_ibrc", barrier_turns<3>, 2, 1, 4, 60000))),
};

} // namespace explore

#include "module.h"
