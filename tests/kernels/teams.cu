// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Teams as device code sees them: numbers, meetings, handles that name nothing.
#include "conformance.h"

#include <oxshmem/team.h>

namespace {

using namespace conformance;

template <class S> OXSHMEM_DEVICE void rounds(int team, uint32_t *flags, uint32_t first, uint32_t count, Report *report) {
    if (thread_rank() >= S::size()) {
        return;
    }
    const int n = oxshmem::team_n_pes(team), me = oxshmem::team_my_pe(team);
    for (uint32_t round = first; round < first + count; ++round) {
        if (round % static_cast<uint32_t>(n) == static_cast<uint32_t>(me)) {
            dawdle(8 + round % 32); // the straggler of this round
        }
        for (int pe = static_cast<int>(S::rank()); pe < n; pe += static_cast<int>(S::size())) {
            oxshmem::p(flags + oxshmem::my_pe(), round, oxshmem::team_translate_pe(team, pe, oxshmem::TEAM_WORLD));
        }
        EXPECT_EQ(report, oxshmem::barrier(S{}, team), 0);
        for (int pe = 0; pe < n; ++pe) {
            EXPECT_EQ(report, peek_acquire(flags + oxshmem::team_translate_pe(team, pe, oxshmem::TEAM_WORLD)), round);
        }
        // Before any PE announces the next round, or does something on another team.
        EXPECT_EQ(report, oxshmem::team_sync(S{}, team), 0);
    }
}

} // namespace

// `numbers`: this PE's number in the team, its members, and for pe from -1 to n what it is in
// `other`; room for `most` numbers.
OXSHMEM_KERNEL(team_numbers, int team, int other, int *numbers, int most) {
    const int n = oxshmem::team_n_pes(team);
    numbers[0] = oxshmem::team_my_pe(team);
    numbers[1] = n;
    for (int pe = -1; pe <= n && pe + 3 < most; ++pe) {
        numbers[pe + 3] = oxshmem::team_translate_pe(team, pe, other);
    }
}

// Every member tells all members the number of the round, `count` times. `flags`: a word for each
// PE of the job.
OXSHMEM_KERNEL(team_rounds, int team, uint32_t *flags, uint32_t first, uint32_t count, uint32_t scope, Report *report) {
    if (scope == 0) {
        rounds<oxshmem::thread_scope>(team, flags, first, count, report);
    } else if (scope == 1) {
        rounds<oxshmem::warp_scope>(team, flags, first, count, report);
    } else {
        rounds<oxshmem::block_scope>(team, flags, first, count, report);
    }
}

OXSHMEM_KERNEL(team_sync_refused, int team, int *answer) {
    *answer = oxshmem::team_sync(oxshmem::thread, team);
}

// Goes on until `word` has this value. No deadline of the device API ends it.
OXSHMEM_KERNEL(hold, const uint64_t *word, uint64_t value) {
    while (peek_acquire(word) != value) {
        oxshmem::port::pause();
    }
}

// Gives `word` a value after `delay_ns`.
OXSHMEM_KERNEL(release_late, uint64_t *word, uint64_t value, uint64_t delay_ns) {
    const uint64_t start = oxshmem::port::clock_ns();
    while (oxshmem::port::clock_ns() - start < delay_ns) {
        oxshmem::port::pause();
    }
    oxshmem::port::store<oxshmem::port::order::release, oxshmem::port::reach::system>(word, value);
}
