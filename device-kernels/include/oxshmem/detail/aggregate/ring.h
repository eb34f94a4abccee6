// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Rings of aggregating contexts: how a thread appends a record.
//
// A record is a header, a word that says what to do where, and the value or the payload. A thread
// reserves its place by a compare-and-swap of the tail, once the ring has room for it, so no place
// is ever reserved that its thread cannot fill at once: a wait that ends with an error leaves the
// ring as it was. It then writes the record, and adds the record's length to what was written to
// the segment, by a release. The service of the rail peer sends a segment when that sum says that
// every byte reserved in it has been written. A segment is used again once all of it has been
// applied, so the sum never has bytes of two laps that are under way.
//
// A grid has some hundred thousand threads, which all want the same tail. So a warp that converges
// reserves once for all its lanes, and a thread that another one was ahead of, or that waits for
// room, pauses for longer each time.
#pragma once

#include "../address.h"
#include "../group.h"

namespace oxshmem::detail::aggregate {

enum class Kind : uint32_t {
    skip = 0, // fills a segment up: its length is in place of the offset
    put = 1,
    add = 2, // of a word of the bytes that the header says, as the next three
    bit_and = 3,
    bit_or = 4,
    bit_xor = 5,
    signal_set = 6,
    signal_add = 7,
    fence = 8, // what precedes it is visible before what follows
};
constexpr uint32_t kKinds = 9;

// A header, from the lowest bit: the offset in the heap, the source's number among the PEs of its
// node, the destination's among those of its own, the bytes of the value or payload less 1, and the
// kind.
constexpr uint32_t kNumberBits = 7;
constexpr uint32_t kSourceShift = abi::kAggregateHeapBits;
constexpr uint32_t kDestinationShift = kSourceShift + kNumberBits;
constexpr uint32_t kBytesShift = kDestinationShift + kNumberBits;
constexpr uint32_t kKindShift = kBytesShift + 8;
static_assert(kKindShift + 4 == 64 && kKinds <= 16, "a header is 64 bits");
static_assert(1u << kNumberBits == abi::kAggregateMostPesPerNode);
static_assert(abi::kAggregateMostPayload % 8 == 0 && abi::kAggregateMostPayload <= 256);

OXSHMEM_DEVICE uint64_t header(Kind kind, uint32_t bytes, uint32_t destination, uint32_t source, uint64_t offset) {
    return static_cast<uint64_t>(kind) << kKindShift | static_cast<uint64_t>(bytes - 1) << kBytesShift |
           static_cast<uint64_t>(destination) << kDestinationShift | static_cast<uint64_t>(source) << kSourceShift | offset;
}

OXSHMEM_DEVICE Kind kind_of(uint64_t header) {
    return static_cast<Kind>(header >> kKindShift);
}
OXSHMEM_DEVICE uint32_t bytes_of_value(uint64_t header) {
    return static_cast<uint32_t>(header >> kBytesShift & 0xff) + 1;
}
OXSHMEM_DEVICE uint32_t destination_of(uint64_t header) {
    return static_cast<uint32_t>(header >> kDestinationShift) & ((1u << kNumberBits) - 1);
}
OXSHMEM_DEVICE uint64_t offset_in(uint64_t header) {
    return header & ((1ull << abi::kAggregateHeapBits) - 1);
}

// The length of a record with that much payload.
OXSHMEM_DEVICE uint64_t record_bytes(uint64_t payload) {
    constexpr uint64_t kUnit = abi::kAggregateRecordBytes;
    return (sizeof(uint64_t) + payload + kUnit - 1) / kUnit * kUnit;
}
OXSHMEM_DEVICE uint64_t length_of(uint64_t header) {
    return kind_of(header) == Kind::skip ? offset_in(header) : record_bytes(bytes_of_value(header));
}

// Records of a ring that were not applied within the deadline.
struct Stalled {
    int32_t receiver, rail;
    uint64_t bytes;
};

OXSHMEM_LAZY OXSHMEM_DEVICE void raise_timeout(Op op, const Stalled &stalled, const void *) {
    raise(ErrorCode::aggregate_stalled, op, stalled.receiver, static_cast<uint64_t>(stalled.rail), stalled.bytes);
}

OXSHMEM_DEVICE uint64_t capacity(const abi::Aggregate &context) {
    return static_cast<uint64_t>(abi::kAggregateSegments) << context.segment_log2;
}

// Where the byte at a position lies, of the segments that follow `first`.
template <class Head> OXSHMEM_DEVICE uint64_t *place_of(const abi::Aggregate &context, Head &head, uint64_t position) {
    return as<uint64_t>(reinterpret_cast<uint64_t>(&head + 1) + (position & (capacity(context) - 1)));
}

// Says that the bytes from `begin` to `end` have been written.
OXSHMEM_DEVICE void publish(const abi::Aggregate &context, abi::AggregateRing &ring, uint64_t begin, uint64_t end) {
    while (begin != end) {
        const uint64_t segment = begin >> context.segment_log2, border = (segment + 1) << context.segment_log2;
        const uint64_t stop = end < border ? end : border;
        port::add_to<order::release, reach::system>(&ring.written[segment & (abi::kAggregateSegments - 1)], stop - begin);
        begin = stop;
    }
}

// Where records may end when `applied` bytes have been applied.
OXSHMEM_DEVICE uint64_t limit(const abi::Aggregate &context, uint64_t applied) {
    return (applied >> context.segment_log2 << context.segment_log2) + capacity(context);
}

// Waits until the ring has room as far as `end`. False: it has not within the deadline, which is
// recorded, or the launch is being aborted.
OXSHMEM_LAZY OXSHMEM_NOINLINE bool wait_for_room(const abi::Aggregate &context, abi::AggregateNode &node, Op op, uint64_t end) {
    abi::AggregateRing &ring = *as<abi::AggregateRing>(node.ring);
    uint64_t applied = 0;
    uint32_t looks = 0;
    const auto stalled = [&] { return Stalled{node.receiver, node.rail, end - applied}; };
    const auto has_room = [&] {
        if (looks != 0) {
            port::back_off(looks);
        }
        ++looks;
        applied = port::load<order::relaxed, reach::system>(&ring.applied);
        return end <= limit(context, applied);
    };
    if (!wait(op, stalled, &ring.applied, has_room, [&] { return static_cast<uint32_t>(applied); })) {
        return false;
    }
    port::acquire<reach::system>(&ring.applied);
    port::raise_to<order::release, reach::device>(&node.room, limit(context, applied));
    return true;
}

constexpr uint64_t kNoPlace = ~0ull;

// Reserves places for `n` records of `bytes` bytes each, back to back, and returns the
// position of the first. No record passes the end of a segment, so several of them have a length
// that divides it: kAggregateRecordBytes. kNoPlace: as wait_for_room.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t reserve(const abi::Aggregate &context, abi::AggregateNode &node, Op op, uint64_t bytes,
                                             uint32_t n = 1) {
    abi::AggregateRing &ring = *as<abi::AggregateRing>(node.ring);
    const uint64_t segment = 1ull << context.segment_log2;
    uint64_t tail = port::load<order::relaxed, reach::system>(&ring.tail);
    for (uint32_t tries = 1;; ++tries) {
        const uint64_t left = segment - (tail & (segment - 1));
        const uint64_t begin = bytes > left ? tail + left : tail, end = begin + n * bytes;
        if (end > port::load<order::acquire, reach::device>(&node.room) && !wait_for_room(context, node, op, end)) {
            return kNoPlace;
        }
        const uint64_t seen = port::compare_exchange<order::relaxed, reach::system>(&ring.tail, tail, end);
        if (seen == tail) {
            if (begin != tail) {
                port::store<order::relaxed, reach::system>(place_of(context, ring, tail), header(Kind::skip, 1, 0, 0, left));
                publish(context, ring, tail, begin);
            }
            return begin;
        }
        port::back_off(tries);
        tail = port::load<order::relaxed, reach::system>(&ring.tail);
    }
}

// Remembers that there are records for a node.
OXSHMEM_DEVICE void note(abi::AggregateNode &node) {
    if (port::load<order::relaxed, reach::device>(&node.used) == 0) {
        port::store<order::relaxed, reach::device>(&node.used, uint64_t{1});
    }
}

// Appends a record of one word by each lane. False: it was not appended.
OXSHMEM_LAZY OXSHMEM_DEVICE bool append(const abi::Aggregate &context, abi::AggregateNode &node, Op op, uint64_t header,
                                        uint64_t value) {
    constexpr uint64_t kBytes = abi::kAggregateRecordBytes;
    const Group group = make_group(port::converged(reinterpret_cast<uint64_t>(&node)));
    uint64_t first = 0;
    if (group.leads()) {
        first = reserve(context, node, op, kBytes, group.size);
    }
    first = port::shfl(group.mask, first, group.leader);
    if (first == kNoPlace) {
        return false;
    }
    abi::AggregateRing &ring = *as<abi::AggregateRing>(node.ring);
    port::store_pair(place_of(context, ring, first + group.rank * kBytes), header, value);
    port::sync_warp(group.mask);
    if (group.leads()) {
        publish(context, ring, first, first + group.size * kBytes);
    }
    note(node);
    return true;
}

// A member on another node.
struct Far {
    abi::AggregateNode *node;
    uint32_t number; // among the members of its node
    int pe;          // in the job
};

// Finds a member of the team. `far.node` is null if it is on this PE's own node. False: there is no
// such member, which is recorded.
OXSHMEM_LAZY OXSHMEM_DEVICE bool find(const abi::Aggregate &context, int member, Op op, Far &far) {
    if (static_cast<uint32_t>(member) >= static_cast<uint32_t>(context.n_pes)) {
        raise(ErrorCode::pe_out_of_range, op, member, 0, static_cast<uint64_t>(context.n_pes));
        return false;
    }
    const abi::AggregateMember &seat = as<const abi::AggregateMember>(context.members)[member];
    const uint32_t node = port::read(&seat.node);
    far.number = port::read(&seat.number);
    far.pe = context.beside.members != 0 ? port::read(as<const int32_t>(context.beside.members) + member)
                                         : context.beside.start + member * context.beside.stride;
    far.node = node == context.my_node ? nullptr : as<abi::AggregateNode>(context.nodes) + node;
    return true;
}

OXSHMEM_DEVICE uint64_t header_for(const abi::Aggregate &context, const Far &far, Kind kind, uint32_t bytes,
                                   const void *target) {
    return header(kind, bytes, far.number, context.my_number, offset_of(target));
}

// Appends a put as records of at most kAggregateMostPayload bytes.
OXSHMEM_LAZY OXSHMEM_NOINLINE void append_put(const abi::Aggregate &context, const Far &far, Op op, void *dst, const void *src,
                                              uint64_t bytes) {
    abi::AggregateRing &ring = *as<abi::AggregateRing>(far.node->ring);
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    while (bytes != 0) {
        const uint64_t part = bytes < abi::kAggregateMostPayload ? bytes : abi::kAggregateMostPayload;
        // What cannot be read faults before a place is reserved.
        port::probe(from, part);
        const uint64_t at = reserve(context, *far.node, op, record_bytes(part));
        if (at == kNoPlace) {
            return;
        }
        uint64_t *const record = place_of(context, ring, at);
        port::write(record, header_for(context, far, Kind::put, static_cast<uint32_t>(part), to));
        port::copy_bytes(record + 1, from, part);
        publish(context, ring, at, at + record_bytes(part));
        to += part, from += part, bytes -= part;
    }
    note(*far.node);
}

// Whether a ring holds records that have not been applied; `end` is where they end.
OXSHMEM_LAZY OXSHMEM_DEVICE bool holds_records(const abi::AggregateNode &node, uint64_t &end) {
    if (node.ring == 0 || port::load<order::relaxed, reach::device>(&node.used) == 0) {
        return false;
    }
    const abi::AggregateRing &ring = *as<abi::AggregateRing>(node.ring);
    end = port::load<order::relaxed, reach::system>(&ring.tail);
    return port::load<order::acquire, reach::system>(&ring.applied) < end;
}

// Asks the rail peer to send everything that the ring holds now. Returns where that ends, or 0 if
// all of it has been applied.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t want(abi::AggregateNode &node) {
    uint64_t end = 0;
    if (!holds_records(node, end)) {
        return 0;
    }
    abi::AggregateRing &ring = *as<abi::AggregateRing>(node.ring);
    if (port::load<order::relaxed, reach::system>(&ring.wanted) < end) {
        port::raise_to<order::release, reach::system>(&ring.wanted, end);
    }
    return end;
}

// Waits until everything that the rings of some nodes hold at the call has been applied: those of
// every `step`th node from `first` on.
OXSHMEM_LAZY OXSHMEM_NOINLINE void complete(const abi::Aggregate &context, uint32_t first, uint32_t step) {
    abi::AggregateNode *const nodes = as<abi::AggregateNode>(context.nodes);
    for (uint32_t i = first; i < context.n_nodes; i += step) {
        want(nodes[i]);
    }
    for (uint32_t i = first; i < context.n_nodes; i += step) {
        abi::AggregateNode &node = nodes[i];
        const uint64_t end = want(node);
        if (end == 0) {
            continue;
        }
        abi::AggregateRing &ring = *as<abi::AggregateRing>(node.ring);
        uint64_t applied = 0;
        const auto stalled = [&] { return Stalled{node.receiver, node.rail, end - applied}; };
        const auto done = [&] {
            applied = port::load<order::relaxed, reach::system>(&ring.applied);
            return applied >= end;
        };
        if (!wait(Op::quiet, stalled, &ring.applied, done, [&] { return static_cast<uint32_t>(applied); })) {
            return;
        }
        port::acquire<reach::system>(&ring.applied);
    }
}

} // namespace oxshmem::detail::aggregate
