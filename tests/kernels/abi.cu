// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Sizes and offsets of the device ABI as the device's compiler lays it out, in the order of oxshmem::abi::layout().
#include <oxshmem/oxshmem.h>

#include "../../device-kernels/kernels/soft_hca.h"

#define SIZE(type) out[at++] = sizeof(type)
#define FIELD(type, field) out[at++] = offsetof(type, field)

OXSHMEM_KERNEL(abi_layout, uint64_t *out, uint64_t *count) {
    using namespace oxshmem::abi;
    uint64_t at = 0;
    SIZE(ErrorRecord);
    FIELD(ErrorRecord, code);
    FIELD(ErrorRecord, op);
    FIELD(ErrorRecord, pe);
    FIELD(ErrorRecord, qpn);
    FIELD(ErrorRecord, wqe_index);
    FIELD(ErrorRecord, address);
    FIELD(ErrorRecord, length);
    FIELD(ErrorRecord, syndrome);
    FIELD(ErrorRecord, vendor_syndrome);
    FIELD(ErrorRecord, block);
    FIELD(ErrorRecord, thread);
    SIZE(Control);
    FIELD(Control, abort);
    FIELD(Control, claimed);
    FIELD(Control, error);
    SIZE(Qp);
    FIELD(Qp, wq);
    FIELD(Qp, stamps);
    FIELD(Qp, dbr);
    FIELD(Qp, doorbell);
    FIELD(Qp, cqe);
    FIELD(Qp, landing);
    FIELD(Qp, laps);
    FIELD(Qp, qpn);
    FIELD(Qp, depth_log2);
    FIELD(Qp, pe);
    FIELD(Qp, index);
    FIELD(Qp, landing_log2);
    FIELD(Qp, gate);
    FIELD(Qp, landing_head);
    FIELD(Qp, rung);
    FIELD(Qp, doorbells);
    FIELD(Qp, completed);
    SIZE(ProxyWord);
    FIELD(ProxyWord, seen);
    FIELD(ProxyWord, polled);
    SIZE(Proxy);
    FIELD(Proxy, slots);
    FIELD(Proxy, taken_word);
    FIELD(Proxy, completed_word);
    FIELD(Proxy, acknowledgements);
    FIELD(Proxy, landing);
    FIELD(Proxy, faults);
    FIELD(Proxy, laps);
    FIELD(Proxy, depth_log2);
    FIELD(Proxy, landing_log2);
    FIELD(Proxy, head);
    FIELD(Proxy, landing_head);
    FIELD(Proxy, taken);
    FIELD(Proxy, completed);
    FIELD(Proxy, failures);
    SIZE(LocalRegion);
    FIELD(LocalRegion, base);
    FIELD(LocalRegion, bytes);
    FIELD(LocalRegion, lkey);
    SIZE(State);
    FIELD(State, magic);
    FIELD(State, abi_version);
    FIELD(State, bytes);
    FIELD(State, my_pe);
    FIELD(State, n_pes);
    FIELD(State, network);
    FIELD(State, p2p_first);
    FIELD(State, p2p_count);
    FIELD(State, p2p_mask);
    FIELD(State, heap_base);
    FIELD(State, heap_bytes);
    FIELD(State, chunk_log2);
    FIELD(State, max_chunks);
    FIELD(State, lkeys);
    FIELD(State, rkeys);
    FIELD(State, qps);
    FIELD(State, qps_per_pe);
    FIELD(State, slab_lkey);
    FIELD(State, used);
    FIELD(State, local_regions);
    FIELD(State, n_local_regions);
    FIELD(State, control);
    FIELD(State, timeout_ns);
    FIELD(State, sync_slots);
    FIELD(State, sync_epoch);
    FIELD(State, proxy);
    FIELD(State, atomics_by_network);
    *count = at;
}

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
    FIELD(Slice, host_doorbells);
    SIZE(Tables);
    FIELD(Tables, control);
    FIELD(Tables, counters);
    FIELD(Tables, events);
    FIELD(Tables, qps);
    FIELD(Tables, local_keys);
    FIELD(Tables, remote_keys);
    FIELD(Tables, pages);
    *count = at;
}
