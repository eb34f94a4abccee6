// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The service of an aggregating context, by one thread for each PE: it sends what has gathered in
// the rings of this PE, and applies what arrives in its inboxes.
//
// A segment leaves as a put with signal on the context `beside`, with a fence before it, so that
// positions arrive in ascending order. The place of a record is used again once the receiver has
// applied it, which it acknowledges by a signal that follows a fence likewise. Until then the
// records stay in the ring.
//
// The thread is that of a short kernel, a slice. Where slices find no room on the device, slices of
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

// Applies one record, which is not a skip.
OXSHMEM_DEVICE void apply(const abi::AggregateService &service, uint64_t header, const uint64_t *payload) {
    const abi::Aggregate &context = service.context;
    const uint32_t bytes = bytes_of_value(header);
    const int member = port::read(as<const int32_t>(service.own_node) + destination_of(header));
    char *const target = as<char>(port::state().heap_base + offset_in(header));
    uint64_t *const word = reinterpret_cast<uint64_t *>(target);
    switch (kind_of(header)) {
    case Kind::put: {
        Member found;
        if (!detail::find(context.beside, member, Op::put, Use::data, found)) {
            return;
        }
        char *const dst = translate(target, found.pe);
        const bool aligned = (offset_in(header) & (bytes - 1)) == 0;
        if (bytes == 8 && aligned) {
            store_at<uint64_t>(dst, port::read(payload));
        } else if (bytes == 4 && aligned) {
            store_at<uint32_t>(dst, port::read(payload));
        } else if (bytes == 2 && aligned) {
            store_at<uint16_t>(dst, port::read(payload));
        } else if (bytes == 1) {
            store_at<uint8_t>(dst, port::read(payload));
        } else {
            copy<thread_scope>(dst, payload, bytes);
        }
        break;
    }
    case Kind::signal_set:
    case Kind::signal_add:
        tell(context, word, port::read(payload), kind_of(header) == Kind::signal_set ? SIGNAL_SET : SIGNAL_ADD, member);
        break;
    case Kind::fence:
        order_before(context);
        break;
    default:
        if (bytes == 8) {
            change(context, kind_of(header), word, port::read(payload), member);
        } else {
            change(context, kind_of(header), reinterpret_cast<uint32_t *>(target), port::read(payload), member);
        }
        break;
    }
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
// Returns whether there was anything.
OXSHMEM_DEVICE bool receive(abi::AggregateService &service, const abi::AggregateLink &link) {
    const abi::Aggregate &context = service.context;
    abi::AggregateInbox &inbox = *as<abi::AggregateInbox>(link.inbox);
    const uint64_t first = port::read(&inbox.applied);
    const uint64_t arrived = port::load<order::acquire, reach::system>(&inbox.arrived);
    if (arrived == first) {
        return false;
    }
    const uint64_t border = (first | ((1ull << context.segment_log2) - 1)) + 1;
    const uint64_t end = arrived < border ? arrived : border;
    uint64_t records = 0;
    bool atomics = false;
    for (uint64_t at = first; at < end;) {
        const uint64_t *const record = place_of(context, inbox, at);
        const uint64_t header = port::read(record);
        if (!is_sound(service, header, end - at)) {
            port::write(&service.broken, at + 1);
            return false;
        }
        if (kind_of(header) != Kind::skip) {
            apply(service, header, record + 1);
            records += kind_of(header) != Kind::fence;
            atomics |= kind_of(header) != Kind::put;
        }
        at += length_of(header);
    }
    if (atomics && atomics_by_network()) {
        quiet(context.beside);
        if (port::load<order::relaxed, reach::system>(&control().abort) >= abi::kAbortJob) {
            // The atomics may not have been done, so they are neither acknowledged nor done again.
            port::write(&service.broken, first + 1);
            return false;
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
// another thread does.
OXSHMEM_LAZY OXSHMEM_DEVICE void serve(abi::AggregateService &service, uint32_t polls, uint64_t most_ns) {
    if (port::exchange<order::acquire, reach::device>(&service.serving, uint64_t{1}) != 0) {
        return;
    }
    const auto *const sends = as<const abi::AggregateLink>(service.sends);
    const auto *const receives = as<const abi::AggregateLink>(service.receives);
    const uint64_t begun = port::clock_ns();
    for (uint32_t idle = 0; idle < polls && port::clock_ns() - begun < most_ns;) {
        if (port::load<order::relaxed, reach::system>(&control().abort) >= abi::kAbortJob || port::read(&service.broken) != 0) {
            break;
        }
        bool moved = false;
        for (uint32_t i = 0; i < service.n_receives; ++i) {
            moved |= receive(service, receives[i]);
        }
        for (uint32_t i = 0; i < service.n_sends; ++i) {
            moved |= send(service, sends[i]);
        }
        idle = moved ? 0 : idle + 1;
        if (!moved) {
            port::pause();
        }
    }
    bool busy = false;
    for (uint32_t i = 0; i < service.n_sends; ++i) {
        busy |= is_busy(sends[i]);
    }
    port::write(&service.busy, static_cast<uint64_t>(busy));
    port::store<order::release, reach::device>(&service.serving, uint64_t{0});
}

} // namespace oxshmem::detail::aggregate
