// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives in two levels, for teams that have several nodes: load and store within a node, and
// messages between nodes. For the host's kernels.
//
// A node is a set of members that reach each other by load and store. A rail is a row of members,
// one of each node, that have the same number in their nodes; there are as many as the smallest
// node has members. Only members of a rail send to each other, each its own share of the data, and
// each rail's member stores what arrives to all members of its node. So data crosses the network
// once for each node and not once for each member.
//
// Block b meets block b of the other members, handles its own slice of the data and posts to its
// own queue pair, so the blocks are pieces on their way at the same time. A block cuts its slice
// further, and begins with a piece while the one before it travels. Blocks do not wait for each
// other: the functions below take block_scope for the threads that share work, and levels_scope for
// what blocks have in common.
#pragma once

#include "push.h"

namespace oxshmem::detail {

// The nodes of a team, as one call sees them.
struct Nodes {
    int n, me;  // nodes, and this member's
    int number; // this member's in its node
    int rails;
    const int32_t *starts, *by_node;

    OXSHMEM_DEVICE int size(int node) const { return port::read(starts + node + 1) - port::read(starts + node); }
    OXSHMEM_DEVICE int member(int node, int index) const { return port::read(by_node + port::read(starts + node) + index); }
    // Returns the node that is `distance` after this member's, in a ring; `distance` is from -n to
    // n.
    OXSHMEM_DEVICE int behind(int distance) const { return (me + distance + n) % n; }
};

OXSHMEM_DEVICE Nodes nodes_of(const TeamView &team) {
    const abi::Team &row = team_row(team.handle);
    const int32_t *starts = as<int32_t>(row.nodes);
    const int n = static_cast<int>(row.n_nodes);
    return {n,
            static_cast<int>(row.my_node),
            static_cast<int>(row.number_in_node),
            static_cast<int>(row.rails),
            starts,
            starts + n + 1};
}

// A part of a buffer, in bytes from its beginning.
struct Range {
    uint64_t first, last;
    OXSHMEM_DEVICE uint64_t bytes() const { return last - first; }
};

// Part `index` of `parts` equal ones, the last of which may be shorter or empty: whole pieces of 16
// bytes except for the end.
OXSHMEM_DEVICE Range part_in(Range range, uint32_t parts, uint32_t index) {
    const uint64_t each = (pieces_of(range.bytes()) + parts - 1) / parts * kPiece;
    const uint64_t first = least(range.first + each * index, range.last);
    return {first, least(first + each, range.last)};
}
OXSHMEM_DEVICE Range own_slice(Range range) {
    return part_in(range, sharing_blocks(), port::block_rank());
}

// Piece `index` of those of `room` bytes; empty beyond the end.
OXSHMEM_DEVICE Range piece_in(Range range, uint64_t room, uint32_t index) {
    const uint64_t first = least(range.first + room * index, range.last);
    return {first, least(first + room, range.last)};
}
OXSHMEM_DEVICE uint32_t pieces_in(Range range, uint64_t room) {
    return static_cast<uint32_t>((range.bytes() + room - 1) / room);
}

// The longest message; what passes through the workspace has less where that has no room for it.
// The schedule explorer has less.
#ifndef OXSHMEM_LEVELS_PIECE
#define OXSHMEM_LEVELS_PIECE 131072
#endif
constexpr uint64_t kLevelsPiece = OXSHMEM_LEVELS_PIECE;

// What a rail carries at least: short data takes fewer rails, and so fewer messages.
constexpr uint64_t kRailBytes = 4096;

OXSHMEM_DEVICE int rails_for(const Nodes &nodes, uint64_t bytes) {
    const uint64_t worth = (bytes + kRailBytes - 1) / kRailBytes;
    return worth < static_cast<uint64_t>(nodes.rails) ? static_cast<int>(worth) : nodes.rails;
}

// Bytes of the block's workspace for messages, of one parity.
OXSHMEM_DEVICE uint64_t workspace_room(const TeamView &team) {
    if (port::block_rank() == 0 && !has_places_for_all()) {
        return abi::kPacketBytes;
    }
    const uint64_t all = bytes_of_block(team) * places_of_block();
    return (all - (abi::kArrivalsAt - abi::kHeadersAt) - team.arrival_bytes()) / 2 / 128 * 128;
}

// Where they lie. The first block, which meets in the team's own place, has more room in places of
// its own.
OXSHMEM_DEVICE uint64_t messages_at(const TeamView &team) {
    TeamView place = team;
    if (port::block_rank() == 0 && has_places_for_all()) {
        place.workspace = workspace_of_block(team, (abi::kLevelsBlocks - 1) * places_of_block() + 1);
    }
    return place.packets(workspace_room(team));
}

// Stores what lies in this member's dst to the other members of its node, except `but`.
OXSHMEM_DEVICE void spread_in_node(const Session &session, const Nodes &nodes, void *dst, Range range, int but = -1) {
    for (int distance = 1; distance < nodes.size(nodes.me); ++distance) {
        const int size = nodes.size(nodes.me), index = nodes.number + distance;
        const int member = nodes.member(nodes.me, index < size ? index : index - size);
        if (member != but) {
            char *own = at_offset(dst, range.first);
            near_copy<block_scope>(of_member(session.team, own, member), own, range.bytes());
        }
    }
}

// Tells the members of the node that this one is done with their memory, and waits until the first
// `others` of them have said so: by arrival `count` of kind 1.
OXSHMEM_DEVICE bool end_in_node(const Session &session, const Nodes &nodes, int others, uint32_t count = 1) {
    const TeamView &team = session.team;
    const int size = nodes.size(nodes.me), rank = static_cast<int>(block_scope::rank());
    const int lanes = meeting_lanes(static_cast<int>(block_scope::size()));
    block_scope::sync();
    if (rank < lanes && rank < size) {
        release_stores();
        uint64_t *own = team.arrivals(1) + team.me;
        for (int index = rank; index < size; index += lanes) {
            const int pe = team.pe_of(nodes.member(nodes.me, index));
            port::store<order::relaxed, reach::system>(translate(own, pe), arrival_of(team, count));
        }
    }
    bool good = true;
    for (int index = rank; good && index < others; index += static_cast<int>(block_scope::size())) {
        good = index == nodes.number || await_arrival<levels_scope>(session, 1, nodes.member(nodes.me, index), count);
    }
    return !block_scope::any(!good);
}

// Waits until `member` has sent `count` messages of a kind. Every lane calls.
OXSHMEM_DEVICE bool await_message(const Session &session, int kind, int member, uint32_t count) {
    const bool good = block_scope::rank() != 0 || await_arrival<levels_scope>(session, kind, member, count);
    return !block_scope::any(!good);
}

// Ends the part of a member: what it has sent to `first` and `second` may be overwritten.
OXSHMEM_DEVICE void complete_to(const Session &session, int first, int second) {
    complete_sends<block_scope>(session, [&](int member) { return member == first || member == second; });
}

// Combines `bytes` bytes at `src` of all members of the node, in their order, after what has come
// from other nodes, `incoming`, if that is not null; into `out`, which may be `incoming` or lie in
// this member's src.
template <class Combine>
OXSHMEM_OUTLINE void combine_in_node(const Session &session, const Nodes &nodes, const void *src, uint64_t bytes,
                                     const char *incoming, char *out, const Combine &combine) {
    const TeamView &team = session.team;
    constexpr uint32_t kUnits = 2;
    constexpr int kMembers = 4;
    const int size = nodes.size(nodes.me);
    const uint64_t step = static_cast<uint64_t>(block_scope::size()) * kPiece;
    for (uint64_t first = block_scope::rank() * kPiece; first < bytes; first += step * kUnits) {
        Accumulator<Combine> sums[kUnits];
        OXSHMEM_UNROLL
        for (uint32_t u = 0; u < kUnits; ++u) {
            const uint64_t at = first + u * step;
            if (incoming != nullptr && at < bytes) {
                sums[u].begin(load_piece(incoming + at, bytes - at));
            }
        }
        for (int group = 0; group < size; group += kMembers) {
            vec16 values[kMembers][kUnits] = {};
            OXSHMEM_UNROLL
            for (int m = 0; m < kMembers; ++m) {
                if (group + m < size) {
                    const char *from = of_member(team, static_cast<const char *>(src), nodes.member(nodes.me, group + m));
                    OXSHMEM_UNROLL
                    for (uint32_t u = 0; u < kUnits; ++u) {
                        const uint64_t at = first + u * step;
                        if (at < bytes) {
                            values[m][u] = load_piece(from + at, bytes - at);
                        }
                    }
                }
            }
            OXSHMEM_UNROLL
            for (int m = 0; m < kMembers; ++m) {
                OXSHMEM_UNROLL
                for (uint32_t u = 0; u < kUnits; ++u) {
                    if (group + m < size && first + u * step < bytes) {
                        if (incoming == nullptr && group + m == 0) {
                            sums[u].begin(values[m][u]);
                        } else {
                            sums[u].add(combine, values[m][u]);
                        }
                    }
                }
            }
        }
        OXSHMEM_UNROLL
        for (uint32_t u = 0; u < kUnits; ++u) {
            const uint64_t at = first + u * step;
            if (at < bytes) {
                store_piece(out + at, sums[u].result(), bytes - at);
            }
        }
    }
    block_scope::sync();
}

// A ring of the members of a rail. Data is as many chunks as there are nodes. In step s of n - 1 a
// member passes chunk (its node - 1 - s) on to the next node, so that the sum of chunk i ends at
// node i. Pieces of the chunks go around one after the other: step 0 of piece p + 1 comes before
// the other steps of piece p.
struct Ring {
    int next, before; // members
    uint32_t steps;   // of a piece

    OXSHMEM_DEVICE Ring(const Nodes &nodes)
        : next(nodes.member(nodes.behind(1), nodes.number)), before(nodes.member(nodes.behind(-1), nodes.number)),
          steps(static_cast<uint32_t>(nodes.n - 1)) {}

    // How many messages of sums have been sent with that of a step.
    OXSHMEM_DEVICE uint32_t sums(uint32_t piece, uint32_t step) const {
        return step == 0 ? (piece == 0 ? 1 : 2 + (piece - 1) * steps) : 2 + piece * steps + step;
    }
    // The same of messages with what all members have combined.
    OXSHMEM_DEVICE uint32_t results(uint32_t piece, uint32_t step) const { return piece * steps + step + 1; }
};

// The sum of a chunk's piece goes to the other nodes in the second half of the ring, and each
// rail's member stores it to its node. A result that comes back says that the sums of its chunk
// that this member has sent have been read; so what carried the sums of piece p is free for piece p
// + 2.
//
// Sums arrive in dst, where the result will be; or, if that is src, in the workspace.
template <class Combine>
OXSHMEM_OUTLINE bool levels_reduce(Session session, void *dst, const void *src, uint64_t bytes, Combine combine) {
    const TeamView &team = session.team;
    const Nodes nodes = nodes_of(team);
    const int rails = rails_for(nodes, bytes);
    if (nodes.number >= rails) {
        return end_in_node(session, nodes, rails);
    }
    const Ring ring(nodes);
    const bool in_place = dst == src;
    const uint64_t slot = least(workspace_room(team) / (2 * ring.steps), kLevelsPiece) / kPiece * kPiece;
    const uint64_t room = in_place ? slot : kLevelsPiece;
    const Range own = own_slice(part_in({0, bytes}, static_cast<uint32_t>(rails), static_cast<uint32_t>(nodes.number)));
    const auto chunk = [&](int distance, uint32_t piece) {
        const uint32_t node = static_cast<uint32_t>(nodes.behind(distance));
        return piece_in(part_in(own, static_cast<uint32_t>(nodes.n), node), room, piece);
    };
    const auto arrives = [&](uint32_t piece, uint32_t step, Range range) {
        return in_place ? as<char>(messages_at(team) + ((piece & 1) * ring.steps + step) * slot) : at_offset(dst, range.first);
    };
    const auto pass_on = [&](uint32_t piece, uint32_t step) {
        const Range range = chunk(-1 - static_cast<int>(step), piece);
        if (range.bytes() != 0) {
            deliver<block_scope>(session, 0, ring.next, arrives(piece, step, range), at_offset(dst, range.first), range.bytes(),
                                 ring.sums(piece, step));
        }
    };
    const auto begin_with = [&](uint32_t piece) {
        const Range range = chunk(-1, piece);
        combine_in_node(session, nodes, at_offset(src, range.first), range.bytes(), nullptr, at_offset(dst, range.first),
                        combine);
        pass_on(piece, 0);
    };
    const uint32_t pieces = pieces_in(part_in(own, static_cast<uint32_t>(nodes.n), 0), room); // no chunk has more
    for (uint32_t turn = 0; turn <= pieces; ++turn) {
        if (turn < pieces) {
            begin_with(turn);
        }
        if (turn == 0) {
            continue;
        }
        const uint32_t piece = turn - 1;
        for (uint32_t step = 0; step < ring.steps; ++step) {
            const Range range = chunk(-2 - static_cast<int>(step), piece);
            if (range.bytes() != 0) {
                if (!await_message(session, 0, ring.before, ring.sums(piece, step))) {
                    return false;
                }
                combine_in_node(session, nodes, at_offset(src, range.first), range.bytes(), arrives(piece, step, range),
                                at_offset(dst, range.first), combine);
            }
            if (step + 1 < ring.steps) {
                pass_on(piece, step + 1);
            }
        }
        for (uint32_t step = 0; step <= ring.steps; ++step) {
            const Range range = chunk(-static_cast<int>(step), piece);
            if (range.bytes() == 0) {
                continue;
            }
            if (step != 0 && !await_message(session, 1, ring.before, ring.results(piece, step - 1))) {
                return false;
            }
            char *const result = at_offset(dst, range.first);
            if (step < ring.steps) {
                deliver<block_scope>(session, 1, ring.next, result, result, range.bytes(), ring.results(piece, step));
            }
            spread_in_node(session, nodes, dst, range);
        }
    }
    complete_to(session, ring.next, -1);
    return end_in_node(session, nodes, rails);
}

// The first half of the ring, in which a chunk is the results of the members of a node that have
// the same number modulo the rails. Sums arrive in the workspace and go out from there, so a member
// tells the one before it when it has combined those of a piece.
template <class Combine>
OXSHMEM_OUTLINE bool levels_reducescatter(Session session, void *dst, const void *src, uint64_t bytes, Combine combine) {
    const TeamView &team = session.team;
    const Nodes nodes = nodes_of(team);
    if (nodes.number >= nodes.rails) {
        return end_in_node(session, nodes, nodes.rails);
    }
    const Ring ring(nodes);
    const uint64_t room = least(workspace_room(team) / (4 * ring.steps), kLevelsPiece) / kPiece * kPiece;
    const Range own = own_slice({0, bytes});
    const uint32_t each = pieces_in(own, room);
    // How many members of a node this rail has the results of.
    const auto results_in = [&](int node) {
        return static_cast<uint32_t>((nodes.size(node) - nodes.number + nodes.rails - 1) / nodes.rails);
    };
    // The member whose result a piece of a chunk belongs to; -1: the chunk has no such piece.
    const auto target = [&](int distance, uint32_t piece) {
        const int node = nodes.behind(distance);
        const uint32_t result = piece / each;
        return result < results_in(node) ? nodes.member(node, nodes.number + static_cast<int>(result) * nodes.rails) : -1;
    };
    const auto range_of = [&](uint32_t piece) { return piece_in(own, room, piece % each); };
    const auto place = [&](bool out, uint32_t piece, uint32_t step) {
        const uint32_t index = ((out ? 2 : 0) + (piece & 1)) * ring.steps + step;
        return as<char>(messages_at(team) + index * room);
    };
    const auto source = [&](int member, uint32_t piece) {
        return at_offset(src, bytes * static_cast<uint64_t>(member) + range_of(piece).first);
    };
    const auto pass_on = [&](uint32_t piece, uint32_t step) {
        deliver<block_scope>(session, 0, ring.next, place(false, piece, step), place(true, piece, step),
                             range_of(piece).bytes(), ring.sums(piece, step));
    };
    uint32_t pieces = 0;
    for (int node = 0; node < nodes.n; ++node) {
        const uint32_t more = results_in(node) * each;
        pieces = more > pieces ? more : pieces;
    }
    for (uint32_t turn = 0; turn <= pieces; ++turn) {
        if (turn < pieces) {
            if (turn >= 2 && !await_message(session, 1, ring.next, turn - 1)) {
                return false;
            }
            const int member = target(-1, turn);
            if (member >= 0) {
                combine_in_node(session, nodes, source(member, turn), range_of(turn).bytes(), nullptr, place(true, turn, 0),
                                combine);
                pass_on(turn, 0);
            }
        }
        if (turn == 0) {
            continue;
        }
        const uint32_t piece = turn - 1;
        for (uint32_t step = 0; step < ring.steps; ++step) {
            const int member = target(-2 - static_cast<int>(step), piece);
            if (member < 0) {
                continue;
            }
            if (!await_message(session, 0, ring.before, ring.sums(piece, step))) {
                return false;
            }
            const bool is_last = step + 1 == ring.steps;
            char *const out =
                is_last ? of_member(team, at_offset(dst, range_of(piece).first), member) : place(true, piece, step + 1);
            combine_in_node(session, nodes, source(member, piece), range_of(piece).bytes(), place(false, piece, step), out,
                            combine);
            if (!is_last) {
                pass_on(piece, step + 1);
            }
        }
        if (piece + 2 < pieces) {
            deliver<block_scope>(session, 1, ring.before, dst, dst, 0, piece + 1);
        }
    }
    complete_to(session, ring.next, ring.before);
    return end_in_node(session, nodes, nodes.rails);
}

// The root's node loads the data from the root, each rail's member its share, and passes it on:
// from node to node where there are at least as many pieces as nodes, and otherwise down a binomial
// tree, which is less deep and has the same messages.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool levels_broadcast(Session session, void *dst, const void *src, uint64_t bytes, int root) {
    const TeamView &team = session.team;
    const Nodes nodes = nodes_of(team);
    const int rails = rails_for(nodes, bytes);
    if (nodes.number >= rails && team.me != root) {
        return end_in_node(session, nodes, rails);
    }
    int home = nodes.me; // the root's node
    for (int node = 0; node < nodes.n; ++node) {
        for (int index = 0; index < nodes.size(node); ++index) {
            home = nodes.member(node, index) == root ? node : home;
        }
    }
    const bool is_home = nodes.me == home;
    if (team.me == root && dst != src) {
        near_copy<block_scope>(at_offset(dst, own_slice({0, bytes}).first), at_offset(src, own_slice({0, bytes}).first),
                               own_slice({0, bytes}).bytes());
    }
    if (nodes.number >= rails) {
        return end_in_node(session, nodes, rails);
    }
    const Range own = own_slice(part_in({0, bytes}, static_cast<uint32_t>(rails), static_cast<uint32_t>(nodes.number)));
    const uint32_t pieces = pieces_in(own, kLevelsPiece), n = static_cast<uint32_t>(nodes.n);
    const uint32_t me = static_cast<uint32_t>((nodes.me - home + nodes.n) % nodes.n); // counted from the root's node
    const auto member_of = [&](uint32_t number) {
        return nodes.member((static_cast<int>(number) + home) % nodes.n, nodes.number);
    };
    // The lowest bit of this node's number; for the root's, one that is beyond all. In a ring a
    // node has one child, the next one.
    const bool is_ring = pieces >= n;
    uint32_t reach = 1;
    while (reach < n && (me & reach) == 0) {
        reach *= 2;
    }
    const int parent = is_home ? -1 : member_of(is_ring ? me - 1 : me - reach);
    const auto is_child = [&](uint32_t number) {
        const uint32_t distance = number - me;
        return number > me && (is_ring ? distance == 1 : distance < reach && (distance & (distance - 1)) == 0);
    };
    for (uint32_t piece = 0; piece < pieces; ++piece) {
        const Range range = piece_in(own, kLevelsPiece, piece);
        char *const to = at_offset(dst, range.first);
        const char *from = to;
        if (team.me == root) {
            from = at_offset(src, range.first);
        } else if (is_home) {
            near_copy<block_scope, Source::far>(to, of_member(team, at_offset(src, range.first), root), range.bytes());
            block_scope::sync();
        } else if (!await_message(session, 0, parent, piece + 1)) {
            return false;
        }
        for (uint32_t number = n - 1; number > me; --number) {
            if (is_child(number)) {
                deliver<block_scope>(session, 0, member_of(number), to, from, range.bytes(), piece + 1);
            }
        }
        if (team.me == root && dst != src) {
            // Its own dst is written above, by slices that are not those of rails.
            for (int index = 0; index < nodes.size(nodes.me); ++index) {
                const int member = nodes.member(nodes.me, index);
                if (member != root) {
                    near_copy<block_scope>(of_member(team, to, member), from, range.bytes());
                }
            }
        } else {
            spread_in_node(session, nodes, dst, range, is_home ? root : -1);
        }
    }
    complete_sends<block_scope>(session, [&](int member) {
        for (uint32_t number = me + 1; number < n; ++number) {
            if (is_child(number) && member_of(number) == member) {
                return true;
            }
        }
        return false;
    });
    return end_in_node(session, nodes, rails);
}

// The member of a node to which this one sends what the whole node needs: the one whose number is
// this member's modulo the size of that node.
OXSHMEM_DEVICE int receiver_in(const Nodes &nodes, int node) {
    return nodes.member(node, nodes.number % nodes.size(node));
}

// Calls `visit` for the members of other nodes that send to this one what its node needs, until it
// returns false; returns whether it never did. (A template, because NVRTC takes generic lambdas for
// host functions.)
template <class Visit> OXSHMEM_DEVICE bool each_sender(const Nodes &nodes, Visit visit) {
    for (int distance = 1; distance < nodes.n; ++distance) {
        const int node = nodes.behind(-distance);
        for (int index = nodes.number; index < nodes.size(node); index += nodes.size(nodes.me)) {
            if (!visit(nodes.member(node, index))) {
                return false;
            }
        }
    }
    return true;
}

// A member sends its part, which `parts.of(member)` says the place of in dst, to one member of each
// other node, which stores it to its node.
template <class Parts>
OXSHMEM_DEVICE bool levels_gather(const Session &session, const Nodes &nodes, void *dst, const void *src, const Parts &parts) {
    const TeamView &team = session.team;
    const Range whole = parts.of(team.me), own = own_slice(whole);
    const auto from = [&](uint64_t at) { return at_offset(src, at - whole.first); };
    for (uint32_t piece = 0; piece < pieces_in(own, kLevelsPiece); ++piece) {
        const Range range = piece_in(own, kLevelsPiece, piece);
        for (int distance = 1; distance < nodes.n; ++distance) {
            deliver<block_scope>(session, 0, receiver_in(nodes, nodes.behind(distance)), at_offset(dst, range.first),
                                 from(range.first), range.bytes(), piece + 1);
        }
    }
    const int size = nodes.size(nodes.me);
    for (int distance = 1; distance <= size; ++distance) {
        const int member = nodes.member(nodes.me, (nodes.number + distance) % size);
        near_copy<block_scope>(of_member(team, at_offset(dst, own.first), member), from(own.first), own.bytes());
    }
    bool more = true;
    for (uint32_t piece = 0; more; ++piece) {
        more = false;
        const bool good = each_sender(nodes, [&](int sender) {
            const Range slice = own_slice(parts.of(sender));
            const uint32_t pieces = pieces_in(slice, kLevelsPiece);
            if (piece >= pieces) {
                return true;
            }
            more = more || piece + 1 < pieces;
            if (!await_message(session, 0, sender, piece + 1)) {
                return false;
            }
            spread_in_node(session, nodes, dst, piece_in(slice, kLevelsPiece, piece));
            return true;
        });
        if (!good) {
            return false;
        }
    }
    complete_sends<block_scope>(session, [&](int member) {
        for (int distance = 1; distance < nodes.n; ++distance) {
            if (receiver_in(nodes, nodes.behind(distance)) == member) {
                return true;
            }
        }
        return false;
    });
    return true;
}

// Parts of one length, in the order of the members.
struct EqualParts {
    uint64_t bytes;
    OXSHMEM_DEVICE Range of(int member) const {
        const uint64_t first = bytes * static_cast<uint64_t>(member);
        return {first, first + bytes};
    }
};

OXSHMEM_LAZY OXSHMEM_OUTLINE bool levels_fcollect(Session session, void *dst, const void *src, uint64_t bytes) {
    const Nodes nodes = nodes_of(session.team);
    return levels_gather(session, nodes, dst, src, EqualParts{bytes}) && end_in_node(session, nodes, nodes.size(nodes.me));
}

// Parts whose lengths the members tell each other, and where they begin in dst: both in the block's
// workspace, one word for each member, and then the sum of all lengths.
struct ToldParts {
    uint64_t *lengths, *starts;
    OXSHMEM_DEVICE explicit ToldParts(const TeamView &team)
        : lengths(as<uint64_t>(messages_at(team))), starts(lengths + team.n) {}
    OXSHMEM_DEVICE uint64_t length(int member) const { return port::load<order::relaxed, reach::system>(lengths + member); }
    OXSHMEM_DEVICE Range of(int member) const {
        const uint64_t first = port::read(starts + member);
        return {first, first + length(member)};
    }
};

// Stores the length of a member's part to the other members of this node, and tells them that it is
// there.
OXSHMEM_DEVICE void tell_length_in_node(const Session &session, const Nodes &nodes, const ToldParts &parts, int member) {
    const TeamView &team = session.team;
    const int size = nodes.size(nodes.me), rank = static_cast<int>(block_scope::rank());
    const int lanes = meeting_lanes(static_cast<int>(block_scope::size()));
    if (rank >= lanes) {
        return;
    }
    const uint64_t length = parts.length(member);
    for (int index = rank; index < size; index += lanes) {
        if (index != nodes.number) {
            const int pe = team.pe_of(nodes.member(nodes.me, index));
            port::store<order::relaxed, reach::system>(translate(parts.lengths + member, pe), length);
        }
    }
    release_stores();
    for (int index = rank; index < size; index += lanes) {
        if (index != nodes.number) {
            const int pe = team.pe_of(nodes.member(nodes.me, index));
            port::store<order::relaxed, reach::system>(translate(team.arrivals(1) + member, pe), arrival_of(team, 1));
        }
    }
}

// Tells all members the length of this one's part, by the way that the data will take, and learns
// theirs.
OXSHMEM_DEVICE bool tell_lengths(const Session &session, const Nodes &nodes, const ToldParts &parts, uint64_t bytes) {
    const TeamView &team = session.team;
    uint64_t *own = parts.lengths + team.me;
    if (block_scope::rank() == 0) {
        port::store<order::relaxed, reach::system>(own, bytes);
    }
    block_scope::sync();
    for (int distance = 1; distance < nodes.n; ++distance) {
        deliver<block_scope>(session, 1, receiver_in(nodes, nodes.behind(distance)), own, own, sizeof(*own), 1);
    }
    tell_length_in_node(session, nodes, parts, team.me);
    const bool passed_on = each_sender(nodes, [&](int sender) {
        if (!await_message(session, 1, sender, 1)) {
            return false;
        }
        tell_length_in_node(session, nodes, parts, sender);
        return true;
    });
    bool good = passed_on;
    for (int member = static_cast<int>(block_scope::rank()); good && member < team.n;
         member += static_cast<int>(block_scope::size())) {
        good = member == team.me || await_arrival<levels_scope>(session, 1, member, 1);
    }
    if (block_scope::any(!good)) {
        return false;
    }
    if (block_scope::rank() == 0) {
        uint64_t total = 0;
        for (int member = 0; member < team.n; ++member) {
            port::write(parts.starts + member, total);
            const uint64_t length = parts.length(member);
            total = total + length < total ? ~0ull : total + length;
        }
        port::write(parts.starts + team.n, total);
    }
    block_scope::sync();
    return true;
}

// Once the lengths are known, dst has to have room for all parts, on every member alike. The second
// arrival of kind 1 ends the call in a node.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool levels_collect(Session session, void *dst, const void *src, uint64_t bytes) {
    const Nodes nodes = nodes_of(session.team);
    const ToldParts parts(session.team);
    if (!tell_lengths(session, nodes, parts, bytes)) {
        return false;
    }
    uint64_t largest = 0;
    for (int member = 0; member < session.team.n; ++member) {
        const uint64_t length = port::read(parts.starts + member + 1) - port::read(parts.starts + member);
        largest = length > largest ? length : largest;
    }
    check_buffers<levels_scope>(session, dst, port::read(parts.starts + session.team.n), src, bytes == 0 ? 0 : largest, false);
    return !session.bad && levels_gather(session, nodes, dst, src, parts) &&
           end_in_node(session, nodes, nodes.size(nodes.me), 2);
}

// Each part goes from its sender to its receiver at once: no two members need the same.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool levels_alltoall(Session session, void *dst, const void *src, uint64_t bytes) {
    const TeamView &team = session.team;
    const Nodes nodes = nodes_of(team);
    const Range own = own_slice({0, bytes});
    char *const to = at_offset(dst, bytes * static_cast<uint64_t>(team.me) + own.first);
    const auto part = [&](int member) { return at_offset(src, bytes * static_cast<uint64_t>(member) + own.first); };
    const int size = nodes.size(nodes.me);
    for (int distance = 1; distance < nodes.n; ++distance) {
        const int node = nodes.behind(distance), there = nodes.size(node);
        for (int index = 0; index < there; ++index) {
            const int member = nodes.member(node, (nodes.number + index) % there);
            deliver<block_scope>(session, 0, member, to, part(member), own.bytes(), 1);
        }
    }
    for (int distance = 1; distance <= size; ++distance) {
        const int member = nodes.member(nodes.me, (nodes.number + distance) % size);
        near_copy<block_scope>(of_member(team, to, member), part(member), own.bytes());
    }
    bool good = true;
    for (int node = 0; node < nodes.n; ++node) {
        const int there = node == nodes.me ? 0 : nodes.size(node), step = static_cast<int>(block_scope::size());
        for (int index = static_cast<int>(block_scope::rank()); good && index < there; index += step) {
            good = await_arrival<levels_scope>(session, 0, nodes.member(node, index), 1);
        }
    }
    if (block_scope::any(!good)) {
        return false;
    }
    complete_sends<block_scope>(session, [](int) { return true; });
    return end_in_node(session, nodes, size);
}

// ---------------------------------------------------------------------------------------------------------------------------
// The calls
// ---------------------------------------------------------------------------------------------------------------------------

// A collective over a team: what it announces, `check(session)`, which refuses bad arguments, and
// `carry_out(session)`, which follows the meeting if there is data.
struct LevelsCall {
    int team;
    Op op;
    Call call;
    void *dst;
    const void *src;
    uint64_t size, extra; // `size` 0: no data
};
template <class Check, class CarryOut> OXSHMEM_DEVICE int by_levels(LevelsCall call, Check check, CarryOut carry_out) {
    Session session;
    if (!begin<levels_scope>(session, call.team, call.op, call.call)) {
        return 1;
    }
    check(session);
    const uint32_t announced =
        call.call == Call::collect
            ? collect_announced_by<levels_scope>(session, call.dst, call.extra, Algorithm::levels)
            : announced_by<levels_scope>(session, call.dst, call.src, call.size, call.extra, Algorithm::levels);
    block_scope::sync();
    if (!meet<levels_scope, true>(session.team, call.op, announced)) {
        return 1;
    }
    return call.size == 0 || carry_out(session) ? 0 : 1;
}

OXSHMEM_LAZY OXSHMEM_DEVICE int broadcast_by_levels(int team, void *dst, const void *src, uint64_t bytes, int root) {
    const auto check = [&](Session &session) {
        check_root<levels_scope>(session, root);
        check_buffers<levels_scope>(session, dst, bytes, src, bytes, true);
    };
    return by_levels({team, Op::broadcast, Call::broadcast, dst, src, bytes, static_cast<uint64_t>(root)}, check,
                     [&](const Session &session) { return levels_broadcast(session, dst, src, bytes, root); });
}

OXSHMEM_LAZY OXSHMEM_DEVICE int fcollect_by_levels(int team, void *dst, const void *src, uint64_t bytes) {
    const auto check = [&](Session &session) {
        check_buffers<levels_scope>(session, dst, times(bytes, session.team.n), src, bytes, false);
    };
    return by_levels({team, Op::fcollect, Call::fcollect, dst, src, bytes, 0}, check,
                     [&](const Session &session) { return levels_fcollect(session, dst, src, bytes); });
}

// Lengths differ, so none is announced.
OXSHMEM_LAZY OXSHMEM_DEVICE int collect_by_levels(int team, void *dst, const void *src, uint64_t bytes) {
    const auto check = [&](Session &session) { check_buffers<levels_scope>(session, dst, 0, src, bytes, false); };
    constexpr uint64_t kSomeData = 1;
    return by_levels({team, Op::collect, Call::collect, dst, src, kSomeData, 0}, check,
                     [&](const Session &session) { return levels_collect(session, dst, src, bytes); });
}

OXSHMEM_LAZY OXSHMEM_DEVICE int alltoall_by_levels(int team, void *dst, const void *src, uint64_t bytes) {
    const auto check = [&](Session &session) {
        const uint64_t all = times(bytes, session.team.n);
        check_buffers<levels_scope>(session, dst, all, src, all, false);
    };
    return by_levels({team, Op::alltoall, Call::alltoall, dst, src, bytes, 0}, check,
                     [&](const Session &session) { return levels_alltoall(session, dst, src, bytes); });
}

// reduce (`to_all`: `n` elements) and reducescatter (`n` elements of the result on each member).
template <class Combine>
OXSHMEM_DEVICE int reduce_by_levels(int team, void *dst, const void *src, uint64_t n, bool to_all, Combine combine) {
    const uint64_t kinds = static_cast<uint64_t>(combine.type()) << 32 | static_cast<uint64_t>(combine.op());
    const bool defined = is_reduction(combine.type(), combine.op());
    const uint64_t bytes = defined ? times(n, static_cast<int>(element_bytes(combine.type()))) : 0;
    const auto check = [&](Session &session) {
        if (!defined) {
            refuse<levels_scope>(session, ErrorCode::bad_argument, nullptr, kinds);
        } else {
            check_buffers<levels_scope>(session, dst, bytes, src, to_all ? bytes : times(bytes, session.team.n), to_all);
        }
    };
    const LevelsCall call{
        team, to_all ? Op::reduce : Op::reducescatter, to_all ? Call::reduce : Call::reducescatter, dst, src, n, kinds};
    return by_levels(call, check, [&](const Session &session) {
        return to_all ? levels_reduce(session, dst, src, bytes, combine)
                      : levels_reducescatter(session, dst, src, bytes, combine);
    });
}

} // namespace oxshmem::detail
