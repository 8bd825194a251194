/* Inside libnvidia-ml.so.1: the device model, as it is looked at. */
#ifndef BATUTA_VGPU_NVML_H
#define BATUTA_VGPU_NVML_H

#include "batuta/nvml_names.h"
#include "model.h"

#define API __attribute__((visibility("default")))
#define ALIAS(other, name) extern API __typeof__(name) other __attribute__((alias(#name)))

extern struct vgpu_file *nvml_file;

/* The device behind a handle, when it is one and the device still answers. */
nvmlReturn_t nvml_device(nvmlDevice_t handle, struct vgpu_device **device);
/* The same, with the lock held and the accounts settled up to `now_ns`; on success nvml_leave must follow. */
nvmlReturn_t nvml_enter(nvmlDevice_t handle, struct vgpu_device **device, uint64_t *now_ns);
void nvml_leave(void);
uint32_t nvml_index(const struct vgpu_device *device);
nvmlDevice_t nvml_handle(uint32_t index);
/* A text into a caller's buffer. */
nvmlReturn_t nvml_text(char *buffer, unsigned int length, const char *text);

/* What follows from the load. With the lock held. */
int nvml_celsius(const struct vgpu_device *device, uint64_t now_ns);
unsigned int nvml_milliwatts(const struct vgpu_device *device, uint64_t now_ns);
unsigned long long nvml_millijoules(const struct vgpu_device *device);

#define NOT_NULL(pointer)                                                                                             \
    if ((pointer) == NULL) {                                                                                          \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                           \
    }

#endif
