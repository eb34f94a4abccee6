// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the threads of a block share while they serve queue pairs, and the work requests that they
// pass to each other.

#pragma once

#include "../soft_hca.h"

#include <oxshmem/detail/copy.h>

namespace oxshmem::soft {

using port::order;
using port::reach;

constexpr uint32_t kThreads = 256;    // most threads of a block
constexpr uint32_t kSmall = 64;       // payload bytes that one thread moves
constexpr uint32_t kLarge = 64 << 10; // payload bytes from which a work request executes alone
constexpr uint64_t kPiece = 1 << 20;  // of such a one in one turn
constexpr uint32_t kSteps = 16;       // of a queue pair before another's turn

enum class Opcode : uint32_t {
    nop = 0x00,
    write = 0x08,
    read = 0x10,
    atomic_cs = 0x11,
    atomic_fa = 0x12,
    masked_cs = 0x14,
    masked_fa = 0x15,
    dump = 0x23,
};

template <class T> OXSHMEM_DEVICE T *at(uint64_t address) {
    return reinterpret_cast<T *>(address);
}

OXSHMEM_DEVICE uint32_t be(uint32_t v) {
    return port::byte_swap(v);
}

OXSHMEM_DEVICE uint64_t be64(uint32_t high, uint32_t low) {
    return static_cast<uint64_t>(be(high)) << 32 | be(low);
}

// A copy that is not done by the thread that decoded it. An inline payload's `from` is the index of
// its work request, and kInline is added to `bytes`.
struct Copy {
    uint64_t to, from, bytes;
};
constexpr uint64_t kInline = 1ull << 63;

// Remote memory that a work request touches.
struct Range {
    uint64_t first, behind;
};

// What the threads of a block share.
struct Shared {
    uint32_t leave;
    uint32_t worked;           // some thread has executed a work request by itself in this pass
    uint32_t rung;             // doorbells found in this pass
    uint32_t bells[kThreads];  // their registers
    uint64_t values[kThreads]; // what the host has rung there, or 0: it is in the register
    // The turn of one queue pair.
    uint64_t value;     // what was rung
    uint64_t consumer;  // its first block that is not executed
    uint64_t moved;     // bytes of that work request that are moved already
    uint32_t place;     // in Tables::qps
    uint32_t available; // blocks to execute
    // One step of it.
    uint32_t several;                // some work request has more than one block
    uint8_t sizes[kThreads];         // blocks of a work request, were one to start there
    uint8_t starts[kThreads];        // whether one does
    uint32_t blocks;                 // that the whole work requests of the step take
    uint32_t stop;                   // kThreads less the first block that the step cannot do
    uint32_t trap;                   // kThreads less the first one that is the host's to judge
    uint32_t ordered[kThreads / 32]; // work requests that start when all before them is visible, as bits
    uint32_t looks;                  // some work request reads remote memory
    uint32_t copied;                 // copies on the list
    union {
        Range touched[kThreads]; // until it is known what is ordered
        Copy copies[kThreads];   // then
    };
    uint64_t partial;  // bytes that are moved of a work request that is not done yet
    uint32_t signaled; // 1 + the block of the last work request that asks for a CQE
    uint32_t cqe_opcode;
    uint32_t cqe_bytes;
    uint32_t wqes;
    uint64_t bytes;
};

// An SM that runs blocks with little shared memory may have set 16 KiB aside for it, and of that
// the system takes 1 KiB for each block. With more, the engine waits until such an application
// ends, which waits for the engine.
static_assert(sizeof(Shared) <= 10 * 1024, "the engine must fit beside applications");

// A work request, decoded.
struct Request {
    Opcode opcode;
    uint32_t width; // of an atomic's operand
    uint64_t remote;
    uint64_t local; // 0: the payload is in the work request, or there is none
    uint64_t bytes;
    uint64_t operand, compare, mask, compare_mask; // of atomics; for masked_fa `mask` is the boundary
};

OXSHMEM_DEVICE uint64_t *register_at(Tables &t, uint32_t number) {
    const uint32_t offset = kFirstRegister + number % kRegistersPerPage * kRegisterStride;
    return reinterpret_cast<uint64_t *>(t.pages[number / kRegistersPerPage].bytes + offset);
}

// The register of the same number for a queue pair without a doorbell record.
OXSHMEM_DEVICE uint64_t *register_without_record_at(Tables &t, uint32_t number) {
    const uint32_t offset = kFirstWithoutRecord + number % kRegistersPerPage * kStrideWithoutRecord;
    return reinterpret_cast<uint64_t *>(t.pages[number / kRegistersPerPage].bytes + offset);
}

OXSHMEM_DEVICE Watch &watch_of(Tables &t, uint32_t number) {
    return reinterpret_cast<Watch *>(t.pages[number / kRegistersPerPage].bytes)[number % kRegistersPerPage];
}

} // namespace oxshmem::soft
