// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The software HCA on the device: executes send queues that lie in memory which only kernels reach.
//
// The host half (hca/src/soft/gpu_engine/) launches one bounded slice after the other. A block of
// threads looks at its doorbell registers and serves the queue pairs that ring. It carries out what
// it finds well-formed and permitted. Everything else, from a key it does not know to a reserved
// bit that is set, stops the queue pair before that work request and is the host's to judge: there
// is one place that decides on errors, and it is the CPU engine's.
//
// This file has a slice from its start to its end. What it does with a queue pair is in soft_hca/:
// doorbells.h, decode.h, execute.h and turn.h.

#include "soft_hca/turn.h"

namespace oxshmem::soft {

// A card that moves nothing: what is posted is complete. One thread for each register.
OXSHMEM_DEVICE void complete_all(Tables &t, const Slice &slice, uint64_t start) {
    const uint32_t first = port::block_rank() + port::grid_blocks() * port::thread_rank();
    const uint32_t threads = port::grid_blocks() * port::block_threads();
    uint64_t busy = start;
    uint64_t doorbells = 0;
    for (uint32_t pass = 0;; ++pass) {
        bool any = false;
        for (uint32_t number = first; number < slice.registers; number += threads) {
            uint64_t value = slice.host_doorbells != 0 ? doorbell_of_host(t, slice, number) : 0;
            uint64_t *bell = register_at(t, number);
            uint64_t *const other = register_without_record_at(t, number);
            // Both are requested at once.
            const uint64_t without = slice.without_record != 0 ? port::load<order::relaxed, reach::system>(other) : 0;
            const uint64_t rung = port::load<order::relaxed, reach::system>(bell);
            if ((value | without | rung) == 0) {
                continue;
            }
            bell = without != 0 ? other : bell;
            any = true;
            value = value != 0 ? value : port::exchange<order::acquire, reach::system>(bell, uint64_t{0});
            const uint32_t place = (be(static_cast<uint32_t>(value >> 32)) >> 8) - kFirstQpn;
            if (place >= kQps || t.qps[place].state != kStateRts) {
                continue;
            }
            QpContext &qp = t.qps[place];
            const uint32_t posted = be(static_cast<uint32_t>(value)) >> 8 & 0xffff;
            // The CQE names the first block of the last work request: the last that looks like one.
            // All are requested at once.
            constexpr uint32_t kMost = 5;
            uint64_t heads[kMost];
            OXSHMEM_UNROLL
            for (uint32_t i = 0; i < kMost; ++i) {
                const uint64_t block = qp.sq + ((posted - 1 - i) & ((1u << qp.depth_log2) - 1)) * 64;
                heads[i] = port::load<order::relaxed, reach::device>(at<uint64_t>(block));
            }
            uint32_t last = posted - 1;
            OXSHMEM_UNROLL
            for (uint32_t i = kMost; i-- != 0;) {
                const uint32_t index = be(static_cast<uint32_t>(heads[i])) >> 8 & 0xffff;
                if (index == ((posted - 1 - i) & 0xffff) && be(static_cast<uint32_t>(heads[i] >> 32)) >> 8 == qp.qpn) {
                    last = posted - 1 - i;
                }
            }
            const uint64_t tail = static_cast<uint64_t>(be((last & 0xffff) << 16)) << 32 | be(qp.qpn);
            port::store<order::relaxed, reach::system>(at<uint64_t>(qp.cqe + 56), tail);
            doorbells += 1;
        }
        if (any || pass % 64 == 0) {
            const uint64_t now = port::clock_ns();
            busy = any ? now : busy;
            if (now - start >= slice.run_ns || now - busy >= slice.idle_ns ||
                port::load<order::relaxed, reach::device>(&t.control.leave) >= slice.number) {
                break;
            }
        }
        port::pause();
    }
    if (doorbells != 0) {
        port::fetch_add<order::relaxed, reach::device>(&t.control.served, uint64_t{1});
        port::fetch_add<order::relaxed, reach::device>(&t.counters[port::block_rank()].doorbells, doorbells);
        port::fetch_add<order::relaxed, reach::device>(&t.counters[port::block_rank()].cqes, doorbells);
    }
}

// Puts a register on the list of those that rang; `value`: what the host rang.
OXSHMEM_DEVICE void enlist(Tables &t, Shared &s, uint32_t number, uint64_t value) {
    const uint32_t place = port::fetch_add<order::relaxed, reach::block>(&s.rung, 1u);
    if (place < kThreads) {
        s.bells[place] = number;
        s.values[place] = value;
    } else if (value != 0) {
        // For a later pass.
        port::store<order::release, reach::system>(register_at(t, number), value);
    }
}

// Looks at the registers that the host rings, and at those in the tables that stand for them: what
// was put off is rung there. A short work request that came with its doorbell is executed here. All
// threads.
OXSHMEM_DEVICE void look_at_host(Tables &t, const Slice &slice, Shared &s) {
    const uint32_t blocks = port::grid_blocks();
    const uint32_t stride = blocks * (port::block_threads() / kLookers);
    const uint32_t first = port::block_rank() + blocks * (port::thread_rank() / kLookers);
    // The number of rounds is the same for all lanes of a warp.
    for (uint32_t base = 0; base < slice.registers; base += stride) {
        const uint32_t number = base + first;
        const bool mine = port::thread_rank() % kLookers == 0 && number < slice.registers;
        const uint64_t rung = mine ? port::load<order::relaxed, reach::system>(register_at(t, number)) : 0;
        const HostBell bell = rung_by_host(t, slice, number);
        if (bell.whole && rung == 0 && execute_at_once(t, s, bell, number)) {
            s.worked = 1;
        } else if ((rung | bell.doorbell) != 0) {
            enlist(t, s, number, bell.doorbell);
        }
    }
}

// A card that executes.
OXSHMEM_DEVICE void execute_all(Tables &t, const Slice &slice, uint64_t start) {
    OXSHMEM_SHARED(Shared, s);
    const uint32_t rank = port::thread_rank();
    if (rank == 0) {
        s.rung = s.worked = 0;
    }
    uint64_t busy = start;
    for (uint32_t pass = 0;; ++pass) {
        if (rank == 0) {
            const uint64_t now = port::clock_ns();
            if (s.worked != 0) {
                busy = now;
                s.worked = 0;
            }
            // Others may still be looking at a 0.
            if (s.rung != 0) {
                s.rung = 0;
            }
            // At least one look at the registers, and an eye on `leave` every few of them.
            s.leave = (pass != 0 && (now - start >= slice.run_ns || now - busy >= slice.idle_ns)) ||
                      (pass % 8 == 0 && port::load<order::relaxed, reach::device>(&t.control.leave) >= slice.number);
        }
        port::sync_block();
        if (s.leave != 0) {
            return;
        }
        if (slice.host_doorbells != 0) {
            look_at_host(t, slice, s);
        } else {
            const uint32_t stride = port::grid_blocks() * port::block_threads();
            for (uint32_t i = port::block_rank() + port::grid_blocks() * rank; i < slice.registers; i += stride) {
                if (port::load<order::relaxed, reach::system>(register_at(t, i)) != 0) {
                    enlist(t, s, i, 0);
                }
            }
        }
        port::sync_block();
        const uint32_t rung = s.rung < kThreads ? s.rung : kThreads;
        for (uint32_t i = 0; i < rung; ++i) {
            serve(t, slice, s, s.bells[i], s.values[i]);
            port::sync_block();
        }
        if (rung != 0) {
            busy = port::clock_ns();
        } else {
            port::pause();
        }
    }
}

// Orders the calling thread's stores before its later loads, for everything in the system. The port
// layer's fences do not.
OXSHMEM_DEVICE void order_stores_before_loads() {
#ifdef __CUDA_ARCH__
    asm volatile("fence.sc.sys;" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// Reports that this block starts. False: the slice has been cancelled. All threads.
OXSHMEM_DEVICE bool enter(const Slice &slice) {
    OXSHMEM_SHARED(uint32_t, entered);
    Gate &gate = *at<Gate>(slice.gate);
    if (port::thread_rank() == 0) {
        port::store<order::relaxed, reach::system>(&gate.blocks[port::block_rank()].started, slice.number);
        order_stores_before_loads();
        const uint64_t cancelled = port::load<order::acquire, reach::system>(&gate.cancelled);
        entered = cancelled < slice.number;
    }
    port::sync_block();
    return entered != 0;
}

// Reports that this block has ended: it touches nothing any more. All threads.
OXSHMEM_DEVICE void leave(const Slice &slice) {
    port::sync_block();
    if (port::thread_rank() == 0) {
        port::fence<order::acq_rel, reach::system>();
        port::store<order::release, reach::system>(&at<Gate>(slice.gate)->blocks[port::block_rank()].ended, slice.number);
    }
}

} // namespace oxshmem::soft

OXSHMEM_KERNEL(oxshmem_soft_hca, oxshmem::soft::Slice slice) {
    oxshmem::soft::Tables &tables = *oxshmem::soft::at<oxshmem::soft::Tables>(slice.tables);
    const uint64_t start = oxshmem::port::clock_ns();
    if (oxshmem::soft::enter(slice)) {
        if (slice.null != 0) {
            oxshmem::soft::complete_all(tables, slice, start);
        } else {
            oxshmem::soft::execute_all(tables, slice, start);
        }
    }
    oxshmem::soft::leave(slice);
}

// Atomics that HCAs of other nodes have requested: one thread.
OXSHMEM_KERNEL(oxshmem_soft_hca_atomics, oxshmem::soft::AtomicBatch *batch) {
    using namespace oxshmem::soft;
    for (uint64_t i = 0; i < batch->count; ++i) {
        WordAtomic &each = batch->atomics[i];
        Request request{};
        request.opcode = each.add != 0 ? Opcode::masked_fa : Opcode::masked_cs;
        request.remote = each.word;
        request.operand = each.operand;
        request.compare = each.compare;
        request.mask = each.mask;
        request.compare_mask = each.compare_mask;
        each.old = each.width == 8 ? atomic<uint64_t>(request) : atomic<uint32_t>(request);
    }
    oxshmem::port::store<order::release, reach::system>(&batch->done, batch->number);
}
