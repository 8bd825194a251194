/* One allocation through a function of libcuda that calls another one of libcuda. */
#include "calls.h"

#include <stdio.h>

int main(void)
{
    CUcontext context;
    CUdeviceptr address;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    printf("result %d\n", cuMemAllocAsync(&address, 4096, NULL));
    return 0;
}
