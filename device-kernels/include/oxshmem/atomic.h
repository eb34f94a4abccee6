// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Atomics on 32- and 64-bit words of the symmetric heap. Fetching forms return when they hold the
// old value; the others complete at the next quiet. All atomics on a word are atomic with respect
// to each other, whether a card, a GPU or a CPU executes them: where the card's atomics are not
// atomic with those of CPUs and GPUs, all go through the card, including those on this PE's own
// memory, unless OXSHMEM_ATOMICS=gpu says otherwise (docs/semantics.md, "Atomics and cards").
#pragma once

#include "detail/network.h"
#include "detail/profile.h"

namespace oxshmem {

namespace detail {

// Where an atomic goes; `none` if it was refused.
template <class T> OXSHMEM_DEVICE Path atomic_path(const T *target, int pe) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    const bool own = takes_any_address(pe) && !in_heap(target, sizeof(T));
    const Path path = own ? Path::load_store : atomic_path_to(pe, Op::atomic);
    return path != Path::none && check_symmetric(target, sizeof(T), pe, Op::atomic) && check_aligned(target, pe, Op::atomic)
               ? path
               : Path::none;
}

// `local` runs on the mapped word, `request` on the HCA. Whether it fetches or not, `local` returns
// the old value. `Changes`: `local` may change the word. (`request` writes it back in any case.)
template <bool Fetch, bool Changes = true, class C, class T, class Local>
OXSHMEM_DEVICE T atomic(C context, T *target, int pe, const AtomicRequest &request, Local local) {
    const Profiled profiled(Op::atomic, pe, sizeof(T));
    switch (atomic_path(target, pe)) {
    case Path::load_store:
        if constexpr (Changes) {
            watch_atomic(target, pe, false);
        }
        return local(translate(target, pe));
    case Path::network:
        watch_atomic(target, pe, true);
        if constexpr (Fetch) {
            return network_fetch_atomic(context, target, request, pe);
        } else {
            network_atomic(context, target, request, pe);
            return T{};
        }
    case Path::none:
        break;
    }
    return T{};
}

template <class T> constexpr uint64_t all_bits = ~0ull >> (64 - 8 * sizeof(T));

// Types whose bits are a number that cards and GPUs add to and combine.
template <class T> constexpr bool is_whole_number = __is_enum(T);
template <> inline constexpr bool is_whole_number<int> = true;
template <> inline constexpr bool is_whole_number<unsigned> = true;
template <> inline constexpr bool is_whole_number<long> = true;
template <> inline constexpr bool is_whole_number<unsigned long> = true;
template <> inline constexpr bool is_whole_number<long long> = true;
template <> inline constexpr bool is_whole_number<unsigned long long> = true;

template <bool Fetch, class C, class T> OXSHMEM_DEVICE T atomic_add(C context, T *target, T value, int pe) {
    static_assert(is_whole_number<T>, "atomics add integers; add other types by atomic_compare_swap");
    return atomic<Fetch>(context, target, pe, AtomicRequest::add(value),
                         [&](T *word) { return port::fetch_add<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class C, class T> OXSHMEM_DEVICE T atomic_swap(C context, T *target, T value, int pe) {
    return atomic<Fetch>(context, target, pe, AtomicRequest::replace(value, all_bits<T>),
                         [&](T *word) { return port::exchange<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class C, class T> OXSHMEM_DEVICE T atomic_and(C context, T *target, T value, int pe) {
    static_assert(is_whole_number<T>, "atomics combine the bits of integers");
    return atomic<Fetch>(context, target, pe, AtomicRequest::replace(value, ~to_bits(value) & all_bits<T>),
                         [&](T *word) { return port::fetch_and<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class C, class T> OXSHMEM_DEVICE T atomic_or(C context, T *target, T value, int pe) {
    static_assert(is_whole_number<T>, "atomics combine the bits of integers");
    return atomic<Fetch>(context, target, pe, AtomicRequest::replace(value, to_bits(value)),
                         [&](T *word) { return port::fetch_or<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class C, class T> OXSHMEM_DEVICE T atomic_xor(C context, T *target, T value, int pe) {
    static_assert(is_whole_number<T>, "atomics combine the bits of integers");
    return atomic<Fetch>(context, target, pe, AtomicRequest::exclusive_or(value),
                         [&](T *word) { return port::fetch_xor<order::relaxed, reach::system>(word, value); });
}

template <class C, class T> OXSHMEM_DEVICE T atomic_fetch(C context, const T *source, int pe) {
    // Adding zero bits, whatever T is, reads the word atomically with respect to the HCA's other
    // atomics.
    T *target = const_cast<T *>(source);
    return atomic<true, false>(context, target, pe, AtomicRequest::add(T{}),
                               [](T *word) { return port::load<order::relaxed, reach::system>(word); });
}

template <class C, class T> OXSHMEM_DEVICE T atomic_compare_swap(C context, T *target, T expected, T desired, int pe) {
    return atomic<true>(context, target, pe, AtomicRequest::compare_swap(expected, desired), [&](T *word) {
        return port::compare_exchange<order::relaxed, reach::system>(word, expected, desired);
    });
}

} // namespace detail

template <class T> OXSHMEM_DEVICE T atomic_fetch(const T *source, int pe) {
    return detail::atomic_fetch(detail::DefaultContext{}, source, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_set(T *target, detail::given<T> value, int pe) {
    detail::atomic_swap<false, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_swap(T *target, detail::given<T> value, int pe) {
    return detail::atomic_swap<true, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T>
OXSHMEM_DEVICE T atomic_compare_swap(T *target, detail::given<T> expected, detail::given<T> desired, int pe) {
    return detail::atomic_compare_swap<detail::DefaultContext, T>({}, target, expected, desired, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_add(T *target, detail::given<T> value, int pe) {
    detail::atomic_add<false, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_add(T *target, detail::given<T> value, int pe) {
    return detail::atomic_add<true, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_inc(T *target, int pe) {
    detail::atomic_add<false>(detail::DefaultContext{}, target, T{1}, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_inc(T *target, int pe) {
    return detail::atomic_add<true>(detail::DefaultContext{}, target, T{1}, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_and(T *target, detail::given<T> value, int pe) {
    detail::atomic_and<false, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_and(T *target, detail::given<T> value, int pe) {
    return detail::atomic_and<true, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_or(T *target, detail::given<T> value, int pe) {
    detail::atomic_or<false, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_or(T *target, detail::given<T> value, int pe) {
    return detail::atomic_or<true, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_xor(T *target, detail::given<T> value, int pe) {
    detail::atomic_xor<false, detail::DefaultContext, T>({}, target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_xor(T *target, detail::given<T> value, int pe) {
    return detail::atomic_xor<true, detail::DefaultContext, T>({}, target, value, pe);
}

} // namespace oxshmem
