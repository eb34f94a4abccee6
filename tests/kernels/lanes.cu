// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Scalar puts and gets by lanes that converge, with targets from a table: pe/lanes.rs makes the
// patterns.
#include "conformance.h"

namespace {

using namespace conformance;

// Where one thread puts in one pattern. Mirrored in pe/lanes.rs.
struct Target {
    uint64_t offset; // in the arena
    int32_t pe;      // -1: the thread does not take part
    uint32_t value;  // a number for make()
};

template <class T> OXSHMEM_DEVICE void put_all(unsigned char *arena, const Target *targets, uint32_t patterns) {
    for (uint32_t i = 0; i < patterns; ++i) {
        const Target &target = targets[i * grid_threads() + global_rank()];
        if (target.pe >= 0) {
            oxshmem::p(reinterpret_cast<T *>(arena + target.offset), make<T>(mix(target.value)), target.pe);
        }
    }
}

// `out` has one word per target.
template <class T>
OXSHMEM_DEVICE void get_all(const unsigned char *arena, const Target *targets, uint32_t patterns, uint64_t *out) {
    for (uint32_t i = 0; i < patterns; ++i) {
        const uint32_t at = i * grid_threads() + global_rank();
        const Target &target = targets[at];
        if (target.pe >= 0) {
            out[at] = bits(oxshmem::g(reinterpret_cast<const T *>(arena + target.offset), target.pe));
        }
    }
}

} // namespace

OXSHMEM_KERNEL(put_lanes, unsigned char *arena, const Target *targets, uint32_t patterns, uint32_t width) {
    switch (width) {
    case 1:
        return put_all<uint8_t>(arena, targets, patterns);
    case 2:
        return put_all<uint16_t>(arena, targets, patterns);
    case 4:
        return put_all<uint32_t>(arena, targets, patterns);
    default:
        return put_all<uint64_t>(arena, targets, patterns);
    }
}

OXSHMEM_KERNEL(get_lanes, const unsigned char *arena, const Target *targets, uint32_t patterns, uint32_t width, uint64_t *out) {
    switch (width) {
    case 1:
        return get_all<uint8_t>(arena, targets, patterns, out);
    case 2:
        return get_all<uint16_t>(arena, targets, patterns, out);
    case 4:
        return get_all<uint32_t>(arena, targets, patterns, out);
    default:
        return get_all<uint64_t>(arena, targets, patterns, out);
    }
}

// The same bit patterns for float and double: p and g must not change them.
OXSHMEM_KERNEL(real_lanes, float *floats, double *doubles, Report *report) {
    const int to = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    const float f = static_cast<float>(global_rank()) * -1.5f;
    const double d = static_cast<double>(global_rank()) * 1e300;
    oxshmem::p(floats + global_rank(), f, to);
    oxshmem::p(doubles + global_rank(), d, to);
    oxshmem::quiet();
    EXPECT_EQ(report, oxshmem::g(floats + global_rank(), to), f);
    EXPECT_EQ(report, oxshmem::g(doubles + global_rank(), to), d);
}
