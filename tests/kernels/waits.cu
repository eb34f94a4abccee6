// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// wait_until and test in all forms. Two blocks of one thread: block 0 writes to the other PEs,
// block 1 waits.
#include "conformance.h"

namespace {

using namespace conformance;
using oxshmem::Compare;

template <class T> OXSHMEM_DEVICE bool holds(T seen, Compare cmp, T value) {
    switch (cmp) {
    case Compare::eq:
        return seen == value;
    case Compare::ne:
        return seen != value;
    case Compare::gt:
        return seen > value;
    case Compare::le:
        return seen <= value;
    case Compare::lt:
        return seen < value;
    default:
        return seen >= value;
    }
}

// A value for which `start` does not compare true and `final_value` does, for every comparison. For
// signed types the values are negative on one side.
template <class T> struct Case {
    Compare cmp;
    T start, against, final_value;
};

template <class T> OXSHMEM_DEVICE Case<T> case_of(uint32_t i) {
    const T low = std::is_signed_v<T> ? T(-5) : T(5);
    const T high = std::is_signed_v<T> ? T(3) : static_cast<T>(~T{0}); // unsigned: the highest value
    switch (i % 6) {
    case 0:
        return {Compare::eq, low, high, high};
    case 1:
        return {Compare::ne, low, low, high};
    case 2:
        return {Compare::gt, low, low, high};
    case 3:
        return {Compare::le, high, low, low};
    case 4:
        return {Compare::lt, high, high, low};
    default:
        return {Compare::ge, low, high, high};
    }
}

// Variables are dealt to the writing PEs in turn.
constexpr uint32_t kVariables = 18;

// Part 1: a single wait per comparison.
template <class T> OXSHMEM_DEVICE void single(T *vars, Report *report) {
    using namespace oxshmem;
    for (uint32_t i = 0; i < 6; ++i) {
        const Case<T> c = case_of<T>(i);
        wait_until(vars + i, c.cmp, c.against);
        EXPECT_EQ(report, peek(vars + i), c.final_value);
        EXPECT_EQ(report, test(vars + i, c.cmp, c.against), 1);
    }
}

// The values that the variables of the sets take: variable i becomes i + 1.
template <class T> OXSHMEM_DEVICE void sets(T *vars, uint32_t excluded, Report *report) {
    using namespace oxshmem;
    int status[kVariables] = {};
    T wanted[kVariables];
    size_t indices[kVariables];
    for (uint32_t i = 0; i < kVariables; ++i) {
        wanted[i] = static_cast<T>(i + 1);
        status[i] = (excluded >> i & 1) != 0 ? 1 : 0;
    }
    const uint32_t left = kVariables - count_ones(excluded);
    const auto arrived = [&](T *set) {
        for (uint32_t i = 0; i < kVariables; ++i) {
            EXPECT_EQ(report, peek(set + i), (excluded >> i & 1) != 0 ? T{0} : wanted[i]);
        }
    };
    // all, one value and a vector.
    T *set = vars;
    wait_until_all(set, kVariables, status, CMP_NE, T{0});
    EXPECT_EQ(report, test_all(set, kVariables, status, CMP_GT, T{0}), 1);
    EXPECT_EQ(report, test_all(set, kVariables, nullptr, CMP_GT, T{0}), excluded == 0 ? 1 : 0);
    arrived(set);
    set += kVariables;
    wait_until_all_vector(set, kVariables, status, CMP_EQ, wanted);
    EXPECT_EQ(report, test_all_vector(set, kVariables, status, CMP_EQ, wanted), 1);
    arrived(set);
    // any, until each was found once.
    for (int vector = 0; vector < 2; ++vector) {
        set += kVariables;
        int seen[kVariables];
        memcpy(seen, status, sizeof(seen));
        for (uint32_t found = 0; found < left; ++found) {
            const size_t i = vector ? wait_until_any_vector(set, kVariables, seen, CMP_EQ, wanted)
                                    : wait_until_any(set, kVariables, seen, CMP_GE, T{1});
            EXPECT(report, i < kVariables && seen[i] == 0);
            if (i >= kVariables) {
                return;
            }
            EXPECT_EQ(report, peek(set + i), wanted[i]);
            seen[i] = 1;
        }
        EXPECT_EQ(report, wait_until_any(set, kVariables, seen, CMP_EQ, T{1}), SIZE_MAX);
        EXPECT_EQ(report, wait_until_any_vector(set, kVariables, seen, CMP_EQ, wanted), SIZE_MAX);
        EXPECT_EQ(report, test_any(set, kVariables, seen, CMP_NE, T{0}), SIZE_MAX);
        EXPECT_EQ(report, test_any_vector(set, kVariables, seen, CMP_NE, wanted), SIZE_MAX);
        arrived(set);
    }
    // some, the same way; polled with test_some too.
    for (int form = 0; form < 4; ++form) {
        set += kVariables;
        int seen[kVariables];
        memcpy(seen, status, sizeof(seen));
        uint32_t found = 0;
        while (found < left) {
            size_t n = 0;
            switch (form) {
            case 0:
                n = wait_until_some(set, kVariables, indices, seen, CMP_GT, T{0});
                EXPECT(report, n != 0);
                break;
            case 1:
                n = wait_until_some_vector(set, kVariables, indices, seen, CMP_EQ, wanted);
                EXPECT(report, n != 0);
                break;
            case 2:
                n = test_some(set, kVariables, indices, seen, CMP_GT, T{0});
                break;
            default:
                n = test_some_vector(set, kVariables, indices, seen, CMP_EQ, wanted);
                break;
            }
            if (n > kVariables || (n == 0 && form < 2)) {
                return;
            }
            for (size_t k = 0; k < n; ++k) {
                EXPECT(report, indices[k] < kVariables && seen[indices[k]] == 0);
                EXPECT_EQ(report, peek(set + indices[k]), wanted[indices[k]]);
                seen[indices[k]] = 1;
            }
            found += static_cast<uint32_t>(n);
            pause();
        }
        EXPECT_EQ(report, wait_until_some(set, kVariables, indices, seen, CMP_EQ, T{0}), size_t{0});
        EXPECT_EQ(report, wait_until_some_vector(set, kVariables, indices, seen, CMP_EQ, wanted), size_t{0});
        EXPECT_EQ(report, test_some(set, kVariables, indices, seen, CMP_EQ, T{0}), size_t{0});
        arrived(set);
    }
    // Nothing to wait for.
    wait_until_all(set, 0, nullptr, CMP_EQ, T{9});
    wait_until_all_vector(set, 0, nullptr, CMP_EQ, wanted);
    EXPECT_EQ(report, wait_until_any(set, 0, nullptr, CMP_EQ, T{9}), SIZE_MAX);
    EXPECT_EQ(report, wait_until_some(set, 0, indices, nullptr, CMP_EQ, T{9}), size_t{0});
    EXPECT_EQ(report, test_all(set, 0, nullptr, CMP_EQ, T{9}), 1);
    EXPECT_EQ(report, test_any(set, 0, nullptr, CMP_EQ, T{9}), SIZE_MAX);
    EXPECT_EQ(report, test_some(set, 0, indices, nullptr, CMP_EQ, T{9}), size_t{0});
}

constexpr uint32_t kSets = 8;

template <class T> OXSHMEM_DEVICE void waits(T *singles, T *vars, uint32_t excluded, Report *report) {
    using namespace oxshmem;
    const uint32_t n = static_cast<uint32_t>(n_pes());
    const uint32_t me = static_cast<uint32_t>(my_pe());
    if (block_rank() == 1) {
        single(singles, report);
        sets(vars, excluded, report);
        return;
    }
    for (uint32_t i = 0; i < 6; ++i) {
        const uint32_t to = (me + i) % n; // the PE whose variable i is mine to write
        dawdle(20);
        p(singles + i, case_of<T>(i).final_value, static_cast<int>(to));
    }
    for (uint32_t set = 0; set < kSets; ++set) {
        for (uint32_t k = 0; k < kVariables; ++k) {
            const uint32_t i = (k * 7 + set) % kVariables; // in no particular order
            if ((excluded >> i & 1) == 0) {
                p(vars + set * kVariables + i, static_cast<T>(i + 1), static_cast<int>((me + i) % n));
            }
            if (k % 5 == set % 5) {
                dawdle(10);
            }
        }
    }
}

template <class T> OXSHMEM_DEVICE void prepare(T *singles) {
    for (uint32_t i = 0; i < 6; ++i) {
        singles[i] = case_of<T>(i).start;
    }
}

} // namespace

#define WAIT_KERNELS(name, T)                                                                                                  \
    OXSHMEM_KERNEL(prepare_##name, T *singles) {                                                                               \
        prepare(singles);                                                                                                      \
    }                                                                                                                          \
    OXSHMEM_KERNEL(waits_##name, T *singles, T *vars, uint32_t excluded, Report *report) {                                     \
        waits(singles, vars, excluded, report);                                                                                \
    }
WAIT_KERNELS(i16, int16_t)
WAIT_KERNELS(u16, uint16_t)
WAIT_KERNELS(i32, int32_t)
WAIT_KERNELS(u32, uint32_t)
WAIT_KERNELS(i64, int64_t)
WAIT_KERNELS(u64, uint64_t)

// A caller that excludes nothing finds each variable in the end. `vars`: none of them is 0.
OXSHMEM_KERNEL(find_each, uint64_t *vars, Report *report) {
    using namespace oxshmem;
    uint64_t none[kVariables] = {};
    const auto finds_all = [&](auto find) {
        uint32_t found = 0;
        for (uint32_t look = 0; look < 1000000 && found + 1 != 1u << kVariables; ++look) {
            const size_t i = find();
            EXPECT(report, i < kVariables);
            found |= 1u << i;
        }
        EXPECT_EQ(report, found, (1u << kVariables) - 1);
    };
    finds_all([&] { return wait_until_any(vars, kVariables, nullptr, CMP_NE, uint64_t{0}); });
    finds_all([&] { return wait_until_any_vector(vars, kVariables, nullptr, CMP_NE, none); });
    finds_all([&] { return test_any(vars, kVariables, nullptr, CMP_NE, uint64_t{0}); });
    finds_all([&] { return test_any_vector(vars, kVariables, nullptr, CMP_NE, none); });
}

// The threads of a warp poll what its last one sets.
OXSHMEM_KERNEL(polls, uint64_t *flag) {
    using namespace oxshmem;
    const uint64_t wanted = 1;
    size_t index;
    switch (thread_rank()) {
    case 0:
        while (test(flag, CMP_EQ, 1) == 0) {
        }
        return;
    case 1:
        while (test_all(flag, 1, nullptr, CMP_EQ, wanted) == 0) {
        }
        return;
    case 2:
        while (test_any(flag, 1, nullptr, CMP_EQ, wanted) != 0) {
        }
        return;
    case 3:
        while (test_some(flag, 1, &index, nullptr, CMP_EQ, wanted) != 1) {
        }
        return;
    case 4:
        while (test_all_vector(flag, 1, nullptr, CMP_EQ, &wanted) == 0) {
        }
        return;
    case 5:
        while (test_any_vector(flag, 1, nullptr, CMP_EQ, &wanted) != 0) {
        }
        return;
    case 6:
        while (test_some_vector(flag, 1, &index, nullptr, CMP_EQ, &wanted) != 1) {
        }
        return;
    case 7:
        while (signal_fetch(flag) != 1) {
        }
        return;
    case 8:
        p(flag, wanted, my_pe());
        return;
    default:
        return;
    }
}
