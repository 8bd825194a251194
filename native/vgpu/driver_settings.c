/* Settings of a context. Those that change how kernels compute are accepted, since nothing is computed. */
#define _GNU_SOURCE
#include "driver.h"

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS) {
        if (least != NULL) {
            *least = 0;
        }
        if (greatest != NULL) {
            *greatest = -5;
        }
    }
    return result;
}

API CUresult cuCtxGetLimit(size_t *value, int limit)
{
    CUcontext context;
    (void)limit;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS) {
        *value = 1024;
    }
    return result;
}

API CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context;
    (void)limit;
    (void)value;
    return driver_context(&context);
}

API CUresult cuCtxSetCacheConfig(int config)
{
    CUcontext context;
    (void)config;
    return driver_context(&context);
}
ALIAS(cuCtxSetSharedMemConfig, cuCtxSetCacheConfig);

API CUresult cuCtxGetCacheConfig(int *config)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS) {
        *config = 0;
    }
    return result;
}
ALIAS(cuCtxGetSharedMemConfig, cuCtxGetCacheConfig);

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return flags != 0 || peer == NULL || !peer->alive ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    return cuCtxEnablePeerAccess(peer, 0);
}

API CUresult cuProfilerStart(void)
{
    CUcontext context;
    return driver_context(&context);
}
ALIAS(cuProfilerStop, cuProfilerStart);
