// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What an operation over the network is, whether device code or the proxy posts it.
#pragma once

#include "context.h"

namespace oxshmem::detail {

// Whether the network is the CPU proxy's.
OXSHMEM_DEVICE bool by_proxy() {
    return port::state().network == static_cast<uint32_t>(abi::Network::ibrc);
}

// Whether device code itself posts to `pe`, if `pe` is not direct. The conditions do not depend on
// each other.
OXSHMEM_DEVICE bool posts_to(int pe) {
    const abi::State &s = port::state();
    const bool exists = static_cast<uint32_t>(pe) < static_cast<uint32_t>(s.n_pes);
    return exists & (s.network == static_cast<uint32_t>(abi::Network::ibgda));
}

enum class SignalOp : int { set = 9, add = 10 };

// What signals, and the data before them, count as.
OXSHMEM_DEVICE Use use_of(SignalOp op) {
    return op == SignalOp::set ? Use::data : Use::atomics;
}

// A value of up to eight bytes as a word, zero above its size.
template <class T> OXSHMEM_DEVICE uint64_t to_bits(T value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T> OXSHMEM_DEVICE T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

OXSHMEM_DEVICE uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// Copies of some variables in local memory. A function keeps its variables there while it calls one
// that is seldom called and needs many registers: the registers of a kernel are those of the
// longest chain of its calls, all variables that are live in each together.
template <class... T> struct Kept {
    OXSHMEM_DEVICE void keep() {}
    OXSHMEM_DEVICE void restore() const {}
};
template <class First, class... Rest> struct Kept<First, Rest...> {
    First first;
    Kept<Rest...> rest;
    OXSHMEM_DEVICE void keep(const First &value, const Rest &...others) {
        first = value;
        rest.keep(others...);
    }
    OXSHMEM_DEVICE void restore(First &value, Rest &...others) const {
        value = first;
        rest.restore(others...);
    }
};

// Calls `rare`, and has none of the variables in registers meanwhile.
template <class Rare, class... T> OXSHMEM_DEVICE auto keeping(Rare rare, T &...variables) {
    Kept<T...> kept;
    kept.keep(variables...);
    port::through_memory(&kept);
    const auto result = rare();
    port::through_memory(&kept);
    kept.restore(variables...);
    return result;
}

// mlx5 opcodes.
enum class Opcode : uint32_t {
    rdma_write = 0x08,
    rdma_read = 0x10,
    atomic_cs = 0x11,
    atomic_fa = 0x12,
    masked_cs = 0x14,
    masked_fa = 0x15,
};

// opmod of extended atomics, in bits 31:24 of the first word: bit 3 says "extended", the rest is
// log2(operand bytes) - 2.
constexpr uint32_t kExtended4 = 0x08;
constexpr uint32_t kExtended8 = 0x09;

// Payload that travels in the queue, with its work request.
using abi::kInlineMost;
using abi::kInlineOneBlock;

// An atomic work request on one word. `add` and `compare` are what the operation needs; see the
// constructors.
struct AtomicRequest {
    Opcode op;
    uint32_t opmod;
    // Operands in the order of the WQE's segment; masks only for masked_cs. For masked_fa `second`
    // is the field boundary: a carry does not cross a set bit, so all ones turn the addition into
    // an exclusive or.
    uint64_t first, second, first_mask, second_mask;
    uint32_t width; // operand bytes, 4 or 8

    OXSHMEM_DEVICE uint32_t segments() const { return op == Opcode::masked_cs && width == 8 ? 5 : 4; }
    OXSHMEM_DEVICE uint32_t blocks() const { return segments() == 5 ? 2 : 1; }

    template <class T> OXSHMEM_DEVICE static AtomicRequest add(T value) {
        const uint64_t operand = to_bits(value);
        if constexpr (sizeof(T) == 8) {
            return {Opcode::atomic_fa, 0, operand, 0, 0, 0, 8};
        } else {
            return {Opcode::masked_fa, kExtended4, operand, 0, 0, 0, 4};
        }
    }

    template <class T> OXSHMEM_DEVICE static AtomicRequest exclusive_or(T value) {
        return {Opcode::masked_fa, sizeof(T) == 8 ? kExtended8 : kExtended4, to_bits(value), ~0ull, 0, 0, sizeof(T)};
    }

    // Replaces the bits in `mask` by those of `value`: swap, set, and, or.
    template <class T> OXSHMEM_DEVICE static AtomicRequest replace(T value, uint64_t mask) {
        return {Opcode::masked_cs, sizeof(T) == 8 ? kExtended8 : kExtended4, to_bits(value), 0, mask, 0, sizeof(T)};
    }

    template <class T> OXSHMEM_DEVICE static AtomicRequest compare_swap(T expected, T desired) {
        if constexpr (sizeof(T) == 8) {
            return {Opcode::atomic_cs, 0, to_bits(desired), to_bits(expected), 0, 0, 8};
        } else {
            return {Opcode::masked_cs, kExtended4, to_bits(desired), to_bits(expected), ~0ull, ~0ull, 4};
        }
    }
};

} // namespace oxshmem::detail
