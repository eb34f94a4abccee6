// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The landing slots of a QP: where the card puts results of gets and fetching atomics.
#pragma once

#include "complete.h"

namespace oxshmem::detail {

// A landing slot of a QP.
OXSHMEM_LAZY OXSHMEM_DEVICE bool take_landing(Qp &qp, LandingSlot &landing) {
    return take_landing_slot(landing, &qp.landing_head, qp.laps, qp.landing_log2, qp.pe,
                             [&] { return port::load<order::relaxed, reach::system>(as<uint32_t>(qp.cqe + 60)); });
}

OXSHMEM_DEVICE uint64_t landing_address(const Qp &qp, const LandingSlot &landing) {
    return qp.landing + landing.slot * uint64_t{abi::kLandingBytes};
}

OXSHMEM_DEVICE Located locate_landing(const Qp &qp, const LandingSlot &landing) {
    return {qp.landing_key, landing_address(qp, landing), abi::kLandingBytes};
}

// Waits for the result that a posted request (`end`, or 0 if none was posted) leaves in a landing
// slot. False: there is none. The slot is free again then, unless the HCA may still write to it.
// `live`: variables of the caller that are in local memory meanwhile.
template <class... T> OXSHMEM_DEVICE bool await_landing(Qp &qp, LandingSlot &landing, uint64_t &end, Op op, T &...live) {
    const Outcome outcome =
        end == 0 ? Outcome::failed
                 : keeping([&] { return wait_completed(qp, known_completed(qp), end, op); }, landing, end, live...);
    if (outcome == Outcome::failed) {
        landing.release();
    }
    return outcome == Outcome::complete;
}

// Where results go that no lane reads.
OXSHMEM_DEVICE Located discard(const Qp &qp) {
    return {qp.landing_key, qp.landing + (abi::kLandingBytes << qp.landing_log2), abi::kLandingBytes};
}

} // namespace oxshmem::detail
