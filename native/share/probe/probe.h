/*
 * The probe: a program that tries whether limits hold. It knows nothing of the library; it asks the driver for memory
 * and launches kernels, as any program would, by every way that there is to the driver's functions. It runs on virtual
 * and on real GPUs alike.
 */
#ifndef BATUTA_SHARE_PROBE_H
#define BATUTA_SHARE_PROBE_H

#include "calls.h"

#include <stdbool.h>
#include <stdint.h>

typedef void (*function)(void);

enum way { WAY_LINK, WAY_DLSYM, WAY_PROC_ADDRESS, WAY_PROC_ADDRESS_V2, WAYS };
extern const char *const WAY_NAMES[WAYS];

/* A function of the driver: the name that a linker knows, and the one that cuGetProcAddress does. */
struct name {
    const char *symbol;
    const char *base;
    int version;
    bool per_thread;
};

/* The function by that way; NULL where it cannot be had. */
function look_up(enum way way, const struct name *name);
/* By its symbol, for all that is not under test; the program ends when there is none. */
function driver_function(const char *symbol);
#define DRIVER(symbol) ((__typeof__(&symbol))driver_function(#symbol))

/* Ends the program when the driver refuses what has to work. */
void must(const char *what, CUresult result);
/* A context on the device, made current. */
void use_device(CUdevice device);
/* A kernel that keeps the device busy for so long; it does so on real and on virtual GPUs. */
CUfunction spin_kernel(unsigned int length_us);
size_t free_bytes(size_t *limit_bytes);

/* The commands. */
int probe_entries(void);
int probe_launches(const char *region_path);
int probe_load(double length_s, const char *lengths_us, const char *how);
int probe_speed(const char *what, long count, long live);

CUresult cuInit(unsigned int);
CUresult cuDeviceGetCount(int *);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphCreate(CUgraph *, unsigned int);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphExecDestroy(CUgraphExec);

#endif
