// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Bits and numbers for compilers of the CPU, which both the cpu device and the schedule explorer
// use. port.h documents what each name means.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace oxshmem::port {

namespace detail {

template <class To, class From> inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

} // namespace detail

inline uint32_t count_ones(uint32_t bits) {
    return static_cast<uint32_t>(__builtin_popcount(bits));
}
inline uint32_t lowest_bit(uint32_t bits) {
    return static_cast<uint32_t>(__builtin_ctz(bits));
}
inline uint32_t lowest_bit(uint64_t bits) {
    return static_cast<uint32_t>(__builtin_ctzll(bits));
}
inline uint32_t leading_zeros(uint32_t bits) {
    return static_cast<uint32_t>(__builtin_clz(bits));
}
inline uint32_t byte_swap(uint32_t value) {
    return __builtin_bswap32(value);
}
inline uint64_t byte_swap(uint64_t value) {
    return __builtin_bswap64(value);
}
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t permuted = 0;
    for (uint32_t byte = 0; byte < 4; ++byte) {
        const uint32_t chosen = selector >> 4 * byte & 7;
        permuted |= static_cast<uint32_t>(both >> 8 * chosen & 0xff) << 8 * byte;
    }
    return permuted;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Numbers
// ---------------------------------------------------------------------------------------------------------------------------

template <class T> inline T lesser(T a, T b) {
    static_assert(std::is_floating_point_v<T>);
    return std::isnan(b) || a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T> inline T greater(T a, T b) {
    static_assert(std::is_floating_point_v<T>);
    return std::isnan(b) || a > b || (a == b && std::signbit(b)) ? a : b;
}

inline float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) {
        return detail::bits<float>(sign | 0x7f800000 | fraction << 13);
    }
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : detail::bits<float>((exponent + 112) << 23 | fraction << 13);
    return sign != 0 ? -magnitude : magnitude;
}

inline uint16_t float_to_half(float value) {
    const uint32_t word = detail::bits<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000);
    const float magnitude = std::fabs(value);
    if (!(magnitude < 65520.0f)) { // rounds to infinity, or is NaN
        return static_cast<uint16_t>(sign | (magnitude != magnitude ? 0x7fff : 0x7c00));
    }
    if (magnitude < 0x1p-14f) {
        // Subnormal: a multiple of 2^-24; one that rounds up to the smallest normal number has the
        // bits for it.
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24))));
    }
    const uint32_t even = (word & 0x7fffffff) + 0xfff + (word >> 13 & 1);
    return static_cast<uint16_t>(sign | (even - (112u << 23)) >> 13);
}
inline uint32_t to_halves(float low, float high) {
    return static_cast<uint32_t>(float_to_half(high)) << 16 | float_to_half(low);
}

inline uint32_t to_bfloat16s(float low, float high) {
    const auto rounded = [](float value) {
        const uint32_t word = detail::bits<uint32_t>(value);
        return value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    };
    return rounded(high) << 16 | rounded(low);
}

} // namespace oxshmem::port
