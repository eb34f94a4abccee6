// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The service of an aggregating context, by a warp for each PE: it sends what has gathered in the
// rings of this PE, and applies what arrives in its inboxes. Where lanes are no faster than one
// thread, it is one thread.
//
// A segment leaves as a put with signal on the context `beside`, with a fence before it, so that
// positions arrive in ascending order. The place of a record is used again once the receiver has
// applied it, which it acknowledges by a signal that follows a fence likewise. Until then the
// records stay in the ring.
//
// Lanes apply records of a word side by side. Those that change one word keep their order, and a
// signal or a fence separates what precedes it from what follows.
//
// The warp is that of a short kernel, a slice. Where slices find no room on the device, slices of
// another context of the GPU take turns with what occupies it, so two of them may run at a time:
// one that finds another one at work leaves the service to it.
#pragma once

#include <oxshmem/aggregate.h>

namespace oxshmem::detail::aggregate {

// What precedes it on the context `beside` is visible before what follows. Functions of their own,
// as the next one, so that there is one copy of their code for the network.
OXSHMEM_LAZY OXSHMEM_NOINLINE void order_before(const abi::Aggregate &context) {
    ::oxshmem::fence(context.beside);
}

// Updates a signal after everything that was done before.
OXSHMEM_LAZY OXSHMEM_NOINLINE void tell(const abi::Aggregate &context, uint64_t *signal, uint64_t value, SignalOp op,
                                        int member) {
    order_before(context);
    ::oxshmem::signal_op(context.beside, signal, value, op, member);
}

// How far a ring can be sent: to the end of the segment, if it is full, or to the tail, if that is
// in the segment and all before it has been written; else as far as it was sent.
OXSHMEM_DEVICE uint64_t written_up_to(const abi::Aggregate &context, const abi::AggregateRing &ring, uint64_t sent) {
    const uint64_t number = sent >> context.segment_log2;
    const uint64_t begin = number << context.segment_log2, size = 1ull << context.segment_log2;
    const uint64_t before = number / abi::kAggregateSegments * size;
    // Bytes that are written have been reserved, so a tail that is read later covers them. If it
    // covers no more, none of them is still to be written.
    const auto *const sum = &ring.written[number % abi::kAggregateSegments];
    const uint64_t written = port::load<order::acquire, reach::system>(sum) - before;
    if (written == size) {
        return begin + size;
    }
    const uint64_t tail = port::load<order::relaxed, reach::system>(&ring.tail);
    return tail - begin == written ? tail : sent;
}

// Sends what a ring holds, if it is time. Returns whether it did.
OXSHMEM_DEVICE bool send(abi::AggregateService &service, const abi::AggregateLink &link) {
    const abi::Aggregate &context = service.context;
    abi::AggregateRing &ring = *as<abi::AggregateRing>(link.ring);
    abi::AggregateInbox &inbox = *as<abi::AggregateInbox>(link.inbox);
    const uint64_t sent = port::read(&ring.sent);
    const uint64_t tail = port::load<order::relaxed, reach::system>(&ring.tail);
    if (tail == sent) {
        return false;
    }
    const uint64_t now = port::clock_ns();
    if (port::read(&ring.since) == 0) {
        port::write(&ring.since, now);
    }
    const uint64_t border = (sent | ((1ull << context.segment_log2) - 1)) + 1;
    const bool due =
        port::load<order::relaxed, reach::system>(&ring.wanted) > sent || now - port::read(&ring.since) >= service.age_ns;
    if (tail < border && !due) {
        return false;
    }
    const uint64_t end = written_up_to(context, ring, sent);
    if (end == sent) {
        return false;
    }
    // Counted before it leaves: a PE that knows that records were applied finds their write
    // counted.
    port::write(&service.segments, port::read(&service.segments) + 1);
    port::write(&service.segment_bytes, port::read(&service.segment_bytes) + (end - sent));
    order_before(context);
    putmem_signal_nbi(context.beside, thread, place_of(context, inbox, sent), place_of(context, ring, sent), end - sent,
                      &inbox.arrived, end, SIGNAL_SET, link.peer);
    port::write(&ring.sent, end);
    port::write(&ring.since, uint64_t{0});
    return true;
}

template <class T> OXSHMEM_DEVICE void store_at(void *dst, uint64_t bits) {
    port::store<order::relaxed, reach::system>(static_cast<T *>(dst), static_cast<T>(bits));
}

// Changes a word as a record says, in place or by a card, whichever does all atomics.
template <class T>
OXSHMEM_NOINLINE void change(const abi::Aggregate &context, Kind kind, T *target, uint64_t bits, int member) {
    Member found;
    if (!detail::find(context.beside, member, Op::atomic, Use::atomics, found)) {
        return;
    }
    const T value = static_cast<T>(bits);
    AtomicRequest request = AtomicRequest::add(value);
    if (kind == Kind::bit_xor) {
        request = AtomicRequest::exclusive_or(value);
    } else if (kind != Kind::add) {
        request = AtomicRequest::replace(value, (kind == Kind::bit_and ? ~to_bits(value) : to_bits(value)) & all_bits<T>);
    }
    detail::atomic<false>(found.queue, target, found.pe, request, [&](T *word) {
        switch (kind) {
        case Kind::add:
            return port::fetch_add<order::relaxed, reach::system>(word, value);
        case Kind::bit_and:
            return port::fetch_and<order::relaxed, reach::system>(word, value);
        case Kind::bit_or:
            return port::fetch_or<order::relaxed, reach::system>(word, value);
        default:
            return port::fetch_xor<order::relaxed, reach::system>(word, value);
        }
    });
}

// Whether a record is a put or an atomic of a word, which lies within 8 bytes of the heap.
OXSHMEM_DEVICE bool is_of_word(uint64_t header) {
    const Kind kind = kind_of(header);
    const uint32_t bytes = bytes_of_value(header);
    return kind == Kind::put ? bytes <= 8 && (bytes & (bytes - 1)) == 0 && (offset_in(header) & (bytes - 1)) == 0
                             : kind >= Kind::add && kind <= Kind::bit_xor;
}

// The member that a record is for.
OXSHMEM_DEVICE int member_of(const abi::AggregateService &service, uint64_t header) {
    return port::read(as<const int32_t>(service.own_node) + destination_of(header));
}

// Where a record's target is in this PE's heap.
OXSHMEM_DEVICE char *target_of(uint64_t header) {
    return as<char>(port::state().heap_base + offset_in(header));
}

// Where the heap of the member is that a put is for. False: as find.
OXSHMEM_DEVICE bool find_target(const abi::AggregateService &service, uint64_t header, char *&dst) {
    Member found;
    if (!detail::find(service.context.beside, member_of(service, header), Op::put, Use::data, found)) {
        return false;
    }
    dst = translate(target_of(header), found.pe);
    return true;
}

// Applies a record of a word.
OXSHMEM_DEVICE void apply_word(const abi::AggregateService &service, uint64_t header, uint64_t value) {
    const uint32_t bytes = bytes_of_value(header);
    if (kind_of(header) == Kind::put) {
        char *dst;
        if (!find_target(service, header, dst)) {
            return;
        }
        if (bytes == 8) {
            store_at<uint64_t>(dst, value);
        } else if (bytes == 4) {
            store_at<uint32_t>(dst, value);
        } else if (bytes == 2) {
            store_at<uint16_t>(dst, value);
        } else {
            store_at<uint8_t>(dst, value);
        }
    } else if (bytes == 8) {
        change(service.context, kind_of(header), reinterpret_cast<uint64_t *>(target_of(header)), value,
               member_of(service, header));
    } else {
        change(service.context, kind_of(header), reinterpret_cast<uint32_t *>(target_of(header)), value,
               member_of(service, header));
    }
}

// Applies a put of any length, by all lanes, which have the same record.
template <class Scope>
OXSHMEM_DEVICE void apply_put(const abi::AggregateService &service, uint64_t header, const uint64_t *payload) {
    char *dst;
    if (find_target(service, header, dst)) {
        copy<Scope>(dst, payload, bytes_of_value(header));
    }
}

// Applies a signal or a fence, by one lane.
OXSHMEM_DEVICE void apply_order(const abi::AggregateService &service, uint64_t header, uint64_t value) {
    const Kind kind = kind_of(header);
    if (kind == Kind::fence) {
        order_before(service.context);
    } else {
        tell(service.context, reinterpret_cast<uint64_t *>(target_of(header)), value,
             kind == Kind::signal_set ? SIGNAL_SET : SIGNAL_ADD, member_of(service, header));
    }
}

// Applies the records of words of some `lanes` of the service, one of each lane, side by side.
// Records that change the same 8 bytes wait for those before them, unless their order does not
// matter.
OXSHMEM_DEVICE void apply_words(const abi::AggregateService &service, const Group &servers, uint32_t lanes, uint64_t header,
                                uint64_t value) {
    const uint32_t self = 1u << port::lane_id();
    const bool has_one = (lanes & self) != 0;
    // What no record is.
    const uint64_t none = ~uint64_t{servers.rank};
    const uint64_t place = static_cast<uint64_t>(destination_of(header)) << kSourceShift | offset_in(header) >> 3;
    const uint64_t kind_and_bytes = header >> kBytesShift << kBytesShift;
    const uint32_t same = port::match_any(servers.mask, has_one ? place : none);
    const uint32_t alike = port::match_any(servers.mask, has_one ? place | kind_and_bytes : none);
    const bool commutes = same == alike && kind_of(header) != Kind::put;
    const uint32_t turn = commutes ? 0 : port::count_ones(same & (self - 1));
    for (uint32_t now = 0;; ++now) {
        if (has_one && turn == now) {
            apply_word(service, header, value);
        }
        if (port::ballot(servers.mask, has_one && turn > now) == 0) {
            return;
        }
        port::sync_warp(servers.mask);
    }
}

// Applies the records of the first `n` lanes, each of 16 bytes.
OXSHMEM_DEVICE void apply_run(const abi::AggregateService &service, const Group &servers, uint32_t n, uint64_t header,
                              uint64_t value, const uint64_t *payload) {
    const bool has_one = servers.rank < n && kind_of(header) != Kind::skip;
    const uint32_t words = port::ballot(servers.mask, has_one && is_of_word(header));
    uint32_t others = port::ballot(servers.mask, has_one && !is_of_word(header));
    for (uint32_t left = words | others; left != 0;) {
        const uint32_t next = others & (0 - others); // 0: no other one
        const uint32_t before = left & (next - 1);
        if ((before & words) != 0) {
            apply_words(service, servers, before, header, value);
        }
        if (next != 0) {
            port::sync_warp(servers.mask);
            if ((next >> port::lane_id() & 1) != 0) {
                if (kind_of(header) == Kind::put) {
                    apply_put<thread_scope>(service, header, payload);
                } else {
                    apply_order(service, header, value);
                }
            }
            port::sync_warp(servers.mask);
        }
        left &= ~(before | next);
        others &= ~next;
    }
    // The next records may change the same words.
    port::sync_warp(servers.mask);
}

// Whether a record names memory that it may change: as much of the heap as it has bytes, and an
// aligned word of a size that atomics or signals have.
OXSHMEM_DEVICE bool has_target(uint64_t header) {
    const Kind kind = kind_of(header);
    const uint64_t bytes = bytes_of_value(header), offset = offset_in(header);
    const bool is_word = bytes == 8 || (bytes == 4 && kind < Kind::signal_set);
    return offset + bytes <= port::state().heap_bytes && (kind == Kind::put || (is_word && (offset & (bytes - 1)) == 0));
}

// Whether a header is one that a PE of this job writes. What is not says that memory was
// overwritten, which any program can do: a record has to be safe to apply, whatever it is.
OXSHMEM_DEVICE bool is_sound(const abi::AggregateService &service, uint64_t header, uint64_t room) {
    const Kind kind = kind_of(header);
    const uint64_t length = length_of(header);
    return static_cast<uint32_t>(kind) < kKinds && destination_of(header) < service.n_own_node && length <= room &&
           length != 0 && length % abi::kAggregateRecordBytes == 0 &&
           (kind == Kind::skip || kind == Kind::fence || has_target(header));
}

// Applies what has arrived in an inbox, at most up to the end of a segment, and acknowledges it.
// Returns whether there was anything. All lanes call it together.
template <class Scope>
OXSHMEM_DEVICE bool receive(abi::AggregateService &service, const abi::AggregateLink &link, const Group &servers) {
    constexpr uint64_t kUnit = abi::kAggregateRecordBytes;
    const abi::Aggregate &context = service.context;
    abi::AggregateInbox &inbox = *as<abi::AggregateInbox>(link.inbox);
    uint64_t first = 0, arrived = 0;
    if (servers.leads()) {
        first = port::read(&inbox.applied);
        arrived = port::load<order::acquire, reach::system>(&inbox.arrived);
    }
    first = port::shfl(servers.mask, first, servers.leader);
    arrived = port::shfl(servers.mask, arrived, servers.leader);
    if (arrived == first) {
        return false;
    }
    // What the leader has acquired is there for all lanes.
    port::sync_warp(servers.mask);
    const uint64_t border = (first | ((1ull << context.segment_log2) - 1)) + 1;
    const uint64_t end = arrived < border ? arrived : border;
    uint64_t records = 0;
    bool atomics = false;
    for (uint64_t at = first; at < end;) {
        // Each lane takes what is a record if all before it have 16 bytes.
        const uint64_t mine = at + servers.rank * kUnit;
        const uint64_t *const record = place_of(context, inbox, mine);
        uint64_t header = 0, value = 0;
        if (mine < end) {
            header = port::read(record);
            value = port::read(record + 1);
        }
        const bool sound = mine < end && is_sound(service, header, end - mine);
        const uint32_t short_ones = port::ballot(servers.mask, sound && length_of(header) == kUnit) >> servers.leader;
        const uint32_t n = short_ones == ~0u ? 32 : port::lowest_bit(~short_ones);
        if (n != 0) {
            apply_run(service, servers, n, header, value, record + 1);
            const bool counts = servers.rank < n && kind_of(header) != Kind::skip && kind_of(header) != Kind::fence;
            records += port::count_ones(port::ballot(servers.mask, counts));
            atomics |= port::ballot(servers.mask, counts && kind_of(header) != Kind::put) != 0;
            at += n * kUnit;
            continue;
        }
        header = port::shfl(servers.mask, header, servers.leader);
        if (!is_sound(service, header, end - at)) {
            if (servers.leads()) {
                port::write(&service.broken, at + 1);
            }
            return false;
        }
        if (kind_of(header) == Kind::put) {
            apply_put<Scope>(service, header, place_of(context, inbox, at) + 1);
            port::sync_warp(servers.mask);
            ++records;
        }
        at += length_of(header);
    }
    if (!servers.leads()) {
        return true;
    }
    if (atomics && atomics_by_network()) {
        quiet(context.beside);
        if (port::load<order::relaxed, reach::system>(&control().abort) >= abi::kAbortJob) {
            // The atomics may not have been done, so they are neither acknowledged nor done again.
            port::write(&service.broken, first + 1);
            return true;
        }
    }
    port::write(&inbox.applied, end);
    port::write(&service.acknowledgements, port::read(&service.acknowledgements) + 1);
    port::write(&service.records, port::read(&service.records) + records);
    tell(context, &as<abi::AggregateRing>(link.ring)->applied, end, SIGNAL_SET, link.peer);
    return true;
}

// Whether a ring of this PE holds records that have not been applied.
OXSHMEM_DEVICE bool is_busy(const abi::AggregateLink &link) {
    const abi::AggregateRing &ring = *as<abi::AggregateRing>(link.ring);
    return port::load<order::relaxed, reach::system>(&ring.tail) != port::load<order::relaxed, reach::system>(&ring.applied);
}

// Serves until `polls` rounds in a row have found nothing to do, or for `most_ns`; not at all while
// another slice does. All threads of the scope, a thread or a whole warp, call it together.
template <class Scope> OXSHMEM_DEVICE void serve(abi::AggregateService &service, uint32_t polls, uint64_t most_ns, Scope) {
    static_assert(!Scope::kSeveralWarps);
    const uint32_t first = Scope::kLanes == 1 ? port::lane_id() : 0;
    const Group servers = make_group((Scope::size() == 32 ? ~0u : (1u << Scope::size()) - 1) << first);
    const auto leader_says = [&](auto question) {
        const bool said = servers.leads() && question();
        return port::shfl(servers.mask, said, servers.leader);
    };
    if (leader_says([&] { return port::exchange<order::acquire, reach::device>(&service.serving, uint64_t{1}) != 0; })) {
        return;
    }
    const auto *const sends = as<const abi::AggregateLink>(service.sends);
    const auto *const receives = as<const abi::AggregateLink>(service.receives);
    const uint64_t begun = port::clock_ns();
    for (uint32_t idle = 0; leader_says([&] {
             return idle < polls && port::clock_ns() - begun < most_ns && port::read(&service.broken) == 0 &&
                    port::load<order::relaxed, reach::system>(&control().abort) < abi::kAbortJob;
         });) {
        bool moved = false;
        for (uint32_t i = 0; i < service.n_receives; ++i) {
            moved |= receive<Scope>(service, receives[i], servers);
        }
        moved |= leader_says([&] {
            bool sent = false;
            for (uint32_t i = 0; i < service.n_sends; ++i) {
                sent |= send(service, sends[i]);
            }
            return sent;
        });
        idle = moved ? 0 : idle + 1;
        if (!moved) {
            port::pause();
        }
    }
    if (!servers.leads()) {
        return;
    }
    bool busy = false;
    for (uint32_t i = 0; i < service.n_sends; ++i) {
        busy |= is_busy(sends[i]);
    }
    port::write(&service.busy, static_cast<uint64_t>(busy));
    port::store<order::release, reach::device>(&service.serving, uint64_t{0});
}

} // namespace oxshmem::detail::aggregate
