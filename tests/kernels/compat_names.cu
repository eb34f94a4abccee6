// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names of the compatibility layer that OxSHMEM's own tables do not have.
#include <nvshmem.h>

#include "conformance.h"

namespace {

using namespace conformance;

constexpr uint32_t kBlockWords = 256;

OXSHMEM_DEVICE int next_pe() {
    return (nvshmem_my_pe() + 1) % nvshmem_n_pes();
}
OXSHMEM_DEVICE int previous_pe() {
    return (nvshmem_my_pe() + nvshmem_n_pes() - 1) % nvshmem_n_pes();
}
OXSHMEM_DEVICE uint16_t half_bits(float value) {
    return oxshmem::to_half(value).bits;
}

// What block `block` of PE `pe` sends as word `i`.
OXSHMEM_DEVICE uint64_t word_of(int pe, uint32_t block, uint32_t i) {
    return mix(static_cast<uint64_t>(pe) << 32 | block << 16 | i);
}

} // namespace

// All threads of all PEs add to numbers that share words; the first thread uses one alone.
OXSHMEM_KERNEL(compat_half, OXSHMEM_NV_HALF *cells, uint32_t rounds, Report *report) {
    const int to = next_pe();
    for (uint32_t i = 0; i < rounds; ++i) {
        nvshmemx_half_atomic_add(cells, oxshmem::to_half(1.0f), 0);
        const OXSHMEM_NV_HALF old = nvshmemx_half_atomic_fetch_add(cells + 1, oxshmem::to_half(0.5f), 0);
        EXPECT(report, oxshmem::to_float(old) >= 0.5f * static_cast<float>(i));
    }
    if (thread_rank() == 0) {
        nvshmem_half_atomic_set(cells + 2, oxshmem::to_half(2.5f), to);
        EXPECT_EQ(report, nvshmem_half_atomic_fetch(cells + 2, to).bits, half_bits(2.5f));
        EXPECT_EQ(report, nvshmem_half_atomic_swap(cells + 2, oxshmem::to_half(-7.0f), to).bits, half_bits(2.5f));
        EXPECT_EQ(report, nvshmemx_half_atomic_fetch_add(cells + 2, oxshmem::to_half(7.0f), to).bits, half_bits(-7.0f));
        // Beyond the greatest number.
        nvshmem_half_atomic_set(cells + 2, oxshmem::to_half(65504.0f), to);
        nvshmemx_half_atomic_add(cells + 2, oxshmem::to_half(65504.0f), to);
        EXPECT_EQ(report, nvshmem_half_atomic_fetch(cells + 2, to).bits, static_cast<uint16_t>(0x7c00));
    }
}

OXSHMEM_KERNEL(compat_half_check, OXSHMEM_NV_HALF *cells, uint32_t adds, Report *report) {
    EXPECT_EQ(report, nvshmem_half_atomic_fetch(cells, 0).bits, half_bits(static_cast<float>(adds)));
    EXPECT_EQ(report, nvshmem_half_atomic_fetch(cells + 1, 0).bits, half_bits(0.5f * static_cast<float>(adds)));
    EXPECT_EQ(report, nvshmem_half_atomic_fetch(cells + 3, nvshmem_my_pe()).bits, uint16_t{0});
}

// The last element has the same value everywhere, the one before it none that is a number but at
// the last PE.
OXSHMEM_KERNEL(compat_maxloc, OXSHMEM_NV_DOUBLE2 *dst, OXSHMEM_NV_DOUBLE2 *src, uint32_t n, Report *report) {
    const int me = nvshmem_my_pe(), pes = nvshmem_n_pes();
    const auto value = [&](int pe, uint32_t i) -> double {
        return i + 1 == n                   ? 5.0
               : i + 2 == n && pe + 1 < pes ? __builtin_nan("")
                                            : static_cast<double>(mix(pe * 1000 + i) >> 40);
    };
    for (uint32_t i = thread_rank(); i < n; i += block_threads()) {
        src[i].x = value(me, i);
        src[i].y = me;
    }
    EXPECT_EQ(report, nvshmemx_double2_maxloc_reduce_block(NVSHMEM_TEAM_WORLD, dst, src, n), 0);
    for (uint32_t i = thread_rank(); i < n; i += block_threads()) {
        int best = i + 2 == n ? pes - 1 : 0;
        for (int pe = 0; pe < pes; ++pe) {
            best = value(pe, i) > value(best, i) ? pe : best;
        }
        EXPECT_EQ(report, dst[i].x, value(best, i));
        EXPECT_EQ(report, dst[i].y, static_cast<double>(best));
    }
    sync_block();
    // In place.
    EXPECT_EQ(report, nvshmemx_double2_maxloc_reduce_block(NVSHMEM_TEAM_WORLD, src, src, 1), 0);
    if (thread_rank() == 0) {
        EXPECT_EQ(report, src[0].y, dst[0].y);
    }
}

OXSHMEM_KERNEL(compat_flush, uint64_t *dst, uint64_t *src, uint64_t *signal, Report *report) {
    const uint32_t i = thread_rank();
    src[i] = word_of(nvshmem_my_pe(), 0, i);
    nvshmemx_uint64_put_nbi_block(dst, src, block_threads(), next_pe());
    nvshmemx_flush_block();
    // It is the program's again.
    src[i] = 0;
    sync_block();
    nvshmemx_uint64_put_nbi_warp(dst + block_threads(), src, 1, next_pe());
    nvshmemx_flush_warp();
    nvshmemx_flush();
    if (i == 0) {
        nvshmemx_signal_op(signal, 9, NVSHMEM_SIGNAL_SET, nvshmem_my_pe());
        nvshmem_signal_wait_until(signal, NVSHMEM_CMP_EQ, 9);
        nvshmemx_signal_counted_reset(signal);
        EXPECT_EQ(report, nvshmem_signal_fetch(signal), uint64_t{0});
    }
    nvshmemx_barrier_all_block();
    EXPECT_EQ(report, peek(dst + i), word_of(previous_pe(), 0, i));
}

OXSHMEM_KERNEL(compat_same_node_pe, int members, int number, Report *report) {
    constexpr nvshmem_team_t kTeam = NVSHMEMX_TEAM_SAME_MYPE_NODE;
    EXPECT_EQ(report, nvshmem_team_n_pes(kTeam), members);
    EXPECT_EQ(report, nvshmem_team_my_pe(kTeam), number);
    EXPECT_EQ(report, nvshmem_team_translate_pe(kTeam, number, NVSHMEM_TEAM_WORLD), nvshmem_my_pe());
    EXPECT_EQ(report, nvshmem_barrier(kTeam), 0);
}

// Each block sends by the queue pair of one handle. The inbox has kBlockWords words for each block.
OXSHMEM_KERNEL(compat_qp, nvshmemx_qp_handle_t *handles, int n, uint64_t *inbox, uint64_t *outbox, uint64_t *back,
               uint64_t *signals, Report *report) {
    const int to = next_pe(), me = nvshmem_my_pe();
    const uint32_t block = block_rank(), i = thread_rank(), first = block * kBlockWords;
    nvshmemx_qp_handle_t *const handle = handles + block % static_cast<uint32_t>(n);
    const nvshmemx_qp_handle_t qp = *handle;
    for (uint32_t j = i; j < kBlockWords; j += block_threads()) {
        outbox[first + j] = word_of(me, block, j);
    }
    sync_block();
    uint64_t *const there = inbox + first, *const here = outbox + first, *const own = back + first;
    nvshmemx_qp_uint64_put_nbi_block(there, here, 32, to, qp);
    nvshmemx_qp_uint64_put_block(there + 32, here + 32, 32, to, qp);
    nvshmemx_qp_uint64_put_signal_nbi_block(there + 64, here + 64, 32, signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
    nvshmemx_qp_uint64_put_signal_block(there + 96, here + 96, 32, signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
    if (i < 32) {
        nvshmemx_qp_uint64_put_nbi_warp(there + 128, here + 128, 16, to, qp);
        nvshmemx_qp_uint64_put_warp(there + 144, here + 144, 16, to, qp);
        nvshmemx_qp_uint64_put_signal_nbi_warp(there + 160, here + 160, 16, signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
        nvshmemx_qp_uint64_put_signal_warp(there + 176, here + 176, 16, signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
    }
    if (i == 0) {
        nvshmemx_qp_uint64_put_nbi(there + 192, here + 192, 8, to, qp);
        nvshmemx_qp_uint64_put(there + 200, here + 200, 8, to, qp);
        nvshmemx_qp_fence(to, handle, 1);
        nvshmemx_qp_uint64_put_signal_nbi(there + 208, here + 208, 8, signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
        nvshmemx_qp_uint64_put_signal(there + 216, here + 216, 8, signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
        nvshmemx_qp_signal_op(signals + block, 1, NVSHMEM_SIGNAL_ADD, to, qp);
    }
    if (i < 32) {
        nvshmemx_qp_uint64_p(there + 224 + i, word_of(me, block, 224 + i), to, qp);
    }
    nvshmemx_qp_fence_block(to, handle, 1);
    nvshmemx_qp_quiet_block(NVSHMEMX_PE_ANY, handle, 1);
    for (uint32_t j = i; j < kBlockWords; j += block_threads()) {
        EXPECT_EQ(report, nvshmemx_qp_uint64_g(there + j, to, qp), word_of(me, block, j));
    }
    nvshmemx_qp_uint64_get_nbi_block(own, there, 64, to, qp);
    nvshmemx_qp_uint64_get_block(own + 64, there + 64, 64, to, qp);
    if (i < 32) {
        nvshmemx_qp_uint64_get_nbi_warp(own + 128, there + 128, 32, to, qp);
        nvshmemx_qp_uint64_get_warp(own + 160, there + 160, 32, to, qp);
        nvshmemx_qp_fence_warp(to, handle, 1);
        nvshmemx_qp_quiet_warp(to, handle, 1);
    }
    if (i == 0) {
        nvshmemx_qp_uint64_get_nbi(own + 192, there + 192, 32, to, qp);
        nvshmemx_qp_uint64_get(own + 224, there + 224, 32, to, qp);
        nvshmemx_qp_quiet(to, handles, n);
        nvshmemx_qp_quiet(NVSHMEMX_PE_ALL, nullptr, NVSHMEMX_QP_ALL);
        nvshmemx_qp_quiet(NVSHMEMX_PE_ALL, nullptr, NVSHMEMX_QP_DEFAULT);
    }
    nvshmemx_qp_quiet_block(to, handle, 1);
    for (uint32_t j = i; j < kBlockWords; j += block_threads()) {
        EXPECT_EQ(report, own[j], word_of(me, block, j));
        own[j] = 0;
    }
    sync_block();
    // Calls without a handle complete these, too: here, and the host's after the kernel.
    if (i == 0) {
        nvshmemx_qp_uint64_get_nbi(own, there, 64, to, qp);
        nvshmem_quiet();
        EXPECT_EQ(report, own[63], word_of(me, block, 63));
        nvshmemx_qp_uint64_get_nbi(own + 64, there + 64, 64, to, qp);
        nvshmem_fence();
        EXPECT_EQ(report, own[127], word_of(me, block, 127));
        nvshmemx_qp_uint64_get_nbi(own + 128, there + 128, 128, to, qp);
    }
}

OXSHMEM_KERNEL(compat_qp_check, uint64_t *inbox, uint64_t *signals, Report *report) {
    const uint32_t block = block_rank();
    for (uint32_t j = thread_rank(); j < kBlockWords; j += block_threads()) {
        EXPECT_EQ(report, peek(inbox + block * kBlockWords + j), word_of(previous_pe(), block, j));
    }
    EXPECT_EQ(report, peek(signals + block), uint64_t{7});
}

OXSHMEM_KERNEL(compat_bad_qp, uint64_t *cell, int handle) {
    nvshmemx_qp_uint64_p(cell, 1, next_pe(), handle);
}

// Block 0 puts a round's `n` words, none of which is 0, block 1 signals that they are there, and
// block 2 counts the rounds whose signal came before the words. FENCE_BY in pe/compat_names.rs says
// which block fences in between, and by which queue pairs.
OXSHMEM_KERNEL(compat_fence, uint64_t *in, uint64_t *out, uint32_t n, uint64_t *signal, uint32_t *handover, uint32_t rounds,
               int *handles, int n_handles, int fencing, uint64_t *stale) {
    const int to = next_pe();
    for (uint32_t round = 0; round < rounds; ++round) {
        uint64_t *const there = in + static_cast<uint64_t>(round) * n, *const here = out + static_cast<uint64_t>(round) * n;
        if (block_rank() == 0) {
            if (n_handles > 0) {
                nvshmemx_qp_uint64_put_nbi_block(there, here, n, to, handles[0]);
            } else {
                nvshmemx_uint64_put_nbi_block(there, here, n, to);
            }
            if (thread_rank() == 0) {
                if (fencing == 0) {
                    nvshmem_fence();
                }
                store<order::release, reach::device>(handover, round + 1);
            }
        } else if (block_rank() == 1 && thread_rank() == 0) {
            while (load<order::acquire, reach::device>(handover) <= round) {
                pause();
            }
            if (n_handles > 0) {
                nvshmemx_qp_fence(to, handles, n_handles);
                nvshmemx_qp_signal_op(signal, round + 1, NVSHMEM_SIGNAL_SET, to, handles[n_handles - 1]);
            } else {
                if (fencing == 1) {
                    nvshmem_fence();
                }
                nvshmemx_signal_op(signal, round + 1, NVSHMEM_SIGNAL_SET, to);
            }
        } else if (block_rank() == 2 && thread_rank() == 0) {
            nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, round + 1);
            for (uint32_t i = 0; i < n; ++i) {
                if (peek(there + i) == 0) {
                    *stale += 1;
                    break;
                }
            }
        }
    }
}

// Names of the library itself, regions and shared memory, counted signals, and a barrier by each
// group of four warps in turn.
OXSHMEM_KERNEL(compat_library, unsigned char *inbox, unsigned char *outbox, uint64_t *counter, uint32_t bytes,
               uint32_t *arrived, Report *report) {
    int major = 0, minor = 0, patch = 0, active = 7;
    nvshmem_info_get_version(&major, &minor);
    EXPECT_EQ(report, major * 100 + minor, NVSHMEM_MAJOR_VERSION * 100 + NVSHMEM_MINOR_VERSION);
    nvshmemx_vendor_get_version_info(&major, &minor, &patch);
    EXPECT_EQ(report, major * 10000 + minor * 100 + patch, NVSHMEM_VENDOR_VERSION);
    char name[NVSHMEM_MAX_NAME_LEN];
    nvshmem_info_get_name(name);
    EXPECT(report, name[0] == 'O' && name[sizeof(OXSHMEM_NV_NAME) - 1] == 0);

    EXPECT(report, nvshmemx_mc_ptr(NVSHMEM_TEAM_WORLD, inbox) == nullptr);

    nvshmemx_region_handle_t region = 0;
    nvshmemx_region_attrs_t attributes = NVSHMEMX_REGION_ATTRS_INITIALIZER;
    attributes.hints = NVSHMEMX_REGION_HINT_BATCH_RMA;
    EXPECT_EQ(report, nvshmemx_region_start_block(&region, &attributes), static_cast<int>(NVSHMEMX_SUCCESS));
    EXPECT_EQ(report, nvshmemx_region_is_active(NVSHMEMX_REGION_HINT_BATCH_RMA, &active), static_cast<int>(NVSHMEMX_SUCCESS));
    EXPECT_EQ(report, active, 0);
    EXPECT_EQ(report, nvshmemx_region_stop_block(region), static_cast<int>(NVSHMEMX_SUCCESS));
    EXPECT_EQ(report, nvshmemx_region_stop_block(0), static_cast<int>(NVSHMEMX_ERROR_INVALID_VALUE));
    attributes.hints = 2;
    EXPECT_EQ(report, nvshmemx_region_start_block(&region, &attributes), static_cast<int>(NVSHMEMX_ERROR_INVALID_VALUE));
    nvshmemx_give_smem(nullptr, static_cast<size_t>(nvshmemx_ask_smem(NVSHMEMX_SMEM_RECOMMENDED)));
    nvshmemx_release_smem();

    // Two counted writes to one counter: the bytes of both.
    for (uint32_t i = thread_rank(); i < bytes; i += block_threads()) {
        outbox[i] = static_cast<unsigned char>(mix(static_cast<uint64_t>(nvshmem_my_pe()) << 32 | i));
    }
    const uint32_t half = bytes / 2;
    EXPECT_EQ(report, nvshmemx_putmem_signal_counted_nbi_block(inbox, outbox, half, counter, next_pe()), 0);
    EXPECT_EQ(report, nvshmemx_putmem_signal_counted_nbi_block(inbox + half, outbox + half, bytes - half, counter, next_pe()),
              0);
    nvshmemx_signal_counted_wait_until(counter, bytes);
    EXPECT_EQ(report, nvshmemx_signal_counted_load(counter), static_cast<uint64_t>(bytes));
    for (uint32_t i = thread_rank(); i < bytes; i += block_threads()) {
        EXPECT_EQ(report, peek(inbox + i), static_cast<unsigned char>(mix(static_cast<uint64_t>(previous_pe()) << 32 | i)));
    }
    sync_block();

    // Each PE's group says that it has arrived before it meets the others, whose groups look then.
    const uint32_t groups = (block_threads() + 127) / 128;
    for (uint32_t group = 0; group < groups; ++group) {
        if (thread_rank() / 128 == group) {
            if (thread_rank() % 128 == 127 || thread_rank() + 1 == block_threads()) {
                nvshmem_uint32_p(arrived + group, group + 1, next_pe());
            }
            EXPECT_EQ(report, nvshmemx_barrier_warpgroup(NVSHMEM_TEAM_WORLD), 0);
            EXPECT_EQ(report, peek(arrived + group), group + 1);
        }
        sync_block();
    }
}

OXSHMEM_KERNEL(compat_exit, int status, uint64_t *never) {
    nvshmem_global_exit(status);
    // It ends this PE's waits.
    nvshmem_signal_wait_until(never, NVSHMEM_CMP_EQ, 1);
}
