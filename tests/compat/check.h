// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the programs share: a check that says where it failed and ends the job.
#pragma once

#include <cstdio>

#include <nvshmem.h>
#include <nvshmemx.h>

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            std::fprintf(stderr, "%s:%d: PE %d: %s\n", __FILE__, __LINE__, nvshmem_my_pe(), #condition);                       \
            nvshmem_global_exit(1);                                                                                            \
        }                                                                                                                      \
    } while (0)
