/* What a program is told of a device's memory: the limit, and what the container has of it. */
#define _GNU_SOURCE
#include "share.h"

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* Changes what the driver said to what the container may know. */
static void restrict_to(int place, uint64_t *free_bytes, uint64_t *total_bytes)
{
    uint64_t limit_bytes, used_bytes;
    if (share_memory(place, &limit_bytes, &used_bytes)) {
        *total_bytes = smaller(*total_bytes, limit_bytes);
        uint64_t left_bytes = *total_bytes > used_bytes ? *total_bytes - used_bytes : 0;
        *free_bytes = smaller(*free_bytes, left_bytes);
    }
}

static bool place_here(int *place)
{
    CUcontext context;
    CUdevice device;
    if (share_mode() != MODE_ON || !share_stream_context(NULL, &context) || !share_context_device(context, &device)) {
        return false;
    }
    *place = share_place(device);
    return true;
}

#define GET_INFO(name, size_type)                                                                                     \
    HOOKED CUresult name(size_type *free_bytes, size_type *total_bytes)                                               \
    {                                                                                                                 \
        size_type real_free = 0, real_total = 0;                                                                      \
        int place;                                                                                                    \
        CUresult result = REAL(name)(&real_free, &real_total);                                                        \
        uint64_t left = real_free, total = real_total;                                                                \
        if (result == CUDA_SUCCESS && place_here(&place)) {                                                           \
            restrict_to(place, &left, &total);                                                                        \
        }                                                                                                             \
        if (result == CUDA_SUCCESS && free_bytes != NULL) {                                                           \
            *free_bytes = (size_type)left;                                                                            \
        }                                                                                                             \
        if (result == CUDA_SUCCESS && total_bytes != NULL) {                                                          \
            *total_bytes = (size_type)total;                                                                          \
        }                                                                                                             \
        return result;                                                                                                \
    }
GET_INFO(cuMemGetInfo, unsigned int)
GET_INFO(cuMemGetInfo_v2, size_t)

#define TOTAL_MEM(name, size_type)                                                                                    \
    HOOKED CUresult name(size_type *bytes, CUdevice device)                                                           \
    {                                                                                                                 \
        CUresult result = REAL(name)(bytes, device);                                                                  \
        if (result == CUDA_SUCCESS && share_mode() == MODE_ON) {                                                      \
            uint64_t left = *bytes, total = *bytes;                                                                   \
            restrict_to(share_place(device), &left, &total);                                                          \
            *bytes = (size_type)total;                                                                                \
        }                                                                                                             \
        return result;                                                                                                \
    }
TOTAL_MEM(cuDeviceTotalMem, unsigned int)
TOTAL_MEM(cuDeviceTotalMem_v2, size_t)

/* NVML shows devices that the container was not given as well: those are left as they are. */
static bool nvml_memory(nvmlDevice_t device, uint64_t *total_bytes, uint64_t *free_bytes, uint64_t *used_bytes)
{
    char uuid[96];
    uint64_t limit_bytes, container_bytes;
    if (share_mode() != MODE_ON || REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) != NVML_SUCCESS) {
        return false;
    }
    int place = share_place_of_uuid(uuid);
    if (place == NOT_GIVEN || !share_memory(place, &limit_bytes, &container_bytes)) {
        return false;
    }
    *total_bytes = smaller(*total_bytes, limit_bytes);
    *used_bytes = smaller(container_bytes, *total_bytes);
    *free_bytes = *total_bytes - *used_bytes;
    return true;
}

HOOKED nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS) {
        uint64_t total = memory->total, left = memory->free, used = memory->used;
        if (nvml_memory(device, &total, &left, &used)) {
            *memory = (nvmlMemory_t){total, left, used};
        }
    }
    return result;
}

HOOKED nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS) {
        uint64_t total = memory->total, left = memory->free, used = memory->used;
        if (nvml_memory(device, &total, &left, &used)) {
            *memory = (nvmlMemory_v2_t){memory->version, total, 0, left, used};
        }
    }
    return result;
}
