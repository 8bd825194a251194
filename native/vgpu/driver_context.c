/* Contexts: the primary one of each device, others, and the stack of each thread. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 32 };

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local int depth; /* stack[depth - 1] is current */

CUresult driver_context(CUcontext *context)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (depth == 0 || stack[depth - 1] == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = stack[depth - 1];
    if (!(*context)->alive) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return driver_health((*context)->device);
}

/* With driver.lock held. */
static CUresult open_context(CUcontext *context, CUdevice ordinal, uint32_t index, unsigned int flags)
{
    CUresult result = driver_health(index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct CUctx_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_lock(driver.file);
    bool fits = vgpu_take(driver.file, driver.process, index, driver.file->devices[index].context_bytes);
    if (fits) {
        driver.file->processes[driver.process].use[index].contexts++;
    }
    vgpu_unlock(driver.file);
    if (!fits) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->device = index;
    made->ordinal = ordinal;
    made->flags = flags;
    made->alive = true;
    made->id = driver.next_id++;
    made->default_stream.context = made;
    made->default_stream.id = driver.next_id++;
    /* Kept when it is destroyed: a handle that is used too late then gets an answer. */
    made->next = driver.contexts;
    driver.contexts = made;
    *context = made;
    return CUDA_SUCCESS;
}

/* With driver.lock held. */
static void close_context(CUcontext context)
{
    context->alive = false;
    memory_free_all_of(context);
    memory_uncharge(context->device, settings_bytes(context));
    streams_destroy_all(context);
    vgpu_lock(driver.file);
    vgpu_give_back(driver.file, driver.process, context->device, driver.file->devices[context->device].context_bytes);
    driver.file->processes[driver.process].use[context->device].contexts--;
    vgpu_unlock(driver.file);
}

static CUresult push(CUcontext context)
{
    if (depth == STACK_DEPTH) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    struct CUctx_st *primary = driver.primary[index];
    if (primary == NULL || !primary->alive) {
        result = open_context(&primary, device, index, 0);
    }
    if (result == CUDA_SUCCESS) {
        primary->primary = true;
        primary->primary_references++;
        driver.primary[index] = primary;
        *context = primary;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

static CUresult drop_primary(CUdevice device, bool all)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    struct CUctx_st *primary = driver.primary[index];
    if (primary == NULL || !primary->alive) {
        result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (all || --primary->primary_references == 0) {
        primary->primary_references = 0;
        close_context(primary);
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return drop_primary(device, false);
}
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return drop_primary(device, true);
}
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS && driver.primary[index] != NULL) {
        driver.primary[index]->flags = flags;
    }
    return result;
}
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS) {
        const struct CUctx_st *primary = driver.primary[index];
        *flags = primary == NULL ? 0 : primary->flags;
        *active = primary != NULL && primary->alive;
    }
    return result;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    result = open_context(context, device, index, flags);
    pthread_mutex_unlock(&driver.lock);
    return result == CUDA_SUCCESS ? push(*context) : result;
}
ALIAS(cuCtxCreate, cuCtxCreate_v2);

API CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags, CUdevice device)
{
    (void)affinity;
    return count != 0 ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    return parameters != NULL ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (context == NULL || context->primary || !context->alive) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    pthread_mutex_lock(&driver.lock);
    close_context(context);
    pthread_mutex_unlock(&driver.lock);
    if (depth > 0 && stack[depth - 1] == context) {
        depth--;
    }
    return CUDA_SUCCESS;
}
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = driver_ready();
    return result == CUDA_SUCCESS ? push(context) : result;
}
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (context != NULL) {
        *context = stack[depth];
    }
    return CUDA_SUCCESS;
}
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

/* Replaces the top of the stack; NULL takes it away. */
API CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (depth > 0) {
        depth--;
    }
    return context == NULL ? CUDA_SUCCESS : push(context);
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        *context = depth == 0 ? NULL : stack[depth - 1];
    }
    return result;
}

/* The context that is meant where 0 stands for the current one. */
static CUresult meant(CUcontext given, CUcontext *context)
{
    if (given == NULL) {
        return driver_context(context);
    }
    *context = given;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return given->alive ? driver_health(given->device) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext given)
{
    CUcontext context;
    CUresult result = meant(given, &context);
    if (result == CUDA_SUCCESS) {
        *device = context->ordinal;
    }
    return result;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
    return cuCtxGetDevice_v2(device, NULL);
}

API CUresult cuCtxGetFlags(unsigned int *flags)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS) {
        *flags = context->flags;
    }
    return result;
}

API CUresult cuCtxGetId(CUcontext given, unsigned long long *id)
{
    CUcontext context;
    CUresult result = meant(given, &context);
    if (result == CUDA_SUCCESS) {
        *id = context->id;
    }
    return result;
}

API CUresult cuCtxGetApiVersion(CUcontext given, unsigned int *version)
{
    CUcontext context;
    CUresult result = meant(given, &context);
    if (result == CUDA_SUCCESS) {
        *version = 3020;
    }
    return result;
}

API CUresult cuCtxSynchronize_v2(CUcontext given)
{
    CUcontext context;
    CUresult result = meant(given, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    uint64_t ready_ns = context->default_stream.ready_ns;
    for (const struct CUstream_st *stream = context->streams; stream != NULL; stream = stream->next) {
        if (stream->ready_ns > ready_ns) {
            ready_ns = stream->ready_ns;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    vgpu_sleep_until(ready_ns);
    return driver_health(context->device);
}

API CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(NULL);
}
