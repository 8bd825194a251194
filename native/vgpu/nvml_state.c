/* Starting and ending, handles, the system as a whole. */
#define _GNU_SOURCE
#include "nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

/* Who looks at a node asks dozens of questions in a row: about who is gone the kernel is asked once. */
#define ONE_LOOK_NS (10 * VGPU_MILLISECOND_NS)

struct vgpu_file *nvml_file;
static int users;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static nvmlReturn_t start(void)
{
    switch (vgpu_open(&nvml_file)) {
    case VGPU_ABSENT:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case VGPU_WRONG_LAYOUT:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    case VGPU_UNREADABLE:
        return NVML_ERROR_OPERATING_SYSTEM;
    case VGPU_OPENED:
        break;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&starting);
    nvmlReturn_t result = nvml_file == NULL ? start() : NVML_SUCCESS;
    users += result == NVML_SUCCESS;
    pthread_mutex_unlock(&starting);
    return result;
}

/* There is no nvmlInit beside it. Programs that are compiled with NVML's header or use nvidia-ml-py call this one. PyTorch
 * looks for the old name, to count GPUs without the runtime API; where it is missing, it asks the runtime API, which
 * knows that it cannot use virtual ones. */
API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&starting);
    nvmlReturn_t result = users == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
    if (users > 0 && --users == 0) {
        munmap(nvml_file, sizeof *nvml_file);
        nvml_file = NULL;
    }
    pthread_mutex_unlock(&starting);
    return result;
}

nvmlDevice_t nvml_handle(uint32_t index)
{
    return (nvmlDevice_t)&nvml_file->devices[index];
}

uint32_t nvml_index(const struct vgpu_device *device)
{
    return (uint32_t)(device - nvml_file->devices);
}

nvmlReturn_t nvml_device(nvmlDevice_t handle, struct vgpu_device **device)
{
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    for (uint32_t d = 0; d < nvml_file->devices_count; d++) {
        if (handle == nvml_handle(d)) {
            *device = &nvml_file->devices[d];
            return __atomic_load_n(&(*device)->lost, __ATOMIC_RELAXED) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvml_enter(nvmlDevice_t handle, struct vgpu_device **device, uint64_t *now_ns)
{
    nvmlReturn_t result = nvml_device(handle, device);
    if (result == NVML_SUCCESS) {
        vgpu_lock(nvml_file);
        *now_ns = vgpu_now_ns();
        vgpu_reap_after(nvml_file, *now_ns, ONE_LOOK_NS);
        vgpu_settle(nvml_file, nvml_index(*device), *now_ns);
    }
    return result;
}

void nvml_leave(void)
{
    vgpu_unlock(nvml_file);
}

nvmlReturn_t nvml_text(char *buffer, unsigned int length, const char *text)
{
    NOT_NULL(buffer)
    if (strlen(text) >= length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_OPERATING_SYSTEM:
        return "The operating system has blocked the request";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return nvml_file == NULL ? NVML_ERROR_UNINITIALIZED : nvml_text(version, length, nvml_file->driver_version);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[64];
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    snprintf(text, sizeof text, "13.%s", nvml_file->driver_version);
    return nvml_text(version, length, text);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    NOT_NULL(version)
    *version = 13000;
    return NVML_SUCCESS;
}
ALIAS(nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion);

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[32];
    char line[4096];
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NOT_NULL(name)
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    ssize_t read_bytes = read(descriptor, line, sizeof line - 1);
    close(descriptor);
    line[read_bytes > 0 ? read_bytes : 0] = '\0';
    snprintf(name, length, "%s", line); /* up to the first zero: the program */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NOT_NULL(count)
    *count = nvml_file->devices_count;
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (handle == NULL || index >= nvml_file->devices_count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *handle = nvml_handle(index);
    return nvml_file->devices[index].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

/* The device for which a field of text is the one that is wanted. */
static nvmlReturn_t find(const char *wanted, size_t field, nvmlDevice_t *handle)
{
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NOT_NULL(wanted)
    NOT_NULL(handle)
    for (uint32_t d = 0; d < nvml_file->devices_count; d++) {
        if (strcasecmp((const char *)&nvml_file->devices[d] + field, wanted) == 0) {
            return nvmlDeviceGetHandleByIndex_v2(d, handle);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    return find(uuid, offsetof(struct vgpu_device, uuid), handle);
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *handle)
{
    return find(serial, offsetof(struct vgpu_device, serial), handle);
}

/* `0000:01:00.0` and `00000000:01:00.0` are the same. */
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle)
{
    unsigned int domain = 0, bus = 0, slot = 0;
    char full[32];
    NOT_NULL(bus_id)
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    snprintf(full, sizeof full, "%08X:%02X:%02X.0", domain, bus & 0xffu, slot & 0xffu);
    return find(full, offsetof(struct vgpu_device, pci_bus_id), handle);
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);
