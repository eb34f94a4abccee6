// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Packets: small collectives in one round, where all members are load and store reachable.
//
// Data travels in words of which one half is data and the other half the epoch, so each says by
// itself that it has arrived: no fence is needed, and no message follows. Each sender has its share
// of every member's workspace. Headers travel beside the packets, and nothing is stored to dst
// before all of them agree.
#pragma once

#include <oxshmem/rma.h>

#include "collective.h"
#include "grid_meet.h"
#include "reduce_ops.h"

namespace oxshmem::detail {

// Where the packets of the epoch arrive at the calling block, as an address in this PE's heap.
template <class Scope> OXSHMEM_DEVICE uint64_t own_packets(const TeamView &team) {
    const bool further = kSeveralBlocks<Scope> && port::block_rank() != 0;
    return team.packets(further ? abi::kBlockPacketBytes : abi::kPacketBytes);
}

// Where, of the packets from `first` on, that of a piece's first 8 bytes arrives, from `sender` at
// `receiver`. That of its last 8 bytes arrives half a share further on: a warp stores whole sectors
// then, of which the link carries twice as many in the same time as of halves. Several blocks send
// nothing to themselves, so that the places of others are larger.
template <class Scope>
OXSHMEM_DEVICE uint64_t *packet_at(const TeamView &team, uint64_t first, int sender, int receiver, uint32_t piece) {
    const int place = kSeveralBlocks<Scope> && sender > receiver ? sender - 1 : sender;
    return as<uint64_t>(first + static_cast<uint32_t>(place) * team.share + piece * kPiece);
}

// How many words further on that of its last 8 bytes arrives.
OXSHMEM_DEVICE uint32_t words_to_second(const TeamView &team) {
    return team.share / 2 / sizeof(uint64_t);
}

template <class Scope>
OXSHMEM_DEVICE void send_piece(const TeamView &team, uint64_t first, int member, uint32_t piece, vec16 value, uint32_t bytes) {
    OXSHMEM_ON_MESSAGE(team.pe_of(member), nullptr, 0);
    uint64_t *at = translate(packet_at<Scope>(team, first, team.me, member, piece), team.pe_of(member));
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
template <class Scope>
OXSHMEM_DEVICE Packets request_piece(const TeamView &team, uint64_t first, int sender, uint32_t piece, uint32_t bytes) {
    const uint64_t *at = packet_at<Scope>(team, first, sender, team.me, piece);
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
OXSHMEM_DEVICE bool look_at_piece(const TeamView &team, uint64_t first, int sender, uint32_t piece, vec16 &value,
                                  uint32_t bytes) {
    return have_arrived(team, request_piece<Scope>(team, first, sender, piece, bytes), bytes, value);
}

// A member other than this one, whose places are looked at in vain where there is nothing to look
// for.
OXSHMEM_DEVICE int any_other(const TeamView &team) {
    return team.me == 0 && team.n > 1 ? 1 : 0;
}

// How many pieces a lane looks at, of `kMost`, before it sees whether the first has arrived. Lanes
// of kernels of the program have registers for one, and those of their grids for two.
template <class Scope, uint32_t kMost>
constexpr uint32_t kLooksAtOnce = kOpensGrid<Scope>               ? kMost
                                  : kByPackets<Scope> &&kMost > 1 ? 2
                                                                  : 1;

// How many members a lane looks at before it sees the piece of the first, of the `kMost` whose
// pieces it combines at once. Lanes of several blocks have registers for all of them, and others
// for one.
template <class Scope, uint32_t kMost> constexpr uint32_t kMembersAtOnce = kSeveralBlocks<Scope> ? kMost : 1;

// Whether each lane has so few of `items` items, at most `kInTurn`, that it is best to handle one
// at a time: that is much less to compute.
template <class Scope, uint32_t kInTurn = 2> OXSHMEM_DEVICE bool are_few(uint32_t items) {
    return items <= kInTurn * Meeting<Scope>::size();
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
                values[k] = load(session.team.member_behind(static_cast<int>(distance) + 1), offset, bytes - offset);
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
                send_piece<Scope>(team, own_packets<Scope>(team), session.team.member_behind(static_cast<int>(distance) + 1),
                                  piece, values[k], bytes - piece * kPiece);
            }
        }
        first += size * kAtOnce;
    } while (first < total);
    return true;
}

// Lets the lanes wait for each other before they send; those of a block of a grid for all blocks of
// it, which have stored what they send.
template <class Scope> OXSHMEM_DEVICE bool enter_exchange(Session &session, const TeamName<Scope> &name) {
    if constexpr (kByPackets<Scope>) {
        return enter_own_grid(session.team.handle, session.op);
    } else {
        return settle<Scope>(session.team, name, session.op);
    }
}

// Ends an exchange that has begun. `good` says whether it was good: for the calling lane of a block
// of a grid, and for all lanes otherwise. Returns the same to all lanes.
template <class Scope> OXSHMEM_DEVICE bool leave_exchange(const Session &session, bool good) {
    if constexpr (kByPackets<Scope>) {
        return leave_own_grid(session.team.handle, session.op, good);
    } else {
        return good;
    }
}

// Returns whether all lanes have received what they were to. Those of a block of a grid know that
// of themselves alone before.
template <class Scope> OXSHMEM_DEVICE bool have_all_received(bool good) {
    return kByPackets<Scope> ? !Scope::any(!good) : good;
}

// The beginning of an exchange: enters, and sends unless the call is bad or `sends` is false. A
// grid that begins with the call loads its data while the row of the team is on its way, since no
// lane of it has written any. A lane has up to `kAtOnce` pieces under way at once.
template <class Scope, uint32_t kInTurn = 2, uint32_t kAtOnce = kPiecesAtOnce, class Load>
OXSHMEM_DEVICE bool settle_and_send(Session &session, const TeamName<Scope> &name, bool sends, uint32_t bytes, Load load) {
    const bool does = sends && !session.bad;
    const bool loads_first = kOpensGrid<Scope> && does;
    if (!loads_first && !enter_exchange<Scope>(session, name)) {
        return false;
    }
    if (!does) {
        return true;
    }
    const auto ready = [&] { return !loads_first || enter_exchange<Scope>(session, name); };
    const uint32_t items = static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(session.team.n - 1);
    return are_few<Scope, kInTurn>(items) ? send_packets<Scope, 1>(session, bytes, load, ready)
                                          : send_packets<Scope, kAtOnce>(session, bytes, load, ready);
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
        on_arrivals(slots, two);
    }
    return met;
}

// Meets, and receives `items` items. Returns the same to all lanes; to those of a block of a grid,
// which leave the exchange later, whether each has received its own. `look(first, missing)` looks
// at what the calling lane handles from item `first` on, and returns whether all is there, or which
// member has not sent yet; `take(first)` stores it. Both take up to `at_once` items,
// Meeting<Scope>::size() apart.
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
            return is_stopped<Scope>(team.handle, team.epoch);
        });
    }
    if (rank == 0) {
        close_epoch<Scope>(team, counted);
    }
    stop_unless<Scope>(team, good);
    good = !Scope::any(!good || session.bad);
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
    return kByPackets<Scope> ? good : !Scope::any(!good);
}

// A piece: whose, and where it begins in what that member sends.
struct Place {
    int sender;
    uint32_t offset;
};

// Receives `bytes` bytes of every member (or, if `only` is not negative, of that one). `load` is as
// in send_packets, for what this PE sends to itself; `store(sender, offset, value, bytes)` stores a
// piece.
template <class Scope, uint32_t kAtOnce, class Load, class Store>
OXSHMEM_DEVICE bool receive_from(const Session &session, uint32_t announced, uint32_t bytes, int only, Load load, Store store) {
    const TeamView &team = session.team;
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes));
    const uint32_t items = pieces * static_cast<uint32_t>(only < 0 ? team.n : 1);
    const uint32_t size = Meeting<Scope>::size();
    const uint64_t places = own_packets<Scope>(team);
    // The next member's pieces come first and this one's last, so that a lane of several members
    // looks for packets while it looks for headers, and need not wait once more.
    const auto place_of = [&](uint32_t item) -> Place {
        if (only >= 0) {
            return {only, item * kPiece};
        }
        const uint32_t distance = member_of(item, pieces, team.n);
        return {session.team.member_behind(static_cast<int>(distance) + 1), (item - distance * pieces) * kPiece};
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
                    const auto [sender, offset] = place_of(item);
                    const int from = sender == team.me ? any_other(team) : sender;
                    packets[k] = request_piece<Scope>(team, places, from, offset / kPiece, bytes - offset);
                }
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kLooks; ++k) {
                const uint32_t item = first + (begin + k) * size;
                if (item < items) {
                    const auto [sender, offset] = place_of(item);
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
                const auto [sender, offset] = place_of(item);
                store(sender, offset, values[k], bytes - offset);
            }
        }
    };
    return receive_packets<Scope>(session, announced, items, kAtOnce, look, take);
}

// Settles, and every member (or, if `only` is not negative, that one) sends `bytes` bytes to every
// other one. `load` and `store` are as in send_packets and receive_from. A lane has up to `kAtOnce`
// pieces under way at once.
template <class Scope, uint32_t kAtOnce, class Load, class Store>
OXSHMEM_DEVICE bool exchange_by(Session &session, const TeamName<Scope> &name, uint32_t announced, uint32_t bytes, int only,
                                Load load, Store store) {
    const bool sends = only < 0 || only == session.team.me;
    if (!settle_and_send<Scope, 2, kAtOnce>(session, name, sends, bytes, load)) {
        return false;
    }
    return leave_exchange<Scope>(session, receive_from<Scope, kAtOnce>(session, announced, bytes, only, load, store));
}

// A function of its own for the scopes of one block: beside its registers, those that an exchange
// of one word needs would be kept in memory.
template <class Scope, class Load, class Store>
OXSHMEM_OUTLINE bool exchange_many(Session session, TeamName<Scope> name, uint32_t announced, uint32_t bytes, int only,
                                   Load load, Store store) {
    return exchange_by<Scope, kPiecesAtOnce>(session, name, announced, bytes, only, load, store);
}

// The same with as many as are best. `load` and `store` hold what they need by value.
template <class Scope, class Load, class Store>
OXSHMEM_DEVICE bool exchange(Session &session, const TeamName<Scope> &name, uint32_t announced, uint32_t bytes, int only,
                             Load load, Store store) {
    // What the member receives, or sends if that is more.
    const TeamView &team = session.team;
    const int members = only < 0 ? team.n : only == team.me ? team.n - 1 : 1;
    if (are_few<Scope>(static_cast<uint32_t>(pieces_of(bytes)) * static_cast<uint32_t>(members))) {
        return exchange_by<Scope, 1>(session, name, announced, bytes, only, load, store);
    }
    if constexpr (kSeveralBlocks<Scope>) {
        return exchange_by<Scope, kPiecesAtOnce>(session, name, announced, bytes, only, load, store);
    } else {
        return exchange_many<Scope>(session, name, announced, bytes, only, load, store);
    }
}

// Receives `bytes` bytes of every member, which are combined in the order of the members: those of
// `kMembers` at once.
template <class Scope, uint32_t kMembers, class Combine, class Load, class Store>
OXSHMEM_DEVICE bool receive_combined(const Session &session, uint32_t announced, uint32_t bytes, const Combine &combine,
                                     Load load, Store store) {
    const TeamView &team = session.team;
    const uint64_t places = own_packets<Scope>(team);
    Accumulator<Combine> sum;
    // Lanes of a grid keep this member's piece while they look for those of others. A single block
    // would have to keep something else in memory for it.
    vec16 own{};
    uint32_t own_item = ~0u;
    const auto load_own = [&](uint32_t item) {
        const uint32_t offset = item * kPiece;
        if (!kSeveralBlocks<Scope>) {
            return load(team.me, offset, bytes - offset);
        }
        if (item != own_item) {
            own = load(team.me, offset, bytes - offset);
            own_item = item;
        }
        return own;
    };
    const auto look = [&](uint32_t item, int &missing) {
        const uint32_t offset = item * kPiece;
        for (int first = 0; first < team.n; first += static_cast<int>(kMembers)) {
            constexpr uint32_t kLooks = kMembersAtOnce<Scope, kMembers>;
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
                        packets[k] = request_piece<Scope>(team, places, sends ? sender : any_other(team), item, bytes - offset);
                    }
                }
                OXSHMEM_UNROLL
                for (uint32_t k = 0; k < kLooks; ++k) {
                    const int sender = first + static_cast<int>(begin + k);
                    vec16 &value = values[begin + k];
                    if (sender == team.me) {
                        value = load_own(item);
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
    if constexpr (kSeveralBlocks<Scope>) {
        if (session.team.n == 2) {
            return leave_exchange<Scope>(session, receive_combined<Scope, 2>(session, announced, bytes, combine, load, store));
        }
    }
    const bool good = receive_combined<Scope, kPiecesAtOnce>(session, announced, bytes, combine, load, store);
    return leave_exchange<Scope>(session, good);
}

// ---------------------------------------------------------------------------------------------------------------------------
// Relay: each member receives a share in packets, and passes on what comes of it. A member sends
// and receives its share twice then, where it would send all of its data to each other member
// otherwise.
// ---------------------------------------------------------------------------------------------------------------------------

// The shares of the members, and what of each the calling block handles: whole pieces, except for
// the last one.
struct Relay {
    uint32_t bytes; // in all
    uint32_t each;  // of a share
    Part part;
    uint64_t passed; // where packets arrive that others pass on

    // Returns where the block's part of share `number` begins in the whole, and how long it is.
    OXSHMEM_DEVICE uint32_t first(int number) const { return each * static_cast<uint32_t>(number) + part.first; }
    OXSHMEM_DEVICE uint32_t length(int number) const {
        const uint32_t begin = first(number);
        return begin < bytes ? static_cast<uint32_t>(least(part.bytes, bytes - begin)) : 0;
    }
    // Loads a piece of share `number` at `offset` in the part, of which nothing may be left.
    OXSHMEM_LAZY OXSHMEM_DEVICE vec16 load(const void *src, int number, uint32_t offset) const {
        const uint32_t left = length(number);
        return offset < left ? load_piece(at_offset(src, first(number) + offset), left - offset) : vec16{};
    }
    OXSHMEM_LAZY OXSHMEM_DEVICE void store(void *dst, int number, uint32_t offset, vec16 value) const {
        store_piece(at_offset(dst, first(number) + offset), value, length(number) - offset);
    }
};

template <class Scope>
OXSHMEM_DEVICE Relay relay_of(const TeamView &team, const TeamName<Scope> &name, uint64_t bytes, int shares) {
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(bytes)), n = static_cast<uint32_t>(shares);
    const uint32_t each = (pieces + n - 1) / n * kPiece;
    return {static_cast<uint32_t>(bytes), each, part_of<Scope>(each), passed_packets(team, workspace_in(name))};
}

// Passes on a piece of this member's share to all other members but `except`.
template <class Scope>
OXSHMEM_DEVICE void pass_piece(const Session &session, const Relay &relay, uint32_t offset, vec16 value, uint32_t bytes,
                               int except) {
    for (int distance = 1; distance < session.team.n; ++distance) {
        const int member = session.team.member_behind(distance);
        if (member != except) {
            send_piece<Scope>(session.team, relay.passed, member, offset / kPiece, value, bytes);
        }
    }
}

// Receives what all other members but `except` pass on, and stores it. `number(member)` returns the
// number of a member's share. A block stops when another one has failed: a member that has left
// passes on nothing, and only the first block is sure to be told of it.
template <class Scope, class Number>
OXSHMEM_DEVICE bool receive_passed(const Session &session, const Relay &relay, void *dst, int except, Number number) {
    const TeamView &team = session.team;
    const uint32_t pieces = static_cast<uint32_t>(pieces_of(relay.part.bytes));
    const uint32_t items = pieces * static_cast<uint32_t>(team.n - 1);
    bool good = true;
    for (uint32_t item = Meeting<Scope>::rank(); good && item < items; item += Meeting<Scope>::size()) {
        const uint32_t distance = member_of(item, pieces, team.n), offset = (item - distance * pieces) * kPiece;
        const int member = session.team.member_behind(static_cast<int>(distance) + 1);
        const uint32_t length = member == except ? 0 : relay.length(number(member));
        if (offset < length) {
            vec16 value{};
            bool is_there = false;
            const auto late = [&] { return team.blame(member); };
            good = wait(session.op, late, as<void>(relay.passed), [&] {
                is_there = look_at_piece<Scope>(team, relay.passed, member, offset / kPiece, value, length - offset);
                const bool stopped = is_stopped<Scope>(team.handle, team.epoch);
                return is_there || stopped;
            });
            good = good && is_there;
            if (good) {
                relay.store(dst, number(member), offset, value);
            }
        }
    }
    return !Scope::any(!good);
}

// A reduction to all: each member combines its share of what all send to it, in the order of the
// members, and passes on the result.
template <class Scope, class Combine>
OXSHMEM_DEVICE bool relay_combined(Session &session, const TeamName<Scope> &name, uint32_t announced, void *dst,
                                   const void *src, uint64_t bytes, const Combine &combine) {
    const TeamView &team = session.team;
    const Relay relay = relay_of<Scope>(team, name, bytes, team.n);
    const auto load = [&](int member, uint32_t offset, uint64_t) { return relay.load(src, member, offset); };
    if (!settle_and_send<Scope>(session, name, true, relay.part.bytes, load)) {
        return false;
    }
    const auto own = [&](int, uint32_t offset, uint64_t) { return relay.load(src, team.me, offset); };
    const auto store = [&](uint32_t offset, vec16 value, uint64_t left) {
        pass_piece<Scope>(session, relay, offset, value, static_cast<uint32_t>(left), team.me);
        relay.store(dst, team.me, offset, value);
    };
    const bool good = have_all_received<Scope>(
        receive_combined<Scope, kPiecesAtOnce>(session, announced, relay.length(team.me), combine, own, store));
    return leave_exchange<Scope>(
        session, good && receive_passed<Scope>(session, relay, dst, team.me, [](int member) { return member; }));
}

// A broadcast: the root sends each other member a share, which the member passes on to the others.
template <class Scope>
OXSHMEM_DEVICE bool relay_broadcast(Session &session, const TeamName<Scope> &name, uint32_t announced, void *dst,
                                    const void *src, uint64_t bytes, int root) {
    const TeamView &team = session.team;
    const Relay relay = relay_of<Scope>(team, name, bytes, team.n - 1);
    const bool is_root = team.me == root;
    const auto number = [&](int member) { return member > root ? member - 1 : member; };
    const auto load = [&](int member, uint32_t offset, uint64_t) { return relay.load(src, number(member), offset); };
    // What it sends takes one turn, because what follows waits for it twice.
    if (!settle_and_send<Scope, 1>(session, name, is_root, relay.part.bytes, load)) {
        return false;
    }
    const auto store = [&](int, uint32_t offset, vec16 value, uint64_t left) {
        pass_piece<Scope>(session, relay, offset, value, static_cast<uint32_t>(left), root);
        relay.store(dst, number(team.me), offset, value);
    };
    const uint32_t length = is_root ? 0 : relay.length(number(team.me));
    bool good = have_all_received<Scope>(receive_from<Scope, 1>(session, announced, length, root, load, store));
    if (good && is_root && dst != src) {
        near_copy<Scope>(dst, src, bytes);
    } else if (good && !is_root) {
        good = receive_passed<Scope>(session, relay, dst, root, number);
    }
    return leave_exchange<Scope>(session, good);
}

} // namespace oxshmem::detail
