// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Aggregating contexts: small puts, signals and atomics without a result, of all PEs of a node for
// one other node, leave together, as a few long writes. docs/contexts.md says when to use them.
//
//   __global__ void scatter(oxshmem::aggregate::Context context, uint64_t *table, const uint64_t *places, uint64_t n) {
//       for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
//           oxshmem::p(context, table + places[i] % 1024, places[i], static_cast<int>(places[i] / 1024));
//       }
//       oxshmem::quiet(context, oxshmem::block); // all of them are visible at their PEs
//   }
//
// The host creates the context (Team::create_aggregate, oxshmemx_team_create_aggregate). Any
// threads use it at any time. PE numbers are those of its team.
//
// An operation for a PE of another node is a record in a ring at the rail peer, a PE of the
// caller's node: it leaves with the ring's segment once that is full, at flush or quiet, or when it
// is older than the limit that the context was created with. A service of the destination's node
// applies records once and in their order. PEs of the caller's own node are reached at once.
//
//   quiet(context)  returns when the caller's operations are visible at their destinations
//   flush(context)  has the rail peers send what the rings hold; waits for nothing
//   fence(context)  orders the operations before it and after it, to each PE
#pragma once

#include "context.h"
#include "detail/aggregate/ring.h"
#include "types.h"

namespace oxshmem {

namespace aggregate {
using Context = abi::Aggregate;

// Returns a context that the host's C API has made (oxshmemx_team_create_aggregate).
OXSHMEM_DEVICE Context from(const oxshmemx_aggregate_t &handle) {
    static_assert(sizeof(Context) == sizeof(oxshmemx_aggregate_t));
    Context context;
    memcpy(&context, &handle, sizeof(context));
    return context;
}
} // namespace aggregate

namespace detail::aggregate {

// Refuses a word that an atomic or a signal cannot change.
template <class T> OXSHMEM_DEVICE bool check_target(const T *target, int pe, Op op) {
    return check_symmetric(target, sizeof(T), pe, op) && check_aligned(target, pe, op);
}

// An atomic without a result. `near` does it on the caller's own node.
template <class T, class Near>
OXSHMEM_DEVICE void atomic(const abi::Aggregate &context, Kind kind, T *target, T value, int pe, Near near) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    Far far;
    if (!find(context, pe, Op::atomic, far)) {
        return;
    }
    if (far.node == nullptr) {
        near();
    } else if (check_target(target, far.pe, Op::atomic)) {
        append(context, *far.node, Op::atomic, header_for(context, far, kind, sizeof(T), target), to_bits(value));
    }
}

} // namespace detail::aggregate

// Stores one value into `dst` at `pe`.
template <class T> OXSHMEM_DEVICE void p(const aggregate::Context &context, T *dst, detail::given<T> value, int pe) {
    static_assert(detail::scalar<T>);
    detail::aggregate::Far far;
    if (!detail::aggregate::find(context, pe, detail::Op::p, far)) {
        return;
    }
    if (far.node == nullptr) {
        p(context.beside, dst, value, pe);
    } else if (detail::aggregate::check_target(dst, far.pe, detail::Op::p)) {
        if constexpr (sizeof(T) <= sizeof(uint64_t)) {
            const auto header = detail::aggregate::header_for(context, far, detail::aggregate::Kind::put, sizeof(T), dst);
            detail::aggregate::append(context, *far.node, detail::Op::p, header, detail::to_bits(value));
        } else {
            detail::aggregate::append_put(context, far, detail::Op::p, dst, &value, sizeof(T));
        }
    }
}

// Copies `bytes` bytes to `dst` at `pe`. `src` may be reused when the call returns (in warp and
// block scope: after a barrier of the scope). A put of more than 248 bytes is several records:
// bulk data belongs into an ordinary context.
template <class Scope>
OXSHMEM_DEVICE void putmem_nbi(const aggregate::Context &context, Scope scope, void *dst, const void *src, size_t bytes,
                               int pe) {
    static_assert(!detail::kIsGrid<Scope>, "an aggregating context has no put in grid scope");
    detail::aggregate::Far far;
    if (!detail::aggregate::find(context, pe, detail::Op::put, far)) {
        return;
    }
    if (far.node == nullptr) {
        putmem_nbi(context.beside, scope, dst, src, bytes, pe);
        return;
    }
    // Other threads of the scope may have written the source.
    Scope::sync();
    if (Scope::rank() == 0 && detail::check_symmetric(dst, bytes, far.pe, detail::Op::put)) {
        detail::aggregate::append_put(context, far, detail::Op::put, dst, src, bytes);
    }
}

template <class Scope>
OXSHMEM_DEVICE void putmem(const aggregate::Context &context, Scope scope, void *dst, const void *src, size_t bytes, int pe) {
    putmem_nbi(context, scope, dst, src, bytes, pe);
    Scope::sync();
}

template <class Scope, class T>
OXSHMEM_DEVICE void put(const aggregate::Context &context, Scope scope, T *dst, const T *src, size_t n, int pe) {
    putmem(context, scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T>
OXSHMEM_DEVICE void put_nbi(const aggregate::Context &context, Scope scope, T *dst, const T *src, size_t n, int pe) {
    putmem_nbi(context, scope, dst, src, detail::bytes_of<T>(n), pe);
}

// Updates `signal` at `pe`. A thread that sees it sees what the caller put to that PE before it, if
// the PE is on another node; otherwise a fence has to lie between, or use put_signal.
OXSHMEM_LAZY OXSHMEM_DEVICE void signal_op(const aggregate::Context &context, uint64_t *signal, uint64_t value, SignalOp op,
                                           int pe) {
    detail::aggregate::Far far;
    if (!detail::aggregate::find(context, pe, detail::Op::signal, far)) {
        return;
    }
    if (far.node == nullptr) {
        signal_op(context.beside, signal, value, op, pe);
    } else if (detail::check_signal(signal, op, far.pe, detail::Op::signal)) {
        const auto kind = op == SignalOp::set ? detail::aggregate::Kind::signal_set : detail::aggregate::Kind::signal_add;
        const auto header = detail::aggregate::header_for(context, far, kind, sizeof(*signal), signal);
        detail::aggregate::append(context, *far.node, detail::Op::signal, header, value);
    }
}

// Copies `bytes` bytes to `dst` at `pe` and then updates `signal` there: a thread that sees the
// signal sees the data.
template <class Scope>
OXSHMEM_DEVICE void putmem_signal_nbi(const aggregate::Context &context, Scope scope, void *dst, const void *src, size_t bytes,
                                      uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    static_assert(!detail::kIsGrid<Scope>, "an aggregating context has no put in grid scope");
    detail::aggregate::Far far;
    if (!detail::aggregate::find(context, pe, detail::Op::put_signal, far)) {
        return;
    }
    if (far.node == nullptr) {
        putmem_signal_nbi(context.beside, scope, dst, src, bytes, signal, value, op, pe);
        return;
    }
    Scope::sync();
    if (Scope::rank() == 0 && detail::check_symmetric(dst, bytes, far.pe, detail::Op::put_signal) &&
        detail::check_signal(signal, op, far.pe, detail::Op::put_signal)) {
        detail::aggregate::append_put(context, far, detail::Op::put_signal, dst, src, bytes);
        signal_op(context, signal, value, op, pe);
    }
}

template <class Scope>
OXSHMEM_DEVICE void putmem_signal(const aggregate::Context &context, Scope scope, void *dst, const void *src, size_t bytes,
                                  uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    putmem_signal_nbi(context, scope, dst, src, bytes, signal, value, op, pe);
    Scope::sync();
}

template <class Scope, class T>
OXSHMEM_DEVICE void put_signal(const aggregate::Context &context, Scope scope, T *dst, const T *src, size_t n, uint64_t *signal,
                               uint64_t value, SignalOp op, int pe) {
    putmem_signal(context, scope, dst, src, detail::bytes_of<T>(n), signal, value, op, pe);
}
template <class Scope, class T>
OXSHMEM_DEVICE void put_signal_nbi(const aggregate::Context &context, Scope scope, T *dst, const T *src, size_t n,
                                   uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    putmem_signal_nbi(context, scope, dst, src, detail::bytes_of<T>(n), signal, value, op, pe);
}

// Atomics without a result, on words of 4 and 8 bytes. They are atomic with others on the word as
// those of oxshmem/atomic.h are.
#define OXSHMEM_DEFINE_AGGREGATE_ATOMIC(name, kind)                                                                            \
    template <class T>                                                                                                         \
    OXSHMEM_DEVICE void name(const aggregate::Context &context, T *target, detail::given<T> value, int pe) {                   \
        static_assert(detail::is_whole_number<T>, "atomics add and combine integers");                                         \
        detail::aggregate::atomic<T>(context, detail::aggregate::Kind::kind, target, value, pe,                                \
                                     [&] { name(context.beside, target, value, pe); });                                        \
    }
OXSHMEM_DEFINE_AGGREGATE_ATOMIC(atomic_add, add)
OXSHMEM_DEFINE_AGGREGATE_ATOMIC(atomic_and, bit_and)
OXSHMEM_DEFINE_AGGREGATE_ATOMIC(atomic_or, bit_or)
OXSHMEM_DEFINE_AGGREGATE_ATOMIC(atomic_xor, bit_xor)
#undef OXSHMEM_DEFINE_AGGREGATE_ATOMIC

template <class T> OXSHMEM_DEVICE void atomic_inc(const aggregate::Context &context, T *target, int pe) {
    atomic_add(context, target, T{1}, pe);
}

// Has the rail peers send what the rings of this node hold. It waits for nothing.
OXSHMEM_LAZY OXSHMEM_DEVICE void flush(const aggregate::Context &context) {
    abi::AggregateNode *const nodes = detail::as<abi::AggregateNode>(context.nodes);
    for (uint32_t i = 0; i < context.n_nodes; ++i) {
        detail::aggregate::want(nodes[i]);
    }
}

// Completes every operation on the context that happens before the call, as quiet() does for the
// default context.
OXSHMEM_LAZY OXSHMEM_DEVICE void quiet(const aggregate::Context &context) {
    const detail::Profiled profiled(detail::Op::quiet, port::state().my_pe);
    detail::release_context_stores(context.beside);
    detail::context_quiet(context.beside, 0, 1);
    detail::aggregate::complete(context, 0, 1);
}

// The same for all threads of the scope, which share the waiting.
template <class Scope> OXSHMEM_DEVICE void quiet(const aggregate::Context &context, Scope) {
    static_assert(!detail::kIsGrid<Scope>, "a context has no quiet in grid scope: let the blocks meet, then call it by one");
    const detail::Profiled profiled(detail::Op::quiet, port::state().my_pe, 0, Scope::rank() == 0);
    Scope::sync();
    if (Scope::rank() == 0) {
        detail::release_stores();
    }
    detail::context_quiet(context.beside, Scope::rank(), Scope::size());
    detail::aggregate::complete(context, Scope::rank(), Scope::size());
    Scope::sync();
}

// Orders the operations on the context to each PE: those before the call are visible before those
// after it. It waits for nothing, unless a card does the atomics on memory that this PE also stores
// to. It appends a record to each ring that this PE has used and that is not empty.
OXSHMEM_LAZY OXSHMEM_DEVICE void fence(const aggregate::Context &context) {
    const detail::Profiled profiled(detail::Op::fence, port::state().my_pe);
    detail::release_context_stores(context.beside);
    detail::context_fence(context.beside);
    abi::AggregateNode *const nodes = detail::as<abi::AggregateNode>(context.nodes);
    for (uint32_t i = 0; i < context.n_nodes; ++i) {
        uint64_t end = 0;
        if (detail::aggregate::holds_records(nodes[i], end)) {
            const auto header = detail::aggregate::header(detail::aggregate::Kind::fence, 8, 0, context.my_number, 0);
            detail::aggregate::append(context, nodes[i], detail::Op::fence, header, 0);
        }
    }
}

} // namespace oxshmem
