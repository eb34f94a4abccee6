// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A turn of a queue pair: which work requests run side by side, which wait for those before them,
// and where the queue pair stops.
//
// Work requests of a queue pair execute side by side, and their payloads become visible in any
// order. Those with a fence mode (fence or strong ordering) start when all before them is visible,
// and so do reads and atomics of a place that one before them touches. Where the queue pair is in
// order, as a card's, each starts when all before it is visible. A CQE comes after all it covers.

#pragma once

#include "doorbells.h"
#include "execute.h"

namespace oxshmem::soft {

// Hands the queue pair to the host. The leader alone.
OXSHMEM_DEVICE void trap(Tables &t, const Slice &slice, uint32_t place) {
    t.qps[place].trap = 1;
    port::fence<order::acq_rel, reach::system>();
    tell_host(t, EventKind::trap, place, 0);
    // The host looks when the slice has ended.
    port::fetch_max<order::relaxed, reach::device>(&t.control.leave, slice.number);
}

// Takes a doorbell in: whether a queue pair gets a turn. The leader alone.
OXSHMEM_DEVICE bool answer(Tables &t, const Slice &slice, Shared &s, uint32_t number, uint64_t value) {
    // Acquire: the doorbell record and what it covers were written before.
    s.value = value != 0 ? value : port::exchange<order::acquire, reach::system>(register_at(t, number), uint64_t{0});
    if (s.value == 0) {
        return false;
    }
    port::fetch_add<order::relaxed, reach::device>(&t.counters[port::block_rank()].doorbells, uint64_t{1});
    const uint32_t second = be(static_cast<uint32_t>(s.value >> 32));
    const uint32_t place = (second >> 8) - kFirstQpn;
    QpContext *const qp = &t.qps[place < kQps ? place : 0];
    // All at once, instead of one after the other.
    const uint32_t qpn = qp->qpn, page = qp->uar_page, state = qp->state, depth_log2 = qp->depth_log2;
    const uint32_t bell = qp->bell, trapped = qp->trap, peer = qp->peer;
    const uint64_t dbr = qp->dbr, consumer = qp->consumer, moved = qp->moved;
    // libmlx5 leaves the size of the last work request in the low bits.
    if (place >= kQps || (second & 0xc0) != 0 || qpn != second >> 8 || page != number / kRegistersPerPage + 1 ||
        (bell != 0 && bell != number + 1)) {
        tell_host(t, EventKind::doorbell, number, s.value);
        port::fetch_max<order::relaxed, reach::device>(&t.control.leave, slice.number);
        return false;
    }
    qp->bell = number + 1;
    watch_of(t, number).peer = peer;
    if (trapped != 0) {
        // The host rings again when it is done.
        return false;
    }
    const uint32_t word = be(port::load<order::acquire, reach::system>(at<uint32_t>(dbr)));
    s.place = place;
    s.consumer = consumer;
    s.moved = moved;
    s.available = (word - static_cast<uint32_t>(consumer)) & 0xffff;
    if (state != kStateRts || word >> 16 != 0 || s.available > 1u << depth_log2) {
        trap(t, slice, place);
        return false;
    }
    return true;
}

// Finds where work requests start among the first `count` blocks.
OXSHMEM_DEVICE void find_starts(Shared &s, uint32_t count) {
    const uint32_t rank = port::thread_rank();
    if (rank < count) {
        s.starts[rank] = s.several == 0 ? 1 : 0;
    }
    if (rank == 0) {
        s.blocks = count;
    }
    if (s.several != 0) {
        port::sync_block();
        if (rank == 0) {
            uint32_t block = 0;
            while (block < count && block + s.sizes[block] <= count) {
                s.starts[block] = 1;
                block += s.sizes[block];
            }
            s.blocks = block;
        }
    }
    port::sync_block();
}

// Returns the next work request after `from` that starts when all before it is visible, at most
// `end`.
OXSHMEM_DEVICE uint32_t next_ordered(const Shared &s, uint32_t from, uint32_t end) {
    for (uint32_t i = from + 1; i < end; i = (i / 32 + 1) * 32) {
        const uint32_t bits = s.ordered[i / 32] & ~0u << i % 32;
        if (bits != 0) {
            const uint32_t next = i / 32 * 32 + port::lowest_bit(bits);
            return next < end ? next : end;
        }
    }
    return end;
}

OXSHMEM_DEVICE void stop_at(uint32_t &where, uint32_t block) {
    port::fetch_max<order::relaxed, reach::block>(&where, kThreads - block);
}

// One step of a queue pair: up to a block of the queue for each thread. All threads. False ends the
// turn.
OXSHMEM_DEVICE bool step(Tables &t, const Slice &slice, Shared &s) {
    const uint32_t rank = port::thread_rank();
    const uint32_t threads = port::block_threads();
    QpContext &qp = t.qps[s.place];
    if (rank == 0) {
        s.several = s.stop = s.trap = s.looks = s.copied = s.signaled = s.wqes = 0;
        s.partial = s.bytes = 0;
    }
    if (rank < kThreads / 32) {
        s.ordered[rank] = 0;
    }
    port::sync_block();

    const uint32_t count = s.available < threads ? s.available : threads;
    Reader reader{t, qp, s.consumer + rank};
    port::vec16 control{};
    if (rank < count) {
        reader.read_head();
        control = reader.segment(0);
        const uint32_t segments = be(control.y) & 0x3f;
        s.sizes[rank] = static_cast<uint8_t>(segments == 0 ? 1 : (segments + 3) / 4);
        if (segments > 4) {
            s.several = 1;
        }
    }
    port::sync_block();
    find_starts(s, count);

    const bool mine = rank < s.blocks && s.starts[rank] != 0;
    Request request{};
    if (mine) {
        if (!decode(reader, control, request)) {
            stop_at(s.trap, rank);
            stop_at(s.stop, rank);
        } else if (request.bytes > kLarge) {
            // It executes alone.
            stop_at(s.stop, rank == 0 ? s.sizes[0] : rank);
        }
        if (control.z >> 29 >= 2 || qp.in_order != 0) {
            port::fetch_or<order::relaxed, reach::block>(&s.ordered[rank / 32], 1u << rank % 32);
        }
    }
    const bool looks = mine && request.opcode != Opcode::write && request.remote != 0;
    if (looks) {
        s.looks = 1;
    }
    if (rank < count) {
        s.touched[rank] = {request.remote, request.remote + request.bytes};
    }
    port::sync_block();
    if (s.looks != 0) {
        // Reads and atomics find what was posted before them to the same place.
        bool meets = false;
        for (uint32_t i = 0; looks && i < rank && !meets; ++i) {
            meets = s.touched[i].first < request.remote + request.bytes && request.remote < s.touched[i].behind;
        }
        if (meets) {
            port::fetch_or<order::relaxed, reach::block>(&s.ordered[rank / 32], 1u << rank % 32);
        }
        port::sync_block();
    }

    const uint32_t limit = kThreads - s.stop;
    const uint32_t end = limit < s.blocks ? limit : s.blocks;
    for (uint32_t from = 0; from < end;) {
        const uint32_t to = next_ordered(s, from, end);
        if (mine && rank >= from && rank < to) {
            execute(s, reader, request);
        }
        port::sync_block();
        if (s.copied != 0) {
            carry(t, qp, s);
            port::sync_block();
        }
        if (to < end) {
            if (rank == 0) {
                // Untouched if it is 0: no block has met since others looked at it then.
                if (s.copied != 0) {
                    s.copied = 0;
                }
                port::fence<order::acq_rel, reach::system>();
            }
            port::sync_block();
        }
        from = to;
    }
    if (s.partial != 0) {
        if (rank == 0) {
            qp.moved = s.partial;
        }
        return false;
    }

    const bool done = mine && rank < end;
    const bool signaled = done && (control.z >> 24 & 0x08) != 0;
    if (done) {
        port::fetch_add<order::relaxed, reach::block>(&s.wqes, 1u);
        port::fetch_add<order::relaxed, reach::block>(&s.bytes, request.bytes);
    }
    if (signaled) {
        port::fetch_max<order::relaxed, reach::block>(&s.signaled, rank + 1);
    }
    port::sync_block();
    if (signaled && s.signaled == rank + 1) {
        s.cqe_opcode = be(control.x) & 0xff;
        s.cqe_bytes = static_cast<uint32_t>(request.bytes);
    }
    port::sync_block();
    if (rank == 0) {
        BlockCounters &counters = t.counters[port::block_rank()];
        port::fetch_add<order::relaxed, reach::device>(&counters.wqes, uint64_t{s.wqes});
        port::fetch_add<order::relaxed, reach::device>(&counters.bytes, s.bytes);
        port::fetch_add<order::relaxed, reach::device>(&counters.cqes, uint64_t{s.signaled != 0});
        qp.consumer = s.consumer + end;
        qp.moved = 0;
        // All payload before the CQE, and before anything of a later step.
        port::fence<order::acq_rel, reach::system>();
        if (s.signaled != 0) {
            write_cqe(qp, s.cqe_opcode, s.consumer + s.signaled - 1, s.cqe_bytes);
        }
        s.consumer += end;
        s.moved = 0;
        s.available -= end;
        // Nothing before it ended the step; or the first work request is longer than what is
        // posted.
        if ((s.trap != 0 && s.trap == s.stop) || s.blocks == 0) {
            trap(t, slice, s.place);
            s.available = 0;
        }
    }
    port::sync_block();
    return s.available != 0;
}

// Gives the queue pair that rang in register `number` a turn; `value`: what the host rang. All
// threads.
OXSHMEM_DEVICE void serve(Tables &t, const Slice &slice, Shared &s, uint32_t number, uint64_t value) {
    if (port::thread_rank() == 0 && !answer(t, slice, s, number, value)) {
        s.available = 0;
    }
    port::sync_block();
    if (s.available == 0) {
        return;
    }
    uint32_t steps = 0;
    while (step(t, slice, s) && ++steps < kSteps) {
    }
    if (port::thread_rank() == 0) {
        port::fetch_add<order::relaxed, reach::device>(&t.control.served, uint64_t{1});
        if (s.available != 0) {
            // Others first. If it has rung meanwhile, that does as well.
            port::compare_exchange<order::relaxed, reach::system>(register_at(t, number), uint64_t{0}, s.value);
        }
    }
}

// Executes a work request that came with its doorbell, and needs no other thread. False: it is left
// to the whole block, as what the host has to judge is. The thread that found it alone.
OXSHMEM_DEVICE bool execute_at_once(Tables &t, Shared &s, const HostBell &bell, uint32_t number) {
    const port::vec16 control = bell.head[0];
    const uint32_t second = be(control.y);
    const uint32_t place = (second >> 8) - kFirstQpn;
    if (place >= kQps || (second & 0x3f) > 4) {
        return false;
    }
    QpContext &qp = t.qps[place];
    // A line of everything that decode() looks at, all requested at once: the key as well, should
    // there be one.
    const Key &key = t.remote_keys[((be(bell.head[1].z) >> 8) + static_cast<uint32_t>(bell.peer) * kPeerStride) % kRemoteKeys];
    const uint32_t rights = key.rights;
    const uint64_t length = key.length;
    const uint32_t qpn = qp.qpn, page = qp.uar_page, state = qp.state, remote_qpn = qp.remote_qpn, trapped = qp.trap;
    const uint64_t consumer = qp.consumer, moved = qp.moved;
    const uint32_t bound = qp.bell, cq_producer = qp.cq_producer;
    const bool fits = (qpn == second >> 8) & (page == number / kRegistersPerPage + 1) & (bound == number + 1) &
                      (state == kStateRts) & (trapped == 0) & (moved == 0) & (remote_qpn <= kAnyQp) & (length <= ~0ull >> 1) &
                      (rights <= 0xff) & (cq_producer <= 0xffffff);
    if (!fits) {
        return false;
    }
    // Were it not the next one, it would come earlier: the queue was read since.
    Reader reader{t, qp, consumer, {bell.head[0], bell.head[1], bell.head[2], bell.head[3]}};
    Request request{};
    if (!decode(reader, control, request) || (request.local != 0 && request.bytes > kSmall)) {
        return false;
    }
    execute(s, reader, request);
    qp.consumer = consumer + 1;
    BlockCounters &counters = t.counters[port::block_rank()];
    const bool signaled = (control.z >> 24 & 0x08) != 0;
    port::add_to<order::relaxed, reach::device>(&counters.doorbells, uint64_t{1});
    port::add_to<order::relaxed, reach::device>(&counters.wqes, uint64_t{1});
    port::add_to<order::relaxed, reach::device>(&counters.bytes, request.bytes);
    port::add_to<order::relaxed, reach::device>(&counters.cqes, uint64_t{signaled});
    port::add_to<order::relaxed, reach::device>(&t.control.served, uint64_t{1});
    // All payload before the CQE, and before anything later.
    port::fence<order::acq_rel, reach::system>();
    if (signaled) {
        write_cqe(qp, be(control.x) & 0xff, consumer, static_cast<uint32_t>(request.bytes));
    }
    return true;
}

} // namespace oxshmem::soft
