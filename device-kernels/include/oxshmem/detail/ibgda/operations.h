// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The operations over the network: by IBGDA below, or handed to the CPU proxy (../ibrc). Single
// lanes call them, and combine where they converge. Each returns what a blocking caller gives to
// network_wait (the QP's block index after its last work request, or the ring's index after its
// last descriptor), or 0 if nothing had to be, or could be, posted.
//
// They are functions of their own: copied to every call they would give each kernel the registers
// of the network, even where all peers are reached by load and store.
#pragma once

#include "../ibrc/operations.h"
#include "landing.h"
#include "staging.h"

namespace oxshmem::detail {

// p where lanes share work requests: each run of lanes, from a lane in `starts` to the next, is one
// inline write of as many blocks as its payload needs.
template <class Queue, class T>
OXSHMEM_DEVICE void network_p_runs(Queue queue, Qp &qp, Group &group, Located &remote, T value, uint32_t starts) {
    uint32_t offset = 0, lanes = group.mask;                 // the calling lane's run: its first block, and its lanes
    uint32_t last_run = group.leader;                        // the first lane of the last run
    uint32_t blocks = inline_blocks(group.size * sizeof(T)); // of all runs
    if ((starts & (starts - 1)) != 0) {
        blocks = 0;
        for (uint32_t left = starts; left != 0;) {
            last_run = port::lowest_bit(left);
            left &= left - 1;
            const uint32_t before_next = left == 0 ? ~0u : (1u << port::lowest_bit(left)) - 1;
            const uint32_t members = group.mask & before_next & ~((1u << last_run) - 1);
            if ((members >> port::lane_id() & 1) != 0) {
                offset = blocks, lanes = members;
            }
            blocks += inline_blocks(port::count_ones(members) * sizeof(T));
        }
    }
    const Reservation reservation = reserve(queue, qp, group, blocks, remote, value, offset, lanes, last_run, blocks);
    if (!reservation.ok) {
        return;
    }
    profile_request(reservation.qpn, qp.pe, reservation.first + blocks);
    const uint32_t bytes = port::count_ones(lanes) * sizeof(T);
    const uint32_t position = port::count_ones(lanes & ((1u << port::lane_id()) - 1));
    const Slot slot = slot_at(reservation, offset);
    if (position == 0) {
        slot.inline_header(remote, bytes, port::lane_id() == last_run);
    }
    slot.inline_value(position * sizeof(T), value);
    submit(queue, qp, group, reservation, blocks, true, [&] {
        // A request never has more blocks than lanes.
        const uint32_t own = inline_blocks(bytes);
        if (position < own) {
            stamp(reservation, offset + position, own - 1 - position);
        }
    });
}

// The bytes of a row: a word of each lane of a whole warp, each behind that of the lane before.
template <class T> OXSHMEM_DEVICE uint32_t row_bytes() {
    return port::count_ones(port::kWholeWarp) * static_cast<uint32_t>(sizeof(T));
}

// Writes the calling lane's part of the request that puts a row.
template <class T> OXSHMEM_DEVICE void write_row(const Slot &slot, const Located &remote, T value) {
    const uint32_t lane = port::lane_id();
    if (lane == 0) {
        slot.inline_header(remote, row_bytes<T>(), true);
    }
    slot.inline_value(lane * static_cast<uint32_t>(sizeof(T)), value);
}

// Where a word goes, such that a target is adjacent to another, and under the same key, if their
// places are. The chunk, which tells the key, is mixed in so high that targets on both sides of a
// border are never adjacent.
OXSHMEM_DEVICE uint64_t place_at(uint64_t offset) {
    return offset + (chunk_of(offset) << 48);
}

// network_p where a whole warp puts a row, to a QP that it does not have for itself.
template <class Queue, class T> OXSHMEM_DEVICE void network_p_row(Queue queue, Qp &qp, Located &remote, T value) {
    Group group = make_group(port::kWholeWarp);
    const uint32_t blocks = inline_blocks(row_bytes<T>());
    const Reservation reservation = reserve(queue, qp, group, blocks, remote, value);
    if (!reservation.ok) {
        return;
    }
    profile_request(reservation.qpn, qp.pe, reservation.first + blocks);
    write_row(slot_at(reservation, 0), remote, value);
    submit(queue, qp, group, reservation, blocks, true, [&] {
        if (group.rank < blocks) {
            stamp(reservation, group.rank, blocks - 1 - group.rank);
        }
    });
}

// Writes one value inline. Lanes whose targets follow each other share a work request; the rest
// share the reservation and the doorbell.
template <class C, class T> OXSHMEM_DEVICE void network_p(C context, T *dst, T value, int pe) {
    if (by_proxy()) {
        ibrc_p(dst, to_bits(value), sizeof(T), pe);
        return;
    }
    const auto queue = queue_for(context, Use::data);
    const uint32_t card = card_of(queue, pe);
    Qp &qp = qp_of(pe, queue);
    Located remote{};
    if constexpr (!kOfContext<C>) {
        if (port::is_single()) {
            post_single(
                queue, qp, [&] { remote = locate_remote(dst, pe, card); },
                [&](const Slot &slot) { slot.inline_word(remote, value, true); });
            return;
        }
    }
    Group group = converge(queue, qp, 1);
    remote = locate_remote(dst, pe, card);
    if (group.size > 1) {
        // A lane continues the run of the lane before it if its target is adjacent.
        const uint32_t starts = port::run_starts(group.mask, place_at(remote.address), sizeof(T));
        if (starts == 1 && group.mask == port::kWholeWarp) {
            network_p_row(queue, qp, remote, value);
            return;
        }
        if (starts != group.mask) {
            network_p_runs(queue, qp, group, remote, value, starts);
            return;
        }
    }
    const Reservation reservation = reserve(queue, qp, group, group.size, remote, value);
    if (!reservation.ok) {
        return;
    }
    profile_request(reservation.qpn, pe, reservation.first + group.rank + 1);
    slot_at(reservation, group.rank).inline_word(remote, value, group.last());
    submit(queue, qp, group, reservation, group.size, false, [&] { stamp(reservation, group.rank, 0); });
}

// network_p by a lane that has the context for itself.
template <class T> OXSHMEM_DEVICE bool p_alone(ContextQp queue, T *dst, T value, int pe) {
    if (!holds_word(dst) || !is_checked_word(dst)) {
        return false;
    }
    const uint32_t card = card_of(queue, pe);
    const uint64_t end =
        post_alone(queue, *queue.qp, [&](const Slot &slot) { slot.inline_word(locate_remote(dst, pe, card), value, true); });
    return end != 0;
}

// The same by a whole warp that has it, and puts a row.
template <class T> OXSHMEM_DEVICE bool p_by_warp(ContextQp queue, T *dst, T value, int pe) {
    Qp &qp = *queue.qp;
    if (port::converged(reinterpret_cast<uint64_t>(&qp)) != port::kWholeWarp) {
        return false;
    }
    // A word in no heap follows no other.
    const uint64_t place = holds_word(dst) && is_checked_word(dst) ? place_at(offset_of(dst)) : ~0ull;
    if (port::run_starts(port::kWholeWarp, place, sizeof(T)) != 1) {
        return false;
    }
    const Located remote = locate_remote(dst, pe, card_of(queue, pe));
    return post_whole(queue, qp, inline_blocks(row_bytes<T>()), [&](const Slot &slot) { write_row(slot, remote, value); });
}

// network_p in a context that the caller has for itself, to a PE that is not direct. It stands
// where the call is: a function would take more registers of its caller, and more instructions, for
// which a poster waits. False: nothing was done, and the caller has to put as others do.
template <class T> OXSHMEM_DEVICE bool p_for_itself(ContextQp queue, T *dst, T value, int pe) {
    if (!posts_to(pe)) {
        return false;
    }
    if (posts_alone(queue)) {
        return p_alone(queue, dst, value, pe);
    }
    return (queue.how & abi::kContextWarp) != 0 && p_by_warp(queue, dst, value, pe);
}

// Puts are cut into pieces that a single work request carries.
struct Piece {
    uint32_t bytes;
    bool inlined; // travels in the queue, with its work request
};

// The next piece of a put of `bytes` bytes.
OXSHMEM_DEVICE Piece next_piece(const void *dst, const void *src, uint64_t bytes) {
    bytes = least(bytes, left_in_chunk(offset_of(dst)));
    if (bytes <= port::state().inline_up_to) {
        return {static_cast<uint32_t>(bytes), true};
    }
    const uint64_t there = registered(src);
    // What is not registered travels in the queue.
    const bool inlined = there == 0;
    return {static_cast<uint32_t>(least(bytes, inlined ? kInlineMost : least(there, abi::kMaxMessageBytes))), inlined};
}

// Reads what will travel in the queue. On the `cpu` device a bad address then ends the kernel here,
// before blocks are reserved, and not between reserving and submitting, which would break the QP.
OXSHMEM_DEVICE void probe_inlined(const void *src, const Piece &piece) {
    if (piece.inlined) {
        port::probe(src, piece.bytes);
    }
}

OXSHMEM_DEVICE uint32_t blocks_of(const Piece &piece) {
    return piece.inlined ? inline_blocks(piece.bytes) : 1;
}

// Orders what the caller has stored to the local side of a transfer before the HCA reads it, or
// writes to it, where that is not memory of the heap: it may be the host's, which the fence before
// the doorbell need not reach.
OXSHMEM_LAZY OXSHMEM_DEVICE void source_fence(const void *local) {
    if (port::state().queues_in_device_memory != 0 && !in_heap(local, 1)) {
        port::fence<order::acq_rel, reach::system>();
    }
}

OXSHMEM_LAZY OXSHMEM_DEVICE void write_piece(const Slot &slot, const Located &remote, const void *src, const Piece &piece,
                                             uint32_t card, bool signaled) {
    if (piece.inlined) {
        slot.inline_header(remote, piece.bytes, signaled);
        slot.inline_bytes(src, piece.bytes);
    } else {
        source_fence(src);
        slot.transfer(Opcode::rdma_write, remote, locate_local(src, card), piece.bytes, signaled);
    }
}

// What was posted of a put or get: `end` as the operations answer it.
struct Posted {
    uint64_t end;
    uint64_t bytes;
};

// Posts all pieces: `next(dst, src, bytes)` the first one of what is left. `live`: variables of the
// caller that are in local memory meanwhile.
template <class Next, class... T>
OXSHMEM_DEVICE uint64_t post_pieces(void *dst, const void *src, uint64_t bytes, Next next, T &...live) {
    uint64_t end = 0;
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    while (bytes != 0) {
        const Posted posted = keeping([&] { return next(to, from, bytes); }, to, from, bytes, live...);
        end = posted.end;
        if (end == 0) {
            return 0;
        }
        to += posted.bytes;
        from += posted.bytes;
        bytes -= posted.bytes;
    }
    return end;
}

// Posts the next piece. A function of its own, and so is the loop around it: together they need
// more registers than there are.
template <class Queue> OXSHMEM_OUTLINE Posted put_piece(void *dst, const void *src, uint64_t bytes, int pe, Queue queue) {
    uint32_t card = card_of(queue, pe);
    Piece piece = next_piece(dst, src, bytes);
    Located remote = locate_remote(dst, pe, card);
    probe_inlined(src, piece);
    const uint64_t end = post(
        queue, qp_of(pe, queue), blocks_of(piece),
        [&](const Slot &slot, bool signaled) { write_piece(slot, remote, src, piece, card, signaled); }, remote, src, piece,
        card);
    return {end, piece.bytes};
}

// Whether a put to a peer that is not direct is a single work request of this GPU's, as most are:
// of more bytes than travel in the queue, and fewer than may be staged, between chunks of the heap.
// It has no other error than the network's then. The conditions do not depend on each other, so
// that the thread waits once for all that it has to load.
OXSHMEM_DEVICE bool is_one_transfer(const void *dst, const void *src, uint64_t bytes) {
    const uint64_t room = port::state().heap_bytes, to = offset_of(dst), from = offset_of(src);
    const bool size = (bytes > port::state().inline_up_to) & (bytes <= port::state().direct_up_to);
    // The heap ends where a chunk does.
    return (to < room) & (from < room) & size & in_one_chunk(to, bytes) & in_one_chunk(from, bytes);
}
OXSHMEM_DEVICE bool is_one_transfer(const void *dst, const void *src, uint64_t bytes, int pe) {
    return posts_to(pe) & is_one_transfer(dst, src, bytes);
}

// Posts a put for which is_one_transfer holds.
template <class C> OXSHMEM_DEVICE uint64_t transfer(C context, void *dst, const void *src, uint64_t bytes, int pe) {
    const auto queue = queue_for(context, Use::data);
    const uint32_t card = card_of(queue, pe);
    Located remote{}, local{};
    return post_preparing(
        queue, qp_of(pe, queue), OneBlock{}, [&] { remote = locate_remote(dst, pe, card), local = locate_local(src, card); },
        [&](const Slot &slot, bool signaled) {
            slot.transfer(Opcode::rdma_write, remote, local, static_cast<uint32_t>(bytes), signaled);
        },
        remote, local, bytes);
}

OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t network_transfer(DefaultContext context, void *dst, const void *src, uint64_t bytes,
                                                      int pe) {
    return transfer(context, dst, src, bytes, pe);
}

// Posts it by a lane that has the context for itself. Returns 0 where the queue may have no room.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t transfer_alone(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    const uint32_t card = card_of(queue, pe);
    return post_alone(queue, *queue.qp, [&](const Slot &slot) {
        slot.transfer(Opcode::rdma_write, locate_remote(dst, pe, card), locate_local(src, card), static_cast<uint32_t>(bytes),
                      true);
    });
}

// The same in a context. What the short way finds no room for goes the long one, by a function of
// its own for its registers.
OXSHMEM_LAZY OXSHMEM_NOINLINE uint64_t transfer_in(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    return transfer(queue, dst, src, bytes, pe);
}

OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t network_transfer(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    const uint64_t end = posts_alone(queue) ? transfer_alone(queue, dst, src, bytes, pe) : 0;
    return end != 0 ? end : transfer_in(queue, dst, src, bytes, pe);
}

// A put of one transfer by one lane that has the context for itself, as p_for_itself is.
OXSHMEM_LAZY OXSHMEM_DEVICE bool put_for_itself(ContextQp queue, void *dst, const void *src, uint64_t bytes, int pe) {
    return posts_alone(queue) && is_one_transfer(dst, src, bytes, pe) && transfer_alone(queue, dst, src, bytes, pe) != 0;
}

// The same by a lane that posts by itself in the default context.
OXSHMEM_LAZY OXSHMEM_DEVICE bool put_for_itself(DefaultContext context, void *dst, const void *src, uint64_t bytes, int pe) {
    if (!port::is_single() || !is_one_transfer(dst, src, bytes, pe)) {
        return false;
    }
    const uint32_t queue = queue_for(context, Use::data);
    const uint32_t card = card_of(queue, pe);
    Located remote{}, local{};
    post_single(
        queue, qp_of(pe, queue), [&] { remote = locate_remote(dst, pe, card), local = locate_local(src, card); },
        [&](const Slot &slot) { slot.transfer(Opcode::rdma_write, remote, local, static_cast<uint32_t>(bytes), true); });
    return true;
}

// Posts a put on QP `queue` of those to `pe`.
template <class Queue> OXSHMEM_DEVICE uint64_t put_pieces(void *dst, const void *src, uint64_t bytes, int pe, Queue queue) {
    return post_pieces(
        dst, src, bytes, [&](void *to, const void *from, uint64_t left) { return put_piece(to, from, left, pe, queue); }, pe,
        queue);
}

template <class C> OXSHMEM_DEVICE uint64_t network_put(C context, void *dst, const void *src, uint64_t bytes, int pe) {
    return by_proxy() ? ibrc_put(dst, src, bytes, pe) : put_pieces(dst, src, bytes, pe, queue_for(context, Use::data));
}

// Reads the next piece of a get into registered memory.
template <class C> OXSHMEM_OUTLINE Posted get_piece(C context, void *dst, const void *src, uint64_t bytes, int pe) {
    const auto queue = queue_for(context, Use::data);
    const uint32_t card = card_of(queue, pe);
    Located local = locate_local(dst, card);
    Located remote = locate_remote(src, pe, card);
    uint32_t part = static_cast<uint32_t>(least(least(bytes, remote.bytes), least(local.bytes, abi::kMaxMessageBytes)));
    source_fence(dst);
    const uint64_t end = post(
        queue, qp_of(pe, queue), OneBlock{},
        [&](const Slot &slot, bool signaled) { slot.transfer(Opcode::rdma_read, remote, local, part, signaled); }, remote,
        local, part);
    return {end, part};
}

// Reads the next piece of a get into a landing slot, and copies it from there.
template <class C> OXSHMEM_OUTLINE Posted get_landed(C context, void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    const auto queue = queue_for(at_once(context), Use::data);
    Qp &qp = qp_of(pe, queue);
    Located remote = locate_remote(src, pe, card_of(queue, pe));
    uint32_t part = static_cast<uint32_t>(least(least(bytes, remote.bytes), abi::kLandingBytes));
    // A bad address must not cost a landing slot either.
    port::probe(dst, part);
    LandingSlot landing;
    if (!take_landing(qp, landing)) {
        return {0, 0};
    }
    const auto posted = [&] {
        return post(
            queue, qp, OneBlock{},
            [&](const Slot &slot, bool signaled) {
                slot.transfer(Opcode::rdma_read, remote, locate_landing(qp, landing), part, signaled);
            },
            remote, landing, part);
    };
    uint64_t end = keeping(posted, dst, part, pe, op);
    if (!await_landing(qp, landing, end, op, part, dst)) {
        return {0, 0};
    }
    port::copy_bytes(dst, as<void>(landing_address(qp, landing)), part);
    landing.release();
    return {end, part};
}

// Reads the next piece of a get, in whichever way.
template <class C> OXSHMEM_OUTLINE Posted get_next(C context, void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    return registered(dst) != 0 ? get_piece(context, dst, src, bytes, pe) : get_landed(context, dst, src, bytes, pe, op);
}

// Reads into registered memory are left to the HCA; others are complete on return.
template <class C> OXSHMEM_DEVICE uint64_t network_get(C context, void *dst, const void *src, uint64_t bytes, int pe, Op op) {
    if (by_proxy()) {
        return ibrc_get(dst, src, bytes, pe, op);
    }
    return post_pieces(
        dst, src, bytes, [&](void *to, const void *from, uint64_t left) { return get_next(context, to, from, left, pe, op); },
        pe, op);
}

// Fetches one value; zero if that fails (the reason is recorded).
template <class C, class T> OXSHMEM_DEVICE T network_g(C context, const T *src, int pe) {
    if (by_proxy()) {
        return from_bits<T>(ibrc_g(src, sizeof(T), pe));
    }
    const auto queue = queue_for(at_once(context), Use::data);
    Qp &qp = qp_of(pe, queue);
    T value{};
    LandingSlot landing;
    if (!take_landing(qp, landing)) {
        return value;
    }
    Located remote = locate_remote(src, pe, card_of(queue, pe));
    uint64_t end = post(
        queue, qp, OneBlock{},
        [&](const Slot &slot, bool signaled) {
            slot.transfer(Opcode::rdma_read, remote, locate_landing(qp, landing), sizeof(T), signaled);
        },
        remote, landing);
    if (await_landing(qp, landing, end, Op::g)) {
        value = port::load<order::relaxed, reach::system>(as<T>(landing_address(qp, landing)));
        landing.release();
    }
    return value;
}

template <class C> OXSHMEM_OUTLINE void network_atomic(C context, void *target, AtomicRequest request, int pe) {
    if (by_proxy()) {
        ibrc_atomic(target, request, pe);
        return;
    }
    const auto queue = queue_for(context, Use::atomics);
    Qp &qp = qp_of(pe, queue);
    Located remote = locate_remote(target, pe, card_of(queue, pe));
    post(
        queue, qp, request.blocks(),
        [&](const Slot &slot, bool signaled) { slot.atomic(request, remote, discard(qp), signaled); }, remote, request);
}

// Like network_atomic, and returns what was there before. The HCA returns 8-byte results in host
// order and 4-byte results of extended atomics big-endian.
template <class C, class T> OXSHMEM_OUTLINE T network_fetch_atomic(C context, T *target, AtomicRequest request, int pe) {
    if (by_proxy()) {
        return from_bits<T>(ibrc_fetch_atomic(target, request, pe));
    }
    const auto queue = queue_for(at_once(context), Use::atomics);
    Qp &qp = qp_of(pe, queue);
    T value{};
    LandingSlot landing;
    if (!take_landing(qp, landing)) {
        return value;
    }
    Located remote = locate_remote(target, pe, card_of(queue, pe));
    const auto posted = [&] {
        return post(
            queue, qp, request.blocks(),
            [&](const Slot &slot, bool signaled) { slot.atomic(request, remote, locate_landing(qp, landing), signaled); },
            remote, request);
    };
    uint64_t end = keeping(posted, landing);
    if (await_landing(qp, landing, end, Op::atomic)) {
        if constexpr (sizeof(T) == 4) {
            const uint32_t bits = be(port::load<order::relaxed, reach::system>(as<uint32_t>(landing_address(qp, landing))));
            memcpy(&value, &bits, 4);
        } else {
            value = port::load<order::relaxed, reach::system>(as<T>(landing_address(qp, landing)));
        }
        landing.release();
    }
    return value;
}

OXSHMEM_LAZY OXSHMEM_DEVICE void write_signal(const Slot &slot, const Located &remote, const Located &discarded, uint64_t value,
                                              SignalOp op, bool signaled) {
    if (op == SignalOp::set) {
        slot.inline_word(remote, value, signaled);
    } else {
        slot.atomic(AtomicRequest::add(value), remote, discarded, signaled);
    }
}

template <class C> OXSHMEM_OUTLINE void network_signal(C context, uint64_t *signal, uint64_t value, SignalOp op, int pe) {
    if (by_proxy()) {
        ibrc_signal(signal, value, op, pe);
        return;
    }
    const auto queue = queue_for(at_once(context), use_of(op));
    Qp &qp = qp_of(pe, queue);
    Located remote = locate_remote(signal, pe, card_of(queue, pe));
    post(
        queue, qp, OneBlock{},
        [&](const Slot &slot, bool signaled) { write_signal(slot.signal_after(0), remote, discard(qp), value, op, signaled); },
        remote, value, op);
}

// Waits for everything that was posted on a QP before the call.
OXSHMEM_LAZY OXSHMEM_DEVICE Outcome complete_posted(Qp &qp, Op op) {
    // This load first: the other lets no later one pass, and both are on their way together.
    const uint64_t gate = port::load<order::relaxed, reach::device>(&qp.gate);
    const uint64_t known = known_completed(qp);
    return wait_completed(qp, known, known >= abi::kBroken ? known : reserved_in(gate, known), op);
}

// Calls `act(index)` for the bits that are set among the first `bits` from `used` on, of which each
// of `size` lanes, all of which call with their `rank`, takes a share.
template <class Act> OXSHMEM_DEVICE void for_bits(uint64_t *used, uint32_t bits, uint32_t rank, uint32_t size, Act act) {
    const uint32_t words = (bits + 63) / 64;
    // Lanes share the QPs of a word in groups of 64 or 32; a lane that is left over has nothing to
    // do.
    const uint32_t group = size >= 64 ? 64 : size >= 32 ? 32 : 1, groups = size / group;
    const uint64_t pattern = group == 64 ? 1 : group == 32 ? 0x100000001 : ~0ull;
    const uint64_t mine = pattern << rank % group;
    for (uint32_t word = rank / group < groups ? rank / group : words; word < words; word += groups) {
        uint64_t found = mine & port::load<order::relaxed, reach::device>(used + word);
        for (; found != 0; found &= found - 1) {
            act(word * 64 + port::lowest_bit(found));
        }
    }
}

// The same for the QPs of the default context that were used.
template <class Act> OXSHMEM_DEVICE void for_used(uint32_t rank, uint32_t size, Act act) {
    const abi::State &s = port::state();
    for_bits(as<uint64_t>(s.used), static_cast<uint32_t>(s.n_pes) * s.qps_per_pe, rank, size, act);
}

// Posts a read after what was posted to a QP, unless nothing was since the last one. A completion
// does not say that what was written is visible: it may be on its way across PCIe. Later writes of
// the same card come after it. Nothing orders those of another card, or the loads of a PE that has
// learnt of the completion in another way than through the card. A card's read arrives after its
// writes, so these are visible once it is complete.
template <class Queue> OXSHMEM_DEVICE void post_flush(Queue queue, Qp &qp) {
    const uint64_t completed = port::load<order::relaxed, reach::device>(&qp.completed);
    const uint64_t posted = reserved_in(port::load<order::relaxed, reach::device>(&qp.gate), completed);
    if (completed >= abi::kBroken || posted <= port::load<order::relaxed, reach::device>(&qp.flushed_at)) {
        return;
    }
    Located remote = locate_remote(as<void>(port::state().heap_base), qp.pe, card_of(queue, qp.pe));
    const uint64_t end = post(
        queue, qp, OneBlock{},
        [&](const Slot &slot, bool signaled) {
            slot.transfer(Opcode::rdma_read, remote, discard(qp), sizeof(uint64_t), signaled);
        },
        remote);
    port::raise_to<order::relaxed, reach::device>(&qp.flushed_at, end);
}

// post_flush for the caller's share of the QPs that were used. Seldom called, and a function of its
// own for its registers.
OXSHMEM_LAZY OXSHMEM_NOINLINE void post_flushes(uint32_t rank, uint32_t size) {
    const abi::State &s = port::state();
    for_used(rank, size, [&](uint32_t index) { post_flush(index % s.qps_per_pe, as<Qp>(s.qps)[index]); });
}

// Waits for everything that was posted on any QP before the call. `size` lanes call, each with its
// `rank`, and each waits for its share of the QPs: a look at a CQE takes a round trip to memory.
// One that fails (its error is recorded) keeps it from none of the others.
OXSHMEM_LAZY OXSHMEM_OUTLINE void network_quiet(uint32_t rank, uint32_t size) {
    if (by_proxy()) {
        if (rank == 0) {
            ibrc_quiet();
        }
        return;
    }
    const abi::State &s = port::state();
    if (s.flush_on_quiet != 0) {
        post_flushes(rank, size);
    }
    for_used(rank, size, [&](uint32_t index) { complete_posted(as<Qp>(s.qps)[index], Op::quiet); });
}

// The QPs of the default context that were used, as far as the caller can know before it has
// fenced, if one word tells them; or 0.
OXSHMEM_LAZY OXSHMEM_DEVICE uint64_t used_before_fence() {
    const abi::State &s = port::state();
    if (by_proxy() || s.flush_on_quiet != 0 || static_cast<uint32_t>(s.n_pes) * s.qps_per_pe > 64) {
        return 0;
    }
    return port::load<order::relaxed, reach::device>(as<uint64_t>(s.used));
}

// network_quiet by one lane, where everything was posted to one QP, and completes soon. It stands
// where the call is, as put_for_itself does. `used`: used_before_fence. False: nothing was done.
OXSHMEM_LAZY OXSHMEM_DEVICE bool quiet_soon(uint64_t used) {
    if (used == 0 || (used & (used - 1)) != 0) {
        return false;
    }
    const abi::State &s = port::state();
    Qp &qp = as<Qp>(s.qps)[port::lowest_bit(used)];
    // All on their way together; the last one lets no later one pass.
    const Watch watch = watch_of(qp);
    const uint64_t now = port::load<order::relaxed, reach::device>(as<uint64_t>(s.used));
    const uint64_t gate = port::load<order::relaxed, reach::device>(&qp.gate);
    const uint64_t known = known_completed(qp);
    if (now != used || known >= abi::kBroken || !completes_soon(qp, watch, known, reserved_in(gate, known))) {
        return false;
    }
    port::acquire<reach::system>(as<uint64_t>(watch.cqe + 56));
    return true;
}

// A bit in what put_signal returns: the index is one of the block's queue for atomics.
constexpr uint64_t kOnAtomicQueue = 1ull << 63;

// Waits until what an operation to `pe` answered is complete.
template <class C> OXSHMEM_OUTLINE void network_wait(C context, uint64_t end, int pe, Op op) {
    if (by_proxy()) {
        ibrc_wait(end, pe, op);
    } else {
        Qp &qp = qp_of(pe, queue_for(context, (end & kOnAtomicQueue) != 0 ? Use::atomics : Use::data));
        wait_completed(qp, known_completed(qp), end & ~kOnAtomicQueue, op);
    }
}

// A put of a single piece and its signal, which share a reservation and a doorbell.
template <class C>
OXSHMEM_OUTLINE uint64_t put_piece_and_signal(C context, void *dst, const void *src, Piece piece, uint64_t *signal,
                                              uint64_t value, SignalOp op, int pe) {
    const auto queue = queue_for(at_once(context), use_of(op));
    const uint32_t card = card_of(queue, pe);
    Qp &qp = qp_of(pe, queue);
    uint32_t data_blocks = blocks_of(piece);
    probe_inlined(src, piece);
    const uint64_t end = post(
        queue, qp, data_blocks + 1,
        [&](const Slot &slot, bool signaled) {
            write_piece(slot, locate_remote(dst, pe, card), src, piece, card, false);
            write_signal(slot.signal_after(data_blocks), locate_remote(signal, pe, card), discard(qp), value, op, signaled);
        },
        dst, src, piece, signal, value, op, pe, data_blocks);
    return op == SignalOp::set || end == 0 ? end : end | kOnAtomicQueue;
}

// Data, if there is any, then its signal on the same QP. Returns what completes the data.
template <class C>
OXSHMEM_DEVICE uint64_t network_put_signal(C context, void *dst, const void *src, uint64_t bytes, uint64_t *signal,
                                           uint64_t value, SignalOp op, int pe) {
    uint64_t end = 0;
    if (bytes != 0 && by_proxy()) {
        end = ibrc_put(dst, src, bytes, pe);
        if (atomic_queue() != block_queue() && op != SignalOp::set) {
            ibrc_quiet();
        }
    } else if (bytes != 0) {
        const Piece piece = next_piece(dst, src, bytes);
        if (piece.bytes == bytes) {
            return put_piece_and_signal(context, dst, src, piece, signal, value, op, pe);
        }
        // On the signal's QP, which keeps them in order. Another card's write could become visible
        // after the signal, even if it is acknowledged before that.
        end = put_pieces(dst, src, bytes, pe, queue_for(context, use_of(op)));
        if (end == 0) {
            return 0;
        }
        end |= op == SignalOp::set ? 0 : kOnAtomicQueue;
    }
    network_signal(context, signal, value, op, pe);
    return end;
}

// Orders what was posted on a QP before the call before what is posted after it.
OXSHMEM_DEVICE void fence_posted(Qp &qp) {
    const uint64_t completed = port::load<order::relaxed, reach::device>(&qp.completed);
    const uint64_t posted = reserved_in(port::load<order::relaxed, reach::device>(&qp.gate), completed);
    if (posted > completed) {
        port::raise_to<order::relaxed, reach::device>(&qp.fence_at, posted);
    }
}

// Orders what this block has posted to each PE before what it posts or stores there later. Each of
// its QPs keeps its requests in order by a mark on the next one. It waits where that is not enough:
// for atomics on memory that stores reach as well, which could overtake them, and where atomics use
// another card than the rest.
OXSHMEM_LAZY OXSHMEM_OUTLINE void network_fence() {
    const abi::State &s = port::state();
    if (by_proxy()) {
        if (atomics_by_network() || s.atomics_on_first_card != 0) {
            ibrc_quiet();
        } else {
            ibrc_fence();
        }
        return;
    }
    const uint32_t mine = block_queue(), atomics = atomic_queue();
    for_used(0, 1, [&](uint32_t index) {
        const uint32_t pe = index / s.qps_per_pe, queue = index - pe * s.qps_per_pe;
        Qp &qp = as<Qp>(s.qps)[index];
        if (queue != mine && queue != atomics) {
            return;
        }
        if (mine == atomics && !is_direct(static_cast<int>(pe))) {
            fence_posted(qp);
            return;
        }
        if (s.cards > 1) {
            post_flush(queue, qp);
        }
        complete_posted(qp, Op::quiet);
    });
}

// Waits for everything but atomics that this block has posted to `pe` by IBGDA.
OXSHMEM_LAZY OXSHMEM_DEVICE void network_complete(int pe, Op op) {
    complete_posted(qp_of(pe, block_queue()), op);
}

} // namespace oxshmem::detail
