// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Queue pairs under load, what device code writes into them, and programs whose order depends on
// them.
#include "conformance.h"

namespace {

using namespace conformance;
namespace abi = oxshmem::abi;

constexpr uint32_t kWideBytes = 100; // three blocks of queue
constexpr uint32_t kWideEvery = 8;   // rounds
constexpr uint32_t kSwapEvery = 32;
constexpr uint32_t kStateWords = 8;
constexpr uint32_t kSpreadLong = 600; // three work requests of four blocks
constexpr uint32_t kSpreadBytes = 2 * kWideBytes + kSpreadLong;

// Which of a thread's `count` rounds send what. No two requests write the same place, since nothing
// orders them.
OXSHMEM_DEVICE bool sends_wide(uint32_t i) {
    return i % kWideEvery == global_rank() % kWideEvery;
}
OXSHMEM_DEVICE bool sends_swap(uint32_t i) {
    return i % kSwapEvery == 9;
}

// How many of `count` rounds there are of a kind that comes once in `every`, at most.
OXSHMEM_DEVICE uint64_t most_of(uint32_t count, uint32_t every) {
    return (count + every - 1) / every;
}

} // namespace

// Each thread of each PE puts `count` words to `pe`, one request each, among them requests of two
// and three blocks and atomics. `words`: n_pes x threads x count, `wide`: n_pes x threads x count /
// kWideEvery (rounded up) x kWideBytes, `swapped`: n_pes x threads x count / kSwapEvery (rounded
// up).
OXSHMEM_KERNEL(flood, uint64_t *words, unsigned char *wide, uint64_t *swapped, uint64_t *sum, uint32_t count, int pe) {
    const uint64_t mine = static_cast<uint64_t>(oxshmem::my_pe()) * grid_threads() + global_rank();
    unsigned char local[kWideBytes];
    for (uint32_t i = 0; i < count; ++i) {
        // Neighbours' words lie `count` apart, so nothing combines.
        oxshmem::p(words + mine * count + i, mix(mine * count + i), pe);
        if (sends_wide(i)) {
            const uint64_t place = mine * most_of(count, kWideEvery) + i / kWideEvery;
            for (uint32_t k = 0; k < kWideBytes; ++k) {
                local[k] = static_cast<unsigned char>(mix(place) + k);
            }
            oxshmem::putmem_nbi(oxshmem::thread, wide + place * kWideBytes, local, kWideBytes, pe);
        }
        if (i % 16 == 3) {
            oxshmem::atomic_add(sum, uint64_t{1}, pe);
        }
        if (sends_swap(i)) {
            const uint64_t place = mine * most_of(count, kSwapEvery) + i / kSwapEvery;
            oxshmem::atomic_set(swapped + place, mix(~place), pe);
        }
        if (i % 64 == 33) {
            oxshmem::atomic_fetch_inc(sum, pe);
        }
    }
}

// What `flood` must have left, by PE `from` with the same shape.
OXSHMEM_KERNEL(flooded, const uint64_t *words, const unsigned char *wide, const uint64_t *swapped, uint32_t count, int from,
               Report *report) {
    const uint64_t theirs = static_cast<uint64_t>(from) * grid_threads() + global_rank();
    for (uint32_t i = 0; i < count; ++i) {
        EXPECT_EQ(report, words[theirs * count + i], mix(theirs * count + i));
        if (sends_wide(i)) {
            const uint64_t place = theirs * most_of(count, kWideEvery) + i / kWideEvery;
            for (uint32_t k = 0; k < kWideBytes; ++k) {
                EXPECT_EQ(report, wide[place * kWideBytes + k], static_cast<unsigned char>(mix(place) + k));
            }
        }
        if (sends_swap(i)) {
            const uint64_t place = theirs * most_of(count, kSwapEvery) + i / kSwapEvery;
            EXPECT_EQ(report, swapped[place], mix(~place));
        }
    }
}

// How far each queue pair to `pe` is: `kStateWords` words each, mirrored in pe/queues.rs. For a
// test that is stuck.
OXSHMEM_KERNEL(queue_state, uint64_t *out, int pe) {
    const abi::State &s = state();
    for (uint32_t i = 0; i < s.qps_per_pe; ++i) {
        const abi::Qp &qp = reinterpret_cast<const abi::Qp *>(s.qps)[static_cast<uint32_t>(pe) * s.qps_per_pe + i];
        uint64_t *words = out + uint64_t{i} * kStateWords;
        const uint64_t slot = qp.completed & ((1ull << qp.depth_log2) - 1);
        words[0] = qp.gate;
        words[1] = qp.rung;
        words[2] = qp.completed;
        words[3] = byte_swap(*reinterpret_cast<const uint32_t *>(qp.dbr));
        words[4] = *reinterpret_cast<const uint64_t *>(qp.doorbell);
        words[5] = byte_swap(*reinterpret_cast<const uint32_t *>(qp.cqe + 60)); // wqe_counter, signature, op_own
        words[6] = byte_swap(*reinterpret_cast<const uint32_t *>(qp.wq + slot * abi::kBlockBytes));
        words[7] = reinterpret_cast<const uint32_t *>(qp.stamps)[slot];
    }
}

// Blocks ever reserved on each queue pair to `pe`.
OXSHMEM_KERNEL(reserved_blocks, uint64_t *out, int pe) {
    const abi::State &s = state();
    for (uint32_t i = 0; i < s.qps_per_pe; ++i) {
        out[i] = reinterpret_cast<const abi::Qp *>(s.qps)[static_cast<uint32_t>(pe) * s.qps_per_pe + i].gate >>
                 abi::kGateReservedShift;
    }
}

// Each block, of one thread, sends to its part at `pe` a word, two puts and one that takes several
// work requests, each put with a signal: the first of them sets its own word of `set`, the others
// and a signal of its own add to `added`; and it adds to `sum` twice. pe/queues.rs counts the
// blocks of queue that this takes.
OXSHMEM_KERNEL(spread, uint64_t *words, unsigned char *data, uint64_t *sum, uint64_t *set, uint64_t *added, int pe) {
    const uint64_t block = block_rank();
    unsigned char local[kSpreadLong];
    for (uint32_t i = 0; i < kSpreadLong; ++i) {
        local[i] = static_cast<unsigned char>(mix(block) + i);
    }
    unsigned char *const to = data + block * kSpreadBytes;
    oxshmem::p(words + block, mix(block), pe);
    oxshmem::putmem_signal_nbi(oxshmem::thread, to, local, kWideBytes, set + block, block + 1, oxshmem::SIGNAL_SET, pe);
    oxshmem::putmem_signal(oxshmem::thread, to + kWideBytes, local, kWideBytes, added, 1, oxshmem::SIGNAL_ADD, pe);
    oxshmem::putmem_signal(oxshmem::thread, to + 2 * kWideBytes, local, kSpreadLong, added, 1, oxshmem::SIGNAL_ADD, pe);
    oxshmem::atomic_add(sum, uint64_t{1}, pe);
    oxshmem::atomic_fetch_inc(sum, pe);
    // Behind the word, on whatever queue pair that was.
    oxshmem::fence();
    oxshmem::signal_op(added, 1, oxshmem::SIGNAL_ADD, pe);
}

// What `spread` by a grid of the same shape leaves; waits for the signals alone.
OXSHMEM_KERNEL(spread_out, const uint64_t *words, const unsigned char *data, const uint64_t *set, const uint64_t *added,
               Report *report) {
    const uint64_t block = block_rank();
    oxshmem::signal_wait_until(set + block, oxshmem::CMP_EQ, block + 1);
    const unsigned char *const from = data + block * kSpreadBytes;
    for (uint32_t i = 0; i < kWideBytes; ++i) {
        EXPECT_EQ(report, from[i], static_cast<unsigned char>(mix(block) + i));
    }
    oxshmem::signal_wait_until(added, oxshmem::CMP_EQ, uint64_t{3} * grid_blocks());
    EXPECT_EQ(report, words[block], mix(block));
    for (uint32_t i = 0; i < kWideBytes; ++i) {
        EXPECT_EQ(report, from[kWideBytes + i], static_cast<unsigned char>(mix(block) + i));
    }
    for (uint32_t i = 0; i < kSpreadLong; ++i) {
        EXPECT_EQ(report, from[2 * kWideBytes + i], static_cast<unsigned char>(mix(block) + i));
    }
}

// What names memory in the work requests of queue pair 0 to `pe`. `at` is in the heap. Mirrored in
// pe/queues.rs.
struct Names {
    uint64_t qpn, reserved, depth, landing, landing_head, landing_mask, discard;
    uint64_t slab_lkey, lkey, rkey, offset;
};

OXSHMEM_KERNEL(queue_names, Names *out, const void *at, int pe) {
    const abi::State &s = state();
    const abi::Qp &qp = reinterpret_cast<const abi::Qp *>(s.qps)[static_cast<uint32_t>(pe) * s.qps_per_pe];
    const uint64_t offset = reinterpret_cast<uint64_t>(at) - s.heap_base;
    const uint32_t chunk = static_cast<uint32_t>(offset >> s.chunk_log2);
    out->qpn = qp.qpn;
    out->reserved = qp.gate >> abi::kGateReservedShift;
    out->depth = 1ull << qp.depth_log2;
    out->landing = qp.landing;
    out->landing_head = qp.landing_head;
    out->landing_mask = (1ull << qp.landing_log2) - 1;
    out->discard = qp.landing + (uint64_t{abi::kLandingBytes} << qp.landing_log2);
    out->slab_lkey = byte_swap(s.slab_lkeys[0]);
    out->lkey = byte_swap(reinterpret_cast<const uint32_t *>(s.lkeys)[chunk]);
    out->rkey = byte_swap(reinterpret_cast<const uint32_t *>(s.rkeys)[static_cast<uint32_t>(pe) * s.max_chunks + chunk]);
    out->offset = offset;
}

// The queue's bytes.
OXSHMEM_KERNEL(queue_bytes, unsigned char *out, int pe) {
    const abi::State &s = state();
    const abi::Qp &qp = reinterpret_cast<const abi::Qp *>(s.qps)[static_cast<uint32_t>(pe) * s.qps_per_pe];
    memcpy(out, reinterpret_cast<const void *>(qp.wq), static_cast<size_t>(abi::kBlockBytes) << qp.depth_log2);
}

// What names memory in the descriptors for `pe`, and how far the ring is. Mirrored in pe/proxy.rs.
struct RingNames {
    uint64_t head, depth, landing_head, landing_log2, lkey, rkey, offset;
};

OXSHMEM_KERNEL(ring_names, RingNames *out, const void *at, int pe) {
    const abi::State &s = state();
    const abi::Proxy &proxy = *reinterpret_cast<const abi::Proxy *>(s.proxy);
    const uint64_t offset = reinterpret_cast<uint64_t>(at) - s.heap_base;
    const uint32_t chunk = static_cast<uint32_t>(offset >> s.chunk_log2);
    out->head = proxy.head;
    out->depth = 1ull << proxy.depth_log2;
    out->landing_head = proxy.landing_head;
    out->landing_log2 = proxy.landing_log2;
    out->lkey = byte_swap(reinterpret_cast<const uint32_t *>(s.lkeys)[chunk]);
    out->rkey = byte_swap(reinterpret_cast<const uint32_t *>(s.rkeys)[static_cast<uint32_t>(pe) * s.max_chunks + chunk]);
    out->offset = offset;
}

// The ring's words.
OXSHMEM_KERNEL(ring_words, uint64_t *out) {
    const abi::Proxy &proxy = *reinterpret_cast<const abi::Proxy *>(state().proxy);
    const uint64_t words = (abi::kSlotBytes / 8) << proxy.depth_log2;
    for (uint64_t i = 0; i < words; ++i) {
        out[i] = load<order::relaxed, reach::system>(reinterpret_cast<const uint64_t *>(proxy.slots) + i);
    }
}

// The work requests that pe/queues.rs expects, in its order, and the descriptors that pe/proxy.rs
// does. `at`: 1 KiB in one chunk, after `at + 512` local data. One thread.
OXSHMEM_KERNEL(every_request, unsigned char *at, int pe) {
    using namespace oxshmem;
    unsigned char stack[100];
    for (uint32_t i = 0; i < sizeof(stack); ++i) {
        stack[i] = static_cast<unsigned char>(i * 3 + 1);
    }
    unsigned char *local = at + 512;
    for (uint32_t i = 0; i < 256; ++i) {
        local[i] = static_cast<unsigned char>(i ^ 0x5a);
    }
    auto *words = reinterpret_cast<uint64_t *>(at);
    auto *halves = reinterpret_cast<uint32_t *>(at);
    p(reinterpret_cast<uint8_t *>(at + 3), uint8_t{0xa5}, pe);
    p(reinterpret_cast<uint16_t *>(at + 6), uint16_t{0xb6c7}, pe);
    p(halves + 2, 0x11223344u, pe);
    p(words + 2, uint64_t{0x0102030405060708}, pe);
    putmem(oxshmem::thread, at + 33, local, 28, pe);
    putmem(oxshmem::thread, at + 70, local + 1, 29, pe);
    putmem(oxshmem::thread, at + 100, stack, 100, pe);
    getmem(oxshmem::thread, local, at + 8, 24, pe);
    g(reinterpret_cast<const uint16_t *>(at + 6), pe);
    atomic_add(words + 32, uint64_t{5}, pe);
    atomic_fetch_add(words + 32, ~uint64_t{0}, pe);
    atomic_compare_swap(words + 32, uint64_t{4}, uint64_t{0x1234567890abcdef}, pe);
    atomic_set(words + 33, uint64_t{0xfedcba9876543210}, pe);
    atomic_fetch_and(words + 33, uint64_t{0xff00ff00ff00ff00}, pe);
    atomic_or(words + 33, uint64_t{0x00000000000000f0}, pe);
    atomic_xor(words + 33, uint64_t{0x8000000000000001}, pe);
    atomic_add(halves + 70, 7u, pe);
    atomic_fetch_inc(halves + 70, pe);
    atomic_compare_swap(halves + 70, 8u, 0xdeadbeefu, pe);
    atomic_swap(halves + 71, 0xcafef00du, pe);
    atomic_and(halves + 71, 0x00ffff00u, pe);
    atomic_fetch_or(halves + 71, 0x0000000fu, pe);
    atomic_xor(halves + 71, 0x80000000u, pe);
    signal_op(words + 40, 77, SIGNAL_SET, pe);
    signal_op(words + 40, 3, SIGNAL_ADD, pe);
    putmem_signal(oxshmem::thread, at + 340, local, 64, words + 41, 9, SIGNAL_SET, pe);
    putmem_signal(oxshmem::thread, at + 404, local, 8, words + 41, 1, SIGNAL_ADD, pe);
    quiet();
}

// Block 0 puts a round's data; block 1, which uses another queue pair, signals that it is there;
// block 2 counts the rounds whose signal came before the data. Right only if block 0 completes its
// puts (`complete`) before it hands over.
OXSHMEM_KERNEL(flag_of_another_block, unsigned char *in, unsigned char *out, uint64_t bytes, uint64_t *signal,
               uint32_t *handover, uint32_t rounds, uint32_t complete, uint64_t *stale) {
    const int next = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    for (uint32_t round = 0; round < rounds; ++round) {
        if (block_rank() == 0) {
            oxshmem::putmem_nbi(oxshmem::block, in + round * bytes, out + round * bytes, bytes, next);
            if (complete != 0) {
                oxshmem::quiet(oxshmem::block);
            }
            sync_block();
            if (thread_rank() == 0) {
                store<order::release, reach::device>(handover, round + 1);
            }
        } else if (block_rank() == 1) {
            if (thread_rank() == 0) {
                while (load<order::acquire, reach::device>(handover) <= round) {
                    pause();
                }
                oxshmem::signal_op(signal, round + 1, oxshmem::SIGNAL_SET, next);
            }
        } else if (thread_rank() == 0) {
            oxshmem::signal_wait_until(signal, oxshmem::CMP_GE, round + 1);
            for (uint64_t i = 0; i < bytes; ++i) {
                if (peek(in + round * bytes + i) == 0) {
                    *stale += 1;
                    break;
                }
            }
        }
    }
}

// Each thread puts `count` parts of its own memory to the next PE, one byte to `most` long, each
// followed by a signal on the same queue pair, and looks at what the previous PE's thread has put
// when that one's signal is there. `in`, `out`: threads x count x most bytes; `signals`: one for
// each thread.
OXSHMEM_KERNEL(put_flood, unsigned char *in, unsigned char *out, uint64_t most, uint64_t *signals, uint32_t count,
               Report *report) {
    const int me = oxshmem::my_pe(), n = oxshmem::n_pes(), next = (me + 1) % n, previous = (me + n - 1) % n;
    const auto place = [&](uint32_t i) { return (global_rank() * count + i) * most; };
    const auto length = [&](uint32_t i) { return 1 + mix(place(i)) % most; };
    const auto byte = [](int pe, uint64_t at) { return static_cast<unsigned char>(mix(at / 8 + pe) >> at % 8 * 8); };
    for (uint32_t i = 0; i < count; ++i) {
        const uint64_t at = place(i);
        for (uint64_t k = 0; k < length(i); ++k) {
            out[at + k] = byte(me, at + k);
        }
        oxshmem::putmem_nbi(oxshmem::thread, in + at, out + at, length(i), next);
        oxshmem::signal_op(signals + global_rank(), 1, oxshmem::SIGNAL_ADD, next);
    }
    for (uint32_t i = 0; i < count; ++i) {
        oxshmem::signal_wait_until(signals + global_rank(), oxshmem::CMP_GE, i + 1);
        const uint64_t at = place(i);
        for (uint64_t k = 0; k < most; ++k) {
            EXPECT_EQ(report, peek(in + at + k), k < length(i) ? byte(previous, at + k) : 0);
        }
    }
    oxshmem::quiet();
}

// PEs 0 and 1, one block each. In turn, the threads of a block put `n` words of 4 bytes to the
// other PE, and one of them then sends a signal after a fence.
OXSHMEM_KERNEL(word_ping_pong, uint32_t *words, uint64_t *signal, uint32_t n, uint32_t turns, Report *report) {
    using Scope = oxshmem::block_scope;
    const int me = oxshmem::my_pe(), peer = 1 - me;
    const auto value = [](int pe, uint32_t turn, uint32_t i) { return static_cast<uint32_t>(mix(2 * turn + pe) + i); };
    const auto receive = [&](uint32_t turn) {
        if (Scope::rank() == 0) {
            oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, turn);
        }
        Scope::sync();
        for (uint32_t i = Scope::rank(); i < n; i += Scope::size()) {
            EXPECT_EQ(report, peek(words + i), value(peer, turn, i));
        }
        Scope::sync();
    };
    for (uint32_t turn = 1; turn <= turns; ++turn) {
        if (me == 1) {
            receive(turn);
        }
        for (uint32_t i = Scope::rank(); i < n; i += Scope::size()) {
            oxshmem::p(words + i, value(me, turn, i), peer);
        }
        Scope::sync();
        if (Scope::rank() == 0) {
            oxshmem::fence();
            oxshmem::signal_op(signal, turn, oxshmem::SIGNAL_SET, peer);
        }
        Scope::sync();
        if (me == 0) {
            receive(turn);
        }
    }
    if (Scope::rank() == 0) {
        oxshmem::quiet();
    }
}

// Puts to `pe` until the queue pair fails or `most` are done.
OXSHMEM_KERNEL(put_to, uint64_t *at, uint64_t value, int pe, uint32_t most) {
    for (uint32_t i = 0; i < most; ++i) {
        oxshmem::p(at, value, pe);
        oxshmem::quiet();
    }
}

OXSHMEM_KERNEL(put_and_signal, uint64_t *at, uint64_t value, uint64_t *signal, int pe) {
    oxshmem::p(at, value, pe);
    oxshmem::signal_op(signal, 1, oxshmem::SIGNAL_ADD, pe);
}

// Puts to a PE whose queue pair has failed and to one whose queue pair works, and completes both:
// `left` is what the latter (over the proxy: the ring) still had to complete then, in blocks or
// descriptors. One thread.
OXSHMEM_KERNEL(put_to_both, uint64_t *at, uint64_t value, int failed, int working, uint64_t *left) {
    const abi::State &s = state();
    oxshmem::p(at, value, failed);
    oxshmem::p(at, value, working);
    oxshmem::quiet();
    if (s.network == static_cast<uint32_t>(abi::Network::ibrc)) {
        const abi::Proxy &proxy = *reinterpret_cast<const abi::Proxy *>(s.proxy);
        const uint64_t *word = reinterpret_cast<const uint64_t *>(proxy.completed_word);
        *left = proxy.head - (load<order::acquire, reach::system>(word) & ~abi::kProxyFailed);
    } else {
        const abi::Qp &qp = reinterpret_cast<const abi::Qp *>(s.qps)[static_cast<uint32_t>(working) * s.qps_per_pe];
        *left = (qp.gate >> abi::kGateReservedShift) - qp.completed;
    }
}
