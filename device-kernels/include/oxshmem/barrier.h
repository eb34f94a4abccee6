// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync_all and barrier_all over all PEs.
#pragma once

#include "signal.h"

namespace oxshmem {

namespace detail {

// Above this many PEs rounds of one message each (dissemination) beat one round of n - 1.
constexpr int kOneRoundPes = 16;

// Slot i of the symmetric array is written by PE i alone and holds the number of the newest sync that PE i has entered. Numbers
// only grow, so nothing is ever reset and a PE may be one sync ahead.
template <class Scope> OXSHMEM_DEVICE void sync_all(Op op) {
    const abi::State &s = port::state();
    uint64_t *slots = as<uint64_t>(s.sync_slots);
    uint64_t *counter = as<uint64_t>(s.sync_epoch);
    Scope::sync();
    const uint64_t epoch = *counter + 1;
    const auto enter = [&](int pe) { signal_op(slots + s.my_pe, epoch, SIGNAL_SET, pe); };
    const auto await = [&](int pe) {
        return wait(op, pe, slots + pe, [&] { return port::load<order::acquire, reach::system>(slots + pe) >= epoch; });
    };
    if (s.n_pes <= kOneRoundPes) {
        const int lanes = static_cast<int>(Scope::size());
        for (int i = static_cast<int>(Scope::rank()) + 1; i < s.n_pes; i += lanes) {
            enter((s.my_pe + i) % s.n_pes);
        }
        for (int i = static_cast<int>(Scope::rank()) + 1; i < s.n_pes; i += lanes) {
            if (!await((s.my_pe + i) % s.n_pes)) {
                break;
            }
        }
    } else if (Scope::rank() == 0) {
        for (int distance = 1; distance < s.n_pes; distance *= 2) {
            enter((s.my_pe + distance) % s.n_pes);
            if (!await((s.my_pe - distance + s.n_pes) % s.n_pes)) {
                break;
            }
        }
    }
    Scope::sync();
    if (Scope::rank() == 0) {
        *counter = epoch;
    }
    Scope::sync();
}

} // namespace detail

// Returns when every PE has entered. Own stores and stores to load/store peers made before are visible to whoever leaves; puts
// over the network are not completed. One group of threads per PE calls at a time.
template <class Scope> OXSHMEM_DEVICE void sync_all(Scope) {
    detail::sync_all<Scope>(detail::Op::sync);
}
OXSHMEM_DEVICE void sync_all() {
    sync_all(thread);
}

// quiet, then sync_all: every operation issued by any PE before is complete and visible everywhere after.
template <class Scope> OXSHMEM_DEVICE void barrier_all(Scope scope) {
    quiet(scope);
    detail::sync_all<Scope>(detail::Op::barrier);
}
OXSHMEM_DEVICE void barrier_all() {
    barrier_all(thread);
}

} // namespace oxshmem
