/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * One thread waits for a signal that never comes. Another one opens a library with kernels meanwhile, as its constructor
 * tells, and ends the job. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <oxshmem/host.h>

static const oxshmem_unit unit = {0, 0, "ends.c", NULL};
static int failures;

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, oxshmem_error());
        failures++;
    }
}

static void *ends(void *unused) {
    const struct timespec pause = {0, 100000000};
    int told = -1;
    (void)unused;
    /* By now the other thread waits. */
    nanosleep(&pause, NULL);
    oxshmem_unit_register(&unit);
    check(oxshmem_exit_status(&told) == 0 && told == -1, "a status before the end");
    check(oxshmem_exit_job(7, "enough") == OXSHMEM_SUCCESS, "exit_job");
    check(oxshmem_abort("more") == OXSHMEM_SUCCESS, "abort after the end");
    check(oxshmem_exit_status(&told) == 1 && told == 7, "no status after the end");
    return NULL;
}

int main(void) {
    pthread_t thread;
    int told = -1;
    uint64_t *signal;
    check(oxshmem_exit_status(&told) == 0, "a status without a PE");
    check(oxshmem_abort(NULL) == OXSHMEM_ERROR_NOT_INITIALIZED, "abort without a PE");
    check(oxshmem_init() == OXSHMEM_SUCCESS, "init");
    signal = oxshmem_malloc(sizeof(*signal));
    check(signal != NULL, "malloc");
    if (failures != 0 || pthread_create(&thread, NULL, ends, NULL) != 0) {
        return 1;
    }
    check(oxshmem_host_signal_wait_until(signal, OXSHMEM_CMP_EQ, 1, NULL) == OXSHMEM_ERROR_JOB_FAILED, "the wait");
    check(strstr(oxshmem_error(), "enough") != NULL, "the reason");
    pthread_join(thread, NULL);
    check(oxshmem_finalize() == OXSHMEM_ERROR_JOB_FAILED, "finalize");
    oxshmem_unit_unregister(&unit);
    check(oxshmem_exit_status(&told) == 0, "a status after the PE");
    check(oxshmem_exit_job(1, "late") == OXSHMEM_ERROR_NOT_INITIALIZED, "exit_job after the PE");
    return failures != 0;
}
