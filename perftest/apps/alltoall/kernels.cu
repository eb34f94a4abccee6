// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// All-to-all: every PE sends to every PE, itself included. One launch does all iterations; its
// blocks run at the same time.

#include "grid.h"

namespace alltoall {

using namespace perftest;

// Messages of one size: PE s has one for each PE d, which arrives at place s of d's buffer.
struct Fixed {
    char *dst;          // symmetric: two sets, which take turns, of `bytes` for each PE, `room` apart
    const char *src;    // symmetric: the same, and shift() may begin that much later
    uint64_t *signals;  // symmetric: by PE and slice
    uint64_t *arrivals; // own, 0: see grid_meets
    uint64_t *times;    // own: nanoseconds of each iteration
    uint64_t bytes, room;
    uint64_t slices; // the number of slices that each message is sent in
    uint64_t first, iters;
    uint64_t base;           // iterations of earlier launches: signals only grow
    const Context *contexts; // one for each group of threads that sends, or null
};

// Posts through the default context, which all blocks share.
struct Shared {
    template <class Scope>
    OXSHMEM_DEVICE void send(Scope scope, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t turn,
                             int pe) const {
        putmem_signal_nbi(scope, dst, src, bytes, signal, turn, SIGNAL_SET, pe);
    }
    // For all threads of the block.
    template <class Scope> OXSHMEM_DEVICE void complete(Scope) const { quiet(block); }
};

// Posts through a context that the calling group has for itself.
struct Own {
    Context context;
    template <class Scope>
    OXSHMEM_DEVICE void send(Scope scope, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t turn,
                             int pe) const {
        putmem_signal_nbi(context, scope, dst, src, bytes, signal, turn, SIGNAL_SET, pe);
    }
    template <class Scope> OXSHMEM_DEVICE void complete(Scope scope) const { quiet(context, scope); }
};

// Groups of threads take slices in turn, each PE's of the next PE first, so that no PE is the
// target of all others at once.
//
// A PE that writes to a set again has by then got every PE's message of the iteration in between,
// which its sender sent after it had the one before.
template <class Scope, class Sender>
OXSHMEM_DEVICE void exchange(Scope scope, const Fixed &f, const Sender &sender, uint64_t mine) {
    const int me = my_pe(), n = n_pes();
    const uint64_t groups = groups_per_block<Scope>() * port::grid_blocks();
    const uint64_t total = static_cast<uint64_t>(n) * f.slices;
    const bool clock = port::block_rank() == 0 && port::thread_rank() == 0;
    uint64_t round = 0;
    if (port::block_rank() == 0) {
        sync_all(block);
    }
    if (!grid_meets(f.arrivals, round)) {
        return;
    }
    for (uint64_t i = 0; i < f.iters; ++i) {
        const uint64_t begin = port::clock_ns(), turn = f.base + i + 1;
        char *const dst = f.dst + (turn & 1) * static_cast<uint64_t>(n) * f.room;
        const char *const src = f.src + shift(f.first + i);
        for (uint64_t unit = mine; unit < total; unit += groups) {
            const int pe = static_cast<int>((me + 1 + unit / f.slices) % n);
            const uint64_t slice = unit % f.slices;
            const Part part = split_bytes(f.bytes, f.slices, slice);
            sender.send(scope, dst + me * f.room + part.first, src + pe * f.room + part.first, part.count,
                        f.signals + me * f.slices + slice, turn, pe);
        }
        bool came = true;
        for (uint64_t unit = mine; unit < total && came; unit += groups) {
            const uint64_t pe = static_cast<uint64_t>(me + 2 * n - 1) - unit / f.slices;
            if (Scope::rank() == 0) {
                const uint64_t *signal = f.signals + pe % n * f.slices + unit % f.slices;
                came = signal_wait_until(signal, CMP_GE, turn) >= turn;
            }
        }
        // A group that waits in vain lets the others go on: their waits end too.
        if (!grid_meets(f.arrivals, round)) {
            return;
        }
        if (clock) {
            f.times[i] = port::clock_ns() - begin;
        }
    }
    sender.complete(scope);
}

// The place of the calling group among all of the grid.
template <class Scope> OXSHMEM_DEVICE uint64_t group_in_grid() {
    return port::block_rank() * groups_per_block<Scope>() + group_in_block<Scope>();
}

template <class Scope> OXSHMEM_DEVICE void exchange(Scope scope, const Fixed &f) {
    exchange(scope, f, Shared{}, group_in_grid<Scope>());
}

template <class Scope> OXSHMEM_DEVICE void exchange_in_contexts(Scope scope, const Fixed &f) {
    const uint64_t mine = group_in_grid<Scope>();
    exchange(scope, f, Own{f.contexts[mine]}, mine);
}

// The same by the library's collective, which one block calls.
OXSHMEM_DEVICE void exchange_by_collective(const Fixed &f) {
    sync_all(block);
    for (uint64_t i = 0; i < f.iters; ++i) {
        const uint64_t begin = port::clock_ns(), turn = f.base + i + 1;
        char *const dst = f.dst + (turn & 1) * static_cast<uint64_t>(n_pes()) * f.room;
        if (alltoallmem(block, TEAM_WORLD, dst, f.src + shift(f.first + i), f.bytes) != 0) {
            return;
        }
        if (port::thread_rank() == 0) {
            f.times[i] = port::clock_ns() - begin;
        }
    }
}

// A mixture of experts: each token goes to the PEs of the experts that were chosen for it, and what
// they make of it comes back.
struct Experts {
    char *tokens;           // symmetric: this PE's tokens
    char *inbox;            // symmetric: by PE, `capacity` places of a token
    uint64_t *labels;       // symmetric: the same, which choice of which token it is, and the expert
    char *returned;         // symmetric: by choice, what came back
    char *output;           // own: by token, the sum of that
    const uint32_t *chosen; // own: by choice, the expert
    const uint32_t *owners; // own: by expert, its PE
    uint64_t *arrived;      // symmetric, by PE: see Tally
    uint64_t *answered;     // symmetric, by PE: likewise
    uint64_t *slots;        // own, by PE: places taken in its inbox
    uint64_t *arrivals;     // own, 0
    uint64_t *times;        // own: nanoseconds to when all tokens are here, and from then to when all are back, by iteration
    uint64_t *counts;       // own, by PE: tokens that came, in the last iteration
    uint64_t n_tokens, bytes, top, capacity; // bytes: a multiple of 16; top: choices of a token
    uint64_t iters;
    uint64_t base; // iterations of earlier launches
};

constexpr uint64_t kLabelBits = 32;

// What is told at the end to each PE, by addition: how many blocks are through, in the upper half,
// and how many tokens they sent, in the lower. Both only grow.
OXSHMEM_DEVICE uint64_t tally(uint64_t blocks, uint64_t tokens) {
    return blocks << 32 | tokens;
}

constexpr uint32_t kMostPes = 1024;

// Waits until all blocks of `pe` are through; how many tokens that PE has sent since `before`,
// which is brought up to date. For all threads of the block.
OXSHMEM_DEVICE bool await_tally(const uint64_t *word, uint64_t &before, uint64_t &tokens) {
    OXSHMEM_SHARED(uint64_t, seen);
    const uint64_t wanted = tally((before >> 32) + port::grid_blocks(), 0);
    if (port::thread_rank() == 0) {
        seen = signal_wait_until(word, CMP_GE, wanted);
    }
    port::sync_block();
    const uint64_t now = seen;
    port::sync_block();
    tokens = (now & 0xffffffff) - (before & 0xffffffff);
    before = now;
    return now >= wanted;
}

// What expert `expert` adds to each word of a token in iteration `turn`.
OXSHMEM_DEVICE uint32_t expertise(uint32_t expert, uint64_t turn) {
    return static_cast<uint32_t>(word(expert, turn, 0));
}

// The block's tallies, by PE, which all its threads add to.
OXSHMEM_DEVICE uint32_t *block_tallies() {
    OXSHMEM_SHARED(uint32_t, tallies, [kMostPes]);
    return tallies;
}

OXSHMEM_DEVICE void clear_tallies() {
    for (uint32_t pe = port::thread_rank(); pe < static_cast<uint32_t>(n_pes()); pe += port::block_threads()) {
        block_tallies()[pe] = 0;
    }
    port::sync_block();
}

// Tells every PE how many tokens this block has sent to it, after them: a block's operations to one
// PE go one way.
OXSHMEM_DEVICE void tell_tallies(uint64_t *words) {
    port::sync_block();
    if (port::thread_rank() == 0) {
        fence();
    }
    port::sync_block();
    for (int pe = static_cast<int>(port::thread_rank()); pe < n_pes(); pe += static_cast<int>(port::block_threads())) {
        signal_op(words + my_pe(), tally(1, block_tallies()[pe]), SIGNAL_ADD, pe);
    }
}

// Warps take choices in turn. A token's place in the inbox is the next free one.
OXSHMEM_DEVICE void dispatch(const Experts &x, uint64_t warp_rank, uint64_t warps) {
    const uint64_t me = static_cast<uint64_t>(my_pe());
    clear_tallies();
    for (uint64_t choice = warp_rank; choice < x.n_tokens * x.top; choice += warps) {
        const uint32_t expert = x.chosen[choice];
        const int pe = static_cast<int>(x.owners[expert]);
        uint64_t slot = 0;
        if (port::lane_id() == 0) {
            slot = port::fetch_add<port::order::relaxed, port::reach::device>(x.slots + pe, uint64_t{1});
            port::fetch_add<port::order::relaxed, port::reach::block>(block_tallies() + pe, 1u);
        }
        slot = port::shfl(port::kWholeWarp, slot, 0);
        const uint64_t place = me * x.capacity + slot;
        putmem_nbi(warp, x.inbox + place * x.bytes, x.tokens + choice / x.top * x.bytes, x.bytes, pe);
        if (port::lane_id() == 0) {
            p(x.labels + place, choice << kLabelBits | expert, pe);
        }
    }
    tell_tallies(x.arrived);
}

// Experts work on the tokens in place, and send each back to where it came from.
OXSHMEM_DEVICE bool combine(const Experts &x, uint64_t warp_rank, uint64_t warps, uint64_t turn, uint64_t *arrived) {
    clear_tallies();
    for (int i = 0; i < n_pes(); ++i) {
        const int pe = (my_pe() + i) % n_pes();
        uint64_t tokens;
        uint64_t before = arrived[pe];
        if (!await_tally(x.arrived + pe, before, tokens)) {
            return false;
        }
        // All threads have read the old value before one replaces it.
        if (port::thread_rank() == 0) {
            arrived[pe] = before;
            if (port::block_rank() == 0) {
                x.counts[pe] = tokens;
            }
        }
        for (uint64_t slot = warp_rank; slot < tokens; slot += warps) {
            const uint64_t place = static_cast<uint64_t>(pe) * x.capacity + slot;
            const uint64_t label = x.labels[place];
            const uint32_t more = expertise(static_cast<uint32_t>(label), turn);
            char *const token = x.inbox + place * x.bytes;
            for (uint64_t at = port::lane_id() * 16ull; at < x.bytes; at += warp_scope::size() * 16ull) {
                const port::vec16 v = port::load_vec(token + at);
                port::store_vec(token + at, {v.x + more, v.y + more, v.z + more, v.w + more});
            }
            warp_scope::sync();
            putmem_nbi(warp, x.returned + (label >> kLabelBits) * x.bytes, token, x.bytes, pe);
            if (port::lane_id() == 0) {
                port::fetch_add<port::order::relaxed, port::reach::block>(block_tallies() + pe, 1u);
            }
        }
    }
    tell_tallies(x.answered);
    return true;
}

// Each token's answers, added up by a warp.
OXSHMEM_DEVICE void add_up(const Experts &x, uint64_t warp_rank, uint64_t warps) {
    for (uint64_t token = warp_rank; token < x.n_tokens; token += warps) {
        for (uint64_t at = port::lane_id() * 16ull; at < x.bytes; at += warp_scope::size() * 16ull) {
            port::vec16 sum{0, 0, 0, 0};
            for (uint64_t k = 0; k < x.top; ++k) {
                const port::vec16 v = port::load_vec(x.returned + (token * x.top + k) * x.bytes + at);
                sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
            }
            port::store_vec(x.output + token * x.bytes + at, sum);
        }
    }
}

// What is overwritten in the next iteration has been used: a PE sends its next tokens after it has
// got back all of the last ones, and answers them after it has got them.
OXSHMEM_DEVICE void run(const Experts &x) {
    OXSHMEM_SHARED(uint64_t, arrived, [kMostPes]);
    OXSHMEM_SHARED(uint64_t, answered, [kMostPes]);
    const uint64_t warps = groups_per_block<warp_scope>() * port::grid_blocks(), warp_rank = group_in_grid<warp_scope>();
    const bool first = port::block_rank() == 0, clock = first && port::thread_rank() == 0;
    uint64_t round = 0;
    for (uint32_t pe = port::thread_rank(); pe < static_cast<uint32_t>(n_pes()); pe += port::block_threads()) {
        arrived[pe] = signal_fetch(x.arrived + pe);
        answered[pe] = signal_fetch(x.answered + pe);
    }
    port::sync_block();
    // No PE sends before all have seen what earlier launches have left.
    if (!grid_meets(x.arrivals, round)) {
        return;
    }
    if (first) {
        sync_all(block);
    }
    for (uint64_t i = 0; i < x.iters; ++i) {
        if (first) {
            for (int pe = static_cast<int>(port::thread_rank()); pe < n_pes(); pe += static_cast<int>(port::block_threads())) {
                x.slots[pe] = 0;
            }
        }
        if (!grid_meets(x.arrivals, round)) {
            return;
        }
        const uint64_t begin = port::clock_ns();
        dispatch(x, warp_rank, warps);
        if (first) {
            // Also the others see that all is here, one by one; this is for the clock alone.
            for (int pe = 0; pe < n_pes(); ++pe) {
                uint64_t before = arrived[pe], tokens;
                if (!await_tally(x.arrived + pe, before, tokens)) {
                    return;
                }
            }
        }
        const uint64_t between = port::clock_ns();
        if (!combine(x, warp_rank, warps, x.base + i, arrived)) {
            return;
        }
        for (int pe = 0; pe < n_pes(); ++pe) {
            uint64_t tokens, before = answered[pe];
            if (!await_tally(x.answered + pe, before, tokens)) {
                return;
            }
            if (port::thread_rank() == 0) {
                answered[pe] = before;
            }
        }
        add_up(x, warp_rank, warps);
        if (!grid_meets(x.arrivals, round)) {
            return;
        }
        if (clock) {
            x.times[2 * i] = between - begin;
            x.times[2 * i + 1] = port::clock_ns() - between;
        }
    }
    quiet(block);
}

} // namespace alltoall

PERFTEST_APPLICATION_KERNEL(exchange_warp, alltoall::Fixed fixed) {
    alltoall::exchange(oxshmem::warp, fixed);
}
PERFTEST_APPLICATION_KERNEL(exchange_block, alltoall::Fixed fixed) {
    alltoall::exchange(oxshmem::block, fixed);
}
PERFTEST_APPLICATION_KERNEL(exchange_warp_in_contexts, alltoall::Fixed fixed) {
    alltoall::exchange_in_contexts(oxshmem::warp, fixed);
}
PERFTEST_APPLICATION_KERNEL(exchange_block_in_contexts, alltoall::Fixed fixed) {
    alltoall::exchange_in_contexts(oxshmem::block, fixed);
}
PERFTEST_APPLICATION_KERNEL(exchange_collective, alltoall::Fixed fixed) {
    alltoall::exchange_by_collective(fixed);
}
PERFTEST_APPLICATION_KERNEL(experts, alltoall::Experts experts) {
    alltoall::run(experts);
}
