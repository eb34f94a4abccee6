// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Trees: for teams that the network connects, few messages in sequence instead of many at once.
#pragma once

#include "push.h"

namespace oxshmem::detail {

// A binomial tree: counted from the root, a member's parent is its number without the lowest bit,
// and it sends on to those with one bit more below that. Long data follows in pieces.
template <class Scope>
OXSHMEM_OUTLINE bool tree_broadcast(Session session, void *dst, const void *src, uint64_t bytes, int root) {
    constexpr uint64_t kTreePiece = 65536;
    const TeamView &team = session.team;
    const uint32_t n = static_cast<uint32_t>(team.n);
    const uint32_t me = static_cast<uint32_t>(team.me < root ? team.me - root + team.n : team.me - root);
    const auto member_of = [&](uint32_t number) { return static_cast<int>((number + static_cast<uint32_t>(root)) % n); };
    uint32_t reach = 1; // the lowest bit of this member's number; for the root, one that is beyond all
    while (reach < n && (me & reach) == 0) {
        reach *= 2;
    }
    const bool is_root = me == 0;
    const int parent = member_of(me - (is_root ? 0 : reach));
    const char *from = static_cast<const char *>(is_root ? src : dst);
    uint32_t piece = 0;
    for (uint64_t first = 0; first < bytes; first += kTreePiece) {
        const uint64_t length = least(bytes - first, kTreePiece);
        ++piece;
        if (!is_root && !await_arrivals<Scope>(session, 0, [&](int member) { return member == parent ? piece : 0; })) {
            return false;
        }
        for (uint32_t bit = reach / 2; bit != 0; bit /= 2) {
            if (me + bit < n) {
                deliver<Scope>(session, 0, member_of(me + bit), at_offset(dst, first), from + first, length, piece);
            }
        }
    }
    if (is_root && dst != src) {
        near_copy<Scope>(dst, src, bytes);
    }
    complete_sends<Scope>(session, [&](int member) {
        const uint32_t number = static_cast<uint32_t>(member < root ? member - root + team.n : member - root);
        return number > me && number - me < reach && ((number - me) & (number - me - 1)) == 0;
    });
    return !Scope::any(false);
}

// Recursive doubling, piece by piece. If the number of members is not a power of two, the first few
// are pairs: the odd member of a pair sends its data to the even one and gets the result. The
// operand of the lower members always comes first, so all members compute the same.
//
// A piece has a place for what each round brings, and one for what each round sends, in one half of
// the workspace; piece p + 1 uses the other half. A member that sends piece p + 1 has done with
// piece p, so its partners may write where that was once they have seen it.
template <class Scope, class Combine>
OXSHMEM_OUTLINE bool tree_reduce(Session session, void *dst, const void *src, uint64_t bytes, Combine combine) {
    const TeamView &team = session.team;
    int power = 1;
    uint32_t rounds = 0;
    while (power * 2 <= team.n) {
        power *= 2, ++rounds;
    }
    const int extra = team.n - power;
    const bool paired = team.me < 2 * extra, folded = paired && team.me % 2 == 1;
    const int number = paired ? team.me / 2 : team.me - extra;
    const auto member_of = [&](int other) { return other < extra ? 2 * other : other + extra; };
    const uint64_t room = abi::kPacketBytes / 2 / (2 * (rounds + 1)) / kPiece * kPiece;

    uint32_t piece = 0;
    for (uint64_t first = 0; first < bytes; first += room) {
        const uint64_t length = least(bytes - first, room);
        const uint64_t half = team.packets() + (piece & 1) * (abi::kPacketBytes / 2);
        const auto brought = [&](uint32_t round) { return as<char>(half + round * room); };
        const auto sent = [&](uint32_t round) { return as<char>(half + (rounds + 1 + round) * room); };
        ++piece;
        char *const to = at_offset(dst, first);
        const auto arrived = [&](int from) {
            return await_arrivals<Scope>(session, 0, [&](int member) { return member == from ? piece : 0; });
        };
        // Combines into `out`, which is `first` or another place.
        const auto merge = [&](char *out, const char *low, const char *high) {
            for (uint64_t at = Scope::rank() * kPiece; at < length; at += Scope::size() * kPiece) {
                const vec16 value = load_piece(low + at, length - at);
                store_piece(out + at, high == nullptr ? value : combine(value, load_piece(high + at, length - at)),
                            length - at);
            }
            Scope::sync();
        };
        if (folded) {
            deliver<Scope>(session, 0, team.me - 1, brought(0), at_offset(src, first), length, piece);
            if (!arrived(team.me - 1)) {
                return false;
            }
            continue;
        }
        // Where the result of the round goes: to the next round's messages, or after the last to
        // dst.
        const auto out = [&](uint32_t round) { return round == rounds ? to : sent(round); };
        if (paired && !arrived(team.me + 1)) {
            return false;
        }
        merge(out(0), at_offset(src, first), paired ? brought(0) : nullptr);
        for (uint32_t round = 0; round < rounds; ++round) {
            const int other = number ^ (1 << round), partner = member_of(other);
            deliver<Scope>(session, 0, partner, brought(round + 1), sent(round), length, piece);
            if (!arrived(partner)) {
                return false;
            }
            const bool lower = number < other;
            merge(out(round + 1), lower ? sent(round) : brought(round + 1), lower ? brought(round + 1) : sent(round));
        }
        if (paired) {
            deliver<Scope>(session, 0, team.me + 1, to, to, length, piece);
        }
    }
    complete_sends<Scope>(session, [&](int) { return true; });
    return !Scope::any(false);
}

} // namespace oxshmem::detail
