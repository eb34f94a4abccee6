// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Counts what a collective sends, and how many messages in sequence it takes. Each PE has a clock:
// a message carries the sender's clock plus one to a shadow of the word that announces it, and a PE
// that has waited for that word sets its own clock to that, if it is later. So the latest clock of
// all is the length of the longest chain of messages.
#include <oxshmem/port/port.h>

namespace costs {
OXSHMEM_DEVICE void on_message(int pe, const uint64_t *word, uint32_t turn);
OXSHMEM_DEVICE void on_arrival(const uint64_t *word, uint32_t turn);
} // namespace costs

#define OXSHMEM_ON_MESSAGE(pe, word, turn) costs::on_message(pe, word, turn)
#define OXSHMEM_ON_ARRIVAL(word, turn) costs::on_arrival(word, turn)

#include "conformance.h"

#include <oxshmem/collectives.h>

namespace costs {

using namespace oxshmem;
namespace inner = oxshmem::detail;

// The number of messages to one word in one collective that are told apart.
constexpr uint64_t kTurns = 64;

// The clock of this PE, which runs a block of one thread.
struct Count {
    uint64_t messages, clock;
    uint64_t *shadows; // symmetric
};
static Count count;

// The shadow of a word of the world team's workspace: of a header, or of an arrival.
OXSHMEM_DEVICE uint64_t *shadow(const uint64_t *word, uint32_t turn) {
    const uint64_t at = reinterpret_cast<uint64_t>(word) - inner::team_row(abi::kTeamWorld).workspace;
    return count.shadows + at / 8 * kTurns + turn % kTurns;
}

OXSHMEM_DEVICE void on_message(int pe, const uint64_t *word, uint32_t turn) {
    if (pe == my_pe()) {
        return;
    }
    ++count.messages;
    if (word != nullptr) {
        p(shadow(word, turn), count.clock + 1, pe);
        fence();
    }
}

OXSHMEM_DEVICE void on_arrival(const uint64_t *word, uint32_t turn) {
    const uint64_t clock = port::load<port::order::relaxed, port::reach::system>(shadow(word, turn));
    count.clock = clock > count.clock ? clock : count.clock;
}

OXSHMEM_DEVICE int run(abi::Call call, void *dst, const void *src, uint64_t words) {
    constexpr int team = abi::kTeamWorld;
    uint64_t *const to = static_cast<uint64_t *>(dst);
    const uint64_t *const from = static_cast<const uint64_t *>(src);
    switch (call) {
    case abi::Call::sync:
        return team_sync(block, team);
    case abi::Call::barrier:
        return oxshmem::barrier(block, team);
    case abi::Call::broadcast:
        return broadcast(block, team, to, from, words, n_pes() - 1);
    case abi::Call::collect:
        return collect(block, team, to, from, words);
    case abi::Call::fcollect:
        return fcollect(block, team, to, from, words);
    case abi::Call::alltoall:
        return alltoall(block, team, to, from, words);
    case abi::Call::alltoalls:
        return alltoalls(block, team, to, from, 1, 1, words);
    case abi::Call::reduce:
        return reduce(block, team, op_sum, to, from, words);
    case abi::Call::reducescatter:
        return reducescatter(block, team, op_sum, to, from, words);
    case abi::Call::none:
        break;
    }
    return -1;
}

} // namespace costs

// Room for the shadows of a team of `n` PEs, in words.
static_assert(oxshmem::abi::kArrivalsAt == 1536, "tests/pe/costs.rs computes with it");

// One collective of the world team by one algorithm, of `words` 64-bit words. out: the messages
// that this PE has sent, its clock, what the call answered, and whether the members are near.
OXSHMEM_KERNEL(count_messages, uint32_t call, uint32_t algorithm, void *dst, const void *src, uint64_t words, uint64_t *shadows,
               uint64_t *out) {
    using namespace costs;
    abi::Team &row = inner::team_row(abi::kTeamWorld);
    for (abi::Choice(&choices)[abi::kChoices] : row.choices) {
        choices[0] = {~0ull, algorithm, 0};
    }
    costs::count = {0, 0, shadows};
    const int answer = run(static_cast<abi::Call>(call), dst, src, words);
    out[0] = costs::count.messages, out[1] = costs::count.clock;
    out[2] = static_cast<uint64_t>(answer), out[3] = row.one_round;
}
