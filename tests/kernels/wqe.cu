// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Writes work queue entries into plain memory, for tests/wqe.rs to compare with hca's.

#include <oxshmem/oxshmem.h>

using namespace oxshmem::detail;

struct WqeParameters {
    uint64_t wq, index;
    uint64_t remote, local;
    uint64_t first, second;
    uint32_t mask, qpn, rkey, lkey;
    uint32_t bytes, signaled;
};

OXSHMEM_DEVICE Slot slot_of(const WqeParameters &p) {
    return {p.wq, p.index, p.mask, p.qpn, false};
}
OXSHMEM_DEVICE Located remote_of(const WqeParameters &p) {
    return {be(p.rkey), p.remote, ~0ull};
}
OXSHMEM_DEVICE Located local_of(const WqeParameters &p) {
    return {be(p.lkey), p.local, ~0ull};
}

OXSHMEM_KERNEL(wqe_transfer, WqeParameters p, int read) {
    slot_of(p).transfer(read ? Opcode::rdma_read : Opcode::rdma_write, remote_of(p), local_of(p), p.bytes, p.signaled);
}

OXSHMEM_KERNEL(wqe_inline, WqeParameters p, const char *payload) {
    slot_of(p).inline_header(remote_of(p), p.bytes, p.signaled);
    slot_of(p).inline_bytes(payload, p.bytes);
}

OXSHMEM_KERNEL(wqe_inline_words, WqeParameters p, const uint64_t *words) {
    slot_of(p).inline_header(remote_of(p), p.bytes, p.signaled);
    for (uint32_t i = 0; i < p.bytes / 8; ++i) {
        slot_of(p).inline_value(8 * i, words[i]);
    }
}

template <class T> OXSHMEM_DEVICE AtomicRequest request(int op, T first, T second) {
    switch (op) {
    case 0:
        return AtomicRequest::add(first);
    case 1:
        return AtomicRequest::exclusive_or(first);
    case 2:
        return AtomicRequest::replace(first, second);
    default:
        return AtomicRequest::compare_swap(second, first);
    }
}

OXSHMEM_KERNEL(wqe_atomic, WqeParameters p, int op, int width) {
    const AtomicRequest r = width == 8 ? request<uint64_t>(op, p.first, p.second)
                                       : request<uint32_t>(op, static_cast<uint32_t>(p.first), static_cast<uint32_t>(p.second));
    slot_of(p).atomic(r, remote_of(p), local_of(p), p.signaled);
}
