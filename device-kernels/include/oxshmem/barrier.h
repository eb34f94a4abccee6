// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync_all and barrier_all over all PEs.
#pragma once

#include "signal.h"

namespace oxshmem {

namespace detail {

// Above this many PEs rounds of one message each (dissemination) beat one round of n - 1.
constexpr int kOneRoundPes = 16;

// Epoch numbers only grow, modulo 2^32, so nothing is ever reset and a PE may be one sync ahead.
OXSHMEM_DEVICE bool reached(uint32_t slot, uint32_t epoch) {
    return static_cast<int32_t>(slot - epoch) >= 0;
}

// Slot i of each of the two symmetric arrays is written by PE i alone: of the first through the network, 64 bits each, and of
// the second by stores, so close together that one load sees those of four PEs.
OXSHMEM_DEVICE uint64_t *network_slots() {
    return as<uint64_t>(port::state().sync_slots);
}
OXSHMEM_DEVICE uint32_t *direct_slots() {
    const abi::State &s = port::state();
    return as<uint32_t>(s.sync_slots + (static_cast<uint64_t>(s.n_pes) * sizeof(uint64_t) + 15) / 16 * 16);
}

// Tells `pe` that this PE has entered sync number `epoch`.
OXSHMEM_DEVICE void enter(int pe, uint32_t epoch, Op op) {
    const int me = port::state().my_pe;
    if (is_direct(pe)) {
        port::flag_store(translate(direct_slots() + me, pe), epoch);
    } else if (path_to(pe, op) == Path::network) {
        network_signal(network_slots() + me, epoch, SignalOp::set, pe);
    }
}

OXSHMEM_DEVICE bool await(int pe, uint32_t epoch, Op op) {
    if (is_direct(pe)) {
        const uint32_t *slot = direct_slots() + pe;
        return wait(op, pe, slot, [&] { return reached(port::load<order::acquire, reach::system>(slot), epoch); });
    }
    const uint64_t *slot = network_slots() + pe;
    return wait(op, pe, slot,
                [&] { return reached(static_cast<uint32_t>(port::load<order::acquire, reach::system>(slot)), epoch); });
}

// Waits for those of the PEs `first` to `first` + 3 that are reached by load and store; `first` is a multiple of 4.
OXSHMEM_DEVICE bool await_four(int first, uint32_t epoch, Op op) {
    const uint32_t *slots = direct_slots() + first;
    const int n = port::state().n_pes;
    // What does not count is as good as reached.
    const auto counts = [&](int i) { return first + i < n && is_direct(first + i); };
    const bool c0 = counts(0), c1 = counts(1), c2 = counts(2), c3 = counts(3);
    int late = first;
    return wait(op, late, slots, [&] {
        const port::vec16 seen = port::load_four<order::acquire, reach::system>(slots);
        const bool l0 = c0 && !reached(seen.x, epoch), l1 = c1 && !reached(seen.y, epoch);
        const bool l2 = c2 && !reached(seen.z, epoch), l3 = c3 && !reached(seen.w, epoch);
        late = first + (l0 ? 0 : l1 ? 1 : l2 ? 2 : 3);
        return !(l0 || l1 || l2 || l3);
    });
}

// Tells the other PEs that this one has entered, and waits until all have. By the first `lanes` threads of the scope, of one
// warp, each of which makes visible what the others shall see before it tells any.
template <class Release> OXSHMEM_DEVICE void meet(Op op, uint32_t epoch, int rank, int lanes, Release release) {
    const abi::State &s = port::state();
    if (s.n_pes <= kOneRoundPes) {
        release();
        for (int pe = rank; pe < s.n_pes; pe += lanes) {
            enter(pe, epoch, op);
        }
        for (int first = 4 * rank; first < s.n_pes; first += 4 * lanes) {
            if (!await_four(first, epoch, op)) {
                return;
            }
        }
        if (s.p2p_count != s.n_pes) {
            for (int pe = rank; pe < s.n_pes; pe += lanes) {
                if (!is_direct(pe) && !await(pe, epoch, op)) {
                    return;
                }
            }
        }
    } else if (rank == 0) {
        for (int distance = 1; distance < s.n_pes; distance *= 2) {
            // What this PE has seen of those that entered before is passed on.
            release();
            const int to = s.my_pe + distance, from = s.my_pe - distance;
            enter(to >= s.n_pes ? to - s.n_pes : to, epoch, op);
            if (!await(from < 0 ? from + s.n_pes : from, epoch, op)) {
                return;
            }
        }
    }
}

// `complete`, by one thread, completes what the PE has under way in the network.
template <class Scope, class Complete> OXSHMEM_DEVICE void sync_all(Op op, Complete complete) {
    const abi::State &s = port::state();
    uint32_t *counter = as<uint32_t>(s.sync_epoch);
    const uint32_t epoch = *counter + 1;
    Scope::sync();
    if (s.network != static_cast<uint32_t>(abi::Network::none)) {
        if (Scope::rank() == 0) {
            complete();
        }
        Scope::sync();
    }
    const int rank = static_cast<int>(Scope::rank()), size = static_cast<int>(Scope::size());
    const int lanes = size < kOneRoundPes ? size : kOneRoundPes;
    if (rank < lanes && rank < s.n_pes) {
        meet(op, epoch, rank, lanes, [] { release_stores(); });
        if (rank == 0) {
            *counter = epoch;
        }
    }
    Scope::sync();
}

} // namespace detail

// Returns when every PE has entered. Own stores and stores to load/store peers made before are visible to whoever leaves; puts
// over the network are not completed. One group of threads per PE calls at a time.
template <class Scope> OXSHMEM_DEVICE void sync_all(Scope) {
    detail::sync_all<Scope>(detail::Op::sync, [] {});
}
OXSHMEM_DEVICE void sync_all() {
    sync_all(thread);
}

// quiet, then sync_all: every operation issued by any PE before is complete and visible everywhere after.
template <class Scope> OXSHMEM_DEVICE void barrier_all(Scope) {
    detail::sync_all<Scope>(detail::Op::barrier, [] { detail::network_quiet(); });
}
OXSHMEM_DEVICE void barrier_all() {
    barrier_all(thread);
}

} // namespace oxshmem
