/*
 * One of many that allocate, free and launch at random until told to hold still, or killed. What it holds, it writes
 * into its line of a board that outlives it: operations done, and bytes of each device.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINES = 64, DEVICES = 4, HELD = 64 };

struct line {
    volatile uint64_t operations;
    volatile uint64_t bytes[DEVICES];
    volatile uint64_t holds_still;
};

struct board {
    volatile uint64_t hold;
    struct line lines[LINES];
};

struct allocation {
    int kind;
    int device;
    uint64_t bytes;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUarray array;
};

static struct allocation held[HELD];
static CUfunction kernel;

static int allocate(struct allocation *one, size_t size)
{
    size_t pitch;
    CUmemAllocationProp where = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, one->device}};
    CUDA_ARRAY_DESCRIPTOR flat = {(size + 511) / 512 * 512, 0, 1, 1};
    one->bytes = (size + 511) / 512 * 512;
    switch (one->kind) {
    case 0:
        return cuMemAlloc_v2(&one->address, size);
    case 1:
        return cuMemAllocManaged(&one->address, size, 1);
    case 2:
        return cuMemAllocAsync(&one->address, size, NULL);
    case 3:
        one->bytes *= 3;
        return cuMemAllocPitch_v2(&one->address, &pitch, size, 3, 4);
    case 4:
        one->bytes = 2 << 20;
        return cuMemCreate(&one->handle, one->bytes, &where, 0);
    default:
        return cuArrayCreate_v2(&one->array, &flat);
    }
}

static int release(const struct allocation *one)
{
    switch (one->kind) {
    case 2:
        return cuMemFreeAsync(one->address, NULL);
    case 4:
        return cuMemRelease(one->handle);
    case 5:
        return cuArrayDestroy(one->array);
    default:
        return cuMemFree_v2(one->address);
    }
}

static int step(struct line *line, CUcontext *contexts)
{
    struct allocation *one = &held[rand() % HELD];
    int result;
    if (rand() % 4 == 0) {
        cuCtxSetCurrent(contexts[rand() % DEVICES]);
        return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    }
    if (one->bytes != 0) {
        result = release(one);
        line->bytes[one->device] -= one->bytes;
        one->bytes = 0;
        return result;
    }
    one->kind = rand() % 6;
    one->device = rand() % DEVICES;
    cuCtxSetCurrent(contexts[one->device]);
    result = allocate(one, 1 + (size_t)rand() % (4 << 20));
    if (result == CUDA_SUCCESS) {
        line->bytes[one->device] += one->bytes;
    } else {
        one->bytes = 0;
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

int main(int count, char **words)
{
    static const char PTX[] = ".version 8.0\n.target sm_75\n.visible .entry quick_vgpu_3us() { ret; }\n";
    CUcontext contexts[DEVICES];
    CUmodule module;
    if (count != 4) {
        return 2;
    }
    int file = open(words[1], O_RDWR);
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct line *line = &board->lines[atoi(words[2])];
    srand((unsigned int)atoi(words[3]));
    for (int d = 0; d < DEVICES; d++) {
        line->bytes[d] = 0;
    }
    if (board == MAP_FAILED || cuInit(0) != CUDA_SUCCESS) {
        return 3;
    }
    for (int d = 0; d < DEVICES; d++) {
        if (cuDevicePrimaryCtxRetain(&contexts[d], d) != CUDA_SUCCESS) {
            return 4;
        }
    }
    cuCtxSetCurrent(contexts[0]);
    if (cuModuleLoadData(&module, PTX) != CUDA_SUCCESS ||
        cuModuleGetFunction(&kernel, module, "quick_vgpu_3us") != CUDA_SUCCESS) {
        return 5;
    }
    while (!board->hold) {
        int result = step(line, contexts);
        if (result != CUDA_SUCCESS) {
            fprintf(stderr, "result %d\n", result);
            return 6;
        }
        line->operations++;
    }
    line->holds_still = 1;
    for (;;) {
        pause();
    }
}
