// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs that use an aggregating context between two nodes. Block 0 of each PE is the service
// of its PE; the other blocks post to the other node, or watch what arrives.
//
// Rings lie in the heaps, as in the product. They have two segments of one to four of the shortest
// records, so that positions pass the end of a ring after a few of them.
#include "program.h"

#include <initializer_list>

#include <oxshmem/detail/aggregate/service.h>

namespace explore {

using detail::order;
using detail::reach;

// Offsets in the heaps. Each node has a ring for the other one, and an inbox for what that sends.
constexpr uint32_t kNodes = 2;
constexpr uint64_t kMostRingBytes = 128;
constexpr uint64_t kRingsAt = 0x4000, kRingBytes = sizeof(abi::AggregateRing) + kMostRingBytes;
constexpr uint64_t kInboxesAt = kRingsAt + kNodes * kRingBytes, kInboxBytes = sizeof(abi::AggregateInbox) + kMostRingBytes;
constexpr uint64_t kServiceAt = 0x500; // a word: the address of the PE's abi::AggregateService
constexpr uint64_t kEndedAt = 0x508;   // a word: threads of the PE's node whose operations are complete
static_assert(kRingsAt % 128 == 0 && kRingBytes % 128 == 0 && kInboxBytes % 128 == 0);

// Lays out the tables of a PE's aggregating context, whose rings have segments of 2^kSegmentLog2
// bytes.
template <uint32_t kSegmentLog2, uint64_t kAge> void lay_out(Layout &layout, uint32_t pe, const abi::State &state);

constexpr uint64_t kNever = ~0ull;

// The service of the calling thread's PE. What its threads do not write may be read directly.
abi::AggregateService &service() {
    return *reinterpret_cast<abi::AggregateService *>(
        port::load<order::relaxed, reach::device>(heap<const uint64_t>(kServiceAt)));
}

aggregate::Context aggregating() {
    return service().context;
}

// A word of a peer's heap as it is there now.
template <class T = uint64_t> T word_at(int pe, uint64_t offset) {
    return port::load<order::relaxed, reach::system>(detail::translate(heap<const T>(offset), pe));
}

// Serves by the whole warp until the condition holds.
template <class Done> void serve_until(Done done) {
    const uint32_t lanes = (1u << port::block_threads()) - 1;
    const auto first_says = [lanes](auto question) { return port::shfl(lanes, lane() == 0 && question(), 0); };
    while (!first_says(done)) {
        detail::aggregate::serve(service(), 1, kNever, oxshmem::warp);
        const bool broken = first_says([] { return port::read(&service().broken) != 0; });
        expect(!broken, "a service finds a record that no PE has written");
    }
}

// Threads of the calling thread's PE that post.
uint32_t posters_of_pe() {
    return (port::grid_blocks() - 1) * port::block_threads();
}

// The number of the calling thread among those that post on its node.
uint32_t poster() {
    return static_cast<uint32_t>(me()) % 2 * posters_of_pe() + (block() - 1) * port::block_threads() + lane();
}

// Tells the services of the node that the operations of the calling thread are complete.
void end_posting() {
    for (uint32_t pe = 0; pe < static_cast<uint32_t>(port::state().p2p_count); ++pe) {
        uint64_t *const ended = detail::translate(heap<uint64_t>(kEndedAt), port::state().p2p_first + static_cast<int>(pe));
        port::fetch_add<order::release, reach::system>(ended, uint64_t{1});
    }
}

// Posts by all threads of the first node, of which each calls `post` with a context and completes
// it; the second node applies `records` records, of which `watch` sees what its other blocks see.
template <class Post, class Watch> void from_first_node(uint64_t records, Post post, Watch watch) {
    const aggregate::Context context = aggregating();
    if (context.my_node == 0 && block() != 0) {
        post(context);
        end_posting();
    } else if (context.my_node == 0) {
        const uint64_t posters = posters_of_pe() * static_cast<uint64_t>(port::state().p2p_count);
        serve_until([&] { return port::load<order::acquire, reach::system>(heap<const uint64_t>(kEndedAt)) == posters; });
    } else if (block() != 0) {
        watch();
    } else if (service().n_receives != 0) {
        serve_until([&] { return port::read(&service().records) >= records; });
        expect(lane() != 0 || port::read(&service().records) == records, "more records are applied than were appended");
    }
}

template <class Post> void from_first_node(uint64_t records, Post post) {
    from_first_node(records, post, [] {});
}

// The first PE of the second node.
int receiver() {
    return aggregating().my_node == 0 ? port::state().p2p_first + port::state().p2p_count : me();
}

// Each thread puts some words, and waits for them.
template <uint32_t kPosters> void puts() {
    constexpr uint32_t kWords = 3;
    from_first_node(kPosters * kWords, [](const aggregate::Context &context) {
        const int to = receiver();
        for (uint32_t i = 0; i < kWords; ++i) {
            oxshmem::p(context, place(poster(), i), value(poster(), i), to);
        }
        oxshmem::quiet(context);
        for (uint32_t i = 0; i < kWords; ++i) {
            expect(word_at(to, poster() * 1024 + i * 16) == value(poster(), i), "quiet returned before a word was there");
        }
    });
}

// Adds to one word, to bits of the calling thread's own, and waits after every second time: each
// addition is done once.
void add_four(const aggregate::Context &context) {
    const int to = receiver();
    for (uint64_t i = 1; i <= 4; ++i) {
        oxshmem::atomic_add(context, heap<uint64_t>(0x600), 1ull << (poster() * 8), to);
        if (i % 2 == 0) {
            oxshmem::quiet(context);
            const uint64_t done = word_at(to, 0x600) >> (poster() * 8) & 0xff;
            expect(done <= i, "an addition was done twice");
            expect(done >= i, "quiet returned before an addition was done");
        }
    }
}

template <uint32_t kPosters> void adds() {
    from_first_node(kPosters * 4, add_four);
}

// The same, where two slices of the service may be at work at each PE: blocks 0 and 1.
void two_slices() {
    const bool sends = aggregating().my_node == 0;
    if (block() == 2) {
        add_four(aggregating());
        end_posting();
        return;
    }
    serve_until([sends] {
        // While the other one is at work, `serve` has returned at once.
        port::pause();
        return sends ? port::load<order::acquire, reach::system>(heap<const uint64_t>(kEndedAt)) == 1
                     : port::load<order::acquire, reach::device>(&service().records) >= 4;
    });
    expect(sends || port::read(&service().records) == 4, "more records are applied than were appended");
}

// Additions whose waits for room, or for their completion, may reach a deadline. The last thread
// then takes the error, as the host does, and goes on as the next launch: a call that has failed
// has left the ring as it was, so the records of all others and the next ones are applied.
void adds_late() {
    uint64_t *const over = heap<uint64_t>(0x518);
    const aggregate::Context context = aggregating();
    if (block() == 0) {
        serve_until([over] { return port::load<order::acquire, reach::system>(over) == 1; });
        return;
    }
    for (uint32_t i = 0; i < 3; ++i) {
        oxshmem::atomic_add(context, heap<uint64_t>(0x600), 1ull << (poster() * 8), receiver());
    }
    oxshmem::quiet(context);
    port::fence<order::acq_rel, reach::system>();
    if (port::fetch_add<order::acq_rel, reach::device>(heap<uint32_t>(0x7f8), 1u) + 1 != posters_of_pe()) {
        return;
    }
    abi::Control &control = detail::control();
    const bool was_late = port::load<order::relaxed, reach::device>(&control.claimed) != 0;
    expect(!was_late || port::load<order::relaxed, reach::device>(&control.error.code) ==
                            static_cast<uint32_t>(abi::ErrorCode::aggregate_stalled),
           "another error than that of records which wait is reported");
    port::store<order::relaxed, reach::system>(&control.claimed, 0u);
    port::store<order::relaxed, reach::system>(&control.abort, 0u);
    port::fence<order::acq_rel, reach::system>();
    oxshmem::atomic_add(context, heap<uint64_t>(0x600), 1ull << 48, receiver());
    oxshmem::quiet(context);
    if (port::load<order::relaxed, reach::device>(&control.claimed) == 0) {
        const uint64_t done = word_at(receiver(), 0x600);
        expect(done >> 48 == 1, "quiet returned before the addition of the next launch was done");
        for (uint32_t poster = 0; poster < posters_of_pe(); ++poster) {
            const uint64_t times = done >> (poster * 8) & 0xff;
            expect(times <= 3 && (was_late || times == 3), "an addition was done twice, or is lost");
        }
    }
    for (int pe = 0; pe < port::state().n_pes; ++pe) {
        port::store<order::release, reach::system>(detail::translate(over, pe), uint64_t{1});
    }
}

// One thread puts ascending numbers to a word of the other node, which is seen to ascend, and
// flushes in between.
void ascending() {
    from_first_node(
        5,
        [](const aggregate::Context &context) {
            if (lane() != 0) {
                return;
            }
            for (uint64_t i = 1; i <= 5; ++i) {
                oxshmem::p(context, heap<uint64_t>(0x600), i, receiver());
                if (i % 2 == 0) {
                    oxshmem::flush(context);
                }
            }
            oxshmem::quiet(context);
        },
        [] {
            for (uint64_t last = 0; last != 5; port::pause()) {
                const uint64_t seen = port::load<order::relaxed, reach::system>(heap<const uint64_t>(0x600));
                expect(seen >= last, "a put was applied before an earlier one of the same thread, or twice");
                last = seen;
            }
        });
}

// Data and their signal: a thread that sees the signal sees the data. The put takes longer records
// than the signal, so segments end with a gap.
template <uint32_t kTurns> void signalled() {
    from_first_node(
        kTurns * 2,
        [](const aggregate::Context &context) {
            if (lane() != 0) {
                return;
            }
            for (uint64_t turn = 1; turn <= kTurns; ++turn) {
                const uint64_t data[2] = {value(0, static_cast<uint32_t>(turn)), value(1, static_cast<uint32_t>(turn))};
                uint64_t *const to = heap<uint64_t>(0x700 + turn % 2 * 16);
                oxshmem::putmem_signal(context, oxshmem::thread, to, data, sizeof(data), heap<uint64_t>(0x600), turn,
                                       SIGNAL_SET, receiver());
            }
            oxshmem::quiet(context);
        },
        [] {
            for (uint64_t turn = 1; turn <= kTurns;) {
                const uint64_t seen = port::load<order::acquire, reach::system>(heap<const uint64_t>(0x600));
                if (seen < turn) {
                    port::pause();
                    continue;
                }
                const uint64_t *const from = heap<const uint64_t>(0x700 + seen % 2 * 16);
                // What is put after the next signal may be there already.
                const uint64_t first = port::load<order::relaxed, reach::system>(from);
                expect(first == value(0, static_cast<uint32_t>(seen)) || first == value(0, static_cast<uint32_t>(seen) + 2),
                       "a signal was there before its data");
                turn = seen + 1;
            }
        });
}

// A word and its signal, each of the shortest record: a thread that sees the signal sees the word.
void signalled_word() {
    from_first_node(
        4,
        [](const aggregate::Context &context) {
            if (lane() != 0) {
                return;
            }
            for (uint64_t turn = 1; turn <= 2; ++turn) {
                oxshmem::putmem_signal(context, oxshmem::thread, heap<uint64_t>(0x680), &turn, sizeof(turn),
                                       heap<uint64_t>(0x600), turn, SIGNAL_SET, receiver());
            }
            oxshmem::quiet(context);
        },
        [] {
            for (uint64_t turn = 0; turn != 2; port::pause()) {
                turn = port::load<order::acquire, reach::system>(heap<const uint64_t>(0x600));
                const uint64_t seen = port::load<order::relaxed, reach::system>(heap<const uint64_t>(0x680));
                expect(seen >= turn, "a signal was there before its word");
            }
        });
}

// A fence between puts to the two PEs' words.
void fenced() {
    from_first_node(
        4,
        [](const aggregate::Context &context) {
            if (lane() != 0) {
                return;
            }
            for (uint64_t i = 1; i <= 2; ++i) {
                oxshmem::p(context, heap<uint64_t>(0x600), i, receiver());
                oxshmem::fence(context);
                oxshmem::p(context, heap<uint64_t>(0x680), i, receiver());
            }
            oxshmem::quiet(context);
        },
        [] {
            for (uint64_t later = 0; later != 2; port::pause()) {
                later = port::load<order::acquire, reach::system>(heap<const uint64_t>(0x680));
                const uint64_t earlier = port::load<order::relaxed, reach::system>(heap<const uint64_t>(0x600));
                expect(earlier >= later, "a put after a fence was there before the one before it");
            }
        });
}

// One thread puts, and another one that it has told completes that.
void quiet_of_other() {
    uint64_t *const flag = heap<uint64_t>(0x510);
    from_first_node(2, [flag](const aggregate::Context &context) {
        if (block() == 1) {
            oxshmem::p(context, place(0, 0), value(0, 0), receiver());
            oxshmem::p(context, place(0, 1), value(0, 1), receiver());
            tell(flag, 1);
        } else {
            await(flag, 1);
            oxshmem::quiet(context);
            expect(word_at(receiver(), 0) == value(0, 0) && word_at(receiver(), 16) == value(0, 1),
                   "quiet returned before what another thread had put before it");
        }
    });
}

// Each thread puts to both PEs of the other node, one of which applies what the other one gets.
template <uint32_t kPosters> void to_both() {
    from_first_node(kPosters * 4, [](const aggregate::Context &context) {
        for (uint32_t i = 0; i < 4; ++i) {
            oxshmem::p(context, place(poster(), i), value(poster(), i), receiver() + static_cast<int>(i % 2));
        }
        oxshmem::quiet(context);
        for (uint32_t i = 0; i < 4; ++i) {
            const int to = receiver() + static_cast<int>(i % 2);
            expect(word_at(to, poster() * 1024 + i * 16) == value(poster(), i), "quiet returned before a word was there");
        }
    });
}

// Two nodes of a PE each send to each other: acknowledgements go the way of records.
void both_ways() {
    const aggregate::Context context = aggregating();
    const int to = 1 - me();
    if (block() == 0) {
        serve_until([] {
            return port::read(&service().records) >= 3 &&
                   port::load<order::acquire, reach::system>(heap<const uint64_t>(kEndedAt)) == 1;
        });
        expect(port::read(&service().records) == 3, "more records are applied than were appended");
        return;
    }
    for (uint32_t i = 0; i < 3; ++i) {
        oxshmem::atomic_add(context, heap<uint64_t>(0x600), uint64_t{1}, to);
    }
    oxshmem::quiet(context);
    expect(word_at(to, 0x600) == 3, "quiet returned before all was added, or it was added twice");
    end_posting();
}

template <uint32_t kSegmentLog2, uint64_t kAge>
constexpr oxshmem_explore_program between(uint32_t per_node, uint32_t pes, uint32_t posting_blocks, uint32_t watching_blocks,
                                          oxshmem_explore_program program) {
    program.pes = pes;
    program.per_node = per_node;
    program.more = lay_out<kSegmentLog2, kAge>;
    for (uint32_t pe = 0; pe < pes; ++pe) {
        program.blocks[pe] = 1 + (pe < per_node ? posting_blocks : pe == per_node ? watching_blocks : 0);
    }
    // Rings, inboxes, and what signals of services change.
    program.results_at = kRingsAt;
    program.results_bytes = static_cast<uint32_t>(kInboxesAt + kNodes * kInboxBytes - kRingsAt);
    return program;
}

constexpr uint32_t kSteps = 40000;

constexpr oxshmem_explore_program kPrograms[] = {
    // One PE, or two, send to one.
    between<4, 0>(1, 2, 1, 0, posting("puts_1", puts<1>, 1, 3, kSteps)),
    between<5, kNever>(1, 2, 2, 0, posting("puts_2", puts<2>, 1, 3, kSteps)),
    between<5, 0>(2, 3, 1, 0, posting("puts_of_node", puts<2>, 1, 3, kSteps)),
    between<5, kNever>(2, 3, 2, 0, posting("puts_of_node_4", puts<4>, 1, 3, kSteps)),
    between<4, 0>(2, 3, 1, 0, posting("adds_16", adds<2>, 1, 3, kSteps)),
    between<5, 0>(2, 3, 1, 0, posting("adds", adds<2>, 1, 3, kSteps)),
    between<5, kNever>(2, 3, 1, 0, posting("adds_when_full", adds<2>, 1, 3, kSteps)),
    early(between<5, 0>(2, 3, 1, 0, posting("adds_early", adds<2>, 1, 3, kSteps))),
    // Lanes reserve together, within a segment and across its end.
    between<4, 0>(1, 2, 1, 0, warps_of(2, posting("adds_lanes_16", adds<2>, 1, 2, kSteps))),
    between<5, kNever>(2, 3, 1, 0, warps_of(2, posting("adds_lanes", adds<4>, 1, 2, kSteps))),
    early(between<5, 0>(1, 2, 2, 0, warps_of(2, posting("adds_lanes_early", adds<4>, 1, 2, kSteps)))),
    between<5, 0>(1, 2, 2, 1, posting("two_slices", two_slices, 1, 3, kSteps)),
    between<5, kNever>(1, 2, 1, 1, posting("ascending", ascending, 1, 3, kSteps)),
    early(between<4, 0>(1, 2, 1, 1, posting("ascending_early", ascending, 1, 3, kSteps))),
    between<5, kNever>(1, 2, 1, 1, posting("signalled", signalled<3>, 1, 3, kSteps)),
    early(between<5, 0>(1, 2, 1, 1, posting("signalled_early", signalled<3>, 1, 3, kSteps))),
    between<5, kNever>(1, 2, 1, 1, warps_of(2, posting("ascending_lanes", ascending, 1, 2, kSteps))),
    between<6, kNever>(1, 2, 1, 1, warps_of(2, posting("ascending_windows", ascending, 1, 2, kSteps))),
    between<5, kNever>(1, 2, 1, 1, warps_of(2, posting("signalled_lanes", signalled<2>, 1, 2, kSteps))),
    between<5, kNever>(1, 2, 1, 1, warps_of(2, posting("signalled_word", signalled_word, 1, 2, kSteps))),
    between<5, kNever>(1, 2, 1, 1, warps_of(2, posting("fenced_lanes", fenced, 1, 2, kSteps))),
    between<5, 0>(1, 2, 1, 1, posting("fenced", fenced, 1, 3, kSteps)),
    between<5, kNever>(1, 2, 2, 0, posting("quiet_of_other", quiet_of_other, 1, 3, kSteps)),
    // Two PEs to two.
    between<5, 0>(2, 4, 1, 0, posting("to_both", to_both<2>, 1, 3, kSteps)),
    between<5, kNever>(2, 4, 1, 0, posting("to_both_when_full", to_both<2>, 1, 3, kSteps)),
    between<5, 0>(1, 2, 1, 1, posting("both_ways", both_ways, 1, 3, kSteps)),
    // Full rings, whose deadlines pass.
    late(1, between<4, 0>(1, 2, 2, 0, posting("adds_late", adds_late, 1, 3, kSteps))),
    late(2, between<4, kNever>(1, 2, 1, 0, posting("adds_late_alone", adds_late, 1, 3, kSteps))),
    late(2, between<4, kNever>(1, 2, 1, 0, warps_of(2, posting("adds_late_lanes", adds_late, 1, 2, kSteps)))),
    // By the CPU proxy.
    by_proxy(between<4, 0>(1, 2, 1, 0, posting("puts_ibrc", puts<1>, 1, 3, kSteps))),
    by_proxy(between<5, 0>(2, 3, 1, 0, posting("adds_ibrc", adds<2>, 1, 3, kSteps))),
};

} // namespace explore

#include "module.h"

namespace explore {

template <uint32_t kSegmentLog2, uint64_t kAge> void lay_out(Layout &layout, uint32_t pe, const abi::State &state) {
    const oxshmem_explore_program &program = layout.program;
    const uint32_t per_node = program.per_node, n = program.pes, mine = pe / per_node, others = 1 - mine;
    const auto size = [&](uint32_t node) { return node == 0 ? per_node : n - per_node; };
    const auto heap_of = [&](uint32_t of) { return layout.out.base + kHeapsAt + of * kHeapBytes; };
    // The PEs that send and apply what node `s` has for node `d`.
    const auto rail = [&](uint32_t s, uint32_t d) { return s * per_node + d % size(s); };
    const auto receiver = [&](uint32_t s, uint32_t d) { return d * per_node + s % size(d); };
    static_assert(uint64_t{abi::kAggregateSegments} << kSegmentLog2 <= kMostRingBytes);

    const uint64_t tables =
        layout.constants.take(sizeof(abi::AggregateService) + kNodes * sizeof(abi::AggregateNode) + (n + 2) * 64, 128);
    const uint64_t nodes = tables + sizeof(abi::AggregateService), members = nodes + kNodes * sizeof(abi::AggregateNode);
    const uint64_t links = members + 64, own = links + 2 * sizeof(abi::AggregateLink);
    for (uint32_t i = 0; i < n; ++i) {
        layout.set(members + i * sizeof(abi::AggregateMember), abi::AggregateMember{i / per_node, i % per_node}, true);
        layout.set(own + i * sizeof(int32_t), static_cast<int32_t>(mine * per_node + i), true);
    }
    for (uint32_t node = 0; node < kNodes; ++node) {
        const uint64_t at = nodes + node * sizeof(abi::AggregateNode);
        abi::AggregateNode made{};
        if (node != mine) {
            made.ring = heap_of(rail(mine, node)) + kRingsAt + mine * kRingBytes;
            made.rail = static_cast<int32_t>(rail(mine, node));
            made.receiver = static_cast<int32_t>(receiver(mine, node));
        }
        layout.set(at, made, true);
        layout.name("used", kKindWord, pe, at + offsetof(abi::AggregateNode, used), 8);
        layout.name("room", kKindWord, pe, at + offsetof(abi::AggregateNode, room), 8);
        layout.set(at + offsetof(abi::AggregateNode, room), uint64_t{abi::kAggregateSegments} << kSegmentLog2, false);
    }

    abi::AggregateService made{};
    made.context.beside = {};
    made.context.beside.stride = 1;
    made.context.beside.n_pes = static_cast<int32_t>(n);
    made.context.beside.qp_bytes = program.qps_per_pe * sizeof(abi::Qp);
    made.context.beside.qps = state.qps;
    made.context.beside.used = state.used;
    made.context.members = members;
    made.context.nodes = nodes;
    made.context.n_pes = static_cast<int32_t>(n);
    made.context.n_nodes = kNodes;
    made.context.my_node = mine;
    made.context.my_number = pe % per_node;
    made.context.segment_log2 = kSegmentLog2;
    made.sends = links;
    made.receives = links + sizeof(abi::AggregateLink);
    made.own_node = own;
    made.n_sends = rail(mine, others) == pe ? 1 : 0;
    made.n_receives = receiver(others, mine) == pe ? 1 : 0;
    made.n_own_node = size(mine);
    made.age_ns = kAge;
    layout.set(tables, made, true);
    for (const size_t at : {offsetof(abi::AggregateService, busy), offsetof(abi::AggregateService, segments),
                            offsetof(abi::AggregateService, segment_bytes), offsetof(abi::AggregateService, acknowledgements),
                            offsetof(abi::AggregateService, records), offsetof(abi::AggregateService, broken),
                            offsetof(abi::AggregateService, serving)}) {
        layout.name("counts of the service", kKindWord, pe, tables + at, 8);
        layout.set(tables + at, uint64_t{0}, false);
    }
    const auto link = [&](uint32_t s, uint32_t peer) {
        return abi::AggregateLink{heap_of(pe) + kRingsAt + s * kRingBytes, heap_of(pe) + kInboxesAt + s * kInboxBytes,
                                  static_cast<int32_t>(peer), others};
    };
    layout.set(links, link(mine, receiver(mine, others)), true);
    layout.set(links + sizeof(abi::AggregateLink), link(others, rail(others, mine)), true);
    layout.set(heap_of(pe) + kServiceAt, tables, false);

    for (uint32_t s = 0; s < kNodes; ++s) {
        const uint64_t ring = heap_of(pe) + kRingsAt + s * kRingBytes, inbox = heap_of(pe) + kInboxesAt + s * kInboxBytes;
        layout.name("tail", kKindHeap, pe, ring + offsetof(abi::AggregateRing, tail), 8);
        layout.name("wanted", kKindHeap, pe, ring + offsetof(abi::AggregateRing, wanted), 8);
        layout.name("acknowledged", kKindHeap, pe, ring + offsetof(abi::AggregateRing, applied), 8);
        layout.name("sent", kKindHeap, pe, ring + offsetof(abi::AggregateRing, sent), 8);
        layout.name("since", kKindHeap, pe, ring + offsetof(abi::AggregateRing, since), 8);
        layout.name("written", kKindHeap, pe, ring + offsetof(abi::AggregateRing, written), 8, abi::kAggregateSegments);
        layout.name("ring", kKindHeap, pe, ring + sizeof(abi::AggregateRing), 8, kMostRingBytes / 8);
        layout.name("arrived", kKindHeap, pe, inbox + offsetof(abi::AggregateInbox, arrived), 8);
        layout.name("applied", kKindHeap, pe, inbox + offsetof(abi::AggregateInbox, applied), 8);
        layout.name("inbox", kKindHeap, pe, inbox + sizeof(abi::AggregateInbox), 8, kMostRingBytes / 8);
    }
}

} // namespace explore
