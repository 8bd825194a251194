/* What a device is: names, places, fixed properties. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BRAND_TESLA = 2, ARCHITECTURE_PASCAL = 4, CORES_PER_MULTIPROCESSOR = 64 };

/* A property that is a number in the device. */
#define NUMBER(function, type, expression)                                                                            \
    API nvmlReturn_t function(nvmlDevice_t handle, type *value)                                                       \
    {                                                                                                                 \
        struct vgpu_device *device = NULL;                                                                            \
        nvmlReturn_t result = nvml_device(handle, &device);                                                           \
        if (result != NVML_SUCCESS) {                                                                                 \
            return result;                                                                                            \
        }                                                                                                             \
        NOT_NULL(value)                                                                                               \
        *value = (expression);                                                                                        \
        return NVML_SUCCESS;                                                                                          \
    }

#define TEXT(function, expression)                                                                                    \
    API nvmlReturn_t function(nvmlDevice_t handle, char *buffer, unsigned int length)                                 \
    {                                                                                                                 \
        struct vgpu_device *device = NULL;                                                                            \
        nvmlReturn_t result = nvml_device(handle, &device);                                                           \
        return result == NVML_SUCCESS ? nvml_text(buffer, length, (expression)) : result;                             \
    }

TEXT(nvmlDeviceGetName, device->name)
TEXT(nvmlDeviceGetUUID, device->uuid)
TEXT(nvmlDeviceGetSerial, device->serial)
TEXT(nvmlDeviceGetVbiosVersion, "00.00.00.00.00")

NUMBER(nvmlDeviceGetIndex, unsigned int, nvml_index(device))
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, nvml_index(device))
NUMBER(nvmlDeviceGetBoardId, unsigned int, device->pci_bus << 8)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
NUMBER(nvmlDeviceGetBrand, unsigned int, BRAND_TESLA)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, device->multiprocessors * CORES_PER_MULTIPROCESSOR)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, device->memory_bus_bits)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned int, 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned int, 0)
NUMBER(nvmlDeviceGetAccountingMode, unsigned int, 0)
NUMBER(nvmlDeviceGetPowerManagementMode, unsigned int, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, device->limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, device->limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, device->limit_mw)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, device->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, device->pcie_width)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, device->pcie_width)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned int *node)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(node)
    if (device->numa_node < 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *node = (unsigned int)device->numa_node;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, unsigned int *architecture)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(architecture)
    unsigned int capability = device->compute_major * 10 + device->compute_minor;
    *architecture = capability >= 100  ? 10u /* Blackwell */
                    : capability >= 90 ? 9u  /* Hopper */
                    : capability == 89 ? 8u  /* Ada */
                    : capability >= 80 ? 7u  /* Ampere */
                    : capability >= 75 ? 6u  /* Turing */
                    : capability >= 70 ? 5u  /* Volta */
                                       : ARCHITECTURE_PASCAL;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(major)
        NOT_NULL(minor)
        *major = (int)device->compute_major;
        *minor = (int)device->compute_minor;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned int *least,
                                                              unsigned int *most)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(least)
        NOT_NULL(most)
        *least = device->limit_mw / 2;
        *most = device->limit_mw;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(info)
    memset(info, 0, sizeof *info);
    info->domain = device->pci_domain;
    info->bus = device->pci_bus;
    info->device = device->pci_device;
    info->pciDeviceId = device->pci_id;
    snprintf(info->busId, sizeof info->busId, "%s", device->pci_bus_id);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", device->pci_domain & 0xffffu,
             device->pci_bus & 0xffu, device->pci_device & 0xffu);
    return NVML_SUCCESS;
}
/* The older ones have reserved fields where the bus id stands now. */
ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v3);
ALIAS(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3);

/* A mask as the kernel writes it, `0000000f,ffffffff`: the last word is that of the first CPUs. */
static void read_mask(const char *text, unsigned long *words, unsigned int count)
{
    unsigned int bit = 0;
    for (const char *at = text + strlen(text); at > text && bit < count * 64;) {
        at--;
        int digit = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : -1;
        if (digit >= 0) {
            words[bit / 64] |= (unsigned long)digit << (bit % 64);
            bit += 4;
        }
    }
}

/* The CPUs of the NUMA node; all, where this machine has no such node. */
API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned int count, unsigned long *words)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(words)
    memset(words, 0, count * sizeof *words);
    char path[64];
    char text[1024] = "";
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpumap", device->numa_node);
    FILE *file = fopen(path, "re");
    if (file != NULL && fgets(text, sizeof text, file) != NULL) {
        read_mask(text, words, count);
    } else {
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);
        for (unsigned int c = 0; c < (unsigned int)cpus && c < count * 64; c++) {
            words[c / 64] |= 1ul << (c % 64);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned int count, unsigned long *words,
                                             unsigned int scope)
{
    struct vgpu_device *device = NULL;
    (void)scope;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(words)
    memset(words, 0, count * sizeof *words);
    unsigned int node = device->numa_node < 0 ? 0u : (unsigned int)device->numa_node;
    if (node < count * 64) {
        words[node / 64] |= 1ul << (node % 64);
    }
    return NVML_SUCCESS;
}
