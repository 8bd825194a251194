/* Virtual memory management: physical memory by handle, addresses reserved apart from it, and mappings between them. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20 };

struct block {
    uint32_t device;
    size_t size;
    int memory; /* a file without a name */
    int references;
    CUmemAllocationProp properties;
    struct block *next;
};

struct mapping {
    CUdeviceptr start;
    size_t size;
    struct block *block;
    struct mapping *next;
};

/* Both under driver.lock. */
static struct block *blocks;
static struct mapping *mappings;

static struct block *block_of(CUmemGenericAllocationHandle handle)
{
    struct block *block = blocks;
    while (block != NULL && block != (struct block *)(uintptr_t)handle) {
        block = block->next;
    }
    return block;
}

static void drop(struct block *block)
{
    if (--block->references > 0) {
        return;
    }
    struct block **link = &blocks;
    while (*link != block) {
        link = &(*link)->next;
    }
    *link = block->next;
    close(block->memory);
    memory_uncharge(block->device, block->size);
    free(block);
}

bool virtual_covers(CUdeviceptr start, size_t size)
{
    while (size > 0) {
        const struct mapping *found = mappings;
        while (found != NULL && !(found->start <= start && start - found->start < found->size)) {
            found = found->next;
        }
        if (found == NULL) {
            return false;
        }
        size_t covered = found->size - (start - found->start);
        if (covered >= size) {
            return true;
        }
        start += covered;
        size -= covered;
    }
    return true;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    (void)option;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (granularity == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                         unsigned long long flags)
{
    if (handle == NULL || properties == NULL || flags != 0 || size == 0 || size % GRANULARITY != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    uint32_t device;
    CUresult result = driver_device(properties->location.id, &device);
    if (result == CUDA_SUCCESS) {
        result = driver_health(device);
    }
    if (result == CUDA_SUCCESS) {
        result = memory_charge(device, size);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct block *block = calloc(1, sizeof *block);
    int memory = memfd_create("vgpu", MFD_CLOEXEC);
    if (block == NULL || memory < 0 || ftruncate(memory, (off_t)size) != 0) {
        if (memory >= 0) {
            close(memory);
        }
        free(block);
        memory_uncharge(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *block = (struct block){device, size, memory, 1, *properties, NULL};
    pthread_mutex_lock(&driver.lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&driver.lock);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)block;
    return CUDA_SUCCESS;
}

API CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int kind,
                                          unsigned long long flags)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&driver.lock);
    const struct block *block = flags == 0 && shared != NULL ? block_of(handle) : NULL;
    int made = block == NULL ? -1 : fcntl(block->memory, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&driver.lock);
    if (made < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(shared, &made, sizeof made);
    return CUDA_SUCCESS;
}

/* The importing process is charged as well: the one that the memory comes from may be gone. */
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int kind)
{
    CUcontext context;
    struct stat status;
    int given = (int)(uintptr_t)shared;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (handle == NULL || fstat(given, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = memory_charge(context->device, (size_t)status.st_size);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct block *block = calloc(1, sizeof *block);
    int memory = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (block == NULL || memory < 0) {
        free(block);
        memory_uncharge(context->device, (size_t)status.st_size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, context->ordinal}};
    pthread_mutex_lock(&driver.lock);
    *block = (struct block){context->device, (size_t)status.st_size, memory, 1, properties, blocks};
    blocks = block;
    pthread_mutex_unlock(&driver.lock);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)block;
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    struct block *block = block_of(handle);
    if (block != NULL) {
        drop(block);
    }
    pthread_mutex_unlock(&driver.lock);
    return block == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                                 unsigned long long flags)
{
    (void)alignment;
    (void)wanted;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || flags != 0 || size == 0 || size % GRANULARITY != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *pages = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct range range = {.start = (CUdeviceptr)(uintptr_t)pages, .size = size, .kind = MEMORY_RESERVED};
    pthread_mutex_lock(&driver.lock);
    range.id = driver.next_id++;
    bool added = ranges_add(&range);
    pthread_mutex_unlock(&driver.lock);
    if (!added) {
        munmap(pages, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = range.start;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct range removed;
    pthread_mutex_lock(&driver.lock);
    const struct range *found = ranges_find(address);
    bool mapped = false;
    for (const struct mapping *one = mappings; one != NULL; one = one->next) {
        mapped |= one->start >= address && one->start - address < size;
    }
    if (found == NULL || found->start != address || found->size != size || found->kind != MEMORY_RESERVED || mapped ||
        !ranges_remove(address, &removed)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        munmap((void *)(uintptr_t)address, size);
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

/* With driver.lock held. */
static CUresult map(CUdeviceptr address, size_t size, struct block *block)
{
    const struct range *found = ranges_find(address);
    if (block == NULL || size == 0 || size > block->size || found == NULL || found->kind != MEMORY_RESERVED ||
        size > found->size - (address - found->start)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (const struct mapping *one = mappings; one != NULL; one = one->next) {
        if (one->start < address + size && address < one->start + one->size) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    struct mapping *made = malloc(sizeof *made);
    void *place = (void *)(uintptr_t)address;
    /* No access yet: cuMemSetAccess gives it. */
    if (made == NULL || mmap(place, size, PROT_NONE, MAP_SHARED | MAP_FIXED, block->memory, 0) == MAP_FAILED) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct mapping){address, size, block, mappings};
    mappings = made;
    block->references++;
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (offset != 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    result = map(address, size, block_of(handle));
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool any = false;
    pthread_mutex_lock(&driver.lock);
    struct mapping **link = &mappings;
    while (*link != NULL) {
        struct mapping *one = *link;
        if (one->start < address || one->start - address >= size) {
            link = &one->next;
            continue;
        }
        any = true;
        *link = one->next;
        mmap((void *)(uintptr_t)one->start, one->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drop(one->block);
        free(one);
    }
    pthread_mutex_unlock(&driver.lock);
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (access == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    if (!virtual_covers(address, size) ||
        mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE) != 0) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr inside = (CUdeviceptr)(uintptr_t)address;
    pthread_mutex_lock(&driver.lock);
    for (const struct mapping *one = mappings; one != NULL; one = one->next) {
        if (one->start <= inside && inside - one->start < one->size) {
            one->block->references++;
            *handle = (CUmemGenericAllocationHandle)(uintptr_t)one->block;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                    CUmemGenericAllocationHandle handle)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&driver.lock);
    const struct block *block = block_of(handle);
    if (block != NULL && properties != NULL) {
        *properties = block->properties;
    }
    pthread_mutex_unlock(&driver.lock);
    return block == NULL || properties == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
