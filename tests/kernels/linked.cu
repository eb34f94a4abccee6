// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Kernels that are linked with the device library when the test runs: tests/gpu/linked.rs. What is
// wrong is counted.

#include <oxshmem/oxshmem.h>

namespace {

constexpr uint32_t kThreads = 64;

// Mirrored in tests/gpu/linked.rs. In the heap, zero at first.
struct Board {
    uint64_t signal, sum, fetched, swapped, parts[8], shares[8];
    uint32_t small, small_fetched;
    uint64_t longs[kThreads];
    uint32_t ints[kThreads];
    uint16_t shorts[kThreads];
    uint8_t bytes[kThreads];
};

template <class T> OXSHMEM_DEVICE T value_of(int pe, uint64_t at) {
    return static_cast<T>(static_cast<uint64_t>(pe + 1) * 0x9e3779b97f4a7c15ull + at * 0x10001);
}

template <class T> OXSHMEM_DEVICE void expect(uint64_t *wrong, T seen, T wanted) {
    if (seen != wanted) {
        oxshmem::port::add_to<oxshmem::port::order::relaxed, oxshmem::port::reach::device>(wrong, uint64_t{1});
    }
}

template <class Scope> OXSHMEM_DEVICE void check_bytes(uint64_t *wrong, const char *at, uint64_t n, int pe, uint64_t first) {
    for (uint64_t i = Scope::rank(); i < n; i += Scope::size()) {
        expect(wrong, static_cast<uint8_t>(at[i]), value_of<uint8_t>(pe, first + i));
    }
}

} // namespace

OXSHMEM_KERNEL(who_am_i, int *answer) {
    answer[0] = oxshmem::my_pe();
    answer[1] = oxshmem::n_pes();
}

// Every PE writes to the next one, and checks what the one before has written. By one block of
// kThreads threads. `data`: three parts of `bytes` bytes: to send, received, fetched. `spare`:
// `spare_bytes` bytes that are not in the heap.
OXSHMEM_KERNEL(exchange, Board *board, char *data, uint64_t bytes, char *spare, uint64_t spare_bytes, uint64_t *wrong) {
    using namespace oxshmem;
    const int me = my_pe(), n = n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    const uint32_t thread_rank = port::thread_rank();
    const uint64_t third = bytes / 3;
    char *const received = data + bytes, *const fetched = data + 2 * bytes;
    for (uint64_t i = thread_rank; i < bytes; i += kThreads) {
        data[i] = value_of<char>(me, i);
    }
    for (uint64_t i = thread_rank; i < spare_bytes; i += kThreads) {
        spare[i] = value_of<char>(me, third + 1 + i);
    }
    __syncthreads();

    p(board->longs + thread_rank, value_of<uint64_t>(me, thread_rank), next);
    p(board->ints + thread_rank, value_of<uint32_t>(me, thread_rank), next);
    p(board->shorts + thread_rank, value_of<uint16_t>(me, thread_rank), next);
    p(board->bytes + thread_rank, value_of<uint8_t>(me, thread_rank), next);
    if (thread_rank < 32) {
        putmem_nbi(warp, received, data, third, next); // from the heap
    }
    putmem(block, received + third + 1, spare, spare_bytes, next); // aligned otherwise, too
    const uint64_t rest = third + 1 + spare_bytes;
    putmem(block, received + rest, data + rest, 2 * third - rest, next);
    if (thread_rank == 0) {
        putmem(thread, received + third, data + third, 1, next);
        atomic_add(&board->sum, uint64_t{5}, next);
        atomic_add(&board->small, 7u, next);
        fence();
    }
    __syncthreads();
    putmem_signal_nbi(block, received + 2 * third, data + 2 * third, bytes - 2 * third, &board->signal, 1, SIGNAL_ADD, next);
    signal_wait_until(&board->signal, CMP_GE, 1);
    check_bytes<block_scope>(wrong, received + 2 * third, bytes - 2 * third, before, 2 * third);
    quiet(block);
    barrier_all(block);

    check_bytes<block_scope>(wrong, received, bytes, before, 0);
    expect(wrong, board->longs[thread_rank], value_of<uint64_t>(before, thread_rank));
    expect(wrong, board->ints[thread_rank], value_of<uint32_t>(before, thread_rank));
    expect(wrong, board->shorts[thread_rank], value_of<uint16_t>(before, thread_rank));
    expect(wrong, board->bytes[thread_rank], value_of<uint8_t>(before, thread_rank));
    expect(wrong, g(board->longs + thread_rank, next), value_of<uint64_t>(me, thread_rank));
    expect(wrong, g(board->ints + thread_rank, next), value_of<uint32_t>(me, thread_rank));
    expect(wrong, g(board->shorts + thread_rank, next), value_of<uint16_t>(me, thread_rank));
    expect(wrong, g(board->bytes + thread_rank, next), value_of<uint8_t>(me, thread_rank));
    getmem_nbi(block, fetched, data, third, next);
    getmem(block, spare, data + third, spare_bytes, next);
    quiet(block);
    check_bytes<block_scope>(wrong, fetched, third, next, 0);
    check_bytes<block_scope>(wrong, spare, spare_bytes, next, third);
    if (thread_rank == 0) {
        board->fetched = atomic_fetch_add(&board->sum, uint64_t{3}, next);
        board->small_fetched = atomic_fetch_add(&board->small, 4u, next);
        board->swapped = atomic_compare_swap(&board->sum, uint64_t{8}, uint64_t{42}, next);
    }
    __syncthreads();
    barrier_all(block);

    // Collectives are compiled with the kernel, except for what they send over the network.
    if (thread_rank < 8) {
        board->parts[thread_rank] = value_of<uint64_t>(me, thread_rank);
    }
    __syncthreads();
    if (alltoall(block, TEAM_WORLD, board->shares, board->parts, 1) != 0) {
        expect(wrong, 0, 1);
    }
    if (thread_rank < static_cast<uint32_t>(n)) {
        expect(wrong, board->shares[thread_rank], value_of<uint64_t>(static_cast<int>(thread_rank), static_cast<uint64_t>(me)));
    }
}

// Every PE writes to words of its own at the next one through a context, and reads them again. By
// one thread. `words`: 24, zero at first; `spare`: 64 bytes that are not in the heap.
OXSHMEM_KERNEL(through_context, const oxshmem::Context *contexts, uint64_t *words, uint64_t *spare, uint64_t *wrong) {
    using namespace oxshmem;
    const Context context = port::read(contexts);
    const int me = my_pe(), next = (me + 1) % n_pes();
    for (uint64_t i = 0; i < 8; ++i) {
        spare[i] = value_of<uint64_t>(me, i);
    }
    p(batched(context), words, value_of<uint64_t>(me, 8), next);
    flush(context);
    put_nbi(context, thread, words + 1, spare, 8, next);
    put(context, thread, words + 9, spare, 8, next);
    fence(context);
    atomic_add(context, words + 17, uint64_t{5}, next);
    signal_op(context, words + 18, 6, SIGNAL_SET, next);
    put_signal(context, thread, words + 19, spare, 1, words + 20, 7, SIGNAL_SET, next);
    quiet(context);
    expect(wrong, g(context, words, next), value_of<uint64_t>(me, 8));
    expect(wrong, atomic_fetch_add(context, words + 17, uint64_t{0}, next), uint64_t{5});
    expect(wrong, g(context, words + 18, next), uint64_t{6});
    expect(wrong, g(context, words + 20, next), uint64_t{7});
    get(context, thread, spare, words + 1, 8, next);
    for (uint64_t i = 0; i < 8; ++i) {
        expect(wrong, spare[i], value_of<uint64_t>(me, i));
        expect(wrong, g(context, words + 9 + i, next), value_of<uint64_t>(me, i));
    }
}

OXSHMEM_KERNEL(to_nobody, Board *board) {
    oxshmem::p(board->longs, uint64_t{1}, oxshmem::n_pes());
}

OXSHMEM_KERNEL(wait_for_nobody, const Board *board) {
    oxshmem::signal_wait_until(&board->signal, oxshmem::CMP_EQ, 77);
}
