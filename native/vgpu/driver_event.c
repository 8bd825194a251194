/* Events: points in device time. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

struct CUevent_st {
    struct CUctx_st *context;
    uint64_t moment_ns; /* 0: never recorded */
    unsigned int flags;
};

API CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct CUevent_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->context = context;
    made->flags = flags;
    *event = made;
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        free(event);
    }
    return result;
}
ALIAS(cuEventDestroy, cuEventDestroy_v2);

API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags)
{
    struct CUstream_st *stream;
    (void)flags;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS && stream->capture == NULL) {
        uint64_t now_ns = vgpu_now_ns();
        uint64_t ready_ns = stream_ready_ns(stream);
        event->moment_ns = ready_ns > now_ns ? ready_ns : now_ns;
    }
    return result;
}
PTSZ(cuEventRecordWithFlags);

API CUresult cuEventRecord(CUevent event, CUstream handle)
{
    return cuEventRecordWithFlags(event, handle, 0);
}
PTSZ(cuEventRecord);

API CUresult cuEventQuery(CUevent event)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return event->moment_ns > vgpu_now_ns() ? CUDA_ERROR_NOT_READY : driver_health(event->context->device);
}

API CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    vgpu_sleep_until(event->moment_ns);
    return driver_health(event->context->device);
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent until)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (from->moment_ns == 0 || until->moment_ns == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (until->moment_ns > vgpu_now_ns()) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = (float)(((double)until->moment_ns - (double)from->moment_ns) / VGPU_MILLISECOND_NS);
    return CUDA_SUCCESS;
}
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);

API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    struct CUstream_st *stream;
    (void)flags;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    if (stream->ready_ns < event->moment_ns) {
        stream->ready_ns = event->moment_ns;
    }
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}
PTSZ(cuStreamWaitEvent);
