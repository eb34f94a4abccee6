// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Profiling of device code, for programs that define OXSHMEM_PROFILE before they include a header:
// calls of the API are counted, by peer or team, and recorded in a ring with their requests,
// doorbells and completions, while the runtime provides memory for that (OXSHMEM_PROFILE in the
// environment). In other programs everything here is empty, and so leaves no code.
//
// A record of a call does not name its requests: what the same thread posts between the beginning
// and the end of a call belongs to the call, and the host puts both together
// (runtime/profile/trace.rs). So nothing is handed from function to function.
#pragma once

#include "error.h"

namespace oxshmem::detail {

#ifdef OXSHMEM_PROFILE

using abi::ProfileKind;

// Returns what the runtime provides, or null.
OXSHMEM_DEVICE abi::Profile *profile() {
    return as<abi::Profile>(port::state().profile);
}

// Appends a record. The oldest gives way.
OXSHMEM_NOINLINE void profile_record(abi::Profile &profile, abi::ProfileRecord &record) {
    const uint64_t number = port::fetch_add<order::relaxed, reach::device>(&profile.made, uint64_t{1});
    abi::ProfileRecord &slot = as<abi::ProfileRecord>(profile.records)[number & ((uint64_t{1} << profile.records_log2) - 1)];
    record.number = 0;
    record.block = port::block_rank();
    record.thread = port::thread_rank();
    port::copy_bytes(&slot, &record, sizeof(record));
    port::store<order::release, reach::device>(&slot.number, number + 1);
}

// Records what happened to requests of a QP, or of the proxy's ring.
OXSHMEM_DEVICE void profile_event(ProfileKind kind, uint32_t qpn, int pe, uint64_t index) {
    abi::Profile *const to = profile();
    if (to == nullptr || to->records == 0) {
        return;
    }
    abi::ProfileRecord record{};
    record.begin = record.end = port::clock_ns();
    record.index = index, record.qpn = qpn, record.pe = pe;
    record.kind = static_cast<uint16_t>(kind);
    record.team = abi::kTeamInvalid;
    profile_record(*to, record);
}

// Counts a call, and records it if there is a ring.
OXSHMEM_NOINLINE void profile_call(abi::Profile &to, Op op, Blame subject, uint64_t bytes, uint64_t begin) {
    const uint64_t end = port::clock_ns();
    const bool of_team = subject.team != abi::kTeamInvalid;
    const uint32_t team = static_cast<uint32_t>(subject.team) & ((1u << abi::kTeamIndexBits) - 1);
    const uint32_t row = of_team ? team : static_cast<uint32_t>(subject.pe);
    if (row < (of_team ? port::state().max_teams : static_cast<uint32_t>(port::state().n_pes))) {
        abi::ProfileCount &count =
            as<abi::ProfileCount>(of_team ? to.teams : to.peers)[row * abi::kProfileOps + static_cast<uint32_t>(op)];
        port::add_to<order::relaxed, reach::device>(&count.calls, uint64_t{1});
        port::add_to<order::relaxed, reach::device>(&count.bytes, bytes);
        port::add_to<order::relaxed, reach::device>(&count.nanoseconds, end - begin);
    }
    if (to.records != 0) {
        abi::ProfileRecord record{};
        record.begin = begin, record.end = end, record.bytes = bytes;
        record.pe = subject.pe, record.team = subject.team;
        record.kind = static_cast<uint16_t>(ProfileKind::call);
        record.op = static_cast<uint16_t>(op);
        profile_record(to, record);
    }
}

// A call of the API, from its construction to the end of its scope. `counts`: the calling lane
// speaks for its scope.
class Profiled {
public:
    OXSHMEM_DEVICE Profiled(Op op, Blame subject, uint64_t bytes = 0, bool counts = true)
        : to(counts ? profile() : nullptr), subject(subject), bytes(bytes), begin(to != nullptr ? port::clock_ns() : 0),
          op(op) {}
    OXSHMEM_DEVICE ~Profiled() {
        if (to != nullptr) {
            profile_call(*to, op, subject, bytes, begin);
        }
    }
    // Leaves the call to another one, which counts.
    OXSHMEM_DEVICE void drop() { to = nullptr; }
    Profiled(const Profiled &) = delete;
    Profiled &operator=(const Profiled &) = delete;

private:
    abi::Profile *to;
    Blame subject;
    uint64_t bytes, begin;
    Op op;
};

// The calling thread has posted requests, all before `index`.
OXSHMEM_DEVICE void profile_request(uint32_t qpn, int pe, uint64_t index) {
    profile_event(ProfileKind::request, qpn, pe, index);
}
// A QP was rung for all requests before `index`.
OXSHMEM_DEVICE void profile_doorbell(uint32_t qpn, int pe, uint64_t index) {
    profile_event(ProfileKind::doorbell, qpn, pe, index);
}
// All requests before `index` were seen to be complete.
OXSHMEM_DEVICE void profile_completion(uint32_t qpn, int pe, uint64_t index) {
    profile_event(ProfileKind::completion, qpn, pe, index);
}

#else

struct Profiled {
    OXSHMEM_DEVICE Profiled(Op, Blame, uint64_t = 0, bool = true) {}
    OXSHMEM_DEVICE void drop() {}
};
OXSHMEM_DEVICE void profile_request(uint32_t, int, uint64_t) {}
OXSHMEM_DEVICE void profile_doorbell(uint32_t, int, uint64_t) {}
OXSHMEM_DEVICE void profile_completion(uint32_t, int, uint64_t) {}

#endif

} // namespace oxshmem::detail
