/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What scripts/package-test builds against an installed package: each PE puts its number to the next
 * one and checks what it got. */
#include <oxshmem/host.h>

#include <stdio.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, oxshmem_error());
    return 1;
}

int main(void) {
    if (oxshmem_init() != OXSHMEM_SUCCESS) {
        return failed("oxshmem_init");
    }
    int pe = oxshmem_host_my_pe(), n_pes = oxshmem_host_n_pes(), got = -1;
    int *inbox = oxshmem_malloc(sizeof *inbox);
    if (inbox == NULL) {
        return failed("oxshmem_malloc");
    }
    if (oxshmem_host_putmem(inbox, &pe, sizeof pe, (pe + 1) % n_pes) != OXSHMEM_SUCCESS) {
        return failed("oxshmem_host_putmem");
    }
    if (oxshmem_host_barrier_all() != OXSHMEM_SUCCESS) {
        return failed("oxshmem_host_barrier_all");
    }
    if (oxshmem_host_getmem(&got, inbox, sizeof got, pe) != OXSHMEM_SUCCESS) {
        return failed("oxshmem_host_getmem");
    }
    int expected = (pe + n_pes - 1) % n_pes;
    printf("PE %d of %d got %d\n", pe, n_pes, got);
    if (got != expected) {
        fprintf(stderr, "expected %d\n", expected);
        return 1;
    }
    return oxshmem_finalize() == OXSHMEM_SUCCESS ? 0 : failed("oxshmem_finalize");
}
