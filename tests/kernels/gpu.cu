// Kernels for what only a GPU does: see tests/gpu/main.rs.

#include <oxshmem/oxshmem.h>

// A store to an address that nothing is mapped at.
OXSHMEM_KERNEL(store_to, uint64_t address) {
    *reinterpret_cast<volatile int *>(address) = 1;
}

// Waits for a signal that no PE sends.
OXSHMEM_KERNEL(wait_for_signal, const uint64_t *signal) {
    oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, 7);
}

// Runs for `ns` nanoseconds.
OXSHMEM_DEVICE void spin(uint64_t ns) {
    const uint64_t start = oxshmem::port::clock_ns();
    while (oxshmem::port::clock_ns() - start < ns) {
        oxshmem::port::pause();
    }
}

// Runs for `ns` nanoseconds, whatever the runtime wants.
OXSHMEM_KERNEL(busy, uint64_t ns) {
    spin(ns);
}

// Stores a word after `ns` nanoseconds. From the start it lets the GPU launch a following kernel
// that waits by itself.
OXSHMEM_KERNEL(store_late, uint64_t *to, uint64_t word, uint64_t ns) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    spin(ns);
    *to = word;
}

// Fills `words` words of dynamic shared memory and adds them up.
OXSHMEM_KERNEL(sum_shared, uint32_t words, uint64_t *sum) {
    OXSHMEM_DYNAMIC_SHARED(uint32_t, shared);
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
        shared[i] = i;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t all = 0;
        for (uint32_t i = 0; i < words; ++i) {
            all += shared[i];
        }
        *sum = all;
    }
}

// Puts `bytes` bytes that lie anywhere in the GPU's memory.
OXSHMEM_KERNEL(put_from, void *dst, const void *src, uint64_t bytes, int pe) {
    oxshmem::putmem(oxshmem::block, dst, src, bytes, pe);
    oxshmem::quiet();
}

OXSHMEM_BOUNDED_KERNEL(64, who_am_i, int *answer) {
    answer[0] = oxshmem::my_pe();
    answer[1] = oxshmem::n_pes();
}
