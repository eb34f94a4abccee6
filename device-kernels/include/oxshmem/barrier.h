// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync_all and barrier_all over all PEs.
#pragma once

#include "signal.h"

namespace oxshmem {

namespace detail {

// Above this many PEs rounds of one message each (dissemination) beat one round of n - 1.
constexpr int kOneRoundPes = 16;

// Tells `pe` that this PE has entered sync number `epoch`. Slot i of the symmetric array is written by PE i alone, and numbers
// only grow, so nothing is ever reset and a PE may be one sync ahead.
template <order O> OXSHMEM_DEVICE void enter(int pe, uint64_t epoch, Op op) {
    uint64_t *slot = as<uint64_t>(port::state().sync_slots) + port::state().my_pe;
    switch (path_to(pe, op)) {
    case Path::load_store:
        port::store<O, reach::system>(translate(slot, pe), epoch);
        break;
    case Path::network:
        network_signal(slot, epoch, SignalOp::set, pe);
        break;
    case Path::none:
        break;
    }
}

// The peer `distance` PEs further on.
OXSHMEM_DEVICE int neighbour(int distance) {
    const abi::State &s = port::state();
    const int pe = s.my_pe + distance;
    return pe < 0 ? pe + s.n_pes : pe >= s.n_pes ? pe - s.n_pes : pe;
}

// Tells every PE that this one has entered, and waits until all have. The caller has released what the others shall see.
template <class Scope> OXSHMEM_DEVICE void meet(Op op, uint64_t epoch) {
    const abi::State &s = port::state();
    const uint64_t *slots = as<uint64_t>(s.sync_slots);
    const auto await = [&](int pe) {
        return wait(op, pe, slots + pe, [&] { return port::load<order::acquire, reach::system>(slots + pe) >= epoch; });
    };
    if (s.n_pes <= kOneRoundPes) {
        const int lanes = static_cast<int>(Scope::size());
        for (int i = static_cast<int>(Scope::rank()) + 1; i < s.n_pes; i += lanes) {
            enter<order::relaxed>(neighbour(i), epoch, op);
        }
        for (int i = static_cast<int>(Scope::rank()) + 1; i < s.n_pes; i += lanes) {
            if (!await(neighbour(i))) {
                break;
            }
        }
    } else if (Scope::rank() == 0) {
        for (int distance = 1; distance < s.n_pes; distance *= 2) {
            // What this PE has seen of those that entered before is passed on.
            enter<order::release>(neighbour(distance), epoch, op);
            if (!await(neighbour(-distance))) {
                break;
            }
        }
    }
}

// `release` makes visible to the others what they shall see, by one thread for all of the scope.
template <class Scope, class Release> OXSHMEM_DEVICE void sync_all(Op op, Release release) {
    uint64_t *counter = as<uint64_t>(port::state().sync_epoch);
    const uint64_t epoch = *counter + 1;
    Scope::sync();
    if (Scope::rank() == 0) {
        release();
    }
    Scope::sync();
    meet<Scope>(op, epoch);
    if (Scope::rank() == 0) {
        *counter = epoch;
    }
    Scope::sync();
}

} // namespace detail

// Returns when every PE has entered. Own stores and stores to load/store peers made before are visible to whoever leaves; puts
// over the network are not completed. One group of threads per PE calls at a time.
template <class Scope> OXSHMEM_DEVICE void sync_all(Scope) {
    detail::sync_all<Scope>(detail::Op::sync, [] { port::fence<port::order::acq_rel, port::reach::system>(); });
}
OXSHMEM_DEVICE void sync_all() {
    sync_all(thread);
}

// quiet, then sync_all: every operation issued by any PE before is complete and visible everywhere after.
template <class Scope> OXSHMEM_DEVICE void barrier_all(Scope) {
    detail::sync_all<Scope>(detail::Op::barrier, [] { quiet(); });
}
OXSHMEM_DEVICE void barrier_all() {
    barrier_all(thread);
}

} // namespace oxshmem
