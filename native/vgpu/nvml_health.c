/* How a device is: errors of its memory, rows that were replaced, and the same as field values. */
#define _GNU_SOURCE
#include "nvml.h"

#include <string.h>
#include <time.h>

/* The device, if it has ECC; the lock is held then. */
static nvmlReturn_t enter_ecc(nvmlDevice_t handle, struct vgpu_device **device)
{
    uint64_t now_ns;
    nvmlReturn_t result = nvml_enter(handle, device, &now_ns);
    if (result == NVML_SUCCESS && !(*device)->ecc) {
        nvml_leave();
        result = NVML_ERROR_NOT_SUPPORTED;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
    struct vgpu_device *device = NULL;
    NOT_NULL(current)
    NOT_NULL(pending)
    nvmlReturn_t result = enter_ecc(handle, &device);
    if (result == NVML_SUCCESS) {
        *current = *pending = 1;
        nvml_leave();
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t handle, unsigned int *mode)
{
    unsigned int pending;
    return nvmlDeviceGetEccMode(handle, mode, &pending);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned int type, unsigned int counter,
                                             unsigned long long *errors)
{
    struct vgpu_device *device = NULL;
    NOT_NULL(errors)
    if (type > NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter > NVML_AGGREGATE_ECC) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t result = enter_ecc(handle, &device);
    if (result == NVML_SUCCESS) {
        *errors = counter == NVML_VOLATILE_ECC ? device->ecc_volatile[type] : device->ecc_aggregate[type];
        nvml_leave();
    }
    return result;
}

/* All errors are in the device's memory; its caches have none. */
API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t handle, unsigned int type, unsigned int counter,
                                                 unsigned int location, unsigned long long *errors)
{
    nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(handle, type, counter, errors);
    if (result == NVML_SUCCESS && location != NVML_MEMORY_LOCATION_DEVICE_MEMORY) {
        *errors = 0;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t handle, unsigned int type, unsigned int counter,
                                                nvmlEccErrorCounts_t *errors)
{
    NOT_NULL(errors)
    memset(errors, 0, sizeof *errors);
    return nvmlDeviceGetTotalEccErrors(handle, type, counter, &errors->deviceMemory);
}

static nvmlReturn_t enter_remap(nvmlDevice_t handle, struct vgpu_device **device)
{
    uint64_t now_ns;
    nvmlReturn_t result = nvml_enter(handle, device, &now_ns);
    if (result == NVML_SUCCESS && !(*device)->row_remap) {
        nvml_leave();
        result = NVML_ERROR_NOT_SUPPORTED;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned int *correctable, unsigned int *uncorrectable,
                                           unsigned int *pending, unsigned int *failed)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = enter_remap(handle, &device);
    if (result == NVML_SUCCESS) {
        *correctable = device->remapped_correctable;
        *uncorrectable = device->remapped_uncorrectable;
        *pending = device->remap_pending;
        *failed = device->remap_failed;
        nvml_leave();
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t handle, nvmlRowRemapperHistogramValues_t *histogram)
{
    struct vgpu_device *device = NULL;
    NOT_NULL(histogram)
    nvmlReturn_t result = enter_remap(handle, &device);
    if (result == NVML_SUCCESS) {
        unsigned int banks = device->memory_bus_bits / 8;
        unsigned int used = device->remapped_correctable + device->remapped_uncorrectable;
        used = used > banks ? banks : used;
        *histogram = (nvmlRowRemapperHistogramValues_t){banks - used, device->remap_failed ? 0 : used, 0, 0,
                                                        device->remap_failed ? used : 0};
        nvml_leave();
    }
    return result;
}

/* Older devices retire pages instead; none were. */
API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t handle, unsigned int cause, unsigned int *count,
                                           unsigned long long *addresses)
{
    struct vgpu_device *device = NULL;
    (void)cause;
    (void)addresses;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(count)
        if (device->row_remap) {
            return NVML_ERROR_NOT_SUPPORTED;
        }
        *count = 0;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t handle, unsigned int *pending)
{
    return nvmlDeviceGetRetiredPages(handle, 0, pending, NULL);
}

/* NOT_SUPPORTED for a field that the device does not have. With the lock held. */
static nvmlReturn_t field(const struct vgpu_device *device, uint64_t now_ns, unsigned int id, unsigned long long *value)
{
    bool ecc_field = id >= NVML_FI_DEV_ECC_CURRENT && id <= NVML_FI_DEV_ECC_DBE_AGG_TOTAL;
    bool remap_field = id >= NVML_FI_DEV_REMAPPED_COR && id <= NVML_FI_DEV_REMAPPED_FAILURE;
    if ((ecc_field && !device->ecc) || (remap_field && !device->row_remap)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    switch (id) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        *value = 1;
        break;
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
        *value = device->ecc_volatile[id - NVML_FI_DEV_ECC_SBE_VOL_TOTAL];
        break;
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
        *value = device->ecc_aggregate[id - NVML_FI_DEV_ECC_SBE_AGG_TOTAL];
        break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        *value = nvml_millijoules(device);
        break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        *value = device->links;
        break;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
        *value = device->link_mbps;
        break;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
        *value = 0;
        break;
    case NVML_FI_DEV_REMAPPED_COR:
        *value = device->remapped_correctable;
        break;
    case NVML_FI_DEV_REMAPPED_UNC:
        *value = device->remapped_uncorrectable;
        break;
    case NVML_FI_DEV_REMAPPED_PENDING:
        *value = device->remap_pending;
        break;
    case NVML_FI_DEV_REMAPPED_FAILURE:
        *value = device->remap_failed;
        break;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        *value = nvml_milliwatts(device, now_ns);
        break;
    case NVML_FI_DEV_POWER_MIN_LIMIT:
        *value = device->limit_mw / 2;
        break;
    case NVML_FI_DEV_POWER_MAX_LIMIT:
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
        *value = device->limit_mw;
        break;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(values)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (int v = 0; v < count; v++) {
        unsigned long long value = 0;
        values[v].nvmlReturn = field(device, now_ns, values[v].fieldId, &value);
        values[v].timestamp = (long long)time(NULL) * 1000000;
        values[v].latencyUsec = 0;
        /* Written in full: a caller that reads an unsigned int out of it finds the low half, little-endian. */
        values[v].valueType = value >> 32 == 0 ? NVML_VALUE_TYPE_UNSIGNED_INT : NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[v].value.ullVal = value;
    }
    nvml_leave();
    return NVML_SUCCESS;
}
