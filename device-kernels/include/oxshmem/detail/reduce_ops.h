// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Element types and operators of reductions. Data is combined 16 bytes at a time, a whole number of
// elements of any type.
#pragma once

#include <oxshmem/port/port.h>

namespace oxshmem {

// 16-bit floating point: storage, bit-compatible with __half and __nv_bfloat16. A thread that sums
// or multiplies the values of several members does so in float and rounds to nearest once.
struct half {
    uint16_t bits;
};
struct bfloat16 {
    uint16_t bits;
};

// Laid out as C's and C++'s complex numbers.
template <class T> struct complex { T real, imag; };

OXSHMEM_DEVICE float to_float(half value) {
    return port::half_to_float(value.bits);
}
OXSHMEM_DEVICE float to_float(bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}
OXSHMEM_DEVICE half to_half(float value) {
    return {port::float_to_half(value)};
}
OXSHMEM_DEVICE bfloat16 to_bfloat16(float value) {
    return {static_cast<uint16_t>(port::to_bfloat16s(value, 0))};
}

// Operators: tags for reduce and reducescatter.
struct and_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_and;
};
struct or_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_or;
};
struct xor_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_xor;
};
struct min_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_min;
};
struct max_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_max;
};
struct sum_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_sum;
};
struct prod_op {
    static constexpr abi::ReduceOp kNumber = abi::ReduceOp::op_prod;
};

constexpr and_op op_and{};
constexpr or_op op_or{};
constexpr xor_op op_xor{};
constexpr min_op op_min{};
constexpr max_op op_max{};
constexpr sum_op op_sum{};
constexpr prod_op op_prod{};

namespace detail {

using abi::ReduceOp;
using abi::Type;

// What an element type is to reductions: its number, and what operators it has.
template <class T, bool = (T(1) / T(2) == T(0))> struct element;

template <class T> struct element<T, true> { // integers
    static constexpr bool kSigned = T(-1) < T(0);
    static constexpr uint32_t kWidth = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    static constexpr Type kType = static_cast<Type>((kSigned ? 0u : 4u) + kWidth);
    static constexpr bool kBitwise = true, kOrdered = true;
};
template <> struct element<float, false> {
    static constexpr Type kType = Type::float32;
    static constexpr bool kBitwise = false, kOrdered = true;
};
template <> struct element<double, false> {
    static constexpr Type kType = Type::float64;
    static constexpr bool kBitwise = false, kOrdered = true;
};

template <class T> struct traits : element<T> {};
template <> struct traits<complex<float>> {
    static constexpr Type kType = Type::complex32;
    static constexpr bool kBitwise = false, kOrdered = false;
};
template <> struct traits<complex<double>> {
    static constexpr Type kType = Type::complex64;
    static constexpr bool kBitwise = false, kOrdered = false;
};
template <> struct traits<half> {
    static constexpr Type kType = Type::half;
    static constexpr bool kBitwise = false, kOrdered = true;
};
template <> struct traits<bfloat16> {
    static constexpr Type kType = Type::bfloat16;
    static constexpr bool kBitwise = false, kOrdered = true;
};

template <class T, ReduceOp O>
constexpr bool reducible = O == ReduceOp::op_sum || O == ReduceOp::op_prod  ? true
                           : O == ReduceOp::op_min || O == ReduceOp::op_max ? traits<T>::kOrdered
                                                                            : traits<T>::kBitwise;

template <class T> OXSHMEM_DEVICE T lesser(T a, T b) {
    return b < a ? b : a;
}
template <class T> OXSHMEM_DEVICE T greater(T a, T b) {
    return a < b ? b : a;
}
// Of floating-point numbers, whichever comes first: a NaN loses, and -0 is less than +0.
OXSHMEM_DEVICE float lesser(float a, float b) {
    return port::lesser(a, b);
}
OXSHMEM_DEVICE float greater(float a, float b) {
    return port::greater(a, b);
}
OXSHMEM_DEVICE double lesser(double a, double b) {
    return port::lesser(a, b);
}
OXSHMEM_DEVICE double greater(double a, double b) {
    return port::greater(a, b);
}

template <ReduceOp O, class T> OXSHMEM_DEVICE T apply(T a, T b) {
    if constexpr (O == ReduceOp::op_and) {
        return static_cast<T>(a & b);
    } else if constexpr (O == ReduceOp::op_or) {
        return static_cast<T>(a | b);
    } else if constexpr (O == ReduceOp::op_xor) {
        return static_cast<T>(a ^ b);
    } else if constexpr (O == ReduceOp::op_min) {
        return lesser(a, b);
    } else if constexpr (O == ReduceOp::op_max) {
        return greater(a, b);
    } else if constexpr (traits<T>::kBitwise) {
        // Unsigned, and at least as wide as unsigned int: sums and products of integers wrap.
        using Wide = uint64_t;
        return O == ReduceOp::op_sum ? static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b))
                                     : static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    } else if constexpr (O == ReduceOp::op_sum) {
        return a + b;
    } else {
        return a * b;
    }
}
template <ReduceOp O> OXSHMEM_DEVICE half apply(half a, half b) {
    return to_half(apply<O>(to_float(a), to_float(b)));
}
template <ReduceOp O> OXSHMEM_DEVICE bfloat16 apply(bfloat16 a, bfloat16 b) {
    return to_bfloat16(apply<O>(to_float(a), to_float(b)));
}
template <ReduceOp O, class T> OXSHMEM_DEVICE complex<T> apply(complex<T> a, complex<T> b) {
    if constexpr (O == ReduceOp::op_sum) {
        return {a.real + b.real, a.imag + b.imag};
    } else {
        return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
    }
}

template <ReduceOp O, class T> OXSHMEM_DEVICE port::vec16 combine_as(port::vec16 a, port::vec16 b) {
    constexpr uint32_t kElements = sizeof(port::vec16) / sizeof(T);
    T x[kElements], y[kElements];
    memcpy(x, &a, sizeof(a));
    memcpy(y, &b, sizeof(b));
    OXSHMEM_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
        x[i] = apply<O>(x[i], y[i]);
    }
    memcpy(&a, x, sizeof(a));
    return a;
}

// What a thread keeps of the values that it combines one after the other.
template <class Combine> class Accumulator {
    port::vec16 value{};

public:
    OXSHMEM_DEVICE void begin(port::vec16 first) { value = first; }
    OXSHMEM_DEVICE void add(const Combine &combine, port::vec16 next) { value = combine(value, next); }
    OXSHMEM_DEVICE port::vec16 result() const { return value; }
};

// Rounds two values to the type of the last argument.
OXSHMEM_DEVICE uint32_t narrow(float low, float high, half) {
    return port::to_halves(low, high);
}
OXSHMEM_DEVICE uint32_t narrow(float low, float high, bfloat16) {
    return port::to_bfloat16s(low, high);
}

// The same for sums and products of 16-bit floating point: in float, which is rounded at the end.
template <class T, ReduceOp O> class FloatAccumulator {
    static constexpr uint32_t kElements = sizeof(port::vec16) / sizeof(T);
    float values[kElements] = {};

public:
    OXSHMEM_DEVICE void begin(port::vec16 first) {
        T x[kElements];
        memcpy(x, &first, sizeof(first));
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < kElements; ++i) {
            values[i] = to_float(x[i]);
        }
    }
    template <class Combine> OXSHMEM_DEVICE void add(const Combine &, port::vec16 next) {
        T x[kElements];
        memcpy(x, &next, sizeof(next));
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < kElements; ++i) {
            values[i] = apply<O>(values[i], to_float(x[i]));
        }
    }
    OXSHMEM_DEVICE port::vec16 result() const {
        const auto pair = [&](uint32_t i) { return narrow(values[i], values[i + 1], T{}); };
        return {pair(0), pair(2), pair(4), pair(6)};
    }
};

// Combines with a type and an operator that the compiler knows.
template <class T, ReduceOp O> struct Combine {
    static_assert(reducible<T, O>, "OpenSHMEM has no such reduction for this type");
    OXSHMEM_DEVICE port::vec16 operator()(port::vec16 a, port::vec16 b) const { return combine_as<O, T>(a, b); }
    OXSHMEM_DEVICE Type type() const { return traits<T>::kType; }
    OXSHMEM_DEVICE ReduceOp op() const { return O; }
};

template <> class Accumulator<Combine<half, ReduceOp::op_sum>> : public FloatAccumulator<half, ReduceOp::op_sum> {};
template <> class Accumulator<Combine<half, ReduceOp::op_prod>> : public FloatAccumulator<half, ReduceOp::op_prod> {};
template <> class Accumulator<Combine<bfloat16, ReduceOp::op_sum>> : public FloatAccumulator<bfloat16, ReduceOp::op_sum> {};
template <> class Accumulator<Combine<bfloat16, ReduceOp::op_prod>> : public FloatAccumulator<bfloat16, ReduceOp::op_prod> {};

// Bytes of an element; 0 if there is no such type.
OXSHMEM_DEVICE uint32_t element_bytes(Type type) {
    switch (type) {
    case Type::int8:
    case Type::uint8:
        return 1;
    case Type::int16:
    case Type::uint16:
    case Type::half:
    case Type::bfloat16:
        return 2;
    case Type::int32:
    case Type::uint32:
    case Type::float32:
        return 4;
    case Type::int64:
    case Type::uint64:
    case Type::float64:
    case Type::complex32:
        return 8;
    case Type::complex64:
        return 16;
    }
    return 0;
}

// Whether there is such a reduction.
OXSHMEM_DEVICE bool is_reduction(Type type, ReduceOp op) {
    const uint32_t t = static_cast<uint32_t>(type), o = static_cast<uint32_t>(op);
    if (t > static_cast<uint32_t>(Type::bfloat16) || o > static_cast<uint32_t>(ReduceOp::op_prod)) {
        return false;
    }
    const bool integer = t <= static_cast<uint32_t>(Type::uint64);
    const bool is_complex = type == Type::complex32 || type == Type::complex64;
    return op == ReduceOp::op_sum || op == ReduceOp::op_prod ? true
           : o <= static_cast<uint32_t>(ReduceOp::op_xor)    ? integer
                                                             : !is_complex;
}

} // namespace detail
} // namespace oxshmem
