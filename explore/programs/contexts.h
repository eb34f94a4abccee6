// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Contexts over the queue pairs of a program, and operations on them that the explorer is told of.
#pragma once

#include "program.h"

namespace explore {

constexpr uint32_t kOfThread = abi::kContextPrivate | abi::kContextAlone, kOfBlock = abi::kContextPrivate;
constexpr uint32_t kOfWarp = abi::kContextPrivate | abi::kContextWarp;

// The context that has the one queue pair to each peer.
inline Context context(uint32_t how) {
    const abi::State &s = port::state();
    Context made{};
    made.qps = s.qps;
    made.used = s.used;
    made.stride = 1;
    made.n_pes = s.n_pes;
    made.how = how;
    made.qp_bytes = static_cast<uint32_t>(s.qps_per_pe * sizeof(abi::Qp));
    return made;
}

template <class T> void p(const Context &context, T *dst, T value, int pe) {
    announce_put(dst, &value, sizeof(T), pe);
    oxshmem::p(context, dst, value, pe);
}

inline void fence(const Context &context) {
    oxshmem::fence(context);
    note(kNoteFence);
}

inline void quiet(const Context &context) {
    oxshmem::quiet(context);
    note(kNoteQuiet);
}

} // namespace explore
