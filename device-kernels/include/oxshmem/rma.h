// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Remote memory access: p, g, put, get, their _nbi forms, iput, iget.
//
// A target address is symmetric: an address in the caller's heap that names the same place in the
// peer's. The local side may be any memory; over the network, memory that is neither in the heap
// nor registered is slower.
//
// Blocking forms return when the local buffer may be reused (put) or holds the data (get); _nbi
// forms return at once and both become true at the next quiet. Delivery at the peer is what quiet
// promises. In grid scope each block transfers its part and waits for no other block.
#pragma once

#include "detail/copy.h"
#include "detail/network.h"
#include "detail/profile.h"

namespace oxshmem {

OXSHMEM_DEVICE int my_pe() {
    return port::state().my_pe;
}
OXSHMEM_DEVICE int n_pes() {
    return port::state().n_pes;
}

// The address at which `pe`'s copy of `address` can be loaded and stored directly, or null if it
// cannot.
template <class T> OXSHMEM_DEVICE T *ptr(T *address, int pe) {
    return detail::is_direct(pe) && detail::in_heap(address, sizeof(T)) ? detail::translate(address, pe) : nullptr;
}

namespace detail {

template <class T> constexpr bool scalar = sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8;

// Pushes unregistered memory through the queue, by all lanes. Of memory that is registered further
// on, the card reads what is: a blocking put waits for that.
template <class Scope, class C>
OXSHMEM_OUTLINE void network_push(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    const Slice mine = slice<Scope>((bytes + kInlineMost - 1) / kInlineMost);
    const uint64_t first = mine.first * kInlineMost;
    const uint64_t last = least(mine.last * kInlineMost, bytes);
    if (first < last) {
        const uint64_t end =
            network_put(context, static_cast<char *>(dst) + first, static_cast<const char *>(src) + first, last - first, pe);
        if (blocking && end != 0 && registered(static_cast<const char *>(src) + bytes - 1) != 0) {
            network_wait(context, end, pe, Op::put);
        }
    }
}

// A put of registered (or small) memory is a few work requests, and one lane posts them.
template <class Scope, class C>
OXSHMEM_DEVICE void network_put_by(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    if (Scope::kLanes > 1 && bytes > kInlineOneBlock && registered(src) == 0) {
        network_push<Scope>(blocking ? at_once(context) : context, dst, src, bytes, pe, blocking);
    } else if (Scope::rank() == 0) {
        const bool waits = blocking && bytes > port::state().inline_up_to;
        const C mine = by_leader<Scope>(waits ? at_once(context) : context);
        const uint64_t end = network_put(mine, dst, src, bytes, pe);
        if (waits && end != 0) {
            network_wait(mine, end, pe, Op::put);
        }
    }
}

template <class Scope, class C>
OXSHMEM_DEVICE void network_get_by(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    const auto run = [&](C mine, uint64_t first, uint64_t last) {
        if (first >= last) {
            return;
        }
        const uint64_t end = network_get(mine, static_cast<char *>(dst) + first, static_cast<const char *>(src) + first,
                                         last - first, pe, Op::get);
        if (blocking && end != 0) {
            network_wait(mine, end, pe, Op::get);
        }
    };
    if (blocking) {
        context = at_once(context);
    }
    if (registered(dst) != 0) {
        if (Scope::rank() == 0) {
            run(by_leader<Scope>(context), 0, bytes);
        }
    } else {
        const Slice mine = slice<Scope>((bytes + abi::kLandingBytes - 1) / abi::kLandingBytes);
        run(context, mine.first * abi::kLandingBytes, least(mine.last * abi::kLandingBytes, bytes));
    }
}

// Copying takes more registers than a caller's loop should lose, and so does posting: each is a
// function of its own.
template <class Scope, Source kFrom = Source::near> OXSHMEM_OUTLINE void near_copy(void *dst, const void *src, uint64_t bytes) {
    copy<Scope, kFrom>(dst, src, bytes);
}

// The same for put and get, which do without that function where they can.
template <class Scope, Source kFrom> OXSHMEM_DEVICE void near_transfer(void *dst, const void *src, uint64_t bytes) {
    if constexpr (port::kCoalesced && Scope::kLanes > 1) {
        if (copy_leanly<Scope, kFrom>(dst, src, bytes)) {
            return;
        }
    }
    near_copy<Scope, kFrom>(dst, src, bytes);
}

// put and get of what cannot be accessed in place: over the network, or not at all. (So a put whose
// target is in the heap is to a peer that is not direct.)
template <class Scope, class C>
OXSHMEM_OUTLINE void far_put(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    if (takes_any_address(pe)) {
        near_copy<Scope>(dst, src, bytes);
    } else if (is_one_transfer(dst, src, bytes, pe)) {
        if (Scope::rank() == 0) {
            const C mine = by_leader<Scope>(blocking ? at_once(context) : context);
            const uint64_t end = network_transfer(mine, dst, src, bytes, pe);
            if (blocking && end != 0) {
                network_wait(mine, end, pe, Op::put);
            }
        }
    } else if (path_to(pe, Op::put) != Path::none && check_symmetric(dst, bytes, pe, Op::put) && bytes != 0) {
        if (is_staged(context, bytes, pe, Use::data)) {
            // The source is copied when this returns.
            staged_put<Scope>(blocking ? at_once(context) : context, dst, src, bytes, pe, Use::data);
        } else {
            network_put_by<Scope>(context, dst, src, bytes, pe, blocking);
        }
    }
}

template <class Scope, class C>
OXSHMEM_OUTLINE void far_get(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    if (takes_any_address(pe)) {
        near_copy<Scope>(dst, src, bytes);
    } else if (path_to(pe, Op::get) != Path::none && check_symmetric(src, bytes, pe, Op::get) && bytes != 0) {
        network_get_by<Scope>(context, dst, src, bytes, pe, blocking);
    }
}

// What the calling block of a grid transfers of `bytes` bytes: whole pieces, except for the last
// one.
OXSHMEM_DEVICE Slice slice_of_block(uint64_t bytes) {
    constexpr uint64_t kSlicePiece = 256;
    const uint64_t blocks = port::grid_blocks();
    const uint64_t each = (bytes / kSlicePiece / blocks + 1) * kSlicePiece;
    const uint64_t first = least(each * port::block_rank(), bytes);
    return {first, least(first + each, bytes)};
}

template <class Scope, class C>
OXSHMEM_DEVICE void put_by(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    const Profiled profiled(Op::put, pe, bytes, !kIsGrid<Scope> && Scope::rank() == 0);
    if constexpr (kIsGrid<Scope>) {
        // What is wrong is wrong for all blocks, whichever part of the memory they transfer.
        const Slice mine = slice_of_block(bytes);
        if (path_to(pe, Op::put) != Path::none && check_symmetric(dst, bytes, pe, Op::put) && mine.first != mine.last) {
            put_by<block_scope>(context, static_cast<char *>(dst) + mine.first, static_cast<const char *>(src) + mine.first,
                                mine.last - mine.first, pe, blocking);
        }
    } else if (const bool good = in_heap(dst, bytes); !((good & is_in_run(pe)) || (good && is_direct(pe)))) {
        if constexpr (Scope::kLanes == 1) {
            if (!blocking && !is_direct(pe) && put_for_itself(context, dst, src, bytes, pe)) {
                return;
            }
        }
        far_put<Scope>(context, dst, src, bytes, pe, blocking);
    } else if (Scope::kLanes == 1 && is_word(dst, src, bytes)) {
        port::write(translate(static_cast<uint64_t *>(dst), pe), port::read(static_cast<const uint64_t *>(src)));
    } else {
        near_transfer<Scope, Source::near>(translate(dst, pe), src, bytes);
    }
}

template <class Scope, class C>
OXSHMEM_DEVICE void get_by(C context, void *dst, const void *src, uint64_t bytes, int pe, bool blocking) {
    const Profiled profiled(Op::get, pe, bytes, !kIsGrid<Scope> && Scope::rank() == 0);
    if constexpr (kIsGrid<Scope>) {
        const Slice mine = slice_of_block(bytes);
        if (path_to(pe, Op::get) != Path::none && check_symmetric(src, bytes, pe, Op::get) && mine.first != mine.last) {
            get_by<block_scope>(context, static_cast<char *>(dst) + mine.first, static_cast<const char *>(src) + mine.first,
                                mine.last - mine.first, pe, blocking);
        }
    } else if (const bool good = in_heap(src, bytes); !((good & is_in_run(pe)) || (good && is_direct(pe)))) {
        far_get<Scope>(context, dst, src, bytes, pe, blocking);
    } else if (Scope::kLanes == 1 && is_word(dst, src, bytes)) {
        port::write(static_cast<uint64_t *>(dst), port::read(translate(static_cast<const uint64_t *>(src), pe)));
    } else {
        near_transfer<Scope, Source::far>(dst, translate(src, pe), bytes);
    }
}

// p and g where the word cannot be accessed in place: over the network, or not at all.
template <class C, class T> OXSHMEM_OUTLINE void far_p(C context, T *dst, T value, int pe) {
    // The conditions say that it is a put by IBGDA, as most are: the word is in the heap, so the PE
    // is not direct.
    if (!posts_to(pe) || !holds_word(dst) || !is_checked_word(dst)) {
        const bool good = path_to(pe, Op::p) != Path::none && check_symmetric(dst, sizeof(T), pe, Op::p);
        if (!good || !check_word(dst, pe, Op::p)) {
            return;
        }
    }
    if (takes_any_address(pe)) {
        port::store<order::relaxed, reach::system>(dst, value);
    } else {
        network_p(context, dst, value, pe);
    }
}

template <class C, class T> OXSHMEM_OUTLINE T far_g(C context, const T *src, int pe) {
    const bool good = path_to(pe, Op::g) != Path::none && check_symmetric(src, sizeof(T), pe, Op::g);
    if (good && takes_any_address(pe)) {
        return port::load<order::relaxed, reach::system>(src);
    }
    return good && check_word(src, pe, Op::g) ? network_g(context, src, pe) : T{};
}

template <class C, class T> OXSHMEM_DEVICE void p_by(C context, T *dst, T value, int pe) {
    static_assert(scalar<T>);
    const Profiled profiled(Op::p, pe, sizeof(T));
    T *const word = translate(dst, pe);
    const bool direct = is_direct(pe);
    if (direct && holds_word(dst) && is_checked_word(dst)) {
        port::store<order::relaxed, reach::system>(word, value);
    } else {
        if constexpr (kOfContext<C>) {
            if (!direct && p_for_itself(context, dst, value, pe)) {
                return;
            }
        }
        far_p(context, dst, value, pe);
    }
}

template <class C, class T> OXSHMEM_DEVICE T g_by(C context, const T *src, int pe) {
    static_assert(scalar<T>);
    const Profiled profiled(Op::g, pe, sizeof(T));
    const T *const word = translate(src, pe);
    if (is_direct(pe) && holds_word(src) && is_checked_word(src)) {
        return port::load<order::relaxed, reach::system>(word);
    }
    return far_g(context, src, pe);
}

} // namespace detail

// Stores one value into `dst` at `pe`. `value` may be reused at once. A value of an aligned address
// arrives untorn.
template <class T> OXSHMEM_DEVICE void p(T *dst, detail::given<T> value, int pe) {
    detail::p_by<detail::DefaultContext, T>({}, dst, value, pe);
}

// Loads one value from `src` at `pe`. Zero if the call was refused (the error is recorded).
template <class T> OXSHMEM_DEVICE T g(const T *src, int pe) {
    return detail::g_by(detail::DefaultContext{}, src, pe);
}

// Copies `bytes` bytes from local `src` to symmetric `dst` at `pe`.
template <class Scope> OXSHMEM_DEVICE void putmem_nbi(Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::put_by<Scope>(detail::DefaultContext{}, dst, src, bytes, pe, false);
}

template <class Scope> OXSHMEM_DEVICE void putmem(Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::put_by<Scope>(detail::DefaultContext{}, dst, src, bytes, pe, true);
    Scope::sync();
}

// Copies `bytes` bytes from symmetric `src` at `pe` to local `dst`.
template <class Scope> OXSHMEM_DEVICE void getmem_nbi(Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::get_by<Scope>(detail::DefaultContext{}, dst, src, bytes, pe, false);
}

template <class Scope> OXSHMEM_DEVICE void getmem(Scope, void *dst, const void *src, size_t bytes, int pe) {
    detail::get_by<Scope>(detail::DefaultContext{}, dst, src, bytes, pe, true);
    Scope::sync();
}

// The same for `n` elements of T.
template <class Scope, class T> OXSHMEM_DEVICE void put(Scope scope, T *dst, const T *src, size_t n, int pe) {
    putmem(scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T> OXSHMEM_DEVICE void put_nbi(Scope scope, T *dst, const T *src, size_t n, int pe) {
    putmem_nbi(scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T> OXSHMEM_DEVICE void get(Scope scope, T *dst, const T *src, size_t n, int pe) {
    getmem(scope, dst, src, detail::bytes_of<T>(n), pe);
}
template <class Scope, class T> OXSHMEM_DEVICE void get_nbi(Scope scope, T *dst, const T *src, size_t n, int pe) {
    getmem_nbi(scope, dst, src, detail::bytes_of<T>(n), pe);
}

namespace detail {

// The extent in bytes of `n` elements that lie `stride` elements apart; the highest number, which
// no heap has, if it does not fit.
template <class T> OXSHMEM_DEVICE uint64_t extent(uint64_t n, ptrdiff_t stride) {
    const uint64_t gaps = n == 0 ? 0 : n - 1;
    const uint64_t most = (~0ull / sizeof(T) - 1) / static_cast<uint64_t>(stride);
    return n == 0 ? 0 : gaps > most ? ~0ull : (gaps * static_cast<uint64_t>(stride) + 1) * sizeof(T);
}

OXSHMEM_LAZY OXSHMEM_DEVICE bool check_stride(ptrdiff_t stride, int pe, Op op) {
    if (stride >= 1) {
        return true;
    }
    raise(ErrorCode::bad_argument, op, pe, 0, static_cast<uint64_t>(stride));
    return false;
}

// The elements of a strided put; see iput.
template <class Scope, class C, class T>
OXSHMEM_DEVICE void iput_by(C context, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe) {
    const Profiled profiled(Op::iput, pe, n * sizeof(T), Scope::rank() == 0);
    const Path path = path_to(pe, Op::iput);
    if (path == Path::none || !check_stride(dst_stride, pe, Op::iput) || !check_stride(src_stride, pe, Op::iput) ||
        !check_symmetric(dst, extent<T>(n, dst_stride), pe, Op::iput)) {
        return;
    }
    for (size_t i = Scope::rank(); i < n; i += Scope::size()) {
        T *to = dst + static_cast<ptrdiff_t>(i) * dst_stride;
        const T *from = src + static_cast<ptrdiff_t>(i) * src_stride;
        if (path == Path::load_store) {
            port::write(translate(to, pe), port::read(from));
        } else {
            // One element always fits a one-block inline request, so `src` may be reused at once.
            static_assert(sizeof(T) <= kInlineOneBlock);
            network_put(context, to, from, sizeof(T), pe);
        }
    }
}

// The elements of an iget over the network. A function of its own, whose variables are in local
// memory while it posts.
template <class Scope, class C, class T>
OXSHMEM_OUTLINE void network_iget(C context, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                                  int pe) {
    uint64_t end = 0;
    for (size_t i = Scope::rank(); i < n; i += Scope::size()) {
        T *to = dst + static_cast<ptrdiff_t>(i) * dst_stride;
        const T *from = src + static_cast<ptrdiff_t>(i) * src_stride;
        end = keeping([&] { return network_get(context, to, from, sizeof(T), pe, Op::iget); }, i, n, dst, src, dst_stride,
                      src_stride, pe);
    }
    if (end != 0) {
        network_wait(context, end, pe, Op::iget);
    }
}

// The elements of a strided get; see iget.
template <class Scope, class C, class T>
OXSHMEM_DEVICE void iget_by(C context, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe) {
    const Profiled profiled(Op::iget, pe, n * sizeof(T), Scope::rank() == 0);
    const Path path = path_to(pe, Op::iget);
    if (path == Path::none || !check_stride(dst_stride, pe, Op::iget) || !check_stride(src_stride, pe, Op::iget) ||
        !check_symmetric(src, extent<T>(n, src_stride), pe, Op::iget)) {
        return;
    }
    if (path == Path::network) {
        network_iget<Scope>(at_once(context), dst, src, dst_stride, src_stride, n, pe);
    } else {
        for (size_t i = Scope::rank(); i < n; i += Scope::size()) {
            const T *from = src + static_cast<ptrdiff_t>(i) * src_stride;
            port::write(dst + static_cast<ptrdiff_t>(i) * dst_stride, port::read(translate(from, pe)));
        }
    }
}

} // namespace detail

// Copies `n` elements; element i goes from src[i * src_stride] to dst[i * dst_stride] at `pe`.
// Strides are in elements, at least 1.
template <class Scope, class T>
OXSHMEM_DEVICE void iput(Scope, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe) {
    detail::iput_by<Scope>(detail::DefaultContext{}, dst, src, dst_stride, src_stride, n, pe);
    Scope::sync();
}

// The same from `pe` to this PE.
template <class Scope, class T>
OXSHMEM_DEVICE void iget(Scope, T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, int pe) {
    detail::iget_by<Scope>(detail::DefaultContext{}, dst, src, dst_stride, src_stride, n, pe);
    Scope::sync();
}

} // namespace oxshmem
