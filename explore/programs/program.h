// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What every module of the schedule explorer has: the memory that its programs run in, and the
// calls by which a program says what it does, so that the explorer can check it.
// explore/src/interface.rs mirrors the structures.
#pragma once

#define OXSHMEM_EXPLORE
#include <oxshmem/abi.h>
#include <oxshmem/port/port.h>

#include <oxshmem/barrier.h>
#include <oxshmem/context.h>
#include <oxshmem/ordering.h>
#include <oxshmem/rma.h>
#include <oxshmem/signal.h>

extern "C" {

constexpr uint32_t kExploreVersion = 3;
constexpr uint32_t kExplorePes = 4;
}

namespace explore {
struct Layout; // module.h
}

// An algorithm of programs: packets, which the user has not chosen.
constexpr uint32_t kLibrarysChoice = 7, kLibrarysPush = 8;

extern "C" {

// A program: what every device thread runs, and in what surroundings.
struct oxshmem_explore_program {
    const char *name;
    void (*body)();
    void (*initial)(); // fills the heaps; may be null
    // Lays out what a PE has beside that; may be null.
    void (*more)(explore::Layout &layout, uint32_t pe, const oxshmem::abi::State &state);
    uint32_t pes, lanes;
    uint32_t blocks[kExplorePes]; // of each PE's grid; a block is a warp of `lanes` lanes
    uint32_t qps_per_pe, depth_log2, landing_log2;
    uint32_t network;                   // abi::Network
    uint32_t direct;                    // not 0: all PEs are load/store reachable
    uint32_t per_node;                  // otherwise, if not 0: so are so many PEs of each node
    uint32_t host_queues;               // not 0: queues, records and CQEs lie in host memory, and a CPU executes them
    uint32_t without_record;            // not 0: queue pairs have no doorbell record
    uint32_t posted;                    // blocks that were posted and completed before
    uint32_t epoch;                     // of the team's last meeting
    uint32_t rounds;                    // not 0: the team meets by dissemination
    uint32_t algorithm;                 // abi::Algorithm that the user has chosen for collectives, or one of the two above
    uint32_t results_at, results_bytes; // of the heaps: what collectives write over the network
    uint32_t cards;                     // that the queue pairs to a peer are spread over
    uint32_t fails;                     // not 0: the HCA completes a work request with an error
    uint32_t deadlines;                 // how many pass at most
    uint32_t stale;                     // not 0: relaxed loads may be early
    uint32_t parts;                     // not 0: parts of a warp may converge, as on the `cpu` device
    uint32_t small;                     // not 0: small enough to be explored exhaustively
    uint32_t ring_log2;                 // not 0: of the slots of each QP's staging ring, in memory of the host
    uint32_t most_steps;                // of an execution
};

// Kinds of memory, for the explorer's invariants and texts.
enum oxshmem_explore_kind : uint32_t {
    kKindConstant = 0,
    kKindHeap = 1,
    kKindGate = 2,
    kKindRung = 3,
    kKindCompleted = 4,
    kKindUsed = 5,
    kKindStamps = 6,
    kKindRecord = 7,
    kKindDoorbell = 8,
    kKindCqe = 9,
    kKindQueue = 10,
    kKindLanding = 11,
    kKindLaps = 12,
    kKindControl = 13,
    kKindError = 14,
    kKindWord = 15, // any other word
    kKindSlots = 16,
};

constexpr uint32_t kHostMemory = 0xff;

struct oxshmem_explore_qp {
    uint32_t pe, peer, qpn, depth_log2;
    uint64_t wq, record, doorbell, cqe, completed, breakage;
    uint64_t posted;
    uint32_t card, reserved0;
};

struct oxshmem_explore_proxy {
    uint32_t pe, depth_log2, landing_log2, reserved0;
    uint64_t slots, taken, completed, acknowledgements, landing;
};

// What a module calls while it sets up a program.
struct oxshmem_explore_setup {
    uint64_t base;
    void *states; // kExplorePes times State
    void *context;
    // Names `count` pieces of `bytes` bytes each at `address`, in the memory of `owner` (a PE or
    // kHostMemory).
    void (*range)(void *context, const char *name, uint32_t kind, uint32_t owner, uint64_t address, uint32_t bytes,
                  uint32_t count);
    // Sets memory; what is set with `constant` may be read directly.
    void (*set)(void *context, uint64_t address, const void *from, uint64_t bytes, uint32_t constant);
    void (*qp)(void *context, const oxshmem_explore_qp *qp);
    void (*proxy)(void *context, const oxshmem_explore_proxy *proxy);
    void (*state)(void *context, uint32_t pe, const void *state);
};

struct oxshmem_explore_module {
    uint32_t version, n_programs;
    const oxshmem_explore_program *programs;
    void (*set_current)(oxshmem_explore_thread *thread);
    void (*setup)(const oxshmem_explore_program *program, const oxshmem_explore_setup *setup);
    uint64_t constant_bytes, shared_bytes;
    uint32_t heap_at, heap_bytes, workspace_at, workspace_bytes;
    uint32_t counter_bits, lap_bits, reserved_shift, group_bits;
    uint64_t one_group, baton_free;
};
}

namespace explore {

using namespace oxshmem;

constexpr uint64_t kConstantBytes = 32768, kOtherBytes = 65536, kHeapBytes = 294912;
constexpr uint64_t kHeapsAt = kConstantBytes + kOtherBytes;
constexpr uint64_t kWorkspaceAt = 24576; // of the team, in the heap
constexpr uint64_t kGridWordsAt = kHeapBytes - 4 * kExplorePes * abi::kGridWords * sizeof(uint64_t);
constexpr uint64_t kSharedBytes = kHeapsAt + kExplorePes * kHeapBytes;
constexpr uint32_t kMostBlocks = 4;                    // of a program's grids
constexpr uint32_t kSlotBytes = 16;                    // of a staging ring
constexpr uint32_t kHeapKey = 0x100, kSlabKey = 0x200; // big-endian keys begin with these
constexpr uint32_t kCardKeys = 0x10;                   // between those of two cards
constexpr uint64_t kNanosecondsToDeadline = 1ull << 60;

enum note_kind : uint32_t {
    kNotePut = 1,
    kNoteAdd = 2,
    kNoteFence = 3,
    kNoteQuiet = 4,
    kNoteFailed = 5,
    kNoteSet = 6,
    kNoteQuietFor = 7
};

inline void note(note_kind kind, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0, uint64_t d = 0) {
    oxshmem_explore_calls->note(kind, a, b, c, d);
}

// Sets a word of the heap of `pe`; for oxshmem_explore_program::initial.
inline void set(int pe, uint64_t offset, uint64_t value) {
    note(kNoteSet, static_cast<uint64_t>(pe), offset, value);
}

// The program goes on only if the condition holds.
inline void expect(bool condition, const char *text) {
    if (!condition) {
        note(kNoteFailed, reinterpret_cast<uint64_t>(text));
    }
}

// Where a thread is.
inline int me() {
    return port::state().my_pe;
}
inline uint32_t block() {
    return port::block_rank();
}
inline uint32_t lane() {
    return port::lane_id();
}

// An element of the symmetric heap, as an address in the calling PE's.
template <class T> T *heap(uint64_t offset) {
    return reinterpret_cast<T *>(port::state().heap_base + offset);
}

// The operations, each announced before it is made. What a PE writes to a peer is different for
// each operation, so that the explorer can tell them apart.
inline void announce_put(const void *dst, const void *bytes, uint64_t n, int pe) {
    note(kNotePut, reinterpret_cast<uint64_t>(dst), reinterpret_cast<uint64_t>(bytes), n, static_cast<uint64_t>(pe));
}

template <class T> void p(T *dst, T value, int pe) {
    announce_put(dst, &value, sizeof(T), pe);
    oxshmem::p(dst, value, pe);
}

inline void add(uint64_t *dst, uint64_t value, int pe) {
    note(kNoteAdd, reinterpret_cast<uint64_t>(dst), value, sizeof(value), static_cast<uint64_t>(pe));
}

// Puts what lies at `src`, whose bytes the caller knows.
inline void put(void *dst, const void *src, const void *bytes, uint64_t n, int pe, bool blocking) {
    announce_put(dst, bytes, n, pe);
    if (blocking) {
        oxshmem::putmem(oxshmem::thread, dst, src, n, pe);
    } else {
        oxshmem::putmem_nbi(oxshmem::thread, dst, src, n, pe);
    }
}

inline void fence() {
    oxshmem::fence();
    note(kNoteFence);
}

inline void quiet() {
    oxshmem::quiet();
    note(kNoteQuiet);
}

// Tells another device thread of the same PE, and waits for it, as programs do it without the
// library.
inline void tell(uint64_t *flag, uint64_t value) {
    port::store<port::order::release, port::reach::device>(flag, value);
}
inline void await(const uint64_t *flag, uint64_t value) {
    while (port::load<port::order::acquire, port::reach::device>(flag) != value) {
        port::pause();
    }
}

// Ends a kernel and begins the next one of the same PE: all threads have come here, and what they
// have stored is in the GPU's memory.
inline void next_kernel() {
    uint32_t *const ended = heap<uint32_t>(0x100);
    const uint32_t threads = port::grid_blocks() * port::block_threads();
    port::fence<port::order::acq_rel, port::reach::device>();
    const uint32_t number = port::fetch_add<port::order::acq_rel, port::reach::device>(ended, 1u) / threads;
    while (port::load<port::order::acquire, port::reach::device>(ended) / threads == number) {
        port::pause();
    }
}

// Returns what the host tells kernels that it launches for the world team.
inline abi::KnownTeam known_world() {
    const abi::Team &row = detail::team_row(abi::kTeamWorld);
    abi::KnownTeam known{};
    known.handle = abi::kTeamWorld;
    known.my_pe = port::state().my_pe, known.n_pes = port::state().n_pes;
    known.stride = 1;
    known.one_round = port::read(&row.one_round);
    known.packet_share = port::read(&row.packet_share), known.block_share = port::read(&row.block_share);
    known.workspace = port::read(&row.workspace);
    known.row = reinterpret_cast<uint64_t>(&row);
    return known;
}

// -- What programs have in common
// ---------------------------------------------------------------------------------------------

// Where block `b` of PE 0 writes its `i`th value, far from its other ones, so that nothing is
// combined.
inline uint64_t *place(uint32_t b, uint32_t i, uint32_t l = 0) {
    return heap<uint64_t>(b * 1024 + l * 256 + i * 16);
}

inline uint64_t value(uint32_t b, uint32_t i, uint32_t l = 0) {
    return 0x5e00000000000001ull + b * 0x10000 + i * 0x100 + l;
}

// Words of PE 1 that others fetch.
inline void fill() {
    for (uint32_t i = 0; i < 8; ++i) {
        set(1, 0x700 + i * 8, 0x9e70 + i);
    }
}

constexpr uint32_t kIbgda = static_cast<uint32_t>(abi::Network::ibgda), kIbrc = static_cast<uint32_t>(abi::Network::ibrc);

// What most programs have in common: two PEs, of which the first posts to the other.
constexpr oxshmem_explore_program posting(const char *name, void (*body)(), uint32_t blocks, uint32_t depth_log2,
                                          uint32_t most_steps) {
    oxshmem_explore_program program{};
    program.name = name;
    program.body = body;
    program.pes = 2;
    program.lanes = 1;
    program.blocks[0] = blocks;
    program.qps_per_pe = 1;
    program.cards = 1;
    program.depth_log2 = depth_log2;
    program.network = kIbgda;
    program.epoch = 2;
    program.most_steps = most_steps;
    return program;
}

constexpr oxshmem_explore_program small(oxshmem_explore_program program) {
    program.small = 1;
    return program;
}
constexpr oxshmem_explore_program in_host_memory(oxshmem_explore_program program) {
    program.host_queues = 1;
    return program;
}
constexpr oxshmem_explore_program without_record(oxshmem_explore_program program) {
    program.without_record = 1;
    return program;
}
constexpr oxshmem_explore_program behind(uint32_t posted, oxshmem_explore_program program) {
    program.posted = posted;
    return program;
}
constexpr oxshmem_explore_program warps_of(uint32_t lanes, oxshmem_explore_program program) {
    program.lanes = lanes;
    return program;
}
constexpr oxshmem_explore_program in_parts(oxshmem_explore_program program) {
    program.parts = 1;
    return program;
}
constexpr oxshmem_explore_program early(oxshmem_explore_program program) {
    program.stale = 1;
    return program;
}
constexpr oxshmem_explore_program filled(oxshmem_explore_program program, uint32_t landing_log2) {
    program.initial = fill;
    program.landing_log2 = landing_log2;
    return program;
}

constexpr oxshmem_explore_program blocks_of(uint32_t blocks, oxshmem_explore_program program) {
    for (uint32_t pe = 0; pe < program.pes; ++pe) {
        program.blocks[pe] = blocks;
    }
    return program;
}
// An error is recorded.
constexpr oxshmem_explore_program failing(oxshmem_explore_program program) {
    program.fails = 1;
    return program;
}
// The same, and PE 1 has fewer blocks.
constexpr oxshmem_explore_program uneven(oxshmem_explore_program program) {
    program.blocks[1] = 1;
    return failing(program);
}
constexpr oxshmem_explore_program direct(oxshmem_explore_program program) {
    program.network = 0;
    program.direct = 1;
    return program;
}
constexpr oxshmem_explore_program in_rounds(oxshmem_explore_program program) {
    program.rounds = 1;
    return program;
}
// At most this number of deadlines pass.
constexpr oxshmem_explore_program late(uint32_t deadlines, oxshmem_explore_program program) {
    program.deadlines = deadlines;
    return program;
}
constexpr oxshmem_explore_program by_proxy(oxshmem_explore_program program) {
    program.network = kIbrc;
    return program;
}

} // namespace explore
