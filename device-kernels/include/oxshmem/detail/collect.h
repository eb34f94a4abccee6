// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// collect: what members contribute differs in length, and each knows its own length alone before
// they have met.
//
// Where all members are load and store reachable, short contributions travel in packets with their
// sizes, and if all are short that is all. Otherwise they are pushed to where they belong. Where
// several blocks carry out a collect, each exchanges the sizes for itself, so that all know alike
// what is left to do, and no block waits for another one of its grid.
#pragma once

#include "exchange.h"
#include "push.h"

namespace oxshmem::detail {

// The sizes of all members' contributions, each in the first piece of its packets (or, over the
// network, in the place where its packets would be). Several blocks send nothing to themselves:
// this member's is `own` there.
template <class Scope> struct Sizes {
    const TeamView &team;
    uint64_t own;

    OXSHMEM_DEVICE uint64_t of(int member) const {
        if (kSeveralBlocks<Scope> && member == team.me) {
            return own;
        }
        if (!kSeveralBlocks<Scope> && !team.one_round) {
            return port::load<order::relaxed, reach::system>(as<uint64_t>(team.packets()) + member);
        }
        vec16 first;
        look_at_piece<Scope>(team, own_packets<Scope>(team), member, 0, first, 8);
        return static_cast<uint64_t>(first.y) << 32 | first.x;
    }
};

// What collect does once the sizes are known: dst has to have room for all, on every member alike.
template <class Scope>
OXSHMEM_DEVICE bool check_collected(Session &session, const Sizes<Scope> &sizes, void *dst, const void *src, uint64_t &before,
                                    uint64_t &largest) {
    uint64_t total = 0;
    before = 0, largest = 0;
    for (int member = 0; member < session.team.n; ++member) {
        const uint64_t size = sizes.of(member);
        before = member == session.team.me ? total : before;
        largest = size > largest ? size : largest;
        total = total + size < total ? ~0ull : total + size;
    }
    // What the largest contribution would overlap is looked at by all, so that all refuse the call,
    // except for a member that has none, whose src may be anywhere.
    check_buffers<Scope>(session, dst, total, src, sizes.of(session.team.me) == 0 ? 0 : largest, false);
    return !session.bad;
}

// Returns up to how many bytes a row of the team's table says packets: that fits every size, since
// the sizes of others are not known yet.
OXSHMEM_DEVICE uint64_t most_by_packets(const abi::Choice (&choices)[abi::kChoices]) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < abi::kChoices; ++i) {
        const bool is_more = choices[i].up_to_bytes > most;
        most = choices[i].algorithm == static_cast<uint32_t>(Algorithm::packets) && is_more ? choices[i].up_to_bytes : most;
    }
    return most;
}

// Up to how many bytes the first of several blocks sends a contribution alone. The schedule
// explorer has less.
#ifndef OXSHMEM_COLLECTED_BY_ONE
#define OXSHMEM_COLLECTED_BY_ONE 2048
#endif
constexpr uint64_t kCollectedByOne = OXSHMEM_COLLECTED_BY_ONE;

// Returns how many bytes of a contribution a block has room for in packets, after the size.
OXSHMEM_DEVICE uint32_t room_beside_size(const TeamView &team) {
    return packet_room(team) - kPiece;
}

// Returns what of a contribution of `bytes` bytes the calling block sends, or receives, in packets.
template <class Scope> OXSHMEM_DEVICE Part part_of_contribution(const TeamView &team, uint64_t bytes) {
    if (kSeveralBlocks<Scope> && bytes <= least(kCollectedByOne, room_beside_size(team))) {
        return {0, port::block_rank() == 0 ? static_cast<uint32_t>(bytes) : 0};
    }
    return part_of<Scope>(bytes);
}

// The piece that tells the size of a contribution.
OXSHMEM_DEVICE vec16 size_piece(uint64_t bytes) {
    return {static_cast<uint32_t>(bytes), static_cast<uint32_t>(bytes >> 32), 0, 0};
}

// Receives the contributions that have come in packets. Returns the same to all lanes of a block.
template <class Scope>
OXSHMEM_DEVICE bool take_contributions(const Session &session, const Sizes<Scope> &sizes, void *dst, const void *src) {
    const TeamView &team = session.team;
    const uint64_t places = own_packets<Scope>(team);
    bool good = true;
    uint64_t to = 0;
    for (int member = 0; member < team.n; ++member) {
        const uint64_t size = sizes.of(member);
        const Part part = part_of_contribution<Scope>(team, size);
        for (uint32_t at = Meeting<Scope>::rank() * kPiece; good && at < part.bytes; at += Meeting<Scope>::size() * kPiece) {
            vec16 value;
            if (member == team.me) {
                value = load_piece(at_offset(src, part.first + at), part.bytes - at);
            } else {
                const auto late = [&] { return team.blame(member); };
                good = wait(session.op, late, as<void>(places), [&] {
                    return look_at_piece<Scope>(team, places, member, at / kPiece + 1, value, part.bytes - at);
                });
            }
            if (good) {
                store_piece(at_offset(dst, to + part.first + at), value, part.bytes - at);
            }
        }
        to += size;
    }
    return !Scope::any(!good);
}

// Stores this member's contribution to all members' dst, in which `to` is its place, once they have
// sent their sizes, and ends the collective. Near members only.
template <class Scope> OXSHMEM_DEVICE bool push_collected(const Session &session, void *to, const void *src, uint64_t bytes) {
    // The packets with the sizes ordered nothing: what a member has stored to its own dst before
    // the call comes before what others store there.
    arrive<Scope, true>(session, 1, 0, session.team.n);
    if (!await_arrivals<Scope>(session, 1, [](int) { return 1u; })) {
        return false;
    }
    spread<Scope>(session, to, src, bytes);
    tell_of_end<Scope, true>(session);
    return finish<Scope>(session);
}

// Collects by one block or less.
template <class Scope>
OXSHMEM_OUTLINE int collect_bytes(int handle, void *dst, const void *src, uint64_t bytes, Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp([&] { return collect_bytes<warp_scope>(handle, dst, src, bytes, Caller::block); });
        }
    }
    const Profiled profiled(Op::collect, {port::state().my_pe, handle}, bytes, Scope::rank() == 0);
    Session session;
    if (!begin<Scope>(session, handle, Op::collect, Call::collect)) {
        return 1;
    }
    const TeamView &team = session.team;
    check_buffers<Scope>(session, dst, 0, src, bytes, false);
    uint64_t room = packet_room(team);
    if (caller == Caller::scope) {
        const uint32_t each = kPiecesAtOnce * Scope::kLanes / static_cast<uint32_t>(team.n);
        room = least(room, (each == 0 ? 1 : each) * kPiece);
    }
    room -= kPiece; // for the size
    const uint64_t limit =
        least(most_by_packets(team_row(team.handle).choices[static_cast<uint32_t>(Collective::collect)]), room);
    const uint32_t announced = collect_announced_by<Scope>(session, dst, limit, Algorithm::packets);
    const Sizes<Scope> sizes{team, bytes};
    uint64_t before, largest;
    Scope::sync();
    if (team.one_round) {
        const uint32_t small = bytes <= limit ? static_cast<uint32_t>(bytes) : 0;
        const auto load = [&](int, uint32_t offset, uint64_t left) {
            return offset == 0 ? size_piece(bytes) : load_piece(at_offset(src, offset - kPiece), left);
        };
        // This PE's own size lies beside the others', so that the sum is the same code for all.
        if (Scope::rank() == 0) {
            send_piece<Scope>(team, own_packets<Scope>(team), team.me, 0, size_piece(bytes), 8);
        }
        if (!session.bad) {
            send_packets<Scope, kPiecesAtOnce>(session, kPiece + small, load, [] { return true; });
        }
        const auto sized = [&](uint32_t member, int &missing) {
            vec16 first;
            missing = static_cast<int>(member);
            return look_at_piece<Scope>(team, own_packets<Scope>(team), missing, 0, first, 8);
        };
        if (!receive_packets<Scope>(session, announced, static_cast<uint32_t>(team.n), 1, sized, [](uint32_t) {}) ||
            !check_collected<Scope>(session, sizes, dst, src, before, largest)) {
            return 1;
        }
        const bool good = largest <= limit ? take_contributions<Scope>(session, sizes, dst, src)
                                           : push_collected<Scope>(session, at_offset(dst, before), src, bytes);
        return good ? 0 : 1;
    }
    if (!meet<Scope, true>(team, session.op, announced)) {
        return 1;
    }
    uint64_t *own = as<uint64_t>(team.packets()) + team.me;
    if (Scope::rank() == 0) {
        port::store<order::relaxed, reach::system>(own, bytes);
    }
    Scope::sync();
    for (int distance = 1; distance < team.n; ++distance) {
        deliver<Scope>(session, 1, session.team.member_behind(distance), own, own, sizeof(*own), 1);
    }
    if (!await_arrivals<Scope>(session, 1, [](int) { return 1u; }) ||
        !check_collected<Scope>(session, sizes, dst, src, before, largest)) {
        return 1;
    }
    char *to = at_offset(dst, before);
    for (int distance = 1; distance < team.n; ++distance) {
        deliver<Scope>(session, 0, session.team.member_behind(distance), to, src, bytes, 1);
    }
    near_copy<Scope>(to, src, bytes);
    return finish<Scope>(session) ? 0 : 1;
}

// Collects by several blocks of near members, as many on each. Contributions of up to `most` bytes
// go in packets, as far as the blocks have room for them. All members pass the same.
template <class Scope>
OXSHMEM_DEVICE int collect_by_blocks(const TeamName<Scope> &name, void *dst, const void *src, uint64_t bytes, uint64_t most) {
    static_assert(kSeveralBlocks<Scope> && !kInGrid<Scope> && !kByLevels<Scope>, "block b meets block b of the others");
    const Profiled profiled(Op::collect, {port::state().my_pe, handle_in(name)}, bytes, Scope::rank() == 0);
    Session session;
    if (!begin<Scope>(session, name, Op::collect, Call::collect)) {
        return 1;
    }
    const TeamView &team = session.team;
    check_buffers<Scope>(session, dst, 0, src, bytes, false);
    const uint64_t limit = least(most, static_cast<uint64_t>(room_beside_size(team)) * sharing_blocks());
    const uint32_t announced = collect_announced_by<Scope>(session, dst, limit, Algorithm::packets);
    const Part part = bytes <= limit ? part_of_contribution<Scope>(team, bytes) : Part{0, 0};
    const auto load = [&](int, uint32_t offset, uint64_t left) {
        return offset == 0 ? size_piece(bytes) : load_piece(at_offset(src, part.first + offset - kPiece), left);
    };
    // A block that sends the size alone needs one packet for it.
    const uint32_t sent = part.bytes == 0 ? sizeof(bytes) : kPiece + part.bytes;
    if (!settle_and_send<Scope>(session, name, true, sent, load)) {
        return 1;
    }
    const Sizes<Scope> sizes{team, bytes};
    const auto sized = [&](uint32_t member, int &missing) {
        vec16 first;
        missing = static_cast<int>(member);
        return missing == team.me || look_at_piece<Scope>(team, own_packets<Scope>(team), missing, 0, first, 8);
    };
    uint64_t before = 0, largest = 0;
    bool good = have_all_received<Scope>(
        receive_packets<Scope>(session, announced, static_cast<uint32_t>(team.n), 1, sized, [](uint32_t) {}));
    good = good && check_collected<Scope>(session, sizes, dst, src, before, largest);
    if (good) {
        good = largest <= limit ? take_contributions<Scope>(session, sizes, dst, src)
                                : push_collected<Scope>(session, at_offset(dst, before), src, bytes);
    }
    return leave_exchange<Scope>(session, good) ? 0 : 1;
}

} // namespace oxshmem::detail
