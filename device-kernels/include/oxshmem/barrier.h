// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sync_all and barrier_all over all PEs.
#pragma once

#include "signal.h"

namespace oxshmem {

namespace detail {

// Up to this many PEs each tells all others at once; more meet by rounds of one message each (dissemination).
constexpr int kOneRoundPes = 16;

// Epoch numbers only grow, modulo 2^32, so nothing is ever reset and a PE may be one sync ahead.
OXSHMEM_DEVICE bool reached(uint32_t slot, uint32_t epoch) {
    return static_cast<int32_t>(slot - epoch) >= 0;
}

// Slot i of each of the two symmetric arrays is written by PE i alone: of the first by stores, so close together that one load
// sees those of four PEs, and of the second through the network, 64 bits each.
OXSHMEM_DEVICE uint32_t *near_slots() {
    return as<uint32_t>(port::state().sync_slots);
}
OXSHMEM_DEVICE uint64_t *far_slots() {
    return as<uint64_t>(port::state().sync_slots + (static_cast<uint64_t>(port::state().n_pes) + 3) / 4 * 16);
}

// Waits for the PEs `first` to `first` + 3; `first` is a multiple of 4.
OXSHMEM_DEVICE bool await_four(int first, uint32_t epoch, Op op) {
    const uint32_t *slots = near_slots() + first;
    const int others = port::state().n_pes - first - 1; // behind the first
    const auto late = [&] {
        int pe = first;
        while (pe < first + others && reached(port::load<order::relaxed, reach::system>(near_slots() + pe), epoch)) {
            ++pe;
        }
        return pe;
    };
    return wait(op, late, slots, [&] {
        const port::vec16 seen = port::load_four<order::acquire, reach::system>(slots);
        return reached(seen.x, epoch) && (others < 1 || reached(seen.y, epoch)) && (others < 2 || reached(seen.z, epoch)) &&
               (others < 3 || reached(seen.w, epoch));
    });
}

// Tells the other PEs that this one has entered, and waits until all have, where all are reached by load and store. By the
// first `lanes` threads of the scope, of one warp, each of which makes visible what the others shall see before it tells any.
OXSHMEM_DEVICE void near_meet(Op op, uint32_t epoch, int rank, int lanes) {
    const abi::State &s = port::state();
    release_stores();
    for (int pe = rank; pe < s.n_pes; pe += lanes) {
        port::store<order::relaxed, reach::system>(translate(near_slots() + s.my_pe, pe), epoch);
    }
    for (int first = 4 * rank; first < s.n_pes; first += 4 * lanes) {
        if (!await_four(first, epoch, op)) {
            break;
        }
    }
}

// Tells one PE, and waits for one, whatever lies between.
OXSHMEM_DEVICE void tell(int pe, uint32_t epoch, Op op) {
    const int me = port::state().my_pe;
    if (is_direct(pe)) {
        port::store<order::relaxed, reach::system>(translate(near_slots() + me, pe), epoch);
    } else if (path_to(pe, op) == Path::network) {
        network_signal(far_slots() + me, epoch, SignalOp::set, pe);
    }
}

OXSHMEM_DEVICE bool await(int pe, uint32_t epoch, Op op) {
    const uint32_t *near = near_slots() + pe;
    const uint64_t *far = far_slots() + pe;
    const bool is_near = is_direct(pe);
    return wait(op, pe, is_near ? static_cast<const void *>(near) : far, [&] {
        return reached(is_near ? port::load<order::acquire, reach::system>(near)
                               : static_cast<uint32_t>(port::load<order::acquire, reach::system>(far)),
                       epoch);
    });
}

// near_meet where some PEs are reached through the network, or where there are many of them.
OXSHMEM_OUTLINE void far_meet(Op op, uint32_t epoch, int rank, int lanes) {
    const abi::State &s = port::state();
    if (s.n_pes <= kOneRoundPes) {
        release_stores();
        for (int pe = rank; pe < s.n_pes; pe += lanes) {
            if (pe != s.my_pe) {
                tell(pe, epoch, op);
            }
        }
        for (int pe = rank; pe < s.n_pes; pe += lanes) {
            if (pe != s.my_pe && !await(pe, epoch, op)) {
                return;
            }
        }
    } else if (rank == 0) {
        for (int distance = 1; distance < s.n_pes; distance *= 2) {
            // What this PE has seen of those that entered before is passed on.
            release_stores();
            tell((s.my_pe + distance) % s.n_pes, epoch, op);
            if (!await((s.my_pe + s.n_pes - distance) % s.n_pes, epoch, op)) {
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
    const int rank = static_cast<int>(Scope::rank()), size = static_cast<int>(Scope::size());
    Scope::sync();
    const int lanes = size < kOneRoundPes ? size : kOneRoundPes;
    const bool all_near = s.n_pes <= kOneRoundPes && s.p2p_mask == (1ull << s.n_pes) - 1 && s.p2p_first == 0;
    if (!all_near) {
        if (rank == 0) {
            complete();
        }
        Scope::sync();
    }
    if (rank < lanes && rank < s.n_pes) {
        if (all_near) {
            near_meet(op, epoch, rank, lanes);
        } else {
            far_meet(op, epoch, rank, lanes);
        }
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
    detail::sync_all<Scope>(detail::Op::barrier, [] {
        if (port::state().network != static_cast<uint32_t>(abi::Network::none)) {
            detail::network_quiet();
        }
    });
}
OXSHMEM_DEVICE void barrier_all() {
    barrier_all(thread);
}

} // namespace oxshmem
