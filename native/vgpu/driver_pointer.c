/* What is known about an address. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

/* With driver.lock held; `found` may be NULL: an address that CUDA has nothing to do with. */
static CUresult describe(const struct range *found, CUdeviceptr address, int attribute, void *data)
{
    bool on_device = found != NULL && found->kind != MEMORY_HOST && found->kind != MEMORY_REGISTERED;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = found == NULL ? NULL : found->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = found == NULL ? 0u : on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = found == NULL ? 0 : address;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (found != NULL && on_device && found->kind != MEMORY_MANAGED) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(void **)data = found == NULL ? NULL : (void *)(uintptr_t)address;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = found == NULL ? 0 : found->id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(int *)data = found != NULL && found->kind == MEMORY_MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = found == NULL || found->context == NULL ? -2 : found->context->ordinal;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = found == NULL ? 0 : found->start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = found == NULL ? 0 : found->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(int *)data = found != NULL;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find(address);
    result = found == NULL ? CUDA_ERROR_INVALID_VALUE : describe(found, address, attribute, data);
    pthread_mutex_unlock(&driver.lock);
    return result;
}

/* The same for several; an address that is not known is no error here, and what is not known of one is left alone. */
API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr address)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find(address);
    for (unsigned int a = 0; a < count; a++) {
        if (describe(found, address, attributes[a], data[a]) == CUDA_ERROR_NOT_SUPPORTED) {
            *(int *)data[a] = 0;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

/* Hints about memory change nothing that could be seen here. */
API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
    (void)value;
    (void)attribute;
    (void)address;
    return driver_ready();
}

API CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device)
{
    (void)address;
    (void)size;
    (void)advice;
    (void)device;
    return driver_ready();
}

API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation location)
{
    return cuMemAdvise(address, size, advice, location.id);
}

API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream handle)
{
    struct CUstream_st *stream;
    (void)address;
    (void)size;
    (void)device;
    return driver_stream(handle, &stream);
}
PTSZ(cuMemPrefetchAsync);

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
                                   CUstream handle)
{
    (void)flags;
    return cuMemPrefetchAsync(address, size, location.id, handle);
}
PTSZ(cuMemPrefetchAsync_v2);
