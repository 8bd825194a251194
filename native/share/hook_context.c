/* Contexts that end take along what was allocated in them. */
#define _GNU_SOURCE
#include "credit.h"
#include "ledger.h"

enum { DEVICES = 64 };

static CUcontext primary[DEVICES]; /* atomic */

static void ended(CUcontext context)
{
    struct entry entry;
    if (share_mode() != MODE_ON) {
        return;
    }
    share_forget_context();
    cost_forget_context(context);
    size_t cursor = 0;
    while (context != NULL && ledger_take_next_of(context, &cursor, &entry)) {
        share_give_back(entry.device, entry.bytes);
    }
}

HOOKED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_SUCCESS && device >= 0 && device < DEVICES) {
        __atomic_store_n(&primary[device], *context, __ATOMIC_RELAXED);
    }
    return result;
}

/* Others may hold it as well: the driver says whether it is over. */
static CUresult released(CUdevice device, CUresult result)
{
    unsigned int flags;
    int active = 1;
    if (result == CUDA_SUCCESS && device >= 0 && device < DEVICES &&
        REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && !active) {
        ended(__atomic_load_n(&primary[device], __ATOMIC_RELAXED));
    }
    return result;
}

HOOKED CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return released(device, REAL(cuDevicePrimaryCtxRelease)(device));
}

HOOKED CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return released(device, REAL(cuDevicePrimaryCtxRelease_v2)(device));
}

HOOKED CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return released(device, REAL(cuDevicePrimaryCtxReset)(device));
}

HOOKED CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return released(device, REAL(cuDevicePrimaryCtxReset_v2)(device));
}

HOOKED CUresult cuCtxDestroy(CUcontext context)
{
    CUresult result = REAL(cuCtxDestroy)(context);
    if (result == CUDA_SUCCESS) {
        ended(context);
    }
    return result;
}

HOOKED CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = REAL(cuCtxDestroy_v2)(context);
    if (result == CUDA_SUCCESS) {
        ended(context);
    }
    return result;
}
