// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// How fast the HCA executes: each block writes work requests to a queue pair, rings once, and takes
// the time until all of them are complete. The total posted is a multiple of 65536 blocks, so
// that the next poster finds the counters of 16 bits, all that the HCA and the poster share, as
// they were.

#include "common.h"

namespace perftest {

OXSHMEM_DEVICE uint32_t big(uint64_t v) {
    return port::byte_swap(static_cast<uint32_t>(v));
}

// Writes a one-block RDMA WRITE of `bytes` bytes; 8 bytes travel in the work request.
OXSHMEM_DEVICE void write_request(const abi::Qp &qp, uint64_t index, char *dst, const char *src, uint64_t bytes, int pe,
                                  bool signaled) {
    char *const at = reinterpret_cast<char *>(qp.wq + (index & ((1ull << qp.depth_log2) - 1)) * 64);
    const uint32_t card = oxshmem::detail::card_of(port::block_rank(), pe);
    const oxshmem::detail::Located remote = oxshmem::detail::locate_remote(dst, pe, card);
    port::store_vec(at, {big((index & 0xffff) << 8 | 0x08), big(qp.qpn << 8 | 3), (signaled ? 0x08u : 0u) << 24, 0});
    port::store_vec(at + 16, {big(remote.address >> 32), big(remote.address), remote.key, 0});
    if (bytes == 8) {
        port::store_vec(at + 32, {big(0x80000008u), static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0});
    } else {
        const oxshmem::detail::Located local = oxshmem::detail::locate_local(src, card);
        port::store_vec(at + 32, {big(bytes), local.key, big(local.address >> 32), big(local.address)});
    }
}

// Writes a NOP.
OXSHMEM_DEVICE void write_nothing(const abi::Qp &qp, uint64_t index, bool signaled) {
    char *const at = reinterpret_cast<char *>(qp.wq + (index & ((1ull << qp.depth_log2) - 1)) * 64);
    port::store_vec(at, {big((index & 0xffff) << 8), big(qp.qpn << 8 | 1), (signaled ? 0x08u : 0u) << 24, 0});
}

} // namespace perftest

// Each block writes `bytes` bytes a request, at most 1 GiB, to its part of `total` bytes: `timed`
// requests (at most 65536), `fill` of them at a time (of which `timed` is a multiple, and which the
// queue has room for); what is left of 65536 requests does nothing. `spent[block]`: nanoseconds, 0
// if something went wrong.
OXSHMEM_KERNEL(ceiling, char *dst, const char *src, uint64_t bytes, uint64_t total, uint64_t fill, uint64_t timed, int pe,
               uint64_t *spent) {
    using namespace perftest;
    const abi::State &state = port::state();
    const abi::Qp &qp =
        reinterpret_cast<const abi::Qp *>(state.qps)[static_cast<uint64_t>(pe) * state.qps_per_pe + port::block_rank()];
    uint32_t *const record = reinterpret_cast<uint32_t *>(qp.dbr);
    const uint64_t depth = 1ull << qp.depth_log2;
    const uint64_t places = total / bytes;
    uint64_t index = port::byte_swap(port::load<port::order::relaxed, port::reach::device>(record)) & 0xffff;
    const uint64_t counted = index + timed;
    const uint64_t last = index + 0x10000;
    uint64_t sum = 0;
    bool good = true;
    uint64_t count = 0;
    for (; index < last; index += count) {
        const uint64_t left = last - index;
        count = index < counted ? fill : left < depth ? left : depth;
        for (uint64_t i = port::thread_rank(); i < count; i += port::block_threads()) {
            const uint64_t place = (i + port::block_rank() * depth) % places * bytes;
            if (index < counted) {
                write_request(qp, index + i, dst + place, src + place, bytes, pe, i + 1 == count);
            } else {
                write_nothing(qp, index + i, i + 1 == count);
            }
        }
        port::fence<port::order::acq_rel, port::reach::system>();
        port::sync_block();
        if (port::thread_rank() == 0 && good) {
            const uint64_t begin = port::clock_ns();
            const uint64_t end = index + count;
            port::store<port::order::relaxed, port::reach::device>(record, big(end & 0xffff));
            port::fence<port::order::acq_rel, port::reach::system>();
            port::mmio_store(reinterpret_cast<uint64_t *>(qp.doorbell),
                             static_cast<uint64_t>(big(static_cast<uint64_t>(qp.qpn) << 8)) << 32 | big((end & 0xffff) << 8));
            // The tail of the CQE: wqe_counter in bytes 60 and 61, the opcode in the upper half of
            // byte 63.
            const uint64_t *const tail = reinterpret_cast<const uint64_t *>(qp.cqe + 56);
            for (;;) {
                const uint64_t seen = port::load<port::order::acquire, port::reach::system>(tail);
                const uint32_t counter = port::byte_swap(static_cast<uint32_t>(seen >> 32)) >> 16;
                const uint64_t now = port::clock_ns();
                if (seen >> 60 == 0 && counter == ((end - 1) & 0xffff)) {
                    sum += index < counted ? now - begin : 0;
                    break;
                }
                if (seen >> 60 == 0xd || now - begin > state.timeout_ns) {
                    good = false;
                    break;
                }
                port::pause();
            }
        }
        port::sync_block();
    }
    if (port::thread_rank() == 0) {
        spent[port::block_rank()] = good ? sum : 0;
    }
}
