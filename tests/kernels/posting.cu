// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Posting where it is hardest: far more posters than the queue has room, lanes that go on before
// their leader, and posts that end in the middle. Run by pe/posting.rs with one queue pair to a
// peer.
#include "conformance.h"

namespace {

using namespace conformance;

// Mirrored in pe/posting.rs: the longest piece of a put that travels in the queue, which takes four
// blocks of it.
constexpr uint32_t kInlinedWords = 55;

OXSHMEM_DEVICE uint32_t word_of(uint64_t thread, uint32_t i) {
    return static_cast<uint32_t>(mix(thread * kInlinedWords + i));
}

} // namespace

// Each thread puts kInlinedWords words that are not registered to its part of `dst` at `pe`.
OXSHMEM_KERNEL(crowd, uint32_t *dst, int pe) {
    const uint64_t id = global_rank();
    uint32_t src[kInlinedWords];
    for (uint32_t i = 0; i < kInlinedWords; ++i) {
        src[i] = word_of(id, i);
    }
    oxshmem::putmem_nbi(oxshmem::thread, dst + id * kInlinedWords, src, sizeof(src), pe);
    oxshmem::quiet();
}

// What `crowd` by a grid of the same shape leaves.
OXSHMEM_KERNEL(crowd_out, const uint32_t *dst, Report *report) {
    const uint64_t id = global_rank();
    for (uint32_t i = 0; i < kInlinedWords; ++i) {
        EXPECT_EQ(report, dst[id * kInlinedWords + i], word_of(id, i));
    }
}

// Each lane of a warp puts a word of its own, on a queue pair that was never used, and completes
// it. `out`: how many blocks are complete when its quiet returns, which is more than the lane's
// place in the reservation.
OXSHMEM_KERNEL(quiet_of_each_lane, uint64_t *dst, uint64_t *out, int pe) {
    using namespace oxshmem::detail;
    oxshmem::p(dst + 2 * lane_id(), uint64_t{7}, pe);
    oxshmem::quiet();
    out[lane_id()] = load<order::relaxed, reach::device>(&qp_of(pe, 0).completed);
}

// The same with a fence. `out`: where requests come after a fence, or how many blocks are complete,
// whichever is further.
OXSHMEM_KERNEL(fence_of_each_lane, uint64_t *dst, uint64_t *out, int pe) {
    using namespace oxshmem::detail;
    oxshmem::p(dst + 2 * lane_id(), uint64_t{7}, pe);
    oxshmem::fence();
    const Qp &qp = qp_of(pe, 0);
    const uint64_t fence_at = load<order::relaxed, reach::device>(&qp.fence_at);
    const uint64_t completed = load<order::relaxed, reach::device>(&qp.completed);
    out[lane_id()] = fence_at > completed ? fence_at : completed;
}

// Puts and gets whose local side is at a bad address.
OXSHMEM_KERNEL(bad_source, uint64_t *at, uint64_t local, uint64_t bytes, int pe) {
    oxshmem::putmem_nbi(oxshmem::thread, at, reinterpret_cast<void *>(local), bytes, pe);
}
OXSHMEM_KERNEL(bad_put_signal, uint64_t *at, uint64_t local, uint64_t bytes, uint64_t *signal, int pe) {
    oxshmem::putmem_signal_nbi(oxshmem::thread, at, reinterpret_cast<void *>(local), bytes, signal, 1, oxshmem::SIGNAL_SET, pe);
}
OXSHMEM_KERNEL(bad_destination, uint64_t *at, uint64_t local, uint64_t bytes, int pe) {
    oxshmem::getmem(oxshmem::thread, reinterpret_cast<void *>(local), at, bytes, pe);
}

// Puts a word and fetches it again.
OXSHMEM_KERNEL(round_trip, uint64_t *at, uint64_t value, int pe, Report *report) {
    oxshmem::p(at, value, pe);
    oxshmem::quiet();
    EXPECT_EQ(report, oxshmem::g(at, pe), value);
}

// Fetches `count` times, in every form that uses a landing slot.
OXSHMEM_KERNEL(fetches, uint64_t *at, uint32_t count, int pe) {
    unsigned char local[32];
    for (uint32_t i = 0; i < count; ++i) {
        oxshmem::g(at, pe);
        oxshmem::atomic_fetch(at, pe);
        oxshmem::getmem(oxshmem::thread, local, at, sizeof(local), pe);
    }
}

// Puts `count` words by each thread.
OXSHMEM_KERNEL(put_words, uint64_t *at, uint32_t count, int pe) {
    for (uint32_t i = 0; i < count; ++i) {
        oxshmem::p(at, uint64_t{i}, pe);
    }
}

OXSHMEM_KERNEL(one_put, uint64_t *at, int pe) {
    oxshmem::p(at, uint64_t{1}, pe);
}

OXSHMEM_KERNEL(one_quiet) {
    oxshmem::quiet();
}
