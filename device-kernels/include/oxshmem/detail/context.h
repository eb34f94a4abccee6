// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Which queue pairs an operation uses: those of the default context, which all threads of the GPU
// share, or that of a context to the operation's peer.
//
// A QP of a private context is posted to by one thread, warp or block at a time, so its posters
// need no atomics and no stamps: the gate counts blocks alone, and a poster stores to it what it
// has reserved. Where lanes of its warp or its block may post side by side, the group of lanes
// holds the QP (Qp::holder) meanwhile: a lane of a warp that is not converged as a whole, and any
// lane of a block.
//
// Whole warps and calls of the scope that the context is for need no such lock: they have the QP
// for themselves. No other thread uses the context meanwhile, and whatever orders its users orders
// plain accesses to the QP's words, which the L1 cache may serve. Qp::room spares them the look at
// words that completions and fences change: blocks before it are known to be free, and no fence
// waits to be carried. It is 0 after a fence, and once the QP is broken.
#pragma once

#include "address.h"

namespace oxshmem::detail {

// The default context: several QPs to each peer, which blocks share.
struct DefaultContext {};

// The QP of a context to the peer of an operation.
struct ContextQp {
    abi::Qp *qp;  // null where no operation to this peer is posted
    uint32_t how; // Context::how
};

// Whether a queue is one of a context, and not the number of one of the default context's. Code for
// contexts alone is left out by it at compile time: it costs other posts registers even where it
// does nothing.
template <class Queue> constexpr bool kOfContext = false;
template <> inline constexpr bool kOfContext<ContextQp> = true;

// What a work request does, as far as that decides which of a block's QPs it takes.
enum class Use : uint32_t { data, atomics };

// The QP for an operation: its number among those of the default context to the peer, or itself.
OXSHMEM_DEVICE uint32_t queue_for(DefaultContext, Use use) {
    return use == Use::data ? block_queue() : atomic_queue();
}
OXSHMEM_DEVICE ContextQp queue_for(ContextQp queue, Use) {
    return queue;
}

OXSHMEM_DEVICE uint32_t card_of(ContextQp queue, int pe) {
    const uint32_t target = queue.how >> abi::kContextCardShift;
    return (queue.how & abi::kContextDirect) != 0 ? target : sender_to(pe, target);
}

// Whether no lock and no stamps are needed.
OXSHMEM_DEVICE constexpr bool is_private(uint32_t) {
    return false;
}
OXSHMEM_DEVICE bool is_private(ContextQp queue) {
    return (queue.how & abi::kContextPrivate) != 0;
}

// Whether the calling lane posts by itself, while no other lane uses the context.
OXSHMEM_DEVICE bool posts_alone(ContextQp queue) {
    return (queue.how & abi::kContextAlone) != 0;
}

// Whether posts wait for a flush before they ring.
OXSHMEM_DEVICE bool is_batched(ContextQp queue) {
    return (queue.how & abi::kContextBatched) != 0;
}

// The same for an operation whose caller waits for it, or tells another thread of it: it rings at
// once.
OXSHMEM_DEVICE DefaultContext at_once(DefaultContext context) {
    return context;
}
OXSHMEM_DEVICE ContextQp at_once(ContextQp queue) {
    return {queue.qp, queue.how & ~abi::kContextBatched};
}

// Context::how, or a QP, for what one lane of a scope does for all: where a context is for one such
// scope at a time, no other lane uses it meanwhile.
template <class Scope> OXSHMEM_DEVICE DefaultContext by_leader(DefaultContext context) {
    return context;
}
template <class Scope> OXSHMEM_DEVICE uint32_t how_together(uint32_t how) {
    const bool alone = Scope::kSeveralWarps || (Scope::kLanes > 1 && (how & abi::kContextWarp) != 0);
    return how | ((how & abi::kContextPrivate) != 0 && alone ? abi::kContextAlone : 0);
}
template <class Scope> OXSHMEM_DEVICE ContextQp by_leader(ContextQp queue) {
    return {queue.qp, how_together<Scope>(queue.how)};
}

} // namespace oxshmem::detail
