/* Who uses a device, how much memory of it, and how much of its time. */
#define _GNU_SOURCE
#include "nvml.h"

#include <time.h>

#define NO_INSTANCE 0xffffffffu
#define NOT_AVAILABLE 0xffffffffffffffffull

/* The next process from slot `p` on that has a context on the device; VGPU_PROCESSES when there is none. */
static uint32_t next_user(uint32_t index, uint32_t p)
{
    while (p < VGPU_PROCESSES && !(nvml_file->processes[p].taken && nvml_file->processes[p].use[index].contexts > 0)) {
        p++;
    }
    return p;
}

static unsigned int count_users(uint32_t index)
{
    unsigned int users = 0;
    for (uint32_t p = next_user(index, 0); p < VGPU_PROCESSES; p = next_user(index, p + 1)) {
        users++;
    }
    return users;
}

/* The three versions of the list differ in the size of an entry and in what it says of MIG. */
enum list_version { LIST_V1, LIST_V2, LIST_DETAIL };

static void write_entry(void *entries, unsigned int place, enum list_version version, uint32_t p, uint32_t index)
{
    const struct vgpu_process *process = &nvml_file->processes[p];
    unsigned int pid = (unsigned int)process->pid;
    unsigned long long used_bytes = process->use[index].used_bytes;
    switch (version) {
    case LIST_V1:
        ((nvmlProcessInfo_v1_t *)entries)[place] = (nvmlProcessInfo_v1_t){pid, used_bytes};
        break;
    case LIST_V2:
        ((nvmlProcessInfo_t *)entries)[place] = (nvmlProcessInfo_t){pid, used_bytes, NO_INSTANCE, NO_INSTANCE};
        break;
    case LIST_DETAIL:
        ((nvmlProcessDetail_v1_t *)entries)[place] =
            (nvmlProcessDetail_v1_t){pid, used_bytes, NO_INSTANCE, NO_INSTANCE, NOT_AVAILABLE};
        break;
    }
}

static nvmlReturn_t list(nvmlDevice_t handle, unsigned int *count, void *entries, enum list_version version)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(count)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result != NVML_SUCCESS) {
        return result;
    }
    uint32_t index = nvml_index(device);
    unsigned int room = *count;
    *count = count_users(index);
    if (*count > room || (entries == NULL && *count > 0)) {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    } else {
        unsigned int place = 0;
        for (uint32_t p = next_user(index, 0); p < VGPU_PROCESSES; p = next_user(index, p + 1)) {
            write_entry(entries, place++, version, p, index);
        }
    }
    nvml_leave();
    return result;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                         nvmlProcessInfo_t *entries)
{
    return list(handle, count, entries, LIST_V2);
}
ALIAS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned int *count,
                                                      nvmlProcessInfo_v1_t *entries)
{
    return list(handle, count, entries, LIST_V1);
}

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_t *wanted)
{
    NOT_NULL(wanted)
    if (wanted->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_t, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (wanted->mode != 0) { /* graphics and MPS: nobody */
        wanted->numProcArrayEntries = 0;
        return NVML_SUCCESS;
    }
    return list(handle, &wanted->numProcArrayEntries, wanted->procArray, LIST_DETAIL);
}

/* Nothing draws on a virtual GPU, and no process of MPS is there. */
API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count, void *entries)
{
    struct vgpu_device *device = NULL;
    (void)entries;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(count)
        *count = 0;
    }
    return result;
}
ALIAS(nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALIAS(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3);
ALIAS(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v3);

static unsigned int percent_of(uint32_t p, uint32_t index, uint64_t now_ns)
{
    return (vgpu_share_permille(&nvml_file->processes[p].use[index], now_ns) + 5) / 10;
}

static unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

/* One sample for each process: the last second, as of now. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                 unsigned int *count, unsigned long long since_us)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    (void)since_us;
    NOT_NULL(count)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result != NVML_SUCCESS) {
        return result;
    }
    uint32_t index = nvml_index(device);
    unsigned int room = *count;
    *count = count_users(index);
    if (*count == 0) {
        result = NVML_ERROR_NOT_FOUND;
    } else if (samples == NULL || *count > room) {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    } else {
        for (uint32_t p = next_user(index, 0); p < VGPU_PROCESSES; p = next_user(index, p + 1)) {
            unsigned int percent = percent_of(p, index, now_ns);
            *samples++ = (nvmlProcessUtilizationSample_t){(unsigned int)nvml_file->processes[p].pid, now_us(), percent,
                                                          percent / 2, 0, 0};
        }
    }
    nvml_leave();
    return result;
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_t *wanted)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(wanted)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result != NVML_SUCCESS) {
        return result;
    }
    uint32_t index = nvml_index(device);
    unsigned int room = wanted->processSamplesCount;
    wanted->processSamplesCount = count_users(index);
    if (wanted->processSamplesCount == 0) {
        result = NVML_ERROR_NOT_FOUND;
    } else if (wanted->procUtilArray == NULL || wanted->processSamplesCount > room) {
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    } else {
        nvmlProcessUtilizationInfo_v1_t *info = wanted->procUtilArray;
        for (uint32_t p = next_user(index, 0); p < VGPU_PROCESSES; p = next_user(index, p + 1)) {
            unsigned int percent = percent_of(p, index, now_ns);
            *info++ = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = now_us(),
                                                        .pid = (unsigned int)nvml_file->processes[p].pid,
                                                        .smUtil = percent,
                                                        .memUtil = percent / 2};
        }
    }
    nvml_leave();
    return result;
}
