/* Events: a set of devices to be waited for. What was injected after a device was registered is reported once. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>

#define SUPPORTED (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeXidCriticalError)
#define LOOK_EVERY_NS (2 * VGPU_MILLISECOND_NS)

struct nvmlEventSet_st {
    unsigned long long types[VGPU_DEVICES];
    uint64_t next[VGPU_DEVICES];
};

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NOT_NULL(set)
    *set = calloc(1, sizeof **set);
    return *set == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return nvml_file == NULL ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(types)
        *types = SUPPORTED;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(set)
    if ((types & ~SUPPORTED) != 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        uint32_t index = nvml_index(device);
        if (set->types[index] == 0) {
            set->next[index] = device->next_event;
        }
        set->types[index] |= types;
        nvml_leave();
    }
    return result;
}

/* The next event that somebody asked for; false when there is none. With the lock held. */
static bool take(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (uint32_t d = 0; d < nvml_file->devices_count; d++) {
        const struct vgpu_device *device = &nvml_file->devices[d];
        if (device->next_event - set->next[d] > VGPU_EVENTS) {
            set->next[d] = device->next_event - VGPU_EVENTS; /* the oldest are gone */
        }
        while (set->next[d] != device->next_event) {
            const struct vgpu_event *event = &device->events[set->next[d]++ % VGPU_EVENTS];
            if ((event->type & set->types[d]) != 0) {
                *data = (nvmlEventData_t){nvml_handle(d), event->type, event->data, 0xffffffffu, 0xffffffffu};
                return true;
            }
        }
    }
    return false;
}

/* Whoever injects an event is another program, perhaps not one in C: it writes and goes, so the waiter looks. */
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    if (nvml_file == NULL) {
        return NVML_ERROR_UNINITIALIZED;
    }
    NOT_NULL(set)
    NOT_NULL(data)
    uint64_t until_ns = vgpu_now_ns() + timeout_ms * VGPU_MILLISECOND_NS;
    for (;;) {
        vgpu_lock(nvml_file);
        bool found = take(set, data);
        vgpu_unlock(nvml_file);
        uint64_t now_ns = vgpu_now_ns();
        if (found || now_ns >= until_ns) {
            return found ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
        }
        vgpu_sleep_until(now_ns + LOOK_EVERY_NS < until_ns ? now_ns + LOOK_EVERY_NS : until_ns);
    }
}

struct event_data_v1 {
    nvmlDevice_t device;
    unsigned long long type, data;
};

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct event_data_v1 *data, unsigned int timeout_ms)
{
    nvmlEventData_t full;
    NOT_NULL(data)
    nvmlReturn_t result = nvmlEventSetWait_v2(set, &full, timeout_ms);
    if (result == NVML_SUCCESS) {
        *data = (struct event_data_v1){full.device, full.eventType, full.eventData};
    }
    return result;
}
