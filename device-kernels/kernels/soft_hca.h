// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The tables that the software HCA's host half and its kernel (soft_hca.cu) share, in memory that
// kernels reach. The host half, hca/src/soft/tables.rs, mirrors every structure, and a test
// compares all sizes and offsets.
//
// The host writes its parts only while no slice of the kernel executes (see Gate); `leave` alone at
// any time. The kernel writes the parts that are named so, and a queue pair that it has handed to
// the host (`trap`) it leaves alone until the host clears the word.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oxshmem::soft {

constexpr uint32_t kFirstQpn = 0x40;  // hca/src/soft/control.rs
constexpr uint32_t kFirstMkey = 0x10; // likewise, in the upper 24 bits of a key
constexpr uint32_t kQps = 4096;
constexpr uint32_t kLocalKeys = 4096;
// Places for keys of peers. The key of peer p with index i (its upper 24 bits) has place (i + p *
// kPeerStride) % kRemoteKeys; the host replaces what is there.
constexpr uint32_t kRemoteKeys = 8192;
constexpr uint32_t kPeerStride = 0x9e5;
constexpr uint32_t kPages = 256; // UAR pages
constexpr uint32_t kPageBytes = 4096;
constexpr uint32_t kFirstRegister = 0x800; // in a page
constexpr uint32_t kRegisterStride = 0x80; // likewise
constexpr uint32_t kRegistersPerPage = 16; // likewise
// Likewise, of the registers for queue pairs without a doorbell record: as many.
constexpr uint32_t kFirstWithoutRecord = 0x600;
constexpr uint32_t kStrideWithoutRecord = 0x20;
constexpr uint32_t kHostRegisterWords = 8; // of a register that the host rings; hca/src/soft/blueflame.rs
constexpr uint32_t kEvents = 1024;         // places in the ring of events
constexpr uint32_t kBlocks = 64;           // most blocks of the kernel
constexpr uint32_t kStateRts = 3;          // QpState::Rts
constexpr uint32_t kAtomics = 256;         // most atomics of a batch

// Rights, as in hca/src/soft/control.rs.
constexpr uint32_t kLocalRead = 1;
constexpr uint32_t kLocalWrite = 2;
constexpr uint32_t kRemoteRead = 4;
constexpr uint32_t kRemoteWrite = 8;
constexpr uint32_t kRemoteAtomic = 16;

constexpr uint32_t kAnyQp = 0xffffff; // Key::qpn: every queue pair may use the key

// What the kernel asks the host to look at.
enum class EventKind : uint32_t {
    doorbell = 1, // `value` was rung in register `place`, and does not fit a queue pair
    trap = 2,     // queue pair number `place` stopped
};

struct Control {
    // Written by the host.
    alignas(128) uint64_t leave; // slices up to this number end as soon as they can; the kernel raises it too
    // Written by the kernel.
    alignas(128) uint64_t events; // ever written
    uint64_t served;              // turns given to queue pairs: whether anything happened
};

// What one block of the kernel has done; see Counters in hca/src/provider.rs.
struct alignas(128) BlockCounters {
    uint64_t wqes, doorbells, cqes, bytes;
};

struct Event {
    uint32_t kind; // EventKind
    uint32_t place;
    uint64_t value;
    uint64_t number; // 1 + its place in the order of all events; written last
    uint64_t reserved0;
};

struct alignas(128) QpContext {
    // Written by the host.
    uint64_t sq;  // send queue, 1 << depth_log2 blocks of 64 bytes
    uint64_t dbr; // the big-endian word with the send counter
    uint64_t cqe; // the collapsed CQE
    uint32_t qpn; // 0: no such queue pair
    uint32_t depth_log2;
    uint32_t state; // QpState
    uint32_t pd;
    uint32_t log_msg_max;
    uint32_t uar_page;
    uint32_t cq_log_size;
    // The other end, as the host last found it.
    uint32_t peer; // its number from 1; 0: the host has to look first
    uint32_t accepts;
    uint32_t remote_pd;
    uint32_t remote_qpn;
    uint32_t in_order; // 1: work requests start one after the other, as on a card
    uint32_t reserved0[14];
    // Written by the kernel; by the host while `trap` is set.
    alignas(128) uint64_t consumer; // blocks executed
    uint64_t moved;                 // bytes of the next work request that are moved already
    uint32_t cq_producer;           // CQEs written, 24 bits
    uint32_t bell;                  // number of the doorbell register in use, from 1
    uint32_t trap;                  // 1: stopped, the host looks at it
    uint32_t reserved1[25];
};

// A memory key with its range where the kernel finds it.
struct alignas(64) Key {
    uint32_t key;  // 0: none
    uint32_t peer; // the peer that owns it, from 1; 0: this HCA
    uint32_t pd;
    uint32_t qpn; // the one queue pair that may use it, or kAnyQp
    uint32_t rights;
    uint32_t reserved0;
    uint64_t start; // first address on the wire
    uint64_t length;
    uint64_t base; // where `start` is
    uint64_t reserved1[2];
};

// A doorbell page. At its start, where no registers are, the kernel keeps what it has seen of those
// that the host rings.
struct alignas(4096) Page {
    unsigned char bytes[kPageBytes];
};

struct Watch {
    uint64_t doorbell; // seen last
    uint64_t peer;     // of the queue pair that rings there, as in its context, or 0 before the first time
};
static_assert(sizeof(Watch) * kRegistersPerPage <= kFirstWithoutRecord);
static_assert(kFirstWithoutRecord + kRegistersPerPage * kStrideWithoutRecord <= kFirstRegister);

struct Tables {
    Control control;
    BlockCounters counters[kBlocks];
    Event events[kEvents];
    QpContext qps[kQps];
    Key local_keys[kLocalKeys];
    Key remote_keys[kRemoteKeys];
    Page pages[kPages];
};

// What a launch of the kernel is told.
struct Slice {
    uint64_t tables;
    uint64_t number;    // from 1
    uint64_t run_ns;    // the slice ends after this time
    uint64_t idle_ns;   // or after this time without work
    uint32_t registers; // doorbell registers to look at
    uint32_t null;      // 1: complete what is posted and do nothing else
    // 1: look at the registers for queue pairs without a doorbell record, too. A null card alone
    // has such queue pairs.
    uint32_t without_record;
    uint32_t reserved0;
    // 0, or where the host rings instead: kHostRegisterWords in host memory for each register. The
    // first is the doorbell: it is news when it changes. A work request may come with it.
    uint64_t host_doorbells;
    uint64_t gate; // where the slice's blocks report to the host, in its memory
};

// What one block of the kernel tells the host. Slices of one gate run one after the other.
struct alignas(128) BlockReport {
    uint64_t started; // the newest slice that this block has begun
    uint64_t ended;   // and ended
};

// Says, in host memory, which side may touch the tables. A slice can be launched long before it
// finds room on the device, and meanwhile the host may need the tables. So a block reports that it
// starts, and then looks whether its slice has been cancelled; the host cancels, and then looks
// which blocks have started. One of both sees the other, whichever comes first.
struct Gate {
    alignas(128) uint64_t cancelled; // written by the host: slices up to this number execute nothing
    BlockReport blocks[kBlocks];
};

// An atomic that an HCA of another node has requested, in host memory.
struct alignas(64) WordAtomic {
    uint64_t word; // its address
    // As in a masked work request: `operand` is added, in the fields whose highest bits `mask`
    // names, or replaces the bits of `mask` where the word equals `compare` in those of
    // `compare_mask`.
    uint64_t operand, compare, mask, compare_mask;
    uint32_t add;   // 1: fetch and add; 0: compare and swap
    uint32_t width; // of the word: 4 or 8 bytes
    uint64_t old;   // written by the kernel: the word before
    uint64_t reserved0;
};

// What a launch of oxshmem_soft_hca_atomics executes, in this order, in host memory.
struct AtomicBatch {
    alignas(128) uint64_t number; // written by the host, as the rest but `old` and `done`
    uint64_t count;               // of `atomics`
    alignas(128) uint64_t done;   // written by the kernel last: the newest batch that has ended
    alignas(128) WordAtomic atomics[kAtomics];
};

static_assert(sizeof(Control) == 256 && sizeof(BlockCounters) == 128 && sizeof(Event) == 32, "mirrored in tables.rs");
static_assert(sizeof(QpContext) == 256 && sizeof(Key) == 64 && sizeof(Slice) == 64, "mirrored in tables.rs");
static_assert(sizeof(BlockReport) == 128 && sizeof(Gate) == 128 * (1 + kBlocks), "mirrored in tables.rs");
static_assert(sizeof(WordAtomic) == 64 && sizeof(AtomicBatch) == 256 + 64 * kAtomics, "mirrored in tables.rs");

} // namespace oxshmem::soft
