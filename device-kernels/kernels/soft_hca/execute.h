// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Carries out decoded work requests: inline writes, copies and atomics, and the CQEs that report
// them.

#pragma once

#include "decode.h"

namespace oxshmem::soft {

// a + b where no carry leaves a bit of `boundary`; as in hca/src/soft/atomics.rs.
template <class T> OXSHMEM_DEVICE T add_fields(T a, T b, T boundary) {
    return ((a & ~boundary) + (b & ~boundary)) ^ ((a ^ b) & boundary);
}

template <class T> OXSHMEM_DEVICE T atomic(const Request &request) {
    T *word = at<T>(request.remote);
    const T operand = static_cast<T>(request.operand);
    const T mask = static_cast<T>(request.mask);
    const bool add = request.opcode == Opcode::atomic_fa || request.opcode == Opcode::masked_fa;
    if (add && mask == 0) {
        return port::fetch_add<order::acq_rel, reach::system>(word, operand);
    }
    if (add && mask == static_cast<T>(~T{0})) {
        return port::fetch_xor<order::acq_rel, reach::system>(word, operand);
    }
    const T compare = static_cast<T>(request.compare);
    const T compare_mask = static_cast<T>(request.compare_mask);
    T old = port::load<order::relaxed, reach::system>(word);
    for (;;) {
        const bool change = add || ((old ^ compare) & compare_mask) == 0;
        const T next = add ? add_fields(old, operand, mask) : static_cast<T>(change ? (old & ~mask) | (operand & mask) : old);
        const T seen = port::compare_exchange<order::acq_rel, reach::system>(word, old, next);
        if (seen == old) {
            return old;
        }
        old = seen;
    }
}

template <class T> OXSHMEM_DEVICE void store(uint64_t to, T value) {
    port::store<order::relaxed, reach::system>(at<T>(to), value);
}

// 4 bytes of an inline payload, which starts at byte 36; `offset` is a multiple of 4.
OXSHMEM_DEVICE uint32_t inline_word(const Reader &reader, uint32_t offset) {
    return *at<uint32_t>(reader.byte(36 + offset));
}

// The part of a payload that lies in the first block was read already, perhaps across PCIe.
constexpr uint32_t kHeadPayload = 28;

OXSHMEM_DEVICE void write_inline(const Reader &reader, uint64_t to, uint32_t bytes) {
    if (bytes <= kHeadPayload && (to | bytes) % 4 == 0) {
        const port::vec16 s2 = reader.head[2], s3 = reader.head[3];
        const uint32_t words[8] = {s2.y, s2.z, s2.w, s3.x, s3.y, s3.z, s3.w, 0};
        OXSHMEM_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t left = bytes > i * 8 ? bytes - i * 8 : 0;
            if (left >= 8 && to % 8 == 0) {
                store(to + i * 8, static_cast<uint64_t>(words[2 * i + 1]) << 32 | words[2 * i]);
            } else {
                if (left >= 4) {
                    store(to + i * 8, words[2 * i]);
                }
                if (left >= 8) {
                    store(to + i * 8 + 4, words[2 * i + 1]);
                }
            }
        }
        return;
    }
    uint32_t done = 0;
    while (done < bytes) {
        const uint64_t here = to + done;
        const uint32_t left = bytes - done;
        if (done % 4 == 0 && left >= 8 && here % 8 == 0) {
            const uint64_t low = inline_word(reader, done);
            store(here, static_cast<uint64_t>(inline_word(reader, done + 4)) << 32 | low);
            done += 8;
        } else if (done % 4 == 0 && left >= 4 && here % 4 == 0) {
            store(here, inline_word(reader, done));
            done += 4;
        } else if (done % 2 == 0 && left >= 2 && here % 2 == 0) {
            store(here, *at<uint16_t>(reader.byte(36 + done)));
            done += 2;
        } else {
            store(here, *at<uint8_t>(reader.byte(36 + done)));
            done += 1;
        }
    }
}

// The same by a warp, for whole words of 4 bytes; an aligned word of 8 is stored at once.
OXSHMEM_DEVICE void write_inline_by_warp(const Reader &reader, uint64_t to, uint32_t bytes) {
    const uint32_t head = static_cast<uint32_t>(to % 8), pairs = (bytes - head) / 8;
    const uint32_t tail = head + pairs * 8;
    for (uint32_t i = port::lane_id(); i < pairs; i += warp_scope::size()) {
        const uint32_t offset = head + i * 8;
        const uint64_t low = inline_word(reader, offset);
        store(to + offset, static_cast<uint64_t>(inline_word(reader, offset + 4)) << 32 | low);
    }
    if (port::lane_id() == 0 && head != 0) {
        store(to, inline_word(reader, 0));
    }
    if (port::lane_id() == 0 && tail != bytes) {
        store(to + tail, inline_word(reader, tail));
    }
}

OXSHMEM_DEVICE void copy_small(uint64_t to, uint64_t from, uint64_t bytes) {
    if (bytes == 8 && (to | from) % 8 == 0) {
        store(to, *at<uint64_t>(from));
    } else if (bytes == 4 && (to | from) % 4 == 0) {
        store(to, *at<uint32_t>(from));
    } else if (bytes <= 8 && (bytes & (bytes - 1)) == 0 && to % bytes == 0) {
        // An aligned destination is written at once, wherever the source lies.
        uint64_t value = 0;
        for (uint32_t i = 0; i < bytes; ++i) {
            value |= static_cast<uint64_t>(*at<uint8_t>(from + i)) << 8 * i;
        }
        switch (bytes) {
        case 8:
            return store(to, value);
        case 4:
            return store(to, static_cast<uint32_t>(value));
        case 2:
            return store(to, static_cast<uint16_t>(value));
        default:
            return store(to, static_cast<uint8_t>(value));
        }
    } else {
        oxshmem::detail::copy<thread_scope>(at<void>(to), at<void>(from), bytes);
    }
}

// Carries out what one thread does; longer copies are put on the block's list.
OXSHMEM_DEVICE void execute(Shared &s, const Reader &reader, const Request &request) {
    switch (request.opcode) {
    case Opcode::write:
    case Opcode::read: {
        if (request.bytes == 0) {
            return;
        }
        if (request.local == 0) {
            if (request.bytes <= kSmall || (request.remote | request.bytes) % 4 != 0) {
                return write_inline(reader, request.remote, static_cast<uint32_t>(request.bytes));
            }
            s.copies[port::fetch_add<order::relaxed, reach::block>(&s.copied, 1u)] = {request.remote, reader.index,
                                                                                      request.bytes | kInline};
            return;
        }
        const bool write = request.opcode == Opcode::write;
        uint64_t to = write ? request.remote : request.local;
        uint64_t from = write ? request.local : request.remote;
        uint64_t bytes = request.bytes;
        if (bytes <= kSmall) {
            return copy_small(to, from, bytes);
        }
        if (bytes > kLarge) {
            // Takes as much of it as one turn may. A piece ends where the destination is aligned.
            to += s.moved, from += s.moved, bytes -= s.moved;
            if (bytes > kPiece) {
                bytes = kPiece - (to + kPiece) % 64;
                s.partial = s.moved + bytes;
            }
        }
        s.copies[port::fetch_add<order::relaxed, reach::block>(&s.copied, 1u)] = {to, from, bytes};
        return;
    }
    case Opcode::nop:
    case Opcode::dump:
        return;
    default:
        // 8-byte results are in the host's byte order, 4-byte results big-endian.
        if (request.width == 8) {
            const uint64_t old = atomic<uint64_t>(request);
            oxshmem::detail::copy_edge(at<char>(request.local), reinterpret_cast<const char *>(&old), 8);
        } else {
            const uint32_t old = be(atomic<uint32_t>(request));
            oxshmem::detail::copy_edge(at<char>(request.local), reinterpret_cast<const char *>(&old), 4);
        }
    }
}

// All threads: the copies on the list, which are `qp`'s.
OXSHMEM_DEVICE void carry(const Tables &t, const QpContext &qp, const Shared &s) {
    const uint32_t count = s.copied;
    const uint32_t warps = (port::block_threads() + 31) / 32;
    const bool few = count < warps;
    for (uint32_t i = 0; few && i < count; ++i) {
        const Copy &copy = s.copies[i];
        if ((copy.bytes & kInline) == 0) {
            oxshmem::detail::copy<block_scope>(at<void>(copy.to), at<void>(copy.from), copy.bytes);
        }
    }
    for (uint32_t i = port::thread_rank() / 32; i < count; i += warps) {
        const Copy &copy = s.copies[i];
        if ((copy.bytes & kInline) != 0) {
            write_inline_by_warp(Reader{t, qp, copy.from}, copy.to, static_cast<uint32_t>(copy.bytes));
        } else if (!few) {
            oxshmem::detail::copy<warp_scope>(at<void>(copy.to), at<void>(copy.from), copy.bytes);
        }
    }
}

OXSHMEM_DEVICE void write_cqe(QpContext &qp, uint32_t opcode, uint64_t index, uint32_t bytes) {
    const uint32_t owner = qp.cq_producer >> qp.cq_log_size & 1;
    qp.cq_producer = (qp.cq_producer + 1) & 0xffffff;
    // mlx5_cqe64: byte_cnt at 44, timestamp at 48; sop_drop_qpn, wqe_counter, signature and op_own
    // are the tail.
    const uint64_t now = port::clock_ns();
    port::store_vec(at<void>(qp.cqe + 0), {0, 0, 0, 0});
    port::store_vec(at<void>(qp.cqe + 16), {0, 0, 0, 0});
    port::store_vec(at<void>(qp.cqe + 32), {0, 0, 0, be(bytes)});
    port::store<order::relaxed, reach::system>(at<uint64_t>(qp.cqe + 48), port::byte_swap(now));
    const uint32_t low = be(opcode << 24 | qp.qpn);
    const uint32_t high = be(static_cast<uint32_t>(index & 0xffff) << 16 | owner);
    port::store<order::release, reach::system>(at<uint64_t>(qp.cqe + 56), static_cast<uint64_t>(high) << 32 | low);
}

} // namespace oxshmem::soft
