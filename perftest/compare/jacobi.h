// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A Jacobi solver over both libraries: a square mesh, its rows split over the PEs. One launch does
// all iterations; blocks meet after each. The rows that neighbours wait for come first and are sent
// while the others are computed: value by value by p, or by put with signal. A part of kernels.h.
#pragma once

#include "stencil.h"

namespace compare {

// The mesh has `side` columns and rows, those at the border fixed; `side` is a multiple of 4.
struct Mesh {
    uint64_t side, rows, first; // own rows, and the first of them
};

COMPARE_DEVICE Mesh mesh_of(uint64_t side, int pe, int n) {
    const stencil::Share mine = stencil::share(side - 2, static_cast<uint64_t>(n), static_cast<uint64_t>(pe));
    return {side, mine.count, mine.first + 1};
}

// What a run starts from: a parabola down the left and the right side, 0 elsewhere. Products alone,
// which round alike everywhere.
COMPARE_DEVICE float start_value(uint64_t side, uint64_t row, uint64_t column) {
    const float last = static_cast<float>(side - 1);
    const float at = static_cast<float>(row) / last, left = static_cast<float>(side - 1 - row) / last;
    return column == 0 || column + 1 == side ? at * left : 0.0f;
}

// `run`: step is the mesh's side; dst and src hold the fields, with the rows beside this PE's;
// signals hold, by chunk, what has come from above, and then what has come from below; the word
// after the clocks counts for meet_grid. For what waits for what, see apps/jacobi/kernels.cu.
template <bool kScalar> COMPARE_DEVICE void jacobi(const Run &run) {
    const int me = my_pe(), n = n_pes();
    const Mesh m = mesh_of(run.step, me, n);
    const uint64_t width = stencil::chunk_columns(), chunks = (m.side + width - 1) / width;
    float *const fields[2] = {reinterpret_cast<float *>(run.dst), reinterpret_cast<float *>(run.src)};
    uint64_t *const word = run.clock + 2 * gridDim.x;
    uint64_t round = 0;

    for (uint64_t i = grid_rank(); i < (m.rows + 2) * m.side; i += grid_threads()) {
        const float value = start_value(m.side, m.first - 1 + i / m.side, i % m.side);
        fields[0][i] = value;
        fields[1][i] = value;
    }
    meet_grid(word, round);
    if (blockIdx.x == 0) {
        barrier_all(block);
    }
    meet_grid(word, round);

    const bool top = me > 0, bottom = me + 1 < n;
    const uint64_t above_row = top ? mesh_of(m.side, me - 1, n).rows + 1 : 0;
    const uint64_t edges = chunks * ((top ? 1 : 0) + (bottom ? 1 : 0));
    const uint64_t from = top ? 2 : 1, to = bottom ? m.rows : m.rows + 1; // rows that no neighbour waits for
    const stencil::Share mine = stencil::inner_share((to - from) * chunks, edges);
    timed(run, [&](uint64_t i) {
        const float *in = fields[i & 1];
        float *out = fields[~i & 1];
        const uint64_t turn = run.base + i;
        for (uint64_t e = blockIdx.x; e < edges; e += gridDim.x) {
            const bool up = top && e < chunks;
            const uint64_t chunk = e % chunks, row = up ? 1 : m.rows, at = chunk * width;
            const uint64_t columns = m.side - at < width ? m.side - at : width;
            if (i != 0) {
                if (threadIdx.x == 0) {
                    signal_wait(run.signals + (up ? 0 : chunks) + chunk, turn);
                }
                __syncthreads();
            }
            stencil::sweep<false>(in, out, m.side, m.side, chunk, row, row + 1);
            __syncthreads();
            const float *here = out + row * m.side + at;
            float *there = out + (up ? above_row : 0) * m.side + at;
            uint64_t *signal = run.signals + (up ? chunks : 0) + chunk;
            const int pe = up ? me - 1 : me + 1;
            if (kScalar) {
                for (uint64_t c = threadIdx.x; c < columns; c += blockDim.x) {
                    p(there + c, here[c], pe);
                }
                __syncthreads();
                if (threadIdx.x == 0) {
                    fence();
                    signal_set(signal, turn + 1, pe);
                }
            } else {
                put_signal_nbi(block, reinterpret_cast<char *>(there), reinterpret_cast<const char *>(here),
                               columns * sizeof(float), signal, turn + 1, pe);
            }
        }
        const uint64_t height = to - from, end = mine.first + mine.count;
        for (uint64_t at = mine.first; at < end;) {
            const uint64_t first = from + at % height;
            const uint64_t last = to - first < end - at ? to : first + (end - at);
            stencil::sweep<false>(in, out, m.side, m.side, at / height, first, last);
            at += last - first;
        }
        meet_grid(word, round);
    });
}

} // namespace compare
