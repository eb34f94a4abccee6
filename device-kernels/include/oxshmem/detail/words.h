// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Halves of words, and words as cards want them: big-endian.
#pragma once

#include <oxshmem/port/port.h>

namespace oxshmem::detail {

OXSHMEM_DEVICE uint32_t be(uint32_t v) {
    return port::byte_swap(v);
}
OXSHMEM_DEVICE uint64_t be(uint64_t v) {
    return port::byte_swap(v);
}
OXSHMEM_DEVICE uint32_t high(uint64_t v) {
    return static_cast<uint32_t>(v >> 32);
}
OXSHMEM_DEVICE uint32_t low(uint64_t v) {
    return static_cast<uint32_t>(v);
}

} // namespace oxshmem::detail
