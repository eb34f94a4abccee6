/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * OxSHMEM's host API for C and C++; link with liboxshmem. Device code is in oxshmem/oxshmem.h, which may be included beside
 * this file.
 *
 * Names are those of OpenSHMEM. What device code has under the same name has `host` in it here (oxshmem_host_putmem);
 * operations on a CUDA stream are oxshmemx_..._on_stream. docs/semantics.md says what each promises.
 *
 * Results. A call that returns int returns OXSHMEM_SUCCESS (0) or another value of oxshmem_status; one that returns a pointer
 * returns null when it failed. oxshmem_error() says why. No call ends the process, and every wait has a deadline:
 * OXSHMEM_TIMEOUT for other PEs, OXSHMEM_KERNEL_TIMEOUT for kernels, OXSHMEM_BOOTSTRAP_TIMEOUT for joining a job, and
 * OXSHMEM_MEETING_TIMEOUT for allocation, the making of teams, and finalize.
 *
 * Threads. Any thread may call. Calls are executed one at a time, so a call that waits delays the others, except for
 * oxshmem_abort, oxshmem_exit_job and oxshmem_exit_status. All PEs make collective calls in the same order.
 *
 * Memory. What a transfer reads or writes on this side is there until the call has returned OXSHMEM_SUCCESS, and on a stream
 * until the stream's work has ended. After an error of the call a kernel may still use it until oxshmem_synchronize has
 * returned something else than OXSHMEM_ERROR_DEVICE.
 *
 * Streams. `stream` is a cudaStream_t or CUstream of the PE's GPU, null for the legacy default stream; on the `cpu` device it
 * is null and means the PE's own stream. Calls without a stream run on the PE's own stream and return when they are done. They
 * do not wait for kernels that the program has launched, and those do not wait for them. Errors of device code, the program's
 * kernels included, are returned once: by oxshmem_synchronize and oxshmemx_stream_synchronize, or by a call without a stream
 * that waits before them. The text names the operation that failed, which may be an earlier one than that call.
 */
#ifndef OXSHMEM_HOST_H
#define OXSHMEM_HOST_H

#include <stddef.h>
#include <stdint.h>

#include <oxshmem/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OXSHMEM_MAJOR_VERSION = 0,
    OXSHMEM_MINOR_VERSION = 1,
    OXSHMEM_PATCH_VERSION = 0,
};

typedef enum oxshmem_status {
    OXSHMEM_SUCCESS = 0,
    OXSHMEM_ERROR_INVALID = 1,         /* an argument is invalid; nothing was done */
    OXSHMEM_ERROR_NOT_INITIALIZED = 2, /* no PE: init was not called, failed, or was followed by finalize */
    OXSHMEM_ERROR_CONFIG = 3,          /* a variable is wrong, or PEs are configured differently */
    OXSHMEM_ERROR_JOB_FAILED = 4,      /* PEs did not meet, or one died: the job is over */
    OXSHMEM_ERROR_DEVICE = 5,          /* the device refused something or is lost, or a kernel was ended */
    OXSHMEM_ERROR_FAULT = 6,           /* device code reported an error: a deadline, an error completion, a bad argument */
    OXSHMEM_ERROR_HEAP = 7,            /* the heap is exhausted, calls differ, or memory is not allocated */
    OXSHMEM_ERROR_TRANSPORT = 8,       /* the requested HCA or transport is not available */
    OXSHMEM_ERROR_INTERNAL = 9,        /* an error in this library */
    OXSHMEM_ERROR_TEAM = 10,           /* not a team; members are missing or disagree; no room for a team */
    OXSHMEM_ERROR_CONTEXT = 11,        /* not a context; members disagree or cannot create theirs */
} oxshmem_status;

/* How a signal is updated. */
enum { OXSHMEM_SIGNAL_SET = 9, OXSHMEM_SIGNAL_ADD = 10 };

/* Comparisons. */
enum {
    OXSHMEM_CMP_EQ = 0,
    OXSHMEM_CMP_NE = 1,
    OXSHMEM_CMP_GT = 2,
    OXSHMEM_CMP_LE = 3,
    OXSHMEM_CMP_LT = 4,
    OXSHMEM_CMP_GE = 5,
};

/* Returns why the last failed call of this thread failed, or "" if none has. Valid until the next call of this thread fails. */
const char *oxshmem_error(void);

/* Writes the library's version, to be compared with the constants above. Null pointers are skipped. */
void oxshmem_version(int *major, int *minor, int *patch);

/* Joining and leaving a job. Collective. */

/* Joins the job that the environment describes (oxrun sets it). The PE takes the GPU that is current in the calling thread; if
 * none is, it takes one by its number on the node and makes it current in this thread (see oxshmem_gpu). */
int oxshmem_init(void);

/* The two halves of init, for programs that choose their GPU by the number that they have on the node: after `join` the numbers
 * of PEs are known, and `open` does the rest, with the GPU that is current then. Both are collective. */
int oxshmem_join(void);
int oxshmem_open(void);
/* Returns 0 without a PE, 1 after `join`, 2 after `open` or init. */
int oxshmem_stage(void);

/* A job that the program sets up itself: one process gets an id and passes it to the others by its own means, and all join. The
 * process that got the id must outlive the job. The text ends with 0. */
typedef struct oxshmem_uniqueid {
    char text[512];
} oxshmem_uniqueid;
int oxshmem_get_uniqueid(oxshmem_uniqueid *id);
int oxshmem_init_with_uniqueid(const oxshmem_uniqueid *id, int pe, int n_pes);
/* The same with an id of at most `bytes` bytes, the 0 at its end among them, which names fewer of this machine's addresses. */
int oxshmem_get_short_uniqueid(char *text, size_t bytes);
int oxshmem_join_with_uniqueid(const char *text, int pe, int n_pes);

/* Completes what is outstanding, waits for all PEs, and frees the heap. Kernels that use the device API must have ended or be
 * on streams that this call can wait for. This PE has left even if an error is returned, and can join a job again. */
int oxshmem_finalize(void);
/* Ends the job at once: calls of the other PEs that wait, and all later ones, return OXSHMEM_ERROR_JOB_FAILED with `reason`.
 * This PE leaves by oxshmem_finalize, which returns the same, or by ending. */
int oxshmem_abort(const char *reason);
/* Ends the job as oxshmem_abort does, and tells every PE the status that its process is to end with. Ends no process. */
int oxshmem_exit_job(int exit_status, const char *reason);
/* Returns 1 and writes the status if a PE has ended the job with one, and 0 otherwise. */
int oxshmem_exit_status(int *exit_status);

/* Return -1 if there is no PE. */
int oxshmem_host_my_pe(void);
int oxshmem_host_n_pes(void);
/* The same among the PEs of the node. */
int oxshmem_host_node_my_pe(void);
int oxshmem_host_node_n_pes(void);

/* Returns the CUDA device that the PE uses, for cudaSetDevice in other threads; -1 on the `cpu` device, or without a PE. */
int oxshmem_gpu(void);

/* The symmetric heap. Collective: all PEs pass the same arguments. Allocated memory is zeroed. For 0 bytes
 * they return null at once, without an error. */
void *oxshmem_malloc(size_t bytes);
void *oxshmem_calloc(size_t count, size_t bytes);
void *oxshmem_align(size_t alignment, size_t bytes);
/* Call it after all PEs have completed their operations on the memory (oxshmem_host_barrier_all). Null is ignored. */
int oxshmem_free(void *address);

/* Memory of the program on the host or the PE's GPU, registered with the network's cards: as the local side of transfers over
 * the network it is as fast then as memory of the heap. Other memory can be the local side too, and is slower. Pageable memory
 * of the host is page-locked for a GPU. Not collective. It stays allocated until it is unregistered, before which operations on
 * it have been completed, or until oxshmem_finalize. At most 63 ranges, which do not overlap; `unregister` takes the address
 * where one begins. */
int oxshmemx_buffer_register(void *address, size_t bytes);
int oxshmemx_buffer_unregister(void *address);
int oxshmemx_buffer_unregister_all(void);

/* Makes memory of the program a part of the symmetric heap. Returns where it is there: the same memory at another address, with
 * what is in it. On a GPU, pass one whole mapping of memory created with cuMemCreate, whose handle can be exported as a POSIX
 * file descriptor; on the `cpu` device, pass whole pages. Collective: every PE registers as many bytes, and an error is
 * returned on all of them. `unregister` takes that address, when all PEs have completed their operations on it. */
void *oxshmemx_buffer_register_symmetric(void *address, size_t bytes);
int oxshmemx_buffer_unregister_symmetric(void *address);

/* What memory of the library is for. */
typedef enum oxshmem_memory_kind {
    OXSHMEM_MEMORY_HEAP = 0,    /* what the heap has grown to, less the workspaces of teams */
    OXSHMEM_MEMORY_TEAMS = 1,   /* workspaces of teams, which lie in the heap, and their table */
    OXSHMEM_MEMORY_QUEUES = 2,  /* send and completion queues */
    OXSHMEM_MEMORY_RECORDS = 3, /* doorbell records, and what is kept for each queue pair */
    OXSHMEM_MEMORY_LANDING = 4, /* slots where results of reads and atomics arrive */
    OXSHMEM_MEMORY_RINGS = 5,   /* the ring between device code and the CPU proxy */
    OXSHMEM_MEMORY_ENGINE = 6,  /* what the software HCA keeps */
    OXSHMEM_MEMORY_STAGING = 7, /* buffers of host operations and of staged puts */
    OXSHMEM_MEMORY_TABLES = 8,  /* keys of peers, control blocks, ends of pages */
    OXSHMEM_MEMORY_PROFILE = 9, /* what device code counts and records for OXSHMEM_PROFILE */
    OXSHMEM_MEMORY_KINDS = 10,  /* how many kinds there are */
} oxshmem_memory_kind;
/* Writes how many bytes of a kind (oxshmem_memory_kind) this PE has allocated so far, of the device and of the host. Null
 * pointers are skipped. Memory of drivers and other libraries is not counted. */
int oxshmem_memory(int kind, uint64_t *device_bytes, uint64_t *host_bytes);

/* What went to and from a PE since init: calls of the host, and of device code that was compiled with OXSHMEM_PROFILE while the
 * variable of the same name is set; and what this PE's queue pairs to it did. */
#define OXSHMEM_NOT_COUNTED UINT64_MAX
typedef struct oxshmem_traffic {
    uint64_t operations;
    uint64_t bytes;
    /* Each OXSHMEM_NOT_COUNTED where the network does not tell, or there is none to this PE. */
    uint64_t messages;      /* work requests */
    uint64_t message_bytes; /* their payload */
    uint64_t doorbells;
    uint64_t completions; /* CQEs, those with errors included */
    uint64_t errors;
} oxshmem_traffic;
int oxshmem_peer_counters(int pe, oxshmem_traffic *traffic);
/* Writes the address of a text that free() frees: all counters by queue pair, peer, team, transport and card, as a JSON object.
 * docs/profiling.md has its fields. */
int oxshmem_counters_json(char **json);

/* Returns where kernels (on the `cpu` device the host too) can load and store `pe`'s copy of `address`. Null means that the PE
 * is reached over the network or that the address is not in the heap, which is not an error. */
void *oxshmem_host_ptr(const void *address, int pe);

/* Transfers. The side at the other PE is given by the address of this PE's copy; the other side may be memory of the heap, the
 * GPU or the host. Memory of the heap must be inside one live allocation: a pointer that was freed, one from before the last
 * oxshmem_init, and a range that leaves its allocation are OXSHMEM_ERROR_HEAP, and oxshmem_error() names the nearest
 * allocation. */
int oxshmem_host_putmem(void *dst, const void *src, size_t bytes, int pe);
int oxshmem_host_getmem(void *dst, const void *src, size_t bytes, int pe);
int oxshmem_host_putmem_signal(void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value, int op, int pe);
int oxshmem_host_signal_op(uint64_t *signal, uint64_t value, int op, int pe);
/* Returns the value of the caller's own signal. */
int oxshmem_host_signal_fetch(const uint64_t *signal, uint64_t *value);
/* `seen`, if not null, receives the value that compared true. */
int oxshmem_host_signal_wait_until(const uint64_t *signal, int cmp, uint64_t value, uint64_t *seen);

/* Elements that lie strides apart. Strides count elements, which have 1, 2, 4, 8 or 16 bytes, and are at least 1. */
int oxshmem_host_iputmem(void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, size_t element_bytes,
                         int pe);
int oxshmem_host_igetmem(void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n, size_t element_bytes,
                         int pe);

/* Atomics on a word of 4 or 8 bytes, which is given in the low bytes of `operand` and `compare`. `old`, if not null, receives
 * the value that was there. */
typedef enum oxshmem_atomic_op {
    OXSHMEM_ATOMIC_FETCH = 0,
    OXSHMEM_ATOMIC_SWAP = 1,
    OXSHMEM_ATOMIC_COMPARE_SWAP = 2, /* to `operand` if the value is `compare` */
    OXSHMEM_ATOMIC_FETCH_ADD = 3,
    OXSHMEM_ATOMIC_FETCH_AND = 4,
    OXSHMEM_ATOMIC_FETCH_OR = 5,
    OXSHMEM_ATOMIC_FETCH_XOR = 6,
} oxshmem_atomic_op;
int oxshmem_host_atomic(void *target, size_t bytes, int op, uint64_t operand, uint64_t compare, uint64_t *old, int pe);

/* Ordering. `quiet` completes operations of this PE that happened before. `fence` orders those to each PE that were issued
 * without a stream: before those that follow without one. barrier_all and sync_all are collective. */
int oxshmem_host_quiet(void);
int oxshmem_host_fence(void);
int oxshmem_host_barrier_all(void);
int oxshmem_host_sync_all(void);

/* Teams: ordered sets of PEs. docs/teams.md. A handle is the same number on all members and in device code. The calls that make
 * or end a team are collective over the team that is split or ended, or over the members of the new one; an error is returned
 * on all of them, and nothing has changed then. Teams have no configuration. */
typedef int32_t oxshmem_team_t;
enum {
    OXSHMEM_TEAM_INVALID = -1,
    OXSHMEM_TEAM_WORLD = 0,        /* all PEs */
    OXSHMEM_TEAM_SHARED = 1,       /* PEs that reach each other by load and store */
    OXSHMEM_TEAM_NODE = 2,         /* PEs of the node */
    OXSHMEM_TEAM_SAME_NODE_PE = 3, /* PEs with the same number in their nodes' teams */
};
/* Return -1 if there is no such team. A PE that is not in `destination` is -1 there, which is not an error. */
int oxshmem_host_team_my_pe(oxshmem_team_t team);
int oxshmem_host_team_n_pes(oxshmem_team_t team);
int oxshmem_host_team_translate_pe(oxshmem_team_t source, int pe, oxshmem_team_t destination);
/* Makes a team of `size` PEs of `parent` from `start` on, `stride` apart. *team is OXSHMEM_TEAM_INVALID on PEs that are not
 * among them. */
int oxshmem_team_split_strided(oxshmem_team_t parent, int start, int stride, int size, oxshmem_team_t *team);
/* Does the same where each PE passes the numbers of its own part, so one call makes several teams, of different PEs each. *team
 * is OXSHMEM_TEAM_INVALID on a PE that is not in the part that it names. */
int oxshmemx_team_split_own(oxshmem_team_t parent, int start, int stride, int size, oxshmem_team_t *team);
/* Arranges the PEs of `parent` in rows of `xrange`: *x is the caller's row, *y its column. */
int oxshmem_team_split_2d(oxshmem_team_t parent, int xrange, oxshmem_team_t *x, oxshmem_team_t *y);
/* Makes a team of any PEs: one gets an id and passes it to the others. Exactly the members call `init` with it, each with the
 * number that it will have. */
typedef struct oxshmem_team_uniqueid {
    unsigned char bytes[16];
} oxshmem_team_uniqueid;
int oxshmem_team_get_uniqueid(oxshmem_team_uniqueid *id);
int oxshmem_team_init(const oxshmem_team_uniqueid *id, int my_pe, int n_pes, oxshmem_team_t *team);
/* Ends a team. Waits for streams that have collectives of it. If one goes on (OXSHMEM_TIMEOUT), all members get the error, and
 * keep the team. Kernels that use the team must have ended on all members, and graphs that have collectives of it may not be
 * launched again. OXSHMEM_TEAM_INVALID is ignored. */
int oxshmem_team_destroy(oxshmem_team_t team);
/* Writes which algorithms one block of the team uses, within its part of the workspace, in the form of OXSHMEM_COLLECTIVES: at
 * most `bytes` bytes, including the 0 at the end. Kernels use `push` in place of `levels` and `copy`, and the library's choice
 * in place of what the file of OXSHMEM_TUNING says. Calls on streams and from the host may use several blocks and other
 * algorithms (docs/teams.md). */
int oxshmem_team_algorithms(oxshmem_team_t team, char *text, size_t bytes);

/* Contexts: queue pairs of a team's members apart from those of the default context. docs/contexts.md. Kernels take a context
 * by value, as oxshmem::Context or oxshmem_ctx_t (oxshmem/typed_context.h). Creating and destroying them is collective over the
 * team; an error is returned on all members, and nothing has changed then. */
/* Options of OpenSHMEM. SERIALIZED and PRIVATE: one thread at a time uses the context. 0: any threads at any time. */
enum { OXSHMEM_CTX_SERIALIZED = 1, OXSHMEM_CTX_PRIVATE = 2, OXSHMEM_CTX_NOSTORE = 4 };
/* One context; ctx_create: over all PEs. */
int oxshmem_ctx_create(long options, oxshmem_ctx_t *ctx);
int oxshmem_team_create_ctx(oxshmem_team_t team, long options, oxshmem_ctx_t *ctx);
/* The threads that contexts are for: one thread, warp or block at a time, or any threads at any time. */
enum { OXSHMEMX_CTX_THREAD = 0, OXSHMEMX_CTX_WARP = 1, OXSHMEMX_CTX_BLOCK = 2, OXSHMEMX_CTX_DEVICE = 3 };
/* By which cards the PEs send to PEs of other nodes through contexts (docs/hardware.md, "Rails"). AUTO: as in the default
 * context. DIRECT: by each PE's own card, where the job pushes as well. PUSH: by the card of the sender's node that is on the
 * rail of the peer's card; an error where the job does not push (OXSHMEM_RAILS). */
enum { OXSHMEMX_CTX_RAILS_AUTO = 0, OXSHMEMX_CTX_RAILS_DIRECT = 1, OXSHMEMX_CTX_RAILS_PUSH = 2 };
typedef struct oxshmemx_ctx_config {
    int count;   /* number of contexts, 1 to 65536 */
    int sharing; /* OXSHMEMX_CTX_... */
    int depth;   /* blocks of each send queue: a power of two from 256 to 16384, or 0 for 1024 */
    int card;    /* of all of them, here and at the peers; -1: each card in turn */
    int rails;   /* OXSHMEMX_CTX_RAILS_... */
} oxshmemx_ctx_config_t;
/* Several contexts: writes `config->count` of them to `ctxs`. */
int oxshmemx_team_create_ctxs(oxshmem_team_t team, const oxshmemx_ctx_config_t *config, oxshmem_ctx_t *ctxs);
/* Writes where the device has the contexts that were created together with `ctx`, in their order, for kernels that take a
 * pointer to them. */
int oxshmemx_ctx_device_array(oxshmem_ctx_t ctx, const oxshmem_ctx_t **array);
/* Numbers the contexts that were created together with `ctx`, for kernels that find a context by its number
 * (oxshmem::numbered_context). They are `*first` and those after it, in their order; a set that is numbered already keeps its
 * numbers. At most 1024 contexts of a PE have numbers, and none is used twice. Not collective. */
int oxshmemx_ctx_number(oxshmem_ctx_t ctx, int *first);
/* Completes what was posted through the contexts that were created together with `ctx`, and destroys them. */
int oxshmem_ctx_destroy(oxshmem_ctx_t ctx);

/* Aggregating contexts: small operations of all PEs of a node for another node leave together. docs/contexts.md. Kernels take
 * one by value, as oxshmem::aggregate::Context (oxshmem/aggregate.h). Creating and destroying one is collective over the team.
 */
typedef struct oxshmemx_aggregate_config {
    size_t segment; /* bytes that leave as one write: a power of two from 1024 to 65536, or 0 for 8192 */
    long age_us;    /* microseconds that a record waits for others, at most 60000000; -1: 200 */
} oxshmemx_aggregate_config_t;
/* Writes how many bytes of symmetric memory the context takes. A null `config` is {0, -1}. Not collective. */
int oxshmemx_aggregate_bytes(oxshmem_team_t team, const oxshmemx_aggregate_config_t *config, size_t *bytes);
/* Creates one with its rings in `bytes` bytes of symmetric memory, a whole allocation or a part of it, which are the context's
 * until it is destroyed. */
int oxshmemx_team_create_aggregate(oxshmem_team_t team, const oxshmemx_aggregate_config_t *config, void *memory, size_t bytes,
                                   oxshmemx_aggregate_t *aggregate);
/* Writes, for each PE of the job, the operations of this PE that were not acknowledged: those that may not have been done, once
 * the job has failed or a deadline has passed. Not collective. */
int oxshmemx_aggregate_unacknowledged(oxshmemx_aggregate_t aggregate, uint64_t *operations);
/* Completes what was put into the context, and destroys it. */
int oxshmemx_aggregate_destroy(oxshmemx_aggregate_t aggregate);

/* Operators and element types of reductions. and, or, xor take integers; min and max all types but complex ones. */
typedef enum oxshmem_reduce_op {
    OXSHMEM_REDUCE_AND = 0,
    OXSHMEM_REDUCE_OR = 1,
    OXSHMEM_REDUCE_XOR = 2,
    OXSHMEM_REDUCE_MIN = 3,
    OXSHMEM_REDUCE_MAX = 4,
    OXSHMEM_REDUCE_SUM = 5,
    OXSHMEM_REDUCE_PROD = 6,
} oxshmem_reduce_op;
typedef enum oxshmem_type {
    OXSHMEM_TYPE_INT8 = 0,
    OXSHMEM_TYPE_INT16 = 1,
    OXSHMEM_TYPE_INT32 = 2,
    OXSHMEM_TYPE_INT64 = 3,
    OXSHMEM_TYPE_UINT8 = 4,
    OXSHMEM_TYPE_UINT16 = 5,
    OXSHMEM_TYPE_UINT32 = 6,
    OXSHMEM_TYPE_UINT64 = 7,
    OXSHMEM_TYPE_FLOAT = 8,
    OXSHMEM_TYPE_DOUBLE = 9,
    OXSHMEM_TYPE_COMPLEXF = 10, /* two floats */
    OXSHMEM_TYPE_COMPLEXD = 11, /* two doubles */
    OXSHMEM_TYPE_HALF = 12,
    OXSHMEM_TYPE_BFLOAT16 = 13,
} oxshmem_type;

/* Collectives: all members make the same calls on a team in the same order, with the same numbers (but `bytes` of collectmem).
 * Addresses are symmetric. docs/teams.md says which buffers may be the same. Wrong calls of one member are errors on all. */
int oxshmem_host_team_sync(oxshmem_team_t team);
int oxshmem_host_barrier(oxshmem_team_t team);
int oxshmem_host_broadcastmem(oxshmem_team_t team, void *dst, const void *src, size_t bytes, int root);
int oxshmem_host_collectmem(oxshmem_team_t team, void *dst, const void *src, size_t bytes);
int oxshmem_host_fcollectmem(oxshmem_team_t team, void *dst, const void *src, size_t bytes);
int oxshmem_host_alltoallmem(oxshmem_team_t team, void *dst, const void *src, size_t bytes);
/* Strides count elements, which have 1, 2, 4, 8 or 16 bytes. */
int oxshmem_host_alltoallsmem(oxshmem_team_t team, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                              size_t n, size_t element_bytes);
int oxshmem_host_reduce(oxshmem_team_t team, oxshmem_reduce_op op, oxshmem_type type, void *dst, const void *src, size_t n);
int oxshmem_host_reducescatter(oxshmem_team_t team, oxshmem_reduce_op op, oxshmem_type type, void *dst, const void *src,
                               size_t n);
/* The same on a stream. Collectives of one team must be in sequence. */
int oxshmemx_team_sync_on_stream(oxshmem_team_t team, void *stream);
int oxshmemx_barrier_on_stream(oxshmem_team_t team, void *stream);
int oxshmemx_broadcastmem_on_stream(oxshmem_team_t team, void *dst, const void *src, size_t bytes, int root, void *stream);
int oxshmemx_collectmem_on_stream(oxshmem_team_t team, void *dst, const void *src, size_t bytes, void *stream);
int oxshmemx_fcollectmem_on_stream(oxshmem_team_t team, void *dst, const void *src, size_t bytes, void *stream);
int oxshmemx_alltoallmem_on_stream(oxshmem_team_t team, void *dst, const void *src, size_t bytes, void *stream);
int oxshmemx_alltoallsmem_on_stream(oxshmem_team_t team, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,
                                    size_t n, size_t element_bytes, void *stream);
int oxshmemx_reduce_on_stream(oxshmem_team_t team, oxshmem_reduce_op op, oxshmem_type type, void *dst, const void *src,
                              size_t n, void *stream);
int oxshmemx_reducescatter_on_stream(oxshmem_team_t team, oxshmem_reduce_op op, oxshmem_type type, void *dst, const void *src,
                                     size_t n, void *stream);

/* Operations on a stream are queued, in order with the stream's other work. Both sides must be memory that the GPU can access.
 */
int oxshmemx_putmem_on_stream(void *dst, const void *src, size_t bytes, int pe, void *stream);
int oxshmemx_getmem_on_stream(void *dst, const void *src, size_t bytes, int pe, void *stream);
int oxshmemx_putmem_signal_on_stream(void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value, int op, int pe,
                                     void *stream);
int oxshmemx_signal_op_on_stream(uint64_t *signal, uint64_t value, int op, int pe, void *stream);
int oxshmemx_signal_wait_until_on_stream(const uint64_t *signal, int cmp, uint64_t value, void *stream);
int oxshmemx_iputmem_on_stream(void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                               size_t element_bytes, int pe, void *stream);
int oxshmemx_igetmem_on_stream(void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t n,
                               size_t element_bytes, int pe, void *stream);
/* Stores the low `bytes` bytes (1, 2, 4 or 8) of `word`, which is taken when the call is made. */
int oxshmemx_put_word_on_stream(void *dst, uint64_t word, size_t bytes, int pe, void *stream);
/* Waits until each of `n` variables of the caller's own, integers of 16 to 64 bits whose oxshmem_type is `type`, compares true
 * with `value`, or, if `values` is not null, each with its own. Variables whose entry in `status` is not 0 are left out; null:
 * none are. `status` and `values` are memory that the GPU can access. */
int oxshmemx_wait_until_all_on_stream(const void *variables, size_t n, const int *status, int cmp, int type, uint64_t value,
                                      const void *values, void *stream);
int oxshmemx_quiet_on_stream(void *stream);
int oxshmemx_barrier_all_on_stream(void *stream);
int oxshmemx_sync_all_on_stream(void *stream);

/* Waits for everything on the device that this process started, as cudaDeviceSynchronize does, and returns the first error of
 * device code. No stream may be capturing. */
int oxshmem_synchronize(void);
/* Waits for one stream in the same way. */
int oxshmemx_stream_synchronize(void *stream);

/* Writes to stderr what this process's PE waits for, and the state of its queue pairs, teams and streams. SIGUSR2 makes it
 * write the same. Waits neither for other calls, of which one may be stuck, nor for kernels. */
void oxshmem_dump(void);

/* Gives a CUmodule that was loaded through the driver API the PE's state, so that its kernels can use the device API.
 * Translation units of CUDA-runtime programs need not do this: including oxshmem/oxshmem.h registers them. */
int oxshmemx_module_register(void *module);
int oxshmemx_module_unregister(void *module);

/* For kernels that the program compiles while it runs, for example by NVRTC. Compiled with OXSHMEM_DEVICE_LIBRARY defined and
 * --relocatable-device-code=true, they leave what all kernels have in common to the device library, and take a fraction of the
 * time. Links `bytes` bytes of such code (PTX, a cubin or a fat binary) with the library for the PE's GPU: *image, of
 * *image_bytes bytes, is what cuModuleLoadData takes, and free() frees it. Register the module then. */
int oxshmemx_module_link(const void *code, size_t bytes, void **image, size_t *image_bytes);
/* Returns the library itself, a fat binary, for other linkers. Null if liboxshmem was built without a CUDA compiler. */
const void *oxshmemx_device_library(size_t *bytes);

/* What oxshmem/oxshmem.h uses. `locate` writes the address and size of the unit's state symbol on the current device and
 * returns null, or returns an error text. */
typedef struct oxshmem_unit {
    uint32_t abi_version; /* of the device headers that the unit was compiled with; this and the next two fields never change */
    uint32_t state_bytes;
    const char *name;
    const char *(*locate)(void **address, size_t *bytes);
} oxshmem_unit;
void oxshmem_unit_register(const oxshmem_unit *unit);
void oxshmem_unit_unregister(const oxshmem_unit *unit);

#ifdef __cplusplus
}
#endif

/* Single values: oxshmem_host_int_p(dst, value, pe), oxshmem_host_int_g(&value, src, pe). Collectives of elements:
 * oxshmem_host_int_fcollect(team, dst, src, n) and so on. */
#define OXSHMEM_HOST_TYPED(name, T)                                                                                            \
    static inline int oxshmem_host_##name##_p(T *dst, T value, int pe) {                                                       \
        return oxshmem_host_putmem(dst, &value, sizeof(T), pe);                                                                \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_g(T *value, const T *src, int pe) {                                                \
        return oxshmem_host_getmem(value, src, sizeof(T), pe);                                                                 \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_broadcast(oxshmem_team_t team, T *dst, const T *src, size_t n, int root) {         \
        return oxshmem_host_broadcastmem(team, dst, src, n * sizeof(T), root);                                                 \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_collect(oxshmem_team_t team, T *dst, const T *src, size_t n) {                     \
        return oxshmem_host_collectmem(team, dst, src, n * sizeof(T));                                                         \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_fcollect(oxshmem_team_t team, T *dst, const T *src, size_t n) {                    \
        return oxshmem_host_fcollectmem(team, dst, src, n * sizeof(T));                                                        \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_alltoall(oxshmem_team_t team, T *dst, const T *src, size_t n) {                    \
        return oxshmem_host_alltoallmem(team, dst, src, n * sizeof(T));                                                        \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_alltoalls(oxshmem_team_t team, T *dst, const T *src, ptrdiff_t dst_stride,         \
                                                      ptrdiff_t src_stride, size_t n) {                                        \
        return oxshmem_host_alltoallsmem(team, dst, src, dst_stride, src_stride, n, sizeof(T));                                \
    }
OXSHMEM_FOR_EACH_RMA_TYPE(OXSHMEM_HOST_TYPED)
#undef OXSHMEM_HOST_TYPED

/* Reductions: oxshmem_host_float_sum_reduce(team, dst, src, n), oxshmem_host_float_sum_reducescatter. */
#define OXSHMEM_HOST_REDUCE(name, T, element, op, OP)                                                                          \
    static inline int oxshmem_host_##name##_##op##_reduce(oxshmem_team_t team, T *dst, const T *src, size_t n) {               \
        return oxshmem_host_reduce(team, OXSHMEM_REDUCE_##OP, element, dst, src, n);                                           \
    }                                                                                                                          \
    static inline int oxshmem_host_##name##_##op##_reducescatter(oxshmem_team_t team, T *dst, const T *src, size_t n) {        \
        return oxshmem_host_reducescatter(team, OXSHMEM_REDUCE_##OP, element, dst, src, n);                                    \
    }
#define OXSHMEM_HOST_ARITHMETIC(name, T, element)                                                                              \
    OXSHMEM_HOST_REDUCE(name, T, element, min, MIN)                                                                            \
    OXSHMEM_HOST_REDUCE(name, T, element, max, MAX)                                                                            \
    OXSHMEM_HOST_REDUCE(name, T, element, sum, SUM)                                                                            \
    OXSHMEM_HOST_REDUCE(name, T, element, prod, PROD)
#define OXSHMEM_HOST_INTEGER(name, T)                                                                                          \
    OXSHMEM_HOST_ARITHMETIC(name, T, OXSHMEM_TYPE_OF_INTEGER(T))                                                               \
    OXSHMEM_HOST_REDUCE(name, T, OXSHMEM_TYPE_OF_INTEGER(T), and, AND)                                                         \
    OXSHMEM_HOST_REDUCE(name, T, OXSHMEM_TYPE_OF_INTEGER(T), or, OR)                                                           \
    OXSHMEM_HOST_REDUCE(name, T, OXSHMEM_TYPE_OF_INTEGER(T), xor, XOR)
#ifdef __cplusplus
#define OXSHMEM_HOST_CAST(T, value) static_cast<T>(value)
#else
#define OXSHMEM_HOST_CAST(T, value) ((T)(value))
#endif
#define OXSHMEM_TYPE_OF_INTEGER(T)                                                                                             \
    OXSHMEM_HOST_CAST(oxshmem_type,                                                                                            \
                      (OXSHMEM_HOST_CAST(T, -1) < OXSHMEM_HOST_CAST(T, 1) ? OXSHMEM_TYPE_INT8 : OXSHMEM_TYPE_UINT8) +          \
                          (sizeof(T) == 8   ? 3                                                                                \
                           : sizeof(T) == 4 ? 2                                                                                \
                           : sizeof(T) == 2 ? 1                                                                                \
                                            : 0))
OXSHMEM_HOST_ARITHMETIC(float, float, OXSHMEM_TYPE_FLOAT)
OXSHMEM_HOST_ARITHMETIC(double, double, OXSHMEM_TYPE_DOUBLE)
OXSHMEM_HOST_INTEGER(char, char)
OXSHMEM_HOST_INTEGER(schar, signed char)
OXSHMEM_HOST_INTEGER(short, short)
OXSHMEM_HOST_INTEGER(int, int)
OXSHMEM_HOST_INTEGER(long, long)
OXSHMEM_HOST_INTEGER(longlong, long long)
OXSHMEM_HOST_INTEGER(uchar, unsigned char)
OXSHMEM_HOST_INTEGER(ushort, unsigned short)
OXSHMEM_HOST_INTEGER(uint, unsigned int)
OXSHMEM_HOST_INTEGER(ulong, unsigned long)
OXSHMEM_HOST_INTEGER(ulonglong, unsigned long long)
OXSHMEM_HOST_INTEGER(int8, int8_t)
OXSHMEM_HOST_INTEGER(int16, int16_t)
OXSHMEM_HOST_INTEGER(int32, int32_t)
OXSHMEM_HOST_INTEGER(int64, int64_t)
OXSHMEM_HOST_INTEGER(uint8, uint8_t)
OXSHMEM_HOST_INTEGER(uint16, uint16_t)
OXSHMEM_HOST_INTEGER(uint32, uint32_t)
OXSHMEM_HOST_INTEGER(uint64, uint64_t)
OXSHMEM_HOST_INTEGER(size, size_t)
OXSHMEM_HOST_INTEGER(ptrdiff, ptrdiff_t)
#undef OXSHMEM_HOST_REDUCE
#undef OXSHMEM_HOST_ARITHMETIC
#undef OXSHMEM_HOST_INTEGER
#undef OXSHMEM_TYPE_OF_INTEGER
#undef OXSHMEM_HOST_CAST

#endif
