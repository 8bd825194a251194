/* Memory in the order of a stream: it is on the device of the pool that it comes from. */
#define _GNU_SOURCE
#include "ledger.h"

static void note_pool(CUmemoryPool pool, CUdevice device)
{
    struct entry known;
    bool is_new = share_mode() == MODE_ON && !ledger_find(KIND_POOL, (uintptr_t)pool, &known);
    if (is_new && ledger_expect()) {
        struct entry entry = {(uintptr_t)pool, 0, NULL, device, KIND_POOL};
        ledger_put(&entry);
    }
}

HOOKED CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        note_pool(*pool, properties->location.id);
    }
    return result;
}

HOOKED CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct entry entry;
    bool known = share_mode() == MODE_ON && ledger_take(KIND_POOL, (uintptr_t)pool, &entry);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (known && result != CUDA_SUCCESS) {
        note_pool(pool, entry.device);
    }
    return result;
}

HOOKED CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = REAL(cuDeviceGetDefaultMemPool)(pool, device);
    if (result == CUDA_SUCCESS) {
        note_pool(*pool, device);
    }
    return result;
}

HOOKED CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult result = REAL(cuDeviceGetMemPool)(pool, device);
    if (result == CUDA_SUCCESS) {
        note_pool(*pool, device);
    }
    return result;
}

/* Without a context the driver refuses by itself, and nothing is charged. */
static bool begin(struct claim_of_memory *claim, CUmemoryPool pool, CUstream stream, size_t size)
{
    CUcontext context = NULL;
    CUdevice device;
    struct entry known;
    if (share_mode() != MODE_ON) {
        return claim_begin(claim, 0, NULL, size);
    }
    if (!share_stream_context(stream, &context) || !share_context_device(context, &device)) {
        *claim = (struct claim_of_memory){.charged = false};
        return true;
    }
    bool elsewhere = pool != NULL && ledger_find(KIND_POOL, (uintptr_t)pool, &known);
    return claim_begin(claim, elsewhere ? known.device : device, context, size);
}

#define ALLOC_ASYNC(name)                                                                                             \
    HOOKED CUresult name(CUdeviceptr *address, size_t size, CUstream stream)                                          \
    {                                                                                                                 \
        struct claim_of_memory claim;                                                                                 \
        if (!begin(&claim, NULL, stream, size)) {                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = REAL(name)(address, size, stream);                                                          \
        return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);                         \
    }
ALLOC_ASYNC(cuMemAllocAsync)
ALLOC_ASYNC(cuMemAllocAsync_ptsz)

#define ALLOC_FROM_POOL(name)                                                                                         \
    HOOKED CUresult name(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)                       \
    {                                                                                                                 \
        struct claim_of_memory claim;                                                                                 \
        if (!begin(&claim, pool, stream, size)) {                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = REAL(name)(address, size, pool, stream);                                                    \
        return claim_end(&claim, result, KIND_LINEAR, result == CUDA_SUCCESS ? *address : 0);                         \
    }
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz)
