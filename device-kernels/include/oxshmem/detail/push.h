// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Large collectives: after a meeting, straight between the members' buffers.
//
// Where all members are load and store reachable, every member's threads store to its peers' dst,
// or load from their src, and one fence before the flags of arrival ends the collective. Otherwise
// each message is a put with signal, whose signal is the flag. Loads from peers see what was stored
// before the meeting, because it made that visible.
#pragma once

#include <oxshmem/signal.h>

#include "collective.h"
#include "grid_meet.h"
#include "reduce_ops.h"

namespace oxshmem::detail {

// A member's copy of a symmetric address.
template <class T> OXSHMEM_DEVICE T *of_member(const TeamView &team, T *address, int member) {
    return translate(address, team.pe_of(member));
}

// What of `bytes` bytes member `member` works on, in pieces of 16 bytes.
struct Share {
    uint64_t first, last;
};
OXSHMEM_DEVICE Share share_of(const TeamView &team, uint64_t bytes, int member) {
    const uint64_t each = (pieces_of(bytes) + static_cast<uint64_t>(team.n) - 1) / static_cast<uint64_t>(team.n) * kPiece;
    const uint64_t first = each * static_cast<uint64_t>(member);
    return {first < bytes ? first : bytes, first + each < bytes ? first + each : bytes};
}

// Copies to all members' dst, what was loaded once stored to each.
template <class Scope> OXSHMEM_OUTLINE void spread(Session session, void *dst, const void *src, uint64_t bytes) {
    const TeamView &team = session.team;
    uint64_t done = 0;
    if constexpr (port::kCoalesced && Scope::kLanes > 1) {
        if (((reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src)) & 15) == 0) {
            constexpr uint32_t kInFlight = 8;
            const uint64_t step = static_cast<uint64_t>(Scope::size()) * kPiece;
            done = bytes / kPiece * kPiece;
            for (uint64_t first = Scope::rank() * kPiece; first < done; first += step * kInFlight) {
                vec16 values[kInFlight] = {};
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kInFlight; ++k) {
                    if (first + k * step < done) {
                        values[k] = port::load_vec(at_offset(src, first + k * step));
                    }
                }
                for (int distance = 1; distance <= team.n; ++distance) {
                    char *to = of_member(team, at_offset(dst, first), session.team.member_behind(distance % team.n));
                    OXSHMEM_UNROLL
                    for (uint32_t k = 0; k < kInFlight; ++k) {
                        if (first + k * step < done) {
                            port::store_vec(to + k * step, values[k]);
                        }
                    }
                }
            }
        }
    }
    if (done != bytes) {
        for (int distance = 1; distance <= team.n; ++distance) {
            char *to = of_member(team, at_offset(dst, done), session.team.member_behind(distance % team.n));
            near_copy<Scope>(to, at_offset(src, done), bytes - done);
        }
    }
}

// Stores each member's part of src to its dst, where parts are whole pieces and aligned. Parts of
// two members are under way at once, so that copies within the GPU and between GPUs go on side by
// side.
template <class Scope>
OXSHMEM_OUTLINE void scatter(Session session, char *dst, const char *src, uint64_t bytes, uint64_t step) {
    const TeamView &team = session.team;
    constexpr uint32_t kInFlight = 4;
    const uint64_t stride = static_cast<uint64_t>(Scope::size()) * kPiece;
    for (uint64_t first = Scope::rank() * kPiece; first < bytes; first += stride * kInFlight) {
        for (int distance = 1; distance <= team.n; distance += 2) {
            const bool two = distance < team.n;
            const int members[] = {session.team.member_behind(distance % team.n),
                                   session.team.member_behind((distance + 1) % team.n)};
            vec16 values[2][kInFlight] = {};
            OXSHMEM_UNROLL
            for (uint32_t m = 0; m < 2; ++m) {
                const char *from = src + step * static_cast<uint64_t>(members[m]) + first;
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kInFlight; ++k) {
                    if ((m == 0 || two) && first + k * stride < bytes) {
                        values[m][k] = port::load_vec(from + k * stride);
                    }
                }
            }
            OXSHMEM_UNROLL
            for (uint32_t m = 0; m < 2; ++m) {
                char *to = of_member(team, dst + first, members[m]);
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kInFlight; ++k) {
                    if ((m == 0 || two) && first + k * stride < bytes) {
                        port::store_vec(to + k * stride, values[m][k]);
                    }
                }
            }
        }
    }
}

// Combines what all members' src have from `first` to `last`, in the order of the members, and
// stores it `shift` bytes before that in dst: in all members' or in this member's own. `first` is
// the calling lane's first piece. A lane has `kUnits` pieces of each of `kMembers` members under
// way at once. Where several blocks combine, a lane requests its own member's piece and those of
// the members after it first, so that the members do not all load from the same one at a time.
// `kWhole`: all pieces are whole and aligned.
template <class Scope, int kMembers, uint32_t kUnits, bool kWhole, class Combine>
OXSHMEM_DEVICE void combine_pieces(const Session &session, void *dst, const void *src, uint64_t first, uint64_t last,
                                   uint64_t shift, bool to_all, const Combine &combine) {
    const TeamView &team = session.team;
    const uint64_t step = static_cast<uint64_t>(Scope::size()) * kPiece;
    for (; first < last; first += step * kUnits) {
        Accumulator<Combine> sums[kUnits];
        for (int group = 0; group < team.n; group += kMembers) {
            vec16 values[kMembers][kUnits] = {};
            const auto request = [&](int from_member, int to_member) {
                OXSHMEM_UNROLL
                for (int m = 0; m < kMembers; ++m) {
                    if (group + m >= from_member && group + m < to_member) {
                        const char *from = of_member(team, at_offset(src, 0), group + m);
                        OXSHMEM_UNROLL
                        for (uint32_t u = 0; u < kUnits; ++u) {
                            const uint64_t at = first + u * step;
                            if (at < last) {
                                values[m][u] = kWhole ? port::load_vec(from + at) : load_piece(from + at, last - at);
                            }
                        }
                    }
                }
            };
            if constexpr (kSeveralBlocks<Scope>) {
                request(team.me, team.n);
                request(0, team.me);
            } else {
                request(0, team.n);
            }
            OXSHMEM_UNROLL
            for (int m = 0; m < kMembers; ++m) {
                OXSHMEM_UNROLL
                for (uint32_t u = 0; u < kUnits; ++u) {
                    if (group + m < team.n && first + u * step < last) {
                        if (group + m == 0) {
                            sums[u].begin(values[m][u]);
                        } else {
                            sums[u].add(combine, values[m][u]);
                        }
                    }
                }
            }
        }
        vec16 results[kUnits];
        OXSHMEM_UNROLL
        for (uint32_t u = 0; u < kUnits; ++u) {
            results[u] = sums[u].result();
        }
        for (int distance = 0; distance < (to_all ? team.n : 1); ++distance) {
            char *to = of_member(team, at_offset(dst, 0), session.team.member_behind(distance));
            OXSHMEM_UNROLL
            for (uint32_t u = 0; u < kUnits; ++u) {
                const uint64_t at = first + u * step;
                if (at < last) {
                    if constexpr (kWhole) {
                        port::store_vec(to + (at - shift), results[u]);
                    } else {
                        store_piece(to + (at - shift), results[u], last - at);
                    }
                }
            }
        }
    }
}

// Combines a share. What is whole and aligned needs no branch for each piece, which would keep the
// lane from requesting the next one.
template <class Scope, int kMembers, uint32_t kUnits, class Combine>
OXSHMEM_OUTLINE void combine_share(Session session, void *dst, const void *src, Share share, uint64_t shift, bool to_all,
                                   Combine combine) {
    const uint64_t places = reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src);
    uint64_t first = share.first + Scope::rank() * kPiece;
    if (((places | share.first | shift) & (kPiece - 1)) == 0) {
        const uint64_t whole = share.last - (share.last & (kPiece - 1));
        combine_pieces<Scope, kMembers, kUnits, true>(session, dst, src, first, whole, shift, to_all, combine);
        if (whole == share.last) {
            return;
        }
        // What is left is the piece of one lane.
        const bool is_own = (whole - share.first) / kPiece % Scope::size() == Scope::rank();
        first = is_own ? whole : share.last;
    }
    combine_pieces<Scope, kMembers, kUnits, false>(session, dst, src, first, share.last, shift, to_all, combine);
}

// Stores [first, last) of this member's dst to the same place in all others'. Each lane handles the
// pieces that it has stored itself in combine_share.
template <class Scope> OXSHMEM_OUTLINE void hand_out(Session session, char *dst, Share share) {
    const TeamView &team = session.team;
    const uint64_t step = static_cast<uint64_t>(Scope::size()) * kPiece;
    uint64_t first = share.first + Scope::rank() * kPiece;
    if (port::kCoalesced && ((reinterpret_cast<uint64_t>(dst) | share.first) & (kPiece - 1)) == 0) {
        // Whole pieces need no branch each, which would wait for its load.
        constexpr uint32_t kInFlight = 8;
        for (; first + (kInFlight - 1) * step + kPiece <= share.last; first += kInFlight * step) {
            vec16 values[kInFlight];
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                values[k] = port::load_vec(dst + first + k * step);
            }
            for (int distance = 1; distance < team.n; ++distance) {
                char *to = of_member(team, dst + first, session.team.member_behind(distance));
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kInFlight; ++k) {
                    port::store_vec(to + k * step, values[k]);
                }
            }
        }
    }
    for (; first < share.last; first += step) {
        const vec16 value = load_piece(dst + first, share.last - first);
        for (int distance = 1; distance < team.n; ++distance) {
            store_piece(of_member(team, dst + first, session.team.member_behind(distance)), value, share.last - first);
        }
    }
}

// Combines a share with as much under way as the lanes have registers for. Several blocks store
// what is long to the other members after they have loaded all of it: between four H200s loads and
// stores in turn carry 256 MiB in 1275 us, and one after the other in 1200.
template <class Scope, class Combine>
OXSHMEM_DEVICE void combine_near(const Session &session, void *dst, const void *src, Share share, uint64_t shift, bool to_all,
                                 const Combine &combine) {
    if constexpr (kSeveralBlocks<Scope>) {
        const bool hands_out = to_all && share.last - share.first >= port::kLongShare;
        const bool stores = to_all && !hands_out;
        if (session.team.n > 2) {
            combine_share<Scope, 4, 1>(session, dst, src, share, shift, stores, combine);
        } else {
            combine_share<Scope, 2, kOpensGrid<Scope> ? 4 : 2>(session, dst, src, share, shift, stores, combine);
        }
        if (hands_out) {
            hand_out<Scope>(session, at_offset(dst, 0), share);
        }
    } else {
        combine_share<Scope, 4, 2>(session, dst, src, share, shift, to_all, combine);
    }
}

// Tells all members that this one is done; finish() waits for what they say.
template <class Scope, bool Visible> OXSHMEM_DEVICE void tell_of_end(const Session &session) {
    if constexpr (kInGrid<Scope>) {
        tell_grids_of_end<Visible>(session.team);
    } else {
        arrive<Scope, Visible>(session, 0, 0, session.team.n);
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Messages to members that may be reached in different ways
// ---------------------------------------------------------------------------------------------------------------------------

// Copies to `member`, and then says there that `count` of the arrivals of `kind` are there. Every
// lane of the scope calls.
template <class Scope>
OXSHMEM_DEVICE void deliver(const Session &session, int kind, int member, void *dst, const void *src, uint64_t bytes,
                            uint32_t count) {
    const TeamView &team = session.team;
    OXSHMEM_ON_MESSAGE(team.pe_of(member), team.arrivals(kind) + team.me, count);
    put_signal_by<Scope>(DefaultContext{}, dst, src, bytes, team.arrivals(kind) + team.me, arrival_of(team, count),
                         SignalOp::set, team.pe_of(member), false);
}

// Waits until what this block has sent through the network to all members that `sent_to(member)`
// may be overwritten.
template <class Scope, class SentTo> OXSHMEM_DEVICE void complete_sends(const Session &session, SentTo sent_to) {
    if (Scope::rank() == 0) {
        if (by_proxy()) {
            network_quiet();
            return;
        }
        for (int member = 0; member < session.team.n; ++member) {
            const int pe = session.team.pe_of(member);
            if (!is_direct(pe) && sent_to(member)) {
                network_complete(pe, session.op);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// The collectives, after their meeting: what this member does, which finish() follows. They return
// false if a wait has failed.
// ---------------------------------------------------------------------------------------------------------------------------

// Whether the members of a broadcast by several blocks pass on to each other what they read from
// the root: otherwise all that they read would leave the root once for each of them.
template <class Scope> OXSHMEM_DEVICE bool is_passed_on(const TeamView &team) {
    return kSeveralBlocks<Scope> && !kByLevels<Scope> && team.n > 2;
}

// Waits, once this member has done its part, for what the others have to do: the end of every
// collective by `push`. `root` is that of a broadcast.
template <class Scope> OXSHMEM_OUTLINE bool finish(Session session, int root = -1) {
    const TeamView &team = session.team;
    if constexpr (kInGrid<Scope>) {
        return leave_grids(team, session.op);
    }
    const bool near = kSeveralBlocks<Scope> || team.one_round;
    const bool is_broadcast = session.call == Call::broadcast;
    if constexpr (!kSeveralBlocks<Scope>) {
        if (!near) {
            complete_sends<Scope>(session, [&](int member) { return member != root; });
        }
    }
    // The root of a broadcast waits until near members have read its data; the others wait until
    // others have passed theirs on.
    const int kind = is_broadcast && !near ? 1 : 0;
    if (is_broadcast && !is_passed_on<Scope>(team) && near != (team.me == root)) {
        return !Scope::any(false);
    }
    return await_arrivals<Scope>(session, kind, [&](int member) { return member == root ? 0u : 1u; });
}

// Stores this member's part of `bytes` bytes at `src` + member * `step` to dst + me * `bytes` of
// each member, where all of them are load/store reachable.
template <class Scope>
OXSHMEM_DEVICE void store_parts(const Session &session, void *dst, const void *src, uint64_t bytes, uint64_t step) {
    const TeamView &team = session.team;
    char *to = at_offset(dst, bytes * static_cast<uint64_t>(team.me));
    if (step == 0) {
        spread<Scope>(session, to, src, bytes);
        return;
    }
    if constexpr (kSeveralBlocks<Scope> && port::kCoalesced) {
        if (((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(src) | bytes) & (kPiece - 1)) == 0) {
            scatter<Scope>(session, to, static_cast<const char *>(src), bytes, step);
            return;
        }
    }
    for (int distance = 1; distance <= team.n; ++distance) {
        const int member = session.team.member_behind(distance % team.n);
        near_copy<Scope>(of_member(team, to, member), at_offset(src, step * static_cast<uint64_t>(member)), bytes);
    }
}

// The same to members that may be reached in different ways; tells of its end.
template <class Scope>
OXSHMEM_OUTLINE void push_parts(Session session, void *dst, const void *src, uint64_t bytes, uint64_t step) {
    const TeamView &team = session.team;
    char *to = at_offset(dst, bytes * static_cast<uint64_t>(team.me));
    const auto part = [&](int member) { return at_offset(src, step * static_cast<uint64_t>(member)); };
    if (kSeveralBlocks<Scope> || team.one_round) {
        store_parts<Scope>(session, dst, src, bytes, step);
        tell_of_end<Scope, true>(session);
        return;
    }
    if constexpr (!kSeveralBlocks<Scope>) {
        for (int distance = 1; distance < team.n; ++distance) {
            const int member = session.team.member_behind(distance);
            deliver<Scope>(session, 0, member, to, part(member), bytes, 1);
        }
        near_copy<Scope>(to, part(team.me), bytes);
    }
}

// The same for elements that lie apart: strides in bytes.
struct Strides {
    uint32_t element;
    uint64_t dst, src;
};

template <class U> OXSHMEM_DEVICE void copy_units(char *to, const char *from, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at += sizeof(U)) {
        port::write(reinterpret_cast<U *>(to + at), port::read(reinterpret_cast<const U *>(from + at)));
    }
}

// Copies an element in units of `unit` bytes, of which it is a multiple and to which both sides are
// aligned. The alignment of an element's type may be less than its size.
OXSHMEM_DEVICE void copy_element(char *to, const char *from, uint32_t bytes, uint32_t unit) {
    switch (unit) {
    case 1:
        copy_units<char>(to, from, bytes);
        return;
    case 2:
        copy_units<uint16_t>(to, from, bytes);
        return;
    case 4:
        copy_units<uint32_t>(to, from, bytes);
        return;
    default:
        copy_units<uint64_t>(to, from, bytes);
    }
}

// Returns the largest unit, of 8 bytes at most, to which all elements of both sides are aligned.
OXSHMEM_DEVICE uint32_t unit_of_elements(const void *dst, const void *src, const Strides &strides) {
    const uint64_t all = reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src) | strides.dst | strides.src |
                         strides.element | sizeof(uint64_t);
    return static_cast<uint32_t>(all & (~all + 1));
}

template <class Scope>
OXSHMEM_OUTLINE void push_strided(Session session, void *dst, const void *src, uint64_t n, Strides strides) {
    const TeamView &team = session.team;
    char *to = at_offset(dst, static_cast<uint64_t>(team.me) * n * strides.dst);
    const uint32_t unit = unit_of_elements(dst, src, strides);
    for (int distance = 1; distance <= team.n; ++distance) {
        const int member = session.team.member_behind(distance % team.n), pe = team.pe_of(member);
        const char *from = at_offset(src, static_cast<uint64_t>(member) * n * strides.src);
        const bool near = kSeveralBlocks<Scope> || is_direct(pe);
        for (uint64_t i = Scope::rank(); i < n; i += Scope::size()) {
            if (near) {
                copy_element(translate(to + i * strides.dst, pe), from + i * strides.src, strides.element, unit);
            } else if constexpr (!kSeveralBlocks<Scope>) {
                OXSHMEM_ON_MESSAGE(pe, nullptr, 0);
                network_put(DefaultContext{}, to + i * strides.dst, from + i * strides.src, strides.element, pe);
            }
        }
        if constexpr (!kSeveralBlocks<Scope>) {
            if (!team.one_round && member != team.me) {
                Scope::sync();
                deliver<Scope>(session, 0, member, to, src, 0, 1);
            }
        }
    }
    if (kSeveralBlocks<Scope> || team.one_round) {
        tell_of_end<Scope, true>(session);
    }
}

// Over the network the root sends each member a part, which the member sends on to the others.
template <class Scope>
OXSHMEM_DEVICE bool far_broadcast(const Session &session, void *dst, const void *src, uint64_t bytes, int root) {
    const TeamView &team = session.team;
    const bool is_root = team.me == root;
    const auto part = [&](int member) { return share_of(team, bytes, member); };
    if (is_root) {
        const Share own = part(root);
        for (int distance = 1; distance < team.n; ++distance) {
            const int member = session.team.member_behind(distance);
            const Share share = part(member);
            OXSHMEM_ON_MESSAGE(team.pe_of(member), nullptr, 0);
            put_by<Scope>(DefaultContext{}, at_offset(dst, own.first), at_offset(src, own.first), own.last - own.first,
                          team.pe_of(member), false);
            Scope::sync(); // staged pieces are posted by the lanes that have copied them
            deliver<Scope>(session, 0, member, at_offset(dst, share.first), at_offset(src, share.first),
                           share.last - share.first, 1);
        }
        return true;
    }
    if (!await_arrivals<Scope>(session, 0, [&](int member) { return member == root ? 1u : 0u; })) {
        return false;
    }
    const Share own = part(team.me);
    for (int distance = 1; distance < team.n; ++distance) {
        const int member = session.team.member_behind(distance);
        if (member != root) {
            const char *from = at_offset(static_cast<const void *>(dst), own.first);
            deliver<Scope>(session, 1, member, at_offset(dst, own.first), from, own.last - own.first, 1);
        }
    }
    return true;
}

// From how many bytes on only some threads of a grid read a broadcast from the root, and how many.
// The schedule explorer has less.
#ifndef OXSHMEM_LONG_BROADCAST
#define OXSHMEM_LONG_BROADCAST oxshmem::abi::kLongBroadcast
#define OXSHMEM_LONG_BROADCAST_LANES oxshmem::abi::kLongBroadcastLanes
#endif
constexpr uint64_t kLongBroadcast = OXSHMEM_LONG_BROADCAST;
constexpr uint32_t kLongBroadcastLanes = OXSHMEM_LONG_BROADCAST_LANES;

// Reads a member's share of the root's data, and stores it to all members but the root.
template <class Scope>
OXSHMEM_DEVICE void pass_on(const Session &session, void *dst, const void *src, uint64_t bytes, int root) {
    const TeamView &team = session.team;
    const int behind = team.me - root - 1, number = behind < 0 ? behind + team.n : behind;
    const uint64_t others = static_cast<uint64_t>(team.n) - 1;
    const uint64_t each = (pieces_of(bytes) + others - 1) / others * kPiece;
    const uint64_t begin = least(each * static_cast<uint64_t>(number), bytes), length = least(each, bytes - begin);
    const char *from = of_member(team, at_offset(src, begin), root);
    uint64_t done = 0;
    if constexpr (port::kCoalesced) {
        if (((reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src)) & (kPiece - 1)) == 0) {
            // What comes next is requested before what has come is stored, so that loads and stores
            // go on side by side.
            constexpr uint32_t kInFlight = 2;
            const bool is_long = kInGrid<Scope> && bytes >= kLongBroadcast;
            const uint64_t lanes = is_long ? least(Scope::size(), kLongBroadcastLanes) : Scope::size();
            const uint64_t step = lanes * kPiece;
            done = length / kPiece * kPiece;
            const auto request = [&](vec16(&values)[kInFlight], uint64_t first) {
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kInFlight; ++k) {
                    if (first + k * step < done) {
                        values[k] = port::load_vec(from + first + k * step);
                    }
                }
            };
            vec16 values[kInFlight] = {}, next[kInFlight] = {};
            uint64_t first = Scope::rank() < lanes ? Scope::rank() * kPiece : done;
            request(values, first);
            for (; first < done; first += step * kInFlight) {
                request(next, first + step * kInFlight);
                for (int distance = 0; distance < team.n; ++distance) {
                    const int member = session.team.member_behind(distance);
                    if (member != root) {
                        char *to = of_member(team, at_offset(dst, begin + first), member);
                        OXSHMEM_UNROLL
                        for (uint32_t k = 0; k < kInFlight; ++k) {
                            if (first + k * step < done) {
                                port::store_vec(to + k * step, values[k]);
                            }
                        }
                    }
                }
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kInFlight; ++k) {
                    values[k] = next[k];
                }
            }
        }
    }
    for (int distance = 0; done != length && distance < team.n; ++distance) {
        const int member = session.team.member_behind(distance);
        if (member != root) {
            near_copy<Scope, Source::far>(of_member(team, at_offset(dst, begin + done), member), from + done, length - done);
        }
    }
}

// The root's data to all. Members within load/store reach read it.
template <class Scope>
OXSHMEM_OUTLINE bool push_broadcast(Session session, void *dst, const void *src, uint64_t bytes, int root) {
    const TeamView &team = session.team;
    const bool is_root = team.me == root;
    if (is_root && dst != src) {
        near_copy<Scope>(dst, src, bytes);
    }
    if (kSeveralBlocks<Scope> || team.one_round) {
        if (!is_root && is_passed_on<Scope>(team)) {
            pass_on<Scope>(session, dst, src, bytes, root);
            tell_of_end<Scope, true>(session);
        } else if (!is_root) {
            near_copy<Scope, Source::far>(dst, of_member(team, src, root), bytes);
        }
        if constexpr (kInGrid<Scope>) {
            if (is_root || !is_passed_on<Scope>(team)) {
                tell_of_end<Scope, false>(session);
            }
        } else if (!is_root && !is_passed_on<Scope>(team)) {
            arrive<Scope, false>(session, 0, root, root + 1);
        }
        return true;
    }
    if constexpr (!kSeveralBlocks<Scope>) {
        return far_broadcast<Scope>(session, dst, src, bytes, root);
    }
    return false;
}

// Through the network, others' data arrives in pieces in this member's workspace: piece p into one
// half of it, and not before piece p - 2 has been combined.
template <class Scope, class Combine>
OXSHMEM_DEVICE bool far_combined(const Session &session, void *dst, const void *src, uint64_t bytes, bool to_all,
                                 const Combine &combine) {
    const TeamView &team = session.team;
    // Returns a member's share of all data, or the whole of its result.
    const auto share = [&](int member) {
        const uint64_t first = bytes * static_cast<uint64_t>(member);
        return to_all ? share_of(team, bytes, member) : Share{first, first + bytes};
    };
    const Share own = share(team.me);
    const uint64_t shift = to_all ? 0 : own.first;
    const uint64_t half = team.packet_bytes() / 2, room = half / static_cast<uint64_t>(team.n) / kPiece * kPiece;
    const auto pieces = [&](int member) {
        const Share s = share(member);
        return static_cast<uint32_t>((s.last - s.first + room - 1) / room);
    };
    const auto place = [&](int sender, uint32_t piece) {
        return as<char>(team.packets() + (piece & 1) * half + static_cast<uint64_t>(sender) * room);
    };
    const auto piece_of = [&](const Share &s, uint32_t piece) {
        const uint64_t first = s.first + piece * room;
        return Share{first, s.last - first < room ? s.last : first + room};
    };
    const uint32_t most = pieces(0); // no member has more
    for (uint32_t piece = 0; piece < most; ++piece) {
        if (piece >= 2 &&
            !await_arrivals<Scope>(session, 1, [&](int member) { return piece < pieces(member) ? piece - 1 : 0; })) {
            return false;
        }
        for (int distance = 1; distance < team.n; ++distance) {
            const int member = session.team.member_behind(distance);
            if (piece < pieces(member)) {
                const Share s = piece_of(share(member), piece);
                deliver<Scope>(session, 0, member, place(team.me, piece), at_offset(src, s.first), s.last - s.first, piece + 1);
            }
        }
        if (piece >= pieces(team.me)) {
            continue;
        }
        if (!await_arrivals<Scope>(session, 0, [&](int) { return piece + 1; })) {
            return false;
        }
        const Share s = piece_of(own, piece);
        for (uint64_t at = Scope::rank() * kPiece; at < s.last - s.first; at += Scope::size() * kPiece) {
            const uint64_t left = s.last - s.first - at;
            Accumulator<Combine> sum;
            for (int member = 0; member < team.n; ++member) {
                const char *from = member == team.me ? at_offset(src, s.first) : place(member, piece);
                const vec16 value = load_piece(from + at, left);
                if (member == 0) {
                    sum.begin(value);
                } else {
                    sum.add(combine, value);
                }
            }
            store_piece(at_offset(dst, s.first - shift + at), sum.result(), left);
        }
        Scope::sync();
        for (int distance = 1; distance < team.n; ++distance) {
            char *to = at_offset(dst, s.first - shift);
            deliver<Scope>(session, 1, session.team.member_behind(distance), to, to, to_all ? s.last - s.first : 0, piece + 1);
        }
    }
    complete_sends<Scope>(session, [](int) { return true; });
    return await_arrivals<Scope>(session, 1, [&](int member) { return pieces(member); });
}

// Where the members' data is combined: by each member a share, which goes to all; by each member
// all of it; or by each member its part, which stays there.
enum class Result { shared, by_each, scattered };

// All members' data combined. Where they are not near the collective has ended then, and finish()
// does not follow.
template <class Scope, class Combine>
OXSHMEM_OUTLINE bool push_combined(Session session, void *dst, const void *src, uint64_t bytes, Result result,
                                   Combine combine) {
    const bool to_all = result == Result::shared;
    const uint64_t first = bytes * static_cast<uint64_t>(session.team.me);
    const Share own = to_all                      ? share_of(session.team, bytes, session.team.me)
                      : result == Result::by_each ? Share{0, bytes}
                                                  : Share{first, first + bytes};
    const uint64_t shift = result == Result::scattered ? own.first : 0;
    if (kSeveralBlocks<Scope> || session.team.one_round) {
        combine_near<Scope>(session, dst, src, own, shift, to_all, combine);
        if (to_all) {
            tell_of_end<Scope, true>(session);
        } else {
            tell_of_end<Scope, false>(session);
        }
        return true;
    }
    if constexpr (!kSeveralBlocks<Scope>) {
        return far_combined<Scope>(session, dst, src, bytes, result != Result::scattered, combine);
    }
    return false;
}

} // namespace oxshmem::detail
