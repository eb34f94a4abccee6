// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Reductions whose type and operator only the running program knows: for kernels that serve them
// all. A header of its own, which the device API does not include: compilers make all the
// combinations whether a kernel uses them or not.
#pragma once

#include "reduce_ops.h"

namespace oxshmem::detail {

// combine_as, or the first value where there is no such reduction. (Not a generic lambda: NVRTC
// takes those for host functions.)
template <ReduceOp O, class T> OXSHMEM_DEVICE port::vec16 combine_if(port::vec16 a, port::vec16 b) {
    if constexpr (reducible<T, O>) {
        return combine_as<O, T>(a, b);
    } else {
        return a;
    }
}

template <ReduceOp O> OXSHMEM_DEVICE port::vec16 combine_type(Type type, port::vec16 a, port::vec16 b) {
    switch (type) {
    case Type::int8:
        return combine_if<O, int8_t>(a, b);
    case Type::int16:
        return combine_if<O, int16_t>(a, b);
    case Type::int32:
        return combine_if<O, int32_t>(a, b);
    case Type::int64:
        return combine_if<O, int64_t>(a, b);
    case Type::uint8:
        return combine_if<O, uint8_t>(a, b);
    case Type::uint16:
        return combine_if<O, uint16_t>(a, b);
    case Type::uint32:
        return combine_if<O, uint32_t>(a, b);
    case Type::uint64:
        return combine_if<O, uint64_t>(a, b);
    case Type::float32:
        return combine_if<O, float>(a, b);
    case Type::float64:
        return combine_if<O, double>(a, b);
    case Type::complex32:
        return combine_if<O, complex<float>>(a, b);
    case Type::complex64:
        return combine_if<O, complex<double>>(a, b);
    case Type::half:
        return combine_if<O, half>(a, b);
    case Type::bfloat16:
        return combine_if<O, bfloat16>(a, b);
    }
    return a;
}

OXSHMEM_LAZY OXSHMEM_OUTLINE port::vec16 combine_numbered(Type type, ReduceOp op, port::vec16 a, port::vec16 b) {
    switch (op) {
    case ReduceOp::op_and:
        return combine_type<ReduceOp::op_and>(type, a, b);
    case ReduceOp::op_or:
        return combine_type<ReduceOp::op_or>(type, a, b);
    case ReduceOp::op_xor:
        return combine_type<ReduceOp::op_xor>(type, a, b);
    case ReduceOp::op_min:
        return combine_type<ReduceOp::op_min>(type, a, b);
    case ReduceOp::op_max:
        return combine_type<ReduceOp::op_max>(type, a, b);
    case ReduceOp::op_sum:
        return combine_type<ReduceOp::op_sum>(type, a, b);
    case ReduceOp::op_prod:
        return combine_type<ReduceOp::op_prod>(type, a, b);
    }
    return a;
}

// Combines with a type and an operator that only the running program knows: for kernels that serve
// them all.
struct CombineNumbered {
    Type number;
    ReduceOp which;
    OXSHMEM_DEVICE port::vec16 operator()(port::vec16 a, port::vec16 b) const { return combine_numbered(number, which, a, b); }
    OXSHMEM_DEVICE Type type() const { return number; }
    OXSHMEM_DEVICE ReduceOp op() const { return which; }
};

// Sums and products of 16-bit floating point are in float from the second value on, and rounded at
// the end, as by FloatAccumulator.
template <> class Accumulator<CombineNumbered> {
    static constexpr uint32_t kElements = sizeof(port::vec16) / sizeof(uint16_t);
    port::vec16 value{};
    float wide[kElements] = {};
    Type type = Type::half;
    bool is_wide = false;

    OXSHMEM_DEVICE float widen(uint16_t bits) const {
        return type == Type::half ? to_float(half{bits}) : to_float(bfloat16{bits});
    }

public:
    OXSHMEM_DEVICE void begin(port::vec16 first) {
        value = first;
        is_wide = false;
    }
    OXSHMEM_DEVICE void add(const CombineNumbered &combine, port::vec16 next) {
        const bool sixteen = combine.number == Type::half || combine.number == Type::bfloat16;
        if (!sixteen || (combine.which != ReduceOp::op_sum && combine.which != ReduceOp::op_prod)) {
            value = combine(value, next);
            return;
        }
        type = combine.number;
        uint16_t bits[2][kElements];
        memcpy(bits[0], &value, sizeof(value));
        memcpy(bits[1], &next, sizeof(next));
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < kElements; ++i) {
            const float sum = is_wide ? wide[i] : widen(bits[0][i]), x = widen(bits[1][i]);
            wide[i] = combine.which == ReduceOp::op_sum ? sum + x : sum * x;
        }
        is_wide = true;
    }
    OXSHMEM_DEVICE port::vec16 result() const {
        if (!is_wide) {
            return value;
        }
        uint16_t bits[kElements];
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < kElements; ++i) {
            bits[i] = type == Type::half ? to_half(wide[i]).bits : to_bfloat16(wide[i]).bits;
        }
        port::vec16 all;
        memcpy(&all, bits, sizeof(all));
        return all;
    }
};

// The sum of integers that are as wide as T: the same bits for signed and unsigned ones. What
// members announce is the type given.
template <class T> struct SumOf {
    Type number;
    OXSHMEM_DEVICE port::vec16 operator()(port::vec16 a, port::vec16 b) const { return combine_as<ReduceOp::op_sum, T>(a, b); }
    OXSHMEM_DEVICE Type type() const { return number; }
    OXSHMEM_DEVICE ReduceOp op() const { return ReduceOp::op_sum; }
};

// Calls `act(combine)` with what combines values of a type by an operator. The usual ones get loops
// of their own; the others look for their type and operator with each 16 bytes.
template <class Act> OXSHMEM_DEVICE void with_combine(Type type, ReduceOp op, const Act &act) {
    if (op == ReduceOp::op_sum) {
        switch (type) {
        case Type::float32:
            return act(Combine<float, ReduceOp::op_sum>{});
        case Type::float64:
            return act(Combine<double, ReduceOp::op_sum>{});
        case Type::half:
            return act(Combine<half, ReduceOp::op_sum>{});
        case Type::bfloat16:
            return act(Combine<bfloat16, ReduceOp::op_sum>{});
        case Type::int32:
        case Type::uint32:
            return act(SumOf<uint32_t>{type});
        case Type::int64:
        case Type::uint64:
            return act(SumOf<uint64_t>{type});
        default:
            break;
        }
    }
    act(CombineNumbered{type, op});
}

} // namespace oxshmem::detail
