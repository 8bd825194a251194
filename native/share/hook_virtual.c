/*
 * Memory by handle. It is charged when it is created, and free again when no handle to it and no mapping of it is left:
 * most programs release the handle at once and keep the mapping.
 *
 * Memory can be handed to another process. Only the driver knows for how long that one, or a descriptor on its way to
 * it, keeps it. So what was exported stays charged until the process ends, and what was imported is charged when it is
 * mapped: its size is not known before. Memory that two processes have is charged to both.
 */
#define _GNU_SOURCE
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

struct block {
    CUdevice device;
    uint64_t bytes;
    uint32_t handles;
    uint32_t mappings;
    bool exported;
    bool imported;
};

struct mapping {
    CUdeviceptr start;
    size_t size;
    struct block *block;
};

/* Held while the driver is asked, so that handles and addresses that it gives anew meet no old entry. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings; /* by start */
static size_t count, room;

static void drop_unused(struct block *block)
{
    if (block->handles == 0 && block->mappings == 0) {
        if (!block->exported) {
            share_give_back(block->device, block->bytes);
        }
        free(block);
    }
}

void virtual_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    count = 0;
}

/* The first mapping that starts behind the address. */
static size_t behind(CUdeviceptr address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings[middle].start <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool has_room(void)
{
    if (count < room) {
        return true;
    }
    size_t more = room == 0 ? 64 : 2 * room;
    struct mapping *made = realloc(mappings, more * sizeof *made);
    if (made != NULL) {
        mappings = made;
        room = more;
    }
    return made != NULL;
}

HOOKED CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    struct claim_of_memory claim;
    bool on_device = properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (!on_device) {
        return REAL(cuMemCreate)(handle, size, properties, flags);
    }
    struct block *block = malloc(sizeof *block);
    if (block == NULL || !claim_begin(&claim, properties->location.id, block, size)) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *block = (struct block){.device = claim.device, .bytes = claim.bytes, .handles = 1};
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
    claim_end(&claim, result, KIND_HANDLE, result == CUDA_SUCCESS ? *handle : 0);
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS || !claim.charged) {
        free(block);
    }
    return result;
}

HOOKED CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct entry entry;
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS && share_mode() == MODE_ON && ledger_find(KIND_HANDLE, handle, &entry)) {
        struct block *block = entry.owner;
        if (--block->handles == 0) {
            ledger_take(KIND_HANDLE, handle, &entry);
            drop_unused(block);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* False: refused. A mapping that fails afterwards leaves the charge: the memory may be mapped as far the next time. */
static bool charge_import(struct block *block, size_t size, size_t offset)
{
    size_t end;
    uint64_t bytes = __builtin_add_overflow(size, offset, &end) ? SIZE_MAX / 2 : memory_units(end);
    if (!block->imported || bytes <= block->bytes) {
        return true;
    }
    bool taken = share_reserve(block->device, bytes - block->bytes);
    block->bytes = taken ? bytes : block->bytes;
    return taken;
}

HOOKED CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    struct entry entry;
    pthread_mutex_lock(&lock);
    bool ours = share_mode() == MODE_ON && ledger_find(KIND_HANDLE, handle, &entry);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!ours || (has_room() && charge_import(entry.owner, size, offset))) {
        result = REAL(cuMemMap)(address, size, offset, handle, flags);
    }
    if (ours && result == CUDA_SUCCESS) {
        size_t place = behind(address);
        memmove(&mappings[place + 1], &mappings[place], (count - place) * sizeof *mappings);
        mappings[place] = (struct mapping){address, size, entry.owner};
        mappings[place].block->mappings++;
        count++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

HOOKED CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemUnmap)(address, size);
    if (result == CUDA_SUCCESS && count > 0) {
        size_t first = address == 0 ? 0 : behind(address - 1);
        size_t end = first;
        while (end < count && mappings[end].start - address < size) {
            mappings[end].block->mappings--;
            drop_unused(mappings[end].block);
            end++;
        }
        memmove(&mappings[first], &mappings[end], (count - end) * sizeof *mappings);
        count -= end - first;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

HOOKED CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUdeviceptr inside = (CUdeviceptr)(uintptr_t)address;
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    size_t place = result == CUDA_SUCCESS ? behind(inside) : 0;
    const struct mapping *mapping = place == 0 ? NULL : &mappings[place - 1];
    if (mapping != NULL && inside - mapping->start < mapping->size) {
        struct entry known;
        bool listed = ledger_find(KIND_HANDLE, *handle, &known);
        mapping->block->handles++;
        if (!listed && ledger_expect()) {
            struct entry entry = {*handle, mapping->block->bytes, mapping->block, mapping->block->device, KIND_HANDLE};
            ledger_put(&entry);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

HOOKED CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int kind,
                                             unsigned long long flags)
{
    struct entry entry;
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemExportToShareableHandle)(shared, handle, kind, flags);
    if (result == CUDA_SUCCESS && share_mode() == MODE_ON && ledger_find(KIND_HANDLE, handle, &entry)) {
        ((struct block *)entry.owner)->exported = true;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* With the lock held: notes a handle that came from another process. False when there is no room to. */
static bool note_import(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp properties;
    struct entry known;
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_SUCCESS) {
        return false;
    }
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return true; /* not of a device */
    }
    if (ledger_find(KIND_HANDLE, handle, &known)) {
        ((struct block *)known.owner)->handles++;
        return true;
    }
    struct block *block = malloc(sizeof *block);
    if (block == NULL || !ledger_expect()) {
        free(block);
        return false;
    }
    *block = (struct block){.device = properties.location.id, .handles = 1, .imported = true};
    struct entry entry = {handle, 0, block, block->device, KIND_HANDLE};
    ledger_put(&entry);
    return true;
}

HOOKED CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int kind)
{
    enum mode mode = share_mode();
    if (mode == MODE_BROKEN) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shared, kind);
    if (result == CUDA_SUCCESS && mode == MODE_ON && !note_import(*handle)) {
        REAL(cuMemRelease)(*handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
