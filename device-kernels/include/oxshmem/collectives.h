// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Collectives over a team: broadcast, collect, fcollect, alltoall, alltoalls, reduce,
// reducescatter.
//
// Every member makes the same call, one group of threads per PE at a time; different teams may be
// busy at the same time. In grid scope all blocks of each PE make it, as many on each PE, and it
// returns in all of them when all are through. dst and src are symmetric, the same on all members.
// When a call returns, dst holds the result and src may be reused, on this PE. Each returns 0, or
// another value if an error was recorded: then nothing was written to dst, unless a deadline
// passed, the network failed or the job ended meanwhile, or the program defines
// OXSHMEM_DST_IS_READY (detail/direct.h). A call that is refused on one member is an error on all
// of them.
//
// The algorithm is chosen by the team's table (docs/teams.md). Results of reductions are equal on
// all members to the last bit, and from run to run for one algorithm and team.
#pragma once

#include "detail/collect.h"
#include "detail/direct.h"
#include "detail/exchange.h"
#include "detail/tree.h"

namespace oxshmem {

namespace detail {

// What beginning a collective comes to: its end is to be awaited; it has failed; it has ended.
// Whole collectives return the first two.
constexpr int kAwaits = 0, kFailed = 1, kEnded = 2;

// The end of a collective whose member has done its part, or its beginning, which leaves the end to
// end() and `begun`.
template <class Scope, bool kBegins>
OXSHMEM_DEVICE int finish_or_leave(const Session &session, bool good, int root, Session *begun) {
    if constexpr (kBegins) {
        *begun = session;
        return good ? kAwaits : kFailed;
    } else {
        return good && finish<Scope>(session, root) ? 0 : 1;
    }
}

// Meets the other members before a collective goes straight between buffers. Returns the same to
// all lanes: false if they have not all entered the same call.
template <class Scope> OXSHMEM_DEVICE bool enter(Session &session, const TeamName<Scope> &name, uint32_t announced) {
    if (!settle<Scope>(session.team, name, session.op)) {
        return false;
    }
    if constexpr (kInGrid<Scope>) {
        return enter_grids(session.team, session.op, announced);
    } else {
        return meet<Scope, true>(session.team, session.op, announced);
    }
}

// What the calls announce beside buffers and size.
OXSHMEM_DEVICE uint64_t extra_of(uint64_t a, uint64_t b, uint64_t c) {
    return (a * 0x9e3779b97f4a7c15ull + b) * 0xbf58476d1ce4e5b9ull + c;
}

template <class Scope, bool kBegins = false>
OXSHMEM_DEVICE int broadcast_named(const TeamName<Scope> &name, void *dst, const void *src, uint64_t bytes, int root,
                                   Caller caller, Session *begun) {
    const Profiled profiled(Op::broadcast, {port::state().my_pe, handle_in(name)}, bytes, Scope::rank() == 0);
    Session session;
    if (!begin<Scope>(session, name, Op::broadcast, Call::broadcast)) {
        return 1;
    }
    check_root<Scope>(session, root);
    check_buffers<Scope>(session, dst, bytes, src, bytes, true);
    const Algorithm algorithm = kBegins ? Algorithm::push : choose<Scope>(session, Collective::broadcast, bytes, 1, caller);
    const uint32_t announced = announced_by<Scope>(session, dst, src, bytes, static_cast<uint64_t>(root), algorithm);
    if (algorithm == Algorithm::packets) {
        const Part part = part_of<Scope>(bytes);
        const auto load = [=](int, uint32_t offset, uint64_t left) {
            return load_piece(at_offset(src, part.first + offset), left);
        };
        const auto store = [=](int, uint32_t offset, vec16 value, uint64_t left) {
            store_piece(at_offset(dst, part.first + offset), value, left);
        };
        return exchange<Scope>(session, name, announced, part.bytes, root, load, store) ? 0 : 1;
    }
    if constexpr (kOpensGrid<Scope> || kRelays<Scope>) {
        if (algorithm == Algorithm::relay) {
            return relay_broadcast<Scope>(session, name, announced, dst, src, bytes, root) ? 0 : 1;
        }
    }
    if (!enter<Scope>(session, name, announced)) {
        return 1;
    }
    // The rest is the host's.
    if (bytes == 0 || algorithm == Algorithm::copy_engines) {
        return kBegins ? kEnded : 0;
    }
    if constexpr (!kSeveralBlocks<Scope> && !kBegins) {
        if (algorithm == Algorithm::tree) {
            return tree_broadcast<Scope>(session, dst, src, bytes, root) ? 0 : 1;
        }
    }
    const bool good = !is_sharing<Scope>() || push_broadcast<Scope>(session, dst, src, bytes, root);
    return finish_or_leave<Scope, kBegins>(session, good, root, begun);
}

// The end of step `step`, from 1 on, of what copy engines do for a collective: the stream has
// completed this member's copies of the step, so it tells the others, and waits until they say the
// same. The call keeps the epoch of its meeting, so each member takes one epoch for it, however it
// ends. A member whose meeting or earlier step has failed tells nothing, and the others wait for it
// until the deadline.
template <class Scope> OXSHMEM_DEVICE int end_copies(const TeamName<Scope> &name, Op op, Call call, uint32_t step) {
    static_assert(kOpensGrid<Scope>);
    Session session;
    begin<Scope>(session, name, op, call);
    if (!has_row<Scope>(session.team, name, op)) {
        return 1;
    }
    if (port::load<order::relaxed, reach::device>(&team_row(name.handle).stopped) == session.team.epoch) {
        return 1;
    }
    arrive<Scope, true>(session, 0, 0, session.team.n, step);
    return await_arrivals<Scope>(session, 0, [&](int) { return step; }) ? 0 : 1;
}

template <class Scope, bool kBegins = false>
OXSHMEM_OUTLINE int broadcast_bytes(TeamName<Scope> name, void *dst, const void *src, uint64_t bytes, int root,
                                    Caller caller = kOwn<Scope>, Session *begun = nullptr) {
    if constexpr (Scope::kSeveralWarps && !kSeveralBlocks<Scope> && !kBegins) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp([&] { return broadcast_bytes<warp_scope>(name, dst, src, bytes, root, Caller::block); });
        }
    }
    return broadcast_named<Scope, kBegins>(name, dst, src, bytes, root, caller, begun);
}

// fcollect (`step` 0: all get the same) and alltoall (`step` = `bytes`): `bytes` bytes for each
// member.
template <class Scope, bool kBegins = false>
OXSHMEM_DEVICE int gather_parts(const TeamName<Scope> &name, Collective collective, Op op, Call call, void *dst,
                                const void *src, uint64_t bytes, uint64_t step, Caller caller = kOwn<Scope>,
                                Session *begun = nullptr) {
    if constexpr (Scope::kSeveralWarps && !kSeveralBlocks<Scope> && !kBegins) {
        if (bytes <= kFewBytes && are_many_threads()) {
            return by_first_warp(
                [&] { return gather_parts<warp_scope>(name, collective, op, call, dst, src, bytes, step, Caller::block); });
        }
    }
    const Profiled profiled(op, {port::state().my_pe, handle_in(name)}, bytes, Scope::rank() == 0);
    Session session;
    if (!begin<Scope>(session, name, op, call)) {
        return 1;
    }
    check_buffers<Scope>(session, dst, times(bytes, session.team.n), src, step == 0 ? bytes : times(bytes, session.team.n),
                         false);
    Algorithm algorithm = kBegins ? Algorithm::push : choose<Scope>(session, collective, bytes, session.team.n, caller);
    if constexpr (kDstIsReady && !kBegins && !kSeveralBlocks<Scope>) {
        const TeamView &team = session.team;
        if (team.one_round && goes_direct<Scope>(team_row(name).chosen, team.share, team.n, collective, bytes, caller)) {
            algorithm = kDirect;
            if (!session.bad) {
                store_parts<Scope>(session, dst, src, bytes, step);
            }
        }
    }
    const uint32_t announced = announced_by<Scope>(session, dst, src, bytes, 0, algorithm);
    if (algorithm == Algorithm::packets) {
        const Part part = part_of<Scope>(bytes);
        const auto load = [=](int member, uint32_t offset, uint64_t left) {
            return load_piece(at_offset(src, step * static_cast<uint64_t>(member) + part.first + offset), left);
        };
        const auto store = [=](int member, uint32_t offset, vec16 value, uint64_t left) {
            store_piece(at_offset(dst, bytes * static_cast<uint64_t>(member) + part.first + offset), value, left);
        };
        return exchange<Scope>(session, name, announced, part.bytes, -1, load, store) ? 0 : 1;
    }
    if (!enter<Scope>(session, name, announced)) {
        return 1;
    }
    if (bytes == 0 || algorithm == kDirect || algorithm == Algorithm::copy_engines) {
        return kBegins ? kEnded : 0;
    }
    if (is_sharing<Scope>()) {
        push_parts<Scope>(session, dst, src, bytes, step);
    }
    return finish_or_leave<Scope, kBegins>(session, true, -1, begun);
}

template <class Scope, bool kBegins = false>
OXSHMEM_OUTLINE int fcollect_bytes(TeamName<Scope> name, void *dst, const void *src, uint64_t bytes,
                                   Caller caller = kOwn<Scope>, Session *begun = nullptr) {
    return gather_parts<Scope, kBegins>(name, Collective::fcollect, Op::fcollect, Call::fcollect, dst, src, bytes, 0, caller,
                                        begun);
}

template <class Scope, bool kBegins = false>
OXSHMEM_OUTLINE int alltoall_bytes(TeamName<Scope> name, void *dst, const void *src, uint64_t bytes,
                                   Caller caller = kOwn<Scope>, Session *begun = nullptr) {
    return gather_parts<Scope, kBegins>(name, Collective::alltoall, Op::alltoall, Call::alltoall, dst, src, bytes, bytes,
                                        caller, begun);
}

// Calls `visit` for each element of a piece that begins `offset` bytes into the data, of which
// `left` bytes are left: with its place in the piece and its number. (A template, because NVRTC
// takes generic lambdas for host functions.)
template <class Visit> OXSHMEM_DEVICE void each_element(uint32_t element, uint32_t offset, uint64_t left, Visit visit) {
    const uint32_t end = left < kPiece ? static_cast<uint32_t>(left) : kPiece;
    for (uint32_t at = 0; at < end; at += element) {
        visit(at, (offset + at) / element);
    }
}

// What alltoalls accepts: elements of a size that there is, positive strides, and buffers that have
// room for all of them. Returns whether there is the size.
template <class Scope>
OXSHMEM_DEVICE bool check_strided(Session &session, const void *dst, const void *src, ptrdiff_t dst_stride,
                                  ptrdiff_t src_stride, uint64_t n, uint32_t element) {
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
    return sized;
}

// Elements lie `strides` bytes apart, `n` of them for each member.
template <class Scope, bool kBegins = false>
OXSHMEM_OUTLINE int alltoalls_bytes(TeamName<Scope> name, void *dst, const void *src, ptrdiff_t dst_stride,
                                    ptrdiff_t src_stride, uint64_t n, uint32_t element, Caller caller = kOwn<Scope>,
                                    Session *begun = nullptr) {
    if constexpr (Scope::kSeveralWarps && !kSeveralBlocks<Scope> && !kBegins) {
        if (n <= kFewBytes / kPiece && are_many_threads()) {
            return by_first_warp(
                [&] { return alltoalls_bytes<warp_scope>(name, dst, src, dst_stride, src_stride, n, element, Caller::block); });
        }
    }
    const Profiled profiled(Op::alltoalls, {port::state().my_pe, handle_in(name)}, n * element, Scope::rank() == 0);
    Session session;
    if (!begin<Scope>(session, name, Op::alltoalls, Call::alltoalls)) {
        return 1;
    }
    const bool sized = check_strided<Scope>(session, dst, src, dst_stride, src_stride, n, element);
    const Strides strides{element, static_cast<uint64_t>(dst_stride) * element, static_cast<uint64_t>(src_stride) * element};
    const uint64_t bytes = sized ? times(n, static_cast<int>(element)) : 0;
    const Algorithm algorithm =
        kBegins ? Algorithm::push : choose<Scope>(session, Collective::alltoalls, bytes, session.team.n, caller);
    const uint32_t announced =
        announced_by<Scope>(session, dst, src, n, extra_of(element, strides.dst, strides.src), algorithm);
    if constexpr (!kSeveralBlocks<Scope> && !kBegins) {
        if (algorithm == Algorithm::packets) {
            const auto load = [=](int member, uint32_t offset, uint64_t left) {
                vec16 value{};
                each_element(element, offset, left, [&](uint32_t at, uint64_t index) {
                    const uint64_t number = static_cast<uint64_t>(member) * n + index;
                    port::copy_bytes(reinterpret_cast<char *>(&value) + at, at_offset(src, number * strides.src), element);
                });
                return value;
            };
            const auto store = [=](int member, uint32_t offset, vec16 value, uint64_t left) {
                each_element(element, offset, left, [&](uint32_t at, uint64_t index) {
                    const uint64_t number = static_cast<uint64_t>(member) * n + index;
                    port::copy_bytes(at_offset(dst, number * strides.dst), reinterpret_cast<const char *>(&value) + at,
                                     element);
                });
            };
            return exchange<Scope>(session, name, announced, static_cast<uint32_t>(bytes), -1, load, store) ? 0 : 1;
        }
    }
    if (!enter<Scope>(session, name, announced)) {
        return 1;
    }
    if (n == 0) {
        return kBegins ? kEnded : 0;
    }
    if (is_sharing<Scope>()) {
        push_strided<Scope>(session, dst, src, n, strides);
    }
    return finish_or_leave<Scope, kBegins>(session, true, -1, begun);
}

// reduce (`to_all`: `n` elements, the result on all members) and reducescatter (`n` elements of the
// result on each member).
template <class Scope, bool kBegins = false, class Combine>
OXSHMEM_DEVICE int reduce_named(const TeamName<Scope> &name, void *dst, const void *src, uint64_t n, bool to_all,
                                const Combine &combine, Caller caller, Session *begun = nullptr) {
    const Profiled profiled(to_all ? Op::reduce : Op::reducescatter, {port::state().my_pe, handle_in(name)},
                            n * element_bytes(combine.type()), Scope::rank() == 0);
    Session session;
    if (!begin<Scope>(session, name, to_all ? Op::reduce : Op::reducescatter, to_all ? Call::reduce : Call::reducescatter)) {
        return 1;
    }
    const uint64_t kinds = static_cast<uint64_t>(combine.type()) << 32 | static_cast<uint64_t>(combine.op());
    uint64_t bytes = 0;
    if (!is_reduction(combine.type(), combine.op())) {
        refuse<Scope>(session, ErrorCode::bad_argument, nullptr, kinds);
    } else {
        bytes = times(n, static_cast<int>(element_bytes(combine.type())));
        check_buffers<Scope>(session, dst, bytes, src, to_all ? bytes : times(bytes, session.team.n), to_all);
    }
    // A piece of the result takes one of each member, of which several come at once.
    const Collective collective = to_all ? Collective::reduce : Collective::reducescatter;
    const Algorithm algorithm =
        kBegins ? Algorithm::push : choose<Scope>(session, collective, bytes, (session.team.n + 1) / 2, caller);
    const uint32_t announced = announced_by<Scope>(session, dst, src, n, kinds, algorithm);
    if (algorithm == Algorithm::packets) {
        const Part part = part_of<Scope>(bytes);
        const auto load = [&](int member, uint32_t offset, uint64_t left) {
            const uint64_t theirs = to_all ? 0 : bytes * static_cast<uint64_t>(member);
            return load_piece(at_offset(src, theirs + part.first + offset), left);
        };
        const auto store = [&](uint32_t offset, vec16 value, uint64_t left) {
            store_piece(at_offset(dst, part.first + offset), value, left);
        };
        return exchange_combined<Scope>(session, name, announced, part.bytes, combine, load, store) ? 0 : 1;
    }
    if constexpr (kOpensGrid<Scope> || kRelays<Scope>) {
        if (algorithm == Algorithm::relay) {
            return relay_combined<Scope>(session, name, announced, dst, src, bytes, combine) ? 0 : 1;
        }
    }
    if (!enter<Scope>(session, name, announced)) {
        return 1;
    }
    if (bytes == 0) {
        return kBegins ? kEnded : 0;
    }
    if constexpr (!kSeveralBlocks<Scope> && !kBegins) {
        if (to_all && algorithm == Algorithm::tree) {
            return tree_reduce<Scope>(session, dst, src, bytes, combine) ? 0 : 1;
        }
    }
    const Result result = !to_all                                          ? Result::scattered
                          : algorithm == Algorithm::one_shot && dst != src ? Result::by_each
                                                                           : Result::shared;
    const bool good = !is_sharing<Scope>() || push_combined<Scope>(session, dst, src, bytes, result, combine);
    if (!kSeveralBlocks<Scope> && !session.team.one_round) {
        return !good ? kFailed : kBegins ? kEnded : 0;
    }
    return finish_or_leave<Scope, kBegins>(session, good, -1, begun);
}

template <class Scope, bool kBegins = false, class Combine>
OXSHMEM_OUTLINE int reduce_elements(TeamName<Scope> name, void *dst, const void *src, uint64_t n, bool to_all, Combine combine,
                                    Caller caller = kOwn<Scope>, Session *begun = nullptr) {
    if constexpr (Scope::kSeveralWarps && !kSeveralBlocks<Scope> && !kBegins) {
        if (n <= kFewBytes / kPiece && are_many_threads()) {
            return by_first_warp(
                [&] { return reduce_elements<warp_scope>(name, dst, src, n, to_all, combine, Caller::block); });
        }
    }
    return reduce_named<Scope, kBegins>(name, dst, src, n, to_all, combine, caller, begun);
}

// The collectives that the blocks of a grid can share, with their arguments. `by` calls one in a
// scope, or begins it. `measure` is how much data it has, as abi::Choice counts it, and `size` how
// much a team of `members` members has in all.

struct BroadcastCall {
    static constexpr Op kOp = Op::broadcast;
    static constexpr Collective kCollective = Collective::broadcast;
    static constexpr bool kHasPackets = true, kHasRelay = true; // forms that blocks share
    void *dst;
    const void *src;
    uint64_t bytes;
    int root;
    template <class Scope, bool kBegins = false>
    OXSHMEM_DEVICE int by(const TeamName<Scope> &team, Caller caller = kOwn<Scope>, Session *begun = nullptr) const {
        return broadcast_bytes<Scope, kBegins>(team, dst, src, bytes, root, caller, begun);
    }
    OXSHMEM_DEVICE uint64_t measure() const { return bytes; }
    OXSHMEM_DEVICE uint64_t size(int) const { return bytes; }
};

// alltoall (`kToEach`: a part for each member) and fcollect.
template <bool kToEach> struct GatherCall {
    static constexpr Op kOp = kToEach ? Op::alltoall : Op::fcollect;
    static constexpr Collective kCollective = kToEach ? Collective::alltoall : Collective::fcollect;
    static constexpr bool kHasPackets = true, kHasRelay = false;
    void *dst;
    const void *src;
    uint64_t bytes;
    template <class Scope, bool kBegins = false>
    OXSHMEM_DEVICE int by(const TeamName<Scope> &team, Caller caller = kOwn<Scope>, Session *begun = nullptr) const {
        if constexpr (kToEach) {
            return alltoall_bytes<Scope, kBegins>(team, dst, src, bytes, caller, begun);
        } else {
            return fcollect_bytes<Scope, kBegins>(team, dst, src, bytes, caller, begun);
        }
    }
    OXSHMEM_DEVICE uint64_t measure() const { return bytes; }
    OXSHMEM_DEVICE uint64_t size(int members) const { return times(bytes, members); }
};

struct AlltoallsCall {
    static constexpr Op kOp = Op::alltoalls;
    static constexpr Collective kCollective = Collective::alltoalls;
    static constexpr bool kHasPackets = false, kHasRelay = false;
    void *dst;
    const void *src;
    ptrdiff_t dst_stride, src_stride;
    uint64_t n;
    uint32_t element;
    template <class Scope, bool kBegins = false>
    OXSHMEM_DEVICE int by(const TeamName<Scope> &team, Caller caller = kOwn<Scope>, Session *begun = nullptr) const {
        return alltoalls_bytes<Scope, kBegins>(team, dst, src, dst_stride, src_stride, n, element, caller, begun);
    }
    OXSHMEM_DEVICE uint64_t measure() const { return times(n, static_cast<int>(element)); }
    OXSHMEM_DEVICE uint64_t size(int members) const { return times(measure(), members); }
};

// reduce (`kToAll`) and reducescatter.
template <bool kToAll, class Combine> struct ReduceCall {
    static constexpr Op kOp = kToAll ? Op::reduce : Op::reducescatter;
    static constexpr Collective kCollective = kToAll ? Collective::reduce : Collective::reducescatter;
    static constexpr bool kHasPackets = true, kHasRelay = kToAll;
    void *dst;
    const void *src;
    uint64_t n;
    Combine combine;
    template <class Scope, bool kBegins = false>
    OXSHMEM_DEVICE int by(const TeamName<Scope> &team, Caller caller = kOwn<Scope>, Session *begun = nullptr) const {
        return reduce_elements<Scope, kBegins>(team, dst, src, n, kToAll, combine, caller, begun);
    }
    OXSHMEM_DEVICE uint64_t measure() const {
        const bool defined = is_reduction(combine.type(), combine.op());
        return defined ? times(n, static_cast<int>(element_bytes(combine.type()))) : 0;
    }
    OXSHMEM_DEVICE uint64_t size(int members) const { return kToAll ? measure() : times(measure(), members); }
};

// How the blocks of a grid carry out a collective: one does it for all, or they share it in one of
// several forms.
enum class GridForm : uint32_t { by_one_block, push, one_shot, packets, relay };

// From how many bytes to all members together on they pass on a broadcast or a reduction. The
// schedule explorer has less.
#ifndef OXSHMEM_RELAYED_FROM
#define OXSHMEM_RELAYED_FROM oxshmem::abi::kRelayedFrom
#endif
constexpr uint64_t kRelayedFrom = OXSHMEM_RELAYED_FROM;

// Up to how many bytes to all others one block sends packets for its grid, in collectives that it
// sends for. Between two H200s an alltoall or fcollect of 1 to 4 KiB takes 0.1 to 0.2 us less so
// than by all blocks.
constexpr uint64_t kPacketsOfOne = 4096;

// Whether one block sends so few bytes for its grid. All blocks take less time for the collectives
// that are not named here: reductions of up to 4 KiB 0.5 to 1.1 us, and broadcasts 0.1 to 0.5.
OXSHMEM_DEVICE bool are_for_one_block(Collective collective, uint64_t bytes_to_all) {
    const bool exchanges =
        collective == Collective::alltoall || collective == Collective::fcollect || collective == Collective::alltoalls;
    return exchanges && bytes_to_all <= kPacketsOfOne;
}

// What a team's row says beside TeamView of how a grid carries out one collective.
struct GridTable {
    abi::Choice choices[abi::kChoices];
    uint32_t chosen, block_share;
};

// Requests it, before the caller waits for the rest of the row: all of it is on its way together.
OXSHMEM_DEVICE GridTable table_for_grid(int handle, Collective collective) {
    const abi::Team &row = row_to_read(handle);
    GridTable table;
    OXSHMEM_UNROLL
    for (uint32_t i = 0; i < abi::kChoices; ++i) {
        const port::vec16 choice = port::load_vec(&row.choices[static_cast<uint32_t>(collective)][i]);
        table.choices[i] = {static_cast<uint64_t>(choice.y) << 32 | choice.x, choice.z, 0};
    }
    table.chosen = port::read(&row.chosen);
    table.block_share = port::read(&row.block_share);
    return table;
}

// Chooses the form by `bytes`, in the measure of abi::Choice. All blocks choose the same. As for
// the host's kernels, what the user has chosen goes before (Chooser::plan in
// runtime/team/choice.rs).
OXSHMEM_DEVICE GridForm form_for_grid(const TeamView &team, const GridTable &table, Collective collective, uint64_t bytes) {
    const Algorithm algorithm = choice_among(table.choices, bytes, team.one_round && bytes <= packet_room(team));
    const uint32_t blocks = sharing_blocks();
    const bool is_free = (table.chosen >> static_cast<uint32_t>(collective) & 1) == 0;
    const bool are_few = are_for_one_block(collective, times(bytes, team.n - 1));
    const bool sends_alone = algorithm == Algorithm::packets && (!is_free || are_few);
    const bool is_tree = algorithm == Algorithm::tree && !is_free;
    if (!team.one_round || blocks == 1 || bytes == 0 || sends_alone || is_tree) {
        return GridForm::by_one_block;
    }
    const uint64_t room = static_cast<uint64_t>(table.block_share / 2) * blocks;
    const uint64_t most = least(room, abi::kBlocksPackets);
    const int shares = collective == Collective::broadcast ? team.n - 1 : collective == Collective::reduce ? team.n : 0;
    if (is_free && team.n > 2 && bytes <= abi::kBlocksPackets && times(bytes, team.n - 1) > kRelayedFrom &&
        pieces_of(bytes) <= times(room / kPiece, shares)) {
        return GridForm::relay;
    }
    if (is_free && bytes <= most && collective != Collective::alltoalls) {
        return GridForm::packets;
    }
    const bool is_long = bytes >= abi::kSharedFrom && blocks >= abi::kSharedBy;
    const bool at_once = is_free && collective == Collective::reduce && team.n == 2 && !is_long;
    return algorithm == Algorithm::one_shot || at_once ? GridForm::one_shot : GridForm::push;
}

// Carries out a collective by the blocks of a grid. The result is that of the functions above.
template <class Collecting> OXSHMEM_DEVICE int by_grid(int handle, const Collecting &collecting) {
    constexpr Op kOp = Collecting::kOp;
    const GridTable table = table_for_grid(handle, Collecting::kCollective);
    Session session;
    if (!begin<grid_scope>(session, handle, kOp, Call::none)) {
        return 1;
    }
    const GridForm form = form_for_grid(session.team, table, Collecting::kCollective, collecting.measure());
    if (form == GridForm::by_one_block) {
        return by_last_block<GridCall::of_team>(handle, kOp, [&] { return collecting.template by<block_scope>(handle); });
    }
    const SeenTeam team{session.team, table.block_share};
    if constexpr (Collecting::kHasPackets) {
        const bool sends_packets = form == GridForm::packets || form == GridForm::relay;
        if (sends_packets && !is_sharing<blocks_scope>()) {
            return enter_own_grid(handle, kOp) && leave_own_grid(handle, kOp, true) ? 0 : 1;
        }
        if constexpr (Collecting::kHasRelay) {
            if (form == GridForm::relay) {
                return collecting.template by<relay_blocks>(team);
            }
        }
        if (sends_packets) {
            return collecting.template by<packet_blocks>(team);
        }
    }
    return collecting.template by<blocks_scope>(team, form == GridForm::one_shot ? Caller::one_shot : Caller::push);
}

// Carries out a collective in any scope.
template <class Scope, class Collecting> OXSHMEM_DEVICE int call_in(int handle, const Collecting &collecting) {
    if constexpr (kIsGrid<Scope>) {
        return by_grid(handle, collecting);
    } else {
        return collecting.template by<Scope>(handle);
    }
}

// alltoall (`kToEach`) and fcollect.
template <class Scope, bool kToEach> OXSHMEM_DEVICE int gather_in(int handle, void *dst, const void *src, uint64_t bytes) {
    if constexpr (kDstIsReady && !kIsGrid<Scope>) {
        int failed = 0;
        if (gather_directly<Scope, kToEach>(handle, dst, src, bytes, failed)) {
            return failed;
        }
    }
    return call_in<Scope>(handle, GatherCall<kToEach>{dst, src, bytes});
}

// Carries out a collect by the blocks of a grid, or by one of them for all. What the others
// contribute no member knows before they have met, so the way depends on the team alone.
OXSHMEM_LAZY OXSHMEM_OUTLINE int collect_by_grid(int handle, void *dst, const void *src, uint64_t bytes) {
    const GridTable table = table_for_grid(handle, Collective::collect);
    Session session;
    if (!begin<grid_scope>(session, handle, Op::collect, Call::none)) {
        return 1;
    }
    if (!session.team.one_round || sharing_blocks() == 1) {
        return by_last_block<GridCall::of_team>(handle, Op::collect,
                                                [&] { return collect_bytes<block_scope>(handle, dst, src, bytes); });
    }
    if (!is_sharing<blocks_scope>()) {
        return enter_own_grid(handle, Op::collect) && leave_own_grid(handle, Op::collect, true) ? 0 : 1;
    }
    const bool is_free = (table.chosen >> static_cast<uint32_t>(Collective::collect) & 1) == 0;
    const uint64_t limit = is_free ? abi::kBlocksPackets : most_by_packets(table.choices);
    return collect_by_blocks<packet_blocks>({session.team, table.block_share}, dst, src, bytes, limit);
}

template <class Scope> OXSHMEM_DEVICE int collect_in(int handle, void *dst, const void *src, uint64_t bytes) {
    if constexpr (kIsGrid<Scope>) {
        return collect_by_grid(handle, dst, src, bytes);
    } else {
        return collect_bytes<Scope>(handle, dst, src, bytes);
    }
}

} // namespace detail

// `bytes` bytes of member `root`'s src to all members' dst, its own included. dst may be src.
template <class Scope> OXSHMEM_DEVICE int broadcastmem(Scope, team_t team, void *dst, const void *src, size_t bytes, int root) {
    return detail::call_in<Scope>(team, detail::BroadcastCall{dst, src, bytes, root});
}
template <class Scope, class T> OXSHMEM_DEVICE int broadcast(Scope, team_t team, T *dst, const T *src, size_t n, int root) {
    return detail::call_in<Scope>(team, detail::BroadcastCall{dst, src, detail::bytes_of<T>(n), root});
}

// Copies all members' src, one after another, to all members' dst; members may contribute different
// lengths.
template <class Scope> OXSHMEM_DEVICE int collectmem(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::collect_in<Scope>(team, dst, src, bytes);
}
template <class Scope, class T> OXSHMEM_DEVICE int collect(Scope, team_t team, T *dst, const T *src, size_t n) {
    return detail::collect_in<Scope>(team, dst, src, detail::bytes_of<T>(n));
}

// The same, of one length for all.
template <class Scope> OXSHMEM_DEVICE int fcollectmem(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::gather_in<Scope, false>(team, dst, src, bytes);
}
template <class Scope, class T> OXSHMEM_DEVICE int fcollect(Scope, team_t team, T *dst, const T *src, size_t n) {
    return detail::gather_in<Scope, false>(team, dst, src, detail::bytes_of<T>(n));
}

// Part j of member i's src, of `n` elements, becomes part i of member j's dst.
template <class Scope> OXSHMEM_DEVICE int alltoallmem(Scope, team_t team, void *dst, const void *src, size_t bytes) {
    return detail::gather_in<Scope, true>(team, dst, src, bytes);
}
template <class Scope, class T> OXSHMEM_DEVICE int alltoall(Scope, team_t team, T *dst, const T *src, size_t n) {
    return detail::gather_in<Scope, true>(team, dst, src, detail::bytes_of<T>(n));
}

// The same with elements `dst_stride` and `src_stride` elements apart, at least 1.
template <class Scope>
OXSHMEM_DEVICE int alltoallsmem(Scope, team_t team, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                                size_t bytes) {
    return detail::call_in<Scope>(team, detail::AlltoallsCall{dst, src, dst_stride, src_stride, bytes, 1});
}
template <class Scope, class T>
OXSHMEM_DEVICE int alltoalls(Scope, team_t team, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n) {
    return detail::call_in<Scope>(team, detail::AlltoallsCall{dst, src, dst_stride, src_stride, n, sizeof(T)});
}

// `n` elements of all members' src combined by an operator (op_sum and so on), to all members' dst.
// dst may be src.
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE int reduce(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    return detail::call_in<Scope>(team, detail::ReduceCall<true, detail::Combine<T, Operator::kNumber>>{dst, src, n, {}});
}

// Part i of all members' src, of `n` elements, combined to member i's dst.
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE int reducescatter(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    return detail::call_in<Scope>(team, detail::ReduceCall<false, detail::Combine<T, Operator::kNumber>>{dst, src, n, {}});
}

} // namespace oxshmem
