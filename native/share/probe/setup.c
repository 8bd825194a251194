/* What every command needs first: a context, a kernel that takes its time, what memory is left. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>

void must(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: error %d of the driver\n", what, result);
        exit(3);
    }
}

void use_device(CUdevice device)
{
    CUcontext context;
    must("cuInit", DRIVER(cuInit)(0));
    must("cuDevicePrimaryCtxRetain", DRIVER(cuDevicePrimaryCtxRetain)(&context, device));
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent)(context));
}

CUfunction spin_kernel(unsigned int length_us)
{
    /* A real GPU looks at its clock until the time is over. A virtual one reads the length out of the name. */
    static const char PTX[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry spin_vgpu_%uus()\n{\n"
                              "    .reg .u64 %%now, %%begun, %%passed;\n    .reg .pred %%on;\n"
                              "    mov.u64 %%begun, %%globaltimer;\n"
                              "again:\n"
                              "    mov.u64 %%now, %%globaltimer;\n"
                              "    sub.u64 %%passed, %%now, %%begun;\n"
                              "    setp.lt.u64 %%on, %%passed, %u;\n"
                              "    @%%on bra again;\n"
                              "    ret;\n}\n";
    char image[sizeof PTX + 64];
    char name[64];
    CUmodule module;
    CUfunction kernel;
    snprintf(image, sizeof image, PTX, length_us, length_us * 1000);
    snprintf(name, sizeof name, "spin_vgpu_%uus", length_us);
    must("cuModuleLoadData", DRIVER(cuModuleLoadData)(&module, image));
    must("cuModuleGetFunction", DRIVER(cuModuleGetFunction)(&kernel, module, name));
    return kernel;
}

size_t free_bytes(size_t *limit_bytes)
{
    size_t left, total;
    must("cuMemGetInfo", DRIVER(cuMemGetInfo_v2)(&left, &total));
    if (limit_bytes != NULL) {
        *limit_bytes = total;
    }
    return left;
}
