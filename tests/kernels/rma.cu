// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Bulk transfers from a list: pe/rma.rs makes the list, and knows what memory must hold afterwards.
#include "conformance.h"

namespace {

using namespace conformance;

enum Kind : uint8_t { kPut, kPutNbi, kGet, kGetNbi, kIput, kIget };
enum Scope : uint8_t { kThread, kWarp, kBlock };

// Mirrored in pe/rma.rs. Offsets are in the arena.
struct Step {
    uint64_t dst, src;
    uint64_t n; // bytes; elements of `width` bytes for iput and iget
    int32_t dst_stride, src_stride;
    int32_t pe;
    uint8_t kind, scope, width;
    uint8_t elsewhere; // the local side is unregistered memory: the stack of the thread, or shared memory
};

// Unregistered memory of a thread, a warp and a block.
constexpr uint32_t kThreadBytes = 512, kWarpBytes = 1024, kBlockBytes = 8192;

template <class S> OXSHMEM_DEVICE void copy(unsigned char *dst, const unsigned char *src, uint64_t bytes) {
    S::sync();
    for (uint64_t i = S::rank(); i < bytes; i += S::size()) {
        dst[i] = src[i];
    }
    S::sync();
}

template <class S, class T> OXSHMEM_DEVICE void strided(const Step &step, unsigned char *dst, const unsigned char *src) {
    T *to = reinterpret_cast<T *>(dst);
    const T *from = reinterpret_cast<const T *>(src);
    if (step.kind == kIput) {
        oxshmem::iput(S{}, to, from, step.dst_stride, step.src_stride, step.n, step.pe);
    } else {
        oxshmem::iget(S{}, to, from, step.dst_stride, step.src_stride, step.n, step.pe);
    }
}

template <class S> OXSHMEM_NOINLINE void transfer(const Step &step, unsigned char *dst, const unsigned char *src) {
    switch (step.kind) {
    case kPut:
        return oxshmem::putmem(S{}, dst, src, step.n, step.pe);
    case kPutNbi:
        return oxshmem::putmem_nbi(S{}, dst, src, step.n, step.pe);
    case kGet:
        return oxshmem::getmem(S{}, dst, src, step.n, step.pe);
    case kGetNbi:
        return oxshmem::getmem_nbi(S{}, dst, src, step.n, step.pe);
    default:
        break;
    }
    switch (step.width) {
    case 1:
        return strided<S, uint8_t>(step, dst, src);
    case 2:
        return strided<S, uint16_t>(step, dst, src);
    case 4:
        return strided<S, uint32_t>(step, dst, src);
    case 8:
        return strided<S, uint64_t>(step, dst, src);
    default:
        return strided<S, vec16>(step, dst, src);
    }
}

OXSHMEM_DEVICE uint64_t extent(const Step &step, int32_t stride) {
    const bool strided = step.kind == kIput || step.kind == kIget;
    return strided ? (step.n == 0 ? 0 : ((step.n - 1) * static_cast<uint64_t>(stride) + 1) * step.width) : step.n;
}

template <class S> OXSHMEM_DEVICE void perform(const Step &step, unsigned char *arena, unsigned char *elsewhere) {
    unsigned char *dst = arena + step.dst;
    unsigned char *src = arena + step.src;
    if (step.elsewhere == 0) {
        transfer<S>(step, dst, src);
        return;
    }
    const bool nbi = step.kind == kPutNbi || step.kind == kGetNbi;
    if (step.kind == kPut || step.kind == kPutNbi || step.kind == kIput) {
        unsigned char *local = elsewhere + step.src % 16;
        copy<S>(local, src, extent(step, step.src_stride));
        transfer<S>(step, dst, local);
        if (nbi) {
            oxshmem::quiet(S{});
        }
    } else {
        unsigned char *local = elsewhere + step.dst % 16;
        // What lies between the elements of an iget stays as it is.
        copy<S>(local, dst, extent(step, step.dst_stride));
        transfer<S>(step, local, src);
        if (nbi) {
            oxshmem::quiet(S{});
        }
        copy<S>(dst, local, extent(step, step.dst_stride));
    }
}

} // namespace

// Each step is performed by one group of its scope; groups take the steps in turn.
OXSHMEM_KERNEL(run_steps, unsigned char *arena, const Step *steps, uint64_t count) {
    OXSHMEM_DYNAMIC_SHARED(unsigned char, shared);
    alignas(16) unsigned char mine[kThreadBytes];
    const uint64_t warps = (block_threads() + 31) / 32;
    for (uint64_t i = 0; i < count; ++i) {
        const Step &step = steps[i];
        if (step.scope == kBlock && i % grid_blocks() == block_rank()) {
            perform<oxshmem::block_scope>(step, arena, shared + warps * kWarpBytes);
        }
    }
    const uint64_t my_warp = thread_rank() / 32;
    for (uint64_t i = 0; i < count; ++i) {
        const Step &step = steps[i];
        if (step.scope == kWarp && i % (grid_blocks() * warps) == block_rank() * warps + my_warp) {
            perform<oxshmem::warp_scope>(step, arena, shared + my_warp * kWarpBytes);
        }
    }
    for (uint64_t i = 0; i < count; ++i) {
        const Step &step = steps[i];
        if (step.scope == kThread && i % grid_threads() == global_rank()) {
            perform<oxshmem::thread_scope>(step, arena, mine);
        }
    }
}
