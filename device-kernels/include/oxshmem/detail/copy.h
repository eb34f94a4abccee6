// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Copies by load and store, for peers whose heap is mapped.
#pragma once

#include <cstring>

#include "scope.h"

namespace oxshmem::detail {

// The slice [first, last) of `n` items that the calling lane handles when lanes take contiguous runs.
struct Slice {
    uint64_t first, last;
};

template <class Scope> OXSHMEM_DEVICE Slice slice(uint64_t n) {
    const uint64_t lanes = Scope::size();
    const uint64_t each = (n + lanes - 1) / lanes;
    const uint64_t first = each * Scope::rank();
    return {first < n ? first : n, first + each < n ? first + each : n};
}

// Copies whole units of type U, lanes interleaved, several loads in flight.
template <class Scope, class U> OXSHMEM_DEVICE void copy_units(U *dst, const U *src, uint64_t n) {
    constexpr uint32_t kInFlight = 8;
    const uint64_t step = Scope::size();
    uint64_t i = Scope::rank();
    for (; i + (kInFlight - 1) * step < n; i += kInFlight * step) {
        U units[kInFlight];
OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            units[k] = src[i + k * step];
        }
OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            dst[i + k * step] = units[k];
        }
    }
    for (; i < n; i += step) {
        dst[i] = src[i];
    }
}

template <size_t Width> struct unit;
template <> struct unit<16> { using type = port::vec16; };
template <> struct unit<8> { using type = uint64_t; };
template <> struct unit<4> { using type = uint32_t; };
template <> struct unit<2> { using type = uint16_t; };
template <> struct unit<1> { using type = uint8_t; };

// Copies with accesses of up to `Width` bytes: whole units in the middle, narrower ones before and behind.
template <class Scope, size_t Width> OXSHMEM_DEVICE void copy_width(char *to, const char *from, uint64_t bytes) {
    using U = typename unit<Width>::type;
    if constexpr (Width == 1) {
        copy_units<Scope>(reinterpret_cast<U *>(to), reinterpret_cast<const U *>(from), bytes);
    } else {
        if ((reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from)) % Width != 0) {
            return copy_width<Scope, Width / 2>(to, from, bytes);
        }
        const uint64_t lead = (0 - reinterpret_cast<uint64_t>(to)) % Width;
        const uint64_t head = lead < bytes ? lead : bytes;
        const uint64_t units = (bytes - head) / Width;
        const uint64_t tail = head + units * Width;
        if (head != 0) {
            copy_width<Scope, Width / 2>(to, from, head);
        }
        copy_units<Scope>(reinterpret_cast<U *>(to + head), reinterpret_cast<const U *>(from + head), units);
        if (tail != bytes) {
            copy_width<Scope, Width / 2>(to + tail, from + tail, bytes - tail);
        }
    }
}

// Copies `bytes` bytes with the widest access that both addresses allow. Where both are aligned to 2, 4 or 8, no aligned unit of
// that size is torn.
template <class Scope> OXSHMEM_DEVICE void copy(void *dst, const void *src, uint64_t bytes) {
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    if constexpr (port::kCoalesced) {
        copy_width<Scope, 16>(to, from, bytes);
    } else {
        // Each lane takes a run of whole cache lines, so that no two lanes write to one.
        constexpr uint64_t kLine = 64;
        const Slice lines = slice<Scope>((bytes + kLine - 1) / kLine);
        const uint64_t first = lines.first * kLine;
        const uint64_t last = lines.last * kLine < bytes ? lines.last * kLine : bytes;
        if (first < last) {
            memcpy(to + first, from + first, last - first);
        }
    }
}

} // namespace oxshmem::detail
