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

enum { DEFAULT_STACK_BYTES = 1024 };

size_t settings_bytes(const struct CUctx_st *context)
{
    const struct vgpu_device *on = &driver.file->devices[context->device];
    size_t threads = (size_t)on->multiprocessors * on->threads_per_multiprocessor;
    size_t stack = context->settings[CU_LIMIT_STACK_SIZE];
    return (stack > DEFAULT_STACK_BYTES ? (stack - DEFAULT_STACK_BYTES) * threads : 0) +
           context->settings[CU_LIMIT_PRINTF_FIFO_SIZE] + context->settings[CU_LIMIT_MALLOC_HEAP_SIZE];
}

static bool takes_memory(int limit)
{
    return limit >= CU_LIMIT_STACK_SIZE && limit <= CU_LIMIT_MALLOC_HEAP_SIZE;
}

API CUresult cuCtxGetLimit(size_t *value, int limit)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS) {
        size_t set = takes_memory(limit) ? context->settings[limit] : 0;
        *value = set != 0 ? set : 1024;
    }
    return result;
}

/* A larger heap is memory of the device, and so are stacks for all threads that it can hold. */
API CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS || !takes_memory(limit)) {
        return result;
    }
    if (value > (size_t)1 << 40) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    size_t before = context->settings[limit], before_bytes = settings_bytes(context);
    context->settings[limit] = value;
    size_t bytes = settings_bytes(context);
    if (bytes > before_bytes) {
        result = memory_charge(context->device, bytes - before_bytes);
    } else {
        memory_uncharge(context->device, before_bytes - bytes);
    }
    if (result != CUDA_SUCCESS) {
        context->settings[limit] = before;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
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
