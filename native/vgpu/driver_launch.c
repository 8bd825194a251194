/* Launching kernels, and what a kernel may ask for. */
#define _GNU_SOURCE
#include "driver.h"

enum { MOST_THREADS = 1024, MOST_BLOCKS = 16, REGISTERS = 32 };

static CUresult launch(CUfunction function, const unsigned int grid[3], const unsigned int block[3], CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (blocks == 0 || threads == 0 || threads > MOST_THREADS || grid[0] > 2147483647u || grid[1] > 65535u ||
        grid[2] > 65535u) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return stream_launch(stream, kernel_length_ns(function, stream->context->device, blocks * threads));
}

API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y, unsigned int block_z,
                            unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
    (void)shared_bytes;
    (void)parameters;
    (void)extra;
    return launch(function, (unsigned int[]){grid_x, grid_y, grid_z}, (unsigned int[]){block_x, block_y, block_z},
                  stream);
}
PTSZ(cuLaunchKernel);

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                       unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                       void **parameters)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                          parameters, NULL);
}
PTSZ(cuLaunchCooperativeKernel);

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (config == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, parameters,
                          extra);
}
PTSZ(cuLaunchKernelEx);

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL || function == NULL || attribute < 0 || attribute > CU_FUNC_ATTRIBUTE_LAST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct vgpu_device *device = &driver.file->devices[context->device];
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = MOST_THREADS;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = REGISTERS;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = (int)(device->compute_major * 10 + device->compute_minor);
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = 48 << 10;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}

API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    (void)attribute;
    (void)value;
    CUresult result = driver_ready();
    return result != CUDA_SUCCESS ? result : function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
    return cuFuncSetAttribute(function, 0, config);
}
ALIAS(cuFuncSetSharedMemConfig, cuFuncSetCacheConfig);

API CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute((CUfunction)kernel, 0, config);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
                                                                  size_t shared_bytes, unsigned int flags)
{
    CUcontext context;
    (void)function;
    (void)shared_bytes;
    (void)flags;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (blocks == NULL || block_size <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fitting = (int)driver.file->devices[context->device].threads_per_multiprocessor / block_size;
    *blocks = block_size > MOST_THREADS ? 0 : fitting > MOST_BLOCKS ? MOST_BLOCKS : fitting;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size,
                                                         size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                       CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit,
                                                       unsigned int flags)
{
    CUcontext context;
    (void)function;
    (void)shared_of;
    (void)shared_bytes;
    (void)flags;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct vgpu_device *device = &driver.file->devices[context->device];
    *block = limit > 0 && limit < MOST_THREADS ? limit : MOST_THREADS;
    *grid = (int)(device->multiprocessors * device->threads_per_multiprocessor) / *block;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                              size_t shared_bytes, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared_bytes, limit, 0);
}
