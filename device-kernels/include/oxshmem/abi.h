// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The device ABI: plain structures that the runtime fills and device code reads.
// `runtime/abi/bindings.rs` is generated from it, and a test compares all sizes and offsets. Any
// change of layout or meaning raises kAbiVersion, so that a module built from other headers than
// the runtime's is refused at load with both versions named.
//
// Addresses are uint64_t so that the layout is the same for every compiler; 0 means "absent".
// Everything a hot path writes has a 128-byte line of its own: two lines are what one GPU L2 access
// touches, and neighbours must not slow each other down.
#pragma once

#ifdef __CUDACC_RTC__
#include "port/rtc.h"
#else
#include <cstddef>
#include <cstdint>
#endif

namespace oxshmem::abi {

constexpr uint32_t kMagic = 0x4d53584f; // "OXSM" in memory
#define OXSHMEM_ABI_VERSION 25
constexpr uint32_t kAbiVersion = OXSHMEM_ABI_VERSION;

// PEs of a job, at most.
constexpr uint32_t kMaxPes = 4096;

// Send-queue geometry, in WQE basic blocks of 64 bytes. The upper limit keeps 16-bit completion
// counters unambiguous; the lower one lets a full warp reserve its largest group, five blocks a
// lane.
constexpr uint32_t kBlockBytes = 64;
constexpr uint32_t kMinDepthLog2 = 8;
constexpr uint32_t kMaxDepthLog2 = 14;

// A landing slot receives what one lane reads from a peer (a fetched value, or a piece of a get
// into unregistered memory).
constexpr uint32_t kLandingBytes = 64;

// Widths of counters that wrap, and the segments of a ring of records. The schedule explorer
// narrows them so that it sees them wrap.
#ifndef OXSHMEM_CQE_COUNTER_BITS
#define OXSHMEM_CQE_COUNTER_BITS 16 // as in the CQE
#endif
#ifndef OXSHMEM_STAMP_LAP_BITS
#define OXSHMEM_STAMP_LAP_BITS 28
#endif
#ifndef OXSHMEM_GATE_RESERVED_BITS
#define OXSHMEM_GATE_RESERVED_BITS 42
#endif
#ifndef OXSHMEM_AGGREGATE_SEGMENTS
#define OXSHMEM_AGGREGATE_SEGMENTS 16
#endif
constexpr uint32_t kCqeCounterBits = OXSHMEM_CQE_COUNTER_BITS;
constexpr uint32_t kStampLapBits = OXSHMEM_STAMP_LAP_BITS;

// Qp::gate: bit 0: no group holds the baton though groups are in the gate; above it, kGateGroupBits
// bits: groups of lanes between reserving and leaving; then a bit: the group that left the gate
// empty has rung, but its doorbell may still arrive late; in the highest kGateReservedBits bits:
// blocks ever reserved, modulo a power of two.
constexpr uint64_t kGateBatonFree = 1;
constexpr uint64_t kGateOneGroup = 2;
constexpr uint32_t kGateGroupBits = 20; // more than a GPU has threads
constexpr uint64_t kGateRinging = kGateOneGroup << kGateGroupBits;
constexpr uint32_t kGateReservedBits = OXSHMEM_GATE_RESERVED_BITS;
constexpr uint32_t kGateReservedShift = 64 - kGateReservedBits;
static_assert(kGateRinging < 1ull << kGateReservedShift, "the fields of a gate overlap");

// In Qp::completed, and in Proxy::taken as device code knows it: the queue is broken, and Breakage
// says why. It is more than any count, so every wait for a count ends.
constexpr uint64_t kBroken = 1ull << 63;

// Cards that a PE may send by: its own, and, where puts are pushed, those of other rails.
constexpr uint32_t kMaxCards = 8;

// Bytes of payload that fit a WQE of one block, and one of four, the longest that is used for puts.
constexpr uint32_t kInlineOneBlock = 28;
constexpr uint32_t kInlineMost = 4 * 64 - 36;

// The longest message of one work request; longer puts and gets are cut (PRM: log_msg_max is 30).
constexpr uint64_t kMaxMessageBytes = 1ull << 30;

// How a peer that is not load/store reachable is reached.
enum class Network : uint32_t { none = 0, ibgda = 1, ibrc = 2 };

// What an ErrorRecord says.
enum class ErrorCode : uint32_t {
    none = 0,
    pe_out_of_range = 1,      // `pe` is not in 0..n_pes; or, with a `length`, not in that of a context's team
    address_outside_heap = 2, // [address, address + length) is not inside the symmetric heap
    unaligned = 3,            // `address` is not a multiple of the operand's size, `length`
    timeout = 4,              // the deadline passed in a wait of kind `op`; if it is for variables of this PE, `syndrome` is
                              // not 0: see kUnmetBytesShift
    completion = 5,           // the HCA wrote an error CQE: `syndrome`, `vendor_syndrome`
    no_path = 6,              // neither load/store nor a network reaches `pe`
    bad_argument = 7,         // an argument other than those above; `length` holds it
    bad_team = 8,             // `length` is not a handle of a team, or no longer
    mismatch = 9,             // `pe` entered another collective: `length` holds its header, `address` this PE's
    overlap = 10,             // dst, `address`, and src, `length`, overlap where they must not
    queue_broken = 11,        // an earlier post was given up, so the QP (or, with no `qpn`, the proxy's ring) is of no use:
                              // `length` is the ErrorCode of that
    context_in_use = 12,      // a private context, whose QP is `qpn`, is used from two places at once
    context_destroyed = 13,   // the context of QP `qpn` was destroyed
    bad_number = 14,          // no context has the number `length`, or no longer
    grid_incomplete = 15,     // of the grid's `length` blocks only `address` made the call within the deadline
    exit_requested = 16,      // no error: the job is to end with the status `length`
    aggregate_stalled = 17,   // the deadline passed while `length` bytes of records in the ring at PE `address` waited to be
                              // applied by PE `pe`
    member_left = 18,         // `pe` has left the collective by an error of its own
};

// In the ErrorRecord of a wait for variables `address` is a variable that is not yet what the wait
// is for, `wqe_index` the value seen there (of its bytes alone), `length` the value wanted
// (extended to 64 bits), `vendor_syndrome` the number of variables that the wait is for, and
// `syndrome` the comparison, the bytes of a variable above it, and above these 1 if it has a sign.
constexpr uint32_t kUnmetBytesShift = 8;
constexpr uint32_t kUnmetSignShift = 16;

// The operation an ErrorRecord names.
enum class Op : uint32_t {
    none = 0,
    put = 1,
    get = 2,
    p = 3,
    g = 4,
    iput = 5,
    iget = 6,
    atomic = 7,
    signal = 8,
    put_signal = 9,
    wait_until = 10,
    signal_wait = 11,
    quiet = 12,
    fence = 13,
    barrier = 14,
    sync = 15,
    queue_space = 16, // waiting for room in a send queue
    landing = 17,     // waiting for a landing slot
    ptr = 18,
    broadcast = 19,
    collect = 20,
    fcollect = 21,
    alltoall = 22,
    alltoalls = 23,
    reduce = 24,
    reducescatter = 25,
    staging = 26, // waiting for a slot of a staging ring
};

// The first error of a launch; later ones are dropped, since they mostly follow from it.
struct ErrorRecord {
    uint32_t code; // ErrorCode
    uint32_t op;   // Op
    int32_t pe;    // peer, -1 if none
    uint32_t qpn;
    uint64_t wqe_index; // 64-bit block index, not the 16-bit one of the CQE
    uint64_t address;
    uint64_t length; // bytes, or the value that `code` explains
    uint32_t syndrome;
    uint32_t vendor_syndrome;
    uint32_t block[3];
    uint32_t thread[3];
    int32_t team; // handle of the team, -1 if none
    uint32_t reserved0;
};

// Why a queue of work requests cannot be used any more: the first error that it met. Later calls
// report it again.
struct Breakage {
    uint32_t claimed; // 0 none, 1 being written, 2 `first` is valid
    uint32_t reserved0;
    ErrorRecord first;
};

// Values of Control::abort. A launch that is aborted unwinds: its waits return, except those for
// the HCA, which replies in any case. Where the job is over, or the HCA has missed a deadline, no
// queue has to be kept usable, so those waits return too.
constexpr uint32_t kAbortLaunch = 1;
constexpr uint32_t kAbortJob = 2;

// In Control::claimed and Breakage::claimed: the error is whole.
constexpr uint32_t kErrorValid = 2;

// Shared by host and device. Device waits look at `abort`.
struct alignas(128) Control {
    uint32_t abort;    // 0, kAbortLaunch or kAbortJob
    uint32_t claimed;  // 0 free, 1 being written, 2 `error` is valid
    ErrorRecord error; // written once by the thread that moves `claimed` from 0 to 1
};

// One RC queue pair as device code sees it. See "Submission" in docs/architecture.md.
struct alignas(128) Qp {
    // Constants.
    uint64_t wq;         // send queue: (1 << depth_log2) blocks of 64 bytes
    uint64_t stamps;     // uint32_t per block: says in which lap it was written last; see detail/ibgda/submit.h
    uint64_t dbr;        // big-endian 32-bit send doorbell record; 0: the card takes the doorbell alone
    uint64_t doorbell;   // doorbell register in the UAR, 8 bytes
    uint64_t cqe;        // the collapsed CQE, 64 bytes
    uint64_t landing;    // (1 << landing_log2) slots of kLandingBytes, and one more for results that are not needed
    uint64_t laps;       // uint32_t per landing slot: twice how often it was released, and 1 more while it is taken
    uint32_t qpn;        // 24-bit number
    uint32_t depth_log2; // kMinDepthLog2..=kMaxDepthLog2
    int32_t pe;          // the peer
    uint32_t index;      // position in State::qps, and bit in State::used, of a QP of the default context
    uint32_t landing_log2;
    uint32_t landing_key; // big-endian, of the memory at `landing`, which work requests address by virtual address
    uint64_t used_word;   // of a QP of another context: the uint64_t that says whether it was posted to since the last quiet
    uint64_t used_mask;   // its bit there
    // The staging ring, where the card is far from the payloads, or 0: (1 << ring_log2) slots of
    // slot_bytes bytes, in memory near the card. The request at block index i reads slot
    // i % (1 << ring_log2); see detail/ibgda/staging.h.
    uint64_t ring;
    uint32_t ring_key; // big-endian; work requests address the ring by virtual address
    uint32_t slot_bytes;
    uint32_t ring_log2; // at most depth_log2
    uint32_t reserved0[3];
    // Written by posters.
    alignas(128) uint64_t gate;
    uint64_t
        room; // of a private context: posts that end here or before it need not look at the words below; see detail/context.h
    uint64_t landing_head; // landing slots ever looked for: where the next search begins
    uint32_t holder;       // not 0: a thread posts to this QP of a private context, see detail/context.h
    uint32_t reserved1;
    uint64_t staged; // pieces of puts that went through the staging ring, and their bytes, for statistics
    uint64_t staged_bytes;
    // Written by the group that rings.
    alignas(128) uint64_t rung; // blocks the last doorbell covered
    uint64_t doorbells;         // doorbells rung, for statistics
    // Written by threads that see a completion.
    alignas(128) uint64_t completed; // blocks that may be reused; kBroken
    // Written by fence() and by the groups that carry it: requests from index `fence_at` on come
    // after a fence, and the request before `ordered_at` is the newest that carries one. Every post
    // reads the first together with `completed`.
    uint64_t fence_at;
    uint64_t ordered_at;
    // Blocks reserved when the last read was posted that makes what was written before it visible;
    // see State::flush_on_quiet.
    uint64_t flushed_at;
    alignas(128) Breakage breakage;
};

// Threads that a context is for: they post to it, and wait for it, one after another.
enum class Sharing : uint32_t {
    thread = 0, // one thread at a time
    warp = 1,   // the lanes of one warp at a time
    block = 2,  // the threads of one block at a time
    device = 3, // any threads at any time, as the default context
};

// A context as device code takes it, by value. Zeros: the default context.
struct Context {
    uint64_t qps;     // Qp of member 0, or 0: all members are reached by load and store, or over IBRC
    uint64_t used;    // uint64_t[(n_pes + 63) / 64]: QPs posted to since the last quiet, by member
    uint64_t members; // int32_t[n_pes], or 0: member i is PE start + i * stride
    int32_t start;
    int32_t stride;
    int32_t n_pes;     // members of its team
    uint32_t how;      // kContextPrivate and the bits below, and the card above them
    uint32_t qp_bytes; // from one member's QP to the next one's
    uint32_t set;      // the number of its set among those of the PE, for the host
};

// Bits of Context::how.
constexpr uint32_t kContextPrivate = 1; // not of Sharing::device
constexpr uint32_t kContextAlone = 2;   // each post is by one lane, while no other lane posts
constexpr uint32_t kContextWarp = 4;    // of Sharing::warp
constexpr uint32_t kContextBatched = 8; // puts ring at the next flush
constexpr uint32_t kContextDirect = 16; // this PE's card of the context's number sends, though PEs push
constexpr uint32_t kContextCardShift = 8;

// Aggregating contexts (oxshmem/aggregate.h). What the PEs of a node send to another node gathers
// as records in a ring at one of them, the rail peer, whose service sends it to the inbox of a PE
// of that node, whose service applies it. Positions in a ring count bytes and never wrap; the byte
// at position p lies at p modulo the ring's size. Ring and inbox of a pair of nodes have one size.
// Segments of a ring, a power of two: each leaves as one write, and no record crosses their
// borders.
constexpr uint32_t kAggregateSegments = OXSHMEM_AGGREGATE_SEGMENTS;
constexpr uint32_t kMinAggregateSegmentLog2 = 10;  // 1 KiB
constexpr uint32_t kMaxAggregateSegmentLog2 = 16;  // 64 KiB
constexpr uint32_t kAggregateRecordBytes = 16;     // of the shortest record; all are multiples of it
constexpr uint32_t kAggregateMostPayload = 248;    // of one record
constexpr uint32_t kAggregateMostPesPerNode = 128; // members of a team on one node
constexpr uint32_t kAggregateHeapBits = 38;        // of an offset in the heap

// A ring, in the heap of the rail peer, followed by its segments.
struct alignas(128) AggregateRing {
    // Written by all PEs of the node.
    uint64_t tail;                 // bytes reserved for records
    alignas(128) uint64_t wanted;  // what is before it leaves at once, even if its segment is not full
    alignas(128) uint64_t applied; // by the receiver's signal: bytes applied
    // Written by the service of the rail peer.
    alignas(128) uint64_t sent; // bytes that have left
    uint64_t since;             // the device's clock when it found the first record that has not left, or 0
    // Written by all PEs of the node: bytes of records ever written to each segment.
    alignas(128) uint64_t written[kAggregateSegments];
};

// Where the receiver finds what a ring holds, in its heap, followed by segments.
struct alignas(128) AggregateInbox {
    uint64_t arrived;              // by the sender's signal: bytes that have arrived
    alignas(128) uint64_t applied; // by the receiver's service
};

// Where a member of the team is.
struct AggregateMember {
    uint32_t node;
    uint32_t number; // among the members of its node
};

// A node of the team, as a PE of another one sends to it.
struct alignas(128) AggregateNode {
    // Constants.
    uint64_t ring; // AggregateRing at the rail peer, mapped here; 0: the PE's own node
    int32_t rail;  // PE of this PE's node that has the ring
    int32_t receiver;
    // Written by this PE's threads.
    alignas(128) uint64_t used; // not 0: there was a record
    uint64_t room;              // as far as this position the ring was seen to have room
};

// An aggregating context as device code takes it, by value.
struct Aggregate {
    Context beside;   // for members of the PE's own node, and for the service
    uint64_t members; // AggregateMember[n_pes]
    uint64_t nodes;   // AggregateNode[n_nodes]
    int32_t n_pes;
    uint32_t n_nodes;
    uint32_t my_node;
    uint32_t my_number; // among the members of the node
    uint32_t segment_log2;
    uint32_t set; // the number of the context among those of the PE, for the host
};

// A ring of this PE with the inbox that it is sent to, or an inbox of this PE with the ring that it
// is acknowledged to. Both are addresses in this PE's heap; the peer has the other one at the same
// offset.
struct AggregateLink {
    uint64_t ring;
    uint64_t inbox;
    int32_t peer; // number in the team
    uint32_t node;
};

// What the service of an aggregating context works on, and what it has done.
struct alignas(128) AggregateService {
    Aggregate context;
    uint64_t sends;    // AggregateLink[n_sends]
    uint64_t receives; // AggregateLink[n_receives]
    uint64_t own_node; // int32_t[]: members of the PE's node, by number
    uint32_t n_sends;
    uint32_t n_receives;
    uint32_t n_own_node;
    uint32_t reserved0;
    uint64_t age_ns; // records leave when they are as old
    // Written by the service.
    alignas(128) uint64_t busy; // not 0: records are on their way
    uint64_t segments;          // writes that have left
    uint64_t segment_bytes;     // and their bytes
    uint64_t acknowledgements;  // signals that have left
    uint64_t records;           // applied here
    uint64_t broken;            // not 0: a record that does not parse was found, at this position and 1
    uint64_t serving;           // not 0: a slice of the service is at work, and another one leaves at once
};

// A word of the proxy's as device code knows it.
struct ProxyWord {
    uint64_t seen;
    uint64_t polled; // 1: a thread is reading host memory
};

// The ring of the CPU proxy and what goes with it. Slots, words of the proxy, acknowledgements,
// landing slots and faults lie in host memory; see proxy/src/block.rs, and detail/ibrc/ring.h for
// the slots.
struct alignas(128) Proxy {
    // Constants.
    uint64_t slots;            // (1 << depth_log2) slots of kSlotBytes
    uint64_t taken_word;       // uint64_t: slots that the proxy has taken
    uint64_t completed_word;   // uint64_t: descriptors done, bit 63 once any failed; next to it uint64_t: failures << 16 | peer
    uint64_t acknowledgements; // uint64_t per landing slot: (lap + 1) << 1 | failed
    uint64_t landing;          // (1 << landing_log2) slots of kLandingBytes
    uint64_t faults;           // ProxyFault[n_pes]
    uint64_t laps;             // uint32_t per landing slot, in device memory, as Qp::laps
    uint32_t depth_log2;
    uint32_t landing_log2;
    uint64_t reserved0[8];
    // Written by posters.
    alignas(128) uint64_t head; // slots ever reserved
    uint64_t landing_head;      // landing slots ever looked for
    uint64_t flushed;           // the slot after the newest flush
    // What device code has seen of the proxy's words, so that not every thread reads host memory.
    alignas(128) ProxyWord taken;
    alignas(128) ProxyWord completed;
    uint64_t failures; // that were recorded
    alignas(128) Breakage breakage;
};

// What failed first at a peer, written once by the proxy before it counts the failure.
struct ProxyFault {
    uint32_t qpn;
    uint32_t opcode; // of an mlx5 WQE that does the same
    uint64_t request;
    uint64_t address;
    uint32_t syndrome;
    uint32_t vendor_syndrome;
    uint64_t reserved0[4];
};

constexpr uint32_t kSlotBytes = 64;
constexpr uint64_t kProxyFailed = 1ull << 63; // in the word after completed_word

// A registered buffer outside the symmetric heap, usable as the local side of puts and gets.
struct LocalRegion {
    uint64_t base;
    uint64_t bytes;
    uint32_t lkeys[kMaxCards]; // big-endian, by card
};

constexpr uint32_t kMaxLocalRegions = 64;

// Contexts that device code finds by their numbers.
constexpr uint32_t kMaxNumberedContexts = 1024;

// A handle of a team is generation << 8 | index of its row. The first four rows are fixed.
constexpr int32_t kTeamInvalid = -1;
constexpr int32_t kTeamWorld = 0;
constexpr int32_t kTeamShared = 1;
constexpr int32_t kTeamNode = 2;
constexpr int32_t kTeamSameNodePe = 3;
constexpr uint32_t kTeamIndexBits = 8;

// Collectives that have a choice of algorithms.
enum class Collective : uint32_t {
    broadcast = 0,
    collect = 1,
    fcollect = 2,
    alltoall = 3,
    alltoalls = 4,
    reduce = 5,
    reducescatter = 6,
};
constexpr uint32_t kCollectives = 7;

enum class Algorithm : uint32_t {
    packets = 0,      // one round of flagged words into each other's workspace; load/store reach, and what the workspace holds
    push = 1,         // after a meeting, straight between the members' buffers
    tree = 2,         // a binomial tree (broadcast) or recursive doubling (reduce); messages by put with signal
    one_shot = 3,     // reduce: after a meeting, each member loads the data of all; load and store reach, and dst is not src
    levels = 4,       // load and store within a node, messages between nodes; for the host's kernels (detail/levels.h)
    relay = 5,        // broadcast and reduce: packets of shares, which each member passes on; by several blocks
    copy_engines = 6, // broadcast, fcollect and alltoall: copies that the host queues after a meeting
};

// `algorithm` is used up to this many bytes: of dst for broadcast and reduce, of one member's
// contribution for collect (the largest) and fcollect, of one pair for alltoall and alltoalls, of
// one member's result for reducescatter.
struct Choice {
    uint64_t up_to_bytes;
    uint32_t algorithm; // Algorithm
    uint32_t reserved0;
};
constexpr uint32_t kChoices = 3; // in ascending order; beyond the last, push

// What several blocks of a PE do beyond Team::choices, where these say push and nothing that the
// user has set. Up to kBlocksPackets bytes, in the measure of Choice, they send packets, as far as
// they have room for them. Beyond that two members reduce one-shot: each loads as many bytes as it
// would load and store otherwise. From kSharedFrom bytes on they reduce by shares, if they have
// kSharedBy blocks: fewer have too little under way. Between two H200s 64 blocks reduce 512 KiB in
// 7.2 us by packets and in 7.9 otherwise. Between four they reduce 256 KiB in 9.5 us one-shot and
// in 8.6 by shares. Between two H100s 2 MiB take 17.5 us by shares and 18.2 one-shot, 128 MiB 431
// and 437, and 512 MiB 1660 and 1752; 32 MiB take 118 either way.
//
// Where there are more than two members, packets for all others together are more than kRelayedFrom
// bytes, and the data is at most kBlocksPackets, members send each other shares, which those pass
// on: broadcasts and reductions.
//
// From kLongBroadcast bytes on, a broadcast to several is long: kLongBroadcastLanes threads of each
// member read it from the root, since more get less through. Between four H100s 128 MiB take 408 us
// with 16 blocks of 512 threads and 447 with 64, and 2 MiB 15.8 and 15.0.
constexpr uint64_t kBlocksPackets = 524288;
constexpr uint64_t kRelayedFrom = 524288;
constexpr uint64_t kSharedFrom = 2097152;
constexpr uint32_t kSharedBy = 64;
constexpr uint64_t kLongBroadcast = 4194304;
constexpr uint32_t kLongBroadcastLanes = 8192;

// The workspace of a team, at the same offset in every member's heap:
//   uint64_t rounds[2][kRounds]                 headers of a meeting by dissemination
//   uint64_t headers[2][kOneRoundPes]           headers of a meeting in one round: slot i is written by member i alone
//   uint64_t arrivals[2][2][n_pes]              member i tells that what it sends has arrived
//   unsigned char packets[2][kPacketBytes]      packets, or pieces on their way: more bytes where n_pes members
//                                               need more for two pieces of 16 bytes each
// and for each further block of a collective that several blocks carry out:
//   uint64_t headers[2][kOneRoundPes]
//   uint64_t arrivals[2][2][n_pes]
//   unsigned char packets[2][kBlockPacketBytes]
// and then, if the team has more than two members, for each block:
//   unsigned char passed[kBlockPacketBytes]     packets that members pass on
// and then, for the blocks of grids that share a collective (detail/grid_meet.h):
//   uint64_t grid_words[2][2][n_pes][words]     block b of member i tells that it has entered, that its part has ended;
//                                               words: kGridWords, or less, so that n_pes members
//                                               have at most kGridWordsOfAll
// The first index is the epoch modulo 2. Members that are in epoch e have all left epoch e - 2, so
// nothing is overwritten unread; unless calls have failed, and then what is ahead counts as a
// disagreement. A member writes to `passed` when it knows that all members have
// entered its epoch, so all have left those before. Arrivals take whole lines of 128 bytes.
//
// In a team that has several nodes at most kLevelsBlocks blocks carry out a collective. A further
// one has the place of several of those above, as many as there is room for, and meets by
// dissemination in its headers. The first one has its messages in as many, if there are more places
// than such blocks.
constexpr uint32_t kRounds = 32;
constexpr uint32_t kOneRoundPes = 64;
constexpr uint64_t kPacketBytes = 32768;
constexpr uint64_t kBlockPacketBytes = 16384;
constexpr uint32_t kLevelsBlocks = 8;
constexpr uint32_t kGridWords = 320;
constexpr uint32_t kGridWordsOfAll = 8192;
constexpr uint64_t kHeadersAt = 2 * kRounds * 8;
constexpr uint64_t kArrivalsAt = kHeadersAt + 2 * kOneRoundPes * 8;

// A header, 64 bits: the epoch in the upper half, and below it what the member announces: either
// the number of the call it makes (bits 31:28, at least 1) and a hash of everything that must be
// equal on all members; or, with those bits 0, that the call of the PE in bits 11:0 is a bad one or
// does not fit. If it does not fit the member's own call, bits 27:12 are a digest of that one.
enum class Call : uint32_t {
    none = 0,
    sync = 1,
    barrier = 2,
    broadcast = 3,
    collect = 4,
    fcollect = 5,
    alltoall = 6,
    alltoalls = 7,
    reduce = 8,
    reducescatter = 9,
};
constexpr uint32_t kCallShift = 28;
constexpr uint32_t kNamedPeBits = 12;
// In place of a call: the PE in bits 11:0 has left the meeting while it waited for the one in bits
// 23:12; if that is the same PE, for another reason.
constexpr uint32_t kLeftMeeting = 15;

// The element types and operators of reductions, for kernels that take them as numbers.
enum class Type : uint32_t {
    int8 = 0,
    int16 = 1,
    int32 = 2,
    int64 = 3,
    uint8 = 4,
    uint16 = 5,
    uint32 = 6,
    uint64 = 7,
    float32 = 8,
    float64 = 9,
    complex32 = 10, // two floats
    complex64 = 11, // two doubles
    half = 12,      // IEEE 754 binary16
    bfloat16 = 13,
};
enum class ReduceOp : uint32_t { op_and = 0, op_or = 1, op_xor = 2, op_min = 3, op_max = 4, op_sum = 5, op_prod = 6 };

// A team of this PE. Member i is PE start + i * stride, or members[i].
struct alignas(128) Team {
    // What every call reads, in three pieces of 16 bytes. All but the epoch is constant.
    int32_t handle; // kTeamInvalid: there is no team in this row
    int32_t my_pe;  // in the team
    int32_t n_pes;
    int32_t start;
    int32_t stride;
    uint32_t one_round;    // 1: members tell each other directly: all are load/store reachable, and at most kOneRoundPes
    uint32_t packet_share; // bytes of `packets` for each sender: kPacketBytes / n_pes, rounded down to a multiple of 32
    uint32_t epoch;        // of the last meeting; counts up, less 0 and 1
    uint64_t members;      // int32_t[n_pes], or 0
    uint64_t workspace;    // symmetric
    // Written by the blocks of a collective that several blocks carry out.
    uint32_t entered; // blocks that have read the epoch
    uint32_t stopped; // the last epoch in which a block's meeting failed
    // Written by the blocks of a grid that make a call together; see detail/grid.h.
    // Turn * kGridTurn + arrivals * kGridArrival + kGridFails or 0 + one of kGridGivenUp; when the
    // first block has arrived in a turn that ends by itself, the next turn less the arrivals that
    // are missing.
    uint64_t grid;
    // Constant: bit i: the user has chosen what is in row i of `choices`.
    uint32_t chosen;
    // Constant: the team's nodes, which are sets of members that reach each other by load and
    // store.
    uint32_t n_nodes;
    uint32_t my_node;
    uint32_t number_in_node; // this PE's among the members of its node
    uint32_t rails;          // members of the smallest node
    // Constant: as packet_share, of each of several blocks, in which a member has no place for
    // itself: kBlockPacketBytes / (n_pes - 1), rounded down to a multiple of 32.
    uint32_t block_share;
    // int32_t starts[n_nodes + 1], then int32_t by_node[n_pes]: the members of node i are
    // by_node[starts[i]] to before by_node[starts[i + 1]], in ascending order.
    uint64_t nodes;
    uint64_t grid_words;  // symmetric: in the workspace
    uint32_t stop_reason; // written as `stopped`, before it: what the block whose meeting failed announces
    alignas(128) Choice choices[kCollectives][kChoices];
};

// What the host knows of a team when it launches a kernel for it, an argument of that kernel: what
// stays the same as long as the handle is valid. Such a kernel begins while the rest of the row is
// on its way.
struct KnownTeam {
    // Fields of Team.
    int32_t handle;
    int32_t my_pe;
    int32_t n_pes;
    int32_t start;
    int32_t stride;
    uint32_t one_round;
    uint32_t packet_share;
    uint32_t block_share;
    uint64_t members;
    uint64_t workspace;
    uint64_t row; // where the Team lies
};

constexpr uint64_t kGridGivenUpEven = 1; // in an even turn a block has missed the others, and no block waits any more
constexpr uint64_t kGridGivenUp = 3;     // in an even turn or in an odd one
constexpr uint64_t kGridFails = 4;       // a block's part has failed, and that block arrives last
constexpr uint64_t kGridArrival = 8;
constexpr uint64_t kGridTurn = 1ull << 35;

// What device code has done that was compiled with OXSHMEM_PROFILE: see detail/profile.h.
constexpr uint32_t kProfileOps = 32; // more than Op has values

// Calls of one kind: those for a peer, or the collectives of a team.
struct ProfileCount {
    uint64_t calls;
    uint64_t bytes;       // that they were to move
    uint64_t nanoseconds; // from call to return
};

// What a ProfileRecord says.
enum class ProfileKind : uint32_t {
    call = 0,       // of the API, from `begin` to `end`
    request = 1,    // a QP or the proxy's ring has taken requests, all before `index`; `bytes` is 0
    doorbell = 2,   // the QP was rung for all requests before `index`
    completion = 3, // all requests before `index` were seen to be complete
};

// Times are those of the device's clock. `index` counts the blocks of a QP, or the descriptors of
// the proxy's ring; there `qpn` is the queue, of those to the peer.
struct ProfileRecord {
    uint64_t number;     // 1 and how many were made before; written last
    uint64_t begin, end; // nanoseconds; equal unless it is a call
    uint64_t bytes;
    uint64_t index;
    uint32_t qpn;
    int32_t pe;             // -1: none
    uint16_t kind;          // ProfileKind
    uint16_t op;            // Op; of a call
    uint32_t block, thread; // ranks
    int32_t team;           // handle; -1: none
};

struct alignas(128) Profile {
    uint64_t records; // ProfileRecord[1 << records_log2]: a ring; 0: none are made
    uint64_t peers;   // ProfileCount[n_pes * kProfileOps]
    uint64_t teams;   // ProfileCount[max_teams * kProfileOps]
    uint32_t records_log2;
    uint32_t reserved0;
    alignas(128) uint64_t made; // records ever made
};

// What every module is given, read-only for device code.
struct alignas(128) State {
    uint32_t magic;
    uint32_t abi_version;
    uint32_t bytes; // sizeof(State)
    int32_t my_pe;
    int32_t n_pes;
    uint32_t network; // Network

    // Load/store reach: slot i is PE p2p_first + i. The first p2p_run slots are reachable; of
    // others before p2p_count, bit i % 64 of p2p_reach[i / 64] says whether they are. This PE's
    // slot is reachable. The heap of PE q lies at heap_base + (q - my_pe) * heap_bytes.
    int32_t p2p_first;
    int32_t p2p_count; // slots, at most kMaxPes; 1: this PE alone
    uint32_t p2p_run;
    uint32_t reserved1;
    uint64_t heap_base;
    uint64_t heap_bytes; // reserved for one heap; what is backed grows up to it

    // Keys, big-endian, by card of this PE: QP i of those to a peer leads to the peer's card
    // i % cards, and is on this PE's card of that number, unless `senders` names another. On the
    // wire an address in the heap is its offset, so no peer's base is needed.
    uint32_t chunk_log2; // registration unit
    uint32_t max_chunks;
    uint64_t lkeys;   // uint32_t: max_chunks for each card of this PE, at most kMaxCards
    uint64_t rkeys;   // uint32_t: n_pes * max_chunks for each of them
    uint64_t senders; // uint8_t[n_pes * cards], or 0: which of them sends to card j of PE i, at i * cards + j

    uint64_t qps; // Qp[n_pes * qps_per_pe]; those to this PE itself are for atomics alone, if atomics_by_network
    uint32_t qps_per_pe;
    uint32_t cards; // cards of each PE that peers send to: at least 1
    uint64_t used;  // uint64_t[(n_pes * qps_per_pe + 63) / 64]: QPs posted to since the runtime last saw all of them idle
    uint32_t slab_lkeys[kMaxCards]; // big-endian, by card; the runtime's own memory, addressed by virtual address
    uint64_t local_regions;         // LocalRegion[kMaxLocalRegions]
    uint64_t n_local_regions;       // address of a uint64_t count

    uint64_t control; // Control
    uint64_t timeout_ns;

    uint64_t teams; // Team[max_teams]

    uint64_t proxy; // Proxy, if `network` is ibrc

    // Not 0: all atomics on a PE's memory are those of a card, even where it is load/store
    // reachable.
    uint32_t atomics_by_network;
    uint32_t max_teams;

    // Not 0: queues, doorbell records and CQEs are in this GPU's memory, and what reads them (a
    // card across PCIe, or a kernel of this GPU) sees what has reached it. So a doorbell needs a
    // fence of device scope before it.
    uint32_t queues_in_device_memory;

    // Not 0: of several cards the first does all atomics on a PE's memory, since those of different
    // cards are not atomic with each other.
    uint32_t atomics_on_first_card;

    // Fence modes, as bits of a work request's fm_ce_se: of a signal that follows its data on one
    // QP, and of the first request after fence(). A QP that delivers in order needs none for the
    // signal, and for the fence one that waits for the reads and atomics before it.
    uint32_t signal_order;
    uint32_t fence_order;

    // Contexts by number: those up to the count are valid, but one whose team has no members.
    uint64_t numbered_contexts;   // Context[kMaxNumberedContexts]
    uint64_t n_numbered_contexts; // address of a uint64_t count

    uint64_t profile; // Profile, or 0: nothing is counted and recorded

    // Blocks of a collective that have room in a team's workspace.
    uint32_t collective_blocks;

    // Not 0: a completion does not say that what was written is visible to all that may learn of
    // it, so quiet reads through each QP after its writes.
    uint32_t flush_on_quiet;

    // Puts of at most this many bytes travel in the queue even where the card could read their
    // source: kInlineOneBlock, or kInlineMost where a card is so far from the GPU that its reads
    // are slow.
    uint32_t inline_up_to;

    // Puts of at most this many bytes are read by the card where they are, or travel in the queue:
    // at least inline_up_to, and kMaxMessageBytes where no QP has a staging ring. Longer ones go
    // through the ring of their QP, if it has one.
    uint32_t direct_up_to;
    uint32_t reserved0[12];

    uint64_t p2p_reach[kMaxPes / 64];
};

#ifndef __CUDACC_RTC__ // which has no offsetof
static_assert(sizeof(Team) == 512 && offsetof(Team, stride) == 16 && offsetof(Team, members) == 32 &&
                  offsetof(Team, entered) == 48 && offsetof(Team, grid) == 56 && offsetof(Team, choices) == 128,
              "read in pieces by view_of");
#endif
static_assert(sizeof(ProxyFault) == 64, "mirrored in proxy/src/block.rs");
static_assert(kArrivalsAt % 128 == 0 && kPacketBytes % 128 == 0 && kBlockPacketBytes % 128 == 0, "lines of their own");

} // namespace oxshmem::abi
