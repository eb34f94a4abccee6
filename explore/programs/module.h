// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Ends a module: lays out memory for a program, and exports the one symbol that the explorer looks
// for. `kPrograms` is the module's table of programs.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "program.h"

const oxshmem_explore_hooks *oxshmem_explore_calls;
__thread oxshmem_explore_thread *oxshmem_explore_current;

// How many blocks can share a collective.
#ifndef EXPLORE_SHARING_BLOCKS
#define EXPLORE_SHARING_BLOCKS kMostBlocks
#endif

namespace explore {

// Headers before version 6 have no such member.
template <class S> auto set_device_queues(S &state, bool device) -> decltype(state.queues_in_device_memory, void()) {
    state.queues_in_device_memory = device ? 1 : 0;
}
template <class S> void set_device_queues(S &, ...) {}

// The model's HCA keeps only what is strongly ordered in order. Headers before version 8 know no
// other mode.
template <class S> auto set_order(S &state, uint32_t order) -> decltype(state.signal_order, void()) {
    state.signal_order = state.fence_order = order;
}
template <class S> void set_order(S &, ...) {}

inline uint64_t round_up(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

// Hands out addresses, one area after the other.
struct Area {
    uint64_t next, end;
    uint64_t take(uint64_t bytes, uint64_t align = 64) {
        const uint64_t at = round_up(next, align);
        next = at + bytes;
        if (next > end) {
            __builtin_trap();
        }
        return at;
    }
};

struct Layout {
    const oxshmem_explore_program &program;
    const oxshmem_explore_setup &out;
    Area constants, others;

    void name(const char *text, uint32_t kind, uint32_t owner, uint64_t address, uint32_t bytes, uint32_t count = 1) const {
        out.range(out.context, text, kind, owner, address, bytes, count);
    }
    template <class T> void set(uint64_t address, const T &value, bool constant) const {
        out.set(out.context, address, &value, sizeof(T), constant ? 1 : 0);
    }

    uint64_t take(const char *text, uint32_t kind, uint32_t owner, uint32_t bytes, uint32_t count = 1) {
        const uint64_t at = others.take(static_cast<uint64_t>(bytes) * count);
        name(text, kind, owner, at, bytes, count);
        return at;
    }

    void qp(uint64_t at, uint64_t used, uint32_t pe, uint32_t peer, uint32_t index) {
        abi::Qp qp{};
        const uint32_t queue_owner = program.host_queues != 0 ? kHostMemory : pe;
        const uint32_t depth = 1u << program.depth_log2, slots = 1u << program.landing_log2;
        qp.wq = take("queue", kKindQueue, queue_owner, 64, depth);
        qp.stamps = take("stamps", kKindStamps, pe, 4, depth);
        // Each lane of a warp reads four stamps at once, and lanes that only a wider warp would
        // have find all of theirs (ready_prefix_by_warp).
        if (program.lanes > 1 && depth != 4) {
            std::fprintf(stderr, "program %s: queues that warps post to have 4 blocks, not %u\n", program.name, depth);
            std::abort();
        }
        // Each lies in a line of its own, as in the product.
        if (program.without_record == 0) {
            qp.dbr = take("doorbell record", kKindRecord, queue_owner, 8);
        }
        qp.doorbell = take("doorbell", kKindDoorbell, queue_owner, 8);
        qp.cqe = take("CQE", kKindCqe, queue_owner, 64);
        qp.landing = take("landing", kKindLanding, queue_owner, abi::kLandingBytes, slots + 1);
        qp.laps = take("laps", kKindLaps, pe, 4, slots);
        qp.qpn = 0x10 + pe * 16 + index;
        qp.depth_log2 = program.depth_log2;
        qp.pe = static_cast<int32_t>(peer);
        qp.index = index;
        qp.landing_log2 = program.landing_log2;
        qp.landing_key = port::byte_swap(kSlabKey + index % program.qps_per_pe % program.cards * kCardKeys);
        if (program.ring_log2 != 0) {
            qp.ring_log2 = program.ring_log2;
            qp.slot_bytes = kSlotBytes;
            qp.ring = take("staging ring", kKindWord, kHostMemory, 8, kSlotBytes / 8 << program.ring_log2);
            qp.ring_key = qp.landing_key;
        }
        // Programs that use a queue pair as that of a context have one to each peer, and use it for
        // nothing else.
        qp.used_word = used;
        qp.used_mask = uint64_t{1} << peer;
        out.set(out.context, at, &qp, 128, 1);
        out.set(out.context, at + 128, reinterpret_cast<const char *>(&qp) + 128, sizeof(qp) - 128, 0);
        name("gate", kKindGate, pe, at + offsetof(abi::Qp, gate), 8);
        name("room", kKindWord, pe, at + offsetof(abi::Qp, room), 8);
        name("landing_head", kKindWord, pe, at + offsetof(abi::Qp, landing_head), 8);
        name("holder", kKindWord, pe, at + offsetof(abi::Qp, holder), 4);
        name("rung", kKindRung, pe, at + offsetof(abi::Qp, rung), 8);
        name("doorbells", kKindWord, pe, at + offsetof(abi::Qp, doorbells), 8);
        name("completed", kKindCompleted, pe, at + offsetof(abi::Qp, completed), 8);
        name("fence_at", kKindWord, pe, at + offsetof(abi::Qp, fence_at), 8);
        name("ordered_at", kKindWord, pe, at + offsetof(abi::Qp, ordered_at), 8);
        name("staged", kKindWord, pe, at + offsetof(abi::Qp, staged), 8);
        name("staged_bytes", kKindWord, pe, at + offsetof(abi::Qp, staged_bytes), 8);
        name("flushed_at", kKindWord, pe, at + offsetof(abi::Qp, flushed_at), 8);
        name("breakage", kKindError, pe, at + offsetof(abi::Qp, breakage), sizeof(abi::Breakage));
        const uint64_t posted = program.posted;
        set(at + offsetof(abi::Qp, gate), posted << abi::kGateReservedShift, false);
        set(at + offsetof(abi::Qp, rung), posted, false);
        set(at + offsetof(abi::Qp, completed), posted, false);
        if (qp.dbr != 0) {
            set(qp.dbr, port::byte_swap(static_cast<uint32_t>(posted & 0xffff)), false);
        }
        for (uint64_t i = posted < depth ? 0 : posted - depth; i < posted; ++i) {
            set(qp.stamps + (i & (depth - 1)) * 4,
                (static_cast<uint32_t>(i >> program.depth_log2) + 1) & ((1u << abi::kStampLapBits) - 1), false);
        }
        set(qp.cqe + 63, static_cast<unsigned char>(0xf0), false);
        const oxshmem_explore_qp hca{pe,
                                     peer,
                                     qp.qpn,
                                     qp.depth_log2,
                                     qp.wq,
                                     qp.dbr,
                                     qp.doorbell,
                                     qp.cqe,
                                     at + offsetof(abi::Qp, completed),
                                     at + offsetof(abi::Qp, breakage),
                                     posted,
                                     index % program.qps_per_pe % program.cards,
                                     0};
        out.qp(out.context, &hca);
    }

    void proxy(uint64_t at, uint32_t pe) {
        abi::Proxy proxy{};
        const uint32_t depth = 1u << program.depth_log2, slots = 1u << program.landing_log2;
        proxy.slots = take("ring", kKindSlots, kHostMemory, abi::kSlotBytes, depth);
        proxy.taken_word = take("taken", kKindWord, kHostMemory, 8);
        proxy.completed_word = take("completed descriptors", kKindWord, kHostMemory, 8, 2);
        proxy.acknowledgements = take("acknowledgements", kKindWord, kHostMemory, 8, slots);
        proxy.landing = take("landing", kKindLanding, kHostMemory, abi::kLandingBytes, slots + 1);
        proxy.faults = take("faults", kKindWord, kHostMemory, sizeof(abi::ProxyFault), program.pes);
        proxy.laps = take("laps", kKindLaps, pe, 4, slots);
        proxy.depth_log2 = program.depth_log2;
        proxy.landing_log2 = program.landing_log2;
        out.set(out.context, at, &proxy, 128, 1);
        out.set(out.context, at + 128, reinterpret_cast<const char *>(&proxy) + 128, sizeof(proxy) - 128, 0);
        name("head", kKindWord, pe, at + offsetof(abi::Proxy, head), 8);
        name("landing_head", kKindWord, pe, at + offsetof(abi::Proxy, landing_head), 8);
        name("taken.seen", kKindWord, pe, at + offsetof(abi::Proxy, taken), 8);
        name("taken.polled", kKindWord, pe, at + offsetof(abi::Proxy, taken) + 8, 8);
        name("completed.seen", kKindWord, pe, at + offsetof(abi::Proxy, completed), 8);
        name("completed.polled", kKindWord, pe, at + offsetof(abi::Proxy, completed) + 8, 8);
        name("failures", kKindWord, pe, at + offsetof(abi::Proxy, failures), 8);
        if (sizeof(abi::Proxy) > 512) {
            name("breakage", kKindError, pe, at + 512, static_cast<uint32_t>(sizeof(abi::Proxy) - 512));
        }
        const oxshmem_explore_proxy host{pe,           proxy.depth_log2, proxy.landing_log2,   0,
                                         proxy.slots,  proxy.taken_word, proxy.completed_word, proxy.acknowledgements,
                                         proxy.landing};
        out.proxy(out.context, &host);
    }

    // Bytes of the table of nodes: where each begins, the end, and the members.
    uint64_t nodes_bytes() const { return sizeof(int32_t) * (2 * program.pes + 1); }

    // Each PE is a node of its own, whose table lies at `nodes`.
    void team(uint64_t at, uint32_t pe, uint64_t heap, uint64_t nodes) const {
        for (uint32_t i = 0; i < 2 * program.pes + 1; ++i) {
            const int32_t entry = static_cast<int32_t>(i <= program.pes ? i : i - program.pes - 1);
            out.set(out.context, nodes + i * sizeof(entry), &entry, sizeof(entry), 1);
        }
        name("nodes", kKindConstant, pe, nodes, sizeof(int32_t), 2 * program.pes + 1);
        abi::Team team{};
        team.n_nodes = program.pes;
        team.my_node = pe;
        team.rails = 1;
        team.nodes = nodes;
        team.handle = abi::kTeamWorld;
        team.my_pe = static_cast<int32_t>(pe);
        team.n_pes = static_cast<int32_t>(program.pes);
        team.stride = 1;
        team.one_round = program.direct != 0 && program.rounds == 0 ? 1 : 0;
        team.packet_share = static_cast<uint32_t>(abi::kPacketBytes / program.pes / 32 * 32);
        team.block_share = static_cast<uint32_t>(abi::kBlockPacketBytes / (program.pes > 2 ? program.pes - 1 : 1) / 32 * 32);
        team.epoch = program.epoch;
        team.workspace = heap + kWorkspaceAt;
        team.grid_words = heap + kGridWordsAt;
        const bool is_chosen = program.algorithm != kLibrarysChoice && program.algorithm != kLibrarysPush;
        const auto kPackets = static_cast<uint32_t>(abi::Algorithm::packets),
                   kPush = static_cast<uint32_t>(abi::Algorithm::push);
        for (auto &choices : team.choices) {
            choices[0] = {~0ull, is_chosen ? program.algorithm : program.algorithm == kLibrarysPush ? kPush : kPackets, 0};
        }
        team.chosen = is_chosen ? ~0u : 0;
        out.set(out.context, at, &team, sizeof(team), 1);
        name("team row", kKindConstant, pe, at, 8, sizeof(team) / 8);
        name("epoch", kKindWord, pe, at + offsetof(abi::Team, epoch), 4);
        set(at + offsetof(abi::Team, epoch), team.epoch, false);
        name("entered", kKindWord, pe, at + offsetof(abi::Team, entered), 4);
        name("stopped", kKindWord, pe, at + offsetof(abi::Team, stopped), 4);
        name("grid", kKindWord, pe, at + offsetof(abi::Team, grid), 8);
        // What the last two meetings have left; before the first there is nothing.
        for (uint32_t back = 0; program.epoch > 3 && back < 2; ++back) {
            const uint32_t epoch = team.epoch - back;
            const uint64_t header = static_cast<uint64_t>(epoch) << 32 | 1u << abi::kCallShift;
            const uint64_t parity = epoch & 1;
            for (uint64_t i = 0; i < program.pes; ++i) {
                set(team.workspace + (parity * abi::kRounds + i) * 8, header, false);
                set(team.workspace + abi::kHeadersAt + (parity * abi::kOneRoundPes + i) * 8, header, false);
            }
        }
    }

    void pe(uint32_t pe) {
        abi::State state{};
        const uint32_t n = program.pes;
        state.magic = abi::kMagic;
        state.abi_version = abi::kAbiVersion;
        state.bytes = sizeof(state);
        state.my_pe = static_cast<int32_t>(pe);
        state.n_pes = static_cast<int32_t>(n);
        state.network = program.network;
        const uint32_t per_node = program.direct != 0 ? n : program.per_node != 0 ? program.per_node : 1;
        const uint32_t first = pe / per_node * per_node, rest = n - first;
        state.p2p_first = static_cast<int32_t>(first);
        state.p2p_count = static_cast<int32_t>(rest < per_node ? rest : per_node);
        state.p2p_run = static_cast<uint32_t>(state.p2p_count);
        const uint64_t heap = out.base + kHeapsAt + pe * kHeapBytes;
        state.heap_base = heap;
        state.heap_bytes = kHeapBytes;
        name("heap", kKindHeap, pe, heap, 8, kHeapBytes / 8);
        state.chunk_log2 = 17;
        state.max_chunks = 1;
        state.qps_per_pe = program.qps_per_pe;
        state.cards = program.cards;
        state.lkeys = constants.take(4 * state.cards);
        name("lkeys", kKindConstant, pe, state.lkeys, 4, state.cards);
        state.rkeys = constants.take(4 * state.cards * n);
        name("rkeys", kKindConstant, pe, state.rkeys, 4, state.cards * n);
        for (uint32_t card = 0; card < state.cards; ++card) {
            set(state.lkeys + 4 * card, port::byte_swap(kHeapKey + card * kCardKeys + pe), true);
            for (uint32_t peer = 0; peer < n; ++peer) {
                set(state.rkeys + 4 * (card * n + peer), port::byte_swap(kHeapKey + card * kCardKeys + peer), true);
            }
            state.slab_lkeys[card] = port::byte_swap(kSlabKey + card * kCardKeys);
        }
        state.atomics_on_first_card = program.cards > 1 ? 1 : 0;
        state.flush_on_quiet = program.cards > 1 ? 1 : 0;
        set_order(state, 3u << 5);
        state.inline_up_to = abi::kInlineOneBlock;
        state.direct_up_to = program.ring_log2 != 0 ? state.inline_up_to : static_cast<uint32_t>(abi::kMaxMessageBytes);
        state.local_regions = constants.take(sizeof(abi::LocalRegion));
        state.n_local_regions = constants.take(8);
        name("n_local_regions", kKindConstant, pe, state.n_local_regions, 8);
        set(state.n_local_regions, uint64_t{0}, true);
        state.used = take("used", kKindUsed, pe, 8);
        set(state.used,
            program.posted != 0
                ? ~0ull >> (64 - n * program.qps_per_pe) & ~(((1ull << program.qps_per_pe) - 1) << pe * program.qps_per_pe)
                : 0ull,
            false);
        state.control = others.take(sizeof(abi::Control), 128);
        name("abort", kKindControl, pe, state.control, 4);
        name("claimed", kKindError, pe, state.control + 4, 4);
        name("error", kKindError, pe, state.control + 8, sizeof(abi::ErrorRecord));
        state.timeout_ns = kNanosecondsToDeadline;
        state.teams = constants.take(sizeof(abi::Team), 128);
        team(state.teams, pe, heap, constants.take(nodes_bytes(), 128));
        state.max_teams = 1;
        state.collective_blocks = EXPLORE_SHARING_BLOCKS;
        set_device_queues(state, program.host_queues == 0);
        if (program.network == static_cast<uint32_t>(abi::Network::ibgda)) {
            state.qps = constants.take(sizeof(abi::Qp) * n * program.qps_per_pe, 128);
            for (uint32_t peer = 0; peer < n; ++peer) {
                for (uint32_t queue = 0; peer != pe && queue < program.qps_per_pe; ++queue) {
                    const uint32_t index = peer * program.qps_per_pe + queue;
                    qp(state.qps + index * sizeof(abi::Qp), state.used, pe, peer, index);
                }
            }
        } else if (program.network == static_cast<uint32_t>(abi::Network::ibrc)) {
            state.proxy = constants.take(sizeof(abi::Proxy), 128);
            proxy(state.proxy, pe);
        }
        if (program.more != nullptr) {
            program.more(*this, pe, state);
        }
        abi::State *const kept = static_cast<abi::State *>(out.states) + pe;
        std::memcpy(static_cast<void *>(kept), &state, sizeof(state));
        out.state(out.context, pe, kept);
    }
};

inline void set_up(const oxshmem_explore_program *program, const oxshmem_explore_setup *setup) {
    Layout layout{*program,
                  *setup,
                  {setup->base, setup->base + kConstantBytes},
                  {setup->base + kConstantBytes, setup->base + kConstantBytes + kOtherBytes}};
    for (uint32_t pe = 0; pe < program->pes; ++pe) {
        layout.pe(pe);
    }
    if (program->initial != nullptr) {
        program->initial();
    }
}

} // namespace explore

extern "C" __attribute__((visibility("default"))) const oxshmem_explore_module *
oxshmem_explore_open(const oxshmem_explore_hooks *hooks) {
    static_assert(sizeof(oxshmem::abi::State) <= 1024);
    static const oxshmem_explore_module module = {
        kExploreVersion,
        sizeof(explore::kPrograms) / sizeof(explore::kPrograms[0]),
        explore::kPrograms,
        [](oxshmem_explore_thread *thread) { oxshmem_explore_current = thread; },
        explore::set_up,
        explore::kConstantBytes,
        explore::kSharedBytes,
        explore::kHeapsAt,
        explore::kHeapBytes,
        explore::kWorkspaceAt,
        // The places of further blocks follow the first one's, up to the end of the heap.
        explore::kHeapBytes - explore::kWorkspaceAt,
        oxshmem::abi::kCqeCounterBits,
        oxshmem::abi::kStampLapBits,
        oxshmem::abi::kGateReservedShift,
        oxshmem::abi::kGateGroupBits,
        oxshmem::abi::kGateOneGroup,
        oxshmem::abi::kGateBatonFree,
    };
    oxshmem_explore_calls = hooks;
    return &module;
}
