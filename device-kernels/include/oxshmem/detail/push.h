// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Large collectives: after a meeting, straight between the members' buffers.
//
// Where all members are load and store reachable, every member's threads store to its peers' dst, or load from their src, and
// one fence before the flags of arrival ends the collective. Otherwise each message is a put with signal, whose signal is the
// flag. Loads from peers see what was stored before the meeting, because it made that visible.
#pragma once

#include <oxshmem/signal.h>

#include "collective.h"
#include "reduce_ops.h"

namespace oxshmem::detail {

OXSHMEM_DEVICE char *at_offset(void *base, uint64_t offset) {
    return static_cast<char *>(base) + offset;
}
OXSHMEM_DEVICE const char *at_offset(const void *base, uint64_t offset) {
    return static_cast<const char *>(base) + offset;
}

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

// Whether all of these are aligned to pieces, where lanes load and store whole ones.
OXSHMEM_DEVICE bool in_pieces(const void *dst, const void *src, uint64_t offset) {
    return port::kCoalesced && ((reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src) | offset) % kPiece) == 0;
}

// A message to a member: the data, and which of its arrivals then says how much of it is there.
struct Message {
    void *dst;
    const void *src;
    uint64_t bytes;
    int kind;
    uint32_t count; // 0: nothing is said
};

// A message through the network.
template <class Scope> OXSHMEM_OUTLINE void send_far(const Session &session, int pe, const Message &message) {
    if (message.count != 0) {
        far_put_signal<Scope>(message.dst, message.src, message.bytes, session.team.arrivals(message.kind) + session.team.me,
                              arrival_of(session.team, message.count), SignalOp::set, pe, false);
    } else {
        far_put<Scope>(message.dst, message.src, message.bytes, pe, false);
    }
}

// Copies to `member`, and then says so there. Every lane of the scope calls. All copies of collectives are made here:
// ptxas numbers the registers of a function above those that are live in any of its callers, so it should have few of these.
template <class Scope> OXSHMEM_OUTLINE void send(const Session &session, int member, const Message &message) {
    const int pe = session.team.pe_of(member);
    if (message.count != 0) {
        OXSHMEM_ON_MESSAGE(pe, session.team.arrivals(message.kind) + session.team.me, message.count);
    } else if (!session.team.one_round) {
        OXSHMEM_ON_MESSAGE(pe, nullptr, 0);
    }
    if (!is_direct(pe)) {
        return send_far<Scope>(session, pe, message);
    }
    near_copy<Scope>(translate(message.dst, pe), message.src, message.bytes);
    if (message.count != 0) {
        Scope::sync();
        if (Scope::rank() == Scope::last()) {
            port::store<order::release, reach::system>(
                translate(session.team.arrivals(message.kind) + session.team.me, session.team.pe_of(member)),
                arrival_of(session.team, message.count));
        }
    }
}
template <class Scope>
OXSHMEM_DEVICE void deliver(const Session &session, int kind, int member, void *dst, const void *src, uint64_t bytes,
                            uint32_t count) {
    const Message message{dst, src, bytes, kind, count};
    send<Scope>(session, member, message);
}
// The same without saying so.
template <class Scope>
OXSHMEM_DEVICE void deliver(const Session &session, int member, void *dst, const void *src, uint64_t bytes) {
    deliver<Scope>(session, 0, member, dst, src, bytes, 0);
}

// Copies whole pieces to all members' dst, what was loaded once stored to each.
template <class Scope> OXSHMEM_OUTLINE void spread_pieces(const Session &session, char *dst, const char *src, uint64_t bytes) {
    constexpr uint32_t kInFlight = 8;
    const uint32_t step = Scope::size() * kPiece;
    for (uint64_t first = Scope::rank() * kPiece; first < bytes; first += step * kInFlight) {
        vec16 values[kInFlight] = {};
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            if (first + k * step < bytes) {
                values[k] = port::load_vec(src + first + k * step);
            }
        }
        for (int distance = 1; distance <= session.team.n; ++distance) {
            char *to = of_member(session.team, dst + first, session.member_behind(distance % session.team.n));
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                if (first + k * step < bytes) {
                    port::store_vec(to + k * step, values[k]);
                }
            }
        }
    }
}

// Copies to all members' dst.
template <class Scope> OXSHMEM_OUTLINE void spread(const Session &session, char *dst, const void *src, uint64_t bytes) {
    uint64_t done = 0;
    if (Scope::kLanes > 1 && in_pieces(dst, src, 0)) {
        done = bytes / kPiece * kPiece;
        spread_pieces<Scope>(session, dst, static_cast<const char *>(src), done);
    }
    if (done != bytes) {
        for (int distance = 1; distance <= session.team.n; ++distance) {
            deliver<Scope>(session, session.member_behind(distance % session.team.n), dst + done, at_offset(src, done),
                           bytes - done);
        }
    }
}

// Combines [first, last) of all members' src in the order of the members, and stores it `shift` bytes before that in dst: in
// all members' or in the own one. `kWhole`: all in whole pieces, each at a multiple of their size.
template <class Scope, uint32_t kUnits, bool kWhole, class Combine>
OXSHMEM_OUTLINE void combine_units(const Session &session, const Share &share, uint64_t shift, Combine combine) {
    constexpr int kMembers = 2;
    const TeamView &team = session.team;
    const uint32_t step = Scope::size() * kPiece;
    const uint64_t last = share.last;
    for (uint64_t first = share.first + Scope::rank() * kPiece; first < last; first += step * kUnits) {
        vec16 sums[kUnits] = {};
        for (int group = 0; group < team.n; group += kMembers) {
            vec16 values[kMembers][kUnits] = {};
            OXSHMEM_UNROLL
            for (int m = 0; m < kMembers; ++m) {
                if (group + m < team.n) {
                    const char *from = of_member(team, at_offset(session.src, first), group + m);
                    OXSHMEM_UNROLL
                    for (uint32_t u = 0; u < kUnits; ++u) {
                        if (first + u * step < last) {
                            values[m][u] = kWhole ? port::load_vec(from + u * step)
                                                  : load_piece(from + u * step, last - (first + u * step));
                        }
                    }
                }
            }
            OXSHMEM_UNROLL
            for (int m = 0; m < kMembers; ++m) {
                OXSHMEM_UNROLL
                for (uint32_t u = 0; u < kUnits; ++u) {
                    if (group + m < team.n && first + u * step < last) {
                        sums[u] = group + m == 0 ? values[m][u] : combine(sums[u], values[m][u]);
                    }
                }
            }
        }
        for (int distance = 0; distance < (session.to_all ? team.n : 1); ++distance) {
            char *to = of_member(team, at_offset(session.dst, first - shift), session.member_behind(distance));
            OXSHMEM_UNROLL
            for (uint32_t u = 0; u < kUnits; ++u) {
                if (first + u * step < last) {
                    if (kWhole) {
                        port::store_vec(to + u * step, sums[u]);
                    } else {
                        store_piece(to + u * step, sums[u], last - (first + u * step));
                    }
                }
            }
        }
    }
}

template <class Scope, class Combine>
OXSHMEM_DEVICE void combine_share(const Session &session, Share share, uint64_t shift, Combine combine) {
    if (in_pieces(session.dst, session.src, share.first | shift)) {
        const Share whole{share.first, share.first + (share.last - share.first) / kPiece * kPiece};
        combine_units<Scope, 4, true>(session, whole, shift, combine);
        share.first = whole.last;
    }
    if (share.first != share.last) {
        combine_units<Scope, 1, false>(session, share, shift, combine);
    }
}

// All members tell each other that they are done, and wait for that.
template <class Scope, bool Visible> OXSHMEM_OUTLINE bool end_together(const Session &session) {
    arrive<Scope, Visible>(session, 0, 0, session.team.n);
    return await_arrivals<Scope>(session, 0, [](int) { return 1u; });
}

// ---------------------------------------------------------------------------------------------------------------------------
// Messages to members that may be reached in different ways
// ---------------------------------------------------------------------------------------------------------------------------

OXSHMEM_OUTLINE void complete_member(int pe, Op op) {
    network_complete(pe, op);
}
// Waits until all that was sent to a member is complete; by the CPU proxy, to all.
OXSHMEM_OUTLINE void complete_send(int pe, Op op) {
    if (by_proxy()) {
        network_quiet();
    } else {
        complete_member(pe, op);
    }
}

// Waits until what this block has sent through the network to all members that `sent_to(member)` may be overwritten.
template <class Scope, class SentTo> OXSHMEM_DEVICE void complete_sends(const Session &session, SentTo sent_to) {
    if (Scope::rank() == 0) {
        for (int member = 0; member < session.team.n; ++member) {
            const int pe = session.team.pe_of(member);
            if (!is_direct(pe) && sent_to(member)) {
                complete_send(pe, session.op);
                if (by_proxy()) {
                    return;
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------------
// The collectives, behind their meeting. Each ends with Scope::any.
// ---------------------------------------------------------------------------------------------------------------------------

// Waits until what was sent to members may be overwritten, and for one arrival from each.
template <class Scope> OXSHMEM_OUTLINE bool end_sends(const Session &session) {
    complete_sends<Scope>(session, [](int) { return true; });
    return await_arrivals<Scope>(session, 0, [](int) { return 1u; });
}

// The own part of the session's bytes at `src` + member * `step` goes to dst + me * bytes of each member.
template <class Scope> OXSHMEM_OUTLINE void copy_part(const Session &session, int distance) {
    const int member = session.member_behind(distance % session.team.n);
    deliver<Scope>(session, member, at_offset(session.dst, session.bytes * static_cast<uint64_t>(session.team.me)),
                   at_offset(session.src, session.step * static_cast<uint64_t>(member)), session.bytes);
}
template <class Scope> OXSHMEM_OUTLINE void send_parts(const Session &session) {
    for (int distance = 1; distance < session.team.n; ++distance) {
        const int member = session.member_behind(distance);
        deliver<Scope>(session, 0, member, at_offset(session.dst, session.bytes * static_cast<uint64_t>(session.team.me)),
                       at_offset(session.src, session.step * static_cast<uint64_t>(member)), session.bytes, 1);
    }
}
template <class Scope> OXSHMEM_OUTLINE bool push_parts(const Session &session) {
    if (session.team.one_round) {
        if (session.step == 0) {
            spread<Scope>(session, at_offset(session.dst, session.bytes * static_cast<uint64_t>(session.team.me)), session.src,
                          session.bytes);
        } else {
            for (int distance = 1; distance <= session.team.n; ++distance) {
                copy_part<Scope>(session, distance);
            }
        }
        return end_together<Scope, true>(session);
    }
    send_parts<Scope>(session);
    copy_part<Scope>(session, session.team.n);
    return end_sends<Scope>(session);
}

// One element through the network.
OXSHMEM_OUTLINE void put_element(void *to, const void *from, uint32_t bytes, int pe) {
    far_put<thread_scope>(to, from, bytes, pe, false);
}

OXSHMEM_DEVICE void copy_element(char *to, const char *from, uint32_t bytes) {
    switch (bytes) {
    case 1:
        port::write(to, port::read(from));
        return;
    case 2:
        port::write(reinterpret_cast<uint16_t *>(to), port::read(reinterpret_cast<const uint16_t *>(from)));
        return;
    case 4:
        port::write(reinterpret_cast<uint32_t *>(to), port::read(reinterpret_cast<const uint32_t *>(from)));
        return;
    default:
        for (uint32_t at = 0; at < bytes; at += 8) {
            port::write(reinterpret_cast<uint64_t *>(to + at), port::read(reinterpret_cast<const uint64_t *>(from + at)));
        }
    }
}

// As push_parts, element by element.
template <class Scope> OXSHMEM_OUTLINE bool push_strided(const Session &session) {
    const Strides &strides = session.strides;
    for (int distance = 1; distance <= session.team.n; ++distance) {
        const int member = session.member_behind(distance % session.team.n);
        const uint64_t first_to = static_cast<uint64_t>(session.team.me) * session.n;
        const uint64_t first_from = static_cast<uint64_t>(member) * session.n;
        for (uint64_t i = Scope::rank(); i < session.n; i += Scope::size()) {
            char *to = at_offset(session.dst, (first_to + i) * strides.dst);
            const char *from = at_offset(session.src, (first_from + i) * strides.src);
            const int pe = session.team.pe_of(member);
            if (is_direct(pe)) {
                copy_element(translate(to, pe), from, strides.element);
            } else {
                OXSHMEM_ON_MESSAGE(pe, nullptr, 0);
                put_element(to, from, strides.element, pe);
            }
        }
        if (!session.team.one_round && member != session.team.me) {
            Scope::sync();
            deliver<Scope>(session, 0, member, session.dst, session.src, 0, 1);
        }
    }
    if (session.team.one_round) {
        return end_together<Scope, true>(session);
    }
    complete_sends<Scope>(session, [](int) { return true; });
    return await_arrivals<Scope>(session, 0, [](int) { return 1u; });
}

// The root's data to all. Load/store reachable members read it; over the network the root sends each member a part, which it
// sends on to the others.
template <class Scope> OXSHMEM_OUTLINE bool push_broadcast(const Session &session) {
    const TeamView &team = session.team;
    if (team.me == session.root && session.dst != session.src) {
        deliver<Scope>(session, session.root, session.dst, session.src, session.bytes);
    }
    if (team.one_round) {
        if (team.me == session.root) {
            return await_arrivals<Scope>(session, 0, [](int) { return 1u; });
        }
        deliver<Scope>(session, team.me, session.dst, of_member(team, session.src, session.root), session.bytes);
        arrive<Scope, false>(session, 0, session.root, session.root + 1);
        return !Scope::any(false);
    }
    // Sends a member a part of what lies at `from`.
    const auto pass_on = [&](int kind, int member, int part, const void *from) {
        const Share share = share_of(session.team, session.bytes, part);
        deliver<Scope>(session, kind, member, at_offset(session.dst, share.first), at_offset(from, share.first),
                       share.last - share.first, 1);
    };
    if (team.me == session.root) {
        for (int distance = 1; distance < team.n; ++distance) {
            const int member = session.member_behind(distance);
            const Share own = share_of(team, session.bytes, team.me);
            deliver<Scope>(session, member, at_offset(session.dst, own.first), at_offset(session.src, own.first),
                           own.last - own.first);
            pass_on(0, member, member, session.src);
        }
        complete_sends<Scope>(session, [](int) { return true; });
        return !Scope::any(false);
    }
    if (!await_arrivals<Scope>(session, 0, [&](int member) { return member == session.root ? 1u : 0u; })) {
        return false;
    }
    for (int distance = 1; distance < team.n; ++distance) {
        const int member = session.member_behind(distance);
        if (member != session.root) {
            pass_on(1, member, team.me, session.dst);
        }
    }
    complete_sends<Scope>(session, [&](int member) { return member != session.root; });
    return await_arrivals<Scope>(session, 1, [&](int member) { return member == session.root ? 0u : 1u; });
}

// Combines the own piece and those that the other members have sent to `places`, `room` bytes apart, and stores it to `to`.
template <class Scope, class Combine>
OXSHMEM_OUTLINE void combine_places(const Session &session, char *to, const char *own, uint64_t places, uint64_t room,
                                    uint64_t bytes, Combine combine) {
    for (uint64_t at = Scope::rank() * kPiece; at < bytes; at += Scope::size() * kPiece) {
        vec16 sum{};
        for (int member = 0; member < session.team.n; ++member) {
            const char *from = member == session.team.me ? own : as<char>(places + static_cast<uint64_t>(member) * room);
            const vec16 value = load_piece(from + at, bytes - at);
            sum = member == 0 ? value : combine(sum, value);
        }
        store_piece(to + at, sum, bytes - at);
    }
}

// The pieces that members' shares are cut into where the network connects them.
struct Cut {
    uint64_t each;  // bytes of a member's share
    uint64_t bytes; // of all shares
    uint64_t room;  // bytes of a piece
    uint64_t shift; // from a place in the own share to that in dst

    OXSHMEM_DEVICE Cut(const Session &session) {
        const TeamView &team = session.team;
        each = session.to_all ? share_of(team, session.bytes, 0).last : session.bytes;
        bytes = session.to_all ? session.bytes : session.bytes * static_cast<uint64_t>(team.n);
        room = abi::kPacketBytes / 2 / static_cast<uint64_t>(team.n) / kPiece * kPiece;
        shift = session.to_all ? 0 : each * static_cast<uint64_t>(team.me);
    }
    OXSHMEM_DEVICE Share share(int member) const {
        const uint64_t first = each * static_cast<uint64_t>(member);
        return {least(first, bytes), least(first + each, bytes)};
    }
    OXSHMEM_DEVICE uint32_t pieces(int member) const {
        const Share s = share(member);
        return static_cast<uint32_t>((s.last - s.first + room - 1) / room);
    }
    OXSHMEM_DEVICE Share piece(int member, uint32_t number) const {
        const Share s = share(member);
        const uint64_t first = s.first + number * room;
        return {first, s.last - first < room ? s.last : first + room};
    }
    OXSHMEM_DEVICE uint64_t places(const Session &session, uint32_t number) const {
        return session.team.packets() + (number & 1) * (abi::kPacketBytes / 2);
    }
};

// One piece of push_combined; false: an error was recorded.
template <class Scope, class Combine>
OXSHMEM_OUTLINE bool push_piece(const Session &session, const Cut &cut, uint32_t number, Combine combine) {
    const TeamView &team = session.team;
    if (number >= 2 &&
        !await_arrivals<Scope>(session, 1, [&](int member) { return number < cut.pieces(member) ? number - 1 : 0; })) {
        return false;
    }
    for (int distance = 1; distance < team.n; ++distance) {
        const int member = session.member_behind(distance);
        if (number < cut.pieces(member)) {
            const Share s = cut.piece(member, number);
            deliver<Scope>(session, 0, member,
                           as<char>(cut.places(session, number) + static_cast<uint64_t>(team.me) * cut.room),
                           at_offset(session.src, s.first), s.last - s.first, number + 1);
        }
    }
    if (number >= cut.pieces(team.me)) {
        return true;
    }
    if (!await_arrivals<Scope>(session, 0, [&](int) { return number + 1; })) {
        return false;
    }
    const Share s = cut.piece(team.me, number);
    combine_places<Scope>(session, at_offset(session.dst, s.first - cut.shift), at_offset(session.src, s.first),
                          cut.places(session, number), cut.room, s.last - s.first, combine);
    Scope::sync();
    for (int distance = 1; distance < team.n; ++distance) {
        const Share mine = cut.piece(team.me, number);
        char *to = at_offset(session.dst, mine.first - cut.shift);
        deliver<Scope>(session, 1, session.member_behind(distance), to, to, session.to_all ? mine.last - mine.first : 0,
                       number + 1);
    }
    return true;
}

// All members' data combined: each member combines its share, which goes to all, or stays. Through the network, others' data
// comes by pieces into the own workspace: piece p into one half of it, and not before piece p - 2 has been combined.
template <class Scope, class Combine> OXSHMEM_OUTLINE bool push_combined(const Session &session, Combine combine) {
    const Cut cut(session);
    if (session.team.one_round) {
        combine_share<Scope>(session, cut.share(session.team.me), cut.shift, combine);
        return session.to_all ? end_together<Scope, true>(session) : end_together<Scope, false>(session);
    }
    const uint32_t most = cut.pieces(0); // no member has more
    for (uint32_t number = 0; number < most; ++number) {
        if (!push_piece<Scope>(session, cut, number, combine)) {
            return false;
        }
    }
    complete_sends<Scope>(session, [](int) { return true; });
    return await_arrivals<Scope>(session, 1, [&](int member) { return cut.pieces(member); });
}

} // namespace oxshmem::detail
