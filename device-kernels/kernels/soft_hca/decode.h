// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A work request in its queue: reads it, checks each field and translates its keys. What fails a
// check is the host's to judge.
//
// Layouts are those of rdma-core's mlx5dv.h, written down here once more instead of taken from the
// headers that post, so that an error there is not repeated here.

#pragma once

#include "block.h"

namespace oxshmem::soft {

// Looks a key up; where the range is, or 0 if the host has to judge.
OXSHMEM_DEVICE uint64_t translate(const Key &entry, uint32_t key, uint32_t peer, uint32_t pd, uint32_t qpn, uint32_t right,
                                  uint64_t address, uint64_t bytes) {
    const uint64_t offset = address - entry.start;
    const bool good = entry.key == key && entry.peer == peer && entry.pd == pd && (entry.qpn == kAnyQp || entry.qpn == qpn) &&
                      (entry.rights & right) != 0 && address >= entry.start && offset <= entry.length &&
                      bytes <= entry.length - offset;
    return good ? entry.base + offset : 0;
}

// A work request in its queue.
struct Reader {
    const Tables &tables;
    const QpContext &qp;
    uint64_t index;           // of the work request's first block
    port::vec16 head[4] = {}; // that block, read at once

    OXSHMEM_DEVICE uint64_t block(uint32_t number) const {
        return qp.sq + ((index + number) & ((1ull << qp.depth_log2) - 1)) * 64;
    }
    OXSHMEM_DEVICE void read_head() {
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
            head[i] = port::load_vec(at<void>(block(0) + i * 16));
        }
    }
    // The 16 bytes of segment `ds`.
    OXSHMEM_DEVICE port::vec16 segment(uint32_t ds) const {
        return ds < 4 ? head[ds] : port::load_vec(at<void>(block(ds / 4) + ds % 4 * 16));
    }
    OXSHMEM_DEVICE uint64_t byte(uint32_t offset) const { return block(offset / 64) + offset % 64; }

    OXSHMEM_DEVICE uint64_t local(port::vec16 s, uint32_t right, uint64_t &bytes) const {
        const uint32_t count = be(s.x);
        if ((count >> 31) != 0) {
            return 0;
        }
        bytes = count == 0 ? 1ull << 31 : count;
        const uint32_t place = (be(s.y) >> 8) - kFirstMkey;
        if (place >= kLocalKeys) {
            return 0;
        }
        return translate(tables.local_keys[place], be(s.y), 0, qp.pd, qp.qpn, right, be64(s.z, s.w), bytes);
    }

    OXSHMEM_DEVICE uint64_t remote(port::vec16 s, uint32_t right, uint64_t bytes) const {
        if (s.w != 0 || (qp.accepts & right) == 0) {
            return 0;
        }
        const Key &entry = tables.remote_keys[((be(s.z) >> 8) + qp.peer * kPeerStride) % kRemoteKeys];
        return translate(entry, be(s.z), qp.peer, qp.remote_pd, qp.remote_qpn, right, be64(s.x, s.y), bytes);
    }
};

// Decodes and checks. False: the host has to judge. Every check of the CPU engine is here
// (hca/src/wire/wqe.rs, execute.rs).
OXSHMEM_DEVICE bool decode(const Reader &reader, port::vec16 control, Request &request) {
    const QpContext &qp = reader.qp;
    const uint32_t first = be(control.x);
    const uint32_t second = be(control.y);
    const uint32_t flags = control.z >> 24;
    const uint32_t opmod = first >> 24;
    const uint32_t ds = second & 0x3f;
    request.opcode = static_cast<Opcode>(first & 0xff);
    request.bytes = 0;
    request.local = 0;
    const bool sound = (first >> 8 & 0xffff) == (static_cast<uint32_t>(reader.index) & 0xffff) && second >> 8 == qp.qpn &&
                       (second & 0xc0) == 0 && ds != 0 && (control.z & 0xffffff) == 0 && control.w == 0 &&
                       (flags & 0x11) == 0 && ((flags & 0x0c) == 0 || (flags & 0x0c) == 0x08) && flags >> 5 <= 4;
    if (!sound) {
        return false;
    }
    switch (request.opcode) {
    case Opcode::nop:
        return opmod == 0 && ds <= 4;
    case Opcode::dump: {
        uint64_t bytes = 0;
        return opmod == 0 && ds == 2 && reader.local(reader.segment(1), kLocalRead, bytes) != 0;
    }
    case Opcode::write:
    case Opcode::read: {
        const bool write = request.opcode == Opcode::write;
        const uint32_t right = write ? kRemoteWrite : kRemoteRead;
        if (opmod != 0 || ds < 2 || (qp.accepts & right) == 0) {
            return false;
        }
        const port::vec16 raddr = reader.segment(1);
        if (ds == 2) {
            return raddr.w == 0;
        }
        const port::vec16 data = reader.segment(2);
        const uint32_t count = be(data.x);
        if (write && (count >> 31) != 0) {
            request.bytes = count & 0x3ff;
            if ((count & 0x7ffffc00u) != 0 || ds != 2 + (4 + static_cast<uint32_t>(request.bytes) + 15) / 16) {
                return false;
            }
        } else {
            if (ds != 3) {
                return false;
            }
            request.local = reader.local(data, write ? kLocalRead : kLocalWrite, request.bytes);
            if (request.local == 0 || request.bytes > 1ull << qp.log_msg_max) {
                return false;
            }
        }
        request.remote = reader.remote(raddr, right, request.bytes);
        return request.remote != 0;
    }
    case Opcode::atomic_cs:
    case Opcode::atomic_fa:
    case Opcode::masked_cs:
    case Opcode::masked_fa: {
        const bool plain = request.opcode == Opcode::atomic_cs || request.opcode == Opcode::atomic_fa;
        request.width = plain || opmod == 0x09 ? 8 : 4;
        const bool wide_cs = request.opcode == Opcode::masked_cs && request.width == 8;
        if (opmod != (plain ? 0x00u : request.width == 8 ? 0x09u : 0x08u) || ds != (wide_cs ? 5u : 4u)) {
            return false;
        }
        const port::vec16 operands = reader.segment(2);
        if (request.width == 8) {
            request.operand = be64(operands.x, operands.y);
            request.compare = be64(operands.z, operands.w);
            request.mask = request.compare_mask = ~0ull;
            if (wide_cs) {
                const port::vec16 masks = reader.segment(3);
                request.mask = be64(masks.x, masks.y);
                request.compare_mask = be64(masks.z, masks.w);
            } else if (request.opcode == Opcode::masked_fa) {
                request.mask = request.compare;
            } else if (request.opcode == Opcode::atomic_fa) {
                if (request.compare != 0) {
                    return false;
                }
                request.mask = 0;
            }
        } else {
            request.operand = be(operands.x);
            request.compare = be(operands.y);
            request.mask = be(operands.z);
            request.compare_mask = be(operands.w);
            if (request.opcode == Opcode::masked_fa) {
                if (operands.z != 0 || operands.w != 0) {
                    return false;
                }
                request.mask = request.compare;
            }
        }
        request.local = reader.local(wide_cs ? reader.segment(4) : reader.segment(3), kLocalWrite, request.bytes);
        if (request.local == 0 || request.bytes != request.width) {
            return false;
        }
        const port::vec16 raddr = reader.segment(1);
        request.remote = reader.remote(raddr, kRemoteAtomic, request.width);
        return request.remote != 0 && be(raddr.y) % request.width == 0 && request.remote % request.width == 0;
    }
    default:
        return false;
    }
}

} // namespace oxshmem::soft
