/* Which device of the region is meant: by UUID, by the driver's number, by context, by stream. */
#define _GNU_SOURCE
#include "share.h"

#include <stdio.h>

enum { ORDINALS = 64 };

static int places[ORDINALS]; /* atomic: place plus 1; 0: not known */
static uint64_t generation = 1; /* atomic: of what is known about contexts */

static _Thread_local struct {
    CUcontext context;
    CUdevice device;
    uint64_t generation;
} last;

int share_place_of_uuid(const char *uuid)
{
    for (uint32_t d = 0; d < region_devices(share.region); d++) {
        char known[SHARE_UUID];
        region_uuid(share.region, d, known);
        if (limits_same_uuid(known, uuid)) {
            return (int)d;
        }
    }
    return NOT_GIVEN;
}

int share_place(CUdevice device)
{
    if (device < 0 || device >= ORDINALS) {
        return NOT_GIVEN;
    }
    int known = __atomic_load_n(&places[device], __ATOMIC_RELAXED);
    if (known != 0) {
        return known - 1;
    }
    CUuuid uuid;
    bool second = real_exists(CALL_cuDeviceGetUuid_v2);
    CUresult result = second ? REAL(cuDeviceGetUuid_v2)(&uuid, device) : REAL(cuDeviceGetUuid)(&uuid, device);
    if (result != CUDA_SUCCESS) {
        return NOT_GIVEN;
    }
    char text[SHARE_UUID] = "GPU-";
    size_t length = 4;
    for (int b = 0; b < 16; b++) {
        const char *dash = b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "";
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%02x", dash, (unsigned char)uuid.bytes[b]);
    }
    int place = share_place_of_uuid(text);
    if (place != NOT_GIVEN) { /* what is not given may be later, when the limits change */
        __atomic_store_n(&places[device], place + 1, __ATOMIC_RELAXED);
    }
    return place;
}

bool share_context_device(CUcontext context, CUdevice *device)
{
    uint64_t now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (context != NULL && last.context == context && last.generation == now) {
        *device = last.device;
        return true;
    }
    CUcontext current = NULL;
    CUresult result = REAL(cuCtxGetCurrent)(&current);
    if (result != CUDA_SUCCESS || context == NULL) {
        return false;
    }
    if (current != context && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
        return false;
    }
    result = REAL(cuCtxGetDevice)(device);
    if (current != context) {
        REAL(cuCtxPopCurrent_v2)(&current);
    }
    if (result == CUDA_SUCCESS) {
        last.context = context;
        last.device = *device;
        last.generation = now;
    }
    return result == CUDA_SUCCESS;
}

bool share_stream_context(CUstream stream, CUcontext *context)
{
    bool none = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    CUresult result = none ? REAL(cuCtxGetCurrent)(context) : REAL(cuStreamGetCtx)(stream, context);
    return result == CUDA_SUCCESS && *context != NULL;
}

void share_forget_context(void)
{
    __atomic_fetch_add(&generation, 1, __ATOMIC_ACQ_REL);
}
