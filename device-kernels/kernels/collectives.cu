// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host's collectives run on the device. Each is launched as one block.

#include <oxshmem/oxshmem.h>

OXSHMEM_KERNEL(oxshmem_host_team_sync, int team) {
    oxshmem::team_sync(oxshmem::block, team);
}

OXSHMEM_KERNEL(oxshmem_host_team_barrier, int team) {
    oxshmem::barrier(oxshmem::block, team);
}
