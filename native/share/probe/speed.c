/* What calls cost: CPU time for each, to be compared with and without the library. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int launches(long count)
{
    CUfunction kernel = spin_kernel(1);
    __typeof__(&cuLaunchKernel) launch = DRIVER(cuLaunchKernel);
    double begun_ns = cpu_ns();
    for (long l = 0; l < count; l++) {
        must("cuLaunchKernel", launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    }
    printf("%.1f\n", (cpu_ns() - begun_ns) / (double)count);
    return 0;
}

/* Allocates and frees beside many that live on: the one that was just allocated, or with `any` one of them all. */
static int allocations(long count, long live, bool any)
{
    enum { BYTES = 4096 };
    __typeof__(&cuMemAlloc_v2) allocate = DRIVER(cuMemAlloc_v2);
    __typeof__(&cuMemFree_v2) release = DRIVER(cuMemFree_v2);
    CUdeviceptr *held = calloc((size_t)live, sizeof *held);
    if (held == NULL) {
        return 3;
    }
    for (long h = 0; h < live; h++) {
        must("cuMemAlloc", allocate(&held[h], BYTES));
    }
    unsigned long chance = 1;
    double begun_ns = cpu_ns();
    for (long c = 0; c < count; c++) {
        chance = chance * 6364136223846793005ul + 1442695040888963407ul;
        CUdeviceptr *one = &held[any ? (long)(chance >> 33) % live : live / 2];
        must("cuMemFree", release(*one));
        must("cuMemAlloc", allocate(one, BYTES));
    }
    printf("%.1f\n", (cpu_ns() - begun_ns) / (double)count);
    free(held);
    return 0;
}

int probe_speed(const char *what, long count, long live)
{
    use_device(0);
    if (strcmp(what, "launch") == 0) {
        return launches(count);
    }
    return allocations(count, live, strcmp(what, "alloc-any") == 0);
}
