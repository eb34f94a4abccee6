// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What all collectives share: checks of arguments, the choice of an algorithm, unaligned pieces of
// 16 bytes, and arrivals.
#pragma once

#include <oxshmem/team.h>

#include "copy.h"

namespace oxshmem::detail {

using abi::Algorithm;
using abi::Collective;
using port::vec16;

OXSHMEM_DEVICE char *at_offset(void *base, uint64_t offset) {
    return static_cast<char *>(base) + offset;
}
OXSHMEM_DEVICE const char *at_offset(const void *base, uint64_t offset) {
    return static_cast<const char *>(base) + offset;
}

// Data is looked at 16 bytes at a time, wherever it begins; the last piece may be shorter.
constexpr uint32_t kPiece = sizeof(vec16);

OXSHMEM_DEVICE uint32_t word_at(const char *from, uint32_t offset, uint32_t bytes) {
    return offset < bytes ? port::read(reinterpret_cast<const uint32_t *>(from) + offset / 4) : 0;
}

// At most 16 bytes, in no usual shape.
OXSHMEM_LAZY OXSHMEM_OUTLINE vec16 load_odd(const char *from, uint32_t bytes) {
    vec16 value{};
    if (port::kCoalesced && ((reinterpret_cast<uint64_t>(from) | bytes) & 3) == 0) {
        return {word_at(from, 0, bytes), word_at(from, 4, bytes), word_at(from, 8, bytes), word_at(from, 12, bytes)};
    }
    port::copy_bytes(&value, from, bytes);
    return value;
}
OXSHMEM_LAZY OXSHMEM_OUTLINE void store_odd(char *to, vec16 value, uint32_t bytes) {
    if (port::kCoalesced && ((reinterpret_cast<uint64_t>(to) | bytes) & 3) == 0) {
        const uint32_t from[] = {value.x, value.y, value.z, value.w};
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
            if (4 * i < bytes) {
                port::write(reinterpret_cast<uint32_t *>(to) + i, from[i]);
            }
        }
    } else {
        port::copy_bytes(to, &value, bytes);
    }
}

// The first `bytes` bytes at `from`, at most 16; the rest is 0.
OXSHMEM_LAZY OXSHMEM_DEVICE vec16 load_piece(const char *from, uint64_t bytes) {
    const uint32_t part = bytes < kPiece ? static_cast<uint32_t>(bytes) : kPiece;
    const uint64_t at = reinterpret_cast<uint64_t>(from);
    if (port::kCoalesced && at % 16 == 0 && part == kPiece) {
        return port::load_vec(from);
    }
    if (port::kCoalesced && at % 8 == 0 && part == 8) {
        const uint64_t half = port::read(reinterpret_cast<const uint64_t *>(from));
        return {static_cast<uint32_t>(half), static_cast<uint32_t>(half >> 32), 0, 0};
    }
    return load_odd(from, part);
}

OXSHMEM_LAZY OXSHMEM_DEVICE void store_piece(char *to, vec16 value, uint64_t bytes) {
    const uint32_t part = bytes < kPiece ? static_cast<uint32_t>(bytes) : kPiece;
    const uint64_t at = reinterpret_cast<uint64_t>(to);
    if (port::kCoalesced && at % 16 == 0 && part == kPiece) {
        port::store_vec(to, value);
    } else if (port::kCoalesced && at % 8 == 0 && part == 8) {
        port::write(reinterpret_cast<uint64_t *>(to), static_cast<uint64_t>(value.y) << 32 | value.x);
    } else {
        store_odd(to, value, part);
    }
}

OXSHMEM_DEVICE uint64_t pieces_of(uint64_t bytes) {
    return (bytes + kPiece - 1) / kPiece;
}

// The product, or the highest number, which no heap has.
OXSHMEM_DEVICE uint64_t times(uint64_t bytes, int n) {
    // By halves: a division would take longer than all else that is computed for a small
    // collective.
    const uint64_t low = (bytes & 0xffffffff) * static_cast<uint64_t>(n), high = (bytes >> 32) * static_cast<uint64_t>(n);
    return (high + (low >> 32)) >> 32 != 0 ? ~0ull : bytes * static_cast<uint64_t>(n);
}

// Returns which of `n` members item `item` belongs to, of which each has `pieces`. Among few
// members it takes longer to divide than to count.
OXSHMEM_DEVICE uint32_t member_of(uint32_t item, uint32_t pieces, int n) {
    constexpr int kFew = 8;
    if (pieces == 1) {
        return item;
    }
    if (n > kFew) {
        return item / pieces;
    }
    uint32_t member = 0;
    for (; item >= pieces; item -= pieces) {
        ++member;
    }
    return member;
}

// One call of a collective by one PE.
struct Session {
    TeamView team;
    Op op;
    Call call;
    bool bad; // an argument was refused

    OXSHMEM_DEVICE Blame blame() const { return {port::state().my_pe, team.handle}; }
};

// Finds the team. False: there is none, which one lane records.
template <class Scope> OXSHMEM_DEVICE bool begin(Session &session, const TeamName<Scope> &name, Op op, Call call) {
    session.op = op, session.call = call, session.bad = false;
    return view_team<Scope>(session.team, name, op);
}

template <class Scope>
OXSHMEM_DEVICE void refuse(Session &session, ErrorCode code, const void *address, uint64_t length, int pe = -1) {
    // Each of several blocks records it: the arguments of one alone may be bad.
    if (Meeting<Scope>::rank() == 0 && !session.bad) {
        raise(code, session.op, pe == -1 ? session.blame() : Blame{pe, session.team.handle},
              reinterpret_cast<uint64_t>(address), length);
    }
    session.bad = true;
}

template <class Scope> OXSHMEM_DEVICE void check_root(Session &session, int root) {
    if (static_cast<uint32_t>(root) >= static_cast<uint32_t>(session.team.n)) {
        refuse<Scope>(session, ErrorCode::bad_argument, nullptr, static_cast<uint64_t>(static_cast<int64_t>(root)));
    }
}

// Both buffers lie in the heap and apart from each other; or they begin at one address, where that
// is allowed. Empty ones may be anywhere.
template <class Scope>
OXSHMEM_DEVICE void check_buffers(Session &session, const void *dst, uint64_t dst_bytes, const void *src, uint64_t src_bytes,
                                  bool same_allowed) {
    const uint64_t to = reinterpret_cast<uint64_t>(dst), from = reinterpret_cast<uint64_t>(src);
    if (dst_bytes != 0 && !in_heap(dst, dst_bytes)) {
        refuse<Scope>(session, ErrorCode::address_outside_heap, dst, dst_bytes);
    } else if (src_bytes != 0 && !in_heap(src, src_bytes)) {
        refuse<Scope>(session, ErrorCode::address_outside_heap, src, src_bytes);
    } else if (dst_bytes != 0 && src_bytes != 0 && to < from + src_bytes && from < to + dst_bytes &&
               !(same_allowed && to == from)) {
        refuse<Scope>(session, ErrorCode::overlap, dst, from);
    }
}

// What this member's call announces: everything that has to be equal is in the hash. One of several
// blocks announces their number too. Without data (`size` is 0) the buffers may be anywhere.
template <class Scope>
OXSHMEM_DEVICE uint32_t announced_by(const Session &session, const void *dst, const void *src, uint64_t size, uint64_t extra,
                                     Algorithm algorithm) {
    if (session.bad) {
        return announce_bad(port::state().my_pe);
    }
    const uint64_t further = kInGrid<Scope> ? port::grid_blocks() - 1 : kSeveralBlocks<Scope> ? sharing_blocks() - 1 : 0;
    // A sum of products with odd numbers: its upper bits depend on all that is hashed, and no
    // product waits for another one.
    const uint64_t how = further << 3 | static_cast<uint64_t>(algorithm);
    const uint64_t places = offset_of(dst) * 0xbf58476d1ce4e5b9ull + offset_of(src) * 0x94d049bb133111ebull;
    const uint64_t hash =
        size * 0x9e3779b97f4a7c15ull + (size == 0 ? 0 : places) + extra * 0xd6e8feb86659fd93ull + how * 0xa0761d6478bd642full;
    return announce(session.call, hash >> 36);
}

// The same for a collect, whose members have different amounts of data: one without any may pass
// any `src`, and where no member has any, any `dst` will do.
template <class Scope>
OXSHMEM_DEVICE uint32_t collect_announced_by(const Session &session, const void *dst, uint64_t extra, Algorithm algorithm) {
    constexpr uint64_t kSomeData = 1;
    const void *const heap = as<const void>(port::state().heap_base);
    return announced_by<Scope>(session, in_heap(dst, 0) ? dst : heap, heap, kSomeData, extra, algorithm);
}

// Pieces that a lane has under way at once, where lanes have several; with more of them packets
// take longer than to push.
constexpr uint32_t kPiecesAtOnce = 4;

// Bytes of data that one member can send to each other one in packets.
OXSHMEM_DEVICE uint32_t packet_room(const TeamView &team) {
    return team.share / 2;
}

// The caller's scope, as far as the choice of an algorithm depends on it: all members must agree on
// it, whatever the sizes of their blocks. The last five are several blocks, for which the host has
// made this choice, or form_for_grid, which chooses packets and relay by the scope alone.
enum class Caller { scope, block, packets, push, one_shot, relay, copy_engines };

// A block that leaves the call to its first warp says so; others call for themselves.
template <class Scope> constexpr Caller kOwn = Scope::kSeveralWarps ? Caller::block : Caller::scope;

// What of `bytes` bytes the caller's block handles in packets: whole pieces, except for the last
// one.
struct Part {
    uint32_t first, bytes;
};
template <class Scope> OXSHMEM_DEVICE Part part_of(uint64_t bytes) {
    const uint32_t all = static_cast<uint32_t>(bytes);
    if constexpr (kSeveralBlocks<Scope>) {
        const uint32_t blocks = sharing_blocks();
        const uint32_t each = (static_cast<uint32_t>(pieces_of(bytes)) + blocks - 1) / blocks * kPiece;
        const uint32_t first = each * port::block_rank() < all ? each * port::block_rank() : all;
        return {first, each < all - first ? each : all - first};
    }
    return {0, all};
}

// Returns the algorithm of the first choice that applies to `bytes` bytes, or push if none does.
// `packets`: whether the caller can send so many in packets.
OXSHMEM_DEVICE Algorithm choice_among(const abi::Choice (&choices)[abi::kChoices], uint64_t bytes, bool packets) {
    OXSHMEM_UNROLL
    for (uint32_t i = 0; i < abi::kChoices; ++i) {
        const Algorithm algorithm = static_cast<Algorithm>(choices[i].algorithm);
        if (bytes <= choices[i].up_to_bytes && (algorithm != Algorithm::packets || packets)) {
            return algorithm;
        }
    }
    return Algorithm::push;
}

// What the team's table says for `bytes` bytes, of which the caller would handle `parts` times as
// many in packets.
template <class Scope>
OXSHMEM_DEVICE Algorithm choose(const Session &session, Collective collective, uint64_t bytes, int parts, Caller caller) {
    if constexpr (kByPackets<Scope>) {
        return kRelays<Scope> ? Algorithm::relay : Algorithm::packets;
    } else if constexpr (kInGrid<Scope>) {
        return caller == Caller::one_shot ? Algorithm::one_shot : Algorithm::push;
    } else if constexpr (kSeveralBlocks<Scope>) {
        return caller == Caller::packets        ? Algorithm::packets
               : caller == Caller::one_shot     ? Algorithm::one_shot
               : caller == Caller::relay        ? Algorithm::relay
               : caller == Caller::copy_engines ? Algorithm::copy_engines
                                                : Algorithm::push;
    }
    const TeamView &team = session.team;
    // What has more than 2^32 pieces has no room anyway.
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(parts);
    const bool few = caller == Caller::block || pieces <= kPiecesAtOnce * Scope::kLanes;
    const bool packets = team.one_round && bytes <= packet_room(team) && few;
    return choice_among(team_row(team.handle).choices[static_cast<uint32_t>(collective)], bytes, packets);
}

// Up to this many bytes a block leaves the data to its first warp.
constexpr uint64_t kFewBytes = 512;

// Arrivals: what member i has sent, of two kinds, as epoch << 32 | how much of it has arrived.
OXSHMEM_DEVICE uint64_t arrival_of(const TeamView &team, uint32_t count) {
    return static_cast<uint64_t>(team.epoch) << 32 | count;
}

template <class Scope> OXSHMEM_DEVICE bool await_arrival(const Session &session, int kind, int member, uint32_t count) {
    const uint64_t *word = session.team.arrivals(kind) + member;
    bool stopped = false;
    const auto late = [&] { return session.team.blame(member); };
    const bool came = wait(session.op, late, word, [&] {
        const uint64_t seen = port::load<order::acquire, reach::system>(word);
        stopped = is_stopped<Scope>(session.team.handle, session.team.epoch);
        return stopped || (seen >> 32 == session.team.epoch && static_cast<uint32_t>(seen) >= count);
    });
    OXSHMEM_ON_ARRIVAL(word, count);
    stop_unless<Scope>(session.team, came);
    return came && !stopped;
}

// Waits until `wanted(member)` of every other member has arrived; 0: nothing. Ends with Scope::any.
template <class Scope, class Wanted> OXSHMEM_DEVICE bool await_arrivals(const Session &session, int kind, Wanted wanted) {
    bool good = true;
    for (int member = static_cast<int>(Meeting<Scope>::rank()); good && member < session.team.n;
         member += static_cast<int>(Meeting<Scope>::size())) {
        const uint32_t count = member == session.team.me ? 0 : wanted(member);
        good = count == 0 || await_arrival<Scope>(session, kind, member, count);
    }
    return !Scope::any(!good);
}

// Tells load/store reachable members, from `first` to before `last`, that all lanes' stores to them
// are done, as `count` of the arrivals. Without `Visible` it tells that their loads are over, which
// have returned what the lanes have stored since.
template <class Scope, bool Visible>
OXSHMEM_DEVICE void arrive(const Session &session, int kind, int first, int last, uint32_t count = 1) {
    Scope::sync();
    const int rank = static_cast<int>(Meeting<Scope>::rank());
    const int lanes = meeting_lanes(static_cast<int>(Meeting<Scope>::size()));
    if (rank < lanes && first + rank < last) {
        if (Visible) {
            release_stores();
        }
        uint64_t *own = session.team.arrivals(kind) + session.team.me;
        for (int member = first + rank; member < last; member += lanes) {
            OXSHMEM_ON_MESSAGE(session.team.pe_of(member), own, count);
            port::store<order::relaxed, reach::system>(translate(own, session.team.pe_of(member)),
                                                       arrival_of(session.team, count));
        }
    }
}

} // namespace oxshmem::detail
