// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Every name of a collective in typed.h, called once by one block and checked at once.
#include "conformance.h"

#include <oxshmem/collectives.h>
#include <oxshmem/detail/reduce_numbered.h>

// More than eight hundred reductions: if each were compiled for its type and operator, that would
// take the CUDA compiler hours. So what they forward to is replaced by functions that are told the
// type and the operator.
namespace oxshmem {
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE int numbered_reduce(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    const detail::Combine<T, Operator::kNumber> combine{};
    return detail::call_in<Scope>(
        team, detail::ReduceCall<true, detail::CombineNumbered>{dst, src, n, {combine.type(), combine.op()}});
}
template <class Scope, class Operator, class T>
OXSHMEM_DEVICE int numbered_reducescatter(Scope, team_t team, Operator, T *dst, const T *src, size_t n) {
    const detail::Combine<T, Operator::kNumber> combine{};
    return detail::call_in<Scope>(
        team, detail::ReduceCall<false, detail::CombineNumbered>{dst, src, n, {combine.type(), combine.op()}});
}
} // namespace oxshmem

#define reduce numbered_reduce
#define reducescatter numbered_reducescatter
#include <oxshmem/typed.h>
#undef reduce
#undef reducescatter

namespace {

using namespace conformance;
using oxshmem::TEAM_WORLD;

// Elements of one member's part, and where things lie in the 2 x kRoom bytes of each PE.
constexpr uint64_t kElements = 2, kStride = 2, kRoom = 4096;

// A small number as T holds it, or its bits.
template <class T> struct Number {
    OXSHMEM_DEVICE static T of(int value) { return static_cast<T>(value); }
};
template <class T> struct Number<oxshmem::complex<T>> {
    OXSHMEM_DEVICE static oxshmem::complex<T> of(int value) {
        const T parts[2] = {static_cast<T>(value), 0};
        oxshmem::complex<T> number;
        static_assert(sizeof(number) == sizeof(parts));
        memcpy(&number, parts, sizeof(parts));
        return number;
    }
};
// Converts small whole numbers: 15 is the exponent's bias, and 10 are the bits of the fraction; or
// 127 and 7.
template <class T, uint32_t kBias, uint32_t kFraction> OXSHMEM_DEVICE T narrow(int value) {
    uint32_t exponent = 0;
    while (value >> (exponent + 1) != 0) {
        ++exponent;
    }
    const uint32_t whole = static_cast<uint32_t>(value) << kFraction >> exponent;
    const uint16_t bits = static_cast<uint16_t>((exponent + kBias) << kFraction | (whole & ((1u << kFraction) - 1)));
    T number;
    static_assert(sizeof(number) == sizeof(bits));
    memcpy(&number, &bits, sizeof(bits));
    return number;
}
template <> struct Number<oxshmem::half> {
    OXSHMEM_DEVICE static oxshmem::half of(int value) { return narrow<oxshmem::half, 15, 10>(value); }
};
template <> struct Number<oxshmem::bfloat16> {
    OXSHMEM_DEVICE static oxshmem::bfloat16 of(int value) { return narrow<oxshmem::bfloat16, 127, 7>(value); }
};

// Element `index` of what `pe` gives: at least 1, and small enough for products of four PEs to fit
// into 8 bits.
OXSHMEM_DEVICE int given(int pe, uint64_t index) {
    return 1 + (pe + static_cast<int>(index)) % 3;
}

enum class Op : uint32_t { op_and, op_or, op_xor, op_min, op_max, op_sum, op_prod };

OXSHMEM_NOINLINE int combined(Op op, uint64_t index) {
    int result = given(0, index);
    for (int pe = 1; pe < oxshmem::n_pes(); ++pe) {
        const int value = given(pe, index);
        switch (op) {
        case Op::op_and:
            result &= value;
            break;
        case Op::op_or:
            result |= value;
            break;
        case Op::op_xor:
            result ^= value;
            break;
        case Op::op_min:
            result = value < result ? value : result;
            break;
        case Op::op_max:
            result = value > result ? value : result;
            break;
        case Op::op_sum:
            result += value;
            break;
        case Op::op_prod:
            result *= value;
            break;
        }
    }
    return result;
}

template <class T> OXSHMEM_DEVICE T *source(char *room) {
    return reinterpret_cast<T *>(room);
}
template <class T> OXSHMEM_DEVICE T *result(char *room) {
    return reinterpret_cast<T *>(room + kRoom);
}

// By the block, before and after each call.
template <class T> OXSHMEM_NOINLINE void fill(char *room) {
    sync_block();
    const uint64_t count = kElements * kStride * static_cast<uint64_t>(oxshmem::n_pes());
    for (uint64_t i = thread_rank(); i < count; i += block_threads()) {
        source<T>(room)[i] = Number<T>::of(given(oxshmem::my_pe(), i));
        result<T>(room)[i] = Number<T>::of(77);
    }
    sync_block();
}

template <class T> OXSHMEM_DEVICE void expect_number(Report *report, int line, T seen, int wanted) {
    const T number = Number<T>::of(wanted);
    uint64_t have[2] = {}, want[2] = {};
    static_assert(sizeof(T) <= sizeof(have));
    memcpy(have, &seen, sizeof(T));
    memcpy(want, &number, sizeof(T));
    expect(report, line, have[0], want[0]);
    expect(report, line, have[1], want[1]);
}

// `answer`: of the call, on the threads that called.
template <class T>
OXSHMEM_NOINLINE void check_reduced(char *room, Report *report, int line, int answer, Op op, bool scattered) {
    sync_block();
    expect(report, line, static_cast<uint64_t>(answer), 0);
    if (thread_rank() == 0) {
        const uint64_t first = scattered ? kElements * static_cast<uint64_t>(oxshmem::my_pe()) : 0;
        for (uint64_t i = 0; i < kElements; ++i) {
            expect_number(report, line, result<T>(room)[i], combined(op, first + i));
        }
        expect_number(report, line, result<T>(room)[kElements], 77);
    }
}

enum class Form { broadcast, gather, alltoall, alltoalls };

// What member `pe`'s part of the result is: element i of it.
template <class T> OXSHMEM_NOINLINE void check_gathered(char *room, Report *report, int line, int answer, Form form) {
    sync_block();
    expect(report, line, static_cast<uint64_t>(answer), 0);
    const int n = oxshmem::n_pes();
    const uint64_t mine = kElements * static_cast<uint64_t>(oxshmem::my_pe());
    if (thread_rank() == 0) {
        for (int pe = 0; pe < (form == Form::broadcast ? 1 : n); ++pe) {
            for (uint64_t i = 0; i < kElements; ++i) {
                const uint64_t at = kElements * static_cast<uint64_t>(pe) + i;
                const int wanted = form == Form::broadcast  ? given(n - 1, i)
                                   : form == Form::gather   ? given(pe, i)
                                   : form == Form::alltoall ? given(pe, mine + i)
                                                            : given(pe, (mine + i) * kStride);
                expect_number(report, line, result<T>(room)[form == Form::alltoalls ? at * kStride : at], wanted);
            }
        }
    }
}

} // namespace

// The threads of a scope call `name`; `answer` is what it says.
#define CALL(scope, T, call)                                                                                                   \
    fill<T>(room);                                                                                                             \
    answer = 0;                                                                                                                \
    if (thread_rank() < decltype(scope)::size()) {                                                                             \
        T *const dst = result<T>(room);                                                                                        \
        const T *const src = source<T>(room);                                                                                  \
        answer = call;                                                                                                         \
    }
#define REDUCTION(prefix, suffix, scope, name, T, op)                                                                          \
    CALL(scope, T, prefix##name##_##op##_reduce##suffix(TEAM_WORLD, dst, src, kElements))                                      \
    check_reduced<T>(room, report, __LINE__, answer, Op::op_##op, false);                                                      \
    CALL(scope, T, prefix##name##_##op##_reducescatter##suffix(TEAM_WORLD, dst, src, kElements))                               \
    check_reduced<T>(room, report, __LINE__, answer, Op::op_##op, true);
#define REDUCTIONS(name, T, op) OXSHMEM_FOR_EACH_SCOPE(REDUCTION, name, T, op)
#define BITWISE(name, T) REDUCTIONS(name, T, and) REDUCTIONS(name, T, or) REDUCTIONS(name, T, xor)
#define ORDERED(name, T) REDUCTIONS(name, T, min) REDUCTIONS(name, T, max)
#define SUM(name, T) REDUCTIONS(name, T, sum)
#define PROD(name, T) REDUCTIONS(name, T, prod)

// `room`: 2 x kRoom bytes, symmetric, aligned to 16.
OXSHMEM_KERNEL(typed_reductions, char *room, Report *report) {
    int answer;
    OXSHMEM_FOR_EACH_BITWISE_REDUCE_TYPE(BITWISE)
    OXSHMEM_FOR_EACH_RMA_TYPE(ORDERED)
    OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(ORDERED)
    OXSHMEM_FOR_EACH_RMA_TYPE(SUM)
    OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(SUM)
    OXSHMEM_FOR_EACH_COMPLEX_REDUCE_TYPE(SUM)
    OXSHMEM_FOR_EACH_RMA_TYPE(PROD)
    OXSHMEM_FOR_EACH_NARROW_FLOAT_TYPE(PROD)
    OXSHMEM_FOR_EACH_COMPLEX_REDUCE_TYPE(PROD)
}

#define GATHERING(prefix, suffix, scope, T, BROADCAST, COLLECT, FCOLLECT, ALLTOALL, ALLTOALLS)                                 \
    CALL(scope, T, prefix##BROADCAST##suffix(TEAM_WORLD, dst, src, kElements, oxshmem_n_pes() - 1))                            \
    check_gathered<T>(room, report, __LINE__, answer, Form::broadcast);                                                        \
    CALL(scope, T, prefix##COLLECT##suffix(TEAM_WORLD, dst, src, kElements))                                                   \
    check_gathered<T>(room, report, __LINE__, answer, Form::gather);                                                           \
    CALL(scope, T, prefix##FCOLLECT##suffix(TEAM_WORLD, dst, src, kElements))                                                  \
    check_gathered<T>(room, report, __LINE__, answer, Form::gather);                                                           \
    CALL(scope, T, prefix##ALLTOALL##suffix(TEAM_WORLD, dst, src, kElements))                                                  \
    check_gathered<T>(room, report, __LINE__, answer, Form::alltoall);                                                         \
    CALL(scope, T, prefix##ALLTOALLS##suffix(TEAM_WORLD, dst, src, kStride, kStride, kElements))                               \
    check_gathered<T>(room, report, __LINE__, answer, Form::alltoalls);
#define TYPED_GATHERING(name, T)                                                                                               \
    OXSHMEM_FOR_EACH_SCOPE(GATHERING, T, name##_broadcast, name##_collect, name##_fcollect, name##_alltoall, name##_alltoalls)
#define MEETING(prefix, suffix, scope, ...)                                                                                    \
    CALL(scope, int, (static_cast<void>(dst), static_cast<void>(src), prefix##team_sync##suffix(TEAM_WORLD)))                  \
    EXPECT_EQ(report, answer, 0);                                                                                              \
    CALL(scope, int, (static_cast<void>(dst), static_cast<void>(src), prefix##barrier##suffix(TEAM_WORLD)))                    \
    EXPECT_EQ(report, answer, 0);

OXSHMEM_KERNEL(typed_gatherings, char *room, Report *report) {
    int answer;
    OXSHMEM_FOR_EACH_RMA_TYPE(TYPED_GATHERING)
    OXSHMEM_FOR_EACH_SCOPE(GATHERING, char, broadcastmem, collectmem, fcollectmem, alltoallmem, alltoallsmem)
    OXSHMEM_FOR_EACH_SCOPE(MEETING, )
    EXPECT_EQ(report, oxshmem_team_my_pe(TEAM_WORLD), oxshmem_my_pe());
    EXPECT_EQ(report, oxshmem_team_n_pes(TEAM_WORLD), oxshmem_n_pes());
    EXPECT_EQ(report, oxshmem_team_translate_pe(TEAM_WORLD, 0, TEAM_WORLD), 0);
}
