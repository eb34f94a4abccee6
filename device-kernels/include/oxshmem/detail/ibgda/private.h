// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Doorbells, and what posting to a QP of a private context has of its own (see ../context.h).
#pragma once

#include "complete.h"

namespace oxshmem::detail {

// Orders all that the caller has written, and seen of what others wrote to the queue, before the
// doorbell that it rings next.
template <order O> OXSHMEM_DEVICE void doorbell_fence() {
    if (port::state().queues_in_device_memory != 0) {
        port::fence<O, reach::device>();
    } else {
        port::fence<O, reach::system>();
    }
}

// Rings for all blocks before `end`. By one lane, which holds the baton, or the QP of a private
// context. O: release where its group wrote them, acq_rel where it has seen stamps of others.
//
// The first fence orders the blocks before all that follows. With a doorbell record, a second one
// orders the record before the doorbell. Without, the doorbell is what the card goes by, so the
// first fence is all there is; and a doorbell must never arrive after a younger one of its QP,
// which would take the QP back. It does not: the baton passes by the gate with release order, after
// the doorbell, and doorbells of one thread are stores to one address.
template <order O, bool Private = false> OXSHMEM_DEVICE void ring_for(Qp &qp, uint64_t end) {
    const uint64_t dbr = qp.dbr, doorbell = qp.doorbell;
    const uint32_t qpn = qp.qpn;
    // A late doorbell has the HCA read a newer record, so what the record covers is where the HCA
    // sees it.
    doorbell_fence<O>();
    if constexpr (Private) {
        port::write(&qp.rung, end);
    } else {
        port::store<order::relaxed, reach::device>(&qp.rung, end);
    }
    if (dbr != 0) {
        port::store<order::relaxed, reach::device>(as<uint32_t>(dbr), be(low(end) & 0xffff));
        doorbell_fence<order::release>();
    }
    const uint64_t first_word = be(low(end) << 8 & 0xffff00);
    const uint64_t second_word = be(qpn << 8);
    // Before it rings, so that no completion has an earlier time.
    profile_doorbell(qpn, qp.pe, end);
    port::mmio_store(as<uint64_t>(doorbell), second_word << 32 | first_word);
}

OXSHMEM_DEVICE void count_doorbell(Qp &qp) {
    port::add_to<order::relaxed, reach::device>(&qp.doorbells, uint64_t{1});
}

// Rings for the blocks before `end`, by a lane that holds the QP of a private context.
OXSHMEM_LAZY OXSHMEM_DEVICE void ring_alone(Qp &qp, uint64_t end) {
    ring_for<order::release, true>(qp, end);
    count_doorbell(qp);
}

// The same, if a batch has left any of them. `rung`: Qp::rung, which the caller has read.
OXSHMEM_LAZY OXSHMEM_DEVICE void ring_pending(Qp &qp, uint64_t rung, uint64_t end) {
    if (rung != end) {
        ring_alone(qp, end);
    }
}

// In Qp::holder: lanes of a warp or of a block that may post side by side take turns; or a poster
// that has the QP for itself says so where that is checked.
constexpr uint32_t kTakesTurns = 1, kForItself = 2;

// Whether no other lane may post until this group has.
OXSHMEM_DEVICE bool has_for_itself(ContextQp queue, const Group &group) {
    return (queue.how & abi::kContextAlone) != 0 || ((queue.how & abi::kContextWarp) != 0 && group.mask == port::kWholeWarp);
}

// Begins a post of a group, by its leader. False: the deadline passed (recorded).
OXSHMEM_DEVICE constexpr bool hold(uint32_t, Qp &, const Group &) {
    return true;
}
OXSHMEM_LAZY OXSHMEM_DEVICE bool hold(ContextQp queue, Qp &qp, const Group &group) {
    if (!is_private(queue)) {
        return true;
    }
    if (!has_for_itself(queue, group)) {
        return wait<OnAbort::keep_waiting>(Op::queue_space, qp.pe, as<void>(qp.wq), [&] {
            return port::exchange<order::acquire, reach::device>(&qp.holder, kTakesTurns) == 0;
        });
    }
    if constexpr (port::kChecksContexts) {
        if (port::exchange<order::relaxed, reach::device>(&qp.holder, kForItself) != 0) {
            abi::ErrorRecord error;
            describe(error, ErrorCode::context_in_use, Op::none, qp.pe, 0, 0);
            error.qpn = qp.qpn;
            record(error);
        }
        // Whatever else posts to this QP at a time does so now.
        port::pause();
    }
    return true;
}

// Ends what hold began.
OXSHMEM_DEVICE void let_go(uint32_t, Qp &, const Group &) {}
OXSHMEM_DEVICE void let_go(ContextQp queue, Qp &qp, const Group &group) {
    if (is_private(queue) && (port::kChecksContexts || !has_for_itself(queue, group))) {
        port::store<order::release, reach::device>(&qp.holder, 0u);
    }
}

// Says that a QP of a private context was posted to, by the leader of a group that holds it. Others
// may change the bits of other members meanwhile.
OXSHMEM_DEVICE void mark_used(const Qp &qp) {
    uint64_t *const word = as<uint64_t>(qp.used_word);
    const uint64_t mask = qp.used_mask;
    if ((port::load<order::relaxed, reach::device>(word) & mask) == 0) {
        port::fetch_or<order::relaxed, reach::device>(word, mask);
    }
}

// The word with that bit, as a lane reads it that has the context for itself.
OXSHMEM_DEVICE uint64_t used_alone(const Qp &qp) {
    return port::read(as<uint64_t>(qp.used_word));
}

// Submits the blocks before `end`, which were written, by the leader of a group that has the QP for
// itself: rings for them and for those of a batch, or leaves them to a flush. `used`: used_alone,
// read before, so that nothing waits for it here.
OXSHMEM_LAZY OXSHMEM_DEVICE void submit_alone(ContextQp queue, Qp &qp, uint64_t end, uint64_t used) {
    if ((used & qp.used_mask) == 0) {
        port::write(as<uint64_t>(qp.used_word), used | qp.used_mask);
    }
    if (!is_batched(queue)) {
        ring_alone(qp, end);
    }
    port::write(&qp.gate, end << abi::kGateReservedShift);
}

// The same for any group. Every lane of it calls.
OXSHMEM_DEVICE void submit_private(uint32_t, Qp &, const Group &, uint64_t) {}
OXSHMEM_LAZY OXSHMEM_DEVICE void submit_private(ContextQp queue, Qp &qp, const Group &group, uint64_t end) {
    if (group.leads()) {
        if (has_for_itself(queue, group)) {
            submit_alone(queue, qp, end, used_alone(qp));
        } else {
            mark_used(qp);
            if (!is_batched(queue)) {
                ring_alone(qp, end);
            }
            port::store<order::relaxed, reach::device>(&qp.gate, end << abi::kGateReservedShift);
        }
        let_go(queue, qp, group);
    }
    if (group.size > 1) {
        // No lane posts again before the leader is through.
        port::sync_warp(group.mask);
    }
}

} // namespace oxshmem::detail
