// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A batch: puts of one thread to one PE that share a doorbell. Where the queue pair stands is in
// the thread's own memory meanwhile.
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
template <class T> OXSHMEM_OUTLINE void p_beside(ContextQp queue, T *dst, T value, int pe) {
    p_by(at_once(queue), dst, value, pe);
}
OXSHMEM_OUTLINE void put_beside(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    put_by<thread_scope>(at_once(queue), dst, src, bytes, pe, false);
}
OXSHMEM_OUTLINE bool hold_by_lane(ContextQp queue) {
    return hold(queue, *queue.qp, make_group(1u << port::lane_id()));
}

} // namespace detail

// Puts of the calling thread to one PE of a context's team. They leave at flush, when the batch
// ends, or when the queue is full. Adjacent puts become one: values in one work request of up to
// 220 bytes, arrays of the heap in one of any length.
//
// While a batch lives, its thread alone uses the context for this PE, and by this batch alone:
// quiet(context) and fence(context) come after its end. Where other lanes of a warp or of a block
// use the same context, they wait until the batch has ended. On a context of Sharing::device, on
// the default context, and to a PE that is not reached by IBGDA, each put is as without a batch.
class Batch {
public:
    OXSHMEM_DEVICE Batch(const Context &context, int pe) : member_{-1, {nullptr, 0}} {
        if (detail::find(context, pe, detail::Op::put, detail::Use::data, member_)) {
            posts_ = detail::is_private(member_.queue) && detail::posts_to(member_.pe) && !detail::is_direct(member_.pe);
        }
    }
    OXSHMEM_DEVICE ~Batch() {
        flush();
        leave();
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;

    // Puts like oxshmem::p.
    template <class T> OXSHMEM_DEVICE void p(T *dst, detail::given<T> value) {
        static_assert(detail::scalar<T>);
        if (!posts_ || !detail::holds_word(dst) || !detail::is_checked_word(dst)) {
            leave();
            if (member_.pe >= 0) {
                detail::p_beside<T>(member_.queue, dst, value, member_.pe);
            }
        } else if (open_ || enter()) {
            put_value<T>(dst, value);
        }
    }

    // Puts like oxshmem::put_nbi by one thread.
    template <class T> OXSHMEM_DEVICE void put_nbi(T *dst, const T *src, size_t n) {
        putmem_nbi(dst, src, detail::bytes_of<T>(n));
    }

    // Puts like oxshmem::putmem_nbi by one thread.
    OXSHMEM_DEVICE void putmem_nbi(void *dst, const void *src, size_t bytes) {
        if (!posts_ || !detail::is_one_transfer(dst, src, bytes, member_.pe)) {
            leave();
            if (member_.pe >= 0) {
                detail::put_beside(member_.queue, dst, src, bytes, member_.pe);
            }
        } else if (open_ || enter()) {
            put_array(dst, src, static_cast<uint32_t>(bytes));
        }
    }

    // Sends what was put. It waits for nothing.
    OXSHMEM_DEVICE void flush() {
        if (open_ && rung_ != next_) {
            detail::ring_alone(qp(), next_);
            rung_ = next_;
            last_ = Last::none;
        }
    }

    // Orders what was put before the call before what the batch puts after it.
    OXSHMEM_DEVICE void fence() {
        detail::release_stores();
        ordered_ = open_;
        last_ = Last::none;
    }

private:
    enum class Last : uint32_t { none, values, array };

    detail::Member member_;
    bool posts_ = false;                       // otherwise each put is as without a batch
    bool open_ = false;                        // this thread holds the queue pair, and what follows says where it stands
    bool ordered_ = false;                     // the next request carries a fence
    bool carries_fence_ = false;               // the newest does
    Last last_ = Last::none;                   // what the newest request puts, if it can grow,
    uint32_t bytes_ = 0;                       // how much,
    uint64_t to_ = 0, from_ = 0;               // and where that begins, as offsets in the heap
    uint64_t at_ = 0;                          // its first block
    uint64_t next_ = 0, rung_ = 0, limit_ = 0; // blocks posted, rung for, and that may be posted

    OXSHMEM_DEVICE detail::Qp &qp() const { return *member_.queue.qp; }

    OXSHMEM_DEVICE detail::Group alone() const { return detail::make_group(1u << port::lane_id()); }

    // Begins to post. False: the queue pair is broken, or held beyond the deadline.
    OXSHMEM_DEVICE bool enter() {
        if (!detail::hold_by_lane(member_.queue)) {
            posts_ = false;
            return false;
        }
        const port::pair64 known = port::load_pair<port::order::relaxed, port::reach::device>(&qp().completed);
        const uint64_t gate = port::load<port::order::relaxed, port::reach::device>(&qp().gate);
        if (known.first >= abi::kBroken) {
            detail::fail(qp(), 0, detail::Op::put);
            detail::let_go(member_.queue, qp(), alone());
            posts_ = false;
            return false;
        }
        const detail::UsedBit used = detail::used_bit(member_.queue, qp());
        port::fetch_or<port::order::relaxed, port::reach::device>(used.word, used.mask);
        next_ = detail::reserved_in(gate, known.first);
        rung_ = port::load<port::order::relaxed, port::reach::device>(&qp().rung);
        limit_ = known.first + (1ull << qp().depth_log2);
        ordered_ = known.second != 0 && detail::has_to_order(qp(), known.second, next_);
        last_ = Last::none;
        open_ = true;
        return true;
    }

    // Lets others, or operations outside the batch, post; what was not rung for is left to a flush.
    OXSHMEM_DEVICE void leave() {
        if (open_) {
            port::store<port::order::relaxed, port::reach::device>(&qp().gate, next_ << abi::kGateReservedShift);
            detail::let_go(member_.queue, qp(), alone());
            open_ = false;
        }
    }

    // Waits for room, after ringing for what is there. False: the queue pair is broken, and the
    // batch is over.
    OXSHMEM_DEVICE bool make_room(uint32_t blocks) {
        flush();
        const uint64_t depth = 1ull << qp().depth_log2;
        if (!detail::wait_space(qp(), next_ + blocks - depth)) {
            leave();
            posts_ = false;
            return false;
        }
        limit_ = detail::known_completed(qp()) + depth;
        return true;
    }

    // The slot of a request that begins with block `index`.
    OXSHMEM_DEVICE detail::Slot slot(uint64_t index, bool ordered) const {
        const detail::Qp &q = qp();
        return {q.wq, index, (1u << q.depth_log2) - 1, q.qpn, ordered ? port::state().fence_order : 0};
    }

    // Takes blocks for a request. False: there are none, and the batch is over.
    OXSHMEM_DEVICE bool take(uint32_t blocks, detail::Slot &taken) {
        if (next_ + blocks > limit_ && !make_room(blocks)) {
            return false;
        }
        at_ = next_;
        taken = slot(at_, ordered_);
        carries_fence_ = ordered_;
        if (ordered_) {
            port::raise_to<port::order::relaxed, port::reach::device>(&qp().ordered_at, at_ + 1);
            ordered_ = false;
        }
        next_ += blocks;
        return true;
    }

    // Whether the newest request can have `bytes` more at `to`, which is where it ends.
    OXSHMEM_DEVICE bool continues(Last kind, uint64_t to, uint32_t bytes) const {
        return last_ == kind && to == to_ + bytes_ && bytes_ + bytes <= detail::left_in_chunk(to_);
    }

    template <class T> OXSHMEM_DEVICE void put_value(T *dst, T value) {
        const uint64_t to = detail::offset_of(dst);
        const uint32_t grown = bytes_ + sizeof(T);
        if (continues(Last::values, to, sizeof(T)) && grown <= detail::kInlineMost && bytes_ % sizeof(T) == 0 &&
            at_ + detail::inline_blocks(grown) <= limit_) {
            const detail::Slot whole = slot(at_, carries_fence_);
            whole.inline_header(remote(), grown, true);
            whole.inline_value(bytes_, value);
            next_ = at_ + detail::inline_blocks(grown);
            bytes_ = grown;
            return;
        }
        detail::Slot fresh;
        if (!take(1, fresh)) {
            return;
        }
        last_ = Last::values, to_ = to, bytes_ = sizeof(T);
        fresh.inline_word(remote(), value, true);
    }

    OXSHMEM_DEVICE void put_array(void *dst, const void *src, uint32_t bytes) {
        const uint64_t to = detail::offset_of(dst), from = detail::offset_of(src);
        const bool follows = from == from_ + bytes_ && uint64_t{bytes_} + bytes <= detail::left_in_chunk(from_) &&
                             uint64_t{bytes_} + bytes <= abi::kMaxMessageBytes;
        if (continues(Last::array, to, bytes) && follows) {
            bytes_ += bytes;
            slot(at_, false).data(2, local(), bytes_);
            return;
        }
        detail::Slot fresh;
        if (!take(1, fresh)) {
            return;
        }
        last_ = Last::array, to_ = to, from_ = from, bytes_ = bytes;
        fresh.transfer(detail::Opcode::rdma_write, remote(), local(), bytes, true);
    }

    // Where the newest request begins, there and here.
    OXSHMEM_DEVICE detail::Located remote() const {
        const uint64_t base = port::state().heap_base;
        return detail::locate_remote(detail::as<void>(base + to_), member_.pe, detail::card_of(member_.queue));
    }
    OXSHMEM_DEVICE detail::Located local() const {
        return detail::locate_local(detail::as<void>(port::state().heap_base + from_), detail::card_of(member_.queue));
    }
};

} // namespace oxshmem
