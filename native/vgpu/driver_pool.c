/* Memory pools: allocations in the order of a stream. What is freed is free at once; a pool keeps nothing back. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

enum { RELEASE_THRESHOLD = 4, RESERVED_CURRENT = 5, RESERVED_HIGH = 6, USED_CURRENT = 7, USED_HIGH = 8 };

struct CUmemPoolHandle_st {
    uint32_t device;
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t release_threshold;
};

static struct CUmemPoolHandle_st default_pool[VGPU_DEVICES];
static CUmemoryPool current_pool[VGPU_DEVICES];

void pool_count(CUmemoryPool pool, size_t bytes, bool taken)
{
    pool->used_bytes += taken ? bytes : (uint64_t)0 - bytes;
    if (pool->used_bytes > pool->peak_bytes) {
        pool->peak_bytes = pool->used_bytes;
    }
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS) {
        default_pool[index].device = index;
        *pool = &default_pool[index];
    }
    return result;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = cuDeviceGetDefaultMemPool(pool, device);
    if (result == CUDA_SUCCESS && current_pool[(*pool)->device] != NULL) {
        *pool = current_pool[(*pool)->device];
    }
    return result;
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS) {
        current_pool[index] = pool;
    }
    return result;
}

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    uint32_t index;
    if (pool == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = driver_device(properties->location.id, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *pool = calloc(1, sizeof **pool);
    if (*pool == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*pool)->device = index;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pool == NULL || pool == &default_pool[pool->device]) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (current_pool[pool->device] == pool) {
        current_pool[pool->device] = NULL;
    }
    if (pool->used_bytes == 0) { /* else kept, for what is still allocated from it */
        free(pool);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    (void)pool;
    (void)keep_bytes;
    return driver_ready();
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS && attribute == RELEASE_THRESHOLD) {
        pool->release_threshold = *(uint64_t *)value;
    }
    return result;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    switch (attribute) {
    case RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->release_threshold;
        break;
    case RESERVED_CURRENT:
    case USED_CURRENT:
        *(uint64_t *)value = pool->used_bytes;
        break;
    case RESERVED_HIGH:
    case USED_HIGH:
        *(uint64_t *)value = pool->peak_bytes;
        break;
    default:
        *(int *)value = 1; /* the ways in which memory may be used again */
    }
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    (void)pool;
    (void)access;
    (void)count;
    return driver_ready();
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
    (void)pool;
    (void)location;
    *flags = 3; /* read and write */
    return driver_ready();
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture != NULL) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (pool == NULL || pool->device != stream->context->device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return memory_allocate(stream->context, address, size, MEMORY_DEVICE, pool);
}
PTSZ(cuMemAllocFromPoolAsync);

API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream handle)
{
    struct CUstream_st *stream;
    CUmemoryPool pool;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = cuDeviceGetMemPool(&pool, stream->context->ordinal);
    }
    return result == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(address, size, pool, handle) : result;
}
PTSZ(cuMemAllocAsync);

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    return result != CUDA_SUCCESS || address == 0 ? result : memory_free(address);
}
PTSZ(cuMemFreeAsync);
