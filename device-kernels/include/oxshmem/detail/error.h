// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Errors and waits. A kernel never traps: the first error of a launch is recorded for the host, and
// threads that wait unwind.
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

// What an error is about: a PE (-1: none), and the team whose collective it is.
struct Blame {
    int pe;
    int team;
    OXSHMEM_DEVICE Blame(int pe, int team = abi::kTeamInvalid) : pe(pe), team(team) {}
};

#ifndef OXSHMEM_DEVICE_LIBRARY
// Fills in what the calling thread reports of an error. It goes to local memory, where it takes no
// registers.
OXSHMEM_LAZY OXSHMEM_NOINLINE void describe(abi::ErrorRecord &error, ErrorCode code, Op op, Blame blame, uint64_t address,
                                            uint64_t length) {
    error.code = static_cast<uint32_t>(code);
    error.op = static_cast<uint32_t>(op);
    error.pe = blame.pe;
    error.team = blame.team;
    error.address = address;
    error.length = length;
    error.qpn = 0;
    error.wqe_index = 0;
    error.syndrome = 0, error.vendor_syndrome = 0;
    const uint3 b = port::block_index();
    error.block[0] = b.x, error.block[1] = b.y, error.block[2] = b.z;
    const uint3 t = port::thread_index();
    error.thread[0] = t.x, error.thread[1] = t.y, error.thread[2] = t.z;
    error.reserved0 = 0;
}

// Copies an error in words, one after the other, which takes few registers.
OXSHMEM_DEVICE void copy_record(abi::ErrorRecord &to, const abi::ErrorRecord &from) {
    constexpr uint32_t kBytes = sizeof(uint64_t);
    static_assert(sizeof(abi::ErrorRecord) % kBytes == 0 && alignof(abi::ErrorRecord) == kBytes);
    OXSHMEM_NO_UNROLL
    for (uint32_t at = 0; at < sizeof(abi::ErrorRecord); at += kBytes) {
        port::copy_bytes(__builtin_assume_aligned(reinterpret_cast<char *>(&to) + at, kBytes),
                         __builtin_assume_aligned(reinterpret_cast<const char *>(&from) + at, kBytes), kBytes);
    }
}

// Records an error for the host, if it is the first of the launch. Errors of the network and
// deadlines, and the end of the job, end every wait of the launch, because what it waits for may
// never come; a call with bad arguments is dropped and ends none.
OXSHMEM_LAZY OXSHMEM_NOINLINE void record(const abi::ErrorRecord &error) {
    abi::Control &ctl = control();
    if (port::compare_exchange<order::acq_rel, reach::device>(&ctl.claimed, 0u, 1u) == 0) {
        copy_record(ctl.error, error);
        port::store<order::release, reach::system>(&ctl.claimed, abi::kErrorValid);
    }
    const ErrorCode code = static_cast<ErrorCode>(error.code);
    if (code == ErrorCode::timeout || code == ErrorCode::completion || code == ErrorCode::queue_broken ||
        code == ErrorCode::grid_incomplete || code == ErrorCode::exit_requested || code == ErrorCode::aggregate_stalled) {
        port::fetch_max<order::acq_rel, reach::system>(&ctl.abort, abi::kAbortLaunch);
    }
}

OXSHMEM_LAZY OXSHMEM_NOINLINE void raise(ErrorCode code, Op op, Blame blame, uint64_t address, uint64_t length) {
    abi::ErrorRecord error;
    describe(error, code, op, blame, address, length);
    record(error);
}

// Records that a variable of this PE did not become what a wait is for. `how` and `n` are those of
// Unmet.
OXSHMEM_LAZY OXSHMEM_NOINLINE void raise_unmet(Op op, const void *variable, uint64_t wanted, uint32_t how, uint32_t n) {
    abi::ErrorRecord error;
    describe(error, ErrorCode::timeout, op, port::state().my_pe, reinterpret_cast<uint64_t>(variable), wanted);
    const uint32_t bytes = how >> abi::kUnmetBytesShift & 0xff;
    uint64_t seen = 0;
    if (bytes == sizeof(uint64_t)) {
        seen = port::load<order::relaxed, reach::system>(static_cast<const uint64_t *>(variable));
    } else if (bytes == sizeof(uint32_t)) {
        seen = port::load<order::relaxed, reach::system>(static_cast<const uint32_t *>(variable));
    } else {
        seen = port::load<order::relaxed, reach::system>(static_cast<const uint16_t *>(variable));
    }
    error.wqe_index = seen;
    error.syndrome = how;
    error.vendor_syndrome = n;
    record(error);
}
#else
OXSHMEM_DEVICE void raise(ErrorCode code, Op op, Blame blame, uint64_t address, uint64_t length) {
    OXSHMEM_LIBRARY(raise)(code, op, blame.pe, blame.team, address, length);
}
OXSHMEM_DEVICE void raise_unmet(Op op, const void *variable, uint64_t wanted, uint32_t how, uint32_t n) {
    OXSHMEM_LIBRARY(raise_unmet)(op, variable, wanted, how, n);
}
#endif

// Whether a wait ends when the launch is being aborted. Waits for the HCA do not: it completes
// every request, if with an error, and a poster that leaves between reserving and writing breaks
// its queue. When the job is over, or the HCA has missed a deadline, every wait ends.
enum class OnAbort { unwind, keep_waiting };

// How far a wait is. It lies in local memory, so that the loop that waits keeps its registers.
struct WaitClock {
    uint64_t deadline; // 0: not set yet
    uint32_t progress; // what it was when the deadline was set
};

enum class Verdict : uint32_t { go_on, aborted, too_late };

#ifndef OXSHMEM_DEVICE_LIBRARY
// Tells a wait whether to go on. Sets its deadline the first time, and whenever `progress` has
// changed. `ends_on`: the abort word that ends it.
OXSHMEM_LAZY OXSHMEM_NOINLINE Verdict check_deadline(WaitClock &clock, uint32_t progress, uint32_t ends_on) {
    if (port::load<order::relaxed, reach::system>(&control().abort) >= ends_on) {
        return Verdict::aborted;
    }
    const uint64_t now = port::clock_ns();
    if (clock.deadline == 0 || clock.progress != progress) {
        clock.deadline = now + port::state().timeout_ns;
        clock.progress = progress;
    }
    return now > clock.deadline ? Verdict::too_late : Verdict::go_on;
}
#else
OXSHMEM_DEVICE Verdict check_deadline(WaitClock &clock, uint32_t progress, uint32_t ends_on) {
    return OXSHMEM_LIBRARY(check_deadline)(clock, progress, ends_on);
}
#endif

// A variable of this PE that did not become what a wait is for.
struct Unmet {
    const void *variable;
    uint64_t wanted;
    uint32_t how; // see abi::kUnmetBytesShift
    uint32_t n;   // variables that the wait is for; `variable` is the first of them
};

// Blocks of this PE's grid that have not made a call of the grid.
struct MissingBlocks {
    int team;
    uint32_t arrived, blocks;
};

// Records that a wait took too long. It blames a PE, names an unmet variable or counts blocks; a
// function finds out which.
OXSHMEM_LAZY OXSHMEM_DEVICE void raise_timeout(Op op, Blame blame, const void *address) {
    raise(ErrorCode::timeout, op, blame, reinterpret_cast<uint64_t>(address), 0);
}
OXSHMEM_LAZY OXSHMEM_DEVICE void raise_timeout(Op op, int pe, const void *address) {
    raise_timeout(op, Blame(pe), address);
}
OXSHMEM_LAZY OXSHMEM_DEVICE void raise_timeout(Op op, const Unmet &unmet, const void *) {
    raise_unmet(op, unmet.variable, unmet.wanted, unmet.how, unmet.n);
}
OXSHMEM_LAZY OXSHMEM_DEVICE void raise_timeout(Op op, const MissingBlocks &missing, const void *) {
    raise(ErrorCode::grid_incomplete, op, {port::state().my_pe, missing.team}, missing.arrived, missing.blocks);
}
template <class Find> OXSHMEM_DEVICE void raise_timeout(Op op, const Find &find, const void *address) {
    raise_timeout(op, find(), address);
}

// What a wait takes to be progress if its caller names nothing: none, so its deadline counts from
// its beginning.
struct NoProgress {
    OXSHMEM_DEVICE uint32_t operator()() const { return 0; }
};

// Polls between two looks at the clock. Programs of the schedule explorer in which deadlines pass
// look each time.
#ifndef OXSHMEM_WAIT_POLLS
#define OXSHMEM_WAIT_POLLS 32
#endif

// Calls `done` until it returns true. False: the deadline passed (recorded with `op`, the PE or the
// variable that `pe` names, and `address`), or the launch is being aborted. The deadline counts
// anew whenever `progress()`, which is looked at as often as the clock, returns another value.
// Polls several times, with nothing between that would delay the caller, before it looks at the
// clock and the abort word.
template <OnAbort A = OnAbort::unwind, class Peer, class Done, class Progress = NoProgress>
OXSHMEM_DEVICE bool wait(Op op, Peer pe, const void *address, Done done, Progress progress = {}) {
    constexpr uint32_t kPolls = OXSHMEM_WAIT_POLLS;
    constexpr uint32_t kEndsOn = A == OnAbort::unwind ? abi::kAbortLaunch : abi::kAbortJob;
    WaitClock clock{0, 0};
    Verdict verdict;
    do {
        OXSHMEM_NO_UNROLL
        for (uint32_t poll = 0; poll < kPolls; ++poll) {
            if (done()) {
                return true;
            }
            port::pause();
        }
        verdict = check_deadline(clock, progress(), kEndsOn);
    } while (verdict == Verdict::go_on);
    if (verdict == Verdict::too_late) {
        if (A == OnAbort::keep_waiting) {
            // The HCA makes no progress: a thread that waits for it later in this launch would only
            // wait as long again.
            port::fetch_max<order::acq_rel, reach::system>(&control().abort, abi::kAbortJob);
        }
        raise_timeout(op, pe, address);
    }
    return false;
}

} // namespace oxshmem::detail
