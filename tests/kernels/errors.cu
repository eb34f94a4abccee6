// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs with errors. Each names the thread that errs: `who` is its rank in the grid.
#include "conformance.h"

#ifndef __CUDACC__
#include <stdexcept>
#endif

namespace {

using namespace conformance;

} // namespace

// The range that symmetric addresses must lie in: base, bytes.
OXSHMEM_KERNEL(heap_range, uint64_t *range) {
    range[0] = state().heap_base;
    range[1] = state().heap_bytes;
}

// One call of the device API; pe/errors.rs numbers them. `extra` is the stride, comparison or
// signal operator. `signal` is a good address.
OXSHMEM_KERNEL(one_call, uint32_t call, uint64_t *at, int pe, int64_t extra, uint64_t *signal, uint32_t who) {
    using namespace oxshmem;
    if (global_rank() != who) {
        return;
    }
    uint64_t local[4] = {~0ull, ~0ull, ~0ull, ~0ull};
    size_t index = 0;
    switch (call) {
    case 0:
        return putmem(oxshmem::thread, at, local, 16, pe);
    case 1:
        return getmem(oxshmem::thread, local, at, 16, pe);
    case 2:
        return p(at, ~uint64_t{0}, pe);
    case 3:
        g(at, pe);
        return;
    case 4:
        return iput(oxshmem::thread, at, local, static_cast<ptrdiff_t>(extra), 1, 2, pe);
    case 5:
        return iget(oxshmem::thread, local, at, 1, static_cast<ptrdiff_t>(extra), 2, pe);
    case 6:
        atomic_fetch_add(at, uint64_t{1}, pe);
        return;
    case 7:
        return signal_op(at, 1, static_cast<SignalOp>(extra), pe);
    case 8:
        return putmem_signal(oxshmem::thread, at, local, 16, signal, 1, SIGNAL_SET, pe);
    case 9:
        // A good target, and the signal in question.
        return putmem_signal(oxshmem::thread, signal + 2, local, 16, at, 1, static_cast<SignalOp>(extra), pe);
    case 10:
        return wait_until(at, static_cast<Compare>(extra), uint64_t{0});
    case 11:
        return atomic_set(reinterpret_cast<uint32_t *>(at), 1u, pe);
    case 15:
        return put(oxshmem::thread, at, local, static_cast<size_t>(extra), pe);
    case 16:
        return get_nbi(oxshmem::thread, local, at, static_cast<size_t>(extra), pe);
    case 17:
        return put_signal(oxshmem::thread, at, local, static_cast<size_t>(extra), signal, 1, SIGNAL_SET, pe);
    case 18:
        return wait_until_all(at, static_cast<size_t>(extra), nullptr, CMP_EQ, uint64_t{0});
    // 19 to 22: scalars that are not of 64 bits, and values of another type than the word, which is
    // converted.
    case 19:
        return p(reinterpret_cast<uint32_t *>(at), 1, pe);
    case 20:
        g(reinterpret_cast<uint16_t *>(at), pe);
        return;
    case 21:
        return p(at, 1ull, pe);
    case 22:
        atomic_add(at, 1ull, pe);
        atomic_compare_swap(at, 0, 1, pe);
        return atomic_set(at, 1, pe);
    case 12:
        return putmem_nbi(oxshmem::thread, at, local, 16, pe);
    case 13:
        test(at, static_cast<Compare>(extra), uint64_t{0});
        return;
    case 23:
        signal_wait_until(at, static_cast<Compare>(extra), 0);
        return;
    case 24:
        test_all(at, 1, nullptr, static_cast<Compare>(extra), uint64_t{0});
        return;
    case 25:
        test_any_vector(at, 1, nullptr, static_cast<Compare>(extra), local);
        return;
    case 26:
        test_some(at, 1, &index, nullptr, static_cast<Compare>(extra), uint64_t{0});
        return;
    default:
        atomic_compare_swap(at, uint64_t{0}, ~uint64_t{0}, pe);
        return;
    }
}

// Zero elements are legal at any address.
OXSHMEM_KERNEL(zero_elements, uint64_t *at, uint64_t *signal, Report *report) {
    using namespace oxshmem;
    uint64_t local = 7;
    for (int pe = 0; pe < n_pes(); ++pe) {
        putmem(oxshmem::thread, at, &local, 0, pe);
        putmem_nbi(oxshmem::thread, at, nullptr, 0, pe);
        getmem(oxshmem::thread, &local, at, 0, pe);
        getmem_nbi(oxshmem::thread, nullptr, at, 0, pe);
        iput(oxshmem::thread, at, &local, 1, 1, 0, pe);
        iget(oxshmem::thread, &local, at, 1, 1, 0, pe);
        putmem_signal(oxshmem::thread, at, &local, 0, signal, 1, SIGNAL_ADD, pe);
    }
    quiet();
    EXPECT_EQ(report, local, uint64_t{7});
    EXPECT_EQ(report, signal_wait_until(signal, CMP_EQ, static_cast<uint64_t>(n_pes())), static_cast<uint64_t>(n_pes()));
}

// Waits that no PE ends. The threads that do not wait first prove that they run.
OXSHMEM_KERNEL(endless_wait, uint32_t form, uint64_t *variables, uint32_t who) {
    using namespace oxshmem;
    if (global_rank() != who) {
        return;
    }
    size_t indices[4];
    const uint64_t wanted[4] = {9, 9, 9, 9};
    switch (form) {
    case 0:
        return wait_until(variables, CMP_EQ, 9);
    case 1:
        return wait_until_all(variables, 4, nullptr, CMP_NE, uint64_t{0});
    case 2:
        wait_until_any(variables, 4, nullptr, CMP_GT, uint64_t{0});
        return;
    case 3:
        wait_until_some_vector(variables, 4, indices, nullptr, CMP_EQ, wanted);
        return;
    case 4:
        signal_wait_until(variables, CMP_GE, 1);
        return;
    case 5:
        return barrier_all(oxshmem::thread);
    default:
        return sync_all(oxshmem::thread);
    }
}

// When one wait of a launch times out the others unwind: no thread is left behind.
OXSHMEM_KERNEL(many_endless_waits, uint64_t *variables) {
    oxshmem::wait_until(variables + global_rank() % 4, oxshmem::CMP_EQ, uint64_t{9});
}

// What only C++ has or only the `cpu` device can survive.
OXSHMEM_KERNEL(crash, uint32_t form, uint64_t *at, uint32_t who) {
    if (global_rank() == who) {
        switch (form) {
        case 0:
            *static_cast<volatile uint64_t *>(at) = 1;
            break;
        case 1:
#ifndef __CUDACC__
            throw std::runtime_error("thrown by the test");
#endif
        case 2:
            sync_warp(~0u); // the others are in the barrier below
            break;
        default: {
            volatile int zero = 0;
            at[0] = static_cast<uint64_t>(7 / zero);
            break;
        }
        }
    }
    sync_block();
}

// A launch after an error works as if nothing had been.
OXSHMEM_KERNEL(still_works, uint64_t *at, uint64_t value, Report *report) {
    const int next = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    oxshmem::p(at + global_rank(), value + global_rank(), next);
    oxshmem::quiet();
    EXPECT_EQ(report, oxshmem::g(at + global_rank(), next), value + global_rank());
}

// Two errors; the first is reported.
OXSHMEM_KERNEL(two_errors, uint64_t *at) {
    oxshmem::p(at, uint64_t{1}, -7);
    oxshmem::p(reinterpret_cast<uint64_t *>(16), uint64_t{1}, 0);
}

// Waits for a signal that comes from a PE which dies instead; before, every PE tells PE `dying`
// that it is about to wait.
OXSHMEM_KERNEL(wait_for_the_dead, uint64_t *ready, uint64_t *signal, int dying) {
    if (global_rank() == 0) {
        oxshmem::signal_op(ready, 1, oxshmem::SIGNAL_ADD, dying);
        oxshmem::quiet();
    }
    oxshmem::signal_wait_until(signal, oxshmem::CMP_EQ, 1);
}

// Loads the network: puts and adds to the next PE, `data` having two words for each thread. PE
// `dying` waits until the others have begun, then posts `rounds` and completes none of them; the
// others go on until the job fails. One block.
OXSHMEM_KERNEL(under_load, uint64_t *ready, uint64_t *data, uint64_t rounds, int dying) {
    const bool dies = oxshmem::my_pe() == dying;
    const int next = (oxshmem::my_pe() + 1) % oxshmem::n_pes();
    if (dies && global_rank() == 0) {
        oxshmem::signal_wait_until(ready, oxshmem::CMP_EQ, static_cast<uint64_t>(oxshmem::n_pes() - 1));
    }
    sync_block();
    uint32_t &abort = oxshmem::detail::control().abort;
    for (uint64_t i = 0; dies ? i < rounds : load<order::relaxed, reach::system>(&abort) == 0; ++i) {
        oxshmem::p(data + 2 * global_rank(), i, next);
        oxshmem::atomic_add(data + 2 * global_rank() + 1, uint64_t{1}, next);
        if (!dies && i % 8 == 7) {
            oxshmem::quiet();
        }
        if (!dies && i == 64 && global_rank() == 0) {
            oxshmem::signal_op(ready, 1, oxshmem::SIGNAL_ADD, dying);
        }
        // Nothing here need wait, and then threads of the `cpu` device run one after the other.
        pause();
    }
}
