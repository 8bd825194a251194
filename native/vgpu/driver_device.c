/* Devices: how many, what they are called, what they can. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

API CUresult cuDeviceGetCount(int *count)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = driver.visible_count;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    uint32_t index;
    CUresult result = driver_device(ordinal, &index);
    if (result == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return result;
}

/* A text into a caller's buffer, cut if need be. */
static CUresult copy_text(char *buffer, int length, const char *text)
{
    if (buffer == NULL || length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(buffer, (size_t)length, "%s", text);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    return result != CUDA_SUCCESS ? result : copy_text(name, length, driver.file->devices[index].name);
}

API CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct vgpu_device *on = &driver.file->devices[index];
    char text[32];
    snprintf(text, sizeof text, "%04X:%02X:%02X.0", on->pci_domain & 0xffffu, on->pci_bus & 0xffu,
             on->pci_device & 0xffu);
    return copy_text(bus_id, length, text);
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *bus_id)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    unsigned int domain = 0, bus = 0, slot = 0;
    if (device == NULL || bus_id == NULL ||
        (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3 && sscanf(bus_id, "%x:%x", &bus, &slot) != 2)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int v = 0; v < driver.visible_count; v++) {
        const struct vgpu_device *on = &driver.file->devices[driver.visible[v]];
        if (on->pci_domain == domain && on->pci_bus == bus && on->pci_device == slot) {
            *device = v;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* "GPU-" and 32 hexadecimal digits with hyphens. */
    const char *text = driver.file->devices[index].uuid + 4;
    for (int b = 0; b < 16; b++) {
        unsigned int byte = 0;
        while (*text == '-') {
            text++;
        }
        if (sscanf(text, "%2x", &byte) == 1) {
            text += 2;
        }
        uuid->bytes[b] = (char)byte;
    }
    return CUDA_SUCCESS;
}
ALIAS(cuDeviceGetUuid_v2, cuDeviceGetUuid);

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS) {
        *bytes = driver.file->devices[index].memory_bytes;
    }
    return result;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS) {
        *major = (int)driver.file->devices[index].compute_major;
        *minor = (int)driver.file->devices[index].compute_minor;
    }
    return result;
}

static int attribute(const struct vgpu_device *device, int which)
{
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
        return 64 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return (int)device->max_sm_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        return 512;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return (int)device->multiprocessors;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        return (int)device->ecc;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return (int)device->pci_bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        return (int)device->pci_device;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        return (int)device->pci_domain;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        return (int)device->memory_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        return (int)device->memory_bus_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        return 4 << 20;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return (int)device->threads_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return 2;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return (int)device->compute_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return (int)device->compute_minor;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        return 16;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        return device->numa_node;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        return 1;
    default:
        return 0; /* a capability that a virtual GPU does not have */
    }
}

API CUresult cuDeviceGetAttribute(int *value, int which, CUdevice device)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (value == NULL || which <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = attribute(&driver.file->devices[index], which);
    return CUDA_SUCCESS;
}

/* Any two devices reach each other, over PCIe if there is no NVLink. */
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    uint32_t index;
    CUresult result = driver_device(device, &index);
    if (result == CUDA_SUCCESS) {
        result = driver_device(peer, &index);
    }
    if (result == CUDA_SUCCESS) {
        *can = device != peer;
    }
    return result;
}
