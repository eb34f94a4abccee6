// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs whose operations go through the ring of the CPU proxy.
#include "bodies.h"

#include <oxshmem/atomic.h>

namespace explore {

void fence_between() {
    p(place(block(), 0), value(block(), 0), 1);
    fence();
    p(place(block(), 1), value(block(), 1), 1);
}

// Adds to a word, and to one of four bytes, and looks at what was there before.
void fetch_adds() {
    add(heap<uint64_t>(0x600), 1ull << (block() * 8), 1);
    const uint64_t old = atomic_fetch_add(heap<uint64_t>(0x600), uint64_t{1} << (block() * 8), 1);
    expect((old >> (block() * 8) & 0xff) == 0, "a fetch-and-add returned its own result");
}

constexpr oxshmem_explore_program kPrograms[] = {
    by_proxy(posting("p_quiet", p_quiet, 2, 1, 8000)),
    by_proxy(posting("p_p_p_quiet", p_p_p_quiet, 2, 1, 20000)),
    by_proxy(posting("p_p_p_quiet_3", p_p_p_quiet, 3, 1, 20000)),
    by_proxy(warps_of(2, posting("adjacent", p_adjacent, 2, 1, 20000))),
    by_proxy(posting("fence_between", fence_between, 2, 1, 20000)),
    // More than fits a descriptor: the proxy reads it.
    by_proxy(posting("put_heap", put_heap<7>, 2, 1, 20000)),
    by_proxy(filled(posting("g_twice", g_twice, 3, 1, 20000), 0)),
    by_proxy(filled(warps_of(2, posting("g_warps", g_twice, 2, 2, 20000)), 1)),
    by_proxy(filled(posting("get_twice", get_twice, 3, 1, 20000), 0)),
    by_proxy(posting("fetch_adds", fetch_adds, 3, 1, 20000)),
    by_proxy(posting("signals", signals, 2, 1, 20000)),
};

} // namespace explore

#include "module.h"
