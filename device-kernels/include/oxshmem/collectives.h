// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives over a team: broadcast, collect, fcollect, alltoall, alltoalls, reduce, reducescatter.
//
// Every member makes the same call, one group of threads per PE at a time; different teams may be busy at the same time. dst
// and src are symmetric, the same on all members. When a call returns, dst holds the result and src may be reused, on this PE.
// Each answers 0, or not 0 if an error was recorded: then nothing was written to dst, unless a deadline or the job's end came
// between. A call that is refused on one member is an error on all of them.
//
// The algorithm is chosen by the team's table (docs/teams.md). Results of reductions are equal on all members to the last bit,
// and from run to run for one algorithm and team.
#pragma once

#include "detail/exchange.h"
#include "detail/tree.h"

namespace oxshmem {

namespace detail {

// A block that leaves the call to its first warp says so; others call for themselves.
template <class Scope> constexpr Caller kOwn = Scope::kSeveralWarps ? Caller::block : Caller::scope;

// What the calls announce beside buffers and size.
OXSHMEM_DEVICE uint64_t extra_of(uint64_t a, uint64_t b, uint64_t c) {
    return (a * 0x9e3779b97f4a7c15ull + b) * 0xbf58476d1ce4e5b9ull + c;
}

template <class Scope>
OXSHMEM_OUTLINE int broadcast_bytes(int handle, void *dst, const void *src, uint64_t bytes, int root,
                                    Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp([&] { return broadcast_bytes<warp_scope>(handle, dst, src, bytes, root, Caller::block); });
        }
    }
    Session session;
    if (!begin<Scope>(session, handle, Op::broadcast, Call::broadcast, dst, src, bytes)) {
        return 1;
    }
    session.root = root;
    check_root<Scope>(session, root);
    check_buffers<Scope>(session, dst, bytes, src, bytes, true);
    const Algorithm algorithm = choose<Scope>(session, Collective::broadcast, bytes, pieces_of(bytes), caller);
    session.announced = announced_by(session, dst, src, bytes, static_cast<uint64_t>(root), algorithm);
    Scope::sync();
    if (algorithm == Algorithm::packets) {
        return exchange<Scope, Whole>(session, root) ? 0 : 1;
    }
    if (!meet<Scope, true>(session.team, session.op, session.announced)) {
        return 1;
    }
    if (session.bytes == 0) {
        return 0;
    }
    return (algorithm == Algorithm::tree ? tree_broadcast<Scope>(session) : push_broadcast<Scope>(session)) ? 0 : 1;
}

// fcollect (`step` 0: all get the same) and alltoall (`step` = `bytes`): `bytes` bytes for each member.
template <class Scope>
OXSHMEM_DEVICE int gather_parts(int handle, Collective collective, Op op, Call call, void *dst, const void *src, uint64_t bytes,
                                uint64_t step, Caller caller) {
    Session session;
    if (!begin<Scope>(session, handle, op, call, dst, src, bytes)) {
        return 1;
    }
    session.step = step;
    check_buffers<Scope>(session, dst, times(bytes, session.team.n), src, step == 0 ? bytes : times(bytes, session.team.n),
                         false);
    const uint64_t pieces = times(pieces_of(bytes), session.team.n);
    const Algorithm algorithm = choose<Scope>(session, collective, bytes, pieces, caller);
    session.announced = announced_by(session, dst, src, bytes, 0, algorithm);
    Scope::sync();
    if (algorithm == Algorithm::packets) {
        return exchange<Scope, Parts>(session, -1) ? 0 : 1;
    }
    if (!meet<Scope, true>(session.team, session.op, session.announced)) {
        return 1;
    }
    return session.bytes == 0 || push_parts<Scope>(session) ? 0 : 1;
}

template <class Scope>
OXSHMEM_OUTLINE int fcollect_bytes(int handle, void *dst, const void *src, uint64_t bytes, Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp([&] { return fcollect_bytes<warp_scope>(handle, dst, src, bytes, Caller::block); });
        }
    }
    return gather_parts<Scope>(handle, Collective::fcollect, Op::fcollect, Call::fcollect, dst, src, bytes, 0, caller);
}

template <class Scope>
OXSHMEM_OUTLINE int alltoall_bytes(int handle, void *dst, const void *src, uint64_t bytes, Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp([&] { return alltoall_bytes<warp_scope>(handle, dst, src, bytes, Caller::block); });
        }
    }
    return gather_parts<Scope>(handle, Collective::alltoall, Op::alltoall, Call::alltoall, dst, src, bytes, bytes, caller);
}

// Calls `visit` for each element of a piece that begins `offset` bytes into the data, of which `left` bytes are left: with its
// place in the piece and its number. (A template, because NVRTC takes generic lambdas for host functions.)
template <class Visit> OXSHMEM_DEVICE void each_element(uint32_t element, uint32_t offset, uint64_t left, Visit visit) {
    const uint32_t end = left < kPiece ? static_cast<uint32_t>(left) : kPiece;
    for (uint32_t at = 0; at < end; at += element) {
        visit(at, (offset + at) / element);
    }
}

// As Parts, for elements that lie apart.
struct Strided {
    const Session &session;

    OXSHMEM_DEVICE vec16 load(int member, uint32_t offset, uint64_t left) const {
        vec16 value{};
        each_element(session.strides.element, offset, left, [&](uint32_t at, uint64_t index) {
            const uint64_t number = static_cast<uint64_t>(member) * session.n + index;
            port::copy_bytes(reinterpret_cast<char *>(&value) + at, at_offset(session.src, number * session.strides.src),
                             session.strides.element);
        });
        return value;
    }
    OXSHMEM_DEVICE void store(int member, uint32_t offset, vec16 value, uint64_t left) const {
        each_element(session.strides.element, offset, left, [&](uint32_t at, uint64_t index) {
            const uint64_t number = static_cast<uint64_t>(member) * session.n + index;
            port::copy_bytes(at_offset(session.dst, number * session.strides.dst), reinterpret_cast<const char *>(&value) + at,
                             session.strides.element);
        });
    }
};

// Elements lie `strides` bytes apart, `n` of them for each member.
template <class Scope>
OXSHMEM_OUTLINE int alltoalls_bytes(int handle, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                                    uint64_t n, uint32_t element, Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (n <= kFewBytes / kPiece && are_many_threads()) {
            return by_first_warp([&] {
                return alltoalls_bytes<warp_scope>(handle, dst, src, dst_stride, src_stride, n, element, Caller::block);
            });
        }
    }
    Session session;
    if (!begin<Scope>(session, handle, Op::alltoalls, Call::alltoalls, dst, src, 0)) {
        return 1;
    }
    const bool sized = element == 1 || element == 2 || element == 4 || element == 8 || element == 16;
    const bool good_strides = dst_stride >= 1 && src_stride >= 1;
    if (!sized || !good_strides) {
        refuse<Scope>(session, ErrorCode::bad_argument, nullptr,
                      !sized ? element : static_cast<uint64_t>(dst_stride < 1 ? dst_stride : src_stride));
    } else {
        // From the first element to the last one's end.
        const auto extent = [&](ptrdiff_t stride) {
            const uint64_t count = times(n, session.team.n);
            const uint64_t most = (~0ull / element - 1) / static_cast<uint64_t>(stride);
            return count == 0 ? 0 : count - 1 > most ? ~0ull : ((count - 1) * static_cast<uint64_t>(stride) + 1) * element;
        };
        check_buffers<Scope>(session, dst, extent(dst_stride), src, extent(src_stride), false);
    }
    session.strides = {element, static_cast<uint64_t>(dst_stride) * element, static_cast<uint64_t>(src_stride) * element};
    session.n = n, session.bytes = sized ? times(n, static_cast<int>(element)) : 0;
    const uint64_t pieces = times(pieces_of(session.bytes), session.team.n);
    const Algorithm algorithm = choose<Scope>(session, Collective::alltoalls, session.bytes, pieces, caller);
    session.announced =
        announced_by(session, dst, src, n, extra_of(element, session.strides.dst, session.strides.src), algorithm);
    Scope::sync();
    if (algorithm == Algorithm::packets) {
        return exchange<Scope, Strided>(session, -1) ? 0 : 1;
    }
    if (!meet<Scope, true>(session.team, session.op, session.announced)) {
        return 1;
    }
    return session.n == 0 || push_strided<Scope>(session) ? 0 : 1;
}

// The sizes of all members' contributions to a collect, each in the first piece of its packets (or, over the network, in the
// place where its packets would be).
struct Sizes {
    const TeamView &team;
    bool packed;

    OXSHMEM_DEVICE uint64_t of(int member) const {
        if (!packed) {
            return port::load<order::relaxed, reach::system>(as<uint64_t>(team.packets()) + member);
        }
        vec16 first;
        look_at_piece(team, member, 0, first, 8);
        return static_cast<uint64_t>(first.y) << 32 | first.x;
    }
};

// What collect does once the sizes are known: dst has to have room for all, on every member alike. `before`: bytes of the
// members before the own one.
template <class Scope>
OXSHMEM_OUTLINE bool check_collected(Session &session, bool packed, uint64_t &before, uint64_t &largest) {
    const Sizes sizes{session.team, packed};
    uint64_t total = 0;
    before = 0, largest = 0;
    for (int member = 0; member < session.team.n; ++member) {
        const uint64_t size = sizes.of(member);
        before = member == session.team.me ? total : before;
        largest = size > largest ? size : largest;
        total = total + size < total ? ~0ull : total + size;
    }
    check_buffers<Scope>(session, session.dst, total, session.src, session.bytes, false);
    return !session.bad;
}

// Exchanges the sizes of all contributions, and sends the own one if it has at most `limit` bytes, in packets.
template <class Scope> OXSHMEM_OUTLINE bool exchange_sizes(const Session &session, uint64_t limit) {
    const TeamView &team = session.team;
    const uint64_t bytes = session.bytes;
    const uint32_t small = bytes <= limit ? static_cast<uint32_t>(bytes) : 0;
    const auto load = [&](int, uint32_t offset, uint64_t left) {
        if (offset == 0) {
            return vec16{static_cast<uint32_t>(bytes), static_cast<uint32_t>(bytes >> 32), 0, 0};
        }
        return load_piece(at_offset(session.src, offset - kPiece), left);
    };
    // The own size lies where the others' do, so that the sum is the same code for all.
    if (Scope::rank() == 0) {
        send_piece(team, team.me, 0, load(team.me, 0, kPiece), 8);
    }
    if (!session.bad) {
        send_packets<Scope, kPiecesAtOnce>(session, kPiece + small, load);
    }
    const auto sized = [&](uint32_t member, int &missing) {
        vec16 first;
        missing = static_cast<int>(member);
        return look_at_piece(team, missing, 0, first, 8);
    };
    return receive_packets<Scope>(session, session.announced, static_cast<uint32_t>(team.n), 1, sized, [](uint32_t) {});
}

// Stores the contributions of all members, which came, or come, in packets.
template <class Scope> OXSHMEM_OUTLINE bool store_collected(const Session &session) {
    const Sizes sizes{session.team, true};
    const TeamView &team = session.team;
    bool good = true;
    char *to = static_cast<char *>(session.dst);
    for (int member = 0; member < team.n; ++member) {
        const uint32_t size = static_cast<uint32_t>(sizes.of(member));
        for (uint32_t at = Scope::rank() * kPiece; good && at < size; at += Scope::size() * kPiece) {
            vec16 value;
            if (member == team.me) {
                value = load_piece(at_offset(session.src, at), size - at);
            } else {
                good = wait(session.op, team.blame(member), as<void>(team.packets()),
                            [&] { return look_at_piece(team, member, at / kPiece + 1, value, size - at); });
            }
            if (good) {
                store_piece(to + at, value, size - at);
            }
        }
        to += size;
    }
    return !Scope::any(!good);
}

// The same for teams that the network connects: after a meeting, each member tells the others its size.
template <class Scope> OXSHMEM_OUTLINE bool tell_sizes(const Session &session) {
    uint64_t *const own = as<uint64_t>(session.team.packets()) + session.team.me;
    if (Scope::rank() == 0) {
        port::store<order::relaxed, reach::system>(own, session.bytes);
    }
    Scope::sync();
    for (int distance = 1; distance < session.team.n; ++distance) {
        deliver<Scope>(session, 1, session.member_behind(distance), own, own, sizeof(*own), 1);
    }
    return await_arrivals<Scope>(session, 1, [](int) { return 1u; });
}

// Pushes contributions to where they belong.
template <class Scope> OXSHMEM_OUTLINE bool push_collected(const Session &session, uint64_t before) {
    if (session.team.one_round) {
        spread<Scope>(session, at_offset(session.dst, before), session.src, session.bytes);
        return end_together<Scope, true>(session);
    }
    for (int distance = 1; distance < session.team.n; ++distance) {
        deliver<Scope>(session, 0, session.member_behind(distance), at_offset(session.dst, before), session.src, session.bytes,
                       1);
    }
    deliver<Scope>(session, session.team.me, at_offset(session.dst, before), session.src, session.bytes);
    complete_sends<Scope>(session, [](int) { return true; });
    return await_arrivals<Scope>(session, 0, [](int) { return 1u; });
}

// The largest contribution that travels with its size.
template <class Scope> OXSHMEM_DEVICE uint64_t collected_in_packets(const TeamView &team, Caller caller) {
    uint64_t room = packet_room(team);
    if (caller == Caller::scope) {
        const uint32_t each = kPiecesAtOnce * Scope::kLanes / static_cast<uint32_t>(team.n);
        room = least(room, (each == 0 ? 1 : each) * kPiece);
    }
    room -= kPiece; // for the size
    // The table is asked for what fits, because the sizes of others are not known yet.
    uint64_t limit = 0;
    for (uint32_t i = 0; i < abi::kChoices; ++i) {
        const abi::Choice &choice = team_row(team.handle).choices[static_cast<uint32_t>(Collective::collect)][i];
        if (choice.algorithm == static_cast<uint32_t>(Algorithm::packets) && choice.up_to_bytes > limit) {
            limit = choice.up_to_bytes;
        }
    }
    return least(limit, room);
}

// Small contributions travel with their sizes, and if all are small that is all. Otherwise they are pushed to where they
// belong.
template <class Scope>
OXSHMEM_OUTLINE int collect_bytes(int handle, void *dst, const void *src, uint64_t bytes, Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp([&] { return collect_bytes<warp_scope>(handle, dst, src, bytes, Caller::block); });
        }
    }
    Session session;
    if (!begin<Scope>(session, handle, Op::collect, Call::collect, dst, src, bytes)) {
        return 1;
    }
    check_buffers<Scope>(session, dst, 0, src, bytes, false);
    const uint64_t limit = collected_in_packets<Scope>(session.team, caller);
    session.announced = announced_by(session, dst, src, 0, limit, Algorithm::packets);
    uint64_t before, largest;
    Scope::sync();
    if (session.team.one_round) {
        if (!exchange_sizes<Scope>(session, limit) || !check_collected<Scope>(session, true, before, largest)) {
            return 1;
        }
        if (largest <= limit) {
            return store_collected<Scope>(session) ? 0 : 1;
        }
    } else if (!meet<Scope, true>(session.team, session.op, session.announced) || !tell_sizes<Scope>(session) ||
               !check_collected<Scope>(session, false, before, largest)) {
        return 1;
    }
    return push_collected<Scope>(session, before) ? 0 : 1;
}

// Fills the session of a reduction, and chooses how to do it.
template <class Scope>
OXSHMEM_DEVICE Algorithm prepare_reduction(Session &session, uint64_t n, bool to_all, Type type, ReduceOp op, Caller caller) {
    const uint64_t kinds = static_cast<uint64_t>(type) << 32 | static_cast<uint64_t>(op);
    if (!is_reduction(type, op)) {
        refuse<Scope>(session, ErrorCode::bad_argument, nullptr, kinds);
    } else {
        const uint64_t bytes = times(n, static_cast<int>(element_bytes(type)));
        session.bytes = bytes;
        check_buffers<Scope>(session, session.dst, bytes, session.src, to_all ? bytes : times(bytes, session.team.n), to_all);
    }
    session.to_all = to_all;
    session.step = to_all ? 0 : session.bytes;
    // A piece of the result takes one of each member, of which several come at once.
    const uint64_t pieces = times(pieces_of(session.bytes), (session.team.n + 1) / 2);
    const Algorithm algorithm =
        choose<Scope>(session, to_all ? Collective::reduce : Collective::reducescatter, session.bytes, pieces, caller);
    session.announced = announced_by(session, session.dst, session.src, n, kinds, algorithm);
    return algorithm;
}

// reduce (`to_all`: `n` elements, the result on all members) and reducescatter (`n` elements of the result on each member).
template <class Scope, class Combine>
OXSHMEM_OUTLINE int reduce_elements(int handle, void *dst, const void *src, uint64_t n, bool to_all, Combine combine,
                                    Caller caller = kOwn<Scope>) {
    if constexpr (Scope::kSeveralWarps) {
        if (n <= kFewBytes / kPiece && are_many_threads()) {
            return by_first_warp(
                [&] { return reduce_elements<warp_scope>(handle, dst, src, n, to_all, combine, Caller::block); });
        }
    }
    Session session;
    if (!begin<Scope>(session, handle, to_all ? Op::reduce : Op::reducescatter, to_all ? Call::reduce : Call::reducescatter,
                      dst, src, 0)) {
        return 1;
    }
    const Algorithm algorithm = prepare_reduction<Scope>(session, n, to_all, combine.type(), combine.op(), caller);
    Scope::sync();
    if (algorithm == Algorithm::packets) {
        return exchange_combined<Scope>(session, combine) ? 0 : 1;
    }
    if (!meet<Scope, true>(session.team, session.op, session.announced)) {
        return 1;
    }
    if (session.bytes == 0) {
        return 0;
    }
    const bool good = session.to_all && algorithm == Algorithm::tree ? tree_reduce<Scope>(session, combine)
                                                                     : push_combined<Scope>(session, combine);
    return good ? 0 : 1;
}

} // namespace detail

// `bytes` bytes of member `root`'s src to all members' dst, its own included. dst may be src.
template <class Scope> OXSHMEM_DEVICE int broadcastmem(Scope, team_t team, void *dst, const void *src, size_t bytes, int root) {
    return detail::broadcast_bytes<Scope>(team, dst, src, bytes, root);
}
template <class Scope, class T> OXSHMEM_DEVICE int broadcast(Scope, team_t team, T *dst, const T *src, size_t n, int root) {
    return detail::broadcast_bytes<Scope>(team, dst, src, detail::bytes_of<T>(n), root);
}

// All members' src one behind the other to all members' dst; members may contribute different lengths.
template <class Scope> OXSHMEM_DEVICE int collectmem(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::collect_bytes<Scope>(team, dst, src, bytes);
}
template <class Scope, class T> OXSHMEM_DEVICE int collect(Scope, team_t team, T *dst, const T *src, size_t n) {
    return detail::collect_bytes<Scope>(team, dst, src, detail::bytes_of<T>(n));
}

// The same, of one length for all.
template <class Scope> OXSHMEM_DEVICE int fcollectmem(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::fcollect_bytes<Scope>(team, dst, src, bytes);
}
template <class Scope, class T> OXSHMEM_DEVICE int fcollect(Scope, team_t team, T *dst, const T *src, size_t n) {
    return detail::fcollect_bytes<Scope>(team, dst, src, detail::bytes_of<T>(n));
}

// Part j of member i's src, of `n` elements, becomes part i of member j's dst.
template <class Scope> OXSHMEM_DEVICE int alltoallmem(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::alltoall_bytes<Scope>(team, dst, src, bytes);
}
template <class Scope, class T> OXSHMEM_DEVICE int alltoall(Scope, team_t team, T *dst, const T *src, size_t n) {
    return detail::alltoall_bytes<Scope>(team, dst, src, detail::bytes_of<T>(n));
}

// The same with elements `dst_stride` and `src_stride` elements apart, at least 1.
template <class Scope>
OXSHMEM_DEVICE int alltoallsmem(Scope, team_t team, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                                size_t bytes) {
    return detail::alltoalls_bytes<Scope>(team, dst, src, dst_stride, src_stride, bytes, 1);
}
template <class Scope, class T>
OXSHMEM_DEVICE int alltoalls(Scope, team_t team, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n) {
    return detail::alltoalls_bytes<Scope>(team, dst, src, dst_stride, src_stride, n, sizeof(T));
}

// `n` elements of all members' src combined by an operator (op_sum and so on), to all members' dst. dst may be src.
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE int reduce(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    return detail::reduce_elements<Scope>(team, dst, src, n, true, detail::Combine<T, Operator::kNumber>{});
}

// Part i of all members' src, of `n` elements, combined to member i's dst.
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE int reducescatter(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    return detail::reduce_elements<Scope>(team, dst, src, n, false, detail::Combine<T, Operator::kNumber>{});
}

} // namespace oxshmem
