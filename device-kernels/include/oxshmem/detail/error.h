// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Errors and waits. A kernel never traps: the first error of a launch is recorded for the host, and whoever waits unwinds.
#pragma once

#include <oxshmem/port/port.h>

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

// Completion errors and deadlines end every wait of the launch, because what it waits for may never come; a call with bad
// arguments is dropped and ends none.
OXSHMEM_NOINLINE void raise(ErrorCode code, Op op, int pe, uint64_t address, uint64_t length, uint32_t qpn = 0,
                            uint64_t wqe_index = 0, uint32_t syndrome = 0, uint32_t vendor_syndrome = 0) {
    abi::Control &ctl = control();
    if (port::compare_exchange<order::acq_rel, reach::device>(&ctl.claimed, 0u, 1u) == 0) {
        abi::ErrorRecord &e = ctl.error;
        e.code = static_cast<uint32_t>(code);
        e.op = static_cast<uint32_t>(op);
        e.pe = pe;
        e.qpn = qpn;
        e.wqe_index = wqe_index;
        e.address = address;
        e.length = length;
        e.syndrome = syndrome;
        e.vendor_syndrome = vendor_syndrome;
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

// Whether a wait ends when the launch is being aborted. Waits for the HCA do not: it answers in any case, and a poster that
// leaves between reserving and writing would block its queue for later launches. When the job is over, or the HCA has missed a
// deadline, every wait ends.
enum class OnAbort { unwind, keep_waiting };

// Calls `done` until it answers true. False: the deadline passed (recorded with `op`, `pe` and `address`), or the launch is
// being aborted.
template <OnAbort A = OnAbort::unwind, class Done> OXSHMEM_DEVICE bool wait(Op op, int pe, const void *address, Done done) {
    constexpr uint32_t kCheckEvery = 32; // passes between looks at the clock and the abort word
    uint64_t deadline = 0;
    for (uint32_t pass = 1; !done(); ++pass) {
        if (pass % kCheckEvery == 0) {
            const uint32_t abort = port::load<order::relaxed, reach::system>(&control().abort);
            if (abort >= (A == OnAbort::unwind ? abi::kAbortLaunch : abi::kAbortJob)) {
                return false;
            }
            const uint64_t now = port::clock_ns();
            if (deadline == 0) {
                deadline = now + port::state().timeout_ns;
            } else if (now > deadline) {
                raise(ErrorCode::timeout, op, pe, reinterpret_cast<uint64_t>(address), 0);
                if (A == OnAbort::keep_waiting) {
                    // The HCA does not answer: whoever waits for it later in this launch would only wait as long again.
                    port::fetch_max<order::acq_rel, reach::system>(&control().abort, abi::kAbortJob);
                }
                return false;
            }
        }
        port::pause();
    }
    return true;
}

} // namespace oxshmem::detail
