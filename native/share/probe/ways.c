/* The ways to a function of the driver: linked, through dlsym, and through cuGetProcAddress of both versions. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const WAY_NAMES[WAYS] = {"linked", "dlsym", "cuGetProcAddress", "cuGetProcAddress_v2"};

/* Linked as a program that was built against libcuda is: whoever is loaded first has the name. Weak, so that the probe
 * starts where nobody has it. */
#define LINKED(symbol) {#symbol, (function)symbol}
#pragma weak cuMemAlloc
#pragma weak cuMemAlloc_v2
#pragma weak cuMemAllocPitch
#pragma weak cuMemAllocPitch_v2
#pragma weak cuMemAllocManaged
#pragma weak cuMemAllocAsync
#pragma weak cuMemAllocAsync_ptsz
#pragma weak cuMemAllocFromPoolAsync
#pragma weak cuMemAllocFromPoolAsync_ptsz
#pragma weak cuMemCreate
#pragma weak cuArrayCreate
#pragma weak cuArrayCreate_v2
#pragma weak cuArray3DCreate
#pragma weak cuArray3DCreate_v2
#pragma weak cuMipmappedArrayCreate
#pragma weak cuGraphAddMemAllocNode
#pragma weak cuGraphAddNode
#pragma weak cuGraphAddNode_v2
#pragma weak cuGraphAddNode_v3
#pragma weak cuLaunchKernel
#pragma weak cuLaunchKernel_ptsz
#pragma weak cuLaunchKernelEx
#pragma weak cuLaunchKernelEx_ptsz
#pragma weak cuLaunchCooperativeKernel
#pragma weak cuLaunchCooperativeKernel_ptsz
#pragma weak cuGraphLaunch
#pragma weak cuGraphLaunch_ptsz

static function linked(const char *symbol)
{
    const struct {
        const char *symbol;
        function address;
    } known[] = {
        LINKED(cuMemAlloc),
        LINKED(cuMemAlloc_v2),
        LINKED(cuMemAllocPitch),
        LINKED(cuMemAllocPitch_v2),
        LINKED(cuMemAllocManaged),
        LINKED(cuMemAllocAsync),
        LINKED(cuMemAllocAsync_ptsz),
        LINKED(cuMemAllocFromPoolAsync),
        LINKED(cuMemAllocFromPoolAsync_ptsz),
        LINKED(cuMemCreate),
        LINKED(cuArrayCreate),
        LINKED(cuArrayCreate_v2),
        LINKED(cuArray3DCreate),
        LINKED(cuArray3DCreate_v2),
        LINKED(cuMipmappedArrayCreate),
        LINKED(cuGraphAddMemAllocNode),
        LINKED(cuGraphAddNode),
        LINKED(cuGraphAddNode_v2),
        LINKED(cuGraphAddNode_v3),
        LINKED(cuLaunchKernel),
        LINKED(cuLaunchKernel_ptsz),
        LINKED(cuLaunchKernelEx),
        LINKED(cuLaunchKernelEx_ptsz),
        LINKED(cuLaunchCooperativeKernel),
        LINKED(cuLaunchCooperativeKernel_ptsz),
        LINKED(cuGraphLaunch),
        LINKED(cuGraphLaunch_ptsz),
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        if (strcmp(known[k].symbol, symbol) == 0) {
            return known[k].address;
        }
    }
    return NULL;
}

static void *library(void)
{
    static void *opened;
    if (opened == NULL) {
        /* For all, as a program that is linked with it has it: then the weak names above are found too. */
        opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    }
    if (opened == NULL) {
        fprintf(stderr, "there is no driver: %s\n", dlerror());
        exit(3);
    }
    return opened;
}

static function as_function(void *address)
{
    function made;
    memcpy(&made, &address, sizeof made);
    return made;
}

function driver_function(const char *symbol)
{
    function found = as_function(dlsym(library(), symbol));
    if (found == NULL) {
        fprintf(stderr, "the driver has no %s\n", symbol);
        exit(3);
    }
    return found;
}

function look_up(enum way way, const struct name *name)
{
    void *address = NULL;
    uint64_t flags = name->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    int status;
    switch (way) {
    case WAY_LINK:
        return linked(name->symbol);
    case WAY_DLSYM:
        address = dlsym(library(), name->symbol);
        break;
    case WAY_PROC_ADDRESS:
        DRIVER(cuGetProcAddress)(name->base, &address, name->version, flags);
        break;
    default:
        DRIVER(cuGetProcAddress_v2)(name->base, &address, name->version, flags, &status);
    }
    return as_function(address);
}
