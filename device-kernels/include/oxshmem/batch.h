// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A batch: puts of one thread to one PE that share a doorbell, and of which adjacent ones become
// one.
//
//   oxshmem::Batch batch(context, pe);
//   for (uint32_t i = 0; i < n; ++i) {
//       batch.p(table + places[i], values[i]);
//   }
//   // Rings when the batch ends, or at batch.flush(). oxshmem::quiet(context) waits.
#pragma once

#ifdef OXSHMEM_DEVICE_LIBRARY
#error "oxshmem/batch.h posts by itself, which kernels leave to the device library here; use oxshmem::batched"
#endif

#include "context.h"

namespace oxshmem {

namespace detail {

// What a batch does not post itself. Functions of their own, so that a loop of puts does not lose
// their registers.
template <class T> OXSHMEM_NOINLINE void p_beside(ContextQp queue, T *dst, T value, int pe) {
    p_by(queue, dst, value, pe);
}
OXSHMEM_LAZY OXSHMEM_NOINLINE void put_beside(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    put_by<thread_scope>(queue, dst, src, bytes, pe, false);
}

} // namespace detail

// Puts of the calling thread to one PE of a context's team. They leave at flush or quiet, when the
// batch ends, or when the queue is full. Adjacent puts become one: values in one work request of up
// to 220 bytes, arrays of the heap in one of any length. That takes a context of Sharing::thread;
// in a context that other lanes use as well, puts share doorbells alone. On a context of
// Sharing::device, on the default context, and to a PE that is not reached by IBGDA, each put is as
// without a batch.
class Batch {
public:
    OXSHMEM_DEVICE Batch(const Context &context, int pe) : member_{-1, {nullptr, 0}} {
        if (detail::find(batched(context), pe, detail::Op::put, detail::Use::data, member_)) {
            alone_ = detail::posts_alone(member_.queue) && detail::posts_to(member_.pe) && !detail::is_direct(member_.pe);
        }
    }
    OXSHMEM_DEVICE ~Batch() { flush(); }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;

    // Puts like oxshmem::p.
    template <class T> OXSHMEM_DEVICE void p(T *dst, detail::given<T> value) {
        static_assert(detail::scalar<T>);
        if (alone_ && detail::holds_word(dst) && detail::is_checked_word(dst) && put_value<T>(dst, value)) {
            return;
        }
        last_ = Last::none;
        if (member_.pe >= 0) {
            detail::p_beside<T>(member_.queue, dst, value, member_.pe);
        }
    }

    // Puts like oxshmem::put_nbi by one thread.
    template <class T> OXSHMEM_DEVICE void put_nbi(T *dst, const T *src, size_t n) {
        putmem_nbi(dst, src, detail::bytes_of<T>(n));
    }

    // Puts like oxshmem::putmem_nbi by one thread.
    OXSHMEM_DEVICE void putmem_nbi(void *dst, const void *src, size_t bytes) {
        if (alone_ && detail::is_one_transfer(dst, src, bytes, member_.pe) &&
            put_array(detail::offset_of(dst), detail::offset_of(src), static_cast<uint32_t>(bytes))) {
            return;
        }
        last_ = Last::none;
        if (member_.pe >= 0) {
            detail::put_beside(member_.queue, dst, src, bytes, member_.pe);
        }
    }

    // Sends what was put. It waits for nothing.
    OXSHMEM_DEVICE void flush() {
        if (posts()) {
            detail::flush_queue(member_.queue);
            // What was rung for is the card's. A look at the queue pair would tell as well, and
            // take a trip to memory.
            last_ = Last::none;
        }
    }

    // Orders what was put before the call before what the batch puts after it.
    OXSHMEM_DEVICE void fence() {
        detail::release_stores<port::order::release>();
        if (posts()) {
            detail::fence_queue(*member_.queue.qp);
        }
    }

private:
    enum class Last : uint32_t { none, values, array };

    detail::Member member_;
    bool alone_ = false;         // the thread posts by IBGDA, and no other lane uses the context
    Last last_ = Last::none;     // what the newest request puts, if it can grow,
    uint32_t bytes_ = 0;         // how much,
    uint64_t to_ = 0, from_ = 0; // where that ends, as offsets in the heap,
    uint64_t end_ = 0;           // and the index of the next block

    // Whether there is a queue pair that may hold what was not rung for.
    OXSHMEM_DEVICE bool posts() const {
        return member_.pe >= 0 && detail::is_private(member_.queue) && member_.queue.qp != nullptr;
    }

    OXSHMEM_DEVICE detail::Qp &qp() const { return *member_.queue.qp; }

    // Whether the newest request can have `bytes` more at `to`.
    OXSHMEM_DEVICE bool grows(Last kind, const detail::Account &account, uint64_t to, uint32_t bytes) const {
        // What was rung for is the card's.
        return account.holds() && last_ == kind && account.reserved == end_ && port::read(&qp().rung) != end_ && to == to_ &&
               uint64_t{bytes_} + bytes <= detail::left_in_chunk(to_ - bytes_);
    }

    OXSHMEM_DEVICE detail::Slot slot(uint64_t index) const {
        const detail::Qp &q = qp();
        return {q.wq, index, (1u << q.depth_log2) - 1, q.qpn, 0};
    }

    // Notes a request that ends before block `end` and can grow. False: there is none.
    OXSHMEM_DEVICE bool note(Last kind, uint64_t end, uint32_t bytes, uint64_t to, uint64_t from) {
        last_ = kind, end_ = end, bytes_ = bytes, to_ = to, from_ = from;
        return end != 0;
    }

    // Posts a value, or adds it to the newest request. False: there is no room, and nothing was
    // done.
    template <class T> OXSHMEM_DEVICE bool put_value(T *dst, T value) {
        const uint64_t to = detail::offset_of(dst);
        const uint32_t grown = bytes_ + sizeof(T);
        const detail::Account account = detail::account_of(qp());
        if (grows(Last::values, account, to, sizeof(T)) && grown <= detail::kInlineMost && bytes_ % sizeof(T) == 0) {
            const uint64_t first = end_ - detail::inline_blocks(bytes_), end = first + detail::inline_blocks(grown);
            if (end > account.room) {
                return false;
            }
            const detail::Slot whole = slot(first);
            whole.inline_header(remote(to - bytes_), grown, true);
            whole.inline_value(bytes_, value);
            port::write(&qp().gate, end << abi::kGateReservedShift);
            return note(Last::values, end, grown, to + sizeof(T), 0);
        }
        const uint64_t end = detail::post_alone(member_.queue, qp(),
                                                [&](const detail::Slot &fresh) { fresh.inline_word(remote(to), value, true); });
        return note(Last::values, end, sizeof(T), to + sizeof(T), 0);
    }

    // The same for an array.
    OXSHMEM_DEVICE bool put_array(uint64_t to, uint64_t from, uint32_t bytes) {
        const uint64_t all = uint64_t{bytes_} + bytes;
        const detail::Account account = detail::account_of(qp());
        if (grows(Last::array, account, to, bytes) && from == from_ && all <= detail::left_in_chunk(from_ - bytes_) &&
            all <= abi::kMaxMessageBytes) {
            slot(end_ - 1).data(2, local(from - bytes_), static_cast<uint32_t>(all));
            return note(Last::array, end_, static_cast<uint32_t>(all), to + bytes, from + bytes);
        }
        const uint64_t end = detail::post_alone(member_.queue, qp(), [&](const detail::Slot &fresh) {
            fresh.transfer(detail::Opcode::rdma_write, remote(to), local(from), bytes, true);
        });
        return note(Last::array, end, bytes, to + bytes, from + bytes);
    }

    // Memory of the heap, there and here.
    OXSHMEM_DEVICE detail::Located remote(uint64_t offset) const {
        const uint64_t base = port::state().heap_base;
        return detail::locate_remote(detail::as<void>(base + offset), member_.pe, detail::card_of(member_.queue, member_.pe));
    }
    OXSHMEM_DEVICE detail::Located local(uint64_t offset) const {
        return detail::locate_local(detail::as<void>(port::state().heap_base + offset),
                                    detail::card_of(member_.queue, member_.pe));
    }
};

} // namespace oxshmem
