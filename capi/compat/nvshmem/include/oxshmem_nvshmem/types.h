// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Constants, structures and tables of types that NVSHMEM's interface has. Values and layouts are
// those that its programs are compiled with.
#pragma once

#include <oxshmem/types.h>

#include "platform.h"

// The interface whose names exist here, and the version of OpenSHMEM that its programs ask for.
#define NVSHMEM_VENDOR_MAJOR_VERSION 3
#define NVSHMEM_VENDOR_MINOR_VERSION 8
#define NVSHMEM_VENDOR_PATCH_VERSION 0
#define NVSHMEM_VENDOR_VERSION 30800
#define NVSHMEM_VENDOR_STRING "NVSHMEM v3.8.0"
#define NVSHMEM_MAJOR_VERSION 1
#define NVSHMEM_MINOR_VERSION 3
#define NVSHMEM_MAX_NAME_LEN 256
#define OXSHMEM_NV_NAME "OxSHMEM, interface of " NVSHMEM_VENDOR_STRING

// The interface between these headers and libnvshmem_host; a change of any function of abi.h
// raises it.
#define OXSHMEM_NV_ABI 3

enum nvshmemi_cmp_type {
    NVSHMEM_CMP_EQ = 0,
    NVSHMEM_CMP_NE = 1,
    NVSHMEM_CMP_GT = 2,
    NVSHMEM_CMP_LE = 3,
    NVSHMEM_CMP_LT = 4,
    NVSHMEM_CMP_GE = 5,
};
typedef enum nvshmemi_cmp_type nvshmemx_cmp_type_t;

typedef enum { NVSHMEM_SIGNAL_SET = 9, NVSHMEM_SIGNAL_ADD = 10 } nvshmemx_signal_op_t;

enum nvshmemi_thread_support {
    NVSHMEM_THREAD_SINGLE = 0,
    NVSHMEM_THREAD_FUNNELED = 1,
    NVSHMEM_THREAD_SERIALIZED = 2,
    NVSHMEM_THREAD_MULTIPLE = 3,
};
typedef enum nvshmemi_thread_support nvshmemx_thread_support_t;

typedef int32_t nvshmem_team_t;
typedef nvshmem_team_t nvshmemx_team_t;
typedef uint64_t nvshmemx_team_uniqueid_t;
enum {
    NVSHMEM_TEAM_INVALID = -1,
    NVSHMEM_TEAM_WORLD = 0,
    NVSHMEM_TEAM_WORLD_INDEX = 0,
    NVSHMEM_TEAM_SHARED = 1,
    NVSHMEM_TEAM_SHARED_INDEX = 1,
    NVSHMEMX_TEAM_NODE = 2,
    NVSHMEM_TEAM_NODE_INDEX = 2,
    NVSHMEMX_TEAM_SAME_MYPE_NODE = 3,
    NVSHMEM_TEAM_SAME_MYPE_NODE_INDEX = 3,
};

#define NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS 0x1
#define NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID 0x2
typedef struct {
    int version;
    int num_contexts;
    nvshmemx_team_uniqueid_t uniqueid;
    char padding[48];
} nvshmem_team_config_t;
typedef nvshmem_team_config_t nvshmem_team_config_v2;
static_assert(sizeof(nvshmem_team_config_t) == 64, "as NVSHMEM's");
#define NVSHMEM_TEAM_UNIQUID_INITIALIZER (~0ull)
#define NVSHMEM_TEAM_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                          \
        (2 << 16) + (int)sizeof(nvshmem_team_config_t), -1, NVSHMEM_TEAM_UNIQUID_INITIALIZER, {                                \
            0                                                                                                                  \
        }                                                                                                                      \
    }

// Queue pairs by handle: the default context's, all of them, and those of nvshmemx_qp_create.
typedef int nvshmemx_qp_handle_t;
enum {
    NVSHMEMX_QP_HOST = 0,
    NVSHMEMX_QP_DEFAULT = 1,
    NVSHMEMX_QP_ANY = INT_MAX,
    NVSHMEMX_QP_ALL = INT_MAX,
    OXSHMEM_NV_QP_FIRST = 2, // of the context with number 0
};
enum { NVSHMEM_PE_INVALID = -1, NVSHMEMX_PE_ANY = 1 << 15, NVSHMEMX_PE_ALL = 1 << 15 };

// Regions of operations with hints, and amounts of shared memory for transfers.
typedef uint64_t nvshmemx_region_handle_t;
typedef enum {
    NVSHMEMX_REGION_HINT_NONE = 0,
    NVSHMEMX_REGION_HINT_BATCH_RMA = 1,
} nvshmemx_region_hint_t;
typedef struct nvshmemx_region_attrs {
    uint32_t hints;
    char reserved[60];
} nvshmemx_region_attrs_t;
static_assert(sizeof(nvshmemx_region_attrs_t) == 64, "as NVSHMEM's");
#define NVSHMEMX_REGION_ATTRS_INITIALIZER                                                                                      \
    {                                                                                                                          \
        NVSHMEMX_REGION_HINT_NONE, {                                                                                           \
            0                                                                                                                  \
        }                                                                                                                      \
    }
typedef enum {
    NVSHMEMX_SMEM_RECOMMENDED,
    NVSHMEMX_SMEM_MINIMUM,
    NVSHMEMX_SMEM_BARRIERS_ONLY,
} nvshmemx_smem_amount_t;

// Joining a job.
enum {
    NVSHMEMX_INIT_THREAD_PES = 1,
    NVSHMEMX_INIT_WITH_MPI_COMM = 2,
    NVSHMEMX_INIT_WITH_SHMEM = 4,
    NVSHMEMX_INIT_WITH_UNIQUEID = 8,
};
typedef struct {
    int version;
    char internal[124];
} nvshmemx_uniqueid_t;
typedef nvshmemx_uniqueid_t nvshmemx_uniqueid_v1;
static_assert(sizeof(nvshmemx_uniqueid_t) == 128, "as NVSHMEM's");
typedef struct {
    int version;
    nvshmemx_uniqueid_t *id;
    int myrank;
    int nranks;
} nvshmemx_uniqueid_args_t;
typedef nvshmemx_uniqueid_args_t nvshmemx_uniqueid_args_v1;
typedef struct {
    int version;
    nvshmemx_uniqueid_args_t uid_args;
    int cuda_device_id;
    char content[92];
} nvshmemx_init_args_t;
typedef nvshmemx_init_args_t nvshmemx_init_args_v2;
typedef struct {
    int version;
    void *mpi_comm;
    nvshmemx_init_args_t args;
} nvshmemx_init_attr_t;
// Version 1 has no GPU's number where version 2 has one, and neither is looked at here.
typedef nvshmemx_init_attr_t nvshmemx_init_attr_v1;
typedef nvshmemx_init_attr_t nvshmemx_init_attr_v2;
static_assert(sizeof(nvshmemx_init_attr_t) == 144, "as NVSHMEM's");
#define NVSHMEMX_UNIQUEID_INITIALIZER                                                                                          \
    {                                                                                                                          \
        (1 << 16) + (int)sizeof(nvshmemx_uniqueid_t), {                                                                        \
            0                                                                                                                  \
        }                                                                                                                      \
    }
#define NVSHMEMX_UNIQUEID_ARGS_INITIALIZER                                                                                     \
    { (1 << 16) + (int)sizeof(nvshmemx_uniqueid_args_t), nullptr, -1, -1 }
#define NVSHMEM_INIT_ARGS_V2_IDENTIFIER ((2 << 16) + (int)sizeof(nvshmemx_init_args_t))
#define NVSHMEMX_INIT_ARGS_V2_INITIALIZER                                                                                      \
    {                                                                                                                          \
        NVSHMEM_INIT_ARGS_V2_IDENTIFIER, NVSHMEMX_UNIQUEID_ARGS_INITIALIZER, -1, {                                             \
            0                                                                                                                  \
        }                                                                                                                      \
    }
#define NVSHMEMX_INIT_ARGS_INITIALIZER NVSHMEMX_INIT_ARGS_V2_INITIALIZER
#define NVSHMEM_INIT_ATTR_V1_IDENTIFIER ((1 << 16) + (int)sizeof(nvshmemx_init_attr_t))
#define NVSHMEMX_INIT_ATTR_V1_INITIALIZER                                                                                      \
    { NVSHMEM_INIT_ATTR_V1_IDENTIFIER, nullptr, NVSHMEMX_INIT_ARGS_INITIALIZER }
#define NVSHMEM_INIT_ATTR_V2_IDENTIFIER ((2 << 16) + (int)sizeof(nvshmemx_init_attr_t))
#define NVSHMEMX_INIT_ATTR_INITIALIZER                                                                                         \
    { NVSHMEM_INIT_ATTR_V2_IDENTIFIER, nullptr, NVSHMEMX_INIT_ARGS_V2_INITIALIZER }
// Sets the versions of attributes, and nothing else. Callers may leave the semicolon out.
#define nvshmemx_init_init_attr_ver_only(attr)                                                                                 \
    do {                                                                                                                       \
        (attr).version = NVSHMEM_INIT_ATTR_V1_IDENTIFIER;                                                                      \
        (attr).args.version = (1 << 16) + (int)sizeof(nvshmemx_init_args_t);                                                   \
        (attr).args.uid_args.version = (1 << 16) + (int)sizeof(nvshmemx_uniqueid_args_t);                                      \
    } while (0);

typedef enum {
    NVSHMEM_STATUS_NOT_INITIALIZED = 0,
    NVSHMEM_STATUS_IS_BOOTSTRAPPED = 1,
    NVSHMEM_STATUS_IS_INITIALIZED = 2,
    NVSHMEM_STATUS_LIMITED_MPG = 3,
    NVSHMEM_STATUS_FULL_MPG = 4,
} nvshmemx_init_status_t;

// Results of calls that return a status.
#define OXSHMEM_NV_FOR_EACH_STATUS(X)                                                                                          \
    X(NVSHMEMX_SUCCESS)                                                                                                        \
    X(NVSHMEMX_ERROR_INVALID_VALUE)                                                                                            \
    X(NVSHMEMX_ERROR_OUT_OF_MEMORY)                                                                                            \
    X(NVSHMEMX_ERROR_NOT_SUPPORTED)                                                                                            \
    X(NVSHMEMX_ERROR_SYMMETRY)                                                                                                 \
    X(NVSHMEMX_ERROR_GPU_NOT_SELECTED)                                                                                         \
    X(NVSHMEMX_ERROR_COLLECTIVE_LAUNCH_FAILED)                                                                                 \
    X(NVSHMEMX_ERROR_INTERNAL)
#define OXSHMEM_NV_STATUS(name) name,
enum nvshmemx_status { OXSHMEM_NV_FOR_EACH_STATUS(OXSHMEM_NV_STATUS) };
#undef OXSHMEM_NV_STATUS

// X(type name, C++ type), beside the tables of oxshmem/types.h.
#define OXSHMEM_NV_FOR_EACH_NARROW_TYPE(X)                                                                                     \
    X(half, OXSHMEM_NV_HALF)                                                                                                   \
    X(bfloat16, OXSHMEM_NV_BFLOAT16)
#define OXSHMEM_NV_FOR_EACH_RMA_TYPE(X)                                                                                        \
    OXSHMEM_FOR_EACH_RMA_TYPE(X)                                                                                               \
    OXSHMEM_NV_FOR_EACH_NARROW_TYPE(X)

// X(bits, bytes)
#define OXSHMEM_NV_FOR_EACH_SIZE(X)                                                                                            \
    X(8, 1)                                                                                                                    \
    X(16, 2)                                                                                                                   \
    X(32, 4)                                                                                                                   \
    X(64, 8)                                                                                                                   \
    X(128, 16)
