/* What a device does: memory, utilisation, and what follows from it: temperature, power, clocks. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define MIB (1ull << 20)

int nvml_celsius(const struct vgpu_device *device, uint64_t now_ns)
{
    if (device->fixed_celsius != 0) {
        return device->fixed_celsius;
    }
    int span = device->busy_celsius - device->idle_celsius;
    return device->idle_celsius + span * (int)vgpu_busy_permille(device, now_ns) / 1000;
}

unsigned int nvml_milliwatts(const struct vgpu_device *device, uint64_t now_ns)
{
    uint64_t span = device->limit_mw - device->idle_mw;
    return device->idle_mw + (unsigned int)(span * vgpu_busy_permille(device, now_ns) / 1000);
}

unsigned long long nvml_millijoules(const struct vgpu_device *device)
{
    uint64_t passed_s = (uint64_t)time(NULL) - nvml_file->created_s;
    uint64_t span_mw = device->limit_mw - device->idle_mw;
    return passed_s * device->idle_mw + span_mw * (device->busy_ns / VGPU_MILLISECOND_NS) / 1000;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(memory)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        *memory = (nvmlMemory_t){device->memory_bytes, device->memory_bytes - device->used_bytes, device->used_bytes};
        nvml_leave();
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    NOT_NULL(memory)
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (result == NVML_SUCCESS) {
        *memory = (nvmlMemory_v2_t){memory->version, plain.total, 0, plain.free, plain.used};
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(memory)
        *memory = (nvmlBAR1Memory_t){256 * MIB, 256 * MIB, 0};
    }
    return result;
}

/* How much of memory's bandwidth is used is not modelled: it follows the kernels at half their rate. */
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(utilization)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        unsigned int percent = (vgpu_busy_permille(device, now_ns) + 5) / 10;
        *utilization = (nvmlUtilization_t){percent, percent / 2};
        nvml_leave();
    }
    return result;
}

/* Video engines are there, and idle. */
API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t handle, unsigned int *percent, unsigned int *period_us)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(percent)
        NOT_NULL(period_us)
        *percent = 0;
        *period_us = 1000000;
    }
    return result;
}
ALIAS(nvmlDeviceGetDecoderUtilization, nvmlDeviceGetEncoderUtilization);

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned int sensor, unsigned int *celsius)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(celsius)
    if (sensor != NVML_TEMPERATURE_GPU) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        *celsius = (unsigned int)nvml_celsius(device, now_ns);
        nvml_leave();
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_t *temperature)
{
    unsigned int celsius;
    NOT_NULL(temperature)
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_t, 1u)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlReturn_t result = nvmlDeviceGetTemperature(handle, temperature->sensorType, &celsius);
    if (result == NVML_SUCCESS) {
        temperature->temperature = (int)celsius;
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, unsigned int which, unsigned int *celsius)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(celsius)
    switch (which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
        *celsius = (unsigned int)device->shutdown_celsius;
        return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
        *celsius = (unsigned int)device->slowdown_celsius;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *milliwatts)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(milliwatts)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        *milliwatts = nvml_milliwatts(device, now_ns);
        nvml_leave();
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *millijoules)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(millijoules)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        *millijoules = nvml_millijoules(device);
        nvml_leave();
    }
    return result;
}

static bool too_hot(const struct vgpu_device *device, uint64_t now_ns)
{
    return nvml_celsius(device, now_ns) >= device->slowdown_celsius;
}

API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t handle, unsigned int *state)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(state)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        *state = vgpu_busy_permille(device, now_ns) > 0 ? 0 : 8;
        nvml_leave();
    }
    return result;
}
ALIAS(nvmlDeviceGetPowerState, nvmlDeviceGetPerformanceState);

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    NOT_NULL(mhz)
    if (type > NVML_CLOCK_VIDEO) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *mhz = type == NVML_CLOCK_MEM ? device->memory_mhz : device->max_sm_mhz;
    return NVML_SUCCESS;
}

/* Nobody sets clocks here: what applications get is the most there is. */
ALIAS(nvmlDeviceGetApplicationsClock, nvmlDeviceGetMaxClockInfo);
ALIAS(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetMaxClockInfo);

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    nvmlReturn_t result = nvmlDeviceGetMaxClockInfo(handle, type, mhz);
    if (result != NVML_SUCCESS || type == NVML_CLOCK_MEM) {
        return result;
    }
    result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        if (vgpu_busy_permille(device, now_ns) == 0) {
            *mhz = device->idle_sm_mhz;
        } else if (too_hot(device, now_ns)) {
            *mhz = device->max_sm_mhz / 2;
        }
        nvml_leave();
    }
    return result;
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t handle, unsigned int type, unsigned int id, unsigned int *mhz)
{
    return id == 0 ? nvmlDeviceGetClockInfo(handle, type, mhz) : nvmlDeviceGetMaxClockInfo(handle, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(reasons)
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        *reasons = vgpu_busy_permille(device, now_ns) == 0 ? nvmlClocksEventReasonGpuIdle : 0;
        if (too_hot(device, now_ns)) {
            *reasons |= nvmlClocksEventReasonSwThermalSlowdown | nvmlClocksEventReasonHwThermalSlowdown;
        }
        nvml_leave();
    }
    return result;
}
ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);

API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    struct vgpu_device *device = NULL;
    nvmlReturn_t result = nvml_device(handle, &device);
    if (result == NVML_SUCCESS) {
        NOT_NULL(reasons)
        *reasons = nvmlClocksEventReasonGpuIdle | nvmlClocksEventReasonSwThermalSlowdown |
                   nvmlClocksEventReasonHwThermalSlowdown;
    }
    return result;
}
ALIAS(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons);

/* In KB/s, over the last second. */
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, unsigned int counter, unsigned int *value)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(value)
    if (counter > NVML_PCIE_UTIL_RX_BYTES) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result == NVML_SUCCESS) {
        uint64_t bytes = 0;
        for (uint32_t b = 0; b < VGPU_BUCKETS; b++) {
            const struct vgpu_bucket *bucket = &device->buckets[b];
            if (bucket->number + VGPU_WINDOW_BUCKETS >= now_ns / VGPU_BUCKET_NS) {
                bytes += counter == NVML_PCIE_UTIL_RX_BYTES ? bucket->received_bytes : bucket->sent_bytes;
            }
        }
        *value = (unsigned int)(bytes / 1000);
        nvml_leave();
    }
    return result;
}

/* One sample for each stretch of time that is over and newer than the caller's last. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, unsigned int type, unsigned long long since_us,
                                      unsigned int *value_type, unsigned int *count, nvmlSample_t *samples)
{
    struct vgpu_device *device = NULL;
    uint64_t now_ns;
    NOT_NULL(count)
    NOT_NULL(value_type)
    if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_TOTAL_POWER_SAMPLES) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    nvmlReturn_t result = nvml_enter(handle, &device, &now_ns);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    uint64_t last = now_ns / VGPU_BUCKET_NS;
    uint64_t behind_us = (uint64_t)time(NULL) * 1000000 - now_ns / 1000; /* from this clock to the time of day */
    unsigned int written = 0;
    for (uint64_t number = last - VGPU_WINDOW_BUCKETS; number < last; number++) {
        const struct vgpu_bucket *bucket = &device->buckets[number % VGPU_BUCKETS];
        uint64_t moment_us = behind_us + (number + 1) * (VGPU_BUCKET_NS / 1000);
        if (moment_us <= since_us || (samples != NULL && written == *count)) {
            continue;
        }
        uint64_t busy_ns = bucket->number == number ? bucket->busy_ns : 0;
        if (samples != NULL) {
            uint64_t span_mw = device->limit_mw - device->idle_mw;
            samples[written].timeStamp = moment_us;
            samples[written].sampleValue.ullVal = type == NVML_GPU_UTILIZATION_SAMPLES
                                                      ? busy_ns * 100 / VGPU_BUCKET_NS
                                                      : device->idle_mw + span_mw * busy_ns / VGPU_BUCKET_NS;
        }
        written++;
    }
    *count = written;
    nvml_leave();
    return NVML_SUCCESS;
}
