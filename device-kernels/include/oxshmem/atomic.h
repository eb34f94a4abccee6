// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Atomics on 32- and 64-bit words of the symmetric heap. Fetching forms return when they hold the
// old value; the others complete at the next quiet. All atomics on a word are atomic with respect
// to each other, whether a card, a GPU or a CPU executes them: where the card's atomics are not
// atomic with those of CPUs and GPUs, all go through the card, including those on this PE's own
// memory.
#pragma once

#include "detail/network.h"

namespace oxshmem {

namespace detail {

// Where an atomic goes; `none` if it was refused.
template <class T> OXSHMEM_DEVICE Path atomic_path(const T *target, int pe) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    const Path path = atomic_path_to(pe, Op::atomic);
    return path != Path::none && check_symmetric(target, sizeof(T), pe, Op::atomic) && check_aligned(target, pe, Op::atomic)
               ? path
               : Path::none;
}

// `local` runs on the mapped word, `request` on the HCA. Whether it fetches or not, `local` returns
// the old value. `Changes`: `local` may change the word. (`request` writes it back in any case.)
template <bool Fetch, bool Changes = true, class T, class Local>
OXSHMEM_DEVICE T atomic(T *target, int pe, const AtomicRequest &request, Local local) {
    switch (atomic_path(target, pe)) {
    case Path::load_store:
        if constexpr (Changes) {
            watch_atomic(target, pe, false);
        }
        return local(translate(target, pe));
    case Path::network:
        watch_atomic(target, pe, true);
        if constexpr (Fetch) {
            return network_fetch_atomic(target, request, pe);
        } else {
            network_atomic(target, request, pe);
            return T{};
        }
    case Path::none:
        break;
    }
    return T{};
}

template <class T> constexpr uint64_t all_bits = ~0ull >> (64 - 8 * sizeof(T));

template <bool Fetch, class T> OXSHMEM_DEVICE T atomic_add(T *target, T value, int pe) {
    return atomic<Fetch>(target, pe, AtomicRequest::add(value),
                         [&](T *word) { return port::fetch_add<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class T> OXSHMEM_DEVICE T atomic_swap(T *target, T value, int pe) {
    return atomic<Fetch>(target, pe, AtomicRequest::replace(value, all_bits<T>),
                         [&](T *word) { return port::exchange<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class T> OXSHMEM_DEVICE T atomic_and(T *target, T value, int pe) {
    return atomic<Fetch>(target, pe, AtomicRequest::replace(value, ~to_bits(value) & all_bits<T>),
                         [&](T *word) { return port::fetch_and<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class T> OXSHMEM_DEVICE T atomic_or(T *target, T value, int pe) {
    return atomic<Fetch>(target, pe, AtomicRequest::replace(value, to_bits(value)),
                         [&](T *word) { return port::fetch_or<order::relaxed, reach::system>(word, value); });
}

template <bool Fetch, class T> OXSHMEM_DEVICE T atomic_xor(T *target, T value, int pe) {
    return atomic<Fetch>(target, pe, AtomicRequest::exclusive_or(value),
                         [&](T *word) { return port::fetch_xor<order::relaxed, reach::system>(word, value); });
}

} // namespace detail

template <class T> OXSHMEM_DEVICE T atomic_fetch(const T *source, int pe) {
    // Adding zero bits, whatever T is, reads the word atomically with respect to the HCA's other
    // atomics.
    T *target = const_cast<T *>(source);
    return detail::atomic<true, false>(target, pe, detail::AtomicRequest::add(T{}),
                                       [](T *word) { return port::load<port::order::relaxed, port::reach::system>(word); });
}
template <class T> OXSHMEM_DEVICE void atomic_set(T *target, detail::given<T> value, int pe) {
    detail::atomic_swap<false, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_swap(T *target, detail::given<T> value, int pe) {
    return detail::atomic_swap<true, T>(target, value, pe);
}
template <class T>
OXSHMEM_DEVICE T atomic_compare_swap(T *target, detail::given<T> expected, detail::given<T> desired, int pe) {
    return detail::atomic<true>(target, pe, detail::AtomicRequest::compare_swap(expected, desired), [&](T *word) {
        return port::compare_exchange<port::order::relaxed, port::reach::system>(word, expected, desired);
    });
}
template <class T> OXSHMEM_DEVICE void atomic_add(T *target, detail::given<T> value, int pe) {
    detail::atomic_add<false, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_add(T *target, detail::given<T> value, int pe) {
    return detail::atomic_add<true, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_inc(T *target, int pe) {
    detail::atomic_add<false>(target, T{1}, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_inc(T *target, int pe) {
    return detail::atomic_add<true>(target, T{1}, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_and(T *target, detail::given<T> value, int pe) {
    detail::atomic_and<false, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_and(T *target, detail::given<T> value, int pe) {
    return detail::atomic_and<true, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_or(T *target, detail::given<T> value, int pe) {
    detail::atomic_or<false, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_or(T *target, detail::given<T> value, int pe) {
    return detail::atomic_or<true, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE void atomic_xor(T *target, detail::given<T> value, int pe) {
    detail::atomic_xor<false, T>(target, value, pe);
}
template <class T> OXSHMEM_DEVICE T atomic_fetch_xor(T *target, detail::given<T> value, int pe) {
    return detail::atomic_xor<true, T>(target, value, pe);
}

} // namespace oxshmem
