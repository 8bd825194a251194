/*
 * Settings of a context that take memory of the device: the heap of kernels that allocate, the buffer of those that
 * print, and the stack, of which every thread that the device can hold has one. What a context has without being told
 * belongs to it, and is not charged, as nothing of the context is.
 */
#define _GNU_SOURCE
#include "ledger.h"

enum { DEFAULT_STACK_BYTES = 1024 };

static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER;

/* How many threads the device can hold at once. */
static uint64_t threads_of(CUdevice device)
{
    int processors = 0, threads = 0;
    REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return (uint64_t)processors * (uint64_t)threads;
}

static uint64_t bytes_of(int limit, size_t value, CUdevice device)
{
    uint64_t bytes = value;
    if (limit == CU_LIMIT_STACK_SIZE) {
        uint64_t more = value > DEFAULT_STACK_BYTES ? value - DEFAULT_STACK_BYTES : 0;
        bytes = __builtin_mul_overflow(more, threads_of(device), &bytes) ? SIZE_MAX / 2 : bytes;
    }
    return memory_units(bytes);
}

/* With `setting` held. What was charged for this setting before is part of what it takes now. */
static CUresult set(int limit, size_t value, CUcontext context, CUdevice device)
{
    struct entry before = {(uintptr_t)context + (uint64_t)limit, 0, context, device, KIND_SETTING};
    struct entry after = before;
    if (!ledger_expect()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ledger_take(KIND_SETTING, before.key, &before);
    after.bytes = bytes_of(limit, value, device);
    bool is_more = after.bytes > before.bytes;
    if (is_more && !share_reserve(device, after.bytes - before.bytes)) {
        ledger_put(&before);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuCtxSetLimit)(limit, value);
    if (is_more && result != CUDA_SUCCESS) {
        share_give_back(device, after.bytes - before.bytes);
    } else if (!is_more && result == CUDA_SUCCESS) {
        share_give_back(device, before.bytes - after.bytes);
    }
    ledger_put(result == CUDA_SUCCESS ? &after : &before);
    return result;
}

HOOKED CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context = NULL;
    CUdevice device;
    bool takes_memory = limit >= CU_LIMIT_STACK_SIZE && limit <= CU_LIMIT_MALLOC_HEAP_SIZE;
    enum mode mode = share_mode();
    if (takes_memory && mode == MODE_BROKEN) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* Without a context the driver refuses by itself. */
    if (!takes_memory || mode == MODE_OFF || !share_stream_context(NULL, &context) ||
        !share_context_device(context, &device)) {
        return REAL(cuCtxSetLimit)(limit, value);
    }
    pthread_mutex_lock(&setting);
    CUresult result = set(limit, value, context, device);
    pthread_mutex_unlock(&setting);
    return result;
}
