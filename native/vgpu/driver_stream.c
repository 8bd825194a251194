/* Streams: work in order, and when it will be done. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

enum { STREAM_NON_BLOCKING = 1 };

#define REAP_EVERY_NS (100 * VGPU_MILLISECOND_NS)

CUresult driver_stream(CUstream handle, struct CUstream_st **stream)
{
    CUcontext context;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        CUresult result = driver_context(&context);
        if (result == CUDA_SUCCESS) {
            *stream = &context->default_stream;
        }
        return result;
    }
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *stream = handle;
    return handle->context->alive ? driver_health(handle->context->device) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

uint64_t stream_ready_ns(const struct CUstream_st *stream)
{
    pthread_mutex_lock(&driver.lock);
    uint64_t ready_ns = stream->ready_ns;
    pthread_mutex_unlock(&driver.lock);
    return ready_ns;
}

CUresult stream_wait(const struct CUstream_st *stream)
{
    struct CUctx_st *context = stream->context;
    pthread_mutex_lock(&driver.lock);
    bool capturing = stream->capture != NULL;
    uint64_t ready_ns = stream->ready_ns;
    /* The default stream waits for all others but those that were created not to care. */
    if (stream == &context->default_stream) {
        for (const struct CUstream_st *other = context->streams; other != NULL; other = other->next) {
            if ((other->flags & STREAM_NON_BLOCKING) == 0 && other->ready_ns > ready_ns) {
                ready_ns = other->ready_ns;
            }
        }
    }
    pthread_mutex_unlock(&driver.lock);
    if (capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    vgpu_sleep_until(ready_ns);
    return driver_health(context->device);
}

/* Waits, without the lock, until there is room for another launch. As with a real device, a launch waits while a
 * thousand others of its stream do. Gives the place for the time at which it will end. */
static uint64_t *wait_for_room(struct CUstream_st *stream)
{
    for (;;) {
        uint64_t *end_ns = &stream->ends_ns[stream->launched % QUEUE_DEPTH];
        uint64_t room_ns = *end_ns;
        if (room_ns == 0 || room_ns <= vgpu_now_ns()) {
            return end_ns;
        }
        pthread_mutex_unlock(&driver.lock);
        vgpu_sleep_until(room_ns);
        pthread_mutex_lock(&driver.lock);
    }
}

static uint64_t enqueue(const struct CUstream_st *stream, uint64_t length_ns)
{
    vgpu_lock(driver.file);
    vgpu_reap_after(driver.file, vgpu_now_ns(), REAP_EVERY_NS);
    uint64_t done_ns =
        vgpu_enqueue(driver.file, driver.process, stream->context->device, stream->ready_ns, length_ns);
    vgpu_unlock(driver.file);
    return done_ns;
}

CUresult stream_launch(struct CUstream_st *stream, uint64_t length_ns)
{
    CUresult result = driver_health(stream->context->device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    if (stream->capture != NULL) {
        result = graph_record(stream->capture, length_ns);
        pthread_mutex_unlock(&driver.lock);
        return result;
    }
    uint64_t *end_ns = wait_for_room(stream);
    uint64_t done_ns = enqueue(stream, length_ns);
    while (done_ns == 0) { /* the queue of the device is full: too many processes take turns */
        pthread_mutex_unlock(&driver.lock);
        vgpu_sleep_until(vgpu_now_ns() + VGPU_MILLISECOND_NS);
        pthread_mutex_lock(&driver.lock);
        end_ns = wait_for_room(stream);
        done_ns = enqueue(stream, length_ns);
    }
    *end_ns = done_ns;
    stream->launched++;
    stream->ready_ns = done_ns;
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct CUstream_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->context = context;
    made->flags = flags;
    made->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    pthread_mutex_lock(&driver.lock);
    made->id = driver.next_id++;
    made->next = context->streams;
    context->streams = made;
    pthread_mutex_unlock(&driver.lock);
    *stream = made;
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

API CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&driver.lock);
    for (struct CUstream_st **link = &handle->context->streams; *link != NULL; link = &(*link)->next) {
        if (*link == handle) {
            *link = handle->next;
            free(handle);
            break;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    return CUDA_SUCCESS;
}
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);

void streams_destroy_all(struct CUctx_st *context)
{
    while (context->streams != NULL) {
        struct CUstream_st *stream = context->streams;
        context->streams = stream->next;
        free(stream);
    }
}

API CUresult cuStreamSynchronize(CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    return result == CUDA_SUCCESS ? stream_wait(stream) : result;
}
PTSZ(cuStreamSynchronize);

API CUresult cuStreamQuery(CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return stream_ready_ns(stream) > vgpu_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
PTSZ(cuStreamQuery);

API CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *priority = stream->priority;
    }
    return result;
}
PTSZ(cuStreamGetPriority);

API CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *flags = stream->flags;
    }
    return result;
}
PTSZ(cuStreamGetFlags);

API CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *id = stream->id;
    }
    return result;
}
PTSZ(cuStreamGetId);

API CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *context = stream->context;
    }
    return result;
}
PTSZ(cuStreamGetCtx);

API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, void **green)
{
    CUresult result = cuStreamGetCtx(handle, context);
    if (result == CUDA_SUCCESS && green != NULL) {
        *green = NULL;
    }
    return result;
}
PTSZ(cuStreamGetCtx_v2);

API CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *device = stream->context->ordinal;
    }
    return result;
}
PTSZ(cuStreamGetDevice);

/* A function of the host has its turn when the stream is there; nothing runs in the background, so the caller waits. */
API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user_data)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = stream_wait(stream);
    }
    if (result == CUDA_SUCCESS) {
        function(user_data);
    }
    return result;
}
PTSZ(cuLaunchHostFunc);

API CUresult cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *user_data, unsigned int mode)
{
    (void)mode;
    return cuLaunchHostFunc(handle, function, user_data);
}
PTSZ(cuLaunchHostFunc_v2);

API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *user_data, unsigned int flags)
{
    struct CUstream_st *stream;
    (void)flags;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = stream_wait(stream);
    }
    if (result == CUDA_SUCCESS) {
        callback(handle, CUDA_SUCCESS, user_data);
    }
    return result;
}
PTSZ(cuStreamAddCallback);
