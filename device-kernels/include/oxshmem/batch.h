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

OXSHMEM_LAZY OXSHMEM_NOINLINE void flush_beside(ContextQp queue) {
    flush_queue(queue);
}

} // namespace detail

// Puts of the calling thread to one PE of a context's team. They leave at flush, when the batch
// ends, when the queue is full, and at a flush of the context. Adjacent puts become one: values in
// one work request of up to 220 bytes, arrays of the heap in one of any length. That takes a
// context of Sharing::thread; in a context that other lanes use as well, puts share doorbells
// alone. On a context of Sharing::device, on the default context, and to a PE that is not reached
// by IBGDA, each put is as without a batch.
//
// A batch keeps what the thread has posted in registers. As long as it lives, the thread posts to
// that PE, and orders what it posts there, by the batch alone, and it ends the batch before it
// waits for the context. The `cpu` device reports a batch whose context was used otherwise.
class Batch {
public:
    OXSHMEM_DEVICE Batch(const Context &context, int pe) : member_{-1, {nullptr, 0}} {
        if (detail::find(batched(context), pe, detail::Op::put, detail::Use::data, member_)) {
            alone_ = detail::posts_alone(member_.queue) && detail::posts_to(member_.pe) && !detail::is_direct(member_.pe);
        }
        look();
    }
    OXSHMEM_DEVICE ~Batch() { flush(); }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;

    // Puts like oxshmem::p.
    template <class T> OXSHMEM_DEVICE void p(T *dst, detail::given<T> value) {
        static_assert(detail::scalar<T>);
        if (alone_ && detail::holds_word(dst) && detail::is_checked_word(dst) && put_value<T>(detail::offset_of(dst), value)) {
            return;
        }
        beside([&] { detail::p_beside<T>(member_.queue, dst, value, member_.pe); });
    }

    // Puts like oxshmem::put_nbi by one thread.
    template <class T> OXSHMEM_DEVICE void put_nbi(T *dst, const T *src, size_t n) {
        putmem_nbi(dst, src, detail::bytes_of<T>(n));
    }

    // Puts like oxshmem::putmem_nbi by one thread.
    OXSHMEM_DEVICE void putmem_nbi(void *dst, const void *src, size_t bytes) {
        if (alone_ && detail::is_one_transfer(dst, src, bytes) &&
            put_array(detail::offset_of(dst), detail::offset_of(src), static_cast<uint32_t>(bytes))) {
            return;
        }
        beside([&] { detail::put_beside(member_.queue, dst, src, bytes, member_.pe); });
    }

    // Sends what was put. It waits for nothing.
    OXSHMEM_DEVICE void flush() {
        if (alone_ && room_ != 0) {
            detail::ring_pending(qp(), rung_, reserved_);
            rung_ = reserved_, to_ = kNowhere;
        } else if (posts()) {
            beside([&] { detail::flush_beside(member_.queue); });
        }
    }

    // Orders what was put before the call before what the batch puts after it.
    OXSHMEM_DEVICE void fence() {
        detail::release_stores<port::order::release>();
        if (posts()) {
            detail::fence_queue(*member_.queue.qp);
            room_ = 0;
        }
    }

private:
    enum class Last : uint32_t { none, values, array };
    static constexpr uint64_t kNowhere = ~uint64_t{0}; // no offset in a heap

    detail::Member member_;
    bool alone_ = false; // the thread posts by IBGDA, and no other lane uses the context
    uint32_t card_ = 0;  // that posts
    uint32_t mask_ = 0;  // of the queue: its depth, less 1
    uint32_t qpn_ = 0;
    uint64_t wq_ = 0;                   // the queue
    uint64_t reserved_ = 0;             // blocks that were posted,
    uint64_t room_ = 0;                 // and how many may be without another look; see detail::Account,
    uint64_t fetches_ = 0;              // what else is in the gate,
    uint64_t rung_ = 0;                 // and which of these blocks the batch has rung for
    Last last_ = Last::none;            // what the newest request puts, if it can grow,
    uint32_t bytes_ = 0;                // how much,
    uint64_t to_ = kNowhere, from_ = 0; // and where that ends, as offsets in the heap

    // Whether there is a queue pair that may hold what was not rung for.
    OXSHMEM_DEVICE bool posts() const {
        return member_.pe >= 0 && detail::is_private(member_.queue) && member_.queue.qp != nullptr;
    }

    OXSHMEM_DEVICE detail::Qp &qp() const { return *member_.queue.qp; }

    // Begins, or begins again after a call that may have posted or waited. All that it sets need
    // not stay in registers during such a call.
    OXSHMEM_DEVICE void look() {
        last_ = Last::none, bytes_ = 0, to_ = kNowhere, from_ = 0;
        if (alone_) {
            const detail::Account account = detail::account_of(qp());
            card_ = detail::card_of(member_.queue, member_.pe);
            wq_ = qp().wq, mask_ = (1u << qp().depth_log2) - 1, qpn_ = qp().qpn;
            reserved_ = account.reserved, room_ = account.room, fetches_ = account.fetches;
            rung_ = port::read(&qp().rung);
            detail::used_alone(qp()).mark();
        }
    }

    // Acts by the functions that any thread uses, which may wait, and fail.
    template <class Act> OXSHMEM_DEVICE void beside(Act act) {
        if (member_.pe >= 0) {
            act();
        }
        look();
    }

    // Whether there is room for a request of one block.
    OXSHMEM_DEVICE bool has_room() const {
        if constexpr (port::kChecksContexts) {
            const detail::Account account = detail::account_of(qp());
            const detail::UsedAlone used = detail::used_alone(qp());
            const bool waited = (used.word & used.mask) == 0;
            if (room_ != 0 && (account.reserved != reserved_ || account.room != room_ || waited)) {
                detail::report_in_use(qp());
            }
        }
        return reserved_ < room_;
    }

    // Whether the newest request can have `bytes` more, where it ends. What was rung for, by the
    // batch or by a flush of the context, is the card's.
    OXSHMEM_DEVICE bool grows(Last kind, uint32_t bytes) const {
        return last_ == kind && reserved_ <= room_ && port::read(&qp().rung) != reserved_ &&
               uint64_t{bytes_} + bytes <= detail::left_in_chunk(to_ - bytes_);
    }

    OXSHMEM_DEVICE detail::Slot slot(uint64_t index) const { return {wq_, index, mask_, qpn_, 0}; }

    // Notes a request that ends before block `end` and can grow.
    OXSHMEM_DEVICE void note(Last kind, uint64_t end, uint32_t bytes, uint64_t to, uint64_t from) {
        last_ = kind, reserved_ = end, bytes_ = bytes, to_ = to, from_ = from;
        port::write(&qp().gate, end << abi::kGateReservedShift | fetches_);
    }

    // Begins a new request, of one block.
    OXSHMEM_DEVICE detail::Slot begin() const {
        detail::profile_request(qpn_, member_.pe, reserved_ + 1);
        return slot(reserved_);
    }

    // Adds a value to the newest request, which ends where it goes. False: it does not grow so, and
    // nothing was done.
    template <class T> OXSHMEM_DEVICE bool add_value(uint64_t to, T value) {
        const uint32_t grown = bytes_ + sizeof(T);
        if (!grows(Last::values, sizeof(T)) || grown > detail::kInlineMost || bytes_ % sizeof(T) != 0) {
            return false;
        }
        const uint64_t first = reserved_ - detail::inline_blocks(bytes_), end = first + detail::inline_blocks(grown);
        if (end > room_) {
            return false;
        }
        const detail::Slot whole = slot(first);
        whole.inline_header(remote(to - bytes_), grown, true);
        whole.inline_value(bytes_, value);
        note(Last::values, end, grown, to + sizeof(T), 0);
        return true;
    }

    // Posts a value, or adds it to the newest request. False: there is no room, and nothing was
    // done.
    template <class T> OXSHMEM_DEVICE bool put_value(uint64_t to, T value) {
        if (__builtin_expect(to == to_, 0) && add_value(to, value)) {
            return true;
        }
        if (!has_room()) {
            return false;
        }
        begin().inline_word(remote(to), value, true);
        note(Last::values, reserved_ + 1, sizeof(T), to + sizeof(T), 0);
        return true;
    }

    // The same two for an array.
    OXSHMEM_DEVICE bool add_array(uint64_t to, uint64_t from, uint32_t bytes) {
        const uint64_t all = uint64_t{bytes_} + bytes;
        if (from != from_ || !grows(Last::array, bytes) || all > detail::left_in_chunk(from_ - bytes_) ||
            all > abi::kMaxMessageBytes) {
            return false;
        }
        slot(reserved_ - 1).data(2, local(from - bytes_), static_cast<uint32_t>(all));
        note(Last::array, reserved_, static_cast<uint32_t>(all), to + bytes, from + bytes);
        return true;
    }
    OXSHMEM_DEVICE bool put_array(uint64_t to, uint64_t from, uint32_t bytes) {
        if (__builtin_expect(to == to_, 0) && add_array(to, from, bytes)) {
            return true;
        }
        if (!has_room()) {
            return false;
        }
        begin().transfer(detail::Opcode::rdma_write, remote(to), local(from), bytes, true);
        note(Last::array, reserved_ + 1, bytes, to + bytes, from + bytes);
        return true;
    }

    // Memory of the heap, there and here.
    OXSHMEM_DEVICE detail::Located remote(uint64_t offset) const {
        return detail::locate_remote(heap(offset), member_.pe, card_);
    }
    OXSHMEM_DEVICE detail::Located local(uint64_t offset) const { return detail::locate_in_heap(offset, card_); }
    static OXSHMEM_DEVICE void *heap(uint64_t offset) { return detail::as<void>(port::state().heap_base + offset); }
};

} // namespace oxshmem
