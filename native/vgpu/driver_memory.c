/* Memory of a device and of the host: every byte of a device is charged in the model before it is given out. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

enum { CHARGE_UNIT = 512, PITCH_UNIT = 512 };
#ifndef MAP_32BIT
#define MAP_32BIT 0
#endif

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

CUresult memory_charge(uint32_t device, size_t bytes)
{
    vgpu_lock(driver.file);
    bool fits = vgpu_take(driver.file, driver.process, device, bytes);
    vgpu_unlock(driver.file);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_uncharge(uint32_t device, size_t bytes)
{
    vgpu_lock(driver.file);
    vgpu_give_back(driver.file, driver.process, device, bytes);
    vgpu_unlock(driver.file);
}

static CUresult place(struct range *range, int low)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | low;
    void *pages = mmap(NULL, range->size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (pages == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->start = (CUdeviceptr)(uintptr_t)pages;
    pthread_mutex_lock(&driver.lock);
    range->id = driver.next_id++;
    bool added = ranges_add(range);
    if (added && range->pool != NULL) {
        pool_count(range->pool, range->charged_bytes, true);
    }
    pthread_mutex_unlock(&driver.lock);
    if (!added) {
        munmap(pages, range->size);
    }
    return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_allocate(CUcontext context, CUdeviceptr *address, size_t size, enum memory_kind kind,
                         CUmemoryPool pool)
{
    if (address == NULL || size == 0 || size > SIZE_MAX / 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int low = (int)kind == MEMORY_LOW ? MAP_32BIT : 0;
    struct range range = {.size = size, .kind = low ? MEMORY_DEVICE : kind, .context = context, .pool = pool};
    CUresult result = CUDA_SUCCESS;
    if (kind != MEMORY_HOST) {
        range.charged_bytes = round_up(size, CHARGE_UNIT);
        result = memory_charge(context->device, range.charged_bytes);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = place(&range, low);
    if (result == CUDA_SUCCESS) {
        *address = range.start;
    } else if (range.charged_bytes != 0) {
        memory_uncharge(context->device, range.charged_bytes);
    }
    return result;
}

/* With driver.lock held. */
static void release(const struct range *range)
{
    if (range->kind != MEMORY_REGISTERED) {
        munmap((void *)(uintptr_t)range->start, range->size);
    }
    if (range->charged_bytes != 0) {
        memory_uncharge(range->context->device, range->charged_bytes);
    }
    if (range->pool != NULL) {
        pool_count(range->pool, range->charged_bytes, false);
    }
}

static CUresult remove_range(CUdeviceptr address, bool host)
{
    struct range removed;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find(address);
    bool fits = found != NULL && found->start == address &&
                (host ? found->kind == MEMORY_HOST
                      : found->kind == MEMORY_DEVICE || found->kind == MEMORY_MANAGED);
    if (fits && ranges_remove(address, &removed)) {
        release(&removed);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

CUresult memory_free(CUdeviceptr address)
{
    return remove_range(address, false);
}

void memory_free_all_of(struct CUctx_st *context)
{
    struct range removed;
    while (ranges_remove_one_of(context, &removed)) {
        release(&removed);
    }
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    return result == CUDA_SUCCESS ? memory_allocate(context, address, size, MEMORY_DEVICE, NULL) : result;
}

API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
    CUcontext context;
    (void)flags;
    CUresult result = driver_context(&context);
    return result == CUDA_SUCCESS ? memory_allocate(context, address, size, MEMORY_MANAGED, NULL) : result;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pitch == NULL || (element != 4 && element != 8 && element != 16) || width == 0 || height == 0 ||
        width > SIZE_MAX / 4 / height) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t row = round_up(width, PITCH_UNIT);
    result = memory_allocate(context, address, row * height, MEMORY_DEVICE, NULL);
    if (result == CUDA_SUCCESS) {
        *pitch = row;
    }
    return result;
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result = driver_ready();
    return result != CUDA_SUCCESS || address == 0 ? result : memory_free(address);
}

API CUresult cuMemHostAlloc(void **address, size_t size, unsigned int flags)
{
    CUcontext context;
    CUdeviceptr found = 0;
    (void)flags;
    CUresult result = driver_context(&context);
    if (result == CUDA_SUCCESS) {
        result = memory_allocate(context, &found, size, MEMORY_HOST, NULL);
    }
    if (result == CUDA_SUCCESS) {
        *address = (void *)(uintptr_t)found;
    }
    return result;
}

API CUresult cuMemAllocHost_v2(void **address, size_t size)
{
    return cuMemHostAlloc(address, size, 0);
}

API CUresult cuMemFreeHost(void *address)
{
    CUresult result = driver_ready();
    return result != CUDA_SUCCESS || address == NULL ? result : remove_range((CUdeviceptr)(uintptr_t)address, true);
}

API CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
    CUcontext context;
    (void)flags;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range range = {.start = (CUdeviceptr)(uintptr_t)address, .size = size, .kind = MEMORY_REGISTERED,
                          .context = context};
    pthread_mutex_lock(&driver.lock);
    if (address == NULL || size == 0) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (ranges_find(range.start) != NULL) {
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (!ranges_add(&range)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuMemHostUnregister(void *address)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range removed;
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find((CUdeviceptr)(uintptr_t)address);
    if (found == NULL || found->kind != MEMORY_REGISTERED || !ranges_remove(found->start, &removed)) {
        result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned int flags)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find((CUdeviceptr)(uintptr_t)host);
    pthread_mutex_unlock(&driver.lock);
    if (found == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *address = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *host)
{
    (void)host;
    *flags = CU_MEMHOSTALLOC_DEVICEMAP;
    return driver_ready();
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct vgpu_device *device = &driver.file->devices[context->device];
    vgpu_lock(driver.file);
    vgpu_reap(driver.file);
    uint64_t used_bytes = device->used_bytes;
    vgpu_unlock(driver.file);
    if (free_bytes != NULL) {
        *free_bytes = device->memory_bytes - used_bytes;
    }
    if (total_bytes != NULL) {
        *total_bytes = device->memory_bytes;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr address)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find(address);
    if (found == NULL) {
        result = CUDA_ERROR_NOT_FOUND;
    } else {
        if (start != NULL) {
            *start = found->start;
        }
        if (size != NULL) {
            *size = found->size;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}
