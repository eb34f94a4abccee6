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
    REFUSED(oxshmem_get_uniqueid(NULL), OXSHMEM_ERROR_INVALID, "null");
    REFUSED(oxshmem_init_with_uniqueid(NULL, 0, 1), OXSHMEM_ERROR_INVALID, "null");
}

static void job(void) {
    const int me = oxshmem_host_my_pe(), n = oxshmem_host_n_pes();
    const int next = (me + 1) % n, previous = (me + n - 1) % n;
    EXPECT(me >= 0 && me < n);
    EXPECT(oxshmem_gpu() == -1);
    REFUSED(oxshmem_init(), OXSHMEM_ERROR_INVALID, "has a PE already");

    int *inbox = (int *)oxshmem_malloc(WORDS * sizeof(int));
    unsigned char *big = (unsigned char *)oxshmem_align(4096, BIG);
    uint64_t *signals = (uint64_t *)oxshmem_calloc(4, sizeof(uint64_t));
    void *empty = oxshmem_malloc(0);
    EXPECT(inbox && big && signals && empty);
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

    /* Longer than what the library buffers, with a signal behind it. */
    unsigned char *source = (unsigned char *)malloc(BIG);
    memset(source, me + 1, BIG);
    WORKS(oxshmem_host_putmem_signal(big, source, BIG, signals, 5, OXSHMEM_SIGNAL_SET, next));
    uint64_t seen = 0;
    WORKS(oxshmem_host_signal_wait_until(signals, OXSHMEM_CMP_GE, 5, &seen));
    EXPECT(seen == 5 && big[0] == previous + 1 && big[BIG - 1] == previous + 1);
    WORKS(oxshmem_host_sync_all()); /* Everybody has seen 5. */
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
    REFUSED(oxshmem_host_putmem(data, data, 4, next), OXSHMEM_ERROR_FAULT, "not inside the symmetric heap");
    REFUSED(oxshmem_host_signal_op(signals, 1, 3, next), OXSHMEM_ERROR_INVALID, "signal operator 3");
    REFUSED(oxshmem_host_signal_wait_until(signals, 6, 1, NULL), OXSHMEM_ERROR_INVALID, "comparison 6");
    REFUSED(oxshmem_host_signal_wait_until((uint64_t *)data, OXSHMEM_CMP_EQ, 1, NULL), OXSHMEM_ERROR_INVALID,
            "not the address");
    REFUSED(oxshmem_host_signal_fetch(signals, NULL), OXSHMEM_ERROR_INVALID, "value is null");
    REFUSED(oxshmemx_module_register(NULL), OXSHMEM_ERROR_INVALID, "null");
    REFUSED(oxshmemx_module_register(&failures), OXSHMEM_ERROR_DEVICE, "OXSHMEM_DEVICE=cuda");
    REFUSED(oxshmemx_quiet_on_stream(&failures), OXSHMEM_ERROR_DEVICE, "OXSHMEM_DEVICE=cuda");
    /* A wait that ends with its deadline; the PE goes on. */
    REFUSED(oxshmem_host_signal_wait_until(signals + 3, OXSHMEM_CMP_EQ, 1, NULL), OXSHMEM_ERROR_FAULT, "signal_wait_until");
    WORKS(oxshmemx_signal_wait_until_on_stream(signals + 3, OXSHMEM_CMP_EQ, 1, NULL));
    REFUSED(oxshmem_synchronize(), OXSHMEM_ERROR_FAULT, "signal_wait_until");
    WORKS(oxshmem_synchronize());

    WORKS(oxshmem_host_barrier_all());
    REFUSED(oxshmem_free(inbox + 1), OXSHMEM_ERROR_HEAP, "not the start");
    WORKS(oxshmem_free(NULL));
    WORKS(oxshmem_free(inbox));
    WORKS(oxshmem_free(big));
    WORKS(oxshmem_free(signals));
    WORKS(oxshmem_free(empty));
}

/* A job of one PE that the process sets up itself. */
static void alone(void) {
    oxshmem_uniqueid id;
    WORKS(oxshmem_get_uniqueid(&id));
    EXPECT(strlen(id.text) > 30 && strlen(id.text) < sizeof(id.text));
    REFUSED(oxshmem_init_with_uniqueid(&id, -1, 1), OXSHMEM_ERROR_INVALID, "pe is -1");
    REFUSED(oxshmem_init_with_uniqueid(&id, 1, 1), OXSHMEM_ERROR_CONFIG, "OXSHMEM_RANK");
    WORKS(oxshmem_init_with_uniqueid(&id, 0, 1));
    EXPECT(oxshmem_host_n_pes() == 1);
    WORKS(oxshmem_host_barrier_all());
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
