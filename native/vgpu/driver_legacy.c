/* The functions of before CUDA 3.2, with addresses and sizes of 32 bits. Programs that use them are rare; libraries
 * that limit memory have to stand before them all the same. */
#define _GNU_SOURCE
#include "driver.h"

enum { PITCH_UNIT = 512 };

CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);

static unsigned int clamped(size_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

API CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size)
{
    CUcontext context;
    CUdeviceptr found = 0;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS && address == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = memory_allocate(context, &found, size, (enum memory_kind)MEMORY_LOW, NULL);
    }
    if (result == CUDA_SUCCESS && found > UINT32_MAX) {
        memory_free(found);
        result = CUDA_ERROR_NOT_SUPPORTED; /* this machine gives no such addresses */
    }
    if (result == CUDA_SUCCESS) {
        *address = (CUdeviceptr_v1)found;
    }
    return result;
}

API CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                             unsigned int element)
{
    uint64_t row = ((uint64_t)width + PITCH_UNIT - 1) / PITCH_UNIT * PITCH_UNIT;
    if (pitch == NULL || (element != 4 && element != 8 && element != 16) || width == 0 || height == 0 ||
        row * height > UINT32_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuMemAlloc(address, (unsigned int)(row * height));
    if (result == CUDA_SUCCESS) {
        *pitch = (unsigned int)row;
    }
    return result;
}

API CUresult cuMemFree(CUdeviceptr_v1 address)
{
    return cuMemFree_v2(address);
}

API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
    if (shape == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR full = {shape->Width,  shape->Height,      shape->Depth,
                                    shape->Format, shape->NumChannels, shape->Flags};
    return cuArray3DCreate_v2(array, &full);
}

API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *flat)
{
    if (flat == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR shape = {flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
    return cuArray3DCreate_v2(array, &shape);
}

API CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
    size_t left = 0, total = 0;
    CUresult result = cuMemGetInfo_v2(&left, &total);
    if (result == CUDA_SUCCESS && free_bytes != NULL) {
        *free_bytes = clamped(left);
    }
    if (result == CUDA_SUCCESS && total_bytes != NULL) {
        *total_bytes = clamped(total);
    }
    return result;
}

API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    size_t total = 0;
    CUresult result = bytes == NULL ? CUDA_ERROR_INVALID_VALUE : cuDeviceTotalMem_v2(&total, device);
    if (result == CUDA_SUCCESS) {
        *bytes = clamped(total);
    }
    return result;
}
