// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the runtime runs for aggregating contexts.

#include <oxshmem/detail/aggregate/service.h>

// Serves the context, by a warp or by its first thread; see detail/aggregate/service.h.
OXSHMEM_BOUNDED_KERNEL(32, oxshmem_aggregate_serve, oxshmem::abi::AggregateService *service, uint32_t polls, uint64_t most_ns) {
    if constexpr (oxshmem::port::kCoalesced) {
        oxshmem::detail::aggregate::serve(*service, polls, most_ns, oxshmem::warp);
    } else if (oxshmem::port::thread_rank() == 0) {
        oxshmem::detail::aggregate::serve(*service, polls, most_ns, oxshmem::thread);
    }
}

// Completes what this PE's kernels have put into the context.
OXSHMEM_BOUNDED_KERNEL(32, oxshmem_aggregate_quiet, oxshmem::aggregate::Context context) {
    oxshmem::quiet(context, oxshmem::block);
}
