// SPDX-License-Identifier: Apache-2.0 OR MIT
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Every PE puts its number into the next PE's inbox, in ring.cu.
cudaError_t launch_ring(int *inbox, uint64_t *arrived, uint64_t round, cudaStream_t stream);

// Counts the inboxes of all PEs that hold something else than the number of the PE before, in
// check.cu.
cudaError_t launch_check(const int *inbox, int *wrong, cudaStream_t stream);
