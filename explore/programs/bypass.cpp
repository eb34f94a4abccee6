// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs that do what no program may: they access shared memory without the port layer, or use a
// private context from two places at once.
#include "contexts.h"

namespace explore {

void plain_load() {
    expect(*static_cast<volatile uint64_t *>(heap<uint64_t>(56)) == 0, "the heap is zero");
}

void plain_store() {
    static_cast<volatile abi::Qp &>(detail::qp_of(1, 0)).gate = 0;
}

void two_places() {
    const Context shared = context(kOfThread);
    p(shared, place(block(), 0), value(block(), 0), 1);
    quiet(shared);
}

constexpr oxshmem_explore_program kPrograms[] = {
    posting("plain_load", plain_load, 1, 1, 100),
    posting("plain_store", plain_store, 1, 1, 100),
    posting("two_places", two_places, 2, 2, 2000),
};

} // namespace explore

#include "module.h"
