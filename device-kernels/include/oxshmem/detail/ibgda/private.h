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

// What ringing takes of a QP.
struct Bell {
    uint64_t dbr, doorbell;
    uint32_t qpn;
};

OXSHMEM_DEVICE Bell bell_of(const Qp &qp) {
    return {qp.dbr, qp.doorbell, qp.qpn};
}

// Rings for all blocks before `end`. By one lane, which holds the baton, or the QP of a private
// context. O: release where its group wrote them, acq_rel where it has seen stamps of others.
//
// `bell`: what the caller has read of the QP. The first fence orders the blocks before all that
// follows. With a doorbell record, a second one orders the record before the doorbell. Without, the
// doorbell is what the card goes by, so the first fence is all there is; and a doorbell must never
// arrive after a younger one of its QP, which would take the QP back. It does not: the baton passes
// by the gate with release order, after the doorbell (or the next group waits for that, see
// leave_alone_early), and doorbells of one thread are stores to one address.
template <order O, bool Private = false> OXSHMEM_DEVICE void ring_for(Qp &qp, const Bell &bell, uint64_t end) {
    // A late doorbell has the HCA read a newer record, so what the record covers is where the HCA
    // sees it.
    doorbell_fence<O>();
    if (bell.dbr != 0) {
        port::store<order::relaxed, reach::device>(as<uint32_t>(bell.dbr), be_index(low(end)));
        doorbell_fence<order::release>();
    }
    const uint64_t first_word = be_index_between(0, low(end), 0);
    const uint64_t second_word = be(bell.qpn << 8);
    // Before it rings, so that no completion has an earlier time.
    profile_doorbell(bell.qpn, qp.pe, end);
    port::mmio_store(as<uint64_t>(bell.doorbell), second_word << 32 | first_word);
    // The holder of the baton alone reads it, and need not wait for it before it rings.
    if constexpr (Private) {
        port::write(&qp.rung, end);
    } else {
        port::store<order::relaxed, reach::device>(&qp.rung, end);
    }
}

OXSHMEM_DEVICE void count_doorbell(Qp &qp) {
    port::add_to<order::relaxed, reach::device>(&qp.doorbells, uint64_t{1});
}

// Rings for the blocks before `end`, by a lane that holds the QP of a private context.
OXSHMEM_LAZY OXSHMEM_DEVICE void ring_alone(Qp &qp, const Bell &bell, uint64_t end) {
    ring_for<order::release, true>(qp, bell, end);
    count_doorbell(qp);
}

// The same, if a batch has left any of them. `rung`: Qp::rung, which the caller has read.
OXSHMEM_LAZY OXSHMEM_DEVICE void ring_pending(Qp &qp, uint64_t rung, uint64_t end) {
    if (rung != end) {
        ring_alone(qp, bell_of(qp), end);
    }
}

// In Qp::holder: lanes of a warp or of a block that may post side by side take turns; or a poster
// that has the QP for itself says so where that is checked.
constexpr uint32_t kTakesTurns = 1, kForItself = 2;

// Whether no other lane may post until this group has.
OXSHMEM_DEVICE bool has_for_itself(ContextQp queue, const Group &group) {
    return (queue.how & abi::kContextAlone) != 0 || ((queue.how & abi::kContextWarp) != 0 && group.mask == port::kWholeWarp);
}

// Records that a private context is used from two places at once, where that is checked.
OXSHMEM_LAZY OXSHMEM_DEVICE void report_in_use(const Qp &qp) {
    abi::ErrorRecord error;
    describe(error, ErrorCode::context_in_use, Op::none, qp.pe, 0, 0);
    error.qpn = qp.qpn;
    record(error);
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
            report_in_use(qp);
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

// Reports another user of a context that the calling lane has for itself, where that is checked.
// For what uses the QP without a post.
OXSHMEM_LAZY OXSHMEM_DEVICE void check_in_use(ContextQp queue, Qp &qp) {
    if constexpr (port::kChecksContexts) {
        const Group alone = make_group(1u << port::lane_id());
        hold(queue, qp, alone);
        let_go(queue, qp, alone);
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

// That bit and its word, as a lane reads them that has the context for itself.
struct UsedAlone {
    uint64_t *at;
    uint64_t mask, word;

    // mark_used for such a lane.
    OXSHMEM_DEVICE void mark() const {
        if ((word & mask) == 0) {
            port::write(at, word | mask);
        }
    }
};

OXSHMEM_DEVICE UsedAlone used_alone(const Qp &qp) {
    uint64_t *const at = as<uint64_t>(qp.used_word);
    return {at, qp.used_mask, port::read(at)};
}

// Submits the blocks before `end`, which were written, by the leader of a group that has the QP for
// itself: rings for them and for those of a batch, or leaves them to a flush. What it takes of the
// QP was read before, so that nothing waits for it here. `fetches`: kGateFetches, or 0.
OXSHMEM_LAZY OXSHMEM_DEVICE void submit_alone(ContextQp queue, Qp &qp, const Bell &bell, const UsedAlone &used, uint64_t end,
                                              uint64_t fetches) {
    if (!is_batched(queue)) {
        ring_alone(qp, bell, end);
    }
    used.mark();
    port::write(&qp.gate, end << abi::kGateReservedShift | fetches);
}

// The same for any group. Every lane of it calls.
OXSHMEM_DEVICE void submit_private(uint32_t, Qp &, const Group &, uint64_t) {}
OXSHMEM_LAZY OXSHMEM_DEVICE void submit_private(ContextQp queue, Qp &qp, const Group &group, uint64_t end) {
    if (group.leads()) {
        if (has_for_itself(queue, group)) {
            submit_alone(queue, qp, bell_of(qp), used_alone(qp), end, kGateFetches);
        } else {
            mark_used(qp);
            if (!is_batched(queue)) {
                ring_alone(qp, bell_of(qp), end);
            }
            port::store<order::relaxed, reach::device>(&qp.gate, end << abi::kGateReservedShift | kGateFetches);
        }
        let_go(queue, qp, group);
    }
    if (group.size > 1) {
        // No lane posts again before the leader is through.
        port::sync_warp(group.mask);
    }
}

} // namespace oxshmem::detail
