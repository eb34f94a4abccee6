// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The software HCA on the device: executes send queues that lie in memory which only kernels reach.
//
// The host half (hca/src/soft/offload.rs) launches one bounded slice after the other. A block of threads looks at its doorbell
// registers and serves the queue pairs that ring. It carries out what it finds well-formed and permitted. Everything else, from
// a key it does not know to a reserved bit that is set, stops the queue pair before that work request and is the host's to
// judge: there is one place that decides on errors, and it is the CPU engine's.
//
// Layouts are those of rdma-core's mlx5dv.h, written down here once more instead of taken from the headers that post, so that
// an error there is not repeated here.
//
// Order: work requests of a queue pair execute side by side, and their payloads become visible in any order. Those with fence
// mode 3 (strong ordering) start when all before them is visible, and so do reads and atomics of a place that one before them
// touches. A CQE comes after all it covers.

#include "soft_hca.h"

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

// A copy that is not done by the thread that decoded it. An inline payload's `from` is the index of its work request, and
// kInline is added to `bytes`.
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

// An SM that runs blocks with little shared memory may have set 16 KiB aside for it, and of that the system takes 1 KiB for
// each block. With more, the engine waits until such an application ends, which waits for the engine.
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

OXSHMEM_DEVICE Watch &watch_of(Tables &t, uint32_t number) {
    return reinterpret_cast<Watch *>(t.pages[number / kRegistersPerPage].bytes)[number % kRegistersPerPage];
}

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

// Looks at the doorbell of a register in host memory, where no work requests come with them. Called by the one thread that
// looks at this one. What is new there, or 0.
OXSHMEM_DEVICE uint64_t doorbell_of_host(Tables &t, const Slice &slice, uint32_t number) {
    Watch &watch = watch_of(t, number);
    // Both are asked for at once: the second crosses PCIe, and nothing overtakes it.
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

// Looks at registers in host memory: all lanes of a warp, kLookers for each register. The first of these is told. Adjacent
// lanes have adjacent words, so that one read crosses PCIe, not one for each word. Which words make a work request, and why it
// cannot be torn: hca/src/soft/blueflame.rs.
OXSHMEM_DEVICE HostBell rung_by_host(Tables &t, const Slice &slice, uint32_t number) {
    const uint32_t looker = port::lane_id() % kLookers;
    port::pair64 mine{0, 0};
    uint64_t before = 0;
    HostBell bell{};
    if (number < slice.registers) {
        // All are asked for at once.
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
    // The size of a work request, or 0, is behind the number of the queue pair.
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

// Looks a key up; where the range is, or 0 if the host has to judge.
OXSHMEM_DEVICE uint64_t translate(const Key &entry, uint32_t key, uint32_t peer, uint32_t pd, uint32_t qpn, uint32_t right,
                                  uint64_t address, uint64_t bytes) {
    const uint64_t offset = address - entry.start;
    const bool good = entry.key == key && entry.peer == peer && entry.pd == pd && (entry.qpn == kAnyQp || entry.qpn == qpn) &&
                      (entry.rights & right) != 0 && address >= entry.start && offset <= entry.length &&
                      bytes <= entry.length - offset;
    return good ? entry.base + offset : 0;
}

// A work request in its queue.
struct Reader {
    const Tables &tables;
    const QpContext &qp;
    uint64_t index;           // of the work request's first block
    port::vec16 head[4] = {}; // that block, read at once

    OXSHMEM_DEVICE uint64_t block(uint32_t number) const {
        return qp.sq + ((index + number) & ((1ull << qp.depth_log2) - 1)) * 64;
    }
    OXSHMEM_DEVICE void read_head() {
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
            head[i] = port::load_vec(at<void>(block(0) + i * 16));
        }
    }
    // The 16 bytes of segment `ds`.
    OXSHMEM_DEVICE port::vec16 segment(uint32_t ds) const {
        return ds < 4 ? head[ds] : port::load_vec(at<void>(block(ds / 4) + ds % 4 * 16));
    }
    OXSHMEM_DEVICE uint64_t byte(uint32_t offset) const { return block(offset / 64) + offset % 64; }

    OXSHMEM_DEVICE uint64_t local(port::vec16 s, uint32_t right, uint64_t &bytes) const {
        const uint32_t count = be(s.x);
        if ((count >> 31) != 0) {
            return 0;
        }
        bytes = count == 0 ? 1ull << 31 : count;
        const uint32_t place = (be(s.y) >> 8) - kFirstMkey;
        if (place >= kLocalKeys) {
            return 0;
        }
        return translate(tables.local_keys[place], be(s.y), 0, qp.pd, qp.qpn, right, be64(s.z, s.w), bytes);
    }

    OXSHMEM_DEVICE uint64_t remote(port::vec16 s, uint32_t right, uint64_t bytes) const {
        if (s.w != 0 || (qp.accepts & right) == 0) {
            return 0;
        }
        const Key &entry = tables.remote_keys[((be(s.z) >> 8) + qp.peer * kPeerStride) % kRemoteKeys];
        return translate(entry, be(s.z), qp.peer, qp.remote_pd, qp.remote_qpn, right, be64(s.x, s.y), bytes);
    }
};

// Decodes and checks. False: the host has to judge. Every check of the CPU engine is here (hca/src/wire/wqe.rs, execute.rs).
OXSHMEM_DEVICE bool decode(const Reader &reader, port::vec16 control, Request &request) {
    const QpContext &qp = reader.qp;
    const uint32_t first = be(control.x);
    const uint32_t second = be(control.y);
    const uint32_t flags = control.z >> 24;
    const uint32_t opmod = first >> 24;
    const uint32_t ds = second & 0x3f;
    request.opcode = static_cast<Opcode>(first & 0xff);
    request.bytes = 0;
    request.local = 0;
    const bool sound = (first >> 8 & 0xffff) == (static_cast<uint32_t>(reader.index) & 0xffff) && second >> 8 == qp.qpn &&
                       (second & 0xc0) == 0 && ds != 0 && (control.z & 0xffffff) == 0 && control.w == 0 &&
                       (flags & 0x11) == 0 && ((flags & 0x0c) == 0 || (flags & 0x0c) == 0x08) && flags >> 5 <= 4;
    if (!sound) {
        return false;
    }
    switch (request.opcode) {
    case Opcode::nop:
        return opmod == 0 && ds <= 4;
    case Opcode::dump: {
        uint64_t bytes = 0;
        return opmod == 0 && ds == 2 && reader.local(reader.segment(1), kLocalRead, bytes) != 0;
    }
    case Opcode::write:
    case Opcode::read: {
        const bool write = request.opcode == Opcode::write;
        const uint32_t right = write ? kRemoteWrite : kRemoteRead;
        if (opmod != 0 || ds < 2 || (qp.accepts & right) == 0) {
            return false;
        }
        const port::vec16 raddr = reader.segment(1);
        if (ds == 2) {
            return raddr.w == 0;
        }
        const port::vec16 data = reader.segment(2);
        const uint32_t count = be(data.x);
        if (write && (count >> 31) != 0) {
            request.bytes = count & 0x3ff;
            if ((count & 0x7ffffc00u) != 0 || ds != 2 + (4 + static_cast<uint32_t>(request.bytes) + 15) / 16) {
                return false;
            }
        } else {
            if (ds != 3) {
                return false;
            }
            request.local = reader.local(data, write ? kLocalRead : kLocalWrite, request.bytes);
            if (request.local == 0 || request.bytes > 1ull << qp.log_msg_max) {
                return false;
            }
        }
        request.remote = reader.remote(raddr, right, request.bytes);
        return request.remote != 0;
    }
    case Opcode::atomic_cs:
    case Opcode::atomic_fa:
    case Opcode::masked_cs:
    case Opcode::masked_fa: {
        const bool plain = request.opcode == Opcode::atomic_cs || request.opcode == Opcode::atomic_fa;
        request.width = plain || opmod == 0x09 ? 8 : 4;
        const bool wide_cs = request.opcode == Opcode::masked_cs && request.width == 8;
        if (opmod != (plain ? 0x00u : request.width == 8 ? 0x09u : 0x08u) || ds != (wide_cs ? 5u : 4u)) {
            return false;
        }
        const port::vec16 operands = reader.segment(2);
        if (request.width == 8) {
            request.operand = be64(operands.x, operands.y);
            request.compare = be64(operands.z, operands.w);
            request.mask = request.compare_mask = ~0ull;
            if (wide_cs) {
                const port::vec16 masks = reader.segment(3);
                request.mask = be64(masks.x, masks.y);
                request.compare_mask = be64(masks.z, masks.w);
            } else if (request.opcode == Opcode::masked_fa) {
                request.mask = request.compare;
            } else if (request.opcode == Opcode::atomic_fa) {
                if (request.compare != 0) {
                    return false;
                }
                request.mask = 0;
            }
        } else {
            request.operand = be(operands.x);
            request.compare = be(operands.y);
            request.mask = be(operands.z);
            request.compare_mask = be(operands.w);
            if (request.opcode == Opcode::masked_fa) {
                if (operands.z != 0 || operands.w != 0) {
                    return false;
                }
                request.mask = request.compare;
            }
        }
        request.local = reader.local(wide_cs ? reader.segment(4) : reader.segment(3), kLocalWrite, request.bytes);
        if (request.local == 0 || request.bytes != request.width) {
            return false;
        }
        const port::vec16 raddr = reader.segment(1);
        request.remote = reader.remote(raddr, kRemoteAtomic, request.width);
        return request.remote != 0 && be(raddr.y) % request.width == 0 && request.remote % request.width == 0;
    }
    default:
        return false;
    }
}

// a + b where no carry leaves a bit of `boundary`; as in hca/src/soft/atomics.rs.
template <class T> OXSHMEM_DEVICE T add_fields(T a, T b, T boundary) {
    return ((a & ~boundary) + (b & ~boundary)) ^ ((a ^ b) & boundary);
}

template <class T> OXSHMEM_DEVICE T atomic(const Request &request) {
    T *word = at<T>(request.remote);
    const T operand = static_cast<T>(request.operand);
    const T mask = static_cast<T>(request.mask);
    const bool add = request.opcode == Opcode::atomic_fa || request.opcode == Opcode::masked_fa;
    if (add && mask == 0) {
        return port::fetch_add<order::acq_rel, reach::system>(word, operand);
    }
    if (add && mask == static_cast<T>(~T{0})) {
        return port::fetch_xor<order::acq_rel, reach::system>(word, operand);
    }
    const T compare = static_cast<T>(request.compare);
    const T compare_mask = static_cast<T>(request.compare_mask);
    T old = port::load<order::relaxed, reach::system>(word);
    for (;;) {
        const bool change = add || ((old ^ compare) & compare_mask) == 0;
        const T next = add ? add_fields(old, operand, mask) : static_cast<T>(change ? (old & ~mask) | (operand & mask) : old);
        const T seen = port::compare_exchange<order::acq_rel, reach::system>(word, old, next);
        if (seen == old) {
            return old;
        }
        old = seen;
    }
}

template <class T> OXSHMEM_DEVICE void store(uint64_t to, T value) {
    port::store<order::relaxed, reach::system>(at<T>(to), value);
}

// 4 bytes of an inline payload, which starts at byte 36; `offset` is a multiple of 4.
OXSHMEM_DEVICE uint32_t inline_word(const Reader &reader, uint32_t offset) {
    return *at<uint32_t>(reader.byte(36 + offset));
}

// Of a payload that lies in the first block: that was read already, perhaps across PCIe.
constexpr uint32_t kHeadPayload = 28;

OXSHMEM_DEVICE void write_inline(const Reader &reader, uint64_t to, uint32_t bytes) {
    if (bytes <= kHeadPayload && (to | bytes) % 4 == 0) {
        const port::vec16 s2 = reader.head[2], s3 = reader.head[3];
        const uint32_t words[8] = {s2.y, s2.z, s2.w, s3.x, s3.y, s3.z, s3.w, 0};
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t left = bytes > i * 8 ? bytes - i * 8 : 0;
            if (left >= 8 && to % 8 == 0) {
                store(to + i * 8, static_cast<uint64_t>(words[2 * i + 1]) << 32 | words[2 * i]);
            } else {
                if (left >= 4) {
                    store(to + i * 8, words[2 * i]);
                }
                if (left >= 8) {
                    store(to + i * 8 + 4, words[2 * i + 1]);
                }
            }
        }
        return;
    }
    uint32_t done = 0;
    while (done < bytes) {
        const uint64_t here = to + done;
        const uint32_t left = bytes - done;
        if (done % 4 == 0 && left >= 8 && here % 8 == 0) {
            const uint64_t low = inline_word(reader, done);
            store(here, static_cast<uint64_t>(inline_word(reader, done + 4)) << 32 | low);
            done += 8;
        } else if (done % 4 == 0 && left >= 4 && here % 4 == 0) {
            store(here, inline_word(reader, done));
            done += 4;
        } else if (done % 2 == 0 && left >= 2 && here % 2 == 0) {
            store(here, *at<uint16_t>(reader.byte(36 + done)));
            done += 2;
        } else {
            store(here, *at<uint8_t>(reader.byte(36 + done)));
            done += 1;
        }
    }
}

// The same by a warp, for whole words of 4 bytes; an aligned word of 8 is stored at once.
OXSHMEM_DEVICE void write_inline_by_warp(const Reader &reader, uint64_t to, uint32_t bytes) {
    const uint32_t head = static_cast<uint32_t>(to % 8), pairs = (bytes - head) / 8;
    const uint32_t tail = head + pairs * 8;
    for (uint32_t i = port::lane_id(); i < pairs; i += warp_scope::size()) {
        const uint32_t offset = head + i * 8;
        const uint64_t low = inline_word(reader, offset);
        store(to + offset, static_cast<uint64_t>(inline_word(reader, offset + 4)) << 32 | low);
    }
    if (port::lane_id() == 0 && head != 0) {
        store(to, inline_word(reader, 0));
    }
    if (port::lane_id() == 0 && tail != bytes) {
        store(to + tail, inline_word(reader, tail));
    }
}

OXSHMEM_DEVICE void copy_small(uint64_t to, uint64_t from, uint64_t bytes) {
    if (bytes == 8 && (to | from) % 8 == 0) {
        store(to, *at<uint64_t>(from));
    } else if (bytes == 4 && (to | from) % 4 == 0) {
        store(to, *at<uint32_t>(from));
    } else if (bytes <= 8 && (bytes & (bytes - 1)) == 0 && to % bytes == 0) {
        // An aligned destination is written at once, wherever the source lies.
        uint64_t value = 0;
        for (uint32_t i = 0; i < bytes; ++i) {
            value |= static_cast<uint64_t>(*at<uint8_t>(from + i)) << 8 * i;
        }
        switch (bytes) {
        case 8:
            return store(to, value);
        case 4:
            return store(to, static_cast<uint32_t>(value));
        case 2:
            return store(to, static_cast<uint16_t>(value));
        default:
            return store(to, static_cast<uint8_t>(value));
        }
    } else {
        oxshmem::detail::copy<thread_scope>(at<void>(to), at<void>(from), bytes);
    }
}

// Carries out what one thread does; longer copies are put on the block's list.
OXSHMEM_DEVICE void execute(Shared &s, const Reader &reader, const Request &request) {
    switch (request.opcode) {
    case Opcode::write:
    case Opcode::read: {
        if (request.bytes == 0) {
            return;
        }
        if (request.local == 0) {
            if (request.bytes <= kSmall || (request.remote | request.bytes) % 4 != 0) {
                return write_inline(reader, request.remote, static_cast<uint32_t>(request.bytes));
            }
            s.copies[port::fetch_add<order::relaxed, reach::block>(&s.copied, 1u)] = {request.remote, reader.index,
                                                                                      request.bytes | kInline};
            return;
        }
        const bool write = request.opcode == Opcode::write;
        uint64_t to = write ? request.remote : request.local;
        uint64_t from = write ? request.local : request.remote;
        uint64_t bytes = request.bytes;
        if (bytes <= kSmall) {
            return copy_small(to, from, bytes);
        }
        if (bytes > kLarge) {
            // As much of it as one turn may take. A piece ends where the destination is aligned.
            to += s.moved, from += s.moved, bytes -= s.moved;
            if (bytes > kPiece) {
                bytes = kPiece - (to + kPiece) % 64;
                s.partial = s.moved + bytes;
            }
        }
        s.copies[port::fetch_add<order::relaxed, reach::block>(&s.copied, 1u)] = {to, from, bytes};
        return;
    }
    case Opcode::nop:
    case Opcode::dump:
        return;
    default:
        // 8-byte results are in the host's byte order, 4-byte results big-endian.
        if (request.width == 8) {
            const uint64_t old = atomic<uint64_t>(request);
            oxshmem::detail::copy_edge(at<char>(request.local), reinterpret_cast<const char *>(&old), 8);
        } else {
            const uint32_t old = be(atomic<uint32_t>(request));
            oxshmem::detail::copy_edge(at<char>(request.local), reinterpret_cast<const char *>(&old), 4);
        }
    }
}

// All threads: the copies on the list, which are `qp`'s.
OXSHMEM_DEVICE void carry(const Tables &t, const QpContext &qp, const Shared &s) {
    const uint32_t count = s.copied;
    const uint32_t warps = (port::block_threads() + 31) / 32;
    const bool few = count < warps;
    for (uint32_t i = 0; few && i < count; ++i) {
        const Copy &copy = s.copies[i];
        if ((copy.bytes & kInline) == 0) {
            oxshmem::detail::copy<block_scope>(at<void>(copy.to), at<void>(copy.from), copy.bytes);
        }
    }
    for (uint32_t i = port::thread_rank() / 32; i < count; i += warps) {
        const Copy &copy = s.copies[i];
        if ((copy.bytes & kInline) != 0) {
            write_inline_by_warp(Reader{t, qp, copy.from}, copy.to, static_cast<uint32_t>(copy.bytes));
        } else if (!few) {
            oxshmem::detail::copy<warp_scope>(at<void>(copy.to), at<void>(copy.from), copy.bytes);
        }
    }
}

OXSHMEM_DEVICE void write_cqe(QpContext &qp, uint32_t opcode, uint64_t index, uint32_t bytes) {
    const uint32_t owner = qp.cq_producer >> qp.cq_log_size & 1;
    qp.cq_producer = (qp.cq_producer + 1) & 0xffffff;
    // mlx5_cqe64: byte_cnt at 44, timestamp at 48; sop_drop_qpn, wqe_counter, signature and op_own are the tail.
    const uint64_t now = port::clock_ns();
    port::store_vec(at<void>(qp.cqe + 0), {0, 0, 0, 0});
    port::store_vec(at<void>(qp.cqe + 16), {0, 0, 0, 0});
    port::store_vec(at<void>(qp.cqe + 32), {0, 0, 0, be(bytes)});
    port::store<order::relaxed, reach::system>(at<uint64_t>(qp.cqe + 48), port::byte_swap(now));
    const uint32_t low = be(opcode << 24 | qp.qpn);
    const uint32_t high = be(static_cast<uint32_t>(index & 0xffff) << 16 | owner);
    port::store<order::release, reach::system>(at<uint64_t>(qp.cqe + 56), static_cast<uint64_t>(high) << 32 | low);
}

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

// The next work request behind `from` that starts when all before it is visible, at most `end`.
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

// One step of a queue pair: up to a block of the queue for each thread. All threads. False ends the turn.
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
        if (control.z >> 29 == 3) {
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
                // Untouched if it is 0: nobody has met since others looked at it then.
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
        // Nothing before it ended the step; or the first work request is longer than what is posted.
        if ((s.trap != 0 && s.trap == s.stop) || s.blocks == 0) {
            trap(t, slice, s.place);
            s.available = 0;
        }
    }
    port::sync_block();
    return s.available != 0;
}

// Gives the queue pair that rang in register `number` a turn; `value`: what the host rang. All threads.
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

// Executes a work request that came with its doorbell, and needs no other thread. False: it is left to the whole block, as what
// the host has to judge is. The thread that found it alone.
OXSHMEM_DEVICE bool execute_at_once(Tables &t, Shared &s, const HostBell &bell, uint32_t number) {
    const port::vec16 control = bell.head[0];
    const uint32_t second = be(control.y);
    const uint32_t place = (second >> 8) - kFirstQpn;
    if (place >= kQps || (second & 0x3f) > 4) {
        return false;
    }
    QpContext &qp = t.qps[place];
    // A line of everything that decode() looks at, all asked for at once: the key as well, should there be one.
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
    // Were it not the next one, it would be behind: the queue was looked at since.
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
            uint64_t *const bell = register_at(t, number);
            if (value == 0 && port::load<order::relaxed, reach::system>(bell) == 0) {
                continue;
            }
            any = true;
            value = value != 0 ? value : port::exchange<order::acquire, reach::system>(bell, uint64_t{0});
            const uint32_t place = (be(static_cast<uint32_t>(value >> 32)) >> 8) - kFirstQpn;
            if (place >= kQps || t.qps[place].state != kStateRts) {
                continue;
            }
            QpContext &qp = t.qps[place];
            const uint32_t posted = be(static_cast<uint32_t>(value)) >> 8 & 0xffff;
            // The CQE names the first block of the last work request: the last that looks like one. All are asked for at once.
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

// Looks at the registers that the host rings, and at those in the tables that stand for them: what was put off is rung there. A
// short work request that came with its doorbell is executed here. All threads.
OXSHMEM_DEVICE void look_at_host(Tables &t, const Slice &slice, Shared &s) {
    const uint32_t blocks = port::grid_blocks();
    const uint32_t stride = blocks * (port::block_threads() / kLookers);
    const uint32_t first = port::block_rank() + blocks * (port::thread_rank() / kLookers);
    // As often for all lanes of a warp.
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

// Orders the calling thread's stores before its later loads, for everything in the system. The port layer's fences do not.
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
