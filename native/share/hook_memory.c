/* Memory with an address: every way to get it is reserved first. */
#define _GNU_SOURCE
#include "ledger.h"

HOOKED CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    struct claim_of_memory claim;
    if (!claim_begin_here(&claim, size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAlloc_v2)(address, size);
    return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);
}

HOOKED CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size)
{
    struct claim_of_memory claim;
    if (!claim_begin_here(&claim, size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAlloc)(address, size);
    return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);
}

HOOKED CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
    struct claim_of_memory claim;
    if (!claim_begin_here(&claim, size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAllocManaged)(address, size, flags);
    return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);
}

/* How long a row will be, as far as it can be known before; the driver says it exactly. */
static uint64_t rows(uint64_t row, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(memory_units(row), height, &bytes) ? SIZE_MAX / 2 : bytes;
}

HOOKED CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                   unsigned int element)
{
    struct claim_of_memory claim;
    if (!claim_begin_here(&claim, rows(width, height))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    if (result == CUDA_SUCCESS && !claim_more(&claim, rows(*pitch, height))) {
        REAL(cuMemFree_v2)(*address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);
}

HOOKED CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                                unsigned int element)
{
    struct claim_of_memory claim;
    if (!claim_begin_here(&claim, rows(width, height))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAllocPitch)(address, pitch, width, height, element);
    if (result == CUDA_SUCCESS && !claim_more(&claim, rows(*pitch, height))) {
        REAL(cuMemFree)(*address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);
}

/* Taken out of the ledger first: once the driver has it back, another thread may get the same address. */
static bool begin_free(enum kind kind, uint64_t key, struct entry *entry)
{
    return share_mode() == MODE_ON && ledger_take(kind, key, entry);
}

static CUresult end_free(bool known, const struct entry *entry, CUresult result)
{
    if (!known) {
        return result;
    }
    if (result == CUDA_SUCCESS) {
        share_give_back(entry->device, entry->bytes);
    } else if (ledger_expect()) {
        ledger_put(entry);
    }
    return result;
}

HOOKED CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct entry entry;
    bool known = begin_free(KIND_LINEAR, address, &entry);
    return end_free(known, &entry, REAL(cuMemFree_v2)(address));
}

HOOKED CUresult cuMemFree(CUdeviceptr_v1 address)
{
    struct entry entry;
    bool known = begin_free(KIND_LINEAR, address, &entry);
    return end_free(known, &entry, REAL(cuMemFree)(address));
}

#define FREE_ASYNC(name)                                                                                              \
    HOOKED CUresult name(CUdeviceptr address, CUstream stream)                                                        \
    {                                                                                                                 \
        struct entry entry;                                                                                           \
        bool known = begin_free(KIND_LINEAR, address, &entry);                                                        \
        return end_free(known, &entry, REAL(name)(address, stream));                                                  \
    }
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

HOOKED CUresult cuArrayDestroy(CUarray array)
{
    struct entry entry;
    bool known = begin_free(KIND_ARRAY, (uintptr_t)array, &entry);
    return end_free(known, &entry, REAL(cuArrayDestroy)(array));
}

HOOKED CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct entry entry;
    bool known = begin_free(KIND_MIPMAPPED, (uintptr_t)array, &entry);
    return end_free(known, &entry, REAL(cuMipmappedArrayDestroy)(array));
}
