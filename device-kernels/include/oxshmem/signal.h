// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Signals: 64-bit words in the heap that say "what was put before has arrived".
#pragma once

#include "ordering.h"
#include "rma.h"
#include "wait.h"

namespace oxshmem {

using detail::SignalOp;

constexpr SignalOp SIGNAL_SET = SignalOp::set;
constexpr SignalOp SIGNAL_ADD = SignalOp::add;

namespace detail {

OXSHMEM_LAZY OXSHMEM_DEVICE bool check_signal(const uint64_t *signal, SignalOp op, int pe, Op caller) {
    if (op != SignalOp::set && op != SignalOp::add) {
        raise(ErrorCode::bad_argument, caller, pe, reinterpret_cast<uint64_t>(signal), static_cast<uint64_t>(op));
        return false;
    }
    return check_symmetric(signal, sizeof(uint64_t), pe, caller) && check_aligned(signal, pe, caller);
}

// Updates a signal by store, or by an atomic without waiting for its result. `word` is where the
// signal of `pe` is mapped.
template <order O>
OXSHMEM_DEVICE void near_signal(const uint64_t *signal, uint64_t *word, uint64_t value, SignalOp op, int pe) {
    if (op != SignalOp::set) {
        watch_atomic(signal, pe, false);
        port::add_to<O, reach::system>(word, value);
    } else {
        port::store<O, reach::system>(word, value);
    }
}

// Whether a put with signal is good, by one branch. What is not good here may be so by
// OXSHMEM_ANY_OWN_MEMORY.
OXSHMEM_DEVICE bool is_good_put_signal(const void *dst, uint64_t bytes, const uint64_t *signal, SignalOp op) {
    return in_heap(dst, bytes) & in_heap(signal, sizeof(*signal)) &
           (reinterpret_cast<uint64_t>(signal) % sizeof(*signal) == 0) & (op == SignalOp::set || op == SignalOp::add);
}

// The ways of a put with signal. They are functions of their own, so that a caller's loop does not
// lose the registers that the other ways need.
template <class Scope>
OXSHMEM_OUTLINE void near_put_signal(void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value, SignalOp op,
                                     int pe) {
    if (is_good_put_signal(dst, bytes, signal, op) ||
        (check_symmetric(dst, bytes, pe, Op::put_signal) && check_signal(signal, op, pe, Op::put_signal))) {
        copy<Scope>(translate(dst, pe), src, bytes);
        Scope::sync();
        if (Scope::rank() == Scope::last()) {
            near_signal<order::release>(signal, translate(signal, pe), value, op, pe);
        }
    }
}

// A put with signal of what is short, aligned and good, which needs no function that keeps
// registers for its caller. Returns false, and has done nothing, if it is not.
template <class Scope>
OXSHMEM_OUTLINE bool put_signal_leanly(void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                       SignalOp op, int pe) {
    if (!is_good_put_signal(dst, bytes, signal, op) || !copy_short<Scope>(translate(dst, pe), src, bytes)) {
        return false;
    }
    Scope::sync();
    if (Scope::rank() == Scope::last()) {
        near_signal<order::release>(signal, translate(signal, pe), value, op, pe);
    }
    return true;
}

// Puts data through the staging ring, and posts its signal after it on the same QP.
template <class Scope, class C>
OXSHMEM_OUTLINE void staged_put_signal(C context, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                       SignalOp op, int pe) {
    staged_put<Scope>(at_once(context), dst, src, bytes, pe, use_of(op));
    Scope::sync();
    if (Scope::rank() == 0) {
        if (op == SignalOp::add) {
            watch_atomic(signal, pe, true);
        }
        network_signal(by_leader<Scope>(context), signal, value, op, pe);
    }
}

// The data by store, the addition by the card; see atomics_by_network.
template <class Scope, class C>
OXSHMEM_OUTLINE void split_put_signal(C context, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                      int pe) {
    if (check_symmetric(dst, bytes, pe, Op::put_signal) && check_signal(signal, SignalOp::add, pe, Op::put_signal)) {
        copy<Scope>(translate(dst, pe), src, bytes);
        Scope::sync();
        if (Scope::rank() == 0) {
            if (takes_any_address(pe) && !in_heap(signal, sizeof(*signal))) {
                near_signal<order::release>(signal, signal, value, SignalOp::add, pe);
                return;
            }
            // The card reaches the peer's memory by another way than the stores: they have to be
            // there before it is rung for.
            release_stores();
            watch_atomic(signal, pe, true);
            network_signal(by_leader<Scope>(context), signal, value, SignalOp::add, pe);
        }
    }
}

// A put with signal to a PE that is direct.
template <class Scope, class C>
OXSHMEM_DEVICE void direct_put_signal(C context, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                      SignalOp op, int pe) {
    if (op == SignalOp::add && atomics_by_network()) {
        split_put_signal<Scope>(context, dst, src, bytes, signal, value, pe);
        return;
    }
    if constexpr (port::kRelocatable) {
        const bool is_short = bytes <= sizeof(port::vec16) * kUnitsAtOnce<Scope> * Scope::size();
        if (is_short && put_signal_leanly<Scope>(dst, src, bytes, signal, value, op, pe)) {
            return;
        }
    }
    near_put_signal<Scope>(dst, src, bytes, signal, value, op, pe);
}

template <class Scope, class C>
OXSHMEM_OUTLINE void far_put_signal(C context, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                    SignalOp op, int pe, bool blocking) {
    const bool staged = is_staged(context, bytes, pe, use_of(op));
    if ((Scope::rank() != 0 && !staged) || path_to(pe, Op::put_signal) == Path::none ||
        !check_symmetric(dst, bytes, pe, Op::put_signal) || !check_signal(signal, op, pe, Op::put_signal)) {
        return;
    }
    if (staged) {
        staged_put_signal<Scope>(context, dst, src, bytes, signal, value, op, pe);
        return;
    }
    if (op == SignalOp::add) {
        watch_atomic(signal, pe, true);
    }
    const C mine = at_once(by_leader<Scope>(context));
    const uint64_t end = network_put_signal(mine, dst, src, bytes, signal, value, op, pe);
    if (blocking && end != 0) {
        network_wait(mine, end, pe, Op::put_signal);
    }
}

template <class Scope, class C>
OXSHMEM_DEVICE void put_signal_by(C context, void *dst, const void *src, uint64_t bytes, uint64_t *signal, uint64_t value,
                                  SignalOp op, int pe, bool blocking) {
    static_assert(!kIsGrid<Scope>, "no block knows that all data of the grid has been put: put, let the blocks meet, signal");
    const Profiled profiled(Op::put_signal, pe, bytes, Scope::rank() == 0);
    if (is_in_run(pe) || is_direct(pe)) {
        direct_put_signal<Scope>(context, dst, src, bytes, signal, value, op, pe);
    } else {
        far_put_signal<Scope>(context, dst, src, bytes, signal, value, op, pe, blocking);
    }
}

} // namespace detail

// Copies `bytes` bytes to `dst` at `pe` and then updates `signal` there: a thread that sees the
// signal sees the data.
template <class Scope>
OXSHMEM_DEVICE void putmem_signal_nbi(Scope, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value,
                                      SignalOp op, int pe) {
    detail::put_signal_by<Scope>(detail::DefaultContext{}, dst, src, bytes, signal, value, op, pe, false);
}

template <class Scope>
OXSHMEM_DEVICE void putmem_signal(Scope, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value,
                                  SignalOp op, int pe) {
    detail::put_signal_by<Scope>(detail::DefaultContext{}, dst, src, bytes, signal, value, op, pe, true);
    Scope::sync();
}

template <class Scope, class T>
OXSHMEM_DEVICE void put_signal_nbi(Scope scope, T *dst, const T *src, size_t n, uint64_t *signal, uint64_t value, SignalOp op,
                                   int pe) {
    putmem_signal_nbi(scope, dst, src, detail::bytes_of<T>(n), signal, value, op, pe);
}

template <class Scope, class T>
OXSHMEM_DEVICE void put_signal(Scope scope, T *dst, const T *src, size_t n, uint64_t *signal, uint64_t value, SignalOp op,
                               int pe) {
    putmem_signal(scope, dst, src, detail::bytes_of<T>(n), signal, value, op, pe);
}

namespace detail {

// signal_op where the word cannot, or must not, be updated in place: over the network, or not at
// all.
template <class C> OXSHMEM_OUTLINE void far_signal(C context, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    if (path_to(pe, Op::signal) != Path::none && check_signal(signal, op, pe, Op::signal)) {
        if (takes_any_address(pe) && !in_heap(signal, sizeof(*signal))) {
            near_signal<order::relaxed>(signal, signal, value, op, pe);
            return;
        }
        if (op == SignalOp::add) {
            watch_atomic(signal, pe, true);
        }
        network_signal(context, signal, value, op, pe);
    }
}

template <class C> OXSHMEM_DEVICE void signal_by(C context, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    const Profiled profiled(Op::signal, pe, sizeof(*signal));
    uint64_t *const word = translate(signal, pe);
    // An aligned word that begins in the heap ends there. The tests are cheaper together than a
    // branch after each.
    const bool good = is_direct(pe) & (offset_of(signal) < port::state().heap_bytes) &
                      (reinterpret_cast<uint64_t>(signal) % sizeof(*signal) == 0);
    if (good && (op == SignalOp::set || (op == SignalOp::add && !atomics_by_network()))) {
        near_signal<order::relaxed>(signal, word, value, op, pe);
    } else {
        far_signal(context, signal, value, op, pe);
    }
}

} // namespace detail

// Updates `signal` at `pe`. It may overtake the caller's earlier operations unless a fence (or
// quiet) lies between; where the signal says that data is there, put_signal is the faster way.
OXSHMEM_LAZY OXSHMEM_DEVICE void signal_op(uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    detail::signal_by(detail::DefaultContext{}, signal, value, op, pe);
}

// Returns the value of this PE's own signal; what was put before the signal that it shows is
// visible.
OXSHMEM_DEVICE uint64_t signal_fetch(const uint64_t *signal) {
    const uint64_t value = port::load<port::order::acquire, port::reach::system>(signal);
    port::pause(); // programs poll it, as they do tests
    return value;
}

// Waits until this PE's own signal compares true with `value` and returns what satisfied it (or the
// value seen last if the wait ended with an error, which is recorded; 0 if the call was refused).
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t signal_wait_until(const uint64_t *signal, Compare cmp, uint64_t value) {
    const detail::Profiled profiled(detail::Op::signal_wait, port::state().my_pe);
    uint64_t seen = 0;
    if (!detail::check_variables(signal, 1, cmp, detail::Op::signal_wait)) {
        return seen;
    }
    const auto late = [&] { return detail::unmet(signal, cmp, value); };
    detail::wait(detail::Op::signal_wait, late, signal, [&] {
        seen = port::load<port::order::relaxed, port::reach::system>(signal);
        return detail::compare(seen, cmp, value);
    });
    port::acquire<port::reach::system>(signal);
    return seen;
}

} // namespace oxshmem
