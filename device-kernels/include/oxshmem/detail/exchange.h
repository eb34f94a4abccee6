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

// What lies in the places of a piece's packets.
struct Packets {
    port::pair64 low, high;
};

// Requests the packets of a piece of `sender`, without a branch, so that several are under way at
// once. If the piece has only one, that is requested twice.
template <class Scope> OXSHMEM_DEVICE Packets request_piece(const TeamView &team, int sender, uint32_t piece, uint32_t bytes) {
    const uint64_t *at = packet_at<Scope>(team, sender, team.me, piece);
    const uint64_t *second = bytes > 8 ? at + words_to_second(team) : at;
    const port::pair64 low = port::load_pair<order::relaxed, reach::system>(at);
    return {low, port::load_pair<order::relaxed, reach::system>(second)};
}

// Returns whether they have arrived, and the piece in `value`.
OXSHMEM_DEVICE bool have_arrived(const TeamView &team, const Packets &packets, uint32_t bytes, vec16 &value) {
    const port::pair64 &low = packets.low, &high = packets.high;
    value = {static_cast<uint32_t>(low.first), static_cast<uint32_t>(low.second), 0, 0};
    if (bytes > 8) {
        value.z = static_cast<uint32_t>(high.first), value.w = static_cast<uint32_t>(high.second);
    }
    const uint32_t epoch = team.epoch;
    return low.first >> 32 == epoch && low.second >> 32 == epoch && high.first >> 32 == epoch && high.second >> 32 == epoch;
}

// Looks whether a piece has arrived.
template <class Scope>
OXSHMEM_DEVICE bool look_at_piece(const TeamView &team, int sender, uint32_t piece, vec16 &value, uint32_t bytes) {
    return have_arrived(team, request_piece<Scope>(team, sender, piece, bytes), bytes, value);
}

// A member other than this one, whose places are looked at in vain where there is nothing to look
// for.
OXSHMEM_DEVICE int any_other(const TeamView &team) {
    return team.me == 0 && team.n > 1 ? 1 : 0;
}

// How many pieces a lane looks at, of `kMost`, before it sees whether the first has arrived. Lanes
// of kernels of the program have no registers for more than one.
template <class Scope, uint32_t kMost> constexpr uint32_t kLooksAtOnce = kOpensGrid<Scope> ? kMost : 1;

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
// A lane has `kAtOnce` pieces under way at once. `ready()` is called by all lanes when the first of
// them are requested, and nothing is sent if it returns false.
template <class Scope, uint32_t kAtOnce, class Load, class Ready>
OXSHMEM_DEVICE bool send_packets(const Session &session, uint32_t bytes, Load load, Ready ready) {
    const TeamView &team = session.team;
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes));
    const uint32_t total = pieces * static_cast<uint32_t>(team.n - 1);
    const uint32_t size = Meeting<Scope>::size();
    uint32_t first = Meeting<Scope>::rank();
    bool is_ready = false;
    do {
        vec16 values[kAtOnce] = {};
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t item = first + k * size;
            if (item < total) {
                const uint32_t distance = member_of(item, pieces, team.n), offset = (item - distance * pieces) * kPiece;
                values[k] = load(session.member_behind(static_cast<int>(distance) + 1), offset, bytes - offset);
            }
        }
        if (!is_ready && !ready()) {
            return false;
        }
        is_ready = true;
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t item = first + k * size;
            if (item < total) {
                const uint32_t distance = member_of(item, pieces, team.n), piece = item - distance * pieces;
                send_piece<Scope>(team, session.member_behind(static_cast<int>(distance) + 1), piece, values[k],
                                  bytes - piece * kPiece);
            }
        }
        first += size * kAtOnce;
    } while (first < total);
    return true;
}

// The beginning of an exchange: settles, and sends unless the call is bad or `sends` is false. A
// grid that begins with the call loads its data while the row of the team is on its way, since no
// lane of it has written any.
template <class Scope, class Load>
OXSHMEM_DEVICE bool settle_and_send(Session &session, const TeamName<Scope> &name, bool sends, uint32_t bytes, Load load) {
    const bool does = sends && !session.bad;
    const bool loads_first = kOpensGrid<Scope> && does;
    if (!loads_first && !settle<Scope>(session.team, name, session.op)) {
        return false;
    }
    if (!does) {
        return true;
    }
    const auto ready = [&] { return !loads_first || settle<Scope>(session.team, name, session.op); };
    const uint32_t items = static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(session.team.n - 1);
    return are_few<Scope>(items) ? send_packets<Scope, 1>(session, bytes, load, ready)
                                 : send_packets<Scope, kPiecesAtOnce>(session, bytes, load, ready);
}

// Looks a few times for the headers that the calling lane would wait for, and calls `look`, which
// returns whether all of its packets are there, as often. All lanes of a warp do so together:
// lanes that waited for headers while others looked for packets would wait for each other. Returns
// whether the lane need not wait for any header. Where a lane waits for more than two, it looks for
// none.
template <class Look> OXSHMEM_DEVICE bool look_eagerly(const TeamView &team, uint64_t header, int rank, int lanes, Look look) {
    const int first = 2 * rank;
    const bool awaits = rank < lanes && first < team.n, two = first + 1 < team.n;
    const uint64_t *slots = team.headers() + (awaits ? first : 0);
    bool met = !awaits, have = false;
    if (team.n > 2 * lanes) {
        return false;
    }
    for (uint32_t i = 0; i < port::kEagerLooks && !(met && have); ++i) {
        const port::pair64 seen = port::load_pair<order::relaxed, reach::system>(slots);
        have = look();
        met = met || (seen.first == header && (!two || seen.second == header));
    }
    if (awaits && met) {
        OXSHMEM_ON_ARRIVAL(slots, 1);
        if (two) {
            OXSHMEM_ON_ARRIVAL(slots + 1, 1);
        }
    }
    return met;
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
    const bool tells = static_cast<int>(rank) < lanes, looks = rank < items && !session.bad;
    bool good = true, have = false;
    int missing = team.me;
    if (tells) {
        tell_all(team, header, static_cast<int>(rank), lanes);
    }
    const uint32_t counted = rank == 0 ? take_epoch<Scope>(team) : 0;
    // Packets mostly come together with the headers.
    bool met = look_eagerly(team, header, static_cast<int>(rank), lanes, [&] {
        have = have || !looks || look(rank, missing);
        return have;
    });
    have = have && looks;
    if (tells && !met) {
        good = await_all<order::relaxed>(team, session.op, header, static_cast<int>(rank), lanes, [&] {
            have = have || (looks && look(rank, missing));
            return is_stopped<Scope>(team);
        });
    }
    if (rank == 0) {
        close_epoch<Scope>(team, counted);
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

// Receives `bytes` bytes of every member (or, if `only` is not negative, of that one). `load` is as
// in send_packets, for what this PE sends to itself; `store(sender, offset, value, bytes)` stores a
// piece.
template <class Scope, uint32_t kAtOnce, class Load, class Store>
OXSHMEM_DEVICE bool receive_from(const Session &session, uint32_t announced, uint32_t bytes, int only, Load load, Store store) {
    const TeamView &team = session.team;
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes));
    const uint32_t items = pieces * static_cast<uint32_t>(only < 0 ? team.n : 1);
    const uint32_t size = Meeting<Scope>::size();
    const auto sender_of = [&](uint32_t item) { return only >= 0 ? only : static_cast<int>(member_of(item, pieces, team.n)); };
    const auto offset_in = [&](uint32_t item, int sender) {
        return (only >= 0 ? item : item - static_cast<uint32_t>(sender) * pieces) * kPiece;
    };
    vec16 values[kAtOnce] = {};
    const auto look = [&](uint32_t first, int &missing) {
        constexpr uint32_t kLooks = kLooksAtOnce<Scope, kAtOnce>;
        bool all = true;
        OXSHMEM_UNROLL
        for (uint32_t begin = 0; begin < kAtOnce; begin += kLooks) {
            Packets packets[kLooks] = {};
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kLooks; ++k) {
                const uint32_t wanted = first + (begin + k) * size, item = wanted < items ? wanted : first;
                if (kLooks > 1 || wanted < items) {
                    const int sender = sender_of(item);
                    const uint32_t offset = offset_in(item, sender);
                    const int from = sender == team.me ? any_other(team) : sender;
                    packets[k] = request_piece<Scope>(team, from, offset / kPiece, bytes - offset);
                }
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kLooks; ++k) {
                const uint32_t item = first + (begin + k) * size;
                if (item < items) {
                    const int sender = sender_of(item);
                    const uint32_t offset = offset_in(item, sender);
                    vec16 &value = values[begin + k];
                    if (sender == team.me) {
                        value = load(sender, offset, bytes - offset);
                    } else if (!have_arrived(team, packets[k], bytes - offset, value)) {
                        missing = sender;
                        all = false;
                    }
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

// Settles, and every member (or, if `only` is not negative, that one) sends `bytes` bytes to every
// other one. `load` and `store` are as in send_packets and receive_from.
template <class Scope, class Load, class Store>
OXSHMEM_DEVICE bool exchange(Session &session, const TeamName<Scope> &name, uint32_t announced, uint32_t bytes, int only,
                             Load load, Store store) {
    if (!settle_and_send<Scope>(session, name, only < 0 || only == session.team.me, bytes, load)) {
        return false;
    }
    const uint32_t items = static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(only < 0 ? session.team.n : 1);
    return are_few<Scope>(items) ? receive_from<Scope, 1>(session, announced, bytes, only, load, store)
                                 : receive_from<Scope, kPiecesAtOnce>(session, announced, bytes, only, load, store);
}

// Receives `bytes` bytes of every member, which are combined in the order of the members: those of
// `kMembers` at once.
template <class Scope, uint32_t kMembers, class Combine, class Load, class Store>
OXSHMEM_DEVICE bool receive_combined(const Session &session, uint32_t announced, uint32_t bytes, const Combine &combine,
                                     Load load, Store store) {
    const TeamView &team = session.team;
    Accumulator<Combine> sum;
    const auto look = [&](uint32_t item, int &missing) {
        const uint32_t offset = item * kPiece;
        for (int first = 0; first < team.n; first += static_cast<int>(kMembers)) {
            constexpr uint32_t kLooks = kLooksAtOnce<Scope, kMembers>;
            vec16 values[kMembers] = {};
            bool all = true;
            OXSHMEM_UNROLL
            for (uint32_t begin = 0; begin < kMembers; begin += kLooks) {
                Packets packets[kLooks] = {};
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kLooks; ++k) {
                    const int sender = first + static_cast<int>(begin + k);
                    const bool sends = sender != team.me && sender < team.n;
                    if (kLooks > 1 || sends) {
                        packets[k] = request_piece<Scope>(team, sends ? sender : any_other(team), item, bytes - offset);
                    }
                }
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kLooks; ++k) {
                    const int sender = first + static_cast<int>(begin + k);
                    vec16 &value = values[begin + k];
                    if (sender == team.me) {
                        value = load(sender, offset, bytes - offset);
                    } else if (sender < team.n && !have_arrived(team, packets[k], bytes - offset, value)) {
                        missing = sender;
                        all = false;
                    }
                }
            }
            if (!all) {
                return false;
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kMembers; ++k) {
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

// As exchange, by all members; what arrives is combined in the order of the members.
template <class Scope, class Combine, class Load, class Store>
OXSHMEM_DEVICE bool exchange_combined(Session &session, const TeamName<Scope> &name, uint32_t announced, uint32_t bytes,
                                      const Combine &combine, Load load, Store store) {
    if (!settle_and_send<Scope>(session, name, true, bytes, load)) {
        return false;
    }
    if constexpr (kOpensGrid<Scope>) {
        if (session.team.n == 2) {
            return receive_combined<Scope, 2>(session, announced, bytes, combine, load, store);
        }
    }
    return receive_combined<Scope, kPiecesAtOnce>(session, announced, bytes, combine, load, store);
}

} // namespace oxshmem::detail
