/*
 * Copies and fills. They are done when they are called, after what was queued before them for a synchronous one; since
 * kernels compute nothing, nobody can tell. The data is really kept: what is copied to a device can be copied back.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

enum direction { TO_DEVICE, FROM_DEVICE, WITHIN, ANYWHERE };

static void *pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

/* Whether all of a span is memory of a device, or of the host by CUDA's doing. With driver.lock held. */
static bool is_ours(CUdeviceptr start, size_t size)
{
    const struct range *found = ranges_find(start);
    if (found == NULL || size > found->size - (start - found->start)) {
        return false;
    }
    return found->kind != MEMORY_RESERVED || virtual_covers(start, size);
}

static bool check(CUdeviceptr to, CUdeviceptr from, size_t size, enum direction direction)
{
    pthread_mutex_lock(&driver.lock);
    bool to_ours = direction == FROM_DEVICE || direction == ANYWHERE || is_ours(to, size);
    bool from_ours = direction == TO_DEVICE || direction == ANYWHERE || is_ours(from, size);
    pthread_mutex_unlock(&driver.lock);
    return to_ours && from_ours;
}

static void count(uint32_t device, size_t size, enum direction direction)
{
    vgpu_lock(driver.file);
    vgpu_count_copy(&driver.file->devices[device], vgpu_now_ns(), direction == TO_DEVICE ? size : 0,
                    direction == FROM_DEVICE ? size : 0);
    vgpu_unlock(driver.file);
}

static CUresult begin(CUstream handle, bool wait, struct CUstream_st **stream)
{
    CUresult result = driver_stream(handle, stream);
    return result == CUDA_SUCCESS && wait ? stream_wait(*stream) : result;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, enum direction direction, CUstream handle,
                     bool wait)
{
    struct CUstream_st *stream;
    CUresult result = begin(handle, wait, &stream);
    if (result != CUDA_SUCCESS || size == 0) {
        return result;
    }
    if (!check(to, from, size, direction)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->capture != NULL) {
        return stream_launch(stream, 0);
    }
    memmove(pointer(to), pointer(from), size);
    count(stream->context->device, size, direction);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy(to, from, size, ANYWHERE, NULL, true);
}
PTDS(cuMemcpy);

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy(to, from, size, ANYWHERE, stream, false);
}
PTSZ(cuMemcpyAsync);

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy(to, (CUdeviceptr)(uintptr_t)from, size, TO_DEVICE, NULL, true);
}
PTDS(cuMemcpyHtoD_v2);

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    return copy(to, (CUdeviceptr)(uintptr_t)from, size, TO_DEVICE, stream, false);
}
PTSZ(cuMemcpyHtoDAsync_v2);

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy((CUdeviceptr)(uintptr_t)to, from, size, FROM_DEVICE, NULL, true);
}
PTDS(cuMemcpyDtoH_v2);

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy((CUdeviceptr)(uintptr_t)to, from, size, FROM_DEVICE, stream, false);
}
PTSZ(cuMemcpyDtoHAsync_v2);

API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy(to, from, size, WITHIN, NULL, false);
}
PTDS(cuMemcpyDtoD_v2);

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    return copy(to, from, size, WITHIN, stream, false);
}
PTSZ(cuMemcpyDtoDAsync_v2);

API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
    (void)to_context;
    (void)from_context;
    return copy(to, from, size, WITHIN, NULL, false);
}
PTDS(cuMemcpyPeer);

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                               size_t size, CUstream stream)
{
    (void)to_context;
    (void)from_context;
    return copy(to, from, size, WITHIN, stream, false);
}
PTSZ(cuMemcpyPeerAsync);

static CUresult copy_rows(const CUDA_MEMCPY2D *what, CUstream handle, bool wait)
{
    struct CUstream_st *stream;
    if (what == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (what->srcMemoryType == CU_MEMORYTYPE_ARRAY || what->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        return CUDA_ERROR_NOT_SUPPORTED; /* arrays are counted, but have no contents */
    }
    CUresult result = begin(handle, wait, &stream);
    if (result != CUDA_SUCCESS || what->Height == 0 || what->WidthInBytes == 0) {
        return result;
    }
    bool from_host = what->srcMemoryType == CU_MEMORYTYPE_HOST;
    bool to_host = what->dstMemoryType == CU_MEMORYTYPE_HOST;
    size_t from_pitch = what->srcPitch != 0 ? what->srcPitch : what->WidthInBytes;
    size_t to_pitch = what->dstPitch != 0 ? what->dstPitch : what->WidthInBytes;
    CUdeviceptr from = from_host ? (CUdeviceptr)(uintptr_t)what->srcHost : what->srcDevice;
    CUdeviceptr to = to_host ? (CUdeviceptr)(uintptr_t)what->dstHost : what->dstDevice;
    from += what->srcY * from_pitch + what->srcXInBytes;
    to += what->dstY * to_pitch + what->dstXInBytes;
    enum direction direction = from_host ? (to_host ? ANYWHERE : TO_DEVICE) : to_host ? FROM_DEVICE : WITHIN;
    for (size_t row = 0; row < what->Height; row++) {
        CUdeviceptr to_row = to + row * to_pitch;
        CUdeviceptr from_row = from + row * from_pitch;
        if (!check(to_row, from_row, what->WidthInBytes, direction)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        memmove(pointer(to_row), pointer(from_row), what->WidthInBytes);
    }
    count(stream->context->device, what->WidthInBytes * what->Height, direction);
    return CUDA_SUCCESS;
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *what)
{
    return copy_rows(what, NULL, true);
}
PTDS(cuMemcpy2D_v2);

API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *what)
{
    return copy_rows(what, NULL, true);
}
PTDS(cuMemcpy2DUnaligned_v2);

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *what, CUstream stream)
{
    return copy_rows(what, stream, false);
}
PTSZ(cuMemcpy2DAsync_v2);

/* Fills rows of `width` elements of `unit` bytes. */
static CUresult fill(CUdeviceptr to, size_t pitch, unsigned int value, size_t unit, size_t width, size_t height,
                     CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = begin(handle, false, &stream);
    if (result != CUDA_SUCCESS || width == 0 || height == 0) {
        return result;
    }
    if (width > SIZE_MAX / unit || to % unit != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t row = 0; row < height; row++) {
        CUdeviceptr start = to + row * pitch;
        if (!check(start, start, width * unit, WITHIN)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (unit == 1) {
            memset(pointer(start), (int)value, width);
        }
        for (size_t place = 0; unit != 1 && place < width; place++) {
            memcpy(pointer(start + place * unit), &value, unit); /* the low bytes: devices are little-endian hosts */
        }
    }
    return CUDA_SUCCESS;
}

#define FILLS(bits, type)                                                                                             \
    API CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                                       \
    {                                                                                                                 \
        return fill(to, 0, value, sizeof value, count, 1, NULL);                                                      \
    }                                                                                                                 \
    PTDS(cuMemsetD##bits##_v2);                                                                                       \
    API CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream)                    \
    {                                                                                                                 \
        return fill(to, 0, value, sizeof value, count, 1, stream);                                                    \
    }                                                                                                                 \
    PTSZ(cuMemsetD##bits##Async);                                                                                     \
    API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)        \
    {                                                                                                                 \
        return fill(to, pitch, value, sizeof value, width, height, NULL);                                             \
    }                                                                                                                 \
    PTDS(cuMemsetD2D##bits##_v2);                                                                                     \
    API CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,      \
                                          CUstream stream)                                                            \
    {                                                                                                                 \
        return fill(to, pitch, value, sizeof value, width, height, stream);                                           \
    }                                                                                                                 \
    PTSZ(cuMemsetD2D##bits##Async)

FILLS(8, unsigned char);
FILLS(16, unsigned short);
FILLS(32, unsigned int);
