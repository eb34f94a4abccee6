// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Point-to-point synchronisation: wait_until, test, and their _all, _any and _some forms, each with
// one value for all variables or a vector of values.
//
// Variables are in the caller's own heap. When a wait returns (or a test is true), what their
// writer completed or ordered before writing them is visible. `status`, if not null, excludes the
// variables whose entry is not 0; if it excludes all (or n is 0), _all is true at once, _any
// returns SIZE_MAX and _some returns 0.
#pragma once

#include "detail/address.h"
#include "detail/profile.h"

namespace oxshmem {

enum class Compare : int { eq = 0, ne = 1, gt = 2, le = 3, lt = 4, ge = 5 };

constexpr Compare CMP_EQ = Compare::eq;
constexpr Compare CMP_NE = Compare::ne;
constexpr Compare CMP_GT = Compare::gt;
constexpr Compare CMP_LE = Compare::le;
constexpr Compare CMP_LT = Compare::lt;
constexpr Compare CMP_GE = Compare::ge;

namespace detail {

template <class T> OXSHMEM_DEVICE bool compare(T seen, Compare cmp, T value) {
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
    case Compare::ge:
        return seen >= value;
    }
    return false;
}

// Refuses variables that no peer could ever write, and unknown comparisons: either would wait
// forever.
template <class T> OXSHMEM_DEVICE bool check_variables(const T *ivars, uint64_t n, Compare cmp, Op op) {
    const int me = port::state().my_pe;
    if (static_cast<uint32_t>(cmp) > static_cast<uint32_t>(Compare::ge)) {
        raise(ErrorCode::bad_argument, op, me, reinterpret_cast<uint64_t>(ivars), static_cast<uint64_t>(cmp));
        return false;
    }
    return n == 0 || (check_symmetric(ivars, bytes_of<T>(n), me, op) && check_aligned(ivars, me, op));
}

// Says, for the error of a deadline, which of `n` variables is not yet what the wait is for.
template <class T> OXSHMEM_DEVICE Unmet unmet(const T *variable, Compare cmp, T wanted, size_t n = 1) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
    constexpr uint32_t kSign = static_cast<T>(-1) < static_cast<T>(0) ? 1 : 0;
    const uint32_t how = static_cast<uint32_t>(cmp) | sizeof(T) << abi::kUnmetBytesShift | kSign << abi::kUnmetSignShift;
    return {variable, static_cast<uint64_t>(wanted), how, static_cast<uint32_t>(n)};
}

// One value for all variables, or one for each.
template <class T> struct Same {
    T value;
    OXSHMEM_DEVICE T operator[](size_t) const { return value; }
};
template <class T> struct Each {
    const T *values;
    OXSHMEM_DEVICE T operator[](size_t i) const { return port::read(values + i); }
};

template <class T, class Values> OXSHMEM_DEVICE bool holds(const T *ivars, size_t i, Compare cmp, const Values &values) {
    if (!compare<T>(port::load<order::relaxed, reach::system>(ivars + i), cmp, values[i])) {
        return false;
    }
    port::acquire<reach::system>(ivars + i);
    return true;
}

OXSHMEM_DEVICE bool excluded(const int *status, size_t i) {
    return status != nullptr && port::read(status + i) != 0;
}

// The same, of variables of which any may become what the wait is for: names the first that is not
// excluded.
template <class T, class Values>
OXSHMEM_DEVICE Unmet unmet_any(const T *ivars, size_t n, const int *status, Compare cmp, const Values &values) {
    size_t first = 0;
    while (first + 1 < n && excluded(status, first)) {
        ++first;
    }
    return unmet<T>(ivars + first, cmp, values[first], n);
}

// The following three do not check what they are passed, as waits call them again and again.
template <class T, class Values>
OXSHMEM_DEVICE bool test_all(const T *ivars, size_t n, const int *status, Compare cmp, const Values &values) {
    for (size_t i = 0; i < n; ++i) {
        if (!excluded(status, i) && !holds(ivars, i, cmp, values)) {
            return false;
        }
    }
    return true;
}

// Where a search for any of `n` variables begins: elsewhere at each call, so that a caller that
// excludes none finds each of them in the end.
OXSHMEM_DEVICE size_t start_of_search(size_t n) {
    const uint64_t mixed = port::clock_ns() * 0x9e3779b97f4a7c15ull;
    return (mixed >> 32) * static_cast<uint32_t>(n) >> 32;
}

// The first variable from `start` on, and then from 0, that compares true. `any_left`: whether
// there is any to wait for.
template <class T, class Values>
OXSHMEM_DEVICE size_t test_any(const T *ivars, size_t n, size_t start, const int *status, Compare cmp, const Values &values,
                               bool &any_left) {
    any_left = false;
    for (size_t step = 0; step < n; ++step) {
        const size_t i = step < n - start ? start + step : step - (n - start);
        if (!excluded(status, i)) {
            any_left = true;
            if (holds(ivars, i, cmp, values)) {
                return i;
            }
        }
    }
    return SIZE_MAX;
}

template <class T, class Values>
OXSHMEM_DEVICE size_t test_some(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp, const Values &values,
                                bool &any_left) {
    any_left = false;
    size_t found = 0;
    for (size_t i = 0; i < n; ++i) {
        if (!excluded(status, i)) {
            any_left = true;
            if (holds(ivars, i, cmp, values)) {
                port::write(indices + found++, i);
            }
        }
    }
    return found;
}

template <class T, class Values>
OXSHMEM_DEVICE void wait_all(const T *ivars, size_t n, const int *status, Compare cmp, const Values &values) {
    const Profiled profiled(Op::wait_until, port::state().my_pe);
    if (!check_variables(ivars, n, cmp, Op::wait_until)) {
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        if (!excluded(status, i) && !wait(
                                        Op::wait_until, [&] { return unmet<T>(ivars + i, cmp, values[i]); }, ivars + i,
                                        [&] { return holds(ivars, i, cmp, values); })) {
            return;
        }
    }
}

template <class T, class Values>
OXSHMEM_DEVICE size_t wait_any(const T *ivars, size_t n, const int *status, Compare cmp, const Values &values) {
    const Profiled profiled(Op::wait_until, port::state().my_pe);
    size_t found = SIZE_MAX;
    if (check_variables(ivars, n, cmp, Op::wait_until)) {
        const auto late = [&] { return unmet_any(ivars, n, status, cmp, values); };
        const size_t start = start_of_search(n);
        wait(Op::wait_until, late, ivars, [&] {
            bool any_left;
            found = test_any(ivars, n, start, status, cmp, values, any_left);
            return found != SIZE_MAX || !any_left;
        });
    }
    return found;
}

template <class T, class Values>
OXSHMEM_DEVICE size_t wait_some(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp,
                                const Values &values) {
    const Profiled profiled(Op::wait_until, port::state().my_pe);
    size_t found = 0;
    if (check_variables(ivars, n, cmp, Op::wait_until)) {
        const auto late = [&] { return unmet_any(ivars, n, status, cmp, values); };
        wait(Op::wait_until, late, ivars, [&] {
            bool any_left;
            found = test_some(ivars, n, indices, status, cmp, values, any_left);
            return found != 0 || !any_left;
        });
    }
    return found;
}

// Tests are polled by programs' loops, so one that finds nothing lets the device's other threads
// run, as a wait does between its looks.
template <class T, class Values>
OXSHMEM_DEVICE bool tested_all(const T *ivars, size_t n, const int *status, Compare cmp, const Values &values) {
    const bool met = check_variables(ivars, n, cmp, Op::wait_until) && test_all(ivars, n, status, cmp, values);
    if (!met) {
        port::pause();
    }
    return met;
}

template <class T, class Values>
OXSHMEM_DEVICE size_t tested_any(const T *ivars, size_t n, const int *status, Compare cmp, const Values &values) {
    bool any_left;
    const size_t found = check_variables(ivars, n, cmp, Op::wait_until)
                             ? test_any(ivars, n, start_of_search(n), status, cmp, values, any_left)
                             : SIZE_MAX;
    if (found == SIZE_MAX) {
        port::pause();
    }
    return found;
}

template <class T, class Values>
OXSHMEM_DEVICE size_t tested_some(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp,
                                  const Values &values) {
    bool any_left;
    const size_t found =
        check_variables(ivars, n, cmp, Op::wait_until) ? test_some(ivars, n, indices, status, cmp, values, any_left) : 0;
    if (found == 0) {
        port::pause();
    }
    return found;
}

} // namespace detail

template <class T> OXSHMEM_DEVICE void wait_until(const T *ivar, Compare cmp, detail::given<T> value) {
    detail::wait_all(ivar, 1, nullptr, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE void wait_until_all(const T *ivars, size_t n, const int *status, Compare cmp, detail::given<T> value) {
    detail::wait_all(ivars, n, status, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE size_t wait_until_any(const T *ivars, size_t n, const int *status, Compare cmp, detail::given<T> value) {
    return detail::wait_any(ivars, n, status, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE size_t wait_until_some(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp,
                                      detail::given<T> value) {
    return detail::wait_some(ivars, n, indices, status, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE void wait_until_all_vector(const T *ivars, size_t n, const int *status, Compare cmp, const T *values) {
    detail::wait_all(ivars, n, status, cmp, detail::Each<T>{values});
}
template <class T>
OXSHMEM_DEVICE size_t wait_until_any_vector(const T *ivars, size_t n, const int *status, Compare cmp, const T *values) {
    return detail::wait_any(ivars, n, status, cmp, detail::Each<T>{values});
}
template <class T>
OXSHMEM_DEVICE size_t wait_until_some_vector(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp,
                                             const T *values) {
    return detail::wait_some(ivars, n, indices, status, cmp, detail::Each<T>{values});
}

template <class T> OXSHMEM_DEVICE int test(const T *ivar, Compare cmp, detail::given<T> value) {
    return detail::tested_all(ivar, 1, nullptr, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE int test_all(const T *ivars, size_t n, const int *status, Compare cmp, detail::given<T> value) {
    return detail::tested_all(ivars, n, status, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE size_t test_any(const T *ivars, size_t n, const int *status, Compare cmp, detail::given<T> value) {
    return detail::tested_any(ivars, n, status, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE size_t test_some(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp,
                                detail::given<T> value) {
    return detail::tested_some(ivars, n, indices, status, cmp, detail::Same<T>{value});
}
template <class T>
OXSHMEM_DEVICE int test_all_vector(const T *ivars, size_t n, const int *status, Compare cmp, const T *values) {
    return detail::tested_all(ivars, n, status, cmp, detail::Each<T>{values});
}
template <class T>
OXSHMEM_DEVICE size_t test_any_vector(const T *ivars, size_t n, const int *status, Compare cmp, const T *values) {
    return detail::tested_any(ivars, n, status, cmp, detail::Each<T>{values});
}
template <class T>
OXSHMEM_DEVICE size_t test_some_vector(const T *ivars, size_t n, size_t *indices, const int *status, Compare cmp,
                                       const T *values) {
    return detail::tested_some(ivars, n, indices, status, cmp, detail::Each<T>{values});
}

} // namespace oxshmem
