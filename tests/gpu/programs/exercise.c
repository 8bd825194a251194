/* Calls functions of every kind, and says which line was not as it should be. For sanitizers, and direct links. */
#define _GNU_SOURCE
#include "calls.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                             \
    if (!(condition)) {                                                                                               \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                               \
        exit(1);                                                                                                      \
    }
#define OK(call) EXPECT((call) == CUDA_SUCCESS)

#define MIB ((size_t)1 << 20)

static size_t free_bytes(void)
{
    size_t free_now, total;
    OK(cuMemGetInfo_v2(&free_now, &total));
    return free_now;
}

static void memory(void)
{
    size_t before = free_bytes(), pitch, size;
    CUdeviceptr plain, rows, managed, pooled, start;
    void *host;
    OK(cuMemAlloc_v2(&plain, 3 * MIB));
    OK(cuMemAllocPitch_v2(&rows, &pitch, 1000, 7, 4));
    OK(cuMemAllocManaged(&managed, MIB, 1));
    OK(cuMemAllocAsync(&pooled, MIB, NULL));
    OK(cuMemHostAlloc(&host, MIB, 0));
    EXPECT(pitch == 1024 && free_bytes() == before - 5 * MIB - 7 * 1024);

    memset(host, 7, MIB);
    OK(cuMemcpyHtoD_v2(plain + MIB, host, MIB));
    memset(host, 0, MIB);
    OK(cuMemcpyDtoH_v2(host, plain + MIB, MIB));
    EXPECT(((char *)host)[MIB - 1] == 7);
    EXPECT(cuMemcpyHtoD_v2(plain + 3 * MIB - 1, host, 2) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD32_v2(rows, 0xabcd1234u, 64));
    OK(cuMemGetAddressRange_v2(&start, &size, plain + 12345));
    EXPECT(start == plain && size == 3 * MIB);

    EXPECT(cuMemFree_v2(plain + 1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(plain));
    EXPECT(cuMemFree_v2(plain) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(rows));
    OK(cuMemFree_v2(managed));
    OK(cuMemFreeAsync(pooled, NULL));
    OK(cuMemFreeHost(host));
    EXPECT(cuMemAlloc_v2(&plain, (size_t)1 << 60) == CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(free_bytes() == before);
}

static void mapped_memory(void)
{
    size_t before = free_bytes();
    CUmemAllocationProp where = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {where.location, 3};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    unsigned int back = 0;
    OK(cuMemCreate(&handle, 4 * MIB, &where, 0));
    OK(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
    EXPECT(free_bytes() == before - 4 * MIB);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    EXPECT(cuMemAddressFree(address, 8 * MIB) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(address, 4 * MIB, &access, 1));
    OK(cuMemsetD32_v2(address, 42, MIB));
    OK(cuMemcpyDtoH_v2(&back, address + 4 * MIB - 4, 4));
    EXPECT(back == 42);
    EXPECT(cuMemcpyDtoH_v2(&back, address + 4 * MIB, 4) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    EXPECT(free_bytes() == before - 4 * MIB); /* still mapped */
    OK(cuMemUnmap(address, 4 * MIB));
    OK(cuMemAddressFree(address, 8 * MIB));
    EXPECT(free_bytes() == before);
}

static void arrays(void)
{
    size_t before = free_bytes();
    CUDA_ARRAY_DESCRIPTOR flat = {256, 256, 0x20, 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {64, 64, 0, 0x01, 4, 0};
    CUarray array;
    CUmipmappedArray mipmapped;
    OK(cuArrayCreate_v2(&array, &flat));
    OK(cuMipmappedArrayCreate(&mipmapped, &deep, 3));
    EXPECT(before - free_bytes() == 256 * 1024 + (64 * 64 + 32 * 32 + 16 * 16) * 4);
    OK(cuArrayDestroy(array));
    OK(cuMipmappedArrayDestroy(mipmapped));
    EXPECT(free_bytes() == before);
}

static void kernels(void)
{
    static const char PTX[] = ".version 8.0\n.target sm_75\n.visible .entry spin_vgpu_2ms() { ret; }\n";
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent begin, end;
    CUgraph graph;
    CUgraphExec executable;
    float milliseconds;
    EXPECT(cuModuleLoadData(&module, "nonsense") == CUDA_ERROR_INVALID_IMAGE);
    OK(cuModuleLoadData(&module, PTX));
    EXPECT(cuModuleGetFunction(&function, module, "absent") == CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "spin_vgpu_2ms"));
    OK(cuStreamCreate(&stream, 1));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    EXPECT(cuLaunchKernel(function, 1, 1, 1, 2000, 1, 1, 0, stream, NULL, NULL) == CUDA_ERROR_INVALID_VALUE);

    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));

    OK(cuEventRecord(begin, stream));
    for (int i = 0; i < 3; i++) {
        OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    }
    OK(cuGraphLaunch(executable, stream));
    OK(cuEventRecord(end, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuEventElapsedTime(&milliseconds, begin, end));
    EXPECT(milliseconds >= 10.0f); /* three kernels, and two more in the graph */

    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy_v2(begin));
    OK(cuEventDestroy_v2(end));
    OK(cuStreamDestroy_v2(stream));
    OK(cuModuleUnload(module));
}

/* The same function by every way there is to it. */
static void ways_in(void)
{
    void *by_name = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    void *first = NULL, *second = NULL, *launch = NULL, *per_thread = NULL;
    int status = -1;
    OK(cuGetProcAddress("cuMemAlloc", &first, 11030, 0));
    OK(cuGetProcAddress_v2("cuMemAlloc", &second, 13000, 0, &status));
    EXPECT(status == CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT(by_name != NULL && first == by_name && second == by_name);
    OK(cuGetProcAddress_v2("cuLaunchKernel", &launch, 12000, 0, NULL));
    OK(cuGetProcAddress_v2("cuLaunchKernel", &per_thread, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    EXPECT(launch == dlsym(RTLD_DEFAULT, "cuLaunchKernel"));
    EXPECT(per_thread == dlsym(RTLD_DEFAULT, "cuLaunchKernel_ptsz"));
    EXPECT(cuGetProcAddress_v2("cuNothing", &second, 13000, 0, &status) == CUDA_ERROR_NOT_FOUND);
    EXPECT(second == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT(cuGetProcAddress_v2("cuMemAllocAsync", &second, 10000, 0, &status) == CUDA_ERROR_NOT_FOUND);
    EXPECT(second == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

int main(void)
{
    CUcontext context, other;
    CUdeviceptr forgotten;
    size_t before;
    EXPECT(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    EXPECT(cuMemAlloc_v2(&forgotten, 1) == CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    ways_in();
    memory();
    mapped_memory();
    arrays();
    kernels();

    before = free_bytes();
    OK(cuCtxCreate_v2(&other, 0, 0));
    for (int i = 0; i < 100; i++) {
        OK(cuMemAlloc_v2(&forgotten, MIB));
    }
    OK(cuCtxDestroy_v2(other)); /* takes along what was allocated in it */
    EXPECT(free_bytes() == before);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(cuMemAlloc_v2(&forgotten, 1) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    puts("all well");
    return 0;
}
