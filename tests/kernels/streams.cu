// Kernels for streams and cooperative launches: see tests/pe/streams.rs.

#include <oxshmem/oxshmem.h>

using namespace oxshmem::port;

// Waits for `delay_ns`, then writes value, value + 1, ... by one thread.
OXSHMEM_KERNEL(fill_late, uint64_t *at, uint64_t n, uint64_t value, uint64_t delay_ns) {
    const uint64_t start = clock_ns();
    while (clock_ns() - start < delay_ns) {
        pause();
    }
    for (uint64_t i = 0; i < n; ++i) {
        at[i] = value + i;
    }
}

// Adds to `wrong` how many of `n` words are not what fill_late writes.
OXSHMEM_KERNEL(count_wrong, const uint64_t *at, uint64_t n, uint64_t value, uint64_t *wrong) {
    for (uint64_t i = 0; i < n; ++i) {
        *wrong += at[i] != value + i;
    }
}

// Every block waits until all have come, as only blocks that run at the same time can; `left`
// counts those that gave up.
OXSHMEM_KERNEL(meet, uint64_t *come, uint64_t *left, uint64_t limit_ns) {
    if (thread_rank() != 0) {
        return;
    }
    const uint64_t blocks = grid_blocks();
    fetch_add<order::relaxed, reach::device>(come, uint64_t{1});
    const uint64_t start = clock_ns();
    while (load<order::relaxed, reach::device>(come) < blocks) {
        if (clock_ns() - start > limit_ns) {
            fetch_add<order::relaxed, reach::device>(left, uint64_t{1});
            return;
        }
        pause();
    }
}

OXSHMEM_KERNEL(wait_for_word, const uint64_t *signal, uint64_t value) {
    oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, value);
}
