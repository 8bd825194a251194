/* A tenant: launches kernels one after the other for a while, and says how much device time they took of it. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KERNELS = 16 };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* `lengths_us`: as in 50,400,1000. `how`: "queued" launches without waiting, "waiting" waits for each, "changing"
 * launches each with another number of threads than the ones before, as programs do whose data differs in size. */
int probe_load(double length_s, const char *lengths_us, const char *how)
{
    CUfunction kernels[KERNELS];
    double kernel_s[KERNELS];
    int count = 0;
    use_device(0);
    for (const char *text = lengths_us; text != NULL && count < KERNELS; count++) {
        unsigned int length_us = (unsigned int)strtoul(text, NULL, 10);
        kernels[count] = spin_kernel(length_us);
        kernel_s[count] = length_us * 1e-6;
        text = strchr(text, ',');
        text = text == NULL ? NULL : text + 1;
    }
    __typeof__(&cuLaunchKernel) launch = DRIVER(cuLaunchKernel);
    bool waiting = strcmp(how, "waiting") == 0;
    bool changing = strcmp(how, "changing") == 0;
    double begun_s = now_s(), busy_s = 0;
    long launches = 0;
    puts("running");
    fflush(stdout);
    while (now_s() - begun_s < length_s) {
        int k = (int)(launches % count);
        unsigned int blocks = changing ? 1 + (unsigned int)(launches % 65536) : 1;
        must("cuLaunchKernel", launch(kernels[k], blocks, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        if (waiting) {
            must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
        }
        busy_s += kernel_s[k];
        launches++;
    }
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
    double passed_s = now_s() - begun_s;
    printf("%ld launches, %.6f s of device time in %.6f s: %.4f\n", launches, busy_s, passed_s, busy_s / passed_s);
    return 0;
}
