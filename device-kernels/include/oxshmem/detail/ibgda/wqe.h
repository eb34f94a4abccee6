// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// mlx5 work queue entries, as device code writes them. Layouts: rdma-core, providers/mlx5/mlx5dv.h
// (mlx5_wqe_ctrl_seg, mlx5_wqe_raddr_seg, mlx5_wqe_data_seg, mlx5_wqe_inl_data_seg,
// mlx5_wqe_atomic_seg) and mlx5_ifc.h for the extended atomics.
#pragma once

#include "../operation.h"
#include "../words.h"

namespace oxshmem::detail {

constexpr uint32_t kCqUpdate = 0x08;          // fm_ce_se: write a CQE
constexpr uint32_t kInlineFlag = 0x80000000u; // inline header: the payload follows
constexpr uint32_t kInlineHeaderOffset = 32;  // behind control and remote address
constexpr uint32_t kInlineOffset = 36;        // first payload byte
constexpr uint32_t kMostBlocks = 5;           // of any WQE: 32 lanes with 8 bytes each, inline

OXSHMEM_DEVICE constexpr uint32_t inline_blocks(uint32_t payload) {
    return (kInlineOffset + payload + abi::kBlockBytes - 1) / abi::kBlockBytes;
}

// Where the blocks of one WQE go: they wrap at the end of the queue.
struct Slot {
    uint64_t wq;
    uint64_t index; // 64-bit block index of the WQE's first block
    uint32_t mask;  // depth - 1
    uint32_t qpn;
    uint32_t order; // fence mode, as bits of fm_ce_se

    // The slot of a signal that begins `blocks` blocks later, and whose data is posted before it.
    OXSHMEM_DEVICE Slot signal_after(uint32_t blocks) const {
        return {wq, index + blocks, mask, qpn, port::state().signal_order | (blocks == 0 ? order : 0)};
    }

    // The 16 bytes at segment `ds` of the WQE.
    OXSHMEM_DEVICE void *segment(uint32_t ds) const {
        const uint64_t block = (index + ds / 4) & mask;
        return as<char>(wq + block * abi::kBlockBytes + ds % 4 * 16);
    }

    OXSHMEM_DEVICE void *byte(uint32_t offset) const { return static_cast<char *>(segment(offset / 16)) + offset % 16; }

    OXSHMEM_DEVICE void put(uint32_t ds, uint32_t x, uint32_t y, uint32_t z, uint32_t w) const {
        port::store_vec(segment(ds), port::vec16{x, y, z, w});
    }

    OXSHMEM_DEVICE void control(Opcode op, uint32_t opmod, uint32_t ds, bool signaled) const {
        put(0, be_index_between(static_cast<uint32_t>(op), low(index), opmod), be(qpn << 8) | ds << 24,
            ((signaled ? kCqUpdate : 0) | order) << 24, 0);
    }

    OXSHMEM_DEVICE void remote_address(const Located &remote) const {
        put(1, be(high(remote.address)), be(low(remote.address)), remote.key, 0);
    }

    OXSHMEM_DEVICE void data(uint32_t ds, const Located &local, uint32_t bytes) const {
        put(ds, be(bytes), local.key, be(high(local.address)), be(low(local.address)));
    }

    // RDMA WRITE or READ: one block.
    OXSHMEM_DEVICE void transfer(Opcode op, const Located &remote, const Located &local, uint32_t bytes, bool signaled) const {
        control(op, 0, 3, signaled);
        remote_address(remote);
        data(2, local, bytes);
    }

    // Everything of an inline RDMA WRITE but its payload, which begins at byte kInlineOffset.
    OXSHMEM_DEVICE void inline_header(const Located &remote, uint32_t bytes, bool signaled) const {
        control(Opcode::rdma_write, 0, (kInlineOffset + bytes + 15) / 16, signaled);
        remote_address(remote);
        port::write(static_cast<uint32_t *>(byte(kInlineHeaderOffset)), be(bytes | kInlineFlag));
    }

    // An inline RDMA WRITE of one value: header and payload fit three segments, each stored as a
    // whole.
    template <class T> OXSHMEM_DEVICE void inline_word(const Located &remote, T value, bool signaled) const {
        static_assert(kInlineHeaderOffset % 16 == 0 && kInlineOffset + sizeof(uint64_t) <= kInlineHeaderOffset + 16);
        uint64_t bits = 0;
        memcpy(&bits, &value, sizeof(T));
        control(Opcode::rdma_write, 0, 3, signaled);
        remote_address(remote);
        put(kInlineHeaderOffset / 16, be(static_cast<uint32_t>(sizeof(T)) | kInlineFlag), low(bits), high(bits), 0);
    }

    // Payload of an inline WQE. Segments of 16 bytes are contiguous in the queue unless a wrap lies
    // between them.
    OXSHMEM_DEVICE void inline_bytes(const void *src, uint32_t bytes) const {
        const char *from = static_cast<const char *>(src);
        if (reinterpret_cast<uint64_t>(from) % 4 == 0 && bytes % 4 == 0) {
            for (uint32_t i = 0; i < bytes; i += 4) {
                port::write(static_cast<uint32_t *>(byte(kInlineOffset + i)),
                            port::read(reinterpret_cast<const uint32_t *>(from + i)));
            }
        } else {
            for (uint32_t i = 0; i < bytes; ++i) {
                port::write(static_cast<char *>(byte(kInlineOffset + i)), port::read(from + i));
            }
        }
    }

    // One value of 1, 2, 4 or 8 bytes, `offset` bytes into the inline payload (a multiple of its
    // size).
    template <class T> OXSHMEM_DEVICE void inline_value(uint32_t offset, T value) const {
        if constexpr (sizeof(T) == 8) {
            // 36 + 8 i is a multiple of 4 only, and its halves may lie in different blocks.
            uint64_t bits;
            memcpy(&bits, &value, 8);
            port::write(static_cast<uint32_t *>(byte(kInlineOffset + offset)), low(bits));
            port::write(static_cast<uint32_t *>(byte(kInlineOffset + offset + 4)), high(bits));
        } else {
            port::write(static_cast<T *>(byte(kInlineOffset + offset)), value);
        }
    }

    // A request of AtomicRequest::blocks() blocks.
    OXSHMEM_DEVICE void atomic(const AtomicRequest &r, const Located &remote, const Located &result, bool signaled) const {
        control(r.op, r.opmod, r.segments(), signaled);
        remote_address(remote);
        uint32_t ds = 2;
        if (r.width == 8) {
            put(ds++, be(high(r.first)), be(low(r.first)), be(high(r.second)), be(low(r.second)));
            if (r.op == Opcode::masked_cs) {
                put(ds++, be(high(r.first_mask)), be(low(r.first_mask)), be(high(r.second_mask)), be(low(r.second_mask)));
            }
        } else if (r.op == Opcode::masked_cs) {
            put(ds++, be(low(r.first)), be(low(r.second)), be(low(r.first_mask)), be(low(r.second_mask)));
        } else {
            put(ds++, be(low(r.first)), be(low(r.second)), 0, 0);
        }
        data(ds, result, r.width);
    }
};

} // namespace oxshmem::detail
