// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// quiet and fence.
#pragma once

#include "detail/network.h"
#include "detail/profile.h"
#include "detail/scope.h"

namespace oxshmem {

namespace detail {

// Orders what the caller has stored, and seen of others' stores, before its later stores to any PE
// and its later work requests. Where a PE stores directly to its heap alone, others see that
// through work requests, which read this GPU's memory; what device code reads and writes over IBRC
// in host memory has fences of its own.
//
// O: acq_rel, so that a thread may have read a flag of another thread without ordering anything;
// release where other threads' operations do not count unless the caller acquired them.
template <port::order O = port::order::acq_rel> OXSHMEM_DEVICE void release_stores() {
    if (port::state().p2p_count == 1) {
        port::fence<O, port::reach::device>();
    } else {
        port::fence<O, port::reach::system>();
    }
}

} // namespace detail

// Completes every put, get, p, g, atomic and signal of this PE that happens before the call: puts
// are delivered and visible at their peers, gets have arrived. "Happens before" includes other
// threads' operations that the caller has synchronised with, for instance by __syncthreads().
OXSHMEM_LAZY OXSHMEM_DEVICE void quiet() {
    const detail::Profiled profiled(detail::Op::quiet, port::state().my_pe);
    if (port::state().network == static_cast<uint32_t>(abi::Network::none)) {
        detail::release_stores();
        return;
    }
    // Known by the time that the fence is through.
    const uint64_t used = detail::used_before_fence();
    detail::release_stores();
    if (!detail::quiet_soon(used)) {
        detail::network_quiet();
    }
}

// quiet for all threads of the scope, which share the waiting. Every thread of the scope calls.
// That of a grid is in barrier.h.
template <class Scope> OXSHMEM_DEVICE void quiet(Scope) {
    static_assert(!detail::kIsGrid<Scope>, "quiet(oxshmem::grid) needs #include <oxshmem/barrier.h>");
    const detail::Profiled profiled(detail::Op::quiet, port::state().my_pe, 0, Scope::rank() == 0);
    Scope::sync();
    if (Scope::rank() == 0) {
        detail::release_stores();
    }
    if (port::state().network != static_cast<uint32_t>(abi::Network::none)) {
        detail::network_quiet(Scope::rank(), Scope::size());
    }
    Scope::sync();
}

// Orders puts, atomics and signals to each PE: those before the call are delivered before those
// after it. For the operations of one block: its network operations to one peer share a queue pair,
// in which the next request is marked to come after those before it, so this is a memory fence and
// waits for nothing. There are two exceptions (docs/semantics.md, "Atomics and cards"): where a
// card does the atomics on memory that this PE also stores to, fence waits for this block's atomics
// there; and where a block's atomics use another card than its other operations, for all that this
// block has posted. Between blocks use quiet.
OXSHMEM_LAZY OXSHMEM_DEVICE void fence() {
    const detail::Profiled profiled(detail::Op::fence, port::state().my_pe);
    detail::release_stores();
    if (port::state().network != static_cast<uint32_t>(abi::Network::none)) {
        detail::network_fence();
    }
}

} // namespace oxshmem
