// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// flush, quiet and fence of a context: for the operations on its QPs alone. What is posted there is
// in operations.h.
#pragma once

#include "operations.h"

namespace oxshmem::detail {

OXSHMEM_DEVICE Qp &qp_of_member(const abi::Context &context, uint32_t member) {
    return *as<Qp>(context.qps + static_cast<uint64_t>(member) * context.qp_bytes);
}

// Rings for what batches have left on a QP of a private context; other contexts leave nothing. The
// calling lane has the QP for itself, or takes turns with other lanes.
OXSHMEM_LAZY OXSHMEM_DEVICE void flush_queue(ContextQp queue) {
    Qp &qp = *queue.qp;
    const Group alone = make_group(1u << port::lane_id());
    if (!is_private(queue) || !hold(queue, qp, alone)) {
        return;
    }
    // Requested together with the account.
    const uint64_t rung = port::read(&qp.rung);
    const Account account = has_for_itself(queue, alone) ? account_of(qp) : Account{0, 0, 0};
    if (account.holds()) {
        ring_pending(qp, rung, account.reserved);
    } else {
        const uint64_t gate = port::load<order::relaxed, reach::device>(&qp.gate);
        const uint64_t known = known_completed(qp);
        if (known < abi::kBroken) {
            ring_pending(qp, rung, reserved_in(gate, known));
        }
    }
    let_go(queue, qp, alone);
}

// Has the next request on a QP of a context carry a fence, if one is needed.
OXSHMEM_DEVICE void fence_queue(Qp &qp) {
    fence_posted(qp);
    port::store<order::relaxed, reach::device>(&qp.room, uint64_t{0});
}

// Calls `act(qp, bit)` for the QPs of a context that were posted to since its last quiet; lanes
// share them as in for_bits.
template <class Act> OXSHMEM_DEVICE void for_members(const abi::Context &context, uint32_t rank, uint32_t size, Act act) {
    if (!by_proxy() && context.qps != 0) {
        for_bits(as<uint64_t>(context.used), static_cast<uint32_t>(context.n_pes), rank, size,
                 [&](uint32_t member) { act(qp_of_member(context, member)); });
    }
}

OXSHMEM_LAZY OXSHMEM_OUTLINE void context_flush(const abi::Context &context) {
    for_members(context, 0, 1, [&](Qp &qp) { flush_queue({&qp, context.how}); });
}

// Waits for what was posted on a QP of a context. `alone`: the caller has it for itself.
OXSHMEM_LAZY OXSHMEM_DEVICE Outcome complete_member(Qp &qp, bool alone) {
    const Account account = alone ? account_of(qp) : Account{0, 0, 0};
    return account.holds() ? wait_alone(qp, account, Op::quiet) : complete_posted(qp, Op::quiet);
}

// Where a lane that has a context for itself has posted to since its last quiet.
struct PostedTo {
    bool several;   // to more than one member, or this function does not find out
    Qp *qp;         // to this one, or null: to none
    uint64_t *used; // Context::used
};

OXSHMEM_LAZY OXSHMEM_DEVICE PostedTo posted_to(const abi::Context &context) {
    if ((context.how & abi::kContextAlone) == 0 || context.qps == 0 || context.n_pes > 64 || by_proxy()) {
        return {true, nullptr, nullptr};
    }
    uint64_t *const word = as<uint64_t>(context.used);
    const uint64_t used = port::read(word);
    return {(used & (used - 1)) != 0, used != 0 ? &qp_of_member(context, port::lowest_bit(used)) : nullptr, word};
}

// context_flush where all that was posted since the last quiet is to one member. It stands where
// the call is, as p_for_itself does. False: nothing was done.
OXSHMEM_LAZY OXSHMEM_DEVICE bool flush_one(const abi::Context &context) {
    const PostedTo to = posted_to(context);
    if (to.several) {
        return false;
    }
    if (to.qp == nullptr) {
        return true;
    }
    check_in_use({to.qp, context.how}, *to.qp);
    const uint64_t rung = port::read(&to.qp->rung);
    const Account account = account_of(*to.qp);
    if (account.holds()) {
        ring_pending(*to.qp, rung, account.reserved);
    }
    return account.holds();
}

// context_quiet where that was rung for, and ends with a request of one block that completes soon.
OXSHMEM_LAZY OXSHMEM_DEVICE bool quiet_one(const abi::Context &context) {
    const PostedTo to = posted_to(context);
    if (to.several || port::state().flush_on_quiet != 0) {
        return false;
    }
    if (to.qp == nullptr) {
        return true;
    }
    Qp &qp = *to.qp;
    check_in_use({&qp, context.how}, qp);
    const uint64_t rung = port::read(&qp.rung), cqe = qp.cqe;
    const Account account = account_of(qp);
    const uint64_t end = account.reserved;
    if (!account.holds() || account.fetches != 0 || rung != end) {
        return false;
    }
    // What follows the completion is read before.
    const uint64_t room = end + (uint64_t{1} << qp.depth_log2);
    const uint32_t last = tail_of_last(end);
    OXSHMEM_NO_UNROLL
    for (uint32_t look = 0; look < port::kLooks; ++look) {
        const uint32_t tail = port::load<order::relaxed, reach::system>(as<uint32_t>(cqe + 60));
        if (((tail ^ last) & tail_bits()) == 0) {
            note_completed(qp, end, room);
            port::write(to.used, uint64_t{0});
            return true;
        }
        port::pause();
    }
    return false;
}

// context_quiet by one lane that has the context for itself: without a trip to memory except for
// the CQEs. The context has at most 64 members, and quiet reads nothing through its QPs.
OXSHMEM_LAZY OXSHMEM_DEVICE void quiet_alone(const abi::Context &context) {
    uint64_t *const word = as<uint64_t>(context.used);
    const uint64_t used = port::read(word);
    const auto qp_at = [&](uint64_t found) -> Qp & { return qp_of_member(context, port::lowest_bit(found)); };
    for (uint64_t found = used; found != 0; found &= found - 1) {
        flush_queue({&qp_at(found), context.how});
    }
    uint64_t incomplete = 0;
    for (uint64_t found = used; found != 0; found &= found - 1) {
        const bool complete = complete_member(qp_at(found), true) == Outcome::complete;
        incomplete |= complete ? 0 : found & (0 - found);
    }
    if (used != incomplete) {
        port::write(word, incomplete);
    }
}

// As network_quiet, for what was posted through a context. kContextAlone in its `how`: all threads
// that use the context call together.
OXSHMEM_LAZY OXSHMEM_OUTLINE void context_quiet(const abi::Context &context, uint32_t rank, uint32_t size) {
    if (by_proxy()) {
        if (rank == 0) {
            ibrc_quiet();
        }
        return;
    }
    // Where other lanes may post or wait meanwhile, they need the bit of the QP.
    const bool alone = (context.how & abi::kContextAlone) != 0;
    if (alone && size == 1 && context.qps != 0 && context.n_pes <= 64 && port::state().flush_on_quiet == 0) {
        quiet_alone(context);
        return;
    }
    for_members(context, rank, size, [&](Qp &qp) {
        flush_queue({&qp, context.how});
        if (port::state().flush_on_quiet != 0) {
            post_flush(ContextQp{&qp, context.how & ~abi::kContextBatched}, qp);
        }
    });
    for_members(context, rank, size, [&](Qp &qp) {
        if (complete_member(qp, alone) == Outcome::complete && alone) {
            port::fetch_and<order::relaxed, reach::device>(as<uint64_t>(qp.used_word), ~qp.used_mask);
        }
    });
}

// As network_fence, for what was posted through a context.
OXSHMEM_LAZY OXSHMEM_OUTLINE void context_fence(const abi::Context &context) {
    if (by_proxy()) {
        network_fence();
        return;
    }
    for_members(context, 0, 1, [&](Qp &qp) {
        if (is_direct(qp.pe)) {
            // Atomics of a card on memory that stores reach.
            flush_queue({&qp, context.how});
            complete_posted(qp, Op::fence);
        } else {
            fence_queue(qp);
        }
    });
}

} // namespace oxshmem::detail
