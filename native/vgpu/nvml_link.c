/* How devices are connected: NVLink, and where they hang. */
#define _GNU_SOURCE
#include "nvml.h"

#include <string.h>

enum { P2P_OK = 0, P2P_NVLINK = 2, NVLINK_VERSION = 3 };

/* The device, if it has such a link. */
static nvmlReturn_t with_link(nvmlDevice_t handle, unsigned int link, struct vgpu_device **device)
{
    nvmlReturn_t result = nvml_device(handle, device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (link >= VGPU_LINKS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return link < (*device)->links ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *active)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = with_link(handle, link, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(active)
        *active = (device->links_down >> link & 1u) == 0;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t handle, unsigned int link, unsigned int *version)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = with_link(handle, link, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(version)
        *version = NVLINK_VERSION;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned int link, unsigned int capability,
                                               unsigned int *value)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = with_link(handle, link, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(value)
        *value = capability == 0; /* peer access over it */
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t handle, unsigned int link, unsigned int counter,
                                                 unsigned long long *errors)
{
    struct vgpu_device *device = NULL;
    (void)counter;
    nvmlReturn_t result = with_link(handle, link, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(errors)
        *errors = 0;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned int link, unsigned int *type)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = with_link(handle, link, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(type)
        *type = device->link_peer[link] < 0 ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info);

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned int link, nvmlPciInfo_t *info)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = with_link(handle, link, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(info)
    int32_t peer = device->link_peer[link];
    if (peer >= 0) {
        return nvmlDeviceGetPciInfo_v3(nvml_handle((uint32_t)peer), info);
    }
    memset(info, 0, sizeof *info);
    strcpy(info->busIdLegacy, "0000:F0:00.0"); /* the switch */
    strcpy(info->busId, "00000000:F0:00.0");
    info->bus = 0xf0;
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2);

static bool joined_by_link(const struct vgpu_device *one, const struct vgpu_device *other)
{
    for (uint32_t link = 0; link < one->links; link++) {
        bool up = (one->links_down >> link & 1u) == 0;
        if (up && (one->link_peer[link] < 0 || &nvml_file->devices[one->link_peer[link]] == other)) {
            return other->links > 0;
        }
    }
    return false;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t handle, nvmlDevice_t other_handle, unsigned int index,
                                        unsigned int *status)
{
    struct vgpu_device *device = NULL, *other = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        result = nvml_device(other_handle, &other);
    }
    if (result == NVML_SUCCESS) {
        NOT_NULL(status)
        *status = index != P2P_NVLINK || joined_by_link(device, other) ? P2P_OK : 5; /* not supported */
    }
    return result;
}

static unsigned int level(const struct vgpu_device *device, const struct vgpu_device *other)
{
    return device == other                           ? NVML_TOPOLOGY_INTERNAL
           : device->numa_node == other->numa_node ? NVML_TOPOLOGY_NODE
                                                     : NVML_TOPOLOGY_SYSTEM;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t handle, nvmlDevice_t other_handle,
                                                     unsigned int *found)
{
    struct vgpu_device *device = NULL, *other = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        result = nvml_device(other_handle, &other);
    }
    if (result == NVML_SUCCESS) {
        NOT_NULL(found)
        *found = level(device, other);
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned int wanted, unsigned int *count,
                                                  nvmlDevice_t *handles)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(count)
    unsigned int room = *count;
    *count = 0;
    for (uint32_t d = 0; d < nvml_file->devices_count; d++) {
        const struct vgpu_device *other = &nvml_file->devices[d];
        if (other == device || level(device, other) != wanted) {
            continue;
        }
        if (handles != NULL && *count < room) {
            handles[*count] = nvml_handle(d);
        }
        ++*count;
    }
    return NVML_SUCCESS;
}
