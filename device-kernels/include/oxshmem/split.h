// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives in two calls, so that work overlaps with communication: ..._begin, and end.
//
// The first meets the other members and sends what this one gives; the second waits for what the
// others send. In between, the threads of the scope may do anything that touches neither dst nor
// src and makes no call on the team. Every member makes both calls, and the same threads of it do;
// each of them passes to end() what it got from the first. Everything else is as for the whole
// collectives, of which `push` is the algorithm, whatever the team's table says.
#pragma once

#include "collectives.h"

namespace oxshmem {

// A collective that the threads of a scope have begun. Each thread has its own, and ends it once.
template <class Scope> struct Begun {
    detail::Session session;
    int team, root;
    detail::Op op;
    int state;     // kAwaits and so on, as far as the thread's block goes
    bool together; // all blocks of the grid take part
    bool leads;    // the thread's block does it for all
    bool is_over;  // the call has failed in all blocks
};

namespace detail {

// The least bytes of a collective that the blocks of a grid begin together. The schedule explorer
// has less.
#ifndef OXSHMEM_TOGETHER_BYTES
#define OXSHMEM_TOGETHER_BYTES 8192
#endif
constexpr uint64_t kTogether = OXSHMEM_TOGETHER_BYTES;

// All blocks of a grid begin, or the last one to arrive does for all.
template <class Collecting> OXSHMEM_DEVICE void begin_by_grid(Begun<grid_scope> &begun, const Collecting &collecting) {
    Session &session = begun.session;
    if (!begin<grid_scope>(session, begun.team, begun.op, Call::none)) {
        begun.is_over = true;
        return;
    }
    begun.together = session.team.one_round && sharing_blocks() > 1 && collecting.size(session.team.n) >= kTogether;
    if (!begun.together) {
        begun.is_over = by_last_block<GridCall::of_team>(begun.team, begun.op, [&] {
                            begun.leads = true;
                            begun.state = collecting.template by<block_scope, true>(begun.team, kOwn<block_scope>, &session);
                            return begun.state == kFailed ? 1 : 0;
                        }) != 0;
        return;
    }
    const SeenTeam team{session.team, 0}; // a push sends no packets
    begun.state = collecting.template by<blocks_scope, true>(team, kOwn<blocks_scope>, &session);
}

template <class Scope, class Collecting>
OXSHMEM_DEVICE Begun<Scope> begin_in(int team, const Collecting &collecting, int root = -1) {
    Begun<Scope> begun{};
    begun.team = team, begun.op = Collecting::kOp, begun.root = root, begun.state = kEnded;
    if constexpr (kIsGrid<Scope>) {
        begin_by_grid(begun, collecting);
    } else {
        begun.state = collecting.template by<Scope, true>(team, kOwn<Scope>, &begun.session);
    }
    return begun;
}

template <class Scope> OXSHMEM_DEVICE bool finish_begun(const Begun<Scope> &begun) {
    return begun.state != kFailed && (begun.state == kEnded || finish<Scope>(begun.session, begun.root));
}
OXSHMEM_LAZY OXSHMEM_DEVICE bool finish_begun(const Begun<grid_scope> &begun) {
    if (begun.is_over || begun.state == kFailed || !find_for_grid(begun.team, begun.op)) {
        return false;
    }
    if (begun.together) {
        return finish<blocks_scope>(begun.session, begun.root);
    }
    // A block that leaves the second call out is missed here, before the wait for the others'
    // parts.
    if (!enter_own_grid(begun.team, begun.op, false)) {
        return false;
    }
    const bool good = !begun.leads || begun.state == kEnded || finish<block_scope>(begun.session, begun.root);
    return leave_own_grid(begun.team, begun.op, good);
}

} // namespace detail

template <class Scope>
OXSHMEM_DEVICE Begun<Scope> broadcastmem_begin(Scope, team_t team, void *dst, const void *src, size_t bytes, int root) {
    return detail::begin_in<Scope>(team, detail::BroadcastCall{dst, src, bytes, root}, root);
}
template <class Scope, class T>
OXSHMEM_DEVICE Begun<Scope> broadcast_begin(Scope scope, team_t team, T *dst, const T *src, size_t n, int root) {
    return broadcastmem_begin(scope, team, dst, src, detail::bytes_of<T>(n), root);
}

template <class Scope>
OXSHMEM_DEVICE Begun<Scope> fcollectmem_begin(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::begin_in<Scope>(team, detail::GatherCall<false>{dst, src, bytes});
}
template <class Scope, class T>
OXSHMEM_DEVICE Begun<Scope> fcollect_begin(Scope scope, team_t team, T *dst, const T *src, size_t n) {
    return fcollectmem_begin(scope, team, dst, src, detail::bytes_of<T>(n));
}

template <class Scope>
OXSHMEM_DEVICE Begun<Scope> alltoallmem_begin(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::begin_in<Scope>(team, detail::GatherCall<true>{dst, src, bytes});
}
template <class Scope, class T>
OXSHMEM_DEVICE Begun<Scope> alltoall_begin(Scope scope, team_t team, T *dst, const T *src, size_t n) {
    return alltoallmem_begin(scope, team, dst, src, detail::bytes_of<T>(n));
}

template <class Scope, class T>
OXSHMEM_DEVICE Begun<Scope> alltoalls_begin(Scope, team_t team, T *dst, const T *src, ptrdiff_t dst_stride,
                                            ptrdiff_t src_stride, size_t n) {
    return detail::begin_in<Scope>(team, detail::AlltoallsCall{dst, src, dst_stride, src_stride, n, sizeof(T)});
}
template <class Scope>
OXSHMEM_DEVICE Begun<Scope> alltoallsmem_begin(Scope scope, team_t team, void *dst, const void *src, ptrdiff_t dst_stride,
                                               ptrdiff_t src_stride, size_t bytes) {
    return alltoalls_begin(scope, team, static_cast<char *>(dst), static_cast<const char *>(src), dst_stride, src_stride,
                           bytes);
}

template <class Scope, class Operator, class T>
OXSHMEM_DEVICE Begun<Scope> reduce_begin(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    using Combine = detail::Combine<T, Operator::kNumber>;
    return detail::begin_in<Scope>(team, detail::ReduceCall<true, Combine>{dst, src, n, {}});
}
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE Begun<Scope> reducescatter_begin(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    using Combine = detail::Combine<T, Operator::kNumber>;
    return detail::begin_in<Scope>(team, detail::ReduceCall<false, Combine>{dst, src, n, {}});
}

// Ends what ..._begin has begun: dst holds the result then, and src may be reused. Returns 0, or
// another value if either call has failed, with an error recorded.
template <class Scope> OXSHMEM_DEVICE int end(const Begun<Scope> &begun) {
    return detail::finish_begun(begun) ? 0 : 1;
}

} // namespace oxshmem
