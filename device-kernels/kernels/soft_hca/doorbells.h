// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Doorbells that the host rings in its own memory, and events that the kernel reports to the host.

#pragma once

#include "block.h"

namespace oxshmem::soft {

// What the host has rung.
struct HostBell {
    uint64_t doorbell;   // 0: nothing new
    bool whole;          // a work request came with it
    port::vec16 head[4]; // that, if so
    uint64_t peer;       // Watch::peer
};

OXSHMEM_DEVICE port::vec16 unseal(port::pair64 words, uint64_t displaced) {
    const uint64_t first = (words.first & ~1ull) | (displaced & 1);
    const uint64_t second = (words.second & ~1ull) | (displaced >> 1 & 1);
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(second),
            static_cast<uint32_t>(second >> 32)};
}

// Looks at the doorbell of a register in host memory, where no work requests come with them. Called
// by the one thread that looks at this one. What is new there, or 0.
OXSHMEM_DEVICE uint64_t doorbell_of_host(Tables &t, const Slice &slice, uint32_t number) {
    Watch &watch = watch_of(t, number);
    // Both are requested at once: the second crosses PCIe, and nothing overtakes it.
    const uint64_t before = port::load<order::relaxed, reach::device>(&watch.doorbell);
    const uint64_t *const words = at<uint64_t>(slice.host_doorbells) + number * kHostRegisterWords;
    const uint64_t value = port::load<order::acquire, reach::system>(words);
    if (before == value) {
        return 0;
    }
    watch.doorbell = value;
    return value;
}

constexpr uint32_t kLookers = 4; // lanes that look at a register in host memory together

// Looks at registers in host memory: all lanes of a warp, kLookers for each register. The first of
// these is told. Adjacent lanes have adjacent words, so that one read crosses PCIe, not one for
// each word. Which words make a work request, and why it cannot be torn: hca/src/soft/blueflame.rs.
OXSHMEM_DEVICE HostBell rung_by_host(Tables &t, const Slice &slice, uint32_t number) {
    const uint32_t looker = port::lane_id() % kLookers;
    port::pair64 mine{0, 0};
    uint64_t before = 0;
    HostBell bell{};
    if (number < slice.registers) {
        // All are requested at once.
        Watch &watch = watch_of(t, number);
        before = port::load<order::relaxed, reach::device>(&watch.doorbell);
        bell.peer = port::load<order::relaxed, reach::device>(&watch.peer);
        const uint64_t *const words = at<uint64_t>(slice.host_doorbells) + number * kHostRegisterWords;
        mine = port::load_pair<order::acquire, reach::system>(words + 2 * looker);
    }
    bool news = looker == 0 && mine.first != before;
    if (port::ballot(port::kWholeWarp, news) == 0) {
        return bell;
    }
    port::pair64 pairs[kLookers];
    OXSHMEM_UNROLL
    for (uint32_t i = 0; i < kLookers; ++i) {
        pairs[i] = port::shfl(port::kWholeWarp, mine, port::lane_id() - looker + i);
    }
    // The size of a work request, or 0, follows the number of the queue pair.
    bell.whole = news && (be(static_cast<uint32_t>(mine.first >> 32)) & 0xff) != 0;
    bell.doorbell = news ? mine.first : 0;
    if (bell.whole) {
        const uint64_t tag = mine.first & 1;
        uint64_t others = 0;
        OXSHMEM_UNROLL
        for (const port::pair64 &pair : pairs) {
            others |= (pair.first ^ tag) | (pair.second ^ tag);
        }
        const uint64_t displaced = pairs[0].second >> 56;
        pairs[0].second &= ~0ull >> 8;
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < kLookers; ++i) {
            bell.head[i] = unseal(pairs[i], displaced >> 2 * i);
        }
        // If not all words have the tag, the rest is on its way.
        news = (others & 1) == 0;
        bell.doorbell = news ? (mine.first & ~1ull) | (displaced & 1) : 0;
        bell.whole = news;
    }
    if (news) {
        watch_of(t, number).doorbell = mine.first;
    }
    return bell;
}

OXSHMEM_DEVICE void tell_host(Tables &t, EventKind kind, uint32_t place, uint64_t value) {
    const uint64_t number = port::fetch_add<order::relaxed, reach::device>(&t.control.events, uint64_t{1});
    Event &event = t.events[number % kEvents];
    event.kind = static_cast<uint32_t>(kind);
    event.place = place;
    event.value = value;
    port::store<order::release, reach::system>(&event.number, number + 1);
}

} // namespace oxshmem::soft
