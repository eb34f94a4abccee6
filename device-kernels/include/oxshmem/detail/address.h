// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Symmetric addresses: checks, load/store translation, heap offsets and keys.
#pragma once

#include "error.h"

namespace oxshmem::detail {

template <class T> struct Undeduced { using type = T; };

// A parameter of this type takes no part in the deduction of T, so `atomic_add(&u64, 1, pe)` means
// what it says.
template <class T> using given = typename Undeduced<T>::type;

enum class Path { load_store, network, none };

// Whether `pe` is one of the PEs of the node that have consecutive numbers, whose heaps can be
// loaded from and stored to. Most direct PEs are, and one comparison of scalars says so. A
// condition that asks this before is_direct() leaves by one branch then: a function that asked both
// would compute its result first.
OXSHMEM_DEVICE bool is_in_run(int pe) {
    const abi::State &s = port::state();
    return static_cast<uint32_t>(pe - s.p2p_first) < s.p2p_run;
}

// Whether `pe`'s heap can be loaded from and stored to.
OXSHMEM_DEVICE bool is_direct(int pe) {
    if (is_in_run(pe)) {
        return true;
    }
    const abi::State &s = port::state();
    const uint32_t slot = static_cast<uint32_t>(pe - s.p2p_first);
    return slot < static_cast<uint32_t>(s.p2p_count) && (s.p2p_reach[slot / 64] >> slot % 64 & 1) != 0;
}

// Returns the path to `pe`; records an error and returns `none` when there is no path.
OXSHMEM_LAZY OXSHMEM_DEVICE Path path_to(int pe, Op op) {
    const abi::State &s = port::state();
    if (is_direct(pe)) {
        return Path::load_store;
    }
    if (static_cast<uint32_t>(pe) >= static_cast<uint32_t>(s.n_pes)) {
        raise(ErrorCode::pe_out_of_range, op, pe, 0, 0);
        return Path::none;
    }
    if (s.network == static_cast<uint32_t>(abi::Network::none)) {
        raise(ErrorCode::no_path, op, pe, 0, 0);
        return Path::none;
    }
    return Path::network;
}

// Whether all atomics on a PE's memory are those of a card, even where that memory can be loaded
// from and stored to: cards' atomics are not atomic with those of CPUs and GPUs.
OXSHMEM_DEVICE bool atomics_by_network() {
    return port::state().atomics_by_network != 0;
}

// Which way an atomic takes to `pe`; as path_to otherwise.
OXSHMEM_LAZY OXSHMEM_DEVICE Path atomic_path_to(int pe, Op op) {
    const Path path = path_to(pe, op);
    return path == Path::load_store && atomics_by_network() ? Path::network : path;
}

// Which of the QPs to each peer this block's operations use: always the same one, so they stay in
// order without waiting.
OXSHMEM_DEVICE uint32_t block_queue() {
    const abi::State &s = port::state();
    if (s.qps_per_pe == 1) {
        return 0;
    }
    // The branch spares a division.
    const uint32_t rank = port::block_rank();
    return rank < s.qps_per_pe ? rank : rank % s.qps_per_pe;
}

// The card of the peer that a QP leads to.
OXSHMEM_DEVICE uint32_t target_of(uint32_t queue) {
    const uint32_t cards = port::state().cards;
    return cards == 1 ? 0 : queue % cards;
}

// This PE's card that sends to card `target` of `pe`: that of the same number, or, where puts are
// pushed, the one on the target's rail.
OXSHMEM_DEVICE uint32_t sender_to(int pe, uint32_t target) {
    const abi::State &s = port::state();
    if (s.senders == 0) {
        return target;
    }
    return port::read(as<uint8_t>(s.senders) + (static_cast<uint64_t>(pe) * s.cards + target));
}

// This PE's card that QP `queue` of those to `pe` is on.
OXSHMEM_DEVICE uint32_t card_of(uint32_t queue, int pe) {
    return sender_to(pe, target_of(queue));
}

// As block_queue, for this block's atomics and what has to stay in order with them. Where they are
// another QP's than its other operations, fence() waits (see there).
OXSHMEM_DEVICE uint32_t atomic_queue() {
    const uint32_t queue = block_queue();
    return port::state().atomics_on_first_card != 0 ? queue - target_of(queue) : queue;
}

OXSHMEM_DEVICE uint64_t offset_of(const void *address) {
    return reinterpret_cast<uint64_t>(address) - port::state().heap_base;
}

// Returns whether [address, address + bytes) lies in this PE's heap. No bytes lie in it even where
// it ends.
OXSHMEM_DEVICE bool in_heap(const void *address, uint64_t bytes) {
    const uint64_t offset = offset_of(address);
    const uint64_t room = port::state().heap_bytes;
    return offset <= room && bytes <= room - offset;
}

// The same for one aligned word of at most 16 bytes, which an empty heap would not hold.
template <class T> OXSHMEM_DEVICE bool holds_word(const T *address) {
    return offset_of(address) <= port::state().heap_bytes - sizeof(T);
}

// Whether p and g may access a word in place. On GPUs this costs nothing and is always true: an
// unaligned access there ends the kernel with the driver's error.
template <class T> OXSHMEM_DEVICE bool is_checked_word(const T *address) {
    return !port::kChecksWords || reinterpret_cast<uint64_t>(address) % sizeof(T) == 0;
}

// The bytes of `n` elements; the highest number, which no heap has, if it does not fit.
template <class T> OXSHMEM_DEVICE uint64_t bytes_of(uint64_t n) {
    return n > ~0ull / sizeof(T) ? ~0ull : n * sizeof(T);
}

// Whether an operation on PE `pe` takes addresses that are not in the heap as well: with
// OXSHMEM_ANY_OWN_MEMORY, one on the calling PE itself does. Programs that were written for NVSHMEM
// pass such addresses.
OXSHMEM_DEVICE bool takes_any_address(int pe) {
#ifdef OXSHMEM_ANY_OWN_MEMORY
    return pe == port::state().my_pe;
#else
    static_cast<void>(pe);
    return false;
#endif
}

OXSHMEM_LAZY OXSHMEM_DEVICE bool check_symmetric(const void *address, uint64_t bytes, int pe, Op op) {
    // No bytes lie nowhere: their address may be null.
    if (bytes == 0 || in_heap(address, bytes) || takes_any_address(pe)) {
        return true;
    }
    raise(ErrorCode::address_outside_heap, op, pe, reinterpret_cast<uint64_t>(address), bytes);
    return false;
}

template <class T> OXSHMEM_DEVICE bool check_aligned(const T *address, int pe, Op op) {
    if (reinterpret_cast<uint64_t>(address) % sizeof(T) == 0) {
        return true;
    }
    raise(ErrorCode::unaligned, op, pe, reinterpret_cast<uint64_t>(address), sizeof(T));
    return false;
}

// Refuses a word that is not aligned, where p and g check that.
template <class T> OXSHMEM_DEVICE bool check_word(const T *address, int pe, Op op) {
    return !port::kChecksWords || check_aligned(address, pe, op);
}

// The peer's copy of a symmetric address, for peers that path_to() calls load_store.
template <class T> OXSHMEM_DEVICE T *translate(T *address, int pe) {
    const abi::State &s = port::state();
    const int64_t delta = static_cast<int64_t>(pe - s.my_pe) * static_cast<int64_t>(s.heap_bytes);
    return as<T>(reinterpret_cast<uint64_t>(address) + static_cast<uint64_t>(delta));
}

// Tells the port layer of an atomic that changes the word `target` of `pe`, by a card or by the
// device that runs this.
template <class T> OXSHMEM_DEVICE void watch_atomic(const T *target, int pe, bool by_card) {
    if (!takes_any_address(pe) || in_heap(target, sizeof(T))) {
        port::watch_atomic(offset_of(target), sizeof(T), pe, by_card);
    }
}

// What a WQE needs to name memory: the key (big-endian), the address under that key, and for how
// many bytes both hold.
struct Located {
    uint32_t key;
    uint64_t address;
    uint64_t bytes; // 0: not registered
};

OXSHMEM_DEVICE uint64_t left_in_chunk(uint64_t offset) {
    const uint64_t chunk = 1ull << port::state().chunk_log2;
    return chunk - (offset & (chunk - 1));
}

OXSHMEM_DEVICE uint64_t chunk_of(uint64_t offset) {
    return offset >> port::state().chunk_log2;
}

// Whether `bytes` bytes at `offset`, at least one and no more than a request carries, lie in one
// chunk. In few instructions: the last byte's chunk is less than 2^32 away.
OXSHMEM_DEVICE bool in_one_chunk(uint64_t offset, uint64_t bytes) {
    return static_cast<uint32_t>(chunk_of(offset)) == static_cast<uint32_t>(chunk_of(offset + bytes - 1));
}

OXSHMEM_DEVICE Located locate_remote(const void *address, int pe, uint32_t card) {
    const abi::State &s = port::state();
    const uint64_t offset = offset_of(address);
    const uint32_t row = card * static_cast<uint32_t>(s.n_pes) + static_cast<uint32_t>(pe);
    const uint64_t index = static_cast<uint64_t>(row) * s.max_chunks + chunk_of(offset);
    return {port::read(as<uint32_t>(s.rkeys) + index), offset, left_in_chunk(offset)};
}

// Memory of this PE's heap, at an offset in it.
OXSHMEM_DEVICE Located locate_in_heap(uint64_t offset, uint32_t card) {
    const abi::State &s = port::state();
    const uint64_t index = static_cast<uint64_t>(card) * s.max_chunks + chunk_of(offset);
    return {port::read(as<uint32_t>(s.lkeys) + index), offset, left_in_chunk(offset)};
}

OXSHMEM_DEVICE Located locate_local(const void *address, uint32_t card) {
    const abi::State &s = port::state();
    const uint64_t offset = offset_of(address);
    if (offset < s.heap_bytes) {
        return locate_in_heap(offset, card);
    }
    const uint64_t regions = port::read(as<uint64_t>(s.n_local_regions));
    for (uint64_t i = 0; i < regions; ++i) {
        const abi::LocalRegion &region = as<abi::LocalRegion>(s.local_regions)[i];
        const uint64_t into = reinterpret_cast<uint64_t>(address) - port::read(&region.base), bytes = port::read(&region.bytes);
        if (into < bytes) {
            return {port::read(region.lkeys + card), reinterpret_cast<uint64_t>(address), bytes - into};
        }
    }
    return {0, 0, 0};
}

// For how many bytes from `address` on locate_local's answer holds; 0: it is not registered. The
// same on all cards.
OXSHMEM_DEVICE uint64_t registered(const void *address) {
    return locate_local(address, 0).bytes;
}

} // namespace oxshmem::detail
