/* Arrays and mipmapped arrays: they take memory of the device, and have no contents. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

struct CUarray_st {
    CUdeviceptr memory; /* 0: a level of a mipmapped array, which has the memory */
    CUDA_ARRAY3D_DESCRIPTOR shape;
};

enum { LEVELS = 16 };

struct CUmipmappedArray_st {
    CUdeviceptr memory;
    unsigned int levels;
    struct CUarray_st level[LEVELS];
};

static size_t element_bytes(int format)
{
    switch (format) {
    case 0x01: /* 8 bits, unsigned and signed */
    case 0x08:
        return 1;
    case 0x02: /* 16 bits, and half */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32 bits, and float */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 0;
    }
}

/* 0 for a shape that cannot be. A length of 0 means that the array has no such dimension. */
static size_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    size_t bytes = element_bytes(shape->Format) * shape->NumChannels;
    size_t lengths[] = {shape->Width, shape->Height == 0 ? 1 : shape->Height, shape->Depth == 0 ? 1 : shape->Depth};
    for (int d = 0; d < 3; d++) {
        if (lengths[d] == 0 || bytes == 0 || lengths[d] > SIZE_MAX / 4 / bytes) {
            return 0;
        }
        bytes *= lengths[d];
    }
    return bytes;
}

API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array == NULL || shape == NULL || bytes_of(shape) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUarray_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->shape = *shape;
    result = memory_allocate(context, &made->memory, bytes_of(shape), MEMORY_DEVICE, NULL);
    if (result == CUDA_SUCCESS) {
        *array = made;
    } else {
        free(made);
    }
    return result;
}

API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    if (flat == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR shape = {flat->Width, flat->Height, 0, flat->Format, flat->NumChannels, 0};
    return cuArray3DCreate_v2(array, &shape);
}

API CUresult cuArrayDestroy(CUarray array)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array == NULL || array->memory == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    result = memory_free(array->memory);
    free(array);
    return result;
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        *shape = array->shape;
    }
    return result;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray array)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        const CUDA_ARRAY3D_DESCRIPTOR *shape = &array->shape;
        *flat = (CUDA_ARRAY_DESCRIPTOR){shape->Width, shape->Height, shape->Format, shape->NumChannels};
    }
    return result;
}

static size_t half(size_t length)
{
    return length > 1 ? length / 2 : length;
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array == NULL || shape == NULL || levels == 0 || levels > LEVELS || bytes_of(shape) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUmipmappedArray_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t bytes = 0;
    CUDA_ARRAY3D_DESCRIPTOR level = *shape;
    made->levels = levels;
    for (unsigned int l = 0; l < levels; l++) {
        made->level[l].shape = level;
        bytes += bytes_of(&level);
        level.Width = half(level.Width);
        level.Height = half(level.Height);
        level.Depth = half(level.Depth);
    }
    result = memory_allocate(context, &made->memory, bytes, MEMORY_DEVICE, NULL);
    if (result == CUDA_SUCCESS) {
        *array = made;
    } else {
        free(made);
    }
    return result;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned int number)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (number >= array->levels) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *level = &array->level[number];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    result = memory_free(array->memory);
    free(array);
    return result;
}
