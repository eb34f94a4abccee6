// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Communication contexts: queue pairs apart from those that all threads of the GPU share
// (OpenSHMEM 1.5, 9.5). The host creates them and hands them to kernels, which pass them by value.
//
//   __global__ void send(const oxshmem::Context *contexts, uint64_t *dst, uint64_t value, int pe) {
//       const oxshmem::Context context = contexts[blockIdx.x]; // shared by a block, say
//       if (threadIdx.x == 0) {
//           oxshmem::p(context, dst + blockIdx.x, value, pe);
//           oxshmem::quiet(context);
//       }
//   }
//
// Each operation below is that of the same name without a context, with these differences: PE
// numbers are those of the context's team; its work requests take the context's queue pair to that
// PE, on the context's card; quiet and fence are for the operations of one context alone, and
// quiet() and fence() are for those of the default context alone. Peers that are reached by load
// and store, or over IBRC, are reached as without a context.
//
// A context is for one thread, warp or block at a time, or for any threads, as it was created
// (abi::Sharing). In a context of a warp or of a block, its lanes may also call side by side: they
// take turns, at the cost of an atomic. Without turns post whole warps and the warp scope in a
// context of a warp, the block scope in one of a block, and one of a thread. A context that passes
// from one thread, warp or block to another needs a barrier between them, as all memory does.
#pragma once

#include "atomic.h"
#include "ordering.h"
#include "signal.h"

namespace oxshmem {

using abi::Context;

namespace detail {

// A PE as an operation on a context means it.
struct Member {
    int pe; // its number in the job
    ContextQp queue;
};

// Finds member `number` of a context's team. False: there is no such member, which is recorded.
OXSHMEM_LAZY OXSHMEM_DEVICE bool find(const Context &context, int number, Op op, Use use, Member &member) {
    if (context.n_pes == 0) {
        member = {number, {nullptr, 0}};
        if (posts_to(number)) {
            const uint32_t queue = queue_for(DefaultContext{}, use);
            member.queue.qp = as<abi::Qp>(port::state().qps) + static_cast<uint64_t>(number) * port::state().qps_per_pe + queue;
            member.queue.how = target_of(queue) << abi::kContextCardShift;
        }
        return true;
    }
    if (static_cast<uint32_t>(number) >= static_cast<uint32_t>(context.n_pes)) {
        raise(ErrorCode::pe_out_of_range, op, number, 0, static_cast<uint64_t>(context.n_pes));
        return false;
    }
    const uint64_t at = context.qps + static_cast<uint64_t>(number) * context.qp_bytes;
    member.pe = context.members != 0 ? port::read(as<const int32_t>(context.members) + number)
                                     : context.start + number * context.stride;
    member.queue = {as<abi::Qp>(context.qps != 0 ? at : 0), context.how};
    return true;
}

// release_stores for the operations on a context. A context of one thread has no operation that
// another thread did without a barrier in between.
OXSHMEM_LAZY OXSHMEM_DEVICE void release_context_stores(const Context &context) {
    if ((context.how & abi::kContextAlone) != 0) {
        release_stores<port::order::release>();
    } else {
        release_stores();
    }
}

} // namespace detail

// The same context, whose puts, p, iput and atomics without a result do not ring for themselves:
// they leave with the next signal, blocking or fetching operation to the same PE, and with flush or
// quiet. A queue that is full rings. What no flush follows is not sent. Other than private contexts
// ring at once.
OXSHMEM_DEVICE Context batched(Context context) {
    context.how |= (context.how & abi::kContextPrivate) != 0 ? abi::kContextBatched : 0;
    return context;
}

// Finds the context that the host has given this number (Contexts::numbers). False: no context has
// it, or it was destroyed, which is recorded.
OXSHMEM_LAZY OXSHMEM_DEVICE bool numbered_context(uint32_t number, Context &context) {
    const abi::State &s = port::state();
    if (number < port::read(detail::as<uint64_t>(s.n_numbered_contexts))) {
        context = detail::as<Context>(s.numbered_contexts)[number];
        if (context.n_pes != 0) {
            return true;
        }
    }
    detail::raise(detail::ErrorCode::bad_number, detail::Op::none, -1, 0, number);
    return false;
}

// Calls `act` with each context that has a number and was not destroyed.
template <class Act> OXSHMEM_DEVICE void for_each_numbered_context(Act act) {
    const abi::State &s = port::state();
    const uint64_t count = port::read(detail::as<uint64_t>(s.n_numbered_contexts));
    for (uint64_t number = 0; number < count; ++number) {
        const Context context = detail::as<Context>(s.numbered_contexts)[number];
        if (context.n_pes != 0) {
            act(context);
        }
    }
}

// Sends what was posted to a batched context. It waits for nothing.
OXSHMEM_LAZY OXSHMEM_DEVICE void flush(const Context &context) {
    if (context.n_pes != 0 && !detail::flush_one(context)) {
        detail::context_flush(Context(context));
    }
}

// Completes every operation on the context that happens before the call, as quiet() does for the
// default context. The time it takes grows with the PEs that the context was used for since its
// last quiet.
OXSHMEM_LAZY OXSHMEM_DEVICE void quiet(const Context &context) {
    // Functions are given copies, so that the caller's may stay in registers.
    if (context.n_pes == 0) {
        quiet();
        return;
    }
    const detail::Profiled profiled(detail::Op::quiet, port::state().my_pe);
    detail::release_context_stores(context);
    if (!detail::quiet_one(context)) {
        detail::context_quiet(Context(context), 0, 1);
    }
}

// The same for all threads of the scope, which share the waiting.
template <class Scope> OXSHMEM_DEVICE void quiet(const Context &context, Scope scope) {
    static_assert(!detail::kIsGrid<Scope>, "a context has no quiet in grid scope: let the blocks meet, then call it by one");
    if (context.n_pes == 0) {
        quiet(scope);
        return;
    }
    const detail::Profiled profiled(detail::Op::quiet, port::state().my_pe, 0, Scope::rank() == 0);
    Scope::sync();
    if (Scope::rank() == 0) {
        detail::release_stores();
    }
    Context together = context;
    together.how = detail::how_together<Scope>(context.how);
    detail::context_quiet(together, Scope::rank(), Scope::size());
    Scope::sync();
}

// Orders the operations on the context to each PE: those before the call are delivered before those
// after it. One queue pair of the context leads to each PE, so nothing waits; where a card does the
// atomics on memory that this PE also stores to, fence waits for those.
OXSHMEM_LAZY OXSHMEM_DEVICE void fence(const Context &context) {
    if (context.n_pes == 0) {
        fence();
        return;
    }
    const detail::Profiled profiled(detail::Op::fence, port::state().my_pe);
    detail::release_context_stores(context);
    detail::context_fence(Context(context));
}

template <class T> OXSHMEM_DEVICE void p(const Context &context, T *dst, detail::given<T> value, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::p, detail::Use::data, member)) {
        detail::p_by<detail::ContextQp, T>(member.queue, dst, value, member.pe);
    }
}

template <class T> OXSHMEM_DEVICE T g(const Context &context, const T *src, int pe) {
    detail::Member member;
    return detail::find(context, pe, detail::Op::g, detail::Use::data, member) ? detail::g_by(member.queue, src, member.pe)
                                                                               : T{};
}

template <class Scope>
OXSHMEM_DEVICE void putmem_nbi(const Context &context, Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::put, detail::Use::data, member)) {
        detail::put_by<Scope>(member.queue, dst, src, bytes, member.pe, false);
    }
}

template <class Scope>
OXSHMEM_DEVICE void putmem(const Context &context, Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::put, detail::Use::data, member)) {
        detail::put_by<Scope>(member.queue, dst, src, bytes, member.pe, true);
    }
    Scope::sync();
}

template <class Scope>
OXSHMEM_DEVICE void getmem_nbi(const Context &context, Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::get, detail::Use::data, member)) {
        detail::get_by<Scope>(member.queue, dst, src, bytes, member.pe, false);
    }
}

template <class Scope>
OXSHMEM_DEVICE void getmem(const Context &context, Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::get, detail::Use::data, member)) {
        detail::get_by<Scope>(member.queue, dst, src, bytes, member.pe, true);
    }
    Scope::sync();
}

template <class Scope, class T>
OXSHMEM_DEVICE void put(const Context &context, Scope scope, T *dst, const T *src, size_t n, int pe) {
    putmem(context, scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T>
OXSHMEM_DEVICE void put_nbi(const Context &context, Scope scope, T *dst, const T *src, size_t n, int pe) {
    putmem_nbi(context, scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T>
OXSHMEM_DEVICE void get(const Context &context, Scope scope, T *dst, const T *src, size_t n, int pe) {
    getmem(context, scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T>
OXSHMEM_DEVICE void get_nbi(const Context &context, Scope scope, T *dst, const T *src, size_t n, int pe) {
    getmem_nbi(context, scope, dst, src, detail::bytes_of<T>(n), pe);
}

template <class Scope, class T>
OXSHMEM_DEVICE void iput(const Context &context, Scope, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                         size_t n, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::iput, detail::Use::data, member)) {
        detail::iput_by<Scope>(member.queue, dst, src, dst_stride, src_stride, n, member.pe);
    }
    Scope::sync();
}

template <class Scope, class T>
OXSHMEM_DEVICE void iget(const Context &context, Scope, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                         size_t n, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::iget, detail::Use::data, member)) {
        detail::iget_by<Scope>(member.queue, dst, src, dst_stride, src_stride, n, member.pe);
    }
    Scope::sync();
}

template <class Scope>
OXSHMEM_DEVICE void putmem_signal_nbi(const Context &context, Scope, void *dst, const void *src, size_t bytes, uint64_t *signal,
                                      uint64_t value, SignalOp op, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::put_signal, detail::use_of(op), member)) {
        detail::put_signal_by<Scope>(member.queue, dst, src, bytes, signal, value, op, member.pe, false);
    }
}

template <class Scope>
OXSHMEM_DEVICE void putmem_signal(const Context &context, Scope, void *dst, const void *src, size_t bytes, uint64_t *signal,
                                  uint64_t value, SignalOp op, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::put_signal, detail::use_of(op), member)) {
        detail::put_signal_by<Scope>(member.queue, dst, src, bytes, signal, value, op, member.pe, true);
    }
    Scope::sync();
}

template <class Scope, class T>
OXSHMEM_DEVICE void put_signal_nbi(const Context &context, Scope scope, T *dst, const T *src, size_t n, uint64_t *signal,
                                   uint64_t value, SignalOp op, int pe) {
    putmem_signal_nbi(context, scope, dst, src, detail::bytes_of<T>(n), signal, value, op, pe);
}

template <class Scope, class T>
OXSHMEM_DEVICE void put_signal(const Context &context, Scope scope, T *dst, const T *src, size_t n, uint64_t *signal,
                               uint64_t value, SignalOp op, int pe) {
    putmem_signal(context, scope, dst, src, detail::bytes_of<T>(n), signal, value, op, pe);
}

OXSHMEM_LAZY OXSHMEM_DEVICE void signal_op(const Context &context, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    detail::Member member;
    if (detail::find(context, pe, detail::Op::signal, detail::use_of(op), member)) {
        detail::signal_by(member.queue, signal, value, op, member.pe);
    }
}

namespace detail {

// Calls `act(queue, pe)` for an atomic on a context; a zero if there is no such member.
template <class T, class Act> OXSHMEM_DEVICE T atomic_in(const Context &context, int number, Act act) {
    Member member;
    return find(context, number, Op::atomic, Use::atomics, member) ? act(member.queue, member.pe) : T{};
}

} // namespace detail

template <class T> OXSHMEM_DEVICE T atomic_fetch(const Context &context, const T *source, int pe) {
    return detail::atomic_in<T>(context, pe, [&](auto queue, int peer) { return detail::atomic_fetch(queue, source, peer); });
}
template <class T>
OXSHMEM_DEVICE T atomic_compare_swap(const Context &context, T *target, detail::given<T> expected, detail::given<T> desired,
                                     int pe) {
    return detail::atomic_in<T>(context, pe, [&](auto queue, int peer) {
        return detail::atomic_compare_swap<detail::ContextQp, T>(queue, target, expected, desired, peer);
    });
}

#define OXSHMEM_DEFINE_CONTEXT_ATOMIC(plain, fetching, operation)                                                              \
    template <class T> OXSHMEM_DEVICE void plain(const Context &context, T *target, detail::given<T> value, int pe) {          \
        detail::atomic_in<T>(context, pe, [&](auto queue, int peer) {                                                          \
            return detail::operation<false, detail::ContextQp, T>(queue, target, value, peer);                                 \
        });                                                                                                                    \
    }                                                                                                                          \
    template <class T> OXSHMEM_DEVICE T fetching(const Context &context, T *target, detail::given<T> value, int pe) {          \
        return detail::atomic_in<T>(context, pe, [&](auto queue, int peer) {                                                   \
            return detail::operation<true, detail::ContextQp, T>(queue, target, value, peer);                                  \
        });                                                                                                                    \
    }
OXSHMEM_DEFINE_CONTEXT_ATOMIC(atomic_set, atomic_swap, atomic_swap)
OXSHMEM_DEFINE_CONTEXT_ATOMIC(atomic_add, atomic_fetch_add, atomic_add)
OXSHMEM_DEFINE_CONTEXT_ATOMIC(atomic_and, atomic_fetch_and, atomic_and)
OXSHMEM_DEFINE_CONTEXT_ATOMIC(atomic_or, atomic_fetch_or, atomic_or)
OXSHMEM_DEFINE_CONTEXT_ATOMIC(atomic_xor, atomic_fetch_xor, atomic_xor)
#undef OXSHMEM_DEFINE_CONTEXT_ATOMIC

template <class T> OXSHMEM_DEVICE void atomic_inc(const Context &context, T *target, int pe) {
    atomic_add(context, target, T{1}, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_inc(const Context &context, T *target, int pe) {
    return atomic_fetch_add(context, target, T{1}, pe);
}

} // namespace oxshmem
