/* Looks at a device through NVML in every way, with room enough, too little and none. For sanitizers. */
#define _GNU_SOURCE
#include "batuta/nvml_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                             \
    if (!(condition)) {                                                                                               \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                               \
        exit(1);                                                                                                      \
    }
#define OK(call) EXPECT((call) == NVML_SUCCESS)

typedef nvmlReturn_t number_of(nvmlDevice_t, unsigned int *);
typedef nvmlReturn_t wide_number_of(nvmlDevice_t, unsigned long long *);
typedef nvmlReturn_t text_of(nvmlDevice_t, char *, unsigned int);

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlSystemGetDriverVersion(char *, unsigned int);
nvmlReturn_t nvmlSystemGetProcessName(unsigned int, char *, unsigned int);
text_of nvmlDeviceGetName, nvmlDeviceGetUUID, nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion;
number_of nvmlDeviceGetIndex, nvmlDeviceGetPowerUsage, nvmlDeviceGetPerformanceState, nvmlDeviceGetNumaNodeId,
    nvmlDeviceGetArchitecture, nvmlDeviceGetMemoryBusWidth, nvmlDeviceGetFanSpeed;
wide_number_of nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetCurrentClocksEventReasons,
    nvmlDeviceGetSupportedEventTypes;
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t, unsigned int, unsigned long *);
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t, unsigned int, unsigned long long, unsigned int *, unsigned int *,
                                  nvmlSample_t *);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t, unsigned int, unsigned int *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned int, unsigned int *);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t *, unsigned int);

static void texts(nvmlDevice_t device)
{
    text_of *const functions[] = {nvmlDeviceGetName, nvmlDeviceGetUUID, nvmlDeviceGetSerial, nvmlDeviceGetVbiosVersion};
    char text[96];
    nvmlDevice_t same = NULL;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        OK(functions[f](device, text, sizeof text));
        unsigned int length = (unsigned int)strlen(text);
        char *exact = malloc(length + 1); /* a byte too many is seen by the sanitizer */
        OK(functions[f](device, exact, length + 1));
        EXPECT(functions[f](device, exact, length) == NVML_ERROR_INSUFFICIENT_SIZE);
        EXPECT(functions[f](device, NULL, length) == NVML_ERROR_INVALID_ARGUMENT);
        free(exact);
    }
    OK(nvmlDeviceGetUUID(device, text, sizeof text));
    OK(nvmlDeviceGetHandleByUUID(text, &same));
    EXPECT(same == device);
    nvmlPciInfo_t pci;
    OK(nvmlDeviceGetPciInfo_v3(device, &pci));
    OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busIdLegacy, &same));
    EXPECT(same == device);
    OK(nvmlSystemGetDriverVersion(text, sizeof text));
    OK(nvmlSystemGetProcessName(1, text, 4));
}

static void numbers(nvmlDevice_t device)
{
    number_of *const functions[] = {nvmlDeviceGetIndex,      nvmlDeviceGetPowerUsage,   nvmlDeviceGetPerformanceState,
                                    nvmlDeviceGetNumaNodeId, nvmlDeviceGetArchitecture, nvmlDeviceGetMemoryBusWidth};
    wide_number_of *const wide[] = {nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetCurrentClocksEventReasons,
                                    nvmlDeviceGetSupportedEventTypes};
    unsigned int number;
    unsigned long long wide_number;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        OK(functions[f](device, &number));
        EXPECT(functions[f](device, NULL) == NVML_ERROR_INVALID_ARGUMENT);
        EXPECT(functions[f]((nvmlDevice_t)&number, &number) == NVML_ERROR_INVALID_ARGUMENT);
    }
    for (size_t f = 0; f < sizeof wide / sizeof *wide; f++) {
        OK(wide[f](device, &wide_number));
        EXPECT(wide[f](device, NULL) == NVML_ERROR_INVALID_ARGUMENT);
    }
    EXPECT(nvmlDeviceGetFanSpeed(device, &number) == NVML_ERROR_NOT_SUPPORTED);
    EXPECT(nvmlDeviceGetNvLinkState(device, 1000, &number) == NVML_ERROR_INVALID_ARGUMENT);
}

static void lists(nvmlDevice_t device)
{
    unsigned int count = 0, type = 0;
    unsigned long words[3];
    nvmlMemory_t memory;
    nvmlMemory_v2_t versioned = {.version = 1};
    OK(nvmlDeviceGetMemoryInfo(device, &memory));
    EXPECT(memory.free + memory.used == memory.total);
    EXPECT(nvmlDeviceGetMemoryInfo_v2(device, &versioned) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    OK(nvmlDeviceGetCpuAffinity(device, 3, words));
    EXPECT(words[0] != 0);
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL));

    OK(nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, NULL));
    EXPECT(count > 3);
    nvmlSample_t *samples = malloc(3 * sizeof *samples);
    count = 3;
    OK(nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, samples));
    EXPECT(count == 3);
    free(samples);

    nvmlFieldValue_t *values = calloc(300, sizeof *values);
    for (unsigned int v = 0; v < 300; v++) {
        values[v].fieldId = v;
    }
    OK(nvmlDeviceGetFieldValues(device, 300, values));
    EXPECT(values[0].nvmlReturn == NVML_ERROR_NOT_SUPPORTED && values[1].nvmlReturn == NVML_SUCCESS);
    free(values);

    nvmlDevice_t *near = malloc(sizeof *near);
    count = 1;
    OK(nvmlDeviceGetTopologyNearestGpus(device, NVML_TOPOLOGY_NODE, &count, near));
    EXPECT(count == 1 && near[0] != device);
    free(near);
}

static void events(nvmlDevice_t device)
{
    nvmlEventSet_t set;
    nvmlEventData_t data;
    OK(nvmlEventSetCreate(&set));
    EXPECT(nvmlDeviceRegisterEvents(device, 1ull << 40, set) == NVML_ERROR_NOT_SUPPORTED);
    OK(nvmlDeviceRegisterEvents(device, nvmlEventTypeXidCriticalError, set));
    EXPECT(nvmlEventSetWait_v2(set, &data, 1) == NVML_ERROR_TIMEOUT);
    OK(nvmlEventSetFree(set));
}

int main(void)
{
    nvmlDevice_t device = NULL;
    unsigned int count = 0;
    EXPECT(nvmlDeviceGetCount_v2(&count) == NVML_ERROR_UNINITIALIZED);
    OK(nvmlInit_v2());
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    EXPECT(count == 2 && nvmlDeviceGetHandleByIndex_v2(count, &device) == NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetHandleByIndex_v2(1, &device));
    texts(device);
    numbers(device);
    lists(device);
    events(device);
    OK(nvmlShutdown());
    OK(nvmlDeviceGetCount_v2(&count)); /* the first user is still there */
    OK(nvmlShutdown());
    EXPECT(nvmlShutdown() == NVML_ERROR_UNINITIALIZED);
    puts("all well");
    return 0;
}
