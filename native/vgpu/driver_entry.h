/* The table of all functions of the driver API. */
#ifndef BATUTA_VGPU_DRIVER_ENTRY_H
#define BATUTA_VGPU_DRIVER_ENTRY_H

struct driver_name {
    const char *base;
    int since; /* the version of CUDA from which on `base` means this symbol */
    int (*symbol)(void);
    int (*per_thread)(void);
};

extern const struct driver_name DRIVER_NAMES[];
extern const int DRIVER_NAME_COUNT;

#endif
