// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Packets: small collectives in one round, where all members are load and store reachable.
//
// Data travels in words of which one half is data and the other half the epoch, so each says by
// itself that it has arrived: no fence is needed, and no message follows. Each sender has its share
// of every member's workspace. Headers travel beside the packets, and nothing is stored to dst
// before all of them agree.
#pragma once

#include "collective.h"
#include "reduce_ops.h"

namespace oxshmem::detail {

// Where the packet of a piece's first 8 bytes arrives, from `sender` at `receiver`. That of its
// last 8 bytes arrives half a share further on: a warp stores whole sectors then, of which the link
// carries twice as many in the same time as of halves. Several blocks send nothing to themselves,
// so that the places of others are larger.
template <class Scope> OXSHMEM_DEVICE uint64_t *packet_at(const TeamView &team, int sender, int receiver, uint32_t piece) {
    const bool further = kSeveralBlocks<Scope> && port::block_rank() != 0;
    const uint64_t first = team.packets(further ? abi::kBlockPacketBytes : abi::kPacketBytes);
    const int place = kSeveralBlocks<Scope> && sender > receiver ? sender - 1 : sender;
    return as<uint64_t>(first + static_cast<uint32_t>(place) * team.share + piece * kPiece);
}

// How many words further on that of its last 8 bytes arrives.
OXSHMEM_DEVICE uint32_t words_to_second(const TeamView &team) {
    return team.share / 2 / sizeof(uint64_t);
}

template <class Scope>
OXSHMEM_DEVICE void send_piece(const TeamView &team, int member, uint32_t piece, vec16 value, uint32_t bytes) {
    OXSHMEM_ON_MESSAGE(team.pe_of(member), nullptr, 0);
    uint64_t *at = translate(packet_at<Scope>(team, team.me, member, piece), team.pe_of(member));
    const uint64_t flag = static_cast<uint64_t>(team.epoch) << 32;
    port::store_pair(at, flag | value.x, flag | value.y);
    if (bytes > 8) {
        port::store_pair(at + words_to_second(team), flag | value.z, flag | value.w);
    }
}

// Looks whether a piece has arrived.
template <class Scope>
OXSHMEM_DEVICE bool look_at_piece(const TeamView &team, int sender, uint32_t piece, vec16 &value, uint32_t bytes) {
    const uint64_t *at = packet_at<Scope>(team, sender, team.me, piece);
    const port::pair64 low = port::load_pair<order::relaxed, reach::system>(at);
    const port::pair64 high = bytes > 8 ? port::load_pair<order::relaxed, reach::system>(at + words_to_second(team)) : low;
    value = {static_cast<uint32_t>(low.first), static_cast<uint32_t>(low.second), 0, 0};
    if (bytes > 8) {
        value.z = static_cast<uint32_t>(high.first), value.w = static_cast<uint32_t>(high.second);
    }
    const uint32_t epoch = team.epoch;
    return low.first >> 32 == epoch && low.second >> 32 == epoch && high.first >> 32 == epoch && high.second >> 32 == epoch;
}

// Returns which of `n` members item `item` belongs to, of which each has `pieces`. Among few
// members it takes longer to divide than to count.
OXSHMEM_DEVICE uint32_t member_of(uint32_t item, uint32_t pieces, int n) {
    constexpr int kFew = 8;
    if (n > kFew) {
        return pieces == 1 ? item : item / pieces;
    }
    uint32_t member = 0;
    for (; item >= pieces; item -= pieces) {
        ++member;
    }
    return member;
}

// Whether each lane has so few of `items` items that it is best to handle one at a time: that is
// much less to compute.
template <class Scope> OXSHMEM_DEVICE bool are_few(uint32_t items) {
    return items <= 2 * Meeting<Scope>::size();
}

// Sends `bytes` bytes to every other member; `load(member, offset, bytes)` returns a piece of them.
// A lane has `kAtOnce` pieces under way at once.
template <class Scope, uint32_t kAtOnce, class Load>
OXSHMEM_DEVICE void send_packets(const Session &session, uint32_t bytes, Load load) {
    const TeamView &team = session.team;
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes));
    const uint32_t total = pieces * static_cast<uint32_t>(team.n - 1);
    const uint32_t size = Meeting<Scope>::size();
    for (uint32_t first = Meeting<Scope>::rank(); first < total; first += size * kAtOnce) {
        vec16 values[kAtOnce] = {};
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t item = first + k * size;
            if (item < total) {
                const uint32_t distance = member_of(item, pieces, team.n), offset = (item - distance * pieces) * kPiece;
                values[k] = load(session.member_behind(static_cast<int>(distance) + 1), offset, bytes - offset);
            }
        }
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t item = first + k * size;
            if (item < total) {
                const uint32_t distance = member_of(item, pieces, team.n), piece = item - distance * pieces;
                send_piece<Scope>(team, session.member_behind(static_cast<int>(distance) + 1), piece, values[k],
                                  bytes - piece * kPiece);
            }
        }
    }
}

// Meets, and receives `items` items. `look(first, missing)` looks at what the calling lane handles
// from item `first` on, and returns whether all is there, or which member has not sent yet;
// `take(first)` stores it. Both take up to `at_once` items, Meeting<Scope>::size() apart.
template <class Scope, class Look, class Take>
OXSHMEM_DEVICE bool receive_packets(const Session &session, uint32_t announced, uint32_t items, uint32_t at_once, Look look,
                                    Take take) {
    const TeamView &team = session.team;
    const uint32_t rank = Meeting<Scope>::rank(), size = Meeting<Scope>::size();
    const int lanes = meeting_lanes(static_cast<int>(size));
    const uint64_t header = header_of(team, announced);
    bool good = true, have = false;
    int missing = team.me;
    if (static_cast<int>(rank) < lanes) {
        tell_all(team, header, static_cast<int>(rank), lanes);
        const uint32_t counted = rank == 0 ? take_epoch<Scope>(team) : 0;
        // Packets mostly come together with the headers.
        good = await_all<order::relaxed>(team, session.op, header, static_cast<int>(rank), lanes, [&] {
            have = have || (rank < items && !session.bad && look(rank, missing));
            return is_stopped<Scope>(team);
        });
        if (rank == 0) {
            close_epoch<Scope>(team, counted);
        }
    }
    stop_unless<Scope>(team, good);
    if (Scope::any(!good || session.bad)) {
        return false;
    }
    for (uint32_t first = rank; good && first < items; first += size * at_once) {
        if (!have) {
            const auto late = [&] { return team.blame(missing); };
            good = wait(session.op, late, as<void>(team.packets()), [&] { return look(first, missing); });
        }
        have = false;
        if (good) {
            take(first);
        }
    }
    return !Scope::any(!good);
}

// Every member (or, if `only` is not negative, that one) sends `bytes` bytes to every other one.
// `load` is as in send_packets, also for what this PE sends to itself; `store(sender, offset,
// value, bytes)` stores a piece.
template <class Scope, uint32_t kAtOnce, class Load, class Store>
OXSHMEM_DEVICE bool exchange_by(const Session &session, uint32_t announced, uint32_t bytes, int only, Load load, Store store) {
    const TeamView &team = session.team;
    if (!session.bad && (only < 0 || only == team.me)) {
        send_packets<Scope, kAtOnce>(session, bytes, load);
    }
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes));
    const uint32_t items = pieces * static_cast<uint32_t>(only < 0 ? team.n : 1);
    const uint32_t size = Meeting<Scope>::size();
    const auto sender_of = [&](uint32_t item) { return only >= 0 ? only : static_cast<int>(member_of(item, pieces, team.n)); };
    const auto offset_in = [&](uint32_t item, int sender) {
        return (only >= 0 ? item : item - static_cast<uint32_t>(sender) * pieces) * kPiece;
    };
    vec16 values[kAtOnce] = {};
    const auto look = [&](uint32_t first, int &missing) {
        bool all = true;
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t item = first + k * size;
            if (item < items) {
                const int sender = sender_of(item);
                const uint32_t offset = offset_in(item, sender);
                if (sender == team.me) {
                    values[k] = load(sender, offset, bytes - offset);
                } else if (!look_at_piece<Scope>(team, sender, offset / kPiece, values[k], bytes - offset)) {
                    missing = sender;
                    all = false;
                }
            }
        }
        return all;
    };
    const auto take = [&](uint32_t first) {
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t item = first + k * size;
            if (item < items) {
                const int sender = sender_of(item);
                const uint32_t offset = offset_in(item, sender);
                store(sender, offset, values[k], bytes - offset);
            }
        }
    };
    return receive_packets<Scope>(session, announced, items, kAtOnce, look, take);
}

// The same, with as many pieces at once as that needs.
template <class Scope, class Load, class Store>
OXSHMEM_DEVICE bool exchange(const Session &session, uint32_t announced, uint32_t bytes, int only, Load load, Store store) {
    const uint32_t items = static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(only < 0 ? session.team.n : 1);
    return are_few<Scope>(items) ? exchange_by<Scope, 1>(session, announced, bytes, only, load, store)
                                 : exchange_by<Scope, kPiecesAtOnce>(session, announced, bytes, only, load, store);
}

// As exchange, by all members; what arrives is combined in the order of the members.
template <class Scope, class Combine, class Load, class Store>
OXSHMEM_DEVICE bool exchange_combined(const Session &session, uint32_t announced, uint32_t bytes, const Combine &combine,
                                      Load load, Store store) {
    const TeamView &team = session.team;
    if (!session.bad) {
        if (are_few<Scope>(static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(team.n - 1))) {
            send_packets<Scope, 1>(session, bytes, load);
        } else {
            send_packets<Scope, kPiecesAtOnce>(session, bytes, load);
        }
    }
    Accumulator<Combine> sum;
    const auto look = [&](uint32_t item, int &missing) {
        const uint32_t offset = item * kPiece;
        for (int first = 0; first < team.n; first += static_cast<int>(kPiecesAtOnce)) {
            vec16 values[kPiecesAtOnce] = {};
            bool all = true;
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kPiecesAtOnce; ++k) {
                const int sender = first + static_cast<int>(k);
                if (sender == team.me) {
                    values[k] = load(sender, offset, bytes - offset);
                } else if (sender < team.n && !look_at_piece<Scope>(team, sender, item, values[k], bytes - offset)) {
                    missing = sender;
                    all = false;
                }
            }
            if (!all) {
                return false;
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kPiecesAtOnce; ++k) {
                const int sender = first + static_cast<int>(k);
                if (sender < team.n) {
                    if (sender == 0) {
                        sum.begin(values[k]);
                    } else {
                        sum.add(combine, values[k]);
                    }
                }
            }
        }
        return true;
    };
    const auto take = [&](uint32_t item) { store(item * kPiece, sum.result(), bytes - item * kPiece); };
    return receive_packets<Scope>(session, announced, static_cast<uint32_t>(pieces_of(bytes)), 1, look, take);
}

} // namespace oxshmem::detail
