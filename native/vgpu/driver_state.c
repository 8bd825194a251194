/* cuInit, the process's place in the device model, error names. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1};

CUresult driver_ready(void)
{
    return driver.file == NULL || driver.forked ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

CUresult driver_health(uint32_t index)
{
    const struct vgpu_device *device = &driver.file->devices[index];
    if (__atomic_load_n(&device->lost, __ATOMIC_RELAXED)) {
        return CUDA_ERROR_UNKNOWN;
    }
    return __atomic_load_n(&device->uncorrectable, __ATOMIC_RELAXED) ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}

CUresult driver_device(CUdevice device, uint32_t *index)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device < 0 || device >= driver.visible_count) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *index = driver.visible[device];
    return CUDA_SUCCESS;
}

/* One word of CUDA_VISIBLE_DEVICES: a number, or a UUID or its beginning. */
static int device_named(const struct vgpu_file *file, const char *word)
{
    char *end;
    long number = strtol(word, &end, 10);
    if (*word != '\0' && *end == '\0') {
        return number >= 0 && number < (long)file->devices_count ? (int)number : -1;
    }
    int found = -1;
    for (uint32_t d = 0; strncasecmp(word, "GPU-", 4) == 0 && d < file->devices_count; d++) {
        if (strncasecmp(file->devices[d].uuid, word, strlen(word)) == 0) {
            found = found < 0 ? (int)d : -2;
        }
    }
    return found;
}

/* The list ends at the first device that is not there or was named before; the rest is not seen. */
static void choose_visible(const struct vgpu_file *file)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    driver.visible_count = 0;
    if (wanted == NULL) {
        for (uint32_t d = 0; d < file->devices_count; d++) {
            driver.visible[driver.visible_count++] = d;
        }
        return;
    }
    char words[1024];
    strncpy(words, wanted, sizeof words - 1);
    words[sizeof words - 1] = '\0';
    char *rest = NULL;
    for (char *word = strtok_r(words, ", ", &rest); word != NULL; word = strtok_r(NULL, ", ", &rest)) {
        int device = device_named(file, word);
        bool known = device < 0 || driver.visible_count == VGPU_DEVICES;
        for (int v = 0; !known && v < driver.visible_count; v++) {
            known = driver.visible[v] == (uint32_t)device;
        }
        if (known) {
            return;
        }
        driver.visible[driver.visible_count++] = (uint32_t)device;
    }
}

static void note_fork(void)
{
    driver.forked = driver.file != NULL;
}

static CUresult start(void)
{
    struct vgpu_file *file = NULL;
    switch (vgpu_open(&file)) {
    case VGPU_ABSENT:
        return CUDA_ERROR_NO_DEVICE;
    case VGPU_WRONG_LAYOUT:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case VGPU_UNREADABLE:
        return CUDA_ERROR_OPERATING_SYSTEM;
    case VGPU_OPENED:
        break;
    }
    choose_visible(file);
    if (driver.visible_count == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    vgpu_lock(file);
    int process = vgpu_attach(file);
    vgpu_unlock(file);
    if (process < 0) {
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    driver.process = (uint32_t)process;
    pthread_atfork(NULL, NULL, note_fork);
    __atomic_store_n(&driver.file, file, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned int flags)
{
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (driver.forked) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&driver.lock);
    CUresult result = driver.file == NULL ? start() : CUDA_SUCCESS;
    pthread_mutex_unlock(&driver.lock);
    return result;
}

/* A process that ends in good order gives all back at once. One that does not is found to be gone. */
__attribute__((destructor)) static void leave(void)
{
    if (driver.file != NULL && !driver.forked) {
        vgpu_lock(driver.file);
        vgpu_detach(driver.file, driver.process);
        vgpu_unlock(driver.file);
        driver.file = NULL;
    }
}

API CUresult cuDriverGetVersion(int *version)
{
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = 13000;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name;
    const char *text;
} ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "object is in a state that does not allow this"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already on"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "the primary context is in use"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "this memory is already registered"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "this memory is not registered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported (on a virtual GPU)"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "library and device file do not belong together"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "no capture was begun here"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult code, const char **text, bool name)
{
    if (text == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *text = NULL;
    for (size_t e = 0; e < sizeof ERRORS / sizeof *ERRORS; e++) {
        if (ERRORS[e].code == code) {
            *text = name ? ERRORS[e].name : ERRORS[e].text;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorName(CUresult code, const char **text)
{
    return describe(code, text, true);
}

API CUresult cuGetErrorString(CUresult code, const char **text)
{
    return describe(code, text, false);
}
