// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Errors and waits. A kernel never traps: the first error of a launch is recorded for the host, and whoever waits unwinds.
#pragma once

#include <oxshmem/port/port.h>

#ifdef OXSHMEM_DEVICE_LIBRARY
#include "library.h"
#endif

namespace oxshmem::detail {

using abi::ErrorCode;
using abi::Op;
using port::order;
using port::reach;

template <class T> OXSHMEM_DEVICE T *as(uint64_t address) {
    return reinterpret_cast<T *>(address);
}

OXSHMEM_DEVICE abi::Control &control() {
    return *as<abi::Control>(port::state().control);
}

// What an error CQE says.
struct CompletionError {
    uint32_t qpn;
    uint64_t wqe_index;
    uint32_t syndrome, vendor_syndrome;
};

// Who an error is about: a PE (-1: none), and the team whose collective it is.
struct Blame {
    int pe;
    int team;
    OXSHMEM_DEVICE Blame(int pe, int team = abi::kTeamInvalid) : pe(pe), team(team) {}
};

#ifndef OXSHMEM_DEVICE_LIBRARY
// Completion errors and deadlines end every wait of the launch, because what it waits for may never come; a call with bad
// arguments is dropped and ends none.
OXSHMEM_DEVICE void record(ErrorCode code, Op op, Blame blame, uint64_t address, uint64_t length, const CompletionError &cqe) {
    abi::Control &ctl = control();
    if (port::compare_exchange<order::acq_rel, reach::device>(&ctl.claimed, 0u, 1u) == 0) {
        abi::ErrorRecord &e = ctl.error;
        e.code = static_cast<uint32_t>(code);
        e.op = static_cast<uint32_t>(op);
        e.pe = blame.pe;
        e.team = blame.team;
        e.qpn = cqe.qpn;
        e.wqe_index = cqe.wqe_index;
        e.address = address;
        e.length = length;
        e.syndrome = cqe.syndrome;
        e.vendor_syndrome = cqe.vendor_syndrome;
        const uint3 b = port::block_index();
        const uint3 t = port::thread_index();
        e.block[0] = b.x, e.block[1] = b.y, e.block[2] = b.z;
        e.thread[0] = t.x, e.thread[1] = t.y, e.thread[2] = t.z;
        port::store<order::release, reach::system>(&ctl.claimed, 2u);
    }
    if (code == ErrorCode::timeout || code == ErrorCode::completion) {
        port::fetch_max<order::acq_rel, reach::system>(&ctl.abort, abi::kAbortLaunch);
    }
}

OXSHMEM_NOINLINE void raise(ErrorCode code, Op op, Blame blame, uint64_t address, uint64_t length) {
    record(code, op, blame, address, length, {});
}

OXSHMEM_NOINLINE void raise_completion(Op op, int pe, uint64_t address, uint64_t length, CompletionError cqe) {
    record(ErrorCode::completion, op, pe, address, length, cqe);
}
#else
OXSHMEM_DEVICE void raise(ErrorCode code, Op op, Blame blame, uint64_t address, uint64_t length) {
    OXSHMEM_LIBRARY(raise)(code, op, blame.pe, blame.team, address, length);
}
#endif

// Whether a wait ends when the launch is being aborted. Waits for the HCA do not: it answers in any case, and a poster that
// leaves between reserving and writing would block its queue for later launches. When the job is over, or the HCA has missed a
// deadline, every wait ends.
enum class OnAbort { unwind, keep_waiting };

// What a wait does now and then. Answers the deadline (which it sets if there is none yet), or why the wait is over. `ends_on`:
// the abort word that ends it.
constexpr uint64_t kAborted = 1, kTooLate = 2;

#ifndef OXSHMEM_DEVICE_LIBRARY
OXSHMEM_NOINLINE uint64_t check_deadline(uint64_t deadline, uint32_t ends_on) {
    if (port::load<order::relaxed, reach::system>(&control().abort) >= ends_on) {
        return kAborted;
    }
    const uint64_t now = port::clock_ns();
    return deadline == 0 ? now + port::state().timeout_ns : now > deadline ? kTooLate : deadline;
}
#else
OXSHMEM_DEVICE uint64_t check_deadline(uint64_t deadline, uint32_t ends_on) {
    return OXSHMEM_LIBRARY(check_deadline)(deadline, ends_on);
}
#endif

// Who is to blame for a wait that took too long: that is known, or a function finds out.
OXSHMEM_DEVICE Blame blamed(int pe) {
    return pe;
}
OXSHMEM_DEVICE Blame blamed(Blame blame) {
    return blame;
}
template <class Find> OXSHMEM_DEVICE Blame blamed(Find find) {
    return find();
}

// Calls `done` until it answers true. False: the deadline passed (recorded with `op`, whom `pe` blames, and `address`), or the
// launch is being aborted. Polls several times, with nothing between that would delay the caller, before it looks at the clock
// and the abort word.
template <OnAbort A = OnAbort::unwind, class Peer, class Done>
OXSHMEM_DEVICE bool wait(Op op, Peer pe, const void *address, Done done) {
    constexpr uint32_t kPolls = 32;
    constexpr uint32_t kEndsOn = A == OnAbort::unwind ? abi::kAbortLaunch : abi::kAbortJob;
    uint64_t deadline = 0;
    while (deadline != kAborted) {
        OXSHMEM_NO_UNROLL
        for (uint32_t poll = 0; poll < kPolls; ++poll) {
            if (done()) {
                return true;
            }
            port::pause();
        }
        deadline = check_deadline(deadline, kEndsOn);
        if (deadline == kTooLate) {
            raise(ErrorCode::timeout, op, blamed(pe), reinterpret_cast<uint64_t>(address), 0);
            if (A == OnAbort::keep_waiting) {
                // The HCA does not answer: whoever waits for it later in this launch would only wait as long again.
                port::fetch_max<order::acq_rel, reach::system>(&control().abort, abi::kAbortJob);
            }
            return false;
        }
    }
    return false;
}

} // namespace oxshmem::detail
