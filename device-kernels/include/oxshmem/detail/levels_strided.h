// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// alltoalls in two levels: within a node elements are stored where they belong, and what goes to
// another node is packed into messages, which the receiver unpacks.
#pragma once

#include <oxshmem/collectives.h>

#include "levels.h"

namespace oxshmem::detail {

// Copies `bytes` bytes of elements from one place to another, in which they lie `from_stride` and
// `to_stride` bytes apart.
OXSHMEM_DEVICE void copy_strided(char *to, uint64_t to_stride, const char *from, uint64_t from_stride, uint64_t bytes,
                                 uint32_t element) {
    const uint64_t n = bytes / element;
    const uint32_t unit = unit_of_elements(to, from, {element, to_stride, from_stride});
    for (uint64_t i = block_scope::rank(); i < n; i += block_scope::size()) {
        copy_element(to + i * to_stride, from + i * from_stride, element, unit);
    }
}

// Calls `visit` for each member of another node, beginning with those after this member's, until it
// returns false; returns whether it never did.
template <class Visit> OXSHMEM_DEVICE bool each_far_member(const Nodes &nodes, Visit visit) {
    for (int distance = 1; distance < nodes.n; ++distance) {
        const int node = nodes.behind(distance), there = nodes.size(node);
        for (int index = 0; index < there; ++index) {
            if (!visit(nodes.member(node, (nodes.number + index) % there))) {
                return false;
            }
        }
    }
    return true;
}

// A piece to each member of another node is packed in the workspace and goes to the receiver's,
// where each sender has a place for two pieces. A receiver tells the sender that it has unpacked a
// piece, except for the last two, and the piece after the next takes its place.
OXSHMEM_LAZY OXSHMEM_OUTLINE bool levels_alltoalls(Session session, void *dst, const void *src, uint64_t n, Strides strides) {
    const TeamView &team = session.team;
    const Nodes nodes = nodes_of(team);
    const uint32_t members = static_cast<uint32_t>(team.n), element = strides.element;
    const uint64_t room = least(workspace_room(team) / (4 * members), kLevelsPiece) / kPiece * kPiece;
    const Range own = own_slice({0, n * element}); // of what is packed for one member
    const uint32_t pieces = pieces_in(own, room);
    const auto place = [&](bool out, uint32_t piece, int member) {
        const uint32_t index = ((out ? 2 : 0) + (piece & 1)) * members + static_cast<uint32_t>(member);
        return as<char>(messages_at(team) + index * room);
    };
    // Where the elements for a member lie, or those from a member, from a byte of the packed ones
    // on.
    const auto source = [&](int member, uint64_t first) {
        return at_offset(src, (static_cast<uint64_t>(member) * n + first / element) * strides.src);
    };
    const auto result = [&](int member, uint64_t first) {
        return at_offset(dst, (static_cast<uint64_t>(member) * n + first / element) * strides.dst);
    };
    for (uint32_t turn = 0; turn <= pieces; ++turn) {
        if (turn < pieces) {
            const Range range = piece_in(own, room, turn);
            const bool sent = each_far_member(nodes, [&](int member) {
                if (turn >= 2 && !await_message(session, 1, member, turn - 1)) {
                    return false;
                }
                char *const out = place(true, turn, member);
                copy_strided(out, element, source(member, range.first), strides.src, range.bytes(), element);
                block_scope::sync();
                deliver<block_scope>(session, 0, member, place(false, turn, team.me), out, range.bytes(), turn + 1);
                return true;
            });
            if (!sent) {
                return false;
            }
        }
        if (turn == 0) {
            for (int index = 0; index < nodes.size(nodes.me); ++index) {
                const int member = nodes.member(nodes.me, index);
                copy_strided(of_member(team, result(team.me, own.first), member), strides.dst, source(member, own.first),
                             strides.src, own.bytes(), element);
            }
            continue;
        }
        const uint32_t piece = turn - 1;
        const Range range = piece_in(own, room, piece);
        const bool taken = each_far_member(nodes, [&](int member) {
            if (!await_message(session, 0, member, piece + 1)) {
                return false;
            }
            copy_strided(result(member, range.first), strides.dst, place(false, piece, member), element, range.bytes(),
                         element);
            if (piece + 2 < pieces) {
                block_scope::sync();
                deliver<block_scope>(session, 1, member, dst, dst, 0, piece + 1);
            }
            return true;
        });
        if (!taken) {
            return false;
        }
    }
    complete_sends<block_scope>(session, [](int) { return true; });
    return end_in_node(session, nodes, nodes.size(nodes.me));
}

OXSHMEM_LAZY OXSHMEM_DEVICE int alltoalls_by_levels(int team, void *dst, const void *src, ptrdiff_t dst_stride,
                                                    ptrdiff_t src_stride, uint64_t n, uint32_t element) {
    const Strides strides{element, static_cast<uint64_t>(dst_stride) * element, static_cast<uint64_t>(src_stride) * element};
    const auto check = [&](Session &session) {
        check_strided<levels_scope>(session, dst, src, dst_stride, src_stride, n, element);
    };
    const LevelsCall call{team, Op::alltoalls, Call::alltoalls, dst, src, n, extra_of(element, strides.dst, strides.src)};
    return by_levels(call, check, [&](const Session &session) { return levels_alltoalls(session, dst, src, n, strides); });
}

} // namespace oxshmem::detail
