// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Names that say what the library is, end the job, or say how a program means to transfer.

#define OXSHMEM_NV_SET_VERSION                                                                                                 \
    *major = NVSHMEM_MAJOR_VERSION;                                                                                            \
    *minor = NVSHMEM_MINOR_VERSION
OXSHMEM_NV_BOTH(void, nvshmem_info_get_version, (int *major, int *minor), OXSHMEM_NV_SET_VERSION, OXSHMEM_NV_SET_VERSION)
#undef OXSHMEM_NV_SET_VERSION
#define OXSHMEM_NV_SET_VERSION                                                                                                 \
    *major = NVSHMEM_VENDOR_MAJOR_VERSION;                                                                                     \
    *minor = NVSHMEM_VENDOR_MINOR_VERSION;                                                                                     \
    *patch = NVSHMEM_VENDOR_PATCH_VERSION
OXSHMEM_NV_BOTH(void, nvshmemx_vendor_get_version_info, (int *major, int *minor, int *patch), OXSHMEM_NV_SET_VERSION,
                OXSHMEM_NV_SET_VERSION)
#undef OXSHMEM_NV_SET_VERSION
OXSHMEM_NV_BOTH(void, nvshmem_info_get_name, (char *name), oxshmem_nv::name_of_library(name),
                __builtin_memcpy(name, OXSHMEM_NV_NAME, sizeof(OXSHMEM_NV_NAME)))

OXSHMEM_NV_BOTH(void, nvshmem_global_exit, (int status), oxshmem_nv::global_exit(status),
                oxshmem_nv_global_exit(__func__, status))

// The address by which one store reaches all members of a team. There is none, which programs take
// for a machine without multicast.
OXSHMEM_NV_BOTH(void *, nvshmemx_mc_ptr, (nvshmem_team_t, const void *), return nullptr, return nullptr)

// Signals that count the bytes that have arrived.
OXSHMEM_NV_DEVICE(block, int, nvshmemx_putmem_signal_counted_nbi_block,
                  (void *dst, const void *src, size_t n, uint64_t *signal, int pe), S::sync();
                  oxshmem::putmem_signal_nbi(S{}, dst, src, n, signal, n, oxshmem::SIGNAL_ADD, pe); S::sync(); return 0)
OXSHMEM_NV_DEVICE(thread, uint64_t, nvshmemx_signal_counted_load, (const uint64_t *signal),
                  return oxshmem::signal_fetch(const_cast<uint64_t *>(signal)))
OXSHMEM_NV_DEVICE(thread, void, nvshmemx_signal_counted_wait_until, (const uint64_t *signal, uint64_t expected),
                  oxshmem::signal_wait_until(const_cast<uint64_t *>(signal), oxshmem::CMP_GE, expected))

// Regions give hints for the operations inside them. Hints change nothing here, so no region is
// ever reported as active.
#define OXSHMEM_NV_ENTER_REGION                                                                                                \
    if (handle == nullptr || attributes == nullptr || !oxshmem_nv::are_hints(attributes->hints)) {                             \
        return NVSHMEMX_ERROR_INVALID_VALUE;                                                                                   \
    }                                                                                                                          \
    *handle = 1;                                                                                                               \
    return NVSHMEMX_SUCCESS
#define OXSHMEM_NV_LEAVE_REGION return handle == 1 ? NVSHMEMX_SUCCESS : NVSHMEMX_ERROR_INVALID_VALUE
#define OXSHMEM_NV_ASK_REGION                                                                                                  \
    if (active == nullptr || !oxshmem_nv::are_hints(hints)) {                                                                  \
        return NVSHMEMX_ERROR_INVALID_VALUE;                                                                                   \
    }                                                                                                                          \
    *active = 0;                                                                                                               \
    return NVSHMEMX_SUCCESS
OXSHMEM_NV_HOST(int, nvshmemx_region_start, (nvshmemx_region_handle_t * handle, const nvshmemx_region_attrs_t *attributes),
                OXSHMEM_NV_ENTER_REGION)
OXSHMEM_NV_HOST(int, nvshmemx_region_stop, (nvshmemx_region_handle_t handle), OXSHMEM_NV_LEAVE_REGION)
OXSHMEM_NV_DEVICE(block, int, nvshmemx_region_start_block,
                  (nvshmemx_region_handle_t * handle, const nvshmemx_region_attrs_t *attributes), OXSHMEM_NV_ENTER_REGION)
OXSHMEM_NV_DEVICE(block, int, nvshmemx_region_stop_block, (nvshmemx_region_handle_t handle), OXSHMEM_NV_LEAVE_REGION)
OXSHMEM_NV_BOTH(int, nvshmemx_region_is_active, (uint32_t hints, int *active), OXSHMEM_NV_ASK_REGION, OXSHMEM_NV_ASK_REGION)
#undef OXSHMEM_NV_ASK_REGION
#undef OXSHMEM_NV_LEAVE_REGION
#undef OXSHMEM_NV_ENTER_REGION

// Shared memory for transfers, which need none here.
OXSHMEM_NV_BOTH(int, nvshmemx_ask_smem, (nvshmemx_smem_amount_t), return 0, return 0)
OXSHMEM_NV_DEVICE(block, void, nvshmemx_give_smem, (void *, size_t), )
OXSHMEM_NV_DEVICE(block, void, nvshmemx_release_smem, (), )
