// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// fcollect and alltoall straight into dst, for programs that are written for NVSHMEM. These make
// sure that dst may be overwritten on all members before any of them calls, so every member stores
// to its peers' dst at once, and one meeting is both the check that all make the same call and its
// end. Other programs need not, and may use dst in the next collective without further
// synchronisation: their members meet before they store, too (push.h).
//
// Where a call differs between members, all of them still report it, but dst may have been written.
#pragma once

#include "push.h"

namespace oxshmem::detail {

// Whether programs make sure of that: those that define OXSHMEM_DST_IS_READY.
#ifdef OXSHMEM_DST_IS_READY
constexpr bool kDstIsReady = true;
#else
constexpr bool kDstIsReady = false;
#endif

// What members announce as their algorithm. No table has it.
constexpr Algorithm kDirect = static_cast<Algorithm>(7);

// Up to this many bytes for each member packets take less time, as they need no fence. In
// relocatable code the functions that send and receive them keep registers for their callers, and
// those of whole pieces that are stored at once do not: between two H100s an alltoall by a block
// took 6.2 us for 4 KiB in packets, and 3.9 us for 8 KiB at once.
template <class Scope> OXSHMEM_DEVICE uint64_t most_in_packets(Caller caller, uint64_t bytes) {
    if (port::kRelocatable && bytes % kPiece == 0) {
        return Scope::kLanes == 1 ? kPiece : 0;
    }
    return caller == Caller::block ? 4096 : Scope::kLanes == 1 ? 32 : 512;
}

// Whether members within load/store reach store to dst at once. All of them decide the same.
template <class Scope>
OXSHMEM_DEVICE bool goes_direct(uint32_t chosen, uint32_t share, int n, Collective collective, uint64_t bytes, Caller caller) {
    const bool is_free = (chosen >> static_cast<uint32_t>(collective) & 1) == 0;
    const bool few = caller == Caller::block || pieces_of(bytes) * static_cast<uint64_t>(n) <= kPiecesAtOnce * Scope::kLanes;
    return is_free && !(few && bytes <= most_in_packets<Scope>(caller, bytes) && bytes <= share / 2);
}

// Whether [a, a + bytes_a) and [b, b + bytes_b) lie apart.
OXSHMEM_DEVICE bool are_apart(const void *a, uint64_t bytes_a, const void *b, uint64_t bytes_b) {
    const uint64_t first = reinterpret_cast<uint64_t>(a), second = reinterpret_cast<uint64_t>(b);
    return first >= second + bytes_b || second >= first + bytes_a;
}

// Brings what one warp or thread will copy into the L1 cache, all at once: it has too few registers
// to have much on its way otherwise. For at most kTouched sectors of each lane.
constexpr uint32_t kTouched = 16;
template <class Scope> OXSHMEM_DEVICE void touch_first(const void *src, uint32_t bytes) {
    const uint32_t at = Scope::rank() * port::kSectorBytes;
    if (at < bytes) {
        port::touch<kTouched, Scope::kLanes>(static_cast<const char *>(src) + at, bytes - at);
    }
}

// How many bytes a block copies so. With few threads it takes longer than what has more on its way,
// unless that is short.
OXSHMEM_DEVICE uint64_t most_by_block() {
    return port::block_threads() < kManyThreads ? 256 << 10 : ~0ull;
}

// Copies whole units of 16 bytes to all members' dst: the same to all, or a part to each. The warps
// divide all members' tiles among them. What a loop keeps in registers is little: the rest is read
// again for each member.
constexpr uint64_t kMostToAll = 1 << 30; // bytes to all members together
constexpr uint32_t kNoTile = 1u << 31;   // after all of them
template <class Scope, bool kToEach> OXSHMEM_DEVICE void copy_to_all(int handle, void *dst, const void *src, uint32_t bytes) {
    constexpr uint32_t kUnits = 4, kStride = Scope::kLanes * kPiece, kTile = kUnits * kStride;
    const uint32_t step = Scope::size() / Scope::kLanes * kTile; // complete warps
    uint32_t at = Scope::rank() / Scope::kLanes * kTile;
    at = at < step ? at + Scope::rank() % Scope::kLanes * kPiece : kNoTile;
    int member = team_row(handle).my_pe;
    const uint64_t mine = static_cast<uint64_t>(bytes) * static_cast<uint32_t>(member);
    char *to = at_offset(dst, mine);
    const char *from = at_offset(src, kToEach ? mine : 0);
    do {
        port::forget(handle);
        const int before = member;
        member = member + 1 == team_row(handle).n_pes ? 0 : member + 1;
        from += kToEach ? static_cast<int64_t>(bytes) * (member - before) : 0;
        to += static_cast<int64_t>(port::state().heap_bytes) * (team_row(handle).stride * (member - before));
        OXSHMEM_NO_UNROLL
        for (; (at & ~(kStride - 1)) < bytes; at += step) {
            vec16 units[kUnits] = {};
            if (at + (kUnits - 1) * kStride < bytes) {
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kUnits; ++k) {
                    units[k] = port::load_vec(from + at + k * kStride);
                }
                port::forget(at);
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kUnits; ++k) {
                    port::store_vec(to + at + k * kStride, units[k]);
                }
                continue;
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kUnits; ++k) {
                if (at + k * kStride < bytes) {
                    units[k] = port::load_vec(from + at + k * kStride);
                }
            }
            port::forget(at);
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kUnits; ++k) {
                if (at + k * kStride < bytes) {
                    port::store_vec(to + at + k * kStride, units[k]);
                }
            }
        }
        port::forget(bytes);
        at -= (bytes + kTile - 1) / kTile * kTile;
        port::forget(handle);
    } while (member != team_row(handle).my_pe);
}

// Polls before a collective is left to await_agreement().
constexpr uint32_t kLeanPolls = 8 * OXSHMEM_WAIT_POLLS;

// The announcement of these calls.
template <class Scope> OXSHMEM_DEVICE uint32_t announced_directly(Call call, const void *dst, const void *src, uint64_t bytes) {
    Session session;
    session.call = call, session.bad = false;
    return announced_by<Scope>(session, dst, src, bytes, 0, kDirect);
}

// The two halves of such a collective. In relocatable code a function that calls others, or needs
// more than some 30 registers, keeps registers in memory for its caller; if it does that in 1024
// threads it takes longer than to copy 64 KiB. These two do not.

// Stores this member's parts, if that is a lean case. Returns false, and stores nothing, if not.
template <class Scope, bool kToEach> OXSHMEM_OUTLINE bool store_leanly(int handle, void *dst, const void *src, uint64_t bytes) {
    constexpr Collective kCollective = kToEach ? Collective::alltoall : Collective::fcollect;
    constexpr uint64_t kMostTouched = kTouched * Scope::kLanes * port::kSectorBytes;
    const uint64_t together = reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src) | bytes;
    if (!is_row_of_table(handle) || together % kPiece != 0 || bytes > kMostToAll / abi::kOneRoundPes ||
        Scope::size() < Scope::kLanes) {
        return false;
    }
    const abi::Team &row = team_row(handle);
    {
        const vec16 who = port::load_vec(&row.handle), how = port::load_vec(&row.stride);
        const uint64_t all = bytes * who.z, from = kToEach ? all : bytes;
        const bool listed = port::read(&row.members) != 0;
        if (static_cast<int>(who.x) != handle || how.y == 0 || listed || !in_heap(dst, all) || !in_heap(src, from) ||
            !are_apart(dst, all, src, from) || from > (Scope::kSeveralWarps ? most_by_block() : kMostTouched) ||
            !goes_direct<Scope>(port::read(&row.chosen), how.z, static_cast<int>(who.z), kCollective, bytes, kOwn<Scope>)) {
            return false;
        }
        if (!Scope::kSeveralWarps && from > 4 * Scope::kLanes * kPiece) {
            touch_first<Scope>(src, static_cast<uint32_t>(from));
        }
    }
    copy_to_all<Scope, kToEach>(handle, dst, src, static_cast<uint32_t>(bytes));
    return true;
}

// Meets after it. Returns false if other members have not come soon, or do not agree: see
// await_agreement.
template <class Scope, bool kToEach>
OXSHMEM_OUTLINE bool meet_leanly(int handle, const void *dst, const void *src, uint64_t bytes) {
    Scope::sync();
    bool good = true;
    if (!Scope::kSeveralWarps || Scope::rank() < 32) {
        const abi::Team &row = team_row(handle);
        const TeamView team = view_of(row);
        const int rank = static_cast<int>(Scope::rank()), lanes = meeting_lanes(static_cast<int>(Scope::size()));
        const uint64_t header =
            header_of(team, announced_directly<Scope>(kToEach ? Call::alltoall : Call::fcollect, dst, src, bytes));
        if constexpr (Scope::kLanes > 1) {
            warp_scope::sync(); // before the epoch is taken, all lanes have read it
        }
        if (rank < lanes && rank < team.n) {
            release_stores<order::release>();
            tell_all(team, header, rank, lanes);
            if (rank == 0) {
                take_epoch<Scope>(team);
            }
            good = see_all(team, header, rank, lanes, kLeanPolls);
        }
    }
    return !Scope::any(!good);
}

// Ends such a collective where other members were not seen to agree: waits for them until the
// deadline, and records what differs.
template <class Scope>
OXSHMEM_OUTLINE int await_agreement(int handle, Op op, Call call, const void *dst, const void *src, uint64_t bytes) {
    TeamView team = view_of(team_row(handle));
    team.epoch = port::read(&team_row(handle).epoch); // has been taken
    const int rank = static_cast<int>(Scope::rank()), lanes = meeting_lanes(static_cast<int>(Scope::size()));
    bool good = true;
    if (rank < lanes && rank < team.n) {
        const uint64_t header = header_of(team, announced_directly<Scope>(call, dst, src, bytes));
        good = await_members<Scope, order::acquire>(handle, op, header);
    }
    return Scope::any(!good) ? 1 : 0;
}

// fcollect and alltoall that store to dst at once. Returns false if they do not, and otherwise in
// `failed` what the call returns.
template <class Scope, bool kToEach>
OXSHMEM_DEVICE bool gather_directly(int handle, void *dst, const void *src, uint64_t bytes, int &failed) {
    constexpr Op kOp = kToEach ? Op::alltoall : Op::fcollect;
    constexpr Call kCall = kToEach ? Call::alltoall : Call::fcollect;
    Profiled profiled(kOp, {port::state().my_pe, handle}, bytes, Scope::rank() == 0);
    if (!store_leanly<Scope, kToEach>(handle, dst, src, bytes)) {
        profiled.drop();
        return false;
    }
    failed =
        meet_leanly<Scope, kToEach>(handle, dst, src, bytes) ? 0 : await_agreement<Scope>(handle, kOp, kCall, dst, src, bytes);
    return true;
}

} // namespace oxshmem::detail
