// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Layouts as the device's compiler makes them: those of abi.h are asserted, those of the software
// HCA reported.
#include <oxshmem/host.h>
#include <oxshmem/oxshmem.h>

#include "../../device-kernels/kernels/soft_hca.h"
#include "abi_bindings.h"

// The host API for C passes these numbers on to device code.
static_assert(static_cast<int>(oxshmem::CMP_EQ) == OXSHMEM_CMP_EQ);
static_assert(static_cast<int>(oxshmem::CMP_NE) == OXSHMEM_CMP_NE);
static_assert(static_cast<int>(oxshmem::CMP_GT) == OXSHMEM_CMP_GT);
static_assert(static_cast<int>(oxshmem::CMP_LE) == OXSHMEM_CMP_LE);
static_assert(static_cast<int>(oxshmem::CMP_LT) == OXSHMEM_CMP_LT);
static_assert(static_cast<int>(oxshmem::CMP_GE) == OXSHMEM_CMP_GE);
static_assert(static_cast<int>(oxshmem::SIGNAL_SET) == OXSHMEM_SIGNAL_SET);
static_assert(static_cast<int>(oxshmem::SIGNAL_ADD) == OXSHMEM_SIGNAL_ADD);

#define SIZE(type) out[at++] = sizeof(type)
#define FIELD(type, field) out[at++] = offsetof(type, field)

// The tables of the software HCA's kernel, in the order of oxshmem_hca::soft::tables::layout().
OXSHMEM_KERNEL(soft_hca_layout, uint64_t *out, uint64_t *count) {
    using namespace oxshmem::soft;
    uint64_t at = 0;
    SIZE(Control);
    FIELD(Control, leave);
    FIELD(Control, events);
    FIELD(Control, served);
    SIZE(BlockCounters);
    FIELD(BlockCounters, wqes);
    FIELD(BlockCounters, doorbells);
    FIELD(BlockCounters, cqes);
    FIELD(BlockCounters, bytes);
    SIZE(Event);
    FIELD(Event, kind);
    FIELD(Event, place);
    FIELD(Event, value);
    FIELD(Event, number);
    out[at++] = offsetof(QpContext, consumer); // the size of what the host writes
    FIELD(QpContext, sq);
    FIELD(QpContext, dbr);
    FIELD(QpContext, cqe);
    FIELD(QpContext, qpn);
    FIELD(QpContext, depth_log2);
    FIELD(QpContext, state);
    FIELD(QpContext, pd);
    FIELD(QpContext, log_msg_max);
    FIELD(QpContext, uar_page);
    FIELD(QpContext, cq_log_size);
    FIELD(QpContext, peer);
    FIELD(QpContext, accepts);
    FIELD(QpContext, remote_pd);
    FIELD(QpContext, remote_qpn);
    FIELD(QpContext, in_order);
    SIZE(QpContext);
    FIELD(QpContext, consumer);
    FIELD(QpContext, moved);
    FIELD(QpContext, cq_producer);
    FIELD(QpContext, bell);
    FIELD(QpContext, trap);
    SIZE(Key);
    FIELD(Key, key);
    FIELD(Key, peer);
    FIELD(Key, pd);
    FIELD(Key, qpn);
    FIELD(Key, rights);
    FIELD(Key, start);
    FIELD(Key, length);
    FIELD(Key, base);
    SIZE(Slice);
    FIELD(Slice, tables);
    FIELD(Slice, number);
    FIELD(Slice, run_ns);
    FIELD(Slice, idle_ns);
    FIELD(Slice, registers);
    FIELD(Slice, null);
    FIELD(Slice, without_record);
    FIELD(Slice, host_doorbells);
    FIELD(Slice, gate);
    SIZE(Tables);
    FIELD(Tables, control);
    FIELD(Tables, counters);
    FIELD(Tables, events);
    FIELD(Tables, qps);
    FIELD(Tables, local_keys);
    FIELD(Tables, remote_keys);
    FIELD(Tables, pages);
    SIZE(WordAtomic);
    FIELD(WordAtomic, word);
    FIELD(WordAtomic, operand);
    FIELD(WordAtomic, compare);
    FIELD(WordAtomic, mask);
    FIELD(WordAtomic, compare_mask);
    FIELD(WordAtomic, add);
    FIELD(WordAtomic, width);
    FIELD(WordAtomic, old);
    SIZE(AtomicBatch);
    FIELD(AtomicBatch, number);
    FIELD(AtomicBatch, count);
    FIELD(AtomicBatch, done);
    FIELD(AtomicBatch, atomics);
    *count = at;
}
