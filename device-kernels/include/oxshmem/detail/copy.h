// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Copies by load and store, for peers whose heap is mapped.
#pragma once

#include "scope.h"

#ifdef OXSHMEM_DEVICE_LIBRARY
#include "library.h"
#endif

namespace oxshmem::detail {

// The slice [first, last) of `n` items that the calling lane handles when lanes take contiguous
// runs.
struct Slice {
    uint64_t first, last;
};

template <class Scope> OXSHMEM_DEVICE Slice slice(uint64_t n) {
    const uint64_t lanes = Scope::size();
    const uint64_t each = (n + lanes - 1) / lanes;
    const uint64_t first = each * Scope::rank();
    return {first < n ? first : n, first + each < n ? first + each : n};
}

// Whether the source of a copy is this PE's memory, or another one's.
enum class Source { near, far };

// Unit `index` of a copy of whole units.
template <class U> OXSHMEM_DEVICE void copy_one(char *to, const char *from, uint64_t bytes, uint32_t index) {
    if (index * sizeof(U) < bytes) {
        port::write(reinterpret_cast<U *>(to) + index, port::read(reinterpret_cast<const U *>(from) + index));
    }
}

// The fewest threads of a block that copies by copy_by_many, and the most bytes that it loads so
// over the link, where what it has in flight does not fill that.
constexpr uint32_t kManyThreads = 512;
constexpr uint64_t kMostLoadedByMany = 512 << 10;
// More than this and a block's step do not fit 32 bits.
constexpr uint64_t kMostByMany = 2ull << 30;

// Copies whole units of 16 bytes, by complete warps in relocatable code. `mine` is the place of the
// calling thread's unit among those of all threads, and `row` the size of these, in bytes.
//
// In relocatable code a function keeps the registers that it uses, beyond the first 30 or so, in
// memory for its caller: with 1024 threads and 31 registers each that takes longer than to copy 64
// KiB. So many threads, which need less in flight each, have a function of few registers, which
// calls none. It is short, too: 32 warps take 5 ns for each instruction. So what its caller knows
// anyway are arguments, and offsets have 32 bits.
OXSHMEM_LAZY OXSHMEM_OUTLINE void copy_by_many(char *to, const char *from, uint32_t bytes, uint32_t mine, uint32_t row) {
    constexpr uint32_t kInFlight = 4, kUnit = sizeof(port::vec16), kStride = 32 * kUnit, kTile = kInFlight * kStride;
    static_assert(kTile / kUnit <= kManyThreads);
    const uint32_t whole = bytes & ~(kTile - 1);
    // Beside whole tiles, one access for each of some threads is enough. It is a loop so that the
    // others do not step through it.
    OXSHMEM_NO_UNROLL
    for (uint32_t rest = whole + mine; rest < bytes; rest += kTile) {
        copy_one<port::vec16>(to + rest, from + rest, kUnit, 0);
    }
    OXSHMEM_NO_UNROLL
    for (uint32_t at = mine / kStride * kTile + mine % kStride; at < whole; at += row * kInFlight) {
        port::vec16 units[kInFlight];
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            units[k] = port::read(reinterpret_cast<const port::vec16 *>(from + at + k * kStride));
        }
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kInFlight; ++k) {
            port::write(reinterpret_cast<port::vec16 *>(to + at + k * kStride), units[k]);
        }
    }
}

// How many units a lane copies of what is short.
template <class Scope> constexpr uint32_t kUnitsAtOnce = Scope::kLanes == 1 ? 4 : 1;

// Copies whole units of type U, if each lane has few of them.
template <class Scope, class U> OXSHMEM_DEVICE bool copy_short_units(char *to, const char *from, uint64_t bytes) {
    constexpr uint32_t kEach = kUnitsAtOnce<Scope>;
    if (bytes > sizeof(U) * kEach * Scope::size()) {
        return false;
    }
    if constexpr (kEach == 1) {
        copy_one<U>(to, from, bytes, Scope::rank());
    } else {
        U units[kEach] = {};
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kEach; ++k) {
            if (k * sizeof(U) < bytes) {
                units[k] = port::read(reinterpret_cast<const U *>(from) + k);
            }
        }
        OXSHMEM_UNROLL
        for (uint32_t k = 0; k < kEach; ++k) {
            if (k * sizeof(U) < bytes) {
                port::write(reinterpret_cast<U *>(to) + k, units[k]);
            }
        }
    }
    return true;
}

// Whether it is a copy of one aligned word.
OXSHMEM_DEVICE bool is_word(const void *dst, const void *src, uint64_t bytes) {
    return bytes == sizeof(uint64_t) &&
           (reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src)) % sizeof(uint64_t) == 0;
}

// Copies what is short and aligned: one access for each lane, or four for a thread, and nothing
// else to compute. Returns false, and copies nothing, if it is not. A single word, as most
// messages with a signal are, needs neither the lane's place nor their number.
template <class Scope> OXSHMEM_DEVICE bool copy_short(void *dst, const void *src, uint64_t bytes) {
    if (is_word(dst, src, bytes)) {
        if (Scope::rank() == 0) {
            copy_one<uint64_t>(static_cast<char *>(dst), static_cast<const char *>(src), bytes, 0);
        }
        return true;
    }
    const uint64_t together = reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src) | bytes;
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    return together % 16 == 0  ? copy_short_units<Scope, port::vec16>(to, from, bytes)
           : together % 8 == 0 ? copy_short_units<Scope, uint64_t>(to, from, bytes)
           : together % 4 == 0 ? copy_short_units<Scope, uint32_t>(to, from, bytes)
                               : false;
}

// Copies, if that needs few registers and no function that keeps some for its caller. Returns
// false, and copies nothing, if it does not.
template <class Scope, Source kFrom> OXSHMEM_DEVICE bool copy_leanly(void *dst, const void *src, uint64_t bytes) {
    if (copy_short<Scope>(dst, src, bytes)) {
        return true;
    }
    if constexpr (port::kRelocatable && Scope::kSeveralWarps) {
        constexpr uint32_t kUnit = sizeof(port::vec16);
        const uint64_t together = reinterpret_cast<uint64_t>(dst) | reinterpret_cast<uint64_t>(src) | bytes;
        const uint32_t threads = port::block_threads();
        const bool fills = kFrom == Source::near ? bytes < kMostByMany : bytes <= kMostLoadedByMany;
        if (threads >= kManyThreads && threads % 32 == 0 && together % kUnit == 0 && fills) {
            copy_by_many(static_cast<char *>(dst), static_cast<const char *>(src), static_cast<uint32_t>(bytes),
                         Scope::rank() * kUnit, Scope::size() * kUnit);
            return true;
        }
    }
    return false;
}

#ifdef OXSHMEM_DEVICE_LIBRARY
template <class Scope, Source = Source::near> OXSHMEM_DEVICE void copy(void *dst, const void *src, uint64_t bytes) {
    if constexpr (Scope::kLanes == 1) {
        OXSHMEM_LIBRARY(copy_by_thread)(dst, src, bytes);
    } else if constexpr (kSeveralBlocks<Scope>) {
        // The library's function is a block's. Each block copies a share, of whole vectors.
        constexpr uint64_t kUnit = sizeof(port::vec16);
        const uint64_t each = ((bytes + kUnit - 1) / kUnit + sharing_blocks() - 1) / sharing_blocks() * kUnit;
        const uint64_t begin = each * port::block_rank() < bytes ? each * port::block_rank() : bytes;
        const uint64_t share = bytes - begin < each ? bytes - begin : each;
        OXSHMEM_LIBRARY(copy_by_block)(static_cast<char *>(dst) + begin, static_cast<const char *>(src) + begin, share);
    } else if constexpr (Scope::kSeveralWarps) {
        OXSHMEM_LIBRARY(copy_by_block)(dst, src, bytes);
    } else {
        OXSHMEM_LIBRARY(copy_by_warp)(dst, src, bytes);
    }
}
#else
// Copies the whole tiles among `n` units and returns how many units the tiles cover. A tile is what
// a warp (or the one thread) copies in one pass, kInFlight loads of each lane before the first
// store, at fixed distances that need no registers.
template <class Scope, uint32_t kInFlight, class U> OXSHMEM_DEVICE uint64_t copy_tiles(U *dst, const U *src, uint64_t n) {
    constexpr uint32_t kLanes = Scope::kLanes;
    constexpr uint32_t kTile = kLanes * kInFlight;
    const uint32_t rank = Scope::rank();
    const uint32_t warps = Scope::size() / kLanes; // complete ones
    if (warps == 0) {
        return 0;
    }
    const uint64_t done = n / kTile * kTile;
    if (rank / kLanes < warps) {
        for (uint64_t i = static_cast<uint64_t>(rank / kLanes) * kTile + rank % kLanes; i < done; i += warps * kTile) {
            U units[kInFlight];
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                units[k] = port::read(src + i + k * kLanes);
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                port::write(dst + i + k * kLanes, units[k]);
            }
        }
    }
    return done;
}

// Copies whole units of type U by one thread. What a thread waits for is that its source comes from
// the L2 cache, or over the link, and it has registers for little of it at a time. So it first
// touches each sector of what it copies next: then all of that is on its way at once, and is copied
// out of the L1 cache.
template <class U> OXSHMEM_DEVICE void copy_alone(U *dst, const U *src, uint64_t n) {
    constexpr uint32_t kSectors = 32, kInFlight = 8;
    constexpr uint32_t kAtOnce = kSectors * port::kSectorBytes / sizeof(U);
    while (n != 0) {
        const uint32_t part = n < kAtOnce ? static_cast<uint32_t>(n) : kAtOnce;
        if (part > kInFlight) {
            port::touch<kSectors, 1>(src, part * sizeof(U));
        }
        uint32_t i = 0;
        OXSHMEM_NO_UNROLL
        for (; i + kInFlight <= part; i += kInFlight) {
            U units[kInFlight];
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                units[k] = port::read(src + i + k);
            }
            OXSHMEM_UNROLL
            for (uint32_t k = 0; k < kInFlight; ++k) {
                port::write(dst + i + k, units[k]);
            }
        }
        OXSHMEM_NO_UNROLL
        for (; i < part; ++i) {
            port::write(dst + i, port::read(src + i));
        }
        dst += part, src += part, n -= part;
    }
}

// Copies whole units of type U.
template <class Scope, class U> OXSHMEM_DEVICE void copy_units(U *dst, const U *src, uint64_t n) {
    if constexpr (Scope::kLanes == 1) {
        copy_alone(dst, src, n);
    } else {
        uint64_t done = copy_tiles<Scope, 8>(dst, src, n);
        if constexpr (sizeof(U) == sizeof(port::vec16)) {
            // Unless one access of each lane is enough.
            if (n - done > Scope::size()) {
                if constexpr (!Scope::kSeveralWarps) {
                    done += copy_tiles<Scope, 4>(dst + done, src + done, n - done);
                }
                done += copy_tiles<Scope, 2>(dst + done, src + done, n - done);
            }
        }
        OXSHMEM_NO_UNROLL
        for (uint64_t i = done + Scope::rank(); i < n; i += Scope::size()) {
            port::write(dst + i, port::read(src + i));
        }
    }
}

template <class U> OXSHMEM_DEVICE void copy_unit(char *&to, const char *&from, uint32_t &left) {
    port::write(reinterpret_cast<U *>(to), port::read(reinterpret_cast<const U *>(from)));
    to += sizeof(U), from += sizeof(U), left -= sizeof(U);
}

// Copies fewer than 16 bytes by one lane, where `to` and `from` are equally aligned: with units
// that grow until the addresses are aligned, and then with units that shrink.
OXSHMEM_LAZY OXSHMEM_OUTLINE void copy_edge(char *to, const char *from, uint32_t left) {
    const auto odd = [&](uint32_t unit) { return (reinterpret_cast<uint64_t>(to) & unit) != 0 && left >= unit; };
    if (odd(1)) {
        copy_unit<uint8_t>(to, from, left);
    }
    if (odd(2)) {
        copy_unit<uint16_t>(to, from, left);
    }
    if (odd(4)) {
        copy_unit<uint32_t>(to, from, left);
    }
    if (odd(8) || (left & 8) != 0) {
        copy_unit<uint64_t>(to, from, left);
    }
    if ((left & 4) != 0) {
        copy_unit<uint32_t>(to, from, left);
    }
    if ((left & 2) != 0) {
        copy_unit<uint16_t>(to, from, left);
    }
    if ((left & 1) != 0) {
        copy_unit<uint8_t>(to, from, left);
    }
}

// Copies between addresses that are equally aligned to U and no better: units of U in the middle,
// narrower ones before and after.
template <class Scope, class U> OXSHMEM_DEVICE void copy_aligned(char *to, const char *from, uint64_t bytes) {
    const uint64_t lead = (0 - reinterpret_cast<uint64_t>(to)) % sizeof(U);
    const uint64_t head = lead < bytes ? lead : bytes;
    const uint64_t units = (bytes - head) / sizeof(U);
    const uint64_t tail = head + units * sizeof(U);
    if (Scope::rank() == 0 && head != 0) {
        copy_edge(to, from, static_cast<uint32_t>(head));
    }
    copy_units<Scope>(reinterpret_cast<U *>(to + head), reinterpret_cast<const U *>(from + head), units);
    if (Scope::rank() == 0 && tail != bytes) {
        copy_edge(to + tail, from + tail, static_cast<uint32_t>(bytes - tail));
    }
}

// The same for addresses that are aligned differently.
template <class Scope> OXSHMEM_OUTLINE void copy_skewed(char *to, const char *from, uint64_t bytes) {
    const uint64_t skew = reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from);
    if (skew % 8 == 0) {
        copy_aligned<Scope, uint64_t>(to, from, bytes);
    } else if (skew % 4 == 0) {
        copy_aligned<Scope, uint32_t>(to, from, bytes);
    } else if (skew % 2 == 0) {
        copy_aligned<Scope, uint16_t>(to, from, bytes);
    } else {
        copy_units<Scope>(reinterpret_cast<uint8_t *>(to), reinterpret_cast<const uint8_t *>(from), bytes);
    }
}

// The rest of copy().
template <class Scope> OXSHMEM_OUTLINE void copy_by_few(char *to, const char *from, uint64_t bytes) {
    if ((reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from)) % 16 == 0) {
        copy_aligned<Scope, port::vec16>(to, from, bytes);
    } else {
        copy_skewed<Scope>(to, from, bytes);
    }
}

// Copies `bytes` bytes with the widest access that both addresses allow. Where both are aligned to
// 2, 4 or 8, no aligned unit of that size is torn.
template <class Scope, Source kFrom = Source::near> OXSHMEM_DEVICE void copy(void *dst, const void *src, uint64_t bytes) {
    char *to = static_cast<char *>(dst);
    const char *from = static_cast<const char *>(src);
    if constexpr (port::kCoalesced) {
        if (!copy_leanly<Scope, kFrom>(to, from, bytes)) {
            copy_by_few<Scope>(to, from, bytes);
        }
    } else {
        // Each lane takes a run of whole cache lines, so that no two lanes write to one.
        constexpr uint64_t kLine = 64;
        const Slice lines = slice<Scope>((bytes + kLine - 1) / kLine);
        const uint64_t first = lines.first * kLine;
        const uint64_t last = lines.last * kLine < bytes ? lines.last * kLine : bytes;
        if (first < last) {
            port::copy_bytes(to + first, from + first, last - first);
        }
    }
}
#endif

} // namespace oxshmem::detail
