/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The host API from C (and, compiled as such, from C++): every function, in a ring of PEs. */
#include <oxshmem/host.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(int holds, int line, const char *what) {
    if (!holds) {
        fprintf(stderr, "line %d: %s (%s)\n", line, what, oxshmem_error());
        failures++;
    }
}
#define EXPECT(what) expect(what, __LINE__, #what)
#define WORKS(call) expect((call) == OXSHMEM_SUCCESS, __LINE__, #call)
/* The call is refused with this status, and the text says this. */
#define REFUSED(call, status, text) expect((call) == (status) && strstr(oxshmem_error(), text), __LINE__, #call)

enum { WORDS = 1000, BIG = 3 << 20 };

static void without_a_pe(void) {
    int major = -1, minor = -1, patch = -1;
    oxshmem_version(&major, &minor, &patch);
    EXPECT(major == OXSHMEM_MAJOR_VERSION && minor == OXSHMEM_MINOR_VERSION && patch == OXSHMEM_PATCH_VERSION);
    oxshmem_version(NULL, NULL, NULL);
    EXPECT(oxshmem_host_my_pe() == -1 && oxshmem_host_n_pes() == -1 && oxshmem_gpu() == -1);
    EXPECT(oxshmem_malloc(8) == NULL && strstr(oxshmem_error(), "oxshmem_init"));
    REFUSED(oxshmem_host_barrier_all(), OXSHMEM_ERROR_NOT_INITIALIZED, "there is no PE");
    REFUSED(oxshmemx_quiet_on_stream(NULL), OXSHMEM_ERROR_NOT_INITIALIZED, "there is no PE");
    REFUSED(oxshmem_finalize(), OXSHMEM_ERROR_NOT_INITIALIZED, "there is no PE");
    EXPECT(oxshmem_host_team_my_pe(OXSHMEM_TEAM_WORLD) == -1 && strstr(oxshmem_error(), "oxshmem_init"));
    REFUSED(oxshmem_team_destroy(5), OXSHMEM_ERROR_NOT_INITIALIZED, "there is no PE");
    REFUSED(oxshmem_get_uniqueid(NULL), OXSHMEM_ERROR_INVALID, "null");
    REFUSED(oxshmem_init_with_uniqueid(NULL, 0, 1), OXSHMEM_ERROR_INVALID, "null");
}

/* One context with each choice of cards. What the job refuses is an error of the transport at the first PE that refuses it,
 * and an error of contexts that names this PE at the others. */
static void rails(int pushes, int by_proxy) {
    const char *refused[] = {NULL, pushes && by_proxy ? "all contexts share the queue pairs" : NULL,
                             pushes ? NULL : "contexts cannot push"};
    const int status = oxshmem_host_my_pe() == 0 ? OXSHMEM_ERROR_TRANSPORT : OXSHMEM_ERROR_CONTEXT;
    for (int choice = OXSHMEMX_CTX_RAILS_AUTO; choice <= OXSHMEMX_CTX_RAILS_PUSH; ++choice) {
        const oxshmemx_ctx_config_t config = {1, OXSHMEMX_CTX_WARP, 0, -1, choice};
        oxshmem_ctx_t one;
        if (refused[choice]) {
            REFUSED(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, &one), status, refused[choice]);
        } else {
            WORKS(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, &one));
            WORKS(oxshmem_ctx_destroy(one));
        }
    }
}

/* Every call on contexts. */
static void contexts(void) {
    oxshmem_ctx_t one, team, several[3];
    const oxshmem_ctx_t *array = NULL;
    WORKS(oxshmem_ctx_create(0, &one));
    WORKS(oxshmem_team_create_ctx(OXSHMEM_TEAM_WORLD, OXSHMEM_CTX_SERIALIZED | OXSHMEM_CTX_NOSTORE, &team));
    oxshmemx_ctx_config_t config = {3, OXSHMEMX_CTX_BLOCK, 256, -1, OXSHMEMX_CTX_RAILS_AUTO};
    WORKS(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, several));
    WORKS(oxshmemx_ctx_device_array(several[2], &array));
    EXPECT(array != NULL);
    REFUSED(oxshmem_ctx_create(8, &one), OXSHMEM_ERROR_INVALID, "options 0x8 of a context");
    REFUSED(oxshmem_ctx_create(0, NULL), OXSHMEM_ERROR_INVALID, "is null");
    REFUSED(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, NULL, several), OXSHMEM_ERROR_INVALID, "config is null");
    config.sharing = 4;
    REFUSED(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, several), OXSHMEM_ERROR_INVALID, "sharing 4");
    config.sharing = OXSHMEMX_CTX_WARP, config.rails = 3;
    REFUSED(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, several), OXSHMEM_ERROR_INVALID, "rails 3");
    config.rails = OXSHMEMX_CTX_RAILS_AUTO, config.count = 0;
    REFUSED(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, several), OXSHMEM_ERROR_CONTEXT, "0 contexts");
    config.count = 1, config.depth = -5;
    REFUSED(oxshmemx_team_create_ctxs(OXSHMEM_TEAM_WORLD, &config, several), OXSHMEM_ERROR_CONTEXT, "a send queue of 0");
    rails(0, 0);
    WORKS(oxshmem_ctx_destroy(one));
    WORKS(oxshmem_ctx_destroy(team));
    WORKS(oxshmem_ctx_destroy(several[1]));
    REFUSED(oxshmem_ctx_destroy(several[0]), OXSHMEM_ERROR_CONTEXT, "may have been destroyed");
    REFUSED(oxshmemx_ctx_device_array(one, &array), OXSHMEM_ERROR_CONTEXT, "no contexts of number");
}

/* Every call on aggregating contexts. */
static void aggregates(int n) {
    const oxshmem_team_t world = OXSHMEM_TEAM_WORLD;
    oxshmemx_aggregate_config_t config = {1024, 1000};
    oxshmemx_aggregate_t one;
    size_t bytes = 0, by_default = 0;
    uint64_t *operations = (uint64_t *)calloc((size_t)n, sizeof(*operations));
    EXPECT(operations != NULL);
    WORKS(oxshmemx_aggregate_bytes(world, &config, &bytes));
    WORKS(oxshmemx_aggregate_bytes(world, NULL, &by_default));
    EXPECT(bytes > 0 && bytes < by_default);
    void *memory = oxshmem_malloc(bytes);
    EXPECT(memory != NULL);
    REFUSED(oxshmemx_team_create_aggregate(world, &config, memory, 8, &one), OXSHMEM_ERROR_CONTEXT, "1 words of symmetric");
    REFUSED(oxshmemx_team_create_aggregate(world, &config, memory, bytes, NULL), OXSHMEM_ERROR_INVALID, "is null");
    config.age_us = -2;
    REFUSED(oxshmemx_team_create_aggregate(world, &config, memory, bytes, &one), OXSHMEM_ERROR_INVALID, "age_us is -2");
    config.age_us = -1, config.segment = 3;
    REFUSED(oxshmemx_aggregate_bytes(world, &config, &bytes), OXSHMEM_ERROR_CONTEXT, "segment size 3 is invalid");
    config.segment = 1024;
    WORKS(oxshmemx_team_create_aggregate(world, &config, memory, bytes, &one));
    operations[0] = 7;
    WORKS(oxshmemx_aggregate_unacknowledged(one, operations));
    EXPECT(operations[0] == 0);
    REFUSED(oxshmemx_aggregate_unacknowledged(one, NULL), OXSHMEM_ERROR_INVALID, "is null");
    WORKS(oxshmemx_aggregate_destroy(one));
    REFUSED(oxshmemx_aggregate_destroy(one), OXSHMEM_ERROR_CONTEXT, "no aggregating context of number");
    oxshmem_free(memory);
    free(operations);
}

/* Every call on teams. */
static void teams(int me, int n) {
    const oxshmem_team_t world = OXSHMEM_TEAM_WORLD;
    EXPECT(oxshmem_host_team_my_pe(world) == me && oxshmem_host_team_n_pes(world) == n);
    EXPECT(oxshmem_host_team_n_pes(OXSHMEM_TEAM_NODE) == n);
    EXPECT(oxshmem_host_team_translate_pe(OXSHMEM_TEAM_SHARED, oxshmem_host_team_my_pe(OXSHMEM_TEAM_SHARED), world) == me);
    char text[1000], little[4] = "xyz";
    WORKS(oxshmem_team_algorithms(world, text, sizeof(text)));
    EXPECT(strstr(text, "broadcast=") == text && strstr(text, ",reducescatter="));
    WORKS(oxshmem_team_algorithms(world, little, sizeof(little)));
    EXPECT(strcmp(little, "bro") == 0);
    WORKS(oxshmem_team_algorithms(world, NULL, 0));

    /* All but PE 0, or PE 0 alone. */
    oxshmem_team_t rest = 77, x = 77, y = 77, backwards = 77;
    const int first = n > 1 ? 1 : 0;
    WORKS(oxshmem_team_split_strided(world, first, 1, n - first, &rest));
    EXPECT((rest == OXSHMEM_TEAM_INVALID) == (me < first));
    if (rest != OXSHMEM_TEAM_INVALID) {
        EXPECT(oxshmem_host_team_my_pe(rest) == me - first && oxshmem_host_team_n_pes(rest) == n - first);
        EXPECT(oxshmem_host_team_translate_pe(rest, 0, world) == first);
        EXPECT(n == 1 || oxshmem_host_team_translate_pe(world, 0, rest) == -1);
        WORKS(oxshmem_host_team_sync(rest));
        WORKS(oxshmem_host_barrier(rest));
        WORKS(oxshmem_team_destroy(rest));
    }
    /* Each names its own part: itself alone. */
    WORKS(oxshmemx_team_split_own(world, me, 1, 1, &rest));
    EXPECT(oxshmem_host_team_n_pes(rest) == 1 && oxshmem_host_team_translate_pe(rest, 0, world) == me);
    WORKS(oxshmem_team_destroy(rest));
    WORKS(oxshmem_team_destroy(OXSHMEM_TEAM_INVALID));
    WORKS(oxshmem_team_split_2d(world, 2, &x, &y));
    EXPECT(oxshmem_host_team_my_pe(x) == me % 2 && oxshmem_host_team_my_pe(y) == me / 2);

    /* PE 0 gets an id and gives it to the others. */
    oxshmem_team_uniqueid *id = (oxshmem_team_uniqueid *)oxshmem_malloc(sizeof(*id));
    if (me == 0) {
        WORKS(oxshmem_team_get_uniqueid(id));
    }
    WORKS(oxshmem_host_broadcastmem(world, id, id, sizeof(*id), 0));
    WORKS(oxshmem_team_init(id, n - 1 - me, n, &backwards));
    EXPECT(oxshmem_host_team_my_pe(backwards) == n - 1 - me && oxshmem_host_team_translate_pe(backwards, 0, world) == n - 1);

    enum { N = 100 };
    int *src = (int *)oxshmem_malloc(3 * N * (size_t)n * sizeof(int)),
        *dst = (int *)oxshmem_malloc(3 * N * (size_t)n * sizeof(int));
    for (int i = 0; i < 3 * N * n; ++i) {
        src[i] = me * 100000 + i;
    }
    WORKS(oxshmem_host_int_fcollect(backwards, dst, src, N));
    WORKS(oxshmem_host_sync_all());
    for (int pe = 0; pe < n; ++pe) {
        EXPECT(dst[pe * N] == (n - 1 - pe) * 100000 && dst[pe * N + N - 1] == (n - 1 - pe) * 100000 + N - 1);
    }
    WORKS(oxshmem_host_sync_all());
    WORKS(oxshmem_host_int_collect(world, dst, src, (size_t)me + 1));
    EXPECT(dst[0] == 0 && dst[n * (n + 1) / 2 - 1] == (n - 1) * 100000 + n - 1);
    WORKS(oxshmem_host_sync_all());
    WORKS(oxshmem_host_int_alltoall(world, dst, src, N));
    EXPECT(dst[0] == me * N && dst[(n - 1) * N] == (n - 1) * 100000 + me * N);
    WORKS(oxshmem_host_sync_all());
    WORKS(oxshmem_host_int_alltoalls(world, dst, src, 3, 2, N));
    EXPECT(dst[0] == 2 * me * N && dst[3 * (n - 1) * N + 3] == (n - 1) * 100000 + 2 * (me * N + 1));
    WORKS(oxshmem_host_sync_all());
    WORKS(oxshmem_host_int_sum_reduce(world, dst, src, N));
    EXPECT(dst[0] == n * (n - 1) / 2 * 100000 && dst[1] == dst[0] + n);
    WORKS(oxshmem_host_sync_all());
    WORKS(oxshmem_host_uint_max_reducescatter(world, (unsigned *)dst, (unsigned *)src, N));
    EXPECT(dst[1] == (n - 1) * 100000 + me * N + 1);
    WORKS(oxshmem_host_sync_all());
    float *floats = (float *)src;
    floats[0] = me + 0.5F;
    WORKS(oxshmem_host_float_min_reduce(backwards, floats, floats, 1));
    EXPECT(floats[0] == 0.5F);
    WORKS(oxshmem_host_sync_all());
    signed char *bytes = (signed char *)src;
    bytes[0] = (signed char)(me == 0 ? -1 : 0x7f);
    WORKS(oxshmem_host_schar_and_reduce(world, bytes, bytes, 1));
    EXPECT(bytes[0] == (n == 1 ? -1 : 0x7f));
    WORKS(oxshmem_host_sync_all());

    /* On a stream. */
    src[0] = me + 1;
    WORKS(oxshmemx_team_sync_on_stream(world, NULL));
    WORKS(oxshmemx_reduce_on_stream(world, OXSHMEM_REDUCE_SUM, OXSHMEM_TYPE_INT32, src, src, 1, NULL));
    WORKS(oxshmemx_fcollectmem_on_stream(world, dst, src, sizeof(int), NULL));
    WORKS(oxshmemx_broadcastmem_on_stream(world, dst + n, dst, sizeof(int), n - 1, NULL));
    WORKS(oxshmemx_collectmem_on_stream(world, dst + n + 1, dst, sizeof(int), NULL));
    WORKS(oxshmemx_alltoallmem_on_stream(world, dst + 3 * n, dst, sizeof(int), NULL));
    WORKS(oxshmemx_alltoallsmem_on_stream(world, dst + 4 * n, dst, 1, 1, 1, sizeof(int), NULL));
    WORKS(oxshmemx_reducescatter_on_stream(world, OXSHMEM_REDUCE_MAX, OXSHMEM_TYPE_INT32, dst + 5 * n, dst, 1, NULL));
    WORKS(oxshmemx_barrier_on_stream(world, NULL));
    WORKS(oxshmemx_stream_synchronize(NULL));
    for (int at = 0; at <= 5 * n; ++at) {
        EXPECT((at > 2 * n && at < 3 * n) || dst[at] == n * (n + 1) / 2);
    }

    /* What is refused, on all. */
    REFUSED(oxshmem_host_int_broadcast(world, dst, src, 1, n), OXSHMEM_ERROR_FAULT, "broadcast");
    REFUSED(oxshmem_host_int_broadcast(world, dst, src, 1, -1), OXSHMEM_ERROR_FAULT, "root -1 is not a member");
    REFUSED(oxshmem_host_fcollectmem(world, text, src, 4), OXSHMEM_ERROR_HEAP, "outside the symmetric heap");
    REFUSED(oxshmem_host_reduce(world, (oxshmem_reduce_op)9, OXSHMEM_TYPE_INT8, dst, src, 1), OXSHMEM_ERROR_INVALID,
            "operator 9");
    REFUSED(oxshmem_host_reduce(world, OXSHMEM_REDUCE_SUM, (oxshmem_type)15, dst, src, 1), OXSHMEM_ERROR_INVALID, "type 15");
    REFUSED(oxshmem_host_reduce(world, OXSHMEM_REDUCE_AND, OXSHMEM_TYPE_FLOAT, dst, src, 1), OXSHMEM_ERROR_TEAM,
            "And is not defined for f32");
    REFUSED(oxshmem_host_alltoallsmem(world, dst, src, 1, 1, 1, 3), OXSHMEM_ERROR_INVALID, "not 3");
    REFUSED(oxshmem_host_alltoallsmem(world, dst, src, -1, 1, 1, 4), OXSHMEM_ERROR_INVALID, "dst_stride is -1");
    /* By one member alone: the others hear of it at once, and the next call is good. */
    int other = n == 1 ? OXSHMEM_ERROR_INVALID : OXSHMEM_ERROR_FAULT, is_odd = me == n - 1;
    const char *why = is_odd ? "" : "reduce";
    REFUSED(oxshmem_host_reduce(world, is_odd ? (oxshmem_reduce_op)9 : OXSHMEM_REDUCE_SUM, OXSHMEM_TYPE_INT32, dst, src, 1),
            is_odd ? OXSHMEM_ERROR_INVALID : other, is_odd ? "operator 9" : why);
    REFUSED(oxshmem_host_reducescatter(world, OXSHMEM_REDUCE_SUM, is_odd ? (oxshmem_type)15 : OXSHMEM_TYPE_INT32, dst, src, 1),
            is_odd ? OXSHMEM_ERROR_INVALID : other, is_odd ? "type 15" : why);
    REFUSED(oxshmem_host_alltoallsmem(world, dst, src, 1, is_odd ? -1 : 1, 1, 4), is_odd ? OXSHMEM_ERROR_INVALID : other,
            is_odd ? "src_stride is -1" : "alltoalls");
    WORKS(oxshmem_host_int_sum_reduce(world, dst, src, 1));
    /* No elements may be anywhere. */
    WORKS(oxshmem_host_float_sum_reduce(world, NULL, NULL, 0));
    WORKS(oxshmem_host_alltoallmem(world, NULL, NULL, 0));
    WORKS(oxshmem_host_broadcastmem(world, is_odd ? NULL : dst, src, 0, 0));
    REFUSED(oxshmem_team_split_strided(world, 0, 1, n + 1, &rest), OXSHMEM_ERROR_TEAM, "last member");
    REFUSED(oxshmem_team_split_strided(world, -1, 1, 1, &rest), OXSHMEM_ERROR_INVALID, "start is -1");
    REFUSED(oxshmem_team_split_strided(world, 0, 1, 1, NULL), OXSHMEM_ERROR_INVALID, "team is null");
    REFUSED(oxshmemx_team_split_own(world, 0, 1, -1, &rest), OXSHMEM_ERROR_INVALID, "size is -1");
    REFUSED(oxshmem_team_split_2d(world, 1, &x, NULL), OXSHMEM_ERROR_INVALID, "y is null");
    REFUSED(oxshmem_team_init(NULL, 0, 1, &rest), OXSHMEM_ERROR_INVALID, "id is null");
    REFUSED(oxshmem_team_destroy(world), OXSHMEM_ERROR_TEAM, "the world team cannot be destroyed");
    WORKS(oxshmem_team_destroy(backwards));
    REFUSED(oxshmem_team_destroy(backwards), OXSHMEM_ERROR_TEAM, "not the handle of a team");
    REFUSED(oxshmem_host_team_sync(backwards), OXSHMEM_ERROR_TEAM, "not the handle of a team");
    EXPECT(oxshmem_host_team_my_pe(backwards) == -1);
    WORKS(oxshmem_team_destroy(x));
    WORKS(oxshmem_team_destroy(y));
    WORKS(oxshmem_free(src));
    WORKS(oxshmem_free(dst));
    WORKS(oxshmem_free(id));
}

/* A pointer of the job before, if there was one: its memory is gone. */
static char *earlier;

/* Pointers that are not memory of a live allocation are refused, with the allocation. `inbox` is one of WORDS integers. */
static void stale(int *inbox, int next) {
    char *freed = (char *)oxshmem_malloc(96);
    WORKS(oxshmem_free(freed));
    const char *of_freed = "the allocation of 96 bytes";
    REFUSED(oxshmem_host_putmem(freed, inbox, 8, next), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmem_host_putmem(inbox, freed, 8, next), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmem_host_getmem(inbox, freed, 8, next), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmem_host_getmem(freed, inbox, 8, next), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmem_host_signal_op((uint64_t *)freed, 1, OXSHMEM_SIGNAL_SET, next), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmem_host_signal_wait_until((uint64_t *)freed, OXSHMEM_CMP_EQ, 1, NULL), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmemx_putmem_on_stream(freed, inbox, 8, next, NULL), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmemx_getmem_on_stream(freed, inbox, 8, next, NULL), OXSHMEM_ERROR_HEAP, of_freed);
    REFUSED(oxshmem_free(freed), OXSHMEM_ERROR_HEAP, "which was freed");

    /* No memory, and arguments that no memory makes valid. */
    EXPECT(oxshmem_malloc(0) == NULL && oxshmem_calloc(0, 8) == NULL && oxshmem_align(256, 0) == NULL);
    REFUSED(oxshmem_host_iputmem(inbox, inbox, 0, 1, 2, 4, next), OXSHMEM_ERROR_INVALID, "stride 0");
    REFUSED(oxshmem_host_iputmem(inbox, inbox, 1, 1, 2, 3, next), OXSHMEM_ERROR_INVALID, "element size 3");
    REFUSED(oxshmemx_put_word_on_stream(inbox, 1, 3, next, NULL), OXSHMEM_ERROR_INVALID, "a word of 3 bytes");
    int here = 7;
    WORKS(oxshmem_host_iputmem(inbox + 1, &here, PTRDIFF_MAX, PTRDIFF_MAX, 1, sizeof here, oxshmem_host_my_pe()));
    WORKS(oxshmem_host_igetmem(&here, inbox + 1, PTRDIFF_MAX, PTRDIFF_MAX, 1, sizeof here, oxshmem_host_my_pe()));

    const char *beyond = "reach beyond the allocation of 4000 bytes";
    REFUSED(oxshmem_host_putmem(inbox + WORDS - 1, inbox, 8, next), OXSHMEM_ERROR_HEAP, beyond);
    REFUSED(oxshmem_host_putmem(inbox, inbox + WORDS - 1, 8, next), OXSHMEM_ERROR_HEAP, beyond);
    REFUSED(oxshmem_host_getmem(inbox, inbox + 1, (size_t)-8, next), OXSHMEM_ERROR_HEAP, beyond);

    if (earlier) {
        const char *gone = "a PE that has been finalized, in the allocation of 72 bytes";
        REFUSED(oxshmem_host_putmem(earlier, inbox, 8, next), OXSHMEM_ERROR_HEAP, gone);
        REFUSED(oxshmem_host_putmem(inbox, earlier, 8, next), OXSHMEM_ERROR_HEAP, gone);
        REFUSED(oxshmem_host_getmem(earlier, inbox, 8, next), OXSHMEM_ERROR_HEAP, gone);
        REFUSED(oxshmem_free(earlier), OXSHMEM_ERROR_HEAP, gone);
    }
    earlier = (char *)oxshmem_malloc(72);
    EXPECT(earlier != NULL);
    WORKS(oxshmem_host_barrier_all());
}

/* What was counted of calls, by peer and as JSON. */
static void counters(int me, int n_pes) {
    const int peer = (me + 1) % n_pes;
    oxshmem_traffic before, after;
    uint64_t word = 7;
    uint64_t *inbox = (uint64_t *)oxshmem_malloc(sizeof(word));
    EXPECT(inbox != NULL);
    WORKS(oxshmem_peer_counters(peer, &before));
    WORKS(oxshmem_host_putmem(inbox, &word, sizeof(word), peer));
    WORKS(oxshmem_host_barrier_all());
    WORKS(oxshmem_peer_counters(peer, &after));
    EXPECT(after.operations == before.operations + 1 && after.bytes == before.bytes + sizeof(word));
    if (peer == me || oxshmem_host_ptr(inbox, peer) != NULL) {
        EXPECT(after.messages == OXSHMEM_NOT_COUNTED && after.doorbells == OXSHMEM_NOT_COUNTED);
    } else {
        EXPECT(after.messages > before.messages && after.message_bytes >= before.message_bytes + sizeof(word));
        EXPECT(after.doorbells > before.doorbells && after.errors == 0);
    }
    char *json = NULL;
    WORKS(oxshmem_counters_json(&json));
    EXPECT(json != NULL && json[0] == '{' && strstr(json, "\"peers\"") != NULL && strstr(json, "\"barrier\"") != NULL);
    free(json);
    REFUSED(oxshmem_peer_counters(n_pes, &after), OXSHMEM_ERROR_INVALID, "does not exist");
    REFUSED(oxshmem_peer_counters(peer, NULL), OXSHMEM_ERROR_INVALID, "traffic is null");
    REFUSED(oxshmem_counters_json(NULL), OXSHMEM_ERROR_INVALID, "json is null");
    WORKS(oxshmem_free(inbox));
}

static void job(void) {
    const int me = oxshmem_host_my_pe(), n = oxshmem_host_n_pes();
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    EXPECT(me >= 0 && me < n);
    EXPECT(oxshmem_gpu() == -1);
    REFUSED(oxshmem_init(), OXSHMEM_ERROR_INVALID, "already has a PE");
    contexts();
    aggregates(oxshmem_host_n_pes());
    teams(me, n);
    counters(me, n);

    /* The device library is for GPUs. */
    void *image = NULL;
    size_t bytes = 1;
    EXPECT((oxshmemx_device_library(&bytes) == NULL) == (bytes == 0) &&
           oxshmemx_device_library(NULL) == oxshmemx_device_library(&bytes));
    REFUSED(oxshmemx_module_link("code", 4, &image, &bytes), OXSHMEM_ERROR_DEVICE, "OXSHMEM_DEVICE=cuda");
    REFUSED(oxshmemx_module_link(NULL, 4, &image, &bytes), OXSHMEM_ERROR_INVALID, "code is null");
    REFUSED(oxshmemx_module_link("code", 4, NULL, &bytes), OXSHMEM_ERROR_INVALID, "image is null");

    int *inbox = (int *)oxshmem_malloc(WORDS * sizeof(int));
    unsigned char *big = (unsigned char *)oxshmem_align(4096, BIG);
    uint64_t *signals = (uint64_t *)oxshmem_calloc(4, sizeof(uint64_t));
    EXPECT(inbox && big && signals);
    if (failures != 0) {
        return;
    }
    EXPECT((uintptr_t)big % 4096 == 0 && signals[3] == 0);
    EXPECT(oxshmem_align(3, 8) == NULL && strstr(oxshmem_error(), "alignment 3"));
    EXPECT(oxshmem_host_ptr(inbox, me) == inbox);
    EXPECT(oxshmem_host_ptr(&failures, me) == NULL && oxshmem_host_ptr(inbox, n) == NULL);

    /* From memory of the host, and from the heap. */
    int data[WORDS], back[WORDS];
    for (int i = 0; i < WORDS; ++i) {
        data[i] = me * WORDS + i;
    }
    WORKS(oxshmem_host_putmem(inbox, data, sizeof(data), next));
    WORKS(oxshmem_host_barrier_all());
    EXPECT(inbox[0] == previous * WORDS && inbox[WORDS - 1] == previous * WORDS + WORDS - 1);
    WORKS(oxshmem_host_getmem(back, inbox, sizeof(back), next));
    EXPECT(memcmp(back, data, sizeof(data)) == 0);
    WORKS(oxshmem_host_barrier_all());
    WORKS(oxshmem_host_putmem(inbox, inbox + 1, 4, next));
    WORKS(oxshmem_host_quiet());
    WORKS(oxshmem_host_fence());
    WORKS(oxshmem_host_sync_all());
    EXPECT(inbox[0] == ((previous + n - 1) % n) * WORDS + 1);

    /* Longer than what the library buffers, followed by a signal. */
    unsigned char *source = (unsigned char *)malloc(BIG);
    memset(source, me + 1, BIG);
    WORKS(oxshmem_host_putmem_signal(big, source, BIG, signals, 5, OXSHMEM_SIGNAL_SET, next));
    uint64_t seen = 0;
    WORKS(oxshmem_host_signal_wait_until(signals, OXSHMEM_CMP_GE, 5, &seen));
    EXPECT(seen == 5 && big[0] == previous + 1 && big[BIG - 1] == previous + 1);
    WORKS(oxshmem_host_sync_all()); /* Every PE has seen 5. */
    WORKS(oxshmem_host_signal_op(signals, 2, OXSHMEM_SIGNAL_ADD, next));
    WORKS(oxshmem_host_signal_wait_until(signals, OXSHMEM_CMP_NE, 5, NULL));
    WORKS(oxshmem_host_signal_fetch(signals, &seen));
    EXPECT(seen == 7);
    free(source);
    WORKS(oxshmem_host_barrier_all());

    double value = 0;
    double *number = (double *)inbox;
    WORKS(oxshmem_host_double_p(number, me + 0.5, next));
    WORKS(oxshmem_host_barrier_all());
    WORKS(oxshmem_host_double_g(&value, number, next));
    EXPECT(value == me + 0.5 && *number == previous + 0.5);
    WORKS(oxshmem_host_barrier_all());

    /* On a stream. */
    inbox[500] = me;
    WORKS(oxshmemx_putmem_on_stream(inbox, inbox + 500, 4, next, NULL));
    WORKS(oxshmemx_signal_op_on_stream(signals + 1, 3, OXSHMEM_SIGNAL_SET, next, NULL));
    WORKS(oxshmemx_signal_wait_until_on_stream(signals + 1, OXSHMEM_CMP_EQ, 3, NULL));
    WORKS(oxshmemx_quiet_on_stream(NULL));
    WORKS(oxshmemx_getmem_on_stream(inbox + 501, inbox, 4, next, NULL));
    WORKS(oxshmemx_putmem_signal_on_stream(inbox + 1, inbox + 500, 4, signals + 2, 9, OXSHMEM_SIGNAL_ADD, next, NULL));
    WORKS(oxshmemx_barrier_all_on_stream(NULL));
    WORKS(oxshmemx_sync_all_on_stream(NULL));
    WORKS(oxshmemx_stream_synchronize(NULL));
    EXPECT(inbox[0] == previous && inbox[1] == previous && inbox[501] == me && signals[2] == 9);

    /* What is refused. */
    const char *no_pe = "does not exist";
    REFUSED(oxshmem_host_putmem(inbox, data, 4, n), OXSHMEM_ERROR_INVALID, no_pe);
    REFUSED(oxshmem_host_getmem(data, inbox, 4, -1), OXSHMEM_ERROR_INVALID, no_pe);
    REFUSED(oxshmem_host_putmem(inbox, NULL, 4, 0), OXSHMEM_ERROR_INVALID, "src is null");
    REFUSED(oxshmem_host_getmem(NULL, inbox, 4, 0), OXSHMEM_ERROR_INVALID, "dst is null");
    WORKS(oxshmem_host_putmem(inbox, NULL, 0, next));
    REFUSED(oxshmem_host_putmem(data, data, 4, next), OXSHMEM_ERROR_HEAP, "outside the symmetric heap");
    REFUSED(oxshmem_host_signal_op(signals, 1, 3, next), OXSHMEM_ERROR_INVALID, "signal operator 3");
    REFUSED(oxshmem_host_signal_wait_until(signals, 6, 1, NULL), OXSHMEM_ERROR_INVALID, "comparison 6");
    REFUSED(oxshmem_host_signal_wait_until((uint64_t *)data, OXSHMEM_CMP_EQ, 1, NULL), OXSHMEM_ERROR_HEAP,
            "outside the symmetric heap");
    REFUSED(oxshmem_host_signal_wait_until((uint64_t *)((char *)signals + 1), OXSHMEM_CMP_EQ, 1, NULL), OXSHMEM_ERROR_HEAP,
            "not aligned to 8 bytes");
    REFUSED(oxshmem_host_signal_fetch(signals, NULL), OXSHMEM_ERROR_INVALID, "value is null");
    REFUSED(oxshmemx_module_register(NULL), OXSHMEM_ERROR_INVALID, "null");
    REFUSED(oxshmemx_module_register(&failures), OXSHMEM_ERROR_DEVICE, "OXSHMEM_DEVICE=cuda");
    REFUSED(oxshmemx_quiet_on_stream(&failures), OXSHMEM_ERROR_DEVICE, "OXSHMEM_DEVICE=cuda");
    /* A wait that ends with its deadline; the PE goes on. */
    REFUSED(oxshmem_host_signal_wait_until(signals + 3, OXSHMEM_CMP_EQ, 1, NULL), OXSHMEM_ERROR_FAULT, "signal_wait_until");
    WORKS(oxshmemx_signal_wait_until_on_stream(signals + 3, OXSHMEM_CMP_EQ, 1, NULL));
    REFUSED(oxshmem_synchronize(), OXSHMEM_ERROR_FAULT, "signal_wait_until");
    WORKS(oxshmem_synchronize());
    oxshmem_dump();

    WORKS(oxshmem_host_barrier_all());
    REFUSED(oxshmem_free(inbox + 1), OXSHMEM_ERROR_HEAP, "only the whole allocation");
    stale(inbox, next);
    WORKS(oxshmem_free(NULL));
    WORKS(oxshmem_free(inbox));
    WORKS(oxshmem_free(big));
    WORKS(oxshmem_free(signals));
}

/* What the library has allocated, by kind. */
static void memory(void) {
    uint64_t device = 0, host = 0, before, all = 0;
    for (int kind = 0; kind < OXSHMEM_MEMORY_KINDS; ++kind) {
        WORKS(oxshmem_memory(kind, &device, &host));
        all += device + host;
    }
    EXPECT(all > 0);
    WORKS(oxshmem_memory(OXSHMEM_MEMORY_STAGING, &device, NULL));
    EXPECT(device == 1 << 20);
    WORKS(oxshmem_memory(OXSHMEM_MEMORY_HEAP, &before, NULL));
    void *more = oxshmem_malloc((size_t)before + 1);
    EXPECT(more != NULL);
    WORKS(oxshmem_memory(OXSHMEM_MEMORY_HEAP, &device, &host));
    EXPECT(device > before && host == 0);
    WORKS(oxshmem_free(more));
    REFUSED(oxshmem_memory(OXSHMEM_MEMORY_KINDS, &device, &host), OXSHMEM_ERROR_INVALID, "memory kind 10");
    REFUSED(oxshmem_memory(-1, &device, &host), OXSHMEM_ERROR_INVALID, "memory kind -1");
}

/* A job of one PE that the process sets up itself. */
static void alone(void) {
    oxshmem_uniqueid id;
    WORKS(oxshmem_get_uniqueid(&id));
    EXPECT(strlen(id.text) > 30 && strlen(id.text) < sizeof(id.text));
    REFUSED(oxshmem_init_with_uniqueid(&id, -1, 1), OXSHMEM_ERROR_INVALID, "pe is -1");
    REFUSED(oxshmem_init_with_uniqueid(&id, 1, 1), OXSHMEM_ERROR_INVALID, "pe is 1 of n_pes 1");
    WORKS(oxshmem_init_with_uniqueid(&id, 0, 1));
    EXPECT(oxshmem_host_n_pes() == 1);
    WORKS(oxshmem_host_barrier_all());
    memory();
    WORKS(oxshmem_finalize());
}

static const char *locate(void **address, size_t *bytes) {
    (void)address;
    (void)bytes;
    return "nowhere";
}

/* Kernels that were compiled with the headers of another version. */
static void another_version(void) {
    static const oxshmem_unit unit = {999, 264, "old.cu", locate};
    oxshmem_uniqueid id;
    WORKS(oxshmem_get_uniqueid(&id));
    oxshmem_unit_register(&unit);
    REFUSED(oxshmem_init_with_uniqueid(&id, 0, 1), OXSHMEM_ERROR_DEVICE, "device ABI 999 (264 bytes");
    EXPECT(strstr(oxshmem_error(), "old.cu") && strstr(oxshmem_error(), "this runtime has ABI"));
    EXPECT(oxshmem_host_n_pes() == -1);
    oxshmem_unit_unregister(&unit);
}

int main(int argc, char **argv) {
    EXPECT(strcmp(oxshmem_error(), "") == 0);
    without_a_pe();
    if (argc > 1 && strcmp(argv[1], "alone") == 0) {
        another_version();
        alone();
    } else if (argc > 1) {
        WORKS(oxshmem_init());
        rails(strncmp(argv[1], "pushes", 6) == 0, strcmp(argv[1], "pushes-by-proxy") == 0);
        WORKS(oxshmem_finalize());
    } else {
        /* Twice: a job can be joined again. */
        for (int round = 0; round < 2; ++round) {
            WORKS(oxshmem_init());
            if (failures == 0) {
                job();
            }
            WORKS(oxshmem_finalize());
            EXPECT(oxshmem_host_my_pe() == -1);
        }
    }
    return failures == 0 ? 0 : 1;
}
