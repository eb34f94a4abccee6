// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Landing slots and broken queues: what a queue pair and the ring of the CPU proxy have in common.
#pragma once

#include "operation.h"

namespace oxshmem::detail {

// A landing slot: memory that the HCA may write to, for one result of up to kLandingBytes. Its word
// counts twice how often the slot was released, and is odd while the slot is taken.
struct LandingSlot {
    uint32_t *word;
    uint32_t slot;
    uint32_t lap; // how often it was released before

    // Gives the slot back once its result was read, or once nothing can be written to it any more.
    OXSHMEM_DEVICE void release() const { port::store<order::release, reach::device>(word, 2 * (lap + 1)); }
};

// Takes the first free one of (1 << log2) slots, from `head` on; `laps` has their words. A thread
// takes its slot before it reserves room in the queue, since the slot's previous user may itself
// still have to reserve. False: the deadline passed.
template <class Progress>
OXSHMEM_DEVICE bool take_landing_slot(LandingSlot &landing, uint64_t *head, uint64_t laps, uint32_t log2, int pe,
                                      Progress progress) {
    const uint32_t mask = (1u << log2) - 1;
    landing.slot = static_cast<uint32_t>(port::fetch_add<order::relaxed, reach::device>(head, uint64_t{1})) & mask;
    return wait<OnAbort::keep_waiting>(
        Op::landing, pe, as<void>(laps),
        [&] {
            landing.word = as<uint32_t>(laps) + landing.slot;
            const uint32_t found = port::fetch_or<order::acquire, reach::device>(landing.word, 1u);
            landing.lap = found / 2;
            if (found % 2 == 0) {
                return true;
            }
            landing.slot = (landing.slot + 1) & mask;
            return false;
        },
        progress);
}

// Reports, in operation `op`, the error that broke a queue. The caller has seen kBroken, or that
// `claimed` is set.
OXSHMEM_LAZY OXSHMEM_NOINLINE void report_breakage(const abi::Breakage &breakage, Op op) {
    // Until the error is valid, the thread that keeps it is about to record it.
    if (port::load<order::acquire, reach::device>(&breakage.claimed) == abi::kErrorValid) {
        abi::ErrorRecord error;
        copy_record(error, breakage.first);
        if (error.code != static_cast<uint32_t>(ErrorCode::completion) &&
            error.code != static_cast<uint32_t>(ErrorCode::context_destroyed)) {
            error.length = error.code;
            error.code = static_cast<uint32_t>(ErrorCode::queue_broken);
        }
        error.op = static_cast<uint32_t>(op);
        record(error);
    }
}

// Breaks a queue: keeps the error, unless an earlier one did it, says so in `count`, which its
// waiters look at, and records what broke the queue.
OXSHMEM_LAZY OXSHMEM_NOINLINE void break_queue(uint64_t *count, abi::Breakage &breakage, const abi::ErrorRecord &error) {
    if (port::compare_exchange<order::acquire, reach::device>(&breakage.claimed, 0u, 1u) != 0) {
        report_breakage(breakage, static_cast<Op>(error.op));
        return;
    }
    copy_record(breakage.first, error);
    port::store<order::release, reach::device>(&breakage.claimed, abi::kErrorValid);
    port::raise_to<order::release, reach::device>(count, abi::kBroken);
    record(error);
}

} // namespace oxshmem::detail
