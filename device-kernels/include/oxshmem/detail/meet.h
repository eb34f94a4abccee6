// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Meetings: all members of a team learn that all have entered, and that all make the same call.
// Every collective is one or begins with one.
//
// Each member writes a header, its epoch and what it announces (abi::Call), where others look for
// it. Members that are load and store reachable tell each other directly; otherwise they meet by
// dissemination: in round k each tells the member 2^k places after it, which takes as many messages
// as rounds. Nothing is ever reset: headers of epoch e lie beside those of e - 1, and a member in
// epoch e knows that all have left e - 2.
#pragma once

#include <oxshmem/ordering.h>

// Messages, for a program that counts them: it defines these before it includes a header
// (tests/kernels/costs.cu). `word` is the word, as an address in this PE's heap, whose arrival at
// `pe` says that the message has arrived, and `turn` tells those apart that one collective writes
// to one word; null: a later message says so.
#ifndef OXSHMEM_ON_MESSAGE
#define OXSHMEM_ON_MESSAGE(pe, word, turn) static_cast<void>(0)
#define OXSHMEM_ON_ARRIVAL(word, turn) static_cast<void>(word)
#endif

namespace oxshmem::detail {

using abi::Call;

OXSHMEM_DEVICE abi::Team &team_row(int handle) {
    constexpr uint32_t kMask = (1u << abi::kTeamIndexBits) - 1;
    return as<abi::Team>(port::state().teams)[static_cast<uint32_t>(handle) & kMask];
}

// Returns which PE a member of a team is. `members`: where the PEs of all members are listed, or 0:
// they begin with `start`, and are `stride` apart.
OXSHMEM_DEVICE int pe_in(uint64_t members, int start, int stride, int member) {
    return members == 0 ? start + member * stride : port::read(as<int32_t>(members) + member);
}

// The same from the team's row. Errors are reported so: calls would keep what they know of the team
// for them.
OXSHMEM_LAZY OXSHMEM_OUTLINE int pe_of_member(int handle, int member) {
    const abi::Team &row = team_row(handle);
    return pe_in(port::read(&row.members), port::read(&row.start), port::read(&row.stride), member);
}

// A team as a call sees it: what it needs of its row, read at once.
struct TeamView {
    int handle;
    int me, n; // number and members
    int start, stride;
    bool one_round;
    uint64_t members, workspace;
    uint32_t share; // bytes of packets for each sender
    uint32_t epoch; // of the meeting to come; of the last one until settle(), where that is needed

    OXSHMEM_DEVICE int pe_of(int member) const { return pe_in(members, start, stride, member); }
    // Returns the member whose number is this member's plus `distance`, at most `n`, modulo `n`.
    OXSHMEM_DEVICE int member_behind(int distance) const { return me + distance < n ? me + distance : me + distance - n; }
    OXSHMEM_LAZY OXSHMEM_DEVICE Blame blame(int member) const { return {pe_of_member(handle, member), handle}; }
    OXSHMEM_DEVICE uint32_t parity() const { return epoch & 1; }

    // Places in the workspace, as addresses in this PE's heap.
    OXSHMEM_DEVICE uint64_t *rounds() const { return as<uint64_t>(workspace) + parity() * abi::kRounds; }
    OXSHMEM_DEVICE uint64_t *headers() const {
        return as<uint64_t>(workspace + abi::kHeadersAt) + parity() * abi::kOneRoundPes;
    }
    OXSHMEM_DEVICE uint64_t packets(uint64_t bytes) const {
        return workspace + abi::kArrivalsAt + arrival_bytes() + parity() * bytes;
    }
    OXSHMEM_DEVICE uint64_t packets() const { return packets(packet_bytes()); }
    // Bytes of the packets of one parity, in whole lines.
    OXSHMEM_DEVICE uint64_t packet_bytes() const {
        const uint64_t needed = (static_cast<uint64_t>(n) + 3) / 4 * 128;
        return needed < abi::kPacketBytes ? abi::kPacketBytes : needed;
    }
    // Bytes of the arrivals of both parities and kinds.
    OXSHMEM_DEVICE uint64_t arrival_bytes() const { return (static_cast<uint64_t>(n) + 3) / 4 * 128; }
    OXSHMEM_DEVICE uint64_t *arrivals(int kind) const {
        return as<uint64_t>(workspace + abi::kArrivalsAt) +
               (parity() * 2 + static_cast<uint32_t>(kind)) * static_cast<uint32_t>(n);
    }
};

// Whether the row that a handle names exists.
OXSHMEM_DEVICE bool is_row_of_table(int handle) {
    const uint32_t index = static_cast<uint32_t>(handle) & ((1u << abi::kTeamIndexBits) - 1);
    return handle >= 0 && index < port::state().max_teams;
}

// The row that is read for a handle before it is known to be one of a team: the world's if the
// table has none.
OXSHMEM_DEVICE abi::Team &row_to_read(int handle) {
    return team_row(is_row_of_table(handle) ? handle : abi::kTeamWorld);
}

// The row of a handle, or null if there is no such team.
OXSHMEM_DEVICE abi::Team *find_team(int handle) {
    return is_row_of_table(handle) && port::read(&team_row(handle).handle) == handle ? &team_row(handle) : nullptr;
}

// Epochs 0 and 1 are left out, so that a word that was never written is of no epoch.
OXSHMEM_DEVICE uint32_t epoch_after(uint32_t epoch) {
    return epoch + 1 < 2 ? epoch + 3 : epoch + 1;
}

// All loads at once: after a meeting they come from the L2 cache, and in sequence they would take
// longer than a small collective.
OXSHMEM_DEVICE TeamView view_of(const abi::Team &row) {
    const port::vec16 who = port::load_vec(&row.handle), how = port::load_vec(&row.stride),
                      where = port::load_vec(&row.members);
    TeamView team;
    team.handle = static_cast<int>(who.x);
    team.me = static_cast<int>(who.y), team.n = static_cast<int>(who.z);
    team.start = static_cast<int>(who.w), team.stride = static_cast<int>(how.x);
    team.one_round = how.y != 0;
    team.share = how.z;
    team.epoch = epoch_after(how.w);
    team.members = static_cast<uint64_t>(where.y) << 32 | where.x;
    team.workspace = static_cast<uint64_t>(where.w) << 32 | where.z;
    return team;
}

// What a block, not the first one, of a collective that several blocks carry out has in a
// workspace.
OXSHMEM_DEVICE uint64_t bytes_of_block(const TeamView &team) {
    return abi::kArrivalsAt - abi::kHeadersAt + team.arrival_bytes() + 2 * abi::kBlockPacketBytes;
}

// The headers, arrivals and packets of such a block lie where those of a workspace lie that begins
// here, except for the bytes of packets.
OXSHMEM_DEVICE uint64_t workspace_of_block(const TeamView &team, uint32_t block) {
    const uint64_t first = team.workspace + abi::kArrivalsAt + team.arrival_bytes() + 2 * team.packet_bytes();
    return first + (block - 1) * bytes_of_block(team) - abi::kHeadersAt;
}

// Where the packets arrive that other members pass on to the calling block. `workspace` is that of
// the team, which has more than two members.
OXSHMEM_DEVICE uint64_t passed_packets(const TeamView &team, uint64_t workspace) {
    const uint64_t first = workspace + abi::kArrivalsAt + team.arrival_bytes() + 2 * team.packet_bytes();
    const uint64_t further = port::state().collective_blocks - 1;
    return first + further * bytes_of_block(team) + port::block_rank() * abi::kBlockPacketBytes;
}

// How many of these places a block takes in a team of several nodes. The first block takes as many,
// behind those of the others, if there are enough for all.
OXSHMEM_DEVICE bool has_places_for_all() {
    return port::state().collective_blocks > abi::kLevelsBlocks;
}
OXSHMEM_DEVICE uint32_t places_of_block() {
    return has_places_for_all() ? (port::state().collective_blocks - 1) / abi::kLevelsBlocks : 1;
}

// The place of the calling block, not the first one: its number, or the first of those that it
// takes.
template <class Scope> OXSHMEM_DEVICE uint32_t own_place() {
    return kByLevels<Scope> ? (port::block_rank() - 1) * places_of_block() + 1 : port::block_rank();
}

// A team whose row the calling lane has read, with the bytes of packets that each of several blocks
// has for each sender.
struct SeenTeam {
    TeamView view;
    uint32_t block_share;
};

// How a call names its team: by the handle. Grids that begin with the call have from the host what
// it knows of the team. The blocks of a grid have read the row to choose how they share the call.
template <class Scope> struct name_of_team { using type = int; };
template <> struct name_of_team<opening_blocks> { using type = abi::KnownTeam; };
template <> struct name_of_team<blocks_scope> { using type = SeenTeam; };
template <> struct name_of_team<packet_blocks> { using type = SeenTeam; };
template <> struct name_of_team<relay_blocks> { using type = SeenTeam; };
template <class Scope> using TeamName = typename name_of_team<Scope>::type;

OXSHMEM_DEVICE int handle_in(int handle) {
    return handle;
}
OXSHMEM_DEVICE int handle_in(const abi::KnownTeam &team) {
    return team.handle;
}
OXSHMEM_DEVICE int handle_in(const SeenTeam &team) {
    return team.view.handle;
}
OXSHMEM_DEVICE uint64_t workspace_in(int handle) {
    return port::read(&team_row(handle).workspace);
}
OXSHMEM_DEVICE uint64_t workspace_in(const abi::KnownTeam &team) {
    return team.workspace;
}
OXSHMEM_DEVICE uint64_t workspace_in(const SeenTeam &team) {
    return team.view.workspace;
}

template <class Scope> OXSHMEM_DEVICE void raise_bad_team(int handle, Op op) {
    if (Scope::rank() == 0) {
        raise(ErrorCode::bad_team, op, {-1, handle}, 0, static_cast<uint32_t>(handle));
    }
}

// Makes the view that of the calling block: its place in the workspace, and the bytes of packets
// there for each sender. The first block meets in the team's own place, where calls of one block
// meet too.
template <class Scope> OXSHMEM_DEVICE void take_place(TeamView &team, uint32_t block_share) {
    team.workspace = port::block_rank() == 0 ? team.workspace : workspace_of_block(team, own_place<Scope>());
    team.share = block_share;
}

// Finds a team and reads its row. False: there is none, which one lane records.
template <class Scope> OXSHMEM_DEVICE bool view_team(TeamView &team, int handle, Op op) {
    const abi::Team &row = row_to_read(handle);
    const uint32_t block_share = kSeveralBlocks<Scope> ? port::read(&row.block_share) : 0;
    team = view_of(row);
    // A share is even. To look at it waits for the load that has the epoch too: take_epoch relies
    // on that all lanes of its block have read the epoch when they meet.
    const bool has_read = !(kSeveralBlocks<Scope> || kIsGrid<Scope>) || (team.share & 1) == 0;
    if (is_row_of_table(handle) && team.handle == handle && has_read) {
        if constexpr (kSeveralBlocks<Scope>) {
            take_place<Scope>(team, block_share);
        }
        return true;
    }
    raise_bad_team<Scope>(handle, op);
    return false;
}

// The same as far as the host knows it. What the row has beside that are its handle, which is
// another one if the team was destroyed meanwhile, and the epoch: request_row() requests them.
OXSHMEM_DEVICE TeamView view_of(const abi::KnownTeam &known) {
    TeamView team;
    team.handle = known.handle;
    team.me = known.my_pe, team.n = known.n_pes;
    team.start = known.start, team.stride = known.stride;
    team.one_round = known.one_round != 0;
    team.share = known.packet_share;
    team.epoch = 0;
    team.members = known.members;
    team.workspace = known.workspace;
    return team;
}
OXSHMEM_DEVICE void request_row(TeamView &team, const abi::KnownTeam &known) {
    const abi::Team &row = *as<abi::Team>(known.row);
    const port::vec16 how = port::load_vec(&row.stride);
    team.handle = port::read(&row.handle);
    team.one_round = how.y != 0;
    team.epoch = how.w;
}
// Waits for it, and returns whether there is such a team. What the row says of one round is what
// the host has said. To look at it waits for the load that has the epoch too.
OXSHMEM_DEVICE bool is_row_of(const TeamView &team, const abi::KnownTeam &known) {
    return team.handle == known.handle && team.one_round == (known.one_round != 0);
}

template <class Scope> OXSHMEM_DEVICE bool view_team(TeamView &team, const abi::KnownTeam &known, Op) {
    static_assert(kSeveralBlocks<Scope>);
    team = view_of(known);
    request_row(team, known);
    take_place<Scope>(team, known.block_share);
    return true;
}

template <class Scope> OXSHMEM_DEVICE bool view_team(TeamView &team, const SeenTeam &seen, Op) {
    team = seen.view;
    // Blocks that meet all blocks of all members have words of their own for that.
    if constexpr (!kInGrid<Scope>) {
        take_place<Scope>(team, seen.block_share);
    }
    return true;
}

// Whether there is the team of which the host has told. False: there is none, which one lane
// records.
template <class Scope> OXSHMEM_DEVICE bool has_row(const TeamView &team, const abi::KnownTeam &known, Op op) {
    if (!is_row_of(team, known)) {
        raise_bad_team<Scope>(known.handle, op);
        return false;
    }
    return true;
}

// Lets the lanes of the scope wait for each other: all have read the row then, which take_epoch
// relies on. A team of which the host has told is looked at here. False: there is none.
template <class Scope> OXSHMEM_DEVICE bool settle(TeamView &team, const TeamName<Scope> &name, Op op) {
    if constexpr (kOpensGrid<Scope>) {
        if (!has_row<Scope>(team, name, op)) {
            return false;
        }
        team.epoch = epoch_after(team.epoch);
    }
    Scope::sync();
    return true;
}

// What a member announces: a call and a hash of what has to be equal; or that `pe` has made a bad
// call, or has left the meeting while it waited for `awaited`, or for another reason if that is
// `pe`.
OXSHMEM_DEVICE uint32_t announce(Call call, uint64_t hash) {
    return static_cast<uint32_t>(call) << abi::kCallShift | (static_cast<uint32_t>(hash) & ((1u << abi::kCallShift) - 1));
}
OXSHMEM_DEVICE uint32_t announce_bad(int pe) {
    static_assert(abi::kMaxPes <= 1u << abi::kNamedPeBits);
    return static_cast<uint32_t>(pe);
}
// Announces that the call of `pe` differs from this member's, which is `announced`. Neither of the
// two knows which call is wrong. A member that makes the same call as one of them does, and the
// digest tells it which of them announces this.
OXSHMEM_DEVICE uint32_t announce_differing(int pe, uint32_t announced) {
    constexpr uint32_t kBits = abi::kCallShift - abi::kNamedPeBits;
    const uint32_t digest = (announced ^ announced >> kBits) & ((1u << kBits) - 1);
    return digest << abi::kNamedPeBits | announce_bad(pe);
}
OXSHMEM_DEVICE uint32_t announce_left(int pe, int awaited) {
    return abi::kLeftMeeting << abi::kCallShift | static_cast<uint32_t>(awaited) << abi::kNamedPeBits | announce_bad(pe);
}
// Announces that this PE leaves a meeting of a team. It waits for another one if the error of the
// launch is a deadline of a call of that team; mostly that is the call that meets.
OXSHMEM_LAZY OXSHMEM_DEVICE uint32_t announce_leaving(int handle) {
    const abi::Control &ctl = control();
    const int my_pe = port::state().my_pe;
    if (port::load<order::acquire, reach::system>(&ctl.claimed) != abi::kErrorValid) {
        return announce_left(my_pe, my_pe);
    }
    const bool waited =
        port::read(&ctl.error.code) == static_cast<uint32_t>(ErrorCode::timeout) && port::read(&ctl.error.team) == handle;
    return announce_left(my_pe, waited ? port::read(&ctl.error.pe) : my_pe);
}
OXSHMEM_DEVICE bool is_bad(uint32_t announced) {
    return announced >> abi::kCallShift == 0;
}
OXSHMEM_DEVICE bool is_left(uint32_t announced) {
    return announced >> abi::kCallShift == abi::kLeftMeeting;
}

OXSHMEM_DEVICE uint64_t header_of(const TeamView &team, uint32_t announced) {
    return static_cast<uint64_t>(team.epoch) << 32 | announced;
}

// Whether an epoch is `since` or a later one.
OXSHMEM_DEVICE bool is_since(uint32_t epoch, uint32_t since) {
    constexpr uint32_t kMostAhead = 1u << 24;
    return epoch - since < kMostAhead;
}

// Whether a header is there. Members that have left an earlier collective by its deadline may be
// ahead. A header of a further block may be as old as the last collective that so many blocks
// carried out, or not be written yet. (One of 2^32 collectives ago, less up to 2^24, looks like one
// that is ahead.)
OXSHMEM_DEVICE bool entered(uint64_t seen, uint64_t header) {
    return seen != 0 && is_since(static_cast<uint32_t>(seen >> 32), static_cast<uint32_t>(header >> 32));
}

// Returns which PE has made a bad call or has left, from what `member` announces. That may name
// another PE, which counts only if the member makes the same call as the caller: otherwise the
// member's own call is the one that does not fit.
OXSHMEM_LAZY OXSHMEM_DEVICE int culprit(int handle, int member, uint64_t seen, uint64_t header) {
    const uint32_t announced = static_cast<uint32_t>(seen);
    const int named = static_cast<int>(announced & ((1u << abi::kNamedPeBits) - 1));
    const bool is_of_same_call = announced == announce_differing(named, static_cast<uint32_t>(header));
    return seen >> 32 == header >> 32 && (is_left(announced) || is_of_same_call) ? named : pe_of_member(handle, member);
}

// Compares what a member announces; false if it differs, which the calling lane records unless its
// own call is a bad one: that has been recorded. If the caller's own PE is to blame, in the eyes of
// the others or for another block, the record names the member.
OXSHMEM_LAZY OXSHMEM_DEVICE bool agrees(int handle, Op op, int member, uint64_t seen, uint64_t header) {
    if (seen != header && !is_bad(static_cast<uint32_t>(header))) {
        const ErrorCode code = is_left(static_cast<uint32_t>(seen)) ? ErrorCode::member_left : ErrorCode::mismatch;
        const int pe = culprit(handle, member, seen, header);
        raise(code, op, {pe != port::state().my_pe ? pe : pe_of_member(handle, member), handle}, header, seen);
    }
    return seen == header;
}

// Stores a word at all members, this one last, since the others wait longer for theirs; by `lanes`
// lanes.
OXSHMEM_DEVICE void tell_members(const TeamView &team, uint64_t *own, uint64_t value, int rank, int lanes) {
    for (int distance = 1 + rank; distance <= team.n; distance += lanes) {
        const int pe = team.pe_of(team.member_behind(distance));
        OXSHMEM_ON_MESSAGE(pe, own, 1);
        port::store<order::relaxed, reach::system>(translate(own, pe), value);
    }
}

// Tells all members that this one has entered; by `lanes` lanes of the scope.
OXSHMEM_DEVICE void tell_all(const TeamView &team, uint64_t header, int rank, int lanes) {
    tell_members(team, team.headers() + team.me, header, rank, lanes);
}

// Counts the arrival of one word, or of two.
OXSHMEM_DEVICE void on_arrivals(const uint64_t *words, bool two) {
    OXSHMEM_ON_ARRIVAL(words, 1);
    if (two) {
        OXSHMEM_ON_ARRIVAL(words + 1, 1);
    }
}

// Looks up to `looks` times whether a word, and the one after it if `two`, is `wanted`. Returns
// whether it is, and if so, what was stored before it is visible. In few instructions.
OXSHMEM_DEVICE bool see_two(const uint64_t *words, bool two, uint64_t wanted, uint32_t looks) {
    bool are_there = false;
    OXSHMEM_NO_UNROLL
    for (uint32_t look = 0; !are_there && look < looks; ++look) {
        const port::pair64 seen = port::load_pair<order::relaxed, reach::system>(words);
        are_there = seen.first == wanted && (!two || seen.second == wanted);
        if (!are_there) {
            port::pause();
        }
    }
    if (are_there) {
        on_arrivals(words, two);
        port::acquire<reach::system>(words);
        if (two) {
            port::acquire<reach::system>(words + 1);
        }
    }
    return are_there;
}

// Tells the other members that this one has left a meeting before all had entered; by one lane. A
// member that enters later would find that this one had entered, and then wait for its data until
// its own deadline, while this one waits as long in the next call: neither would catch up with the
// other. A member that has told that a call is bad leaves that as it is, since it says more.
// `headers` are those of the meeting, and the team's row is read again.
OXSHMEM_LAZY OXSHMEM_OUTLINE void tell_left(int handle, uint64_t *headers, uint64_t header) {
    if (is_bad(static_cast<uint32_t>(header))) {
        return;
    }
    const abi::Team &row = team_row(handle);
    const int me = port::read(&row.my_pe), n = port::read(&row.n_pes);
    const uint64_t left = header >> 32 << 32 | announce_leaving(handle);
    for (int distance = 1; distance < n; ++distance) {
        const int pe = pe_of_member(handle, (me + distance) % n);
        port::store<order::relaxed, reach::system>(translate(headers + me, pe), left);
    }
}

// Looks up to `looks` times for each pair of members whether they have entered and agree; by
// `lanes` lanes, each of which looks for some. In few instructions.
OXSHMEM_DEVICE bool see_all(const TeamView &team, uint64_t header, int rank, int lanes, uint32_t looks) {
    bool good = true;
    for (int first = 2 * rank; good && first < team.n; first += 2 * lanes) {
        good = see_two(team.headers() + first, first + 1 < team.n, header, looks);
    }
    return good;
}

// Waits for the headers of members `first` and `first` + 1, and calls `meanwhile` as often as it
// looks; when that returns true, the wait is over. Stores in `agreed` whether they agree with this
// member's. Returns false if they have not arrived.
template <order O, class Meanwhile>
OXSHMEM_DEVICE bool await_two(const TeamView &team, Op op, int first, uint64_t header, bool &agreed, Meanwhile meanwhile) {
    const uint64_t *slots = team.headers() + first;
    const bool two = first + 1 < team.n;
    port::pair64 seen{};
    const auto late = [&] { return team.blame(entered(seen.first, header) ? first + 1 : first); };
    bool over = false;
    const bool ended = wait(op, late, slots, [&] {
        seen = port::load_pair<O, reach::system>(slots);
        over = meanwhile();
        return over || (entered(seen.first, header) && (!two || entered(seen.second, header)));
    });
    const bool there = ended && !over;
    if (there) {
        on_arrivals(slots, two);
    } else if (!ended) {
        tell_left(team.handle, team.headers(), header);
    }
    if (there && (seen.first != header || (two && seen.second != header))) {
        agreed = false;
        // A bad call explains more than a member that has left.
        const bool is_second =
            two && seen.second != header && (seen.first == header || is_left(static_cast<uint32_t>(seen.first)));
        agrees(team.handle, op, is_second ? first + 1 : first, is_second ? seen.second : seen.first, header);
    }
    return there;
}

// Waits for the headers of all members; by `lanes` lanes, each of which learns of some. Waits for
// all of them even if one does not agree: a member that leaves knows that every member has entered.
template <order O, class Meanwhile>
OXSHMEM_DEVICE bool await_all(const TeamView &team, Op op, uint64_t header, int rank, int lanes, Meanwhile meanwhile) {
    bool there = true, agreed = true;
    for (int first = 2 * rank; there && first < team.n; first += 2 * lanes) {
        there = await_two<O>(team, op, first, header, agreed, meanwhile);
    }
    return there && agreed;
}

// Writes a word at `pe`, by load and store or through the network. Earlier stores must have
// been released.
OXSHMEM_LAZY OXSHMEM_DEVICE void tell(int pe, Op op, uint64_t *word, uint64_t value) {
    OXSHMEM_ON_MESSAGE(pe, word, 1);
    if (is_direct(pe)) {
        port::store<order::relaxed, reach::system>(translate(word, pe), value);
    } else if (path_to(pe, op) == Path::network) {
        network_signal(DefaultContext{}, word, value, SignalOp::set, pe);
    }
}

// Whether several blocks count themselves in a meeting. Those of a grid that send packets need not:
// all blocks of the grid have met before.
template <class Scope> constexpr bool kCountsBlocks = kSeveralBlocks<Scope> && !kByPackets<Scope>;

// Takes the epoch; by one lane, when all have read the row. The others have been told before, so
// none of them waits for this store. The last one of several blocks that has read the row takes it:
// this counts the block, and returns how many have been counted before, which close_epoch needs. It
// is relaxed, because a fence would wait for all that the lane has sent; the loads of the block's
// lanes are over, since view_team has waited for them and the lanes have met after that. Where
// blocks need not count themselves, the first one takes it for all.
template <class Scope> OXSHMEM_DEVICE uint32_t take_epoch(const TeamView &team) {
    abi::Team &row = team_row(team.handle);
    if constexpr (kCountsBlocks<Scope>) {
        return port::fetch_add<order::relaxed, reach::device>(&row.entered, 1u);
    }
    if (!kByPackets<Scope> || port::block_rank() == 0) {
        port::write(&row.epoch, team.epoch);
    }
    return 0;
}

// The rest of it, by the same lane, when it has nothing better to do than to wait for the count.
template <class Scope> OXSHMEM_DEVICE void close_epoch(const TeamView &team, uint32_t counted) {
    if constexpr (kCountsBlocks<Scope>) {
        abi::Team &row = team_row(team.handle);
        if (counted + 1 == sharing_blocks()) {
            port::write(&row.entered, 0u);
            port::write(&row.epoch, team.epoch);
        }
    }
}

// The first of several blocks that fails stops the others: a member whose call differs may have
// fewer blocks, and then some would wait in vain; and each would wait for the deadline of a member
// that does not enter. The first block of all is not stopped: it leaves a meeting only when all
// members have entered or its deadline has passed, so no member gets ahead of the others before.
template <class Scope> OXSHMEM_DEVICE bool is_stopped(int handle, uint32_t epoch) {
    if constexpr (kSeveralBlocks<Scope>) {
        return port::block_rank() != 0 && port::load<order::relaxed, reach::device>(&team_row(handle).stopped) == epoch;
    }
    return false;
}
// `reason` is what the block would announce: it has found a bad call, or has left.
template <class Scope> OXSHMEM_DEVICE void stop_others(int handle, uint32_t epoch, uint32_t reason) {
    if constexpr (kSeveralBlocks<Scope>) {
        abi::Team &row = team_row(handle);
        port::store<order::relaxed, reach::device>(&row.stop_reason, reason);
        port::store<order::release, reach::device>(&row.stopped, epoch);
    }
}
template <class Scope> OXSHMEM_DEVICE void stop_unless(const TeamView &team, bool good) {
    if (!good) {
        stop_others<Scope>(team.handle, team.epoch, announce_left(port::state().my_pe, port::state().my_pe));
    }
}
// Returns the reason of the block that has stopped the calling one.
OXSHMEM_LAZY OXSHMEM_DEVICE uint32_t reason_to_stop(int handle) {
    const abi::Team &row = team_row(handle);
    port::acquire<reach::device>(&row.stopped);
    return port::load<order::relaxed, reach::device>(&row.stop_reason);
}

// Where the words of the calling block lie in a meeting by dissemination. A further block has no
// place for rounds, but for headers, which it needs for nothing else.
template <bool kSeveral> OXSHMEM_DEVICE uint64_t *words_of_rounds(const TeamView &team) {
    return kSeveral && port::block_rank() != 0 ? team.headers() : team.rounds();
}

// Tells the members, in a meeting by dissemination, `said` in place of what this one has told them
// and has yet to tell them. By one lane.
template <bool kSeveral> OXSHMEM_OUTLINE void tell_rounds(int handle, Op op, uint64_t said) {
    TeamView team;
    view_team<typename rounds_of<kSeveral>::type>(team, handle, op);
    team.epoch = static_cast<uint32_t>(said >> 32);
    uint64_t *word = words_of_rounds<kSeveral>(team);
    for (int distance = 1; distance < port::read(&team_row(handle).n_pes); distance *= 2, ++word) {
        const abi::Team &row = team_row(handle);
        tell(pe_of_member(handle, (port::read(&row.my_pe) + distance) % port::read(&row.n_pes)), op, word, said);
        port::forget(handle);
    }
}

// Returns what a member passes on that has heard that another one's call differs or that one has
// left.
OXSHMEM_LAZY OXSHMEM_DEVICE uint32_t learnt_from(int handle, int member, uint64_t seen, uint64_t header) {
    const int to_blame = culprit(handle, member, seen, header);
    if (!is_left(static_cast<uint32_t>(seen))) {
        return announce_differing(to_blame, static_cast<uint32_t>(header));
    }
    return seen >> 32 == header >> 32 ? static_cast<uint32_t>(seen) : announce_left(to_blame, to_blame);
}

// What a member says from now on in a meeting by dissemination, and whether it leaves it early.
struct Heard {
    uint32_t said;
    bool leaves;
};

// Finds out what a member says that has waited for another one's message, `distance` places before
// it, and has seen none that agrees: it hears of a bad call, or of a member that has left; another
// block has stopped the calling one; or (unless `ended`) it has waited in vain. What the member has
// `said` of a bad call stays as it is, above all that its own is one.
OXSHMEM_LAZY OXSHMEM_OUTLINE Heard hear(int handle, Op op, int distance, uint64_t header, uint64_t seen, bool ended,
                                        uint32_t said) {
    const abi::Team &row = team_row(handle);
    const int n = port::read(&row.n_pes), member = (port::read(&row.my_pe) + n - distance) % n;
    const bool is_there = ended && entered(seen, header);
    if (is_there) {
        agrees(handle, op, member, seen, header);
    }
    const uint32_t learnt = is_there ? learnt_from(handle, member, seen, header)
                            : ended  ? reason_to_stop(handle)
                                     : announce_leaving(handle);
    return {is_bad(said) ? said : learnt, !is_there || is_left(static_cast<uint32_t>(seen))};
}

// A meeting by dissemination, by one lane. A member passes on everything that it has learnt: which
// members have entered, that calls differ, that one has left because another is missing, and the
// stores that it has seen. One that leaves early says so in place of what it has told (see
// tell_left). The team's row is read again: callers would have to keep what they know of it in
// memory.
template <bool kSeveral> OXSHMEM_OUTLINE bool meet_in_rounds(int handle, Op op, uint64_t header) {
    using Scope = typename rounds_of<kSeveral>::type;
    TeamView team;
    view_team<Scope>(team, handle, op);
    team.epoch = static_cast<uint32_t>(header >> 32);
    uint64_t said = header;
    uint64_t *slot = words_of_rounds<kSeveral>(team);
    close_epoch<Scope>(team, take_epoch<Scope>(team));
    int n = team.n;
    for (int distance = 1; distance < n; distance *= 2, ++slot) {
        release_stores();
        tell(pe_of_member(handle, (port::read(&team_row(handle).my_pe) + distance) % n), op, slot, said);
        // What is known of the team takes no registers while others are told.
        port::forget(handle);
        n = port::read(&team_row(handle).n_pes);
        const auto late = [&] {
            return Blame{pe_of_member(handle, (port::read(&team_row(handle).my_pe) + n - distance) % n), handle};
        };
        uint64_t seen = 0;
        const bool ended = wait(op, late, slot, [&] {
            seen = port::load<order::acquire, reach::system>(slot);
            return entered(seen, header) || is_stopped<Scope>(handle, static_cast<uint32_t>(header >> 32));
        });
        if (ended && entered(seen, header)) {
            OXSHMEM_ON_ARRIVAL(slot, 1);
        }
        if (seen == header) {
            continue;
        }
        const Heard heard = hear(handle, op, distance, header, seen, ended, static_cast<uint32_t>(said));
        said = header >> 32 << 32 | heard.said;
        if (heard.leaves) {
            tell_rounds<kSeveral>(handle, op, said);
            break;
        }
    }
    const bool good = said == header && !is_bad(static_cast<uint32_t>(header));
    if (!good) {
        stop_others<Scope>(handle, static_cast<uint32_t>(header >> 32), static_cast<uint32_t>(said));
    }
    return good;
}

// Lanes that meet for their scope, of one warp: each makes visible what the others shall see before
// it tells any.
constexpr int kMeetingLanes = 16; // at most
OXSHMEM_DEVICE int meeting_lanes(int size) {
    return size < kMeetingLanes ? size : kMeetingLanes;
}

// Whether a meeting needs no fence before it. A grid that begins with a collective needs none
// without a network: the collective promises nothing about earlier stores to peers, and what
// earlier grids of the stream have stored to this PE's own memory has reached its L2 cache, where
// peers read it: a grid that was launched early has waited for them. What an HCA has stored is
// passed on by a fence all the same.
template <class Scope> OXSHMEM_DEVICE bool stores_are_released() {
    return kOpensGrid<Scope> && port::kGridsRelease && port::state().network == static_cast<uint32_t>(abi::Network::none);
}

// Waits until the deadline for the members that the lane waits for in a meeting, and records what
// differs. The team's row is read again, so that a caller that need not wait takes few registers:
// registers that a function keeps for its caller lie in memory, and the fence before the meeting
// would wait for these stores.
template <class Scope, order O> OXSHMEM_OUTLINE bool await_members(int handle, Op op, uint64_t header) {
    static_assert(!kInGrid<Scope>, "blocks that meet all blocks of all members have words of their own");
    TeamView team;
    view_team<Scope>(team, handle, op);
    team.epoch = static_cast<uint32_t>(header >> 32);
    const int lanes = meeting_lanes(static_cast<int>(Meeting<Scope>::size()));
    const auto stopped = [&] { return is_stopped<Scope>(handle, team.epoch); };
    return await_all<O>(team, op, header, static_cast<int>(Meeting<Scope>::rank()), lanes, stopped);
}

// A meeting of one group of threads per member, all of which have read the row. With `Visible`,
// what members have stored before is visible to every member that leaves. Ends with Scope::any:
// every lane is told whether all members have entered the same call.
template <class Scope, bool Visible> OXSHMEM_DEVICE bool meet(const TeamView &team, Op op, uint32_t announced) {
    const int rank = static_cast<int>(Meeting<Scope>::rank()), size = static_cast<int>(Meeting<Scope>::size());
    const int lanes = meeting_lanes(size);
    bool good = true;
    if ((kSeveralBlocks<Scope> && !kByLevels<Scope>) || team.one_round) {
        if (rank < lanes && rank < team.n) {
            if (Visible && !stores_are_released<Scope>()) {
                release_stores();
            }
            const uint64_t header = header_of(team, announced);
            tell_all(team, header, rank, lanes);
            const uint32_t counted = rank == 0 ? take_epoch<Scope>(team) : 0;
            constexpr order kOrder = Visible ? order::acquire : order::relaxed;
            good = see_all(team, header, rank, lanes, port::kLooks) || await_members<Scope, kOrder>(team.handle, op, header);
            good = good && !is_bad(announced);
            if (rank == 0) {
                close_epoch<Scope>(team, counted);
            }
            stop_unless<Scope>(team, good);
        }
    } else if (rank == 0) {
        good = meet_in_rounds<kByLevels<Scope>>(team.handle, op, header_of(team, announced));
    }
    return !Scope::any(!good);
}

// Whether the block is so large that what all threads do alike takes longer than to leave a little
// data to one warp.
OXSHMEM_DEVICE bool are_many_threads() {
    constexpr uint32_t kMany = 512;
    return block_scope::size() > kMany;
}

// Lets the block's first warp do it. `call` returns a value other than 0 if it failed.
template <class Call> OXSHMEM_DEVICE int by_first_warp(Call call) {
    block_scope::sync();
    const int failed = block_scope::rank() < 32 ? call() : 0;
    return block_scope::any(failed != 0) ? 1 : 0;
}

} // namespace oxshmem::detail
