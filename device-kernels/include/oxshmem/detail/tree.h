// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Trees: for teams that the network connects, few messages one behind the other instead of many at once.
#pragma once

#include "push.h"

namespace oxshmem::detail {

// A binomial tree: counted from the root, a member's parent is its number without the lowest bit, and it sends on to those with
// one bit more below that. Long data follows in pieces.
template <class Scope> OXSHMEM_OUTLINE bool tree_broadcast(const Session &session) {
    constexpr uint64_t kTreePiece = 65536;
    const TeamView &team = session.team;
    const auto number_of = [&](int member) {
        return static_cast<uint32_t>(member < session.root ? member - session.root + team.n : member - session.root);
    };
    const auto member_of = [&](uint32_t number) {
        const uint32_t member = number + static_cast<uint32_t>(session.root), n = static_cast<uint32_t>(team.n);
        return static_cast<int>(member < n ? member : member - n);
    };
    const uint32_t me = number_of(team.me);
    uint32_t reach = 1; // the lowest bit of the own number; for the root, one that is beyond all
    while (reach < static_cast<uint32_t>(team.n) && (me & reach) == 0) {
        reach *= 2;
    }
    const int parent = me == 0 ? -1 : member_of(me - reach);
    uint32_t piece = 0;
    for (uint64_t first = 0; first < session.bytes; first += kTreePiece) {
        ++piece;
        if (me != 0 && !await_arrivals<Scope>(session, 0, [&](int member) { return member == parent ? piece : 0; })) {
            return false;
        }
        for (uint32_t bit = reach / 2; bit != 0; bit /= 2) {
            if (me + bit < static_cast<uint32_t>(team.n)) {
                const void *from = me == 0 ? session.src : session.dst;
                deliver<Scope>(session, 0, member_of(me + bit), at_offset(session.dst, first), at_offset(from, first),
                               least(session.bytes - first, kTreePiece), piece);
            }
        }
    }
    if (me == 0 && session.dst != session.src) {
        deliver<Scope>(session, session.team.me, session.dst, session.src, session.bytes);
    }
    complete_sends<Scope>(session, [&](int member) {
        const uint32_t number = number_of(member);
        return number > me && number - me < reach && ((number - me) & (number - me - 1)) == 0;
    });
    return !Scope::any(false);
}

// Recursive doubling, piece by piece. If the number of members is no power of two, the first few are pairs: the odd member of a
// pair sends its data to the even one and gets the result. Of two operands the one of lower members is the first, so all
// members compute the same.
//
// A piece has a place for what each round brings, and one for what each round sends, in one half of the workspace; piece p + 1
// uses the other half. A member that sends piece p + 1 has done with piece p, so its partners may write where that was once
// they have seen it.
struct Tree {
    int power;       // members that double
    uint32_t rounds; // of them
    int extra;       // pairs
    int number;      // of the own PE among those that double
    bool paired, folded;
    uint64_t room; // bytes of a place

    OXSHMEM_DEVICE Tree(const TeamView &team) {
        power = 1, rounds = 0;
        while (power * 2 <= team.n) {
            power *= 2, ++rounds;
        }
        extra = team.n - power;
        paired = team.me < 2 * extra, folded = paired && team.me % 2 == 1;
        number = paired ? team.me / 2 : team.me - extra;
        room = abi::kPacketBytes / 2 / (2 * (rounds + 1)) / kPiece * kPiece;
    }
    OXSHMEM_DEVICE int member_of(int other) const { return other < extra ? 2 * other : other + extra; }
    // Places of piece `piece`, which counts from 1.
    OXSHMEM_DEVICE char *brought(const Session &session, uint32_t piece, uint32_t round) const {
        return as<char>(session.team.packets() + ((piece - 1) & 1) * (abi::kPacketBytes / 2) + round * room);
    }
    OXSHMEM_DEVICE char *sent(const Session &session, uint32_t piece, uint32_t round) const {
        return brought(session, piece, rounds + 1 + round);
    }
    // Where the result of a round goes: to the next round's messages, or after the last to dst.
    OXSHMEM_DEVICE char *out(const Session &session, uint32_t piece, uint32_t round) const {
        return round == rounds ? at_offset(session.dst, (piece - 1) * room) : sent(session, piece, round);
    }
    OXSHMEM_DEVICE uint64_t length(const Session &session, uint32_t piece) const {
        return least(session.bytes - (piece - 1) * room, room);
    }
};

// Combines into `out`, which is `low` or another place. Without `high` it copies.
template <class Scope, class Combine>
OXSHMEM_OUTLINE void merge(char *out, const char *low, const char *high, uint64_t length, Combine combine) {
    for (uint64_t at = Scope::rank() * kPiece; at < length; at += Scope::size() * kPiece) {
        const vec16 value = load_piece(low + at, length - at);
        store_piece(out + at, high == nullptr ? value : combine(value, load_piece(high + at, length - at)), length - at);
    }
    Scope::sync();
}

// One piece of tree_reduce; false: an error was recorded.
template <class Scope, class Combine>
OXSHMEM_OUTLINE bool tree_piece(const Session &session, const Tree &tree, uint32_t piece, Combine combine) {
    const TeamView &team = session.team;
    const auto arrived = [&](int from) {
        return await_arrivals<Scope>(session, 0, [&](int member) { return member == from ? piece : 0; });
    };
    if (tree.folded) {
        deliver<Scope>(session, 0, team.me - 1, tree.brought(session, piece, 0),
                       at_offset(session.src, (piece - 1) * tree.room), tree.length(session, piece), piece);
        return arrived(team.me - 1);
    }
    if (tree.paired && !arrived(team.me + 1)) {
        return false;
    }
    merge<Scope>(tree.out(session, piece, 0), at_offset(session.src, (piece - 1) * tree.room),
                 tree.paired ? tree.brought(session, piece, 0) : nullptr, tree.length(session, piece), combine);
    for (uint32_t round = 0; round < tree.rounds; ++round) {
        const int other = tree.number ^ (1 << round);
        deliver<Scope>(session, 0, tree.member_of(other), tree.brought(session, piece, round + 1),
                       tree.sent(session, piece, round), tree.length(session, piece), piece);
        if (!arrived(tree.member_of(other))) {
            return false;
        }
        const char *mine = tree.sent(session, piece, round), *theirs = tree.brought(session, piece, round + 1);
        merge<Scope>(tree.out(session, piece, round + 1), tree.number < other ? mine : theirs,
                     tree.number < other ? theirs : mine, tree.length(session, piece), combine);
    }
    if (tree.paired) {
        char *to = tree.out(session, piece, tree.rounds);
        deliver<Scope>(session, 0, team.me + 1, to, to, tree.length(session, piece), piece);
    }
    return true;
}

template <class Scope, class Combine> OXSHMEM_OUTLINE bool tree_reduce(const Session &session, Combine combine) {
    const Tree tree(session.team);
    uint32_t piece = 0;
    for (uint64_t first = 0; first < session.bytes; first += tree.room) {
        if (!tree_piece<Scope>(session, tree, ++piece, combine)) {
            return false;
        }
    }
    complete_sends<Scope>(session, [](int) { return true; });
    return !Scope::any(false);
}

} // namespace oxshmem::detail
