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
// be of an index's lowest 16 bits, and of these 8 bits higher with `first` below them and `last`
// above, which are one byte each. By one instruction each: a lane that posts alone waits for each.
OXSHMEM_DEVICE uint32_t be_index(uint32_t index) {
    return port::permute_bytes(index, 0, 0x0144);
}
OXSHMEM_DEVICE uint32_t be_index_between(uint32_t first, uint32_t index, uint32_t last) {
    return port::permute_bytes(index, first << 24 | last, 0x7014);
}
OXSHMEM_DEVICE uint32_t high(uint64_t v) {
    return static_cast<uint32_t>(v >> 32);
}
OXSHMEM_DEVICE uint32_t low(uint64_t v) {
    return static_cast<uint32_t>(v);
}

} // namespace oxshmem::detail
