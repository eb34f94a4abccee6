// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The solver: one launch does all iterations. Its blocks run at the same time and meet after each.
//
// A PE holds `rows` rows of the mesh, and one row more at each end: its neighbours' next rows, or
// the mesh's own fixed ones. Two fields take turns as input and output. Rows are cut into chunks of
// as many columns as a block has threads, times four; a chunk of a row is what a block works on at
// a time, and what is sent. The block that needs a neighbour's chunk waits for its signal, and
// nothing else does:
//
// * what is written into a neighbour's field is its input one iteration later, and is written again
//   two iterations later. The sender has by then got what the neighbour has computed from it;
// * that is also why what is sent may be overwritten: its arrival has been answered.

#include "grid.h"
#include "stencil.h"

namespace jacobi {

using namespace perftest;
using stencil::chunk_columns;
using stencil::sweep;

// Mirrored in solver.rs.
struct Problem {
    float *fields[2];   // symmetric: the first is the first input
    uint64_t *signals;  // symmetric: by chunk what has come from above, then what has come from below
    uint64_t *arrivals; // own, 0: see grid_meets
    double *partial;    // own, a word for each block
    double *change;     // symmetric: the sum of squares of this PE, and of all
    uint64_t *results;  // own: begin and end in ns, iterations done, bits of the last sum of squares
    uint64_t columns, pitch, rows;
    int64_t above, below; // the neighbours, -1 for none
    uint64_t above_row;   // where the neighbour above keeps this PE's first row; the one below keeps the last in row 0
    uint64_t iterations;
    uint64_t measure; // the change is measured after this many iterations; 0: never
    double enough;    // and the solver stops when its sum of squares is at most this
    uint64_t base;    // iterations of earlier launches: signals only grow
};

enum class Variant { p, put, overlap };

// One of the two rows that a neighbour needs: where it is here, at which PE and address it has to
// arrive, and with which signals.
struct Edge {
    int64_t pe;
    const float *row;
    float *there;
    uint64_t *signals;
};

// A run of the chunks of rows `from` to before `to`, which are counted from the top of the first
// chunk to the bottom of the last: `count` of them, from row `row` of chunk `chunk` on.
struct Part {
    uint64_t from, to;
    uint64_t chunk, row, count;
};

// What a block does in each iteration. It takes divisions, so it is found out once; and it lies in
// shared memory, since the loop over the mesh needs the registers.
struct Plan {
    uint64_t chunks;  // of a row
    bool top, bottom; // rows that a neighbour waits for, which are dealt out chunk by chunk
    Part inner;       // of the other rows
};

OXSHMEM_DEVICE Edge edge(const Problem &m, const Plan &plan, float *out, bool top) {
    return top ? Edge{m.above, out + m.pitch, out + m.above_row * m.pitch, m.signals + plan.chunks}
               : Edge{m.below, out + m.rows * m.pitch, out, m.signals};
}

// What signals say in an iteration: those waited for, and those sent.
struct Turn {
    uint64_t come, sent;
};

// A chunk of an edge, by the block.
template <Variant kVariant> OXSHMEM_DEVICE void send(const Problem &m, const Edge &e, uint64_t chunk, uint64_t sent) {
    if (e.pe < 0) {
        return;
    }
    const int pe = static_cast<int>(e.pe);
    const uint64_t first = chunk * chunk_columns();
    const uint64_t width = m.columns - first < chunk_columns() ? m.columns - first : chunk_columns();
    // All of the block's threads have stored their values before others send them.
    port::sync_block();
    if (kVariant == Variant::p) {
        // Two values a word; adjacent lanes put adjacent words, which combine on their way through
        // a network.
        const auto *from = reinterpret_cast<const uint64_t *>(e.row + first);
        auto *to = reinterpret_cast<uint64_t *>(e.there + first);
        for (uint64_t c = port::thread_rank(); c < width / 2; c += port::block_threads()) {
            p(to + c, from[c], pe);
        }
        if (width % 2 != 0 && port::thread_rank() == 0) {
            p(e.there + first + width - 1, e.row[first + width - 1], pe);
        }
        port::sync_block();
        if (port::thread_rank() == 0) {
            fence();
            signal_op(e.signals + chunk, sent, SIGNAL_SET, pe);
        }
    } else {
        put_signal_nbi(block, e.there + first, e.row + first, width, e.signals + chunk, sent, SIGNAL_SET, pe);
    }
}

// Whether what the neighbours have to send for rows `first` to before `last` has come.
OXSHMEM_DEVICE bool await(const Problem &m, const Plan &plan, uint64_t chunk, uint64_t first, uint64_t last, uint64_t come) {
    const bool top = first == 1 && m.above >= 0, bottom = last == m.rows + 1 && m.below >= 0;
    return (!top || block_awaits(m.signals + chunk, come)) && (!bottom || block_awaits(m.signals + plan.chunks + chunk, come));
}

// The block's work on a part of the mesh in one iteration.
template <Variant kVariant, bool kMeasure>
OXSHMEM_DEVICE bool run(const Problem &m, const Plan &plan, const float *in, float *out, Part part, Turn turn, double &sum) {
    while (part.count != 0) {
        const uint64_t first = part.row;
        const uint64_t last = part.to - first < part.count ? part.to : first + part.count;
        if (!await(m, plan, part.chunk, first, last, turn.come)) {
            return false;
        }
        sum += sweep<kMeasure>(in, out, m.columns, m.pitch, part.chunk, first, last);
        // put sends when all blocks are through.
        if (kVariant != Variant::put && first == 1) {
            send<kVariant>(m, edge(m, plan, out, true), part.chunk, turn.sent);
        }
        if (kVariant != Variant::put && last == m.rows + 1) {
            send<kVariant>(m, edge(m, plan, out, false), part.chunk, turn.sent);
        }
        part.count -= last - first;
        part.chunk += 1, part.row = part.from;
    }
    return true;
}

// put takes the rows in their order. The others begin with those that neighbours wait for.
template <Variant kVariant> OXSHMEM_DEVICE Plan make_plan(const Problem &m) {
    Plan plan;
    plan.chunks = (m.columns + chunk_columns() - 1) / chunk_columns();
    plan.top = kVariant != Variant::put && m.above >= 0;
    plan.bottom = kVariant != Variant::put && m.below >= 0 && (m.rows > 1 || !plan.top);
    const uint64_t from = plan.top ? 2 : 1, to = plan.bottom ? m.rows : m.rows + 1, height = from < to ? to - from : 0;
    const uint64_t edges = plan.chunks * ((plan.top ? 1 : 0) + (plan.bottom ? 1 : 0));
    const stencil::Share share = stencil::inner_share(plan.chunks * height, edges);
    const uint64_t above = height == 0 ? 0 : share.first / height;
    plan.inner = {from, to, above, from + share.first - above * height, height == 0 ? 0 : share.count};
    return plan;
}

template <Variant kVariant, bool kMeasure>
OXSHMEM_DEVICE bool iterate(const Problem &m, const Plan &plan, const float *in, float *out, Turn turn, double &sum) {
    const uint64_t n = plan.chunks, edges = (plan.top ? n : 0) + (plan.bottom ? n : 0);
    for (uint64_t i = port::block_rank(); i < edges; i += port::grid_blocks()) {
        const bool top = plan.top && i < n;
        const uint64_t row = top ? 1 : m.rows, chunk = plan.top && !top ? i - n : i;
        if (!run<kVariant, kMeasure>(m, plan, in, out, Part{row, row + 1, chunk, row, 1}, turn, sum)) {
            return false;
        }
    }
    return run<kVariant, kMeasure>(m, plan, in, out, plan.inner, turn, sum);
}

// The sum over all PEs of the blocks' partial sums, by block 0. All PEs get equal bits.
OXSHMEM_DEVICE bool add_up(const Problem &m) {
    double sum = 0;
    for (uint32_t i = port::thread_rank(); i < port::grid_blocks(); i += port::block_threads()) {
        sum += m.partial[i];
    }
    sum = block_sum(sum);
    if (port::thread_rank() == 0) {
        m.change[0] = sum;
    }
    port::sync_block();
    if (reduce(block, TEAM_WORLD, op_sum, m.change + 1, m.change, 1) != 0) {
        return false;
    }
    if (port::thread_rank() == 0) {
        memcpy(m.results + 3, m.change + 1, sizeof(double));
    }
    return true;
}

template <Variant kVariant> OXSHMEM_DEVICE void solve(const Problem &m) {
    OXSHMEM_SHARED(Plan, plan);
    if (port::thread_rank() == 0) {
        plan = make_plan<kVariant>(m);
    }
    uint64_t round = 0;
    const bool first = port::block_rank() == 0, clock = first && port::thread_rank() == 0;
    if (first) {
        sync_all(block);
    }
    if (!grid_meets(m.arrivals, round)) {
        return;
    }
    if (clock) {
        m.results[0] = port::clock_ns();
    }
    for (uint64_t i = 0; i < m.iterations; ++i) {
        const float *in = m.fields[i & 1];
        float *out = m.fields[~i & 1];
        const bool measured = m.measure != 0 && (i + 1) % m.measure == 0;
        // What the first iteration reads is there from the start.
        const Turn turn{i == 0 ? 0 : m.base + i, m.base + i + 1};
        double sum = 0;
        if (!(measured ? iterate<kVariant, true>(m, plan, in, out, turn, sum)
                       : iterate<kVariant, false>(m, plan, in, out, turn, sum))) {
            return;
        }
        if (measured) {
            sum = block_sum(sum);
            if (port::thread_rank() == 0) {
                m.partial[port::block_rank()] = sum;
            }
        }
        if (!grid_meets(m.arrivals, round)) {
            return;
        }
        if (kVariant == Variant::put) {
            const uint64_t n = plan.chunks;
            for (uint64_t s = port::block_rank(); s < 2 * n; s += port::grid_blocks()) {
                send<kVariant>(m, edge(m, plan, out, s < n), s < n ? s : s - n, turn.sent);
            }
        }
        if (clock) {
            m.results[1] = port::clock_ns();
            m.results[2] = i + 1;
        }
        if (measured) {
            if (first && !add_up(m)) {
                return;
            }
            if (m.enough > 0) {
                if (!grid_meets(m.arrivals, round)) {
                    return;
                }
                double total;
                memcpy(&total, m.results + 3, sizeof(total));
                if (total <= m.enough) {
                    return;
                }
            }
        }
    }
}

} // namespace jacobi

PERFTEST_APPLICATION_KERNEL(solve_p, jacobi::Problem problem) {
    jacobi::solve<jacobi::Variant::p>(problem);
}
PERFTEST_APPLICATION_KERNEL(solve_put, jacobi::Problem problem) {
    jacobi::solve<jacobi::Variant::put>(problem);
}
PERFTEST_APPLICATION_KERNEL(solve_overlap, jacobi::Problem problem) {
    jacobi::solve<jacobi::Variant::overlap>(problem);
}

// The start of a run: `sides` has the fixed value of the first and the last column of each row, all
// else is 0.
OXSHMEM_KERNEL(start, float *field, const float *sides, uint64_t columns, uint64_t pitch, uint64_t rows) {
    const uint64_t n = rows * pitch, threads = perftest::grid_threads();
    for (uint64_t i = perftest::grid_rank(); i < n; i += threads) {
        const uint64_t column = i % pitch;
        field[i] = column == 0 || column + 1 == columns ? sides[i / pitch] : 0.0f;
    }
}

// Counts the places of `rows` rows in which two fields differ, bit by bit; found[1] gets the first.
OXSHMEM_KERNEL(compare, const uint32_t *a, const uint32_t *b, uint64_t columns, uint64_t pitch, uint64_t rows,
               uint64_t *found) {
    using namespace oxshmem::port;
    const uint64_t n = rows * pitch, threads = perftest::grid_threads();
    for (uint64_t i = perftest::grid_rank(); i < n; i += threads) {
        if (i % pitch < columns && a[i] != b[i]) {
            fetch_add<order::relaxed, reach::device>(found, uint64_t{1});
            // The complement, so that the largest is the first place and 0 means none.
            fetch_max<order::relaxed, reach::device>(found + 1, ~i);
        }
    }
}
