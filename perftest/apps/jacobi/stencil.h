// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What every Jacobi kernel here has in common, whatever moves the rows: the sweep over rows, and
// which block works on what. It uses CUDA's own names alone, so that the comparison with NVSHMEM
// (perftest/compare) computes with the same code.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STENCIL_DEVICE __device__ __forceinline__
#define STENCIL_OUTLINE static __device__ __noinline__
#define STENCIL_UNROLL _Pragma("unroll")
#define STENCIL_NO_UNROLL _Pragma("unroll 1")
#else
#define STENCIL_DEVICE inline
#define STENCIL_OUTLINE inline
#define STENCIL_UNROLL _Pragma("GCC unroll 4")
#define STENCIL_NO_UNROLL
#endif

namespace stencil {

// Columns of a thread. A block works on a chunk of a row at a time: as many columns as it has
// threads, times this.
constexpr uint64_t kLane = 4;

STENCIL_DEVICE uint64_t chunk_columns() {
    return kLane * blockDim.x;
}

// One thread's columns of the rows that it is led over, from top to bottom.
struct Strip {
    const float *from;
    float *to;
    uint64_t pitch;
    bool fixed[kLane]; // columns that are not in the interior of the mesh
    float4 up, mid;
};

// Up to `kRows` rows, all of whose loads are on their way before the first is waited for: `rows` of
// them, or all if `kWhole`. The sum of squared changes is added to `sum` if `kMeasure` says so.
//
// The columns beside the strip are loaded even where the mesh ends: then they are a value of the
// row before or after, which is not used. That spares the registers of addresses of their own.
template <bool kMeasure, bool kWhole, uint32_t kRows> STENCIL_DEVICE void step(Strip &s, uint32_t rows, double &sum) {
    float4 down[kRows];
    float left[kRows], right[kRows];
    const float *row = s.from;
    STENCIL_UNROLL
    for (uint32_t k = 0; k < kRows; ++k) {
        left[k] = row[-1];
        right[k] = row[kLane];
        down[k] = *reinterpret_cast<const float4 *>(row + s.pitch);
        // Too many rows: the last one again.
        row += kWhole || k + 1 < rows ? s.pitch : 0;
    }
    s.from = kWhole ? row : row + s.pitch;
    STENCIL_UNROLL
    for (uint32_t k = 0; k < kRows; ++k) {
        if (kWhole || k < rows) {
            // The order of additions is that of the serial solution: so results are equal, bit by
            // bit.
            const float4 mid = s.mid, up = s.up;
            float4 next;
            next.x = s.fixed[0] ? mid.x : 0.25f * ((up.x + down[k].x) + (left[k] + mid.y));
            next.y = s.fixed[1] ? mid.y : 0.25f * ((up.y + down[k].y) + (mid.x + mid.z));
            next.z = s.fixed[2] ? mid.z : 0.25f * ((up.z + down[k].z) + (mid.y + mid.w));
            next.w = s.fixed[3] ? mid.w : 0.25f * ((up.w + down[k].w) + (mid.z + right[k]));
            *reinterpret_cast<float4 *>(s.to) = next;
            s.to += s.pitch;
            if (kMeasure) {
                const float change[kLane] = {next.x - mid.x, next.y - mid.y, next.z - mid.z, next.w - mid.w};
                STENCIL_UNROLL
                for (uint64_t c = 0; c < kLane; ++c) {
                    sum += static_cast<double>(change[c]) * change[c];
                }
            }
            s.up = mid;
            s.mid = down[k];
        }
    }
}

// The block's next values of rows `first` to before `last`, at least one, of a chunk; the thread's
// sum of squared changes. `pitch`, a multiple of kLane, is the distance of rows; there is a row
// before the first and one after the last. A function of its own: its loop needs all the registers
// there are.
template <bool kMeasure>
STENCIL_OUTLINE double sweep(const float *in, float *out, uint64_t columns, uint64_t pitch, uint64_t chunk, uint64_t first,
                             uint64_t last) {
    constexpr uint32_t kTogether = 4;
    const uint64_t column = chunk * chunk_columns() + kLane * threadIdx.x;
    double sum = 0;
    if (column >= columns) {
        return sum;
    }
    Strip s;
    s.pitch = pitch;
    s.from = in + first * pitch + column;
    s.to = out + first * pitch + column;
    STENCIL_UNROLL
    for (uint64_t c = 0; c < kLane; ++c) {
        s.fixed[c] = column + c == 0 || column + c + 1 >= columns;
    }
    s.up = *reinterpret_cast<const float4 *>(s.from - pitch);
    s.mid = *reinterpret_cast<const float4 *>(s.from);
    // The odd rows come first, so that their loads, and those above, are waited for once.
    uint32_t rows = static_cast<uint32_t>(last - first);
    const uint32_t odd = (rows - 1) % kTogether + 1;
    step<kMeasure, false, kTogether>(s, odd, sum);
    STENCIL_NO_UNROLL
    for (rows -= odd; rows != 0; rows -= kTogether) {
        step<kMeasure, true, kTogether>(s, kTogether, sum);
    }
    return sum;
}

struct Share {
    uint64_t first, count;
};

// Share `index` of `n` items that `parts` have: all items, each once; the first n % parts have one
// more.
STENCIL_DEVICE Share share(uint64_t n, uint64_t parts, uint64_t index) {
    const uint64_t each = n / parts, more = n % parts;
    return {index * each + (index < more ? index : more), each + (index < more ? 1 : 0)};
}

// What a chunk of a row that a neighbour waits for costs, waiting and sending included, in chunks
// of other rows.
constexpr uint64_t kEdgeCost = 8;

// This block's share of `inner` chunks, where `edges` chunks of edges have been dealt out to the
// blocks, one after the other.
STENCIL_DEVICE Share inner_share(uint64_t inner, uint64_t edges) {
    const uint64_t blocks = gridDim.x, me = blockIdx.x;
    // The first `more` blocks have one edge more than the others.
    const uint64_t each = edges / blocks, more = edges % blocks;
    const uint64_t quota = (inner + kEdgeCost * edges) / blocks, busy = kEdgeCost * (each + 1);
    const uint64_t less = more != 0 && quota > busy ? quota - busy : 0;
    if (me < more) {
        return {me * less, less};
    }
    const Share rest = share(inner - more * less, blocks - more, me - more);
    return {more * less + rest.first, rest.count};
}

} // namespace stencil
